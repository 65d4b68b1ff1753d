"""Runs a function for one item after the other. The agent starts it; it is no part of the package's interface.

    python _items.py CALL_FILE CHANNEL_FD OUTCOME_FD

Items come through the channel, a socket, and how each ended goes back there in their order; the end of the channel is
the end of the work. The call says how items share processes (`processes`):

- `reuse`: all items run in this process, and find what earlier ones left.
- `fresh`: each item has a process of its own, forked from this one after the import of the function's module, which
  happens with one thread in each library for arithmetic; forks have as many as usual. Where this process cannot be forked
  from, because the import started a thread of its own or opened an accelerator, each item gets a new interpreter.

With `threads` above 1 so many items run at the same time, each in a thread of this process, and their ends come in any
order.

A process that ends before it has said how its item ended is said to have (`DIED`); where that is this process, the
agent sees it. This process never runs an item twice.
"""

from __future__ import annotations

import functools
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

# The index of an item, and how many bytes of JSON follow: 0 means that the item is its index.
ITEM = struct.Struct("<II")
# Index, ending, and how many bytes of message, class of the exception and value follow.
END = struct.Struct("<IBIII")
# The number of the process of its own in which an item has begun.
BEGAN = 0
# The number of the process in which the next item will begin, unless that says otherwise.
WAITS = 8
ENDINGS = {"returned": 1, "raised": 2, "bad_source": 3, "not_json": 4, "too_large": 5, "no_room": 6}
# The message says how: `exited 3` or `signaled 9`.
DIED = 7
LONGEST_MESSAGE = 4000
# Calls after which Python leaves the code of a function as it is.
REWRITTEN = 32
# A line that is longer is written before its end.
LONGEST_LINE = 8192
# What is read of an order at first: index and length at least. Python allocates so much for it, and most orders are short.
FIRST_READ = 256

Run = Callable[[int, bytes], bytes]


def main() -> None:
    if sys.argv[1] == "one":
        one()
        return
    # Before the Task's directory is searched, which may have a module of that name.
    from skyward import _run

    # As `_run.py` does: the first place of the path is the Task's directory.
    sys.path[0] = os.getcwd()
    call_file, channel, outcome = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for descriptor in (channel, outcome):
        os.set_inheritable(descriptor, False)
    _run.report(outcome, serve, call_file, channel)  # type: ignore[no-untyped-call]


def serve(call_file: str, channel: int) -> None:
    import contextlib
    import socket

    from skyward import _run
    from skyward._warm import single_threaded

    run: Any = _run
    call, args, kwargs = run.read_call(call_file)
    connection = socket.socket(fileno=channel)
    is_fresh = call["processes"] == "fresh"
    directory = os.getcwd()
    with connection, run.around("around_app"), run.around("around_process"):
        with single_threaded() if is_fresh else contextlib.nullcontext():
            function, name = run.function_of(call)
        here = caller(run, function, name, call, args, kwargs)
        if call.get("threads", 1) > 1:
            in_threads(here, connection, call["threads"])
            return
        if not is_fresh:
            answer: Run = here
        elif unfit := why_unfit():
            run.say(f"each item starts a new interpreter, since this one cannot be forked: {unfit}")
            answer = spawning(call_file, connection, directory)
        else:
            run.ENCODER = for_one_value(run.ENCODER)
            answer = forking(here, connection)
        while order := next_order(connection.recv):
            connection.sendall(answer(*order))


def why_unfit() -> str:
    """Why a fork would lack a thread or share an accelerator; nothing where it would not."""
    from skyward import _warm

    try:
        _warm.check()
    except _warm.Unfit as unfit:
        return str(unfit)
    return ""


def in_threads(here: Run, connection: socket.socket, count: int) -> None:
    """Runs the given number of items at the same time, until the channel has ended."""
    import queue
    import threading
    import traceback

    sys.stdout, sys.stderr = Lines(sys.stdout), Lines(sys.stderr)
    orders: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
    lock = threading.Lock()
    own = os.getpid()

    def work() -> None:
        while True:
            order = orders.get()
            if order is None:
                return
            index, item = order
            try:
                answer = here(index, item)
            except SystemExit as left:
                # What would end the process of an item ends its thread.
                code = code_of(left)
                if os.getpid() != own:
                    # The item has forked this process, which has no answer.
                    flush()
                    os._exit(code)
                answer = end(index, DIED, f"exited {code}")
            except BaseException:
                traceback.print_exc()
                answer = end(index, DIED, "exited 1")
            flush()
            try:
                with lock:
                    connection.sendall(answer)
            except OSError:
                # The agent is gone: there is no receiver for further ends.
                os._exit(1)

    # An item that never ends keeps no other one, and not the end of this process, from theirs.
    threads = [threading.Thread(target=work, name=f"item-{number}", daemon=True) for number in range(count)]
    for thread in threads:
        # For `_output.py`: what it prints outside of a block of its own belongs to no other item's block.
        vars(thread)["runs_items"] = True
        thread.start()
    while order := next_order(connection.recv):
        orders.put(order)
    for _ in threads:
        orders.put(None)
    for thread in threads:
        thread.join()


class Lines:
    """A stream to which several threads write: each line is of one of them."""

    def __init__(self, stream: Any) -> None:
        import threading

        self._stream = stream
        self._own = threading.local()

    def write(self, text: str) -> int:
        whole, end_of_line, rest = (getattr(self._own, "rest", "") + text).rpartition("\n")
        if len(rest) > LONGEST_LINE:
            whole, end_of_line, rest = whole + end_of_line + rest, "", ""
        self._own.rest = rest
        if whole or end_of_line:
            self._stream.write(whole + end_of_line)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for text in lines:
            self.write(text)

    def flush(self) -> None:
        rest, self._own.rest = getattr(self._own, "rest", ""), ""
        if rest:
            self._stream.write(rest)
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def next_order(read: Callable[[int], bytes]) -> tuple[int, bytes] | None:
    """The next index and item; nothing if the channel has ended before them."""
    header = receive(read, ITEM.size)
    if not header:
        return None
    index, length = ITEM.unpack(header)
    item = receive(read, length)
    if len(item) < length:
        os._exit(1)
    return index, item


def receive(read: Callable[[int], bytes], count: int) -> bytes:
    """The given number of bytes; none if the channel has ended before the first one."""
    data = read(count) if count else b""
    while data and len(data) < count:
        more = read(count - len(data))
        if not more:
            # The other side is gone in the middle of an item, which has not begun.
            os._exit(1)
        data += more
    return data


def caller(
    run: Any, function: Any, name: str, call: dict[str, Any], args: list[Any], kwargs: dict[str, Any]
) -> Run:
    """Runs an item in this process."""
    import json

    limit = call["result_limit"]
    # All threads have one environment.
    has_variable = call.get("threads", 1) == 1
    # All items are one argument: what fits one of them fits all, and an item in a process of its own need not see to it.
    misfit = ""
    try:
        run.check_arguments(function, name, [None, *args], kwargs)
    except run.Refused as refused:
        misfit = refused.message
    # Makes the encoder, so that no fork does. And Python rewrites the code of a function in its first calls: what is
    # rewritten here no fork has to copy.
    for _ in range(REWRITTEN):
        end(0, ENDINGS["returned"], value=run.encode(run.called(len, [()], {}), json, limit))

    def answer(index: int, item: bytes) -> bytes:
        if has_variable:
            os.environ["SKYWARD_ITEM_INDEX"] = str(index)
        try:
            arguments = [json.loads(item) if item else index, *args]
            if misfit:
                raise run.Refused("bad_source", misfit)
            returned = run.within("around_task", run.called, function, arguments, kwargs)
            value: bytes = run.encode(returned, json, limit)
            if len(value) > limit:
                raise run.too_large(len(value), limit)
            return END.pack(index, ENDINGS["returned"], 0, 0, len(value)) + value
        except run.Refused as refused:
            if refused.ending != "raised":
                run.say(refused.message)
            return end(index, ENDINGS[refused.ending], refused.message, refused.exception)

    return answer


def end(index: int, ending: int, message: str = "", exception: str = "", value: bytes = b"") -> bytes:
    words = [text[:LONGEST_MESSAGE].encode("utf-8", "replace") for text in (message, exception)]
    return END.pack(index, ending, len(words[0]), len(words[1]), len(value)) + b"".join(words) + value


def number(index: int, kind: int, pid: int) -> bytes:
    digits = b"%d" % pid
    return END.pack(index, kind, len(digits), 0, 0) + digits


def for_one_value(usual: Any) -> Any:
    """An encoder for one value. `JSONEncoder` makes its part that is written in C anew for each value, which each fork would do.
    That part notes in which containers it is, and a failure leaves its notes behind: it serves no second value."""
    import types
    from json import encoder

    parts: Any = encoder
    try:
        pieces = parts.c_make_encoder({}, usual.default, parts.encode_basestring, None, ":", ",", False, False, False)
    except (AttributeError, TypeError):
        return usual  # This Python has no such part, or another one.
    return types.SimpleNamespace(encode=lambda value: "".join(pieces(value, 0)))


def forking(here: Run, connection: socket.socket) -> Run:
    """Runs each item in a fork of this process. A fork ends like an interpreter: it waits for the threads of its item,
    runs the exit handlers of its item, and writes what its files have not written. Exit handlers of the import are this
    process's: a temporary directory of the module must outlive the first item. Those of Python's own modules that the
    import has brought serve the item as well.

    The fork for the next item is made while an item runs, and waits for its order: it has no code of an item before
    that, and is ended where no further item comes."""
    memory = os.memfd_create("skyward-item")
    import atexit
    import gc
    import importlib
    import traceback

    from skyward import _warm

    # What a fork needs is imported before it, not in each.
    for name in ("inspect", "io", "json", "random", "weakref", "skyward._shard"):
        importlib.import_module(name)
    _warm.seed()
    # Objects that no collection visits stay shared.
    gc.collect()
    # Forks flush the files of the module, too: none of them may find what the import wrote.
    files = [file for file in _warm.files_of(gc.get_objects()) if not is_standard(file)]
    _warm.flush_files(files)
    # Only what there is something to do for, since each fork does it.
    renewals: list[Callable[[], object]] = [atexit._clear] if atexit._ncallbacks() else []
    # Log records that a handler holds back are written, and processes of the item are waited for.
    for module, name in (("logging", "shutdown"), ("multiprocessing.util", "_exit_function")):
        if module in sys.modules:
            renewals.append(functools.partial(atexit.register, getattr(sys.modules[module], name)))
    renewals += [*_warm.renewals(), *([_warm.disown] if _warm.has_possessions() else [])]
    setters = _warm.thread_setters()
    if setters:
        renewals.append(functools.partial(_warm.restore_threads, setters))
    channel = connection.fileno()
    # This process prints nothing from here on.
    flush()
    gc.freeze()

    def run(reading: int) -> None:
        """In a fork: waits for the order, and runs its item. Does not return."""
        status = 1
        try:
            os.close(channel)
            for renew in renewals:
                renew()
            order = os.read(reading, FIRST_READ)
            if not order:
                # There is no further item, or no parent.
                os._exit(0)
            index, length = ITEM.unpack_from(order)
            item = order[ITEM.size :]
            if len(item) < length:
                item += receive(functools.partial(os.read, reading), length - len(item))
            os.close(reading)
            keep(memory, here(index, item))
            status = 0
        except SystemExit as left:
            status = code_of(left)
        except BaseException:
            traceback.print_exc()
        finally:
            try:
                # Where there is neither, even the look for them would take a part of the time of a short item.
                if threads() > 1 or atexit._ncallbacks() > 0:
                    _warm.end_threads()
                # A thread that goes on may hold a file for ever.
                if threads() == 1:
                    opened = files + _warm.files_of(gc.get_objects())
                    if opened:
                        _warm.flush_files(opened)
                flush()
            finally:
                os._exit(status)

    def fork() -> tuple[int, int]:
        """A fork that waits for its order, and the descriptor that takes it."""
        reading, writing = os.pipe()
        try:
            pid = os.fork()
            if pid == 0:
                os.close(writing)
                run(reading)
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        try:
            # It gets its order, and with it the code of an item, after that.
            os.setpgid(pid, pid)
        except OSError:
            pass  # It has ended.
        return pid, writing

    def begin(index: int, item: bytes) -> int:
        """Hands the order to the fork that waits, or to a new one where there is none."""
        order = ITEM.pack(index, len(item)) + item
        while True:
            is_new = not waiting
            if is_new:
                pid, writing = fork()
                connection.sendall(number(index, BEGAN, pid))
            else:
                pid, writing = waiting.pop()
            try:
                sent = 0
                while sent < len(order):
                    sent += os.write(writing, order[sent:])
            except BrokenPipeError:
                # It ended before it had the whole order. One that has waited may have been killed before there was one.
                if not is_new:
                    os.waitpid(pid, 0)
                    continue
            finally:
                os.close(writing)
            return pid

    waiting: list[tuple[int, int]] = []

    def answer(index: int, item: bytes) -> bytes:
        os.ftruncate(memory, 0)
        pid = begin(index, item)
        try:
            next_one = fork()
        except OSError:
            # There is no room for two: the next item's is made when it comes.
            return told(index, pid, memory)
        waiting.append(next_one)
        # Said together with the end of this item, it wakes neither side once more.
        return number(index, WAITS, next_one[0]) + told(index, pid, memory)

    return answer


def spawning(call_file: str, connection: socket.socket, directory: str) -> Run:
    """Runs each item in a new interpreter, which begins in the directory and not where the import has gone."""
    memory = os.memfd_create("skyward-item")
    import subprocess

    def answer(index: int, item: bytes) -> bytes:
        os.ftruncate(memory, 0)
        os.pwrite(memory, item, 0)
        arguments = [sys.executable, os.path.abspath(__file__), "one", call_file, str(memory), str(index)]
        process = subprocess.Popen(arguments, cwd=directory, pass_fds=[memory], start_new_session=True)
        connection.sendall(number(index, BEGAN, process.pid))
        how = told(index, process.pid, memory)
        # It was reaped, and its object must not wait for another one with its number.
        process.returncode = 0
        return how

    return answer


def one() -> None:
    """A new interpreter for one item."""
    from skyward import _run

    sys.path[0] = os.getcwd()
    call_file, memory, index = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    os.set_inheritable(memory, False)
    run: Any = _run
    item = os.pread(memory, os.fstat(memory).st_size, 0)
    os.ftruncate(memory, 0)
    call, args, kwargs = run.read_call(call_file)
    with run.around("around_app"), run.around("around_process"):
        function, name = run.function_of(call)
        keep(memory, caller(run, function, name, call, args, kwargs)(index, item))


def keep(memory: int, answer: bytes) -> None:
    """Leaves the answer where the other process finds it; it counts when the process has ended well."""
    offset = 0
    while offset < len(answer):
        offset += os.pwrite(memory, answer[offset:], offset)


def told(index: int, pid: int, memory: int) -> bytes:
    """Waits for the process of an item, ends what it left in its group, and says how the item ended."""
    # It is not reaped yet, so no other process has its number.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # There is nobody but the dead one.
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        answer = os.pread(memory, os.lseek(memory, 0, os.SEEK_END), 0)
        if answer:
            return answer
    return end(index, DIED, f"exited {code}" if code >= 0 else f"signaled {-code}")


def code_of(left: SystemExit) -> int:
    """The exit code that an interpreter ends with."""
    if left.code is None:
        return 0
    if isinstance(left.code, int):
        return left.code & 0xFF
    print(left.code, file=sys.stderr)
    return 1


def threads() -> int:
    """How many threads this process has, as far as Python knows."""
    threading: Any = sys.modules.get("threading")
    return threading.active_count() if threading else 1


def is_standard(file: Any) -> bool:
    """Whether it is a standard stream, or the buffer of one."""
    streams = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return any(file is stream or file is getattr(stream, "buffer", None) for stream in streams)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue  # Work may have closed it, or put anything into its place.


if __name__ == "__main__":
    main()
