//! From a command line to an exit status: parsing, running, and each error in one line.

use crate::{folding, show};
use anyhow::Result;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Parser};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};

/// The exit statuses of a subcommand that does not choose one itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statuses {
    /// Status if the arguments are invalid.
    pub usage: u8,
    /// Status if the subcommand failed.
    pub failure: u8,
}

impl Statuses {
    /// The usual statuses: 2 for invalid arguments, 1 for a failure.
    pub const USUAL: Statuses = Statuses { usage: 2, failure: 1 };
}

/// Parses `arguments`, the program's name first, with `command` (the command of `P`, perhaps with
/// more help), and calls `run` with the result. Returns the exit status of `run`. An error is
/// printed on standard error, after the program's name. If the program prints `text`, its lines are
/// made to fit the screen.
pub fn answer<P: Parser>(
    command: Command,
    arguments: &[OsString],
    statuses: Statuses,
    text: bool,
    run: impl FnOnce(P, &mut dyn Write) -> Result<u8>,
) -> u8 {
    let matches = command.clone().try_get_matches_from(arguments);
    let parsed = match matches.and_then(|matches| P::from_arg_matches(&matches)) {
        Ok(parsed) => parsed,
        Err(error) => return refuse(&error, command, arguments, statuses),
    };
    let mut out = folding::stdout(text);
    let result = run(parsed, &mut out);
    let flushed = out.flush();
    let result = result.and_then(|status| Ok(flushed.map(|()| status)?));
    match result {
        Ok(status) => status,
        // The reader of the output has closed it early (as in `furrow map | head`).
        Err(error) if is_broken_pipe(&error) => 0,
        Err(error) => match error.downcast_ref::<clap::Error>() {
            Some(usage) => refuse(usage, command, arguments, statuses),
            None => {
                complain(command.get_name(), &format!("{error:#}"));
                statuses.failure
            }
        },
    }
}

/// The error for arguments that contradict each other in a way that the parser cannot express.
pub fn misused(why: &str) -> anyhow::Error {
    clap::Error::raw(ErrorKind::ArgumentConflict, why).into()
}

/// Prints the error of the program of this name: one line, unless a terminal is narrower.
pub fn complain(program: &str, message: &str) {
    let line = format!("{program}: {}", one_line(message));
    show::say(&format!("{}\n", folding::message(&line)));
}

/// The command line that shows the help of the subcommand that `arguments` name.
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
            // Failing to write the help is not an error.
            let _ = error.print();
            0
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            statuses.usage
        }
        _ => {
            let (program, why) = (command.get_name().to_owned(), usage_message(error));
            show::say(&format!("{program}: {why}; see '{}'\n", help_of(command, given)));
            statuses.usage
        }
    }
}

/// The message of clap's error as one line: its first paragraph, and the suggestion.
pub fn usage_message(error: &clap::Error) -> String {
    first_paragraph(&error.to_string()) + &meant(error)
}

fn first_paragraph(rendered: &str) -> String {
    let paragraph = rendered.split("\n\n").next().unwrap_or_default();
    one_line(paragraph.strip_prefix("error: ").unwrap_or(paragraph))
}

/// ` (did you mean '--json'?)` if clap knows a similar name.
fn meant(error: &clap::Error) -> String {
    let kinds =
        [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let names: Vec<String> = match kinds.into_iter().find_map(|kind| error.get(kind)) {
        Some(ContextValue::String(name)) => vec![name.clone()],
        Some(ContextValue::Strings(names)) => names.clone(),
        _ => return String::new(),
    };
    // The name that is most similar is the last one.
    let named: Vec<String> = names.iter().rev().take(3).map(|name| format!("'{name}'")).collect();
    format!(" (did you mean {}?)", named.join(" or "))
}

/// For each short letter, the long names that it stands for in `command` and its subcommands, each
/// with the commands that have it. Hidden options are left out. A letter with only one long name
/// has only one meaning.
pub fn letters(command: &Command) -> BTreeMap<char, BTreeMap<String, Vec<String>>> {
    let mut all = BTreeMap::new();
    add_letters(command, command.get_name(), &mut all);
    all
}

fn add_letters(
    command: &Command,
    name: &str,
    all: &mut BTreeMap<char, BTreeMap<String, Vec<String>>>,
) {
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let aliases = arg.get_visible_short_aliases().unwrap_or_default();
        for letter in arg.get_short().into_iter().chain(aliases) {
            let long = arg.get_long().unwrap_or_default().to_owned();
            let named: &mut BTreeMap<_, Vec<_>> = all.entry(letter).or_default();
            named.entry(long).or_default().push(name.to_owned());
        }
    }
    for below in command.get_subcommands() {
        add_letters(below, &format!("{name} {}", below.get_name()), all);
    }
}

/// `text` on one line, for a message: every run of line breaks and indentation becomes one blank,
/// and the numbers of the system's errors are left out, since the names before them say the same.
pub fn one_line(text: &str) -> String {
    let line =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    without_numbers(&line)
}

/// Leaves out the numbers of the system's errors, which stand behind their names: " (os error 2)".
fn without_numbers(line: &str) -> String {
    let mut parts = line.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, part| match part.split_once(')') {
        Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => line + rest,
        _ => line + " (os error " + part,
    })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let of_io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        // An error of serde_json does not give its cause as its source.
        let of_json = || cause.downcast_ref::<serde_json::Error>()?.io_error_kind();
        of_io.or_else(of_json) == Some(io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_is_named_without_its_number() {
        let error = io::Error::from_raw_os_error(2).to_string();
        assert_eq!(one_line(&format!("a: {error}\n")), "a: No such file or directory");
        assert_eq!(one_line(&format!("{error}, {error}; b (os error x)")).matches("os").count(), 1);
    }

    #[test]
    fn a_usage_error_is_one_line() {
        assert_eq!(first_paragraph("error: these are missing:\n  <A>\n  <B>\n\nUsage: x"), {
            "these are missing: <A> <B>"
        });
    }

    #[test]
    fn what_was_meant_is_proposed() {
        let arg = |long: &'static str| clap::Arg::new(long).long(long);
        let kind = arg("kind").value_parser(["bit-flip", "power-cut"]);
        let below = [Command::new("mount").arg(arg("json")).arg(kind), Command::new("map")];
        let command = Command::new("x").subcommands(below);
        for (line, expected) in [
            ("x mont", "'mount'"),
            ("x mount --jsn", "'--json'"),
            ("x mount --kind bitflip", "'bit-flip'"),
        ] {
            let error = command.clone().try_get_matches_from(line.split(' ')).unwrap_err();
            let message = usage_message(&error);
            assert!(message.contains(&format!("(did you mean {expected}?)")), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
        let error = command.try_get_matches_from(["x", "qqq"]).unwrap_err();
        assert!(!usage_message(&error).contains("did you mean"));
    }

    #[test]
    fn letters_have_the_long_names_of_all_commands() {
        let flag = |long: &'static str| clap::Arg::new(long).long(long).short('f');
        let hidden = flag("foreground").hide(true);
        let of = |args: [clap::Arg; 2]| {
            let [one, other] = args;
            let below = [Command::new("a").arg(one), Command::new("b").arg(other)];
            letters(&Command::new("x").subcommands(below))
        };
        let force = BTreeMap::from([("force".to_owned(), vec!["x a".to_owned()])]);
        assert_eq!(of([flag("force"), hidden])[&'f'], force);
        assert_eq!(of([flag("force"), flag("foreground")])[&'f'].len(), 2);
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
