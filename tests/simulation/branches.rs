//! The same story with a fault at each of its calls: the story is told once without a fault, and at each call the process
//! forks, and its child goes on with the fault. What comes before the call is told once for all of them, and is the same.
//!
//! A child has the thread that forked and no other one, so such a story is told in a process without other threads
//! ([`alone`]).

use std::{
    cell::RefCell,
    collections::BTreeMap,
    env,
    process::{Command, exit},
    time::Duration,
};

use fork::Fork;

use crate::{
    calls::Luck,
    campaign::judge,
    play::Play,
    time::{Moment, NEVER, now},
};

/// Set in a process that runs one test alone.
const ALONE: &str = "SKYWARD_SIMULATION_ALONE";
/// Threads of such a process: the harness, which waits, and the test.
const THREADS: usize = 2;

/// A call that a fault may befall.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// How many calls there were in the story, with this one.
    pub(crate) number: u64,
    /// Whether it may change something.
    pub(crate) changes: bool,
    /// How long after the call before it that might change something.
    pub(crate) after: Moment,
}

/// The faults, one at a time, that may befall a call.
type Faults = Box<dyn Fn(Candidate) -> Vec<Luck>>;

/// A fault, and the number of its call.
type At = (u64, Luck);

thread_local! {
    static STORY: RefCell<Option<Story>> = const { RefCell::new(None) };
}

/// A story that is being told.
struct Story {
    faults: Faults,
    /// When the last call came that may change something.
    changed: Moment,
    /// Children at work, by pid.
    children: BTreeMap<i32, At>,
    told: usize,
    failed: Vec<At>,
    /// In a child: its fault.
    fault: Option<At>,
}

impl Story {
    /// Waits until fewer than so many children are at work.
    fn wait(&mut self, fewer: usize) {
        while self.children.len() >= fewer {
            let (pid, status) = fork::wait_any().expect("there are children");
            let at = self.children.remove(&pid).expect("it is one of ours");
            if status != 0 {
                self.failed.push(at);
            }
        }
    }

    /// What befalls this call: nothing in the story without a fault, which goes on, nor in one that has had its own.
    fn befalls(&mut self, number: u64, changes: bool) -> Option<Luck> {
        if self.fault.is_some() {
            return None;
        }
        let after = now() - self.changed;
        if changes {
            self.changed = now();
        }
        for luck in (self.faults)(Candidate {
            number,
            changes,
            after,
        }) {
            self.wait(cores());
            if !self.failed.is_empty() {
                return None;
            }
            no_other_threads();
            match fork::fork().expect("a process can be started") {
                Fork::Child => {
                    self.fault = Some((number, luck));
                    return Some(luck);
                }
                Fork::Parent(pid) => {
                    self.children.insert(pid, (number, luck));
                    self.told += 1;
                }
            }
        }
        None
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Waits until no thread but ours is at work: threads of a runtime end as soon as they have nothing to do.
fn no_other_threads() {
    for _ in 0..100_000 {
        if std::fs::read_dir("/proc/self/task")
            .expect("Linux has it")
            .count()
            <= THREADS
        {
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    panic!("a story has threads that do not end, and cannot be forked");
}

/// What befalls the call of that number, if its story is told with a fault at each.
pub(crate) fn befalls(number: u64, changes: bool) -> Option<Luck> {
    STORY.with_borrow_mut(|story| story.as_mut()?.befalls(number, changes))
}

/// Tells a story without a fault, and with each of these faults at its calls; answers how many that were. Panics if one of
/// them breaks a rule.
pub(crate) fn each_call(
    name: &str,
    story: impl FnOnce() -> Play,
    faults: impl Fn(Candidate) -> Vec<Luck> + 'static,
) -> usize {
    STORY.set(Some(Story {
        faults: Box::new(faults),
        changed: NEVER,
        children: BTreeMap::new(),
        told: 0,
        failed: Vec::new(),
        fault: None,
    }));
    let (broken, trace) = judge(story);
    // A child gets here where the simulation itself panicked.
    end_of_child(broken.as_deref(), &trace);
    let mut story = STORY.take().expect("it was set above");
    story.wait(1);
    assert_eq!(broken, None, "{name} without a fault:\n{}", trace.join("\n"));
    assert!(
        story.failed.is_empty(),
        "{name}: rules are broken with {:?}",
        story.failed
    );
    story.told
}

/// Ends a child whose story is told, before it drops the world: its memory goes as a whole.
pub(crate) fn end_of_child(broken: Option<&str>, trace: &[String]) {
    let Some(fault) = STORY.with_borrow(|story| story.as_ref()?.fault) else {
        return;
    };
    if let Some(what) = broken {
        println!("with {fault:?}: {what}\n{}", trace.join("\n"));
    }
    exit(i32::from(broken.is_some()));
}

/// Runs a test in a process of its own.
pub(crate) fn alone(test: impl FnOnce()) {
    if env::var_os(ALONE).is_some() {
        return test();
    }
    let thread = std::thread::current();
    let name = thread.name().expect("the harness names a test's thread after it");
    let program = env::current_exe().expect("a program has a path");
    let ran = Command::new(program)
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, "")
        .output()
        .expect("a program can be started");
    println!("{}", String::from_utf8_lossy(&ran.stdout));
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{stderr}");
    assert!(
        String::from_utf8_lossy(&ran.stdout).contains("1 passed"),
        "no test is named {name}"
    );
}
