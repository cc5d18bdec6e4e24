"""Random command lines in this process: exit status and one clear line, never a traceback."""

import contextlib
import io
import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from random import Random

from tests.engine.tokenizers_for_tests import byte_level
from tests.fuzz.rule import FindingError
from tests.model.tiny import make_folder
from twophase_tools.cli.main import main

NUMBERS = (
    "0", "1", "2", "3", "8", "-1", "0.5", "1.5", "1e-300", "1e200", "1e13", "1e400", "nan", "inf", "-inf", "-0.0", "0x10",
    "1_0", "", " ", "x", "999999999999999999999", "٣",
)  # fmt: skip
WORDS = (
    "", " ", "x", "語", "\udcff", "-", "--", "../x", "/etc/hostname", "/dev/null", "a:b=c", "[/red]", "\0", "%s", "nan",
    "auto", "a" * 3000,
)  # fmt: skip
POLICIES = (
    "priority", "priority:patience_s=nan", "priority:patience_s=-1", "chunked:max_tokens=8", "chunked:max_tokens=nan",
    "chunked:max_tokens=1e99", "chunked", "static:batch_size=nan", "static:batch_size=2.5", "static:batch_size=0",
    "dynamic:batch_size=2,timeout_s=inf", "dynamic:batch_size=2,timeout_s=0.01", "deadline", "prefill-first:x", "x", ":", "",
)  # fmt: skip

Option = tuple[str, Callable[["Files", Random], str]]


def number(files: "Files", random: Random) -> str:
    return random.choice(("1", "2", "8", "0.5") if random.random() < 0.7 else NUMBERS)


def word(files: "Files", random: Random) -> str:
    return random.choice(WORDS)


def small(files: "Files", random: Random) -> str:
    """Of options that say how much to do: what a user may mean, and no more than a test can wait for."""
    if random.random() < 0.7:
        return random.choice(("1", "2", "5"))
    return random.choice(("0", "-1", "x", "nan", "1.5", "", "999999999999999999999999"))


def one_of(*values: str) -> Callable[["Files", Random], str]:
    return lambda files, random: random.choice(values if random.random() < 0.8 else WORDS)


def file(files: "Files", random: Random) -> str:
    return random.choice((str(random.choice(files.inputs)), random.choice(WORDS)))


def output(files: "Files", random: Random) -> str:
    return random.choice(
        (str(files.folder / "out.json"), str(files.folder / "no" / "such" / "x.png"), str(files.folder), "")
    )


def model(files: "Files", random: Random) -> str:
    return str(files.model) if random.random() < 0.9 else random.choice(WORDS)


MODEL: list[Option] = [
    ("--device", one_of("cpu", "auto", "cuda", "cuda:7", "meta")),
    ("--dtype", one_of("float32", "bfloat16", "auto", "int8")),
    ("--backend", one_of("torch", "auto")),
]
LOAD: list[Option] = [
    ("--rate", number), ("--cv", number), ("--seed", number), ("--trace", file), ("--policy", one_of(*POLICIES)),
    ("--num-kv-blocks", number), ("--max-num-seqs", number), ("--max-num-batched-tokens", number),
]  # fmt: skip
GENERATE: list[Option] = [
    *MODEL, ("--max-tokens", small), ("--temperature", number), ("--top-k", number), ("--top-p", number),
    ("--seed", number), ("--stop", word), ("--n", small), ("--json-schema", file), ("--regex", one_of("[ab]+", "[")),
    ("--choice", word), ("--sliding-window", number), ("--attention-sinks", number), ("--speculative", one_of("ngram")),
    ("--num-speculative-tokens", number),
]  # fmt: skip


class Files:
    """What command lines may name: a model, and good and bad input files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def model(self) -> Path:
        folder = self.folder / "model"
        tokenizer = byte_level()
        make_folder("llama", folder, vocab_size=tokenizer.vocab_size, eos_token_id=tokenizer.end_id)
        tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
        return folder

    @cached_property
    def inputs(self) -> list[Path]:
        contents = {
            "empty": b"", "binary": bytes(range(256)), "nul": b"\0\0", "deep.json": b"[" * 100_000,
            "schema.json": json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}}).encode(),
            "trace.csv": b"arrival_s,prompt_tokens,output_tokens\n0,5,2\n0.1,7,3\n",
            "bad.csv": b"arrival_s,prompt_tokens,output_tokens\nnan,5,2\n0,300000000,1\n",
            "huge.jsonl": b'{"arrival_s": 0, "prompt_tokens": 300000000, "output_tokens": 1}\n',
            "odd.jsonl": b'{"arrival_s": "x"}\n[]\n',
            "plan.yaml": b"model: llama-3-8b\nhardware: h100\n",
            "odd.yaml": b"compute_efficiency: 1e-300\nmodel: [\n",
            "x.ipynb": b"{}", "bad.ipynb": b'{"cells": [{"cell_type": "code", "source": 5}]}',
        }  # fmt: skip
        for name, content in contents.items():
            (self.folder / name).write_bytes(content)
        return [*(self.folder / name for name in contents), self.folder, self._example_plan()]

    def _example_plan(self) -> Path:
        from twophase_tools.capacity.config import EXAMPLE

        path = self.folder / "example.yaml"
        path.write_text(EXAMPLE.read_text())
        return path


class CommandLines:
    """Commands that end within seconds; the long benchmarks have tests of their own."""

    def __init__(self, folder: Path) -> None:
        self._files = Files(folder)
        self.tally: Counter[str] = Counter()  # of command lines, by exit status

    def try_one(self, random: Random) -> None:
        """Run one command line.

        Raises:
            FindingError: A traceback, an unknown exit status, or a failure without a word.
        """
        words = random.choice(
            (self._generate, self._generate, self._simulate, self._serve, self._plan, self._other, self._nonsense)
        )(random)
        stdin = random.choice(
            (io.StringIO("hello"), io.StringIO(""), io.TextIOWrapper(io.BytesIO(b"\xff\xfe\x00"), "utf-8"))
        )
        status, err = run(words, stdin)
        self.tally[f"status {status}"] += 1
        what = " ".join(ascii(word)[:200] for word in words)
        if status not in (0, 1, 2):
            raise FindingError(f"{what}: exit status {status!r}: {err[-300:]}")
        if "Traceback" in err or (status and not err.strip()):
            raise FindingError(f"{what}: exit status {status} with {err[-300:]!r}")

    def _options(self, random: Random, options: list[Option], most: int = 3) -> list[str]:
        chosen = random.sample(options, random.randrange(most + 1))
        return [part for name, value in chosen for part in (name, value(self._files, random))]

    def _generate(self, random: Random) -> list[str]:
        prompt = one_of("hello", "-")(self._files, random)
        flags = random.sample(("--json", "--stream", "--chat"), random.choice((0, 0, 1, 1, 2)))
        start = ["generate", prompt, "--model", model(self._files, random), "--max-tokens", "3", *flags]
        return start + self._options(random, GENERATE)

    def _simulate(self, random: Random) -> list[str]:
        hardware = one_of("h100", "a100")(self._files, random)
        start = [
            "simulate",
            "--hardware",
            hardware,
            "--model",
            random.choice(("llama-3-8b", model(self._files, random))),
        ]
        more: list[Option] = [
            ("--workload", one_of("quick", "chat", "shared-prefix", "overload")), ("--day", number),
            ("--tensor-parallel", small), ("--replicas", small), ("--router", one_of("round-robin")),
        ]  # fmt: skip
        how_many = [] if random.random() < 0.1 else ["--requests", small(self._files, random)]
        return [*start, *how_many, *self._options(random, LOAD + more), *random.choice(([], ["--json"]))]

    def _serve(self, random: Random) -> list[str]:
        more: list[Option] = [
            ("--perfetto", output), ("--prometheus", output), ("--plot", output), ("--slo-ttft", number),
            ("--slo-tpot", number),
        ]  # fmt: skip
        start = ["bench", "serve", "--model", model(self._files, random), "--workload", "quick", "--requests", "2"]
        return [*start, "--duration-limit", one_of("2", "3")(self._files, random), *self._options(random, LOAD + more)]

    def _plan(self, random: Random) -> list[str]:
        what = random.choice((["--example"], [str(self._files.folder / "example.yaml")], [file(self._files, random)]))
        return ["plan", *what, *random.choice(([], ["--json"]))]

    def _other(self, random: Random) -> list[str]:
        return random.choice(
            (
                ["grade", file(self._files, random), "--json", output(self._files, random)],
                ["labs", "show", random.choice(("1.3", "9.9", word(self._files, random)))],
                ["bench", "speculative", "--model", str(self._files.model), "--repeats", random.choice(("0", "-1", "x"))],
                ["bench", "tensor-parallel", "--quick", "--size", random.choice(("1", "0", "-1", "x"))],
                ["bench", "quality", "--model", str(self._files.model), "--kv-cache-dtype", word(self._files, random), "--tokens", "0"],
                ["bench", "window", "--model", str(self._files.model), "--window", random.choice(("0", "x")), "--tokens", "1"],
                ["bench", "engine", "--model", word(self._files, random), "--threads", random.choice(("0", "-1", "x"))],
            )
        )  # fmt: skip

    def _nonsense(self, random: Random) -> list[str]:
        words = [
            "generate",
            "bench",
            "plan",
            "labs",
            "--help",
            "--version",
            "serve",
            "quality",
            "list",
            "model",
            "path",
            *WORDS,
        ]
        return [random.choice(words) for _ in range(random.randrange(4))]


def run(words: list[str], stdin: io.TextIOBase) -> tuple[object, str]:
    """Exit status and standard error of `twophase WORDS`; a traceback counts as written there."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    err = io.StringIO()
    before, sys.stdin = sys.stdin, stdin  # type: ignore[assignment]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return main(words), err.getvalue()
    except SystemExit as error:
        return error.code or 0, err.getvalue()
    except Exception as error:
        import traceback

        return 0, err.getvalue() + "".join(traceback.format_exception(error))
    finally:
        sys.stdin = before
