"""DistributedSampler: torch's numbers of indices, on every rank, in every epoch."""

import collections
import json
import os
import random
import sys
import types
import unittest
from unittest import mock

import skyward


def ranks(length, replicas, epoch=0, **options):
    samplers = [skyward.DistributedSampler(range(length), replicas, rank, **options) for rank in range(replicas)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return samplers


class Sampler(unittest.TestCase):
    def test_all_ranks_get_equally_many_and_each_sample_is_loaded(self):
        chance = random.Random(14)
        for _ in range(300):
            length, replicas = chance.randrange(200), chance.randrange(1, 30)
            options = {"shuffle": chance.random() < 0.5, "seed": chance.randrange(100), "epoch": chance.randrange(9)}
            with self.subTest(length=length, replicas=replicas, **options):
                for drop_last in (False, True):
                    samplers = ranks(length, replicas, drop_last=drop_last, **options)
                    found = [list(sampler) for sampler in samplers]
                    each = length // replicas if drop_last else -(-length // replicas)
                    self.assertEqual([len(sampler) for sampler in samplers], [each] * replicas)
                    self.assertEqual([len(part) for part in found], [each] * replicas)
                    times = collections.Counter(index for part in found for index in part)
                    if drop_last:
                        self.assertEqual(set(times.values()) - {1}, set())
                    else:
                        self.assertEqual(set(times), set(range(length)))
                        # As few are repeated as can be, and none more often than another needs it.
                        if length:
                            self.assertLessEqual(max(times.values()) - min(times.values()), 1)

    def test_without_shuffling_the_indices_are_those_of_torch(self):
        self.assertEqual([list(sampler) for sampler in ranks(5, 2, shuffle=False)], [[0, 2, 4], [1, 3, 0]])
        self.assertEqual([list(sampler) for sampler in ranks(1, 3, shuffle=False)], [[0], [0], [0]])
        self.assertEqual([list(sampler) for sampler in ranks(5, 2, shuffle=False, drop_last=True)], [[0, 2], [1, 3]])

    def test_an_epoch_has_an_order_of_its_own_that_comes_back(self):
        (sampler,) = ranks(100, 1)
        first = list(sampler)
        self.assertEqual(first, list(sampler))
        sampler.set_epoch(1)
        self.assertNotEqual(first, list(sampler))
        sampler.set_epoch(0)
        self.assertEqual(first, list(sampler))
        self.assertEqual(first, list(ranks(100, 1, epoch=0, seed=0)[0]))
        self.assertNotEqual(first, list(ranks(100, 1, seed=7)[0]))

    def test_rank_and_number_come_from_torch_else_from_instance_info(self):
        info = json.dumps({"node": 1, "total_nodes": 3})
        distributed = types.SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 5, get_world_size=lambda: 8
        )
        waiting = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False)
        with mock.patch.dict(os.environ, {"SKYWARD_INSTANCE_INFO": info}):
            for module, place in ((distributed, (5, 8)), (waiting, (1, 3)), (None, (1, 3))):
                with mock.patch.dict(sys.modules, {"torch.distributed": module} if module else {}):
                    sampler = skyward.DistributedSampler([1, 2, 3])
                    self.assertEqual((sampler.rank, sampler.num_replicas), place)
        with self.assertRaisesRegex(ValueError, "node must be from 0 to 1"):
            skyward.DistributedSampler([1], num_replicas=2, rank=2)

    def test_a_data_set_may_grow_between_epochs(self):
        data = [1, 2]
        sampler = skyward.DistributedSampler(data, 1, 0, shuffle=False)
        data.append(3)
        self.assertEqual((len(sampler), list(sampler)), (3, [0, 1, 2]))

    def test_it_goes_through_a_loader_of_torch(self):
        try:
            from torch.utils.data import DataLoader
        except ImportError:
            self.skipTest("torch is not installed")
        loader = DataLoader(range(10), batch_size=2, sampler=skyward.DistributedSampler(range(10), 2, 1, shuffle=False))
        self.assertEqual([batch.tolist() for batch in loader], [[1, 3], [5, 7], [9]])


if __name__ == "__main__":
    unittest.main()
