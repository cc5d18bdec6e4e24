"""guided decoding."""

import math
import re
from itertools import product
from typing import Any

import torch

from twophase_labs.advanced import guided_answers
from twophase_labs.advanced.guided_machine import DIGITS, PRICE, Machine, Piece, chain, literal
from twophase_labs.machine.checks import Draw, compare, reject, unchanged
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.questions import Number

# Small forms, as pieces and as regular expressions; the second tell what is right.
FORMS = {
    "a time": ((Piece("012"), Piece("012", 0, 1), *literal(":"), Piece("01234"), Piece("56")), "[012]{1,2}:[0-4][56]"),
    "a name": ((*literal('"'), Piece("ab", 1, 3), *literal('"')), '"[ab]{1,3}"'),
    "yes or nothing": ((Piece("y", 0, 1), Piece("e", 0, 1), Piece("s", 0, 1)), "y?e?s?"),
}


def language_of(pieces: tuple[Piece, ...]) -> set[str]:
    """Every text of the form, spelt out."""
    texts = {""}
    for piece in pieces:
        parts = [
            "".join(part)
            for count in range(piece.at_least, piece.at_most + 1)
            for part in product(piece.characters, repeat=count)
        ]
        texts = {text + part for text in texts for part in parts}
    return texts


def drawn_prefix(draw: Draw, language: set[str]) -> str:
    text = draw.choice(sorted(language))
    return text[: draw.integer(0, len(text) + 1)]


def state_after(machine: Machine, text: str) -> int:
    state = machine.start
    for character in text:
        state = machine.edges[state][character]
    return state


def reads_texts(answer: Any, draw: Draw, form: str) -> None:
    machine, language = chain(*FORMS[form][0]), language_of(FORMS[form][0])
    for _ in range(12):
        text = draw.choice(sorted(language))
        cut = draw.integer(0, len(text) + 1)
        start = state_after(machine, text[:cut])
        got = answer.advance(machine, start, text[cut:])
        compare(got, state_after(machine, text), what=f"the state after {text[cut:]!r}, starting in state {start},")


def refuses_texts(answer: Any, draw: Draw, form: str) -> None:
    pieces = FORMS[form][0]
    machine, language = chain(*pieces), language_of(pieces)
    for _ in range(12):
        prefix = drawn_prefix(draw, language)
        wrong = draw.choice(["x", "?", " "]) + draw.choice(["", "0", "a"])
        tail = drawn_prefix(draw, {text.removeprefix(prefix) for text in language if text.startswith(prefix)})
        got = answer.advance(machine, state_after(machine, prefix), tail + wrong)
        if got is not None:
            reject(f"after {prefix!r} the text {tail + wrong!r} cannot be read; advance returned {got!r}, not None")


def tokens_for(draw: Draw, language: set[str]) -> list[str]:
    """Pieces of texts of the form, some of them spoilt, in any order; the last is the end token."""
    texts = {draw.choice(["x", "?", "\n", "é"]), "0", "a"}
    for _ in range(24):
        text = draw.choice(sorted(language - {""}))
        start = draw.integer(0, len(text))
        part = text[start : start + draw.integer(1, 5)]
        texts.update({part, part + draw.choice(["", "x", ":", '"', "0"])})
    ordered = sorted(texts)
    return [ordered[i] for i in draw.permutation(len(ordered))] + ["</s>"]


def mask_of(answer: Any, machine: Machine, state: int, texts: list[str], end_id: int) -> torch.Tensor:
    got = answer.token_mask(machine, state, texts, end_id)
    if not isinstance(got, torch.Tensor):
        reject(f"the mask should be a tensor; got {got!r}")
    if got.shape != (len(texts),) or got.dtype != torch.bool:
        reject(f"the mask has shape {list(got.shape)} and dtype {got.dtype}, expected [{len(texts)}] and torch.bool")
    return got


def require_mask(answer: Any, machine: Machine, language: set[str], prefix: str, texts: list[str]) -> None:
    """Of all tokens but the last, which ends the answer."""
    got = mask_of(answer, machine, state_after(machine, prefix), texts, len(texts) - 1).tolist()
    for token, allowed in zip(texts[:-1], got, strict=False):
        if allowed != any(text.startswith(prefix + token) for text in language):
            reject(f"after {prefix!r} the token {token!r} is {'allowed' if allowed else 'forbidden'}; it should not be")


def masks_single(answer: Any, draw: Draw, form: str) -> None:
    machine, language = chain(*FORMS[form][0]), language_of(FORMS[form][0])
    texts = sorted({character for text in language for character in text} | {"x", "?"})
    for prefix in sorted({text[:cut] for text in language for cut in range(len(text) + 1)}):
        require_mask(answer, machine, language, prefix, [*texts, "</s>"])


def masks_several(answer: Any, draw: Draw, form: str) -> None:
    machine, language = chain(*FORMS[form][0]), language_of(FORMS[form][0])
    for _ in range(6):
        require_mask(answer, machine, language, drawn_prefix(draw, language), tokens_for(draw, language))


def masks_the_end(answer: Any, draw: Draw) -> None:
    for prefix, complete in (("", False), ("7", True), ("12", True), ("12.", False), ("12.5", False), ("12.50", True)):
        # Where the end token stands in the vocabulary must not matter, nor what text it has.
        for end_id, end_text in ((0, ""), (2, "</s>"), (1, "0")):
            texts = ["5", ".5", "x"]
            texts.insert(end_id, end_text)
            got = mask_of(answer, PRICE, state_after(PRICE, prefix), texts, end_id)
            if bool(got[end_id]) != complete:
                told = "is complete" if complete else "is not complete"
                reject(f"{prefix!r} {told}, and the end token is {'allowed' if got[end_id] else 'forbidden'}")


# "ab" again and again: back in state 0 the text is complete. The second reads "ba", and is as large.
LOOPS = {
    "ab": Machine({0: {"a": 1}, 1: {"b": 0}, 2: {}}, frozenset({0})),
    "ba": Machine({0: {"b": 1}, 1: {"a": 0}, 2: {}}, frozenset({0})),
    "from 2": Machine({2: {"a": 0}, 0: {"b": 2}, 1: {}}, frozenset({0, 2}), start=2),
}


def takes_state_0(answer: Any, draw: Draw) -> None:
    compare(answer.advance(LOOPS["ab"], 0, "ab" * 40), 0, what="the state after 'abab...', which leads back to 0,")
    compare(answer.advance(LOOPS["ab"], 1, "b"), 0, what="the state after 'b', from state 1,")
    compare(answer.advance(LOOPS["ab"], 0, ""), 0, what="the state after no text at all")
    compare(answer.advance(LOOPS["ab"], 0, "b"), None, what="advance of 'b' from state 0, which cannot be read,")


def knows_machines_apart(answer: Any, draw: Draw) -> None:
    """Machines of one size in turn, and masks that are changed by whoever got them."""
    texts = ["a", "b", "ab" * 50, "ba" * 50, "</s>", "ab" * 50 + "x"]
    for name in ("ab", "ba", "from 2", "ab"):
        machine = LOOPS[name]
        with unchanged(texts=texts):
            got = mask_of(answer, machine, machine.start, texts, 4)
        expected = [name != "ba", name == "ba", name != "ba", name == "ba", True, False]
        compare(got.tolist(), expected, what=f"the mask at the start of a machine that reads {name!r}", axes=("token",))
        got.fill_(False)


def masks_the_empty(answer: Any, draw: Draw) -> None:
    texts = ["", "5", "", ".5", "</s>", *["x"] * 65]
    for prefix in ("", "7", "12."):
        got = mask_of(answer, PRICE, state_after(PRICE, prefix), texts, 4)
        if bool(got[0]) or bool(got[2]):
            reject(f"after {prefix!r} a token without text is allowed", "The model could write it without end.")


class Toy:
    """A model of nothing: logits that depend on how many tokens there are and on the last one, and what it was asked.

    The vocabulary is of single characters and pairs, so that every form can be written; the end token is number 3.
    """

    def __init__(self, draw: Draw, form: str, end_bonus: float = 0.0) -> None:
        pieces, self.regex = FORMS[form]
        self.machine, self.language = chain(*pieces), language_of(pieces)
        characters = sorted({character for text in self.language for character in text})
        pairs = sorted({text[i : i + 2] for text in self.language for i in range(len(text) - 1)})
        self.texts = ["x", "", "?", "</s>", *characters, *pairs]
        self.end_id = 3
        self.asked: list[list[int]] = []
        self.chosen_from: list[torch.Tensor] = []
        self._by_length = draw.normal(40, len(self.texts)) * 3
        self._by_last = draw.normal(len(self.texts), len(self.texts)) * 3
        self._end_bonus = end_bonus

    def next_logits(self, ids: Any) -> torch.Tensor:
        self.asked.append(list(ids))
        logits = self._by_length[len(ids)] + (self._by_last[ids[-1]] if ids else 0)
        logits[self.end_id] += self._end_bonus
        return logits

    def choose(self, logits: torch.Tensor) -> int:
        self.chosen_from.append(logits.clone())
        return int(logits.argmax())

    def allowed(self, ids: list[int]) -> list[bool]:
        prefix = "".join(self.texts[i] for i in ids)
        allowed = [t != "" and any(text.startswith(prefix + t) for text in self.language) for t in self.texts]
        allowed[self.end_id] = prefix in self.language
        return allowed

    def run(self, answer: Any, max_tokens: int = 30) -> tuple[list[int], str]:
        got = answer.generate_guided(self.next_logits, self.machine, self.texts, self.end_id, max_tokens, self.choose)
        if not (isinstance(got, tuple) and len(got) == 2 and isinstance(got[0], list)):
            reject(f"the result is the list of ids and 'stop' or 'length'; got {got!r}")
        return got

    def spelt(self, ids: list[int]) -> str:
        return "".join(self.texts[i] for i in ids)


def hides_forbidden(answer: Any, draw: Draw, form: str) -> None:
    toy = Toy(draw, form)
    toy.run(answer, max_tokens=1)
    if not toy.chosen_from:
        reject("`choose` was never called")
    logits = toy.chosen_from[0]
    compare(list(logits.shape), [len(toy.texts)], what="the shape of what `choose` gets")
    for token, (value, allowed) in enumerate(zip(logits.tolist(), toy.allowed([]), strict=True)):
        if not allowed and value != -math.inf:
            reject(f"at the start {toy.texts[token]!r} is impossible, and `choose` sees the logit {value:.3g} for it")
    if all(value == -math.inf for value in logits.tolist()):
        reject("at the start every token is -inf: nothing is left to choose from")


def keeps_possible(answer: Any, draw: Draw, form: str) -> None:
    toy = Toy(draw, form)
    toy.run(answer, max_tokens=1)
    if not toy.asked:
        reject("`next_logits` was never called")
    clean = toy.next_logits(toy.asked[0])
    for token, allowed in enumerate(toy.allowed([])):
        if allowed and not math.isclose(float(toy.chosen_from[0][token]), float(clean[token]), abs_tol=1e-5):
            reject(
                f"at the start {toy.texts[token]!r} is possible; its logit is {float(clean[token]):.4g}, and `choose` "
                f"sees {float(toy.chosen_from[0][token]):.4g}",
                "The model's taste among possible tokens must stay as it is.",
            )


def asks_with_answer(answer: Any, draw: Draw, form: str) -> None:
    toy = Toy(draw, form)
    ids, _ = toy.run(answer)
    for number, asked in enumerate(toy.asked):
        compare(asked, ids[:number], what=f"what `next_logits` is given in step {number}")


def keeps_the_place(answer: Any, draw: Draw, form: str) -> None:
    for _ in range(6):
        toy = Toy(draw, form)
        ids, _ = toy.run(answer)
        for number, logits in enumerate(toy.chosen_from):
            got = [value != -math.inf for value in logits.tolist()]
            for token, (one, other) in enumerate(zip(got, toy.allowed(ids[:number]), strict=True)):
                if one != other:
                    reject(
                        f"after {toy.spelt(ids[:number])!r} the token {toy.texts[token]!r} is "
                        f"{'possible' if one else 'impossible'}; it should not be"
                    )


def ends_in_form(answer: Any, draw: Draw, form: str) -> None:
    for _ in range(6):
        toy = Toy(draw, form)
        ids, reason = toy.run(answer)
        if toy.end_id in ids:
            reject("the end token is among the ids; it ends the answer and is no part of it")
        compare(reason, "stop", what="the reason")
        if not re.fullmatch(toy.regex, toy.spelt(ids)):
            reject(f"the answer is {toy.spelt(ids)!r}, which is not of the form {toy.regex}")


def starts_at_the_start(answer: Any, draw: Draw) -> None:
    """A machine whose first state is not 0, and that comes through state 0 later."""
    got = answer.generate_guided(
        lambda ids: torch.tensor([0.0, 0.0, -5.0 if len(ids) < 5 else 5.0]),
        LOOPS["from 2"],
        ["a", "b", "</s>"],
        2,
        9,
        lambda logits: int(logits.argmax()),
    )
    compare(list(got[0]), [0, 1, 0, 1, 0], what="the ids of an answer of a machine that starts in state 2")
    compare(got[1], "stop", what="the reason")


def says_when_cut(answer: Any, draw: Draw, max_tokens: int, length: int = 12) -> None:
    machine = chain(Piece(DIGITS, length, length))
    toy = Toy(draw, "a name")
    toy.machine, toy.texts = machine, [*DIGITS, "</s>"]
    toy.end_id = 10
    asked: list[int] = []

    models_own = torch.arange(11.0)

    def next_logits(ids: Any) -> torch.Tensor:
        asked.append(len(ids))
        return models_own

    with unchanged(next_logits=models_own, texts=toy.texts):
        got = answer.generate_guided(
            next_logits, machine, toy.texts, 10, max_tokens, lambda logits: int(logits.argmax())
        )
    compare(list(got[0]), [9] * min(length, max_tokens), what=f"the ids with max_tokens={max_tokens}")
    compare(got[1], "stop" if max_tokens > length else "length", what=f"the reason with max_tokens={max_tokens}")


ALL_FORMS = tuple({"form": form} for form in FORMS)

EXERCISES = (
    Exercise(
        id="5.8",
        was="5.10",
        title="Which tokens may come next",
        kind="code",
        names=("advance", "token_mask"),
        points=3,
        minutes=10,
        lines=3,
        difficulty=2,
        objective="turn a machine over characters into a mask over tokens",
        hints=(
            "A token may be several characters. All of them must be readable, one after another, from the state you "
            "are in.",
            "`machine.edges[state]` is a dict; its `.get` gives None for a character that cannot stand there.",
            "The end token has nothing to read. It is allowed exactly where the text is complete: `state in "
            "machine.accepting`.",
        ),
        checks=(
            Property(
                "reads a text character by character",
                reads_texts,
                "Each character leads from the state before it to the next one, along `machine.edges[state]`.",
                ALL_FORMS,
            ),
            Property(
                "returns None where nothing leads on",
                refuses_texts,
                "A character without an edge ends it: None, not an error, and not the state where it got stuck.",
                ALL_FORMS,
            ),
            Property(
                "masks tokens of one character",
                masks_single,
                "A token is allowed if `advance` can read it from this state.",
                ALL_FORMS,
            ),
            Property(
                "masks tokens of several characters",
                masks_several,
                "Every character of the token counts, not the first alone; and a token may well stop in the middle "
                "of the form.",
                ALL_FORMS,
            ),
            Property(
                "lets the end come where the text is complete",
                masks_the_end,
                "The end token is allowed in accepting states and nowhere else, whatever its own text would be.",
            ),
            Property(
                "never allows a token without text",
                masks_the_empty,
                "Special tokens have no text. Reading nothing always works, and leads nowhere.",
            ),
            Property(
                "takes 0 for a state like any other",
                takes_state_0,
                "`if not state` is true for state 0, too; ask with `is None`.",
            ),
            Property(
                "knows one machine from another",
                knows_machines_apart,
                "The mask follows from machine, state and texts, each time anew; and it is the caller's to change.",
            ),
        ),
        time_limit_s=10,
    ),
    Exercise(
        id="5.9",
        was="5.12",
        title="How many would have been thrown away",
        kind="prediction",
        names=("guess_5_9",),
        points=1,
        minutes=3,
        needs=("model",),
        objective="estimate what a mask saves in retries",
        question=Number(
            guided_answers.num_valid_unguided,
            abs=3,
            unit="answers",
            hint="A small model copies the form well for most of a line; one slip anywhere makes the line invalid.",
        ),
        time_limit_s=120,
    ),
)
