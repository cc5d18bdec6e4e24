"""`twophase bench serve`: open-loop load. Requests come by the clock, however far behind the engine is.

A closed loop (`concurrency`), which sends the next request when one is answered, never asks more of an engine than it
can give, and so never sees a queue. In the open loop a request's latency counts from the moment it was due, not from
the moment it was handed over between two steps, or the waiting that matters most would be left out (the 'coordinated
omission' of load generators).
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from twophase.config import EngineConfig
from twophase.core.errors import ConfigError, InvalidRequestError
from twophase.core.plan import StepTrace
from twophase.core.request import RequestOutput, SamplingParams
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.report import ServingReport
from twophase_tools.load.slo import Slo
from twophase_tools.load.workloads import TimedRequest, Workload, num_pool_blocks, token_ids_of

BLOCK_SIZE = 16
MAX_SLEEP_S = 0.5  # Ctrl-C and the duration limit should be felt soon
MIN_SLEEP_S = 1e-6  # less might not move the clock at all
PROGRESS_S = 5.0

Coming = deque[tuple[TimedRequest, tuple[int, ...]]]


@runtime_checkable
class ServedEngine(Protocol):
    """What serving needs of `twophase.engine.engine.Engine`; see there."""

    @property
    def trace(self) -> tuple[StepTrace, ...]: ...

    @property
    def idle_s(self) -> float: ...

    def add_request(
        self,
        request_id: str,
        prompt: dict[str, tuple[int, ...]],
        params: SamplingParams,
        *,
        arrival_s: float | int,
        ttft_slo_s: float | int | None,
        stream: bool,
    ) -> None: ...

    def step(self) -> list[RequestOutput]: ...

    def abort(self, request_id: str) -> RequestOutput | None: ...

    def has_unfinished_requests(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ServingRun:
    """What happened, on the engine's clock.

    Attributes:
        records: Of every request that came, in order of arrival; the refused ones have finish reason 'error'.
        steps: The engine's trace from the start on.
        window: [start, end] of the run.
        refusals: (request id, why) of those that were not served, or not to their ends.
        was_cut: Whether the duration limit ended it.
    """

    records: tuple[RequestRecord, ...]
    steps: tuple[StepTrace, ...]
    window: tuple[float, float]
    refusals: tuple[tuple[str, str], ...]
    was_cut: bool


def serve(
    engine: ServedEngine,
    workload: Iterable[TimedRequest],
    vocab_size: int,
    *,
    seed: int = 0,
    duration_limit_s: float | int | None = None,
    concurrency: int | None = None,
    slo: Slo | None = None,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] = lambda line: None,
) -> ServingRun:
    """Play a workload against an engine, greedily and past end-of-text, until the last request has ended.

    Args:
        engine: Idle; its clock is `now_s`, and its trace keeps every step.
        workload: In order of arrival.
        vocab_size: Random prompts have ids below it.
        seed: Of the random prompts.
        duration_limit_s: After this time what is unfinished is aborted, and what has not come yet is left out.
        concurrency: So many requests are there at once, and arrival times do not count: a closed loop. None: they do.
        slo: Its TTFT is the wish of every request that the policy is told of.
        sleep: Lets time pass; it may end early, when something has happened.
        say: Hears about progress, every few seconds.

    Raises:
        ConfigError: The duration limit is not above 0, no client may send, or as `prompts_of`.
    """
    if duration_limit_s is not None and not duration_limit_s > 0:
        raise ConfigError(f"the duration limit must be above 0 s, got {duration_limit_s!r}; leave it out for none.")
    if concurrency is not None and concurrency < 1:
        raise ConfigError(f"a closed loop has at least 1 client, got {concurrency}.")
    coming = prompts_of(workload, vocab_size, seed)
    log, was_cut = RunLog(len(coming), now_s, say), False
    ttft_slo_s = None if slo is None else slo.ttft_s

    def hand_over(request: TimedRequest, token_ids: tuple[int, ...], due_s: float) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=request.num_output_tokens, ignore_eos=True)
        prompt, name = {"prompt_token_ids": token_ids}, request.request_id
        log.begin(name)
        try:
            engine.add_request(name, prompt, params, arrival_s=due_s, ttft_slo_s=ttft_slo_s, stream=False)
        except InvalidRequestError as error:
            refused = RequestRecord(name, due_s, None, (), now_s(), len(token_ids), finish_reason="error")
            log.end(refused, str(error))

    while coming or engine.has_unfinished_requests():
        elapsed_s = log.elapsed_s
        if duration_limit_s is not None and elapsed_s >= duration_limit_s:
            was_cut = True
            break
        while coming and (
            coming[0][0].arrival_s <= elapsed_s if concurrency is None else len(log.open_ids) < concurrency
        ):
            request, token_ids = coming.popleft()
            hand_over(request, token_ids, log.start_s + (request.arrival_s if concurrency is None else log.elapsed_s))
        may_sleep_s: float | int = MAX_SLEEP_S
        if engine.has_unfinished_requests():
            ended = [output for output in engine.step() if output.finished]
            for output in ended:
                log.end(RequestRecord.from_output(output), output.outputs[0].error)
            log.tell()
            may_sleep_s = 0 if ended else min(may_sleep_s, engine.idle_s)
        next_s = [duration_limit_s, coming[0][0].arrival_s if coming and concurrency is None else None]
        sleep_s = min([may_sleep_s, *(time_s - log.elapsed_s for time_s in next_s if time_s is not None)])
        if sleep_s > 0:
            sleep(float(max(sleep_s, MIN_SLEEP_S)))
    for request_id in log.open_ids:
        aborted = engine.abort(request_id)
        if aborted is not None:
            log.end(RequestRecord.from_output(aborted))
    return log.result(tuple(step for step in engine.trace if step.start_s >= log.start_s), was_cut)


class RunLog:
    """What became of a run's requests so far; only the one who plays the workload changes it."""

    def __init__(self, num_requests: int, now_s: Callable[[], float], say: Callable[[str], None]) -> None:
        self._num_requests, self._now_s, self._say = num_requests, now_s, say
        self.start_s = now_s()
        self._said_s = 0.0
        self._records: dict[str, RequestRecord | None] = {}  # by id, in order of arrival; None: not ended yet
        self._refusals: list[tuple[str, str]] = []

    @property
    def elapsed_s(self) -> float:
        return self._now_s() - self.start_s

    @property
    def open_ids(self) -> list[str]:
        """Requests that came and have not ended."""
        return [request_id for request_id, record in self._records.items() if record is None]

    def begin(self, request_id: str) -> None:
        self._records[request_id] = None

    def end(self, record: RequestRecord, refusal: str | None = None) -> None:
        """`refusal`: why it was not served, or not to its end."""
        self._records[record.request_id] = record
        if refusal is not None:
            self._refusals.append((record.request_id, refusal))

    def tell(self) -> None:
        """Say how far it is, if nothing was said for a while."""
        if self.elapsed_s - self._said_s >= PROGRESS_S:
            self._said_s = self.elapsed_s
            came = f"{len(self._records):,} of {self._num_requests:,} requests came"
            self._say(f"{self._said_s:.0f} s: {came}, {len(self._records) - len(self.open_ids):,} ended")

    def result(self, steps: tuple[StepTrace, ...], was_cut: bool) -> ServingRun:
        return ServingRun(
            records=tuple(record for record in self._records.values() if record is not None),
            steps=steps,
            window=(self.start_s, self._now_s()),
            refusals=tuple(self._refusals),
            was_cut=was_cut,
        )


def prompts_of(workload: Iterable[TimedRequest], vocab_size: int, seed: int) -> Coming:
    """The requests with their prompts, which are made before the clock starts: drawing ids is not the engine's work.

    Raises:
        ConfigError: Two requests have one id, or a prompt's ids do not fit the vocabulary.
    """
    coming = deque((request, token_ids_of(request, vocab_size, seed)) for request in workload)
    names = [request.request_id for request, _ in coming]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"two requests of the workload have the id {twice!r}; each needs its own.")
    return coming


@dataclass(frozen=True, slots=True)
class ServeReport:
    """A run with all that it depends on.

    Attributes:
        engine: What the options came to.
        run: What happened.
        note: What the reader of the latencies must know.
    """

    workload: str
    seed: int
    engine: dict[str, str | int]
    summary: ServingReport
    run: ServingRun
    note: str = "Latencies count from when a request was due."

    def to_text(self) -> str:
        run = self.run
        notes = ["", "The duration limit ended the run: what was unfinished is aborted."] if run.was_cut else []
        if run.refusals:
            request_id, why = run.refusals[0]
            notes += ["", f"{len(run.refusals):,} requests failed; the first, {request_id!r}: {why}"]
        head = [f"workload     {self.workload}, seed {self.seed}", self.summary.to_text(), *notes, ""]
        used = ", ".join(f"{name} {value}" for name, value in self.engine.items())
        return "\n".join([*head, f"{self.note} Percentiles interpolate linearly.", used])

    def to_dict(self) -> dict[str, Any]:
        """All but the steps and records one by one."""
        about = {"workload": self.workload, "seed": self.seed, "engine": self.engine, "note": self.note}
        ended = {"refusals": self.run.refusals, "was_cut": self.run.was_cut}
        return about | ended | {"summary": self.summary.to_dict()}


def bench_serve(
    model: str, config: EngineConfig, workload: Workload, *, slo: Slo | None = None, seed: int = 0, **how: Any
) -> ServeReport:
    """Load the model, warm it up, serve the workload, summarise. `how` is as of `serve`.

    Raises:
        ConfigError: An option that cannot work.
        ModelFolderError, BackendUnavailableError: As `LLM`.
    """
    from twophase.llm import LLM

    num_blocks = config.num_kv_blocks or num_pool_blocks(workload, BLOCK_SIZE)
    sizes: dict[str, Any] = {"block_size": BLOCK_SIZE, "num_kv_blocks": num_blocks, "max_trace_steps": None}
    llm = LLM(model, config, skip_tokenizer_init=True, **sizes)
    # No request should pay for what happens only once. Less than a block, so that nothing stays in the prefix cache.
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    llm.generate({"prompt_token_ids": [0]}, params, use_tqdm=False)
    run = serve(llm.engine, workload, llm.model_config.vocab_size, seed=seed, slo=slo, **how)
    engine: dict[str, str | int] = {
        "model": str(llm.model_dir),
        "device": str(llm.kv_cache.device),
        "dtype": str(llm.kv_cache.spec.dtype).removeprefix("torch."),
        "attention": llm.model.backend.name,
        "block size": BLOCK_SIZE,
        "KV blocks": llm.scheduler.cache.num_blocks,
        "policy": repr(llm.scheduler.policy),
        "max seqs": llm.scheduler.config.max_num_seqs,
        "max batched tokens": llm.scheduler.config.max_num_batched_tokens,
    }
    summary = ServingReport.of(run.records, run.steps, slo=slo, window=run.window)
    return ServeReport(workload.name, seed, engine, summary, run)
