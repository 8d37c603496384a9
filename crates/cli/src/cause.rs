//! Errors as text: the chain of causes, and what to do next.

use coresift_engine::{EngineError, Full};
use coresift_kernel::KernelError;
use std::error::Error;
use std::io;

/// The messages of `error` and of what caused it, without repeating one that its effect already quotes.
pub fn chain(error: &dyn Error) -> impl Iterator<Item = String> {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        if texts.last().is_none_or(|effect| !effect.contains(&text)) {
            texts.push(text);
        }
        next = cause.source();
    }
    texts.into_iter()
}

/// What to do next, where the error's own text does not say.
pub fn advice(error: &EngineError) -> Option<&'static str> {
    match error {
        EngineError::NoSpace { full, report, .. } => {
            let strong = ["zlib", "zstd", "auto"].iter().any(|codec| report.compression.starts_with(codec));
            if report.elf.is_some() && report.level == 31 {
                return Some("write a kdump-compressed file, which is smaller: without --format elf or -E");
            }
            Some(match (*full != Full::Space, report.level, strong) {
                (false, 31, true) => "free some space, or write to another file system",
                (false, 31, false) => "free some space, or compress more (zstd)",
                (false, ..) => "free some space, or leave out more with a higher dump level (-d 31)",
                (true, 31, true) => "allow a larger file",
                (true, 31, false) => "allow a larger file, or compress more (zstd)",
                (true, ..) => "allow a larger file, or leave out more with a higher dump level (-d 31)",
            })
        }
        EngineError::Kernel { error: KernelError::OtherKernel(_), .. } => {
            Some("give the vmlinux of the crashed kernel, or leave it out: a dump tells most by itself")
        }
        EngineError::Kernel { .. } => Some("dump it with -d 1, which needs to know nothing of the kernel"),
        EngineError::Write { .. } => Some("see what the system log says about the target, or write to another one"),
        EngineError::PartsMissing { .. } => Some("put together what is there with --partial"),
        // What the system did not say says itself what to do.
        EngineError::TargetOpen { error, .. } if error.raw_os_error().is_some() => {
            Some("check that the directory exists and may be written to")
        }
        _ => None,
    }
}

/// What the system said, without the number that Rust adds: `No such file or directory`.
pub fn text(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(number) => text.strip_suffix(&format!(" (os error {number})")).unwrap_or(&text).to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coresift_kernel::Mismatch;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Step(&'static str, #[source] Option<Box<Step>>);

    #[test]
    fn a_cause_that_its_effect_quotes_is_not_repeated() {
        let error = Step("outer", Some(Box::new(Step("middle: inner", Some(Box::new(Step("inner", None)))))));
        assert_eq!(chain(&error).collect::<Vec<_>>(), ["outer", "middle: inner"]);
    }

    #[test]
    fn a_vmlinux_of_another_kernel_is_no_reason_to_dump_without_knowing_the_kernel() {
        let text = || String::new();
        let mismatch = Mismatch { file: text(), dump: text(), what: "build id", ours: text(), theirs: text() };
        let error = KernelError::OtherKernel(Box::new(mismatch));
        let next = advice(&EngineError::Kernel { file: text(), error }).unwrap();
        assert!(next.contains("the vmlinux of the crashed kernel") && !next.contains("-d 1"), "{next}");
    }

    #[test]
    fn system_errors_read_as_c_programs_print_them() {
        assert_eq!(text(&io::Error::from_raw_os_error(2)), "No such file or directory");
        assert_eq!(text(&io::Error::other("other")), "other");
    }
}
