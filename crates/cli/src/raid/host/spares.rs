//! Spares of a running array: a spare takes the place of a failed member.

use super::ArrayHost;
use furrow_raid::MemberState;

impl ArrayHost {
    /// Replaces failed members by spares, as long as there are spares.
    pub(super) async fn use_spares(&self) {
        // One call at a time: the others' members are looked for again before it ends.
        if self.taken.borrow().is_some() {
            return;
        }
        while self.volume.failed().is_none() && !self.stopping.get() {
            let members = self.volume.members();
            let failed = members.iter().position(|(_, state, _)| *state == MemberState::Failed);
            let Some(member) = failed else { return };
            let Some(spare) = self.spares.borrow_mut().pop_front() else { return };
            let (member, name) = (member as u32, spare.spec.to_string());
            self.taken.replace(Some((member, name.clone())));
            let done = self.volume.take_spare(member, spare.device.clone()).await;
            let is_failed = self.volume.members()[member as usize].1 == MemberState::Failed;
            match done {
                Ok(()) => self.drives.borrow_mut()[member as usize] = Some(spare),
                // Another drive has taken the place.
                Err(_) if !is_failed => self.spares.borrow_mut().push_front(spare),
                Err(_) => {}
            }
            self.taken.take();
            match done {
                Err(_) if !is_failed => {}
                Ok(()) => {
                    let text = format!("the spare {name} takes the place of member {member}");
                    self.note("spare-taken", Some(member), text);
                }
                Err(error) => {
                    let text = format!("the spare {name} cannot be used: {error}");
                    self.note("spare-refused", Some(member), text);
                }
            }
        }
    }
}
