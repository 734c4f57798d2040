//! `furrow sync`: makes everything durable now.

use crate::target::Target;
use furrow_fuse::report;
use std::io::Write;
use std::path::PathBuf;

/// Make everything written to a mounted file system durable
///
/// Returns when everything is durable. sync(1) and syncfs(2) do the same for a mounted block device
/// on Linux 6.18 or later; for images, and on older kernels, the kernel does not pass them on.
#[derive(clap::Args)]
pub struct Args {
    /// Mount point
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args, _out: &mut dyn Write) -> anyhow::Result<u8> {
    let nothing = "nothing waits to become durable";
    report::ask_sync(&Target::mounted(args.directory.as_os_str(), nothing)?)?;
    Ok(0)
}
