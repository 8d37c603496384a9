//! Why a page frame is in the dump, or not, in words.

use super::{Explainer, InFile, State};
use crate::verify::Fault;
use coresift_format::{Input, Pfn};
use coresift_kernel::inspect::Inspection;
use coresift_kernel::{ClassSet, DumpLevel, PageClass};

impl Explainer<'_> {
    pub(super) fn why(&self, pfn: Pfn, file: &InFile, found: Option<&Inspection>) -> String {
        let found = found.filter(|found| found.raw.is_ok());
        match file.state {
            State::NoRam if self.input.as_elf().is_some() => "no program header describes memory there".to_owned(),
            State::NoRam => "the 1st bitmap has no RAM there".to_owned(),
            State::OtherPart => "another part of the split set has it".to_owned(),
            State::Lost => lost(self.input, file),
            State::LeftOut => self.left_out(pfn, found),
            State::Kept => self.kept(pfn, file, found),
        }
    }

    fn level(&self) -> Option<DumpLevel> {
        self.input.level().and_then(|level| u8::try_from(level).ok()).and_then(DumpLevel::new)
    }

    fn left_out(&self, pfn: Pfn, found: Option<&Inspection>) -> String {
        if self.input.as_elf().is_some_and(|core| core.unknown().contains(pfn)) {
            let what =
                found.map_or_else(|| "what it is is not known".to_owned(), |found| format!("it is {}", found.class));
            return format!("{what}, and {UNKNOWN}");
        }
        let Some(level) = self.level() else {
            return "it was left out when the core was written".to_owned();
        };
        let Some(class) = found.map(|found| found.class) else {
            return format!(
                "it was left out at dump level {level}; by which rule is not known without its struct page"
            );
        };
        if ClassSet::UNREADABLE.has(class) {
            return format!("it is {class}, which no dump may read");
        }
        if let Some(bit) = bits(level, class) {
            return format!("it is {class}, which bit {bit} of dump level {level} leaves out");
        }
        let protected: Vec<&str> = self.protections(pfn).map(|kind| kind.what).collect();
        let besides = if protected.is_empty() {
            String::new()
        } else {
            format!(", and belongs to what must be kept: {}", protected.join(", "))
        };
        format!(
            "it is {class}, which dump level {level} does not leave out{besides}: an option did, or it could not be read, or the \
             writer took it for something else"
        )
    }

    fn kept(&self, pfn: Pfn, file: &InFile, found: Option<&Inspection>) -> String {
        let hole = self.input.memory().known_zero().contains(pfn);
        let Some(level) = self.level() else {
            return if hole { HOLE.to_owned() } else { "the core has data for it".to_owned() };
        };
        let Some(class) = found.map(|found| found.class) else {
            return format!("dump level {level} did not leave it out");
        };
        let zero = file.zero == Some(true);
        let mut why = match bits(level, class) {
            None if DumpLevel::BITS.iter().all(|(_, set)| !set.has(class)) => {
                format!("it is {class}, which no dump level leaves out")
            }
            None => format!("it is {class}, which dump level {level} keeps"),
            Some(bit) => {
                let protected: Vec<&str> = self.protections(pfn).map(|kind| kind.what).collect();
                if protected.is_empty() {
                    format!(
                        "it is {class}, which bit {bit} of dump level {level} leaves out, but was kept: an option kept it, or its \
                         writer had other evidence"
                    )
                } else {
                    format!(
                        "it is {class}, which bit {bit} of dump level {level} leaves out, but belongs to what is kept whatever its \
                         class: {}",
                        protected.join(", ")
                    )
                }
            }
        };
        if zero {
            why.push_str("; it is all zeros");
        }
        why
    }
}

/// Of a page of an ELF core that has no data and may be anything.
const UNKNOWN: &str = "a program header describes it and has no data for it (p_filesz below p_memsz): it was zeros, or the program that wrote \
     the core left it out, and does not tell the two apart; it counts as not in the dump";

/// Of a page of an ELF core that has no data and is zeros.
const HOLE: &str = "a program header describes it and has no data for it (p_filesz below p_memsz), which means zeros: no dump level leaves out \
     what it is";

/// The lowest bit of `level` that leaves out `class`.
fn bits(level: DumpLevel, class: PageClass) -> Option<u8> {
    let mut of_level = DumpLevel::BITS.iter().filter(|(bit, set)| level.number() & bit != 0 && set.has(class));
    of_level.next().map(|(bit, _)| *bit)
}

fn lost(input: &Input, file: &InFile) -> String {
    match file.fault {
        Some(Fault::Unwritten) => "the dump was cut short before it was written".to_owned(),
        Some(Fault::BeyondEnd) => format!("it should be beyond the end of the file at {}", input.file_len()),
        Some(fault) => format!("it is a page {}", fault.text()),
        None => "it is lost".to_owned(),
    }
}
