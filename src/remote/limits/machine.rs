//! What an agent says of itself and its machine.

use std::net::Ipv4Addr;

use super::{Broken, DIGEST_BYTES, ensure, name, number_of, words::cleaned};
use crate::{
    agent::{PROTOCOL_MAX, PROTOCOL_MIN},
    protocol::{ACCELERATORS, ADDRESSES, HelloReply, ID_BYTES, NAME_BYTES},
};

/// `namespace/name` of a Machine.
pub(super) const MACHINE_BYTES: usize = 2 * 253 + 1;
/// Name of a Linux user, or of a directory service's user.
pub(super) const USER_BYTES: usize = 256;

/// Cleans the output of the machine's programs, such as a version: agents of earlier versions
/// repeat all of it, and no machine is ended for that.
pub(crate) fn clean(reply: &mut HelloReply) {
    for text in std::iter::once(&mut reply.python).chain(&mut reply.accelerators) {
        let last = text.trim().lines().last().unwrap_or_default();
        *text = cleaned(last.trim(), NAME_BYTES);
    }
}

/// Checks what an agent says of itself and its machine.
pub(crate) fn hello(reply: &HelloReply) -> Result<(), Broken> {
    let HelloReply {
        protocol,
        agent_version,
        agent_digest,
        machine,
        boot_id,
        last_seq: _,
        // The limit of the message bounds it, and it is cleaned.
        python: _,
        accelerators,
        running: _,
        user,
        marks_replay: _,
        addresses,
        newest_epoch: _,
        epoch_proof,
        takes_bundles: _,
        fetches_git: _,
        takes_pickles: _,
        runs_items: _,
    } = reply;
    ensure((PROTOCOL_MIN..=PROTOCOL_MAX).contains(protocol), || {
        format!("version {protocol} of the protocol, which was not offered")
    })?;
    name("a version", agent_version, NAME_BYTES)?;
    name("a digest", agent_digest, DIGEST_BYTES)?;
    name("a machine's name", machine, MACHINE_BYTES)?;
    name("a boot id", boot_id, NAME_BYTES)?;
    name("a user's name", user, USER_BYTES)?;
    name("the proof of an epoch", epoch_proof, ID_BYTES)?;
    number_of("accelerators", accelerators.len(), ACCELERATORS)?;
    number_of("network interfaces", addresses.len(), ADDRESSES)?;
    for (interface, address) in addresses {
        name("a network interface's name", interface, NAME_BYTES)?;
        ensure(address.parse::<Ipv4Addr>().is_ok(), || {
            "an address of a network interface that is none".to_owned()
        })?;
    }
    Ok(())
}
