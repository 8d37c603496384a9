//! Counts as people read them.

use super::input::Input;
use crate::text::{bytes, count, utc};
use std::fmt::Write;

/// Columns of texts, then `N` of numbers, under a header.
pub struct Table<const N: usize> {
    texts: usize,
    rows: Vec<(Vec<String>, [String; N])>,
}

impl<const N: usize> Table<N> {
    /// An empty table with this header.
    pub fn new<'h>(texts: impl IntoIterator<Item = &'h str>, numbers: [&str; N]) -> Self {
        let texts: Vec<String> = texts.into_iter().map(str::to_owned).collect();
        Self { texts: texts.len(), rows: vec![(texts, numbers.map(str::to_owned))] }
    }

    /// Adds a row, which may have fewer texts than the header.
    pub fn row(&mut self, texts: impl IntoIterator<Item = String>, numbers: [String; N]) {
        let mut texts: Vec<String> = texts.into_iter().collect();
        texts.resize(self.texts, String::new());
        self.rows.push((texts, numbers));
    }

    /// The table with columns aligned.
    pub fn text(&self) -> String {
        let width = |cells: &mut dyn Iterator<Item = Option<&String>>| {
            cells.flatten().map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        let texts: Vec<usize> =
            (0..self.texts).map(|i| width(&mut self.rows.iter().map(|(texts, _)| texts.get(i)))).collect();
        let numbers: Vec<usize> =
            (0..N).map(|i| width(&mut self.rows.iter().map(|(_, numbers)| numbers.get(i)))).collect();
        let mut out = String::new();
        for (row_texts, row_numbers) in &self.rows {
            let mut line = String::new();
            for (cell, width) in row_texts.iter().zip(&texts) {
                let _infallible = write!(line, "{cell:<width$}  ");
            }
            for (cell, width) in row_numbers.iter().zip(&numbers) {
                let _infallible = write!(line, "{cell:>width$}  ");
            }
            let _infallible = writeln!(out, "{}", line.trim_end());
        }
        out
    }
}

/// What was looked at: `System RAM 24.0 GiB, 6 291 456 pages: live, host a, kernel 6.12.0, 2026-11-30 17:30:52 UTC`.
pub fn heading(input: &Input, pages: u64) -> String {
    let from = input.provenance();
    let named = [("", &from.source), ("host ", &from.host), ("kernel ", &from.kernel)];
    let named = named.iter().filter(|(_, value)| !value.is_empty()).map(|(what, value)| format!("{what}{value}"));
    // A table that others wrote need not say when it was taken.
    let time = (from.time != 0).then(|| format!("{} UTC", utc(from.time.div_euclid(1_000_000))));
    let parts: Vec<String> = named.chain(time).collect();
    let size = bytes(pages.saturating_mul(input.page_size()));
    let colon = if parts.is_empty() { "" } else { ": " };
    format!("System RAM {size}, {} pages{colon}{}\n", count(pages), parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stand_left_and_numbers_right() {
        let mut table = Table::new(["a", "name"], ["n"]);
        table.row(["x".to_owned(), "é".to_owned()], ["100".to_owned()]);
        table.row(["total".to_owned()], ["1".to_owned()]);
        assert_eq!(table.text(), "a      name    n\nx      é     100\ntotal          1\n");
    }
}
