//! Why pages cannot be read, and how many for which reason.

use coresift_format::ReadError;
use coresift_format::kdump::Loss;
use serde::Serialize;

/// Why a page cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Its descriptor was never written: the dump ended early.
    Unwritten,
    /// Its descriptor or its data lie beyond the end of the file, or in what a flattened stream lost.
    BeyondEnd,
    /// Its descriptor cannot be true.
    BadDescriptor,
    /// Its data are not what its codec makes.
    Undecodable,
    /// The operating system cannot read it.
    Unreadable,
    /// Its data overlap those of another page, or may be those of another, and nothing tells whose they are.
    Contested,
    /// The 2nd bitmap has more or fewer bits than there are descriptors, so which is the page's is not known.
    Unassigned,
}

impl Fault {
    /// What it is that the page of a descriptor with the state `loss` cannot be read with `error`.
    #[must_use]
    pub const fn of(loss: Option<Loss>, error: &ReadError) -> Self {
        match (loss, error) {
            (Some(Loss::Unwritten), _) => Self::Unwritten,
            (Some(Loss::BeyondEnd), _) | (None, ReadError::Truncated { .. }) => Self::BeyondEnd,
            (Some(Loss::BadDescriptor), _) => Self::BadDescriptor,
            (Some(Loss::Unassigned), _) => Self::Unassigned,
            (Some(Loss::Unreadable), _) | (None, ReadError::Io { .. }) => Self::Unreadable,
            (None, _) => Self::Undecodable,
        }
    }

    /// Whether each such page is a damaged place of its own.
    pub(super) const fn is_single(self) -> bool {
        matches!(self, Self::Undecodable | Self::Contested)
    }

    /// Whether bytes of the file are wrong, rather than missing.
    #[must_use]
    pub const fn is_damage(self) -> bool {
        !matches!(self, Self::Unwritten | Self::BeyondEnd)
    }

    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Unwritten => "never written",
            Self::BeyondEnd => "beyond the end of the file",
            Self::BadDescriptor => "with a descriptor that cannot be true",
            Self::Undecodable => "that cannot be decompressed",
            Self::Unreadable => "that the system cannot read",
            Self::Contested => "whose data another page has or may have",
            Self::Unassigned => "of which nothing tells the descriptor",
        }
    }
}

/// Pages by how reading them went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PageCounts {
    /// Pages the dump says it has.
    pub stored: u64,
    /// Pages whose bytes were read, or with `--quick` whose descriptors can be true.
    pub sound: u64,
    /// [`Fault::Unwritten`].
    pub unwritten: u64,
    /// [`Fault::BeyondEnd`].
    pub beyond_end: u64,
    /// [`Fault::BadDescriptor`].
    pub bad_descriptor: u64,
    /// [`Fault::Undecodable`].
    pub undecodable: u64,
    /// [`Fault::Unreadable`].
    pub unreadable: u64,
    /// [`Fault::Contested`].
    pub contested: u64,
    /// [`Fault::Unassigned`].
    pub unassigned: u64,
}

impl PageCounts {
    /// Each fault with the number of its pages.
    #[must_use]
    pub const fn faults(&self) -> [(Fault, u64); 7] {
        [
            (Fault::Unwritten, self.unwritten),
            (Fault::BeyondEnd, self.beyond_end),
            (Fault::BadDescriptor, self.bad_descriptor),
            (Fault::Undecodable, self.undecodable),
            (Fault::Unreadable, self.unreadable),
            (Fault::Contested, self.contested),
            (Fault::Unassigned, self.unassigned),
        ]
    }

    /// Pages that cannot be read.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.faults().iter().map(|fault| fault.1).sum()
    }

    pub(super) fn add(&mut self, fault: Fault, pages: u64) {
        *match fault {
            Fault::Unwritten => &mut self.unwritten,
            Fault::BeyondEnd => &mut self.beyond_end,
            Fault::BadDescriptor => &mut self.bad_descriptor,
            Fault::Undecodable => &mut self.undecodable,
            Fault::Unreadable => &mut self.unreadable,
            Fault::Contested => &mut self.contested,
            Fault::Unassigned => &mut self.unassigned,
        } += pages;
    }

    /// Adds those of another file.
    pub(super) fn add_all(&mut self, other: &Self) {
        self.stored += other.stored;
        self.sound += other.sound;
        other.faults().into_iter().for_each(|(fault, pages)| self.add(fault, pages));
    }
}
