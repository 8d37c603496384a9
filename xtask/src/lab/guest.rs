//! What the guest boots with: its initramfs, the program under test, and the few programs around it.

use super::cpio::Archive;
use super::kernel::Kernel;
use super::options::Options;
use crate::debian::{self, Apt};
use crate::shell;
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Modules for disks, the balloon and ext4, in kernels where these are not built in.
const MODULES: &[&str] = &["virtio_pci", "virtio_blk", "virtio_balloon", "crc32c_generic", "ext4"];

/// The initramfs of the kernel that will crash. In its /boot are the image and the initramfs of the capture kernel, which is
/// the same less /boot.
///
/// # Errors
/// A part cannot be built, fetched or read.
pub fn initramfs(options: &Options, kernel: &Kernel, cache: &Path) -> Result<Vec<u8>> {
    let guest = cache.join("guest");
    compile_static(&shell::workspace().join("lab/guest.c"), &guest)?;
    let program = match (&options.program, options.raw_only) {
        (_, true) => None,
        (Some(program), _) => Some(program.clone()),
        (None, _) => Some(build_static()?),
    };
    // Its own name: programs like busybox, and ours, do what they are called.
    let program_name = program.as_deref().and_then(Path::file_name).and_then(OsStr::to_str).unwrap_or_default();
    let busybox = read(&busybox(cache)?)?;
    let modules = kernel.load_order(MODULES)?;
    let order: String = modules.iter().map(|(name, _)| format!("{name}\n")).collect();
    let conf = format!(
        "FILL={}\nLIGHT={}\nRAW={}\nPROGRAM={}\nDUMP_ARGS={}\n",
        options.fill,
        i32::from(options.fixture),
        i32::from(!options.no_raw),
        single_quoted(program_name),
        single_quoted(&options.dump_args),
    );

    let build = |boot: Option<&[u8]>| -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for directory in ["bin", "dev", "proc", "sys", "modules", "boot"] {
            archive.directory(directory);
        }
        archive.program("init", include_bytes!("../../../lab/init.sh"));
        archive.file("workload.sh", include_bytes!("../../../lab/workload.sh"));
        archive.file("capture.sh", include_bytes!("../../../lab/capture.sh"));
        archive.file("lab.conf", conf.as_bytes());
        archive.program("bin/busybox", &busybox);
        archive.program("bin/guest", &read(&guest)?);
        if let Some(program) = &program {
            archive.program(&format!("bin/{program_name}"), &read(program)?);
        }
        archive.file("modules/order", order.as_bytes());
        for (name, content) in &modules {
            archive.file(&format!("modules/{name}"), content);
        }
        if let Some(capture) = boot {
            archive.file("boot/vmlinuz", &read(&kernel.image)?);
            archive.file("boot/initramfs", capture);
        }
        Ok(archive.finish())
    };
    build(Some(&build(None)?))
}

/// Builds our program static and small, as it goes into an initramfs.
fn build_static() -> Result<PathBuf> {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--package", "coresift", "--profile", "lean", "--target", TARGET]);
    shell::run(cargo.env("RUSTFLAGS", "-C target-feature=+crt-static").current_dir(shell::workspace()))?;
    Ok(shell::target_dir().join(TARGET).join("lean/coresift"))
}

fn compile_static(source: &Path, to: &Path) -> Result<()> {
    shell::capture(Command::new("cc").args(["-O2", "-Wall", "-static", "-o"]).args([to, source]))
        .context("the guest's program needs a C compiler with a static C library (packages gcc, libc6-dev)")?;
    Ok(())
}

/// A static busybox: this machine's, or one from its package.
fn busybox(cache: &Path) -> Result<PathBuf> {
    let unpacked = cache.join("busybox");
    let places = || ["bin/busybox", "usr/bin/busybox"].map(|p| unpacked.join(p));
    let known = places().into_iter().chain(debian::find("busybox"));
    if let Some(found) = known.into_iter().find(|p| is_static(p)) {
        return Ok(found);
    }
    println!("lab: fetching busybox-static");
    Apt::of_this_machine(&cache.join("apt"))?.fetch("busybox-static", &unpacked)?;
    match places().into_iter().find(|p| is_static(p)) {
        Some(found) => Ok(found),
        None => bail!("busybox-static has no static busybox where it used to be"),
    }
}

/// Whether `path` is an ELF64 program that asks for no interpreter (no PT_INTERP, type 3).
fn is_static(path: &Path) -> bool {
    let Ok(bytes) = fs::read(path) else { return false };
    let field = |at: usize, len: usize| -> Option<u64> {
        let mut value = [0; 8];
        value[..len].copy_from_slice(bytes.get(at..at.checked_add(len)?)?);
        Some(u64::from_le_bytes(value))
    };
    let types = || -> Option<Vec<u64>> {
        let [offset, size, count] = [field(32, 8)?, field(54, 2)?, field(56, 2)?];
        (0..count).map(|i| field(usize::try_from(offset.checked_add(i * size)?).ok()?, 4)).collect()
    };
    bytes.starts_with(b"\x7fELF\x02\x01") && types().is_some_and(|types| !types.contains(&3))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// `text` as one word of a shell.
fn single_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_is_told_from_other_files() {
        let this = std::env::current_exe().unwrap();
        assert!(!is_static(&this), "a test program has an interpreter");
        assert!(!is_static(Path::new(file!())));
    }

    #[test]
    fn quotes_survive_the_shell() {
        assert_eq!(single_quoted("a 'b' $c"), r"'a '\''b'\'' $c'");
    }
}
