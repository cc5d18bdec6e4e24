"""SmolLM2 in the real engine, with whatever limits and policy a cell asks for. The model is loaded once."""

import time
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from twophase.core.plan import StepTrace
from twophase.core.request import RequestOutput, SamplingParams
from twophase.engine.engine import Engine
from twophase.engine.runner import ModelRunner
from twophase.llm import LLM
from twophase.scheduling.policy import Policy
from twophase_tools.bench.serve import Clock, ServingRun, serve
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.slo import Slo
from twophase_tools.load.workloads import TimedRequest, Workload
from twophase_tools.simulate.limits import make_scheduler

LIMITS: dict[str, Any] = {
    "max_num_seqs": 32,
    "max_num_batched_tokens": 256,
    "max_model_len": 1024,
    "num_blocks": 600,
    "block_size": 16,
}
PROMPTS = (
    "The capital of France is",
    "One, two, three, four, five, six, seven,",
    "Once upon a time, in a small village by the sea, there lived an old",
    "Water is made of",
    "The best way to learn a language is",
    "My favourite colour is blue, because it reminds me of",
)


@cache
def smollm2_llm() -> LLM:
    return LLM(
        num_kv_blocks=LIMITS["num_blocks"],
        block_size=LIMITS["block_size"],
        max_model_len=LIMITS["max_model_len"],
        max_num_seqs=LIMITS["max_num_seqs"],
        max_num_batched_tokens=LIMITS["max_num_batched_tokens"],
        enable_prefix_caching=False,
        max_trace_steps=None,
    )


def clock_of_the_engine() -> Clock:
    """CPU time where one thread does all the work, so that other programs do not count; wall time on a GPU.

    Waiting for the next request takes no time on either; what is measured are steps.
    """
    slept_s = 0.0
    is_alone = smollm2_llm().kv_cache.device.type == "cpu" and torch.get_num_threads() == 1
    tick = time.process_time if is_alone else time.perf_counter

    def sleep(duration_s: float) -> None:
        nonlocal slept_s
        slept_s += duration_s

    return Clock(lambda: tick() + slept_s, sleep)


def engine_with(limits: dict[str, Any], policy: Policy | None, clock: Clock) -> Engine:
    """A fresh engine on the loaded model's weights and pages; it may use fewer of the pages, not more."""
    llm = smollm2_llm()
    scheduler = make_scheduler(LIMITS | limits, policy)
    config = scheduler.config
    return Engine(
        ModelRunner(llm.model, llm.kv_cache, config.max_model_len),
        scheduler,
        vocab_size=llm.model_config.vocab_size,
        max_trace_steps=None,
        clock=clock.now_s,
    )


@dataclass(frozen=True)
class Generated:
    """Greedy continuations and how they came about."""

    tokens: list[tuple[int, ...]]
    texts: list[str]
    records: list[RequestRecord]
    steps: tuple[StepTrace, ...]


def generate_under_pressure(num_new: int = 24, **limits: Any) -> Generated:
    """The six prompts, continued together by `num_new` tokens each."""
    llm, clock = smollm2_llm(), clock_of_the_engine()
    assert llm.tokenizer is not None
    engine = engine_with(limits, None, clock)
    params = SamplingParams(temperature=0.0, max_tokens=num_new, ignore_eos=True)
    for name, prompt in zip("ABCDEF", PROMPTS, strict=True):
        engine.add_request(name, {"prompt_token_ids": llm.tokenizer.encode(prompt)}, params, stream=False)
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step() if output.finished}
    ended = [outputs[name] for name in "ABCDEF"]
    tokens = [output.outputs[0].token_ids for output in ended]
    return Generated(
        tokens,
        [llm.tokenizer.decode(list(ids)) for ids in tokens],
        [RequestRecord.from_output(output) for output in ended],
        engine.trace,
    )


def serve_here(
    workload: Workload | list[TimedRequest],
    policy: Policy | None = None,
    limits: dict[str, Any] | None = None,
    slo: Slo | None = None,
) -> ServingRun:
    """A workload in open loop on the real engine, from time 0 on."""
    clock = clock_of_the_engine()
    engine = engine_with(limits or {}, policy, clock)
    vocab_size = smollm2_llm().model_config.vocab_size
    serve(engine, [TimedRequest("warm-up", 0.0, 40, 3)], vocab_size, clock=clock)
    run = serve(engine, workload, vocab_size, clock=clock, slo=slo)
    start_s = run.window[0]
    return replace(run, records=tuple(_shifted(record, start_s) for record in run.records))


def _shifted(record: RequestRecord, start_s: float) -> RequestRecord:
    """On the workload's clock."""

    def shift(time_s: float | int | None) -> float | None:
        return None if time_s is None else max(0.0, time_s - start_s)

    return replace(
        record,
        arrival_s=shift(record.arrival_s) or 0.0,
        first_scheduled_s=shift(record.first_scheduled_s),
        token_times_s=tuple(time_s - start_s for time_s in record.token_times_s),
        finished_s=shift(record.finished_s),
    )
