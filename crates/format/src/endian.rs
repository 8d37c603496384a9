//! Numbers in the byte order of the crashed machine.

/// Byte order of a file's integers, carried with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endian {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

/// Width of a C `long` and of a pointer on the crashed machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bits {
    /// 32 bits.
    B32,
    /// 64 bits.
    B64,
}

/// An integer of 1 to 8 bytes at a place in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Offset in the record, in bytes.
    pub at: usize,
    /// Size in bytes.
    pub size: usize,
}

impl Endian {
    /// The `size`-byte unsigned integer at `at`, or `None` where `bytes` ends before it. `size` is at most 8.
    #[must_use]
    pub fn uint(self, bytes: &[u8], at: usize, size: usize) -> Option<u64> {
        let raw = bytes.get(at..at.checked_add(size)?)?;
        let join = |acc: u64, b: &u8| acc << 8 | u64::from(*b);
        Some(match self {
            Self::Little => raw.iter().rev().fold(0, join),
            Self::Big => raw.iter().fold(0, join),
        })
    }

    /// The unsigned integer a field holds.
    #[must_use]
    pub fn get(self, record: &[u8], field: Field) -> Option<u64> {
        self.uint(record, field.at, field.size)
    }

    /// Writes the low `field.size` bytes of `value`; nothing where the record ends before the field.
    pub fn put(self, record: &mut [u8], field: Field, value: u64) {
        let Some(raw) = field.at.checked_add(field.size).and_then(|end| record.get_mut(field.at..end)) else { return };
        let size = raw.len().min(8);
        let (le, be) = (value.to_le_bytes(), value.to_be_bytes());
        let bytes = match self {
            Self::Little => le.get(..size),
            Self::Big => be.get(8 - size..),
        };
        if let (Some(raw), Some(bytes)) = (raw.get_mut(..size), bytes) {
            raw.copy_from_slice(bytes);
        }
    }

    /// The 32-bit unsigned integer at `at`.
    #[must_use]
    pub fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let raw = bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(*raw),
            Self::Big => u32::from_be_bytes(*raw),
        })
    }

    /// The 64-bit unsigned integer at `at`.
    #[must_use]
    pub fn u64(self, bytes: &[u8], at: usize) -> Option<u64> {
        let raw = bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u64::from_le_bytes(*raw),
            Self::Big => u64::from_be_bytes(*raw),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_put_is_got(value: u64, at in 0usize..4, size in 1usize..=8, big: bool) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let mut record = [0xaa; 12];
            let field = Field { at, size };
            endian.put(&mut record, field, value);
            prop_assert_eq!(endian.get(&record, field), Some(value & (u64::MAX >> (64 - 8 * size))));
            prop_assert!(record[..at].iter().chain(&record[at + size..]).all(|b| *b == 0xaa));
        }
    }

    #[test]
    fn byte_orders_differ_and_ends_are_checked() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(Endian::Little.u32(&bytes, 0), Some(0x0403_0201));
        assert_eq!(Endian::Big.u32(&bytes, 0), Some(0x0102_0304));
        assert_eq!(Endian::Little.uint(&bytes, 0, 8), Endian::Little.u64(&bytes, 0));
        assert_eq!(Endian::Big.uint(&bytes, 0, 8), Endian::Big.u64(&bytes, 0));
        for (at, size) in [(8, 1), (1, 8), (usize::MAX, 2)] {
            assert_eq!(Endian::Big.uint(&bytes, at, size), None);
        }
        assert_eq!(Endian::Big.u32(&bytes, 5), None);
        assert_eq!(Endian::Big.u64(&bytes, 9), None);
    }
}
