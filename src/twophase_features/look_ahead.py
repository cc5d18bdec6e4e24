"""One step ahead of the host: a GPU begins the next decode before the host knows the tokens of this one.

When a step's tokens are drawn, and before the host waits for them, the forward pass of the same sequences' next tokens
is queued; it reads the tokens where they were drawn. The host takes its results, plans and packs while the GPU
computes. When the next step asks for exactly these sequences (or for some of them, since others ended), their hidden
states are there already; sampling follows as always, with masks and penalties that know every token. When it asks for
something else, the pass was for nothing: its K and V lie in slots that no step reads before they are written again, for
the GPU works in the order of its queue.

The step ahead writes K and V into a slot beyond the newest token. `Room` takes that slot, as room for drafts is taken,
from the blocks that the policy leaves over.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from twophase.core.plan import ScheduledChunk, StepPlan
from twophase.scheduling.scheduler import Scheduler
from twophase_features.speculation.room import with_drafts, with_room

Replay = Callable[[Sequence[ScheduledChunk], Int[Tensor, "T"]], Float[Tensor, "T N"] | None]


class _Ahead(NamedTuple):
    """A step that was begun: its chunks, with the block tables that it read, and its hidden states."""

    chunks: list[ScheduledChunk]
    hidden: Float[Tensor, "T N"]


@final
class LookAhead:
    """Begins steps ahead. Only `DecodeGraphs` uses it.

    Args:
        replay: Queues a step of decodes, whose tokens are on the device, and returns its hidden states; None: it could
            not.
        block_size, num_groups: A sequence has `num_groups` blocks, one per group of layers, for `block_size` tokens.
        max_model_len: Tokens of the longest sequence.

    Attributes:
        num_begun, num_used: Steps begun ahead, and steps that were taken.
    """

    def __init__(self, replay: Replay, block_size: int, num_groups: int, max_model_len: int) -> None:
        self._replay, self._max_model_len = replay, max_model_len
        self._block_size, self._num_groups = block_size, num_groups
        self._latest: Sequence[ScheduledChunk] | None = None
        self._ahead: _Ahead | None = None
        self._is_wanted = False
        self.num_begun = self.num_used = 0

    def begin_step(self, is_wanted: bool) -> None:
        """A step is planned; whether the next one may begin ahead. (A drafter would make it another one.)"""
        self._latest, self._is_wanted = None, is_wanted

    def take(self, chunks: Sequence[ScheduledChunk]) -> Float[Tensor, "T N"] | None:
        """The hidden states of these decodes, if they were begun; else None. A step is taken once, or dropped."""
        ahead, self._ahead, self._latest = self._ahead, None, None
        if ahead is None or not chunks or not all(_is_plain(chunk) for chunk in chunks):
            return None
        row_of = {chunk.seq_id: row for row, chunk in enumerate(ahead.chunks)}
        rows = [row_of.get(chunk.seq_id, -1) for chunk in chunks]
        if not all(row >= 0 and _reads(chunk, ahead.chunks[row]) for chunk, row in zip(chunks, rows, strict=True)):
            return None
        self.num_used += 1
        if rows == list(range(len(rows))):
            return ahead.hidden[: len(rows)]
        return torch.stack([ahead.hidden[row] for row in rows])  # a list as an index would be sent, and waited for

    def note(self, chunks: Sequence[ScheduledChunk]) -> None:
        """These decodes were run."""
        self._latest = chunks

    def begin(self, token_ids: Int[Tensor, "T"]) -> None:
        """Queue the step that follows the noted chunks; `token_ids` are their tokens, on the device."""
        chunks, self._latest = self._latest, None
        is_wanted, self._is_wanted = self._is_wanted, False
        if chunks is None or not is_wanted or not all(_is_plain(chunk) for chunk in chunks):
            return
        following = [chunk._replace(start=chunk.start + 1, block_ids=list(chunk.block_ids)) for chunk in chunks]
        if any(chunk.start >= min(self._num_slots(chunk), self._max_model_len) for chunk in following):
            return
        hidden = self._replay(following, token_ids)
        if hidden is not None:
            self.num_begun += 1
            self._ahead = _Ahead(following, hidden)

    def _num_slots(self, chunk: ScheduledChunk) -> int:
        return len(chunk.block_ids) // self._num_groups * self._block_size


def _is_plain(chunk: ScheduledChunk) -> bool:
    """Whether it is one token, after which one is drawn."""
    return chunk.num_samples == 1 and not chunk.num_drafts and len(chunk.token_ids) == 1


def _reads(chunk: ScheduledChunk, begun: ScheduledChunk) -> bool:
    """Whether a decode is the one begun: at the same position, over the same blocks. It may have got more of them, and
    may have lost some (-1) that its window has left, which no query reads."""
    blocks = list(chunk.block_ids[: len(begun.block_ids)])
    is_same = blocks == begun.block_ids or (
        len(blocks) == len(begun.block_ids)
        and all(new in (old, -1) for new, old in zip(blocks, begun.block_ids, strict=True))
    )
    return chunk.start == begun.start and is_same


@final
class Room:
    """Room for the step ahead, in the place of a speculator (`Engine`). It drafts nothing."""

    def __init__(self, ahead: LookAhead) -> None:
        self._ahead = ahead

    def draft(self, plan: StepPlan, scheduler: Scheduler, *_: Any) -> StepPlan:
        """The plan, with a free slot behind each decode where there is one; as it is beside a prompt, which has no
        graph of a whole step, and where each sequence gets its last token."""
        decodes = [scheduler.sequences[chunk.seq_id] for chunk in plan.decodes]
        goes_on = any(len(sequence.token_ids) + 1 < sequence.max_num_tokens for sequence in decodes)
        self._ahead.begin_step(is_wanted=goes_on and not plan.prefills)
        return plan if plan.prefills else with_drafts(with_room(plan, scheduler, 1), scheduler, {})

    def forget(self, seq_id: int) -> None:
        """Nothing is remembered."""

    def note_results(self, *_: Any) -> None:
        """Nothing is learnt."""
