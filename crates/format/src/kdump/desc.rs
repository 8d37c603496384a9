//! The page descriptor: where a page's data lie and in which form.

use crate::endian::{Endian, Field};

/// One page descriptor, the same on all machines but for byte order.
///
/// `flags` is 0 for a page stored as it is, else one codec bit. The format has a fourth field, `page_flags`, which is
/// always 0 and is not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageDesc {
    /// File offset of the page's data in bytes; 0 only where the page was lost.
    pub offset: u64,
    /// Bytes stored; at most a page.
    pub size: u32,
    /// Codec bit.
    pub flags: u32,
}

const OFFSET: Field = Field { at: 0, size: 8 };
const BYTES: Field = Field { at: 8, size: 4 };
const FLAGS: Field = Field { at: 12, size: 4 };

impl PageDesc {
    /// Bytes a descriptor occupies in the file.
    pub const SIZE: usize = 24;

    /// Size and flags of a descriptor that is being written: larger than any page and no codec, so that neither crash nor libkdumpfile
    /// takes it for a page, whatever its offset.
    pub const PENDING: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

    /// Whether the page was being written when the file was cut short.
    #[must_use]
    pub const fn is_pending(self) -> bool {
        self.size == u32::MAX && self.flags == 0
    }

    /// The descriptor as it is in the file.
    #[must_use]
    pub fn encode(self, endian: Endian) -> [u8; Self::SIZE] {
        let mut raw = [0; Self::SIZE];
        endian.put(&mut raw, OFFSET, self.offset);
        endian.put(&mut raw, BYTES, self.size.into());
        endian.put(&mut raw, FLAGS, self.flags.into());
        raw
    }

    /// Reads a descriptor from the first [`Self::SIZE`] bytes of `raw`, or `None` where there are fewer.
    #[must_use]
    pub fn decode(raw: &[u8], endian: Endian) -> Option<Self> {
        let raw = raw.get(..Self::SIZE)?;
        Some(Self {
            offset: endian.u64(raw, OFFSET.at)?,
            size: endian.u32(raw, BYTES.at)?,
            flags: endian.u32(raw, FLAGS.at)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_has_24_bytes_in_the_documented_order() {
        let desc = PageDesc { offset: 0x0102_0304_0506_0708, size: 0x0a0b_0c0d, flags: 0x20 };
        let big = [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0];
        let little = [8, 7, 6, 5, 4, 3, 2, 1, 13, 12, 11, 10, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(desc.encode(Endian::Big), big);
        assert_eq!(desc.encode(Endian::Little), little);
        assert_eq!(PageDesc::decode(&big, Endian::Big), Some(desc));
        assert_eq!(PageDesc::decode(&little, Endian::Little), Some(desc));
        assert_eq!(PageDesc::decode(&little[..23], Endian::Little), None);
    }
}
