//! The `furrow` command.
//!
//! Each subcommand is a module with its arguments (`Args`) and one function,
//! `run(args, out) -> anyhow::Result<u8>`: what it prints goes to `out`, the number is the exit
//! status, an error is printed here as one line. To add one: a module, a variant of [`Command`],
//! an arm in [`Command::run`] and, if its statuses differ from the rule, one in [`Statuses::of`].
//!
//! A front end, not the core: it may use files, processes and the wall clock.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a front end")]
// They panic where standard error or output is closed or full: `show::say` and `out` do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod bench;
mod daemon;
mod demo;
mod device;
mod df;
mod docs;
mod dump;
mod findings;
mod fsck;
mod gc;
mod helper;
mod holds;
mod in_use;
mod kv;
mod lab;
mod map;
mod metrics;
mod mkfs;
mod mount;
mod raid;
mod run;
mod show;
mod stat;
mod sync;
mod target;
mod top;
mod umount;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
A device is a file that holds an emulated drive (disk.zns) or one in memory (mem:...).

Exit status: 0 done, 1 failed, 2 wrong usage; mount follows mount(8), fsck follows fsck(8).";

/// The program's version, and the format of file systems it makes.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (format 1)");
const _: () = assert!(furrow_fs::format::VERSION == 1, "VERSION names another format");

#[derive(Parser)]
#[command(name = "furrow", version = VERSION)]
#[command(about = "A storage stack for zoned flash, in user space")]
#[command(after_help = AFTER_HELP, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Mkfs(mkfs::Args),
    Mount(mount::Args),
    Raid(raid::Args),
    Kv(kv::Args),
    Run(run::Args),
    Umount(umount::Args),
    Fsck(fsck::Args),
    Dump(dump::Args),
    Df(df::Args),
    Map(map::Args),
    Stat(stat::Args),
    Top(top::Args),
    Gc(gc::Args),
    Sync(sync::Args),
    Bench(bench::Args),
    Lab(lab::Args),
    Device(device::DeviceArgs),
    Demo(demo::Args),
    #[command(hide = true)]
    Docs(docs::Args),
}

impl Command {
    fn run(self, out: &mut dyn Write) -> anyhow::Result<u8> {
        match self {
            Command::Mkfs(args) => mkfs::run(args, out),
            Command::Mount(args) => mount::run(&args, out),
            Command::Raid(args) => raid::run(args, out),
            Command::Kv(args) => kv::run(args, out),
            Command::Run(args) => run::run(&args, out),
            Command::Umount(args) => umount::run(&args, out),
            Command::Fsck(args) => fsck::run(&args, out),
            Command::Dump(args) => dump::run(args, out),
            Command::Df(args) => df::run(&args, out),
            Command::Map(args) => map::run(&args, out),
            Command::Stat(args) => stat::run(&args, out),
            Command::Top(args) => top::run(&args, out),
            Command::Gc(args) => gc::run(&args, out),
            Command::Sync(args) => sync::run(&args, out),
            Command::Bench(args) => bench::run(&args, out),
            Command::Lab(args) => lab::run(&args, out),
            Command::Device(args) => device::run(args, out),
            Command::Demo(args) => demo::run(args, out),
            Command::Docs(args) => docs::run(&args, out),
        }
    }
}

/// The exit statuses of a subcommand that does not get to choose one itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Statuses {
    /// The arguments make no sense.
    usage: u8,
    /// It failed.
    failure: u8,
}

impl Statuses {
    /// Statuses of a subcommand, and of the one below it: mount(8), fsck(8), and 2 and 1 for all
    /// others.
    fn of(subcommand: Option<&str>, below: Option<&str>) -> Statuses {
        match (subcommand, below) {
            (Some("mount"), _) => Statuses { usage: 1, failure: 32 },
            (Some("fsck"), _) | (Some("kv"), Some("fsck")) => Statuses { usage: 16, failure: 8 },
            _ => Statuses { usage: 2, failure: 1 },
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let arguments = helper::call(&arguments).unwrap_or(arguments);
    let words = arguments.iter().skip(1).filter_map(|argument| argument.to_str());
    let mut words = words.filter(|argument| !argument.starts_with('-'));
    let statuses = Statuses::of(words.next(), words.next());
    let status = match Cli::try_parse_from(&arguments) {
        Ok(cli) => run(cli, statuses),
        Err(error) => refuse(&error, &help_of(&arguments), statuses),
    };
    ExitCode::from(status)
}

/// Runs the command and says, in one line, why it failed.
fn run(cli: Cli, statuses: Statuses) -> u8 {
    let mut out = io::stdout().lock();
    let result = cli.command.run(&mut out).and_then(|status| {
        out.flush()?;
        Ok(status)
    });
    match result {
        Ok(status) => status,
        // Whoever read the output has seen enough (`furrow map | head`).
        Err(error) if is_broken_pipe(&error) => 0,
        Err(error) => {
            complain(&format!("{error:#}"));
            statuses.failure
        }
    }
}

/// Says, in one line, what went wrong.
fn complain(message: &str) {
    show::say(&format!("furrow: {}\n", one_line(message)));
}

/// The command that shows the help of the subcommand that `arguments` name, as deep as they do.
fn help_of(arguments: &[OsString]) -> String {
    let mut command = Cli::command();
    let mut words = vec!["furrow".to_owned()];
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

/// Answers a command line that does not parse, or that asks for help.
fn refuse(error: &clap::Error, help: &str, statuses: Statuses) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Nobody left to read the help is no failure.
            let _ = error.print();
            0
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            statuses.usage
        }
        _ => {
            let why = usage_message(&error.to_string());
            show::say(&format!("furrow: {why}; see '{help}'\n"));
            statuses.usage
        }
    }
}

/// The first paragraph of what clap says, as one line.
fn usage_message(rendered: &str) -> String {
    let paragraph = rendered.split("\n\n").next().unwrap_or_default();
    one_line(paragraph.strip_prefix("error: ").unwrap_or(paragraph))
}

/// `text` with every run of line breaks and indentation made one blank.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let of_io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        // It does not have the error it comes from as its source.
        let of_json = || cause.downcast_ref::<serde_json::Error>()?.io_error_kind();
        of_io.or_else(of_json) == Some(io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn mount_and_fsck_have_the_statuses_of_their_manuals() {
        let fsck = Statuses { usage: 16, failure: 8 };
        assert_eq!(Statuses::of(Some("mount"), Some("d")), Statuses { usage: 1, failure: 32 });
        assert_eq!(Statuses::of(Some("fsck"), Some("d")), fsck);
        assert_eq!(Statuses::of(Some("kv"), Some("fsck")), fsck);
        assert_eq!(Statuses::of(Some("df"), Some("fsck")), Statuses { usage: 2, failure: 1 });
        assert_eq!(Statuses::of(None, None), Statuses { usage: 2, failure: 1 });
    }

    #[test]
    fn a_usage_error_is_one_line() {
        let error = Cli::try_parse_from(["furrow", "nosuchcommand"]).err().expect("refused");
        let message = usage_message(&error.to_string());
        assert!(message.contains("'nosuchcommand'") && !message.contains('\n'), "{message}");
        assert_eq!(usage_message("error: these are missing:\n  <A>\n  <B>\n\nUsage: x"), {
            "these are missing: <A> <B>"
        });
    }

    #[test]
    fn help_is_that_of_the_deepest_command_that_is_named() {
        let help = |line: &str| help_of(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(help("furrow raid create --nosuch"), "furrow raid create --help");
        assert_eq!(help("furrow --nosuch"), "furrow --help");
        assert_eq!(help("furrow raid nosuch"), "furrow raid --help");
        assert_eq!(help("furrow dump --json nat x y"), "furrow dump nat --help");
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
