//! The kernel log, in the shape of each time: plain characters, records (3.5 to 5.9), the lockless ring (5.10 on).

use crate::layout::KernelLayout;
use std::collections::VecDeque;
use std::fmt::Write;

/// One message: time in nanoseconds since boot, and its text.
pub type Message = (u64, String);

/// A record to be logged.
#[derive(Clone, Debug)]
pub struct LogRecord {
    /// Nanoseconds since boot.
    pub ns: u64,
    /// What it says.
    pub text: Vec<u8>,
    /// Facility of syslog(3).
    pub facility: u8,
    /// 0 to 7.
    pub level: u8,
    /// The number of a task, or with the top bit set, of a CPU.
    pub caller: u32,
    /// SUBSYSTEM and DEVICE.
    pub device: Option<(&'static str, &'static str)>,
}

impl LogRecord {
    /// A message of the kernel's, level 6, from task 1.
    #[must_use]
    pub fn new(ns: u64, text: impl Into<Vec<u8>>) -> Self {
        Self { ns, text: text.into(), facility: 0, level: 6, caller: 1, device: None }
    }

    /// Its properties as 3.5 to 5.9 kept them.
    fn dict(&self) -> Vec<u8> {
        self.device.map_or_else(Vec::new, |(sub, dev)| format!("SUBSYSTEM={sub}\0DEVICE={dev}").into_bytes())
    }
}

/// What was logged, and into what.
#[derive(Clone, Debug)]
pub struct Log {
    /// All that was logged, also what the buffer has no more room for.
    pub records: Vec<LogRecord>,
    /// log2 of the bytes of the buffer, of text since 5.10; otherwise 12 bits of text, or 8 KiB.
    pub size_bits: Option<u32>,
    /// Bytes of the buffer passed before the first record: a multiple of 8 less than its size.
    pub start: u64,
    /// Records logged before the log was cleared.
    pub cleared: usize,
    /// Whether records of 5.1 to 5.9 tell the caller (`CONFIG_PRINTK_CALLER`).
    pub callers: bool,
    /// Whether a text may end where the ring does (6.18).
    pub exact_end: bool,
}

impl From<Vec<LogRecord>> for Log {
    fn from(records: Vec<LogRecord>) -> Self {
        Self { records, size_bits: None, start: 0, cleared: 0, callers: false, exact_end: false }
    }
}

impl From<Vec<Message>> for Log {
    fn from(messages: Vec<Message>) -> Self {
        messages.into_iter().map(|(ns, text)| LogRecord::new(ns, text)).collect::<Vec<_>>().into()
    }
}

/// log2 of the bytes of a buffer before 5.10.
const OLD_SIZE_BITS: u32 = 13;

/// A buffer, and the numbers about it.
pub(crate) struct Buffer {
    pub bytes: Vec<u8>,
    /// Symbol, value and bytes of it.
    pub numbers: Vec<(&'static str, u64, usize)>,
}

/// Until 3.4: bytes, each line with its level and time in front.
pub(crate) fn plain(log: &Log) -> Buffer {
    let size = 1 << log.size_bits.unwrap_or(OLD_SIZE_BITS);
    let mut bytes = vec![0; size];
    let fill = size - 64..size;
    bytes[fill].fill(b'.');
    let (mut at, mut since_clear) = (log.start as usize, 0);
    for (i, r) in log.records.iter().enumerate() {
        let time =
            format!("<{}>[{:5}.{:06}] ", r.facility << 3 | r.level, r.ns / 1_000_000_000, r.ns / 1000 % 1_000_000);
        for byte in [time.as_bytes(), &r.text, b"\n"].concat() {
            bytes[at % size] = byte;
            at += 1;
            since_clear += u64::from(i >= log.cleared);
        }
    }
    let chars = at as u64 - if at > size { 0 } else { log.start };
    assert!(log.start == 0 || at > size, "a log that has not wrapped begins at the start of its buffer");
    let numbers = vec![
        ("log_buf_len", size as u64, 4),
        ("log_end", at as u64, 4),
        ("logged_chars", if log.cleared == 0 { chars.min(size as u64) } else { since_clear }, 4),
    ];
    Buffer { bytes, numbers }
}

/// 3.5 to 5.9: `struct log`, from 3.11 `struct printk_log`.
pub(crate) mod log_record {
    use super::{Buffer, KernelLayout, Log, OLD_SIZE_BITS, VecDeque, Write};

    /// Size of the record's header: time, length, text length, dictionary length, facility, flags and level.
    const HEADER: usize = 16;

    /// With the caller behind, where there is one.
    fn header(l: &KernelLayout, callers: bool) -> usize {
        if callers && l.since(5, 1, 0) { HEADER + 4 } else { HEADER }
    }

    pub(crate) fn keys(layout: &KernelLayout, callers: bool, out: &mut String) {
        let name = if layout.since(3, 11, 0) { "printk_log" } else { "log" };
        let _ = writeln!(out, "SIZE({name})={}", header(layout, callers));
        for (field, at) in [("ts_nsec", 0), ("len", 8), ("text_len", 10), ("dict_len", 12)] {
            let _ = writeln!(out, "OFFSET({name}.{field})={at}");
        }
        if header(layout, callers) > HEADER {
            let _ = writeln!(out, "OFFSET({name}.caller_id)={HEADER}");
        }
    }

    /// The records one after the other, as `log_store` puts them.
    pub(crate) fn records(l: &KernelLayout, log: &Log) -> Buffer {
        let size = 1usize << log.size_bits.unwrap_or(OLD_SIZE_BITS);
        let header = header(l, log.callers);
        let mut bytes = vec![0; size];
        // Stale bytes of no record, where no record came.
        let fill = size - 64..size;
        bytes[fill].fill(b'.');
        let mut kept: VecDeque<usize> = VecDeque::new();
        let (mut next, mut clear) = (log.start as usize, log.start as usize);
        for (i, r) in log.records.iter().enumerate() {
            let dict = r.dict();
            let len = (header + r.text.len() + dict.len()).next_multiple_of(if header == HEADER { 8 } else { 4 });
            assert!(len < 1 << 16 && len + header < size, "a record of {len} bytes cannot be");
            // Room for the record and an empty header behind it.
            while let Some(first) = kept.front() {
                let free = if next > *first { (size - next).max(*first) } else { first - next };
                if free >= len + header {
                    break;
                }
                kept.pop_front();
            }
            if i == log.cleared {
                clear = next;
            }
            if next + len + header > size {
                let end = size.min(next + header);
                bytes[next..end].fill(0);
                next = 0;
            }
            let mut out = Vec::new();
            out.extend(r.ns.to_le_bytes());
            out.extend((len as u16).to_le_bytes());
            out.extend((r.text.len() as u16).to_le_bytes());
            out.extend((dict.len() as u16).to_le_bytes());
            out.extend([r.facility, r.level << 5]);
            if header > HEADER {
                out.extend(r.caller.to_le_bytes());
            }
            out.extend(&r.text);
            out.extend(dict);
            out.resize(len, 0);
            bytes[next..next + len].copy_from_slice(&out);
            kept.push_back(next);
            next += len;
        }
        if log.cleared >= log.records.len() {
            clear = next;
        }
        let first = kept.front().copied().unwrap_or(next);
        let numbers = [("log_buf_len", size), ("log_first_idx", first), ("log_next_idx", next), ("clear_idx", clear)];
        Buffer { bytes, numbers: numbers.map(|(name, value)| (name, value as u64, 4)).to_vec() }
    }
}

/// From 5.10: descriptors, infos and text, each a ring.
pub(crate) mod ring {
    use super::{KernelLayout, Log, Write};

    /// log2 of the bytes of text for each descriptor.
    const AVERAGE_BITS: u32 = 7;
    /// log2 of the bytes of text.
    const SIZE_BITS: u32 = 12;
    const DESC: u64 = 24;
    /// State "finalized" in the top two bits of `state_var`.
    const FINALIZED: u64 = 2 << 62;
    const REUSABLE: u64 = 3 << 62;

    struct Layout {
        /// `sizeof(struct printk_info)`.
        info: u64,
        /// `dev_info` in it.
        dev_info: u64,
        /// `sizeof(struct prb_desc_ring)`: 5.11 added `last_finalized_id`.
        desc_ring: u64,
    }

    fn layout(l: &KernelLayout) -> Layout {
        Layout {
            info: if l.since(7, 1, 0) { 112 } else { 88 },
            dev_info: if l.since(7, 1, 0) { 44 } else { 24 },
            desc_ring: if l.since(5, 11, 0) { 48 } else { 40 },
        }
    }

    pub(crate) fn keys(l: &KernelLayout, out: &mut String) {
        let r = layout(l);
        let mut line = |key: &str, value: u64| {
            let _ = writeln!(out, "{key}={value}");
        };
        line("SIZE(printk_ringbuffer)", r.desc_ring + 40);
        line("OFFSET(printk_ringbuffer.desc_ring)", 0);
        line("OFFSET(printk_ringbuffer.text_data_ring)", r.desc_ring);
        line("OFFSET(printk_ringbuffer.fail)", r.desc_ring + 32);
        line("SIZE(prb_desc_ring)", r.desc_ring);
        for (i, field) in ["count_bits", "descs", "infos", "head_id", "tail_id"].iter().enumerate() {
            line(&format!("OFFSET(prb_desc_ring.{field})"), 8 * i as u64);
        }
        line("SIZE(prb_desc)", DESC);
        line("OFFSET(prb_desc.state_var)", 0);
        line("OFFSET(prb_desc.text_blk_lpos)", 8);
        line("SIZE(prb_data_blk_lpos)", 16);
        line("OFFSET(prb_data_blk_lpos.begin)", 0);
        line("OFFSET(prb_data_blk_lpos.next)", 8);
        line("SIZE(printk_info)", r.info);
        for (field, at) in [("seq", 0), ("ts_nsec", 8), ("text_len", 16), ("caller_id", 20), ("dev_info", r.dev_info)] {
            line(&format!("OFFSET(printk_info.{field})"), at);
        }
        line("SIZE(dev_printk_info)", 64);
        line("OFFSET(dev_printk_info.subsystem)", 0);
        line("LENGTH(printk_info_subsystem)", 16);
        line("OFFSET(dev_printk_info.device)", 16);
        line("LENGTH(printk_info_device)", 48);
        line("SIZE(prb_data_ring)", 32);
        for (i, field) in ["size_bits", "data", "head_lpos", "tail_lpos"].iter().enumerate() {
            line(&format!("OFFSET(prb_data_ring.{field})"), 8 * i as u64);
        }
        line("SIZE(atomic_long_t)", 8);
        line("OFFSET(atomic_long_t.counter)", 0);
        if l.since(5, 12, 0) {
            line("SIZE(latched_seq)", 24);
            line("OFFSET(latched_seq.val)", 8);
        }
    }

    /// `clear_seq`: the number of the first record not cleared; since 5.12 behind a latch, of whose two values the second counts here.
    pub(crate) fn clear_seq(l: &KernelLayout, log: &Log) -> Vec<u8> {
        let (cleared, stale) = (log.cleared as u64, log.cleared as u64 / 2);
        let words = match (log.cleared, l.since(5, 12, 0)) {
            (0, _) => [0; 3],
            (_, true) => [1, stale, cleared],
            (_, false) => [cleared, 0, 0],
        };
        words.map(u64::to_le_bytes).concat()
    }

    /// Where a text begins and ends, counted from the first byte ever logged, and where it is in the ring.
    #[derive(Clone, Copy)]
    struct Block {
        begin: u64,
        next: u64,
        at: u64,
    }

    /// The block of `len` bytes behind `head`, as `data_alloc` gives it.
    fn block(head: u64, len: u64, bits: u32, exact_end: bool) -> Block {
        let size = 1 << bits;
        let next = head + len;
        let fits = head >> bits == next >> bits || exact_end && next.is_multiple_of(size);
        match fits {
            true => Block { begin: head, next, at: head % size },
            false => Block { begin: head, next: (next >> bits << bits) + len, at: 0 },
        }
    }

    /// The bytes of `printk_ringbuffer`, descriptors, infos and text, laid one after the other from virtual address `at` on.
    pub(crate) fn bytes(l: &KernelLayout, log: &Log, at: u64) -> Vec<u8> {
        let r = layout(l);
        let size_bits = log.size_bits.unwrap_or(SIZE_BITS);
        let count_bits = size_bits - AVERAGE_BITS;
        let (size, count) = (1u64 << size_bits, 1u64 << count_bits);
        // The first record's id, some times around the ring.
        let first_id = 7 << count_bits;
        assert!(!log.records.is_empty(), "a ring is never empty");
        let descs = at + r.desc_ring + 40;
        let infos = descs + DESC * count;
        let data = infos + r.info * count;

        let mut out_descs = Vec::new();
        let mut out_infos = vec![0; (r.info * count) as usize];
        for i in 0..count {
            out_descs.extend((REUSABLE | (first_id - count + i)).to_le_bytes());
            out_descs.extend([1u64.to_le_bytes(); 2].concat());
        }
        // What an earlier round of the ring would have left.
        let mut text = vec![b'.'; size as usize];
        let mut blocks = Vec::new();
        let mut head = log.start + size;
        for (i, record) in log.records.iter().enumerate() {
            let id = first_id + i as u64;
            let block = block(head, (8 + record.text.len() as u64).next_multiple_of(8), size_bits, log.exact_end);
            assert!(block.next - block.begin <= size, "record {i} is longer than the ring");
            let start = block.at as usize;
            text[start..start + 8].copy_from_slice(&id.to_le_bytes());
            text[start + 8..start + 8 + record.text.len()].copy_from_slice(&record.text);
            let slot = i % count as usize;
            let desc = [FINALIZED | id, block.begin, block.next].map(u64::to_le_bytes).concat();
            out_descs[slot * DESC as usize..][..DESC as usize].copy_from_slice(&desc);
            let info = &mut out_infos[slot * r.info as usize..][..r.info as usize];
            info.fill(0);
            info[..8].copy_from_slice(&(i as u64).to_le_bytes());
            info[8..16].copy_from_slice(&record.ns.to_le_bytes());
            info[16..18].copy_from_slice(&(record.text.len() as u16).to_le_bytes());
            info[18..20].copy_from_slice(&[record.facility, record.level << 5]);
            info[20..24].copy_from_slice(&record.caller.to_le_bytes());
            if let Some((subsystem, device)) = record.device {
                let dev_info = r.dev_info as usize;
                info[dev_info..][..subsystem.len()].copy_from_slice(subsystem.as_bytes());
                info[dev_info + 16..][..device.len()].copy_from_slice(device.as_bytes());
            }
            head = block.next;
            blocks.push(block);
        }
        // The oldest record whose text and descriptor no newer one took.
        let all = log.records.len() as u64;
        let tail = blocks.iter().position(|b| b.begin + size >= head).unwrap_or(blocks.len() - 1) as u64;
        let tail = tail.max(all.saturating_sub(count));
        for gone in all.saturating_sub(count)..tail {
            let slot = (gone % count * DESC) as usize;
            out_descs[slot..slot + 8].copy_from_slice(&(REUSABLE | (first_id + gone)).to_le_bytes());
        }

        let mut out = Vec::new();
        for word in [count_bits.into(), descs, infos, first_id + all - 1, first_id + tail] {
            out.extend(u64::to_le_bytes(word));
        }
        if r.desc_ring == 48 {
            out.extend((first_id + all - 1).to_le_bytes());
        }
        for word in [size_bits.into(), data, head, blocks[tail as usize].begin, 0] {
            out.extend(u64::to_le_bytes(word));
        }
        for part in [out_descs, out_infos, text] {
            out.extend(part);
        }
        out
    }
}
