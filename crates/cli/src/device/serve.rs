//! `furrow device serve`: a drive as a block device of the kernel.

use super::{how_it_runs, size};
use crate::daemon;
use anyhow::{Context as _, anyhow};
use clap::Args;
use furrow_rt::{Rt, either};
use furrow_ublk::recording::Recorder;
use furrow_ublk::{Drive, Options, Server};
use furrow_zone::spec::{DeviceSpec, Timing};
use furrow_zone::{Access, Command, Geometry, QueueId, Request};
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Read as _, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Give the kernel a drive, as a zoned block device
///
/// The device /dev/ublkbN exists until this command is ended by Ctrl-C or SIGTERM; dirty pages are
/// written then. Needs root, and a kernel of Linux 6.6 or later with ublk (modprobe ublk_drv).
/// Zones must have a size that is a power of two.
#[derive(Args)]
pub struct ServeArgs {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    // ublk is the only way to serve a drive; earlier versions required this flag.
    #[arg(long = "ublk", hide = true)]
    _ublk: bool,
    /// N of /dev/ublkbN (default: the first that is free).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..1 << 20))]
    number: Option<u32>,
    /// Record commands, payloads and answers in FILE. FILE.marks is a socket: each line sent to the
    /// socket becomes a mark; an empty line answers when the mark is in the recording.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Serves the drive until a signal arrives.
///
/// # Errors
/// An error if the drive cannot be opened or served, or another process removed its device.
pub fn run(args: &ServeArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let signals = daemon::begin()?;
    let spec: DeviceSpec = args.device.parse()?;
    if how_it_runs(&spec).timing == Timing::Virtual {
        return Err(anyhow!("{spec}: the kernel's time is real: use timing=realtime"));
    }
    let rt = Rt::new(daemon::config()?);
    let drive = crate::in_use::open_now(&rt, &spec, Access::ReadWrite)?;
    let (engine, examined) = (rt.clone(), drive.clone());
    let member = rt.block_on(async move { furrow_raid::examine(&*examined).await });
    if let Ok(member) = member {
        // Writes to a member would change the volume behind its daemon's back.
        let name = format!("{spec}, a drive of the array {}", member.label);
        crate::raid::kept::refuse(&engine, &name, member.array)?;
    }
    let recorder = match &args.record {
        Some(path) => Some(Rc::new(recorder(path, drive.geometry())?)),
        None => None,
    };
    let served = Drive::new(drive.clone())?;
    let served = match &recorder {
        Some(recorder) => served.recorded(recorder.clone()),
        None => served,
    };
    let (ended, ended_here) = UnixStream::pair().context("a socket for signals")?;
    ended_here.set_nonblocking(true).context("a socket for signals")?;
    signals.on_first(move |_| {
        // The write fails only if the server has ended already.
        let _ = (&ended).write_all(b"s");
    })?;
    let engine = rt.clone();
    let options = Options { number: args.number, kept_for: None };
    let server = rt.block_on(async move { Server::start(&engine, served, options).await })?;
    daemon::warn_of_refusals();
    let geometry = drive.geometry();
    writeln!(
        out,
        "{spec}: served as {}, {} in {} zones",
        server.device(),
        size(geometry.capacity()),
        geometry.zones
    )?;
    out.flush()?;
    if let (Some(path), Some(recorder)) = (&args.record, &recorder) {
        let socket = marks_socket(path)?;
        let (engine, recorder) = (rt.clone(), recorder.clone());
        rt.spawn_detached(async move { take_marks(&engine, socket, &recorder).await });
    }
    let (engine, signal) = (rt.clone(), Arc::new(OwnedFd::from(ended_here)));
    let flushed = drive.clone();
    let result = rt.block_on(async move {
        let gone = either(engine.readable(signal), server.gone()).await.is_err();
        let name = server.device().to_string();
        let stopped = server.stop().await;
        let flush = flushed.submit(QueueId(0), Request::bare(Command::Flush)).await.status;
        stopped?;
        match (gone, flush.is_ok()) {
            (true, _) => Err(anyhow!("{name}: another process removed it")),
            (_, false) => Err(anyhow!("{}: flush: {flush}", flushed.name())),
            _ => Ok(()),
        }
    });
    drop(drive);
    rt.clear();
    if let Some(path) = &args.record {
        let _ = std::fs::remove_file(marks_path(path));
    }
    let recorded = recorder.map_or(Ok(()), |recorder| recorder.flush());
    result.and_then(|()| Ok(recorded?))
}

fn recorder(path: &Path, geometry: &Geometry) -> anyhow::Result<Recorder> {
    let file = File::create(path).with_context(|| path.display().to_string())?;
    Ok(Recorder::new(geometry, Box::new(BufWriter::with_capacity(1 << 20, file)))?)
}

fn marks_path(recording: &Path) -> PathBuf {
    let mut name = recording.as_os_str().to_owned();
    name.push(".marks");
    name.into()
}

fn marks_socket(recording: &Path) -> anyhow::Result<UnixListener> {
    let path = marks_path(recording);
    let _ = std::fs::remove_file(&path);
    let socket = UnixListener::bind(&path).with_context(|| path.display().to_string())?;
    socket.set_nonblocking(true).with_context(|| path.display().to_string())?;
    Ok(socket)
}

/// Accepts clients one after another, and records each line that a client sends as a mark.
async fn take_marks(rt: &Rt, socket: UnixListener, recorder: &Recorder) {
    let Ok(ready) = socket.try_clone().map(|socket| Arc::new(OwnedFd::from(socket))) else {
        return;
    };
    loop {
        rt.readable(ready.clone()).await;
        if let Ok((client, _)) = socket.accept() {
            let _ = take_marks_of(rt, client, recorder).await;
        }
    }
}

async fn take_marks_of(
    rt: &Rt,
    mut client: UnixStream,
    recorder: &Recorder,
) -> std::io::Result<()> {
    client.set_nonblocking(true)?;
    let ready = Arc::new(OwnedFd::from(client.try_clone()?));
    let (mut line, mut bytes) = (Vec::new(), [0; 512]);
    loop {
        rt.readable(ready.clone()).await;
        let count = match client.read(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            count => count?,
        };
        if count == 0 {
            return Ok(());
        }
        for &byte in &bytes[..count] {
            if byte != b'\n' {
                line.push(byte);
                continue;
            }
            let marked = recorder.mark(&String::from_utf8_lossy(&line));
            line.clear();
            let answer = marked.err().map_or(String::new(), |error| error.to_string());
            client.write_all(format!("{answer}\n").as_bytes())?;
        }
    }
}
