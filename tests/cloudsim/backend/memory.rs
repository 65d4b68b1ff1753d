//! Machines that are nothing but a state: reachable as soon as their scripted boot time is over.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::backend::{Backend, Command, Report, Reports, SshWay};
use crate::core::machine::Endpoint;

/// The back end of wide tests: no machine at all, but an address for each.
#[derive(Debug)]
pub struct Memory {
    reports: Reports,
    next: AtomicU32,
}

impl Memory {
    /// A back end that tells what it does here.
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
        };
        self.reports.tell(Report::Reachable { machine, endpoint });
    }
}
