//! -R: a dump file out of the flattened stream on the standard input.

use super::Stop;
use super::create::{INCOMPLETE, may_write};
use super::line::CommandLine;
use super::messages::{Class, Messages};
use super::options::Opt;
use crate::commands::unflatten::told;
use crate::{cause, signals};
use coresift_engine::{Stop as EngineStop, StreamFrom, UnflattenOptions, unflatten};
use std::path::Path;

/// Makes the file `output`.
pub fn rearrange(line: &CommandLine, output: &Path, messages: &Messages) -> Result<(), Stop> {
    let name = output.display();
    if let Err(error) = may_write(output, line.has(Opt::Force)) {
        messages.line(Class::Error, &format!("Can't open the dump file ({name}). {}", cause::text(&error)));
        return Err(Stop::Failed);
    }
    let options = UnflattenOptions {
        force: line.has(Opt::Force),
        dry_run: line.has(Opt::DryRun),
        stop: EngineStop::default().on_signal(signals::watch()),
    };
    match unflatten(&StreamFrom::Stdin, output, options) {
        Ok(made) => {
            told(&made).iter().for_each(|text| messages.line(Class::Error, text));
            if !made.complete {
                messages.line(Class::Common, INCOMPLETE);
                return Err(Stop::Failed);
            }
            messages.raw(Class::Common, &format!("\nThe dumpfile is saved to {name}.\n"));
            Ok(())
        }
        Err(error) => {
            cause::chain(&error).for_each(|text| messages.line(Class::Error, &text));
            if let Some(advice) = cause::advice(&error) {
                messages.line(Class::Error, advice);
            }
            Err(Stop::Failed)
        }
    }
}
