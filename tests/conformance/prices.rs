//! Prices that orders do not carry: an order is compared with the catalogue.

use std::time::Duration;

use rust_decimal::Decimal;
use skyward_api::shared::Size;
use skyward_conformance::{Bench, order};
use skyward_core::{ErrorKind, Market, Order, accelerator};

use crate::in_virtual_time;

/// Changes the prices of the catalogue from now on.
pub(crate) fn reprice(bench: &Bench, price: impl Fn(Decimal) -> Decimal) {
    bench.sim.world(|world| {
        for kind in world.types.values_mut() {
            kind.on_demand = price(kind.on_demand);
        }
    });
}

/// An order of the same kind, with the price that its offer has now.
async fn again(bench: &Bench, before: &Order, slot: u32) -> Order {
    let offers = bench.provider.offers().await.unwrap();
    let offer = offers.iter().find(|offer| offer.id == before.offer).unwrap();
    order(offer, Market::OnDemand, slot)
}

#[test]
fn an_order_is_compared_with_no_older_price_than_that_of_its_offer() {
    in_virtual_time(async || {
        let bench = Bench::start("runpod", None).await;
        let dear = bench.order(Market::OnDemand, 0).await;
        bench.provider.create(&dear).await.unwrap();
        reprice(&bench, |price| price / Decimal::TWO);
        bench.pass(Duration::from_mins(1)).await;
        let cheap = again(&bench, &dear, 1).await;
        assert!(cheap.max_hourly_cost < dear.max_hourly_cost, "{cheap:?}");
        bench.provider.create(&cheap).await.unwrap();
        // A price that rose again is not accepted at the price before.
        reprice(&bench, |price| price * Decimal::TWO);
        let late = Order {
            max_hourly_cost: cheap.max_hourly_cost,
            ..again(&bench, &dear, 2).await
        };
        let refused = bench.provider.create(&late).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NoCapacity, "{refused}");
        assert!(refused.message.contains("its price is"), "{refused}");
        for order in [&dear, &cheap] {
            bench.bring_down(order, None).await;
        }
        bench.judge("a price that changed");
    });
}

#[test]
fn what_has_no_price_any_more_is_not_ordered() {
    in_virtual_time(async || {
        let bench = Bench::start("runpod", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        reprice(&bench, |_| Decimal::ZERO);
        bench.pass(Duration::from_mins(6)).await;
        let refused = bench.provider.create(&order).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NoCapacity, "{refused}");
        assert!(refused.message.contains("any more"), "{refused}");
        assert_eq!(bench.machines(), 0);
        bench.judge("a price that is gone");
    });
}

#[test]
fn what_left_the_spot_market_since_its_offer_was_made_is_not_ordered_there() {
    in_virtual_time(async || {
        let bench = Bench::start("verda", None).await;
        let order = bench.order(Market::Spot, 0).await;
        bench.sim.world(|world| {
            for kind in world.types.values_mut() {
                kind.spot = None;
            }
        });
        bench.pass(Duration::from_mins(6)).await;
        let refused = bench.provider.create(&order).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NoCapacity, "{refused}");
        assert!(refused.message.contains("any more"), "{refused}");
        assert_eq!(bench.machines(), 0);
        bench.judge("a spot price that is gone");
    });
}

/// Every offer of every simulated cloud, as the Pool's choice compares it.
#[test]
fn a_card_fits_the_size_that_it_is_sold_with_in_either_unit() {
    crate::for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        let mut cards = 0;
        for offer in bench.provider.offers().await.unwrap() {
            let Some(card) = &offer.accelerators else { continue };
            let Some(memory) = card.memory_gb else { continue };
            let offered = Size::of_card_gb(memory).card_gb().unwrap();
            let model = accelerator::model(&card.name);
            let sizes = model.map_or(&[][..], |model| model.memory_gb);
            let sold = sizes
                .iter()
                .find(|size| (**size - memory).abs() < 1.0 + *size / 50.0);
            // A part of a card has a part of its memory.
            let sold = sold.copied().unwrap_or(memory.floor());
            for unit in ["G", "Gi"] {
                let asked = Size(format!("{sold}{unit}")).card_gb().unwrap();
                assert!(
                    accelerator::has_memory(offered, asked),
                    "{kind}: {offer:?} for {asked}"
                );
                assert!(
                    !accelerator::has_memory(offered, asked.max(memory) * 1.2),
                    "{kind}: {offer:?}"
                );
            }
            cards += 1;
        }
        assert!(cards > 0, "{kind} has no accelerators");
    });
}
