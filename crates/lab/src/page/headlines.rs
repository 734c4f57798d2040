//! Headlines of the papers beside our numbers, as a table and as a picture with one row for each.
//!
//! The picture shows ours over published from a tenth to ten times. What has no such ratio (no run,
//! a published 0) has a row without a marker, so no headline is missing.

use super::Shown;
use crate::catalogue::{Catalogue, Headline, Paper, Relation, Verdict, elsewhere};
use crate::plot::{COLOURS, escape, number};
use crate::result::Sample;
use crate::text::{self, cell, put};
use std::cmp::Reverse;
use std::fmt::Write as _;

/// A headline with our number.
pub struct Line<'a> {
    /// The headline.
    pub headline: &'a Headline,
    /// The ID of the claim that gives our number.
    pub claim: Option<&'a str>,
    /// Our number.
    pub ours: Option<f64>,
    /// How our number compares with the published one; `None` if we have no number.
    pub verdict: Option<Verdict>,
    /// If the verdict is that of a plausible variant: the variant, and our value there.
    there: Option<(&'a str, f64)>,
    /// The side of the published number on which ours may be; `About` if the headline says "up to"
    /// a gain.
    bound: Relation,
}

impl<'a> Line<'a> {
    /// The headline with its figure, taken from `claims`, the claims of its paper.
    pub(super) fn new(
        catalogue: &'a Catalogue,
        headline: &'a Headline,
        claims: &[Shown<'a>],
    ) -> Line<'a> {
        let bound = headline.relation;
        let none = Line { headline, claim: None, ours: None, verdict: None, there: None, bound };
        let Some((claim, figure)) = headline.found(catalogue) else { return none };
        // A figure that repeats an experiment is replaced by the figure that it repeats.
        let (id, name) = match figure.same_as.as_deref() {
            Some(same) => elsewhere(same).unwrap_or((&*claim.id, same)),
            None => (&*claim.id, &*figure.name),
        };
        let Some(shown) = claims.iter().find(|shown| shown.claim.id == id) else { return none };
        let Some(row) = shown.rows.iter().find(|row| row.figure.name == name) else {
            return Line { claim: Some(&*shown.claim.id), ..none };
        };
        let of_sweep = |other: &&super::Row<'_>| {
            row.verdict == Verdict::Repeated
                && row.figure.sweep.is_some()
                && other.figure.sweep == row.figure.sweep
                && other.verdict != Verdict::Repeated
        };
        let row = shown.rows.iter().find(of_sweep).unwrap_or(row);
        let own = (row.figure.paper, row.figure.relation);
        let (verdict, there) = match own == (Some(headline.published), headline.relation) {
            true => (row.verdict, row.there),
            // The headline states another number than the figure does.
            false => (over(headline, row, &row.ours), None),
        };
        let (claim, ours) = (Some(&*shown.claim.id), Some(row.ours.mean));
        let bound =
            if row.figure.is_gain() && bound == Relation::AtMost { Relation::About } else { bound };
        Line { headline, claim, ours, verdict: Some(verdict), there, bound }
    }

    /// Ours over published; `None` without a number of ours, or if it would not be positive.
    fn ratio(&self) -> Option<f64> {
        let (ours, published) = (self.ours?, self.headline.published);
        let ratio = ours / published.nearest(ours);
        (ratio > 0.0 && ratio.is_finite()).then_some(ratio)
    }

    /// The published number with its unit.
    pub fn published(&self) -> String {
        let unit = text::unit(&self.headline.unit);
        let bound = match self.headline.relation {
            Relation::About => "",
            Relation::AtLeast => "≥ ",
            Relation::AtMost => "up to ",
        };
        match self.headline.published {
            Paper::One(value) => format!("{bound}{} {unit}", number(value)),
            Paper::Range(low, high) => format!("{bound}{} to {} {unit}", number(low), number(high)),
        }
    }

    /// Our number with its unit, or a dash.
    pub fn ours(&self) -> String {
        let unit = text::unit(&self.headline.unit);
        self.ours.map_or_else(|| "–".to_owned(), |ours| format!("{} {unit}", text::quantity(ours)))
    }

    /// The verdict, with the variant that decides it, or why there is none.
    pub fn said(&self) -> String {
        match (self.verdict, self.there, &self.headline.missing) {
            (Some(verdict), Some((variant, ours)), _) => {
                let unit = text::unit(&self.headline.unit);
                format!("{verdict} ({variant}: {} {unit})", text::quantity(ours))
            }
            (Some(verdict), None, _) => verdict.to_string(),
            (None, _, Some(why)) => why.clone(),
            (None, _, None) => "not run".to_owned(),
        }
    }
}

/// The verdict on the headline's number, by the rule for the figure of `row`.
fn over(headline: &Headline, row: &super::Row<'_>, ours: &Sample) -> Verdict {
    match row.verdict {
        verdict if verdict.compares() => headline.over(row.figure).verdict(ours),
        verdict => verdict,
    }
}

/// The table of one paper's headlines.
pub(super) fn table(out: &mut String, paper: &str, lines: &[Line<'_>]) {
    put!(out, "| headline | published | ours | verdict |\n|---|--:|--:|---|");
    for line in lines {
        let claim = line.claim.map_or_else(String::new, |id| {
            let anchor = format!("claims/{paper}.md");
            format!(" ([{id}]({anchor}))")
        });
        put!(
            out,
            "| {}{claim} | {} | {} | {} |",
            cell(&line.headline.says),
            line.published(),
            line.ours(),
            cell(&line.said())
        );
    }
    out.push('\n');
}

/// Width of the picture in pixels: that of a telephone's screen, so that no text shrinks there.
const WIDTH: f64 = 400.0;
/// Height of a row.
const ROW: f64 = 34.0;
/// Left and right end of the axis.
const AXIS: (f64, f64) = (16.0, 330.0);
/// Lowest and highest ratio on the axis.
const RATIOS: (f64, f64) = (0.1, 10.0);

/// The place of a ratio on the axis; a ratio beyond an end is at the end.
fn across(ratio: f64) -> f64 {
    let (low, high) = (RATIOS.0.log10(), RATIOS.1.log10());
    let at = (ratio.clamp(RATIOS.0, RATIOS.1).log10() - low) / (high - low);
    AXIS.0 + at * (AXIS.1 - AXIS.0)
}

/// Class and name of a verdict in the legend: one colour and one shape for each.
fn look(verdict: Option<Verdict>) -> (&'static str, &'static str) {
    match verdict {
        Some(Verdict::Reproduced) => ("a", "reproduced"),
        Some(Verdict::Better) => ("b", "better"),
        Some(Verdict::Direction) => ("c", "direction reproduced"),
        Some(Verdict::NotReproduced) => ("d", "not reproduced"),
        _ => ("e", "says nothing: calibrated, derived, not comparable, not run"),
    }
}

/// The marker of a verdict at a place.
fn marker(class: &str, x: f64, y: f64) -> String {
    let path = match class {
        "a" => format!("M{:.1} {y:.1}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z", x - 5.0),
        "b" => format!("M{x:.1} {:.1}l6 10h-12z", y - 6.0),
        "c" => format!("M{:.1} {:.1}h9v9h-9z", x - 4.5, y - 4.5),
        "d" => format!("M{x:.1} {:.1}l6 6l-6 6l-6 -6z", y - 6.0),
        _ => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", x - 4.0),
    };
    format!("<path class=\"fh-{class}\" d=\"{path}\"/>")
}

/// The style of the picture, on light and on dark pages. The verdicts have colours of the plots.
fn style() -> String {
    let page = |text, soft, grid, colour: fn((&'static str, &'static str)) -> &'static str| {
        let verdicts: String = [("a", 2), ("b", 5), ("c", 0), ("d", 1)]
            .map(|(class, at)| format!(".fh-{class}{{fill:{}}}", colour(COLOURS[at])))
            .concat();
        format!(
            ".fh text{{fill:{text}}}.fh .fh-s{{fill:{soft}}}.fh .fh-g{{stroke:{grid};fill:none}}\
             .fh .fh-1{{stroke:{soft};fill:none}}{verdicts}.fh-e{{fill:none;stroke:{soft}}}"
        )
    };
    format!(
        "<style>.fh{{font:12px system-ui,sans-serif}}{}@media (prefers-color-scheme:dark){{{}}}\
         </style>\n",
        page("#1c2733", "#4d5b6a", "#d5dce4", |colour| colour.0),
        page("#e4eaf1", "#a8b5c3", "#3a4653", |colour| colour.1)
    )
}

/// The picture of one paper's headlines: ours over published, the highest first.
pub(super) fn picture(title: &str, lines: &[Line<'_>]) -> String {
    let mut sorted: Vec<&Line<'_>> = lines.iter().collect();
    sorted.sort_by(|one, other| {
        let ratio = |line: &Line<'_>| line.ratio().unwrap_or(-1.0);
        ratio(other).total_cmp(&ratio(one))
    });
    let mut used: Vec<Option<Verdict>> = sorted.iter().map(|line| line.verdict).collect();
    used.sort_by_key(|verdict| look(*verdict).0);
    used.dedup_by_key(|verdict| look(*verdict).0);
    let top = 44.0 + 18.0 * used.len() as f64;
    let bottom = top + ROW * sorted.len() as f64;
    let height = bottom + 44.0;
    let mut out = String::new();
    let title = escape(title);
    put!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"fh\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\" aria-label=\"{title}\">"
    );
    out.push_str(&style());
    put!(out, "<text x=\"16\" y=\"22\" font-weight=\"600\">Ours over published</text>");
    for (at, verdict) in used.iter().enumerate() {
        let (class, name) = look(*verdict);
        let y = 42.0 + 18.0 * at as f64;
        out.push_str(&marker(class, 22.0, y - 4.0));
        put!(out, "<text x=\"34\" y=\"{y:.1}\" class=\"fh-s\">{name}</text>");
    }
    for ratio in [0.1, 0.5, 1.0, 2.0, 10.0] {
        let (x, class) = (across(ratio), if ratio == 1.0 { "fh-1" } else { "fh-g" });
        put!(out, "<path class=\"{class}\" d=\"M{x:.1} {top:.1}V{bottom:.1}\"/>");
        let y = bottom + 16.0;
        put!(
            out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"fh-s\" text-anchor=\"middle\">{}</text>",
            number(ratio)
        );
    }
    let middle = (AXIS.0 + AXIS.1) / 2.0;
    let y = bottom + 34.0;
    put!(
        out,
        "<text x=\"{middle:.1}\" y=\"{y:.1}\" class=\"fh-s\" text-anchor=\"middle\">ours / \
         published; right of 1 ours is larger</text>"
    );
    for (at, line) in sorted.iter().enumerate() {
        let y = top + ROW * at as f64;
        row(&mut out, line, y);
    }
    out.push_str("</svg>\n");
    out
}

/// A row of the picture: the statement, and below it the marker and the ratio.
fn row(out: &mut String, line: &Line<'_>, y: f64) {
    let (says, published, ours) =
        (escape(&line.headline.says), escape(&line.published()), escape(&line.ours()));
    let (class, name) = look(line.verdict);
    let middle = y + 23.0;
    put!(out, "<g><title>{says}: {published} published, {ours} ours: {name}</title>");
    put!(out, "<text x=\"16\" y=\"{:.1}\">{says}</text>", y + 12.0);
    let (left, right) = AXIS;
    put!(out, "<path class=\"fh-g\" d=\"M{left:.1} {middle:.1}H{right:.1}\"/>");
    // For a bound, an arrow points to the side of ratio 1 on which our number meets the bound.
    let one = across(1.0);
    match line.bound {
        Relation::About => {}
        Relation::AtLeast => {
            put!(out, "<path class=\"fh-1\" d=\"M{one:.1} {middle:.1}h24m-5 -4l5 4l-5 4\"/>");
        }
        Relation::AtMost => {
            put!(out, "<path class=\"fh-1\" d=\"M{one:.1} {middle:.1}h-24m5 -4l-5 4l5 4\"/>");
        }
    }
    let said = match line.ratio() {
        None => "–".to_owned(),
        Some(ratio) => {
            put!(out, "{}", marker(class, across(ratio), middle));
            format!("{}×", text::quantity((ratio * 100.0).round() / 100.0))
        }
    };
    put!(out, "<text x=\"396\" y=\"{:.1}\" text-anchor=\"end\">{said}</text></g>", middle + 4.0);
}

/// How many headlines have each verdict, for a sentence: the most frequent first.
pub fn counted<'a>(lines: impl IntoIterator<Item = &'a Line<'a>>) -> String {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for line in lines {
        let name = line.verdict.map_or_else(|| "not run".to_owned(), |verdict| verdict.to_string());
        match counts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    parts.join(", ")
}
