"""`twophase bench speculative`: guessing against not guessing, in one process, in turns, ratios reported.

Each workload runs three ways on the same weights: without drafts, with drafts wherever there is room, and with drafts
as long as they pay. Tokens that repeat the prompt are where lookup wins; free sampling at temperature 1 is where any
drafter loses.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from twophase.core.request import SamplingParams
from twophase.llm import LLM
from twophase_features.speculation.config import SpeculativeConfig
from twophase_features.speculation.gate import SpeculationGate
from twophase_features.speculation.speculator import GatedSpeculator
from twophase_tools.bench.machine import MachineRecord, record_machine

WAYS = ("without", "always", "while it pays")

PASSAGE = (
    "The lighthouse at Corran Point was built in 1838 by the engineer Margaret Dunmore. It stands 41 metres above the "
    "sea and its light can be seen for 22 miles. Two keepers lived there until 1974, when the lamp was made automatic. "
    "The old cottages are now a museum that opens from April to October, and visitors may climb the 168 steps."
)
CODE = '''def total_price(items, tax_rate):
    """Sum the prices of items and add the tax."""
    total = 0.0
    for item in items:
        if item.quantity > 0:
            total += item.price * item.quantity
    return total * (1 + tax_rate)
'''


@dataclass(frozen=True, slots=True)
class TextWorkload:
    """Questions for a chat model, all asked at once."""

    name: str
    questions: tuple[str, ...]
    temperature: float | int
    max_tokens: int


def workloads(quick: bool = False) -> tuple[TextWorkload, ...]:
    """What is run: copying and editing, alone and in a batch; and what offers a drafter nothing."""
    copy = f"Repeat this text word for word, and write nothing else.\n\n{PASSAGE}"
    edits = tuple(
        f"Write this text again with every occurrence of '{old}' replaced by '{new}'.\n\n{PASSAGE}"
        for old, new in (("Corran", "Arden"), ("1838", "1841"), ("museum", "school"), ("sea", "lake"))
    )
    code = f"Rename the variable total to amount. Answer with the whole function.\n\n```python\n{CODE}```"
    story = "Invent a short story about a place that nobody has ever seen. Use unusual words."
    found = (
        TextWorkload("copy a text", (copy,), 0, 112),
        TextWorkload("edit a text, 4 at once", edits, 0, 112),
        TextWorkload("edit code", (code,), 0, 96),
        TextWorkload("invent, temperature 1", (story,), 1.0, 112),
        TextWorkload("invent, temperature 1, 8 at once", (story,) * 8, 1.0, 64),
    )
    if not quick:
        return found
    return tuple(TextWorkload(w.name, w.questions[:2], w.temperature, 6) for w in (found[0], found[4]))


@dataclass(frozen=True, slots=True)
class WayResult:
    """One workload done one way.

    Attributes:
        elapsed_s: Median over the repeats.
        speed_up: Median time without drafts over this one.
        num_draft_tokens, num_accepted_tokens: In all repeats together.
        acceptance_by_place: Of the first, second, ... draft of a run: the share that was confirmed.
        num_equal: Outputs of the last repeat that are, token for token, those without drafts.
    """

    way: str
    elapsed_s: float
    speed_up: float
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_by_place: tuple[float, ...]
    num_equal: int


@dataclass(frozen=True, slots=True)
class SpeculativeResult:
    """One workload, done each way."""

    workload: str
    num_requests: int
    num_output_tokens: int
    ways: tuple[WayResult, ...]


@dataclass(frozen=True, slots=True)
class SpeculativeReport:
    """All workloads, and on what they were run."""

    model: str
    drafter: str
    num_speculative_tokens: int
    repeats: int
    machine: MachineRecord
    results: tuple[SpeculativeResult, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        lines = [
            f"{self.model}, drafts by {self.drafter}, up to {self.num_speculative_tokens}; medians of {self.repeats}",
            f"{'workload':<34} {'way':<14} {'seconds':>8} {'speed-up':>8} {'accepted':>9} {'equal':>6}  by place",
        ]
        for result in self.results:
            for way in result.ways:
                rate = way.num_accepted_tokens / way.num_draft_tokens if way.num_draft_tokens else 0.0
                places = " ".join(f"{share:.2f}" for share in way.acceptance_by_place)
                lines.append(
                    f"{result.workload:<34} {way.way:<14} {way.elapsed_s:>8.2f} {way.speed_up:>8.2f} {rate:>9.0%} "
                    f"{way.num_equal:>3}/{result.num_requests:<2}  {places}"
                )
        return "\n".join(lines)


def bench_speculative(
    model: str,
    config: SpeculativeConfig,
    *,
    device: str = "auto",
    dtype: str = "auto",
    backend: str = "auto",
    repeats: int = 3,
    quick: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> SpeculativeReport:
    """Run every workload every way, in turns.

    Raises:
        TwophaseError: The model or an option cannot be used; says why.
    """
    # Without the prefix cache, or every run after the first would be spared its prompts.
    llm = LLM(
        model,
        device=device,
        dtype=dtype,
        attention_backend=backend,
        max_num_seqs=8,
        enable_prefix_caching=False,
        speculative_config=config,
    )
    results = []
    for workload in workloads(quick):
        say(f"{workload.name} ...")
        results.append(_measure(llm, workload, config, 1 if quick else repeats))
    return SpeculativeReport(
        model=llm.model_dir.name,
        drafter=config.model or "n-gram lookup",
        num_speculative_tokens=config.num_speculative_tokens,
        repeats=1 if quick else repeats,
        machine=record_machine(),
        results=tuple(results),
    )


@dataclass(slots=True)
class _Tally:
    elapsed_s: list[float]
    num_drafted: list[int]
    num_accepted: list[int]
    tokens: list[tuple[int, ...]]


def _measure(llm: LLM, workload: TextWorkload, config: SpeculativeConfig, repeats: int) -> SpeculativeResult:
    num_places = config.num_speculative_tokens
    tallies = {way: _Tally([], [0] * num_places, [0] * num_places, []) for way in WAYS}
    for repeat in range(repeats + 1):
        for way, tally in tallies.items():
            elapsed_s, tokens, speculator = _run(llm, workload, way, num_places)
            if repeat:  # the first round warms up
                tally.elapsed_s.append(elapsed_s)
                tally.tokens = tokens
                for place in range(num_places):
                    tally.num_drafted[place] += speculator.num_drafted[place]
                    tally.num_accepted[place] += speculator.num_accepted[place]
    return SpeculativeResult(
        workload.name,
        len(workload.questions),
        sum(map(len, tallies["without"].tokens)),
        tuple(_results(tallies)),
    )


def _run(
    llm: LLM, workload: TextWorkload, way: str, max_drafts: int
) -> tuple[float, list[tuple[int, ...]], GatedSpeculator]:
    """Answer all questions once; returns the time it took, the tokens and who guessed."""
    assert isinstance(llm.engine.speculator, GatedSpeculator)
    speculator = GatedSpeculator(
        llm.engine.speculator.drafter,
        0 if way == "without" else max_drafts,
        SpeculationGate() if way == "while it pays" else None,
    )
    llm.engine.speculator = speculator
    params = [
        SamplingParams(temperature=workload.temperature, seed=seed, max_tokens=workload.max_tokens, ignore_eos=True)
        for seed in range(len(workload.questions))
    ]
    prompts = [_prompt(llm, question) for question in workload.questions]
    start_s = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed_s = time.perf_counter() - start_s
    return elapsed_s, [output.outputs[0].token_ids for output in outputs], speculator


def _prompt(llm: LLM, question: str) -> Any:
    tokenizer = llm.tokenizer
    assert tokenizer is not None
    if tokenizer.chat_template is None:
        return question
    return {"prompt_token_ids": tokenizer.apply_chat_template([{"role": "user", "content": question}])}


def _results(tallies: dict[str, _Tally]) -> Iterator[WayResult]:
    plain = tallies["without"]
    plain_s = statistics.median(plain.elapsed_s)
    for way, tally in tallies.items():
        elapsed_s = statistics.median(tally.elapsed_s)
        places = zip(tally.num_accepted, tally.num_drafted, strict=True)
        yield WayResult(
            way=way,
            elapsed_s=elapsed_s,
            speed_up=plain_s / elapsed_s,
            num_draft_tokens=sum(tally.num_drafted),
            num_accepted_tokens=sum(tally.num_accepted),
            acceptance_by_place=tuple(accepted / drafted for accepted, drafted in places if drafted),
            num_equal=sum(a == b for a, b in zip(plain.tokens, tally.tokens, strict=True)),
        )
