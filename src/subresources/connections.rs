//! Decides which connections a server keeps when more come than it has room for.
//!
//! Any client that reaches a port may open connections. So connections of *anonymous* clients,
//! which have not authenticated, count apart: without room for one more, the oldest connection of
//! the address with the most is given up. So a Pod that opens any number of connections only takes
//! room from itself, and never from a *known* client: a client that showed a certificate, or a
//! token that the API server accepted.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Most connections of a server at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most connections of known clients. One more is closed; its client sees that and tries again.
    pub known: usize,
    /// Most other connections, including those in their TLS handshake. For one more, another one
    /// is closed.
    pub anonymous: usize,
}

/// The connections of a server. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Connections(Arc<Mutex<Table>>);

#[derive(Debug)]
struct Table {
    limits: Limits,
    next: u64,
    anonymous: BTreeMap<u64, Anonymous>,
    known: BTreeSet<u64>,
}

#[derive(Debug)]
struct Anonymous {
    address: IpAddr,
    given_up: CancellationToken,
}

impl Table {
    /// The oldest connection of the address that has the most; among several such addresses, the
    /// oldest connection of them all. Numbers grow, so the first of an address is its oldest.
    fn expendable(&self) -> Option<u64> {
        let mut counts: HashMap<IpAddr, (usize, u64)> = HashMap::new();
        for (number, connection) in &self.anonymous {
            counts.entry(connection.address).or_insert((0, *number)).0 += 1;
        }
        let busiest = counts.values().map(|(count, _)| *count).max()?;
        let oldest = counts.values().filter(|(count, _)| *count == busiest);
        oldest.map(|(_, first)| *first).min()
    }
}

impl Connections {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Arc::new(Mutex::new(Table {
            limits,
            next: 0,
            anonymous: BTreeMap::new(),
            known: BTreeSet::new(),
        })))
    }

    fn with<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        change(&mut self.0.lock())
    }

    /// Takes a connection in, and gives up another if there is no room.
    pub(crate) fn admit(&self, address: IpAddr) -> Seat {
        let given_up = CancellationToken::new();
        let number = self.with(|table| {
            let number = table.next;
            table.next += 1;
            let connection = Anonymous {
                address,
                given_up: given_up.clone(),
            };
            table.anonymous.insert(number, connection);
            if table.anonymous.len() > table.limits.anonymous
                && let Some(expendable) = table.expendable()
                && let Some(connection) = table.anonymous.remove(&expendable)
            {
                connection.given_up.cancel();
            }
            number
        });
        Seat {
            given_up,
            standing: Standing {
                number,
                connections: self.clone(),
            },
        }
    }
}

/// The place of one connection; dropped, it makes room.
#[derive(Debug)]
pub(crate) struct Seat {
    /// Cancelled when the connection must make room for another.
    pub(crate) given_up: CancellationToken,
    pub(crate) standing: Standing,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let number = self.standing.number;
        self.standing.connections.with(|table| {
            table.anonymous.remove(&number);
            table.known.remove(&number);
        });
    }
}

/// Whether a connection's client is known. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Standing {
    number: u64,
    connections: Connections,
}

impl Standing {
    /// Notes that the connection's client is known from now on; `false` where there is no room for
    /// one more known client, or the connection was given up already.
    pub fn vouch(&self) -> bool {
        self.connections.with(|table| {
            if table.known.contains(&self.number) {
                return true;
            }
            let is_room = table.known.len() < table.limits.known;
            let is_here = is_room && table.anonymous.remove(&self.number).is_some();
            if is_here {
                table.known.insert(self.number);
            }
            is_here
        })
    }

    /// Whether its client is known.
    pub(crate) fn is_known(&self) -> bool {
        self.connections.with(|table| table.known.contains(&self.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        known: 2,
        anonymous: 3,
    };

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn kept(seats: &[Seat]) -> Vec<bool> {
        seats.iter().map(|seat| !seat.given_up.is_cancelled()).collect()
    }

    #[test]
    fn whoever_opens_the_most_connections_loses_the_oldest_of_them() {
        let connections = Connections::new(LIMITS);
        let mut seats = vec![connections.admit(address(1))];
        seats.extend((0..4).map(|_| connections.admit(address(2))));
        assert_eq!(kept(&seats), [true, false, false, true, true]);
        // The oldest of all, where each address has as many.
        seats.push(connections.admit(address(3)));
        assert_eq!(kept(&seats), [true, false, false, false, true, true]);
        seats.push(connections.admit(address(4)));
        assert_eq!(kept(&seats), [false, false, false, false, true, true, true]);
    }

    #[test]
    fn known_clients_are_never_given_up_and_have_a_limit_of_their_own() {
        let connections = Connections::new(LIMITS);
        let known: Vec<Seat> = (0..2).map(|_| connections.admit(address(1))).collect();
        assert!(known.iter().all(|seat| seat.standing.vouch()));
        let flood: Vec<Seat> = (0..50).map(|_| connections.admit(address(1))).collect();
        assert_eq!(kept(&known), [true, true]);
        assert_eq!(
            flood.iter().filter(|seat| !seat.given_up.is_cancelled()).count(),
            3
        );
        assert!(!flood[49].standing.vouch(), "there is no room for a third");
        drop(known);
        assert!(flood[49].standing.vouch() && flood[49].standing.vouch());
        assert!(!flood[0].standing.vouch(), "it was given up already");
    }

    #[test]
    fn nothing_is_kept_of_a_connection_that_has_ended() {
        let connections = Connections::new(LIMITS);
        let seats: Vec<Seat> = (0..9).map(|n| connections.admit(address(n))).collect();
        seats[8].standing.vouch();
        drop(seats);
        connections.with(|table| assert!(table.anonymous.is_empty() && table.known.is_empty()));
    }
}
