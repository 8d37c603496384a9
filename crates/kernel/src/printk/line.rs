//! A record as a line of text, as `makedumpfile --dump-dmesg` has always written it.

use super::record::{Message, Record};
use std::io::Write;

/// Column in which a caller id ends.
const CALLER_WIDTH: usize = 8;

impl Record {
    /// Appends the line: time, caller where the kernel keeps it, text. A record without text has none.
    ///
    /// Lines after the first of one record are indented to it. Bytes that are neither printable ASCII nor white space are written
    /// as `\x` and two hexadecimal digits.
    pub fn line(&self, out: &mut Vec<u8>) {
        if let Some(raw) = &self.raw {
            out.extend(raw);
            return;
        }
        let Message::Text(text) = &self.message else { return };
        let start = out.len();
        self.prefix(out);
        let indent = out.len() - start;
        for byte in text {
            match byte {
                b'\n' => {
                    out.push(b'\n');
                    out.resize(out.len() + indent, b' ');
                }
                // What isprint(3) and isspace(3) take in the C locale.
                b' '..=b'~' | b'\t' | 0x0b | 0x0c | b'\r' => out.push(*byte),
                other => put(out, format_args!("\\x{other:02x}")),
            }
        }
        out.push(b'\n');
    }

    /// Appends time and caller, each in brackets with a blank behind.
    pub fn prefix(&self, out: &mut Vec<u8>) {
        match self.time {
            Some(ns) => put(out, format_args!("[{:5}.{:06}] ", ns / 1_000_000_000, ns / 1000 % 1_000_000)),
            None => put(out, format_args!("[    ?.??????] ")),
        }
        if let Some(caller) = self.caller {
            put(out, format_args!("[{caller:>CALLER_WIDTH$}] "));
        }
    }
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to memory does not fail.
    let _infallible = out.write_fmt(text);
}
