//! Output of `furrow-lab`: tables, and a line of progress.

use furrow_console::fit;
use furrow_console::show;
use furrow_lab::cache::Cache;
use furrow_lab::catalogue::{Catalogue, Claim};
use furrow_lab::runner::{self, Order, Outcome, Progress};
use furrow_lab::text;
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::Duration;

/// A claim in the list.
#[derive(serde::Serialize)]
pub struct Line {
    id: String,
    source: String,
    what: String,
    /// Places at which the paper shows or states the claim.
    at: Vec<String>,
    /// The part that must be built, or the argument that is missing, before the claim can be run.
    needs: Option<String>,
    /// Whether all runs of the claim are in the cache.
    cached: bool,
}

#[derive(serde::Serialize)]
struct ListDocument<'a> {
    version: u32,
    claims: &'a [Line],
}

impl Line {
    /// The list's line for `claim`. Whether the claim is cached depends on size and seeds.
    pub fn new(catalogue: &Catalogue, claim: &Claim, order: &Order, cache: &Cache) -> Line {
        Line {
            id: claim.id.clone(),
            source: claim.source.clone(),
            what: claim.what.clone(),
            at: claim.at.clone(),
            needs: claim.needs.clone().or_else(|| {
                let lacks = !catalogue.has_all(claim);
                lacks.then(|| claim.lacks().to_owned())
            }),
            cached: runner::is_cached(catalogue, claim, order, cache),
        }
    }
}

impl Line {
    /// The text after the statement: its places in the paper, what the claim needs, and whether its
    /// results are kept.
    fn remark(&self) -> String {
        let mut parts = self.at.clone();
        parts.extend(self.needs.iter().map(|needs| format!("needs {needs}")));
        parts.extend((self.needs.is_none() && self.cached).then(|| "cached".to_owned()));
        if parts.is_empty() { String::new() } else { format!(" [{}]", parts.join(", ")) }
    }
}

/// Prints the list as JSON.
pub fn list_json(out: &mut dyn Write, lines: &[Line]) -> anyhow::Result<()> {
    let document = ListDocument { version: 1, claims: lines };
    show::json(out, &document)
}

/// Prints the list as text, by source: a line for each claim where the screen is wide enough.
pub fn list(out: &mut dyn Write, lines: &[Line]) -> io::Result<()> {
    let width = io::stdout().is_terminal().then(|| show::Screen::of_stdout().width.max(40));
    let name = lines.iter().map(|line| line.id.chars().count()).max().unwrap_or(0);
    let mut sources: Vec<&str> = Vec::new();
    for line in lines {
        if !sources.contains(&&*line.source) {
            sources.push(&line.source);
        }
    }
    for (number, source) in sources.iter().enumerate() {
        writeln!(out, "{}{source}", if number == 0 { "" } else { "\n" })?;
        for line in lines.iter().filter(|line| line.source == *source) {
            let text = format!("  {:name$}  {}{}", line.id, line.what, line.remark());
            match width {
                Some(width) => {
                    let folded = fit::folded(&text, name + 4, width);
                    folded.iter().try_for_each(|part| writeln!(out, "{}", part.trim_end()))?;
                }
                None => writeln!(out, "{text}")?,
            }
        }
    }
    let runnable = lines.iter().filter(|line| line.needs.is_none()).count();
    let claims = if lines.len() == 1 { "claim" } else { "claims" };
    writeln!(out, "\n{} {claims}, {runnable} can be run", lines.len())
}

/// Prints the results of runs.
pub fn outcome(
    out: &mut dyn Write,
    catalogue: &Catalogue,
    outcome: &Outcome<'_>,
    order: &Order,
    cache: &Cache,
) -> io::Result<()> {
    for finished in &outcome.claims {
        let claim = finished.claim;
        writeln!(out, "{}: {} ({})", claim.id, claim.what, claim.source)?;
        let result = match &finished.result {
            Ok(result) => result,
            Err(why) => {
                writeln!(out, "  failed: {why}\n")?;
                continue;
            }
        };
        let beside = result.figures.iter().any(|figure| figure.processor.is_some());
        let head = ["", "ours", "±", "unit", "published", "ratio", "expected", "verdict"];
        let more = beside.then_some("processor");
        let mut table = show::table(&head.into_iter().chain(more).collect::<Vec<_>>());
        for figure in &result.figures {
            let unit = text::unit(&figure.figure.unit);
            let processor =
                figure.processor.as_ref().map_or(String::new(), |taken| taken.describe(unit));
            let cells = [
                figure.figure.name.clone(),
                text::quantity(figure.ours.mean),
                text::spread(&figure.ours),
                unit.to_owned(),
                text::published(&figure.figure),
                text::ratio(figure.ratio),
                text::forecast(&figure.figure),
                figure.verdict.to_string(),
            ];
            table.add_row(cells.into_iter().chain(beside.then_some(processor)));
        }
        show::print_table(out, &table)?;
        writeln!(out)?;
    }
    let seeds = order.seeds.len();
    writeln!(
        out,
        "{} size, {seeds} {}, {} runs and {} from the cache, commit {}",
        order.size,
        if seeds == 1 { "seed" } else { "seeds" },
        outcome.run,
        outcome.cached,
        cache.build()
    )?;
    if let Some(changed) = &catalogue.changed {
        writeln!(out, "data: those of {} differ from the built-in ones:", changed.directory)?;
        changed.lines().iter().try_for_each(|line| writeln!(out, "  {line}"))?;
    }
    if cache.build().changed {
        writeln!(
            out,
            "the build differs from its commit: nothing was taken from the cache or kept"
        )?;
    }
    Ok(())
}

/// One line on standard error with the progress of runs: redrawn on a terminal, repeated every ten
/// seconds in a log.
pub struct Screen {
    terminal: bool,
    /// Time at which the last line was shown, since the runs began.
    last: Mutex<Option<Duration>>,
}

impl Screen {
    /// A screen on standard error.
    pub fn new() -> Screen {
        Screen { terminal: io::stderr().is_terminal(), last: Mutex::new(None) }
    }

    /// Shows `progress`, if enough time has passed.
    pub fn show(&self, progress: Progress) {
        let Ok(mut last) = self.last.lock() else { return };
        let every = Duration::from_secs(if self.terminal { 0 } else { 10 });
        let since = progress.elapsed.saturating_sub(last.unwrap_or_default());
        if since < every {
            return;
        }
        *last = Some(progress.elapsed);
        show::redraw(&line(progress), self.terminal);
    }

    /// Clears the line.
    pub fn end(&self) {
        let shown = self.last.lock().is_ok_and(|last| last.is_some());
        if self.terminal && shown {
            show::say("\r\x1b[K");
        }
    }
}

fn line(progress: Progress) -> String {
    let left = match progress.left {
        Some(left) => format!("{} left", clock(left)),
        None => "time left not known yet".to_owned(),
    };
    let Progress { done, of, elapsed, .. } = progress;
    format!("{done} of {of} runs, {} gone, {left}", clock(elapsed))
}

/// Minutes and seconds.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        _ => format!("{} min {:02} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_one_line_with_the_time_left() {
        let progress = Progress {
            done: 3,
            of: 20,
            elapsed: Duration::from_millis(61_400),
            left: Some(Duration::from_secs(7)),
        };
        assert_eq!(line(progress), "3 of 20 runs, 1 min 01 s gone, 7 s left");
        let unknown = Progress { left: None, ..progress };
        assert!(line(unknown).ends_with("not known yet"));
    }
}
