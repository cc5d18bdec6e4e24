"""Records of cities from the real engine, with a JSON Schema and without."""

import json
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema

from twophase import LLM, SamplingParams, StructuredOutputs
from twophase.core.request import CompletionOutput
from twophase_features.structured_outputs.guidance import Guidance

CITIES = ("Paris", "Cairo", "Tokyo", "Rome", "Delhi", "Quito", "Berlin", "Dublin")
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "country": {"type": "string", "maxLength": 30},
        "inhabitants": {"type": "integer", "minimum": 1, "maximum": 50_000_000},
        "languages": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 1, "maxItems": 3},
    },
    "required": ["city", "country", "inhabitants", "languages"],
    "additionalProperties": False,
}
EXAMPLE = {"city": "Oslo", "country": "Norway", "inhabitants": 700_000, "languages": ["Norwegian", "Sami"]}
MAX_TOKENS = 72


def prompt(city: str) -> str:
    return f"City: Oslo\nRecord: {json.dumps(EXAMPLE)}\n\nCity: {city}\nRecord:"


def problem(text: str) -> str:
    """What is wrong with an answer, by json and jsonschema; '' if nothing is."""
    try:
        jsonschema.validate(json.loads(text), SCHEMA, jsonschema.Draft202012Validator)
    except json.JSONDecodeError:
        return "not JSON"
    except jsonschema.ValidationError as error:
        return str(error.message)
    return ""


@dataclass(frozen=True)
class Answers:
    """One answer for each city."""

    outputs: tuple[CompletionOutput, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(problem(output.text) for output in self.outputs)

    @property
    def num_valid(self) -> int:
        return self.problems.count("")

    @property
    def num_tokens(self) -> int:
        return sum(len(output.token_ids) for output in self.outputs)


@cache
def engine() -> LLM:
    """For all of the section. Its prefix cache keeps the example, which all prompts share."""
    return LLM(num_kv_blocks=256)


@cache
def ask(guided: bool, temperature: float = 0.8) -> Answers:
    """All cities in one batch, each with a seed of its own. Without a schema the answer is the rest of the line."""
    form: dict[str, Any] = {"structured_outputs": StructuredOutputs(json=SCHEMA)} if guided else {"stop": "\n"}
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=MAX_TOKENS, **form) for seed in range(len(CITIES))
    ]
    engine().generate(prompt(CITIES[0]), SamplingParams(max_tokens=1), use_tqdm=False)  # its blocks serve all others
    outputs = engine().generate([prompt(city) for city in CITIES], params, use_tqdm=False)
    return Answers(tuple(output.outputs[0] for output in outputs))


def library_mask_s() -> float:
    """Seconds for one of the engine's masks, the mean along a whole answer, the example's."""
    llm = engine()
    assert llm.tokenizer is not None
    guidance = Guidance(llm.tokenizer.to_json, llm.model_config.eos_token_ids)
    guide = guidance.compile(SamplingParams(structured_outputs=StructuredOutputs(json=SCHEMA))).constraint()
    ids = llm.tokenizer.encode(json.dumps(EXAMPLE))
    start_s = time.perf_counter()
    for length in range(len(ids) + 1):
        guide.allowed_after(ids[:length], 0)
    return (time.perf_counter() - start_s) / (len(ids) + 1)
