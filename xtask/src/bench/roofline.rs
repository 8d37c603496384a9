//! What the machine itself can do: no program that reads and writes the same bytes can be faster.

use anyhow::Result;
use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// Rates in bytes a second, the best of a few tries, on one core.
#[derive(Clone, Copy, Debug)]
pub struct Roofline {
    /// Reading what the core's file holds from the page cache, front to back.
    pub read: f64,
    /// Copying within memory, from and to buffers larger than the caches.
    pub copy: f64,
    /// Writing to the folder the dumps go to.
    pub write: f64,
}

const TRIES: u32 = 3;
const BLOCK: usize = 1 << 20;
/// Larger than the last level cache of most machines.
const COPIED: usize = 256 << 20;

/// Measures the three rates. The first reading of the core, which fills the page cache, does not count.
///
/// # Errors
/// The core cannot be read, or the folder not written.
pub fn measure(core: &Path, folder: &Path) -> Result<Roofline> {
    super::warm(core)?;
    let read = best(&mut || super::warm(core))?;

    let (source, mut target) = (vec![1u8; COPIED], vec![2u8; COPIED]);
    let copy = best(&mut || {
        target.copy_from_slice(black_box(&source));
        black_box(&mut target);
        Ok(COPIED as u64)
    })?;

    let path = folder.join("roofline");
    let write = best(&mut || {
        let mut file = File::create(&path)?;
        for part in source.chunks(BLOCK) {
            file.write_all(part)?;
        }
        Ok(COPIED as u64)
    })?;
    std::fs::remove_file(&path)?;
    Ok(Roofline { read, copy, write })
}

/// The best rate of `work`, which returns the bytes it handled.
fn best(work: &mut dyn FnMut() -> Result<u64>) -> Result<f64> {
    let mut rate = 0f64;
    for _ in 0..TRIES {
        let start = Instant::now();
        let bytes = work()?;
        rate = rate.max(bytes as f64 / start.elapsed().as_secs_f64());
    }
    Ok(rate)
}
