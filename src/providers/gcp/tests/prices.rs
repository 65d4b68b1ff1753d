use rstest::rstest;

use super::*;

fn own(instance_type: &str, region: Option<&str>, on_demand: Option<&str>, spot: Option<&str>) -> Price {
    Price {
        instance_type: instance_type.to_owned(),
        region: region.map(str::to_owned),
        on_demand: on_demand.map(str::to_owned),
        spot: spot.map(str::to_owned),
    }
}

fn usd(text: Option<&str>) -> Option<Usd> {
    text.map(|text| text.parse().unwrap())
}

#[rstest]
#[case::of_the_table("g2-standard-4", "us-central1-a", Some("0.706832276"), Some("0.423956"))]
#[case::of_a_region_with_the_same_prices(
    "g2-standard-4",
    "us-east1-d",
    Some("0.706832276"),
    Some("0.423956")
)]
#[case::of_another_region("g2-standard-4", "europe-west4-a", None, None)]
#[case::sold_on_the_spot_market_alone("a3-highgpu-1g", "us-central1-a", None, Some("6.326192603"))]
#[case::of_the_only_region_of_its_row("a3-ultragpu-8g", "us-central1-b", Some("84.806908493"), None)]
#[case::of_another_region_than_that_of_its_row("a3-ultragpu-8g", "us-west1-c", None, None)]
#[case::sold_on_demand_alone("n1-standard-8+nvidia-tesla-p4x1", "us-west1-b", Some("0.98"), None)]
#[case::unknown("a4-highgpu-8g", "us-central1-b", None, None)]
fn a_type_has_the_prices_of_its_region_or_none(
    #[case] kind: &str,
    #[case] zone: &str,
    #[case] on_demand: Option<&str>,
    #[case] spot: Option<&str>,
) {
    assert_eq!(price(&[], kind, zone, Market::OnDemand), usd(on_demand));
    assert_eq!(price(&[], kind, zone, Market::Spot), usd(spot));
}

#[test]
fn prices_of_the_settings_stand_before_those_of_the_table() {
    let all = [
        own("g2-standard-4", Some("europe-west4"), Some("0.8"), None),
        own("g2-standard-4", None, Some("0.9"), Some("0")),
        own("a4-highgpu-8g", None, None, Some("50.5")),
    ];
    let of = |kind, zone, market| price(&all, kind, zone, market);
    let (on_demand, spot) = (Market::OnDemand, Market::Spot);
    assert_eq!(of("g2-standard-4", "europe-west4-a", on_demand), usd(Some("0.8")));
    assert_eq!(of("g2-standard-4", "us-central1-a", on_demand), usd(Some("0.9")));
    // 0 is no price, so that of the table counts, where there is one.
    assert_eq!(of("g2-standard-4", "us-central1-a", spot), usd(Some("0.423956")));
    assert_eq!(of("g2-standard-4", "europe-west4-a", spot), None);
    assert_eq!(of("a4-highgpu-8g", "us-central1-b", spot), usd(Some("50.5")));
    assert_eq!(of("a4-highgpu-8g", "us-central1-b", on_demand), None);
}

/// Offers have the zone as their region.
#[test]
fn a_price_of_the_settings_for_a_zone_is_that_of_this_zone_alone() {
    let all = [own("g2-standard-4", Some("us-central1-a"), Some("0.8"), None)];
    let of = |zone| price(&all, "g2-standard-4", zone, Market::OnDemand);
    assert_eq!(of("us-central1-a"), usd(Some("0.8")));
    assert_eq!(of("us-central1-b"), usd(Some("0.706832276")));
}

#[test]
fn each_row_of_the_table_is_a_type_with_a_price() {
    let rows = include_str!("../prices.csv").lines();
    assert_eq!(TABLE.len(), rows.filter(|row| !row.starts_with('#')).count());
    for (kind, ((on_demand, spot), only)) in TABLE.iter() {
        assert!(crate::gcp::kind::Kind::parse(kind).is_some(), "{kind}");
        assert!(on_demand.is_some() || spot.is_some(), "{kind}");
        assert!(only.is_none_or(|only| REGIONS.contains(&only)), "{kind}");
        // A spot machine costs no more than one on demand.
        assert!(
            on_demand.is_none_or(|on_demand| spot.is_none_or(|spot| spot < on_demand)),
            "{kind}"
        );
    }
}
