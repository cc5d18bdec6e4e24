"""A server under hostile but valid requests, beside ordinary streams: `python -m tests.server.hostile [SECONDS]`.

Each hostile request is valid JSON at or beyond the edge of a budget: texts, lists and names of the largest size that a
body may have, schemas and patterns that explode, bodies that never end. Beside them four clients read ordinary streams.
Three promises are kept: a stream waits at most a second longer for its next chunk than without hostile clients, /health
answers within a second, and the idle server holds as much memory after the second half as after the first.

The model has SmolLM2's tokenizer and template and a tiny body: texts, masks and biases are of full size, and steps short.
"""

import asyncio
import functools
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.model.tiny import make_folder
from twophase_features.model_store.prepare import default_model_dir
from twophase_tools.bench.server_process import ServerProcess, free_port

NUM_STREAMS, NUM_HOSTILE = 4, 8
EXTRA_WAIT_S = 1.0  # that hostile clients may cost a stream, at its next chunk
HEALTH_LIMIT_S = 1.0
GROWTH_LIMIT = 1.05  # of the idle server's memory, from one half to the next
REQUEST_LIMIT_S = 180.0
FAIR = {200, 400, 408, 413, 422, 429, 503}  # what a hostile request may be answered with
VOCAB_SIZE, CONTEXT = 49152, 2048

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 8,
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
    }


def _pattern(pattern: str) -> dict[str, Any]:
    return _schema({"type": "string", "pattern": pattern})


def _refs(num: int, *, is_dense: bool) -> dict[str, Any]:
    def targets(i: int) -> range:
        return range(num) if is_dense else range(i + 1, min(i + 2, num))

    parts = {
        f"p{i}": {"anyOf": [{"$ref": f"#/$defs/p{j}"} for j in targets(i)] or [{"type": "null"}]} for i in range(num)
    }
    return _schema({"$defs": parts, "$ref": "#/$defs/p0"})


def _properties(num: int) -> dict[str, Any]:
    return _schema({"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(num)}})


def _text(text: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": text, "max_tokens": 4, **fields}


# name -> path, and how its body is made
REQUESTS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "multipleOf 99999989": (CHAT, lambda: _schema({"type": "integer", "multipleOf": 99999989})),
    "multipleOf 999983": (CHAT, lambda: _schema({"type": "integer", "multipleOf": 999983})),
    "multipleOf 9973": (CHAT, lambda: _schema({"type": "integer", "multipleOf": 9973})),
    "62 dense $refs": (CHAT, lambda: _refs(62, is_dense=True)),
    "2,500 chained $refs": (CHAT, lambda: _refs(2500, is_dense=False)),
    "2,500 properties": (CHAT, lambda: _properties(2500)),
    "nested counts": (CHAT, lambda: _pattern("((a{1,300}){1,300}){1,300}")),
    "unicode counts": (CHAT, lambda: _pattern(r"(\p{L}{1,200}\p{N}){1,200}")),
    "ambiguous": (CHAT, lambda: _pattern("(a|aa|aaa)*[ab]{200}(a|b)*c")),
    "bounds of 300 digits": (CHAT, lambda: _schema({"type": "integer", "minimum": 10**299, "maximum": 10**300 - 1})),
    "10,000 choices": (CHAT, lambda: _schema({"enum": [f"choice {i}" for i in range(10_000)]})),
    "a text of 1 MB": (TEXT, lambda: _text("x" * 1_000_000)),
    "a text just below the limit": (TEXT, lambda: _text("word " * 30_000)),
    "1 MB to tokenize": ("/tokenize", lambda: {"prompt": "é " * 100_000}),
    "300,000 ids": (TEXT, lambda: {"prompt": [1] * 300_000, "max_tokens": 1}),
    "300,000 ids to read": ("/detokenize", lambda: {"tokens": [1] * 300_000}),
    "20,000 messages": (CHAT, lambda: {"messages": [{"role": "user", "content": "x"}] * 20_000}),
    "a name of 1 MB": (TEXT, lambda: _text("x", **{"y" * 1_000_000: 1})),
    "a control token 90,000 times": (
        CHAT,
        lambda: {"messages": [{"role": "user", "content": "<|im_end|>" * 90_000}]},
    ),
    "a bias on each token, n = 16": (
        TEXT,
        lambda: _text("x", n=16, max_tokens=20, logit_bias={str(i): 1 for i in range(0, VOCAB_SIZE)}),
    ),
    "1,024 biases, n = 16": (TEXT, lambda: _text("x", n=16, logit_bias={str(i): 1 for i in range(1024)})),
    "4,096 messages": (CHAT, lambda: {"messages": [{"role": "user", "content": "x"}] * 4096, "max_tokens": 1}),
    "long stop strings": (TEXT, lambda: _text("x", stop=["z" * 100_000] * 4)),
    "n = 16 with logprobs": (TEXT, lambda: _text("x " * 200, n=16, logprobs=5, echo=True)),
    "1,000 prompts": (TEXT, lambda: {"prompt": ["x"] * 1000, "max_tokens": 1}),
    "deep JSON": (CHAT, lambda: _schema({"const": json.loads("[" * 90 + "]" * 90)})),
    "empty lists": (
        CHAT,
        lambda: {
            "messages": [{"role": "user", "content": "x"}],
            "stop": [],
            "seed": json.loads("[" + "[]," * 300_000 + "[]]"),
        },
    ),
}


@dataclass(slots=True)
class Seen:
    """What the clients saw in one part of the soak.

    Attributes:
        longest_gap_s: Between two chunks of an ordinary stream, or between its request and its first chunk.
        answers: How often, by (request, status).
    """

    longest_gap_s: float = 0.0
    longest_health_s: float = 0.0
    num_chunks: int = 0
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)


async def _stream(http: httpx.AsyncClient, seen: Seen, until_s: float) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 100, "stream": True, "ignore_eos": True}
    while time.monotonic() < until_s:
        last_s = time.monotonic()
        async with http.stream("POST", TEXT, json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line:  # each event ends with an empty one
                    event = line
                    now_s = time.monotonic()
                    seen.longest_gap_s = max(seen.longest_gap_s, now_s - last_s)
                    last_s = now_s
                    seen.num_chunks += 1
        assert event == "data: [DONE]", event


async def _health(http: httpx.AsyncClient, seen: Seen, until_s: float) -> None:
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        assert (await http.get("/health")).status_code == 200
        seen.longest_health_s = max(seen.longest_health_s, time.monotonic() - began_s)
        await asyncio.sleep(0.05)


@functools.cache
def _bodies() -> dict[str, bytes]:
    return {name: json.dumps(make()).encode() for name, (_, make) in REQUESTS.items()}


async def _attack(url: str, http: httpx.AsyncClient, seen: Seen, until_s: float, names: Iterator[str]) -> None:
    # At least each of them once, also where a busy machine takes longer for that.
    while time.monotonic() < until_s or len({name for name, _ in seen.answers}) <= len(REQUESTS):
        name = next(names)
        if name == "half a body":
            seen.answers[name, await _half_a_body(url)] += 1
            continue
        answer = await http.post(
            REQUESTS[name][0], content=_bodies()[name], headers={"content-type": "application/json"}
        )
        seen.answers[name, str(answer.status_code)] += 1
        assert answer.status_code in FAIR, (name, answer.text[:300])


async def _half_a_body(url: str) -> str:
    """Headers and a few bytes; then silence for a second, and away."""
    _, writer = await asyncio.open_connection(httpx.URL(url).host, httpx.URL(url).port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
    )
    await writer.drain()
    await asyncio.sleep(1.0)
    writer.close()
    return "left"


async def _part(url: str, seconds: float, num_hostile: int, names: Iterator[str]) -> Seen:
    seen, until_s = Seen(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    http = httpx.AsyncClient(base_url=url, timeout=REQUEST_LIMIT_S, trust_env=False, limits=limits)
    async with http, asyncio.TaskGroup() as clients:
        clients.create_task(_health(http, seen, until_s))
        for _ in range(NUM_STREAMS):
            clients.create_task(_stream(http, seen, until_s))
        for _ in range(num_hostile):
            clients.create_task(_attack(url, http, seen, until_s, names))
    return seen


async def _idle_bytes(server: ServerProcess) -> int:
    """Resident memory of the idle server, once two looks agree."""
    last = 0
    for _ in range(30):
        await asyncio.sleep(1.0)
        sample = server.sample()
        assert sample is not None, "this soak reads /proc"
        if abs(sample.resident_bytes - last) < 2**20:
            break
        last = sample.resident_bytes
    return sample.resident_bytes


def _write_model(folder: Path) -> None:
    make_folder("smollm2", folder, vocab_size=VOCAB_SIZE, max_position_embeddings=CONTEXT)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((default_model_dir() / name).read_bytes())


async def soak(seconds: float, seed: int = 0) -> tuple[list[Seen], list[int]]:
    """A part without hostile clients (a sixth of the time), then two with; and the idle memory after each."""
    names = itertools.cycle(random.Random(seed).sample([*REQUESTS, "half a body"], len(REQUESTS) + 1))  # all in turns
    _bodies()  # before anything is timed
    with tempfile.TemporaryDirectory(prefix="twophase-hostile-") as name:
        folder = Path(name)
        _write_model(folder)
        arguments = ["serve", "--model", name, "--device", "cpu", "--log-level", "error", "--num-kv-blocks", "2048"]
        environment = {"OMP_NUM_THREADS": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}
        server = ServerProcess("twophase", arguments, free_port(), folder / "server.log", environment)
        try:
            await server.ready()
            seen, idle_bytes = [], []
            for share, num_hostile in ((1 / 6, 0), (5 / 12, NUM_HOSTILE), (5 / 12, NUM_HOSTILE)):
                seen.append(await _part(server.url, share * seconds, num_hostile, names))
                idle_bytes.append(await _idle_bytes(server))
            assert await server.stop() == 0, server.last_words()
        except BaseException:
            print(server.last_words(), file=sys.stderr)
            raise
        finally:
            server.kill()
    return seen, idle_bytes


def broken_promises(seen: list[Seen], idle_bytes: list[int]) -> list[str]:
    """In words; empty if all are kept."""
    calm, *hostile = seen
    gap_s = max(part.longest_gap_s for part in hostile) - calm.longest_gap_s
    health_s = max(part.longest_health_s for part in hostile)
    found = []
    if gap_s > EXTRA_WAIT_S:
        found.append(f"a stream waited {gap_s:.2f} s longer for a chunk than without hostile clients")
    if health_s > HEALTH_LIMIT_S:
        found.append(f"/health took {health_s:.2f} s")
    if idle_bytes[2] > GROWTH_LIMIT * idle_bytes[1]:
        found.append(f"the idle server grew from {idle_bytes[1] / 2**20:.0f} to {idle_bytes[2] / 2**20:.0f} MiB")
    return found


def main(seconds: float) -> int:
    seen, idle_bytes = asyncio.run(soak(seconds))
    for name, part, held in zip(("calm", "hostile", "hostile"), seen, idle_bytes, strict=True):
        print(
            f"{name:<8} {part.num_chunks:>8,} chunks, longest gap {1e3 * part.longest_gap_s:>6.0f} ms, longest /health "
            f"{1e3 * part.longest_health_s:>6.0f} ms, idle server {held / 2**20:.0f} MiB"
        )
    answers = sum((part.answers for part in seen), Counter[tuple[str, str]]())
    for name, group in itertools.groupby(sorted(answers.items()), key=lambda each: each[0][0]):
        print(f"  {name:<32}", ", ".join(f"{count} x {status}" for (_, status), count in group))
    broken = broken_promises(seen, idle_bytes)
    print(*(broken or ["every promise is kept"]), sep="\n")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 300.0))
