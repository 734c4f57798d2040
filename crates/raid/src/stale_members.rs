//! Stale members: drives that come back in an older state, for example from a restored backup, or
//! because the drive lost acknowledged writes.
//!
//! Each state record names, for each member, the last state record that the member's drive
//! acknowledged. Recovery and stop write the record twice, so that an older image of a member lacks
//! a record that, according to the other members, the member had. The other members' data cannot
//! expose such an image: it is consistent in itself, and looks as if a crash had kept later writes
//! from the drive.
//!
//! An older image that was made between two records may lack data without lacking such a record.
//! Recovery looks for lost data zone by zone. Every member had its zones of the segments that the
//! newest record lists as ended. A zone that is shorter or missing counts as lost if the level
//! tolerates the loss; otherwise the members without their zones are refused. Other losses look
//! like a crash: only the members themselves show which blocks were written after the newest
//! record, and a stripe with chunks on too few members may never have been acknowledged.

use crate::checkpoint::state::Image;
use crate::format::segment;
use crate::recover::Found;
use crate::volume::Volume;
use furrow_array::member::MemberState;
use furrow_log::address::blocks_written;
use furrow_zone::{Error, ErrorKind, Result, ZoneId, ZoneReport, ZoneState};

impl Volume {
    /// Removes from a segment those zones that no longer hold all of their rows. The segment had
    /// ended at the checkpoint's snapshot.
    pub(crate) fn take_short(
        &self,
        found: &mut Found,
        missing: u32,
        zones: &[Vec<ZoneReport>],
    ) -> Vec<(u32, ZoneId)> {
        let end = self.0.shape.offset(self.0.shape.rows - 1) + 1;
        let mut short = Vec::new();
        for (index, held) in (0u32..).zip(&mut found.zones) {
            let (Some(zone), Some(drive)) = (*held, self.0.array.member(index).drive()) else {
                continue;
            };
            let report = &zones[index as usize][zone.0 as usize];
            if missing >> index & 1 == 0 && blocks_written(report, drive.geometry()) < end {
                *held = None;
                short.push((index, zone));
            }
        }
        short
    }

    /// Fails if valid blocks are lost because members lack zones that they had according to the
    /// newest state record, and there is no other explanation. `blind`: members with zones
    /// whose header cannot be read, as bits.
    pub(crate) fn check_held(
        &self,
        image: &Image,
        zones: &[Vec<ZoneReport>],
        blind: u32,
    ) -> Result<()> {
        let placement = &self.0.shape.placement;
        let segments = self.0.segments.borrow();
        let gone = |index: usize| zones[index].iter().any(|z| z.state == ZoneState::Offline);
        let mut lacking = 0u32;
        for entry in image.entries.iter().filter(|entry| entry.state == segment::SEALED) {
            let known = &segments[entry.slot.get() as usize];
            if known.sequence != entry.sequence.get() || known.valid + known.leaves == 0 {
                continue;
            }
            let has = |index: u32| {
                let member = self.0.array.member(index);
                known.zones[index as usize].is_some() && member.drive().is_some()
            };
            for index in (0..placement.n).filter(|index| !has(*index)) {
                let active = self.0.array.member(index).state() == MemberState::Active;
                let had = active && entry.missing.get() >> index & 1 == 0;
                self.note_recovered(|recovered| recovered.lacking += u64::from(had));
                let lost = !placement.recoverable(|chunk| has(placement.drive(0, chunk)));
                let unexplained = had && blind >> index & 1 == 0 && !gone(index as usize);
                lacking |= u32::from(lost && unexplained) << index;
            }
        }
        let members =
            (0u32..).zip(self.0.array.members()).filter(|(index, _)| lacking >> index & 1 == 1);
        let names: Vec<String> =
            members.filter_map(|(_, m)| Some(m.drive()?.device().name())).collect();
        let Some((name, others)) = names.split_first() else { return Ok(()) };
        let also = match others.is_empty() {
            true => String::new(),
            false => format!(" (and so is {})", others.join(", ")),
        };
        let what = format!(
            "{name} is stale{also}: it lacks zones that it had when the newest state record was \
             written, and blocks are lost with them: it is an older image of the drive, or it \
             lost writes that it had acknowledged: give the newest images of the drives"
        );
        Err(Error::new(ErrorKind::Invalid, what))
    }
}
