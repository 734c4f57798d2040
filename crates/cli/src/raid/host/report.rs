//! The state of an array as a report.

use super::ArrayHost;
use crate::raid::advice::advise;
use crate::raid::status::{LastRebuild, LostRange, Member, Rebuild, Status, VERSION};
use furrow_raid::{Event, Level, MemberState, Segments};
use furrow_rt::Nanos;
use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum number of damaged blocks, and of ranges of lost blocks, that a status lists.
pub(super) const FINDINGS: usize = 1000;

impl ArrayHost {
    /// The state of the array.
    pub fn status(&self) -> Status {
        let volume = &self.volume;
        let drives = self.drives.borrow();
        let taken = self.taken.borrow().clone();
        let is_taken = |member| taken.as_ref().is_some_and(|(taken, _)| *taken == member);
        let members: Vec<Member> = (0u32..)
            .zip(volume.members())
            .map(|(member, (uuid, state, errors))| {
                let drive = drives[member as usize].as_ref();
                // Until the spare has become the member, `drive` is the former drive.
                let state = if is_taken(member) { MemberState::Failed } else { state };
                let state = match state {
                    MemberState::Active => "online",
                    MemberState::Rebuilding => "rebuilding",
                    MemberState::Failed if drive.is_none() => "missing",
                    MemberState::Failed => "failed",
                };
                let absent = self.absent.iter().find(|absent| absent.uuid == uuid);
                let stale = self.stale.iter().find(|(stale, _)| *stale == uuid);
                Member {
                    member,
                    absent: absent.map(|absent| absent.why.clone()),
                    unnamed: absent.and_then(|absent| Some(absent.unnamed.as_ref()?.to_string())),
                    stale: stale.map(|(_, drive)| drive.to_string()),
                    uuid: uuid.to_string(),
                    device: drive.map(|drive| drive.spec.to_string()),
                    state: state.to_owned(),
                    read_errors: errors.read,
                    write_errors: errors.write,
                    checksum_errors: errors.checksum,
                }
            })
            .collect();
        let rebuild = self.rebuild_status().filter(|rebuild| rebuild.running || taken.is_none());
        let down = members.iter().filter(|member| member.state != "online").count() as u32;
        let placement = volume.shape().placement;
        let may_fail = match placement.level {
            Level::Raid01 => u32::from(down == 0),
            _ => placement.tolerates().saturating_sub(down),
        };
        let (lost_blocks, lost) = volume.lost();
        // A spare that is about to become a member is listed as a spare until then.
        let spares = self.spares.borrow();
        let spares = spares.iter().map(|spare| spare.spec.to_string());
        let spares = taken.iter().map(|(_, spare)| spare.clone()).chain(spares);
        let range =
            |range: &Range<u64>| LostRange { first: range.start, blocks: range.end - range.start };
        let mut status = Status {
            version: VERSION,
            array: self.name.clone(),
            uuid: volume.uuid().to_string(),
            pid: std::process::id(),
            level: placement.level.name().to_owned(),
            state: if down == 0 { "online" } else { "degraded" }.to_owned(),
            error: volume.failed().map(|error| error.to_string()),
            out_of_space: volume.out_of_space().map(|error| error.to_string()),
            problem: None,
            action: None,
            started: self.started,
            known_since: self.known_since.get(),
            size_bytes: volume.blocks() * 4096,
            used_bytes: volume.used() * 4096,
            map_memory_bytes: volume.memory().0 as u64,
            map_memory_limit_bytes: volume.map_memory_limit(),
            table_memory_bytes: volume.memory().1 as u64,
            lost_blocks,
            lost: lost.iter().take(FINDINGS).map(range).collect(),
            damaged_blocks: self.damaged.borrow().len() as u64,
            may_fail: if volume.failed().is_some() { 0 } else { may_fail },
            read_only: self.service.is_read_only(),
            listening: self.service.places(),
            clients: self.service.clients() as u64,
            members,
            spares: spares.collect(),
            rebuild,
            last_rebuild: volume.last_rebuild().map(|event| LastRebuild {
                ok: event == Event::RebuildFinished,
                text: event.to_string(),
            }),
            scrub: self.scrub.borrow().clone(),
            counters: volume.counters().each().iter().map(|c| (c.0.to_owned(), c.2)).collect(),
            segments: segments(volume.segments()),
            requests: self.service.requests(),
            events: self.events.borrow().iter().cloned().collect(),
        };
        advise(&mut status);
        if self.stopping.get() {
            status.state = "stopping".to_owned();
            status.action = Some("wait: the daemon ends when everything is durable".to_owned());
        }
        status
    }

    fn rebuild_status(&self) -> Option<Rebuild> {
        let running = self.volume.rebuilding().is_some();
        let progress = self.volume.rebuilt()?;
        let seconds = |nanoseconds: u64| nanoseconds as f64 / Nanos::SECOND as f64;
        Some(Rebuild {
            running,
            segments: progress.total,
            segments_done: progress.done,
            percent: percent(progress.done, progress.total),
            seconds: seconds(progress.elapsed),
            seconds_left: progress.remaining().map(seconds),
            pause_us: self.volume.rebuild_pause() / 1000,
        })
    }
}

pub(super) fn percent(done: u32, of: u32) -> f64 {
    if of == 0 { 100.0 } else { f64::from(done) * 100.0 / f64::from(of) }
}

fn segments(all: Segments) -> BTreeMap<String, u64> {
    let Segments { free, open, sealed, truncated, releasing } = all;
    let states = [
        ("free", free),
        ("open", open),
        ("sealed", sealed),
        ("truncated", truncated),
        ("releasing", releasing),
    ];
    states.map(|(state, count)| (state.to_owned(), u64::from(count))).into()
}
