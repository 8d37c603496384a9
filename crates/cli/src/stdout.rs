//! The standard output, where the program was started with one.
//!
//! Rust's runtime opens /dev/null in place of a standard output that is closed (`>&-`), before `main`: what is written is lost without an
//! error. A caller's own `>/dev/null` cannot be told from that later, so the system is asked before the runtime is there.
#![allow(unsafe_code, reason = "a function that runs before the runtime is named by a link section")]

use std::io::{self, Stdout};
use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: the C library calls each function of this section once before `main` (glibc with arguments, which this one ignores; musl
// without), and `look` needs nothing that the runtime sets up later.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: the call takes any number for a descriptor; the only error of this request is that it is not open.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    CLOSED.store(flags < 0, Ordering::Relaxed);
}

/// The standard output.
///
/// # Errors
/// EBADF where the program was started without one.
pub fn open() -> io::Result<Stdout> {
    if CLOSED.load(Ordering::Relaxed) { Err(io::Error::from_raw_os_error(libc::EBADF)) } else { Ok(io::stdout()) }
}
