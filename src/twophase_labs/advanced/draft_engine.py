"""Drafts in the real engine: your drafter in it, workloads to try it on, and what a pass costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, final
from unittest.mock import patch

from twophase import SamplingParams
from twophase.core.plan import StepPlan
from twophase_features.speculation.drafter import Drafter, DraftRequest
from twophase_features.speculation.gate import SpeculationGate
from twophase_features.speculation.speculator import GatedSpeculator
from twophase_labs.advanced.prefix_service import shared_engine

NUM_DRAFTS = 4
PROGRAM = """def area(width, height):
    return width * height


def volume(width, height, depth):
    return width * height * depth


def surface(width, height, depth):
    return 2 * (width * height + width * depth + height * depth)
"""
COPY = f"Repeat this program exactly, without any comment:\n\n```python\n{PROGRAM}```"
STORIES = tuple(
    f"Write a short story about {who}."
    for who in (
        "a lighthouse keeper",
        "two bakers",
        "a lost letter",
        "the last bus",
        "a clock",
        "snow",
        "an owl",
        "tea",
    )
)


@final
class OwnDrafter:
    """A function from a text to its draft, as the engine asks for it. `LLM(drafter=OwnDrafter(ngram_draft))`."""

    def __init__(self, draft: Callable[[list[int], int], list[int]]) -> None:
        self.draft = draft

    def note_plan(self, plan: StepPlan) -> None:
        pass  # a drafter with pages of its own would prepare them here

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        return [self.draft(list(request.token_ids), request.chunk.num_drafts) for request in requests]

    def forget(self, seq_id: int) -> None:
        pass  # nothing was kept


def drafting(drafter: Drafter | None, num_drafts: int = NUM_DRAFTS, gate: SpeculationGate | None = None) -> Any:
    """A context in which `shared_engine` has this drafter; None: none."""
    speculator = None if drafter is None else GatedSpeculator(drafter, num_drafts, gate)
    return patch.object(shared_engine().engine, "speculator", speculator)


@dataclass(frozen=True)
class Run:
    """What became of a workload.

    Attributes:
        outputs: Token ids of each answer.
        num_steps: Of decoding; steps with a prefill do not count.
        num_drafting: Those of them that had drafts.
        num_drafts, num_accepted: Drafts that were verified, and that were accepted.
        num_looked_at: Drafts that were not behind a rejected one.
        decode_s: Seconds of the decoding steps.
    """

    outputs: tuple[tuple[int, ...], ...]
    num_steps: int
    num_drafting: int
    num_drafts: int
    num_accepted: int
    num_looked_at: int
    decode_s: float

    @property
    def tokens_per_s(self) -> float:
        return (sum(map(len, self.outputs)) - len(self.outputs)) / self.decode_s  # the prefill gives the first of each

    @property
    def acceptance(self) -> float:
        return self.num_accepted / self.num_looked_at if self.num_looked_at else 0.0


def run(
    prompts: Sequence[str],
    params: SamplingParams,
    drafter: Drafter | None,
    gate: SpeculationGate | None = None,
    *,
    num_drafts: int = NUM_DRAFTS,
    together: bool = True,
) -> Run:
    """Answer these prompts, all together or one after the other."""
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    llm = shared_engine()
    with drafting(drafter, num_drafts, gate):
        first_step, speculator = llm.engine.stats().num_steps, llm.engine.speculator
        groups = [chats] if together else [[chat] for chat in chats]
        answers = [answer for group in groups for answer in llm.chat(group, params, use_tqdm=False)]
        steps = [step for step in llm.engine.trace if step.step >= first_step]
    decoding = [step for step in steps if step.num_decodes + step.num_verifying == len(step.chunks)]
    drafted: Mapping[int, int] = getattr(speculator, "num_drafted", {})  # by place in a run of drafts
    accepted: Mapping[int, int] = getattr(speculator, "num_accepted", {})
    return Run(
        outputs=tuple(answer.outputs[0].token_ids for answer in answers),
        num_steps=len(decoding),
        num_drafting=sum(step.num_draft_tokens > 0 for step in decoding),
        num_drafts=sum(drafted.values()),
        num_accepted=sum(accepted.values()),
        num_looked_at=sum(min(num, accepted[place - 1]) if place else num for place, num in drafted.items()),
        decode_s=sum(step.schedule_s + step.run_s + step.update_s for step in decoding),
    )


def copying(drafter: Drafter | None, gate: SpeculationGate | None = None) -> Run:
    """A program is to be repeated; greedy."""
    return run([COPY], SamplingParams(temperature=0, max_tokens=60), drafter, gate)


def inventing(drafter: Drafter | None, gate: SpeculationGate | None = None) -> Run:
    """Eight stories at once, with much left to chance."""
    params = SamplingParams(temperature=1, top_p=0.95, max_tokens=24, seed=1, ignore_eos=True)
    return run(STORIES, params, drafter, gate)


def three_ways(work: Callable[..., Run], drafter: Drafter, num_rounds: int = 2) -> dict[str, Run]:
    """A workload without drafts, with drafts always, and with drafts as long as they pay; of each its fastest run.

    In turns, so that a machine that others use as well is no fairer to one than to another.
    """
    rounds = [
        {
            "without": work(None),
            "always": work(drafter),
            "as long as it pays": work(drafter, SpeculationGate()),
        }
        for _ in range(num_rounds)
    ]
    return {way: min((each[way] for each in rounds), key=lambda run: run.decode_s) for way in rounds[0]}


def never_right(token_ids: list[int], num_drafts: int) -> list[int]:
    """Drafts to be verified for their cost alone."""
    return [(token_ids[-1] + 7 + place) % 40_000 for place in range(num_drafts)]


def seconds_of_pass(num_drafts: int, num_sequences: int = 1) -> float:
    """Of the model, for so many sequences with so many drafts each; the fastest of three: others only add to it."""
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    llm = shared_engine()
    with drafting(OwnDrafter(never_right) if num_drafts else None, num_drafts):
        names = [f"pass {number}" for number in range(num_sequences)]
        for number, name in enumerate(names):
            llm.engine.add_request(
                name, {"prompt_token_ids": list(range(100 * number + 100, 100 * number + 104))}, params
            )
        for _ in islice(iter(llm.engine.step, None), 5):
            pass
        steps = llm.engine.trace[-3:]
        for name in names:
            llm.engine.abort(name)
    return min(step.run_s for step in steps)
