//! Types out of the crashed kernel's own memory: BTF (include/uapi/linux/btf.h, Documentation/bpf/btf.rst).
//!
//! ```text
//! header    magic, lengths, where the sections are, counted from its end
//! types     one after another, numbered from 1: name, kind and number of elements, size or type; what the kind adds; elements
//! strings   texts, each ended by a NUL, named by their offset
//! layout    since Linux 7.2, optional: what each kind adds and the size of its elements, so that kinds to come can be passed over
//! ```
//!
//! Names are asked for at once. One pass over the strings finds where they stand, one over the types finds what has such a name and
//! notes where every 16th type begins; nothing else is kept of 100,000 types in 5 MB, and what is asked about one is read again.

use crate::error::{KernelError, Result};
use crate::virt::{ReadAhead, VirtAddr, VirtualMemory};
use names::Names;

pub use whole::BtfTypes;

mod names;
#[cfg(test)]
mod tests;
mod whole;

const MAGIC: u16 = 0xeb9f;
/// Distribution kernels have 3 to 5 MiB.
const MAX_BYTES: u64 = 64 << 20;
/// The header without and with the layout section.
const HEADER: u64 = 24;
const HEADER_WITH_LAYOUT: u64 = 32;
/// Types between two that are found without passing over others.
const STRIDE: u32 = 16;
/// Steps from a type to what it stands for (typedef, const, array): the kernel itself stops at 32.
const MAX_HOPS: usize = 64;
/// Anonymous structs inside each other; real ones reach 5.
const MAX_DEPTH: usize = 32;
/// Members and types looked at for one path, so that anonymous members that share a type cannot make the descent exponential. A
/// struct has at most a few hundred.
const MAX_STEPS: usize = 1 << 16;
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
const KINDS: [(Kind, u64, u64); 23] = [
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TypeId(u32);

/// A member of a struct or union, found by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    /// From the start of the outermost struct, in bits.
    bit_offset: u64,
    /// Width in bits, for a bit field.
    bits: Option<u32>,
    /// Its type.
    type_id: TypeId,
}

/// The first of each that has a name: C keeps the names of structs apart from those of typedefs.
#[derive(Clone, Copy, Debug, Default)]
struct Named {
    structure: Option<TypeId>,
    typedef: Option<TypeId>,
    enumerator: Option<i64>,
}

/// The types of the crashed kernel, as far as they have to do with the names asked for.
pub struct Btf<'a> {
    ahead: ReadAhead<'a>,
    start: VirtAddr,
    /// Where the types begin, in bytes from `start`, and where those that are understood end.
    types: (u64, u64),
    /// Bytes that kinds beyond [`KINDS`] add, and of their elements.
    more_kinds: Vec<(u64, u64)>,
    /// Where types 1, 17, 33 … begin.
    checkpoints: Vec<u32>,
    count: u32,
    problem: Option<KernelError>,
    names: Names<'a>,
    /// What has each of the names.
    named: Vec<Named>,
}

/// The common part of a type.
#[derive(Clone, Copy, Debug)]
struct Type {
    name: u32,
    kind: Kind,
    /// Number of elements.
    len: u64,
    /// Members' offsets hold the width of bit fields too; values of an enum are signed.
    flag: bool,
    size_or_type: u32,
    /// Where what follows the common part begins.
    rest: u64,
    /// Where the elements begin, and the bytes of each.
    elements: (u64, u64),
    /// Where the next type begins.
    end: u64,
}

impl Type {
    /// Where its elements begin.
    fn elements(&self) -> impl Iterator<Item = u64> + use<> {
        let (start, bytes) = self.elements;
        (0..self.len).map(move |i| start + i * bytes)
    }
}

impl<'a> Btf<'a> {
    /// Passes over the types between two addresses (the symbols `__start_BTF` and `__stop_BTF`) for `names`: those of all structs,
    /// typedefs, members and enumerators that will be asked for. Where a type is damaged or of an unknown kind, those before it
    /// are kept: see [`Self::problem`].
    ///
    /// # Errors
    /// The header is none, its sections are not between the addresses, or the memory is not in the dump.
    pub fn read(mem: &'a mut dyn VirtualMemory, start: VirtAddr, stop: VirtAddr, names: &[&'a str]) -> Result<Self> {
        let len = stop.0.wrapping_sub(start.0);
        if !(HEADER..=MAX_BYTES).contains(&len) {
            let hint = ", for BTF has 24 bytes to 64 MiB";
            return Err(KernelError::Implausible { what: "the length of BTF", addr: start, value: len, hint });
        }
        let mut ahead = ReadAhead::new(mem, stop);
        let bad = |what, offset| KernelError::Btf { what, offset };
        let head = ahead.get(start, HEADER as usize)?;
        match head.first_chunk().map(|b| u16::from_le_bytes(*b)) {
            Some(MAGIC) => {}
            Some(m) if m == MAGIC.swap_bytes() => return Err(bad("big-endian data, which is not supported yet,", 0)),
            _ => return Err(bad("no magic number", 0)),
        }
        if head.get(2) != Some(&1) {
            return Err(bad("an unknown version", 2));
        }
        let mut field = |at: u64| -> Result<u64> {
            let field = ahead.get(start.plus(at), 4)?.first_chunk().map(|b| u32::from_le_bytes(*b));
            Ok(field.unwrap_or_default().into())
        };
        let header = field(4)?;
        // Sums of two numbers of 32 bits.
        let mut section = |at: u64| {
            let first = header + field(at)?;
            let end = first + field(at + 4)?;
            if end <= len { Ok((first, end)) } else { Err(bad("a section beyond the end", at)) }
        };
        if header < HEADER {
            return Err(bad("a header too short", 4));
        }
        let (types, strings) = (section(8)?, section(16)?);
        let mut more_kinds = Vec::new();
        if header >= HEADER_WITH_LAYOUT {
            let (first, end) = section(24)?;
            // Kind numbers have 7 bits.
            let rows = ahead.get(start.plus(first), (end - first).min(128 * 4) as usize)?;
            let rows = rows.get(..(end - first) as usize).unwrap_or(rows).as_chunks::<4>().0;
            let row = |[add, element, _, _]: &[u8; 4]| (u64::from(*add), u64::from(*element));
            more_kinds = rows.iter().take(128).skip(KINDS.len()).map(row).collect();
        }
        let names = Names::find(&mut ahead, start.plus(strings.0), (strings.1 - strings.0) as usize, names)?;
        let named = vec![Named::default(); names.len()];
        let (checkpoints, count, problem) = (Vec::new(), 0, None);
        let mut btf = Self { ahead, start, types, more_kinds, checkpoints, count, problem, names, named };
        btf.pass()?;
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

    /// The size in bytes of `struct NAME` or, where there is none, of the typedef `NAME`: as `SIZE(NAME)` in VMCOREINFO.
    #[must_use]
    pub fn size_of(&mut self, name: &str) -> Option<u64> {
        let id = self.named(name)?;
        self.size(id)
    }

    /// The offset in bytes of a member of what [`Self::size_of`] would measure: as `OFFSET(NAME.PATH)` in VMCOREINFO. The parts of
    /// the path are separated by dots. Members of anonymous structs and unions belong to the struct around them; a part that is an
    /// array stands for its first element; pointers are not followed. `None` for a bit field, which may begin inside a byte.
    #[must_use]
    pub fn offset_of(&mut self, name: &str, path: &str) -> Option<u64> {
        let id = self.named(name)?;
        let member = self.member(id, path)?;
        (member.bits.is_none() && member.bit_offset.is_multiple_of(8)).then_some(member.bit_offset / 8)
    }

    /// The value of the enumerator `name`, whatever enum it belongs to. Of several with the same name the first counts.
    #[must_use]
    pub fn enumerator(&self, name: &str) -> Option<i64> {
        self.named.get(self.names.number(name)?)?.enumerator
    }

    fn named(&self, name: &str) -> Option<TypeId> {
        let named = self.named.get(self.names.number(name)?)?;
        named.structure.or(named.typedef)
    }

    /// Size of a type in bytes; `None` for `void`, functions and types only declared.
    fn size(&mut self, id: TypeId) -> Option<u64> {
        let (mut id, mut times) = (id, 1u64);
        for _ in 0..MAX_HOPS {
            let this = self.get(id)?;
            match this.kind {
                Kind::Int | Kind::Struct | Kind::Union | Kind::Enum | Kind::Enum64 | Kind::Float | Kind::Section => {
                    return times.checked_mul(u64::from(this.size_or_type));
                }
                Kind::Pointer => return times.checked_mul(POINTER_BYTES),
                Kind::Array => {
                    let [element, _, count] = self.words(this.rest).ok()?;
                    times = times.checked_mul(u64::from(count))?;
                    id = TypeId(element);
                }
                Kind::Typedef | Kind::Qualifier | Kind::Variable => id = TypeId(this.size_or_type),
                Kind::Forward | Kind::Function | Kind::Other => return None,
            }
        }
        None
    }

    fn member(&mut self, id: TypeId, path: &str) -> Option<Member> {
        let mut at = Member { bit_offset: 0, bits: None, type_id: id };
        let mut steps = MAX_STEPS;
        for part in path.split('.') {
            let part = self.names.number(part)?;
            let outer = self.compound(at.type_id, &mut steps)?;
            let found = self.descend(outer, part, MAX_DEPTH, &mut steps)?;
            at = Member { bit_offset: at.bit_offset.checked_add(found.bit_offset)?, ..found };
        }
        Some(at)
    }

    /// The struct or union that `id` is, is a name for, or is an array of.
    fn compound(&mut self, id: TypeId, steps: &mut usize) -> Option<Type> {
        let mut id = id;
        for _ in 0..MAX_HOPS {
            *steps = steps.checked_sub(1)?;
            let this = self.get(id)?;
            id = match this.kind {
                Kind::Struct | Kind::Union => return Some(this),
                Kind::Array => TypeId(self.words::<1>(this.rest).ok()?[0]),
                Kind::Typedef | Kind::Qualifier | Kind::Variable => TypeId(this.size_or_type),
                _ => return None,
            };
        }
        None
    }

    /// The member that has name number `part`.
    fn descend(&mut self, outer: Type, part: usize, depth: usize, steps: &mut usize) -> Option<Member> {
        let depth = depth.checked_sub(1)?;
        for at in outer.elements() {
            *steps = steps.checked_sub(1)?;
            let [name, type_id, offset] = self.words(at).ok()?;
            let type_id = TypeId(type_id);
            let (bit_offset, width) = if outer.flag { (offset & 0xff_ffff, offset >> 24) } else { (offset, 0) };
            let this = Member { bit_offset: bit_offset.into(), bits: (width != 0).then_some(width), type_id };
            if name != 0 {
                if self.names.at(name) == Some(part) {
                    return Some(this);
                }
            } else if let Some(inner) = self.compound(type_id, steps)
                && let Some(found) = self.descend(inner, part, depth, steps)
            {
                return Some(Member { bit_offset: this.bit_offset + found.bit_offset, ..found });
            }
        }
        None
    }

    /// Passes over all types once.
    fn pass(&mut self) -> Result<()> {
        let mut at = self.types.0;
        while at < self.types.1 {
            let this = match self.type_at(at) {
                Ok(this) => this,
                Err(problem @ KernelError::Btf { .. }) => {
                    self.problem = Some(problem);
                    break;
                }
                Err(e) => return Err(e),
            };
            if self.count.is_multiple_of(STRIDE) {
                self.checkpoints.push(at as u32);
            }
            self.count += 1;
            self.note(TypeId(self.count), this)?;
            at = this.end;
        }
        self.types.1 = at;
        Ok(())
    }

    /// Notes a type if it has one of the names, or an enumerator with one.
    fn note(&mut self, id: TypeId, this: Type) -> Result<()> {
        match this.kind {
            Kind::Struct | Kind::Typedef if this.name != 0 => {
                if let Some(named) = self.names.at(this.name).and_then(|number| self.named.get_mut(number)) {
                    let slot = if this.kind == Kind::Struct { &mut named.structure } else { &mut named.typedef };
                    slot.get_or_insert(id);
                }
            }
            Kind::Enum | Kind::Enum64 => {
                for at in this.elements() {
                    let [name, low] = self.words(at)?;
                    let Some(number) = self.names.at(name) else { continue };
                    let value = match this.kind {
                        Kind::Enum64 => {
                            let [high] = self.words(at + 8)?;
                            (u64::from(high) << 32 | u64::from(low)).cast_signed()
                        }
                        // The flag for signed ones came with Linux 6.0. Without it both readings are possible; this one keeps
                        // negative values.
                        _ => i64::from(low.cast_signed()),
                    };
                    self.named.get_mut(number).into_iter().for_each(|named| _ = named.enumerator.get_or_insert(value));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn get(&mut self, id: TypeId) -> Option<Type> {
        let index = id.0.checked_sub(1).filter(|index| *index < self.count)?;
        let mut at = u64::from(*self.checkpoints.get((index / STRIDE) as usize)?);
        for _ in 0..index % STRIDE {
            at = self.type_at(at).ok()?.end;
        }
        self.type_at(at).ok()
    }

    #[inline]
    fn type_at(&mut self, at: u64) -> Result<Type> {
        let bad = |what| KernelError::Btf { what, offset: at };
        let rest = at + 12;
        if rest > self.types.1 {
            return Err(bad("a type cut off"));
        }
        let [name, info, size_or_type] = self.words(at)?;
        // 5 bits of kind and 16 of length before Linux 7.2; the bits in between were zero.
        let (number, len) = ((info >> 24 & 0x7f) as usize, u64::from(info & 0xff_ffff));
        let (kind, add, element) = match KINDS.get(number) {
            Some(row) if number != 0 => *row,
            _ => {
                let more = number.checked_sub(KINDS.len()).and_then(|i| self.more_kinds.get(i));
                let (add, element) = more.copied().ok_or_else(|| bad("a type of unknown kind"))?;
                (Kind::Other, add, element)
            }
        };
        // Far from overflow: 24 bits times 8.
        let end = rest + add + len * element;
        if end > self.types.1 {
            return Err(bad("a type cut off"));
        }
        let (flag, elements) = (info >> 31 == 1, (rest + add, element));
        Ok(Type { name, kind, len, flag, size_or_type, rest, elements, end })
    }

    /// `N` words from `at` on.
    #[inline]
    fn words<const N: usize>(&mut self, at: u64) -> Result<[u32; N]> {
        let bytes = self.ahead.get(self.start.plus(at), N * 4)?.as_chunks::<4>().0;
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(bytes) {
            *word = u32::from_le_bytes(*bytes);
        }
        Ok(words)
    }
}
