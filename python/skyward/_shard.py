"""Splits data so that each node gets a part of its own."""

from __future__ import annotations

import random
import sys
from typing import Any, Sequence

from skyward._info import instance_info


def shard(
    *data: Any,
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
    node: int | None = None,
    total_nodes: int | None = None,
) -> Any:
    """This node's part of `data`, of the same type.

    The parts of all nodes are disjoint and together everything: node n gets every
    total_nodes-th element, from the n-th on. Several arrays are split at the same
    indices and come back as a tuple, so `x, y = shard(x, y)` stays aligned.

    shuffle: take the elements in an order that depends on `seed` alone, so it is
        the same on every node, and the parts stay disjoint.
    drop_last: leave out elements at the end so that all nodes get equally many.
    node, total_nodes: instead of those of instance_info(), for tests or for a
        split of another kind.
    """
    if not data:
        raise TypeError("shard() needs something to split")
    lengths = [_length(item) for item in data]
    if len(set(lengths)) != 1:
        raise ValueError(
            "shard() splits several arrays at the same indices, so they must be of one length, not "
            + ", ".join(map(str, lengths))
        )
    if node is None or total_nodes is None:
        info = instance_info()
        node = info.node if node is None else node
        total_nodes = info.total_nodes if total_nodes is None else total_nodes
    if total_nodes < 1:
        raise ValueError(f"total_nodes must be at least 1, not {total_nodes}")
    if not 0 <= node < total_nodes:
        raise ValueError(f"node must be from 0 to {total_nodes - 1}, not {node}")

    indices = _indices(lengths[0], shuffle, seed, drop_last, node, total_nodes)
    parts = tuple(_take(item, indices) for item in data)
    return parts[0] if len(parts) == 1 else parts


def _indices(
    length: int, shuffle: bool, seed: int, drop_last: bool, node: int, total_nodes: int
) -> Sequence[int]:
    end = length - length % total_nodes if drop_last else length
    if not shuffle:
        return range(node, end, total_nodes)
    order = list(range(length))
    random.Random(seed).shuffle(order)
    return order[node:end:total_nodes]


def _length(item: Any) -> int:
    if getattr(item, "shape", None) == ():
        raise TypeError("shard() cannot split an array without dimensions")
    try:
        return len(item)
    except TypeError:
        raise TypeError(
            f"shard() cannot split a {type(item).__name__}: "
            "give it a list, a tuple, an array, a tensor or another sequence"
        ) from None


def _take(item: Any, indices: Sequence[int]) -> Any:
    # numpy and torch are never imported here: a caller that passes an array has done so.
    if _is(item, "numpy", "ndarray"):
        return item[_as_slice(indices)]
    if _is(item, "torch", "Tensor"):
        if isinstance(indices, range):
            return item[_as_slice(indices)]
        torch = sys.modules["torch"]
        return item[torch.as_tensor(indices, dtype=torch.long, device=item.device)]
    if isinstance(item, (list, tuple, range, str, bytes, bytearray)) and isinstance(indices, range):
        return _restore(item, item[_as_slice(indices)])
    return _restore(item, [item[index] for index in indices])


def _as_slice(indices: Sequence[int]) -> Any:
    if isinstance(indices, range):
        return slice(indices.start, max(indices.start, indices.stop), indices.step)
    return indices


def _is(item: Any, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(item, getattr(loaded, name, ()))


def _restore(original: Any, part: Any) -> Any:
    """`part` as the type of `original`, where that type can be made from elements."""
    kind = type(original)
    if type(part) is kind:
        return part
    if isinstance(original, str):
        return "".join(part)
    if isinstance(original, tuple) and hasattr(original, "_fields"):
        # A named tuple is made of its fields, and a part of it is not one.
        return tuple(part)
    if isinstance(original, range):
        return list(part)
    try:
        return kind(part)
    except Exception:
        return list(part)
