//! A frame of `furrow top` as lines of text that fit a screen.

use super::{Array, Frame, Mount, Requests, SHOWN};
use crate::raid::status;
use crate::show::{self, bytes, time};
use furrow_console::fit::{self, Column};

/// The columns of mounts. The narrower the screen, the more columns of high rank are left out.
const MOUNTS: [Column<'_>; 19] = [
    Column::name("mount", 0),
    Column::amount("read/s", 1),
    Column::amount("written/s", 1),
    Column::amount("drive/s", 5),
    Column::amount("reads/s", 4),
    Column::amount("read time", 3),
    Column::amount("writes/s", 4),
    Column::amount("write time", 2),
    Column::amount("fsyncs/s", 4),
    Column::amount("fsync time", 2),
    Column::amount("cleaned/s", 5),
    Column::amount("moved/s", 5),
    Column::amount("use", 1),
    Column::amount("zones active", 6),
    Column::amount("empty", 6),
    Column::amount("open", 6),
    Column::amount("part-full", 6),
    Column::amount("full", 6),
    Column::amount("retired", 6),
];

/// The columns of arrays.
const ARRAYS: [Column<'_>; 20] = [
    Column::name("array", 0),
    Column::word("state", 0),
    Column::amount("read/s", 1),
    Column::amount("written/s", 1),
    Column::amount("reads/s", 4),
    Column::amount("read time", 3),
    Column::amount("writes/s", 4),
    Column::amount("write time", 3),
    Column::amount("flushes/s", 4),
    Column::amount("flush time", 3),
    Column::amount("stripe wait", 5),
    Column::amount("cleaned/s", 5),
    Column::amount("moved/s", 5),
    Column::amount("use", 2),
    Column::amount("clients", 2),
    Column::amount("segments free", 6),
    Column::amount("open", 6),
    Column::amount("sealed", 6),
    Column::amount("truncated", 7),
    Column::amount("reset", 7),
];

/// The columns of members.
const MEMBERS: [Column<'_>; 7] = [
    Column::name("array", 1),
    Column::amount("member", 0),
    Column::word("state", 0),
    Column::amount("read errors", 2),
    Column::amount("write errors", 2),
    Column::amount("checksum errors", 2),
    Column::name("device", 0),
];

fn rate(amount: f64) -> String {
    bytes(amount as u64)
}

impl Requests {
    /// Two cells: requests per second, and the mean time of a request.
    fn cells(all: Option<&Requests>) -> [String; 2] {
        let count = all.map_or(0.0, |requests| requests.per_second);
        let mean = all.and_then(|requests| requests.mean_ns);
        [format!("{count:.0}"), mean.map_or("-".to_owned(), time)]
    }
}

impl Frame {
    /// The first line of a frame on a terminal.
    pub(super) fn head(&self, every: std::time::Duration, width: usize) -> String {
        let mounts = show::count(self.mounts.len() as u64, "mount");
        let arrays = show::count(self.arrays.len() as u64, "array");
        let every = every.as_secs_f64();
        let head = format!("q quits, every {every} s: {mounts}, {arrays}");
        head.chars().take(width).collect()
    }

    /// The frame in lines of at most `width` columns.
    pub(super) fn lines(&self, width: usize) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.mounts.is_empty() {
            let rows: Vec<_> = self.mounts.iter().map(Mount::row).collect();
            lines.extend(fit::table(&MOUNTS, &rows, width));
            for mount in &self.mounts {
                let failure = mount.failure.iter();
                let failure = failure.map(|why| format!("{}: FAILED: {why}", mount.directory));
                lines.extend(failure.flat_map(|text| fit::folded(&text, 2, width)));
            }
        }
        if !self.arrays.is_empty() {
            if !lines.is_empty() {
                lines.push(String::new());
            }
            let rows: Vec<_> = self.arrays.iter().map(Array::row).collect();
            lines.extend(fit::table(&ARRAYS, &rows, width));
            let texts = self.arrays.iter().flat_map(Array::texts);
            lines.extend(texts.flat_map(|text| fit::folded(&text, 2, width)));
            lines.push(String::new());
            let rows: Vec<_> = self.arrays.iter().flat_map(Array::members).collect();
            lines.extend(fit::table(&MEMBERS, &rows, width));
        }
        if self.mounts.is_empty() && self.arrays.is_empty() && self.unasked.is_empty() {
            lines.push("nothing is mounted, and no arrays run".to_owned());
        }
        lines.extend(self.unasked.iter().flat_map(|why| fit::folded(why, 2, width)));
        lines
    }
}

impl Mount {
    fn row(&self) -> Vec<String> {
        let [reads, writes, fsyncs] = SHOWN.map(|name| Requests::cells(self.requests.get(name)));
        let zones = &self.zones;
        let mut row = vec![show::printable(&self.directory)];
        row.push(rate(self.read_bytes_per_second));
        row.push(rate(self.user_bytes_per_second));
        row.push(rate(self.drive_bytes_per_second));
        row.extend([reads, writes, fsyncs].into_iter().flatten());
        row.push(format!("{:.1}", self.cleaned_per_second));
        row.push(rate(self.moved_bytes_per_second));
        // The share that df(1) prints too.
        row.push(show::percent(self.used_bytes, self.used_bytes + self.available_bytes));
        row.push(format!("{} of {}", self.permits_held, self.permits_limit));
        let states = [zones.empty, zones.open, zones.partial, zones.full, zones.retired];
        row.extend(states.map(|count| count.to_string()));
        row
    }
}

impl Array {
    fn row(&self) -> Vec<String> {
        let [reads, writes, flushes] =
            ["read", "write", "flush"].map(|kind| Requests::cells(self.requests.get(kind)));
        let mut row = vec![self.array.clone(), self.state.to_uppercase()];
        row.push(rate(self.read_bytes_per_second));
        row.push(rate(self.written_bytes_per_second));
        row.extend([reads, writes, flushes].into_iter().flatten());
        row.push(self.mean_wait_ns.map_or("-".to_owned(), time));
        row.push(format!("{:.1}", self.cleaned_per_second));
        row.push(rate(self.moved_bytes_per_second));
        row.push(show::percent(self.used_bytes, self.size_bytes));
        row.push(self.clients.to_string());
        let states = ["free", "open", "sealed", "truncated", "releasing"];
        let of_state = |state: &str| self.segments.get(state).copied().unwrap_or(0).to_string();
        row.extend(states.map(of_state));
        row
    }

    /// Lines of text about the array below the tables.
    fn texts(&self) -> Vec<String> {
        let (array, rebuild) = (&self.array, self.rebuild.as_ref());
        let rebuild =
            rebuild.map(|rebuild| format!("rebuild {}", status::describe_rebuild(array, rebuild)));
        let scrub = self.scrub.as_ref();
        let scrub = scrub.map(|scrub| format!("scrub {}", status::describe_scrub(array, scrub)));
        let all = self.problem.clone().into_iter().chain(rebuild).chain(scrub);
        all.map(|text| format!("{}: {text}", self.array)).collect()
    }

    fn members(&self) -> impl Iterator<Item = Vec<String>> {
        self.members.iter().map(|member| {
            vec![
                self.array.clone(),
                member.member.to_string(),
                member.state.to_uppercase(),
                member.read_errors.to_string(),
                member.write_errors.to_string(),
                member.checksum_errors.to_string(),
                member.device.as_deref().map_or("-".to_owned(), show::printable),
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::Zones;
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn requests(per_second: f64, mean_ns: Option<u64>) -> Requests {
        Requests { per_second, mean_ns }
    }

    /// A frame with two mounts and two arrays: of each, one is busy and one is idle.
    fn frame() -> Frame {
        let mount = |directory: &str, busy: bool| Mount {
            directory: directory.to_owned(),
            device: "/srv/d.zns".to_owned(),
            read_only: false,
            failure: (!busy).then(|| "/srv/d.zns: zone 7, block 12: write: media error".to_owned()),
            read_bytes_per_second: if busy { 1023.4 * 1048576.0 } else { 0.0 },
            user_bytes_per_second: if busy { 999.0 * 1048576.0 } else { 0.0 },
            drive_bytes_per_second: if busy { 1.2e9 } else { 0.0 },
            requests: match busy {
                true => SHOWN.map(|name| (name, requests(123_456.0, Some(999_400)))).into(),
                false => BTreeMap::new(),
            },
            cleaned_per_second: 12.3,
            moved_bytes_per_second: 1e8,
            used_bytes: 999,
            size_bytes: 1000,
            available_bytes: 1,
            zones: Zones { empty: 40_000, open: 14, partial: 3, full: 700, ..Zones::default() },
            permits_held: 12,
            permits_limit: 14,
        };
        let member = |number: u32| {
            let text = format!(
                r#"{{"member":{number},"state":"rebuilding","uuid":"","device":
                    "/dev/disk/by-id/nvme-drive-of-a-long-name-{number}","read_errors":0,
                    "write_errors":{number},"checksum_errors":0}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let array = |name: &str, busy: bool| Array {
            array: name.to_owned(),
            uuid: "e6bbae72-6865-4673-9973-20186784296c".to_owned(),
            state: if busy { "degraded" } else { "online" }.to_owned(),
            problem: busy.then(|| "members 1, 2 are missing; no other drive may fail".to_owned()),
            read_bytes_per_second: if busy { 1e9 } else { 0.0 },
            written_bytes_per_second: if busy { 1e9 } else { 0.0 },
            requests: BTreeMap::new(),
            mean_wait_ns: busy.then_some(1_234_000),
            segments: BTreeMap::from([("free".to_owned(), 100), ("sealed".to_owned(), 12)]),
            cleaned_per_second: 0.0,
            moved_bytes_per_second: 0.0,
            used_bytes: 1,
            size_bytes: 2,
            clients: 1,
            rebuild: None,
            scrub: None,
            members: (0..3).map(member).collect(),
        };
        Frame {
            version: 2,
            seconds: 2.0,
            mounts: vec![mount("/mnt", true), mount("/srv/backup/of/many/hosts", false)],
            arrays: vec![array("tank", true), array("a", false)],
            unasked: vec!["the array x runs, but its daemon gives no answer".to_owned()],
        }
    }

    #[test]
    fn no_row_is_longer_than_the_screen_and_no_column_without_a_heading() {
        let frame = frame();
        for width in [20, 30, 40, 60, 80, 100, 132, 200, 1000] {
            let lines = frame.lines(width);
            for line in &lines {
                assert!(line.chars().count() <= width, "{width}: {line}");
                assert!(!line.contains("a block waits"), "{line}");
            }
            // Each cell needs a heading: the row has as many words as the heading.
            let head = lines[0].split("  ").filter(|word| !word.trim().is_empty()).count();
            for row in &lines[1..3] {
                let cells = row.split("  ").filter(|word| !word.trim().is_empty()).count();
                assert_eq!(cells, head, "{width}: {row}\n{}", lines[0]);
            }
        }
    }

    #[test]
    fn each_mount_and_array_has_one_line_and_the_wider_screen_shows_more() {
        let frame = frame();
        let heads = |width: usize| {
            let lines = frame.lines(width);
            assert!(lines[1].starts_with("/mnt ") && lines[2].contains("hosts"), "{lines:#?}");
            let of_arrays = lines.iter().position(|line| line.starts_with("array")).unwrap();
            assert!(lines[of_arrays + 1].starts_with("tank"), "{lines:#?}");
            assert!(lines[of_arrays + 2].starts_with("a "), "{lines:#?}");
            (lines[0].clone(), lines[of_arrays].clone())
        };
        let (mounts, arrays) = heads(40);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&mounts), ["mount", "read/s", "written/s", "use"]);
        assert_eq!(words(&arrays), ["array", "state", "read/s", "written/s"]);
        let (mounts, arrays) = heads(80);
        for word in ["read/s", "written/s", "write time", "fsync time", "use"] {
            assert!(mounts.contains(word), "{word}: {mounts}");
        }
        for word in ["state", "read/s", "written/s", "use", "clients"] {
            assert!(arrays.contains(word), "{word}: {arrays}");
        }
        let (mounts, arrays) = heads(200);
        for column in ["drive/s", "reads/s", "zones active", "empty", "retired"] {
            assert!(mounts.contains(column), "{column}: {mounts}");
        }
        for column in ["stripe wait", "flushes/s", "segments free", "sealed"] {
            assert!(arrays.contains(column), "{column}: {arrays}");
        }
    }

    #[test]
    fn the_head_says_how_to_end_on_any_screen() {
        let head = frame().head(Duration::from_secs(2), 40);
        assert_eq!(head, "q quits, every 2 s: 2 mounts, 2 arrays");
        let empty = Frame { mounts: vec![], arrays: vec![], unasked: vec![], ..frame() };
        assert_eq!(empty.lines(80), ["nothing is mounted, and no arrays run"]);
    }
}
