//! System RAM, by /proc/iomem.

use crate::error::{CensusError, Result};
use coresift_format::Pfn;
use std::path::Path;

/// The page frames of System RAM that `text`, the content of the file `path`, names: ascending ranges. A frame that is RAM only in part
/// is not counted, as the kernel does not give it out.
///
/// # Errors
/// A line is malformed, or the addresses are hidden (zeros, for want of CAP_SYS_ADMIN).
pub fn ram(path: &Path, text: &str, page_size: u64) -> Result<Vec<(Pfn, Pfn)>> {
    let mut ranges: Vec<(Pfn, Pfn)> = Vec::new();
    let mut hidden = true;
    for (number, line) in text.lines().enumerate() {
        let bad = |what: String| CensusError::Format { path: path.to_owned(), line: number + 1, what };
        let Some((range, name)) = line.split_once(" : ") else { continue };
        // What lies inside RAM (the kernel's code, the crash kernel) is indented.
        if line.starts_with(' ') || !name.starts_with("System RAM") {
            continue;
        }
        let address = |text: &str| u64::from_str_radix(text.trim(), 16).ok();
        let Some((first, last)) = range.split_once('-').and_then(|(a, b)| Some((address(a)?, address(b)?))) else {
            return Err(bad(format!("\"{line}\" is no range of addresses")));
        };
        hidden &= last == 0;
        let (start, end) = (Pfn(first.div_ceil(page_size)), Pfn(last.saturating_add(1) / page_size));
        if start >= end {
            continue;
        }
        match ranges.last_mut() {
            Some(before) if start < before.1 => {
                return Err(bad(format!("\"{line}\" begins before the range above it ends")));
            }
            Some(before) if start == before.1 => before.1 = end,
            _ => ranges.push((start, end)),
        }
    }
    if hidden {
        return Err(CensusError::Hidden { path: path.to_owned() });
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<(Pfn, Pfn)>> {
        ram(Path::new("/proc/iomem"), text, 4096)
    }

    #[test]
    fn frames_that_are_ram_only_in_part_are_left_out() {
        let text = "00000000-00000fff : Reserved\n00001000-0009fbff : System RAM\n  00002000-00002fff : Kernel code\n\
                    00100000-001fffff : System RAM\n";
        assert_eq!(of(text).ok(), Some(vec![(Pfn(1), Pfn(0x9f)), (Pfn(0x100), Pfn(0x200))]));
    }

    #[test]
    fn hidden_addresses_are_said_to_be_hidden() {
        let text = "00000000-00000000 : System RAM\n00000000-00000000 : System RAM\n";
        assert!(matches!(of(text), Err(CensusError::Hidden { .. })));
    }

    #[test]
    fn a_line_that_is_no_range_is_named() {
        let error = of("00001000-0009fbff : System RAM\nzz-1 : System RAM\n").err().map(|e| e.to_string());
        assert_eq!(error.as_deref(), Some("/proc/iomem: line 2: \"zz-1 : System RAM\" is no range of addresses"));
    }
}
