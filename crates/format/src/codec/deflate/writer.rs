//! Bits into bytes.

/// Writes bits, the lowest first.
pub struct Writer<'a> {
    pub out: &'a mut [u8],
    pub at: usize,
    /// Not yet written, and their number: 7 at most after a flush.
    pub bits: u64,
    pub count: u32,
}

impl Writer<'_> {
    /// Adds the lowest `count` bits of `bits`.
    #[inline]
    pub fn add(&mut self, bits: u64, count: u32) {
        self.bits |= bits << (self.count % 64);
        self.count += count;
    }

    /// Adds a code: its bits, and their number above bit 16.
    #[inline]
    pub fn code(&mut self, code: u32) {
        self.add(u64::from(code & 0xffff), code >> 16);
    }

    /// Writes the whole bytes. `None`: the output is full.
    #[inline]
    pub fn flush(&mut self) -> Option<()> {
        *self.out.get_mut(self.at..)?.first_chunk_mut()? = self.bits.to_le_bytes();
        self.at += (self.count / 8) as usize;
        self.bits >>= self.count & !7 & 63;
        self.count %= 8;
        Some(())
    }
}
