"""Questions for `twophase bench quality`, answered greedily through the chat template: needles in hay, and JSON.

The facts and texts are such that SmolLM2-135M gets most of them right with an unquantised cache.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from twophase.core.request import SamplingParams
from twophase.llm import LLM
from twophase.model.tokenizer import Tokenizer
from twophase_features.structured_outputs.params import StructuredOutputs
from twophase_tools.bench.quality_probes import ONE_DIGIT, TWO_DIGITS, Outcome, add_up

HAY = (
    "It had rained in the night, and the streets were still wet. A man on a ladder was painting a door green. "
    "Somewhere a radio played an old song. The bus came late, as it did on most days, and nobody minded. Two women "
    "stood at the corner and talked about the price of apples. "
)
HAY_TOKENS = (400, 1200)
NEEDLES = (
    ("The secret number of the lighthouse is", "73914"),
    ("The code of the old safe is", "5820"),
    ("The train to the mountains leaves from platform", "17"),
    ("The blue suitcase belongs to Mrs", "Ferreira"),
    ("The meeting with the bank is on", "Thursday"),
    ("The violin was made in the year", "1742"),
    ("The number of the hotel room is", "264"),
    ("The number of steps in the tower is", "318"),
)
MAX_ANSWER_TOKENS = 8

FIELDS = ("customer", "item", "quantity", "city")
SCHEMA = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 30},
        "item": {"type": "string", "maxLength": 30},
        "quantity": {"type": "integer", "minimum": 0, "maximum": 1000},
        "city": {"type": "string", "maxLength": 30},
    },
    "required": list(FIELDS),
    "additionalProperties": False,
}
EXAMPLE = (
    "Order 2210: 4 chairs for Mr Novak, to be sent to Brno.",
    '{"customer": "Mr Novak", "item": "chairs", "quantity": 4, "city": "Brno"}',
)
ORDERS = (
    "Order 4471: 3 lamps for Mrs Ferreira, to be sent to Porto.",
    "Please send 12 notebooks to Mr Okafor in Lagos.",
    "Ms Tanaka from Kyoto would like to buy 2 umbrellas.",
    "We owe Mr Dubois in Lyon 5 boxes of candles.",
    "Order 4475: 20 pencils for Miss Petersen, to be sent to Aarhus.",
    "A parcel with 7 cups goes to Mrs Rossi, who lives in Bologna.",
    "Mr Schmidt has ordered 6 blankets. His address is in Bremen.",
    "Order 4478: 1 telescope for Dr Kowalski, to be sent to Gdansk.",
)
MAX_OBJECT_TOKENS = 64


def answer(llm: LLM) -> dict[str, tuple[Outcome, ...]]:
    """Ask everything, sums too: what became of the tasks of each kind, by its name.

    Raises:
        InvalidRequestError: The model has no tokenizer or no chat template, or too short a context.
    """
    assert llm.tokenizer is not None
    found = [has_found for length in HAY_TOKENS for has_found in _find(llm, llm.tokenizer, length)]
    guided, free = (_extract(llm, grammar) for grammar in (StructuredOutputs(json=SCHEMA), None))
    return {
        "needles found": tuple(map(Outcome, found)),
        "guided JSON valid": tuple(Outcome(bool(each)) for each in guided),
        "free JSON valid": tuple(Outcome(bool(each)) for each in free),
        "guided JSON fields": tuple(Outcome(name in each, said=each.get(name)) for each in guided for name in FIELDS),
        "one-digit sums": add_up(llm, ONE_DIGIT),
        "two-digit sums": add_up(llm, TWO_DIGITS),
    }


def parsed(text: str) -> Mapping[str, Any] | None:
    """The object of the schema that `text` is, or None. What is around it counts against it."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    is_object = isinstance(found, dict) and set(found) == set(FIELDS)
    return found if is_object and all(_is_valid(name, value) for name, value in found.items()) else None


def _is_valid(name: str, value: Any) -> bool:
    if name == "quantity":
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1000
    return isinstance(value, str) and len(value) <= 30


def _find(llm: LLM, tokenizer: Tokenizer, num_hay: int) -> list[bool]:
    """Ask for every needle of one haystack; the first request leaves the hay in the prefix cache for the others."""
    hay = haystack(tokenizer, num_hay)
    prompts = []
    for said, _ in NEEDLES:
        # The first words of the answer are given: a small model finds many ways not to begin with them.
        asked = f"{hay}\n\nComplete this sentence from the text: {said} ..."
        text = tokenizer.render_chat([{"role": "user", "content": asked}]) + said
        prompts.append({"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)})
    params = SamplingParams(temperature=0, max_tokens=MAX_ANSWER_TOKENS)
    outputs = llm.generate(prompts[:1], params, use_tqdm=False) + llm.generate(prompts[1:], params, use_tqdm=False)
    return [secret in output.outputs[0].text for (_, secret), output in zip(NEEDLES, outputs, strict=True)]


def haystack(tokenizer: Tokenizer, num_hay: int) -> str:
    """About `num_hay` tokens of hay with the needles in it, the first near its beginning, the last near its end."""
    hay = tokenizer.encode(HAY, add_special_tokens=False)
    hay = (hay * (num_hay // len(hay) + 1))[:num_hay]
    ids: list[int] = []
    start = 0
    for index, (said, secret) in enumerate(NEEDLES):
        end = round((index + 0.5) / len(NEEDLES) * num_hay)
        ids += hay[start:end] + tokenizer.encode(f" {said} {secret}.", add_special_tokens=False)
        start = end
    return tokenizer.decode(ids + hay[start:])


def _extract(llm: LLM, structured_outputs: StructuredOutputs | None) -> Sequence[Mapping[str, Any]]:
    """The orders as objects of the schema, after one worked example; empty where the answer is not one."""
    conversations = [
        [_asked(EXAMPLE[0]), {"role": "assistant", "content": EXAMPLE[1]}, _asked(order)] for order in ORDERS
    ]
    params = SamplingParams(temperature=0, max_tokens=MAX_OBJECT_TOKENS, structured_outputs=structured_outputs)
    outputs = [output.outputs[0] for output in llm.chat(conversations, params, use_tqdm=False)]
    return [(parsed(output.text) or {}) if output.finish_reason == "stop" else {} for output in outputs]


def _asked(order: str) -> dict[str, str]:
    names = f"{', '.join(FIELDS[:-1])} and {FIELDS[-1]}"
    return {"role": "user", "content": f"Write this as a JSON object with the fields {names}: {order}"}
