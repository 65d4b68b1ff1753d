//! How many items make a chunk, and how many chunks are on their way to a worker: from the times that were measured.
//! A chunk is work for a fraction of a second, so that its own cost does not matter, and enough chunks are under way
//! that a distant worker is as busy as a near one.

use std::time::Duration;

/// Seconds of work in a chunk. What a chunk costs is not measured: a message, and a write into the page cache of its
/// machine, are little beside that, and the way of a chunk takes no time from the worker, at which other chunks wait meanwhile.
const LENGTH: f64 = 0.2;
/// Items that take this many times the way to a worker wait nowhere: the way is a small part of their time.
const WAYS: f64 = 50.0;
/// Each measurement moves the mean by this part.
const PART: f64 = 1.0 / 16.0;
/// Most items of a chunk.
const MOST_ITEMS: u32 = 65_536;
/// Most chunks that wait at a worker.
const MOST_WAITING: u32 = 256;
/// No item takes less: a clock may say 0.
const LEAST: f64 = 1e-6;
/// Work that a worker is granted beyond what is under way: the log takes a second to store a grant.
const AHEAD: f64 = 4.0;

/// What was measured of a map's items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Seconds of one item; `None` before the first one ended.
    mean: Option<f64>,
    /// How far items are from that, on average.
    spread: f64,
    /// Chunks have grown to so many items.
    grown: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            mean: None,
            spread: 0.0,
            grown: 1,
        }
    }
}

impl Pace {
    /// Takes in how long an item ran.
    pub fn item_took(&mut self, time: Duration) {
        let time = time.as_secs_f64().max(LEAST);
        match &mut self.mean {
            None => self.mean = Some(time),
            Some(mean) => {
                let off = time - *mean;
                *mean += off * PART;
                self.spread += (off.abs() - self.spread) * PART;
            }
        }
    }

    /// Takes in that a whole chunk ended. Chunks may then be twice as large as that one.
    pub fn chunk_ended(&mut self, items: u32) {
        self.grown = self.grown.max(items.saturating_mul(2)).min(MOST_ITEMS);
    }

    /// Seconds of one item where that is known.
    pub fn mean(&self) -> Option<f64> {
        self.mean
    }

    /// How many items the next chunk has, where so many remain for so many workers. Near the end chunks get smaller,
    /// so that all workers end about together.
    pub fn chunk(&self, remaining: u32, workers: u32) -> u32 {
        let Some(mean) = self.mean else { return 1 };
        // Where items vary, a chunk must not be long because the last few were short.
        let items = LENGTH / (mean + self.spread).max(LEAST);
        let share = remaining / workers.max(1).saturating_mul(2);
        whole(items).min(share).clamp(1, self.grown)
    }

    /// How many chunks of that size wait at a worker beside the one that it runs. `distance` is the time from the end
    /// of a chunk at the worker until the next one can be there.
    pub fn waiting(&self, chunk: u32, distance: Duration, buffer: u32) -> u32 {
        let distance = distance.as_secs_f64();
        let wanted = match self.mean {
            Some(mean) if mean <= WAYS * distance => {
                // One more than the distance takes: it is a mean, and items vary.
                1 + whole((distance / (f64::from(chunk.max(1)) * mean)).ceil())
            }
            Some(_) | None => 0,
        };
        wanted.max(buffer).min(MOST_WAITING)
    }

    /// How many items a worker is to be granted that runs so many at the same time.
    pub fn grant(&self, chunk: u32, waiting: u32, distance: Duration, threads: u32) -> u32 {
        let under_way = chunk.saturating_mul(waiting.saturating_add(1));
        let ahead = self.mean.map_or(0, |mean| {
            whole((AHEAD + distance.as_secs_f64()) / mean * f64::from(threads))
        });
        // One more, for the worker that ends its only item before the log has stored the next grant.
        under_way.max(ahead).saturating_add(1)
    }
}

/// As a whole number; floats are cut to the bounds of the integer.
const fn whole(number: f64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: u32 = 1_000_000;

    fn pace(item: Duration) -> Pace {
        let mut pace = Pace::default();
        for _ in 0..200 {
            pace.item_took(item);
        }
        for _ in 0..20 {
            let items = pace.chunk(ALL, 1);
            pace.chunk_ended(items);
        }
        pace
    }

    #[test]
    fn the_first_chunks_have_one_item_and_later_ones_grow_by_two_until_they_take_a_fraction_of_a_second() {
        let mut pace = Pace::default();
        assert_eq!(pace.chunk(ALL, 4), 1);
        pace.item_took(Duration::from_millis(1));
        let mut before = 1;
        for _ in 0..20 {
            let items = pace.chunk(ALL, 4);
            assert!(items <= before * 2);
            pace.chunk_ended(items);
            before = items;
        }
        assert_eq!(before, 200);
        let long = self::pace(Duration::from_hours(1));
        assert_eq!(long.chunk(ALL, 4), 1);
    }

    #[test]
    fn items_that_vary_make_shorter_chunks() {
        let mut varying = pace(Duration::from_millis(1));
        for index in 0..400_u64 {
            varying.item_took(Duration::from_millis(if index % 10 == 0 { 100 } else { 1 }));
        }
        assert!(varying.chunk(ALL, 1) < 20, "{}", varying.chunk(ALL, 1));
    }

    #[test]
    fn near_the_end_chunks_are_small() {
        let pace = pace(Duration::from_millis(1));
        assert_eq!(pace.chunk(80, 10), 4);
        assert_eq!(pace.chunk(1, 10), 1);
        assert_eq!(pace.chunk(0, 0), 1);
    }

    #[test]
    fn long_items_wait_nowhere_and_a_buffer_that_is_asked_for_does() {
        let pace = pace(Duration::from_mins(1));
        let far = Duration::from_millis(250);
        assert_eq!(pace.waiting(1, far, 0), 0);
        assert_eq!(pace.waiting(1, far, 4), 4);
        assert_eq!(Pace::default().waiting(1, far, 0), 0);
    }

    proptest! {
        #[test]
        fn a_distant_worker_has_work_until_the_next_chunk_comes(
            micros in 20_u64..2_000_000,
            distance in 1_u64..1_000,
        ) {
            let pace = pace(Duration::from_micros(micros));
            let distance = Duration::from_millis(distance);
            let chunk = pace.chunk(ALL, 1);
            let waiting = pace.waiting(chunk, distance, 0);
            let work = f64::from(chunk * waiting) * micros as f64 / 1e6;
            // Either there is work for all that time, or the time is a fiftieth of an item.
            let is_busy = work >= distance.as_secs_f64() || distance.as_secs_f64() * 50.0 < micros as f64 / 1e6 * 1.01;
            prop_assert!(is_busy || waiting == MOST_WAITING, "{work} s of work, {waiting} chunks of {chunk}");
            prop_assert!(pace.grant(chunk, waiting, distance, 1) >= chunk * (waiting + 1));
        }

        #[test]
        fn no_times_make_it_panic_or_ask_for_nothing(
            times in proptest::collection::vec(any::<u64>(), 0..20),
            chunks in proptest::collection::vec(any::<u32>(), 0..20),
            numbers: (u32, u32, u32, u64),
        ) {
            let mut pace = Pace::default();
            for time in times {
                pace.item_took(Duration::from_nanos(time));
            }
            for items in chunks {
                pace.chunk_ended(items);
            }
            let (remaining, workers, buffer, distance) = numbers;
            let chunk = pace.chunk(remaining, workers);
            prop_assert!((1..=MOST_ITEMS).contains(&chunk));
            let distance = Duration::from_nanos(distance);
            let waiting = pace.waiting(chunk, distance, buffer);
            prop_assert!(waiting <= MOST_WAITING);
            prop_assert!(pace.grant(chunk, waiting, distance, 1) >= chunk);
        }
    }
}
