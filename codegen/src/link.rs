//! Kernel objects and their linking: from a synchronized program to engine streams.

use ir::Program;
use ir::program::Engine;

use crate::package::variable_ids;

/// Engine streams with every address resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkedKernel {
    streams: Vec<Vec<u8>>,
}

impl LinkedKernel {
    /// One engine's stream.
    pub fn stream(&self, engine: Engine) -> &[u8] {
        let position = Engine::ALL.iter().position(|known| *known == engine).expect("every engine has a stream");
        &self.streams[position]
    }
}

/// Encodes and links a synchronized program.
///
/// # Errors
/// An operand that a record has no room for.
pub fn link(program: &Program) -> Result<LinkedKernel, neff::Error> {
    let variables = variable_ids(program);
    let streams = Engine::ALL.iter().map(|&engine| neff::isa::encode_stream(program, engine, &variables));
    Ok(LinkedKernel { streams: streams.collect::<Result<_, _>>()? })
}
