//! What the encoders of this module look at pages with.

/// Pages longer than this are searched in blocks of this size: a position in one fits 16 bits, and a distance what both LZO1X and
/// deflate can say.
pub(super) const BLOCK: usize = 1 << 15;
/// No match starts in this many bytes at the end of a block, so that the search can read ahead without a test.
pub(super) const TAIL: usize = 12;

/// The eight bytes at `at`.
#[inline]
pub(super) fn word(block: &[u8], at: usize) -> Option<u64> {
    block.get(at..at + 8)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

/// `BITS` bits that depend on the lowest `BYTES` bytes of `word`.
#[inline]
pub(super) fn hash<const BYTES: u32, const BITS: u32>(word: u64) -> usize {
    ((word << (64 - 8 * BYTES)).wrapping_mul(0x9e37_79b1_85eb_ca87) >> (64 - BITS)) as usize
}

/// Number of bytes from the start on that are equal.
#[inline]
pub(super) fn common(a: &[u8], b: &[u8]) -> usize {
    // Nine of ten matches end in here, and the branch is taken as expected.
    if let (Some(x), Some(y)) = (a.first_chunk(), b.first_chunk()) {
        let differ = u128::from_le_bytes(*x) ^ u128::from_le_bytes(*y);
        if differ != 0 {
            return (differ.trailing_zeros() / 8) as usize;
        }
    }
    let (mut n, (aw, _), (bw, _)) = (0, a.as_chunks(), b.as_chunks());
    for (x, y) in aw.iter().zip(bw) {
        let differ = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differ != 0 {
            return n + (differ.trailing_zeros() / 8) as usize;
        }
        n += 8;
    }
    let rest = a.get(n..).unwrap_or_default().iter().zip(b.get(n..).unwrap_or_default());
    n + rest.take_while(|(x, y)| x == y).count()
}
