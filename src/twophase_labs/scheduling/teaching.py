"""The scheduler of section 3: a queue, a token budget, and a function that plans a step. No blocks, no clock."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(eq=False)
class Job:
    """A request as the teaching scheduler sees it.

    Attributes:
        num_computed: Prompt tokens computed so far.
        num_generated: Output tokens so far; the first comes with the prompt's last token.
    """

    name: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed: int = 0
    num_generated: int = 0

    @property
    def num_to_compute(self) -> int:
        """Tokens it could compute in the next step: what is left of its prompt, then one."""
        return max(1, self.num_prompt_tokens - self.num_computed)

    @property
    def is_decoding(self) -> bool:
        return self.num_computed == self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        return self.num_generated == self.num_output_tokens


def famous_jobs() -> list[Job]:
    """The queue of the section: a prompt of 100 tokens at the head, two short ones behind it."""
    return [Job("A", 100, 3), Job("B", 20, 3), Job("C", 10, 3)]


Plan = Callable[[list[Job], deque[Job], int], list[tuple[Job, int]]]
Log = list[list[tuple[str, int]]]


class PlanError(Exception):
    """A plan that no engine could run."""


def run_steps(plan: Plan, jobs: Iterable[Job], budget: int, max_steps: int = 10_000) -> Log:
    """Plan and 'run' steps until every job is finished, or `max_steps` times. Returns (name, tokens) for each step.

    Raises:
        PlanError: A job planned twice, one that is not running, or more tokens than it has left.
    """
    waiting: deque[Job] = deque(jobs)
    running: list[Job] = []
    log: Log = []
    while (waiting or running) and len(log) < max_steps:
        batch = plan(running, waiting, budget)
        seen: set[int] = set()
        for job, num_tokens in batch:
            _check(job, num_tokens, running, seen)
            if not job.is_decoding:
                job.num_computed += num_tokens
            if job.is_decoding:
                job.num_generated += 1
        log.append([(job.name, num_tokens) for job, num_tokens in batch])
        running[:] = [job for job in running if not job.is_finished]
    return log


def _check(job: Job, num_tokens: int, running: list[Job], seen: set[int]) -> None:
    if id(job) in seen:
        raise PlanError(f"{job.name} is planned twice in one step.")
    if not any(job is other for other in running):
        raise PlanError(f"{job.name} is planned, and it is not in `running`.")
    if not 1 <= num_tokens <= job.num_to_compute:
        raise PlanError(f"{job.name} is to compute {num_tokens} tokens, and it has {job.num_to_compute} to compute.")
    seen.add(id(job))
