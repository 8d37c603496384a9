//! Copying a piece of another file into the target.

use super::{Kind, Output, WriteFailed};
use crate::stop::StopReason;
use coresift_format::Bytes;
use rustix::io::Errno;
use std::io;
use std::ops::Range;

/// Bytes copied at a time: large enough for a disk, small enough for progress.
const PIECE: u64 = 8 << 20;
/// Bytes of the buffer where the kernel cannot copy.
const BUFFER: usize = 1 << 20;

/// A copy that failed.
#[derive(Debug)]
pub enum CopyFailed {
    /// Reading at a file offset did.
    Read(u64, io::Error),
    /// Writing did.
    Write(WriteFailed),
    /// The run was told to end.
    Stopped(StopReason),
}

/// Is told each number of bytes done, and says whether that is to be the end.
pub type Progress<'a> = dyn FnMut(u64) -> Option<StopReason> + 'a;

fn told(at: u64, stop: Option<StopReason>) -> Result<u64, CopyFailed> {
    stop.map_or(Ok(at), |why| Err(CopyFailed::Stopped(why)))
}

impl Output {
    /// Copies the bytes `range` of `from` to `to`, and tells `progress` of it piece by piece. Holes stay holes where the target
    /// has no old content. The kernel copies where it can: without a second copy through this program, and by sharing blocks
    /// on file systems that do (XFS, btrfs).
    ///
    /// # Errors
    /// Which side failed, or why it was ended.
    pub fn copy_in(
        &self,
        from: &dyn Bytes,
        range: Range<u64>,
        to: u64,
        progress: &mut Progress<'_>,
    ) -> Result<(), CopyFailed> {
        let mut at = range.start;
        let mut buffer = Vec::new();
        let mut by_kernel = true;
        while at < range.end {
            if !self.has_old_content() {
                let data = from.next_data(at).clamp(at, range.end);
                if data > at {
                    at = told(data, progress(data - at))?;
                }
            }
            let want = (range.end - at).min(PIECE);
            if want == 0 {
                // A hole at the end gives a file no length.
                let last = to + (range.end - range.start) - 1;
                return self.write_at(&[0], last).map_err(CopyFailed::Write);
            }
            let place = to + (at - range.start);
            let done =
                if by_kernel { self.kernel_copy(from, at, place, want).map_err(CopyFailed::Write)? } else { None };
            let done = match done {
                Some(done) => done,
                None => {
                    by_kernel = false;
                    buffer.resize(BUFFER.min(want as usize), 0);
                    let n = from.read_at(at, &mut buffer).map_err(|error| CopyFailed::Read(at, error))?;
                    if n == 0 {
                        return Err(CopyFailed::Read(at, io::ErrorKind::UnexpectedEof.into()));
                    }
                    self.write_at(buffer.get(..n).unwrap_or_default(), place).map_err(CopyFailed::Write)?;
                    n as u64
                }
            };
            at = told(at + done, progress(done))?;
        }
        Ok(())
    }

    /// Lets the kernel copy up to `len` bytes; `None` where it cannot, or there is nothing to copy.
    fn kernel_copy(&self, from: &dyn Bytes, at: u64, to: u64, len: u64) -> Result<Option<u64>, WriteFailed> {
        let (Kind::Regular(target), Some(source)) = (&self.kind, from.file()) else { return Ok(None) };
        let (allowed, refused) = self.allowed(to, len);
        if allowed == 0
            && let Some(error) = refused
        {
            return Err(WriteFailed { done: 0, offset: to, error });
        }
        let (mut off_in, mut off_out) = (at, to);
        let len = usize::try_from(allowed).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(source, Some(&mut off_in), target, Some(&mut off_out), len) {
            Ok(0) => Ok(None),
            Ok(done) => {
                self.wrote(done, to);
                Ok(Some(done as u64))
            }
            Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                Err(WriteFailed { done: 0, offset: to, error: error.into() })
            }
            // Another file system, or one that cannot: by hand, which also tells which side an error is on.
            Err(_) => Ok(None),
        }
    }
}
