"""The engine with a learner's window: the kept blocks in its cache manager."""

import math
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from twophase import LLM
from twophase.model.tokenizer import Tokenizer
from twophase_features.model_store.prepare import DEFAULT_MODEL, resolve_model
from twophase_features.windows.sliding_window import SlidingWindow
from twophase_features.windows.windowed_cache import WindowedCache
from twophase_labs.kit.models import smollm2
from twophase_tools.bench.perplexity import prose, step_logits

BLOCK_SIZE = 16
CHUNK = 64  # tokens of the text that a step reads
NUM_TOKENS = 1024

KeptBlocks = Callable[[int, int, int, int], list[int]]


@dataclass(frozen=True)
class OwnWindow(SlidingWindow):
    """A window that frees the blocks which `kept` leaves out."""

    kept: KeptBlocks = lambda *args: []

    def freed_blocks(self, num_tokens: int, block_size: int) -> range:
        kept = set(self.kept(num_tokens, block_size, self.window, self.num_sinks))
        freed = [index for index in range(-(-num_tokens // block_size)) if index not in kept]
        num_sink_blocks = -(-self.num_sinks // block_size)
        return range(freed[0], freed[-1] + 1) if freed else range(num_sink_blocks, num_sink_blocks)


@dataclass(frozen=True)
class Reading:
    """A text as an engine has read it.

    Attributes:
        losses: Surprise in nats at each token but the first.
        pages: Pages in use while each step computed, and the tokens that it brought the text to.
    """

    losses: Float[Tensor, " n"]
    pages: tuple[int, ...]
    num_read: tuple[int, ...]

    def perplexity(self, start: int = 0) -> float:
        """Of the tokens from position `start` on."""
        return float(self.losses[start:].double().mean().exp())


def engine(**options: Any) -> LLM:
    """SmolLM2 for one text at a time, read in chunks; as it is, in pages for all of the text."""
    defaults = {"num_kv_blocks": NUM_TOKENS // BLOCK_SIZE + 1, "max_num_batched_tokens": CHUNK, "max_num_seqs": 1}
    return LLM(**defaults | options)


@cache
def full_engine() -> LLM:
    """The one that sees everything, for all readings."""
    return engine()


def windowed_engine(kept_blocks: KeptBlocks, window: int, num_sinks: int, pool: int) -> LLM:
    """The same with your blocks, in a pool of so many pages."""
    own = OwnWindow(window, num_sinks, kept_blocks)
    return engine(
        sliding_window=window,
        num_attention_sinks=num_sinks,
        cache_factory=partial(WindowedCache, window=own),
        num_kv_blocks=pool,
    )


@cache
def text_ids(num_tokens: int = NUM_TOKENS) -> tuple[int, ...]:
    """The beginning of a text that was written for measurements and is in no training set."""
    return tuple(Tokenizer.from_folder(resolve_model(DEFAULT_MODEL)).encode(prose())[:num_tokens])


def read(llm: LLM, token_ids: Sequence[int]) -> Reading:
    """Read a text chunk by chunk, and note what it takes."""
    targets = torch.tensor(token_ids)
    losses, pages, num_read = [], [], [0]
    for logits in step_logits(llm, token_ids):
        pages.append(llm.scheduler.cache.stats().num_in_use)
        start = num_read[-1] + 1
        num_read.append(num_read[-1] + logits.shape[0])
        wanted = targets[start : start + logits.shape[0]]
        losses.append(F.cross_entropy(logits[: len(wanted)], wanted, reduction="none"))
    return Reading(torch.cat(losses), tuple(pages), tuple(num_read[1:]))


TOLD, ANSWER = "The secret number of the lighthouse is", " 73914"


def surprises_at_fact(llm: LLM, distances: Iterable[int]) -> list[float]:
    """Bits of surprise at a number that was told about so many tokens ago, for each distance, no two the same.

    What the texts have in common is read once, and found in the prefix cache by those after the first.
    """
    tokenizer, salt = llm.tokenizer, f"told {uuid.uuid4()}"
    assert tokenizer is not None
    told, asked = tokenizer.encode(f"Note this. {TOLD}{ANSWER}.\n\n"), tokenizer.encode(f"\n\nTo repeat: {TOLD}")
    hay, answer = tokenizer.encode(prose()), tokenizer.encode(ANSWER)
    bits = []
    for distance in distances:
        ids = [*told, *hay[: max(0, distance - 20)], *asked, *answer]
        rows = torch.cat(list(step_logits(llm, ids, salt)))[-len(answer) - 1 : -1]
        bits.append(
            float(F.cross_entropy(rows, torch.tensor(answer, device=rows.device), reduction="sum")) / math.log(2)
        )
    return bits


@torch.inference_mode()
def attention_weights(num_tokens: int) -> Float[Tensor, "layers H T T"]:
    """Of SmolLM2, over the beginning of the text."""
    model, _ = smollm2()
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the others do not show their weights
    try:
        weights = model.model(torch.tensor([text_ids()[:num_tokens]]), output_attentions=True).attentions
    finally:
        model.set_attn_implementation(before)
    return torch.cat(weights)


def share_of_first_key(num_tokens: int = 256) -> Float[Tensor, "layers H"]:
    """How much of its attention each head gives to the first token of a text, the mean over later queries."""
    return attention_weights(num_tokens)[:, :, num_tokens // 2 :, 0].mean(-1)
