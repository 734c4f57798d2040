//! Features of the kernel's FUSE: which of them the kernel offers, and which a mount uses.

use crate::dispatch::Shared;
use crate::endpoint::MAX_WRITE;
use crate::operations::Operations;
use crate::ring;
use crate::wire::{self, Accepted, Offer, feature};
use anyhow::{Result, bail};
use std::sync::atomic::Ordering;

/// Maximum number of background requests, such as read-ahead, that the kernel has in flight.
pub(crate) const MAX_BACKGROUND: u16 = 64;
/// Size in bytes of a page of the kernel's page cache.
const PAGE: u32 = 4096;

/// The features on which kernel and server agree at the beginning of a mount.
#[derive(Clone, Copy, Debug)]
pub struct Agreement {
    offered: u64,
    agreed: u64,
    /// Whether requests will come by rings.
    pub(crate) rings: bool,
    /// Maximum number of background requests, such as read-ahead, that the kernel has in flight.
    pub max_background: u16,
}

impl Agreement {
    /// An agreement without features yet. `offered` are the features that the kernel
    /// offers ([`crate::wire::feature`]).
    pub(crate) fn of(offered: u64) -> Agreement {
        Agreement { offered, agreed: 0, rings: false, max_background: 16 }
    }

    /// Whether the kernel offers `feature`.
    pub(crate) fn offers(&self, feature: u64) -> bool {
        self.offered & feature == feature
    }

    /// Adds `feature` to the agreement if the kernel offers it; otherwise returns false.
    pub(crate) fn want(&mut self, feature: u64) -> bool {
        let offered = self.offers(feature);
        if offered {
            self.agreed |= feature;
        }
        offered
    }

    pub(crate) fn agreed(&self) -> u64 {
        self.agreed
    }
}

/// Answers the kernel's offer with the features that `server` chooses from it. With `rings`,
/// requests will come by rings.
///
/// # Errors
/// An error if the kernel lacks a feature that the server needs, or if `rings` is set and the
/// kernel has no rings.
pub(crate) fn agree(offer: &Offer, server: &impl Operations, rings: bool) -> Result<Accepted> {
    let upper = match u64::from(offer.flags) & feature::INIT_EXT {
        0 => 0,
        _ => u64::from(offer.flags2) << 32,
    };
    let mut agreement = Agreement { rings, ..Agreement::of(u64::from(offer.flags) | upper) };
    for wish in [feature::INIT_EXT, feature::MAX_PAGES, feature::ASYNC_READ, feature::BIG_WRITES] {
        agreement.want(wish);
    }
    server.init(&mut agreement)?;
    if rings && !agreement.want(feature::OVER_IO_URING) {
        bail!(ring::help());
    }
    let (flags, background) = (agreement.agreed(), agreement.max_background);
    let most = MAX_WRITE.max(offer.max_readahead);
    Ok(Accepted {
        major: wire::MAJOR,
        minor: wire::MINOR,
        max_readahead: offer.max_readahead,
        flags: flags as u32,
        max_background: background,
        // The kernel chooses the same value if a server sets none.
        congestion_threshold: (u32::from(background) * 3 / 4) as u16,
        max_write: MAX_WRITE,
        granularity: 1,
        max_pages: u16::try_from(most.div_ceil(PAGE)).unwrap_or(u16::MAX),
        map_alignment: 0,
        flags2: (flags >> 32) as u32,
        max_stack_depth: 0,
        unused: [0; 6],
    })
}

/// Chooses the capabilities of a mounted file system from the kernel's offer.
///
/// # Errors
/// An error if the kernel lacks the write-back cache that the user asked for.
pub(crate) fn choose(shared: &Shared, agreement: &mut Agreement) -> Result<()> {
    // Features that this kernel lacks stay off. Only for KILLPRIV_V2 does that matter: without it
    // the kernel clears set-id bits itself.
    for wish in [
        feature::PARALLEL_DIROPS,
        feature::DO_READDIRPLUS,
        feature::READDIRPLUS_AUTO,
        feature::CACHE_SYMLINKS,
        // Saves a getxattr(security.capability) for each write.
        feature::HANDLE_KILLPRIV_V2,
        // With access lists the kernel checks permissions and leaves the umask to the server, which
        // knows whether a directory has a default list.
        feature::POSIX_ACL,
        feature::DONT_MASK,
    ] {
        agreement.want(wish);
    }
    let no_open = agreement.offers(feature::NO_OPEN_SUPPORT);
    shared.no_open.store(no_open, Ordering::Relaxed);
    // With EXPORT_SUPPORT, the kernel can look up a forgotten inode by its number.
    if shared.handles {
        agreement.want(feature::EXPORT_SUPPORT);
    }
    if shared.async_dio {
        agreement.want(feature::ASYNC_DIO);
    }
    if shared.writeback_cache && !agreement.want(feature::WRITEBACK_CACHE) {
        bail!("this kernel has no write-back cache: leave the option out");
    }
    shared.rings.store(agreement.rings, Ordering::Relaxed);
    agreement.max_background = MAX_BACKGROUND;
    Ok(())
}
