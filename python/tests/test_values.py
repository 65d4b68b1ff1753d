"""Return values that are no JSON: each codec, there and back, and the header."""

import base64
import hashlib
import io
import json
import math
import pickle
import sys
import types
import unittest
import unittest.mock

from skyward import _values

try:
    import numpy
except ImportError:
    numpy = None


def written(value, limit=10**6):
    """The header and the bytes of a value."""
    text = _values.write(value, limit)
    whole = json.loads(text)
    header, data = whole.pop("skyward.dev/value"), base64.b64decode(whole.pop("skyward.dev/value.data"), validate=True)
    assert not whole, whole
    in_order = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")).encode()
    assert in_order.startswith(b'{"skyward.dev/value":{'), "also where names are sorted"
    assert text.startswith(b'{"skyward.dev/value":{"codec":'), "a reader knows it by its first bytes"
    assert header["bytes"] == len(data)
    assert header["sha256"] == hashlib.sha256(data).hexdigest()
    assert header["python"] == ".".join(map(str, sys.version_info[:3]))
    return header, data


class Tensor:
    """What a pickle needs of a tensor of torch."""

    def __init__(self, device, requires_grad=True):
        self.device, self.requires_grad = types.SimpleNamespace(type=device), requires_grad

    def detach(self):
        return Tensor(self.device.type, False)

    def cpu(self):
        return Tensor("cpu", self.requires_grad)

    def requires_grad_(self, wanted):
        self.requires_grad = wanted
        return self

    def __reduce_ex__(self, protocol):
        return Tensor, (self.device.type, self.requires_grad)


class Point:
    def __init__(self, x):
        self.x = x


class Values(unittest.TestCase):
    def test_what_is_no_json_is_pickled_and_comes_back(self):
        for value, name in (({1, 2}, "set"), (b"\0\xff", "bytes"), ({(1, 2): 3}, "dict"), ("\ud800", "str")):
            with self.subTest(value=value):
                header, data = written(value)
                self.assertEqual((header["codec"], header["type"]), ("pickle", name))
                self.assertEqual(pickle.loads(data), value)
        header, data = written([math.nan])
        self.assertTrue(math.isnan(pickle.loads(data)[0]))
        header, data = written(Point(3))
        self.assertEqual((header["type"], pickle.loads(data).x), (f"{__name__}.Point", 3))
        around = []
        around.append(around)
        again = pickle.loads(written(around)[1])
        self.assertIs(again[0], again)

    def test_what_cannot_be_pickled_says_why(self):
        class Refusing:
            def __reduce__(self):
                raise OSError("not\nme")

        for value, expected in ((lambda: 1, "Error: "), ((x for x in ()), "TypeError: "), (Refusing(), "OSError: not")):
            with self.assertRaisesRegex(_values.Unwritable, expected):
                _values.write(value, 10**6)

    def test_a_package_that_cannot_write_its_value_says_why_and_a_type_without_a_module_is_written(self):
        with unittest.mock.patch("skyward._values.encode", side_effect=RuntimeError("no such device")):
            with self.assertRaisesRegex(_values.Unwritable, "RuntimeError: no such device"):
                _values.write(1, 1000)
        self.assertEqual(_values.top(type("Odd", (), {"__module__": None})), "None")

    def test_a_value_is_refused_before_it_is_there_twice(self):
        size = len(_values.write(b"x" * 1000, 10**6))
        self.assertEqual(len(_values.write(b"x" * 1000, size)), size)
        with self.assertRaises(_values.TooLarge) as raised:
            _values.write(b"x" * 1000, size - 1)
        self.assertEqual(raised.exception.size, size)

    def test_the_name_of_a_type_is_short_and_harms_no_terminal(self):
        kind = type("\x1b[2J" + "x" * 1000, (), {})
        self.assertEqual(len(_values.name(kind)), 128)
        self.assertTrue(_values.name(kind).isprintable())
        self.assertEqual(_values.name(dict), "dict")

    @unittest.skipIf(numpy is None, "this Python has no NumPy")
    def test_arrays_are_written_without_pickle(self):
        for value in (numpy.arange(6).reshape(2, 3), numpy.float32(1.5), numpy.array(["a", "bc"])):
            with self.subTest(value=value):
                header, data = written(value)
                self.assertEqual((header["codec"], header["packages"]), ("npy", {"numpy": numpy.__version__}))
                again = numpy.load(io.BytesIO(data), allow_pickle=False)
                self.assertEqual((again.dtype, again.tolist()), (value.dtype, value.tolist()))
        self.assertEqual(written(numpy.arange(3))[0]["type"], "numpy.ndarray")

    @unittest.skipIf(numpy is None, "this Python has no NumPy")
    def test_arrays_of_objects_and_kinds_of_arrays_are_pickled_whole(self):
        header, data = written(numpy.array([{1}, None], dtype=object))
        self.assertEqual((header["codec"], pickle.loads(data)[0]), ("pickle", {1}))
        masked = numpy.ma.masked_array([1, 2], mask=[True, False])
        header, data = written(masked)
        self.assertEqual((header["codec"], header["packages"]), ("pickle", {"numpy": numpy.__version__}))
        self.assertEqual(pickle.loads(data).tolist(), [None, 2])

    def test_a_tensor_is_written_by_its_package_as_a_copy_in_main_memory(self):
        test = self

        class Tensor:
            steps = ()

            def __getattr__(self, step):
                def taken():
                    self.steps += (step,)
                    return self

                return taken

        class Torch:
            __name__ = "torch"
            __version__ = "9.9"

            @staticmethod
            def save(tensor, buffer):
                test.assertEqual(tensor.steps, ("detach", "cpu", "clone"))
                buffer.write(b"tensor")

        Torch.Tensor = Tensor
        before = sys.modules.get("torch")
        sys.modules["torch"] = Torch()
        try:
            header, data = written(Tensor())
        finally:
            del sys.modules["torch"]
            if before is not None:
                sys.modules["torch"] = before
        self.assertEqual((header["codec"], data, header["packages"]), ("torch", b"tensor", {"torch": "9.9"}))

    def test_tensors_within_another_value_are_written_as_copies_in_main_memory(self):
        torch = types.SimpleNamespace(__name__="torch", __version__="9.9", Tensor=Tensor)
        tied = Tensor("cuda")
        state = {"tied": [tied, tied], "running": Tensor("cuda", False), "here": Tensor("cpu"), "loss": math.nan}
        with unittest.mock.patch.dict(sys.modules, {"torch": torch}):
            header, data = written(state)
            self.assertRaises(_values.Unwritable, _values.write, [lambda: 1], 10**6)
        self.assertEqual((header["codec"], header["packages"].get("torch")), ("pickle", "9.9"))
        again = pickle.loads(data)
        self.assertIs(*again["tied"])
        found = [again["tied"][0], again["running"], again["here"]]
        self.assertEqual([(one.device.type, one.requires_grad) for one in found], [("cpu", True), ("cpu", False), ("cpu", True)])
        self.assertTrue(math.isnan(again["loss"]))


if __name__ == "__main__":
    unittest.main()
