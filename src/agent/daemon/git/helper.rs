//! The process that fetches: it has the rights of a user that owns nothing else, limits for everything that a
//! hostile server could use up, and the credential. It ends with the daemon that started it, and with each call.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::fd::AsFd,
};

use nix::{
    sys::{
        prctl,
        resource::{Resource, setrlimit},
        signal::{Signal, kill},
        stat::{Mode, umask},
    },
    unistd::{Gid, Pid},
};
use skyward_bundle::Selection;

use super::{
    super::{exec, memory},
    collect::{self, Made},
    fault::Fault,
    order::{Order, Place, Verdict},
    repository::Repository,
};
use crate::protocol::{FETCH, MAX_MESSAGE_BYTES};

/// Bytes of memory that git, or one of its programs, may map.
const MEMORY: u64 = 3 * 1024 * 1024 * 1024;

/// Standard input brings the order in one line and stays open as long as somebody waits for the answer, which
/// goes to standard output.
pub(in crate::daemon) fn main() -> anyhow::Result<()> {
    let mut daemon = BufReader::new(File::from(io::stdin().as_fd().try_clone_to_owned()?));
    let mut line = Vec::new();
    daemon
        .by_ref()
        .take(2 * MAX_MESSAGE_BYTES as u64)
        .read_until(b'\n', &mut line)?;
    let (order, place): (Order, Place) = serde_json::from_slice(&line)?;
    drop(line);
    let answer = take_on(&place).and_then(|()| {
        std::thread::spawn(move || end_with(daemon));
        fetched(&order, &place)
    });
    let mut output = io::stdout().lock();
    match answer {
        Ok((commit, made)) => {
            say(&mut output, &Verdict::Commit(commit))?;
            made.give(&mut output)?;
        }
        Err(fault) => say(&mut output, &fault.into())?,
    }
    Ok(())
}

fn say(output: &mut impl Write, verdict: &Verdict) -> io::Result<()> {
    serde_json::to_writer(&mut *output, verdict)?;
    output.write_all(b"\n")
}

fn take_on(place: &Place) -> Result<(), Fault> {
    memory::go_first();
    let seconds = FETCH.as_secs();
    for (resource, most) in [
        (Resource::RLIMIT_FSIZE, place.most_bytes),
        (Resource::RLIMIT_AS, MEMORY),
        (Resource::RLIMIT_CPU, seconds),
    ] {
        setrlimit(resource, most, most)?;
    }
    if let Some((uid, gid, groups)) = &place.identity {
        let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
        exec::take_on(*uid, *gid, &groups)?;
    }
    umask(Mode::from_bits_truncate(0o077));
    // Ssh, which has our user, opens the key in our memory: the kernel allows that only of a process like this.
    prctl::set_dumpable(true)?;
    Ok(())
}

/// Ends this process and all that it started, once nobody waits for the answer.
fn end_with(mut daemon: impl Read) {
    let _ = daemon.read(&mut [0]);
    let _ = kill(Pid::from_raw(0), Signal::SIGKILL);
}

fn fetched(order: &Order, place: &Place) -> Result<(String, Made), Fault> {
    let selection = selection(order)?;
    let repository = Repository::make(order, place)?;
    let commit = repository.commit()?;
    let is_selected = |path: &str| selection.takes(path);
    let made = collect::bundle(&repository, &commit, &order.path, is_selected, &place.folder)?;
    Ok((commit, made))
}

/// Which files of the folder are meant. It is made here, and not by the daemon: patterns are words of users, too.
fn selection(order: &Order) -> Result<Selection, Fault> {
    Selection::new(&order.include, &order.exclude).map_err(|error| {
        Fault::Invalid(format!(
            "include and exclude of the source: {error}; create another Task"
        ))
    })
}
