//! Matches the given drives to the members of their array, and refuses drives that must not
//! be used.

use crate::admission::{Judgement, Standing, judge, split_refusal};
use crate::drive::Drive;
use crate::examine::{self, Damaged, Examined, Given, Looked, ReadPayload, look, no_record};
use crate::level::Level;
use crate::member::{Member, MemberState};
use crate::record::Record;
use crate::service::Counts;
use crate::state_ring::{Holds, RingRead};
use crate::{spare, stale};
use furrow_log::Uuid;
use furrow_log::record::RecordHeader;
use furrow_zone::words::listed;
use furrow_zone::{Error, ErrorKind, Result, ZoneReport, ZonedDevice};
use std::rc::Rc;

/// How often a drive is asked for its state record while it does not answer each command.
const LOOKS: u32 = 8;

/// The drives of an array that is being assembled.
#[derive(Default)]
pub struct Gathered {
    candidates: Vec<Candidate>,
    unrecorded: Vec<Unrecorded>,
    spares: Vec<Given>,
    /// The last error of a drive that could not be read.
    unread: Option<Error>,
    matched: Option<Matched>,
}

/// The members of an array, with their drives open.
pub struct Seats {
    /// The members, in order.
    pub members: Vec<Member>,
    /// For each member, the reports of its drive's zones; empty without a drive.
    pub zones: Vec<Vec<ZoneReport>>,
    /// Whether members lack a drive although the newest state record has them in service.
    pub missing: bool,
    /// Members, as bits, with a damaged record that may be newer than their newest whole
    /// state record.
    pub unsure: u32,
    /// UUIDs of the given drives that are spares.
    pub spares: Vec<Uuid>,
    /// The counts with which the array continues.
    pub counts: Counts,
}

/// Opens a drive in the state that the reports give; [`Holds`] says how its state ring
/// is continued.
pub type OpenDrive<'a> = dyn Fn(Rc<dyn ZonedDevice>, &[ZoneReport], Holds) -> Result<Drive> + 'a;

impl Gathered {
    /// Reads the newest state record of each drive.
    ///
    /// # Errors
    /// `NotFound` if a drive belongs to no array, `Corrupt` if the content of a state record is
    /// invalid, `WrongFormat` if a record is of a newer version. A drive that does not answer
    /// counts as missing.
    pub async fn read(
        &mut self,
        devices: Vec<Rc<dyn ZonedDevice>>,
        read: ReadPayload,
    ) -> Result<()> {
        for device in devices {
            let mut looked = look(&*device).await;
            for _ in 1..LOOKS {
                // A drive that was gone for a moment must not become a stale one.
                if !looked.as_ref().is_err_and(Error::is_gone) {
                    break;
                }
                looked = look(&*device).await;
            }
            let looked = match looked {
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
            let (record, told) = examine::open(&given.found, &given.device.name(), read)?;
            let says = examine::says(&record, told, &given.found, &ring);
            let after = ring.newest_damaged().and_then(|damage| damage.header);
            let of = |header: &RecordHeader| (header.object, header.epoch, header.checkpoint);
            let same_after = after.is_some_and(|after| of(&after) == of(&given.found.header));
            self.candidates.push(Candidate { given, record, says, same_after });
        }
        Ok(())
    }

    /// Finds out which drive is which member. With `accept_loss`, an older record may count if the
    /// newest one is damaged on every member.
    ///
    /// # Errors
    /// `Invalid` if a drive is stale or given twice, if too many are missing, or if the array is
    /// split; `WrongFormat` if a drive belongs to another array; `Corrupt` if the newest record is
    /// damaged on every member, or if no member has a whole record; `Io` if no member answers.
    pub fn match_members(&mut self, accept_loss: bool) -> Result<()> {
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
        refuse_lost_record(&self.candidates, &matched, accept_loss)?;
        self.matched = Some(matched);
        Ok(())
    }

    /// The newest state record, the number of its checkpoint, and the drive that it was read from.
    ///
    /// # Panics
    /// If [`Gathered::match_members`] has not succeeded.
    pub fn newest(&self) -> (&Record, u64, &Rc<dyn ZonedDevice>) {
        let newest = &self.candidates[self.matched().newest];
        (&newest.record, newest.given.found.header.checkpoint.get(), &newest.given.device)
    }

    fn matched(&self) -> &Matched {
        self.matched.as_ref().expect("invariant: the members were matched before")
    }

    /// Opens the members' drives by `open`. `check` refuses a drive that cannot be a spare of
    /// the array.
    ///
    /// # Errors
    /// `Invalid` if a spare is given twice or stale, `WrongFormat` if it is of another array; and
    /// the errors of `open` and `check`.
    ///
    /// # Panics
    /// If [`Gathered::match_members`] has not succeeded.
    pub fn seat(
        self,
        check: &dyn Fn(&dyn ZonedDevice) -> Result<()>,
        open: &OpenDrive<'_>,
    ) -> Result<Seats> {
        let Gathered { candidates, spares, matched, .. } = self;
        let Matched { newest: best, order, unrecorded } =
            matched.expect("invariant: the members were matched before");
        let authority = &candidates[best];
        let entries = authority.record.members.clone();
        let events = authority.record.events;
        let header = authority.given.found.header;
        let records = candidates.iter().map(|c| c.given.found.header.sequence.get()).max();
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
            match spare::seat_of(&given, (&name, header.object), &entries)? {
                Some(index) if slots[index].is_none() => slots[index] = Some(Seated::of(given)),
                None if !waiting.contains(&given.found.header.device) => {
                    check(&*given.device)?;
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
        let (mut members, mut zones, mut missing) = (Vec::new(), Vec::new(), false);
        for (entry, candidate) in entries.iter().zip(slots) {
            let state = MemberState::from_byte(entry.state).unwrap_or(MemberState::Failed);
            let events = entry.events.get();
            let Some(candidate) = candidate else {
                missing |= state != MemberState::Failed;
                let known = (events, stale::known(&header, entry));
                members.push(Member::new(entry.uuid, MemberState::Failed, known, None));
                zones.push(Vec::new());
                continue;
            };
            let Seated { device, zones: reports, holds, recorded } = candidate;
            let drive = open(device, &reports, holds)?;
            members.push(Member::new(entry.uuid, state, (events, recorded), Some(drive)));
            zones.push(reports);
        }
        let counts = Counts {
            epoch: header.epoch.get() + 1,
            events: events + u64::from(missing),
            records: records.unwrap_or(0) + 1,
        };
        Ok(Seats { members, zones, missing, unsure, spares: waiting, counts })
    }
}

/// A drive with a whole state record.
struct Candidate {
    given: Given,
    record: Record,
    says: Examined,
    /// Whether a damaged record follows the last whole one and has the same checkpoint.
    same_after: bool,
}

/// A drive without a whole record.
struct Unrecorded {
    device: Rc<dyn ZonedDevice>,
    damaged: Damaged,
    ring: RingRead,
    zones: Vec<ZoneReport>,
}

/// The drives matched to members, according to all state records together.
struct Matched {
    /// Index of the candidate with the latest state of the array.
    newest: usize,
    /// For each candidate, its member number.
    order: Vec<usize>,
    /// The drives without a whole record, each with its member number.
    unrecorded: Vec<(usize, Unrecorded)>,
}

/// A drive that is a member, or is about to take a member's place.
struct Seated {
    device: Rc<dyn ZonedDevice>,
    zones: Vec<ZoneReport>,
    holds: Holds,
    /// Number of the drive's newest whole state record; 0: it has none.
    recorded: u64,
}

impl Seated {
    fn of(given: Given) -> Seated {
        let Given { device, found, holds, zones } = given;
        let recorded = if found.is_spare() { 0 } else { found.header.sequence.get() };
        Seated { device, zones, holds, recorded }
    }
}

/// Finds out which member each drive is. Fails if the drives do not belong together, or if one of
/// them must not be used.
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
    let (mut order, mut behind): (Vec<usize>, Vec<stale::Stale>) = Default::default();
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
                let entry = &authority.record.members;
                let events = entry.get(member as usize).map_or(0, |entry| entry.events.get());
                let what = format!(
                    "{name} is stale: the array continued without it (event {events} of {}): leave \
                     it out, and give it back with `furrow raid replace {array} {member} {name} \
                     --force`",
                    authority.record.events
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
                behind.push(stale::Stale { name: name.clone(), index, record, least });
                order.push(index);
            }
        }
    }
    if !behind.is_empty() {
        let states: Vec<_> = authority.record.members.iter().map(|m| m.state).collect();
        let up = |index: usize| {
            states[index] == crate::format::member::ACTIVE
                && order.contains(&index)
                && !behind.iter().any(|b| b.index == index)
        };
        let placement = authority.record.identity.placement()?;
        let enough = placement.recoverable(|chunk| up(placement.drive(0, chunk) as usize));
        return Err(stale::refusal(array, &behind, &newest, enough));
    }
    check_missing(candidates, best, &order)?;
    let seats = order.split_off(candidates.len());
    let unrecorded = seats.into_iter().zip(unrecorded).collect();
    Ok(Matched { newest: best, order, unrecorded })
}

/// Fails if every member has a damaged state record that is newer than the newest whole record:
/// blocks that the whole record names may have been overwritten. A damaged record with the same
/// checkpoint does no harm. Nor does a damaged record that a member lacks: it was never
/// acknowledged.
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

/// Fails if data is missing because members are missing.
fn check_missing(candidates: &[Candidate], best: usize, order: &[usize]) -> Result<()> {
    let record = &candidates[best].record;
    let level = record.identity.level;
    let placement = record.identity.placement()?;
    let given = |chunk: u32| {
        let index = placement.drive(0, chunk) as usize;
        let state = MemberState::from_byte(record.members[index].state);
        // A member that is being rebuilt does not have all of its data.
        order.contains(&index) && state == Some(MemberState::Active)
    };
    if placement.recoverable(given) {
        return Ok(());
    }
    // A member that has failed or is being rebuilt would not help.
    let is_active = |index: &usize| record.members[*index].state == MemberState::Active as u8;
    let all = 0..record.members.len();
    let gone: Vec<usize> = all.filter(|index| !order.contains(index) && is_active(index)).collect();
    let has = (0..placement.n).filter(|chunk| given(*chunk)).count();
    let give = match (placement.k as usize).saturating_sub(has) {
        // Mirrored halves lack certain members, not a number of them.
        lacks if level != Level::Raid01 && lacks < gone.len() => {
            format!("give {lacks} of them too")
        }
        _ => "give what is missing too".to_owned(),
    };
    let name = |index: &usize| format!("{index} ({})", record.members[*index].uuid);
    let gone: Vec<String> = gone.iter().map(name).collect();
    Err(Error::new(
        ErrorKind::Invalid,
        format!(
            "{level} on {} drives cannot do without {}: {give}",
            placement.n,
            listed("member", &gone)
        ),
    ))
}
