//! One run of a program: its wall time, and what the kernel accounted to it.

#![allow(
    unsafe_code,
    reason = "wait4 has no safe wrapper among our dependencies; getrusage(RUSAGE_CHILDREN) mixes all children"
)]

use crate::shell;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// What one run cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// From just before the start to the exit, in seconds.
    pub wall: f64,
    /// Processor time in user mode, in seconds.
    pub user: f64,
    /// Processor time in the kernel, in seconds.
    pub system: f64,
    /// Peak resident memory, in KiB. Mapped pages of the core that are in the page cache count.
    pub peak_kib: i64,
    /// The most anonymous memory that was seen resident (`RssAnon`), in KiB; 0 where it was not looked at.
    pub anonymous_kib: u64,
    /// Page faults served without and with input.
    pub faults: [i64; 2],
    /// Context switches: waited, and preempted.
    pub switches: [i64; 2],
}

/// What is done while a program runs.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// How long it may take.
    pub timeout: Duration,
    /// How often its anonymous memory is looked at; `None`: never, for that takes processor time too.
    pub sample: Option<Duration>,
}

/// A program that was ended because it took too long.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no end within {} s", .0.as_secs_f64())]
pub struct TimedOut(pub Duration);

/// Runs `command` to its end; what it cost, and what it printed on both streams.
///
/// # Errors
/// [`TimedOut`]; or it cannot be started, or fails, then with the end of what it printed.
pub fn measure(command: &mut Command, watch: Watch) -> Result<(Cost, String)> {
    let (mut reader, writer) = std::io::pipe()?;
    let start = Instant::now();
    let child = command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).spawn();
    let child = child.with_context(|| format!("cannot start {}", shell::line(command)))?;
    // The command holds the writing ends of the pipe, and with them the end of the output back.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (ended, watched) = mpsc::channel();
    let id = child.id();
    let watcher = std::thread::spawn(move || watch_over(id, start, watch, &watched));
    let mut said = Vec::new();
    let read = reader.read_to_end(&mut said);
    // The process is not reaped before the watcher has gone, so its number is still its own.
    drop(ended);
    let (anonymous_kib, killed) = watcher.join().unwrap_or_default();
    let (status, usage) = wait(id)?;
    read?;
    let wall = start.elapsed().as_secs_f64();
    if killed {
        return Err(TimedOut(watch.timeout).into());
    }
    let said = String::from_utf8_lossy(&said).into_owned();
    if !(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0) {
        bail!("{}: wait status {status:#x}: {}", shell::line(command), shell::tail(&said.replace('\r', "\n"), 6));
    }
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    Ok((
        Cost {
            wall,
            user: seconds(usage.ru_utime),
            system: seconds(usage.ru_stime),
            peak_kib: usage.ru_maxrss,
            anonymous_kib,
            faults: [usage.ru_minflt, usage.ru_majflt],
            switches: [usage.ru_nvcsw, usage.ru_nivcsw],
        },
        said,
    ))
}

/// Looks after the child `id` until the other end of `ended` is gone: the most `RssAnon` seen, and whether it was killed.
fn watch_over(id: u32, start: Instant, watch: Watch, ended: &mpsc::Receiver<()>) -> (u64, bool) {
    let (mut most, deadline) = (0, start + watch.timeout);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match ended.recv_timeout(watch.sample.unwrap_or(left).min(left)) {
            Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                let child = i32::try_from(id).ok().and_then(Pid::from_raw);
                return (most, child.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok()));
            }
            Err(RecvTimeoutError::Timeout) => most = most.max(anonymous(id)),
            _ => return (most, false),
        }
    }
}

/// `RssAnon` of a process, in KiB.
fn anonymous(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Waits for the child process `id`; its wait status and its own resource usage.
fn wait(id: u32) -> Result<(i32, libc::rusage)> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are to writable memory of the right type that lives past the call; `id` is our unreaped child.
    let reaped = unsafe { libc::wait4(id as libc::pid_t, &mut status, 0, usage.as_mut_ptr()) };
    if reaped < 0 {
        return Err(std::io::Error::last_os_error()).context("wait4");
    }
    // SAFETY: all-zero bytes are a valid rusage, and wait4 succeeded in filling it.
    Ok((status, unsafe { usage.assume_init() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENT: Watch = Watch { timeout: Duration::from_secs(60), sample: None };

    #[test]
    fn output_and_processor_time_are_those_of_the_child() {
        let (cost, said) = measure(Command::new("sh").args(["-c", "echo out; echo err >&2"]), PATIENT).unwrap();
        assert!(said.contains("out") && said.contains("err"), "{said}");
        assert!(cost.peak_kib > 0 && cost.faults[0] > 0);
        let error = measure(Command::new("sh").args(["-c", "echo why >&2; exit 3"]), PATIENT).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
    }

    #[test]
    fn a_program_without_end_is_ended_and_its_memory_seen() {
        let short = Watch { timeout: Duration::from_millis(200), sample: None };
        // exec: a shell's child would hold the pipe open.
        let error = measure(Command::new("sleep").arg("600"), short).unwrap_err();
        assert!(error.downcast_ref::<TimedOut>().is_some(), "{error}");
        let sampled = Watch { sample: Some(Duration::from_millis(5)), ..PATIENT };
        let (cost, _) = measure(Command::new("sleep").arg("0.2"), sampled).unwrap();
        assert!(cost.anonymous_kib > 0 && cost.anonymous_kib <= cost.peak_kib.unsigned_abs());
    }
}
