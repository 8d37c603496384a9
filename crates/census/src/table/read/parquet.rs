//! Rows of a Parquet file, column by column.

use super::{BATCH, TableFile, is_needed};
use crate::error::{CensusError, Result};
use crate::frames::{Cell, Frames};
use crate::names::NameId;
use crate::schema::{ColumnId, Kind};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::fs::File;

/// A column that is read, and where it is in the file.
struct Wanted {
    id: ColumnId,
    place: usize,
    nullable: bool,
}

impl TableFile {
    pub(super) fn read_parquet(
        &self,
        columns: &[ColumnId],
        take: &mut dyn FnMut(&mut Frames) -> Result<()>,
    ) -> Result<()> {
        let damaged = |error: ParquetError| self.wrong(format!("no readable Parquet file: {error}"));
        let file = File::open(&self.path).map_err(|error| CensusError::reading(&self.path, error))?;
        let reader = SerializedFileReader::new(file).map_err(damaged)?;
        let wanted = self.wanted(&reader, columns)?;
        let mut frames = Frames::default();
        for number in 0..reader.num_row_groups() {
            let group = reader.get_row_group(number).map_err(damaged)?;
            let readers = wanted.iter().map(|column| group.get_column_reader(column.place));
            let mut readers = readers.collect::<std::result::Result<Vec<_>, _>>().map_err(damaged)?;
            let mut left = usize::try_from(group.metadata().num_rows())
                .map_err(|_| self.wrong(format!("row group {number} has fewer than 0 rows")))?;
            while left > 0 {
                let rows = left.min(BATCH);
                frames.start(&[(0, rows as u64)]);
                for (column, reader) in wanted.iter().zip(&mut readers) {
                    let cells = self.cells(reader, column, rows).map_err(damaged)?;
                    if cells.len() != rows {
                        let name = column.id.definition().map_or("", |d| d.name);
                        return Err(self.wrong(format!("row group {number}: column {name} ends before its rows do")));
                    }
                    self.fill(&mut frames, column.id, &cells)?;
                }
                take(&mut frames)?;
                left -= rows;
            }
        }
        Ok(())
    }

    /// Finds `columns`, and those without which there is no table.
    fn wanted(&self, reader: &SerializedFileReader<File>, columns: &[ColumnId]) -> Result<Vec<Wanted>> {
        let schema = reader.metadata().file_metadata().schema_descr_ptr();
        let mut wanted = Vec::new();
        for id in columns {
            let Some(definition) = id.definition() else { continue };
            let found = schema.columns().iter().position(|column| column.path().parts() == [definition.name]);
            match found.zip(found.and_then(|place| schema.columns().get(place))) {
                Some((place, column)) if column.max_rep_level() == 0 && column.max_def_level() <= 1 => {
                    wanted.push(Wanted { id: *id, place, nullable: column.max_def_level() == 1 });
                }
                Some(_) => return Err(self.wrong(format!("column {} is a list", definition.name))),
                None if !is_needed(definition) => {}
                None => {
                    let what = format!("no table of page frames: it has no column {}", definition.name);
                    return Err(self.wrong(what));
                }
            }
        }
        Ok(wanted)
    }

    /// The next `rows` values of a column; fewer where it ends.
    fn cells(
        &self,
        reader: &mut ColumnReader,
        column: &Wanted,
        rows: usize,
    ) -> std::result::Result<Vec<Cell>, ParquetError> {
        let is_name = column.id.definition().is_some_and(|definition| definition.kind == Kind::Name);
        match reader {
            ColumnReader::Int32ColumnReader(reader) if !is_name => {
                column.values(reader, rows, |value| Cell::Number((*value).into()))
            }
            ColumnReader::Int64ColumnReader(reader) if !is_name => {
                column.values(reader, rows, |value| Cell::Number(*value))
            }
            ColumnReader::ByteArrayColumnReader(reader) if is_name => {
                // Neighbours are often alike.
                let mut last: Option<(ByteArray, NameId)> = None;
                column.values(reader, rows, |value| {
                    let id = match &last {
                        Some((known, id)) if known == value => *id,
                        _ => self.names.id(&String::from_utf8_lossy(value.data())),
                    };
                    last = Some((value.clone(), id));
                    Cell::Name(id)
                })
            }
            _ => Err(ParquetError::General(format!("column {} of the file is not of the table's type", column.place))),
        }
    }
}

impl Wanted {
    fn values<T: DataType>(
        &self,
        reader: &mut ColumnReaderImpl<T>,
        rows: usize,
        mut cell: impl FnMut(&T::T) -> Cell,
    ) -> std::result::Result<Vec<Cell>, ParquetError> {
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let mut known = 0;
        // A call ends where a page does.
        while known < rows {
            let before = known;
            let (records, ..) =
                reader.read_records(rows - known, self.nullable.then_some(&mut levels), None, &mut values)?;
            known += records;
            if known == before {
                break;
            }
        }
        let mut values = values.iter();
        if !self.nullable {
            return Ok(values.map(cell).collect());
        }
        let cells = levels.iter().map(|level| match level {
            0 => Cell::Null,
            _ => values.next().map_or(Cell::Null, &mut cell),
        });
        Ok(cells.collect())
    }
}
