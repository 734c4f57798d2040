//! Spares: drives that wait to replace a failed member.
//!
//! A spare holds one record, in its state ring: its array, and the UUID that it will have as a
//! member. The record stays until the drive has its own state record. So at any moment the drive is
//! a member according to the drives that have recorded it as one, and a spare according to the
//! others. After a crash in between, the next assembly completes the change.

use crate::examine::{Examined, Given, check_empty, find};
use crate::format::{MemberEntry, SpareBody};
use crate::level::Level;
use crate::member::MemberState;
use crate::service::Identity;
use crate::state_ring::Found;
use furrow_log::Uuid;
use furrow_zone::{Error, ErrorKind, Result, ZonedDevice};
use zerocopy::{FromBytes, FromZeros};

/// The body of a spare's record; `blocks` is the number of blocks that the array's user serves.
pub fn body(identity: &Identity, incompat: u64, blocks: u64) -> SpareBody {
    let mut body = SpareBody::new_zeroed();
    body.incompat = incompat.into();
    let label = identity.label.as_bytes();
    body.label[..label.len()].copy_from_slice(label);
    body.created = identity.created.into();
    body.blocks = blocks.into();
    body.drives = identity.drives.into();
    body.level = identity.level as u8;
    body
}

/// Reads the body of a spare's record.
///
/// # Errors
/// `Corrupt` if its values are invalid.
pub(crate) fn examined(found: &Found, name: &str) -> Result<Examined> {
    let body = SpareBody::read_from_prefix(&found.body).ok();
    let known = body.and_then(|(body, _)| Some((body, Level::from_byte(body.level)?)));
    let Some((body, level)) = known else {
        return Err(Error::new(ErrorKind::Corrupt, format!("{name}: its record as a spare")));
    };
    let end = body.label.iter().position(|byte| *byte == 0).unwrap_or(body.label.len());
    Ok(Examined {
        array: found.header.object,
        device: found.header.device,
        member: None,
        drives: body.drives.get(),
        level,
        label: String::from_utf8_lossy(&body.label[..end]).into_owned(),
        events: 0,
        blocks: body.blocks.get(),
        created: body.created.get(),
        clean: true,
        members: Vec::new(),
        record: 0,
        known: Vec::new(),
        served: Vec::new(),
        recorded: 0,
        epoch: found.header.epoch.get(),
        checkpoint: 0,
        written_blocks: 0,
        segments: 0,
        damaged: None,
    })
}

/// The number of the member that a drive with a spare's record has become, if a crash prevented its
/// own state record. `None` if the drive is still a spare. `other` is the name of one of the other
/// drives, and `array` the UUID of their array.
///
/// # Errors
/// `WrongFormat` if the drive is a spare of another array, `Invalid` if it is stale.
pub(crate) fn seat_of(
    given: &Given,
    (other, array): (&str, Uuid),
    members: &[MemberEntry],
) -> Result<Option<usize>> {
    let (name, header) = (given.device.name(), &given.found.header);
    if header.object != array {
        let what = format!(
            "{name} is a spare of array {}, {other} is of array {array}: leave it out",
            header.object
        );
        return Err(Error::new(ErrorKind::WrongFormat, what));
    }
    let Some(index) = members.iter().position(|member| member.uuid == header.device) else {
        return Ok(None);
    };
    if MemberState::from_byte(members[index].state) == Some(MemberState::Rebuilding) {
        return Ok(Some(index));
    }
    let what = format!(
        "{name} is stale: it was a spare, became member {index}, and the array continued without \
         it: leave it out, and give it back with `furrow raid replace {array} {index} {name} \
         --force`"
    );
    Err(Error::new(ErrorKind::Invalid, what))
}

/// Fails if a drive holds data; if it is a spare, the error names its array.
pub async fn check_free(device: &dyn ZonedDevice) -> Result<()> {
    if let Ok((found, ..)) = find(device).await
        && found.is_spare()
        && let Ok(spare) = examined(&found, &device.name())
    {
        let what = format!(
            "{}: a spare of the array {} ({}): use --force to take it from there",
            device.name(),
            spare.label,
            spare.array
        );
        return Err(Error::new(ErrorKind::Exists, what));
    }
    check_empty(device).await
}
