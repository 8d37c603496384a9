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
    taken: Lock<Taken>,
}

#[derive(Default)]
struct Taken {
    /// The first block of a run, and the one behind its last. Runs do not touch.
    runs: BTreeMap<u64, u64>,
    /// Where the file would end, in bytes, once there was no room.
    short: Option<u64>,
}

impl Taken {
    fn blocks(&self) -> u64 {
        self.runs.iter().map(|(start, end)| end - start).sum()
    }

    /// Takes the blocks `start..end` that are not taken yet.
    fn unite(&mut self, mut start: u64, mut end: u64) {
        // Runs that touch this one, the last first.
        while let Some((&first, &behind)) = self.runs.range(..=end).next_back() {
            if behind < start {
                break;
            }
            self.runs.remove(&first);
            (start, end) = (start.min(first), end.max(behind));
        }
        self.runs.insert(start, end);
    }
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
        Self { device, free, old, block, taken: Lock::new("room", Taken::default()) }
    }

    /// Gives back what was taken.
    pub fn clear(&self) {
        *self.taken.hold() = Taken::default();
    }

    /// Takes the blocks of the bytes `from..to` that are not taken yet; returns how many of the bytes a write would bring into the file.
    /// Behind those that are taken nothing is skipped.
    pub fn take(&self, from: u64, to: u64) -> u64 {
        if from >= to {
            return 0;
        }
        let mut taken = self.taken.hold();
        let end = to.div_ceil(self.block);
        taken.unite(from / self.block, end);
        let lacking = taken.blocks().saturating_sub(self.blocks());
        if lacking > 0 && taken.short.is_none() {
            taken.short = Some(end.saturating_sub(lacking).saturating_mul(self.block));
        }
        taken.short.map_or(to, |short| short.min(to)).saturating_sub(from)
    }

    /// Takes the blocks of the bytes `from..to` where there is room for all; where there is not, nothing is written from then on. False then.
    pub fn reserve(&self, from: u64, to: u64) -> bool {
        let had = self.take(from, to) == to.saturating_sub(from);
        if !had {
            self.taken.hold().short = Some(0);
        }
        had
    }

    /// Notes that the first `bytes` of the file are needed, and not to be had.
    pub fn refuse(&self, bytes: u64) {
        self.take(0, bytes);
        self.taken.hold().short = Some(0);
    }

    /// Once there was no room, where the file would end, in bytes; 0 if it would end as it was then.
    #[must_use]
    pub fn short(&self) -> Option<u64> {
        self.taken.hold().short
    }

    /// Bytes that are left.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.blocks().saturating_sub(self.taken.hold().blocks()).saturating_mul(self.block)
    }

    /// Blocks that there are.
    const fn blocks(&self) -> u64 {
        self.free.saturating_add(self.old) / self.block
    }

    /// What was taken so far, and what there is.
    #[must_use]
    pub fn forecast(&self) -> Forecast {
        let blocks = self.taken.hold().blocks();
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
            prop_assert!(taken.runs.iter().zip(taken.runs.iter().skip(1)).all(|(a, b)| a.1 < b.0));
        }
    }

    #[test]
    fn what_has_no_room_is_needed_and_not_written() {
        let room = Room::new(1, 3 << 12, 1 << 12, 4096);
        assert_eq!((room.take(0, 100), room.short(), room.left()), (100, None, 3 << 12));
        assert!(room.reserve(4096, 8192));
        assert_eq!((room.take(8192, 20_000), room.short(), room.left()), (8192, Some(16384), 0));
        assert_eq!((room.take(20_000, 30_000), room.take(200, 5000)), (0, 4800), "what is taken stays");
        assert_eq!((room.forecast().needed, room.forecast().fits()), (8 * 4096, false));
        let whole = Room::new(1, 3 << 12, 0, 4096);
        assert_eq!((whole.take(0, 10), whole.reserve(4096, 5 * 4096), whole.take(0, 10)), (10, false, 0));
        assert_eq!(whole.forecast().needed, 5 * 4096);
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
