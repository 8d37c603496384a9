//! Rows of the table, a vector a column.

use crate::names::NameId;
use crate::schema::ColumnId;
use crate::source::Source;
use coresift_kernel::PageClass;
use std::iter::zip;

/// A 64-bit value that is not there.
pub const NULL_LONG: i64 = i64::MIN;
/// A 32-bit value that is not there.
pub const NULL_INT: i32 = i32::MIN;

/// What `page.mapping` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mapping {
    /// No mapping.
    None,
    /// Anonymous memory.
    Anon,
    /// A file's.
    File,
    /// Anonymous memory that KSM merged.
    Ksm,
    /// A driver's movable page.
    Movable,
}

impl Mapping {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::None, Self::Anon, Self::File, Self::Ksm, Self::Movable];

    /// The name in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Anon => "anon",
            Self::File => "file",
            Self::Ksm => "ksm",
            Self::Movable => "movable",
        }
    }
}

/// A column's values.
#[derive(Clone, Copy, Debug)]
pub enum Column<'a> {
    /// 64-bit, [`NULL_LONG`] where there is none.
    Long(&'a [i64]),
    /// 32-bit, [`NULL_INT`] where there is none.
    Int(&'a [i32]),
    /// Names.
    Name(&'a [NameId]),
    /// Class names.
    Class(&'a [PageClass]),
    /// Mapping names.
    Mapping(&'a [Option<Mapping>]),
    /// The same number in every row.
    SameLong(i64),
    /// The same name in every row.
    SameName(NameId),
    /// Physical addresses: that many bytes times the page frame number.
    Times(&'a [i64], i64),
}

/// One row's value in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// There is none.
    Null,
    /// A number.
    Number(i64),
    /// A name.
    Name(NameId),
    /// A name that this program knows.
    Fixed(&'static str),
}

impl Column<'_> {
    /// The value in row `row`.
    #[must_use]
    pub fn at(&self, row: usize) -> Cell {
        let long = |value: i64| if value == NULL_LONG { Cell::Null } else { Cell::Number(value) };
        let int = |value: i32| if value == NULL_INT { Cell::Null } else { Cell::Number(value.into()) };
        let name = |id: NameId| if id.is_null() { Cell::Null } else { Cell::Name(id) };
        match *self {
            Column::Long(all) => all.get(row).copied().map_or(Cell::Null, long),
            Column::Int(all) => all.get(row).copied().map_or(Cell::Null, int),
            Column::Name(all) => all.get(row).copied().map_or(Cell::Null, name),
            Column::Class(all) => all.get(row).map_or(Cell::Null, |class| Cell::Fixed(class.name())),
            Column::Mapping(all) => all.get(row).copied().flatten().map_or(Cell::Null, |kind| Cell::Fixed(kind.name())),
            Column::SameLong(value) => long(value),
            Column::SameName(id) => name(id),
            Column::Times(all, factor) => all.get(row).map_or(Cell::Null, |v| Cell::Number(v.saturating_mul(factor))),
        }
    }

    /// Sets in `changes`, at the place of each row that the next one differs from, that there is a change.
    pub fn mark_changes(&self, changes: &mut [bool]) {
        fn mark<T: PartialEq>(all: &[T], changes: &mut [bool]) {
            for (change, (a, b)) in zip(changes, zip(all, all.iter().skip(1))) {
                *change |= a != b;
            }
        }
        match self {
            Column::Long(all) | Column::Times(all, _) => mark(all, changes),
            Column::Int(all) => mark(all, changes),
            Column::Name(all) => mark(all, changes),
            Column::Class(all) => mark(all, changes),
            Column::Mapping(all) => mark(all, changes),
            Column::SameLong(_) | Column::SameName(_) => {}
        }
    }
}

/// A window of rows. All vectors are of one length, that of [`Self::pfn`]; a column that the source does not give is all null.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the fields are the columns of the schema, described there")]
pub struct Frames {
    pub pfn: Vec<i64>,
    pub raw_flags: Vec<i64>,
    pub flags: Vec<NameId>,
    pub class: Vec<PageClass>,
    pub refcount: Vec<i32>,
    pub mapcount: Vec<i32>,
    pub index: Vec<i64>,
    pub mapping: Vec<Option<Mapping>>,
    pub inode: Vec<i64>,
    pub device: Vec<NameId>,
    pub path: Vec<NameId>,
    pub slab: Vec<NameId>,
    pub order: Vec<i32>,
    pub head: Vec<i64>,
    pub node: Vec<i32>,
    pub zone: Vec<NameId>,
    pub section: Vec<i32>,
    pub cgroup: Vec<i64>,
    pub cgroup_path: Vec<NameId>,
    /// Microseconds since 1970 at which the window was read.
    pub time: i64,
    /// The source's name.
    pub source: Option<NameId>,
    /// The machine's name.
    pub host: Option<NameId>,
    /// The kernel's release.
    pub kernel: Option<NameId>,
    /// Bytes of a page.
    pub page_size: i64,
}

impl Frames {
    /// Rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pfn.len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pfn.is_empty()
    }

    /// Makes it the rows of the page frames of `runs` (each from one to before another), all columns null and the class the kernel's.
    pub fn start(&mut self, runs: &[(u64, u64)]) {
        self.pfn.clear();
        for &(start, end) in runs {
            self.pfn.extend((start..end).map(u64::cast_signed));
        }
        let n = self.pfn.len();
        for longs in [&mut self.raw_flags, &mut self.index, &mut self.inode, &mut self.head, &mut self.cgroup] {
            refill(longs, n, NULL_LONG);
        }
        for ints in [&mut self.refcount, &mut self.mapcount, &mut self.order, &mut self.node, &mut self.section] {
            refill(ints, n, NULL_INT);
        }
        for names in
            [&mut self.flags, &mut self.device, &mut self.path, &mut self.slab, &mut self.zone, &mut self.cgroup_path]
        {
            refill(names, n, NameId::NULL);
        }
        refill(&mut self.class, n, PageClass::Kernel);
        refill(&mut self.mapping, n, None);
    }

    /// Sets what is the same in every row of `source`. The time is not: a reader sets it when it reads.
    pub(crate) fn come_from(&mut self, source: &dyn Source) {
        let (names, from) = (source.names(), source.provenance());
        let name = |text: &str| if text.is_empty() { None } else { Some(names.id(text)) };
        (self.source, self.host, self.kernel) = (name(&from.source), name(&from.host), name(&from.kernel));
        self.page_size = source.page_size().cast_signed();
        self.time = from.time;
    }

    /// The values of a column.
    #[must_use]
    pub fn column(&self, id: ColumnId) -> Column<'_> {
        match id {
            ColumnId::Pfn => Column::Long(&self.pfn),
            ColumnId::Address => Column::Times(&self.pfn, self.page_size),
            ColumnId::RawFlags => Column::Long(&self.raw_flags),
            ColumnId::Flags => Column::Name(&self.flags),
            ColumnId::Class => Column::Class(&self.class),
            ColumnId::RefCount => Column::Int(&self.refcount),
            ColumnId::MapCount => Column::Int(&self.mapcount),
            ColumnId::Index => Column::Long(&self.index),
            ColumnId::Mapping => Column::Mapping(&self.mapping),
            ColumnId::Inode => Column::Long(&self.inode),
            ColumnId::Device => Column::Name(&self.device),
            ColumnId::Path => Column::Name(&self.path),
            ColumnId::Slab => Column::Name(&self.slab),
            ColumnId::Order => Column::Int(&self.order),
            ColumnId::Head => Column::Long(&self.head),
            ColumnId::Node => Column::Int(&self.node),
            ColumnId::Zone => Column::Name(&self.zone),
            ColumnId::Section => Column::Int(&self.section),
            ColumnId::Cgroup => Column::Long(&self.cgroup),
            ColumnId::CgroupPath => Column::Name(&self.cgroup_path),
            ColumnId::Time => Column::SameLong(self.time),
            ColumnId::Source => Column::SameName(self.source.unwrap_or(NameId::NULL)),
            ColumnId::Host => Column::SameName(self.host.unwrap_or(NameId::NULL)),
            ColumnId::Kernel => Column::SameName(self.kernel.unwrap_or(NameId::NULL)),
        }
    }
}

/// A column's values, to be set.
pub(crate) enum ColumnMut<'a> {
    Long(&'a mut [i64]),
    Int(&'a mut [i32]),
    Name(&'a mut [NameId]),
    Class(&'a mut [PageClass]),
    Mapping(&'a mut [Option<Mapping>]),
    /// The same number in every row.
    SameLong(&'a mut i64),
    /// The same name in every row.
    SameName(&'a mut Option<NameId>),
    /// What others say already.
    Implied,
}

impl Frames {
    /// The values of a column, to be set.
    pub(crate) fn column_mut(&mut self, id: ColumnId) -> ColumnMut<'_> {
        match id {
            ColumnId::Pfn => ColumnMut::Long(&mut self.pfn),
            ColumnId::Address => ColumnMut::Implied,
            ColumnId::RawFlags => ColumnMut::Long(&mut self.raw_flags),
            ColumnId::Flags => ColumnMut::Name(&mut self.flags),
            ColumnId::Class => ColumnMut::Class(&mut self.class),
            ColumnId::RefCount => ColumnMut::Int(&mut self.refcount),
            ColumnId::MapCount => ColumnMut::Int(&mut self.mapcount),
            ColumnId::Index => ColumnMut::Long(&mut self.index),
            ColumnId::Mapping => ColumnMut::Mapping(&mut self.mapping),
            ColumnId::Inode => ColumnMut::Long(&mut self.inode),
            ColumnId::Device => ColumnMut::Name(&mut self.device),
            ColumnId::Path => ColumnMut::Name(&mut self.path),
            ColumnId::Slab => ColumnMut::Name(&mut self.slab),
            ColumnId::Order => ColumnMut::Int(&mut self.order),
            ColumnId::Head => ColumnMut::Long(&mut self.head),
            ColumnId::Node => ColumnMut::Int(&mut self.node),
            ColumnId::Zone => ColumnMut::Name(&mut self.zone),
            ColumnId::Section => ColumnMut::Int(&mut self.section),
            ColumnId::Cgroup => ColumnMut::Long(&mut self.cgroup),
            ColumnId::CgroupPath => ColumnMut::Name(&mut self.cgroup_path),
            ColumnId::Time => ColumnMut::SameLong(&mut self.time),
            ColumnId::Source => ColumnMut::SameName(&mut self.source),
            ColumnId::Host => ColumnMut::SameName(&mut self.host),
            ColumnId::Kernel => ColumnMut::SameName(&mut self.kernel),
        }
    }
}

fn refill<T: Copy>(column: &mut Vec<T>, n: usize, null: T) {
    column.clear();
    column.resize(n, null);
}
