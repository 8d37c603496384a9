//! The table as text: comma-separated values (RFC 4180, with a header) and JSON lines.

use super::order::Order;
use crate::frames::{Cell, Column, Frames};
use crate::names::{NameId, Names};
use crate::schema::{COLUMNS, Definition, Kind};
use chrono::{DateTime, SecondsFormat};
use std::collections::HashMap;
use std::io::Write;

/// How rows are written as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFormat {
    /// RFC 4180 with a header row. A value that is not there is empty, and so is a text without characters, which readers take for none
    /// also when it is quoted (DuckDB 2.0 even reads two quotes). No value is quoted that need not be.
    Csv,
    /// A JSON object a line; a value that is not there is left out.
    JsonLines,
}

/// Makes text of windows.
#[derive(Clone, Copy, Debug)]
pub struct TextTable {
    format: TextFormat,
    order: Order,
}

impl TextTable {
    /// Tables in `format` whose windows are in `order`.
    #[must_use]
    pub const fn new(format: TextFormat, order: Order) -> Self {
        Self { format, order }
    }

    /// What stands before all rows.
    #[must_use]
    pub fn header(&self) -> String {
        match self.format {
            TextFormat::Csv => COLUMNS.map(|c| c.name).join(",") + "\r\n",
            TextFormat::JsonLines => String::new(),
        }
    }

    /// A window's rows.
    #[must_use]
    pub fn rows(&self, frames: &Frames, names: &Names) -> Vec<u8> {
        let columns = COLUMNS.each_ref().map(|definition| (definition, frames.column(definition.id)));
        let mut texts = Texts { format: self.format, names, written: HashMap::new() };
        let mut out = Vec::new();
        for place in self.order.places(frames, names) {
            match self.format {
                TextFormat::Csv => csv_row(&columns, place as usize, &mut texts, &mut out),
                TextFormat::JsonLines => json_row(&columns, place as usize, &mut texts, &mut out),
            }
        }
        out
    }
}

fn csv_row(columns: &[(&Definition, Column<'_>)], row: usize, texts: &mut Texts<'_>, out: &mut Vec<u8>) {
    for (number, (definition, column)) in columns.iter().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        texts.put(definition.kind, column.at(row), out);
    }
    out.extend(b"\r\n");
}

fn json_row(columns: &[(&Definition, Column<'_>)], row: usize, texts: &mut Texts<'_>, out: &mut Vec<u8>) {
    let mut before = b'{';
    for (definition, column) in columns {
        let cell = column.at(row);
        if cell == Cell::Null {
            continue;
        }
        out.push(before);
        before = b',';
        // Names of columns need no escapes.
        let _infallible = write!(out, "\"{}\":", definition.name);
        texts.put(definition.kind, cell, out);
    }
    out.extend(b"}\n");
}

/// Values as text. Each name is escaped once.
struct Texts<'n> {
    format: TextFormat,
    names: &'n Names,
    written: HashMap<NameId, Vec<u8>>,
}

impl Texts<'_> {
    fn put(&mut self, kind: Kind, cell: Cell, out: &mut Vec<u8>) {
        match cell {
            Cell::Null => {}
            Cell::Number(number) if kind == Kind::Instant => out.extend(self.escaped(&instant(number))),
            Cell::Number(number) => {
                let _infallible = write!(out, "{number}");
            }
            Cell::Fixed(text) => out.extend(self.escaped(text)),
            Cell::Name(id) => {
                if !self.written.contains_key(&id) {
                    let text = self.names.text(id).map(|text| self.escaped(&text)).unwrap_or_default();
                    self.written.insert(id, text);
                }
                out.extend(self.written.get(&id).map_or(&[][..], Vec::as_slice));
            }
        }
    }

    fn escaped(&self, text: &str) -> Vec<u8> {
        match self.format {
            TextFormat::JsonLines => serde_json::Value::from(text).to_string().into_bytes(),
            TextFormat::Csv if text.contains([',', '"', '\r', '\n']) => {
                format!("\"{}\"", text.replace('"', "\"\"")).into_bytes()
            }
            TextFormat::Csv => text.as_bytes().to_vec(),
        }
    }
}

/// Microseconds since 1970 as RFC 3339, which every reader takes for a time; what no calendar has, as a number.
fn instant(micros: i64) -> String {
    DateTime::from_timestamp_micros(micros)
        .map_or_else(|| micros.to_string(), |time| time.to_rfc3339_opts(SecondsFormat::Micros, true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coresift_kernel::PageClass;

    fn frames(names: &Names) -> Frames {
        let mut frames = Frames::default();
        frames.start(&[(1, 3)]);
        frames.class.copy_from_slice(&[PageClass::Slab, PageClass::Cache]);
        frames.slab[0] = names.id("odd, \"cache\"");
        frames.path[1] = names.id("/a\nb");
        frames.node[1] = 0;
        frames.page_size = 4096;
        frames.time = 1_796_059_852_000_001;
        frames.source = Some(names.id("live"));
        frames
    }

    #[test]
    fn rows_of_csv_quote_what_has_to_be_quoted() {
        let names = Names::default();
        let table = TextTable::new(TextFormat::Csv, Order::Class);
        assert!(
            table.header().starts_with("pfn,address,raw_flags,") && table.header().ends_with(",source,host,kernel\r\n")
        );
        let rows = String::from_utf8(table.rows(&frames(&names), &names)).unwrap();
        let time = "2026-11-30T17:30:52.000001Z,live,,\r\n";
        assert_eq!(
            rows,
            format!(
                "2,8192,,,cache,,,,,,,\"/a\nb\",,,,0,,,,,{time}1,4096,,,slab,,,,,,,,\"odd, \"\"cache\"\"\",,,,,,,,{time}"
            )
        );
    }

    #[test]
    fn lines_of_json_leave_out_what_is_not_there() {
        let names = Names::default();
        let rows = TextTable::new(TextFormat::JsonLines, Order::Pfn).rows(&frames(&names), &names);
        let lines: Vec<serde_json::Value> =
            rows.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(|l| serde_json::from_slice(l).unwrap()).collect();
        let time = "2026-11-30T17:30:52.000001Z";
        assert_eq!(
            lines,
            [
                serde_json::json!({"pfn": 1, "address": 4096, "class": "slab", "slab": "odd, \"cache\"", "time": time, "source": "live"}),
                serde_json::json!({"pfn": 2, "address": 8192, "class": "cache", "path": "/a\nb", "node": 0, "time": time, "source": "live"}),
            ]
        );
    }
}
