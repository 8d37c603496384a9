//! Progress of native commands: a bar on a terminal, a plain line now and then elsewhere.

use crate::output::complain;
use crate::text::{count, rate, seconds};
use coresift_engine::{Event, Observer, Stage};
use std::io::{IsTerminal, stderr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two plain lines: every byte costs on a serial console.
const INTERVAL: Duration = Duration::from_secs(5);

fn name(stage: Stage) -> &'static str {
    match stage {
        Stage::FindPages => "find pages",
        Stage::CopyPages => "copy pages",
        Stage::CheckPages => "check pages",
    }
}

/// The progress of one run, on the standard error.
pub fn new() -> Box<dyn Finish> {
    #[cfg(feature = "full")]
    if stderr().is_terminal() {
        return Box::new(bar::Bar::default());
    }
    let every = if stderr().is_terminal() { Duration::from_secs(1) } else { INTERVAL };
    Box::new(Lines::new(every, complain))
}

/// An observer that can be told that the run is over.
pub trait Finish: Observer {
    /// Takes what is in the way of other output off the terminal.
    fn finish(&self);
}

/// Says what happened.
fn tell(event: Event, mut say: impl FnMut(&str)) {
    match event {
        Event::Retry { level, full } => {
            let where_to = full.limit().map_or(String::new(), |bytes| format!(" into {bytes} bytes"));
            say(&format!("the dump does not fit{where_to}; trying dump level {level}"));
        }
        Event::LevelRaised { input, recorded, .. } => say(&format!(
            "the input was made with dump level {input}: what that left out is not in the dump either, whose level is {recorded}"
        )),
        // Notes stand in the report.
        Event::Note(_) => {}
    }
}

/// Plain lines, at most one each interval.
struct Lines<S> {
    every: Duration,
    say: S,
    state: Mutex<State>,
}

struct State {
    stage: Option<Stage>,
    started: Instant,
    last_line: Instant,
}

impl<S: Fn(&str)> Lines<S> {
    fn new(every: Duration, say: S) -> Self {
        let now = Instant::now();
        Self { every, say, state: Mutex::new(State { stage: None, started: now, last_line: now }) }
    }
}

impl<S: Fn(&str) + Sync> Observer for Lines<S> {
    fn progress(&self, stage: Stage, done: u64, total: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if state.stage != Some(stage) {
            state.stage = Some(stage);
            state.started = now;
        }
        if now.duration_since(state.last_line) < self.every {
            return;
        }
        state.last_line = now;
        let elapsed = now.duration_since(state.started);
        drop(state);
        (self.say)(&line(stage, done, total, elapsed));
    }

    fn event(&self, event: Event) {
        tell(event, &self.say);
    }
}

impl<S: Fn(&str) + Sync> Finish for Lines<S> {
    fn finish(&self) {}
}

/// `copy pages  43 %  152 000 pages/s  12.0 s left`.
fn line(stage: Stage, done: u64, total: u64, elapsed: Duration) -> String {
    let percent = if total == 0 { 100 } else { (u128::from(done.min(total)) * 100 / u128::from(total)) as u64 };
    let mut text = format!("{} {percent:>3} %", name(stage));
    if let Some(per_second) = rate(done, elapsed.as_secs_f64()).filter(|r| *r > 0) {
        let left = total.saturating_sub(done) as f64 / per_second as f64;
        text.push_str(&format!("  {} pages/s  {} left", count(per_second), seconds(left)));
    }
    text
}

#[cfg(feature = "full")]
mod bar {
    //! The bar. indicatif limits how often it draws.

    use super::{Finish, name, tell};
    use coresift_engine::{Event, Observer, Stage};
    use indicatif::{ProgressBar, ProgressState, ProgressStyle};
    use std::fmt::Write;
    use std::sync::{Mutex, PoisonError};

    const TEMPLATE: &str = "{msg} [{bar:36}] {percent:>3} %  {rate} pages/s  {eta} left";

    #[derive(Default)]
    pub(super) struct Bar(Mutex<Option<(Stage, ProgressBar)>>);

    impl Bar {
        fn with(&self, act: impl FnOnce(&mut Option<(Stage, ProgressBar)>)) {
            act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn start(stage: Stage, total: u64) -> ProgressBar {
        let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
        let rate = |state: &ProgressState, out: &mut dyn Write| {
            let _infallible = out.write_str(&super::count(state.per_sec() as u64));
        };
        ProgressBar::new(total).with_style(style.progress_chars("=> ").with_key("rate", rate)).with_message(name(stage))
    }

    impl Observer for Bar {
        fn progress(&self, stage: Stage, done: u64, total: u64) {
            self.with(|shown| {
                if let Some((_, bar)) = shown.as_ref().filter(|(other, _)| *other != stage) {
                    bar.finish_and_clear();
                    *shown = None;
                }
                let (_, bar) = shown.get_or_insert_with(|| (stage, start(stage, total)));
                bar.set_length(total);
                bar.set_position(done);
            });
        }

        fn event(&self, event: Event) {
            self.with(|shown| {
                tell(event, |text| match shown {
                    Some((_, bar)) => bar.suspend(|| super::complain(text)),
                    None => super::complain(text),
                });
            });
        }
    }

    impl Finish for Bar {
        fn finish(&self) {
            self.with(|shown| {
                if let Some((_, bar)) = shown.take() {
                    bar.finish_and_clear();
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coresift_engine::Full;
    use coresift_kernel::DumpLevel;

    #[test]
    fn a_line_has_percent_rate_and_time_left() {
        let text = line(Stage::CopyPages, 430, 1000, Duration::from_secs(10));
        assert_eq!(text, "copy pages  43 %  43 pages/s  13.3 s left");
        assert_eq!(line(Stage::FindPages, 0, 0, Duration::ZERO), "find pages 100 %");
    }

    #[test]
    fn lines_keep_their_distance_however_often_progress_is_called() {
        let said = Mutex::new(Vec::new());
        let progress = Lines::new(Duration::from_secs(3600), |text: &str| said.lock().unwrap().push(text.to_owned()));
        for done in 0..10_000 {
            progress.progress(Stage::CopyPages, done, 10_000);
        }
        assert!(said.lock().unwrap().is_empty());
        progress.event(Event::Retry { level: DumpLevel::new(31).unwrap(), full: Full::Space });
        assert_eq!(*said.lock().unwrap(), ["the dump does not fit; trying dump level 31"]);
    }

    #[test]
    fn a_line_comes_when_the_interval_is_over() {
        let said = Mutex::new(0);
        let progress = Lines::new(Duration::ZERO, |_: &str| *said.lock().unwrap() += 1);
        progress.progress(Stage::FindPages, 1, 2);
        progress.progress(Stage::FindPages, 2, 2);
        assert_eq!(*said.lock().unwrap(), 2);
    }
}
