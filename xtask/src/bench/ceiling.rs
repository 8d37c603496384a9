//! What one core could do at most with this core file: look at every struct page, compress every page kept, write every byte.

use super::contender::{CODECS, Contender};
use super::mapping::{Mapping, thread_seconds};
use super::record::Series;
use anyhow::{Context, Result, ensure};
use coresift_format::codec::{Codec, Compressor};
use coresift_format::{Input, PageSize, Pfn, PhysAddr, Segment};
use coresift_kernel::{FoundInfo, Kernel, PageClass};
use std::fmt::Write as _;
use std::fs::File;
use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Instant;

/// Struct pages that are swept at most: those of 1 TiB. From there on a sweep is the same over again.
const SWEPT: u64 = 1 << 28;
/// Bytes of memory map looked at through one slice, as a scan has them.
const SLICE: u64 = 256 << 10;
/// Pages that are compressed at most: 256 MiB.
const COMPRESSED: u64 = 1 << 16;
/// Neighbouring pages that are taken together, so that the sample has the runs of the whole.
const STRETCH: u64 = 64;
/// Bytes of one write.
const BLOCK: usize = 256 << 10;
const TRIES: u32 = 3;

/// The limits of one core file on this machine.
#[derive(Clone, Debug, Default)]
pub struct Ceiling {
    /// Struct pages swept.
    pub swept: u64,
    /// Nanoseconds of processor time a struct page: one word of each, the first time (page faults of the mapping among it).
    pub sweep_first: f64,
    /// The same again, best of a few.
    pub sweep_one: f64,
    /// The words that classes are told by (flags, mapping, `_mapcount`, private, `compound_head`), best of a few.
    pub sweep_words: f64,
    /// Nanoseconds of processor time a struct page to read it with its neighbours into a buffer and look at one word of it, best of a
    /// few: what a program can do that reads each once.
    pub sweep_read: f64,
    /// Bytes of the core one thread reads in a second of processor time, in blocks of the copy's size.
    pub read: f64,
    /// Non-zero kept pages that were compressed.
    pub pages: u64,
    /// Bytes each codec takes in a second of processor time.
    pub codecs: Vec<(&'static str, f64)>,
    /// Target, codec, bytes, and seconds to write so many.
    pub writes: Vec<(&'static str, &'static str, u64, f64)>,
}

/// Measures all of it; `kept` is about how many pages a dump keeps. `outs` are the targets with their files.
///
/// # Errors
/// The core cannot be read or understood, or a target not written.
pub fn measure(core: &Path, kept: u64, all: &[Series], outs: &[(&'static str, std::path::PathBuf)]) -> Result<Ceiling> {
    let input = Input::open(core)?;
    let kernel = Kernel::open(&input, &FoundInfo::of(&input)?.text)?;
    let mut ceiling = Ceiling::default();
    let pieces = map_pieces(&input, &kernel);
    sweeps(core, &input, &kernel, &pieces, &mut ceiling)?;
    ceiling.sweep_read = read_sweep(&input, &pieces, kernel.rules.size());
    ceiling.read = read_rate(core)?;
    let pages = sample(&input, &kernel, &pieces, kept)?;
    drop(pieces);
    ceiling.pages = (pages.len() / PageSize::K4.bytes()) as u64;
    if ceiling.pages > 0 {
        for (name, _) in CODECS {
            ceiling.codecs.push((name, codec_rate(name, &pages)?));
        }
    }
    drop(pages);
    for (target, out) in outs {
        for (codec, _) in CODECS {
            let ours = all.iter().filter(|s| s.contender.ours && (s.target, s.codec) == (*target, *codec));
            if let Some(bytes) = ours.filter_map(Series::best).find_map(|run| Some(run.said?.bytes_out)) {
                ceiling.writes.push((target, codec, bytes, write(out, bytes)?));
            }
        }
    }
    Ok(ceiling)
}

/// Neighbouring struct pages that are contiguous in physical memory.
struct Piece {
    first: Pfn,
    phys: PhysAddr,
    pages: u64,
}

/// The struct pages of RAM, up to [`SWEPT`] of them.
fn map_pieces(input: &Input, kernel: &Kernel) -> Vec<Piece> {
    let memory = input.memory();
    let (size, mut reader) = (kernel.memmap.struct_size, kernel.reader(memory));
    let (mut pieces, mut total) = (Vec::new(), 0);
    let ranges = memory.ram().all_runs().flat_map(|(start, end)| kernel.memmap.covering(start, end));
    for range in ranges {
        let mut at = 0;
        while at < range.end.0 - range.start.0 && total < SWEPT {
            let left = (range.end.0 - range.start.0 - at) * size;
            let pages = match reader.contiguous(range.map.plus(at * size), left.min(SLICE)) {
                Ok((phys, len)) if len >= size => {
                    pieces.push(Piece { first: range.start.plus(at), phys, pages: len / size });
                    len / size
                }
                _ => 1,
            };
            (at, total) = (at + pages, total + pages);
        }
    }
    pieces
}

/// Sweeps through one mapping of the whole file, which stays: the second time costs no page faults.
fn sweeps(core: &Path, input: &Input, kernel: &Kernel, pieces: &[Piece], ceiling: &mut Ceiling) -> Result<()> {
    ceiling.swept = pieces.iter().map(|p| p.pages).sum();
    ensure!(ceiling.swept > 0, "no struct page can be read");
    let swept = ceiling.swept as f64;
    let size = usize::try_from(kernel.memmap.struct_size)?;
    let offset = |member: &str| kernel.info.offset(member).ok().flatten().and_then(|o| usize::try_from(o).ok());
    let head = offset("page.compound_head").or_else(|| offset("page.compound_info"));
    let members = [offset("page.flags"), offset("page.mapping"), offset("page.private"), head];
    // 8 bytes each; `_mapcount` has 4, and `_refcount` or another 4 bytes behind it.
    let words = members.map(|o| o.unwrap_or(0).min(size - 8));
    let mapcount = offset("page._mapcount").unwrap_or(0).min(size - 8);
    let five = [words[0], words[1], mapcount, words[2], words[3]];
    let file = Mapping::of(&File::open(core)?)?;
    let maps: Vec<&[u8]> = pieces.iter().filter_map(|p| in_file(input, p, size).and_then(|r| file.get(r))).collect();
    ensure!(maps.len() == pieces.len(), "struct pages are not in the file as they are in memory");
    let pass = |all: bool| -> Result<f64> {
        let start = thread_seconds();
        let mut seen = 0u64;
        for bytes in &maps {
            let word = |page: &[u8], at: usize| {
                page.get(at..at + 8).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
            };
            if all {
                for page in bytes.chunks_exact(size) {
                    seen |= five.iter().fold(0, |sum, at| sum | word(page, *at));
                }
            } else {
                for page in bytes.chunks_exact(size) {
                    seen |= word(page, five[0]);
                }
            }
        }
        black_box(seen);
        Ok((thread_seconds() - start) * 1e9 / swept)
    };
    ceiling.sweep_first = pass(false)?;
    let best = |all| (0..TRIES).map(|_| pass(all)).try_fold(f64::MAX, |best, t| t.map(|t| best.min(t)));
    ceiling.sweep_one = best(false)?;
    ceiling.sweep_words = best(true)?;
    Ok(())
}

/// Seconds of processor time a struct page, in nanoseconds, to read all `pieces` and look at one word of each struct page.
fn read_sweep(input: &Input, pieces: &[Piece], size: usize) -> f64 {
    let (mut view, mut buffer) = (input.memory().view(), vec![0; SLICE as usize]);
    let mut best = f64::MAX;
    for _ in 0..TRIES {
        let (start, mut sum) = (thread_seconds(), 0u64);
        for piece in pieces {
            let slice = buffer.get_mut(..piece.pages as usize * size).unwrap_or_default();
            if view.read(piece.phys, slice).is_ok() {
                sum = slice.chunks_exact(size).fold(sum, |sum, page| sum.wrapping_add(u64::from(page[0])));
            }
        }
        black_box(sum);
        best = best.min(thread_seconds() - start);
    }
    best * 1e9 / pieces.iter().map(|p| p.pages).sum::<u64>().max(1) as f64
}

/// Bytes a second of processor time that one thread reads from the file, up to 1 GiB of it.
fn read_rate(core: &Path) -> Result<f64> {
    let (mut best, mut block) = (0f64, vec![0; BLOCK]);
    for _ in 0..TRIES {
        let mut file = File::open(core)?;
        let (start, mut bytes) = (thread_seconds(), 0);
        while bytes < 1 << 30 {
            match file.read(&mut block)? {
                0 => break,
                n => bytes += n,
            }
        }
        best = best.max(bytes as f64 / (thread_seconds() - start));
    }
    Ok(best)
}

/// Where a piece's struct pages are in an ELF core.
fn in_file(input: &Input, piece: &Piece, size: usize) -> Option<std::ops::Range<usize>> {
    let len = piece.pages as usize * size;
    let inside = |s: &&Segment| s.paddr <= piece.phys.0 && piece.phys.0 - s.paddr + len as u64 <= s.file_size;
    let segment = input.segments().iter().find(inside)?;
    let start = usize::try_from(segment.file_offset + piece.phys.0 - segment.paddr).ok()?;
    Some(start..start + len)
}

/// Non-zero pages that level 31 keeps by their struct pages, in stretches from the whole of memory.
fn sample(input: &Input, kernel: &Kernel, pieces: &[Piece], kept: u64) -> Result<Vec<u8>> {
    let (size, page_len) = (kernel.rules.size(), PageSize::K4.bytes());
    let every = kept.div_ceil(COMPRESSED).max(1);
    let (mut maps, mut contents) = (input.memory().view(), input.memory().view());
    let (mut page, mut pages) = (vec![0; page_len], Vec::new());
    let (mut number, mut next) = (0u64, Pfn(0));
    for piece in pieces {
        let map = maps.slice(piece.phys, piece.pages as usize * size)?;
        let end = piece.first.plus(piece.pages);
        // A block may have begun in the piece before.
        let mut at = next.max(piece.first);
        while at < end {
            let rest = map.get((at.0 - piece.first.0) as usize * size..).unwrap_or_default();
            let verdict = kernel.rules.classify(at, rest.get(..size).unwrap_or_default(), || rest.get(size..2 * size));
            next = at.plus(1 << verdict.order);
            if matches!(verdict.class, PageClass::Kernel | PageClass::Slab) {
                for pfn in (at.0..next.0.min(end.0)).map(Pfn) {
                    number += 1;
                    let wanted = (number / STRETCH).is_multiple_of(every);
                    if wanted
                        && contents.read(pfn.addr(PageSize::K4), &mut page).is_ok()
                        && page.iter().any(|b| *b != 0)
                    {
                        pages.extend_from_slice(&page);
                    }
                }
            }
            at = next;
        }
        if (pages.len() / page_len) as u64 >= COMPRESSED {
            break;
        }
    }
    Ok(pages)
}

/// Bytes a second that one thread compresses of `pages`; copies, for the codec that does nothing.
fn codec_rate(name: &str, pages: &[u8]) -> Result<f64> {
    let codec: Codec = name.parse().with_context(|| format!("codec {name}"))?;
    let mut compressor = Compressor::new(codec.into(), PageSize::K4)?;
    let mut out = vec![0; compressor.max_output().max(PageSize::K4.bytes())];
    let mut best = 0f64;
    for _ in 0..TRIES {
        let start = thread_seconds();
        for page in pages.chunks_exact(PageSize::K4.bytes()) {
            if codec == Codec::None {
                out.copy_from_slice(black_box(page));
                black_box(&mut out);
            } else {
                black_box(compressor.compress(page, &mut out));
            }
        }
        best = best.max(pages.len() as f64 / (thread_seconds() - start));
    }
    Ok(best)
}

/// Seconds to write so many bytes, best of a few.
fn write(out: &Path, bytes: u64) -> Result<f64> {
    let block = vec![0x5a; BLOCK];
    let mut best = f64::MAX;
    for _ in 0..TRIES {
        let start = Instant::now();
        let mut file = File::create(out).with_context(|| format!("cannot write {}", out.display()))?;
        let mut left = bytes;
        while left > 0 {
            let n = left.min(BLOCK as u64);
            file.write_all(&block[..n as usize])?;
            left -= n;
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    if out.is_file() {
        std::fs::remove_file(out)?;
    }
    Ok(best)
}

/// Our stages beside the limits, in percent of them.
pub fn table(ceiling: &Ceiling, all: &[Series]) -> String {
    let mut out = format!(
        "sweep of {} struct pages, ns each: {:.2} one word (first time, with the faults of the mapping: {:.2}), \
         {:.2} the words classes are told by; {:.2} one word, read and not mapped\n",
        ceiling.swept, ceiling.sweep_one, ceiling.sweep_first, ceiling.sweep_words, ceiling.sweep_read
    );
    for threads in ["1", "2"] {
        let runs = all.iter().filter(|s| is(&s.contender, threads)).flat_map(|s| s.runs.iter().flatten());
        let each = |find: f64, ram: u64| find * 1e9 / ram.max(1) as f64;
        let best = runs.filter_map(|r| Some(each(r.stages[0], r.said?.ram_pages))).min_by(f64::total_cmp);
        if let Some(ns) = best {
            let of = |limit: f64| limit / threads.parse::<f64>().unwrap_or(1.0) / ns * 100.0;
            let _ = writeln!(
                out,
                "find pages, {threads} thread(s): {ns:.2} ns a page, {:.0} % of the sweep that reads; of the mapped ones {:.0} % of \
                 one word, {:.0} % of the words' ({:.0} % with the faults)",
                of(ceiling.sweep_read),
                of(ceiling.sweep_one),
                of(ceiling.sweep_words),
                of(ceiling.sweep_first),
            );
        }
    }
    let _ = writeln!(
        out,
        "\ncodecs alone, one thread, {} non-zero kept pages in memory; copy: kept bytes that are neither zero nor shared by our copy\n\
         stage; write: seconds to write the same bytes in {} KiB blocks; reading: {:.0} MB/s; % of all: of codec, reading and\n\
         writing, one after the other on each thread\n\n\
         {:<6} {:<6} {:<21} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9}",
        ceiling.pages,
        BLOCK >> 10,
        ceiling.read / 1e6,
        "target",
        "codec",
        "program",
        "codec MB/s",
        "copy MB/s",
        "% of codec",
        "% of all",
        "write s",
        "copy s"
    );
    for series in all.iter().filter(|s| s.contender.threads.is_some()) {
        let threads: f64 = series.contender.threads.and_then(|t| t.parse().ok()).unwrap_or(1.0);
        let (Some(best), Some((_, rate))) =
            (series.best_copy(), ceiling.codecs.iter().find(|c| c.0 == series.codec && series.contender.ours))
        else {
            continue;
        };
        let Some(said) = best.said else { continue };
        let page = PageSize::K4.bytes() as f64;
        let bytes = (said.kept_pages - said.zero_pages - said.shared_pages) as f64 * page;
        let copy = bytes / best.stages[1];
        let wrote = ceiling.writes.iter().find(|w| (w.0, w.1) == (series.target, series.codec)).map_or(0.0, |w| w.3);
        // Without a codec there is no limit but memory and the target.
        let share = copy / (rate * threads) * 100.0;
        let none = series.codec == "none";
        let share = if none { "-".into() } else { format!("{share:.0}") };
        let work = said.kept_pages as f64 * page / ceiling.read + if none { 0.0 } else { bytes / rate } + wrote;
        let all = work / threads / best.stages[1] * 100.0;
        let _ = writeln!(
            out,
            "{:<6} {:<6} {:<21} {:>10.0} {:>10.0} {share:>10} {all:>9.0} {wrote:>9.3} {:>9.3}",
            series.target,
            series.codec,
            series.contender.name,
            rate / 1e6,
            copy / 1e6,
            best.stages[1],
        );
    }
    out
}

fn is(contender: &Contender, threads: &str) -> bool {
    contender.ours && contender.threads == Some(threads)
}
