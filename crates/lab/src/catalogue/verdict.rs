//! Verdicts: how our figure compares with the published one, and the one rule that decides it.
//!
//! A verdict is computed, never written into the data. The data may only take a figure out of the
//! count: the model was fitted to it (`fitted`), it was tried with something else than was
//! published (`incomparable`), it is computed from others (`derived`), or its experiment is counted
//! elsewhere (`same_as`, `sweep`). None of these can be a success.

use super::{Claim, Figure, Good, Paper, Relation, Take};
use crate::result::Sample;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;

/// A published range counts as a point with its scatter if its ends are within this factor.
const POINT_RANGE: f64 = 1.25;
/// Seeds agree if the largest of their figures is within this factor of the smallest.
const SCATTER: f64 = 1.5;
/// Published gains below this share mean "equal"; our gains below it show no direction.
const EQUAL: f64 = 0.1 - 1e-9;
/// The range of our gain over the published gain in which the direction counts as reproduced.
const BAND: RangeInclusive<f64> = 0.5..=2.0;

/// How our figure compares with the published one, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// There is no published figure to compare with.
    None,
    /// The figure is computed from others by a formula.
    Derived,
    /// The figure's experiment is counted with another figure.
    Repeated,
    /// The model was fitted to the figure: it proves nothing.
    Calibrated,
    /// The claim was tried with something else than was published.
    Incomparable,
    /// Our mean agrees with a published point within the tolerance (10 % at most, on either side),
    /// and the seeds agree.
    Reproduced,
    /// A count or time of the engine that beats the published one.
    Better,
    /// A published bound that holds, or a gain of half to twice the published one.
    Direction,
    /// None of the other verdicts.
    NotReproduced,
}

impl Verdict {
    /// The verdicts that are counted and drawn, in the order of the documents.
    pub const ALL: [Verdict; 6] = [
        Verdict::Reproduced,
        Verdict::Direction,
        Verdict::Better,
        Verdict::NotReproduced,
        Verdict::Incomparable,
        Verdict::Calibrated,
    ];

    /// The verdicts on figures that say nothing of their own.
    pub const APART: [Verdict; 2] = [Verdict::Derived, Verdict::Repeated];

    /// True if the figure was compared with the published one, and the comparison is counted.
    pub fn compares(self) -> bool {
        self >= Verdict::Reproduced
    }

    /// The rule for giving this verdict, for the documents: a part of a sentence, then sentences.
    pub fn rule(self) -> &'static str {
        match self {
            Verdict::None => "nothing was published.",
            Verdict::Reproduced => {
                "a published point, met within 10 % on both sides, by seeds that agree. A range \
                 whose ends are within 25 % of each other is a point."
            }
            Verdict::Direction => {
                "a published bound that holds, or a gain (or loss) of one run over another that is \
                 at least 10 % and half to twice the published one; of a loss, what is left is \
                 half to twice as much, too. \"Up to\" a gain is compared with our highest over \
                 the same sweep. \"At least\", \"up to\" an amount, and a wide range must be met \
                 exactly."
            }
            Verdict::Better => {
                "a count or time of the engine itself, of which the paper calls less good, and \
                 less it is in every seed. Speeds of drives or hosts, and gains over modelled \
                 baselines, never are."
            }
            Verdict::NotReproduced => {
                "none of these. The appendix names the cause and the experiment that moved it, or \
                 says that there is none."
            }
            Verdict::Incomparable => "it was tried with something else than was published.",
            Verdict::Calibrated => {
                "the drive's model was fitted to the figure, so the figure shows nothing and \
                 counts for nothing."
            }
            Verdict::Derived => "a formula gives it from other figures.",
            Verdict::Repeated => "it is a lesser point of a sweep, or repeats an experiment.",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::None => "–",
            Verdict::Derived => "derived",
            Verdict::Repeated => "counted elsewhere",
            Verdict::Calibrated => "calibrated",
            Verdict::Incomparable => "cannot be compared",
            Verdict::Reproduced => "reproduced",
            Verdict::Better => "better",
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

impl Claim {
    /// Compares `ours`, the values of the claim's figures in their order, with the published
    /// numbers.
    ///
    /// One figure of each sweep gets the verdict: our highest if the published number is a maximum,
    /// otherwise the worst one. The sweep's other figures count as repeated.
    pub fn verdicts(&self, ours: &[Option<Sample>]) -> Vec<Verdict> {
        let single = |(figure, sample): (&Figure, &Option<Sample>)| match sample {
            None => Verdict::None,
            Some(sample) => match figure.verdict(sample) {
                verdict if !verdict.compares() => verdict,
                _ if figure.same_as.is_some() => Verdict::Repeated,
                _ if figure.derived => Verdict::Derived,
                _ if self.incomparable.is_some() => Verdict::Incomparable,
                verdict => verdict,
            },
        };
        let mut all: Vec<Verdict> = self.figures.iter().zip(ours).map(single).collect();
        for (first, figure) in self.figures.iter().enumerate() {
            let Some(sweep) = &figure.sweep else { continue };
            let of_sweep = |at: &usize| self.figures[*at].sweep.as_ref() == Some(sweep);
            let points: Vec<usize> = (0..all.len()).filter(of_sweep).collect();
            if points.first() != Some(&first) {
                continue;
            }
            let off = |at: usize| {
                let ours = mean(&ours[at]);
                figure.paper.map_or(0.0, |paper| (ours - paper.nearest(ours)).abs())
            };
            let worse = |one: usize, other: usize| match figure.relation {
                Relation::AtMost => mean(&ours[other]) > mean(&ours[one]),
                Relation::AtLeast => mean(&ours[other]) < mean(&ours[one]),
                Relation::About => (all[one], off(one)) < (all[other], off(other)),
            };
            let chosen = points.iter().copied().filter(|at| all[*at].compares());
            let chosen = chosen.reduce(|one, other| if worse(one, other) { other } else { one });
            let Some(chosen) = chosen else { continue };
            for at in points.into_iter().filter(|at| *at != chosen) {
                if all[at].compares() {
                    all[at] = Verdict::Repeated;
                }
            }
        }
        all
    }
}

fn mean(sample: &Option<Sample>) -> f64 {
    sample.as_ref().map_or(f64::NEG_INFINITY, |sample| sample.mean)
}

impl Figure {
    /// Compares `ours` with the published number, as if it were the only figure.
    pub fn verdict(&self, sample: &Sample) -> Verdict {
        let Some(paper) = self.paper else { return Verdict::None };
        if self.fitted {
            return Verdict::Calibrated;
        }
        let ours = sample.mean;
        let near = paper.nearest(ours);
        let off = (ours - near).abs() / near.abs().max(f64::MIN_POSITIVE) * 100.0;
        let gain = self.gain(near).filter(|gain| gain.abs() >= EQUAL);
        // "Up to" an amount, or up to a gain of nearly nothing, is an upper bound. "Up to" a larger
        // gain is the maximum of a sweep, with which our maximum is compared.
        let relation = match self.relation {
            Relation::AtMost if gain.is_some() => Relation::About,
            relation => relation,
        };
        let follows = gain.is_some_and(|gain| self.follows(gain, ours));
        let point = relation == Relation::About && paper.is_point();
        if point && off <= self.tolerance && self.agree(near, sample) && (gain.is_none() || follows)
        {
            return Verdict::Reproduced;
        }
        let holds = match relation {
            Relation::About => (!point && off == 0.0) || follows,
            Relation::AtLeast => ours >= near,
            Relation::AtMost => ours <= near,
        };
        let better = match self.good {
            Some(Good::Less) => sample.high < near,
            None => false,
        };
        match (holds, better && off > self.tolerance) {
            (true, _) => Verdict::Direction,
            (false, true) => Verdict::Better,
            (false, false) => Verdict::NotReproduced,
        }
    }

    /// True if the figures of all seeds are within [`SCATTER`] of each other and, if the
    /// published `near` is a gain, on the same side as `near`. The mean alone may agree although
    /// no seed does.
    fn agree(&self, near: f64, sample: &Sample) -> bool {
        let Sample { low, high, .. } = *sample;
        let alike = (low >= 0.0 && high <= SCATTER * low) || (high <= 0.0 && low >= SCATTER * high);
        let Some(near) = self.gain(near).filter(|gain| gain.abs() >= EQUAL) else {
            return alike;
        };
        let same = |value| self.gain(value).is_some_and(|gain| gain * near > 0.0);
        alike && same(low) && same(high)
    }

    /// True if `ours` is a gain in the direction of the published gain `near`, and half to twice as
    /// large as `near`. A loss cannot exceed 100 %, so after a loss the remainder must also be half
    /// to twice the published remainder.
    fn follows(&self, near: f64, ours: f64) -> bool {
        let Some(ours) = self.gain(ours) else { return false };
        let left = (1.0 + ours) / (1.0 + near);
        ours.abs() >= EQUAL && BAND.contains(&(ours / near)) && (near > 0.0 || BAND.contains(&left))
    }

    /// True if the figure compares two runs.
    pub(crate) fn is_gain(&self) -> bool {
        self.gain(50.0).is_some()
    }

    /// A value of this figure as a gain: the ratio of two runs, minus 1. A loss is negative.
    /// `None` if the figure does not compare two runs.
    fn gain(&self, value: f64) -> Option<f64> {
        let ratio = match self.take {
            Take::Ratio | Take::Most => value,
            Take::More => 1.0 + value / 100.0,
            Take::Loss => 1.0 - value / 100.0,
            Take::Share => value / 100.0,
            _ => return None,
        };
        (ratio > 0.0 && ratio.is_finite()).then_some(ratio - 1.0)
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
    fn a_gain_of_half_to_twice_the_published_one_is_a_direction() {
        // The band is on the gain, 3, and not on the ratio or its logarithm.
        let ratio = "unit = 'x'\ntake = 'ratio'\npaper = 4";
        for (ours, verdict) in [
            (2.4, Verdict::NotReproduced),
            (2.6, Verdict::Direction),
            (3.8, Verdict::Reproduced),
            (6.9, Verdict::Direction),
            (7.1, Verdict::NotReproduced),
            (0.25, Verdict::NotReproduced),
        ] {
            assert_eq!(of(ratio, ours), verdict, "{ours}");
        }
        let more = "unit = '%'\ntake = 'more'\npaper = 47";
        assert_eq!(of(more, 1.25), Verdict::NotReproduced);
        assert_eq!(of(more, 25.0), Verdict::Direction);
        let loss = "unit = '%'\ntake = 'loss'\npaper = 50";
        assert_eq!(of(loss, 30.0), Verdict::Direction);
        assert_eq!(of(loss, 20.0), Verdict::NotReproduced);
        // A loss of 75 % leaves half of what the published loss leaves.
        assert_eq!(of(loss, 74.0), Verdict::Direction);
        assert_eq!(of(loss, 76.0), Verdict::NotReproduced);
        let share = "unit = '%'\ntake = 'share'\npaper = 20";
        assert_eq!(of(share, 39.0), Verdict::Direction);
        assert_eq!(of(share, 45.0), Verdict::NotReproduced);
        // "About equal" has no direction that could be reproduced.
        assert_eq!(of("unit = 'x'\ntake = 'ratio'\npaper = 1", 1.3), Verdict::NotReproduced);
    }

    #[test]
    fn up_to_a_gain_is_a_maximum_and_up_to_an_amount_a_bound() {
        let up_to = "unit = 'x'\ntake = 'most'\nrelation = 'at-most'\npaper = 11.4";
        for (ours, verdict) in [
            (1.2, Verdict::NotReproduced),
            (6.1, Verdict::NotReproduced),
            (6.3, Verdict::Direction),
            (11.0, Verdict::Reproduced),
            (20.0, Verdict::Direction),
            (23.0, Verdict::NotReproduced),
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
    fn a_count_that_is_good_if_small_is_better_below_the_published_one() {
        let count = "unit = 'MB'\npaper = 105\ngood = 'less'";
        assert_eq!(of(count, 0.0), Verdict::Better);
        assert_eq!(of(count, 100.0), Verdict::Reproduced);
        assert_eq!(of(count, 200.0), Verdict::NotReproduced);
        assert_eq!(of_seeds(count, &[50.0, 106.0]), Verdict::NotReproduced);
        assert_eq!(of("unit = 'MB'\npaper = 105", 0.0), Verdict::NotReproduced);
    }

    #[test]
    fn of_a_sweep_one_figure_has_the_verdict() {
        let sweep = |relation: &str, ours: [f64; 3]| {
            let figure = |name: &str| {
                format!(
                    "{{ name = '{name}', unit = 'x', take = 'ratio', paper = 3, sweep = 's', \
                     relation = '{relation}' }}"
                )
            };
            let figures = ["a", "b", "c"].map(figure).join(", ");
            let claim = format!("id = 'C'\nsource = 's'\nwhat = 'w'\nfigures = [{figures}]");
            let claim: Claim = toml::from_str(&claim).unwrap();
            claim.verdicts(&ours.map(|value| Sample::of(vec![value])))
        };
        let part = Verdict::Repeated;
        // "Up to" refers to the maximum.
        assert_eq!(sweep("at-most", [1.1, 2.9, 2.0]), [part, Verdict::Reproduced, part]);
        assert_eq!(sweep("at-most", [3.0, 1.1, 9.0]), [part, part, Verdict::NotReproduced]);
        // A statement about all points has to hold at the worst point.
        assert_eq!(sweep("about", [2.9, 2.2, 3.0]), [part, Verdict::Direction, part]);
        assert_eq!(sweep("about", [1.1, 1.05, 3.0]), [part, Verdict::NotReproduced, part]);
        assert_eq!(sweep("at-least", [2.0, 1.5, 4.0]), [part, Verdict::NotReproduced, part]);
    }

    #[test]
    fn what_says_nothing_of_its_own_is_counted_apart() {
        let verdict = |more: &str, figure: &str| {
            let claim = format!(
                "id = 'C'\nsource = 's'\nwhat = 'w'\n{more}\n\
                 figures = [{{ name = 'f', unit = 'us', paper = 20, {figure} }}]"
            );
            let claim: Claim = toml::from_str(&claim).unwrap();
            claim.verdicts(&[Sample::of(vec![20.0])])[0]
        };
        assert_eq!(verdict("", "derived = true"), Verdict::Derived);
        assert_eq!(verdict("", "same_as = 'D: f'"), Verdict::Repeated);
        assert_eq!(verdict("", "derived = true, fitted = true"), Verdict::Calibrated);
        assert_eq!(verdict("incomparable = 'Why.'", "relation = 'about'"), Verdict::Incomparable);
        let apart = Verdict::APART.iter().chain(&Verdict::ALL[4..]);
        assert!(apart.clone().all(|verdict| !verdict.compares()));
    }

    #[test]
    fn what_the_model_was_fitted_to_is_never_a_success() {
        assert_eq!(of("unit = '%'\npaper = 20\nfitted = true", 20.0), Verdict::Calibrated);
        assert_eq!(of("unit = '%'", 20.0), Verdict::None);
    }
}
