//! Signals that would end the program where an error is enough, or where it should end in order.
#![allow(unsafe_code, reason = "asking for and setting a signal's disposition has no safe form")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Signals by which a user, a service manager or a shutdown ends the program.
const ENDING: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Makes a write beyond the file size limit (`ulimit -f`) fail with EFBIG, which is handled like any full target, instead of
/// killing the program with SIGXFSZ.
pub fn survive_file_size_limit() {
    // SAFETY: ignoring a signal installs no handler, and no other thread runs yet.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Catches SIGTERM, SIGINT and SIGHUP: the first is told by its number in what is returned, so that a run ends in order; a second
/// ends the program at once, as it would without this. One that is ignored (`nohup`, a shell's background job) stays so.
pub fn watch() -> Arc<AtomicUsize> {
    let number = Arc::new(AtomicUsize::new(0));
    let second = Arc::new(AtomicBool::new(false));
    for signal in ENDING.into_iter().filter(|signal| !is_ignored(*signal)) {
        // In this order: what the first one sets is not yet set when it asks. Where a handler cannot be installed, the signal
        // ends the program as it always did.
        let _default = signal_hook::flag::register_conditional_default(signal, Arc::clone(&second))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&second)))
            .and_then(|_| signal_hook::flag::register_usize(signal, Arc::clone(&number), signal as usize));
    }
    number
}

fn is_ignored(signal: libc::c_int) -> bool {
    let mut now: libc::sigaction = {
        // SAFETY: the struct is plain numbers, of which zero is one.
        unsafe { std::mem::zeroed() }
    };
    // SAFETY: nothing is set, and `now` is what the call writes to.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_known() {
        // SAFETY: no test uses this signal.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
        assert!(is_ignored(libc::SIGUSR2) && !is_ignored(libc::SIGUSR1));
    }
}
