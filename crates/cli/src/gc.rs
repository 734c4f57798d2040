//! `furrow gc`: cleans now.

use crate::progress::Progress;
use crate::show;
use crate::target::Target;
use anyhow::Result;
use furrow_fuse::report::{self, Cleaned};
use std::ffi::OsString;
use std::io::{self, Write};

/// Number of superzones cleaned at a time.
const ROUND: u32 = 8;
/// Maximum number of unreadable blocks that are named.
const FAILURES_MAX: usize = 20;

/// Clean a mounted file system now
///
/// Moves valid blocks out of superzones with garbage, the cheapest first, and frees these
/// superzones. The file system does the same when it needs space; cleaning earlier avoids the wait.
/// Needs root. Exit status 1 if some blocks could not be read.
#[derive(clap::Args)]
pub struct Args {
    /// Mount point, or the device of a mount
    #[arg(value_name = "DIR|DEVICE")]
    target: OsString,
    /// Maximum number of superzones to clean (default: all that are worth cleaning)
    #[arg(long, value_name = "COUNT", default_value_t = u32::MAX, hide_default_value = true)]
    superzones: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    let directory = Target::mounted(&args.target, "mount it first")?;
    let cleaned = clean(args, |superzones| report::ask_clean(&directory, superzones))?;
    if args.json {
        show::json(out, &cleaned)?;
    } else {
        print(out, &cleaned)?;
        for failure in &cleaned.failures {
            crate::complain(failure);
        }
    }
    Ok(u8::from(cleaned.failed_blocks > 0))
}

/// Cleans in rounds, so that the user can interrupt it between rounds; shows progress on
/// a terminal.
fn clean(args: &Args, mut round: impl FnMut(u32) -> Result<Cleaned>) -> Result<Cleaned> {
    let progress = Progress::new("", args.json);
    let mut sum = Cleaned { version: report::VERSION, ..Cleaned::default() };
    while sum.superzones < args.superzones {
        let done = round(ROUND.min(args.superzones - sum.superzones))?;
        sum.superzones += done.superzones;
        sum.data_bytes += done.data_bytes;
        sum.node_bytes += done.node_bytes;
        sum.failed_blocks += done.failed_blocks;
        let room = FAILURES_MAX.saturating_sub(sum.failures.len());
        sum.failures.extend(done.failures.into_iter().take(room));
        // No further superzone is worth cleaning, or a block cannot be read.
        if done.superzones == 0 || done.failed_blocks > 0 {
            break;
        }
        progress.tell(|| format!("cleaning: {} superzones", sum.superzones));
    }
    progress.end();
    Ok(sum)
}

fn print(out: &mut dyn Write, cleaned: &Cleaned) -> io::Result<()> {
    let moved = cleaned.data_bytes + cleaned.node_bytes;
    match cleaned.superzones {
        0 => write!(out, "nothing is worth cleaning")?,
        some => {
            let cleaned = show::count(some.into(), "superzone");
            write!(out, "{cleaned} cleaned, {} moved", show::bytes(moved))?;
        }
    }
    match cleaned.failed_blocks {
        0 => writeln!(out),
        failed => {
            let failed = show::count(failed, "block");
            writeln!(out, "; {failed} could not be read: see the log, run furrow fsck")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_go_on_to_the_end_or_the_limit() {
        let args = |superzones| Args { target: "x".into(), superzones, json: true };
        let mut asked = Vec::new();
        let mut left = 19;
        let mut round = |superzones: u32| {
            asked.push(superzones);
            let superzones = superzones.min(left);
            left -= superzones;
            Ok(Cleaned { superzones, data_bytes: 4096, ..Cleaned::default() })
        };
        let sum = clean(&args(10), &mut round).unwrap();
        assert_eq!((sum.superzones, sum.data_bytes), (10, 8192));
        assert_eq!(clean(&args(u32::MAX), &mut round).unwrap().superzones, 9);
        assert_eq!(asked, [8, 2, 8, 8, 8]);
        // A block that cannot be read stays where it is, so no round makes progress.
        let stuck = |_| Ok(Cleaned { superzones: 1, failed_blocks: 2, ..Cleaned::default() });
        assert_eq!(clean(&args(u32::MAX), stuck).unwrap().failed_blocks, 2);
    }

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
