//! `furrow raid`: creates and runs arrays, shows and changes their state.
//!
//! A running array is a daemon (`start`): the engine and an NBD server on one executor. All
//! other commands reach it (`client`) through its control socket in the runtime directory. The
//! daemon describes its array as a [`status::Status`]. Only `create`, `examine` and the daemon
//! open drives.

mod advice;
pub mod client;
mod create;
mod devices;
mod examine;
mod exports;
mod gather;
mod hook;
mod host;
pub mod kept;
pub mod manage;
pub mod metrics;
mod notice;
mod old;
mod refused;
mod request;
mod start;
pub mod status;
mod wait;

use crate::show;
use clap::Subcommand;
use std::io::Write;

const AFTER_HELP: &str = "\
Examples:
  for i in 0 1 2 3; do furrow device create d$i.zns -o zones=64,zone-size=16MiB,oob=64; done
  furrow raid create --level 5 --name a d0.zns d1.zns d2.zns d3.zns
  furrow raid assemble 'd?.zns' --listen unix:/run/a.sock
  nbdcopy disk.img 'nbd+unix:///a?socket=/run/a.sock'
  furrow raid status
  furrow device create d4.zns -o zones=64,zone-size=16MiB,oob=64
  furrow raid fail a 2; furrow raid replace a 2 d4.zns --wait
  furrow raid scrub a --repair --wait
  furrow raid stop a

Running arrays are found in $FURROW_RUN, else $XDG_RUNTIME_DIR/furrow, else /run/furrow. How \
arrays behave: docs/use/volumes.md in /usr/share/doc/furrow (in /usr/local after make install).";

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
    Assemble(Box<Answered<start::Args>>),
    Examine(examine::Args),
    Status(status::Args),
    Fail(Answered<manage::Fail>),
    Replace(Answered<manage::Replace>),
    AddSpare(Answered<manage::AddSpare>),
    Rebuild(Answered<manage::Rebuild>),
    Scrub(Answered<manage::Scrub>),
    Clear(Answered<manage::Clear>),
    Stop(Answered<manage::Stop>),
    Fault(Answered<manage::Fault>),
}

// Arguments of a command that changes an array, and the option `--json`. A plain comment, because a
// documentation comment would replace the help of the command.
#[derive(clap::Args)]
struct Answered<T: clap::Args> {
    #[command(flatten)]
    args: T,
    /// Print JSON: the command's answer, and the array's state after it
    #[arg(long)]
    json: bool,
}

/// The JSON answer of a command that changes an array.
#[derive(serde::Serialize)]
struct Answer<'a> {
    version: u32,
    /// The messages of the command, one line each.
    said: Vec<&'a str>,
    /// The state of the array now; `None` if the array does not run.
    array: Option<status::Status>,
}

impl<T: clap::Args> Answered<T> {
    /// Runs `command`. With `--json`, its messages become JSON, together with the state of the
    /// array `named`, or else of the array that the first message names.
    fn run(
        &self,
        out: &mut dyn Write,
        named: Option<&str>,
        command: impl FnOnce(&T, &mut dyn Write) -> anyhow::Result<u8>,
    ) -> anyhow::Result<u8> {
        if !self.json {
            return command(&self.args, out);
        }
        let mut text = Vec::new();
        let status = command(&self.args, &mut text)?;
        let text = String::from_utf8_lossy(&text);
        // Every message begins with the array's name, except for those on faults.
        let name = named.unwrap_or_else(|| text.split(':').next().unwrap_or_default());
        let array = client::find(name).ok().map(|array| array.status);
        let answer = Answer { version: status::VERSION, said: text.lines().collect(), array };
        show::json(out, &answer)?;
        Ok(status)
    }
}

/// Runs the command.
///
/// # Errors
/// An error if the command fails.
pub fn run(args: Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    match args.action {
        Action::Create(args) => create::run(&args, out),
        Action::Assemble(args) => args.run(out, None, start::run),
        Action::Examine(args) => examine::run(&args, out),
        Action::Status(args) => status::run(&args, out),
        Action::Fail(args) => args.run(out, None, manage::fail),
        Action::Replace(args) => args.run(out, None, manage::replace),
        Action::AddSpare(args) => args.run(out, None, manage::add_spare),
        Action::Rebuild(args) => args.run(out, None, manage::rebuild),
        Action::Scrub(args) => args.run(out, None, manage::scrub),
        Action::Clear(args) => args.run(out, None, manage::clear),
        Action::Stop(args) => args.run(out, None, manage::stop),
        Action::Fault(args) => args.run(out, Some(&args.args.array), manage::fault),
    }
}
