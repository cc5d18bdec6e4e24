"""Your prefix store, drafter, verifier and mask in the real engine.

OwnPrefixes      behind the door KVAllocator: blocks come from your `PrefixStore`, by names of your `block_hashes`
OwnDrafter       (draft_engine.py) behind the door Drafter: asks your `ngram_draft`
VerifyingRunner  the engine's runner; what your `verify` decides on a run of drafts is what the engine then draws
OwnGuidance      behind the door Constraint: masks of your `token_mask`, for forms that are given as machines
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from jaxtyping import Float, UInt32
from torch import Tensor

from twophase import SamplingParams, StructuredOutputs
from twophase.cache.allocator import KVTable
from twophase.core.errors import InvalidRequestError
from twophase.core.plan import BlockCopy, ScheduledChunk
from twophase.engine.runner import Runner, TakeLogits
from twophase_features.structured_outputs.guidance import GuidanceError
from twophase_labs.advanced.draft_chance import Chance
from twophase_labs.advanced.guided_machine import Machine
from twophase_labs.kit.own_allocator import OwnAllocator

Names = list[Any]
Hashes = Callable[[Sequence[int], int, str], Names]
NamesToAsk = Callable[[Names, int, int, Set[Any]], Names]
Verify = Callable[[list[int], np.ndarray, np.ndarray, Chance], list[int]]
Words = UInt32[np.ndarray, "W"]
CERTAIN = 1e4  # added to a logit, leaves no chance to any other


@final
@dataclass(eq=False)
class StoreTable(KVTable):
    """A sequence's blocks, and the names of the first of them: of hits, and of blocks that others may find."""

    names: Names
    block_ids: list[int]
    num_tokens: int
    num_cached_tokens: int


@final
class OwnPrefixes(OwnAllocator):
    """A learner's store in place of the engine's prefix cache and pool. `LLM(cache_factory=...)` takes a maker of one.

    The store gives a block its name when it hands it out; the block has its contents a step later. In between the
    name is *pending*, and no other request asks for it.

    Args:
        store: Like `PrefixStore(num_blocks)`, all of it free.
        hashes: Names of the full blocks of a prompt, like `block_hashes`.
        names_to_ask: Which of them may be looked up; it gets the names, the number of tokens, the block size and the
            set of names that are pending.
    """

    def __init__(self, store: Any, hashes: Hashes, names_to_ask: NamesToAsk, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.store, self.hashes, self.names_to_ask = store, hashes, names_to_ask
        self._users: Counter[int] = Counter()
        self._pending: set[Any] = set()

    @property
    def num_free_blocks(self) -> int:
        return self.num_blocks - len(self._users)

    def open(self, token_ids: Sequence[int], salt: str = "", count_in_stats: bool = True, keys: object = None) -> Any:
        names = list(self.hashes(list(token_ids), self.block_size, salt))
        names = list(self.names_to_ask(names, len(token_ids), self.block_size, frozenset(self._pending)))
        num_hit = len(self.store.lookup(names))
        block_ids = self._take(names[:num_hit], num_hit)
        self.tables.append(StoreTable(names, block_ids, num_hit * self.block_size, num_hit * self.block_size))
        return self.tables[-1]

    def grow(self, table: Any, num_tokens: int) -> tuple[BlockCopy, ...]:
        num_more = self.require_room(table, num_tokens)
        if table.num_tokens > table.num_cached_tokens:
            table.block_ids += self._take([], num_more)  # the same list: a planned chunk writes its drafts there
        else:  # the store is asked for the hits once more, because it names the blocks behind them
            hits, num_hit = table.block_ids, len(table.block_ids)
            table.block_ids = self._take(table.names, num_hit + num_more)
            self._drop(hits, table.names[:num_hit])
            self._pending.update(table.names[num_hit:])
        table.num_tokens = num_tokens
        return ()

    def publish(self, table: Any, token_ids: Sequence[int], num_computed: int) -> None:
        num_hit = table.num_cached_tokens // self.block_size
        self._pending.difference_update(table.names[num_hit : num_computed // self.block_size])

    def truncate(self, table: Any, num_tokens: int) -> None:
        num_kept = -(-num_tokens // self.block_size)
        self._drop(table.block_ids[num_kept:], [])
        table.block_ids, table.num_tokens = table.block_ids[:num_kept], num_tokens

    def close(self, table: Any) -> None:
        super().close(table)
        # A name that is still pending stays so: its block was never computed.
        self._drop(table.block_ids, table.names[: len(table.block_ids)])

    def _take(self, names: Names, num_blocks: int) -> list[int]:
        block_ids = list(self.store.open(names, num_blocks)[0])
        self._users.update(block_ids)
        return block_ids

    def _drop(self, block_ids: Sequence[int], names: Names) -> None:
        if block_ids:
            self.store.close(list(block_ids), list(names))
            self._users -= Counter(block_ids)


@final
@dataclass
class VerifyingRunner:
    """A runner after which the engine draws, of each run of drafts, the tokens that `verify` gave.

    The engine draws a token from each row of logits and keeps drafts as long as they agree. So the rows of a run are
    made certain of the tokens that `verify` wants. A mask still applies afterwards.

    Attributes:
        temperature_of: Of a sequence, by its id.
        rows_of: The rows q that a sequence's latest drafts, and perhaps more, were drawn from; None: drafts are a
            lookup's, which says one token with certainty.
        num_runs: Runs of drafts that were verified.
    """

    runner: Runner
    verify: Verify
    temperature_of: Callable[[int], float]
    chance: Chance = field(default_factory=Chance)
    rows_of: Callable[[int], np.ndarray] | None = None
    num_runs: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def run(self, chunks: Sequence[ScheduledChunk], score: TakeLogits | None = None) -> Float[Tensor, "R V"] | None:
        logits = self.runner.run(chunks, score)
        logits, end = None if logits is None else logits.clone(), 0
        for chunk in chunks:
            start, end = end, end + (1 + chunk.num_drafts if chunk.num_samples else 0)
            if logits is not None and chunk.num_drafts:
                rows, draft = logits[start:end], list(chunk.draft_ids)
                temperature = max(self.temperature_of(chunk.seq_id), 1e-9)  # 0: all chance to one token
                p = (rows.double() / temperature).softmax(-1).numpy()
                certain = (np.array(draft)[:, None] == np.arange(p.shape[1])).astype(float)
                q = certain if self.rows_of is None else self.rows_of(chunk.seq_id)[: len(draft)]
                for row, token in zip(rows, self.verify(draft, p, q, self.chance), strict=False):
                    row[token] = row.max() + CERTAIN
                self.num_runs += 1
        return logits


@final
@dataclass
class OwnGuidance:
    """A learner's functions for one form: the engine's compiler, the grammar and each completion's constraint in one,
    because the state of a completion follows from its tokens.

    Attributes:
        advance, count: `advance` and `num_allowed` of exercises 5.7 and 5.10.
        masks, texts: The words of `Constraint.allowed_after` by state, and the texts of all tokens.
    """

    advance: Callable[[Machine, int, str], int | None]
    count: Callable[..., int]
    regex: str
    machine: Machine
    masks: Mapping[int, Words]
    texts: Sequence[str]

    def compile(self, params: SamplingParams) -> "OwnGuidance":
        if params.structured_outputs != StructuredOutputs(regex=self.regex):
            raise InvalidRequestError(f"these masks keep one form, {self.regex}; got {params.structured_outputs}.")
        return self

    def constraint(self) -> "OwnGuidance":
        return self

    def accepts(self, text: str) -> bool:
        return self.advance(self.machine, self.machine.start, text) in self.machine.accepting

    def allowed_after(self, token_ids: Sequence[int], num_prompt_tokens: int, drafts: Sequence[int] = ()) -> Words:
        state = self._state([*token_ids[num_prompt_tokens:], *drafts])
        if state is None:
            raise GuidanceError("the output is not what the grammar allows")
        return np.copy(self.masks[state])

    def num_allowed(self, token_ids: Sequence[int], num_prompt_tokens: int, drafts: Sequence[int]) -> int:
        state = self._state(token_ids[num_prompt_tokens:])
        return 0 if state is None else self.count(self.advance, self.machine, state, drafts, self.texts)

    def _state(self, token_ids: Sequence[int]) -> int | None:
        return self.advance(self.machine, self.machine.start, "".join(self.texts[i] for i in token_ids))
