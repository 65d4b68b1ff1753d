"""instance_info: a Task sees the values that the controller wrote."""

import json
import os
import tempfile
import unittest
from unittest import mock

import skyward

FULL = {
    "node": 2,
    "worker": 1,
    "total_nodes": 4,
    "workers_per_node": 2,
    "accelerators": 0.5,
    "total_accelerators": 2,
    "head_addr": "10.0.0.1",
    "head_port": 29500,
    "job_id": "job-1",
    "peers": [
        {"node": n, "private_ip": f"10.0.0.{n + 1}", "public_ip": f"203.0.113.{n}" if n else None}
        for n in range(4)
    ],
    "accelerator": {"type": "A100", "count": 0.5, "memory_gb": 40, "is_trainium": False},
    "network": {"interface": "eth0", "bandwidth_gbps": 25},
    "slot": 6,
    "pool_nodes": 8,
    "attempt_id": "task-2",
    "a_field_of_a_later_version": True,
}


class InstanceInfo(unittest.TestCase):
    def test_every_field_is_there(self):
        with mock.patch.dict(os.environ, {"SKYWARD_INSTANCE_INFO": json.dumps(FULL)}):
            info = skyward.instance_info()
        self.assertEqual((info.node, info.worker, info.total_nodes, info.workers_per_node), (2, 1, 4, 2))
        self.assertEqual((info.accelerators, info.total_accelerators), (0.5, 2.0))
        self.assertEqual((info.head_addr, info.head_port, info.job_id), ("10.0.0.1", 29500, "job-1"))
        self.assertEqual([peer.private_ip for peer in info.peers], [f"10.0.0.{n}" for n in range(1, 5)])
        public = ["", "203.0.113.1", "203.0.113.2", "203.0.113.3"]
        self.assertEqual([peer.public_ip for peer in info.peers], public)
        self.assertEqual(info.accelerator.type, "A100")
        self.assertFalse(info.accelerator.is_trainium)
        self.assertEqual(info.network, skyward.NetworkInfo("eth0", 25.0))
        self.assertEqual((info.slot, info.pool_nodes, info.attempt_id), (6, 8, "task-2"))
        self.assertEqual(info.global_worker_index, 5)
        self.assertEqual(info.total_workers, 8)
        self.assertFalse(info.is_head)
        self.assertTrue(info.hostname)

    def test_a_long_description_comes_in_a_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(FULL, file)
            file.flush()
            with mock.patch.dict(os.environ, {"SKYWARD_INSTANCE_INFO_FILE": file.name}):
                self.assertEqual(skyward.instance_info().node, 2)

    def test_a_machine_without_accelerators_has_none(self):
        info = skyward.InstanceInfo.from_mapping({"node": 0, "total_nodes": 1})
        self.assertIsNone(info.accelerator)
        self.assertTrue(info.is_head)
        self.assertTrue(skyward.is_head(info))
        self.assertEqual(info.peers, ())
        self.assertEqual((info.worker, info.workers_per_node, info.slot, info.pool_nodes), (0, 1, 0, 1))

    def test_the_machine_says_which_of_its_places_a_run_has(self):
        for variables, place in (
            ({}, (1, 2)),
            ({"SKYWARD_WORKER": "3", "SKYWARD_WORKERS_PER_NODE": "8"}, (3, 8)),
            ({"SKYWARD_WORKER": "x", "SKYWARD_WORKERS_PER_NODE": "-1"}, (1, 2)),
            ({"SKYWARD_WORKER": "9" * 5000}, (1, 2)),
        ):
            with mock.patch.dict(os.environ, {"SKYWARD_INSTANCE_INFO": json.dumps(FULL), **variables}):
                info = skyward.instance_info()
            self.assertEqual((info.worker, info.workers_per_node), place)
            self.assertEqual(info.global_worker_index, 2 * place[1] + place[0])

    def test_each_process_of_a_task_has_a_rank_of_its_own(self):
        ranks = []
        for node in (0, 1):
            for local_rank in (0, 1, 2):
                several = dict(FULL, node=node, total_nodes=2, local_rank=local_rank, local_world_size=3)
                # A place on the machine is another number, and so is what a launcher inside of the process sets.
                with mock.patch.dict(
                    os.environ, {"SKYWARD_INSTANCE_INFO": json.dumps(several), "SKYWARD_WORKER": "7", "LOCAL_RANK": "9"}
                ):
                    info = skyward.instance_info()
                    self.assertEqual(skyward.shard(range(12)), range(info.rank, 12, 6))
                self.assertEqual((info.local_rank, info.local_world_size, info.world_size), (local_rank, 3, 6))
                ranks.append(info.rank)
        self.assertEqual(ranks, [0, 1, 2, 3, 4, 5])
        alone = skyward.InstanceInfo.from_mapping({"node": 2, "total_nodes": 4})
        self.assertEqual((alone.rank, alone.world_size, alone.local_rank, alone.local_world_size), (2, 4, 0, 1))

    def test_each_process_of_torchrun_has_the_rank_that_torchrun_gave_it(self):
        def process(node, **variables):
            text = json.dumps(dict(FULL, node=node, total_nodes=2, is_head=node == 0, local_rank=0, local_world_size=1))
            with mock.patch.dict(os.environ, {"SKYWARD_INSTANCE_INFO": text, **variables}):
                return skyward.instance_info(), skyward.shard(range(12)), list(skyward.DistributedSampler(range(12)))

        parts, sampled, heads = [], [], []
        for rank in range(4):
            # The second machine met the rendezvous first.
            node, local_rank = 1 - rank // 2, rank % 2
            info, part, samples = process(
                node,
                TORCHELASTIC_RUN_ID="none",
                RANK=str(rank),
                WORLD_SIZE="4",
                LOCAL_RANK=str(local_rank),
                LOCAL_WORLD_SIZE="2",
            )
            self.assertEqual((info.rank, info.world_size), (rank, 4))
            self.assertEqual((info.local_rank, info.local_world_size), (local_rank, 2))
            self.assertEqual((info.node, info.total_nodes), (node, 2), "they are about machines")
            parts.extend(part)
            sampled.extend(samples)
            heads.append(info.is_head)
        self.assertEqual((sorted(parts), sorted(sampled)), (list(range(12)), list(range(12))))
        self.assertEqual(heads, [False, False, True, False])
        # What the operator itself sets is no word of torchrun, nor is what work has broken.
        for variables in (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            {"TORCHELASTIC_RUN_ID": "none"},
            {"TORCHELASTIC_RUN_ID": "1", "RANK": "4", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
            {"TORCHELASTIC_RUN_ID": "1", "RANK": "x", "WORLD_SIZE": "y", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
        ):
            info = process(1, **variables)[0]
            self.assertEqual((info.rank, info.world_size, info.local_world_size), (1, 2, 1), variables)

    def test_each_run_has_one_head_whatever_places_and_processes_it_has(self):
        def heads(runs):
            found = []
            for node, is_head, variables in runs:
                text = json.dumps(dict(FULL, node=node, is_head=is_head, worker=0, workers_per_node=1))
                with mock.patch.dict(os.environ, {"SKYWARD_INSTANCE_INFO": text, **variables}):
                    found.append(skyward.is_head())
            return found

        second_place = {"SKYWARD_WORKER": "1", "SKYWARD_WORKERS_PER_NODE": "2"}
        self.assertEqual(heads([(0, True, second_place)]), [True])
        self.assertEqual(heads([(0, True, {}), (1, False, second_place)]), [True, False])
        processes = [(node, node == 0, {"LOCAL_RANK": str(rank)}) for node in (0, 1) for rank in (0, 1)]
        self.assertEqual(heads(processes), [True, False, False, False])
        # An older operator says nothing, and numbers no places.
        self.assertEqual(heads([(0, None, {}), (1, None, {})]), [True, False])
        self.assertEqual(heads([(0, None, {"LOCAL_RANK": "1"})]), [False])

    def test_the_interface_is_found_where_the_controller_does_not_know_it(self):
        unknown = {"interface": None, "bandwidth_gbps": None}
        local = dict(FULL, node=0, peers=[{"node": 0, "private_ip": "127.0.0.1"}], network=unknown)
        with mock.patch.dict(os.environ, {"SKYWARD_INSTANCE_INFO": json.dumps(local)}):
            self.assertEqual(skyward.instance_info().network, skyward.NetworkInfo("lo", None))
        for address in ["192.0.2.1", "a name", ""]:
            local["peers"] = [{"node": 0, "private_ip": address}]
            with mock.patch.dict(os.environ, {"SKYWARD_INSTANCE_INFO": json.dumps(local)}):
                self.assertEqual(skyward.instance_info().network.interface, "")

    def test_outside_a_task_the_error_says_so(self):
        clean = {key: value for key, value in os.environ.items() if not key.startswith("SKYWARD_")}
        with mock.patch.dict(os.environ, clean, clear=True):
            with self.assertRaisesRegex(skyward.NotInTaskError, "only inside a Task"):
                skyward.instance_info()


if __name__ == "__main__":
    unittest.main()
