"""What a sliding window with attention sinks saves on a long text, and what it forgets: `twophase bench window`.

Three engines on the same weights: all keys, a window with sinks, the same window without. Memory and step time come
from one long text, whose last tokens are decoded in turns. Quality is the perplexity of prose, and a needle: a sentence
that says a pass phrase, other prose, and the sentence again up to the phrase. A model that still sees the first one
copies the phrase; how surprised it is by it (nats per token) tells whether it could.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from twophase.core.errors import ConfigError
from twophase.core.request import SamplingParams
from twophase.llm import LLM
from twophase_tools.bench.perplexity import perplexity, prose, token_losses

BLOCK_SIZE = 16
CHUNK = 128  # tokens of a prefill step
MIB = 1024**2
CUE = "The pass phrase for the harbour gate is"
PHRASE = " violet copper seventeen"


@dataclass(frozen=True, slots=True)
class View:
    """One engine: what its queries see, and what came of it.

    Attributes:
        window: Keys; None: all.
        blocks: In use after a quarter, a half, three quarters and all of the long text, by this one sequence. While a
            chunk of it is computed, the chunk's own blocks come on top.
        step_s: Median of a decode step at the end of the long text.
        perplexity: Of the prose.
        near_needle, far_needle: Nats per token of a pass phrase, said within the window and before it.
    """

    name: str
    window: int | None
    num_sinks: int
    blocks: tuple[int, ...] = ()
    step_s: float = 0.0
    perplexity: float = math.nan
    near_needle: float = math.nan
    far_needle: float = math.nan


@dataclass(frozen=True, slots=True)
class WindowReport:
    """The first of `views` sees all keys; the others are compared with it."""

    model: str
    num_tokens: int
    num_prose_tokens: int
    bytes_per_block: int
    views: tuple[View, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        full = self.views[0]
        lines = [
            f"{self.model}: blocks of {BLOCK_SIZE} in use along a text of {self.num_tokens:,} tokens; decode steps at",
            f"its end, in turns; perplexity of {self.num_prose_tokens:,} tokens of prose; a phrase said within the",
            "window and before it, in nats per token when it is asked for again",
            f"{'':<24} {'1/4':>5} {'1/2':>5} {'3/4':>5} {'end':>5} {'MiB':>7} {'memory':>7} {'step':>6} {'perpl.':>8} "
            f"{'near':>6} {'far':>6}",
        ]
        for view in self.views:
            size = view.blocks[-1] * self.bytes_per_block / MIB
            along = " ".join(f"{blocks:>5,}" for blocks in view.blocks)
            lines.append(
                f"{view.name:<24} {along} {size:>7.1f} {view.blocks[-1] / full.blocks[-1]:>6.2f}x "
                f"{view.step_s / full.step_s:>5.2f}x "
                f"{view.perplexity:>8.2f} {view.near_needle:>6.2f} {view.far_needle:>6.2f}"
            )
        return "\n".join(lines)


def bench_window(
    model: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    backend: str = "auto",
    window: int = 256,
    num_sinks: int = 4,
    num_tokens: int = 4096,
    num_steps: int = 48,
    say: Callable[[str], None],
) -> WindowReport:
    """Measure the three views of one model.

    Args:
        num_tokens: Of the long text, the decoded ones included.
        num_steps: Decode steps that are timed, of each engine in turns.

    Raises:
        ConfigError: No sinks to compare with none, or a text that leaves nothing outside the window, or is too short.
    """
    if num_sinks < 1:
        raise ConfigError(f"sinks are compared with none, so there must be at least 1, got {num_sinks}.")
    at_least = max(2 * (window + num_sinks) + num_steps, 4 * CHUNK)
    if num_tokens < at_least:
        raise ConfigError(
            f"a text of {num_tokens} tokens shows little of a window of {window} with {num_sinks} sinks and "
            f"{num_steps} decoded tokens; take at least {at_least}."
        )
    views = (
        View("all keys", None, 0),
        View(f"window {window}, {num_sinks} sinks", window, num_sinks),
        View(f"window {window}, no sinks", window, 0),
    )
    llms = []
    for view in views:
        say(f"{view.name}: perplexity and needles")
        llms.append(_open(model, view, device, dtype, backend))
    assert llms[0].tokenizer is not None
    text = llms[0].tokenizer.encode(prose())
    judged = [_with_quality(view, llm, text, window) for view, llm in zip(views, llms, strict=True)]
    say(f"a text of {num_tokens:,} tokens")
    long_text = (text * -(-num_tokens // len(text)))[: num_tokens - num_steps]
    step_s = _decode_in_turns(llms, long_text, num_steps)
    return WindowReport(
        model,
        num_tokens,
        len(text),
        llms[0].kv_cache.spec.bytes_per_block,
        tuple(
            replace(
                view,
                blocks=_blocks_along(llm, num_tokens),
                step_s=seconds,
            )
            for view, llm, seconds in zip(judged, llms, step_s, strict=True)
        ),
    )


def _open(model: str, view: View, device: str, dtype: str, backend: str) -> LLM:
    return LLM(
        model,
        device=device,
        dtype=dtype,
        attention_backend=backend,
        block_size=BLOCK_SIZE,
        max_num_seqs=1,
        max_num_batched_tokens=CHUNK,
        sliding_window=view.window,
        num_attention_sinks=view.num_sinks,
        max_trace_steps=None,
    )


def _with_quality(view: View, llm: LLM, text: Sequence[int], window: int) -> View:
    near, far = window // 2, len(text) - 64
    return replace(
        view,
        perplexity=perplexity(llm, text),
        near_needle=_needle(llm, text[: max(0, near - 32)]),
        far_needle=_needle(llm, text[:far]),
    )


def _needle(llm: LLM, between: Sequence[int]) -> float:
    """Nats per token of the phrase, said once, then asked for again after other text."""
    assert llm.tokenizer is not None
    said = llm.tokenizer.encode(f"\n{CUE}{PHRASE}.\n")
    cue, phrase = llm.tokenizer.encode(f"\n{CUE}"), llm.tokenizer.encode(PHRASE)
    # Other text goes first, so that the sentence is no attention sink itself.
    losses = token_losses(llm, [*between[:32], *said, *between, *cue, *phrase])
    return float(losses[-len(phrase) :].double().mean())


def _blocks_along(llm: LLM, num_tokens: int) -> tuple[int, ...]:
    """In use when the long text, the one request of the trace, had reached each quarter; the last step frees all."""
    steps = [(start + count, step.blocks_in_use) for step in llm.engine.trace[:-1] for *_, start, count in step.chunks]
    quarters = (num_tokens * i // 4 for i in (1, 2, 3, 4))
    return tuple([blocks for end, blocks in steps if end <= quarter][-1] for quarter in quarters)


def _decode_in_turns(llms: Sequence[LLM], text: Sequence[int], num_steps: int) -> list[float]:
    """Median seconds of a decode step of each, one step of each after the other."""
    params = SamplingParams(temperature=0, max_tokens=num_steps, ignore_eos=True)
    times: list[list[float]] = [[] for _ in llms]
    for llm in llms:
        llm.engine.add_request("long", {"prompt_token_ids": list(text)}, params, cache_salt="long")
    while any(llm.engine.has_unfinished_requests() for llm in llms):
        for llm, mine in zip(llms, times, strict=True):
            start = time.perf_counter()
            llm.engine.step()
            if llm.engine.trace[-1].num_decodes:
                mine.append(time.perf_counter() - start)
    return [statistics.median(mine) for mine in times]
