"""Decides which workers' output is seen, and where it goes.

Python's own sys.stdout and sys.stderr are meant: what C code and child processes write to the
descriptors 1 and 2 goes past. A router takes the place of a stream while something is redirected, and
asks for each write whose it is, so that calls in threads of one process do not take each other's output.
"""

from __future__ import annotations

import functools
import inspect
import io
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TextIO, TypeVar, Union, cast

from skyward._info import InstanceInfo, NotInTaskError, instance_info

F = TypeVar("F", bound=Callable[..., Any])
Only = Union[Literal["head"], Callable[[InstanceInfo], bool]]

_STREAMS = ("stdout", "stderr")


class CallbackWriter(io.TextIOBase):
    """A text stream that passes each text that is written to a function, as it is written.

    `print("a")` writes twice: "a", and the end of its line.
    """

    def __init__(self, callback: Callable[[str], object]) -> None:
        self._callback = callback

    def writable(self) -> bool:
        """Always True."""
        return True

    def write(self, text: str, /) -> int:
        """Calls the function, unless `text` is empty, and returns the number of characters."""
        if not isinstance(text, str):
            raise TypeError(f"what is written must be a str, not a {type(text).__name__}")
        if text:
            self._callback(text)
        return len(text)


@dataclass(frozen=True)
class _Target:
    """Where a context's output goes, and where that of a callback goes meanwhile."""

    stream: TextIO
    outer: _Target | None
    thread: int


_targets: dict[str, ContextVar[_Target | None]] = {
    name: ContextVar(f"skyward_{name}", default=None) for name in _STREAMS
}
# A handler of signals may print while its own thread is at it.
_lock = threading.RLock()


class _Router(io.TextIOBase):
    """Stands in for one of the streams and forwards to where each context wants it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._original: TextIO = getattr(sys, name)
        self._active: list[_Target] = []

    def _target(self) -> _Target:
        mine = _targets[self._name].get()
        if mine is not None:
            return mine
        # A new thread knows nothing of the context that started it. While only one thread redirects, a
        # thread without a word of its own is taken for one of its helpers.
        active = self._active
        threads = {target.thread for target in active}
        is_helper = len(threads) == 1 and threading.get_ident() not in threads
        # A thread that runs items of its own is nobody's helper.
        if is_helper and not hasattr(threading.current_thread(), "runs_items"):
            return active[-1]
        return _Target(self._original, None, 0)

    def write(self, text: str, /) -> int:
        target = self._target()
        # What a callback prints goes further out, and not to the callback again.
        token = _targets[self._name].set(target.outer or target)
        try:
            return target.stream.write(text)
        finally:
            _targets[self._name].reset(token)

    def flush(self) -> None:
        self._target().stream.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._target().stream.isatty()

    def fileno(self) -> int:
        return self._target().stream.fileno()

    def close(self) -> None:
        pass  # The streams behind it stay open.

    def __getattribute__(self, name: str) -> Any:
        # The class has its own of these, which say nothing.
        if name in ("encoding", "errors", "newlines"):
            return getattr(self._target().stream, name)
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target().stream, name)

    def begin(self, stream: TextIO) -> _Target:
        variable = _targets[self._name]
        outer = variable.get() or _Target(self._original, None, 0)
        target = _Target(stream, outer, threading.get_ident())
        # Lists are replaced and never changed: writes read them without a lock.
        self._active = [*self._active, target]
        return target

    def end(self, target: _Target) -> None:
        self._active = [one for one in self._active if one is not target]
        if not self._active and getattr(sys, self._name) is self:
            setattr(sys, self._name, self._original)


@contextmanager
def _redirect(name: str, stream: TextIO) -> Iterator[None]:
    with _lock:
        router = getattr(sys, name)
        if not isinstance(router, _Router):
            router = _Router(name)
            setattr(sys, name, router)
        target = router.begin(stream)
    token = _targets[name].set(target)
    try:
        yield
    finally:
        _targets[name].reset(token)
        with _lock:
            router.end(target)


@functools.cache
def _nowhere() -> TextIO:
    # Never closed: a thread may go on writing after the call that it belonged to.
    return open(os.devnull, "w", encoding="utf-8")


@contextmanager
def redirect_output(callback: Callable[[str], object]) -> Iterator[tuple[CallbackWriter, CallbackWriter]]:
    """Passes what the block prints to `callback`, text by text as it is written, instead of to the log.

    Gives the two writers that stand in for sys.stdout and sys.stderr:

        texts = []
        with skyward.redirect_output(texts.append):
            print("captured")
        "".join(texts)  # "captured\\n"

    What `callback` itself prints is not passed to it again. Blocks in several threads at once each get
    their own output; that of a thread which has no block goes to a block only while that is the only one.
    """
    writers = CallbackWriter(callback), CallbackWriter(callback)
    with ExitStack() as stack:
        for name, writer in zip(_STREAMS, writers, strict=True):
            stack.enter_context(_redirect(name, cast(TextIO, writer)))
        yield writers


def stdout(*, only: Only) -> Callable[[F], F]:
    """A decorator: what the function prints to sys.stdout is seen only from some workers.

    only: "head", or a function that says for an InstanceInfo whether that worker's output is seen. It is
        asked at each call. Outside of a Task all output is seen.

        @skyward.stdout(only=lambda info: info.node < 2)
        def main(): ...

    The function may be a generator or async, or both.
    """
    return _decorator(("stdout",), _condition(only))


def stderr(*, only: Only) -> Callable[[F], F]:
    """A decorator as `stdout`, for sys.stderr: logging, warnings and progress bars write there."""
    return _decorator(("stderr",), _condition(only))


def silent(function: F) -> F:
    """A decorator without arguments: nothing that the function prints is seen, on either stream."""
    return _decorator(_STREAMS, lambda: False)(function)


def _condition(only: Only) -> Callable[[], bool]:
    if only != "head" and not callable(only):
        raise ValueError(f'only must be "head" or a function of an InstanceInfo, not {only!r}')

    def is_seen() -> bool:
        try:
            info = instance_info()
        except NotInTaskError:
            return True
        return bool(only(info)) if callable(only) else info.is_head

    return is_seen


def _decorator(names: tuple[str, ...], is_seen: Callable[[], bool]) -> Callable[[F], F]:
    def quiet() -> AbstractContextManager[object]:
        stack = ExitStack()
        for name in names:
            stack.enter_context(_redirect(name, _nowhere()))
        return stack

    def decorate(function: F) -> F:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                if is_seen():
                    return await function(*args, **kwargs)
                with quiet():
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if is_seen():
                    return function(*args, **kwargs)
                with quiet():
                    value = function(*args, **kwargs)
                # Asked of the value, as another decorator may stand between this one and the function.
                if inspect.isgenerator(value):
                    return _stepwise(value, quiet)
                return _stepwise_async(value, quiet) if inspect.isasyncgen(value) else value

        return cast(F, wrapper)

    return decorate


def _stepwise(
    steps: Generator[Any, Any, Any], quiet: Callable[[], AbstractContextManager[object]]
) -> Generator[Any, Any, Any]:
    """A generator whose steps are quiet, while what its caller does between them is not."""
    step: Callable[[], Any] = functools.partial(next, steps)
    while True:
        with quiet():
            try:
                value = step()
            except StopIteration as end:
                return end.value
        try:
            sent = yield value
            step = functools.partial(steps.send, sent)
        except GeneratorExit:
            with quiet():
                steps.close()
            raise
        except BaseException as error:
            step = functools.partial(steps.throw, error)


async def _stepwise_async(
    steps: AsyncGenerator[Any, Any], quiet: Callable[[], AbstractContextManager[object]]
) -> AsyncGenerator[Any, Any]:
    """The same for an async generator."""
    step: Callable[[], Any] = functools.partial(anext, steps)
    while True:
        with quiet():
            try:
                value = await step()
            except StopAsyncIteration:
                return
        try:
            sent = yield value
            step = functools.partial(steps.asend, sent)
        except GeneratorExit:
            with quiet():
                await steps.aclose()
            raise
        except BaseException as error:
            step = functools.partial(steps.athrow, error)
