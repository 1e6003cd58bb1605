//! `neffuse completions`: scripts that complete this command's arguments.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Outcome};

/// Print a script that completes arguments in a shell
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  neffuse completions bash > ~/.local/share/bash-completion/completions/neffuse
  neffuse completions zsh > ~/.zfunc/_neffuse                  with ~/.zfunc in fpath
  neffuse completions fish > ~/.config/fish/completions/neffuse.fish")]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(super) fn command(arguments: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "neffuse", &mut script);
    Outcome::text(String::from_utf8_lossy(&script).into_owned())
}
