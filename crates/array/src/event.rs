//! Events of an array that its operator should know, reported in order, one by one.

use crate::member::Errors;
use furrow_rt::Notify;
use furrow_zone::words::count;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

/// Maximum number of events kept until a listener takes them; more events displace the oldest.
const KEPT: usize = 256;

/// Something that happened to the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member was taken out of service.
    MemberFailed {
        /// Number of the member.
        member: u32,
        /// The reason why the member was taken out of service.
        why: String,
    },
    /// Too many members are gone: nothing more can be written.
    ArrayFailed {
        /// The reason why the array failed.
        why: String,
    },
    /// No segment is left to write to: only reads are answered, until drives are replaced or blocks
    /// are trimmed.
    OutOfSpace {
        /// The reason why there is no space.
        why: String,
    },
    /// A zone of a member is lost with its content; the valid blocks of its segment are
    /// reconstructed from the other members and written elsewhere.
    ZoneLost {
        /// Number of the member.
        member: u32,
        /// Number of the zone on the member's drive.
        zone: u32,
    },
    /// A scrub found a damaged state record, and rewrote it.
    RecordMended {
        /// Number of the member.
        member: u32,
        /// Zone with the damaged record.
        zone: u32,
        /// First damaged block of the zone.
        block: u32,
    },
    /// An empty drive has taken the place of a failed one.
    Replaced {
        /// Number of the member.
        member: u32,
        /// Error counts of the former drive.
        former: Errors,
    },
    /// A rebuild begins or continues.
    RebuildStarted {
        /// Number of segments to rebuild.
        segments: u32,
    },
    /// Every member has all of its data again.
    RebuildFinished,
    /// A rebuild ended without restoring some blocks of the volume, which are lost.
    RebuildIncomplete {
        /// Number of lost blocks.
        blocks: u64,
        /// The first ranges of the lost blocks.
        ranges: Vec<Range<u64>>,
    },
    /// A rebuild ended early; the zones it rebuilt are kept.
    RebuildStopped {
        /// The reason why the rebuild ended early.
        why: String,
    },
}

impl Event {
    /// The kind of the event, in words joined by dashes.
    pub fn name(&self) -> &'static str {
        match self {
            Event::MemberFailed { .. } => "member-failed",
            Event::ArrayFailed { .. } => "array-failed",
            Event::OutOfSpace { .. } => "out-of-space",
            Event::ZoneLost { .. } => "zone-lost",
            Event::RecordMended { .. } => "record-mended",
            Event::Replaced { .. } => "replaced",
            Event::RebuildStarted { .. } => "rebuild-started",
            Event::RebuildFinished => "rebuild-finished",
            Event::RebuildIncomplete { .. } => "rebuild-incomplete",
            Event::RebuildStopped { .. } => "rebuild-stopped",
        }
    }

    /// The member that the event is about; `None` if it is about the whole array.
    pub fn member(&self) -> Option<u32> {
        match self {
            Event::MemberFailed { member, .. }
            | Event::Replaced { member, .. }
            | Event::RecordMended { member, .. }
            | Event::ZoneLost { member, .. } => Some(*member),
            _ => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::MemberFailed { member, why } => write!(f, "member {member} failed: {why}"),
            Event::ArrayFailed { why } => write!(f, "the array failed: {why}"),
            Event::ZoneLost { member, zone } => {
                write!(f, "member {member} lost zone {zone}: its blocks are rewritten")
            }
            Event::RecordMended { member, zone, block } => write!(
                f,
                "member {member} had a damaged state record (zone {zone}, block {block}): it is \
                 written again"
            ),
            Event::OutOfSpace { why } => write!(f, "the array is out of space: {why}"),
            Event::Replaced { member, former } if *former == Errors::default() => {
                write!(f, "member {member} has a new drive")
            }
            Event::Replaced { member, former: Errors { read, write, checksum } } => write!(
                f,
                "member {member} has a new drive; the one before it had {read} read, {write} write \
                 and {checksum} checksum errors"
            ),
            Event::RebuildStarted { segments } => {
                write!(f, "a rebuild of {} begins", count((*segments).into(), "segment"))
            }
            Event::RebuildFinished => f.write_str("the rebuild has finished"),
            Event::RebuildIncomplete { blocks, ranges } => write!(
                f,
                "the rebuild has ended, but could not restore {} of the volume, LOST: {}",
                count(*blocks, "block"),
                show_ranges(ranges)
            ),
            Event::RebuildStopped { why } => write!(f, "the rebuild ended early: {why}"),
        }
    }
}

/// Maximum number of ranges that [`show_ranges`] writes out.
const SHOWN: usize = 32;

/// Ranges of blocks as text: the first and the last block of each.
pub fn show_ranges(ranges: &[Range<u64>]) -> String {
    let one = |range: &Range<u64>| match range.end - range.start {
        1 => range.start.to_string(),
        _ => format!("{}-{}", range.start, range.end - 1),
    };
    let shown: Vec<String> = ranges.iter().take(SHOWN).map(one).collect();
    let more = if ranges.len() > SHOWN { ", ..." } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// The events that no listener has taken yet.
#[derive(Default)]
pub struct Events {
    waiting: RefCell<VecDeque<Event>>,
    more: Notify,
}

impl Events {
    /// Waits for the next event and takes it.
    pub async fn next(&self) -> Event {
        loop {
            let next = self.waiting.borrow_mut().pop_front();
            match next {
                Some(event) => return event,
                None => self.more.wait().await,
            }
        }
    }

    /// Adds an event for the listener.
    pub fn tell(&self, event: Event) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() == KEPT {
            waiting.pop_front();
        }
        waiting.push_back(event);
        self.more.notify_all();
    }
}
