//! `--compress auto`: the codec that gets the dump out soonest, chosen while running.
//!
//! ```text
//! workers: time a batch took, bytes it left ──┐
//! writer:  time a batch's write took ─────────┴─> every 32 batches: what would a page take with each codec? ──> the next batches'
//! ```
//!
//! With n workers, of which one writes at a time, a page takes `max((work + write) / n, write)`. Where the cpus are the limit a
//! faster codec makes the first term smaller; where the target is, a stronger one makes both smaller. What is chosen depends on
//! time, so this is the one mode in which two runs may write different files.

use coresift_format::codec::{Codec, Compression};
use std::time::Duration;

/// What there is to choose from, fastest first. Zstd 5 is 4 % smaller than 1 and takes 2.6 times as long, 12 is 9 % smaller and takes
/// 17 times as long: something for many cpus and a slow network.
pub const LADDER: [Compression; RUNGS] = [
    Compression { codec: Codec::None, level: 0 },
    Compression { codec: Codec::Snappy, level: 0 },
    Compression { codec: Codec::Zstd, level: 1 },
    Compression { codec: Codec::Zstd, level: 12 },
];
const RUNGS: usize = 4;
/// The rung to begin at: the default of a run that does not choose.
pub const START: usize = 2;
/// Time and bytes of a page, read, tested and compressed, before anything is known; only their ratios matter. Pages of a 6.12 core
/// with 14 % zero and 12 % shared pages.
const COST: [f64; RUNGS] = [0.6, 2.8, 7.0, 118.0];
const SIZE: [f64; RUNGS] = [1.0, 0.42, 0.315, 0.287];
/// Batches between two decisions.
const WINDOW: u64 = 32;
/// Another codec has to be better by this factor, at two decisions in a row: else the one in use stays.
const BETTER: f64 = 0.93;
/// Part of a new measurement that is believed.
const TRUST: f64 = 0.3;
/// Part of the target's free space that may be planned with.
const ROOM: f64 = 0.9;

/// What is known of time and size.
#[derive(Clone, Debug)]
struct Model {
    /// Ratios between codecs.
    cost: [f64; RUNGS],
    size: [f64; RUNGS],
    /// What these are multiples of: nanoseconds and bytes a page. They follow the content.
    nanos: f64,
    bytes: f64,
    /// Nanoseconds to write a byte.
    write: f64,
    workers: f64,
}

/// What the last batches took, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// Batches.
    pub batches: u64,
    /// Their pages.
    pub pages: u64,
    /// Bytes they left.
    pub bytes: u64,
    /// What reading and compressing them took.
    pub work: Duration,
    /// What writing them took.
    pub write: Duration,
}

/// What is still to do, and the room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Pages that are not written yet.
    pub pages: u64,
    /// Free bytes of the target, where that is known.
    pub room: Option<u64>,
}

/// Chooses among the rungs of [`LADDER`].
#[derive(Clone, Debug)]
pub struct Controller {
    model: Model,
    current: usize,
    /// Whether the current rung was not measured since it was chosen.
    fresh: bool,
    /// What was found better the last time.
    candidate: Option<usize>,
    window: Window,
    /// Batches written with each rung.
    pub batches: [u64; RUNGS],
}

impl Controller {
    /// For a run with so many workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        let model =
            Model { cost: COST, size: SIZE, nanos: 0.0, bytes: 0.0, write: 0.0, workers: workers.max(1) as f64 };
        Self { model, current: START, fresh: true, candidate: None, window: Window::default(), batches: [0; RUNGS] }
    }

    /// Takes in a batch that was stored by `rung`, and returns the rung of the batches to come. `ahead` is asked when it is decided,
    /// for on a network file system the answer takes its time.
    pub fn batch(&mut self, rung: usize, batch: Window, ahead: impl FnOnce() -> Ahead) -> usize {
        if let Some(batches) = self.batches.get_mut(rung) {
            *batches += batch.batches;
        }
        let sum = &mut self.window;
        // Batches under way when the rung changed tell of the target only.
        if rung == self.current {
            sum.batches += batch.batches;
            sum.pages += batch.pages;
            sum.bytes += batch.bytes;
            sum.work += batch.work;
            sum.write += batch.write;
            if sum.batches >= WINDOW {
                let window = std::mem::take(sum);
                return self.decide(window, ahead());
            }
        }
        self.current
    }

    fn decide(&mut self, window: Window, ahead: Ahead) -> usize {
        self.model.learn(self.current, window, self.fresh);
        self.fresh = false;
        let best = self.model.best(self.current, ahead);
        let sure = self.candidate == Some(best) || !self.model.fits(self.current, ahead);
        self.candidate = Some(best);
        if best != self.current && sure {
            self.current = best;
            self.fresh = true;
            self.candidate = None;
        }
        self.current
    }
}

impl Model {
    fn learn(&mut self, rung: usize, window: Window, fresh: bool) {
        let pages = window.pages.max(1) as f64;
        let nanos = window.work.as_nanos() as f64 / pages;
        let bytes = window.bytes as f64 / pages;
        if window.bytes > 0 {
            blend(&mut self.write, window.write.as_nanos() as f64 / window.bytes as f64);
        }
        let (Some(cost), Some(size)) = (self.cost.get_mut(rung), self.size.get_mut(rung)) else { return };
        if fresh && self.nanos > 0.0 && self.bytes > 0.0 {
            // The first look at a codec: what it is beside the one before, on much the same pages.
            *cost = nanos / self.nanos;
            *size = bytes / self.bytes;
        }
        if *cost > 0.0 && *size > 0.0 {
            let (nanos, bytes) = (nanos / *cost, bytes / *size);
            blend(&mut self.nanos, nanos);
            blend(&mut self.bytes, bytes);
        }
    }

    /// Nanoseconds until a page is out.
    fn time(&self, rung: usize) -> f64 {
        let of = |ratios: &[f64; RUNGS]| ratios.get(rung).copied().unwrap_or(f64::INFINITY);
        let write = of(&self.size) * self.bytes * self.write;
        ((of(&self.cost) * self.nanos + write) / self.workers).max(write)
    }

    /// Whether what is ahead fits the target with this codec.
    fn fits(&self, rung: usize, ahead: Ahead) -> bool {
        let size = self.size.get(rung).copied().unwrap_or(1.0);
        ahead.room.is_none_or(|room| size * self.bytes * ahead.pages as f64 <= room as f64 * ROOM)
    }

    /// The rung to go on with: the quickest of those that fit, unless the current one is nearly as good; the strongest where none fits.
    fn best(&self, current: usize, ahead: Ahead) -> usize {
        let fit = (0..RUNGS).filter(|rung| self.fits(*rung, ahead));
        let Some(quickest) = fit.min_by(|a, b| self.time(*a).total_cmp(&self.time(*b))) else { return RUNGS - 1 };
        let stay = self.fits(current, ahead) && self.time(quickest) > BETTER * self.time(current);
        if stay { current } else { quickest }
    }
}

fn blend(value: &mut f64, new: f64) {
    *value = if *value == 0.0 { new } else { *value + TRUST * (new - *value) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine: nanoseconds and bytes a page by rung, nanoseconds to write a byte.
    struct Machine {
        cost: [f64; RUNGS],
        size: [f64; RUNGS],
        write: f64,
        workers: usize,
    }

    const ENDLESS: Ahead = Ahead { pages: 1 << 30, room: None };
    /// A real core's codecs on one cpu.
    const COSTS: [f64; RUNGS] = [700.0, 2900.0, 7100.0, 118_000.0];
    const SIZES: [f64; RUNGS] = [3000.0, 1260.0, 940.0, 857.0];

    fn machine(workers: usize, megabytes_a_second: f64) -> Machine {
        Machine { cost: COSTS, size: SIZES, write: 1000.0 / megabytes_a_second, workers }
    }

    impl Machine {
        fn window(&self, rung: usize, pages: f64, content: f64) -> Window {
            let bytes = self.size[rung] * pages * content;
            Window {
                batches: 1,
                pages: pages as u64,
                bytes: bytes as u64,
                work: Duration::from_nanos((self.cost[rung] * pages * content) as u64),
                write: Duration::from_nanos((bytes * self.write) as u64),
            }
        }

        /// Runs 3000 batches whose content varies, and returns the rungs in use.
        fn run(&self, ahead: Ahead) -> Vec<usize> {
            let mut controller = Controller::new(self.workers);
            let mut rung = START;
            let mut rungs = Vec::new();
            for batch in 0..3000u32 {
                let content = 1.0 + 0.3 * f64::from(batch).sin();
                rung = controller.batch(rung, self.window(rung, 64.0, content), || ahead);
                rungs.push(rung);
            }
            rungs
        }
    }

    fn switches(rungs: &[usize]) -> usize {
        rungs.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    #[test]
    fn a_slow_target_gets_the_strongest_codec_and_a_fast_one_the_fastest() {
        for (workers, megabytes_a_second, last) in
            [(1, 5000.0, 0), (2, 5000.0, 0), (2, 350.0, 1), (1, 40.0, 2), (8, 400.0, 2), (16, 100.0, 3)]
        {
            let rungs = machine(workers, megabytes_a_second).run(ENDLESS);
            assert_eq!(rungs.last(), Some(&last), "{workers} workers, {megabytes_a_second} MB/s");
            assert!(switches(&rungs) <= 3, "{workers} workers, {megabytes_a_second} MB/s: {}", switches(&rungs));
        }
    }

    #[test]
    fn wrong_expectations_are_corrected_by_what_is_measured() {
        // Snappy is as slow as zstd here: tried once, left for good.
        let cost = [700.0, 7000.0, 7100.0, 118_000.0];
        let rungs = Machine { cost, ..machine(2, 350.0) }.run(ENDLESS);
        assert!(rungs.contains(&1), "it was worth a try");
        assert_ne!(rungs.last(), Some(&1));
        assert!(switches(&rungs) <= 4, "{}", switches(&rungs));
    }

    #[test]
    fn a_codec_whose_dump_does_not_fit_is_not_chosen_however_fast() {
        let pages = 3000 * 64;
        let bytes = |rung: usize| pages as f64 * SIZES[rung];
        for (fitting, room) in [(2, bytes(2) * 1.2), (1, bytes(1) * 1.2), (0, bytes(0) * 1.2)] {
            let ahead = Ahead { pages, room: Some(room as u64) };
            assert_eq!(machine(1, 5000.0).run(ahead).last(), Some(&fitting));
        }
        let none = Ahead { pages, room: Some(1) };
        assert_eq!(machine(1, 5000.0).run(none).last(), Some(&3), "the most that can be had");
    }

    #[test]
    fn nothing_measured_divides_by_nothing() {
        let mut controller = Controller::new(0);
        for _ in 0..200 {
            let ahead = || Ahead { pages: 0, room: Some(0) };
            controller.batch(START, Window { batches: 1, ..Window::default() }, ahead);
        }
        assert_eq!(controller.batches[START], 200);
    }
}
