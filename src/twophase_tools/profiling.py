"""`twophase profile`: torch's profiler around steps of the engine, with the engine's parts as ranges.

The engine knows nothing of this: its parts are wrapped from outside, and only while the profiler looks. The ranges lie
in each other like this:

    step
        schedule                   the plan of the step
        draft                      tokens guessed ahead
        run
            model
                prepare            the flat batch, and attention's plan of it
                forward
                    attention      of each layer
                        attend     reads the K/V
                    mlp            of each layer
                logits
            sample
        trace                      notes for the trace of steps
        update                     the scheduler learns the new tokens
        report                     text and outputs

Where a CUDA graph is replayed, `model` has no ranges in it: no Python runs there.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile, record_function

import twophase.engine.engine as engine_module
import twophase.engine.model_run as model_run_module
import twophase.engine.runner as runner_module
from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase.core.plan import StepTrace
from twophase.core.request import SamplingParams
from twophase.llm import LLM

WARM_UP_STEPS = 2
ROWS = 30  # of the table
ENDINGS = (".json", ".json.gz")
KINDS = ("prefill", "decode", "mixed")


@contextmanager
def ranged(llm: LLM) -> Iterator[None]:
    """Inside, each part of the engine records itself under its name; outside, nothing has changed."""
    engine = llm.engine
    parts: tuple[tuple[Any, str, str], ...] = (
        (engine, "step", "step"),
        (engine, "_schedule", "schedule"),
        (engine, "_draft", "draft"),
        (engine, "_run", "run"),
        (llm.runner, "run", "model"),
        (runner_module, "pack", "prepare"),
        (llm.model.backend, "plan", "prepare"),
        (llm.model, "forward", "forward"),
        (llm.model, "_attention", "attention"),
        (llm.model.backend, "attend", "attend"),
        (llm.model, "_mlp", "mlp"),
        (llm.model, "logits", "logits"),
        (model_run_module, "sample", "sample"),
        (engine_module, "record_step", "trace"),
        (engine._stat_logger, "note_step", "trace"),
        (engine, "_update", "update"),
        (engine, "_report", "report"),
    )
    with ExitStack() as undo:
        for owner, attribute, name in parts:
            recorded = record_function(name)(getattr(owner, attribute))
            undo.enter_context(mock.patch.object(owner, attribute, recorded))
        yield


@dataclass(frozen=True, slots=True)
class StepShape:
    """What is in a step.

    Attributes:
        kind: 'prefill', prompts alone; 'decode', one token each; 'mixed', decodes with prompts beside them.
        batch: Requests; in a mixed step half of them, rounded up, decode.
        prompt_lens: Tokens of their prompts, dealt out in turns.

    Raises:
        ConfigError: A step that cannot be.
    """

    kind: str = "decode"
    batch: int = 8
    prompt_lens: tuple[int, ...] = (128,)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"a step is {', '.join(KINDS)}, got {self.kind!r}.")
        if self.kind == "mixed" and self.batch < 2:
            raise ConfigError(f"a mixed step needs at least 2 requests, got {self.batch}; raise --batch.")

    @property
    def num_prompts(self) -> int:
        """Requests whose prompts are computed in the step."""
        return {"prefill": self.batch, "decode": 0, "mixed": self.batch // 2}[self.kind]


def profile_steps(model: str, config: EngineConfig, shape: StepShape, num_steps: int, file: Path) -> Any:
    """Load the model, warm it up, profile steps, and write their trace to `file`.

    Returns:
        torch's averages by name, of ranges and operators: `torch.autograd.profiler_util.EventList`.

    Raises:
        ConfigError: An option that cannot work.
        ModelFolderError, BackendUnavailableError, InvalidRequestError: As `LLM`.
    """
    if not file.name.endswith(ENDINGS):
        raise ConfigError(f"a trace's file must end in {' or '.join(ENDINGS)}, got {file.name!r}.")
    with LLM(model, replace(config, max_num_seqs=shape.batch)) as llm:
        return record(llm, shape, num_steps, file)


def record(llm: LLM, shape: StepShape, num_steps: int, file: Path) -> Any:
    """As `profile_steps`, on an engine that is idle before and after."""
    is_cuda = llm.kv_cache.device.type == "cuda"
    with steps_of(llm, shape) as step:
        for _ in range(WARM_UP_STEPS):
            step()
        with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * is_cuda) as profiler:
            with record_function("first range"):  # the profiler's own start-up is charged to it
                pass
            for _ in range(num_steps):
                step()
    profiler.export_chrome_trace(str(file))
    return profiler.key_averages()


@contextmanager
def steps_of(llm: LLM, shape: StepShape) -> Iterator[Callable[[], None]]:
    """A function that makes one step of the shape; the engine is idle again at the end.

    The decodes go on from step to step; prompts are new ones each time, none of which the prefix cache can know.

    Raises:
        InvalidRequestError: The model's context or the pool is too small for a prompt.
        ConfigError: A limit of the engine gave the step another shape.
    """
    engine, vocab_size, max_model_len = llm.engine, llm.model_config.vocab_size, llm.scheduler.config.max_model_len
    draw, numbers = random.Random(0), itertools.count()

    def add(requests: ExitStack, num_requests: int) -> set[str]:
        """Requests that are aborted at the end of `requests`."""
        added = set()
        for number in itertools.islice(numbers, num_requests):
            num_tokens = shape.prompt_lens[number % len(shape.prompt_lens)]
            prompt = {"prompt_token_ids": draw.choices(range(vocab_size), k=num_tokens)}
            # As many tokens as the context has room for: a decode should last.
            params = SamplingParams(temperature=0.0, max_tokens=max(1, max_model_len - num_tokens), ignore_eos=True)
            engine.add_request(f"profiled-{number}", prompt, params)
            requests.callback(engine.abort, f"profiled-{number}")
            added.add(f"profiled-{number}")
        return added

    def step() -> None:
        with ExitStack() as beside:
            asked = add(beside, shape.num_prompts)
            with ranged(llm):
                engine.step()
                if llm.kv_cache.device.type == "cuda":
                    torch.cuda.synchronize()  # a step's kernels should lie beside it
            _check_shape(engine.trace[-1], shape, decoding, asked)

    with ExitStack() as requests:
        decoding = add(requests, shape.batch - shape.num_prompts)
        started: set[str] = set()
        while not started >= decoding:
            started |= {output.request_id for output in engine.step() if output.outputs[0].token_ids}
        yield step


def _check_shape(made: StepTrace, shape: StepShape, decoding: set[str], asked: set[str]) -> None:
    decoded = {request_id for request_id, *_ in made.chunks[: made.num_decodes + made.num_verifying]}
    prompts = {request_id for request_id, *_ in made.chunks} - decoded
    if decoded != decoding or bool(prompts) != bool(asked):
        raise ConfigError(
            f"the step decoded {len(decoded)} sequences and computed {len(prompts)} prompts, but a {shape.kind} step "
            f"of {shape.batch} was asked for; raise --max-num-batched-tokens or --num-kv-blocks, or lower --batch or "
            f"--steps."
        )


def to_text(averages: Any) -> str:
    """torch's table, the longest first: of a range, 'Self CPU' is Python's time."""
    return str(averages.table(sort_by="cpu_time_total", row_limit=ROWS, max_name_column_width=40))


def to_dict(averages: Any) -> dict[str, dict[str, float | int]]:
    """Calls and microseconds of each range and operator, all steps together."""
    return {
        each.key: {"calls": each.count, "cpu_us": each.cpu_time_total, "self_cpu_us": each.self_cpu_time_total}
        for each in averages
    }
