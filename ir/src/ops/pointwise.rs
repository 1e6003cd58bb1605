//! Shared shape of pointwise ops without attributes: one macro per signature.
//!
//! A macro makes the struct, its [`super::OpDef`] and an example from input and output lanes; the
//! formula stays in the op's own file.

/// One float operand, one float result: `function` per lane, pairs (x, result) as the example.
macro_rules! float_unary {
    ($(#[$doc:meta])* $op:ident = $name:literal, $function:expr; $examples:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct $op;

        impl $crate::ops::OpDef for $op {
            const NAME: &'static str = $name;
            const ARITY: $crate::ops::Arity = $crate::ops::Arity::Exactly(1);
            const CLASS: $crate::ops::OpClass = $crate::ops::OpClass::Pointwise;

            fn infer(
                &self,
                operands: &[$crate::types::TensorType],
            ) -> Result<$crate::ops::ResultTypes, $crate::types::TypeError> {
                $crate::ops::operands::check_kind::<Self>($crate::ops::operands::Accepts::Float, &operands[0])?;
                Ok(smallvec::smallvec![operands[0].clone()])
            }

            fn eval(
                &self,
                operands: &[&$crate::reference::Value],
                _: &[$crate::types::TensorType],
            ) -> Result<Vec<$crate::reference::Value>, $crate::reference::EvalError> {
                Ok(vec![operands[0].map_float($function)?])
            }

            fn from_attrs(attrs: &[(&str, $crate::ops::Attr)]) -> Option<Self> {
                attrs.is_empty().then_some($op)
            }

            fn examples() -> Vec<$crate::ops::Example> {
                let (inputs, outputs): (Vec<f64>, Vec<f64>) = $examples.into_iter().unzip();
                let shape = [inputs.len()];
                vec![$crate::ops::Example::new($op).floats(&shape, &inputs).gives_floats(&shape, &outputs)]
            }
        }
    };
}

/// Two broadcast operands of one element type, one result of that type: a function for floats and,
/// where the op takes integers, one for those; triples (x, y, result) as examples.
macro_rules! numeric_binary {
    ($(#[$doc:meta])* $op:ident = $name:literal, float $float:expr, int $int:expr; $floats:expr; $ints:expr) => {
        $crate::ops::pointwise::numeric_binary!(@impl $(#[$doc])* $op, $name, Numeric, $float, $int);

        impl $op {
            fn hand_values() -> Vec<$crate::ops::Example> {
                let (lhs, rhs, result) = $crate::ops::pointwise::columns(&$ints);
                let shape = [result.len()];
                let ints = $crate::ops::Example::new($op).ints(&shape, &lhs).ints(&shape, &rhs);
                let (lhs, rhs, result) = $crate::ops::pointwise::columns(&$floats);
                let shape = [result.len()];
                let floats = $crate::ops::Example::new($op).floats(&shape, &lhs).floats(&shape, &rhs);
                let expected = $crate::ops::pointwise::columns(&$ints).2;
                vec![floats.gives_floats(&shape, &result), ints.gives_ints(&[expected.len()], &expected)]
            }
        }
    };
    ($(#[$doc:meta])* $op:ident = $name:literal, float $float:expr; $floats:expr) => {
        $crate::ops::pointwise::numeric_binary!(@impl $(#[$doc])* $op, $name, Float, $float, |x, _| x);

        impl $op {
            fn hand_values() -> Vec<$crate::ops::Example> {
                let (lhs, rhs, result) = $crate::ops::pointwise::columns(&$floats);
                let shape = [result.len()];
                let floats = $crate::ops::Example::new($op).floats(&shape, &lhs).floats(&shape, &rhs);
                vec![floats.gives_floats(&shape, &result)]
            }
        }
    };
    (@impl $(#[$doc:meta])* $op:ident, $name:literal, $accepts:ident, $float:expr, $int:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct $op;

        impl $crate::ops::OpDef for $op {
            const NAME: &'static str = $name;
            const ARITY: $crate::ops::Arity = $crate::ops::Arity::Exactly(2);
            const CLASS: $crate::ops::OpClass = $crate::ops::OpClass::Pointwise;

            fn infer(
                &self,
                operands: &[$crate::types::TensorType],
            ) -> Result<$crate::ops::ResultTypes, $crate::types::TypeError> {
                $crate::ops::operands::check_same_dtype::<Self>(operands)?;
                $crate::ops::operands::check_kind::<Self>($crate::ops::operands::Accepts::$accepts, &operands[0])?;
                let shape = $crate::ops::operands::broadcast_all::<Self>(operands)?;
                Ok(smallvec::smallvec![operands[0].with_shape(shape)])
            }

            fn eval(
                &self,
                operands: &[&$crate::reference::Value],
                results: &[$crate::types::TensorType],
            ) -> Result<Vec<$crate::reference::Value>, $crate::reference::EvalError> {
                Ok(vec![operands[0].zip(operands[1], &results[0].shape, $float, $int)?])
            }

            fn from_attrs(attrs: &[(&str, $crate::ops::Attr)]) -> Option<Self> {
                attrs.is_empty().then_some($op)
            }

            fn examples() -> Vec<$crate::ops::Example> {
                Self::hand_values()
            }
        }
    };
}

/// Two broadcast operands of any one element type, a bool result: whether the order of the two
/// lanes is one of those wanted.
macro_rules! comparison {
    ($(#[$doc:meta])* $op:ident = $name:literal, $holds:expr; $less:literal, $equal:literal, $greater:literal, $nan:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct $op;

        impl $crate::ops::OpDef for $op {
            const NAME: &'static str = $name;
            const ARITY: $crate::ops::Arity = $crate::ops::Arity::Exactly(2);
            const CLASS: $crate::ops::OpClass = $crate::ops::OpClass::Pointwise;

            fn infer(
                &self,
                operands: &[$crate::types::TensorType],
            ) -> Result<$crate::ops::ResultTypes, $crate::types::TypeError> {
                $crate::ops::operands::check_same_dtype::<Self>(operands)?;
                let shape = $crate::ops::operands::broadcast_all::<Self>(operands)?;
                Ok(smallvec::smallvec![$crate::types::TensorType { dtype: $crate::types::Dtype::Bool, shape }])
            }

            fn eval(
                &self,
                operands: &[&$crate::reference::Value],
                results: &[$crate::types::TensorType],
            ) -> Result<Vec<$crate::reference::Value>, $crate::reference::EvalError> {
                Ok(vec![operands[0].zip_order(operands[1], &results[0].shape, $holds)?])
            }

            fn from_attrs(attrs: &[(&str, $crate::ops::Attr)]) -> Option<Self> {
                attrs.is_empty().then_some($op)
            }

            fn examples() -> Vec<$crate::ops::Example> {
                let new = || $crate::ops::Example::new($op);
                vec![
                    new()
                        .floats(&[4], &[1.0, 2.0, 3.0, f64::NAN])
                        .floats(&[1], &[2.0])
                        .gives_bools(&[4], &[$less, $equal, $greater, $nan]),
                    new().ints(&[3], &[-7, 0, 7]).ints(&[], &[0]).gives_bools(&[3], &[$less, $equal, $greater]),
                    new()
                        .bools(&[3], &[false, true, true])
                        .bools(&[3], &[true, true, false])
                        .gives_bools(&[3], &[$less, $equal, $greater]),
                ]
            }
        }
    };
}

/// Two broadcast bool operands, a bool result; the results for FF, FT, TF, TT as the example.
macro_rules! logical_binary {
    ($(#[$doc:meta])* $op:ident = $name:literal, $function:expr; $table:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct $op;

        impl $crate::ops::OpDef for $op {
            const NAME: &'static str = $name;
            const ARITY: $crate::ops::Arity = $crate::ops::Arity::Exactly(2);
            const CLASS: $crate::ops::OpClass = $crate::ops::OpClass::Pointwise;

            fn infer(
                &self,
                operands: &[$crate::types::TensorType],
            ) -> Result<$crate::ops::ResultTypes, $crate::types::TypeError> {
                for operand in operands {
                    $crate::ops::operands::check_kind::<Self>($crate::ops::operands::Accepts::Bool, operand)?;
                }
                let shape = $crate::ops::operands::broadcast_all::<Self>(operands)?;
                Ok(smallvec::smallvec![operands[0].with_shape(shape)])
            }

            fn eval(
                &self,
                operands: &[&$crate::reference::Value],
                results: &[$crate::types::TensorType],
            ) -> Result<Vec<$crate::reference::Value>, $crate::reference::EvalError> {
                Ok(vec![operands[0].zip_bool(operands[1], &results[0].shape, $function)?])
            }

            fn from_attrs(attrs: &[(&str, $crate::ops::Attr)]) -> Option<Self> {
                attrs.is_empty().then_some($op)
            }

            fn examples() -> Vec<$crate::ops::Example> {
                vec![
                    $crate::ops::Example::new($op)
                        .bools(&[2, 1], &[false, true])
                        .bools(&[2], &[false, true])
                        .gives_bools(&[2, 2], &$table),
                ]
            }
        }
    };
}

pub(super) use {comparison, float_unary, logical_binary, numeric_binary};

/// The columns of (x, y, result) triples.
pub(super) fn columns<T: Copy>(rows: &[(T, T, T)]) -> (Vec<T>, Vec<T>, Vec<T>) {
    (
        rows.iter().map(|row| row.0).collect(),
        rows.iter().map(|row| row.1).collect(),
        rows.iter().map(|row| row.2).collect(),
    )
}
