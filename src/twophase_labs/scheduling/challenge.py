"""The challenge's rules: an imagined machine, its traffic, its SLO, and the score."""

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import mean
from typing import Any

from twophase.core.errors import ConfigError
from twophase.scheduling.policy import Policy
from twophase_labs.scheduling.hidden_lengths import MAX_OUTPUT_TOKENS, play
from twophase_tools.load.arrivals import Bursty
from twophase_tools.load.lengths import LogNormalLengths, UniformLengths
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.report import window_of
from twophase_tools.load.slo import Slo
from twophase_tools.load.workloads import TimedRequest
from twophase_tools.simulate.cost_model import LinearCostModel

COST = LinearCostModel(per_step_s=0.02, per_token_s=0.15e-3, per_context_s=0.2e-6, per_pair_s=20e-9)
SLO = Slo(ttft_s=1.5, tpot_s=0.045)
POOL: dict[str, Any] = {"num_blocks": 640, "block_size": 16, "max_model_len": 2048}
LIMITS: dict[str, Any] = {"max_num_seqs": 64, "max_num_batched_tokens": 512, "watermark": 0.0, "reserve_growth": True}
NUM_REQUESTS, RATE_PER_S = 400, 9.0
SHARE_OF_DOCUMENTS = 0.2
SEEDS = (0, 1, 2)
GOAL = 75  # per cent

CHAT = (LogNormalLengths(90, 0.7, 8, 400), LogNormalLengths(60, 0.7, 4, MAX_OUTPUT_TOKENS))
DOCUMENTS = (UniformLengths(600, 1600), LogNormalLengths(30, 0.6, 4, 120))


def traffic(seed: int = 0, num_requests: int = NUM_REQUESTS, rate_per_s: float = RATE_PER_S) -> list[TimedRequest]:
    """Bursts of short questions, and every fifth request a long document."""
    rng = random.Random(f"challenge {seed}")
    times_s = Bursty(rate_per_s, 2.0).times_s(rng)
    requests = []
    for number in range(num_requests):
        prompts, outputs = DOCUMENTS if rng.random() < SHARE_OF_DOCUMENTS else CHAT
        requests.append(TimedRequest(str(number), next(times_s), prompts.draw(rng), outputs.draw(rng)))
    return requests


def limits_of(limits: Mapping[str, Any]) -> dict[str, Any]:
    """All of them; raises ConfigError for one that is not yours to set."""
    odd = [name for name in limits if name not in LIMITS]
    if odd:
        raise ConfigError(f"the limits that you may set are {', '.join(LIMITS)}; {odd[0]} is none of them.")
    if limits.get("max_num_seqs", 1) > LIMITS["max_num_seqs"]:
        raise ConfigError(f"the machine has {LIMITS['max_num_seqs']} batch slots, got {limits['max_num_seqs']}.")
    return POOL | LIMITS | dict(limits)


def serve(policy: Policy, limits: Mapping[str, Any] | None = None, seed: int = 0) -> list[RequestRecord]:
    """A fresh policy on the traffic of a seed."""
    return list(play(traffic(seed), policy, limits_of(limits or {}), COST, SLO.ttft_s).records)


def score(records: Sequence[RequestRecord], slo: Slo = SLO) -> float:
    """Requests that met both SLOs, in per cent of all."""
    return 100 * sum(bool(record.meets(slo)) for record in records) / len(records)


@dataclass(frozen=True)
class Entry:
    """A line of the board: means over the seeds."""

    name: str
    score: float
    goodput_per_s: float
    in_time: float
    smooth: float


def entry(name: str, make_policy: Any, limits: Mapping[str, Any] | None = None, seeds: Sequence[int] = SEEDS) -> Entry:
    """`make_policy()` is asked for a fresh policy for every run."""
    return entry_of(name, [serve(make_policy(), limits, seed) for seed in seeds])


def entry_of(name: str, runs: Sequence[Sequence[RequestRecord]]) -> Entry:
    """What these runs, one per seed, amount to."""
    spans_s = [end - start for start, end in map(window_of, runs)]
    return Entry(
        name,
        mean(map(score, runs)),
        mean(score(run) / 100 * len(run) / span_s for run, span_s in zip(runs, spans_s, strict=True)),
        mean(score(run, Slo(ttft_s=SLO.ttft_s)) for run in runs),
        mean(score(run, Slo(tpot_s=SLO.tpot_s)) for run in runs),
    )


def label(policy_class: type) -> str:
    """Who wrote it: a learner's class is of the notebook."""
    return "yours" if policy_class.__module__ == "__main__" else "the reference"


def rows(
    own: tuple[Any, Mapping[str, Any]], given: tuple[Any, Mapping[str, Any]], seeds: Sequence[int] = SEEDS
) -> list[Entry]:
    """The board's rows for what the lab goes on with and, if that is the reference, for the learner's own as it is."""
    policy_class, limits = given
    found = [entry(label(policy_class), lambda: policy_class(COST, SLO), limits, seeds)]
    mine, my_limits = own
    if mine is not policy_class:
        with suppress(Exception):  # unfinished: the check says what is wrong with it
            found.append(entry("yours, so far", lambda: mine(COST, SLO), my_limits, seeds))
    return found


def board(entries: Sequence[Entry]) -> str:
    """Best first."""
    lines = [f"{'':4}{'policy':26}{'score':>6}{'goodput':>10}{'first token':>13}{'each token':>12}"]
    for place, one in enumerate(sorted(entries, key=lambda one: -one.score), start=1):
        parts = f"{one.goodput_per_s:8.1f}/s{one.in_time:12.0f}%{one.smooth:11.0f}%"
        lines.append(f"{place:2}  {one.name:26}{one.score:5.0f}%{parts}")
    return "\n".join(lines)
