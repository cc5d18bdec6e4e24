"""`twophase bench quality`: what a quantised K/V cache, or quantised weights, cost in quality.

Each variant is judged against the same model with neither, in the same dtype. A gate: each line has a bound. The lines
come from a text (`quality_drift`) and from questions (`quality_tasks`); the bounds, and why they are where they are,
stand in `quality_verdict`. What weights of fewer bits gain in speed is for `bench engine --weights`.

The default model's weights come from a file of 4 bits in groups of 32: rounded again on that grid nothing moves, and
the gate sees no cost where the cost was paid earlier.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from twophase.core.errors import ConfigError
from twophase.llm import LLM
from twophase_tools.bench.perplexity import more_prose, prose
from twophase_tools.bench.quality_drift import STRETCH, measure_drift
from twophase_tools.bench.quality_probes import Outcome
from twophase_tools.bench.quality_tasks import answer
from twophase_tools.bench.quality_verdict import FOUR_BITS, Bounds, Verdict, answer_verdicts, drift_verdicts
from twophase_tools.bench.turns import Say

# Room for the prose, and for the answers to eight questions about it. Steps are short, so that two models' logits fit.
LIMITS = {"num_kv_blocks": 512, "max_num_seqs": 16, "max_num_batched_tokens": 256}


@dataclass(frozen=True, slots=True)
class Variant:
    """How a model is opened, in the engine's options of these names: by default as it is, in the user's dtype."""

    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    dtype: str | None = None

    @property
    def name(self) -> str:
        return self.quantization or f"K/V {self.kv_cache_dtype}"


@dataclass(frozen=True, slots=True)
class Before:
    """The model as it is, the text, and what it answered."""

    llm: LLM
    token_ids: Sequence[int]
    answers: Mapping[str, Sequence[Outcome]]


@dataclass(frozen=True, slots=True)
class FormatReport:
    """One variant against the model as it is; `dtype` is that of what is not quantised, before and after."""

    name: str
    verdicts: tuple[Verdict, ...]
    dtype: str

    @property
    def passed(self) -> bool:
        return all(verdict.passed is not False for verdict in self.verdicts)

    def to_lines(self) -> Iterator[str]:
        yield f"{self.name}, in {self.dtype}: the gate {'passes' if self.passed else 'FAILS'}"
        for verdict in self.verdicts:
            mark = {True: "pass", False: "FAIL", None: "----"}[verdict.passed]
            yield f"  {mark}  {verdict.name:<18}  {verdict.text}"


@dataclass(frozen=True, slots=True)
class QualityReport:
    """A whole run."""

    model: str
    num_tokens: int
    formats: tuple[FormatReport, ...]

    @property
    def passed(self) -> bool:
        return all(report.passed for report in self.formats)

    def to_text(self) -> str:
        lines = [line for report in self.formats for line in (*report.to_lines(), "")]
        return "\n".join([*lines, f"{self.model}, {self.num_tokens:,} tokens of text"])

    def to_dict(self) -> dict[str, Any]:
        formats = [asdict(report) | {"passed": report.passed} for report in self.formats]
        return asdict(self) | {"formats": formats, "passed": self.passed}


def bounds_for(variant: Variant, given: Mapping[str, int | float] | None = None) -> Bounds:
    """The bounds of its bits, with those `given` by name in their place."""
    is_small = variant.quantization is not None and variant.quantization.startswith("int4")
    return replace(FOUR_BITS if is_small else Bounds(), **(given or {}))


def bench_quality(
    open_llm: Callable[[Variant], LLM],
    variants: Sequence[Variant],
    bounds: Mapping[str, int | float] | None = None,
    *,
    text: str | None = None,
    num_tokens: int | None = None,
    say: Say = lambda line: None,
) -> QualityReport:
    """Judge each variant against the model as it is, in the same dtype: what is judged is the fewer bits alone.

    Args:
        open_llm: The model as the variant says.
        bounds: Those that are not to be the ones of the variant's bits, by their names in `Bounds`.
        text: What is read with both; None: the prose that comes with this package, twice as much of it where weights
            are judged: int8's share of equal top tokens is so near its bound that 2,500 tokens leave it open.
        num_tokens: Of the text; None takes all.

    Raises:
        ConfigError: No variant, too little text to estimate anything, or more than the model or the pool can hold.
    """
    if not variants:
        raise ConfigError("bench quality needs at least one format to judge, such as --kv-cache-dtype int8.")
    ours = prose() + more_prose() if any(variant.quantization for variant in variants) else prose()
    befores: dict[str, Before] = {}
    reports = []
    for variant in variants:
        after = open_llm(variant)
        dtype = _dtype_name(after)
        if dtype not in befores:
            token_ids = _text_ids(after, text, ours, num_tokens)
            llm = open_llm(Variant(dtype=dtype))
            say(f"as it is, in {dtype}: needles, JSON and sums")
            befores[dtype] = Before(llm, token_ids, answer(llm))
        reports.append(judge(variant.name, befores[dtype], after, bounds_for(variant, bounds), say))
        del after  # its weights should not stand beside the next one's
    before, *_ = befores.values()
    return QualityReport(str(before.llm.model_dir), len(before.token_ids), tuple(reports))


def open_model(model: str, **options: Any) -> Callable[[Variant], LLM]:
    """The `open_llm` of `bench_quality` for a model and the user's options."""

    def open_llm(variant: Variant) -> LLM:
        return LLM(model, **options | {name: value for name, value in asdict(variant).items() if value} | LIMITS)

    return open_llm


def _text_ids(llm: LLM, text: str | None, ours: str, num_tokens: int | None) -> list[int]:
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


def _dtype_name(llm: LLM) -> str:
    return str(llm.model.weights.dtype).removeprefix("torch.")


def judge(name: str, before: Before, after: LLM, bounds: Bounds, say: Say = lambda line: None) -> FormatReport:
    """One variant, which `after` is."""
    say(f"{name}: {len(before.token_ids):,} tokens of text, with both")
    drift = measure_drift(before.llm, after, before.token_ids)
    say(f"{name}: needles, JSON and sums")
    verdicts = (*drift_verdicts(drift, bounds), *answer_verdicts(before.answers, answer(after), bounds))
    return FormatReport(name, verdicts, _dtype_name(after))
