//! Codes of least total length for the symbols of one block, as deflate describes them (RFC 1951, 3.2.2): the lengths say all.

use std::hint::select_unpredictable;

/// Symbols of the greatest alphabet, rounded up so that a masked index needs no test.
const ROOM: usize = 512;
/// A symbol in the low bits, how often it is used above.
const SYMBOL: u32 = ROOM as u32 - 1;
const COUNT: u32 = 9;
/// Symbols used this often or more share a bucket, which is then sorted: of a page's 130 symbols about ten.
const OFTEN: usize = 63;
/// So few symbols are sorted faster by insertion.
const FEW: usize = 20;

/// The bits of each symbol: the code, first bit lowest, and its length in the upper half. A length of 0 where it is not used.
pub(super) type Codes<const N: usize> = [u32; N];

/// What building a code needs.
pub(super) struct Builder {
    /// The symbols in use, in their own order.
    used: [u32; ROOM],
    /// The same, rarest first.
    sorted: [u32; ROOM],
    /// Counts of the inner nodes, in the order they are made, which is that of their counts.
    nodes: [u32; ROOM],
    parents: [u16; ROOM],
}

impl Default for Builder {
    fn default() -> Self {
        Self { used: [0; ROOM], sorted: [0; ROOM], nodes: [0; ROOM], parents: [0; ROOM] }
    }
}

impl Builder {
    /// Makes the codes of at most `longest` bits for symbols used `counts` times, and returns the bits that all uses take.
    pub(super) fn build(&mut self, counts: &[u32], longest: usize, codes: &mut [u32]) -> Option<u32> {
        codes.fill(0);
        let mut n = 0;
        for (symbol, &count) in (0u32..).zip(counts) {
            *self.used.get_mut(n % ROOM)? = count << COUNT | symbol;
            n += usize::from(count > 0);
        }
        if n < 2 {
            // A code for one symbol has one bit.
            let &only = self.used.get(..n)?.first()?;
            *codes.get_mut((only & SYMBOL) as usize)? = 1 << 16;
            return Some(only >> COUNT);
        }
        self.sort(n)?;
        self.join(n)?;
        let lengths = self.lengths(n, longest)?;
        self.assign(n, &lengths, codes)
    }

    /// Sorts the symbols by count.
    fn sort(&mut self, n: usize) -> Option<()> {
        let used = self.used.get(..n)?;
        if n <= FEW {
            let sorted = self.sorted.get_mut(..n)?;
            sorted.copy_from_slice(used);
            sorted.sort_unstable();
            return Some(());
        }
        let bucket = |entry: u32| ((entry >> COUNT) as usize).min(OFTEN);
        let mut places = [0u16; OFTEN + 1];
        for &entry in used {
            *places.get_mut(bucket(entry))? += 1;
        }
        let mut place = 0;
        for p in &mut places {
            place += std::mem::replace(p, place);
        }
        let often = usize::from(places[OFTEN]);
        for &entry in used {
            let place = places.get_mut(bucket(entry))?;
            *self.sorted.get_mut(usize::from(*place) % ROOM)? = entry;
            *place += 1;
        }
        self.sorted.get_mut(often..n)?.sort_unstable();
        Some(())
    }

    /// Joins the two rarest leaves or nodes again and again, until one node, the root, is left.
    fn join(&mut self, n: usize) -> Option<()> {
        // One that is not there is never the rarer.
        self.sorted.get_mut(n..n + 2)?.fill(u32::MAX);
        self.nodes.get_mut(..n + 1)?.fill(u32::MAX);
        let (mut leaf, mut node) = (0, 0);
        for new in 0..n - 1 {
            let mut sum = 0;
            for _ in 0..2 {
                let (a, b) = (*self.sorted.get(leaf % ROOM)? >> COUNT, *self.nodes.get(node % ROOM)?);
                let take = a <= b;
                sum += select_unpredictable(take, a, b);
                // If the leaf was taken this is written again when the node is.
                *self.parents.get_mut(node % ROOM)? = new as u16;
                leaf += usize::from(take);
                node += usize::from(!take);
            }
            *self.nodes.get_mut(new % ROOM)? = sum;
        }
        Some(())
    }

    /// The number of codes of each length, none above `longest`.
    fn lengths(&self, n: usize, longest: usize) -> Option<[u32; 16]> {
        let mut lengths = [0; 16];
        // The nodes of a level are the children of those above it, and stand in front of them.
        let (mut length, mut above, mut first) = (1, 1, n - 2);
        loop {
            let level = self.parents.get(..first)?;
            let here = level.iter().rev().take_while(|parent| usize::from(**parent) >= first).count();
            *lengths.get_mut(length.min(longest))? += 2 * above - here as u32;
            if here == 0 {
                break;
            }
            (length, above, first) = (length + 1, here as u32, first - here);
        }
        // Codes cut down to `longest` take more room than there is: each step gives one of them the place beside a shorter code,
        // which becomes one bit longer.
        let taken: u32 = (1..=longest).map(|l| lengths.get(l).map_or(0, |count| count << (longest - l))).sum();
        for _ in 1 << longest..taken {
            let l = (1..longest).rev().find(|l| lengths.get(*l).is_some_and(|count| *count > 0))?;
            *lengths.get_mut(l)? -= 1;
            *lengths.get_mut(l + 1)? += 2;
            *lengths.get_mut(longest)? -= 1;
        }
        Some(lengths)
    }

    /// Gives the longest codes to the rarest symbols; among codes of one length the order is that of the symbols.
    fn assign(&self, n: usize, lengths: &[u32; 16], codes: &mut [u32]) -> Option<u32> {
        let mut sorted = self.sorted.get(..n)?;
        for (length, &count) in (0u32..16).zip(lengths).rev() {
            let (these, rest) = sorted.split_at_checked(count as usize)?;
            for entry in these {
                *codes.get_mut((entry & SYMBOL) as usize)? = length << 16;
            }
            sorted = rest;
        }
        let mut next = [0u16; 16];
        let mut code = 0;
        for (next, &count) in next.iter_mut().zip(lengths) {
            code <<= 1;
            *next = code;
            code += count as u16;
        }
        let mut bits = 0;
        for entry in self.used.get(..n)? {
            let slot = codes.get_mut((entry & SYMBOL) as usize)?;
            let length = *slot >> 16;
            let next = next.get_mut(length as usize % 16)?;
            *slot |= u32::from(next.reverse_bits()) >> (16 - length % 16);
            *next += 1;
            bits += (entry >> COUNT) * length;
        }
        Some(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn codes_fill_the_room_and_none_is_longer_than_allowed(
            counts in proptest::collection::vec(prop_oneof![Just(0u32), 1..4u32, 1..3000u32], 2..288),
            longest in 9..=15usize,
        ) {
            let mut codes = vec![0; counts.len()];
            let bits = Builder::default().build(&counts, longest, &mut codes);
            let used = counts.iter().filter(|c| **c > 0).count();
            if used < 2 {
                prop_assert_eq!(bits.is_some(), used == 1);
                return Ok(());
            }
            let mut room = 0u32;
            for (count, code) in counts.iter().zip(&codes) {
                let length = code >> 16;
                prop_assert_eq!(*count > 0, length > 0);
                prop_assert!(length <= longest as u32);
                if length > 0 {
                    room += 1 << (15 - length);
                }
            }
            prop_assert_eq!(room, 1 << 15);
            prop_assert_eq!(bits, Some(counts.iter().zip(&codes).map(|(count, code)| count * (code >> 16)).sum()));
            // No code begins with another.
            for (i, a) in codes.iter().enumerate().filter(|(_, a)| **a > 0) {
                for b in codes[i + 1..].iter().filter(|b| **b > 0) {
                    let shorter = (a >> 16).min(b >> 16);
                    prop_assert_ne!(a & ((1 << shorter) - 1), b & ((1 << shorter) - 1));
                }
            }
        }
    }

    #[test]
    fn counts_that_would_make_codes_too_long_are_cut() {
        let fibonacci: Vec<u32> =
            std::iter::successors(Some((1, 1)), |(a, b)| Some((*b, a + b))).map(|(a, _)| a).take(20).collect();
        for longest in [5, 7, 14, 15] {
            let mut codes = [0; 20];
            Builder::default().build(&fibonacci, longest, &mut codes).unwrap();
            let lengths: Vec<u32> = codes.iter().map(|code| code >> 16).collect();
            assert_eq!(*lengths.iter().max().unwrap(), longest as u32);
            assert_eq!(lengths.iter().map(|l| 1 << (longest as u32 - l)).sum::<u32>(), 1 << longest);
            assert!(lengths.is_sorted_by(|a, b| a >= b), "{lengths:?}");
        }
    }
}
