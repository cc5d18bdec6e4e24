"""`twophase bench http`: what HTTP costs. The same requests in this process and by a server, in turns.

In process is what a caller has who needs no server: an `LLM` of this process, stepped by the thread that loaded it.
The server has the same options and as many threads, in a process of its own, and shares the cores with the clients that
read each token as it comes. In both, as many requests are under way at once, in a closed loop.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from twophase.config import EngineConfig
from twophase.core.errors import ConfigError, TwophaseError
from twophase.llm import LLM
from twophase_tools.bench.clients import play
from twophase_tools.bench.engine import resolve_setup
from twophase_tools.bench.http_client import HttpClient
from twophase_tools.bench.machine import MachineRecord, record_machine
from twophase_tools.bench.serve import ServingRun, serve
from twophase_tools.bench.server_process import ServerProcess, free_port
from twophase_tools.load.latency import Percentiles
from twophase_tools.load.workloads import FixedWorkload, TimedRequest

TARGET = 0.10
IN_PROCESS, OVER_HTTP = "in process", "HTTP"


class CostError(TwophaseError):
    """A round in which not every request was answered, so that its time means nothing."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A round: so many requests per client, of so many tokens.

    Attributes:
        num_output_tokens: From, to. Were all answers as long, all would end in one step, and over HTTP the next step
            would have whoever is back first and nobody else: a convoy that real clients don't form.
    """

    requests_per_client: int = 2
    num_prompt_tokens: int = 64
    num_output_tokens: tuple[int, int] = (64, 192)


QUICK = Sizes(1, 8, (3, 5))


@dataclass(frozen=True, slots=True)
class Round:
    """One side's run.

    Attributes:
        ttft_s, itl_s: Medians, over HTTP at the client.
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
        shortest, longest = sizes.num_output_tokens
        lines = [
            f"{self.concurrency} clients in a closed loop, {sizes.requests_per_client} requests each of "
            f"{sizes.num_prompt_tokens} + {shortest} to {longest} tokens, {len(self.ratios)} rounds in turns",
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
            say("loading the model twice: here, and in the server")
            with LLM(setup.folder, config) as llm:
                asyncio.run(server.ready())
                turns = _Turns(llm, server, vocab_size, concurrency, sizes or Sizes(), say)
                found = turns.take(rounds)
            asyncio.run(server.stop())
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

    llm: LLM
    server: ServerProcess
    vocab_size: int
    concurrency: int
    sizes: Sizes
    say: Callable[[str], None]

    def take(self, rounds: int) -> dict[str, tuple[Round, ...]]:
        sides = {IN_PROCESS: self._in_process, OVER_HTTP: self._over_http}
        found: dict[str, list[Round]] = {side: [] for side in sides}
        for number in range(rounds + 1):
            # Who comes second finds a warmer machine, or a hotter one: so each is second as often.
            for side in sides if number % 2 else reversed(sides):
                before_s = self._cpu_s()
                run = sides[side](self._workload(number))
                after_s = self._cpu_s()
                done = Round.of(run, None if before_s is None or after_s is None else after_s - before_s)
                if number:  # the first is a warm-up
                    found[side].append(done)
                    self.say(f"round {number} of {rounds}, {side}: {done.tokens_per_s:.1f} tokens/s")
        return {side: tuple(of_side) for side, of_side in found.items()}

    def _workload(self, number: int) -> FixedWorkload:
        """The same requests for both sides, and new ones in each round: the prefix cache knows none."""
        sizes, lengths = self.sizes, random.Random(number)
        requests = (
            TimedRequest(f"{number}-{i}", 0.0, sizes.num_prompt_tokens, lengths.randint(*sizes.num_output_tokens))
            for i in range(sizes.requests_per_client * self.concurrency)
        )
        return FixedWorkload("http", tuple(requests))

    def _in_process(self, workload: FixedWorkload) -> ServingRun:
        return serve(self.llm.engine, workload, self.vocab_size, concurrency=self.concurrency)

    def _over_http(self, workload: FixedWorkload) -> ServingRun:
        async def run() -> ServingRun:
            async with HttpClient(self.server.url) as client:
                await client.model()  # it is asked for once, and that is not what requests cost
                return await play(client.ask, workload, self.vocab_size, concurrency=self.concurrency)

        return asyncio.run(run())

    def _cpu_s(self) -> float | None:
        """Of this process and the server; whichever does nothing uses none."""
        of_server = self.server.cpu_s()
        return None if of_server is None else of_server + time.process_time()
