//! A file out of a flattened stream.
//!
//! ```text
//! stream ─ read 1 MiB at a time, block headers parsed ─> pieces ─ a thread of its own ─> written where they belong
//!   the file's first 1024 bytes wait; what stands there meanwhile is marked incomplete
//!   end marker ─> sync ─> the first bytes as they came
//!   no end marker ─> descriptors that point at what did not arrive are taken back, what is lost is listed, the mark stays
//! ```

mod salvage;
mod sink;

use crate::budget::WORKER_STACK;
use crate::error::EngineError;
use crate::lock::Lock;
use crate::names::is_file;
use crate::options::StreamFrom;
use crate::target::Output;
use coresift_format::{FLAT_HEADER_LEN, FLAT_SIGNATURE, FlatBlock, FormatError, check_flat_head};
use rustix::fs::Advice;
use serde::Serialize;
use sink::{Piece, Sink};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, channel, sync_channel};
use std::time::Instant;

/// Bytes read at a time: with less, blocks of 64 KiB are cut into pieces more often; with more, they leave the cpu's cache before
/// they are written.
const PIECE: usize = 1 << 20;
/// Pieces that may wait to be written.
const WAITING: usize = 2;

/// How to make a file out of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnflattenOptions {
    /// Overwrite an existing file.
    pub force: bool,
    /// Do everything but write.
    pub dry_run: bool,
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
    /// How the stream breaks off, where it does.
    pub cut: Option<String>,
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

/// Makes the file `out` of the flattened stream `from`. A stream that is cut short gives a file that is marked incomplete and holds
/// all that arrived: see [`Unflattened::complete`].
///
/// # Errors
/// The stream cannot be read or is none, in which case `out` is not touched; or `out` exists or cannot be written.
pub fn unflatten(from: &StreamFrom, out: &Path, options: UnflattenOptions) -> Result<Unflattened, EngineError> {
    let started = Instant::now();
    Output::check(out, options.force)?;
    let mut stream = Stream::open(from)?;
    if stream.seekable && stream.file.metadata().is_ok_and(|stream| is_file(&stream, out)) {
        return Err(EngineError::TargetIsInput { path: out.to_owned() });
    }
    let head = stream.head()?;
    check_flat_head(&stream.name, &head)?;
    let output = Output::open(out, options.force, options.dry_run)?;
    if output.has_old_content() {
        let error = io::Error::new(
            io::ErrorKind::InvalidInput,
            "a file is needed, and this is a block device: its old content would show where the stream has nothing",
        );
        return Err(EngineError::TargetOpen { path: out.to_owned(), error });
    }
    output.empty(0).map_err(|failed| EngineError::Write {
        path: out.to_owned(),
        offset: failed.offset,
        error: failed.error,
        readable: false,
    })?;
    let sink = Lock::new("unflatten", Sink::new(output));
    let end = copy(&mut stream, &sink);
    let sink = sink.into_inner();
    let mut made = Unflattened { input: stream.name.clone(), ..Unflattened::default() };
    let ended = sink.finish(end, &mut made).map_err(|failed| EngineError::Write {
        path: out.to_owned(),
        offset: failed.offset,
        error: failed.error,
        readable: made.container.is_some(),
    })?;
    if let Some(arrived) = ended.filter(|_| !options.dry_run) {
        salvage::salvage(out, arrived, &mut made)?;
    }
    made.seconds = started.elapsed().as_secs_f64();
    Ok(made)
}

/// A stream that is being read.
struct Stream {
    file: File,
    name: String,
    /// Whether what follows can be looked at without waiting for it.
    seekable: bool,
}

impl Stream {
    fn open(from: &StreamFrom) -> Result<Self, EngineError> {
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
        Ok(Self { file, name, seekable })
    }

    /// The stream header, or all there is.
    fn head(&mut self) -> Result<Vec<u8>, EngineError> {
        let mut head = vec![0; FLAT_HEADER_LEN];
        let io = |error| FormatError::Io { file: self.name.clone(), what: "the stream header", offset: 0, error };
        let n = fill(&mut self.file, &mut head).map_err(|(_, error)| io(error))?;
        head.truncate(n);
        Ok(head)
    }
}

/// Reads until `buf` is full or the file ends; how much was read, also where that failed.
fn fill(file: &mut File, buf: &mut [u8]) -> Result<usize, (usize, io::Error)> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && readable(file) => {}
            Err(e) => return Err((done, e)),
        }
    }
    Ok(done)
}

/// Waits for a stream that another process set to non-blocking; false where that cannot be waited for.
fn readable(file: &File) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    poll(&mut [PollFd::new(file, PollFlags::IN)], None).is_ok()
}

/// How a stream ended.
struct End {
    /// Offset in the stream where.
    at: u64,
    /// Why, where it was not the end marker.
    cut: Option<String>,
    /// What the block that was cut should have brought.
    lost: Option<Range<u64>>,
    /// Blocks that arrived whole.
    blocks: u64,
    /// What follows the end marker.
    follows: Option<String>,
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
                piece.writes.clear();
                if !on || empty.send(piece).is_err() {
                    return;
                }
            }
        });
        let mut parser = Parser { at: FLAT_HEADER_LEN as u64, ..Parser::default() };
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
                    Piece { bytes: vec![0; PIECE], writes: Vec::new() }
                }
            };
            let (n, failed) = match fill(&mut stream.file, &mut piece.bytes) {
                Ok(n) => (n, None),
                Err((n, error)) => (n, Some(error)),
            };
            let ended = parser.parse(piece.bytes.get(..n).unwrap_or_default(), &mut piece.writes);
            let over = ended.is_some() || n < PIECE;
            let rest = ended.map(|at| piece.bytes.get(at..n).unwrap_or_default().to_vec());
            let taken = if writer.is_ok() { full.send(piece).is_ok() } else { sink.hold().take(&piece) };
            if !taken {
                return parser.end(None);
            }
            if over {
                let mut end = parser.end(failed);
                if end.cut.is_none() {
                    end.follows = follows(stream, rest.unwrap_or_default(), end.at);
                }
                return end;
            }
        }
    })
}

/// What stands behind the end marker at `at`, of which `known` was read already. A pipe is not waited for.
fn follows(stream: &mut Stream, mut known: Vec<u8>, at: u64) -> Option<String> {
    if stream.seekable && known.len() < FLAT_SIGNATURE.len() {
        let mut more = vec![0; FLAT_HEADER_LEN];
        let n = fill(&mut stream.file, &mut more).unwrap_or_else(|(n, _)| n);
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

/// Where in the stream the parser is.
#[derive(Default)]
struct Parser {
    /// Offset in the stream.
    at: u64,
    /// The part of a block header that was read.
    header: Vec<u8>,
    /// Where the rest of the block goes, and how much of it there is.
    offset: u64,
    left: u64,
    blocks: u64,
    /// How it ended: by the end marker, or by a block that cannot be.
    over: Option<Option<String>>,
}

impl Parser {
    /// Goes through the next bytes of the stream, and adds what is to be written. Returns the place in `bytes` where the stream is
    /// over, if it is.
    fn parse(&mut self, bytes: &[u8], writes: &mut Vec<(u64, Range<usize>)>) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            if self.left > 0 {
                let n = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len() - at);
                writes.push((self.offset, at..at + n));
                self.offset += n as u64;
                self.left -= n as u64;
                self.at += n as u64;
                at += n;
                self.blocks += u64::from(self.left == 0);
                continue;
            }
            let n = (FlatBlock::LEN - self.header.len()).min(bytes.len() - at);
            self.header.extend_from_slice(bytes.get(at..at + n).unwrap_or_default());
            self.at += n as u64;
            at += n;
            let Some(raw) = self.header.first_chunk() else { break };
            match FlatBlock::decode(raw) {
                FlatBlock::Bytes { offset, len } => (self.offset, self.left) = (offset, len),
                FlatBlock::End => self.over = Some(None),
                FlatBlock::Bad { offset, size } => {
                    self.at -= FlatBlock::LEN as u64;
                    let text = format!(
                        "the block header at offset {} says {size} bytes for offset {offset}, which no writer writes",
                        self.at
                    );
                    self.over = Some(Some(text));
                }
            }
            self.header.clear();
            if self.over.is_some() {
                return Some(at);
            }
        }
        None
    }

    fn end(self, failed: Option<io::Error>) -> End {
        let Self { at, header, offset, left, blocks, over } = self;
        let lost = (left > 0).then(|| offset..offset + left);
        let place = match (header.len(), left) {
            (0, 0) => "in front of its end marker, which is missing".to_owned(),
            (0, left) => format!("inside a block, of which {left} bytes are missing"),
            _ => "inside a block header".to_owned(),
        };
        let at = at - header.len() as u64;
        let cut = match (over, failed) {
            (Some(None), _) => None,
            (Some(Some(why)), _) => Some(why),
            (None, None) => Some(format!("the stream ends at offset {} {place}", at + header.len() as u64)),
            (None, Some(error)) => Some(format!("the stream cannot be read at offset {at}, {place}: {error}")),
        };
        End { at, cut, lost, blocks, follows: None }
    }
}
