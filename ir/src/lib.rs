//! What graphs and programs are: types, op table, instructions, text form, verifier, reference evaluator, target numbers, diagnostics
