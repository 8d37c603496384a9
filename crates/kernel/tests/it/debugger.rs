//! What a debugger reads, walked.

use coresift_format::{Input, PageSet};
use coresift_kernel::debugger::{Need, Outcome, Reading, Step, walk};
use coresift_kernel::{Kernel, KernelError};
use coresift_synth::{KernelLayout, Machine, lab};
use std::sync::Arc;

fn real(release: &str) -> (Input, Kernel) {
    let input = Input::open(&lab::folder(&format!("{release}-kdump")).join("vmcore")).unwrap();
    let kernel = Kernel::open(&input, input.vmcoreinfo().unwrap()).unwrap();
    (input, kernel)
}

fn pages<'s>(steps: impl IntoIterator<Item = &'s Step>) -> usize {
    steps.into_iter().map(|step| step.pages.len()).sum()
}

#[test]
#[ignore = "needs real cores: CORESIFT_LAB"]
fn real_cores_have_every_step_whole_and_all_of_them_are_few_pages() {
    for release in ["6.1", "6.12", "7.2"] {
        let (input, kernel) = real(release);
        let steps = walk(&kernel, input.memory(), Reading::Contents);
        for step in &steps {
            assert!(matches!(step.outcome, Outcome::Whole), "{release}: {}: {:?}", step.name, step.outcome);
        }
        let open = pages(steps.iter().filter(|step| step.need == Need::Open));
        assert!((300..1500).contains(&open) && pages(&steps) < 3000, "{release}: {open} of {}", pages(&steps));
        let mut all: Vec<_> = steps.iter().flat_map(|step| &step.pages).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{release}: a page belongs to two steps");
    }
}

#[test]
#[ignore = "needs real cores: CORESIFT_LAB"]
fn real_cores_lead_to_the_same_pages_by_addresses_alone_as_by_contents() {
    for release in ["6.1", "6.12", "7.2"] {
        let (input, kernel) = real(release);
        let of = |reading| -> Vec<_> {
            walk(&kernel, input.memory(), reading).into_iter().map(|step| (step.name, step.pages)).collect()
        };
        assert_eq!(of(Reading::Addresses), of(Reading::Contents), "{release}");
    }
}

#[test]
#[ignore = "needs real cores: CORESIFT_LAB"]
fn real_cores_before_linux_6_0_have_log_nodes_and_sections_and_the_rest_is_said_to_be_unknown() {
    let (input, kernel) = real("5.10");
    for step in walk(&kernel, input.memory(), Reading::Contents) {
        let by_vmcoreinfo = ["kernel version", "memory nodes", "memory sections", "kernel log"].contains(&step.name);
        match &step.outcome {
            Outcome::Whole => assert!(by_vmcoreinfo && !step.pages.is_empty(), "{}", step.name),
            Outcome::Unknown(error) => {
                assert!(!by_vmcoreinfo && matches!(**error, KernelError::MissingKey { .. }), "{}", step.name);
            }
            Outcome::Broken { first, .. } => panic!("{}: {first}", step.name),
        }
    }
}

#[test]
fn a_machine_without_symbols_is_walked_as_far_as_vmcoreinfo_leads() {
    let image = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x3000).build();
    let input = Input::from_bytes(Arc::new(image.elf().with_image().bytes())).unwrap();
    let kernel = Kernel::open(&input, image.vmcoreinfo.as_bytes()).unwrap();
    let steps = walk(&kernel, input.memory(), Reading::Addresses);
    assert!(steps.iter().any(|step| !step.pages.is_empty()));
    let found = PageSet::from_ranges(steps.iter().flat_map(|s| &s.pages).map(|pfn| (*pfn, pfn.plus(1))));
    assert!(found.all_runs().all(|(start, _)| input.memory().ram().contains(start)));
}
