//! The appendix of a paper: all figures of its claims, trials, what was found, and history.

use super::{Row, Shown};
use crate::catalogue::{Source, Variant, Verdict};
use crate::result::Sample;
use crate::stored::{self, Kept};
use crate::text::{self, anchor, cell, put};
use std::fmt::Write as _;

/// The page about the claims of `paper`.
pub(super) fn page(
    paper: &str,
    source: &Source,
    claims: &[Shown<'_>],
    all: &[Kept],
    variants: &[Variant],
) -> String {
    let mut out = format!("# {paper}: figures, trials, history\n\n");
    let title = &source.title;
    let clock = if source.real_time { "by the real clock" } else { "in virtual time" };
    put!(out, "{title}. The summary, and what the verdicts mean: [claims.md](../claims.md).\n");
    put!(
        out,
        "Ours is the mean over the seeds, ± half of the range, on an emulated drive, {clock}. \
         *Expected* was written before the first run of a claim; what was found was written after \
         it.\n"
    );
    put!(out, "| claim | figure | ours | ± | unit | published | ratio | verdict |");
    put!(out, "|---|---|--:|--:|---|--:|--:|---|");
    for claim in claims {
        for row in claim.rows.iter().filter(|row| !row.figure.is_trial()) {
            figure(&mut out, claim, row);
        }
    }
    for claim in claims {
        section(&mut out, claim);
        sensitivity(&mut out, claim, all, variants);
        history(&mut out, claim, all);
    }
    let missing: Vec<&Shown<'_>> = claims.iter().filter(|claim| claim.rows.is_empty()).collect();
    if !missing.is_empty() {
        put!(out, "\n## Not run\n\n| claim | what | needs |\n|---|---|---|");
        for shown in missing {
            let needs = shown.claim.needs.as_deref().unwrap_or("a run that is kept");
            put!(out, "| {} | {} | {} |", shown.claim.id, cell(&shown.claim.what), cell(needs));
        }
    }
    out
}

fn figure(out: &mut String, claim: &Shown<'_>, row: &Row<'_>) {
    let near = row.figure.paper.map(|paper| paper.nearest(row.ours.mean));
    let ratio = near.filter(|near| *near > 0.0).map(|near| row.ours.mean / near);
    put!(
        out,
        "| [{}](#{}) | {} | {} | {} | {} | {} | {} | {} |",
        claim.claim.id,
        anchor(claim.claim),
        cell(&row.figure.name),
        text::quantity(row.ours.mean),
        text::spread(&row.ours),
        text::unit(&row.figure.unit),
        text::published(row.figure),
        text::ratio(ratio),
        row.verdict,
    );
}

/// Writes the section with all details of a claim.
fn section(out: &mut String, shown: &Shown<'_>) {
    let Some(kept) = shown.kept else { return };
    let claim = shown.claim;
    put!(out, "\n## {} {}\n", claim.id, claim.what);
    let seeds = kept.seeds.len();
    put!(
        out,
        "Commit `{}`, {} size, {seeds} {}: `{}`.{}{}\n",
        kept.commit,
        kept.size,
        if seeds == 1 { "seed" } else { "seeds" },
        kept.command,
        if kept.note.is_empty() { "" } else { " " },
        kept.note
    );
    if let Some(forecast) = &claim.forecast {
        put!(out, "Expected: {forecast}\n");
    }
    if shown.count(Verdict::NotReproduced) > 0 {
        cause(out, shown);
    }
    if let Some(text) = &claim.explanation {
        put!(out, "{text}\n");
    }
    let tried: Vec<&Row<'_>> = shown.rows.iter().filter(|row| row.figure.is_trial()).collect();
    if !tried.is_empty() {
        put!(out, "| tried | ours | ± | unit |\n|---|--:|--:|---|");
        for row in tried {
            let (name, unit) = (cell(&row.figure.name), text::unit(&row.figure.unit));
            let (mean, spread) = (text::quantity(row.ours.mean), text::spread(&row.ours));
            put!(out, "| {name} | {mean} | {spread} | {unit} |");
        }
    }
}

/// Writes the published figures in each variant that was run.
fn sensitivity(out: &mut String, shown: &Shown<'_>, all: &[Kept], variants: &[Variant]) {
    let id = &shown.claim.id;
    let lines = variants.iter().filter_map(|variant| stored::in_variant(all, id, &variant.name));
    let lines: Vec<&Kept> = lines.collect();
    let Some(first) = lines.first() else { return };
    let seeds = match first.seeds.len() {
        1 => "one seed only".to_owned(),
        count => format!("{count} seeds"),
    };
    put!(
        out,
        "\n**Sensitivity**, {seeds}, commit `{}`, by `{}`. In each column one thing differs.\n",
        first.commit,
        first.command
    );
    let heads = lines.iter().map(|line| format!(" {} |", cell(&line.variant))).collect::<String>();
    put!(out, "| figure | published |{heads}");
    put!(out, "|---|--:|{}", "--:|".repeat(lines.len()));
    for row in shown.published().filter(|row| !row.figure.fitted) {
        let value = |line: &&Kept| match line.sample(row.figure) {
            Some(sample) => format!(" {} |", text::quantity(sample.mean)),
            None => " – |".to_owned(),
        };
        let values = lines.iter().map(value).collect::<String>();
        let (name, unit) = (cell(&row.figure.name), text::unit(&row.figure.unit));
        put!(out, "| {name}, {unit} | {} |{values}", text::published(row.figure));
    }
}

fn cause(out: &mut String, shown: &Shown<'_>) {
    let claim = shown.claim;
    match (&claim.cause, claim.moved.is_empty()) {
        (Some(cause), false) => {
            put!(out, "**Cause**: {cause} Shown by: {}.\n", claim.moved.join("; "));
        }
        (Some(cause), true) => {
            put!(out, "**Suspected cause**: {cause} No experiment moved it.\n");
        }
        (None, _) => put!(out, "**No cause was found.**\n"),
    }
}

/// Writes the earlier lines of the claim in which a published figure differs from the current line.
fn history(out: &mut String, shown: &Shown<'_>, all: &[Kept]) {
    let of = |line: &&Kept| line.claim == shown.claim.id && line.variant.is_empty();
    let lines: Vec<&Kept> = all.iter().filter(of).collect();
    let Some((_, before)) = lines.split_last().filter(|(_, before)| !before.is_empty()) else {
        return;
    };
    let mut changed = Vec::new();
    for line in before {
        for row in shown.rows.iter().filter(|row| !row.figure.is_trial()) {
            let Some(Sample { mean, .. }) = line.sample(row.figure) else { continue };
            let (then, now) = (text::quantity(mean), text::quantity(row.ours.mean));
            if then != now {
                let name = cell(&row.figure.name);
                changed.push(format!("| {name} | `{}` | {then} | {now} |", line.commit));
            }
        }
    }
    if !changed.is_empty() {
        put!(out, "\n| before | commit | ours | now |\n|---|---|--:|--:|");
        put!(out, "{}", changed.join("\n"));
    }
}
