//! Since 5.10: a ring of descriptors, with infos beside them, and a ring of text (kernel/printk/printk_ringbuffer.c).

use super::memory::Pages;
use super::problem::{Problems, Wrong};
use super::record::{Caller, Message, Record};
use super::{Out, Since, length, offset, pointer, size, symbol};
use crate::error::{KernelError, Result};
use crate::virt::{VirtAddr, VirtualMemory};
use crate::vmcoreinfo::VmcoreInfo;
use std::ops::{ControlFlow, Range};

/// Bytes of an `unsigned long`, which the text of a record begins with: the record's id.
const WORD: u64 = 8;
/// The two top bits of a descriptor's word are its state, the others the record's id (`DESC_SV_BITS`).
const ID_BITS: u32 = 62;
const ID: u64 = (1 << ID_BITS) - 1;
/// `desc_committed` and `desc_finalized`: the record can be read. `desc_reserved` is being written, `desc_reusable` is gone.
const COMMITTED: u64 = 1;
const FINALIZED: u64 = 2;
const REUSABLE: u64 = 3;
/// Set in a position where a record has no text: it needed none (`NO_LPOS`), or there was no room (`FAILED_LPOS`).
const NO_TEXT: u64 = 1;
const NO_LPOS: u64 = 3;
/// The longest name of a device or subsystem that is read; the kernel's arrays have 48 and 16 bytes.
const MOST_NAME: u64 = 256;

/// Where the rings are.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    descs: VirtAddr,
    infos: VirtAddr,
    /// Descriptors in the ring.
    count: u64,
    data: VirtAddr,
    /// Bytes of the ring of text.
    len: u64,
    head: u64,
    tail: u64,
    desc: DescLayout,
    info: InfoLayout,
}

/// `struct prb_desc`.
#[derive(Clone, Debug)]
struct DescLayout {
    size: u64,
    state: u64,
    begin: u64,
    next: u64,
}

/// `struct printk_info`.
#[derive(Clone, Debug)]
struct InfoLayout {
    size: u64,
    seq: u64,
    time: u64,
    text_len: u64,
    caller: Option<u64>,
    /// Name of a property, where it is, and its length.
    dict: Vec<(&'static str, u64, u64)>,
}

/// A `struct printk_info`, read.
struct Info {
    seq: u64,
    time: u64,
    text_len: u64,
    /// Facility, then flags and level, in a byte each.
    priority: [u8; 2],
    caller: Option<u32>,
    dict: Vec<(String, String)>,
}

impl Ring {
    pub(super) fn open(info: &VmcoreInfo, pages: &mut Pages<'_>) -> Result<Self> {
        let counter = offset(info, "atomic_long_t.counter")?;
        let desc_ring = offset(info, "printk_ringbuffer.desc_ring")?;
        let data_ring = offset(info, "printk_ringbuffer.text_data_ring")?;
        let in_desc_ring =
            |member: &str| Ok::<_, KernelError>(desc_ring + offset(info, &format!("prb_desc_ring.{member}"))?);
        let in_data_ring =
            |member: &str| Ok::<_, KernelError>(data_ring + offset(info, &format!("prb_data_ring.{member}"))?);
        let text_blk = offset(info, "prb_desc.text_blk_lpos")?;
        let desc = DescLayout {
            size: size(info, "prb_desc")?,
            state: offset(info, "prb_desc.state_var")? + counter,
            begin: text_blk + offset(info, "prb_data_blk_lpos.begin")?,
            next: text_blk + offset(info, "prb_data_blk_lpos.next")?,
        };

        let prb = pointer(pages, "prb", symbol(info, "prb")?)?;
        let bits = |pages: &mut Pages<'_>, what, at: VirtAddr, least| {
            let bits = pages.read_u32(at)?;
            length(pages, what, at, 1u64.checked_shl(bits).filter(|n| *n >= least).unwrap_or(0))
        };
        let size_at = prb.plus(in_data_ring("size_bits")?);
        let count_at = prb.plus(in_desc_ring("count_bits")?);
        let len = bits(pages, "1 << prb.text_data_ring.size_bits", size_at, WORD)?;
        let count = bits(pages, "1 << prb.desc_ring.count_bits", count_at, 1)?;
        length(pages, "the length of prb.desc_ring.descs", count_at, (count * desc.size).next_power_of_two())?;
        Ok(Self {
            descs: pointer(pages, "prb.desc_ring.descs", prb.plus(in_desc_ring("descs")?))?,
            infos: pointer(pages, "prb.desc_ring.infos", prb.plus(in_desc_ring("infos")?))?,
            data: pointer(pages, "prb.text_data_ring.data", prb.plus(in_data_ring("data")?))?,
            head: pages.read_u64(prb.plus(in_desc_ring("head_id")? + counter))? & ID,
            tail: pages.read_u64(prb.plus(in_desc_ring("tail_id")? + counter))? & ID,
            count,
            len,
            desc,
            info: InfoLayout::of(info)?,
        })
    }

    pub(super) fn walk(
        &self,
        info: &VmcoreInfo,
        pages: &mut Pages<'_>,
        since: Since,
        out: &mut Out<'_>,
    ) -> ControlFlow<()> {
        let least = match since {
            Since::Boot => 0,
            Since::Clear => cleared(info, pages, &mut out.problems).unwrap_or(0),
        };
        let (head, mut tail) = (self.head, self.tail);
        if head.wrapping_sub(tail) & ID >= self.count {
            out.problems.add(Wrong::Range, || format!("ids {tail:#x} to {head:#x} in {} descriptors", self.count));
            tail = head.wrapping_sub(self.count - 1) & ID;
        }
        // A text is in the ring once, so all of them are no longer than it.
        let mut room = self.len;
        for id in (0..=(head.wrapping_sub(tail) & ID)).map(|n| tail.wrapping_add(n) & ID) {
            let Some(record) = self.record(id, pages, &mut out.problems) else { continue };
            // A record whose number is not in the dump may be one that is wanted.
            if record.seq.is_some_and(|seq| seq < least) {
                continue;
            }
            if let Message::Text(text) = &record.message {
                let Some(left) = room.checked_sub(text.len() as u64) else {
                    out.problems.add(Wrong::Overlap, || format!("at record {id:#x}"));
                    return ControlFlow::Continue(());
                };
                room = left;
            }
            out.record(&record)?;
        }
        ControlFlow::Continue(())
    }

    /// The record of that id, if there is one.
    fn record(&self, id: u64, pages: &mut Pages<'_>, problems: &mut Problems) -> Option<Record> {
        let index = id & (self.count - 1);
        let desc = self.descs.plus(index * self.desc.size);
        let mut word = |offset| pages.read_u64(desc.plus(offset));
        let found = word(self.desc.state).and_then(|s| Ok((s, word(self.desc.begin)?, word(self.desc.next)?)));
        let (state, begin, next) = found
            .inspect_err(|error| {
                problems.add(Wrong::Unreadable, || format!("the descriptor of record {id:#x}: {error}"))
            })
            .ok()?;
        match (state & ID == id, state >> ID_BITS) {
            (true, COMMITTED | FINALIZED) => {}
            // Being written, or given up for a newer record.
            (true, _) => return None,
            // The record's number was taken, but not its descriptor yet: that is still as it was a round before, or as at boot.
            (false, REUSABLE) if state & ID == id.wrapping_sub(self.count) & ID => return None,
            (false, _) if state == 0 => return None,
            (false, _) => {
                problems.add(Wrong::Descriptor, || format!("that of record {id:#x} says {state:#x}"));
                return None;
            }
        }
        let info = self.info.read(self.infos.plus(index * self.info.size), pages);
        let info = info
            .inspect_err(|error| problems.add(Wrong::Unreadable, || format!("the info of record {id:#x}: {error}")))
            .ok();
        let message = self.message(id, begin, next, info.as_ref().map(|i| i.text_len), pages, problems);
        Some(match info {
            None => Record { message, ..Record::default() },
            Some(info) => Record {
                seq: Some(info.seq),
                time: Some(info.time),
                facility: info.priority.first().copied(),
                // Five bits of flags below three of level.
                level: info.priority.last().map(|bits| bits >> 5),
                caller: info.caller.map(Caller),
                message,
                dict: info.dict,
                raw: None,
            },
        })
    }

    fn message(
        &self,
        id: u64,
        begin: u64,
        next: u64,
        text_len: Option<u64>,
        pages: &mut Pages<'_>,
        problems: &mut Problems,
    ) -> Message {
        let mask = self.len - 1;
        if begin & mask == next & mask {
            return if begin & NO_TEXT == 0 || begin == NO_LPOS { Message::Empty } else { Message::Lost };
        }
        let block = self.block(id, begin & mask, next & mask, pages);
        let Some(most) = (block.end - block.start).checked_sub(WORD).filter(|_| block.start.is_multiple_of(WORD))
        else {
            problems.add(Wrong::Outside, || format!("the text of record {id:#x}, at {begin:#x} to {next:#x}"));
            return Message::Lost;
        };
        let at = self.data.plus(block.start);
        match pages.read_u64(at) {
            Ok(word) if word != id => {
                problems.add(Wrong::Foreign, || format!("that of record {id:#x} is marked {word:#x}"));
            }
            // That it is not there is told of the text itself.
            Ok(_) | Err(_) => {}
        }
        let mut text = Vec::new();
        let lost = pages.append(at.plus(WORD), text_len.unwrap_or(most).min(most), &mut text);
        if let Some(error) = &lost {
            problems.add(Wrong::Unreadable, || format!("the text of record {id:#x}: {error}"));
        }
        if text_len.is_none() {
            let end = text.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
            text.truncate(end);
        }
        if lost.is_some() && text.is_empty() { Message::Lost } else { Message::Text(text) }
    }

    /// The bytes of the ring that a text takes, its id included.
    ///
    /// One that does not fit behind `begin` is at the start of the ring. Since commit 67e1b0052f6b (6.18) one that fits exactly is
    /// where it begins, and its next position is 0 of the next round; before, no position was that. Should a text that goes on at the
    /// start not be there, but where it begins, it is taken there: the id in front tells.
    fn block(&self, id: u64, begin: u64, next: u64, pages: &mut Pages<'_>) -> Range<u64> {
        if begin < next {
            return begin..next;
        }
        if next == 0 {
            return begin..self.len;
        }
        let mut is_at = |start| pages.read_u64(self.data.plus(start)).is_ok_and(|word| word == id);
        if !is_at(0) && is_at(begin) { begin..self.len } else { 0..next }
    }
}

impl InfoLayout {
    fn of(info: &VmcoreInfo) -> Result<Self> {
        let mut dict = Vec::new();
        if let Some(dev_info) = info.offset("printk_info.dev_info")? {
            for (name, member) in [("SUBSYSTEM", "subsystem"), ("DEVICE", "device")] {
                let at = info.offset(&format!("dev_printk_info.{member}"))?;
                let len = info.length(&format!("printk_info_{member}"))?;
                dict.extend(at.zip(len).map(|(at, len)| (name, dev_info + at, len.min(MOST_NAME))));
            }
        }
        Ok(Self {
            size: size(info, "printk_info")?,
            seq: offset(info, "printk_info.seq")?,
            time: offset(info, "printk_info.ts_nsec")?,
            text_len: offset(info, "printk_info.text_len")?,
            caller: info.offset("printk_info.caller_id")?,
            dict,
        })
    }

    fn read(&self, at: VirtAddr, pages: &mut Pages<'_>) -> Result<Info> {
        // text_len, facility, flags and level stand together, as they have since 896fbe20b4e2 (5.10).
        let mut bytes = [0; 4];
        pages.read_virt(at.plus(self.text_len), &mut bytes)?;
        let [low, high, facility, bits] = bytes;
        let mut dict = Vec::new();
        for (name, offset, len) in &self.dict {
            let mut value = Vec::new();
            if let Some(error) = pages.append(at.plus(*offset), *len, &mut value) {
                return Err(error);
            }
            let value = value.split(|b| *b == 0).next().unwrap_or_default();
            if !value.is_empty() {
                dict.push(((*name).to_owned(), String::from_utf8_lossy(value).into_owned()));
            }
        }
        Ok(Info {
            seq: pages.read_u64(at.plus(self.seq))?,
            time: pages.read_u64(at.plus(self.time))?,
            text_len: u64::from(u16::from_le_bytes([low, high])),
            priority: [facility, bits],
            caller: self.caller.map(|offset| pages.read_u32(at.plus(offset))).transpose()?,
            dict,
        })
    }
}

/// The number of the first record since the log was cleared.
fn cleared(info: &VmcoreInfo, pages: &mut Pages<'_>, problems: &mut Problems) -> Option<u64> {
    let mut read = || -> Result<u64> {
        let at = symbol(info, "clear_seq")?;
        let first = pages.read_u64(at)?;
        match info.size("latched_seq")? {
            // Until 5.12 the number itself, since then a latch of two of which the first word tells the one that is valid.
            None => Ok(first),
            Some(_) => pages.read_u64(at.plus(offset(info, "latched_seq.val")? + (first & 1) * 8)),
        }
    };
    read().inspect_err(|error| problems.add(Wrong::Clear, || error.to_string())).ok()
}
