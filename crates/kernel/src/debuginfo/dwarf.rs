//! The kernel's types out of DWARF, versions 2 to 5.
//!
//! A vmlinux has 200 MB of it in 2,400 units. Looking for names reads only what stands at the top level of each unit, jumping over
//! what is inside by DW_AT_sibling, and stops when all names are found: 0.1 to 0.5 s. What a type is is read when it is asked for.

use crate::error::{KernelError, Result};
use crate::types::{Ask, Compound, Field, Shape, Tag, TypeRef, TypeSource};
use gimli::{AttributeValue, DebugInfoOffset, Dwarf, EndianSlice, LittleEndian, UnitOffset, constants as dw};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Bytes of a section, read in place.
pub(super) type Slice<'d> = EndianSlice<'d, LittleEndian>;
type Unit<'d> = gimli::Unit<Slice<'d>>;
type Header<'d> = gimli::UnitHeader<Slice<'d>>;

/// Units kept open: a type and what it is made of are in one unit, nearly always.
const MAX_OPEN: usize = 8;
/// Members, enumerators, parameters and dimensions of one type; real ones have a few hundred, enums a few thousand.
const MAX_CHILDREN: usize = 1 << 16;
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
                if let (Some(name), Some(AttributeValue::UnitRef(of))) = (name, entry.of) {
                    let name = dwarf.attr_string(&unit, name).map_err(bad)?;
                    if left.variables.remove(name.slice()) {
                        self.variables.insert(name.to_string_lossy().into_owned(), global(of));
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

/// Reads one entry of a unit and its children.
struct Reader<'r, 'd> {
    file: &'d str,
    dwarf: &'r Dwarf<Slice<'d>>,
    unit: &'r Unit<'d>,
}

type Die<'d> = gimli::DebuggingInformationEntry<Slice<'d>>;

impl<'d> Reader<'_, 'd> {
    fn bad(&self, error: gimli::Error) -> KernelError {
        damaged(self.file, self.dwarf, error)
    }

    fn shape(&self, offset: UnitOffset) -> Result<Shape> {
        let mut tree = self.unit.entries_tree(Some(offset)).map_err(|e| self.bad(e))?;
        let root = tree.root().map_err(|e| self.bad(e))?;
        let entry = root.entry().clone();
        let name = self.name(&entry)?;
        let of = || self.reference(&entry, dw::DW_AT_type);
        let bytes = self.unsigned(&entry, dw::DW_AT_byte_size);
        let declared = entry.attr_value(dw::DW_AT_declaration).is_some();
        let mut children = Vec::new();
        let has_children = matches!(
            entry.tag(),
            dw::DW_TAG_array_type
                | dw::DW_TAG_structure_type
                | dw::DW_TAG_class_type
                | dw::DW_TAG_union_type
                | dw::DW_TAG_enumeration_type
                | dw::DW_TAG_subroutine_type
        );
        if has_children {
            let mut rest = root.children();
            while let Some(child) = rest.next().map_err(|e| self.bad(e))? {
                if children.len() == MAX_CHILDREN {
                    return Err(no_dwarf(self.file, format!("a type with more than {MAX_CHILDREN} members")));
                }
                children.push(child.entry().clone());
            }
        }
        Ok(match entry.tag() {
            dw::DW_TAG_base_type => Shape::Base { name: name.unwrap_or_default(), bytes: bytes.unwrap_or(0) },
            dw::DW_TAG_pointer_type | dw::DW_TAG_reference_type | dw::DW_TAG_rvalue_reference_type => {
                Shape::Pointer(of()?)
            }
            dw::DW_TAG_array_type => {
                let dimensions = children.iter().filter(|c| c.tag() == dw::DW_TAG_subrange_type);
                let lengths: Vec<Option<u64>> = dimensions.map(|d| self.dimension(d)).collect();
                let lengths = if lengths.is_empty() { vec![None] } else { lengths };
                Shape::Array { of: of()?, lengths }
            }
            dw::DW_TAG_typedef => Shape::Typedef { name: name.unwrap_or_default(), of: of()? },
            dw::DW_TAG_const_type => Shape::Qualified { keyword: "const", of: of()? },
            dw::DW_TAG_volatile_type => Shape::Qualified { keyword: "volatile", of: of()? },
            dw::DW_TAG_restrict_type => Shape::Qualified { keyword: "restrict", of: of()? },
            dw::DW_TAG_atomic_type => Shape::Qualified { keyword: "_Atomic", of: of()? },
            dw::DW_TAG_subroutine_type => {
                let mut takes = Vec::new();
                for child in children.iter().filter(|c| c.tag() == dw::DW_TAG_formal_parameter) {
                    takes.push(self.reference(child, dw::DW_AT_type)?);
                }
                let variadic = children.iter().any(|c| c.tag() == dw::DW_TAG_unspecified_parameters);
                Shape::Function { returns: of()?, takes, variadic }
            }
            tag => match (tag_of(tag), name) {
                (Some(tag), Some(name)) if declared => Shape::Declared { tag, name },
                (Some(Tag::Enum), name) => {
                    let mut values = Vec::new();
                    for child in children.iter().filter(|c| c.tag() == dw::DW_TAG_enumerator) {
                        let value = child.attr_value(dw::DW_AT_const_value).and_then(|v| constant(&v));
                        values.push((self.name(child)?.unwrap_or_default(), value.unwrap_or(0)));
                    }
                    Shape::Enum { name, bytes: bytes.unwrap_or(0), values }
                }
                (Some(tag), name) => {
                    let mut members = Vec::new();
                    for child in children.iter().filter(|c| c.tag() == dw::DW_TAG_member) {
                        members.push(self.field(child)?);
                    }
                    Shape::Compound(Compound { tag, name, bytes: bytes.unwrap_or(0), members })
                }
                (None, _) => Shape::Void,
            },
        })
    }

    /// Elements of a dimension: a count, or the highest index. GCC writes no bound, or one of all ones, for `[]`, and a count of 0 for `[0]`.
    fn dimension(&self, entry: &Die<'d>) -> Option<u64> {
        match self.unsigned(entry, dw::DW_AT_count) {
            None => {
                let upper = self.unsigned(entry, dw::DW_AT_upper_bound)?;
                (upper != u64::MAX && upper != u64::from(u32::MAX)).then(|| upper.wrapping_add(1))
            }
            count => count,
        }
    }

    fn field(&self, entry: &Die<'d>) -> Result<Field> {
        let of = self.reference(entry, dw::DW_AT_type)?;
        let bits = self.unsigned(entry, dw::DW_AT_bit_size);
        let start = self.location(entry).saturating_mul(8);
        let bit_offset = if let Some(at) = self.unsigned(entry, dw::DW_AT_data_bit_offset) {
            at
        } else if let Some(from_top) = self.unsigned(entry, dw::DW_AT_bit_offset) {
            // DWARF 2 and 3 count from the highest bit of the unit, whose size stands in the member or in its type.
            let unit = match self.unsigned(entry, dw::DW_AT_byte_size) {
                None => self.base_bytes(entry)?,
                bytes => bytes,
            };
            let above = from_top.saturating_add(bits.unwrap_or(0));
            start.saturating_add(unit.unwrap_or(4).saturating_mul(8).saturating_sub(above))
        } else {
            start
        };
        Ok(Field { name: self.name(entry)?, bit_offset, bits, of })
    }

    /// Size of the number type of a member, through typedefs in the same unit.
    fn base_bytes(&self, member: &Die<'d>) -> Result<Option<u64>> {
        let mut at = member.attr_value(dw::DW_AT_type);
        for _ in 0..MAX_TYPEDEFS {
            let Some(AttributeValue::UnitRef(to)) = at else { break };
            let entry = self.unit.entry(to).map_err(|e| self.bad(e))?;
            if let Some(bytes) = self.unsigned(&entry, dw::DW_AT_byte_size) {
                return Ok(Some(bytes));
            }
            at = entry.attr_value(dw::DW_AT_type);
        }
        Ok(None)
    }

    /// DW_AT_data_member_location in bytes: a constant, or in DWARF 2 an expression that adds one.
    fn location(&self, entry: &Die<'d>) -> u64 {
        match entry.attr_value(dw::DW_AT_data_member_location) {
            Some(AttributeValue::Exprloc(expression)) => match expression.operations(self.unit.encoding()).next() {
                Ok(Some(gimli::Operation::PlusConstant { value })) => value,
                _ => 0,
            },
            Some(value) => value.udata_value().unwrap_or(0),
            None => 0,
        }
    }

    fn unsigned(&self, entry: &Die<'d>, name: gimli::DwAt) -> Option<u64> {
        entry.attr_value(name)?.udata_value()
    }

    fn name(&self, entry: &Die<'d>) -> Result<Option<String>> {
        let Some(value) = entry.attr_value(dw::DW_AT_name) else { return Ok(None) };
        let name = self.dwarf.attr_string(self.unit, value).map_err(|e| self.bad(e))?;
        Ok(Some(name.to_string_lossy().into_owned()))
    }

    /// The type an attribute refers to; `void` where it is not there.
    fn reference(&self, entry: &Die<'d>, name: gimli::DwAt) -> Result<TypeRef> {
        let at = match entry.attr_value(name) {
            None => return Ok(TypeRef(0)),
            Some(AttributeValue::UnitRef(to)) => to.to_debug_info_offset(&self.unit.header).map(|at| at.0),
            Some(AttributeValue::DebugInfoRef(to)) => Some(to.0),
            Some(_) => None,
        };
        let unusable = || {
            no_dwarf(
                self.file,
                "a type in another file or in a type unit (-gdwarf with -fdebug-types-section, dwz)".to_owned(),
            )
        };
        at.map(|at| TypeRef(at as u64)).ok_or_else(unusable)
    }
}

/// Typedefs between a bit field and its number type.
const MAX_TYPEDEFS: usize = 16;
