//! `furrow-lab list`, `run`, `report`: published claims, tried on the timed drive.
//!
//! The library has the claims, the scenarios and the computation of figures; this module calls it,
//! and prints the results or writes them to a file.

use crate::{collection, headlines, pages, print};
use anyhow::{Context as _, bail};
use furrow_console::show;
use furrow_lab::cache::{Build, Cache};
use furrow_lab::catalogue::{Catalogue, Claim, Size};
use furrow_lab::document::Document;
use furrow_lab::runner::{self, Order, Outcome};
use furrow_lab::trace::Trace;
use furrow_zone::words;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// The commands about claims.
#[derive(clap::Subcommand)]
pub enum Command {
    /// List the claims: source, what they say, whether they can be run, what is in the cache
    List(List),
    /// Run claims and compare with what was published
    Run(Run),
    /// Run all claims that are not in the cache, and write a report
    Report(Report),
    /// Run claims and keep their figures in docs/research/data/claims.jsonl, for the pages and the
    /// gate
    Keep(pages::Keep),
    /// Run the claims that give the papers' headlines, and print these beside our numbers
    Headlines(headlines::Headlines),
    /// Write the pages about claims from the figures that are kept; nothing is run
    Pages(pages::Pages),
    /// Run the claims whose figures may not change unseen, and compare with those that are kept
    Gate(pages::Gate),
    /// Compute the least that any garbage collector has to copy of a trace, by the space that it
    /// may use
    Bound(collection::Bound),
    /// Write pictures and tables of what collectors copied (docs/research/collection.md)
    Collection(collection::Collection),
}

#[derive(clap::Args)]
pub struct List {
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    extent: Extent,
    #[command(flatten)]
    kept: Kept,
    /// Only claims that can be run
    #[arg(long)]
    runnable: bool,
    /// Only claims of a place in a paper: "z-lfs 10" is figure 10, "z-lfs table 2" a table,
    /// "z-lfs abstract" the abstract, "z-lfs" the whole paper
    #[arg(long, value_name = "PLACE")]
    figure: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub struct Run {
    /// Claims to run, by ID
    #[arg(value_name = "ID", required_unless_present = "all")]
    ids: Vec<String>,
    /// All claims that can be run
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    #[command(flatten)]
    common: Common,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub struct Report {
    /// The file to write, HTML that needs no other
    #[arg(short, long, value_name = "FILE", default_value = "furrow-report.html")]
    output: PathBuf,
    /// Only these claims
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    common: Common,
}

// Each struct below is flattened into a command's arguments. A documentation comment on it would
// replace the command's own.

// The claims and their setup.
#[derive(clap::Args)]
pub struct Source {
    /// Take files of this directory in place of the built-in ones of their name: setup.toml,
    /// setup-hzfs.toml, setup-zapraid.toml, setup-recorded.toml, claims.toml, claims-hzfs.toml,
    /// claims-zapraid.toml, claims-recorded.toml, claims-headlines.toml; a setup-NAME.toml or
    /// claims-NAME.toml is read in addition
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

// The claims and their setup, and the recordings to replay.
#[derive(clap::Args)]
pub struct Data {
    #[command(flatten)]
    source: Source,
    /// The trace that claims about traces replay: VMware's vscsi records, or lines of device,
    /// opcode, offset, length, timestamp (default: these claims are left out)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Directory of the recorded runs (NAME.run, made by scripts/recorded.sh) that claims about
    /// engines on files replay (default: these claims are left out)
    #[arg(long, value_name = "DIR")]
    recorded: Option<PathBuf>,
}

// The size of a claim's runs, and their seeds.
#[derive(clap::Args)]
pub struct Extent {
    /// The small size, seconds for each claim (this is the default)
    #[arg(long, conflicts_with = "full")]
    scaled: bool,
    /// The published size, or practically the same
    #[arg(long)]
    full: bool,
    /// Seeds 1 to N
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
}

// The number of simultaneous runs, and the place of their results.
#[derive(clap::Args)]
pub struct Work {
    /// Number of simultaneous runs (default: one per processor)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    #[command(flatten)]
    kept: Kept,
    /// Run everything again and keep nothing
    #[arg(long, conflicts_with = "cache")]
    no_cache: bool,
}

// The place of the results.
#[derive(clap::Args)]
pub struct Kept {
    /// Directory of the results (default: one in the user's cache)
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

// The arguments shared by all commands that run claims.
#[derive(clap::Args)]
pub struct Common {
    #[command(flatten)]
    pub data: Data,
    #[command(flatten)]
    pub extent: Extent,
    #[command(flatten)]
    pub work: Work,
}

impl Source {
    /// Reads the catalogue.
    pub fn catalogue(&self) -> anyhow::Result<Catalogue> {
        match &self.data {
            None => Catalogue::built_in(),
            Some(directory) => Catalogue::with(directory),
        }
    }
}

impl Data {
    /// Reads the catalogue, and the recordings that are named.
    pub fn catalogue(&self) -> anyhow::Result<Catalogue> {
        let mut catalogue = self.source.catalogue()?;
        if let Some(trace) = &self.trace {
            catalogue.traces.volume = Some(Arc::new(Trace::read(trace)?));
        }
        if let Some(recorded) = &self.recorded {
            catalogue.traces.recorded = furrow_lab::recorded::directory(recorded)?;
        }
        Ok(catalogue)
    }
}

impl Extent {
    /// The order, without a limit of threads.
    fn order(&self, catalogue: &Catalogue) -> Order {
        let size = if self.full { Size::Full } else { Size::Scaled };
        Order { traces: catalogue.traces.clone(), ..Order::new(size, self.seeds) }
    }
}

impl Work {
    /// The number of runs at once: the limit if there is one, otherwise `usual`.
    pub fn threads(&self, usual: usize) -> usize {
        self.jobs.map_or(usual, usize::from)
    }

    pub fn cache(&self) -> Cache {
        if self.no_cache { Cache::none(Build::this()) } else { self.kept.cache() }
    }
}

impl Kept {
    fn cache(&self) -> Cache {
        match self.folder() {
            Some(folder) => Cache::new(&folder, Build::this()),
            None => Cache::none(Build::this()),
        }
    }

    /// `--cache`, or a folder by the rules of freedesktop.org; `None` for a user without a home.
    fn folder(&self) -> Option<PathBuf> {
        let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let users = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
        self.cache.clone().or_else(|| Some(users()?.join("furrow").join("lab")))
    }
}

impl Common {
    pub fn order(&self, catalogue: &Catalogue) -> Order {
        let order = self.extent.order(catalogue);
        Order { threads: self.work.threads(order.threads), ..order }
    }

    pub fn cache(&self) -> Cache {
        self.work.cache()
    }
}

/// Runs the command.
pub fn run(command: &Command, out: &mut dyn Write) -> anyhow::Result<u8> {
    let catalogue = match command {
        Command::Bound(bound) => return collection::bound(bound, out),
        Command::Collection(pages) => return collection::collection(pages, out),
        Command::List(list) => list.data.catalogue(),
        Command::Run(run) => run.common.data.catalogue(),
        Command::Report(report) => report.common.data.catalogue(),
        Command::Keep(keep) => keep.common.data.catalogue(),
        Command::Headlines(headlines) => headlines.common.data.catalogue(),
        Command::Pages(pages) => pages.source.catalogue(),
        Command::Gate(gate) => gate.data.catalogue(),
    }?;
    match command {
        Command::List(list) => {
            let claims: Vec<&Claim> = catalogue.claims.iter().collect();
            let claims = match &list.figure {
                Some(place) => catalogue.claims_at(place)?,
                None => claims,
            };
            let claims = claims.into_iter().filter(|c| catalogue.has_all(c) || !list.runnable);
            let (order, cache) = (list.extent.order(&catalogue), list.kept.cache());
            let lines = claims.map(|claim| print::Line::new(&catalogue, claim, &order, &cache));
            let lines: Vec<print::Line> = lines.collect();
            if list.json {
                print::list_json(out, &lines)?
            } else {
                print::list(out, &lines)?
            }
            Ok(0)
        }
        Command::Run(run) => {
            let claims = chosen(&catalogue, &run.ids)?;
            let (order, cache) = (run.common.order(&catalogue), run.common.cache());
            if run.all {
                announce(&catalogue, &claims, &order, &cache)?;
            }
            let outcome = execute(&catalogue, &claims, &order, &cache)?;
            if run.json {
                let document = Document::new(&catalogue, &outcome, &order, cache.build());
                show::json(out, &document)?;
            } else {
                print::outcome(out, &catalogue, &outcome, &order, &cache)?;
            }
            Ok(status(&outcome))
        }
        Command::Report(report) => {
            let claims = chosen(&catalogue, &report.ids)?;
            let (order, cache) = (report.common.order(&catalogue), report.common.cache());
            announce(&catalogue, &claims, &order, &cache)?;
            let outcome = execute(&catalogue, &claims, &order, &cache)?;
            let html = furrow_lab::report::html(&catalogue, &outcome, &order, cache.build());
            std::fs::write(&report.output, &html)
                .with_context(|| format!("cannot write {}", report.output.display()))?;
            print::outcome(out, &catalogue, &outcome, &order, &cache)?;
            writeln!(out, "written: {}", report.output.display())?;
            Ok(status(&outcome))
        }
        Command::Keep(keep) => pages::keep(&catalogue, keep, out),
        Command::Headlines(headlines) => headlines::run(&catalogue, headlines, out),
        Command::Pages(pages) => pages::pages(&catalogue, pages, out),
        Command::Gate(gate) => pages::gate(&catalogue, gate, out),
        // These commands returned above: they need no catalogue.
        Command::Bound(_) | Command::Collection(_) => Ok(0),
    }
}

/// The claims called `ids`; all claims that can be run if `ids` is empty.
pub fn chosen<'a>(catalogue: &'a Catalogue, ids: &[String]) -> anyhow::Result<Vec<&'a Claim>> {
    if ids.is_empty() {
        return Ok(catalogue.claims.iter().filter(|claim| catalogue.has_all(claim)).collect());
    }
    let mut claims: Vec<&Claim> = Vec::new();
    for id in ids {
        let Some(claim) = catalogue.claim(id) else {
            let known = catalogue.claims.iter().map(|claim| &*claim.id);
            bail!("no claim is called '{id}'{}: see 'furrow-lab list'", words::hint(id, known));
        };
        if let Some(needs) = &claim.needs {
            bail!("{} cannot be run yet, it needs {needs}", claim.id);
        }
        if !catalogue.has_all(claim) {
            bail!("{} replays {}", claim.id, claim.lacks());
        }
        if !claims.iter().any(|known| known.id == claim.id) {
            claims.push(claim);
        }
    }
    Ok(claims)
}

/// Announces the runs to come, and their expected duration.
fn announce(
    catalogue: &Catalogue,
    claims: &[&Claim],
    order: &Order,
    cache: &Cache,
) -> anyhow::Result<()> {
    let plan = runner::plan(catalogue, claims, order, cache)?;
    let to_do = plan.runs - plan.cached;
    let takes = match plan.takes.as_secs() {
        _ if to_do == 0 => "nothing is to be run".to_owned(),
        seconds if seconds < 90 => format!("about {} s", seconds.max(1)),
        seconds => format!("about {} min", seconds.div_ceil(60)),
    };
    let text = format!(
        "{} of size {}, {}, {} of them in the cache: {takes} on {} processors; \
         names of claims (furrow-lab list) or fewer --seeds make it shorter",
        show::count(claims.len() as u64, "claim"),
        order.size,
        show::count(plan.runs as u64, "run"),
        plan.cached,
        order.threads
    );
    show::say(&format!("{text}\n"));
    Ok(())
}

pub fn execute<'a>(
    catalogue: &Catalogue,
    claims: &[&'a Claim],
    order: &Order,
    cache: &Cache,
) -> anyhow::Result<Outcome<'a>> {
    let screen = print::Screen::new();
    let outcome = runner::run(catalogue, claims, order, cache, &|progress| screen.show(progress))?;
    screen.end();
    if let Some(why) = &outcome.not_kept {
        crate::complain(why);
    }
    Ok(outcome)
}

/// The exit status: 1 if a run failed. A claim that is not reproduced is a result, not a failure.
pub fn status(outcome: &Outcome<'_>) -> u8 {
    u8::from(outcome.claims.iter().any(|finished| finished.result.is_err()))
}
