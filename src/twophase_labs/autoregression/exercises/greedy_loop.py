"""The greedy loop, without a cache, against transformers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from twophase_labs.autoregression.toy import Counted, count_up
from twophase_labs.kit.models import is_decided, random_llama, transformers_greedy
from twophase_labs.machine.checks import Draw, compare, compare_shapes, reject, unchanged
from twophase_labs.machine.exercise import exercise

SKELETON = """In words of code:
    for each of num_new passes:
        logits = the model's logits for ids as a batch of one, [1, T, V]
        next_id = the place of the largest of the last row
        ids = ids with next_id behind it (a new tensor)
        stop if next_id is the end token
    return ids"""

GREEDY = exercise("1.3", "The greedy loop", "greedy", points=5, minutes=9, lines=6, time_limit_s=15)
GREEDY.objective = "write the loop that turns next-token predictions into text"
GREEDY.hints = (
    "A model takes a batch, so one text goes in as `ids[None]`. Print the shape of the logits for a prompt of five "
    "tokens: how many rows are there, and which of them is about the future?",
    "Row t predicts token t + 1, so only the last row matters. `argmax` gives the token; `torch.cat` needs it as a "
    "tensor of one element, `next_id[None]`. Look for the end token after it has been appended.",
    SKELETON,
)

NO_END = -1
NUM_SEEDS = 5
MOST_PASSES = 200


def some_model(draw: Draw) -> Any:
    """One of a few random models: new ones take time to make."""
    return random_llama(draw.integer(0, NUM_SEEDS))


def model_and_prompt(draw: Draw, make: Callable[[], Tensor], num_new: int) -> tuple[Any, Tensor]:
    """A model and a prompt that it continues by `num_new` tokens, none of them decided by rounding."""
    while True:
        model, ids = some_model(draw), make()
        if is_decided(model, transformers_greedy(model, ids, num_new), num_new):
            return model, ids


@GREEDY.check("returns the prompt and the new tokens", length=(1, 5, 4), num_new=(1, 3, 0))
def keeps_the_prompt(answer: Any, draw: Draw, length: int, num_new: int) -> None:
    """One token joins the text per pass; the prompt stays in front of it, and the types stay integers."""
    left = MOST_PASSES

    def counted(batch: Any, **options: Any) -> Counted:
        nonlocal left
        left -= 1
        if not left:
            reject(f"it still calls the model after {MOST_PASSES} passes for {num_new} new tokens; does the loop end?")
        return count_up(batch)

    ids = draw.integers(0, 10, length)
    got = answer.greedy(counted, ids.clone(), num_new, NO_END)
    compare_shapes(got, ids.new_zeros(length + num_new), what="the prompt followed by the new tokens")
    compare(got[:length], ids, what="the prompt", axes=("position",))


@GREEDY.check(
    "picks the likeliest next token",
    {"length": 1},
    {"length": 2},
    {"length": 6},
    {"length": 9},
    {"length": 3, "level": 2000},
    {"length": 3, "level": -2000},
)
def picks_the_likeliest(answer: Any, draw: Draw, length: int, level: int = 0) -> None:
    """Of the T rows one predicts the next token; of that row's entries, take the place of the largest."""
    if level:  # beyond what exp can take, and below what it keeps
        table = level + 100 * draw.normal(100, 100)
        table[:, 0] = level - 1000  # the place that argmax finds in a row of NaN, never right by luck
        ids = draw.integers(0, 100, length)
        got = int(answer.greedy(lambda batch, **options: Counted(table[batch]), ids.clone(), 1, NO_END)[-1])
        if got != int(table[ids[-1]].argmax()):
            reject(f"with logits about {level}, the first new token is {got}, expected {int(table[ids[-1]].argmax())}")
        return
    for _ in range(3):
        model, ids = model_and_prompt(draw, lambda: draw.integers(0, 100, length), 1)
        expected = int(transformers_greedy(model, ids, 1)[-1])
        got = int(answer.greedy(model, ids.clone(), 1, NO_END)[-1])
        if got != expected:
            reject(f"the first new token is {got}, expected {expected}")


@GREEDY.check("matches transformers token for token", length=(1, 5, 70), num_new=(4, 12, 80))
def matches_transformers(answer: Any, draw: Draw, length: int, num_new: int) -> None:
    """What was chosen must be part of the text that the next pass reads."""
    model, ids = model_and_prompt(draw, lambda: draw.integers(0, 100, length), num_new)
    expected = transformers_greedy(model, ids, num_new)
    compare(answer.greedy(model, ids.clone(), num_new, NO_END), expected, what="the text", axes=("position",))


@GREEDY.check("stops after the end token", length=(2, 3, 6, 6), at=(1, 3, 0, -1))
def stops_at_the_end(answer: Any, draw: Draw, length: int, at: int) -> None:
    """The end token is part of the text: append it first, then stop. Only a token that was just written can end the
    text, not one of the prompt."""
    # The end token is whichever the model writes as its `at`-th; it may have come up before.
    # With `at` 0 it is a token of the prompt, with -1 the prompt's last one, that the model does not write at once.
    num_new = max(at, 0) + 6
    model, ids = model_and_prompt(draw, lambda: draw.permutation(100)[:length], num_new)
    eos_id = int(transformers_greedy(model, ids, max(1, at))[-1])
    if at == 0:
        eos_id = next(token for token in ids.tolist() if token != eos_id)
    if at < 0:
        while eos_id == int(ids[-1]):
            model, ids = model_and_prompt(draw, lambda: draw.permutation(100)[:length], num_new)
            eos_id = int(transformers_greedy(model, ids, 1)[-1])
        eos_id = int(ids[-1])
    expected = transformers_greedy(model, ids, num_new, eos_id)
    got = answer.greedy(model, ids.clone(), num_new, eos_id)
    shown = ("expected " + str(expected[length:].tolist()), "got      " + str(got[length:].tolist()))
    if len(got) > len(expected):
        reject(f"the text goes on after its end token {eos_id}", *shown)
    if at < 0 and len(got) < len(expected):
        reject(f"the prompt ends with the end token {eos_id}, and that ended the text", *shown)
    if len(got) < len(expected):
        missing = len(expected) - len(got)
        reject(f"the text stops {missing} token{'s' * (missing != 1)} before its end token {eos_id}", *shown)
    compare(got, expected, what="the text", axes=("position",))
    counting = torch.eye(600).roll(1, 1)  # says the next id; of those above 256 Python makes a new object each time
    got = answer.greedy(lambda batch, **options: Counted(counting[batch]), torch.tensor([500]), 9, 503)
    compare(got, torch.arange(500, 504), what="a text that counts up from 500 to its end token, 503,")


@GREEDY.check("does what its examples say")
def does_what_its_examples_say(answer: Any, draw: Draw) -> None:
    """Follow the example with pencil and paper: after 3, 4 the model predicts 5, then 6."""
    for prompt, num_new, eos_id, expected in (
        ([3, 4], 2, 0, [3, 4, 5, 6]),
        ([3, 4], 8, 7, [3, 4, 5, 6, 7]),
        ([3, 4], 0, 7, [3, 4]),
        ([3, 4], 3, 4, [3, 4, 5, 6, 7]),
        ([8], 5, 0, [8, 9, 0]),
    ):
        got = answer.greedy(count_up, torch.tensor(prompt), num_new, eos_id)
        what = f"greedy(count_up, tensor({prompt}), {num_new}, eos_id={eos_id})"
        compare_shapes(got, torch.tensor(expected), what=what)
        compare(got, torch.tensor(expected), what=what, axes=("position",))


@GREEDY.check("starts anew in each call")
def keeps_nothing_between_calls(answer: Any, draw: Draw) -> None:
    """Nothing may be kept between calls: the model and the end token come in as arguments."""
    # The same prompt for two models, and for one of them again with an end token.
    seed = draw.integer(0, NUM_SEEDS)
    models = [random_llama(seed), random_llama((seed + 1) % NUM_SEEDS)]
    while True:
        ids = draw.integers(0, 100, 4)
        if all(is_decided(model, transformers_greedy(model, ids, 5), 5) for model in models):
            break
    end = int(transformers_greedy(models[0], ids, 2)[-1])
    for model, eos_id in ((models[0], NO_END), (models[1], NO_END), (models[0], end), (models[0], NO_END)):
        expected = transformers_greedy(model, ids, 5, None if eos_id == NO_END else eos_id)
        got = answer.greedy(model, ids.clone(), 5, eos_id)
        what = "the text, of a prompt that an earlier call had with another model or end token,"
        compare(got, expected, what=what, axes=("position",))


@GREEDY.check("takes one pass per new token", num_new=(4, 4, 8), ends=(False, True, True))
def takes_one_pass_per_token(answer: Any, draw: Draw, num_new: int, ends: bool) -> None:
    """A pass whose token is not appended is wasted: none follows the last token or the end token."""
    num_passes = 0

    def counted(batch: Any, **options: Any) -> Counted:
        nonlocal num_passes
        num_passes += 1
        return count_up(batch)

    start = draw.integer(0, 9 - num_new // 2) if ends else 0
    answer.greedy(counted, torch.tensor([start]), num_new, start + num_new // 2 if ends else NO_END)
    num_written = num_new // 2 if ends else num_new
    if num_passes != num_written:
        then = ", the last of which is the end token" if ends else ""
        reject(f"{num_passes} passes for {num_written} new tokens{then}", "each new token takes one pass, and no more")


@GREEDY.check("leaves the prompt alone")
def leaves_the_prompt_alone(answer: Any, draw: Draw) -> None:
    """`torch.cat` makes a new tensor; use it."""
    ids = draw.integers(0, 10, 4)
    with unchanged(ids=ids):
        answer.greedy(count_up, ids, 3, NO_END)
