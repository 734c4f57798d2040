//! `furrow demo`: a tree of files on an emulated zoned drive, aged, killed under load and checked.
//!
//! Makes the image of a drive with small zones and a file system on it, and copies a tree into it.
//! Compares every byte after a fresh mount, then fills the drive and overwrites files until the
//! file system cleans. Then repeatedly kills the process that serves the file system, with SIGKILL
//! at a random instant under load, and compares the remaining files with every acknowledged fsync.
//! It is a demonstration and a test: any difference ends it with status 1.

mod age;
mod files;
mod host;
mod library;
mod load;
mod plan;
mod progress;
#[cfg(test)]
mod tests;
mod tree;

use crate::show;
use age::Aging;
use anyhow::{Context, bail};
use files::{Files, Mounted};
use furrow_rt::Rng;
use host::{Host, LibraryHost, MountHost, Round, furrow, mount_problem};
use library::Library;
use load::{Load, Report};
use plan::Plan;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tree::Tree;

/// Options of the drive: small zones, striped over eight channels.
const DRIVE: &str = "capacity=4GiB,zone-size=16MiB,channels=8,dies=8,max-active=96,max-open=96";
/// Folder to which the tree is copied.
const COPY: &str = "tree";
/// Number of threads that copy and compare.
const THREADS: usize = 2;
/// Number of threads of the load.
const WRITERS: u32 = 4;
/// Maximum number of bytes per second that the load writes, so that the drive does not run full.
const LOAD_RATE_MAX: u64 = 16 << 20;
/// Aging fills the drive until only this percentage of it is available.
const AGED_AVAILABLE: u64 = 15;
/// The drive counts as aged once this number of superzones was cleaned.
const AGED_VICTIMS: u64 = 8;
/// Folder of the files that aging overwrites.
const AGED: &str = "aged";
/// Minimum and maximum time from the first acknowledged fsync to the kill, in milliseconds.
const KILL_AFTER_MS: (u64, u64) = (200, 3000);

/// Show a tree of files on an emulated zoned drive surviving kill -9
///
/// Makes a drive image, a file system on it, copies DIR, compares every file, ages it until it
/// cleans, then kills the daemon under load and checks every fsync that had been acknowledged.
/// Works through a mount, or through the library if there is no FUSE. `make demo` runs it on a
/// source tree.
#[derive(clap::Args)]
pub struct Args {
    /// Tree of files to copy
    #[arg(value_name = "DIR")]
    source: PathBuf,
    /// Folder for the drive's image, the mount point and the journals (up to 5 GiB)
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// Number of kills
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    kills: u32,
    /// Seed of the load and of the instants (default: random)
    #[arg(long)]
    seed: Option<u64>,
    /// Use the library even if a mount would work
    #[arg(long)]
    library: bool,
    /// Options of the mount, as of furrow mount
    #[arg(short = 'o', long, value_name = "OPTIONS", default_value = "rw")]
    options: String,
    /// Print only the verified amounts, as JSON
    #[arg(long)]
    json: bool,
    /// Run the load of one round until killed; the demo starts this process in order to kill it.
    #[arg(long, hide = true, value_name = "ROUND")]
    load: Option<u32>,
}

/// The paths of the demo, all below its work folder.
pub struct Places {
    work: PathBuf,
    image: PathBuf,
    /// The image as a device spec.
    image_name: String,
    mount_point: PathBuf,
    mount_name: String,
    daemon_log: String,
    /// Options of the mount.
    options: String,
}

impl Places {
    fn below(work: &Path, options: &str) -> anyhow::Result<Places> {
        let name = |path: &Path| {
            let name = path.to_str().map(str::to_owned);
            name.with_context(|| format!("{}: must be UTF-8", path.display()))
        };
        let (image, mount_point) = (work.join("disk.zns"), work.join("mnt"));
        Ok(Places {
            image_name: spec_of(&image)?,
            mount_name: name(&mount_point)?,
            daemon_log: name(&work.join("daemon.log"))?,
            options: options.to_owned(),
            work: work.to_owned(),
            image,
            mount_point,
        })
    }

    fn journal(&self, round: u32) -> PathBuf {
        self.work.join(format!("fsyncs-{round}.log"))
    }

    /// Makes the work folder. If it exists, removes what an earlier demo left there, and
    /// nothing else.
    fn clear(&self) -> anyhow::Result<()> {
        fs::create_dir_all(&self.work).with_context(|| self.work.display().to_string())?;
        // An interrupted demo may have left its mount.
        let _ = furrow(&mut io::sink(), &["umount", &self.mount_name]);
        let journals = (1..=u32::MAX).map(|round| self.journal(round)).take_while(|j| j.exists());
        for file in journals.chain([self.image.clone(), PathBuf::from(&self.daemon_log)]) {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| file.display().to_string());
                }
                _ => {}
            }
        }
        match fs::create_dir(&self.mount_point) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(error).with_context(|| self.mount_name.clone())
            }
            _ => Ok(()),
        }
    }
}

/// The device spec of an image: its path, with special characters escaped.
fn spec_of(image: &Path) -> anyhow::Result<String> {
    let path = image.to_str().with_context(|| format!("{}: must be UTF-8", image.display()))?;
    let mut spec = String::with_capacity(path.len());
    for letter in path.chars() {
        if matches!(letter, '\\' | '+' | ',') {
            spec.push('\\');
        }
        spec.push(letter);
    }
    Ok(spec)
}

/// Runs the command.
pub fn run(args: Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let places = Places::below(&args.work, &args.options)?;
    let seed = args.seed.unwrap_or(crate::daemon::config()?.seed);
    if let Some(round) = args.load {
        let library = Library::open(&places.image)?;
        Round { number: round, journal: &places.journal(round), load: &load(seed, round) }
            .run(&library)?;
        bail!("the load ended");
    }
    let source = Mounted::at(args.source.clone());
    let tree = Tree::list(&source).with_context(|| args.source.display().to_string())?;
    if tree.counts().files == 0 {
        bail!("{}: no files to copy", args.source.display());
    }
    places.clear()?;
    let (document, mut nowhere) = (args.json, io::sink());
    let said: &mut dyn Write = if document { &mut nowhere } else { &mut *out };
    writeln!(said, "seed {seed}")?;
    let problem = if args.library { Some("asked to".to_owned()) } else { mount_problem() };
    let child_arguments = |round: u32| {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let (round, seed) = (round.to_string(), seed.to_string());
        let mut words = vec!["demo".to_owned(), text(&args.source), "--work".to_owned()];
        words.extend([text(&args.work), "--library".to_owned(), "--load".to_owned(), round]);
        words.extend(["--seed".to_owned(), seed]);
        words
    };
    let mut host: Box<dyn Host + '_> = match &problem {
        None => Box::new(MountHost::new(&places)),
        Some(why) => {
            writeln!(said, "no mount ({why}): everything goes through the library instead")?;
            Box::new(LibraryHost::new(&places, &child_arguments))
        }
    };
    let demo =
        Demo { places: &places, tree: &tree, seed, kills: args.kills, mounted: problem.is_none() };
    let result = demo.run(&mut *host, said);
    if result.is_err() {
        // Stop the host so that no mount is left behind. If the stop fails too, the first error
        // is returned.
        let _ = host.stop();
    }
    let verified = result?;
    if document {
        show::json(out, &verified)?;
    } else {
        verified.print(out)?;
    }
    Ok(0)
}

/// The results of a demo, as they are printed.
#[derive(serde::Serialize)]
struct Verified {
    version: u32,
    /// Seed of the kills and of the content
    seed: u64,
    /// Whether the files were reached through a mount, not through the library
    mounted: bool,
    /// Number of files and links that were compared, each twice
    files: u64,
    /// Size of the compared files in MiB
    mebibytes: u64,
    /// Number of times that the daemon was killed
    kills: u32,
    /// Number of fsyncs that were answered before a kill
    fsyncs_acknowledged: u64,
    /// Number of fsyncs whose files were checked after a kill, each twice
    fsyncs_checked: u64,
    /// Seconds that the demo took
    seconds: f64,
}

impl Verified {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let facts = [
            ("files verified", format!("{}, twice", self.files)),
            ("bytes verified", format!("{} MiB, twice", self.mebibytes)),
            ("kills", self.kills.to_string()),
            ("fsyncs acknowledged", self.fsyncs_acknowledged.to_string()),
            ("fsyncs checked", format!("{}, twice, none lost", self.fsyncs_checked)),
            ("seconds", format!("{:.0}", self.seconds)),
        ];
        show::facts(out, (0, 20), facts)
    }
}

/// The load of a round.
fn load(seed: u64, round: u32) -> impl for<'b> Fn(&'b dyn Files) -> Load<'b> {
    let folder = format!("load-{round}");
    let plan = Plan { seed: seed ^ u64::from(round).rotate_left(48) };
    move |files| Load {
        files,
        folder: folder.clone(),
        plan,
        writers: WRITERS,
        rate_max: LOAD_RATE_MAX,
    }
}

struct Demo<'a> {
    places: &'a Places,
    tree: &'a Tree<'a>,
    seed: u64,
    kills: u32,
    mounted: bool,
}

impl Demo<'_> {
    fn run(&self, host: &mut dyn Host, out: &mut dyn Write) -> anyhow::Result<Verified> {
        let since = Instant::now();
        let counts = self.tree.counts();
        let image = &self.places.image_name;
        furrow(out, &["device", "create", image, "--option", DRIVE])?;
        furrow(out, &["mkfs", "--label", "demo", image])?;
        host.start()?;
        self.copy(host, out)?;
        self.restart(host)?;
        self.compare(host, out)?;
        let mut aging = Aging::new(AGED, self.seed);
        self.age(&mut aging, host, out)?;
        self.restart(host)?;
        Self::compare_aged(&aging, host, out)?;

        let mut fsyncs = 0;
        for round in 1..=self.kills {
            fsyncs += self.kill(round, host, out)?.fsyncs;
        }
        writeln!(out, "after the last kill, everything once more:")?;
        let mut again = 0;
        for round in 1..=self.kills {
            again += self.check(round, host)?.fsyncs;
        }
        self.compare(host, out)?;
        Self::compare_aged(&aging, host, out)?;
        self.remove_loads(host, out)?;
        host.stop()?;
        furrow(out, &["fsck", image])?;
        furrow(out, &["map", image])?;
        Ok(Verified {
            version: 1,
            seed: self.seed,
            mounted: self.mounted,
            files: counts.files + counts.symlinks + aging.count(),
            mebibytes: (counts.bytes >> 20) + aging.count(),
            kills: self.kills,
            fsyncs_acknowledged: fsyncs,
            fsyncs_checked: again,
            seconds: since.elapsed().as_secs_f64(),
        })
    }

    /// Restarts the file system, so that files are read from the drive and not from a cache.
    fn restart(&self, host: &mut dyn Host) -> anyhow::Result<()> {
        host.stop()?;
        host.start()
    }

    fn print_counters(&self, host: &dyn Host, out: &mut dyn Write) -> anyhow::Result<()> {
        crate::df::print(out, &host.status()?, &self.places.mount_name)?;
        writeln!(out)?;
        Ok(())
    }

    /// Fills the drive and overwrites files until enough superzones were cleaned.
    fn age(
        &self,
        aging: &mut Aging<'_>,
        host: &mut dyn Host,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let space = host.status()?.space;
        let too_much = space.blocks_available.saturating_sub(space.blocks * AGED_AVAILABLE / 100);
        let count = too_much / age::FILE_BLOCKS;
        if count == 0 {
            bail!("the tree leaves no space on the drive to age it: take a smaller one");
        }
        out.flush()?;
        let files = host.files()?;
        let (filled, _) = progress::shown("filled", (count, "files"), |progress| {
            aging.fill(files, count, progress)?;
            host.sync()
        });
        filled?;
        let whole = space.blocks * u64::from(space.block_size);
        let goal = (AGED_VICTIMS, "superzones cleaned");
        let (aged, seconds) = progress::shown("overwriting", goal, |progress| {
            aging.overwrite(files, 2 * whole, progress, || {
                let cleaned = host.status()?.counters.clean_victims;
                Ok((cleaned >= AGED_VICTIMS, cleaned.min(AGED_VICTIMS)))
            })?;
            host.sync()
        });
        aged?;
        writeln!(
            out,
            "aged: filled with {} files of 1 MiB until {AGED_AVAILABLE} % were free, overwrote \
             them in random places for {seconds:.1} s",
            aging.count(),
        )?;
        self.print_counters(host, out)
    }

    fn compare_aged(aging: &Aging<'_>, host: &dyn Host, out: &mut dyn Write) -> anyhow::Result<()> {
        let files = host.files()?;
        out.flush()?;
        let (compared, seconds) =
            progress::shown("compared", (aging.count(), "files"), |progress| {
                aging.compare(files, progress)
            });
        compared?;
        writeln!(out, "every block that was overwritten or moved is right: {seconds:.1} s")?;
        Ok(())
    }

    fn copy(&self, host: &mut dyn Host, out: &mut dyn Write) -> anyhow::Result<()> {
        let counts = self.tree.counts();
        let files = host.files()?;
        files.make_folder(COPY, 0o755).with_context(|| format!("mkdir {COPY}"))?;
        out.flush()?;
        let (copied, seconds) =
            progress::shown("copied", (counts.files + counts.symlinks, "files"), |p| {
                self.tree.copy(files, COPY, THREADS, p)?;
                host.sync()
            });
        copied?;
        writeln!(
            out,
            "copied {} files, {} links and {} folders, {} MiB, and synced: {seconds:.1} s",
            counts.files,
            counts.symlinks,
            counts.folders,
            counts.bytes >> 20,
        )?;
        Ok(())
    }

    fn compare(&self, host: &mut dyn Host, out: &mut dyn Write) -> anyhow::Result<()> {
        let counts = self.tree.counts();
        let files = host.files()?;
        out.flush()?;
        let (compared, seconds) =
            progress::shown("compared", (counts.files + counts.symlinks, "files"), |progress| {
                self.tree.compare(files, COPY, THREADS, progress)
            });
        compared?;
        writeln!(out, "every file is as it was copied: {seconds:.1} s")?;
        Ok(())
    }

    /// Removes the files of the loads, so that whole zones are free again, and shows the counters.
    fn remove_loads(&self, host: &dyn Host, out: &mut dyn Write) -> anyhow::Result<()> {
        let files = host.files()?;
        let mut removed = 0;
        for round in 1..=self.kills {
            let folder = load(self.seed, round)(files).folder;
            for writer in files.list(&folder)? {
                for name in files.list(&format!("{folder}/{writer}"))? {
                    files.remove(&format!("{folder}/{writer}/{name}"))?;
                    removed += 1;
                }
            }
        }
        host.sync()?;
        writeln!(out, "removed the {removed} files of the loads, and synced")?;
        self.print_counters(host, out)
    }

    /// Kills the process once under load, and checks the files that are left.
    fn kill(&self, round: u32, host: &mut dyn Host, out: &mut dyn Write) -> anyhow::Result<Report> {
        let journal = self.places.journal(round);
        let load = load(self.seed, round);
        let folder = load(host.files()?).folder;
        host.files()?.make_folder(&folder, 0o755).with_context(|| format!("mkdir {folder}"))?;
        let (least, most) = KILL_AFTER_MS;
        let mut rng = Rng::new(self.seed.wrapping_add(u64::from(round)));
        let after = Duration::from_millis(least + rng.below(most - least));
        host.kill_under_load(&Round { number: round, journal: &journal, load: &load }, after)?;
        let since = Instant::now();
        host.start().context("after the kill")?;
        let recovered = since.elapsed().as_secs_f64();
        let report = self.check(round, host)?;
        let Report { fsyncs, files, unsynced_files, blocks, .. } = report;
        writeln!(
            out,
            "kill {round} of {}, {} ms into the load: usable again after {recovered:.2} s; \
             {fsyncs} fsyncs acknowledged, all kept ({files} files, {blocks} blocks; \
             files never fsynced: {unsynced_files})",
            self.kills,
            after.as_millis(),
        )?;
        out.flush()?;
        Ok(report)
    }

    /// Compares the folder of a round with its journal.
    fn check(&self, round: u32, host: &dyn Host) -> anyhow::Result<Report> {
        let path = self.places.journal(round);
        let journal = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let report = load(self.seed, round)(host.files()?).check(&journal)?;
        if let Some(first) = report.problems.first() {
            bail!(
                "{} files differ from what was fsynced; the first: {first}",
                report.problems.len()
            );
        }
        Ok(report)
    }
}
