//! From a command line to an exit status: parsing, running, and errors in one line each.

use crate::show;
use anyhow::Result;
use clap::error::ErrorKind;
use clap::{Command, Parser};
use std::ffi::OsString;
use std::io::{self, Write};

/// The exit statuses of a subcommand that does not choose one itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statuses {
    /// The arguments are invalid.
    pub usage: u8,
    /// It failed.
    pub failure: u8,
}

impl Statuses {
    /// The usual ones: 2 and 1.
    pub const USUAL: Statuses = Statuses { usage: 2, failure: 1 };
}

/// Parses `arguments`, the program's name first, and calls `run` with the result. Returns the exit
/// status of `run`. An error is printed in one line on standard error, after the program's name.
pub fn answer<P: Parser>(
    arguments: &[OsString],
    statuses: Statuses,
    run: impl FnOnce(P, &mut dyn Write) -> Result<u8>,
) -> u8 {
    let parsed = match P::try_parse_from(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return refuse(&error, P::command(), arguments, statuses),
    };
    let mut out = io::stdout().lock();
    let result = run(parsed, &mut out).and_then(|status| {
        out.flush()?;
        Ok(status)
    });
    match result {
        Ok(status) => status,
        // The reader of the output has seen enough (`furrow map | head`).
        Err(error) if is_broken_pipe(&error) => 0,
        Err(error) => {
            complain(P::command().get_name(), &format!("{error:#}"));
            statuses.failure
        }
    }
}

/// Prints, in one line, what went wrong in the program of this name.
pub fn complain(program: &str, message: &str) {
    show::say(&format!("{program}: {}\n", one_line(message)));
}

/// The command that shows the help of the subcommand that `arguments` name.
pub fn help_of(mut command: Command, arguments: &[OsString]) -> String {
    let mut words = vec![command.get_name().to_owned()];
    for word in arguments.iter().skip(1).filter_map(|argument| argument.to_str()) {
        if let Some(deeper) = command.find_subcommand(word).cloned() {
            words.push(word.to_owned());
            command = deeper;
        } else if !word.starts_with('-') {
            break;
        }
    }
    words.push("--help".to_owned());
    words.join(" ")
}

/// Handles a command line that does not parse, or that asks for help.
fn refuse(error: &clap::Error, command: Command, given: &[OsString], statuses: Statuses) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // It is no failure if nobody reads the help.
            let _ = error.print();
            0
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            statuses.usage
        }
        _ => {
            let (program, why) = (command.get_name().to_owned(), usage_message(&error.to_string()));
            show::say(&format!("{program}: {why}; see '{}'\n", help_of(command, given)));
            statuses.usage
        }
    }
}

/// The first paragraph of clap's message, as one line.
pub fn usage_message(rendered: &str) -> String {
    let paragraph = rendered.split("\n\n").next().unwrap_or_default();
    one_line(paragraph.strip_prefix("error: ").unwrap_or(paragraph))
}

/// `text` with every run of line breaks and indentation made one blank.
pub fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let of_io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        // Such an error does not have its cause as its source.
        let of_json = || cause.downcast_ref::<serde_json::Error>()?.io_error_kind();
        of_io.or_else(of_json) == Some(io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_error_is_one_line() {
        assert_eq!(usage_message("error: these are missing:\n  <A>\n  <B>\n\nUsage: x"), {
            "these are missing: <A> <B>"
        });
    }

    #[test]
    fn a_closed_pipe_is_recognised_under_context() {
        let error = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).context("map");
        assert!(is_broken_pipe(&error));
        assert!(!is_broken_pipe(&anyhow::anyhow!("no pipe")));
        let json = serde_json::Error::io(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(is_broken_pipe(&anyhow::Error::from(json)));
    }
}
