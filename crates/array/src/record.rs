//! The state record: identity, members, events, and a payload that only the array's
//! user understands.

use crate::format::{ArrayBody, MemberEntry};
use crate::level::Level;
use crate::member::MemberState;
use crate::service::Identity;
use core::mem::offset_of;
use furrow_log::Uuid;
use std::ops::Range;
use std::rc::Rc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Byte ranges of the record that hold the beginning of the payload in format 1, among the array's
/// fields. The rest of the payload follows the members.
const AMONG: [Range<usize>; 2] = [
    offset_of!(ArrayBody, blocks)..offset_of!(ArrayBody, level),
    offset_of!(ArrayBody, zones)..offset_of!(ArrayBody, recorded),
];

/// Maximum number of members of an array.
const MEMBERS: u32 = *crate::level::DRIVES.end();

/// A state record, as it is on one member.
#[derive(Clone, Debug)]
pub struct Record {
    /// Identity of the array, which never changes.
    pub identity: Identity,
    /// Features an older version must refuse.
    pub incompat: u64,
    /// Number of the member that has the record.
    pub member: u32,
    /// The array's count of events.
    pub events: u64,
    /// Whether the array was stopped cleanly, so that nothing came after this record.
    pub clean: bool,
    /// When the record was written, seconds since 1970; 0: not known.
    pub recorded: i64,
    /// The members' entries, in order.
    pub members: Vec<MemberEntry>,
    /// The payload of the array's user.
    pub payload: Rc<[u8]>,
}

impl Record {
    /// The record as bytes.
    ///
    /// # Panics
    /// If the payload is shorter than the part that format 1 has among the array's fields.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = ArrayBody::new_zeroed();
        let label = self.identity.label.as_bytes();
        body.label[..label.len()].copy_from_slice(label);
        body.incompat = self.incompat.into();
        body.created = self.identity.created.into();
        body.events = self.events.into();
        body.level = self.identity.level as u8;
        body.flags = self.clean.into();
        body.drives = self.identity.drives.into();
        body.member = self.member.into();
        body.recorded = self.recorded.into();
        let mut bytes = body.as_bytes().to_vec();
        let mut payload = &self.payload[..];
        for place in AMONG {
            let (part, rest) = payload.split_at(place.len());
            bytes[place].copy_from_slice(part);
            payload = rest;
        }
        self.members.iter().for_each(|member| bytes.extend(member.as_bytes()));
        bytes.extend(payload);
        bytes
    }

    /// Decodes a state record of the array `uuid`.
    ///
    /// # Errors
    /// A description of what is wrong with the record.
    pub fn decode(bytes: &[u8], uuid: Uuid) -> Result<Record, &'static str> {
        let (body, rest) = ArrayBody::read_from_prefix(bytes).map_err(|_| "too short")?;
        let drives = body.drives.get();
        let length = drives as usize * MemberEntry::SIZE;
        if drives > MEMBERS || length > rest.len() {
            return Err("its parts do not fit its length");
        }
        let (members, rest) = rest.split_at(length);
        let member = |bytes| MemberEntry::read_from_bytes(bytes).ok();
        let members: Vec<MemberEntry> =
            members.chunks_exact(MemberEntry::SIZE).filter_map(member).collect();
        let known = members.iter().all(|m| MemberState::from_byte(m.state).is_some());
        let level = Level::from_byte(body.level).filter(|_| known && body.member.get() < drives);
        let Some(level) = level else { return Err("unknown values") };
        let end = body.label.iter().position(|byte| *byte == 0).unwrap_or(body.label.len());
        let mut payload: Vec<u8> =
            AMONG.iter().flat_map(|at| &bytes[at.clone()]).copied().collect();
        payload.extend(rest);
        Ok(Record {
            identity: Identity {
                uuid,
                label: String::from_utf8_lossy(&body.label[..end]).into_owned(),
                created: body.created.get(),
                level,
                drives,
            },
            incompat: body.incompat.get(),
            member: body.member.get(),
            events: body.events.get(),
            clean: body.flags & 1 == 1,
            recorded: body.recorded.get(),
            members,
            payload: payload.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every payload and every field is read back as it was written.
        #[test]
        fn a_record_is_read_as_it_was_written(
            drives in 2..=32u32, pick in any::<u32>(), state in 0..3u8, clean in any::<bool>(),
            numbers in any::<(u64, u64, i64, i64)>(), label in "[a-z]{0,64}",
            payload in proptest::collection::vec(any::<u8>(), 72..400),
        ) {
            let mut entry = MemberEntry::new_zeroed();
            entry.state = state;
            entry.behind = pick.into();
            let identity = Identity {
                uuid: Uuid([7; 16]), label, created: numbers.2, level: Level::Raid5, drives,
            };
            let record = Record {
                identity,
                incompat: numbers.0,
                member: pick % drives,
                events: numbers.1,
                clean,
                recorded: numbers.3,
                members: vec![entry; drives as usize],
                payload: payload.into(),
            };
            let bytes = record.encode();
            let read = Record::decode(&bytes, record.identity.uuid).unwrap();
            prop_assert_eq!(read.encode(), bytes);
            prop_assert_eq!(read.payload, record.payload);
            prop_assert_eq!(&read.identity, &record.identity);
            prop_assert_eq!((read.member, read.clean), (record.member, clean));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Record::decode(&bytes, Uuid([0; 16]));
        }
    }
}
