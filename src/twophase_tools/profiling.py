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

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

import twophase.engine.engine as engine_module
import twophase.engine.model_run as model_run_module
import twophase.engine.runner as runner_module
from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
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
            undo.enter_context(_recording(owner, attribute, name))
        yield


@contextmanager
def _recording(owner: Any, attribute: str, name: str) -> Iterator[None]:
    """`owner.attribute`, a function, is a range while this lasts."""
    whole = getattr(owner, attribute)
    is_own = attribute in vars(owner)  # of a module; a method is its class's

    @wraps(whole)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return whole(*args, **kwargs)

    setattr(owner, attribute, recorded)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, attribute, whole)
        else:
            delattr(owner, attribute)


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
    steps = _Steps(llm, shape)
    is_cuda = llm.kv_cache.device.type == "cuda"
    try:
        for _ in range(WARM_UP_STEPS):
            steps.arrange()
            llm.engine.step()
            steps.done()
        steps.arrange()  # the decodes' prompts may take some steps, and are not asked for
        with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * is_cuda) as profiler:
            with record_function("first range"):  # the profiler's own start-up is charged to it
                pass
            for number in range(num_steps):
                if number:
                    steps.arrange()
                with ranged(llm):
                    llm.engine.step()
                    if is_cuda:
                        torch.cuda.synchronize()  # a step's kernels should lie beside it
                steps.done()
        profiler.export_chrome_trace(str(file))
        return profiler.key_averages()
    finally:
        steps.close()


def to_text(averages: Any) -> str:
    """torch's table, the longest first: of a range, 'Self CPU' is Python's time."""
    return str(averages.table(sort_by="cpu_time_total", row_limit=ROWS, max_name_column_width=40))


def to_dict(averages: Any) -> dict[str, dict[str, float | int]]:
    """Calls and microseconds of each range and operator, all steps together."""
    return {
        each.key: {"calls": each.count, "cpu_us": each.cpu_time_total, "self_cpu_us": each.self_cpu_time_total}
        for each in averages
    }


@final
class _Steps:
    """Brings an engine to just before a step of a shape, as often as is asked.

    The decodes go on from step to step; prompts are new ones each time, none of which the prefix cache can know.
    """

    def __init__(self, llm: LLM, shape: StepShape) -> None:
        self._llm, self._shape = llm, shape
        self._random = random.Random(0)
        self._decoding: tuple[str, ...] = ()
        self._beside: tuple[str, ...] = ()
        self._num_requests = 0

    def arrange(self) -> None:
        """The next `engine.step` is of the shape.

        Raises:
            InvalidRequestError: The model's context or the pool is too small for a prompt.
        """
        engine = self._llm.engine
        if not self._decoding:
            self._decoding = self._add(self._shape.batch - self._shape.num_prompts)
            started: set[str] = set()
            while not started.issuperset(self._decoding):
                started |= {output.request_id for output in engine.step() if output.outputs[0].token_ids}
        self._beside = self._add(self._shape.num_prompts)

    def done(self) -> None:
        """The step has been made. Raises ConfigError if a limit of the engine gave it another shape."""
        step = self._llm.engine.trace[-1]
        decoded = {request_id for request_id, *_ in step.chunks[: step.num_decodes + step.num_verifying]}
        prompts = {request_id for request_id, *_ in step.chunks} - decoded
        if decoded != set(self._decoding) or bool(prompts) != bool(self._beside):
            raise ConfigError(
                f"the step decoded {len(decoded)} sequences and computed {len(prompts)} prompts, but a "
                f"{self._shape.kind} step of {self._shape.batch} was asked for; raise --max-num-batched-tokens or "
                f"--num-kv-blocks, or lower --batch or --steps."
            )
        self._abort(self._beside)
        self._beside = ()

    def close(self) -> None:
        """The engine is idle again."""
        self._abort(self._decoding + self._beside)
        self._decoding = self._beside = ()

    def _add(self, num_requests: int) -> tuple[str, ...]:
        names = []
        for _ in range(num_requests):
            names.append(f"profiled-{self._num_requests}")
            num_tokens = self._shape.prompt_lens[self._num_requests % len(self._shape.prompt_lens)]
            self._num_requests += 1
            token_ids = self._random.choices(range(self._llm.model_config.vocab_size), k=num_tokens)
            # As many tokens as the context has room for: a decode should last.
            room = max(1, self._llm.scheduler.config.max_model_len - num_tokens)
            params = SamplingParams(temperature=0.0, max_tokens=room, ignore_eos=True)
            self._llm.engine.add_request(names[-1], {"prompt_token_ids": token_ids}, params)
        return tuple(names)

    def _abort(self, request_ids: tuple[str, ...]) -> None:
        for request_id in request_ids:
            self._llm.engine.abort(request_id)
