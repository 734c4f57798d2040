//! `furrow kv`: file stores: create and inspect them, copy files in and out.
//!
//! Commands that only inspect ([`drive::Looked`]) write nothing to the drive, and show what opening
//! the store now would find; those that read files ([`view::View`]) ask the program that uses the
//! store, if there is one. Commands that change a store ([`drive::Changed`]) open it like any
//! other program.

mod backup;
mod df;
mod dirs;
pub mod drive;
mod fsck;
mod get;
mod kind;
mod ls;
mod map;
mod mkfs;
mod mv;
mod put;
mod restore;
mod rm;
pub mod running;
mod scrub;
mod session;
pub mod stat;
mod trace;
pub mod view;

use clap::Subcommand;
pub use scrub::closed as scrub_closed;
use std::io::Write;

/// Version of the JSON documents of these commands.
const VERSION: u32 = 1;

const AFTER_HELP: &str = "\
Examples:
  furrow device create s.zns -o zones=128,zone-size=16MiB,max-active=14
  furrow kv mkfs s.zns --label db
  furrow kv restore /var/backups/db s.zns db
  furrow kv ls -l s.zns db; furrow kv df s.zns; furrow kv map s.zns
  furrow kv get s.zns db/CURRENT -
  furrow kv mv s.zns db old; furrow kv rm -r s.zns old
  furrow kv backup s.zns /var/backups/db-2
  furrow kv fsck s.zns
  furrow kv trace run.trace

A path in a store is given from its root, with or without a slash in front. One program at a time \
has a store open; ls, df, map, get, backup, stat and fsck write nothing to the drive, and ask that \
program if there is one. What a store is for: docs/use/store.md in /usr/share/doc/furrow (in \
/usr/local after make install).";

/// Create and inspect file stores, in which LSM engines such as RocksDB keep their files
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Mkfs(mkfs::Args),
    Ls(ls::Args),
    Df(df::Args),
    Map(map::Args),
    Stat(stat::Args),
    Get(get::Args),
    Put(put::Args),
    Rm(rm::Args),
    Mv(mv::MoveArgs),
    Ln(mv::LinkArgs),
    Mkdir(dirs::MakeArgs),
    Rmdir(dirs::RemoveArgs),
    Backup(backup::Args),
    Restore(restore::Args),
    Fsck(fsck::Args),
    Trace(trace::Args),
}

/// Runs the command.
///
/// # Errors
/// An error if the command fails.
pub fn run(args: Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    match args.action {
        Action::Mkfs(args) => mkfs::run(args, out),
        Action::Ls(args) => ls::run(&args, out),
        Action::Df(args) => df::run(&args, out),
        Action::Map(args) => map::run(&args, out),
        Action::Stat(args) => stat::run(&args, out),
        Action::Get(args) => get::run(&args, out),
        Action::Put(args) => put::run(&args, out),
        Action::Rm(args) => rm::run(&args, out),
        Action::Mv(args) => mv::rename(&args, out),
        Action::Ln(args) => mv::link(&args, out),
        Action::Mkdir(args) => dirs::make(&args, out),
        Action::Rmdir(args) => dirs::remove(&args, out),
        Action::Backup(args) => backup::run(&args, out),
        Action::Restore(args) => restore::run(&args, out),
        Action::Fsck(args) => fsck::run(&args, out),
        Action::Trace(args) => trace::run(&args, out),
    }
}
