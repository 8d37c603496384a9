//! Which file bytes stand for which address, when claims overlap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Addresses `start..end`, whose bytes are in the file from `source` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub start: u64,
    pub end: u64,
    pub source: u64,
}

impl Extent {
    /// File offset of the byte at `at`, which lies in the extent; saturates where a dump claims more than fits 64 bits.
    pub const fn source_of(&self, at: u64) -> u64 {
        self.source.saturating_add(at - self.start)
    }
}

/// Disjoint extents, ascending: of claims that overlap, the one that stands first in `claims` wins. Neighbours that
/// continue each other in address and file are joined. Takes memory and time for the claims, whatever they span.
pub(crate) fn resolve(mut claims: Vec<Extent>) -> Vec<Extent> {
    claims.retain(|c| c.start < c.end);
    let mut order: Vec<usize> = (0..claims.len()).collect();
    order.sort_by_key(|i| claims.get(*i).map(|c| c.start));
    let mut out: Vec<Extent> = Vec::with_capacity(claims.len());
    let mut emit = |claim: &Extent, start: u64, end: u64| {
        let piece = Extent { start, end, source: claim.source_of(start) };
        match out.last_mut() {
            Some(last) if last.end == start && last.source_of(start) == piece.source && start < end => last.end = end,
            _ if start < end => out.push(piece),
            _ => {}
        }
    };
    // Claims that begin at or before `at`, the winner on top; those that have ended are dropped when they surface.
    let mut open: BinaryHeap<Reverse<usize>> = BinaryHeap::new();
    let mut at = 0;
    let mut waiting = order.into_iter().peekable();
    loop {
        while let Some(i) = waiting.next_if(|i| claims.get(*i).is_some_and(|c| c.start <= at)) {
            open.push(Reverse(i));
        }
        let next = waiting.peek().and_then(|i| claims.get(*i)).map(|c| c.start);
        match open.peek().and_then(|top| claims.get(top.0)) {
            Some(winner) if winner.end <= at => {
                open.pop();
            }
            Some(winner) => {
                let stop = next.map_or(winner.end, |n| n.min(winner.end));
                emit(winner, at, stop);
                at = stop;
            }
            None => match next {
                Some(start) => at = start,
                None => return out,
            },
        }
    }
}

/// The extent that holds `at`, else the first one behind it.
pub(crate) fn find(extents: &[Extent], at: u64) -> Option<&Extent> {
    extents.get(extents.partition_point(|e| e.end <= at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_claim_of_every_byte_wins(claims in proptest::collection::vec((0u64..60, 0u64..20, 0u64..1000), 0..12)) {
            let claims: Vec<Extent> =
                claims.into_iter().map(|(start, len, source)| Extent { start, end: start + len, source }).collect();
            let resolved = resolve(claims.clone());
            prop_assert!(resolved.iter().all(|e| e.start < e.end));
            prop_assert!(resolved.windows(2).all(|w| w[0].end <= w[1].start));
            for at in 0..90 {
                let expected = claims.iter().find(|c| (c.start..c.end).contains(&at)).map(|c| c.source_of(at));
                let found = find(&resolved, at).filter(|e| e.start <= at).map(|e| e.source_of(at));
                prop_assert_eq!(found, expected, "byte {}", at);
            }
        }
    }

    #[test]
    fn neighbours_that_continue_each_other_are_joined() {
        let joined = resolve(vec![
            Extent { start: 10, end: 20, source: 110 },
            Extent { start: 0, end: 10, source: 100 },
            Extent { start: 20, end: 30, source: 500 },
        ]);
        assert_eq!(joined, [Extent { start: 0, end: 20, source: 100 }, Extent { start: 20, end: 30, source: 500 }]);
    }

    #[test]
    fn claims_up_to_the_end_of_the_address_space_end() {
        let all = Extent { start: 0, end: u64::MAX, source: u64::MAX - 5 };
        assert_eq!(resolve(vec![all; 3]), [all]);
    }
}
