//! `furrow-lab keep`, `pages` and `gate`: figures that are kept, the documents made of them, and
//! whether the engines still give them.

use crate::claims::{Common, Data, Source, Work, chosen, execute, status};
use anyhow::{Context as _, bail, ensure};
use furrow_lab::catalogue::{Catalogue, Claim, Variant};
use furrow_lab::collection;
use furrow_lab::page;
use furrow_lab::runner::Order;
use furrow_lab::stored::{self, Kept};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file of kept figures, below the folder of documents.
pub const DATA: &str = "data/claims.jsonl";

#[derive(clap::Args)]
pub struct Keep {
    /// Claims to run, by ID
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// The folder of documents, whose data/claims.jsonl gets a line for each claim
    #[arg(long, value_name = "DIR", default_value = "docs/research")]
    docs: PathBuf,
    /// Keep the published figures in each variant of hosts and drives (setup.toml) instead, to see
    /// what they depend on
    #[arg(long)]
    sensitivity: bool,
    #[command(flatten)]
    pub common: Common,
}

#[derive(clap::Args)]
pub struct Pages {
    /// The folder of documents: data/claims.jsonl is read, claims.md and claims/ are written
    #[arg(value_name = "DIR", default_value = "docs/research")]
    docs: PathBuf,
    #[command(flatten)]
    pub source: Source,
}

#[derive(clap::Args)]
pub struct Gate {
    /// The folder of documents with data/claims.jsonl
    #[arg(value_name = "DIR", default_value = "docs/research")]
    docs: PathBuf,
    #[command(flatten)]
    pub data: Data,
    #[command(flatten)]
    work: Work,
}

pub fn read(path: &Path) -> anyhow::Result<Vec<Kept>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    collection::lines(&text).with_context(|| path.display().to_string())
}

/// Runs `furrow-lab keep`: runs claims, and adds a line for each.
pub fn keep(catalogue: &Catalogue, keep: &Keep, out: &mut dyn Write) -> anyhow::Result<u8> {
    if let Some(changed) = &catalogue.changed {
        bail!(
            "the data of {} differ from the built-in ones ({}): only figures of the commit's data \
             are kept; change crates/lab/data and build, or see 'furrow-lab report'",
            changed.directory,
            changed.lines().join("; ")
        );
    }
    if !keep.sensitivity {
        return keep_in(catalogue, keep, None, out);
    }
    let mut worst = 0;
    for variant in &catalogue.variants {
        worst = worst.max(keep_in(&variant.applied(catalogue), keep, Some(variant), out)?);
    }
    Ok(worst)
}

/// Runs the claims of `keep` with `catalogue` and adds a line for each. If `variant` is given,
/// `catalogue` already includes its change, and only the claims that it concerns are run.
fn keep_in(
    catalogue: &Catalogue,
    keep: &Keep,
    variant: Option<&Variant>,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    let (order, cache) = (keep.common.order(catalogue), keep.common.cache());
    let mut claims = chosen(catalogue, &keep.ids)?;
    claims.retain(|claim| variant.is_none_or(|v| v.concerns(catalogue, claim, order.size)));
    let outcome = execute(catalogue, &claims, &order, &cache)?;
    let path = keep.docs.join(DATA);
    let mut lines = Vec::new();
    for finished in &outcome.claims {
        let Ok(result) = &finished.result else { continue };
        let id = &finished.claim.id;
        let (size, seeds) = (order.size, order.seeds.len());
        let (verb, variant) = match variant {
            None => ("run", String::new()),
            Some(variant) => ("keep --sensitivity", variant.name.clone()),
        };
        let command = format!(
            "furrow-lab {verb} {id} --{size} --seeds {seeds}{}",
            catalogue.options_of(finished.claim)
        );
        let line = Kept::new(finished.claim, result, &order, cache.build(), &command)?;
        let line = Kept { variant, ..line };
        serde_json::to_writer(&mut lines, &line)?;
        lines.push(b'\n');
    }
    let open = std::fs::OpenOptions::new().append(true).create(true).open(&path);
    let write = open.and_then(|mut file| file.write_all(&lines));
    write.with_context(|| format!("cannot write {}", path.display()))?;
    writeln!(out, "kept: {} claims in {}", outcome.claims.len(), path.display())?;
    Ok(status(&outcome))
}

/// Runs `furrow-lab pages`: makes documents from the kept figures; nothing is run.
pub fn pages(catalogue: &Catalogue, pages: &Pages, out: &mut dyn Write) -> anyhow::Result<u8> {
    let kept = read(&pages.docs.join(DATA))?;
    for file in page::files(catalogue, &kept) {
        let path = pages.docs.join(&file.path);
        let write = || {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::write(&path, &file.text)
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(out, "written: {}", path.display())?;
    }
    Ok(0)
}

/// Runs `furrow-lab gate`: runs claims that have a band, with the size and seeds of their kept
/// lines, and compares the figures.
pub fn gate(catalogue: &Catalogue, gate: &Gate, out: &mut dyn Write) -> anyhow::Result<u8> {
    let kept = read(&gate.docs.join(DATA))?;
    let claims: Vec<&Claim> = catalogue.claims.iter().filter(|c| c.gate.is_some()).collect();
    ensure!(!claims.is_empty(), "no claim has a `gate`");
    let cache = gate.work.cache();
    let mut wrong = Vec::new();
    for claim in &claims {
        let Some(line) = stored::current(&kept, &claim.id) else {
            bail!("{} has a gate, but no figures in {DATA}: 'furrow-lab keep {0}'", claim.id);
        };
        let usual = Order::new(line.size, 1);
        let order = Order {
            seeds: line.seeds.clone(),
            threads: gate.work.threads(usual.threads),
            traces: catalogue.traces.clone(),
            ..usual
        };
        let outcome = execute(catalogue, &[*claim], &order, &cache)?;
        for finished in &outcome.claims {
            match &finished.result {
                Ok(result) => {
                    let band = claim.gate.unwrap_or_default();
                    wrong.extend(stored::outside(result, line, band));
                }
                Err(why) => wrong.push(format!("{}: failed: {why}", claim.id)),
            }
        }
    }
    for what in &wrong {
        writeln!(out, "{what}")?;
    }
    writeln!(out, "{} claims, {} figures outside their bands", claims.len(), wrong.len())?;
    if let Some(changed) = &catalogue.changed {
        writeln!(
            out,
            "with changed data, from {}: {}",
            changed.directory,
            changed.lines().join("; ")
        )?;
    }
    Ok(u8::from(!wrong.is_empty()))
}
