"""The processes that compute together: every wait has a limit, and a peer that is gone is an error, never a hang.

Experiments (torch 2.13, Linux) show how gloo treats a lost peer. The death of a process closes its connections, and
a rank that waits for it gets an error within milliseconds. A stopped process (SIGSTOP), a frozen machine or a cut cable
closes nothing: a wait then ends when the limit of the process group is over (30 minutes by default). After either,
every further call fails at once, and nothing waits for the lost peer.

The limit belongs to a process group. So there are several groups over the same processes: one for the inside of a step,
where silence means trouble, and one for the time between steps, where a worker may wait without a limit, and gets an
error only if its driver dies.
"""

import os
import re
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any, Self, final

import torch
import torch.distributed as dist
from torch import Tensor

from twophase.config import DEFAULT_STEP_TIMEOUT_S
from twophase.core.errors import ConfigError, UnrecoverableError

DEFAULT_STARTUP_TIMEOUT_S = 60.0
FOR_EVER = timedelta(days=3650)

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class PeerLostError(UnrecoverableError):
    """Another process of the group died or was silent for too long. The group cannot compute any further step.

    Attributes:
        ranks: The missing ranks; several if the one at fault is unknown, as in a collective.
    """

    def __init__(self, ranks: tuple[int, ...], waiting_for: str, limit_s: int | float, reason: str) -> None:
        self.ranks = ranks
        who = " or ".join(f"rank {rank}" for rank in ranks)
        super().__init__(
            f"{who} was lost while this process waited for {waiting_for} (limit for a silent peer: {limit_s:g} s): "
            f"{reason}. Look at what {who} printed last and whether its machine ran out of memory, then start all "
            f"ranks again; raise the limit only if a peer may really take longer."
        )


@dataclass(slots=True)
class Traffic:
    """The traffic of one kind of call so far. Only `Peers` changes it.

    Attributes:
        num_calls: How often.
        num_bytes: Bytes of the tensors handed over; an algorithm may send more or fewer on the wire.
        elapsed_s: In these calls, waiting for slower peers included.
    """

    num_calls: int = 0
    num_bytes: int = 0
    elapsed_s: float = 0.0


@final
class Peers:
    """This process's place among `world_size` processes, and its communication with them. Not thread-safe.

    Tensors on the CPU travel by gloo, those on CUDA by NCCL. Every call that waits raises `PeerLostError` when a peer
    dies, and when it says nothing for `step_timeout_s`; from then on every call raises it. `what` says in that error
    what the call waited for.

    While it is open, SIGTERM does not end the process at once: torchrun sends it to all ranks as soon as one has died,
    and a survivor must live long enough to notice the loss and say so. It ends `step_timeout_s` later at the latest.

    Attributes:
        rank, world_size: As torchrun says; 0 <= rank < world_size.
        traffic: The tensors, by the name of the method: 'all_reduce', 'all_gather', 'all_to_all', 'send', 'recv'.

    Args:
        device: Where this rank computes; 'cuda' is cuda:LOCAL_RANK.
        step_timeout_s: How long a silent peer is waited for in the middle of a step.
        startup_timeout_s: How long the others may take to get here.

    Raises:
        ConfigError: No torchrun around this process, or a limit that is not a positive number.
        PeerLostError: A rank did not come in time.
    """

    def __init__(
        self,
        device: str | torch.device,
        *,
        step_timeout_s: int | float = DEFAULT_STEP_TIMEOUT_S,
        startup_timeout_s: int | float = DEFAULT_STARTUP_TIMEOUT_S,
    ) -> None:
        self.rank, local_rank, self.world_size = place()
        for name, value in (("step_timeout_s", step_timeout_s), ("startup_timeout_s", startup_timeout_s)):
            if not value > 0:
                raise ConfigError(f"{name} must be a positive number of seconds, got {value}.")
        self.device = _device(device, local_rank)
        self.step_timeout_s, self._startup_timeout_s = step_timeout_s, startup_timeout_s
        self.traffic: dict[str, Traffic] = defaultdict(Traffic)
        self._others = tuple(rank for rank in range(self.world_size) if rank != self.rank)
        self._lost: PeerLostError | None = None
        self._is_open = True
        self._sigterm: Any = None
        self._guarded(self._open_groups, "all ranks to start", limit_s=startup_timeout_s)
        if threading.current_thread() is threading.main_thread():
            self._sigterm = signal.signal(signal.SIGTERM, self._end_soon)

    def _open_groups(self) -> None:
        startup, step = (timedelta(seconds=limit_s) for limit_s in (self._startup_timeout_s, self.step_timeout_s))
        store = next(dist.rendezvous("env://", timeout=startup))[0]
        # torchrun's store outlives a group: the entries of an earlier one must not be taken for this one's.
        store = dist.PrefixStore(f"twophase/{store.add(f'twophase/joins/{self.rank}', 1)}", store)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size, timeout=startup)
        # From here on all are equally far, so that the groups can connect within their own, shorter limit.
        dist.barrier()
        self._idle = dist.new_group(backend="gloo", timeout=FOR_EVER)
        self._groups = {"cpu": dist.new_group(backend="gloo", timeout=step)}
        if self.device.type == "cuda":
            # A wait that blocks and raises, where NCCL's default is a watchdog that ends the whole process.
            os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
            torch.cuda.set_device(self.device)
            self._groups["cuda"] = dist.new_group(backend="nccl", timeout=step, device_id=self.device)
        dist.barrier()

    # -- in the middle of a step

    def all_reduce(self, tensor: Tensor, what: str) -> Tensor:
        """Every rank's `tensor` becomes the sum over all ranks, and is returned."""
        self._timed("all_reduce", tensor, partial(dist.all_reduce, tensor), what)
        return tensor

    def all_gather(self, whole: Tensor, part: Tensor, what: str) -> None:
        """`whole` becomes every rank's `part`, one after the other; all parts are of one shape."""
        self._timed("all_gather", part, partial(dist.all_gather_into_tensor, whole, part), what)

    def all_to_all(
        self,
        received: Tensor,
        sent: Tensor,
        what: str,
        num_received: list[int] | None = None,
        num_sent: list[int] | None = None,
    ) -> None:
        """Each rank sends each rank some rows of `sent`, in the order of the ranks, and finds in `received`, in that
        order, the rows that they sent to it.

        Args:
            num_received, num_sent: Rows for each rank; None: equally many.
        """
        self._timed("all_to_all", sent, partial(dist.all_to_all_single, received, sent, num_received, num_sent), what)

    def send(self, tensor: Tensor, dst: int, what: str) -> None:
        """Hand `tensor` to rank `dst`, which must `recv` one of this shape and dtype."""
        self._timed("send", tensor, partial(dist.send, tensor, dst), what, dst)

    def recv(self, tensor: Tensor, src: int, what: str) -> None:
        """Fill `tensor` with the tensor that rank `src` sends."""
        self._timed("recv", tensor, partial(dist.recv, tensor, src), what, src)

    def send_object(self, value: Any, dst: int, what: str) -> None:
        """Hand any picklable value to rank `dst`, which must `recv_object`."""
        self._guarded(partial(dist.send_object_list, [value], dst, self._groups["cpu"]), what, dst)

    def recv_object(self, src: int, what: str) -> Any:
        """The value that rank `src` sends."""
        return self._guarded(partial(_received, src, self._groups["cpu"]), what, src)

    # -- between steps

    def call(self, value: Any, dst: int, what: str) -> None:
        """Wake rank `dst`, which waits in `wait_for_call`, with any picklable value."""
        self._guarded(partial(dist.send_object_list, [value], dst, self._idle), what, dst)

    def wait_for_call(self, src: int, what: str) -> Any:
        """The value of rank `src`'s next `call`, however long that takes. Raises PeerLostError if rank `src` dies."""
        return self._guarded(partial(_received, src, self._idle), what, src)

    def gather(self, value: Any, what: str) -> list[Any]:
        """Every rank's value, in the order of the ranks; each is picklable. Waits as long as start-up may take."""
        values = [None] * self.world_size
        self._guarded(partial(dist.all_gather_object, values, value), what, limit_s=self._startup_timeout_s)
        return values

    # -- the end

    def check(self) -> None:
        """Raise the `PeerLostError` that ended this group, if one has."""
        if self._lost is not None:
            raise self._lost

    def close(self) -> None:
        """Leave the group. Waits for no rank; may be called again. The others notice, as if this process had died."""
        if not self._is_open:
            return
        self._is_open = False
        has_lost = self._lost is not None
        self.leave("it has closed")
        if self._sigterm is not None:
            # After a loss torchrun's SIGTERM has come or is on its way, and must not cut off the report of the loss. It
            # is ignored, not handled: the interpreter takes handlers away before it has ended.
            signal.signal(signal.SIGTERM, signal.SIG_IGN if has_lost else self._sigterm)
            if has_lost:
                signal.setitimer(signal.ITIMER_REAL, 0)
        self._disconnect()

    def leave(self, why: str) -> None:
        """Hang up, so that none waits for this rank in the middle of a step. Every later call says `why`."""
        if self._lost is None:
            reason = f"this process left the group, because {why}"
            self._lost = PeerLostError(self._others or (self.rank,), "anything more", self.step_timeout_s, reason)
            self._disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _disconnect(self) -> None:
        if dist.is_initialized():
            if self._lost is not None and self.device.type == "cuda":
                dist.distributed_c10d._abort_process_group()  # NCCL's destroy waits for kernels that never end
            else:
                dist.destroy_process_group()

    # -- losing a peer

    def _timed(self, name: str, tensor: Tensor, call: Callable[..., Any], what: str, peer: int | None = None) -> None:
        start = time.perf_counter()
        self._guarded(partial(call, group=self._groups[tensor.device.type]), what, peer)
        traffic = self.traffic[name]
        traffic.num_calls += 1
        traffic.num_bytes += tensor.nbytes
        traffic.elapsed_s += time.perf_counter() - start

    def _guarded(
        self, call: Callable[[], Any], what: str, peer: int | None = None, limit_s: int | float | None = None
    ) -> Any:
        """`call()`; torch's RuntimeError becomes a PeerLostError, which is remembered. In a collective any rank may be
        the lost one; this rank hangs up, which wakes the ranks that still wait for it."""
        self.check()
        try:
            return call()
        except RuntimeError as error:
            who = self._others if peer is None else (peer,)
            self._lost = PeerLostError(who or (self.rank,), what, limit_s or self.step_timeout_s, _reason(error))
            if peer is None:
                self._disconnect()
            raise self._lost from error

    def _end_soon(self, number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.step_timeout_s)  # whose SIGALRM ends the process


def _received(src: int, group: Any) -> Any:
    values = [None]
    dist.recv_object_list(values, src, group=group)
    return values[0]


def place() -> tuple[int, int, int]:
    """RANK, LOCAL_RANK and WORLD_SIZE of torchrun's environment. Raises ConfigError if one of them is missing."""
    missing = [name for name in TORCHRUN_VARIABLES if name not in os.environ]
    if missing:
        raise ConfigError(
            f"this process was not started by torchrun: {', '.join(missing)} is not set. Start it with "
            f"`torchrun --nproc-per-node N ...`, or by twophase_tools.launch.run_local."
        )
    return int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])


def _device(device: str | torch.device, local_rank: int) -> torch.device:
    device = torch.device(device)
    if device.type != "cuda":
        return device
    index = local_rank if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise ConfigError(
            f"each process needs a GPU of its own: local rank {local_rank} wants cuda:{index}, and PyTorch sees "
            f"{torch.cuda.device_count()} here; start fewer processes, or use device='cpu'."
        )
    return torch.device("cuda", index)


def _reason(error: RuntimeError) -> str:
    """The first sentence of torch's message, without the place in its source."""
    return re.sub(r"^\[.*?\] ", "", str(error).splitlines()[0]).split(". ")[0].rstrip(".")
