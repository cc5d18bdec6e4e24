"""4.4 A policy of one's own: decodes first, prefills in chunks, a bound on every step."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from twophase.cache.manager import CacheManager
from twophase.core.plan import SampledToken, StepTrace
from twophase.core.request import Request, SamplingParams
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.policy import Policy
from twophase.scheduling.scheduler import Scheduler
from twophase_labs.machine.checks import Draw, compare, reject
from twophase_labs.machine.exercise import exercise
from twophase_labs.scheduling.ranks import require_rank
from twophase_labs.scheduling.virtual import StepCost, VirtualRun, play
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.steps import num_tokens
from twophase_tools.load.workloads import TimedRequest

POLICY = exercise(
    "4.4", "Decodes first, prefills in chunks", "DecodesFirst", points=4, minutes=15, lines=15, difficulty=3
)
POLICY.time_limit_s = 15
POLICY.objective = "write a scheduling policy that runs in the engine"
POLICY.hints = (
    "Three groups in this order: those that decode, those whose prefill has begun, those that wait. `room` is what "
    "the step has left for each.",
    "`step.prefill` and `step.admit` take the most tokens a chunk may have and return how many they planned.",
    "class DecodesFirst(Policy):\n"
    "    def __init__(self, max_tokens):\n"
    "        self.max_tokens = max_tokens\n"
    "\n"
    "    def rank(self, sequence):\n"
    "        return ...                       # by arrival; and its completions by index\n"
    "\n"
    "    def plan(self, step):\n"
    "        room, prefills = self.max_tokens, []\n"
    "        for sequence in step.running:\n"
    "            ...                          # decode it, and count that; or note it as a prefill\n"
    "        for sequence in prefills:\n"
    "            room -= ...                  # `step.prefill` tells how many tokens it planned\n"
    "        for sequence in step.waiting:\n"
    "            ...                          # `step.admit` likewise; after a 0, stop: nothing overtakes the "
    "head",
)

ONE_SECOND = StepCost(step_s=1.0)
Steps = list[dict[str, int]]


def expected_steps(requests: Sequence[TimedRequest], max_tokens: int) -> Steps:
    """What each step computes when blocks and seats are plentiful and a step takes a second, by counting."""
    left = {r.request_id: [r.num_prompt_tokens, r.num_output_tokens] for r in requests}
    begun: list[str] = []
    steps: Steps = []
    now = 0
    while any(output for _, output in left.values()):
        step: dict[str, int] = {}
        for name in begun:
            if left[name][0] == 0 and left[name][1]:
                step[name] = 1
        room = max_tokens - len(step)
        arrived = [r.request_id for r in requests if r.arrival_s <= now and r.request_id not in begun]
        for name in [name for name in begun if left[name][0]] + arrived:
            if room > 0:
                step[name] = min(room, left[name][0])
                room -= step[name]
        for name, count in step.items():
            if name not in begun:
                begun.append(name)
            left[name][0] = max(0, left[name][0] - count)
            left[name][1] -= left[name][0] == 0
        if step:
            steps.append(step)
        now += 1
    return steps


def made(answer: Any, max_tokens: int) -> Policy:
    policy = answer.DecodesFirst(max_tokens)
    if not isinstance(policy, Policy):
        reject("DecodesFirst is no Policy; keep `class DecodesFirst(Policy):`")
    return policy


def run(answer: Any, requests: Sequence[TimedRequest], max_tokens: int, **options: Any) -> VirtualRun:
    return play(made(answer, max_tokens), requests, ONE_SECOND, max_steps=5_000, **options)


def drawn(draw: Draw, num: int, longest: int, spread: int = 0, outputs: int = 6) -> list[TimedRequest]:
    times = sorted(draw.integer(0, spread + 1) for _ in range(num))
    return [
        TimedRequest(chr(65 + i), time, draw.integer(1, longest + 1), draw.integer(1, outputs + 1))
        for i, time in enumerate(times)
    ]


def describe(requests: Sequence[TimedRequest]) -> str:
    return ", ".join(
        f"{r.request_id}: {r.num_prompt_tokens} + {r.num_output_tokens} at {r.arrival_s:g}" for r in requests
    )


def as_dict(step: StepTrace) -> dict[str, int]:
    return {name: count for name, _, _, count in step.chunks}


def decode_names(step: StepTrace) -> list[str]:
    return [name for name, _, _, _ in step.chunks[: step.num_decodes]]


@POLICY.check("ranks by a tuple of numbers")
def has_a_rank(answer: Any, draw: Draw) -> None:
    """Queues are sorted by it: two numbers, compared from the left."""
    require_rank(made(answer, draw.integer(1, 64)))


@POLICY.check("serves one request", prompt=(5, 8, 30))
def serves_one(answer: Any, draw: Draw, prompt: int) -> None:
    """A chunk of at most max_tokens in each step until the prompt is done (its last chunk gives the first token),
    then a decode per step."""
    requests = [TimedRequest("A", 0, prompt, 4)]
    got = [as_dict(step) for step in run(answer, requests, 8).steps]
    expected = expected_steps(requests, 8)
    if got != expected:
        reject(
            f"a prompt of {prompt} tokens and 4 tokens of answer, at most 8 tokens a step, ran in other steps",
            f"got      {got}",
            f"expected {expected}",
        )


@POLICY.check("keeps a step within max_tokens", num=(2, 6))
def keeps_to_max_tokens(answer: Any, draw: Draw, num: int) -> None:
    """Decodes count as well: what they take is not there for prefills, and neither is what one prefill took for the
    next."""
    requests = drawn(draw, num, 60, spread=6)
    for step in run(answer, requests, 12).steps:
        if num_tokens(step) > 12:
            reject(
                f"step {step.step} computes {num_tokens(step)} tokens, with max_tokens=12",
                f"the step: {as_dict(step)}",
                f"requests (prompt + output at arrival) {describe(requests)}",
            )


@POLICY.check("decodes in every step", num=(2, 6))
def decodes_every_step(answer: Any, draw: Draw, num: int) -> None:
    """A sequence that decodes comes first, in every step, whatever prompts there are."""
    requests = drawn(draw, num, 60, spread=6)
    got = run(answer, requests, 12)
    for record in got.records:
        gaps = [round(gap, 3) for gap in record.itls_s]
        if any(gap != 1 for gap in gaps):
            at = next(i for i, gap in enumerate(gaps) if gap != 1)
            reject(
                f"{record.request_id} waited {gaps[at]:g} steps for its token {at + 1}; a decode gets a token in "
                f"every step",
                f"requests (prompt + output at arrival) {describe(requests)}",
            )


@POLICY.check("never holds decodes back")
def never_holds_decodes_back(answer: Any, draw: Draw) -> None:
    """If more sequences decode than max_tokens allows, they decode all the same, and prefills wait."""
    cache = CacheManager(64, 4, enable_prefix_caching=False)
    scheduler = Scheduler(SchedulerConfig(8, 64, 256), cache, made(answer, 4))
    scheduler.add(Request("A", (0, 0, 0), SamplingParams(temperature=1.0, n=6, max_tokens=5)))
    num_decodes = []
    for _ in range(3):
        plan = scheduler.schedule()
        scheduler.update(plan, {chunk.seq_id: (SampledToken(1),) * chunk.num_samples for chunk in plan.chunks})
        num_decodes.append(plan.num_decodes)
    if num_decodes != [0, 6, 6]:
        reject(
            f"a request's six completions were ready to decode, with max_tokens=4, and {num_decodes[1]} of them did",
            "max_tokens bounds what prefills may take; decodes always go.",
        )


@POLICY.check("serves in the order of arrival", num=(3, 8))
def first_come(answer: Any, draw: Draw, num: int) -> None:
    """`rank` is the order: smaller goes first. `sequence.arrival_order` counts requests as they come."""
    requests = drawn(draw, num, 40, spread=4)
    records = run(answer, requests, 12).records
    _in_order(requests, records)


def _in_order(requests: Sequence[TimedRequest], records: Sequence[RequestRecord]) -> None:
    for earlier, later in pairwise(records):
        assert earlier.first_scheduled_s is not None
        assert later.first_scheduled_s is not None
        if later.first_scheduled_s < earlier.first_scheduled_s:
            reject(
                f"{later.request_id} was let in at {later.first_scheduled_s:g}, before {earlier.request_id}, which "
                f"stood ahead of it, at {earlier.first_scheduled_s:g}",
                f"requests (prompt + output at arrival) {describe(requests)}",
            )


@POLICY.check("lets nothing past the head of the queue")
def keeps_the_head_first(answer: Any, draw: Draw) -> None:
    # 8 blocks of 4 slots. A holds 4 blocks and leaves late; B needs 5, so it waits, and C, which would fit, with it.
    """The head needs more blocks than are free. If smaller ones slip past it, it may never be served."""
    requests = [TimedRequest("A", 0, 12, 6), TimedRequest("B", 1, 20, 2), TimedRequest("C", 1, 3, 2)]
    got = run(answer, requests, 32, num_blocks=8, block_size=4, token_budget=32, max_num_seqs=8)
    _in_order(requests, got.records)


@POLICY.check(
    "uses what is left of a step",
    {"num": 2, "spread": 0},
    {"num": 4, "spread": 0, "longest": 3},
    {"num": 6, "spread": 0},
    {"num": 8, "spread": 6},
    {"num": 5, "spread": 3, "max_tokens": 150},
)
def fills_the_step(
    answer: Any, draw: Draw, num: int, spread: int, max_tokens: int = 10, longest: int | None = None
) -> None:
    """With room left and a request waiting, the step takes more: prefills that are begun first, then waiting requests,
    several if they are short."""
    leaves_one = [TimedRequest("A", 0, max_tokens - 1, 2), TimedRequest("B", 0, 5, 2)]
    for requests in (leaves_one, drawn(draw, num, longest or 4 * max_tokens, spread)):
        got = [as_dict(step) for step in run(answer, requests, max_tokens).steps]
        for number, (one, other) in enumerate(zip(got, expected_steps(requests, max_tokens), strict=False)):
            if one != other:
                reject(
                    f"step {number} computes {one}, expected {other}",
                    f"requests (prompt + output at arrival) {describe(requests)}, max_tokens={max_tokens}",
                )


@POLICY.check("ranks every sequence")
def ranks_every_sequence(answer: Any, draw: Draw) -> None:
    """arrival_order is the request's; its completions differ in `sequence.index`."""
    # The completions of a request are sequences of one arrival: their index tells them apart.
    policy = made(answer, 64)
    scheduler = Scheduler(SchedulerConfig(16, 64, 256), CacheManager(64, 4, enable_prefix_caching=False), policy)
    for name in "AB":
        scheduler.add(Request(name, (0, 0, 0), SamplingParams(temperature=1.0, n=4, max_tokens=5)))
    plan = scheduler.schedule()
    scheduler.update(plan, {chunk.seq_id: (SampledToken(1),) * chunk.num_samples for chunk in plan.chunks})
    sequences = list(scheduler.sequences.values())
    expected = sorted(sequences, key=lambda one: (one.arrival_order, one.index))
    draw.random.shuffle(sequences)
    got = sorted(sequences, key=policy.rank)
    if len({policy.rank(one) for one in got}) < len(got) or got != expected:
        reject(
            "two requests of four completions each are not ranked by arrival and then by index, all differently",
            *(f"request {one.request.request_id}, index {one.index}: rank {policy.rank(one)!r}" for one in got),
        )


@POLICY.check("gives prefills no more than there is room")
def gives_prefills_no_more_than_room(answer: Any, draw: Draw) -> None:
    """Decodes may fill a step, and more than fill it. Then no prefill gets a token, begun or not."""
    # Six decodes, with max_tokens=4, beside a prefill that was begun when there was room.
    cache = CacheManager(64, 4, enable_prefix_caching=False)
    scheduler = Scheduler(SchedulerConfig(8, 64, 256), cache, made(answer, 4))
    scheduler.add(Request("A", (0, 0, 0), SamplingParams(temperature=1.0, n=6, max_tokens=5)))
    scheduler.add(Request("B", (0,) * 20, SamplingParams(temperature=1.0, max_tokens=5)))
    for _ in range(3):
        plan = scheduler.schedule()
        scheduler.update(plan, {chunk.seq_id: (SampledToken(1),) * chunk.num_samples for chunk in plan.chunks})
        if plan.num_decodes >= 4 and len(plan.chunks) > plan.num_decodes:
            reject(f"{plan.num_decodes} decodes, with max_tokens=4, and a prefill got tokens in the same step")


@POLICY.check("survives memory pressure")
def survives_pressure(answer: Any, draw: Draw) -> None:
    """Sequences may be preempted while you plan: `step.decode` is then False and `step.prefill` 0."""
    requests = [TimedRequest(f"{i}", i // 2, draw.integer(1, 24), draw.integer(1, 24)) for i in range(14)]
    got = run(answer, requests, 12, num_blocks=14, block_size=4, token_budget=64, max_num_seqs=8)
    for request, record in zip(requests, got.records, strict=True):
        compare(len(record.token_times_s), request.num_output_tokens, what=f"the tokens of {request.request_id}")
