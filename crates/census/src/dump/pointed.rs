//! What struct pages point at, each looked up once a thread.

use super::Dump;
use crate::frames::{Mapping, NULL_INT, NULL_LONG};
use crate::names::NameId;
use coresift_kernel::frame::{Directories, FileOf, MappingKind};
use coresift_kernel::{KernelReader, PageClass, VirtAddr};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// Lookups of a kind that a thread remembers: 4 MiB of files.
const REMEMBERED: usize = 1 << 16;
/// Bytes of paths that a census keeps: a million files with paths of 256 bytes. No real machine has been met that needs as much; a dump
/// that was made to has no further paths, which ones depends on which thread came first.
const PATH_ROOM: u64 = 256 << 20;

/// Bytes of paths so far.
#[derive(Debug, Default)]
pub struct PathRoom(AtomicU64);

impl PathRoom {
    fn take(&self, bytes: usize) -> bool {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed) < PATH_ROOM
    }
}

/// The file of a page.
#[derive(Clone, Copy, Debug)]
pub struct FileNames {
    pub inode: i64,
    pub device: NameId,
    pub path: NameId,
    certain: bool,
}

impl FileNames {
    const NONE: Self = Self { inode: NULL_LONG, device: NameId::NULL, path: NameId::NULL, certain: false };
}

/// What is behind the pointers of a page: of a compound page's head for all of it.
#[derive(Clone, Copy, Debug)]
pub struct Behind {
    pub mapping: Option<Mapping>,
    /// Of the page that was asked about.
    pub index: i64,
    pub file: FileNames,
    pub slab: NameId,
    pub cgroup: i64,
    pub cgroup_path: NameId,
    /// Whether a pointer leads nowhere.
    pub lost: bool,
}

impl Behind {
    /// Nothing.
    pub const NOTHING: Self = Self {
        mapping: None,
        index: NULL_LONG,
        file: FileNames::NONE,
        slab: NameId::NULL,
        cgroup: NULL_LONG,
        cgroup_path: NameId::NULL,
        lost: false,
    };
}

/// Addresses spread over a table: their low bits say little.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        // The golden ratio in 64 bits (Knuth's multiplicative hashing), folded, for the table takes both ends.
        let product = u128::from(self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

/// What was found at addresses; `None` where what is there cannot be read.
struct Known<T> {
    all: HashMap<u64, Option<T>, BuildHasherDefault<AddressHasher>>,
    last: Option<(u64, Option<T>)>,
}

impl<T: Copy> Known<T> {
    fn new() -> Self {
        Self { all: HashMap::default(), last: None }
    }

    /// What is at `key`, found by `find` the first time.
    #[inline]
    fn get(&mut self, key: u64, find: impl FnOnce() -> Option<T>) -> Option<T> {
        // Neighbours are often of one owner.
        if let Some((known, value)) = self.last
            && known == key
        {
            return value;
        }
        if self.all.len() >= REMEMBERED {
            self.all.clear();
        }
        let value = *self.all.entry(key).or_insert_with(find);
        self.last = Some((key, value));
        value
    }
}

/// One thread's way behind the pointers.
pub struct Pointed<'d> {
    dump: &'d Dump,
    reader: KernelReader<'d>,
    directories: Directories,
    files: Known<FileNames>,
    slabs: Known<NameId>,
    cgroups: Known<(i64, NameId)>,
}

impl<'d> Pointed<'d> {
    pub fn new(dump: &'d Dump) -> Self {
        Self {
            dump,
            reader: dump.kernel.reader(dump.input.memory()),
            directories: Directories::default(),
            files: Known::new(),
            slabs: Known::new(),
            cgroups: Known::new(),
        }
    }

    /// What is behind the `struct page` `page`, no tail, of a page frame of `class`.
    #[inline]
    pub fn behind(&mut self, page: &[u8], class: PageClass) -> Behind {
        let mut behind = Behind::NOTHING;
        let words = &self.dump.layout.words;
        if class == PageClass::Slab {
            if let Some(cache) = words.slab_cache(page) {
                self.slab(cache, &mut behind);
            }
        } else if !matches!(class, PageClass::Free | PageClass::Offline | PageClass::Unaccepted) {
            let raw = self.dump.kernel.rules.raw(page);
            // A page type says that the page has no mapping, and its words are for something else; but for hugetlb, which has both.
            let typed = raw.mapcount.is_some_and(|count| count < -1) && class != PageClass::HugeTlb;
            if !typed && raw.mapping != 0 {
                self.mapping(raw.mapping, class, &mut behind);
                if behind.mapping.is_some_and(|m| m != Mapping::Movable) {
                    behind.index = words.index(page).map_or(NULL_LONG, u64::cast_signed);
                }
            }
        } else {
            return behind;
        }
        if let Some(word) = words.memcg(page)
            && word != 0
        {
            self.cgroup(word, &mut behind);
        }
        behind
    }

    fn mapping(&mut self, mapping: u64, class: PageClass, behind: &mut Behind) {
        let kind = MappingKind::of(mapping);
        let address = match kind {
            None => return,
            Some(MappingKind::Anon) => {
                behind.mapping = Some(Mapping::Anon);
                return;
            }
            Some(MappingKind::Ksm) => {
                behind.mapping = Some(Mapping::Ksm);
                return;
            }
            Some(MappingKind::Movable) => {
                behind.mapping = Some(Mapping::Movable);
                return;
            }
            Some(MappingKind::File(address)) => address,
        };
        // The kernel's own pages have other things in that word: only what leads to an inode that owns the address space counts.
        let certain = class != PageClass::Kernel && class != PageClass::HwPoison;
        if certain {
            behind.mapping = Some(Mapping::File);
        }
        if self.dump.layout.files.is_err() {
            return;
        }
        let Self { dump, reader, directories, files, .. } = self;
        match files.get(address, || find_file(dump, reader, directories, address)) {
            Some(file) if certain || file.certain => {
                behind.mapping = Some(Mapping::File);
                behind.file = file;
            }
            None if certain => behind.lost = true,
            _ => {}
        }
    }

    fn slab(&mut self, cache: u64, behind: &mut Behind) {
        let Ok(slabs) = &self.dump.layout.slabs else { return };
        let (dump, reader) = (self.dump, &mut self.reader);
        let name = self.slabs.get(cache, || Some(dump.names.id(&slabs.name(reader, cache).ok()?)));
        behind.slab = name.unwrap_or(NameId::NULL);
        behind.lost |= name.is_none();
    }

    fn cgroup(&mut self, word: u64, behind: &mut Behind) {
        let Ok(cgroups) = &self.dump.layout.cgroups else { return };
        let (dump, reader) = (self.dump, &mut self.reader);
        let find = || {
            let cgroup = cgroups.cgroup(reader, word).ok()?;
            Some(cgroup.map_or((NULL_LONG, NameId::NULL), |c| (c.inode.cast_signed(), dump.names.id(&c.path))))
        };
        match self.cgroups.get(word, find) {
            Some((inode, path)) => (behind.cgroup, behind.cgroup_path) = (inode, path),
            None => behind.lost = true,
        }
    }
}

#[cold]
fn find_file(
    dump: &Dump,
    reader: &mut KernelReader<'_>,
    directories: &mut Directories,
    mapping: u64,
) -> Option<FileNames> {
    let files = dump.layout.files.as_ref().ok()?;
    let Some(FileOf { inode, device: (major, minor), path, certain }) =
        files.file(reader, directories, VirtAddr(mapping)).ok()?
    else {
        return Some(FileNames::NONE);
    };
    let path = path.filter(|path| dump.paths.take(path.len()));
    Some(FileNames {
        inode: inode.cast_signed(),
        device: dump.names.id(&format!("{major}:{minor}")),
        path: path.map_or(NameId::NULL, |path| dump.names.id(&path)),
        certain,
    })
}

/// The mapping count that the word `_mapcount` tells: `None` for the type of a page that nobody can map.
#[inline]
pub fn mapcount(word: Option<i32>, class: PageClass) -> i32 {
    match word {
        Some(count) if count >= -1 && class != PageClass::Slab && class != PageClass::Free => count.wrapping_add(1),
        _ => NULL_INT,
    }
}
