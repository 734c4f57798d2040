//! Items of the write pipeline: blocks, the stripes that hold blocks, and the calls that wait
//! for stripes.

use crate::format::block;
use crate::meta::identity::Identity;
use crate::paging::state::Pins;
use furrow_rt::Page;
use furrow_zone::{Error, Result};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A block in the form that footers record: its identity (`None`: parity), and its CRC32C.
pub(crate) type Block = (Option<Identity>, u32);

/// The purpose of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Users' requests that are smaller than a large chunk.
    Small,
    /// Users' requests of a large chunk or more.
    Large,
    /// Blocks that cleaning moves, and mapping blocks.
    Internal,
}

/// A call that waits until its blocks are durable.
pub(crate) struct Call {
    left: Cell<u32>,
    error: RefCell<Option<Error>>,
    /// Wakes the caller, which is the only task that waits for this call.
    waker: Cell<Option<Waker>>,
    /// Address and number of each mapping block written; `None` if the caller does not need them.
    placed: Option<RefCell<Vec<(u64, u32)>>>,
    /// Pins of the mapping blocks whose entries change when the call's stripes are durable.
    _pins: Option<Pins>,
}

impl Call {
    pub(crate) fn new(told: bool) -> Rc<Call> {
        Rc::new(Call::make(told, None))
    }

    /// A call for blocks whose map entries will change; `pins` keeps their mapping blocks
    /// in memory.
    pub(crate) fn pinning(pins: Option<Pins>) -> Rc<Call> {
        Rc::new(Call::make(false, pins))
    }

    fn make(told: bool, pins: Option<Pins>) -> Call {
        Call {
            left: Cell::new(0),
            error: RefCell::default(),
            waker: Cell::new(None),
            placed: told.then(RefCell::default),
            _pins: pins,
        }
    }

    pub(crate) async fn wait(&self) -> Result<()> {
        poll_fn(|context| {
            if self.left.get() == 0 {
                return Poll::Ready(());
            }
            self.waker.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
        self.error.borrow().clone().map_or(Ok(()), Err)
    }

    /// Adds `stripes` to the number of stripes that the call waits for.
    pub(crate) fn joins(&self, stripes: u32) {
        self.left.set(self.left.get() + stripes);
    }

    pub(crate) fn placed(&self) -> Vec<(u64, u32)> {
        self.placed.as_ref().map(RefCell::take).unwrap_or_default()
    }

    /// Notes that a stripe of the call is durable, or has failed.
    fn over(&self, error: Option<&Error>) {
        if let Some(error) = error {
            self.error.borrow_mut().get_or_insert_with(|| error.clone());
        }
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }
}

/// The place from which a block is moved. The block's number alone is not enough: a slot is used
/// again, and in its next segment the same address may get the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) number: u32,
    /// Sequence number of the block's segment.
    pub(crate) segment: u64,
}

/// A block on its way into a stripe.
pub(crate) struct Item {
    pub(crate) identity: Identity,
    pub(crate) page: Page,
    /// For a moved block: the place that the map must still name for the copy to count.
    pub(crate) from: Option<Origin>,
    /// For a trim record: number of blocks that the trim discards, from the record's address on.
    pub(crate) trimmed: u64,
}

/// A stripe before it is dispatched.
#[derive(Default)]
pub(crate) struct Stripe {
    pub(crate) items: Vec<Item>,
    pub(crate) calls: SmallVec<[Rc<Call>; 4]>,
    /// Sum of the times at which its blocks arrived, to compute how long they waited.
    pub(crate) came: u128,
}

impl Stripe {
    /// Whether the stripe has moved blocks or mapping blocks. It may have trim records as well.
    pub(crate) fn is_internal(&self) -> bool {
        let own = |item: &Item| item.from.is_some() || item.identity.kind == block::MAPPING;
        self.items.iter().any(own)
    }

    pub(crate) fn over(&self, error: Option<&Error>) {
        self.calls.iter().for_each(|call| call.over(error));
    }

    /// Data block `at` of the stripe in the form that footers record; blocks after the items
    /// are zeros.
    pub(crate) fn block(&self, at: usize, zero_crc: u32) -> Block {
        let empty = Identity { crc: zero_crc, ..Identity::default() };
        let identity = self.items.get(at).map_or(empty, |item| item.identity);
        (Some(identity), identity.crc)
    }

    /// Gives the numbers of the written mapping blocks to each call that asked for these numbers.
    /// Moved blocks and trim records in the stripe are left out.
    pub(crate) fn tell(&self, number: impl Fn(usize) -> u32) {
        for call in &self.calls {
            let Some(placed) = &call.placed else { continue };
            let of_the_call =
                |item: &Item| item.identity.kind == block::MAPPING && item.from.is_none();
            let told = self.items.iter().enumerate().filter(|(_, item)| of_the_call(item));
            placed.borrow_mut().extend(told.map(|(i, item)| (item.identity.lba, number(i))));
        }
    }
}
