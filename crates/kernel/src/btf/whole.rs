//! BTF read as a whole, for any question about any type: that of the kernel, and that of a module, which goes on where the kernel's ends.
//!
//! A dump needs a few facts and has [`super::Btf`] for that; this is for people who ask.

use super::{HEADER, HEADER_WITH_LAYOUT, KINDS, Kind, MAGIC, MAX_BYTES};
use crate::error::{KernelError, Result};
use crate::types::{Ask, Compound, Field, Shape, Tag, TypeRef, TypeSource};
use crate::virt::{VirtAddr, VirtualMemory};
use std::rc::Rc;

/// All types of a kernel or of a module.
#[derive(Debug)]
pub struct BtfTypes {
    bytes: Vec<u8>,
    /// Where the strings are.
    strings: (usize, usize),
    /// Where each type begins; the first is the first that the base does not have.
    types: Vec<u32>,
    /// Bytes that kinds beyond the known ones add, and of their elements.
    more_kinds: Vec<(usize, usize)>,
    /// The kernel's types, for a module's.
    base: Option<Rc<Self>>,
    /// Why the types from some number on could not be read, if so.
    problem: Option<KernelError>,
}

/// The common part of a type, and where it is.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: Kind,
    number: usize,
    len: usize,
    flag: bool,
    size_or_type: u32,
    /// What the kind adds.
    rest: usize,
    elements: usize,
    element: usize,
    end: usize,
}

impl BtfTypes {
    /// Reads `len` bytes of BTF at `start`. A module's goes on from `base`.
    ///
    /// # Errors
    /// It is no BTF, or not in the dump.
    pub fn read(mem: &mut dyn VirtualMemory, start: VirtAddr, len: u64, base: Option<Rc<Self>>) -> Result<Self> {
        if !(HEADER..=MAX_BYTES).contains(&len) {
            let hint = ", for BTF has 24 bytes to 64 MiB";
            return Err(KernelError::Implausible { what: "the length of BTF", addr: start, value: len, hint });
        }
        let mut bytes = vec![0; len as usize];
        mem.read_virt(start, &mut bytes)?;
        Self::parse(bytes, base)
    }

    /// The BTF in `bytes`.
    ///
    /// # Errors
    /// It is no BTF.
    pub fn parse(bytes: Vec<u8>, base: Option<Rc<Self>>) -> Result<Self> {
        let bad = |what, offset| KernelError::Btf { what, offset };
        if bytes.first_chunk().map(|b| u16::from_le_bytes(*b)) != Some(MAGIC) {
            return Err(bad("no magic number", 0));
        }
        if bytes.get(2) != Some(&1) {
            return Err(bad("an unknown version", 2));
        }
        let mut all = Self { bytes, strings: (0, 0), types: Vec::new(), more_kinds: Vec::new(), base, problem: None };
        let field = |at: usize| all.word(at).map(u64::from).ok_or_else(|| bad("a header cut off", at as u64));
        let header = field(4)?;
        // Sums of numbers of 32 bits.
        let section = |at: usize| -> Result<(usize, usize)> {
            let first = header + field(at)?;
            let end = first + field(at + 4)?;
            let fits = end <= all.bytes.len() as u64;
            if fits { Ok((first as usize, end as usize)) } else { Err(bad("a section beyond the end", at as u64)) }
        };
        let (types, strings) = (section(8)?, section(16)?);
        let layout = if header >= HEADER_WITH_LAYOUT { section(24)? } else { (0, 0) };
        all.strings = strings;
        let rows = all.bytes.get(layout.0..layout.1).unwrap_or_default().as_chunks::<4>().0;
        let row = |[add, element, _, _]: &[u8; 4]| (usize::from(*add), usize::from(*element));
        all.more_kinds = rows.iter().take(128).skip(KINDS.len()).map(row).collect();
        let mut at = types.0;
        while at < types.1 {
            match all.type_at(at, types.1) {
                Ok(this) => {
                    all.types.push(at as u32);
                    at = this.end;
                }
                Err(problem) => {
                    all.problem = Some(problem);
                    break;
                }
            }
        }
        Ok(all)
    }

    /// Why the types from some number on could not be read, if so.
    #[must_use]
    pub fn problem(&self) -> Option<&KernelError> {
        self.problem.as_ref()
    }

    fn word(&self, at: usize) -> Option<u32> {
        self.bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
    }

    /// The number of the first type that is not of the base; `void` is 0.
    fn first(&self) -> usize {
        self.base.as_ref().map_or(1, |base| base.first() + base.types.len())
    }

    /// Bytes of all strings of the base.
    fn base_strings(&self) -> usize {
        self.base.as_ref().map_or(0, |base| base.base_strings() + base.strings.1 - base.strings.0)
    }

    fn string(&self, offset: u32) -> &[u8] {
        let offset = offset as usize;
        let before = self.base_strings();
        match &self.base {
            Some(base) if offset < before => base.string(offset as u32),
            _ => {
                let (start, end) = self.strings;
                let from = start.saturating_add(offset - before);
                let rest = self.bytes.get(from..end).unwrap_or_default();
                rest.split(|b| *b == 0).next().unwrap_or_default()
            }
        }
    }

    fn text(&self, offset: u32) -> Option<String> {
        (offset != 0).then(|| String::from_utf8_lossy(self.string(offset)).into_owned())
    }

    fn type_at(&self, at: usize, limit: usize) -> Result<Type> {
        let bad = |what| KernelError::Btf { what, offset: at as u64 };
        let words = (self.word(at), self.word(at + 4), self.word(at + 8));
        let (Some(name), Some(info), Some(size_or_type)) = words else { return Err(bad("a type cut off")) };
        let (number, len) = ((info >> 24 & 0x7f) as usize, (info & 0xff_ffff) as usize);
        let (kind, add, element) = match KINDS.get(number) {
            Some((kind, add, element)) if number != 0 => (*kind, *add as usize, *element as usize),
            _ => {
                let more = number.checked_sub(KINDS.len()).and_then(|i| self.more_kinds.get(i));
                let (add, element) = more.copied().ok_or_else(|| bad("a type of unknown kind"))?;
                (Kind::Other, add, element)
            }
        };
        let rest = at + 12;
        // Far from overflow: 24 bits times 255.
        let end = rest + add + len * element;
        if end > limit {
            return Err(bad("a type cut off"));
        }
        Ok(Type {
            name,
            kind,
            number,
            len,
            flag: info >> 31 == 1,
            size_or_type,
            rest,
            elements: rest + add,
            element,
            end,
        })
    }

    /// The type of that number, and whose it is.
    fn get(&self, of: TypeRef) -> Result<(&Self, Type)> {
        let absent = || KernelError::Btf { what: "a reference to a type that is not there", offset: of.0 };
        let number = usize::try_from(of.0).map_err(|_| absent())?;
        let first = self.first();
        match &self.base {
            Some(base) if number < first => base.get(of),
            _ => {
                let index = number.checked_sub(first).ok_or_else(absent)?;
                let at = *self.types.get(index).ok_or_else(absent)?;
                Ok((self, self.type_at(at as usize, self.bytes.len())?))
            }
        }
    }

    fn own(&self) -> impl Iterator<Item = (TypeRef, Type)> + '_ {
        let numbers = self.first()..;
        let types = self.types.iter().filter_map(|at| self.type_at(*at as usize, self.bytes.len()).ok());
        numbers.zip(types).map(|(number, this)| (TypeRef(number as u64), this))
    }

    pub(crate) fn find_type(&self, tag: Tag, name: &str) -> Option<TypeRef> {
        let kind = match tag {
            Tag::Struct => [Kind::Struct, Kind::Struct],
            Tag::Union => [Kind::Union, Kind::Union],
            Tag::Typedef => [Kind::Typedef, Kind::Typedef],
            Tag::Enum => [Kind::Enum, Kind::Enum64],
        };
        let mut own = self.own();
        let found = own.find(|(_, this)| kind.contains(&this.kind) && self.string(this.name) == name.as_bytes());
        match (found, &self.base) {
            (Some((of, _)), _) => Some(of),
            (None, Some(base)) => base.find_type(tag, name),
            (None, None) => None,
        }
    }

    pub(crate) fn find_enumerator(&self, name: &str) -> Option<i64> {
        let enums = self.own().filter(|(_, this)| matches!(this.kind, Kind::Enum | Kind::Enum64));
        let mut all = enums.flat_map(|(_, this)| self.values(this));
        all.find(|(have, _)| have == name)
            .map(|(_, value)| value)
            .or_else(|| self.base.as_ref().and_then(|base| base.find_enumerator(name)))
    }

    fn words(&self, this: Type) -> impl Iterator<Item = [u32; 3]> + '_ {
        (0..this.len).map(move |i| {
            let at = this.elements + i * this.element;
            // Elements have 8 or 12 bytes; the third word is not looked at where there are 8.
            [at, at + 4, at + 8].map(|at| self.word(at).unwrap_or(0))
        })
    }

    fn values(&self, this: Type) -> Vec<(String, i64)> {
        let value = |[name, low, high]: [u32; 3]| {
            let value = match this.kind {
                Kind::Enum64 => (u64::from(high) << 32 | u64::from(low)).cast_signed(),
                // Before Linux 6.0 without the flag both readings are possible; this one keeps negative values.
                _ => i64::from(low.cast_signed()),
            };
            (self.text(name).unwrap_or_default(), value)
        };
        self.words(this).map(value).collect()
    }
}

impl TypeSource for BtfTypes {
    fn prepare(&mut self, _asked: &[Ask<'_>]) -> Result<()> {
        Ok(())
    }

    fn find(&mut self, tag: Tag, name: &str) -> Result<Option<TypeRef>> {
        Ok(self.find_type(tag, name))
    }

    fn enumerator(&mut self, name: &str) -> Result<Option<i64>> {
        Ok(self.find_enumerator(name))
    }

    fn variable(&mut self, name: &str) -> Result<Option<TypeRef>> {
        let mut own = self.own();
        let found = own.find(|(_, this)| this.kind == Kind::Variable && self.string(this.name) == name.as_bytes());
        Ok(found.map(|(_, this)| TypeRef(this.size_or_type.into())))
    }

    fn shape(&mut self, of: TypeRef) -> Result<Shape> {
        self.shape_of(of)
    }
}

impl BtfTypes {
    /// As [`TypeSource::shape`].
    pub(crate) fn shape_of(&self, of: TypeRef) -> Result<Shape> {
        if of.0 == 0 {
            return Ok(Shape::Void);
        }
        let (owner, this) = self.get(of)?;
        let name = owner.text(this.name);
        let to = TypeRef(this.size_or_type.into());
        let bytes = u64::from(this.size_or_type);
        Ok(match this.kind {
            Kind::Int | Kind::Float => Shape::Base { name: name.unwrap_or_default(), bytes },
            Kind::Pointer => Shape::Pointer(to),
            Kind::Array => {
                let element = owner.word(this.rest).unwrap_or(0);
                let count = owner.word(this.rest + 8).unwrap_or(0);
                // Multi-dimensional arrays are arrays of arrays; BTF does not tell `[]` from `[0]`.
                Shape::Array { of: TypeRef(element.into()), lengths: vec![Some(count.into())] }
            }
            Kind::Struct | Kind::Union => {
                let tag = if this.kind == Kind::Struct { Tag::Struct } else { Tag::Union };
                let member = |[name, of, offset]: [u32; 3]| {
                    let (bit_offset, width) = if this.flag { (offset & 0xff_ffff, offset >> 24) } else { (offset, 0) };
                    Field {
                        name: owner.text(name),
                        bit_offset: bit_offset.into(),
                        bits: (width != 0).then_some(width.into()),
                        of: TypeRef(of.into()),
                    }
                };
                Shape::Compound(Compound { tag, name, bytes, members: owner.words(this).map(member).collect() })
            }
            Kind::Enum | Kind::Enum64 if this.len == 0 => {
                Shape::Declared { tag: Tag::Enum, name: name.unwrap_or_default() }
            }
            Kind::Enum | Kind::Enum64 => Shape::Enum { name, bytes, values: owner.values(this) },
            Kind::Forward => {
                let tag = if this.flag { Tag::Union } else { Tag::Struct };
                Shape::Declared { tag, name: name.unwrap_or_default() }
            }
            Kind::Typedef => Shape::Typedef { name: name.unwrap_or_default(), of: to },
            Kind::Qualifier => {
                let keyword = QUALIFIERS.iter().find(|(number, _)| *number == this.number).map_or("", |row| row.1);
                Shape::Qualified { keyword, of: to }
            }
            Kind::Function | Kind::Variable => Shape::Qualified { keyword: "", of: to },
            Kind::Other if this.number == PROTOTYPE => {
                let all: Vec<[u32; 3]> = owner.words(this).collect();
                let variadic = all.last().is_some_and(|[name, of, _]| (*name, *of) == (0, 0));
                let count = all.len() - usize::from(variadic);
                let takes = all.iter().take(count).map(|[_, of, _]| TypeRef((*of).into())).collect();
                Shape::Function { returns: to, takes, variadic }
            }
            Kind::Section | Kind::Other => Shape::Void,
        })
    }
}

/// Numbers of the kinds that C has keywords for; the tags that are qualifiers too have none.
const QUALIFIERS: [(usize, &str); 3] = [(9, "volatile"), (10, "const"), (11, "restrict")];
/// BTF_KIND_FUNC_PROTO.
const PROTOTYPE: usize = 13;
