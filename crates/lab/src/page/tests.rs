//! Tests of the pages: the content of lines, and that the documents match their data.

use super::*;
use crate::catalogue::Size;
use crate::collection;
use crate::fixture;
use crate::stored::KeptFigure;

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

fn pages(cause: &str) -> Vec<File> {
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
    let rename = |text: &str| text.replace("[source.s]", "[source.z-lfs]");
    let claims = claims.replace("source = \"s\"", "source = \"z-lfs\"");
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
        "1 published figures are reproduced, 0 in their direction only, 1 are not.",
        "| [z-lfs](#z-lfs) | 1 | 0 | 1 | 0 | 0 | 0 |",
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
    for verdict in ["reproduced", "not reproduced", "N1: a"] {
        assert!(pages[2].text.contains(verdict), "{verdict}");
    }
}

#[test]
fn one_verdict_is_said_once_and_figures_of_0_are_named() {
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
    assert!(pages[0].text.contains("not in the picture: one of N1."), "{}", pages[0].text);
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
    assert!(other[0].text.contains("| 0 | 0 | 0 | 2 | 0 | 0 |"));
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

/// Checks that the documents of the repository match its data.
#[test]
fn the_pages_are_not_stale() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/research/");
    let read = |path: &str| std::fs::read_to_string(format!("{docs}{path}")).unwrap_or_default();
    let stored: Vec<Kept> = collection::lines(&read("data/claims.jsonl")).unwrap();
    let catalogue = Catalogue::built_in().unwrap();
    for paper in PAPERS {
        assert_eq!(catalogue.sources[paper].holds.len(), 5, "{paper}: five sentences");
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
