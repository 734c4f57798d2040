//! Lower bound of the bytes that a garbage collector must copy, and the bytes that a collector with
//! knowledge of the future copies.
//!
//! Placement is fixed: a zone is taken, filled, and later cleaned at most once. A zone uses its
//! whole size from the moment it is taken until it is cleaned. After that, the zone's survivors use
//! only their live bytes, until they die. Cleaning a zone costs the bytes that are live at that
//! moment. Used space has to stay within a limit at all times.
//!
//! [`lower`] uses multipliers λ ≥ 0, one for each moment: the price of a used byte at that moment.
//! The bound is the sum of the least costs of each zone on its own, minus the cost of the whole
//! limit at these prices. No schedule within the limit copies less (weak duality). So any
//! multipliers give a valid bound; a subgradient method looks for good ones. [`upper`] makes
//! schedules by clairvoyant rules, and improves each until no cleaning can be put off.
//!
//! Time is a grid. Used space counts only at the grid's moments, and cleaning between two moments
//! is no better than cleaning at the second one: the bound holds for cleaning at any time. The
//! model leaves out that survivors occupy zones too, and that they are cleaned again. Both would
//! cost a collector more.

/// A zone's life, in moments of the time grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// The first moment at which the zone uses space.
    pub taken: usize,
    /// The first moment at which the zone can be cleaned; never, if this is the number of moments
    /// or more.
    pub full: usize,
    /// Bytes in the zone that are not yet overwritten, at each moment. This number does not grow
    /// from `full` on.
    pub live: Vec<u64>,
}

/// The zones of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zones {
    /// Bytes of a zone.
    pub size: u64,
    /// Number of moments.
    pub moments: usize,
    /// The zones in the order in which they were taken.
    pub zones: Vec<Life>,
}

/// The moment at which each zone is cleaned; `None` if it never is.
pub type Schedule = Vec<Option<usize>>;

/// The score of a zone when the limit is reached: zones with a lower score are cleaned first.
type Score<'a> = &'a dyn Fn(&Zones, &Life, usize) -> f64;

impl Zones {
    /// Bytes that a schedule copies.
    pub fn copied(&self, schedule: &Schedule) -> u64 {
        let each = self.zones.iter().zip(schedule);
        each.filter_map(|(zone, at)| at.map(|at| zone.live[at])).sum()
    }

    /// Bytes used at each moment.
    pub fn used(&self, schedule: &Schedule) -> Vec<u64> {
        let mut used = vec![0; self.moments];
        for (zone, at) in self.zones.iter().zip(schedule) {
            let at = at.unwrap_or(self.moments);
            for (moment, used) in used.iter_mut().enumerate().skip(zone.taken) {
                *used += if moment < at { self.size } else { zone.live[moment] };
            }
        }
        used
    }

    /// The least space within which a schedule exists: the peak use if each zone is cleaned as soon
    /// as it is full.
    pub fn least_space(&self) -> u64 {
        let at_once = |zone: &Life| Some(zone.full).filter(|full| *full < self.moments);
        self.used(&self.zones.iter().map(at_once).collect()).into_iter().max().unwrap_or(0)
    }

    /// The space that is enough without any copying: zones are reset when nothing in them is live.
    pub fn free_space(&self) -> u64 {
        let dead = |zone: &Life| (zone.full..self.moments).find(|at| zone.live[*at] == 0);
        self.used(&self.zones.iter().map(dead).collect()).into_iter().max().unwrap_or(0)
    }
}

/// The cheapest choice for one zone at `prices`: its cost, and the moment of cleaning.
///
/// `before[m]` is the sum of the prices before moment m.
fn best(zones: &Zones, zone: &Life, prices: &[f64], before: &[f64]) -> (f64, Option<usize>) {
    let size = zones.size as f64;
    let taken = zone.taken.min(zones.moments);
    let room = |until: usize| size * (before[until] - before[taken]);
    let mut best = (room(zones.moments), None);
    let mut after = 0.0;
    for at in (zone.full..zones.moments).rev() {
        let live = zone.live[at] as f64;
        after += prices[at] * live;
        let cost = live + room(at) + after;
        // Among moments of equal cost the earliest is best: it uses the least space.
        if cost <= best.0 {
            best = (cost, Some(at));
        }
    }
    best
}

/// The bound that `prices` give, and the choice for each zone.
fn dual(zones: &Zones, space: u64, prices: &[f64]) -> (f64, Schedule) {
    let mut before = vec![0.0; zones.moments + 1];
    for (moment, price) in prices.iter().enumerate() {
        before[moment + 1] = before[moment] + price;
    }
    let mut bound = -(space as f64) * before[zones.moments];
    let mut schedule = Vec::with_capacity(zones.zones.len());
    for zone in &zones.zones {
        let (cost, at) = best(zones, zone, prices, &before);
        bound += cost;
        schedule.push(at);
    }
    (bound, schedule)
}

/// The lower bound of the bytes that any schedule within `space` copies, from `rounds` steps of a
/// subgradient method; `None` if there is no such schedule. `reach` is the number of bytes that
/// some schedule copies.
pub fn lower(zones: &Zones, space: u64, reach: Option<u64>, rounds: usize) -> Option<f64> {
    if zones.least_space() > space {
        return None;
    }
    let mut prices = vec![0.0; zones.moments];
    let mut most: f64 = 0.0;
    let mut most_prices = prices.clone();
    // The value that the bound might reach sets the length of a step (Polyak).
    let reach = reach.unwrap_or_else(|| zones.zones.iter().map(|zone| zone.live[0]).sum()) as f64;
    let (mut share, mut stale) = (1.0, 0);
    for _ in 0..rounds {
        let (bound, schedule) = dual(zones, space, &prices);
        match bound > most * (1.0 + 1e-6) {
            true => stale = 0,
            false => stale += 1,
        }
        if bound > most {
            (most, most_prices) = (bound, prices.clone());
        }
        if stale >= 15 {
            (share, stale) = (share * 0.6, 0);
            prices.clone_from(&most_prices);
            continue;
        }
        let over = zones.used(&schedule).into_iter().map(|used| used as f64 - space as f64);
        let over: Vec<f64> = over.collect();
        let counts = |(over, price): &(&f64, &f64)| **price > 0.0 || **over > 0.0;
        let square: f64 = over.iter().zip(&prices).filter(counts).map(|(o, _)| o * o).sum();
        if square == 0.0 || reach <= most {
            break;
        }
        let step = share * (reach - bound).max(reach * 1e-3) / square;
        for (price, over) in prices.iter_mut().zip(over) {
            *price = (*price + step * over).max(0.0);
        }
    }
    // This factor is larger than the rounding errors of the sums, so the bound stays valid.
    Some((most * (1.0 - 1e-9)).max(0.0))
}

/// The schedule that, each time the limit is reached, cleans the zones with the lowest `score`.
fn greedy(zones: &Zones, space: u64, score: Score<'_>) -> Option<Schedule> {
    let mut schedule: Schedule = vec![None; zones.zones.len()];
    for moment in 0..zones.moments {
        let used = |schedule: &Schedule| -> u64 {
            let each = zones.zones.iter().zip(schedule).filter(|(zone, _)| zone.taken <= moment);
            each.map(|(zone, at)| if at.is_some() { zone.live[moment] } else { zones.size }).sum()
        };
        for (zone, at) in zones.zones.iter().zip(&mut schedule) {
            if at.is_none() && zone.full <= moment && zone.live[moment] == 0 {
                *at = Some(moment);
            }
        }
        let mut now = used(&schedule);
        if now <= space {
            continue;
        }
        let full = |at: &usize| schedule[*at].is_none() && zones.zones[*at].full <= moment;
        let mut victims: Vec<(f64, usize)> = (0..schedule.len())
            .filter(full)
            .map(|at| (score(zones, &zones.zones[at], moment), at))
            .collect();
        victims.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (_, at) in victims {
            if now <= space {
                break;
            }
            schedule[at] = Some(moment);
            now -= zones.size - zones.zones[at].live[moment];
        }
        if now > space {
            return None;
        }
    }
    Some(schedule)
}

/// Postpones cleaning, or leaves it out, wherever the limit allows it.
fn put_off(zones: &Zones, space: u64, schedule: &mut Schedule) {
    let mut used = zones.used(schedule);
    loop {
        let mut changed = false;
        let mut order: Vec<usize> = (0..schedule.len()).collect();
        let cost = |at: &usize| schedule[*at].map_or(0, |when| zones.zones[*at].live[when]);
        order.sort_by_key(|at| std::cmp::Reverse(cost(at)));
        for at in order {
            let zone = &zones.zones[at];
            let Some(now) = schedule[at].filter(|now| zone.live[*now] > 0) else { continue };
            let fits = |m: &usize| used[*m] + zones.size - zone.live[*m] <= space;
            let until = now + (now..zones.moments).take_while(fits).count();
            let better = until == zones.moments || zone.live[until] < zone.live[now];
            if until == now || !better {
                continue;
            }
            for (used, live) in used[now..until].iter_mut().zip(&zone.live[now..until]) {
                *used += zones.size - live;
            }
            schedule[at] = Some(until).filter(|until| *until < zones.moments);
            changed = true;
        }
        if !changed {
            return;
        }
    }
}

/// The best schedule within `space` that a clairvoyant rule finds; `None` if no rule finds any.
pub fn upper(zones: &Zones, space: u64) -> Option<Schedule> {
    let live = |zone: &Life, at: usize| zone.live[at] as f64;
    let least = |_: &Zones, zone: &Life, at: usize| live(zone, at);
    let per_gain = |zones: &Zones, zone: &Life, at: usize| {
        live(zone, at) / (zones.size - zone.live[at]).max(1) as f64
    };
    // Bytes copied for each byte of space gained, summed over the moments until the zone would be
    // empty without cleaning, or over `span` moments if that is sooner.
    let per_room = |span: usize| {
        move |zones: &Zones, zone: &Life, at: usize| {
            let until = (at + span).min(zones.moments);
            let alive = (at..until).take_while(|moment| zone.live[*moment] > 0);
            let room: f64 = alive.map(|moment| (zones.size - zone.live[moment]) as f64).sum();
            live(zone, at) / room.max(1.0)
        }
    };
    // Bytes that waiting for `span` moments would save, for each byte of space gained now. Zones
    // that would save less are cleaned first.
    let regret = |span: usize| {
        move |zones: &Zones, zone: &Life, at: usize| {
            let later = (at + span).min(zones.moments - 1);
            let saved = live(zone, at) - live(zone, later);
            saved / (zones.size - zone.live[at]).max(1) as f64
        }
    };
    let spans = [8, 32, 128, zones.moments.max(1)];
    let rooms: Vec<_> = spans.iter().map(|span| per_room(*span)).collect();
    let regrets: Vec<_> = spans.iter().map(|span| regret(*span)).collect();
    let mut scores: Vec<Score<'_>> = vec![&least, &per_gain];
    scores.extend(rooms.iter().map(|score| score as Score<'_>));
    scores.extend(regrets.iter().map(|score| score as Score<'_>));
    let made = scores.into_iter().filter_map(|score| {
        let mut schedule = greedy(zones, space, score)?;
        put_off(zones, space, &mut schedule);
        Some(schedule)
    });
    made.min_by_key(|schedule| zones.copied(schedule))
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::Rng;

    /// Draws zones that are taken one after the other and whose data die in steps.
    fn some(rng: &mut Rng) -> Zones {
        let (size, moments) = (10, 3 + rng.below(5) as usize);
        let count = 1 + rng.below(5) as usize;
        let zones = (0..count).map(|_| {
            let taken = rng.below(moments as u64) as usize;
            let full = taken + rng.below(3) as usize;
            let mut now = 1 + rng.below(size);
            let live = (0..moments).map(|_| {
                now -= rng.below(now.min(4) + 1);
                now
            });
            Life { taken, full, live: live.collect() }
        });
        Zones { size, moments, zones: zones.collect() }
    }

    /// The least number of bytes that any schedule within `space` copies, by trying all schedules.
    fn brute(zones: &Zones, space: u64) -> Option<u64> {
        let choices: Vec<Vec<Option<usize>>> = zones
            .zones
            .iter()
            .map(|zone| std::iter::once(None).chain((zone.full..zones.moments).map(Some)).collect())
            .collect();
        let mut least = None;
        let mut at = vec![0; choices.len()];
        loop {
            let schedule: Schedule = at.iter().zip(&choices).map(|(at, some)| some[*at]).collect();
            if zones.used(&schedule).iter().all(|used| *used <= space) {
                let copied = zones.copied(&schedule);
                least = Some(least.map_or(copied, |least: u64| least.min(copied)));
            }
            let Some(next) = (0..at.len()).find(|i| at[*i] + 1 < choices[*i].len()) else {
                return least;
            };
            at[next] += 1;
            at[..next].fill(0);
        }
    }

    #[test]
    fn the_best_schedule_lies_between() {
        let mut rng = Rng::new(7);
        let (mut found, mut none, mut gap, mut copied) = (0, 0, 0.0, 0.0);
        for _ in 0..1500 {
            let zones = some(&mut rng);
            let space = 5 + rng.below(10 * zones.zones.len() as u64);
            let best = brute(&zones, space);
            let made = upper(&zones, space);
            let reach = made.as_ref().map(|made| zones.copied(made));
            let bound = lower(&zones, space, reach, 150);
            assert_eq!(best.is_some(), made.is_some(), "{zones:?} within {space}");
            assert_eq!(best.is_some(), bound.is_some(), "{zones:?} within {space}");
            let (Some(best), Some(made), Some(bound)) = (best, made, bound) else {
                none += 1;
                continue;
            };
            assert!(zones.used(&made).iter().all(|used| *used <= space), "{zones:?} in {space}");
            assert!(zones.copied(&made) >= best, "{zones:?} within {space}");
            assert!(bound <= best as f64, "{bound} over {best}: {zones:?} within {space}");
            found += usize::from(best > 0);
            gap += best as f64 - bound;
            copied += best as f64;
        }
        assert!(found > 200 && none > 50, "{found} with something to copy, {none} without a way");
        // A bound of 0 would be valid too, so check that the gap is small.
        assert!(gap < 0.5 * copied, "{gap} of {copied} is left between");
    }

    #[test]
    fn any_prices_give_a_bound() {
        let mut rng = Rng::new(11);
        for _ in 0..1500 {
            let zones = some(&mut rng);
            let space = 5 + rng.below(10 * zones.zones.len() as u64);
            let prices: Vec<f64> =
                (0..zones.moments).map(|_| rng.below(100) as f64 / 50.0).collect();
            let (bound, _) = dual(&zones, space, &prices);
            if let Some(best) = brute(&zones, space) {
                assert!(bound <= best as f64 + 1e-9, "{bound} over {best}: {zones:?}, {prices:?}");
            }
        }
    }

    #[test]
    fn with_room_for_all_nothing_is_copied() {
        let zones = some(&mut Rng::new(3));
        let space = zones.free_space();
        assert_eq!(zones.copied(&upper(&zones, space).unwrap()), 0);
        assert_eq!(lower(&zones, space, Some(0), 50), Some(0.0));
    }
}
