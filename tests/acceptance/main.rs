//! What the whole compiler promises, tested from graph files to simulated NEFFs.

mod blocks;
mod determinism;
mod independence;
mod mutations;
mod numbers;
mod numerics;
mod outlining;
mod random;
mod ranges;
mod rms_norm;
mod snapshots;
mod support;
mod traffic;
mod values;
