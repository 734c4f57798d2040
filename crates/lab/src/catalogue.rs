//! Claims and everything a claim is tried with, as data.
//!
//! The data are the files of `data`: setup (devices, profiles, hosts, workloads) and claims;
//! `docs/research/lab-data.md` explains how to write them. This module reads them, checks them
//! (every name that a claim uses exists, every scenario resolves at both sizes) and turns them into
//! [`Point`]s: scenarios whose names are all resolved.
//!
//! Not here: running the scenarios, and the resulting figures.

mod claim;
mod data;
mod headline;
mod published;
mod variant;
mod verdict;

pub use claim::elsewhere;
pub use claim::{Claim, Figure, Good, Paper, Relation, Series, SeriesPoint, Take, Trial};
pub use headline::Headline;
pub use variant::Variant;
pub use verdict::Verdict;

use crate::array::Array;
use crate::host::Host;
use crate::policy::{Policy, StorePolicy};
use crate::recorded::Replayed;
use crate::scenario::Traces;
use crate::text;
use crate::workload::Workload;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use claim::label;
use data::{Data, File};
use furrow_emu::timing::quantity::Bytes;
use furrow_zone::DeviceSpec;
use furrow_zone::spec::Timing;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use toml::{Table, Value};

/// The scale at which a claim is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// Small enough to be run every day: takes seconds.
    Scaled,
    /// As published, or practically the same.
    Full,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Size::Scaled => "scaled",
            Size::Full => "full",
        })
    }
}

/// A source of claims.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Title of the work.
    pub title: String,
    /// At most three sentences for the page: what the table of the headlines does not say.
    #[serde(default)]
    pub holds: Vec<String>,
    /// Whether its claims run in real time and not in virtual time.
    #[serde(default)]
    pub real_time: bool,
    /// Names of variants with other plausible values for what the work leaves open. If a claim has
    /// kept figures in these variants, the pages show the worst verdict of the normal run and
    /// these variants.
    #[serde(default)]
    pub plausible: Vec<String>,
}

/// A drive.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The drive's device spec.
    pub spec: String,
    /// Options to add to the drive's spec at the scaled size.
    #[serde(default)]
    pub scaled: Option<String>,
    /// Description of the drive.
    pub about: String,
}

/// The target of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The drive itself.
    None,
    /// The file system.
    Fs,
    /// A model of files spread over a few zones, metadata in place on a second drive: XFS.
    Spread,
    /// The RAID volume, on several drives of the same kind.
    Raid,
    /// The file store, which replays recorded runs.
    Store,
}

/// An engine and its policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The engine.
    pub engine: Engine,
    /// Description of the profile.
    pub about: String,
    /// The engine's policies.
    #[serde(default)]
    pub policy: Policy,
    /// For the RAID volume: the array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<Array>,
    /// For the file store: the options with which it is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StorePolicy>,
}

/// A complete scenario: workload, drive, engine and host. With a seed it is a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Device spec.
    pub device: String,
    /// The engine and its policies.
    pub profile: Profile,
    /// The host.
    pub host: Host,
    /// The workload.
    pub workload: Workload,
}

impl Point {
    /// The point as text: two points have the same text if and only if they are equal.
    pub fn canonical(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| format!("{self:?}"))
    }
}

/// All data, checked.
#[derive(Clone, Debug)]
pub struct Catalogue {
    /// Sources of claims by name.
    pub sources: BTreeMap<String, Source>,
    /// Drives by name.
    pub devices: BTreeMap<String, Device>,
    /// Profiles by name.
    pub profiles: BTreeMap<String, Profile>,
    /// Hosts by name.
    pub hosts: BTreeMap<String, Host>,
    /// Workloads by name: fields of [`Workload`], and tables `scaled` and `full` that replace some
    /// of them.
    workloads: BTreeMap<String, Table>,
    /// Claims, in the order of the file.
    pub claims: Vec<Claim>,
    /// Headlines of the papers, in the order of the file.
    pub headlines: Vec<Headline>,
    /// Variants that show what figures depend on.
    pub variants: Vec<Variant>,
    /// The recordings that claims replay.
    pub traces: Traces,
    /// The differences from the built-in data, if there are any.
    pub changed: Option<Changed>,
    /// The file that defines each entry, by kind and name.
    places: BTreeMap<(&'static str, String), String>,
}

/// Data that differ from those that the program was built with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Changed {
    /// The directory that the data are from.
    pub directory: String,
    /// The differences, one line each.
    pub differences: Vec<String>,
}

impl Changed {
    /// Maximum number of differences that text output lists.
    const LISTED: usize = 20;

    /// The differences, at most [`Changed::LISTED`] of them.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> =
            self.differences.iter().take(Changed::LISTED).cloned().collect();
        let rest = self.differences.len() - lines.len();
        if rest > 0 {
            lines.push(format!("and {rest} more"));
        }
        lines
    }
}

/// A file with parts of the setup. Each file may have any of the parts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetupFile {
    version: Option<u32>,
    #[serde(default)]
    source: BTreeMap<String, Source>,
    #[serde(default)]
    device: BTreeMap<String, Device>,
    #[serde(default)]
    profile: BTreeMap<String, Profile>,
    #[serde(default)]
    host: BTreeMap<String, Host>,
    #[serde(default)]
    workload: BTreeMap<String, Table>,
    #[serde(default)]
    variant: Vec<Variant>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimsFile {
    version: Option<u32>,
    #[serde(default)]
    claim: Vec<Claim>,
    #[serde(default)]
    headline: Vec<Headline>,
}

/// Checks the version of a file. The first file of its kind must state a version; the others may.
fn check_version(file: &File, version: Option<u32>, first: bool) -> Result<()> {
    let name = &file.name;
    match version {
        Some(1) => Ok(()),
        Some(version) => bail!("{name}: version {version}, but this program reads version 1"),
        None if first => bail!("{name}: no version: add `version = 1` at the top"),
        None => Ok(()),
    }
}

impl Catalogue {
    /// The data that this program was built with.
    ///
    /// # Errors
    /// If the data contradict themselves; a test checks that they do not.
    pub fn built_in() -> Result<Catalogue> {
        Catalogue::load(&Data::built_in())
    }

    /// The data that this program was built with, with files of `directory` that replace them or
    /// are read in addition.
    ///
    /// # Errors
    /// If a file is wrong: the error names the file and the first mistake in it.
    pub fn with(directory: &Path) -> Result<Catalogue> {
        let data = Data::of(directory)?;
        let catalogue = Catalogue::load(&data)?;
        let (directory, differences) = (directory.display().to_string(), data.differences()?);
        let changed = Changed { directory, differences };
        Ok(Catalogue { changed: Some(changed).filter(|c| !c.differences.is_empty()), ..catalogue })
    }

    /// Reads data from the text of two files.
    ///
    /// # Errors
    /// If a text is wrong: the error names the file and the first mistake in it.
    pub fn parse(setup: &str, claims: &str) -> Result<Catalogue> {
        let file = |name, text: &str| vec![File::new(name, text.to_owned())];
        let (setup, claims) = (file("setup.toml", setup), file("claims.toml", claims));
        Catalogue::load(&Data { setup, claims })
    }

    fn load(data: &Data) -> Result<Catalogue> {
        let mut all = Catalogue {
            sources: BTreeMap::new(),
            devices: BTreeMap::new(),
            profiles: BTreeMap::new(),
            hosts: BTreeMap::new(),
            workloads: BTreeMap::new(),
            claims: Vec::new(),
            headlines: Vec::new(),
            variants: Vec::new(),
            traces: Traces::default(),
            changed: None,
            places: BTreeMap::new(),
        };
        for (at, file) in data.setup.iter().enumerate() {
            let setup: SetupFile = file.read()?;
            check_version(file, setup.version, at == 0)?;
            let places = &mut all.places;
            add(places, file, "source", &mut all.sources, setup.source)?;
            add(places, file, "device", &mut all.devices, setup.device)?;
            add(places, file, "profile", &mut all.profiles, setup.profile)?;
            add(places, file, "host", &mut all.hosts, setup.host)?;
            add(places, file, "workload", &mut all.workloads, setup.workload)?;
            for variant in setup.variant {
                place(places, file, "variant", &variant.name)?;
                all.variants.push(variant);
            }
        }
        for (at, file) in data.claims.iter().enumerate() {
            let claims: ClaimsFile = file.read()?;
            check_version(file, claims.version, at == 0)?;
            for claim in claims.claim {
                place(&mut all.places, file, "claim", &claim.id)?;
                all.claims.push(claim);
            }
            for headline in claims.headline {
                place(&mut all.places, file, "headline", &headline.says)?;
                all.headlines.push(headline);
            }
        }
        all.check()?;
        Ok(all)
    }

    /// The file, kind and name of an entry, for errors.
    fn within(&self, kind: &'static str, name: &str) -> String {
        let file = self.places.get(&(kind, name.to_owned()));
        format!("{}: {kind} {name}", file.map_or("no file", String::as_str))
    }

    fn check(&self) -> Result<()> {
        for (name, device) in &self.devices {
            check_device(&device.spec).with_context(|| self.within("device", name))?;
        }
        for (name, profile) in &self.profiles {
            check_profile(profile).with_context(|| self.within("profile", name))?;
        }
        for variant in &self.variants {
            for device in variant.applied(self).devices.values() {
                check_device(&device.spec)
                    .with_context(|| self.within("variant", &variant.name))?;
            }
        }
        for (name, source) in &self.sources {
            let known = |name: &&String| self.variants.iter().any(|v| v.name == **name);
            if let Some(unknown) = source.plausible.iter().find(|name| !known(name)) {
                bail!("{}: no variant is called `{unknown}`", self.within("source", name));
            }
        }
        for claim in &self.claims {
            self.check_claim(claim).with_context(|| self.within("claim", &claim.id))?;
        }
        for headline in &self.headlines {
            headline.check(self).with_context(|| self.within("headline", &headline.says))?;
        }
        Ok(())
    }

    /// The options that reproduce a run of `claim` elsewhere, each preceded by a space.
    pub fn options_of(&self, claim: &Claim) -> String {
        let mut options = String::new();
        if let Some(changed) = &self.changed {
            options.push_str(&format!(" --data {}", text::word(&changed.directory)));
        }
        if let Some(trace) = self.traces.volume.as_ref().filter(|_| claim.replays) {
            options.push_str(&format!(" --trace {}", text::word(&trace.name.file)));
        }
        if !claim.recorded.is_empty() {
            options.push_str(" --recorded DIR");
        }
        options
    }

    fn check_claim(&self, claim: &Claim) -> Result<()> {
        find(&self.sources, "source", &claim.source)?;
        ensure!(!claim.figures.is_empty(), "no figures");
        claim.check()?;
        for (id, name) in claim.moved.iter().filter_map(|name| elsewhere(name)) {
            if self.variants.iter().any(|variant| variant.name == id) {
                let found = claim.figures.iter().any(|figure| figure.name == name);
                ensure!(found, "`moved`: no figure is called `{name}`");
                continue;
            }
            let other = self.claim(id).with_context(|| format!("`moved`: no claim `{id}`"))?;
            let found = other.figures.iter().any(|f| f.name == name && f.is_trial());
            ensure!(found, "`moved`: no figure of a trial of {id} is called `{name}`");
        }
        for name in claim.figures.iter().filter_map(|figure| figure.same_as.as_deref()) {
            let (id, name) = elsewhere(name).unwrap_or((&*claim.id, name));
            let other = self.claim(id).with_context(|| format!("`same_as`: no claim `{id}`"))?;
            let found = other.figures.iter().any(|f| f.name == name && f.same_as.is_none());
            ensure!(found, "`same_as`: no figure of its own of {id} is called `{name}`");
        }
        for size in [Size::Scaled, Size::Full] {
            let trials = self.trials(claim, size)?;
            let points = || trials.iter().flat_map(|series| &series.points);
            let recorded = |point: &SeriesPoint| point.point.workload.recorded.clone();
            let used: BTreeSet<String> = points().filter_map(recorded).map(|run| run.run).collect();
            ensure!(
                used.iter().eq(claim.recorded.iter().collect::<BTreeSet<_>>()),
                "`recorded` is {:?}, its runs say {used:?}",
                claim.recorded
            );
            let replays = points().any(|point| !point.point.workload.replay.is_none());
            ensure!(replays == claim.replays, "`replays` is {}, its runs say otherwise", !replays);
        }
        Ok(())
    }

    /// True if `claim` can be run with the given recordings.
    pub fn has_all(&self, claim: &Claim) -> bool {
        let Traces { volume, recorded } = &self.traces;
        claim.is_runnable()
            && (!claim.replays || volume.is_some())
            && claim.recorded.iter().all(|name| recorded.contains_key(name))
    }

    /// The claim called `id`, in any case.
    pub fn claim(&self, id: &str) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.id.eq_ignore_ascii_case(id))
    }

    /// The runs and series of `claim` at `size`, with all names resolved. Empty if the claim cannot
    /// be run yet.
    ///
    /// # Errors
    /// If a name does not exist or a scenario is inconsistent.
    pub fn trials(&self, claim: &Claim, size: Size) -> Result<Vec<Series>> {
        let mut all = Vec::new();
        for trial in &claim.runs {
            let within = || format!("run `{}`", trial.name);
            all.push(self.series(claim, trial, size).with_context(within)?);
        }
        Ok(all)
    }

    fn series(&self, claim: &Claim, trial: &Trial, size: Size) -> Result<Series> {
        let mut points = Vec::new();
        match &trial.over {
            None => {
                let point = self.point(claim, trial, size, None)?;
                points.push(SeriesPoint { x: 0.0, label: trial.name.clone(), point });
            }
            Some(over) => {
                ensure!(!trial.values.is_empty(), "no `values` of `{over}`");
                for value in &trial.values {
                    let point = self.point(claim, trial, size, Some((over, value)))?;
                    points.push(SeriesPoint { x: position(value)?, label: label(value), point });
                }
            }
        }
        Ok(Series { name: trial.name.clone(), over: trial.over.clone(), points })
    }

    fn point(
        &self,
        claim: &Claim,
        trial: &Trial,
        size: Size,
        swept: Option<(&String, &Value)>,
    ) -> Result<Point> {
        let setup = claim.setup.as_ref();
        let name = |what: &str, own: &Option<String>, common: Option<&String>| {
            let name = own.as_ref().or(common).cloned();
            name.ok_or_else(|| anyhow!("no {what} is named"))
        };
        let device = name("device", &trial.device, setup.map(|s| &s.device))?;
        let profile = name("profile", &trial.profile, setup.map(|s| &s.profile))?;
        let host = name("host", &trial.host, setup.map(|s| &s.host))?;
        let workload = name("workload", &trial.workload, setup.map(|s| &s.workload))?;
        let device = find(&self.devices, "device", &device)?;
        let mut spec = device.spec.clone();
        if let Some(options) = device.scaled.as_ref().filter(|_| size == Size::Scaled) {
            spec = format!("{spec},{options}");
        }
        if let Some(options) = &trial.device_with {
            spec = format!("{spec},{options}");
        }
        check_device(&spec)?;
        let mut profile = find(&self.profiles, "profile", &profile)?.clone();
        let mut table = find(&self.workloads, "workload", &workload)?.clone();
        let (scaled, full) = (table.remove("scaled"), table.remove("full"));
        let sized = match size {
            Size::Scaled => scaled,
            Size::Full => full,
        };
        for (name, value) in sized.iter().filter_map(Value::as_table).flatten().chain(&trial.with) {
            table.insert(name.clone(), value.clone());
        }
        let mut array = trial.array.clone();
        if let Some((field, value)) = swept {
            match field.strip_prefix("array.") {
                Some(field) => array.insert(field.to_owned(), value.clone()),
                None => table.insert(field.clone(), value.clone()),
            };
        }
        if !array.is_empty() {
            profile.array = Some(laid_over(profile.array.as_ref(), array)?);
            check_profile(&profile)?;
        }
        let within = || format!("workload {workload}");
        let workload: Workload = table.try_into().with_context(within)?;
        let workload = Workload {
            recorded: workload.recorded.clone().map(|run| Replayed {
                name: self.traces.recorded.get(&run.run).map(|found| found.name.clone()),
                ..run
            }),
            trace: match (&self.traces.volume, workload.replay.is_none()) {
                (Some(trace), false) => Some(trace.name.clone()),
                _ => None,
            },
            ..workload
        };
        workload.check().map_err(|what| anyhow!(what)).with_context(within)?;
        Ok(Point {
            device: spec,
            profile,
            host: find(&self.hosts, "host", &host)?.clone(),
            workload,
        })
    }
}

/// Remembers the file of an entry.
fn place(
    places: &mut BTreeMap<(&'static str, String), String>,
    file: &File,
    kind: &'static str,
    name: &str,
) -> Result<()> {
    match places.insert((kind, name.to_owned()), file.name.clone()) {
        None => Ok(()),
        Some(other) if other == file.name => bail!("{other}: {kind} {name}: twice"),
        Some(other) => bail!("{}: {kind} {name}: {other} has it, too", file.name),
    }
}

/// Adds the entries of a file to those of other files.
fn add<T>(
    places: &mut BTreeMap<(&'static str, String), String>,
    file: &File,
    kind: &'static str,
    all: &mut BTreeMap<String, T>,
    own: BTreeMap<String, T>,
) -> Result<()> {
    for (name, entry) in own {
        place(places, file, kind, &name)?;
        all.insert(name, entry);
    }
    Ok(())
}

/// Returns `array` with some of its fields changed.
fn laid_over(array: Option<&Array>, changed: Table) -> Result<Array> {
    let array = array.context("fields of an array, but the profile has none")?;
    let mut table = Table::try_from(array).context("array")?;
    table.extend(changed);
    table.try_into().context("array")
}

fn find<'a, T>(all: &'a BTreeMap<String, T>, what: &str, name: &str) -> Result<&'a T> {
    let known = || all.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    all.get(name).ok_or_else(|| anyhow!("no {what} is called `{name}`: there are {}", known()))
}

/// Checks that `spec` names a drive with simulated time: on another drive, virtual time would
/// stand still.
pub(crate) fn check_device(spec: &str) -> Result<()> {
    match spec.parse::<DeviceSpec>()? {
        DeviceSpec::Memory(memory) if memory.run.timing == Timing::Virtual => Ok(()),
        DeviceSpec::Memory(_) => bail!("`{spec}` is not timed: add timing=virtual"),
        _ => bail!("`{spec}` is not a drive in memory: scenarios run in virtual time"),
    }
}

fn check_profile(profile: &Profile) -> Result<()> {
    if profile.engine == Engine::None {
        ensure!(profile.policy == Policy::default(), "no engine, but policies of one");
    }
    let raid = profile.engine == Engine::Raid;
    ensure!(raid == profile.array.is_some(), "an `array` is that of `raid`, which needs one");
    if let Some(array) = &profile.array {
        ensure!(profile.policy == Policy::default(), "an array has no policies of files");
        array.check().map_err(|what| anyhow!(what)).context("array")?;
    }
    let store = profile.engine == Engine::Store;
    ensure!(store == profile.store.is_some(), "a `store` is that of `store`, which needs one");
    if let Some(policy) = &profile.store {
        ensure!(profile.policy == Policy::default(), "a store has policies of its own");
        policy.options().context("store")?;
    }
    let own = [profile.policy.data_zones.is_some(), profile.policy.journal.is_some()];
    let spread = profile.engine == Engine::Spread;
    ensure!(
        own == [spread; 2],
        "`data_zones` and `journal` are those of `spread`, which needs both"
    );
    if let Some(journal) = &profile.policy.journal {
        check_device(journal).context("journal")?;
        let rest = Policy { data_zones: None, journal: None, ..profile.policy.clone() };
        ensure!(
            rest == Policy::default(),
            "`spread` has no policies but `data_zones` and `journal`"
        );
    }
    profile.policy.check().map_err(|what| anyhow!(what))
}

/// The position of a series' value on the axis.
fn position(value: &Value) -> Result<f64> {
    match value {
        Value::Integer(number) => Ok(*number as f64),
        Value::Float(number) => Ok(*number),
        Value::String(text) => {
            // For open segments, such as `1+3`, the first number counts.
            let text = text.split_once('+').map_or(text.as_str(), |(small, _)| small);
            let bytes: Result<Bytes, String> = text.parse();
            Ok(bytes.map_err(|what| anyhow!(what))?.0 as f64)
        }
        value => bail!("`{}` is neither a number nor an amount of bytes", label(value)),
    }
}

#[cfg(test)]
mod tests;
