//! Graph to program lowering, linking and packaging
