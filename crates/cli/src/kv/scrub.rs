//! `furrow scrub` of a store that no program uses: this command reads the drive itself.

use super::drive::{self, Changed};
use anyhow::Result;
use furrow_fuse::report::{Scrub, ScrubDamage};
use furrow_kv::{CheckReport, Problem};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Scrubs the store on `device`. Without `repair` nothing is written; with it, the store is opened
/// for writing.
///
/// # Errors
/// An error if there is no store, or it cannot be opened.
pub fn closed(device: &str, repair: bool, quiet: bool) -> Result<Scrub> {
    if repair {
        return Ok(Changed::open(device)?.scrub()?.into());
    }
    let begun = Instant::now();
    let report = drive::check(device, true, "read", quiet)?;
    Ok(scrub_of(&report, begun))
}

/// The findings of a check, in the form of a scrub.
fn scrub_of(report: &CheckReport, begun: Instant) -> Scrub {
    let (seconds, checked) = (begun.elapsed().as_secs_f64(), &report.checked);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let damage = |problem: &Problem| ScrubDamage {
        structure: problem.structure.to_owned(),
        inode: None,
        path: problem.file.clone(),
        offset: problem.block.map(|block| u64::from(block) * 4096),
        bytes: problem.block.map(|_| 4096),
        place: problem.place.map_or_else(
            || "record ring".to_owned(),
            |(zone, offset)| format!("zone {zone} offset {offset}"),
        ),
        what: problem.what.clone(),
        repaired: false,
    };
    Scrub {
        state: "finished".to_owned(),
        repair: false,
        begun: (now as i64).saturating_sub(seconds as i64),
        seconds,
        percent: 100.0,
        blocks: checked.blocks,
        blocks_done: checked.blocks,
        records: checked.records + checked.sums,
        damaged: report.problems.len() as u64 + report.more,
        repaired: 0,
        findings: report.problems.iter().map(damage).collect(),
        more_findings: report.more,
        more_files: 0,
        error: None,
    }
}
