//! Names that many rows share, each stored once.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// A name in a [`Names`], or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(u32);

impl NameId {
    /// No name.
    pub const NULL: Self = Self(u32::MAX);

    /// Whether this is no name.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == u32::MAX
    }
}

/// The names of a census, shared by its threads. Numbers follow the order in which threads came; what is written goes by the text.
#[derive(Debug, Default)]
pub struct Names(RwLock<Inner>);

#[derive(Debug, Default)]
struct Inner {
    numbers: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
}

impl Names {
    /// The number of `text`, which it keeps.
    pub fn id(&self, text: &str) -> NameId {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).numbers.get(text).copied();
        if let Some(number) = known {
            return NameId(number);
        }
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = inner.numbers.get(text) {
            return NameId(*number);
        }
        // Past four thousand million names, which no memory holds, the rest would have none.
        let number = u32::try_from(inner.texts.len()).unwrap_or(u32::MAX);
        if number != u32::MAX {
            let text: Arc<str> = text.into();
            inner.texts.push(text.clone());
            inner.numbers.insert(text, number);
        }
        NameId(number)
    }

    /// The text of `id`; `None` for [`NameId::NULL`].
    #[must_use]
    pub fn text(&self, id: NameId) -> Option<Arc<str>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).texts.get(id.0 as usize).cloned()
    }
}
