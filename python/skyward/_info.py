"""Information on the machines of a Task, and this machine's rank among them."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

VARIABLE = "SKYWARD_INSTANCE_INFO"
FILE_VARIABLE = "SKYWARD_INSTANCE_INFO_FILE"
# Only the machine knows which of its places a run got, so these win over the description.
WORKER_VARIABLE = "SKYWARD_WORKER"
WORKERS_VARIABLE = "SKYWARD_WORKERS_PER_NODE"
# Launchers such as torchrun number the processes that they start on one machine.
PROCESS_VARIABLE = "LOCAL_RANK"
# torchrun, and what is built on it, sets this beside RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE.
TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"


class NotInTaskError(RuntimeError):
    """Raised where the process is not a Task of Skyward."""


@dataclass(frozen=True)
class PeerInfo:
    """One machine of this run."""

    node: int
    """Its rank."""
    private_ip: str
    """The address at which the other machines reach it."""
    public_ip: str
    """Its public address, "" where none is known."""


@dataclass(frozen=True)
class AcceleratorInfo:
    """The accelerators of this machine."""

    type: str
    """Name as Offers have it, such as "A100"."""
    count: float
    """How many it has, which may be more than its Pool asked for; a part of one is a fraction."""
    memory_gb: float
    """Memory of each in GB (10**9 bytes, as makers count it), 0 where it is not known."""
    is_trainium: bool = False
    """Whether it is AWS Trainium."""


@dataclass(frozen=True)
class NetworkInfo:
    """The network between the machines."""

    interface: str
    """Name of the interface, or ""."""
    bandwidth_gbps: float | None = None
    """Its bandwidth in Gbit/s; None, as no cloud says it."""


@dataclass(frozen=True)
class InstanceInfo:
    """This worker's place in the cluster."""

    node: int
    """Rank of this machine among those of the run, 0 to total_nodes - 1."""
    worker: int
    """The place on its machine that this run has, 0 to workers_per_node - 1; 0 where places are not numbered."""
    total_nodes: int
    """Number of machines of this run."""
    workers_per_node: int
    """Number of places on each machine (`worker.concurrency` of the Pool); 1 where places are not numbered."""
    accelerators: float
    """Number of accelerators of this machine."""
    total_accelerators: float
    """Number of accelerators of all machines."""
    head_addr: str
    """Address of the machine of rank 0."""
    head_port: int
    """A free port of that machine for coordination; each attempt has another."""
    job_id: str
    """Identifier of the Pool's execution: the same for all Tasks and machines of one Pool, another one for
    a Pool of the same name that is made later."""
    peers: tuple[PeerInfo, ...] = ()
    """All machines in order of rank, this one included."""
    accelerator: AcceleratorInfo | None = None
    """The accelerators of this machine; None without any."""
    network: NetworkInfo = NetworkInfo("")
    """The network between the machines."""
    slot: int = 0
    """Number of this machine in its Pool, which it keeps: 0 to pool_nodes - 1, or more while a Pool shrinks."""
    pool_nodes: int = 1
    """Number of machines that the Pool is to have; the run may be on fewer of them."""
    attempt_id: str = ""
    """Identifier of this attempt of the Task: the same on all of its machines, another one when the Task is
    tried again."""
    head: bool | None = None
    """Whether this is the head, where the machine says so; `is_head` is what to ask."""
    local_rank: int = 0
    """Number of this process among those that the Task has on this machine, 0 to local_world_size - 1."""
    local_world_size: int = 1
    """Number of processes that the Task has on each machine (its `processesPerMachine`), or that torchrun
    has started on this one."""
    torchrun: tuple[int, int] | None = None
    """The `RANK` and `WORLD_SIZE` of a process that torchrun has started; `rank` and `world_size` are what to ask."""

    @property
    def rank(self) -> int:
        """Number of this process among all of the Task: node * local_world_size + local_rank; in a process that
        torchrun has started, the `RANK` that torchrun gave it."""
        return self.node * self.local_world_size + self.local_rank if self.torchrun is None else self.torchrun[0]

    @property
    def world_size(self) -> int:
        """Number of all processes of the Task: total_nodes * local_world_size; in a process that torchrun has
        started, the `WORLD_SIZE` that torchrun gave it."""
        return self.total_nodes * self.local_world_size if self.torchrun is None else self.torchrun[1]

    @property
    def global_worker_index(self) -> int:
        """Number of this worker among all: node * workers_per_node + worker."""
        return self.node * self.workers_per_node + self.worker

    @property
    def total_workers(self) -> int:
        """Number of all workers: total_nodes * workers_per_node."""
        return self.total_nodes * self.workers_per_node

    @property
    def is_head(self) -> bool:
        """Whether this is the one head worker of its run.

        A run that has its machine's second place is the head of itself: the machine knows that. Without the
        machine's word the worker with global_worker_index 0 is the head.
        """
        return self.global_worker_index == 0 if self.head is None else self.head

    @property
    def hostname(self) -> str:
        """Name of this machine."""
        return socket.gethostname()

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> InstanceInfo:
        """Parses the JSON that the controller wrote. Unknown fields are ignored."""
        accelerator = data.get("accelerator")
        network = data.get("network") or {}
        bandwidth = network.get("bandwidth_gbps")
        node, total_nodes, head = int(data.get("node", 0)), int(data.get("total_nodes", 1)), data.get("is_head")
        return cls(
            node=node,
            worker=int(data.get("worker", 0)),
            total_nodes=total_nodes,
            workers_per_node=int(data.get("workers_per_node", 1)),
            accelerators=float(data.get("accelerators") or 0),
            total_accelerators=float(data.get("total_accelerators") or 0),
            head_addr=str(data.get("head_addr") or ""),
            head_port=int(data.get("head_port") or 0),
            job_id=str(data.get("job_id") or ""),
            peers=tuple(
                PeerInfo(
                    node=int(peer.get("node", rank)),
                    private_ip=str(peer.get("private_ip") or ""),
                    public_ip=str(peer.get("public_ip") or ""),
                )
                for rank, peer in enumerate(data.get("peers") or ())
            ),
            accelerator=None
            if not accelerator
            else AcceleratorInfo(
                type=str(accelerator.get("type") or ""),
                count=float(accelerator.get("count") or 0),
                memory_gb=float(accelerator.get("memory_gb") or 0),
                is_trainium=bool(accelerator.get("is_trainium", False)),
            ),
            network=NetworkInfo(
                interface=str(network.get("interface") or ""),
                bandwidth_gbps=None if bandwidth is None else float(bandwidth),
            ),
            slot=int(data.get("slot", node)),
            pool_nodes=int(data.get("pool_nodes", total_nodes)),
            attempt_id=str(data.get("attempt_id") or ""),
            head=None if head is None else bool(head),
            local_rank=int(data.get("local_rank", 0)),
            local_world_size=int(data.get("local_world_size", 1)),
        )


def interface_of(address: str) -> str:
    """Name of this machine's interface with that IPv4 address, or ""."""
    try:
        import fcntl

        wanted = socket.inet_aton(address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                try:
                    answer = fcntl.ioctl(probe, 0x8915, request)  # SIOCGIFADDR
                except OSError:
                    continue  # It has no such address.
                if answer[20:24] == wanted:
                    return name
    except (ImportError, OSError):
        pass
    return ""


def instance_info() -> InstanceInfo:
    """This worker's place in the cluster, as the operator and the machine describe it.

    Raises NotInTaskError outside of a Task.
    """
    text = os.environ.get(VARIABLE)
    path = os.environ.get(FILE_VARIABLE)
    if not text and path:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    if not text:
        raise NotInTaskError(
            "skyward.instance_info() works only inside a Task of Skyward: "
            f"neither {VARIABLE} nor {FILE_VARIABLE} is set in this process"
        )
    info = InstanceInfo.from_mapping(json.loads(text))
    info = replace(
        info,
        worker=_number(WORKER_VARIABLE, info.worker),
        workers_per_node=_number(WORKERS_VARIABLE, info.workers_per_node),
    )
    if TORCHRUN_VARIABLE in os.environ:
        info = _of_torchrun(info)
    if _number(PROCESS_VARIABLE, 0) != 0:
        # Of several processes that share a machine and a rank, one is the head.
        info = replace(info, head=False)
    if info.network.interface or info.node >= len(info.peers):
        return info
    # Only the machine itself knows under which name it has the address that others use.
    interface = interface_of(info.peers[info.node].private_ip)
    return replace(info, network=replace(info.network, interface=interface))


def _of_torchrun(info: InstanceInfo) -> InstanceInfo:
    """With torchrun's numbers of this process, which may not follow those of the machines: with some kinds of
    rendezvous torchrun numbers machines as they come."""
    rank, world_size = _number("RANK", 0), _number("WORLD_SIZE", 0)
    local_rank, local_world_size = _number(PROCESS_VARIABLE, 0), _number("LOCAL_WORLD_SIZE", 0)
    if rank >= world_size or local_rank >= local_world_size:
        return info  # Work has changed them.
    return replace(info, local_rank=local_rank, local_world_size=local_world_size, torchrun=(rank, world_size))


def _number(variable: str, otherwise: int) -> int:
    """The whole number in an environment variable; work may have set it to anything."""
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else otherwise


def is_head(info: InstanceInfo | None = None) -> bool:
    """Whether this is the one head worker of its run; `info` is looked up where it is left out.

    Exactly one process of a run answers True, also where a launcher such as torchrun starts
    several on each machine: work that is to happen once belongs there.
    """
    return (instance_info() if info is None else info).is_head
