//! Signals that would end the program where an error is enough.
#![allow(unsafe_code, reason = "setting a signal's disposition has no safe form")]

/// Makes a write beyond the file size limit (`ulimit -f`) fail with EFBIG, which is handled like any full target, instead of
/// killing the program with SIGXFSZ.
pub fn survive_file_size_limit() {
    // SAFETY: ignoring a signal installs no handler, and no other thread runs yet.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
