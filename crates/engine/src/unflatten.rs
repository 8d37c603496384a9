//! A file out of a flattened stream.
//!
//! ```text
//! stream ─ read 1 MiB at a time, block headers parsed ─> pieces ─ a thread of its own ─> written where they belong
//!   the file's first 1024 bytes wait; what stands there meanwhile is marked incomplete
//!   end marker ─> sync ─> the first bytes as they came
//!   no end marker ─> descriptors that point at what did not arrive are taken back, what is lost is listed, the mark stays
//! ```

mod finish;
mod parser;
mod salvage;
mod sink;
mod stream;

use crate::budget::WORKER_STACK;
use crate::error::EngineError;
use crate::lock::Lock;
use crate::options::StreamFrom;
use crate::stop::Stop;
use crate::target::Output;
use coresift_format::{FormatError, check_flat_head};
use parser::{End, Parser};
use serde::Serialize;
use sink::{Piece, Sink};
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, channel, sync_channel};
use std::time::Instant;
use stream::{Stream, Unread};

/// Bytes read at a time: with less, blocks of 64 KiB are cut into pieces more often; with more, they leave the cpu's cache before
/// they are written.
const PIECE: usize = 1 << 20;
/// Pieces that may wait to be written.
const WAITING: usize = 2;

/// How to make a file out of a stream.
#[derive(Clone, Debug, Default)]
pub struct UnflattenOptions {
    /// Overwrite an existing file.
    pub force: bool,
    /// Do everything but write.
    pub dry_run: bool,
    /// When to end early.
    pub stop: Stop,
}

/// What was made. In JSON any field may be absent in a later version.
#[derive(Debug, Default, Serialize)]
pub struct Unflattened {
    /// The name of the stream.
    pub input: String,
    /// `kdump` or `elf`; absent where the file's headers did not arrive.
    pub container: Option<&'static str>,
    /// Whether the stream had its end marker, so that the file is what its writer meant it to be.
    pub complete: bool,
    /// How the stream breaks off, or why no more of it was taken.
    pub cut: Option<String>,
    /// Blocks that cannot belong where they say, the first few of them.
    pub misplaced: Vec<String>,
    /// Offset in the stream where it ends, behind its end marker, or breaks off.
    pub stream_bytes: u64,
    /// Blocks that arrived whole.
    pub blocks: u64,
    /// Bytes written, those of blocks that arrived in part included.
    pub bytes: u64,
    /// Length of the file.
    pub file_bytes: u64,
    /// Byte ranges of the file that are known to be lost.
    pub lost: Vec<LostRange>,
    /// Pages that are known to be lost, of a kdump-compressed file.
    pub lost_pages: u64,
    /// Pages the file should hold, of a kdump-compressed file that was cut short.
    pub pages: u64,
    /// The page frames of these, as far as there is room for them.
    pub lost_page_frames: Vec<LostPages>,
    /// Page descriptors that were taken back, for what they pointed at did not arrive.
    pub descriptors_taken_back: u64,
    /// What follows the end marker.
    pub follows: Option<String>,
    /// Things a user should know.
    pub notes: Vec<String>,
    /// Seconds it took.
    pub seconds: f64,
}

/// Bytes of the file that did not arrive.
#[derive(Debug, Serialize)]
pub struct LostRange {
    /// File offset of the first.
    pub start: u64,
    /// File offset behind the last.
    pub end: u64,
    /// What they are.
    pub what: &'static str,
}

/// Neighbouring pages that are lost.
#[derive(Debug, Serialize)]
pub struct LostPages {
    /// First page frame number.
    pub pfn: u64,
    /// Number of pages.
    pub pages: u64,
}

/// Makes the file `out` of the flattened stream `from`. Blocks are written as they come, without waiting for the medium between them: a power
/// cut leaves a file that is marked incomplete, but descriptors may stand in it whose data are not on the medium, or come later in the
/// stream. What is told of the order of a dump's writes does not hold for it; a run that ends in order takes such descriptors back. A stream that is cut short or damaged gives a file that is marked incomplete and
/// holds all that arrived: see [`Unflattened::complete`]. So does a target that is full, and `stop`.
///
/// # Errors
/// The stream cannot be read or is none, or so little of it arrived that nothing can be opened: then there is no file, and one that
/// there was before is as it was; or `out` exists or cannot be written.
pub fn unflatten(from: &StreamFrom, out: &Path, options: UnflattenOptions) -> Result<Unflattened, EngineError> {
    let started = Instant::now();
    Output::check(out, options.force)?;
    let mut stream = Stream::open(from, options.stop)?;
    if stream.is(out) {
        return Err(EngineError::TargetIsInput { path: out.to_owned() });
    }
    let head = stream.head().map_err(|why| match why {
        Unread::Failed(error) => {
            FormatError::Io { file: stream.name.clone(), what: "the stream header", offset: 0, error }.into()
        }
        Unread::Stopped(why) => EngineError::Interrupted { path: out.to_owned(), why, readable: false },
    })?;
    check_flat_head(&stream.name, &head)?;
    let output = Output::open(out, options.force, options.dry_run)?;
    if output.has_old_content() {
        let error = io::Error::new(
            io::ErrorKind::InvalidInput,
            "a file is needed, and this is a block device: its old content would show where the stream has nothing",
        );
        return Err(EngineError::TargetOpen { path: out.to_owned(), error });
    }
    let sink = Lock::new("unflatten", Sink::new(output));
    let end = copy(&mut stream, &sink);
    let mut made = Unflattened { input: stream.name.clone(), ..Unflattened::default() };
    sink.into_inner().finish(out, end, &mut made, options.dry_run)?;
    made.seconds = started.elapsed().as_secs_f64();
    Ok(made)
}

/// Reads the blocks and hands them to the thread that writes.
fn copy(stream: &mut Stream, sink: &Lock<Sink>) -> End {
    let (full, pieces): (SyncSender<Piece>, Receiver<Piece>) = sync_channel(WAITING);
    let (empty, spare) = channel::<Piece>();
    std::thread::scope(|scope| {
        // Dropped on the way out, which ends the thread that writes.
        let full = full;
        let builder = std::thread::Builder::new().name("write".to_owned()).stack_size(WORKER_STACK);
        let writer = builder.spawn_scoped(scope, move || {
            for mut piece in pieces {
                let on = sink.hold().take(&piece);
                piece.parts.clear();
                if !on || empty.send(piece).is_err() {
                    return;
                }
            }
        });
        let mut parser = Parser::new();
        let mut made = 0;
        loop {
            let mut piece = match spare.try_recv() {
                Ok(piece) => piece,
                Err(TryRecvError::Empty) if made > WAITING + 1 => match spare.recv() {
                    Ok(piece) => piece,
                    // The writer failed; what it says is in the sink.
                    Err(_) => return parser.end(None),
                },
                Err(_) => {
                    made += 1;
                    Piece { bytes: vec![0; PIECE], parts: Vec::new() }
                }
            };
            let (n, failed) = match stream.fill(&mut piece.bytes) {
                Ok(n) => (n, None),
                Err((n, error)) => (n, Some(error)),
            };
            let ended = parser.parse(piece.bytes.get(..n).unwrap_or_default(), &mut piece.parts);
            let over = ended.is_some() || n < PIECE;
            let rest = ended.map(|at| piece.bytes.get(at..n).unwrap_or_default().to_vec());
            let taken = if writer.is_ok() { full.send(piece).is_ok() } else { sink.hold().take(&piece) };
            if !taken {
                return parser.end(None);
            }
            if over {
                let mut end = parser.end(failed);
                if end.cut.is_none() {
                    end.follows = stream.follows(rest.unwrap_or_default(), end.at);
                }
                return end;
            }
        }
    })
}
