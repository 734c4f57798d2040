//! The text format of Prometheus, version 0.0.4, for mounts, volumes and servers.
//!
//! As usual, times are in seconds, amounts are in bytes, and names of counters end in `_total`.
//! This crate knows neither the metrics nor how they reach a client.

use std::fmt::{Display, Write};

/// A page of metrics.
#[derive(Clone, Debug)]
pub struct Page {
    text: String,
    prefix: &'static str,
    labels: String,
}

impl Page {
    /// An empty page. All names begin with `prefix`; every sample has `labels`.
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

    /// A sample with `labels` in addition to those of all samples.
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

    /// A family of one sample.
    pub fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// The text.
    pub fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

/// Labels as they stand between braces: backslash, quote and newline in values are escaped.
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
        let mut bare = Page::new("furrow", &[]);
        bare.sample("a", &[], 1);
        bare.sample("b", &[("x", "y")], 2);
        assert_eq!(bare.finish(), "furrow_a 1\nfurrow_b{x=\"y\"} 2\n");
    }
}
