//! Refusing to overwrite a drive that holds something.

use crate::holds::Holds;
use furrow_zone::{Error, ErrorKind};

impl Holds {
    /// Refuses to make something on a drive with this content, and names the option `force` that
    /// overrides the refusal; `Ok` if the drive is empty.
    ///
    /// # Errors
    /// `Exists` if the drive holds something.
    pub fn refuse_used(&self, name: &str, force: &str) -> Result<(), Error> {
        if matches!(self, Holds::Nothing) {
            return Ok(());
        }
        let what = format!(
            "{name}: not empty, it holds {}: {}, or choose another drive; {force} destroys what it \
             holds",
            self.describe(),
            self.advice(name),
        );
        Err(Error::new(ErrorKind::Exists, what))
    }
}
