//! Which function tables the activation engine has loaded, and when it must load another.

use ir::program::{InstructionKind, TableSet};

/// A set of table sets; empty means that any table will do.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct TableSets(u8);

impl TableSets {
    /// The sets that hold the function of this instruction.
    pub(super) fn needed_by(kind: &InstructionKind) -> Self {
        let InstructionKind::Activation { function, .. } = kind else { return TableSets(0) };
        TableSets(function.table_sets().iter().fold(0, |bits, set| bits | Self::bit(*set)))
    }

    fn bit(set: TableSet) -> u8 {
        let position = TableSet::VALUES.iter().position(|value| *value == set);
        1 << position.expect("the list has every set")
    }

    fn first(self) -> Option<TableSet> {
        TableSet::VALUES.iter().copied().find(|set| self.0 & Self::bit(*set) != 0)
    }

    pub(super) fn is_any(self) -> bool {
        self.0 == 0
    }
}

/// The table sets that the load before the current instruction may have chosen.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct LoadedTables(TableSets);

impl LoadedTables {
    /// True before the first load.
    pub(super) fn is_nothing(self) -> bool {
        self.0.is_any()
    }

    /// True if a function of these sets needs another load.
    pub(super) fn must_load(self, needed: TableSets) -> bool {
        !needed.is_any() && self.0.0 & needed.0 == 0
    }

    /// Runs a function of these sets, loading first if it must.
    pub(super) fn run(&mut self, needed: TableSets) {
        if self.must_load(needed) {
            self.0 = needed;
        } else if !needed.is_any() {
            self.0 = TableSets(self.0.0 & needed.0);
        }
    }
}

/// For a sequence of needs, the loads that it takes as (position before which to load, set).
///
/// Each load serves the longest possible run, which makes the number of loads least.
pub(super) fn table_loads(needs: &[TableSets]) -> Vec<(usize, TableSet)> {
    let mut loads: Vec<(usize, TableSets)> = Vec::new();
    let mut loaded = LoadedTables::default();
    for (position, &needed) in needs.iter().enumerate() {
        if loaded.must_load(needed) {
            loads.push((position, needed));
        }
        loaded.run(needed);
        if let Some((_, sets)) = loads.last_mut() {
            *sets = loaded.0;
        }
    }
    loads.into_iter().filter_map(|(position, sets)| sets.first().map(|set| (position, set))).collect()
}

#[cfg(test)]
mod tests {
    use ir::program::{ActivationFunction, InstructionKind, ScalarOperand, TableSet, TileId, TileView};
    use smallvec::SmallVec;

    use super::{TableSets, table_loads};

    fn need(function: ActivationFunction) -> TableSets {
        let view = TileView {
            tile: TileId(0),
            partition: 0,
            n_partitions: 1,
            offset: 0,
            dims: SmallVec::new(),
            dtype: ir::Dtype::F32,
        };
        TableSets::needed_by(&InstructionKind::Activation {
            function,
            dst: view.clone(),
            data: view,
            scale: ScalarOperand::Immediate(1.0),
            bias: ScalarOperand::Immediate(0.0),
            reduce: None,
            reduce_result: None,
        })
    }

    #[test]
    fn functions_of_every_set_need_no_load() {
        assert!(table_loads(&[need(ActivationFunction::Copy), need(ActivationFunction::Square)]).is_empty());
    }

    #[test]
    fn exp_and_log_share_the_set_that_has_both() {
        let needs = [ActivationFunction::Exp, ActivationFunction::Square, ActivationFunction::Log].map(need);
        assert_eq!(table_loads(&needs), vec![(0, TableSet::NaturalLogExpAndOthers)]);
    }

    #[test]
    fn a_new_set_is_loaded_where_it_is_first_needed() {
        let needs =
            [ActivationFunction::Copy, ActivationFunction::Tanh, ActivationFunction::Exp, ActivationFunction::Log];
        let loads = table_loads(&needs.map(need));
        assert_eq!(loads, vec![(1, TableSet::ExpAndOthers), (3, TableSet::NaturalLogExpAndOthers)]);
    }
}
