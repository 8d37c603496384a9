//! How the C library's allocator gives memory back.
#![allow(unsafe_code, reason = "the allocator's settings have no safe form")]

/// Bytes from which an allocation is a mapping of its own: it grows in place and is gone when it is freed.
#[cfg(target_env = "gnu")]
const MAPPED: libc::c_int = 128 << 10;

/// Keeps large allocations out of the heap. glibc raises this threshold to the largest one that was freed, and grows what is below by
/// copying: page sets of 12 MB then took 34 MiB.
pub fn keep_small() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator; no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
    }
}
