//! Tests a zoned drive against the rules of zones: `conformance DEVICE [SEED [STEPS [GRANULE]]]`,
//! where all lengths are a multiple of GRANULE blocks. DEVICE is a block device (`/dev/nvme0n1`),
//! or a generic NVMe device (`/dev/ng0n1,order=queued`). The content of the device is lost.
//!
//! Prints a table, and a line `differs: ` for each case that differs.

#![allow(clippy::disallowed_methods, reason = "a command has arguments")]

#[path = "../tests/common/conformance.rs"]
mod conformance;

use furrow_linux::Drive;
use furrow_rt::{Config, Rt};
use furrow_zone::Access;
use furrow_zone::spec::{DeviceSpec, SpecError};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, otherwise| match arguments.get(index) {
        Some(text) => text.parse().map_err(|_| format!("{text}: not a number")),
        None => Ok(otherwise),
    };
    let run = || {
        let name = arguments.first().ok_or("name a zoned drive")?;
        let spec = name.parse().map_err(|error: SpecError| error.to_string())?;
        let DeviceSpec::Node(node) = spec else { return Err(format!("{name}: no device")) };
        let (seed, steps, granule) = (number(1, 1)?, number(2, 1500)?, number(3, 1)?);
        let rt = Rt::new(Config::real());
        let drive =
            Drive::open(&rt, &node, Access::ReadWrite).map_err(|error| error.to_string())?;
        let found =
            rt.block_on(async move { conformance::run(&drive, seed, steps, granule).await });
        rt.clear();
        found
    };
    match run() {
        Ok(found) => {
            found.table().iter().for_each(|line| println!("{line}"));
            found.differences().iter().for_each(|line| println!("differs: {line}"));
            let (cases, differ) = found.cases();
            println!("{} commands in {cases} cases, {differ} differ", found.commands());
            ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("conformance: {what}");
            ExitCode::FAILURE
        }
    }
}
