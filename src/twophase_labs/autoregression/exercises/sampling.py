"""From logits to a token: a draw, top-p, the end of a text."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, compare_shapes, reject, unchanged
from twophase_labs.machine.exercise import cases, exercise

ROWS = cases(rows=(1, 3, 2), size=(5, 12, 400))

DRAW = exercise("1.13", "Draw a token", "draw", points=3, minutes=5, lines=2, difficulty=2)
DRAW.objective = "sample from a distribution with one random number"
DRAW.hints = (
    "Draw by hand: probabilities 0.2, 0.5, 0.3 and u = 0.6.",
    "Where does the running sum pass u? Nothing of probability 0 may be hit, not even by u = 0.",
    "Count the tokens whose running sum is still <= u times the total.",
)


def probabilities(row: Tensor) -> list[float]:
    """Softmax of one row, term by term in Python."""
    logits = row.tolist()
    largest = max(logits)
    weights = [math.exp(x - largest) for x in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


def keep(row: Tensor, kept: set[int]) -> list[float]:
    """The row's distribution when only these tokens are kept."""
    p = probabilities(row)
    mass = sum(p[token] for token in kept)
    return [p[token] / mass if token in kept else 0.0 for token in range(len(p))]


def ranked(row: Tensor) -> list[int]:
    """Tokens, the likeliest first."""
    return sorted(range(len(row)), key=lambda token: -float(row[token]))


def compare_distributions(got: Any, logits: Tensor, expected: Sequence[Sequence[float]]) -> None:
    """What softmax makes of `got` against the distributions expected, row by row."""
    compare_shapes(got, logits, axes=("row", "token"))
    for name, bad in (("NaN", got.isnan()), ("plus infinity", got == torch.inf)):
        if bool(bad.any()):
            row, token = bad.nonzero()[0].tolist()
            reject(f"row {row}: the logit of token {token} is {name}; it was {float(logits[row, token]):g}")
    found = got.double().softmax(-1)
    for r, row in enumerate(expected):
        if not bool((got[r] > -torch.inf).any()):
            reject(f"row {r}: no token is left", f"its likeliest had probability {max(probabilities(logits[r])):.3g}")
        for token, wanted in enumerate(row):
            _compare_token(r, token, float(found[r, token]), wanted, logits)
            if wanted == 0 and got[r, token] != -torch.inf:
                reject(f"row {r}: token {token} is dropped with the logit {float(got[r, token]):g}, expected -inf")


def _compare_token(row: int, token: int, found: float, wanted: float, logits: Tensor) -> None:
    if abs(found - wanted) <= 1e-5:
        return
    p = probabilities(logits[row])[token]
    rank = ranked(logits[row]).index(token) + 1
    where = f"row {row}: token {token} (number {rank} of {logits.shape[1]}, probability {p:.4g})"
    if found == 0:
        reject(f"{where} is dropped, and should be kept")
    if wanted == 0:
        reject(f"{where} is kept, and should be dropped", f"after the processor it still has probability {found:.4g}")
    reject(f"{where} has probability {found:.4g} after the processor, expected {wanted:.4g}")


def leaves_alone(processor: Callable[[Any, Tensor], Any]) -> Callable[[Any, Draw], None]:
    """The test that a processor does not write to the logits it is given."""

    def test(answer: Any, draw: Draw) -> None:
        logits = 3 * draw.normal(2, 9)
        with unchanged(logits=logits):
            processor(answer, logits)

    return test


IN_PLACE = (
    "The engine may still need the logits as they were (log-probabilities, another request): give back a new tensor."
)


@DRAW.check("takes the first token whose running sum exceeds u", *ROWS)
def inverts_the_cdf(answer: Any, draw: Draw, rows: int, size: int) -> None:
    """A running sum along the vocabulary of each row; the token is where it first exceeds u."""
    probs = (2 * draw.normal(rows, size)).softmax(-1)
    for _ in range(20):
        u = draw.uniform(rows).double()
        got = answer.draw(probs, u)
        expected = []
        for row, target in zip(probs.double().tolist(), u.tolist(), strict=True):
            total, token = row[0], 0
            while total <= target * sum(row):
                token += 1
                total += row[token]
            expected.append(token)
        compare(got, torch.tensor(expected), what="the token", axes=("row",), any_dtype=True)


@DRAW.check("never draws what is impossible", u=(0.0, 0.25, 0.9999999999))
def skips_impossible_tokens(answer: Any, draw: Draw, u: float) -> None:
    """With u = 0 a token of probability 0 must not win (`<=` against `<`); with u close to 1 the sum may end just
    below u, so compare with u times the last sum."""
    probs = torch.tensor([[0.0, 0.0, 0.25, 0.0, 0.75, 0.0, 0.0]])
    (token,) = answer.draw(probs, torch.tensor([u], dtype=torch.float64)).tolist()
    if not 0 <= token < probs.shape[1]:
        reject(f"u = {u:.8g} draws token {token}, and there are only tokens 0 to {probs.shape[1] - 1}")
    if float(probs[0, token]) == 0:
        reject(f"u = {u:.8g} draws token {token}, whose probability is 0", f"probabilities {probs[0].tolist()}")


@DRAW.check("leaves its inputs alone")
def draw_leaves_its_inputs_alone(answer: Any, draw: Draw) -> None:
    """The sampler may need the probabilities as they were: `probs / total` makes a new tensor, `probs /= total`
    does not."""
    probs, u = draw.uniform(3, 6), draw.uniform(3).double()  # rows that do not add up to 1
    with unchanged(probs=probs, u=u):
        answer.draw(probs, u)


@DRAW.check("draws each token as often as its probability", num_draws=(20_000,))
def draws_as_often_as_likely(answer: Any, draw: Draw, num_draws: int) -> None:
    # The statistic has mean 7 (8 tokens); a right answer exceeds 60 once in a thousand million runs.
    """Compare the counts with probability times draws."""
    probs = draw.normal(8).softmax(-1)
    u = torch.rand(num_draws, generator=draw.generator, dtype=torch.float64)
    tokens = answer.draw(probs.expand(num_draws, 8), u)
    counts = torch.bincount(tokens, minlength=8).double()
    expected = probs.double() * num_draws
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    if chi_square > 60:
        token = int(((counts - expected) ** 2 / expected).argmax())
        reject(
            f"token {token} is drawn {int(counts[token])} times in {num_draws:,}, expected about {expected[token]:.0f}",
            f"chi-square over 8 tokens: {chi_square:.1f}",
        )


@DRAW.check("takes u as a share of the last sum", total=(0.5, 1.0, 2.0))
def scales_by_the_last_sum(answer: Any, draw: Draw, total: float) -> None:
    """The running sum need not end at 1: compare with u times the last sum."""
    # Probabilities that add up to something else than 1, and to something else in each row.
    probs = torch.tensor([[total], [1 / total]]) * torch.tensor([[0.25, 0.25, 0.5], [0.5, 0.5, 0.0]])
    got = answer.draw(probs, torch.tensor([0.4, 0.875], dtype=torch.float64))
    what = f"the token of probabilities that add up to {total:g} in row 0 and {1 / total:g} in row 1"
    compare(got, torch.tensor([1, 1]), what=what, axes=("row",), any_dtype=True)


@DRAW.check("adds in float64", token=(200, 700))
def adds_in_double_precision(answer: Any, draw: Draw, token: int) -> None:
    """A running sum in float32 loses what is smaller than 6e-8 of it: `probs.double()` before adding."""
    # Tokens of 1e-9 behind one of 0.9: in float32 their running sum stands still.
    probs = torch.full((1, 1000), 1e-9)
    probs[0, 0], probs[0, -1] = 0.9, 0.1
    double = probs[0].double()
    u = (double[:token].sum() + double[token] / 2) / double.sum()
    compare(answer.draw(probs, u[None]), torch.tensor([token]), what="the token", axes=("row",), any_dtype=True)


@DRAW.check("does what its example says")
def knows_the_example(answer: Any, draw: Draw) -> None:
    """Draw the two tokens by hand."""
    got = answer.draw(torch.tensor([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0]]), torch.tensor([0.6, 0.0]))
    compare(got, torch.tensor([1, 1]), what="the token of the card's example", axes=("row",), any_dtype=True)


SKELETON = """In words of code:
    probs = softmax of each row
    ordered = each row's probs, the largest first
    before = for each of these, the sum of those in front of it
    lowest = for each row the smallest of `ordered` whose `before` is below p
    return the logits, with -inf where probs < lowest (a new tensor)"""

TOP_P = exercise("1.14", "Top-p", "keep_top_p", points=5, minutes=9, lines=5, difficulty=3, time_limit_s=60)
TOP_P.objective = "keep the smallest set of tokens with a given mass"
TOP_P.hints = (
    "Probabilities 0.5, 0.3, 0.2 and p = 0.6: which tokens stay? And which with p = 0.05?",
    "Put each row's probabilities in descending order. A token stays while the likelier ones before it do not reach "
    "p yet: so the one with which the sum reaches p stays, and the likeliest always does. The sort's indices say "
    "where in the vocabulary each decision belongs: `scatter` takes them back.",
    SKELETON,
)


@TOP_P.check("keeps the likeliest token whatever p is", p=(0.05, 0.6))
def keeps_the_best(answer: Any, draw: Draw, p: float) -> None:
    """The first token crosses p by itself: it stays, or nothing could be drawn."""
    for shift in range(4):
        row = torch.tensor([[0.0, 5.0, 1.0, 2.0]]).roll(shift, -1)
        best = ranked(row[0])[0]
        got = answer.keep_top_p(row.clone(), p)
        if torch.is_tensor(got) and got.shape == row.shape and got[0].isfinite().sum() == 1 and got[0, best].isneginf():
            reject(
                f"the likeliest token, {best}, is dropped, and another one stays",
                "as many stay as should: a mask made in sorted order must be brought back into the vocabulary's order",
            )
        compare_distributions(got, row, [keep(row[0], {best})])


def nucleus(row: Tensor, p: float) -> set[int]:
    """The smallest set of likeliest tokens with at least mass p."""
    kept: set[int] = set()
    mass, each = 0.0, probabilities(row)
    for token in ranked(row):
        kept.add(token)
        mass += each[token]
        if mass >= p:
            return kept
    return kept


def thresholds(row: Tensor, draw: Draw) -> list[float]:
    """A few values of p, none near a sum of probabilities, where rounding would decide."""
    sums, total, each = [0.0], 0.0, probabilities(row)
    for token in ranked(row):
        total += each[token]
        sums.append(min(total, 1.0))
    steps = [(low, high) for low, high in pairwise(sums) if high - low > 1e-3]
    return [low + (high - low) * (0.25 + draw.random.random() / 2) for low, high in steps]


@TOP_P.check("keeps the tokens up to the one that crosses p", size=(4, 15))
def keeps_the_nucleus(answer: Any, draw: Draw, size: int, level: int = 0) -> None:
    """In the order of probability, a token stays while the sum *before* it is below p."""
    for _ in range(4):
        row = 2 * draw.normal(1, size) + level
        for p in thresholds(row[0], draw):
            compare_distributions(answer.keep_top_p(row.clone(), p), row, [keep(row[0], nucleus(row[0], p))])


TOP_P.check(
    "keeps one token for a tiny p",
    p=(1e-9,),
    hint="1 - p is rounded to 1: the likeliest token has to stay all the same, and no other.",
)(keeps_the_best)
TOP_P.check(
    "survives large logits",
    size=(6, 6),
    level=(1000, -1000),
    hint="exp of 1000 is infinite, and of -1000 zero: `softmax` subtracts the largest logit first.",
)(keeps_the_nucleus)


@TOP_P.check("stops where p is just reached")
def stops_where_p_is_reached(answer: Any, draw: Draw) -> None:
    """A token whose likelier ones sum to p already is not needed."""
    # Probabilities 1/2, 1/4, 1/4, exactly: the first has all the mass that is asked for.
    row = torch.tensor([[math.log(2), 0.0, 0.0]])
    if row.softmax(-1)[0, 0] == 0.5:
        compare_distributions(answer.keep_top_p(row.clone(), 0.5), row, [keep(row[0], {0})])


@TOP_P.check("keeps hundreds where hundreds are needed", p=(0.3, 0.9295))
def keeps_a_flat_nucleus(answer: Any, draw: Draw, p: float) -> None:
    """A flat distribution has no head: sort them all, and add in float32 or better."""
    # 4,000 tokens that are nearly alike: thousands are kept, and a sum in half precision cannot tell them apart.
    row = 0.3 / 4000 * draw.permutation(4000)[None].float()  # no two alike, whose order nothing would decide
    each, order = probabilities(row[0]), ranked(row[0])
    sums = list(accumulate(each[token] for token in order))
    for more in range(8):  # a rounded sum is right now and then
        last = bisect_left(sums, p + more / 100)
        between = sums[last] - each[order[last]] / 2  # no rounding decides
        expected = keep(row[0], set(order[: last + 1]))
        compare_distributions(answer.keep_top_p(row.clone(), between), row, [expected])


@TOP_P.check("leaves out what was out already", p=(0.3, 0.8))
def keeps_what_was_dropped_out(answer: Any, draw: Draw, p: float) -> None:
    """A logit of -inf is a probability of 0."""
    # Another processor's -inf stay -inf, and count for nothing.
    row = torch.tensor([[1.0, -torch.inf, 2.0, 0.5, -torch.inf]])[:, draw.permutation(5)]
    compare_distributions(answer.keep_top_p(row.clone(), p), row, [keep(row[0], nucleus(row[0], p))])


def judges_each_row(processor: Callable[[Any, Tensor, float], Any], kept: Callable[[Tensor, float], set[int]]) -> Any:
    """The test that a peaked row and a flat one, in one batch, get what each gets alone."""

    def test(answer: Any, draw: Draw, p: float) -> None:
        peaked, flat = torch.tensor([4.0, 0.0, 1.0, 2.0, -1.0]), torch.tensor([0.5, 0.1, 0.2, 0.4, 0.3])
        logits = torch.stack([flat, 2 + peaked])[:, draw.permutation(5)]
        compare_distributions(processor(answer, logits, p), logits, [keep(row, kept(row, p)) for row in logits])

    return test


def top_p(answer: Any, logits: Tensor, p: float) -> Any:
    return answer.keep_top_p(logits.clone(), p)


TOP_P.check("judges each row by itself", p=(0.5, 0.9), hint="Sort, sum and compare along the last axis.")(
    judges_each_row(top_p, nucleus)
)


def keeps_everything(processor: Callable[[Any, Tensor], Any], sometimes: str) -> Callable[[Any, Draw], None]:
    def test(answer: Any, draw: Draw) -> None:
        logits = 2 * draw.normal(2, 8)
        try:
            got = processor(answer, logits)
        except ValueError as error:
            reject(f"{sometimes} raises: {error}")
        compare_distributions(got, logits, [keep(row, set(range(8))) for row in logits])

    return test


TOP_P.check("keeps everything for p = 1", hint="All tokens together have mass 1.")(
    keeps_everything(lambda answer, logits: answer.keep_top_p(logits.clone(), 1.0), "p = 1")
)


@TOP_P.check("does what its examples say")
def does_what_its_examples_say(answer: Any, draw: Draw) -> None:
    """Follow the examples by hand; what is dropped has the logit -inf."""
    row = torch.tensor([[0.5, 0.3, 0.2]]).log()
    for p, kept in ((0.6, {0, 1}), (0.05, {0}), (1.0, {0, 1, 2})):
        compare_distributions(answer.keep_top_p(row.clone(), p), row, [keep(row[0], kept)])


TOP_P.check("leaves the logits alone", hint=IN_PLACE)(
    leaves_alone(lambda answer, logits: answer.keep_top_p(logits, 0.5))
)

COMPLETE = exercise("1.15", "When to stop", "complete", points=3, minutes=6, lines=3, is_extra=True)
COMPLETE.objective = "end a completion for the right reason"
COMPLETE.hints = (
    "Follow the loop with pencil and paper for max_tokens = 1.",
    "The prompt counts for nothing: neither its length nor its tokens end anything.",
    "`token in stop_ids` first; then compare the number of new tokens with max_tokens.",
)


def scripted(tokens: Sequence[int], prompt: Sequence[int]) -> Callable[[list[int]], int]:
    """A model that says these tokens and refuses to say more."""

    num_calls = 0

    def next_token(ids: list[int]) -> int:
        nonlocal num_calls
        num_calls += 1
        num_said = num_calls - 1
        if num_said >= len(tokens):
            reject(
                f"`next_token` was asked for a token after {list(tokens)}, where the text should have ended",
                f"prompt {list(prompt)}",
            )
        if list(ids) != [*prompt, *tokens[:num_said]]:
            reject(f"`next_token` was given {list(ids)}", f"expected the text so far, {[*prompt, *tokens[:num_said]]}")
        return tokens[num_said]

    return next_token


def run(
    answer: Any, prompt: list[int], script: list[int], stop_ids: set[int], max_tokens: int, expected: tuple[Any, ...]
) -> None:
    with unchanged(stop_ids=stop_ids):
        got = answer.complete(scripted(script, prompt), list(prompt), stop_ids, max_tokens)
    if not isinstance(got, tuple) or len(got) != 2:
        reject(f"the result is {got!r}, expected (token ids, reason)")
    case = f"prompt {prompt}, the model says {script}, stop ids {sorted(stop_ids)}, max_tokens {max_tokens}"
    if list(got[0]) != expected[0]:
        reject(f"the output is {list(got[0])}, expected {expected[0]}", case)
    if got[1] != expected[1]:
        reject(f"the reason is {got[1]!r}, expected {expected[1]!r}", case)


@COMPLETE.check("ends after max_tokens new tokens", max_tokens=(1, 4, 300))
def ends_at_the_limit(answer: Any, draw: Draw, max_tokens: int) -> None:
    """Count what was generated: len(ids) - len(prompt_ids)."""
    script = draw.integers(10, 50, max_tokens).tolist()
    run(answer, [1, 2, 3, 4, 5], script, {0}, max_tokens, (script, "length"))
    script[-1] = 0  # a token like any other
    run(answer, [1, 2, 3, 4, 5], script, set(), max_tokens, (script, "length"))


@COMPLETE.check("ends with the stop token, and keeps it", num_before=(0, 3, 150))
def ends_at_a_stop_token(answer: Any, draw: Draw, num_before: int) -> None:
    """Append first, then look: the stop token belongs to the output, nothing comes after it."""
    for stop in (7, 0):
        script = [*draw.integers(10, 50, num_before).tolist(), stop]
        run(answer, [1, 2, 3], script, {0, 7}, num_before + 20, (script, "stop"))


@COMPLETE.check("does not stop for the prompt")
def ignores_the_prompts_stops(answer: Any, draw: Draw) -> None:
    """Chat prompts are full of end-of-turn tokens. Only the new token counts."""
    for prompt in ([7, 5, 7], [7] * 70):
        run(answer, prompt, [11, 12, 7], {7}, 5, ([11, 12, 7], "stop"))


@COMPLETE.check("calls it a stop when the last allowed token is one")
def prefers_stop(answer: Any, draw: Draw) -> None:
    """The model had finished; 'length' would tell the client that the text is cut."""
    run(answer, [1], [11, 7], {7}, 2, ([11, 7], "stop"))


@COMPLETE.check("leaves the prompt alone")
def keeps_the_prompt(answer: Any, draw: Draw) -> None:
    """`list(prompt_ids)` is a copy."""
    prompt = [4, 5]
    with unchanged(prompt_ids=prompt):
        answer.complete(lambda ids: 9, prompt, set(), 3)
