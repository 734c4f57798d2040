//! The report: one HTML file that needs no other, with a page for each claim.
//!
//! All text from data is escaped; plots are SVG within the page; there is no script and nothing is
//! loaded. The same outcome gives the same bytes.

mod inside;
mod plots;

use crate::array::Array;
use crate::cache::Build;
use crate::catalogue::{Catalogue, Claim, Point, Profile, Verdict};
use crate::host::Host;
use crate::plot::escape;
use crate::policy::Policy;
use crate::result::{ClaimResult, FigureResult};
use crate::runner::{Finished, Order, Outcome};
use crate::text;
use crate::workload::Workload;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;

const STYLE: &str = include_str!("report/style.css");

/// The report on `outcome`.
pub fn html(catalogue: &Catalogue, outcome: &Outcome<'_>, order: &Order, build: &Build) -> String {
    let mut page = Page { out: String::new(), catalogue, order };
    page.head();
    page.summary(outcome, build);
    outcome.claims.iter().for_each(|finished| page.claim(finished));
    page.others();
    page.out.push_str("</main>\n</body>\n</html>\n");
    page.out
}

struct Page<'a> {
    out: String,
    catalogue: &'a Catalogue,
    order: &'a Order,
}

/// Writes to the page; every argument is escaped.
macro_rules! tag {
    ($page:expr, $form:literal $(, $argument:expr)* $(,)?) => {{
        let _ = writeln!($page.out, $form $(, escape(&$argument.to_string()))*);
    }};
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced => "hit",
        Verdict::Direction => "near",
        Verdict::Better => "better",
        Verdict::NotReproduced => "miss",
        Verdict::Incomparable
        | Verdict::Calibrated
        | Verdict::Derived
        | Verdict::Repeated
        | Verdict::None => "none",
    }
}

impl Page<'_> {
    fn head(&mut self) {
        tag!(self, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">");
        tag!(self, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
        tag!(self, "<meta name=\"color-scheme\" content=\"light dark\">");
        tag!(self, "<title>Furrow: claims tried</title>");
        let _ = writeln!(self.out, "<style>\n{STYLE}</style>\n</head>\n<body>\n<main>");
    }

    fn summary(&mut self, outcome: &Outcome<'_>, build: &Build) {
        let seeds: Vec<String> = self.order.seeds.iter().map(u64::to_string).collect();
        tag!(self, "<header>\n<h1>Claims tried</h1>");
        tag!(
            self,
            "<p class=\"lead\">{} claims of {} papers, on an emulated drive in virtual time. Size \
             {}, seeds {}, commit <code>{}</code>.</p>",
            outcome.claims.len(),
            self.papers(outcome),
            self.order.size,
            seeds.join(", "),
            build,
        );
        if build.changed {
            tag!(self, "<p class=\"warning\">The build differs from its commit.</p>");
        }
        self.changed();
        tag!(
            self,
            "<p>Ours is the mean over the seeds, ± half of the range. What was expected was \
             written down before the first run.</p>\n<ul>"
        );
        for verdict in Verdict::ALL.into_iter().chain(Verdict::APART) {
            tag!(self, "<li><b>{}</b>: {}</li>", verdict, verdict.rule());
        }
        tag!(self, "</ul>\n</header>");
        self.overview(outcome);
        for plot in plots::ratios(outcome) {
            let _ = writeln!(self.out, "<figure>{}</figure>", plot.svg());
        }
    }

    /// Lists the changes of the data since the commit.
    fn changed(&mut self) {
        let Some(changed) = &self.catalogue.changed else { return };
        tag!(
            self,
            "<div class=\"warning\"><p>The data are not those of the commit, but changed ones, \
             from <code>{}</code>:</p>\n<ul>",
            changed.directory
        );
        for line in changed.lines() {
            tag!(self, "<li><code>{}</code></li>", line);
        }
        tag!(self, "</ul></div>");
    }

    fn papers(&self, outcome: &Outcome<'_>) -> usize {
        let mut sources: Vec<&str> = outcome.claims.iter().map(|f| &*f.claim.source).collect();
        sources.sort_unstable();
        sources.dedup();
        sources.len()
    }

    fn overview(&mut self, outcome: &Outcome<'_>) {
        tag!(
            self,
            "<div class=\"wide\"><table class=\"overview verdicts\">\n<thead><tr><th>claim</th>"
        );
        tag!(self, "<th>figure</th><th class=\"n\">ours</th><th class=\"n\">±</th><th>unit</th>");
        tag!(self, "<th class=\"n\">published</th><th class=\"n\">ratio</th>");
        tag!(self, "<th class=\"n\">expected</th><th>verdict</th></tr></thead>\n<tbody>");
        for finished in &outcome.claims {
            let claim = finished.claim;
            let main = |result: &&ClaimResult| result.main().count().max(1);
            let rows = finished.result.as_ref().ok().as_ref().map_or(1, main);
            tag!(
                self,
                "<tr class=\"first\"><td rowspan=\"{}\"><a href=\"#{}\">{}</a></td>",
                rows,
                section_id(claim),
                claim.id,
            );
            match &finished.result {
                Ok(result) if result.main().next().is_none() => {
                    tag!(self, "<td colspan=\"8\">nothing published, see below</td></tr>");
                }
                Ok(result) => {
                    for (at, figure) in result.main().enumerate() {
                        if at > 0 {
                            tag!(self, "<tr>");
                        }
                        self.figure_cells(figure);
                    }
                }
                Err(_) => tag!(
                    self,
                    "<td colspan=\"7\">not run</td><td><span class=\"miss\">failed</span></td></tr>"
                ),
            }
        }
        tag!(self, "</tbody></table></div>");
    }

    fn figure_cells(&mut self, figure: &FigureResult) {
        let data = &figure.figure;
        tag!(
            self,
            "<td>{}</td><td class=\"n\"><b>{}</b></td><td class=\"n\">{}</td><td>{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td><span class=\"{}\">{}</span></td></tr>",
            data.name,
            text::quantity(figure.ours.mean),
            text::spread(&figure.ours),
            text::unit(&data.unit),
            text::published(data),
            text::ratio(figure.ratio),
            text::forecast(data),
            class(figure.verdict),
            figure.verdict,
        );
    }

    fn claim(&mut self, finished: &Finished<'_>) {
        let claim = finished.claim;
        let source = self.catalogue.sources.get(&claim.source);
        tag!(self, "<section id=\"{}\">\n<h2>{}</h2>", section_id(claim), claim.id);
        tag!(self, "<p class=\"lead\">{}</p>", claim.what);
        tag!(
            self,
            "<p class=\"source\">{}</p>",
            source.map_or(claim.source.as_str(), |source| source.title.as_str())
        );
        if self.catalogue.changed.is_some() {
            tag!(self, "<p class=\"warning\">Run with changed data: see the top.</p>");
        }
        match &finished.result {
            Ok(result) => self.result(claim, result),
            Err(why) => tag!(self, "<p class=\"warning\">Failed: {}</p>", why),
        }
        tag!(self, "</section>");
    }

    fn result(&mut self, claim: &Claim, result: &ClaimResult) {
        tag!(self, "<div class=\"wide\"><table class=\"verdicts\">\n<thead><tr><th>figure</th>");
        tag!(self, "<th class=\"n\">ours</th><th class=\"n\">±</th><th>unit</th>");
        tag!(self, "<th class=\"n\">published</th><th class=\"n\">ratio</th>");
        tag!(self, "<th class=\"n\">expected</th><th>verdict</th></tr></thead>\n<tbody>");
        for figure in result.main() {
            tag!(self, "<tr>");
            self.figure_cells(figure);
        }
        tag!(self, "</tbody></table></div>");
        for figure in &result.figures {
            if let Some(note) = &figure.figure.note {
                tag!(self, "<p class=\"note\">{}: {}.</p>", figure.figure.name, note);
            }
        }
        for plot in plots::of_claim(claim, result) {
            let _ = writeln!(self.out, "<figure>{}</figure>", plot.svg());
        }
        self.inside(claim, result);
        if let Some(forecast) = &claim.forecast {
            tag!(self, "<h3>Expected beforehand</h3>\n<p>{}</p>", forecast);
        }
        let missed = result.verdict() == Verdict::NotReproduced;
        match &claim.explanation {
            Some(text) => {
                tag!(
                    self,
                    "<h3>{}</h3>",
                    if missed { "Why it is not reproduced" } else { "What was found" }
                );
                for paragraph in text.split("\n\n") {
                    tag!(self, "<p>{}</p>", paragraph);
                }
            }
            None if missed => {
                tag!(self, "<h3>Why it is not reproduced</h3>\n<p>Not explained yet.</p>");
            }
            None => {}
        }
        self.tried(claim, result);
        self.scenario(result);
        self.repeat(claim);
        self.runs(result);
    }

    /// Writes plots and tables of internal measures of file systems.
    fn inside(&mut self, claim: &Claim, result: &ClaimResult) {
        let mut plots: Vec<_> = inside::by_run(claim, result).into_iter().collect();
        plots.extend(inside::zones(claim, result));
        plots.extend(inside::latencies(claim, result));
        for plot in plots {
            let _ = writeln!(self.out, "<figure>{}</figure>", plot.svg());
        }
        let written = inside::written(result);
        if written.is_empty() {
            return;
        }
        tag!(self, "<h3>What was written</h3>\n<div class=\"wide\"><table>\n<thead><tr>");
        tag!(self, "<th>run</th><th class=\"n\">bytes for each asked for</th><th>of them</th>");
        tag!(self, "</tr></thead>\n<tbody>");
        for (name, amplification, kinds) in written {
            tag!(
                self,
                "<tr><td>{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
                name,
                text::quantity(amplification),
                kinds
            );
        }
        tag!(self, "</tbody></table></div>");
    }

    /// Writes our own figures, which show what the other figures depend on.
    fn tried(&mut self, claim: &Claim, result: &ClaimResult) {
        if result.figures.iter().all(|figure| !figure.figure.is_trial()) {
            return;
        }
        tag!(self, "<h3>What was tried</h3>\n<div class=\"wide\"><table>\n<thead><tr>");
        tag!(self, "<th>figure</th><th class=\"n\">ours</th><th class=\"n\">±</th>");
        tag!(self, "<th>unit</th></tr></thead>\n<tbody>");
        for figure in result.figures.iter().filter(|figure| figure.figure.is_trial()) {
            tag!(
                self,
                "<tr><td>{}</td><td class=\"n\"><b>{}</b></td><td class=\"n\">{}</td>\
                 <td>{}</td></tr>",
                figure.figure.name,
                text::quantity(figure.ours.mean),
                text::spread(&figure.ours),
                text::unit(&figure.figure.unit),
            );
        }
        tag!(self, "</tbody></table></div>");
        for plot in plots::of_trials(claim, result) {
            let _ = writeln!(self.out, "<figure>{}</figure>", plot.svg());
        }
    }

    fn scenario(&mut self, result: &ClaimResult) {
        let points = || result.series.iter().flat_map(|r| r.series.points.iter().map(|p| &p.point));
        let Some(first) = points().next() else { return };
        tag!(self, "<h3>Scenario</h3>\n<dl>");
        let all = |of: fn(&Point) -> String| {
            let mut found: Vec<String> = Vec::new();
            for text in points().map(of) {
                if !found.contains(&text) {
                    found.push(text);
                }
            }
            found
        };
        for device in all(|point| point.device.clone()) {
            tag!(self, "<dt>drive</dt><dd><code>{}</code></dd>", device);
        }
        for engine in all(engine) {
            tag!(self, "<dt>engine</dt><dd>{}</dd>", engine);
        }
        for host in all(host) {
            tag!(self, "<dt>host</dt><dd>{}</dd>", host);
        }
        let fields = differences(&Workload::default(), &first.workload, None).join(", ");
        tag!(self, "<dt>workload</dt><dd>{}: {}</dd>", first.workload.op, fields);
        for result in &result.series {
            let Some(own) = result.series.points.first() else { continue };
            let over = result.series.over.as_deref();
            let mut says = differences(&first.workload, &own.point.workload, over);
            if own.point.device != first.device {
                says.push("another drive".to_owned());
            }
            if own.point.profile != first.profile {
                says.push(own.point.profile.about.clone());
            }
            if own.point.host != first.host {
                says.push(host(&own.point));
            }
            if let Some(over) = over {
                let labels: Vec<&str> =
                    result.series.points.iter().map(|p| p.label.as_str()).collect();
                says.push(format!("{over} {}", labels.join(", ")));
            }
            let says = if says.is_empty() { "as said".to_owned() } else { says.join("; ") };
            tag!(self, "<dt>{}</dt><dd>{}</dd>", result.series.name, says);
        }
        tag!(self, "</dl>");
    }

    fn repeat(&mut self, claim: &Claim) {
        tag!(self, "<h3>To repeat it</h3>");
        tag!(
            self,
            "<pre><code>furrow-lab run {} --{} --seeds {}{}</code></pre>",
            claim.id,
            self.order.size,
            self.order.seeds.len(),
            self.catalogue.options_of(claim),
        );
    }

    fn runs(&mut self, result: &ClaimResult) {
        tag!(self, "<details>\n<summary>All runs</summary>\n<div class=\"wide\"><table>");
        tag!(self, "<thead><tr><th>run</th><th>at</th><th class=\"n\">seed</th>");
        tag!(self, "<th class=\"n\">MB/s</th><th class=\"n\">operations/s</th>");
        tag!(self, "<th class=\"n\">mean µs</th><th class=\"n\">p50</th><th class=\"n\">p95</th>");
        tag!(self, "<th class=\"n\">p99</th><th class=\"n\">p99.9</th></tr></thead>\n<tbody>");
        for series in &result.series {
            for (point, measures) in series.series.points.iter().zip(&series.measures) {
                for (seed, m) in self.order.seeds.iter().zip(measures) {
                    let micro = |nanoseconds: u64| text::quantity(nanoseconds as f64 / 1e3);
                    let cells = [
                        text::quantity(m.bytes_per_second / 1e6),
                        text::quantity(m.ops_per_second),
                        text::quantity(m.mean_ns / 1e3),
                        micro(m.p50_ns),
                        micro(m.p95_ns),
                        micro(m.p99_ns),
                        micro(m.p999_ns),
                    ];
                    let at = if series.series.over.is_some() { &*point.label } else { "" };
                    tag!(
                        self,
                        "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td>",
                        series.series.name,
                        at,
                        seed
                    );
                    cells.iter().for_each(|cell| tag!(self, "<td class=\"n\">{}</td>", cell));
                    tag!(self, "</tr>");
                }
            }
        }
        tag!(self, "</tbody></table></div>\n</details>");
    }

    /// Writes the claims that cannot be run yet.
    fn others(&mut self) {
        let waiting: Vec<&Claim> =
            self.catalogue.claims.iter().filter(|claim| !self.catalogue.has_all(claim)).collect();
        if waiting.is_empty() {
            return;
        }
        tag!(self, "<section id=\"others\">\n<h2>Claims that cannot be tried yet</h2>");
        tag!(self, "<div class=\"wide\"><table><thead><tr><th>claim</th><th>what</th>");
        tag!(self, "<th>published</th><th>needs</th></tr></thead>\n<tbody>");
        for claim in waiting {
            let figures: Vec<String> = claim
                .figures
                .iter()
                .map(|figure| {
                    let (value, unit) = (text::published(figure), text::unit(&figure.unit));
                    format!("{}: {value} {unit}", figure.name)
                })
                .collect();
            tag!(
                self,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                claim.id,
                claim.what,
                figures.join("; "),
                claim.needs.as_deref().unwrap_or_else(|| claim.lacks()),
            );
        }
        tag!(self, "</tbody></table></div>\n</section>");
    }
}

/// The description of a profile, and the policies in which it differs from the default.
fn engine(point: &Point) -> String {
    let Profile { about, policy, array, store, .. } = &point.profile;
    let mut own = differences(&Policy::default(), policy, None);
    own.extend(array.iter().flat_map(|array| differences(&Array::default(), array, None)));
    own.extend(store.iter().flat_map(|store| differences(&(), store, None)));
    if own.is_empty() { about.clone() } else { format!("{about}: {}", own.join(", ")) }
}

/// The fields of a host that are not 0.
fn host(point: &Point) -> String {
    differences(&Host::default(), &point.host, None).join(", ")
}

/// Fields in which `other` differs from `base`, except `over`.
fn differences<T: Serialize>(base: &impl Serialize, other: &T, over: Option<&str>) -> Vec<String> {
    let fields = |value: serde_json::Result<Value>| match value {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let base = fields(serde_json::to_value(base));
    let changed = fields(serde_json::to_value(other))
        .into_iter()
        .filter(|(name, value)| base.get(name) != Some(value) && Some(name.as_str()) != over);
    let text = |value: Value| match value {
        Value::String(text) => text,
        value => value.to_string(),
    };
    changed.map(|(name, value)| format!("{name} {}", text(value))).collect()
}

/// The id of a claim's section. It stays the same when the wording of the claim changes.
fn section_id(claim: &Claim) -> String {
    claim.id.to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
