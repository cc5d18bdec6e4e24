"""Shadow traffic: the same prompts on the engine that serves and on one that might, compared slice by slice."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from twophase import LLM, SamplingParams
from twophase.model.tokenizer import Tokenizer
from twophase_features.structured_outputs.params import StructuredOutputs
from twophase_tools.bench import quality_tasks as tasks
from twophase_tools.bench.quality_probes import ONE_DIGIT, SHOTS, first_number

SLICES = ("short sums", "facts, short text", "facts, long text", "guided JSON")
HAY_TOKENS = MappingProxyType({"facts, short text": 100, "facts, long text": 700})
NUM_SUMS = 16
VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "as it is": {},
        "int4": {"quantization": "int4"},
        "int4_g64_sym": {"quantization": "int4_g64_sym"},
        "window of 320": {"sliding_window": 320, "num_attention_sinks": 4},
    }
)


@dataclass(frozen=True)
class Case:
    """One request of the traffic, and how its answer is judged."""

    slice_name: str
    prompt: Mapping[str, Any]
    params: SamplingParams
    passes: Callable[[str], bool]


@dataclass(frozen=True)
class Shadow:
    """What one variant answered to all cases, beside the engine that serves."""

    variant: str
    slices: tuple[str, ...]
    texts: tuple[str, ...]
    passed: tuple[bool, ...]
    same: tuple[bool, ...]

    def counts(self, slice_name: str | None = None) -> tuple[int, int]:
        """(passed, requests), of one slice or of all."""
        chosen = [ok for name, ok in zip(self.slices, self.passed, strict=True) if slice_name in (None, name)]
        return sum(chosen), len(chosen)

    @property
    def by_slice(self) -> dict[str, tuple[int, int]]:
        return {name: self.counts(name) for name in SLICES}

    @property
    def line(self) -> str:
        passed, num = self.counts()
        each = ", ".join(f"{name} {ok}/{of}" for name, (ok, of) in self.by_slice.items())
        return f"{self.variant:<14} same text {sum(self.same)}/{num}, passed {passed}/{num}: {each}"


def cases(tokenizer: Tokenizer) -> list[Case]:
    """Forty requests of four kinds, judged as `twophase bench quality` judges them."""
    examples = "".join(f"{a} + {b} = {a + b}\n" for a, b in SHOTS)
    short = SamplingParams(temperature=0, max_tokens=6, stop="\n")
    found = [
        Case("short sums", _ids(tokenizer, f"{examples}{a} + {b} ="), short, _says(a + b))
        for a, b in ONE_DIGIT[:NUM_SUMS]
    ]
    few = SamplingParams(temperature=0, max_tokens=tasks.MAX_ANSWER_TOKENS)
    for name, num_hay in HAY_TOKENS.items():
        hay = tasks.haystack(tokenizer, num_hay)
        for said, secret in tasks.NEEDLES:
            asked = f"{hay}\n\nComplete this sentence from the text: {said} ..."
            text = tokenizer.render_chat([{"role": "user", "content": asked}]) + said
            found.append(Case(name, _ids(tokenizer, text), few, _repeats(secret)))
    guided = SamplingParams(
        temperature=0, max_tokens=tasks.MAX_OBJECT_TOKENS, structured_outputs=StructuredOutputs(json=tasks.SCHEMA)
    )
    for order in tasks.ORDERS:
        turns = [_asked(tasks.EXAMPLE[0]), {"role": "assistant", "content": tasks.EXAMPLE[1]}, _asked(order)]
        text = tokenizer.render_chat(turns)
        found.append(Case("guided JSON", _ids(tokenizer, text), guided, _reads(order)))
    return found


def _asked(order: str) -> dict[str, str]:
    return {"role": "user", "content": f"Write this as a JSON object: {order}"}


def _ids(tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    return {"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}


def _says(total: int) -> Callable[[str], bool]:
    return lambda text: first_number(text) == total


def _repeats(secret: str) -> Callable[[str], bool]:
    return lambda text: secret in text


def _reads(order: str) -> Callable[[str], bool]:
    """A valid object that names the order's quantity. The grammar makes it valid; only the model makes it right."""

    def passes(text: str) -> bool:
        found = tasks.parsed(text)
        return found is not None and str(found["quantity"]) in order.replace(":", " ").replace(".", " ").split()

    return passes


@cache
def answers(variant: str) -> tuple[tuple[Case, str], ...]:
    """Every case with what this variant answers, greedily, on an engine of its own.

    The first case of each slice runs before the others, so that they find its text in the prefix cache.
    """
    with LLM(num_kv_blocks=400, max_num_seqs=32, **VARIANTS[variant]) as llm:
        assert llm.tokenizer is not None
        asked = cases(llm.tokenizer)
        first = {case.slice_name: number for number, case in reversed([*enumerate(asked)])}
        order = [*first.values(), *(i for i in range(len(asked)) if i not in first.values())]
        texts: dict[int, str] = {}
        for batch in (order[: len(first)], order[len(first) :]):
            prompts, params = [asked[i].prompt for i in batch], [asked[i].params for i in batch]
            outputs = llm.generate(prompts, params, use_tqdm=False)
            texts |= {i: output.outputs[0].text for i, output in zip(batch, outputs, strict=True)}
    return tuple((case, texts[i]) for i, case in enumerate(asked))


@cache
def shadow(variant: str) -> Shadow:
    """One variant's answers, judged, and compared with those of the engine as it is."""
    before = [text for _, text in answers("as it is")]
    found = answers(variant)
    return Shadow(
        variant,
        tuple(case.slice_name for case, _ in found),
        tuple(text for _, text in found),
        tuple(case.passes(text) for case, text in found),
        tuple(text == old for (_, text), old in zip(found, before, strict=True)),
    )
