//! A target that is a flattened stream: each write becomes a block "these bytes at that offset", one behind the other, so that a
//! pipe will do. No offset is written twice, nothing can be read back, and what no block brings reads as zeros.

use super::WriteFailed;
use crate::lock::Lock;
use coresift_format::{FLAT_END, flat_block, flat_header};
use std::fs::File;
use std::io::{self, IoSlice, Write};

/// Bytes asked for as the room of a pipe. The default of 64 KiB makes writer and reader take turns for each of them; 1 MiB is what
/// an unprivileged process may have.
const PIPE_BYTES: usize = 1 << 20;

/// A flattened stream that is being written.
pub struct Stream {
    state: Lock<State>,
}

struct State {
    /// `None` on a dry run: bytes are only counted.
    file: Option<File>,
    /// Bytes of the stream so far.
    written: u64,
    /// End of the block that reaches the furthest.
    end: u64,
    /// Bytes the file inside has at least.
    least: u64,
    /// A write that failed in its middle: there is no way to go on behind it.
    broken: Option<(io::ErrorKind, Option<i32>)>,
    /// Whether the file may hold something that has to go first.
    over: bool,
}

impl Stream {
    /// A stream to `file`, `over` what is in it; to nowhere without.
    pub fn new(file: Option<File>, over: bool) -> Self {
        if let Some(file) = &file {
            // Refused for what is no pipe, and where pipes have used up what a user may have; it is only faster with it.
            let _refused = rustix::pipe::fcntl_setpipe_size(file, PIPE_BYTES);
        }
        Self { state: Lock::new("stream", State { file, written: 0, end: 0, least: 0, broken: None, over }) }
    }

    /// Bytes of the stream so far.
    pub fn written(&self) -> u64 {
        self.state.hold().written
    }

    /// Writes the stream's header, if it is not there yet. `0..len` of the file inside reads as zeros, as far as nothing is written.
    pub fn begin(&self, len: u64) -> Result<(), WriteFailed> {
        let mut state = self.state.hold();
        state.least = state.least.max(len);
        if state.written > 0 {
            return Ok(());
        }
        if let Some(file) = &state.file
            && state.over
        {
            file.set_len(0).map_err(|error| WriteFailed { done: 0, offset: 0, error })?;
        }
        state.put(&flat_header(), &[]).map_err(|e| e.at(0, 0))
    }

    /// The file inside has `len` bytes at least.
    pub fn reach(&self, len: u64) {
        let mut state = self.state.hold();
        state.least = state.least.max(len);
    }

    /// Writes a block. Blocks come in any order, each byte once.
    pub fn block(&self, bytes: &[u8], offset: u64) -> Result<(), WriteFailed> {
        if bytes.is_empty() {
            return Ok(());
        }
        let header = flat_block(offset, bytes.len() as u64);
        let mut state = self.state.hold();
        state.end = state.end.max(offset.saturating_add(bytes.len() as u64));
        state.put(&header, bytes).map_err(|e| e.at(offset, header.len()))
    }

    /// Writes the end marker: the stream is whole.
    pub fn end(&self) -> Result<(), WriteFailed> {
        let least = {
            let state = self.state.hold();
            (state.end < state.least).then_some(state.least)
        };
        if let Some(last) = least.and_then(|least| least.checked_sub(1)) {
            self.block(&[0], last)?;
        }
        let mut state = self.state.hold();
        state.put(&FLAT_END, &[]).map_err(|e| e.at(state.end, 0))
    }
}

/// A write that failed after some bytes.
struct Failed {
    done: usize,
    error: io::Error,
}

impl Failed {
    /// The failure of a block for `offset` with a header of `header` bytes.
    fn at(self, offset: u64, header: usize) -> WriteFailed {
        WriteFailed { done: self.done.saturating_sub(header), offset, error: self.error }
    }
}

impl State {
    /// Writes `head` and `body`, one behind the other.
    fn put(&mut self, head: &[u8], body: &[u8]) -> Result<(), Failed> {
        if let Some((kind, number)) = self.broken {
            let error = number.map_or_else(|| kind.into(), io::Error::from_raw_os_error);
            return Err(Failed { done: 0, error });
        }
        let Some(file) = &mut self.file else {
            self.written += (head.len() + body.len()) as u64;
            return Ok(());
        };
        let mut done = 0;
        while done < head.len() + body.len() {
            let parts = [
                IoSlice::new(head.get(done..).unwrap_or_default()),
                IoSlice::new(body.get(done.saturating_sub(head.len())..).unwrap_or_default()),
            ];
            let error = match file.write_vectored(&parts) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(n) => {
                    done += n;
                    self.written += n as u64;
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && writable(file) => continue,
                Err(e) => e,
            };
            self.broken = Some((error.kind(), error.raw_os_error()));
            return Err(Failed { done, error });
        }
        Ok(())
    }
}

/// Waits until a stream that another process set to non-blocking takes bytes again; false where that cannot be waited for.
fn writable(file: &File) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    poll(&mut [PollFd::new(file, PollFlags::OUT)], None).is_ok()
}
