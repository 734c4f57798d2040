//! The control socket of an open store, through which other programs query it.
//!
//! A line of JSON `{"request":"stat"}` is answered by a line with `"ok":...` or `"error":"..."`, as
//! on the sockets of arrays. `{"request":"scrub"}` first carries out the order in `"order"` (start,
//! repair, pause, resume or stop), and is answered with the running or last scrub, or null.
//! `{"request":"zones"}` is answered with the content of each zone, and `{"request":"freeze"}`
//! begins a session that reads files (`session`). The socket is `UUID.store` in the directory of
//! running daemons, for its owner alone. A separate thread listens there, and each session has a
//! thread, too; like any caller, these threads only call the engine.
//!
//! Whatever bytes arrive, the worst outcome is an error and the end of that connection: requests
//! have a maximum length and a time limit. If the socket cannot be made, the store works without
//! it, because a library has nobody to report that to.

use crate::session::Sessions;
use crate::shared::{Engine, check_fork};
use crate::tally::{Counted, Tally};
use furrow_kv::{FileKind, ScrubFinding, ScrubOrder, ZoneInfo};
use furrow_rt::{Port, Stopped};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Suffix of the sockets' names, after the UUID.
const ENDING: &str = ".store";
/// Longest request.
const REQUEST_MAX: usize = 4096;
/// Time limit for a request to arrive, or for an answer to be read.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a silent connection is checked, because the store may be closing.
const TICK: Duration = Duration::from_millis(100);
/// Bytes of a block.
const BLOCK: u64 = 4096;

/// The store about which the control socket answers.
pub(crate) struct Source {
    pub(crate) port: Port<Engine>,
    pub(crate) tally: Arc<Tally>,
    /// The name of the store's drive.
    pub(crate) device: String,
    pub(crate) uuid: String,
    pub(crate) label: String,
}

/// A listening control socket. Dropping it ends its thread and removes the socket.
pub(crate) struct Control {
    path: PathBuf,
    /// Device and inode of the socket.
    file: (u64, u64),
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The directory of the sockets of running daemons: the same one that the command uses.
pub(crate) fn directory() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(own) = set("FURROW_RUN") {
        return std::path::absolute(&own).unwrap_or_else(|_| own.into());
    }
    match set("XDG_RUNTIME_DIR") {
        Some(users) => PathBuf::from(users).join("furrow"),
        None => PathBuf::from("/run/furrow"),
    }
}

/// Listens at `path`. Replaces the socket of a dead process.
fn bind(path: &Path) -> std::io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {}
        bound => return bound,
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        _ => Err(ErrorKind::AddrInUse.into()),
    }
}

impl Control {
    /// Listens at a new control socket for a store; `None` if that is impossible.
    pub(crate) fn start(of: Source) -> Option<Control> {
        let directory = directory();
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).ok()?;
        let uuid = of.uuid.as_str();
        // A copy of a drive has the same UUID, so the plain name may be taken.
        let names = [uuid.to_owned(), format!("{uuid}-{}", std::process::id())];
        let mut bound = names.into_iter().filter_map(|name| {
            let path = directory.join(format!("{name}{ENDING}"));
            Some((bind(&path).ok()?, path))
        });
        let (listener, path) = bound.next()?;
        let own = std::fs::Permissions::from_mode(0o600);
        let file = std::fs::set_permissions(&path, own)
            .and_then(|()| std::fs::symlink_metadata(&path))
            .inspect_err(|_| drop(std::fs::remove_file(&path)))
            .ok()?;
        let over = Arc::new(AtomicBool::new(false));
        let (ends, of) = (over.clone(), Arc::new(of));
        let thread = std::thread::Builder::new()
            .name("furrow-control".into())
            .spawn(move || listen(&listener, &of, &ends))
            .inspect_err(|_| drop(std::fs::remove_file(&path)))
            .ok();
        let file = (file.dev(), file.ino());
        thread.map(|thread| Control { path, file, over, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if check_fork().is_err() {
            // The socket and its thread belong to the parent process.
            return;
        }
        self.over.store(true, Ordering::Release);
        // One more connection wakes the thread, so that it notices the end.
        drop(UnixStream::connect(&self.path));
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.file) {
            // If the socket cannot be removed, the next process notices that it is dead.
            let _ = std::fs::remove_file(&self.path);
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// Serves clients one after the other; each session runs in a separate thread.
fn listen(listener: &UnixListener, store: &Arc<Source>, over: &Arc<AtomicBool>) {
    let mut sessions = Sessions::default();
    loop {
        let client = listener.accept();
        if over.load(Ordering::Acquire) {
            sessions.end();
            return;
        }
        match client {
            // Whatever the result, only this connection ends.
            Ok((client, _)) => drop(converse(client, store, over, &mut sessions)),
            Err(_) => std::thread::sleep(TICK),
        }
    }
}

/// Answers one request, or begins a session.
fn converse(
    mut client: UnixStream,
    store: &Arc<Source>,
    over: &Arc<AtomicBool>,
    sessions: &mut Sessions,
) -> std::io::Result<()> {
    client.set_read_timeout(Some(TICK))?;
    client.set_write_timeout(Some(TICK))?;
    let Some(line) = hear(&mut client, PATIENCE, over)? else { return Ok(()) };
    let request = parse(&line);
    if request.as_ref().is_ok_and(|request| *request == json!({ "request": "freeze" })) {
        return match sessions.begin(&client, store, over) {
            Ok(()) => Ok(()),
            Err(why) => say(&mut client, &said(Err(why)), over),
        };
    }
    let answer = request.and_then(|request| answer(&request, store));
    say(&mut client, &said(answer), over)
}

/// The line that a client sends; `None` if the client has gone, or sends no line within `patience`.
pub(crate) fn hear(
    client: &mut UnixStream,
    patience: Duration,
    over: &AtomicBool,
) -> std::io::Result<Option<Vec<u8>>> {
    let (begun, mut bytes, mut buffer) = (Instant::now(), Vec::new(), [0; 1024]);
    while !bytes.contains(&b'\n') && bytes.len() <= REQUEST_MAX {
        match client.read(&mut buffer) {
            Ok(0) => return Ok(None),
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            Err(error) if is_only_late(&error) => {}
            Err(error) => return Err(error),
        }
        if begun.elapsed() > patience || over.load(Ordering::Acquire) {
            return Ok(None);
        }
    }
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(Some(line.to_vec()))
}

/// Sends bytes. The client must keep taking some of them.
///
/// # Errors
/// `TimedOut` if the client takes none for too long, or the store closes.
pub(crate) fn say(
    client: &mut UnixStream,
    mut bytes: &[u8],
    over: &AtomicBool,
) -> std::io::Result<()> {
    let mut since = Instant::now();
    while !bytes.is_empty() {
        match client.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                since = Instant::now();
            }
            Err(error) if is_only_late(&error) => {}
            Err(error) => return Err(error),
        }
        if !bytes.is_empty() && (since.elapsed() > PATIENCE || over.load(Ordering::Acquire)) {
            return Err(ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}

fn is_only_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// An answer as a line.
pub(crate) fn said(answer: Result<Value, String>) -> Vec<u8> {
    let answer = match answer {
        Ok(value) => json!({ "version": 1, "ok": value }),
        Err(why) => json!({ "version": 1, "error": why }),
    };
    format!("{answer}\n").into_bytes()
}

/// Parses the request in a line.
pub(crate) fn parse(line: &[u8]) -> Result<Value, String> {
    if line.len() > REQUEST_MAX {
        return Err(format!("not a request: longer than {REQUEST_MAX} bytes"));
    }
    serde_json::from_slice(line).map_err(|why| format!("not a request: {why}"))
}

fn answer(request: &Value, store: &Source) -> Result<Value, String> {
    if *request == json!({ "request": "stat" }) {
        return stat(store).map_err(|stopped| stopped.to_string());
    }
    if *request == json!({ "request": "zones" }) {
        return zones(store);
    }
    let order = match &request["order"] {
        Value::Null => Some(None),
        order => order.as_str().and_then(ScrubOrder::parse).map(Some),
    };
    match (request["request"].as_str(), order) {
        (Some("scrub"), Some(order)) => scrub(store, order),
        _ => Err("not a request: expected {\"request\":\"stat\"}, \"scrub\", \"zones\" or \
                  \"freeze\""
            .to_owned()),
    }
}

/// The content of each zone, with the numbers of valid blocks by kind in the order
/// of [`FileKind::ALL`].
fn zones(of: &Source) -> Result<Value, String> {
    let zones = of.port.try_call(|_, engine| {
        let store = engine.store.clone();
        async move {
            let zones = store.zones().await?;
            Ok::<_, furrow_zone::Error>((zones, store.zone_blocks(), store.kind_of()))
        }
    });
    let (zones, zone_blocks, kinds) =
        zones.map_err(|stopped| stopped.to_string())?.map_err(|why| why.to_string())?;
    let each = |zone: &ZoneInfo| {
        let mut by_kind = [0u64; FileKind::ALL.len()];
        for (file, blocks) in &zone.files {
            if let Some(kind) = kinds.get(file) {
                by_kind[*kind as usize] += u64::from(*blocks);
            }
        }
        json!({
            "use": zone.usage.name(),
            "active": zone.active,
            "written": zone.written,
            "valid": zone.valid,
            "kinds": by_kind,
        })
    };
    Ok(json!({
        "zone_blocks": zone_blocks,
        "zones": zones.iter().map(each).collect::<Vec<_>>(),
    }))
}

/// Passes an order to the store, if there is one; returns the running scrub, or the last one, with
/// the same fields as the scrub of a mount.
fn scrub(of: &Source, order: Option<ScrubOrder>) -> Result<Value, String> {
    let done = of.port.try_call(move |_, engine| {
        let ordered = order.map_or(Ok(()), |order| engine.store.scrub(order));
        std::future::ready(ordered.map(|()| engine.store.scrub_report()))
    });
    let report = done.map_err(|stopped| stopped.to_string())?.map_err(|why| why.to_string())?;
    let finding = |found: &ScrubFinding| {
        json!({
            "structure": found.structure,
            "inode": found.inode,
            "path": found.path,
            "offset": found.block.map(|block| u64::from(block) * BLOCK),
            "bytes": found.block.map(|_| found.blocks * BLOCK),
            "place": found.place,
            "what": found.what,
            "repaired": found.repaired,
        })
    };
    let scrub = report.map(|report| {
        json!({
            "state": report.state.name(),
            "repair": report.repair,
            "begun": report.begun,
            "seconds": report.took as f64 / 1e9,
            "percent": report.percent(),
            "blocks": report.total,
            "blocks_done": report.done,
            "records": report.records,
            "damaged": report.damaged,
            "repaired": report.repaired,
            "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
            "more_findings": report.more_findings,
            "error": report.error,
        })
    });
    Ok(json!({ "scrub": scrub }))
}

/// The state of a store, as `furrow kv stat` shows it for a store in use.
fn stat(of: &Source) -> Result<Value, Stopped> {
    let (space, did, kinds) = of.port.try_call(|_, engine| {
        let store = &engine.store;
        std::future::ready((store.space(), store.counters(), store.kinds()))
    })?;
    let by_kind = FileKind::ALL.iter().zip(kinds).map(|(kind, sum)| {
        json!({
            "kind": kind.name(),
            "files": sum.files,
            "bytes": sum.bytes,
            "disk_bytes": sum.blocks * BLOCK,
            "extents": sum.extents,
            "copied_bytes": did.copied_of[*kind as usize] * BLOCK,
        })
    });
    let operations = Counted::NAMES.map(|(op, name)| {
        let told = of.tally.of(op);
        json!({ "operation": name, "calls": told.calls, "hops": told.hops })
    });
    Ok(json!({
        "version": 1,
        "device": of.device,
        "uuid": of.uuid,
        "label": of.label,
        "process": std::process::id(),
        "size_bytes": space.capacity,
        "used_bytes": space.used,
        "available_bytes": space.available,
        "zones": space.zones,
        "free_zones": space.free_zones,
        "peak_zones": space.peak_zones,
        "kinds": by_kind.collect::<Vec<_>>(),
        "appended_bytes": did.appended,
        "read_bytes": did.read,
        "syncs": did.syncs,
        "rounds": did.rounds,
        "ring_turns": did.turns,
        "zones_cleaned": did.cleaned,
        "zones_reset": did.resets,
        "relocated_extents": did.relocated,
        "waits": did.waits,
        "waited_nanoseconds": did.waited,
        "refused": did.refused,
        "operations": operations,
        "handed_calls": of.tally.handed(),
    }))
}
