//! An order for tests; those of the clouds read this file too.

use skyward_core::{Mark, Order};

/// An order, of the machine that the recorded lists have.
pub(crate) fn order() -> Order {
    Order {
        mark: Mark {
            cluster: "c-uid".into(),
            namespace: "ml".into(),
            pool: "train".into(),
            pool_uid: "p-uid".into(),
            machine: "train-0-1".into(),
            machine_uid: "m-uid".into(),
            slot: 0,
            attempt: 1,
        },
        authorized_key: "ssh-ed25519 AAAA pool's\n".into(),
        boot_script: "mkdir -p /run/skyward\n( sleep 5 ) &\n".into(),
        ..Order::default()
    }
}
