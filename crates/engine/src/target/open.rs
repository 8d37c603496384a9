//! Whether something can become the target, and opening it: nothing that is there is touched.

use super::limit::Limit;
use super::stream::Stream;
use super::{Kind, New, Output};
use crate::error::EngineError;
use crate::options::{StreamTo, Target};
use crate::room::Room;
use rustix::fs::{Access, FileType, Mode, OFlags, access};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

impl Output {
    /// Checks that `path` can become the target, without touching it: what exists is not overwritten unless `force`.
    ///
    /// # Errors
    /// [`EngineError::TargetExists`], or [`EngineError::TargetOpen`] for what can be no target.
    pub fn check(path: &Path, force: bool) -> Result<(), EngineError> {
        let failed = |error| Err(EngineError::TargetOpen { path: path.to_owned(), error });
        let stat = match rustix::fs::stat(path) {
            Ok(stat) => stat,
            // A link to a file that is not there; creating that is left to the system.
            Err(Errno::NOENT) if rustix::fs::lstat(path).is_ok() => {
                return if force { Ok(()) } else { Err(EngineError::TargetExists { path: path.to_owned() }) };
            }
            Err(Errno::NOENT) if path.as_os_str().as_bytes().ends_with(b"/") => return failed(Errno::ISDIR.into()),
            Err(Errno::NOENT) => {
                return access(directory(path), Access::WRITE_OK | Access::EXEC_OK)
                    .or_else(|error| failed(error.into()));
            }
            Err(error) => return failed(error.into()),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice if is_null(&stat) => Ok(()),
            FileType::RegularFile | FileType::BlockDevice if force => {
                access(path, Access::READ_OK | Access::WRITE_OK).or_else(|error| failed(error.into()))
            }
            FileType::RegularFile | FileType::BlockDevice => Err(EngineError::TargetExists { path: path.to_owned() }),
            kind => failed(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a dump needs a file, a block device or /dev/null, and this is {}", kind_name(kind)),
            )),
        }
    }

    /// As [`Self::check`], of a target that is to become an ELF core.
    ///
    /// # Errors
    /// It is a block device: until all pages are written its old content would be in the places of those that are missing, and behind the
    /// last page it would stay.
    pub fn check_elf(path: &Path) -> Result<(), EngineError> {
        let block = rustix::fs::stat(path).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::BlockDevice);
        if !block {
            return Ok(());
        }
        let error = io::Error::new(
            io::ErrorKind::InvalidInput,
            "an ELF core needs a file, and this is a block device: its old content would show where pages are not written; write a \
             kdump-compressed file to it, or give a file",
        );
        Err(EngineError::TargetOpen { path: path.to_owned(), error })
    }

    /// As [`Self::check`], of any target.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_target(target: &Target, force: bool) -> Result<(), EngineError> {
        match target {
            Target::Path(path) => Self::check(path, force),
            Target::Stream(StreamTo::Path(path)) if is_new_or_file(path) => Self::check(path, force),
            // Pipes, sockets and character devices hold nothing that could be overwritten.
            Target::Stream(_) => Ok(()),
            Target::Parts { paths, .. } => paths.iter().try_for_each(|path| Self::check(path, force)),
        }
    }

    /// Opens the target. A new file has mode 0600; an existing one keeps its mode, and its content until [`Self::empty`].
    ///
    /// # Errors
    /// As [`Self::check`], or what the system said.
    pub fn open(path: &Path, force: bool, dry_run: bool) -> Result<Self, EngineError> {
        Self::check(path, force)?;
        let existing = rustix::fs::stat(path).ok();
        let is = |kind| existing.as_ref().is_some_and(|s| FileType::from_raw_mode(s.st_mode) == kind);
        if is(FileType::CharacterDevice) {
            return Ok(Self::nothing());
        }
        let block = is(FileType::BlockDevice);
        let room = Room::of(path);
        let kind = if dry_run {
            Kind::Nothing
        } else {
            let create = if block { OFlags::empty() } else { created(force) };
            let flags = OFlags::RDWR | OFlags::CLOEXEC | create;
            let opened = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
            let file = opened.map_err(|e| EngineError::TargetOpen { path: path.to_owned(), error: e.into() })?.into();
            if block { Kind::Block(file) } else { Kind::Regular(file) }
        };
        let new = match &kind {
            Kind::Regular(file) if existing.is_none() => New::of(path, file),
            _ => None,
        };
        Ok(Self { new, ..Self::new(kind).within(room, !block, dry_run) })
    }

    /// Opens all files of any target.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_target(target: &Target, force: bool, dry_run: bool) -> Result<Vec<Self>, EngineError> {
        match target {
            Target::Path(path) => Ok(vec![Self::open(path, force, dry_run)?]),
            Target::Parts { paths, .. } => paths.iter().map(|path| Self::open(path, force, dry_run)).collect(),
            Target::Stream(to) => {
                Self::check_target(target, force)?;
                let failed = |e: Errno| EngineError::TargetOpen { path: target.name().to_owned(), error: e.into() };
                Ok(vec![Self::open_stream(to, force, dry_run).map_err(failed)?])
            }
        }
    }

    fn open_stream(to: &StreamTo, force: bool, dry_run: bool) -> rustix::io::Result<Self> {
        let mut new = None;
        let (room, file, regular) = match to {
            StreamTo::Stdout => {
                let stdout = rustix::stdio::stdout();
                let regular = FileType::from_raw_mode(rustix::fs::fstat(stdout)?.st_mode) == FileType::RegularFile;
                let room = if regular { Room::behind(stdout) } else { None };
                (room, if dry_run { None } else { Some(rustix::io::dup(stdout)?.into()) }, regular)
            }
            StreamTo::Path(path) => {
                let regular = is_new_or_file(path);
                let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
                let flags = if regular { flags | created(force) } else { flags };
                let (room, existing) = (Room::of(path), path.exists());
                let open = || rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map(File::from);
                let file = if dry_run { None } else { Some(open()?) };
                new = file.as_ref().filter(|_| !existing).and_then(|file| New::of(path, file));
                (room, file, regular)
            }
        };
        let over = regular && matches!(to, StreamTo::Path(_));
        let stream = Self::new(Kind::Stream(Stream::new(file, over))).within(room, regular, dry_run);
        Ok(Self { new, ..stream })
    }

    /// The same, with what bounds it: the `room` there is, and of a file what the process may write.
    fn within(self, room: Option<Room>, file: bool, dry_run: bool) -> Self {
        let free = room.as_ref().map(|room| room.forecast().room());
        let process = getrlimit(Resource::Fsize).current.filter(|_| file);
        Self { room: room.filter(|_| dry_run), free, limit: process.map(Limit::Process), ..self }
    }
}

/// How a file that may exist is opened: its content stays until the first write is known to be possible.
fn created(force: bool) -> OFlags {
    OFlags::CREATE | if force { OFlags::empty() } else { OFlags::EXCL }
}

/// The directory `path` is in.
pub fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether `path` is a regular file or block device, or not there yet.
fn is_new_or_file(path: &Path) -> bool {
    rustix::fs::stat(path).map_or(true, |stat| {
        matches!(
            FileType::from_raw_mode(stat.st_mode),
            FileType::RegularFile | FileType::BlockDevice | FileType::Directory
        )
    })
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "none of these",
    }
}

fn is_null(stat: &rustix::fs::Stat) -> bool {
    (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == (1, 3)
}
