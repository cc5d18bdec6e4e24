"""Random requests against `LLM` and `Engine`: odd values, odd prompts, several engine configurations.

`python -m tests.fuzz.requests COUNT SEED` tries as many as there is time for; each next one has the next seed.
"""

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from tests.engine.tokenizers_for_tests import KINDS, make_text_folder
from tests.fuzz.rule import FindingError, findings, refusing_clearly
from tests.fuzz.values import TEXTS, odd
from twophase import LLM, SamplingParams
from twophase.core.errors import TwophaseError
from twophase.core.request import RequestOutput
from twophase_features.policies.deadlines import DeadlinePolicy
from twophase_features.speculation.config import SpeculativeConfig
from twophase_features.structured_outputs.params import StructuredOutputs

SMALL = {"max_model_len": 64, "block_size": 4, "max_num_seqs": 6}
TIGHT = {"num_kv_blocks": 24, "max_num_batched_tokens": 16}
NGRAM = SpeculativeConfig(disable_when_losing=False)
ENGINES: Mapping[str, dict[str, Any]] = {
    "default": {},
    "tight, swap": {**TIGHT, "preemption_mode": "swap"},
    "whole prompts": {"enable_chunked_prefill": False, "admission_watermark": 0.1},
    "window and drafts": {**TIGHT, "speculative_config": NGRAM, "sliding_window": 9, "num_attention_sinks": 2},
    "deadline": {**TIGHT, "policy": DeadlinePolicy()},
}

SCHEMAS = (
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "array", "items": {"enum": ["x", "yy"]}, "maxItems": 2},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
    {"enum": [1, "two", None]},
)
REGEXES = (r"[ab]{1,6}", r"\d+(\.\d+)?", r"(yes|no)!", r"(a+)+$", "[", "(?=x)y", "a{0}", "x" * 2000)
PARAMS = tuple(SamplingParams.__dataclass_fields__)
EXTRAS = ("priority", "cache_salt", "arrival_s", "ttft_slo_s")
CHOICES = (("yes", "no"), ("語", "語語"), ("a",), ("a", "a"), ("",), [], ["x"] * 500)


class Requests:
    """The engines, opened once and used again and again: what one request leaves behind, the next would meet."""

    def __init__(self, folder: Path, nonsense: bool = True) -> None:
        """`nonsense`: also values of wrong types."""
        self._folder = folder
        self._nonsense = nonsense
        self._engines: dict[tuple[str, str], LLM] = {}
        self.tally: Counter[str] = Counter()  # of requests: accepted and refused

    @cached_property
    def _model_folders(self) -> Mapping[str, Path]:
        return {kind: make_text_folder(self._folder / kind, tokenizer())[0] for kind, tokenizer in KINDS.items()}

    def try_one(self, random: Random) -> None:
        """A few requests served together by one engine.

        Raises:
            FindingError: The rule does not hold.
        """
        key = kind, name = random.choice(list(KINDS)), random.choice(list(ENGINES))
        if key not in self._engines:
            self._engines[key] = LLM(self._model_folders[kind], **{**SMALL, **ENGINES[name]})
        try:
            self._serve(random, self._engines[key], f"{kind} / {name}")
        except Exception:
            self._engines.pop(key)  # the next one should not suffer for it
            raise

    def _serve(self, random: Random, llm: LLM, where: str) -> None:
        accepted: dict[str, tuple[Any, SamplingParams]] = {}
        outputs: dict[str, RequestOutput] = {}
        for i in range(random.randrange(1, 6)):
            prompt, options, extras = any_prompt(random, llm), any_params(random), any_extras(random)
            if self._nonsense:
                prompt, options, extras = with_nonsense(random, prompt, options, extras)
            params = accept_or_refuse(llm, str(i), prompt, options, extras, where)
            self.tally["refused" if params is None else "accepted"] += 1
            if params is not None:
                accepted[str(i)] = prompt, params
            for _ in range(random.choice((0, 0, 1, 3))):
                outputs |= _step(llm, where)
            if random.random() < 0.05:
                accepted.pop(str(i), None)
                llm.engine.abort(str(i))
        for _ in range(2000):
            if not llm.engine.has_unfinished_requests():
                break
            outputs |= _step(llm, where)
        else:
            raise FindingError(f"{where}: not finished after 2000 steps: {accepted}")
        if _state(llm) != (0, 0, 0, frozenset()):
            raise FindingError(f"{where}: the idle engine still holds {_state(llm)} after {accepted}")
        for request_id, (prompt, params) in accepted.items():
            for completion in outputs[request_id].outputs:
                if completion.finish_reason not in ("stop", "length"):
                    raise FindingError(f"{where}: {_shown(prompt)}, {params}: ended with {completion}")


def _step(llm: LLM, where: str) -> dict[str, RequestOutput]:
    with refusing_clearly(f"{where}: step()"):
        return {output.request_id: output for output in llm.engine.step()}


def _state(llm: LLM) -> tuple[int, int, int, frozenset[int]]:
    """What a refused request must not change."""
    stats = llm.engine.stats()
    return stats.num_waiting, stats.num_running, stats.cache.num_in_use, frozenset(llm.scheduler.sequences)


def accept_or_refuse(
    llm: LLM, request_id: str, prompt: Any, options: dict[str, Any], extras: dict[str, Any], where: str
) -> SamplingParams | None:
    """Queue a request; None if it was refused, which has changed nothing."""
    what = f"{where}: {_shown(prompt)}, {_shown(options)}, {_shown(extras)}"
    before = _state(llm)
    try:
        with refusing_clearly(what):
            form = {"structured_outputs": StructuredOutputs(**options.pop("form"))} if "form" in options else {}
            params = SamplingParams(**form | options)
            llm.engine.add_request(request_id, prompt, params, **extras)
    except TwophaseError:
        if _state(llm) != before:
            raise FindingError(f"{what}: was refused, and changed {before} to {_state(llm)}") from None
        try:
            llm.engine.add_request(request_id, {"prompt_token_ids": [3]}, SamplingParams(max_tokens=1))
        except TwophaseError as error:
            raise FindingError(f"{what}: was refused, and a good request of its id is, too: {error}") from None
        llm.engine.abort(request_id)
        return None
    return params


def any_params(random: Random) -> dict[str, Any]:
    """Keyword arguments of `SamplingParams`, sensible or extreme; and 'form', those of `StructuredOutputs`."""
    sensible: dict[str, Callable[[], Any]] = {
        "n": lambda: random.choice((1, 2, 3)),
        "temperature": lambda: random.choice((0, 0.0, 1, 0.7, 2.5, 1e-4, 1e30, 3.5e38, 1e-40)),
        "top_k": lambda: random.choice((0, 1, 5, 10_000)),
        "top_p": lambda: random.choice((1, 1.0, 0.9, 1e-9)),
        "min_p": lambda: random.choice((0, 1, 0.0, 0.1)),
        "repetition_penalty": lambda: random.choice((1, 1.2, 0.5, 2, 9.0, 100, 0.01, 1e30)),
        "presence_penalty": lambda: random.choice((0, 2, -2.0, 0.5)),
        "frequency_penalty": lambda: random.choice((0, 2, -2.0, 0.5)),
        "logit_bias": lambda: random.choice((None, {}, {5: 3.0, 9: -100}, {40: 100}, ((7, 1),))),
        "min_tokens": lambda: random.choice((0, 1, 1, 3)),
        "seed": lambda: random.randrange(2**32),
        "max_tokens": lambda: random.choice((1, 2, 6, 10, 10_000)),
        "stop": lambda: random.choice(("e", ["th", "語"], [], "\ufffd", "quick")),
        "stop_token_ids": lambda: random.choice(([], [5], [7, 8, 9])),
        "ignore_eos": lambda: random.random() < 0.5,
        "include_stop_str_in_output": lambda: random.random() < 0.5,
        "skip_special_tokens": lambda: random.random() < 0.5,
        "logprobs": lambda: random.choice((None, 0, 3, 20)),
        "prompt_logprobs": lambda: random.choice((None, 0, 3, 20)),
        "form": lambda: any_form(random),
    }
    chosen = {name: sensible[name]() for name in sensible if random.random() < 0.3}
    chosen.setdefault("max_tokens", random.randrange(1, 9))
    if random.random() < 0.8:
        chosen.setdefault("seed", random.randrange(1000))
    return chosen


def any_form(random: Random) -> dict[str, Any]:
    """Keyword arguments of `StructuredOutputs`."""
    kind, values = random.choice((("json", SCHEMAS), ("regex", REGEXES), ("choice", CHOICES)))
    return {kind: random.choice(values)}


def any_extras(random: Random) -> dict[str, Any]:
    """Keyword arguments of `Engine.add_request`."""
    sensible: dict[str, Callable[[], Any]] = {
        "priority": lambda: random.randrange(-2, 3),
        "cache_salt": lambda: random.choice(("", "a", "b", "語")),
        "arrival_s": lambda: random.choice((None, 0, 0.5)),
        "ttft_slo_s": lambda: random.choice((None, 0, 0.1, 10)),
    }
    return {name: sensible[name]() for name in sensible if random.random() < 0.2}


def any_prompt(random: Random, llm: LLM) -> Any:
    """Text, ids or a mapping; sometimes too long."""
    vocab_size = llm.model_config.vocab_size
    if random.random() < 0.3:
        text = "".join(random.choice(TEXTS[2:16]) for _ in range(random.randrange(1, 4)))[
            : random.choice((20, 40, 500))
        ]
        return text if random.random() < 0.5 else {"prompt": text}
    ids = [random.randrange(vocab_size) for _ in range(random.choice((1, 2, 5, 9, 16, 20, 33, 40, 50, 64)))]
    if random.random() < 0.5:
        ids[: len(ids) // 2] = [3 + i % 7 for i in range(len(ids) // 2)]  # shared prefixes, and something to look up
    prompt: dict[str, Any] = {"prompt_token_ids": ids}
    if random.random() < 0.2:
        prompt["cache_salt"] = random.choice(("a", "b"))
    return prompt


def with_nonsense(
    random: Random, prompt: Any, options: dict[str, Any], extras: dict[str, Any]
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The same request with anything at all in a few places."""
    options |= {name: odd(random) for name in PARAMS if random.random() < 0.01}
    if "form" in options and random.random() < 0.1:
        options["form"] = {random.choice(("json", "regex", "choice")): odd(random)}
    extras |= {name: odd(random) for name in EXTRAS if random.random() < 0.01}
    if random.random() < 0.05:
        prompt = odd(random)
    elif isinstance(prompt, dict) and random.random() < 0.05:
        prompt[random.choice(("cache_salt", "prompt", "prompt_token_ids", "other"))] = odd(random)
    elif isinstance(prompt, dict) and "prompt_token_ids" in prompt and random.random() < 0.05:
        prompt["prompt_token_ids"][0] = odd(random)
    return prompt, options, extras


def _shown(value: Any) -> str:
    try:
        return ascii(value)[:400]
    except RecursionError:
        return "something deep"


def main() -> int:
    """Try some requests; print findings and tally as JSON. The exit status is 1 if anything was found."""
    count, seed = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Requests(Path(folder))
        found = findings(fuzzer.try_one, count, seed)
    print(json.dumps({"findings": found, "tally": fuzzer.tally}, indent=2))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
