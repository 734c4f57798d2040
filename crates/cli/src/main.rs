//! The `furrow` command.
//!
//! Each subcommand is a module with its arguments (`Args`) and one function, `run(args, out) ->
//! anyhow::Result<u8>`. It prints to `out` and returns the exit status; an error is printed here as
//! one line. A new subcommand needs a module, a variant of [`Command`], an arm in [`Command::run`]
//! and, if its exit statuses are not the usual ones, an arm in [`statuses_of`].
//!
//! This crate is a front end, not the core: it may use files, processes and the wall clock.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a front end")]
// `print!` and `eprint!` panic if their stream is closed or full; `show::say` and `out` do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod daemon;
mod demo;
mod device;
mod df;
mod docs;
mod dump;
mod examples;
mod findings;
mod fsck;
mod gc;
mod helper;
mod holds;
mod in_use;
mod kv;
mod label;
mod limits;
mod live;
mod map;
mod metrics;
mod mkfs;
mod mount;
mod overwrite;
mod progress;
mod raid;
mod run;
mod scrub;
mod stat;
mod sync;
mod tags;
mod target;
mod text_file;
mod top;
mod umount;
mod visit;

use clap::{CommandFactory as _, Parser, Subcommand};
use furrow_console::program::{self, Statuses, usage_message};
use furrow_console::show;
use furrow_zone::spec::SpecError;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

const AFTER_HELP: &str = "\
A device is a zoned block device (/dev/nvme0n2, an SMR disk), any block device or file with \
soft zones (furrow device create --soft), a file that holds an emulated drive (disk.zns), or an \
emulated drive in memory (mem:...).

Exit status: 0 done, 1 failed, 2 wrong usage; mount follows mount(8), fsck follows fsck(8).";

/// The program's version, and the format version of the file systems it makes.
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
    Label(label::Args),
    Dump(dump::Args),
    Df(df::Args),
    Map(map::Args),
    Stat(stat::Args),
    Top(top::Args),
    Gc(gc::Args),
    Scrub(scrub::Args),
    Sync(sync::Args),
    Device(device::DeviceArgs),
    Demo(demo::Args),
    #[command(hide = true)]
    Docs(docs::Args),
}

/// The parser, with the examples in its help.
fn command() -> clap::Command {
    examples::add(Cli::command())
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
            Command::Label(args) => label::run(&args, out),
            Command::Dump(args) => dump::run(args, out),
            Command::Df(args) => df::run(&args, out),
            Command::Map(args) => map::run(&args, out),
            Command::Stat(args) => stat::run(&args, out),
            Command::Top(args) => top::run(&args, out),
            Command::Gc(args) => gc::run(&args, out),
            Command::Scrub(args) => scrub::run(&args, out),
            Command::Sync(args) => sync::run(&args, out),
            Command::Device(args) => device::run(args, out),
            Command::Demo(args) => demo::run(args, out),
            Command::Docs(args) => docs::run(&args, out),
        }
    }
}

/// Exit statuses of `subcommand`, or of the subcommand `below` it: those of mount(8) or fsck(8) for
/// commands of these names, the usual ones for all others.
fn statuses_of(subcommand: Option<&str>, below: Option<&str>) -> Statuses {
    match (subcommand, below) {
        (Some("mount"), _) => Statuses { usage: 1, failure: 32 },
        (Some("fsck"), _) | (Some("kv"), Some("fsck")) => Statuses { usage: 16, failure: 8 },
        _ => Statuses::USUAL,
    }
}

fn main() -> ExitCode {
    limits::make_errors();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let arguments = helper::call(&arguments).unwrap_or(arguments);
    let arguments = device::fault::in_order(arguments);
    let words = arguments.iter().skip(1).filter_map(|argument| argument.to_str());
    let mut words = words.filter(|argument| !argument.starts_with('-'));
    let words = (words.next(), words.next());
    // False for commands that print the bytes of a file, or text for a program or a shell.
    let text = !matches!(words, (Some("kv"), Some("get")) | (Some("docs" | "run"), _))
        && !arguments.iter().any(|argument| {
            ["--json", "--prometheus", "--toml", "--svg"].iter().any(|form| argument == form)
        });
    let statuses = statuses_of(words.0, words.1);
    let run = |cli: Cli, out: &mut dyn Write| cli.command.run(out).map_err(as_misuse);
    ExitCode::from(program::answer(command(), &arguments, statuses, text, run))
}

/// A device spec that cannot be read is wrong usage, as is any option that cannot be.
fn as_misuse(error: anyhow::Error) -> anyhow::Error {
    match error.is::<SpecError>() {
        true => program::misused(&format!("{error:#}")),
        false => error,
    }
}

/// Prints an error message as one line.
fn complain(message: &str) {
    program::complain("furrow", message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    /// The help texts of `of` and of all commands below it, each with the command's name.
    fn texts(of: &clap::Command, name: &str) -> Vec<(String, String)> {
        let mut all = Vec::new();
        for command in of.get_subcommands() {
            let name = format!("{name} {}", command.get_name());
            let said = |text: Option<&clap::builder::StyledStr>| {
                text.map(ToString::to_string).unwrap_or_default()
            };
            all.push((name.clone(), said(command.get_about())));
            all.extend(texts(command, &name));
        }
        all
    }

    #[test]
    fn each_command_says_in_a_line_of_its_own_what_it_does() {
        let mut all = texts(&command(), "furrow");
        assert!(all.len() > 50, "{}", all.len());
        for (name, text) in &all {
            let fine = !text.is_empty() && !text.ends_with('.') && !text.contains('\n');
            assert!(fine && text.len() < 100, "{name}: {text:?}");
        }
        all.sort_by(|(_, one), (_, other)| one.cmp(other));
        for pair in all.windows(2) {
            assert_ne!(pair[0].1, pair[1].1, "{} and {}", pair[0].0, pair[1].0);
        }
    }

    #[test]
    fn a_letter_has_one_meaning_in_all_commands() {
        // These short options have the meaning that they have in umount(8), fsck(8) and rm(1).
        let familiar = [
            ('l', "lazy", "furrow umount"),
            ('p', "preen", "furrow fsck"),
            ('r', "recursive", "furrow kv rm"),
        ];
        for (letter, mut names) in program::letters(&Cli::command()) {
            for (_, long, command) in familiar.iter().filter(|(known, ..)| *known == letter) {
                assert_eq!(names.remove(*long), Some(vec![(*command).to_owned()]));
            }
            assert!(names.len() == 1 && !names.contains_key(""), "-{letter}: {names:?}");
        }
    }

    /// `of` and all commands below it, each with its name.
    fn all_commands(of: &clap::Command, name: &str) -> Vec<(String, clap::Command)> {
        let below = of.get_subcommands();
        let below = below.flat_map(|it| all_commands(it, &format!("{name} {}", it.get_name())));
        std::iter::once((name.to_owned(), of.clone())).chain(below).collect()
    }

    #[test]
    fn arguments_are_called_alike_and_explained() {
        let other = ["DEV", "IMAGE", "DRIVE", "INTERVAL"];
        for (name, command) in all_commands(&Cli::command(), "furrow") {
            let about = command.get_long_about().or(command.get_about());
            let about = about.map(ToString::to_string).unwrap_or_default();
            assert!(!about.lines().next().unwrap_or_default().ends_with('.'), "{name}: {about}");
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let id = format!("{name}: {}", arg.get_id());
                let values = arg.get_value_names().unwrap_or_default();
                let odd = values.iter().find(|value| other.iter().any(|word| *value == word));
                assert_eq!(odd, None, "{id}: a device is a DEVICE");
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.len() > 6 && help != "Device", "{id}: {help:?}");
                // Help texts that say that a command repeats all begin in one of these ways.
                let repeats = help.starts_with("Repeat") || help.starts_with("Seconds between");
                assert!(!repeats || arg.get_long() == Some("every"), "{id}: {help}");
            }
        }
    }

    #[test]
    fn mount_and_fsck_have_the_statuses_of_their_manuals() {
        let fsck = Statuses { usage: 16, failure: 8 };
        assert_eq!(statuses_of(Some("mount"), Some("d")), Statuses { usage: 1, failure: 32 });
        assert_eq!(statuses_of(Some("fsck"), Some("d")), fsck);
        assert_eq!(statuses_of(Some("kv"), Some("fsck")), fsck);
        assert_eq!(statuses_of(Some("df"), Some("fsck")), Statuses { usage: 2, failure: 1 });
        assert_eq!(statuses_of(None, None), Statuses { usage: 2, failure: 1 });
    }

    #[test]
    fn a_usage_error_is_one_line() {
        let error = Cli::try_parse_from(["furrow", "nosuchcommand"]).err().expect("refused");
        let message = usage_message(&error);
        assert!(message.contains("'nosuchcommand'") && !message.contains('\n'), "{message}");
    }

    #[test]
    fn help_is_that_of_the_deepest_command_that_is_named() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let help = |line: &str| program::help_of(command(), &words(line));
        assert_eq!(help("furrow raid create --nosuch"), "furrow raid create --help");
        assert_eq!(help("furrow --nosuch"), "furrow --help");
        assert_eq!(help("furrow raid nosuch"), "furrow raid --help");
        assert_eq!(help("furrow dump --json nat x y"), "furrow dump nat --help");
    }
}
