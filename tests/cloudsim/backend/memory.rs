//! Machines that are state in memory alone: reachable as soon as their scripted boot time is over.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::backend::{Backend, Command, Report, Reports, SshWay};
use crate::core::machine::Endpoint;

/// The back end of tests with many machines: there are no real ones, but each has an address.
#[derive(Debug)]
pub struct Memory {
    reports: Reports,
    next: AtomicU32,
}

impl Memory {
    /// A back end that sends its reports to `reports`.
    pub fn new(reports: Reports) -> Self {
        Self {
            reports,
            next: AtomicU32::new(1),
        }
    }
}

impl Backend for Memory {
    fn carry_out(&self, command: Command) {
        let Command::Start(machine, boot) = command else {
            return;
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // 198.18.0.0/15 is set aside for tests of network devices: no such host answers.
        let endpoint = match boot.ssh {
            SshWay::Direct => Endpoint {
                address: format!("198.18.{}.{}", (number >> 8) & 0xff, number & 0xff),
                port: 22,
            },
            SshWay::Mapped => Endpoint {
                address: "198.19.0.1".to_owned(),
                port: 10_000 + (number % 50_000) as u16,
            },
            SshWay::At(port) => Endpoint {
                address: "198.19.0.1".to_owned(),
                port,
            },
        };
        self.reports.tell(Report::Reachable { machine, endpoint });
    }
}
