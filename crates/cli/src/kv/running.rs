//! A store in use by a program, described by that program through its control socket.

use super::df::{self, Sum};
use super::kind::{Kind, Kinds};
use super::session::explain;
use crate::show;
use anyhow::{Context as _, Result};
use furrow_control::place::Kind as Socket;
use furrow_control::store::Request;
use furrow_control::{self as control, Connection};
use furrow_kv::{Space, ZoneInfo, ZoneUse};
use furrow_metrics::Page;
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Error, ErrorKind, ZoneId};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest time that the program that uses a store may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The description of a store in use, as the program that uses it answers [`Request::Stat`].
#[derive(Clone, Debug, Deserialize)]
pub struct Running {
    device: String,
    uuid: String,
    label: String,
    process: u32,
    size_bytes: u64,
    used_bytes: u64,
    available_bytes: u64,
    zones: u32,
    free_zones: u32,
    peak_zones: u32,
    kinds: Vec<OfKind>,
    appended_bytes: u64,
    read_bytes: u64,
    syncs: u64,
    rounds: u64,
    ring_turns: u64,
    zones_cleaned: u64,
    zones_reset: u64,
    relocated_extents: u64,
    waits: u64,
    waited_nanoseconds: u64,
    refused: u64,
    operations: Vec<Operation>,
    handed_calls: u64,
    /// The whole document of the answer, as received.
    #[serde(skip)]
    document: Value,
    /// The control socket that sent the answer.
    #[serde(skip)]
    socket: PathBuf,
}

/// The files of one kind. The kind is not named: the answer lists the kinds in the order
/// of [`Kind::ALL`].
#[derive(Clone, Debug, Deserialize)]
struct OfKind {
    files: u64,
    bytes: u64,
    disk_bytes: u64,
    extents: u64,
    copied_bytes: u64,
}

/// The answer to a request for the zones.
#[derive(Deserialize)]
struct Zones {
    zone_blocks: u32,
    zones: Vec<Zone>,
}

#[derive(Deserialize)]
struct Zone {
    #[serde(rename = "use")]
    usage: String,
    active: bool,
    written: u32,
    valid: u32,
    /// Valid blocks in the order of [`Kind::ALL`].
    kinds: Vec<u64>,
}

/// The zone use with the name `name`, if there is one.
fn usage_of(name: &str) -> Option<ZoneUse> {
    ZoneUse::ALL.into_iter().find(|usage| usage.name() == name)
}

#[derive(Clone, Debug, Deserialize)]
struct Operation {
    operation: String,
    calls: u64,
    hops: u64,
}

/// The description of the store by the program that uses it, for callers whose inspection of
/// `device` has failed with `error`.
///
/// # Errors
/// `error` itself, if no program uses the store, or if that program does not answer; with an
/// explanation, if a program speaks another version of the protocol.
pub fn instead(device: &str, error: anyhow::Error) -> Result<Running> {
    let busy = error.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::Busy);
    let spec: Option<DeviceSpec> = device.parse().ok().filter(|_| busy);
    let path = spec.as_ref().and_then(|spec| Path::new(spec.path()?).canonicalize().ok());
    let Some(path) = path else { return Err(error) };
    match find(&path) {
        Ok(Some(store)) => Ok(store),
        Ok(None) => Err(error),
        Err(outdated) => {
            Err(error.context(format!("the store may be that of a program: {outdated}")))
        }
    }
}

/// The control socket of the store on `device`, if a program uses it.
///
/// # Errors
/// An error if no program is found that uses the store, but a program speaks another version of
/// the protocol.
pub fn socket_of(device: &str) -> Result<Option<PathBuf>> {
    let spec: Option<DeviceSpec> = device.parse().ok();
    let path = spec.as_ref().and_then(|spec| Path::new(spec.path()?).canonicalize().ok());
    let Some(path) = path else { return Ok(None) };
    let found = find(&path).with_context(|| {
        format!(
            "{device}: no program reports that it uses the store, but one program could not be \
             asked"
        )
    })?;
    Ok(found.map(|store| store.socket))
}

/// The store on the image at `path`, if a program uses it.
///
/// # Errors
/// An error if no program is found that uses the image, but a program speaks another version of
/// the protocol.
fn find(path: &Path) -> Result<Option<Running>, control::Error> {
    let mut outdated = None;
    for store in all() {
        match store {
            Ok(store) if Path::new(&store.device) == path => return Ok(Some(store)),
            Err(error @ control::Error::OtherVersion { .. }) => outdated = Some(error),
            _ => {}
        }
    }
    outdated.map_or(Ok(None), Err)
}

/// Sends a request to the program behind the control socket of a store, which must answer within
/// `limit`.
///
/// # Errors
/// An error if the program has closed the store, refuses, or gives no answer.
pub fn ask(socket: &Path, request: &Request, limit: Duration) -> Result<Value> {
    let opened = Connection::open(socket, Some(limit)).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => control::Error::Ended,
        _ => control::Error::from(error),
    });
    let mut connection = opened.map_err(|error| explain(None, error))?;
    let process = connection.process();
    connection.ask(request).map_err(|error| explain(process, error))
}

/// The device and the control socket of each store that a program uses, if this user may connect to
/// the socket; an error stands for a program that speaks another version of the protocol.
pub fn sockets() -> impl Iterator<Item = Result<(String, PathBuf), control::Error>> {
    all().filter_map(|store| match store {
        Ok(store) => Some(Ok((store.device, store.socket))),
        Err(error @ control::Error::OtherVersion { .. }) => Some(Err(error)),
        Err(_) => None,
    })
}

/// Descriptions of all stores in use, each by the program that uses it.
fn all() -> impl Iterator<Item = Result<Running, control::Error>> {
    Socket::Store.sockets().unwrap_or_default().into_iter().map(|socket| {
        // Sockets of dead programs refuse the connection.
        let mut connection = Connection::open(&socket, Some(PATIENCE))?;
        let document = connection.ask(&Request::Stat)?;
        let found = serde_json::from_value::<Running>(document.clone());
        let found = found.map_err(|_| connection.other_version())?;
        Ok(Running { document, socket, ..found })
    })
}

impl Running {
    /// The control socket of the program that uses the store.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The process that uses the store.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// The number of blocks per zone, and all zones of the store, each with its valid blocks
    /// by kind.
    ///
    /// # Errors
    /// An error if the program does not answer.
    pub fn zones(&self) -> Result<(u32, Vec<(ZoneInfo, Kinds)>)> {
        let answer = ask(&self.socket, &Request::Zones, PATIENCE)?;
        let told: Zones = serde_json::from_value(answer).context("zones of another version")?;
        let zone = |(number, told): (usize, Zone)| {
            let kinds = Kind::ALL.into_iter().zip(told.kinds).filter(|(_, blocks)| *blocks > 0);
            let info = ZoneInfo {
                zone: ZoneId(number as u32),
                usage: usage_of(&told.usage)?,
                active: told.active,
                written: told.written,
                valid: told.valid,
                files: BTreeMap::new(),
            };
            Some((info, kinds.collect()))
        };
        let zones: Option<Vec<_>> = told.zones.into_iter().enumerate().map(zone).collect();
        Ok((told.zone_blocks, zones.context("zones of another version")?))
    }

    /// The space of the store.
    pub fn space(&self) -> Space {
        Space {
            capacity: self.size_bytes,
            used: self.used_bytes,
            available: self.available_bytes,
            zones: self.zones,
            free_zones: self.free_zones,
            peak_zones: self.peak_zones,
        }
    }

    /// The sums of the store's files by kind.
    pub fn sums(&self) -> BTreeMap<Kind, Sum> {
        let sum = |of: &OfKind| Sum {
            files: of.files,
            bytes: of.bytes,
            disk: of.disk_bytes,
            extents: of.extents,
        };
        Kind::ALL.into_iter().zip(self.kinds.iter().map(sum)).collect()
    }

    /// The UUID and the label of the store.
    pub fn names(&self) -> (&str, &str) {
        (&self.uuid, &self.label)
    }

    fn copied(&self) -> impl Iterator<Item = (Kind, u64)> {
        Kind::ALL.into_iter().zip(self.kinds.iter().map(|kind| kind.copied_bytes))
    }

    /// The JSON document that describes the store.
    pub fn document(&self, device: &str) -> Value {
        let mut document = self.document.clone();
        document["device"] = json!(device);
        document["running"] = json!(true);
        // The kinds get the names that this command uses for them.
        let kinds = document["kinds"].as_array_mut().into_iter().flatten();
        kinds.zip(Kind::ALL).for_each(|(told, kind)| told["kind"] = json!(kind.name()));
        document
    }

    /// The metrics in the text format of Prometheus.
    pub fn prometheus(&self, device: &str) -> String {
        let mut page = Page::new("furrow_kv", &[("device", device), ("store", &self.uuid)]);
        page.family("space_bytes", "gauge", "Space for files");
        let states = [
            ("size", self.size_bytes),
            ("used", self.used_bytes),
            ("available", self.available_bytes),
        ];
        for (state, bytes) in states {
            page.sample("space_bytes", &[("state", state)], bytes);
        }
        page.family("zones", "gauge", "Zones, by use");
        page.sample("zones", &[("use", "free")], self.free_zones);
        page.sample("zones", &[("use", "used")], self.zones - self.free_zones.min(self.zones));
        page.one("peak_zones", "gauge", "Peak number of zones in use", self.peak_zones);
        page.family("copied_bytes_total", "counter", "Bytes that cleaning copied, by kind");
        for (kind, bytes) in self.copied() {
            page.sample("copied_bytes_total", &[("kind", kind.name())], bytes);
        }
        page.family("file_bytes", "gauge", "Bytes of files, by kind");
        for (kind, sum) in self.sums() {
            page.sample("file_bytes", &[("kind", kind.name())], sum.bytes);
        }
        page.family("calls_total", "counter", "Calls, by purpose");
        for each in &self.operations {
            page.sample("calls_total", &[("operation", &*each.operation)], each.calls);
        }
        page.family("hops_total", "counter", "Calls that another thread carried out");
        for each in &self.operations {
            page.sample("hops_total", &[("operation", &*each.operation)], each.hops);
        }
        for (name, help, value) in [
            (
                "handed_calls_total",
                "Calls that threads of low priority handed to other threads",
                self.handed_calls,
            ),
            ("appended_bytes_total", "Bytes that were appended", self.appended_bytes),
            ("read_bytes_total", "Bytes that were read", self.read_bytes),
            ("syncs_total", "Syncs of files", self.syncs),
            (
                "rounds_since_open_total",
                "Group commits that made files and names durable",
                self.rounds,
            ),
            (
                "ring_turns_since_open_total",
                "Number of times that the record ring turned",
                self.ring_turns,
            ),
            ("zones_cleaned_total", "Zones that cleaning emptied", self.zones_cleaned),
            ("zones_reset_total", "Zones that were reset", self.zones_reset),
            (
                "relocated_extents_total",
                "Extents moved from zones that failed",
                self.relocated_extents,
            ),
            ("waits_total", "Number of times that a writer waited for cleaning", self.waits),
            (
                "refused_total",
                "Number of times that a writer was refused for lack of space",
                self.refused,
            ),
        ] {
            page.one(name, "counter", help, value);
        }
        page.counted("waited_ns", "Time that writers waited", self.waited_nanoseconds);
        page.finish()
    }

    /// Prints the state of the store as text.
    ///
    /// # Errors
    /// The error of writing.
    pub fn print(&self, out: &mut dyn Write, device: &str) -> io::Result<()> {
        let label = if self.label.is_empty() { "(none)" } else { &self.label };
        writeln!(out, "{device}: file store {}, label {label}", self.uuid)?;
        let copied: u64 = self.copied().map(|(_, bytes)| bytes).sum();
        let milliseconds = self.waited_nanoseconds as f64 / 1e6;
        let used = self.zones - self.free_zones.min(self.zones);
        for (what, value) in [
            ("used by", format!("process {}; figures since it opened the store", self.process)),
            (
                "appended",
                format!(
                    "{}, read {}",
                    show::bytes(self.appended_bytes),
                    show::bytes(self.read_bytes)
                ),
            ),
            (
                "syncs",
                format!(
                    "{} in {} rounds, {} turns of the ring",
                    self.syncs, self.rounds, self.ring_turns
                ),
            ),
            ("zones", format!("{used} of {} in use, at most {}", self.zones, self.peak_zones)),
            (
                "cleaned",
                format!(
                    "{} zones, {} copied; {} zones reset",
                    self.zones_cleaned,
                    show::bytes(copied),
                    self.zones_reset
                ),
            ),
            (
                "failed",
                format!("{} written elsewhere", show::count(self.relocated_extents, "extent")),
            ),
            (
                "waits",
                format!(
                    "{} for space ({milliseconds:.1} ms); refused {} times",
                    self.waits, self.refused
                ),
            ),
            ("handed", format!("{} calls from low-priority threads", self.handed_calls)),
        ] {
            writeln!(out, "  {what:<8} {value}")?;
        }
        writeln!(out)?;
        df::print_space(out, device, &self.space())?;
        writeln!(out)?;
        let mut table = show::table(&["calls", "number", "by another thread", "share"]);
        for each in &self.operations {
            table.add_row([
                each.operation.clone(),
                each.calls.to_string(),
                each.hops.to_string(),
                show::percent(each.hops, each.calls),
            ]);
        }
        show::print_table(out, &table)?;
        writeln!(out)?;
        let mut table = show::table(&["kind", "files", "bytes", "extents", "copied"]);
        for ((kind, sum), (_, copied)) in self.sums().into_iter().zip(self.copied()) {
            table.add_row([
                kind.name().to_owned(),
                sum.files.to_string(),
                show::bytes(sum.bytes),
                sum.extents.to_string(),
                show::bytes(copied),
            ]);
        }
        show::print_table(out, &table)
    }
}

/// The metrics of a store after a single call.
#[cfg(test)]
pub fn sample() -> String {
    let kind = json!({
        "files": 1, "bytes": 1, "disk_bytes": 1, "extents": 1, "copied_bytes": 0,
    });
    let store: Running = serde_json::from_value(json!({
        "device": "d", "uuid": "u", "label": "", "process": 1, "size_bytes": 1, "used_bytes": 1,
        "available_bytes": 0, "zones": 1, "free_zones": 1, "peak_zones": 1,
        "kinds": vec![kind; Kind::ALL.len()], "appended_bytes": 0, "read_bytes": 0, "syncs": 0,
        "rounds": 0, "ring_turns": 0, "zones_cleaned": 0, "zones_reset": 0,
        "relocated_extents": 0, "waits": 0, "waited_nanoseconds": 0, "refused": 0,
        "operations": [{ "operation": "read", "calls": 1, "hops": 0 }], "handed_calls": 0,
    }))
    .unwrap();
    store.prometheus("d")
}
