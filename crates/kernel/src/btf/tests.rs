use super::*;
use proptest::prelude::*;

const START: VirtAddr = VirtAddr(0xffff_ffff_8262_eb80);

/// Memory that is one piece of whole pages, of which some cannot be read.
struct Piece {
    bytes: Vec<u8>,
    holes: Vec<u64>,
}

impl Piece {
    fn new(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), holes: Vec::new() }
    }

    fn btf<'a>(&'a mut self, names: &[&'a str]) -> Result<Btf<'a>> {
        let stop = START.plus(self.bytes.len() as u64);
        Btf::read(self, START, stop, names)
    }
}

impl VirtualMemory for Piece {
    fn read_virt(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<()> {
        for (addr, byte) in (addr.0..).zip(buf) {
            let page = (addr >> 12).checked_sub(START.0 >> 12).filter(|page| !self.holes.contains(page));
            let end = (START.0 + self.bytes.len() as u64).next_multiple_of(4096);
            if page.is_none() || addr >= end {
                return Err(KernelError::NotMapped { addr: VirtAddr(addr), level: "test", entry_at: 0, entry: 0 });
            }
            let at = addr.checked_sub(START.0).and_then(|at| self.bytes.get(at as usize));
            *byte = at.copied().unwrap_or(0xa5);
        }
        Ok(())
    }
}

/// Writes BTF as a compiler does: knows the bytes, not the parser.
#[derive(Default)]
struct Writer {
    types: Vec<u32>,
    count: u32,
    strings: Vec<u8>,
    layout: Vec<u8>,
}

impl Writer {
    fn string(&mut self, text: &str) -> u32 {
        if self.strings.is_empty() {
            self.strings.push(0);
        }
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(text.bytes());
        self.strings.push(0);
        at
    }

    fn add(&mut self, kind: u32, name: &str, len: u32, size_or_type: u32, rest: &[u32]) -> u32 {
        let name = self.string(name);
        self.types.extend([name, kind << 24 | len, size_or_type]);
        self.types.extend(rest);
        self.count += 1;
        self.count
    }

    /// `kind` 4: struct, 5: union, with bit 7 set: members' offsets hold widths. Members: name, type, offset word.
    fn compound(&mut self, kind: u32, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        let rest: Vec<u32> = members.iter().flat_map(|(n, t, o)| [self.string(n), *t, *o]).collect();
        self.add(kind, name, members.len() as u32, size, &rest)
    }

    fn bytes(&self) -> Vec<u8> {
        let header: u32 = if self.layout.is_empty() { 24 } else { 32 };
        let types = self.types.len() as u32 * 4;
        let strings = self.strings.len() as u32;
        let mut out = vec![0x9f, 0xeb, 1, 0];
        for word in [header, 0, types, types, strings] {
            out.extend(word.to_le_bytes());
        }
        if header == 32 {
            out.extend((types + strings).to_le_bytes());
            out.extend((self.layout.len() as u32).to_le_bytes());
        }
        out.extend(self.types.iter().flat_map(|w| w.to_le_bytes()));
        out.extend(&self.strings);
        out.extend(&self.layout);
        out
    }
}

/// ```c
/// typedef unsigned long ulong_t;
/// struct list { struct list *next, *prev; };
/// struct page { ulong_t flags; union { struct { struct list lru; void *mapping; }; struct { const ulong_t head; }; };
///               unsigned int a : 3, b : 5; struct list lists[2]; };
/// enum { low = -2, high = 7 }; enum big { huge = 1 << 40 };
/// ```
fn sample() -> Writer {
    let mut w = Writer::default();
    let long = w.add(1, "unsigned long", 0, 8, &[64]);
    let int = w.add(1, "unsigned int", 0, 4, &[32]);
    let ulong = w.add(8, "ulong_t", 0, long, &[]);
    // A pointer may name a type that follows.
    let pointer = w.add(2, "", 0, 5, &[]);
    let list = w.compound(4, "list", 16, &[("next", pointer, 0), ("prev", pointer, 64)]);
    assert_eq!(list, 5);
    let void = w.add(2, "", 0, 0, &[]);
    let constant = w.add(10, "", 0, ulong, &[]);
    let first = w.compound(4, "", 24, &[("lru", list, 0), ("mapping", void, 128)]);
    let second = w.compound(4, "", 8, &[("head", constant, 0)]);
    let either = w.compound(5, "", 24, &[("", first, 0), ("", second, 0)]);
    let array = w.add(3, "", 0, 0, &[list, int, 2]);
    let members = [
        ("flags", ulong, 0),
        ("", either, 64),
        ("a", int, 3 << 24 | 256),
        ("b", int, 5 << 24 | 259),
        ("lists", array, 320),
    ];
    w.compound(4 | 0x80, "page", 72, &members);
    w.compound(5, "page", 1, &[]);
    w.add(8, "page", 0, array, &[]);
    let rest = [w.string("low"), -2i32 as u32, w.string("high"), 7];
    w.add(6 | 0x80, "", 2, 4, &rest);
    let rest = [w.string("huge"), 0, 1 << 8];
    w.add(19, "big", 1, 8, &rest);
    w.add(7, "opaque", 0, 0, &[]);
    w
}

/// All names of the sample, and some it has not.
const NAMES: &[&str] = &[
    "page", "list", "ulong_t", "opaque", "flags", "lru", "next", "prev", "mapping", "head", "a", "b", "lists", "low",
    "high", "huge", "big", "fla", "flagss", "x", "nothing", "none", "", "loop", "nest", "behind",
];

#[test]
fn members_are_found_by_path_through_anonymous_structs_and_arrays() {
    let mut memory = Piece::new(&sample().bytes());
    let mut btf = memory.btf(NAMES).unwrap();
    assert!(btf.problem().is_none());
    let page = btf.named("page").unwrap();
    for (path, want) in [
        ("flags", Some((0, None))),
        ("lru", Some((64, None))),
        ("lru.prev", Some((128, None))),
        ("mapping", Some((192, None))),
        ("head", Some((64, None))),
        ("a", Some((256, Some(3)))),
        ("b", Some((259, Some(5)))),
        ("lists.prev", Some((384, None))),
        ("lru.next.prev", None),
        ("flags.x", None),
        ("fla", None),
        ("flagss", None),
        ("", None),
        ("lru.", None),
    ] {
        assert_eq!(btf.member(page, path).map(|m| (m.bit_offset, m.bits)), want, "{path}");
    }
    assert_eq!(btf.offset_of("page", "mapping"), Some(24));
    assert_eq!(btf.offset_of("page", "b"), None);
    assert_eq!(btf.offset_of("nothing", "b"), None);
}

#[test]
fn a_struct_is_taken_before_a_typedef_of_its_name_and_the_first_of_several() {
    let mut w = sample();
    w.compound(4, "page", 99, &[]);
    w.compound(4, "list", 98, &[]);
    let mut memory = Piece::new(&w.bytes());
    let mut btf = memory.btf(NAMES).unwrap();
    let named = btf.named[btf.names.number("page").unwrap()];
    assert_eq!(btf.size(named.structure.unwrap()), Some(72));
    assert_eq!(btf.size(named.typedef.unwrap()), Some(32));
    assert_eq!(btf.size_of("page"), Some(72));
    assert_eq!(btf.size_of("list"), Some(16));
    assert_eq!(btf.size_of("ulong_t"), Some(8));
    assert_eq!(btf.size_of("opaque"), None);
    assert_eq!(btf.size_of("big"), None);
    let lists = btf.member(named.structure.unwrap(), "lists").unwrap();
    assert_eq!(btf.size(lists.type_id), Some(32));
}

#[test]
fn enumerators_are_found_whatever_enum_they_belong_to() {
    let mut memory = Piece::new(&sample().bytes());
    let btf = memory.btf(NAMES).unwrap();
    let values = ["high", "huge", "low", "none", "page"].map(|name| btf.enumerator(name));
    assert_eq!(values, [Some(7), Some(1 << 40), Some(-2), None, None]);
}

#[test]
fn names_that_were_not_asked_for_are_not_known() {
    let mut memory = Piece::new(&sample().bytes());
    let mut btf = memory.btf(&["page", "lru"]).unwrap();
    assert_eq!(btf.offset_of("page", "lru"), Some(8));
    assert_eq!((btf.offset_of("page", "mapping"), btf.size_of("list"), btf.enumerator("high")), (None, None, None));
}

#[test]
fn every_type_is_found_by_its_number() {
    let mut w = sample();
    for i in 0..500 {
        w.compound(4, &format!("s{i}"), i, &[("x", 1, i * 8)]);
    }
    let names: Vec<String> = (0..500).map(|i| format!("s{i}")).collect();
    let asked: Vec<&str> = names.iter().map(String::as_str).chain(["x"]).collect();
    let mut memory = Piece::new(&w.bytes());
    let mut btf = memory.btf(&asked).unwrap();
    assert_eq!(btf.len(), w.count);
    for (i, name) in (0..).zip(&names) {
        assert_eq!(btf.size_of(name), Some(i));
        assert_eq!(btf.offset_of(name, "x"), Some(i));
    }
    assert_eq!(btf.size(TypeId(0)), None);
    assert_eq!(btf.size(TypeId(w.count + 1)), None);
    assert_eq!(btf.size(TypeId(u32::MAX)), None);
}

#[test]
fn a_name_is_found_wherever_it_lies_in_the_pieces_that_are_read() {
    let mut w = sample();
    for i in 0..12_000 {
        w.string(&format!("filler_{i}"));
    }
    // The first pieces end at these strings; "target" comes at every place relative to them.
    let names: Vec<String> = (0..9_000).map(|i| format!("filler_{i}")).collect();
    let asked: Vec<&str> = names.iter().map(String::as_str).collect();
    let strings = w.strings.clone();
    let mut memory = Piece::new(&strings);
    let found = Names::find(&mut ReadAhead::new(&mut memory), START, strings.len(), &asked).unwrap();
    let mut at = 0;
    for string in strings.split(|b| *b == 0) {
        let number = asked.iter().take(50).chain(&asked[1_500..3_200]).find(|name| name.as_bytes() == string);
        if let Some(name) = number {
            assert_eq!(found.at(at), found.number(name), "{name} at {at}");
        }
        at += string.len() as u32 + 1;
    }
}

#[test]
fn a_name_may_be_the_end_of_a_longer_string() {
    let mut w = Writer::default();
    let whole = w.string("struct_page");
    let mut memory = Piece::new(&w.strings);
    let names = ["page", "e", "ge", "struct_page", "xstruct_page", "pag"];
    let found = Names::find(&mut ReadAhead::new(&mut memory), START, w.strings.len(), &names).unwrap();
    let at = |back: u32| found.at(whole + 11 - back);
    assert_eq!((at(4), at(1), at(2)), (found.number("page"), found.number("e"), found.number("ge")));
    assert_eq!(at(11), found.number("struct_page"));
    assert_eq!([0, 3, 5, 12].map(at), [None; 4]);
}

#[test]
fn a_name_without_end_is_none() {
    let mut memory = Piece::new(b"\0page\0page");
    let found = Names::find(&mut ReadAhead::new(&mut memory), START, 10, &["page"]).unwrap();
    assert_eq!((found.at(1), found.at(6)), (Some(0), None));
}

#[test]
fn types_that_refer_to_themselves_end() {
    let mut w = sample();
    let this = w.count + 1;
    w.add(8, "loop", 0, this, &[]);
    let this = w.count + 1;
    w.add(3, "", 0, 0, &[this, 1, u32::MAX]);
    let this = w.count + 1;
    // Each level is met 300 times in the one above: 300^32 paths without a bound.
    w.compound(4, "nest", 8, &[("", this, 0); 300]);
    let mut memory = Piece::new(&w.bytes());
    let mut btf = memory.btf(NAMES).unwrap();
    assert_eq!(btf.size_of("loop"), None);
    assert_eq!(btf.offset_of("loop", "x"), None);
    assert!(btf.named("nest").is_some());
    assert_eq!(btf.offset_of("nest", "x"), None);
    assert_eq!(btf.size(TypeId(this - 1)), None);
}

#[test]
fn kinds_to_come_are_passed_over_where_the_layout_says_how() {
    let mut w = sample();
    w.add(24, "", 3, 0, &[1, 2, 3, 4, 5, 6, 7]);
    w.compound(4, "behind", 44, &[]);
    let mut memory = Piece::new(&w.bytes());
    let mut without = memory.btf(NAMES).unwrap();
    assert!(without.problem().unwrap().to_string().contains("unknown kind"));
    assert_eq!((without.len(), without.size_of("page"), without.size_of("behind")), (w.count - 2, Some(72), None));
    w.layout = vec![0; 25 * 4];
    w.layout[24 * 4] = 4;
    w.layout[24 * 4 + 1] = 8;
    let mut memory = Piece::new(&w.bytes());
    let mut with = memory.btf(NAMES).unwrap();
    assert!(with.problem().is_none());
    assert_eq!(with.size_of("behind"), Some(44));
}

#[test]
fn what_is_no_btf_is_said() {
    let good = sample().bytes();
    let mut swapped = good.clone();
    swapped.swap(0, 1);
    let mut version = good.clone();
    version[2] = 2;
    let mut header = good.clone();
    header[4] = 23;
    for (bytes, part) in [
        (Vec::new(), "the length of BTF"),
        (good[..10].to_vec(), "the length of BTF"),
        (b"BTF?".repeat(10), "no magic number"),
        (swapped, "big-endian"),
        (version, "unknown version"),
        (header, "header too short"),
        (good[..good.len() - 1].to_vec(), "beyond the end"),
    ] {
        let error = Piece::new(&bytes).btf(NAMES).err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_page_that_is_not_in_the_dump_is_an_error() {
    let mut w = sample();
    for i in 0..10_000 {
        w.compound(4, &format!("s{i}"), i, &[("x", 1, i * 8)]);
    }
    let mut memory = Piece::new(&w.bytes());
    let pages = memory.bytes.len() as u64 / 4096;
    for hole in [0, 1, 20, pages / 2, pages - 1] {
        memory.holes = vec![hole];
        let error = memory.btf(NAMES).err().unwrap();
        let page = (START.0 >> 12) + hole;
        assert!(matches!(error, KernelError::NotMapped { addr, .. } if addr.0 >> 12 == page), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn damaged_types_are_an_error_or_types_but_never_a_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..30),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample().bytes();
        let size = bytes.len();
        for (at, byte) in edits {
            bytes[at.index(size)] = byte;
        }
        if cut.index(4) == 0 {
            bytes.truncate(cut.index(size));
        }
        let mut memory = Piece::new(&bytes);
        if let Ok(mut btf) = memory.btf(NAMES) {
            for id in 0..=btf.len() + 1 {
                let _ = btf.size(TypeId(id));
                for path in ["lru.prev", "lists.prev", "b", "none"] {
                    let _ = btf.member(TypeId(id), path);
                }
            }
            let _ = ["high", "huge"].map(|name| btf.enumerator(name));
        }
    }
}
