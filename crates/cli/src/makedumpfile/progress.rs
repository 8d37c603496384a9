//! makedumpfile's progress lines.

use super::create::no_space;
use super::messages::{Class, Messages};
use coresift_engine::{Event, Observer, Stage};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// At most one line a second: the console of a crashed machine may be a serial line at 9600 baud.
const INTERVAL: Duration = Duration::from_secs(1);
const SPINNER: [char; 4] = ['/', '|', '\\', '-'];

/// The step's name as makedumpfile prints it, 27 columns.
pub fn step_name(stage: Stage) -> &'static str {
    match stage {
        Stage::FindPages => "Excluding unnecessary pages",
        Stage::CopyPages => "Copying data               ",
        // No command line of makedumpfile asks for it.
        Stage::CheckPages => "Checking pages             ",
    }
}

/// Prints progress and events of one run.
pub struct Progress<'a> {
    messages: &'a Messages,
    /// The input's name, for messages.
    input: String,
    /// The output's name, for messages.
    output: PathBuf,
    state: Mutex<State>,
}

struct State {
    stage: Option<Stage>,
    started: Instant,
    last_line: Option<Instant>,
    finished: bool,
    lines: usize,
    open_line: bool,
}

impl<'a> Progress<'a> {
    /// Progress of a run from the file called `input` to `output`.
    pub fn new(messages: &'a Messages, input: &Path, output: &Path) -> Self {
        let state = State {
            stage: None,
            started: Instant::now(),
            last_line: None,
            finished: false,
            lines: 0,
            open_line: false,
        };
        let (input, output) = (input.display().to_string(), output.to_owned());
        Self { messages, input, output, state: Mutex::new(state) }
    }

    /// Ends an unfinished line.
    pub fn end(&self) {
        self.end_line(&mut self.state());
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_line(&self, state: &mut State) {
        if std::mem::take(&mut state.open_line) {
            self.messages.raw(Class::Progress, "\n");
        }
    }
}

impl Observer for Progress<'_> {
    fn progress(&self, stage: Stage, done: u64, total: u64) {
        if !self.messages.shows(Class::Progress) {
            return;
        }
        let mut state = self.state();
        let now = Instant::now();
        if state.stage != Some(stage) {
            state.stage = Some(stage);
            state.started = now;
            state.last_line = None;
            state.finished = false;
        }
        let complete = done >= total;
        let due = state.last_line.is_none_or(|last| now.duration_since(last) >= INTERVAL);
        if state.finished || !(due || complete) {
            return;
        }
        state.finished = complete;
        state.last_line = Some(now);
        let spinner = SPINNER.get(state.lines % SPINNER.len()).copied().unwrap_or('/');
        state.lines = state.lines.wrapping_add(1);
        let eta = match stage {
            Stage::CopyPages => eta(now.duration_since(state.started), done, total),
            Stage::FindPages | Stage::CheckPages => " ".into(),
        };
        let permille = per_mille(done, total);
        let line =
            format!("\r{:<50}: [{:>3}.{} %] {spinner}  {eta:>16}", step_name(stage), permille / 10, permille % 10);
        self.messages.raw(Class::Progress, &line);
        state.open_line = true;
        if complete && stage == Stage::CopyPages {
            self.end_line(&mut state);
        }
    }

    fn event(&self, event: Event) {
        self.end();
        match event {
            Event::Retry { level, full } => {
                self.messages.raw(Class::Common, &no_space(&self.output, full));
                self.messages.line(Class::Common, &format!("Retry to create a dumpfile by dump_level({level})."));
            }
            Event::LevelRaised { input, recorded, .. } => self.messages.line(
                Class::Common,
                &format!(
                    "dump_level is changed to {recorded}, because {} was created by dump_level({input}).",
                    self.input
                ),
            ),
            Event::Note(text) => self.messages.note(&text),
        }
    }
}

/// `done` of `total` in thousandths.
fn per_mille(done: u64, total: u64) -> u64 {
    if total == 0 { 1000 } else { (u128::from(done.min(total)) * 1000 / u128::from(total)) as u64 }
}

/// The time left, from the time so far.
fn eta(elapsed: Duration, done: u64, total: u64) -> String {
    if done == 0 {
        return "eta: >100day".into();
    }
    let left = elapsed.as_secs_f64() * total.saturating_sub(done) as f64 / done as f64;
    let seconds = left as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..100 => format!("eta: {seconds}s"),
        100..6000 => format!("eta: {minutes}m{}s", seconds % 60),
        6000..172_800 => format!("eta: {hours}h{}m", minutes % 60),
        172_800..8_640_000 => format!("eta: {days}d{}h", hours % 24),
        _ => "eta: >100day".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::capture;
    use super::*;
    use coresift_engine::Full;
    use coresift_kernel::DumpLevel;

    #[test]
    fn the_time_left_is_written_as_users_know_it() {
        for (seconds, text) in [
            (0, "eta: 0s"),
            (99, "eta: 99s"),
            (100, "eta: 1m40s"),
            (5999, "eta: 99m59s"),
            (6000, "eta: 1h40m"),
            (172_799, "eta: 47h59m"),
            (172_800, "eta: 2d0h"),
            (8_639_999, "eta: 99d23h"),
            (8_640_000, "eta: >100day"),
        ] {
            assert_eq!(eta(Duration::from_secs(seconds), 1, 2), text);
        }
        assert_eq!(eta(Duration::from_secs(1), 0, 2), "eta: >100day");
    }

    #[test]
    fn the_first_and_the_last_line_of_a_step_are_printed_and_none_between_within_a_second() {
        let (messages, _, err) = capture::messages();
        let progress = Progress::new(&messages, "vmcore".as_ref(), "out".as_ref());
        for done in 0..=1000 {
            progress.progress(Stage::CopyPages, done, 1000);
        }
        progress.progress(Stage::CopyPages, 1000, 1000);
        let first = "\rCopying data                                      : [  0.0 %] /      eta: >100day";
        let last = "\rCopying data                                      : [100.0 %] |           eta: 0s\n";
        assert_eq!(err.text(), format!("{first}{last}"));
    }

    #[test]
    fn a_message_starts_on_a_line_of_its_own() {
        let (messages, out, err) = capture::messages();
        let progress = Progress::new(&messages, "old".as_ref(), "new".as_ref());
        progress.progress(Stage::FindPages, 1, 2);
        let level = |n| DumpLevel::new(n).unwrap();
        progress.event(Event::Note("text".into()));
        progress.event(Event::LevelRaised { asked: level(1), input: level(16), recorded: level(17) });
        progress.event(Event::Retry { level: level(31), full: Full::Space });
        assert!(err.text().ends_with(" \nmakedumpfile: note: text\n"), "{:?}", err.text());
        assert_eq!(
            out.text(),
            "dump_level is changed to 17, because old was created by dump_level(16).\n\
             \nCan't write the dump file(new). No space left on device\n\
             Retry to create a dumpfile by dump_level(31).\n"
        );
    }

    #[test]
    fn without_the_progress_bit_nothing_is_printed() {
        let (mut messages, _, err) = capture::messages();
        messages.set_level(30);
        let progress = Progress::new(&messages, "vmcore".as_ref(), "out".as_ref());
        progress.progress(Stage::CopyPages, 1, 1);
        progress.end();
        assert_eq!(err.text(), "");
    }
}
