//! A page frame as the file has it.

use super::{Explainer, Explanation};
use crate::verify::Fault;
use coresift_format::codec::Codec;
use coresift_format::kdump::KdumpFile;
use coresift_format::{Input, Pfn};
use serde::Serialize;
use std::collections::HashMap;

/// Pages named of those that share the data of one.
const SHARERS: usize = 4;

/// Where a page frame stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Its bytes are in the dump.
    Kept,
    /// It is RAM, and was left out.
    LeftOut,
    /// The dump should have it and does not.
    Lost,
    /// The dump knows no RAM there.
    NoRam,
    /// It is in another part of the split set.
    OtherPart,
}

/// A page frame as the file has it.
#[derive(Clone, Debug, Serialize)]
pub struct InFile {
    /// Where it stands.
    pub state: State,
    /// Why it is lost.
    pub fault: Option<Fault>,
    /// The same in words.
    pub what: Option<String>,
    /// Of a split set, the file that the offsets are in.
    pub part: Option<String>,
    /// File offset of its descriptor in bytes.
    pub descriptor: Option<u64>,
    /// File offset of its data.
    pub data: Option<u64>,
    /// Bytes of its data.
    pub size: Option<u32>,
    /// The codec of its data.
    pub codec: Option<&'static str>,
    /// Whether all its bytes are zero, where they can be read.
    pub zero: Option<bool>,
    /// Other pages with the same data.
    pub sharers: u64,
    /// The first of them.
    pub first_sharers: Vec<u64>,
}

impl Explainer<'_> {
    pub(super) fn in_file(&self, pfn: Pfn) -> InFile {
        let memory = self.input.memory();
        let mut file = InFile {
            state: State::Kept,
            fault: None,
            what: None,
            part: None,
            descriptor: None,
            data: None,
            size: None,
            codec: None,
            zero: None,
            sharers: 0,
            first_sharers: Vec::new(),
        };
        let core = self.input.as_elf();
        let lost = core.and_then(|core| match pfn {
            pfn if core.beyond_end().contains(pfn) => Some(Fault::BeyondEnd),
            pfn if core.damaged().contains(pfn) => Some(Fault::BadDescriptor),
            _ => None,
        });
        if !memory.stored().contains(pfn) {
            // Of a set, a part that is missing.
            let part = self.input.as_kdump().and_then(KdumpFile::part);
            let nowhere = self.input.kdump_files().len() > 1 && self.holder(pfn).is_none();
            file.state = match part {
                _ if lost.is_some() => State::Lost,
                _ if nowhere && memory.ram().contains(pfn) => State::OtherPart,
                Some(part) if memory.ram().contains(pfn) && !part.contains(&pfn) => State::OtherPart,
                _ if memory.ram().contains(pfn) => State::LeftOut,
                _ => State::NoRam,
            };
            file.fault = lost;
            return file;
        }
        let holder = self.holder(pfn);
        let described = holder.and_then(|kdump| kdump.describe(pfn));
        file.part = holder.filter(|_| self.input.kdump_files().len() > 1).map(|file| file.name().to_owned());
        let mut bytes = vec![0; memory.page_size().bytes()];
        let read = memory.view().read(pfn.addr(memory.page_size()), &mut bytes);
        if let Some(page) = &described {
            file.descriptor = Some(page.at);
            if page.desc.offset != 0 {
                (file.data, file.size) = (Some(page.desc.offset), Some(page.desc.size));
                file.codec = Codec::from_flags(page.desc.flags).ok().map(Codec::name);
            }
        }
        match read {
            Ok(()) => file.zero = Some(bytes.iter().all(|byte| *byte == 0)),
            Err(error) => {
                file.state = State::Lost;
                let loss = described.and_then(|page| page.state.err()).map(|(loss, _)| loss);
                file.fault = Some(Fault::of(loss, &error));
                file.what = Some(error.to_string());
            }
        }
        file
    }

    /// The kdump-compressed file that has a descriptor for `pfn`, if any has.
    fn holder(&self, pfn: Pfn) -> Option<&KdumpFile> {
        self.input.kdump_files().iter().find(|file| file.range().contains(&pfn))
    }
}

/// Counts the pages that share data with one of `pages`, in one pass over all descriptors of each file that holds one.
pub(super) fn count_sharers(input: &Input, pages: &mut [Explanation]) {
    for file in input.kdump_files() {
        let range = file.range();
        count_sharers_in(file, pages.iter_mut().filter(|page| range.contains(&Pfn(page.pfn))).collect());
    }
}

fn count_sharers_in(file: &KdumpFile, pages: Vec<&mut Explanation>) {
    let mut places: HashMap<u64, (u64, Vec<u64>)> =
        pages.iter().filter_map(|page| Some((page.file.data?, (0, Vec::new())))).collect();
    if places.is_empty() {
        return;
    }
    file.each_descriptor(Pfn(0), Pfn(u64::MAX), |page| {
        if let Some((count, first)) = places.get_mut(&page.desc.offset) {
            *count += 1;
            // One more than is shown: the page itself may be among them.
            if first.len() <= SHARERS {
                first.push(page.pfn.0);
            }
        }
    });
    for page in pages {
        if let Some((count, first)) = page.file.data.and_then(|data| places.get(&data)) {
            page.file.sharers = count.saturating_sub(1);
            page.file.first_sharers = first.iter().copied().filter(|pfn| *pfn != page.pfn).take(SHARERS).collect();
        }
    }
}
