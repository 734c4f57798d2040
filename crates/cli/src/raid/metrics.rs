//! An array in the text format of Prometheus, version 0.0.4.

use super::status::{Member, Status};
use std::fmt::{self, Write};

/// `status` as text. Every line carries the label `array`.
pub fn text(status: &Status) -> String {
    let mut page = Page { text: String::new(), array: label(&status.array) };
    // Writing to a String cannot fail.
    let _ = page.all(status);
    page.text
}

/// A label's value as it stands between quotes.
fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

struct Page {
    text: String,
    array: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) -> fmt::Result {
        writeln!(self.text, "# HELP furrow_raid_{name} {help}.")?;
        writeln!(self.text, "# TYPE furrow_raid_{name} {kind}")
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl fmt::Display) -> fmt::Result {
        writeln!(self.text, "furrow_raid_{name}{{array=\"{}\"{labels}}} {value}", self.array)
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl fmt::Display) -> fmt::Result {
        self.family(name, kind, help)?;
        self.sample(name, "", value)
    }

    fn each(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        members: &[Member],
        value: impl Fn(&Member) -> u64,
    ) -> fmt::Result {
        self.family(name, kind, help)?;
        for member in members {
            let device = label(member.device.as_deref().unwrap_or_default());
            let labels = format!(",member=\"{}\",device=\"{device}\"", member.member);
            self.sample(name, &labels, value(member))?;
        }
        Ok(())
    }

    fn all(&mut self, status: &Status) -> fmt::Result {
        self.family("state", "gauge", "1 for the state the array is in")?;
        for state in ["online", "degraded", "failed"] {
            let labels = format!(",state=\"{state}\"");
            self.sample("state", &labels, u8::from(status.state == state))?;
        }
        self.one("size_bytes", "gauge", "Size of the volume", status.size_bytes)?;
        self.one("used_bytes", "gauge", "Bytes of it that hold something", status.used_bytes)?;
        self.one("may_fail", "gauge", "Drives that may fail now", status.may_fail)?;
        self.one("spares", "gauge", "Drives that wait for a failure", status.spares.len())?;
        let all = &status.members;
        let online = |member: &Member| u64::from(member.state == "online");
        self.each(("member_online", "gauge", "1 if the member has everything"), all, online)?;
        let family = ("member_read_errors_total", "counter", "Reads that failed");
        self.each(family, all, |member| member.read_errors)?;
        let family = ("member_write_errors_total", "counter", "Writes that failed");
        self.each(family, all, |member| member.write_errors)?;
        let family = ("member_checksum_errors_total", "counter", "Blocks that were not as written");
        self.each(family, all, |member| member.checksum_errors)?;
        let rebuilding = status.rebuild.as_ref().is_some_and(|rebuild| rebuild.running);
        self.one("rebuild_running", "gauge", "1 while a rebuild runs", u8::from(rebuilding))?;
        let share = status.rebuild.as_ref().map_or(1.0, |rebuild| rebuild.percent / 100.0);
        self.one("rebuild_ratio", "gauge", "Share of what there is to rebuild", share)?;
        let scrub = status.scrub.as_ref();
        let scrubbing = scrub.is_some_and(|scrub| scrub.running);
        self.one("scrub_running", "gauge", "1 while a scrub runs", u8::from(scrubbing))?;
        let damaged = scrub.map_or(0, |scrub| scrub.damaged);
        self.one("scrub_damaged", "gauge", "Damaged blocks the last scrub met", damaged)?;
        let lost = scrub.map_or(0, |scrub| scrub.lost);
        self.one("scrub_lost", "gauge", "Blocks the last scrub could not have", lost)?;
        let c = &status.counters;
        for (name, help, value) in [
            ("written_blocks", "Blocks users wrote", c.written),
            ("read_blocks", "Blocks users read", c.read),
            ("padded_blocks", "Blocks of zeros that filled stripes", c.padded),
            ("stripes", "Stripes dispatched", c.stripes),
            ("moved_blocks", "Blocks cleaning moved", c.moved),
            ("cleaned_segments", "Segments cleaning emptied", c.cleaned),
            ("reconstructed_blocks", "Blocks made from parity for a read", c.reconstructed),
            ("repaired_blocks", "Blocks that were damaged and written anew", c.repaired),
            ("checkpoints", "Checkpoints written", c.checkpoints),
            ("rewritten_stripes", "Stripes written again because a zone failed", c.rewritten),
        ] {
            self.one(&format!("{name}_total"), "counter", help, value)?;
        }
        Ok(())
    }
}
