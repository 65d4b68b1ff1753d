//! From the prepared run to a process that is forked from a warm parent. Whatever fails before the order is
//! whole ends with `None`, and a fresh interpreter takes the run: nothing of it has been executed.
//!
//! The shim connects to the keeper of the parents ([`keeper`](super::keeper)), which hands the connection to a new
//! fork and says its process id. The order goes through that connection to the fork alone. From then on only the
//! keeper speaks there, once: how the fork ended. While the connection is open the keeper leaves a dead fork
//! unreaped, so that its process id and its group are nobody else's.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, ErrorKind, IoSlice, Read, Write},
    net::Shutdown,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::{Duration, Instant},
};

use nix::{
    fcntl::OFlag,
    sys::socket::{ControlMessage, MsgFlags, sendmsg},
    unistd::{Pid, pipe2},
};

use super::{
    super::{
        files,
        home::{Home, RunFolder},
        remains::Forked,
    },
    prepare::{self, Prepared},
    spawn::Work,
    take_line,
    verdict::Status,
};
use crate::{
    log::Stream,
    protocol::{RunSpec, run_spec},
};

/// How much longer than a fresh interpreter a run may take to start because of a parent that does not answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// More than the keeper says.
const LONGEST: usize = 256;
/// Beginnings of variables that an interpreter or the C library reads when it starts, and its values differ from
/// those of a parent.
const READ_AT_START: [&str; 5] = ["PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_"];
/// Beginnings of variables that packages read when they are imported. The number of threads is not among them: a
/// fork sets it anew.
const READ_AT_IMPORT: [&str; 30] = [
    "XDG_",
    "OPENSSL_",
    "OPENCV_",
    "NUMPY_",
    "KERAS_",
    "ARROW_",
    "JE_ARROW_",
    "_RJEM_MALLOC_",
    "POLARS_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "BLIS_",
    "NUMEXPR_",
    "NUMBA_",
    "NPY_",
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "TF_",
    "XLA_",
    "JAX_",
    "HF_",
    "TRANSFORMERS_",
    "MPL",
    "CUDA_MODULE_",
    "ROCM_",
    "NEURON_RT_LOG",
];
const THREADS: &str = "_NUM_THREADS";

/// The keeper of a run's main process.
#[derive(Debug)]
pub(super) struct Kept {
    connection: UnixStream,
    received: Vec<u8>,
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

impl Kept {
    /// How the process ended, once the keeper has said it. An error: the keeper is gone.
    pub(super) fn ended(&mut self) -> io::Result<Option<Status>> {
        let mut buffer = [0; LONGEST];
        loop {
            if let Some(line) = take_line(&mut self.received) {
                return Ok(parse(&line));
            }
            match self.connection.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) if self.received.len() < LONGEST => self.received.extend(&buffer[..count]),
                Ok(_) => return Err(ErrorKind::InvalidData.into()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

/// What the keeper says of an end.
pub(super) fn said(status: Status) -> String {
    match status {
        Status::Exited(code) => format!("exited {code}\n"),
        Status::Signaled(signal) => format!("signaled {signal}\n"),
    }
}

fn parse(line: &str) -> Option<Status> {
    let (how, number) = line.split_once(' ')?;
    let number = number.parse().ok()?;
    match how {
        "exited" => Some(Status::Exited(number)),
        "signaled" => Some(Status::Signaled(number)),
        _ => None,
    }
}

/// The connection through which a fork was asked for. Dropping it ends the fork.
#[derive(Debug)]
pub(super) struct Asked(UnixStream);

/// Asks the parent behind that socket for a fork, which comes while the run is prepared.
pub(super) fn ask(socket: &Path, spec: &RunSpec) -> Option<Asked> {
    if !is_forkable(spec) {
        return None;
    }
    connect(socket).ok().map(Asked)
}

/// A function, in a directory of its own: a Task's directory may lie on a hanging mount.
const fn is_forkable(spec: &RunSpec) -> bool {
    matches!(spec.work, Some(run_spec::Work::Function(_))) && spec.working_dir.is_empty()
}

/// Starts the work as the fork that was asked for.
pub(super) fn start(
    asked: Asked,
    home: &Home,
    folder: &RunFolder,
    prepared: &Prepared,
    spec: &RunSpec,
) -> Option<(Work, Kept)> {
    let mut parents = prepare::base(home, &prepared.user);
    parents.insert("PYTHONPATH".into(), prepare::python_path(home, folder, spec));
    if !fits(spec, &prepared.environment, &parents, prepared.arguments.first()?) {
        return None;
    }
    let started = fork(asked, folder, prepared, spec);
    if started.is_none() {
        // A fresh interpreter takes the run, and is no fork.
        let _ = std::fs::remove_file(folder.forked());
    }
    started
}

/// Whether a fork finds all that a fresh interpreter would find. The parent has the variables `parents`.
fn fits(
    spec: &RunSpec,
    environment: &BTreeMap<String, String>,
    parents: &BTreeMap<String, String>,
    program: &str,
) -> bool {
    let is_read =
        |name: &str, beginnings: &[&str]| beginnings.iter().any(|beginning| name.starts_with(beginning));
    is_forkable(spec)
        && environment.iter().all(|(name, value)| match name.as_str() {
            // Another value is the Task's, or the image's.
            "PYTHONPATH" | "PYTHONUNBUFFERED" | "LANG" | "HOME" => parents.get(name) == Some(value),
            // A program without a folder is looked for there.
            "PATH" => program.contains('/') || parents.get(name) == Some(value),
            name if is_read(name, &READ_AT_START) => false,
            name if spec.preload.is_empty() || name.ends_with(THREADS) => true,
            name => !is_read(name, &READ_AT_IMPORT),
        })
}

fn fork(
    Asked(connection): Asked,
    folder: &RunFolder,
    prepared: &Prepared,
    spec: &RunSpec,
) -> Option<(Work, Kept)> {
    let results = (prepared.result.as_ref()?, prepared.outcome.as_ref()?);
    let values = prepared.values.as_ref()?;
    let order = serde_json::to_vec(&prepared.order()).ok()?;
    let mut received = Vec::new();
    let pid = forked(&connection, &mut received)?;
    // From here on the daemon, which ends this run where its shim cannot, finds the fork, which has no mark in its environment.
    Forked::of(pid.as_raw())?.leave(folder).ok()?;
    let mut pipes = Vec::new();
    let mut ends: Vec<OwnedFd> = Vec::new();
    for (stream, choice) in [(Stream::Stdout, &spec.stdout), (Stream::Stderr, &spec.stderr)] {
        if choice == "none" {
            ends.push(File::options().write(true).open("/dev/null").ok()?.into());
        } else {
            let (ours, theirs) = pipe2(OFlag::O_CLOEXEC).ok()?;
            pipes.push((stream, ours));
            ends.push(theirs);
        }
    }
    let mut descriptors: Vec<i32> = ends.iter().map(AsRawFd::as_raw_fd).collect();
    descriptors.extend([results.0.as_raw_fd(), results.1.as_raw_fd()]);
    descriptors.push(values.theirs.as_raw_fd());
    send(&connection, &order, &descriptors).ok()?;
    // The run has begun: nothing below may take the way of a fresh interpreter.
    let _ = connection.set_nonblocking(true);
    let kept = Kept { connection, received };
    Some((Work { pid, pipes }, kept))
}

fn connect(socket: &Path) -> io::Result<UnixStream> {
    let connection = UnixStream::connect(files::short(socket)?.name())?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    Ok(connection)
}

/// Waits for the process id.
fn forked(mut connection: &UnixStream, received: &mut Vec<u8>) -> Option<Pid> {
    let until = Instant::now() + PATIENCE;
    let mut buffer = [0; LONGEST];
    loop {
        if let Some(line) = take_line(received) {
            let pid: i32 = line.strip_prefix("forked ")?.parse().ok()?;
            return (pid > 1).then(|| Pid::from_raw(pid));
        }
        if Instant::now() >= until || received.len() >= LONGEST {
            return None;
        }
        match connection.read(&mut buffer) {
            Ok(0) => return None,
            Ok(count) => received.extend(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// Sends the order. An error: it is not whole, and its fork will not begin.
fn send(mut connection: &UnixStream, order: &[u8], descriptors: &[i32]) -> io::Result<()> {
    let sent = sendmsg::<()>(
        connection.as_raw_fd(),
        &[IoSlice::new(order)],
        &[ControlMessage::ScmRights(descriptors)],
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    connection.write_all(&order[sent..])?;
    // The run has begun, whatever this says.
    let _ = connection.shutdown(Shutdown::Write);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Function, Script};

    fn function(preload: &[&str]) -> RunSpec {
        RunSpec {
            work: Some(run_spec::Work::Function(Function::default())),
            preload: preload.iter().map(|&name| name.to_owned()).collect(),
            ..RunSpec::default()
        }
    }

    fn environment(more: &[(&str, &str)]) -> BTreeMap<String, String> {
        let base = [
            ("PATH", "/bin"),
            ("HOME", "/home/worker"),
            ("LANG", "C.UTF-8"),
            ("PYTHONUNBUFFERED", "1"),
            ("PYTHONPATH", "/p"),
            ("SKYWARD_RUN_FOLDER", "/r"),
        ];
        base.iter()
            .chain(more)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn is_fit(spec: &RunSpec, more: &[(&str, &str)], program: &str) -> bool {
        fits(spec, &environment(more), &environment(&[]), program)
    }

    #[test]
    fn a_variable_that_was_read_before_the_run_was_known_asks_for_a_fresh_interpreter() {
        type Case = (
            &'static [&'static str],
            &'static [(&'static str, &'static str)],
            bool,
        );
        let cases: [Case; 14] = [
            (&[], &[], true),
            (
                &[],
                &[("TOKEN", "t"), ("OMP_DYNAMIC", "1"), ("PATH", "/mine")],
                true,
            ),
            (&[], &[("PYTHONHASHSEED", "1")], false),
            (&[], &[("PYTHONPATH", "/p:/mine")], false),
            (&[], &[("PYTHONUNBUFFERED", "")], false),
            (&[], &[("LD_LIBRARY_PATH", "/cuda")], false),
            (&[], &[("LC_ALL", "C")], false),
            (&[], &[("LANG", "C")], false),
            (&[], &[("HOME", "/mine")], false),
            (&["numpy"], &[("TMPDIR", "/mine")], true),
            (&["numpy"], &[("TOKEN", "t"), ("CUDA_VISIBLE_DEVICES", "1")], true),
            (&["numpy"], &[("OMP_NUM_THREADS", "4")], true),
            (&["numpy"], &[("OMP_DYNAMIC", "1")], false),
            (&["torch"], &[("PYTORCH_CUDA_ALLOC_CONF", "x")], false),
        ];
        for (preload, more, expected) in cases {
            let found = is_fit(&function(preload), more, "/venv/bin/python");
            assert_eq!(found, expected, "{preload:?} {more:?}");
        }
        assert!(is_fit(&function(&[]), &[], "python3"));
        assert!(!is_fit(&function(&[]), &[("PATH", "/mine")], "python3"));
    }

    #[test]
    fn only_a_function_in_a_directory_of_its_own_is_forked() {
        assert!(is_fit(&function(&[]), &[], "python3"));
        let elsewhere = RunSpec {
            working_dir: "/mnt".into(),
            ..function(&[])
        };
        let script = RunSpec {
            work: Some(run_spec::Work::Script(Script::default())),
            ..RunSpec::default()
        };
        for spec in [elsewhere, script, RunSpec::default()] {
            assert!(!is_fit(&spec, &[], "python3"));
        }
    }

    #[test]
    fn an_end_is_understood_as_it_was_said_also_in_pieces() {
        for status in [Status::Exited(0), Status::Exited(255), Status::Signaled(9)] {
            assert_eq!(parse(said(status).trim_end()), Some(status));
        }
        assert_eq!(parse("exited"), None);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut kept = Kept {
            connection: ours,
            received: Vec::new(),
        };
        assert_eq!(kept.ended().unwrap(), None);
        theirs.write_all(b"signa").unwrap();
        assert_eq!(kept.ended().unwrap(), None);
        theirs.write_all(b"led 11\n").unwrap();
        drop(theirs);
        assert_eq!(kept.ended().unwrap(), Some(Status::Signaled(11)));
        kept.ended().unwrap_err();
    }

    #[test]
    fn a_keeper_that_says_anything_else_is_not_believed() {
        for said in [
            "",
            "busy\n",
            "forked \n",
            "forked 1\n",
            "forked -5\n",
            &"x".repeat(1000),
        ] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(said.as_bytes()).unwrap();
            drop(theirs);
            assert_eq!(forked(&ours, &mut Vec::new()), None, "{said:?}");
        }
    }
}
