//! `furrow sync`: makes everything durable now.

use furrow_fuse::report;
use std::io::Write;
use std::path::PathBuf;

/// Make everything written to a mounted file system durable
///
/// Returns when everything is durable. The kernel does not forward sync(1) or syncfs(2) to FUSE;
/// use this command instead.
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
