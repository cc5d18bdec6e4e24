"""Five allocators and a layer with bugs that printed code really has, and what the oracles say to each."""

import inspect
from collections.abc import Callable
from typing import Any

from IPython.display import Markdown
from torch import Tensor

from twophase_labs.decode.decoder import Decoder
from twophase_labs.decode.histories import History
from twophase_labs.decode.shadow import Finding, PlainTable, WatchedPool


class ReplacesItsList(PlainTable):
    def grow(self, num_tokens: int) -> None:
        num_blocks = -(-num_tokens // self.block_size)
        if num_blocks > len(self.block_ids):
            self.block_ids = self.pool.allocate(num_blocks)
        self.num_tokens = num_tokens


class SizedByThePrompt(PlainTable):
    def grow(self, num_tokens: int) -> None:
        if not self.block_ids:
            num_blocks = -(-num_tokens // self.block_size)
            self.block_ids = self.pool.allocate(num_blocks)
        self.num_tokens = num_tokens

    def slot(self, position: int) -> int:
        block_id = self.block_ids[position // self.block_size % len(self.block_ids)]
        return block_id * self.block_size + position % self.block_size


class NeverRunsOut(WatchedPool):
    def allocate(self, n: int) -> list[int]:
        while self.num_free < n:
            self.ref_counts.append(0)
        return super().allocate(n)


class FreesForEverybody(WatchedPool):
    def release(self, block_id: int) -> None:
        self.ref_counts[block_id] = 0


class FreesWhatIsFull(PlainTable):
    def free(self) -> None:
        for index in range(self.num_tokens // self.block_size):
            self.pool.release(self.block_ids[index])
        self.block_ids, self.num_tokens = [], 0


class DropsAResidual(Decoder):
    def finish(self, layer: int, x: Tensor, attended: Tensor) -> Tensor:
        block = self.llama.model.layers[layer]
        h = x + block.self_attn.o_proj(attended.transpose(0, 1).flatten(1))
        return block.mlp(block.post_attention_layernorm(h))


SUSPECTS: dict[str, type] = {
    "table 1": ReplacesItsList,
    "table 2": SizedByThePrompt,
    "table 3": FreesWhatIsFull,
    "pool 1": NeverRunsOut,
    "pool 2": FreesForEverybody,
    "layer": DropsAResidual,
}


def show_code(*names: str) -> Markdown:
    """What each suspect does its own way, as it is written in this file."""
    parts = []
    for name in names:
        methods = [m for m in vars(SUSPECTS[name]).values() if inspect.isfunction(m)]
        code = "\n\n".join(inspect.cleandoc("\n" + inspect.getsource(method)) for method in methods)
        parts.append(f"**`{name}`**\n\n```python\n{code}\n```")
    return Markdown("\n\n".join(parts))


def examine(name: str, num_seeds: int = 50) -> str:
    """What the shadow-KV oracle says of a suspect: the first finding over random histories."""
    suspect = SUSPECTS[name]
    for seed in range(num_seeds):
        is_pool = issubclass(suspect, WatchedPool)
        pool = suspect(8, seed) if is_pool else WatchedPool(8, seed)
        new_table: Callable[..., Any] = suspect if issubclass(suspect, PlainTable) else PlainTable
        history = History(pool, new_table, num_blocks=8, block_size=4, seed=seed, checks_books=False)
        try:
            history.run(40)
        except Finding as finding:
            return f"{finding} (history {seed}, event {len(history.frames)}: {history.events[-1].strip()})"
    return "nothing found"
