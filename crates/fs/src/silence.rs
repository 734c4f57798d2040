//! Notices that the drive owes an answer, and reports which commands wait for it.
//!
//! If a drive neither answers nor reports an error, every operation that needs the drive waits, and
//! the engine seems to hang. The engine only reports the wait, and cancels no command, because the
//! drive may only be slow.

use crate::core::{Core, Inner};
use furrow_log::address::BlockAddr;
use furrow_rt::Nanos;
use std::rc::Rc;

/// Interval between two looks at the drive, in nanoseconds.
const LOOK_EVERY: u64 = Nanos::SECOND;
/// Time after which an unanswered command is reported, in nanoseconds.
const SILENT: u64 = 5 * Nanos::SECOND;

/// The state of a drive that owes an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Time for which the engine has known that the answer is owed, in seconds.
    pub seconds: u64,
    /// The commands that wait for the drive, in words.
    pub waiting: String,
}

impl Inner {
    /// Notes which command the drive has left unanswered for longest. If an overdue answer has come
    /// since the last look, returns how long the drive had owed it.
    fn look_at_drive(&self) -> Option<u64> {
        let oldest = self.core.borrow().env.device.oldest();
        let before = self.owed.get();
        if oldest == before.map(|(number, _)| number) {
            return None;
        }
        let now = self.rt.now();
        self.owed.set(oldest.map(|number| (number, now)));
        before.map(|(_, since)| now.since(since)).filter(|owed| *owed >= SILENT)
    }

    /// See [`crate::Fs::silence`].
    pub(crate) fn silence(&self) -> Option<Silence> {
        let (_, since) = self.owed.get()?;
        let owed = self.rt.now().since(since);
        let waiting = || self.waiting(&self.core.borrow());
        (owed >= SILENT).then(|| Silence { seconds: owed / Nanos::SECOND, waiting: waiting() })
    }

    /// Describes the commands under way.
    fn waiting(&self, core: &Core) -> String {
        let reads = self.fetches.starts();
        let writes = core.env.writer.in_flight();
        let one_or = |count: usize, what: &str| match count {
            1 => format!("a {what}"),
            _ => format!("{count} {what}s"),
        };
        let mut all = Vec::new();
        if let Some(first) = reads.first() {
            let (zone, offset) = (
                BlockAddr(*first).zone(&core.env.geometry),
                BlockAddr(*first).offset(&core.env.geometry),
            );
            let of = if reads.len() == 1 { "of" } else { "one of" };
            let what = one_or(reads.len(), "read");
            all.push(format!("{what} ({of} zone {zone} offset {offset})"));
        }
        if writes > 0 {
            all.push(one_or(writes, "write"));
        }
        match all.is_empty() {
            true => "a flush, a reset or a report of zones".to_owned(),
            false => all.join(", "),
        }
    }

    /// See [`crate::Fs::watch_drive`].
    pub(crate) fn watch_drive(self: &Rc<Self>) {
        let (rt, inner) = (self.rt.clone(), Rc::downgrade(self));
        self.rt.spawn_detached(async move {
            let mut next = SILENT / Nanos::SECOND;
            loop {
                rt.sleep(LOOK_EVERY).await;
                let Some(inner) = inner.upgrade() else { return };
                let (notice, name) = {
                    let core = inner.core.borrow();
                    (core.env.options.notice, core.env.device.name())
                };
                if let Some(owed) = inner.look_at_drive() {
                    next = SILENT / Nanos::SECOND;
                    let seconds = owed / Nanos::SECOND;
                    notice(&format!("{name}: the drive answers again, after {seconds} s"));
                }
                if let Some(Silence { seconds, waiting }) = inner.silence()
                    && seconds >= next
                {
                    next = 2 * seconds;
                    notice(&format!(
                        "{name}: the drive has not answered for {seconds} s: {waiting}: operations \
                         that need the drive wait"
                    ));
                }
            }
        });
    }
}
