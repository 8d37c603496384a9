//! A report for tests, with the page counts of a 6.12 lab core.

use coresift_engine::{CheckRow, ClassRow, GuardRow, Report, StageRow, UnreadableRun};

/// Level 31, lzo, complete.
pub fn report() -> Report {
    let class = |name, pages, excluded_pages, excluded, evidence: Option<&str>| ClassRow {
        name,
        pages,
        excluded,
        excluded_pages,
        evidence: evidence.map(str::to_owned),
    };
    Report {
        input: "vmcore".into(),
        container: "elf".into(),
        format: "kdump".into(),
        elf: None,
        release: Some("6.12.117+deb12-cloud-amd64".into()),
        level: 31,
        compression: "lzo".into(),
        chosen: Vec::new(),
        page_size: 4096,
        total_pages: 0x2ffd4,
        ram_pages: 0x22b04,
        kept_pages: 0xaae4,
        zero_pages: 0x12b3,
        shared_pages: 5_012,
        unused_map_pages: 0,
        classes: vec![
            class("kernel", 20_000, 0, false, Some("what no other class claims")),
            class("slab", 10_000, 0, false, Some("page type slab (VMCOREINFO)")),
            class("zero", 0x12b3, 0x12b3, true, Some("content")),
            class("cache", 0x7b16, 0x7b16, true, Some("PG_lru, PG_swapcache (VMCOREINFO)")),
            class("private-cache", 0x163a, 0x163a, true, Some("PG_private (VMCOREINFO)")),
            class("user", 0xb053, 0xb053, true, Some("page.mapping (VMCOREINFO)")),
            class("hugetlb", 0x200, 0x200, true, Some("page type hugetlb (VMCOREINFO)")),
            class("free", 0x3c7d, 0x3c7d, true, Some("page type buddy (VMCOREINFO)")),
            class("unaccepted", 0, 0, true, None),
            class("offline", 0, 0, true, Some("page type offline (VMCOREINFO)")),
            class("hwpoison", 0, 0, true, Some("PG_hwpoison (VMCOREINFO)")),
        ],
        guard: vec![GuardRow { what: "page tables", pages: 80, saved: 2 }],
        checks: vec![
            CheckRow { what: "free pages", found: 15_485, kernel: 15_490, warning: false },
            CheckRow { what: "slab pages", found: 10_000, kernel: 12_000, warning: true },
        ],
        stages: vec![
            StageRow { name: "find pages", seconds: 0.009_253, pages: 0x2ffd4, bytes: 9_093_120 },
            StageRow { name: "copy pages", seconds: 0.206_614, pages: 0xaae4, bytes: 179_191_808 },
        ],
        absent_pages: 0,
        unreadable_pages: 3,
        unreadable_more: 0,
        unreadable: vec![UnreadableRun { pfn: 0x1234, pages: 3, reason: "Input/output error".into() }],
        bytes_in: 188_284_928,
        bytes_out: 41_608_977,
        seconds: 0.231,
        threads: 2,
        peak_memory: 12_700_000,
        memory_budget: 104_857_600,
        log: None,
        parts: Vec::new(),
        complete: true,
        file_bytes: 41_600_000,
        dry_run: false,
        space: None,
        ended: None,
        attempts: Vec::new(),
        notes: vec!["unaccepted pages are kept: VMCOREINFO has no number for them".into()],
    }
}
