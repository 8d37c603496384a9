//! The end of a file that was made of a stream: whole, saved as far as it goes, or none.

use super::parser::End;
use super::salvage::salvage;
use super::sink::Sink;
use super::{LostRange, Unflattened};
use crate::error::EngineError;
use crate::target::WriteFailed;
use coresift_format::{Container, FileBytes, Frame, Misplaced};
use std::path::Path;

impl Sink {
    /// Ends the file `out`, and says in `made` what was made.
    ///
    /// # Errors
    /// Nothing came of it that could be opened: there is no file then. Or what was saved cannot be written.
    pub fn finish(mut self, out: &Path, end: End, made: &mut Unflattened, dry_run: bool) -> Result<(), EngineError> {
        // A small dump may be here as a whole, and still held back.
        if !self.begun()
            && self.container.is_some()
            && end.cut.is_none()
            && let Err(failed) = self.begin()
        {
            self.failed = Some(failed);
        }
        let stopped = end.stopped;
        made.container = self.container.map(Container::name);
        (made.stream_bytes, made.blocks, made.follows) = (end.at, end.blocks, end.follows);
        made.bytes = self.bytes;
        // Where writing failed, the stream was not read to its end.
        made.cut = self.failed.as_ref().map(|failed| cannot_write(out, failed)).or(end.cut);
        if let Some(lost) = end.lost {
            made.lost.push(LostRange { start: lost.start, end: lost.end, what: "the rest of the block that was cut" });
        }
        if self.begun() && self.failed.is_none() {
            self.output.sync().map_err(|failed| not_written(out, failed, self.container.is_some()))?;
        }
        self.written.settle();
        let (misplaced, in_doubt) =
            if self.begun() { self.judge(out, made.cut.is_some(), dry_run)? } else { (Vec::new(), false) };
        made.misplaced = misplaced.iter().map(ToString::to_string).collect();
        made.file_bytes = self.end;
        made.complete = made.cut.is_none() && misplaced.is_empty() && self.container.is_some();
        if made.complete {
            let whole = self.put_head(&self.head).and_then(|()| self.output.sync());
            return whole.map_err(|failed| not_written(out, failed, true));
        }
        if dry_run {
            return Ok(());
        }
        let begun = self.begun();
        let why_not = if in_doubt {
            let named = made.misplaced.join("; ");
            Some(format!("{named}; it may be of the bitmaps, without which no page can be told from another"))
        } else if begun && self.container.is_some() {
            salvage(out, self.written, made)?
        } else {
            Some("the headers of the dump inside did not arrive".to_owned())
        };
        let Some(why_not) = why_not else { return Ok(()) };
        if begun {
            self.output.remove(out)
        } else {
            self.output.remove_new()
        }
        let path = out.to_owned();
        Err(match (self.failed, stopped) {
            (Some(failed), _) => not_written(out, failed, false),
            (None, Some(why)) => EngineError::Interrupted { path, why, readable: false },
            (None, None) => {
                let cut = made.cut.take().map_or_else(String::new, |cut| format!("{cut}; "));
                EngineError::NoDump { file: made.input.clone(), why: format!("{cut}{why_not}") }
            }
        })
    }

    /// The blocks that cannot belong where they say, now that all headers are there. What of them lies behind the end is cut off.
    fn judge(&mut self, out: &Path, cut: bool, dry_run: bool) -> Result<(Vec<Misplaced>, bool), EngineError> {
        let mut misplaced = std::mem::take(&mut self.misplaced);
        let frame = if dry_run { self.frame } else { Frame::read(&FileBytes::open(out)?, &self.head) };
        let Some(frame) = frame else { return Ok((misplaced, false)) };
        // Of a stream that was cut short blocks may be missing anywhere.
        let frame = if cut { Frame { gapless: u64::MAX, ..frame } } else { frame };
        let (more, in_doubt) = self.written.judge(&frame, !misplaced.is_empty());
        misplaced.extend(more);
        let in_doubt = in_doubt && !misplaced.is_empty();
        let end = self.written.end();
        if end < self.end && !misplaced.is_empty() {
            self.output.cut(end).map_err(|failed| not_written(out, failed, true))?;
            self.end = end;
        }
        Ok((misplaced, in_doubt))
    }
}

fn cannot_write(out: &Path, failed: &WriteFailed) -> String {
    format!("{} cannot be written at offset {}: {}", out.display(), failed.offset, failed.error)
}

fn not_written(out: &Path, failed: WriteFailed, readable: bool) -> EngineError {
    EngineError::Write { path: out.to_owned(), offset: failed.offset, error: failed.error, readable }
}
