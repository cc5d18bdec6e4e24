"""Tensor parallelism: one model, cut over several processes, each with its part of the weights and of the K/V.

Rank 0 is the engine: it schedules, samples and talks to the user. Before it computes anything it tells the others what;
they wait for that in `_serve` and do the same with their own part. Inside the model the ranks meet twice
per layer, to add up partial sums, and after it, where rank 0 collects the logits. With enable_expert_parallel tokens
travel to the ranks that hold their experts in place of the second sum (expert_parallel.py).

    with LLM(model, tensor_parallel_size=2) as llm:      # started by `torchrun --nproc-per-node 2 script.py`
        print(llm.generate("..."))                       # only in rank 0: the others serve in the constructor, and exit

When a rank is lost every request, running or new, ends with finish reason 'error' (a `PeerLostError`): start all ranks
again. An exception in the middle of the model has the same end, because the ranks that go on computing would add up
sums of different layers.

On CUDA (not run on several GPUs yet) rank i computes on cuda:i and tensors go through NCCL. CUDA graphs are off: a wait
that has a time limit is a decision of the host, which a graph cannot hold.
"""

import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Never, final

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.core.errors import ConfigError
from twophase.core.plan import BlockCopy, ScheduledChunk
from twophase.engine.engine import uninterrupted
from twophase.engine.executor import Executor
from twophase.engine.runner import ModelRunner, Runner, TakeLogits
from twophase.model.config import ModelConfig
from twophase_features.offloading.host_memory import HostBlocks, pinned_blocks
from twophase_features.parallel.expert_parallel import ExpertParallel
from twophase_features.parallel.peers import PeerLostError, Peers, place
from twophase_features.parallel.sharding import Shard


@final
class TensorParallelGroup(Executor):
    """The `Executor` of a model that several processes share.

    Attributes:
        shard: This rank's part.
    """

    def __init__(self, config: ModelConfig, peers: Peers, has_whole_experts: bool) -> None:
        self.peers = peers
        self.shard = Shard(config, peers.rank, peers.world_size, has_whole_experts)
        super().__init__(self.shard.config, peers.device)
        self.experts, self.is_driver = self.shard.experts, peers.rank == 0
        # The sum of the outputs of a layer cut by input.
        self.sum_over_ranks = partial(peers.all_reduce, what="the sum of hidden states over the ranks")
        self.dispatch_experts = ExpertParallel(peers) if has_whole_experts else None

    @classmethod
    def join(
        cls, config: ModelConfig, size: int, device: torch.device, timeout_s: int | float, has_whole_experts: bool
    ) -> Executor:
        """Join the other ranks, if `size` says that there are any. Raises ConfigError if torchrun started another
        number of processes, or as `Shard` and `Peers`."""
        Shard(config, 0, size, has_whole_experts)  # whatever is wrong with it should not cost a start of all ranks
        if size == 1:
            return Executor(config, device)
        _, _, world_size = place()
        if world_size != size:
            raise ConfigError(
                f"tensor_parallel_size {size} needs as many processes, and torchrun started {world_size}; "
                f"make --nproc-per-node the same."
            )
        peers = Peers(device, step_timeout_s=timeout_s)
        return cls(config, peers, has_whole_experts)

    def cut(self, name: str, tensor: Any) -> Any:
        return self.shard.cut(name, tensor)

    def smallest(self, count: int) -> int:
        """The least of the ranks' counts. The ranks meet here, however long each took to load its weights."""
        return min(self.peers.gather(count, "all ranks to load their weights"))

    def run(self, runner: ModelRunner) -> Runner:
        """As `Executor.run`. Raises PeerLostError in another rank than 0 if a peer is lost."""
        if self.is_driver:
            return DriverRunner(runner, self.peers, self.shard)
        with self.peers:
            _serve(runner, self.peers)
        raise SystemExit(0)


@final
class DriverRunner:
    """Rank 0's runner: has the other ranks do everything that its own does. Ctrl-C waits until a call has ended.

    Args:
        runner: Runs rank 0's part of the model; only this object uses it.

    Attributes:
        traffic: The tensors between the ranks, as rank 0 saw them: 'all_reduce' and 'recv'; between experts
            'all_to_all' and 'all_gather'.
    """

    def __init__(self, runner: ModelRunner, peers: Peers, shard: Shard) -> None:
        self._runner, self._peers, self._shard = runner, peers, shard
        self._others = range(1, peers.world_size)
        self.traffic = peers.traffic

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._together(self._runner.copy_blocks, "copy_blocks", copies)

    @property
    def kv_cache(self) -> Never:
        raise ConfigError(
            "with tensor_parallel_size > 1 each rank has a part of every block, and this kv_tier reads blocks of one "
            "process; use HostMemoryTier, which works with all ranks."
        )

    def host_blocks(self, num_blocks: int | None) -> HostBlocks:
        """Blocks in every rank's host memory, for a KV tier; None: as many as rank 0 has room for. Raises ConfigError
        if they do not fit. On another rank that ends the rank."""
        own = pinned_blocks(self._runner.kv_cache, num_blocks)
        self._tell("host_blocks", own.num_blocks)
        save, restore = partial(self._together, own.save, "save"), partial(self._together, own.restore, "restore")
        return HostBlocks(own.num_blocks, save, restore)

    def run(self, chunks: Sequence[ScheduledChunk], score: TakeLogits | None = None) -> Float[Tensor, "R V"] | None:
        def score_whole(logits: Float[Tensor, "R V0"]) -> None:
            whole = self._with_others(logits)
            if score is not None:
                score(whole)

        def run(chunks: Sequence[ScheduledChunk]) -> Float[Tensor, "R V"] | None:
            logits = self._runner.run(chunks, score_whole)
            return None if logits is None else self._with_others(logits)

        return self._together(run, "run", chunks)

    @uninterrupted()
    def close(self) -> None:
        """Release the other ranks; may be called again."""
        with suppress(PeerLostError):  # it was the answer to a request already
            self._tell("close")
        self._peers.close()

    def _together(self, compute: Callable[..., Any], method: str, *args: Any) -> Any:
        """`compute(*args)` here, and `method` with the same arguments in the other ranks."""
        self._tell(method, *args)
        try:
            return compute(*args)
        except PeerLostError:
            raise
        except Exception as error:
            self._peers.leave(f"rank 0 failed in the middle of a step ({type(error).__name__}: {error})")
            raise

    def _tell(self, method: str, *args: Any) -> None:
        self._peers.check()
        for rank in self._others:
            self._peers.call((method, args), rank, "a worker to take its work")

    def _with_others(self, logits: Float[Tensor, "R V0"]) -> Float[Tensor, "R V"]:
        """The logits of the whole vocabulary: rank 0's own, then the logits of the other ranks."""
        parts = [logits]
        for rank in self._others:
            rows = self._shard.vocabulary(rank)
            parts.append(logits.new_empty(len(logits), rows.stop - rows.start))
            self._peers.recv(parts[rank], rank, "a worker's logits")
        return torch.cat(parts, dim=1)


def _serve(runner: ModelRunner, peers: Peers) -> None:
    """Do what rank 0 says until it closes. Ctrl-C is rank 0's to handle: a worker ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    send_logits = partial(peers.send, dst=0, what="rank 0 to take the logits")
    host_blocks: HostBlocks | None = None
    while True:
        method, args = peers.wait_for_call(0, "work")
        match method:
            case "close":
                return
            case "run":
                logits = runner.run(args[0], send_logits)
                if logits is not None:
                    send_logits(logits)
            case "copy_blocks":
                runner.copy_blocks(*args)
            case "host_blocks":
                host_blocks = pinned_blocks(runner.kv_cache, *args)
            case _:  # save, restore
                getattr(host_blocks, method)(*args)
