//! Reading a stream from wherever it comes, until it ends or a signal says so.

use super::PIECE;
use crate::error::EngineError;
use crate::names::is_file;
use crate::options::StreamFrom;
use crate::stop::{Stop, StopReason};
use coresift_format::{FLAT_HEADER_LEN, FLAT_SIGNATURE, FormatError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Advice;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// A signal is noticed within this time, though nothing comes.
const NOTICE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A stream that is being read.
pub struct Stream {
    file: File,
    /// Its name in messages.
    pub name: String,
    /// Whether what follows can be looked at without waiting for it.
    seekable: bool,
    stop: Stop,
}

impl Stream {
    /// Opens a stream, whose reading ends when `stop` says so.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(from: &StreamFrom, stop: Stop) -> Result<Self, EngineError> {
        let (name, file) = match from {
            StreamFrom::Stdin => {
                ("the standard input".to_owned(), rustix::io::dup(rustix::stdio::stdin()).map(File::from))
            }
            StreamFrom::Path(path) => (
                path.display().to_string(),
                rustix::fs::open(
                    path,
                    rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
                    rustix::fs::Mode::empty(),
                )
                .map(File::from),
            ),
        };
        let file =
            file.map_err(|e| FormatError::Io { file: name.clone(), what: "the stream", offset: 0, error: e.into() })?;
        let kind = file.metadata().map(|m| m.file_type()).ok();
        let seekable = kind.is_some_and(|k| k.is_file() || k.is_block_device());
        // Both only help, and not everywhere.
        let _refused = rustix::fs::fadvise(&file, 0, None, Advice::Sequential);
        let _refused = rustix::pipe::fcntl_setpipe_size(&file, PIECE);
        Ok(Self { file, name, seekable, stop })
    }

    /// Whether it is the file `path`.
    pub fn is(&self, path: &Path) -> bool {
        self.seekable && self.file.metadata().is_ok_and(|stream| is_file(&stream, path))
    }

    /// The stream header, or all there is.
    ///
    /// # Errors
    /// It cannot be read, or reading was ended.
    pub fn head(&mut self) -> Result<Vec<u8>, Unread> {
        let mut head = vec![0; FLAT_HEADER_LEN];
        let n = self.fill(&mut head).map_err(|(_, why)| why)?;
        head.truncate(n);
        Ok(head)
    }

    /// Reads until `buf` is full or the stream ends; how much was read, also where that failed.
    ///
    /// # Errors
    /// Why no more was read.
    pub fn fill(&mut self, buf: &mut [u8]) -> Result<usize, (usize, Unread)> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            if let Some(why) = self.stop.copying(false) {
                return Err((done, Unread::Stopped(why)));
            }
            if !self.seekable && !self.wait() {
                continue;
            }
            match self.file.read(rest) {
                Ok(0) => break,
                Ok(n) => done += n,
                // A stream that another process set to non-blocking, and that somebody else was faster to read.
                Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(e) => return Err((done, Unread::Failed(e))),
            }
        }
        Ok(done)
    }

    /// Waits until there is something to read, or its end, but no longer than it may take to notice a signal: a read would go on waiting
    /// behind that. True also where nothing can be said.
    fn wait(&self) -> bool {
        match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&NOTICE)) {
            Ok(ready) => ready > 0,
            // A signal: it is looked at before anything is read.
            Err(error) => error != Errno::INTR,
        }
    }

    /// What stands behind the end marker at `at`, of which `known` was read already. A pipe is not waited for.
    pub fn follows(&mut self, mut known: Vec<u8>, at: u64) -> Option<String> {
        if self.seekable && known.len() < FLAT_SIGNATURE.len() {
            let mut more = vec![0; FLAT_HEADER_LEN];
            let n = self.fill(&mut more).unwrap_or_else(|(n, _)| n);
            known.extend_from_slice(more.get(..n).unwrap_or_default());
        }
        if known.is_empty() {
            return None;
        }
        Some(if known.starts_with(FLAT_SIGNATURE) {
            format!(
                "another flattened stream follows at offset {at} and was left alone; `tail -c +{} | coresift unflatten OUT` unwraps it",
                at + 1
            )
        } else {
            format!(
                "what follows the stream's end marker at offset {at} was ignored, as the old content of a dump device is"
            )
        })
    }
}

/// Why nothing more was read.
pub enum Unread {
    /// What the system said.
    Failed(io::Error),
    /// The run was told to end.
    Stopped(StopReason),
}
