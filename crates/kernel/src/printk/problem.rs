//! What is wrong with a log, each kind told once.

use std::fmt;

/// A kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wrong {
    /// Memory that is not in the dump, or has no translation.
    Unreadable,
    /// The walk through the records comes back to where it was.
    Cycle,
    /// A record lies outside of the buffer.
    Outside,
    /// The buffer's first and last record are further apart than it has room for.
    Range,
    /// A descriptor is that of another record.
    Descriptor,
    /// The text of a record is marked as another's.
    Foreign,
    /// Texts take more room than the buffer has.
    Overlap,
    /// What tells since when the log was cleared is missing or cannot be read.
    Clear,
}

impl Wrong {
    /// Whether something of the log may be missing or wrong because of it.
    #[must_use]
    pub const fn is_loss(self) -> bool {
        !matches!(self, Self::Clear)
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Unreadable => "pieces of the log are not in the dump",
            Self::Cycle => "the records lead back to one that was read before, and the rest was not read",
            Self::Outside => "records lie outside of the log buffer, and were left out",
            Self::Range => "the log claims more records than it has room for; the newest were read",
            Self::Descriptor => "descriptors belong to no record of the log, and were left out",
            Self::Foreign => "texts are marked as those of other records, and may be",
            Self::Overlap => "texts take more room than the log has; the rest was not read",
            Self::Clear => "it is not known since when the log was cleared, and all of it was read",
        }
    }
}

/// One kind of damage of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogProblem {
    /// The kind.
    pub wrong: Wrong,
    /// How often.
    pub count: u64,
    /// The first case.
    pub first: String,
}

impl fmt::Display for LogProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.wrong.text(), self.first)?;
        match self.count {
            0 | 1 => write!(f, ")"),
            n => write!(f, ", and {} more)", n - 1),
        }
    }
}

/// Problems as they are found.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<LogProblem>);

impl Problems {
    /// One more case of `wrong`; `case` is asked for the first.
    pub(super) fn add(&mut self, wrong: Wrong, case: impl FnOnce() -> String) {
        match self.0.iter_mut().find(|p| p.wrong == wrong) {
            Some(known) => known.count += 1,
            None => self.0.push(LogProblem { wrong, count: 1, first: case() }),
        }
    }

    pub(super) fn into_list(self) -> Vec<LogProblem> {
        self.0
    }
}
