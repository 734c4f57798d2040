//! The drives an array is assembled from: inspected, chosen, and waited for.

use super::devices::{self, Named, Patience, Says};
use super::old;
use super::wait::Wait;
use anyhow::{Result, anyhow, bail};
use furrow_raid::{Examined, MemberState, newest};
use furrow_rt::Rt;
use furrow_zone::ErrorKind;

/// The array that is wanted, and its wait for members.
pub struct Wanted<'a> {
    /// Its UUID, or the beginning of it.
    pub uuid: Option<&'a str>,
    /// Its name.
    pub name: Option<&'a str>,
    /// The wait for members that are missing.
    pub wait: &'a Wait,
    /// Nanoseconds that a drive may take to answer; 0: no limit.
    pub drive_timeout: u64,
}

/// An array and its drives.
pub struct Chosen {
    /// Its name; the UUID if it has none.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Its members and spares.
    pub drives: Vec<(Named, Examined)>,
    /// Drives that were left out, and why.
    pub left_out: Vec<String>,
}

/// Inspects the drives that `arguments` name, and chooses those of one array. With
/// a wait, looks again until no member is missing that the array still counts on, or the time is
/// over; then returns what is there.
///
/// # Errors
/// If an argument is invalid, no array is found or several are, or, without a wait, a drive was
/// named that cannot be used; if the program is to end while it waits.
pub fn gather(rt: &Rt, arguments: &[String], wanted: &Wanted) -> Result<Chosen> {
    loop {
        let found = devices::named(arguments).and_then(|named| choose(rt, named, wanted));
        let what = match &found {
            Ok(chosen) => match missing(chosen) {
                nothing if nothing.is_empty() => return found,
                missing => format!("{}: members {} are missing", chosen.name, missing.join(", ")),
            },
            Err(error) => format!("{error:#}"),
        };
        if !wanted.wait.pause(&what)? {
            return found;
        }
    }
}

/// Members that the newest state counts on, and that are not there.
fn missing(chosen: &Chosen) -> Vec<String> {
    let all: Vec<Examined> = chosen.drives.iter().map(|(_, drive)| drive.clone()).collect();
    let Some(newest) = newest(&all) else { return Vec::new() };
    let is_missing = |(index, (uuid, state)): (usize, &(_, MemberState))| {
        let gone = *state != MemberState::Failed && !all.iter().any(|other| other.device == *uuid);
        gone.then(|| index.to_string())
    };
    newest.members.iter().enumerate().filter_map(is_missing).collect()
}

/// Inspects the drives, and chooses those of one array.
fn choose(rt: &Rt, named: Vec<Named>, wanted: &Wanted) -> Result<Chosen> {
    let patience = Patience { busy: wanted.wait.patience(), silent: wanted.drive_timeout };
    let must = |named: &Named| named.by_name && !wanted.wait.is_wanted();
    let (mut members, mut left_out): (Vec<(Named, Examined)>, _) = (Vec::new(), Vec::new());
    for named in named {
        match devices::look(rt, &named, patience) {
            Ok(Says::Member(examined)) => members.push((named, *examined)),
            Ok(Says::Nothing(error, _)) => match error.kind() {
                ErrorKind::NotFound | ErrorKind::WrongFormat if must(&named) => {
                    return Err(error.into());
                }
                // The drive belongs to no array: reported only if it was named.
                ErrorKind::NotFound if !named.by_name => {}
                _ => left_out.push(error.to_string()),
            },
            Err(error) if must(&named) => {
                return Err(match error.kind() {
                    ErrorKind::NotFound | ErrorKind::Io => anyhow!(
                        "{error}: check the name; if the drive is gone, leave it out; --wait \
                         SECONDS waits for it and then starts without it"
                    ),
                    _ => error.into(),
                });
            }
            // What a directory or pattern found need not be a drive; one that fails is.
            Err(error) if named.by_name || error.kind() == ErrorKind::Io => {
                left_out.push(error.to_string());
            }
            Err(_) => {}
        }
    }
    let fits = |examined: &Examined| {
        let uuid = wanted.uuid.is_none_or(|uuid| examined.array.to_string().starts_with(uuid));
        uuid && wanted.name.is_none_or(|name| name == examined.label)
    };
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
            bail!("only spares are given: an array is put together from its members")
        }
        [] if left_out.is_empty() => bail!("no drive is a member of such an array"),
        [] => bail!("no drive is a member of such an array ({})", left_out.join("; ")),
        [one] => one.clone(),
        several => {
            let list: Vec<String> =
                several.iter().map(|(uuid, name)| format!("{name} ({uuid})")).collect();
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
            left_out.push(format!("{} is a spare of the array {}", named.spec, examined.label));
        }
        !foreign(examined)
    });
    // Old drives of the array are skipped, unless they must be used: assembly refuses those.
    let all: Vec<&Examined> = members.iter().map(|(_, examined)| examined).collect();
    let mut old = old::of(&all).into_iter();
    members.retain(|(named, _)| match old.next().flatten().filter(|_| !must(named)) {
        Some(old) => {
            left_out.push(format!("{} is {}: left out: {}", named.spec, old.word(), old.why()));
            false
        }
        None => true,
    });
    let name = if name.is_empty() { uuid.clone() } else { name };
    Ok(Chosen { name, uuid, drives: members, left_out })
}
