"""Functions for Tasks: their place in the cluster, splitting of data, output, and storage.

    import skyward

    def main():
        info = skyward.instance_info()
        mine = skyward.shard(list(range(100)))
        if skyward.is_head(info):
            print(f"rank 0 of {info.total_nodes}")
        return sum(mine)

The package needs nothing but Python (3.10 or newer) and is on the path of every
Task; there is nothing to install.
"""

# Type checkers know this name. The one of `typing` would cost each start of Python more than all else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from skyward import storage
    from skyward._accelerator import current_accelerator, is_nvidia, is_trainium
    from skyward._info import (
        AcceleratorInfo,
        InstanceInfo,
        NetworkInfo,
        NotInTaskError,
        PeerInfo,
        instance_info,
        is_head,
    )
    from skyward._output import CallbackWriter, redirect_output, silent, stderr, stdout
    from skyward._progress import progress
    from skyward._sampler import DistributedSampler
    from skyward._shard import shard
    from skyward.storage import Storage

__all__ = [
    "AcceleratorInfo",
    "CallbackWriter",
    "DistributedSampler",
    "InstanceInfo",
    "NetworkInfo",
    "NotInTaskError",
    "PeerInfo",
    "Storage",
    "current_accelerator",
    "instance_info",
    "is_head",
    "is_nvidia",
    "is_trainium",
    "progress",
    "redirect_output",
    "shard",
    "silent",
    "stderr",
    "stdout",
    "storage",
]


# A module is imported when a Task uses it: all of them would take several times as long as Python's own start.
_LATER = {
    "AcceleratorInfo": "_info",
    "CallbackWriter": "_output",
    "DistributedSampler": "_sampler",
    "InstanceInfo": "_info",
    "NetworkInfo": "_info",
    "NotInTaskError": "_info",
    "PeerInfo": "_info",
    "Storage": "storage",
    "current_accelerator": "_accelerator",
    "instance_info": "_info",
    "is_head": "_info",
    "is_nvidia": "_accelerator",
    "is_trainium": "_accelerator",
    "progress": "_progress",
    "redirect_output": "_output",
    "shard": "_shard",
    "silent": "_output",
    "stderr": "_output",
    "stdout": "_output",
    "storage": "storage",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'skyward' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"skyward.{_LATER[name]}")
    return module if name == "storage" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
