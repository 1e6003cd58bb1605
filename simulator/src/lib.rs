//! Runs a NEFF: values, timing and checks
