//! Sizes and numbers as people and C libraries write them.

use std::num::NonZeroU64;
use std::str::FromStr;

/// A number of bytes, at least 1. Written as a number (decimal, `0x` hexadecimal, `0` octal) with an optional K, M, G, T, P or
/// E in either case, powers of 1024: the grammar of the kernel's own command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub NonZeroU64);

/// Why a text is no [`Size`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a size is a number of bytes above 0, with K, M, G or T for powers of 1024: 512M")]
pub struct NoSize;

impl FromStr for Size {
    type Err = NoSize;

    fn from_str(text: &str) -> Result<Self, NoSize> {
        let (digits, shift) = match text.char_indices().next_back() {
            Some((at, suffix)) => match power(suffix) {
                Some(shift) => (text.get(..at).unwrap_or_default(), shift),
                // `0x1e` ends in a digit of its number; `0x1E` is one too, as it would be without the 0x a suffix.
                None => (text, 0),
            },
            None => return Err(NoSize),
        };
        let (digits, shift) = if is_hex(text) { (text, 0) } else { (digits, shift) };
        let number = number(digits).ok_or(NoSize)?;
        let bytes = number.checked_mul(1 << shift).ok_or(NoSize)?;
        NonZeroU64::new(bytes).map(Self).ok_or(NoSize)
    }
}

fn is_hex(text: &str) -> bool {
    text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).is_some_and(|d| u64::from_str_radix(d, 16).is_ok())
}

/// Digits in the base that their beginning names, without a sign.
fn number(digits: &str) -> Option<u64> {
    let (digits, base) = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        (hex, 16)
    } else if digits.len() > 1 && digits.starts_with('0') {
        (digits, 8)
    } else {
        (digits, 10)
    };
    if digits.starts_with('+') { None } else { u64::from_str_radix(digits, base).ok() }
}

/// What C's `atoi` makes of a text, and whether the text was a plain number.
///
/// Leading blanks and one sign are allowed, the digits end at the first other byte, no digits give 0.
pub fn atoi(text: &[u8]) -> (i64, bool) {
    let start = text.iter().position(|b| !b.is_ascii_whitespace()).unwrap_or(text.len());
    let text = text.get(start..).unwrap_or_default();
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let len = digits.iter().take_while(|b| b.is_ascii_digit()).count();
    let value = digits
        .iter()
        .take(len)
        .fold(0i64, |value, digit| value.saturating_mul(10).saturating_add(i64::from(digit.wrapping_sub(b'0'))));
    (if negative { -value } else { value }, len > 0 && len == digits.len())
}

/// The number at the beginning of `text` as C's `strtoull` with base 0 reads it (`0x` hexadecimal, `0` octal; blanks and a sign may come
/// first; all ones where it is too large), and what follows it: the whole text where there is no number.
fn number_and_rest(text: &[u8]) -> (u64, &[u8]) {
    let start = text.iter().position(|b| !b.is_ascii_whitespace()).unwrap_or(text.len());
    let unsigned = text.get(start..).unwrap_or_default();
    let (negative, unsigned) = match unsigned {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, unsigned),
    };
    let (digits, radix) = match unsigned {
        [b'0', b'x' | b'X', rest @ ..] if rest.first().is_some_and(u8::is_ascii_hexdigit) => (rest, 16),
        [b'0', _, ..] => (unsigned, 8),
        _ => (unsigned, 10),
    };
    let values = digits.iter().map_while(|byte| char::from(*byte).to_digit(radix).map(u64::from));
    let len = values.clone().count();
    if len == 0 {
        return (0, text);
    }
    let fold = |all: u64, digit| all.checked_mul(u64::from(radix)).and_then(|all| all.checked_add(digit));
    let value = match values.clone().try_fold(0, fold) {
        Some(value) if negative => value.wrapping_neg(),
        Some(value) => value,
        None => u64::MAX,
    };
    (value, digits.get(len..).unwrap_or_default())
}

/// The number at the beginning of `text` as C's `strtoul` with base 0 reads it, and whether there is nothing else. makedumpfile's --vtop
/// is read so.
pub fn strtoul(text: &[u8]) -> (u64, bool) {
    let (value, rest) = number_and_rest(text);
    (value, rest.is_empty() && !text.is_empty())
}

/// The bytes of makedumpfile's -L, at least 1: a number as `strtoull` reads it, and one suffix at most. So `-1` is the most there can be.
/// With a suffix that is too much for 64 bits it is so too; makedumpfile takes the lower 64 bits.
pub fn size_limit(text: &[u8]) -> Option<NonZeroU64> {
    let (number, rest) = number_and_rest(text);
    let shift = match rest {
        [] => 0,
        [suffix] => power(char::from(*suffix))?,
        _ => return None,
    };
    NonZeroU64::new(number.saturating_mul(1 << shift))
}

/// How far a suffix moves a number to the left.
fn power(suffix: char) -> Option<u32> {
    "KMGTPE".find(suffix.to_ascii_uppercase()).map(|power| (power as u32 + 1) * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_every_spelling() {
        for (text, bytes) in [
            ("1", 1),
            ("4096", 4096),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("512M", 512 << 20),
            ("2g", 2 << 30),
            ("3T", 3 << 40),
            ("5P", 5 << 50),
            ("1e", 1 << 60),
            ("0x10", 16),
            ("0x10M", 16 << 20),
            ("0x1e", 0x1e),
            ("0x1E", 0x1e),
            ("010", 8),
        ] {
            assert_eq!(text.parse::<Size>().map(|s| s.0.get()), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "0",
            "0K",
            "K",
            "10Q",
            "10KB",
            "-1",
            "+1",
            "1.5G",
            " 1",
            "08",
            "0x",
            "0xg",
            "16E",
            "99999999999999999999",
        ] {
            assert_eq!(text.parse::<Size>(), Err(NoSize), "{text}");
        }
    }

    #[test]
    fn a_size_limit_is_what_makedumpfile_takes_it_for() {
        // As makedumpfile 1.7.9 ended with these, on a core whose dump has 114 MB.
        for (text, bytes) in [
            ("-1", Some(u64::MAX)),
            ("-1K", Some(u64::MAX)),
            ("0", None),
            ("-0", None),
            ("0K", None),
            ("1K", Some(1024)),
            ("abc", None),
            ("K", None),
            ("", None),
            ("10Q", None),
            ("99999999999999999999", Some(u64::MAX)),
            ("99999999999999999999K", Some(u64::MAX)),
            // 0 there, and refused.
            ("16E", Some(u64::MAX)),
            ("18446744073709551615", Some(u64::MAX)),
            (" 5M", Some(5 << 20)),
            ("+5m", Some(5 << 20)),
            ("5MB", None),
            ("5M ", None),
            ("1.5G", None),
            ("0x100000", Some(1 << 20)),
            ("0x1E", Some(30)),
            ("010M", Some(8 << 20)),
            ("08", None),
            ("0x", None),
        ] {
            assert_eq!(size_limit(text.as_bytes()).map(NonZeroU64::get), bytes, "{text}");
        }
    }

    #[test]
    fn atoi_reads_what_c_reads() {
        for (text, value, plain) in [
            ("31", 31, true),
            (" +7", 7, true),
            ("-4", -4, true),
            ("", 0, false),
            ("abc", 0, false),
            ("12x", 12, false),
            ("0x1f", 0, false),
            ("-", 0, false),
            ("99999999999999999999", i64::MAX, true),
        ] {
            assert_eq!(atoi(text.as_bytes()), (value, plain), "{text:?}");
        }
    }
}
