"""Five allocators and a layer with bugs that printed code really has, and one story in which the oracle sees each."""

import inspect
from collections.abc import Callable
from typing import Any

from IPython.display import Markdown
from torch import Tensor

from twophase.core.errors import OutOfBlocksError
from twophase_labs.decode.decoder import Decoder
from twophase_labs.decode.shadow import Finding, PlainTable, ShadowKV, WatchedPool


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


class FreesForAllOwners(WatchedPool):
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
    "pool 2": FreesForAllOwners,
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


# Eight blocks of four slots. Who does what, in this order; with right parts only the last event is refused.
STORY: tuple[tuple[str, str, Any], ...] = (
    ("A", "starts", 7),
    ("A", "grows to", 9),
    ("B", "shares the two full blocks of", "A"),
    ("A", "ends", None),
    ("C", "starts", 24),
    ("C", "ends", None),
    ("B", "ends", None),
    ("D", "starts", 32),
    ("D", "grows to", 33),
)


def examine(name: str, seed: int = 1) -> str:
    """What the shadow oracle says of a suspect in `STORY`: after which event, and what."""
    suspect = SUSPECTS[name]
    pool = suspect(8, seed) if issubclass(suspect, WatchedPool) else WatchedPool(8, seed)
    new_table: Callable[..., Any] = suspect if issubclass(suspect, PlainTable) else PlainTable
    shadow = ShadowKV(8, 4)
    live: dict[str, Any] = {}
    texts: dict[str, list[int]] = {}
    for number, (who, verb, what) in enumerate(STORY, start=1):
        try:
            if verb == "starts":
                live[who], texts[who] = new_table(pool, 4), []
            if verb in ("starts", "grows to"):
                old = len(texts[who])
                new_text = texts[who] + [100 * ord(who) + position for position in range(old, what)]
                live[who].grow(what)
                texts[who] = new_text
                shadow.write(who, live[who], new_text, old)
            elif verb == "ends":
                live.pop(who).free()
            else:
                live[who] = new_table(pool, 4)
                live[who].block_ids, live[who].num_tokens = list(live[what].block_ids[:2]), 8
                texts[who] = texts[what][:8]
                for block_id in live[who].block_ids:
                    pool.acquire(block_id)
            for reader, table in live.items():
                shadow.read(reader, table, texts[reader])
        except OutOfBlocksError:
            num_held = len({block for table in live.values() for block in table.block_ids})
            if number < len(STORY):
                return f"event {number}: out of blocks, and live sequences hold {num_held} of 8"
        except Finding as finding:
            return f"event {number}: {finding}"
    return "nothing found"


def tell_story() -> str:
    """The events, one a line."""
    lines = []
    for number, (who, verb, what) in enumerate(STORY, start=1):
        tokens = f" {what} tokens" if isinstance(what, int) else f" {what}" if what else ""
        lines.append(f"{number}. {who} {verb}{' with' if verb == 'starts' else ''}{tokens}")
    return "\n".join(lines)
