"""`twophase bench http`: what HTTP costs. The same requests in this process and by a server, in turns.

Both sides have an `AsyncLLM` of the same options and threads, and as many clients in a closed loop, in this process,
that read every token as it comes. The server has a process of its own, so its engine and the clients share the cores.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from twophase.async_llm import AsyncLLM
from twophase.config import EngineConfig
from twophase.core.errors import ConfigError, TwophaseError
from twophase.core.sampling_params import SamplingParams
from twophase_tools.bench.clients import Ask, Progress, play
from twophase_tools.bench.engine import resolve_setup
from twophase_tools.bench.http_client import HttpClient
from twophase_tools.bench.machine import MachineRecord, record_machine
from twophase_tools.bench.serve import ServingRun
from twophase_tools.bench.server_process import ServerProcess, free_port
from twophase_tools.load.latency import Percentiles
from twophase_tools.load.workloads import FixedWorkload, TimedRequest

TARGET = 0.10
IN_PROCESS, OVER_HTTP = "in process", "HTTP"


class CostError(TwophaseError):
    """A round in which not every request was answered, so that its time means nothing."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A round: so many requests per client, of so many tokens."""

    requests_per_client: int = 2
    num_prompt_tokens: int = 64
    num_output_tokens: int = 64


QUICK = Sizes(1, 8, 4)


@dataclass(frozen=True, slots=True)
class Round:
    """One side's run.

    Attributes:
        ttft_s, itl_s: Medians at the client.
        cpu_s_per_token: Processor time of engine, server and clients together: on a machine that others use, it says
            more than the clock. None where the system does not tell.
    """

    tokens_per_s: float
    ttft_s: float
    itl_s: float
    cpu_s_per_token: float | None = None

    @classmethod
    def of(cls, run: ServingRun, cpu_s: float | None = None) -> "Round":
        """Raises CostError if a request was not answered to its end."""
        failed = [record for record in run.records if not record.is_completed]
        if failed:
            why = run.refusals[0][1] if run.refusals else failed[0].finish_reason
            raise CostError(f"{len(failed)} of {len(run.records)} requests were not answered; the first: {why}")
        elapsed_s = run.window[1] - run.window[0]
        ttft = Percentiles.of(record.ttft_s for record in run.records)
        itl = Percentiles.of(gap for record in run.records for gap in record.itls_s)
        num_tokens = sum(record.num_output_tokens for record in run.records)
        return cls(
            num_tokens / elapsed_s,
            0.0 if ttft is None else ttft.p50,
            0.0 if itl is None else itl.p50,
            None if cpu_s is None else cpu_s / num_tokens,
        )


@dataclass(frozen=True, slots=True)
class HttpReport:
    """What HTTP costs.

    Attributes:
        rounds: By side, in order.
        ratios: Tokens per second over HTTP by those in process, of each round.
    """

    concurrency: int
    sizes: Sizes
    rounds: dict[str, tuple[Round, ...]]
    ratios: tuple[float, ...]
    engine: dict[str, str]
    machine: MachineRecord

    @property
    def cost(self) -> float:
        """Share of the throughput that HTTP takes: the median over the rounds."""
        return 1 - statistics.median(self.ratios)

    @property
    def verdict(self) -> str:
        """On the target; rounds that disagree decide nothing."""
        if min(self.ratios) > 1 - TARGET:
            return "kept"
        return "missed" if max(self.ratios) <= 1 - TARGET else "undecided: the rounds disagree"

    @property
    def cpu_cost(self) -> float | None:
        """Processor time that HTTP adds, as a share: the median over the rounds."""
        pairs = zip(self.rounds[OVER_HTTP], self.rounds[IN_PROCESS], strict=True)
        ratios = [
            http.cpu_s_per_token / here.cpu_s_per_token
            for http, here in pairs
            if http.cpu_s_per_token is not None and here.cpu_s_per_token
        ]
        return statistics.median(ratios) - 1 if ratios else None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"cost": self.cost, "verdict": self.verdict, "cpu_cost": self.cpu_cost}

    def to_text(self) -> str:
        sizes = self.sizes
        lines = [
            f"{self.concurrency} clients in a closed loop, {sizes.requests_per_client} requests each of "
            f"{sizes.num_prompt_tokens} + {sizes.num_output_tokens} tokens, {len(self.ratios)} rounds in turns",
            "",
            f"{'medians':<12}{'tokens/s':>12}{'TTFT s':>10}{'ITL ms':>10}",
        ]
        for side, rounds in self.rounds.items():
            tokens, ttft, itl = (
                statistics.median(values)
                for values in zip(*((each.tokens_per_s, each.ttft_s, each.itl_s) for each in rounds), strict=True)
            )
            lines.append(f"{side:<12}{tokens:>12.1f}{ttft:>10.3f}{1e3 * itl:>10.1f}")
        spread = f"{min(self.ratios):.3f} to {max(self.ratios):.3f}"
        used = ", ".join(f"{name} {value}" for name, value in self.engine.items())
        cpu = "" if self.cpu_cost is None else f" Processor time per token: {100 * self.cpu_cost:+.1f} %."
        lines += [
            "",
            f"HTTP has {statistics.median(self.ratios):.3f} of the tokens per second ({spread}): it costs "
            f"{100 * self.cost:.1f} %; the target, less than {100 * TARGET:g} %, is {self.verdict}.{cpu}",
            used,
            self.machine.to_text(),
        ]
        return "\n".join(lines)


def bench_http(
    model: str,
    config: EngineConfig,
    *,
    concurrency: int = 16,
    rounds: int = 5,
    sizes: Sizes | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> HttpReport:
    """Measure both sides in turns.

    Raises:
        ConfigError: An option that cannot work.
        ModelFolderError, BackendUnavailableError: As `LLM`.
        ServerProcessError, CostError: The server does not start, or does not answer.
    """
    if concurrency < 1 or rounds < 1:
        raise ConfigError(f"--concurrency and --rounds must be at least 1, got {concurrency} and {rounds}.")
    num_threads = torch.get_num_threads()
    setup, vocab_size = resolve_setup(model, config.device, config.dtype, config.attention_backend, num_threads)
    options: dict[str, Any] = {"device": setup.device, "dtype": setup.dtype, "max_num_seqs": concurrency}
    config = replace(config, attention_backend=setup.backend, **options)
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words += ["--model", setup.folder, "--backend", setup.backend, "--log-level", "error"]
    with tempfile.TemporaryDirectory(prefix="twophase-http-") as folder:
        server = ServerProcess(
            "twophase_tools",
            ["serve", *words],
            free_port(),
            Path(folder) / "server.log",
            {"OMP_NUM_THREADS": str(num_threads)},
        )
        try:
            turns = _Turns(vocab_size, concurrency, sizes or Sizes(), say)
            found = asyncio.run(turns.take(server, lambda: AsyncLLM(setup.folder, config), rounds))
        finally:
            server.kill()
    ratios = zip(found[OVER_HTTP], found[IN_PROCESS], strict=True)
    return HttpReport(
        concurrency,
        turns.sizes,
        found,
        tuple(http.tokens_per_s / here.tokens_per_s for http, here in ratios),
        {"model": setup.folder, "device": setup.device, "dtype": setup.dtype, "attention": setup.backend},
        record_machine(),
    )


@dataclass(frozen=True, slots=True)
class _Turns:
    """The runs of both sides, one at a time."""

    vocab_size: int
    concurrency: int
    sizes: Sizes
    say: Callable[[str], None]

    async def take(
        self, server: ServerProcess, open_llm: Callable[[], AsyncLLM], rounds: int
    ) -> dict[str, tuple[Round, ...]]:
        self.say("loading the model twice: here, and in the server")
        found: dict[str, list[Round]] = {IN_PROCESS: [], OVER_HTTP: []}
        async with open_llm() as llm, HttpClient(server.url) as client:
            await server.ready()
            sides: dict[str, Ask] = {IN_PROCESS: in_process(llm), OVER_HTTP: client.ask}
            for number in range(rounds + 1):
                # Who comes second finds a warmer machine, or a hotter one: so each is second as often.
                for side in sides if number % 2 else reversed(sides):
                    before_s = _cpu_s(server)
                    run = await self._run(sides[side], number)
                    after_s = _cpu_s(server)
                    done = Round.of(run, None if before_s is None or after_s is None else after_s - before_s)
                    if number:  # the first is a warm-up
                        found[side].append(done)
                        self.say(f"round {number} of {rounds}, {side}: {done.tokens_per_s:.1f} tokens/s")
        await server.stop()
        return {side: tuple(of_side) for side, of_side in found.items()}

    async def _run(self, ask: Ask, number: int) -> ServingRun:
        """The same requests for both sides, and new ones in each round: the prefix cache knows none."""
        sizes = self.sizes
        requests = (
            TimedRequest(f"{number}-{i}", 0.0, sizes.num_prompt_tokens, sizes.num_output_tokens)
            for i in range(sizes.requests_per_client * self.concurrency)
        )
        workload = FixedWorkload("http", tuple(requests))
        return await play(ask, workload, self.vocab_size, concurrency=self.concurrency)


def _cpu_s(server: ServerProcess) -> float | None:
    """Of this process and the server; whichever does nothing uses none."""
    of_server = server.cpu_s()
    return None if of_server is None else of_server + time.process_time()


def in_process(llm: AsyncLLM) -> Ask:
    """Asks an engine of this process."""

    async def ask(request: TimedRequest, token_ids: tuple[int, ...]) -> AsyncGenerator[Progress, None]:
        params = SamplingParams(temperature=0.0, max_tokens=request.num_output_tokens, ignore_eos=True)
        async with aclosing(llm.generate({"prompt_token_ids": token_ids}, params)) as outputs:
            async for output in outputs:
                completion = output.outputs[0]
                yield Progress(len(completion.token_ids), completion.finish_reason, output.metrics.num_cached_tokens)

    return ask
