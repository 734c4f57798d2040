//! The text format of Prometheus, version 0.0.4, for mounts, volumes and servers.
//!
//! As usual, times are in seconds, amounts are in bytes, names of counters end in `_total`, and a
//! maximum is a gauge. [`problems`] checks a page against these rules. This crate knows neither the
//! metrics nor how they reach a client.

use std::fmt::{Display, Write};

/// A page of metrics.
#[derive(Clone, Debug)]
pub struct Page {
    text: String,
    prefix: &'static str,
    labels: String,
}

impl Page {
    /// An empty page. All names of metrics begin with `prefix`; every sample has `labels`.
    pub fn new(prefix: &'static str, labels: &[(&str, &str)]) -> Page {
        Page { text: String::new(), prefix, labels: pairs(labels) }
    }

    /// Begins a family, whose samples follow. `kind` is gauge, counter or summary; `help` is a
    /// phrase without a period.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        self.line(format_args!("# HELP {prefix}_{name} {help}."));
        self.line(format_args!("# TYPE {prefix}_{name} {kind}"));
    }

    /// Adds a sample with `labels` in addition to those of all samples.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let own = pairs(labels);
        let comma = if self.labels.is_empty() || own.is_empty() { "" } else { "," };
        let all = format!("{}{comma}{own}", self.labels);
        let prefix = self.prefix;
        match all.is_empty() {
            true => self.line(format_args!("{prefix}_{name} {value}")),
            false => self.line(format_args!("{prefix}_{name}{{{all}}} {value}")),
        }
    }

    /// Adds a family with a single sample.
    pub fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// Adds a family with a single sample for something that an engine counts, by the name of the
    /// engine's field. A count is a counter; a name that ends in `_ns` is a time, in seconds; a
    /// name that begins with `longest_` or `peak_` is a maximum, and so a gauge.
    pub fn counted(&mut self, field: &str, help: &str, value: u64) {
        let stem = field.strip_suffix("_ns");
        let name = stem.map_or_else(|| field.to_owned(), |stem| format!("{stem}_seconds"));
        let maximum = ["longest_", "peak_"].iter().any(|most| field.starts_with(most));
        let (name, kind) = match maximum {
            true => (name, "gauge"),
            false => (format!("{name}_total"), "counter"),
        };
        match stem {
            Some(_) => self.one(&name, kind, help, seconds(value)),
            None => self.one(&name, kind, help, value),
        }
    }

    /// The text of the page.
    pub fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

/// Nanoseconds as seconds.
pub fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// A family of a page: a metric, with all of its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// The name of the family, without the `_sum` and `_count` of summaries.
    pub name: String,
    /// The type: gauge, counter or summary.
    pub kind: String,
    /// The meaning of the metric.
    pub help: String,
    /// The labels that the samples have, each with its values.
    pub labels: Vec<(String, Vec<String>)>,
}

impl Family {
    /// The unit of the values, from the family's name; `None` for plain numbers.
    pub fn unit(&self) -> Option<&'static str> {
        let stem = self.name.strip_suffix("_total").unwrap_or(&self.name);
        ["seconds", "bytes", "ratio"].into_iter().find(|unit| {
            stem.strip_suffix(unit).is_some_and(|rest| rest.is_empty() || rest.ends_with('_'))
        })
    }

    fn says(&self, word: &str) -> bool {
        self.help.to_lowercase().contains(word)
    }
}

/// The families of a page, in order.
pub fn families(page: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            let (name, help) = (name.to_owned(), help.to_owned());
            families.push(Family { name, kind: String::new(), help, labels: Vec::new() });
        } else if let Some(family) = families.last_mut() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family.kind = rest.rsplit(' ').next().unwrap_or_default().to_owned();
                continue;
            }
            for (name, value) in labels(line) {
                let known = family.labels.iter().position(|(known, _)| *known == name);
                let at = known.unwrap_or_else(|| {
                    family.labels.push((name, Vec::new()));
                    family.labels.len() - 1
                });
                let values = &mut family.labels[at].1;
                if !values.contains(&value) {
                    values.push(value);
                }
            }
        }
    }
    families
}

/// The labels of a sample: names and values.
fn labels(sample: &str) -> Vec<(String, String)> {
    let mut labels = Vec::new();
    let mut rest = sample.split_once('{').map_or("", |(_, rest)| rest);
    while let Some((name, after)) = rest.split_once("=\"") {
        let (mut value, mut escaped, mut end) = (String::new(), false, after.len());
        for (at, c) in after.char_indices() {
            match (escaped, c) {
                (false, '\\') => escaped = true,
                (false, '"') => {
                    end = at + 1;
                    break;
                }
                _ => {
                    value.push(if escaped && c == 'n' { '\n' } else { c });
                    escaped = false;
                }
            }
        }
        labels.push((name.trim_start_matches(',').to_owned(), value));
        rest = &after[end..];
    }
    labels
}

/// The places where a page breaks the rules for names and types, or for what belongs to one family.
pub fn problems(page: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut families: Vec<&str> = Vec::new();
    for line in page.lines() {
        let mut problem = |what: &str| problems.push(format!("{line}: {what}"));
        let Some(family) = line.strip_prefix("# TYPE ") else {
            let last = families.last().copied().unwrap_or_default();
            if !line.starts_with("# HELP ") && !line.starts_with(last) {
                problem("in another family");
            }
            if line.rsplit(' ').next().is_none_or(|value| value.parse::<f64>().is_err())
                && !line.starts_with('#')
            {
                problem("no number");
            }
            if line.starts_with("# HELP ") && line.to_lowercase().contains("nanosecond") {
                problem("times are in seconds");
            }
            continue;
        };
        let (name, kind) = family.split_once(' ').unwrap_or((family, ""));
        if families.contains(&name) {
            problem("a family twice");
        }
        families.push(name);
        if (kind == "counter") != name.ends_with("_total") {
            problem("counters end in _total, and nothing else does");
        }
        let maximum = ["longest_", "peak_", "_peak", "_max"].iter().any(|most| name.contains(most));
        if kind == "counter" && maximum {
            problem("a maximum is a gauge");
        }
        let of_time = ["_ns", "nanosecond", "microsecond", "millisecond"];
        if of_time.iter().any(|unit| name.contains(unit)) {
            problem("times are in seconds");
        }
    }
    for family in self::families(page) {
        let in_bytes = family.unit() == Some("bytes");
        if in_bytes && !["byte", "size", "space", "memory"].iter().any(|word| family.says(word)) {
            problems.push(format!("{}: {}: amounts are in bytes", family.name, family.help));
        }
    }
    problems
}

/// Labels as they are written between braces: backslash, quote and newline in values are escaped.
fn pairs(labels: &[(&str, &str)]) -> String {
    let escape =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs: Vec<String> =
        labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escape(value))).collect();
    pairs.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_the_labels_of_all_and_their_own() {
        let mut page = Page::new("furrow", &[("device", "a\"b\\c\nd")]);
        page.one("up_seconds", "gauge", "Time", 1.5);
        page.family("inodes", "gauge", "Inodes");
        page.sample("inodes", &[("state", "free"), ("of", "x")], 3);
        let expected = "# HELP furrow_up_seconds Time.\n\
                        # TYPE furrow_up_seconds gauge\n\
                        furrow_up_seconds{device=\"a\\\"b\\\\c\\nd\"} 1.5\n\
                        # HELP furrow_inodes Inodes.\n\
                        # TYPE furrow_inodes gauge\n\
                        furrow_inodes{device=\"a\\\"b\\\\c\\nd\",state=\"free\",of=\"x\"} 3\n";
        assert_eq!(page.finish(), expected);
        assert_eq!(problems(expected), Vec::<String>::new());
        let mut bare = Page::new("furrow", &[]);
        bare.sample("a", &[], 1);
        bare.sample("b", &[("x", "y")], 2);
        assert_eq!(bare.finish(), "furrow_a 1\nfurrow_b{x=\"y\"} 2\n");
    }

    #[test]
    fn families_of_a_page_have_units_and_labels() {
        let mut page = Page::new("furrow", &[("device", "a=\"b,c")]);
        page.family("stretch_seconds_total", "counter", "Time");
        page.sample("stretch_seconds_total", &[("op", "read")], 1);
        page.sample("stretch_seconds_total", &[("op", "write"), ("of", "x")], 1);
        page.one("bytes", "gauge", "Bytes", 1);
        page.one("kilobytes", "gauge", "A number", 1);
        let families = families(&page.finish());
        let labels =
            [("device", vec!["a=\"b,c"]), ("op", vec!["read", "write"]), ("of", vec!["x"])];
        let labels = labels.map(|(name, values)| {
            (name.to_owned(), values.into_iter().map(str::to_owned).collect::<Vec<_>>())
        });
        assert_eq!(families[0].labels, labels);
        assert_eq!((families[0].kind.as_str(), families[0].help.as_str()), ("counter", "Time."));
        let units: Vec<_> = families.iter().map(Family::unit).collect();
        assert_eq!(units, [Some("seconds"), Some("bytes"), None]);
    }

    #[test]
    fn what_is_counted_has_the_name_and_type_of_what_it_is() {
        let mut page = Page::new("furrow", &[]);
        page.counted("fsyncs", "Syncs", 3);
        page.counted("waited_ns", "Time waited", 1_500_000_000);
        page.counted("longest_stall_ns", "The longest stall", 2_000_000);
        page.counted("peak_zones", "Most zones", 7);
        let text = page.finish();
        for line in [
            "# TYPE furrow_fsyncs_total counter\nfurrow_fsyncs_total 3\n",
            "# TYPE furrow_waited_seconds_total counter\nfurrow_waited_seconds_total 1.5\n",
            "# TYPE furrow_longest_stall_seconds gauge\nfurrow_longest_stall_seconds 0.002\n",
            "# TYPE furrow_peak_zones gauge\nfurrow_peak_zones 7\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(problems(&text), Vec::<String>::new());
        for (wrong, what) in [
            ("# TYPE a counter\na 1\n", "_total"),
            ("# TYPE a_total gauge\na_total 1\n", "_total"),
            ("# TYPE longest_a_total counter\nlongest_a_total 1\n", "maximum"),
            ("# TYPE a_ns gauge\na_ns 1\n", "seconds"),
            ("# HELP a Nanoseconds of work.\n# TYPE a gauge\na 1\n", "seconds"),
            ("# TYPE a gauge\na x\n", "no number"),
            ("# TYPE a gauge\nb 1\n", "another family"),
            ("# TYPE a gauge\na 1\n# TYPE a gauge\na 2\n", "twice"),
            ("# HELP a_bytes Blocks.\n# TYPE a_bytes gauge\na_bytes 1\n", "in bytes"),
        ] {
            assert!(problems(wrong).iter().any(|found| found.contains(what)), "{wrong}");
        }
    }
}
