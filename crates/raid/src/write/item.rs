//! Items of the write pipeline: blocks, the stripes that hold them, and the calls that wait for
//! them.

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

/// The identity of a block (`None`: parity), and its CRC32C.
pub(crate) type Block = (Option<Identity>, u32);

/// The purposes of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Users' requests below a large chunk.
    Small,
    /// Users' larger requests.
    Large,
    /// Blocks that cleaning moves, and mapping blocks.
    Internal,
}

/// One call that waits for its blocks to be durable.
pub(crate) struct Call {
    left: Cell<u32>,
    error: RefCell<Option<Error>>,
    /// The caller's: no other task waits for it.
    waker: Cell<Option<Waker>>,
    /// Address and number of each mapping block, if the caller wants them.
    placed: Option<RefCell<Vec<(u64, u32)>>>,
    /// Pins of the mapping blocks that are changed when the call's stripes are durable.
    _pins: Option<Pins>,
}

impl Call {
    pub(crate) fn new(told: bool) -> Rc<Call> {
        Rc::new(Call::make(told, None))
    }

    /// A call that changes the map.
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

    /// The call has blocks in `stripes` more stripes.
    pub(crate) fn joins(&self, stripes: u32) {
        self.left.set(self.left.get() + stripes);
    }

    pub(crate) fn placed(&self) -> Vec<(u64, u32)> {
        self.placed.as_ref().map(RefCell::take).unwrap_or_default()
    }

    /// A stripe of the call is durable, or failed.
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

/// The place of a block that is to be moved. The block's number alone is not enough: slots are used
/// again, and the same address may get the same number in the slot's next segment.
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
    /// For a moved block: it counts only if its address is still mapped to this place.
    pub(crate) from: Option<Origin>,
    /// For a trim record: the number of blocks, from its address on, that the trim discards.
    pub(crate) trimmed: u64,
}

/// A stripe before it is dispatched.
#[derive(Default)]
pub(crate) struct Stripe {
    pub(crate) items: Vec<Item>,
    pub(crate) calls: SmallVec<[Rc<Call>; 4]>,
    /// Sum of the times at which its blocks came.
    pub(crate) came: u128,
}

impl Stripe {
    /// Whether it has moved blocks or mapping blocks. Records of trims may be among them.
    pub(crate) fn is_internal(&self) -> bool {
        let own = |item: &Item| item.from.is_some() || item.identity.kind == block::MAPPING;
        self.items.iter().any(own)
    }

    pub(crate) fn over(&self, error: Option<&Error>) {
        self.calls.iter().for_each(|call| call.over(error));
    }

    /// Data block `at` of the stripe, in the form that footers record; padding is zeros.
    pub(crate) fn block(&self, at: usize, zero_crc: u32) -> Block {
        let empty = Identity { crc: zero_crc, ..Identity::default() };
        let identity = self.items.get(at).map_or(empty, |item| item.identity);
        (Some(identity), identity.crc)
    }

    /// Tells the calls that want to know where their mapping blocks are. The stripe may hold moved
    /// blocks and records of trims, too, which are not theirs.
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
