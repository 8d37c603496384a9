//! A built machine: its memory, what it says of itself, and what is true of each page.

use crate::layout::KernelLayout;
use crate::machine::Contents;
use crate::population::CLASSES;
use crate::ram::{Filler, Page, fill};
use crate::{PAGE, SECTION_PAGES, elf, kdump};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The class of each page frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    /// Ascending, without gaps; neighbours differ.
    runs: Vec<(Range<u64>, &'static str)>,
    pub(crate) tail: Option<TailTruth>,
}

/// The classes of sections that repeat templates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TailTruth {
    pub sections: Vec<(u64, usize)>,
    pub templates: Vec<Truth>,
}

impl Truth {
    pub(crate) fn push(&mut self, start: u64, end: u64, class: &'static str) {
        if start >= end {
            return;
        }
        match self.runs.last_mut() {
            Some(last) if last.1 == class && last.0.end == start => last.0.end = end,
            _ => self.runs.push((start..end, class)),
        }
    }

    /// The same, with the kernel's pages that `zero` says hold nothing set apart.
    pub(crate) fn with_zeros(self, zero: impl Fn(u64) -> bool) -> Self {
        let mut out = Self { runs: Vec::with_capacity(self.runs.len()), tail: self.tail };
        for (pfns, class) in self.runs {
            if class == "kernel" {
                pfns.for_each(|pfn| out.push(pfn, pfn + 1, if zero(pfn) { "zero" } else { class }));
            } else {
                out.push(pfns.start, pfns.end, class);
            }
        }
        out
    }

    /// The class of a page frame; `"hole"` beyond the end.
    #[must_use]
    pub fn class(&self, pfn: u64) -> &'static str {
        let i = self.runs.partition_point(|(r, _)| r.end <= pfn);
        if let Some(run) = self.runs.get(i) {
            return run.1;
        }
        let Some(tail) = &self.tail else { return "hole" };
        match tail.sections.binary_search_by_key(&(pfn / SECTION_PAGES), |s| s.0) {
            Ok(i) => tail.templates[tail.sections[i].1].class(pfn % SECTION_PAGES),
            Err(_) => "hole",
        }
    }

    /// Runs of page frames of one class, ascending and without gaps. Neighbours differ, but for runs that meet where two sections of a
    /// huge machine do.
    pub fn runs(&self) -> impl Iterator<Item = (Range<u64>, &'static str)> + '_ {
        let mut next = self.runs.last().map_or(0, |r| r.0.end);
        let tail = self.tail.iter().flat_map(|t| t.sections.iter().map(|(s, n)| (*s, &t.templates[*n])));
        self.runs.iter().cloned().chain(tail.flat_map(move |(section, template)| {
            let start = section * SECTION_PAGES;
            let gap = (next < start).then_some((next..start, "hole"));
            next = start + SECTION_PAGES;
            let shifted = template.runs.iter().map(move |(r, c)| (r.start + start..r.end + start, *c));
            gap.into_iter().chain(shifted)
        }))
    }

    /// Pages of a class.
    ///
    /// # Panics
    /// On a name that is no class.
    #[must_use]
    pub fn count(&self, class: &str) -> u64 {
        assert!(CLASSES.contains(&class), "no class is called {class}");
        let here: u64 = self.runs.iter().filter(|r| r.1 == class).map(|(r, _)| r.end - r.start).sum();
        let Some(tail) = &self.tail else { return here };
        let each: Vec<u64> = tail.templates.iter().map(|t| t.count(class)).collect();
        let mut there: u64 = tail.sections.iter().map(|(_, n)| each[*n]).sum();
        if class == "hole" {
            let end = self.runs.last().map_or(0, |r| r.0.end);
            let last = tail.sections.last().map_or(end, |s| (s.0 + 1) * SECTION_PAGES);
            there += last - end - tail.sections.len() as u64 * SECTION_PAGES;
        }
        here + there
    }

    /// Every class that has pages, with their number, in the order of [`CLASSES`].
    #[must_use]
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        CLASSES.iter().map(|c| (*c, self.count(c))).filter(|(_, n)| *n > 0).collect()
    }

    /// Page frames of the given classes, ascending.
    pub fn pfns<'a>(&'a self, classes: &'a [&str]) -> impl Iterator<Item = u64> + 'a {
        self.runs().filter(|r| classes.contains(&r.1)).flat_map(|(r, _)| r)
    }
}

/// Contents of the sections that repeat templates.
#[derive(Clone, Debug)]
pub(crate) struct TailPages {
    /// First page frame of the first such section.
    pub first: u64,
    /// What they hold.
    pub contents: Contents,
}

impl TailPages {
    /// Pages after which contents repeat.
    pub fn period(&self) -> u64 {
        self.contents.period() * SECTION_PAGES
    }

    /// The place of a page frame among those whose contents repeat.
    fn place(&self, pfn: u64) -> u64 {
        match &self.contents {
            Contents::OfSection(_) => pfn % SECTION_PAGES,
            Contents::OfTurn { .. } => (pfn - self.first) % self.period(),
        }
    }
}

/// A built machine.
#[derive(Clone, Debug)]
pub struct Image {
    /// The kernel it runs.
    pub layout: KernelLayout,
    /// The VMCOREINFO text that goes into the dump's note. Changing it does not change the copy in memory.
    pub vmcoreinfo: String,
    /// Symbols and their virtual addresses, KASLR included.
    pub symbols: BTreeMap<String, u64>,
    /// The class of each page frame.
    pub truth: Truth,
    /// Virtual address of physical address 0 in the linear map.
    pub page_offset: u64,
    /// `phys_base`.
    pub phys_base: i64,
    /// Page frames of the kernel image.
    pub image: Range<u64>,
    /// Virtual address of its first byte.
    pub image_virt: u64,
    /// Page frames that hold struct pages.
    pub memmap_frames: BTreeSet<u64>,
    /// Number of CPUs.
    pub cpus: u32,
    pub(crate) ram: Vec<Range<u64>>,
    pub(crate) pages: BTreeMap<u64, Box<Page>>,
    pub(crate) fillers: Vec<(Range<u64>, Filler)>,
    pub(crate) unnamed: Filler,
    pub(crate) tail: Option<TailPages>,
}

impl Image {
    /// RAM: ranges of page frames, ascending, with holes between.
    #[must_use]
    pub fn ram(&self) -> &[Range<u64>] {
        &self.ram
    }

    /// The bytes of a page frame; zeros where there is no RAM.
    #[must_use]
    pub fn page(&self, pfn: u64) -> Page {
        let mut page = [0; PAGE as usize];
        if let Some(written) = self.pages.get(&pfn) {
            return **written;
        }
        if !self.ram.iter().any(|r| r.contains(&pfn)) {
            return page;
        }
        match self.tail.as_ref().filter(|t| pfn >= t.first) {
            Some(tail) => {
                let at = tail.place(pfn);
                fill(at, tail.contents.filler(at), &mut page);
            }
            None => {
                let filler = self.fillers.iter().find(|(r, _)| r.contains(&pfn)).map_or(self.unnamed, |f| f.1);
                fill(pfn, filler, &mut page);
            }
        }
        page
    }

    /// `len` bytes of physical memory.
    #[must_use]
    pub fn read(&self, paddr: u64, len: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(len as usize);
        let mut at = paddr;
        while at < paddr + len {
            let n = (PAGE - at % PAGE).min(paddr + len - at) as usize;
            let offset = (at % PAGE) as usize;
            out.extend_from_slice(&self.page(at / PAGE)[offset..offset + n]);
            at += n as u64;
        }
        out
    }

    /// Overwrites physical memory after the build (the truth table stays as it is).
    pub fn write(&mut self, paddr: u64, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            let at = paddr + i as u64;
            let page = self.page(at / PAGE);
            self.pages.entry(at / PAGE).or_insert_with(|| Box::new(page))[(at % PAGE) as usize] = *byte;
        }
    }

    /// An ELF core of the machine as a kernel's /proc/vmcore would be, to be changed before it is written.
    #[must_use]
    pub fn elf(&self) -> elf::Elf<'_> {
        elf::Elf::of(self)
    }

    /// A kdump-compressed file of all pages, to be changed before it is written.
    #[must_use]
    pub fn kdump(&self) -> kdump::Kdump<'_> {
        kdump::Kdump::of(self)
    }
}
