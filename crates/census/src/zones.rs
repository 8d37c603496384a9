//! Node and zone of a page frame, by the spans of zones.

use crate::frames::{Frames, NULL_INT};
use crate::names::{NameId, Names};
use coresift_format::Pfn;
use coresift_kernel::nodes::ZoneSpan;

/// A zone's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Zone {
    start: Pfn,
    end: Pfn,
    node: i32,
    name: NameId,
}

/// The zones of a machine.
#[derive(Clone, Debug, Default)]
pub struct Zones(Vec<Zone>);

impl Zones {
    /// The zones of a dump's kernel.
    #[must_use]
    pub fn of_spans(spans: &[ZoneSpan], names: &Names) -> Self {
        let zone = |span: &ZoneSpan| Zone {
            start: span.start,
            end: span.end,
            node: i32::try_from(span.node).unwrap_or(NULL_INT),
            name: names.id(&span.name),
        };
        Self(spans.iter().map(zone).collect())
    }

    /// Node and zone of the rows of the frames `start..end`, which begin at `row`.
    pub fn fill(&self, start: Pfn, end: Pfn, row: usize, frames: &mut Frames) {
        let mut at = start;
        for (to, zone) in self.of(start, end) {
            let rows = row + (at.0 - start.0) as usize..row + (to.0 - start.0) as usize;
            if let Some((node, name)) = zone {
                if let Some(nodes) = frames.node.get_mut(rows.clone()) {
                    nodes.fill(node);
                }
                if let Some(zones) = frames.zone.get_mut(rows) {
                    zones.fill(name);
                }
            }
            at = to;
        }
    }

    /// The zones in `text`, the content of /proc/zoneinfo. What cannot be read in it is left out.
    #[must_use]
    pub fn parse(text: &str, names: &Names) -> Self {
        let mut zones = Vec::new();
        let mut zone: Option<(i32, &str)> = None;
        let mut spanned = None;
        for line in text.lines() {
            if let Some((node, name)) = line.strip_prefix("Node ").and_then(|l| l.split_once(", zone")) {
                zone = node.parse().ok().map(|node| (node, name.trim()));
                spanned = None;
                continue;
            }
            let mut words = line.split_whitespace();
            match (words.next(), words.next().and_then(|n| n.parse::<u64>().ok())) {
                (Some("spanned"), n) => spanned = n,
                (Some("start_pfn:"), Some(start)) => {
                    if let (Some((node, name)), Some(pages @ 1..)) = (zone, spanned) {
                        let end = Pfn(start.saturating_add(pages));
                        zones.push(Zone { start: Pfn(start), end, node, name: names.id(name) });
                    }
                }
                _ => {}
            }
        }
        Self(zones)
    }

    /// Node and zone of each frame of `start..end`, as ranges up to a frame. Frames that no zone spans, and those that two do (nodes whose
    /// memory is interleaved), have none.
    pub fn of(&self, start: Pfn, end: Pfn) -> impl Iterator<Item = (Pfn, Option<(i32, NameId)>)> + '_ {
        let mut at = start;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let mut here = self.0.iter().filter(|z| z.start <= at && at < z.end);
            let zone = match (here.next(), here.next()) {
                (Some(zone), None) => Some((zone.node, zone.name)),
                _ => None,
            };
            let borders = self.0.iter().flat_map(|z| [z.start, z.end]).filter(|b| *b > at);
            at = borders.min().unwrap_or(end).min(end);
            Some((at, zone))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Node 0, zone      DMA\n  per-node stats\n        spanned  4095\n        present  3998\n  start_pfn:           1\n\
                        Node 0, zone   Normal\n        spanned  1000\n  start_pfn:           4096\n\
                        Node 1, zone   Normal\n        spanned  500\n  start_pfn:           4596\n\
                        Node 1, zone  Movable\n        spanned  0\n  start_pfn:           0\n";

    #[test]
    fn a_frame_that_two_nodes_span_has_no_node() {
        let names = Names::default();
        let zones = Zones::parse(TEXT, &names);
        let (dma, normal) = (names.id("DMA"), names.id("Normal"));
        let all: Vec<_> = zones.of(Pfn(0), Pfn(6000)).collect();
        assert_eq!(
            all,
            [
                (Pfn(1), None),
                (Pfn(4096), Some((0, dma))),
                (Pfn(4596), Some((0, normal))),
                (Pfn(5096), None),
                (Pfn(6000), None),
            ]
        );
    }
}
