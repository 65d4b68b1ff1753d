"""Functions that arrive as pickles: what the runner makes of them, and how it refuses them."""

import base64
import os
import pickle
import sys
import tempfile
import unittest

from skyward import _pickled
from tests.test_run import call

try:
    import cloudpickle
    import lz4.frame
except ImportError:
    cloudpickle = None

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
WITH_PACKAGES = unittest.skipUnless(cloudpickle, "this Python has no cloudpickle or no lz4")


def packed(data, python=HERE + ".0", version="0.1"):
    """What a client sends of a pickle."""
    return {"python": python, "cloudpickle": version, "data": base64.b64encode(lz4.frame.compress(data)).decode()}


def pickled(function, **more):
    """What a client sends of a function whose module the machine does not have."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        return packed(cloudpickle.dumps(function), version=cloudpickle.__version__, **more)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def run(function, *args, **kwargs):
    # The environment of the tests' interpreter, where cloudpickle and lz4 are.
    return call(None, *args, pickle=function, python_path=os.pathsep.join(filter(None, sys.path)), **kwargs)


def without(package):
    """A folder in which a package is that cannot be imported."""
    folder = tempfile.TemporaryDirectory()
    with open(os.path.join(folder.name, package + ".py"), "w", encoding="utf-8") as file:
        file.write(f"raise ModuleNotFoundError(\"No module named '{package}'\", name='{package}')")
    return folder


class Marks:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


class Reads(unittest.TestCase):
    @WITH_PACKAGES
    def test_a_function_gets_its_arguments_and_keeps_what_it_closes_over(self):
        factor = 7

        def scaled(value, *, more):
            return {"scaled": value * factor, "more": more}

        end = run(pickled(scaled), 6, more=[None])
        self.assertEqual((end.status, end.ending, end.result), (0, "returned", '{"scaled":42,"more":[null]}'), end.stderr)

    @WITH_PACKAGES
    def test_a_module_beside_it_is_found(self):
        def main():
            import beside

            return beside.VALUE

        self.assertEqual(run(pickled(main), files={"beside.py": "VALUE = 3"}).result, "3")

    @WITH_PACKAGES
    def test_what_it_raises_is_told_as_of_any_function(self):
        def main():
            raise ValueError("no")

        end = run(pickled(main))
        self.assertEqual((end.ending, end.message), ("raised", "ValueError: no"))
        self.assertNotIn("_run.py", end.stderr)

    @WITH_PACKAGES
    def test_arguments_that_do_not_fit_are_named_with_the_function(self):
        def main(a):
            return a

        end = run(pickled(main))
        self.assertEqual(end.ending, "bad_source")
        self.assertIn("do not fit main(a)", end.message)

    @WITH_PACKAGES
    def test_a_patch_of_python_is_no_other_python(self):
        for python in (HERE, HERE + ".99", HERE + ".0rc1"):
            self.assertEqual(_pickled.unpacked(packed(b"x", python=python)), b"x")


class Refuses(unittest.TestCase):
    def test_another_python_is_named_and_nothing_is_unpickled(self):
        # Neither package is asked for: no package would help.
        for other in ("3.1.4", "3.99", "4.11.7"):
            with self.assertRaises(_pickled.Unreadable) as caught:
                _pickled.unpacked({"python": other, "cloudpickle": "3", "data": "?"})
            for named in (f"Python {other}", f"the machine has {HERE}", "image.python"):
                self.assertIn(named, str(caught.exception))

    def test_a_package_that_is_missing_is_named_with_the_remedy(self):
        for package in ("cloudpickle", "lz4"):
            with without(package) as folder:
                path = os.pathsep.join([folder, *filter(None, sys.path)])
                end = call(None, pickle={"python": HERE, "cloudpickle": "3", "data": ""}, python_path=path)
            self.assertEqual(end.ending, "bad_source")
            # Where the machine of the tests has neither, the first one is named.
            self.assertRegex(end.message, "No module named '(%s)'" % (package if cloudpickle else "cloudpickle|lz4"))
            self.assertIn("add both to the Pool's image.pip", end.message)

    @WITH_PACKAGES
    def test_what_is_no_single_whole_frame_is_refused(self):
        frame = lz4.frame.compress(b"x" * 1000)
        for data in (b"", b"x", frame[:-1], frame[:10], frame + b"x", frame + frame, pickle.dumps(1)):
            whole = dict(packed(b""), data=base64.b64encode(data).decode())
            with self.assertRaises(_pickled.Unreadable, msg=repr(data)):
                _pickled.unpacked(whole)
        with self.assertRaises(_pickled.Unreadable):
            _pickled.unpacked(dict(packed(b""), data="no Base64!"))

    @WITH_PACKAGES
    def test_a_bomb_is_not_unpacked(self):
        self.assertEqual(len(_pickled.unpacked(packed(bytes(1000)), limit=1000)), 1000)
        for size in (1001, 10**7):
            with self.assertRaises(_pickled.Unreadable) as caught:
                _pickled.unpacked(packed(bytes(size)), limit=1000)
            self.assertIn("longer than 1000 bytes", str(caught.exception))

    @WITH_PACKAGES
    def test_a_missing_module_is_named_with_the_remedy(self):
        data = b"cno_such_module\nmain\n."
        end = run(packed(data))
        self.assertEqual(end.ending, "bad_source")
        self.assertIn("No module named 'no_such_module'; add the package", end.message)

    @WITH_PACKAGES
    def test_what_cannot_be_unpickled_names_both_versions_of_cloudpickle(self):
        end = run(packed(b"ccloudpickle\nno_such_name\n."))
        self.assertEqual(end.ending, "bad_source")
        self.assertIn(f"by cloudpickle 0.1 and the machine has {cloudpickle.__version__}", end.message)
        end = run(dict(packed(b"ccloudpickle\nno_such_name\n."), cloudpickle=cloudpickle.__version__))
        self.assertNotIn("the machine has", end.message)

    @WITH_PACKAGES
    def test_a_pickle_of_no_function_is_refused(self):
        end = run(packed(pickle.dumps([1])))
        self.assertEqual((end.ending, end.message), ("bad_source", "the pickle holds no function but a list"))

    @WITH_PACKAGES
    def test_unpickling_is_done_by_the_run_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "mark")
            sent = packed(pickle.dumps(Marks(path)))
            _pickled.unpacked(sent)
            self.assertFalse(os.path.exists(path), "unpacking is no unpickling")
            run(sent)
            self.assertTrue(os.path.exists(path))


if __name__ == "__main__":
    unittest.main()
