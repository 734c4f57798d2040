//! Results kept between runs, by commit, scenario and seed.
//!
//! A file holds one run: `DIR/COMMIT/HASH-SEED.json`, where the hash is that of the scenario as
//! text. The file holds the scenario itself, too, so two scenarios with the same hash do no harm. A
//! build that differs from its commit takes nothing from the cache and puts nothing into it. A file
//! that cannot be read, is of another version or describes another run is not a result: the run is
//! done again and the file replaced.

use crate::catalogue::Point;
use crate::measure::Measures;
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Version of the files.
const VERSION: u32 = 2;

/// The source that this program was built from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Build {
    /// The commit in short; empty if unknown.
    pub commit: String,
    /// Whether the source differs from the commit.
    pub changed: bool,
}

impl Build {
    /// The build of this program.
    pub fn this() -> Build {
        let commit = env!("FURROW_COMMIT").to_owned();
        let changed = commit.is_empty() || env!("FURROW_CHANGED") != "0";
        Build { commit, changed }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let commit = if self.commit.is_empty() { "unknown commit" } else { &self.commit };
        write!(f, "{commit}{}", if self.changed { ", changed since" } else { "" })
    }
}

/// A store of results.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The folder of the results; `None` if nothing is kept.
    folder: Option<PathBuf>,
    build: Build,
}

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    commit: String,
    point: Point,
    seed: u64,
    /// Time that the run took on its host. It is not part of the result.
    host_seconds: f64,
    measures: Measures,
}

impl Cache {
    /// The results of `build` below `folder`.
    pub fn new(folder: &Path, build: Build) -> Cache {
        let usable = !build.changed && !build.commit.is_empty();
        Cache { folder: usable.then(|| folder.join(&build.commit)), build }
    }

    /// A cache that keeps nothing.
    pub fn none(build: Build) -> Cache {
        Cache { folder: None, build }
    }

    /// The build whose results the cache holds.
    pub fn build(&self) -> &Build {
        &self.build
    }

    fn path(&self, point: &Point, seed: u64) -> Option<PathBuf> {
        // FNV-1a: a collision does no harm, since the file holds the scenario.
        let hash = point.canonical().bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Some(self.folder.as_ref()?.join(format!("{hash:016x}-{seed}.json")))
    }

    /// The stored result of `point` with `seed`, if there is one.
    pub fn get(&self, point: &Point, seed: u64) -> Option<Measures> {
        let text = fs::read(self.path(point, seed)?).ok()?;
        let file: File = serde_json::from_slice(&text).ok()?;
        let same = file.version == VERSION
            && file.commit == self.build.commit
            && file.point == *point
            && file.seed == seed;
        same.then_some(file.measures)
    }

    /// Stores a result.
    ///
    /// # Errors
    /// If the file cannot be written; the message has its name.
    pub fn put(
        &self,
        point: &Point,
        seed: u64,
        host_seconds: f64,
        measures: &Measures,
    ) -> Result<()> {
        let Some(path) = self.path(point, seed) else { return Ok(()) };
        let file = File {
            version: VERSION,
            commit: self.build.commit.clone(),
            point: point.clone(),
            seed,
            host_seconds,
            measures: measures.clone(),
        };
        let text = serde_json::to_vec_pretty(&file)?;
        // A rename lets a simultaneous reader find the whole file or nothing.
        let partial = path.with_extension(format!("{}.partial", std::process::id()));
        let write = || -> std::io::Result<()> {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&partial, &text)?;
            fs::rename(&partial, &path)
        };
        write().with_context(|| format!("cannot keep a result in {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Catalogue, Size};

    fn points() -> (Point, Point) {
        let catalogue = Catalogue::built_in().unwrap();
        let claim = catalogue.claim("Z-chan").unwrap();
        let series = catalogue.trials(claim, Size::Scaled).unwrap();
        (series[0].points[0].point.clone(), series[0].points[1].point.clone())
    }

    fn measures() -> Measures {
        crate::measure::Meter::new(furrow_rt::Nanos(0), furrow_rt::Nanos(7)).measures(None)
    }

    fn build(commit: &str, changed: bool) -> Build {
        Build { commit: commit.to_owned(), changed }
    }

    /// A folder that is removed at the end of the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("furrow-lab-cache-{name}-{}", std::process::id());
            Folder(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_result_is_found_by_its_commit_point_and_seed_alone() {
        let folder = Folder::new("found");
        let (point, other) = points();
        let cache = Cache::new(&folder.0, build("abc", false));
        assert_eq!(cache.get(&point, 1), None);
        cache.put(&point, 1, 0.5, &measures()).unwrap();
        assert_eq!(cache.get(&point, 1), Some(measures()));
        assert_eq!(cache.get(&point, 2), None);
        assert_eq!(cache.get(&other, 1), None);
        assert_eq!(Cache::new(&folder.0, build("abd", false)).get(&point, 1), None);
    }

    #[test]
    fn a_changed_tree_takes_nothing_and_leaves_nothing() {
        let folder = Folder::new("changed");
        let (point, other) = points();
        Cache::new(&folder.0, build("abc", false)).put(&point, 1, 0.5, &measures()).unwrap();
        for odd in [build("abc", true), build("", false)] {
            let cache = Cache::new(&folder.0, odd);
            assert_eq!(cache.folder, None);
            assert_eq!(cache.get(&point, 1), None);
            cache.put(&other, 1, 0.5, &measures()).unwrap();
        }
        assert_eq!(Cache::new(&folder.0, build("abc", false)).get(&other, 1), None);
        assert_eq!(fs::read_dir(folder.0.join("abc")).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_or_one_about_something_else_is_no_result() {
        let folder = Folder::new("damaged");
        let (point, other) = points();
        let cache = Cache::new(&folder.0, build("abc", false));
        cache.put(&point, 1, 0.5, &measures()).unwrap();
        let path = cache.path(&point, 1).unwrap();
        let good = fs::read_to_string(&path).unwrap();
        for bad in [&good[..good.len() / 2], "", &good.replace("\"version\": 2", "\"version\": 9")]
        {
            fs::write(&path, bad).unwrap();
            assert_eq!(cache.get(&point, 1), None, "{bad}");
        }
        cache.put(&other, 1, 0.5, &measures()).unwrap();
        fs::copy(cache.path(&other, 1).unwrap(), &path).unwrap();
        assert_eq!(cache.get(&point, 1), None);
        cache.put(&point, 1, 0.5, &measures()).unwrap();
        assert_eq!(cache.get(&point, 1), Some(measures()));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let cache = Cache::new(Path::new("/dev/null"), build("abc", false));
        let error = cache.put(&points().0, 1, 0.5, &measures()).unwrap_err();
        assert!(format!("{error:#}").contains("/dev/null/abc/"), "{error:#}");
    }
}
