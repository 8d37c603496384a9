//! The place a dump is written to.

mod copy_in;
mod limit;
mod open;
mod stream;

pub use copy_in::{CopyFailed, Progress};
pub use limit::{Full, WriteFailed};
pub use open::directory;

use crate::names::is_file;
use crate::room::{Forecast, Room, free};
use limit::Limit;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stream::Stream;

/// An open target, written by offset.
pub struct Output {
    kind: Kind,
    /// Bytes the file may have at the most.
    limit: Option<Limit>,
    /// Of a dry run, the room there would be.
    room: Option<Room>,
    /// Bytes it could take when it was opened, as far as the system told.
    free: Option<u64>,
    /// A file that did not exist before.
    new: Option<New>,
    written: AtomicU64,
    /// One more than the last byte that was written or reserved.
    len: AtomicU64,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("written", &self.written()).finish_non_exhaustive()
    }
}

enum Kind {
    Regular(File),
    /// A block device: holds old content, and has an end.
    Block(File),
    /// A flattened stream: anything that can be written to.
    Stream(Stream),
    /// /dev/null, or a dry run: bytes are only counted.
    Nothing,
}

impl Output {
    /// A target that only counts bytes.
    #[must_use]
    pub const fn nothing() -> Self {
        Self::new(Kind::Nothing)
    }

    const fn new(kind: Kind) -> Self {
        Self {
            kind,
            limit: None,
            room: None,
            free: None,
            new: None,
            written: AtomicU64::new(0),
            len: AtomicU64::new(0),
        }
    }

    /// The same, which takes no more than `limit` bytes.
    #[must_use]
    pub fn with_limit(self, limit: Option<u64>) -> Self {
        let limit = limit.map(Limit::Asked).into_iter().chain(self.limit).min_by_key(|limit| limit.bytes());
        Self { limit, ..self }
    }

    /// How many of the `len` bytes at `offset` the limit allows, and the error if these are not all.
    fn allowed(&self, offset: u64, len: u64) -> (u64, Option<io::Error>) {
        match self.limit {
            Some(limit) if offset.saturating_add(len) > limit.bytes() => {
                (limit.bytes().saturating_sub(offset), Some(limit.error()))
            }
            _ => (len, None),
        }
    }

    /// The size of the file, in bytes; of a dry run, that which it would have.
    #[must_use]
    pub fn len(&self) -> u64 {
        if self.is_stream() {
            return self.written();
        }
        self.len.load(Ordering::Relaxed)
    }

    /// Whether the target is a flattened stream: it cannot be emptied or read back, no offset may be written twice, and
    /// [`Self::end`] is to be called when all is written.
    #[must_use]
    pub const fn is_stream(&self) -> bool {
        matches!(self.kind, Kind::Stream(_))
    }

    /// Ends a stream that was written completely; nothing to do for other targets.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn end(&self) -> Result<(), WriteFailed> {
        if let Kind::Stream(stream) = &self.kind { stream.end() } else { Ok(()) }
    }

    /// Bytes written since the target was last emptied, rewritten headers counted each time.
    #[must_use]
    pub fn written(&self) -> u64 {
        if let Kind::Stream(stream) = &self.kind { stream.written() } else { self.written.load(Ordering::Relaxed) }
    }

    /// Does not count `bytes` of what will be written: they are only written again, to join what is around them.
    pub fn discount(&self, bytes: u64) {
        self.written.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that can be written at `end`, as far as is known: free ones of the file system a file is on, and what the limit leaves.
    #[must_use]
    pub fn room(&self, end: u64) -> Option<u64> {
        let limit = self.limit.map(|limit| limit.bytes().saturating_sub(end));
        let free = match &self.kind {
            Kind::Regular(file) => rustix::fs::fstatvfs(file).ok().and_then(|space| free(&space)),
            Kind::Nothing => self.room.as_ref().map(Room::left),
            Kind::Block(_) | Kind::Stream(_) => None,
        };
        limit.into_iter().chain(free).min()
    }

    /// Of a dry run that goes on where a run would have failed, to tell how much is needed: where the file would end, in bytes.
    #[must_use]
    pub fn short(&self) -> Option<u64> {
        self.room.as_ref()?.short()
    }

    /// Of a dry run, whether what was written until now would fit.
    #[must_use]
    pub fn forecast(&self) -> Option<Forecast> {
        let room = self.room.as_ref()?;
        if self.is_stream() {
            room.take(0, self.written());
        }
        Some(room.forecast())
    }

    /// Whether the first `bytes` of the file can be written, as far as that can be known before what is there is given up for them.
    ///
    /// # Errors
    /// The limit or the free space is less.
    pub fn admits(&self, bytes: u64) -> Result<(), WriteFailed> {
        let refused = match self.allowed(0, bytes) {
            (_, None) if self.free.is_some_and(|free| free < bytes) => {
                self.room.iter().for_each(|room| room.refuse(bytes));
                Some(io::ErrorKind::StorageFull.into())
            }
            (_, refused) => refused,
        };
        refused.map_or(Ok(()), |error| Err(WriteFailed { done: 0, offset: 0, error }))
    }

    /// Whether it is a file that did not exist before, and nothing was written to it yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.new.is_some() && matches!(self.kind, Kind::Regular(_)) && self.written() == 0
    }

    /// Removes the file at the end if it did not exist before: nothing came of it.
    pub fn remove_new(&self) {
        if let Some(new) = &self.new {
            new.used.store(false, Ordering::Relaxed);
        }
    }

    /// Removes the file `path`, which this is, also where it existed before: what it held is gone, and nothing usable came of it.
    pub fn remove(&self, path: &Path) {
        match (&self.new, &self.kind) {
            (Some(_), _) => self.remove_new(),
            // Where it stays it cannot be opened; that is the least of what will be told.
            (None, Kind::Regular(_)) => drop(std::fs::remove_file(path)),
            (None, _) => {}
        }
    }

    /// Leaves nothing of what was written since [`Self::empty`]: it is no dump.
    pub fn forget(&self) {
        self.remove_new();
        // What stays is no dump either, and that nothing readable was written is what will be told.
        let _stays = self.cut(0);
    }

    /// Empties the target, and makes `0..len` read as zeros. On a file that takes no space yet.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn empty(&self, len: u64) -> Result<(), WriteFailed> {
        self.written.store(0, Ordering::Relaxed);
        self.len.store(0, Ordering::Relaxed);
        self.room.iter().for_each(Room::clear);
        let failed = |error| WriteFailed { done: 0, offset: len, error };
        if let (_, Some(error)) = self.allowed(0, len) {
            return Err(failed(error));
        }
        if let Some(new) = &self.new {
            new.used.store(true, Ordering::Relaxed);
        }
        if let Kind::Regular(file) = &self.kind {
            file.set_len(0).map_err(failed)?;
        }
        match &self.kind {
            Kind::Nothing => {}
            Kind::Stream(stream) => stream.begin(len)?,
            Kind::Regular(file) => file.set_len(len).map_err(failed)?,
            // Old content may be anywhere. The old dump's header goes first, and before anything else that is its is touched.
            Kind::Block(_) => return self.fill(0, len).and_then(|()| self.sync()),
        }
        self.reach(len);
        Ok(())
    }

    /// Makes a regular file `len` bytes long.
    ///
    /// # Errors
    /// What the system said.
    pub fn cut(&self, len: u64) -> Result<(), WriteFailed> {
        let Kind::Regular(file) = &self.kind else { return Ok(()) };
        file.set_len(len).map_err(|error| WriteFailed { done: 0, offset: len, error })?;
        self.len.store(len, Ordering::Relaxed);
        Ok(())
    }

    fn reach(&self, end: u64) {
        self.len.fetch_max(end, Ordering::Relaxed);
    }

    /// Makes `from..to` read as zeros, and makes sure that it has its space, so that writing there later cannot fail for lack of it.
    /// Nothing was written there since [`Self::empty`].
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn reserve(&self, from: u64, to: u64) -> Result<(), WriteFailed> {
        let len = to.saturating_sub(from);
        if let (_, Some(error)) = self.allowed(from, len) {
            return Err(WriteFailed { done: 0, offset: from, error });
        }
        let file = match &self.kind {
            Kind::Nothing => {
                if self.room.as_ref().is_none_or(|room| room.reserve(from, to)) {
                    self.reach(to);
                }
                return Ok(());
            }
            Kind::Stream(stream) => {
                stream.reach(to);
                return Ok(());
            }
            // What the device held must not come back behind a header that is written next.
            Kind::Block(_) => return self.fill(from, to).and_then(|()| self.sync()),
            Kind::Regular(file) => file,
        };
        match rustix::fs::fallocate(file, FallocateFlags::empty(), from, len) {
            Ok(()) => {
                self.reach(to);
                Ok(())
            }
            Err(e @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                Err(WriteFailed { done: 0, offset: from, error: e.into() })
            }
            // Some file systems cannot reserve (NFS before 4.2, CIFS, 9p); there zeros are written.
            Err(_) => self.fill(from, to),
        }
    }

    /// Whether what was there before is still there where nothing was written yet.
    #[must_use]
    pub const fn has_old_content(&self) -> bool {
        matches!(self.kind, Kind::Block(_))
    }

    fn fill(&self, from: u64, to: u64) -> Result<(), WriteFailed> {
        let zeros = vec![0; 1 << 20];
        let mut at = from;
        while at < to {
            let n = (to - at).min(zeros.len() as u64);
            self.write_at(zeros.get(..n as usize).unwrap_or_default(), at)?;
            at += n;
        }
        Ok(())
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// How much was written before the failure, and what the system said.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), WriteFailed> {
        let (allowed, refused) = self.allowed(offset, bytes.len() as u64);
        let bytes = bytes.get(..allowed as usize).unwrap_or(bytes);
        self.write_all(bytes, offset)?;
        match refused {
            Some(error) => Err(WriteFailed { done: bytes.len(), offset, error }),
            None => Ok(()),
        }
    }

    /// As [`Self::write_at`], without a limit.
    fn write_all(&self, bytes: &[u8], offset: u64) -> Result<(), WriteFailed> {
        let file = match &self.kind {
            Kind::Regular(file) | Kind::Block(file) => file,
            Kind::Stream(stream) => return stream.block(bytes, offset),
            Kind::Nothing => {
                let len = bytes.len() as u64;
                let fits = self.room.as_ref().map_or(len, |room| room.take(offset, offset + len));
                self.wrote(fits as usize, offset);
                return Ok(());
            }
        };
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|r| !r.is_empty()) {
            match file.write_at(rest, offset + done as u64) {
                Ok(0) => {
                    let error = io::Error::new(io::ErrorKind::WriteZero, "the end of the device was reached");
                    return Err(WriteFailed { done, offset, error });
                }
                Ok(n) => {
                    self.wrote(n, offset + done as u64);
                    done += n;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(WriteFailed { done, offset, error }),
            }
        }
        Ok(())
    }

    fn wrote(&self, bytes: usize, offset: u64) {
        if bytes > 0 {
            self.written.fetch_add(bytes as u64, Ordering::Relaxed);
            self.reach(offset + bytes as u64);
        }
    }

    /// Reads back what was written at `offset`; false, and zeros, where nothing can be read back.
    ///
    /// # Errors
    /// What the system said.
    pub fn read_back(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        match &self.kind {
            Kind::Regular(file) | Kind::Block(file) => file.read_exact_at(buf, offset).map(|()| true),
            Kind::Nothing | Kind::Stream(_) => {
                buf.fill(0);
                Ok(false)
            }
        }
    }

    /// Waits until all that was written is on the medium.
    ///
    /// # Errors
    /// What the system said, for instance a lack of space that a network file system tells only now.
    pub fn sync(&self) -> Result<(), WriteFailed> {
        match &self.kind {
            Kind::Regular(file) | Kind::Block(file) => {
                file.sync_data().map_err(|error| WriteFailed { done: 0, offset: 0, error })
            }
            // What a reader of a pipe does with it is out of reach.
            Kind::Nothing | Kind::Stream(_) => Ok(()),
        }
    }
}

/// A file that did not exist before. One that was never used is removed at the end: nothing came of it, and of several that could not
/// all be opened nothing stays.
struct New {
    path: PathBuf,
    metadata: Metadata,
    used: AtomicBool,
}

impl New {
    fn of(path: &Path, file: &File) -> Option<Self> {
        let metadata = file.metadata().ok()?;
        Some(Self { path: path.to_owned(), metadata, used: AtomicBool::new(false) })
    }
}

impl Drop for New {
    fn drop(&mut self) {
        if !*self.used.get_mut() && is_file(&self.metadata, &self.path) {
            // That nothing came of it is told in any case.
            let _kept = std::fs::remove_file(&self.path);
        }
    }
}
