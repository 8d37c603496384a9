//! Physical memory of the machine: which page frames exist, what is written in them, and which are still free to be taken.

use crate::PAGE;
use std::collections::BTreeMap;
use std::ops::Range;

/// One page of memory.
pub type Page = [u8; PAGE as usize];

/// RAM ranges, the pages written so far, and a simple allocator over the rest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ram {
    /// Page frames that exist, ascending, not touching.
    pub ranges: Vec<Range<u64>>,
    /// Pages that were written; all others have the filler of their class.
    pub pages: BTreeMap<u64, Box<Page>>,
    /// Page frames spoken for by populations and the kernel image, ascending by start.
    reserved: Vec<Range<u64>>,
    /// Taken by the allocator, as touching runs.
    taken: BTreeMap<u64, u64>,
    cursor: u64,
}

impl Ram {
    pub fn new(ranges: Vec<Range<u64>>, mut reserved: Vec<Range<u64>>, cursor: u64) -> Self {
        reserved.sort_by_key(|r| r.start);
        Self { ranges, reserved, cursor, ..Self::default() }
    }

    pub fn contains(&self, pfn: u64) -> bool {
        self.ranges.iter().any(|r| r.contains(&pfn))
    }

    /// One more than the highest page frame.
    pub fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |r| r.end)
    }

    /// Takes `count` consecutive page frames starting at a multiple of `align`; they read as zero until written.
    pub fn alloc(&mut self, count: u64, align: u64) -> u64 {
        // Large alignments search from the start so that they do not push the cursor of small ones away.
        let mut at = if align > 1 { self.ranges[0].start } else { self.cursor };
        loop {
            at = at.next_multiple_of(align);
            match self.obstacle(at..at + count) {
                None => break,
                Some(next) => at = next,
            }
        }
        for pfn in at..at + count {
            self.pages.insert(pfn, Box::new([0; PAGE as usize]));
        }
        self.taken.insert(at, at + count);
        if align == 1 {
            self.cursor = at + count;
        }
        at
    }

    /// Where to look next if the range cannot be taken.
    fn obstacle(&self, want: Range<u64>) -> Option<u64> {
        let Some(ram) = self.ranges.iter().find(|r| r.end > want.start) else {
            panic!(
                "no {} free consecutive pages left for the kernel's own structures; give the machine more RAM",
                want.end - want.start
            )
        };
        if want.start < ram.start {
            return Some(ram.start);
        }
        if want.end > ram.end {
            return Some(ram.end);
        }
        if let Some((_, &end)) = self.taken.range(..want.end).next_back().filter(|(_, end)| **end > want.start) {
            return Some(end);
        }
        let i = self.reserved.partition_point(|r| r.end <= want.start);
        self.reserved.get(i).filter(|r| r.start < want.end).map(|r| r.end)
    }

    /// Writes bytes, creating zero pages where nothing was written before.
    pub fn write(&mut self, paddr: u64, bytes: &[u8]) {
        let mut rest = bytes;
        let mut at = paddr;
        while !rest.is_empty() {
            let offset = (at % PAGE) as usize;
            let n = rest.len().min(PAGE as usize - offset);
            let page = self.pages.entry(at / PAGE).or_insert_with(|| Box::new([0; PAGE as usize]));
            page[offset..offset + n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            at += n as u64;
        }
    }

    pub fn write_u64(&mut self, paddr: u64, value: u64) {
        self.write(paddr, &value.to_le_bytes());
    }

    pub fn read_u64(&self, paddr: u64) -> u64 {
        let offset = (paddr % PAGE) as usize;
        self.pages.get(&(paddr / PAGE)).map_or(0, |p| u64::from_le_bytes(p[offset..offset + 8].try_into().unwrap()))
    }
}

/// What an unwritten page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filler {
    /// Zero bytes.
    Zero,
    /// Words of text: shrinks to a third or so.
    Text,
    /// Pointers and small numbers, as in kernel structures and heaps.
    Words,
    /// The same, in an eighth of the page: the rest is zero, as in page tables and young slabs.
    Few,
    /// Bytes no codec can shrink.
    Noise,
    /// The same words in every page of this kind.
    Same,
}

/// The bytes of page frame `pfn` under `filler`. Every page but [`Filler::Zero`] and [`Filler::Same`] begins with its own number.
pub(crate) fn fill(pfn: u64, filler: Filler, page: &mut Page) {
    const WORDS: &str =
        "slab page zone node section buddy order folio lru inode dentry task mount socket pipe vma anon file cache ";
    let mut state = pfn.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bf0_3635;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    match filler {
        Filler::Zero => return page.fill(0),
        Filler::Text => {
            for (i, b) in page.iter_mut().enumerate() {
                *b = WORDS.as_bytes()[(i * 7 / 5 + pfn as usize) % WORDS.len()];
            }
            for _ in 0..200 {
                page[(next() % PAGE) as usize] = b'a' + (next() % 26) as u8;
            }
        }
        Filler::Words => {
            for chunk in page.chunks_exact_mut(8) {
                let r = next();
                let word = match r % 4 {
                    0 => 0,
                    1 => r >> 56,
                    _ => 0xffff_8880_0000_0000 | (r >> 32 & !7),
                };
                chunk.copy_from_slice(&word.to_le_bytes());
            }
        }
        Filler::Few => {
            page.fill(0);
            for _ in 0..64 {
                let at = (next() % (PAGE / 8) * 8) as usize;
                page[at..at + 8].copy_from_slice(&(0xffff_8880_0000_0000 | (next() >> 32 & !7)).to_le_bytes());
            }
        }
        Filler::Noise => {
            for chunk in page.chunks_exact_mut(8) {
                chunk.copy_from_slice(&next().to_le_bytes());
            }
        }
        Filler::Same => {
            for (i, b) in page.iter_mut().enumerate() {
                *b = (i / 16) as u8 | 1;
            }
            return;
        }
    }
    page[..8].copy_from_slice(&(pfn | 0x5000_0000_0000_0000).to_le_bytes());
}
