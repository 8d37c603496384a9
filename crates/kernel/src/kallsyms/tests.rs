use super::names::NamesEnd;
use super::*;
use proptest::prelude::*;

const BASE: u64 = 0xffff_ffff_8100_0000;
/// Where the tables stand: in memory of their own, which ends where they end.
const TABLES: u64 = 0xffff_ffff_8200_0000;

/// Memory that is one piece of whole pages.
struct Piece(Vec<u8>);

impl Piece {
    fn new(bytes: &[u8]) -> Self {
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        Self(bytes)
    }
}

impl VirtualMemory for Piece {
    fn read_virt(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<()> {
        let at = addr.0.checked_sub(TABLES).and_then(|at| usize::try_from(at).ok());
        let from = at.and_then(|at| self.0.get(at..)?.get(..buf.len()));
        buf.copy_from_slice(from.ok_or(KernelError::NotMapped { addr, level: "test", entry_at: 0, entry: 0 })?);
        Ok(())
    }
}

/// A kernel's tables as its build writes them: characters are tokens, and so are some longer texts.
struct Image {
    bytes: Vec<u8>,
    info: String,
}

/// Among them a type letter alone, one with the begin of a name, one with a whole name.
const TEXTS: [&str; 6] = ["T", "kmem_cache_", "_st", "__", "Tsym", "T_text"];

impl Image {
    fn new(symbols: &[(String, u64)], coding: Coding, two_bytes: bool) -> Self {
        let mut image = Self { bytes: vec![0; 8], info: format!("SYMBOL(_stext)={BASE:x}\n") };
        let (mut texts, mut index) = (Vec::new(), Vec::new());
        for token in 0..=255u8 {
            index.extend((texts.len() as u16).to_le_bytes());
            match TEXTS.get(usize::from(token)) {
                Some(text) => texts.extend(text.bytes()),
                None if token.is_ascii_graphic() => texts.push(token),
                None => {}
            }
            texts.push(0);
        }
        image.table("kallsyms_num_syms", &(symbols.len() as u32).to_le_bytes());
        if coding != Coding::PlaceRelative {
            image.table("kallsyms_relative_base", &BASE.to_le_bytes());
        }
        image.table("kallsyms_token_table", &texts);
        image.table("kallsyms_token_index", &index);
        let place = TABLES + image.bytes.len() as u64;
        let offsets: Vec<u8> = (0u64..)
            .zip(symbols)
            .flat_map(|(i, (_, address))| {
                (match coding {
                    Coding::AbsolutePercpu if *address < BASE => *address as u32,
                    Coding::AbsolutePercpu => (BASE - 1).wrapping_sub(*address) as u32,
                    Coding::Relative => (address - BASE) as u32,
                    Coding::PlaceRelative => address.wrapping_sub(place + 4 * i) as u32,
                })
                .to_le_bytes()
            })
            .collect();
        image.table("kallsyms_offsets", &offsets);
        let (mut names, mut markers) = (Vec::new(), Vec::new());
        for (i, (name, _)) in symbols.iter().enumerate() {
            if i % 256 == 0 {
                markers.extend((names.len() as u32).to_le_bytes());
            }
            let tokens = tokens(name);
            if two_bytes && tokens.len() > 127 {
                names.push(tokens.len() as u8 & 0x7f | 0x80);
                names.push((tokens.len() >> 7) as u8);
            } else {
                names.push(u8::try_from(tokens.len()).unwrap());
            }
            names.extend(tokens);
        }
        image.table("kallsyms_names", &names);
        image.table("kallsyms_markers", &markers);
        image
    }

    fn table(&mut self, name: &str, bytes: &[u8]) {
        self.info += &format!("SYMBOL({name})={:x}\n", TABLES + self.bytes.len() as u64);
        self.bytes.extend(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    fn open(&self) -> (Result<Kallsyms>, Piece) {
        (open(&self.info, &self.bytes), Piece::new(&self.bytes))
    }
}

fn open(info: &str, bytes: &[u8]) -> Result<Kallsyms> {
    let (tables, found) = Kallsyms::open(&VmcoreInfo::parse(info.as_bytes()), &mut Piece::new(bytes), &["_text"])?;
    assert!(found.is_empty() || found["_text"].address == VirtAddr(BASE) && found.len() == 1);
    Ok(tables)
}

fn tokens(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = name;
    while let Some(first) = rest.bytes().next() {
        let longest = (0u8..).zip(TEXTS).filter(|(_, text)| rest.starts_with(text)).max_by_key(|(_, text)| text.len());
        let (token, length) = longest.map_or((first, 1), |(token, text)| (token, text.len()));
        out.push(token);
        rest = &rest[length..];
    }
    out
}

/// 1000 symbols in the order of addresses, with `_stext` at its place; `name` makes the others.
fn symbols(percpu: bool, name: impl Fn(u64) -> String) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    if percpu {
        all.extend((0..40).map(|i| (format!("Apercpu_{i}"), i * 16)));
    }
    all.push(("T_stext".to_owned(), BASE));
    all.push(("T_text".to_owned(), BASE));
    all.extend((1..960).map(|i| (name(i), BASE + i * 64)));
    all
}

fn name(i: u64) -> String {
    match i % 97 {
        0 => format!("t{}{i}", "long_".repeat(30)),
        1 => "tinit_once".to_owned(),
        _ => format!("Tkmem_cache_{i}"),
    }
}

#[test]
fn each_coding_is_known_by_the_address_it_gives_stext() {
    for coding in Coding::ALL {
        let symbols = symbols(coding == Coding::AbsolutePercpu, name);
        let (tables, mut memory) = Image::new(&symbols, coding, true).open();
        let tables = tables.unwrap();
        assert_eq!((tables.coding(), tables.len() as usize), (coding, symbols.len()));
        let wanted: Vec<&str> = symbols.iter().map(|s| &s.0[1..]).collect();
        let found = tables.lookup(&mut memory, &wanted).unwrap();
        for (text, address) in &symbols {
            if !text.ends_with("init_once") {
                let want = Symbol { address: VirtAddr(*address), kind: text.as_bytes()[0], copies: 1 };
                assert_eq!(found[&text[1..]], want, "{coding:?} {text}");
            }
        }
        assert_eq!(found["init_once"], Symbol { address: VirtAddr(BASE + 64), kind: b't', copies: 10 });
        assert!(tables.lookup(&mut memory, &["no_such", "", "Tkmem_cache_5"]).unwrap().is_empty());
    }
}

#[test]
fn a_global_symbol_is_taken_before_local_ones_of_the_same_name() {
    let symbols = symbols(false, |i| format!("{}modules", if i == 7 { 'D' } else { 'd' }));
    let (tables, mut memory) = Image::new(&symbols, Coding::Relative, true).open();
    let found = tables.unwrap().lookup(&mut memory, &["modules"]).unwrap();
    assert_eq!(found["modules"], Symbol { address: VirtAddr(BASE + 7 * 64), kind: b'D', copies: 959 });
}

#[test]
fn an_address_belongs_to_the_symbol_before_it() {
    for coding in Coding::ALL {
        let symbols = symbols(coding == Coding::AbsolutePercpu, |i| format!("Tsymbol_{i}"));
        let (tables, mut memory) = Image::new(&symbols, coding, true).open();
        let tables = tables.unwrap();
        let mut at = |addr: u64| tables.symbol_at(&mut memory, VirtAddr(addr)).unwrap();
        assert_eq!(at(BASE), Some(("_stext".to_owned(), 0)));
        assert_eq!(at(BASE + 63), Some(("_stext".to_owned(), 63)));
        assert_eq!(at(BASE + 64), Some(("symbol_1".to_owned(), 0)));
        assert_eq!(at(BASE + 700 * 64 + 5), Some(("symbol_700".to_owned(), 5)));
        assert_eq!(at(BASE + 958 * 64 + 63), Some(("symbol_958".to_owned(), 63)));
        assert_eq!(at(BASE + 959 * 64), None);
        assert_eq!(at(u64::MAX), None);
        let mut start = |addr: u64| tables.start_of(&mut memory, VirtAddr(addr)).unwrap();
        assert_eq!(start(BASE + 700 * 64 + 5), Some(VirtAddr(BASE + 700 * 64)));
        assert_eq!(start(BASE + 959 * 64), None);
    }
}

#[test]
fn lengths_of_one_byte_are_known_by_the_table_behind_the_names() {
    let symbols = symbols(true, |i| format!("T{i}{}", "x".repeat(if i % 50 == 0 { 150 } else { 9 })));
    let (tables, mut memory) = Image::new(&symbols, Coding::AbsolutePercpu, false).open();
    let tables = tables.unwrap();
    assert_eq!(tables.lengths, Lengths::OneByte);
    let found = tables.lookup(&mut memory, &["959xxxxxxxxx"]).unwrap();
    assert_eq!(found["959xxxxxxxxx"].address, VirtAddr(BASE + 959 * 64));
}

#[test]
fn what_is_missing_or_contradicts_itself_is_said() {
    let symbols = symbols(false, name);
    let good = Image::new(&symbols, Coding::Relative, true);
    for key in [
        "_stext",
        "kallsyms_names",
        "kallsyms_num_syms",
        "kallsyms_token_table",
        "kallsyms_token_index",
        "kallsyms_offsets",
    ] {
        let info = good.info.replace(&format!("SYMBOL({key})"), "SYMBOL(other)");
        let error = open(&info, &good.bytes).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
    let info = good.info.replace(&format!("SYMBOL(_stext)={BASE:x}"), "SYMBOL(_stext)=ffffffff81000040");
    let error = open(&info, &good.bytes).unwrap_err();
    assert!(error.to_string().contains("no known coding"), "{error}");
    // The pages with the end of the names were left out of the dump.
    let names = good.bytes.len() / 4096 * 4096 - 4096;
    assert!(open(&good.info, &good.bytes[..names]).is_err());
    let mut zero = good.bytes.clone();
    zero[2000..].fill(0);
    assert!(open(&good.info, &zero).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damaged_tables_are_an_error_or_symbols_but_never_a_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        cut in any::<prop::sample::Index>(),
        coding in prop::sample::select(&Coding::ALL[..]),
    ) {
        let mut image = Image::new(&symbols(coding == Coding::AbsolutePercpu, name), coding, true);
        let size = image.bytes.len();
        for (at, byte) in edits {
            image.bytes[at.index(size)] = byte;
        }
        if cut.index(4) == 0 {
            image.bytes.truncate(cut.index(size));
        }
        // What is found may be anything.
        let (info, mut memory) = (VmcoreInfo::parse(image.info.as_bytes()), Piece::new(&image.bytes));
        if let Ok((tables, _)) = Kallsyms::open(&info, &mut memory, &["_text"]) {
            let _ = tables.lookup(&mut memory, &["init_once", "_stext", "modules"]);
            let _ = tables.symbol_at(&mut memory, VirtAddr(BASE + 100));
        }
    }
}

#[test]
fn names_that_end_with_the_address_space_have_no_markers() {
    let end = NamesEnd { at: VirtAddr(u64::MAX - 2), second: None, last: (0, 0) };
    assert!(!end.confirmed(&mut Piece::new(&[])));
}
