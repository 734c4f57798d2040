//! `furrow raid examine`: shows the arrays that drives belong to.

use super::client;
use super::devices::{self, Patience, Says};
use super::old::{self, Old};
use super::start::DRIVE_TIMEOUT;
use super::status::Status;
use crate::daemon::{config, utc};
use crate::in_use::PATIENCE;
use crate::show;
use anyhow::Result;
use furrow_console::fit::Column;
use furrow_raid::{Examined, MemberState, split_refusal};
use furrow_rt::{Nanos, Rt};
use furrow_zone::spec::DeviceSpec;
use serde::Serialize;
use std::io::Write;
use std::path::Path;

/// The columns of members.
const MEMBERS: [Column<'_>; 5] = [
    Column::word("member", 0),
    Column::word("state", 0),
    Column::amount("events", 1),
    Column::word("drive's UUID", 2),
    Column::name("device", 0),
];

/// Show the arrays that drives belong to
///
/// Drives are grouped by array. Nothing is written. Exit status 0 if every drive is a member of an
/// array, 1 if a drive is not or cannot be read.
#[derive(clap::Args)]
pub struct Args {
    /// Drives, directories of images, or patterns of them
    #[arg(value_name = "DEVICE", required = true)]
    devices: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    version: u32,
    arrays: Vec<Array>,
    others: Vec<Other>,
}

/// An array, as its newest drive describes it.
#[derive(Serialize)]
struct Array {
    array: String,
    uuid: String,
    level: String,
    drives: u32,
    size_bytes: u64,
    created: i64,
    /// Whether the array was stopped cleanly.
    clean: bool,
    /// Whether a process of this machine runs the array now.
    running: bool,
    events: u64,
    /// The reason why a start from these drives alone could split the array.
    split_brain: Option<String>,
    members: Vec<Member>,
    /// Drives that will replace members that fail.
    spares: Vec<Spare>,
}

#[derive(Serialize)]
struct Spare {
    uuid: String,
    device: String,
}

#[derive(Serialize)]
struct Member {
    member: u32,
    uuid: String,
    device: Option<String>,
    /// State: active, failed, rebuilding or missing; damaged, if its newest state record is
    /// damaged; stale, replaced, old or copy, if the array does not take the drive; split, if the
    /// user has to choose a part of the array.
    state: &'static str,
    events: Option<u64>,
    /// The reason why the array does not take the drive, or the damage.
    why: Option<String>,
}

/// A drive that belongs to no array.
#[derive(Serialize)]
struct Other {
    device: String,
    /// The drive's content in one word, if known: nothing, file-system, foreign, data, unreadable;
    /// damaged: the remains of a member.
    holds: Option<&'static str>,
    why: String,
}

/// Runs the command.
///
/// # Errors
/// An error if the arguments are invalid.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    let rt = Rt::new(config()?);
    let patience = Patience { busy: PATIENCE, silent: DRIVE_TIMEOUT * Nanos::SECOND };
    let (mut found, mut others): (Vec<(String, Examined)>, _) = (Vec::new(), Vec::new());
    let mut damaged = Vec::new();
    for named in devices::named(&args.devices)? {
        let device = named.spec.to_string();
        let user = match &named.spec {
            DeviceSpec::Image(image) => client::user_of(Path::new(&image.path)),
            _ => None,
        };
        let mut holds = None;
        let why = match (user, devices::look(&rt, &named, patience)) {
            (Some(status), Err(_)) => {
                format!("in use by the running array {}: see furrow raid status", status.array)
            }
            (_, Ok(Says::Member(examined))) => {
                found.push((device, *examined));
                continue;
            }
            (_, Ok(Says::Damaged(signs, error))) => {
                damaged.push((device, signs, error));
                continue;
            }
            (_, Ok(Says::Nothing(error, word))) => {
                holds = word;
                error.to_string()
            }
            (_, Err(error)) => error.to_string(),
        };
        others.push(Other { device, holds, why });
    }
    let well = others.is_empty() && damaged.is_empty();
    // The other drives' records describe a member whose own records are damaged.
    for (device, signs, error) in damaged {
        let of_its: Vec<Examined> = found
            .iter()
            .filter(|(_, e)| signs.signs.iter().any(|(array, _)| *array == e.array))
            .map(|(_, examined)| examined.clone())
            .collect();
        match furrow_raid::newest(&of_its).and_then(|newest| signs.stand_in(newest)) {
            Some(examined) => found.push((device, examined)),
            None => {
                others.push(Other { device, holds: Some("damaged"), why: error.to_string() });
            }
        }
    }
    let document = Document { version: super::status::VERSION, arrays: group(found), others };
    if args.json {
        show::json(out, &document)?;
    } else {
        print(&document, out)?;
    }
    Ok(u8::from(!well))
}

/// Groups the drives by array. A running array is described as its daemon reports it, any other as
/// its newest drive records it.
fn group(mut found: Vec<(String, Examined)>) -> Vec<Array> {
    let (mut arrays, running) = (Vec::new(), client::running());
    while let Some((_, first)) = found.first() {
        let array = first.array;
        let (mine, rest): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, e)| e.array == array);
        found = rest;
        let all: Vec<Examined> = mine.iter().map(|(_, examined)| examined.clone()).collect();
        let newest = furrow_raid::newest(&all).or(all.first());
        let Some(newest) = newest else { continue };
        let judged = furrow_raid::judge(&all);
        // If no drive is a member (only spares), there is nothing to judge.
        let mut old = old::of(judged.as_ref());
        old.resize(all.len(), None);
        let names: Vec<String> = mine.iter().map(|(device, _)| device.clone()).collect();
        let split = judged.filter(|judged| !judged.split.is_empty());
        let split = split.map(|judged| split_refusal(&all, &names, &judged.split, utc));
        let uuid = newest.array.to_string();
        let runs = running.iter().map(|one| &one.status).find(|status| status.uuid == uuid);
        if let Some(status) = runs {
            arrays.push(of_running(status, newest, &mine));
            continue;
        }
        let mut members: Vec<Member> = (0..)
            .zip(&newest.members)
            .map(|(member, (uuid, state))| {
                let of_it = mine.iter().zip(&old).filter(|((_, e), _)| e.device == *uuid);
                let here = of_it.max_by_key(|((_, e), old)| (old.is_none(), e.record));
                let why = here.and_then(|(_, old)| *old);
                let here = here.map(|(drive, _)| drive);
                let hurt = here.and_then(|(_, examined)| damage(examined));
                let state = match (state, here) {
                    (_, Some(_)) if why.is_some() => why.map_or("", Old::word),
                    (MemberState::Failed, Some(_)) => "stale",
                    (MemberState::Failed, None) => "failed",
                    (_, None) => "missing",
                    (_, Some((_, e))) if e.damaged.is_some() => "damaged",
                    (MemberState::Active, _) => "active",
                    (MemberState::Rebuilding, _) => "rebuilding",
                };
                Member {
                    member,
                    uuid: uuid.to_string(),
                    device: here.map(|(device, _)| device.clone()),
                    state,
                    events: here.map(|(_, examined)| examined.events),
                    why: why.map(Old::why).or(hurt),
                }
            })
            .collect();
        // Add drives that were replaced, and older images of drives that are listed already.
        let shown: Vec<String> = members.iter().filter_map(|m| m.device.clone()).collect();
        let mut spares = Vec::new();
        let others = mine.iter().zip(&old).filter(|((device, _), _)| !shown.contains(device));
        for ((device, examined), old) in others {
            let (uuid, device) = (examined.device.to_string(), device.clone());
            let Some(member) = examined.member else {
                spares.push(Spare { uuid, device });
                continue;
            };
            members.push(Member {
                member,
                uuid,
                device: Some(device),
                state: old.map_or("copy", Old::word),
                events: Some(examined.events),
                why: old.map(Old::why),
            });
        }
        arrays.push(Array {
            array: newest.label.clone(),
            uuid,
            level: newest.level.name().to_owned(),
            drives: newest.drives,
            size_bytes: newest.blocks * 4096,
            created: newest.created,
            clean: newest.clean,
            running: false,
            events: newest.events,
            split_brain: split.or_else(|| furrow_raid::split_brain(&all)),
            members,
            spares,
        });
    }
    arrays
}

/// A running array, as its daemon describes it: records on drives that the array does not use
/// describe an earlier state.
fn of_running(status: &Status, record: &Examined, mine: &[(String, Examined)]) -> Array {
    let here = |uuid: &str| mine.iter().find(|(_, drive)| drive.device.to_string() == uuid);
    let mut members: Vec<Member> = Vec::new();
    for member in &status.members {
        let state = match member.state.as_str() {
            "online" => "active",
            "rebuilding" => "rebuilding",
            "missing" => "missing",
            _ => "failed",
        };
        let events = here(&member.uuid).map(|(_, drive)| drive.events);
        let (uuid, device) = (member.uuid.clone(), member.device.clone());
        members.push(Member { member: member.member, uuid, device, state, events, why: None });
    }
    let mut spares: Vec<Spare> = Vec::new();
    for (device, drive) in mine {
        let uuid = drive.device.to_string();
        let Some(number) = drive.member else {
            spares.push(Spare { uuid, device: device.clone() });
            continue;
        };
        let seat = status.members.iter().find(|member| member.uuid == uuid);
        let spec = |device: &str| device.parse::<DeviceSpec>().ok();
        let is_it = |member: &super::status::Member| {
            let used = member.device.as_deref().and_then(spec);
            used.zip(spec(device)).is_some_and(|(used, this)| devices::same(&used, &this))
        };
        let old = match seat {
            // A block device, unlike an image, can be read while the array uses it.
            Some(seat) if is_it(seat) && seat.state != "failed" => continue,
            Some(seat) if matches!(&*seat.state, "failed" | "missing") => Old::TakenOut(number),
            Some(_) => Old::Copy(number),
            None => Old::Replaced(number),
        };
        // For a member out of service, the line of this drive replaces the line from the status.
        members
            .retain(|member| member.uuid != uuid || !matches!(member.state, "failed" | "missing"));
        members.push(Member {
            member: number,
            uuid,
            device: Some(device.clone()),
            state: old.word(),
            events: Some(drive.events),
            why: Some(format!("the array runs, and says: {}", old.why())),
        });
    }
    members.sort_by_key(|member| member.member);
    Array {
        array: status.array.clone(),
        uuid: status.uuid.clone(),
        level: status.level.clone(),
        drives: status.members.len() as u32,
        size_bytes: status.size_bytes,
        created: record.created,
        clean: false,
        running: true,
        events: record.events,
        split_brain: None,
        members,
        spares,
    }
}

/// Describes the damaged state records of a drive that the array takes; `None` if all are whole.
fn damage(examined: &Examined) -> Option<String> {
    let of = |what: &str| {
        format!(
            "damaged record of a Furrow array member: {what}: the other members have its content, \
             and an assembly rewrites it"
        )
    };
    let number = examined.damaged?;
    Some(match (examined.record, number) {
        (0, _) => of("none of its state records is whole"),
        (record, 0) => of(&format!("a state record after number {record}")),
        (_, number) => of(&format!("state record {number}")),
    })
}

fn print(document: &Document, out: &mut dyn Write) -> Result<()> {
    for array in &document.arrays {
        writeln!(out, "{}: RAID-{} of {} drives", array.array, array.level, array.drives)?;
        let created = u64::try_from(array.created).map_or("-".to_owned(), utc);
        let (events, stopped) = match array.clean {
            // The records of a spare do not contain the array's state.
            _ if array.members.is_empty() => ("-".to_owned(), "-"),
            // Records on drives that a running array does not use describe an earlier state.
            _ if array.running => ("-".to_owned(), "not now: it runs (furrow raid status)"),
            true => (array.events.to_string(), "cleanly"),
            false => (array.events.to_string(), "not cleanly: it will be recovered"),
        };
        let facts = [
            ("UUID", array.uuid.clone()),
            ("size", show::bytes(array.size_bytes)),
            ("made", created),
            ("events", events),
            ("stopped", stopped.to_owned()),
        ];
        show::facts(out, (2, 8), facts)?;
        if let Some(why) = &array.split_brain {
            writeln!(out, "  split brain: {why}")?;
        }
        writeln!(out)?;
        let mut rows = Vec::new();
        for member in &array.members {
            rows.push([
                member.member.to_string(),
                member.state.to_owned(),
                member.events.map_or("-".to_owned(), |events| events.to_string()),
                member.uuid.clone(),
                member.device.clone().unwrap_or_else(|| "-".to_owned()),
            ]);
        }
        for spare in &array.spares {
            let [member, events] = ["-"; 2].map(str::to_owned);
            let (uuid, device) = (spare.uuid.clone(), spare.device.clone());
            rows.push([member, "spare".to_owned(), events, uuid, device]);
        }
        show::rows(out, &MEMBERS, rows)?;
        for (member, why) in array.members.iter().filter_map(|m| Some((m, m.why.as_ref()?))) {
            let device = member.device.as_deref().unwrap_or("-");
            writeln!(out, "{device} is {}: {why}", member.state)?;
        }
        writeln!(out)?;
    }
    for other in &document.others {
        // Most errors name the device themselves.
        match other.why.starts_with(&other.device) {
            true => writeln!(out, "{}", other.why)?,
            false => writeln!(out, "{}: {}", other.device, other.why)?,
        }
    }
    Ok(())
}
