//! Zones whose header cannot be read: other blocks of such a zone name its segment.
//!
//! The footer names the segment, and so does the metadata of each block. The headers of other
//! members' zones, or the newest state record, describe the segment. If no block of a zone names a
//! segment, the zone was just begun when a crash tore its header.

use super::Found;
use crate::checkpoint::state::Image;
use crate::format::kind;
use crate::meta::identity;
use crate::meta::place::MetaPlace;
use crate::meta::scan::{read_any_footer, read_zone};
use crate::table::Groups;
use crate::volume::Volume;
use furrow_log::address::blocks_begun;
use furrow_log::record::{self, Expect};
use furrow_zone::{Error, ErrorKind, Result, ZoneId, ZoneReport};
use std::collections::BTreeMap;

/// A zone without a readable header.
pub(super) struct Headless {
    pub(super) index: u32,
    pub(super) zone: ZoneId,
    /// Sequence number of the segment that the zone belongs to.
    segment: u64,
    /// Whether the footer named the segment; if not, the metadata of a block did.
    by_footer: bool,
}

impl Volume {
    /// The segment of a zone whose header cannot be read; `None` if no block of the zone names one.
    pub(super) async fn headless(&self, index: u32, report: &ZoneReport) -> Option<Headless> {
        let zone = report.zone;
        if let Some((segment, _)) = read_any_footer(self, index, zone).await {
            return Some(Headless { index, zone, segment, by_footer: true });
        }
        let member = self.0.array.member(index);
        let (drive, shape) = (member.drive()?, &self.0.shape);
        let written = blocks_begun(report, drive.geometry()).saturating_sub(shape.offset(0));
        let rows = written.min(shape.rows);
        let (device, object) = (Some(member.uuid()), Some(self.0.array.uuid()));
        let expect = Expect { kind: kind::WINDOW, device, object };
        let mut segment = None;
        read_zone(&drive, shape, zone, rows, &self.0.pages, |read| {
            let named = read.and_then(|(page, beside)| match shape.meta {
                MetaPlace::OutOfBand => identity::segment_of(beside),
                MetaPlace::InBand => {
                    let (header, _) = record::open(page.bytes(), &expect).ok()?;
                    Some(header.sequence.get())
                }
            });
            segment = segment.or(named);
        })
        .await;
        Some(Headless { index, zone, segment: segment?, by_footer: false })
    }
}

/// Gives the zone to its segment. False if the segment was released, or the zone does not count
/// in it.
///
/// # Errors
/// `Corrupt` if no header and no state record describes the segment, unless loss is accepted.
pub(super) fn adopt(
    headless: &Headless,
    found: &mut BTreeMap<(u32, u64), Found>,
    image: &Image,
    volume: &Volume,
) -> Result<bool> {
    let shape = &volume.0.shape;
    let (segment, index) = (headless.segment, headless.index);
    if !found.keys().any(|(_, sequence)| *sequence == segment) {
        let entry = image.entries.iter().find(|entry| entry.sequence.get() == segment);
        let Some(entry) = entry else {
            if segment < image.next_segment || volume.0.options.accept_loss {
                return Ok(false);
            }
            let what = format!(
                "the headers of segment {segment} are damaged on every member that is there \
                 (member {index}: zone {}), and the newest state record is older than the segment: \
                 give the other members too, or accept the loss of its blocks (--accept-loss)",
                headless.zone
            );
            return Err(Error::new(ErrorKind::Corrupt, what));
        };
        let chunk = entry.chunk.get();
        let groups = Groups { chunk, group: entry.group.get(), stripes: shape.stripes(chunk) };
        let (slot, missing) = (entry.slot.get(), entry.missing.get());
        let zones = vec![None; shape.placement.n as usize];
        let new = Found { sequence: segment, slot, groups, missing, zones, rebuilt: 0 };
        found.insert((slot, segment), new);
    }
    let of = found.iter_mut().find(|((_, sequence), _)| *sequence == segment);
    let Some((_, known)) = of else { return Ok(false) };
    // If the segment was begun without the member, a rebuild wrote this zone, and only a footer
    // makes such a zone count.
    let rebuilt = known.missing >> index & 1 == 1;
    if known.zones[index as usize].is_some() || (rebuilt && !headless.by_footer) {
        return Ok(false);
    }
    known.zones[index as usize] = Some(headless.zone);
    known.rebuilt |= u32::from(rebuilt) << index;
    Ok(true)
}
