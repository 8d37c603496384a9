//! The file with what was stripped of another (GDB manual, "Separate Debug Files").

use super::image::Image;
use std::path::{Path, PathBuf};

/// Where distributions put debug information.
pub const DEBUG_ROOT: &str = "/usr/lib/debug";

/// What was found for a stripped file.
#[derive(Default)]
pub(super) struct Found {
    /// The file that has what it lacks.
    pub(super) image: Option<Image>,
    /// Files that are where it could be, and why each is not it.
    pub(super) others: Vec<String>,
}

impl Found {
    /// Looks for what `stripped`, opened as `path`, lacks: by its build id below `root`/.build-id, then by its .gnu_debuglink beside it, in
    /// `.debug` and below `root`.
    pub(super) fn of(stripped: &Image, path: &Path, root: &Path) -> Self {
        let build_id = stripped.build_id();
        let link = stripped.debug_link();
        let mut found = Self::default();
        for candidate in candidates(path, root, build_id.as_deref(), link.as_ref().map(|(name, _)| name.as_str())) {
            // That a place has no such file is what most of them are like.
            if !candidate.exists() {
                continue;
            }
            let wrong = match Image::open(&candidate) {
                Err(error) => error.to_string(),
                Ok(image) => match unfit(stripped, &image, build_id.as_deref(), link.as_ref().map(|(_, sum)| *sum)) {
                    None => {
                        found.image = Some(image);
                        break;
                    }
                    Some(wrong) => format!("{}: {wrong}", image.name),
                },
            };
            found.others.push(wrong);
        }
        found
    }
}

/// Why `image` is not the file with what `stripped` lacks.
fn unfit(stripped: &Image, image: &Image, build_id: Option<&[u8]>, sum: Option<u32>) -> Option<&'static str> {
    let adds = !stripped.has_types() && image.has_types() || !stripped.has_symbols() && image.has_symbols();
    let same = match build_id {
        Some(_) => image.build_id().as_deref() == build_id,
        // All there is to tell them apart.
        None => sum == Some(image.checksum()),
    };
    match (image.elf().is_ok(), same, adds) {
        (false, ..) => Some("no ELF file for x86-64"),
        (_, false, _) if build_id.is_some() => Some("has another build id"),
        (_, false, _) => Some("has another checksum than .gnu_debuglink tells"),
        (_, _, false) => Some("has no debug information either"),
        _ => None,
    }
}

/// Files that may have the debug information of the stripped file at `path`.
fn candidates(path: &Path, root: &Path, build_id: Option<&[u8]>, link: Option<&str>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Some((first, rest)) = build_id.and_then(<[u8]>::split_first) {
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        found.push(root.join(format!(".build-id/{first:02x}/{rest}.debug")));
    }
    // A name only: what has directories in it would lead out of the places below.
    let link = link.filter(|name| !name.contains('/') && !name.is_empty());
    if let (Some(link), Ok(absolute)) = (link, std::path::absolute(path))
        && let (Some(folder), Some(absolute)) = (path.parent(), absolute.parent())
    {
        found.extend([folder.join(link), folder.join(".debug").join(link)]);
        found.push(root.join(absolute.strip_prefix("/").unwrap_or(absolute)).join(link));
    }
    // The same file again would be no help.
    found.retain(|candidate| candidate != path);
    found
}
