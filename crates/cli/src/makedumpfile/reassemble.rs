//! `--reassemble` with makedumpfile's messages.

use super::Stop;
use super::create::{INCOMPLETE, may_write};
use super::line::CommandLine;
use super::messages::{Class, Messages};
use super::options::Opt;
use super::progress::Progress;
use crate::{cause, signals};
use coresift_engine::{EngineError, JoinOptions, Stop as EngineStop};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Puts all names of `line` but the last together in the last.
pub fn reassemble(line: &CommandLine, messages: &Messages) -> Result<(), Stop> {
    let names: Vec<PathBuf> = line.names.iter().map(PathBuf::from).collect();
    let Some((target, parts)) = names.split_last() else { return Err(super::parameter_error(messages).into()) };
    let force = line.has(Opt::Force);
    let failed = |text: String| {
        messages.line(Class::Error, &text);
        Stop::Failed
    };
    may_write(target, force)
        .map_err(|error| failed(format!("Can't open the dump file ({}). {}", target.display(), cause::text(&error))))?;
    for part in parts {
        File::open(part)
            .map_err(|error| failed(format!("Can't open a file({}). {}", part.display(), cause::text(&error))))?;
    }
    let input = parts.first().map_or(Path::new(""), |part| part);
    let stop = EngineStop::default().on_signal(signals::watch());
    let progress = Progress::new(messages, input, target);
    let result = coresift_engine::join(parts, target, JoinOptions { force, partial: false, stop }, &progress);
    progress.end();
    match result {
        Ok(joined) if joined.complete => {
            messages.raw(Class::Common, &format!("\nThe dumpfile is saved to {}.\n", target.display()));
            Ok(())
        }
        Ok(_) => {
            messages.line(Class::Common, INCOMPLETE);
            Err(Stop::Failed)
        }
        Err(error) => {
            cause::chain(&error).for_each(|text| messages.line(Class::Error, &text));
            if matches!(
                error,
                EngineError::Write { readable: true, .. } | EngineError::Interrupted { readable: true, .. }
            ) {
                messages.line(Class::Common, INCOMPLETE);
            }
            Err(Stop::Failed)
        }
    }
}
