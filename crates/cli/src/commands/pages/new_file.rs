//! A file that has its name only when it is complete.

use std::fs::{self, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::{NamedTempFile, TempPath};

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
pub enum NewFileError {
    /// It was there before.
    #[error("{} exists; choose another name, or overwrite it with -f", .0.display())]
    Exists(PathBuf),
    /// It cannot be made.
    #[error("cannot write {}: {error}", path.display())]
    Io {
        /// Its name.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
}

/// Who may read a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Its owner: where pages lie is nothing for everyone.
    Owner,
    /// Whom the umask lets.
    Umask,
}

/// What is written, under another name or to a stream.
pub struct NewFile {
    path: PathBuf,
    force: bool,
    /// Removed where this goes away before it is finished.
    temporary: Option<TempPath>,
    out: BufWriter<Box<dyn Write + Send>>,
    written: u64,
}

impl NewFile {
    /// Begins what will be called `path`; `-` is the standard output, and a FIFO or a device is written to as it is.
    ///
    /// # Errors
    /// It exists without `force`, or its directory cannot be written to.
    pub fn create(path: &Path, force: bool, readers: Readers) -> Result<Self, NewFileError> {
        let failed = |error| NewFileError::Io { path: path.to_owned(), error };
        let (out, temporary): (Box<dyn Write + Send>, _) = if path.as_os_str() == "-" {
            (Box::new(crate::stdout::open().map_err(failed)?), None)
        } else if is_stream(path) {
            (Box::new(fs::OpenOptions::new().write(true).open(path).map_err(failed)?), None)
        } else {
            if !force && fs::symlink_metadata(path).is_ok() {
                return Err(NewFileError::Exists(path.to_owned()));
            }
            let mode = if readers == Readers::Owner { 0o600 } else { 0o666 };
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let temporary: NamedTempFile = tempfile::Builder::new()
                .prefix(".coresift-")
                .permissions(Permissions::from_mode(mode))
                .tempfile_in(folder)
                .map_err(failed)?;
            let (file, temporary) = temporary.into_parts();
            (Box::new(file), Some(temporary))
        };
        Ok(Self { path: path.to_owned(), force, temporary, out: BufWriter::with_capacity(1 << 18, out), written: 0 })
    }

    /// Ends it, and gives it its name. Returns the bytes it has.
    ///
    /// # Errors
    /// The rest cannot be written, or another file came to have the name in the meantime.
    pub fn finish(mut self) -> Result<u64, NewFileError> {
        let failed = |error| NewFileError::Io { path: self.path.clone(), error };
        self.out.flush().map_err(failed)?;
        let Some(temporary) = self.temporary.take() else { return Ok(self.written) };
        let named = if self.force { temporary.persist(&self.path) } else { temporary.persist_noclobber(&self.path) };
        named.map_err(|e| match e.error.kind() {
            io::ErrorKind::AlreadyExists => NewFileError::Exists(self.path.clone()),
            _ => failed(e.error),
        })?;
        Ok(self.written)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo() || file.file_type().is_char_device())
}
