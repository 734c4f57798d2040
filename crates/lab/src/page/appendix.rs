//! The appendix of a paper: each claim with its published figures, their cause and what was found.
//!
//! Not here: trials, expectations, earlier figures and variants. They stay in the data.

use super::{Row, Shown};
use crate::catalogue::{Catalogue, Figure, Relation, Source, Verdict, elsewhere};
use crate::stored::{self, Kept};
use crate::text::{self, cell, put};
use std::fmt::Write as _;

/// The page about the claims of `paper`.
pub(super) fn page(
    catalogue: &Catalogue,
    paper: &str,
    source: &Source,
    claims: &[Shown<'_>],
    all: &[Kept],
) -> String {
    let mut out = format!("# {paper}: the claims\n\n");
    let title = &source.title;
    let clock = if source.real_time { "by the real clock" } else { "in virtual time" };
    put!(
        out,
        "{title}, {clock} on an emulated drive. What the verdicts mean: [claims.md](../claims.md). \
         Ours is the mean over the seeds, ± half of their range.\n"
    );
    if claims.iter().any(|shown| shown.claim.is_runnable()) {
        put!(
            out,
            "`furrow-lab report ID` runs a claim and shows the rest: what was expected, the \
             scenario, all trials, and what was found at length. Earlier figures and variants are \
             in [data/claims.jsonl](../data/claims.jsonl).\n"
        );
    }
    setups(&mut out, claims);
    open_values(&mut out, source, claims, all);
    for claim in claims {
        section(&mut out, catalogue, claim, all);
    }
    let missing: Vec<&Shown<'_>> = claims.iter().filter(|claim| claim.kept.is_none()).collect();
    if !missing.is_empty() {
        put!(out, "## Not run\n\n| claim | what | needs |\n|---|---|---|");
        for shown in missing {
            let needs = shown.claim.needs.as_deref().unwrap_or("a run that is kept");
            put!(out, "| {} | {} | {} |", shown.claim.id, cell(&shown.claim.what), cell(needs));
        }
    }
    out
}

/// Writes the commands and remarks of all claims, each once. The one that most claims share
/// comes last.
fn setups(out: &mut String, claims: &[Shown<'_>]) {
    let mut setups: Vec<(String, Vec<&str>)> = Vec::new();
    for (shown, kept) in claims.iter().filter_map(|shown| Some((shown, shown.kept?))) {
        let id = &*shown.claim.id;
        let words = kept.command.split(' ').map(|word| if word == id { "ID" } else { word });
        let command = words.collect::<Vec<_>>().join(" ");
        let note = if kept.note.is_empty() { String::new() } else { format!(" {}", kept.note) };
        let text = format!("`{command}`.{note}");
        match setups.iter_mut().find(|(known, _)| *known == text) {
            Some((_, ids)) => ids.push(id),
            None => setups.push((text, vec![id])),
        }
    }
    setups.sort_by_key(|(_, ids)| ids.len());
    let Some((usual, rest)) = setups.split_last() else { return };
    for (text, ids) in rest {
        put!(out, "- {}: {text}", ids.join(", "));
    }
    let whose = if rest.is_empty() { "All claims" } else { "All others" };
    put!(out, "- {whose}: {}\n", usual.0);
}

/// Names the claims whose verdicts are the worst over all plausible values for what the paper
/// leaves open. The verdicts on other claims hold at one of these values.
fn open_values(out: &mut String, source: &Source, claims: &[Shown<'_>], all: &[Kept]) {
    let varied = |shown: &&Shown<'_>| {
        let mut variants = source.plausible.iter();
        variants.any(|variant| stored::varied(all, &shown.claim.id, variant).is_some())
    };
    let ids: Vec<&str> = claims.iter().filter(varied).map(|shown| &*shown.claim.id).collect();
    if !ids.is_empty() {
        put!(
            out,
            "A verdict on {} is the worst of the run and of the variants {}; that on other claims \
             of files holds at the limit of their host (`setup.toml`).\n",
            ids.join(", "),
            source.plausible.join(", ")
        );
    }
}

/// Writes the section about a claim; nothing if the claim has no kept figures.
fn section(out: &mut String, catalogue: &Catalogue, shown: &Shown<'_>, all: &[Kept]) {
    if shown.kept.is_none() {
        return;
    }
    let claim = shown.claim;
    let only = shown.only_verdict();
    let verdict = only.map_or_else(String::new, |verdict| format!(" ({verdict})"));
    put!(out, "## {} {}{verdict}\n", claim.id, claim.what);
    figures(out, shown, only.is_none());
    if let Some(why) = &claim.incomparable {
        let moved = shown_by(catalogue, shown, all);
        let moved = if moved.is_empty() { moved } else { format!(" Without it: {moved}.") };
        put!(out, "**Not comparable**: {why}{moved}\n");
    } else if shown.count(Verdict::NotReproduced) > 0 {
        cause(out, catalogue, shown, all);
    }
    if let Some(text) = &claim.found {
        put!(out, "{text}\n");
    }
}

/// Writes the table of published figures; if verdicts `differ`, with a column for them.
fn figures(out: &mut String, shown: &Shown<'_>, differ: bool) {
    if shown.published().next().is_none() {
        return;
    }
    match differ {
        true => put!(out, "| figure | ours | published | verdict |\n|---|--:|--:|---|"),
        false => put!(out, "| figure | ours | published |\n|---|--:|--:|"),
    }
    for row in shown.published().filter(|row| row.stands()) {
        let name = cell(&row.figure.name) + &of_sweep(shown, row);
        let verdict = if differ { format!(" {} |", verdict(row)) } else { String::new() };
        put!(out, "| {name} | {} | {} |{verdict}", ours(row), text::published(row.figure));
    }
    out.push('\n');
}

/// Says which point of a sweep the figure is, and how many points the sweep has; empty for a figure
/// without a sweep.
fn of_sweep(shown: &Shown<'_>, row: &Row<'_>) -> String {
    let Some(sweep) = &row.figure.sweep else { return String::new() };
    let points = shown.published().filter(|other| other.figure.sweep.as_ref() == Some(sweep));
    let which = match row.figure.relation {
        Relation::AtMost => "highest",
        Relation::About | Relation::AtLeast => "worst",
    };
    format!(" ({which} of {})", points.count())
}

/// The verdict, with the variant that decides it; or the claim that counts a repeated experiment.
fn verdict(row: &Row<'_>) -> String {
    match (row.verdict, &row.figure.same_as, row.there) {
        (Verdict::Repeated, Some(same), _) => {
            format!("as {}", elsewhere(same).map_or(&**same, |(id, _)| id))
        }
        (verdict, _, Some((variant, ours))) => {
            let (ours, unit) = (text::quantity(ours), text::unit(&row.figure.unit));
            format!("{verdict} ({variant}: {ours} {unit})")
        }
        (verdict, ..) => verdict.to_string(),
    }
}

/// The mean with its unit, and the spread of the results over the seeds.
fn ours(row: &Row<'_>) -> String {
    let (mean, unit) = (text::quantity(row.ours.mean), text::unit(&row.figure.unit));
    match &*text::spread(&row.ours) {
        "–" | "0.0 %" => format!("{mean} {unit}"),
        spread if spread.contains("to") || spread.contains("not") => {
            format!("{mean} {unit} ({spread})")
        }
        spread => format!("{mean} {unit} ± {spread}"),
    }
}

fn cause(out: &mut String, catalogue: &Catalogue, shown: &Shown<'_>, all: &[Kept]) {
    let claim = shown.claim;
    let mut missed = shown.published().filter(|row| row.verdict == Verdict::NotReproduced);
    match (&claim.cause, claim.moved.is_empty()) {
        (Some(cause), false) => {
            let moved = shown_by(catalogue, shown, all);
            put!(out, "**Cause**: {cause} Shown by: {moved}.\n");
        }
        (Some(cause), true) => {
            put!(out, "**Suspected cause**: {cause} No experiment moved it.\n");
        }
        // The table already shows the variant and our value there.
        (None, _) if missed.all(|row| row.there.is_some()) => {
            put!(out, "**Cause**: the variant decides, of which nothing is published.\n");
        }
        (None, _) => put!(out, "**No cause was found.**\n"),
    }
}

/// The trials that moved the claim's figures, with their values.
fn shown_by(catalogue: &Catalogue, shown: &Shown<'_>, all: &[Kept]) -> String {
    let moved = shown.claim.moved.iter().map(|name| evidence(catalogue, shown, all, name));
    moved.collect::<Vec<_>>().join("; ")
}

/// The trial called `name`, which may be one of another claim or in a variant, with its value.
fn evidence(catalogue: &Catalogue, shown: &Shown<'_>, all: &[Kept], name: &str) -> String {
    let (id, own) = elsewhere(name).unwrap_or((&*shown.claim.id, name));
    let variant = catalogue.variants.iter().any(|variant| variant.name == id).then_some(id);
    let id = if variant.is_some() { &*shown.claim.id } else { id };
    let claim = catalogue.claim(id);
    let figure = claim.and_then(|claim| claim.figures.iter().find(|figure| figure.name == own));
    let kept = stored::varied(all, id, variant.unwrap_or_default());
    let sample = |figure: &Figure| kept?.sample(figure);
    match figure.and_then(|figure| Some((figure, sample(figure)?))) {
        None => name.to_owned(),
        Some((figure, sample)) => {
            let (mean, unit) = (text::quantity(sample.mean), text::unit(&figure.unit));
            format!("{name} ({mean} {unit})")
        }
    }
}
