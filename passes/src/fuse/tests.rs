//! Fused patterns in many spellings, every rule on its own left side, reports.

mod attention;
mod every_rule;
mod reports;
mod spellings;
mod whys;

use ir::Graph;

use super::{FuseOptions, FuseReport, fuse};
use crate::Numerics;
use crate::canonicalize::canonicalize;
use crate::manager::{Phase, Unit};
use crate::testing::{Rounding, assert_same_values};

/// The canonical form fused; checks the phase and, without roundings, the values.
fn fused(graph: &Graph, options: &FuseOptions) -> (Graph, FuseReport) {
    let (canonical, _) = canonicalize(graph, options.numerics).expect("canonicalizes");
    let (result, report) = fuse(&canonical, options).expect("fuses");
    assert_eq!(result.faults(Phase::Fused), Vec::<String>::new());
    assert_same_values(graph, &result, Rounding::None, 1e-6);
    if options.numerics == Numerics::Exact {
        assert_same_values(graph, &result, Rounding::PerOp, 0.0);
    }
    let saturated: usize = report.stop_reasons.iter().map(|(_, count)| count).sum();
    assert_eq!(saturated, report.n_distinct_regions);
    assert!(report.stop_reasons.iter().all(|(reason, _)| *reason == super::StopReason::Saturated), "{report:?}");
    assert_eq!(report.gap_ps(), 0, "small regions are extracted exactly");
    (result, report)
}
