//! The page frames of the machine this runs on, by /proc/kpageflags, /proc/kpagecount and /proc/kpagecgroup.

mod cgroups;
mod compound;
mod iomem;
mod words;

use crate::error::{CensusError, Result};
use crate::frames::Frames;
use crate::kpf::Kpf;
use crate::names::{NameId, Names};
use crate::source::{FrameReader, Missing, Provenance, Source};
use crate::zones::Zones;
use cgroups::Cgroups;
use compound::Compounds;
use coresift_format::Pfn;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use words::Words;

/// Memory sections of x86-64 have this many page frames, as a power of two (`SECTION_SIZE_BITS` 27).
const SECTION_SHIFT: u32 = 15;
/// Frames between two that are wanted are read too when there are no more than this: a call costs as much as seven frames.
const GAP: u64 = 8;

/// The machine.
pub struct Live {
    proc: PathBuf,
    ranges: Vec<(Pfn, Pfn)>,
    page_size: u64,
    names: Names,
    zones: Zones,
    cgroups: Cgroups,
    provenance: Provenance,
    has_counts: bool,
    has_cgroups: bool,
}

impl Live {
    /// The machine whose procfs is at `proc`, usually `/proc`.
    ///
    /// # Errors
    /// /proc/iomem or /proc/kpageflags cannot be read, or says nothing for want of a capability.
    pub fn open(proc: &Path) -> Result<Self> {
        let names = Names::default();
        let page_size = rustix::param::page_size() as u64;
        let iomem = proc.join("iomem");
        let ranges = iomem::ram(&iomem, &text(&iomem)?, page_size)?;
        Words::open(&proc.join("kpageflags"))?;
        let mut unknown = vec![
            "raw flags, reference counts, index, inode, device, path and slab cache are null: /proc/kpageflags does not tell them"
                .to_owned(),
            "the order of free blocks is null: /proc/kpageflags does not tell it".to_owned(),
        ];
        let mut optional = |file: &str, columns: &str| match Words::open(&proc.join(file)) {
            Ok(_) => true,
            Err(error) => {
                unknown.push(format!("{columns} null: {error}"));
                false
            }
        };
        let has_counts = optional("kpagecount", "mapping counts are");
        let has_cgroups = optional("kpagecgroup", "cgroups are");
        let zones = match text(&proc.join("zoneinfo")) {
            Ok(text) => Zones::parse(&text, &names),
            Err(error) => {
                unknown.push(format!("node and zone are null: {error}"));
                Zones::default()
            }
        };
        let root = text(&proc.join("self/mountinfo")).ok().and_then(|t| cgroups::hierarchy(&t));
        let cgroups = match root {
            Some(root) => Cgroups::below(&root, &names),
            None => {
                unknown.push("paths of cgroups are null: no hierarchy of memory cgroups is mounted".to_owned());
                Cgroups::default()
            }
        };
        let line = |name: &str| text(&proc.join("sys/kernel").join(name)).map(|t| t.trim().to_owned());
        let provenance = Provenance {
            source: "live".to_owned(),
            host: line("hostname")?,
            kernel: line("osrelease")?,
            time: now(),
            unknown,
        };
        let proc = proc.to_owned();
        Ok(Self { proc, ranges, page_size, names, zones, cgroups, provenance, has_counts, has_cgroups })
    }
}

impl Source for Live {
    fn ranges(&self) -> &[(Pfn, Pfn)] {
        &self.ranges
    }

    fn page_size(&self) -> u64 {
        self.page_size
    }

    fn names(&self) -> &Names {
        &self.names
    }

    fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    fn reader(&self) -> Result<Box<dyn FrameReader + '_>> {
        let open = |has: bool, name| has.then(|| Words::open(&self.proc.join(name))).transpose();
        Ok(Box::new(LiveReader {
            live: self,
            flags: Words::open(&self.proc.join("kpageflags"))?,
            counts: open(self.has_counts, "kpagecount")?,
            cgroups: open(self.has_cgroups, "kpagecgroup")?,
            words: Vec::new(),
            values: Vec::new(),
            flag_names: HashMap::new(),
        }))
    }
}

struct LiveReader<'l> {
    live: &'l Live,
    flags: Words,
    counts: Option<Words>,
    cgroups: Option<Words>,
    /// /proc/kpageflags of the window.
    words: Vec<u64>,
    /// What another file says of some of its frames.
    values: Vec<u64>,
    flag_names: HashMap<u64, NameId>,
}

impl FrameReader for LiveReader<'_> {
    fn read(&mut self, runs: &[(u64, u64)], frames: &mut Frames) -> Result<Missing> {
        frames.time = now();
        let mut missing = Missing::default();
        let mut row = 0;
        for &(start, end) in runs {
            let got = self.flags.read(start, end, &mut self.words)?;
            missing.short += end - start - got;
            self.words.resize((end - start) as usize, Kpf::NOPAGE.0);
            missing.no_page +=
                self.words.iter().take(got as usize).filter(|w| Kpf(**w).any(Kpf::NOPAGE)).count() as u64;
            self.describe(start, end, row, frames)?;
            self.place(start, end, row, frames);
            self.count(start, row, frames)?;
            self.charge(start, row, frames)?;
            row += self.words.len();
        }
        Ok(missing)
    }
}

impl LiveReader<'_> {
    /// Flags, class, mapping, order and head of the frames of a run, whose rows begin at `row`.
    fn describe(&mut self, start: u64, end: u64, row: usize, frames: &mut Frames) -> Result<()> {
        let mut compounds = Compounds::new(&self.words, start, end);
        let rows = frames.flags.iter_mut().zip(&mut frames.class).zip(&mut frames.mapping);
        let rows = rows.zip(&mut frames.order).zip(&mut frames.head).skip(row);
        // Neighbours are often alike.
        let mut last: Option<(u64, NameId)> = None;
        for ((pfn, &word), ((((flags, class), mapping), order), head)) in (start..).zip(&self.words).zip(rows) {
            *flags = match last {
                Some((known, id)) if known == word => id,
                _ => *self.flag_names.entry(word).or_insert_with(|| self.live.names.id(&Kpf(word).names())),
            };
            last = Some((word, *flags));
            let compound = compounds.at(pfn, Kpf(word), &mut self.flags)?;
            let telling = compound.map_or(Kpf(word), |c| c.flags);
            *class = telling.class();
            *mapping = telling.mapping();
            if let Some(compound) = compound {
                *order = compound.order;
                *head = compound.head.cast_signed();
            } else if !Kpf(word).any(Kpf::NOPAGE.or(Kpf::BUDDY)) {
                *order = 0;
                *head = pfn.cast_signed();
            }
        }
        Ok(())
    }

    /// Node, zone and section of the frames of a run.
    fn place(&self, start: u64, end: u64, row: usize, frames: &mut Frames) {
        self.live.zones.fill(Pfn(start), Pfn(end), row, frames);
        for (pfn, section) in (start..end).zip(frames.section.iter_mut().skip(row)) {
            *section = i32::try_from(pfn >> SECTION_SHIFT).unwrap_or(i32::MAX);
        }
    }

    /// How often the frames of a run are mapped. Only those are asked for that are mapped at all.
    fn count(&mut self, start: u64, row: usize, frames: &mut Frames) -> Result<()> {
        let Some(file) = &mut self.counts else { return Ok(()) };
        for (mapcount, &word) in frames.mapcount.iter_mut().skip(row).zip(&self.words) {
            if !Kpf(word).any(Kpf::NOPAGE) {
                *mapcount = 0;
            }
        }
        for (from, to) in wanted(&self.words, |word| word.any(Kpf::MMAP)) {
            let got = file.read(start + from, start + to, &mut self.values)?;
            let rows = frames.mapcount.iter_mut().skip(row + from as usize).take(got as usize);
            for (mapcount, &value) in rows.zip(&self.values) {
                *mapcount = i32::try_from(value).unwrap_or(i32::MAX);
            }
        }
        Ok(())
    }

    /// The cgroups that the frames of a run are charged to. Free pages and slabs are charged to none as a whole; a tail's is its head's.
    fn charge(&mut self, start: u64, row: usize, frames: &mut Frames) -> Result<()> {
        const NONE: Kpf = Kpf::NOPAGE.or(Kpf::BUDDY).or(Kpf::SLAB).or(Kpf::OFFLINE);
        let Some(file) = &mut self.cgroups else { return Ok(()) };
        let mut last: Option<(u64, NameId)> = None;
        for (from, to) in wanted(&self.words, |word| !word.any(NONE)) {
            let got = file.read(start + from, start + to, &mut self.values)?;
            let rows =
                frames.cgroup.iter_mut().zip(&mut frames.cgroup_path).skip(row + from as usize).take(got as usize);
            for ((cgroup, path), &inode) in rows.zip(&self.values) {
                if inode == 0 {
                    continue;
                }
                *cgroup = inode.cast_signed();
                *path = match last {
                    Some((known, path)) if known == inode => path,
                    _ => self.live.cgroups.path(inode),
                };
                last = Some((inode, *path));
            }
        }
        Ok(())
    }
}

/// Runs of the words that `want` wants, as places in `words`; small gaps are taken along.
fn wanted(words: &[u64], want: impl Fn(Kpf) -> bool) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (at, &word) in (0u64..).zip(words) {
        if !want(Kpf(word)) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if at - run.1 <= GAP => run.1 = at + 1,
            _ => runs.push((at, at + 1)),
        }
    }
    runs
}

fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| CensusError::reading(path, error))
}

/// Microseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
