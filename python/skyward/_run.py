"""Runs the function of one Task. The agent starts it; it is no part of the package's interface.

    python _run.py CALL_FILE RESULT_FD OUTCOME_FD VALUES_FD

CALL_FILE says what to call. The return value goes, as JSON, to the first descriptor, how the call went to the
second. What a generator yields goes to the third, one line for each value: its number, the bytes of its JSON, and the
JSON. This program must start on any Python 3, to say that it is too old.
"""

import os
import sys

RUNNER = os.path.abspath(__file__)
OLDEST = (3, 10)
# Modules whose names stand before no exception: Python's own, and a source that is no module of a package.
UNNAMED = {"builtins", "__main__"}
# Letters of the name of an exception's class; the agent takes no longer one.
LONGEST_NAME = 300


class Refused(Exception):
    """The end of the run: one of the agent's reasons, a sentence for the user, and the class of an exception."""

    def __init__(self, ending, message, exception=""):
        Exception.__init__(self, message)
        self.ending = ending
        self.message = message
        self.exception = exception


def main():
    # Python has put our own folder at the front of the path; the Task's directory belongs there.
    sys.path[0] = os.getcwd()
    call_file = sys.argv[1]
    result_fd, outcome_fd, values_fd = map(int, sys.argv[2:5])
    # Nothing the Task starts shall inherit them.
    for descriptor in (result_fd, outcome_fd, values_fd):
        os.set_inheritable(descriptor, False)
    report(outcome_fd, run, call_file, result_fd, values_fd)


def report(outcome_fd, work, *arguments):
    """Does the work, says how it ended, and exits."""
    here = os.getcwd()
    try:
        status = worked(outcome_fd, work, *arguments)
    except (AttributeError, ImportError, NameError, TypeError):
        name = hiding(here)
        if not name:
            raise
        sys.__excepthook__(*sys.exc_info())
        message = (
            "the source has a module %s, which hides the one that Python or skyward brings and that functions need: "
            "rename its file" % name
        )
        say(message)
        # Not by finish(): json may be the module that is hidden.
        os.write(outcome_fd, ('{"ending": "bad_source", "message": "%s"}' % message).encode("ascii"))
        status = 1
    sys.exit(status)


def hiding(here):
    """A module of the Task's directory that has the name of one that this program may need; None if there is none."""
    for name in sorted({"skyward", *getattr(sys, "stdlib_module_names", ())}.intersection(sys.modules)):
        path = getattr(sys.modules[name], "__file__", None) or ""
        if path.startswith(os.path.join(here, "")):
            return name
    return None


def worked(outcome_fd, work, *arguments):
    """Does the work and says how it ended. Returns the exit code."""
    try:
        work(*arguments)
        finish(outcome_fd, "returned", "")
        status = 0
    except Refused as refused:
        if refused.ending != "raised":
            say(refused.message)
        finish(outcome_fd, refused.ending, refused.message, refused.exception)
        status = 1
    except OSError as error:
        import errno

        if error.errno != errno.ENOSPC:
            raise
        finish(outcome_fd, "no_room", "the disk of the machine is full: the return value could not be written")
        status = 1
    return status


def run(call_file, result_fd, values_fd):
    import json

    call, args, kwargs = read_call(call_file)
    limit = call["result_limit"]
    with around("around_app"), around("around_process"):
        function, name = function_of(call)
        with around("around_task"):
            value = invoke(function, name, args, kwargs)
            if is_generator(value):
                data = Yields(values_fd, call["value_limit"]).drain(value, limit)
            else:
                data = encode(value, json, limit)
    write(data, result_fd, limit)


def read_call(call_file):
    """What to call, and its arguments."""
    import json

    if sys.version_info < OLDEST:
        raise Refused(
            "bad_source",
            "functions need Python 3.10 or newer, the machine has %d.%d: set the Pool's image.python"
            % sys.version_info[:2],
        )
    with open(call_file, encoding="utf-8") as file:
        call = json.load(file)
    args, kwargs = json.loads(call["args"]), json.loads(call["kwargs"])
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise Refused("bad_source", "args must be a list and kwargs a mapping")
    return call, args, kwargs


def function_of(call):
    """The function, with its module imported, and its name."""
    if call.get("pickle"):
        function = unpickled(call["pickle"])
        name = getattr(function, "__name__", type(function).__name__)
        sys.argv = [name]
        return function, name
    if call.get("source"):
        with open(call["source"], encoding="utf-8") as file:
            source = file.read()
        sys.argv = [call["source"]]
        # Processes that multiprocessing spawns get this path and import the module by its name. At the
        # end, so that nothing beside the source takes the place of what the Task imports.
        sys.path.append(os.path.dirname(call["source"]))
        module = load(call["module"], call["source"], source)
    else:
        sys.argv = [call["module"]]
        module = imported(call["module"])
    name = call["entrypoint"]
    return entrypoint_of(module, name), name


class Nothing:
    """A context without hooks."""

    def __enter__(self):
        pass

    def __exit__(self, *failure):
        pass


def around(name):
    """The hooks of that name. Only what has imported their module can have added one, and without one the
    package is not imported, which takes longer than all the rest of a start."""
    hooks = sys.modules.get("skyward._hooks")
    return hooks.entered(getattr(hooks, name)) if hooks else Nothing()


def within(name, function, *arguments):
    """Calls the function around which the hooks of that name are entered."""
    if "skyward._hooks" not in sys.modules:
        return function(*arguments)
    with around(name):
        return function(*arguments)


def load(name, path, source):
    """A module made from the source."""
    import types

    try:
        code = compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise Refused(
            "bad_source", "%s in line %s: %s" % (type(error).__name__, error.lineno, error.msg)
        ) from None
    except ValueError as error:
        raise Refused("bad_source", "the source cannot be compiled: %s" % error) from None
    module = types.ModuleType(name)
    module.__file__ = path
    # So that pickle, dataclasses and typing find what is defined in it.
    sys.modules[name] = module
    UNNAMED.add(name)
    guarded(exec, code, module.__dict__)
    return module


def unpickled(pickle):
    """The function of a pickle, which may run any code: it is the Task's."""
    from pickle import loads

    from skyward import _pickled

    try:
        data = _pickled.unpacked(pickle)
    except _pickled.Unreadable as error:
        raise Refused("bad_source", str(error)) from None
    try:
        function = guarded(loads, data)
    except Refused as refused:
        # The traceback is in the log.
        raise Refused("bad_source", _pickled.misfit(refused.message, pickle)) from None
    if not callable(function):
        raise Refused("bad_source", "the pickle holds no function but %s" % article(type(function).__name__))
    return function


def imported(name):
    """A module of the Task's directory, or of a package of the image."""
    import importlib.util

    try:
        # Not importlib.import_module, whose own frames would stand in tracebacks.
        guarded(__import__, name)
    except Refused as refused:
        # The traceback is in the log. Was it this module that is missing, or one that it imports?
        parts = name.split(".")
        parents = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        for parent in parents:
            try:
                found = importlib.util.find_spec(parent)
            except ModuleNotFoundError as error:
                if error.name != parent:
                    break
                raise Refused("bad_source", no_package(parent)) from None
            except Exception:
                break
            if found is None:
                raise Refused("bad_source", absent(parent)) from None
        if refused.message.startswith(("SyntaxError: ", "IndentationError: ", "TabError: ")):
            raise Refused("bad_source", refused.message) from None
        raise
    return sys.modules[name]


def absent(name):
    import pkgutil

    found = sorted(module.name for module in pkgutil.iter_modules([os.getcwd()]))[:20]
    there = "modules there: %s" % ", ".join(found) if found else "there are no modules"
    return "there is no module %s in the source or among the packages of the image (%s)" % (name, there)


def no_package(name):
    above = name.rpartition(".")[0]
    path = getattr(sys.modules.get(above), "__file__", None)
    return "there is no module %s, because %s is %s and no folder of modules: write %s if that is meant, else rename it" % (
        name,
        above,
        "the file " + os.path.basename(path) if path else "a module",
        above,
    )


def entrypoint_of(module, entrypoint):
    """The function of that name."""
    target = module
    for part in entrypoint.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            raise Refused("bad_source", missing(module, entrypoint)) from None
    if not callable(target):
        raise Refused(
            "bad_source", "the entrypoint %s is no function but a %s" % (entrypoint, type(target).__name__)
        )
    return target


def missing(module, entrypoint):
    import types

    found = [
        name
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__
    ]
    if not found:
        return "the source has no function %s; it defines no function at all" % entrypoint
    return "the source has no function %s; it has %s: set function.entrypoint" % (
        entrypoint,
        ", ".join(sorted(found)[:20]),
    )


def invoke(function, name, args, kwargs):
    check_arguments(function, name, args, kwargs)
    return called(function, args, kwargs)


def check_arguments(function, name, args, kwargs):
    import inspect

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        signature = None  # Written in C: it checks for itself.
    if signature is not None:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Refused(
                "bad_source",
                "the arguments do not fit %s%s: %s%s" % (name, signature, error, booleans(kwargs)),
            ) from None


def called(function, args, kwargs):
    value = guarded(function, *args, **kwargs)
    # Of what most functions return none is awaitable, and the question alone takes a part of the time of a short item.
    if type(value) in PLAIN:
        return value
    import inspect

    if inspect.isawaitable(value):
        import asyncio

        async def wait():
            return await value

        value = guarded(asyncio.run, wait())
    return value


def is_generator(value):
    import inspect

    return inspect.isgenerator(value) or inspect.isasyncgen(value)


class Yields:
    """Sends what a generator yields, each value before the next one is computed. A reader that is slow, such as a
    disk, blocks the generator."""

    def __init__(self, descriptor, limit):
        import json

        self.json = json
        self.descriptor = descriptor
        self.limit = limit
        self.count = 0
        self.bytes = 0

    def drain(self, generator, limit):
        """Runs the generator to its end. Returns, as JSON, how much it yielded, and what it returned."""
        if hasattr(generator, "__anext__"):
            import asyncio

            returned = guarded(asyncio.run, self.drain_async(generator))
        else:
            returned = guarded(self.drain_sync, generator)
        sent = {"count": self.count, "bytes": self.bytes}
        data = self.json.dumps({"skyward.dev/values": sent}, separators=(",", ":")).encode("ascii")
        if returned is None:
            return data
        return data[:-1] + b',"skyward.dev/returned":' + encode(returned, self.json, limit) + b"}"

    def drain_sync(self, generator):
        while True:
            try:
                value = next(generator)
            except StopIteration as end:
                return end.value
            self.send(value)

    async def drain_async(self, generator):
        async for value in generator:
            self.send(value)

    def send(self, value):
        what = "value %d of the generator" % self.count
        data = encode(value, self.json, self.limit, what)
        if len(data) > self.limit:
            raise too_large(len(data), self.limit, what)
        send_all(b"%d %d %s\n" % (self.count, len(data), data), self.descriptor)
        self.count += 1
        self.bytes += len(data)


def booleans(kwargs):
    """What to do about arguments whose names YAML has made `true` or `false`."""
    names = [name for name in ("true", "false") if name in kwargs]
    if not names:
        return ""
    return (
        "; kwargs has %s: kubectl reads the names y, n, yes, no, on and off as booleans, "
        'so write them in quotes, such as "n": 0' % " and ".join(names)
    )


def guarded(function, *args, **kwargs):
    """Calls the Task's code; what it raises is printed without our own frames. A process that this code has forked
    ends here: only the process that was asked has an answer."""
    asked = os.getpid()
    try:
        value = function(*args, **kwargs)
        if os.getpid() != asked:
            raise SystemExit(0)
        return value
    except (SystemExit, Refused):
        raise
    except BaseException as error:
        import traceback

        report = traceback.TracebackException.from_exception(error)
        strip(report, set())
        say("".join(report.format()), end="")
        if os.getpid() != asked:
            raise SystemExit(1) from None
        last = [line for line in report.format_exception_only() if line.strip()]
        # Notes and further lines of a message follow the line that names the exception.
        message = last[0].strip() if last else type(error).__name__
        if isinstance(error, SyntaxError):
            message = "%s: %s" % (type(error).__name__, error)
        raise Refused("raised", message, class_name(type(error))) from None


def class_name(kind):
    """Name of an exception's class, as rules of a Task write it."""
    module, name = getattr(kind, "__module__", None), kind.__qualname__
    if isinstance(module, str) and module not in UNNAMED:
        name = "%s.%s" % (module, name)
    return name[:LONGEST_NAME]


def strip(report, seen):
    """Leaves our own frames out of a traceback and of the tracebacks it came from."""
    if report is None or id(report) in seen:
        return
    seen.add(id(report))
    import traceback

    frames = [frame for frame in report.stack if frame.filename != RUNNER]
    report.stack = traceback.StackSummary.from_list(frames)
    strip(report.__cause__, seen)
    strip(report.__context__, seen)
    for inner in getattr(report, "exceptions", None) or ():
        strip(inner, seen)


RETURNED = "the return value"
PLAIN = {type(None), bool, int, float, str, bytes, list, tuple, dict}
# The encoder of JSON, once json is imported.
ENCODER = None


def encode(value, json, limit, what=RETURNED):
    """The value as JSON text in UTF-8, or a sentence on why there is none."""
    global ENCODER
    try:
        if ENCODER is None:
            ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        return ENCODER.encode(value).encode("utf-8")
    except MemoryError:
        raise
    except Exception as error:
        # Of the encoder, or of the value's own methods, which the encoder calls.
        failure = error
    from skyward import _values

    try:
        return _values.write(value, limit)
    except _values.TooLarge as error:
        raise too_large(error.size, limit, what) from None
    except _values.Unwritable as error:
        unwritable = error
    try:
        problem = find_problem(value, "value", [])
        if problem and what != RETURNED:
            problem = "%s: %s" % (what, problem)
    except RecursionError:
        problem = "%s is nested too deeply" % what
    except Exception:
        problem = None  # The value's own methods raise.
    problem = problem or "%s is not JSON: %s: %s" % (what, type(failure).__name__, failure)
    raise Refused("not_json", "%s; as a whole it cannot be pickled: %s" % (problem, unwritable))


HINTS = {
    "set": "a list, such as sorted(...)",
    "frozenset": "a list, such as sorted(...)",
    "bytes": "text, such as base64.b64encode(...).decode()",
    "bytearray": "text, such as base64.b64encode(...).decode()",
    "ndarray": "a list, with .tolist()",
    "Tensor": "a number or a list, with .tolist()",
    "DataFrame": "a list, with .to_dict('records')",
    "datetime": "text, with .isoformat()",
    "date": "text, with .isoformat()",
    "Decimal": "a float or text",
    "generator": "a list, with list(...)",
    "async_generator": "a list, such as [value async for value in ...]",
    "coroutine": "its result: await it",
}


def find_problem(value, path, above):
    """The first part of a value that is not JSON, as a sentence; None where all of it is."""
    if value is None or isinstance(value, (bool, int)):
        return None
    if isinstance(value, str):
        try:
            value.encode("utf-8")
            return None
        except UnicodeEncodeError:
            return "%s is text that is not Unicode (it holds half a surrogate pair)" % path
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return "%s is %r, which JSON does not have; return None or text instead" % (path, value)
        return None
    if any(value is one for one in above):
        return "%s contains itself" % path
    if len(above) > 900:
        return "the return value is nested too deeply"
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, (str, int, float, bool, type(None))):
                return "%s has a key that is %s; keys must be text" % (path, article(type(key).__name__))
            found = find_problem(item, "%s[%r]" % (path, key), above + [value])
            if found:
                return found
        return None
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            found = find_problem(item, "%s[%d]" % (path, index), above + [value])
            if found:
                return found
        return None
    kind = type(value)
    hint = HINTS.get(kind.__name__)
    if hint is None and hasattr(value, "item") and kind.__module__ == "numpy":
        hint = "a plain number, with .item()"
    return "%s is %s; return %s" % (path, article(kind.__name__), hint or "JSON: None, bool, int, float, str, list or dict")


def article(word):
    return ("an " if word[:1].lower() in "aeio" else "a ") + word


def too_large(size, limit, what=RETURNED):
    return Refused(
        "too_large",
        "%s is %d bytes of JSON, more than the limit of %d: write it to a volume or a bucket "
        "and %s its name" % (what, size, limit, "return" if what == RETURNED else "yield"),
    )


def write(data, descriptor, limit):
    if len(data) > limit:
        raise too_large(len(data), limit)
    send_all(data, descriptor)


def send_all(data, descriptor):
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def finish(descriptor, ending, message, exception=""):
    import json

    # An exception may name a file whose name is no UTF-8; half a surrogate pair is no JSON to the agent.
    message = message[:4000].encode("utf-8", "replace").decode()
    text = json.dumps({"ending": ending, "message": message, "exception": exception})
    os.write(descriptor, text.encode("ascii"))


def say(message, end="\n"):
    """Prints it, if that is possible: work may have closed or replaced both streams, and its end is told all the same."""
    for tell in (lambda: sys.stdout.flush(), lambda: print(message, end=end, file=sys.stderr, flush=True)):
        try:
            tell()
        except Exception:
            continue


if __name__ == "__main__":
    main()
