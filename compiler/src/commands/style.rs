//! Colours of messages. They are always written; the stream drops them where they are not wanted.

use std::ffi::OsString;

use anstyle::{AnsiColor, Style};
use clap::{ColorChoice, ValueEnum};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const NOTE: Style = AnsiColor::Yellow.on_default().bold();
const HELP: Style = AnsiColor::Cyan.on_default().bold();
const GOOD: Style = AnsiColor::Green.on_default();

/// The text with colours on the words that begin errors, notes and advice, and on verdicts.
pub(super) fn painted(text: &str) -> String {
    text.split_inclusive('\n').map(painted_line).collect()
}

fn painted_line(line: &str) -> String {
    if line.starts_with("error[")
        && let Some((code, rest)) = line.split_once("]:")
    {
        return format!("{ERROR}{code}]:{ERROR:#}{rest}");
    }
    for (word, style) in [("note:", NOTE), ("  help:", HELP), ("  replay:", HELP)] {
        if let Some(rest) = line.strip_prefix(word) {
            return format!("{style}{word}{style:#}{rest}");
        }
    }
    let bare = line.trim_end_matches('\n');
    for (word, style) in [("  MISMATCH", ERROR), ("  ok", GOOD)] {
        if let Some(start) = bare.strip_suffix(word) {
            return format!("{start}{style}{word}{style:#}{}", &line[bare.len()..]);
        }
    }
    line.to_owned()
}

/// What --color asks for; read before all other arguments, whose errors have colours, too.
pub(super) fn color_choice(arguments: &[OsString]) -> ColorChoice {
    let texts: Vec<&str> =
        arguments.iter().map_while(|argument| argument.to_str()).take_while(|text| *text != "--").collect();
    let mut choice = ColorChoice::Auto;
    for (position, text) in texts.iter().enumerate() {
        let value = match text.strip_prefix("--color") {
            Some("") => texts.get(position + 1).copied(),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        if let Some(Ok(asked)) = value.map(|value| ColorChoice::from_str(value, false)) {
            choice = asked;
        }
    }
    choice
}

/// The same for streams; without a wish NO_COLOR and the terminal decide.
pub(super) fn stream_choice(choice: ColorChoice) -> anstream::ColorChoice {
    match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::ColorChoice;

    use super::{color_choice, painted};

    #[test]
    fn only_beginnings_and_verdicts_are_painted() {
        let text = "error[usage]: x: no `y`\n  help: z\n  1  2  ok\nplain error[x]: text\n";
        let expected = "\u{1b}[1m\u{1b}[31merror[usage]:\u{1b}[0m x: no `y`\n\u{1b}[1m\u{1b}[36m  help:\u{1b}[0m z\n  1  2\
            \u{1b}[32m  ok\u{1b}[0m\nplain error[x]: text\n";
        assert_eq!(painted(text), expected);
    }

    #[test]
    fn the_last_wish_counts() {
        let choice = |arguments: &[&str]| color_choice(&arguments.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(choice(&["check", "x.json"]), ColorChoice::Auto);
        assert_eq!(choice(&["--color", "never", "check", "--color=always"]), ColorChoice::Always);
        assert_eq!(choice(&["check", "--", "--color=always"]), ColorChoice::Auto);
        assert_eq!(choice(&["--color=sometimes"]), ColorChoice::Auto);
    }
}
