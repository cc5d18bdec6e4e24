"""A real engine set up to be measured."""

import time
from dataclasses import asdict
from typing import Any, final

import torch

from twophase.core.errors import ConfigError
from twophase.engine.engine import Engine
from twophase.engine.runner import ModelRunner
from twophase.llm import LLM
from twophase_tools.bench.serve import Clock, ServingRun, serve
from twophase_tools.load.workloads import TimedRequest, Workload
from twophase_tools.simulate.limits import make_scheduler


@final
class Rig:
    """An engine of its own on a loaded model's weights and pages, with every step traced and no prefix cache.

    Args:
        llm: Idle, and left alone as long as the rig is used: they share the pages.
        cpu_time: Count the process's CPU time, not the wall's: a machine that others use then looks as if they were
            not there, but for the caches and the memory bus. Waiting for the next request takes no time. For one
            thread on the CPU: with more, CPU time is not elapsed time.

    Attributes:
        setup: What the times depend on besides the machine and the limits.
        limits: The `SchedulerConfig` and the pool's num_blocks and block_size; see `make_scheduler`.

    Raises:
        ConfigError: `cpu_time` with a GPU or several threads, or an LLM that is busy.
    """

    def __init__(self, llm: LLM, *, cpu_time: bool = False) -> None:
        num_threads = torch.get_num_threads()
        self.device_type = llm.kv_cache.device.type
        if cpu_time and (self.device_type != "cpu" or num_threads > 1):
            raise ConfigError(
                f"CPU time is elapsed time for one thread on a CPU only, got {num_threads} threads on "
                f"{self.device_type}; set OMP_NUM_THREADS=1, or count wall time."
            )
        if llm.engine.has_unfinished_requests():
            raise ConfigError("an engine that is to be measured must be idle; finish or abort its requests first.")
        cache, config = llm.scheduler.cache, llm.scheduler.config
        self.limits: dict[str, Any] = asdict(config) | {"num_blocks": cache.num_blocks, "block_size": cache.block_size}
        self.setup: dict[str, Any] = {
            "model": llm.model_dir.name,
            "device": str(llm.kv_cache.device),
            "dtype": str(llm.kv_cache.spec.dtype).removeprefix("torch."),
            "attention": llm.model.backend.name,
            "threads": num_threads,
            "clock": "CPU time" if cpu_time else "wall",
        }
        self._forget_pages = llm.scheduler.cache.reset_prefix_cache
        self._vocab_size = llm.model_config.vocab_size
        self._clock = _cpu_clock() if cpu_time else Clock()
        self._engine = Engine(
            ModelRunner(llm.model, llm.kv_cache, config.max_model_len),
            make_scheduler(self.limits),
            vocab_size=self._vocab_size,
            max_trace_steps=None,
            clock=self._clock.now_s,
        )
        self.play([TimedRequest("warm-up", 0.0, 40, 3)])  # the first steps of a process allocate

    def play(self, workload: Workload | list[TimedRequest]) -> ServingRun:
        """Serve a workload in open loop. What the LLM's prefix cache could find is overwritten, so it is forgotten."""
        self._forget_pages()
        return serve(self._engine, workload, self._vocab_size, clock=self._clock)


def _cpu_clock() -> Clock:
    """CPU time, and sleep that takes none of anybody's."""
    slept_s = 0.0

    def now_s() -> float:
        return time.process_time() + slept_s

    def sleep(duration_s: float) -> None:
        nonlocal slept_s
        slept_s += duration_s

    return Clock(now_s, sleep)
