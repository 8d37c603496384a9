//! Headers that claim more than the file has, brought down to what it can have.

use super::detect;
use super::file::SUB_HEADER_MAX;
use super::header::{Abi, Header, HeaderLayout, SubHeader};
use crate::bytes::{Bytes, read_some};
use crate::{FormatError, PageSize, Result};

/// Makes regions that lie beyond the end of the file as long as the notes and the page count need, where they claim to be longer.
pub fn limit_blocks(
    bytes: &dyn Bytes,
    header: &mut Header,
    layout: HeaderLayout,
    page: PageSize,
) -> Result<Vec<FormatError>> {
    let block = page.bytes() as u64;
    let raw = read_some(bytes, "sub header", block, SUB_HEADER_MAX)?;
    let layout = detect::sub_header(&raw, header, layout, u64::MAX);
    let Some(sub) = SubHeader::decode(&raw, header.header_version, layout) else { return Ok(Vec::new()) };
    let end_of = |header: &Header| {
        (1 + u64::from(header.sub_hdr_size)).saturating_add(header.bitmap_blocks.into()).saturating_mul(block)
    };
    let wide = header.header_version >= 6 && sub.max_mapnr_64.min(u32::MAX.into()) == u64::from(header.max_mapnr);
    let pages = if wide { sub.max_mapnr_64 } else { header.max_mapnr.into() };
    let sub_len = SubHeader::size(header.header_version, layout.abi) as u64;
    let notes = if header.header_version >= 4 { sub.size_note } else { sub.size_vmcoreinfo };
    let needs = [
        ("sub_hdr_size", page.pages_for(sub_len.saturating_add(notes))),
        ("bitmap_blocks", 2 * page.pages_for(pages.div_ceil(8))),
    ];
    let mut problems = Vec::new();
    for (field, needed) in needs {
        let beyond = end_of(header) > bytes.len();
        let value = if field == "sub_hdr_size" { &mut header.sub_hdr_size } else { &mut header.bitmap_blocks };
        let Ok(needed) = u32::try_from(needed) else { continue };
        if beyond && *value > needed && needed > 0 {
            problems.push(FormatError::BadField {
                file: bytes.name().to_owned(),
                field,
                offset: Header::offset_of(field, layout.abi),
                value: value.to_string(),
                rule: format!("the file ends before that, and {needed} blocks are all that is needed"),
                next: "the smaller number is taken",
            });
            *value = needed;
        }
    }
    Ok(problems)
}

/// Makes the number of pages fit the bitmaps, as the other header says it or else as many as there are bits for.
pub fn limit_pages(
    file: &str,
    abi: Abi,
    page: PageSize,
    header: &mut Header,
    sub: &mut SubHeader,
) -> Option<FormatError> {
    // A file with one bitmap for both may use all blocks; one whose page count is wrong is taken to have two.
    let room = |blocks: u32| u64::from(blocks) * page.bytes() as u64 * 8;
    let (most, bits) = (room(header.bitmap_blocks), room(header.bitmap_blocks / 2));
    let wide = header.header_version >= 6 && sub.max_mapnr_64 != 0;
    let pages = if wide { sub.max_mapnr_64 } else { header.max_mapnr.into() };
    if pages <= most {
        return None;
    }
    let narrow = u64::from(header.max_mapnr);
    let taken = if wide && (1..=bits).contains(&narrow) { narrow } else { bits };
    header.max_mapnr = u32::try_from(taken).unwrap_or(u32::MAX);
    let (field, offset) = if wide {
        sub.max_mapnr_64 = taken;
        ("max_mapnr_64", page.bytes() as u64 + SubHeader::offset_of("max_mapnr_64", abi))
    } else {
        ("max_mapnr", Header::offset_of("max_mapnr", abi))
    };
    Some(FormatError::BadField {
        file: file.to_owned(),
        field,
        offset,
        value: pages.to_string(),
        rule: format!("the bitmaps have room for {bits} pages"),
        next: "the number is taken to be the most that fits, or what the main header says",
    })
}
