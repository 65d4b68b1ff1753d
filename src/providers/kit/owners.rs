//! Marks where names of machines are short: the name of a machine has the UID of its Machine, slot and attempt, and a
//! reference to its Pool in 40 letters and digits; the comment of the Pool's key, which is in the account before the
//! first machine and as long as one is there, says which Pool of which installation that is.
//!
//! A machine whose Pool has no key in the account is nobody's, so [`Owners`] remembers what references mean.

use std::time::Duration;

use skyward_core::{ErrorKind, Mark, Order, ProviderError, order::machine_name};

use crate::{
    Cache, digest,
    marks::{compacted, expanded},
    shared::{SSH_KEYS, Shared},
};

/// How the names of machines begin.
const PREFIX: &str = "sky-";
/// The word in a key's comment before its Pool.
const WORD: &str = "skyward";
/// Base of the numbers in names, whose letters may become capitals.
const BASE: u32 = 36;
/// Digits of the reference, the UID, the slot and the attempt: 40 characters with the prefix.
const DIGITS: [usize; 4] = [5, 25, 2, 4];
/// How long a reference is remembered: a list may lack its key for a while.
const REMEMBERED: Duration = Duration::from_hours(24);
/// Most references that are remembered.
const REFERENCES: usize = 4096;

/// The Pool that keys and machines belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    cluster: String,
    pool_uid: String,
    namespace: String,
    pool: String,
}

impl Owner {
    /// The Pool of a machine.
    pub fn of(mark: &Mark) -> Self {
        Self {
            cluster: mark.cluster.clone(),
            pool_uid: mark.pool_uid.clone(),
            namespace: mark.namespace.clone(),
            pool: mark.pool.clone(),
        }
    }

    /// The Pool of a key, if it is the key of a Pool.
    pub fn read(key: &str) -> Option<Self> {
        let mut words = key.split_whitespace().skip(2);
        if words.next()? != WORD {
            return None;
        }
        let mut word = || words.next().map(str::to_owned);
        let owner = Self {
            cluster: word()?,
            pool_uid: word()?,
            namespace: word()?,
            pool: word()?,
        };
        words.next().is_none().then_some(owner)
    }

    /// A public key with its Pool as the comment.
    pub fn key(&self, key: &str) -> String {
        let key: Vec<&str> = key.split_whitespace().take(2).collect();
        let owner = [&self.cluster, &self.pool_uid, &self.namespace, &self.pool].map(String::as_str);
        format!("{} {WORD} {}", key.join(" "), owner.join(" "))
    }

    /// The reference in the names of its machines. Two Pools have the same one by chance only: one in sixty millions.
    pub fn reference(&self) -> String {
        let [reference, uid, ..] = DIGITS;
        let all = digest(&format!("{} {}", self.cluster, self.pool_uid), 32);
        let all = u128::from_str_radix(&all, 16).ok();
        let all = all.and_then(|number| written(number, uid)).unwrap_or_default();
        all.get(uid - reference..).unwrap_or_default().to_owned()
    }
}

/// What the name of a machine says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    reference: String,
    machine_uid: String,
    slot: u32,
    attempt: u32,
}

impl Named {
    /// The name of a machine. A mark that does not fit is an error: a cut one could not be read.
    pub fn write(mark: &Mark) -> Result<String, ProviderError> {
        let [_, uid, slot, attempt] = DIGITS;
        let name = || {
            let number = u128::from_str_radix(&compacted(&mark.machine_uid)?, 16).ok()?;
            let parts = [
                written(number, uid)?,
                written(mark.slot.into(), slot)?,
                written(mark.attempt.into(), attempt)?,
            ];
            Some(format!(
                "{PREFIX}{}{}",
                Owner::of(mark).reference(),
                parts.concat()
            ))
        };
        name().ok_or_else(|| {
            let what = format!(
                "no name at this cloud holds the UID {}, slot {} and attempt {}. Make another Pool, whose attempts begin at 1",
                mark.machine_uid, mark.slot, mark.attempt
            );
            ProviderError::new(ErrorKind::Unsupported, "name the machine", what)
        })
    }

    /// What a name says, if it is one of ours.
    pub fn read(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let mut rest = name.strip_prefix(PREFIX)?;
        let [reference, uid, slot, attempt] = DIGITS.map(|digits| {
            let (part, after) = rest.split_at_checked(digits)?;
            rest = after;
            let is_digit = |c: char| c.is_digit(BASE);
            part.chars().all(is_digit).then(|| part.to_owned())
        });
        if !rest.is_empty() {
            return None;
        }
        let number = |part: Option<String>| u128::from_str_radix(&part?, BASE).ok();
        Some(Self {
            reference: reference?,
            machine_uid: expanded(&format!("{:032x}", number(uid)?))?,
            slot: u32::try_from(number(slot)?).ok()?,
            attempt: u32::try_from(number(attempt)?).ok()?,
        })
    }

    /// The mark of the machine, which belongs to this Pool.
    pub fn mark(self, owner: &Owner) -> Mark {
        let Owner {
            cluster,
            pool_uid,
            namespace,
            pool,
        } = owner.clone();
        Mark {
            machine: machine_name(&pool, &pool_uid, self.slot, self.attempt),
            cluster,
            namespace,
            pool,
            pool_uid,
            machine_uid: self.machine_uid,
            slot: self.slot,
            attempt: self.attempt,
        }
    }
}

/// A number in so many digits; `None` for one that has more.
fn written(mut number: u128, digits: usize) -> Option<String> {
    let mut text = vec!['0'; digits];
    for digit in text.iter_mut().rev() {
        let last = u32::try_from(number % u128::from(BASE)).ok()?;
        *digit = char::from_digit(last, BASE)?;
        number /= u128::from(BASE);
    }
    (number == 0).then(|| text.into_iter().collect())
}

/// The keys of Pools in an account, and what references to them mean.
pub struct Owners {
    keys: Shared,
    /// `None` where two Pools have the same reference.
    known: Cache<String, Option<Owner>>,
}

impl Owners {
    /// Over the keys of an account, whose lists show them with their comments.
    pub fn new(keys: Shared) -> Self {
        let known = Cache::new(REMEMBERED, REFERENCES);
        Self { keys, known }
    }

    /// The keys.
    pub const fn keys(&self) -> &Shared {
        &self.keys
    }

    /// The marks of machines by their names, which are read before this: the key of a machine is in the account
    /// earlier than the machine.
    pub async fn marks(&self, names: Vec<&str>) -> Result<Vec<Option<Mark>>, ProviderError> {
        let named: Vec<Option<Named>> = names.into_iter().map(Named::read).collect();
        let is_unknown = |named: &Named| self.known.known(&named.reference).is_none();
        if named.iter().flatten().any(is_unknown) {
            let keys = self.keys.entries().await?;
            let texts = keys.iter().filter_map(|key| key.content.as_deref());
            texts
                .filter_map(Owner::read)
                .for_each(|owner| self.remember(owner));
        }
        let mark = |named: Option<Named>| {
            let named = named?;
            let owner = self.known.known(&named.reference)?;
            Some(named.mark((*owner).as_ref()?))
        };
        Ok(named.into_iter().map(mark).collect())
    }

    /// Puts the key of the order's Pool into the account, so that the machine's name says whose it is.
    pub async fn register(&self, order: &Order) -> Result<(), ProviderError> {
        let owner = Owner::of(&order.mark);
        let key = owner.key(&order.authorized_key);
        let stored = self.keys.holding(order, &key).await?;
        // The store of the cloud vouches for one that it just added.
        let kept = stored.content.as_ref();
        if kept.is_none_or(|kept| Owner::read(kept).as_ref() == Some(&owner)) {
            self.remember(owner);
            return Ok(());
        }
        let what = format!(
            "the SSH key {} is listed without its comment, by which the machines of its Pool are known. If it stays so, delete the key in the console of the cloud",
            stored.name
        );
        Err(ProviderError::new(ErrorKind::Transient, SSH_KEYS.add, what))
    }

    fn remember(&self, owner: Owner) {
        let reference = owner.reference();
        let known = self.known.known(&reference);
        let is_alone = known.is_none_or(|known| (*known).as_ref() == Some(&owner));
        self.known.insert(reference, is_alone.then_some(owner));
    }
}

#[cfg(test)]
mod tests;
