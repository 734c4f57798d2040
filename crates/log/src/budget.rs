//! The active-zone budget: one permit for every zone that is open, or closed but active.
//!
//! Invariants
//! - Permits held never exceed the total.
//! - Each class can always reach its reserved minimum, regardless of what the others hold. Permits
//!   beyond the minimum come from the *shared rest*, and classes compete for the shared rest only.
//! - Requests of a class are served in the order of arrival. Requests of different classes that
//!   need the shared rest are served in the order of arrival too: while the oldest request does not
//!   fit, no younger request may take from the rest. So small requests do not starve a large one.
//!
//! The budget does not know zones: the writer ties permits to zones.

use crate::audit::{equal, holds};
use furrow_zone::Result;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

/// The kind of work that needs a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Work that a user waits for.
    User,
    /// Cleaning, which frees the space that user work needs.
    Cleaning,
    /// Checkpoints and tables, which user work and cleaning both need.
    Metadata,
}

const CLASSES: usize = 3;

/// Permits that are held, and given back, together.
struct Share {
    class: Class,
    count: Cell<u32>,
}

struct Waiter {
    class: Class,
    count: u32,
    arrival: u64,
    /// Permits that were granted to this request and not taken yet.
    granted: RefCell<Option<Rc<Share>>>,
    waker: RefCell<Option<Waker>>,
}

/// Invariants
/// - `held[class]` is the sum of the class's `shares`, and the sum of all is at most `total`.
/// - Permits that classes hold beyond their reserves are at most the shared rest.
/// - No request that could be granted waits.
struct Books {
    total: u32,
    reserved: [u32; CLASSES],
    held: [u32; CLASSES],
    /// All held permits, in the order in which they were taken.
    shares: Vec<Weak<Share>>,
    waiting: [VecDeque<Rc<Waiter>>; CLASSES],
    arrivals: u64,
}

impl Books {
    fn shared_total(&self) -> u32 {
        self.total - self.reserved.iter().sum::<u32>()
    }

    fn shared_free(&self) -> u32 {
        let used: u32 = (0..CLASSES).map(|class| self.beyond_reserve(class, 0)).sum();
        let free = self.shared_total().checked_sub(used);
        free.expect("invariant: no more than the shared rest is held beyond reserves")
    }

    /// Number of permits beyond its reserve that `class` would hold if it took `more` permits.
    fn beyond_reserve(&self, class: usize, more: u32) -> u32 {
        let reserved = self.reserved[class];
        (self.held[class] + more).max(reserved) - reserved
    }

    /// Number of permits that granting `count` to `class` would take from the shared rest.
    fn shared_needed(&self, class: usize, count: u32) -> u32 {
        self.beyond_reserve(class, count) - self.beyond_reserve(class, 0)
    }

    /// Returns the class whose oldest request may be granted next: a class that stays within its
    /// reserve. If there is none, the class with the oldest request of all, if the shared rest
    /// covers that request.
    fn next_grantable(&self) -> Option<usize> {
        let mut oldest: Option<(u64, usize)> = None;
        for class in 0..CLASSES {
            let Some(head) = self.waiting[class].front() else { continue };
            if self.shared_needed(class, head.count) == 0 {
                return Some(class);
            }
            if oldest.is_none_or(|(arrival, _)| head.arrival < arrival) {
                oldest = Some((head.arrival, class));
            }
        }
        let (_, class) = oldest?;
        let head = self.waiting[class].front()?;
        (self.shared_needed(class, head.count) <= self.shared_free()).then_some(class)
    }

    fn someone_waits_for_shared(&self) -> bool {
        (0..CLASSES).any(|class| {
            let head = self.waiting[class].front();
            head.is_some_and(|head| self.shared_needed(class, head.count) > 0)
        })
    }

    /// Counts `count` permits as held by `class`, and enters them in `shares`.
    fn take(&mut self, class: Class, count: u32) -> Rc<Share> {
        self.held[class as usize] += count;
        self.enter(class, count)
    }

    fn enter(&mut self, class: Class, count: u32) -> Rc<Share> {
        let share = Rc::new(Share { class, count: Cell::new(count) });
        self.shares.push(Rc::downgrade(&share));
        share
    }

    /// Removes returned permits from the accounts, and grants waiting requests.
    fn give_back(&mut self, share: &Rc<Share>) {
        self.shares.retain(|other| !std::ptr::eq(other.as_ptr(), Rc::as_ptr(share)));
        let held = &mut self.held[share.class as usize];
        let left = held.checked_sub(share.count.get());
        *held = left.expect("invariant: permits are given back once");
        self.grant();
    }

    fn grant(&mut self) {
        while let Some(class) = self.next_grantable() {
            let Some(waiter) = self.waiting[class].pop_front() else { return };
            let share = self.take(waiter.class, waiter.count);
            *waiter.granted.borrow_mut() = Some(share);
            if let Some(waker) = waiter.waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }
}

/// The permits of one drive. Cloning shares them.
#[derive(Clone)]
pub struct Budget(Rc<RefCell<Books>>);

impl Budget {
    /// Creates `total` permits, some of them reserved for the classes in `reserved`.
    ///
    /// # Panics
    /// If the reserves exceed `total`: the caller checks the sum first.
    pub fn new(total: u32, reserved: &[(Class, u32)]) -> Budget {
        let mut by_class = [0; CLASSES];
        for (class, count) in reserved {
            by_class[*class as usize] += count;
        }
        let sum: u32 = by_class.iter().sum();
        assert!(sum <= total, "{sum} permits reserved of {total}");
        Budget(Rc::new(RefCell::new(Books {
            total,
            reserved: by_class,
            held: [0; CLASSES],
            shares: Vec::new(),
            waiting: Default::default(),
            arrivals: 0,
        })))
    }

    /// Number of all permits, held or not.
    pub fn total(&self) -> u32 {
        self.0.borrow().total
    }

    /// Number of permits that no class holds, including reserved ones.
    pub fn available(&self) -> u32 {
        let books = self.0.borrow();
        books.total - books.held.iter().sum::<u32>()
    }

    /// Maximum number of permits that `class` could hold if no other class went beyond its reserve.
    pub fn limit(&self, class: Class) -> u32 {
        let books = self.0.borrow();
        books.reserved[class as usize] + books.shared_total()
    }

    /// Number of permits that `class` could take now without waiting.
    fn available_to(&self, class: Class) -> u32 {
        let books = self.0.borrow();
        let class = class as usize;
        if !books.waiting[class].is_empty() {
            return 0;
        }
        let own = books.reserved[class] - books.held[class].min(books.reserved[class]);
        let shared = if books.someone_waits_for_shared() { 0 } else { books.shared_free() };
        own + shared
    }

    /// Takes `count` permits if they are available now and no older request is overtaken.
    pub fn try_acquire(&self, class: Class, count: u32) -> Option<Permit> {
        (count <= self.available_to(class)).then(|| {
            let share = self.0.borrow_mut().take(class, count);
            Permit { budget: self.clone(), share }
        })
    }

    /// Waits for `count` permits, all at once. Dropping the future gives up the place in the queue.
    ///
    /// # Panics
    /// If `count` exceeds [`Budget::limit`] of the class: it could never be granted.
    pub fn acquire(&self, class: Class, count: u32) -> Acquire {
        let limit = self.limit(class);
        assert!(count <= limit, "{count} permits for {class:?}, which can have {limit}");
        Acquire { budget: self.clone(), class, count, waiter: None }
    }

    /// Number of permits that `class` holds.
    pub fn held(&self, class: Class) -> u32 {
        self.0.borrow().held[class as usize]
    }

    /// Compares what each class holds with the permits that exist, and with the limits.
    ///
    /// # Errors
    /// `Internal`: names the account, the expected value and the value found.
    pub fn audit(&self) -> Result<()> {
        let books = self.0.borrow();
        let mut sums = [0; CLASSES];
        for share in books.shares.iter().filter_map(Weak::upgrade) {
            sums[share.class as usize] += share.count.get();
        }
        equal("permits held by user, cleaning and metadata", sums, books.held)?;
        let beyond: u32 = (0..CLASSES).map(|class| books.beyond_reserve(class, 0)).sum();
        holds("permits beyond reserves", beyond <= books.shared_total(), || {
            format!("expected at most {}, found {beyond}", books.shared_total())
        })?;
        equal("class with a request that could be granted", None, books.next_grantable())
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let books = self.0.borrow();
        write!(f, "Budget({} permits, held {:?})", books.total, books.held)
    }
}

/// Permits that are held. Dropping the value gives them back.
pub struct Permit {
    budget: Budget,
    share: Rc<Share>,
}

impl Permit {
    /// Number of permits that this value holds.
    pub fn count(&self) -> u32 {
        self.share.count.get()
    }

    /// The class that took the permits.
    pub fn class(&self) -> Class {
        self.share.class
    }

    /// Splits `count` permits off, to be held and given back separately.
    ///
    /// # Panics
    /// If `self` holds fewer than `count` permits.
    #[must_use]
    pub fn split(&mut self, count: u32) -> Permit {
        let left = self.count().checked_sub(count);
        let left = left.unwrap_or_else(|| panic!("{count} permits split off {}", self.count()));
        self.share.count.set(left);
        let share = self.budget.0.borrow_mut().enter(self.class(), count);
        Permit { budget: self.budget.clone(), share }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.0.borrow_mut().give_back(&self.share);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({} {:?})", self.count(), self.class())
    }
}

/// The future that [`Budget::acquire`] returns. It resolves to the permits.
#[must_use = "futures do nothing unless awaited"]
pub struct Acquire {
    budget: Budget,
    class: Class,
    count: u32,
    waiter: Option<Rc<Waiter>>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        if let Some(waiter) = &this.waiter {
            let Some(share) = waiter.granted.borrow_mut().take() else {
                *waiter.waker.borrow_mut() = Some(cx.waker().clone());
                return Poll::Pending;
            };
            this.waiter = None;
            return Poll::Ready(Permit { budget: this.budget.clone(), share });
        }
        if let Some(permit) = this.budget.try_acquire(this.class, this.count) {
            return Poll::Ready(permit);
        }
        let mut books = this.budget.0.borrow_mut();
        let waiter = Rc::new(Waiter {
            class: this.class,
            count: this.count,
            arrival: books.arrivals,
            granted: RefCell::default(),
            waker: RefCell::new(Some(cx.waker().clone())),
        });
        books.arrivals += 1;
        books.waiting[this.class as usize].push_back(waiter.clone());
        this.waiter = Some(waiter);
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        let mut books = self.budget.0.borrow_mut();
        match waiter.granted.borrow_mut().take() {
            Some(share) => books.give_back(&share),
            None => {
                books.waiting[self.class as usize].retain(|other| !Rc::ptr_eq(other, &waiter));
                // The request after the dropped one may be granted now.
                books.grant();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::{Config, Rt};
    use proptest::prelude::*;

    const ALL: [Class; CLASSES] = [Class::User, Class::Cleaning, Class::Metadata];

    #[test]
    fn a_reserve_is_there_whatever_others_hold() {
        let budget = Budget::new(8, &[(Class::Cleaning, 1), (Class::Metadata, 2)]);
        assert_eq!(budget.limit(Class::User), 5);
        let held = budget.try_acquire(Class::User, 5).unwrap();
        assert!(budget.try_acquire(Class::User, 1).is_none());
        let reserve = budget.try_acquire(Class::Metadata, 2).unwrap();
        assert!(budget.try_acquire(Class::Metadata, 1).is_none());
        assert_eq!(budget.available(), 1);
        drop((held, reserve));
        assert_eq!(budget.available(), 8);
    }

    #[test]
    fn split_permits_come_back_one_by_one() {
        let budget = Budget::new(4, &[]);
        let mut permit = budget.try_acquire(Class::User, 3).unwrap();
        let one = permit.split(1);
        assert_eq!((permit.count(), one.count(), budget.available()), (2, 1, 1));
        drop(one);
        assert_eq!(budget.available(), 2);
    }

    /// A large request at the head holds back younger small requests of other classes. Dropping its
    /// future removes the request completely.
    #[test]
    fn a_large_request_is_not_overtaken() {
        let rt = Rt::new(Config::simulated(1));
        let budget = Budget::new(4, &[]);
        let mut held = budget.try_acquire(Class::User, 2).unwrap();
        let mut large = Box::pin(budget.acquire(Class::Cleaning, 4));
        let mut context = Context::from_waker(Waker::noop());
        assert!(large.as_mut().poll(&mut context).is_pending());
        assert!(budget.try_acquire(Class::User, 1).is_none());
        let small = rt.spawn(budget.acquire(Class::User, 1));
        rt.run_ready();
        assert!(small.try_take().is_none());
        // The returned permit is kept for the large request, though it is not enough yet.
        drop(held.split(1));
        rt.run_ready();
        assert!(small.try_take().is_none());
        drop(large);
        rt.run_ready();
        assert_eq!(small.try_take().map(|permit| permit.count()), Some(1));
        drop(held);
        assert_eq!(budget.available(), 4);
    }

    /// The audit finds a permit that was given back twice, or never entered.
    #[test]
    fn the_audit_finds_a_permit_that_is_counted_wrong() {
        let budget = Budget::new(4, &[(Class::Metadata, 1)]);
        let mut permit = budget.try_acquire(Class::User, 3).unwrap();
        let one = permit.split(1);
        let waits = &mut Box::pin(budget.acquire(Class::User, 1));
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        budget.audit().unwrap();
        drop(one);
        // The waiting request was granted its permit and has not taken it yet.
        budget.audit().unwrap();
        budget.0.borrow_mut().held[Class::User as usize] -= 1;
        let found = budget.audit().unwrap_err().to_string();
        assert!(found.contains("expected [3, 0, 0], found [2, 0, 0]"), "{found}");
        budget.0.borrow_mut().held[Class::User as usize] += 1;
        budget.audit().unwrap();
    }

    proptest! {
        /// Random acquirers take random numbers of permits, and some cancel. The total is never
        /// exceeded, a class gets its permits in order, and in the end every request was served and
        /// every permit is back.
        #[test]
        fn everyone_is_served_in_order(
            seed in any::<u64>(),
            total in 4..12u32,
            jobs in proptest::collection::vec((0..3usize, 1..5u32, 0..50u64, 0..50u64), 1..60),
        ) {
            // Not shuffled: tasks granted at one instant must run in the order of the grants.
            let rt = Rt::new(Config::simulated(seed));
            let budget = Budget::new(total, &[(Class::Cleaning, 1), (Class::Metadata, 2)]);
            let order: Rc<RefCell<Vec<(usize, usize)>>> = Rc::default();
            let mut served = 0;
            for (index, (class, count, wait, hold)) in jobs.iter().copied().enumerate() {
                let (rt2, budget, order) = (rt.clone(), budget.clone(), order.clone());
                let count = count.min(budget.limit(ALL[class]));
                if index % 7 == 3 {
                    // A cancelled request must not block later requests.
                    let mut future = Box::pin(budget.acquire(ALL[class], count));
                    rt.spawn_detached(async move {
                        rt2.sleep(wait).await;
                        let mut context = Context::from_waker(Waker::noop());
                        let _ = future.as_mut().poll(&mut context);
                        rt2.sleep(hold).await;
                    });
                    continue;
                }
                served += 1;
                rt.spawn_detached(async move {
                    // Distinct arrival times make the expected order unambiguous.
                    rt2.sleep(wait * 1000 + index as u64).await;
                    let permit = budget.acquire(ALL[class], count).await;
                    order.borrow_mut().push((class, (wait * 1000) as usize + index));
                    budget.audit().unwrap();
                    rt2.sleep(hold * 997).await;
                    drop(permit);
                });
            }
            rt.run_until(furrow_rt::Nanos(u64::MAX));
            prop_assert_eq!(rt.task_count(), 0);
            let order = order.borrow();
            prop_assert_eq!(order.len(), served);
            prop_assert_eq!(budget.available(), total);
            for class in 0..CLASSES {
                let mine: Vec<usize> =
                    order.iter().filter(|o| o.0 == class).map(|o| o.1).collect();
                prop_assert!(mine.is_sorted(), "class {class} served in order {mine:?}");
            }
        }

        /// A class that always asks for more cannot keep another class from its reserve.
        #[test]
        fn a_greedy_class_starves_nobody(seed in any::<u64>(), greedy in 1..6u32) {
            let rt = Rt::new(Config::shuffled(seed));
            let budget = Budget::new(6, &[(Class::Metadata, 1)]);
            for _ in 0..8 {
                let (rt2, budget) = (rt.clone(), budget.clone());
                rt.spawn_detached(async move {
                    loop {
                        let permit = budget.acquire(Class::User, greedy.min(5)).await;
                        rt2.sleep(10).await;
                        drop(permit);
                    }
                });
            }
            let (rt2, budget2) = (rt.clone(), budget.clone());
            let metadata = rt.spawn(async move {
                for _ in 0..20 {
                    rt2.sleep(7).await;
                    let asked = rt2.now();
                    let one = budget2.acquire(Class::Metadata, 1).await;
                    assert_eq!(rt2.now(), asked, "the reserve was not there at once");
                    drop(one);
                    let three = budget2.acquire(Class::Metadata, 3).await;
                    drop(three);
                }
                rt2.now()
            });
            rt.run_until(furrow_rt::Nanos(100_000));
            prop_assert!(metadata.try_take().is_some(), "metadata was starved");
            rt.clear();
        }
    }
}
