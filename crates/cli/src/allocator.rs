//! How the C library's allocator gives memory back.
#![allow(unsafe_code, reason = "the allocator's settings have no safe form")]

/// Bytes from which an allocation is a mapping of its own, which grows in place and is gone when it is freed; also what the heap may
/// keep at its end. At 128 KiB, glibc's own, buffers that are made again and again would be mapped each time: 18,000 page faults more in
/// a dump of 1.3 GiB.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 1 << 20;

/// Keeps large allocations out of the heap. glibc raises the threshold to the largest one that was freed, and grows what is below it by
/// copying: page sets of 12 MB then took 34 MiB.
pub fn keep_small() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets numbers of the allocator; no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE);
    }
}
