"""Memory pressure: which sequence loses its blocks, and what to admit so that it seldom happens."""

import math
from typing import Any

from twophase.cache.allocator import KVAllocator
from twophase.core.plan import SampledToken
from twophase.core.request import Request, SamplingParams
from twophase.scheduling.policy import Policy, Step, by_priority
from twophase.scheduling.sequence import Sequence
from twophase_labs.machine.checks import Draw, reject, unchanged
from twophase_labs.machine.exercise import exercise
from twophase_labs.scheduling.memory import Held, Running
from twophase_tools.simulate.limits import make_scheduler

DECODES = exercise(
    "4.7", "Who loses its blocks?", "plan_decodes", points=3, minutes=10, lines=4, difficulty=2, time_limit_s=10
)
DECODES.objective = "serve and preempt by one order"
DECODES.hints = (
    "`left` is in order of rank: take the next to decode from its front, and a victim from its end.",
    "The sequence that asks stands at the front of `left` itself. If it is also the last, it loses its own.",
    "left = sorted(running, key=...)        # best rank first\n"
    "decoding, preempted = [], []\n"
    "while left:\n"
    "    if ...:                            # the first of them finds the blocks it needs\n"
    "        sequence = left.pop(0)\n"
    "        ...\n"
    "    else:\n"
    "        victim = left.pop()            # the worst rank; it may be the one that asks\n"
    "        ...\n"
    "return decoding, preempted",
)


def by_definition(order: list[Running], num_free: int) -> tuple[list[str], list[str]]:
    """`order` best rank first: the first goes on if it can; else the last loses its blocks, and all is asked again."""
    if not order:
        return [], []
    if order[0].num_needed <= num_free:
        decoding, preempted = by_definition(order[1:], num_free - order[0].num_needed)
        return [order[0].name, *decoding], preempted
    decoding, preempted = by_definition(order[:-1], num_free + order[-1].num_own)
    return decoding, [order[-1].name, *preempted]


def require_plan(answer: Any, running: list[Running], num_free: int) -> None:
    in_order = sorted(running, key=lambda one: one.rank)
    expected = by_definition(in_order, num_free)
    theirs = list(running)
    with unchanged(running=theirs):
        got = answer.plan_decodes(theirs, num_free)
    if not isinstance(got, tuple | list) or len(got) != 2:
        reject("plan_decodes returns two lists of names: those that decode, and those that are preempted")
    for what, one, other in zip(("those that decode", "those preempted"), got, expected, strict=True):
        if list(one) != other and sorted(map(str, one)) == sorted(other):
            reject(
                f"{what} are the right ones, in another order: {list(one)}, expected {other}",
                "list each when it is decided",
                f"{num_free} free blocks",
                *map(str, in_order),
            )
        if list(one) != other:
            reject(f"{what}: {list(one)}, expected {other}", f"{num_free} free blocks", *map(str, in_order))


def crowd(draw: Draw, num: int) -> list[Running]:
    """In any order; some need a block, some share all they have."""
    ranks = draw.random.sample(range(50), num)
    return [
        Running(chr(65 + i), rank, draw.choice((0, 1, 1)), draw.choice((0, 1, 2, 5))) for i, rank in enumerate(ranks)
    ]


@DECODES.check("lets all go on while there is room", num=(1, 6))
def room_for_all(answer: Any, draw: Draw, num: int) -> None:
    """With enough free blocks all decode, in order of rank, and none is preempted."""
    running = crowd(draw, num)
    require_plan(answer, running, sum(one.num_needed for one in running))


@DECODES.check("takes from the worst rank")
def worst_rank_loses(answer: Any, draw: Draw) -> None:
    """Neither the one with the most blocks nor the last in the list: the one with the largest rank."""
    a, b, c = sorted(draw.random.sample(range(50), 3))
    require_plan(answer, [Running("B", b, 0, 9), Running("C", c, 0, 1), Running("A", a, 1, 1)], 0)


@DECODES.check("lets the worst yield itself")
def the_worst_yields_itself(answer: Any, draw: Draw) -> None:
    """A is planned already and keeps its blocks. B asks, and B is the worst that is left."""
    require_plan(answer, [Running("A", 1, 0, 4), Running("B", 2, 1, 3)], 0)


@DECODES.check("goes on with the blocks set free", num_own=(3, 2))
def freed_blocks_are_used(answer: Any, draw: Draw, num_own: int) -> None:
    """A victim's own blocks are free for all that ask after, not only for the one that asked; each of them once.
    Both lists are in the order in which it was decided."""
    require_plan(answer, [Running(name, i, 1, num_own) for i, name in enumerate("ABCD")], 0)


@DECODES.check("takes as many as it needs")
def shared_blocks_free_nothing(answer: Any, draw: Draw) -> None:
    """A victim whose blocks are all shared sets none free: go on until the block is there."""
    require_plan(
        answer, [Running("A", 1, 1, 2), Running("B", 2, 0, 1), Running("C", 3, 0, 0), Running("D", 4, 0, 0)], 0
    )


@DECODES.check("holds in any crowd", num=(7, 40))
def any_crowd(answer: Any, draw: Draw, num: int) -> None:
    """Each takes what it needs off the free ones."""
    for _ in range(20):
        require_plan(answer, crowd(draw, num), draw.integer(0, 3))


ADMIT = exercise("4.8", "Room for one more?", "can_admit", points=3, minutes=10, lines=4, difficulty=2, time_limit_s=15)
ADMIT.objective = "admit with headroom and a watermark"
ADMIT.hints = (
    "Three numbers: blocks the waiting request needs now, blocks to keep, blocks free.",
    "A sequence grows beyond its blocks if it may ever *write* more tokens than they have slots. The waiting one may "
    "grow as well.",
    "For `may_grow`: how many slots have `blocks_of(one.num_tokens)` blocks? The most that it can write is one "
    "token less than `max_num_tokens`, since the last token that it samples is never written.",
)


def require(answer: Any, expected: bool, waiting: Held, running: list[Held], free: int, watermark: float) -> None:
    got = answer.can_admit(waiting, list(running), free, 20, 4, watermark)
    if bool(got) != expected:
        reject(
            f"can_admit says {got!r}, expected {expected}",
            f"waiting {waiting}; blocks of 4, {free} of 20 free, watermark {watermark}",
            *[str(one) for one in running],
        )


DONE_GROWING = Held(7, 9)  # 2 blocks of 4; its last token is never written, so it needs no third


@ADMIT.check("counts the blocks of the waiting request")
def counts_its_blocks(answer: Any, draw: Draw) -> None:
    """As many as hold all the tokens it has now, rounded up; exactly that many free ones are enough."""
    # Nothing else runs, so nothing else counts.
    for num_tokens, num_needed in ((4, 1), (5, 2), (9, 3)):
        waiting = Held(num_tokens, num_tokens + 1)
        require(answer, True, waiting, [], num_needed, 0.0)
        require(answer, False, waiting, [], num_needed - 1, 0.0)


@ADMIT.check("keeps nothing for one that cannot grow")
def keeps_nothing_for_those_at_their_end(answer: Any, draw: Draw) -> None:
    """Is something kept for a sequence that cannot outgrow its blocks? Its slots are those of all its blocks, and
    the last token is never written."""
    for num_tokens, num_needed in ((4, 1), (5, 2), (9, 3)):
        waiting = Held(num_tokens, num_tokens + 1)
        require(answer, True, waiting, [DONE_GROWING], num_needed, 0.0)
        require(answer, False, waiting, [DONE_GROWING], num_needed - 1, 0.0)


@ADMIT.check("leaves a block for each that may grow")
def leaves_room_to_grow(answer: Any, draw: Draw) -> None:
    """Count the running sequences and the waiting request for which max_num_tokens - 1 exceeds their slots."""
    running = [Held(7, 40), Held(8, 40), DONE_GROWING]
    waiting = Held(4, 40)
    require(answer, False, waiting, running, 3, 0.0)
    require(answer, True, waiting, running, 4, 0.0)
    require(answer, True, Held(4, 5), running, 3, 0.0)


@ADMIT.check("keeps the watermark")
def keeps_the_watermark(answer: Any, draw: Draw) -> None:
    """A share of all the blocks of the pool, rounded up, stays free besides."""
    for watermark, kept in ((0.1, 2), (0.12, 3), (0.5, 10)):
        require(answer, False, Held(4, 5), [DONE_GROWING], kept, watermark)
        require(answer, True, Held(4, 5), [DONE_GROWING], kept + 1, watermark)


@ADMIT.check("gives all to one that is alone")
def alone_it_may_have_all(answer: Any, draw: Draw) -> None:
    """With nothing running nothing is kept: otherwise a long prompt could never begin."""
    require(answer, True, Held(70, 78), [], 18, 0.5)
    require(answer, False, Held(70, 78), [], 17, 0.0)


class DecodesFirst(Policy):
    """Notes what is free once the decodes have their blocks: then it is the turn of waiting requests."""

    cache: KVAllocator
    num_free = 0

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        return by_priority(sequence)

    def plan(self, step: Step) -> None:
        for sequence in step.running:
            if sequence.is_decoding:
                step.decode(sequence)
        self.num_free = self.cache.num_free_blocks
        for sequence in step.waiting:
            if not step.admit(sequence):
                break


def held(sequence: Sequence) -> Held:
    return Held(len(sequence.token_ids), sequence.max_num_tokens)


def agrees_with_the_scheduler(answer: Any, draw: Draw, num_running: int, watermark: float) -> None:
    """The real scheduler, filled with sequences at any point of their lives, gets one more."""
    num_blocks = draw.integer(4 * num_running + 4, 8 * num_running + 8)
    limits: dict[str, Any] = {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "max_model_len": 512}
    policy = DecodesFirst()
    scheduler = make_scheduler(limits | {"num_blocks": num_blocks, "block_size": 4}, policy)
    policy.cache = scheduler.cache

    def add(name: str, num_prompt: int, num_output: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
        scheduler.add(Request(name, tuple(range(num_prompt)), params))

    for number in range(num_running):
        add(str(number), draw.integer(1, 10), draw.integer(4, 6))
    for _ in range(3):
        plan = scheduler.schedule()
        scheduler.update(plan, {chunk.seq_id: (SampledToken(1),) * chunk.num_samples for chunk in plan.chunks})
    if scheduler.num_waiting:
        return
    running = [held(sequence) for sequence in scheduler.sequences.values()]
    # As many as just fit, give or take one.
    tight = max(
        0, scheduler.cache.num_free_blocks - len(running) - math.ceil(watermark * num_blocks) - draw.integer(0, 2)
    )
    num_prompt = max(1, min(4 * tight - draw.integer(0, 4), 60))
    scheduler.planner.config = type(scheduler.config)(**limits, watermark=watermark)
    add("new", num_prompt, draw.integer(1, 6))
    waiting = held(next(s for s in scheduler.sequences.values() if s.request.request_id == "new"))
    plan = scheduler.schedule()
    num_free = policy.num_free
    got = answer.can_admit(waiting, list(running), num_free, num_blocks, 4, watermark)
    expected = any(scheduler.sequences[chunk.seq_id].request.request_id == "new" for chunk in plan.chunks)
    if bool(got) != expected:
        reject(
            f"can_admit says {got!r}, the engine's scheduler {expected}",
            f"waiting {waiting}; blocks of 4, {num_free} of {num_blocks} free, watermark {watermark}",
            *map(str, running),
        )


@ADMIT.check("decides as the engine's scheduler", num_running=(1, 5), watermark=(0.0, 0.15))
def many_times(answer: Any, draw: Draw, num_running: int, watermark: float) -> None:
    """Write the inequality down with all its terms, and compare."""
    for _ in range(25):
        agrees_with_the_scheduler(answer, draw, num_running, watermark)


@ADMIT.check("holds for any block size and length", block_size=(16, 5))
def holds_for_any_block(answer: Any, draw: Draw, block_size: int) -> None:
    """Every sequence may grow, however long it is: compare its slots with max_num_tokens - 1."""
    # Against a count of slots: long sequences, any watermark, room to the block.
    for _ in range(40):
        crowd = [Held(n := draw.integer(1, 400), n + draw.integer(1, 600)) for _ in range(draw.integer(2, 9))]
        waiting, *running = crowd
        num_blocks, watermark = draw.integer(50, 900), draw.choice((0.0, 0.01, 0.125, 0.25))
        blocks = [len(range(0, one.num_tokens, block_size)) for one in crowd]
        grow = sum(
            any(p >= n * block_size for p in range(one.max_num_tokens - 1))
            for n, one in zip(blocks, crowd, strict=True)
        )
        least = blocks[0] + grow + math.ceil(watermark * num_blocks)
        for num_free, expected in ((least, True), (least - 1, False)):
            got = answer.can_admit(waiting, list(running), num_free, num_blocks, block_size, watermark)
            if bool(got) != expected:
                reject(
                    f"can_admit says {got!r}, expected {expected}",
                    f"waiting {waiting}; blocks of {block_size}, {num_free} of {num_blocks} free, "
                    f"watermark {watermark}",
                    *[str(one) for one in running],
                )
