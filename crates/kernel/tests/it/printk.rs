//! The kernel log of synthetic machines, in all its forms, whole and damaged.

use coresift_format::Input;
use coresift_kernel::KernelError;
use coresift_kernel::printk::{KernelLog, LogProblem, Message, Record, Since, Wrong};
use coresift_synth::{Image, KernelLayout, LAYOUTS, Log, LogRecord, Machine, PAGE, flat::Flatten};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A release for each form of the log: characters, records, a ring; of the last two, those that changed what is in it.
const FORMS: [&str; 7] = ["2.6.32", "3.10", "5.4", "5.10", "6.1", "6.12", "7.1"];

fn machine(release: &str, log: impl Into<Log>) -> Image {
    Machine::new(KernelLayout::get(release)).ram(0x1000..0x1100).image_pages(100).log(log).build()
}

/// Messages of many lengths, `n` of them.
fn messages(n: usize) -> Vec<LogRecord> {
    (0..n).map(|i| LogRecord::new(i as u64 * 1_000_001_000, format!("{i}: {}", "x".repeat(i * 13 % 71)))).collect()
}

/// The line of a record, as the form of the log has it.
fn line(release: &str, callers: bool, record: &LogRecord) -> String {
    let mut time = format!("[{:5}.{:06}] ", record.ns / 1_000_000_000, record.ns / 1000 % 1_000_000);
    match release {
        "2.6.32" => time.insert_str(0, &format!("<{}>", record.level)),
        "3.10" | "4.4" | "4.18" | "5.4" if !callers => {}
        _ => time += &format!("[{:>8}] ", format!("T{}", record.caller)),
    }
    format!("{time}{}\n", String::from_utf8_lossy(&record.text))
}

fn lines(release: &str, records: &[LogRecord]) -> String {
    records.iter().map(|record| line(release, false, record)).collect()
}

struct Read {
    text: String,
    records: Vec<Record>,
    problems: Vec<LogProblem>,
}

impl Read {
    fn wrongs(&self) -> Vec<Wrong> {
        self.problems.iter().map(|p| p.wrong).collect()
    }
}

fn read_file(file: Vec<u8>, since: Since) -> Result<Read, KernelError> {
    let input = Input::from_bytes(Arc::new(file)).unwrap();
    let log = KernelLog::open(&input, None)?;
    let (mut text, mut records) = (Vec::new(), Vec::new());
    let problems = log.read(since, &mut |record| {
        record.line(&mut text);
        records.push(record.clone());
        ControlFlow::Continue(())
    });
    Ok(Read { text: String::from_utf8_lossy(&text).into_owned(), records, problems })
}

fn read(image: &Image, since: Since) -> Read {
    read_file(image.elf().bytes(), since).unwrap()
}

fn image_phys(image: &Image, symbol: &str) -> u64 {
    image.symbols[symbol] - image.image_virt + image.image.start * PAGE
}

/// Where the ring's descriptors, infos and text are.
fn ring_parts(image: &Image) -> [u64; 3] {
    let prb = image_phys(image, "printk_rb_static");
    let word = |at| u64::from_le_bytes(image.read(at, 8).try_into().unwrap());
    let data_ring: u64 = if image.layout.since(5, 11, 0) { 48 } else { 40 };
    [8, 16, data_ring + 8].map(|at| word(prb + at) - image.image_virt + image.image.start * PAGE)
}

#[test]
fn the_log_of_every_layout_is_read_from_every_container() {
    for layout in LAYOUTS {
        let records = messages(9);
        let image = machine(layout.name, records.clone());
        let expected = lines(layout.name, &records);
        let kdump = image.kdump().bytes();
        let flat = Flatten::default().wrap(&kdump).bytes;
        for (what, file) in [
            ("elf", image.elf().bytes()),
            ("image", image.elf().with_image().bytes()),
            ("kdump", kdump),
            ("flat", flat),
        ] {
            let read = read_file(file, Since::Boot).unwrap();
            assert_eq!(read.text, expected, "{} {what}", layout.name);
            assert_eq!(read.problems, [], "{} {what}", layout.name);
        }
    }
}

#[test]
fn a_log_that_has_gone_round_is_read_from_its_oldest_record() {
    for release in FORMS {
        for exact_end in [false, true] {
            for start in (0..4096).step_by(if release == "2.6.32" { 512 } else { 136 }) {
                let records = messages(90);
                let log = Log { start, size_bits: Some(12), exact_end, ..records.clone().into() };
                let read = read(&machine(release, log), Since::Boot);
                assert_eq!(read.problems, [], "{release} {start}");
                let all = lines(release, &records);
                assert!(all.ends_with(&read.text), "{release} {start}: {}", read.text);
                assert!(read.text.len() > 2000 && read.text.len() < all.len(), "{release} {start}");
                if release != "2.6.32" {
                    assert!(read.text.starts_with('['), "{release} {start}");
                }
            }
        }
    }
}

#[test]
fn what_was_logged_since_the_last_clear_is_read_alone() {
    // Kernels from 3.5 to 4.7 do not say.
    for release in FORMS.into_iter().filter(|release| *release != "3.10") {
        for (n, size_bits) in [(12, 13), (90, 12)] {
            for cleared in 1..=n {
                let records = messages(n);
                let log = Log { cleared, size_bits: Some(size_bits), ..records.clone().into() };
                let image = machine(release, log);
                let (all, since) = (read(&image, Since::Boot), read(&image, Since::Clear));
                let expected = lines(release, &records[cleared..]);
                assert_eq!(since.problems, [], "{release} {n} {cleared}");
                // What was overwritten since then is not there, nor is what came before. An index may be met again by chance.
                if expected.len() < all.text.len() {
                    assert_eq!(since.text, expected, "{release} {n} {cleared}");
                } else if release == "5.4" {
                    assert!(all.text.ends_with(&since.text), "{release} {n} {cleared}");
                } else {
                    assert_eq!(since.text, all.text, "{release} {n} {cleared}");
                }
            }
        }
    }
}

#[test]
fn a_log_that_does_not_say_when_it_was_cleared_is_read_whole() {
    for (release, key) in
        [("2.6.32", "logged_chars"), ("3.10", "clear_idx"), ("5.4", "clear_idx"), ("6.12", "clear_seq")]
    {
        let mut image = machine(release, Log { cleared: 4, ..messages(9).into() });
        image.vmcoreinfo = image.vmcoreinfo.replace(&format!("SYMBOL({key})"), "X");
        let read = read(&image, Since::Clear);
        assert_eq!(read.text, lines(release, &messages(9)));
        assert_eq!(read.wrongs(), [Wrong::Clear], "{release}");
        assert!(!Wrong::Clear.is_loss() && read.problems[0].to_string().contains(key), "{}", read.problems[0]);
    }
}

#[test]
fn c28_a_record_of_64_kib_is_printed_whole() {
    for (release, len) in [("2.6.32", 66_000), ("3.10", 65_500), ("5.4", 65_500), ("5.10", 65_535), ("7.1", 65_535)] {
        let mut records = messages(3);
        records.insert(1, LogRecord::new(500, vec![b'm'; len]));
        records.sort_by_key(|r| r.ns);
        let image = machine(release, Log { size_bits: Some(17), ..records.clone().into() });
        let read = read(&image, Since::Boot);
        assert_eq!(read.text, lines(release, &records), "{release}");
        assert_eq!(read.problems, []);
    }
}

#[test]
fn c28_a_missing_key_is_named() {
    for release in FORMS {
        let whole = machine(release, messages(5));
        let text = whole.vmcoreinfo.clone();
        let about_log = |key: &str| ["log", "prb", "printk", "atomic_long"].iter().any(|word| key.contains(word));
        let mut needed = 0;
        for key in text.lines().filter_map(|l| l.split_once('=')).map(|(key, _)| key).filter(|key| about_log(key)) {
            let mut image = whole.clone();
            image.vmcoreinfo =
                text.lines().filter(|l| !l.starts_with(&format!("{key}="))).fold(String::new(), |t, l| t + l + "\n");
            match read_file(image.elf().bytes(), Since::Boot) {
                Ok(read) => {
                    let expected = lines(release, &messages(5));
                    let plain = expected.replace("[      T1] ", "");
                    assert!([expected, plain].contains(&read.text), "{release} {key}: {}", read.text);
                }
                Err(KernelError::MissingKey { key: named, .. }) => {
                    needed += 1;
                    assert!(named.contains(key), "{release}: {named} instead of {key}");
                }
                Err(error) => panic!("{release} {key}: {error}"),
            }
        }
        assert!(needed >= 3, "{release} {needed}");
    }
}

#[test]
fn c28_the_caller_is_printed_where_the_kernel_keeps_it() {
    let mut records = messages(2);
    records[0].caller = 1 << 31 | 17;
    records[1].caller = 12_345;
    for (release, log) in [
        ("5.10", records.clone().into()),
        ("7.1", records.clone().into()),
        ("5.4", Log { callers: true, ..records.clone().into() }),
    ] {
        let read = read(&machine(release, log), Since::Boot);
        let expected = format!("[    0.000000] [     C17] 0: \n[    1.000001] [  T12345] 1: {}\n", "x".repeat(13));
        assert_eq!(read.text, expected, "{release}");
    }
}

#[test]
fn fields_of_a_record_are_read() {
    let mut record = LogRecord::new(1_234_567_890, "x");
    (record.facility, record.level, record.device) = (3, 4, Some(("pci", "+pci:0000:00:01.0")));
    for release in FORMS {
        let read = read(&machine(release, vec![record.clone()]), Since::Boot);
        let [found] = read.records.as_slice() else { panic!("{release}") };
        assert_eq!((found.facility, found.level), (Some(3), Some(4)), "{release}");
        assert_eq!(found.message, Message::Text(b"x".to_vec()), "{release}");
        let (time, seq, dict) = match release {
            "2.6.32" => (1_234_567_000, None, vec![]),
            "3.10" | "5.4" => (1_234_567_890, None, vec![("SUBSYSTEM", "pci"), ("DEVICE", "+pci:0000:00:01.0")]),
            _ => (1_234_567_890, Some(0), vec![("SUBSYSTEM", "pci"), ("DEVICE", "+pci:0000:00:01.0")]),
        };
        assert_eq!((found.time, found.seq), (Some(time), seq), "{release}");
        let found: Vec<(&str, &str)> = found.dict.iter().map(|(a, b)| (&**a, &**b)).collect();
        assert_eq!(found, dict, "{release}");
    }
}

#[test]
fn later_lines_are_indented_and_odd_bytes_are_escaped() {
    let image = machine("6.12", vec![LogRecord::new(12_345_678_901_234, b"a\nb\t\x00\x1b\x7f\xc3\xa9".to_vec())]);
    let blanks = " ".repeat(26);
    assert_eq!(
        read(&image, Since::Boot).text,
        format!("[12345.678901] [      T1] a\n{blanks} b\t\\x00\\x1b\\x7f\\xc3\\xa9\n")
            .replace(&format!("\n{blanks} b"), &format!("\n{}b", " ".repeat("[12345.678901] [      T1] ".len())))
    );
}

/// Everything but the kernel image lost, page tables and memory map too: they are not in the image of a real kernel's dump either, once
/// it was cut short.
#[test]
fn neither_page_tables_nor_memory_map_are_needed() {
    for release in FORMS {
        let image = machine(release, messages(9));
        let mut kdump = image.kdump();
        kdump.stored.retain(|pfn| image.image.contains(pfn));
        let root = image_phys(&image, "init_top_pgt") / PAGE;
        kdump.stored.remove(&root);
        let read = read_file(kdump.bytes(), Since::Boot).unwrap();
        assert_eq!(read.text, lines(release, &messages(9)), "{release}");
        assert_eq!(read.problems, [], "{release}");
    }
}

#[test]
fn a_log_lacking_any_one_page_is_read_but_for_what_was_there() {
    for release in FORMS {
        let records = messages(300);
        let image = machine(release, Log { size_bits: Some(15), ..records.clone().into() });
        let whole: BTreeSet<String> = read(&image, Since::Boot).text.lines().map(str::to_owned).collect();
        let (mut least, mut hurt) = (usize::MAX, 0);
        for pfn in image.image.clone() {
            let mut kdump = image.kdump();
            kdump.codec = 0;
            kdump.lost.insert(pfn);
            let Ok(read) = read_file(kdump.bytes(), Since::Boot) else { continue };
            let lines: BTreeSet<String> = read.text.lines().map(str::to_owned).collect();
            if lines == whole {
                // A page of the text's unused part is said to be missing all the same where it was to be read.
                continue;
            }
            hurt += 1;
            assert_eq!(read.wrongs(), [Wrong::Unreadable], "{release} {pfn:#x}");
            // A line that lost its end, its time or its beginning is no line of the whole log.
            least = least.min(lines.intersection(&whole).count());
        }
        assert!(hurt >= 4, "{release} {hurt}");
        assert!(least * 2 > whole.len(), "{release}: {least} of {}", whole.len());
    }
}

#[test]
fn a_torn_ring_is_read_and_each_thing_wrong_told_once() {
    let whole = machine("6.12", messages(20));
    let [descs, _, data] = ring_parts(&whole);
    let prb = image_phys(&whole, "printk_rb_static");
    let first_id: u64 = 7 << 5;
    let state = |n: u64, value: u64| (descs + 24 * n, vec![value]);
    let lpos = |n: u64, begin: u64, next: u64| (descs + 24 * n + 8, vec![begin, next]);
    let expected = messages(20);
    let without = |n: &[usize]| -> String {
        expected.iter().enumerate().filter(|(i, _)| !n.contains(i)).map(|(_, r)| line("6.12", false, r)).collect()
    };
    let cases = [
        (
            "two are being written",
            vec![state(19, first_id + 19), state(18, 3 << 62 | (first_id + 18 - 32))],
            vec![18, 19],
            vec![],
        ),
        ("one is committed only", vec![state(19, 1 << 62 | (first_id + 19))], vec![], vec![]),
        ("two are of others", vec![state(3, 2 << 62 | 5), state(4, u64::MAX)], vec![3, 4], vec![Wrong::Descriptor]),
        ("texts beyond the ring", vec![lpos(3, 5, 9), lpos(4, 4097, 4099)], vec![3, 4], vec![Wrong::Outside]),
        ("no text, and no room for one", vec![lpos(3, 3, 3), lpos(4, 1, 1)], vec![3, 4], vec![]),
        ("a text marked as another's", vec![(data, vec![99])], vec![], vec![Wrong::Foreign]),
        ("a tail far away", vec![(prb + 32, vec![5])], vec![], vec![Wrong::Range]),
    ];
    for (what, tear, gone, wrongs) in cases {
        let mut image = whole.clone();
        for (at, words) in tear {
            image.write(at, &words.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<_>>());
        }
        let read = read(&image, Since::Boot);
        assert_eq!((read.text.as_str(), read.wrongs()), (without(&gone).as_str(), wrongs), "{what}");
    }
}

#[test]
fn a_descriptor_ring_that_leads_nowhere_is_told() {
    let whole = machine("6.12", messages(5));
    let prb = image_phys(&whole, "printk_rb_static");
    for (at, value) in [(0, 40u64), (0, 31), (8, 0), (16, 17), (48, 70), (48, 1), (56, 0x7fff_0000_0000)] {
        let mut image = whole.clone();
        image.write(prb + at, &value.to_le_bytes());
        let error = read_file(image.elf().bytes(), Since::Boot).err().unwrap();
        assert!(matches!(error, KernelError::Implausible { .. }), "{at} {value:#x}: {error}");
    }
}

#[test]
fn records_that_lead_astray_are_left_out_and_told() {
    for release in ["3.10", "5.4"] {
        let records = messages(60);
        let whole = machine(release, records.clone());
        let buffer = image_phys(&whole, "__log_buf");
        // The length of the record at this index.
        let mut index = 0;
        for _ in 0..20 {
            index += u64::from(u16::from_le_bytes(whole.read(buffer + index + 8, 2).try_into().unwrap()));
        }
        for (len, wrong, kept) in [(0u16, Wrong::Cycle, 20), (8, Wrong::Outside, 58), (0xffff, Wrong::Outside, 58)] {
            let mut image = whole.clone();
            image.write(buffer + index + 8, &len.to_le_bytes());
            let read = read(&image, Since::Boot);
            assert_eq!(read.wrongs(), [wrong], "{release} {len:#x}");
            assert!(read.records.len() >= kept, "{release} {len:#x}: {}", read.records.len());
            assert!(read.problems[0].first.ends_with(&format!("idx = {index:#x}")), "{}", read.problems[0]);
            assert!(
                read.text.ends_with(&line(release, false, records.last().unwrap())) || len == 0,
                "{release} {len:#x}"
            );
        }
        for (symbol, value) in [("log_first_idx", 1u32 << 20), ("log_next_idx", u32::MAX)] {
            let mut image = whole.clone();
            image.write(image_phys(&image, symbol), &value.to_le_bytes());
            let read = read(&image, Since::Boot);
            assert!(read.wrongs().contains(&Wrong::Outside), "{release} {symbol}");
            assert!(
                read.records.len() >= 58 || symbol == "log_first_idx",
                "{release} {symbol}: {}",
                read.records.len()
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn hostile_bytes_end_in_bounded_text(
        form in 0..FORMS.len(),
        writes in prop::collection::vec((any::<u64>(), prop_oneof![any::<u64>(), 0..256u64, Just(u64::MAX)], 1usize..9), 1..24),
        since in prop_oneof![Just(Since::Boot), Just(Since::Clear)],
    ) {
        let release = FORMS[form];
        let mut image = machine(release, Log { size_bits: Some(13), ..messages(200).into() });
        let symbols = ["printk_rb_static", "prb", "clear_seq", "__log_buf", "log_buf", "log_buf_len", "log_first_idx",
            "log_next_idx", "log_end", "logged_chars", "clear_idx"];
        let places: Vec<u64> = symbols.iter().filter(|s| image.symbols.contains_key(**s)).map(|s| image_phys(&image, s)).collect();
        for (at, value, len) in writes {
            // Half of what is hit are the numbers of the log's head.
            let place = places[at as usize % places.len()];
            let offset = if at & 1 << 20 == 0 { at >> 32 & 0x3f8 } else { (at >> 32) % 16_384 };
            image.write((place + offset).min(image.image.end * PAGE - 8), &value.to_le_bytes()[..len]);
        }
        if let Ok(read) = read_file(image.elf().bytes(), since) {
            // The buffer may claim to be as large as the memory of 356 pages rounded up; a byte is four at most, a line has 27 more.
            let most = 4 * (1 << 21) + 27 * read.records.len();
            prop_assert!(read.text.len() <= most, "{} of {} records", read.text.len(), read.records.len());
            prop_assert!(read.problems.len() <= 8);
        }
    }
}
