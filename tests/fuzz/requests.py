"""Random requests against `LLM` and `Engine`: odd values, odd prompts, many engine configurations.

`python -m tests.fuzz.requests COUNT SEED` tries as many as there is time for; each next one has the next seed.
"""

import json
import math
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from tests.engine.tokenizers_for_tests import KINDS
from tests.fuzz.rule import FindingError, findings, refusing_clearly
from tests.fuzz.values import TEXTS, odd
from tests.model.tiny import make_folder
from twophase import LLM, SamplingParams
from twophase.core.errors import TwophaseError
from twophase.core.request import CompletionOutput, RequestOutput, TokenLogprobs
from twophase_features.policies.ageing import AgeingPolicy
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.deadlines import DeadlinePolicy
from twophase_features.policies.request_level import DynamicPolicy
from twophase_features.policies.whole_prompts import PrefillFirstPolicy
from twophase_features.speculation.config import SpeculativeConfig
from twophase_features.structured_outputs.params import StructuredOutputs

Logprobs = tuple[TokenLogprobs | None, ...] | None

SMALL = {"max_model_len": 64, "block_size": 4, "max_num_seqs": 6}
TIGHT = {"num_kv_blocks": 24, "max_num_batched_tokens": 16}
WINDOW = {"sliding_window": 9, "num_attention_sinks": 2}
NGRAM = SpeculativeConfig(disable_when_losing=False)


def _draft_model(folder: Path) -> SpeculativeConfig:
    return SpeculativeConfig(method="draft_model", model=str(folder), disable_when_losing=False)


# Name -> (options of the engine under test, options it shares with the engine that serves each request alone).
ENGINES: Mapping[str, Callable[[Path], tuple[dict[str, Any], dict[str, Any]]]] = {
    "default": lambda folder: ({}, {}),
    "tight": lambda folder: (TIGHT, {}),
    "tight, swap": lambda folder: ({**TIGHT, "preemption_mode": "swap"}, {}),
    "whole prompts": lambda folder: ({"enable_chunked_prefill": False, "admission_watermark": 0.1}, {}),
    "n-gram drafts": lambda folder: ({**TIGHT, "speculative_config": NGRAM}, {}),
    "draft model": lambda folder: ({"speculative_config": _draft_model(folder)}, {}),
    "window": lambda folder: (TIGHT, WINDOW),
    "window and drafts": lambda folder: ({**TIGHT, "speculative_config": NGRAM}, WINDOW),
    "deadline": lambda folder: ({**TIGHT, "policy": DeadlinePolicy()}, {}),
    "ageing": lambda folder: ({**TIGHT, "policy": AgeingPolicy(patience_s=0.01)}, {}),
    "chunked": lambda folder: ({"policy": ChunkedPrefillPolicy(max_tokens=8), "speculative_config": NGRAM}, {}),
    "prefill first": lambda folder: ({"policy": PrefillFirstPolicy(max_stalled_steps=1)}, {}),
    "dynamic": lambda folder: ({"policy": DynamicPolicy(batch_size=3, timeout_s=0.002)}, {}),
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
        self.tally: Counter[str] = Counter()  # of requests: accepted, refused, and compared with what they get alone

    @cached_property
    def _model_folders(self) -> Mapping[str, Path]:
        folders = {}
        for kind, tokenizer in KINDS.items():
            folder = folders[kind] = self._folder / kind
            make_folder("llama", folder, vocab_size=tokenizer().vocab_size, eos_token_id=tokenizer().end_id)
            tokenizer().tokenizer.save(str(folder / "tokenizer.json"))
        return folders

    def _open(self, key: tuple[str, str]) -> tuple[LLM, LLM]:
        """An engine under test, and the plain one that serves each request alone."""
        if key not in self._engines:
            kind, name = key
            folder = self._model_folders[kind]
            options, shared = ENGINES[name](folder)
            plain = LLM(folder, **SMALL, **shared, enable_prefix_caching=False)
            self._engines[key] = LLM(folder, **{**SMALL, **shared, **options}), plain
        return self._engines[key]

    @cached_property
    def _engines(self) -> dict[tuple[str, str], tuple[LLM, LLM]]:
        return {}

    def try_one(self, random: Random) -> None:
        """A few requests served together by one engine.

        Raises:
            FindingError: The rule does not hold.
        """
        key = random.choice(list(KINDS)), random.choice(list(ENGINES))
        llm, alone = self._open(key)
        try:
            self._serve(random, llm, alone, " / ".join(key))
        except Exception:
            self._engines.pop(key)  # the next one should not suffer for it
            raise

    def _serve(self, random: Random, llm: LLM, alone: LLM, where: str) -> None:
        accepted: dict[str, tuple[Any, SamplingParams]] = {}
        outputs: dict[str, RequestOutput] = {}
        aborted = set()
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
                aborted.add(str(i))
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
            if request_id not in aborted:
                self.tally["compared"] += check_output(outputs[request_id], prompt, params, alone, where)


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


def check_output(output: RequestOutput, prompt: Any, params: SamplingParams, alone: LLM, where: str) -> bool:
    """A finished request is what it would have been alone, and has the form asked for; whether it could be compared."""
    what = f"{where}: {_shown(prompt)}, {params}"
    for completion in output.outputs:
        if completion.finish_reason not in ("stop", "length"):
            raise FindingError(f"{what}: ended with {completion.finish_reason}: {completion.error}")
        _check_form(completion, params, what)
    is_repeatable = params.temperature == 0 or params.seed is not None
    if is_repeatable:
        ids = {"prompt_token_ids": output.prompt_token_ids}  # the prompt itself may have been an iterator
        (expected,) = alone.generate(ids, params, use_tqdm=False)
        for got, wanted in zip(output.outputs, expected.outputs, strict=True):
            if (got.token_ids, got.text, got.finish_reason) != (wanted.token_ids, wanted.text, wanted.finish_reason):
                raise FindingError(f"{what}: got {got}, alone {wanted}")
            _check_logprobs(got.logprobs, wanted.logprobs, what)
        _check_logprobs(output.prompt_logprobs, expected.prompt_logprobs, what)
    return is_repeatable


def _check_form(completion: CompletionOutput, params: SamplingParams, what: str) -> None:
    form = params.structured_outputs
    if form is None or completion.finish_reason != "stop":
        return
    if form.json is not None:
        import jsonschema

        try:
            jsonschema.validate(json.loads(completion.text), json.loads(str(form.json)))
        except (ValueError, jsonschema.ValidationError) as error:
            raise FindingError(f"{what}: {completion.text!r} is not of the schema: {error}") from None
    elif form.regex is not None:
        if not re.fullmatch(form.regex, completion.text):
            raise FindingError(f"{what}: {completion.text!r} does not match")
    elif completion.text not in (form.choice or ()):
        raise FindingError(f"{what}: {completion.text!r} is none of the choices")


def _check_logprobs(got: Logprobs, wanted: Logprobs, what: str) -> None:
    for mine, other in zip(got or (), wanted or (), strict=True):
        if mine is None or other is None:
            assert mine is other
        elif not math.isclose(mine.logprob, other.logprob, rel_tol=1e-3, abs_tol=1e-3):
            raise FindingError(f"{what}: log-probability {mine}, alone {other}")


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
