"""Splits data so that each node gets a part of its own."""

from __future__ import annotations

import operator
import random
import sys
from array import array
from collections.abc import Mapping, Set
from typing import Any, TypeVar, overload

from skyward._info import instance_info

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


@overload
def shard(
    data: A,
    /,
    *,
    shuffle: bool = ...,
    seed: int | None = ...,
    drop_last: bool = ...,
    node: int | None = ...,
    total_nodes: int | None = ...,
) -> A: ...
@overload
def shard(
    first: A,
    second: B,
    /,
    *,
    shuffle: bool = ...,
    seed: int | None = ...,
    drop_last: bool = ...,
    node: int | None = ...,
    total_nodes: int | None = ...,
) -> tuple[A, B]: ...
@overload
def shard(
    first: A,
    second: B,
    third: C,
    /,
    *,
    shuffle: bool = ...,
    seed: int | None = ...,
    drop_last: bool = ...,
    node: int | None = ...,
    total_nodes: int | None = ...,
) -> tuple[A, B, C]: ...
@overload
def shard(
    *data: Any,
    shuffle: bool = ...,
    seed: int | None = ...,
    drop_last: bool = ...,
    node: int | None = ...,
    total_nodes: int | None = ...,
) -> Any: ...
def shard(
    *data: Any,
    shuffle: bool = False,
    seed: int | None = 0,
    drop_last: bool = False,
    node: int | None = None,
    total_nodes: int | None = None,
) -> Any:
    """This node's part of `data`, of the same type.

    Where a Task has several processes on each machine (`processesPerMachine`), each process counts as a node here:
    what is split is split among all of them.

    Node n of N gets the elements n, n + N, n + 2N, … of the length L of `data`: the parts of all nodes
    are disjoint, together they are everything, and their lengths differ by at most one (L // N or
    L // N + 1). A node beyond the last element gets an empty part. Nothing is repeated.

    data: lists, tuples, ranges, texts, bytes, arrays of NumPy, tensors of torch, frames of pandas and any
        other sequence, split along their first dimension: an array of shape (L, …) becomes one of shape
        (L / N, …), with its dtype and its device. Several are split at the same indices and come back as a
        tuple, so `x, y = shard(x, y)` stays aligned; their lengths must be equal. A sequence whose type
        cannot be made from its elements, such as a data set that computes them, comes back as a list. Without `shuffle`, parts of arrays and tensors
        are views of the whole.
    shuffle: take the elements in an order that depends on `seed` and the length alone, so it is the same
        on every node, and the parts stay disjoint.
    seed: of that order; None means 0. All nodes must use the same.
    drop_last: leave out the last L % N elements, of the shuffled order if there is one, so that all nodes
        get equally many.
    node, total_nodes: instead of `rank` and `world_size` of instance_info(), for tests or for a split of another kind; with
        both, shard works outside of a Task.
    """
    if not data:
        raise TypeError("shard() needs something to split")
    lengths = [_length(item) for item in data]
    if len(set(lengths)) != 1:
        raise ValueError(
            "shard() splits several arrays at the same indices, so they must be of one length, not "
            + ", ".join(map(str, lengths))
        )
    node, total_nodes = place(node, total_nodes)
    indices = _indices(lengths[0], shuffle, seed or 0, drop_last, node, total_nodes)
    parts = tuple(_take(item, indices) for item in data)
    return parts[0] if len(parts) == 1 else parts


def place(node: int | None, total_nodes: int | None) -> tuple[int, int]:
    """A process and the number of all; what is left out comes from instance_info()."""
    if node is None or total_nodes is None:
        info = instance_info()
        node = info.rank if node is None else node
        total_nodes = info.world_size if total_nodes is None else total_nodes
    if total_nodes < 1:
        raise ValueError(f"total_nodes must be at least 1, not {total_nodes}")
    if not 0 <= node < total_nodes:
        raise ValueError(f"node must be from 0 to {total_nodes - 1}, not {node}")
    return node, total_nodes


def permutation(length: int, seed: int) -> array[int]:
    """The numbers below `length` in an order that every node and every version of Python agrees on."""
    order = array("q", range(length))
    # Numbers of NumPy count as well, which `random` takes for no seeds.
    random.Random(operator.index(seed)).shuffle(order)
    return order


def _indices(
    length: int, shuffle: bool, seed: int, drop_last: bool, node: int, total_nodes: int
) -> range | list[int]:
    end = length - length % total_nodes if drop_last else length
    if not shuffle:
        return range(node, max(node, end), total_nodes)
    return permutation(length, seed)[node:end:total_nodes].tolist()


def _length(item: Any) -> int:
    shape = getattr(item, "shape", None)
    if shape == ():
        raise TypeError("shard() cannot split an array without dimensions")
    if not isinstance(item, (Mapping, Set)) and hasattr(item, "__getitem__"):
        try:
            # Sparse matrices have a shape and no length.
            return int(shape[0]) if isinstance(shape, tuple) else len(item)
        except TypeError:
            pass
    raise TypeError(
        f"shard() cannot split a {type(item).__name__}: "
        "give it a list, a tuple, an array, a tensor or another sequence"
    )


def _take(item: Any, indices: range | list[int]) -> Any:
    # NumPy, torch and pandas are never imported here: a caller that passes an array has done so.
    chosen = slice(indices.start, indices.stop, indices.step) if isinstance(indices, range) else indices
    if hasattr(item, "iloc"):
        return item.iloc[chosen]
    if _is(item, "torch", "Tensor"):
        if isinstance(chosen, slice):
            return item[chosen]
        torch = sys.modules["torch"]
        return item[torch.as_tensor(chosen, dtype=torch.long, device=item.device)]
    if _is(item, "numpy", "ndarray"):
        return item[chosen if isinstance(chosen, slice) else sys.modules["numpy"].asarray(chosen, dtype="intp")]
    if isinstance(chosen, slice) and (
        isinstance(item, (list, tuple, range, str, bytes, bytearray)) or hasattr(item, "shape")
    ):
        return _restore(item, item[chosen])
    if hasattr(item, "shape") and (numpy := sys.modules.get("numpy")) is not None:
        # Arrays of JAX and CuPy, sparse ones and frames of Polars take indices as NumPy has them.
        try:
            return item[numpy.asarray(chosen, dtype=numpy.intp)]
        except (TypeError, ValueError, IndexError):
            pass
    return _restore(item, [item[index] for index in indices])


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
    if isinstance(original, array):
        return array(original.typecode, part)
    if hasattr(part, "shape"):
        # A slice of a data set in a file, such as one of h5py, is an array in memory.
        return part
    try:
        made = kind(part)
        # The argument may have meant something else, such as a path or the data that elements are computed from.
        pairs = zip(part, made, strict=True)
        is_part = len(made) == len(part) and all(one is other or one == other for one, other in pairs)
    except Exception:
        return list(part)
    return made if is_part else list(part)
