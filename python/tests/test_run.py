"""The function runner: each way a function can end, as the agent learns it."""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "skyward")


class End:
    def __init__(self, status, outcome, result, stderr, stdout):
        self.status = status
        self.outcome = json.loads(outcome) if outcome else None
        self.result = result
        self.stderr = stderr
        self.stdout = stdout

    @property
    def ending(self):
        return self.outcome and self.outcome["ending"]

    @property
    def message(self):
        return self.outcome and self.outcome["message"]


def call(source, *args, entrypoint="main", limit=10**6, **kwargs):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "job.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(source))
        call_file = os.path.join(folder, "call.json")
        with open(call_file, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "source": path,
                    "module": "job",
                    "entrypoint": entrypoint,
                    "args": json.dumps(args),
                    "kwargs": json.dumps(kwargs),
                    "result_limit": limit,
                },
                file,
            )
        # As on a machine: the Task's directory is not that of its source.
        work = os.path.join(folder, "work")
        os.mkdir(work)
        result, outcome = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        fds = (result.fileno(), outcome.fileno())
        process = subprocess.run(
            [sys.executable, os.path.join(PACKAGE, "_run.py"), call_file, *map(str, fds)],
            pass_fds=fds,
            cwd=work,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": os.path.dirname(PACKAGE)},
            capture_output=True,
            timeout=60,
        )
        for file in (result, outcome):
            file.seek(0)
        end = End(
            process.returncode,
            outcome.read().decode(),
            result.read().decode(),
            process.stderr.decode(),
            process.stdout.decode(),
        )
        result.close()
        outcome.close()
        return end


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


class Fails(unittest.TestCase):
    def test_an_exception_is_reported_with_its_last_line_and_a_traceback_without_our_frames(self):
        end = call("def helper():\n    raise ValueError('no such thing')\ndef main():\n    helper()")
        self.assertEqual((end.status, end.ending, end.message), (1, "raised", "ValueError: no such thing"))
        self.assertIn('job.py", line 2, in helper', end.stderr)
        self.assertIn("raise ValueError('no such thing')", end.stderr)
        self.assertNotIn("_run.py", end.stderr)

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

    def test_a_value_that_is_not_json_is_named_with_its_place(self):
        cases = {
            "{'a': [0, 1, 2, {1}]}": "value['a'][3] is a set; return a list",
            "{(1, 2): 3}": "value has a key that is a tuple",
            "[float('nan')]": "value[0] is nan",
            "b'x'": "value is a bytes; return text",
            "object()": "value is an object; return JSON",
            "'\\ud800'": "not Unicode",
        }
        for expression, expected in cases.items():
            with self.subTest(expression=expression):
                end = call(f"def main(): return {expression}")
                self.assertEqual((end.ending, end.result), ("not_json", ""))
                self.assertIn(expected, end.message)
        end = call("def main():\n    a = []\n    a.append(a)\n    return a")
        self.assertEqual((end.ending, end.message), ("not_json", "value[0] contains itself"))

    def test_a_value_above_the_limit_is_refused(self):
        end = call("def main(): return 'x' * 1000", limit=100)
        self.assertEqual((end.ending, end.result), ("too_large", ""))
        self.assertIn("1002 bytes of JSON, more than the limit of 100", end.message)


if __name__ == "__main__":
    unittest.main()
