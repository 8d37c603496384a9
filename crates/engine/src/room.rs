//! Whether a dump would fit: the blocks that a dry run's writes would take, beside those that are free.

use crate::lock::Lock;
use crate::target::directory;
use rustix::fd::AsFd;
use rustix::fs::{FileType, StatVfs};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;

/// The room of one target, and what is taken of it.
pub struct Room {
    /// Number of the file system or device.
    device: u64,
    free: u64,
    /// Bytes of an existing file, which is emptied first.
    old: u64,
    /// Bytes that are taken together.
    block: u64,
    /// Taken blocks: the first of a run, and the one behind its last. Runs do not touch.
    taken: Lock<BTreeMap<u64, u64>>,
}

/// What a dump needs, and what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Number of the file system or device.
    pub device: u64,
    /// Bytes of blocks that would be written. Less than the file's size where that has holes.
    pub needed: u64,
    /// Free bytes of the target's file system, or the size of a block device.
    pub free: u64,
    /// Bytes of the file that would be overwritten.
    pub old: u64,
}

impl Forecast {
    /// Bytes it may take.
    #[must_use]
    pub const fn room(self) -> u64 {
        self.free.saturating_add(self.old)
    }

    /// Whether the dump would fit. (A file system needs a little more for its own tables, which is not counted.)
    #[must_use]
    pub const fn fits(self) -> bool {
        self.needed <= self.room()
    }

    /// Those of several files, put together where they go to the same file system.
    pub fn by_device(all: impl Iterator<Item = Self>) -> impl Iterator<Item = Self> {
        let mut devices: BTreeMap<u64, Self> = BTreeMap::new();
        for one in all {
            let sum = devices.entry(one.device).or_insert(Self { needed: 0, old: 0, ..one });
            sum.needed = sum.needed.saturating_add(one.needed);
            sum.old = sum.old.saturating_add(one.old);
        }
        devices.into_values()
    }
}

impl Room {
    /// The room of a target at `path`, as far as the system tells.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let existing = rustix::fs::stat(path).ok();
        let kind = existing.as_ref().map(|stat| FileType::from_raw_mode(stat.st_mode));
        match kind {
            Some(FileType::BlockDevice) => {
                let number = existing.map_or(0, |stat| stat.st_rdev);
                let end = File::open(path).and_then(|mut device| device.seek(SeekFrom::End(0)));
                return end.ok().map(|size| Self::new(number, size, 0, 1));
            }
            Some(FileType::RegularFile) | None => {}
            Some(_) => return None,
        }
        let place = if existing.is_some() { path } else { directory(path) };
        let (space, device) = (rustix::fs::statvfs(place).ok()?, rustix::fs::stat(place).ok()?.st_dev);
        // st_blocks counts 512 bytes (stat(2)).
        let old = existing.map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
        Some(Self::new(device, free(&space)?, old, space.f_frsize.max(1)))
    }

    /// The room behind what is in an open file, as far as the system tells.
    #[must_use]
    pub fn behind(file: impl AsFd) -> Option<Self> {
        let (space, device) = (rustix::fs::fstatvfs(&file).ok()?, rustix::fs::fstat(&file).ok()?.st_dev);
        Some(Self::new(device, free(&space)?, 0, space.f_frsize.max(1)))
    }

    fn new(device: u64, free: u64, old: u64, block: u64) -> Self {
        Self { device, free, old, block, taken: Lock::new("room", BTreeMap::new()) }
    }

    /// Gives back what was taken.
    pub fn clear(&self) {
        self.taken.hold().clear();
    }

    /// Takes the blocks of the bytes `from..to` that are not taken yet.
    pub fn take(&self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let mut taken = self.taken.hold();
        let (mut start, mut end) = (from / self.block, to.div_ceil(self.block));
        // Runs that touch this one, the last first.
        while let Some((&first, &behind)) = taken.range(..=end).next_back() {
            if behind < start {
                break;
            }
            taken.remove(&first);
            (start, end) = (start.min(first), end.max(behind));
        }
        taken.insert(start, end);
    }

    /// What was taken so far, and what there is.
    #[must_use]
    pub fn forecast(&self) -> Forecast {
        let blocks: u64 = self.taken.hold().iter().map(|(start, end)| end - start).sum();
        let Self { device, free, old, block, .. } = *self;
        Forecast { device, needed: blocks.saturating_mul(block), free, old }
    }
}

/// Free bytes of a file system; `None` where it has no size of its own (ramfs, a tmpfs without one: of an initramfs, for instance).
/// Root may use what ext4 and others hold back for it.
pub fn free(space: &StatVfs) -> Option<u64> {
    let blocks = if rustix::process::geteuid().is_root() { space.f_bfree } else { space.f_bavail };
    if space.f_blocks == 0 { None } else { blocks.checked_mul(space.f_frsize) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn each_block_counts_once(writes in proptest::collection::vec((0u64..4000, 0u64..300), 0..60), block in 1u64..100) {
            let room = Room::new(7, 90 * block, 10 * block, block);
            let mut blocks = BTreeSet::new();
            for (from, len) in writes {
                room.take(from, from + len);
                if len > 0 {
                    blocks.extend(from / block..(from + len).div_ceil(block));
                }
                let needed = blocks.len() as u64 * block;
                prop_assert_eq!((room.forecast().needed, room.forecast().room()), (needed, 100 * block));
                prop_assert_eq!(room.forecast().fits(), blocks.len() <= 100);
            }
            let taken = room.taken.hold();
            prop_assert!(taken.iter().zip(taken.iter().skip(1)).all(|(a, b)| a.1 < b.0));
        }
    }

    #[test]
    fn files_of_one_file_system_share_its_room() {
        let one = |device, needed, old| Forecast { device, needed, free: 100, old };
        let all: Vec<Forecast> =
            Forecast::by_device([one(1, 60, 0), one(2, 90, 5), one(1, 60, 10)].into_iter()).collect();
        assert_eq!(all, [one(1, 120, 10), one(2, 90, 5)]);
        assert!(!all[0].fits() && all[1].fits());
    }

    #[test]
    fn the_room_of_a_new_file_is_that_of_its_directory_and_of_an_old_one_what_it_takes_besides() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("out");
        let before = Room::of(&path).unwrap();
        assert!(before.free > 0 && before.block >= 512);
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        assert!(Room::of(&path).unwrap().old >= 1 << 20);
        assert!(Room::of(Path::new("out")).is_some(), "the current directory");
        assert!(Room::of(&place.path().join("nowhere/out")).is_none());
        assert!(Room::of(Path::new("/dev/null")).is_none(), "it takes everything");
    }
}
