//! `furrow sync`: makes everything durable now.

use furrow_fuse::report;
use std::io::Write;
use std::path::PathBuf;

/// Make everything written to a mounted file system durable
///
/// Returns when everything is durable. Of sync(1) and syncfs(2) the kernel does not tell FUSE file
/// systems; this command replaces them.
#[derive(clap::Args)]
pub struct Args {
    /// Mount point
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args, _out: &mut dyn Write) -> anyhow::Result<u8> {
    report::ask_sync(&args.directory)?;
    Ok(0)
}
