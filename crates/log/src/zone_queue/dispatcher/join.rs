//! Joining waiting writes into one command, and splitting them over several.

use super::Dispatcher;
use crate::address::oob_per_block;
use crate::zone_queue::{Dispatched, PIECE_MIN, State, What};
use furrow_rt::Pages;
use std::collections::VecDeque;

impl Dispatcher {
    /// Takes the pages and out-of-band bytes of the next command from the queue.
    pub(super) fn gather(
        &self,
        state: &mut State,
        (fua, append): (bool, bool),
    ) -> (Pages, Vec<u8>) {
        let (from, shared) = (state.sent, &self.shared);
        let (limit, join) = if append {
            let most = shared.blocks_per_append;
            (self.piece(state, shared.append_pieces, most), shared.append_pieces > 0)
        } else {
            let pieces = self.pieces(state);
            (self.piece(state, pieces, shared.blocks_per_command), shared.join)
        };
        let most = limit.min(state.position - from) as usize;
        let (mut data, mut oob) = (Pages::with_capacity(most), Vec::new());
        let block_oob = oob_per_block(shared.device.geometry());
        let alike = |write: &&mut Dispatched| write.fua == fua && write.is_append() == append;
        while let Some(write) = state.writes.get_mut(state.next).filter(alike) {
            let left = write.end - state.sent;
            // An append is not split, even if it is longer than a piece.
            let room = (from + limit).saturating_sub(state.sent);
            if append && left > room && state.sent > from {
                break;
            }
            let count = if append { left } else { left.min(room) };
            match &write.what {
                What::Here if write.pages == 0 => {
                    data.extend((0..count).map(|_| shared.zero.clone()));
                }
                What::Here | What::Append => {
                    data.extend((0..count).filter_map(|_| state.queue.pop_front()));
                }
                What::Late(Some(page)) => data.extend((count > 0).then(|| page.clone())),
                What::Late(None) => break,
            }
            if write.oob > 0 {
                if oob.is_empty() {
                    oob.reserve_exact(most * block_oob);
                }
                // Blocks taken earlier may have no out-of-band bytes: fill their places with zeros.
                oob.resize((state.sent - from) as usize * block_oob, 0);
                let now = (count as usize * block_oob).min(write.oob);
                write.oob -= now;
                take(&mut state.oob, now, &mut oob);
            }
            state.sent += count;
            if state.sent < write.end {
                break;
            }
            state.next += 1;
            shared.in_flight.borrow_mut().sent(1);
            if !join {
                break;
            }
        }
        (data, oob)
    }

    /// Returns the number of write commands of the zone to keep in flight. Begins a burst if its
    /// conditions are met.
    pub(super) fn pieces(&self, state: &mut State) -> u32 {
        let shared = &self.shared;
        let waiting = state.position - state.sent;
        let mut burst = state.burst.filter(|burst| state.sent < burst.end);
        let begins = burst.is_none() && state.flights.is_empty() && waiting > PIECE_MIN;
        if shared.learns_pieces && begins {
            let (end, now) = (state.position, shared.rt.now());
            burst = Some(shared.bursts.borrow_mut().begin(waiting, end, now));
            state.burst = burst;
        }
        burst.map_or(shared.pieces, |burst| burst.pieces(shared.pieces))
    }

    /// Maximum number of blocks in the next command: `most`, or a share of the waiting blocks if
    /// more than one of the `pieces` commands is still to be sent.
    pub(super) fn piece(&self, state: &State, pieces: u32, most: u32) -> u32 {
        let missing = pieces.saturating_sub(state.flights.len() as u32).max(1);
        let waiting = state.position - state.sent;
        if missing == 1 { most } else { waiting.div_ceil(missing).max(PIECE_MIN).min(most) }
    }
}

/// Moves the first `count` bytes of `from` to the end of `to`.
fn take(from: &mut VecDeque<u8>, count: usize, to: &mut Vec<u8>) {
    let (first, second) = from.as_slices();
    let here = count.min(first.len());
    to.extend_from_slice(&first[..here]);
    to.extend_from_slice(&second[..count - here]);
    from.drain(..count);
}
