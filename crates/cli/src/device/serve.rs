//! `furrow device serve`: a drive as a block device of the kernel.

use super::{how_it_runs, size};
use crate::daemon;
use anyhow::{Context as _, anyhow};
use clap::Args;
use furrow_emu::OpenMode;
use furrow_fuse::Signals;
use furrow_rt::{Rt, either};
use furrow_ublk::{Drive, Options, Server};
use furrow_zone::spec::{DeviceSpec, Timing};
use furrow_zone::{Command, QueueId, Request};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Give the kernel a drive, as a zoned block device.
///
/// The device /dev/ublkbN is there until this command is ended by Ctrl-C or SIGTERM; what is dirty
/// in it is written then. Needs root, and a kernel of Linux 6.6 or later with ublk (modprobe
/// ublk_drv). Zones must have a size that is a power of two.
#[derive(Args)]
pub struct ServeArgs {
    /// The drive: an image (disk.zns), one in memory (mem:...), or a real one (/dev/nvme0n1).
    device: String,
    /// Serve it as a block device of this machine's kernel, by ublk.
    #[arg(long, required = true)]
    ublk: bool,
    /// N of /dev/ublkbN; the first that is free without it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..1 << 20))]
    number: Option<u32>,
}

/// Serves the drive until a signal comes.
///
/// # Errors
/// If the drive cannot be opened or served, or its device was removed by somebody else.
pub fn run(args: &ServeArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    // This comes before any other thread, which inherits the mask.
    let signals = Signals::block()?;
    let spec: DeviceSpec = args.device.parse()?;
    if how_it_runs(&spec).timing == Timing::Virtual {
        return Err(anyhow!("{spec}: the kernel's time is real: use timing=realtime"));
    }
    let rt = Rt::new(daemon::config()?);
    let drive = crate::holds::open(&rt, &spec, OpenMode::ReadWrite)?;
    for warning in drive.warnings() {
        crate::complain(&format!("warning: {warning}"));
    }
    let served = Drive::new(drive.clone())?;
    let (ended, ended_here) = UnixStream::pair().context("a socket for signals")?;
    ended_here.set_nonblocking(true).context("a socket for signals")?;
    signals.on_first(move |_| {
        // Nobody receives this only if the server has ended already.
        let _ = (&ended).write_all(b"s");
    })?;
    let engine = rt.clone();
    let options = Options { number: args.number, kept_for: None };
    let server = rt.block_on(async move { Server::start(&engine, served, options).await })?;
    let geometry = drive.geometry();
    writeln!(
        out,
        "{spec}: served as {}, {} in {} zones",
        server.device(),
        size(geometry.capacity()),
        geometry.zones
    )?;
    out.flush()?;
    let (engine, signal) = (rt.clone(), Arc::new(OwnedFd::from(ended_here)));
    let flushed = drive.clone();
    let result = rt.block_on(async move {
        let gone = either(engine.readable(signal), server.gone()).await.is_err();
        let name = server.device().to_string();
        let stopped = server.stop().await;
        let flush = flushed.submit(QueueId(0), Request::bare(Command::Flush)).await.status;
        stopped?;
        match (gone, flush.is_ok()) {
            (true, _) => Err(anyhow!("{name}: somebody else has removed it")),
            (_, false) => Err(anyhow!("{}: flush: {flush}", flushed.name())),
            _ => Ok(()),
        }
    });
    drop(drive);
    rt.clear();
    result
}
