//! What a page frame is, where it is in the dump, and why it is there or not.
//!
//! ```text
//! Subject ─ symbols, page tables ─> pfn ─ format: bitmaps, descriptor ───────────> InFile
//!                                       └ kernel::inspect, protected: class ─────> InKernel ─ dump level ─> why
//! ```

mod subject;

pub use subject::{Subject, UnknownSubject};

use crate::error::EngineError;
use crate::verify::Fault;
use coresift_format::codec::Codec;
use coresift_format::kdump::{KdumpFile, Loss};
use coresift_format::{Input, Pfn, PhysAddr, ReadError};
use coresift_kernel::debuginfo::{DebugFile, open_kernel};
use coresift_kernel::inspect::{self, Inspection, Inspector};
use coresift_kernel::protected::{self, Protected};
use coresift_kernel::{ClassSet, DumpLevel, Kallsyms, Kernel, KernelError, PageClass, VirtAddr};
use serde::Serialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Pages named of those that share the data of one.
const SHARERS: usize = 4;

/// Where a page frame stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Its bytes are in the dump.
    Kept,
    /// It is RAM, and was left out.
    LeftOut,
    /// The dump should have it and does not.
    Lost,
    /// The dump knows no RAM there.
    NoRam,
    /// It is in another part of the split set.
    OtherPart,
}

/// A page frame as the file has it.
#[derive(Clone, Debug, Serialize)]
pub struct InFile {
    /// Where it stands.
    pub state: State,
    /// Why it is lost.
    pub fault: Option<Fault>,
    /// The same in words.
    pub what: Option<String>,
    /// Of a split set, the file that the offsets are in.
    pub part: Option<String>,
    /// File offset of its descriptor in bytes.
    pub descriptor: Option<u64>,
    /// File offset of its data.
    pub data: Option<u64>,
    /// Bytes of its data.
    pub size: Option<u32>,
    /// The codec of its data.
    pub codec: Option<&'static str>,
    /// Whether all its bytes are zero, where they can be read.
    pub zero: Option<bool>,
    /// Other pages with the same data.
    pub sharers: u64,
    /// The first of them.
    pub first_sharers: Vec<u64>,
}

/// A page frame as its kernel sees it.
#[derive(Clone, Debug, Serialize)]
pub struct InKernel {
    /// The name of its class.
    pub class: &'static str,
    /// What tells it.
    pub evidence: Option<String>,
    /// Address of its `struct page`.
    pub struct_page: Option<u64>,
    /// Why that cannot be read.
    pub unread: Option<String>,
    /// The word of flags, and the names of those that are set.
    pub flags: Option<u64>,
    /// Names of the flags that are set.
    pub flag_names: Vec<String>,
    /// `_mapcount`.
    pub mapcount: Option<i32>,
    /// The page type in it.
    pub page_type: Option<&'static str>,
    /// `_refcount`.
    pub refcount: Option<i32>,
    /// `mapping`.
    pub mapping: Option<u64>,
    /// First page frame and order of the block it is in.
    pub block: Option<(u64, u8)>,
    /// The head of the compound page it is a tail of.
    pub tail_of: Option<u64>,
    /// Memory no level leaves out that it belongs to: `kernel image`, `page tables`, `per-cpu areas`, `mem_map`.
    pub protected: Vec<&'static str>,
}

/// All that is known of one page frame. Any field may be absent in a later version.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// What was asked for.
    pub asked: String,
    /// The kernel virtual address it was reached by, and the symbol before it.
    pub virtual_address: Option<u64>,
    /// The symbol at or before that address, with the distance.
    pub symbol: Option<String>,
    /// Page frame number.
    pub pfn: u64,
    /// Physical address of its first byte.
    pub address: u64,
    /// Where it is in the file.
    pub file: InFile,
    /// What it is, where the kernel is understood.
    pub kernel: Option<InKernel>,
    /// Why it is there, or not.
    pub why: String,
}

/// The explanations of a run, and what a user should know besides.
#[derive(Debug, Serialize)]
pub struct Explanations {
    /// The dump.
    pub file: String,
    /// The dump level in its header.
    pub level: Option<i32>,
    /// One for each page that was asked for.
    pub pages: Vec<Explanation>,
    /// Addresses and symbols that lead nowhere.
    pub failed: Vec<Failed>,
    /// What could not be found out.
    pub notes: Vec<String>,
}

/// Something that was asked for and leads to no page.
#[derive(Debug, Serialize)]
pub struct Failed {
    /// What was asked for.
    pub asked: String,
    /// Why not.
    pub why: String,
}

/// Explains the pages `subjects` of the dump `path`.
///
/// # Errors
/// The dump cannot be opened, or `debug` is of another kernel.
pub fn explain(path: &Path, subjects: &[Subject], debug: Option<&DebugFile>) -> Result<Explanations, EngineError> {
    explain_set(&[path.to_owned()], subjects, debug)
}

/// As [`explain`], of a split set, whose parts are in `paths` in any order.
///
/// # Errors
/// As [`explain`], or the parts are not of one set.
pub fn explain_set(
    paths: &[PathBuf],
    subjects: &[Subject],
    debug: Option<&DebugFile>,
) -> Result<Explanations, EngineError> {
    let input = crate::verify::salvage_set(paths)?;
    let mut notes: Vec<String> = input.problems().iter().map(ToString::to_string).collect();
    let kernel = match open_kernel(&input, debug) {
        Ok((kernel, _)) => Some(kernel),
        Err(error @ KernelError::OtherKernel(_)) => {
            return Err(EngineError::Kernel { file: input.name().to_owned(), error });
        }
        Err(error) => {
            notes.push(format!("what a page is cannot be told, for the kernel in the dump is not understood: {error}"));
            None
        }
    };
    let mut explainer = Explainer::new(&input, kernel.as_ref(), &mut notes);
    let mut pages = Vec::with_capacity(subjects.len());
    let mut failed = Vec::new();
    for subject in subjects {
        match explainer.explain(subject) {
            Ok(page) => pages.push(page),
            Err(EngineError::Kernel { error, .. }) => {
                failed.push(Failed { asked: subject.to_string(), why: error.to_string() });
            }
            Err(error) => return Err(error),
        }
    }
    count_sharers(&input, &mut pages)?;
    Ok(Explanations { file: input.name().to_owned(), level: input.level(), pages, failed, notes })
}

/// What explaining pages of one dump takes.
pub(crate) struct Explainer<'a> {
    input: &'a Input,
    kernel: Option<(&'a Kernel, Inspector<'a>)>,
    protected: Vec<Protected>,
}

impl<'a> Explainer<'a> {
    pub(crate) fn new(input: &'a Input, kernel: Option<&'a Kernel>, notes: &mut Vec<String>) -> Self {
        let memory = input.memory();
        let mut protected = Vec::new();
        let kernel = kernel.map(|kernel| {
            let (found, missing) = protected::find(kernel, memory);
            protected = found;
            notes.extend(missing);
            let symbols = kernel.lookup(memory, &[&inspect::WANTED]);
            if let Err(error) = &symbols {
                notes.push(format!("most page flags have no names here: {error}"));
            }
            (kernel, Inspector::new(kernel, memory, symbols.as_ref().ok()))
        });
        Self { input, kernel, protected }
    }

    fn explain(&mut self, subject: &Subject) -> Result<Explanation, EngineError> {
        let page = self.input.memory().page_size();
        let (virt, pfn) = match subject {
            Subject::Pfn(pfn) => (None, *pfn),
            Subject::Physical(addr) => (None, addr.pfn(page)),
            Subject::Virtual(addr) => (Some(*addr), self.physical(*addr)?.pfn(page)),
            Subject::Symbol(name) => {
                let addr = self.symbol(name)?;
                (Some(addr), self.physical(addr)?.pfn(page))
            }
        };
        let file = self.in_file(pfn)?;
        let inspection = match &mut self.kernel {
            Some((_, inspector)) if file.state != State::NoRam => Some(inspector.inspect(pfn)),
            _ => None,
        };
        let why = self.why(pfn, &file, inspection.as_ref());
        Ok(Explanation {
            asked: subject.to_string(),
            virtual_address: virt.map(|addr| addr.0),
            symbol: virt.and_then(|addr| self.symbol_at(addr)),
            pfn: pfn.0,
            address: pfn.addr(page).0,
            kernel: inspection.map(|found| self.in_kernel(pfn, found)),
            file,
            why,
        })
    }

    fn failed(&self, error: KernelError) -> EngineError {
        EngineError::Kernel { file: self.input.name().to_owned(), error }
    }

    fn known(&self) -> Result<&'a Kernel, EngineError> {
        let missing = || KernelError::MissingKey {
            key: "a kernel that is understood".to_owned(),
            purpose: "finding a virtual address or a symbol",
        };
        self.kernel.as_ref().map(|(kernel, _)| *kernel).ok_or_else(|| self.failed(missing()))
    }

    fn physical(&self, addr: VirtAddr) -> Result<PhysAddr, EngineError> {
        let translated = self.known()?.reader(self.input.memory()).translate(addr);
        translated.map(|(phys, _)| phys).map_err(|error| self.failed(error))
    }

    fn symbol(&self, name: &str) -> Result<VirtAddr, EngineError> {
        let kernel = self.known()?;
        if let Ok(Some(addr)) = kernel.info.symbol(name) {
            return Ok(addr);
        }
        let found = Kallsyms::open(&kernel.info, &mut kernel.reader(self.input.memory()), &[name]);
        let (_, symbols) = found.map_err(|error| self.failed(error))?;
        let missing = || KernelError::MissingKey { key: format!("the symbol {name}"), purpose: "explaining its page" };
        symbols.get(name).map(|symbol| symbol.address).ok_or_else(|| self.failed(missing()))
    }

    /// The symbol at or before `addr` and the distance, where the kernel's symbols can be read.
    fn symbol_at(&self, addr: VirtAddr) -> Option<String> {
        let kernel = self.known().ok()?;
        let mut reader = kernel.reader(self.input.memory());
        let (tables, _) = Kallsyms::open(&kernel.info, &mut reader, &[]).ok()?;
        let (name, distance) = tables.symbol_at(&mut reader, addr).ok()??;
        Some(if distance == 0 { name } else { format!("{name}+{distance:#x}") })
    }

    fn in_file(&self, pfn: Pfn) -> Result<InFile, EngineError> {
        let memory = self.input.memory();
        let mut file = InFile {
            state: State::Kept,
            fault: None,
            what: None,
            part: None,
            descriptor: None,
            data: None,
            size: None,
            codec: None,
            zero: None,
            sharers: 0,
            first_sharers: Vec::new(),
        };
        let core = self.input.as_elf();
        let lost = core.and_then(|core| match pfn {
            pfn if core.beyond_end().contains(pfn) => Some(Fault::BeyondEnd),
            pfn if core.damaged().contains(pfn) => Some(Fault::BadDescriptor),
            _ => None,
        });
        if !memory.stored().contains(pfn) {
            // Of a set, a part that is missing.
            let part = self.input.as_kdump().and_then(KdumpFile::part);
            let nowhere = self.input.kdump_files().len() > 1 && self.holder(pfn).is_none();
            file.state = match part {
                _ if lost.is_some() => State::Lost,
                _ if nowhere && memory.ram().contains(pfn) => State::OtherPart,
                Some(part) if memory.ram().contains(pfn) && !part.contains(&pfn) => State::OtherPart,
                _ if memory.ram().contains(pfn) => State::LeftOut,
                _ => State::NoRam,
            };
            file.fault = lost;
            return Ok(file);
        }
        let holder = self.holder(pfn);
        let described = holder.map(|kdump| kdump.describe(pfn)).transpose()?.flatten();
        file.part = holder.filter(|_| self.input.kdump_files().len() > 1).map(|file| file.name().to_owned());
        let mut bytes = vec![0; memory.page_size().bytes()];
        let read = memory.view().read(pfn.addr(memory.page_size()), &mut bytes);
        if let Some(page) = &described {
            file.descriptor = Some(page.at);
            if page.desc.offset != 0 {
                (file.data, file.size) = (Some(page.desc.offset), Some(page.desc.size));
                file.codec = Codec::from_flags(page.desc.flags).ok().map(Codec::name);
            }
        }
        match read {
            Ok(()) => file.zero = Some(bytes.iter().all(|byte| *byte == 0)),
            Err(error) => {
                file.state = State::Lost;
                file.fault = Some(match described.and_then(|page| page.state.err()) {
                    Some((Loss::Unwritten, _)) => Fault::Unwritten,
                    Some((Loss::BeyondEnd, _)) => Fault::BeyondEnd,
                    Some((Loss::BadDescriptor, _)) => Fault::BadDescriptor,
                    None if matches!(error, ReadError::Io { .. }) => Fault::Unreadable,
                    None => Fault::Undecodable,
                });
                file.what = Some(error.to_string());
            }
        }
        Ok(file)
    }

    /// The kdump-compressed file that has a descriptor for `pfn`, if any has.
    fn holder(&self, pfn: Pfn) -> Option<&KdumpFile> {
        self.input.kdump_files().iter().find(|file| file.range().contains(&pfn))
    }

    fn in_kernel(&self, pfn: Pfn, found: Inspection) -> InKernel {
        let raw = found.raw.as_ref().ok();
        InKernel {
            // What the scan takes a page for whose struct page cannot be read, so that it is kept, explains nothing.
            class: if raw.is_some() { found.class.name() } else { "unknown" },
            evidence: found.evidence,
            struct_page: found.struct_page.map(|addr| addr.0),
            unread: found.raw.as_ref().err().cloned(),
            flags: raw.map(|raw| raw.flags),
            flag_names: found.flags,
            mapcount: raw.and_then(|raw| raw.mapcount),
            page_type: found.page_type,
            refcount: found.refcount,
            mapping: raw.map(|raw| raw.mapping),
            block: found.block.map(|block| (block.head.0, block.order)),
            tail_of: found.tail_of.map(|head| head.0),
            protected: self.protections(pfn).map(|kind| kind.what).collect(),
        }
    }

    fn protections(&self, pfn: Pfn) -> impl Iterator<Item = &Protected> {
        self.protected.iter().filter(move |kind| kind.pages.contains(pfn))
    }

    /// Why `pfn` is in the dump or not, for one that is known by its number only.
    pub(crate) fn rule(&mut self, pfn: Pfn) -> Result<String, EngineError> {
        let file = self.in_file(pfn)?;
        let inspection = self.kernel.as_mut().map(|(_, inspector)| inspector.inspect(pfn));
        Ok(self.why(pfn, &file, inspection.as_ref()))
    }

    fn why(&self, pfn: Pfn, file: &InFile, found: Option<&Inspection>) -> String {
        let found = found.filter(|found| found.raw.is_ok());
        match file.state {
            State::NoRam if self.input.as_elf().is_some() => "no program header describes memory there".to_owned(),
            State::NoRam => "the 1st bitmap has no RAM there".to_owned(),
            State::OtherPart => "another part of the split set has it".to_owned(),
            State::Lost => lost(self.input, file),
            State::LeftOut => self.left_out(pfn, found),
            State::Kept => self.kept(pfn, file, found),
        }
    }

    fn level(&self) -> Option<DumpLevel> {
        self.input.level().and_then(|level| u8::try_from(level).ok()).and_then(DumpLevel::new)
    }

    fn left_out(&self, pfn: Pfn, found: Option<&Inspection>) -> String {
        let Some(level) = self.level() else {
            return "it was left out when the core was written".to_owned();
        };
        let Some(class) = found.map(|found| found.class) else {
            return format!(
                "it was left out at dump level {level}; by which rule is not known without its struct page"
            );
        };
        if ClassSet::UNREADABLE.has(class) {
            return format!("it is {class}, which no dump may read");
        }
        if let Some(bit) = bits(level, class) {
            return format!("it is {class}, which bit {bit} of dump level {level} leaves out");
        }
        let protected: Vec<&str> = self.protections(pfn).map(|kind| kind.what).collect();
        let besides = if protected.is_empty() {
            String::new()
        } else {
            format!(", and belongs to what must be kept: {}", protected.join(", "))
        };
        format!(
            "it is {class}, which dump level {level} does not leave out{besides}: an option did, or it could not be read, or the \
             writer took it for something else"
        )
    }

    fn kept(&self, pfn: Pfn, file: &InFile, found: Option<&Inspection>) -> String {
        let hole = self.input.memory().known_zero().contains(pfn);
        let Some(level) = self.level() else {
            return if hole { HOLE.to_owned() } else { "the core has data for it".to_owned() };
        };
        let Some(class) = found.map(|found| found.class) else {
            return format!("dump level {level} did not leave it out");
        };
        let zero = file.zero == Some(true);
        let mut why = match bits(level, class) {
            None if DumpLevel::BITS.iter().all(|(_, set)| !set.has(class)) => {
                format!("it is {class}, which no dump level leaves out")
            }
            None => format!("it is {class}, which dump level {level} keeps"),
            Some(bit) => {
                let protected: Vec<&str> = self.protections(pfn).map(|kind| kind.what).collect();
                if protected.is_empty() {
                    format!(
                        "it is {class}, which bit {bit} of dump level {level} leaves out, but was kept: an option kept it, or its \
                         writer had other evidence"
                    )
                } else {
                    format!(
                        "it is {class}, which bit {bit} of dump level {level} leaves out, but belongs to what is kept whatever its \
                         class: {}",
                        protected.join(", ")
                    )
                }
            }
        };
        if zero {
            why.push_str("; it is all zeros");
        }
        why
    }
}

/// Why a page of an ELF core is there that has no data, where the core does not tell what it left out.
const HOLE: &str = "a program header describes it and has no data for it (p_filesz below p_memsz), which means zeros; or the program that \
     wrote the core left it out, and does not tell the two apart";

/// The lowest bit of `level` that leaves out `class`.
fn bits(level: DumpLevel, class: PageClass) -> Option<u8> {
    let mut of_level = DumpLevel::BITS.iter().filter(|(bit, set)| level.number() & bit != 0 && set.has(class));
    of_level.next().map(|(bit, _)| *bit)
}

fn lost(input: &Input, file: &InFile) -> String {
    match file.fault {
        Some(Fault::Unwritten) => "the dump was cut short before it was written".to_owned(),
        Some(Fault::BeyondEnd) => format!("it should be beyond the end of the file at {}", input.file_len()),
        Some(fault) => format!("it is a page {}", fault.text()),
        None => "it is lost".to_owned(),
    }
}

/// Counts the pages that share data with one of `pages`, in one pass over all descriptors of each file that holds one.
fn count_sharers(input: &Input, pages: &mut [Explanation]) -> Result<(), EngineError> {
    for file in input.kdump_files() {
        let range = file.range();
        count_sharers_in(file, pages.iter_mut().filter(|page| range.contains(&Pfn(page.pfn))).collect())?;
    }
    Ok(())
}

fn count_sharers_in(file: &KdumpFile, pages: Vec<&mut Explanation>) -> Result<(), EngineError> {
    let mut places: HashMap<u64, (u64, Vec<u64>)> =
        pages.iter().filter_map(|page| Some((page.file.data?, (0, Vec::new())))).collect();
    if places.is_empty() {
        return Ok(());
    }
    file.each_descriptor(Pfn(0), Pfn(u64::MAX), |page| {
        if let Some((count, first)) = places.get_mut(&page.desc.offset) {
            *count += 1;
            // One more than is shown: the page itself may be among them.
            if first.len() <= SHARERS {
                first.push(page.pfn.0);
            }
        }
    })?;
    for page in pages {
        if let Some((count, first)) = page.file.data.and_then(|data| places.get(&data)) {
            page.file.sharers = count.saturating_sub(1);
            page.file.first_sharers = first.iter().copied().filter(|pfn| *pfn != page.pfn).take(SHARERS).collect();
        }
    }
    Ok(())
}
