//! What is in memory, as a few lines of text.

use crate::layout::KernelLayout;
use crate::ram::Filler;
use std::ops::Range;

/// Class names of the truth table. Every page frame below the end of RAM has exactly one.
pub const CLASSES: [&str; 12] = [
    "hole",
    "kernel",
    "zero",
    "cache",
    "private-cache",
    "user",
    "hugetlb",
    "free",
    "unaccepted",
    "slab",
    "offline",
    "hwpoison",
];

/// What the struct pages of a population look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Kernel,
    Zero,
    Cache,
    PrivateCache,
    ShmemSwapcache,
    Anon,
    Ksm,
    Swapcache,
    Slab,
    Hugetlb,
    Buddy,
    Unaccepted,
    Offline,
    Hwpoison,
    OwnerPriv,
    Tail,
    FakeHead,
    ImageCache,
}

/// Word, kind, default order, what unwritten pages hold.
const KINDS: [(&str, Kind, u32, Filler); 20] = [
    ("kernel", Kind::Kernel, 0, Filler::Words),
    ("zero", Kind::Zero, 0, Filler::Zero),
    ("cache", Kind::Cache, 0, Filler::Text),
    ("private-cache", Kind::PrivateCache, 0, Filler::Text),
    ("file-thp", Kind::Cache, 9, Filler::Text),
    ("shmem-swapcache", Kind::ShmemSwapcache, 0, Filler::Text),
    ("anon", Kind::Anon, 0, Filler::Words),
    ("anon-thp", Kind::Anon, 9, Filler::Noise),
    ("ksm", Kind::Ksm, 0, Filler::Same),
    ("swapcache", Kind::Swapcache, 0, Filler::Words),
    ("slab", Kind::Slab, 0, Filler::Words),
    ("hugetlb", Kind::Hugetlb, 9, Filler::Words),
    ("buddy", Kind::Buddy, 0, Filler::Text),
    ("unaccepted", Kind::Unaccepted, 10, Filler::Zero),
    ("offline", Kind::Offline, 0, Filler::Noise),
    ("hwpoison", Kind::Hwpoison, 0, Filler::Noise),
    ("owner-priv", Kind::OwnerPriv, 0, Filler::Words),
    ("tail", Kind::Tail, 0, Filler::Words),
    ("hvo-fake-head", Kind::FakeHead, 9, Filler::Words),
    ("image-cache", Kind::ImageCache, 0, Filler::Words),
];

/// One line.
#[derive(Clone, Debug)]
pub(crate) struct Population {
    pub pfns: Range<u64>,
    pub kind: Kind,
    /// Order of each block; the line holds as many as fit.
    pub order: u32,
    pub filler: Filler,
    /// `mapping-odd`: bit 0 of `mapping` set though the page is not anonymous.
    pub mapping_odd: bool,
    /// `pool`: a hugetlb page nobody uses.
    pub pool: bool,
    /// `hvo`: struct pages from the second page of them on are those of the first page again.
    pub hvo: bool,
    /// `continues=N`: the first page is number N of its block, whose head is in another section (templates of huge machines only).
    pub continues: u64,
    /// `waiters`: `PG_waiters`, whose bit was another flag's before.
    pub waiters: bool,
}

impl Population {
    /// Reads lines `@PFN COUNT KIND [WORD]...`; `#` begins a comment.
    ///
    /// # Panics
    /// On anything it does not understand, and on a count that is no multiple of the block size.
    pub fn parse(text: &str) -> Vec<Self> {
        let lines = text.lines().map(|l| l.split('#').next().unwrap_or_default().trim()).filter(|l| !l.is_empty());
        lines.map(Self::parse_line).collect()
    }

    fn parse_line(line: &str) -> Self {
        let mut words = line.split_whitespace();
        let start = words.next().and_then(|w| w.strip_prefix('@')).map(number);
        let (Some(start), Some(count), Some(word)) = (start, words.next().map(number), words.next()) else {
            panic!("not `@PFN COUNT KIND ...`: {line}")
        };
        let Some(&(_, kind, order, filler)) = KINDS.iter().find(|k| k.0 == word) else {
            panic!("no kind `{word}`: {line}")
        };
        let mut p = Self {
            pfns: start..start + count,
            kind,
            order,
            filler,
            mapping_odd: false,
            pool: false,
            hvo: false,
            continues: 0,
            waiters: false,
        };
        for word in words {
            match word.split_once('=').unwrap_or((word, "")) {
                ("order", n) => p.order = number(n) as u32,
                ("mapping-odd", "") => p.mapping_odd = true,
                ("continues", n) => p.continues = number(n),
                ("pool", "") => p.pool = true,
                ("hvo", "") => p.hvo = true,
                ("waiters", "") => p.waiters = true,
                ("garbage", "") => p.mapping_odd = true,
                ("content", "zero") => p.filler = Filler::Zero,
                ("content", "text") => p.filler = Filler::Text,
                ("content", "words") => p.filler = Filler::Words,
                ("content", "noise") => p.filler = Filler::Noise,
                ("content", "same") => p.filler = Filler::Same,
                _ => panic!("no word `{word}`: {line}"),
            }
        }
        assert!(count > 0, "no pages: {line}");
        // A gigantic page is larger than the section a template describes.
        if !p.is_one_by_one() && p.block() <= crate::SECTION_PAGES {
            assert!(
                start % p.block() == 0 && count % p.block() == 0,
                "not whole aligned blocks of {} pages: {line}",
                p.block()
            );
        }
        p
    }

    /// Whether the order is only a claim of each single page.
    fn is_one_by_one(&self) -> bool {
        matches!(self.kind, Kind::FakeHead | Kind::Tail) || self.order_is_garbage()
    }

    /// A free block larger than any free area: the order cannot be true.
    pub fn order_is_garbage(&self) -> bool {
        self.kind == Kind::Buddy && self.order >= crate::ORDERS
    }

    /// Pages in a block.
    pub fn block(&self) -> u64 {
        if self.is_one_by_one() { 1 } else { 1 << self.order }
    }

    /// The class of the first page of a block and that of the others, as VMCOREINFO of this kernel lets a reader know them.
    pub fn class(&self, layout: &KernelLayout) -> (&'static str, &'static str) {
        let kept = if self.filler == Filler::Zero { "zero" } else { "kernel" };
        let whole = |class| (class, class);
        // Without the order of the compound page only its head can be told; tails look like nothing in particular.
        let compound = |class| if layout.compound_order_is_known() { (class, class) } else { (class, kept) };
        match self.kind {
            Kind::Kernel | Kind::Zero | Kind::OwnerPriv | Kind::Tail | Kind::ImageCache => whole(kept),
            Kind::Cache | Kind::ShmemSwapcache => compound("cache"),
            Kind::PrivateCache => compound("private-cache"),
            Kind::Anon | Kind::Ksm | Kind::Swapcache => compound("user"),
            Kind::Slab => compound("slab"),
            Kind::Hugetlb | Kind::FakeHead if layout.hugetlb_is_known() => whole("hugetlb"),
            Kind::Hugetlb if self.mapping_odd => compound("user"),
            Kind::Hugetlb | Kind::FakeHead => whole(kept),
            Kind::Buddy if self.order_is_garbage() => whole(kept),
            Kind::Buddy => whole("free"),
            Kind::Unaccepted => whole(if layout.exported_unaccepted().is_some() { "unaccepted" } else { kept }),
            Kind::Offline => whole(if layout.exported_offline().is_some() { "offline" } else { kept }),
            Kind::Hwpoison => whole(if layout.since(3, 8, 0) { "hwpoison" } else { kept }),
        }
    }
}

fn number(word: &str) -> u64 {
    let parsed = match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => word.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("not a number: `{word}`"))
}
