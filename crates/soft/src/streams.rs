//! Assigns the plain drive's write streams to zones and to the journal. Pure.
//!
//! A reset discards a whole zone. If zones that are written at the same time are in different
//! streams, the discard frees whole erase blocks, and the drive need not move other zones' data out
//! of them. The journal is overwritten all the time, so it has its own stream if there are two or
//! more. A zone keeps its stream until it is full, finished, closed or reset.

use furrow_zone::ZoneId;
use std::collections::BTreeMap;

/// The stream of the journal and the superblock on a drive with `count` streams: 1; 0, which means
/// no stream, if there are fewer than two.
pub(crate) fn of_journal(count: u8) -> u8 {
    u8::from(count > 1)
}

/// The write streams of a drive, and the zones that use them.
#[derive(Debug)]
pub(crate) struct Streams {
    count: u8,
    /// For each zone that is being written, its stream.
    written: BTreeMap<ZoneId, u8>,
}

impl Streams {
    /// Manages `count` streams, numbered from 1.
    pub(crate) fn new(count: u8) -> Streams {
        Streams { count, written: BTreeMap::new() }
    }

    /// The stream for a write to `zone`: the zone's own if it has one, otherwise the stream with
    /// the fewest zones, the lowest number in a tie; 0 if the drive has no streams.
    pub(crate) fn of(&mut self, zone: ZoneId) -> u8 {
        if let Some(stream) = self.written.get(&zone) {
            return *stream;
        }
        let zones = |stream: &u8| self.written.values().filter(|other| *other == stream).count();
        let Some(stream) = (of_journal(self.count) + 1..=self.count).min_by_key(zones) else {
            return 0;
        };
        self.written.insert(zone, stream);
        stream
    }

    /// Notes that `zone` is not written to any more for now, so that its stream is free.
    pub(crate) fn done(&mut self, zone: ZoneId) {
        self.written.remove(&zone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(streams: &mut Streams, zones: impl IntoIterator<Item = u32>) -> Vec<u8> {
        zones.into_iter().map(|zone| streams.of(ZoneId(zone))).collect()
    }

    #[test]
    fn zones_have_different_streams_while_there_are_enough_and_share_them_evenly_then() {
        let mut streams = Streams::new(4);
        assert_eq!(of_journal(4), 1);
        assert_eq!(of(&mut streams, [7, 3, 5]), [2, 3, 4]);
        assert_eq!(of(&mut streams, [3, 7, 3, 5]), [3, 2, 3, 4], "a zone keeps its stream");
        assert_eq!(of(&mut streams, [8, 9, 10, 11]), [2, 3, 4, 2]);
        streams.done(ZoneId(3));
        streams.done(ZoneId(9));
        streams.done(ZoneId(99));
        assert_eq!(of(&mut streams, [12, 7]), [3, 2], "the stream that no zone has any more");
    }

    #[test]
    fn one_stream_is_for_zones_and_none_is_none() {
        let mut streams = Streams::new(1);
        assert_eq!((of_journal(1), of(&mut streams, [1, 2])), (0, vec![1, 1]));
        let mut streams = Streams::new(2);
        assert_eq!((of_journal(2), of(&mut streams, [1, 2])), (1, vec![2, 2]));
        let mut streams = Streams::new(0);
        assert_eq!((of_journal(0), of(&mut streams, [1, 2])), (0, vec![0, 0]));
        let mut streams = Streams::new(255);
        assert_eq!(of(&mut streams, 0..254), (2..=255).collect::<Vec<_>>());
    }

    proptest! {
        /// Whatever zones are written and ended: a zone's stream exists, is not the journal's,
        /// stays the same, and is not shared while another is free.
        #[test]
        fn streams_are_in_range_and_shared_only_if_all_are_taken(
            count in 0u8..6,
            moves in proptest::collection::vec((0u32..12, any::<bool>()), 0..200),
        ) {
            let mut streams = Streams::new(count);
            let mut zones = BTreeMap::new();
            let first = of_journal(count) + 1;
            for (zone, ends) in moves {
                if ends {
                    streams.done(ZoneId(zone));
                    zones.remove(&zone);
                    continue;
                }
                let used: Vec<u8> = zones.values().copied().collect();
                let stream = streams.of(ZoneId(zone));
                if count == 0 {
                    prop_assert_eq!(stream, 0);
                    continue;
                }
                prop_assert!((first..=count).contains(&stream));
                match zones.insert(zone, stream) {
                    Some(before) => prop_assert_eq!(before, stream),
                    None => {
                        let free = (first..=count).any(|one| !used.contains(&one));
                        prop_assert!(!free || !used.contains(&stream));
                    }
                }
            }
        }
    }
}
