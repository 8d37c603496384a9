//! How much memory our program takes, by threads and codec, and what of it is base and what a thread's.

use super::contender::Contender;
use super::measure::Watch;
use anyhow::Result;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

const THREADS: &[&str] = &["1", "2", "4", "8", "16", "32"];
const CODECS: &[(&str, &str)] = &[("snappy", ""), ("zstd", "")];
/// Anonymous memory is looked at so often; what lives shorter is in the peak only.
const SAMPLE: Duration = Duration::from_millis(2);

/// Memory of one run, in MiB.
struct Row {
    codec: &'static str,
    threads: f64,
    peak: f64,
    anonymous: f64,
    said: f64,
    budget: f64,
    wall: f64,
}

/// Runs our program over `core` into /dev/null with each number of threads; a table, and base and per-thread share by least squares.
///
/// # Errors
/// A run fails or takes too long.
pub fn table(program: &Path, core: &Path, timeout: Duration) -> Result<String> {
    let mut rows = Vec::new();
    for codec in CODECS {
        for threads in THREADS {
            let contender = Contender { name: "coresift", ours: true, threads: Some(threads) };
            let out = Path::new("/dev/null");
            let mut command = contender.command((program, program), *codec, core, out);
            let run = contender.run(&mut command, out, Watch { timeout, sample: Some(SAMPLE) })?;
            let said = run.said.unwrap_or_default();
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            println!("{} {threads} threads: {:.1} MiB", codec.0, run.cost.peak_kib as f64 / 1024.0);
            rows.push(Row {
                codec: codec.0,
                threads: threads.parse().unwrap_or(1.0),
                peak: run.cost.peak_kib as f64 / 1024.0,
                anonymous: run.cost.anonymous_kib as f64 / 1024.0,
                said: mib(said.peak_memory),
                budget: mib(said.memory_budget),
                wall: run.cost.wall,
            });
        }
    }
    Ok(text(&rows))
}

fn text(rows: &[Row]) -> String {
    let mut out = format!(
        "MiB: peak resident (mapped pages of the core among it), the most anonymous memory seen, the report's own peak, its budget\n\n\
         {:<7} {:>7} {:>8} {:>10} {:>8} {:>10} {:>8}\n",
        "codec", "threads", "peak", "anonymous", "report", "budget", "wall s"
    );
    for r in rows {
        let _ = writeln!(
            out,
            "{:<7} {:>7} {:>8.1} {:>10.1} {:>8.1} {:>10.0} {:>8.2}",
            r.codec, r.threads, r.peak, r.anonymous, r.said, r.budget, r.wall
        );
    }
    out.push('\n');
    for (codec, _) in CODECS {
        let fit_of = |value: fn(&Row) -> f64| {
            fit(&rows.iter().filter(|r| r.codec == *codec).map(|r| (r.threads, value(r))).collect::<Vec<_>>())
        };
        let ((base, each), (base_anonymous, each_anonymous)) = (fit_of(|r| r.peak), fit_of(|r| r.anonymous));
        let _ = writeln!(
            out,
            "{codec}: peak {base:.2} MiB + {each:.3} a thread; anonymous {base_anonymous:.2} + {each_anonymous:.3}"
        );
    }
    out
}

/// Base and slope of the line through the points, by least squares.
fn fit(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    let mean = |f: fn(&(f64, f64)) -> f64| points.iter().map(f).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let spread: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let slope = if spread > 0.0 { points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>() / spread } else { 0.0 };
    (y - slope * x, slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_and_slope_of_points_on_a_line_are_the_lines() {
        let (base, slope) = fit(&[(1.0, 5.5), (2.0, 6.0), (32.0, 21.0)]);
        assert!((base - 5.0).abs() < 1e-9 && (slope - 0.5).abs() < 1e-9, "{base} {slope}");
    }
}
