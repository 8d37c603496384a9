//! The regions that a sub header names.

use super::header::SubHeader;

/// A region of a kdump-compressed file that the sub header names by offset and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// The text of the VMCOREINFO note (inside the notes from version 4 on).
    Vmcoreinfo,
    /// ELF notes.
    Notes,
    /// The text that says what was erased.
    Eraseinfo,
}

impl Region {
    /// Names of region, offset field and size field.
    const fn names(self) -> [&'static str; 3] {
        match self {
            Self::Vmcoreinfo => ["VMCOREINFO", "offset_vmcoreinfo", "size_vmcoreinfo"],
            Self::Notes => ["ELF notes", "offset_note", "size_note"],
            Self::Eraseinfo => ["eraseinfo", "offset_eraseinfo", "size_eraseinfo"],
        }
    }

    /// What the region is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        let [name, ..] = self.names();
        name
    }

    /// File offset and bytes.
    pub(super) const fn place(self, sub: &SubHeader) -> (u64, u64) {
        match self {
            Self::Vmcoreinfo => (sub.offset_vmcoreinfo, sub.size_vmcoreinfo),
            Self::Notes => (sub.offset_note, sub.size_note),
            Self::Eraseinfo => (sub.offset_eraseinfo, sub.size_eraseinfo),
        }
    }

    /// Makes `sub` say that the region begins at file offset `offset` and has `size` bytes; both are 0 for none.
    pub const fn set(self, sub: &mut SubHeader, offset: u64, size: u64) {
        let (to_offset, to_size) = match self {
            Self::Vmcoreinfo => (&mut sub.offset_vmcoreinfo, &mut sub.size_vmcoreinfo),
            Self::Notes => (&mut sub.offset_note, &mut sub.size_note),
            Self::Eraseinfo => (&mut sub.offset_eraseinfo, &mut sub.size_eraseinfo),
        };
        (*to_offset, *to_size) = (offset, size);
    }

    /// The field that puts the region outside a file of `len` bytes, and its value.
    pub(super) fn check(self, sub: &SubHeader, len: u64) -> Result<(), (&'static str, u64)> {
        let (offset, size) = self.place(sub);
        let [_, offset_field, size_field] = self.names();
        match len.checked_sub(offset) {
            _ if size == 0 => Ok(()),
            None => Err((offset_field, offset)),
            Some(room) if size > room => Err((size_field, size)),
            Some(_) => Ok(()),
        }
    }
}
