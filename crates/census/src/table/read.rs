//! Tables that were written before, ours or what other programs made of them: Parquet, CSV and JSON lines, told apart by their first
//! bytes.
//!
//! ```text
//! columns by their names ─ cells, a batch of rows at a time ─ fill ─> Frames
//! ```

#[cfg(feature = "parquet")]
mod parquet;
mod text;

use crate::error::{CensusError, Result};
use crate::frames::{Cell, ColumnMut, Frames, Mapping, NULL_INT, NULL_LONG};
use crate::names::{NameId, Names};
use crate::schema::{ColumnId, Definition};
use crate::source::Provenance;
use coresift_kernel::PageClass;
use std::fs::File;
use std::io::Read;
use std::iter::zip;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows of a batch.
const BATCH: usize = 32 << 10;
/// A table whose header is not among so many bytes is none.
const PROBE: u64 = 4096;
/// What is wanted of the first row, to tell where the table comes from.
const ORIGIN: [ColumnId; 6] =
    [ColumnId::Pfn, ColumnId::Address, ColumnId::Source, ColumnId::Host, ColumnId::Kernel, ColumnId::Time];

/// How a table is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    #[cfg(feature = "parquet")]
    Parquet,
    Csv,
    JsonLines,
}

/// A table in a file.
pub struct TableFile {
    path: PathBuf,
    stored: Stored,
    names: Names,
    provenance: Provenance,
    page_size: u64,
}

impl TableFile {
    /// The table in the file `path`; `None` where the file is something else.
    ///
    /// # Errors
    /// The file cannot be read, or its first row is not one of a table of page frames.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let mut start = Vec::new();
        let file = File::open(path).map_err(|error| CensusError::reading(path, error))?;
        file.take(PROBE).read_to_end(&mut start).map_err(|error| CensusError::reading(path, error))?;
        let Some(stored) = stored_as(&start) else { return Ok(None) };
        let names = Names::default();
        let mut table =
            Self { path: path.to_owned(), stored, names, provenance: Provenance::default(), page_size: 4096 };
        table.look_at_the_origin()?;
        Ok(Some(table))
    }

    /// The names that its rows speak of.
    #[must_use]
    pub const fn names(&self) -> &Names {
        &self.names
    }

    /// Where its first row comes from.
    #[must_use]
    pub const fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// Bytes of a page: 4096 where no row tells.
    #[must_use]
    pub const fn page_size(&self) -> u64 {
        self.page_size
    }

    /// Reads `columns` of all rows, in the file's order, a batch at a time. A column that the file does not have is null.
    ///
    /// # Errors
    /// The file is damaged or no table of page frames; those of `take`.
    pub fn read(&self, columns: &[ColumnId], take: &mut dyn FnMut(&mut Frames) -> Result<()>) -> Result<()> {
        match self.stored {
            #[cfg(feature = "parquet")]
            Stored::Parquet => self.read_parquet(columns, take),
            Stored::Csv => self.read_csv(columns, take),
            Stored::JsonLines => self.read_json_lines(columns, take),
        }
    }

    /// Reads provenance and page size from the first batch.
    fn look_at_the_origin(&mut self) -> Result<()> {
        let mut provenance = Provenance::default();
        let mut page_size = None;
        let seen = self.read(&ORIGIN, &mut |frames| {
            let text = |id: Option<NameId>| id.and_then(|id| self.names.text(id)).unwrap_or_default().to_string();
            provenance = Provenance {
                source: text(frames.source),
                host: text(frames.host),
                kernel: text(frames.kernel),
                time: frames.time,
                unknown: Vec::new(),
            };
            page_size = u64::try_from(frames.page_size).ok().filter(|size| size.is_power_of_two());
            Err(CensusError::Stopped)
        });
        match seen {
            Ok(()) | Err(CensusError::Stopped) => {}
            Err(error) => return Err(error),
        }
        self.provenance = provenance;
        self.page_size = page_size.unwrap_or(self.page_size);
        Ok(())
    }

    fn wrong(&self, what: impl Into<String>) -> CensusError {
        CensusError::Table { path: self.path.clone(), what: what.into() }
    }

    /// Sets a column of `frames` to `cells`.
    fn fill(&self, frames: &mut Frames, id: ColumnId, cells: &[Cell]) -> Result<()> {
        if id == ColumnId::Address {
            set_page_size(frames, cells);
        }
        let number = |cell: &Cell| if let Cell::Number(number) = cell { Some(*number) } else { None };
        let name = |cell: &Cell| if let Cell::Name(id) = cell { Some(*id) } else { None };
        match frames.column_mut(id) {
            ColumnMut::Long(all) => zip(all, cells).for_each(|(slot, cell)| *slot = number(cell).unwrap_or(NULL_LONG)),
            ColumnMut::Int(all) => {
                let int = |cell| number(cell).and_then(|number| i32::try_from(number).ok()).unwrap_or(NULL_INT);
                zip(all, cells).for_each(|(slot, cell)| *slot = int(cell));
            }
            ColumnMut::Name(all) => zip(all, cells).for_each(|(slot, cell)| *slot = name(cell).unwrap_or(NameId::NULL)),
            ColumnMut::Class(all) => {
                self.known(all, cells, |text| PageClass::ALL.into_iter().find(|c| c.name() == text))?
            }
            ColumnMut::Mapping(all) => {
                let kind = |text: &str| Mapping::ALL.into_iter().find(|m| m.name() == text).map(Some);
                self.known(all, cells, kind)?;
            }
            ColumnMut::SameLong(value) => *value = cells.first().and_then(number).unwrap_or_default(),
            ColumnMut::SameName(value) => *value = cells.first().and_then(name),
            ColumnMut::Implied => {}
        }
        Ok(())
    }

    /// Sets what has a name that this program knows.
    fn known<T: Copy>(&self, all: &mut [T], cells: &[Cell], of: impl Fn(&str) -> Option<T>) -> Result<()> {
        let mut last: Option<(Cell, T)> = None;
        for (slot, cell) in zip(all, cells) {
            if *cell == Cell::Null {
                continue;
            }
            let value = match last {
                Some((known, value)) if known == *cell => value,
                _ => {
                    let text: Arc<str> = match cell {
                        Cell::Name(id) => self.names.text(*id).unwrap_or_default(),
                        _ => "a number".into(),
                    };
                    of(&text).ok_or_else(|| self.wrong(format!("{text:?} is no class or mapping of page frames")))?
                }
            };
            last = Some((*cell, value));
            *slot = value;
        }
        Ok(())
    }
}

/// Whether there is no table without the column.
fn is_needed(definition: &Definition) -> bool {
    matches!(definition.id, ColumnId::Pfn | ColumnId::Class)
}

/// By the magic number of Parquet, or the name of the first column.
fn stored_as(start: &[u8]) -> Option<Stored> {
    let line = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let text = String::from_utf8_lossy(line);
    #[cfg(feature = "parquet")]
    if start.starts_with(b"PAR1") {
        return Some(Stored::Parquet);
    }
    if text.trim_start().starts_with('{') && text.contains("\"pfn\"") {
        return Some(Stored::JsonLines);
    }
    let is_pfn = |field: &str| field.trim().trim_matches('"') == "pfn";
    (text.trim_end().split(',').any(is_pfn)).then_some(Stored::Csv)
}

/// A page has as many bytes as a frame's address is times its number.
fn set_page_size(frames: &mut Frames, addresses: &[Cell]) {
    let size = zip(&frames.pfn, addresses).find_map(|(pfn, address)| match address {
        Cell::Number(address) if *pfn > 0 => address.checked_div(*pfn),
        _ => None,
    });
    frames.page_size = size.unwrap_or_default();
}

#[cfg(test)]
mod tests;
