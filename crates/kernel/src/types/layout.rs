//! A type laid out: its members with their places.

use super::{Compound, Field, MAX_DEPTH, MAX_HOPS, MAX_STEPS, Shape, TypeRef, TypeSource};
use crate::error::Result;

/// A type with its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// As C names it: `struct page`.
    pub name: String,
    /// Its size; `None` where it is not told.
    pub bytes: Option<u64>,
    /// What a typedef is a name for, as C: `struct { int counter; }` without its members.
    pub alias_of: Option<String>,
    /// The members of a struct or union.
    pub members: Vec<LayoutMember>,
    /// The enumerators of an enum.
    pub values: Vec<(String, i64)>,
}

/// A member with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutMember {
    /// `None` for an anonymous struct or union.
    pub name: Option<String>,
    /// Its type as C, without its name: `struct list_head *`. `struct {...}` where it has no name.
    pub type_name: String,
    /// Its declaration as C.
    pub declaration: String,
    /// From the start of the outermost struct, in bytes; of a bit field that of the unit it is in.
    pub offset: u64,
    /// Of a bit field: the first bit in its unit, and the width.
    pub bits: Option<(u64, u64)>,
    /// Its size, where told; of a bit field that of its unit.
    pub bytes: Option<u64>,
    /// The members of a type without a name.
    pub members: Vec<LayoutMember>,
}

impl dyn TypeSource + '_ {
    /// Lays out `of`; a struct, union or enum that it is a name for, as well.
    ///
    /// # Errors
    /// As [`TypeSource::shape`].
    pub fn layout(&mut self, of: TypeRef) -> Result<Layout> {
        let mut layout = Layout {
            name: self.declare(of, String::new())?,
            bytes: self.size(of)?,
            alias_of: None,
            members: Vec::new(),
            values: Vec::new(),
        };
        let mut steps = MAX_STEPS;
        let mut at = of;
        for _ in 0..MAX_HOPS {
            at = match self.shape(at)? {
                Shape::Typedef { of, .. } => {
                    if layout.alias_of.is_none() {
                        layout.alias_of = Some(self.declare(of, String::new())?);
                    }
                    of
                }
                Shape::Qualified { of, .. } => of,
                Shape::Compound(compound) => {
                    layout.members = self.place(&compound, 0, MAX_DEPTH, &mut steps)?;
                    break;
                }
                Shape::Enum { values, .. } => {
                    layout.values = values;
                    break;
                }
                _ => break,
            };
        }
        Ok(layout)
    }

    /// The member at `path`, laid out: see `member`.
    ///
    /// # Errors
    /// As [`TypeSource::shape`].
    pub fn member_layout(&mut self, of: TypeRef, path: &str) -> Result<Option<LayoutMember>> {
        let Some(found) = self.member(of, path)? else { return Ok(None) };
        let name = path.rsplit('.').next().map(str::to_owned);
        let field = Field { name, bit_offset: found.bit_offset, bits: found.bits, of: found.of };
        self.place_one(&field, 0, MAX_DEPTH, &mut MAX_STEPS.clone()).map(Some)
    }

    fn place(&mut self, outer: &Compound, base: u64, depth: usize, steps: &mut usize) -> Result<Vec<LayoutMember>> {
        let Some(depth) = depth.checked_sub(1) else { return Ok(Vec::new()) };
        let mut members = Vec::new();
        for field in &outer.members {
            let Some(left) = steps.checked_sub(1) else { break };
            *steps = left;
            members.push(self.place_one(field, base, depth, steps)?);
        }
        Ok(members)
    }

    fn place_one(&mut self, field: &Field, base: u64, depth: usize, steps: &mut usize) -> Result<LayoutMember> {
        let bit_offset = base.saturating_add(field.bit_offset);
        let bytes = self.size(field.of)?;
        let (offset, bits) = match (field.bits, bytes) {
            (Some(width), Some(unit)) if unit > 0 => {
                let offset = bit_offset / 8 / unit * unit;
                (offset, Some((bit_offset - offset * 8, width)))
            }
            (width, _) => (bit_offset / 8, width.map(|width| (bit_offset % 8, width))),
        };
        let members = match self.anonymous(field.of)? {
            Some(inner) => self.place(&inner, bit_offset, depth, steps)?,
            None => Vec::new(),
        };
        let mut declaration = self.declare(field.of, field.name.clone().unwrap_or_default())?;
        if let Some(width) = field.bits {
            declaration.push_str(&format!(":{width}"));
        }
        let type_name = self.declare(field.of, String::new())?;
        Ok(LayoutMember { name: field.name.clone(), type_name, declaration, offset, bits, bytes, members })
    }

    /// The struct or union without a name that `of` is, or is an array of.
    fn anonymous(&mut self, of: TypeRef) -> Result<Option<Compound>> {
        let mut at = of;
        for _ in 0..MAX_HOPS {
            at = match self.shape(at)? {
                Shape::Compound(compound) => return Ok(Some(compound).filter(|c| c.name.is_none())),
                Shape::Array { of, .. } | Shape::Qualified { of, .. } => of,
                _ => break,
            };
        }
        Ok(None)
    }
}
