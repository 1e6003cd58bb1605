//! RMSNorm and LayerNorm over the last axis.

use super::{Line, rw};

pub(super) fn rules() -> Vec<Line> {
    vec![
        rw!("rms-norm"; Recognise Reassoc;
            "(mul ?x (rsqrt (add (reduce_mean@last (mul ?x ?x)) ?e:number)))" => "(rms_norm@?e ?x)"),
        rw!("rms-norm-gamma"; Recognise Reassoc; "(mul (rms_norm@$n ?x) ?g)" => "(rms_norm@$n ?x ?g)"),
        rw!("rms-norm-gamma-first"; Recognise Reassoc;
            "(mul (mul ?x ?g) (rsqrt (add (reduce_mean@last (mul ?x ?x)) ?e:number)))" => "(rms_norm@?e ?x ?g)"),
        rw!("rms-norm-gamma-on-scale"; Recognise Reassoc;
            "(mul ?x (mul (rsqrt (add (reduce_mean@last (mul ?x ?x)) ?e:number)) ?g))" => "(rms_norm@?e ?x ?g)"),
        rw!("layer-norm"; Recognise Reassoc;
            "(mul (as ?d (sub ?x (reduce_mean@last ?x))) (rsqrt (add (reduce_mean@last (mul ?d ?d)) ?e:number)))" =>
            "(result 0 (layer_norm@?e ?x))"),
        rw!("layer-norm-gamma"; Recognise Reassoc;
            "(mul (result 0 (layer_norm@$n ?x)) ?g)" => "(result 0 (layer_norm@$n ?x ?g))"),
        rw!("layer-norm-gamma-first"; Recognise Reassoc;
            "(mul (mul (as ?d (sub ?x (reduce_mean@last ?x))) ?g) (rsqrt (add (reduce_mean@last (mul ?d ?d)) ?e:number)))" =>
            "(result 0 (layer_norm@?e ?x ?g))"),
        rw!("layer-norm-beta"; Recognise Reassoc;
            "(add (result 0 (layer_norm@$n ?x ?g)) ?b)" => "(result 0 (layer_norm@$n ?x ?g ?b))"),
    ]
}
