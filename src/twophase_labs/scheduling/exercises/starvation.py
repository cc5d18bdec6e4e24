"""4.3 The repair of a scheduler that waits for ever."""

from collections import deque
from itertools import pairwise
from typing import Any

from twophase_labs.machine.checks import Draw, compare, reject
from twophase_labs.machine.exercise import exercise
from twophase_labs.scheduling.teaching import Job, Log, PlanError, famous_jobs, run_steps

CHUNKS = exercise("4.3", "Repair it", "plan_in_chunks", points=3, minutes=10, lines=5, difficulty=2, time_limit_s=10)
CHUNKS.objective = "plan steps in which every job makes progress, whatever the lengths"
CHUNKS.hints = (
    "Nothing says that a prompt must be computed in one step: lab 2 did it in chunks.",
    "Each job gets as much as it has to compute and as the budget has left, whichever is smaller.",
    "batch = []\n"
    "for job in running:\n"
    "    num_tokens = ...             # what it could compute, or what is left of the budget\n"
    "    if num_tokens:\n"
    "        ...                      # into the batch, and off the budget\n"
    "while waiting and ...:           # is there anything left for the head of the queue?\n"
    "    job = waiting.popleft()\n"
    "    running.append(job)          # it stays there; the next step goes on with it\n"
    "    ...\n"
    "return batch",
)

MAX_EMPTY = 3


def watched(answer: Any, jobs: list[Job], budget: int, queue: list[Job] | None = None) -> Log:
    """Run the learner's plan to the end; who plans nothing three times in a row is stopped."""
    what = ", ".join(f"{job.name}: {job.num_prompt_tokens} + {job.num_output_tokens}" for job in jobs)
    empty = 0

    def plan(running: list[Job], waiting: deque[Job], left: int) -> list[tuple[Job, int]]:
        nonlocal empty
        got = answer.plan_in_chunks(running, waiting, left)
        if not isinstance(got, list | tuple):
            reject(f"the plan is {got!r}, expected a list of pairs (job, tokens)")
        empty = 0 if got else empty + 1
        if empty == MAX_EMPTY:
            unfinished = [job.name for job in jobs if not job.is_finished]
            reject(
                f"{MAX_EMPTY} empty steps in a row, and {', '.join(unfinished)} not finished: this would never end",
                f"budget {budget}; prompt + output of each: {what}",
            )
        return list(got)

    limit = 20 + sum(job.num_prompt_tokens + job.num_output_tokens for job in jobs)
    try:
        log = run_steps(plan, queue if queue is not None else jobs, budget, limit)
    except PlanError as error:
        reject(f"this plan cannot be run: {error}", f"budget {budget}; prompt + output of each: {what}")
    unfinished = [job.name for job in jobs if not job.is_finished]
    if unfinished:
        reject(f"after {limit} steps {', '.join(unfinished)} are not finished", f"budget {budget}; {what}")
    return log


def random_jobs(draw: Draw, num: int, longest: int) -> list[Job]:
    return [Job(f"{i}", draw.integer(1, longest + 1), draw.integer(1, 6)) for i in range(num)]


@CHUNKS.check("finishes a prompt of any length", prompt=(10, 50, 51, 100, 7, 1000), budget=(50, 50, 50, 50, 1, 300))
def ends(answer: Any, draw: Draw, prompt: int, budget: int) -> None:
    """A prompt longer than the budget needs several steps: a chunk in each."""
    watched(answer, [Job("A", prompt, 3)], budget)


@CHUNKS.check("serves those behind it")
def serves_those_behind(answer: Any, draw: Draw) -> None:
    """The queue of the section: 100, 20 and 10 tokens, with a budget of 50."""
    watched(answer, famous_jobs(), 50)


@CHUNKS.check("keeps the budget", num=(2, 7), budget=(8, 16))
def keeps_the_budget(answer: Any, draw: Draw, num: int, budget: int) -> None:
    """Every token that is planned comes off the budget, whether of a prompt or of an answer."""
    for number, step in enumerate(watched(answer, random_jobs(draw, num, 3 * budget), budget)):
        num_tokens = sum(n for _, n in step)
        if num_tokens > budget:
            reject(f"step {number} computes {num_tokens} tokens, and the budget is {budget}", f"the step: {step}")


@CHUNKS.check("gives every decode its token", num=(3, 8), budget=(8, 12))
def decodes_every_step(answer: Any, draw: Draw, num: int, budget: int) -> None:
    """Jobs that run come before those that wait; with a budget at least as large as the number of jobs there is
    always a token for each."""
    jobs = random_jobs(draw, num, 3 * budget)
    left = {job.name: job.num_prompt_tokens for job in jobs}
    outputs = {job.name: job.num_output_tokens for job in jobs}
    for number, step in enumerate(watched(answer, jobs, budget)):
        planned = {name for name, _ in step}
        for name in left:
            if left[name] == 0 and outputs[name] and name not in planned:
                reject(f"{name} is decoding and gets no token in step {number}", f"the step: {step}")
        for name, num_tokens in step:
            left[name] = max(0, left[name] - num_tokens)
            outputs[name] -= left[name] == 0


@CHUNKS.check("lets nothing overtake", num=(3, 8), budget=(8, 12))
def nobody_overtakes(answer: Any, draw: Draw, num: int, budget: int) -> None:
    """The head of the queue is begun first. Skipping it serves those behind it, until there is always one behind it."""
    jobs = random_jobs(draw, num, 3 * budget)
    log = watched(answer, jobs, budget)
    first: dict[str, int] = {}
    for number, step in enumerate(log):
        for name, _ in step:
            first.setdefault(name, number)
    order = [first[job.name] for job in jobs]
    for earlier, later in pairwise(jobs):
        if first[later.name] < first[earlier.name]:
            reject(
                f"{later.name} was begun in step {first[later.name]}, before {earlier.name}, which stood ahead of it, "
                f"in step {first[earlier.name]}",
                f"prompts {[job.num_prompt_tokens for job in jobs]}, begun in steps {order}, budget {budget}",
            )


@CHUNKS.check("leaves no room unused", num=(3, 8, 1, 40), budget=(8, 12, 300, 300))
def wastes_nothing(answer: Any, draw: Draw, num: int, budget: int) -> None:
    """As long as there is budget and a job with tokens to compute, the step is not full."""
    # A step below the budget computes all that there is to compute.
    jobs = random_jobs(draw, num, 3 * budget) if num > 1 else [Job("A", budget - 100, 3)]
    log = watched(answer, jobs, budget)
    left = {job.name: [job.num_prompt_tokens, job.num_output_tokens] for job in jobs}
    for number, step in enumerate(log):
        done = dict(step)
        room = budget - sum(done.values())
        for name, (prompt, output) in left.items():
            could = (max(1, prompt) if output else 0) - done.get(name, 0)
            if room > 0 and could > 0:
                reject(
                    f"step {number} has room for {room} more tokens, and {name} could compute {could} more",
                    f"the step: {step}",
                )
        for name, num_tokens in step:
            prompt, output = left[name]
            left[name] = [max(0, prompt - num_tokens), output - (num_tokens >= prompt)]


@CHUNKS.check("plans no job for 0 tokens", num=(3, 70), budget=(2, 64))
def plans_nothing_for_nothing(answer: Any, draw: Draw, num: int, budget: int) -> None:
    """When the budget is used up, the running jobs that are left get nothing, and are not in the list."""
    # More decodes than the budget has tokens: run_steps never comes to that, and the function may be asked.
    jobs = [Job(chr(65 + i), 4, 3, num_computed=4, num_generated=1) for i in range(num)]
    waiting = deque([Job("Z", 5, 2)])
    batch = answer.plan_in_chunks(list(jobs), waiting, budget)
    got = [(job.name, num_tokens) for job, num_tokens in batch]
    expected = [(job.name, 1) for job in jobs[:budget]]
    if got != expected:
        reject(f"{num} jobs are decoding, the budget is {budget}, and the plan is {got}", f"expected {expected}")
    compare(len(waiting), 1, what="the number of jobs that wait after a step without room for them")


@CHUNKS.check("gives what the card says")
def knows_the_example(answer: Any, draw: Draw) -> None:
    """Run the three steps of the example by hand."""
    log = watched(answer, [Job("A", 100, 2), Job("B", 20, 1)], 50)
    expected = [[("A", 50)], [("A", 50)], [("A", 1), ("B", 20)]]
    compare([[tuple(pair) for pair in step] for step in log], expected, what="the card's example", axes=("step",))
