//! `furrow scrub --all`: every array, mount and store that runs on this machine, in this order.
//!
//! If one of them cannot be scrubbed, the command reports that and scrubs the others.

use super::{Place, scrub_to_the_end};
use crate::kv::running;
use crate::raid::client::{self, Seen};
use crate::raid::manage;
use anyhow::{Result, anyhow};
use furrow_fuse::{endpoint, report};
use std::io::Write;

/// Scrubs everything that runs; with `repair`, rewrites damaged blocks.
///
/// # Errors
/// An error if this user may not see what runs, or the output cannot be written.
pub fn run(repair: bool, out: &mut dyn Write) -> Result<u8> {
    let (mut found, mut bad) = (0, false);
    let mut note = |result: Result<u8>| {
        found += 1;
        bad |= match result {
            Ok(status) => status != 0,
            Err(error) => {
                crate::complain(&format!("{error:#}"));
                true
            }
        };
    };
    let Seen { running: arrays, silent } = client::visible()?;
    // Arrays come first, because a mounted file system may be on one of them.
    for array in &arrays {
        note(manage::scrub_to_the_end(array, repair, out));
        out.flush()?;
    }
    silent.iter().for_each(|silent| note(Err(silent.error())));
    for mount in endpoint::mounted()? {
        let directory = mount.directory;
        if endpoint::is_dead(&directory) {
            note(Err(anyhow!(endpoint::dead_mount(&directory))));
            continue;
        }
        let name = directory.display().to_string();
        let fixed = report::ask_status(&directory).is_ok_and(|status| status.info.read_only);
        // A read-only mount cannot be repaired, but a scrub finds its damage.
        note(scrub_to_the_end(&Place::Mount(directory), &name, repair && !fixed, out));
        out.flush()?;
    }
    for store in running::sockets() {
        note(match store {
            Ok((device, socket)) => scrub_to_the_end(&Place::Store(socket), &device, repair, out),
            Err(error) => Err(anyhow!("a store is not scrubbed: {error}")),
        });
        out.flush()?;
    }
    if found == 0 {
        writeln!(out, "no array, mount or store runs here")?;
    }
    Ok(u8::from(bad))
}
