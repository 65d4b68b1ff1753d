"""Output: who is seen, where it goes, and that calls beside each other do not take each other's."""

import asyncio
import contextlib
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import unittest
from unittest import mock

import skyward


def on_node(node):
    return mock.patch.dict(os.environ, {"SKYWARD_INSTANCE_INFO": json.dumps({"node": node, "total_nodes": 3})})


def printed(function, *args):
    """What a function leaves visible of both streams, and what it returned."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        value = function(*args)
        # Whatever happened, the streams are what they were.
        assert (sys.stdout, sys.stderr) == (out, err)
    return out.getvalue(), err.getvalue(), value


def speak(value=None):
    print("out")
    print("err", file=sys.stderr)
    return value


class Only(unittest.TestCase):
    def test_the_heads_output_is_seen_and_that_of_others_is_not(self):
        function = skyward.stdout(only="head")(speak)
        for node, out in ((0, "out\n"), (1, ""), (2, "")):
            with on_node(node):
                self.assertEqual(printed(function, 7), (out, "err\n", 7))

    def test_stderr_is_another_stream(self):
        function = skyward.stderr(only="head")(speak)
        with on_node(1):
            self.assertEqual(printed(function), ("out\n", "", None))
        with on_node(1):
            self.assertEqual(printed(skyward.stdout(only="head")(function)), ("", "", None))

    def test_a_function_chooses_by_the_workers_information_at_each_call(self):
        function = skyward.stdout(only=lambda info: info.node < 2)(speak)
        for node, out in ((0, "out\n"), (1, "out\n"), (2, "")):
            with on_node(node):
                self.assertEqual(printed(function)[0], out)

    def test_outside_of_a_task_all_is_seen(self):
        with mock.patch.dict(os.environ, {"SKYWARD_INSTANCE_INFO": ""}):
            self.assertEqual(printed(skyward.stdout(only="head")(speak))[0], "out\n")
            self.assertEqual(printed(skyward.silent(speak)), ("", "", None))

    def test_what_only_cannot_be_is_refused_where_it_is_written(self):
        for only in ("tail", 0, None, [0]):
            with self.assertRaisesRegex(ValueError, "only must be"):
                skyward.stdout(only=only)
        with self.assertRaises(TypeError):
            skyward.stderr()(speak)

    def test_the_function_keeps_its_name_and_signature(self):
        import inspect

        function = skyward.silent(speak)
        self.assertEqual((function.__name__, str(inspect.signature(function))), ("speak", "(value=None)"))

    def test_exceptions_pass_and_the_streams_come_back(self):
        @skyward.silent
        def fails():
            print("out")
            raise KeyError("x")

        def caught():
            with self.assertRaises(KeyError):
                fails()
            print("after")

        self.assertEqual(printed(caught), ("after\n", "", None))


class Kinds(unittest.TestCase):
    def test_an_async_function_is_silent_until_its_end_and_others_meanwhile_are_not(self):
        @skyward.silent
        async def quiet(turn):
            print("hidden")
            await turn.wait()
            print("hidden")

        async def loud():
            turn = asyncio.Event()
            waiting = asyncio.create_task(quiet(turn))
            await asyncio.sleep(0)
            print("seen")
            turn.set()
            await waiting

        self.assertEqual(printed(lambda: asyncio.run(loud()))[0], "seen\n")

    def test_a_generator_is_silent_in_its_steps_and_its_caller_between_them_is_not(self):
        said = []

        @skyward.silent
        def steps():
            print("hidden")
            try:
                said.append((yield 1))
                print("hidden")
                yield 2
            except KeyError:
                print("hidden")
                yield 3
            finally:
                print("hidden")
            return 4

        def whole():
            print("a")
            result = yield from steps()
            print("b", result)

        def drive():
            generator = whole()
            values = [next(generator), generator.send("sent"), generator.throw(KeyError())]
            values += list(generator)
            early = steps()
            next(early)
            early.close()
            return values

        self.assertEqual(printed(drive), ("a\nb 4\n", "", [1, 2, 3]))
        self.assertEqual(said, ["sent"])

    def test_an_async_generator_is_silent_in_its_steps_and_others_meanwhile_are_not(self):
        said = []

        @skyward.silent
        async def steps():
            print("hidden")
            try:
                await asyncio.sleep(0)
                said.append((yield 1))
                print("hidden")
                yield 2
            except KeyError:
                print("hidden")
                yield 3
            finally:
                print("hidden")

        async def other():
            print("other")

        async def drive():
            generator, beside = steps(), asyncio.create_task(other())
            values = [await anext(generator), await generator.asend("sent"), await generator.athrow(KeyError())]
            values += [value async for value in generator]
            print("between")
            early = steps()
            await anext(early)
            await early.aclose()
            await beside
            return values

        self.assertEqual(printed(lambda: asyncio.run(drive())), ("other\nbetween\n", "", [1, 2, 3]))
        self.assertEqual(said, ["sent"])

    def test_a_generator_behind_another_decorator_is_silent(self):
        def other(function):
            return lambda *args: function(*args)

        @skyward.silent
        @other
        def steps():
            print("hidden")
            yield 1

        self.assertEqual(printed(lambda: list(steps())), ("", "", [1]))


class Redirected(unittest.TestCase):
    def test_both_streams_go_to_the_callback_as_they_are_written(self):
        texts = []
        with skyward.redirect_output(texts.append) as (out, err):
            self.assertIsInstance(out, skyward.CallbackWriter)
            self.assertIsInstance(err, skyward.CallbackWriter)
            speak()
            print("", end="", flush=True)
            out.write("direct")
            with self.assertRaises(TypeError):
                out.write(b"bytes")
        self.assertEqual(texts, ["out", "\n", "err", "\n", "direct"])

    def test_what_the_callback_prints_goes_on_to_the_stream_outside(self):
        def inner():
            with skyward.redirect_output(lambda text: print(f"<{text}>", end="")):
                print("a", end="")
                with skyward.redirect_output(lambda text: print(text.upper(), end="")):
                    print("b", end="")

        self.assertEqual(printed(inner)[0], "<a><B>")

    def test_a_block_inside_wins_and_the_outer_one_goes_on_after_it(self):
        outer, inner = [], []
        with skyward.redirect_output(outer.append):
            print("1", end="")
            with skyward.redirect_output(inner.append):
                print("2", end="")
            skyward.silent(speak)()
            print("3", end="")
            with contextlib.redirect_stdout(io.StringIO()) as others:
                speak()
                skyward.silent(speak)()
        self.assertEqual((outer, inner, others.getvalue()), (["1", "3", "err", "\n"], ["2"], "out\n"))

    def test_threads_with_blocks_of_their_own_do_not_mix(self):
        texts = [[] for _ in range(4)]
        together = threading.Barrier(4, timeout=30)

        def work(number):
            with skyward.redirect_output(texts[number].append):
                together.wait()
                for _ in range(50):
                    print(number, end="")
                together.wait()

        def all_of_them():
            threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        self.assertEqual(printed(all_of_them)[:2], ("", ""))
        self.assertEqual(texts, [[str(number)] * 50 for number in range(4)])

    def test_a_handler_of_signals_may_print_at_any_moment(self):
        def interrupted():
            for _ in range(200):
                signal.setitimer(signal.ITIMER_REAL, 0.0001)
                for _ in range(20):
                    skyward.silent(speak)()
            signal.setitimer(signal.ITIMER_REAL, 0)

        before = signal.signal(signal.SIGALRM, lambda *_: print("signal"))
        try:
            self.assertEqual(set(printed(interrupted)[0].split()) - {"signal"}, set())
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_a_helper_thread_belongs_to_the_one_block_that_there_is(self):
        texts = []

        def helped():
            with skyward.redirect_output(texts.append):
                helper = threading.Thread(target=print, args=("helped",))
                helper.start()
                helper.join()

        self.assertEqual(printed(helped)[0], "")
        self.assertEqual(texts, ["helped", "\n"])

    def test_what_keeps_the_stream_writes_to_the_real_one_afterwards(self):
        def kept():
            texts = []
            with skyward.redirect_output(texts.append):
                handler = logging.StreamHandler()
                kept_stream = sys.stdout
                logging.getLogger("skyward-test").addHandler(handler)
                logging.getLogger("skyward-test").warning("within")
            logging.getLogger("skyward-test").warning("after")
            logging.getLogger("skyward-test").removeHandler(handler)
            kept_stream.write("kept")
            kept_stream.close()
            print("open")
            return "".join(texts)

        self.assertEqual(printed(kept), ("keptopen\n", "after\n", "within\n"))

    def test_a_silent_stream_is_still_a_file_to_libraries_and_child_processes(self):
        code = """
import subprocess, sys, skyward
@skyward.silent
def main():
    sys.stdout.buffer.write(b"hidden")
    sys.stdout.reconfigure(line_buffering=True)
    subprocess.run([sys.executable, "-c", "print('hidden')"], stdout=sys.stdout, check=True)
    assert not sys.stdout.isatty() and sys.stdout.writable() and sys.stdout.encoding == "utf-8"
main()
print("seen")
"""
        environment = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.dirname(skyward.__file__)))
        end = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual((end.stdout, end.stderr), ("seen\n", ""))


if __name__ == "__main__":
    unittest.main()
