use super::*;
use proptest::prelude::*;

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

fn member(btf: &Btf, path: &str) -> Option<(u64, Option<u32>)> {
    let id = btf.find(&[TypeName::Struct("page")])[0].unwrap();
    btf.member(id, path).map(|m| (m.bit_offset, m.bits))
}

#[test]
fn members_are_found_by_path_through_anonymous_structs_and_arrays() {
    let btf = Btf::parse(sample().bytes()).unwrap();
    assert!(btf.problem().is_none());
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
        assert_eq!(member(&btf, path), want, "{path}");
    }
    assert_eq!(btf.offset_of("page", "mapping"), Some(24));
    assert_eq!(btf.offset_of("page", "b"), None);
    assert_eq!(btf.offset_of("nothing", "b"), None);
}

#[test]
fn types_are_found_by_the_kind_of_their_name() {
    let btf = Btf::parse(sample().bytes()).unwrap();
    let names = [
        TypeName::Struct("page"),
        TypeName::Union("page"),
        TypeName::Typedef("page"),
        TypeName::Enum("big"),
        TypeName::Enum("page"),
    ];
    let found = btf.find(&names);
    let sizes: Vec<_> = found.iter().map(|id| id.and_then(|id| btf.size(id))).collect();
    assert_eq!(sizes, [Some(72), Some(1), Some(32), Some(8), None]);
    assert_eq!(btf.array_len(found[2].unwrap()), Some(2));
    assert_eq!(btf.array_len(found[0].unwrap()), None);
    assert_eq!(btf.size_of("list"), Some(16));
    assert_eq!(btf.size_of("ulong_t"), Some(8));
    assert_eq!(btf.size_of("opaque"), None);
    let lists = btf.member(found[0].unwrap(), "lists").unwrap();
    assert_eq!((btf.size(lists.type_id), btf.array_len(lists.type_id)), (Some(32), Some(2)));
}

#[test]
fn enumerators_are_found_whatever_enum_they_belong_to() {
    let btf = Btf::parse(sample().bytes()).unwrap();
    assert_eq!(btf.enumerators(&["high", "huge", "low", "none"]), [Some(7), Some(1 << 40), Some(-2), None]);
}

#[test]
fn every_type_is_found_by_its_number() {
    let mut w = sample();
    for i in 0..500 {
        w.compound(4, &format!("s{i}"), i, &[("x", 1, i * 8)]);
    }
    let btf = Btf::parse(w.bytes()).unwrap();
    assert_eq!(btf.len(), w.count);
    for i in 0..500u32 {
        assert_eq!(btf.size_of(&format!("s{i}")), Some(i.into()));
        assert_eq!(btf.offset_of(&format!("s{i}"), "x"), Some(i.into()));
    }
    assert_eq!(btf.size(TypeId(0)), None);
    assert_eq!(btf.size(TypeId(w.count + 1)), None);
    assert_eq!(btf.size(TypeId(u32::MAX)), None);
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
    let btf = Btf::parse(w.bytes()).unwrap();
    let ids = btf.find(&[TypeName::Typedef("loop"), TypeName::Struct("nest")]);
    assert_eq!(btf.size(ids[0].unwrap()), None);
    assert_eq!(btf.member(ids[0].unwrap(), "x"), None);
    assert_eq!(btf.member(ids[1].unwrap(), "x"), None);
    assert_eq!(btf.size(TypeId(this - 1)), None);
}

#[test]
fn kinds_to_come_are_passed_over_where_the_layout_says_how() {
    let mut w = sample();
    w.add(24, "", 3, 0, &[1, 2, 3, 4, 5, 6, 7]);
    w.compound(4, "behind", 44, &[]);
    let without = Btf::parse(w.bytes()).unwrap();
    assert!(without.problem().unwrap().to_string().contains("unknown kind"));
    assert_eq!((without.len(), without.size_of("page"), without.size_of("behind")), (w.count - 2, Some(72), None));
    w.layout = vec![0; 25 * 4];
    w.layout[24 * 4] = 4;
    w.layout[24 * 4 + 1] = 8;
    let with = Btf::parse(w.bytes()).unwrap();
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
    for (bytes, part) in [
        (Vec::new(), "no magic number"),
        (b"BTF?".repeat(10), "no magic number"),
        (swapped, "big-endian"),
        (version, "unknown version"),
        (good[..10].to_vec(), "cut off"),
        (good[..good.len() - 1].to_vec(), "beyond the end"),
    ] {
        let error = Btf::parse(bytes).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
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
        if let Ok(btf) = Btf::parse(bytes) {
            for id in 0..=btf.len() + 1 {
                let _ = btf.size(TypeId(id));
                let _ = btf.array_len(TypeId(id));
                for path in ["lru.prev", "lists.prev", "b", "none"] {
                    let _ = btf.member(TypeId(id), path);
                }
            }
            let _ = btf.find(&[TypeName::Struct("page"), TypeName::Enum("big")]);
            let _ = btf.enumerators(&["high", "huge"]);
        }
    }
}
