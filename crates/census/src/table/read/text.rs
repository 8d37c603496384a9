//! Rows of CSV and JSON lines.

use super::{BATCH, TableFile, is_needed};
use crate::error::{CensusError, Result};
use crate::frames::{Cell, Frames};
use crate::schema::{ColumnId, Definition, Kind};
use chrono::DateTime;
use std::fs::File;
use std::io::{BufRead, BufReader};

impl TableFile {
    pub(super) fn read_csv(&self, columns: &[ColumnId], take: &mut dyn FnMut(&mut Frames) -> Result<()>) -> Result<()> {
        let damaged = |error: csv::Error| self.wrong(error.to_string());
        let mut reader = csv::Reader::from_path(&self.path).map_err(damaged)?;
        let header = reader.headers().map_err(damaged)?;
        let mut wanted = Vec::new();
        for definition in columns.iter().filter_map(|id| id.definition()) {
            match header.iter().position(|name| name == definition.name) {
                Some(place) => wanted.push((definition, place)),
                None if !is_needed(definition) => {}
                None => {
                    return Err(self.wrong(format!("no table of page frames: it has no column {}", definition.name)));
                }
            }
        }
        let mut batch = Batch::new(self, wanted.iter().map(|(definition, _)| *definition).collect());
        let mut record = csv::StringRecord::new();
        while reader.read_record(&mut record).map_err(damaged)? {
            let line = record.position().map_or(0, csv::Position::line);
            batch.row(take, |number| {
                let (definition, place) = wanted.get(number)?;
                let text = record.get(*place).filter(|text| !text.is_empty())?;
                Some(self.cell(definition, text, line))
            })?;
        }
        batch.give(take)
    }

    pub(super) fn read_json_lines(
        &self,
        columns: &[ColumnId],
        take: &mut dyn FnMut(&mut Frames) -> Result<()>,
    ) -> Result<()> {
        let failed = |error| CensusError::reading(&self.path, error);
        let definitions: Vec<&Definition> = columns.iter().filter_map(|id| id.definition()).collect();
        let mut reader = BufReader::with_capacity(1 << 18, File::open(&self.path).map_err(failed)?);
        let mut batch = Batch::new(self, definitions.clone());
        let (mut text, mut line) = (Vec::new(), 0);
        loop {
            text.clear();
            line += 1;
            if reader.read_until(b'\n', &mut text).map_err(failed)? == 0 {
                return batch.give(take);
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            let row: serde_json::Map<String, serde_json::Value> =
                serde_json::from_slice(&text).map_err(|error| self.wrong(format!("line {line}: {error}")))?;
            if let Some(missing) = definitions.iter().find(|d| is_needed(d) && !row.contains_key(d.name)) {
                return Err(self.wrong(format!("line {line}: there is no {}", missing.name)));
            }
            batch.row(take, |number| {
                let definition = definitions.get(number)?;
                match row.get(definition.name)? {
                    serde_json::Value::Null => None,
                    serde_json::Value::String(text) => Some(self.cell(definition, text, line)),
                    other => Some(self.cell(definition, &other.to_string(), line)),
                }
            })?;
        }
    }

    /// The value that `text` is in a column.
    fn cell(&self, definition: &Definition, text: &str, line: u64) -> Result<Cell> {
        let wrong =
            |what: &str| self.wrong(format!("line {line}: {} is {text:?}, which is no {what}", definition.name));
        match definition.kind {
            Kind::Name => Ok(Cell::Name(self.names.id(text))),
            Kind::Long | Kind::Int(_) => text.parse().map(Cell::Number).map_err(|_| wrong("number")),
            Kind::Instant => {
                let time = DateTime::parse_from_rfc3339(text).map(|time| time.timestamp_micros());
                time.or_else(|_| text.parse()).map(Cell::Number).map_err(|_| wrong("time as RFC 3339 has them"))
            }
        }
    }
}

/// Rows on their way into frames.
struct Batch<'t> {
    table: &'t TableFile,
    columns: Vec<(&'t Definition, Vec<Cell>)>,
    rows: usize,
    frames: Frames,
}

impl<'t> Batch<'t> {
    fn new(table: &'t TableFile, columns: Vec<&'t Definition>) -> Self {
        let columns = columns.into_iter().map(|definition| (definition, Vec::new())).collect();
        Self { table, columns, rows: 0, frames: Frames::default() }
    }

    /// Adds a row whose column `number` has the value `value(number)`.
    fn row(
        &mut self,
        take: &mut dyn FnMut(&mut Frames) -> Result<()>,
        value: impl Fn(usize) -> Option<Result<Cell>>,
    ) -> Result<()> {
        for (number, (_, cells)) in self.columns.iter_mut().enumerate() {
            cells.push(value(number).transpose()?.unwrap_or(Cell::Null));
        }
        self.rows += 1;
        if self.rows < BATCH { Ok(()) } else { self.give(take) }
    }

    /// Gives away the rows there are.
    fn give(&mut self, take: &mut dyn FnMut(&mut Frames) -> Result<()>) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        self.frames.start(&[(0, self.rows as u64)]);
        for (definition, cells) in &mut self.columns {
            self.table.fill(&mut self.frames, definition.id, cells)?;
            cells.clear();
        }
        self.rows = 0;
        take(&mut self.frames)
    }
}
