//! What a page frame is, where it is in the dump, and why it is there or not.
//!
//! ```text
//! Subject ─ symbols, page tables ─> pfn ─ format: bitmaps, descriptor ───────────> InFile
//!                                       └ kernel::inspect, protected: class ─────> InKernel ─ dump level ─> why
//! ```

mod file;
mod subject;
mod why;

pub use file::{InFile, State};
pub use subject::{Subject, UnknownSubject};

use crate::error::EngineError;
use crate::holes;
use crate::verify::misfit;
use coresift_format::kdump::KdumpFile;
use coresift_format::{Input, Pfn, PhysAddr};
use coresift_kernel::debuginfo::{Answers, DebugFile, open_kernel};
use coresift_kernel::inspect::{self, Inspection, Inspector};
use coresift_kernel::protected::{self, Protected};
use coresift_kernel::{Kernel, KernelError, START_KERNEL_MAP, VirtAddr};
use serde::Serialize;
use std::path::{Path, PathBuf};

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
    let mut input = crate::verify::salvage_set(paths)?;
    let mut notes: Vec<String> = input.problems().iter().map(ToString::to_string).collect();
    notes.extend(crate::verify::lone_part(&input));
    notes.extend(misplaced(&input));
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
    holes::judge(&mut input, kernel.as_ref());
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
    file::count_sharers(&input, &mut pages);
    Ok(Explanations { file: input.name().to_owned(), level: input.level(), pages, failed, notes })
}

/// Where the 2nd bitmap and the descriptors disagree, so that pages may have the bytes of others.
fn misplaced(input: &Input) -> Option<String> {
    let files = input.kdump_files().iter();
    files.map(KdumpFile::look_at_table).find_map(|table| misfit(table.fit))
}

/// What explaining pages of one dump takes.
pub(crate) struct Explainer<'a> {
    input: &'a Input,
    kernel: Option<(&'a Kernel, Inspector<'a>)>,
    protected: Vec<Protected>,
    answers: Option<Answers<'a>>,
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
        Self { input, kernel, protected, answers: None }
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
        let file = self.in_file(pfn);
        let inspection = match &mut self.kernel {
            Some((_, inspector)) if file.state != State::NoRam => Some(inspector.inspect(pfn)),
            _ => None,
        };
        let why = self.why(pfn, &file, inspection.as_ref());
        let symbol = virt.and_then(|addr| self.symbol_at(addr));
        Ok(Explanation {
            asked: subject.to_string(),
            virtual_address: virt.map(|addr| addr.0),
            symbol,
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

    /// What answers for the kernel's symbols: the vmlinux that was given, else the dump.
    fn answers(&mut self) -> Result<&mut Answers<'a>, EngineError> {
        let (kernel, memory) = (self.known()?, self.input.memory());
        Ok(self.answers.get_or_insert_with(|| Answers::new(kernel, memory)))
    }

    fn symbol(&mut self, name: &str) -> Result<VirtAddr, EngineError> {
        if let Ok(Some(addr)) = self.known()?.info.symbol(name) {
            return Ok(addr);
        }
        let found = self.answers()?.symbols(name).map_err(|error| self.failed(error))?;
        let missing = || KernelError::MissingKey { key: format!("the symbol {name}"), purpose: "explaining its page" };
        found.first().map(|symbol| symbol.address).ok_or_else(|| self.failed(missing()))
    }

    /// The symbol at or before `addr` and the distance, where the kernel's symbols can be read. Below the kernel image there are none.
    fn symbol_at(&mut self, addr: VirtAddr) -> Option<String> {
        let inside = addr.0 >= START_KERNEL_MAP;
        let found = inside.then(|| self.answers().ok()?.symbol_at(addr).ok()?)??;
        let module = found.module.as_ref().map_or_else(String::new, |module| format!(" [{module}]"));
        Some(match found.offset {
            0 => format!("{}{module}", found.name),
            distance => format!("{}+{distance:#x}{module}", found.name),
        })
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
    pub(crate) fn rule(&mut self, pfn: Pfn) -> String {
        let file = self.in_file(pfn);
        let inspection = self.kernel.as_mut().map(|(_, inspector)| inspector.inspect(pfn));
        self.why(pfn, &file, inspection.as_ref())
    }
}
