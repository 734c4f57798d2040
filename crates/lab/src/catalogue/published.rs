//! Where a paper shows or states a claim, and the claims of a place in a paper.

use super::{Catalogue, Claim};
use anyhow::{Result, bail, ensure};

/// Parts of a paper that have no number.
const PARTS: [&str; 3] = ["abstract", "introduction", "conclusion"];
/// Parts of a paper that have a number.
const NUMBERED: [&str; 3] = ["figure", "table", "section"];

/// Checks that `place` is `figure 3`, `figure 3a`, `table 2`, `section 5.2` or a part such as
/// `abstract`.
///
/// # Errors
/// If `place` is none of these: the error names it.
pub(super) fn check(place: &str) -> Result<()> {
    let numbered = place.split_once(' ').is_some_and(|(kind, number)| {
        NUMBERED.contains(&kind) && number.starts_with(|c: char| c.is_ascii_alphanumeric())
    });
    ensure!(
        numbered || PARTS.contains(&place),
        "`at`: '{place}' is not a place in a paper: write 'figure 3a', 'table 2', 'section 5.2' or \
         'abstract'"
    );
    Ok(())
}

/// True if `place` is `asked` or a part of it: figure 3a is a part of figure 3, section 5.2 of
/// section 5.
fn is_within(place: &str, asked: &str) -> bool {
    let Some(rest) = place.strip_prefix(asked) else { return false };
    match rest.chars().next() {
        None | Some('.') => true,
        Some(next) => place.starts_with("figure") && next.is_ascii_alphabetic(),
    }
}

impl Catalogue {
    /// The claims of a place in a paper: the name of a source, and then a figure's number, a kind
    /// and a number, a part, or nothing for the whole paper.
    ///
    /// # Errors
    /// If there is no such source, or it has no claim there; the error lists what it has.
    pub fn claims_at(&self, asked: &str) -> Result<Vec<&Claim>> {
        let asked = asked.trim().to_lowercase();
        let (source, place) = asked.split_once(' ').unwrap_or((&asked, ""));
        if !self.sources.contains_key(source) {
            let known: Vec<&str> = self.sources.keys().map(String::as_str).collect();
            bail!("no paper is called '{source}': write one of {} first", known.join(", "));
        }
        let place = place.trim().replace("fig.", "figure").replace("fig ", "figure ");
        let place = match place.starts_with(|c: char| c.is_ascii_digit()) {
            true => format!("figure {place}"),
            false => place,
        };
        let of_paper = || self.claims.iter().filter(|claim| claim.source == source);
        let there = |claim: &&Claim| place.is_empty() || claim.is_at(&place);
        let claims: Vec<&Claim> = of_paper().filter(there).collect();
        if claims.is_empty() {
            let mut known: Vec<&str> =
                of_paper().flat_map(|claim| claim.at.iter().map(String::as_str)).collect();
            known.sort_by_key(|place| order(place));
            known.dedup();
            bail!("no claim of {source} is at {place}; there are claims at {}", known.join(", "));
        }
        Ok(claims)
    }
}

/// The order of places: by kind, then by number.
fn order(place: &str) -> (Option<&str>, u32, &str) {
    (place.split(' ').next(), number_of(place), place)
}

/// The first number in `place`, for sorting.
fn number_of(place: &str) -> u32 {
    let digits = place.chars().skip_while(|c| !c.is_ascii_digit());
    let digits: String = digits.take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

impl Claim {
    /// True if the paper has the claim at `place` or at a part of it.
    fn is_at(&self, place: &str) -> bool {
        self.at.iter().any(|at| is_within(at, place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_what_is_within_it() {
        for (place, asked, within) in [
            ("figure 3a", "figure 3", true),
            ("figure 3", "figure 3a", false),
            ("figure 13", "figure 1", false),
            ("section 5.2", "section 5", true),
            ("section 51", "section 5", false),
            ("abstract", "abstract", true),
        ] {
            assert_eq!(is_within(place, asked), within, "{place} {asked}");
        }
    }

    #[test]
    fn places_are_written_in_one_way() {
        for place in ["figure 3a", "table 2", "section 5.2", "section V-A", "introduction"] {
            check(place).unwrap();
        }
        for place in ["Fig. 3", "page 4", "figure", "figure ", "3"] {
            check(place).unwrap_err();
        }
    }

    #[test]
    fn claims_of_papers_say_where_the_paper_has_them() {
        let all = Catalogue::built_in().unwrap();
        for claim in &all.claims {
            let published = claim.figures.iter().any(|figure| figure.paper.is_some());
            assert!(!published || !claim.at.is_empty(), "{}: no `at`", claim.id);
        }
    }

    #[test]
    fn a_place_is_asked_for_in_few_words() {
        let all = Catalogue::built_in().unwrap();
        let ids = |place: &str| -> Vec<&str> {
            all.claims_at(place).unwrap().iter().map(|claim| claim.id.as_str()).collect()
        };
        assert_eq!(ids("z-lfs 12"), ids("Z-LFS figure 12"));
        assert!(ids("z-lfs").len() > ids("z-lfs 12").len());
        let none = all.claims_at("z-lfs 99").unwrap_err().to_string();
        assert!(none.contains("at figure 99; there are claims at abstract"), "{none}");
        let none = all.claims_at("f2fs 1").unwrap_err().to_string();
        assert!(none.contains("'f2fs': write one of hzfs, "), "{none}");
    }
}
