"""shard: disjoint, complete, aligned, and of the type that was given."""

import array
import collections
import json
import os
import random
import subprocess
import sys
import types
import unittest
from unittest import mock

import skyward
from skyward._shard import permutation


def parts(*data, nodes, **options):
    return [skyward.shard(*data, node=node, total_nodes=nodes, **options) for node in range(nodes)]


class Tensor:
    """What shard needs of a tensor of torch: the real one is used where torch is installed."""

    def __init__(self, values, device="meta"):
        self.values, self.device, self.shape = list(values), device, (len(values),)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return Tensor(self.values[index], self.device)
        assert isinstance(index, Tensor) and index.device == self.device, "an index on another device"
        return Tensor([self.values[position] for position in index.values], self.device)


def as_tensor(values, dtype, device):
    assert dtype == "int64"
    return Tensor(values, device)


TORCH = types.SimpleNamespace(Tensor=Tensor, as_tensor=as_tensor, long="int64")


class Frame:
    """What shard needs of a frame of pandas, whose own brackets choose columns."""

    def __init__(self, rows):
        self.rows, self.shape = list(rows), (len(rows), 2)
        self.iloc = self

    def __getitem__(self, index):
        if isinstance(index, slice):
            return Frame(self.rows[index])
        return Frame([self.rows[position] for position in index])


class Rows(collections.abc.Sequence):
    """A sequence that cannot be made from its elements."""

    def __init__(self, first, second, third):
        self.all = (first, second, third)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return self.all[index]


class Squares(collections.abc.Sequence):
    """A data set that computes its elements, and could be made of them, but would compute them twice."""

    def __init__(self, roots):
        self.roots = roots

    def __len__(self):
        return len(self.roots)

    def __getitem__(self, index):
        return self.roots[index] ** 2


class Lines(collections.abc.Sequence):
    """A data set that takes its elements from a place of its own, whatever its argument is."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return ("a", "b", "c")[index]


class Shard(unittest.TestCase):
    def test_the_parts_are_disjoint_and_complete(self):
        for length in (0, 1, 5, 12, 13):
            for nodes in (1, 2, 4, 7):
                for shuffle in (False, True):
                    with self.subTest(length=length, nodes=nodes, shuffle=shuffle):
                        found = parts(list(range(length)), nodes=nodes, shuffle=shuffle, seed=3)
                        self.assertEqual(sorted(sum(found, [])), list(range(length)))
                        sizes = [len(part) for part in found]
                        self.assertLessEqual(max(sizes) - min(sizes), 1)

    def test_whatever_the_sizes_nothing_is_lost_repeated_or_out_of_step(self):
        chance = random.Random(14)
        for _ in range(150):
            length, nodes = chance.choice([chance.randrange(40), chance.randrange(1000)]), chance.randrange(1, 40)
            shuffle, drop_last, seed = chance.random() < 0.5, chance.random() < 0.5, chance.randrange(1 << 40)
            numbers = list(range(length))
            with self.subTest(length=length, nodes=nodes, shuffle=shuffle, drop_last=drop_last, seed=seed):
                options = {"nodes": nodes, "shuffle": shuffle, "drop_last": drop_last, "seed": seed}
                found = parts(numbers, [str(n) for n in numbers], tuple(numbers), **options)
                for part, texts, pair in found:
                    self.assertEqual((part, texts), (list(pair), [str(n) for n in part]))
                sizes = [len(part) for part, _, _ in found]
                flat = [n for part, _, _ in found for n in part]
                self.assertEqual(len(set(flat)), len(flat))
                if drop_last:
                    self.assertEqual(sizes, [length // nodes] * nodes)
                    self.assertTrue(set(flat) <= set(numbers))
                    if not shuffle:
                        self.assertEqual(sorted(flat), numbers[: length - length % nodes])
                else:
                    self.assertEqual(sorted(flat), numbers)
                    self.assertEqual(sizes, sorted(sizes, reverse=True))
                    self.assertLessEqual(sizes[0] - sizes[-1], 1)

    def test_the_order_is_that_of_every_version_of_python(self):
        self.assertEqual(list(permutation(10, 42)), [7, 3, 2, 8, 5, 6, 9, 4, 0, 1])
        self.assertEqual(list(permutation(0, 1)), [])

    def test_a_seed_is_any_whole_number(self):
        class Number:
            """What NumPy's whole numbers have."""

            def __index__(self):
                return 42

        self.assertEqual(permutation(10, Number()), permutation(10, 42))

    def test_drop_last_gives_all_nodes_equally_many(self):
        for shuffle in (False, True):
            found = parts(list(range(11)), nodes=4, drop_last=True, shuffle=shuffle)
            self.assertEqual([len(part) for part in found], [2, 2, 2, 2])
            self.assertEqual(len(set(sum(found, []))), 8)

    def test_shuffling_depends_on_the_seed_alone(self):
        data = list(range(50))
        once = skyward.shard(data, shuffle=True, seed=1, node=0, total_nodes=2)
        self.assertEqual(once, skyward.shard(data, shuffle=True, seed=1, node=0, total_nodes=2))
        self.assertNotEqual(once, skyward.shard(data, shuffle=True, seed=2, node=0, total_nodes=2))
        self.assertNotEqual(once, skyward.shard(data, node=0, total_nodes=2))
        none = skyward.shard(data, shuffle=True, seed=None, node=0, total_nodes=2)
        self.assertEqual(none, skyward.shard(data, shuffle=True, node=0, total_nodes=2))

    def test_several_arrays_stay_aligned(self):
        x, y = list(range(9)), tuple(str(n) for n in range(9))
        for part_x, part_y in parts(x, y, nodes=2, shuffle=True):
            self.assertIsInstance(part_x, list)
            self.assertIsInstance(part_y, tuple)
            self.assertEqual([str(n) for n in part_x], list(part_y))

    def test_the_type_is_kept(self):
        deque, numbers = collections.deque([1, 2, 3]), array.array("d", [1, 2, 3])
        for data in ([1, 2, 3], (1, 2, 3), "abc", b"abc", bytearray(b"abc"), deque, numbers):
            for shuffle in (False, True):
                with self.subTest(kind=type(data).__name__, shuffle=shuffle):
                    for part in parts(data, nodes=2, shuffle=shuffle):
                        self.assertIs(type(part), type(data))
        self.assertEqual(skyward.shard(range(6), node=1, total_nodes=2), range(1, 6, 2))

    def test_a_sequence_that_cannot_be_rebuilt_comes_back_as_a_list(self):
        self.assertEqual(skyward.shard(Rows(1, 2, 3), node=0, total_nodes=2), [1, 3])
        self.assertEqual(sorted(skyward.shard(Rows(1, 2, 3), shuffle=True, node=0, total_nodes=1)), [1, 2, 3])
        named = collections.namedtuple("named", "a b")(1, 2)
        self.assertEqual(skyward.shard(named, node=1, total_nodes=2), (2,))

    def test_a_data_set_that_computes_its_elements_comes_back_as_a_list_of_them(self):
        for data, expected in ((Squares([1, 2, 3, 4]), [1, 4, 9, 16]), (Lines("path"), ["a", "b", "c"])):
            for shuffle in (False, True):
                with self.subTest(kind=type(data).__name__, shuffle=shuffle):
                    found = parts(data, nodes=2, shuffle=shuffle)
                    self.assertEqual({type(part) for part in found}, {list})
                    self.assertEqual(sorted(sum(found, [])), expected)
        users = collections.UserList([[1], [2], [3]])
        self.assertEqual(parts(users, nodes=2), [collections.UserList([[1], [3]]), collections.UserList([[2]])])

    def test_a_slice_of_a_data_set_in_a_file_is_an_array(self):
        class Stored:
            """What h5py has: it cannot be made of a slice."""

            shape = (3,)

            def __getitem__(self, index):
                return Tensor([1, 2, 3][index])

        part = skyward.shard(Stored(), node=1, total_nodes=2)
        self.assertEqual((type(part), part.values), (Tensor, [2]))

    def test_the_place_comes_from_instance_info(self):
        info = json.dumps({"node": 1, "total_nodes": 3})
        with mock.patch.dict(os.environ, {"SKYWARD_INSTANCE_INFO": info}):
            self.assertEqual(skyward.shard([0, 1, 2, 3, 4]), [1, 4])
            self.assertEqual(skyward.shard([0, 1, 2, 3, 4], node=0), [0, 3])

    def test_what_cannot_be_split_is_refused_with_a_reason(self):
        with self.assertRaisesRegex(ValueError, "one length, not 2, 3"):
            skyward.shard([1, 2], [1, 2, 3], node=0, total_nodes=1)
        with self.assertRaisesRegex(TypeError, "cannot split a generator"):
            skyward.shard((n for n in range(3)), node=0, total_nodes=1)
        with self.assertRaisesRegex(ValueError, "node must be from 0 to 1"):
            skyward.shard([1], node=2, total_nodes=2)
        for data in ({1: 2}, {1, 2}, 3, None):
            with self.assertRaisesRegex(TypeError, f"cannot split a {type(data).__name__}"):
                skyward.shard(data, node=0, total_nodes=1)
        with self.assertRaises(TypeError):
            skyward.shard()

    def test_numpy_and_torch_are_not_imported(self):
        code = "import sys, skyward; skyward.shard([1], node=0, total_nodes=1); print({'numpy', 'torch'} & set(sys.modules))"
        environment = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.dirname(skyward.__file__)))
        output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        self.assertEqual(output.stdout.strip(), "set()")

    def test_frames_are_split_by_rows(self):
        found = [part.rows for part in parts(Frame("abcde"), nodes=2)]
        self.assertEqual(found, [["a", "c", "e"], ["b", "d"]])
        found = [part.rows for part in parts(Frame("abcde"), nodes=2, shuffle=True)]
        self.assertEqual(sorted(found[0] + found[1]), list("abcde"))

    def test_tensors_are_indexed_on_their_own_device(self):
        with mock.patch.dict(sys.modules, {"torch": TORCH}):
            for shuffle in (False, True):
                found = parts(Tensor(range(10)), list(range(10)), nodes=3, shuffle=shuffle)
                for tensor, numbers in found:
                    self.assertIsInstance(tensor, Tensor)
                    self.assertEqual((tensor.values, tensor.device), (numbers, "meta"))

    def test_other_arrays_are_indexed_as_numpy_does_it(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not installed")

        class Jax:
            """As of JAX: no list is an index, and the type is none to call."""

            def __init__(self, values):
                self.values, self.shape = values, values.shape

            def __getitem__(self, index):
                if isinstance(index, list):
                    raise TypeError("use jnp.array(list)")
                return Jax.of(self.values[index])

            @staticmethod
            def of(values):
                return Jax(values)

        for shuffle in (False, True):
            found = parts(Jax(numpy.arange(5)), list(range(5)), nodes=6, shuffle=shuffle)
            for part, numbers in found:
                self.assertIs(type(part), Jax)
                self.assertEqual(part.values.tolist(), numbers)

    def test_arrays_of_numpy_stay_arrays(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not installed")
        for shuffle in (False, True):
            for length in (0, 1, 10):
                data = numpy.arange(2 * length, dtype="float32").reshape(length, 2)
                found = parts(data, list(range(length)), nodes=3, shuffle=shuffle)
                for part, numbers in found:
                    self.assertIs(type(part), numpy.ndarray)
                    self.assertEqual((part.dtype, part.shape), (data.dtype, (len(numbers), 2)))
                    self.assertEqual(part[:, 0].tolist(), [2.0 * n for n in numbers])
        masked = numpy.ma.masked_equal(numpy.arange(6), 3)
        self.assertIs(type(skyward.shard(masked, shuffle=True, node=0, total_nodes=2)), type(masked))
        with self.assertRaisesRegex(TypeError, "without dimensions"):
            skyward.shard(numpy.array(3), node=0, total_nodes=1)

    def test_tensors_of_torch_stay_tensors(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        found = parts(torch.arange(10), nodes=3, shuffle=True)
        self.assertIsInstance(found[0], torch.Tensor)
        self.assertEqual(sorted(torch.cat(found).tolist()), list(range(10)))


if __name__ == "__main__":
    unittest.main()
