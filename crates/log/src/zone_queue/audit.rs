//! The audit of a zone's queue: compares its counters with commands and writes.

use super::{State, ZoneQueue};
use crate::audit::{broken, equal, holds};
use furrow_zone::Result;

impl ZoneQueue {
    /// Compares the counters of the queue with the commands in flight and the writes that wait.
    /// Adds the numbers of the writes that have not completed to `open`. Returns the number of
    /// their pages, and how many of the writes are not wholly sent.
    ///
    /// # Errors
    /// `Internal` if an account does not match.
    pub(crate) fn audit(&self, open: &mut Vec<u64>) -> Result<(usize, usize)> {
        let state = self.state.borrow();
        let account = format!("queue of zone {}", self.zone);
        open.extend(state.writes.iter().map(|write| write.sequence));
        let State { done, sent, position, .. } = *state;
        let ordered = done <= sent && sent <= position && position <= self.capacity;
        let capacity = self.capacity;
        holds(&account, ordered, || {
            format!(
                "expected done ≤ sent ≤ position ≤ capacity, found {done}, {sent}, {position}, \
                 {capacity}"
            )
        })?;
        if state.failed.is_none() {
            self.audit_flights(&account, &state)?;
        }
        let ended = done == self.capacity && !state.hands_over;
        holds(&account, !ended || (state.permit.is_none() && state.bound.is_none()), || {
            "expected no permit of a full zone, found one".into()
        })?;
        let pages = state.writes.iter().map(|write| write.pages).sum();
        Ok((pages, state.writes.len() - state.next))
    }

    /// Compares `done` and `sent` with the commands in flight, and with the writes that have not
    /// completed.
    fn audit_flights(&self, account: &str, state: &State) -> Result<()> {
        let mut before = state.done;
        for flight in &state.flights {
            if flight.end <= before {
                let (end, done) = (flight.end, state.done);
                let what = format!("a command in flight ends at block {end}, found done {done}");
                return Err(broken(account, what));
            }
            before = flight.end;
        }
        // With a `rest`, the zeros that fill the torn block are not sent yet, and `done` is before
        // that block.
        if state.rest.is_none() {
            equal(format_args!("{account}, sent"), before, state.sent)?;
        }
        let mut end = state.done;
        for write in &state.writes {
            let fits = write.end > end || (write.blocks == 0 && write.end == end);
            holds(account, fits && write.end <= state.position, || {
                format!(
                    "expected a pending write to end after block {end} and at most at {}, found \
                     its end {}",
                    state.position, write.end
                )
            })?;
            end = write.end;
        }
        let pages: usize = state.writes.iter().skip(state.next).map(|write| write.pages).sum();
        holds(account, state.queue.len() <= pages, || {
            format!("expected at most {pages} pages that wait, found {}", state.queue.len())
        })
    }

    /// Returns how many blocks of the zone were set aside since it was empty, and how many permits
    /// the queue holds.
    pub(crate) fn holdings(&self) -> (u32, u32) {
        let state = self.state.borrow();
        (state.position, state.permit.as_ref().map_or(0, crate::budget::Permit::count))
    }

    #[cfg(test)]
    pub(crate) fn corrupt_done(&self) {
        let mut state = self.state.borrow_mut();
        state.done = state.sent;
    }
}
