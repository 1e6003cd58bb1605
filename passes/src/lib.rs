//! Graph to graph and program to program transformations
