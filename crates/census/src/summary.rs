//! Frames counted by what they are: the small table.

use crate::frames::{Frames, Mapping};
use crate::names::NameId;
use coresift_kernel::PageClass;
use std::collections::HashMap;

/// What frames of a row of the summary have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Their class.
    pub class: PageClass,
    /// Their slab cache.
    pub slab: NameId,
    /// Order of their block, [`crate::NULL_INT`] where it is not known.
    pub order: i32,
    /// Their NUMA node, [`crate::NULL_INT`] where it is not known.
    pub node: i32,
    /// Their zone.
    pub zone: NameId,
    /// What their mapping is.
    pub mapping: Option<Mapping>,
    /// Inode number of their cgroup, [`crate::NULL_LONG`] for none.
    pub cgroup: i64,
    /// Its path.
    pub cgroup_path: NameId,
}

/// How many frames there are of each kind.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Frames by what they are.
    pub groups: HashMap<Group, u64>,
    /// Frames by the flags they have.
    pub flags: HashMap<NameId, u64>,
}

impl Summary {
    /// Counts `frames`.
    pub fn count(&mut self, frames: &Frames) {
        let groups = frames.class.iter().zip(&frames.slab).zip(&frames.order).zip(&frames.node).zip(&frames.zone);
        let groups = groups.zip(&frames.mapping).zip(&frames.cgroup).zip(&frames.cgroup_path);
        let groups = groups.map(|(((((((class, slab), order), node), zone), mapping), cgroup), cgroup_path)| Group {
            class: *class,
            slab: *slab,
            order: *order,
            node: *node,
            zone: *zone,
            mapping: *mapping,
            cgroup: *cgroup,
            cgroup_path: *cgroup_path,
        });
        runs(groups, &mut self.groups);
        runs(frames.flags.iter().copied(), &mut self.flags);
    }

    /// Adds what another counted.
    pub fn merge(&mut self, other: Self) {
        for (group, pages) in other.groups {
            *self.groups.entry(group).or_default() += pages;
        }
        for (flags, pages) in other.flags {
            *self.flags.entry(flags).or_default() += pages;
        }
    }

    /// All frames.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.groups.values().sum()
    }
}

/// Adds the number of each item to `counts`, equal neighbours at once.
fn runs<T: Copy + Eq + std::hash::Hash>(items: impl Iterator<Item = T>, counts: &mut HashMap<T, u64>) {
    let mut run: Option<(T, u64)> = None;
    for item in items {
        match &mut run {
            Some((known, n)) if *known == item => *n += 1,
            _ => {
                if let Some((known, n)) = run.replace((item, 1)) {
                    *counts.entry(known).or_default() += n;
                }
            }
        }
    }
    if let Some((known, n)) = run {
        *counts.entry(known).or_default() += n;
    }
}
