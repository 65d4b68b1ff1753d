"""Where plugins will come between a run and its function. The lists are empty, and no part of the interface yet.

Each hook gives a context manager. Those of a list are entered in its order and left in the other one, also when
the function raises; an exception stays one, whatever a hook answers to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

Hook = Callable[[], AbstractContextManager[object]]

around_app: list[Hook] = []
"""Around all that a run does on its machine."""
around_process: list[Hook] = []
"""Around what one process of it does: the import of its module, and its calls."""
around_task: list[Hook] = []
"""Around one call of the function."""


@contextmanager
def entered(hooks: list[Hook]) -> Iterator[None]:
    """Enters the hooks of a list."""
    failure: BaseException | None = None
    with ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(hook())
        try:
            yield
        except BaseException as error:
            failure = error
            raise
    if failure is not None:
        raise failure
