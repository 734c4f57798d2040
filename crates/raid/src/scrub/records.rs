//! The scrub of state records: the array cannot be put together without them.
//!
//! All members have the same records. So a damaged one is written again at once, whether or not the
//! scrub is to repair: a record of the present state goes to every member, and on the damaged ones
//! to the zone of the ring that is empty; then the zone with the damage is emptied.

use super::Finding;
use crate::volume::Volume;
use furrow_array::drive::{Drive, reports};
use furrow_array::event::Event;
use furrow_array::state_ring::read_ring;
use furrow_zone::{Result, ZoneId};
use std::rc::Rc;

/// Finding for a record that is not whole.
const DAMAGED: &str = "damaged state record";

/// Finding for a record that a drive had acknowledged, and does not have.
const MISSING: &str = "the newest state record is not there";

impl Volume {
    /// Reads the state records of all members in service, and writes those again that are damaged.
    ///
    /// # Errors
    /// If the volume cannot be written any more.
    pub(super) async fn scrub_records(&self) -> Result<Vec<Finding>> {
        let one = self.state_records().await;
        let mut findings = Vec::new();
        for (index, drive) in self.drives() {
            let found = self.damaged_records(index, &drive).await;
            if !found.is_empty() {
                drive.leave_ring_zone();
            }
            findings.extend(found);
        }
        if findings.is_empty() {
            return Ok(findings);
        }
        self.write_state_but(false, None, &one).await;
        drop(one);
        self.check_alive()?;
        for finding in &mut findings {
            let drive = self.0.array.member(finding.member).drive();
            let left = match drive {
                // The member failed while its record was written.
                None => continue,
                Some(drive) => self.damaged_records(finding.member, &drive).await,
            };
            finding.repaired = left.is_empty();
            if finding.repaired {
                let (member, zone) = (finding.member, finding.zone.0);
                self.tell(Event::RecordMended { member, zone, block: finding.block });
            }
        }
        Ok(findings)
    }

    fn drives(&self) -> Vec<(u32, Rc<Drive>)> {
        let members = (0..).zip(self.0.array.members());
        members.filter_map(|(index, member)| Some((index, member.drive()?))).collect()
    }

    /// What is wrong with the state records of a member. A drive that does not answer has no
    /// findings: the next write takes it out of service.
    async fn damaged_records(&self, index: u32, drive: &Drive) -> Vec<Finding> {
        let uuid = self.0.array.member(index).uuid();
        let Ok(zones) = reports(&**drive.device()).await else { return Vec::new() };
        let Ok(ring) = read_ring(&**drive.device(), &zones, &self.0.pages).await else {
            return Vec::new();
        };
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
        findings
    }
}
