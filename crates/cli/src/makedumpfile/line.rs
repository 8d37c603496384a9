//! A makedumpfile command line as read from left to right: what was asked for, before any rule is applied.

use super::getopt::Token;
use super::messages::{Class, DEFAULT_LEVEL, MAX_LEVEL, Messages};
use super::options::Opt;
use crate::size::{atoi, size_limit, strtoul};
use coresift_format::codec::Codec;
use coresift_kernel::DumpLevel;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Levels that fit the list of -d.
const MAX_LEVELS: usize = 32;

/// The command line cannot be used; what is wrong with it has been said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid;

/// What was asked for.
#[derive(Debug, Default)]
pub struct CommandLine {
    given: Vec<Opt>,
    /// File names in their order.
    pub names: Vec<OsString>,
    /// The codec of the last of -c, -l, -p, -z.
    pub codec: Option<Codec>,
    /// The levels of -d; empty without it.
    pub levels: Vec<DumpLevel>,
    /// The size of -L, in bytes.
    pub limit: Option<u64>,
    /// The threads of --num-threads: `None` without it or when it says 0.
    pub threads: Option<usize>,
    /// The bytes of --splitblock-size: `None` without it or when it says 0.
    pub split_block: Option<u64>,
    /// The vmlinux of -x.
    pub vmlinux: Option<OsString>,
    /// The text of -i.
    pub vmcoreinfo: Option<OsString>,
    /// The target of -g.
    pub generate: Option<OsString>,
    /// The address of --vtop.
    pub vtop: Option<u64>,
    /// What a user should know about values that were read in another way than they look.
    pub notes: Vec<String>,
}

impl CommandLine {
    /// Reads `tokens`; the message level takes effect where it stands, as in makedumpfile.
    ///
    /// # Errors
    /// A value or an option that cannot be used, after saying so.
    pub fn read(tokens: Vec<Token>, messages: &mut Messages) -> Result<Self, Invalid> {
        let mut line = Self::default();
        for token in tokens {
            match token {
                Token::Positional(name) => line.names.push(name),
                Token::Bad(text) => {
                    messages.getopt(&text);
                    return Err(parameter_error(messages));
                }
                Token::Option(row, value) => {
                    line.given.push(row.opt);
                    line.take(row.opt, &value.unwrap_or_default(), messages)?;
                }
            }
        }
        if line.has(Opt::CheckParams) {
            messages.set_level(DEFAULT_LEVEL);
        } else {
            if line.has(Opt::Debug) {
                messages.show_also(Class::Debug);
            }
            if line.has(Opt::ShowStats) {
                messages.show_also(Class::Report);
            }
        }
        Ok(line)
    }

    /// Whether `opt` was given.
    pub fn has(&self, opt: Opt) -> bool {
        self.given.contains(&opt)
    }

    /// Whether any of `opts` was given.
    pub fn has_any(&self, opts: &[Opt]) -> bool {
        opts.iter().any(|opt| self.has(*opt))
    }

    /// The options given, in the order of their first appearance.
    pub fn options(&self) -> impl Iterator<Item = Opt> + '_ {
        self.given
            .iter()
            .enumerate()
            .filter(|(i, opt)| !self.given.iter().take(*i).any(|o| o == *opt))
            .map(|(_, opt)| *opt)
    }

    /// The level of the first attempt.
    pub fn first_level(&self) -> DumpLevel {
        self.levels.first().copied().unwrap_or_default()
    }

    fn take(&mut self, opt: Opt, value: &OsString, messages: &mut Messages) -> Result<(), Invalid> {
        match opt {
            Opt::Zlib => self.codec = Some(Codec::Zlib),
            Opt::Lzo => self.codec = Some(Codec::Lzo),
            Opt::Snappy => self.codec = Some(Codec::Snappy),
            Opt::Zstd => self.codec = Some(Codec::Zstd),
            Opt::CheckParams => messages.set_level(DEFAULT_LEVEL),
            Opt::Level => self.levels = self.read_levels(value).map_err(|text| invalid(messages, &text))?,
            Opt::MessageLevel => {
                let (level, plain) = atoi(value.as_bytes());
                match u8::try_from(level) {
                    Ok(mask) if level <= MAX_LEVEL => messages.set_level(mask),
                    _ => return Err(invalid(messages, &format!("Message_level({level}) is invalid."))),
                }
                if !plain {
                    self.notes.push(read_as("--message-level", value, level));
                }
            }
            Opt::SizeLimit => match size_limit(value.as_bytes()) {
                Some(bytes) => self.limit = Some(bytes.get()),
                None => return Err(invalid(messages, &format!("Limit size({}) is invalid.", value.to_string_lossy()))),
            },
            Opt::SplitblockSize => {
                let (kib, plain) = atoi(value.as_bytes());
                if !plain || kib < 0 {
                    self.notes.push(read_as("--splitblock-size", value, kib.max(0)));
                }
                self.split_block = u64::try_from(kib).ok().filter(|kib| *kib > 0).map(|kib| kib.saturating_mul(1024));
            }
            Opt::NumThreads => self.read_threads(value),
            Opt::Vmlinux => self.vmlinux = Some(value.clone()),
            Opt::ReadVmcoreinfo => self.vmcoreinfo = Some(value.clone()),
            Opt::GenerateVmcoreinfo => self.generate = Some(value.clone()),
            Opt::Vtop => {
                let (address, plain) = strtoul(value.as_bytes());
                if !plain {
                    self.notes.push(format!("--vtop `{}` is taken as {address:#x}", value.to_string_lossy()));
                }
                self.vtop = Some(address);
            }
            _ => {}
        }
        Ok(())
    }

    fn read_levels(&mut self, value: &OsString) -> Result<Vec<DumpLevel>, String> {
        let mut levels = Vec::new();
        for item in value.as_bytes().split(|b| *b == b',').filter(|item| !item.is_empty()) {
            let (number, plain) = atoi(item);
            let level = u8::try_from(number).ok().and_then(DumpLevel::new);
            let level = level.ok_or_else(|| format!("Dump_level({number}) is invalid."))?;
            if levels.len() >= MAX_LEVELS {
                return Err("Dump_level is invalid.".into());
            }
            levels.push(level);
            if !plain {
                self.notes.push(read_as("-d", value, number));
            }
        }
        Ok(levels)
    }

    /// A number of threads that is none or negative means one thread, and is told: makedumpfile says nothing.
    fn read_threads(&mut self, value: &OsString) {
        self.threads = match atoi(value.as_bytes()) {
            (0, true) => None,
            (number, plain) => {
                let threads = usize::try_from(number).unwrap_or(0).max(1);
                if !plain || number < 0 {
                    self.notes.push(read_as("--num-threads", value, threads as i64));
                }
                Some(threads)
            }
        };
    }
}

fn invalid(messages: &Messages, text: &str) -> Invalid {
    messages.line(Class::Common, text);
    Invalid
}

/// The two lines that follow every parameter error.
pub fn parameter_error(messages: &Messages) -> Invalid {
    messages.line(Class::Common, "Commandline parameter is invalid.");
    messages.line(Class::Common, "Try `makedumpfile --help' for more information.");
    Invalid
}

fn read_as(option: &str, value: &OsString, number: i64) -> String {
    format!("{option} `{}` is taken as {number}", value.to_string_lossy())
}
