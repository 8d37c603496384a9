//! The kdump-compressed format, as makedumpfile and QEMU write it and crash reads it.
//!
//! ```text
//! block 0        main header                      header.rs
//!                in a part: which of which set    identity.rs
//! block 1 ..     sub header, ELF notes            header.rs
//!                1st bitmap: page exists          bitmap.rs
//!                2nd bitmap: page is in the file  bitmap.rs
//!                one descriptor for each bit set  desc.rs
//!                page data                        read.rs (codecs: crate::codec)
//! ```
//!
//! A reader (`file.rs`) finds every region through the header fields, whose ABI and byte order `detect.rs` tells from
//! their values. Parts of a split set are files of their own, which `set.rs` puts in order and reads as one. `layout.rs` says where a writer puts them.

mod bitmap;
mod derived;
mod desc;
mod detect;
mod file;
mod header;
mod identity;
mod layout;
mod limits;
mod notes_place;
mod overlap;
mod read;
mod realign;
mod region;
mod set;
mod sweep;
mod table;
mod walk;

pub use bitmap::BitmapFaults;
pub(crate) use derived::nearly_signed;
pub use desc::PageDesc;
pub use file::KdumpFile;
pub use header::{
    Abi, Header, HeaderLayout, MAX_VERSION, SIGNATURE, STATUS_EXCLUDED_VMEMMAP, STATUS_INCOMPLETE, SubHeader,
};
pub use identity::PartIdentity;
pub use layout::Layout;
pub use overlap::{Overlap, Place, Places};
pub use realign::Realigned;
pub use region::Region;
pub use set::{Arranged, SetError, SplitSet, arrange, common_sub_header};
pub use table::{TableFit, TableLook};
pub use walk::{Described, DescriptorCounts, Loss};
