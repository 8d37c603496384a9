//! A file some of whose bytes are read as others: what is known to be wrong in it, put right.

use crate::bytes::Bytes;
use crate::window::Window;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A file with other bytes at some offsets.
pub(crate) struct Patched {
    bytes: Arc<dyn Bytes>,
    patches: BTreeMap<u64, u8>,
}

impl Patched {
    /// `bytes` with each of `patches` in place of the byte at its offset.
    pub fn new(bytes: Arc<dyn Bytes>, patches: BTreeMap<u64, u8>) -> Self {
        Self { bytes, patches }
    }
}

impl Bytes for Patched {
    fn name(&self) -> &str {
        self.bytes.name()
    }

    fn len(&self) -> u64 {
        self.bytes.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let done = self.bytes.read_at(offset, buf)?;
        for (at, byte) in self.patches.range(offset..offset.saturating_add(done as u64)) {
            if let Some(to) = buf.get_mut((at - offset) as usize) {
                *to = *byte;
            }
        }
        Ok(done)
    }

    fn window(&self, offset: u64, len: usize) -> Option<Window> {
        let patched = self.patches.range(offset..offset.saturating_add(len as u64)).next().is_some();
        if patched { None } else { self.bytes.window(offset, len) }
    }

    fn backed(&self) -> u64 {
        self.bytes.backed()
    }

    fn next_written(&self, offset: u64) -> Option<Range<u64>> {
        self.bytes.next_written(offset)
    }

    fn lacks(&self, range: Range<u64>) -> bool {
        self.bytes.lacks(range)
    }

    fn next_lost(&self, offset: u64) -> Option<Range<u64>> {
        self.bytes.next_lost(offset)
    }

    fn next_data(&self, offset: u64) -> u64 {
        let patch = self.patches.range(offset..).next().map_or(u64::MAX, |(at, _)| *at);
        self.bytes.next_data(offset).min(patch)
    }
}
