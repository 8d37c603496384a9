//! Types out of the crashed kernel's own memory: BTF (include/uapi/linux/btf.h, Documentation/bpf/btf.rst).
//!
//! ```text
//! header    magic, lengths, where the sections are, counted from its end
//! types     one after another, numbered from 1: name, kind and number of elements, size or type; what the kind adds; elements
//! strings   texts, each ended by a NUL, named by their offset
//! layout    since Linux 7.2, optional: what each kind adds and the size of its elements, so that kinds to come can be passed over
//! ```
//!
//! One pass checks the types and notes where every 64th begins; nothing is stored for a type (100,000 of them in 5 MB).

use crate::error::{KernelError, Result};
use crate::kallsyms::Kallsyms;
use crate::virt::{VirtAddr, VirtualMemory};

#[cfg(test)]
mod tests;

const MAGIC: u16 = 0xeb9f;
/// Distribution kernels have 3 to 5 MiB.
const MAX_BYTES: u64 = 64 << 20;
/// The header without and with the layout section.
const HEADER: usize = 24;
const HEADER_WITH_LAYOUT: usize = 32;
/// Types between two that are found without passing over others.
const STRIDE: usize = 64;
/// Steps from a type to what it stands for (typedef, const, array): the kernel itself stops at 32.
const MAX_HOPS: usize = 64;
/// Anonymous structs inside each other; real ones reach 5.
const MAX_DEPTH: usize = 32;
/// Members looked at for one path, so that anonymous members that share a type cannot make the descent exponential. A struct has at
/// most a few hundred.
const MAX_MEMBERS: usize = 1 << 16;
const POINTER_BYTES: u64 = 8;

/// What a type is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Int,
    Pointer,
    Array,
    Struct,
    Union,
    Enum,
    Forward,
    Typedef,
    /// const, volatile, restrict, a tag on a type: stands for another type.
    Qualifier,
    Function,
    Variable,
    Section,
    Float,
    Enum64,
    /// Of no use here, passed over.
    Other,
}

/// A row for each kind, by its number: what it is, the bytes it adds behind the common 12, the bytes of each of its elements.
const KINDS: [(Kind, usize, usize); 23] = [
    (Kind::Other, 0, 0),
    (Kind::Int, 4, 0),
    (Kind::Pointer, 0, 0),
    (Kind::Array, 12, 0),
    (Kind::Struct, 0, 12),
    (Kind::Union, 0, 12),
    (Kind::Enum, 0, 8),
    (Kind::Forward, 0, 0),
    (Kind::Typedef, 0, 0),
    (Kind::Qualifier, 0, 0), // volatile
    (Kind::Qualifier, 0, 0), // const
    (Kind::Qualifier, 0, 0), // restrict
    (Kind::Function, 0, 0),
    (Kind::Other, 0, 8), // function prototype
    (Kind::Variable, 4, 0),
    (Kind::Section, 0, 12),
    (Kind::Float, 0, 0),
    (Kind::Other, 4, 0),     // declaration tag
    (Kind::Qualifier, 0, 0), // type tag
    (Kind::Enum64, 0, 12),
    (Kind::Other, 4, 4),  // location parameter
    (Kind::Other, 0, 4),  // location prototype
    (Kind::Other, 0, 12), // location section
];

/// A type, by its number. 0 is `void`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeId(u32);

/// The names that can be asked for: C keeps those of structs, unions and enums apart from those of typedefs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TypeName<'a> {
    /// `struct NAME`
    Struct(&'a str),
    /// `union NAME`
    Union(&'a str),
    /// `enum NAME`
    Enum(&'a str),
    /// `typedef … NAME`
    Typedef(&'a str),
}

/// A member of a struct or union, found by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// From the start of the outermost struct, in bits.
    pub bit_offset: u64,
    /// Width in bits, for a bit field.
    pub bits: Option<u32>,
    /// Its type.
    pub type_id: TypeId,
}

impl Member {
    /// From the start of the outermost struct, in bytes; `None` for a bit field, which may begin inside a byte.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        (self.bits.is_none() && self.bit_offset.is_multiple_of(8)).then_some(self.bit_offset / 8)
    }
}

/// The types of the crashed kernel.
#[derive(Clone, Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    /// Where the types begin in `bytes`, and where those that are understood end.
    types: (usize, usize),
    strings: (usize, usize),
    /// Bytes that kinds beyond [`KINDS`] add, and of their elements.
    more_kinds: Vec<(usize, usize)>,
    /// Where types 1, 65, 129 … begin.
    checkpoints: Vec<u32>,
    count: u32,
    problem: Option<KernelError>,
}

/// The common part of a type.
#[derive(Clone, Copy, Debug)]
struct Type {
    id: TypeId,
    name: u32,
    kind: Kind,
    /// Number of elements.
    len: usize,
    /// Members' offsets hold the width of bit fields too; values of an enum are signed.
    flag: bool,
    size_or_type: u32,
    /// Where what follows the common part begins.
    rest: usize,
    /// Bytes of an element.
    element: usize,
    /// Where the next type begins.
    end: usize,
}

impl Btf {
    /// Reads the types of the running kernel, which stand between its symbols `__start_BTF` and `__stop_BTF`.
    ///
    /// # Errors
    /// The kernel was built without BTF, or its memory is not in the dump or damaged.
    pub fn open(symbols: &Kallsyms, mem: &mut dyn VirtualMemory) -> Result<Self> {
        let found = symbols.lookup(mem, &["__start_BTF", "__stop_BTF"])?;
        let at = |name: &str| {
            let missing =
                || KernelError::MissingKey { key: name.to_owned(), purpose: "reading the kernel's own types" };
            found.get(name).map(|symbol| symbol.address).ok_or_else(missing)
        };
        Self::read(mem, at("__start_BTF")?, at("__stop_BTF")?)
    }

    /// Reads the types between two addresses.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn read(mem: &mut dyn VirtualMemory, start: VirtAddr, stop: VirtAddr) -> Result<Self> {
        let len = stop.0.wrapping_sub(start.0);
        if !(HEADER as u64..=MAX_BYTES).contains(&len) {
            let hint = ", for BTF has 24 bytes to 64 MiB";
            return Err(KernelError::Implausible { what: "the length of BTF", addr: start, value: len, hint });
        }
        // Memory follows what the dump can give, not what it says.
        let mut bytes = Vec::new();
        while bytes.len() as u64 != len {
            let have = bytes.len();
            bytes.resize((have + (256 << 10)).min(len as usize), 0);
            mem.read_virt(start.plus(have as u64), bytes.split_at_mut(have).1)?;
        }
        Self::parse(bytes)
    }

    /// The types in `bytes`, little endian. Where a type is damaged or of an unknown kind, those before it are kept: see
    /// [`Self::problem`].
    ///
    /// # Errors
    /// The header is none, or its sections are not inside `bytes`.
    pub fn parse(bytes: Vec<u8>) -> Result<Self> {
        let bad = |what, offset: usize| KernelError::Btf { what, offset: offset as u64 };
        match bytes.first_chunk().map(|b| u16::from_le_bytes(*b)) {
            Some(MAGIC) => {}
            Some(m) if m == MAGIC.swap_bytes() => return Err(bad("big-endian data, which is not supported yet,", 0)),
            _ => return Err(bad("no magic number", 0)),
        }
        if bytes.len() as u64 > MAX_BYTES {
            return Err(bad("more than 64 MiB", bytes.len()));
        }
        if bytes.get(2) != Some(&1) {
            return Err(bad("an unknown version", 2));
        }
        let field = |at| word(&bytes, at).map(|n| n as usize).ok_or_else(|| bad("the header is cut off", at));
        let header = field(4)?;
        let section = |at: usize| {
            let start = header.checked_add(field(at)?).ok_or_else(|| bad("a section beyond the end", at))?;
            let end = start.checked_add(field(at + 4)?).filter(|end| *end <= bytes.len());
            end.map(|end| (start, end)).ok_or_else(|| bad("a section beyond the end", at))
        };
        if header < HEADER {
            return Err(bad("a header too short", 4));
        }
        let (types, strings) = (section(8)?, section(16)?);
        let mut more_kinds = Vec::new();
        if header >= HEADER_WITH_LAYOUT {
            let (start, end) = section(24)?;
            let rows = bytes.get(start..end).unwrap_or_default().as_chunks::<4>().0;
            // Kind numbers have 7 bits.
            let row = |[add, element, _, _]: &[u8; 4]| (usize::from(*add), usize::from(*element));
            more_kinds = rows.iter().take(128).skip(KINDS.len()).map(row).collect();
        }
        let mut btf = Self { bytes, types, strings, more_kinds, checkpoints: Vec::new(), count: 0, problem: None };
        btf.number();
        Ok(btf)
    }

    /// Why the types from some number on could not be read, if so.
    #[must_use]
    pub fn problem(&self) -> Option<&KernelError> {
        self.problem.as_ref()
    }

    /// Number of types, `void` not counted.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Finds types by name, all in one pass. Of several with the same name the first counts.
    #[must_use]
    pub fn find(&self, names: &[TypeName<'_>]) -> Vec<Option<TypeId>> {
        let mut found = vec![None; names.len()];
        for this in self.iter().filter(|t| t.name != 0) {
            let is = |name: &TypeName<'_>| match (name, this.kind) {
                (TypeName::Struct(n), Kind::Struct)
                | (TypeName::Union(n), Kind::Union)
                | (TypeName::Enum(n), Kind::Enum | Kind::Enum64)
                | (TypeName::Typedef(n), Kind::Typedef) => self.is_named(this.name, n),
                _ => false,
            };
            for (slot, name) in found.iter_mut().zip(names) {
                if slot.is_none() && is(name) {
                    *slot = Some(this.id);
                }
            }
        }
        found
    }

    /// The values of enumerators by their names, all in one pass, whatever enum they belong to. Of several with the same name the
    /// first counts.
    #[must_use]
    pub fn enumerators(&self, names: &[&str]) -> Vec<Option<i64>> {
        let mut found = vec![None; names.len()];
        for this in self.iter().filter(|t| matches!(t.kind, Kind::Enum | Kind::Enum64)) {
            for at in self.elements(this) {
                let Some(named) = self.word(at) else { continue };
                for (slot, name) in found.iter_mut().zip(names) {
                    if slot.is_none() && self.is_named(named, name) {
                        *slot = self.enumerator(this, at);
                    }
                }
            }
        }
        found
    }

    /// Size of a type in bytes; `None` for `void`, functions and types only declared.
    #[must_use]
    pub fn size(&self, id: TypeId) -> Option<u64> {
        let (mut id, mut times) = (id, 1u64);
        for _ in 0..MAX_HOPS {
            let this = self.get(id)?;
            match this.kind {
                Kind::Int | Kind::Struct | Kind::Union | Kind::Enum | Kind::Enum64 | Kind::Float | Kind::Section => {
                    return times.checked_mul(u64::from(this.size_or_type));
                }
                Kind::Pointer => return times.checked_mul(POINTER_BYTES),
                Kind::Array => {
                    times = times.checked_mul(u64::from(self.word(this.rest + 8)?))?;
                    id = TypeId(self.word(this.rest)?);
                }
                Kind::Typedef | Kind::Qualifier | Kind::Variable => id = TypeId(this.size_or_type),
                Kind::Forward | Kind::Function | Kind::Other => return None,
            }
        }
        None
    }

    /// The member at the end of `path`, whose parts are separated by dots. Members of anonymous structs and unions belong to the
    /// struct around them; a part that is an array stands for its first element; pointers are not followed.
    #[must_use]
    pub fn member(&self, id: TypeId, path: &str) -> Option<Member> {
        let mut at = Member { bit_offset: 0, bits: None, type_id: id };
        let mut budget = MAX_MEMBERS;
        for part in path.split('.') {
            let outer = self.compound(at.type_id)?;
            let found = self.descend(outer, part, MAX_DEPTH, &mut budget)?;
            at = Member { bit_offset: at.bit_offset.checked_add(found.bit_offset)?, ..found };
        }
        Some(at)
    }

    /// Number of elements, where `id` is an array (or a name for one).
    #[must_use]
    pub fn array_len(&self, id: TypeId) -> Option<u64> {
        let mut id = id;
        for _ in 0..MAX_HOPS {
            let this = self.get(id)?;
            match this.kind {
                Kind::Array => return self.word(this.rest + 8).map(u64::from),
                Kind::Typedef | Kind::Qualifier | Kind::Variable => id = TypeId(this.size_or_type),
                _ => return None,
            }
        }
        None
    }

    /// The size in bytes of `struct NAME` or, where there is none, of the typedef `NAME`: as `SIZE(NAME)` in VMCOREINFO.
    #[must_use]
    pub fn size_of(&self, name: &str) -> Option<u64> {
        self.size(self.named(name)?)
    }

    /// The offset in bytes of a member, by its path, of what [`Self::size_of`] would measure: as `OFFSET(NAME.PATH)` in VMCOREINFO.
    #[must_use]
    pub fn offset_of(&self, name: &str, path: &str) -> Option<u64> {
        self.member(self.named(name)?, path)?.offset()
    }

    fn named(&self, name: &str) -> Option<TypeId> {
        self.find(&[TypeName::Struct(name), TypeName::Typedef(name)]).into_iter().flatten().next()
    }

    /// The struct or union that `id` is, is a name for, or is an array of.
    fn compound(&self, id: TypeId) -> Option<Type> {
        let mut id = id;
        for _ in 0..MAX_HOPS {
            let this = self.get(id)?;
            id = match this.kind {
                Kind::Struct | Kind::Union => return Some(this),
                Kind::Array => TypeId(self.word(this.rest)?),
                Kind::Typedef | Kind::Qualifier | Kind::Variable => TypeId(this.size_or_type),
                _ => return None,
            };
        }
        None
    }

    fn descend(&self, outer: Type, name: &str, depth: usize, budget: &mut usize) -> Option<Member> {
        let depth = depth.checked_sub(1)?;
        for at in self.elements(outer) {
            *budget = budget.checked_sub(1)?;
            let (named, type_id, offset) = (self.word(at)?, TypeId(self.word(at + 4)?), self.word(at + 8)?);
            let (bit_offset, width) = if outer.flag { (offset & 0xff_ffff, offset >> 24) } else { (offset, 0) };
            let this = Member { bit_offset: bit_offset.into(), bits: (width != 0).then_some(width), type_id };
            if named != 0 {
                if self.is_named(named, name) {
                    return Some(this);
                }
            } else if let Some(inner) = self.compound(type_id)
                && let Some(found) = self.descend(inner, name, depth, budget)
            {
                return Some(Member { bit_offset: this.bit_offset + found.bit_offset, ..found });
            }
        }
        None
    }

    /// Where the elements of a type begin.
    fn elements(&self, this: Type) -> impl Iterator<Item = usize> + use<> {
        (0..this.len).map(move |i| this.end - (this.len - i) * this.element)
    }

    fn enumerator(&self, this: Type, at: usize) -> Option<i64> {
        let low = self.word(at + 4)?;
        Some(match this.kind {
            Kind::Enum64 => (u64::from(self.word(at + 8)?) << 32 | u64::from(low)).cast_signed(),
            // The flag for signed ones came with Linux 6.0. Without it both readings are possible; this one keeps negative values.
            _ => i64::from(low.cast_signed()),
        })
    }

    /// Passes over all types once.
    fn number(&mut self) {
        let mut at = self.types.0;
        let mut checkpoints = Vec::new();
        let mut count = 0u32;
        while at < self.types.1 {
            match self.type_at(TypeId(count + 1), at) {
                Ok(this) => {
                    if (count as usize).is_multiple_of(STRIDE) {
                        checkpoints.push(at as u32);
                    }
                    count += 1;
                    at = this.end;
                }
                Err(what) => {
                    self.problem = Some(KernelError::Btf { what, offset: at as u64 });
                    break;
                }
            }
        }
        self.types.1 = at;
        self.count = count;
        self.checkpoints = checkpoints;
    }

    fn iter(&self) -> impl Iterator<Item = Type> + '_ {
        let mut next = (1, self.types.0);
        std::iter::from_fn(move || {
            let (id, at) = next;
            let this = (at < self.types.1).then(|| self.type_at(TypeId(id), at).ok()).flatten()?;
            next = (id + 1, this.end);
            Some(this)
        })
    }

    fn get(&self, id: TypeId) -> Option<Type> {
        let index = (id.0.checked_sub(1)?) as usize;
        let mut at = *self.checkpoints.get(index / STRIDE)? as usize;
        let first = index - index % STRIDE;
        for before in first..index {
            at = self.type_at(TypeId(before as u32 + 1), at).ok()?.end;
        }
        if at < self.types.1 { self.type_at(id, at).ok() } else { None }
    }

    fn type_at(&self, id: TypeId, at: usize) -> std::result::Result<Type, &'static str> {
        let common = self.bytes.get(at..self.types.1).and_then(<[u8]>::first_chunk::<12>).ok_or("a type cut off")?;
        let [name, info, size_or_type] = [0, 4, 8].map(|i| word(common, i).unwrap_or_default());
        // 5 bits of kind and 16 of length before Linux 7.2; the bits in between were zero.
        let (number, len) = ((info >> 24 & 0x7f) as usize, (info & 0xff_ffff) as usize);
        let (kind, add, element) = match KINDS.get(number) {
            Some(row) if number != 0 => *row,
            _ => {
                let more = number.checked_sub(KINDS.len()).and_then(|i| self.more_kinds.get(i));
                let (add, element) = more.copied().ok_or("a type of unknown kind")?;
                (Kind::Other, add, element)
            }
        };
        let rest = at + 12;
        // Far from overflow: 24 bits times 8.
        let end = rest + add + len * element;
        if end > self.types.1 {
            return Err("a type cut off");
        }
        Ok(Type { id, name, kind, len, flag: info >> 31 == 1, size_or_type, rest, element, end })
    }

    fn word(&self, at: usize) -> Option<u32> {
        word(&self.bytes, at)
    }

    /// Whether the string at `offset` is `name`.
    fn is_named(&self, offset: u32, name: &str) -> bool {
        let start = self.strings.0.saturating_add(offset as usize);
        let text = self.bytes.get(start..self.strings.1).unwrap_or_default();
        text.strip_prefix(name.as_bytes()).and_then(<[u8]>::first) == Some(&0)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}
