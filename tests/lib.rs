//! Holds no code: this package owns the integration tests, snapshots and benchmarks.
