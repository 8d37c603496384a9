//! The kernels to crash: Debian's cloud kernels by name, or the one installed on this machine.

use crate::debian::Apt;
use crate::shell;
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name for the newest kernel in /boot.
pub const INSTALLED: &str = "installed";

const LIST: &str = include_str!("../../../lab/kernels.txt");

/// A kernel that can be booted: its image and the folder of its modules.
pub struct Kernel {
    /// As `uname -r` says it.
    pub release: String,
    pub image: PathBuf,
    pub modules: PathBuf,
    /// The kernel with debugging information, where it was asked for.
    pub vmlinux: Option<PathBuf>,
}

/// Names and suites of `lab/kernels.txt`.
pub fn list() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    LIST.lines().filter(|l| !l.starts_with('#')).filter_map(|l| {
        let mut words = l.split_whitespace();
        Some((words.next()?, words.next()?.split(',').collect()))
    })
}

/// The kernel called `name`, from `cache` or, the first time, from the mirror.
///
/// # Errors
/// The name is not in the list, the mirror does not answer, or the suite has no such kernel any more.
pub fn get(name: &str, cache: &Path, with_vmlinux: bool) -> Result<Kernel> {
    if name == INSTALLED {
        return find_in(Path::new("/")).context("no kernel with modules is installed");
    }
    let Some((_, suites)) = list().find(|&(n, _)| n == name) else {
        let names: Vec<&str> = list().map(|(n, _)| n).collect();
        bail!("no kernel {name:?}; there are {} and {INSTALLED}", names.join(", "));
    };
    let tree = cache.join("kernels").join(name);
    if !tree.join("complete").exists() {
        fetch(name, &suites, cache, &tree)?;
    }
    let mut kernel =
        find_in(&tree).with_context(|| format!("{} holds no kernel; delete it and try again", tree.display()))?;
    if with_vmlinux {
        let vmlinux = tree.join("vmlinux");
        if !vmlinux.exists() {
            fetch_vmlinux(&kernel.release, &suites, cache, &vmlinux)?;
        }
        kernel.vmlinux = Some(vmlinux);
    }
    Ok(kernel)
}

fn fetch(name: &str, suites: &[&str], cache: &Path, tree: &Path) -> Result<()> {
    let apt = Apt::for_suites(&cache.join("apt"), suites)?;
    let image = apt.packages(&format!("linux-image-{name}."))?.into_iter().rfind(|p| p.ends_with("-cloud-amd64"));
    let image = image.with_context(|| format!("{} has no cloud kernel {name} (any more)", suites.join(", ")))?;
    let release = image.trim_start_matches("linux-image-");
    println!("lab: fetching {image}");
    let _ = fs::remove_dir_all(tree);
    fs::create_dir_all(tree)?;
    apt.fetch(&image, tree)?;
    for part in ["linux-binary", "linux-modules"] {
        // Kernels of 2026 are split: the image package only depends on these.
        let package = format!("{part}-{release}");
        if apt.packages(&package)?.contains(&package) {
            apt.fetch(&package, tree)?;
        }
    }
    fs::write(tree.join("complete"), "")?;
    Ok(())
}

fn fetch_vmlinux(release: &str, suites: &[&str], cache: &Path, to: &Path) -> Result<()> {
    let apt = Apt::for_suites(&cache.join("apt"), suites)?;
    let package = format!("linux-image-{release}-dbg");
    println!("lab: fetching {package}");
    let unpacked = cache.join("debug");
    apt.fetch(&package, &unpacked)?;
    let debug = unpacked.join("usr/lib/debug");
    let places = [
        format!("boot/vmlinux-{release}"),
        format!("lib/modules/{release}/vmlinux"),
        format!("usr/lib/modules/{release}/vmlinux"),
    ];
    let found = places.iter().map(|p| debug.join(p)).find(|p| p.is_file());
    fs::rename(found.with_context(|| format!("{package} has no vmlinux where it used to be"))?, to)?;
    fs::remove_dir_all(unpacked)?;
    Ok(())
}

/// The newest kernel below `root` that has both an image and modules.
fn find_in(root: &Path) -> Option<Kernel> {
    let folders = ["lib/modules", "usr/lib/modules"].map(|d| root.join(d));
    let mut found: Vec<Kernel> = folders
        .iter()
        .filter_map(|d| fs::read_dir(d).ok())
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let modules = entry.path();
            let release = entry.file_name().into_string().ok()?;
            let image = [root.join(format!("boot/vmlinuz-{release}")), modules.join("vmlinuz")]
                .into_iter()
                .find(|p| p.is_file())?;
            modules.join("kernel").is_dir().then_some(Kernel { release, image, modules, vmlinux: None })
        })
        .collect();
    found.sort_by_cached_key(|k| fs::metadata(&k.image).and_then(|m| m.modified()).ok());
    found.pop()
}

impl Kernel {
    /// The modules in `wanted` and all that they depend on, in the order to load them: file name and content.
    /// One that does not exist is built into the kernel.
    ///
    /// # Errors
    /// A module cannot be read or unpacked.
    pub fn load_order(&self, wanted: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let mut files = BTreeMap::new();
        index_modules(&self.modules.join("kernel"), &mut files)?;
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        for name in wanted {
            add_module(name, &files, &mut seen, &mut order)?;
        }
        Ok(order)
    }
}

fn index_modules(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            index_modules(&entry.path(), files)?;
        } else if let Some((name, _)) = entry.file_name().to_string_lossy().split_once(".ko") {
            files.insert(name.replace('-', "_"), entry.path());
        }
    }
    Ok(())
}

fn add_module(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    seen: &mut BTreeSet<String>,
    order: &mut Vec<(String, Vec<u8>)>,
) -> Result<()> {
    let name = name.replace('-', "_");
    let Some(path) = files.get(&name) else { return Ok(()) };
    if !seen.insert(name.clone()) {
        return Ok(());
    }
    let content = read_module(path)?;
    for dependency in depends(&content) {
        add_module(&dependency, files, seen, order)?;
    }
    order.push((format!("{name}.ko"), content));
    Ok(())
}

fn read_module(path: &Path) -> Result<Vec<u8>> {
    let unpacker = match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).with_context(|| format!("cannot read {}", path.display())),
    };
    let out = shell::output(Command::new(unpacker).arg("-dc").arg(path))?;
    if !out.status.success() {
        bail!("{unpacker} cannot unpack {}: {}", path.display(), String::from_utf8_lossy(&out.stderr));
    }
    Ok(out.stdout)
}

/// The `depends=` entry of a module's .modinfo section: names separated by commas, ended by a zero byte.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|w| w == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|&b| b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value).split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_each_kernel_with_a_suite() {
        let all: Vec<_> = list().collect();
        assert_eq!(all[0], ("5.10", vec!["bullseye"]));
        assert!(all.iter().all(|(_, suites)| !suites.is_empty()));
    }

    #[test]
    fn modules_come_after_what_they_depend_on_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = dir.path().join("kernel/drivers");
        fs::create_dir_all(&kernel).unwrap();
        let module = |name: &str, depends: &str| {
            fs::write(kernel.join(name), format!("ELF\0license=GPL\0depends={depends}\0")).unwrap()
        };
        module("virtio_blk.ko", "virtio,virtio_ring");
        module("virtio_pci.ko", "virtio_pci-modern-dev,virtio,virtio_ring");
        module("virtio-pci-modern-dev.ko", "");
        module("virtio.ko", "");
        module("virtio_ring.ko", "virtio");
        let kernel =
            Kernel { release: String::new(), image: PathBuf::new(), modules: dir.path().to_owned(), vmlinux: None };
        let order: Vec<String> =
            kernel.load_order(&["virtio_pci", "virtio_blk", "ext4"]).unwrap().into_iter().map(|(n, _)| n).collect();
        assert_eq!(
            order,
            ["virtio_pci_modern_dev.ko", "virtio.ko", "virtio_ring.ko", "virtio_pci.ko", "virtio_blk.ko"]
        );
    }
}
