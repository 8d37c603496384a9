//! makedumpfile's messages: five classes behind one bit mask, and the stream each goes to.
//!
//! | class | bit | stream |
//! |---|---|---|
//! | progress | 1 | stderr |
//! | common | 2 | stdout, stderr with -F |
//! | error, note | 4 | stderr |
//! | debug | 8 | stdout, stderr with -F |
//! | report | 16 | stdout, stderr with -F |

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// A class of messages; its value is its bit in the mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    Progress = 1,
    Common = 2,
    Error = 4,
    Debug = 8,
    Report = 16,
}

/// The classes shown unless the command line says otherwise.
pub const DEFAULT_LEVEL: u8 = Class::Progress as u8 | Class::Common as u8 | Class::Error as u8;
/// The highest mask: every class.
pub const MAX_LEVEL: i64 = 31;

type Stream = Mutex<Box<dyn Write + Send>>;

/// Where messages go, and which are shown. A message that cannot be written is lost: it never stops a dump.
pub struct Messages {
    level: u8,
    stdout_is_data: bool,
    out: Stream,
    err: Stream,
    /// Whether something could not be written to `out`.
    lost: AtomicBool,
}

impl Messages {
    /// Messages to `out` and `err` (the standard output and error).
    pub fn new(out: Box<dyn Write + Send>, err: Box<dyn Write + Send>) -> Self {
        Self {
            level: DEFAULT_LEVEL,
            stdout_is_data: false,
            out: Mutex::new(out),
            err: Mutex::new(err),
            lost: AtomicBool::new(false),
        }
    }

    /// Shows the classes of the mask `level`.
    pub fn set_level(&mut self, level: u8) {
        self.level = level;
    }

    /// Shows `class` too.
    pub fn show_also(&mut self, class: Class) {
        self.level |= class as u8;
    }

    /// Keeps the standard output free of messages.
    pub fn keep_stdout_for_data(&mut self) {
        self.stdout_is_data = true;
    }

    /// Whether messages of `class` are shown.
    pub fn shows(&self, class: Class) -> bool {
        self.level & class as u8 != 0
    }

    /// A line of `class`; errors get the program's name in front, which is where makedumpfile has a function's.
    pub fn line(&self, class: Class, text: &str) {
        let prefix = if class == Class::Error { "makedumpfile: " } else { "" };
        self.raw(class, &format!("{prefix}{text}\n"));
    }

    /// Something a user should know that is no error. makedumpfile has no such lines, so they stay off its standard output.
    pub fn note(&self, text: &str) {
        self.line(Class::Error, &format!("note: {text}"));
    }

    /// `text` as it is, if `class` is shown.
    pub fn raw(&self, class: Class, text: &str) {
        if !self.shows(class) {
            return;
        }
        let to_stderr = self.stdout_is_data || matches!(class, Class::Progress | Class::Error);
        let written = write(if to_stderr { &self.err } else { &self.out }, text);
        if !to_stderr && !written {
            self.lost.store(true, Ordering::Relaxed);
        }
    }

    /// Whether something could not be written to the standard output. That never stops a dump; but where a text was all that was
    /// asked for, nothing came of it.
    pub fn lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// A line to stderr whatever the mask says, as `getopt_long` prints it.
    pub fn getopt(&self, text: &str) {
        let _lost = write(&self.err, &format!("makedumpfile: {text}\n"));
    }
}

/// Whether `text` could be written; a reader that has seen enough (`| head`) is no failure.
fn write(stream: &Stream, text: &str) -> bool {
    let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
    let written = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
    written.map_or_else(|error| error.kind() == ErrorKind::BrokenPipe, |()| true)
}

#[cfg(test)]
pub mod capture {
    //! Streams that keep what was written, for tests.

    use super::*;
    use std::io;
    use std::sync::Arc;

    /// What a stream was given.
    #[derive(Clone, Default)]
    pub struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Captured {
        pub fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Messages with their two streams.
    pub fn messages() -> (Messages, Captured, Captured) {
        let (out, err) = (Captured::default(), Captured::default());
        (Messages::new(Box::new(out.clone()), Box::new(err.clone())), out, err)
    }
}

#[cfg(test)]
mod tests {
    use super::capture::messages;
    use super::*;

    const CLASSES: [(Class, bool); 5] = [
        (Class::Progress, true),
        (Class::Common, false),
        (Class::Error, true),
        (Class::Debug, false),
        (Class::Report, false),
    ];

    #[test]
    fn every_mask_shows_its_classes_on_their_streams() {
        for level in 0..=31u8 {
            for data in [false, true] {
                for (class, always_stderr) in CLASSES {
                    let (mut m, out, err) = messages();
                    m.set_level(level);
                    if data {
                        m.keep_stdout_for_data();
                    }
                    m.line(class, "text");
                    let shown = level & class as u8 != 0;
                    let stderr = always_stderr || data;
                    assert_eq!(out.text().contains("text"), shown && !stderr, "{class:?} {level}");
                    assert_eq!(err.text().contains("text"), shown && stderr, "{class:?} {level}");
                }
            }
        }
    }
}
