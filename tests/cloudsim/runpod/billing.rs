//! What pods, clusters and network volumes have cost, in buckets of time. It is read from the
//! records that the meter reads, so that both say the same.

use std::collections::{BTreeMap, BTreeSet};

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};
use rust_decimal::Decimal;
use serde_json::{Map, Value, json};

use super::Runpod;
use super::catalogue::number;
use super::volumes::{self, Size, Storage};
use crate::core::billing::Tab;
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Machine, Phase};
use crate::core::resource::Resource;

/// Most buckets of an answer: more would take too long.
const MOST: usize = 20_000;

/// A bucket: its begin and its end.
pub(super) type Bucket = (Timestamp, Timestamp);

#[derive(Clone, Copy, Debug)]
enum Length {
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Length {
    /// The begin of the bucket in which a moment is.
    fn begin(self, moment: Timestamp) -> Timestamp {
        let local = TimeZone::UTC.to_datetime(moment);
        let date = local.date();
        let begin = match self {
            Self::Hour => date.at(local.hour(), 0, 0, 0),
            Self::Day => date.at(0, 0, 0, 0),
            Self::Week => {
                let since = date.weekday().to_monday_zero_offset();
                date.saturating_sub(since.days()).at(0, 0, 0, 0)
            }
            Self::Month => date.first_of_month().at(0, 0, 0, 0),
            Self::Year => date.first_of_year().at(0, 0, 0, 0),
        };
        begin
            .to_zoned(TimeZone::UTC)
            .map_or(moment, |begin| begin.timestamp())
    }

    /// The end of the bucket that begins then.
    fn end(self, begin: Timestamp) -> Timestamp {
        let span = match self {
            Self::Hour => 1.hour(),
            Self::Day => 1.day(),
            Self::Week => 1.week(),
            Self::Month => 1.month(),
            Self::Year => 1.year(),
        };
        let end = TimeZone::UTC.to_datetime(begin).saturating_add(span);
        end.to_zoned(TimeZone::UTC).map_or(begin, |end| end.timestamp())
    }
}

/// The buckets that a request asks for: the last thirty days unless it says otherwise.
pub(super) fn buckets(visit: &Visit<'_>) -> Result<Vec<Bucket>, Refusal> {
    let parameter = |name: &str| visit.request.parameter(name);
    let time = |name: &str| {
        let read = |text: &str| {
            let time = text.parse::<Timestamp>();
            time.map_err(|_| Refusal::Bad(format!("{name} is no time: {text:?}")))
        };
        parameter(name).map(read).transpose()
    };
    let length = match parameter("bucketSize") {
        Some("hour") => Length::Hour,
        Some("week") => Length::Week,
        Some("month") => Length::Month,
        Some("year") => Length::Year,
        _ => Length::Day,
    };
    let (start, end, now) = (time("startTime")?, time("endTime")?, visit.now());
    let last = parameter("lastN").and_then(|count| count.parse::<usize>().ok());
    let (from, to) = match last {
        Some(_) if start.is_some() || end.is_some() => {
            return Err(Refusal::Bad(
                "lastN and startTime or endTime are mutually exclusive".to_owned(),
            ));
        }
        Some(count) => {
            let mut from = length.begin(now);
            for _ in 1..count.min(MOST) {
                let before = from.saturating_sub(SignedDuration::from_secs(1));
                from = length.begin(before.unwrap_or(from));
            }
            (from, length.end(length.begin(now)))
        }
        None => {
            let month = now.saturating_sub(SignedDuration::from_hours(30 * 24));
            (start.unwrap_or(month.unwrap_or(now)), end.unwrap_or(now))
        }
    };
    let mut buckets = Vec::new();
    let mut begin = length.begin(from);
    while begin < to {
        if buckets.len() == MOST {
            return Err(Refusal::Bad("these are too many buckets".to_owned()));
        }
        let end = length.end(begin);
        buckets.push((begin, end));
        begin = end;
    }
    Ok(buckets)
}

/// What was charged in a bucket until now.
fn charged(visit: &Visit<'_>, tab: &Tab, (from, to): Bucket) -> Decimal {
    let to = to.min(visit.now());
    if to <= from {
        return Decimal::ZERO;
    }
    tab.between(from, to, visit.world.billing())
}

/// What a pod cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    gpu: Decimal,
    cpu: Decimal,
    /// Of a stopped one.
    disk: Decimal,
}

impl Cost {
    pub(super) fn total(&self) -> Decimal {
        self.gpu + self.cpu + self.disk
    }

    fn grow(&mut self, other: Self) {
        self.gpu += other.gpu;
        self.cpu += other.cpu;
        self.disk += other.disk;
    }

    fn shown(&self) -> Value {
        json!({
            "totalAmount": number(self.total()), "gpuAmount": number(self.gpu), "cpuAmount": number(self.cpu),
            "diskAmount": number(self.disk),
        })
    }

    /// Clusters have GPUs alone, and their network is free here.
    fn of_cluster(&self) -> Value {
        json!({
            "totalAmount": number(self.total()), "gpuAmount": number(self.gpu), "diskAmount": number(self.disk),
            "networkingAmount": 0.0,
        })
    }
}

/// The periods in which a pod was stopped, at what its disks cost.
fn stopped(machine: &Machine) -> Tab {
    let mut tab = Tab::default();
    for span in machine.tab.spans() {
        if machine.phase_at(span.from) == Some(Phase::Halted) {
            tab.charge(span.from, span.rate);
            if let Some(to) = span.to {
                tab.charge(to, Decimal::ZERO);
            }
        }
    }
    tab
}

/// One object with the fields of both.
fn joined(one: Value, other: Value) -> Value {
    let mut fields = Map::new();
    for value in [one, other] {
        if let Value::Object(more) = value {
            fields.extend(more);
        }
    }
    Value::Object(fields)
}

fn period((from, to): Bucket) -> Value {
    json!({"startTime": from.to_string(), "endTime": to.to_string()})
}

/// The query as it was understood.
fn query(visit: &Visit<'_>, buckets: &[Bucket], filter: &str) -> Value {
    let now = visit.now();
    let from = buckets.first().map_or(now, |(from, _)| *from);
    let to = buckets.last().map_or(now, |(_, to)| *to);
    let size = visit.request.parameter("bucketSize").unwrap_or("day");
    let mut query = joined(period((from, to)), json!({ "bucketSize": size }));
    if let (Some(one), Value::Object(fields)) = (visit.request.parameter(filter), &mut query) {
        fields.insert(filter.to_owned(), one.into());
    }
    query
}

fn answer(records: Vec<Value>, query: Value, unique: Option<(&str, usize)>, totals: Value) -> Answer {
    let mut metadata = json!({"query": query, "recordCount": records.len(), "totals": totals});
    if let (Some((name, count)), Value::Object(fields)) = (unique, &mut metadata) {
        fields.insert(name.to_owned(), count.into());
    }
    Answer::json(200, &json!({"records": records, "metadata": metadata}))
}

/// The network volumes of an account, also volumes that are gone, with what they cost in a
/// bucket; volumes that cost nothing are left out.
pub(super) fn volume_costs<'a>(visit: &'a Visit<'_>, bucket: Bucket) -> Vec<(&'a Resource, Decimal)> {
    let all = visit.world.resources.values();
    let own = all.filter(|found| found.kind == volumes::KIND && found.account == visit.account);
    own.map(|volume| (volume, charged(visit, &volume.tab, bucket)))
        .filter(|(_, amount)| !amount.is_zero())
        .collect()
}

/// What volumes cost, the standard ones and the fast ones.
fn split(volume: &Resource, amount: Decimal) -> [Decimal; 2] {
    match Size::of(volume).storage {
        Storage::Standard => [amount, Decimal::ZERO],
        Storage::HighPerformance => [Decimal::ZERO, amount],
    }
}

fn of_volumes(amounts: [Decimal; 2]) -> Value {
    json!({
        "totalAmount": number(amounts[0] + amounts[1]), "standardAmount": number(amounts[0]),
        "highPerformanceAmount": number(amounts[1]),
    })
}

impl Runpod {
    /// The pods of an account, also pods that are gone, with what they cost in a bucket; pods
    /// that cost nothing are left out.
    pub(super) fn costs<'a>(&self, visit: &'a Visit<'_>, bucket: Bucket) -> Vec<(&'a Machine, Cost)> {
        let pods = visit.world.machines_of(&visit.account);
        let costs = pods.map(|machine| {
            let all = charged(visit, &machine.tab, bucket);
            let disk = charged(visit, &stopped(machine), bucket);
            let is_cpu = self.pods.get(&machine.id).is_some_and(|pod| pod.order.is_cpu);
            let (gpu, cpu) = if is_cpu {
                (Decimal::ZERO, all - disk)
            } else {
                (all - disk, Decimal::ZERO)
            };
            (machine, Cost { gpu, cpu, disk })
        });
        costs.filter(|(_, cost)| !cost.total().is_zero()).collect()
    }

    /// The cluster of a pod.
    fn cluster_of(&self, pod: &str) -> Option<&str> {
        let pod = self.pods.get(pod)?;
        pod.order.member.as_ref().map(|(cluster, ..)| cluster.as_str())
    }

    pub(super) fn bill_pods(&self, visit: &Visit<'_>) -> Result<Answer, Refusal> {
        let buckets = buckets(visit)?;
        let wanted = visit.request.parameter("podId");
        let (mut records, mut totals, mut seen) = (Vec::new(), Cost::default(), BTreeSet::new());
        for bucket in &buckets {
            for (machine, cost) in self.costs(visit, *bucket) {
                if self.is_member(&machine.id) || wanted.is_some_and(|wanted| wanted != machine.id) {
                    continue;
                }
                let who = joined(period(*bucket), json!({ "podId": machine.id }));
                records.push(joined(who, cost.shown()));
                totals.grow(cost);
                seen.insert(machine.id.as_str());
            }
        }
        let query = query(visit, &buckets, "podId");
        let unique = Some(("uniquePodCount", seen.len()));
        Ok(answer(records, query, unique, totals.shown()))
    }

    pub(super) fn bill_clusters(&self, visit: &Visit<'_>) -> Result<Answer, Refusal> {
        let buckets = buckets(visit)?;
        let wanted = visit.request.parameter("clusterId");
        let (mut records, mut totals, mut seen) = (Vec::new(), Cost::default(), BTreeSet::new());
        for bucket in &buckets {
            let mut here = BTreeMap::<&str, Cost>::new();
            for (machine, cost) in self.costs(visit, *bucket) {
                let cluster = self.cluster_of(&machine.id);
                let cluster = cluster.filter(|cluster| wanted.is_none_or(|wanted| wanted == *cluster));
                if let Some(cluster) = cluster {
                    here.entry(cluster).or_default().grow(cost);
                }
            }
            for (cluster, cost) in here {
                let who = joined(period(*bucket), json!({ "clusterId": cluster }));
                records.push(joined(who, cost.of_cluster()));
                totals.grow(cost);
                seen.insert(cluster);
            }
        }
        let query = query(visit, &buckets, "clusterId");
        let unique = Some(("uniqueClusterCount", seen.len()));
        Ok(answer(records, query, unique, totals.of_cluster()))
    }

    /// The costs of all that is simulated; other amounts are zero.
    pub(super) fn bill_all(&self, visit: &Visit<'_>) -> Result<Answer, Refusal> {
        let buckets = buckets(visit)?;
        let (mut records, mut totals) = (Vec::new(), Family::default());
        for bucket in &buckets {
            let mut here = Family::default();
            for (machine, cost) in self.costs(visit, *bucket) {
                if self.is_member(&machine.id) {
                    here.clusters.grow(cost);
                } else {
                    here.pods.grow(cost);
                }
            }
            for (volume, amount) in volume_costs(visit, *bucket) {
                let [standard, fast] = split(volume, amount);
                here.storage[0] += standard;
                here.storage[1] += fast;
            }
            if !here.total().is_zero() {
                records.push(joined(period(*bucket), here.shown()));
                totals.grow(here);
            }
        }
        let query = query(visit, &buckets, "");
        Ok(answer(records, query, None, totals.shown()))
    }
}

/// What all that is simulated cost.
#[derive(Clone, Copy, Debug, Default)]
struct Family {
    pods: Cost,
    clusters: Cost,
    storage: [Decimal; 2],
}

impl Family {
    fn total(&self) -> Decimal {
        self.pods.total() + self.clusters.total() + self.storage[0] + self.storage[1]
    }

    fn grow(&mut self, other: Self) {
        self.pods.grow(other.pods);
        self.clusters.grow(other.clusters);
        self.storage[0] += other.storage[0];
        self.storage[1] += other.storage[1];
    }

    fn shown(&self) -> Value {
        json!({
            "totalAmount": number(self.total()),
            "podGpuAmount": number(self.pods.gpu), "podCpuAmount": number(self.pods.cpu),
            "podDiskAmount": number(self.pods.disk),
            "clusterGpuAmount": number(self.clusters.gpu), "clusterDiskAmount": number(self.clusters.disk),
            "clusterNetworkingAmount": 0.0,
            "storageStandardAmount": number(self.storage[0]),
            "storageHighPerformanceAmount": number(self.storage[1]),
            "serverlessGpuAmount": 0.0, "serverlessCpuAmount": 0.0, "serverlessDiskAmount": 0.0,
            "serverlessFeeAmount": 0.0, "endpointAmount": 0.0,
        })
    }
}

pub(super) fn bill_volumes(visit: &Visit<'_>) -> Result<Answer, Refusal> {
    let buckets = buckets(visit)?;
    let wanted = visit.request.parameter("networkVolumeId");
    let (mut records, mut totals, mut seen) = (Vec::new(), [Decimal::ZERO; 2], BTreeSet::new());
    for bucket in &buckets {
        for (volume, amount) in volume_costs(visit, *bucket) {
            if wanted.is_some_and(|wanted| wanted != volume.id) {
                continue;
            }
            let amounts = split(volume, amount);
            let who = joined(period(*bucket), json!({ "networkVolumeId": volume.id }));
            records.push(joined(who, of_volumes(amounts)));
            totals[0] += amounts[0];
            totals[1] += amounts[1];
            seen.insert(volume.id.as_str());
        }
    }
    let query = query(visit, &buckets, "networkVolumeId");
    let unique = Some(("uniqueNetworkVolumeCount", seen.len()));
    Ok(answer(records, query, unique, of_volumes(totals)))
}
