//! `furrow gc`: cleaning, now.

use crate::show;
use crate::target::Target;
use anyhow::{Result, bail};
use furrow_fuse::report::{self, Cleaned};
use std::ffi::OsString;
use std::io::{self, Write};

/// Clean a mounted file system now
///
/// Moves what is still valid out of superzones that hold garbage, the cheapest first, and frees
/// them. It happens by itself as room is needed; doing it before saves waiting then. Needs root.
/// Exit status 1 if blocks were found that could not be read.
#[derive(clap::Args)]
pub struct Args {
    /// Mount point, or the device of a mount
    #[arg(value_name = "DIR|DEVICE")]
    target: OsString,
    /// At most so many; all that is worth it if absent
    #[arg(long, value_name = "COUNT", default_value_t = u32::MAX, hide_default_value = true)]
    superzones: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    let directory = match Target::find(&args.target)? {
        Target::Mounted(directory) => directory,
        Target::Device(device) => bail!("{device}: not mounted: mount it first"),
    };
    let cleaned = report::ask_clean(&directory, args.superzones)?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &cleaned)?;
        writeln!(out)?;
    } else {
        print(out, &cleaned)?;
        for failure in &cleaned.failures {
            crate::complain(failure);
        }
    }
    Ok(u8::from(cleaned.failed_blocks > 0))
}

fn print(out: &mut dyn Write, cleaned: &Cleaned) -> io::Result<()> {
    let moved = cleaned.data_bytes + cleaned.node_bytes;
    match cleaned.superzones {
        0 => write!(out, "nothing is worth cleaning")?,
        1 => write!(out, "1 superzone cleaned, {} moved", show::bytes(moved))?,
        count => write!(out, "{count} superzones cleaned, {} moved", show::bytes(moved))?,
    }
    match cleaned.failed_blocks {
        0 => writeln!(out),
        failed => {
            writeln!(out, "; {failed} blocks could not be read: see the log, run furrow fsck")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_a_line() {
        let said = |superzones, failed_blocks| {
            let cleaned = Cleaned {
                version: 1,
                superzones,
                data_bytes: 8192,
                node_bytes: 4096,
                failed_blocks,
                failures: Vec::new(),
            };
            let mut out = Vec::new();
            print(&mut out, &cleaned).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(said(2, 0), "2 superzones cleaned, 12.0 KiB moved\n");
        assert!(said(1, 3).starts_with("1 superzone cleaned, 12.0 KiB moved; 3 blocks could"));
        assert_eq!(said(0, 0), "nothing is worth cleaning\n");
    }
}
