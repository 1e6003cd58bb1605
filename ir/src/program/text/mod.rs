//! The text form of programs: one declaration or instruction per line, tensors and tiles first.
//!
//! ```text
//! program "rms_norm" target trn2 phase synchronized
//! location #0 "mul_1" "aten.mul.Tensor" "encoder.norm" "model.py:12"
//! tensor %h0 "x" bf16[4, 512] 4096 bytes input 0
//! tile %t0 "x" sbuf bf16 4x1024 align 4 at 0+2048
//! sp: dma_copy dst=%t0[0, 0+1p+0x4+1x512] src=%h0[0+512x4+1x512] queue=hardware update s6+16 #0
//! act: activation square dst=%t1[0:4, 0+1x512] data=%t0[0:4, 0+1x512] scale=1.0 bias=0.0 reduce=reset -> %t2[0:4, 0] wait s6>=16
//! ```
//!
//! A tile view is `%tN[first:end, offset dims]` with partitions `first..end` counted from the
//! tile's first and free dimensions `+step x count` in elements; a DMA side is
//! `%hN[offset dims]` or `%tN[partition, offset dims]`, where a dimension that also moves over
//! partitions is `+partitions p +step x count`. `:dtype` follows where the element type differs
//! from the declared one. A line that starts with `//` is a comment.
//!
//! Printing is [`std::fmt::Display`] of [`Program`](super::Program) and canonical: [`parse`] of it
//! gives an equal program (NaN immediates compare by their bits in the text). Parsing checks syntax
//! and what the syntax needs (declared order, number ranges), nothing else; legality is the
//! verifier's business.

mod cursor;
mod parse;
mod print;
#[cfg(test)]
mod tests;

pub use cursor::ParseError;
pub use parse::parse;
