//! An outcome as a document for machines: versioned, the same bytes for the same runs.
//!
//! The document says nothing about the host: neither when it was made, nor how long that took, nor
//! which results came from the cache.

use crate::cache::Build;
use crate::catalogue::{Catalogue, Changed, Paper, Point, Relation, Size, Take, Verdict};
use crate::measure::Measures;
use crate::result::{ClaimResult, FigureResult, Sample, SeriesResult};
use crate::runner::{Finished, Order, Outcome};
use serde::Serialize;

/// Version of the document. Version 3 has eight verdicts, two of which are not counted.
pub const VERSION: u32 = 3;

/// The claims that were run, and their results.
#[derive(Debug, Serialize)]
pub struct Document {
    version: u32,
    build: Build,
    /// The changes of the data, or `None` if the data are those of the build.
    changed_data: Option<Changed>,
    size: Size,
    seeds: Vec<u64>,
    claims: Vec<Claim>,
}

#[derive(Debug, Serialize)]
struct Claim {
    id: String,
    source: String,
    what: String,
    forecast: Option<String>,
    explanation: Option<String>,
    /// The verdict, or `None` if the claim failed: then `error` says why.
    verdict: Option<Verdict>,
    figures: Vec<Figure>,
    runs: Vec<Run>,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Figure {
    name: String,
    unit: String,
    take: Take,
    metric: String,
    ours: Sample,
    paper: Option<Paper>,
    relation: Relation,
    tolerance_percent: f64,
    ratio: Option<f64>,
    forecast: Option<f64>,
    verdict: Verdict,
}

#[derive(Debug, Serialize)]
struct Run {
    name: String,
    over: Option<String>,
    points: Vec<Measured>,
}

#[derive(Debug, Serialize)]
struct Measured {
    value: String,
    scenario: Point,
    /// The measures, one for each seed.
    measures: Vec<Measures>,
}

impl Document {
    /// The document of `outcome`.
    pub fn new(
        catalogue: &Catalogue,
        outcome: &Outcome<'_>,
        order: &Order,
        build: &Build,
    ) -> Document {
        Document {
            version: VERSION,
            build: build.clone(),
            changed_data: catalogue.changed.clone(),
            size: order.size,
            seeds: order.seeds.clone(),
            claims: outcome.claims.iter().map(claim).collect(),
        }
    }
}

fn claim(finished: &Finished<'_>) -> Claim {
    let data = finished.claim;
    let empty = ClaimResult { figures: Vec::new(), series: Vec::new() };
    let result = finished.result.as_ref();
    Claim {
        id: data.id.clone(),
        source: data.source.clone(),
        what: data.what.clone(),
        forecast: data.forecast.clone(),
        explanation: data.explanation.clone(),
        verdict: result.ok().map(ClaimResult::verdict),
        figures: result.unwrap_or(&empty).figures.iter().map(figure).collect(),
        runs: result.unwrap_or(&empty).series.iter().map(run).collect(),
        error: result.err().cloned(),
    }
}

fn figure(result: &FigureResult) -> Figure {
    let figure = &result.figure;
    Figure {
        name: figure.name.clone(),
        unit: figure.unit.clone(),
        take: figure.take,
        metric: figure.metric.clone(),
        ours: result.ours.clone(),
        paper: figure.paper,
        relation: figure.relation,
        tolerance_percent: figure.tolerance,
        ratio: result.ratio,
        forecast: figure.forecast,
        verdict: result.verdict,
    }
}

fn run(result: &SeriesResult) -> Run {
    let points = result.series.points.iter().zip(&result.measures).map(|(point, measures)| {
        let (value, scenario) = (point.label.clone(), point.point.clone());
        // The document leaves out this machine's processor time, which is not part of the result.
        let plain = |measures: &Measures| Measures { processor_ns: None, ..measures.clone() };
        Measured { value, scenario, measures: measures.iter().map(plain).collect() }
    });
    Run {
        name: result.series.name.clone(),
        over: result.series.over.clone(),
        points: points.collect(),
    }
}
