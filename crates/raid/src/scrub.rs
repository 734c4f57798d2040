//! Scrub: reads all blocks that an assembly or a read may need. It checks each block against its
//! metadata and each row against its parity, and rewrites damaged blocks.

mod records;

use crate::format::block;
use crate::map::Map;
use crate::meta::identity::{self, Identity};
use crate::meta::windows::is_own;
use crate::read::place::{Loud, Place};
use crate::reconstruct::Seen;
use crate::segment::SegmentState;
use crate::volume::Volume;
use crate::write::item::Origin;
use furrow_array::member::MemberState;
use furrow_array::parity::reconstruct;
use furrow_log::Uuid;
use furrow_log::survey::PAUSES;
use furrow_rt::Boxed;
use furrow_zone::{ErrorKind, Result, ZoneId};
use std::collections::VecDeque;

/// Number of rows checked at a time.
const AHEAD: usize = 16;

/// Number of times that a block is read if its drive is gone for a moment.
const LOOKS: u32 = 3;

/// Text of the finding for a damaged metadata block.
const LISTING: &str = "metadata block damaged or unreadable";

/// Text of the finding for a block whose metadata says that it belongs to no stripe, in a row with
/// valid blocks.
const UNLISTED: &str = "of no stripe, though its row has valid blocks";

/// A damaged block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Number of the member that has the block.
    pub member: u32,
    /// UUID of the member's drive.
    pub drive: Uuid,
    /// Zone of the block.
    pub zone: ZoneId,
    /// Number of the block in the zone.
    pub block: u32,
    /// Description of the damage.
    pub what: &'static str,
    /// Whether the valid blocks of the damaged block's stripe were rewritten.
    pub repaired: bool,
    /// Whether the drive failed to read the block; otherwise the block's content is wrong.
    pub unread: bool,
    /// Whether valid blocks of the damaged block's stripe cannot be reconstructed, and are lost.
    pub lost: bool,
}

/// The result of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Number of blocks read.
    pub blocks: u64,
    /// The damage that was found, in the order of discovery.
    pub findings: Vec<Finding>,
    /// Number of blocks of the volume that cannot be reconstructed.
    pub lost: u64,
    /// Whether the scrub was stopped before everything was read.
    pub stopped: bool,
    /// Numbers of the members that were not checked, or only in part: at the beginning or the end
    /// of the scrub they were out of service or being rebuilt, they got a new drive meanwhile,
    /// their drive was gone for a moment, or their state records could not be read.
    pub unchecked: Vec<u32>,
}

impl Scrubbed {
    /// Adds a finding. A damaged metadata block is found again with each row that it lists; it
    /// counts as repaired when all of these rows are.
    fn find(&mut self, new: Finding) {
        let at = |finding: &Finding| (finding.member, finding.zone, finding.block);
        let mut before = self.findings.iter_mut().rev().take(SEEN);
        match before.find(|old| new.what == LISTING && at(old) == at(&new)) {
            Some(old) => old.repaired &= new.repaired,
            None => self.findings.push(new),
        }
    }
}

/// Number of the last findings that are searched for the same block: more than a window has rows.
const SEEN: usize = 4096;

/// A row with blocks that cannot be reconstructed. They are lost only if the map names them: the
/// stripe may have been torn by a crash and never counted, or its blocks may have been moved since.
struct Short {
    /// Slot and sequence number of the segment.
    segment: (u32, u64),
    findings: Vec<Finding>,
    /// Numbers of the data blocks that cannot be reconstructed.
    missing: Vec<u32>,
    /// Whether the row had other valid blocks, which were rewritten.
    renewed: bool,
}

/// The findings of a scrub so far.
#[derive(Default)]
struct Found {
    result: Scrubbed,
    short: Vec<Short>,
}

impl Found {
    fn add(&mut self, row: Found) {
        self.result.blocks += row.result.blocks;
        for finding in row.result.findings {
            self.result.find(finding);
        }
        self.short.extend(row.short);
    }
}

impl Volume {
    /// Reads the state records of all members, and rewrites damaged ones. Reads all segments; with
    /// `repair`, rewrites the blocks of damaged stripes. Calls `progress` with the number of
    /// segments done, and their total. A member whose drive does not answer is taken out of
    /// service; its blocks do not count as damage.
    ///
    /// # Errors
    /// An error if the volume cannot be written any more, is being stopped, or lacks a drive that
    /// it needs. What was found until then is lost.
    pub async fn scrub(
        &self,
        repair: bool,
        mut progress: impl FnMut(u32, u32),
    ) -> Result<Scrubbed> {
        self.check_alive()?;
        self.notice_gone();
        self.check_survives()?;
        let (stops, before) = (self.0.scrub_stops.get(), self.members());
        let missed = self.missed();
        let (records, unread) = self.scrub_records().await?;
        self.notice_gone();
        self.check_survives()?;
        let slots = self.quiesced_rows().await;
        let (total, mut done, mut found) = (slots.len() as u32, 0, Found::default());
        for (slot, sequence, rows) in slots {
            progress(done, total);
            let scrubbed =
                self.scrub_segment((slot, sequence), rows, (repair, stops), &mut found).await;
            self.scrub_left(sequence);
            scrubbed?;
            self.notice_gone();
            self.check_survives()?;
            found.result.stopped = self.0.scrub_stops.get() != stops;
            if found.result.stopped {
                break;
            }
            done += 1;
        }
        let Found { mut result, short } = found;
        result.findings.splice(0..0, records);
        let counted = (!result.stopped).then(|| self.recount_lost());
        let judged = self.judge(short, repair, &mut result).await;
        let judged = judged.and_then(|()| self.check_survives());
        if let (Err(_), Some(counted)) = (&judged, &counted) {
            self.0.lost_blocks.join(counted);
        }
        judged?;
        if !result.stopped {
            self.check_lost().await;
        }
        self.notice_gone();
        self.check_alive()?;
        // Only damage of valid blocks counts as an error of the member. Each reported block counts
        // once, although the scrub reads it again to repair it and to find losses.
        for finding in &result.findings {
            let member = self.0.array.member(finding.member);
            // The drive may have been replaced since the finding; the new one does not have
            // the damage.
            if member.uuid() == finding.drive {
                member.count(u64::MAX, |errors| match finding.unread {
                    true => errors.read += 1,
                    false => errors.checksum += 1,
                });
            }
        }
        let serves = |state| state == MemberState::Active;
        let (now, missed_now) = (self.members(), self.missed());
        let unchecked = |index: &u32| {
            let at = *index as usize;
            let (was, is) = (&before[at], &now[at]);
            let gone = missed[at] != missed_now[at];
            was.0 != is.0 || !serves(was.1) || !serves(is.1) || gone || unread.contains(index)
        };
        result.unchecked = (0..now.len() as u32).filter(unchecked).collect();
        progress(done, total);
        Ok(result)
    }

    /// Ends every running scrub: each returns its findings so far.
    pub fn stop_scrub(&self) {
        self.0.scrub_stops.set(self.0.scrub_stops.get() + 1);
    }

    /// Adds to `result` the lost blocks of rows with too few chunks: blocks that the map still
    /// names and that cannot be read now.
    async fn judge(&self, short: Vec<Short>, repair: bool, result: &mut Scrubbed) -> Result<()> {
        let numbers = short.iter().flat_map(|row| row.missing.iter().copied());
        let judged = self.judge_lost(&numbers.collect(), repair).await?;
        result.lost += judged.blocks.report().0;
        for row in short {
            // A segment that was released in the meantime held no valid blocks.
            let there = self.stays(row.segment);
            let gone = row.missing.iter().any(|number| judged.lost.contains(number));
            let known = row.missing.iter().any(|number| judged.kept.contains(number));
            // They can be read by now: the damage beside them was not repaired, but it is there.
            let back = row.missing.iter().any(|number| judged.there.contains(number));
            if there && (gone || known || back || row.renewed) {
                for finding in row.findings {
                    let repaired = !gone && (known || row.renewed) && repair;
                    result.find(Finding { repaired, lost: gone, ..finding });
                }
            }
        }
        Ok(())
    }

    /// Whether a slot still holds the segment with this sequence number, and it is not
    /// being released.
    pub(crate) fn stays(&self, (slot, sequence): (u32, u64)) -> bool {
        let segment = &self.0.segments.borrow()[slot as usize];
        segment.sequence == sequence && segment.state != SegmentState::Releasing
    }

    /// The present segments: slot, sequence number, and number of rows with complete stripes.
    async fn quiesced_rows(&self) -> Vec<(u32, u64, u32)> {
        self.quiesce().await;
        let rows = (0..)
            .zip(&*self.0.segments.borrow())
            .filter_map(|(slot, segment)| {
                let rows = match segment.state {
                    SegmentState::Free | SegmentState::Releasing => return None,
                    SegmentState::Sealed => self.0.shape.rows,
                    SegmentState::Truncated => segment.rows,
                    SegmentState::Open => {
                        let next = self.next_row(slot);
                        next.unwrap_or(segment.rows)
                    }
                };
                Some((slot, segment.sequence, rows))
            })
            .collect();
        self.resume();
        rows
    }

    #[inline(never)]
    fn scrub_segment<'a>(
        &'a self,
        (slot, sequence): (u32, u64),
        rows: u32,
        (repair, stops): (bool, u64),
        found: &'a mut Found,
    ) -> Boxed<'a, Result<()>> {
        Box::pin(async move {
            if self.stays((slot, sequence)) {
                self.find_damaged(slot, rows).await?;
            }
            let (mut next, mut flights, mut result) = (0, VecDeque::new(), Ok(()));
            loop {
                let stopped = self.0.scrub_stops.get() != stops;
                let goes_on = result.is_ok() && !stopped && self.stays((slot, sequence));
                while goes_on && next < rows && flights.len() < AHEAD {
                    let (volume, row) = (self.clone(), next);
                    self.scrub_enters(slot, row);
                    next += 1;
                    flights.push_back(self.0.rt.spawn(async move {
                        let mut found = Found::default();
                        let done =
                            volume.scrub_row((slot, sequence), row, repair, &mut found).await;
                        done.map(|()| found)
                    }));
                }
                let Some(flight) = flights.pop_front() else { return result };
                let row = flight.await;
                // The segment may be cleaned and released during the check. Then its rows need no
                // check, and missing blocks of the row are not lost.
                match row {
                    _ if !self.stays((slot, sequence)) => {}
                    Ok(row) => found.add(row),
                    Err(error) => result = Err(error),
                }
            }
        })
    }

    /// Whether the drive of a member does not answer: then nothing shows that its blocks are
    /// damaged, and the member is taken out of service.
    fn is_gone(&self, member: u32) -> bool {
        self.notice_gone();
        self.0.array.member(member).drive().is_none_or(|drive| !drive.answers())
    }

    /// For each member, the number of commands that its drive answered as one that is gone; 0
    /// without a drive. What was not read while the number rose may be whole.
    pub(crate) fn missed(&self) -> Vec<u64> {
        let drives = self.0.array.members().iter().map(|member| member.drive());
        drives.map(|drive| drive.map_or(0, |drive| drive.misses())).collect()
    }

    /// Reads, and reads again if that failed while a drive was gone, perhaps for a moment only. The
    /// pauses outlast a short absence; what then still cannot be read is taken for unreadable.
    pub(crate) async fn patiently<T, E>(
        &self,
        read: impl AsyncFn() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        for pause in PAUSES {
            let missed = self.missed();
            let done = read().await;
            if done.is_ok() || self.missed() == missed {
                return done;
            }
            self.notice_gone();
            if !self.survives() {
                return done;
            }
            self.0.rt.sleep(pause).await;
        }
        read().await
    }

    /// Reads and checks the block at a place, again if the drive is gone for a moment. `None` if
    /// the drive still does not answer: then nothing shows that the block is damaged.
    async fn look_again(&self, place: Place) -> Option<Seen> {
        let drive = || self.0.array.member(place.index).drive();
        let misses = || drive().map_or(0, |drive| drive.misses());
        for _ in 0..LOOKS {
            let missed = misses();
            let seen = self.look_at(place, Loud::No).await;
            if matches!(seen, Seen::Whole(_)) {
                return Some(seen);
            }
            if self.is_gone(place.index) {
                return None;
            }
            if misses() == missed {
                return Some(seen);
            }
        }
        None
    }

    /// Fails if the array does without a drive that it needs.
    pub(crate) fn check_survives(&self) -> Result<()> {
        self.failed().filter(|_| !self.survives()).map_or(Ok(()), Err)
    }

    async fn scrub_row(
        &self,
        (slot, sequence): (u32, u64),
        row: u32,
        repair: bool,
        all: &mut Found,
    ) -> Result<()> {
        let placement = self.0.shape.placement;
        let (mut found, mut damaged, mut listings) = (Vec::new(), Vec::new(), Vec::new());
        let mut foreign = Vec::new();
        for chunk in 0..placement.n {
            let Some(place) = self.place_at(slot, row, chunk).await? else {
                found.push(None);
                continue;
            };
            let (block, unread) = match self.look_again(place).await {
                Some(Seen::Whole(whole)) => (Some(whole), false),
                None => {
                    found.push(None);
                    continue;
                }
                Some(Seen::Unread) => (None, true),
                Some(Seen::Foreign) => {
                    all.result.blocks += 1;
                    foreign.push((place, UNLISTED, false));
                    found.push(None);
                    continue;
                }
                Some(Seen::Damaged) => (None, false),
            };
            let listing = self.lost_listing(place).await;
            if listing.is_some() && self.is_gone(place.index) {
                found.push(None);
                continue;
            }
            all.result.blocks += 1;
            if block.is_none() && (listing.is_none() || self.is_listed(place).await) {
                damaged.push((place, "damaged or unreadable", unread));
            }
            listings.extend(listing.map(|place| (place, LISTING, false)));
            found.push(block);
        }
        // Torn stripes that do not count, and rows that only fill a group, have no valid blocks.
        if found.iter().all(Option::is_none) && damaged.is_empty() {
            return Ok(());
        }
        // Metadata stripes have no parity to check. Damage of the metadata stripe that counts, the
        // last of its window, shows as damage of the blocks that it lists.
        if found.iter().flatten().any(|(meta, _)| is_own(meta)) {
            return Ok(());
        }
        if damaged.is_empty() && found.iter().all(Option::is_some) {
            let bytes: Vec<&[u8]> = found.iter().flatten().map(|(_, p)| &p.bytes()[..]).collect();
            for parity in placement.k..placement.n {
                let mut others: Vec<Option<&[u8]>> = bytes.iter().map(|b| Some(*b)).collect();
                others[parity as usize] = None;
                let made = reconstruct(&placement, &others, parity as usize);
                if made.as_deref() != Some(bytes[parity as usize])
                    && let Some(place) = self.place_at(slot, row, parity).await?
                {
                    damaged.push((place, "parity does not fit the data", false));
                }
            }
        }
        damaged.extend(listings);
        // Blocks of no stripe count as damage, because recovery has made sure that valid blocks
        // are on all members. In a segment that a crash ended early, a damaged metadata block
        // looks like one that was never written, so that the blocks that it lists seem to belong
        // to no stripe.
        damaged.extend(foreign);
        if damaged.is_empty() {
            return Ok(());
        }
        let left = placement.recoverable(|chunk| found[chunk as usize].is_some());
        if left && !self.is_needed(slot, row).await? {
            return Ok(());
        }
        let segment = (slot, sequence);
        let mut repair = repair;
        let (missing, renewed) = match left {
            true if repair => match self.renew(segment, row).await {
                // Without space for rewriting the row's blocks, the row stays damaged, and the
                // scrub continues.
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    repair = false;
                    (Vec::new(), false)
                }
                renewed => renewed?,
            },
            true => (Vec::new(), false),
            false => {
                let missing = (0..placement.k).filter(|chunk| found[*chunk as usize].is_none());
                let number = |chunk| self.0.shape.number(slot, row, chunk);
                (missing.map(number).collect(), false)
            }
        };
        let whole = left && missing.is_empty();
        let findings = damaged.into_iter().map(|(place, what, unread)| Finding {
            member: place.index,
            drive: self.0.array.member(place.index).uuid(),
            zone: place.zone,
            block: place.offset,
            what,
            repaired: whole && repair,
            unread,
            lost: false,
        });
        if whole {
            all.result.findings.extend(findings);
        } else {
            all.short.push(Short { segment, findings: findings.collect(), missing, renewed });
        }
        Ok(())
    }

    /// Whether a row has a block that is valid, or that cannot be read and may be valid. Rewritten
    /// rows have none.
    async fn is_needed(&self, slot: u32, row: u32) -> Result<bool> {
        for chunk in 0..self.0.shape.placement.k {
            let number = self.0.shape.number(slot, row, chunk);
            match self.block_or_reconstructed(slot, row, chunk).await {
                Ok((Some(identity), _)) if self.counts(number, &identity).await? => {
                    return Ok(true);
                }
                Ok(_) => {}
                Err(_) => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Rewrites the valid blocks of a row. Returns the numbers of the blocks that cannot be read
    /// now, and whether any block was rewritten.
    pub(crate) async fn renew(
        &self,
        (slot, segment): (u32, u64),
        row: u32,
    ) -> Result<(Vec<u32>, bool)> {
        let (mut blocks, mut missing) = (Vec::new(), Vec::new());
        for chunk in 0..self.0.shape.placement.k {
            let number = self.0.shape.number(slot, row, chunk);
            match self.block_or_reconstructed(slot, row, chunk).await {
                Ok((Some(identity), page)) if self.counts(number, &identity).await? => {
                    blocks.push((identity, page, Origin { number, segment }));
                }
                Ok(_) => {}
                Err(_) => missing.push(number),
            }
        }
        let renewed = blocks.len() as u64;
        self.count(|counters| counters.repaired += renewed);
        self.move_blocks(blocks).await?;
        Ok((missing, renewed > 0))
    }

    /// Whether the map still names the block `number` for this identity.
    pub(crate) async fn counts(&self, number: u32, identity: &Identity) -> Result<bool> {
        match identity.kind {
            block::DATA if identity.lba < self.blocks() => {
                self.fetch_as(Map::leaf(identity.lba), false, Loud::No).await?;
                Ok(self.0.paging.map().get(identity.lba) == number)
            }
            block::MAPPING if identity.lba < u64::from(self.0.shape.mappings) => {
                Ok(self.0.paging.map().root_of(identity.lba as u32) == number)
            }
            _ => Ok(false),
        }
    }

    /// The identity and content of a data block, read or reconstructed from the others of its row.
    pub(crate) async fn block_or_reconstructed(
        &self,
        slot: u32,
        row: u32,
        chunk: u32,
    ) -> Result<(Option<Identity>, furrow_rt::Page)> {
        if let Some(place) = self.place_at(slot, row, chunk).await?
            && let Seen::Whole((meta, page)) = self.look_at(place, Loud::No).await
        {
            return Ok((Identity::from_bytes(&identity::coded(&meta)), page));
        }
        self.make(slot, row, chunk, Loud::No).await
    }
}
