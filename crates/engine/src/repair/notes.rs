//! The notes as they should be, as far as the kernel's memory tells: each is a copy of what the kernel has of it.

use crate::verify::{Effort, kernel_texts};
use coresift_format::codec::Codec;
use coresift_format::kdump::KdumpFile;
use coresift_format::{Endian, Field, Input, Notes};
use coresift_kernel::{Kernel, find_in_memory, saved_notes};
use std::collections::{HashMap, VecDeque};

/// Bytes in front of a note's name, and where in them the lengths of name and data are (`n_namesz`, `n_descsz`).
const HEADER: usize = 12;
const NAME_SIZE: Field = Field { at: 0, size: 4 };
const DESC_SIZE: Field = Field { at: 4, size: 4 };
const VMCOREINFO: &[u8] = b"VMCOREINFO\0\0";
/// The length of that name with the one zero that ends it.
const VMCOREINFO_LEN: u64 = 11;
/// Of this many bytes of notes, one may be damaged: where more differ, the notes are of something else.
const DAMAGED_ONE_OF: usize = 8;
/// Damaged notes of cpus that are told apart by what is left of them; more are taken in their order.
const TOLD_APART: usize = 64;

/// The notes of `input`, and what was changed in them. `None` where they are as they should be, or nothing tells how that is.
pub(super) fn mended(input: &Input, kernel: Option<&Kernel>, effort: Effort) -> Option<(Vec<u8>, &'static str)> {
    let kernel = kernel?;
    let texts = texts(input, kernel, effort);
    let own = own_text(input, &texts);
    let known = if texts.is_empty() { input.vmcoreinfo().map(<[u8]>::to_vec).into_iter().collect() } else { texts };
    let mut all = known.iter().filter_map(|text| rebuilt(input, kernel, text));
    if let (Some(mut all), None) = (all.next(), all.next()) {
        if !checked(input) {
            keep_registers(&mut all, input);
        }
        return (all != input.notes())
            .then_some((all, "notes with registers and VMCOREINFO taken from the kernel's memory"));
    }
    let text = own?;
    let at = place(input, &text)?;
    let mut notes = input.notes().to_vec();
    notes.get_mut(at..at + text.len())?.copy_from_slice(&text);
    Some((notes, "VMCOREINFO taken from the kernel's memory"))
}

/// Whether pages of `input` that can be read are what was written: of those that were compressed a flipped bit leaves nothing, nearly
/// always.
fn checked(input: &Input) -> bool {
    let compressed = |file: &KdumpFile| Codec::ALL.iter().any(|codec| file.header().status & codec.flag() != 0);
    input.as_kdump().is_some_and(compressed)
}

/// Puts the registers that `input` has into the notes `all`: of two copies that differ, nothing tells which is damaged.
fn keep_registers(all: &mut [u8], input: &Input) {
    let copy = all.to_vec();
    for note in Notes::new(&copy, input.byte_order()).filter(|note| note.name == b"CORE") {
        let place = note.desc_offset..note.desc_offset + note.desc.len();
        if let (Some(to), Some(from)) = (all.get_mut(place.clone()), input.notes().get(place)) {
            to.copy_from_slice(from);
        }
    }
}

/// Whether the notes are other ones than those that the kernel's memory has, whatever the text of VMCOREINFO is. `None` where that has
/// others.
pub(crate) fn differ(input: &Input, kernel: &Kernel, effort: Effort) -> Option<bool> {
    let texts = match input.vmcoreinfo() {
        Some(text) => vec![text.to_vec()],
        None => texts(input, kernel, effort),
    };
    let all = texts.iter().find_map(|text| rebuilt(input, kernel, text))?;
    Some(all != input.notes())
}

/// `kernel` by its own VMCOREINFO, where that of the notes by which it was found is damaged: an address that is off leads to something, too.
pub(super) fn by_own_text(input: &Input, kernel: Kernel, effort: Effort) -> Kernel {
    let own = own_text(input, &texts(input, &kernel, effort));
    own.and_then(|own| Kernel::open(input, &own).ok()).unwrap_or(kernel)
}

/// What VMCOREINFO may be by the kernel's memory, where that is not what the notes have.
fn texts(input: &Input, kernel: &Kernel, effort: Effort) -> Vec<Vec<u8>> {
    let note = input.vmcoreinfo().unwrap_or_default();
    let lines =
        |text: &[u8]| text.ends_with(b"\n") && text.iter().all(|byte| *byte == b'\n' || (b' '..0x7f).contains(byte));
    let mut texts = kernel_texts(input, kernel, effort);
    texts.retain(|text| lines(text));
    if texts.is_empty() {
        return texts;
    }
    // The kernel has it twice, and the copy of which the note was made may be the one that is right.
    let right = |text: &[u8]| !text.is_empty() && note.starts_with(text);
    let twice = || effort == Effort::AllPages && find_in_memory(input.memory()).iter().any(|found| right(&found.text));
    if texts.iter().any(|text| right(text)) || twice() {
        texts.clear();
    }
    texts
}

/// The one of `texts` that the notes should have. When it crashes, the kernel takes a copy that was safe till then, and adds the time: the
/// other has still its old length.
fn own_text(input: &Input, texts: &[Vec<u8>]) -> Option<Vec<u8>> {
    let note = input.vmcoreinfo().unwrap_or_default();
    let len = note.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let same: Vec<&Vec<u8>> = texts.iter().filter(|text| text.len() == len).collect();
    // Where several may be it, nothing tells which.
    match (&same[..], texts) {
        ([one], _) => Some((*one).clone()),
        ([], [one]) => Some(one.clone()),
        _ => None,
    }
}

/// Where in the notes of `input` the text `own` belongs, where that is as long as what is there.
fn place(input: &Input, own: &[u8]) -> Option<usize> {
    let place = Notes::new(input.notes(), input.byte_order()).vmcoreinfo()?;
    let there = input.notes().get(place.clone())?;
    there.get(own.len()..)?.iter().all(|padding| *padding == 0).then_some(place.start)
}

/// All notes anew: what the cpus saved, VMCOREINFO with `text`, and what is behind these. `None` where the dump has others, too.
fn rebuilt(input: &Input, kernel: &Kernel, text: &[u8]) -> Option<Vec<u8>> {
    let have = input.notes();
    let saved = saved_notes(kernel, input).ok().filter(|saved| !saved.is_empty())?;
    let mut all = in_the_order_of(have, saved).concat();
    all.extend(note(input.byte_order(), text));
    let (same, behind) = have.split_at_checked(all.len())?;
    let differing = all.iter().zip(same).filter(|(one, other)| one != other).count();
    // Room, or a note of the program that wrote the dump.
    let others = behind.iter().all(|byte| *byte == 0)
        || Notes::new(behind, input.byte_order())
            .next()
            .is_some_and(|note| !note.torn && !note.name.is_empty() && note.name.iter().all(u8::is_ascii_graphic));
    if differing > all.len() / DAMAGED_ONE_OF || !others {
        return None;
    }
    all.extend_from_slice(behind);
    Some(all)
}

/// The notes `saved`, all of one length, in the order that `have` has them in.
fn in_the_order_of(have: &[u8], saved: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let len = saved.first().map_or(1, Vec::len).max(1);
    let slots: Vec<&[u8]> = have.chunks(len).take(saved.len()).collect();
    let mut places: HashMap<&[u8], Vec<usize>> = HashMap::new();
    slots.iter().enumerate().rev().for_each(|(i, slot)| places.entry(slot).or_default().push(i));
    let mut ordered: Vec<Option<Vec<u8>>> = vec![None; saved.len()];
    let mut damaged = VecDeque::new();
    for one in saved {
        match places.get_mut(&one[..]).and_then(Vec::pop).and_then(|i| ordered.get_mut(i)) {
            Some(place) => *place = Some(one),
            None => damaged.push_back(one),
        }
    }
    let fill = |(i, place): (usize, Option<Vec<u8>>)| {
        place.unwrap_or_else(|| {
            let slot = slots.get(i).copied().unwrap_or_default();
            let alike = |one: &Vec<u8>| one.iter().zip(slot).filter(|(a, b)| a == b).count();
            let told_apart = damaged.len().min(TOLD_APART);
            // The first of those that are equally alike.
            let most = (0..told_apart).rev().max_by_key(|i| damaged.get(*i).map_or(0, alike));
            most.and_then(|most| damaged.remove(most)).unwrap_or_default()
        })
    };
    ordered.into_iter().enumerate().map(fill).collect()
}

/// The note VMCOREINFO with `text`.
fn note(endian: Endian, text: &[u8]) -> Vec<u8> {
    let mut raw = vec![0; HEADER];
    endian.put(&mut raw, NAME_SIZE, VMCOREINFO_LEN);
    endian.put(&mut raw, DESC_SIZE, text.len() as u64);
    raw.extend_from_slice(VMCOREINFO);
    raw.extend_from_slice(text);
    raw.resize(raw.len().next_multiple_of(4), 0);
    raw
}

/// The notes of `input`; one that was cut is made as short as what is left of it.
pub(super) fn whole(input: &Input) -> Vec<u8> {
    let (mut raw, endian) = (input.notes().to_vec(), input.byte_order());
    let torn = Notes::new(input.notes(), endian).find(|note| note.torn);
    let Some(torn) = torn else { return raw };
    match raw.get_mut(torn.start..) {
        Some(header) if !torn.desc.is_empty() => endian.put(header, DESC_SIZE, torn.desc.len() as u64),
        _ => raw.truncate(torn.start),
    }
    raw
}
