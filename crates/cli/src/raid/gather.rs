//! The drives an array is assembled from: inspected, chosen, and waited for.

use super::client;
use super::devices::{self, Named, Patience, Says, same};
use super::old::{self, Old};
use super::status::Status;
use super::wait::Wait;
use crate::daemon::utc;
use crate::in_use::{self, User};
use anyhow::{Context as _, Result, anyhow, bail};
use furrow_log::Uuid;
use furrow_raid::{Damaged, Examined, Judgement, MemberState, judge, newest, split_refusal};
use furrow_rt::{Nanos, Rt};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Error, ErrorKind, words};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// The array to assemble, and the time to wait for its members.
pub struct Wanted<'a> {
    /// The array's UUID, or the beginning of it.
    pub uuid: Option<&'a str>,
    /// The array's name.
    pub name: Option<&'a str>,
    /// A drive of the part to assemble, if the array is split.
    pub part: Option<&'a DeviceSpec>,
    /// The wait for members that are missing.
    pub wait: &'a Wait,
    /// Nanoseconds that a drive may take to answer; 0: no limit.
    pub drive_timeout: u64,
}

/// An array and its drives.
pub struct Chosen {
    /// The array's name; the UUID if it has none.
    pub name: String,
    /// The array's UUID.
    pub uuid: String,
    /// The array's members and spares.
    pub drives: Vec<(Named, Examined)>,
    /// Remarks on drives that were left out, or that were found although they were not named.
    pub remarks: Vec<Remark>,
    /// Members that were found although they were not named: UUID and drive.
    pub unnamed: Vec<(Uuid, DeviceSpec)>,
    /// Drives that were left out because the array continued without them: UUID and drive.
    pub stale: Vec<(Uuid, DeviceSpec)>,
}

/// A remark on a drive that was left out, or was found although it was not named. It becomes
/// an event.
#[derive(Clone, Debug)]
pub struct Remark {
    /// The event of the remark: [`LEFT_OUT`], [`UNUSABLE`], [`FOUND`], or an event of the assembly.
    pub event: &'static str,
    /// The number of the member concerned, if it is known.
    pub member: Option<u32>,
    /// The remark in one sentence.
    pub text: String,
}

/// Drives that a pattern or a scan found, that may be members, and that are in use or cannot be
/// read, each with the refusal of the drive.
type Withheld = Vec<(DeviceSpec, Error)>;

/// What to do if drives are copies of each other.
const USE_ONE: &str = "name the drive to use, or move the copies away";
/// Maximum number of remarks that an error or another remark lists.
const LISTED: usize = 4;

/// Nanoseconds that a drive may take to answer if it was not named.
const GLANCE: u64 = 5 * Nanos::SECOND;

/// The event of a drive that is not, or is no longer, a member.
pub const LEFT_OUT: &str = "left-out";
/// The event of a drive that fails or is in use, whether it is a member or not.
pub const UNUSABLE: &str = "unusable";
/// The event of a member that was found although it was not named.
pub const FOUND: &str = "found";

impl Chosen {
    /// The same array and drives, with remarks on the drives that are `withheld`.
    fn with_remarks_on(mut self, withheld: &Withheld) -> Chosen {
        self.remarks.extend(withheld.iter().map(|(_, error)| Remark::unusable(error)));
        self
    }
}

impl Remark {
    /// The remark on a drive that is not, or is no longer, a member.
    fn left_out(text: impl ToString) -> Remark {
        Remark { event: LEFT_OUT, member: None, text: text.to_string() }
    }

    /// The remark on a drive that cannot be used or does not exist.
    pub fn unusable(error: &Error) -> Remark {
        let event = if error.kind() == ErrorKind::NotFound { LEFT_OUT } else { UNUSABLE };
        Remark { event, member: None, text: error.to_string() }
    }
}

/// The sentences of `remarks` in parentheses, to be appended to an error; empty without remarks.
pub fn in_brackets(remarks: &[Remark]) -> String {
    if remarks.is_empty() { String::new() } else { format!(" ({})", listed(remarks)) }
}

/// The sentences of `remarks`, but only of the first if there are many.
fn listed(remarks: &[Remark]) -> String {
    let mut texts: Vec<&str> = remarks.iter().map(|remark| &*remark.text).take(LISTED).collect();
    let more = match remarks.len().saturating_sub(LISTED) {
        0 => String::new(),
        more => format!("and {more} more"),
    };
    texts.extend((!more.is_empty()).then_some(&*more));
    texts.join("; ")
}

/// Inspects the drives that `arguments` name, and chooses those of one array. Without arguments it
/// inspects all block devices of the machine.
///
/// With a wait, the drives are inspected every second until every member that has not failed is
/// there or the waiting time has passed. Then the drives found so far are returned. Missing members
/// are also searched on drives that were not named, because a list of drives may not contain a
/// replacement yet.
///
/// Without a wait, too, a missing member is waited for while a program has a drive that may be it:
/// an array that starts without a healthy member makes it stale.
///
/// # Errors
/// An error if an argument is invalid, no array is found or several are, or, without a wait, a
/// named drive cannot be used, or one that may be a missing member. Also an error if the program is
/// to end while it waits.
pub fn gather(rt: &Rt, arguments: &[String], wanted: &Wanted) -> Result<Chosen> {
    let (begun, mut running) = (Instant::now(), None);
    loop {
        let mut withheld = Vec::new();
        let found = find(rt, arguments, wanted, &mut withheld);
        let lacks = match &found {
            Ok(chosen) => match &missing(chosen)[..] {
                // A busy drive may be a spare.
                [] => {
                    of_others(&mut withheld, &mut running);
                    return found.map(|chosen| chosen.with_remarks_on(&withheld));
                }
                [(index, _)] => format!("{}: member {index} is missing", chosen.name),
                several => {
                    let list: Vec<String> = several.iter().map(|(at, _)| at.to_string()).collect();
                    format!("{}: {} are missing", chosen.name, words::listed("member", &list))
                }
            },
            Err(error) => format!("{error:#}"),
        };
        if wanted.wait.pause(&lacks)? {
            continue;
        }
        let taken = of_others(&mut withheld, &mut running);
        if found.is_err() && !taken.is_empty() {
            bail!("{lacks}{}", users(&taken));
        }
        if wanted.wait.is_wanted() {
            return found.map(|chosen| chosen.with_remarks_on(&withheld));
        }
        let refusal = |which: &str, why: &dyn std::fmt::Display| match &found {
            Ok(_) => anyhow!(
                "{lacks}, and a drive {which} may be it: {why}; to start without it, name the \
                 other drives: it is stale then"
            ),
            Err(_) => anyhow!("{lacks}: {why}"),
        };
        if let Some((_, error)) = withheld.iter().find(|(_, e)| e.kind() != ErrorKind::Busy) {
            return Err(refusal("that cannot be read", error));
        }
        if let Some((spec, error)) = withheld.first() {
            if wanted.wait.pause_until(begun + in_use::PATIENCE, &error.to_string())? {
                continue;
            }
            return Err(refusal("in use", &in_use::explain(spec, error.clone())));
        }
        let mut chosen = found?;
        chosen.unnamed = unnamed(rt, arguments, wanted, &chosen)?;
        return Ok(chosen);
    }
}

/// Removes from `withheld` the drives that a mount or a running array uses, and returns these
/// drives with their users. Asks the arrays at most once, because a daemon that does not answer
/// delays the question.
fn of_others(withheld: &mut Withheld, running: &mut Option<Vec<Status>>) -> Vec<(String, User)> {
    let mut taken = Vec::new();
    if !withheld.is_empty() {
        let running = running.get_or_insert_with(client::statuses);
        withheld.retain(|(spec, _)| {
            let user = spec.path().and_then(|path| in_use::known_user(Path::new(path), running));
            let is_free = user.is_none();
            taken.extend(user.map(|user| (spec.to_string(), user)));
            is_free
        });
    }
    taken
}

/// The users of the drives in `taken`, as the end of an error. The drives of an array are named
/// together: an array that runs already needs no advice to stop it.
fn users(taken: &[(String, User)]) -> String {
    let mut of_arrays: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut texts = Vec::new();
    for (drive, user) in taken {
        match user {
            User::Array(name) => of_arrays.entry(name).or_default().push(drive.clone()),
            User::Mount(refusal) => texts.push(refusal.clone()),
        }
    }
    texts.extend(of_arrays.iter().map(|(array, drives)| {
        let drives = drives.join(", ");
        format!("{drives}: in use by the running array {array}: furrow raid status {array}")
    }));
    format!(" ({})", texts.join("; "))
}

/// Looks for the drives once. Images and devices that a pattern found and that may be members come
/// into `withheld` if another program uses them or they cannot be read.
fn find(rt: &Rt, arguments: &[String], wanted: &Wanted, withheld: &mut Withheld) -> Result<Chosen> {
    if arguments.is_empty() {
        let chosen = choose(rt, devices::of_machine(), wanted, withheld);
        // Most devices of a machine that are in use or fail are not members. A user who may not
        // read them should know that.
        let (denied, others): (Vec<_>, Vec<_>) =
            withheld.drain(..).partition(|(_, error)| error.kind() == ErrorKind::Denied);
        let remarks = |drives: Withheld| -> Vec<Remark> {
            let failed = drives.iter().filter(|(_, error)| error.kind() != ErrorKind::Busy);
            failed.map(|(_, error)| Remark::unusable(error)).collect()
        };
        let denied = remarks(denied);
        let mut chosen = chosen.with_context(|| {
            let denied = in_brackets(&denied);
            format!("among the block devices of this machine, as no drive was named{denied}")
        })?;
        chosen.remarks.extend(remarks(others));
        if !denied.is_empty() && !missing(&chosen).is_empty() {
            chosen.remarks.push(Remark { event: UNUSABLE, member: None, text: listed(&denied) });
        }
        return Ok(chosen);
    }
    let mut named = devices::named(arguments)?;
    let mut chosen = choose(rt, named.clone(), wanted, withheld)?;
    if !wanted.wait.is_wanted() {
        return Ok(chosen);
    }
    let (found, copies) = elsewhere(rt, &named, &missing(&chosen), wanted.drive_timeout);
    if found.is_empty() {
        chosen.remarks.extend(copies);
        return Ok(chosen);
    }
    let told = |(index, found): &(usize, Named)| Remark {
        event: FOUND,
        member: Some(*index as u32),
        text: format!("member {index} is {}, which was not named", found.spec),
    };
    let told: Vec<Remark> = found.iter().map(told).collect();
    named.extend(found.into_iter().map(|(_, found)| found));
    withheld.clear();
    let mut chosen = choose(rt, named, wanted, withheld)?;
    chosen.remarks.extend(told);
    chosen.remarks.extend(copies);
    Ok(chosen)
}

/// The missing members that were found although they were not named. Naming only some members is
/// not an error: the user may intend it. But the unnamed members become stale, so the user is told.
///
/// # Errors
/// An error if several drives claim to be the same member.
fn unnamed(
    rt: &Rt,
    arguments: &[String],
    wanted: &Wanted,
    chosen: &Chosen,
) -> Result<Vec<(Uuid, DeviceSpec)>> {
    if arguments.is_empty() {
        return Ok(Vec::new());
    }
    let missing = missing(chosen);
    let silent = [wanted.drive_timeout, GLANCE];
    let silent = silent.into_iter().filter(|limit| *limit > 0).min().unwrap_or(GLANCE);
    let uuid = |index| missing.iter().find(|(other, _)| *other == index).map(|(_, uuid)| *uuid);
    let (found, copies) = elsewhere(rt, &devices::named(arguments)?, &missing, silent);
    if !copies.is_empty() {
        bail!("{}; {USE_ONE}", listed(&copies));
    }
    Ok(found.into_iter().filter_map(|(at, found)| Some((uuid(at)?, found.spec))).collect())
}

/// Members that the newest state has in service, but whose drives were not found: number and UUID.
fn missing(chosen: &Chosen) -> Vec<(usize, Uuid)> {
    let all: Vec<Examined> = chosen.drives.iter().map(|(_, drive)| drive.clone()).collect();
    let Some(newest) = newest(&all) else { return Vec::new() };
    let is_missing = |(index, (uuid, state)): (usize, &(Uuid, MemberState))| {
        let gone = *state != MemberState::Failed && !all.iter().any(|other| other.device == *uuid);
        gone.then_some((index, *uuid))
    };
    newest.members.iter().enumerate().filter_map(is_missing).collect()
}

/// The drives of `missing` members, searched where no drives were named; and what to say of drives
/// that claim to be the same member: all but one are copies, and none of them is used.
fn elsewhere(
    rt: &Rt,
    named: &[Named],
    missing: &[(usize, Uuid)],
    silent: u64,
) -> (Vec<(usize, Named)>, Vec<Remark>) {
    if missing.is_empty() {
        return Default::default();
    }
    let patience = Patience { busy: Duration::ZERO, silent };
    let mut found: Vec<(usize, Named)> = Vec::new();
    for candidate in devices::not_named(named) {
        let Ok(Says::Member(examined)) = devices::look(rt, &candidate, patience) else { continue };
        let is = |(_, uuid): &&(usize, Uuid)| *uuid == examined.device;
        found.extend(missing.iter().find(is).map(|(index, _)| (*index, candidate)));
    }
    let mut copies = Vec::new();
    for (index, _) in missing {
        let of_member = found.iter().filter(|(of, _)| of == index);
        let drives: Vec<&Named> = of_member.map(|(_, named)| named).collect();
        if drives.len() > 1 {
            copies.push(copies_of(*index as u32, &drives));
            found.retain(|(of, _)| of != index);
        }
    }
    (found, copies)
}

/// Inspects the drives, and chooses those of one array.
fn choose(rt: &Rt, named: Vec<Named>, wanted: &Wanted, withheld: &mut Withheld) -> Result<Chosen> {
    let patience = Patience { busy: wanted.wait.patience(), silent: wanted.drive_timeout };
    let must = |named: &Named| named.by_name && !wanted.wait.is_wanted();
    let (mut members, mut left_out): (Vec<(Named, Examined)>, Vec<Remark>) = Default::default();
    let mut damaged: Vec<(Named, Damaged, Error)> = Vec::new();
    let mut no_drives: Vec<Remark> = Vec::new();
    for named in named {
        match devices::look(rt, &named, patience) {
            Ok(Says::Member(examined)) => members.push((named, *examined)),
            Ok(Says::Damaged(signs, error)) => damaged.push((named, signs, error)),
            Ok(Says::Nothing(error, _)) => match error.kind() {
                ErrorKind::NotFound | ErrorKind::WrongFormat if must(&named) => {
                    return Err(error.into());
                }
                // The drive belongs to no array; that is reported only if the drive was named.
                ErrorKind::NotFound if !named.by_name => {}
                _ => left_out.push(Remark::unusable(&error)),
            },
            Err(error) if must(&named) => {
                return Err(match error.kind() {
                    ErrorKind::NotFound | ErrorKind::Io => anyhow!(
                        "{error}: check the name; if the drive is gone, leave it out; --wait \
                         SECONDS waits for it and then starts without it; an array's name \
                         follows --name"
                    ),
                    _ => error.into(),
                });
            }
            Err(error) if named.by_name => left_out.push(Remark::unusable(&error)),
            Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::Denied) => {
                if devices::is_possible_member(&named.spec) {
                    withheld.push((named.spec, error));
                }
            }
            Err(error) if error.kind() == ErrorKind::Io || devices::is_image(&named.spec) => {
                withheld.push((named.spec, error));
            }
            // Files that a directory or pattern matches need not be drives.
            Err(_) if matches!(named.spec, DeviceSpec::Node(_)) => {}
            Err(error) => no_drives.push(Remark::unusable(&error)),
        }
    }
    let fits = |examined: &Examined| {
        let uuid = wanted.uuid.is_none_or(|uuid| examined.array.to_string().starts_with(uuid));
        uuid && wanted.name.is_none_or(|name| name == examined.label)
    };
    let mut others: Vec<String> = members.iter().map(|(_, drive)| described(drive)).collect();
    members.retain(|(_, examined)| fits(examined));
    let mut arrays: Vec<(String, String)> = members
        .iter()
        .filter(|(_, examined)| examined.member.is_some())
        .map(|(_, examined)| (examined.array.to_string(), examined.label.clone()))
        .collect();
    arrays.sort();
    arrays.dedup();
    let (uuid, name) = match &arrays[..] {
        [] if !members.is_empty() => {
            bail!("only spares are given: an array is assembled from its members")
        }
        [] if !damaged.is_empty() => {
            let errors: Vec<String> = damaged.iter().map(|(.., e)| e.to_string()).collect();
            bail!("no drive has a whole state record: {}", errors.join("; "))
        }
        [] => {
            let which = if withheld.is_empty() { "drive" } else { "free drive" };
            let array = match (wanted.name, wanted.uuid) {
                (Some(name), _) => format!("an array {}", crate::show::printable(name)),
                (None, Some(uuid)) => format!("an array of UUID {uuid}"),
                (None, None) => "an array".to_owned(),
            };
            others.sort();
            others.dedup();
            if !others.is_empty() {
                let others = others.join(", ");
                let of = Remark::left_out(format!("the drives are of other arrays: {others}"));
                left_out.insert(0, of);
            }
            bail!("no {which} is a member of {array}{}", in_brackets(&left_out))
        }
        [one] => one.clone(),
        several => {
            let list: Vec<String> = several
                .iter()
                .map(|(uuid, name)| format!("{} ({uuid})", crate::show::printable(name)))
                .collect();
            bail!("the drives are of several arrays: {}: choose by --uuid", list.join(", "));
        }
    };
    let foreign = |examined: &Examined| examined.array.to_string() != uuid;
    if let Some((named, spare)) = members.iter().find(|(n, e)| must(n) && foreign(e)) {
        let (spec, label, array) = (&named.spec, &spare.label, spare.array);
        bail!(
            "{spec}: a spare of the array {label} ({array}), not of {name} ({uuid}): leave it out"
        );
    }
    members.retain(|(named, examined)| {
        if foreign(examined) {
            let text = format!("{} is a spare of the array {}", named.spec, examined.label);
            left_out.push(Remark::left_out(text));
        }
        !foreign(examined)
    });
    let says = |members: &[(Named, Examined)]| -> Vec<Examined> {
        members.iter().map(|(_, examined)| examined.clone()).collect()
    };
    // The other drives' records describe a member whose own records are damaged.
    let all = says(&members);
    let newest = newest(&all);
    for (named, signs, error) in damaged {
        match newest.and_then(|newest| signs.stand_in(newest)) {
            Some(examined) => members.push((named, examined)),
            None if must(&named) => return Err(error.into()),
            None => left_out.push(Remark::unusable(&error)),
        }
    }
    choose_part(&mut members, wanted.part, &mut left_out)?;
    // Old drives of the array are skipped. But if they were named and there is no wait, they are
    // kept, and assembly refuses them.
    let judged = judge(&says(&members));
    let old = old::of(judged.as_ref());
    refuse_copies(&members, &old)?;
    let mut old = old.into_iter();
    let mut stale = Vec::new();
    members.retain(|(named, examined)| match old.next().flatten().filter(|_| !must(named)) {
        Some(old) => {
            let article = if matches!(old, Old::Copy(_)) { "a " } else { "" };
            let (spec, word) = (&named.spec, old.word());
            let text = format!("{spec} is {article}{word}: left out: {}", old.why());
            left_out.push(Remark::left_out(text));
            if matches!(old, Old::TakenOut(_)) {
                stale.push((examined.device, spec.clone()));
            }
            false
        }
        None => true,
    });
    let name = if name.is_empty() { uuid.clone() } else { name };
    let (remarks, unnamed) = (left_out, Vec::new());
    let mut chosen = Chosen { name, uuid, drives: members, remarks, unnamed, stale };
    // One of `no_drives` may be what is left of the missing member.
    if !missing(&chosen).is_empty() {
        let text = listed(&no_drives);
        let one = Remark { event: UNUSABLE, member: None, text };
        chosen.remarks.extend((!no_drives.is_empty()).then_some(one));
    }
    Ok(chosen)
}

/// The array of a drive: its name and UUID.
fn described(drive: &Examined) -> String {
    format!("{} ({})", crate::show::printable(&drive.label), drive.array)
}

/// Refuses two images of the same member with the same state. A copy of an image cannot be told
/// from the image, and once the array has run, the other one is old. Two devices may be two paths
/// to one drive.
fn refuse_copies(members: &[(Named, Examined)], old: &[Option<Old>]) -> Result<()> {
    let drives = || members.iter().zip(old);
    for ((copy, is), kind) in drives() {
        let Some(Old::Copy(member)) = kind else { continue };
        let is_member = |(_, examined): &(Named, Examined), old: &Option<Old>| {
            old.is_none() && examined.device == is.device
        };
        let Some(((found, _), _)) = drives().find(|(one, old)| is_member(one, old)) else {
            continue;
        };
        if matches!((&found.spec, &copy.spec), (DeviceSpec::Image(_), DeviceSpec::Image(_))) {
            bail!("{}; {USE_ONE}", copies_of(*member, &[found, copy]).text);
        }
    }
    Ok(())
}

/// The remark on drives that all claim to be `member`.
fn copies_of(member: u32, drives: &[&Named]) -> Remark {
    let drives: Vec<String> = drives.iter().map(|named| named.spec.to_string()).collect();
    let text = format!("{}: each of them says that it is member {member}", drives.join(", "));
    Remark { event: UNUSABLE, member: Some(member), text }
}

/// If the array is split, keeps the drives of the part that `part` belongs to.
///
/// # Errors
/// An error if it is split and no part is chosen, or the chosen drive is not among the drives.
fn choose_part(
    members: &mut Vec<(Named, Examined)>,
    part: Option<&DeviceSpec>,
    left_out: &mut Vec<Remark>,
) -> Result<()> {
    let is_chosen = |named: &Named| part.is_some_and(|part| same(part, &named.spec));
    if let Some(part) = part.filter(|_| !members.iter().any(|(named, _)| is_chosen(named))) {
        bail!("{part} (--choose) is not among the drives of the array");
    }
    let all: Vec<Examined> = members.iter().map(|(_, examined)| examined.clone()).collect();
    let Some(Judgement { split, .. }) = judge(&all).filter(|judged| !judged.split.is_empty())
    else {
        return Ok(());
    };
    let has_chosen = |part: &&Vec<usize>| part.iter().any(|index| is_chosen(&members[*index].0));
    let Some(mine) = split.iter().find(has_chosen) else {
        let names: Vec<String> = members.iter().map(|(named, _)| named.spec.to_string()).collect();
        bail!("{}", split_refusal(&all, &names, &split, utc));
    };
    let others = split.iter().flatten().filter(|index| !mine.contains(index));
    let mut others: Vec<usize> = others.copied().collect();
    others.sort_unstable();
    for index in others.into_iter().rev() {
        let (named, _) = members.remove(index);
        left_out.push(Remark::left_out(format!(
            "{} has continued without these drives: left out, with what was written to it alone",
            named.spec
        )));
    }
    Ok(())
}
