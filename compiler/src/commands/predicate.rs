//! What `bisect` and `reduce` ask: the check's own judgement, or a command of the user's.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::Error;

/// How a trial ended. Two trials show one fault when they ended alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Passes,
    /// The kind of a failure of `check`.
    Fails(String),
    /// Exit code of the user's command; `None` where a signal ended it.
    Exits(Option<i32>),
}

impl std::fmt::Display for Ending {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::Passes => formatter.write_str("passes"),
            Ending::Fails(kind) => write!(formatter, "fails ({kind})"),
            Ending::Exits(Some(code)) => write!(formatter, "ends with exit code {code}"),
            Ending::Exits(None) => formatter.write_str("is ended by a signal"),
        }
    }
}

/// Runs the user's command in a shell, with `{}` replaced by the file's path.
pub(super) fn run_command(command: &str, file: &Path) -> Result<Ending, Error> {
    if !command.contains("{}") {
        return Err(Error::Usage(format!("--command: `{command}` has no {{}} where the file's name belongs")));
    }
    let text = command.replace("{}", &quoted(&file.display().to_string()));
    let (shell, flag) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
    let mut process = Command::new(shell);
    process.args([flag, &text]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = process.status().map_err(|error| Error::Usage(format!("--command: `{command}`: {error}")))?;
    // Shells say so when there is nothing to run.
    if cfg!(unix) && matches!(status.code(), Some(126 | 127)) {
        return Err(Error::Usage(format!("--command: `{command}` cannot be run")));
    }
    Ok(Ending::Exits(status.code()))
}

/// A word of the shell.
fn quoted(text: &str) -> String {
    if cfg!(windows) { format!("\"{text}\"") } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(all(test, unix))]
mod tests {
    use std::path::Path;

    use super::{Ending, run_command};

    #[test]
    fn the_command_gets_the_file_and_its_exit_code_counts() {
        let run = |command: &str| run_command(command, Path::new("it's a file"));
        assert_eq!(run("test {} = \"it's a file\"").unwrap(), Ending::Exits(Some(0)));
        assert_eq!(run("exit 7 # {}").unwrap(), Ending::Exits(Some(7)));
        assert_eq!(run("kill -9 $$ # {}").unwrap(), Ending::Exits(None));
        assert!(run("true").unwrap_err().to_string().contains("has no {}"));
        assert!(run("no-such-command {}").is_err());
    }
}
