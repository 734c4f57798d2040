//! `furrow device zone`: zone commands by hand, with the time that the drive took.

use super::{JSON_VERSION, Opened, open, state_name};
use crate::holds::Holds;
use crate::show;
use anyhow::bail;
use clap::{Args, ValueEnum};
use furrow_console::program::misused;
use furrow_rt::{PAGE_SIZE, Page, Pages, Rt};
use furrow_zone::{
    Access, Action, BlockCount, ByteLen, Command, Geometry, Lba, QueueId, Request, Target, ZoneId,
    ZoneReport, ZonedDevice, size,
};
use serde_json::json;
use std::collections::VecDeque;
use std::io::Write;
use std::rc::Rc;

const AFTER_HELP: &str = "\
Resetting a zone destroys its content. Writing, finishing or resetting a zone of a file system, \
store or array damages that, and is refused without --force. The device must not be in use.

With timing=realtime the drive takes its time, and the column 'took' shows how long; \
timing=virtual shows the same without waiting:
  furrow device zone disk.zns,timing=realtime write 3 --bytes 64MiB
  furrow device zone disk.zns,timing=realtime finish 3
  furrow device zone disk.zns,timing=realtime reset 3";

/// Open, close, write, finish or reset zones, one after the other
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct ZoneArgs {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// The zone command.
    what: What,
    /// Numbers of the zones.
    #[arg(required = true)]
    zones: Vec<u32>,
    /// write: number of bytes of zeros at the write pointer (default: as many as the zone holds).
    #[arg(long, value_parser = parse_bytes)]
    bytes: Option<ByteLen>,
    /// write: number of requests in flight.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// write, finish, reset: also on a drive that holds a file system, a store, a member of an
    /// array or another program's data
    #[arg(short = 'f', long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    Open,
    Close,
    Write,
    Finish,
    Reset,
}

fn parse_bytes(text: &str) -> Result<ByteLen, String> {
    size::parse(text).map_err(|what| format!("`{text}` {what}"))
}

/// Runs the command; prints to `out`.
pub(super) fn run(args: &ZoneArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if args.bytes.is_some() && args.what != What::Write {
        return Err(misused("--bytes is for 'write'"));
    }
    let Opened { rt, drive, .. } = open(&args.device, Access::ReadWrite)?;
    if !args.force && !matches!(args.what, What::Open | What::Close) {
        let (asked, name) = (drive.clone(), drive.name());
        match rt.block_on(async move { Holds::of(&*asked).await })? {
            // Unknown data is not protected: this command itself may have written it, for example.
            Holds::Nothing | Holds::Data(_) => {}
            holds => holds.refuse_used(&name, "--force")?,
        }
    }
    let mut lines = Vec::new();
    for zone in &args.zones {
        let before = report(&rt, &drive, *zone)?;
        let (what, bytes, depth, clock) = (args.what, args.bytes, args.depth, rt.clone());
        let target = drive.clone();
        let (nanoseconds, written) = rt.block_on(async move {
            let began = clock.now();
            let written = perform(&target, what, &before, bytes, depth).await?;
            anyhow::Ok((clock.now().since(began), written))
        })?;
        lines.push(Line { before, after: report(&rt, &drive, *zone)?, nanoseconds, written });
    }
    show(args, drive.geometry(), &lines, out)
}

/// The result of the command for one zone.
struct Line {
    before: ZoneReport,
    after: ZoneReport,
    nanoseconds: u64,
    written: ByteLen,
}

fn report(rt: &Rt, drive: &Rc<dyn ZonedDevice>, zone: u32) -> anyhow::Result<ZoneReport> {
    let zones = drive.geometry().zones;
    if zone >= zones {
        bail!("{}: no zone {zone}: it has {zones}, the last is {}", drive.name(), zones - 1);
    }
    let asked = drive.clone();
    match rt.block_on(async move { asked.report(ZoneId(zone), 1).await }) {
        Ok(reports) => Ok(reports[0]),
        Err(status) => bail!("{}: report of zone {zone}: {status}", drive.name()),
    }
}

/// Carries out `what`, and returns the number of bytes written.
async fn perform(
    drive: &Rc<dyn ZonedDevice>,
    what: What,
    zone: &ZoneReport,
    bytes: Option<ByteLen>,
    depth: u16,
) -> anyhow::Result<ByteLen> {
    let target = Target::Zone(drive.geometry().start(zone.zone));
    let action = match what {
        What::Open => Action::Open,
        What::Close => Action::Close,
        What::Finish => Action::Finish,
        What::Reset => Action::Reset,
        What::Write => return fill(drive, zone, bytes, depth).await,
    };
    let request = Request::bare(Command::Manage { target, action });
    let status = drive.submit(QueueId(0), request).await.status;
    if !status.is_ok() {
        bail!("{}: {action:?} of zone {}: {status}", drive.name(), zone.zone);
    }
    Ok(ByteLen(0))
}

/// Writes zeros at the write pointer of `zone`, with `depth` requests in flight.
async fn fill(
    drive: &Rc<dyn ZonedDevice>,
    zone: &ZoneReport,
    bytes: Option<ByteLen>,
    depth: u16,
) -> anyhow::Result<ByteLen> {
    let geometry = drive.geometry();
    let block = geometry.block_size.0;
    let left = zone.capacity.0.saturating_sub(zone.write_pointer.0);
    let wanted = bytes.map_or(left, |bytes| bytes.0.div_ceil(block));
    if wanted > left {
        let (wanted, left) =
            (super::size(ByteLen(wanted * block)), super::size(ByteLen(left * block)));
        bail!("{}: zone {} has {left} left, {wanted} are to be written", drive.name(), zone.zone);
    }
    let most = geometry.max_transfer.map_or(32, |most| most.0.min(32));
    let page = Page::zeroed();
    let mut waiting = VecDeque::new();
    let (mut at, end) = (zone.write_pointer.0, zone.write_pointer.0 + wanted);
    while at < end || !waiting.is_empty() {
        while at < end && waiting.len() < usize::from(depth) {
            let blocks = BlockCount((end - at).min(most));
            let lba = Lba(geometry.start(zone.zone).0 + at);
            let pages = (blocks.0 * block).div_ceil(PAGE_SIZE as u64);
            let data = Pages::from_iter((0..pages).map(|_| page.clone()));
            let request = Request::with_data(Command::Write { lba, blocks }, data);
            waiting.push_back(drive.submit(QueueId(0), request));
            at += blocks.0;
        }
        if let Some(first) = waiting.pop_front() {
            let status = first.await.status;
            if !status.is_ok() {
                bail!("{}: write to zone {}: {status}", drive.name(), zone.zone);
            }
        }
    }
    Ok(ByteLen(wanted * block))
}

fn show(
    args: &ZoneArgs,
    geometry: &Geometry,
    lines: &[Line],
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let state = |zone: &ZoneReport| state_name(geometry, zone, args.json);
    let pointer = |zone: &ZoneReport| geometry.bytes(zone.write_pointer);
    if args.json {
        let zones: Vec<_> = lines
            .iter()
            .map(|line| {
                json!({
                    "zone": line.before.zone.0,
                    "state_before": state(&line.before),
                    "state": state(&line.after),
                    "write_pointer_bytes": pointer(&line.after).0,
                    "bytes_written": line.written.0,
                    "nanoseconds": line.nanoseconds,
                })
            })
            .collect();
        return show::json(out, &json!({ "version": JSON_VERSION, "zones": zones }));
    }
    let rows = lines.iter().map(|line| {
        [
            line.before.zone.to_string(),
            state(&line.before).to_owned(),
            state(&line.after).to_owned(),
            super::size(pointer(&line.after)),
            format!("{:.3} ms", line.nanoseconds as f64 / 1e6),
        ]
    });
    Ok(show::plain(out, &["zone", "was", "is", "write pointer", "took"], rows)?)
}
