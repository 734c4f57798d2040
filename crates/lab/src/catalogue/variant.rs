//! Variants of the laboratory: one thing changed in all hosts or drives, to see how much a claim's
//! figures depend on what nobody published.

use super::{Catalogue, Claim, Engine, Size};
use furrow_emu::timing::quantity::{Bytes, Time};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// One thing that is changed in all runs of a claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// The variant's name, which heads a column.
    pub name: String,
    /// Dirty limit of all hosts; their memory becomes at least twice as much.
    #[serde(default)]
    pub dirty: Option<Bytes>,
    /// Additional time that a client's processor takes for each operation.
    #[serde(default)]
    pub cpu: Option<Time>,
    /// Options of the timing model, by preset of the drive.
    #[serde(default)]
    pub model: BTreeMap<String, String>,
}

impl Variant {
    /// Applies the change to `catalogue`, and keeps only the published figures of each claim and
    /// their runs.
    pub fn applied(&self, catalogue: &Catalogue) -> Catalogue {
        let mut varied = catalogue.clone();
        for host in varied.hosts.values_mut() {
            if let Some(dirty) = self.dirty {
                host.dirty = dirty;
                host.memory = Bytes(host.memory.0.max(2 * dirty.0));
            }
            host.cpu = Time(host.cpu.0 + self.cpu.map_or(0, |cpu| cpu.0));
        }
        for device in varied.devices.values_mut() {
            if let Some(options) = self.options(&device.spec) {
                device.spec = format!("{},{options}", device.spec);
            }
        }
        for claim in &mut varied.claims {
            claim.figures.retain(|figure| figure.paper.is_some() && !figure.fitted);
            let used = claim.figures.iter().flat_map(|figure| [&figure.run, &figure.per]);
            let used: BTreeSet<String> = used.flatten().cloned().collect();
            claim.runs.retain(|run| used.contains(&run.name));
        }
        varied
    }

    /// True if the change affects a run of `claim`. A dirty limit does not affect a volume, which
    /// has no dirty data.
    pub fn concerns(&self, catalogue: &Catalogue, claim: &Claim, size: Size) -> bool {
        let Ok(trials) = catalogue.trials(claim, size) else { return false };
        let mut points = trials.iter().flat_map(|series| &series.points).map(|point| &point.point);
        let unchanged = self.dirty.is_none() && self.cpu.is_none() && self.model.is_empty();
        points.any(|point| {
            unchanged
                || self.cpu.is_some()
                || self.dirty.is_some() && point.profile.engine == Engine::Fs
                || self.options(&point.device).is_some()
        })
    }

    fn options(&self, spec: &str) -> Option<&String> {
        let preset = spec.strip_prefix("mem:")?.split(',').next()?;
        self.model.get(preset)
    }
}
