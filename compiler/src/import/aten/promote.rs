//! PyTorch's type promotion.
//!
//! Tensors with dimensions decide over rank-0 tensors, and those over Python numbers, unless the
//! weaker one is of a higher category: bool, then integer, then float.

use ir::Dtype;

use super::call::{Call, Operand, Refusal};

/// Element type of the result of a pointwise overload on these operands.
pub fn result_dtype(call: &Call<'_>, operands: &[Operand]) -> Result<Dtype, Refusal> {
    let (mut dimensioned, mut rank_zero, mut numbers) = (None, None, None);
    for operand in operands {
        let (slot, dtype) = match *operand {
            Operand::Number(number) => (&mut numbers, number.default_dtype()),
            Operand::Tensor(value) if call.rank(value) == 0 => (&mut rank_zero, call.dtype(value)),
            Operand::Tensor(value) => (&mut dimensioned, call.dtype(value)),
        };
        *slot = Some(slot.map_or(Ok(dtype), |other| promoted(other, dtype))?);
    }
    let weaker = combined(rank_zero, numbers)?;
    combined(dimensioned, weaker)?.ok_or_else(|| Refusal::Malformed("there are no operands".to_owned()))
}

/// The smallest element type that holds both.
pub fn promoted(lhs: Dtype, rhs: Dtype) -> Result<Dtype, Refusal> {
    if lhs == rhs {
        return Ok(lhs);
    }
    let narrow = |dtype| matches!(dtype, Dtype::F8E4m3 | Dtype::F8E5m2);
    if narrow(lhs) || narrow(rhs) {
        return Err(Refusal::Unsupported(format!("PyTorch has no common type of {lhs} and {rhs}")));
    }
    Ok(match (lhs.is_float(), rhs.is_float()) {
        (true, false) => lhs,
        (false, true) => rhs,
        (true, true) if lhs == Dtype::F64 || rhs == Dtype::F64 => Dtype::F64,
        (true, true) => Dtype::F32,
        (false, false) => promoted_integers(lhs, rhs),
    })
}

fn promoted_integers(lhs: Dtype, rhs: Dtype) -> Dtype {
    match (lhs, rhs) {
        (Dtype::Bool, other) | (other, Dtype::Bool) => other,
        (Dtype::U8, Dtype::I8) | (Dtype::I8, Dtype::U8) => Dtype::I16,
        (_, _) if lhs.size_bytes() == rhs.size_bytes() => lhs,
        (_, _) if lhs.size_bytes() > rhs.size_bytes() => lhs,
        (_, _) => rhs,
    }
}

/// What a group of stronger operands and one of weaker operands give.
fn combined(stronger: Option<Dtype>, weaker: Option<Dtype>) -> Result<Option<Dtype>, Refusal> {
    let (Some(strong), Some(weak)) = (stronger, weaker) else { return Ok(stronger.or(weaker)) };
    let same_category = strong.is_float() || (strong.is_integer() && !weak.is_float());
    if same_category { Ok(Some(strong)) } else { promoted(strong, weak).map(Some) }
}

#[cfg(test)]
mod tests {
    use ir::Dtype;

    use super::{combined, promoted};

    #[test]
    fn common_types_follow_pytorch() {
        let cases = [
            (Dtype::Bf16, Dtype::F16, Dtype::F32),
            (Dtype::Bf16, Dtype::I64, Dtype::Bf16),
            (Dtype::U8, Dtype::I8, Dtype::I16),
            (Dtype::U8, Dtype::I32, Dtype::I32),
            (Dtype::Bool, Dtype::I8, Dtype::I8),
            (Dtype::I64, Dtype::I32, Dtype::I64),
        ];
        for (lhs, rhs, common) in cases {
            assert_eq!(promoted(lhs, rhs), Ok(common));
            assert_eq!(promoted(rhs, lhs), Ok(common));
        }
        assert!(promoted(Dtype::F8E5m2, Dtype::F32).is_err());
    }

    #[test]
    fn weaker_operands_decide_only_by_category() {
        assert_eq!(combined(Some(Dtype::Bf16), Some(Dtype::F32)), Ok(Some(Dtype::Bf16)));
        assert_eq!(combined(Some(Dtype::I32), Some(Dtype::I64)), Ok(Some(Dtype::I32)));
        assert_eq!(combined(Some(Dtype::I32), Some(Dtype::F32)), Ok(Some(Dtype::F32)));
        assert_eq!(combined(Some(Dtype::Bool), Some(Dtype::I64)), Ok(Some(Dtype::I64)));
    }
}
