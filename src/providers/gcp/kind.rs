//! Types of machines with their GPUs, as the text that Offers and orders carry. Pure.

use std::fmt;

use super::wire::Instance;

/// A type of machine; its text is the offer's instance type, such as `g2-standard-4`, or
/// `n1-standard-8+nvidia-tesla-t4x1` where GPUs are added to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The machine type.
    pub machine: String,
    /// The GPUs that are added to it: their type, and how many.
    pub added: Option<(String, u32)>,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.machine)?;
        match &self.added {
            Some((name, count)) => write!(f, "+{name}x{count}"),
            None => Ok(()),
        }
    }
}

impl Kind {
    /// A type from its text.
    pub fn parse(text: &str) -> Option<Self> {
        let is_name = |name: &str| {
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            !name.is_empty() && name.len() <= 63 && name.bytes().all(plain)
        };
        let (machine, added) = match text.split_once('+') {
            None => (text, None),
            Some((machine, added)) => {
                let (name, count) = added.rsplit_once('x')?;
                let count: u32 = count.parse().ok().filter(|count| *count > 0)?;
                (machine, Some((name.to_owned(), count)))
            }
        };
        let named = added.as_ref().is_none_or(|(name, _)| is_name(name));
        (is_name(machine) && named).then(|| Self {
            machine: machine.to_owned(),
            added,
        })
    }

    /// What an instance was rented as.
    pub fn of(instance: &Instance) -> Self {
        let added = instance.guest_accelerators.first();
        let machine = tail(&instance.machine_type);
        Self {
            machine: machine.to_owned(),
            // GPUs that belong to a machine type may be told as if they were added.
            added: added
                .filter(|_| machine.starts_with("n1-"))
                .map(|gpus| (tail(&gpus.accelerator_type).to_owned(), gpus.accelerator_count)),
        }
    }

    /// The type of disk that such a machine starts from: the newest ones take no other.
    pub fn disk_type(&self) -> &'static str {
        const NEWEST: [&str; 3] = ["a3-ultragpu-", "a4", "g4-"];
        let is_new = NEWEST.iter().any(|start| self.machine.starts_with(start));
        if is_new {
            "hyperdisk-balanced"
        } else {
            "pd-balanced"
        }
    }
}

/// The last part of an address: its beginning may be that of another name of the API.
pub fn tail(address: &str) -> &str {
    address.rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
#[path = "tests/kind.rs"]
mod tests;
