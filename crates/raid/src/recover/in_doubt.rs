//! Stripes in doubt: the chunks found do not show whether the stripe was acknowledged.
//!
//! A stripe is acknowledged only when every member has its chunk. So a stripe with too few chunks
//! never counted if a member in service has its zone of the segment, but not its chunk of the
//! stripe. If all missing chunks are of absent members, or of zones that members lost, the stripe
//! may have been acknowledged. The remaining drives may not tell which blocks the stripe held.
//! Reads of these blocks would then return earlier content instead of an error, because no
//! checkpoint's map names the blocks. So the array is refused, before anything is written, unless
//! the operator accepts the loss.
//!
//! A stripe is in doubt only if more was lost than the level tolerates. An offline zone does not
//! show whether it belonged to a segment: perhaps its member had not begun a zone of that segment
//! when the crash came. So, if more zones are missing than the level tolerates, the check refuses
//! some arrays that lost nothing. Zones with damaged headers do not prove a loss, because a crash
//! leaves torn headers.
//!
//! A damaged block whose metadata is damaged too may have been a chunk of any stripe that could be
//! at its place. For these stripes, its member counts like one that lost its zone.

use crate::checkpoint::state::Image;
use crate::format::segment;
use crate::recover::{Found, Scanned};
use crate::segment::SegmentState;
use crate::table::StripeTable;
use crate::volume::Volume;
use furrow_array::member::MemberState;
use furrow_zone::words::listed;
use furrow_zone::{Error, ErrorKind, Result, ZoneReport, ZoneState};

/// The stripes of one segment that may have counted.
pub(crate) struct InDoubt {
    /// Sequence number of the segment.
    segment: u64,
    stripes: u32,
    /// Members that lost their zone of the segment, as bits.
    lost: u32,
    /// Members with damaged blocks where chunks of these stripes may have been, as bits.
    hurt: u32,
}

impl Volume {
    /// Members in service that had a zone in a segment and lost it, as bits.
    pub(crate) fn lost_in(&self, found: &Found, zones: &[Vec<ZoneReport>]) -> u32 {
        let first = self.0.shape.first_zone as usize;
        let gone = |index: usize| {
            zones[index].iter().skip(first).any(|zone| zone.state == ZoneState::Offline)
        };
        let lost = |index: &u32| {
            let (at, member) = (*index as usize, self.0.array.member(*index));
            member.state() == MemberState::Active
                && member.drive().is_some()
                && found.zones[at].is_none()
                && found.missing >> index & 1 == 0
                && gone(at)
        };
        (0..self.0.shape.placement.n).filter(lost).fold(0, |set, index| set | 1 << index)
    }

    /// The stripes of a segment, from row `after` on, that have too few chunks and may
    /// have counted. The segment had not ended at the checkpoint's snapshot; `lost`:
    /// see [`Volume::lost_in`].
    pub(crate) fn in_doubt(
        &self,
        found: &Found,
        (scanned, table): (&Scanned, &StripeTable),
        after: u32,
        lost: u32,
    ) -> Option<InDoubt> {
        let (placement, groups) = (&self.0.shape.placement, found.groups);
        if lost == 0 && !scanned.has_unknown() {
            return None;
        }
        let all = (0..placement.n).fold(0u32, |set, index| set | 1 << index);
        // Members that have no readable chunk, though they have not lost a zone.
        let absent = |index: &u32| {
            let member = self.0.array.member(*index);
            let unbuilt = member.state() == MemberState::Rebuilding;
            let without = found.missing >> index & 1 == 1 || unbuilt;
            member.drive().is_none() || (found.zones[*index as usize].is_none() && without)
        };
        let absent = (0..placement.n).filter(absent).fold(0u32, |set, index| set | 1 << index);
        // If a member was missing when the segment was begun, the segment never had a chunk on it.
        let may_have = lost | absent & !found.missing;
        let hurts = std::cell::Cell::new(0);
        let is_in_doubt = |stripe: &u32| {
            let there = table.drives_of(*stripe);
            let hurt = scanned.unknown_of(groups, *stripe) & !there;
            let (lost, may_have) = (lost | hurt, may_have | hurt);
            let suffices =
                |set: u32| placement.recoverable(|c| set >> placement.drive(*stripe, c) & 1 == 1);
            let doubted = there != 0
                && !suffices(there)
                && all & !there & !(lost | absent) == 0
                && suffices(there | may_have);
            hurts.set(hurts.get() | if doubted { hurt } else { 0 });
            doubted
        };
        let stripes = (after / groups.chunk..groups.stripes).filter(is_in_doubt).count() as u32;
        (stripes > 0).then_some(InDoubt {
            segment: found.sequence,
            stripes,
            lost,
            hurt: hurts.get(),
        })
    }

    /// Fails if a member whose newest state record is damaged continued without other members: a
    /// segment that it began without them is the proof.
    ///
    /// # Errors
    /// `Corrupt`, naming a member; `Io` if a drive was gone for a moment.
    pub(crate) async fn check_not_alone(
        &self,
        zones: &[Vec<ZoneReport>],
        image: &Image,
        unsure: u32,
    ) -> Result<()> {
        let (found, ..) = self.find_segments(zones, image).await?;
        let members = (0u32..).zip(self.0.array.members());
        let active = members.filter(|(_, member)| member.state() == MemberState::Active);
        let active = active.fold(0u32, |set, (index, _)| set | 1 << index);
        let held = |segment: &Found, index: &u32| {
            unsure >> index & 1 == 1 && segment.zones[*index as usize].is_some()
        };
        for segment in found.iter().filter(|segment| segment.sequence >= image.next_segment) {
            let without = segment.missing & active & !segment.rebuilt;
            let holder = (0..self.0.shape.placement.n).find(|index| held(segment, index));
            if let Some(member) = holder.filter(|_| without != 0) {
                let what = format!(
                    "the newest state record of member {member} is damaged, and the member may \
                     have gone on without member {}: its last writes may be lost: nothing was \
                     changed; start it alone, or accept the loss (--accept-loss)",
                    without.trailing_zeros()
                );
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
        }
        self.check_read()
    }

    /// Fails if stripes are in doubt whose missing chunks may be on absent members. The check runs
    /// before these members are recorded as failed: afterwards their drives would always be
    /// refused.
    ///
    /// # Errors
    /// The errors of [`Volume::check_none_in_doubt`]; `Io` if a drive was gone for a moment.
    pub(crate) async fn foresee_in_doubt(
        &self,
        zones: &[Vec<ZoneReport>],
        image: &Image,
    ) -> Result<()> {
        let (found, ..) = self.find_segments(zones, image).await?;
        let mut all = Vec::new();
        for mut segment in found {
            let entry = image.entry(&segment);
            let released = entry.is_none() && segment.sequence < image.next_segment;
            if released || entry.is_some_and(|entry| entry.state != segment::OPEN) {
                continue;
            }
            self.take_unbuilt(&mut segment, zones).await;
            self.adopt(&segment, SegmentState::Open);
            let after = entry.map_or(0, |entry| entry.rows.get());
            let scanned: Scanned = self.scan(&segment, zones).await;
            let table = self.places(&segment, &scanned);
            let lost = self.lost_in(&segment, zones);
            all.extend(self.in_doubt(&segment, (&scanned, &table), after, lost));
        }
        self.check_read()?;
        self.check_none_in_doubt(&all)
    }

    /// Fails if stripes that may have counted cannot be read, unless the operator accepts
    /// their loss.
    ///
    /// # Errors
    /// `Corrupt`; the message names the members.
    pub(crate) fn check_none_in_doubt(&self, all: &[InDoubt]) -> Result<()> {
        let stripes: u32 = all.iter().map(|in_doubt| in_doubt.stripes).sum();
        self.note_recovered(|recovered| recovered.in_doubt = stripes.into());
        let Some(first) = all.first().filter(|_| !self.0.options.accept_loss) else {
            return Ok(());
        };
        let (lost, hurt) = all
            .iter()
            .fold((0, 0), |(lost, hurt), in_doubt| (lost | in_doubt.lost, hurt | in_doubt.hurt));
        let names = |of: &dyn Fn(u32) -> bool| {
            let members = (0..self.0.shape.placement.n).filter(|index| of(*index));
            members.map(|index| index.to_string()).collect::<Vec<_>>()
        };
        let gone = names(&|index| self.0.array.member(index).drive().is_none());
        let (without, advice) = match gone.is_empty() {
            true => (String::new(), ""),
            false => (
                format!(
                    ", and {} {} missing",
                    listed("member", &gone),
                    if gone.len() == 1 { "is" } else { "are" }
                ),
                "give the drives of the missing members too, or ",
            ),
        };
        let cause = |set: u32, what: &str| {
            let which = names(&|index| set >> index & 1 == 1);
            (set != 0).then(|| format!("{} {what}", listed("member", &which)))
        };
        let causes = [cause(lost, "lost zones"), cause(hurt, "got damaged blocks")];
        let causes: Vec<String> = causes.into_iter().flatten().collect();
        let what = format!(
            "the last writes may be lost, and which blocks they changed is not known: {stripes} \
             stripes, in segment {} and others, lack too many chunks, because {}{without}: \
             {advice}accept the loss (--accept-loss)",
            first.segment,
            causes.join(" and ")
        );
        Err(Error::new(ErrorKind::Corrupt, what))
    }
}
