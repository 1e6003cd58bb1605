//! Scaled dot-product attention: products, scale, mask and softmax under one name.
//!
//! Every spelling of scores and weights has a line of its own, made from its parts; what stands
//! around the operands (scales, casts, repeated heads) is folded into the fused op afterwards.

use super::{Line, Reason, Scene, Stage, rw};
use crate::Numerics;
use crate::fuse::term::is_small_float;

pub(super) fn rules() -> Vec<Line> {
    let mut rules = spellings();
    for (suffix, mask) in [("", ""), ("-masked", " ?m")] {
        rules.extend(operand_rules(suffix, mask));
    }
    rules.extend([
        // where(m, 0, -inf) added is m selecting, but for scores that are infinite or NaN
        rw!("attention-predicate"; Recognise Reassoc;
            "(attention@$a ?q ?k ?v (where ?m 0 -inf))" => "(attention@$a ?q ?k ?v ?m)"; if mask_is_bool),
        rw!("attention-widened-mask"; Recognise Exact;
            "(attention@$a ?q ?k ?v (cast ?m))" => "(attention@$a ?q ?k ?v ?m)"; if mask_is_narrow),
        rw!("attention-expanded-mask"; Recognise Exact;
            "(attention@$a ?q ?k ?v (expand ?m))" => "(attention@$a ?q ?k ?v ?m)"),
        rw!("scale-transposed"; Recognise Exact; "(transpose@$t (mul ?x ?c:number))" => "(mul (transpose@$t ?x) ?c)"),
        rw!("scale-reshaped"; Recognise Exact; "(reshape (mul ?x ?c:number))" => "(mul (reshape@root ?x) ?c)"),
        rw!("widened-transposed"; Recognise Exact;
            "(transpose@$t (cast ?x))" => "(cast@root (transpose@$t ?x))"; if widens),
        rw!("widened-reshaped"; Recognise Exact; "(reshape (cast ?x))" => "(cast@root (reshape@root ?x))"; if widens),
    ]);
    rules
}

/// matmul(weights(mask(scale(matmul(q, k)))), v) for every scale, mask and kind of weights.
fn spellings() -> Vec<Line> {
    let mut rules = Vec::new();
    for (scaled, scores, number) in
        [("", "(matmul@$s ?q ?k)", ""), ("-scaled", "(mul (matmul@$s ?q ?k) ?c:number)", ":?c")]
    {
        let masks = [
            ("", scores.to_owned(), ""),
            ("-added-mask", format!("(add {scores} ?m)"), " ?m"),
            ("-selected", format!("(where ?m {scores} -inf)"), " ?m"),
        ];
        for (masked, scores, mask) in masks {
            let weights = [
                ("", format!("(softmax {scores})"), "softmax"),
                ("-safe", format!("(where (any@last (ne (as ?x {scores}) -inf)) (softmax ?x) 0)"), "safe"),
            ];
            for (safe, weights, kind) in weights {
                let rounded = [
                    ("", weights.clone(), Numerics::Reassoc),
                    ("-rounded", format!("(as ?w (cast {weights}))"), Numerics::Contract),
                ];
                for (rounding, weights, class) in rounded {
                    let condition = if rounding.is_empty() { is_attention } else { is_rounded_attention };
                    rules.push(Line {
                        name: leak(format!("attention{scaled}{masked}{safe}{rounding}")),
                        class,
                        stage: Stage::Recognise,
                        left: format!("(matmul@$p {weights} ?v)"),
                        right: format!(
                            "(attention@{kind}{number} (stored $s lhs ?q) (stored $s rhs-turned ?k) (stored $p rhs ?v){mask})"
                        ),
                        condition: Some(condition),
                    });
                }
            }
        }
    }
    rules
}

/// What operands bring along, for attention with these further operands.
fn operand_rules(suffix: &str, mask: &str) -> Vec<Line> {
    let line = |name: &str, class, left: &str, right: &str, condition| Line {
        name: leak(format!("attention-{name}{suffix}")),
        class,
        stage: Stage::Recognise,
        left: left.replace(" ~", mask),
        right: right.replace(" ~", mask),
        condition,
    };
    let (exact, reassoc, contract) = (Numerics::Exact, Numerics::Reassoc, Numerics::Contract);
    let plain = "(attention@$a ?q ?k ?v ~)";
    let scaled = "(attention@scaled:$a:?c ?q ?k ?v ~)";
    let grouped = "(attention@$a ?q (as ?kr (reshape (as ?ke (expand (as ?ks (reshape ?k)))))) \
                   (as ?vr (reshape (as ?ve (expand (as ?vs (reshape ?v)))))) ~)";
    vec![
        line("scaled-query", reassoc, "(attention@$a (mul ?q ?c:number) ?k ?v ~)", scaled, None),
        line("scaled-key", reassoc, "(attention@$a ?q (mul ?k ?c:number) ?v ~)", scaled, None),
        line("widened-query", exact, "(attention@$a (cast ?q) ?k ?v ~)", plain, Some(query_is_narrow)),
        line("widened-key", exact, "(attention@$a ?q (cast ?k) ?v ~)", plain, Some(key_is_narrow)),
        line("widened-value", exact, "(attention@$a ?q ?k (cast ?v) ~)", plain, Some(value_is_narrow)),
        // The weights may be rounded too.
        line(
            "cast",
            contract,
            "(cast (attention@$a ?q ?k ?v ~))",
            "(attention@rounded:$a ?q ?k ?v ~)",
            Some(is_rounded),
        ),
        line("grouped", exact, grouped, plain, Some(repeats_heads)),
        line(
            "shared-head",
            exact,
            "(attention@$a ?q (as ?ke (expand ?k)) (as ?ve (expand ?v)) ~)",
            plain,
            Some(shares_head),
        ),
    ]
}

/// Rules are made once and live as long as the program.
fn leak(name: String) -> &'static str {
    Box::leak(name.into_boxed_str())
}

fn is_attention(scene: &Scene<'_>) -> Result<(), Reason> {
    let flags = |name: &str| match scene.op(name) {
        ir::Op::Matmul(matmul) => (matmul.transpose_lhs, matmul.dtype),
        _ => (false, scene.root().dtype),
    };
    let (_, scores) = flags("s");
    if is_small_float(scores) {
        return Err(format!("the scores are rounded to {scores}"));
    }
    if flags("p").0 {
        return Err("the weights are transposed before the second product".to_owned());
    }
    let mask = scene.names.classes.iter().any(|name| name == "m").then(|| scene.ty("m").dtype);
    if let Some(dtype) = mask.filter(|dtype| dtype.is_integer()) {
        return Err(format!("the mask is {dtype}"));
    }
    Ok(())
}

fn is_rounded_attention(scene: &Scene<'_>) -> Result<(), Reason> {
    let weights = scene.ty("w").dtype;
    if !is_small_float(weights) {
        return Err(format!("a cast of the weights to {weights} is no rounding"));
    }
    is_attention(scene)
}

fn is_rounded(scene: &Scene<'_>) -> Result<(), Reason> {
    let (root, own) = (scene.root().dtype, attention_dtype(scene));
    if is_small_float(root) && !is_small_float(own) {
        return Ok(());
    }
    Err(format!("a cast of {own} to {root} is not the first rounding"))
}

fn attention_dtype(scene: &Scene<'_>) -> ir::Dtype {
    match scene.op("a") {
        ir::Op::Attention(attention) => attention.dtype,
        _ => scene.root().dtype,
    }
}

fn is_narrow(scene: &Scene<'_>, name: &str, role: &str) -> Result<(), Reason> {
    let dtype = scene.ty(name).dtype;
    if is_small_float(dtype) {
        return Ok(());
    }
    Err(format!("a {role} of {dtype} is no narrow float"))
}

fn query_is_narrow(scene: &Scene<'_>) -> Result<(), Reason> {
    is_narrow(scene, "q", "query")
}

fn key_is_narrow(scene: &Scene<'_>) -> Result<(), Reason> {
    is_narrow(scene, "k", "key")
}

fn value_is_narrow(scene: &Scene<'_>) -> Result<(), Reason> {
    is_narrow(scene, "v", "value")
}

fn mask_is_narrow(scene: &Scene<'_>) -> Result<(), Reason> {
    is_narrow(scene, "m", "mask")
}

fn mask_is_bool(scene: &Scene<'_>) -> Result<(), Reason> {
    let dtype = scene.ty("m").dtype;
    if dtype == ir::Dtype::Bool {
        return Ok(());
    }
    Err(format!("a condition of {dtype}"))
}

fn widens(scene: &Scene<'_>) -> Result<(), Reason> {
    let (from, to) = (scene.ty("x").dtype, scene.root().dtype);
    if is_small_float(from) && to.is_float() && to.size_bytes() > from.size_bytes() {
        return Ok(());
    }
    Err(format!("a cast from {from} to {to} does not only widen"))
}

/// Keys and values repeat each of their heads: [.., G, T, D] as [.., G, 1, T, D], n times, as
/// [.., G * n, T, D].
fn repeats_heads(scene: &Scene<'_>) -> Result<(), Reason> {
    for [own, split, expanded, merged] in [["k", "ks", "ke", "kr"], ["v", "vs", "ve", "vr"]] {
        let shape = |name: &str| scene.ty(name).shape.clone();
        let (own, split, expanded, merged) = (shape(own), shape(split), shape(expanded), shape(merged));
        let rank = own.len();
        if rank < 3 || split.len() != rank + 1 || merged.len() != rank {
            return Err("heads are not repeated next to each other".to_owned());
        }
        let mut wanted = own.clone();
        wanted.insert(rank - 2, 1);
        let mut repeated = wanted.clone();
        repeated[rank - 2] = expanded[rank - 2];
        let mut joined = own.clone();
        joined[rank - 3] *= expanded[rank - 2];
        if split != wanted || expanded != repeated || merged != joined {
            return Err("heads are not repeated next to each other".to_owned());
        }
    }
    Ok(())
}

/// One head of keys and values serves all heads of the query.
fn shares_head(scene: &Scene<'_>) -> Result<(), Reason> {
    for [own, expanded] in [["k", "ke"], ["v", "ve"]] {
        let (own, expanded) = (&scene.ty(own).shape, &scene.ty(expanded).shape);
        let rank = own.len();
        if rank < 3 || expanded.len() != rank {
            return Err("there is no head axis to repeat".to_owned());
        }
        let only_heads = (0..rank).all(|axis| own[axis] == expanded[axis] || axis == rank - 3);
        if !only_heads || own[rank - 3] != 1 {
            return Err("other axes than the heads are repeated".to_owned());
        }
    }
    Ok(())
}
