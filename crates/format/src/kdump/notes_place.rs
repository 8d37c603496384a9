//! How long the notes of a damaged kdump-compressed file are, by themselves: they begin directly behind the sub header.

use super::header::SubHeader;
use crate::bytes::{Bytes, read_some};
use crate::endian::Endian;
use crate::{Note, Notes};
use std::ops::Range;

/// What the text of VMCOREINFO begins with.
const TEXT_START: &[u8] = b"OSRELEASE=";

/// The length in bytes of the notes that begin at `room.start`, directly behind the sub header, and end at `room.end` or before; what `sub`
/// says where that can be true. `None` where no notes are there, or the file ends before.
pub(super) fn size(bytes: &dyn Bytes, endian: Endian, sub: &SubHeader, mut room: Range<u64>) -> Option<u64> {
    let (text, text_len) = (sub.offset_vmcoreinfo, sub.size_vmcoreinfo);
    let erased = sub.offset_eraseinfo;
    if sub.size_eraseinfo > 0 && room.contains(&erased) {
        room.end = erased;
    }
    let most = room.end.checked_sub(room.start)?;
    if room.end > bytes.len() {
        return None;
    }
    let raw = read_some(bytes, "ELF notes", room.start, most).ok()?;
    let whole = Notes::new(&raw, endian).take_while(whole);
    let mut least = whole.last().map(|note| (note.desc_offset + note.desc.len()) as u64)?;
    // Where a note is damaged, what follows it is not found.
    if let Some(at) = text.checked_sub(room.start)
        && let Some(end) = at.checked_add(text_len).filter(|end| *end <= most)
        && raw.get(at as usize..).is_some_and(|text| text.starts_with(TEXT_START))
    {
        if (end..=most).contains(&sub.size_note) {
            return Some(sub.size_note);
        }
        least = least.max(end);
    }
    Some(if (least..=most).contains(&sub.size_note) { sub.size_note } else { least.next_multiple_of(4).min(most) })
}

/// Whether `note` is one that a kernel or a dump program made, as far as its head tells.
fn whole(note: &Note<'_>) -> bool {
    /// Bytes in front of a note's name.
    const HEADER: usize = 12;
    let named = !note.name.is_empty() && note.name.iter().all(u8::is_ascii_graphic);
    let name_ends = note.start + HEADER + (note.name.len() + 1).next_multiple_of(4);
    !note.torn && named && note.desc_offset == name_ends
}
