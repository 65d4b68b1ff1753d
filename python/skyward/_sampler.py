"""DistributedSampler: which samples of a data set this node loads, for torch's DataLoader."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sized

from skyward._shard import permutation, place


class DistributedSampler:
    """Gives this node its indices of a data set, for `DataLoader(dataset, sampler=…)`.

    Parameters and numbers of indices are those of `torch.utils.data.DistributedSampler`; torch itself is
    not needed. The order is another one than torch's for the same seed. All ranks get equally many
    indices, since collective operations such as DDP's wait for all:

        sampler = skyward.DistributedSampler(dataset)
        loader = DataLoader(dataset, batch_size=32, sampler=sampler)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for batch in loader: ...

    dataset: anything with a length L.
    num_replicas, rank: number R of parts, and which of them. Default: those of `torch.distributed` where the
        process has initialised it, else `world_size` and `rank` of instance_info().
    shuffle: a new order for each epoch, the same on all ranks.
    seed: of that order, the same on all ranks; epoch e uses seed + e.
    drop_last: False repeats the first R - L % R indices at the end when R does not divide L: each rank gets
        ceil(L / R). True leaves out the last L % R indices: each rank gets L // R.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None and rank is None:
            rank, num_replicas = _of_torch()
        self.dataset = dataset
        self.rank, self.num_replicas = place(rank, num_replicas)
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next iteration: call it on every rank before each epoch.

        Without it every epoch has the order of epoch 0.
        """
        self.epoch = epoch

    def __len__(self) -> int:
        """Number of indices that this rank gets, the same for each rank."""
        length = len(self.dataset)
        return length // self.num_replicas if self.drop_last else -(-length // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        """This rank's indices, from 0 to the length of the data set less one."""
        length, parts = len(self.dataset), self.num_replicas
        order = permutation(length, self.seed + self.epoch) if self.shuffle else range(length)
        # A data set that is shorter than the padding is gone through several times.
        return iter([order[position % length] for position in range(self.rank, len(self) * parts, parts)])


def _of_torch() -> tuple[int | None, int | None]:
    """Rank and world size of torch.distributed; torch is not imported for that."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None, None
    return int(distributed.get_rank()), int(distributed.get_world_size())
