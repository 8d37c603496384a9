//! Opening a target: what can be one, and what must not be touched.

use super::{Kind, Limit, Output};
use crate::error::EngineError;
use crate::options::{StreamTo, Target};
use crate::room::Room;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

impl Output {
    /// Checks that `path` can become the target, without touching it: what exists is not overwritten unless `force`.
    ///
    /// # Errors
    /// [`EngineError::TargetExists`], or [`EngineError::TargetOpen`] for what can be no target.
    pub fn check(path: &Path, force: bool) -> Result<(), EngineError> {
        let Ok(stat) = rustix::fs::stat(path) else {
            // A link to a file that is not there: a new file is made with O_EXCL, which follows no link.
            let link = rustix::fs::lstat(path).is_ok();
            return if link && !force { Err(EngineError::TargetExists { path: path.to_owned() }) } else { Ok(()) };
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice if is_null(&stat) => Ok(()),
            FileType::RegularFile | FileType::BlockDevice if force => Ok(()),
            FileType::RegularFile | FileType::BlockDevice => Err(EngineError::TargetExists { path: path.to_owned() }),
            kind => Err(EngineError::TargetOpen {
                path: path.to_owned(),
                error: io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("a dump needs a file, a block device or /dev/null, and this is {}", kind_name(kind)),
                ),
            }),
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
        if dry_run || is(FileType::CharacterDevice) {
            let nothing = Self::new(Kind::Nothing);
            if !dry_run || is(FileType::CharacterDevice) {
                return Ok(nothing);
            }
            let process = getrlimit(Resource::Fsize).current.filter(|_| !is(FileType::BlockDevice));
            return Ok(Self { room: Room::of(path), limit: process.map(Limit::Process), ..nothing });
        }
        let block = is(FileType::BlockDevice);
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
        if !block {
            flags |= OFlags::CREATE | if force { OFlags::empty() } else { OFlags::EXCL };
        }
        let opened = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
        let file: File = opened.map_err(|e| EngineError::TargetOpen { path: path.to_owned(), error: e.into() })?.into();
        let kind = if block { Kind::Block(file) } else { Kind::Regular(file) };
        Ok(Self { new: existing.is_none(), ..Self::new(kind) })
    }

    /// Removes the file `path`, which this is, if it was made when it was opened: nothing came of it.
    pub fn remove_new(&self, path: &Path) {
        if self.new {
            // What stays is empty.
            let _stays = std::fs::remove_file(path);
        }
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

    /// Opens all files of any target.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_target(target: &Target, force: bool, dry_run: bool) -> Result<Vec<Self>, EngineError> {
        match target {
            Target::Path(path) => Ok(vec![Self::open(path, force, dry_run)?]),
            Target::Parts { paths, .. } => Self::open_parts(paths, force, dry_run),
            Target::Stream(to) if dry_run => {
                let room = if let StreamTo::Path(path) = to { Room::of(path) } else { None };
                Ok(vec![Self { room, ..Self::stream(None) }])
            }
            Target::Stream(to) => {
                Self::check_target(target, force)?;
                let file = open_stream(to, force);
                let file =
                    file.map_err(|e| EngineError::TargetOpen { path: target.name().to_owned(), error: e.into() });
                Ok(vec![Self::stream(Some(file?))])
            }
        }
    }

    /// Opens all `paths`, or none: of those that were new nothing stays behind.
    fn open_parts(paths: &[PathBuf], force: bool, dry_run: bool) -> Result<Vec<Self>, EngineError> {
        let mut parts = Vec::new();
        for path in paths {
            match Self::open(path, force, dry_run) {
                Ok(part) => parts.push(part),
                Err(error) => {
                    parts.iter().zip(paths).for_each(|(part, path)| part.remove_new(path));
                    return Err(error);
                }
            }
        }
        Ok(parts)
    }
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

fn open_stream(to: &StreamTo, force: bool) -> rustix::io::Result<File> {
    let file = match to {
        StreamTo::Stdout => rustix::io::dup(rustix::stdio::stdout())?,
        StreamTo::Path(path) => {
            let mut flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
            if is_new_or_file(path) {
                flags |= OFlags::CREATE | if force { OFlags::TRUNC } else { OFlags::EXCL };
            }
            rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?
        }
    };
    Ok(file.into())
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

/// The directory `path` is in.
#[must_use]
pub fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
