//! The columns of the table: every reader and writer goes by these rows.

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnId {
    /// Page frame number.
    Pfn,
    /// Physical address of the frame's first byte.
    Address,
    /// `page.flags` as it is.
    RawFlags,
    /// Names of the flags that are set.
    Flags,
    /// What the frame belongs to.
    Class,
    /// References.
    RefCount,
    /// Mappings by page tables.
    MapCount,
    /// Where in its file or mapping the page belongs.
    Index,
    /// What `page.mapping` is.
    Mapping,
    /// Inode of the file.
    Inode,
    /// Device of the file.
    Device,
    /// Path of the file.
    Path,
    /// Slab cache.
    Slab,
    /// Order of the compound page or free block.
    Order,
    /// First page frame of the compound page or free block.
    Head,
    /// NUMA node.
    Node,
    /// Zone.
    Zone,
    /// Memory section.
    Section,
    /// Inode of the cgroup.
    Cgroup,
    /// Path of the cgroup.
    CgroupPath,
    /// When the frame was looked at.
    Time,
    /// What was looked at.
    Source,
    /// The machine's name.
    Host,
    /// The kernel's release.
    Kernel,
}

/// How the values of a column are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 64-bit signed: Spark reads unsigned ones as decimals.
    Long,
    /// 32-bit signed, of which this many bits are needed.
    Int(u8),
    /// One of few texts.
    Name,
    /// Microseconds since 1970, UTC.
    Instant,
}

/// How a column is best stored in Parquet: measured on synthetic censuses of 200 million frames, in bytes a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// `DELTA_BINARY_PACKED`: pfn 0.005 against 1.02 as a dictionary, index 0.53 against 1.06.
    Delta,
    /// `RLE_DICTIONARY`.
    Dictionary,
}

/// A column of the table.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Which.
    pub id: ColumnId,
    /// Its name, in every format.
    pub name: &'static str,
    /// How its values are held.
    pub kind: Kind,
    /// Whether it can be null.
    pub nullable: bool,
    /// How it is stored in Parquet.
    pub encoding: Encoding,
    /// What it says, for docs/page-table.md.
    pub about: &'static str,
}

const fn row(
    id: ColumnId,
    name: &'static str,
    kind: Kind,
    nullable: bool,
    encoding: Encoding,
    about: &'static str,
) -> Definition {
    Definition { id, name, kind, nullable, encoding, about }
}

/// The columns, in the order of the table; `ColumnId as usize` is the place.
pub const COLUMNS: [Definition; 24] = {
    use ColumnId as C;
    use Encoding::{Delta, Dictionary};
    use Kind::{Instant, Int, Long, Name};
    [
        row(C::Pfn, "pfn", Long, false, Delta, "page frame number"),
        row(C::Address, "address", Long, false, Delta, "physical address of the frame's first byte"),
        row(
            C::RawFlags,
            "raw_flags",
            Long,
            true,
            Dictionary,
            "`page.flags`, with section, node and zone in the upper bits",
        ),
        row(C::Flags, "flags", Name, true, Dictionary, "names of the flags set, lowest bit first, joined by `|`"),
        row(C::Class, "class", Name, false, Dictionary, "what the frame belongs to: the classes of `coresift dump`"),
        row(C::RefCount, "refcount", Int(32), true, Dictionary, "references to the page (`page._refcount`)"),
        row(C::MapCount, "mapcount", Int(32), true, Dictionary, "page table entries that map the page"),
        row(C::Index, "index", Long, true, Delta, "place in the file or mapping, in pages (`page.index`)"),
        row(C::Mapping, "mapping", Name, true, Dictionary, "what `page.mapping` is: anon, file, ksm, movable or none"),
        row(C::Inode, "inode", Long, true, Dictionary, "inode number of the file"),
        row(C::Device, "device", Name, true, Dictionary, "device of the file, major:minor"),
        row(C::Path, "path", Name, true, Dictionary, "path of the file, from the root of its file system"),
        row(C::Slab, "slab", Name, true, Dictionary, "slab cache"),
        row(C::Order, "order", Int(8), true, Dictionary, "log2 of the frames of the compound page or free block"),
        row(C::Head, "head", Long, true, Delta, "first page frame of the compound page or free block"),
        row(C::Node, "node", Int(16), true, Dictionary, "NUMA node"),
        row(C::Zone, "zone", Name, true, Dictionary, "zone: DMA, DMA32, Normal, Movable ..."),
        row(C::Section, "section", Int(32), true, Dictionary, "number of the memory section"),
        row(C::Cgroup, "cgroup", Long, true, Dictionary, "inode number of the memory cgroup the page is charged to"),
        row(C::CgroupPath, "cgroup_path", Name, true, Dictionary, "path of that cgroup in its hierarchy"),
        row(
            C::Time,
            "time",
            Instant,
            false,
            Dictionary,
            "when the frame was looked at; of a dump, when the machine crashed",
        ),
        row(C::Source, "source", Name, false, Dictionary, "what was looked at: `live`, or the name of the dump"),
        row(C::Host, "host", Name, true, Dictionary, "name of the machine"),
        row(C::Kernel, "kernel", Name, true, Dictionary, "release of its kernel"),
    ]
};

/// All columns, in the order of the table.
#[must_use]
pub fn every_column() -> [ColumnId; COLUMNS.len()] {
    COLUMNS.map(|definition| definition.id)
}

impl ColumnId {
    /// Its definition.
    #[must_use]
    pub fn definition(self) -> Option<&'static Definition> {
        COLUMNS.get(self as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_stands_at_its_number() {
        for (place, column) in COLUMNS.iter().enumerate() {
            assert_eq!(column.id as usize, place, "{}", column.name);
        }
    }

    #[test]
    fn the_document_describes_each_column_in_order() {
        let row = |column: &Definition| {
            let kind = match column.kind {
                Kind::Long => "INT64".to_owned(),
                Kind::Int(32) => "INT32".to_owned(),
                Kind::Int(bits) => format!("INT32 (INT {bits})"),
                Kind::Name => "STRING".to_owned(),
                Kind::Instant => "TIMESTAMP (µs, UTC)".to_owned(),
            };
            let null = if column.nullable { "yes" } else { "no" };
            format!("| `{}` | {kind} | {null} | {} |\n", column.name, column.about)
        };
        let wanted: String = COLUMNS.iter().map(row).collect();
        let document = include_str!("../../../docs/page-table.md");
        assert!(document.contains(&wanted), "docs/page-table.md should have these rows:\n{wanted}");
        for column in COLUMNS {
            let rows = document.lines().filter(|line| line.starts_with(&format!("| `{}` |", column.name))).count();
            assert_eq!(rows, 2, "{} is described, and where it comes from", column.name);
        }
    }
}
