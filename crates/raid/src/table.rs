//! The compact stripe table: where in its group each chunk of a segment landed.
//!
//! With Zone Append a chunk lands at any place of its group, so the table keeps only the place
//! within the group: one byte per chunk for groups of up to 256 stripes, two up to 65,536, three
//! above (ZapRAID, section 3.3). One bit more per chunk says whether the chunk is there.

use crate::format::NONE;

/// A stripe table of one segment.
///
/// Invariant: on each drive, the chunks of a group have different places.
#[derive(Clone, Debug)]
pub struct StripeTable {
    drives: u32,
    stripes: u32,
    /// Number of stripes in a group.
    group: u32,
    /// Whether an entry keeps the stripe of a place, instead of the place of a stripe.
    searched: bool,
    /// Bytes per entry.
    width: usize,
    places: Vec<u8>,
    present: Vec<u64>,
}

impl StripeTable {
    /// An empty table of `stripes` stripes over `drives` drives, in groups of `group`.
    pub fn new(stripes: u32, drives: u32, group: u32) -> StripeTable {
        let chunks = stripes as usize * drives as usize;
        let width = match group.min(stripes) {
            0..=1 => 0,
            2..=256 => 1,
            257..=65_536 => 2,
            _ => 3,
        };
        StripeTable {
            drives,
            stripes,
            group: group.clamp(1, stripes.max(1)),
            searched: false,
            width,
            places: vec![0; chunks * width],
            present: vec![0; chunks.div_ceil(64)],
        }
    }

    /// An empty table that keeps the stripe of each place, so that a look-up searches the group.
    pub fn searched(stripes: u32, drives: u32, group: u32) -> StripeTable {
        StripeTable { searched: true, ..StripeTable::new(stripes, drives, group) }
    }

    /// Whether the table keeps the stripe of each place, so that a look-up searches the group.
    pub(crate) fn is_searched(&self) -> bool {
        self.searched
    }

    fn index(&self, stripe: u32, drive: u32) -> usize {
        stripe as usize * self.drives as usize + drive as usize
    }

    /// The entry at `index`; `None` if there is none.
    fn entry(&self, index: usize) -> Option<u32> {
        if self.present.get(index / 64)? >> (index % 64) & 1 == 0 {
            return None;
        }
        let mut bytes = [0; 4];
        bytes[..self.width].copy_from_slice(&self.places[index * self.width..][..self.width]);
        Some(u32::from_le_bytes(bytes))
    }

    /// Searches the places of a group, one after the other, for the chunk of `stripe`.
    fn search(&self, stripe: u32, drive: u32) -> Option<u32> {
        let within = stripe % self.group;
        let start = stripe - within;
        let end = start.saturating_add(self.group).min(self.stripes);
        let wanted = within.to_le_bytes();
        let (wanted, drives) = (&wanted[..self.width], self.drives as usize);
        // The bytes are compared first: few entries match, and only for those the `present` bit
        // is read.
        let mut places = self.places[self.index(start, drive) * self.width..]
            .chunks(drives * self.width.max(1))
            .zip(start..end);
        let found = |(bytes, at): &(&[u8], u32)| {
            bytes[..self.width] == *wanted && self.entry(self.index(*at, drive)).is_some()
        };
        if self.width == 0 {
            return self.entry(self.index(stripe, drive));
        }
        places.find(found).map(|(_, at)| at - start)
    }

    /// Notes that the chunk of `stripe` on `drive` is at `place` of its group.
    pub fn set(&mut self, stripe: u32, drive: u32, place: u32) {
        let (index, entry) = if self.searched {
            let within = stripe % self.group;
            (self.index(stripe - within + place, drive), within)
        } else {
            (self.index(stripe, drive), place)
        };
        self.present[index / 64] |= 1 << (index % 64);
        let width = self.width;
        let bytes = entry.to_le_bytes();
        self.places[index * width..][..width].copy_from_slice(&bytes[..width]);
    }

    /// The place of the chunk of `stripe` on `drive`; `None` if there is no chunk.
    pub fn get(&self, stripe: u32, drive: u32) -> Option<u32> {
        if self.searched {
            return self.search(stripe, drive);
        }
        self.entry(self.index(stripe, drive))
    }

    /// Removes the chunk of `stripe` on `drive` from the table.
    pub fn remove(&mut self, stripe: u32, drive: u32) {
        let at = match self.searched.then(|| self.search(stripe, drive)) {
            None => stripe,
            Some(Some(place)) => stripe - stripe % self.group + place,
            Some(None) => return,
        };
        let index = self.index(at, drive);
        self.present[index / 64] &= !(1 << (index % 64));
    }

    /// The drives that have a chunk of `stripe`, as bits.
    pub fn drives_of(&self, stripe: u32) -> u32 {
        (0..self.drives).filter(|d| self.get(stripe, *d).is_some()).fold(0, |set, d| set | 1 << d)
    }

    /// Stripe, drive and place of a chunk that is outside its group, or at the same place as
    /// another chunk; `None` if there is no such chunk.
    pub fn clash(&self) -> Option<(u32, u32, u32)> {
        let mut taken = Vec::new();
        for start in (0..self.stripes).step_by(self.group as usize) {
            let count = self.group.min(self.stripes - start);
            for drive in 0..self.drives {
                taken.clear();
                taken.resize(count.div_ceil(64) as usize, 0u64);
                for stripe in start..start + count {
                    // A width of 0 bytes means groups of one stripe, with one place.
                    let Some(place) = self.entry(self.index(stripe, drive)) else { continue };
                    let bit = 1 << (place % 64);
                    match taken.get_mut((place / 64) as usize) {
                        Some(word) if place < count && *word & bit == 0 => *word |= bit,
                        _ => return Some((stripe, drive, place)),
                    }
                }
            }
        }
        None
    }

    /// Bytes of memory that the table takes.
    pub fn bytes(&self) -> usize {
        self.places.len() + self.present.len() * 8
    }
}

/// Arithmetic of groups: the row of a chunk in a zone, and the chunk that is in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups {
    /// Number of blocks in a chunk.
    pub(crate) chunk: u32,
    /// Number of stripes in a group.
    pub(crate) group: u32,
    /// Number of stripes in the segment.
    pub(crate) stripes: u32,
}

impl Groups {
    /// First stripe of the group of `stripe`.
    pub(crate) fn start(&self, stripe: u32) -> u32 {
        stripe - stripe % self.group.min(self.stripes)
    }

    /// The stripe after the last of the group of `stripe`.
    pub(crate) fn end(&self, stripe: u32) -> u32 {
        self.start(stripe).saturating_add(self.group).min(self.stripes)
    }

    /// First row of the chunk of `stripe`, if the chunk is at `place` of its group.
    pub(crate) fn row(&self, stripe: u32, place: u32) -> u32 {
        (self.start(stripe) + place) * self.chunk
    }

    /// The place within its group of a chunk of `stripe` that was found at row `row`; [`NONE`] if
    /// no chunk of this stripe can be in that row.
    pub(crate) fn place(&self, stripe: u32, row: u32) -> u32 {
        let at = row / self.chunk;
        let fits = stripe < self.stripes && (self.start(stripe)..self.end(stripe)).contains(&at);
        if fits { at - self.start(stripe) } else { NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_noted_is_found(
            group in prop::sample::select(vec![1, 2, 256, 257, 65_536, 65_537, u32::MAX]),
            stripes in 1..2000u32, drives in 1..9u32,
            notes in proptest::collection::vec((any::<u32>(), any::<u32>(), any::<u32>()), 0..40),
        ) {
            let mut table = StripeTable::new(stripes, drives, group);
            let mut model = std::collections::BTreeMap::new();
            for (stripe, drive, place) in notes {
                let key = (stripe % stripes, drive % drives);
                let place = place % group.min(stripes);
                table.set(key.0, key.1, place);
                model.insert(key, place);
            }
            for stripe in 0..stripes.min(50) {
                for drive in 0..drives {
                    let expected = model.get(&(stripe, drive)).copied();
                    prop_assert_eq!(table.get(stripe, drive), expected);
                }
            }
        }

        /// A chunk is found at any place of its group, in tables that keep places and in tables
        /// that keep stripes.
        #[test]
        fn a_search_finds_what_is_kept(
            group in 1..40u32, stripes in 1..100u32, drives in 1..5u32, seed in any::<u64>(),
        ) {
            let mut kept = StripeTable::new(stripes, drives, group);
            let mut searched = StripeTable::searched(stripes, drives, group);
            let mut rng = furrow_rt::Rng::new(seed);
            for start in (0..stripes).step_by(group as usize) {
                let count = group.min(stripes - start);
                for drive in 0..drives {
                    let mut places: Vec<u32> = (0..count).collect();
                    for at in (1..places.len()).rev() {
                        places.swap(at, rng.below(at as u64 + 1) as usize);
                    }
                    for (stripe, place) in (start..).zip(places) {
                        if rng.below(8) > 0 {
                            kept.set(stripe, drive, place);
                            searched.set(stripe, drive, place);
                        }
                    }
                }
            }
            let gone = rng.below(stripes.into()) as u32;
            kept.remove(gone, 0);
            searched.remove(gone, 0);
            for stripe in 0..stripes {
                prop_assert_eq!(kept.drives_of(stripe), searched.drives_of(stripe));
                for drive in 0..drives {
                    prop_assert_eq!(kept.get(stripe, drive), searched.get(stripe, drive));
                }
            }
            prop_assert_eq!(kept.bytes(), searched.bytes());
        }

        #[test]
        fn places_and_rows_are_one_to_one(
            group in 1..40u32, stripes in 1..100u32, chunk in 1..5u32, pick in any::<u32>(),
        ) {
            let groups = Groups { chunk, group, stripes };
            let stripe = pick % stripes;
            for place in 0..groups.end(stripe) - groups.start(stripe) {
                let row = groups.row(stripe, place);
                prop_assert!(row + chunk <= stripes * chunk);
                prop_assert_eq!(groups.place(stripe, row + chunk - 1), place);
            }
            prop_assert_eq!(groups.place(stripe, groups.end(stripe) * chunk), NONE);
        }
    }

    #[test]
    fn a_chunk_takes_a_byte_and_a_bit_in_groups_of_256() {
        // Claim R6: a GiB written in 4 KiB chunks to 3 + 1 drives makes 349,525 chunks.
        let chunks = 349_525;
        let bytes = |group| StripeTable::new(chunks / 4, 4, group).bytes() as f64 / 1024.0;
        assert!((bytes(256) - 341.3 * 1.125).abs() < 1.0, "{} KiB", bytes(256));
        // Without groups, an entry takes three bytes.
        let ungrouped = bytes(u32::MAX);
        assert!((ungrouped - 1024.0 - 42.7).abs() < 1.0, "{ungrouped} KiB");
    }
}
