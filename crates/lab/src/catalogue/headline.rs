//! A headline: a number in a paper's abstract, introduction or conclusion, or the result of a
//! section on which one of these rests.
//!
//! A headline names the figure of a claim that gives the number, or says why there is none. So a
//! number that a reader of the paper remembers cannot be missing among the details.

use super::{Catalogue, Claim, Figure, Paper, Relation, claim};
use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

/// Maximum number of words in [`Headline::says`].
const SAYS_WORDS: usize = 14;

/// A headline, as in the data file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Headline {
    /// Name of the paper among the sources.
    pub paper: String,
    /// The parts that state the number: `abstract`, `introduction`, `section 6.3`.
    pub at: Vec<String>,
    /// The statement in a few words of our own.
    pub says: String,
    /// The published number.
    pub published: Paper,
    /// Unit of the number.
    pub unit: String,
    /// The meaning of the published number.
    #[serde(default)]
    pub relation: Relation,
    /// The figure that gives our number, as `ID: name`.
    #[serde(default)]
    pub figure: Option<String>,
    /// The reason why no figure gives it.
    #[serde(default)]
    pub missing: Option<String>,
}

impl Headline {
    /// The claim and the figure that give our number; `None` if none does.
    pub fn found<'a>(&self, catalogue: &'a Catalogue) -> Option<(&'a Claim, &'a Figure)> {
        let (id, name) = claim::elsewhere(self.figure.as_deref()?)?;
        let claim = catalogue.claim(id)?;
        Some((claim, claim.figures.iter().find(|figure| figure.name == name)?))
    }

    /// `figure` with the headline's number in the place of its own.
    pub fn over(&self, figure: &Figure) -> Figure {
        Figure { paper: Some(self.published), relation: self.relation, ..figure.clone() }
    }

    /// Checks the headline against the rest of the catalogue.
    pub(super) fn check(&self, catalogue: &Catalogue) -> Result<()> {
        super::find(&catalogue.sources, "source", &self.paper)?;
        ensure!(!self.at.is_empty(), "no `at`");
        self.at.iter().try_for_each(|place| super::published::check(place))?;
        let words = self.says.split_whitespace().count();
        ensure!(words <= SAYS_WORDS, "`says` has {words} words, {SAYS_WORDS} at most");
        ensure!(
            self.figure.is_some() != self.missing.is_some(),
            "a headline has either a `figure`, or `missing` that says why it has none"
        );
        if let Some(name) = &self.figure {
            let (claim, figure) =
                self.found(catalogue).with_context(|| format!("no figure `{name}`"))?;
            ensure!(claim.source == self.paper, "`{name}` is a figure of {}", claim.source);
            ensure!(figure.unit == self.unit, "`{name}` is in `{}`", figure.unit);
            // The worst verdict of the plausible variants is known only for the figure's
            // own number.
            let source = super::find(&catalogue.sources, "source", &self.paper)?;
            let own = (figure.paper, figure.relation) == (Some(self.published), self.relation);
            ensure!(own || source.plausible.is_empty(), "`{name}` has another published number");
        }
        Ok(())
    }
}
