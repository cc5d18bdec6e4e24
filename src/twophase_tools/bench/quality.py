"""`twophase bench quality`: what a quantised K/V cache, or quantised weights, cost in quality.

Each variant is judged against the same model with neither, in the same dtype. A gate: each line has a bound, and so
have all of them together. The lines come from a text (`quality_drift`), from questions (`quality_tasks`) and from small
tasks (`quality_probes`); the bounds, and why they are where they are, stand in `quality_verdict`. Which layers break
first is another question: `sensitivity`.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from twophase.core.errors import ConfigError
from twophase.llm import LLM
from twophase_tools.bench.machine import MachineRecord, record_machine
from twophase_tools.bench.perplexity import more_prose, prose
from twophase_tools.bench.quality_cost import (
    DECODE_BATCH,
    decode_step_times,
    stored_weight_bytes,
    weight_memory_bytes,
)
from twophase_tools.bench.quality_drift import STRETCH, Drift, Estimate, estimate, measure_drift
from twophase_tools.bench.quality_grid import NOTE, was_rounded
from twophase_tools.bench.quality_probes import Choice, Slice, probe
from twophase_tools.bench.quality_tasks import Answers, answer
from twophase_tools.bench.quality_verdict import (
    FOUR_BITS,
    WEIGHTS,
    Bounds,
    Verdict,
    answer_verdicts,
    drift_verdicts,
    mean_used,
    probe_verdicts,
)

__all__ = [
    "FOUR_BITS", "STRETCH", "WEIGHTS", "Before", "Bounds", "Drift", "Estimate", "FormatReport", "QualityReport",
    "Variant", "Verdict", "bench_quality", "bounds_for", "drift_verdicts", "estimate", "judge", "measure_drift",
    "open_model", "to_json",
]  # fmt: skip

# Room for the prose, and for the answers to eight questions about it. Steps are short, so that two models' logits fit.
NUM_BLOCKS, MAX_NUM_SEQS, STEP_TOKENS = 512, 16, 256


@dataclass(frozen=True, slots=True)
class Variant:
    """How a model is opened: with both at their defaults, as it is.

    Attributes:
        kv_cache_dtype, quantization: The engine's options of these names.
        dtype: Likewise; None: as the user says.
    """

    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    dtype: str | None = None

    @property
    def name(self) -> str:
        weights = [] if self.quantization is None else [self.quantization]
        cache = [] if weights and self.kv_cache_dtype == "auto" else [f"K/V {self.kv_cache_dtype}"]
        return ", ".join([*weights, *cache])


@dataclass(frozen=True, slots=True)
class Before:
    """The model as it is, the text, and what it answered."""

    llm: LLM
    token_ids: Sequence[int]
    answers: Answers
    slices: Mapping[str, Slice]


@dataclass(frozen=True, slots=True)
class FormatReport:
    """One variant against the model as it is.

    Attributes:
        weights: Of each line, in `used`.
        used: The weighted mean of what the lines have used of their allowances, in [0, 1].
        most_used: What it may be.
        dtype: Of the activations and of what is not quantised, before and after.
        bytes_ratio: Bytes per token of the cache, before over after.
        weight_bytes: Of the weights in their few bits; None for a model that `twophase plan` does not count.
        memory_bytes: Of the weights in memory here.
        weight_bytes_ratio, memory_bytes_ratio: Before over after.
        step_time_ratio: Time of a decode step, after over before; medians of runs in turns.
    """

    name: str
    verdicts: tuple[Verdict, ...]
    weights: dict[str, int | float]
    used: float
    most_used: int | float
    dtype: str
    bytes_per_token: int
    bytes_ratio: float
    weight_bytes: int | None
    weight_bytes_ratio: float
    memory_bytes: int
    memory_bytes_ratio: float
    step_time_ratio: float

    @property
    def passed(self) -> bool:
        return all(verdict.passed is not False for verdict in self.verdicts) and self.used <= self.most_used

    def to_lines(self) -> Iterator[str]:
        yield f"{self.name}, in {self.dtype}: the gate {'passes' if self.passed else 'FAILS'}"
        for verdict in self.verdicts:
            mark = {True: "pass", False: "FAIL", None: "----"}[verdict.passed]
            used = "" if verdict.passed is None else f"{min(1, verdict.used):.0%} x {self.weights[verdict.name]:g}"
            note = f" (open: {verdict.times_text:.1f} times the text would decide)" if verdict.times_text else ""
            yield f"  {mark}  {verdict.name:<18} {used:>8}  {verdict.text}{note}"
        mark = "pass" if self.used <= self.most_used else "FAIL"
        text = f"of what may be lost is lost, the weighted mean of the lines that tell; at most {self.most_used:.0%}"
        yield f"  {mark}  {'all together':<18} {self.used:>8.0%}  {text}"
        yield from _size_line(self.bytes_ratio, f"per token ({self.bytes_per_token:,})")
        yield from _size_line(self.weight_bytes_ratio, f"of weights, stored in their bits ({self.weight_bytes or 0:,})")
        yield from _size_line(self.memory_bytes_ratio, f"of weights, in memory here ({self.memory_bytes:,})")
        yield f"  costs   {self.step_time_ratio:.2f}x the time of a decode step ({DECODE_BATCH} sequences)"


def _size_line(ratio: float, what: str) -> Iterator[str]:
    if ratio > 1:
        yield f"  saved   {ratio:.2f}x fewer bytes {what}"
    elif ratio < 1:
        yield f"  costs   {1 / ratio:.2f}x the bytes {what}"


@dataclass(frozen=True, slots=True)
class QualityReport:
    """A whole run.

    Attributes:
        was_rounded: Whether the model as it is, too, has weights with the values of 4 bits (see `quality_grid`).
    """

    machine: MachineRecord
    model: str
    num_tokens: int
    was_rounded: bool
    formats: tuple[FormatReport, ...]

    @property
    def passed(self) -> bool:
        return all(report.passed for report in self.formats)

    def to_text(self) -> str:
        lines = [line for report in self.formats for line in (*report.to_lines(), "")]
        about = f"{self.model}, {self.num_tokens:,} tokens of text"
        note = [NOTE] if self.was_rounded else []
        return "\n".join([*lines, *note, about, self.machine.to_text()])

    def to_dict(self) -> dict[str, Any]:
        formats = [asdict(report) | {"passed": report.passed} for report in self.formats]
        return asdict(self) | {"formats": formats, "passed": self.passed}


def bounds_for(variant: Variant, given: Mapping[str, int | float] | None = None) -> Bounds:
    """The bounds of its bits, with those `given` by name in their place."""
    is_small = variant.quantization is not None and variant.quantization.startswith("int4")
    return replace(FOUR_BITS if is_small else Bounds(), **(given or {}))  # type: ignore[arg-type]


def bench_quality(
    open_llm: Callable[[Variant], LLM],
    variants: Sequence[Variant],
    bounds: Mapping[str, int | float] | None = None,
    *,
    weights: Mapping[str, int | float] = WEIGHTS,
    text: str | None = None,
    num_tokens: int | None = None,
    own: Sequence[Choice] = (),
    say: Callable[[str], None] = lambda line: None,
) -> QualityReport:
    """Judge each variant against the model as it is, in the same dtype: what is judged is the fewer bits alone.

    Args:
        open_llm: The model as the variant says; room for `DECODE_BATCH` sequences at least.
        bounds: Those that are not to be the ones of the variant's bits, by their names in `Bounds`.
        weights: Of the lines, in the mean of all.
        text: What is read with both; None: the prose that comes with this package, twice as much of it where weights
            are judged: int8's share of equal top tokens is so near its bound that 2,500 tokens leave it open.
        num_tokens: Of the text; None takes all.
        own: Tasks of the user.

    Raises:
        ConfigError: No variant, too little text to estimate anything, or more than the model or the pool can hold.
    """
    if not variants:
        raise ConfigError("bench quality needs at least one format to judge, such as --kv-cache-dtype int8.")
    check_num_tokens(num_tokens)
    ours = prose() + more_prose() if any(variant.quantization for variant in variants) else prose()
    befores: dict[str, Before] = {}
    reports = []
    for variant in variants:
        after = open_llm(variant)
        dtype = dtype_name(after)
        if dtype not in befores:
            befores[dtype] = _as_it_is(
                open_llm(Variant(dtype=dtype)), text_ids(after, text, ours, num_tokens), own, say
            )
        reports.append(judge(variant.name, befores[dtype], after, bounds_for(variant, bounds), weights, own, say))
        del after  # its weights should not stand beside the next one's
    before, *_ = befores.values()
    return QualityReport(
        record_machine(),
        str(before.llm.model_dir),
        len(before.token_ids),
        was_rounded(before.llm.model.weights),
        tuple(reports),
    )


def open_model(model: str, *, device: str, dtype: str, backend: str) -> Callable[[Variant], LLM]:
    """The `open_llm` of `bench_quality` for a model and the user's options."""

    def open_llm(variant: Variant) -> LLM:
        quantization: dict[str, Any] = {} if variant.quantization is None else {"quantization": variant.quantization}
        return LLM(
            model,
            device=device,
            dtype=variant.dtype or dtype,
            attention_backend=backend,
            kv_cache_dtype=variant.kv_cache_dtype,
            num_kv_blocks=NUM_BLOCKS,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=STEP_TOKENS,
            **quantization,
        )

    return open_llm


def check_num_tokens(num_tokens: int | None) -> None:
    """Raises ConfigError if an error cannot be estimated from so few tokens."""
    if num_tokens is not None and num_tokens < 4 * STRETCH:
        raise ConfigError(f"--tokens must be at least {4 * STRETCH}, or no error can be estimated; got {num_tokens}.")


def text_ids(llm: LLM, text: str | None, ours: str, num_tokens: int | None) -> list[int]:
    """The first tokens of the user's `text`, or of our own as many as fit.

    Raises:
        ConfigError: They are too few; or the user's are more than the model or the pool holds.
    """
    assert llm.tokenizer is not None
    most = min(llm.scheduler.config.max_model_len, llm.kv_cache.num_blocks * llm.kv_cache.spec.block_size) - 1
    token_ids = llm.tokenizer.encode(ours if text is None else text)[:num_tokens]
    if text is None and num_tokens is None:
        token_ids = token_ids[:most]
    if not 4 * STRETCH <= len(token_ids) <= most:
        raise ConfigError(
            f"the text must have {4 * STRETCH} to {most:,} tokens (fewer give no estimate, more do not fit), and has "
            f"{len(token_ids):,}; --tokens takes its beginning."
        )
    return token_ids


def dtype_name(llm: LLM) -> str:
    return str(llm.model.weights.dtype).removeprefix("torch.")


def _as_it_is(llm: LLM, token_ids: Sequence[int], own: Sequence[Choice], say: Callable[[str], None]) -> Before:
    say(f"as it is, in {dtype_name(llm)}: needles and JSON")
    answers = answer(llm)
    say(f"as it is, in {dtype_name(llm)}: sums, code and refusals")
    return Before(llm, token_ids, answers, probe(llm, own))


def judge(
    name: str,
    before: Before,
    after: LLM,
    bounds: Bounds,
    weights: Mapping[str, int | float] = WEIGHTS,
    own: Sequence[Choice] = (),
    say: Callable[[str], None] = lambda line: None,
) -> FormatReport:
    """One variant, which `after` is."""
    say(f"{name}: {len(before.token_ids):,} tokens of text, with both")
    drift = measure_drift(before.llm, after, before.token_ids)
    say(f"{name}: needles and JSON")
    answers = answer(after)
    say(f"{name}: sums, code and refusals")
    verdicts = (
        *drift_verdicts(drift, bounds),
        *answer_verdicts(before.answers, answers, bounds),
        *probe_verdicts(before.slices, probe(after, own), bounds),
    )
    say(f"{name}: time of a decode step, in turns")
    times_s = decode_step_times(before.llm, after, before.token_ids)
    per_token = [llm.kv_cache.spec.bytes_per_token for llm in (before.llm, after)]
    stored = [stored_weight_bytes(llm) for llm in (before.llm, after)]
    in_memory = [weight_memory_bytes(llm.model.weights) for llm in (before.llm, after)]
    return FormatReport(
        name=name,
        verdicts=verdicts,
        weights={verdict.name: weights[verdict.name] for verdict in verdicts},
        used=mean_used(verdicts, weights),
        most_used=bounds.mean_used,
        dtype=dtype_name(after),
        bytes_per_token=per_token[1],
        bytes_ratio=per_token[0] / per_token[1],
        weight_bytes=stored[1],
        weight_bytes_ratio=1.0 if stored[0] is None or stored[1] is None else stored[0] / stored[1],
        memory_bytes=in_memory[1],
        memory_bytes_ratio=in_memory[0] / in_memory[1],
        step_time_ratio=times_s[1] / times_s[0],
    )


def to_json(report: dict[str, Any]) -> str:
    """A report's `to_dict` as JSON; infinities, which JSON has not, as text."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(report), indent=2)
