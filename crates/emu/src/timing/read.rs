//! Reads: dies that sense pages, channels, the link to the host.
//!
//! A die senses one page at a time and keeps the page until its channel has transferred it.
//! Readers (zones) of one die take turns, a page each. At most one page of a die waits for its
//! channel, so a channel that serves dies in order of arrival serves them alternately; the same
//! holds for the link.

use super::agenda::{Event, Shared};
use super::chance::exponential;
use super::model::Model;
use super::write::Writes;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
struct Page {
    flight: u32,
    bytes: u32,
}

#[derive(Debug, Default)]
struct Die {
    /// Zones with pages to sense, which take turns.
    readers: VecDeque<(u32, VecDeque<Page>)>,
    /// The page that the die senses or holds.
    page: Option<Page>,
    last: Option<u32>,
}

#[derive(Debug, Default)]
struct Channel {
    busy: bool,
    last: Option<u32>,
    waiting: VecDeque<u32>,
}

/// The parts of a drive through which reads pass: dies, channels and the link to the host.
#[derive(Debug)]
pub(super) struct Reads {
    dies: Vec<Die>,
    channels: Vec<Channel>,
    link: u64,
    /// Empty queues of former readers, for reuse.
    spare: Vec<VecDeque<Page>>,
}

impl Reads {
    pub fn new(model: &Model) -> Reads {
        let dies = model.groups.0 * model.read_dies.0;
        Reads {
            dies: (0..dies).map(|_| Die::default()).collect(),
            channels: (0..model.channels.0).map(|_| Channel::default()).collect(),
            link: 0,
            spare: Vec::new(),
        }
    }

    /// Passes the pages of a read to their dies, when it leaves the command stage.
    pub fn arrive(&mut self, shared: &mut Shared, writes: &Writes, now: u64, index: u32) {
        let (page, per_group) = (shared.model.page.0, shared.model.read_dies.0);
        let (zone, group, mut at, mut left) = {
            let flight = &shared.flights[index as usize];
            (flight.zone, flight.group, flight.at, flight.left.max(1))
        };
        let mut parts = 0;
        while left > 0 {
            let bytes = left.min(page - at % page);
            // The zone's number spreads the first pages of zones over the dies that they share.
            let slot = (at / page + u64::from(zone)) % u64::from(per_group);
            let die = group * per_group + slot as u32;
            self.add(die, zone, Page { flight: index, bytes: bytes as u32 });
            parts += 1;
            (at, left) = (at + bytes, left - bytes);
            if self.dies[die as usize].page.is_none() {
                self.sense(shared, writes, now, die);
            }
        }
        shared.flights[index as usize].parts = parts;
    }

    fn add(&mut self, die: u32, zone: u32, page: Page) {
        let readers = &mut self.dies[die as usize].readers;
        if let Some((_, pages)) = readers.iter_mut().find(|(reader, _)| *reader == zone) {
            pages.push_back(page);
            return;
        }
        let mut pages = self.spare.pop().unwrap_or_default();
        pages.push_back(page);
        readers.push_back((zone, pages));
    }

    /// Makes die `number` sense the next page.
    fn sense(&mut self, shared: &mut Shared, writes: &Writes, now: u64, number: u32) {
        let die = &mut self.dies[number as usize];
        let Some((zone, mut pages)) = die.readers.pop_front() else { return };
        let page = pages.pop_front();
        match pages.is_empty() {
            true => self.spare.push(pages),
            false => die.readers.push_back((zone, pages)),
        }
        let random = shared.random_next(zone, 1);
        let model = &shared.model;
        let slow = ((random >> 32) * 1_000) >> 32 < u64::from(model.slow_share.0);
        let mean = if slow { model.sense_slow.0 } else { model.sense.0 };
        let spread = model.sense_spread.of(mean);
        let mut time = mean - spread;
        if spread > 0 {
            time += exponential(spread, shared.random(zone, 2));
        }
        if die.last.is_some_and(|last| last != zone) {
            time += model.sense_switch.0;
        }
        let (group, of_group) = (number / model.read_dies.0, number % model.read_dies.0);
        if model.suspend.0 > 0 {
            time += model.suspend.0 * writes.disturbs_reads(model, group) / 1_000;
        }
        if model.reads_wait.0 {
            time += writes.programmed_at(model, group, of_group).saturating_sub(now);
        }
        die.last = Some(zone);
        die.page = page;
        shared.counters.pages += 1;
        shared.counters.sense += time;
        shared.agenda.at(now + time, Event::Sensed { die: number });
    }

    /// Handles a die that has sensed its page and needs its channel.
    pub fn sensed(&mut self, shared: &mut Shared, now: u64, die: u32) {
        let number = die % shared.model.channels.0;
        let channel = &mut self.channels[number as usize];
        if channel.busy {
            channel.waiting.push_back(die);
        } else {
            self.transfer(shared, now, number, die);
        }
    }

    fn transfer(&mut self, shared: &mut Shared, now: u64, channel: u32, die: u32) {
        let turns =
            self.channels[channel as usize].last.replace(die).is_some_and(|last| last != die);
        self.channels[channel as usize].busy = true;
        let bytes = self.dies[die as usize].page.map_or(0, |page| u64::from(page.bytes));
        let model = &shared.model;
        let mut time = model.channel_fixed.0 + model.channel_rate.time(bytes);
        if turns {
            time += model.channel_switch.0;
        }
        shared.counters.channel += time;
        shared.agenda.at(now + time, Event::Transferred { channel, die });
    }

    /// Passes a page on to the host when it has passed its channel; then its die and its channel
    /// take their next pages.
    pub fn transferred(
        &mut self,
        shared: &mut Shared,
        writes: &Writes,
        now: u64,
        channel: u32,
        die: u32,
    ) {
        if let Some(page) = self.dies[die as usize].page.take() {
            let time = shared.model.link_rate.time(u64::from(page.bytes));
            self.link = self.link.max(now) + time;
            shared.counters.link += time;
            shared.agenda.page_arrives(self.link, page.flight);
        }
        self.channels[channel as usize].busy = false;
        if let Some(next) = self.channels[channel as usize].waiting.pop_front() {
            self.transfer(shared, now, channel, next);
        }
        self.sense(shared, writes, now, die);
    }
}
