//! The check of a store in use: the program that uses it reads everything, in a scrub.

use super::super::running::Running;
use super::{Args, ERRORS_LEFT};
use crate::findings::{Drive, Findings, Violation};
use crate::scrub;
use crate::show;
use crate::target::source_name;
use anyhow::{Result, bail};
use furrow_fuse::report::{Scrub, ScrubDamage};
use serde_json::{Value, json};
use std::fmt;
use std::io::Write;

/// Tells the user which checks a scrub omits.
const NOT_LOOKED_AT: &str = "names and file places come from that program's memory and were not \
                             checked: for that, run the check when no program uses the store";

/// A finding of the scrub, which can be printed.
struct Damage<'a>(&'a ScrubDamage);

impl fmt::Display for Damage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&scrub::describe_damage(self.0))
    }
}

impl Violation for Damage<'_> {
    type Counts = ();

    fn block_of(&self) -> Option<(String, &str)> {
        let file = self.0.path.clone().filter(|_| self.0.structure == "content")?;
        Some((file, &self.0.structure))
    }
}

/// Asks the program that uses the store to check it.
///
/// # Errors
/// An error if the program does not complete the check, or an option needs a store that is not
/// in use.
pub fn run(args: &Args, store: &Running, out: &mut dyn Write) -> Result<u8> {
    let (device, process) = (source_name(&args.device), store.process());
    for (given, option) in
        [(args.repair, "--repair"), (args.yes, "--yes"), (args.metadata_only, "--metadata-only")]
    {
        if given {
            bail!("{device}: {option}: process {process} uses the store: end it first");
        }
    }
    let found = scrub::of_store_in_use(store.socket(), &device, args.json)?;
    if let Some(why) = &found.error {
        bail!("{device}: process {process} did not read it to the end: {why}");
    }
    if found.state != "finished" {
        bail!("{device}: the check was stopped (furrow scrub --stop)");
    }
    if args.json {
        show::json(out, &document(&device, store, &found))?;
    } else {
        print(args, &device, process, &found, out)?;
    }
    Ok(if found.damaged == 0 { 0 } else { ERRORS_LEFT })
}

fn print(
    args: &Args,
    device: &str,
    process: u32,
    found: &Scrub,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let damaged: Vec<Damage<'_>> = found.findings.iter().map(Damage).collect();
    let note = format!("in use by process {process}, which has read it: {NOT_LOOKED_AT}");
    let findings = Findings {
        device,
        found: &damaged,
        more: found.more_findings,
        counts: &(),
        notes: &[note],
        noun: "problems",
        drive: Drive::Unchanged,
    };
    findings.print(out, args.verbose)?;
    let state = findings.errors().unwrap_or_else(|| "clean".to_owned());
    writeln!(
        out,
        "{device}: {state}: {} and {} read and compared",
        show::count(found.blocks_done, "block"),
        show::count(found.records, "record")
    )
}

fn of(damage: &ScrubDamage) -> Value {
    json!({
        "structure": damage.structure,
        "file": damage.path,
        "block": damage.offset.map(|offset| offset / 4096),
        "place": damage.place,
        "problem": damage.what,
    })
}

fn document(device: &str, store: &Running, found: &Scrub) -> Value {
    let (uuid, label) = store.names();
    json!({
        "version": super::super::VERSION,
        "device": device,
        "uuid": uuid,
        "label": label,
        "process": store.process(),
        "ok": found.damaged == 0,
        "clean": found.damaged == 0,
        "problems": found.findings.iter().map(of).collect::<Vec<_>>(),
        "more_problems": found.more_findings,
        "notes": [NOT_LOOKED_AT],
        "statistics": {
            "records": found.records,
            "content_blocks": found.blocks,
            "verified_blocks": found.blocks_done,
        },
    })
}
