//! Words for messages: counted things, and suggestions for mistyped names.

/// Maximum number of names that a message suggests.
const PROPOSED: usize = 3;

/// A number of things, as text: in the plural unless the number is 1.
pub fn count(number: u64, one: &str) -> String {
    match one.strip_suffix('y') {
        _ if number == 1 => format!("1 {one}"),
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{number} {stem}ies"),
        _ if one.ends_with('S') => format!("{number} {one}ES"),
        _ if one.ends_with(char::is_uppercase) => format!("{number} {one}S"),
        _ => format!("{number} {one}s"),
    }
}

/// A list of things by number, such as `members 2, 3` or `member 2`.
pub fn listed(one: &str, which: &[String]) -> String {
    let plural = if which.len() == 1 { "" } else { "s" };
    format!("{one}{plural} {}", which.join(", "))
}

/// The text ` (did you mean 'commit'?)`, if names among `known` are near to `word`;
/// otherwise empty.
pub fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = nearest(word, known);
    if near.is_empty() {
        return String::new();
    }
    let named: Vec<String> = near.iter().map(|name| format!("'{name}'")).collect();
    format!(" (did you mean {}?)", named.join(" or "))
}

/// The names among `known` that are nearest to `word`, at most three; none if all are far. A name
/// is near if at most a third of the word's letters would have to change, or if it begins with
/// the word.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let word = word.to_lowercase();
    let length = word.chars().count();
    let most = (length / 3).max(1);
    let mut near: Vec<(usize, &str)> = Vec::new();
    for name in known {
        let lower = name.to_lowercase();
        let distance = match length > 1 && lower.starts_with(&word) {
            true => 0,
            false => distance(&word, &lower),
        };
        // Without the second condition, every short name would be near to a word of one or
        // two letters.
        if distance <= most && distance < length.max(2) && !near.iter().any(|(_, one)| *one == name)
        {
            near.push((distance, name));
        }
    }
    let least = near.iter().map(|(distance, _)| *distance).min().unwrap_or_default();
    let names = near.into_iter().filter(|(distance, _)| *distance == least);
    names.map(|(_, name)| name).take(PROPOSED).collect()
}

/// Number of letters that must be inserted, removed, changed or swapped with their neighbour to
/// turn one word into the other (the optimal string alignment of Damerau and Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows: [Vec<usize>; 3] = [vec![], (0..=other.len()).collect(), vec![]];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let change = rows[1][j] + usize::from(a != b);
            let mut least = change.min(rows[1][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(rows[0][j - 1] + 1);
            }
            row.push(least);
        }
        let [_, last, _] = rows;
        rows = [last, row, vec![]];
    }
    rows[1][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_no_plural() {
        assert_eq!((count(1, "ERROR"), count(0, "file")), ("1 ERROR".into(), "0 files".into()));
        let directories = [1, 2].map(|number| count(number, "directory"));
        assert_eq!(directories, ["1 directory", "2 directories"]);
        assert_eq!(count(2, "array"), "2 arrays");
        assert_eq!(listed("member", &["2".into()]), "member 2");
        assert_eq!(listed("member", &["2".into(), "3".into()]), "members 2, 3");
    }

    #[test]
    fn distances_are_those_of_edits() {
        for (one, other, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("commit", "comit", 1),
            ("mount", "mont", 1),
            ("mount", "muont", 1),
            ("kitten", "sitting", 3),
            ("ca", "abc", 3),
        ] {
            assert_eq!(distance(one, other), expected, "{one} {other}");
            assert_eq!(distance(other, one), expected, "{other} {one}");
        }
    }

    #[test]
    fn what_is_near_is_proposed_and_nothing_else() {
        let presets = ["pm1731a", "zn540-1t", "zn540-4t", "zn540"];
        assert_eq!(nearest("zn54", presets), ["zn540-1t", "zn540-4t", "zn540"]);
        assert_eq!(nearest("pm1731", presets), ["pm1731a"]);
        assert_eq!(nearest("PM1731A", presets), ["pm1731a"]);
        assert!(nearest("qwerty", presets).is_empty());
        let options = ["ro", "rw", "commit", "cache", "gc", "gc_start"];
        assert_eq!(nearest("comit", options), ["commit"]);
        assert_eq!(nearest("gc-start", options), ["gc_start"]);
        for far in ["x", "", "nosuch"] {
            assert!(nearest(far, options).is_empty(), "{far}");
        }
        assert_eq!(hint("comit", options), " (did you mean 'commit'?)");
        assert_eq!(hint("zn540-2t", presets), " (did you mean 'zn540-1t' or 'zn540-4t'?)");
        assert_eq!(hint("nosuch", options), "");
    }
}
