//! Recovery as a table of steps: what runs, in this order, and what must hold after each of them.
//!
//! The first steps only read, and may refuse the array; then zones of unfinished rebuilds are
//! emptied. From the step that reopens segments on, recovery writes to zones, but changes nothing
//! that the first steps found: a crash during recovery is recovered like the first crash. The last
//! steps ([`FINISH`]) are tried again after a lack of space.

use super::in_doubt::InDoubt;
use super::unfinished::{Stage, UnfinishedRecovery};
use super::{Delta, Found, Scanned};
use crate::checkpoint::state::Image;
use crate::format::segment;
use crate::segment::SegmentState;
use crate::steps::Step;
use crate::volume::Volume;
use furrow_array::event::Event;
use furrow_zone::{Result, ZoneId, ZoneReport};

/// The state that the steps of a recovery share.
pub(crate) struct Recovery {
    volume: Volume,
    zones: Vec<Vec<ZoneReport>>,
    image: Image,
    found: Vec<Found>,
    /// Zones that are not empty and belong to no segment.
    strays: Vec<(u32, ZoneId)>,
    /// Members that have zones with unreadable headers, as bits.
    blind: u32,
    delta: Delta,
    /// Segments that had not ended at the snapshot, with their rows.
    open: Vec<(Found, Scanned)>,
    /// Zones of unfinished rebuilds.
    unbuilt: Vec<(u32, ZoneId)>,
    /// Zones that are active although their segment has ended.
    unended: Vec<(u32, ZoneId)>,
    /// Zones with fewer rows than the checkpoint says.
    short: Vec<(u32, ZoneId)>,
    in_doubt: Vec<InDoubt>,
}

/// The steps of a recovery, until the map agrees with the drives.
pub(crate) const RECOVERY: &[Step<Recovery>] = &[
    Step {
        name: "every zone's header says which segment the zone is of",
        run: |recovery| Box::pin(recovery.find_segments()),
        audit: |recovery| recovery.volume.audit_members(),
    },
    Step {
        name: "rows of segments that had not ended at the snapshot are read; a stripe counts if \
               enough of its chunks are there",
        run: |recovery| Box::pin(recovery.read_rows()),
        audit: |recovery| recovery.volume.audit_segments(),
    },
    Step {
        name: "an array that may have lost acknowledged blocks is refused",
        run: |recovery| Box::pin(recovery.refuse_doubt()),
        audit: |_| Ok(()),
    },
    Step {
        name: "zones of unfinished rebuilds are emptied",
        run: |recovery| Box::pin(recovery.drop_unbuilt()),
        audit: |recovery| recovery.volume.audit_map(),
    },
    Step {
        name: "mapping blocks are counted in their segments",
        run: |recovery| Box::pin(recovery.count_leaves()),
        audit: |recovery| recovery.volume.audit_leaves(),
    },
    Step {
        name: "segments that had not ended are filled to the end of a group, and taken into use \
               again or ended",
        run: |recovery| Box::pin(recovery.reopen()),
        audit: |recovery| {
            recovery.volume.audit_streams()?;
            recovery.volume.audit_tables()
        },
    },
    Step {
        name: "zones that belong to nothing are ended",
        run: |recovery| Box::pin(recovery.end_strays()),
        audit: |recovery| {
            recovery.volume.audit_zones()?;
            recovery.volume.audit_permits()
        },
    },
    Step {
        name: "blocks and trims after the snapshot change the map, by their sequence numbers",
        run: |recovery| Box::pin(recovery.change_map()),
        audit: |recovery| {
            recovery.volume.audit_map()?;
            recovery.volume.audit_leaves()?;
            recovery.volume.audit_fallback()
        },
    },
    Step {
        name: "an array whose members lack zones that they had is refused",
        run: |recovery| Box::pin(recovery.refuse_lacking()),
        audit: |recovery| recovery.volume.audit(),
    },
];

/// The last steps of a recovery; after them zones may be reset.
pub(crate) const FINISH: &[Step<Volume>] = &[
    Step {
        name: "stripes that lack a chunk are written again, with the sequence numbers they have",
        run: |volume| Box::pin(volume.repair_torn_stripes()),
        audit: Volume::audit,
    },
    Step {
        name: "a checkpoint says what was found",
        run: |volume| Box::pin(volume.checkpoint(false)),
        audit: Volume::audit,
    },
    Step {
        name: "a second state record: an older image of a member is behind the first one",
        run: |volume| {
            Box::pin(async {
                volume.write_state(false).await;
                volume.failed().map_or(Ok(()), Err)
            })
        },
        audit: Volume::audit,
    },
    Step {
        name: "zones that belong to nothing are reset",
        run: |volume| Box::pin(volume.release_all_strays()),
        audit: Volume::audit,
    },
];

impl Recovery {
    pub(crate) fn new(volume: &Volume, zones: Vec<Vec<ZoneReport>>, image: Image) -> Recovery {
        Recovery {
            volume: volume.clone(),
            zones,
            image,
            found: Vec::new(),
            strays: Vec::new(),
            blind: 0,
            delta: Delta::default(),
            open: Vec::new(),
            unbuilt: Vec::new(),
            unended: Vec::new(),
            short: Vec::new(),
            in_doubt: Vec::new(),
        }
    }

    async fn find_segments(&mut self) -> Result<()> {
        self.volume.note_zones(&self.zones);
        let found = self.volume.find_segments(&self.zones, &self.image).await?;
        (self.found, self.strays, self.blind) = found;
        Ok(())
    }

    async fn read_rows(&mut self) -> Result<()> {
        for found in std::mem::take(&mut self.found) {
            self.read_rows_of(found).await;
        }
        // If a drive did not answer for a moment, rows of it may not have been read: missing rows
        // prove nothing.
        self.volume.check_read()
    }

    async fn read_rows_of(&mut self, mut found: Found) {
        let (volume, zones) = (&self.volume, &self.zones);
        let entry = self.image.entry(&found);
        if entry.is_none() && found.sequence < self.image.next_segment {
            // The segment was released before the snapshot, and this zone could not be reset. The
            // snapshot's map is newer than the zone's content.
            let left = (0u32..).zip(found.zones);
            self.strays.extend(left.filter_map(|(index, zone)| Some((index, zone?))));
            return;
        }
        volume.0.segments.found_segment(found.sequence);
        let ended = entry.is_some_and(|entry| entry.state != segment::OPEN);
        let state = match entry {
            Some(entry) if entry.state == segment::TRUNCATED => SegmentState::Truncated,
            _ if ended => SegmentState::Sealed,
            _ => SegmentState::Open,
        };
        self.unbuilt.extend(volume.take_unbuilt(&mut found, zones).await);
        if let Some(entry) = entry.filter(|_| state == SegmentState::Sealed) {
            self.short.extend(volume.take_short(&mut found, entry.missing.get(), zones));
        }
        volume.adopt(&found, state);
        if let Some(entry) = entry {
            let known = &mut volume.0.segments.borrow_mut()[found.slot as usize];
            known.valid = entry.valid.get();
            known.rows = entry.rows.get();
        }
        if ended {
            // After a failed write, a zone may still be active although its segment has ended.
            let active = |(index, zone): &(u32, ZoneId)| {
                zones[*index as usize][zone.0 as usize].state.is_active()
            };
            let held = (0u32..).zip(&found.zones).filter_map(|(i, zone)| Some((i, (*zone)?)));
            self.unended.extend(held.filter(active));
        } else {
            let after = entry.map_or(0, |entry| entry.rows.get());
            let scanned = volume.scan(&found, zones).await;
            let table = volume.places(&found, &scanned);
            let lost = volume.lost_in(&found, zones);
            self.in_doubt.extend(volume.in_doubt(&found, (&scanned, &table), after, lost));
            volume.weigh(&found, &scanned, (table, lost), after, &mut self.delta);
            self.open.push((found, scanned));
        }
    }

    async fn refuse_doubt(&mut self) -> Result<()> {
        self.volume.check_none_in_doubt(&self.in_doubt)?;
        for (member, zone) in &self.short {
            self.volume.tell(Event::ZoneLost { member: *member, zone: zone.0 });
        }
        self.strays.append(&mut self.short);
        Ok(())
    }

    async fn drop_unbuilt(&mut self) -> Result<()> {
        self.volume.note_recovered(|recovered| {
            recovered.unbuilt = self.unbuilt.len() as u64;
            recovered.torn_blocks = self.delta.torn.len() as u64;
            recovered.damaged_blocks = self.delta.damaged.len() as u64;
        });
        self.volume.drop_unbuilt(&self.unbuilt).await;
        Ok(())
    }

    async fn count_leaves(&mut self) -> Result<()> {
        self.volume.count_leaves();
        self.volume.0.segments.found_block(self.delta.highest);
        Ok(())
    }

    async fn reopen(&mut self) -> Result<()> {
        for (found, scanned) in std::mem::take(&mut self.open) {
            self.volume.reopen_segment(found, scanned, &self.zones).await?;
        }
        Ok(())
    }

    async fn end_strays(&mut self) -> Result<()> {
        let volume = &self.volume;
        volume.finish_strays(&self.strays, &self.zones).await;
        volume.finish_strays(&self.unended, &self.zones).await;
        let strays = std::mem::take(&mut self.strays);
        for (index, zone) in &strays {
            if let Some(drive) = volume.0.array.member(*index).drive() {
                drive.note_loose(*zone);
            }
        }
        let short = (self.delta.torn.clone(), self.delta.damaged.clone());
        let unfinished = UnfinishedRecovery::new(short, strays);
        *volume.0.space.recovery.borrow_mut() = Some(unfinished);
        volume.serve_space(crate::space::Lane::Release);
        Ok(())
    }

    async fn change_map(&mut self) -> Result<()> {
        self.volume.apply(&self.delta, &self.image).await
    }

    async fn refuse_lacking(&mut self) -> Result<()> {
        self.volume.check_held(&self.image, &self.zones, self.blind)?;
        self.volume.enter(Stage::Repairing);
        // Earlier writes may have found no space because it was not yet known which segments
        // are empty.
        self.volume.space_changed();
        Ok(())
    }
}
