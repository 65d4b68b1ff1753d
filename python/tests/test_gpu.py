"""What only a machine with a GPU of NVIDIA and PyTorch shows; skipped on others."""

import base64
import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import unittest

from skyward import is_nvidia
from tests import test_warm

NVIDIA_SMI = shutil.which("nvidia-smi")


def asked(*arguments):
    output = subprocess.run([NVIDIA_SMI, *arguments], check=True, capture_output=True, text=True)
    return [line.strip() for line in output.stdout.splitlines()]


@unittest.skipUnless(NVIDIA_SMI and importlib.util.find_spec("torch"), "there is no GPU of NVIDIA with PyTorch")
class WithAGpu(unittest.TestCase):
    def setUp(self):
        # Forks become children of this process, as they become children of the keeper.
        ctypes.CDLL(None).prctl(test_warm.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def keeper(self, *modules, **more):
        keeper = test_warm.Keeper(*modules, **more)
        self.addCleanup(keeper.close)
        return keeper

    def value(self, end):
        self.assertEqual((end.status, end.ending), (0, "returned"), end.stderr)
        return json.loads(end.result)

    def test_its_name_is_one_of_nvidias(self):
        for name in asked("--query-gpu=name", "--format=csv,noheader"):
            self.assertTrue(is_nvidia(name), name)

    def test_a_python_that_uses_the_gpu_while_it_imports_is_not_forked_from(self):
        for use in ("torch.zeros(1, device='cuda')", "torch.cuda.is_available() and torch.cuda.init()"):
            keeper = self.keeper("uses", files={"uses.py": f"import torch\n{use}\n"})
            self.assertRegex(keeper.said, "^no its packages (open /dev/nvidia|start threads when they are imported)")

    def test_forks_of_one_python_use_the_gpu_at_once_and_one_that_is_killed_harms_no_other(self):
        keeper = self.keeper("torch")
        source = """
            import torch
            def main(n):
                ones = torch.ones(n, n, device="cuda")
                for _ in range(100):
                    ones = (ones @ ones).clamp(max=1)
                torch.cuda.synchronize()
                return [ones.sum().item(), torch.cuda.device_count()]
        """
        kills = """
            import os, torch
            def main():
                torch.ones(1 << 20, device="cuda").sum().item()
                os.kill(os.getpid(), 9)
        """
        count = len(asked("-L"))
        runs = [keeper.fork().order(source, n) for n in (256, 512)]
        killed = keeper.fork().order(kills)
        runs.append(keeper.fork().order(source, 1024))
        self.assertEqual(killed.ended().status, -9)
        self.assertEqual([self.value(run.ended()) for run in runs], [[n * n, count] for n in (256, 512, 1024)])
        self.assertEqual(self.value(keeper.run(source, 64)), [64 * 64, count])

    def test_a_fork_sees_the_gpus_of_its_place_alone(self):
        keeper = self.keeper("torch")
        source = "import torch\ndef main(): return [torch.cuda.device_count(), torch.cuda.is_available()]"
        count = len(asked("-L"))
        for visible, expected in (("", 0), ("0", 1), (None, count)):
            environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
            end = keeper.run(source, environment=environment)
            self.assertEqual(self.value(end), [expected, expected > 0], visible)

    def test_forks_draw_numbers_of_their_own_on_the_gpu(self):
        keeper = self.keeper("torch")
        source = "import torch\ndef main(): return torch.rand(4, device='cuda').tolist() + torch.rand(4).tolist()"
        one, other = (self.value(keeper.run(source)) for _ in range(2))
        self.assertFalse(set(one) & set(other))

    def test_a_tensor_of_the_gpu_is_a_value_that_a_machine_without_one_reads(self):
        keeper = self.keeper("torch")
        source = """
            import torch
            def main(kind):
                tensor = torch.arange(6, dtype=torch.bfloat16, device="cuda").reshape(2, 3)
                return tensor[1] if kind == "tensor" else {"step": 7, "weights": torch.nn.Parameter(tensor.float())}
        """
        reads = """
            import io, pickle, sys, torch
            data = sys.stdin.buffer.read()
            value = torch.load(io.BytesIO(data), weights_only=True) if sys.argv[1] == "torch" else pickle.loads(data)
            tensor = value if sys.argv[1] == "torch" else value["weights"]
            print(tensor.device.type, tensor.detach().float().tolist(), torch.cuda.is_available())
        """
        for kind, codec, expected in (
            ("tensor", "torch", "cpu [3.0, 4.0, 5.0] False"),
            ("state", "pickle", "cpu [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] False"),
        ):
            value = self.value(keeper.run(source, kind))
            header = value["skyward.dev/value"]
            self.assertEqual(header["codec"], codec)
            output = subprocess.run(
                [sys.executable, "-c", test_warm.textwrap.dedent(reads), codec],
                input=base64.b64decode(value["skyward.dev/value.data"]),
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
                capture_output=True,
                check=False,
            )
            self.assertEqual(output.stdout.decode().strip(), expected, output.stderr.decode())

    def test_shards_and_samplers_of_pytorch_itself(self):
        source = """
            import torch
            from torch.utils.data import DataLoader, TensorDataset
            from skyward import DistributedSampler, shard
            def main():
                data = torch.arange(10, device="cuda")
                mine = shard(data, node=1, total_nodes=4)
                loader = DataLoader(TensorDataset(data.cpu()), batch_size=2, sampler=DistributedSampler(range(10), num_replicas=4, rank=1))
                return [mine.device.type, sorted(mine.tolist()), sum(len(batch[0]) for batch in loader)]
        """
        device, mine, count = self.value(self.keeper("torch").run(source))
        self.assertEqual(device, "cuda")
        self.assertEqual((mine, count), ([1, 5, 9], 3))

    def test_memory_of_the_gpu_is_free_after_forks(self):
        keeper = self.keeper("torch")
        before = asked("--query-compute-apps=pid", "--format=csv,noheader")
        source = "import torch\ndef main(): return torch.ones(1 << 28, device='cuda').numel()"
        self.assertEqual(self.value(keeper.run(source)), 1 << 28)
        self.assertEqual(asked("--query-compute-apps=pid", "--format=csv,noheader"), before)


if __name__ == "__main__":
    unittest.main()
