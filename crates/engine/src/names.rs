//! Names of files: whether two are of one file, and a name as text.

use serde::Serializer;
use std::fmt::Write;
use std::fs::{Metadata, metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether two names are of one file.
pub fn same_file(one: &Path, other: &Path) -> bool {
    metadata(one).is_ok_and(|one| is_file(&one, other))
}

/// Whether `other` is a name of the file `one`.
pub fn is_file(one: &Metadata, other: &Path) -> bool {
    metadata(other).is_ok_and(|other| (one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// The name `path` for JSON, which has no bytes: those that are not UTF-8 are written as `\xff`.
#[must_use]
pub fn path_text(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _infallible = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Serializes a name as [`path_text`].
pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path_text(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn bytes_that_are_no_text_are_escaped() {
        for (name, text) in
            [(&b"v"[..], "v"), (b"a\xffb\xfe", "a\\xffb\\xfe"), (b"\xc3\xa4", "\u{e4}"), (b"\xc3", "\\xc3")]
        {
            assert_eq!(path_text(Path::new(OsStr::from_bytes(name))), text);
        }
    }
}
