//! The kernel's types whatever they are read from: BTF in the dump, or the DWARF of a vmlinux.
//!
//! ```text
//! TypeSource: name ─find─> TypeRef ─shape─> Shape, whose parts are TypeRefs again
//!     ─ size, member, array_length ─> what VMCOREINFO calls SIZE, OFFSET, LENGTH
//!     ─ layout ─> members with offsets, as C
//! ```

use crate::error::Result;

mod declare;
mod layout;

pub use layout::{Layout, LayoutMember};

/// Steps from a type to what it stands for (typedef, const, array): the kernel's own readers stop at 32.
const MAX_HOPS: usize = 64;
/// Anonymous structs inside each other; real ones reach 5.
pub(crate) const MAX_DEPTH: usize = 32;
/// Members and types looked at for one question, so that anonymous members that share a type cannot make the descent exponential.
pub(crate) const MAX_STEPS: usize = 1 << 16;

/// A type, by a number that means something to its source only; 0 is `void` in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeRef(pub u64);

/// C keeps the names of structs, unions and enums apart from those of typedefs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// `struct NAME`.
    Struct,
    /// `union NAME`.
    Union,
    /// A typedef.
    Typedef,
    /// `enum NAME`.
    Enum,
}

impl Tag {
    /// All, in the order in which a bare name is looked for.
    pub const ALL: [Self; 4] = [Self::Struct, Self::Union, Self::Typedef, Self::Enum];

    /// The keyword in front of its names.
    #[must_use]
    pub const fn keyword(self) -> Option<&'static str> {
        match self {
            Self::Struct => Some("struct"),
            Self::Union => Some("union"),
            Self::Enum => Some("enum"),
            Self::Typedef => None,
        }
    }
}

/// Something a source of types can be asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ask<'n> {
    /// A complete type.
    Type(Tag, &'n str),
    /// The value of an enumerator.
    Enumerator(&'n str),
    /// The type of a variable.
    Variable(&'n str),
}

/// What a type is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `void`, or a type that C has no name for.
    Void,
    /// A number.
    Base {
        /// As the compiler names it: `unsigned int`.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// A pointer.
    Pointer(TypeRef),
    /// An array.
    Array {
        /// Of what.
        of: TypeRef,
        /// Elements in each dimension, the outermost first; `None` where they are not told, as of `char data[]`.
        lengths: Vec<Option<u64>>,
    },
    /// A struct or union.
    Compound(Compound),
    /// An enum.
    Enum {
        /// Its name.
        name: Option<String>,
        /// Its size.
        bytes: u64,
        /// Enumerators and their values.
        values: Vec<(String, i64)>,
    },
    /// A struct, union or enum that is declared only.
    Declared {
        /// Which of them.
        tag: Tag,
        /// Its name.
        name: String,
    },
    /// A typedef.
    Typedef {
        /// Its name.
        name: String,
        /// For what.
        of: TypeRef,
    },
    /// `const` and the like.
    Qualified {
        /// The keyword; empty for what C has no keyword for.
        keyword: &'static str,
        /// What is qualified.
        of: TypeRef,
    },
    /// A function.
    Function {
        /// What it returns.
        returns: TypeRef,
        /// What it takes.
        takes: Vec<TypeRef>,
        /// Whether more can follow.
        variadic: bool,
    },
}

/// A struct or union.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compound {
    /// [`Tag::Struct`] or [`Tag::Union`].
    pub tag: Tag,
    /// Its name.
    pub name: Option<String>,
    /// Its size.
    pub bytes: u64,
    /// Its members.
    pub members: Vec<Field>,
}

/// A member as its struct has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// `None` for an anonymous struct or union, and for padding.
    pub name: Option<String>,
    /// From the start of the struct, in bits.
    pub bit_offset: u64,
    /// Width in bits, for a bit field.
    pub bits: Option<u64>,
    /// Its type.
    pub of: TypeRef,
}

/// A member found by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// From the start of the outermost struct, in bits.
    pub bit_offset: u64,
    /// Width in bits, for a bit field.
    pub bits: Option<u64>,
    /// Its type.
    pub of: TypeRef,
}

/// Where types come from.
pub trait TypeSource {
    /// Looks for all of `asked` at once where looking takes a pass over everything. Not needed; what was not asked for here is looked
    /// for when it is asked for.
    ///
    /// # Errors
    /// The source cannot be read.
    fn prepare(&mut self, asked: &[Ask<'_>]) -> Result<()>;

    /// The first complete type of that name.
    ///
    /// # Errors
    /// The source cannot be read.
    fn find(&mut self, tag: Tag, name: &str) -> Result<Option<TypeRef>>;

    /// The value of the first enumerator of that name, whatever enum it belongs to.
    ///
    /// # Errors
    /// The source cannot be read.
    fn enumerator(&mut self, name: &str) -> Result<Option<i64>>;

    /// The type of the variable of that name, where the source knows variables.
    ///
    /// # Errors
    /// The source cannot be read.
    fn variable(&mut self, name: &str) -> Result<Option<TypeRef>>;

    /// What a type is.
    ///
    /// # Errors
    /// There is no such type, or its description is damaged.
    fn shape(&mut self, of: TypeRef) -> Result<Shape>;
}

impl dyn TypeSource + '_ {
    /// The type called `name`: `struct page`, or `page` for the first there is of a struct, union, typedef and enum.
    ///
    /// # Errors
    /// The source cannot be read.
    pub fn named(&mut self, name: &str) -> Result<Option<TypeRef>> {
        let (tags, name) = parse_name(name);
        let asked: Vec<Ask<'_>> = tags.iter().map(|tag| Ask::Type(*tag, name)).collect();
        self.prepare(&asked)?;
        for tag in tags {
            if let Some(found) = self.find(*tag, name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Size of a type in bytes; `None` for `void`, functions and types only declared.
    ///
    /// # Errors
    /// As [`TypeSource::shape`].
    pub fn size(&mut self, of: TypeRef) -> Result<Option<u64>> {
        let (mut at, mut times) = (of, 1u64);
        for _ in 0..MAX_HOPS {
            let bytes = match self.shape(at)? {
                Shape::Base { bytes, .. } | Shape::Enum { bytes, .. } => bytes,
                Shape::Compound(compound) => compound.bytes,
                Shape::Pointer(_) => POINTER_BYTES,
                Shape::Array { of, lengths } => {
                    // An array whose length is not told takes no room in its struct.
                    let count = lengths.iter().try_fold(1u64, |all, n| all.checked_mul(n.unwrap_or(0)));
                    let Some(all) = count.and_then(|count| times.checked_mul(count)) else { return Ok(None) };
                    times = all;
                    at = of;
                    continue;
                }
                Shape::Typedef { of, .. } | Shape::Qualified { of, .. } => {
                    at = of;
                    continue;
                }
                Shape::Void | Shape::Declared { .. } | Shape::Function { .. } => return Ok(None),
            };
            return Ok(times.checked_mul(bytes));
        }
        Ok(None)
    }

    /// The member of `of` at `path`, whose parts are separated by dots. Members of anonymous structs and unions belong to the struct around
    /// them; a part that is an array stands for its first element; pointers are not followed.
    ///
    /// # Errors
    /// As [`TypeSource::shape`].
    pub fn member(&mut self, of: TypeRef, path: &str) -> Result<Option<Member>> {
        let mut at = Member { bit_offset: 0, bits: None, of };
        let mut steps = MAX_STEPS;
        for part in path.split('.') {
            let Some(outer) = self.compound(at.of)? else { return Ok(None) };
            let Some(found) = self.descend(&outer, part, MAX_DEPTH, &mut steps)? else { return Ok(None) };
            at = Member { bit_offset: at.bit_offset.saturating_add(found.bit_offset), ..found };
        }
        Ok(Some(at))
    }

    /// The offset in bytes of the member at `path` of `struct name` (else of the typedef): as `OFFSET(name.path)` in VMCOREINFO. `None` too
    /// for a bit field, which may begin inside a byte.
    ///
    /// # Errors
    /// As [`TypeSource::shape`].
    pub fn offset_of(&mut self, name: &str, path: &str) -> Result<Option<u64>> {
        let Some(of) = self.struct_or_typedef(name)? else { return Ok(None) };
        let found = self.member(of, path)?;
        Ok(found.filter(|m| m.bits.is_none() && m.bit_offset.is_multiple_of(8)).map(|m| m.bit_offset / 8))
    }

    /// The size of `struct name`, else of the typedef: as `SIZE(name)` in VMCOREINFO.
    ///
    /// # Errors
    /// As [`TypeSource::shape`].
    pub fn size_of(&mut self, name: &str) -> Result<Option<u64>> {
        match self.struct_or_typedef(name)? {
            Some(of) => self.size(of),
            None => Ok(None),
        }
    }

    fn struct_or_typedef(&mut self, name: &str) -> Result<Option<TypeRef>> {
        match self.find(Tag::Struct, name)? {
            None => self.find(Tag::Typedef, name),
            found => Ok(found),
        }
    }

    /// The lengths of an array, through typedefs; `None` for what is no array.
    ///
    /// # Errors
    /// As [`TypeSource::shape`].
    pub fn array_lengths(&mut self, of: TypeRef) -> Result<Option<Vec<Option<u64>>>> {
        let mut at = of;
        for _ in 0..MAX_HOPS {
            at = match self.shape(at)? {
                Shape::Array { lengths, .. } => return Ok(Some(lengths)),
                Shape::Typedef { of, .. } | Shape::Qualified { of, .. } => of,
                _ => return Ok(None),
            };
        }
        Ok(None)
    }

    /// The struct or union that `of` is, is a name for, or is an array of.
    fn compound(&mut self, of: TypeRef) -> Result<Option<Compound>> {
        let mut at = of;
        for _ in 0..MAX_HOPS {
            at = match self.shape(at)? {
                Shape::Compound(compound) => return Ok(Some(compound)),
                Shape::Array { of, .. } | Shape::Typedef { of, .. } | Shape::Qualified { of, .. } => of,
                _ => return Ok(None),
            };
        }
        Ok(None)
    }

    fn descend(&mut self, outer: &Compound, name: &str, depth: usize, steps: &mut usize) -> Result<Option<Member>> {
        let Some(depth) = depth.checked_sub(1) else { return Ok(None) };
        for field in &outer.members {
            let Some(left) = steps.checked_sub(1) else { return Ok(None) };
            *steps = left;
            match &field.name {
                Some(have) if have == name => {
                    return Ok(Some(Member { bit_offset: field.bit_offset, bits: field.bits, of: field.of }));
                }
                Some(_) => {}
                None => {
                    let Some(inner) = self.compound(field.of)? else { continue };
                    if let Some(found) = self.descend(&inner, name, depth, steps)? {
                        let bit_offset = field.bit_offset.saturating_add(found.bit_offset);
                        return Ok(Some(Member { bit_offset, ..found }));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// All pointers that are met: 32-bit kernels are not read yet.
const POINTER_BYTES: u64 = 8;

/// What a name as people write it can mean, and the bare name.
fn parse_name(text: &str) -> (&'static [Tag], &str) {
    const ONE: [(&str, &[Tag]); 3] = [("struct ", &[Tag::Struct]), ("union ", &[Tag::Union]), ("enum ", &[Tag::Enum])];
    let with_keyword = ONE.iter().find_map(|(keyword, tag)| Some((*tag, text.strip_prefix(keyword)?.trim())));
    with_keyword.unwrap_or((&Tag::ALL, text.trim()))
}
