//! `furrow fsck --repair`: shows what a repair would do, asks, and applies it.

use super::{Args, document, finding, open, print};
use crate::findings::{SHOWN, Violation, groups};
use crate::fsck::consent::{AS_N_SAYS, Answer, CANCELLED, NOBODY_AGREED, ask, consent};
use crate::holds::{Needs, explain};
use crate::show::{self, bytes, count, print_table, printable, width, wrap};
use crate::target::source_name;
use anyhow::anyhow;
use furrow_console::fit::Table;
use furrow_fs::{Action, Fate, Finding, Repair, RepairOptions, Verdict};
use furrow_rt::{Config, Rt};
use furrow_zone::Access;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::rc::Rc;

/// Exit statuses of fsck(8), which are added up.
const CORRECTED: u8 = 1;
const LEFT: u8 = 4;

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let rt = Rt::new(Config::real());
    // The drive is opened for writing only when the repair is applied.
    let watched = open(args, &rt, Access::ReadOnly)?;
    let options = RepairOptions {
        older_checkpoint: args.older_checkpoint,
        zero_bad_data: args.zero_bad_data,
        check: args.check(),
    };
    let (on, device) = (rt.clone(), watched.clone());
    let planned = rt.block_on(async move {
        match Repair::plan(&on, device.clone(), &options).await {
            Err(error) => Err(explain(&*device, Needs::FileSystem, error).await),
            planned => planned,
        }
    });
    watched.progress.end();
    let repair = Rc::new(planned.map_err(|error| anyhow!(error))?);
    let name = source_name(&args.device);
    if !args.json {
        show(out, &name, &repair, args)?;
        out.flush()?;
    }
    let answer = decide(args, &repair.verdict, repair.loses(), ask);
    // The size must be taken now: after `apply` the repair has nothing left to write.
    let size = repair.size();
    if answer == Answer::Apply {
        watched.open_to_write(args, &rt)?;
        let (repair, device) = (repair.clone(), watched.clone());
        let applied = rt.block_on(async move {
            let told = |done, of| format!("repairing: {done} of {of} commands");
            repair.apply(|done, of| device.progress.tell(|| told(done, of))).await
        });
        watched.progress.end();
        applied
            .map_err(|error| anyhow!(error).context("the repair is not finished: run it again"))?;
    }
    rt.clear();
    if args.json {
        show::json(out, &described(&name, &repair, size, answer))?;
    } else {
        conclude(out, &name, &repair, size, answer)?;
    }
    Ok(status(&repair.verdict, answer))
}

/// Whether to apply a repair with this `verdict`; `loses` says whether the repair loses data. Calls
/// `ask` if the user has to decide.
fn decide(
    args: &Args,
    verdict: &Verdict,
    loses: bool,
    ask: impl Fn(&str) -> Option<bool>,
) -> Answer {
    match verdict {
        Verdict::Clean => return Answer::Keep("nothing to do"),
        Verdict::Hopeless(_) => return Answer::Keep("nothing was changed"),
        _ if args.n => return Answer::Keep(AS_N_SAYS),
        _ if args.yes => return Answer::Apply,
        Verdict::Better if args.preen => {
            return Answer::Keep("not all errors can be mended: run furrow fsck --repair by hand");
        }
        _ => {}
    }
    if args.preen {
        return match loses {
            true => Answer::Keep("the repair would lose data: run furrow fsck --repair by hand"),
            false => Answer::Apply,
        };
    }
    let sound = *verdict == Verdict::Sound;
    if sound && !loses {
        return Answer::Apply;
    }
    let question = match (sound, loses) {
        (true, _) => "The data listed as given up would be lost. Make the repair?",
        (false, true) => "Not all errors are mended, and data is given up. Make the repair?",
        (false, false) => "Not all errors are mended. Make the repair?",
    };
    // The reason to report if no user can be asked for consent.
    let nobody =
        if loses { NOBODY_AGREED } else { "not all errors can be mended: -y mends the others" };
    consent(question, nobody, |question| if args.json { None } else { ask(question) })
}

fn status(verdict: &Verdict, answer: Answer) -> u8 {
    match (verdict, answer) {
        (Verdict::Clean, _) => 0,
        (Verdict::Sound, Answer::Apply) => CORRECTED,
        (_, Answer::Apply) => CORRECTED | LEFT,
        (_, Answer::Cancel) => LEFT | CANCELLED,
        (_, Answer::Keep(_)) => LEFT,
    }
}

/// Shows the errors and their repairs.
fn show(out: &mut dyn Write, name: &str, repair: &Repair, args: &Args) -> anyhow::Result<()> {
    let (verbose, hopeless) = (args.verbose, matches!(repair.verdict, Verdict::Hopeless(_)));
    // If the user has to be asked, the outcome is not certain.
    let certain = decide(args, &repair.verdict, repair.loses(), |_| None) == Answer::Apply;
    let step = match certain {
        true => "WHAT IS DONE",
        false if hopeless => "WHAT BECOMES OF IT",
        false => "WOULD BE DONE",
    };
    if repair.after.is_none() && (hopeless || repair.verdict == Verdict::Clean) {
        print(out, name, &repair.before, verbose)?;
    }
    let shown = if verbose { usize::MAX } else { SHOWN };
    if repair.after.is_some() {
        show_findings(out, repair, step, (verbose, shown))?;
    }
    // A repair that cannot be made gives no data up, and repairs nothing.
    for (loss, title) in [(true, "GIVEN UP"), (false, "MENDED")].into_iter().filter(|_| !hopeless) {
        let all = repair.actions.iter().filter(|action| action.loss == loss);
        let all: Vec<&Action> = all.collect();
        // Losses are always listed in full; losses of the same kind in one file share a row.
        let most = if loss { usize::MAX } else { shown };
        let key = |action: &&'_ Action| {
            let of_file = !verbose && action.ino != 0;
            of_file.then(|| (action.concerned(), action.action.clone()))
        };
        let groups = groups(&all, key);
        if !groups.is_empty() {
            writeln!(out)?;
        }
        let hidden: usize = groups.iter().skip(most).map(Vec::len).sum();
        let mut told = BTreeSet::new();
        let rows = groups.iter().take(most).map(|group| {
            let first = group[0];
            let counted = match told.insert(first.concerned()) {
                true => repair.kept.more(&first.concerned()),
                false => 0,
            };
            let more = match group.len() as u64 - 1 + counted {
                0 => String::new(),
                more => format!("; and {more} more like it"),
            };
            [format!("{}{more}", about(first)), first.problem.clone(), first.action.clone()]
        });
        print_rows(out, [title, "PROBLEM", step], rows)?;
        rest(out, hidden as u64, verbose, "repairs")?;
    }
    Ok(())
}

/// Shows each finding, and what happens to it.
fn show_findings(
    out: &mut dyn Write,
    repair: &Repair,
    step: &str,
    (verbose, shown): (bool, usize),
) -> anyhow::Result<()> {
    let before = &repair.before;
    let key = |finding: &'_ Finding| {
        let block = finding.block_of().filter(|_| !verbose)?;
        Some((block.0, finding.structure, repair.remedy(finding)))
    };
    let groups = groups(&before.findings, key);
    let (mut told, mut hidden) = (BTreeSet::new(), before.findings.len() as u64);
    hidden += before.more_findings;
    let rows = groups.iter().take(shown).map(|group| {
        let first = group[0];
        let counted = match told.insert(first.about()) {
            true => before.kept.more(&first.about()),
            false => 0,
        };
        let more = group.len() as u64 - 1 + counted;
        hidden -= more + 1;
        let more = match (more, first.block_of()) {
            (0, _) => String::new(),
            (_, Some(_)) => format!("; and {} of it", count(more, "more damaged block")),
            (_, None) => format!("; and {} like it", count(more, "more finding")),
        };
        [format!("{first}{more}"), repair.remedy(first)]
    });
    print_rows(out, ["FINDING", step], rows)?;
    rest(out, hidden, verbose, "findings")?;
    Ok(())
}

/// Names the file, or the structure, that an action changes.
fn about(action: &Action) -> String {
    match &action.path {
        Some(path) => format!("{path} ({} {})", action.structure, action.place),
        None => format!("{} {}", action.structure, action.place),
    }
}

fn rest(out: &mut dyn Write, hidden: u64, verbose: bool, what: &str) -> std::io::Result<()> {
    let hint = if verbose { "" } else { " (-v shows more)" };
    if hidden > 0 {
        writeln!(out, "and {hidden} more {what}{hint}")?;
    }
    Ok(())
}

/// Prints a table. A narrow screen gets a paragraph for each row, because each column would have
/// space for only a word or two.
fn print_rows<const N: usize>(
    out: &mut dyn Write,
    head: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> std::io::Result<()> {
    let rows: Vec<[String; N]> = rows.map(|row| row.map(|cell| printable(&cell))).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let width = width();
    let mut shown = Table::of_words(&head);
    for row in &rows {
        shown.add_row(row);
    }
    // Sentences in columns that do not fit cannot be read: each row becomes a paragraph.
    if shown.lines(usize::MAX).iter().any(|line| line.chars().count() > width) {
        writeln!(out, "{}", head[0])?;
        for row in &rows {
            write!(out, "{}", wrap(&row[0], width))?;
            for (head, cell) in head.iter().zip(row).skip(1) {
                let text = wrap(&format!("{head}: {cell}"), width.saturating_sub(2));
                text.lines().try_for_each(|line| writeln!(out, "  {line}"))?;
            }
        }
        return Ok(());
    }
    print_table(out, &shown)
}

/// Prints one line with the result.
fn conclude(
    out: &mut dyn Write,
    name: &str,
    repair: &Repair,
    (commands, written): (usize, u64),
    answer: Answer,
) -> std::io::Result<()> {
    let left = repair.after.as_ref().map_or(0, |r| r.findings.len() as u64 + r.more_findings);
    let left = count(left, "ERROR");
    let size = format!("{}, {}", count(commands as u64, "command"), bytes(written));
    let lost = match repair.losses {
        0 => String::new(),
        losses => format!(", {} as listed", count(losses, "LOSS")),
    };
    match (&repair.verdict, answer) {
        (Verdict::Clean, _) => Ok(()),
        (Verdict::Sound, Answer::Apply) => {
            writeln!(out, "{name}: MENDED: no errors left{lost} ({size} written)")
        }
        (_, Answer::Apply) => {
            writeln!(out, "{name}: MENDED in part: {left} left{lost} ({size} written)")
        }
        (_, Answer::Cancel) => writeln!(out, "{name}: ERRORS left, nothing was changed"),
        (Verdict::Hopeless(why), _) => {
            writeln!(out, "{name}: CANNOT BE MENDED: {why}; nothing was changed")
        }
        (Verdict::Sound, Answer::Keep(why)) => {
            writeln!(out, "{name}: a repair would leave no errors{lost} ({size} to write): {why}")
        }
        (_, Answer::Keep(why)) => {
            writeln!(out, "{name}: {left} would be left{lost} ({size} to write): {why}")
        }
    }
}

/// The repair as JSON: the document of the check, and the actions.
fn described(
    name: &str,
    repair: &Repair,
    (commands, written): (usize, u64),
    answer: Answer,
) -> Value {
    let mut all = document(name, &repair.before);
    let findings = repair.before.findings.iter().map(|found| {
        let mut one = finding(found);
        let fate = if repair.fate(found) == Fate::Mended { "mended" } else { "left" };
        one["fate"] = fate.into();
        one["action"] = repair.remedy(found).into();
        one
    });
    all["findings"] = findings.collect();
    let (verdict, why) = match &repair.verdict {
        Verdict::Clean => ("nothing to do", None),
        Verdict::Sound => ("sound", None),
        Verdict::Better => ("better", None),
        Verdict::Hopeless(why) => ("hopeless", Some(why)),
    };
    let action = |action: &Action| {
        json!({
            "structure": action.structure,
            "place": action.place,
            "path": action.path,
            "inode": action.ino,
            "problem": action.problem,
            "action": action.action,
            "loss": action.loss,
        })
    };
    let left = repair.after.as_ref().map(|after| after.findings.iter().map(finding));
    all["repair"] = json!({
        "version": 2,
        "verdict": verdict,
        "why": why,
        "applied": answer == Answer::Apply,
        "loses": repair.loses(),
        "losses": repair.losses,
        "commands": commands,
        "bytes": written,
        "actions": repair.actions.iter().map(action).collect::<Vec<_>>(),
        "more_actions": repair.more_actions,
        "not_listed": repair.kept.counted().map(|((inode, structure, loss), count)| json!({
            "structure": structure,
            "inode": inode,
            "loss": loss,
            "count": count,
        })).collect::<Vec<_>>(),
        "left": left.map(Iterator::collect::<Vec<_>>),
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Call {
        #[command(flatten)]
        args: Args,
    }

    /// The exit status after the arguments `line`, and whether the repair is applied; `said` is the
    /// user's answer.
    fn end(line: &str, verdict: &Verdict, loses: bool, said: Option<bool>) -> (u8, bool) {
        let words = ["fsck", "d.zns"].into_iter().chain(line.split_whitespace());
        let args = Call::try_parse_from(words).expect("a command line").args;
        let answer = decide(&args, verdict, loses, |_| said);
        (status(verdict, answer), answer == Answer::Apply)
    }

    #[test]
    fn only_what_is_wanted_is_made_and_the_status_says_what() {
        use Verdict::{Better, Clean, Sound};
        let hopeless = Verdict::Hopeless("why".into());
        let (yes, no, nobody) = (Some(true), Some(false), None);
        for (line, verdict, loses, said, expected) in [
            ("--repair", &Clean, false, yes, (0, false)),
            ("-y", &hopeless, false, yes, (4, false)),
            ("-y", &Sound, true, no, (1, true)),
            ("-y", &Better, true, no, (5, true)),
            ("--repair -n", &Sound, false, yes, (4, false)),
            // No question is necessary.
            ("--repair", &Sound, false, no, (1, true)),
            ("--repair", &Sound, true, yes, (1, true)),
            ("--repair", &Sound, true, no, (36, false)),
            ("--repair", &Better, false, no, (36, false)),
            ("--repair", &Better, false, yes, (5, true)),
            ("--repair", &Sound, true, nobody, (4, false)),
            ("--repair --json", &Sound, true, yes, (4, false)),
            ("--repair", &Better, true, nobody, (4, false)),
            ("--repair", &Better, false, nobody, (4, false)),
            ("--repair --json", &Better, false, yes, (4, false)),
            ("-p", &Sound, false, no, (1, true)),
            ("-a", &Sound, true, yes, (4, false)),
            ("-p", &Better, false, yes, (4, false)),
        ] {
            assert_eq!(end(line, verdict, loses, said), expected, "{line} {verdict:?} {loses}");
        }
    }
}
