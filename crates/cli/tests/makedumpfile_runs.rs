//! The makedumpfile command line on a dump, as kdump scripts use it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod common;

use common::{Ended, PROGRAM, Place, image};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;

const SAVED: &str = "\nThe dumpfile is saved to out.\n\nmakedumpfile Completed.\n";
const FAILED: &str = "\nmakedumpfile Failed.\n";

/// What stands on the standard error besides notes: a synthetic kernel lacks things that a real one has.
fn without_notes(err: &str) -> String {
    err.lines().filter(|l| !l.starts_with("makedumpfile: note: ")).map(|l| format!("{l}\n")).collect()
}

fn saved(ended: &Ended) {
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), SAVED), "{}", ended.err);
}

#[test]
fn the_default_line_of_kdump_utils_makes_a_dump_only_root_can_read() {
    let place = Place::new();
    let ended = place.shell("umask 022; $P makedumpfile -l --message-level 7 -d 31 --num-threads=4 vmcore out");
    saved(&ended);
    assert_eq!(place.path("out").metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    let info = place.info("out");
    assert_eq!(info["compression"], "lzo");
    assert_eq!(info["level"], 31);
    assert_eq!(info["complete"], true);
}

#[test]
fn an_existing_dump_is_left_alone_without_f_and_overwritten_with_it() {
    let place = Place::new();
    place.put("out", b"precious");
    for line in ["-l -d 31 vmcore out", "-l -d 31 --dry-run vmcore out"] {
        let ended = place.makedumpfile(line);
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), FAILED));
        assert_eq!(ended.err, "makedumpfile: Can't open the dump file (out). File exists\n");
        assert_eq!(place.get("out"), b"precious");
    }
    saved(&place.makedumpfile("-f -l -d 31 vmcore out"));
    assert_eq!(place.info("out")["complete"], true);
}

#[test]
fn an_input_that_cannot_be_read_does_not_empty_an_existing_dump() {
    let place = Place::new();
    place.put("out", b"precious");
    place.put("text", b"no dump");
    for input in ["missing", "text"] {
        let ended = place.makedumpfile(&format!("-f {input} out"));
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), FAILED), "{input}");
        assert!(ended.err.starts_with("makedumpfile: "), "{}", ended.err);
        assert_eq!(place.get("out"), b"precious");
    }
}

#[test]
fn the_input_is_never_the_output() {
    let place = Place::new();
    let before = place.get("vmcore");
    symlink("vmcore", place.path("link")).unwrap();
    for output in ["vmcore", "./vmcore", "link"] {
        assert_eq!(place.makedumpfile(&format!("-f vmcore {output}")).code, Some(1));
        assert_eq!(place.run(&format!("dump -f vmcore {output}")).code, Some(1));
        assert_eq!(place.get("vmcore"), before);
    }
}

#[test]
fn the_last_codec_and_the_last_number_of_threads_count() {
    let place = Place::new();
    for (line, codec) in [("-c -l", "lzo"), ("-l -c", "zlib"), ("-c -l -p", "snappy"), ("-p -z", "zstd"), ("", "none")]
    {
        saved(&place.makedumpfile(&format!("-f {line} --num-threads=1 --num-threads=4 -d 31 vmcore out")));
        assert_eq!(place.info("out")["compression"], codec, "{line}");
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_byte() {
    let place = Place::new();
    saved(&place.makedumpfile("-z -d 31 vmcore out"));
    let first = place.get("out");
    for threads in ["1", "2", "3", "8", "16", "abc"] {
        saved(&place.makedumpfile(&format!("-f -z -d 31 --num-threads {threads} vmcore out")));
        assert_eq!(place.get("out"), first, "{threads} threads");
    }
    assert_eq!(place.run("dump --compress zstd vmcore native").code, Some(0));
    assert_eq!(place.get("native"), first);
}

#[test]
fn message_level_0_is_silent() {
    let place = Place::new();
    let silent = |code| Ended { code: Some(code), out: String::new(), err: String::new() };
    assert_eq!(place.makedumpfile("--message-level 0 -d 31 vmcore out"), silent(0));
    assert_eq!(place.makedumpfile("--message-level 0 -d 31 vmcore out"), silent(1));
}

#[test]
fn message_level_31_puts_report_and_debugging_on_stdout_progress_on_stderr() {
    let place = Place::new();
    let ended = place.makedumpfile("--message-level 31 -d 31 vmcore out");
    assert_eq!(ended.code, Some(0));
    for line in [
        "makedumpfile: version 1.7.9 ",
        "command line: makedumpfile ",
        "Page classes of 6.12",
        "Original pages  : 0x",
        "Write bytes     : ",
    ] {
        assert!(ended.out.lines().any(|l| l.starts_with(line)), "{line}: {}", ended.out);
        assert!(!ended.err.contains(line), "{line}: {}", ended.err);
    }
    assert!(ended.out.ends_with(SAVED), "{}", ended.out);
    assert!(ended.err.starts_with("\rExcluding unnecessary pages"), "{:?}", ended.err);
    let last = "\rCopying data                                      : [100.0 %]";
    assert!(ended.err.contains(last) && ended.err.ends_with('\n'), "{:?}", ended.err);
}

#[test]
fn the_debug_and_the_statistics_options_add_their_bits() {
    let place = Place::new();
    let ended = place.makedumpfile("--message-level 2 -D vmcore out");
    assert!(ended.out.starts_with("makedumpfile: version ") && ended.err.is_empty(), "{ended:?}");
    let ended = place.makedumpfile("-f --show-stats --message-level 2 vmcore out");
    assert!(ended.out.contains("\nTotal pages     : 0x") && ended.out.ends_with(SAVED), "{ended:?}");
}

#[test]
fn the_report_counts_the_pages_of_each_class() {
    let place = Place::new();
    let ended = place.makedumpfile("--message-level 18 -d 31 vmcore out");
    let truth = image().truth;
    let count = |classes: &[&str]| classes.iter().map(|c| truth.count(c)).sum::<u64>();
    for (name, pages) in [
        ("Original pages  ", 384),
        ("    Pages filled with zero  ", count(&["zero"])),
        ("    Non-private cache pages ", count(&["cache"])),
        ("    Private cache pages     ", count(&["private-cache"])),
        ("    User process data pages ", count(&["user", "hugetlb"])),
        ("    Free pages              ", count(&["free"])),
        ("    Hwpoison pages          ", count(&["hwpoison"])),
        ("    Offline pages           ", count(&["offline"])),
        ("Total pages     ", 0x3100),
        ("Memory Hole     ", 0x3100 - 384),
    ] {
        let line = format!("{name}: 0x{pages:016x}");
        assert!(ended.out.lines().any(|l| l == line), "{line} is not in {}", ended.out);
    }
    let written = ended.out.lines().find_map(|l| l.strip_prefix("Write bytes     : ")).unwrap();
    // Every stored page, and less than the file where that has holes.
    let stored = place.info("out")["pages"]["stored"].as_u64().unwrap();
    assert!(written.parse::<u64>().unwrap() > (stored - count(&["zero"])) * 4096);
}

#[test]
fn a_dry_run_writes_nothing_and_ends_the_same_way() {
    let place = Place::new();
    let ended = place.makedumpfile("--dry-run --show-stats -d 31 vmcore out");
    assert!(ended.out.ends_with(SAVED) && ended.out.contains("Write bytes     : "), "{ended:?}");
    assert!(!place.has("out"));
}

#[test]
fn x2_a_number_of_threads_that_is_none_is_told_and_one_thread_runs() {
    let place = Place::new();
    for text in ["abc", "-4", ""] {
        let mut command = place.command(PROGRAM);
        let ended: Ended =
            command.args(["makedumpfile", "-f", "--num-threads", text, "vmcore", "out"]).output().unwrap().into();
        saved(&ended);
        assert!(ended.err.contains(&format!("note: --num-threads `{text}` is taken as 1\n")), "{}", ended.err);
    }
}

#[test]
fn options_without_effect_are_accepted_and_told() {
    let place = Place::new();
    let ended =
        place.makedumpfile("-b 8 --cyclic-buffer 1024 --work-dir /tmp --splitblock-size 4 --non-mmap -d 31 vmcore out");
    saved(&ended);
    for name in ["-b", "--cyclic-buffer", "--work-dir", "--splitblock-size"] {
        assert!(ended.err.contains(&format!("makedumpfile: note: {name} has no effect: ")), "{name}: {}", ended.err);
    }
    assert!(!ended.err.contains("--non-mmap"));
}

#[test]
fn what_is_not_built_yet_is_refused_before_the_output_is_touched() {
    let place = Place::new();
    let ended = place.makedumpfile("--eppic macro --config conf -x vmlinux vmcore out");
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), FAILED));
    assert_eq!(ended.err.lines().count(), 2, "{}", ended.err);
    assert!(!place.has("out"));
}

#[test]
fn an_option_the_dump_is_good_without_is_told_and_the_dump_made() {
    let place = Place::new();
    let ended = place.makedumpfile("--extension e.so -d 31 vmcore out");
    saved(&ended);
    assert!(ended.err.contains("note: --extension has no effect: "), "{}", ended.err);
    assert!(place.has("out"));
}

#[test]
fn debug_information_that_cannot_be_read_is_told_and_the_dump_made_without() {
    for option in ["-x vmlinux", "-i file"] {
        let place = Place::new();
        let ended = place.makedumpfile(&format!("{option} -d 31 vmcore out"));
        saved(&ended);
        assert!(ended.err.contains("note: going on without it: "), "{option}: {}", ended.err);
        assert!(place.has("out"));
    }
}

#[test]
fn with_f_for_flattened_stdout_carries_no_message() {
    let place = Place::new();
    for line in ["-q -F vmcore", "-F vmcore out", "-d 40 -F vmcore", "-F missing"] {
        let ended = place.makedumpfile(line);
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{line}");
        assert!(ended.err.ends_with(FAILED), "{line}: {}", ended.err);
    }
    assert_eq!(place.makedumpfile("-d 31 -c vmcore plain").code, Some(0));
    for line in ["-F -c -d 31 vmcore", "-c -F -F vmcore -d 31", "vmcore -cF -d 31 -D --message-level 31"] {
        let ended = place.shell(&format!("$P makedumpfile {line} > flat"));
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{line}");
        assert!(ended.err.contains("\nThe dumpfile is saved to STDOUT.\n\nmakedumpfile Completed.\n"), "{}", ended.err);
        assert!(place.get("flat").starts_with(b"makedumpfile\0\0\0\0"));
        let info = place.info("flat");
        assert_eq!((&info["complete"], &info["pages"]), (&true.into(), &place.info("plain")["pages"]));
    }
}

#[test]
fn r_makes_the_file_of_a_stream_and_stops_where_it_ends() {
    let place = Place::new();
    let ended = place.shell("$P makedumpfile -c -d 31 vmcore plain && $P makedumpfile -F -c -d 31 vmcore > flat");
    assert_eq!(ended.code, Some(0));
    let ended = place.shell("$P makedumpfile -R out < flat");
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    assert_eq!(ended.out, "\nThe dumpfile is saved to out.\n\nmakedumpfile Completed.\n");
    assert!(place.get("out") == place.get("plain"));
    // A dump device: what stands behind the stream is old.
    let ended = place.shell("cat flat vmcore > device; $P makedumpfile -f -R out < device && cmp out plain");
    assert_eq!((ended.code, ended.err.contains("was ignored")), (Some(0), true), "{}", ended.err);
    let ended = place.shell("$P makedumpfile -R out < flat");
    assert!(
        ended.code == Some(1) && ended.err.contains("Can't open the dump file (out). File exists"),
        "{}",
        ended.err
    );
    let ended = place.shell("head -c 100000 flat | $P makedumpfile -R short");
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.out, format!("This is an incomplete dumpfile, but might analyzable.\n{FAILED}"));
    assert_eq!(place.info("short")["marked_incomplete"], true);
    for line in ["makedumpfile -R none < /dev/null", "makedumpfile -R none < vmcore"] {
        assert_eq!(place.shell(&format!("$P {line}")).code, Some(1), "{line}");
        assert!(!place.has("none"), "{line}");
    }
}

#[test]
fn with_f_a_dry_run_writes_nothing_and_a_closed_or_full_output_is_an_error() {
    let place = Place::new();
    let ended = place.shell("$P makedumpfile -F --dry-run -d 31 vmcore | wc -c");
    assert_eq!(ended.out.trim(), "0");
    assert!(ended.err.contains("makedumpfile Completed."));
    let ended = place.shell("{ $P makedumpfile -F -d 0 vmcore; echo $? > code; } | head -c 5000 | wc -c");
    assert_eq!((ended.out.trim(), place.get("code").as_slice()), ("5000", &b"1\n"[..]));
    assert!(ended.err.contains("Can't write the dump file(STDOUT). Broken pipe"), "{}", ended.err);
    let ended = place.shell("ulimit -f 400; $P makedumpfile -F -d 0,31 vmcore > flat");
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("Can't write the dump file(STDOUT). File too large"), "{}", ended.err);
    assert!(!ended.err.contains("Retry"));
}

#[test]
fn a_link_called_makedumpfile_is_makedumpfile() {
    let place = Place::new();
    symlink(PROGRAM, place.path("makedumpfile")).unwrap();
    let link = place.path("makedumpfile");
    let ended: Ended = place.command(&link).args(["-l", "-d31", "vmcore", "out"]).output().unwrap().into();
    saved(&ended);
    let ended: Ended = place.command(&link).arg("--check-params").output().unwrap().into();
    assert_eq!((ended.code, ended.err.as_str()), (Some(1), ""));
    assert!(ended.out.starts_with("Commandline parameter is invalid.\n"));
}

#[test]
fn a_closed_stdout_does_not_stop_a_dump() {
    let place = Place::new();
    let ended = place.shell("$P makedumpfile -d 31 --message-level 31 vmcore out >&- 2>&- <&-; echo $?");
    assert_eq!(ended.out, "0\n");
    assert_eq!(place.info("out")["complete"], true);
    let mut command = place.command(PROGRAM);
    command.args(["makedumpfile", "-f", "--message-level", "31", "vmcore", "out"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_dump_that_does_not_fit_is_incomplete_and_says_so() {
    let place = Place::new();
    // Blocks of 512 bytes; makedumpfile says the same where SIGXFSZ does not kill it.
    let ended = place.shell("ulimit -f 400; $P makedumpfile --message-level 6 -d 0 vmcore out");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let full = "\nCan't write the dump file(out). File too large\n";
    assert_eq!(ended.out, format!("{full}This is an incomplete dumpfile, but might analyzable.\n{FAILED}"));
    assert_eq!(without_notes(&ended.err), "");
    assert_eq!(place.info("out")["complete"], false);
}

#[test]
fn the_next_level_of_the_list_is_tried_when_the_first_does_not_fit() {
    let place = Place::new();
    let size = |level: u32| {
        assert_eq!(place.makedumpfile(&format!("-f -d {level} vmcore out")).code, Some(0));
        place.get("out").len()
    };
    let blocks = (size(0) + size(31)) / 2 / 512;
    std::fs::remove_file(place.path("out")).unwrap();
    let ended = place.shell(&format!("ulimit -f {blocks}; $P makedumpfile --message-level 6 -d 0,31 vmcore out"));
    let full = "\nCan't write the dump file(out). File too large\n";
    assert_eq!(ended.out, format!("{full}Retry to create a dumpfile by dump_level(31).\n{SAVED}"), "{ended:?}");
    assert_eq!(ended.code, Some(0));
    let info = place.info("out");
    assert_eq!((info["level"].as_u64(), info["complete"].as_bool()), (Some(31), Some(true)));
}

#[test]
fn filtering_again_records_both_levels_and_tells() {
    let place = Place::new();
    assert_eq!(place.run("dump -d 16 vmcore old").code, Some(0));
    let ended = place.makedumpfile("--message-level 6 -d 1 old out");
    let raised = "dump_level is changed to 17, because old was created by dump_level(16).\n";
    assert_eq!(ended.out, format!("{raised}{SAVED}"), "{ended:?}");
    assert_eq!(place.info("out")["level"], 17);
}

#[test]
fn levels_above_1_need_the_kernel_s_description() {
    let place = Place::empty();
    let image = image();
    let mut core = image.elf();
    core.notes.clear();
    // Nor is it in the memory that is left.
    core.segments.iter_mut().for_each(|s| s.filesz = 0);
    place.put("vmcore", &core.bytes());
    let ended = place.makedumpfile("-d 31 vmcore out");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.out, format!("vmcore doesn't contain vmcoreinfo.\n{FAILED}"));
    assert!(ended.err.contains("-d 1"), "{}", ended.err);
    assert!(!place.has("out"));
}

#[test]
fn an_elf_core_is_the_same_made_of_a_kdump_file_a_stream_and_the_parts_of_a_set() {
    let place = Place::new();
    saved(&place.makedumpfile("-l -d 31 vmcore out"));
    assert_eq!(place.shell("$P makedumpfile -F -l -d 31 vmcore > flat").code, Some(0));
    assert_eq!(place.makedumpfile("--split -l -d 31 vmcore part1 part2 part3").code, Some(0));
    assert_eq!(place.makedumpfile("-E -d 31 out elf").code, Some(0));
    assert_eq!(place.makedumpfile("-E -d 31 flat of-flat").code, Some(0));
    let ended = place.run("dump --format elf -d 31 --part part1 --part part2 part3 of-parts");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(place.get("elf").starts_with(b"\x7fELF"));
    assert!(place.get("elf") == place.get("of-flat") && place.get("elf") == place.get("of-parts"));
    assert_eq!(place.info("of-parts")["kernel"], place.info("out")["kernel"]);
}
