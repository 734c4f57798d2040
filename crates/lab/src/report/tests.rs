//! The report read back as XML, from data full of characters that HTML must not interpret.

use super::*;
use crate::cache::Cache;
use crate::catalogue::Size;
use crate::fixture;
use crate::runner;

/// A claim's fields with only a figure of our own.
const OWN: &str = "figures = [{ name = \"own\", unit = \"MB/s\", run = \"r\" }]\n\
                   [[claim.runs]]\nname = \"r\"\n";

/// Claims whose every text has characters that HTML must not interpret.
fn claims() -> String {
    let shown = r#"
explanation = "first <i>\n\nsecond & last"
figures = [
  { name = "best <u>", unit = "MB/s", paper = 10, take = "best", run = "all <s>", note = "<note>" },
  { name = "knee", unit = "zones", paper = [2, 4], take = "knee", run = "all <s>" },
  { name = "share", unit = "%", paper = 50, take = "share", run = "all <s>", at = "2",
    per = "all <s>", per_at = "4" },
  { name = "best of <slow>", unit = "MB/s", take = "best", run = "slower" },
]
[[claim.runs]]
name = "all <s>"
over = "zones"
values = [1, 2, 4]
[[claim.runs]]
name = "slower"
over = "zones"
values = [1, 4]
device_with = "model.group-rate=20MB/s"
"#;
    fixture::claims(&[
        fixture::claim("N-1", "<script>alert('what')</script>", "forecast <b>", shown),
        fixture::failing("N-2"),
        fixture::needing("N-3", "cannot be <tried>", "<more>"),
        fixture::claim("N-4", "nothing is published", "a number", OWN),
    ])
}

fn report() -> String {
    let catalogue = Catalogue::parse(fixture::SETUP, &claims()).unwrap();
    let claims: Vec<&Claim> = catalogue.claims.iter().collect();
    let order =
        Order { size: Size::Scaled, seeds: vec![1, 2], threads: 2, traces: Default::default() };
    let build = Build { commit: "abc123".to_owned(), changed: true };
    let cache = Cache::none(build.clone());
    let outcome = runner::run(&catalogue, &claims, &order, &cache, &|_| {}).unwrap();
    html(&catalogue, &outcome, &order, &build)
}

/// Turns the report into XML: void elements are closed; everything else is valid as both.
fn xml(html: &str) -> String {
    let body = html.replacen("<!doctype html>", "", 1);
    let lines = body.lines().map(|line| {
        if line.starts_with("<meta") { line.replace('>', "/>") } else { line.to_owned() }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn whatever_the_data_hold_the_report_is_well_formed_and_says_it() {
    let html = report();
    for raw in ["<script", "<b>\n", "<i>", "<u>", "<s>", "<note>", "<tried>", "<more>", "<engine>"]
    {
        assert!(!html.contains(raw), "{raw} was not escaped");
    }
    let text = xml(&html);
    let document = roxmltree::Document::parse(&text).unwrap_or_else(|error| {
        let line = text.lines().nth(error.pos().row as usize - 1).unwrap_or_default();
        panic!("{error}: {line}")
    });
    let said: String = document.descendants().filter_map(|node| node.text()).collect();
    for wanted in [
        "<script>alert('what')</script>",
        "A <source> & more",
        "forecast <b>",
        "second & last",
        "best <u>: <note>.",
        "needs",
        "<more>",
        "f: ≤ 7.5 ×",
        "The build differs from its commit",
        "furrow-lab run N-1 --scaled --seeds 2",
        "5000 zones",
        "2 to 4",
        "nothing published, see below",
    ] {
        assert!(said.contains(wanted), "{wanted} is not said");
    }
    // The report has the plot of ratios, the curves of N-1 and those of its trials; N-2 has
    // no plot.
    assert_eq!(document.descendants().filter(|node| node.has_tag_name("svg")).count(), 3);
    // Figures of trials are not in the overview.
    let cells = |wanted: &str| {
        let cells = document.descendants().filter(|node| node.has_tag_name("td"));
        cells.filter(|node| node.text() == Some(wanted)).count()
    };
    assert_eq!((cells("best <u>"), cells("best of <slow>")), (2, 1));
}

#[test]
fn every_link_leads_somewhere_and_nothing_is_loaded() {
    let text = xml(&report());
    let document = roxmltree::Document::parse(&text).unwrap();
    let ids: Vec<&str> = document.descendants().filter_map(|node| node.attribute("id")).collect();
    let links: Vec<&str> =
        document.descendants().filter_map(|node| node.attribute("href")).collect();
    assert_eq!(links, ["#n-1", "#n-2", "#n-4"]);
    assert!(links.iter().all(|link| ids.contains(&link.trim_start_matches('#'))), "{ids:?}");
    assert!(!text.contains(" src=") && !text.contains("url(") && !text.contains("@import"));
}

#[test]
fn the_same_outcome_gives_the_same_report() {
    assert_eq!(report(), report());
}
