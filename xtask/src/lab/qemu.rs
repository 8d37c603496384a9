//! One QEMU: started, listened to on its console, told a few things over QMP, and ended whatever happens.

use crate::debian;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Zeros written by the guest become holes; a flush need not reach the host's disk.
const DISK_OPTIONS: &str = "cache=unsafe,discard=unmap,detect-zeroes=unmap";

/// How the guest's instructions are run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// By the processor.
    Kvm,
    /// Translated: ten to twenty times slower, and works everywhere.
    Tcg,
}

impl Accelerator {
    /// KVM where we may use it. Whether it can run a guest is known only later: see [`Ended::Unusable`].
    pub fn best() -> Self {
        let usable = File::options().read(true).write(true).open("/dev/kvm").is_ok();
        if usable { Self::Kvm } else { Self::Tcg }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// What to start.
pub struct Machine<'a> {
    pub accelerator: Accelerator,
    pub memory_mib: u64,
    pub five_level_paging: bool,
    /// One processor, and a clock that counts its instructions, a nanosecond each.
    pub count_instructions: bool,
    pub kernel: &'a Path,
    pub initramfs: &'a Path,
    pub command_line: &'a str,
    /// Raw disk images, in the order the guest sees them: vda, vdb...
    pub disks: &'a [PathBuf],
    /// Where the console goes.
    pub console: &'a Path,
}

/// Why a guest is no longer there.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    #[error("KVM cannot run a guest on this machine")]
    Unusable,
    #[error("QEMU ended; the end of its console:\n{0}")]
    Exited(String),
    #[error("nothing came within {0:?}; the end of the console:\n{1}")]
    TimedOut(Duration, String),
}

/// A running guest. Dropping it ends QEMU; so does the end of this program, even by a signal.
pub struct Guest {
    accelerator: Accelerator,
    memory_mib: u64,
    process: Child,
    qmp: ChildStdin,
    answers: Receiver<String>,
    console: PathBuf,
    read: u64,
    partial: String,
}

/// The version line of the QEMU that is installed.
pub fn version() -> Result<String> {
    let text = crate::shell::capture(Command::new("qemu-system-x86_64").arg("--version"))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

impl Guest {
    /// Starts QEMU. Call it from the main thread: QEMU is ended with the thread that started it.
    ///
    /// # Errors
    /// A program is missing.
    pub fn start(machine: &Machine<'_>) -> Result<Self> {
        let _ = fs::remove_file(machine.console);
        let cpu = match (machine.accelerator, machine.five_level_paging) {
            (Accelerator::Kvm, true) => "host",
            (Accelerator::Kvm, false) => "host,la57=off",
            (Accelerator::Tcg, true) => "max",
            (Accelerator::Tcg, false) => "max,la57=off",
        };
        let setpriv = debian::find("setpriv").context("no setpriv (package util-linux)")?;
        let mut command = Command::new(setpriv);
        command.args([
            "--pdeathsig",
            "KILL",
            "qemu-system-x86_64",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
            "-qmp",
            "stdio",
        ]);
        let (accelerator, processors) = match (machine.accelerator, machine.count_instructions) {
            (Accelerator::Kvm, _) => ("kvm", "2"),
            (Accelerator::Tcg, false) => ("tcg,thread=multi", "2"),
            (Accelerator::Tcg, true) => ("tcg,thread=single", "1"),
        };
        command.args(["-accel", accelerator, "-smp", processors]);
        if machine.count_instructions {
            command.args(["-icount", "shift=0,sleep=off"]);
        }
        // QEMU executes `rep movsb` a byte at a time, and counts each. Without these the kernel copies words.
        let words = if machine.count_instructions { ",erms=off,fsrm=off" } else { "" };
        command.args(["-cpu", &format!("{cpu}{words}"), "-m", &format!("{}M", machine.memory_mib)]);
        command.args(["-device", "virtio-balloon-pci", "-device", "virtio-rng-pci", "-append", machine.command_line]);
        command.arg("-serial").arg(format!("file:{}", machine.console.display()));
        command.arg("-kernel").arg(machine.kernel).arg("-initrd").arg(machine.initramfs);
        for disk in machine.disks {
            let file = disk.display().to_string().replace(',', ",,"); // as QEMU's options want them
            command.args(["-drive", &format!("if=virtio,format=raw,{DISK_OPTIONS},file={file}")]);
        }
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let qmp = process.stdin.take().context("QEMU without an input")?;
        let output = process.stdout.take().context("QEMU without an output")?;
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let console = machine.console.to_owned();
        let (accelerator, memory_mib) = (machine.accelerator, machine.memory_mib);
        let mut guest =
            Self { accelerator, memory_mib, process, qmp, answers, console, read: 0, partial: String::new() };
        // Nothing can be asked before this; that it fails shows in the first question.
        let _ = guest.qmp("qmp_capabilities", &json!({}));
        Ok(guest)
    }

    /// Waits for the next line that the lab's guest says (`LAB ...`): its first word and the rest.
    ///
    /// # Errors
    /// [`Ended`]: QEMU is gone, or `deadline` has passed.
    pub fn listen(&mut self, deadline: Instant) -> Result<(String, String)> {
        let started = Instant::now();
        loop {
            let ended = self.process.try_wait()?.is_some();
            self.read_console()?;
            while let Some(end) = self.partial.find('\n') {
                let line: String = self.partial.drain(..=end).collect();
                if let Some(at) = line.find("LAB ") {
                    let said = line[at + 4..].trim_end();
                    let (verb, rest) = said.split_once(' ').unwrap_or((said, ""));
                    return Ok((verb.to_owned(), rest.to_owned()));
                }
            }
            if self.accelerator == Accelerator::Kvm && self.read == 0 && (ended || self.status() == "internal-error") {
                bail!(Ended::Unusable);
            }
            if ended {
                bail!(Ended::Exited(self.console_end()));
            }
            if Instant::now() >= deadline {
                bail!(Ended::TimedOut(started.elapsed(), self.console_end()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Makes the balloon take `mib` MiB from the guest.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
    pub fn inflate(&mut self, mib: u64) -> Result<()> {
        let left = self.memory_mib.saturating_sub(mib) << 20;
        self.qmp("balloon", &json!({ "value": left })).map(drop)
    }

    /// Ends QEMU in order: its disk images are then complete.
    ///
    /// # Errors
    /// It does not end within half a minute.
    pub fn quit(mut self) -> Result<()> {
        let _ = self.qmp("quit", &json!({}));
        for _ in 0..300 {
            if self.process.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("QEMU did not end when told to");
    }

    fn status(&mut self) -> String {
        let answer = self.qmp("query-status", &json!({})).unwrap_or_default();
        answer["status"].as_str().unwrap_or_default().to_owned()
    }

    fn qmp(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        writeln!(self.qmp, "{}", json!({ "execute": command, "arguments": arguments }))?;
        loop {
            // Events and the greeting come between answers.
            let line = self
                .answers
                .recv_timeout(Duration::from_secs(10))
                .with_context(|| format!("QEMU did not answer {command}"))?;
            let mut answer: Value = serde_json::from_str(&line)?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refuses {command}: {error}");
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    fn read_console(&mut self) -> Result<()> {
        let Ok(mut file) = File::open(&self.console) else { return Ok(()) };
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        self.read += file.read_to_end(&mut bytes)? as u64;
        self.partial.push_str(&String::from_utf8_lossy(&bytes));
        Ok(())
    }

    fn console_end(&self) -> String {
        let bytes = fs::read(&self.console).unwrap_or_default();
        crate::shell::tail(&String::from_utf8_lossy(&bytes), 25)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
