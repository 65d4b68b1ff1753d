//! What goes wrong, by script or by chance.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use crate::core::chance::Chance;
use crate::core::cloud::Call;
use crate::core::machine::BootPlan;

/// When a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    /// Nothing was done.
    Before,
    /// It was done, and only the answer is bad.
    After,
}

/// One fault of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Fault {
    /// The answer takes this long.
    Latency {
        /// Milliseconds.
        millis: u64,
    },
    /// Too many requests, in the words of that cloud.
    TooMany {
        /// Seconds until the next try, where that cloud says so.
        retry_after: Option<u32>,
    },
    /// The cloud fails.
    Server {
        /// 500, 502, 503, 504.
        status: u16,
        /// Whether it had done what was asked.
        when: When,
    },
    /// A page about maintenance, of what stands before the cloud's API.
    Maintenance {
        /// Whether it had done what was asked.
        when: When,
    },
    /// The connection is cut without an answer.
    Cut {
        /// Whether it had done what was asked.
        when: When,
    },
    /// Nothing is left of what was asked for.
    NoCapacity,
    /// The account has used up its quota of something.
    Quota {
        /// Of what.
        what: String,
    },
    /// The account has no money left.
    Funds,
    /// The credentials are wrong.
    Unauthorized,
    /// The credentials' time is over.
    Expired,
    /// The credentials may not do this.
    Forbidden,
    /// A list ends after so many items, though there are more.
    PartialPage {
        /// How many items are kept.
        keep: usize,
    },
    /// The answer has another shape than the cloud describes, at every depth: fields of a name are left out or have
    /// another name, or each object has one field more.
    Reshaped {
        /// Name of the fields; without it nothing is taken away.
        field: Option<String>,
        /// Their new name, or that of the field more, which has the value of another one of its object.
        to: Option<String>,
    },
    /// The machine that is made boots like this.
    Boot(BootPlan),
    /// The machine that is made is lost so long after it runs.
    Dies {
        /// Seconds after the order.
        after: i64,
    },
    /// The machine that is made halts itself.
    Halts {
        /// Seconds after the order.
        after: i64,
    },
    /// The spot machine that is made is taken back.
    Reclaim {
        /// Seconds after the order.
        after: i64,
        /// Seconds of notice.
        notice: i64,
    },
}

impl Fault {
    /// A short name for the log.
    pub fn name(&self) -> String {
        serde_json::to_value(self)
            .ok()
            .and_then(|value| match value {
                serde_json::Value::String(name) => Some(name),
                serde_json::Value::Object(fields) => fields.keys().next().cloned(),
                _ => None,
            })
            .unwrap_or_default()
    }
}

/// A fault with the calls it strikes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// The call's name, its effect (`create`, `delete`, `change`, `read`), or `*`.
    pub call: String,
    /// What happens.
    pub fault: Fault,
    /// So many calls pass first.
    #[serde(default)]
    pub skip: u32,
    /// How many calls it strikes; for ever when absent.
    #[serde(default)]
    pub times: Option<u32>,
    /// With this probability, else always.
    #[serde(default)]
    pub probability: Option<f64>,
    /// Only calls of this account.
    #[serde(default)]
    pub account: Option<String>,
}

impl Rule {
    /// A fault that strikes the next such call, and no other.
    pub fn once(call: &str, fault: Fault) -> Self {
        Self {
            times: Some(1),
            ..Self::always(call, fault)
        }
    }

    /// A fault that strikes each such call.
    pub fn always(call: &str, fault: Fault) -> Self {
        Self {
            call: call.to_owned(),
            fault,
            skip: 0,
            times: None,
            probability: None,
            account: None,
        }
    }

    /// A fault that strikes such calls with a probability.
    pub fn sometimes(call: &str, probability: f64, fault: Fault) -> Self {
        Self {
            probability: Some(probability),
            ..Self::always(call, fault)
        }
    }

    /// The same after so many calls have passed.
    #[must_use]
    pub fn skipping(mut self, calls: u32) -> Self {
        self.skip = calls;
        self
    }

    fn strikes(&mut self, call: &Call, account: Option<&str>, chance: &mut Chance) -> bool {
        if !call.is_meant_by(&self.call) || self.times == Some(0) {
            return false;
        }
        if self
            .account
            .as_deref()
            .is_some_and(|wanted| Some(wanted) != account)
        {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if self
            .probability
            .is_some_and(|probability| !chance.hits(probability))
        {
            return false;
        }
        if let Some(times) = &mut self.times {
            *times -= 1;
        }
        true
    }
}

/// The faults of one cloud.
#[derive(Clone, Debug, Default)]
pub struct Faults(Vec<Rule>);

impl Faults {
    /// Adds one.
    pub fn add(&mut self, rule: Rule) {
        self.0.push(rule);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Forgets the rules of one account.
    pub fn clear_of(&mut self, account: &str) {
        self.0.retain(|rule| rule.account.as_deref() != Some(account));
    }

    /// Rules that have not struck as often as they should.
    pub fn pending(&self) -> Vec<&Rule> {
        self.0
            .iter()
            .filter(|rule| rule.times.is_some_and(|times| times > 0))
            .collect()
    }

    /// The faults that strike this call: any latency, and at most one of the others.
    pub fn strike(&mut self, call: &Call, account: Option<&str>, chance: &mut Chance) -> Struck {
        let mut struck = Struck::default();
        for rule in &mut self.0 {
            let is_latency = matches!(rule.fault, Fault::Latency { .. });
            if (!is_latency && struck.fault.is_some()) || !rule.strikes(call, account, chance) {
                continue;
            }
            match &rule.fault {
                Fault::Latency { millis } => {
                    struck.latency += SignedDuration::from_millis(i64::try_from(*millis).unwrap_or(i64::MAX));
                }
                other => struck.fault = Some(other.clone()),
            }
        }
        self.0.retain(|rule| rule.times != Some(0));
        struck
    }
}

/// What strikes one call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Struck {
    /// How long the answer takes.
    pub latency: SignedDuration,
    /// What goes wrong.
    pub fault: Option<Fault>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::cloud::Effect;

    fn strike(faults: &mut Faults, name: &'static str, effect: Effect) -> Option<Fault> {
        faults
            .strike(&Call::new(name, effect), Some("a"), &mut Chance::new(1))
            .fault
    }

    #[test]
    fn a_fault_strikes_the_calls_it_names_as_often_as_it_says() {
        let mut faults = Faults::default();
        faults.add(Rule::once("create", Fault::NoCapacity).skipping(1));
        assert_eq!(strike(&mut faults, "instances.list", Effect::Read), None);
        assert_eq!(strike(&mut faults, "instances.create", Effect::Create), None);
        assert_eq!(
            strike(&mut faults, "instances.create", Effect::Create),
            Some(Fault::NoCapacity)
        );
        assert_eq!(strike(&mut faults, "instances.create", Effect::Create), None);
        assert!(faults.pending().is_empty());
    }

    #[test]
    fn a_fault_of_another_account_does_not_strike() {
        let mut faults = Faults::default();
        faults.add(Rule {
            account: Some("b".to_owned()),
            ..Rule::always("*", Fault::Expired)
        });
        assert_eq!(strike(&mut faults, "list", Effect::Read), None);
    }

    #[test]
    fn a_fault_is_written_in_json_as_the_control_api_takes_it() {
        let rule: Rule = serde_json::from_str(
            r#"{"call":"create","fault":{"server":{"status":500,"when":"after"}},"times":1}"#,
        )
        .unwrap();
        assert_eq!(
            rule,
            Rule::once(
                "create",
                Fault::Server {
                    status: 500,
                    when: When::After
                }
            )
        );
        let reshaped: Fault = serde_json::from_str(r#"{"reshaped":{"field":"id","to":null}}"#).unwrap();
        assert_eq!(reshaped.name(), "reshaped");
        assert_eq!(rule.fault.name(), "server");
        assert_eq!(Fault::NoCapacity.name(), "no-capacity");
        let boot = serde_json::to_string(&Fault::Boot(BootPlan::takes(3))).unwrap();
        assert_eq!(
            serde_json::from_str::<Fault>(&boot).unwrap(),
            Fault::Boot(BootPlan::takes(3))
        );
    }
}
