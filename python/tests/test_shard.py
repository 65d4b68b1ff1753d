"""shard: disjoint, complete, aligned, and of the type that was given."""

import array
import collections
import json
import os
import subprocess
import sys
import unittest
from unittest import mock

import skyward


def parts(*data, nodes, **options):
    return [skyward.shard(*data, node=node, total_nodes=nodes, **options) for node in range(nodes)]


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

    def test_several_arrays_stay_aligned(self):
        x, y = list(range(9)), tuple(str(n) for n in range(9))
        for part_x, part_y in parts(x, y, nodes=2, shuffle=True):
            self.assertIsInstance(part_x, list)
            self.assertIsInstance(part_y, tuple)
            self.assertEqual([str(n) for n in part_x], list(part_y))

    def test_the_type_is_kept(self):
        for data in ([1, 2, 3], (1, 2, 3), "abc", b"abc", bytearray(b"abc"), collections.deque([1, 2, 3])):
            for shuffle in (False, True):
                with self.subTest(kind=type(data).__name__, shuffle=shuffle):
                    for part in parts(data, nodes=2, shuffle=shuffle):
                        self.assertIs(type(part), type(data))
        self.assertEqual(skyward.shard(range(6), node=1, total_nodes=2), range(1, 6, 2))

    def test_a_sequence_that_cannot_be_rebuilt_comes_back_as_a_list(self):
        self.assertEqual(skyward.shard(array.array("i", [1, 2, 3]), node=0, total_nodes=2), [1, 3])

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
        with self.assertRaises(TypeError):
            skyward.shard()

    def test_numpy_and_torch_are_not_imported(self):
        code = "import sys, skyward; skyward.shard([1], node=0, total_nodes=1); print({'numpy', 'torch'} & set(sys.modules))"
        environment = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.dirname(skyward.__file__)))
        output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        self.assertEqual(output.stdout.strip(), "set()")

    def test_arrays_of_numpy_stay_arrays(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not installed")
        data = numpy.arange(20).reshape(10, 2)
        found = parts(data, nodes=3, shuffle=True)
        self.assertIsInstance(found[0], numpy.ndarray)
        self.assertEqual(sorted(numpy.concatenate(found)[:, 0].tolist()), list(range(0, 20, 2)))

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
