//! An array in the text format of Prometheus. Every line carries the label `array`.

use super::status::{Member, Status};
use furrow_metrics::{Page, seconds};
use furrow_raid::Counters;

/// The metrics of an array with the state `status` and the counters `counters`.
pub fn text(status: &Status, counters: &Counters) -> String {
    let mut page = Page::new("furrow_raid", &[("array", &status.array)]);
    all(&mut page, status);
    for (name, what, value) in counters.each() {
        match of_blocks(name) {
            Some(bytes) => {
                let what = what.replacen("Blocks", "Bytes", 1).replacen("blocks", "bytes", 1);
                page.counted(bytes, &what, value * 4096);
            }
            None if name == "waited" => page.counted("waited_ns", WAITED, value),
            None if name == "map_peak" => page.one("map_peak_blocks", "gauge", what, value),
            None => page.counted(name, what, value),
        }
    }
    page.finish()
}

const WAITED: &str = "Total time that blocks of dispatched stripes had waited";

/// The name of the metric in bytes that replaces a counter of blocks; `None` for other counters.
fn of_blocks(counter: &str) -> Option<&'static str> {
    Some(match counter {
        "written" => "written_bytes",
        "read" => "read_bytes",
        "padded" => "padded_bytes",
        "windows" => "window_bytes",
        "moved" => "moved_bytes",
        "reconstructed" => "reconstructed_bytes",
        "repaired" => "repaired_bytes",
        _ => return None,
    })
}

fn each(
    page: &mut Page,
    (name, kind, help): (&str, &str, &str),
    members: &[Member],
    value: impl Fn(&Member) -> u64,
) {
    page.family(name, kind, help);
    for member in members {
        let device = member.device.as_deref().unwrap_or_default();
        let labels = [("member", &*member.member.to_string()), ("device", device)];
        page.sample(name, &labels, value(member));
    }
}

fn all(page: &mut Page, status: &Status) {
    page.family("info", "gauge", "Always 1; its labels tell which array it is");
    page.sample("info", &[("uuid", &status.uuid), ("level", &status.level)], 1);
    page.family("state", "gauge", "1 for the state of the array");
    for state in ["online", "damaged", "degraded", "full", "failed", "stopping"] {
        page.sample("state", &[("state", state)], u8::from(status.state == state));
    }
    page.one("size_bytes", "gauge", "Size of the volume", status.size_bytes);
    page.one("used_bytes", "gauge", "Bytes of the volume in use", status.used_bytes);
    let (map, tables) = (status.map_memory_bytes, status.table_memory_bytes);
    page.one("map_memory_bytes", "gauge", "Memory that the map takes", map);
    page.one("table_memory_bytes", "gauge", "Memory that the stripe tables take", tables);
    page.one("may_fail", "gauge", "Drives that may fail now", status.may_fail);
    page.one("spares", "gauge", "Drives that wait for a failure", status.spares.len());
    page.family("segments", "gauge", "Segments, by state");
    for (state, count) in &status.segments {
        page.sample("segments", &[("state", state)], *count);
    }
    page.family("requests_total", "counter", "Requests of clients, by kind");
    for (kind, requests) in &status.requests {
        page.sample("requests_total", &[("kind", kind)], requests.count);
    }
    page.family("request_seconds_total", "counter", "Time of requests of clients, by kind");
    for (kind, requests) in &status.requests {
        page.sample("request_seconds_total", &[("kind", kind)], seconds(requests.total_ns));
    }
    let all = &status.members;
    let online = |member: &Member| u64::from(member.state == "online");
    each(page, ("member_online", "gauge", "1 if the member is online"), all, online);
    let family = ("member_read_errors_total", "counter", "Reads that failed");
    each(page, family, all, |member| member.read_errors);
    let family = ("member_write_errors_total", "counter", "Writes that failed");
    each(page, family, all, |member| member.write_errors);
    let family =
        ("member_checksum_errors_total", "counter", "Blocks that differed from what was written");
    each(page, family, all, |member| member.checksum_errors);
    let rebuilding = status.rebuild.as_ref().is_some_and(|rebuild| rebuild.running);
    page.one("rebuild_running", "gauge", "1 while a rebuild runs", u8::from(rebuilding));
    let whole = all.iter().all(|member| member.state == "online");
    let nothing = if whole { 1.0 } else { 0.0 };
    let share = status.rebuild.as_ref().map_or(nothing, |rebuild| rebuild.percent / 100.0);
    page.one("rebuild_ratio", "gauge", "Share of the rebuild that is done", share);
    let failed = status.last_rebuild.as_ref().is_some_and(|last| !last.ok);
    page.one(
        "rebuild_failed",
        "gauge",
        "1 if the last rebuild ended early or could not restore blocks",
        u8::from(failed),
    );
    let full = status.out_of_space.is_some();
    page.one(
        "out_of_space",
        "gauge",
        "1 while writes are refused for lack of space",
        u8::from(full),
    );
    let scrub = status.scrub.as_ref();
    let scrubbing = scrub.is_some_and(|scrub| scrub.running);
    page.one("scrub_running", "gauge", "1 while a scrub runs", u8::from(scrubbing));
    let damaged = scrub.map_or(0, |scrub| scrub.damaged);
    page.one("scrub_damaged_blocks", "gauge", "Damaged blocks that the last scrub found", damaged);
    let lost = status.lost_blocks;
    page.one("lost_blocks", "gauge", "Blocks of the volume that are known to be lost", lost);
    let damaged = status.damaged_blocks;
    page.one("damaged_blocks", "gauge", "Damaged blocks that are known and not mended", damaged);
    let lost = scrub.map_or(0, |scrub| scrub.lost);
    page.one(
        "scrub_lost_blocks",
        "gauge",
        "Blocks that the last scrub could not read or reconstruct",
        lost,
    );
}
