//! The kernel's own description of itself: lines of `KEY=value` (kernel/vmcore_info.c, documented in the kernel's
//! admin-guide/kdump/vmcoreinfo).

use crate::error::{KernelError, Result};
use crate::space::START_KERNEL_MAP;
use crate::virt::VirtAddr;
use std::collections::HashMap;

/// VMCOREINFO, parsed. Keys match exactly; of a key that occurs twice the first line counts.
#[derive(Clone, Debug, Default)]
pub struct VmcoreInfo {
    values: HashMap<String, String>,
    duplicates: Vec<String>,
    cut: Option<String>,
}

impl VmcoreInfo {
    /// Reads the text of the note. Lines end in LF or CRLF; a NUL ends the text; lines without `=` are skipped, as are bytes that
    /// are not UTF-8. The kernel ends every line, so a last line that lacks its end may have lost digits: its value is not used
    /// if it is a size, an offset, an address or the like ([`Self::cut`]); plain keys such as CRASHTIME are.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        let mut info = Self::default();
        let text = text.split(|b| *b == 0).next().unwrap_or_default();
        for line in String::from_utf8_lossy(text).split_inclusive('\n') {
            let Some((key, value)) = line.trim_end_matches(['\r', '\n']).split_once('=') else { continue };
            if !line.ends_with('\n') && key.ends_with(')') {
                info.cut = Some(key.to_owned());
            } else if info.values.contains_key(key) {
                info.duplicates.push(key.to_owned());
            } else {
                info.values.insert(key.to_owned(), value.to_owned());
            }
        }
        info
    }

    /// Takes from `other` what is not here.
    pub fn fill(&mut self, other: Self) {
        for (key, value) in other.values {
            self.values.entry(key).or_insert(value);
        }
    }

    /// Sets the value of `key`.
    pub(crate) fn set(&mut self, key: &str, value: String) {
        self.values.insert(key.to_owned(), value);
    }

    /// Adds `shift` to all symbols of the kernel image. What is below it, as per-cpu variables, does not move.
    pub fn relocate(&mut self, shift: u64) {
        for (_, value) in self.values.iter_mut().filter(|(key, _)| key.starts_with("SYMBOL(")) {
            if let Some(at) = hex(value.trim()).filter(|at| (START_KERNEL_MAP..u64::MAX).contains(at)) {
                *value = format!("{:x}", at.wrapping_add(shift));
            }
        }
    }

    /// All lines, in the order of their keys.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut lines: Vec<String> = self.values.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        // Readers know the text by its first line.
        lines.sort_by_key(|line| (!line.starts_with("OSRELEASE="), line.clone()));
        lines.concat()
    }

    /// Keys that occurred more than once.
    #[must_use]
    pub fn duplicates(&self) -> &[String] {
        &self.duplicates
    }

    /// The key of the last line, where that was not used because it may have lost digits.
    #[must_use]
    pub fn cut(&self) -> Option<&str> {
        self.cut.as_deref()
    }

    /// Whether no key was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The text behind `key=`.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// `SYMBOL(name)`: a run-time address, hexadecimal without prefix. 0 and all ones are no addresses.
    ///
    /// # Errors
    /// The value is no such address.
    pub fn symbol(&self, name: &str) -> Result<Option<VirtAddr>> {
        self.read(&format!("SYMBOL({name})"), "a kernel address in hexadecimal", |v| {
            hex(v).filter(|a| !matches!(*a, 0 | u64::MAX)).map(VirtAddr)
        })
    }

    /// `SIZE(name)` in bytes.
    ///
    /// # Errors
    /// The value is no number from 1 to 16 Mi.
    pub fn size(&self, name: &str) -> Result<Option<u64>> {
        self.read(&format!("SIZE({name})"), "a size in bytes", |v| {
            signed(v).and_then(|n| u64::try_from(n).ok()).filter(|n| (1..=1 << 24).contains(n))
        })
    }

    /// `OFFSET(structure.member)` in bytes.
    ///
    /// # Errors
    /// The value is no number from 0 to 16 Mi.
    pub fn offset(&self, member: &str) -> Result<Option<u64>> {
        self.read(&format!("OFFSET({member})"), "an offset in bytes", |v| {
            signed(v).and_then(|n| u64::try_from(n).ok()).filter(|n| *n <= 1 << 24)
        })
    }

    /// `LENGTH(array)` in elements.
    ///
    /// # Errors
    /// The value is no number from 0 on.
    pub fn length(&self, array: &str) -> Result<Option<u64>> {
        self.read(&format!("LENGTH({array})"), "a number of elements", |v| {
            signed(v).and_then(|n| u64::try_from(n).ok())
        })
    }

    /// `NUMBER(name)`: decimal with sign, or hexadecimal with `0x`.
    ///
    /// # Errors
    /// The value is no number.
    pub fn number(&self, name: &str) -> Result<Option<i64>> {
        self.read(&format!("NUMBER({name})"), "a number", signed)
    }

    /// `NUMBER(name)` as a page flag number: 0 to 63.
    ///
    /// # Errors
    /// The value is no bit number.
    pub fn bit(&self, name: &str) -> Result<Option<u32>> {
        self.read(&format!("NUMBER({name})"), "a page flag number (0 to 63)", |v| {
            signed(v).and_then(|n| u32::try_from(n).ok()).filter(|n| *n < 64)
        })
    }

    /// `NUMBER(name)` as the 32 bits of `_mapcount` that mark a page type.
    ///
    /// # Errors
    /// The value does not fit 32 bits.
    pub fn page_type(&self, name: &str) -> Result<Option<i32>> {
        self.read(&format!("NUMBER({name})"), "a 32-bit page type", |v| {
            signed(v).and_then(|n| i32::try_from(n).ok().or_else(|| u32::try_from(n).ok().map(u32::cast_signed)))
        })
    }

    /// A plain line such as `KERNELOFFSET=1a800000`, hexadecimal without prefix.
    ///
    /// # Errors
    /// The value is no hexadecimal number.
    pub fn plain_hex(&self, key: &str) -> Result<Option<u64>> {
        self.read(key, "a hexadecimal number", hex)
    }

    /// A plain line such as `CRASHTIME=1796052569`, decimal.
    ///
    /// # Errors
    /// The value is no decimal number.
    pub fn plain_decimal(&self, key: &str) -> Result<Option<u64>> {
        self.read(key, "a decimal number", |v| v.trim().parse().ok())
    }

    /// The value of a lookup that must not be absent.
    ///
    /// # Errors
    /// [`KernelError::MissingKey`] naming `key` and `purpose`.
    pub fn require<T>(value: Option<T>, key: &str, purpose: &'static str) -> Result<T> {
        value.ok_or_else(|| KernelError::MissingKey { key: key.to_owned(), purpose })
    }

    fn read<T>(&self, key: &str, expected: &'static str, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        match parse(value.trim()) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(KernelError::BadValue { key: key.to_owned(), value: value.clone(), expected }),
        }
    }
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

/// Decimal with sign; what is not decimal is read as hexadecimal, as all tools have done since the first kernels printed both.
fn signed(text: &str) -> Option<i64> {
    text.parse::<i64>()
        .ok()
        .or_else(|| text.parse::<u64>().ok().map(u64::cast_signed))
        .or_else(|| hex(text).map(u64::cast_signed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c30_torn_and_odd_notes_are_read_by_exact_key() {
        let info = VmcoreInfo::parse(
            b"OSRELEASE=6.1\r\nPAGESIZE=4096\r\nSIZE(page)=64\nSIZE(page)=56\nSIZE(pageflags)=4\nNUMBER(x)=0x10\nNUMBER(y)=-128\nNUMBER(z)=ff\ngarbage\nSYMBOL(last)=ffffffff81000000\nCRASHTIME=1700000000",
        );
        assert_eq!(info.text("OSRELEASE"), Some("6.1"));
        assert_eq!(info.size("page").unwrap(), Some(64));
        assert_eq!(info.size("pageflags").unwrap(), Some(4));
        assert_eq!(info.size("pag").unwrap(), None);
        assert_eq!(info.duplicates(), ["SIZE(page)"]);
        assert_eq!(info.number("x").unwrap(), Some(16));
        assert_eq!(info.number("y").unwrap(), Some(-128));
        assert_eq!(info.number("z").unwrap(), Some(255));
        assert_eq!(info.symbol("last").unwrap(), Some(VirtAddr(0xffff_ffff_8100_0000)));
        assert_eq!(info.plain_decimal("CRASHTIME").unwrap(), Some(1_700_000_000));
        assert_eq!(info.cut(), None);
        assert!(VmcoreInfo::parse(b"").is_empty());
        assert!(VmcoreInfo::parse(b"\0OSRELEASE=1").is_empty());
    }

    #[test]
    fn c30_a_number_that_may_have_lost_digits_is_not_used() {
        let info = VmcoreInfo::parse(b"NUMBER(PG_lru)=4\nNUMBER(PG_private)=1");
        assert_eq!((info.bit("PG_lru").unwrap(), info.bit("PG_private").unwrap()), (Some(4), None));
        assert_eq!(info.cut(), Some("NUMBER(PG_private)"));
    }

    #[test]
    fn a_value_of_the_wrong_kind_names_its_key() {
        let info = VmcoreInfo::parse(
            b"SIZE(page)=-3\nSYMBOL(a)=0\nNUMBER(PG_lru)=64\nNUMBER(t)=4026531840\nNUMBER(u)=-268435456\n",
        );
        assert!(info.size("page").unwrap_err().to_string().contains("SIZE(page)=-3"));
        assert!(info.symbol("a").is_err());
        assert!(info.bit("PG_lru").is_err());
        assert_eq!(info.page_type("t").unwrap(), info.page_type("u").unwrap());
    }
}
