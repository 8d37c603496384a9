//! The header and bitmaps of a kdump-compressed file, for judging ours: shares no code with `coresift-format`.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Offsets in the 64-bit `disk_dump_header` (makedumpfile's diskdump_mod.h).
const STATUS: usize = 424;
const BLOCK_SIZE: usize = 428;
const SUB_HDR_SIZE: usize = 432;
const BITMAP_BLOCKS: usize = 436;
/// `dump_level` in the sub header, behind `phys_base`.
const DUMP_LEVEL: u64 = 8;
/// Bytes of a page descriptor: the offset of the data, their size and flags, and a field without use.
const DESCRIPTOR: usize = 24;
/// What a page of 4 KiB takes at the most.
const MOST_STORED: u64 = 4096;
/// DUMP_DH_COMPRESSED_INCOMPLETE in `status`.
const INCOMPLETE: u32 = 8;

/// What a dump says it holds.
pub struct Kdump {
    /// The dump level in its sub header.
    pub level: u32,
    /// Whether it says it was cut short.
    pub incomplete: bool,
    /// File offset of the page descriptors.
    pub descriptors: u64,
    /// The 1st bitmap: page frames that exist, LSB first.
    pub ram: Vec<u8>,
    /// The 2nd bitmap: page frames with a descriptor.
    pub kept: Vec<u8>,
}

impl Kdump {
    /// Reads the file's head.
    ///
    /// # Errors
    /// It is no plain 64-bit little-endian kdump file, or ends within its bitmaps.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let mut header = [0u8; 464];
        file.read_exact_at(&mut header, 0).with_context(|| format!("{}: shorter than a header", path.display()))?;
        if !header.starts_with(b"KDUMP   ") {
            bail!("{}: does not begin with the signature KDUMP", path.display());
        }
        let field = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (block, half) = (u64::from(field(BLOCK_SIZE)), u64::from(field(BITMAP_BLOCKS) / 2));
        let mut level = [0u8; 4];
        file.read_exact_at(&mut level, block + DUMP_LEVEL)?;
        let bitmap = |number: u64| -> Result<Vec<u8>> {
            let start = (1 + u64::from(field(SUB_HDR_SIZE)) + number * half) * block;
            if start + half * block > file.metadata()?.len() {
                bail!("{}: ends within its bitmaps (bitmap_blocks {})", path.display(), field(BITMAP_BLOCKS));
            }
            let mut bits = vec![0u8; (half * block) as usize];
            file.read_exact_at(&mut bits, start)?;
            Ok(bits)
        };
        Ok(Self {
            level: u32::from_le_bytes(level),
            incomplete: field(STATUS) & INCOMPLETE != 0,
            descriptors: (1 + u64::from(field(SUB_HDR_SIZE)) + 2 * half) * block,
            ram: bitmap(0)?,
            kept: bitmap(1)?,
        })
    }
}

/// Writes to `cut` what is left of `dump` when it is cut after `percent` of its page data: that part of the file, descriptors of pages
/// beyond it empty, and the mark of an incomplete file. Returns how many pages are left, and of how many.
///
/// # Errors
/// As [`Kdump::open`], or `cut` cannot be written.
pub fn cut(dump: &Path, cut: &Path, percent: f64) -> Result<(u64, u64)> {
    let mut bytes = std::fs::read(dump).with_context(|| dump.display().to_string())?;
    let pages = descriptors(&Kdump::open(dump)?, &bytes)?;
    let count = pages.len() as u64;
    let first = pages.iter().map(|page| page.1).filter(|at| *at > 0).min().context("the file has no page data")?;
    let end = pages.iter().map(|page| page.2).max().unwrap_or(first);
    let length = first + ((end - first) as f64 * percent / 100.0) as u64;
    let mut left = 0;
    for (at, offset, behind) in pages {
        if offset > 0 && behind <= length {
            left += 1;
        } else {
            bytes[at..at + DESCRIPTOR].fill(0);
        }
    }
    let status = u32::from_le_bytes(bytes[STATUS..STATUS + 4].try_into()?) | INCOMPLETE;
    bytes[STATUS..STATUS + 4].copy_from_slice(&status.to_le_bytes());
    bytes.truncate(length as usize);
    std::fs::write(cut, bytes).with_context(|| cut.display().to_string())?;
    Ok((left, count))
}

/// Bytes of the page data that descriptors of `dump` point at, each counted as often as it is shared. One that is being written has a
/// size no page has until its offset is there, and counts for nothing.
///
/// # Errors
/// As [`Kdump::open`], or the file ends within its descriptors.
pub fn claimed(dump: &Path) -> Result<u64> {
    let bytes = std::fs::read(dump).with_context(|| dump.display().to_string())?;
    let pages = descriptors(&Kdump::open(dump)?, &bytes)?;
    let sizes = pages.iter().filter(|page| page.1 > 0).map(|page| page.2 - page.1);
    Ok(sizes.filter(|size| *size <= MOST_STORED).sum())
}

/// For each descriptor of the file `bytes`: where it is, and where the page's data begin and end.
fn descriptors(described: &Kdump, bytes: &[u8]) -> Result<Vec<(usize, u64, u64)>> {
    let number = |at: usize| -> Result<u64> {
        let raw = bytes.get(at..at + 8).context("the file ends within its descriptors")?;
        Ok(u64::from_le_bytes(raw.try_into()?))
    };
    let table = described.descriptors as usize;
    let places = (table..).step_by(DESCRIPTOR).take(count(&described.kept) as usize);
    places.map(|at| Ok((at, number(at)?, number(at)? + (number(at + 8)? & u64::from(u32::MAX))))).collect()
}

/// Number of set bits.
pub fn count(bits: &[u8]) -> u64 {
    bits.iter().map(|b| u64::from(b.count_ones())).sum()
}

/// The runs of page frames, as (first, end), whose bit is set in `a` and clear in `b`.
pub fn only_in(a: &[u8], b: &[u8]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (i, byte) in a.iter().enumerate() {
        let more = byte & !b.get(i).copied().unwrap_or(0);
        if more == 0 {
            continue;
        }
        for bit in (0..8).filter(|bit| more >> bit & 1 == 1) {
            let pfn = i as u64 * 8 + bit;
            match runs.last_mut() {
                Some(run) if run.1 == pfn => run.1 += 1,
                _ => runs.push((pfn, pfn + 1)),
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_across_bytes_and_end_where_the_other_side_has_the_page() {
        assert_eq!(only_in(&[0b1100_0000, 0b0000_0011, 0b1000_0000], &[0, 0]), [(6, 10), (23, 24)]);
        assert_eq!(only_in(&[0xff], &[0b0001_0000]), [(0, 4), (5, 8)]);
        assert_eq!(only_in(&[], &[0xff]), []);
        assert_eq!(count(&[0xff, 1]), 9);
    }

    #[test]
    fn a_bitmap_size_beyond_the_file_is_an_error_not_an_allocation() {
        let mut bytes = vec![0u8; 3 * 4096];
        bytes[..8].copy_from_slice(b"KDUMP   ");
        bytes[BLOCK_SIZE..BLOCK_SIZE + 4].copy_from_slice(&4096u32.to_le_bytes());
        bytes[BITMAP_BLOCKS..BITMAP_BLOCKS + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let error = Kdump::open(file.path()).err().unwrap();
        assert!(error.to_string().contains("bitmap_blocks"), "{error}");
    }
}
