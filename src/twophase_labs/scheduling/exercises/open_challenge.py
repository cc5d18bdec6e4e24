"""The challenge: a policy and its limits, graded by simulated goodput."""

from functools import cache
from typing import Any

from twophase.core.errors import ConfigError, PolicyError
from twophase.scheduling.policy import Policy, PriorityPolicy
from twophase_labs.machine.checks import Draw, reject
from twophase_labs.machine.exercise import exercise
from twophase_labs.scheduling import challenge
from twophase_labs.scheduling.hidden_lengths import TooManyStepsError, play
from twophase_labs.scheduling.ranks import require_rank
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.workloads import TimedRequest

BOUND_THE_TIME = (
    "Bound the time of a step, not its tokens: the keys that its decodes read, and the pairs of its chunks, count as "
    "well."
)

CHALLENGE = exercise(
    "4.10", "The challenge", "Challenger my_limits", points=6, minutes=22, lines=30, difficulty=3, time_limit_s=60
)
CHALLENGE.objective = "choose a policy and its limits for the best goodput"
CHALLENGE.hints = (
    "Two SLOs, two causes. Tokens come late where steps are long; first tokens where others went before.",
    "A step should last a little less than the time allowed per token: what the decodes leave of that is for "
    f"prefills. {BOUND_THE_TIME}",
    "class Challenger(Policy):\n"
    "    def __init__(self, cost, slo):\n"
    "        self.cost, self.slo = cost, slo\n"
    "\n"
    "    def rank(self, sequence):\n"
    "        return by_priority(sequence)\n"
    "\n"
    "    def is_late(self, sequence, now_s):\n"
    "        needs_s = ...          # a step with all its uncomputed tokens, at least\n"
    "        return ...             # beyond arrival + slo.ttft_s? Then it loses nothing by waiting longer\n"
    "\n"
    "    def plan(self, step):\n"
    "        decoding = [s for s in step.running if s.is_decoding]\n"
    "        begun = [s for s in step.running if not s.is_decoding]\n"
    "        ...                    # decode all; then the prefill tokens that a step of 0.9 * slo.tpot_s has "
    "time for:\n"
    "        room = ...             # at least 1 if nothing decodes\n"
    "        urgency = lambda s: (self.is_late(s, step.now_s), s.num_uncomputed_tokens)\n"
    "        for s in sorted([*begun, *step.waiting], key=urgency):\n"
    "            if room > 0:\n"
    "                room -= step.prefill(s, room) if s in begun else step.admit(s, room)",
)


def made(answer: Any) -> Policy:
    policy = answer.Challenger(challenge.COST, challenge.SLO)
    if not isinstance(policy, Policy):
        reject(f"Challenger(cost, slo) gives a {type(policy).__name__}; it should be a Policy")
    require_rank(policy)
    return policy


def served(answer: Any, workload: list[TimedRequest]) -> list[RequestRecord]:
    """What became of each request; a policy that breaks a rule is told which."""
    try:
        limits = challenge.limits_of(answer.my_limits)
        return list(play(workload, made(answer), limits, challenge.COST, challenge.SLO.ttft_s).records)
    except (PolicyError, ConfigError, TooManyStepsError) as error:
        reject(str(error))


@CHALLENGE.check(
    "keeps to the limits",
    hint=f"You may set {', '.join(challenge.LIMITS)}, with at most {challenge.LIMITS['max_num_seqs']} batch "
    "slots. The pool is what it is.",
)
def keeps_to_the_limits(answer: Any, draw: Draw) -> None:
    if not isinstance(answer.my_limits, dict):
        reject(f"my_limits is a dict of limits; it is {answer.my_limits!r}")
    try:
        challenge.limits_of(answer.my_limits)
    except ConfigError as error:
        reject(str(error))
    made(answer)


@CHALLENGE.check("serves every request", num_requests=(1, 12, 60))
def serves_everyone(answer: Any, draw: Draw, num_requests: int) -> None:
    """Every step must plan something: if nothing decodes, let at least one token of a prefill in. And each sequence
    once per step."""
    # Also documents that fill the pool, one alone, and many at once.
    workload = challenge.traffic(draw.integer(0, 1000), num_requests, rate_per_s=40.0)
    if num_requests == 1:
        workload = [TimedRequest("alone", 0.0, 1790, 250)]
    records = served(answer, workload)
    for record, asked in zip(records, workload, strict=True):
        if record.num_output_tokens != asked.num_output_tokens:
            reject(f"request {asked.request_id} got {record.num_output_tokens} of {asked.num_output_tokens} tokens")


def on_the_board(answer: Any) -> challenge.Entry:
    runs = [served(answer, challenge.traffic(seed)) for seed in challenge.SEEDS]
    return challenge.entry_of("yours", runs)


@cache
def default_entry() -> challenge.Entry:
    return challenge.entry("the default", PriorityPolicy)


def columns(one: challenge.Entry) -> str:
    return f"first token {one.in_time:.0f} %, each token {one.smooth:.0f} %"


WHOSE_PROMPT = "Choose whose prompt comes next, and let those wait longer that are late anyway."


def advice(one: challenge.Entry) -> str:
    """What the lower of the two columns asks for."""
    return BOUND_THE_TIME if one.smooth <= one.in_time else WHOSE_PROMPT


@CHALLENGE.check("beats the default policy")
def beats_the_default(answer: Any, draw: Draw) -> None:
    """On the same traffic, more requests must meet both SLOs. Which of the two do you miss more often: are steps
    too long, or is the queue?"""
    got, default = on_the_board(answer), default_entry()
    if got.score < default.score + 5:
        reject(
            f"your score is {got.score:.0f} %: {columns(got)}",
            f"the default policy's is {default.score:.0f} % on the same traffics: {columns(default)}",
            "to count, the score must be five points above the default's",
            *([BOUND_THE_TIME] if got.smooth <= got.in_time else []),
        )


@CHALLENGE.check("meets enough SLOs")
def reaches_the_goal(answer: Any, draw: Draw) -> None:
    """Work on the lower of the two columns first. Both are needed: a request must meet both SLOs."""
    got = on_the_board(answer)
    if got.score < challenge.GOAL:
        reject(f"your score is {got.score:.0f} %, and the goal is {challenge.GOAL} %: {columns(got)}", advice(got))


@CHALLENGE.check("meets them on other traffic too")
def holds_on_other_traffic(answer: Any, draw: Draw) -> None:
    """A number that fits only these three traffics says little: derive it from `cost` and `slo`."""
    seed = draw.integer(100, 10_000)
    got = challenge.score(served(answer, challenge.traffic(seed)))
    if got < challenge.GOAL - 10:
        reject(f"your score on a traffic that is not on the board (seed {seed}) is {got:.0f} %")
