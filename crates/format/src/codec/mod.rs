//! Page codecs: how the bytes of one page are made smaller, and back.
//!
//! ```text
//! page ─ Compressor (one codec, one level) ─> stored bytes, or nothing when they are not fewer: the page is then stored raw
//! page_desc.flags ─ Codec::from_flags ─┐
//! stored bytes ─ Decompressor ─────────┴─> page
//! ```
//!
//! A file may mix codecs (a merge of parts does), so the codec is a property of each page, never of the file.

mod deflate;
mod huffman;
mod lzo;
mod matching;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// How the bytes of a page are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Codec {
    /// As they are.
    None,
    /// One complete zlib stream (RFC 1950).
    Zlib,
    /// One LZO1X block, without a header.
    Lzo,
    /// One raw snappy block, without framing.
    Snappy,
    /// One zstd frame that states its content size.
    Zstd,
}

/// What is fixed about a codec.
struct Row {
    codec: Codec,
    name: &'static str,
    /// The bit in `status` of the header and in `flags` of a page descriptor (kdump-compressed format).
    flag: u32,
    /// Lowest, highest and default level.
    levels: Option<(i32, i32, i32)>,
}

/// One row a codec, in the order of the enum. Default levels are makedumpfile's. At them, in MB/s of one core and size, on the pages
/// of an 8 GiB 6.12 kernel without those of zeros (the example `codecs`; in brackets the C library makedumpfile uses, in the same run):
/// zlib 517 (160), 24.3 % (24.8); zstd 604, 23.5 %; lzo 1750 (1748), 29.9 % (30.0); snappy 1950 (1785), 31.4 % (31.4).
///
/// zstd is left as it is: on pages its tables of 8 to 32 KiB cost nothing (hash logs of 10 to 13 are equally fast, and 0.7 % apart
/// in size), minimal matches of 6 are 3 % faster and 1.7 % larger, two hash tables 8 % slower and 1.1 % smaller. Half of its time is
/// counting, and building and writing codes.
const ROWS: [Row; 5] = [
    Row { codec: Codec::None, name: "none", flag: 0, levels: None },
    Row { codec: Codec::Zlib, name: "zlib", flag: 0x01, levels: Some((1, 12, 1)) },
    Row { codec: Codec::Lzo, name: "lzo", flag: 0x02, levels: None },
    Row { codec: Codec::Snappy, name: "snappy", flag: 0x04, levels: None },
    Row { codec: Codec::Zstd, name: "zstd", flag: 0x20, levels: Some((-131_072, 22, 1)) },
];

impl Codec {
    /// Every codec; all are always built in.
    pub const ALL: [Self; 5] = [Self::None, Self::Zlib, Self::Lzo, Self::Snappy, Self::Zstd];

    fn row(self) -> &'static Row {
        let [none, zlib, lzo, snappy, zstd] = &ROWS;
        match self {
            Self::None => none,
            Self::Zlib => zlib,
            Self::Lzo => lzo,
            Self::Snappy => snappy,
            Self::Zstd => zstd,
        }
    }

    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The bit in the header's `status` and in a page descriptor's `flags`; 0 for [`Codec::None`].
    #[must_use]
    pub fn flag(self) -> u32 {
        self.row().flag
    }

    /// The codec that the `flags` of a page descriptor name.
    ///
    /// The header's `status` has other bits too (incomplete 0x08, vmemmap excluded 0x10): take those out first.
    ///
    /// # Errors
    /// The bits that no codec owns, or all bits where more than one codec is named.
    pub fn from_flags(flags: u32) -> Result<Self, u32> {
        let known = ROWS.iter().fold(0, |all, row| all | row.flag);
        match flags & !known {
            0 => ROWS.iter().find(|row| row.flag == flags).map(|row| row.codec).ok_or(flags),
            unknown => Err(unknown),
        }
    }

    /// The levels the codec has: for zlib 1 (fast) to 12, from 2 on libdeflate's; for zstd negative (faster) to 22, 0 being zstd's own
    /// default of 3. `None`: it has no levels.
    #[must_use]
    pub fn levels(self) -> Option<RangeInclusive<i32>> {
        self.row().levels.map(|(low, high, _)| low..=high)
    }

    /// The level used when none is asked for; 0 where the codec has no levels.
    #[must_use]
    pub fn default_level(self) -> i32 {
        self.row().levels.map_or(0, |(_, _, default)| default)
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Codec {
    type Err = CompressionError;

    fn from_str(name: &str) -> Result<Self, CompressionError> {
        ROWS.iter()
            .find(|row| row.name == name)
            .map(|row| row.codec)
            .ok_or_else(|| CompressionError::UnknownCodec { name: name.into() })
    }
}

/// A codec and the level to run it at. Written `CODEC` or `CODEC:LEVEL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Compression {
    /// The codec.
    pub codec: Codec,
    /// Within [`Codec::levels`]; ignored where the codec has none.
    pub level: i32,
}

impl From<Codec> for Compression {
    /// The codec at its default level.
    fn from(codec: Codec) -> Self {
        Self { codec, level: codec.default_level() }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.codec.levels() {
            Some(_) => write!(f, "{}:{}", self.codec, self.level),
            None => write!(f, "{}", self.codec),
        }
    }
}

impl FromStr for Compression {
    type Err = CompressionError;

    fn from_str(text: &str) -> Result<Self, CompressionError> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        let codec: Codec = name.parse()?;
        let Some(level) = level else { return Ok(codec.into()) };
        let range = codec.levels().ok_or(CompressionError::NoLevels { codec })?;
        match level.parse() {
            Ok(level) if range.contains(&level) => Ok(Self { codec, level }),
            _ => Err(CompressionError::Level { codec, text: level.into(), low: *range.start(), high: *range.end() }),
        }
    }
}

/// Why a text names no [`Compression`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompressionError {
    /// No codec has this name.
    #[error(
        "no codec is called {name:?}: use none, zlib, lzo, snappy or zstd, the latter and zlib with an optional :LEVEL"
    )]
    UnknownCodec {
        /// What was given.
        name: String,
    },
    /// A level was given to a codec that has none.
    #[error("{codec} has no levels: leave out the colon and what follows")]
    NoLevels {
        /// The codec.
        codec: Codec,
    },
    /// The level is no number, or one the codec does not have.
    #[error("{text:?} is no level of {codec}: use a number from {low} to {high}")]
    Level {
        /// The codec.
        codec: Codec,
        /// What was given.
        text: String,
        /// Lowest level.
        low: i32,
        /// Highest level.
        high: i32,
    },
}

/// Why a page could not be decompressed, or a codec not be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The stored bytes are not what the codec writes.
    #[error("the {codec} data are damaged: {what}")]
    Corrupt {
        /// The codec the page descriptor names.
        codec: Codec,
        /// What is wrong, and where the codec can tell at which byte of the stored data.
        what: String,
    },
    /// The data are whole, but hold fewer or more bytes than a page.
    #[error("the {codec} data hold {got} bytes, a page has {want}")]
    WrongLength {
        /// The codec the page descriptor names.
        codec: Codec,
        /// Bytes the data hold.
        got: u64,
        /// Bytes of a page.
        want: u64,
    },
    /// The codec found no memory for its tables.
    #[error("no memory for the tables of {codec}: use fewer threads, or lzo, which needs 16 KiB a thread")]
    NoMemory {
        /// The codec.
        codec: Codec,
    },
}

/// Compresses pages with one codec. One a thread: its tables are made once, and nothing is allocated for a page.
///
/// Pages that do not compress (4 to 6 % of those that are not zero) are given up early by each encoder in its own way, at 2 GB/s
/// (zstd), 3 (zlib at level 1), 14 (lzo) and 20 (snappy). A first look at all pages, whatever the codec, would cost more than it
/// saves: these pages take 1.6 % of zstd's time and less of the others'.
pub struct Compressor {
    encoder: Encoder,
    max_output: usize,
}

enum Encoder {
    None,
    /// Level 1.
    Deflate(Box<deflate::Encoder>),
    /// The levels above.
    Zlib(libdeflater::Compressor),
    Lzo(Box<lzo::Encoder>),
    Snappy(Box<snap::raw::Encoder>),
    /// The context and the level.
    Zstd(zstd_safe::CCtx<'static>, i32),
}

impl Compressor {
    /// A compressor for pages of `page_size` bytes. A level outside [`Codec::levels`] is taken as the nearest one inside.
    ///
    /// # Errors
    /// [`CodecError::NoMemory`].
    pub fn new(compression: Compression, page_size: crate::PageSize) -> Result<Self, CodecError> {
        let Compression { codec, level } = compression;
        let level = codec.levels().map_or(0, |range| level.clamp(*range.start(), *range.end()));
        let no_memory = CodecError::NoMemory { codec };
        let page = page_size.bytes();
        let (encoder, max_output) = match codec {
            Codec::None => (Encoder::None, 0),
            Codec::Zlib if level == 1 => {
                (Encoder::Deflate(Box::new(deflate::Encoder::new(page))), page + deflate::SLACK)
            }
            Codec::Zlib => {
                let level = libdeflater::CompressionLvl::new(level).unwrap_or_default();
                (Encoder::Zlib(libdeflater::Compressor::new(level)), page)
            }
            Codec::Lzo => (Encoder::Lzo(Box::default()), page + lzo::SLACK),
            Codec::Snappy => (Encoder::Snappy(Box::new(snap::raw::Encoder::new())), snap::raw::max_compress_len(page)),
            Codec::Zstd => (Encoder::Zstd(zstd_safe::CCtx::try_create().ok_or(no_memory)?, level), page),
        };
        Ok(Self { encoder, max_output })
    }

    /// Bytes that `out` of [`Self::compress`] must have room for: 0 to about 7/6 of a page, by codec.
    #[must_use]
    pub fn max_output(&self) -> usize {
        self.max_output
    }

    /// Compresses `page` to the front of `out` and returns the number of bytes written.
    ///
    /// `None`: the result would not be strictly smaller than the page (or `out` is shorter than [`Self::max_output`]); the
    /// caller stores the page raw, and the content of `out` is unspecified.
    pub fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        let limit = page.len().checked_sub(1)?;
        let written = match &mut self.encoder {
            Encoder::None => return None,
            Encoder::Deflate(zlib) => zlib.compress(page, out.get_mut(..limit + deflate::SLACK)?)?,
            Encoder::Zlib(zlib) => zlib.zlib_compress(page, out.get_mut(..limit)?).ok()?,
            Encoder::Lzo(lzo) => lzo.compress(page, out.get_mut(..page.len() + lzo::SLACK)?)?,
            Encoder::Snappy(snappy) => snappy.compress(page, out).ok()?,
            Encoder::Zstd(zstd, level) => zstd.compress(out.get_mut(..limit)?, page, *level).ok()?,
        };
        (written <= limit).then_some(written)
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let codec = match self.encoder {
            Encoder::None => Codec::None,
            Encoder::Deflate(_) | Encoder::Zlib(_) => Codec::Zlib,
            Encoder::Lzo(_) => Codec::Lzo,
            Encoder::Snappy(_) => Codec::Snappy,
            Encoder::Zstd(..) => Codec::Zstd,
        };
        f.debug_struct("Compressor").field("codec", &codec).finish_non_exhaustive()
    }
}

/// Decompresses pages of any codec. One a thread; the tables of a codec are made when its first page comes.
#[derive(Default)]
pub struct Decompressor {
    zlib: Option<libdeflater::Decompressor>,
    zstd: Option<zstd_safe::DCtx<'static>>,
}

impl Decompressor {
    /// A decompressor that has met no page yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Fills `page` from the stored bytes `stored`, which must hold exactly that many bytes.
    ///
    /// # Errors
    /// Damaged data or the wrong length, for any input whatever; the content of `page` is then unspecified.
    pub fn decompress(&mut self, codec: Codec, stored: &[u8], page: &mut [u8]) -> Result<(), CodecError> {
        let corrupt = |what: String| CodecError::Corrupt { codec, what };
        let want = page.len();
        let got = match codec {
            Codec::None => {
                if stored.len() == want {
                    page.copy_from_slice(stored);
                }
                stored.len() as u64
            }
            Codec::Zlib => {
                let zlib = self.zlib.get_or_insert_with(libdeflater::Decompressor::new);
                zlib.zlib_decompress(stored, page).map_err(|e| corrupt(e.to_string()))? as u64
            }
            Codec::Lzo => lzo::decompress(stored, page).map_err(|e| corrupt(e.to_string()))? as u64,
            Codec::Snappy => match snap::raw::decompress_len(stored).map_err(|e| corrupt(e.to_string()))? {
                len if len == want => {
                    snap::raw::Decoder::new().decompress(stored, page).map_err(|e| corrupt(e.to_string()))? as u64
                }
                len => len as u64,
            },
            Codec::Zstd => {
                let zstd = match &mut self.zstd {
                    Some(zstd) => zstd,
                    none => none.insert(zstd_safe::DCtx::try_create().ok_or(CodecError::NoMemory { codec })?),
                };
                zstd.decompress(page, stored).map_err(|code| corrupt(zstd_safe::get_error_name(code).into()))? as u64
            }
        };
        if got == want as u64 { Ok(()) } else { Err(CodecError::WrongLength { codec, got, want: want as u64 }) }
    }
}

impl fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decompressor").finish_non_exhaustive()
    }
}
