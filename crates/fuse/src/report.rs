//! Reports of a mounted file system, and how tools request them.
//!
//! Queries are extended attributes of the mount's root directory, so every program that can reach
//! the mount can use them, without a socket:
//!
//! | attribute | answer |
//! |---|---|
//! | `furrow.status` | a [`Status`] as JSON |
//! | `furrow.map.N` | a [`MapPage`] as JSON: zones from N on |
//! | `furrow.stat` | a [`Stat`] as JSON |
//! | `furrow.options` | the options of the mount, in the form that `-o` takes |
//! | `furrow.sync` | `ok`, when everything is durable |
//! | `furrow.gc.N` | a [`Cleaned`] as JSON, when at most N superzones are cleaned; root only |
//! | `furrow.ask.REQUEST` | the answer to a [`Request`] of the control protocol; root only, except to see the scrub |
//!
//! A listing of the root's attributes leaves them out. An answer is at most [`MAX_ANSWER`] bytes,
//! the kernel's limit.

mod counters;
pub mod prometheus;
mod stat;

use crate::dispatch::Shared;
use crate::endpoint;
use anyhow::{Context as _, Result, anyhow};
pub use counters::{Counted, Traffic};
use furrow_control::Answer;
use furrow_control::mount::{self, Request};
pub use furrow_control::scrub::{Scrub, ScrubDamage};
use furrow_fs::{CleanOptions, CleanReport, Fs, ScrubOrder, StatFs, ZoneInfo, ZoneUse};
use furrow_zone::{Error, ErrorKind};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
pub(crate) use stat::stat;
pub use stat::{Memory, MemoryUse, Operation, Permits, Stat, Stream};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Version of the JSON documents.
pub const VERSION: u32 = 2;
/// Longest answer in bytes (XATTR_SIZE_MAX).
pub const MAX_ANSWER: usize = 65_536;
/// Longest time that a daemon may take for an answer that does not use the drive.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of zones on one page of the map; each zone takes at most about 85 bytes.
const PAGE: usize = 600;

/// Prefix of the names of all control attributes.
pub(crate) const PREFIX: &[u8] = b"furrow.";
const STATUS: &str = "furrow.status";
const MAP: &str = "furrow.map.";
const SYNC: &str = "furrow.sync";
const STAT: &str = "furrow.stat";
const OPTIONS: &str = "furrow.options";
const GC: &str = "furrow.gc.";

/// Properties that do not change while a file system is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// The device.
    pub device: String,
    /// Where the file system is mounted; empty if it is not mounted.
    #[serde(default)]
    pub directory: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Whether changes are refused, because of a read-only mount or an error.
    pub read_only: bool,
    /// Blocks of a zone.
    pub zone_blocks: u64,
}

/// Space, inodes and counters of a file system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of this document.
    pub version: u32,
    /// Constant properties.
    #[serde(flatten)]
    pub info: Info,
    /// The error after which nothing can be written any more, if there was one.
    #[serde(default)]
    pub failure: Option<String>,
    /// The drive, if it has owed an answer for more than a few seconds; otherwise null.
    #[serde(default)]
    pub silence: Option<Silence>,
    /// Volume label, empty if there is none.
    pub label: String,
    /// UUID of the file system.
    pub uuid: String,
    /// Space and inodes.
    pub space: Space,
    /// Traffic since the mount.
    pub counters: Traffic,
}

/// [`furrow_fs::Silence`] as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// Number of seconds for which the drive has not answered.
    pub seconds: u64,
    /// The commands that wait for the drive.
    pub waiting: String,
}

/// [`StatFs`] as JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are StatFs's")]
pub struct Space {
    pub block_size: u32,
    pub blocks: u64,
    pub blocks_free: u64,
    pub blocks_available: u64,
    pub blocks_now: u64,
    pub blocks_stale: u64,
    #[serde(default)]
    pub blocks_logs: u64,
    #[serde(default)]
    pub blocks_logs_used: u64,
    #[serde(default)]
    pub blocks_summaries: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

impl From<StatFs> for Space {
    fn from(s: StatFs) -> Space {
        Space {
            block_size: s.block_size,
            blocks: s.blocks,
            blocks_free: s.blocks_free,
            blocks_available: s.blocks_available,
            blocks_now: s.blocks_now,
            blocks_stale: s.blocks_stale,
            blocks_logs: s.blocks_logs,
            blocks_logs_used: s.blocks_logs_used,
            blocks_summaries: s.blocks_summaries,
            inodes: s.inodes,
            inodes_free: s.inodes_free,
        }
    }
}

/// A zone of the map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zone {
    /// Number of the zone.
    pub zone: u64,
    /// Use of the zone: one of the names of [`use_name`].
    #[serde(rename = "use")]
    pub usage: String,
    /// Whether a stream or log writes to the zone at present.
    pub open: bool,
    /// Number of blocks written in the zone.
    pub written: u64,
    /// Number of valid blocks in the zone.
    pub valid: u64,
}

/// A range of a drive's zones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapPage {
    /// Version of this document.
    pub version: u32,
    /// The device.
    pub device: String,
    /// Blocks of a zone.
    pub zone_blocks: u64,
    /// Zones of the drive.
    pub total: u64,
    /// The zones of this page.
    pub zones: Vec<Zone>,
}

/// The name of a zone's use in reports.
pub fn use_name(usage: ZoneUse) -> &'static str {
    match usage {
        ZoneUse::Checkpoint => "checkpoint",
        ZoneUse::DeltaLog => "delta-log",
        ZoneUse::Tables => "tables",
        ZoneUse::SyncLog => "sync-log",
        ZoneUse::Free => "free",
        ZoneUse::Data(0) => "data-hot",
        ZoneUse::Data(1) => "data-warm",
        ZoneUse::Data(_) => "data-cold",
        ZoneUse::Node(0) => "node-hot",
        ZoneUse::Node(1) => "node-warm",
        ZoneUse::Node(_) => "node-cold",
        ZoneUse::Unused => "unused",
        ZoneUse::Retired => "retired",
    }
}

/// The status of a mounted file system.
pub fn status(fs: &Fs, info: &Info) -> Status {
    let (label, uuid) = fs.identity();
    let failure = fs.failure().map(|error| error.to_string());
    let remounted = endpoint::is_read_only(Path::new(&info.directory));
    let read_only = info.read_only || failure.is_some() || remounted;
    Status {
        version: VERSION,
        info: Info { read_only, ..info.clone() },
        failure,
        silence: fs.silence().map(|s| Silence { seconds: s.seconds, waiting: s.waiting }),
        label,
        uuid,
        space: fs.statfs().into(),
        counters: fs.counters().into(),
    }
}

/// A page of the zone map: at most `count` zones from `first` on.
///
/// # Errors
/// An error if the drive does not report its zones.
pub async fn map(fs: &Fs, info: &Info, first: usize, count: usize) -> Result<MapPage, Error> {
    let all: Vec<ZoneInfo> = fs.zone_map().await?;
    let zones = all.iter().enumerate().skip(first).take(count).map(|(zone, z)| Zone {
        zone: zone as u64,
        usage: use_name(z.usage).to_owned(),
        open: z.open,
        written: u64::from(z.written),
        valid: u64::from(z.valid),
    });
    Ok(MapPage {
        version: VERSION,
        device: info.device.clone(),
        zone_blocks: info.zone_blocks,
        total: all.len() as u64,
        zones: zones.collect(),
    })
}

/// The options of a mount, and the means to change them.
pub trait Remount: Send + Sync {
    /// The options, in the form that `-o` takes.
    fn options(&self) -> String;

    /// Applies `options` in addition to the present ones: either all of them or none.
    ///
    /// # Errors
    /// An error if an option is unknown, or may not change while mounted.
    fn change(&self, fs: &Fs, options: &str) -> Result<(), Error>;
}

/// The query in an attribute's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    Status,
    Map(usize),
    Sync,
    Stat,
    Options,
    /// Cleans at most this many superzones.
    Gc(u32),
    /// A request of the control protocol, or the reason why the name does not hold one.
    Ask(Result<Request, String>),
}

impl Question {
    pub fn parse(name: &[u8]) -> Option<Question> {
        match std::str::from_utf8(name).ok()? {
            STATUS => Some(Question::Status),
            SYNC => Some(Question::Sync),
            STAT => Some(Question::Stat),
            OPTIONS => Some(Question::Options),
            other if other.starts_with(mount::PREFIX) => Some(Question::Ask(Request::of(other))),
            other => match other.strip_prefix(GC) {
                Some(superzones) => superzones.parse().ok().map(Question::Gc),
                None => other.strip_prefix(MAP)?.parse().ok().map(Question::Map),
            },
        }
    }

    /// Whether only root may ask this question, because answering makes the drive work. For
    /// [`Question::Ask`], [`carry_out`] decides.
    pub fn is_for_root(&self) -> bool {
        matches!(self, Question::Gc(_))
    }
}

pub(crate) async fn answer(
    fs: &Fs,
    shared: &Shared,
    question: Question,
    is_root: bool,
) -> Result<String, Error> {
    let info = &shared.info;
    let text = match question {
        Question::Sync => {
            // A read-only mount has nothing to sync, and must not write the state that recovery
            // found, which is only in memory.
            if !info.read_only {
                fs.sync().await?;
            }
            return Ok("ok".to_owned());
        }
        Question::Options => {
            return Ok(shared.remount.as_ref().map(|it| it.options()).unwrap_or_default());
        }
        Question::Ask(request) => {
            let result = match request {
                Ok(request) => carry_out(fs, shared, request, is_root).await,
                Err(error) => Err(error),
            };
            serde_json::to_string(&Answer::of(result))
        }
        Question::Status => serde_json::to_string(&status(fs, info)),
        Question::Stat => serde_json::to_string(&shared.stat(fs)),
        Question::Map(first) => serde_json::to_string(&map(fs, info, first, PAGE).await?),
        Question::Gc(superzones) => serde_json::to_string(&clean(fs, superzones).await?),
    };
    text.map_err(|error| Error::new(ErrorKind::Invalid, format!("report: {error}")))
}

/// Carries out a request of the control protocol.
async fn carry_out(
    fs: &Fs,
    shared: &Shared,
    request: Request,
    is_root: bool,
) -> Result<Value, String> {
    let said = |error: Error| match error.kind() {
        ErrorKind::ReadOnly => "nothing can be repaired on a read-only mount".to_owned(),
        _ => error.to_string(),
    };
    match request {
        Request::Scrub { order: Some(_) } if !is_root => Err("a scrub needs root".to_owned()),
        Request::Gc { .. } if !is_root => Err("cleaning needs root".to_owned()),
        Request::Remount { .. } if !is_root => Err("a remount needs root".to_owned()),
        Request::Scrub { order } => {
            if let Some(word) = order {
                let order = ScrubOrder::parse(&word);
                fs.scrub(order.ok_or(format!("not a request: scrub {word}"))?).map_err(said)?;
            }
            Ok(json!({ "scrub": fs.scrub_report().map(Scrub::from) }))
        }
        Request::Gc { superzones } => {
            let cleaned = clean(fs, superzones).await.map_err(|error| error.to_string())?;
            serde_json::to_value(cleaned).map_err(|error| error.to_string())
        }
        Request::Remount { options } => {
            let remount = shared.remount.as_ref();
            let remount = remount.ok_or("the options of this mount cannot be changed")?;
            let changed = remount.change(fs, &options).map_err(|error| error.to_string());
            changed.map(|()| json!({}))
        }
    }
}

/// The result of a requested cleaning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleaned {
    /// Version of this document.
    pub version: u32,
    /// Number of superzones that were emptied.
    pub superzones: u32,
    /// Bytes of file data moved.
    pub data_bytes: u64,
    /// Bytes of nodes moved.
    pub node_bytes: u64,
    /// Number of blocks that could not be read, or have wrong content.
    pub failed_blocks: u64,
    /// The first few of these blocks: place, owner and reason.
    pub failures: Vec<String>,
}

/// Cleans at most `superzones` superzones, the cheapest first, and makes the result durable, so
/// that the emptied superzones are free.
///
/// # Errors
/// The errors of [`Fs::clean`] and [`Fs::sync`].
pub async fn clean(fs: &Fs, superzones: u32) -> Result<Cleaned, Error> {
    let options = CleanOptions { superzones, ..CleanOptions::default() };
    let CleanReport { superzones, data_blocks, node_blocks, failed_blocks, failures } =
        fs.clean(options).await?;
    fs.sync().await?;
    Ok(Cleaned {
        version: VERSION,
        superzones,
        data_bytes: data_blocks * 4096,
        node_bytes: node_blocks * 4096,
        failed_blocks,
        failures,
    })
}

/// Asks a question that the daemon can answer without using the drive.
///
/// # Errors
/// The errors of `question`; also an error if no answer comes within [`PATIENCE`].
fn soon<T: Send + 'static>(
    directory: &Path,
    question: impl FnOnce(&Path) -> Result<T> + Send + 'static,
) -> Result<T> {
    endpoint::within(PATIENCE, directory, question).unwrap_or_else(|| {
        Err(anyhow!(
            "{}: mounted, but its daemon gives no answer within {} s: it hangs, or is stopped: \
             find out why the process does not continue",
            directory.display(),
            PATIENCE.as_secs()
        ))
    })
}

/// Asks for an attribute whose value the daemon can give without using the drive.
///
/// # Errors
/// The errors of [`ask`] and [`soon`].
fn ask_soon(directory: &Path, attribute: &str) -> Result<Vec<u8>> {
    let attribute = attribute.to_owned();
    soon(directory, move |directory| ask(directory, &attribute))
}

/// The error for a mount whose root directory cannot be read, so that no question reaches
/// its daemon.
#[derive(Debug)]
pub struct NoRoot {
    directory: PathBuf,
    errno: Errno,
}

impl std::fmt::Display for NoRoot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{0}: the root directory is damaged or cannot be read ({1}), so the daemon cannot be \
             asked: unmount it (furrow umount {0}), and see what furrow fsck finds on its drive",
            self.directory.display(),
            self.errno
        )
    }
}

impl std::error::Error for NoRoot {}

/// The value of an attribute; `None` if the file system has no attribute of this name.
fn value(directory: &Path, attribute: &str) -> Result<Option<Vec<u8>>> {
    let mut value = vec![0; MAX_ANSWER];
    match rustix::fs::getxattr(directory, attribute, value.as_mut_slice()) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(errno) if endpoint::is_end(errno) => Err(anyhow!(endpoint::dead_mount(directory))),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        // The kernel first asks for the attributes of the root, and passes on the error of
        // that request.
        Err(errno @ (Errno::IO | Errno::UCLEAN)) if rustix::fs::stat(directory).is_err() => {
            Err(anyhow::Error::new(NoRoot { directory: directory.to_owned(), errno }))
        }
        Err(errno) => Err(anyhow::Error::from(errno).context(directory.display().to_string())),
    }
}

fn ask(directory: &Path, attribute: &str) -> Result<Vec<u8>> {
    value(directory, attribute)?.with_context(|| {
        format!("{}: not the root of a mounted Furrow file system", directory.display())
    })
}

/// Sends a request of the control protocol to the daemon of a mount, and returns the result.
fn request(directory: &Path, request: &Request) -> Result<Value> {
    let at = directory.display();
    let again = "unmount it, and mount it again";
    let attribute = request.attribute().map_err(|error| anyhow!("{at}: {error}"))?;
    let Some(value) = value(directory, &attribute)? else {
        ask(directory, STATUS)?;
        return Err(anyhow!("{at}: its daemon is of an earlier version: {again}"));
    };
    mount::result(&value).map_err(|error| match error {
        furrow_control::Error::OtherVersion { .. } => anyhow!("{at}: {error}: {again}"),
        _ => anyhow!("{at}: {error}"),
    })
}

/// Requests the status of the file system mounted at `directory`.
///
/// # Errors
/// An error if no Furrow file system is mounted there, or its daemon is dead or does not answer.
pub fn ask_status(directory: &Path) -> Result<Status> {
    let bytes = ask_soon(directory, STATUS)?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{}: status of another version", directory.display()))
}

/// Requests the zone map of the file system mounted at `directory`. The map of a large drive comes
/// in several pages, each with the state at the time of its request.
///
/// # Errors
/// The errors of [`ask_status`].
pub fn ask_map(directory: &Path) -> Result<MapPage> {
    let page = |first: usize| -> Result<MapPage> {
        let bytes = ask_soon(directory, &format!("{MAP}{first}"))?;
        serde_json::from_slice(&bytes)
            .with_context(|| format!("{}: map of another version", directory.display()))
    };
    let mut map = page(0)?;
    while (map.zones.len() as u64) < map.total {
        let more = page(map.zones.len())?.zones;
        if more.is_empty() {
            break;
        }
        map.zones.extend(more);
    }
    Ok(map)
}

/// Requests the figures of the file system mounted at `directory`.
///
/// # Errors
/// The errors of [`ask_status`].
pub fn ask_stat(directory: &Path) -> Result<Stat> {
    let bytes = ask_soon(directory, STAT)?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{}: counters of another version", directory.display()))
}

/// Requests the mount options of the file system at `directory`, in the form that `-o` takes.
///
/// # Errors
/// The errors of [`ask_status`].
pub fn ask_options(directory: &Path) -> Result<String> {
    let bytes = ask_soon(directory, OPTIONS)?;
    String::from_utf8(bytes)
        .with_context(|| format!("{}: options of another version", directory.display()))
}

/// Applies `options` to the file system mounted at `directory`.
///
/// # Errors
/// The errors of [`ask_status`]; also an error if the caller is not root, or an option may
/// not change.
pub fn ask_remount(directory: &Path, options: &str) -> Result<()> {
    let remount = remount_order(options)?;
    soon(directory, move |directory| request(directory, &remount)).map(drop)
}

/// The request that applies `options` to a mount.
///
/// # Errors
/// An error if `options` are too long for one request.
pub fn remount_order(options: &str) -> Result<Request> {
    let remount = Request::Remount { options: options.to_owned() };
    match remount.attribute() {
        Ok(_) => Ok(remount),
        Err(_) => Err(anyhow!("{options}: too long to be changed at once: give fewer options")),
    }
}

/// Lets the file system mounted at `directory` clean at most `superzones` superzones.
///
/// # Errors
/// The errors of [`ask_status`]; also an error if the caller is not root, or the device fails.
pub fn ask_clean(directory: &Path, superzones: u32) -> Result<Cleaned> {
    let cleaned = request(directory, &Request::Gc { superzones })?;
    serde_json::from_value(cleaned)
        .with_context(|| format!("{}: report of another version", directory.display()))
}

/// Sends an order to the scrub of the file system mounted at `directory`: start, repair (a start
/// that repairs), pause, resume, stop. Without an order, changes nothing. Returns the running
/// scrub, or the last one.
///
/// # Errors
/// The errors of [`ask_status`]; with an order also an error if the caller is not root, if a scrub
/// runs already, or if none runs.
pub fn ask_scrub(directory: &Path, order: Option<&str>) -> Result<Option<Scrub>> {
    let mut answer = request(directory, &Request::Scrub { order: order.map(str::to_owned) })?;
    serde_json::from_value(answer["scrub"].take())
        .with_context(|| format!("{}: report of another version", directory.display()))
}

/// Makes the file system mounted at `directory` durable, including writes that only the kernel's
/// cache holds.
///
/// # Errors
/// The errors of [`ask_status`]; also an error if the device fails or is full.
pub fn ask_sync(directory: &Path) -> Result<()> {
    ask_status(directory)?;
    // Makes the kernel write back pages changed through maps and, with a write-back cache, all
    // collected writes.
    let written_back = File::open(directory).and_then(|root| Ok(rustix::fs::syncfs(&root)?));
    let written_back = written_back
        .with_context(|| format!("{}: writing back the kernel's cache", directory.display()));
    written_back.and_then(|()| ask(directory, SYNC)).map(drop).map_err(|error| {
        match ask_status(directory).ok().and_then(|status| status.failure) {
            Some(why) => anyhow!(
                "{}: writing has stopped, and changes that were not durable are lost: {why}",
                directory.display()
            ),
            None => error,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_fs::Counters;

    #[test]
    fn questions_are_attribute_names() {
        assert_eq!(Question::parse(b"furrow.status"), Some(Question::Status));
        assert_eq!(Question::parse(b"furrow.sync"), Some(Question::Sync));
        assert_eq!(Question::parse(b"furrow.map.70"), Some(Question::Map(70)));
        assert_eq!(Question::parse(b"furrow.stat"), Some(Question::Stat));
        assert_eq!(Question::parse(b"furrow.gc.3"), Some(Question::Gc(3)));
        assert!(Question::Gc(3).is_for_root() && !Question::Stat.is_for_root());
        assert_eq!(Question::parse(b"furrow.options"), Some(Question::Options));
        let name = Request::Scrub { order: Some("repair".into()) }.attribute().unwrap();
        let asked = Question::parse(name.as_bytes()).unwrap();
        assert_eq!(asked, Question::Ask(Ok(Request::Scrub { order: Some("repair".into()) })));
        let bad = Question::parse(b"furrow.ask.{}").unwrap();
        assert!(matches!(bad, Question::Ask(Err(why)) if why.contains("not a request")));
        for other in [
            &b"furrow.map."[..],
            b"furrow.map.-1",
            b"furrow.map.x",
            b"furrow.gc.-1",
            b"furrow.scrub",
            b"furrow.asks",
            b"user.x",
            b"\xff",
        ] {
            assert_eq!(Question::parse(other), None);
        }
    }

    #[test]
    fn a_page_of_the_map_fits_an_attribute() {
        let zone = Zone {
            zone: u64::from(u32::MAX),
            usage: use_name(ZoneUse::Checkpoint).to_owned(),
            open: false,
            written: u64::from(u32::MAX),
            valid: u64::from(u32::MAX),
        };
        let page = MapPage {
            version: VERSION,
            device: "x".repeat(4096),
            zone_blocks: u64::MAX,
            total: u64::MAX,
            zones: vec![zone; PAGE],
        };
        let length = serde_json::to_string(&page).expect("serializable").len();
        assert!(length <= MAX_ANSWER, "{length} bytes");
    }

    #[test]
    fn a_status_survives_its_own_json() {
        let status = Status {
            version: VERSION,
            info: Info {
                device: "d.zns".into(),
                directory: "m".into(),
                pid: 7,
                read_only: true,
                zone_blocks: 9,
            },
            failure: Some("f".into()),
            silence: Some(Silence { seconds: 8, waiting: "a read".into() }),
            label: "l".into(),
            uuid: "u".into(),
            space: Space { blocks: 3, ..Space::default() },
            counters: Counters { user_bytes: 2, data_bytes: 5, ..Counters::default() }.into(),
        };
        let text = serde_json::to_string(&status).expect("serializable");
        let back: Status = serde_json::from_str(&text).expect("its own");
        assert_eq!(back, status);
        assert_eq!(back.counters.write_amplification, Some(2.5));
        assert!(text.contains("\"device\":\"d.zns\""), "{text}");
    }

    #[test]
    fn asking_what_is_no_mount_of_ours_says_so() {
        let error = ask_status(Path::new("/")).expect_err("not ours").to_string();
        assert!(error.contains("not the root of a mounted Furrow file system"), "{error}");
    }
}
