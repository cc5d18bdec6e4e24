"""`twophase bench serve --url`: the same load and the same report over HTTP."""

import asyncio
from collections.abc import Callable

from twophase.core.errors import ConfigError
from twophase_tools.bench.clients import play
from twophase_tools.bench.http_client import HttpClient
from twophase_tools.bench.machine import record_machine
from twophase_tools.bench.serve import ServeReport, ServingRun, loop_of
from twophase_tools.load.report import ServingReport
from twophase_tools.load.slo import Slo
from twophase_tools.load.workloads import Workload

NOTE = (
    "Measured at the client. Latencies count from when a request was due; 'in queue' is how late the client sent it, "
    "and what it waited in the server is in its TTFT."
)


def bench_url(
    url: str,
    model: str,
    workload: Workload,
    *,
    api_key: str | None = None,
    seed: int = 0,
    duration_limit_s: float | int | None = None,
    concurrency: int | None = None,
    retries: int = 0,
    slo: Slo | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[ServeReport, ServingRun]:
    """Play the workload against a server of OpenAI's protocol.

    Args:
        model: Whose vocabulary prompts are drawn from, as in-process.

    Raises:
        ConfigError: An option that cannot work.
        ModelFolderError: There is no such model here.
        ServerError: Nobody answers at the URL.
    """
    from twophase.model.config import load_config
    from twophase_features.model_store.prepare import resolve_model

    if retries < 0:
        raise ConfigError(f"--retries must be at least 0, got {retries}.")
    client = HttpClient(url, api_key)
    vocab_size = load_config(resolve_model(model)).vocab_size

    async def run() -> tuple[str, ServingRun]:
        async with client:
            name = await client.model()
            say(f"serving {workload.name!r} by {name!r} at {client.url}")
            return name, await play(
                client.ask,
                workload,
                vocab_size,
                seed=seed,
                duration_limit_s=duration_limit_s,
                concurrency=concurrency,
                retries=retries,
                say=say,
            )

    name, done = asyncio.run(run())
    summary = ServingReport.of(done.records, slo=slo, window=done.window)
    server: dict[str, str | int] = {"url": client.url, "model": name, "loop": loop_of(concurrency), "retries": retries}
    report = ServeReport(
        workload.name, seed, server, record_machine(), summary, done.refusals, done.was_cut, done.statuses, NOTE
    )
    return report, done
