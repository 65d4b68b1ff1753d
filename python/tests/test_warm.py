"""The warm parent, as the agent's keeper and a shim see it: this process is both."""

import contextlib
import ctypes
import errno
import importlib.util
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import types
import unittest
from unittest import mock

from skyward import _warm

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "skyward")
PATIENCE = 60
# Packages of science and training, by the name that is imported. Those that a machine lacks are passed over.
PRELOADED = (
    "numpy",
    "pandas",
    "scipy.linalg",
    "sklearn.linear_model",
    "pyarrow.parquet",
    "torch",
    "torchvision",
    "transformers",
)
PR_SET_CHILD_SUBREAPER = 36


class End:
    def __init__(self, status, files, left):
        self.status = status
        self.left = left
        self.stdout, self.stderr, self.result, outcome, self.values = files
        self.outcome = json.loads(outcome) if outcome else None

    @property
    def ending(self):
        return self.outcome and self.outcome["ending"]


def write(folder, files):
    for name, text in (files or {}).items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(text))


class Run:
    """A shim with a run."""

    def __init__(self, keeper, pid, connection):
        self.keeper = keeper
        self.pid = pid
        self.connection = connection
        self.files = []

    def order(self, source, *args, environment=None, files=None, entrypoint="main"):
        folder = self.keeper.folder()
        path = os.path.join(folder, "job.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(source))
        call = os.path.join(folder, "call.json")
        with open(call, "w", encoding="utf-8") as file:
            value = {"source": path, "module": "job", "entrypoint": entrypoint, "result_limit": 10**6, "value_limit": 10**5}
            json.dump({**value, "args": json.dumps(args), "kwargs": "{}"}, file)
        self.work = work = os.path.join(folder, "work")
        os.mkdir(work)
        write(work, files)
        python_path = os.pathsep.join([os.path.dirname(PACKAGE), work])
        order = {
            "directory": work,
            "environment": {"PATH": os.environ["PATH"], "PYTHONPATH": python_path, **(environment or {})},
            "arguments": [sys.executable, os.path.join(PACKAGE, "_run.py"), call, "91", "92", "93"],
        }
        self.files = [tempfile.TemporaryFile() for _ in range(5)]
        descriptors = [file.fileno() for file in self.files]
        data = json.dumps(order).encode()
        sent = socket.send_fds(self.connection, [data], descriptors)
        self.connection.sendall(data[sent:])
        self.connection.shutdown(socket.SHUT_WR)
        return self

    def ended(self):
        status = waited(self.pid)
        self.connection.close()
        contents = []
        for file in self.files:
            file.seek(0)
            contents.append(file.read().decode())
            file.close()
        left = None
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self.work, "left"), "rb") as file:
            left = file.read()
        return End(os.waitstatus_to_exitcode(status), contents, left)


def names(text):
    """The lines that are the same in each run: without its folders, and without addresses in memory."""
    return [re.sub("0x[0-9a-f]+", "0x", line) for line in text.splitlines() if "/" not in line]


def waited(pid):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("the process does not end")


class Keeper:
    """A keeper with its parent, which imports `modules`, among them those that `files` are the source of."""

    def __init__(self, *modules, files=None, environment=None):
        self.stack = contextlib.ExitStack()
        library = self.folder()
        write(library, files)
        python_path = os.pathsep.join([os.path.dirname(PACKAGE), library])
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(PATIENCE)
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(PACKAGE, "_warm.py"), str(theirs.fileno()), *modules],
            pass_fds=[theirs.fileno()],
            cwd="/",
            env={"PYTHONPATH": python_path, "PYTHONUNBUFFERED": "1", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        self.lines = self.channel.makefile("r", encoding="utf-8")
        self.said = self.heard()

    def folder(self):
        return self.stack.enter_context(tempfile.TemporaryDirectory())

    def heard(self):
        return self.lines.readline().rstrip("\n")

    def fork(self):
        ours, theirs = socket.socketpair()
        socket.send_fds(self.channel, [b"f"], [theirs.fileno()])
        theirs.close()
        words = self.heard().split(" ", 1)
        if words[0] != "forked":
            ours.close()
            raise AssertionError(words)
        return Run(self, int(words[1]), ours)

    def run(self, source, *args, **more):
        return self.fork().order(source, *args, **more).ended()

    def close(self):
        self.lines.close()
        self.channel.close()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.stack.close()


@unittest.skipUnless(sys.platform == "linux", "machines run Linux")
class Warm(unittest.TestCase):
    def setUp(self):
        # Forks become children of this process, as they become children of the keeper.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def keeper(self, *modules, **more):
        keeper = Keeper(*modules, **more)
        self.addCleanup(keeper.close)
        return keeper

    def ready(self, *modules, **more):
        keeper = self.keeper(*modules, **more)
        self.assertEqual(keeper.said, "ready")
        return keeper

    def test_a_fork_ends_as_a_fresh_interpreter_does(self):
        keeper = self.ready()
        end = keeper.run("def main(a, b): print('adding'); return {'sum': a + b}", 1, 2)
        self.assertEqual((end.status, end.ending, end.result, end.stdout), (0, "returned", '{"sum":3}', "adding\n"))
        end = keeper.run("import sys\ndef main(): sys.exit(3)")
        self.assertEqual((end.status, end.outcome), (3, None))
        end = keeper.run("import os\ndef main(): os._exit(4)")
        self.assertEqual((end.status, end.outcome), (4, None))
        end = keeper.run("import os\ndef main(): os.kill(os.getpid(), 11)")
        self.assertEqual(end.status, -signal.SIGSEGV)
        end = keeper.run("def helper():\n    raise ValueError('no such thing')\ndef main():\n    helper()")
        self.assertEqual((end.status, end.ending, end.outcome["message"]), (1, "raised", "ValueError: no such thing"))
        self.assertIn('job.py", line 2, in helper', end.stderr)
        self.assertNotIn("_run.py", end.stderr)
        self.assertNotIn("_warm.py", end.stderr)
        end = keeper.run("import atexit\ndef main(): atexit.register(print, 'bye')")
        self.assertEqual((end.result, end.stdout), ("null", "bye\n"))
        end = keeper.run("def main(:")
        self.assertEqual((end.status, end.ending), (1, "bad_source"))

    def test_a_fork_has_what_the_order_says_and_nothing_of_another_run(self):
        keeper = self.ready()
        source = """
            import os, signal, socket, sys
            def main(word):
                seen = {
                    "environment": dict(os.environ),
                    "native": sorted(open("/proc/self/environ").read().split("\\0")),
                    "directory": os.getcwd() == sys.path[0] and os.path.basename(os.getcwd()),
                    "umask": os.umask(0o22),
                    "alarm": signal.getsignal(signal.SIGALRM) == signal.SIG_DFL,
                    "interrupt": signal.getsignal(signal.SIGINT) == signal.default_int_handler,
                    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
                    "session": os.getsid(0) == os.getpgrp() == os.getpid(),
                    "modules": [name for name in sys.modules if name in ("job", "word")],
                    "leftover": getattr(socket, "leftover", None),
                    # Of input and output, the value, the outcome, what is yielded, and the list itself.
                    "descriptors": len(os.listdir("/proc/self/fd")),
                }
                # What the next run must not find.
                os.environ["LEFT"] = word
                os.chdir("/")
                os.umask(0o77)
                signal.signal(signal.SIGALRM, signal.SIG_IGN)
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
                socket.leftover = word
                sys.modules["word"] = socket
                return seen
        """
        for word in ("first", "second"):
            end = keeper.run(source, word, environment={"SECRET": word})
            self.assertEqual((end.ending, end.stderr), ("returned", ""))
            seen = json.loads(end.result)
            environment = seen.pop("environment")
            self.assertEqual(environment["SECRET"], word)
            self.assertEqual(sorted(environment), ["PATH", "PYTHONPATH", "SECRET"])
            # What the kernel shows of a fork is what the parent was started with.
            self.assertNotIn("SECRET=" + word, seen.pop("native"))
            expected = {
                "directory": "work",
                "umask": 0o22,
                "alarm": True,
                "interrupt": True,
                "blocked": [],
                "session": True,
                "modules": ["job"],
                "leftover": None,
                "descriptors": 7,
            }
            self.assertEqual(seen, expected)

    def test_a_fork_has_no_capability_whatever_its_parent_was_started_with(self):
        source = """
            def main():
                with open("/proc/self/status") as file:
                    sets = dict(line.split(":") for line in file if line.startswith("Cap"))
                return [int(sets[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")]
        """
        self.assertEqual(json.loads(self.ready().run(source).result), [0, 0, 0, 0])

    def test_no_secret_of_a_run_is_in_the_memory_of_the_parent(self):
        if os.getuid() != 0:
            self.skipTest("only root may look into the parent")
        keeper = self.ready()
        secret = "canary-" + os.urandom(8).hex()
        end = keeper.run("import os\ndef main(): return os.environ['TOKEN']", environment={"TOKEN": secret})
        self.assertEqual(json.loads(end.result), secret)
        needle, there = secret.encode(), False
        try:
            maps = open(f"/proc/{keeper.process.pid}/maps", encoding="utf-8")
            memory = open(f"/proc/{keeper.process.pid}/mem", "rb", buffering=0)
        except PermissionError:
            self.skipTest("this container lets root look into no other process")
        with maps, memory:
            for line in maps:
                span, rights = line.split()[:2]
                if not rights.startswith("rw"):
                    continue
                begin, end = (int(edge, 16) for edge in span.split("-"))
                with contextlib.suppress(OSError, ValueError):
                    memory.seek(begin)
                    there = there or needle in memory.read(end - begin)
        self.assertFalse(there)

    def test_forks_have_distinct_random_numbers(self):
        files = {"fixed.py": "import random\nrandom.seed(7)\n"}
        keeper = self.ready("fixed", "multiprocessing", "tempfile", files=files)
        source = """
            import multiprocessing, random, tempfile
            def main():
                key = multiprocessing.current_process().authkey
                return [random.random(), next(tempfile._get_candidate_names()), key.hex()]
        """
        drawn = [json.loads(keeper.run(source).result) for _ in range(20)]
        self.assertEqual([len(set(values)) for values in zip(*drawn, strict=True)], [20, 20, 20])

    def test_a_hundred_forks_draw_distinct_numbers_from_numpy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("this Python has no NumPy")
        keeper = self.ready("numpy")
        source = "import numpy\ndef main(): return [numpy.random.rand(), numpy.random.default_rng().random()]"
        drawn = [json.loads(keeper.run(source).result) for _ in range(100)]
        self.assertEqual([len(set(numbers)) for numbers in zip(*drawn, strict=True)], [100, 100])
        self.assertTrue(numpy)

    def test_arithmetic_has_one_thread_in_the_parent_and_as_many_as_the_run_says_in_its_fork(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("this Python has no NumPy")
        keeper = self.ready("numpy")
        source = """
            import numpy, os
            def main():
                numpy.ones((400, 400)) @ numpy.ones((400, 400))
                return len(os.listdir("/proc/self/task"))
        """
        for variables, expected in (
            ({}, len(os.sched_getaffinity(0))),
            ({"OPENBLAS_NUM_THREADS": "3"}, 3),
            ({"OMP_NUM_THREADS": "1"}, 1),
        ):
            with self.subTest(variables=variables):
                self.assertEqual(json.loads(keeper.run(source, environment=variables).result), expected)
        self.assertTrue(numpy)

    def test_packages_that_start_threads_by_themselves_start_none_in_a_parent(self):
        for name in PRELOADED:
            if importlib.util.find_spec(name.partition(".")[0]):
                with self.subTest(name=name):
                    source = f"import os, sys\ndef main(): return {name!r} in sys.modules and os.environ.get('OMP_NUM_THREADS')"
                    end = self.ready(name).run(source)
                    self.assertEqual(end.result, "null", end.stderr)

    def test_the_allocator_of_packages_in_rust_has_no_thread_in_a_parent(self):
        files = {
            "rust.py": """
                import os, threading, time
                if os.environ.get("_RJEM_MALLOC_CONF") != "background_thread:false":
                    threading.Thread(target=time.sleep, args=[99], daemon=True).start()
            """
        }
        end = self.ready("rust", files=files).run("import os\ndef main(): return os.environ.get('_RJEM_MALLOC_CONF')")
        self.assertEqual(end.result, "null", end.stderr)

    def test_a_temporary_folder_of_a_preloaded_module_outlives_the_first_fork(self):
        keeper = self.ready("made", files={"made.py": "import tempfile\nfolder = tempfile.TemporaryDirectory()\n"})
        source = """
            import made, os, tempfile
            def main():
                global own
                own = tempfile.TemporaryDirectory()
                return [os.path.isdir(made.folder.name), own.name, made.folder.name]
        """
        for _ in range(2):
            is_there, own, folder = json.loads(keeper.run(source).result)
            self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
            self.assertEqual((is_there, os.path.exists(own)), (True, False))

    def test_each_library_of_a_fork_gets_as_many_threads_as_in_a_fresh_interpreter(self):
        functions = {
            "libscipy_openblas64_-1.so": "scipy_openblas_set_num_threads64_",
            "libopenblas.so.0": "openblas_set_num_threads",
            "libmkl_rt.so.2": "MKL_Set_Num_Threads",
            "libblis.so.4": "bli_thread_set_num_threads",
            "libgomp.so.1": "omp_set_num_threads",
            "libomp.so": "omp_set_num_threads",
            "libiomp5.so": "omp_set_num_threads",
        }
        maps = "".join(f"7f00-7f01 r-xp 00000000 08:01 7 /venv/{name}\n" for name in [*functions, "libm.so.6"])
        got = {}

        def note(name):
            return lambda count: got.update({name: count})

        def library(path):
            name = os.path.basename(path)
            return types.SimpleNamespace(**{functions[name]: note(name)})

        packages = {name: types.SimpleNamespace(set_num_threads=note(name)) for name in ("torch", "numexpr")}
        everything = {*functions, *packages}
        many = 40
        for environment, expected in (
            ({}, {**dict.fromkeys(everything, many), "libblis.so.4": 1, "numexpr": 16}),
            ({"OMP_NUM_THREADS": "3"}, dict.fromkeys(everything, 3)),
            (
                {"OMP_NUM_THREADS": "3", "BLIS_NUM_THREADS": "5", "NUMEXPR_NUM_THREADS": "6", "MKL_NUM_THREADS": "x"},
                {**dict.fromkeys(everything, 3), "libblis.so.4": 5, "numexpr": 6},
            ),
        ):
            got.clear()
            with (
                self.subTest(environment=environment),
                mock.patch.object(_warm, "open", mock.mock_open(read_data=maps), create=True),
                mock.patch("ctypes.CDLL", library),
                mock.patch("os.sched_getaffinity", lambda _: range(many)),
                mock.patch.dict(os.environ, environment, clear=True),
                mock.patch.dict(sys.modules, packages),
            ):
                _warm.restore_threads(_warm.thread_setters())
                self.assertEqual(got, expected)

    def test_a_generator_that_a_preloaded_module_made_is_a_copy_in_each_fork(self):
        files = {"made.py": "import random\nmine = random.Random(7)\n"}
        keeper = self.ready("made", files=files)
        source = "import made, random\ndef main(): return [made.mine.random(), random.random()]"
        drawn = [json.loads(keeper.run(source).result) for _ in range(5)]
        self.assertEqual([len(set(numbers)) for numbers in zip(*drawn, strict=True)], [1, 5])

    def test_a_preloaded_package_is_there_and_what_it_did_to_the_process_is_undone(self):
        files = {
            "package.py": """
                import os, signal, sys
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
                os.umask(0)
                os.chdir("/tmp")
                os.environ["FROM_PACKAGE"] = "1"
                print("noise")
                born = os.getpid()
            """
        }
        keeper = self.ready("package", files=files)
        source = """
            import os, signal, sys
            def main():
                return ["package" in sys.modules, sys.modules["package"].born != os.getpid(),
                    signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, os.umask(0o22),
                    os.path.basename(os.getcwd()), "FROM_PACKAGE" in os.environ,
                    len(signal.pthread_sigmask(signal.SIG_BLOCK, []))]
        """
        end = keeper.run(source)
        self.assertEqual((json.loads(end.result), end.stdout), ([True, True, True, 0o22, "work", False, 0], ""))

    def test_a_parent_with_a_thread_is_not_forked_from(self):
        files = {"threads.py": "import threading, time\nthreading.Thread(target=time.sleep, args=[99], daemon=True).start()\n"}
        keeper = self.keeper("threads", files=files)
        self.assertIn("no its packages start threads when they are imported (2 run)", keeper.said)
        self.assertEqual(keeper.heard(), "")

    def test_a_parent_that_gets_a_thread_later_is_not_forked_from(self):
        files = {
            "later.py": """
                import signal, threading, time
                def begin(number, frame):
                    threading.Thread(target=time.sleep, args=[99], daemon=True).start()
                signal.signal(signal.SIGUSR1, begin)
            """
        }
        keeper = self.ready("later", files=files)
        os.kill(keeper.process.pid, signal.SIGUSR1)
        with self.assertRaisesRegex(AssertionError, "'no', 'its packages start threads"):
            keeper.fork()

    def test_a_parent_that_somebody_slowed_down_or_limited_forks_no_more(self):
        changes = [
            lambda pid: os.setpriority(os.PRIO_PROCESS, pid, min(19, os.getpriority(os.PRIO_PROCESS, pid) + 5)),
            lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64)),
        ]
        if len(os.sched_getaffinity(0)) > 1:
            changes.append(lambda pid: os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))}))
        for change in changes:
            keeper = self.ready()
            run = keeper.fork()
            run.connection.close()
            waited(run.pid)
            change(keeper.process.pid)
            with self.assertRaisesRegex(AssertionError, "''"):
                keeper.fork()
            self.assertEqual(keeper.process.wait(PATIENCE), 0)

    def test_a_parent_that_opened_an_accelerator_is_not_forked_from(self):
        # No test machine has the file: a descriptor with that name under /proc stands for it.
        files = {
            "gpu.py": """
                import os
                readlink = os.readlink
                kept = open(__file__)
                mine = "/proc/self/fd/%d" % kept.fileno()
                os.readlink = lambda path: "/dev/nvidia0" if path == mine else readlink(path)
            """
        }
        keeper = self.keeper("gpu", files=files)
        self.assertEqual(keeper.said, "no its packages open /dev/nvidia0 when they are imported")

    def test_a_package_that_cannot_be_imported_is_named(self):
        files = {"broken.py": "raise SystemExit('two\\nlines\\x1b[2J' + 'x' * 1000)\n"}
        keeper = self.keeper("no_such_package")
        self.assertEqual(
            keeper.said,
            "no it cannot import no_such_package: ModuleNotFoundError: No module named 'no_such_package'",
        )
        keeper = self.keeper("broken", files=files)
        self.assertTrue(keeper.said.startswith("no it cannot import broken: SystemExit: two lines [2Jxxx"), keeper.said)
        self.assertLessEqual(len(keeper.said), 300)

    def test_a_file_of_the_run_that_hides_an_imported_module_is_found_as_by_a_fresh_interpreter(self):
        keeper = self.ready()
        files = {"random.py": "value = 'the run has its own'\n", "json.csv": ""}
        source = "import random, sys\ndef main(): return [random.value, len(sys.argv)]"
        end = keeper.run(source, files=files, environment={"SECRET": "x"})
        self.assertEqual(json.loads(end.result), ["the run has its own", 1], end.stderr)
        for name in ("sitecustomize", "usercustomize"):
            files = {name + ".py": "import sys\nsys.customized = 'yes'\n"}
            source = "import site, sys\ndef main(): return [site.ENABLE_USER_SITE, getattr(sys, 'customized', None)]"
            with self.subTest(name):
                has_user_site, customized = json.loads(keeper.run(source, files=files).result)
                self.assertEqual(customized, "yes" if has_user_site or name == "sitecustomize" else None)
        # A name that hides nothing is no reason to start anew.
        end = keeper.run("import sys\ndef main(): return sys.flags.no_user_site", files={"json.csv": ""})
        self.assertEqual(end.ending, "returned")

    def test_packages_in_the_home_of_the_user_count_where_a_fresh_interpreter_finds_them(self):
        sys.path.insert(0, PACKAGE)
        self.addCleanup(sys.path.remove, PACKAGE)
        import _warm

        with tempfile.TemporaryDirectory() as folder, mock.patch.object(sys, "prefix", folder):
            for text, expected in (
                ("home = /usr/bin\ninclude-system-site-packages = true\n", True),
                ("home = /usr/bin\ninclude-system-site-packages = false\n", False),
                ("home = /usr/bin\n", True),
            ):
                write(folder, {"pyvenv.cfg": text})
                self.assertEqual(_warm.has_user_site(), expected, text)
        with mock.patch.object(sys, "prefix", sys.base_prefix):
            self.assertTrue(_warm.has_user_site())

    def test_processes_of_a_fork_find_its_function_however_they_start(self):
        keeper = self.ready()
        for method in ("fork", "spawn", "forkserver"):
            with self.subTest(method=method):
                end = keeper.run(
                    """
                    import concurrent.futures, multiprocessing
                    def double(x): return 2 * x
                    def main(method):
                        context = multiprocessing.get_context(method)
                        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
                            return list(pool.map(double, [1, 2, 3], timeout=50))
                    """,
                    method,
                )
                self.assertEqual(end.result, "[2,4,6]", end.stderr)

    def test_a_fork_whose_shim_went_away_runs_nothing(self):
        keeper = self.ready()
        run = keeper.fork()
        run.connection.close()
        self.assertEqual(os.waitstatus_to_exitcode(waited(run.pid)), 1)
        # Half an order is none.
        run = keeper.fork()
        socket.send_fds(run.connection, [b'{"environment": {'], [0, 0, 0, 0])
        run.connection.close()
        self.assertEqual(os.waitstatus_to_exitcode(waited(run.pid)), 1)
        self.assertEqual(keeper.run("def main(): return 1").result, "1")

    def test_forks_outlive_the_parent_and_their_end_is_seen(self):
        keeper = self.ready()
        run = keeper.fork()
        keeper.process.kill()
        keeper.process.wait()
        end = run.order("import sys\ndef main(): sys.exit(7)").ended()
        self.assertEqual(end.status, 7)

    def test_a_fork_sends_what_it_yields(self):
        end = self.keeper().run("def main(n):\n    yield from range(n)", 2)
        self.assertEqual((end.status, end.values), (0, "0 1 0\n1 1 1\n"), end.stderr)
        self.assertEqual(json.loads(end.result), {"skyward.dev/values": {"count": 2, "bytes": 2}})

    def test_a_fork_has_its_own_group_and_default_signals_before_anybody_knows_its_number(self):
        files = {"package.py": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"}
        keeper = self.ready("package", files=files)
        run = keeper.fork()
        self.assertEqual((os.getpgid(run.pid), os.getsid(run.pid)), (run.pid, run.pid))
        os.killpg(run.pid, signal.SIGTERM)
        self.assertEqual(os.waitstatus_to_exitcode(waited(run.pid)), -signal.SIGTERM)
        run.connection.close()

    def test_a_kernel_that_gives_no_process_costs_the_parent_no_descriptor(self):
        sys.path.insert(0, PACKAGE)
        self.addCleanup(sys.path.remove, PACKAGE)
        import _warm

        before = os.listdir("/proc/self/fd")
        refusal = OSError(errno.EAGAIN, "no more processes")
        with mock.patch("os.fork", side_effect=refusal), self.assertRaises(OSError):
            _warm.fork()
        real, calls = os.fork, []

        def only_one():
            calls.append(1)
            if os.getpid() != own:
                raise refusal
            return real()

        own = os.getpid()
        with mock.patch("os.fork", side_effect=only_one), self.assertRaisesRegex(OSError, os.strerror(errno.EAGAIN)):
            _warm.fork()
        self.assertEqual((len(calls), os.listdir("/proc/self/fd")), (1, before))

    def test_a_fork_leaves_what_a_fresh_interpreter_leaves(self):
        keeper = self.ready("tempfile")
        begin = "import atexit, ctypes, os, sys, tempfile, threading, time\npath = 'left'\n"
        for name, source in {
            "an open file of its module": "file = open(path, 'w')\ndef main(): file.write('x' * 10)",
            "an open file of another module": "def main():\n tempfile.mine = open(path, 'w')\n tempfile.mine.write('y')",
            "an open file in binary": "def main():\n sys.mine = open(path, 'wb')\n sys.mine.write(b'z')",
            "a file that was detached": """
                import io
                def main():
                    sys.mine = io.TextIOWrapper(io.BytesIO())
                    sys.mine.detach()
            """,
            "a finalizer in a cycle": """
                class Ring:
                    def __del__(self): os.write(1, b"gone")
                ring = Ring()
                ring.me = ring
                def main(): pass
            """,
            "exit handlers": "atexit.register(print, 'last')\natexit.register(print, 'first')\ndef main(): pass",
            "a thread": """
                def later():
                    time.sleep(0.05)
                    print("later")
                def main(): threading.Thread(target=later).start()
            """,
            "a daemon thread": "def main(): threading.Thread(target=time.sleep, args=[99], daemon=True).start()",
            "text of a C library": "def main(): ctypes.CDLL(None).printf(b'from C')",
            "a code": "def main(): sys.exit(7)",
            "a large code": "def main(): sys.exit(256 + 5)",
            "a negative code": "def main(): sys.exit(-1)",
            "words": "def main(): sys.exit('too bad')",
            "an exit handler that raises": "def bad(): raise ValueError('x')\natexit.register(bad)\ndef main(): pass",
            "output that cannot be written": "def main(): print('x', end=''); sys.stdout.flush(); os.close(1)",
            "closed output": "def main(): sys.stdout.close(); sys.stderr.close()",
        }.items():
            with self.subTest(name):
                whole = begin + textwrap.dedent(source)
                forked, fresh = keeper.fork().order(whole), keeper.fork().order(whole, files={"encodings": ""})
                seen = [(end.status, end.outcome, end.stdout, names(end.stderr), end.left) for end in (forked.ended(), fresh.ended())]
                self.assertEqual(*seen)

    def test_the_end_of_one_run_leaves_its_neighbours_alone(self):
        keeper = self.ready()
        with tempfile.NamedTemporaryFile() as go:
            wait = """
                import os
                def main(path):
                    print("waits", flush=True)
                    while not os.path.getsize(path): pass
                    return "on"
            """
            staying = keeper.fork().order(wait, go.name)
            for source, status in (
                ("import os\ndef main(): os._exit(9)", 9),
                ("import os\ndef main(): os.kill(os.getpid(), 11)", -signal.SIGSEGV),
                ("import os\ndef main(): os.killpg(0, 15)", -signal.SIGTERM),
            ):
                self.assertEqual(keeper.run(source).status, status)
            endless = keeper.fork().order("def main():\n    while True: pass")
            os.kill(endless.pid, signal.SIGKILL)
            self.assertEqual(endless.ended().status, -signal.SIGKILL)
            go.write(b"1")
            go.flush()
            self.assertEqual(staying.ended().result, '"on"')
        self.assertEqual(keeper.run("def main(): return 1").result, "1")


if __name__ == "__main__":
    unittest.main()
