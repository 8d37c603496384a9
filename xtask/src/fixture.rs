//! The bundled crash: a raw /proc/vmcore that `cargo xtask lab KERNEL --fixture` made, compressed as a whole.
//!
//! Compressed as a whole, since page by page the kernel image alone is more than the repository should carry: 12 MB of
//! 4 KiB pages that are 8.7 MB as one stream (zstd level 22; Debian's 6.1 cloud kernel).

use crate::shell;
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use zstd_safe::{CCtx, CParameter, DCtx, DParameter};

/// The kernel that the fixture is made with: the newest one whose core is small enough.
pub const KERNEL: &str = "6.1";

/// What the file may have at most, in bytes.
const MAX_SIZE: usize = 12_000_000;

/// log2 of the distance that repetitions are found at: the kernel image is in a raw core twice, far apart.
const WINDOW_LOG: u32 = 27;

/// A raw core of a small guest is smaller.
const MAX_CORE: u64 = 1 << 30;

/// Pieces of zeros of this size become holes.
const HOLE: usize = 64 << 10;

/// Where the fixture is in the source tree.
pub fn path() -> PathBuf {
    shell::workspace().join("fixtures").join(format!("linux-{KERNEL}-x86_64.vmcore.zst"))
}

/// The raw core, unpacked below cargo's output folder. The file is made once and kept.
///
/// # Errors
/// The fixture is missing or damaged, or the disk is full.
pub fn unpacked() -> Result<PathBuf> {
    let packed = path();
    let folder = shell::target_dir().join("fixtures");
    let core = folder.join(format!("linux-{KERNEL}-x86_64.vmcore"));
    let bytes = fs::read(&packed)
        .with_context(|| format!("cannot read {}; `cargo xtask lab {KERNEL} --fixture` makes it", packed.display()))?;
    let modified = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
    if modified(&core) < modified(&packed) {
        fs::create_dir_all(&folder)?;
        let part = core.with_extension("part");
        let content = unpack(&bytes).with_context(|| format!("{} is damaged", packed.display()))?;
        write_sparse(&part, &content).with_context(|| format!("cannot write {}", part.display()))?;
        fs::rename(part, &core)?;
    }
    Ok(core)
}

/// Stores the raw core at `core` as the fixture.
///
/// # Errors
/// It cannot be read or written, or comes out too big to be kept.
pub fn store(core: &Path) -> Result<PathBuf> {
    println!("fixture: compressing {}", core.display());
    let content = fs::read(core).with_context(|| format!("cannot read {}", core.display()))?;
    let packed = pack(&content)?;
    ensure!(packed.len() <= MAX_SIZE, "{} bytes compressed are more than {MAX_SIZE}", packed.len());
    let path = path();
    fs::write(&path, packed).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn pack(content: &[u8]) -> Result<Vec<u8>> {
    let mut context = CCtx::create();
    for parameter in [
        CParameter::CompressionLevel(22),
        CParameter::WindowLog(WINDOW_LOG),
        CParameter::EnableLongDistanceMatching(true),
        CParameter::ChecksumFlag(true),
    ] {
        context.set_parameter(parameter).map_err(zstd_error)?;
    }
    let mut packed = Vec::with_capacity(zstd_safe::compress_bound(content.len()));
    context.compress2(&mut packed, content).map_err(zstd_error)?;
    Ok(packed)
}

fn unpack(packed: &[u8]) -> Result<Vec<u8>> {
    let size = zstd_safe::get_frame_content_size(packed).ok().flatten().context("no size in the zstd header")?;
    ensure!(size <= MAX_CORE, "{size} bytes are more than a small guest's core has");
    let mut context = DCtx::create();
    context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG)).map_err(zstd_error)?;
    let mut content = Vec::with_capacity(usize::try_from(size)?);
    context.decompress(&mut content, packed).map_err(zstd_error)?;
    Ok(content)
}

fn zstd_error(code: usize) -> anyhow::Error {
    anyhow::anyhow!("zstd: {}", zstd_safe::get_error_name(code))
}

fn write_sparse(path: &Path, content: &[u8]) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(content.len() as u64)?;
    for (i, piece) in content.chunks(HOLE).enumerate() {
        if piece.iter().any(|&b| b != 0) {
            file.write_all_at(piece, (i * HOLE) as u64)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_comes_back_as_it_was() {
        let mut core = vec![0; 3 * HOLE + 100];
        core[HOLE + 5..HOLE + 9].copy_from_slice(b"page");
        core[3 * HOLE + 99] = 1;
        let packed = pack(&core).unwrap();
        assert!(packed.len() < 200, "{}", packed.len());
        assert!(unpack(&packed).unwrap() == core);

        let dir = tempfile::tempdir().unwrap();
        write_sparse(&dir.path().join("core"), &core).unwrap();
        assert!(fs::read(dir.path().join("core")).unwrap() == core);
    }

    #[test]
    fn a_damaged_fixture_is_noticed() {
        let mut packed = pack(&[7; 100_000]).unwrap();
        *packed.last_mut().unwrap() ^= 1; // of the checksum
        assert!(unpack(&packed).is_err());
        assert!(unpack(&packed[..packed.len() / 2]).is_err());
        assert!(unpack(b"").is_err());
    }
}
