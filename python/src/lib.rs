//! The torch.compile backend: a thin PyO3 module over the compiler crate.
