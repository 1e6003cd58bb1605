//! The command `neffuse`.

use std::process::ExitCode;

fn main() -> ExitCode {
    compiler::commands::main()
}
