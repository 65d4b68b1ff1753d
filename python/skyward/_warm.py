"""A Python that has started already: processes of runs are forked from it. The agent starts it; it is no part of
the package's interface.

    python _warm.py CHANNEL_FD [MODULE...]

It imports the modules and says `ready`. From then on the agent's keeper sends it connections of shims, each of which
gets a process of its own: a fork that becomes a child of the keeper. The order of a run (its environment and its
arguments) comes through that connection, which only the fork reads. So this process never holds code or a Secret of
a Task, and it runs nothing after its imports.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

    # A function that sets how many threads a library has, the variable that says how many, and how many are usual.
    Setter = tuple[Callable[[int], object], str, int]

OLDEST = (3, 10)
# Bytes of an order, at most: a shim sends less.
LONGEST = 64 * 1024 * 1024
DESCRIPTORS = 5
# What most runs import.
RUNS = ("inspect", "json", "random", "signal", "site", "traceback", "weakref", "skyward._run", "skyward._shard")
# Files of a driver that no fork may share.
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/neuron", "/dev/accel")
# What every interpreter looks for when it starts, and imports if it is there.
AT_START = {"sitecustomize", "usercustomize"}
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
# The version of the kernel's interface that has three sets of 64 capabilities.
CAPABILITIES = 0x20080522
# Functions of the libraries that start threads for arithmetic, by a part of the library's name. The parent has one
# thread in each; a fork gets as many as a fresh interpreter would have. Rayon (RAYON_NUM_THREADS), which packages in Rust
# use, starts its threads with the first work and reads its variable then, in the fork; Accelerate
# (VECLIB_MAXIMUM_THREADS) is a library of macOS, and machines have Linux.
THREADS = (
    ("openblas", "OPENBLAS_NUM_THREADS", ("openblas_set_num_threads", "scipy_openblas_set_num_threads")),
    ("openblas", "OPENBLAS_NUM_THREADS", ("openblas_set_num_threads64_", "scipy_openblas_set_num_threads64_")),
    ("libmkl_rt", "MKL_NUM_THREADS", ("MKL_Set_Num_Threads",)),
    ("libblis", "BLIS_NUM_THREADS", ("bli_thread_set_num_threads",)),
    ("libgomp", "OMP_NUM_THREADS", ("omp_set_num_threads",)),
    ("libomp", "OMP_NUM_THREADS", ("omp_set_num_threads",)),
    ("libiomp", "OMP_NUM_THREADS", ("omp_set_num_threads",)),
)
# Has one thread unless a variable says more.
SINGLE = "libblis"
# What NumExpr starts at most unless a variable says more.
NUMEXPR_THREADS = 16
# What keeps packages from starting threads when they are imported. Arrow's own copy of jemalloc, which pandas and
# scikit-learn import as well where it is installed, has a thread in the background unless its variable says otherwise;
# so has the copy that packages in Rust, such as Polars, bring.
# A module that asks for one thread writes `1`, so that its value is not taken for one of these.
SINGLE_THREADED = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "_RJEM_MALLOC_CONF": "background_thread:false",
    **dict.fromkeys(("NUMEXPR_NUM_THREADS", *(variable for _, variable, _ in THREADS)), "01"),
}


class Unfit(Exception):
    """Nothing can be forked from this process."""


def check() -> None:
    """Raises where a fork of this process would lack a thread or share a device."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise Unfit(f"its packages start threads when they are imported ({threads} run)")
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue  # The descriptor of the list itself.
        if target.startswith(DEVICES):
            raise Unfit(f"its packages open {target} when they are imported")


class Parent:
    """The process that runs are forked from."""

    def __init__(self, channel: int, modules: Sequence[str]) -> None:
        if sys.version_info < OLDEST:
            raise Unfit(f"it needs Python 3.10 or newer, the machine has {sys.version_info[0]}.{sys.version_info[1]}")
        # The folder of this file, which the interpreter puts at the front.
        del sys.path[0]
        # What the variable named when this interpreter started; a run has a longer list.
        self.at_start = entries(os.environ)
        try:
            import ctypes

            kernel = ctypes.CDLL(None)
            self.prctl = kernel.prctl
            self.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
            capset = kernel.capset
            header = (ctypes.c_uint32 * 2)(CAPABILITIES, 0)
            no_capabilities = (ctypes.c_uint32 * 6)()
            # Called with Python's lock: the library runs what packages told it to run at the end.
            self.exit = ctypes.PyDLL(None).exit
        except (ImportError, OSError, AttributeError) as error:
            raise Unfit(f"its Python cannot call the kernel: {error}") from None
        # Another process of the same user must not look into this one, or stop it with a debugger. Until here it could
        # not because this process has capabilities that the other one lacks. They end only now, and before any fork.
        self.tell_kernel(PR_SET_DUMPABLE, 0)
        self.tell_kernel(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
        if capset(header, no_capabilities) != 0:
            raise Unfit("the kernel refuses capset")
        import socket

        self.channel = socket.socket(fileno=channel)
        self.channel.set_inheritable(False)
        import gc

        with single_threaded():
            for name in (*RUNS, *modules):
                load(name)
        self.allowance = allowance()
        self.present = set(sys.modules)
        self.loaded = {name.split(".")[0] for name in self.present}
        check()
        # What each fork does is done in less time where its parent has done it once.
        seed()
        self.setters = thread_setters() if modules else []
        # Once, after all imports: objects that no collection visits stay shared.
        gc.collect()
        gc.freeze()

    def tell_kernel(self, option: int, value: int) -> None:
        if self.prctl(option, value, 0, 0, 0) != 0:
            raise Unfit(f"the kernel refuses prctl({option})")

    def serve(self) -> socket.socket:
        """Answers the keeper. Returns in forks only, with the connection that brings the order."""
        import socket

        self.say("ready")
        while True:
            message, descriptors, _, _ = socket.recv_fds(self.channel, 1, 1, socket.MSG_CMSG_CLOEXEC)
            if not message:
                os._exit(0)
            if not descriptors:
                continue
            check()
            if allowance() != self.allowance:
                # Another process of the same user can change that, and each fork would inherit it. The next parent
                # begins with what the keeper has.
                os._exit(0)
            try:
                pid = fork()
            except OSError as error:
                pid = -1
                self.say(f"busy {error.strerror or error}")
            if pid == 0:
                self.channel.close()
                return socket.socket(fileno=descriptors[0])
            os.close(descriptors[0])
            if pid > 0:
                self.say(f"forked {pid}")

    def say(self, words: str) -> None:
        self.channel.sendall(line(words))


def allowance() -> tuple[object, ...]:
    """What processes of the same user can take away from this one: priority, processors, limits."""
    import resource

    limits = [number for name, number in sorted(vars(resource).items()) if name.startswith("RLIMIT_")]
    return (
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getscheduler(0),
        os.sched_getaffinity(0),
        *map(resource.getrlimit, limits),
    )


def fork() -> int:
    """Forks a process that is no child of this one, but of the nearest ancestor that takes orphans: the keeper, which
    learns its exit code from the kernel even if this process is gone by then. Answers with its number, 0 in itself.
    By then that process has a group of its own and the signals of a new program, so a signal to its group is not
    lost."""
    reading, writing = os.pipe()
    try:
        between = os.fork()
        if between == 0:
            return fork_again(reading, writing)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    try:
        # Once it is gone, the other one has its new parent.
        _, status = os.waitpid(between, 0)
        told = os.read(reading, 32)
    finally:
        os.close(reading)
    if not told:
        code = os.waitstatus_to_exitcode(status)
        raise OSError(max(code, 0), os.strerror(code) if code > 0 else "the new process was killed")
    return int(told)


def fork_again(reading: int, writing: int) -> int:
    """In the process between. It ends whatever happens: only its fork returns."""
    status = 1
    try:
        os.close(reading)
        if os.fork() == 0:
            os.setsid()
            signals()
            os.write(writing, b"%d" % os.getpid())
            return 0
        status = 0
    except BaseException as error:
        status = getattr(error, "errno", None) or 1
    os._exit(status)


def load(name: str) -> None:
    import importlib

    try:
        importlib.import_module(name)
    except BaseException as error:
        raise Unfit(f"it cannot import {name}: {type(error).__name__}: {error}") from None


def become(parent: Parent, connection: socket.socket) -> list[str]:
    """Makes this fork the process of a run, as if the run's interpreter had just started. Returns the arguments of
    the runner."""
    import json

    data, descriptors = receive(connection)
    # The order is whole, so nobody else speaks here any more; what runs from here on must not speak as the shim.
    connection.close()
    try:
        order: dict[str, Any] = json.loads(data)
    except ValueError:
        os._exit(1)  # The shim went away in the middle of it.
    environment = order["environment"]
    output, complaints, *results = descriptors
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for descriptor, standard in ((output, 1), (complaints, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    # Orphans of the run stay below it, where they are found and ended.
    parent.tell_kernel(PR_SET_CHILD_SUBREAPER, 1)
    os.umask(0o022)
    os.chdir(order["directory"])
    arguments = [*order["arguments"][1:3], *map(str, results)]
    if not is_same(parent, environment):
        for descriptor in results:
            os.set_inheritable(descriptor, True)
        program = order["arguments"][0]
        os.execvpe(program, [program, *arguments], environment)
    os.environ.clear()
    os.environ.update(environment)
    search(parent.at_start, entries(environment))
    refresh()
    restore_threads(parent.setters)
    # From here on this is a process of its user like any other, which a debugger may look into.
    parent.tell_kernel(PR_SET_DUMPABLE, 1)
    return arguments


def leave(parent: Parent, code: object) -> None:
    """Ends this fork like a fresh interpreter: threads and exit handlers, what the run imported, open files, the C
    library. What the parent imported is not taken apart: that would copy most of the memory that is shared with it,
    and took longer than all the rest of a short run."""
    import gc

    end_threads()
    if code is None or isinstance(code, int):
        status = (code or 0) & 0xFF
    else:
        print(code, file=sys.stderr)
        status = 1
    if len(sys._current_frames()) == 1:
        # No other thread can see the modules go. A file in a cycle, or one that what the parent imported refers to,
        # would lose what is not written yet.
        flush_files(files_of(gc.get_objects()))
        for name in sys.modules.keys() - parent.present:
            del sys.modules[name]
        gc.collect()
        if is_flushed():
            parent.exit(status)
    # The interpreter reports what it cannot flush, and waits for nobody.
    sys.exit(status)


def end_threads() -> None:
    """Waits for threads and runs exit handlers."""
    import atexit

    threading: Any = sys.modules.get("threading")
    if threading:
        threading._shutdown()
    atexit._run_exitfuncs()


def files_of(objects: Iterable[object]) -> list[Any]:
    """The files among the objects that may have something to write."""
    return [one for one in objects if isinstance(one, (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper))]


def flush_files(files: Iterable[Any]) -> None:
    for file in files:
        # A file that was detached does not even say whether it is closed.
        with contextlib.suppress(OSError, ValueError):
            if not file.closed:
                file.flush()


def is_flushed() -> bool:
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except Exception:
        return False
    return True


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """The order and its descriptors: where output and complaints go, the return value, how it ended, and what it
    yields."""
    import array
    import socket

    size = array.array("i").itemsize
    data, ancillary, _, _ = connection.recvmsg(65536, socket.CMSG_SPACE(DESCRIPTORS * size), socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % size])
    parts = [data]
    while data and sum(map(len, parts)) <= LONGEST:
        data = connection.recv(1 << 20)
        parts.append(data)
    if data or len(descriptors) != DESCRIPTORS:
        # The shim is gone, or gave up: no run begins here.
        os._exit(1)
    return b"".join(parts), list(descriptors)


def signals() -> None:
    """What a preloaded package did to signals is undone."""
    import signal

    signal.set_wakeup_fd(-1)
    ignored = {signal.SIGPIPE, getattr(signal, "SIGXFSZ", None)}
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        handler: Any = signal.SIG_IGN if number in ignored else signal.SIG_DFL
        if number == signal.SIGINT:
            handler = signal.default_int_handler
        try:
            signal.signal(number, handler)
        except (OSError, ValueError):
            continue  # The C library keeps a few for itself.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def is_same(parent: Parent, environment: Mapping[str, str]) -> bool:
    """Whether a fresh interpreter would have found the same modules that were imported before the run was known."""
    import site

    for entry in [os.getcwd(), *entries(environment)[len(parent.at_start) :]]:
        try:
            there = os.listdir(entry)
        except OSError:
            continue
        if (parent.loaded | AT_START).intersection(map(module, there)):
            return False
    # The parent leaves out what an earlier Task may have put into the home of its user.
    return not (has_user_site() and os.path.isdir(site.getusersitepackages()))


def has_user_site() -> bool:
    """Whether a fresh interpreter looks for packages in the home of its user: one of a virtual environment does so where
    that shows the packages of the machine's own Python."""
    if sys.prefix == sys.base_prefix:
        return True
    with contextlib.suppress(OSError), open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:
        for setting in file:
            name, _, value = setting.partition("=")
            if name.strip().lower() == "include-system-site-packages":
                return value.strip().lower() == "true"
    return True


def module(name: str) -> str:
    """The module that a file or folder of that name would be, or nothing."""
    stem, dot, end = name.partition(".")
    return stem if not dot or end.endswith(("py", "pyc", "so")) else ""


def entries(environment: Mapping[str, str]) -> list[str]:
    return [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]


def search(before: Sequence[str], now: Sequence[str]) -> None:
    """Exchanges the part of the path that comes from the variable."""
    for entry in before:
        if entry in sys.path:
            sys.path.remove(entry)
    # The runner puts the working directory into the first place.
    sys.path[:0] = ["", *now]


def refresh() -> None:
    """Gives this fork random numbers, keys and a temporary directory of its own. Seeded anew are the generators that
    packages have for everybody: that of `random`, NumPy's global one (`numpy.random.seed`), and PyTorch's, on the CPU and, once
    CUDA is used, on accelerators. A generator that a module made for itself when it was imported, such as
    `numpy.random.default_rng()` or `random.Random()`, is a copy, and all forks draw the same numbers from it."""
    import time

    time.tzset()
    seed()
    disown()


def seed() -> None:
    """What the fork of a process with the same environment needs of that."""
    for renew in renewals():
        renew()


def renewals() -> list[Callable[[], object]]:
    """What `seed` calls: a function for each loaded module that needs one. A process that asks for them before it forks spares its
    forks the look. `random` seeds its own generator in each fork."""
    loaded: Callable[[str], Any] = sys.modules.get
    tempfile, numpy, process = map(loaded, ("tempfile", "numpy.random", "multiprocessing.process"))
    torch = loaded("torch")
    found: list[Callable[[], object]] = []
    if tempfile:
        found.append(lambda: setattr(tempfile, "tempdir", None))
    if numpy:
        found.append(lambda: numpy.seed())
    if process:
        # Who has it may send objects to processes of this one.
        found.append(lambda: setattr(process.current_process(), "authkey", os.urandom(32)))
    if hasattr(torch, "seed"):
        found.append(lambda: torch.seed())
    return found


def has_possessions() -> bool:
    """Whether there may be something to disown: even the look for it would take a part of the time of a short item."""
    import weakref

    finalize: Any = weakref.finalize
    return finalize._registered_with_atexit or "multiprocessing.process" in sys.modules


def disown() -> None:
    """Leaves temporary directories and processes that the parent has made to the parent: this fork removes none of them
    when it ends, and waits for none."""
    import weakref

    finalize: Any = weakref.finalize
    if finalize._registered_with_atexit:
        for one in list(finalize._registry):
            one.atexit = False
        # The exit handlers may be gone, and the first finalizer of this fork brings its own.
        finalize._registered_with_atexit = False
    process: Any = sys.modules.get("multiprocessing.process")
    if process:
        process._children.clear()


@contextlib.contextmanager
def single_threaded() -> Iterator[None]:
    """While packages are imported in it, they start no threads for arithmetic. Values that they set themselves stay."""
    given = dict(os.environ)
    os.environ.update(SINGLE_THREADED)
    try:
        yield
    finally:
        for name, value in SINGLE_THREADED.items():
            if os.environ.get(name) == value:
                del os.environ[name]
                if name in given:
                    os.environ[name] = given[name]


def restore_threads(setters: Iterable[Setter]) -> None:
    """Gives each library as many threads as in a fresh interpreter: what the variables say, or as many as is usual."""
    for give, variable, usual in setters:
        give(asked(variable) or usual)


def thread_setters() -> list[Setter]:
    """How the number of threads is set in the libraries that this process has loaded."""
    count = len(os.sched_getaffinity(0))
    found: list[Setter] = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = {words[5].strip() for words in (text.split(None, 5) for text in file) if len(words) == 6}
    libraries = [path for path in paths if ".so" in path]
    for part, variable, functions in THREADS:
        for path in libraries:
            if part in os.path.basename(path).lower():
                import ctypes

                try:
                    library = ctypes.CDLL(path)
                except OSError:
                    continue  # Deleted since.
                usual = 1 if part == SINGLE else count
                found += [(getattr(library, name), variable, usual) for name in functions if hasattr(library, name)]
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "set_num_threads"):
        found.append((torch.set_num_threads, "OMP_NUM_THREADS", count))
    numexpr: Any = sys.modules.get("numexpr")
    if hasattr(numexpr, "set_num_threads"):

        def give(wanted: int) -> None:
            # It refuses more threads than it was made for.
            with contextlib.suppress(ValueError):
                numexpr.set_num_threads(wanted)

        found.append((give, "NUMEXPR_NUM_THREADS", min(count, NUMEXPR_THREADS)))
    return found


def asked(variable: str) -> int:
    """The number of threads that the run asks for, 0 if it asks for none: OpenMP's variable counts for all libraries."""
    return number(os.environ.get(variable)) or number(os.environ.get("OMP_NUM_THREADS"))


def number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 6 else 0


def line(words: str) -> bytes:
    """One line of at most 300 bytes, whatever an exception says."""
    words = "".join(letter if letter.isprintable() else " " for letter in words)
    return words.encode("utf-8", "replace")[:300] + b"\n"


def main() -> None:
    channel = int(sys.argv[1])
    try:
        parent = Parent(channel, sys.argv[2:])
        connection = parent.serve()
    except Unfit as unfit:
        os.write(channel, line(f"no {unfit}"))
        os._exit(1)
    arguments = become(parent, connection)
    import skyward._run

    sys.argv = arguments
    try:
        skyward._run.main()  # type: ignore[no-untyped-call]
    except SystemExit as end:
        code = end.code
    leave(parent, code)


if __name__ == "__main__":
    main()
