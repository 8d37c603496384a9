//! What is written is read back.

use super::*;
use crate::schema::every_column;
use crate::source::Missing;
use crate::table::{Order, ParquetTable, TextFormat, TextTable};
use proptest::prelude::*;

/// Rows of every kind of value, among them ones that have to be quoted.
fn frames(rows: &[(usize, i32, Option<i64>, String)], names: &Names) -> Frames {
    let mut frames = Frames::default();
    frames.start(&[(7, 7 + rows.len() as u64)]);
    for (row, (class, node, index, slab)) in rows.iter().enumerate() {
        frames.class[row] = PageClass::ALL[*class];
        frames.node[row] = *node;
        frames.index[row] = index.unwrap_or(NULL_LONG);
        frames.mapping[row] = Mapping::ALL.get(*class).copied();
        frames.slab[row] = if slab.is_empty() { NameId::NULL } else { names.id(slab) };
    }
    (frames.page_size, frames.time, frames.source) = (4096, 1_796_059_852_000_001, Some(names.id("live")));
    frames
}

/// The cells of all rows, with their names.
fn cells(frames: &Frames, names: &Names) -> Vec<Vec<crate::Value>> {
    let columns = every_column().map(|id| frames.column(id));
    (0..frames.len()).map(|row| columns.iter().map(|column| column.at(row).value(names)).collect()).collect()
}

fn read_back(bytes: &[u8]) -> Vec<Vec<crate::Value>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let table = TableFile::open(file.path()).unwrap().expect("a table");
    assert_eq!((table.page_size(), &*table.provenance().source), (4096, "live"));
    let mut all = Vec::new();
    let taken = table.read(&every_column(), &mut |frames| {
        all.extend(cells(frames, table.names()));
        Ok(())
    });
    taken.unwrap();
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn every_format_holds_every_value(
        rows in proptest::collection::vec((0..11usize, 0..3i32, proptest::option::of(0..i64::MAX), "[a-c,\" \n\r]{0,4}"), 1..40)
    ) {
        let names = Names::default();
        let frames = frames(&rows, &names);
        let wanted = cells(&frames, &names);
        let table = ParquetTable::new(Order::Pfn).unwrap();
        let mut file = table.file(Vec::new()).unwrap();
        file.append(table.row_group(&frames, &names).unwrap()).unwrap();
        let parquet = file.finish(&Provenance::default(), Missing::default()).unwrap();
        prop_assert_eq!(&read_back(&parquet), &wanted);
        for format in [TextFormat::Csv, TextFormat::JsonLines] {
            let table = TextTable::new(format, Order::Pfn);
            let text = [table.header().into_bytes(), table.rows(&frames, &names)].concat();
            prop_assert_eq!(&read_back(&text), &wanted, "{:?}", format);
        }
    }
}

#[test]
fn what_is_no_table_is_told_from_one_that_is_damaged() {
    let open = |bytes: &[u8]| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let opened = TableFile::open(file.path());
        opened.and_then(|table| {
            let Some(table) = table else { return Ok(false) };
            table.read(&[ColumnId::Pfn, ColumnId::Class], &mut |_| Ok(())).map(|()| true)
        })
    };
    for (bytes, is_table) in [(&b"pfn,class\n1,free\n"[..], true), (b"", false), (b"\x7fELF", false), (b"a,b\n", false)]
    {
        assert_eq!(open(bytes).unwrap(), is_table, "{bytes:?}");
    }
    for (bytes, said) in [
        (&b"PAR1 and no more"[..], "no readable Parquet file"),
        (b"pfn\n1\n", "it has no column class"),
        (b"pfn,class\nx,free\n", "line 2: pfn is \"x\", which is no number"),
        (b"pfn,class\n1,blue\n", "\"blue\" is no class or mapping"),
        (b"{\"pfn\":1,\"class\":\"free\"}\n{\"pfn\":2}\n", "line 2: there is no class"),
        (b"{\"pfn\":1,\"class\":\"free\"}\n{\"pfn\n", "line 2: "),
    ] {
        let error = open(bytes).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_parquet_file_cut_or_changed_anywhere_is_an_error_or_a_table() {
    let names = Names::default();
    let rows: Vec<_> = (0..50).map(|n| (n % 11, 0, Some(n as i64), "a".repeat(n % 3))).collect();
    let frames = frames(&rows, &names);
    let table = ParquetTable::new(Order::Class).unwrap();
    let mut file = table.file(Vec::new()).unwrap();
    file.append(table.row_group(&frames, &names).unwrap()).unwrap();
    let whole = file.finish(&Provenance::default(), Missing::default()).unwrap();
    let path = tempfile::NamedTempFile::new().unwrap();
    let mut refused = 0;
    for at in (4..whole.len()).step_by(whole.len() / 150) {
        let mut changed = whole.clone();
        changed[at] ^= 0x5a;
        for bytes in [&whole[..at], &changed] {
            std::fs::write(path.path(), bytes).unwrap();
            let opened = TableFile::open(path.path()).and_then(|table| match table {
                Some(table) => table.read(&every_column(), &mut |_| Ok(())),
                None => Ok(()),
            });
            refused += usize::from(opened.is_err());
        }
    }
    assert!(refused > 150, "{refused}");
}
