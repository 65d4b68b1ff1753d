//! Prepares a run: its user, its directory, an environment made from nothing, its sources on disk,
//! and the program with its arguments.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, ErrorKind, Read, Seek, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
};

use nix::{fcntl::OFlag, unistd::pipe2};

use super::{
    super::{exec, files, home::Home, log_files::value_limit, processes::RUN_VARIABLE, progress, users},
    RunFolder, places,
    sources::{Sources, give, make_working_directory},
    unpack::unpack,
    verdict::{Outcome, result_limit},
};
use crate::protocol::{Function, RunSpec, Script, VALUE_BYTES, run_spec::Work};

/// The default search path.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where programs put their temporary files.
const TEMPORARY: &str = "TMPDIR";
/// A longer description of the cluster is passed in a file: the kernel takes at most 128 KiB
/// for one variable.
const LONGEST_INFO: usize = 64 * 1024;
/// Items of one worker that run at the same time.
const MOST_THREADS: u32 = 1024;
/// The outcome is a short JSON object.
const LONGEST_OUTCOME: u64 = 64 * 1024;

/// Why work could not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) message: String,
    pub(super) no_room: bool,
}

impl Failure {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            no_room: false,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == ErrorKind::StorageFull {
            return Self {
                message: "the disk of the machine is full".into(),
                no_room: true,
            };
        }
        Self::new(format!("the agent could not start it: {error}"))
    }
}

/// Everything to start the work with.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) user: users::User,
    pub(super) working_dir: PathBuf,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) arguments: Vec<String>,
    /// Whether bootstrap installed the program, on the machine's own disk.
    pub(super) is_own_program: bool,
    /// Whether other processes of the user must not look into the program, from its first instruction on.
    pub(super) is_guarded: bool,
    /// Added to the message when the program does not start.
    pub(super) hint: &'static str,
    /// Where a function's return value goes.
    pub(super) result: Option<File>,
    /// Where the function runner says how it ended.
    pub(super) outcome: Option<File>,
    /// Where the function runner says what the function yields.
    pub(super) values: Option<Values>,
    /// The end of the work of the channel through which items come.
    pub(super) channel: Option<OwnedFd>,
}

/// A pipe from the function runner to the shim.
#[derive(Debug)]
pub(super) struct Values {
    pub(super) ours: OwnedFd,
    /// The end of the work. The shim drops it when the work has it.
    pub(super) theirs: OwnedFd,
}

impl Values {
    fn open() -> io::Result<Self> {
        let (ours, theirs) = pipe2(OFlag::O_CLOEXEC)?;
        Ok(Self { ours, theirs })
    }
}

impl Prepared {
    /// The order for `exec.rs`.
    pub(super) fn order(&self) -> exec::Order {
        exec::Order {
            uid: self.user.uid,
            gid: self.user.gid,
            groups: self.user.groups.clone(),
            name: self.user.name.clone(),
            directory: text(&self.working_dir),
            environment: self.environment.clone(),
            arguments: self.arguments.clone(),
            is_guarded: self.is_guarded,
        }
    }
}

/// Makes everything ready.
pub(super) fn prepare(
    home: &Home,
    folder: &RunFolder,
    spec: &RunSpec,
    default_user: &str,
) -> Result<Prepared, Failure> {
    let user = user(users::own(), spec, default_user)?;
    let working_dir = if !spec.bundle.is_empty() {
        unpack(home, &spec.bundle, &folder.work(), &user)?;
        folder.work()
    } else if spec.working_dir.is_empty() {
        let path = folder.work();
        make_working_directory(&path, &user)?;
        path
    } else {
        PathBuf::from(&spec.working_dir)
    };
    make_working_directory(&folder.temporary(), &user)?;
    give(&files::create(folder.progress())?, &user)?;
    let mut sources = Sources::new(folder.task(), &user);
    let mut prepared = Prepared {
        environment: environment(home, folder, spec, &user, &mut sources)?,
        user: user.clone(),
        working_dir,
        arguments: Vec::new(),
        is_own_program: false,
        is_guarded: false,
        hint: "",
        result: None,
        outcome: None,
        values: None,
        channel: None,
    };
    match &spec.work {
        None => {
            return Err(Failure::new(
                "its kind of work is unknown to this agent: the agent is older than the controller",
            ));
        }
        Some(Work::Command(command)) if command.argv.is_empty() => {
            return Err(Failure::new("its command is empty"));
        }
        Some(Work::Command(command)) => prepared.arguments.clone_from(&command.argv),
        Some(Work::Script(script)) => prepare_script(&mut prepared, home, &mut sources, script)?,
        Some(Work::Function(function)) => {
            prepare_function(&mut prepared, home, folder, &mut sources, spec, function)?;
        }
    }
    sources.hand_over()?;
    Ok(prepared)
}

/// Only root can run work as another user: an agent of another user runs all work as itself.
pub(super) fn user(own: users::User, spec: &RunSpec, default_user: &str) -> Result<users::User, Failure> {
    let name = user_name(spec, default_user);
    if name.is_empty() || own.uid != 0 {
        return Ok(own);
    }
    users::find(name).ok_or_else(|| {
        Failure::new(format!(
            "there is no user \"{name}\" on the machine: see the Pool's worker.user"
        ))
    })
}

/// Name of the user that the work of that run is to have; `""`: the agent's own.
pub(in super::super) fn user_name<'a>(spec: &'a RunSpec, default_user: &'a str) -> &'a str {
    if spec.user.is_empty() {
        default_user
    } else {
        &spec.user
    }
}

fn prepare_script(
    prepared: &mut Prepared,
    home: &Home,
    sources: &mut Sources<'_>,
    script: &Script,
) -> Result<(), Failure> {
    let (program, name) = match script.interpreter.as_str() {
        "" | "bash" => ("bash".to_owned(), "script.sh"),
        "python" => {
            prepared.hint = python_hint();
            prepared.is_own_program = true;
            (text(&home.python()), "script.py")
        }
        other => {
            return Err(Failure::new(format!(
                "there is no interpreter \"{other}\": use bash or python"
            )));
        }
    };
    let path = sources.write(name, script.source.as_bytes())?;
    prepared.arguments = vec![program, text(&path)];
    Ok(())
}

fn prepare_function(
    prepared: &mut Prepared,
    home: &Home,
    folder: &RunFolder,
    sources: &mut Sources<'_>,
    spec: &RunSpec,
    function: &Function,
) -> Result<(), Failure> {
    let (module, source) = if function.pickle.is_some() {
        (String::new(), None)
    } else if function.module.is_empty() {
        let module = module_name(&spec.task);
        let source = sources.write(&format!("{module}.py"), function.source.as_bytes())?;
        (module, Some(text(&source)))
    } else {
        (function.module.clone(), None)
    };
    let call = serde_json::json!({
        "source": source,
        "module": module,
        // Only the run itself, as its user, looks into it.
        "pickle": function.pickle.as_ref().map(|pickle| serde_json::json!({
            "data": pickle.data,
            "python": pickle.python,
            "cloudpickle": pickle.cloudpickle,
        })),
        "entrypoint": if function.entrypoint.is_empty() { "main" } else { &function.entrypoint },
        "args": if function.args_json.is_empty() { "[]" } else { &function.args_json },
        "kwargs": if function.kwargs_json.is_empty() { "{}" } else { &function.kwargs_json },
        "result_limit": if spec.worker.is_some() { VALUE_BYTES as u64 } else { result_limit(spec) },
        "value_limit": value_limit(spec.log_limit),
        // Of a worker of a map.
        "processes": if spec.worker.is_some_and(|worker| worker.fresh) { "fresh" } else { "reuse" },
        "threads": threads(spec),
    });
    let call_path = sources.write("call.json", call.to_string().as_bytes())?;
    if spec.worker.is_some() {
        prepared.hint = python_hint();
        prepared.is_own_program = true;
        let runner = home.python_path().join("skyward/_items.py");
        // The rest comes with each Python that runs the items.
        prepared.arguments = vec![text(&home.python()), text(&runner), text(&call_path)];
        return Ok(());
    }
    let result = files::create(folder.result())?;
    let outcome = files::create(folder.outcome())?;
    let values = Values::open()?;
    prepared.hint = python_hint();
    prepared.is_own_program = true;
    prepared.arguments = vec![
        text(&home.python()),
        text(&home.python_path().join("skyward/_run.py")),
        text(&call_path),
        result.as_raw_fd().to_string(),
        outcome.as_raw_fd().to_string(),
        values.theirs.as_raw_fd().to_string(),
    ];
    prepared.result = Some(result);
    prepared.outcome = Some(outcome);
    prepared.values = Some(values);
    Ok(())
}

/// How many items of a worker run at the same time, as threads of one process.
pub(super) fn threads(spec: &RunSpec) -> u32 {
    let is_function = matches!(spec.work, Some(Work::Function(_)));
    let worker = spec.worker.filter(|worker| is_function && !worker.fresh);
    worker.map_or(1, |worker| worker.threads.clamp(1, MOST_THREADS))
}

/// The channel through which a new Python is given the items that it runs a function for: our end.
pub(super) fn connect_runner(prepared: &mut Prepared, folder: &RunFolder) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let outcome = files::create(folder.outcome())?;
    prepared.arguments.truncate(3);
    prepared.arguments.push(theirs.as_raw_fd().to_string());
    prepared.arguments.push(outcome.as_raw_fd().to_string());
    prepared.channel = Some(theirs.into());
    prepared.outcome = Some(outcome);
    Ok(ours)
}

/// Leaves an item where its command reads it.
pub(super) fn leave_item(folder: &RunFolder, user: &users::User, text: &str) -> io::Result<PathBuf> {
    let path = folder.item();
    let mut file = files::create(&path)?;
    file.write_all(text.as_bytes())?;
    give(&file, user)?;
    Ok(path)
}

const fn python_hint() -> &'static str {
    " (it needs Python on the machine: set the Pool's image.python, or use an image that has python3)"
}

/// A Task's name as the name of a Python module. The prefix keeps a Task that is called
/// `json` or `torch` from taking the place of the module it imports.
fn module_name(task: &str) -> String {
    let name: String = task
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                '_'
            }
        })
        .take(200)
        .collect();
    format!("task_{name}")
}

/// The environment, from nothing: least specific first. The agent's own environment, such as a
/// cloud's keys for the machine, is not in it.
fn environment(
    home: &Home,
    folder: &RunFolder,
    spec: &RunSpec,
    user: &users::User,
    sources: &mut Sources<'_>,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut environment = base(home, user);
    match std::fs::read(home.environment()) {
        Ok(bytes) => {
            let bootstrap: BTreeMap<String, String> = serde_json::from_slice(&bytes)
                .map_err(|error| Failure::new(format!("the agent cannot read its env.json: {error}")))?;
            environment.extend(bootstrap);
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    environment.extend(spec.env.clone());
    let python_path = python_path(home, folder, spec);
    let python_path = match environment.get("PYTHONPATH").filter(|path| !path.is_empty()) {
        Some(path) => format!("{python_path}:{path}"),
        None => python_path,
    };
    environment.insert("PYTHONPATH".into(), python_path);
    // Short, since the names of sockets in it may be 107 bytes long.
    environment
        .entry(TEMPORARY.into())
        .or_insert_with(|| text(&folder.temporary()));
    environment.insert(RUN_VARIABLE.into(), text(folder.path()));
    environment.insert(progress::VARIABLE.into(), text(&folder.progress()));
    let instance_info = places::number(spec, &mut environment);
    if instance_info.len() > LONGEST_INFO {
        let file = sources.write("instance_info.json", instance_info.as_bytes())?;
        environment.insert("SKYWARD_INSTANCE_INFO_FILE".into(), text(&file));
    } else if !instance_info.is_empty() {
        environment.insert("SKYWARD_INSTANCE_INFO".into(), instance_info);
    }
    for (name, value) in &environment {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(Failure::new(format!(
                "{name:?} cannot be the name of an environment variable"
            )));
        }
        if value.contains('\0') {
            return Err(Failure::new(format!(
                "the environment variable {name} holds a zero byte"
            )));
        }
    }
    Ok(environment)
}

/// The environment that a user's processes have on this machine, before anybody adds to it.
pub(super) fn base(home: &Home, user: &users::User) -> BTreeMap<String, String> {
    let venv = home.venv_bin();
    let path = if venv.exists() {
        format!("{}:{PATH}", text(&venv))
    } else {
        PATH.to_owned()
    };
    [
        ("PATH", path),
        ("HOME", text(&user.home)),
        ("USER", user.name.clone()),
        ("LOGNAME", user.name.clone()),
        ("LANG", "C.UTF-8".to_owned()),
        // Output is seen when it is written, not when a buffer is full.
        ("PYTHONUNBUFFERED", "1".to_owned()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// Where Python finds what the agent brings: its package, and the files of the run's bundle.
pub(super) fn python_path(home: &Home, folder: &RunFolder, spec: &RunSpec) -> String {
    let package = text(&home.python_path());
    if spec.bundle.is_empty() {
        package
    } else {
        format!("{package}:{}", text(&folder.work()))
    }
}

/// Reads the function runner's outcome.
pub(super) fn read_outcome(mut file: &File) -> Option<Outcome> {
    let mut bytes = Vec::new();
    file.rewind().ok()?;
    file.take(LONGEST_OUTCOME).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tasks_name_becomes_a_modules_name() {
        assert_eq!(module_name("train-resnet.50"), "task_train_resnet_50");
        assert_eq!(module_name("50-steps"), "task_50_steps");
        assert_eq!(module_name("json"), "task_json");
    }

    #[test]
    fn an_agent_that_is_not_root_runs_all_work_as_itself() {
        let agent = |uid| users::User { uid, ..users::own() };
        let name = |own: users::User, name: &str| {
            let spec = RunSpec {
                user: name.to_owned(),
                ..RunSpec::default()
            };
            user(own, &spec, "no-such-default")
        };
        for wanted in ["", "no-such-user", "root"] {
            assert_eq!(name(agent(1000), wanted).unwrap(), agent(1000));
        }
        assert_eq!(name(agent(0), "root").unwrap().uid, 0);
        for (wanted, missing) in [("", "no-such-default"), ("no-such-user", "no-such-user")] {
            let failure = name(agent(0), wanted).unwrap_err();
            assert!(failure.message.contains(missing), "{}", failure.message);
        }
    }

    fn environment_of(home: &Home, spec: &RunSpec) -> Result<BTreeMap<String, String>, Failure> {
        let (folder, user) = (home.run("r"), users::own());
        environment(
            home,
            &folder,
            spec,
            &user,
            &mut Sources::new(folder.task(), &user),
        )
    }

    #[test]
    fn the_environment_comes_from_bootstrap_and_task_and_from_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        std::fs::write(home.environment(), r#"{"A": "bootstrap", "B": "bootstrap"}"#).unwrap();
        let spec = RunSpec {
            run_id: "r".into(),
            env: [("B", "task"), ("PYTHONPATH", "/mine")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
            ..RunSpec::default()
        };
        let environment = environment_of(&home, &spec).unwrap();
        assert_eq!(environment["A"], "bootstrap");
        assert_eq!(environment["B"], "task");
        assert!(environment["PYTHONPATH"].ends_with("/python:/mine"));
        assert!(environment["TMPDIR"].ends_with("/runs/r/tmp"));
        assert!(!environment.contains_key("CARGO_MANIFEST_DIR"));
    }

    #[test]
    fn the_files_of_its_bundle_are_found_by_python_before_what_the_task_adds() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        let spec = RunSpec {
            env: [("PYTHONPATH", "/mine"), ("TMPDIR", "/fast")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
            bundle: "sha256:0".to_owned(),
            ..RunSpec::default()
        };
        let environment = environment_of(&home, &spec).unwrap();
        assert!(environment["PYTHONPATH"].ends_with("/runs/r/work:/mine"));
        assert_eq!(environment["TMPDIR"], "/fast", "the Task's own");
    }

    #[test]
    fn a_variable_with_an_impossible_name_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        let spec = RunSpec {
            env: [("A=B".to_owned(), String::new())].into(),
            ..RunSpec::default()
        };
        let failure = environment_of(&home, &spec).unwrap_err();
        assert!(failure.message.contains("A=B"));
    }
}
