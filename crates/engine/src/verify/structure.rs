//! Headers, bitmaps, descriptors, places of page data, notes: whether they agree.

use super::fault::{Fault, PageCounts};
use super::fields;
use super::pages::{PageCheck, misfit};
use super::segments::misplaced;
use crate::error::EngineError;
use coresift_format::kdump::{BitmapFaults, KdumpFile, Places, SubHeader};
use coresift_format::{ElfCore, FormatError, Input, Notes, PhysicalMemory};
use serde::Serialize;

/// How good a dump, or a part of it, is. In the order of gravity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// All there.
    Good,
    /// Nothing is wrong with the file, but its kernel is not understood: what a debugger needs of it was not looked for.
    NotUnderstood,
    /// What is there is right, but the dump ended early or was cut short.
    Incomplete,
    /// Bytes are wrong, or the dump contradicts itself.
    Damaged,
}

/// One part of the structure.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// `headers`, `notes`, `bitmaps`, `descriptors`, `page data`, `segments`, `holes`, `pages`, `mark`, `set`, `kernel`.
    pub what: &'static str,
    /// How good it is.
    pub verdict: Verdict,
    /// What was found.
    pub detail: String,
}

const fn row(what: &'static str, verdict: Verdict, detail: String) -> Check {
    Check { what, verdict, detail }
}

/// All parts of `input`, whose pages were read with the outcome `found`.
pub fn check(input: &Input, found: &PageCheck) -> Result<Vec<Check>, EngineError> {
    let pages = &found.counts;
    let mut checks: Vec<Check> = input.problems().iter().map(header_problem).collect();
    if let Some(file) = input.as_kdump() {
        let wrong = fields::disagreements(input, file, found.table);
        checks.extend(wrong.into_iter().map(|detail| row("headers", Verdict::Damaged, detail)));
    }
    if checks.is_empty() {
        let detail = match input.kdump_header() {
            Some((header, _)) => format!("version {}, page size {}", header.header_version, header.block_size),
            None => format!("{} segments", input.segments().len()),
        };
        checks.push(row("headers", Verdict::Good, detail));
    }
    checks.push(notes(input));
    if let Some(file) = input.as_kdump() {
        checks.push(bitmaps(file)?);
        checks.extend(
            found.table.and_then(|table| misfit(table.fit)).map(|what| row("descriptors", Verdict::Damaged, what)),
        );
        checks.extend(found.places.iter().flat_map(|found| places(found, ended_early(input))));
    }
    if let Some(wrong) = misplaced(input) {
        let fit = || row("segments", Verdict::Good, "each mapped where most are".to_owned());
        let first = wrong.is_empty().then(fit);
        checks.extend(
            first.into_iter().chain(wrong.iter().map(|one| row("segments", Verdict::Damaged, one.to_string()))),
        );
    }
    checks.extend(input.as_elf().and_then(ElfCore::hole_note).map(|note| row("holes", Verdict::Good, note)));
    checks.push(faults(input, pages));
    checks.push(mark(input, pages));
    Ok(checks)
}

fn header_problem(problem: &FormatError) -> Check {
    let verdict = match problem {
        FormatError::CutShort { .. } => Verdict::Incomplete,
        _ => Verdict::Damaged,
    };
    row("headers", verdict, problem.to_string())
}

fn notes(input: &Input) -> Check {
    let notes = Notes::new(input.notes(), input.byte_order());
    let (count, torn) = notes.fold((0, false), |(n, torn), note| (n + 1, torn || note.torn));
    let info = match (input.vmcoreinfo(), input.vmcoreinfo_offset_in_notes()) {
        (None, _) => "no VMCOREINFO".to_owned(),
        (Some(text), Some(at)) => format!("VMCOREINFO of {} bytes at byte {at} of them", text.len()),
        (Some(text), None) => format!("VMCOREINFO of {} bytes by itself", text.len()),
    };
    let named = input.kdump_header().map(|(_, sub): (_, &SubHeader)| sub.size_vmcoreinfo);
    let mut detail = format!("{count} notes, registers of {} CPUs, {info}", notes.cpus());
    if torn {
        detail.push_str("; the last one ends behind them");
        let cut = input.problems().iter().any(|problem| matches!(problem, FormatError::CutShort { .. }));
        return row("notes", if cut { Verdict::Incomplete } else { Verdict::Damaged }, detail);
    }
    if named.is_some_and(|size| size > 0 && input.vmcoreinfo().is_none_or(|text| text.len() as u64 != size)) {
        detail.push_str("; size_vmcoreinfo of the sub header is another");
        return row("notes", Verdict::Damaged, detail);
    }
    if count == 0 && !input.notes().is_empty() {
        detail.push_str(", although there are bytes for them");
        return row("notes", Verdict::Damaged, detail);
    }
    row("notes", Verdict::Good, detail)
}

fn bitmaps(file: &KdumpFile) -> Result<Check, EngineError> {
    let faults = file.bitmap_faults()?;
    let detail = format!("{} pages of RAM, {} of them in the dump", file.ram().len(), file.stored().len());
    if faults == Default::default() {
        return Ok(row("bitmaps", Verdict::Good, detail));
    }
    let wrong = bitmap_faults(faults).unwrap_or_default();
    Ok(row("bitmaps", Verdict::Damaged, format!("{detail}; {wrong}")))
}

/// What is wrong with the bitmaps.
pub fn bitmap_faults(faults: BitmapFaults) -> Option<String> {
    let behind = (faults.behind_end > 0).then(|| format!("{} bits are set behind the last page", faults.behind_end));
    let all: Vec<String> = outside_ram(faults).into_iter().chain(behind).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// How the 2nd bitmap contradicts the 1st.
pub fn outside_ram(faults: BitmapFaults) -> Option<String> {
    (faults.outside_ram > 0).then(|| format!("{} bits of the 2nd bitmap are no RAM by the 1st", faults.outside_ram))
}

/// Whether the file is known not to be whole: it may have descriptors without data, and data without descriptors.
pub fn ended_early(input: &Input) -> bool {
    input.incomplete() || input.truncated().is_some()
}

fn places(found: &Places, ended_early: bool) -> Vec<Check> {
    let mut detail = format!("{} places, shared by {} more pages", found.places, found.shared);
    if found.unused > 0 {
        detail.push_str(&format!("; {} bytes between them belong to no page", found.unused));
    }
    if !found.compared {
        detail.push_str("; there are more than can be compared");
    }
    let verdict = if found.overlapping > 0 { Verdict::Damaged } else { Verdict::Good };
    let mut rows = vec![row("page data", verdict, detail)];
    if let Some((offset, len)) = found.unclaimed.filter(|_| !ended_early) {
        let detail =
            format!("{len} bytes at file offset {offset} look like page data, and no descriptor points at them");
        rows.push(row("page data", Verdict::Damaged, detail));
    }
    for o in &found.first {
        rows.push(row(
            "page data",
            Verdict::Damaged,
            format!(
                "the data of {} at file offset {} overlap those of {} at {}",
                o.second.0, o.second.1, o.first.0, o.first.1
            ),
        ));
    }
    let more = found.overlapping.saturating_sub(found.first.len() as u64);
    if more > 0 {
        rows.push(row("page data", Verdict::Damaged, format!("{more} more overlaps")));
    }
    rows
}

fn faults(input: &Input, pages: &PageCounts) -> Check {
    let some: Vec<(Fault, u64)> = pages.faults().into_iter().filter(|(_, pages)| *pages > 0).collect();
    let detail = some.iter().fold(format!("{} of {} are sound", pages.sound, pages.stored), |text, (fault, pages)| {
        format!("{text}; {pages} {}", fault.text())
    });
    let marked = ended_early(input);
    let of = |(fault, _): &(Fault, u64)| match fault {
        Fault::Unwritten if !marked => Verdict::Damaged,
        fault if fault.is_damage() => Verdict::Damaged,
        _ => Verdict::Incomplete,
    };
    row("pages", some.iter().map(of).max().unwrap_or(Verdict::Good), detail)
}

fn mark(input: &Input, pages: &PageCounts) -> Check {
    let lost = pages.lost() > 0;
    let (verdict, detail) = match (input.incomplete(), lost) {
        (true, true) => (Verdict::Incomplete, "marked as ended early, as it did"),
        (true, false) => (Verdict::Incomplete, "marked as ended early, although every page it names is there"),
        (false, true) => (Verdict::Incomplete, "not marked as ended early, although pages are lost"),
        (false, false) => (Verdict::Good, "not marked as ended early"),
    };
    row("mark", verdict, detail.to_owned())
}
