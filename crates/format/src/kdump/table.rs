//! Whether the 2nd bitmap has as many bits as the file has descriptors.
//!
//! Nothing in the file says how many descriptors there are, but the first page's data lie directly behind the last of them:
//!
//! ```text
//! │ descriptors, one for each bit │ page data ...      they fit
//! │ one for each bit │ more ..... │ page data ...      bits were lost: pages behind the first of them get the data of others
//! │ one for each ..... │ bit                           bits were added: the last "descriptors" are page data
//!         page data ...
//! ```

use super::desc::PageDesc;
use super::file::KdumpFile;
use super::walk::Loss;
use crate::{Pfn, PhysicalMemory};

/// Bytes behind the descriptors read at a time: whole descriptors.
const PIECE: usize = 24 << 12;

/// What a look at all descriptors gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLook {
    /// Whether they fit the 2nd bitmap.
    pub fit: TableFit,
    /// The codec flags of all that can be true.
    pub codecs: u32,
}

/// How the descriptors fit the 2nd bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFit {
    /// Nothing says otherwise.
    Fits,
    /// So many descriptors at least that no bit names.
    MoreDescriptors(u64),
    /// Only so many of the descriptors that the bits name; the page data begin behind them.
    FewerDescriptors(u64),
}

/// What is seen in the descriptors that the bits name.
#[derive(Default)]
struct Seen {
    /// The lowest place of data behind the descriptors.
    lowest: Option<u64>,
    /// The lowest place among them, which a whole number of them would be in front of.
    inside: Option<u64>,
    /// The number of the last one that can be true, and is not pending.
    last: Option<u64>,
    /// Pages that were not written.
    unwritten: u64,
    codecs: u32,
}

impl KdumpFile {
    /// Looks whether the file has as many descriptors as the 2nd bitmap has bits. Reads all descriptors once, and what may be more of them.
    #[must_use]
    pub fn look_at_table(&self) -> TableLook {
        let seen = self.seen();
        TableLook { fit: self.fit(&seen), codecs: seen.codecs }
    }

    fn seen(&self) -> Seen {
        let mut seen = Seen::default();
        let block = self.page_size().bytes() as u64;
        self.each_descriptor(Pfn(0), Pfn(u64::MAX), |page| {
            let PageDesc { offset, size, .. } = page.desc;
            match page.state {
                Ok(codec) => {
                    seen.codecs |= codec.flag();
                    seen.lowest = Some(seen.lowest.map_or(offset, |lowest| lowest.min(offset)));
                    seen.last = Some(page.rank);
                }
                Err((Loss::Unwritten, _)) => seen.unwritten += 1,
                Err((Loss::BadDescriptor, _)) if (1..=block).contains(&size.into()) => {
                    let whole = offset > self.descriptors()
                        && (offset - self.descriptors()).is_multiple_of(PageDesc::SIZE as u64);
                    if whole && offset < self.first_data() {
                        seen.inside = Some(seen.inside.map_or(offset, |inside| inside.min(offset)));
                    }
                }
                Err(_) => {}
            }
        });
        seen
    }

    fn fit(&self, seen: &Seen) -> TableFit {
        if let Some(inside) = seen.inside {
            let real = (inside - self.descriptors()) / PageDesc::SIZE as u64;
            // One descriptor that is wrong may point anywhere; then there are right ones behind the place.
            if seen.last.is_none_or(|last| last < real) {
                return TableFit::FewerDescriptors(real);
            }
        }
        self.more(seen)
    }

    /// Whether what lies between the descriptors and the first page's data are descriptors too.
    fn more(&self, seen: &Seen) -> TableFit {
        let start = self.first_data();
        let len = seen.lowest.unwrap_or(self.bytes.len()).saturating_sub(start);
        let (mut more, mut zeros) = (0, 0);
        let (mut at, end) = (start, start.saturating_add(len));
        'pieces: while at < end {
            let want = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
            let mut piece = vec![0; want];
            // What cannot be read tells nothing.
            let Ok(have) = self.bytes.read_at(at, &mut piece) else { break };
            for raw in piece.get(..have).unwrap_or_default().chunks_exact(PageDesc::SIZE) {
                let Some(desc) = PageDesc::decode(raw, self.layout().endian) else { break 'pieces };
                let own_page_flags = raw.get(16..).is_some_and(|flags| flags.iter().all(|byte| *byte == 0));
                // Its page does not matter.
                let state = self.check(Pfn(0), at, desc);
                match state {
                    _ if raw.iter().all(|byte| *byte == 0) => zeros += 1,
                    Ok(_) if own_page_flags => more += 1 + std::mem::take(&mut zeros),
                    Err((Loss::BeyondEnd, _)) if own_page_flags => more += 1 + std::mem::take(&mut zeros),
                    _ if desc.is_pending() => more += 1 + std::mem::take(&mut zeros),
                    _ => break 'pieces,
                }
            }
            if have < want {
                break;
            }
            at += have as u64;
        }
        // A file that ended early may have nothing but zeros for its last descriptors, whether bits name them or not. (A part of a split
        // set has room there for pages that went to another part.)
        let early = self.incomplete() && self.part().is_none() && seen.unwritten > 0 && seen.lowest.is_some();
        if early && zeros > 0 && zeros * PageDesc::SIZE as u64 == len {
            more = zeros;
        }
        if more > 0 { TableFit::MoreDescriptors(more) } else { TableFit::Fits }
    }
}
