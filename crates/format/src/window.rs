//! Read-only mappings of a part of a file, and what happens when a mapped page turns out not to be there.
//!
//! A page of a mapping can fail long after the mapping was made: the file was truncated, a disk block or the memory
//! behind /proc/vmcore cannot be read. The kernel then sends SIGBUS to the thread that touched the page. With
//! [`guard_faults`] in place the page becomes a page of zeros, the thread goes on, and [`faults_taken`] tells it
//! that what it just read was not the file.
#![allow(unsafe_code, reason = "mmap, munmap and a SIGBUS handler have no safe form")]

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::cell::Cell;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Windows that can be open at one time in the process; a thread keeps one or two.
const MAX_WINDOWS: usize = 1024;

/// Where a live window lies. Free: `end` is 0. Being filled or emptied: `start` is `usize::MAX`, so nothing is inside.
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
}

static SLOTS: [Slot; MAX_WINDOWS] =
    [const { Slot { start: AtomicUsize::new(usize::MAX), end: AtomicUsize::new(0) } }; MAX_WINDOWS];
/// Where to look for a free slot first.
static NEXT_SLOT: AtomicUsize = AtomicUsize::new(0);
static PAGE: AtomicUsize = AtomicUsize::new(4096);

thread_local! {
    // Constant initialiser and no destructor: reading it from a signal handler allocates and registers nothing.
    static FAULTS: Cell<u64> = const { Cell::new(0) };
}

/// A read-only, private mapping of some bytes of a file; unmapped when dropped.
#[derive(Debug)]
pub struct Window {
    base: *mut c_void,
    mapped: usize,
    skip: usize,
    len: usize,
    slot: usize,
}

// SAFETY: a window is read-only memory owned by this value; nothing in it belongs to one thread.
unsafe impl Send for Window {}
// SAFETY: as for `Send`; shared access only ever reads.
unsafe impl Sync for Window {}

impl Window {
    /// Maps `len` bytes from `offset` on, which need not be aligned. `Ok(None)` when too many windows are open.
    ///
    /// # Errors
    /// The refusal of the operating system.
    pub(crate) fn map(file: &File, offset: u64, len: usize) -> io::Result<Option<Self>> {
        let page = rustix::param::page_size();
        let skip = (offset % page as u64) as usize;
        let mapped = len.checked_add(skip).ok_or(io::ErrorKind::InvalidInput)?;
        let Some(slot) = claim_slot() else { return Ok(None) };
        // SAFETY: a new mapping at an address of the kernel's choice; no existing memory is touched.
        let base = unsafe {
            mmap(std::ptr::null_mut(), mapped, ProtFlags::READ, MapFlags::PRIVATE, file, offset - skip as u64)
        };
        match base {
            Ok(base) => {
                let start = base as usize;
                if let Some(s) = SLOTS.get(slot) {
                    s.end.store(start + mapped.next_multiple_of(page), Ordering::Relaxed);
                    s.start.store(start, Ordering::Release);
                }
                Ok(Some(Self { base, mapped, skip, len, slot }))
            }
            Err(e) => {
                release_slot(slot);
                Err(e.into())
            }
        }
    }
}

impl Deref for Window {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `base..base + mapped` is mapped readable until drop and `skip + len == mapped`. The file may change
        // or shrink meanwhile: bytes are plain data with no invalid values, and a lost page becomes zeros by
        // `guard_faults` (or ends the process without it).
        unsafe { std::slice::from_raw_parts(self.base.cast::<u8>().add(self.skip), self.len) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(s) = SLOTS.get(self.slot) {
            s.start.store(usize::MAX, Ordering::Relaxed);
        }
        // SAFETY: exactly the range mapped by `map`, of which no borrow outlives `self`.
        let unmapped = unsafe { munmap(self.base, self.mapped) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping cannot fail");
        release_slot(self.slot);
    }
}

fn claim_slot() -> Option<usize> {
    let first = NEXT_SLOT.fetch_add(1, Ordering::Relaxed);
    (0..MAX_WINDOWS).map(|i| first.wrapping_add(i) % MAX_WINDOWS).find(|i| {
        SLOTS.get(*i).is_some_and(|s| s.end.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok())
    })
}

fn release_slot(slot: usize) {
    if let Some(s) = SLOTS.get(slot) {
        s.start.store(usize::MAX, Ordering::Relaxed);
        s.end.store(0, Ordering::Release);
    }
}

/// Makes a fault inside a [`Window`] harmless for the rest of the process's life: the page reads as zeros and
/// [`faults_taken`] counts it. Any other SIGBUS ends the process as before. To be called once by the program.
///
/// # Errors
/// The operating system's refusal to install the handler.
pub fn guard_faults() -> io::Result<()> {
    static ONCE: Once = Once::new();
    let mut result = Ok(());
    ONCE.call_once(|| {
        PAGE.store(rustix::param::page_size(), Ordering::Relaxed);
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
        // SAFETY: all zeros is a valid sigaction; every field that matters is set below.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: `action` is fully initialised and the handler is async-signal-safe (see there).
        if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } != 0 {
            result = Err(io::Error::last_os_error());
        }
    });
    result
}

/// How many pages of windows this thread touched that turned out not to be readable.
#[must_use]
pub fn faults_taken() -> u64 {
    FAULTS.get()
}

/// Async-signal-safe: atomic loads, one mmap system call, a thread-local without lazy initialisation.
extern "C" fn on_sigbus(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A positive code is a fault of this thread; others were sent by a process and carry no address.
    let ours = code > 0
        && SLOTS.iter().any(|s| {
            let start = s.start.load(Ordering::Acquire);
            start <= address && address < s.end.load(Ordering::Relaxed)
        });
    let page = PAGE.load(Ordering::Relaxed);
    if ours && replace_by_zeros(address & !(page - 1), page) {
        FAULTS.set(FAULTS.get() + 1);
        return;
    }
    // SAFETY: all zeros is a valid sigaction, and SIG_DFL a valid action: the fault repeats and ends the process.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}

fn replace_by_zeros(page: usize, len: usize) -> bool {
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the page lies in a live window, which this crate owns; it stays readable and is unmapped with the window.
    let at = unsafe { libc::mmap(page as *mut c_void, len, libc::PROT_READ, flags, -1, 0) };
    at != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_page_truncated_away_under_a_window_reads_as_zeros_and_is_counted() {
        guard_faults().unwrap();
        let page = rustix::param::page_size();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![9; 4 * page], 0).unwrap();
        let window = Window::map(&file, 0, 4 * page).unwrap().unwrap();
        let before = faults_taken();
        assert_eq!(window[3 * page], 9);
        file.set_len(page as u64).unwrap();
        assert!(window[2 * page..].iter().all(|b| *b == 0));
        assert_eq!(window[page - 1], 9, "what is left of the file is still shown");
        assert_eq!(faults_taken() - before, 2, "one fault a page");
        let elsewhere = std::thread::spawn(faults_taken).join().unwrap();
        assert_eq!(elsewhere, 0, "faults are counted for the thread that took them");
    }

    #[test]
    fn slots_are_given_back() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 8192], 0).unwrap();
        for _ in 0..4 * MAX_WINDOWS {
            assert_eq!(Window::map(&file, 4097, 3).unwrap().unwrap().len(), 3);
        }
    }

    #[test]
    fn a_sigbus_that_is_not_ours_still_ends_the_process() {
        guard_faults().unwrap();
        // SAFETY: the child only maps, touches and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: an own mapping of a file that is empty; touching it faults.
            unsafe {
                let fd = libc::memfd_create(c"empty".as_ptr(), 0);
                let at = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
                std::ptr::read_volatile(at.cast::<u8>());
                libc::_exit(0);
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS);
    }
}
