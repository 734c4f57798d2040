//! The pages about claims, from figures that are kept: `docs/research/claims.md` with a line for
//! each claim, and for each paper an appendix and a picture below `docs/research/claims/`.
//!
//! Nothing is run: the same data give the same bytes. Verdicts are computed here from the figures,
//! so a change of the rule takes effect on all pages at once.

mod appendix;
#[cfg(test)]
mod tests;

use crate::catalogue::{Catalogue, Claim, Figure, Verdict};
use crate::plot::{Axis, Mark, Plot, Point};
use crate::result::Sample;
use crate::stored::{self, Kept};
use crate::text::{self, anchor, cell, put};
use std::fmt::Write as _;

/// Papers in the order of the pages, as names of sources.
const PAPERS: [&str; 4] = ["z-lfs", "hzfs", "zapraid", "same-victim"];

/// Number of figures in a claim's line; the appendix has all figures.
const SHOWN: usize = 3;

/// A file of the pages.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// Path below the folder of documents.
    pub path: String,
    /// Content of the file.
    pub text: String,
}

/// A figure with its stored values.
struct Row<'a> {
    figure: &'a Figure,
    ours: Sample,
    verdict: Verdict,
}

/// A claim with its stored figures.
struct Shown<'a> {
    claim: &'a Claim,
    kept: Option<&'a Kept>,
    /// Figures with stored values, in the order of the catalogue.
    rows: Vec<Row<'a>>,
}

impl<'a> Shown<'a> {
    fn new(claim: &'a Claim, all: &'a [Kept]) -> Shown<'a> {
        let kept = stored::current(all, &claim.id);
        let rows = claim.figures.iter().filter_map(|figure| {
            let ours = kept?.sample(figure)?;
            Some(Row { figure, verdict: claim.verdict(figure, &ours), ours })
        });
        Shown { claim, kept, rows: rows.collect() }
    }

    /// Figures that were published.
    fn published(&self) -> impl Iterator<Item = &Row<'a>> {
        self.rows.iter().filter(|row| row.figure.paper.is_some())
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.published().filter(|row| row.verdict == verdict).count()
    }

    /// The verdict in words: one verdict, or how many of each.
    fn verdict(&self) -> String {
        let counts = Verdict::ALL.map(|verdict| (verdict, self.count(verdict)));
        let some: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
        match some[..] {
            [] => "not run".to_owned(),
            [(verdict, _)] => verdict.to_string(),
            _ => {
                let words = some.iter().map(|(verdict, count)| format!("{count} {verdict}"));
                words.collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// The cause, or the statement that none is known.
    fn cause(&self) -> String {
        let missed = self.count(Verdict::NotReproduced) > 0;
        match (&self.claim.incomparable, &self.claim.cause) {
            (Some(why), _) => cell(why),
            (None, Some(cause)) if missed => match self.claim.moved.is_empty() {
                true => format!("{} (no experiment moved it)", cell(cause)),
                false => cell(cause),
            },
            (None, None) if missed => "No cause found.".to_owned(),
            _ => String::new(),
        }
    }
}

/// A text that ends with one line break.
fn ended(mut text: String) -> String {
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// All pages about `kept`.
pub fn files(catalogue: &Catalogue, kept: &[Kept]) -> Vec<File> {
    let mut files = Vec::new();
    let papers: Vec<(&str, Vec<Shown<'_>>)> = PAPERS
        .iter()
        .filter(|paper| catalogue.sources.contains_key(**paper))
        .map(|paper| {
            let own = catalogue.claims.iter().filter(|claim| claim.source == **paper);
            (*paper, own.map(|claim| Shown::new(claim, kept)).collect())
        })
        .collect();
    files.push(File { path: "claims.md".to_owned(), text: ended(summary(catalogue, &papers)) });
    for (paper, claims) in &papers {
        if claims.iter().all(|claim| claim.rows.is_empty()) {
            continue;
        }
        let Some(source) = catalogue.sources.get(*paper) else { continue };
        let text = ended(appendix::page(paper, source, claims, kept, &catalogue.variants));
        files.push(File { path: format!("claims/{paper}.md"), text });
        let text = picture(&source.title, claims).svg();
        files.push(File { path: format!("claims/{paper}.svg"), text });
    }
    files
}

fn summary(catalogue: &Catalogue, papers: &[(&str, Vec<Shown<'_>>)]) -> String {
    let mut out = String::from("# What holds of four papers\n\n");
    let timed =
        |(paper, _): &&(&str, _)| catalogue.sources.get(*paper).is_some_and(|s| s.real_time);
    let timed: Vec<&str> = papers.iter().filter(timed).map(|(paper, _)| *paper).collect();
    let except = match &timed[..] {
        [] => String::new(),
        some => format!(", except those of {}, which are by the real clock", some.join(", ")),
    };
    put!(
        out,
        "Made by `furrow-lab pages docs/research` from [data/claims.jsonl](data/claims.jsonl), \
         which has the commit and the command of every figure. All figures are of emulated drives, \
         not of hardware, and in virtual time{except}. How they are made: [lab.md](lab.md).\n"
    );
    put!(out, "A figure has one of five verdicts, which a program computes from the numbers:\n");
    for verdict in Verdict::ALL {
        put!(out, "- **{verdict}**: {}", verdict.rule());
    }
    let heads = Verdict::ALL.map(|verdict| format!(" {verdict} |")).concat();
    put!(out, "\n| published figures |{heads} not run |\n|---|--:|--:|--:|--:|--:|--:|");
    for (paper, claims) in papers {
        let count = |verdict| claims.iter().map(|claim| claim.count(verdict)).sum::<usize>();
        let counts = Verdict::ALL.map(|verdict| format!(" {} |", count(verdict))).concat();
        let all = claims.iter().flat_map(|claim| &claim.claim.figures);
        let all = all.filter(|figure| figure.paper.is_some()).count();
        let run: usize = claims.iter().map(|claim| claim.published().count()).sum();
        put!(out, "| [{paper}](#{paper}) |{counts} {} |", all - run);
    }
    for (paper, claims) in papers {
        put!(out, "\n## {paper}\n");
        if let Some(source) = catalogue.sources.get(*paper) {
            put!(out, "{}.\n", source.title);
            put!(out, "{}\n", source.holds.join(" "));
        }
        if claims.iter().all(|claim| claim.rows.is_empty()) {
            continue;
        }
        put!(out, "![Ours against published](claims/{paper}.svg)\n");
        let without: Vec<String> = claims.iter().filter_map(not_drawn).collect();
        if !without.is_empty() {
            put!(
                out,
                "Logarithmic axes have no 0, so figures of 0 and below are not in the picture: \
                 {}.\n",
                without.join(", ")
            );
        }
        put!(out, "| claim | what | ours | published | verdict | cause |");
        put!(out, "|---|---|--:|--:|---|---|");
        for claim in claims.iter().filter(|claim| claim.published().next().is_some()) {
            line(&mut out, paper, claim);
        }
    }
    out
}

/// The line of a claim.
fn line(out: &mut String, paper: &str, claim: &Shown<'_>) {
    let rows: Vec<&Row<'_>> = claim.published().collect();
    let more = if rows.len() > SHOWN { format!(" … ({})", rows.len()) } else { String::new() };
    let join = |text: &dyn Fn(&Row<'_>) -> String| {
        let texts: Vec<String> = rows.iter().take(SHOWN).map(|row| text(row)).collect();
        format!("{}{more}", texts.join(" · "))
    };
    let with_unit = |row: &Row<'_>| {
        format!("{} {}", text::quantity(row.ours.mean), text::unit(&row.figure.unit))
    };
    put!(
        out,
        "| [{}](claims/{paper}.md#{}) | {} | {} | {} | {} | {} |",
        claim.claim.id,
        anchor(claim.claim),
        cell(&claim.claim.what),
        join(&with_unit),
        join(&|row| text::published(row.figure)),
        claim.verdict(),
        claim.cause(),
    );
}

/// A figure's place in the picture, if it has one: the published value and ours.
fn place(row: &Row<'_>) -> Option<(f64, f64)> {
    let ours = row.ours.mean;
    let published = row.figure.paper?.nearest(ours);
    (ours > 0.0 && published > 0.0).then_some((published, ours))
}

/// The claim's figures that have no place in the picture: the claim's name and their number.
fn not_drawn(claim: &Shown<'_>) -> Option<String> {
    match claim.published().filter(|row| place(row).is_none()).count() {
        0 => None,
        1 => Some(format!("one of {}", claim.claim.id)),
        count => Some(format!("{count} of {}", claim.claim.id)),
    }
}

/// Our figures against the published ones, with a shape for each verdict.
fn picture(title: &str, claims: &[Shown<'_>]) -> Plot {
    let axis = |what: &str| Axis::log(format!("{what}, each figure in its unit"));
    let mut plot = Plot::new(title, axis("published"), axis("ours")).sized(720, 560);
    let (mut low, mut high) = (f64::INFINITY, 0.0f64);
    for verdict in Verdict::ALL {
        let rows = claims.iter().flat_map(|shown| shown.published().map(move |row| (shown, row)));
        let points = rows.filter(|(_, row)| row.verdict == verdict).filter_map(|(shown, row)| {
            let unit = text::unit(&row.figure.unit);
            let note = format!("{}: {}, in {unit}", shown.claim.id, row.figure.name);
            place(row).map(|(published, ours)| Point::new(published, ours).note(note))
        });
        let points: Vec<Point> = points.collect();
        for point in &points {
            low = low.min(point.x).min(point.y);
            high = high.max(point.x).max(point.y);
        }
        if !points.is_empty() {
            plot = plot.scatter(verdict.to_string(), points);
        }
    }
    if high > 0.0 {
        plot = plot.mark(Mark::Slope("ours = published".to_owned(), (low, low), (high, high)));
    }
    plot
}
