//! A file whose bytes can be read at any offset.

use crate::window::Window;
use crate::{FormatError, Result};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Random access to the bytes of a file, shared by all threads.
pub trait Bytes: Send + Sync {
    /// The name to show in messages.
    fn name(&self) -> &str;

    /// Length in bytes.
    fn len(&self) -> u64;

    /// Whether the file has no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads from `offset` on into `buf` and returns how much was read: less than asked only at the end of the file.
    ///
    /// # Errors
    /// What the operating system said, for instance EIO or EFAULT for memory it cannot reach.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// A read-only mapping of `len` bytes from `offset` on, or `None` where mapping is not possible: then use
    /// [`Self::read_at`].
    fn window(&self, offset: u64, len: usize) -> Option<Window>;

    /// The file that has these bytes at the same offsets, where there is one: so that the kernel can copy from it.
    fn file(&self) -> Option<&File> {
        None
    }

    /// Bytes behind [`Self::len`] that are real and not holes, as far as that is known: what memory may be taken for.
    fn backed(&self) -> u64 {
        self.len()
    }

    /// Tells that reads will jump from here to there, so that reading ahead is of no use; or that they no longer will.
    fn expect_jumps(&self, _jumps: bool) {}

    /// Tells that the page at `offset` may be read soon.
    fn read_soon(&self, _offset: u64) {}

    /// Whether reading reaches the memory of a machine itself, where nothing may be touched that was not asked for: the next page
    /// may be poisoned or belong to the hypervisor, and reading it is the end of the capture kernel.
    fn is_memory(&self) -> bool {
        false
    }

    /// The first run of bytes from `offset` on that somebody wrote. A hole of a sparse file is written: whoever made it had zeros
    /// there. A part of a flattened stream's file that no block brings is not.
    fn next_written(&self, offset: u64) -> Option<Range<u64>> {
        (offset < self.len()).then(|| offset..self.len())
    }

    /// Whether some of `range` is known to have been lost on the way here, so that the zeros read there were never anybody's.
    fn lacks(&self, _range: Range<u64>) -> bool {
        false
    }

    /// The first run of bytes from `offset` on that [`Self::lacks`] speaks of in a file without descriptors, where nothing else tells that
    /// they are lost: of a stream with a block at a wrong place. It may reach beyond [`Self::len`].
    fn next_lost(&self, _offset: u64) -> Option<Range<u64>> {
        None
    }

    /// The first offset from `offset` on that may hold something else than zero, so that a walk can step over holes.
    fn next_data(&self, offset: u64) -> u64 {
        offset
    }
}

/// A regular file, a block device, or a file of /proc such as /proc/vmcore.
#[derive(Debug)]
pub struct FileBytes {
    file: File,
    name: String,
    len: u64,
    proc: bool,
    /// Whether windows are worth asking for; cleared at the first refusal, for /proc/vmcore of an architecture without
    /// mmap refuses every time.
    mappable: AtomicBool,
}

impl FileBytes {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// [`FormatError::Io`] where it cannot be opened or its size cannot be found.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let of = |what, error| FormatError::Io { file: name.clone(), what, offset: 0, error };
        let file = File::open(path).map_err(|e| of("the file", e))?;
        let len = length(&file).map_err(|e| of("the file's size", e))?;
        // Each read of /proc/vmcore maps and unmaps memory page by page in the kernel; a window does that once. A cached
        // regular file is faster copied: 580 MB in 65 ms of CPU by preads of 64 KiB to 1 MiB, 82 ms and more by windows
        // of 256 KiB to 64 MiB (Linux 6.1, one thread; with more, unmapping also interrupts the others).
        let proc = rustix::fs::fstatfs(&file).is_ok_and(|fs| fs.f_type == rustix::fs::PROC_SUPER_MAGIC);
        Ok(Self { file, name, len, proc, mappable: AtomicBool::new(proc) })
    }

    /// The same file, with windows offered or not whatever the kind of file.
    #[must_use]
    pub fn with_windows(self, offered: bool) -> Self {
        self.mappable.store(offered, Ordering::Relaxed);
        self
    }
}

/// Size of a regular or /proc file by its metadata; that of a block device by seeking, since its metadata say 0.
fn length(mut file: &File) -> io::Result<u64> {
    match file.metadata()?.len() {
        0 => file.seek(SeekFrom::End(0)),
        len => Ok(len),
    }
}

impl Bytes for FileBytes {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|r| !r.is_empty()) {
            match self.file.read_at(rest, offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn window(&self, offset: u64, len: usize) -> Option<Window> {
        if len == 0 || offset.checked_add(len as u64)? > self.len || !self.mappable.load(Ordering::Relaxed) {
            return None;
        }
        match Window::map(&self.file, offset, len) {
            Ok(window) => window,
            Err(_) => {
                self.mappable.store(false, Ordering::Relaxed);
                None
            }
        }
    }

    fn is_memory(&self) -> bool {
        self.proc
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }

    fn expect_jumps(&self, jumps: bool) {
        // Only a hint; what does not take it (a pipe, /proc) is read all the same.
        let _refused = fadvise(&self.file, 0, None, if jumps { Advice::Random } else { Advice::Normal });
    }

    fn read_soon(&self, offset: u64) {
        let _refused = fadvise(&self.file, offset, NonZeroU64::new(1), Advice::WillNeed);
    }

    fn next_data(&self, offset: u64) -> u64 {
        // Files without holes to ask about (/proc, devices) answer with an error: everything may be data.
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(at) => at.max(offset),
            Err(rustix::io::Errno::NXIO) => self.len.max(offset),
            Err(_) => offset,
        }
    }
}

/// A file that was cut short, as long as its headers say: zeros follow its end.
pub(crate) struct Padded {
    /// The file.
    pub bytes: Arc<dyn Bytes>,
    /// Length in bytes, at least that of the file.
    pub len: u64,
}

impl Bytes for Padded {
    fn name(&self) -> &str {
        self.bytes.name()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        let Some(buf) = buf.get_mut(..want) else { return Ok(0) };
        let done = self.bytes.read_at(offset, buf)?;
        buf.get_mut(done..).unwrap_or_default().fill(0);
        Ok(want)
    }

    fn window(&self, _offset: u64, _len: usize) -> Option<Window> {
        None
    }

    fn backed(&self) -> u64 {
        self.bytes.backed().max(PADDED_READ)
    }

    fn next_written(&self, offset: u64) -> Option<Range<u64>> {
        self.bytes.next_written(offset)
    }

    fn lacks(&self, range: Range<u64>) -> bool {
        range.end > self.bytes.len() || self.bytes.lacks(range)
    }

    fn next_lost(&self, offset: u64) -> Option<Range<u64>> {
        self.bytes.next_lost(offset)
    }

    fn next_data(&self, offset: u64) -> u64 {
        let data = self.bytes.next_data(offset);
        if data < self.bytes.len() { data } else { self.len.max(offset) }
    }
}

impl Bytes for Vec<u8> {
    fn name(&self) -> &str {
        "memory"
    }

    fn len(&self) -> u64 {
        Vec::len(self) as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(offset).ok().and_then(|o| self.get(o..)).unwrap_or_default();
        let n = from.len().min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..n), from.get(..n)) {
            to.copy_from_slice(from);
        }
        Ok(n)
    }

    fn window(&self, _offset: u64, _len: usize) -> Option<Window> {
        None
    }
}

/// Bytes that may be read at a time of a file that was cut short, however little is left of it.
const PADDED_READ: u64 = 1 << 20;

/// The longest region read into memory as a whole. Device dumps among the notes of /proc/vmcore are the longest there
/// are, and a capture kernel has less memory than this.
const LONGEST: u64 = 1 << 30;

/// Up to `len` bytes from `offset` on, fewer at the end of the file; never takes memory the file does not account for.
///
/// # Errors
/// [`FormatError::Io`] naming `what`.
pub(crate) fn read_some(bytes: &dyn Bytes, what: &'static str, offset: u64, len: u64) -> Result<Vec<u8>> {
    let have = bytes.len().saturating_sub(offset).min(len).min(bytes.backed()).min(LONGEST);
    let mut buf = vec![0; usize::try_from(have).unwrap_or(usize::MAX)];
    let n = bytes.read_at(offset, &mut buf).map_err(|error| FormatError::Io {
        file: bytes.name().to_owned(),
        what,
        offset,
        error,
    })?;
    buf.truncate(n);
    Ok(buf)
}

/// Exactly `len` bytes from `offset` on.
///
/// # Errors
/// [`FormatError::CutShort`] where the file has fewer, else as [`read_some`].
pub(crate) fn read_exact(bytes: &dyn Bytes, what: &'static str, offset: u64, len: u64) -> Result<Vec<u8>> {
    let buf = read_some(bytes, what, offset, len)?;
    if buf.len() as u64 == len {
        return Ok(buf);
    }
    let end = offset.saturating_add(len);
    Err(FormatError::CutShort { file: bytes.name().to_owned(), what, offset, end, len: bytes.len() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn reads_are_short_only_at_the_end() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        let bytes = FileBytes::open(file.path()).unwrap();
        assert_eq!(bytes.len(), 10_000);
        let mut buf = [0; 6000];
        assert_eq!(bytes.read_at(0, &mut buf).unwrap(), 6000);
        assert_eq!(bytes.read_at(6000, &mut buf).unwrap(), 4000);
        assert_eq!(bytes.read_at(10_000, &mut buf).unwrap(), 0);
        assert!(matches!(read_exact(&bytes, "x", 9_999, 2), Err(FormatError::CutShort { end: 10_001, .. })));
        assert_eq!(read_some(&bytes, "x", 9_999, u64::MAX).unwrap(), [7]);
    }

    #[test]
    fn holes_are_stepped_over() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 << 20).unwrap();
        file.as_file().write_all_at(&[1], 48 << 20).unwrap();
        let bytes = FileBytes::open(file.path()).unwrap();
        assert!((1..=48 << 20).contains(&bytes.next_data(0)) || bytes.next_data(0) == 0, "a file system may not tell");
        assert_eq!(bytes.next_data(48 << 20), 48 << 20);
    }

    #[test]
    fn windows_show_the_bytes_at_any_offset_and_never_past_the_end() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
        file.write_all(&content).unwrap();
        let bytes = FileBytes::open(file.path()).unwrap();
        assert!(bytes.window(0, 1).is_none(), "a regular file is copied");
        let bytes = bytes.with_windows(true);
        for (offset, len) in [(0, 1), (1, 8191), (4095, 2), (4096, 4096), (19_999, 1)] {
            let window = bytes.window(offset as u64, len).unwrap();
            assert_eq!(&*window, &content[offset..offset + len]);
        }
        assert!(bytes.window(19_999, 2).is_none());
        assert!(bytes.window(u64::MAX, 2).is_none());
    }
}
