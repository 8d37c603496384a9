//! Frames counted by the values of some of their columns.

use crate::frames::{Cell, Column, Frames};
use crate::names::Names;
use crate::schema::ColumnId;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// A value of a column, as readers of results see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// There is none.
    Null,
    /// A number.
    Number(i64),
    /// A text.
    Text(Arc<str>),
}

impl fmt::Display for Value {
    /// A value that is not there is `-`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.pad("-"),
            Self::Number(number) => f.pad(&number.to_string()),
            Self::Text(text) => f.pad(text),
        }
    }
}

/// How many frames there are of each combination of values.
#[derive(Clone, Debug)]
pub struct Counts {
    columns: Vec<ColumnId>,
    groups: HashMap<Vec<Cell>, u64>,
}

impl Counts {
    /// No frames yet, to be counted by `columns`.
    #[must_use]
    pub fn by(columns: &[ColumnId]) -> Self {
        Self { columns: columns.to_vec(), groups: HashMap::new() }
    }

    /// Counts `frames`, runs of frames alike at once.
    pub fn count(&mut self, frames: &Frames) {
        let columns: Vec<Column<'_>> = self.columns.iter().map(|id| frames.column(*id)).collect();
        let mut changes = vec![false; frames.len().saturating_sub(1)];
        for column in &columns {
            column.mark_changes(&mut changes);
        }
        let mut key = Vec::new();
        let mut start = 0;
        // Where the last run ends, nothing changes but the frames end.
        let ends = changes.iter().chain(std::iter::once(&true)).enumerate().filter(|(_, changed)| **changed);
        for (last, _) in ends.take_while(|(last, _)| *last < frames.len()) {
            key.clear();
            key.extend(columns.iter().map(|column| column.at(start)));
            let pages = (last + 1 - start) as u64;
            match self.groups.get_mut(&key) {
                Some(count) => *count += pages,
                None => {
                    self.groups.insert(key.clone(), pages);
                }
            }
            start = last + 1;
        }
    }

    /// Adds what another counted by the same columns.
    pub fn merge(&mut self, other: Self) {
        for (key, pages) in other.groups {
            *self.groups.entry(key).or_default() += pages;
        }
    }

    /// All frames.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.groups.values().sum()
    }

    /// The same frames counted by `columns` only, in that order; one that these are not counted by is null.
    #[must_use]
    pub fn only(&self, columns: &[ColumnId]) -> Self {
        let places: Vec<_> = columns.iter().map(|id| self.columns.iter().position(|c| c == id)).collect();
        let mut only = Self::by(columns);
        for (key, pages) in &self.groups {
            let cell = |place: &Option<usize>| place.and_then(|at| key.get(at)).copied().unwrap_or(Cell::Null);
            *only.groups.entry(places.iter().map(cell).collect()).or_default() += pages;
        }
        only
    }

    /// The columns it counts by.
    #[must_use]
    pub fn columns(&self) -> &[ColumnId] {
        &self.columns
    }

    /// The counts with the values of the columns, by these values.
    #[must_use]
    pub fn rows(&self, names: &Names) -> BTreeMap<Vec<Value>, u64> {
        let mut rows = BTreeMap::new();
        for (key, pages) in &self.groups {
            // Two cells can be one value.
            *rows.entry(key.iter().map(|cell| cell.value(names)).collect()).or_default() += pages;
        }
        rows
    }
}

impl Cell {
    /// The value, with its name.
    #[must_use]
    pub fn value(self, names: &Names) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Number(number) => Value::Number(number),
            Self::Name(id) => names.text(id).map_or(Value::Null, Value::Text),
            Self::Fixed(text) => Value::Text(text.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::NULL_INT;
    use coresift_kernel::PageClass;
    use proptest::prelude::*;

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    #[test]
    fn frames_are_counted_by_every_combination_of_values() {
        let names = Names::default();
        let mut frames = Frames::default();
        frames.start(&[(10, 14)]);
        frames.class.copy_from_slice(&[PageClass::Free, PageClass::Free, PageClass::Slab, PageClass::Free]);
        frames.order.copy_from_slice(&[1, 1, NULL_INT, 0]);
        frames.zone.fill(names.id("DMA"));
        let mut counts = Counts::by(&[ColumnId::Class, ColumnId::Order, ColumnId::Zone]);
        counts.count(&frames);
        counts.count(&Frames::default());
        let rows: Vec<_> = counts.rows(&names).into_iter().collect();
        assert_eq!(
            rows,
            [
                (vec![text("free"), Value::Number(0), text("DMA")], 1),
                (vec![text("free"), Value::Number(1), text("DMA")], 2),
                (vec![text("slab"), Value::Null, text("DMA")], 1),
            ]
        );
    }

    proptest! {
        #[test]
        fn runs_hide_nothing(nodes in proptest::collection::vec(0..3i32, 0..40), cut in 0..40usize) {
            let part = |nodes: &[i32]| {
                let mut frames = Frames::default();
                frames.start(&[(0, nodes.len() as u64)]);
                frames.node.copy_from_slice(nodes);
                let mut counts = Counts::by(&[ColumnId::Node]);
                counts.count(&frames);
                counts
            };
            let (a, b) = nodes.split_at(cut.min(nodes.len()));
            let mut counts = part(a);
            counts.merge(part(b));
            prop_assert_eq!(counts.pages(), nodes.len() as u64);
            for node in 0..3 {
                let known = counts.rows(&Names::default()).get(&vec![Value::Number(node.into())]).copied();
                let wanted = nodes.iter().filter(|n| **n == node).count() as u64;
                prop_assert_eq!(known.unwrap_or_default(), wanted);
            }
        }
    }
}
