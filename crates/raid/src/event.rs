//! Events of an array that its operator should know, reported in order, one by one.

use furrow_rt::Notify;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;

/// Events kept until they are asked for; beyond that number the oldest are dropped.
const KEPT: usize = 256;

/// Something that happened to the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member was taken out of service.
    MemberFailed {
        /// Which.
        member: u32,
        /// Why.
        why: String,
    },
    /// Too many members are gone: nothing more can be written.
    ArrayFailed {
        /// Why.
        why: String,
    },
    /// No segment is left to write to: only reads are answered, until drives are replaced or blocks
    /// are trimmed.
    OutOfSpace {
        /// Why.
        why: String,
    },
    /// A zone of a member is lost with its content; the valid blocks of its segment are
    /// reconstructed from the other members and written elsewhere.
    ZoneLost {
        /// Which member.
        member: u32,
        /// Which zone.
        zone: u32,
    },
    /// An empty drive is in the place of a failed one.
    Replaced {
        /// Which member.
        member: u32,
    },
    /// A rebuild begins or continues.
    RebuildStarted {
        /// Segments there are to rebuild.
        segments: u32,
    },
    /// Every member has all of its data again.
    RebuildFinished,
    /// A rebuild ended early; the zones it rebuilt are kept.
    RebuildStopped {
        /// Why.
        why: String,
    },
}

impl Event {
    /// The kind of the event, in one word with dashes.
    pub fn name(&self) -> &'static str {
        match self {
            Event::MemberFailed { .. } => "member-failed",
            Event::ArrayFailed { .. } => "array-failed",
            Event::OutOfSpace { .. } => "out-of-space",
            Event::ZoneLost { .. } => "zone-lost",
            Event::Replaced { .. } => "replaced",
            Event::RebuildStarted { .. } => "rebuild-started",
            Event::RebuildFinished => "rebuild-finished",
            Event::RebuildStopped { .. } => "rebuild-stopped",
        }
    }

    /// The member that the event is about, if it is about one.
    pub fn member(&self) -> Option<u32> {
        match self {
            Event::MemberFailed { member, .. }
            | Event::Replaced { member }
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
                write!(f, "member {member} lost zone {zone}: its blocks are written again")
            }
            Event::OutOfSpace { why } => write!(f, "the array is out of space: {why}"),
            Event::Replaced { member } => write!(f, "member {member} has a new drive"),
            Event::RebuildStarted { segments } => {
                write!(f, "a rebuild of {segments} segments begins")
            }
            Event::RebuildFinished => f.write_str("the rebuild has finished"),
            Event::RebuildStopped { why } => write!(f, "the rebuild ended early: {why}"),
        }
    }
}

/// The events that have not been asked for yet.
#[derive(Default)]
pub(crate) struct Events {
    waiting: RefCell<VecDeque<Event>>,
    more: Notify,
}

impl Events {
    /// The next event, when there is one.
    pub(crate) async fn next(&self) -> Event {
        loop {
            let next = self.waiting.borrow_mut().pop_front();
            match next {
                Some(event) => return event,
                None => self.more.wait().await,
            }
        }
    }

    pub(crate) fn tell(&self, event: Event) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() == KEPT {
            waiting.pop_front();
        }
        waiting.push_back(event);
        self.more.notify_all();
    }
}
