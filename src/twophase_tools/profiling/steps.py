"""The steps that are profiled: prompts alone, decodes alone, or both in one step; and torch's profiler around them."""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase.core.request import SamplingParams
from twophase.llm import LLM
from twophase_tools.bench.machine import record_machine
from twophase_tools.bench.turns import Say
from twophase_tools.profiling.ranges import ranged
from twophase_tools.profiling.report import ProfileReport, tables_of

WARM_UP_STEPS = 2
ENDINGS = (".json", ".json.gz")
KINDS = ("prefill", "decode", "mixed")


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


def profile_steps(
    model: str, config: EngineConfig, shape: StepShape, num_steps: int, file: Path, say: Say = lambda line: None
) -> ProfileReport:
    """Load the model, warm it up, profile steps, write the trace to `file`, and tell where the time went.

    Raises:
        ConfigError: An option that cannot work.
        ModelFolderError, BackendUnavailableError, InvalidRequestError: As `LLM`.
    """
    if not file.name.endswith(ENDINGS):
        raise ConfigError(f"a trace's file must end in {' or '.join(ENDINGS)}, got {file.name!r}.")
    with LLM(model, replace(config, max_num_seqs=shape.batch)) as llm:
        events = record(llm, shape, num_steps, file, say)
        about = {
            "model": str(llm.model_dir),
            "device": str(llm.kv_cache.device),
            "dtype": str(llm.kv_cache.spec.dtype).removeprefix("torch."),
            "attention": llm.model.backend.name,
        }
    lens = ", ".join(map(str, shape.prompt_lens))
    what = f"{num_steps} {shape.kind} steps of {shape.batch} requests, prompts of {lens} tokens"
    return ProfileReport(what, *tables_of(events), about, record_machine())


def record(llm: LLM, shape: StepShape, num_steps: int, file: Path, say: Say = lambda line: None) -> Any:
    """Write the trace of `num_steps` steps, and return the profiler's events; the engine is idle before and after."""
    steps = Steps(llm, shape)
    activities = [ProfilerActivity.CPU]
    if llm.kv_cache.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    try:
        say(f"warming up: {WARM_UP_STEPS} {shape.kind} steps")
        for _ in range(WARM_UP_STEPS):
            steps.arrange()
            llm.engine.step()
            steps.done()
        steps.arrange()  # the decodes' prompts may take some steps, and are not asked for
        say(f"profiling: {num_steps} {shape.kind} steps")
        with profile(activities=activities) as profiler:
            with record_function("first range"):  # the profiler's own start-up is charged to it
                pass
            for number in range(num_steps):
                if number:
                    steps.arrange()
                with ranged(llm):
                    llm.engine.step()
                    if llm.kv_cache.device.type == "cuda":
                        torch.cuda.synchronize()  # a step's kernels should lie beside it
                steps.done()
        profiler.export_chrome_trace(str(file))
        return profiler.events()
    finally:
        steps.close()


@final
class Steps:
    """Brings an engine to just before a step of a shape, as often as is asked.

    The decodes go on from step to step; prompts are new ones each time, none of which the prefix cache can know.
    """

    def __init__(self, llm: LLM, shape: StepShape, seed: int = 0) -> None:
        self._llm, self._shape = llm, shape
        self._random = random.Random(seed)
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
        """The step has been made: was it of the shape? Its prompts are not gone on with.

        Raises:
            ConfigError: No, because of a limit of the engine.
        """
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
