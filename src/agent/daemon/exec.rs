//! The last step before the work: a process of our program that takes on the user, the limits and
//! the directory of the run and then becomes the work. Its standard input is a socket to the shim,
//! which brings it the [`Order`]; the socket closes by itself when the step succeeds, and brings
//! the reason when not. The order is neither in the helper's arguments, which every user of the
//! machine can read, nor in its environment: the helper starts as root, and a Task's variables
//! (`LD_PRELOAD`) must not reach a program that runs as root.
//!
//! For most work the shim itself or the standard library can do this: then the shim is the last
//! step ([`prepare_parent`]), and one program less is loaded.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::Command,
};

use nix::{
    errno::Errno,
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::SigSet,
        stat::{Mode, umask},
    },
    unistd::{Gid, Pid, Uid, dup2_stdin, setgid, setgroups, setpgid, setuid},
};

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_ambient_set,
    configure_capability_in_ambient_set, set_capabilities, set_keep_capabilities,
};
use serde::{Deserialize, Serialize};

use super::users::User;

/// Processes and threads an unprivileged user may have on a small machine; more on one with
/// many cores, where one library alone may start a thread for each.
const LEAST_PROCESSES: u64 = 4096;
const PROCESSES_PER_CORE: u64 = 512;

/// Capabilities that permit little, and of which every container runtime leaves some to root. The kernel lets no
/// process look into one that has a capability more. The program that is guarded by them gives them up.
const GUARDS: CapabilitySet = CapabilitySet::BLOCK_SUSPEND
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::NET_BIND_SERVICE);

/// Longest order; a spec has its own, smaller limit.
const LONGEST_ORDER: u64 = 64 * 1024 * 1024;

/// The work that the helper becomes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
    pub(super) name: String,
    pub(super) directory: String,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) arguments: Vec<String>,
    /// Whether other processes of the user are kept from looking into the program from its first instruction on.
    pub(super) is_guarded: bool,
}

/// The helper, which is to be given its standard streams and an [`Order`].
pub(super) fn helper() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("skyward-agent").arg("exec").env_clear();
    command
}

/// Becomes the work. Returns only if that failed; the shim knows why by then.
pub(super) fn main() -> anyhow::Result<()> {
    let mut shim = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut order = Vec::new();
    Read::by_ref(&mut shim)
        .take(LONGEST_ORDER)
        .read_to_end(&mut order)?;
    let complaint = match serde_json::from_slice(&order) {
        Ok(order) => become_work(&order),
        Err(error) => format!("the agent's helper was not told what to start: {error}"),
    };
    let _ = shim.write_all(complaint.as_bytes());
    Ok(())
}

fn become_work(order: &Order) -> String {
    let Order {
        name,
        directory,
        environment,
        ..
    } = order;
    let Some((program, arguments)) = order.arguments.split_first() else {
        return "the agent's helper was given no program".to_owned();
    };
    let groups: Vec<Gid> = order.groups.iter().copied().map(Gid::from_raw).collect();
    let unguarded = |error: rustix::io::Errno| {
        format!("it cannot be guarded from other processes of user \"{name}\": {error}")
    };
    if order.is_guarded
        && let Err(error) = set_keep_capabilities(true)
    {
        return unguarded(error);
    }
    if let Err(error) = put_on(order.uid, order.gid, &groups) {
        return format!("it cannot run as user \"{name}\": {}", error.desc());
    }
    if order.is_guarded
        && let Err(error) = guard()
    {
        return unguarded(error);
    }
    if let Err(error) = std::env::set_current_dir(directory) {
        return match error.kind() {
            ErrorKind::NotFound => format!("its working directory {directory} does not exist on the machine"),
            ErrorKind::PermissionDenied => {
                format!("user \"{name}\" may not enter its working directory {directory}")
            }
            _ => format!("its working directory {directory} cannot be used: {error}"),
        };
    }
    let error = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(environment)
        .exec();
    match (error.kind(), error.raw_os_error().map(Errno::from_raw)) {
        (ErrorKind::NotFound, _) if program.contains('/') => {
            format!("there is no program {program} on the machine, or its interpreter is missing")
        }
        (ErrorKind::NotFound, _) => {
            let path = environment.get("PATH").map_or("", String::as_str);
            format!("there is no program \"{program}\" on the machine (looked in {path})")
        }
        (ErrorKind::PermissionDenied, _) => format!("\"{program}\" may not be executed by user \"{name}\""),
        (_, Some(Errno::E2BIG)) => {
            "its arguments and environment together are larger than the machine's limit".to_owned()
        }
        (_, Some(Errno::ENOEXEC)) => {
            format!("\"{program}\" is no program for this machine, and no script with a #! line")
        }
        (_, Some(Errno::EAGAIN)) => format!("user \"{name}\" has too many processes on the machine"),
        _ => format!("\"{program}\" did not start: {error}"),
    }
}

fn put_on(uid: u32, gid: u32, groups: &[Gid]) -> nix::Result<()> {
    let nothing = OwnedFd::from(File::open("/dev/null").map_err(|_| Errno::ENOENT)?);
    dup2_stdin(nothing)?;
    take_on(uid, gid, groups)
}

/// Whether this process can start a program that is guarded: root of a container may have no capability for that, and
/// some kernels of containers have no ambient ones.
pub(super) fn can_guard() -> bool {
    let is_held = capabilities(None).is_ok_and(|sets| sets.permitted.intersects(GUARDS));
    is_held && capability_is_in_ambient_set(CapabilitySet::AUDIT_WRITE).is_ok()
}

/// Keeps the guards, and no other capability, for the program that this process becomes. By now it has its user, and all
/// capabilities of root are permitted still.
fn guard() -> rustix::io::Result<()> {
    let guards = capabilities(None)?.permitted.intersection(GUARDS);
    if guards.is_empty() {
        return Err(rustix::io::Errno::PERM);
    }
    let sets = CapabilitySets {
        effective: guards,
        permitted: guards,
        inheritable: guards,
    };
    set_capabilities(None, sets)?;
    for capability in guards {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// Takes on a user, with the limits of its work.
pub(super) fn take_on(uid: u32, gid: u32, groups: &[Gid]) -> nix::Result<()> {
    // A group of its own, so that all of it can be signalled at once.
    setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    SigSet::empty().thread_set_mask()?;
    limit(uid)?;
    if Uid::effective().is_root() {
        put_on_groups(uid, groups)?;
        setgid(Gid::from_raw(gid))?;
        setuid(Uid::from_raw(uid))?;
    }
    Ok(())
}

/// Sets the limits that every process of the work inherits.
fn limit(uid: u32) -> nix::Result<()> {
    umask(Mode::from_bits_truncate(0o022));
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    if uid != 0 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let (_, hard) = getrlimit(Resource::RLIMIT_NPROC)?;
        let most = LEAST_PROCESSES.max(PROCESSES_PER_CORE * cores).min(hard);
        let _ = setrlimit(Resource::RLIMIT_NPROC, most, most);
    }
    Ok(())
}

fn put_on_groups(uid: u32, groups: &[Gid]) -> nix::Result<()> {
    match setgroups(groups) {
        // Some containers do not let even root change groups; root has no need to.
        Err(Errno::EPERM) if uid == 0 => Ok(()),
        other => other,
    }
}

/// Which user and group a child has.
pub(super) enum Identity {
    /// The user and groups of the shim.
    Own,
    /// Another user and group.
    Other(u32, u32),
}

/// Sets what a child inherits from the shim, and says which user and group the standard library has
/// to set in the child. `None`: only the helper can do it.
pub(super) fn prepare_parent(user: &User) -> Option<Identity> {
    let own = (Uid::effective().as_raw(), Gid::effective().as_raw());
    let is_root = own.0 == 0;
    let is_other = own != (user.uid, user.gid);
    // The standard library takes every group but the main one away from another user.
    if is_other && (!is_root || user.uid == 0 || user.groups.iter().any(|group| *group != user.gid)) {
        return None;
    }
    if is_root && !is_other {
        let groups: Vec<Gid> = user.groups.iter().copied().map(Gid::from_raw).collect();
        put_on_groups(user.uid, &groups).ok()?;
    }
    limit(user.uid).ok()?;
    Some(if is_other {
        Identity::Other(user.uid, user.gid)
    } else {
        Identity::Own
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_is_told_nothing_in_its_arguments_and_nothing_in_its_environment() {
        let helper = helper();
        assert_eq!(helper.get_args().collect::<Vec<_>>(), ["exec"]);
        assert_eq!(helper.get_envs().count(), 0);
        // The shim's own environment does not count either.
        assert!(format!("{helper:?}").starts_with("env -i "), "{helper:?}");
    }
}
