//! The plots of `docs/research/calibration.md`: the model's results over zones, sizes, depth and
//! occupancy, with measurements as crosses.
//!
//! A curve has one point for each run. These runs are of the same kind as the rows of the
//! golden data.

use super::{Golden, Row, Verdict, cores, figure};
use crate::plot::{Axis, Mark, Plot, Point};
use anyhow::Result;

/// A plot and the name of its file.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The name without a directory.
    pub file: &'static str,
    /// The plot.
    pub plot: Plot,
}

/// The quantity on the horizontal axis.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Zones,
    Depth,
    /// KiB of a request.
    Size,
    /// Percentage of a zone's capacity that is written.
    Occupancy,
}

impl Over {
    fn axis(self) -> Axis {
        match self {
            Over::Zones => Axis::log2("zones"),
            Over::Depth => Axis::log2("requests outstanding"),
            Over::Size => Axis::log2("bytes of a request").bytes(),
            Over::Occupancy => {
                Axis::linear("written before, % of the zone's capacity").between(0.0, 100.0)
            }
        }
    }

    /// The place of a run on the axis.
    fn of(self, row: &Golden) -> Option<f64> {
        match self {
            Over::Zones => Some(f64::from(row.zones)),
            Over::Depth => Some(f64::from(row.depth)),
            Over::Size => row.condition.parse::<f64>().ok().map(|kib| kib * 1024.0),
            Over::Occupancy => match row.condition.strip_prefix("occupancy ")? {
                // A block is negligible compared with a zone.
                "block" => Some(0.0),
                "full" | "1" => Some(100.0),
                share => {
                    let (part, whole) = share.split_once('/')?;
                    Some(part.parse::<f64>().ok()? / whole.parse::<f64>().ok()? * 100.0)
                }
            },
        }
    }
}

/// A curve whose points are to be run.
struct Curve {
    name: String,
    runs: Vec<Golden>,
}

/// A figure whose curves are to be run.
struct Plan {
    file: &'static str,
    title: &'static str,
    over: Over,
    up: &'static str,
    curves: Vec<Curve>,
    /// Selects the rows of the golden data that are marked.
    measured: fn(&Golden) -> bool,
    /// Other marks.
    marks: Vec<Mark>,
}

/// A row that asks for a run of the model, without a measured figure.
fn sketch(preset: &str, op: &str, condition: &str, zones: u32, depth: u32, unit: &str) -> Golden {
    let metric = if matches!(unit, "us" | "ms") { "latency" } else { "throughput" };
    Golden {
        preset: preset.to_owned(),
        op: op.to_owned(),
        condition: condition.to_owned(),
        zones,
        depth,
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        measured: 0.0,
        tolerance: 0.0,
        status: "plot".to_owned(),
        source: String::new(),
        note: String::new(),
    }
}

const ZONES: [u32; 10] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 14];
const MANY_ZONES: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const PARTS: [u32; 10] = [1, 2, 4, 6, 8, 10, 12, 14, 15, 16];

/// A curve for each request size.
fn by_size(kib: &[u64], run: impl Fn(u64) -> Vec<Golden>) -> Vec<Curve> {
    kib.iter().map(|kib| Curve { name: amount(*kib), runs: run(*kib) }).collect()
}

fn amount(kib: u64) -> String {
    if kib >= 1024 { format!("{} MiB", kib / 1024) } else { format!("{kib} KiB") }
}

fn plans() -> Vec<Plan> {
    let mut plans = zoned_plans();
    plans.extend(small_zone_plans());
    plans.extend(management_plans());
    plans
}

/// The large-zone drives.
fn zoned_plans() -> Vec<Plan> {
    let over_zones = |preset: &'static str| {
        by_size(&[4, 8, 16], move |kib| {
            let kib = kib.to_string();
            ZONES.map(|zones| sketch(preset, "write", &kib, zones, 1, "MiB/s")).to_vec()
        })
    };
    let over_depth = |op: &'static str, depths: &'static [u32]| {
        by_size(&[4, 8, 16], move |kib| {
            let kib = kib.to_string();
            let run = |depth: &u32| sketch("zn540-1t", op, &kib, 1, *depth, "MiB/s");
            depths.iter().map(run).collect()
        })
    };
    let sizes = ["write", "append"].map(|op| {
        let run = |kib: &u64| sketch("zn540-1t", op, &kib.to_string(), 1, 1, "MiB/s");
        Curve { name: format!("{op}s"), runs: [4, 8, 16, 32, 64, 128].iter().map(run).collect() }
    });
    vec![
        Plan {
            file: "zn540-1t-zones.svg",
            title: "ZN540 1 TB: writes at depth 1 over zones",
            over: Over::Zones,
            up: "MiB/s",
            curves: over_zones("zn540-1t"),
            measured: |row| {
                row.preset == "zn540-1t"
                    && row.op == "write"
                    && matches!(row.condition.as_str(), "4" | "8" | "16")
            },
            marks: Vec::new(),
        },
        Plan {
            file: "zn540-4t-zones.svg",
            title: "ZN540 4 TB: writes at depth 1 over zones",
            over: Over::Zones,
            up: "MiB/s",
            curves: over_zones("zn540-4t"),
            measured: |row| row.preset == "zn540-4t" && row.op == "write" && row.condition != "128",
            marks: Vec::new(),
        },
        Plan {
            file: "zn540-1t-sizes.svg",
            title: "ZN540 1 TB: one zone at depth 1 over sizes",
            over: Over::Size,
            up: "MiB/s",
            curves: sizes.into(),
            measured: |row| {
                row.preset == "zn540-1t" && row.op != "read" && (row.zones, row.depth) == (1, 1)
            },
            marks: Vec::new(),
        },
        Plan {
            file: "zn540-1t-appends.svg",
            title: "ZN540 1 TB: appends to one zone over depth",
            over: Over::Depth,
            up: "MiB/s",
            curves: over_depth("append", &[1, 2, 3, 4, 6, 8]),
            measured: |row| row.preset == "zn540-1t" && row.op == "append" && row.zones == 1,
            marks: Vec::new(),
        },
        Plan {
            file: "zn540-1t-reads.svg",
            title: "ZN540 1 TB: random reads of one zone over depth",
            over: Over::Depth,
            up: "MiB/s",
            curves: over_depth("read", &[1, 2, 4, 8, 16, 32, 64, 128]),
            measured: |row| row.preset == "zn540-1t" && row.op == "read",
            marks: Vec::new(),
        },
    ]
}

/// The small-zone drive.
fn small_zone_plans() -> Vec<Plan> {
    // As in the published runs, 512 requests are outstanding in total.
    let run = |kib: u64, zones: u32| {
        sketch("pm1731a", "write", &kib.to_string(), zones, 512 / zones, "GB/s")
    };
    let cross = |name: &str, points: &[(f64, f64)]| {
        Mark::Crosses(name.to_owned(), points.iter().map(|point| Point::from(*point)).collect())
    };
    let kib = 1024.0;
    let read = |kib: &u64| sketch("pm1731a", "read", &kib.to_string(), 1, 1, "us");
    vec![
        Plan {
            file: "pm1731a-zones.svg",
            title: "PM1731a class: writes over zones, 512 outstanding",
            over: Over::Zones,
            up: "GB/s",
            curves: by_size(&[4, 128, 2048], |kib| {
                MANY_ZONES.map(|zones| run(kib, zones)).to_vec()
            }),
            measured: |_| false,
            marks: vec![cross(
                "measured",
                &[(1.0, 0.0425), (128.0, 2.4), (128.0, 0.2 * 2.4), (128.0, 0.47 * 2.4)],
            )],
        },
        Plan {
            file: "pm1731a-sizes.svg",
            title: "PM1731a class: writes to 128 zones over sizes, 512 outstanding",
            over: Over::Size,
            up: "GB/s",
            curves: vec![Curve {
                name: "128 zones".to_owned(),
                runs: [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048].map(|kib| run(kib, 128)).into(),
            }],
            measured: |_| false,
            marks: vec![cross(
                "measured",
                &[(4.0 * kib, 0.2 * 2.4), (128.0 * kib, 2.4), (2048.0 * kib, 0.47 * 2.4)],
            )],
        },
        Plan {
            file: "pm1731a-reads.svg",
            title: "PM1731a class: a lone read, over sizes",
            over: Over::Size,
            up: "µs",
            curves: vec![Curve {
                name: "one zone, depth 1".to_owned(),
                runs: [4, 8, 16, 32, 64].iter().map(read).collect(),
            }],
            measured: |row| row.preset == "pm1731a" && row.op == "read" && row.metric == "latency",
            marks: Vec::new(),
        },
    ]
}

fn management_plans() -> Vec<Plan> {
    let runs = |op: &str| {
        let first = sketch("zn540-1t", op, "occupancy block", 1, 1, "ms");
        let part = |part: u32| {
            let condition = match (op, part) {
                // A full zone cannot be finished any more.
                ("finish", 16) => "occupancy full".to_owned(),
                _ => format!("occupancy {part}/16"),
            };
            sketch("zn540-1t", op, &condition, 1, 1, "ms")
        };
        std::iter::once(first).chain(PARTS.map(part)).collect::<Vec<_>>()
    };
    let plan = |op: &'static str, file, title, measured| Plan {
        file,
        title,
        over: Over::Occupancy,
        up: "ms",
        curves: vec![Curve { name: op.to_owned(), runs: runs(op) }],
        measured,
        marks: Vec::new(),
    };
    vec![
        plan("reset", "reset.svg", "ZN540 1 TB: reset over occupancy", |row| row.op == "reset"),
        plan("finish", "finish.svg", "ZN540 1 TB: finish over occupancy", |row| row.op == "finish"),
    ]
}

/// The names of the figures' files.
pub fn files() -> Vec<&'static str> {
    plans().iter().map(|plan| plan.file).chain([ROWS]).collect()
}

/// The figure of all rows.
const ROWS: &str = "rows.svg";

/// Draws the figures; `rows` are the golden rows with the model's results.
///
/// # Errors
/// If the drive fails.
pub fn figures(rows: &[Row], told: cores::Told<'_>) -> Result<Vec<Figure>> {
    let plans = plans();
    let runs: Vec<&Golden> =
        plans.iter().flat_map(|plan| &plan.curves).flat_map(|curve| &curve.runs).collect();
    let mut results = cores::spread(runs.len(), &|n| figure(runs[n], 1), told)?.into_iter();
    let mut figures = Vec::new();
    for plan in plans {
        let mut plot = Plot::new(plan.title, plan.over.axis(), Axis::linear(plan.up).from_zero());
        for curve in &plan.curves {
            let places = curve.runs.iter().filter_map(|run| plan.over.of(run));
            let points: Vec<(f64, f64)> =
                places.zip(results.by_ref().take(curve.runs.len())).collect();
            plot = plot.line(curve.name.clone(), points);
        }
        let marked = rows.iter().map(|row| &row.golden).filter(|row| (plan.measured)(row));
        let crosses: Vec<Point> = marked
            .filter_map(|row| Some(Point::new(plan.over.of(row)?, row.measured).note(row.what())))
            .collect();
        if !crosses.is_empty() {
            plot = plot.mark(Mark::Crosses("measured".to_owned(), crosses));
        }
        plot.marks.extend(plan.marks);
        figures.push(Figure { file: plan.file, plot });
    }
    figures.push(Figure { file: ROWS, plot: ratios(rows) });
    Ok(figures)
}

/// Plots the ratio of model to measurement for every row, with its tolerance.
fn ratios(rows: &[Row]) -> Plot {
    let mut plot = Plot::new(
        "Model over measurement, every row; bars: what is tolerated",
        Axis::linear("row of the table").between(0.0, rows.len() as f64 + 1.0),
        Axis::linear("model / measurement"),
    )
    .sized(960, 420)
    .level("equal", 1.0);
    let numbered = || rows.iter().zip(1u32..).filter(|(row, _)| row.error.is_some());
    let mut drives: Vec<&str> = rows.iter().map(|row| row.golden.preset.as_str()).collect();
    drives.dedup();
    for drive in drives {
        let gates = numbered()
            .filter(|(row, _)| row.golden.preset == drive && row.verdict != Verdict::Miss);
        let points = gates.map(|(row, number)| {
            let tolerated = row.golden.tolerance / 100.0;
            Point::new(f64::from(number), ratio(row))
                .range(1.0 - tolerated, 1.0 + tolerated)
                .note(row.golden.what())
        });
        plot = plot.scatter(drive, points);
    }
    let misses = numbered().filter(|(row, _)| row.verdict == Verdict::Miss);
    let misses = misses
        .map(|(row, number)| Point::new(f64::from(number), ratio(row)).note(row.golden.what()));
    plot.mark(Mark::Crosses("known misses".to_owned(), misses.collect()))
}

fn ratio(row: &Row) -> f64 {
    1.0 + row.error.unwrap_or(0.0) / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::golden;

    #[test]
    fn every_run_and_every_mark_has_a_place() {
        let golden = golden().unwrap();
        let plans = plans();
        let mut files: Vec<&str> = plans.iter().map(|plan| plan.file).collect();
        files.sort_unstable();
        files.dedup();
        assert_eq!(files.len(), plans.len(), "two figures of one name");
        for plan in &plans {
            for run in plan.curves.iter().flat_map(|curve| &curve.runs) {
                assert!(plan.over.of(run).is_some(), "{}: {}", plan.file, run.what());
            }
            let marked = golden.iter().filter(|row| (plan.measured)(row));
            let placed = marked.filter(|row| plan.over.of(row).is_some()).count();
            assert!(placed + plan.marks.len() > 0, "{}: nothing measured", plan.file);
        }
    }

    #[test]
    fn rows_are_drawn_where_the_table_has_them() {
        let golden = golden().unwrap();
        let rows: Vec<Row> = golden.iter().map(|row| Row::new(row, &[row.measured])).collect();
        let plot = ratios(&rows);
        let drawn: usize = plot.series.iter().map(|series| series.points.len()).sum();
        let gates = golden.iter().filter(|row| row.status == "gate").count();
        assert_eq!(drawn, gates);
        assert!(plot.series.iter().flat_map(|s| &s.points).all(|point| point.y == 1.0));
    }
}
