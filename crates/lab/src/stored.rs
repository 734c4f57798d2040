//! Figures that are kept: a file with a line for each time a claim was run for the record.
//!
//! The file is `docs/research/data/claims.jsonl`. The last line of a claim is current; earlier
//! lines are its history. Lines whose command is `scripts/same-victim.sh` have no history:
//! `scripts/same-victim.py` replaces them all, since it makes all of them from all runs. A line has
//! the commit and the command that made it, so that it can be reproduced. Only figures are kept:
//! the comparison with published figures follows from the catalogue.

use crate::cache::Build;
use crate::catalogue::{Claim, Figure, Size};
use crate::result::{ClaimResult, Sample};
use crate::runner::Order;
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// The figures of one run of a claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The claim's ID.
    pub claim: String,
    /// The variant of the laboratory in which the claim was run; empty for the normal one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub variant: String,
    /// The commit that the program was built from, in short.
    pub commit: String,
    /// The command that made the line.
    pub command: String,
    /// The size of the scenarios.
    pub size: Size,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// Other remarks.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// The figures.
    pub figures: Vec<KeptFigure>,
}

/// A figure in a kept line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptFigure {
    /// The figure's name in the catalogue.
    pub name: String,
    /// The figure's unit.
    pub unit: String,
    /// One value for each seed; or one value of all seeds together, if it differs from the mean of
    /// their values.
    pub values: Vec<f64>,
    /// If `values` has one value of all seeds together: the value of each seed, or `None` for a
    /// seed without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_seed: Vec<Option<f64>>,
}

impl Kept {
    /// The line of `result`.
    ///
    /// # Errors
    /// If the build differs from its commit: the line could not be reproduced.
    pub fn new(
        claim: &Claim,
        result: &ClaimResult,
        order: &Order,
        build: &Build,
        command: &str,
    ) -> Result<Kept> {
        if build.changed {
            bail!("the build differs from its commit: commit first, then keep figures");
        }
        Ok(Kept::of(claim, result, order, build, command))
    }

    /// Like [`Kept::new`], but for a line that is only shown: the build may differ from its commit.
    pub fn of(
        claim: &Claim,
        result: &ClaimResult,
        order: &Order,
        build: &Build,
        command: &str,
    ) -> Kept {
        let figures = result.figures.iter().map(|figure| KeptFigure {
            name: figure.figure.name.clone(),
            unit: figure.figure.unit.clone(),
            values: figure.ours.values.clone(),
            by_seed: Vec::new(),
        });
        Kept {
            claim: claim.id.clone(),
            variant: String::new(),
            commit: build.commit.clone(),
            command: command.to_owned(),
            size: order.size,
            seeds: order.seeds.clone(),
            note: String::new(),
            figures: figures.collect(),
        }
    }

    /// The stored values of `figure`.
    pub fn sample(&self, figure: &Figure) -> Option<Sample> {
        let same = |kept: &&KeptFigure| kept.name == figure.name && kept.unit == figure.unit;
        let kept = self.figures.iter().find(same)?;
        match (&kept.values[..], &kept.by_seed[..]) {
            (values, []) => Sample::of(values.to_vec()),
            (&[together], by_seed) => Some(Sample::pooled(together, by_seed)),
            _ => None,
        }
    }
}

/// The current line of `claim`: its last one without a variant.
pub fn current<'a>(kept: &'a [Kept], claim: &str) -> Option<&'a Kept> {
    varied(kept, claim, "")
}

/// The last line of `claim` in `variant`.
pub fn varied<'a>(kept: &'a [Kept], claim: &str, variant: &str) -> Option<&'a Kept> {
    kept.iter().rev().find(|line| line.claim == claim && line.variant == variant)
}

/// The figures of `result` that differ from the stored ones by more than `band` percent, or are not
/// stored, with a sentence for each.
pub fn outside(result: &ClaimResult, kept: &Kept, band: f64) -> Vec<String> {
    let main = result.main().filter_map(|figure| {
        let (name, ours) = (&figure.figure.name, figure.ours.mean);
        let Some(stored) = kept.sample(&figure.figure) else {
            return Some(format!("{}: `{name}` is not among the stored figures", kept.claim));
        };
        let off = (ours - stored.mean) / stored.mean.abs().max(f64::MIN_POSITIVE) * 100.0;
        (off.is_nan() || off.abs() > band).then(|| {
            format!(
                "{}: `{name}` is {ours:.4}, stored {:.4} ({off:+.1} %, {band} % are allowed)",
                kept.claim, stored.mean
            )
        })
    });
    main.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::catalogue::Catalogue;
    use crate::{collection, fixture, runner};

    fn line(commit: &str, value: f64) -> Kept {
        let figure = KeptFigure {
            name: "f".into(),
            unit: "MB/s".into(),
            values: vec![value],
            by_seed: Vec::new(),
        };
        Kept {
            claim: "N1".into(),
            variant: String::new(),
            commit: commit.into(),
            command: "furrow-lab keep N1".into(),
            size: Size::Scaled,
            seeds: vec![1],
            note: String::new(),
            figures: vec![figure],
        }
    }

    #[test]
    fn the_last_line_of_a_claim_holds() {
        let lines = [line("a", 1.0), line("b", 2.0)];
        let text: Vec<String> = lines.iter().map(|l| serde_json::to_string(l).unwrap()).collect();
        let read: Vec<Kept> = collection::lines(&text.join("\n")).unwrap();
        assert_eq!(read, lines);
        assert_eq!(current(&read, "N1").unwrap().commit, "b");
        assert!(current(&read, "N2").is_none());
        let varied = Kept { variant: "slow".into(), ..line("c", 3.0) };
        let with = [&lines[..], &[varied]].concat();
        assert_eq!(current(&with, "N1").unwrap().commit, "b");
    }

    #[test]
    fn a_figure_outside_its_band_is_named() {
        let rest = "figures = [{ name = \"f\", unit = \"MB/s\", paper = 10, run = \"r\" }]\n\
                    [[claim.runs]]\nname = \"r\"\n";
        let claims = fixture::claims(&[fixture::claim("N1", "shown", "more", rest)]);
        let catalogue = Catalogue::parse(fixture::SETUP, &claims).unwrap();
        let chosen: Vec<&Claim> = catalogue.claims.iter().collect();
        let order = Order { threads: 1, ..Order::new(Size::Scaled, 1) };
        let build = Build { commit: "abc".to_owned(), changed: false };
        let cache = Cache::none(build.clone());
        let outcome = runner::run(&catalogue, &chosen, &order, &cache, &|_| {}).unwrap();
        let result = outcome.claims[0].result.as_ref().unwrap();
        let kept = Kept::new(chosen[0], result, &order, &build, "furrow-lab keep N1").unwrap();
        let stored = kept.figures[0].values[0];
        assert!(outside(result, &kept, 1.0).is_empty());
        assert!(outside(result, &line("abc", stored * 1.009), 1.0).is_empty());
        for far in [stored * 1.02, stored * 0.98, 0.0, f64::NAN] {
            let found = outside(result, &line("abc", far), 1.0);
            assert!(found.len() == 1 && found[0].contains("N1: `f`"), "{far}: {found:?}");
        }
        let nothing = Kept { figures: Vec::new(), ..kept };
        assert!(outside(result, &nothing, 1.0)[0].contains("not among"));
        let changed = Build { changed: true, ..build };
        assert!(Kept::new(chosen[0], result, &order, &changed, "").is_err());
    }
}
