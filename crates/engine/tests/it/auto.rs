//! A codec chosen while running: the file differs, the pages do not.

use crate::common::{check, core, dump, exclusion, options};
use crate::reader::Dump;
use coresift_engine::{Choice, DumpOptions};
use coresift_format::codec::Codec;
use coresift_synth::{KernelLayout, Machine};

#[test]
fn every_page_of_a_dump_that_chose_its_codecs_is_right() {
    let text = "@0x1200 8192 slab content=words";
    let image = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).ram(0x1200..0x3400).pages(text).build();
    for threads in [1, 3] {
        let options = DumpOptions { compression: Choice::Auto, threads: Some(threads), ..options(31) };
        let (report, file) = dump(core(&image), &options);
        check(&image, exclusion(31, "", "").classes, &report, file.clone(), "auto");
        assert_eq!(report.compression, "auto");
        let batches: u64 = report.chosen.iter().map(|row| row.batches).sum();
        assert!(batches >= report.kept_pages / 64, "{:?}", report.chosen);
        let dump = Dump::read(file);
        assert_eq!(dump.status & !8, Codec::Zstd.flag(), "the header names one codec");
        let with =
            |codec: Codec| (0..dump.kept.len()).filter(|rank| dump.descriptor(*rank).flags == codec.flag()).count();
        assert!(with(Codec::Zstd) > 0, "it begins with the default");
        assert_eq!([Codec::None, Codec::Snappy, Codec::Zstd].map(with).iter().sum::<usize>(), dump.kept.len());
    }
}

#[test]
fn nothing_is_said_of_choices_where_there_are_none() {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    assert!(dump(core(&image), &options(31)).0.chosen.is_empty());
}
