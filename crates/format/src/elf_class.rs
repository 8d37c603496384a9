//! Places and numbers of the ELF headers that cores have, for reading and writing alike (the gABI, chapters 4 and 5).

use crate::endian::{Bits, Field};

/// Places of the fields of one ELF class.
pub(crate) struct Class {
    pub bits: Bits,
    /// `e_ident[EI_CLASS]`.
    pub ident: u8,
    pub header_len: u64,
    pub version: Field,
    pub phoff: Field,
    pub shoff: Field,
    pub flags: Field,
    pub ehsize: Field,
    pub phentsize: Field,
    pub phnum: Field,
    pub shentsize: Field,
    pub shnum: Field,
    pub shstrndx: Field,
    pub segment_len: u64,
    pub p_flags: Field,
    pub p_offset: Field,
    pub p_vaddr: Field,
    pub p_paddr: Field,
    pub p_filesz: Field,
    pub p_memsz: Field,
    pub p_align: Field,
    pub section_len: u64,
    pub sh_offset: Field,
    pub sh_size: Field,
    pub sh_info: Field,
}

const fn f(at: usize, size: usize) -> Field {
    Field { at, size }
}

pub(crate) const E_TYPE: Field = f(16, 2);
pub(crate) const E_MACHINE: Field = f(18, 2);
pub(crate) const P_TYPE: Field = f(0, 4);

pub(crate) const ELF32: Class = Class {
    bits: Bits::B32,
    ident: 1,
    header_len: 52,
    version: f(20, 4),
    phoff: f(28, 4),
    shoff: f(32, 4),
    flags: f(36, 4),
    ehsize: f(40, 2),
    phentsize: f(42, 2),
    phnum: f(44, 2),
    shentsize: f(46, 2),
    shnum: f(48, 2),
    shstrndx: f(50, 2),
    segment_len: 32,
    p_offset: f(4, 4),
    p_vaddr: f(8, 4),
    p_paddr: f(12, 4),
    p_filesz: f(16, 4),
    p_memsz: f(20, 4),
    p_flags: f(24, 4),
    p_align: f(28, 4),
    section_len: 40,
    sh_offset: f(16, 4),
    sh_size: f(20, 4),
    sh_info: f(28, 4),
};

pub(crate) const ELF64: Class = Class {
    bits: Bits::B64,
    ident: 2,
    header_len: 64,
    version: f(20, 4),
    phoff: f(32, 8),
    shoff: f(40, 8),
    flags: f(48, 4),
    ehsize: f(52, 2),
    phentsize: f(54, 2),
    phnum: f(56, 2),
    shentsize: f(58, 2),
    shnum: f(60, 2),
    shstrndx: f(62, 2),
    segment_len: 56,
    p_flags: f(4, 4),
    p_offset: f(8, 8),
    p_vaddr: f(16, 8),
    p_paddr: f(24, 8),
    p_filesz: f(32, 8),
    p_memsz: f(40, 8),
    p_align: f(48, 8),
    section_len: 64,
    sh_offset: f(24, 8),
    sh_size: f(32, 8),
    sh_info: f(44, 4),
};

/// The places of files of `bits`.
pub(crate) const fn class(bits: Bits) -> &'static Class {
    match bits {
        Bits::B32 => &ELF32,
        Bits::B64 => &ELF64,
    }
}

pub(crate) const ET_CORE: u64 = 4;
pub(crate) const PT_LOAD: u64 = 1;
pub(crate) const PT_NOTE: u64 = 4;
/// From `PT_LOOS` to `PT_HIPROC`: what systems and processors have of their own.
pub(crate) const PT_OF_OTHERS: std::ops::RangeInclusive<u64> = 0x6000_0000..=0x7fff_ffff;
/// `e_phnum` of a file whose number of program headers is in the first section header.
pub(crate) const PN_XNUM: u64 = 0xffff;
