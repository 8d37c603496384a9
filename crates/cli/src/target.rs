//! A target that is the input.

use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether `target` is the same file as `input`, by whatever names: writing would destroy what is still to be read.
pub fn is_input(input: &Path, target: &Path) -> bool {
    match (metadata(input), metadata(target)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// What is said about it.
pub fn same(target: &Path) -> String {
    format!("{} is the input; write to another file, and replace the input when that is done", target.display())
}
