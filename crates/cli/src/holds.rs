//! The content of a drive, and the reports of commands about it.
//!
//! This module is the only place that recognises content: a file system, a member of an array or a
//! spare, a file store, data of another program, or bytes of an unknown kind. A command that needs
//! an empty drive refuses any other drive and says what would be lost. A command that reads a file
//! system (or a file store) and finds none describes the drive's content. Advice that destroys data
//! says so.

use crate::limits;
use furrow_drives::{FRONT, signature};
use furrow_log::address::blocks_per_zone;
use furrow_log::record::{Uuid, peek};
use furrow_log::{BlockAddr, read_blocks};
use furrow_raid::{Examined, examine};
use furrow_rt::{Pool, Rt};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error, ErrorKind, QueueId, ZoneId, ZoneState, ZonedDevice};
use std::rc::Rc;

const BLOCK: usize = 4096;
/// Number of zones, the first after the conventional ones, in which file systems, stores and
/// members keep the records that identify them.
const RING_ZONES: u32 = 2;
/// Kinds of records that file systems write.
const OF_FILE_SYSTEMS: std::ops::Range<u16> = 0x10..0x20;

/// The content that a command needs on a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// A file system.
    FileSystem,
    /// A file store.
    Store,
}

/// The content of a drive.
pub enum Holds {
    /// All zones are empty.
    Nothing,
    /// A file system of Furrow with this UUID; it may be damaged.
    FileSystem(Uuid),
    /// A file store with this UUID, and its label if a superblock is whole; it may be damaged.
    Store(Uuid, String),
    /// A member of an array, or a spare.
    Member(Box<Examined>),
    /// Records of Furrow that this program cannot read, and the reason.
    Unreadable(Error),
    /// Data of another program.
    Foreign(&'static str),
    /// Unknown data; this is the first zone that is not empty.
    Data(ZoneId),
}

impl Holds {
    /// Recognises the content of `device`. Nothing is written.
    ///
    /// # Errors
    /// `Io` if the drive does not report its zones.
    pub async fn of(device: &dyn ZonedDevice) -> Result<Holds, Error> {
        let geometry = device.geometry();
        let zones = device.report(ZoneId(0), geometry.zones).await;
        let zones = zones.map_err(|status| Error::device(&device.name(), "zone report", status))?;
        let broken = |state| matches!(state, ZoneState::Offline | ZoneState::ReadOnly);
        let used = zones.iter().find(|zone| {
            zone.state != ZoneState::Empty
                && !broken(zone.state)
                && !geometry.is_conventional(zone.zone)
        });
        let first = geometry.conventional_zones;
        let mut unreadable = None;
        for zone in (first..geometry.zones).take(RING_ZONES as usize).map(ZoneId) {
            let Some(block) = block(device, zone, 0).await else { continue };
            let Some(header) = peek(&block) else { continue };
            if OF_FILE_SYSTEMS.contains(&header.kind.get()) {
                return Ok(Holds::FileSystem(header.object));
            }
            if header.kind.get() == furrow_kv::format::kind::SUPERBLOCK {
                let label = furrow_kv::label_of(&block).unwrap_or_default();
                return Ok(Holds::Store(header.object, label));
            }
            unreadable = Some(Error::new(ErrorKind::Corrupt, "its records are damaged"));
        }
        match examine(device).await {
            Ok(examined) => return Ok(Holds::Member(Box::new(examined))),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => unreadable = Some(error),
        }
        // The newest half of a store's record ring may be the second half, or the front of the
        // newest half may be damaged.
        if let Some(store) = furrow_kv::identify(device).await? {
            return Ok(Holds::Store(store, String::new()));
        }
        if let Some(error) = unreadable {
            return Ok(Holds::Unreadable(error));
        }
        let mut front = Vec::new();
        for number in 0..blocks_per_zone(geometry).min((FRONT / BLOCK as u64) as u32) {
            match block(device, ZoneId(0), number).await {
                Some(bytes) => front.extend_from_slice(&bytes),
                None => break,
            }
        }
        Ok(match (signature(&front), used) {
            (Some(name), _) => Holds::Foreign(name),
            (None, Some(zone)) => Holds::Data(zone.zone),
            (None, None) => Holds::Nothing,
        })
    }

    /// UUID and label of the content of `device`; for a member of an array, the array's name is the
    /// label. `None` if the content has no UUID.
    ///
    /// # Errors
    /// An error if the drive does not answer, or the file system is of another format.
    pub async fn identity(
        &self,
        device: &dyn ZonedDevice,
    ) -> Result<Option<(Uuid, String)>, Error> {
        Ok(match self {
            Holds::FileSystem(uuid) => {
                let label = furrow_fs::identify(device).await?.map(|(_, label)| label);
                Some((*uuid, label.unwrap_or_default()))
            }
            Holds::Store(uuid, label) => Some((*uuid, label.clone())),
            Holds::Member(examined) => Some((examined.array, examined.label.clone())),
            _ => None,
        })
    }

    /// The kind of content as one word, for JSON.
    pub fn word(&self) -> &'static str {
        match self {
            Holds::Nothing => "nothing",
            Holds::FileSystem(_) => "file-system",
            Holds::Store(..) => "file-store",
            Holds::Member(examined) if examined.member.is_none() => "spare",
            Holds::Member(_) => "member",
            Holds::Unreadable(_) => "unreadable",
            Holds::Foreign(_) => "foreign",
            Holds::Data(_) => "data",
        }
    }

    /// A description that follows "it holds".
    pub fn describe(&self) -> String {
        match self {
            Holds::Nothing => "nothing".to_owned(),
            Holds::FileSystem(uuid) => format!("a Furrow file system (UUID {uuid})"),
            Holds::Store(uuid, _) => format!("a Furrow file store (UUID {uuid})"),
            Holds::Member(examined) => describe_member(examined),
            Holds::Unreadable(error) => {
                format!("records of Furrow that this program cannot read ({error})")
            }
            Holds::Foreign(name) => (*name).to_owned(),
            Holds::Data(zone) => format!("data of an unknown kind (zone {zone} is not empty)"),
        }
    }

    /// Advice on what the user can do with the content without destroying it.
    pub fn advice(&self, name: &str) -> String {
        match self {
            Holds::FileSystem(_) => format!("mount it with furrow mount {name} DIR"),
            Holds::Store(..) => format!("furrow kv ls {name} shows its files"),
            Holds::Member(examined) if examined.member.is_some() => {
                format!(
                    "furrow raid examine {name} shows it, furrow raid assemble starts the array"
                )
            }
            Holds::Member(_) => {
                "give it to furrow raid assemble with the array's drives".to_owned()
            }
            Holds::Unreadable(_) => "try a newer furrow, or restore it from a copy".to_owned(),
            Holds::Foreign(_) | Holds::Data(_) => "check that it is the drive you mean".to_owned(),
            Holds::Nothing if name.starts_with("mem:") => {
                "a drive in memory is empty whenever a command opens it: make an image with furrow \
                 device create"
                    .to_owned()
            }
            Holds::Nothing => format!("make a file system on it with furrow mkfs {name}"),
        }
    }

    /// The error of a command that `needs` a drive with other content than `self`; `None` if `self`
    /// may be the content that the command needs.
    fn instead_of(&self, needs: Needs, name: &str) -> Option<Error> {
        let (noun, new) = match (needs, self) {
            (Needs::FileSystem, Holds::FileSystem(_)) | (Needs::Store, Holds::Store(..)) => {
                return None;
            }
            (Needs::FileSystem, _) => ("file system", self.advice(name)),
            (Needs::Store, _) => {
                ("file store", format!("make one on it with furrow kv mkfs {name}"))
            }
        };
        let what = match self {
            Holds::Nothing => format!("{name}: no Furrow {noun}; the drive is empty: {new}"),
            _ => format!(
                "{name}: no Furrow {noun}: it holds {}: {}",
                self.describe(),
                self.advice(name)
            ),
        };
        Some(Error::new(ErrorKind::WrongFormat, what))
    }
}

/// The error that a drive with this content belongs to no array.
pub fn instead_of_member(name: &str, holds: &Holds) -> Error {
    let what = match holds {
        Holds::Nothing => format!(
            "{name}: not a member of a Furrow array, but an empty drive: furrow raid create makes \
             an array, furrow raid replace and add-spare take such a drive"
        ),
        _ => format!(
            "{name}: not a member of a Furrow array: it holds {}: {}",
            holds.describe(),
            holds.advice(name)
        ),
    };
    Error::new(ErrorKind::NotFound, what)
}

/// Names the member and its array.
fn describe_member(examined: &Examined) -> String {
    let (label, array) = (&examined.label, examined.array);
    match examined.member {
        Some(member) => format!("member {member} of the array {label} (UUID {array})"),
        None => format!("a spare of the array {label} (UUID {array})"),
    }
}

/// Adds the content of `device` to the `error` of a command that does not find what it `needs`, if
/// the content is the reason.
pub async fn explain(device: &dyn ZonedDevice, needs: Needs, error: Error) -> Error {
    if error.kind() != ErrorKind::WrongFormat {
        return error;
    }
    let holds = Holds::of(device).await.ok();
    holds.and_then(|holds| holds.instead_of(needs, &device.name())).unwrap_or(error)
}

/// Adds the content of `device` to the `error` of a command that needs an empty drive.
pub async fn explain_used(device: &dyn ZonedDevice, error: Error) -> Error {
    if error.kind() != ErrorKind::Exists {
        return error;
    }
    match Holds::of(device).await {
        Ok(holds) => holds.refuse_used(&device.name(), "--force").err().unwrap_or(error),
        Err(_) => error,
    }
}

/// The content of the drive `device` as "it holds ...", for a command that only works on mounts.
/// `None` for a file system, or if the content cannot be recognised.
pub fn of_unmounted(device: &str) -> Option<String> {
    let rt = Rt::new(crate::daemon::config().ok()?);
    let drive = open(&rt, &device.parse().ok()?, Access::ReadOnly).ok()?;
    let holds = rt.block_on(async move { Holds::of(&*drive).await });
    rt.clear();
    match holds.ok()? {
        Holds::FileSystem(_) => None,
        holds => Some(format!("it holds {}: {}", holds.describe(), holds.advice(device))),
    }
}

/// Refuses a drive without zones for sequential writes.
///
/// # Errors
/// `Unsupported` for such a drive.
pub fn refuse_conventional(device: &dyn ZonedDevice) -> Result<(), Error> {
    let geometry = device.geometry();
    if geometry.conventional_zones < geometry.zones {
        return Ok(());
    }
    let what = format!(
        "{}: all of its {} zones are conventional, none is for sequential writes: Furrow needs a \
         zoned drive",
        device.name(),
        geometry.zones
    );
    Err(Error::new(ErrorKind::Unsupported, what))
}

/// Opens a drive, unless its image is larger than the files that this process may write.
///
/// # Errors
/// The errors of [`limits::check`] and [`furrow_drives::open`].
pub fn open(rt: &Rt, spec: &DeviceSpec, access: Access) -> Result<Rc<dyn ZonedDevice>, Error> {
    limits::check(spec, access)?;
    furrow_drives::open(rt, spec, access)
}

async fn block(device: &dyn ZonedDevice, zone: ZoneId, number: u32) -> Option<Vec<u8>> {
    let addr = BlockAddr::new(device.geometry(), zone, number);
    let pages = read_blocks(device, QueueId(0), addr, 1, &Pool::new(4)).await.ok()?;
    Some(pages.first()?.bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_refuses_says_what_is_lost_and_an_empty_drive_is_not_refused() {
        assert!(Holds::Nothing.refuse_used("d", "-f").is_ok());
        let text = Holds::Data(ZoneId(3)).refuse_used("d", "-f").unwrap_err().to_string();
        assert!(text.contains("zone 3") && text.contains("-f destroys"), "{text}");
        let text =
            Holds::Foreign("swap space").instead_of(Needs::FileSystem, "d").unwrap().to_string();
        assert!(text.contains("swap space") && !text.contains("mkfs"), "{text}");
        assert!(Holds::FileSystem(Uuid::NIL).instead_of(Needs::FileSystem, "d").is_none());
    }
}
