//! The `furrow-lab` command: measurements and experiments. Users of drives, file systems and
//! volumes run `furrow`; nothing here is installed.
//!
//! Each subcommand is a module with its arguments and one function, `run(args, out)`.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a front end")]
// These macros panic if standard error or output is closed or full; `show::say` and `out` do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod bench;
mod calibrate;
mod claims;
mod collection;
mod completions;
mod headlines;
mod pages;
mod print;

use clap::{CommandFactory as _, Parser, Subcommand};
use furrow_console::program::{self, Statuses};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Claims, drives, hosts and workloads are data (docs/research/lab.md). Runs of claims are in virtual \
time and depend on their seed alone. Results are kept by commit, unless the build differs from its \
commit.

Exit status: 0 done, 1 failed, 2 wrong usage.";

/// Try what has been claimed of zoned drives and of systems on them, and measure every layer.
#[derive(Parser)]
#[command(name = "furrow-lab", version)]
#[command(about = "The laboratory of Furrow: claims, calibration, benchmarks")]
#[command(after_help = AFTER_HELP, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Claims(claims::Command),
    Bench(bench::Args),
    Calibrate(calibrate::Args),
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let run = |cli: Cli, out: &mut dyn Write| match &cli.command {
        Command::Claims(command) => claims::run(command, out),
        Command::Bench(args) => bench::run(args, out),
        Command::Calibrate(args) => calibrate::run(args, out),
        Command::Completions(args) => completions::run(args, Cli::command(), out),
    };
    let text = !arguments.iter().any(|argument| argument == "--json");
    ExitCode::from(program::answer(Cli::command(), &arguments, Statuses::USUAL, text, run))
}

/// Prints an error in one line.
fn complain(message: &str) {
    program::complain("furrow-lab", message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_letter_has_one_meaning_in_all_commands() {
        for (letter, names) in program::letters(&Cli::command()) {
            assert!(names.len() == 1, "-{letter}: {names:?}");
        }
    }

    #[test]
    fn what_runs_nothing_has_no_options_of_runs() {
        let command = Cli::command();
        let takes = |name: &str, long: &str| {
            let found = command.find_subcommand(name).expect("a command");
            found.get_arguments().any(|arg| arg.get_long() == Some(long))
        };
        for long in ["seeds", "jobs", "no-cache", "trace", "full", "cache"] {
            assert!(takes("run", long) && !takes("pages", long), "{long}");
        }
        for (name, long) in
            [("list", "jobs"), ("list", "no-cache"), ("gate", "seeds"), ("gate", "full")]
        {
            assert!(!takes(name, long), "{name} --{long}");
        }
        // Each command's description is its own, not that of a flattened struct.
        for of in command.get_subcommands() {
            let about = of.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(about.len() > 20, "{}: {about:?}", of.get_name());
        }
    }
}
