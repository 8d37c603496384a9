//! Ours against theirs, run by run: the two runs of one round had the same minute of the machine.

use super::contender::{CONTENDERS, STAGES};
use super::record::Series;
use std::fmt::Write as _;

/// Ratios of one stage, their seconds by ours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub median: f64,
    pub best: f64,
    pub worst: f64,
}

impl Ratio {
    /// Of the rounds that both have; `None` where there is none.
    fn of(pairs: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        let mut ratios: Vec<f64> = pairs.filter(|p| p.1 > 0.0).map(|(theirs, ours)| theirs / ours).collect();
        ratios.sort_by(f64::total_cmp);
        let (&worst, &best) = (ratios.first()?, ratios.last()?);
        let middle = ratios.len() / 2;
        let median = if ratios.len() % 2 == 1 { ratios[middle] } else { (ratios[middle - 1] + ratios[middle]) / 2.0 };
        Some(Self { median, best, worst })
    }
}

/// A line for each of our contenders against each of theirs, by target and codec: of each stage the median ratio, and worst to best.
pub fn table(all: &[Series]) -> String {
    let mut out = format!("{:<6} {:<6} {:<21} {:<28}", "target", "codec", "program", "times faster than");
    for (name, _) in STAGES {
        let _ = write!(out, " {name:>6} {:<14}", "(worst-best)");
    }
    out = out.trim_end().to_owned() + "\n";
    for ours in all.iter().filter(|s| s.contender.ours) {
        for other in CONTENDERS.iter().filter(|c| !c.ours) {
            let same = |s: &&Series| (s.target, s.codec, s.contender) == (ours.target, ours.codec, *other);
            let Some(theirs) = all.iter().find(same) else { continue };
            let mut line =
                format!("{:<6} {:<6} {:<21} {:<28}", ours.target, ours.codec, ours.contender.name, other.name);
            if let Err(failure) = &theirs.runs {
                // That it took longer than its time is a ratio too, with no upper end.
                let least = failure.after.zip(ours.best()).map(|(after, best)| after / best.cost.wall);
                let _ = match least {
                    Some(ratio) => write!(line, " total > {ratio:.1}: {}", failure.why),
                    None => write!(line, " -: {}", failure.short()),
                };
            } else {
                for (_, seconds) in STAGES {
                    let rounds = theirs.runs.iter().flatten().zip(ours.runs.iter().flatten());
                    let ratio = Ratio::of(rounds.map(|(theirs, ours)| (seconds(theirs), seconds(ours))));
                    let _ = match ratio {
                        Some(r) => write!(line, " {:>6.2} {:<14}", r.median, format!("({:.2}-{:.2})", r.worst, r.best)),
                        None => write!(line, " {:>6} {:<14}", "-", ""),
                    };
                }
            }
            out += line.trim_end();
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_ratios_is_taken_pair_by_pair() {
        // Rounds in which the machine was slow for both say the same as the others.
        let pairs = [(10.0, 5.0), (40.0, 20.0), (9.0, 3.0), (8.0, 8.0)];
        assert_eq!(Ratio::of(pairs.into_iter()), Some(Ratio { median: 2.0, best: 3.0, worst: 1.0 }));
        assert_eq!(Ratio::of([(6.0, 2.0)].into_iter()), Some(Ratio { median: 3.0, best: 3.0, worst: 3.0 }));
        assert_eq!(Ratio::of([(1.0, 0.0)].into_iter()), None);
    }
}
