//! The scrub of state records. Without these records, the array cannot be assembled.
//!
//! All members have the same records, so a damaged one is rewritten at once, even if the scrub
//! does not repair. Every member gets a new record of the present state; on a member with a
//! damaged record, the new one goes to the empty zone of the state ring, and then the damaged zone
//! is emptied.

use super::Finding;
use crate::volume::Volume;
use furrow_array::drive::{Drive, reports};
use furrow_array::event::Event;
use furrow_array::state_ring::read_ring;
use furrow_zone::{Result, ZoneId};
use std::rc::Rc;

/// Text of the finding for a damaged state record.
const DAMAGED: &str = "damaged state record";

/// Text of the finding for a record that a drive acknowledged and no longer has.
const MISSING: &str = "the newest state record is not there";

impl Volume {
    /// Reads the state records of all members in service, and rewrites damaged ones. Also returns
    /// the members whose records could not be read at all.
    ///
    /// # Errors
    /// An error if the volume cannot be written any more, or is being stopped.
    pub(super) async fn scrub_records(&self) -> Result<(Vec<Finding>, Vec<u32>)> {
        let one = self.state_records().await;
        let (mut findings, mut unread) = (Vec::new(), Vec::new());
        for (index, drive) in self.drives() {
            let Some(found) = self.damaged_records(index, &drive).await else {
                unread.push(index);
                continue;
            };
            if !found.is_empty() {
                drive.leave_ring_zone();
            }
            findings.extend(found);
        }
        if findings.is_empty() {
            return Ok((findings, unread));
        }
        self.write_state_but(false, None, &one).await;
        drop(one);
        self.check_alive()?;
        for finding in &mut findings {
            let drive = self.0.array.member(finding.member).drive();
            let left = match drive {
                // The member failed while its record was being written.
                None => continue,
                Some(drive) => self.damaged_records(finding.member, &drive).await,
            };
            finding.repaired = left.is_some_and(|left| left.is_empty());
            if finding.repaired {
                let (member, zone) = (finding.member, finding.zone.0);
                self.tell(Event::RecordMended { member, zone, block: finding.block });
            }
        }
        Ok((findings, unread))
    }

    fn drives(&self) -> Vec<(u32, Rc<Drive>)> {
        let members = (0..).zip(self.0.array.members());
        members.filter_map(|(index, member)| Some((index, member.drive()?))).collect()
    }

    /// The findings about the state records of a member; `None` if they cannot be read at all, as
    /// when the drive does not answer.
    async fn damaged_records(&self, index: u32, drive: &Drive) -> Option<Vec<Finding>> {
        let uuid = self.0.array.member(index).uuid();
        let zones = reports(&**drive.device()).await.ok()?;
        let ring = read_ring(&**drive.device(), &zones, &self.0.pages).await.ok()?;
        let finding = |zone: ZoneId, block, what, unread| Finding {
            member: index,
            drive: uuid,
            zone,
            block,
            what,
            repaired: false,
            unread,
            lost: false,
        };
        let of = |damage: &furrow_array::state_ring::Damage| {
            finding(damage.zone, damage.block, DAMAGED, damage.unread)
        };
        let mut findings: Vec<Finding> = ring.damage.iter().map(of).collect();
        let recorded = self.0.array.member(index).recorded();
        let newest = ring.newest.as_ref().map_or(0, |found| found.header.sequence.get());
        if findings.is_empty() && newest < recorded {
            findings.push(finding(drive.ring_zone_now(), 0, MISSING, false));
        }
        Some(findings)
    }
}
