//! `furrow-lab headlines`: the numbers that a reader of the papers remembers, beside ours.

use crate::claims::{Common, execute, status};
use crate::pages;
use furrow_console::show;
use furrow_lab::cache::Build;
use furrow_lab::catalogue::{Catalogue, Claim, Paper, Relation, Verdict, elsewhere};
use furrow_lab::page::{self, headlines::Line};
use furrow_lab::stored::{self, Kept};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Headlines {
    /// The folder of documents: numbers of claims that are not run are those of data/claims.jsonl
    #[arg(value_name = "DIR", default_value = "docs/research")]
    docs: PathBuf,
    #[command(flatten)]
    pub common: Common,
    /// Run nothing: all numbers are those that are kept
    #[arg(long)]
    kept: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    build: &'a Build,
    headlines: Vec<Entry<'a>>,
}

/// A headline in the JSON document.
#[derive(Serialize)]
struct Entry<'a> {
    paper: &'a str,
    at: &'a [String],
    says: &'a str,
    published: Paper,
    relation: Relation,
    unit: &'a str,
    /// The claim that gives our number, if any.
    claim: Option<&'a str>,
    ours: Option<f64>,
    verdict: Option<Verdict>,
    /// The reason why there is no number of ours.
    missing: Option<&'a str>,
    /// The commit that our number is from, if it is not one of this run.
    kept: Option<&'a str>,
}

impl<'a> Entry<'a> {
    fn new(line: &'a Line<'a>, kept: Option<&'a str>) -> Entry<'a> {
        let headline = line.headline;
        Entry {
            paper: &headline.paper,
            at: &headline.at,
            says: &headline.says,
            published: headline.published,
            relation: headline.relation,
            unit: &headline.unit,
            claim: line.claim,
            ours: line.ours,
            verdict: line.verdict,
            missing: headline.missing.as_deref(),
            kept,
        }
    }
}

/// The claims that give numbers of headlines, each once.
fn wanted(catalogue: &Catalogue) -> Vec<&Claim> {
    let mut claims: Vec<&Claim> = Vec::new();
    for headline in &catalogue.headlines {
        let Some((claim, figure)) = headline.found(catalogue) else { continue };
        let same = figure.same_as.as_deref().and_then(elsewhere);
        let claim = same.and_then(|(id, _)| catalogue.claim(id)).unwrap_or(claim);
        if !claims.iter().any(|known| known.id == claim.id) {
            claims.push(claim);
        }
    }
    claims
}

/// Runs the command.
pub fn run(catalogue: &Catalogue, args: &Headlines, out: &mut dyn Write) -> anyhow::Result<u8> {
    let (order, cache) = (args.common.order(catalogue), args.common.cache());
    let mut lines = pages::read(&args.docs.join(pages::DATA))?;
    let before = lines.len();
    let mut failed = 0;
    if !args.kept {
        let mut claims = wanted(catalogue);
        claims.retain(|claim| catalogue.has_all(claim));
        let outcome = execute(catalogue, &claims, &order, &cache)?;
        failed = status(&outcome);
        for finished in &outcome.claims {
            match &finished.result {
                Ok(result) => {
                    lines.push(Kept::of(finished.claim, result, &order, cache.build(), ""));
                }
                Err(why) => crate::complain(&format!("{}: failed: {why}", finished.claim.id)),
            }
        }
    }
    let (old, new) = lines.split_at(before);
    // The commit of a number that is not one of this run.
    let commit = |line: &Line<'_>| {
        let id = line.claim.filter(|id| stored::current(new, id).is_none())?;
        stored::current(old, id).map(|kept| &*kept.commit)
    };
    let headlines = page::headlines(catalogue, &lines);
    if args.json {
        let entry = |line| Entry::new(line, commit(line));
        let headlines = headlines.iter().map(entry).collect();
        show::json(out, &Document { version: 1, build: cache.build(), headlines })?;
        return Ok(failed);
    }
    let mut paper = "";
    for line in &headlines {
        if line.headline.paper != paper {
            writeln!(out, "{}{}", if paper.is_empty() { "" } else { "\n" }, line.headline.paper)?;
            paper = &line.headline.paper;
        }
        writeln!(out, "  {} ({})", line.headline.says, line.headline.at.join(", "))?;
        let from = match (line.claim, commit(line)) {
            (Some(id), Some(commit)) => format!(" [{id}, kept at {commit}]"),
            (Some(id), None) => format!(" [{id}]"),
            (None, _) => String::new(),
        };
        writeln!(out, "      {}, ours {}: {}{from}", line.published(), line.ours(), line.said())?;
    }
    writeln!(out, "\n{} headlines: {}", headlines.len(), page::headlines::counted(&headlines))?;
    let (build, kept) = (cache.build(), headlines.iter().filter(|line| commit(line).is_some()));
    let changed = if build.changed { ", changed" } else { "" };
    writeln!(
        out,
        "numbers of commit {}{changed}; {} that were not run are of the commits beside them, and a \
         number in parentheses is that of a plausible variant, kept before; what verdicts mean: \
         docs/research/claims.md",
        build.commit,
        kept.count()
    )?;
    Ok(failed)
}
