"""The function runner: each way a function can end, as the agent learns it."""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

from skyward import _run

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "skyward")


class End:
    def __init__(self, status, outcome, result, stderr, stdout, values):
        self.status = status
        self.outcome = json.loads(outcome) if outcome else None
        self.result = result
        self.stderr = stderr
        self.stdout = stdout
        self.values = values

    @property
    def ending(self):
        return self.outcome and self.outcome["ending"]

    @property
    def message(self):
        return self.outcome and self.outcome["message"]

    @property
    def exception(self):
        return self.outcome and self.outcome["exception"]


def call(
    source,
    *args,
    entrypoint="main",
    limit=10**6,
    value_limit=10**5,
    module=None,
    pickle=None,
    files=None,
    python_path="",
    **kwargs,
):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "job.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(source or ""))
        call_file = os.path.join(folder, "call.json")
        with open(call_file, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "source": None if module or pickle else path,
                    "pickle": pickle,
                    "module": module or "job",
                    "entrypoint": entrypoint,
                    "args": json.dumps(args),
                    "kwargs": json.dumps(kwargs),
                    "result_limit": limit,
                    "value_limit": value_limit,
                },
                file,
            )
        # As on a machine: the Task's directory is not that of its source.
        work = os.path.join(folder, "work")
        os.mkdir(work)
        for name, text in (files or {}).items():
            os.makedirs(os.path.dirname(os.path.join(work, name)), exist_ok=True)
            with open(os.path.join(work, name), "w", encoding="utf-8") as file:
                file.write(textwrap.dedent(text))
        files = [tempfile.TemporaryFile() for _ in range(3)]
        fds = [file.fileno() for file in files]
        process = subprocess.run(
            [sys.executable, os.path.join(PACKAGE, "_run.py"), call_file, *map(str, fds)],
            pass_fds=fds,
            cwd=work,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, [os.path.dirname(PACKAGE), python_path]))},
            capture_output=True,
            timeout=60,
        )
        contents = []
        for file in files:
            with file:
                file.seek(0)
                contents.append(file.read().decode())
        result, outcome, values = contents
        return End(process.returncode, outcome, result, process.stderr.decode(), process.stdout.decode(), values)


class Returns(unittest.TestCase):
    def test_a_value_becomes_json(self):
        end = call("def main(a, *, b=1): return {'sum': a + b, 'ö': [None, True, 1.5]}", 2, b=3)
        self.assertEqual((end.status, end.ending), (0, "returned"))
        self.assertEqual(json.loads(end.result), {"sum": 5, "ö": [None, True, 1.5]})

    def test_nothing_becomes_null(self):
        self.assertEqual(call("def main(): pass").result, "null")

    def test_an_async_function_is_awaited(self):
        end = call("import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    return 7")
        self.assertEqual(end.result, "7")

    def test_the_entrypoint_may_be_a_method(self):
        end = call("class Job:\n    @staticmethod\n    def go(): return 1", entrypoint="Job.go")
        self.assertEqual(end.result, "1")

    def test_dataclasses_and_pickle_find_the_module(self):
        end = call(
            """
            from __future__ import annotations
            import dataclasses, pickle
            @dataclasses.dataclass
            class Point:
                x: int
            def main():
                return pickle.loads(pickle.dumps(Point(3))).x
            """
        )
        self.assertEqual(end.result, "3", end.stderr)

    def test_processes_that_start_from_nothing_find_the_function(self):
        for method in ("spawn", "forkserver"):
            with self.subTest(method=method):
                end = call(
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

    def test_what_lies_beside_the_source_hides_no_module(self):
        end = call("import sys, os\ndef main(): return sys.path[-1] == os.path.dirname(__file__) != ''")
        self.assertEqual(end.result, "true", end.stderr)

    def test_the_package_can_be_imported_and_the_runner_is_not_in_the_way(self):
        end = call("import skyward, sys, os\ndef main(): return [skyward.__name__, sys.path[0] == os.getcwd()]")
        self.assertEqual(json.loads(end.result), ["skyward", True])


def lines(end):
    """The values of a stream: each line has their number, their size and their JSON."""
    found = []
    for number, line in enumerate(end.values.splitlines()):
        index, size, text = line.split(" ", 2)
        assert (int(index), int(size)) == (number, len(text.encode())), line
        found.append(json.loads(text))
    return found


class Yields(unittest.TestCase):
    def test_a_generator_sends_its_values_and_returns_how_much_it_sent(self):
        end = call("def main(n):\n    for x in range(n): yield {'step': x, 'line': 'a\\nö'}", 3)
        self.assertEqual((end.status, end.ending), (0, "returned"), end.stderr)
        self.assertEqual(lines(end), [{"step": x, "line": "a\nö"} for x in range(3)])
        self.assertEqual(json.loads(end.result), {"skyward.dev/values": {"count": 3, "bytes": 75}})

    def test_an_async_generator_does_so_too_and_its_loop_goes_on_between_values(self):
        end = call(
            """
            import asyncio
            async def main():
                task = asyncio.create_task(asyncio.sleep(0.01, 7))
                yield 1
                yield await task
            """
        )
        self.assertEqual((end.status, lines(end)), (0, [1, 7]), end.stderr)

    def test_each_value_is_out_before_the_next_one_is_computed(self):
        reading, writing = os.pipe()
        seen = []

        def main():
            for value in (b"x", "two"):
                yield value
                seen.append(os.read(reading, 1000))

        try:
            _run.Yields(writing, 1000).drain(main(), 1000)
        finally:
            os.close(reading)
            os.close(writing)
        self.assertTrue(seen[0].startswith(b'0 ') and b'"codec":"pickle"' in seen[0], seen)
        self.assertEqual(seen[1], b'1 5 "two"\n')

    def test_what_a_generator_returns_is_kept_beside_what_it_sent(self):
        end = call("def main():\n    yield 1\n    return {'a': b'x'}")
        result = json.loads(end.result)
        self.assertEqual(result["skyward.dev/values"], {"count": 1, "bytes": 1})
        self.assertEqual(result["skyward.dev/returned"]["skyward.dev/value"]["codec"], "pickle")
        self.assertEqual(json.loads(call("def main():\n    return 5\n    yield").result)["skyward.dev/returned"], 5)

    def test_what_was_sent_before_a_generator_raised_stays(self):
        end = call("def main():\n    yield 1\n    raise ValueError('no')")
        self.assertEqual((end.ending, end.message, lines(end), end.result), ("raised", "ValueError: no", [1], ""))
        self.assertNotIn("_run.py", end.stderr)

    def test_a_value_that_is_too_large_for_a_stream_ends_it_by_name(self):
        for value in ("'x' * 99", "b'x' * 99"):
            end = call(f"def main():\n    yield 0\n    yield {value}", value_limit=100)
            self.assertEqual((end.ending, lines(end)), ("too_large", [0]))
            self.assertRegex(end.message, "^value 1 of the generator is [0-9]+ bytes of JSON, more than the limit of 100:")
            self.assertIn("yield its name", end.message)

    def test_a_value_that_can_be_written_in_no_way_ends_a_stream_by_name(self):
        end = call("async def main():\n    yield 0\n    yield [lambda: 1]")
        self.assertEqual((end.ending, lines(end)), ("not_json", [0]), end.stderr)
        self.assertIn("value 1 of the generator: value[0] is a function; return JSON", end.message)

    def test_a_child_of_the_function_does_not_get_the_stream(self):
        end = call(
            """
            import subprocess, sys
            def main():
                yield subprocess.run([sys.executable, "-c", "import os; print(len(os.listdir('/proc/self/fd')))"],
                                     capture_output=True, text=True).stdout
            """
        )
        self.assertEqual(lines(end), ["4\n"], "three of its own, and that of the list")


class Hooks(unittest.TestCase):
    ADD = """
        import contextlib
        from skyward import _hooks
        @contextlib.contextmanager
        def hook(name):
            print("+" + name)
            try:
                yield
            except BaseException as error:
                print("!" + type(error).__name__)
            finally:
                print("-" + name)
        """

    def test_there_is_no_hook_and_none_is_looked_for(self):
        end = call("import sys\ndef main(): return [name for name in sys.modules if name.startswith('skyward')]")
        self.assertEqual(end.result, "[]", "the package would double the time of each start")
        end = call("from skyward import _hooks as h\ndef main(): return [h.around_app, h.around_process, h.around_task]")
        self.assertEqual(end.result, "[[],[],[]]")

    def test_hooks_are_around_a_call_in_their_order(self):
        source = self.ADD + """
        _hooks.around_task += [lambda: hook("a"), lambda: hook("b")]
        def main(): print("call"); return 1
        """
        end = call(source)
        self.assertEqual((end.ending, end.result), ("returned", "1"), end.stderr)
        self.assertEqual(end.stdout.split(), ["+a", "+b", "call", "-b", "-a"])

    def test_an_exception_passes_through_hooks_that_would_keep_it(self):
        source = self.ADD + """
        _hooks.around_task.append(lambda: hook("a"))
        def main(): raise ValueError("no")
        """
        end = call(source)
        self.assertEqual((end.ending, end.message), ("raised", "ValueError: no"), end.stderr)
        self.assertEqual(end.stdout.split(), ["+a", "!Refused", "-a"])

    def test_hooks_of_a_package_are_around_the_import_of_the_module(self):
        files = {
            "sitecustomize.py": self.ADD + """
        _hooks.around_app.append(lambda: hook("app"))
        _hooks.around_process.append(lambda: hook("process"))
        _hooks.around_task.append(lambda: hook("task"))
        """
        }
        end = call("print('import')\ndef main(): print('call')", files=files, python_path=".")
        self.assertEqual(
            end.stdout.split(), ["+app", "+process", "import", "+task", "call", "-task", "-process", "-app"], end.stderr
        )


class Fails(unittest.TestCase):
    def test_an_exception_is_reported_with_its_last_line_and_a_traceback_without_our_frames(self):
        end = call("def helper():\n    raise ValueError('no such thing')\ndef main():\n    helper()")
        self.assertEqual((end.status, end.ending, end.message), (1, "raised", "ValueError: no such thing"))
        self.assertIn('job.py", line 2, in helper', end.stderr)
        self.assertIn("raise ValueError('no such thing')", end.stderr)
        self.assertNotIn("_run.py", end.stderr)

    def test_an_exception_is_told_although_the_streams_are_closed_or_gone(self):
        for left in ("sys.stdout.close(); sys.stderr.close()", "sys.stdout = sys.stderr = None", "sys.stdout = object()"):
            with self.subTest(left):
                end = call(f"import sys\ndef main():\n    {left}\n    raise KeyError('k')")
                self.assertEqual((end.ending, end.message, end.exception), ("raised", "KeyError: 'k'", "KeyError"))

    def test_an_exception_is_told_although_it_is_no_unicode(self):
        # As a path has it whose name on the disk is no UTF-8.
        end = call("def main(): raise ValueError('no \\udcff')")
        self.assertEqual((end.message, end.exception), ("ValueError: no ?", "ValueError"), end.stderr)

    def test_a_process_that_the_function_forks_tells_no_end_of_the_run(self):
        for end_of_child in ("return 2", "raise ValueError('in the child')"):
            with self.subTest(end_of_child):
                end = call(
                    f"""
                    import os
                    def main():
                        pid = os.fork()
                        if pid == 0: {end_of_child}
                        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    """
                )
                self.assertEqual((end.ending, end.result), ("returned", "01"["raise" in end_of_child]), end.stderr)

    def test_an_exception_at_import_is_reported_too(self):
        end = call("import nothing_of_that_name\ndef main(): pass")
        self.assertEqual(end.ending, "raised")
        self.assertEqual(end.message, "ModuleNotFoundError: No module named 'nothing_of_that_name'")

    def test_a_type_error_inside_the_function_is_not_about_its_arguments(self):
        end = call("def main(): len(1)")
        self.assertEqual((end.ending, end.message), ("raised", "TypeError: object of type 'int' has no len()"))

    def test_a_chained_exception_keeps_its_cause_and_hides_our_frames(self):
        end = call("def main():\n    try:\n        1 / 0\n    except ZeroDivisionError as e:\n        raise KeyError('x') from e")
        self.assertEqual(end.message, "KeyError: 'x'")
        self.assertIn("ZeroDivisionError", end.stderr)
        self.assertNotIn("_run.py", end.stderr)

    def test_an_exception_is_told_by_its_class_and_the_module_of_that_unless_it_is_pythons_or_the_tasks_source(self):
        own = "class Refused(OSError): pass\n"
        files = {"exp/__init__.py": "", "exp/errors.py": "class Busy(Exception): pass"}
        for source, exception in (
            ("def main(): raise ValueError('no')", "ValueError"),
            ("def main(): raise FileNotFoundError(2, 'no', 'x')", "FileNotFoundError"),
            ("import json\ndef main(): json.loads('{')", "json.decoder.JSONDecodeError"),
            (own + "def main(): raise Refused()", "Refused"),
            (own + "raise Refused()", "Refused"),
            ("def main():\n    class Inner(Exception): pass\n    raise Inner()", "main.<locals>.Inner"),
            ("from exp.errors import Busy\ndef main(): raise Busy()", "exp.errors.Busy"),
            ("def main(): raise KeyboardInterrupt()", "KeyboardInterrupt"),
            ("def main(): raise type('e' * 1000, (Exception,), {'__module__': None})", "e" * 300),
        ):
            with self.subTest(source=source):
                end = call(source, files=files)
                self.assertEqual((end.ending, end.exception), ("raised", exception), end.stderr)
        end = call(None, module="exp.raises", files={"exp/raises.py": own + "def main(): raise Refused()"})
        self.assertEqual(end.exception, "exp.raises.Refused")

    def test_no_other_end_has_an_exception(self):
        for source in ("def main(): pass", "def main(: pass", "def main(a): pass", "def main(): return (x for x in [])"):
            with self.subTest(source=source):
                self.assertEqual(call(source).exception, "")

    def test_exit_is_an_exit_code(self):
        end = call("import sys\ndef main(): sys.exit(3)")
        self.assertEqual((end.status, end.outcome), (3, None))

    def test_a_syntax_error_names_its_line(self):
        end = call("def main():\n    return 1 +\n")
        self.assertEqual(end.ending, "bad_source")
        self.assertRegex(end.message, "SyntaxError in line 2")

    def test_a_missing_entrypoint_lists_what_there_is(self):
        end = call("from os.path import join\ndef train(): pass\ndef evaluate(): pass")
        self.assertEqual(end.ending, "bad_source")
        self.assertIn("no function main; it has evaluate, train", end.message)
        self.assertNotIn("join", end.message)

    def test_arguments_that_do_not_fit_are_named(self):
        end = call("def main(a, b): pass", 1)
        self.assertEqual(end.ending, "bad_source")
        self.assertIn("main(a, b)", end.message)
        self.assertIn("missing a required argument: 'b'", end.message)

    def test_a_name_that_yaml_made_a_boolean_is_explained(self):
        end = call("def main(n): pass", false=0)
        self.assertEqual(end.ending, "bad_source")
        self.assertIn("missing a required argument: 'n'; kwargs has false", end.message)
        self.assertIn("in quotes", end.message)

    def test_a_value_that_can_be_written_in_no_way_is_named_with_its_place(self):
        cases = {
            "{'a': [0, 1, 2, (x for x in [])]}": "value['a'][3] is a generator; return a list",
            "{(1, 2): open('/dev/null')}": "value has a key that is a tuple",
            "lambda: 1": "value is a function; return JSON",
        }
        for expression, expected in cases.items():
            with self.subTest(expression=expression):
                end = call(f"def main(): return {expression}")
                self.assertEqual((end.ending, end.result), ("not_json", ""), end.stderr)
                self.assertIn(expected, end.message)
                self.assertIn("; as a whole it cannot be pickled: ", end.message)

    def test_a_value_whose_own_methods_raise_is_named(self):
        source = """
            class Lazy(dict):
                def items(self): raise LookupError("not loaded")
                def __reduce_ex__(self, protocol): raise LookupError("not loaded")
            def main(): return Lazy(a=1)
        """
        end = call(source)
        self.assertEqual((end.ending, end.result), ("not_json", ""))
        self.assertIn("the return value is not JSON: LookupError: not loaded", end.message)

    def test_a_value_above_the_limit_is_refused(self):
        end = call("def main(): return 'x' * 1000", limit=100)
        self.assertEqual((end.ending, end.result), ("too_large", ""))
        self.assertIn("1002 bytes of JSON, more than the limit of 100", end.message)
        end = call("def main(): return b'x' * 1000", limit=1100)
        self.assertEqual((end.ending, end.result), ("too_large", ""))
        self.assertRegex(end.message, "is 1[0-9]{3} bytes of JSON, more than the limit of 1100")

    def test_a_function_of_a_module_in_the_directory_is_called(self):
        files = {
            "exp/__init__.py": "",
            "exp/data.py": "RATE = 0.5\n",
            "exp/train.py": """
                from exp.data import RATE

                class Trainer:
                    @staticmethod
                    def run(epochs):
                        return {"epochs": epochs, "rate": RATE, "name": __name__}
            """,
        }
        end = call(None, 3, module="exp.train", entrypoint="Trainer.run", files=files)
        self.assertEqual((end.status, end.ending), (0, "returned"), end.stderr)
        self.assertEqual(json.loads(end.result), {"epochs": 3, "rate": 0.5, "name": "exp.train"})

    def test_a_module_that_is_not_there_is_named_with_those_that_are(self):
        files = {"train.py": "import no_such_package\n", "other.py": "", "broken.py": "def main(:\n"}
        for module in ("trian", "trian.deep", "train.deep"):
            end = call(None, module=module, files=files)
            self.assertEqual((end.status, end.ending), (1, "raised" if module == "train.deep" else "bad_source"))
        end = call(None, module="trian", files=files)
        self.assertIn("there is no module trian", end.message)
        self.assertIn("modules there: broken, other, train", end.message)
        end = call(None, module="train", files=files)
        self.assertEqual(end.ending, "raised")
        self.assertEqual(end.message, "ModuleNotFoundError: No module named 'no_such_package'")
        end = call(None, module="broken", files=files)
        self.assertEqual(end.ending, "bad_source")
        self.assertIn("broken.py, line 1", end.message)
        end = call(None, module="other", files=files)
        self.assertIn("defines no function", end.message)
        end = call(None, module="a-b", files={"x.txt": ""})
        self.assertIn("there are no modules", end.message)

    def test_a_file_in_the_place_of_a_package_is_named_and_the_task_does_not_run_again_as_after_an_exception(self):
        # A folder with an __init__.py would win over the file of the same name.
        files = {"exp.py": "", "exp/train.py": "def main(): return 1\n"}
        for module, named in (("exp.train", "exp is the file exp.py"), ("exp.py", "write exp if that is meant")):
            with self.subTest(module=module):
                end = call(None, module=module, files=files)
                self.assertEqual(end.ending, "bad_source")
                self.assertIn(f"there is no module {module}, because", end.message)
                self.assertIn(named, end.message)

    def test_a_file_of_the_source_that_hides_a_module_which_functions_need_is_named(self):
        train = "def main(fail=False):\n    if fail: raise ValueError('x')\n    return {1}\n"
        for name in ("json", "inspect", "traceback", "skyward"):
            with self.subTest(name=name):
                end = call(None, name == "traceback", module="train", files={name + ".py": "x = 1\n", "train.py": train})
                self.assertEqual((end.status, end.ending), (1, "bad_source"), end.stderr)
                self.assertIn(f"the source has a module {name}, which hides", end.message)
                self.assertIn("Error: ", end.stderr)

    def test_a_file_with_the_name_of_a_module_of_python_that_nothing_needs_is_the_tasks_own(self):
        end = call(None, module="sched", files={"sched.py": "def main(): return 4\n"})
        self.assertEqual(end.result, "4", end.stderr)


if __name__ == "__main__":
    unittest.main()
