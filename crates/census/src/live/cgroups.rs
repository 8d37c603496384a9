//! Inode number to path, of memory cgroups.

use crate::names::{NameId, Names};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most cgroups looked at: a machine with more has no use for their names.
const MOST: usize = 1 << 20;

/// The memory cgroups of a machine, by inode number.
#[derive(Clone, Debug, Default)]
pub struct Cgroups(HashMap<u64, NameId>);

impl Cgroups {
    /// The cgroups below `root`, the mount point of a hierarchy. Directories that vanish meanwhile are passed over.
    #[must_use]
    pub fn below(root: &Path, names: &Names) -> Self {
        let mut known = HashMap::new();
        let mut todo = vec![root.to_owned()];
        while let Some(dir) = todo.pop() {
            let Ok(meta) = fs::metadata(&dir) else { continue };
            let path = dir.strip_prefix(root).unwrap_or(&dir);
            known.insert(meta.ino(), names.id(&format!("/{}", path.display())));
            if known.len() >= MOST {
                break;
            }
            let Ok(entries) = fs::read_dir(&dir) else { continue };
            let dirs = entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
            todo.extend(dirs.map(|e| e.path()));
        }
        Self(known)
    }

    /// The path of the cgroup with this inode number.
    #[must_use]
    pub fn path(&self, inode: u64) -> NameId {
        self.0.get(&inode).copied().unwrap_or(NameId::NULL)
    }
}

/// Where the hierarchy of memory cgroups is mounted, by the text of /proc/self/mountinfo: version 1 with a memory controller, else
/// version 2.
#[must_use]
pub fn hierarchy(mountinfo: &str) -> Option<PathBuf> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?;
        let mut after = after.split(' ');
        let kind = after.next()?;
        let options = after.nth(1)?;
        Some((kind, options, point))
    });
    let (mut first, mut second) = (None, None);
    for (kind, options, point) in mounts {
        match kind {
            "cgroup" if options.split(',').any(|o| o == "memory") => first = first.or(Some(point)),
            "cgroup2" => second = second.or(Some(point)),
            _ => {}
        }
    }
    first.or(second).map(|point| PathBuf::from(point.replace("\\040", " ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_with_memory_goes_before_version_2() {
        let one = "30 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n31 24 0:27 / /sys/fs/cgroup/memory rw shared:9 - cgroup none rw,memory\n";
        assert_eq!(hierarchy(one), Some(PathBuf::from("/sys/fs/cgroup/memory")));
        let two =
            "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n31 24 0:27 / /x rw - cgroup none rw,cpu\n";
        assert_eq!(hierarchy(two), Some(PathBuf::from("/sys/fs/cgroup")));
        assert_eq!(hierarchy(""), None);
    }

    #[test]
    fn paths_are_those_below_the_mount_point() {
        let names = Names::default();
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("system.slice/cron.service")).expect("directories");
        let inode = fs::metadata(dir.path().join("system.slice/cron.service")).expect("there").ino();
        let all = Cgroups::below(dir.path(), &names);
        assert_eq!(names.text(all.path(inode)).as_deref(), Some("/system.slice/cron.service"));
        assert!(all.path(1).is_null());
    }
}
