//! Which cpu a register note is of.
//!
//! The notes of a dump are one behind the other without a number: those of cpus that never stopped are missing, so note `i` need not be
//! cpu `i`'s. A crashed kernel has what it saved of each cpu in that cpu's `crash_notes`; equal bytes tell.

use crate::VirtAddr;
use crate::error::{KernelError, Result};
use crate::kernel::Kernel;
use crate::virt::VirtualMemory;
use coresift_format::{Input, Note, Notes};

/// More cpus than this no machine has.
const MAX_CPUS: u32 = 1 << 16;
/// Bytes of a cpu's `crash_notes` that are read: one NT_PRSTATUS, with its header and name, takes 356 on x86-64.
const NOTE_BYTES: usize = 356;
/// The type of a note with registers.
const NT_PRSTATUS: u32 = 1;

/// The cpu of each register note of a dump, in the order of the notes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoteCpus {
    /// Numbers a cpu can have: `nr_cpu_ids`.
    pub possible: u32,
    /// `None` where no cpu, or more than one, saved the bytes of the note.
    pub notes: Vec<Option<u32>>,
    /// Notes whose bytes no cpu saved, where any saved some: a machine that was not crashed by its kernel saved none.
    pub unsaved: usize,
}

impl NoteCpus {
    /// Looks into the `crash_notes` of every cpu of `kernel`, found in `input`.
    ///
    /// # Errors
    /// The dump has no such symbols (before Linux 6.0), or they cannot be read.
    pub fn find(kernel: &Kernel, input: &Input) -> Result<Self> {
        let saved = saved(kernel, input)?;
        let possible = saved.len() as u32;
        let endian = input.byte_order();
        let registers = |raw: &Vec<u8>| Notes::new(raw, endian).find(is_registers).map(|note| note.desc.to_vec());
        let saved: Vec<Option<Vec<u8>>> = saved.iter().map(|raw| raw.as_ref().and_then(registers)).collect();
        let found = Notes::new(input.notes(), endian).filter(|note| note.name == b"CORE" && note.kind == NT_PRSTATUS);
        let found: Vec<&[u8]> = found.map(|note| note.desc).collect();
        let unsaved = |desc: &&&[u8]| !saved.iter().any(|saved| saved.as_deref() == Some(**desc));
        let any = saved.iter().any(Option::is_some);
        Ok(Self {
            possible,
            unsaved: if any { found.iter().filter(unsaved).count() } else { 0 },
            notes: found.iter().map(|desc| owner(desc, &saved)).collect(),
        })
    }
}

/// The register notes that the cpus of `kernel` saved, each as it is in `crash_notes`, in the order of the cpus.
///
/// # Errors
/// As [`NoteCpus::find`].
pub fn saved_notes(kernel: &Kernel, input: &Input) -> Result<Vec<Vec<u8>>> {
    let whole = |raw: &Vec<u8>| {
        Notes::new(raw, input.byte_order()).next().is_some_and(|note| note.start == 0 && is_registers(&note))
    };
    Ok(saved(kernel, input)?.into_iter().flatten().filter(whole).collect())
}

fn is_registers(note: &Note<'_>) -> bool {
    note.name == b"CORE" && note.kind == NT_PRSTATUS && !note.torn
}

/// The first bytes of each cpu's `crash_notes`, for as many cpus as there can be; `None` where they cannot be read.
fn saved(kernel: &Kernel, input: &Input) -> Result<Vec<Option<Vec<u8>>>> {
    const PURPOSE: &str = "telling the cpus of the register notes";
    let symbols = kernel.symbols.as_ref().map_err(Clone::clone)?;
    let at = |name| symbols.get(name, PURPOSE);
    let mut reader = kernel.reader(input.memory());
    let mut number = |at: VirtAddr, len: usize| -> Result<u64> {
        let mut raw = [0; 8];
        reader.read_virt(at, raw.get_mut(..len).unwrap_or_default())?;
        Ok(u64::from_le_bytes(raw))
    };
    let possible = number(at("nr_cpu_ids")?, 4)? as u32;
    if possible > MAX_CPUS {
        return Err(KernelError::Implausible {
            what: "nr_cpu_ids",
            addr: at("nr_cpu_ids")?,
            value: possible.into(),
            hint: "; no machine has so many cpus",
        });
    }
    let notes = number(at("crash_notes")?, 8)?;
    let offsets = at("__per_cpu_offset")?;
    let mut saved = Vec::new();
    for cpu in 0..u64::from(possible) {
        let at = VirtAddr(notes).plus(number(offsets.plus(8 * cpu), 8)?);
        let mut raw = vec![0; NOTE_BYTES];
        // A cpu that was never there has no area of its own.
        saved.push(kernel.reader(input.memory()).read_virt(at, &mut raw).is_ok().then_some(raw));
    }
    Ok(saved)
}

/// The cpu that saved the registers `desc`, if it is one alone.
fn owner(desc: &[u8], saved: &[Option<Vec<u8>>]) -> Option<u32> {
    let mut owners = (0..).zip(saved).filter(|(_, saved)| saved.as_deref() == Some(desc)).map(|(cpu, _)| cpu);
    let first = owners.next()?;
    owners.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c25_note_i_is_not_taken_for_cpu_i_without_a_look_at_what_the_cpus_saved() {
        let registers = |n: u8| vec![n; 336];
        // Eight cpus, of which 1, 4 and 6 never stopped; 2 and 7 saved the same.
        let saved: Vec<Option<Vec<u8>>> =
            [10, 0, 12, 13, 0, 15, 0, 12].iter().map(|n| (*n > 0).then(|| registers(*n))).collect();
        let notes = [10, 12, 13, 15, 12];
        let owners: Vec<Option<u32>> = notes.iter().map(|n| owner(&registers(*n), &saved)).collect();
        assert_eq!(owners, [Some(0), None, Some(3), Some(5), None]);
        assert_eq!(owner(&registers(99), &saved), None, "a note that no cpu saved");
    }
}
