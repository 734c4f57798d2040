//! Assembly as a table of steps, up to a volume that recovery takes over.

use super::{Damaged, Examined, Given, Looked, Parsed, Start};
use super::{look, no_record, parse, start};
use crate::array::Counts;
use crate::array::member::{Member, MemberState};
use crate::checkpoint::state::Image;
use crate::drive::Drive;
use crate::hot_spare;
use crate::level::{Level, Placement};
use crate::meta::place::MetaPlace;
use crate::options::Options;
use crate::shape::{Config, Shape};
use crate::stale_members;
use crate::standing::{Judgement, Standing, judge, split_refusal};
use crate::state_ring::{Holds, RingRead};
use crate::steps::{self, OF_ASSEMBLY, Step};
use crate::volume::Volume;
use crate::watchdog::Watchdog;
use furrow_log::record::RecordHeader;
use furrow_rt::Rt;
use furrow_zone::words::listed;
use furrow_zone::{Error, ErrorKind, Result, ZoneReport, ZonedDevice};
use std::rc::Rc;

/// A drive that has been a member.
struct Candidate {
    given: Given,
    parsed: Parsed,
    says: Examined,
    /// The damaged record after the whole ones has the same checkpoint as the last of these.
    same_after: bool,
}

/// A drive none of whose records is whole.
struct Unrecorded {
    device: Rc<dyn ZonedDevice>,
    damaged: Damaged,
    ring: RingRead,
    zones: Vec<ZoneReport>,
}

/// What the records say together.
struct Matched {
    /// The candidate with the latest state of the array.
    newest: usize,
    /// The member that each candidate is.
    order: Vec<usize>,
    /// The member that each drive without a whole record is.
    unrecorded: Vec<(usize, Unrecorded)>,
}

/// An array on its way from drives to a volume.
pub(crate) struct Assembly {
    rt: Rt,
    watchdog: Watchdog,
    options: Options,
    devices: Vec<Rc<dyn ZonedDevice>>,
    candidates: Vec<Candidate>,
    unrecorded: Vec<Unrecorded>,
    spares: Vec<Given>,
    /// Why a drive could not be read.
    unread: Option<Error>,
    matched: Option<Matched>,
    opened: Option<Opened>,
}

/// The volume before its recovery.
struct Opened {
    volume: Volume,
    zones: Vec<Vec<ZoneReport>>,
    image: Image,
    /// Members lack a drive, and the newest state record does not say so.
    missing: bool,
    /// Members that may have had a newer state record, which is damaged, as bits.
    unsure: u32,
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
        name: "an array is refused if a damaged record said that members went on without others",
        run: |assembly| Box::pin(assembly.refuse_alone()),
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
            unrecorded: Vec::new(),
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
            let looked = match look(&*device).await {
                // A drive that does not answer counts as missing.
                Err(error) if error.kind() == ErrorKind::Io => {
                    self.unread = Some(error);
                    continue;
                }
                looked => looked?,
            };
            let (found, ring, zones) = match looked {
                Looked::Record(found, ring, zones) => (found, ring, zones),
                Looked::Damaged(damaged, ring, _) if damaged.signs.is_empty() => {
                    return Err(no_record(&device.name(), &ring, &damaged));
                }
                Looked::Damaged(damaged, ring, zones) => {
                    self.unrecorded.push(Unrecorded { device, damaged, ring, zones });
                    continue;
                }
            };
            let holds = found.holds(&ring);
            let given = Given { device, found, holds, zones };
            if given.found.is_spare() {
                self.spares.push(given);
                continue;
            }
            let parsed = parse(&given.found, &given.device.name())?;
            let says = parsed.says(&given.found, &ring);
            let after = ring.newest_damaged().and_then(|damage| damage.header);
            let of = |header: &RecordHeader| (header.object, header.epoch, header.checkpoint);
            let same_after = after.is_some_and(|after| of(&after) == of(&given.found.header));
            self.candidates.push(Candidate { given, parsed, says, same_after });
        }
        Ok(())
    }

    fn match_members(&mut self) -> Result<()> {
        let unrecorded = std::mem::take(&mut self.unrecorded);
        let says: Vec<Examined> = self.candidates.iter().map(|c| c.says.clone()).collect();
        let Some(Judgement { newest, .. }) = judge(&says) else {
            if let Some(Unrecorded { device, ring, damaged, .. }) = unrecorded.first() {
                return Err(no_record(&device.name(), ring, damaged));
            }
            let what = if self.spares.is_empty() { "no drives" } else { "only spares" };
            let none = Error::new(ErrorKind::Invalid, format!("{what} are given"));
            return Err(self.unread.take().unwrap_or(none));
        };
        let matched = match_members(&self.candidates, &says, unrecorded, newest);
        let matched = matched.map_err(|error| match &self.unread {
            Some(unread) => Error::new(error.kind(), format!("{error} ({unread})")),
            None => error,
        })?;
        refuse_lost_record(&self.candidates, &matched, self.options.accept_loss)?;
        self.matched = Some(matched);
        Ok(())
    }

    fn open_drives(&mut self) -> Result<()> {
        let Matched { newest: best, order, unrecorded } =
            self.matched.take().expect("invariant: the step before matched them");
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
        let mut slots: Vec<Option<Seated>> = entries.iter().map(|_| None).collect();
        let name = authority.given.device.name();
        let unsure = |c: &Candidate| c.says.damaged.is_some();
        let hurt = candidates.iter().zip(&order).filter(|(c, _)| unsure(c)).map(|(_, at)| *at);
        let hurt = hurt.chain(unrecorded.iter().map(|(at, _)| *at));
        let unsure = hurt.fold(0u32, |set, at| set | 1 << at);
        for (candidate, index) in candidates.into_iter().zip(order) {
            slots[index] = Some(Seated::of(candidate.given));
        }
        for (index, Unrecorded { device, zones, .. }) in unrecorded {
            slots[index] = Some(Seated { device, zones, holds: Holds::Nothing, recorded: 0 });
        }
        let mut waiting = Vec::new();
        for given in spares {
            match hot_spare::seat_of(&given, (&name, header.object), &entries)? {
                Some(index) if slots[index].is_none() => slots[index] = Some(Seated::of(given)),
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
                let known = (events, stale_members::known(&header, entry));
                members.push(Member::new(entry.uuid, MemberState::Failed, known, None));
                zones.push(Vec::new());
                continue;
            };
            let Seated { device, zones: reports, holds, recorded } = candidate;
            check_device(&*device, &shape, &config)?;
            let drive = Drive::open(&self.rt, device, &reports, holds, &self.options)?;
            members.push(Member::new(entry.uuid, state, (events, recorded), Some(drive)));
            zones.push(reports);
        }
        let begin = Start {
            uuid: header.object,
            created: body.created.get(),
            counts: Counts {
                epoch: header.epoch.get() + 1,
                events: body.events.get() + u64::from(lost),
                records: records.unwrap_or(0) + 1,
            },
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
        waiting.into_iter().for_each(|spare| volume.0.array.add_spare(spare));
        self.opened = Some(Opened { volume, zones, image, missing: lost, unsure });
        Ok(())
    }

    async fn refuse_alone(&mut self) -> Result<()> {
        let opened = self.opened.as_ref().filter(|opened| opened.unsure != 0);
        let Some(Opened { volume, zones, image, unsure, .. }) = opened else { return Ok(()) };
        match self.options.accept_loss {
            true => Ok(()),
            false => volume.check_not_alone(zones, image, *unsure).await,
        }
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
    let advice = "give drives with more active zones";
    config.check_permits(&format!("{} has", device.name()), geometry, advice)?;
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

/// A drive that is a member, or becomes one.
struct Seated {
    device: Rc<dyn ZonedDevice>,
    zones: Vec<ZoneReport>,
    holds: Holds,
    /// The number of its newest whole state record; 0: it has none.
    recorded: u64,
}

impl Seated {
    fn of(given: Given) -> Seated {
        let Given { device, found, holds, zones } = given;
        let recorded = if found.is_spare() { 0 } else { found.header.sequence.get() };
        Seated { device, zones, holds, recorded }
    }
}

/// The member that each drive is. Refuses drives that do not belong together.
fn match_members(
    candidates: &[Candidate],
    says: &[Examined],
    unrecorded: Vec<Unrecorded>,
    best: usize,
) -> Result<Matched> {
    let authority = &candidates[best];
    let array = authority.given.found.header.object;
    let refuse = |kind, message| Err(Error::new(kind, message));
    let names: Vec<String> = candidates.iter().map(|c| c.given.device.name()).collect();
    let newest = names[best].clone();
    if let Some(at) = says.iter().position(|one| one.array != array) {
        let (name, other) = (&names[at], says[at].array);
        let what = format!(
            "{name} is of array {other}, {newest} of array {array}: assemble one at a time"
        );
        return refuse(ErrorKind::WrongFormat, what);
    }
    let (mut names, mut all) = (names, says.to_vec());
    for Unrecorded { device, damaged, ring, .. } in &unrecorded {
        let name = device.name();
        let Some(says) = damaged.stand_in(&says[best]) else {
            if damaged.signs.iter().all(|(of, _)| *of != array) {
                return Err(no_record(&name, ring, damaged));
            }
            let what = format!(
                "{name} was a member of array {array} or became one, and has no whole state \
                 record; by that of {newest} it is none: leave it out"
            );
            return refuse(ErrorKind::Invalid, what);
        };
        names.push(name);
        all.push(says);
    }
    let judged = judge(&all).filter(|judged| judged.newest == best);
    let Some(Judgement { standings, split, .. }) = judged else {
        return refuse(ErrorKind::Internal, "the newest state changed".to_owned());
    };
    if !split.is_empty() {
        let since = |seconds| format!("{seconds} s after 1970");
        return refuse(ErrorKind::Invalid, split_refusal(&all, &names, &split, since));
    }
    let (mut order, mut behind): (Vec<usize>, Vec<stale_members::Stale>) = Default::default();
    for (at, standing) in standings.into_iter().enumerate() {
        let name = &names[at];
        match standing {
            Standing::Member(seat) => order.push(seat as usize),
            Standing::Spare => {}
            Standing::Replaced(_) => {
                let what = format!(
                    "{name} was a member of array {array} and has been replaced: leave it out"
                );
                return refuse(ErrorKind::Invalid, what);
            }
            Standing::TakenOut(member) => {
                let entry = &authority.parsed.members;
                let events = entry.get(member as usize).map_or(0, |entry| entry.events.get());
                let what = format!(
                    "{name} is stale: the array went on without it (event {events} of {}): leave \
                     it out, and give it back with `furrow raid replace {array} {member} {name} \
                     --force`",
                    authority.parsed.body.events
                );
                return refuse(ErrorKind::Invalid, what);
            }
            Standing::Copy(member) => {
                let what = format!(
                    "{name} is a second copy of member {member}, or the member is given twice"
                );
                return refuse(ErrorKind::Invalid, what);
            }
            Standing::Behind { member, record, least } => {
                let index = member as usize;
                behind.push(stale_members::Stale { name: name.clone(), index, record, least });
                order.push(index);
            }
        }
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
        return Err(stale_members::refusal(array, &behind, &newest, enough));
    }
    check_missing(candidates, best, &order)?;
    let seats = order.split_off(candidates.len());
    let unrecorded = seats.into_iter().zip(unrecorded).collect();
    Ok(Matched { newest: best, order, unrecorded })
}

/// Refuses to start from a state record that had a successor which is damaged on every member: the
/// blocks that the older one names may have been overwritten since. A successor with the same
/// checkpoint changes nothing, and one that a member lacks was never acknowledged.
fn refuse_lost_record(candidates: &[Candidate], matched: &Matched, accepted: bool) -> Result<()> {
    let newest = &candidates[matched.newest].says;
    let last = candidates.iter().filter(|c| c.says.record == newest.record);
    let lost = |candidate: &Candidate| candidate.says.damaged.is_some() && !candidate.same_after;
    let mut lost_on = last.clone().filter(|candidate| lost(candidate));
    match lost_on.next() {
        Some(first) if last.clone().all(lost) && !accepted => {
            let what = format!(
                "the state record after number {} is damaged on every member that is there: what \
                 was written since may be lost: give the other members too, or accept the loss \
                 (--accept-loss)",
                newest.record
            );
            Err(Error::new(ErrorKind::Corrupt, what).at(first.given.device.name()))
        }
        _ => Ok(()),
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
            "{level} on {} drives cannot do without {}: give what is missing too",
            placement.n,
            listed("member", &gone)
        ),
    ))
}
