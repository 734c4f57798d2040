//! How many findings of a check are kept. Each file has its own limit, so that the damage of one
//! file does not hide that of another; memory is bounded by the number of damaged files.

use std::collections::BTreeMap;

/// Maximum number of findings kept for one file.
pub const KEPT_EACH: u32 = 100;
/// Once this many findings are kept in total, only the first finding of each further file is kept.
pub const KEPT_ALL: u32 = 10_000;

/// Counts findings by their subject.
///
/// Invariant: of each subject with findings, at least one finding is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept<K> {
    kept: u32,
    /// For each subject, how many findings are kept and how many are only counted.
    of: BTreeMap<K, (u32, u64)>,
}

impl<K> Default for Kept<K> {
    fn default() -> Kept<K> {
        Kept { kept: 0, of: BTreeMap::new() }
    }
}

impl<K: Ord> Kept<K> {
    /// Counts a finding about `key`; true if the caller is to keep it.
    pub fn takes(&mut self, key: K) -> bool {
        let (kept, more) = self.of.entry(key).or_default();
        let takes = *kept == 0 || *kept < KEPT_EACH && self.kept < KEPT_ALL;
        if takes {
            (*kept, self.kept) = (*kept + 1, self.kept.saturating_add(1));
        } else {
            *more += 1;
        }
        takes
    }

    /// Number of findings about `key` that were counted and not kept.
    pub fn more(&self, key: &K) -> u64 {
        self.of.get(key).map_or(0, |(_, more)| *more)
    }

    /// Number of all findings about `key`.
    pub fn all(&self, key: &K) -> u64 {
        self.of.get(key).map_or(0, |(kept, more)| u64::from(*kept) + more)
    }

    /// Iterates over the subjects with findings that are only counted, each with its number of
    /// such findings.
    pub fn counted(&self) -> impl Iterator<Item = (&K, u64)> {
        self.of.iter().map(|(key, (_, more))| (key, *more)).filter(|(_, more)| *more > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_a_number_of_its_own_and_none_has_nothing() {
        let mut kept = Kept::default();
        assert_eq!((0..1_000).filter(|_| kept.takes(1)).count(), KEPT_EACH as usize);
        assert!(kept.takes(2));
        assert_eq!((kept.more(&1), kept.all(&1), kept.more(&2), kept.all(&3)), (900, 1_000, 0, 0));
        assert_eq!(kept.counted().collect::<Vec<_>>(), [(&1, 900)]);
        let many = (10..30_000).flat_map(|file| [file, file]);
        let taken = many.filter(|file| kept.takes(*file)).count();
        assert!(taken < 30_000 - 10 + KEPT_ALL as usize, "{taken}");
        assert!((10..30_000).all(|file| kept.all(&file) == 2 && kept.more(&file) < 2));
    }
}
