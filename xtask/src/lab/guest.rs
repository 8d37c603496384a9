//! What the guest boots with: its initramfs, the program under test, and the few programs around it.

use super::cpio::Archive;
use super::kernel::Kernel;
use super::options::Options;
use super::runs;
use crate::debian::{self, Apt};
use crate::{peers, shell};
use anyhow::{Context, Result, bail};
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
    let program = if options.raw_only {
        None
    } else if options.probe {
        let probe = cache.join("probe");
        compile_static(&shell::workspace().join("lab/probe.c"), &probe)?;
        Some(probe)
    } else {
        Some(options.program.clone().map_or_else(build_static, Ok)?)
    };
    let peer = if options.compare { Some(Peer::find("makedumpfile")?) } else { None };
    let runs: String = runs::commands(options)?.iter().map(|line| format!("{line}\n")).collect();
    let busybox = read(&busybox(cache)?)?;
    let modules = kernel.load_order(MODULES)?;
    let order: String = modules.iter().map(|(name, _)| format!("{name}\n")).collect();
    let conf = format!(
        "FILL={}\nLIGHT={}\nRAW={}\nCAPTURE_CPUS={}\n",
        options.fill,
        i32::from(options.fixture),
        i32::from(!options.no_raw),
        options.capture_cpus,
    );

    let build = |boot: Option<&[u8]>| -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for directory in ["bin", "dev", "proc", "sys", "tmp", "modules", "boot"] {
            archive.directory(directory);
        }
        archive.program("init", include_bytes!("../../../lab/init.sh"));
        archive.file("workload.sh", include_bytes!("../../../lab/workload.sh"));
        archive.file("capture.sh", include_bytes!("../../../lab/capture.sh"));
        archive.file("lab.conf", conf.as_bytes());
        archive.file("runs", runs.as_bytes());
        archive.program("bin/busybox", &busybox);
        archive.program("bin/guest", &read(&guest)?);
        if let Some(program) = &program {
            archive.program(&format!("bin/{}", runs::name(program)?), &read(program)?);
        }
        // Only where it is to run: the other kernel's memory is what is dumped.
        if let Some(peer) = peer.as_ref().filter(|_| boot.is_none()) {
            peer.add(&mut archive)?;
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

/// A program of others with the libraries it needs.
struct Peer {
    name: &'static str,
    program: PathBuf,
    loader: PathBuf,
    libraries: Vec<PathBuf>,
}

impl Peer {
    /// Finds what was built in the peers' folder, or what `cargo xtask peers` installed (Debian's makedumpfile has no snappy), or what
    /// is in PATH.
    fn find(name: &'static str) -> Result<Self> {
        let home = peers::home();
        let own = [&format!("src/{name}"), "root/usr/bin", "root/usr/sbin"].map(|d| home.join(d).join(name));
        let program = own.into_iter().find(|p| p.is_file()).or_else(|| debian::find(name));
        let program = program.with_context(|| format!("{name} is not installed; `cargo xtask peers` gets it"))?;
        let folder = home.join("root/usr/lib/x86_64-linux-gnu");
        let loader = folder.join("ld-linux-x86-64.so.2");
        let from_package = program.starts_with(home.join("root"));
        let mut list = if from_package {
            let mut list = Command::new(&loader);
            list.arg("--library-path").arg(folder).arg("--list");
            list
        } else {
            Command::new("ldd")
        };
        // `libz.so.1 => /path/libz.so.1 (0x7f...)`; the loader, with or without an arrow, is the last path.
        let text = shell::capture(list.arg(&program))?;
        let paths = text.lines().filter_map(|l| l.split_whitespace().rfind(|word| word.starts_with('/')));
        let (mut loaders, mut libraries): (Vec<PathBuf>, Vec<PathBuf>) =
            paths.map(PathBuf::from).partition(|p| p.to_string_lossy().contains("/ld-linux"));
        let loader = loaders.pop().filter(|_| !from_package).unwrap_or(loader);
        // No library asks for it, but the C library beside it looks for it when a thread ends.
        let unwinder = libraries.iter().find(|p| p.ends_with("libc.so.6")).map(|p| p.with_file_name("libgcc_s.so.1"));
        libraries.extend(unwinder.filter(|p| p.is_file()));
        Ok(Self { name, program, loader, libraries })
    }

    fn add(&self, archive: &mut Archive) -> Result<()> {
        archive.directory("peer");
        archive.program("peer/loader", &read(&self.loader)?);
        archive.program("peer/program", &read(&self.program)?);
        for library in &self.libraries {
            archive.file(&format!("peer/{}", runs::name(library)?), &read(library)?);
        }
        let script =
            "#!/bin/busybox sh\nexec /peer/loader --library-path /peer --preload libgcc_s.so.1 /peer/program \"$@\"\n";
        archive.program(&format!("bin/{}", self.name), script.as_bytes());
        Ok(())
    }
}

fn compile_static(source: &Path, to: &Path) -> Result<()> {
    shell::capture(Command::new("cc").args(["-O2", "-Wall", "-static", "-pthread", "-o"]).args([to, source]))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_is_told_from_other_files() {
        let this = std::env::current_exe().unwrap();
        assert!(!is_static(&this), "a test program has an interpreter");
        assert!(!is_static(Path::new(file!())));
    }
}
