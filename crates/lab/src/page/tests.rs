//! Tests of the pages: the content of lines, and that the documents match their data.

use super::*;
use crate::catalogue::Size;
use crate::collection;
use crate::fixture;
use crate::stored::KeptFigure;
use std::collections::{BTreeMap, BTreeSet};

/// Papers whose rows come from several commits, with the number of commits. No number may grow; a
/// paper that is run again from one commit is removed from the list.
const SEVERAL_COMMITS: [(&str, usize); 1] = [("z-lfs", 5)];

fn kept(commit: &str, values: &[(&str, f64)]) -> Kept {
    let figures = values.iter().map(|(name, value)| KeptFigure {
        name: (*name).to_owned(),
        unit: "x".to_owned(),
        values: vec![*value],
        by_seed: Vec::new(),
    });
    Kept {
        claim: "N1".to_owned(),
        variant: String::new(),
        commit: commit.to_owned(),
        command: "furrow-lab keep N1".to_owned(),
        size: Size::Scaled,
        seeds: vec![1],
        note: String::new(),
        figures: figures.collect(),
    }
}

const HEADLINES: &str = r#"
[[headline]]
paper = "z-lfs"
at = ["abstract"]
says = "four times as fast"
published = 4
unit = "x"
figure = "N1: a"

[[headline]]
paper = "z-lfs"
at = ["conclusion"]
says = "as fast as can be"
published = 40
unit = "x"
relation = "at-least"
figure = "N1: a"

[[headline]]
paper = "z-lfs"
at = ["introduction"]
says = "half the money"
published = 50
unit = "%"
missing = "no row: nothing is for sale"
"#;

fn pages(cause: &str) -> Vec<File> {
    pages_of("[source.z-lfs]", cause)
}

fn pages_of(source: &str, cause: &str) -> Vec<File> {
    let rest = format!(
        r#"
explanation = "It was the drive."
{cause}
figures = [
  {{ name = "a", unit = "x", paper = 4, take = "ratio", run = "r", per = "r" }},
  {{ name = "b", unit = "x", paper = 2, take = "ratio", run = "r", per = "r" }},
  {{ name = "tried", unit = "x", take = "ratio", run = "r", per = "r" }},
]
[[claim.runs]]
name = "r"
"#
    );
    let claims = fixture::claims(&[fixture::claim("N1", "shown (all of it)", "more", &rest)]);
    let rename = |text: &str| text.replace("[source.s]", source);
    let claims = claims.replace("source = \"s\"", "source = \"z-lfs\"");
    // A paper with plausible values may have no headlines with numbers of their own.
    let claims = claims + if source.contains("plausible") { "" } else { HEADLINES };
    let setup = format!("{}[[variant]]\nname = \"slow\"\n", rename(fixture::SETUP));
    let catalogue = Catalogue::parse(&setup, &claims).unwrap();
    let old = kept("old", &[("a", 1.5), ("b", 1.1), ("tried", 7.0)]);
    let new = kept("new", &[("a", 3.9), ("b", 1.1), ("tried", 8.0)]);
    let slow = Kept { variant: "slow".to_owned(), ..kept("new", &[("a", 2.5)]) };
    files(&catalogue, &[old, new, slow])
}

#[test]
fn a_paper_is_a_summary_and_an_appendix_with_what_holds_now() {
    let pages = pages("cause = \"Slow dies.\"\nmoved = [\"tried\"]\nfound = \"Dies decide.\"");
    let paths: Vec<&str> = pages.iter().map(|page| &*page.path).collect();
    assert_eq!(paths, ["claims.md", "claims/z-lfs.md", "claims/z-lfs.svg"]);
    for wanted in [
        "1 published figures are reproduced, 0 in their direction only, 0 are bettered, 1 are none",
        "| [z-lfs](#z-lfs) | 1 | 0 | 0 | 1 | 0 | 0 | 0 | 0 | 0 |",
        "All figures: [claims/z-lfs.md](claims/z-lfs.md).",
    ] {
        assert!(pages[0].text.contains(wanted), "{wanted} is not in\n{}", pages[0].text);
    }
    for wanted in [
        "- All claims: `furrow-lab keep ID`.",
        "## N1 shown (all of it)\n",
        "| a | 3.9 × | 4 | reproduced |",
        "| b | 1.1 × | 2 | not reproduced |",
        "**Cause**: Slow dies. Shown by: tried (8 ×).",
        "Dies decide.",
    ] {
        assert!(pages[1].text.contains(wanted), "{wanted} is not in\n{}", pages[1].text);
    }
    for gone in ["\nmore", "It was the drive.", "old", "2.5", "| tried |"] {
        assert!(!pages[1].text.contains(gone), "{gone} is in\n{}", pages[1].text);
    }
}

#[test]
fn headlines_are_a_table_and_a_picture_with_a_row_each() {
    let pages = pages("");
    for wanted in [
        "Of 3 headlines",
        "1 reproduced, 1 not reproduced, 1 not run.",
        "| four times as fast ([N1](claims/z-lfs.md)) | 4 × | 3.9 × | reproduced |",
        "| as fast as can be ([N1](claims/z-lfs.md)) | ≥ 40 × | 3.9 × | not reproduced |",
        "| half the money | 50 % | – | no row: nothing is for sale |",
    ] {
        assert!(pages[0].text.contains(wanted), "{wanted} is not in\n{}", pages[0].text);
    }
    let picture = &pages[2].text;
    assert_eq!(picture.matches("<g><title>").count(), 3);
    for wanted in ["0.98×", "0.1×", "not reproduced", "fh-a", "fh-d", "fh-1\" d=\"M173"] {
        assert!(picture.contains(wanted), "{wanted} is not in\n{picture}");
    }
}

#[test]
fn a_headline_names_a_figure_of_its_paper_or_says_why_not() {
    let claims = fixture::claims(&[fixture::claim(
        "N1",
        "shown",
        "more",
        "figures = [{ name = \"a\", unit = \"x\", paper = 4, run = \"r\" }]\n\
         [[claim.runs]]\nname = \"r\"\n",
    )]);
    let claims = claims.replace("source = \"s\"", "source = \"z-lfs\"");
    let setup = fixture::SETUP.replace("[source.s]", "[source.z-lfs]");
    for (old, new, why) in [
        ("figure = \"N1: a\"", "figure = \"N1: b\"", "no figure `N1: b`"),
        ("unit = \"x\"", "unit = \"%\"", "is in `x`"),
        ("figure = \"N1: a\"", "", "either a `figure`"),
        ("at = [\"abstract\"]", "at = [\"page 1\"]", "'page 1' is not a place"),
        ("says = \"four times as fast\"", "says = \"four times as fast\"\nso = 1", "so"),
    ] {
        let text = format!("{claims}{}", HEADLINES.replacen(old, new, 1));
        let error = format!("{:#}", Catalogue::parse(&setup, &text).unwrap_err());
        assert!(error.contains(why), "{why}: {error}");
    }
    let setup = format!(
        "{}[[variant]]\nname = \"slow\"\n",
        fixture::SETUP.replace("[source.s]", "[source.z-lfs]\nplausible = [\"slow\"]")
    );
    let error = Catalogue::parse(&setup, &format!("{claims}{HEADLINES}")).unwrap_err();
    assert!(format!("{error:#}").contains("has another published number"), "{error:#}");
}

#[test]
fn one_verdict_is_said_once() {
    let rest = "figures = [{ name = \"a\", unit = \"x\", paper = 4, run = \"r\" }]\n\
                [[claim.runs]]\nname = \"r\"\n";
    let claims = fixture::claims(&[
        fixture::claim("N1", "shown", "more", rest),
        fixture::claim("N2", "later", "more", rest),
    ]);
    let claims = claims.replace("source = \"s\"", "source = \"z-lfs\"");
    let setup = fixture::SETUP.replace("[source.s]", "[source.z-lfs]\nreal_time = true");
    let catalogue = Catalogue::parse(&setup, &claims).unwrap();
    let pages = files(&catalogue, &[kept("old", &[("a", 1.0)]), kept("new", &[("a", 0.0)])]);
    assert!(pages[0].text.contains("except those of z-lfs, which are by the real clock"));
    for wanted in [
        "by the real clock",
        "## N1 shown (not reproduced)\n\n| figure | ours | published |\n",
        "| a | 0 × | 4 |\n",
        "## Not run",
        "| N2 | later | a run that is kept |",
    ] {
        assert!(pages[1].text.contains(wanted), "{wanted} is not in\n{}", pages[1].text);
    }
}

#[test]
fn a_missing_cause_or_experiment_is_said() {
    let open = pages("");
    assert!(open[1].text.contains("**No cause was found.**"));
    let elsewhere = pages("cause = \"Slow dies.\"\nmoved = [\"N1: tried\"]");
    assert!(elsewhere[1].text.contains("Shown by: N1: tried (8 ×)."));
    let guess = pages("cause = \"Slow dies.\"");
    assert!(guess[1].text.contains("**Suspected cause**: Slow dies. No experiment moved it."));
    let other = pages("incomparable = \"Another trace.\"");
    assert!(other[1].text.contains("(cannot be compared)"));
    assert!(other[1].text.contains("**Not comparable**: Another trace."));
    assert!(other[0].text.contains("| 0 | 0 | 0 | 0 | 2 | 0 | 0 | 0 | 0 |"));
}

#[test]
fn a_verdict_is_the_worst_over_plausible_values() {
    let pages = pages_of("[source.z-lfs]\nplausible = [\"slow\"]", "");
    for wanted in [
        "A verdict on N1 is the worst of the run and of the variants slow;",
        "| a | 3.9 × | 4 | direction reproduced (slow: 2.5 ×) |",
    ] {
        assert!(pages[1].text.contains(wanted), "{wanted} is not in\n{}", pages[1].text);
    }
    let unknown = || pages_of("[source.z-lfs]\nplausible = [\"fast\"]", "");
    assert!(std::panic::catch_unwind(unknown).is_err());
}

#[test]
fn causes_and_findings_are_short_and_experiments_exist() {
    let long = format!("found = \"{}\"", "a ".repeat(76));
    for wrong in [
        &*long,
        "cause = \"a b c d e f g h i j k l m n o p\"",
        "cause = \"Slow dies.\"\nmoved = [\"a\"]",
        "cause = \"Slow dies.\"\nmoved = [\"none\"]",
        "cause = \"Slow dies.\"\nmoved = [\"N2: tried\"]",
        "cause = \"Slow dies.\"\nmoved = [\"N1: a\"]",
        "moved = [\"tried\"]",
    ] {
        assert!(std::panic::catch_unwind(|| pages(wrong)).is_err(), "{wrong}");
    }
}

fn read(path: &str) -> String {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/research/");
    std::fs::read_to_string(format!("{docs}{path}")).unwrap_or_default()
}

fn stored() -> Vec<Kept> {
    collection::lines(&read("data/claims.jsonl")).unwrap()
}

/// The claims of each paper with their kept figures, as the pages show them.
fn of_papers(test: impl Fn(&str, &[Shown<'_>])) {
    let (catalogue, stored) = (Catalogue::built_in().unwrap(), stored());
    for paper in PAPERS {
        let own = catalogue.claims.iter().filter(|claim| claim.source == paper);
        let plausible = &catalogue.sources[paper].plausible;
        let shown = own.map(|claim| Shown::new(claim, plausible, &stored)).collect::<Vec<_>>();
        test(paper, &shown);
    }
}

/// Rows that cannot be compared are left out: the trace that these rows replayed is no
/// longer available.
#[test]
fn the_rows_of_a_page_come_from_one_commit() {
    of_papers(|paper, claims| {
        let compared = claims.iter().filter(|shown| {
            shown.claim.incomparable.is_none() && shown.published().next().is_some()
        });
        let commits: BTreeSet<&str> =
            compared.filter_map(|shown| Some(&*shown.kept?.commit)).collect();
        let listed = SEVERAL_COMMITS.iter().find(|(several, _)| *several == paper);
        let allowed = listed.map_or(1, |(_, commits)| *commits);
        assert_eq!(commits.len(), allowed, "{paper}: its rows come from {commits:?}");
    });
}

/// Two figures of a paper that agree to the last digit are one experiment; whole numbers may agree
/// by chance.
#[test]
fn no_experiment_is_counted_twice() {
    of_papers(|paper, claims| {
        let mut known: BTreeMap<String, String> = BTreeMap::new();
        for (shown, row) in claims.iter().flat_map(|s| s.published().map(move |row| (s, row))) {
            let whole = row.ours.values.iter().all(|value| value.fract() == 0.0);
            if whole || !row.verdict.compares() {
                continue;
            }
            let name = format!("{}: {}", shown.claim.id, row.figure.name);
            if let Some(other) = known.insert(format!("{:?}", row.ours.values), name.clone()) {
                panic!("{paper}: '{name}' is '{other}' again, without `same_as`");
            }
        }
    });
}

/// Checks that the documents of the repository match its data.
#[test]
fn the_pages_are_not_stale() {
    let stored = stored();
    let catalogue = Catalogue::built_in().unwrap();
    for paper in PAPERS {
        assert!(catalogue.sources[paper].holds.len() <= 3, "{paper}: few sentences");
        assert!(catalogue.headlines.iter().any(|headline| headline.paper == paper), "{paper}");
    }
    for line in &stored {
        assert!(catalogue.claim(&line.claim).is_some(), "no claim is called {}", line.claim);
    }
    for page in files(&catalogue, &stored) {
        assert!(
            read(&page.path) == page.text,
            "{}: run 'furrow-lab pages docs/research'",
            page.path
        );
    }
}
