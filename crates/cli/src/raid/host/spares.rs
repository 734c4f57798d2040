//! Spares of a running array: a spare takes the place of a failed member.

use super::ArrayHost;
use furrow_raid::MemberState;

impl ArrayHost {
    /// Replaces failed members by spares, as long as there are spares.
    pub(super) async fn use_spares(&self) {
        let failed = |(index, (_, state, _)): (usize, &(_, MemberState, _))| {
            (*state == MemberState::Failed).then_some(index as u32)
        };
        for member in self.volume.members().iter().enumerate().filter_map(failed) {
            while self.volume.failed().is_none() && !self.stopping.get() {
                let Some(spare) = self.spares.borrow_mut().pop_front() else { return };
                let name = spare.spec.to_string();
                self.taken.replace(Some((member, name.clone())));
                let done = self.volume.take_spare(member, spare.device.clone()).await;
                self.taken.take();
                match done {
                    Ok(()) => {
                        self.drives.borrow_mut()[member as usize] = Some(spare);
                        let text = format!("the spare {name} takes the place of member {member}");
                        self.note("spare-taken", Some(member), text);
                        break;
                    }
                    Err(error) => {
                        let text = format!("the spare {name} cannot be used: {error}");
                        self.note("spare-refused", Some(member), text);
                    }
                }
            }
        }
    }
}
