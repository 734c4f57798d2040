//! Verdicts: how our figure compares with the published one, and the one rule that decides it.
//!
//! A verdict is computed, never written into the data. The data may only say that the model was
//! fitted to a figure (`fitted`), or that a claim was tried with something else than was published
//! (`incomparable`): neither of these can be a success.

use super::{Figure, Paper, Relation, Take};
use crate::result::Sample;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A published range counts as a point with its scatter if its ends are within this factor.
const POINT_RANGE: f64 = 1.25;
/// Seeds agree if the largest of their figures is within this factor of the smallest.
const SCATTER: f64 = 1.5;
/// Published effects below this factor mean "equal"; our effects below it show no direction.
const EQUAL: f64 = 1.1;

/// How our figure compares with the published one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// There is no published figure to compare with.
    None,
    /// The model was fitted to the figure: it proves nothing.
    Calibrated,
    /// The claim was tried with something else than was published.
    Incomparable,
    /// Our mean agrees with a published point within the tolerance (10 % at most, on either side),
    /// and the seeds agree.
    Reproduced,
    /// A published bound that holds, or an effect of half to twice the published one.
    Direction,
    /// None of the other verdicts.
    NotReproduced,
}

impl Verdict {
    /// The verdicts that are counted and drawn, best first.
    pub const ALL: [Verdict; 5] = [
        Verdict::Reproduced,
        Verdict::Direction,
        Verdict::NotReproduced,
        Verdict::Incomparable,
        Verdict::Calibrated,
    ];

    /// The rule for giving this verdict, for the documents: a part of a sentence, then sentences.
    pub fn rule(self) -> &'static str {
        match self {
            Verdict::None => "nothing was published.",
            Verdict::Reproduced => {
                "a published point, met within 10 % on both sides, by seeds that agree. A range \
                 whose ends are within 25 % of each other is a point."
            }
            Verdict::Direction => {
                "a published bound that holds, or an effect in the published direction. An effect \
                 (ratio of two runs) counts if it is at least 10 % and its logarithm is 0.5 to 2 \
                 times the published one; for \"up to X\", anything up to twice. \"At least\", \
                 \"up to\" an amount, and a wide range must be met exactly."
            }
            Verdict::NotReproduced => {
                "neither. The appendix names the cause and the experiment that moved it, or says \
                 that there is none."
            }
            Verdict::Incomparable => "it was tried with something else than was published.",
            Verdict::Calibrated => {
                "the drive's model was fitted to the figure, so the figure shows nothing and \
                 counts for nothing."
            }
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::None => "–",
            Verdict::Calibrated => "calibrated",
            Verdict::Incomparable => "cannot be compared",
            Verdict::Reproduced => "reproduced",
            Verdict::Direction => "direction reproduced",
            Verdict::NotReproduced => "not reproduced",
        })
    }
}

impl Paper {
    /// True for a number, and for a range that is narrow enough to be a point.
    fn is_point(self) -> bool {
        match self {
            Paper::One(_) => true,
            Paper::Range(low, high) => low > 0.0 && high <= low * POINT_RANGE,
        }
    }
}

impl Figure {
    /// Compares `ours` with the published number.
    pub fn verdict(&self, sample: &Sample) -> Verdict {
        let Some(paper) = self.paper else { return Verdict::None };
        if self.fitted {
            return Verdict::Calibrated;
        }
        let ours = sample.mean;
        let near = paper.nearest(ours);
        let off = (ours - near).abs() / near.abs().max(f64::MIN_POSITIVE) * 100.0;
        let point = self.relation == Relation::About && paper.is_point();
        if point && off <= self.tolerance && self.agree(near, sample) {
            return Verdict::Reproduced;
        }
        let holds = match self.relation {
            Relation::About => (!point && off == 0.0) || self.follows(near, ours, 0.5),
            Relation::AtLeast => ours >= near,
            // For an effect, "up to" means a part of the effect. For an amount, or an effect that
            // is nearly none, it means no more than the amount.
            Relation::AtMost => {
                match self.effect(near).filter(|effect| effect.abs() > EQUAL.ln()) {
                    Some(_) => self.follows(near, ours, 0.0),
                    None => ours <= near,
                }
            }
        };
        if holds { Verdict::Direction } else { Verdict::NotReproduced }
    }

    /// True if the figures of all seeds are within [`SCATTER`] of each other and, if the published
    /// `near` is an effect, on the same side as `near`. The mean alone can agree with a figure that
    /// no seed shows.
    fn agree(&self, near: f64, sample: &Sample) -> bool {
        let Sample { low, high, .. } = *sample;
        let alike = (low >= 0.0 && high <= SCATTER * low) || (high <= 0.0 && low >= SCATTER * high);
        let Some(near) = self.effect(near).filter(|effect| effect.abs() >= EQUAL.ln()) else {
            return alike;
        };
        let same = |value| self.effect(value).is_some_and(|effect| effect * near > 0.0);
        alike && same(low) && same(high)
    }

    /// True if `ours` is an effect in the direction of the published `near`, and `least` to 2 times
    /// its size. The size of an effect is the logarithm of a ratio.
    fn follows(&self, near: f64, ours: f64, least: f64) -> bool {
        let (Some(near), Some(ours)) = (self.effect(near), self.effect(ours)) else { return false };
        let equal = EQUAL.ln();
        let share = ours / near;
        near.abs() > equal && ours.abs() >= equal && (least..=2.0).contains(&share)
    }

    /// A value of this figure as the logarithm of a ratio; `None` if the figure does not compare
    /// two runs.
    fn effect(&self, value: f64) -> Option<f64> {
        let ratio = match self.take {
            Take::Ratio => value,
            Take::More => 1.0 + value / 100.0,
            Take::Loss => 1.0 - value / 100.0,
            Take::Share => value / 100.0,
            _ => return None,
        };
        (ratio > 0.0).then(|| ratio.ln()).filter(|effect| effect.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, ours: f64) -> Verdict {
        of_seeds(text, &[ours])
    }

    fn of_seeds(text: &str, ours: &[f64]) -> Verdict {
        let figure: Figure = toml::from_str(&format!("name = 'f'\n{text}")).unwrap();
        figure.verdict(&Sample::of(ours.to_vec()).unwrap())
    }

    #[test]
    fn seeds_that_do_not_agree_reproduce_nothing() {
        let ratio = "unit = 'x'\ntake = 'ratio'\npaper = 1.27";
        assert_eq!(of_seeds(ratio, &[1.1, 1.3, 1.4]), Verdict::Reproduced);
        // One seed does not show the effect, but the mean still does.
        assert_eq!(of_seeds(ratio, &[0.995, 1.3, 1.4]), Verdict::Direction);
        // The seeds are too far from each other.
        assert_eq!(of_seeds(ratio, &[1.05, 1.1, 1.65]), Verdict::Direction);
        let less = "unit = '%'\ntake = 'loss'\npaper = 20";
        assert_eq!(of_seeds(less, &[18.0, 22.0]), Verdict::Reproduced);
        assert_eq!(of_seeds(less, &[10.0, 30.0]), Verdict::Direction);
        assert_eq!(of_seeds(less, &[-10.0, 50.0]), Verdict::Direction);
        let time = "unit = 'us'\npaper = 20";
        assert_eq!(of_seeds(time, &[17.0, 23.0]), Verdict::Reproduced);
        assert_eq!(of_seeds(time, &[10.0, 30.0]), Verdict::NotReproduced);
        // "About equal" accepts values on both sides of 1, and only 0 equals a published 0.
        assert_eq!(
            of_seeds("unit = 'x'\ntake = 'ratio'\npaper = 1", &[0.99, 1.02]),
            Verdict::Reproduced
        );
        assert_eq!(of_seeds("unit = 'MB'\npaper = 0", &[0.0, 0.0]), Verdict::Reproduced);
        // A seed without a figure agrees with no other seed.
        let figure: Figure = toml::from_str(&format!("name = 'f'\n{ratio}")).unwrap();
        let open = Sample::pooled(1.27, &[Some(1.2), None]);
        assert_eq!(figure.verdict(&open), Verdict::Direction);
    }

    #[test]
    fn a_point_is_met_on_both_sides_within_ten_percent() {
        let point = "unit = 'us'\npaper = 20";
        for (ours, verdict) in [
            (18.1, Verdict::Reproduced),
            (21.9, Verdict::Reproduced),
            (17.9, Verdict::NotReproduced),
            (22.1, Verdict::NotReproduced),
        ] {
            assert_eq!(of(point, ours), verdict, "{ours}");
        }
        assert_eq!(of("unit = '%'\npaper = [71.5, 72.1]", 70.0), Verdict::Reproduced);
        assert_eq!(of("unit = 'x'\npaper = 20\ntolerance = 5", 21.9), Verdict::NotReproduced);
    }

    #[test]
    fn an_effect_of_half_to_twice_the_published_one_is_a_direction() {
        let ratio = "unit = 'x'\ntake = 'ratio'\npaper = 4";
        for (ours, verdict) in [
            (1.9, Verdict::NotReproduced),
            (2.1, Verdict::Direction),
            (3.8, Verdict::Reproduced),
            (15.0, Verdict::Direction),
            (17.0, Verdict::NotReproduced),
            (0.25, Verdict::NotReproduced),
        ] {
            assert_eq!(of(ratio, ours), verdict, "{ours}");
        }
        let more = "unit = '%'\ntake = 'more'\npaper = 47";
        assert_eq!(of(more, 1.25), Verdict::NotReproduced);
        assert_eq!(of(more, 25.0), Verdict::Direction);
        let loss = "unit = '%'\ntake = 'loss'\npaper = 50";
        assert_eq!(of(loss, 35.0), Verdict::Direction);
        // "About equal" has no direction that could be reproduced.
        assert_eq!(of("unit = 'x'\ntake = 'ratio'\npaper = 1", 1.3), Verdict::NotReproduced);
    }

    #[test]
    fn a_bound_is_no_more_than_a_direction() {
        let up_to = "unit = 'x'\ntake = 'ratio'\nrelation = 'at-most'\npaper = 11.4";
        for (ours, verdict) in [
            (0.97, Verdict::NotReproduced),
            (1.05, Verdict::NotReproduced),
            (1.2, Verdict::Direction),
            (11.4, Verdict::Direction),
            (20.0, Verdict::Direction),
            (200.0, Verdict::NotReproduced),
        ] {
            assert_eq!(of(up_to, ours), verdict, "{ours}");
        }
        let rises = "unit = 'x'\ntake = 'ratio'\nrelation = 'at-least'\npaper = 1";
        assert_eq!(of(rises, 0.97), Verdict::NotReproduced);
        assert_eq!(of(rises, 1.02), Verdict::Direction);
        let within = "unit = '%'\ntake = 'loss'\nrelation = 'at-most'\npaper = 6";
        assert_eq!(of(within, 2.0), Verdict::Direction);
        assert_eq!(of(within, 6.1), Verdict::NotReproduced);
        let wide = "unit = '%'\ntake = 'loss'\npaper = [66, 95]";
        assert_eq!(of(wide, 80.0), Verdict::Direction);
        assert_eq!(of(wide, 10.0), Verdict::NotReproduced);
        assert_eq!(of("unit = 'zones'\npaper = [128, 256]", 64.0), Verdict::NotReproduced);
    }

    #[test]
    fn what_the_model_was_fitted_to_is_never_a_success() {
        assert_eq!(of("unit = '%'\npaper = 20\nfitted = true", 20.0), Verdict::Calibrated);
        assert_eq!(of("unit = '%'", 20.0), Verdict::None);
    }
}
