//! A reader of kdump-compressed files of x86-64 that shares no layout with the library: offsets by the format's description, one
//! descriptor at a time. Only the page codecs are the library's own, which its unit tests hold to other implementations.

use coresift_format::codec::{Codec, Decompressor};
use std::collections::BTreeSet;

const PAGE: usize = 4096;
const INCOMPLETE: u32 = 8;

/// A file, its headers read.
pub struct Dump {
    file: Vec<u8>,
    pub version: i32,
    pub release: String,
    pub seconds: u64,
    pub status: u32,
    pub cpus: u32,
    pub level: u32,
    pub phys_base: u64,
    pub max_mapnr: u64,
    pub notes: Vec<u8>,
    pub vmcoreinfo: Vec<u8>,
    /// Page frames that exist.
    pub ram: BTreeSet<u64>,
    /// Page frames with a descriptor, in order.
    pub kept: Vec<u64>,
    pub descriptors: usize,
}

/// Where a page's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub offset: u64,
    pub size: u32,
    pub flags: u32,
    pub page_flags: u64,
}

impl Dump {
    pub fn read(file: Vec<u8>) -> Self {
        let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let u64_at = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
        let region = |offset: u64, size: u64| file[offset as usize..(offset + size) as usize].to_vec();
        assert_eq!(&file[..8], b"KDUMP   ");
        assert_eq!(u32_at(428) as usize, PAGE, "block_size");
        // dump_header: 8 signature, 4 version, 6 * 65 utsname, padding, timeval at 408, then 32-bit fields from 424 on.
        let sub_hdr_size = u32_at(432) as usize;
        let bitmap_blocks = u32_at(436) as usize;
        let max_mapnr = u64_at(PAGE + 96);
        assert_eq!(u64::from(u32_at(440)), max_mapnr.min(u32::MAX.into()), "both fields of max_mapnr agree");
        let bitmaps = PAGE * (1 + sub_hdr_size);
        let descriptors = bitmaps + PAGE * bitmap_blocks;
        let bits = |at: usize| -> Vec<u64> {
            let byte_of = |pfn: u64| file[at + pfn as usize / 8];
            (0..max_mapnr).filter(|pfn| byte_of(*pfn) >> (pfn % 8) & 1 == 1).collect()
        };
        Self {
            version: u32_at(8).cast_signed(),
            release: text(&file[12 + 2 * 65..12 + 3 * 65]),
            seconds: u64_at(408),
            status: u32_at(424),
            cpus: u32_at(460),
            level: u32_at(PAGE + 8),
            phys_base: u64_at(PAGE),
            max_mapnr,
            vmcoreinfo: region(u64_at(PAGE + 32), u64_at(PAGE + 40)),
            notes: region(u64_at(PAGE + 48), u64_at(PAGE + 56)),
            ram: bits(bitmaps).into_iter().collect(),
            kept: bits(bitmaps + PAGE * bitmap_blocks / 2),
            descriptors,
            file,
        }
    }

    pub fn incomplete(&self) -> bool {
        self.status & INCOMPLETE != 0
    }

    /// The descriptor of the kept page number `rank`.
    pub fn descriptor(&self, rank: usize) -> Descriptor {
        let raw = &self.file[self.descriptors + 24 * rank..][..24];
        Descriptor {
            offset: u64::from_le_bytes(raw[..8].try_into().unwrap()),
            size: u32::from_le_bytes(raw[8..12].try_into().unwrap()),
            flags: u32::from_le_bytes(raw[12..16].try_into().unwrap()),
            page_flags: u64::from_le_bytes(raw[16..].try_into().unwrap()),
        }
    }

    /// Calls `each` with every kept page: its number, and its bytes unless its descriptor was never written.
    pub fn pages(&self, mut each: impl FnMut(u64, Option<&[u8]>)) {
        let mut decompressor = Decompressor::new();
        let mut page = vec![0; PAGE];
        for (rank, &pfn) in self.kept.iter().enumerate() {
            let desc = self.descriptor(rank);
            // One that is just being written: no reader takes a page of this size, with an offset or without.
            let being_written = desc.size == u32::MAX && desc.flags == 0;
            if desc.offset == 0 || being_written {
                let lost = Descriptor { offset: 0, size: 0, flags: 0, page_flags: 0 };
                assert!(being_written || desc == lost, "page frame {pfn:#x}: {desc:?}");
                each(pfn, None);
                continue;
            }
            let first = self.descriptors + 24 * self.kept.len();
            assert!(
                desc.offset as usize >= first,
                "page frame {pfn:#x}: {desc:?} begins before the page data at {first}"
            );
            let stored = &self.file[desc.offset as usize..][..desc.size as usize];
            let codec = Codec::from_flags(desc.flags).unwrap();
            assert!(codec != Codec::None || stored.len() == PAGE, "page frame {pfn:#x}: {desc:?}");
            decompressor.decompress(codec, stored, &mut page).unwrap();
            each(pfn, Some(&page));
        }
    }
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field.split(|b| *b == 0).next().unwrap()).into_owned()
}
