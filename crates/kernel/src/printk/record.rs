//! A message of the log, whatever form it was kept in.

use std::fmt;

/// One message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Its number since boot; kept since 5.10.
    pub seq: Option<u64>,
    /// Nanoseconds since boot.
    pub time: Option<u64>,
    /// Who logged it: a facility number of syslog(3), 0 for the kernel.
    pub facility: Option<u8>,
    /// How important it is: 0, emergency, to 7, debug.
    pub level: Option<u8>,
    /// The task or CPU that logged it.
    pub caller: Option<Caller>,
    /// What it says.
    pub message: Message,
    /// Names and values that came with it, such as SUBSYSTEM and DEVICE.
    pub dict: Vec<(String, String)>,
    /// Its characters as they are in a buffer of characters (until 3.4), with level and time in front and the line end behind where
    /// there is one.
    pub raw: Option<Vec<u8>>,
}

/// The text of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Message {
    /// These bytes, without the line end. Lines after the first of one record follow a newline.
    Text(Vec<u8>),
    /// None, and so no room was taken for it.
    #[default]
    Empty,
    /// The buffer had no room for it (it was too long), or it is not in the dump.
    Lost,
}

/// Who logged a record: a task, or a CPU outside of any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller(pub u32);

/// The bit of a caller id that says it is the number of a CPU (`printk_caller_id` of kernel/printk/printk.c).
const CPU: u32 = 1 << 31;

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.0 & CPU == 0 { 'T' } else { 'C' };
        f.pad(&format!("{kind}{}", self.0 & !CPU))
    }
}
