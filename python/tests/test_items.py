"""Items of a map, as the shim of their place sees them: this process is the shim."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

from skyward import _items

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "skyward")
PATIENCE = 60
NAMES = {number: name for name, number in _items.ENDINGS.items()} | {
    _items.BEGAN: "began",
    _items.WAITS: "waits",
    _items.DIED: "died",
}


class Place:
    """A worker, and the shim's end of its channel."""

    def __init__(self, case, source, processes, args=(), limit=10**6, threads=1, files=None):
        temporary = tempfile.TemporaryDirectory()
        case.addCleanup(temporary.cleanup)
        folder = temporary.name
        path = os.path.join(folder, "job.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(source))
        call = os.path.join(folder, "call.json")
        with open(call, "w", encoding="utf-8") as file:
            value = {"source": path, "module": "job", "entrypoint": "main", "result_limit": limit}
            how = {"processes": processes, "threads": threads, "args": json.dumps(list(args)), "kwargs": "{}"}
            json.dump({**value, **how}, file)
        for name, text in (files or {}).items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        ours, theirs = socket.socketpair()
        self.channel = ours
        ours.settimeout(PATIENCE)
        self.outcome_file = os.path.join(folder, "outcome")
        self.output = os.path.join(folder, "output")
        with open(self.outcome_file, "wb") as outcome, open(self.output, "wb") as output, theirs:
            self.process = subprocess.Popen(
                [sys.executable, os.path.join(PACKAGE, "_items.py"), call, str(theirs.fileno()), str(outcome.fileno())],
                pass_fds=[theirs.fileno(), outcome.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": os.path.dirname(PACKAGE), "PYTHONUNBUFFERED": "1"},
            )
        case.addCleanup(self.kill)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.channel.close()

    def send(self, index, item=None):
        data = b"" if item is None else json.dumps(item).encode()
        self.channel.sendall(_items.ITEM.pack(index, len(data)) + data)

    def take(self, count):
        data = b""
        while len(data) < count:
            more = self.channel.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def hear(self):
        index, ending, *lengths = _items.END.unpack(self.take(_items.END.size))
        message, exception, value = (self.take(length) for length in lengths)
        return index, NAMES[ending], message.decode(), exception.decode(), value

    def run(self, index, item=None):
        """How an item ended; the numbers of its process and of the next one's stay in `numbers`."""
        self.send(index, item)
        self.numbers = {}
        return self.ended(index)

    def ended(self, index):
        heard = self.hear()
        while heard[1] in ("began", "waits"):
            self.numbers[heard[1]] = int(heard[2])
            heard = self.hear()
        assert heard[0] == index
        return heard[1:]

    def value(self, index, item=None):
        ending, message, _, value = self.run(index, item)
        assert ending == "returned", (ending, message)
        return json.loads(value)

    def end(self):
        self.channel.shutdown(socket.SHUT_WR)
        status = self.process.wait(PATIENCE)
        with open(self.outcome_file, encoding="utf-8") as file:
            text = file.read()
        return status, json.loads(text) if text else None

    def read(self, name):
        with open(os.path.join(os.path.dirname(self.output), name), encoding="utf-8") as file:
            return file.read()

    def printed(self):
        with open(self.output, encoding="utf-8") as file:
            return file.read()


EACH = ("reuse", "fresh")
# A module that cannot be forked from.
THREADED = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"


class Items(unittest.TestCase):
    def places(self, source, **how):
        """The same function in one process, in forks, and in new interpreters."""
        yield Place(self, source, "reuse", **how)
        yield Place(self, source, "fresh", **how)
        yield Place(self, THREADED + textwrap.dedent(source), "fresh", **how)

    def test_each_item_is_the_first_argument_and_its_value_comes_back_in_order(self):
        for place in self.places("def main(item, more): return [item, more]", args=[7]):
            self.assertEqual(place.value(3, {"a": [1, None]}), [{"a": [1, None]}, 7])
            self.assertEqual(place.value(4, "ä"), ["ä", 7])
            self.assertEqual(place.value(5), [5, 7])
            for index in range(6, 10):
                place.send(index, index * 2)
            heard = []
            while len(heard) < 4:
                one = place.hear()
                if one[1] not in ("began", "waits"):
                    heard.append((one[0], json.loads(one[4])))
            self.assertEqual(heard, [(index, [index * 2, 7]) for index in range(6, 10)])
            self.assertEqual(place.end(), (0, {"ending": "returned", "message": "", "exception": ""}))

    def test_what_one_item_leaves_the_next_one_finds_only_where_processes_are_reused(self):
        source = "seen = []\ndef main(item):\n    seen.append(item)\n    return seen"
        found = []
        for place in self.places(source):
            place.value(0, 1)
            found.append(place.value(1, 2))
        self.assertEqual(found, [[1, 2], [2], [2]])

    def test_an_item_that_raises_names_its_exception_and_the_next_one_runs(self):
        source = """
            class Odd(ValueError): pass
            def main(item):
                if item % 2: raise Odd(f"{item} is odd")
                return item
        """
        for place in self.places(source):
            self.assertEqual(place.run(0, 1), ("raised", "job.Odd: 1 is odd", "Odd", b""))
            self.assertEqual(place.value(1, 2), 2)
            self.assertIn("in main", place.printed())
            self.assertNotIn("_items.py", place.printed())

    def test_arguments_that_do_not_fit_and_values_that_cannot_be_returned_are_named(self):
        for place in self.places("def main(): pass"):
            ending, message, _, _ = place.run(0, 1)
            self.assertEqual(ending, "bad_source")
            self.assertIn("do not fit main()", message)
        for place in self.places("def main(item): return (x for x in [1])"):
            self.assertEqual(place.run(0, 1)[0], "not_json")
        source = "async def main(item): yield 1"
        ending, message, _, _ = Place(self, source, "reuse").run(0, 1)
        self.assertEqual(ending, "not_json")
        self.assertIn("async_generator; return a list", message)
        for place in self.places("def main(item): return 'x' * item", limit=100):
            self.assertEqual(place.run(0, 99)[0], "too_large")
            self.assertEqual(place.value(1, 98), "x" * 98)

    def test_a_value_comes_back_the_same_from_every_kind_of_process(self):
        source = """
            import collections, enum
            class Number(enum.IntEnum): ONE = 1
            Pair = collections.namedtuple("Pair", "a b")
            itself = []
            itself.append(itself)
            values = [None, 1.5, 10**20, "ä\\n", Number.ONE, Pair(1, [2]), {"a": {1: None, True: "b"}}, [[], {}, ()]]
            others = [float("nan"), [float("inf")], itself, {(1, 2): 3}, ["\\ud800"], (x for x in [])]
            def main(item): return (values + others)[item]
        """
        told = []
        for place in self.places(source):
            told.append([place.run(index) for index in range(14)])
            self.assertEqual([json.loads(value) for _, _, _, value in told[-1][2:4]], [10**20, "ä\n"])
        # A generator is neither JSON nor a pickle; its number in memory is its process's.
        self.assertEqual([how.pop()[0] for how in told], ["not_json"] * 3)
        self.assertEqual(told[0], told[1])
        self.assertEqual(told[0], told[2])

    def test_a_file_of_the_source_takes_the_place_of_no_module_that_runs_the_items(self):
        # With a thread of the module each item gets a new interpreter.
        threads = "import threading, time\nthreading.Thread(target=time.sleep, args=[99], daemon=True).start()\n"
        for processes, source in (("reuse", ""), ("fresh", ""), ("fresh", threads)):
            source += "def main(item): return {item}"
            place = Place(self, source, processes, files={"skyward.py": "x = 1\n"})
            self.assertEqual(place.run(0, 7)[0], "returned")

    def test_arithmetic_keeps_no_item_from_a_fork_and_has_as_many_threads_as_usual(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("this Python has no NumPy")
        asks = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n"
        source = """
            import numpy, os
            def main(item):
                numpy.ones((400, 400)) @ numpy.ones((400, 400))
                return [os.getppid(), len(os.listdir("/proc/self/task")), os.environ.get("OMP_NUM_THREADS")]
        """
        for begin, expected in (("", [len(os.sched_getaffinity(0)), None]), (asks, [1, "1"])):
            place = Place(self, begin + textwrap.dedent(source), "fresh")
            for index in range(2):
                self.assertEqual(place.value(index), [place.process.pid, *expected])
            self.assertEqual(place.printed(), "")
        self.assertTrue(numpy)

    def test_items_that_cannot_be_forked_are_told_why(self):
        place = Place(self, THREADED + "def main(item): return item", "fresh")
        self.assertEqual(place.value(3), 3)
        why = "its packages start threads when they are imported (2 run)"
        self.assertEqual(
            place.printed(), f"each item starts a new interpreter, since this one cannot be forked: {why}\n"
        )

    def test_a_module_that_cannot_be_imported_ends_the_worker_before_any_item(self):
        for processes in EACH:
            place = Place(self, "import no_such_module", processes)
            self.assertRaises(EOFError, place.hear)
            status, outcome = place.end()
            self.assertEqual((status, outcome["ending"]), (1, "raised"))

    def test_a_process_that_ends_early_is_said_to_have_and_the_next_item_runs(self):
        source = """
            import os, signal, sys
            def main(item):
                if item == "exit": sys.exit(3)
                if item == "leave": os._exit(0)
                if item == "kill": os.kill(os.getpid(), signal.SIGKILL)
                return item
        """
        _, *fresh = self.places(source)
        for place in fresh:
            self.assertEqual(place.run(0, "exit")[:2], ("died", "exited 3"))
            self.assertEqual(place.run(1, "leave")[:2], ("died", "exited 0"))
            self.assertEqual(place.run(2, "kill")[:2], ("died", "signaled 9"))
            self.assertEqual(place.value(3, "on"), "on")
        reused = Place(self, source, "reuse")
        reused.send(0, "exit")
        self.assertRaises(EOFError, reused.hear)
        self.assertEqual(reused.process.wait(PATIENCE), 3)

    def test_a_process_can_be_ended_by_its_number_and_what_it_left_ends_with_it(self):
        source = """
            import subprocess, time
            def main(item):
                if item == "hang":
                    open("begun", "w").close()
                    time.sleep(1000)
                return subprocess.Popen(["sleep", "1000"]).pid
        """
        _, *fresh = self.places(source)
        for place in fresh:
            left = place.value(0, "leave")
            self.assertRaises(ProcessLookupError, self.find, left)
            place.send(1, "hang")
            number = place.numbers.get("waits") or int(place.hear()[2])
            # Before that it may have no order yet.
            while not os.path.exists(os.path.join(os.path.dirname(place.output), "begun")):
                self.assertIsNone(place.process.poll())
                os.sched_yield()
            os.killpg(number, signal.SIGTERM)
            self.assertEqual(place.ended(1)[:2], ("died", "signaled 15"))

    def find(self, pid):
        """Raises once the process is gone, or is a zombie that nobody reaps here."""
        for _ in range(10_000):
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                    state = file.read().rpartition(")")[2].split()[0]
            except FileNotFoundError:
                state = "Z"
            if state == "Z":
                raise ProcessLookupError
            os.sched_yield()

    def test_forks_have_random_numbers_of_their_own(self):
        place = Place(self, "import random\ndef main(item): return random.random()", "fresh")
        self.assertEqual(len({place.value(index) for index in range(20)}), 20)

    def children(self, place):
        pid = place.process.pid
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
            return [int(number) for number in file.read().split()]

    def waiting(self, place):
        """The process that waits for an item, and a descriptor that tells its end."""
        (pid,) = self.children(place)
        process = os.pidfd_open(pid)
        self.addCleanup(os.close, process)
        return pid, process

    def has_ended(self, process):
        self.assertEqual(select.select([process], [], [], PATIENCE)[0], [process])

    def test_the_process_of_the_next_item_is_there_before_it_and_has_run_nothing(self):
        source = """
            import os
            seen = []
            def main(item):
                seen.append(item)
                return [os.getpid(), os.getpgid(0), seen, os.environ["SKYWARD_ITEM_INDEX"]]
        """
        place = Place(self, source, "fresh")
        self.assertEqual(place.value(0)[0], place.numbers["began"])
        for index in range(1, 4):
            (waiting,) = self.children(place)
            self.assertEqual(place.numbers["waits"], waiting)
            self.assertEqual(place.value(index), [waiting, waiting, [index], str(index)])
            self.assertNotIn("began", place.numbers)

    def test_an_item_does_not_fail_because_the_process_that_waited_for_it_was_killed(self):
        place = Place(self, "import os\ndef main(item): return [os.getpid(), len(item)]", "fresh")
        place.value(0, "")
        for size in (10, 200_000):
            waiting, process = self.waiting(place)
            os.kill(waiting, signal.SIGKILL)
            self.has_ended(process)
            pid, length = place.value(1, "x" * size)
            self.assertNotEqual(pid, waiting)
            self.assertEqual(pid, place.numbers["began"])
            self.assertEqual(length, size)
            self.assertNotIn(waiting, self.children(place))

    def test_the_process_that_waits_ends_with_its_parent(self):
        for end in (Place.end, Place.kill):
            place = Place(self, "def main(item): return item", "fresh")
            place.value(0)
            _, process = self.waiting(place)
            end(place)
            self.has_ended(process)

    def test_an_item_in_a_process_of_its_own_ends_like_an_interpreter(self):
        source = """
            import atexit, threading
            kept = open("kept", "w")
            kept.write("import\\n")
            def late(item):
                threading.main_thread().join()
                kept.write(f"thread {item}\\n")
            def main(item):
                global own
                own = open(f"own-{item}", "w")
                own.write("written")
                own.itself = own
                atexit.register(kept.write, f"exit {item}\\n")
                threading.Thread(target=late, args=[item]).start()
                return item
        """
        _, fork, interpreter = self.places(source)
        for place in (fork, interpreter):
            for item in range(2):
                self.assertEqual(place.value(item, item), item)
                self.assertEqual(place.read(f"own-{item}"), "written")
        self.assertEqual(fork.read("kept"), "import\nthread 0\nexit 0\nthread 1\nexit 1\n")
        fork.end()
        self.assertEqual(fork.read("kept").count("import"), 1)

    def test_a_file_that_an_item_has_open_is_written_whatever_else_the_item_has_made_or_closed(self):
        source = """
            import os
            def main(many):
                global kept
                first, second = open("first", "w"), open("second", "w")
                kept = [[] for _ in range(many)]
                second.write("written")
                second.itself = second
                first.close()
                os.close(0)
        """
        for many in (0, 10_000):
            place = Place(self, source, "fresh")
            place.value(0, many)
            self.assertEqual(place.read("second"), "written")

    def test_an_exit_handler_of_the_module_runs_once_and_not_with_each_item(self):
        source = """
            import os, tempfile
            folder = tempfile.TemporaryDirectory()
            def main(item): return [folder.name, os.path.isdir(folder.name)]
        """
        place = Place(self, source, "fresh")
        for index in range(3):
            name, is_there = place.value(index)
            self.assertTrue(is_there)
        place.end()
        self.assertFalse(os.path.exists(name))

    def test_what_python_does_at_the_end_for_records_processes_and_temporary_folders_it_does_for_each_item(self):
        source = """
            import logging.handlers, multiprocessing.util, os, tempfile, time
            log = logging.getLogger()
            log.addHandler(logging.handlers.MemoryHandler(100, target=logging.FileHandler("log")))
            folder = tempfile.TemporaryDirectory()
            resident = multiprocessing.Process(target=time.sleep, args=[1000], daemon=True)
            resident.start()
            def work(item, reading):
                os.read(reading, 1)
                with open(f"child {item}", "w") as file: file.write("done")
            def main(item):
                global own, child, writing
                log.error("record %s", item)
                own = tempfile.TemporaryDirectory()
                reading, writing = os.pipe()
                child = multiprocessing.get_context("fork").Process(target=work, args=[item, reading])
                child.start()
                os.write(writing, b"x")
                os.kill(resident.pid, 0)
                return [own.name, folder.name]
        """
        place = Place(self, source, "fresh")
        for item in range(2):
            own, shared = place.value(item, item)
            self.assertFalse(os.path.exists(own))
            self.assertTrue(os.path.isdir(shared))
            self.assertEqual(place.read(f"child {item}"), "done")
        self.assertEqual(place.read("log"), "record 0\nrecord 1\n")
        self.assertEqual((place.end()[0], place.printed()), (0, ""))

    def test_an_import_that_changes_the_directory_does_so_once_for_each_process(self):
        for place in self.places("import os\nos.makedirs('sub', exist_ok=True)\nos.chdir('sub')\ndef main(item): return os.getcwd()"):
            folder = os.path.join(os.path.dirname(place.output), "sub")
            self.assertEqual([place.value(index) for index in range(2)], [folder, folder])

    def test_a_process_that_an_item_forks_has_no_answer(self):
        source = """
            import os
            def main(item):
                pid = os.fork()
                if pid == 0:
                    if item == "raise": raise ValueError("in the child")
                    return "x" * 1000
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        """
        for place in (*self.places(source), Place(self, source, "reuse", threads=2)):
            self.assertEqual(place.value(0, "raise"), 1)
            self.assertIn("ValueError: in the child", place.printed())
            self.assertEqual(place.value(1, "return"), 0)
            self.assertEqual(place.value(2, "raise"), 1)

    def test_what_an_item_puts_into_the_place_of_a_stream_is_no_end_of_its_process(self):
        source = """
            import sys
            class Quiet:
                def write(self, text): return len(text)
            sys.stdout = Quiet()
            def main(item):
                sys.stderr = None
                return item
        """
        self.assertEqual(Place(self, source, "fresh").value(0, 5), 5)

    def test_a_function_that_awaits_is_awaited(self):
        for place in self.places("async def main(item): return item + 1"):
            self.assertEqual(place.value(0, 1), 2)

    def test_a_module_that_holds_an_accelerator_is_not_forked_from(self):
        # No test has the device: a link to it from the list of descriptors is what counts.
        source = """
            import os
            from skyward import _warm
            descriptor = os.open("/dev/null", os.O_RDONLY)
            _warm.DEVICES = ("/dev/null",)
            parent = os.getpid()
            def main(item): return [os.getpid() == parent]
        """
        place = Place(self, source, "fresh")
        # A new interpreter has imported the module itself, a fork has not.
        self.assertEqual(place.value(0), [True])

    def test_threads_run_so_many_items_at_the_same_time_and_each_has_its_own_end(self):
        source = """
            import threading
            meet = threading.Barrier(3)
            def main(item):
                if item == "meet":
                    meet.wait(60)
                    return threading.current_thread().name
                if item == "raise": raise ValueError(item)
                return item
        """
        place = Place(self, source, "reuse", threads=3)
        for index in range(3):
            place.send(index, "meet")
        heard = [place.hear() for _ in range(3)]
        self.assertEqual(sorted(one[0] for one in heard), [0, 1, 2])
        self.assertEqual(sorted(json.loads(one[4]) for one in heard), ["item-0", "item-1", "item-2"])
        self.assertEqual(place.run(3, "raise")[:3], ("raised", "ValueError: raise", "ValueError"))
        self.assertEqual(place.value(4, {"a": 1}), {"a": 1})
        self.assertEqual(place.end()[0], 0)

    def test_an_item_that_exits_or_never_ends_keeps_no_other_thread_from_its_item(self):
        source = """
            import sys, threading, time
            def main(item):
                if item == "exit": sys.exit(3)
                if item == "hang": threading.Event().wait()
                return item
        """
        place = Place(self, source, "reuse", threads=2)
        place.send(0, "hang")
        for index in range(1, 4):
            self.assertEqual(place.run(index, "exit")[:2], ("died", "exited 3"))
            self.assertEqual(place.value(10 + index, index), index)

    def test_one_thread_that_ends_the_process_ends_it_for_all(self):
        source = """
            import os, threading
            def main(item):
                if item == "exit": os._exit(7)
                threading.Event().wait()
        """
        place = Place(self, source, "reuse", threads=2)
        place.send(0, "hang")
        place.send(1, "exit")
        self.assertRaises(EOFError, place.hear)
        self.assertEqual(place.process.wait(PATIENCE), 7)

    def test_no_line_is_of_two_threads(self):
        source = """
            import sys
            def main(item):
                for _ in range(300):
                    print(item * 20, item * 20, file=sys.stderr if item == "c" else sys.stdout)
        """
        place = Place(self, source, "reuse", threads=3)
        for index, item in enumerate("abc"):
            place.send(index, item)
        self.assertEqual({place.hear()[1] for _ in range(3)}, {"returned"})
        place.end()
        lines = place.printed().splitlines()
        self.assertEqual(sorted(lines), sorted(f"{item * 20} {item * 20}" for item in "abc" for _ in range(300)))

    def test_what_an_item_prints_goes_to_no_block_of_another_thread(self):
        source = """
            import threading
            import skyward
            is_silent, is_over = threading.Event(), threading.Event()
            @skyward.silent
            def hold():
                print("hidden")
                is_silent.set()
                is_over.wait(60)
            def main(item):
                if item == "silent": return hold()
                is_silent.wait(60)
                print("seen")
                raise ValueError("told")
        """
        place = Place(self, source, "reuse", threads=2)
        place.send(0, "silent")
        self.assertEqual(place.run(1, "loud")[:2], ("raised", "ValueError: told"))
        # Its thread has flushed what it printed by now.
        self.assertIn("seen\n", place.printed())
        self.assertIn('raise ValueError("told")', place.printed())
        self.assertNotIn("hidden", place.printed())

    def test_threads_have_no_variable_for_the_index_of_one_of_them(self):
        place = Place(self, "import os\ndef main(item): return os.environ.get('SKYWARD_ITEM_INDEX')", "reuse", threads=2)
        self.assertIsNone(place.value(5))

    def test_an_item_knows_its_index(self):
        for place in self.places("import os\ndef main(item): return os.environ['SKYWARD_ITEM_INDEX']"):
            self.assertEqual(place.value(17, None), "17")


if __name__ == "__main__":
    unittest.main()
