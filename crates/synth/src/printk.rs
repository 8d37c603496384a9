//! The kernel log, in the shape of each time: plain characters, records (3.5 to 5.9), the lockless ring (5.10 on).

use crate::layout::KernelLayout;
use std::fmt::Write;

/// One message: time in nanoseconds since boot, and its text.
pub type Message = (u64, String);

/// Until 3.4: bytes, each line with its level and time in front.
pub(crate) fn plain(messages: &[Message]) -> Vec<u8> {
    let mut out = String::new();
    for (ns, text) in messages {
        let _ = writeln!(out, "<6>[{:5}.{:06}] {text}", ns / 1_000_000_000, ns / 1000 % 1_000_000);
    }
    out.into_bytes()
}

/// 3.5 to 5.9: `struct log`, from 3.11 `struct printk_log`.
pub(crate) mod log_record {
    use super::{KernelLayout, Message, Write};

    /// Size of the record's header: time, length, text length, dictionary length, facility, flags and level.
    const HEADER: usize = 16;

    pub(crate) fn keys(layout: &KernelLayout, out: &mut String) {
        let name = if layout.since(3, 11, 0) { "printk_log" } else { "log" };
        let _ = writeln!(out, "SIZE({name})={HEADER}");
        for (field, at) in [("ts_nsec", 0), ("len", 8), ("text_len", 10), ("dict_len", 12)] {
            let _ = writeln!(out, "OFFSET({name}.{field})={at}");
        }
    }

    /// The records one after the other.
    pub(crate) fn records(messages: &[Message]) -> Vec<u8> {
        let mut out = Vec::new();
        for (ns, text) in messages {
            let len = (HEADER + text.len()).next_multiple_of(8);
            let start = out.len();
            out.extend(ns.to_le_bytes());
            out.extend((len as u16).to_le_bytes());
            out.extend((text.len() as u16).to_le_bytes());
            out.extend([0, 0, 0, 6]);
            out.extend(text.as_bytes());
            out.resize(start + len, 0);
        }
        out
    }
}

/// From 5.10: descriptors, infos and text, each a ring.
pub(crate) mod ring {
    use super::{KernelLayout, Message, Write};

    /// log2 of the number of descriptors.
    const COUNT_BITS: u32 = 5;
    /// log2 of the bytes of text.
    const SIZE_BITS: u32 = 12;
    const DESC: u64 = 24;
    /// State "finalized" in the top two bits of `state_var`.
    const FINALIZED: u64 = 2 << 62;
    const REUSABLE: u64 = 3 << 62;
    /// The first record's id, some times around the ring.
    const FIRST_ID: u64 = 7 << COUNT_BITS;

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

    /// The bytes of `printk_ringbuffer`, descriptors, infos and text, laid one after the other from virtual address `at` on.
    pub(crate) fn bytes(l: &KernelLayout, messages: &[Message], at: u64) -> Vec<u8> {
        let r = layout(l);
        let count = 1usize << COUNT_BITS;
        assert!(!messages.is_empty() && messages.len() < count, "the ring holds 1 to {} messages", count - 1);
        let descs = at + r.desc_ring + 40;
        let infos = descs + DESC * count as u64;
        let data = infos + r.info * count as u64;

        let mut out_descs = Vec::new();
        let mut out_infos = Vec::new();
        let mut text = Vec::new();
        for i in 0..count as u64 {
            let Some((ns, line)) = messages.get(i as usize) else {
                out_descs.extend((REUSABLE | (FIRST_ID - count as u64 + i)).to_le_bytes());
                out_descs.extend([1u64.to_le_bytes(); 2].concat());
                out_infos.extend(vec![0; r.info as usize]);
                continue;
            };
            let id = FIRST_ID + i;
            let begin = text.len() as u64;
            text.extend(id.to_le_bytes());
            text.extend(line.as_bytes());
            text.resize(text.len().next_multiple_of(8), 0);
            out_descs.extend((FINALIZED | id).to_le_bytes());
            out_descs.extend(begin.to_le_bytes());
            out_descs.extend((text.len() as u64).to_le_bytes());
            let start = out_infos.len();
            out_infos.extend(i.to_le_bytes());
            out_infos.extend(ns.to_le_bytes());
            out_infos.extend((line.len() as u16).to_le_bytes());
            out_infos.extend([0, 6 << 5]);
            out_infos.extend(1u32.to_le_bytes());
            out_infos.resize(start + r.info as usize, 0);
        }
        let head = text.len() as u64;
        assert!(head <= 1 << SIZE_BITS, "the messages are longer than the ring");
        // What an earlier round of the ring would have left.
        text.resize(1 << SIZE_BITS, b'.');

        let mut out = Vec::new();
        for word in [COUNT_BITS.into(), descs, infos, FIRST_ID + messages.len() as u64 - 1, FIRST_ID] {
            out.extend(u64::to_le_bytes(word));
        }
        if r.desc_ring == 48 {
            out.extend((FIRST_ID + messages.len() as u64 - 1).to_le_bytes());
        }
        for word in [SIZE_BITS.into(), data, head, 0, 0] {
            out.extend(u64::to_le_bytes(word));
        }
        for part in [out_descs, out_infos, text] {
            out.extend(part);
        }
        out
    }
}
