//! The kernel's types out of DWARF, versions 2 to 5.
//!
//! A vmlinux has 200 MB of it in 2,400 units. Looking for names reads only what stands at the top level of each unit, jumping over
//! what is inside by DW_AT_sibling, and stops when all names are found: 0.1 to 0.5 s. What a type is is read when it is asked for.

use crate::error::{KernelError, Result};
use crate::types::{Ask, Shape, Tag, TypeRef, TypeSource};
use gimli::{AttributeValue, DebugInfoOffset, Dwarf, EndianSlice, LittleEndian, UnitOffset, constants as dw};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

mod shape;

use shape::Reader;

/// Bytes of a section, read in place.
pub(super) type Slice<'d> = EndianSlice<'d, LittleEndian>;
type Unit<'d> = gimli::Unit<Slice<'d>>;
type Header<'d> = gimli::UnitHeader<Slice<'d>>;

/// Units kept open: a type and what it is made of are in one unit, nearly always.
const MAX_OPEN: usize = 8;
/// Units of a vmlinux are thousands.
const MAX_UNITS: usize = 1 << 20;

/// The types of a file with DWARF.
pub struct DwarfTypes<'d> {
    file: &'d str,
    dwarf: Dwarf<Slice<'d>>,
    /// The headers of all units, in the order of their offsets.
    headers: Vec<Header<'d>>,
    /// Units by number, the one used last at the end.
    open: Vec<(usize, Rc<Unit<'d>>)>,
    types: HashMap<(Tag, String), TypeRef>,
    enumerators: HashMap<String, i64>,
    variables: HashMap<String, TypeRef>,
    /// What was looked for in all units: what of it was not found is not there.
    looked_for: HashSet<Wanted>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Wanted {
    Type(Tag, String),
    Enumerator(String),
    Variable(String),
}

impl Wanted {
    fn of(ask: Ask<'_>) -> Self {
        match ask {
            Ask::Type(tag, name) => Self::Type(tag, name.to_owned()),
            Ask::Enumerator(name) => Self::Enumerator(name.to_owned()),
            Ask::Variable(name) => Self::Variable(name.to_owned()),
        }
    }
}

/// What is left to be found in a pass, by name.
#[derive(Default)]
struct Left<'n> {
    types: [HashSet<&'n [u8]>; Tag::ALL.len()],
    enumerators: HashSet<&'n [u8]>,
    variables: HashSet<&'n [u8]>,
}

impl<'n> Left<'n> {
    fn of(asked: &[Ask<'n>]) -> Self {
        let mut left = Self::default();
        for ask in asked {
            let (set, name) = match ask {
                Ask::Type(tag, name) => (left.tagged(*tag), name),
                Ask::Enumerator(name) => (&mut left.enumerators, name),
                Ask::Variable(name) => (&mut left.variables, name),
            };
            set.insert(name.as_bytes());
        }
        left
    }

    fn tagged(&mut self, tag: Tag) -> &mut HashSet<&'n [u8]> {
        let [structs, unions, typedefs, enums] = &mut self.types;
        match tag {
            Tag::Struct => structs,
            Tag::Union => unions,
            Tag::Typedef => typedefs,
            Tag::Enum => enums,
        }
    }

    fn is_empty(&self) -> bool {
        self.types.iter().all(HashSet::is_empty) && self.enumerators.is_empty() && self.variables.is_empty()
    }
}

impl<'d> DwarfTypes<'d> {
    /// The types in `dwarf`, which was read from `file`.
    pub(super) fn new(file: &'d str, dwarf: Dwarf<Slice<'d>>) -> Result<Self> {
        let mut headers = Vec::new();
        let mut units = dwarf.units();
        while let Some(header) = units.next().map_err(|e| damaged(file, &dwarf, e))? {
            if headers.len() == MAX_UNITS {
                return Err(no_dwarf(file, format!("more than {MAX_UNITS} units of DWARF")));
            }
            headers.push(header);
        }
        Ok(Self {
            file,
            dwarf,
            headers,
            open: Vec::new(),
            types: HashMap::new(),
            enumerators: HashMap::new(),
            variables: HashMap::new(),
            looked_for: HashSet::new(),
        })
    }

    /// The source file that declares typedef `name`, as its unit's line table names it.
    ///
    /// # Errors
    /// The DWARF is damaged.
    pub fn declared_in(&mut self, name: &str) -> Result<Option<String>> {
        let Some(of) = self.find(Tag::Typedef, name)? else { return Ok(None) };
        let (unit, offset) = self.locate(of)?;
        let (file, dwarf) = (self.file, &self.dwarf);
        let bad = |e| damaged(file, dwarf, e);
        let entry = unit.entry(offset).map_err(bad)?;
        let Some(AttributeValue::FileIndex(index)) = entry.attr_value(dw::DW_AT_decl_file) else { return Ok(None) };
        let Some(lines) = unit.line_program.as_ref().map(gimli::IncompleteLineProgram::header) else { return Ok(None) };
        let Some(row) = lines.file(index) else { return Ok(None) };
        let text = |value| dwarf.attr_string(&unit, value).map(|s| s.to_string_lossy().into_owned()).map_err(bad);
        let name = text(row.path_name())?;
        // Directory 0 is that of the compilation.
        let directory = row.directory(lines).filter(|_| row.directory_index() != 0).map(text).transpose()?;
        Ok(Some(match directory {
            Some(directory) => format!("{directory}/{name}"),
            None => name,
        }))
    }

    fn look(&mut self, mut left: Left<'_>) -> Result<()> {
        for number in 0..self.headers.len() {
            if left.is_empty() {
                break;
            }
            self.look_in(number, &mut left)?;
        }
        Ok(())
    }

    /// Passes over the top level of a unit.
    fn look_in(&mut self, number: usize, left: &mut Left<'_>) -> Result<()> {
        let Some(header) = self.headers.get(number).copied() else { return Ok(()) };
        let (file, dwarf) = (self.file, &self.dwarf);
        let bad = |e| damaged(file, dwarf, e);
        let unit = dwarf.unit(header).map_err(bad)?;
        let Some(base) = header.debug_info_offset().map(|at| at.0) else { return Ok(()) };
        let global = |at: UnitOffset| TypeRef((base + at.0) as u64);
        let mut raw = unit.entries_raw(None).map_err(bad)?;
        // How deep the next entry is; the unit itself is 0.
        let mut depth = 0usize;
        // Inside an enum of the top level, at depth 2.
        let mut in_enum = false;
        while !raw.is_empty() {
            let at = raw.next_offset();
            let Some(abbreviation) = raw.read_abbreviation().map_err(bad)? else {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    break;
                }
                continue;
            };
            let here = depth;
            depth += usize::from(abbreviation.has_children());
            let tag = abbreviation.tag();
            let wanted = match (here, tag) {
                (0, _) => true,
                (1, _) => tag_of(tag).is_some() || tag == dw::DW_TAG_variable,
                (2, dw::DW_TAG_enumerator) => in_enum,
                _ => false,
            };
            if !wanted && (here != 1 || !abbreviation.has_children()) {
                raw.skip_attributes(abbreviation.attributes()).map_err(bad)?;
                continue;
            }
            let mut entry = Entry::default();
            for spec in abbreviation.attributes() {
                let attribute = raw.read_attribute_inline(*spec).map_err(bad)?;
                match attribute.name() {
                    dw::DW_AT_name if wanted => entry.name = Some(attribute.value()),
                    dw::DW_AT_sibling => {
                        entry.sibling =
                            if let AttributeValue::UnitRef(to) = attribute.value() { Some(to) } else { None };
                    }
                    dw::DW_AT_declaration => entry.declaration = true,
                    dw::DW_AT_language => entry.language = Some(attribute.value()),
                    dw::DW_AT_const_value => entry.value = Some(attribute.value()),
                    dw::DW_AT_type => entry.of = Some(attribute.value()),
                    dw::DW_AT_specification => entry.specifies = Some(attribute.value()),
                    _ => {}
                }
            }
            if here == 0 {
                // Names in Rust are paths: what is called `page` there is none of the kernel's C types.
                if entry.language == Some(AttributeValue::Language(dw::DW_LANG_Rust)) {
                    return Ok(());
                }
                continue;
            }
            if here == 2 {
                if let (Some(name), Some(value)) = (entry.name, entry.value) {
                    let name = dwarf.attr_string(&unit, name).map_err(bad)?;
                    if left.enumerators.remove(name.slice())
                        && let Some(value) = constant(&value)
                    {
                        self.enumerators.insert(name.to_string_lossy().into_owned(), value);
                    }
                }
                continue;
            }
            in_enum = false;
            if let Some(kind) = tag_of(tag) {
                if !entry.declaration
                    && let Some(name) = entry.name
                    && !left.tagged(kind).is_empty()
                {
                    let name = dwarf.attr_string(&unit, name).map_err(bad)?;
                    if left.tagged(kind).remove(name.slice()) {
                        self.types.insert((kind, name.to_string_lossy().into_owned()), global(at));
                    }
                }
                in_enum = kind == Tag::Enum && !left.enumerators.is_empty();
            } else if tag == dw::DW_TAG_variable && !left.variables.is_empty() {
                let name = match (entry.name, entry.specifies) {
                    (Some(name), _) => Some(name),
                    (None, Some(AttributeValue::UnitRef(to))) => {
                        unit.entry(to).ok().and_then(|e| e.attr_value(dw::DW_AT_name))
                    }
                    _ => None,
                };
                let of = match entry.of {
                    Some(AttributeValue::UnitRef(of)) => Some(global(of)),
                    // In another unit, where dwz or the linker of a whole program put what units share.
                    Some(AttributeValue::DebugInfoRef(of)) => Some(TypeRef(of.0 as u64)),
                    _ => None,
                };
                if let (Some(name), Some(of)) = (name, of) {
                    let name = dwarf.attr_string(&unit, name).map_err(bad)?;
                    if left.variables.remove(name.slice()) {
                        self.variables.insert(name.to_string_lossy().into_owned(), of);
                    }
                }
            }
            if abbreviation.has_children()
                && !in_enum
                && let Some(sibling) = entry.sibling
                // Only ahead: what points back would never end.
                && sibling.0 > at.0
            {
                raw = unit.entries_raw(Some(sibling)).map_err(bad)?;
                depth = 1;
            }
        }
        Ok(())
    }

    /// The unit that `of` is in, opened, and where in it.
    fn locate(&mut self, of: TypeRef) -> Result<(Rc<Unit<'d>>, UnitOffset)> {
        let absent =
            || no_dwarf(self.file, format!("a reference to offset {:#x} of .debug_info, where no unit is", of.0));
        let at = usize::try_from(of.0).map_err(|_| absent())?;
        let after = self.headers.partition_point(|h| h.debug_info_offset().is_some_and(|start| start.0 <= at));
        let number = after.checked_sub(1).ok_or_else(absent)?;
        let header = *self.headers.get(number).ok_or_else(absent)?;
        let offset = DebugInfoOffset(at).to_unit_offset(&header).ok_or_else(absent)?;
        let unit = match self.open.iter().position(|(have, _)| *have == number) {
            Some(index) => self.open.remove(index).1,
            None => Rc::new(self.dwarf.unit(header).map_err(|e| damaged(self.file, &self.dwarf, e))?),
        };
        if self.open.len() == MAX_OPEN {
            self.open.remove(0);
        }
        self.open.push((number, Rc::clone(&unit)));
        Ok((unit, offset))
    }
}

/// What is read of an entry in a pass.
#[derive(Default)]
struct Entry<'d> {
    name: Option<AttributeValue<Slice<'d>>>,
    sibling: Option<UnitOffset>,
    declaration: bool,
    language: Option<AttributeValue<Slice<'d>>>,
    value: Option<AttributeValue<Slice<'d>>>,
    of: Option<AttributeValue<Slice<'d>>>,
    specifies: Option<AttributeValue<Slice<'d>>>,
}

/// The value of an enumerator. Compilers write negative ones in the signed form; others fit the form's bytes without a sign.
fn constant(value: &AttributeValue<Slice<'_>>) -> Option<i64> {
    match value {
        AttributeValue::Sdata(value) => Some(*value),
        other => other.udata_value().map(u64::cast_signed),
    }
}

const fn tag_of(tag: gimli::DwTag) -> Option<Tag> {
    match tag {
        dw::DW_TAG_structure_type | dw::DW_TAG_class_type => Some(Tag::Struct),
        dw::DW_TAG_union_type => Some(Tag::Union),
        dw::DW_TAG_typedef => Some(Tag::Typedef),
        dw::DW_TAG_enumeration_type => Some(Tag::Enum),
        _ => None,
    }
}

fn damaged(file: &str, dwarf: &Dwarf<Slice<'_>>, error: gimli::Error) -> KernelError {
    no_dwarf(file, format!("damaged DWARF: {}", dwarf.format_error(error)))
}

fn no_dwarf(file: &str, what: String) -> KernelError {
    KernelError::DebugInfo { file: file.to_owned(), what, next: "use another copy of the kernel's debug information" }
}

impl TypeSource for DwarfTypes<'_> {
    fn prepare(&mut self, asked: &[Ask<'_>]) -> Result<()> {
        let new: Vec<Ask<'_>> =
            asked.iter().filter(|ask| !self.looked_for.contains(&Wanted::of(**ask))).copied().collect();
        if !new.is_empty() {
            self.look(Left::of(&new))?;
            self.looked_for.extend(new.into_iter().map(Wanted::of));
        }
        Ok(())
    }

    fn find(&mut self, tag: Tag, name: &str) -> Result<Option<TypeRef>> {
        self.prepare(&[Ask::Type(tag, name)])?;
        Ok(self.types.get(&(tag, name.to_owned())).copied())
    }

    fn enumerator(&mut self, name: &str) -> Result<Option<i64>> {
        self.prepare(&[Ask::Enumerator(name)])?;
        Ok(self.enumerators.get(name).copied())
    }

    fn variable(&mut self, name: &str) -> Result<Option<TypeRef>> {
        self.prepare(&[Ask::Variable(name)])?;
        Ok(self.variables.get(name).copied())
    }

    fn shape(&mut self, of: TypeRef) -> Result<Shape> {
        if of.0 == 0 {
            return Ok(Shape::Void);
        }
        let (unit, offset) = self.locate(of)?;
        Reader { file: self.file, dwarf: &self.dwarf, unit: &unit }.shape(offset)
    }
}
