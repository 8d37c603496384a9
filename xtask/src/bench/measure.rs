//! One run of a program: its wall time, and what the kernel accounted to it.

#![allow(
    unsafe_code,
    reason = "wait4 has no safe wrapper among our dependencies; getrusage(RUSAGE_CHILDREN) mixes all children"
)]

use crate::shell;
use anyhow::{Context, Result, bail};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Instant;

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
    /// Page faults served without and with input.
    pub faults: [i64; 2],
    /// Context switches: waited, and preempted.
    pub switches: [i64; 2],
}

/// Runs `command` to its end; what it cost, and what it printed on both streams.
///
/// # Errors
/// It cannot be started, or fails; then with the end of what it printed.
pub fn measure(command: &mut Command) -> Result<(Cost, String)> {
    let (mut reader, writer) = std::io::pipe()?;
    let start = Instant::now();
    let child = command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).spawn();
    let child = child.with_context(|| format!("cannot start {}", shell::line(command)))?;
    // The command holds the writing ends of the pipe, and with them the end of the output back.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut said = Vec::new();
    reader.read_to_end(&mut said)?;
    let (status, usage) = wait(child.id())?;
    let wall = start.elapsed().as_secs_f64();
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
            faults: [usage.ru_minflt, usage.ru_majflt],
            switches: [usage.ru_nvcsw, usage.ru_nivcsw],
        },
        said,
    ))
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

    #[test]
    fn output_and_processor_time_are_those_of_the_child() {
        let (cost, said) = measure(Command::new("sh").args(["-c", "echo out; echo err >&2"])).unwrap();
        assert!(said.contains("out") && said.contains("err"), "{said}");
        assert!(cost.peak_kib > 0 && cost.faults[0] > 0);
        let error = measure(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
    }
}
