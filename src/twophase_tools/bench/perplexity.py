"""Perplexity of a text on the real engine: scheduler, cache manager, paged attention; only the sampler is left out.

The text is an ordinary request whose tokens are all given (teacher forcing). The scheduler cuts it into steps of
`max_num_batched_tokens`; in each, K and V are written into pages and attention reads the pages, so whatever the cache
does with them (fewer bits, a window, sinks) shows in the logits. A budget of 1 computes each token as a decode.
"""

import math
import uuid
from collections.abc import Iterator, Sequence
from importlib import resources

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from twophase.core.errors import InvalidRequestError
from twophase.core.plan import SampledToken, StepPlan
from twophase.core.request import Request, SamplingParams
from twophase.engine.runner import pack
from twophase.llm import LLM


def prose() -> str:
    """About 2,500 tokens written for this purpose: a story, instructions, lists, minutes, dialogue, letters."""
    return _text("prose.txt")


def more_prose() -> str:
    """As many again, of other kinds: explanations, reports, regulations, reviews, a little code and arithmetic."""
    return _text("more_prose.txt")


def _text(name: str) -> str:
    return resources.files("twophase_tools.bench").joinpath(name).read_text(encoding="utf-8")


def perplexity(llm: LLM, token_ids: Sequence[int]) -> float:
    """exp of the mean surprise, in nats, at each token but the first, given all before it.

    Raises:
        InvalidRequestError: As `token_losses`.
    """
    return math.exp(float(token_losses(llm, token_ids).double().mean()))


def token_losses(llm: LLM, token_ids: Sequence[int]) -> Float[Tensor, "n"]:
    """-log p(token | all before it), in nats, of each token but the first: n = len(token_ids) - 1 of them.

    Raises:
        InvalidRequestError: Fewer than 2 tokens, the text does not fit the context or the pool, or the engine is busy.
    """
    targets = torch.tensor(token_ids)
    losses, start = [], 1
    for logits in step_logits(llm, token_ids):
        wanted = targets[start : start + logits.shape[0]].to(logits.device)
        losses.append(F.cross_entropy(logits[: wanted.shape[0]], wanted, reduction="none").cpu())
        start += logits.shape[0]
    return torch.cat(losses)


def step_logits(llm: LLM, token_ids: Sequence[int], salt: str = "") -> Iterator[Float[Tensor, "L V"]]:
    """The logits at every position of a text, step by step; row i of the whole predicts token i + 1.

    Nothing is taken from the prefix cache, as what is found there is not computed. With a `salt`, what was
    read under it before is found there, and its rows are missing.

    Raises:
        InvalidRequestError: Fewer than 2 tokens, the text does not fit the context or the pool, or the engine is busy.
    """
    if len(token_ids) < 2:
        raise InvalidRequestError(
            f"perplexity is about tokens that follow others: give at least 2, got {len(token_ids)}."
        )
    scheduler = llm.scheduler
    if scheduler.has_unfinished:
        raise InvalidRequestError("perplexity needs the engine to itself, and it has unfinished requests; finish them.")
    name = f"perplexity {uuid.uuid4()}"
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    seq_id = scheduler.add(Request(name, tuple(token_ids), params, cache_salt=salt or name))
    try:
        while scheduler.has_unfinished:
            plan = scheduler.schedule()
            yield _logits(llm, plan)
            # The request ends with this token, whatever it is.
            scheduler.update(plan, {seq_id: [SampledToken(0)] * plan.chunks[0].num_samples})
    finally:
        scheduler.abort(name)


@torch.inference_mode()
def _logits(llm: LLM, plan: StepPlan) -> Float[Tensor, "L V"]:
    packed = pack(plan.chunks, llm.kv_cache.spec.block_size, device=llm.model.device)
    return llm.model.logits(
        llm.model.forward(packed.arrays["token_ids"], llm.model.backend.plan(packed.view()), llm.kv_cache)
    )
