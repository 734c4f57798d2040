//! The pages about claims, made from kept figures. `docs/research/claims.md` says what holds of
//! each paper; each paper also has an appendix and a picture below `docs/research/claims/`.
//!
//! Nothing is run: the same data give the same bytes. Verdicts are computed here from the figures,
//! so a change of the rule takes effect on all pages at once.

mod appendix;
pub mod headlines;
#[cfg(test)]
mod tests;

use crate::catalogue::{Catalogue, Claim, Figure, Verdict};
use crate::result::Sample;
use crate::stored::{self, Kept};
use crate::text::put;
use headlines::Line;
use std::fmt::Write as _;

/// Papers in the order of the pages, as names of sources.
const PAPERS: [&str; 4] = ["z-lfs", "hzfs", "zapraid", "same-victim"];

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
    /// If the verdict is that of a plausible variant: the variant, and our value there.
    there: Option<(&'a str, f64)>,
}

impl Row<'_> {
    /// True if the row is shown. Only one figure of a sweep is shown, the one with the verdict.
    fn stands(&self) -> bool {
        self.verdict != Verdict::Repeated || self.figure.sweep.is_none()
    }
}

/// A claim with its stored figures.
struct Shown<'a> {
    claim: &'a Claim,
    kept: Option<&'a Kept>,
    /// Figures with stored values, in the order of the catalogue.
    rows: Vec<Row<'a>>,
}

impl<'a> Shown<'a> {
    fn new(claim: &'a Claim, plausible: &'a [String], all: &'a [Kept]) -> Shown<'a> {
        let kept = stored::current(all, &claim.id);
        let samples = |kept: Option<&Kept>| -> Vec<Option<Sample>> {
            claim.figures.iter().map(|figure| kept?.sample(figure)).collect()
        };
        let ours = samples(kept);
        let verdicts = claim.verdicts(&ours);
        let of = |((figure, ours), verdict): ((&'a Figure, Option<Sample>), Verdict)| {
            Some(Row { figure, ours: ours?, verdict, there: None })
        };
        let rows = claim.figures.iter().zip(ours).zip(verdicts).filter_map(of);
        let mut shown = Shown { claim, kept, rows: rows.collect() };
        for variant in plausible {
            let ours = samples(stored::varied(all, &claim.id, variant));
            shown.worst_of(variant, &ours, &claim.verdicts(&ours));
        }
        shown
    }

    /// Takes over each verdict that is worse in `variant`. `ours` and `verdicts` are those of the
    /// claim's figures in the variant.
    fn worst_of(&mut self, variant: &'a str, ours: &[Option<Sample>], verdicts: &[Verdict]) {
        for row in self.rows.iter_mut().filter(|row| row.verdict.compares()) {
            let same = |other: &Figure| match &row.figure.sweep {
                Some(sweep) => other.sweep.as_ref() == Some(sweep),
                None => other.name == row.figure.name,
            };
            let there = self.claim.figures.iter().zip(ours).zip(verdicts);
            let there = there.filter(|((figure, _), verdict)| same(figure) && verdict.compares());
            let worse = there.filter(|(_, verdict)| **verdict > row.verdict);
            if let Some(((_, Some(ours)), verdict)) = worse.max_by_key(|(_, verdict)| **verdict) {
                (row.verdict, row.there) = (*verdict, Some((variant, ours.mean)));
            }
        }
    }

    /// Figures that were published.
    fn published(&self) -> impl Iterator<Item = &Row<'a>> {
        self.rows.iter().filter(|row| row.figure.paper.is_some())
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.published().filter(|row| row.verdict == verdict).count()
    }

    /// The verdict of all published figures, if it is the same for all.
    fn only_verdict(&self) -> Option<Verdict> {
        let mut rows = self.published().filter(|row| row.stands());
        let first = rows.next()?;
        let same = |row: &Row<'_>| row.verdict == first.verdict && row.there.is_none();
        (first.there.is_none() && rows.all(same)).then_some(first.verdict)
    }
}

/// A text that ends with one line break.
fn ended(mut text: String) -> String {
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// The claims of each paper with their kept figures, in the order of the pages.
fn shown<'a>(catalogue: &'a Catalogue, kept: &'a [Kept]) -> Vec<(&'static str, Vec<Shown<'a>>)> {
    PAPERS
        .iter()
        .filter(|paper| catalogue.sources.contains_key(**paper))
        .map(|paper| {
            let own = catalogue.claims.iter().filter(|claim| claim.source == **paper);
            let plausible = catalogue.sources.get(*paper).map_or(&[][..], |s| &s.plausible[..]);
            (*paper, own.map(|claim| Shown::new(claim, plausible, kept)).collect())
        })
        .collect()
}

/// All headlines, in the order of the pages, with our numbers from `kept`.
pub fn headlines<'a>(catalogue: &'a Catalogue, kept: &'a [Kept]) -> Vec<Line<'a>> {
    let papers = shown(catalogue, kept);
    papers.iter().flat_map(|(paper, claims)| lines(catalogue, paper, claims)).collect()
}

/// All pages about `kept`.
pub fn files(catalogue: &Catalogue, kept: &[Kept]) -> Vec<File> {
    let mut files = Vec::new();
    let papers = shown(catalogue, kept);
    files.push(File { path: "claims.md".to_owned(), text: ended(summary(catalogue, &papers)) });
    for (paper, claims) in &papers {
        if claims.iter().all(|claim| claim.rows.is_empty()) {
            continue;
        }
        let Some(source) = catalogue.sources.get(*paper) else { continue };
        let text = ended(appendix::page(catalogue, paper, source, claims, kept));
        files.push(File { path: format!("claims/{paper}.md"), text });
        let lines = lines(catalogue, paper, claims);
        if !lines.is_empty() {
            let text =
                headlines::picture(&format!("{}: ours over published", source.title), &lines);
            files.push(File { path: format!("claims/{paper}.svg"), text });
        }
    }
    files
}

/// The headlines of `paper`, whose claims are `claims`.
fn lines<'a>(catalogue: &'a Catalogue, paper: &str, claims: &[Shown<'a>]) -> Vec<Line<'a>> {
    let own = catalogue.headlines.iter().filter(|headline| headline.paper == paper);
    own.map(|headline| Line::new(catalogue, headline, claims)).collect()
}

fn summary(catalogue: &Catalogue, papers: &[(&str, Vec<Shown<'_>>)]) -> String {
    let mut out = String::from("# What holds of four papers\n\n");
    let all = |verdict| {
        papers
            .iter()
            .flat_map(|(_, claims)| claims)
            .map(|claim| claim.count(verdict))
            .sum::<usize>()
    };
    let [reproduced, direction, better, missed, ..] = Verdict::ALL.map(all);
    let timed =
        |(paper, _): &&(&str, _)| catalogue.sources.get(*paper).is_some_and(|s| s.real_time);
    let timed: Vec<&str> = papers.iter().filter(timed).map(|(paper, _)| *paper).collect();
    let except = match &timed[..] {
        [] => String::new(),
        some => format!(", except those of {}, which are by the real clock", some.join(", ")),
    };
    let of_paper = papers.iter().map(|(paper, claims)| (*paper, lines(catalogue, paper, claims)));
    let headlines: Vec<(&str, Vec<Line<'_>>)> = of_paper.collect();
    let count = headlines.iter().map(|(_, lines)| lines.len()).sum::<usize>();
    if count > 0 {
        put!(
            out,
            "Of {count} headlines (each number of abstract, introduction and conclusion, and the \
             results of the sections that these rest on): {}. The tables below have all of them. \
             `make claims` runs again what needs neither the real clock nor a trace, with one \
             seed.\n",
            headlines::counted(headlines.iter().flat_map(|(_, lines)| lines))
        );
    }
    put!(
        out,
        "{reproduced} published figures are reproduced, {direction} in their direction only, \
         {better} are bettered, {missed} are none of these. All are of emulated drives, not of \
         hardware, and in virtual time{except}. The appendix of each paper has all figures, and \
         why those are missed that are missed. Both are made by `furrow-lab pages docs/research` \
         from [data/claims.jsonl](data/claims.jsonl), which has the commit and the command of \
         each figure; [lab.md](lab.md) says how to run a claim.\n"
    );
    let columns = || Verdict::ALL.into_iter().chain(Verdict::APART);
    let heads: String = columns().map(|verdict| format!(" {verdict} |")).collect();
    let rule = "--:|".repeat(columns().count() + 1);
    put!(out, "| published figures |{heads} not run |\n|---|{rule}");
    for (paper, claims) in papers {
        let count = |verdict| claims.iter().map(|claim| claim.count(verdict)).sum::<usize>();
        let counts: String = columns().map(|verdict| format!(" {} |", count(verdict))).collect();
        let all = claims.iter().flat_map(|claim| &claim.claim.figures);
        let all = all.filter(|figure| figure.paper.is_some()).count();
        let run: usize = claims.iter().map(|claim| claim.published().count()).sum();
        put!(out, "| [{paper}](#{paper}) |{counts} {} |", all - run);
    }
    put!(out, "\nA program computes the verdict of a figure from the numbers:\n");
    for verdict in columns() {
        put!(out, "- **{verdict}**: {}", verdict.rule());
    }
    out.push('\n');
    for (paper, claims) in papers {
        put!(out, "## {paper}\n");
        let run = claims.iter().any(|claim| !claim.rows.is_empty());
        if let Some(source) = catalogue.sources.get(*paper) {
            let appendix = match run {
                true => format!(" All figures: [claims/{paper}.md](claims/{paper}.md)."),
                false => String::new(),
            };
            put!(out, "{}.{appendix}\n", source.title);
            source.holds.iter().for_each(|sentence| put!(out, "- {sentence}"));
            out.push('\n');
        }
        let own = headlines.iter().find(|(of, lines)| of == paper && !lines.is_empty());
        if let Some((_, lines)) = own.filter(|_| run) {
            headlines::table(&mut out, paper, lines);
            put!(out, "![Ours over published](claims/{paper}.svg)\n");
        }
    }
    out
}
