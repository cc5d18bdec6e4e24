"""Three services for an H100, and a judge of designs: the planner says if they fit, the simulator how they serve."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from twophase.core.errors import ConfigError
from twophase_tools.capacity.config import config_of
from twophase_tools.capacity.memory import MemoryTable, memory_table
from twophase_tools.load.arrivals import AtOnce, Poisson
from twophase_tools.load.lengths import LogNormalLengths, UniformLengths
from twophase_tools.load.report import window_of
from twophase_tools.load.slo import Slo
from twophase_tools.load.workloads import RandomWorkload, SharedPrefix, Workload
from twophase_tools.simulate.cost_model import RooflineCostModel
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.simulator import simulate
from twophase_tools.simulate.traffic import requests_of

MODEL, GPU, BLOCK_SIZE = "llama-3-8b", "h100", 16
DEFAULTS: dict[str, Any] = {
    "quantization": None,
    "kv_cache_dtype": "auto",
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": False,
}
MAX_CHANGED = 2  # options of a design: each costs quality, memory, or a way through the code that has to be tested


@dataclass(frozen=True)
class Service:
    """What is served, and within which limits.

    Attributes:
        slo: Of each request; None: only the end of all of them counts.
        goal: Per cent of the requests within the SLO; without an SLO the seconds until all are done.
        allowed: Weights that the service's quality gate lets through.
    """

    about: str
    workload: Workload
    max_model_len: int
    slo: Slo | None
    goal: int
    allowed: tuple[str | None, ...] = (None, "fp8", "int8", "int4")

    @property
    def target(self) -> str:
        if self.slo is None:
            return f"all done within {self.goal:g} s"
        limits = (("TTFT", self.slo.ttft_s), ("TPOT", self.slo.tpot_s))
        within = " and ".join(f"{name} <= {1e3 * limit:g} ms" for name, limit in limits if limit is not None)
        return f"{self.goal:g} % of the requests with {within}"


SERVICES = {
    "chat": Service(
        "32 messages a second: instructions of 600 tokens that all share, 250 of their own, 200 to write",
        RandomWorkload(
            "chat", 600, Poisson(32.0), LogNormalLengths(250, 0.6, 20, 1500), LogNormalLengths(200, 0.5, 20, 800),
            SharedPrefix(1, 600), seed=1,
        ),
        4096,
        Slo(ttft_s=0.2, tpot_s=0.014),
        95,
    ),
    "batch": Service(
        "1,000 tickets of some 250 tokens at midnight, 300 to write about each; finished is all that counts",
        RandomWorkload(
            "batch", 1000, AtOnce(), LogNormalLengths(250, 0.4, 50, 800), LogNormalLengths(300, 0.3, 100, 600), seed=2
        ),
        4096,
        None,
        21,
    ),
    "retrieval": Service(
        "2 questions a second, each about one of 40 handbooks of 12,000 tokens; 150 of their own, 100 to write",
        RandomWorkload(
            "retrieval", 400, Poisson(2.0), UniformLengths(100, 200), LogNormalLengths(100, 0.4, 20, 300),
            SharedPrefix(40, 12_000), seed=3,
        ),
        16_384,
        Slo(ttft_s=1.0, tpot_s=0.030),
        97,
        allowed=(None, "fp8"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What the simulator made of a design.

    Attributes:
        score: Per cent of the requests within the SLO; without an SLO the seconds until all were done.
        memory: The planner's table.
        num_preemptions: Times a request lost its blocks.
        hit_share: Of all prompt tokens, those found in the prefix cache.
        ttft_s, tpot_s: Of nineteen requests in twenty no more than these seconds to the first token, and per token.
    """

    service: Service
    score: float
    memory: MemoryTable
    num_preemptions: int
    hit_share: float
    ttft_s: float
    tpot_s: float

    def __str__(self) -> str:
        unit = "s until all were done" if self.service.slo is None else "% within the SLO"
        return (
            f"{self.score:5.2f} {unit}; p95 TTFT {1e3 * self.ttft_s:,.1f} ms, TPOT {1e3 * self.tpot_s:.1f} ms; "
            f"{self.memory.num_blocks:,} blocks, hits {self.hit_share:.0%}, {self.num_preemptions} preemptions"
        )

    @property
    def is_met(self) -> bool:
        return self.score >= self.service.goal if self.service.slo is not None else self.score <= self.service.goal


def changed(design: Mapping[str, Any]) -> tuple[str, ...]:
    """The options to which a design gives another value than their default."""
    return tuple(key for key, value in design.items() if value != DEFAULTS[key])


def outcome(name: str, design: Mapping[str, Any]) -> Outcome:
    """Plan and simulate a design for a service.

    Args:
        design: Values for some of the keys of `DEFAULTS`.

    Raises:
        ConfigError: A service or an option that is none, a value that it does not take, weights that the gate does
            not let through, or a design that does not fit into the GPU's memory.
    """
    if name not in SERVICES:
        raise ConfigError(f"the services are {', '.join(SERVICES)}; {name!r} is none of them.")
    options = DEFAULTS | dict(design)
    if odd := [key for key in options if key not in DEFAULTS]:
        raise ConfigError(f"the options to choose are {', '.join(DEFAULTS)}; {odd[0]!r} is none of them.")
    return _outcome(name, tuple(options.items()))


@cache
def _outcome(name: str, options: tuple[tuple[str, Any], ...]) -> Outcome:
    service, chosen = SERVICES[name], dict(options)
    shares = chosen.pop("enable_prefix_caching")
    if not isinstance(shares, (bool, np.bool_)):
        raise ConfigError(f"enable_prefix_caching is True or False, got {shares!r}.")
    plan = {key: value for key, value in chosen.items() if value is not None}
    config = config_of(
        {
            "model": MODEL, "hardware": GPU, "block_size": BLOCK_SIZE, "max_model_len": service.max_model_len, **plan,
            "workload": {"rate": 1, "prompt_tokens": 1, "output_tokens": 1},
        }
    )  # fmt: skip
    if chosen["quantization"] not in service.allowed:
        raise ConfigError(f"the quality gate of {name} refuses weights in {chosen['quantization']}.")
    memory = memory_table(config)
    if memory.num_blocks * BLOCK_SIZE < service.max_model_len:
        raise ConfigError(
            f"the K/V of one request of {service.max_model_len:,} tokens do not fit beside the weights and the "
            f"workspace of {config.max_num_batched_tokens:,} tokens and {config.max_num_seqs:,} sequences in a step."
        )
    limits = {
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_model_len": service.max_model_len,
        "num_blocks": memory.num_blocks,
        "block_size": BLOCK_SIZE,
    }
    scheduler = make_scheduler(limits, enable_prefix_caching=bool(shares))
    cost = RooflineCostModel(config.hardware, config.shape, 1, config.assumptions, BLOCK_SIZE)
    records = simulate(requests_of(service.workload), scheduler, cost).records
    begin_s, end_s = window_of(records)
    met = [bool(record.meets(service.slo)) for record in records]
    score = end_s - begin_s if service.slo is None else 100 * sum(met) / len(met)
    hits = sum(record.num_cached_tokens for record in records) / sum(record.num_prompt_tokens for record in records)
    ttft_s, tpot_s = (
        float(np.percentile([getattr(record, name) or 0.0 for record in records], 95)) for name in ("ttft_s", "tpot_s")
    )
    return Outcome(service, score, memory, sum(record.num_preemptions for record in records), hits, ttft_s, tpot_s)
