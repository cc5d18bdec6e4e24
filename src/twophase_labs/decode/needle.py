"""A needle-in-a-haystack test for K and V that were stored in fewer bits, on SmolLM2 as transformers runs it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from twophase_labs.kit.models import smollm2

HAY = (
    "The harbour was quiet that morning, and the boats lay still. A baker opened the shop and put bread in the window. "
    "Two children walked to school along the river. The market filled slowly, and a man played a song. "
)
NEEDLES = (
    ("The secret number of the lighthouse is", "73914"),
    ("The password of the old library is", "orange"),
    ("The captain's dog is called", "Bruno"),
    ("The train to the mountains leaves from platform", "17"),
    ("The key of the clock tower hangs behind the", "mirror"),
)
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)  # where the needles are, as shares of the hay

Stored = Callable[[Float[Tensor, "T H_kv D"]], Float[Tensor, "T H_kv D"]]


@dataclass(frozen=True)
class Reading:
    """What the model keeps of a text it has read: per layer K and V, each [T, H_kv, D]."""

    num_tokens: int
    keys: tuple[Float[Tensor, "T H_kv D"], ...]
    values: tuple[Float[Tensor, "T H_kv D"], ...]


@dataclass(frozen=True)
class Answer:
    """How sure the model was of a needle.

    Attributes:
        found: Whether greedy decoding would have written it.
        tokens: Surprise at each of its tokens, in bits; 0 is certainty, one bit more is half the probability.
    """

    found: bool
    tokens: tuple[float, ...]

    @property
    def bits(self) -> float:
        """Of the token that surprised most: a needle is as sure as its least certain token."""
        return max(self.tokens)


def haystack(num_hay: int) -> Int[Tensor, " T"]:
    """About `num_hay` tokens of hay with the five needles in it."""
    _, tokenizer = smollm2()
    hay = tokenizer(HAY).input_ids
    hay = (hay * (num_hay // len(hay) + 1))[:num_hay]
    ids: list[int] = []
    start = 0
    for depth, (said, secret) in zip(DEPTHS, NEEDLES, strict=True):
        end = round(depth * num_hay)
        ids += hay[start:end] + tokenizer(f" {said} {secret}.").input_ids
        start = end
    return torch.tensor(ids + hay[start:])


@cache
def read(num_hay: int) -> Reading:
    """Read a haystack once; any number of questions can be asked of it."""
    model, _ = smollm2()
    ids = haystack(num_hay)
    layers = model.model(ids[None], use_cache=True).past_key_values.layers
    keys = tuple(layer.keys[0].transpose(0, 1).contiguous() for layer in layers)
    values = tuple(layer.values[0].transpose(0, 1).contiguous() for layer in layers)
    return Reading(len(ids), keys, values)


def ask(reading: Reading, stored: Stored | None = None) -> list[Answer]:
    """Ask for the five needles, with K and V of the text as `stored` gives them back (None: as they are).

    The words of the question and of the answer themselves are not quantised.
    """
    from transformers import DynamicCache

    model, tokenizer = smollm2()
    past = DynamicCache()
    for layer, pair in enumerate(zip(reading.keys, reading.values, strict=True)):
        k, v = ((x if stored is None else stored(x)).transpose(0, 1)[None].clone() for x in pair)
        past.update(k, v, layer)
    answers = []
    for said, secret in NEEDLES:
        question = tokenizer(f"\nQuestion: What was said before?\nAnswer: {said}").input_ids
        answer = tokenizer(f" {secret}").input_ids
        logits = model(torch.tensor([question + answer]), past_key_values=past).logits[0]
        past.crop(-len(question + answer))
        rows = logits[len(question) - 1 : -1].log_softmax(-1)
        of_answer = rows[range(len(answer)), answer]
        found = rows.argmax(-1).tolist() == answer
        answers.append(Answer(found, tuple(max(0.0, bits) for bits in (-of_answer / math.log(2)).tolist())))
    return answers


def stored_with_one_scale(x: Float[Tensor, "T H_kv D"]) -> Float[Tensor, "T H_kv D"]:
    """Int8 with a single scale for all of x, for comparison."""
    scale = x.abs().max() / 127
    return (x / scale).round() * scale


def stored_per_channel(x: Float[Tensor, "T H_kv D"], q_max: int, group: int = 64) -> Float[Tensor, "T H_kv D"]:
    """A scale per channel (head and element), found anew for every `group` tokens, as KIVI does for keys."""
    parts = []
    for part in x.split(group):
        scale = part.abs().amax(0, keepdim=True).clamp(min=1e-30) / q_max
        parts.append((part / scale).round() * scale)
    return torch.cat(parts)


def excerpt(num_hay: int, row: int, num_around: int = 80) -> str:
    """The needle of a row as it stands in the haystack, with about so many characters of hay on both sides."""
    _, tokenizer = smollm2()
    text = tokenizer.decode(haystack(num_hay))
    said, secret = NEEDLES[row]
    wanted = f"{said} {secret}."
    at = text.index(wanted)
    before = text[max(0, at - num_around) : at].split(maxsplit=1)[-1]
    after = text[at + len(wanted) :][:num_around].rsplit(maxsplit=1)[0]
    return f"... {before.strip()} >>> {wanted} <<< {after.strip()} ..."


def question(row: int) -> tuple[str, str]:
    """What is asked for the needle of a row, and the right answer."""
    said, secret = NEEDLES[row]
    return f"Question: What was said before? Answer: {said}", secret


def relative_error(exact: Sequence[Tensor], stored: Stored) -> float:
    """Root mean square of what storing changed, over that of what was stored."""
    wrong = sum(float((stored(x) - x).square().sum()) for x in exact)
    return math.sqrt(wrong / sum(float(x.square().sum()) for x in exact))
