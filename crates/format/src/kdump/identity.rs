//! By what the parts of one split set know each other.
//!
//! The format says where a part begins and ends, but not how many there are, nor whether two come from the same run. So a part
//! carries a record of its own in block 0, behind the main header, where the format has nothing: makedumpfile compares and copies the
//! 464 bytes of the header only, and crash and libkdumpfile read no more of the block.
//!
//! | offset | type | field |
//! |---|---|---|
//! | 512 | 8 bytes | [`MAGIC`] |
//! | 520 | u32 | version: 1 |
//! | 524 | u32 | number of this part, counted from 0 |
//! | 528 | u32 | number of parts |
//! | 532 | u32 | 0 |
//! | 536 | u64 | number of the set: equal in all its parts |
//!
//! Integers are in the byte order of the file's headers.

use crate::endian::{Endian, Field};
use std::fmt;

/// What the record begins with.
const MAGIC: &[u8; 8] = b"CSIFTSET";
/// The version there is.
const VERSION: u32 = 1;

const VERSION_AT: Field = Field { at: 8, size: 4 };
const INDEX: Field = Field { at: 12, size: 4 };
const COUNT: Field = Field { at: 16, size: 4 };
const SET: Field = Field { at: 24, size: 8 };

/// Which part of which set a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartIdentity {
    /// Number of the set: equal in all its parts, another one in other runs with other input or other options.
    pub set: u64,
    /// Number of this part, counted from 0 in the order of page frame numbers.
    pub index: u32,
    /// Number of parts of the set.
    pub count: u32,
}

impl fmt::Display for PartIdentity {
    /// `part 2 of 3`, counted from 1.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "part {} of {}", u64::from(self.index) + 1, self.count)
    }
}

impl PartIdentity {
    /// File offset of the record: in block 0, behind the longest main header.
    pub const OFFSET: u64 = 512;
    /// Bytes of the record.
    pub const SIZE: usize = 32;

    /// The record as it is in the file.
    #[must_use]
    pub fn encode(self, endian: Endian) -> [u8; Self::SIZE] {
        let mut raw = [0; Self::SIZE];
        for (to, from) in raw.iter_mut().zip(MAGIC) {
            *to = *from;
        }
        endian.put(&mut raw, VERSION_AT, VERSION.into());
        endian.put(&mut raw, INDEX, self.index.into());
        endian.put(&mut raw, COUNT, self.count.into());
        endian.put(&mut raw, SET, self.set);
        raw
    }

    /// Reads a record; `None` where there is none, or one that cannot be true.
    #[must_use]
    pub fn decode(raw: &[u8], endian: Endian) -> Option<Self> {
        let raw = raw.get(..Self::SIZE)?;
        if !raw.starts_with(MAGIC) || endian.u32(raw, VERSION_AT.at)? != VERSION {
            return None;
        }
        let identity = Self {
            set: endian.u64(raw, SET.at)?,
            index: endian.u32(raw, INDEX.at)?,
            count: endian.u32(raw, COUNT.at)?,
        };
        (identity.index < identity.count).then_some(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is_one() {
        for endian in [Endian::Little, Endian::Big] {
            let identity = PartIdentity { set: 0x0102_0304_0506_0708, index: 2, count: 3 };
            let raw = identity.encode(endian);
            assert_eq!(PartIdentity::decode(&raw, endian), Some(identity));
            assert_eq!(PartIdentity::decode(&raw[..31], endian), None);
            for at in 0..12 {
                let mut other = raw;
                other[at] ^= 1;
                assert_eq!(PartIdentity::decode(&other, endian), None, "byte {at}");
            }
        }
        let outside = PartIdentity { set: 1, index: 3, count: 3 }.encode(Endian::Little);
        assert_eq!(PartIdentity::decode(&outside, Endian::Little), None);
        assert_eq!(PartIdentity::decode(&[0; 32], Endian::Little), None);
    }
}
