//! Rules of compute instructions: engine, memories, shapes, types, operators.

use super::{Checker, Rule};
use crate::program::{
    Accesses, ActivationFunction, AluOp, Engine, InstructionKind, ReduceCommand, ScalarOperand, TileView,
};
use crate::types::Dtype;

/// The engine has the instruction, and reaches the memories of its operands.
pub(super) fn check_engine_and_memory(
    checker: &mut Checker<'_>,
    engine: Engine,
    kind: &InstructionKind,
    accesses: &Accesses<'_>,
) {
    let target = checker.target;
    let has_it = match kind {
        InstructionKind::Activation { .. } | InstructionKind::LoadTable { .. } => engine == Engine::Act,
        InstructionKind::TensorScalar { .. } => match engine {
            Engine::Dve => true,
            Engine::Act => target.act_tensor_ops,
            Engine::Pe | Engine::Pool | Engine::Sp => false,
        },
        InstructionKind::TensorCopy { .. } => match engine {
            Engine::Dve | Engine::Pool => true,
            Engine::Act => target.act_tensor_ops,
            Engine::Pe | Engine::Sp => false,
        },
        InstructionKind::TensorScalarReduce { .. }
        | InstructionKind::ScalarTensorTensor { .. }
        | InstructionKind::TensorReduce { .. }
        | InstructionKind::TensorTensorScan { .. }
        | InstructionKind::TensorCopyPredicated { .. }
        | InstructionKind::Reciprocal { .. }
        | InstructionKind::BnStats { .. }
        | InstructionKind::BnAggr { .. } => engine == Engine::Dve,
        InstructionKind::TensorTensor { .. } | InstructionKind::Memset { .. } => {
            matches!(engine, Engine::Dve | Engine::Pool)
        }
        InstructionKind::Iota { .. } => engine == Engine::Pool,
        InstructionKind::Matmul { .. } => engine == Engine::Pe,
        InstructionKind::Transpose { .. } => matches!(engine, Engine::Pe | Engine::Dve),
        InstructionKind::Dma { .. }
        | InstructionKind::Sync
        | InstructionKind::Call { .. }
        | InstructionKind::Return
        | InstructionKind::ClearSemaphores { .. } => true,
    };
    checker.require(has_it, Rule::Engine, || format!("cannot run on {} of {}", engine.name(), target.name));
    let some_in_psum = |views: &[&TileView]| views.iter().any(|view| checker.in_psum(view));
    match engine {
        Engine::Pool => {
            let touches_psum = some_in_psum(&accesses.tile_reads) || some_in_psum(&accesses.tile_writes);
            checker.require(!touches_psum, Rule::Memory, || "touches PSUM, which pool cannot reach");
        }
        Engine::Pe => {
            // An accumulating matmul reads its result too, which lies in PSUM.
            let operands_in_psum = if let InstructionKind::Matmul { stationary, moving, .. } = kind {
                checker.in_psum(stationary) || checker.in_psum(moving)
            } else {
                some_in_psum(&accesses.tile_reads)
            };
            checker.require(!operands_in_psum, Rule::Memory, || "reads an operand from PSUM; pe reads SBUF");
            for view in accesses.tile_reads.iter().chain(&accesses.tile_writes) {
                check_array_tile(checker, view);
            }
            let all_in_psum = accesses.tile_writes.iter().all(|view| checker.in_psum(view));
            checker.require(all_in_psum, Rule::Memory, || "writes to SBUF; pe writes PSUM");
        }
        Engine::Act | Engine::Dve | Engine::Sp => {}
    }
}

/// Shapes, types and operators of one instruction.
pub(super) fn check_operation(checker: &mut Checker<'_>, engine: Engine, kind: &InstructionKind) {
    match kind {
        InstructionKind::Activation { function, dst, data, scale, bias, reduce, reduce_result } => {
            same_shape(checker, dst, data);
            check_scalar(checker, "scale", scale, data);
            check_bias(checker, *function, bias, data);
            check_row_sum(checker, dst, *reduce, reduce_result.as_ref());
        }
        InstructionKind::TensorScalar { dst, data, op0, operand0, second, reverse0: _ } => {
            same_shape(checker, dst, data);
            check_tensor_scalar(checker, engine, [dst, data], *op0, operand0, second.as_ref());
        }
        InstructionKind::TensorScalarReduce { dst, data, op0, operand0, reduce_op, reduce_result } => {
            same_shape(checker, dst, data);
            arithmetic(checker, *op0, operand0, data);
            let legal = matches!(reduce_op, AluOp::Add | AluOp::Multiply | AluOp::Max | AluOp::Min);
            checker.require(legal, Rule::Operator, || format!("reduces with {reduce_op:?}"));
            one_per_partition(checker, "the reduction", reduce_result, dst);
            float(checker, "the reduction", reduce_result);
        }
        InstructionKind::ScalarTensorTensor { dst, data, op0, operand0, op1, operand1, reverse0: _, reverse1: _ } => {
            same_shape(checker, dst, data);
            same_shape(checker, dst, operand1);
            arithmetic(checker, *op0, operand0, data);
            binary_arithmetic(checker, *op1);
            not_both_psum(checker, data, operand1);
        }
        InstructionKind::TensorTensor { dst, lhs, rhs, op } => {
            check_tensor_tensor(checker, engine, [dst, lhs, rhs], *op)
        }
        InstructionKind::TensorReduce { dst, data, op, n_reduced_dims, negate } => {
            check_tensor_reduce(checker, dst, data, *op, *n_reduced_dims);
            checker.require(!negate || !is_bitwise(*op), Rule::Operator, || format!("negates the result of {op:?}"));
        }
        InstructionKind::TensorTensorScan { dst, data0, data1, initial, op0, op1 } => {
            same_shape(checker, dst, data0);
            same_shape(checker, dst, data1);
            check_scalar(checker, "the initial value", initial, data0);
            binary_arithmetic(checker, *op0);
            binary_arithmetic(checker, *op1);
            not_both_psum(checker, data0, data1);
        }
        InstructionKind::TensorCopy { dst, src } | InstructionKind::Reciprocal { dst, data: src } => {
            same_shape(checker, dst, src);
        }
        InstructionKind::TensorCopyPredicated { dst, src, predicate } => {
            same_shape(checker, dst, src);
            same_shape(checker, dst, predicate);
            not_both_psum(checker, src, predicate);
            checker.require(dst.dtype == src.dtype, Rule::Type, || format!("copies {} to {}", src.dtype, dst.dtype));
            let integer = predicate.dtype.is_integer() || predicate.dtype == Dtype::Bool;
            checker.require(integer, Rule::Type, || format!("has a {} predicate", predicate.dtype));
        }
        InstructionKind::Memset { dst, value } => {
            let fits = dst.dtype.is_float() || value.fract() == 0.0;
            checker.require(fits, Rule::Operator, || format!("stores {value} in {}", dst.dtype));
        }
        InstructionKind::Iota { dst, steps, offset: _, channel_multiplier: _ } => {
            checker.require(steps.len() == dst.dims.len(), Rule::Shape, || {
                format!("has {} steps for {} dimensions", steps.len(), dst.dims.len())
            });
        }
        InstructionKind::BnStats { dst, data } => {
            let limit = checker.target.bn_stats_max as usize;
            statistics(checker, dst, data, 6);
            checker.require(data.n_elements() <= limit, Rule::Extent, || {
                format!("takes {} elements; at most {limit}", data.n_elements())
            });
        }
        InstructionKind::BnAggr { dst, data } => {
            statistics(checker, dst, data, 2);
            checker.require(data.n_elements().is_multiple_of(3), Rule::Shape, || {
                format!("takes {} elements, not triples", data.n_elements())
            });
        }
        InstructionKind::Matmul { dst, stationary, moving, accumulate: _ } => {
            check_matmul(checker, dst, stationary, moving);
        }
        InstructionKind::Transpose { dst, data } => check_transpose(checker, engine, dst, data),
        InstructionKind::Dma { .. }
        | InstructionKind::LoadTable { .. }
        | InstructionKind::Sync
        | InstructionKind::Call { .. }
        | InstructionKind::Return
        | InstructionKind::ClearSemaphores { .. } => {}
    }
}

fn same_shape(checker: &mut Checker<'_>, lhs: &TileView, rhs: &TileView) {
    let shape = |view: &TileView| (view.n_partitions, view.n_elements());
    let (left, right) = (shape(lhs), shape(rhs));
    checker.require(left == right, Rule::Shape, || {
        format!("has operands of {} x {} and {} x {} elements", left.0, left.1, right.0, right.1)
    });
}

fn one_per_partition(checker: &mut Checker<'_>, role: &str, view: &TileView, like: &TileView) {
    let fits = view.n_elements() == 1 && view.n_partitions == like.n_partitions;
    checker.require(fits, Rule::Shape, || {
        format!(
            "has {} x {} elements for {role}; one for each of {} partitions",
            view.n_partitions,
            view.n_elements(),
            like.n_partitions
        )
    });
}

fn float(checker: &mut Checker<'_>, role: &str, view: &TileView) {
    checker.require(view.dtype.is_float(), Rule::Type, || format!("has {role} in {}", view.dtype));
}

fn check_scalar(checker: &mut Checker<'_>, role: &str, operand: &ScalarOperand, data: &TileView) {
    let Some(view) = operand.vector() else { return };
    one_per_partition(checker, role, view, data);
    checker.require(view.dtype == Dtype::F32, Rule::Type, || format!("has {role} in {}; it is f32", view.dtype));
}

fn check_bias(checker: &mut Checker<'_>, function: ActivationFunction, bias: &ScalarOperand, data: &TileView) {
    let target = checker.target;
    match bias {
        ScalarOperand::Immediate(value) => {
            checker.require(target.act_scalar_bias || *value == 0.0, Rule::Operator, || {
                format!("has the bias {value} as an immediate, which {} does not take", target.name)
            });
        }
        ScalarOperand::Vector(view) => {
            one_per_partition(checker, "the bias", view, data);
            let allowed = target.act_scalar_bias || function != ActivationFunction::Reciprocal;
            checker.require(allowed, Rule::Operator, || {
                format!("has a bias on reciprocal, which {} does not take", target.name)
            });
        }
    }
}

fn check_row_sum(
    checker: &mut Checker<'_>,
    dst: &TileView,
    reduce: Option<ReduceCommand>,
    reduce_result: Option<&TileView>,
) {
    let Some(result) = reduce_result else { return };
    checker.require(reduce.is_some(), Rule::Operator, || "reads a row sum that it does not accumulate");
    one_per_partition(checker, "the row sum", result, dst);
    float(checker, "the row sum", result);
}

fn is_bitwise(op: AluOp) -> bool {
    matches!(op, AluOp::BitwiseAnd | AluOp::BitwiseOr | AluOp::BitwiseXor | AluOp::ShiftLeft | AluOp::ShiftRight)
}

fn is_unary(op: AluOp) -> bool {
    matches!(op, AluOp::Abs | AluOp::LogicalNot)
}

/// An arithmetic operator with a scalar operand on DVE or ACT.
fn arithmetic(checker: &mut Checker<'_>, op: AluOp, operand: &ScalarOperand, data: &TileView) {
    checker.require(!is_bitwise(op) && op != AluOp::Power, Rule::Operator, || format!("does not take {op:?} here"));
    check_operand(checker, op, operand, data);
}

fn check_operand(checker: &mut Checker<'_>, op: AluOp, operand: &ScalarOperand, data: &TileView) {
    let is_zero = matches!(operand, ScalarOperand::Immediate(value) if value.to_bits() == 0);
    checker.require(!is_unary(op) || is_zero, Rule::Operator, || format!("has an operand for {op:?}, which is unary"));
    if is_bitwise(op) {
        let view = match operand {
            ScalarOperand::Vector(view) => view,
            ScalarOperand::Immediate(value) => {
                let is_integer = value.fract() == 0.0;
                checker.require(is_integer, Rule::Operator, || format!("combines bits with {value}"));
                return;
            }
        };
        one_per_partition(checker, "an operand", view, data);
        checker.require(view.dtype == data.dtype, Rule::Type, || {
            format!("combines {} with {} bit by bit", data.dtype, view.dtype)
        });
    } else {
        check_scalar(checker, "an operand", operand, data);
    }
}

/// An arithmetic operator between two tensors on DVE.
fn binary_arithmetic(checker: &mut Checker<'_>, op: AluOp) {
    let legal = !is_bitwise(op) && !is_unary(op) && op != AluOp::Power;
    checker.require(legal, Rule::Operator, || format!("does not take {op:?} here"));
}

fn not_both_psum(checker: &mut Checker<'_>, lhs: &TileView, rhs: &TileView) {
    let both = checker.in_psum(lhs) && checker.in_psum(rhs);
    checker.require(!both, Rule::Memory, || "reads both tensors from PSUM");
}

fn check_tensor_scalar(
    checker: &mut Checker<'_>,
    engine: Engine,
    views: [&TileView; 2],
    op0: AluOp,
    operand0: &ScalarOperand,
    second: Option<&(AluOp, ScalarOperand, bool)>,
) {
    let [_, data] = views;
    let op1 = second.map(|(op, _, _)| *op);
    let no_power = op0 != AluOp::Power && op1 != Some(AluOp::Power);
    checker.require(no_power, Rule::Operator, || "does not take Power");
    let one_class = op1.is_none_or(|op| is_bitwise(op) == is_bitwise(op0));
    checker.require(one_class, Rule::Operator, || format!("mixes {op0:?} with {op1:?}"));
    if is_bitwise(op0) {
        bit_types(checker, &views);
    }
    check_operand(checker, op0, operand0, data);
    if let Some((op, operand, _)) = second {
        check_operand(checker, *op, operand, data);
    }
    if engine == Engine::Act {
        let legal = matches!((op0, op1), (AluOp::Multiply, None | Some(AluOp::Add)) | (AluOp::Add, None));
        checker.require(legal, Rule::Operator, || format!("takes no {op0:?} and {op1:?} on act"));
    }
}

/// Bitwise operators work on raw bits of one integer type.
fn bit_types(checker: &mut Checker<'_>, views: &[&TileView]) {
    let first = views[0].dtype;
    let legal = views.iter().all(|view| view.dtype == first && (first.is_integer() || first == Dtype::Bool));
    checker.require(legal, Rule::Type, || {
        let types: Vec<&str> = views.iter().map(|view| view.dtype.name()).collect();
        format!("combines {} bit by bit; all are one integer type", types.join(", "))
    });
}

fn check_tensor_tensor(checker: &mut Checker<'_>, engine: Engine, views: [&TileView; 3], op: AluOp) {
    let [dst, lhs, rhs] = views;
    same_shape(checker, dst, lhs);
    same_shape(checker, dst, rhs);
    checker.require(!is_unary(op), Rule::Operator, || format!("does not take {op:?}, which is unary"));
    let all_i32 = views.iter().all(|view| view.dtype == Dtype::I32);
    match engine {
        Engine::Pool => {
            let legal = all_i32 && !is_bitwise(op) || matches!(op, AluOp::Power | AluOp::Add | AluOp::Multiply);
            checker.require(legal, Rule::Operator, || format!("takes no {op:?} of these types on pool"));
        }
        Engine::Pe | Engine::Act | Engine::Dve | Engine::Sp => {
            checker.require(op != AluOp::Power, Rule::Operator, || "takes Power on pool only");
            not_both_psum(checker, lhs, rhs);
        }
    }
    if is_bitwise(op) {
        bit_types(checker, &views);
    }
}

fn check_tensor_reduce(checker: &mut Checker<'_>, dst: &TileView, data: &TileView, op: AluOp, n_reduced_dims: u8) {
    let n_reduced = usize::from(n_reduced_dims);
    let legal = match op {
        AluOp::Add
        | AluOp::Subtract
        | AluOp::Multiply
        | AluOp::Max
        | AluOp::Min
        | AluOp::LogicalAnd
        | AluOp::LogicalOr
        | AluOp::LogicalXor
        | AluOp::BitwiseAnd
        | AluOp::BitwiseOr
        | AluOp::BitwiseXor => true,
        AluOp::Equal
        | AluOp::NotEqual
        | AluOp::Greater
        | AluOp::GreaterEqual
        | AluOp::Less
        | AluOp::LessEqual
        | AluOp::Power
        | AluOp::Abs
        | AluOp::LogicalNot
        | AluOp::ShiftLeft
        | AluOp::ShiftRight => false,
    };
    checker.require(legal, Rule::Operator, || format!("does not reduce with {op:?}"));
    if is_bitwise(op) {
        bit_types(checker, &[dst, data]);
    }
    let in_range = (1..=data.dims.len()).contains(&n_reduced);
    checker.require(in_range, Rule::Shape, || format!("reduces {n_reduced} of {} dimensions", data.dims.len()));
    if in_range {
        let kept: usize = data.dims[..data.dims.len() - n_reduced].iter().map(|dim| usize::from(dim.count)).product();
        let fits = dst.n_partitions == data.n_partitions && dst.n_elements() == kept;
        checker.require(fits, Rule::Shape, || {
            format!(
                "reduces to {} x {kept} elements but writes {} x {}",
                data.n_partitions,
                dst.n_partitions,
                dst.n_elements()
            )
        });
    }
}

fn statistics(checker: &mut Checker<'_>, dst: &TileView, data: &TileView, n_results: usize) {
    let fits = dst.n_partitions == data.n_partitions && dst.n_elements() == n_results;
    checker.require(fits, Rule::Shape, || {
        format!("writes {} x {} elements; {} x {n_results}", dst.n_partitions, dst.n_elements(), data.n_partitions)
    });
    float(checker, "statistics", dst);
    float(checker, "data", data);
}

fn check_matmul(checker: &mut Checker<'_>, dst: &TileView, stationary: &TileView, moving: &TileView) {
    let target = checker.target;
    let (m, n) = (stationary.n_elements(), moving.n_elements());
    checker.require(stationary.n_partitions == moving.n_partitions, Rule::Shape, || {
        format!("contracts {} with {} partitions", stationary.n_partitions, moving.n_partitions)
    });
    if let (Some(left), Some(right)) = (first_partition(checker, stationary), first_partition(checker, moving)) {
        checker.require(left == right, Rule::Partitions, || {
            format!("has its operands at partitions {left} and {right}; a row of the array reads one partition")
        });
    }
    let (m_max, n_max) = (target.matmul_stationary_max as usize, target.matmul_moving_max as usize);
    // A bf16 result takes half the room, so twice the columns fit where banks may be crossed.
    let n_max = if dst.dtype == Dtype::Bf16 { n_max * 2 } else { n_max };
    checker.require(m <= m_max, Rule::Extent, || format!("has {m} stationary columns; at most {m_max}"));
    checker.require(n <= n_max, Rule::Extent, || format!("has {n} moving columns; at most {n_max}"));
    let fits = usize::from(dst.n_partitions) == m && dst.n_elements() == n;
    checker.require(fits, Rule::Shape, || {
        format!("writes {} x {} elements of a {m} x {n} result", dst.n_partitions, dst.n_elements())
    });
    let result_fits = dst.dtype == Dtype::F32 || (dst.dtype == Dtype::Bf16 && target.psum_bf16_accumulate);
    checker.require(result_fits, Rule::Type, || format!("accumulates {} on {}", dst.dtype, target.name));
    float(checker, "an operand", stationary);
    float(checker, "an operand", moving);
    let paired = (stationary.dtype == Dtype::F32) == (moving.dtype == Dtype::F32);
    checker.require(paired, Rule::Type, || {
        format!("multiplies {} by {}; f32 goes with f32 only", stationary.dtype, moving.dtype)
    });
}

/// An operand or result uses rows or columns of the array, which come in parts; results start at
/// words of PSUM.
fn check_array_tile(checker: &mut Checker<'_>, view: &TileView) {
    let least = checker.target.pe_tile_min;
    let Some(first) = first_partition(checker, view) else { return };
    checker.require(first.is_multiple_of(least), Rule::Partitions, || {
        format!("starts at partition {first}; parts of the array start at multiples of {least}")
    });
    let start = view.byte_range().0 + start_byte(checker, view);
    let is_word = !checker.in_psum(view) || start % 4 == 0;
    checker.require(is_word, Rule::Alignment, || format!("writes to byte {start} of PSUM, within a word"));
}

/// First byte of the view's tile.
fn start_byte(checker: &Checker<'_>, view: &TileView) -> i64 {
    let address = checker.tiles.get(view.tile.index()).and_then(|tile| tile.address);
    address.map_or(0, |address| i64::from(address.start_byte))
}

/// First partition in the memory, where the tile has an address.
fn first_partition(checker: &Checker<'_>, view: &TileView) -> Option<u32> {
    let address = checker.tiles.get(view.tile.index())?.address?;
    Some(u32::from(address.partition) + u32::from(view.partition))
}

fn check_transpose(checker: &mut Checker<'_>, engine: Engine, dst: &TileView, data: &TileView) {
    let target = checker.target;
    let limit = match engine {
        Engine::Pe => target.matmul_stationary_max,
        Engine::Act | Engine::Dve | Engine::Pool | Engine::Sp => target.dve_transpose_max,
    };
    let (rows, columns) = (u32::from(data.n_partitions), data.n_elements() as u32);
    checker.require(rows <= limit && columns <= limit, Rule::Extent, || {
        format!("transposes {rows} x {columns}; at most {limit} x {limit} on {}", engine.name())
    });
    let fits = u32::from(dst.n_partitions) == columns && dst.n_elements() as u32 == rows;
    checker.require(fits, Rule::Shape, || {
        format!("writes {} x {} elements of a {columns} x {rows} result", dst.n_partitions, dst.n_elements())
    });
    if engine != Engine::Pe {
        checker.require(dst.dtype == data.dtype, Rule::Type, || format!("moves {} to {}", data.dtype, dst.dtype));
        return;
    }
    let moves = matches!(data.dtype, Dtype::F32 | Dtype::Bf16 | Dtype::F16);
    checker.require(moves, Rule::Type, || format!("takes {} on pe; f32, bf16 or f16", data.dtype));
    let expected = if target.pe_exact_transpose { data.dtype } else { Dtype::F32 };
    checker.require(dst.dtype == expected, Rule::Type, || {
        format!("writes {} of {} data; {expected} on {}", dst.dtype, data.dtype, target.name)
    });
}
