//! A file mapped as a whole, and the processor time of a thread: what a limit is measured with.

#![allow(unsafe_code, reason = "mmap has no safe form")]

use anyhow::Result;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::time::{ClockId, clock_gettime};
use std::ffi::c_void;
use std::fs::File;
use std::ops::Deref;

/// A read-only mapping. The file must not shrink while it lives: a page that is gone ends the program.
pub struct Mapping {
    base: *mut c_void,
    len: usize,
}

impl Mapping {
    /// Maps all of `file`.
    ///
    /// # Errors
    /// The system refuses, as it does for an empty file.
    pub fn of(file: &File) -> Result<Self> {
        let len = usize::try_from(file.metadata()?.len())?;
        // SAFETY: a new mapping at an address of the kernel's choice; no existing memory is touched.
        let base = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
        Ok(Self { base, len })
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `base` is the start of `len` mapped readable bytes that live as long as `self`; a benchmark's core is not written.
        unsafe { std::slice::from_raw_parts(self.base.cast(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no slice of it outlives `self`.
        let _ = unsafe { munmap(self.base, self.len) };
    }
}

/// Processor time this thread has had, in seconds: on a busy machine the time something takes alone.
pub fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_mapping_has_the_bytes_of_the_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 5000]).unwrap();
        assert_eq!(*Mapping::of(&file).unwrap(), [7; 5000]);
        assert!(Mapping::of(&tempfile::tempfile().unwrap()).is_err());
    }
}
