//! `furrow raid`: make arrays, run them, see and change how they are.
//!
//! A running array is a daemon (`serve`): engine and NBD server on one executor, and a control
//! socket (`control`) in the runtime directory through which every other command asks (`client`).
//! What a daemon says of its array is a [`status::Status`]. Only `create`, `examine` and the daemon
//! open drives.

pub mod client;
mod control;
mod create;
mod devices;
mod examine;
mod manage;
mod metrics;
mod notice;
mod request;
mod serve;
mod start;
mod status;

use clap::Subcommand;
use std::io::Write;

const AFTER_HELP: &str = "\
Examples:
  for i in 0 1 2 3; do furrow device create d$i.zns -o zones=64,zone-size=16MiB,oob=64; done
  furrow raid create --level 5 --name a d0.zns d1.zns d2.zns d3.zns
  furrow raid assemble d?.zns --listen unix:/run/a.sock
  nbdcopy disk.img 'nbd+unix:///a?socket=/run/a.sock'
  furrow raid status
  furrow raid fail a 2; furrow raid replace a 2 d4.zns; furrow raid rebuild a --wait
  furrow raid scrub a --repair --wait
  furrow raid stop a

Running arrays are found in $FURROW_RUN, else $XDG_RUNTIME_DIR/furrow, else /run/furrow. How arrays
behave: docs/volumes.md.";

/// Make and run arrays: RAID volumes over zoned drives, served over NBD
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Create(create::Args),
    Assemble(start::Args),
    Examine(examine::Args),
    Status(status::Args),
    Fail(manage::Fail),
    Replace(manage::Replace),
    AddSpare(manage::AddSpare),
    Rebuild(manage::Rebuild),
    Scrub(manage::Scrub),
    Stop(manage::Stop),
    Fault(manage::Fault),
}

/// Runs the command.
///
/// # Errors
/// If it cannot be done; nothing is half done then.
pub fn run(args: Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    match args.action {
        Action::Create(args) => create::run(&args, out),
        Action::Assemble(args) => start::run(&args),
        Action::Examine(args) => examine::run(&args, out),
        Action::Status(args) => status::run(&args, out),
        Action::Fail(args) => manage::fail(&args, out),
        Action::Replace(args) => manage::replace(&args, out),
        Action::AddSpare(args) => manage::add_spare(&args, out),
        Action::Rebuild(args) => manage::rebuild(&args, out),
        Action::Scrub(args) => manage::scrub(&args, out),
        Action::Stop(args) => manage::stop(&args, out),
        Action::Fault(args) => manage::fault(&args, out),
    }
}
