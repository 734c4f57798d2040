//! Assembly as a table of steps, up to a volume that recovery takes over.

use super::{Given, Parsed, Start, find, member, parse, start};
use crate::checkpoint::state::Image;
use crate::drive::Drive;
use crate::hot_spare;
use crate::level::{Level, Placement};
use crate::member::MemberState;
use crate::meta::MetaPlace;
use crate::shape::{Config, Shape};
use crate::stale_members;
use crate::steps::{self, OF_ASSEMBLY, Step};
use crate::volume::{Options, Volume};
use crate::watchdog::Watchdog;
use furrow_rt::Rt;
use furrow_zone::{Error, ErrorKind, Result, ZoneReport, ZonedDevice};
use std::rc::Rc;

/// A drive that has been a member.
struct Candidate {
    given: Given,
    parsed: Parsed,
}

/// An array on its way from drives to a volume.
pub(crate) struct Assembly {
    rt: Rt,
    watchdog: Watchdog,
    options: Options,
    devices: Vec<Rc<dyn ZonedDevice>>,
    candidates: Vec<Candidate>,
    spares: Vec<Given>,
    /// Why a drive could not be read.
    unread: Option<Error>,
    /// The candidate with the latest state of the array, and the member that each candidate is.
    matched: Option<(usize, Vec<usize>)>,
    opened: Option<Opened>,
}

/// The volume before its recovery.
struct Opened {
    volume: Volume,
    zones: Vec<Vec<ZoneReport>>,
    image: Image,
    /// Members lack a drive, and the newest state record does not say so.
    missing: bool,
}

/// The steps of an assembly before its recovery.
pub(crate) const ASSEMBLY: &[Step<Assembly>] = &[
    Step {
        name: "the newest state record of each drive is read",
        run: |assembly| Box::pin(assembly.read_records()),
        audit: |_| Ok(()),
    },
    Step {
        name: "the newest of them says which drive is which member; stale drives are refused",
        run: |assembly| Box::pin(async { assembly.match_members() }),
        audit: |_| Ok(()),
    },
    Step {
        name: "the members' drives are opened",
        run: |assembly| Box::pin(async { assembly.open_drives() }),
        audit: Assembly::audit,
    },
    Step {
        name: "members without a drive are noted as failed, unless the array needs them",
        run: |assembly| Box::pin(assembly.note_missing()),
        audit: Assembly::audit,
    },
];

/// One attempt. `None` if a drive was gone for a moment and this is not the last attempt: the
/// caller tries again.
pub(super) async fn put_together(
    rt: &Rt,
    watchdog: &Watchdog,
    devices: &[Rc<dyn ZonedDevice>],
    options: &Options,
    last: bool,
) -> Result<Option<Volume>> {
    let mut assembly = Assembly::new(rt, watchdog, devices, options);
    let ready = steps::run(rt, OF_ASSEMBLY, ASSEMBLY, &mut assembly).await;
    let Some(Opened { volume, zones, image, .. }) = assembly.opened else {
        ready?;
        return Err(Error::new(ErrorKind::Internal, "assembly: no step opened the volume"));
    };
    let recovered = match ready {
        Ok(()) => volume.recover(zones, image).await,
        Err(error) => Err(error),
    };
    match recovered {
        Err(_) if volume.has_missed() && !last => return Ok(None),
        recovered => recovered?,
    }
    volume.serve();
    Ok(Some(volume))
}

/// A volume on which the last steps of recovery have not begun.
#[cfg(test)]
pub(crate) async fn unfinished(
    rt: &Rt,
    devices: Vec<Rc<dyn ZonedDevice>>,
    options: &Options,
) -> Result<Volume> {
    let watchdog = Watchdog::new(rt, 0);
    let mut assembly = Assembly::new(rt, &watchdog, &devices, options);
    steps::run(rt, OF_ASSEMBLY, ASSEMBLY, &mut assembly).await?;
    let Opened { volume, zones, image, .. } = assembly.opened.expect("opened");
    let mut recovery = crate::recover::steps::Recovery::new(&volume, zones, image);
    steps::run(rt, 0, crate::recover::steps::RECOVERY, &mut recovery).await?;
    Ok(volume)
}

impl Assembly {
    fn new(
        rt: &Rt,
        watchdog: &Watchdog,
        devices: &[Rc<dyn ZonedDevice>],
        options: &Options,
    ) -> Assembly {
        Assembly {
            rt: rt.clone(),
            watchdog: watchdog.clone(),
            options: options.clone(),
            devices: devices.to_vec(),
            candidates: Vec::new(),
            spares: Vec::new(),
            unread: None,
            matched: None,
            opened: None,
        }
    }

    fn audit(&self) -> Result<()> {
        self.opened.as_ref().map_or(Ok(()), |opened| opened.volume.audit_members())
    }

    async fn read_records(&mut self) -> Result<()> {
        for device in std::mem::take(&mut self.devices) {
            let (found, zones) = match find(&*device).await {
                // A drive that does not answer counts as missing.
                Err(error) if error.kind() == ErrorKind::Io => {
                    self.unread = Some(error);
                    continue;
                }
                found => found?,
            };
            let given = Given { device, found, zones };
            if given.found.is_spare() {
                self.spares.push(given);
                continue;
            }
            let parsed = parse(&given.found, &given.device.name())?;
            self.candidates.push(Candidate { given, parsed });
        }
        Ok(())
    }

    fn match_members(&mut self) -> Result<()> {
        let Some(best) = newest(&self.candidates) else {
            let what = if self.spares.is_empty() { "no drives" } else { "only spares" };
            let none = Error::new(ErrorKind::Invalid, format!("{what} are given"));
            return Err(self.unread.take().unwrap_or(none));
        };
        let order = match_members(&self.candidates, best).map_err(|error| match &self.unread {
            Some(unread) => Error::new(error.kind(), format!("{error} ({unread})")),
            None => error,
        })?;
        self.matched = Some((best, order));
        Ok(())
    }

    fn open_drives(&mut self) -> Result<()> {
        let (best, order) = self.matched.take().expect("invariant: the step before matched them");
        let (candidates, spares) =
            (std::mem::take(&mut self.candidates), std::mem::take(&mut self.spares));
        let authority = &candidates[best];
        let config = authority.parsed.config();
        let geometry = authority.given.device.geometry();
        let shape = authority
            .parsed
            .shape(geometry.conventional_zones + crate::format::RING_ZONES)
            .map_err(|error| error.at(authority.given.device.name()))?;
        let entries = authority.parsed.members.clone();
        let header = authority.given.found.header;
        let records = candidates.iter().map(|c| c.given.found.header.sequence.get()).max();
        let (body, image) = (authority.parsed.body, authority.parsed.image.clone());
        let mut slots: Vec<Option<Given>> = entries.iter().map(|_| None).collect();
        let name = authority.given.device.name();
        for (candidate, index) in candidates.into_iter().zip(order) {
            slots[index] = Some(candidate.given);
        }
        let mut waiting = Vec::new();
        for given in spares {
            match hot_spare::seat_of(&given, (&name, header.object), &entries)? {
                Some(index) if slots[index].is_none() => slots[index] = Some(given),
                None if !waiting.contains(&given.found.header.device) => {
                    check_device(&*given.device, &shape, &config)?;
                    waiting.push(given.found.header.device);
                }
                _ => {
                    let what = format!(
                        "{} is a second copy of a spare, or the spare is given twice",
                        given.device.name()
                    );
                    return Err(Error::new(ErrorKind::Invalid, what));
                }
            }
        }
        let (mut members, mut zones, mut lost) = (Vec::new(), Vec::new(), false);
        for (entry, candidate) in entries.iter().zip(slots) {
            let state = MemberState::from_byte(entry.state).unwrap_or(MemberState::Failed);
            let events = entry.events.get();
            let Some(candidate) = candidate else {
                lost |= state != MemberState::Failed;
                members.push(member(entry.uuid, MemberState::Failed, (events, 0), None));
                zones.push(Vec::new());
                continue;
            };
            let Given { device, found, zones: reports } = candidate;
            check_device(&*device, &shape, &config)?;
            let drive = Drive::open(&self.rt, device, &reports, found.ring, &self.options)?;
            let recorded = if found.is_spare() { 0 } else { found.header.sequence.get() };
            members.push(member(entry.uuid, state, (events, recorded), Some(drive)));
            zones.push(reports);
        }
        let begin = Start {
            uuid: header.object,
            created: body.created.get(),
            events: body.events.get() + u64::from(lost),
            epoch: header.epoch.get() + 1,
            records: records.unwrap_or(0) + 1,
            checkpoint: header.checkpoint.get(),
        };
        let volume = start(
            (&self.rt, &self.watchdog),
            (config, shape),
            members,
            &self.options,
            begin,
            image.clone(),
        );
        *volume.0.spares.borrow_mut() = waiting;
        self.opened = Some(Opened { volume, zones, image, missing: lost });
        Ok(())
    }

    async fn note_missing(&mut self) -> Result<()> {
        let opened = self.opened.as_ref().filter(|opened| opened.missing);
        let Some(Opened { volume, zones, image, .. }) = opened else { return Ok(()) };
        volume.foresee_in_doubt(zones, image).await?;
        // The record precedes every write that these members lack: otherwise they could come back
        // later as if they had missed nothing.
        volume.write_state(false).await;
        volume.check_alive()
    }
}

fn check_device(device: &dyn ZonedDevice, shape: &Shape, config: &Config) -> Result<()> {
    let geometry = device.geometry();
    config.check_permits(&format!("{} has", device.name()), geometry)?;
    let capacity = furrow_log::address::blocks_per_zone(geometry);
    if MetaPlace::of(geometry) != shape.meta {
        let than = shape.meta.with_or_without();
        return Err(Error::new(
            ErrorKind::WrongFormat,
            format!(
                "{}: {} out-of-band bytes, the array was made on drives {than} an out-of-band \
                 area: not the drive it says it is, or formatted since",
                device.name(),
                geometry.oob_bytes
            ),
        ));
    }
    if capacity == shape.capacity && geometry.zones >= shape.zones {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::WrongFormat,
        format!(
            "{}: {} zones of {capacity} blocks, the array was made on {} of {}: not the drive it \
             says it is",
            device.name(),
            geometry.zones,
            shape.zones,
            shape.capacity
        ),
    ))
}

/// The drive with the latest state of the array: the one with the most events, then with the newest
/// record. But a drive that another one has recorded as failed, while it still counts that other
/// one as a member, is older, however many events it has: from then on nothing was acknowledged
/// that the other drive did not know of.
fn newest(candidates: &[Candidate]) -> Option<usize> {
    let says = |one: &Candidate, other: &Candidate| {
        let uuid = other.given.found.header.device;
        let of = one.parsed.members.iter().find(|member| member.uuid == uuid);
        of.map(|member| member.state == crate::format::member::FAILED)
    };
    let is_behind = |one: &Candidate| {
        let ahead = |o: &Candidate| says(o, one) == Some(true) && says(one, o) == Some(false);
        candidates.iter().any(ahead)
    };
    let rank = |c: &Candidate| (c.parsed.body.events.get(), c.given.found.header.sequence.get());
    (0..candidates.len()).max_by_key(|i| (!is_behind(&candidates[*i]), rank(&candidates[*i])))
}

/// The member that each drive is. Refuses drives that do not belong together.
fn match_members(candidates: &[Candidate], best: usize) -> Result<Vec<usize>> {
    let authority = &candidates[best];
    let array = authority.given.found.header.object;
    let name = |c: &Candidate| c.given.device.name();
    let refuse = |kind, message| Err(Error::new(kind, message));
    let (mut order, mut behind): (Vec<usize>, Vec<stale_members::Stale>) = Default::default();
    for candidate in candidates {
        let (uuid, object) =
            (candidate.given.found.header.device, candidate.given.found.header.object);
        if object != array {
            return refuse(
                ErrorKind::WrongFormat,
                format!(
                    "{} is of array {object}, {} of array {array}: assemble one at a time",
                    name(candidate),
                    name(authority)
                ),
            );
        }
        let index = authority.parsed.members.iter().position(|member| member.uuid == uuid);
        let Some(index) = index else {
            return refuse(
                ErrorKind::Invalid,
                format!(
                    "{} was a member of array {array} and has been replaced: leave it out",
                    name(candidate)
                ),
            );
        };
        if order.contains(&index) {
            return refuse(
                ErrorKind::Invalid,
                format!(
                    "{} is a second copy of member {index}, or the member is given twice",
                    name(candidate)
                ),
            );
        }
        let entry = &authority.parsed.members[index];
        if MemberState::from_byte(entry.state) == Some(MemberState::Failed) {
            return refuse(
                ErrorKind::Invalid,
                format!(
                    "{} is stale: the array went on without it (event {} of {}): leave it out, and \
                     give it back with `furrow raid replace`",
                    name(candidate),
                    entry.events,
                    authority.parsed.body.events
                ),
            );
        }
        let mine = authority.parsed.body.member.get() as usize;
        // The candidate's record of a drive that was the member before the authority does not
        // count.
        let mut theirs = candidate.parsed.members.get(mine).into_iter();
        let known = authority.given.found.header.device;
        if theirs.any(|m| m.uuid == known && m.state == crate::format::member::FAILED) {
            return refuse(
                ErrorKind::Invalid,
                format!(
                    "{} and {} have each gone on without the other: leave one of the halves out",
                    name(candidate),
                    name(authority)
                ),
            );
        }
        let (header, known) = (&candidate.given.found.header, &authority.given.found.header);
        let (record, least) = (header.sequence.get(), stale_members::known(known, entry));
        if record < least {
            behind.push(stale_members::Stale { name: name(candidate), index, record, least });
        } else if header.sequence == known.sequence && candidate.differs(authority) {
            return refuse(
                ErrorKind::Invalid,
                format!(
                    "{} and {} have each gone on without the other, one of them with older images \
                     of drives: leave out those of one history",
                    name(candidate),
                    name(authority)
                ),
            );
        }
        order.push(index);
    }
    if !behind.is_empty() {
        let states: Vec<_> = authority.parsed.members.iter().map(|m| m.state).collect();
        let up = |index: usize| {
            states[index] == crate::format::member::ACTIVE
                && order.contains(&index)
                && !behind.iter().any(|b| b.index == index)
        };
        let level = Level::from_byte(authority.parsed.body.level);
        let placement = Placement::new(
            level.expect("invariant: checked when parsed"),
            authority.parsed.body.drives.get(),
        )?;
        let enough = placement.recoverable(|chunk| up(placement.drive(0, chunk) as usize));
        return Err(stale_members::refusal(&behind, &name(authority), enough));
    }
    check_missing(candidates, best, &order)?;
    Ok(order)
}

impl Candidate {
    /// Whether another candidate's state record differs from this one's, given the same number.
    fn differs(&self, other: &Candidate) -> bool {
        let of = |candidate: &Candidate| {
            let (header, body) = (candidate.given.found.header, candidate.parsed.body);
            let next = (body.next_sequence, body.next_segment);
            (header.epoch, header.checkpoint, body.events, next)
        };
        of(self) != of(other)
    }
}

/// Refuses to start if data is missing because members are.
fn check_missing(candidates: &[Candidate], best: usize, order: &[usize]) -> Result<()> {
    let parsed = &candidates[best].parsed;
    let level = Level::from_byte(parsed.body.level).expect("invariant: checked when parsed");
    let placement = Placement::new(level, parsed.body.drives.get())?;
    let given = |chunk: u32| {
        let index = placement.drive(0, chunk) as usize;
        let state = MemberState::from_byte(parsed.members[index].state);
        // A member that is being rebuilt does not have all its data.
        order.contains(&index) && state == Some(MemberState::Active)
    };
    if placement.recoverable(given) {
        return Ok(());
    }
    let gone: Vec<String> = (0..parsed.members.len())
        .filter(|index| !order.contains(index))
        .map(|index| format!("{index} ({})", parsed.members[index].uuid))
        .collect();
    Err(Error::new(
        ErrorKind::Invalid,
        format!(
            "{level} on {} drives cannot do without members {}: give their drives too",
            placement.n,
            gone.join(", ")
        ),
    ))
}
