"""One training in several processes: each takes its share of every batch, and the gradients are averaged.

torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, which `DataParallel.join` reads. Where the
process group exists already, as in Ray Train, `DataParallel.joined` uses it. Gradients go through torch's
`DistributedDataParallel`: gloo between CPUs, nccl between CUDA devices. Everything else that the processes tell each
other is a few numbers on the CPU; nothing is unpickled.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nearkin.core.device import device as device_named
from nearkin.core.errors import LostProcessError, MismatchError, OptionError, StoppedError, TrainingError, require

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store
    from torch.distributed import ProcessGroup

JOIN_SECONDS = 60.0  # until all processes have started
ANSWER_SECONDS = 1800.0  # until a process that is neither dead nor answering is given up; evaluation can take long
REPORT_SECONDS = 1.0  # in which the first process may report an error before another does
VARIABLES = ("RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class DataParallel:
    """The place of this process among those of a training; the default is a process alone.

    Attributes:
        rank: number of this process, from 0. The first one decides, prints and writes.
        size: number of processes.
        local_rank: number of this process on its machine, which is that of its CUDA device.
        store: values that all processes can read, by key.
        control: process group for tensors on the CPU; None: the default group.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    store: "Store | None" = None
    control: "ProcessGroup | None" = None

    @classmethod
    def join(
        cls, environment: Mapping[str, str] = os.environ, *, seconds: float = JOIN_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> "DataParallel":  # fmt: skip
        """Join the processes that torchrun started; without WORLD_SIZE, or if it is 1, this process is alone.

        Args:
            environment: the variables that torchrun sets.
            seconds: how long to wait for the other processes.
            answer_seconds: how long a process may take to answer during the training.
        """
        size = _number(environment, "WORLD_SIZE", 1)
        if size == 1:
            return cls()
        missing = [name for name in VARIABLES if not environment.get(name)]
        require(not missing, f"WORLD_SIZE is {size}, but {', '.join(missing)} is not set; start the processes with "
                             f"torchrun, or unset WORLD_SIZE")  # fmt: skip
        rank = _number(environment, "RANK")
        require(0 <= rank < size, f"got RANK {rank} with WORLD_SIZE {size}, expected 0 to {size - 1}; use torchrun")
        import torch.distributed as dist  # takes a quarter of a second, which one process does not need

        host, port = environment["MASTER_ADDR"], _number(environment, "MASTER_PORT")
        agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun itself holds the values
        wait = timedelta(seconds=seconds)
        try:
            server = rank == 0 and not agent
            base = dist.TCPStore(host, port, size, server, wait, wait_for_workers=False)  # type: ignore[attr-defined]
            attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = dist.PrefixStore(f"nearkin/{attempt}", base)  # type: ignore[attr-defined]
            store.set(f"here/{rank}", "")
            store.wait([f"here/{other}" for other in range(size)], wait)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
                store=store, rank=rank, world_size=size, timeout=timedelta(seconds=answer_seconds),
            )  # fmt: skip
        except RuntimeError as error:
            raise TrainingError(
                f"process {rank + 1} of {size} met no others at {host}:{port} within {seconds:g} s; check MASTER_ADDR "
                f"and MASTER_PORT, and that all {size} processes run"
            ) from error
        group = cls(rank, size, _number(environment, "LOCAL_RANK", rank), store)
        group.agree({"version of nearkin": version("nearkin"), "version of torch": torch.__version__})
        return group

    @classmethod
    def joined(cls, *, answer_seconds: float = ANSWER_SECONDS) -> "DataParallel":
        """Use the process group that exists already, such as that of Ray Train; alone if there is none."""
        import torch.distributed as dist

        if not dist.is_initialized() or dist.get_world_size() == 1:
            return cls()
        control = dist.new_group(backend="gloo", timeout=timedelta(seconds=answer_seconds))
        group = cls(dist.get_rank(), dist.get_world_size(), _number(os.environ, "LOCAL_RANK", 0), None, control)
        group.agree({"version of nearkin": version("nearkin"), "version of torch": torch.__version__})
        return group

    @property
    def first(self) -> bool:
        """Whether this process decides, prints and writes."""
        return self.rank == 0

    def device(self, name: str = "auto") -> torch.device:
        """The device of this process: of several CUDA devices, that of its local rank."""
        device = device_named(name)
        if self.size == 1 or device.type != "cuda" or ":" in name:
            return device
        count = torch.cuda.device_count()
        require(
            self.local_rank < count,
            f"got {self.local_rank + 1} or more processes on a machine with {count} CUDA devices; start one process "
            f"for each device, or use --device cpu",
        )
        return torch.device("cuda", self.local_rank)

    def wrapped(self, model: nn.Module, device: torch.device, unused: bool) -> nn.Module:
        """The model with gradients averaged over processes, and batch statistics taken from the first one.

        `unused`: whether it has weights that the loss does not depend on. All processes begin with the weights of the
        first one.
        """
        devices = None if device.type == "cpu" else [device]
        (first_unused,) = self.from_first(unused)
        with self.connected():
            return nn.parallel.DistributedDataParallel(
                model, device_ids=devices, find_unused_parameters=bool(first_unused)
            )

    def check_batches(self, count: int, batches: int, model: nn.Module) -> None:
        """Refuse batches of `count` samples in all that leave a process with none, or one for batch normalisation."""
        normalised = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules())
        smallest, least = count // batches, self.size * (2 if normalised else 1)
        require(
            self.size == 1 or smallest >= least,
            f"got batches of {smallest} samples for {self.size} processes, expected {least} or more"
            f"{' with batch normalisation' if normalised else ''}; use a larger batch size or fewer processes",
        )

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Raise the same error in all processes if one has other facts than the first."""
        if self.size == 1:
            return
        import torch.distributed as dist

        digests = [hashlib.sha256(json.dumps(fact, sort_keys=True).encode()).digest() for fact in facts.values()]
        own = torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8).view(len(digests), -1)
        every = [torch.empty_like(own) for _ in range(self.size)]
        with self.connected():
            dist.all_gather(every, own, group=self.control)
        for rank, other in enumerate(every):
            changed = [name for name, same in zip(facts, (other == every[0]).all(1).tolist(), strict=True) if not same]
            require(not changed, f"process {rank + 1} of {self.size} has another {' and another '.join(changed)} than "
                                 f"process 1; give all processes the same", MismatchError)  # fmt: skip

    def from_first(self, *values: float) -> list[float]:
        """The values of the first process."""
        if self.size == 1:
            return list(values)
        received = torch.tensor(values, dtype=torch.float64)
        self.broadcast([received])
        return received.tolist()

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy the tensors of the first process into those of the others."""
        if self.size == 1:
            return
        import torch.distributed as dist

        for tensor in tensors:
            value = tensor.detach().cpu().contiguous()
            with self.connected():
                dist.broadcast(value, 0, group=self.control)
            if not self.first:
                tensor.detach().copy_(value)

    def broadcast_bytes(self, data: bytes = b"") -> bytes:
        """The bytes of the first process."""
        (count,) = self.from_first(len(data))
        buffer = torch.frombuffer(bytearray(data if self.first else int(count)) or bytearray(1), dtype=torch.uint8)
        self.broadcast([buffer])
        return buffer.numpy().tobytes()[: int(count)]

    def add_up(self, values: Tensor) -> None:
        """Replace values by their sums over the processes."""
        if self.size == 1:
            return
        import torch.distributed as dist

        sums = values.detach().cpu()
        with self.connected():
            dist.all_reduce(sums, group=self.control)
        values.copy_(sums)

    @contextmanager
    def stopping_together(self) -> Iterator[None]:
        """A block at which a process may be stopped; then `StoppedError` is raised in the others."""
        stopped = torch.zeros(())
        try:
            yield
        except BaseException:
            stopped.fill_(1)
            self.add_up(stopped)
            raise
        self.add_up(stopped)
        if stopped > 0:
            raise StoppedError("another process of this training was stopped; run the same command again to continue")

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Turn an error of the connection into a `LostProcessError`."""
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not _of_connection(error):
                raise
            raise LostProcessError(
                f"another of the {self.size} processes of this training ended or did not answer; run the same command "
                f"again to continue from the last checkpoint"
            ) from error

    def reports(self) -> bool:
        """Whether this process reports an error: one does, the first one if it meets an error too."""
        if self.store is None:
            return self.first
        try:
            if self.first:
                self.store.set("first reports", "")
            else:
                try:
                    self.store.wait(["first reports"], timedelta(seconds=REPORT_SECONDS))
                    return False
                except RuntimeError:
                    pass
            return int(self.store.add("reports", 1)) == 1
        except RuntimeError:  # the first process, or torchrun, is gone
            return True

    def leave(self) -> None:
        """End the process group that `join` made."""
        if self.store is not None:
            import torch.distributed as dist

            dist.destroy_process_group()


ALONE = DataParallel()


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    if not text.isdecimal() or (name == "WORLD_SIZE" and int(text) < 1):
        raise OptionError(f"got {name}={text!r}, expected a whole number; start the processes with torchrun")
    return int(text)


def _of_connection(error: RuntimeError) -> bool:
    """Whether a lost process raised it: gloo has no class of its own for these errors."""
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or "gloo" in str(error) or "onnection" in str(error)
