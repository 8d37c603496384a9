//! DWARF written by hand, the units of which no compiler would write.

use super::DwarfTypes;
use crate::types::{Ask, Shape, Tag, TypeRef, TypeSource};
use gimli::{Dwarf, EndianSlice, LittleEndian, SectionId};

mod elf;
mod files;

/// DW_LANG_C99 and DW_LANG_Rust.
const C: u8 = 0x0c;
const RUST: u8 = 0x1c;

/// Code, tag, whether it has children, and attributes with their forms: string 8, data1 0xb, ref4 0x13, ref_addr 0x10.
type Abbreviation = (u8, u8, bool, &'static [(u8, u8)]);
const ABBREVIATIONS: &[Abbreviation] = &[
    (UNIT, 0x11, true, &[(0x13, 0xb)]),
    (STRUCT, 0x13, true, &[(0x03, 8), (0x0b, 0xb)]),
    (MEMBER, 0x0d, false, &[(0x03, 8), (0x49, 0x13), (0x38, 0xb)]),
    (UNNAMED_MEMBER, 0x0d, false, &[(0x49, 0x13), (0x38, 0xb)]),
    (TYPEDEF, 0x16, false, &[(0x03, 8), (0x49, 0x13)]),
    (UNNAMED_STRUCT, 0x13, true, &[(0x0b, 0xb)]),
    (STRUCT_WITH_SIBLING, 0x13, true, &[(0x03, 8), (0x0b, 0xb), (0x01, 0x13)]),
    (ENUM, 0x04, true, &[(0x03, 8), (0x0b, 0xb)]),
    (ENUMERATOR, 0x28, false, &[(0x03, 8), (0x1c, 0xb)]),
    (NAMESPACE, 0x39, true, &[(0x03, 8)]),
    (INT, 0x24, false, &[(0x03, 8), (0x0b, 0xb)]),
    (BIT_FIELD, 0x0d, false, &[(0x03, 8), (0x49, 0x13), (0x38, 0xb), (0x0d, 0xb), (0x0c, 0xb)]),
    (FUNCTION, 0x15, true, &[(0x49, 0x13)]),
    (PARAMETER, 0x05, false, &[(0x49, 0x13)]),
    (POINTER, 0x0f, false, &[(0x49, 0x13)]),
    (FAR_VARIABLE, 0x34, false, &[(0x03, 8), (0x49, 0x10)]),
];
const UNIT: u8 = 1;
const STRUCT: u8 = 2;
const MEMBER: u8 = 3;
const UNNAMED_MEMBER: u8 = 4;
const TYPEDEF: u8 = 5;
const UNNAMED_STRUCT: u8 = 6;
const STRUCT_WITH_SIBLING: u8 = 7;
const ENUM: u8 = 8;
const ENUMERATOR: u8 = 9;
const NAMESPACE: u8 = 10;
const INT: u8 = 11;
const BIT_FIELD: u8 = 12;
const FUNCTION: u8 = 13;
const PARAMETER: u8 = 14;
const POINTER: u8 = 15;
const FAR_VARIABLE: u8 = 16;

/// A unit being written: offsets in it begin at its header, which has 11 bytes.
struct UnitText(Vec<u8>);

impl UnitText {
    fn new(language: u8) -> Self {
        let mut unit = vec![0; 4];
        unit.extend(4u16.to_le_bytes());
        unit.extend(0u32.to_le_bytes());
        unit.extend([8, UNIT, language]);
        Self(unit)
    }

    /// Where the next entry will be.
    fn here(&self) -> u32 {
        self.0.len() as u32
    }

    fn entry(&mut self, code: u8, name: Option<&str>, rest: &[u8]) -> u32 {
        let at = self.here();
        self.0.push(code);
        if let Some(name) = name {
            self.0.extend(name.bytes());
            self.0.push(0);
        }
        self.0.extend(rest);
        at
    }

    fn member(&mut self, name: &str, of: u32, at: u8) {
        let mut rest = of.to_le_bytes().to_vec();
        rest.push(at);
        self.entry(MEMBER, Some(name), &rest);
    }

    fn end(&mut self) {
        self.0.push(0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.end();
        let len = self.0.len() as u32 - 4;
        self.0[..4].copy_from_slice(&len.to_le_bytes());
        self.0
    }
}

fn abbreviations() -> Vec<u8> {
    let mut bytes = Vec::new();
    for (code, tag, children, attributes) in ABBREVIATIONS {
        bytes.extend([*code, *tag, u8::from(*children)]);
        attributes.iter().for_each(|(name, form)| bytes.extend([*name, *form]));
        bytes.extend([0, 0]);
    }
    bytes.push(0);
    bytes
}

/// Runs `test` on the types of `units`.
fn with_types(units: &[Vec<u8>], test: impl FnOnce(&mut dyn TypeSource)) {
    let (info, abbreviations) = (units.concat(), abbreviations());
    let dwarf = Dwarf::load(|id| -> Result<_, gimli::Error> {
        let bytes: &[u8] = match id {
            SectionId::DebugInfo => &info,
            SectionId::DebugAbbrev => &abbreviations,
            _ => &[],
        };
        Ok(EndianSlice::new(bytes, LittleEndian))
    })
    .unwrap();
    test(&mut DwarfTypes::new("test", dwarf).unwrap());
}

/// A C unit with a struct of what kernels have.
fn plain() -> Vec<u8> {
    let mut unit = UnitText::new(C);
    let int = unit.entry(INT, Some("int"), &[4]);
    unit.entry(STRUCT, Some("page"), &[64]);
    unit.member("flags", int, 0);
    let mut inner = UnitText(Vec::new());
    inner.0 = std::mem::take(&mut unit.0);
    // An anonymous struct at 8, whose member is at 16.
    let after = inner.here() + 1 + 4 + 1;
    inner.entry(UNNAMED_MEMBER, None, &[after.to_le_bytes().as_slice(), &[8]].concat());
    inner.entry(UNNAMED_STRUCT, None, &[16]);
    inner.member("private", int, 8);
    inner.end();
    // Five bits from bit 3 on: DWARF 2 counts them from the top of the unit.
    inner.entry(BIT_FIELD, Some("narrow"), &[int.to_le_bytes().as_slice(), &[32, 5, 24]].concat());
    inner.end();
    inner.entry(ENUM, Some("kinds"), &[4]);
    inner.entry(ENUMERATOR, Some("KIND_HIGH"), &[0xf0]);
    inner.end();
    inner.finish()
}

#[test]
fn members_sizes_and_enumerators_are_found() {
    with_types(&[plain()], |types| {
        assert_eq!(types.size_of("page").unwrap(), Some(64));
        assert_eq!(types.offset_of("page", "flags").unwrap(), Some(0));
        assert_eq!(types.offset_of("page", "private").unwrap(), Some(16));
        assert_eq!(types.offset_of("page", "narrow").unwrap(), None);
        assert_eq!(types.offset_of("page", "absent").unwrap(), None);
        assert_eq!(types.enumerator("KIND_HIGH").unwrap(), Some(240));
        let page = types.find(Tag::Struct, "page").unwrap().unwrap();
        let narrow = types.member(page, "narrow").unwrap().unwrap();
        assert_eq!((narrow.bit_offset, narrow.bits), (32 * 8 + 3, Some(5)));
        let layout = types.layout(page).unwrap();
        let inner = &layout.members[1];
        assert_eq!((inner.members[0].offset, inner.members[0].declaration.as_str()), (16, "int private"));
        assert_eq!(layout.members[2].bits, Some((3, 5)));
    });
}

/// dwz and linkers that see the whole program put what units share into a unit of its own.
#[test]
fn the_type_of_a_variable_is_found_in_another_unit() {
    let shared = plain();
    let mut user = UnitText::new(C);
    // `page` is behind the entry `int`.
    let page = 13 + 1 + 4 + 1;
    user.entry(FAR_VARIABLE, Some("mem_map"), &u32::to_le_bytes(page));
    with_types(&[shared, user.finish()], |types| {
        let of = types.variable("mem_map").unwrap().unwrap();
        assert_eq!(types.size(of).unwrap(), Some(64));
        assert_eq!(types.declare(of, "mem_map".to_owned()).unwrap(), "struct page mem_map");
    });
}

#[test]
fn c31_rust_units_and_types_that_refer_to_themselves_end() {
    let mut rust = UnitText::new(RUST);
    rust.entry(NAMESPACE, Some("bindings"), &[]);
    let page = rust.entry(STRUCT, Some("page"), &[8]);
    rust.member("next", page, 0);
    rust.end();
    rust.end();
    let at = rust.here();
    // At the top level, under the name of a C type, and with a sibling that leads back.
    rust.entry(STRUCT_WITH_SIBLING, Some("page"), &[&[16], at.to_le_bytes().as_slice()].concat());
    rust.member("page", at, 0);
    rust.end();

    let mut c = UnitText::new(C);
    let around = c.here();
    c.entry(TYPEDEF, Some("around"), &around.to_le_bytes());
    // A struct that has itself as an anonymous member, and as its own sibling.
    let inside = c.here();
    c.entry(STRUCT_WITH_SIBLING, Some("inside"), &[&[8], inside.to_le_bytes().as_slice()].concat());
    c.entry(UNNAMED_MEMBER, None, &[inside.to_le_bytes().as_slice(), &[0]].concat());
    c.entry(UNNAMED_MEMBER, None, &[inside.to_le_bytes().as_slice(), &[0]].concat());
    c.end();
    let unnamed = c.here();
    c.entry(UNNAMED_STRUCT, None, &[8]);
    c.entry(UNNAMED_MEMBER, None, &[unnamed.to_le_bytes().as_slice(), &[0]].concat());
    c.entry(UNNAMED_MEMBER, None, &[unnamed.to_le_bytes().as_slice(), &[0]].concat());
    c.end();
    c.entry(TYPEDEF, Some("unnamed"), &unnamed.to_le_bytes());
    // A function that takes itself, twice, and returns itself.
    let function = c.here();
    c.entry(FUNCTION, None, &function.to_le_bytes());
    c.entry(PARAMETER, None, &function.to_le_bytes());
    c.entry(PARAMETER, None, &function.to_le_bytes());
    c.end();
    c.entry(TYPEDEF, Some("function"), &function.to_le_bytes());
    let pointer = c.here();
    c.entry(POINTER, None, &pointer.to_le_bytes());
    c.entry(TYPEDEF, Some("pointer"), &pointer.to_le_bytes());

    with_types(&[rust.finish(), c.finish(), plain()], |types| {
        assert_eq!(types.size_of("page").unwrap(), Some(64), "the C type, not the Rust one");
        let around = types.find(Tag::Typedef, "around").unwrap().unwrap();
        assert_eq!(types.size(around).unwrap(), None);
        assert_eq!(types.member(around, "x").unwrap(), None);
        let inside = types.find(Tag::Struct, "inside").unwrap().unwrap();
        assert_eq!(types.member(inside, "x").unwrap(), None);
        assert!(types.layout(inside).is_ok());
        for name in ["unnamed", "function", "pointer"] {
            let of = types.find(Tag::Typedef, name).unwrap().unwrap();
            assert!(types.layout(of).is_ok());
            let Shape::Typedef { of, .. } = types.shape(of).unwrap() else { panic!("a typedef") };
            assert!(types.declare(of, "x".to_owned()).unwrap().len() < 1 << 16);
            assert_eq!(types.member(of, "x").unwrap(), None);
        }
    });
}

#[test]
fn damaged_units_are_errors_not_panics() {
    let whole = plain();
    for cut in 0..whole.len() {
        let (head, _) = whole.split_at(cut);
        let abbreviations = abbreviations();
        let dwarf = Dwarf::load(|id| -> Result<_, gimli::Error> {
            let bytes = if id == SectionId::DebugAbbrev { abbreviations.as_slice() } else { &[] };
            Ok(EndianSlice::new(if id == SectionId::DebugInfo { head } else { bytes }, LittleEndian))
        })
        .unwrap();
        if let Ok(mut types) = DwarfTypes::new("test", dwarf) {
            let _either = types.prepare(&[Ask::Type(Tag::Struct, "page"), Ask::Enumerator("KIND_HIGH")]);
        }
    }
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut changed = whole.clone();
            changed[at] = value;
            let abbreviations = abbreviations();
            let dwarf = Dwarf::load(|id| -> Result<_, gimli::Error> {
                let bytes = if id == SectionId::DebugAbbrev { abbreviations.as_slice() } else { &[] };
                Ok(EndianSlice::new(if id == SectionId::DebugInfo { &changed } else { bytes }, LittleEndian))
            })
            .unwrap();
            let Ok(mut types) = DwarfTypes::new("test", dwarf) else { continue };
            let types: &mut dyn TypeSource = &mut types;
            if let Ok(Some(page)) = types.find(Tag::Struct, "page") {
                let _either = types.layout(page);
            }
            let _either = types.shape(TypeRef(at as u64));
        }
    }
}
