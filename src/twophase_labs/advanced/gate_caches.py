"""The engine with K and V in several formats, read against one text."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from twophase import LLM, SamplingParams, StructuredOutputs
from twophase.attention.interface import AttentionSpec
from twophase.attention.torch_backend import TorchBackend
from twophase_features.speculation.drafters import NgramDrafter
from twophase_features.speculation.speculator import GatedSpeculator
from twophase_labs.advanced.draft_engine import NUM_DRAFTS
from twophase_labs.advanced.window_engine import BLOCK_SIZE, engine, full_engine, surprises_at_fact, text_ids
from twophase_tools.bench import quality_tasks
from twophase_tools.bench.perplexity import step_logits
from twophase_tools.bench.quality import STRETCH, Bounds, Drift, Verdict, drift_verdicts, estimate

NUM_TOKENS = 321  # so that five whole stretches of 64 are predicted
FACT_DISTANCE = 150


class FewBits(TorchBackend):
    """The torch backend, which rounds each row of K and V to 2^bits - 1 levels before it stores them."""

    def __init__(self, spec: AttentionSpec, bits: int = 3) -> None:
        super().__init__(spec, BLOCK_SIZE)
        self._largest = 2 ** (bits - 1) - 1

    def write(
        self, q: Float[Tensor, "T H D"], k: Float[Tensor, "T H_kv D"], v: Float[Tensor, "T H_kv D"], *rest: Any
    ) -> Float[Tensor, "T H D"]:
        return super().write(q, self._rounded(k), self._rounded(v), *rest)

    def _rounded(self, x: Float[Tensor, "T H_kv D"]) -> Float[Tensor, "T H_kv D"]:
        scale = x.abs().amax(-1, keepdim=True) / self._largest
        return (x / scale).round() * scale


FORMATS: dict[str, dict[str, Any]] = {
    "float32": {},
    "int8": {"kv_cache_dtype": "int8"},
    "fp8_e4m3": {"kv_cache_dtype": "fp8_e4m3"},
    "3 bits": {"attention_backend": FewBits},
}


@cache
def open_cache(name: str) -> LLM:
    """One engine for each format, kept for the whole notebook."""
    return engine(**FORMATS[name]) if FORMATS[name] else full_engine()


def targets(num_tokens: int = NUM_TOKENS) -> Int[Tensor, " n"]:
    """What follows each token of the text but the last."""
    return torch.tensor(text_ids()[1:num_tokens])


READ: dict[str, Float[Tensor, "n V"]] = {}  # of each format, the logits at all positions so far


def logits_with(name: str, num_tokens: int = NUM_TOKENS) -> Float[Tensor, "n V"]:
    """The logits at each position of the text but the last, with K and V in this format.

    A longer text than before is read on: what was read is in the prefix cache.
    """
    before = READ.get(name, torch.empty(0, 0))
    if len(before) < num_tokens:
        rows = torch.cat(list(step_logits(open_cache(name), text_ids()[:num_tokens], salt="the text")))
        num_found = num_tokens - len(rows)
        READ[name] = torch.cat([before[:num_found], rows]) if num_found else rows
    return READ[name][: num_tokens - 1]


def bits_at_fact(name: str) -> float:
    """Surprise in bits at a number that was told 150 tokens ago."""
    return surprises_at_fact(open_cache(name), [FACT_DISTANCE])[0]


def order_read(name: str) -> str:
    """An order, turned into JSON under a mask; the first task of the engine's gate.

    With drafts, since the answer repeats the example's keys.
    """
    (told, written), asked = quality_tasks.EXAMPLE, quality_tasks.ORDERS[0]
    ask = "Write this as a JSON object with the fields customer, item, quantity and city: "
    turns = (("user", ask + told), ("assistant", written), ("user", ask + asked))
    form = StructuredOutputs(json=quality_tasks.SCHEMA)
    params = SamplingParams(temperature=0, max_tokens=quality_tasks.MAX_OBJECT_TOKENS, structured_outputs=form)
    messages = [{"role": role, "content": content} for role, content in turns]
    llm = open_cache(name)
    llm.engine.speculator = GatedSpeculator(NgramDrafter(), NUM_DRAFTS, None)
    try:
        return llm.chat(messages, params, use_tqdm=False)[0].outputs[0].text
    finally:
        llm.engine.speculator = None


def verdicts_of(rises: Tensor, divergences: Tensor, is_same: Tensor) -> Sequence[Verdict]:
    """What the engine's gate says of these measures, position by position, within its own bounds."""
    drift = Drift(*(estimate(values.double()) for values in (rises, divergences, is_same)))
    return tuple(drift_verdicts(drift, Bounds()))


LIMITS = {
    "log of the perplexity ratio": math.log(Bounds().perplexity_ratio),
    "mean KL": float(Bounds().mean_kl),
    "another top token": 1 - float(Bounds().top1_agreement),
}


@cache
def drift_by_stretch(name: str, num_stretches: int) -> dict[str, Float[Tensor, " n"]]:
    """What `LIMITS` bound, as means of stretches of 64 tokens, of which each counts as one observation."""
    num_tokens = num_stretches * STRETCH + 1
    wanted, places = targets(num_tokens), torch.arange(num_tokens - 1)
    log_p, log_q = (logits_with(one, num_tokens).log_softmax(-1) for one in ("float32", name))
    values = (
        log_p[places, wanted] - log_q[places, wanted],
        (log_p.exp() * (log_p - log_q)).sum(-1),
        (log_p.argmax(-1) != log_q.argmax(-1)).float(),
    )
    return {measure: each.view(-1, STRETCH).mean(1) for measure, each in zip(LIMITS, values, strict=True)}
