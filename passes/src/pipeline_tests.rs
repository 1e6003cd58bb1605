//! Properties of `schedule`, `allocate` and `synchronize` together, on random programs.

use ir::Program;
use ir::program::{HbmKind, Space};
use ir::target::TargetName;
use proptest::prelude::{ProptestConfig, Strategy, prop_assert, prop_assert_eq};
use proptest::proptest;
use proptest::sample::select;

use crate::allocate::{allocate, check_allocation, spill_bound};
use crate::machine::{Builder, Machine, random_program, view};
use crate::schedule::{ScheduleOptions, schedule};
use crate::synchronize::{check_synchronization, synchronize};

fn targets() -> impl Strategy<Value = TargetName> {
    select(TargetName::ALL.to_vec())
}

fn compiled(program: &Program) -> Program {
    let (scheduled, _) = schedule(program.clone(), &ScheduleOptions::default());
    let (allocated, _) = allocate(scheduled).expect("test programs fit");
    synchronize(allocated).expect("test programs need few semaphores").0
}

#[track_caller]
fn expect_clean(program: &Program) {
    let faults: Vec<String> =
        check_allocation(program).iter().chain(&check_synchronization(program)).map(ToString::to_string).collect();
    assert!(faults.is_empty(), "{}\n{program}", faults.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_stage_keeps_the_meaning(target in targets(), seed in 0..1u64 << 40, n_steps in 1..40usize) {
        let lowered = random_program(target, seed, n_steps, 12);
        let meaning = Machine::meaning(&lowered);
        let (scheduled, _) = schedule(lowered.clone(), &ScheduleOptions::default());
        prop_assert_eq!(&Machine::meaning(&scheduled), &meaning, "scheduled:\n{}", scheduled);
        let (allocated, _) = allocate(scheduled.clone()).expect("test programs fit");
        prop_assert_eq!(&Machine::meaning(&allocated), &meaning, "allocated:\n{}", allocated);
        let (synchronized, _) = synchronize(allocated.clone()).expect("test programs need few semaphores");
        expect_clean(&synchronized);
        for run in 0..8 {
            let outputs = Machine::race(&synchronized, seed ^ (run << 41));
            prop_assert_eq!(outputs.as_ref(), Ok(&meaning), "{}", synchronized);
        }
    }

    #[test]
    fn every_wait_is_needed(target in targets(), seed in 0..1u64 << 40, n_steps in 1..25usize) {
        let program = compiled(&random_program(target, seed, n_steps, 12));
        for position in 0..program.instructions.len() {
            for dropped in 0..program.instructions[position].waits.len() {
                let mut mutant = program.clone();
                mutant.instructions[position].waits.remove(dropped);
                prop_assert!(!check_synchronization(&mutant).is_empty(), "wait {dropped} of {position} in\n{program}");
            }
        }
    }

    #[test]
    fn every_collision_is_reported(target in targets(), seed in 0..1u64 << 40, n_steps in 2..25usize) {
        let program = compiled(&random_program(target, seed, n_steps, 12));
        let ranges = live_ranges(&program);
        for (tile, range) in ranges.iter().enumerate() {
            let mut others = (0..ranges.len()).filter(|&other| {
                let together = range.zip(ranges[other]).is_some_and(|(own, other)| own.0 <= other.1 && other.0 <= own.1);
                other != tile && together && program.tiles[other].space == program.tiles[tile].space
            });
            let Some(other) = others.next() else { continue };
            let mut mutant = program.clone();
            mutant.tiles[tile].address = program.tiles[other].address;
            prop_assert!(!check_allocation(&mutant).is_empty(), "%t{tile} on %t{other} in\n{program}");
        }
    }
}

/// First and last position that names each tile.
fn live_ranges(program: &Program) -> Vec<Option<(usize, usize)>> {
    let mut ranges: Vec<Option<(usize, usize)>> = vec![None; program.tiles.len()];
    for (position, instruction) in program.instructions.iter().enumerate() {
        let mut kind = instruction.kind.clone();
        kind.for_each_tile_mut(&mut |tile| {
            let range = ranges[tile.index()].get_or_insert((position, position));
            range.1 = position;
        });
    }
    ranges
}

#[test]
fn tiles_beyond_sbuf_are_spilled_and_come_back() {
    // Six tiles of a quarter of SBUF each, all read again at the end.
    for target in TargetName::ALL {
        let mut builder = Builder::new(target);
        let n_columns = target.target().sbuf_usable_bytes / 16;
        let input = builder.tensor(HbmKind::Input(0), n_columns);
        let output = builder.tensor(HbmKind::Output(0), n_columns);
        let tiles: Vec<_> = (0..6).map(|_| builder.tile(Space::Sbuf, n_columns)).collect();
        for &tile in &tiles {
            builder.load(tile, input, 0, n_columns);
        }
        for &tile in &tiles[1..] {
            builder.add(view(tile, 0, 8), view(tile, 0, 8), view(tiles[0], 0, 8));
        }
        for &tile in &tiles {
            builder.store(output, tile, 0, 8);
        }
        let (scheduled, _) = schedule(builder.program.clone(), &ScheduleOptions::default());
        let (allocated, statistics) = allocate(scheduled.clone()).expect("spilling makes room");
        assert!(statistics.n_spilled_tiles > 0 && statistics.spill_bytes > 0, "{statistics}");
        assert!((1..=statistics.spill_bytes).contains(&spill_bound(&scheduled)), "{statistics}");
        let (synchronized, _) = synchronize(allocated.clone()).expect("few semaphores are needed");
        expect_clean(&synchronized);
    }
}

/// Makes a random program's SBUF tiles so long that only about `n_tiles` fit at once.
fn with_long_tiles(mut program: Program, n_tiles: u32) -> Program {
    let usable = program.target.target().sbuf_usable_bytes;
    for tile in program.tiles.iter_mut().filter(|tile| tile.space == Space::Sbuf) {
        tile.bytes_per_partition = usable / n_tiles / 4 * 4;
    }
    program
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_survive_spilling(
        target in targets(),
        seed in 0..1u64 << 40,
        n_steps in 10..60usize,
        n_tiles in 3..7u32,
    ) {
        let lowered = with_long_tiles(random_program(target, seed, n_steps, 12), n_tiles);
        let meaning = Machine::meaning(&lowered);
        let (scheduled, _) = schedule(lowered.clone(), &ScheduleOptions::default());
        let (allocated, statistics) = allocate(scheduled.clone()).expect("one instruction's tiles fit");
        prop_assert!(spill_bound(&scheduled) <= statistics.spill_bytes, "{}", statistics);
        prop_assert_eq!(&Machine::meaning(&allocated), &meaning, "allocated:\n{}", allocated);
        let (synchronized, _) = synchronize(allocated.clone()).expect("test programs need few semaphores");
        expect_clean(&synchronized);
        for run in 0..4 {
            let outputs = Machine::race(&synchronized, seed ^ (run << 41));
            prop_assert_eq!(outputs.as_ref(), Ok(&meaning), "{}", synchronized);
        }
    }
}

#[test]
fn loads_far_ahead_of_their_use_are_put_off_instead_of_repeated() {
    let target = TargetName::Trn2;
    let mut builder = Builder::new(target);
    let n_columns = target.target().sbuf_usable_bytes / 16;
    let input = builder.tensor(HbmKind::Input(0), n_columns);
    let output = builder.tensor(HbmKind::Output(0), n_columns);
    let tiles: Vec<_> = (0..12).map(|_| builder.tile(Space::Sbuf, n_columns)).collect();
    for &tile in &tiles {
        builder.load(tile, input, 0, 8);
    }
    for &tile in &tiles {
        builder.store(output, tile, 0, 8);
    }
    let (scheduled, _) = schedule(builder.program.clone(), &ScheduleOptions::default());
    let (allocated, statistics) = allocate(scheduled.clone()).expect("spilling makes room");
    assert_eq!((statistics.n_spill_transfers, statistics.spill_bytes), (0, 0), "{allocated}");
    assert_eq!(allocated.instructions.len(), 24);
    assert_eq!(Machine::meaning(&allocated), Machine::meaning(&builder.program));
}

#[test]
fn spilled_programs_keep_their_meaning() {
    // The tiles are wide, so that few fit, but only their first columns are used.
    let mut builder = Builder::new(TargetName::Trn2);
    let n_columns = TargetName::Trn2.target().sbuf_usable_bytes / 16;
    let input = builder.tensor(HbmKind::Input(0), n_columns);
    let output = builder.tensor(HbmKind::Output(0), n_columns);
    let tiles: Vec<_> = (0..6).map(|_| builder.tile(Space::Sbuf, n_columns)).collect();
    for &tile in &tiles {
        builder.load(tile, input, 0, 16);
    }
    for pair in tiles.windows(2) {
        builder.add(view(pair[1], 2, 4), view(pair[0], 3, 4), view(pair[1], 4, 4));
    }
    for (position, &tile) in tiles.iter().enumerate() {
        builder.store(output, tile, position as u32, 8 - position as u32);
    }
    let meaning = Machine::meaning(&builder.program);
    let (scheduled, _) = schedule(builder.program.clone(), &ScheduleOptions::default());
    let (allocated, statistics) = allocate(scheduled.clone()).expect("spilling makes room");
    assert!(statistics.n_spilled_tiles > 0, "{statistics}");
    assert_eq!(Machine::meaning(&allocated), meaning, "{allocated}");
    let (synchronized, _) = synchronize(allocated.clone()).expect("few semaphores are needed");
    expect_clean(&synchronized);
    for run in 0..20 {
        assert_eq!(Machine::race(&synchronized, run).as_ref(), Ok(&meaning), "{synchronized}");
    }
}

/// Output tiles of a matmul that loads its operands for each of them: `n_blocks` of them, each the
/// sum of `n_steps` products, evicted and stored.
fn blocked_matmul(target: TargetName, n_blocks: u32, n_steps: u32) -> Program {
    let mut builder = Builder::new(target);
    let n_columns = 128;
    let left = builder.tensor(HbmKind::Input(0), n_columns * n_steps);
    let right = builder.tensor(HbmKind::Input(1), n_columns * n_steps);
    let output = builder.tensor(HbmKind::Output(0), n_columns * n_blocks);
    for block in 0..n_blocks {
        let bank = builder.tile(Space::Psum, n_columns);
        for step in 0..n_steps {
            let (stationary, moving) = (builder.tile(Space::Sbuf, n_columns), builder.tile(Space::Sbuf, n_columns));
            builder.load_from(stationary, left, step * n_columns, n_columns);
            builder.load_from(moving, right, step * n_columns, n_columns);
            let views = [bank, stationary, moving].map(|tile| view(tile, 0, n_columns));
            builder.multiply(views, step > 0);
        }
        let result = builder.tile(Space::Sbuf, n_columns);
        builder.copy(view(result, 0, n_columns), view(bank, 0, n_columns));
        builder.store_to(output, block * n_columns, result, n_columns);
    }
    builder.program
}

#[test]
fn loads_run_ahead_no_further_than_memory_allows() {
    // The operands of all blocks together are 60 times what SBUF holds.
    let program = blocked_matmul(TargetName::Trn2, 200, 6);
    let (scheduled, _) = schedule(program, &ScheduleOptions { sbuf_percent: 10 });
    let (allocated, statistics) = allocate(scheduled.clone()).expect("a tenth of SBUF was planned for");
    assert_eq!(statistics.n_spilled_tiles, 0);
    let usable = u64::from(TargetName::Trn2.target().sbuf_usable_bytes);
    assert!(statistics.sbuf_live_bound_bytes <= usable / 10, "{statistics}");
    let (synchronized, _) = synchronize(allocated.clone()).expect("few semaphores are needed");
    expect_clean(&synchronized);
}
