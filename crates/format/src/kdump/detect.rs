//! Which ABI and byte order a file's headers have: the format does not say, it must be told from the values.

use super::header::{Abi, Header, HeaderLayout, SubHeader};
use crate::PageSize;
use crate::endian::{Bits, Endian};

/// What `uname -m` begins with, and the ABI of such a kernel. Longer names stand before what they begin with.
const MACHINES: &[(&str, Abi)] = &[
    ("x86_64", Abi::Lp64),
    ("aarch64", Abi::Lp64),
    ("ppc64", Abi::Lp64),
    ("s390x", Abi::Lp64),
    ("riscv64", Abi::Lp64),
    ("loongarch64", Abi::Lp64),
    ("ia64", Abi::Lp64),
    ("mips64", Abi::Lp64),
    ("sparc64", Abi::Lp64),
    ("i386", Abi::Ilp32Packed),
    ("i486", Abi::Ilp32Packed),
    ("i586", Abi::Ilp32Packed),
    ("i686", Abi::Ilp32Packed),
    ("arm", Abi::Ilp32Padded),
    ("ppc", Abi::Ilp32Padded),
    ("mips", Abi::Ilp32Padded),
];

/// A version above this is a small number in the other byte order.
const PLAUSIBLE_VERSION: u32 = 0xff;

fn abi_of(machine: &[u8]) -> Option<Abi> {
    MACHINES.iter().find(|(name, _)| machine.starts_with(name.as_bytes())).map(|(_, abi)| *abi)
}

/// The layout of the main header in `raw` (at least the 32-bit header), right or not: the one whose values fit, else
/// the one that the machine's name and the version speak for, so that an error names the field as its owner sees it.
pub(super) fn main_header(raw: &[u8]) -> HeaderLayout {
    // The machine's name is at the same place in every layout.
    let names = HeaderLayout { abi: Abi::Ilp32Packed, endian: Endian::Little };
    let named = Header::decode(raw, names).and_then(|h| abi_of(h.machine()));
    let preferred = named.map_or(Abi::Ilp32Packed, |abi| if abi == Abi::Lp64 { abi } else { Abi::Ilp32Packed });
    let other = if preferred == Abi::Lp64 { Abi::Ilp32Packed } else { Abi::Lp64 };
    let all = [preferred, other]
        .into_iter()
        .flat_map(|abi| [Endian::Little, Endian::Big].map(|endian| HeaderLayout { abi, endian }));
    let version_fits =
        |layout: &HeaderLayout| Header::decode(raw, *layout).is_some_and(|h| h.header_version <= PLAUSIBLE_VERSION);
    all.clone()
        .filter(version_fits)
        .find(|layout| Header::decode(raw, *layout).is_some_and(|h| fits(&h)))
        .unwrap_or_else(|| {
            let abi = if named.is_some() { preferred } else { Abi::Lp64 };
            let by_version = all.filter(|l| l.abi == abi).find(version_fits);
            by_version.unwrap_or(HeaderLayout { abi, endian: Endian::Little })
        })
}

fn fits(header: &Header) -> bool {
    let bits = u64::from(header.bitmap_blocks).saturating_mul(u64::from(header.block_size)).saturating_mul(8);
    PageSize::new(header.block_size.into()).is_some() && bits >= u64::from(header.max_mapnr)
}

/// The layout of the sub header in `raw`, for a main header read with `layout`.
///
/// 32-bit writers pad differently from version 3 on. The layout is taken in which the regions the sub header names lie
/// behind it and before `limit` (the end of the sub header blocks), and the page counts of both headers agree.
pub(super) fn sub_header(raw: &[u8], header: &Header, layout: HeaderLayout, limit: u64) -> HeaderLayout {
    if layout.abi.bits() == Bits::B64 {
        return layout;
    }
    let padded_first = abi_of(header.machine()) == Some(Abi::Ilp32Padded);
    let order = if padded_first { [Abi::Ilp32Padded, Abi::Ilp32Packed] } else { [Abi::Ilp32Packed, Abi::Ilp32Padded] };
    let with = |abi| HeaderLayout { abi, ..layout };
    let fits = |abi: &Abi| {
        SubHeader::decode(raw, header.header_version, with(*abi)).is_some_and(|sub| {
            let block = u64::from(header.block_size);
            let inside = |offset: u64, size: u64| {
                (offset == 0 && size == 0) || (offset > block && offset.checked_add(size).is_some_and(|e| e <= limit))
            };
            let counts = header.header_version < 6
                || sub.max_mapnr_64.min(u32::MAX.into()) == header.max_mapnr.into()
                || sub.max_mapnr_64 == 0;
            inside(sub.offset_vmcoreinfo, sub.size_vmcoreinfo) && inside(sub.offset_note, sub.size_note) && counts
        })
    };
    let [first, _] = order;
    with(order.into_iter().find(fits).unwrap_or(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(machine: &str) -> Header {
        let mut header = Header {
            tv_sec: 1_700_000_000,
            block_size: 4096,
            sub_hdr_size: 1,
            bitmap_blocks: 4,
            max_mapnr: 40_000,
            nr_cpus: 2,
            ..Header::default()
        };
        header.utsname[4][..machine.len()].copy_from_slice(machine.as_bytes());
        header
    }

    fn layouts() -> impl Iterator<Item = HeaderLayout> {
        let abis = [Abi::Lp64, Abi::Ilp32Packed, Abi::Ilp32Padded].into_iter();
        abis.flat_map(|abi| [Endian::Little, Endian::Big].map(|endian| HeaderLayout { abi, endian }))
    }

    #[test]
    fn every_layout_is_recognised_with_and_without_the_machines_name() {
        for layout in layouts() {
            for machine in ["", if layout.abi == Abi::Lp64 { "x86_64" } else { "armv7l" }] {
                for version in 0..=6 {
                    let header = Header { header_version: version, ..header(machine) };
                    let found = main_header(&header.encode(layout));
                    assert_eq!(
                        (found.abi.bits(), found.endian),
                        (layout.abi.bits(), layout.endian),
                        "{layout:?} {machine}"
                    );
                    let size = SubHeader::size(version, layout.abi) as u64;
                    let sub = SubHeader {
                        offset_vmcoreinfo: if version >= 3 { 4096 + size + 24 } else { 0 },
                        size_vmcoreinfo: if version >= 3 { 900 } else { 0 },
                        offset_note: if version >= 4 { 4096 + size } else { 0 },
                        size_note: if version >= 4 { 1000 } else { 0 },
                        max_mapnr_64: if version >= 6 { 40_000 } else { 0 },
                        ..SubHeader::default()
                    };
                    let mut raw = sub.encode(version, layout);
                    raw.resize(104, 0);
                    let found = sub_header(&raw, &header, found, 8192);
                    assert_eq!(SubHeader::decode(&raw, version, found).unwrap(), sub, "{layout:?} {machine} {version}");
                    if version >= 3 {
                        assert_eq!(found, layout);
                    }
                }
            }
        }
    }

    #[test]
    fn a_packed_file_of_a_machine_that_pads_is_seen_through() {
        // QEMU packs for every 32-bit machine.
        let layout = HeaderLayout { abi: Abi::Ilp32Packed, endian: Endian::Little };
        let sub = SubHeader { offset_note: 4096 + 80, size_note: 500, max_mapnr_64: 40_000, ..SubHeader::default() };
        let mut raw = sub.encode(6, layout);
        raw.resize(104, 0);
        assert_eq!(sub_header(&raw, &header("arm"), layout, 8192), layout);
    }

    #[test]
    fn a_bad_header_is_still_read_in_the_layout_of_its_machine() {
        for endian in [Endian::Little, Endian::Big] {
            let layout = HeaderLayout { abi: Abi::Lp64, endian };
            let bad = Header { block_size: 3, ..header("s390x") };
            assert_eq!(main_header(&bad.encode(layout)), layout);
        }
    }
}
