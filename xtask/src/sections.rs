//! `cargo xtask sections`: the page classes of real memory sections, as the data of crates/synth's real page mix.
//!
//! ```text
//! real cores ── struct pages, classified by coresift-kernel ──> blocks of each whole 128 MiB section ──> crates/synth/src/real.txt
//! ```

use crate::shell;
use anyhow::{Context, Result, bail, ensure};
use coresift_format::{Input, Pfn};
use coresift_kernel::{FoundInfo, Kernel, PageClass, VirtualMemory};
use coresift_synth::SECTION_PAGES;
use coresift_synth::real::{Section, text};
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask sections CORE[:FIRST-LAST]...
Writes crates/synth/src/real.txt from the memory sections FIRST to LAST (all, where not given) of raw cores.";

/// The letter that stands for a class in the data.
const LETTERS: [(PageClass, char); 10] = [
    (PageClass::Kernel, 'k'),
    (PageClass::Slab, 's'),
    (PageClass::Cache, 'c'),
    (PageClass::PrivateCache, 'v'),
    (PageClass::User, 'u'),
    (PageClass::HugeTlb, 'h'),
    (PageClass::Free, 'f'),
    (PageClass::Unaccepted, 'x'),
    (PageClass::Offline, 'o'),
    (PageClass::HwPoison, 'p'),
];

/// Writes the sections of all cores named.
///
/// # Errors
/// A core cannot be read or understood, or the data not written.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    if arguments.is_empty() || arguments.iter().any(|a| a.starts_with('-')) {
        bail!("{USAGE}");
    }
    let (mut all, mut shown) = (Vec::new(), String::from("cargo xtask sections"));
    for argument in arguments {
        let (file, range) = argument.split_once(':').unwrap_or((argument, ""));
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (first.parse()?, last.parse()?),
            None => (0, u64::MAX),
        };
        let input = Input::open(Path::new(file)).with_context(|| format!("cannot read {file}"))?;
        let kernel = Kernel::open(&input, &FoundInfo::of(&input)?.text)?;
        for section in whole_sections(&input, &kernel).into_iter().filter(|s| (first..=last).contains(s)) {
            let runs = section_runs(&input, &kernel, section)?;
            all.push(Section { origin: format!("{} {section}", kernel.release), runs });
        }
        let folder = Path::new(file).parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        shown += &format!(" {folder}/{}", Path::new(argument).file_name().unwrap_or_default().to_string_lossy());
    }
    let head = format!(
        "Blocks of page classes in whole memory sections of real machines, one section after the other; see real.rs.\n\
         Made by: {shown}\nThe cores are those of `cargo xtask lab KERNEL`."
    );
    let path = shell::workspace().join("crates/synth/src/real.txt");
    std::fs::write(&path, text(&head, &all)).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{} sections in {}", all.len(), path.display());
    Ok(ExitCode::SUCCESS)
}

/// Numbers of the sections that are RAM from end to end.
fn whole_sections(input: &Input, kernel: &Kernel) -> Vec<u64> {
    let mut out = Vec::new();
    let ram = input.memory().ram();
    for (a, b) in ram.all_runs() {
        let mut s = a.0.div_ceil(SECTION_PAGES);
        while (s + 1) * SECTION_PAGES <= b.0 {
            if kernel.memmap.page(Pfn(s * SECTION_PAGES)).is_some() {
                out.push(s);
            }
            s += 1;
        }
    }
    out
}

/// Blocks of one section, equal neighbours as one run.
fn section_runs(input: &Input, kernel: &Kernel, section: u64) -> Result<Vec<(char, u32, u64)>> {
    let size = kernel.rules.size();
    let first = Pfn(section * SECTION_PAGES);
    let map = kernel.memmap.page(first).context("no struct pages")?;
    let mut bytes = vec![0; size * SECTION_PAGES as usize];
    kernel.reader(input.memory()).read_virt(map, &mut bytes)?;
    let mut runs: Vec<(char, u32, u64)> = Vec::new();
    let mut at = 0;
    while at < SECTION_PAGES {
        let page = &bytes[at as usize * size..];
        let v = kernel.rules.classify(first.plus(at), &page[..size], || page.get(size..2 * size));
        let letter = LETTERS.iter().find(|l| l.0 == v.class).map_or('k', |l| l.1);
        let order = u32::from(v.order);
        match runs.last_mut() {
            Some(last) if (last.0, last.1) == (letter, order) => last.2 += 1,
            _ => runs.push((letter, order, 1)),
        }
        at += 1 << order;
    }
    ensure!(at == SECTION_PAGES, "a block crosses section {section}");
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coresift_format::{CHUNK_SHIFT, PhysicalMemory};
    use coresift_kernel::{ClassSet, ClassSink, Scanner};
    use coresift_synth::{KernelLayout, real};
    use std::sync::Arc;

    struct Classes(Vec<(u64, u64, &'static str)>);

    impl ClassSink for Classes {
        fn pages(&mut self, start: Pfn, end: Pfn, class: PageClass) {
            match self.0.last_mut() {
                Some(last) if last.1 == start.0 && last.2 == class.name() => last.1 = end.0,
                _ => self.0.push((start.0, end.0, class.name())),
            }
        }
    }

    #[test]
    fn the_real_mix_is_scanned_as_the_runs_it_was_made_of() {
        for name in ["6.1", "6.12", "7.1"] {
            let image = real::real(KernelLayout::get(name), 6 << 30, None, false);
            let mut elf = image.elf();
            // Only the struct pages are needed, which are in the first section.
            for segment in elf.segments.iter_mut().filter(|s| s.paddr >= 1 << 32) {
                (segment.filesz, segment.shares) = (0, None);
            }
            let input = Input::from_bytes(Arc::new(elf.bytes())).unwrap();
            let kernel = Kernel::open(&input, &FoundInfo::of(&input).unwrap().text).unwrap();
            let memory: &dyn PhysicalMemory = input.memory();
            let mut scanner = Scanner::new(&kernel, memory, ClassSet::NONE);
            let mut found = Classes(Vec::new());
            for chunk in 0..=memory.ram().end().0 >> CHUNK_SHIFT {
                scanner.scan_chunk(chunk, memory.ram(), &mut found);
            }
            let mut expected = Classes(Vec::new());
            let nobody_tells = |class| matches!(class, "zero" | "unaccepted") || class == "kernel";
            for (pfns, class) in image.truth.runs().filter(|r| r.1 != "hole") {
                let class = if nobody_tells(class) {
                    PageClass::Kernel
                } else {
                    PageClass::ALL.into_iter().find(|c| c.name() == class).unwrap()
                };
                expected.pages(Pfn(pfns.start), Pfn(pfns.end), class);
            }
            assert!(found.0 == expected.0, "{name}: {:?}", found.0.iter().zip(&expected.0).find(|(a, b)| a != b));
            assert!(found.0.len() > 20_000, "{}", found.0.len());
        }
    }
}
