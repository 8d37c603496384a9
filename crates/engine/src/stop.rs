//! Ending a run early, in order: by a signal, or because its time is over.
//!
//! ```text
//! understand ──> find pages ──────────────> copy what a debugger opens first ──> copy the rest
//!                    │ a signal, or the end of its time: given up          │             │
//!                    └──────> plan of the essentials alone ──> copy them ──┘             │
//!                             a signal: at most GRACE more; a deadline: none             at once
//! ```
//!
//! A run is told by a flag that a signal handler sets; everything else happens where work is claimed, on the run's own threads.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long a run goes on after a signal for what a debugger needs to open the dump at all. systemd waits 90 seconds from SIGTERM to
/// SIGKILL, a container 10.
const GRACE: Duration = Duration::from_secs(8);
/// Part of the time until a deadline that is kept for copying: the memory map is read until that is left, and no longer.
const COPY_SHARE: u32 = 4;
/// The most of it.
const MOST_COPY: Duration = Duration::from_secs(10);

/// When to end a run before it is done. The default never does.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    signal: Option<Arc<AtomicUsize>>,
    deadline: Option<Deadline>,
    /// When the signal was noticed.
    noticed: Arc<OnceLock<Instant>>,
}

#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Instant,
    /// The end of reading the memory map.
    scan: Instant,
}

/// Why a run was ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A signal of this number.
    Signal(usize),
    /// Its time was over.
    Deadline,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(1) => f.write_str("SIGHUP"),
            Self::Signal(2) => f.write_str("SIGINT"),
            Self::Signal(15) => f.write_str("SIGTERM"),
            Self::Signal(number) => write!(f, "signal {number}"),
            Self::Deadline => f.write_str("the deadline"),
        }
    }
}

impl Stop {
    /// Ends the run soon after `signal` is no longer 0; it is then the number of a signal.
    #[must_use]
    pub fn on_signal(self, signal: Arc<AtomicUsize>) -> Self {
        Self { signal: Some(signal), ..self }
    }

    /// Ends the run when `time` has passed from now on.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        let now = Instant::now();
        let scan = time.saturating_sub((time / COPY_SHARE).min(MOST_COPY));
        let deadline = now.checked_add(time).zip(now.checked_add(scan)).map(|(at, scan)| Deadline { at, scan });
        Self { deadline, ..self }
    }

    /// Whether finding out what a debugger needs first ends here. It is part of what a signal leaves time for, and not of the time that a
    /// deadline keeps for copying.
    #[must_use]
    pub fn understanding(&self) -> Option<StopReason> {
        self.late(|deadline| deadline.scan).or_else(|| self.copying(true))
    }

    /// Whether reading the memory map ends here.
    #[must_use]
    pub fn scanning(&self) -> Option<StopReason> {
        self.late(|deadline| deadline.scan).or_else(|| self.signalled().map(|(reason, _)| reason))
    }

    /// Whether copying ends here, before pages that are `essential` or others.
    #[must_use]
    pub fn copying(&self, essential: bool) -> Option<StopReason> {
        let signalled = || self.signalled().filter(|(_, since)| !essential || since.elapsed() >= GRACE);
        self.late(|deadline| deadline.at).or_else(|| signalled().map(|(reason, _)| reason))
    }

    fn late(&self, end: impl Fn(&Deadline) -> Instant) -> Option<StopReason> {
        self.deadline.as_ref().filter(|deadline| Instant::now() >= end(deadline)).map(|_| StopReason::Deadline)
    }

    /// The signal that came, and when that was noticed.
    fn signalled(&self) -> Option<(StopReason, Instant)> {
        let number = self.signal.as_ref()?.load(Ordering::Relaxed);
        (number != 0).then(|| (StopReason::Signal(number), *self.noticed.get_or_init(Instant::now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_nobody_stops_goes_on() {
        let stop = Stop::default().on_signal(Arc::default()).after(Duration::from_secs(86_400));
        assert_eq!((stop.scanning(), stop.copying(false), stop.copying(true)), (None, None, None));
        assert_eq!(Stop::default().after(Duration::MAX).copying(false), None, "further away than time can be told");
    }

    #[test]
    fn a_signal_ends_all_but_the_essentials_which_have_their_grace() {
        let signal = Arc::new(AtomicUsize::new(0));
        let mut stop = Stop::default().on_signal(Arc::clone(&signal));
        signal.store(15, Ordering::Relaxed);
        let term = Some(StopReason::Signal(15));
        assert_eq!((stop.scanning(), stop.copying(false), stop.copying(true)), (term, term, None));
        assert_eq!(stop.understanding(), None);
        stop.noticed = Arc::new(Instant::now().checked_sub(GRACE).unwrap().into());
        assert_eq!((stop.copying(true), stop.understanding()), (term, term), "the grace is over");
        assert_eq!(StopReason::Signal(15).to_string(), "SIGTERM");
    }

    #[test]
    fn a_deadline_ends_the_scan_early_enough_to_copy_something() {
        let mut stop = Stop::default().after(Duration::from_secs(3600));
        let deadline = stop.deadline.as_mut().unwrap();
        assert_eq!(deadline.at - deadline.scan, MOST_COPY);
        deadline.scan = Instant::now();
        assert_eq!((stop.scanning(), stop.copying(true)), (Some(StopReason::Deadline), None));
        assert_eq!(stop.understanding(), Some(StopReason::Deadline));
        stop = Stop::default().after(Duration::ZERO);
        assert_eq!((stop.scanning(), stop.copying(true)), (Some(StopReason::Deadline), Some(StopReason::Deadline)));
    }
}
