//! Measures how fast one zone takes small appends and writes, depending on how many are in flight:
//! `in_flight DEVICE [COMMANDS]`. The content of the device's first sequential zones is lost.
//!
//! Prints a line for each kind of command and depth: commands, seconds, and the peak number of
//! commands that the kernel had.

#![allow(clippy::disallowed_methods, reason = "a command has arguments")]

use furrow_linux::Drive;
use furrow_rt::{Completion, Config, Page, Pages, Rt};
use furrow_zone::spec::{DeviceSpec, SpecError};
use furrow_zone::{
    Access, BlockCount, Command, Lba, Outcome, QueueId, Request, Status, ZoneId, ZonedDevice,
};
use std::collections::VecDeque;
use std::process::ExitCode;

/// Sends `commands` commands of one page each to `zone`, at most `depth` at once.
async fn fill(
    drive: &Drive,
    zone: ZoneId,
    appends: bool,
    depth: usize,
    commands: u64,
) -> Result<(), Status> {
    let geometry = drive.geometry();
    let blocks = furrow_rt::PAGE_SIZE as u64 / geometry.block_size.0;
    let start = geometry.start(zone);
    let reset = Request::bare(Command::reset(geometry, zone));
    let done = |status: Status| if status.is_ok() { Ok(()) } else { Err(status) };
    done(drive.submit(QueueId(0), reset).await.status)?;
    let page = Page::zeroed();
    let mut flying: VecDeque<Completion<Outcome>> = VecDeque::new();
    for number in 0..commands {
        let count = BlockCount(blocks);
        let command = match appends {
            true => Command::Append { zone_start: start, blocks: count },
            false => Command::Write { lba: Lba(start.0 + number * blocks), blocks: count },
        };
        if flying.len() == depth
            && let Some(first) = flying.pop_front()
        {
            done(first.await.status)?;
        }
        let request = Request::with_data(command, Pages::from_iter([page.clone()]));
        flying.push_back(drive.submit(QueueId(0), request));
    }
    for last in flying {
        done(last.await.status)?;
    }
    Ok(())
}

fn run() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().ok_or("name a zoned drive")?;
    let commands: u64 = match arguments.next() {
        Some(text) => text.parse().map_err(|_| format!("{text}: not a number"))?,
        None => 1000,
    };
    let spec = name.parse().map_err(|error: SpecError| error.to_string())?;
    let DeviceSpec::Node(node) = spec else { return Err(format!("{name}: no device")) };
    for (appends, kind) in [(true, "appends"), (false, "writes")] {
        for depth in [1, 4, 16] {
            let rt = Rt::new(Config::real());
            let drive =
                Drive::open(&rt, &node, Access::ReadWrite).map_err(|error| error.to_string())?;
            if appends && drive.geometry().append_limit() == Some(BlockCount(0)) {
                continue;
            }
            let zone = ZoneId(drive.geometry().conventional_zones);
            let (started, inner) = (rt.now(), drive.clone());
            let filled =
                rt.block_on(async move { fill(&inner, zone, appends, depth, commands).await });
            filled.map_err(|status| format!("{name}: {kind} at depth {depth}: {status}"))?;
            let (seconds, most) = ((rt.now().0 - started.0) as f64 / 1e9, drive.most_per_zone());
            let rate = commands as f64 / seconds;
            println!(
                "{kind}, depth {depth}: {commands} in {seconds:.3} s, {rate:.0} a second, at most \
                 {most} with the kernel"
            );
            rt.clear();
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("in_flight: {what}");
            ExitCode::FAILURE
        }
    }
}
