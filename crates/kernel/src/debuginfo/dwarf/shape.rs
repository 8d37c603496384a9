//! What a type is: one entry of a unit and its children.

use super::{Slice, Unit, constant, damaged, no_dwarf, tag_of};
use crate::error::{KernelError, Result};
use crate::types::{Compound, Field, Shape, Tag, TypeRef};
use gimli::{AttributeValue, Dwarf, UnitOffset, constants as dw};

/// Members, enumerators, parameters and dimensions of one type; real ones have a few hundred, enums a few thousand.
const MAX_CHILDREN: usize = 1 << 16;
/// Typedefs between a bit field and its number type.
const MAX_TYPEDEFS: usize = 16;

/// Reads one entry of a unit and its children.
pub(super) struct Reader<'r, 'd> {
    pub(super) file: &'d str,
    pub(super) dwarf: &'r Dwarf<Slice<'d>>,
    pub(super) unit: &'r Unit<'d>,
}

type Die<'d> = gimli::DebuggingInformationEntry<Slice<'d>>;

impl<'d> Reader<'_, 'd> {
    fn bad(&self, error: gimli::Error) -> KernelError {
        damaged(self.file, self.dwarf, error)
    }

    pub(super) fn shape(&self, offset: UnitOffset) -> Result<Shape> {
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
