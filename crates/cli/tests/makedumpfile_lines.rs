//! Command lines of makedumpfile, a row each: exit code, standard output and standard error of the built program.
//!
//! With `CORESIFT_MAKEDUMPFILE=/path/to/makedumpfile` (1.7.9) in the environment the rows not marked `OURS` are put to that
//! program too, and must end with the same exit code and the same standard output.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::HashSet;
use std::process::{Command, Output, Stdio};

/// What a command line comes to.
enum Want {
    /// Exit code 0, not a byte printed.
    Silent,
    /// Exit code 0, nothing on the standard output, this in a note on the standard error.
    Note(&'static str),
    /// The two lines of a parameter error, after this one if any, and on the standard error a line with this if any.
    Params(&'static str, &'static str),
    /// This line alone.
    Line(&'static str),
    /// Not built yet: exit code 1 and a line on the standard error that begins with this.
    Refused(&'static str),
    /// Every check passed: what fails is opening the input.
    Opens,
    /// Exit code 0 and a text that begins with this.
    Text(&'static str),
    /// The output exists.
    Exists,
    /// Exit code 1, not a byte printed.
    SilentFailure,
}
use Want::{Exists, Line, Note, Opens, Params, Refused, Silent, SilentFailure, Text};

/// makedumpfile does the same, or something else by intent.
#[derive(PartialEq)]
enum As {
    Theirs,
    Ours,
}
use As::{Ours, Theirs};

const PLAIN: Want = Params("", "");
const DRY_G: &str = "--dry-run cannot be used with -g.";
const DRY_DMESG: &str = "--dry-run cannot be used with --dump-dmesg.";
const DRY_JOIN: &str = "--dry-run cannot be used with --reassemble.";
const SPLIT_ELF: &str = "Options for splitting dumpfile cannot be used with Elf format.";

/// `-` in a name stands for a file that does not exist; `/etc/passwd` for one that does.
const LINES: &[(&str, Want, As)] = &[
    // Acceptance of kdump scripts.
    ("--check-params -l --message-level 7 -d 31 vmcore dumpfile", Silent, Theirs),
    ("--check-params -F -l --message-level 7 -d 31 vmcore dumpfile", PLAIN, Theirs),
    ("--check-params -l --message-level 7 -d 31 vmcore", PLAIN, Theirs),
    ("--check-params -c --message-level 7 -d 31 vmcore dumpfile", Silent, Theirs),
    ("--check-params -l --message-level 1 -d 31 vmcore dumpfile", Silent, Theirs),
    ("--check-params -d 17,31 vmcore dumpfile", Silent, Theirs),
    ("--check-params --num-threads=1 --num-threads=4 vmcore dumpfile", Silent, Theirs),
    ("--check-params -c -l vmcore dumpfile", Silent, Theirs),
    ("--check-params -c -l -p -z vmcore dumpfile", Silent, Theirs),
    ("--check-params vmcore dumpfile -d 31 -l", Silent, Theirs),
    ("--check-params -ld31 vmcore dumpfile", Silent, Theirs),
    ("--check-params -lD vmcore dumpfile", Silent, Theirs),
    ("-D --check-params vmcore dumpfile", Silent, Theirs),
    ("--check-params --message-level 31 vmcore dumpfile", Silent, Theirs),
    ("--check-params --show-stats --dry-run vmcore dumpfile", Silent, Theirs),
    ("--check-params --cyclic-buffer 1024 vmcore dumpfile", Silent, Theirs),
    ("--check-params --cyclic-buffer=1024 -b 4 --work-dir /tmp --non-mmap vmcore dumpfile", Silent, Theirs),
    ("--check-params --splitblock-size 1024 vmcore dumpfile", Silent, Theirs),
    ("--check-params -f -- vmcore dumpfile", Silent, Theirs),
    ("--check-params -- -vmcore -dumpfile", Silent, Theirs),
    ("--check -d 31 vmcore dumpfile", Silent, Theirs),
    // Options that this build cannot do yet are good by makedumpfile's rules, and said to be missing.
    ("--check-params -F -l --message-level 7 -d 31 vmcore", Silent, Theirs),
    ("--check-params -F -F -c -d 31 vmcore", Silent, Theirs),
    ("--check-params -E vmcore dumpfile", Silent, Theirs),
    ("--check-params -E -d 31 vmcore dumpfile", Silent, Theirs),
    ("--check-params -x vmlinux vmcore dumpfile", Silent, Theirs),
    ("--check-params -i file vmcore dumpfile", Silent, Theirs),
    ("--check-params --config f -x vmlinux vmcore dumpfile", Note("--config: "), Theirs),
    ("--check-params --eppic d -x vmlinux vmcore dumpfile", Note("--eppic: "), Theirs),
    ("--check-params -e --work-dir /tmp vmcore dumpfile", Silent, Theirs),
    ("--check-params -X vmcore dumpfile", Note("-X: "), Theirs),
    ("--check-params --xen_phys_start 0x1000 vmcore dumpfile", Note("--xen_phys_start: "), Theirs),
    ("--check-params --xen-syms f vmcore dumpfile", Note("--xen-syms: "), Theirs),
    ("--check-params --vtop 0xffffffff81000000 vmcore dumpfile", Silent, Theirs),
    ("--check-params -L 10G vmcore dumpfile", Silent, Theirs),
    ("--check-params -L 0x10k vmcore dumpfile", Silent, Theirs),
    ("--check-params --split vmcore a b", Silent, Theirs),
    ("--check-params --split --splitblock-size 4 -L 1G vmcore a b c", Silent, Theirs),
    ("--check-params --diskset=a --diskset=b dumpfile", Note("--diskset: "), Theirs),
    ("--check-params --split --diskset=a b c", Note("--diskset: "), Theirs),
    ("--check-params --dump-dmesg vmcore log", Silent, Theirs),
    ("--check-params --dump-dmesg --partial-dmesg vmcore log", Silent, Theirs),
    ("--check-params --dump-dmesg -F vmcore", Silent, Theirs),
    ("--check-params --mem-usage /proc/kcore", Silent, Theirs),
    ("--check-params -R dumpfile", Silent, Theirs),
    ("--check-params -d 0 -R dumpfile", Silent, Theirs),
    ("--check-params -g out -x vmlinux", Silent, Theirs),
    ("--check-params -g out --xen-syms f", Note("--xen-syms: "), Theirs),
    ("--check-params --reassemble a b c", Silent, Theirs),
    ("--check-params --extension e.so vmcore dumpfile", Silent, Ours),
    // C36: what cannot apply in the capture kernel is a note.
    ("--check-params --num-threads 4 --split vmcore a b", Note("--num-threads does not apply to --split"), Ours),
    ("--check-params --num-threads=4 -E vmcore dumpfile", Silent, Ours),
    ("--check-params -F --num-threads 4 vmcore", Silent, Theirs),
    // X2: a number that is none.
    ("--check-params --num-threads abc vmcore dumpfile", Note("--num-threads `abc` is taken as 1"), Theirs),
    ("--check-params --num-threads= vmcore dumpfile", Note("--num-threads `` is taken as 1"), Theirs),
    ("--check-params --num-threads -4 vmcore dumpfile", Note("--num-threads `-4` is taken as 1"), Theirs),
    ("--check-params --num-threads 8x vmcore dumpfile", Note("--num-threads `8x` is taken as 8"), Theirs),
    ("--check-params --num-threads 0 vmcore dumpfile", Silent, Theirs),
    ("--check-params -d 0x1f vmcore dumpfile", Note("-d `0x1f` is taken as 0"), Theirs),
    ("--check-params -d abc vmcore dumpfile", Note("-d `abc` is taken as 0"), Theirs),
    ("--check-params -d 1,,2, vmcore dumpfile", Silent, Theirs),
    ("--check-params -d , vmcore dumpfile", Silent, Theirs),
    // Values.
    ("-d 32 vmcore dumpfile", Line("Dump_level(32) is invalid."), Theirs),
    ("-d -1 vmcore dumpfile", Line("Dump_level(-1) is invalid."), Theirs),
    ("-d 1,40,x vmcore dumpfile", Line("Dump_level(40) is invalid."), Theirs),
    (
        "-d 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1 a b",
        Line("Dump_level is invalid."),
        Theirs,
    ),
    ("--check-params -d 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1 a b", Silent, Theirs),
    ("--message-level 32 vmcore dumpfile", Line("Message_level(32) is invalid."), Theirs),
    ("--message-level -1 vmcore dumpfile", Line("Message_level(-1) is invalid."), Theirs),
    ("-L 0 vmcore dumpfile", Line("Limit size(0) is invalid."), Theirs),
    ("-L 10Q vmcore dumpfile", Line("Limit size(10Q) is invalid."), Theirs),
    ("--message-level 0 -d 99 vmcore dumpfile", SilentFailure, Theirs),
    ("-h -d 40", Line("Dump_level(40) is invalid."), Theirs),
    // getopt.
    ("", PLAIN, Theirs),
    ("-q vmcore dumpfile", Params("", "invalid option -- 'q'"), Theirs),
    ("--foo vmcore dumpfile", Params("", "unrecognized option '--foo'"), Theirs),
    ("--version", Params("", "unrecognized option '--version'"), Theirs),
    ("--exclude-unused-vm vmcore dumpfile", Params("", "unrecognized option '--exclude-unused-vm'"), Theirs),
    (
        "--spl vmcore dumpfile",
        Params("", "option '--spl' is ambiguous; possibilities: '--split' '--splitblock-size'"),
        Theirs,
    ),
    ("--split=3 vmcore dumpfile", Params("", "option '--split' doesn't allow an argument"), Theirs),
    ("vmcore dumpfile -d", Params("", "option requires an argument -- 'd'"), Theirs),
    ("vmcore dumpfile --num-threads", Params("", "option '--num-threads' requires an argument"), Theirs),
    ("--check-params -q vmcore dumpfile", Params("", "invalid option -- 'q'"), Theirs),
    // Names.
    ("vmcore", PLAIN, Theirs),
    ("vmcore a b", PLAIN, Theirs),
    ("--split vmcore a", PLAIN, Theirs),
    ("--check-params --mem-usage", PLAIN, Theirs),
    ("--check-params -R a b", PLAIN, Theirs),
    ("--check-params --reassemble a", PLAIN, Ours),
    ("--check-params -g out -x vmlinux a", PLAIN, Theirs),
    ("--check-params --diskset=a b c", PLAIN, Theirs),
    // Rules.
    ("-c -E vmcore dumpfile", PLAIN, Theirs),
    ("-i file -x vmlinux vmcore dumpfile", PLAIN, Theirs),
    ("--xen-vmcoreinfo file -x vmlinux vmcore dumpfile", PLAIN, Theirs),
    ("-i file --xen-syms f vmcore dumpfile", PLAIN, Theirs),
    ("--check-params -x vmlinux --xen-syms f vmcore dumpfile", Note("--xen-syms: "), Theirs),
    ("--dry-run --dump-dmesg vmcore log", Params(DRY_DMESG, ""), Theirs),
    ("--check-params -F --split vmcore a b", PLAIN, Theirs),
    ("--config f vmcore dumpfile", PLAIN, Theirs),
    ("--partial-dmesg vmcore dumpfile", PLAIN, Theirs),
    ("-e vmcore dumpfile", Params("-e requires --work-dir", ""), Theirs),
    ("--split -E vmcore a b", Params(SPLIT_ELF, ""), Theirs),
    ("--dry-run -g out -x vmlinux", Params(DRY_G, ""), Theirs),
    ("-g out", PLAIN, Theirs),
    ("-g out -x vmlinux -d 1", PLAIN, Theirs),
    ("-g out -x vmlinux -R", PLAIN, Theirs),
    ("-R dumpfile -l", PLAIN, Theirs),
    ("-R dumpfile -d 1", PLAIN, Theirs),
    ("-R dumpfile -x vmlinux", PLAIN, Theirs),
    ("-R -E dumpfile", PLAIN, Theirs),
    ("--check-params -R -F dumpfile", PLAIN, Theirs),
    ("--reassemble --dry-run a b", Params(DRY_JOIN, ""), Theirs),
    ("--reassemble --split a b", PLAIN, Theirs),
    ("--reassemble -z a b", PLAIN, Theirs),
    // Runs.
    ("-l --message-level 7 -d 31 - out", Opens, Theirs),
    ("-l --message-level 7 -d 31 --num-threads=4 - out", Opens, Theirs),
    ("--num-threads=1 --num-threads=4 -c -l - out", Opens, Theirs),
    ("--dry-run - out", Opens, Theirs),
    ("-f - out", Opens, Theirs),
    ("--dump-dmesg - out", Opens, Theirs),
    ("--dump-dmesg --partial-dmesg -c -d 31 -f - out", Opens, Theirs),
    ("--dump-dmesg - /etc/passwd", Exists, Theirs),
    ("--dry-run - /etc/passwd", Exists, Theirs),
    ("- /etc/passwd", Exists, Theirs),
    ("--message-level 0 - out", SilentFailure, Theirs),
    ("--split - a b", Opens, Theirs),
    ("--split - a /etc/passwd", Exists, Theirs),
    ("-R dumpfile", Refused("the standard input: this is an empty file"), Ours),
    ("--mem-usage /nonexistent/vmcore", Opens, Theirs),
    // Texts.
    ("-v", Text("makedumpfile: version 1.7.9"), Ours),
    ("-v -d 31 whatever", Text("makedumpfile: version 1.7.9"), Ours),
    ("-h", Text("\nLZO support:\n  enabled\nsnappy support:\n  enabled\nzstd support:\n  enabled\n\nUsage:\n"), Ours),
    ("-v --help", Text("\nLZO support:\n"), Ours),
    ("--message-level 0 -h", Silent, Theirs),
    ("--message-level 0 -v", Silent, Theirs),
];

const PARAMS: &str = "Commandline parameter is invalid.\nTry `makedumpfile --help' for more information.\n";
const FAILED: &str = "\nmakedumpfile Failed.\n";

fn arguments(line: &str) -> Vec<&str> {
    line.split_whitespace().map(|word| if word == "-" { "/nonexistent/vmcore" } else { word }).collect()
}

fn run(line: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_coresift");
    Command::new(program)
        .current_dir(&dir)
        .arg("makedumpfile")
        .args(arguments(line))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn every_line_ends_as_the_table_says() {
    for (line, want, _) in LINES {
        let output = run(line);
        let (out, err, code) = (text(&output.stdout), text(&output.stderr), output.status.code());
        let checking = line.contains("--check");
        let trailer = if checking { "" } else { FAILED };
        let shown = format!("{line}\nexit {code:?}\nstdout {out:?}\nstderr {err:?}");
        match want {
            Silent => assert_eq!((code, out, err), (Some(0), "", ""), "{shown}"),
            Note(note) => {
                assert_eq!((code, out), (Some(0), ""), "{shown}");
                let noted =
                    err.lines().any(|l| l.strip_prefix("makedumpfile: note: ").is_some_and(|l| l.starts_with(note)));
                assert!(noted, "{shown}");
            }
            Params(first, getopt) => {
                let first = if first.is_empty() { String::new() } else { format!("{first}\n") };
                // With -F nothing may get onto the standard output.
                let (messages, other) = if line.contains("-F") { (err, out) } else { (out, err) };
                assert_eq!((code, messages), (Some(1), format!("{first}{PARAMS}{trailer}").as_str()), "{shown}");
                let getopt = if getopt.is_empty() { String::new() } else { format!("makedumpfile: {getopt}\n") };
                assert_eq!(other, getopt, "{shown}");
            }
            Line(said) => assert_eq!((code, out, err), (Some(1), format!("{said}\n{trailer}").as_str(), ""), "{shown}"),
            Refused(begin) => {
                assert_eq!((code, out), (Some(1), FAILED), "{shown}");
                assert!(err.lines().any(|l| l.starts_with(&format!("makedumpfile: {begin}"))), "{shown}");
            }
            Opens => {
                let said = "makedumpfile: Can't open the dump memory(/nonexistent/vmcore). No such file or directory\n";
                assert_eq!((code, out, err), (Some(1), FAILED, said), "{shown}");
            }
            Exists => {
                let said = "makedumpfile: Can't open the dump file (/etc/passwd). File exists\n";
                assert_eq!((code, out, err), (Some(1), FAILED, said), "{shown}");
            }
            Text(begin) => assert!(code == Some(0) && out.starts_with(begin) && err.is_empty(), "{shown}"),
            SilentFailure => assert_eq!((code, out, err), (Some(1), "", ""), "{shown}"),
        }
    }
}

#[test]
fn the_table_has_no_line_twice() {
    let lines: HashSet<&str> = LINES.iter().map(|(line, _, _)| *line).collect();
    assert_eq!(lines.len(), LINES.len());
}

#[test]
fn makedumpfile_itself_ends_the_same_way() {
    let Some(reference) = std::env::var_os("CORESIFT_MAKEDUMPFILE") else { return };
    for (line, ..) in LINES.iter().filter(|(_, _, who)| *who == Theirs) {
        let dir = tempfile::tempdir().unwrap();
        let theirs = Command::new(&reference).current_dir(&dir).args(arguments(line)).output().unwrap();
        let ours = run(line);
        assert_eq!(ours.status.code(), theirs.status.code(), "{line}");
        assert_eq!(text(&ours.stdout), text(&theirs.stdout), "{line}");
    }
}
