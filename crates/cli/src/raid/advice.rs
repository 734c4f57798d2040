//! Finds the problem of an array, and advice on it: the lines `status` and `action` of `furrow
//! raid status`.

use super::status::{Member, Status};

/// A member with at least this number of errors is reported as the array's problem.
const MANY: u64 = 1000;

/// Sets `problem` and `action` of `status`; also `state` if the array has failed, is full, or has
/// lost or damaged data.
pub fn advise(status: &mut Status) {
    let name = status.array.clone();
    // In the order in which spares take their places.
    let is_gone = |member: &&Member| matches!(&*member.state, "failed" | "missing");
    let gone: Vec<String> =
        status.members.iter().filter(is_gone).map(|member| member.member.to_string()).collect();
    let redundancy = match status.may_fail {
        0 => "no other drive may fail",
        1 => "one more may fail",
        _ => "more may fail",
    };
    if let Some(error) = &status.error {
        status.state = "failed".to_owned();
        status.problem = Some(format!("nothing can be written any more: {error}"));
        status.action = Some(format!(
            "stop it (furrow raid stop {name}), then assemble it again from the drives that still \
             work"
        ));
    } else if let Some(why) = &status.out_of_space {
        status.state = "full".to_owned();
        status.problem = Some(format!("{why}; {redundancy}"));
        status.action = Some(match gone.first() {
            Some(first) => {
                format!("trim blocks, or replace it: furrow raid replace {name} {first} DEV")
            }
            None => {
                "trim blocks (fstrim of the file system on the volume; blkdiscard erases what it \
                     trims), or replace the drives that are named"
                    .to_owned()
            }
        });
    } else if let Some(first) = gone.first() {
        let who = if gone.len() == 1 { "member" } else { "members" };
        status.problem = Some(format!("{who} {} out of service; {redundancy}", gone.join(", ")));
        let each = if gone.len() == 1 { "it" } else { "each" };
        let is_first = |member: &&Member| member.member.to_string() == *first;
        let member = status.members.iter().find(is_first);
        let unnamed = member.and_then(|one| one.unnamed.as_deref());
        let back = match member.and_then(|one| one.stale.as_deref()) {
            Some(stale) => format!("; to take its old drive back, erased: {stale} --force as DEV"),
            None => String::new(),
        };
        let drive = unnamed.map_or("DEV".to_owned(), |drive| format!("{drive} --force"));
        status.action = Some(match (status.spares.first(), gone.get(status.spares.len())) {
            (Some(spare), None) => {
                format!("wait: the spare {spare} takes the place of member {first}")
            }
            (Some(spare), Some(other)) => format!(
                "wait: the spare {spare} takes the place of member {first}; there are too few \
                 spares: furrow raid replace {name} {other} DEV"
            ),
            (None, _) => {
                format!("replace {each}: furrow raid replace {name} {first} {drive}{back}")
            }
        });
    } else if status.rebuild.as_ref().is_some_and(|rebuild| !rebuild.running) {
        status.problem = Some(format!("a rebuild is not finished; {redundancy}"));
        status.action = Some(format!("continue it: furrow raid rebuild {name}"));
    } else if status.rebuild.is_some() {
        status.problem = Some(format!("a drive is being rebuilt; {redundancy}"));
        status.action = Some(format!("wait: furrow raid rebuild {name} --wait"));
    } else if let Some((problem, action)) = damage(status) {
        status.state = "damaged".to_owned();
        status.problem = Some(problem);
        status.action = Some(action);
        return;
    } else if let Some(member) = status.members.iter().find(|member| errors(member) >= MANY) {
        let (number, many) = (member.member, errors(member));
        status.problem = Some(format!(
            "member {number} has had {many} errors; the other drives supplied the data"
        ));
        let out = match status.may_fail {
            0 => "copy the data elsewhere, the array cannot do without this member".to_owned(),
            _ => format!("take it out and replace it: furrow raid fail {name} {number}"),
        };
        status.action =
            Some(format!("{out}; if it is mended, count from 0: furrow raid clear {name}"));
    } else if status.members.iter().any(|member| errors(member) > 0) {
        status.problem = Some("a drive has errors; no data is known to be lost".to_owned());
        status.action = Some(format!(
            "look for more: furrow raid scrub {name}; then count from 0: furrow raid clear {name}"
        ));
    }
    let more = damage(status).map(|(problem, _)| problem);
    if let (Some(problem), Some(more)) = (&mut status.problem, more) {
        *problem = format!("{problem}; {more}");
    }
}

fn errors(member: &Member) -> u64 {
    member.read_errors + member.write_errors + member.checksum_errors
}

/// Describes lost or damaged blocks, and gives advice on them.
fn damage(status: &Status) -> Option<(String, String)> {
    let name = &status.array;
    if status.lost_blocks > 0 {
        let lost = crate::show::count(status.lost_blocks, "block");
        let (also, mend) = match status.damaged_blocks {
            0 => (String::new(), String::new()),
            some => {
                let some = crate::show::count(some, "damaged block");
                let mend = format!("; mend the others: furrow raid scrub {name} --repair");
                (format!("; the last scrub also found {some}"), mend)
            }
        };
        let problem = format!("{lost} of the volume LOST{also}");
        let action = format!(
            "write them again from a copy, or trim them, and look for more: furrow raid scrub \
             {name}; or forget them: furrow raid clear {name}{mend}"
        );
        return Some((problem, action));
    }
    if status.damaged_blocks > 0 {
        let problem = format!(
            "the last scrub found {}",
            crate::show::count(status.damaged_blocks, "damaged block")
        );
        let mends = status.scrub.as_ref().is_some_and(|scrub| scrub.running && scrub.repair);
        let action = match mends {
            true => format!("wait for the scrub that mends them: furrow raid scrub {name} --wait"),
            false => format!("mend them: furrow raid scrub {name} --repair"),
        };
        return Some((problem, action));
    }
    None
}
