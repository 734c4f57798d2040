//! An outcome as a table in Markdown: every claim with our figure, the published one, their ratio,
//! and what was found where they differ. A document to be kept: the same runs give the same bytes.

use crate::cache::Build;
use crate::catalogue::{Catalogue, Claim, Verdict};
use crate::result::{ClaimResult, FigureResult, Processor};
use crate::runner::{Finished, Order, Outcome};
use crate::text::{self, anchor, cell, put};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The document on `outcome`; `command` is the command that made it.
pub fn markdown(
    catalogue: &Catalogue,
    outcome: &Outcome<'_>,
    order: &Order,
    build: &Build,
    command: &str,
) -> String {
    let mut out = String::new();
    head(&mut out, catalogue, outcome, order, build, command);
    let beside = outcome.claims.iter().flat_map(|f| &f.claim.figures).any(|f| f.processor);
    let (head, line) = if beside { (" processor |", "---|") } else { ("", "") };
    put!(out, "| claim | figure | ours | ± | unit | published | ratio | verdict |{head}");
    put!(out, "|---|---|--:|--:|---|--:|--:|---|{line}");
    outcome.claims.iter().for_each(|finished| rows(&mut out, finished, beside));
    if beside {
        out.push_str(PROCESSOR);
    }
    out.push_str("\n## What was found\n");
    outcome.claims.iter().for_each(|finished| finding(&mut out, finished));
    hosts(&mut out, outcome);
    waiting(&mut out, catalogue, outcome);
    out
}

/// The text that explains the processor column.
const PROCESSOR: &str = "\n*Processor*: what this machine's processor took for each operation, \
the emulation of the drives included, of the run and of what it is compared with; *together*: the \
figure if that is added to the times of the drives, which are what *ours* is made of. It differs \
from one run to the next.\n";

fn head(
    out: &mut String,
    catalogue: &Catalogue,
    outcome: &Outcome<'_>,
    order: &Order,
    build: &Build,
    command: &str,
) {
    let seeds = match order.seeds.len() {
        1 => "1 seed".to_owned(),
        count => format!("{count} seeds"),
    };
    put!(out, "# Claims tried\n\nMade by\n\n```sh\n{command}\n```\n");
    put!(
        out,
        "at commit `{build}`: {} size, {seeds}, on an emulated drive in virtual time. Ours is the \
         mean over the seeds, ± half of the range. What the verdicts mean, what the sizes are, and \
         how to run it: [lab.md](lab.md).\n",
        order.size
    );
    if build.changed {
        put!(out, "**The build differs from its commit.**\n");
    }
    if let Some(changed) = &catalogue.changed {
        let directory = &changed.directory;
        put!(
            out,
            "**The data are not those of the commit, but changed ones, from `{directory}`:**\n"
        );
        changed.lines().iter().for_each(|line| put!(out, "- `{line}`"));
        put!(out, "");
    }
    let figures = || outcome.claims.iter().flat_map(|f| f.result.iter().flat_map(|r| &r.figures));
    let count = |wanted| figures().filter(|figure| figure.verdict == wanted).count();
    let counts = Verdict::ALL.map(|verdict| format!("{} {verdict}", count(verdict)));
    put!(
        out,
        "{} claims; of their published figures: {}.\n",
        outcome.claims.len(),
        counts.join(", ")
    );
}

fn rows(out: &mut String, finished: &Finished<'_>, beside: bool) {
    let claim = finished.claim;
    let result = match &finished.result {
        Ok(result) => result,
        Err(why) => {
            return put!(
                out,
                "| {} | {} | | | | | | failed: {} |",
                claim.id,
                claim.what,
                cell(why)
            );
        }
    };
    for figure in result.main() {
        let data = &figure.figure;
        let verdict = figure.verdict;
        let processor = match &figure.processor {
            Some(processor) => format!(" {} |", taken(processor, text::unit(&data.unit))),
            None if beside => " |".to_owned(),
            None => String::new(),
        };
        put!(
            out,
            "| [{}](#{}) | {} | {} | {} | {} | {} | {} | {verdict} |{processor}",
            claim.id,
            anchor(claim),
            cell(&data.name),
            text::quantity(figure.ours.mean),
            text::spread(&figure.ours),
            text::unit(&data.unit),
            text::published(data),
            text::ratio(figure.ratio),
        );
    }
}

fn taken(processor: &Processor, unit: &str) -> String {
    let time = |nanoseconds: f64| match nanoseconds {
        ns if ns >= 1e7 => format!("{} ms", text::quantity(ns / 1e6)),
        ns => format!("{} µs", text::quantity(ns / 1e3)),
    };
    let mut says = time(processor.own);
    if let Some(per) = processor.per {
        says.push_str(&format!(" against {}", time(per)));
    }
    if let Some(together) = processor.together {
        says.push_str(&format!("; together {} {unit}", text::quantity(together)));
    }
    says
}

fn finding(out: &mut String, finished: &Finished<'_>) {
    let claim = finished.claim;
    put!(out, "\n### {} {}\n", claim.id, claim.what);
    if let Some(forecast) = &claim.forecast {
        put!(out, "Expected beforehand: {forecast}\n");
    }
    let missed = |result: &ClaimResult| result.verdict() == Verdict::NotReproduced;
    match (&claim.explanation, &finished.result) {
        (Some(text), _) => put!(out, "{text}\n"),
        (None, Ok(result)) if missed(result) => put!(out, "Not explained yet.\n"),
        _ => {}
    }
    let Ok(result) = &finished.result else { return };
    let tried: Vec<&FigureResult> =
        result.figures.iter().filter(|figure| figure.figure.is_trial()).collect();
    if tried.is_empty() {
        return;
    }
    put!(out, "| tried | ours | ± | unit |\n|---|--:|--:|---|");
    for figure in tried {
        put!(
            out,
            "| {} | {} | {} | {} |",
            cell(&figure.figure.name),
            text::quantity(figure.ours.mean),
            text::spread(&figure.ours),
            text::unit(&figure.figure.unit)
        );
    }
}

/// The drives and hosts of the runs.
fn hosts(out: &mut String, outcome: &Outcome<'_>) {
    let mut found: BTreeSet<(String, String, &str)> = BTreeSet::new();
    for finished in &outcome.claims {
        let series = finished.result.iter().flat_map(|result| &result.series);
        for point in series.flat_map(|one| &one.series.points) {
            let engine = point.point.profile.engine != crate::catalogue::Engine::None;
            let host = point.point.host.describe(engine);
            found.insert((point.point.device.clone(), host, &finished.claim.id));
        }
    }
    put!(out, "\n## Drives and hosts\n");
    let mut last = None;
    for (device, host, claim) in found {
        if last != Some((device.clone(), host.clone())) {
            let _ = write!(
                out,
                "{}- `{device}`; {host}: {claim}",
                if last.is_some() { "\n" } else { "" }
            );
            last = Some((device, host));
        } else {
            let _ = write!(out, ", {claim}");
        }
    }
    out.push('\n');
}

fn waiting(out: &mut String, catalogue: &Catalogue, outcome: &Outcome<'_>) {
    let sources: BTreeSet<&str> = outcome.claims.iter().map(|f| &*f.claim.source).collect();
    let waiting = |claim: &&Claim| !catalogue.has_all(claim) && sources.contains(&*claim.source);
    let waiting: Vec<&Claim> = catalogue.claims.iter().filter(waiting).collect();
    if waiting.is_empty() {
        return;
    }
    put!(out, "\n## Not tried\n\n| claim | what | needs |\n|---|---|---|");
    for claim in waiting {
        let needs = claim.needs.as_deref().unwrap_or_else(|| claim.lacks());
        put!(out, "| {} | {} | {} |", claim.id, cell(&claim.what), cell(needs));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::catalogue::Size;
    use crate::{fixture, runner};

    #[test]
    fn every_claim_has_its_figure_and_what_was_found() {
        let shown = r#"
explanation = "the cause"
figures = [
  { name = "a | b", unit = "MB/s", paper = 10, run = "r" },
  { name = "tried", unit = "MB/s", run = "r" },
]
[[claim.runs]]
name = "r"
"#;
        let claims = fixture::claims(&[
            fixture::claim("N1", "shown (all of it)", "more", shown),
            fixture::failing("N2"),
            fixture::needing("N3", "cannot be run", "a wing"),
        ]);
        let catalogue = Catalogue::parse(fixture::SETUP, &claims).unwrap();
        let claims: Vec<&Claim> = catalogue.claims.iter().collect();
        let order =
            Order { size: Size::Scaled, seeds: vec![1, 2], threads: 2, traces: Default::default() };
        let build = Build { commit: "abc123".to_owned(), changed: false };
        let cache = Cache::none(build.clone());
        let outcome = runner::run(&catalogue, &claims, &order, &cache, &|_| {}).unwrap();
        let text = markdown(&catalogue, &outcome, &order, &build, "furrow-lab table");
        for wanted in [
            "`abc123`",
            "furrow-lab table",
            "| [N1](#n1-shown-all-of-it) | a \\| b |",
            "| not reproduced |",
            "### N1 shown (all of it)\n\nExpected beforehand: more\n\nthe cause",
            "| tried |",
            "failed: run `r`",
            "| N3 | cannot be run | a wing |",
            "1 not reproduced,",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in\n{text}");
        }
        assert!(text.lines().filter(|line| line.starts_with("- `mem:")).count() == 1, "{text}");
    }
}
