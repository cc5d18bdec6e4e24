"""A cache in a model of one attention block: attention behind a cache, one cached pass, generation."""

import math
from typing import Any

import torch
from torch import Tensor

from twophase_labs.autoregression.gap import times_a_token_read
from twophase_labs.autoregression.toy import KeysValues, ToyModel
from twophase_labs.machine.checks import Draw, compare, compare_shapes, fresh, reject, unchanged
from twophase_labs.machine.exercise import cases, exercise
from twophase_labs.machine.questions import Number

ATTENTION = cases(new=(1, 4, 1, 3, 5, 70), cached=(0, 0, 5, 4, 150, 3))
LEVELS = cases(new=(3, 3), cached=(4, 4), score=(-100_000, 100_000))

ATTEND = exercise(
    "1.5", "Attention behind a cache", "attend", points=5, minutes=10, lines=4, difficulty=2, time_limit_s=60
)
ATTEND.objective = "mask attention when there are fewer queries than keys"
ATTEND.hints = (
    "Try queries of zero: all visible keys weigh the same, and the result is a mean you can check by hand.",
    "S keys stand at positions 0 to S - 1. The L queries are the last of these positions, not the first.",
    "Query row i stands at position S - L + i and sees the keys up to its own: `scores.masked_fill(~visible, "
    "-torch.inf)`, and then a softmax over the keys, the last axis.",
)


def naive_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A query at a time, over the keys up to its own position, in float64."""
    offset = k.shape[1] - q.shape[1]
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=torch.float64)
    for sequence in range(q.shape[0]):
        for row in range(q.shape[1]):
            keys, values = (x[sequence, : offset + row + 1].double() for x in (k, v))
            scores = keys @ q[sequence, row].double() / math.sqrt(q.shape[2])
            weights = (scores - scores.max()).exp()
            out[sequence, row] = weights @ values / weights.sum()
    return out.float()


def naive_pass(toy: ToyModel, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, keys and values of all positions; does not touch the model's counter."""
    x = toy.tokens[ids] + toy.positions[: ids.shape[1]]
    q, k, v = x @ toy.w_q, x @ toy.w_k, x @ toy.w_v
    return (x + naive_attention(q, k, v) @ toy.w_o) @ toy.w_out, k, v


def naive_generate(toy: ToyModel, ids: Tensor, num_new: int) -> Tensor:
    for _ in range(num_new):
        logits, _, _ = naive_pass(toy, ids)
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
    return ids


def queries_keys_values(draw: Draw, new: int, cached: int) -> tuple[Tensor, Tensor, Tensor]:
    batch, width = 1 + (new + cached) % 3, draw.integer(3, 20) if new < 64 else draw.integer(65, 90)
    q, k, v = (draw.normal(batch, length, width) for length in (new, cached + new, cached + new))
    return q, k, v


@ATTEND.check("returns one vector per query", *ATTENTION)
def returns_a_vector_per_query(answer: Any, draw: Draw, new: int, cached: int) -> None:
    """L queries against S keys give an L x S table of weights, and L vectors."""
    q, k, v = queries_keys_values(draw, new, cached)
    compare_shapes(answer.attend(q, k, v), q, axes=("sequence", "query", "feature"))


@ATTEND.check("averages the values", *ATTENTION)
def averages(answer: Any, draw: Draw, new: int, cached: int) -> None:
    """A query's weights add up to 1 over the keys it sees: softmax over the last axis, after masking. NaN means a
    query that sees no key at all, not even its own."""
    q, k, v = queries_keys_values(draw, new, cached)
    got = answer.attend(q, k, torch.ones_like(v))
    compare(got, torch.ones_like(q), what="the average of values that are all 1", axes=("sequence", "query", "feature"))


@ATTEND.check("hides the future", {"new": 2}, {"new": 5}, {"new": 2, "far": True}, {"new": 5, "far": True})
def hides_the_future(answer: Any, draw: Draw, new: int, far: bool = False) -> None:
    """A later key must not reach an earlier query: its score is set to minus infinity before the softmax, and
    before a maximum is taken. Subtract each query's own maximum: with another, `exp` can overflow."""
    q, k, v = queries_keys_values(draw, new, 0)
    if far:  # the first query would look at nothing but the last key; the last query does
        q[:, -1] = q[:, 0]
    before = answer.attend(q.clone(), k.clone(), v.clone())
    k[:, -1], v[:, -1] = draw.normal(*k[:, -1].shape), draw.normal(*v[:, -1].shape)
    if far:
        k[:, -1] = 1e5 * q[:, 0]
    after = answer.attend(q, k, v)
    what = "the result of an earlier query, with another last key and value,"
    compare(after[:, :-1], before[:, :-1], what=what, axes=("sequence", "query", "feature"))


@ATTEND.check("sees the past and itself", *ATTENTION)
def sees_the_past_and_itself(answer: Any, draw: Draw, new: int, cached: int, score: int = 0) -> None:
    """The queries are the last L of S positions: the first query stands at position S - L, and sees its own key too."""
    # All scores are alike, the hidden ones too: the result is a plain mean of what is visible.
    q, k, v = queries_keys_values(draw, new, cached)
    if score:
        k = torch.ones_like(k)
    q = torch.full_like(q, score / math.sqrt(q.shape[2]))
    means = v.cumsum(1) / torch.arange(1, v.shape[1] + 1)[:, None]
    what = "with all scores equal the result should be the plain mean of the visible values; it"
    # exp(score - logsumexp) is right, too, and as exact as a score of this size can be.
    rtol, atol = (2e-2, 2e-3) if score else (None, 1e-4)
    axes = ("sequence", "query", "feature")
    compare(answer.attend(q, k, v), means[:, cached:], what=what, axes=axes, rtol=rtol, atol=atol)


ATTEND.check(
    "survives scores of any size",
    *LEVELS,
    hint="A hidden score is minus infinity: any number is larger than some visible score. NaN: `exp` of large scores "
    "is infinite, of small ones zero; `softmax` subtracts each row's maximum first.",
)(sees_the_past_and_itself)


@ATTEND.check("matches a loop over queries", *ATTENTION)
def matches_a_loop(answer: Any, draw: Draw, new: int, cached: int) -> None:
    """The right keys are visible, so look at the scores: dot products, over the square root of the width."""
    q, k, v = queries_keys_values(draw, new, cached)
    expected = naive_attention(q, k, v)
    compare(answer.attend(q, k, v), expected, what="the attention", axes=("sequence", "query", "feature"))


@ATTEND.check("leaves its inputs alone")
def leaves_inputs_alone(answer: Any, draw: Draw) -> None:
    """Operations ending in _ write in place."""
    q, k, v = queries_keys_values(draw, 2, 3)
    with unchanged(q=q, k=k, v=v):
        answer.attend(q, k, v)


CHUNKS = cases(chunks=((1,), (1, 1, 1), (4, 1, 1), (3, 2, 5), (70, 3, 1)))
GROWING = CHUNKS[1:]

STEP = exercise(
    "1.6", "One pass with a cache", "step", points=5, minutes=9, lines=5, difficulty=2, uses=("1.5",), time_limit_s=60
)
STEP.objective = "compute only what is new, and keep it"
STEP.hints = (
    "Feed one token at a time and compare with one pass over all: from which position on do the logits differ?",
    "How many tokens are in the cache already? That is the position of the first new token.",
    "Project `x`, the new tokens only. New keys go behind the old ones, along dimension 1; so do the values.",
)


def model_and_text(draw: Draw, length: int, batch: int = 2) -> tuple[ToyModel, Tensor]:
    toy = ToyModel(draw.integer(0, 1000), width=draw.choice((16, 24, 32)), num_positions=512)
    return toy, draw.integers(0, 100, batch, length)


def one_step(answer: Any, toy: ToyModel, ids: Tensor, cache: KeysValues) -> tuple[Tensor, KeysValues]:
    got = answer.step(toy, ids, cache)
    pair = got[1] if isinstance(got, tuple | list) and len(got) == 2 else None
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        reject("a step returns two things: its logits, and the cache as a pair (keys, values)")
    return got[0], (pair[0], pair[1])


def feed(answer: Any, toy: ToyModel, ids: Tensor, chunks: tuple[int, ...]) -> tuple[Tensor, KeysValues]:
    """The text in chunks, each with the cache that the one before returned."""
    cache, rows = toy.empty_cache(ids.shape[0]), []
    for chunk in ids.split(list(chunks), dim=1):
        logits, cache = one_step(answer, toy, chunk, cache)
        rows.append(logits)
    return torch.cat(rows, dim=1), cache


@STEP.check("answers for the new tokens", *CHUNKS)
def answers_for_new_tokens(answer: Any, draw: Draw, chunks: tuple[int, ...]) -> None:
    """A step gives one row of logits per new token, however many are cached."""
    toy, ids = model_and_text(draw, sum(chunks))
    cache = toy.empty_cache(2)
    for chunk in ids.split(list(chunks), dim=1):
        logits, cache = one_step(answer, toy, chunk, cache)
        compare_shapes(logits, torch.zeros(2, chunk.shape[1], 100), what="the table of logits")


@STEP.check("caches every token", *CHUNKS)
def caches_every_token(answer: Any, draw: Draw, chunks: tuple[int, ...]) -> None:
    """The cache that is returned holds what was in it and what is new: it grows, along dimension 1."""
    toy, ids = model_and_text(draw, sum(chunks))
    _, keys, values = naive_pass(toy, ids)
    _, cache = feed(answer, toy, ids, chunks)
    for got, expected, what in zip(cache, (keys, values), ("keys", "values"), strict=True):
        compare_shapes(got, expected, what=f"the cache of {what}")


@STEP.check("starts from an empty cache", length=(1, 6))
def starts_from_nothing(answer: Any, draw: Draw, length: int) -> None:
    """With nothing cached this is the pass without a cache. Two things decide it: at which position the first new
    token stands (the tokens in the cache, not the texts), and what q, k and v are made from."""
    toy, ids = model_and_text(draw, length)
    expected, _, _ = naive_pass(toy, ids)
    got, _ = feed(answer, toy, ids, (length,))
    compare(got, expected, what="the logit", axes=("sequence", "position", "token"), rtol=1e-3, atol=1e-3)


@STEP.check("projects new tokens only", *CHUNKS)
def projects_new_tokens_only(answer: Any, draw: Draw, chunks: tuple[int, ...]) -> None:
    """What the cache holds is not computed again: project each new token once and no other."""
    toy, ids = model_and_text(draw, sum(chunks))
    feed(answer, toy, ids, chunks)
    compare(toy.num_projected, ids.numel(), what="the number of tokens projected")


@STEP.check("caches the right keys and values", *GROWING)
def caches_the_right_rows(answer: Any, draw: Draw, chunks: tuple[int, ...]) -> None:
    """Two things can be off: the position of a new token (it comes after those cached), or the order (old before
    new)."""
    toy, ids = model_and_text(draw, sum(chunks))
    _, keys, values = naive_pass(toy, ids)
    _, cache = feed(answer, toy, ids, chunks)
    for got, expected, what in zip(cache, (keys, values), ("keys", "values"), strict=True):
        compare(got, expected, what=f"the cache of {what}", axes=("sequence", "position", "feature"))


@STEP.check("gives the logits of one pass", *GROWING)
def matches_one_pass(answer: Any, draw: Draw, chunks: tuple[int, ...]) -> None:
    """The cache is right; so the new queries must attend to all of it, old keys and new."""
    toy, ids = model_and_text(draw, sum(chunks))
    expected, _, _ = naive_pass(toy, ids)
    got, _ = feed(answer, toy, ids, chunks)
    compare(got, expected, what="the logit", axes=("sequence", "position", "token"), rtol=1e-3, atol=1e-3)


@STEP.check("knows one text from another")
def knows_one_text_from_another(answer: Any, draw: Draw) -> None:
    """All that a step may know of the past is in the cache it is given: its length is the position."""
    # Two texts of different lengths in turn on one model, and a text of another model between them.
    toy, ids = model_and_text(draw, 7, batch=3)
    other, others_ids = model_and_text(draw, 9)
    expected, others_expected = naive_pass(toy, ids)[0], naive_pass(other, others_ids)[0]
    first, cache = one_step(answer, toy, ids[:, :4], toy.empty_cache(3))
    others, others_cache = one_step(answer, other, others_ids[:, :6], other.empty_cache(2))
    third, _ = one_step(answer, toy, ids[:1, :2], toy.empty_cache(1))
    alike = draw.integers(0, 100, *ids.shape)  # on the same model, of the same size
    fourth, alike_cache = one_step(answer, toy, alike[:, :4], toy.empty_cache(3))
    again, alike_again, others_again = (
        one_step(answer, toy, ids[:, 4:], cache)[0],
        one_step(answer, toy, alike[:, 4:], alike_cache)[0],
        one_step(answer, other, others_ids[:, 6:], others_cache)[0],
    )
    what = "the logit, with another text computed between two steps,"
    for got, wanted in (
        (first, expected[:, :4]),
        (third, expected[:1, :2]),
        (fourth, naive_pass(toy, alike)[0][:, :4]),
        (again, expected[:, 4:]),
        (alike_again, naive_pass(toy, alike)[0][:, 4:]),
        (others, others_expected[:, :6]),
        (others_again, others_expected[:, 6:]),
    ):
        compare(got, wanted, what=what, axes=("sequence", "position", "token"), rtol=1e-3, atol=1e-3)


@STEP.check("leaves the given cache alone")
def leaves_the_cache_alone(answer: Any, draw: Draw) -> None:
    """Return a new pair of tensors; another continuation may start from the old one."""
    # Two continuations of one cache do not disturb each other.
    toy, ids = model_and_text(draw, 5)
    _, (keys, values) = feed(answer, toy, ids, (5,))
    with unchanged(keys=keys, values=values):
        _, (longer, more) = one_step(answer, toy, ids[:, :2], (keys, values))
    fresh(longer, keys=keys)
    fresh(more, values=values)


TEXTS = cases(length=(1, 1, 6, 70), num_new=(1, 5, 9, 4))
SKELETON = """In words of code:
    ids = new = prompt
    num_new times:
        logits, cache = one step over `new`, behind `cache`
        new = the likeliest token of the last row of each sequence, as [B, 1]
        ids = ids with `new` behind it
    return ids"""

GENERATE = exercise(
    "1.7", "Generate with a cache", "generate", points=5, minutes=9, lines=6, difficulty=2, time_limit_s=60
)
GENERATE.objective = "split generation into one prefill and many decode steps"
GENERATE.hints = (
    "What does the first pass have to read? And what is new to the model in the pass after it? Print the shape of "
    "what you feed: first [B, T], then [B, 1] each time.",
    "The first pass reads the prompt. Each later pass reads the one token that the pass before it chose, and is "
    "given the cache that the pass before it returned. `logits[:, -1:].argmax(-1)` has the shape [B, 1]: it can be "
    "appended, and be fed next.",
    SKELETON,
)


class ToyStep:
    """The toy model as `step(new_ids, cache)`, computed naively; notes what it is fed.

    The cache is the tensor of the tokens read so far. `fed` has the pieces in order.
    """

    def __init__(self, toy: ToyModel) -> None:
        self.toy = toy
        self.fed: list[Tensor] = []

    def __call__(self, new_ids: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        if not isinstance(new_ids, Tensor) or new_ids.ndim != 2 or new_ids.shape[0] != cache.shape[0]:
            shape = list(new_ids.shape) if isinstance(new_ids, Tensor) else type(new_ids).__name__
            reject(f"`step` was given new_ids of shape {shape}, expected [{cache.shape[0]}, L]")
        if new_ids.shape[1] == 0:
            reject("`step` was given no new token")
        self.fed.append(new_ids.clone())
        ids = torch.cat([cache, new_ids], dim=1)
        logits, _, _ = naive_pass(self.toy, ids)
        return logits[:, cache.shape[1] :], ids


def generated(answer: Any, toy: ToyModel, ids: Tensor, num_new: int) -> tuple[Any, ToyStep]:
    step = ToyStep(toy)
    return answer.generate(step, ids[:, :0].clone(), ids.clone(), num_new), step


@GENERATE.check("continues the prompt", {"length": 4, "num_new": 0}, *TEXTS)
def continues_the_prompt(answer: Any, draw: Draw, length: int, num_new: int) -> None:
    """The text grows by one column per pass, behind the prompt. Feed [B, T] first, then one column [B, 1] each time."""
    toy, ids = model_and_text(draw, length, batch=draw.integer(1, 4))
    got, _ = generated(answer, toy, ids, num_new)
    compare_shapes(got, ids.new_zeros(len(ids), length + num_new), what="the text")
    compare(got[:, :length], ids, what="the prompt", axes=("sequence", "position"))


@GENERATE.check("writes what recomputing writes", *TEXTS)
def matches_recomputing(answer: Any, draw: Draw, length: int, num_new: int) -> None:
    """Hand each step the cache that the step before returned, feed what is not in it yet, and choose from the last
    row."""
    toy, ids = model_and_text(draw, length, batch=3 if length > 1 else 66)
    expected = naive_generate(toy, ids, num_new)
    got, _ = generated(answer, toy, ids, num_new)
    compare(got, expected, what="the text", axes=("sequence", "position"))


@GENERATE.check("reads each token once", *TEXTS)
def reads_each_token_once(answer: Any, draw: Draw, length: int, num_new: int) -> None:
    """The text is right, the work is not: some pass read tokens that an earlier pass had read."""
    toy, ids = model_and_text(draw, length)
    got, step = generated(answer, toy, ids, num_new)
    lengths = [piece.shape[1] for piece in step.fed]
    total = length + num_new
    if not total - 1 <= sum(lengths) <= total:
        what = f"{sum(lengths)} tokens of each text were read, for a text of {length} + {num_new}"
        reject(f"{what}, expected {total - 1}", f"in pieces of {lengths}", "(the last token need not be read)")
    read = torch.cat(step.fed, dim=1)
    compare(read, got[:, : read.shape[1]], what="what the steps read, in order", axes=("sequence", "position"))


@GENERATE.check("reads the prompt in one pass", length=(2, 6), num_new=(1, 9))
def reads_the_prompt_at_once(answer: Any, draw: Draw, length: int, num_new: int) -> None:
    """The prompt is known: one step can read all of it (the prefill)."""
    toy, ids = model_and_text(draw, length)
    _, step = generated(answer, toy, ids, num_new)
    lengths = [piece.shape[1] for piece in step.fed]
    if lengths[0] != length:
        reject(
            f"the first step read {lengths[0]} of the prompt's {length} tokens, expected all of them",
            f"the steps read {lengths} tokens",
        )


@GENERATE.check("writes as many tokens as asked", num_new=(105, 66, 66), token=(None, 7, 0))
def goes_on(answer: Any, draw: Draw, num_new: int, token: int | None) -> None:
    """There is no end token here: a text has num_new tokens more, whatever they are."""
    # A model that says one token without end, or counts through all of them: nothing ends a text early.
    if token is None:
        prompt = draw.integers(0, 100, 1, 2)

        def count(new_ids: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
            logits = torch.nn.functional.one_hot((new_ids + 1) % 100, 100).float()
            return logits, torch.cat([cache, new_ids], dim=1)

        got = answer.generate(count, prompt[:, :0].clone(), prompt.clone(), num_new)
        counted = torch.cat([prompt, (prompt[:, -1:] + torch.arange(1, num_new + 1)) % 100], dim=1)
        compare(got, counted, what="the text", axes=("sequence", "position"))
        return
    toy, ids = model_and_text(draw, 3)
    toy.tokens[:, 0], toy.positions[:, 0], toy.w_o[:, 0] = 20, 0, 0
    toy.w_out[0] = 0
    toy.w_out[0, token] = 100
    expected = torch.cat([ids, torch.full((2, num_new), token)], dim=1)
    compare(generated(answer, toy, ids, num_new)[0], expected, what="the text", axes=("sequence", "position"))


@GENERATE.check("does what its examples say")
def does_what_its_examples_say(answer: Any, draw: Draw) -> None:
    """The cache may be anything, even a number: only `step` looks into it."""

    def after(new_ids: Tensor, num_read: Any) -> tuple[Tensor, Any]:
        return torch.nn.functional.one_hot((new_ids + 1) % 10, 10), num_read + new_ids.shape[1]

    for prompt, num_new, expected in (
        ([[3]], 2, [[3, 4, 5]]),
        ([[3, 7], [1, 1]], 2, [[3, 7, 8, 9], [1, 1, 2, 3]]),
        ([[5, 2]], 0, [[5, 2]]),
    ):
        got = answer.generate(after, 0, torch.tensor(prompt), num_new)
        what = f"generate(after, 0, tensor({prompt}), {num_new})"
        compare(got, torch.tensor(expected), what=what, axes=("sequence", "position"))


@GENERATE.check("starts anew in each call")
def keeps_nothing_between_calls(answer: Any, draw: Draw) -> None:
    """Nothing may be kept between calls: the model and the cache come in as arguments."""
    # Two models and two texts in turn, one of them twice.
    jobs = [model_and_text(draw, 5), model_and_text(draw, 3, batch=1)]
    for toy, ids in (*jobs, jobs[0]):
        expected = naive_generate(toy, ids, 4)
        got, _ = generated(answer, toy, ids, 4)
        compare(got, expected, what="the text, in a second and third call,", axes=("sequence", "position"))


@GENERATE.check("leaves the prompt alone")
def leaves_the_prompt_alone(answer: Any, draw: Draw) -> None:
    """Make a new tensor; do not write into it."""
    toy, ids = model_and_text(draw, 4)
    with unchanged(prompt=ids):
        answer.generate(ToyStep(toy), ids[:, :0].clone(), ids, 3)


GUESS_1_8 = exercise(
    "1.8", "The gap that is left", kind="prediction", points=1, minutes=2, needs=("model",), time_limit_s=120
)
GUESS_1_8.objective = "predict what a cache cannot repair"
GUESS_1_8.hints = (
    "With the cache the pass computes one position instead of the whole text. What else does a pass do?",
)
GUESS_1_8.question = Number(
    times_a_token_read,
    factor=2,
    unit="times",
    hint="A pass multiplies with all weights of the model, for one token as for forty.",
)
