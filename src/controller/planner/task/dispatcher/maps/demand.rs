//! The work of running maps that waits, as a Pool counts with it and as it is measured.

use std::time::Duration;

use super::super::Dispatcher;

impl Dispatcher {
    /// Places that running maps could use, besides the places that they have, and how long one place would take for all the
    /// items of these maps. A map that has all the places that it may have waits for none.
    pub(in crate::task::dispatcher) fn wanted_by_maps(&self) -> (u32, Duration) {
        let mut all = (0_u32, Duration::ZERO);
        let wishes = self.wishes(i32::MIN);
        for uid in &self.maps {
            let wanted = self.wanted(uid, &wishes);
            if let Some((_, _, map)) = self.running(uid).filter(|_| wanted > 0) {
                all.0 = all.0.saturating_add(wanted);
                all.1 = all.1.saturating_add(map.told.work);
            }
        }
        all
    }

    /// Items of running maps that wait. Where no other item of a map begins, none of it waits.
    pub(in crate::task::dispatcher) fn queued_items(&self) -> u32 {
        let maps = self.maps.iter().filter_map(|uid| self.running(uid));
        let waiting = maps.map(|(_, _, map)| {
            let items = &map.told.items;
            let new_failures = items.failed.saturating_sub(map.told.old_failures);
            let begins = map
                .news
                .as_ref()
                .is_some_and(|news| news.spec.begins(new_failures));
            if begins { items.waiting() } else { 0 }
        });
        waiting.fold(0, u32::saturating_add)
    }
}
