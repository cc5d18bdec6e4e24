"""Steps of an engine under torch's profiler, as a Chrome trace."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase.llm import LLM
from twophase_tools.bench.machine import record_machine
from twophase_tools.profiling.ranges import ranged
from twophase_tools.profiling.report import ProfileReport
from twophase_tools.profiling.steps import Steps, StepShape
from twophase_tools.profiling.tree import read_trees

WARM_UP_STEPS = 2
ENDINGS = (".json", ".json.gz")


def profile_steps(
    model: str,
    config: EngineConfig,
    shape: StepShape,
    num_steps: int,
    file: Path,
    say: Callable[[str], None] = lambda line: None,
) -> ProfileReport:
    """Load the model, warm it up, profile steps, write the trace to `file`, and tell where the time went.

    Raises:
        ConfigError: An option that cannot work.
        ModelFolderError, BackendUnavailableError, InvalidRequestError: As `LLM`.
    """
    if num_steps < 1:
        raise ConfigError(f"at least one step is profiled, got {num_steps}.")
    if not file.name.endswith(ENDINGS):
        raise ConfigError(f"a trace's file must end in {' or '.join(ENDINGS)}, got {file.name!r}.")
    with LLM(model, replace(config, max_num_seqs=shape.batch)) as llm:
        record(llm, shape, num_steps, file, say)
        about = {
            "model": str(llm.model_dir),
            "device": str(llm.kv_cache.device),
            "dtype": str(llm.kv_cache.spec.dtype).removeprefix("torch."),
            "attention": llm.model.backend.name,
        }
    return ProfileReport.of(read_trees(file), shape, str(file), about, record_machine())


def record(
    llm: LLM, shape: StepShape, num_steps: int, file: Path, say: Callable[[str], None] = lambda line: None
) -> None:
    """Write the trace of `num_steps` steps; the engine is idle before and after."""
    steps = Steps(llm, shape)
    try:
        say(f"warming up: {WARM_UP_STEPS} {shape.kind} steps")
        for _ in range(WARM_UP_STEPS):
            steps.arrange()
            llm.engine.step()
            steps.done()
        steps.arrange()  # the decodes' prompts may take some steps, and are not asked for
        say(f"profiling: {num_steps} {shape.kind} steps")
        activities = [ProfilerActivity.CPU]
        if llm.kv_cache.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
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
    finally:
        steps.close()
