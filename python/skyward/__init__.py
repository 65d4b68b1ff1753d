"""Functions for Tasks: information on the machines of a run, and splitting of data.

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

from skyward._info import (
    AcceleratorInfo,
    InstanceInfo,
    NetworkInfo,
    NotInTaskError,
    PeerInfo,
    instance_info,
    is_head,
)
from skyward._shard import shard

__all__ = [
    "AcceleratorInfo",
    "InstanceInfo",
    "NetworkInfo",
    "NotInTaskError",
    "PeerInfo",
    "instance_info",
    "is_head",
    "shard",
]
