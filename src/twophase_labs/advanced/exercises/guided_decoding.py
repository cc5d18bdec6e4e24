"""Guided decoding: masks over tokens, and the walk over a trie that makes them cheap."""

from itertools import product
from typing import Any

import torch

from twophase_labs.advanced.guided_machine import PRICE, Machine, Piece, TrieNode, chain, literal, trie_of
from twophase_labs.machine.checks import Draw, compare, integers, reject, unchanged
from twophase_labs.machine.exercise import exercise

# Small forms, as pieces and as regular expressions; the second tell what is right.
FORMS = {
    "a time": ((Piece("012"), Piece("012", 0, 1), *literal(":"), Piece("01234"), Piece("56")), "[012]{1,2}:[0-4][56]"),
    "a name": ((*literal('"'), Piece("ab", 1, 3), *literal('"')), '"[ab]{1,3}"'),
    "yes or nothing": ((Piece("y", 0, 1), Piece("e", 0, 1), Piece("s", 0, 1)), "y?e?s?"),
}


ALL_FORMS = tuple({"form": form} for form in FORMS)

MACHINE = exercise(
    "5.7", "Which tokens may come next", "advance token_mask", points=3, minutes=10, lines=3, difficulty=2
)
MACHINE.time_limit_s = 10
MACHINE.objective = "turn a machine over characters into a mask over tokens"
MACHINE.hints = (
    "A token may be several characters. All of them must be readable, one after another, from the state you are in.",
    "`machine.edges[state]` is a dict; its `.get` gives None for a character that cannot stand there.",
    "The end token has nothing to read. It is allowed exactly where the text is complete: `state in "
    "machine.accepting`.",
)


def language_of(pieces: tuple[Piece, ...]) -> set[str]:
    """Every text of the grammar, spelt out."""
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


@MACHINE.check("reads a text character by character", *ALL_FORMS)
def reads_texts(answer: Any, draw: Draw, form: str) -> None:
    """Each character leads from the state before it to the next one, along `machine.edges[state]`."""
    machine, language = chain(*FORMS[form][0]), language_of(FORMS[form][0])
    for _ in range(12):
        text = draw.choice(sorted(language))
        cut = draw.integer(0, len(text) + 1)
        start = state_after(machine, text[:cut])
        got = answer.advance(machine, start, text[cut:])
        compare(got, state_after(machine, text), what=f"the state after {text[cut:]!r}, starting in state {start},")


@MACHINE.check("returns None where nothing leads on", *ALL_FORMS)
def refuses_texts(answer: Any, draw: Draw, form: str) -> None:
    """A character without an edge ends it: None, not an error, and not the state where it got stuck."""
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
    """Pieces of texts of the grammar, some of them spoilt, in any order; the last is the end token."""
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


@MACHINE.check("masks tokens of one character", *ALL_FORMS)
def masks_single(answer: Any, draw: Draw, form: str) -> None:
    """A token is allowed if `advance` can read it from this state."""
    machine, language = chain(*FORMS[form][0]), language_of(FORMS[form][0])
    texts = sorted({character for text in language for character in text} | {"x", "?"})
    for prefix in sorted({text[:cut] for text in language for cut in range(len(text) + 1)}):
        require_mask(answer, machine, language, prefix, [*texts, "</s>"])


@MACHINE.check("masks tokens of several characters", *ALL_FORMS)
def masks_several(answer: Any, draw: Draw, form: str) -> None:
    """Every character of the token counts, not the first alone; and a token may well stop in the middle of a text."""
    machine, language = chain(*FORMS[form][0]), language_of(FORMS[form][0])
    for _ in range(6):
        require_mask(answer, machine, language, drawn_prefix(draw, language), tokens_for(draw, language))


@MACHINE.check("lets the end come where the text is complete")
def masks_the_end(answer: Any, draw: Draw) -> None:
    """The end token is allowed in accepting states and nowhere else, whatever its own text would be."""
    for prefix, complete in (("", False), ("7", True), ("12", True), ("12.", False), ("12.5", False), ("12.50", True)):
        # Where the end token stands in the vocabulary must not matter, nor what text it has.
        for end_id, end_text in ((0, ""), (2, "</s>"), (1, "0")):
            texts = ["5", ".5", "x"]
            texts.insert(end_id, end_text)
            got = mask_of(answer, PRICE, state_after(PRICE, prefix), texts, end_id)
            if bool(got[end_id]) != complete:
                told = "is complete" if complete else "is not complete"
                reject(f"{prefix!r} {told}, and the end token is {'allowed' if got[end_id] else 'forbidden'}")


@MACHINE.check("never allows a token without text")
def masks_the_empty(answer: Any, draw: Draw) -> None:
    """Special tokens have no text. Reading nothing always works, and leads nowhere."""
    texts = ["", "5", "", ".5", "</s>", *["x"] * 65]
    for prefix in ("", "7", "12."):
        got = mask_of(answer, PRICE, state_after(PRICE, prefix), texts, 4)
        if bool(got[0]) or bool(got[2]):
            reject(f"after {prefix!r} a token without text is allowed", "The model could write it without end.")


# "ab" again and again: back in state 0 the text is complete. The second reads "ba", and is as large.
LOOPS = {
    "ab": Machine({0: {"a": 1}, 1: {"b": 0}, 2: {}}, frozenset({0})),
    "ba": Machine({0: {"b": 1}, 1: {"a": 0}, 2: {}}, frozenset({0})),
    "from 2": Machine({2: {"a": 0}, 0: {"b": 2}, 1: {}}, frozenset({0, 2}), start=2),
}


@MACHINE.check("takes 0 for a state like any other")
def takes_state_0(answer: Any, draw: Draw) -> None:
    """`if not state` is true for state 0, too; ask with `is None`."""
    compare(answer.advance(LOOPS["ab"], 0, "ab" * 40), 0, what="the state after 'abab...', which leads back to 0,")
    compare(answer.advance(LOOPS["ab"], 1, "b"), 0, what="the state after 'b', from state 1,")
    compare(answer.advance(LOOPS["ab"], 0, ""), 0, what="the state after no text at all")
    compare(answer.advance(LOOPS["ab"], 0, "b"), None, what="advance of 'b' from state 0, which cannot be read,")


@MACHINE.check("knows one machine from another")
def knows_machines_apart(answer: Any, draw: Draw) -> None:
    """The mask follows from machine, state and texts, each time anew; and it is the caller's to change."""
    # Machines of one size in turn, and masks that are changed by whoever got them.
    texts = ["a", "b", "ab" * 50, "ba" * 50, "</s>", "ab" * 50 + "x"]
    for name in ("ab", "ba", "from 2", "ab"):
        machine = LOOPS[name]
        with unchanged(texts=texts):
            got = mask_of(answer, machine, machine.start, texts, 4)
        expected = [name != "ba", name == "ba", name != "ba", name == "ba", True, False]
        compare(got.tolist(), expected, what=f"the mask at the start of a machine that reads {name!r}", axes=("token",))
        got.fill_(False)


ALLOWED = exercise(
    "5.8", "A mask from a trie", "allowed_ids", points=3, minutes=7, lines=8, difficulty=2, time_limit_s=10
)
ALLOWED.objective = "rule out all tokens that share a beginning at once"
ALLOWED.hints = (
    "Walk through the trie and the machine at the same time: going down by a character in the trie is going along "
    "an edge of the machine.",
    "Where the machine has no edge for a child's character, skip the child, and with it all that is below. Each "
    "node you do reach gives its `token_ids`.",
    "found, to_visit = [], [(node, state)]\nwhile to_visit:\n    here, at = to_visit.pop()\n"
    "    found += ...\n    for char, child in here.children.items():\n        if char in machine.edges[at]:\n"
    "            to_visit.append((child, ...))\nreturn found",
)


@ALLOWED.check("takes small tries")
def takes_small_tries(answer: Any, draw: Draw) -> None:
    """Every id of a text that can be read belongs to it, also if several tokens have that text, once each; no
    tokens, an empty list."""
    for texts, state, expected in (
        ([], 0, []),
        (["", ""], 0, []),
        (["7"], 0, [0]),
        (["7"], 4, []),
        (["7", "7", "7"], 1, [0, 1, 2]),
        (["x", ".5", "5", "."], 1, [1, 2, 3]),
    ):
        got = require_ids(answer, PRICE, state, texts, trie_of(texts), f"tokens {texts}, state {state}")
        compare(sorted(got), expected, what=f"the ids of {texts} in state {state}")


def drawn_trie(draw: Draw, form: str) -> tuple[Machine, set[str], list[str]]:
    """A machine, its language, and token texts with doubles and empty ones among them."""
    language = language_of(FORMS[form][0])
    texts = [*tokens_for(draw, language)[:-1], "", ""]
    texts += [draw.choice(texts), draw.choice(texts)]
    return chain(*FORMS[form][0]), language, [texts[i] for i in draw.permutation(len(texts))]


def require_ids(answer: Any, machine: Machine, state: int, texts: list[str], node: Any, what: str) -> list[int]:
    return plain_ids(answer.allowed_ids(machine, state, node), what)


def plain_ids(got: Any, what: str) -> list[int]:
    """The ids in a list of the caller's own, as exact ints."""
    ids = integers(got) if isinstance(got, list) else None
    if ids is None:
        reject(f"{what}: the result is {got!r:.80}, expected a list of token ids")
    if len(set(ids)) < len(ids):
        reject(f"{what}: {sorted(ids)!r:.200} has an id twice")
    return ids


@ALLOWED.check("finds what can be read, and nothing else", *ALL_FORMS)
def finds_readable(answer: Any, draw: Draw, form: str) -> None:
    """A token may come if each of its characters leads on; it need not reach an accepting state."""
    for _ in range(8):
        machine, language, texts = drawn_trie(draw, form)
        prefix = drawn_prefix(draw, language)
        got = require_ids(answer, machine, state_after(machine, prefix), texts, trie_of(texts), f"after {prefix!r}")
        for token_id, token in enumerate(texts):
            allowed = token != "" and any(text.startswith(prefix + token) for text in language)
            if allowed != (token_id in got):
                told = "is missing" if allowed else "should not be there"
                reject(f"after {prefix!r} the token {token!r} (id {token_id}) {told}")


@ALLOWED.check("takes 0 for a state like any other")
def reaches_state_0(answer: Any, draw: Draw) -> None:
    """`if after:` is false for state 0, too; ask whether the character has an edge."""
    # An edge may lead to state 0, from the start or in the middle of a token; and hundreds may leave a state.
    texts = ["b", "ba", "bab", "a", "bb", "", *["ab" * count for count in range(1, 40)]]
    for name, state, expected in (
        ("ab", 1, [0, 1, 2]),
        ("ab", 0, [3, *range(6, 45)]),
        ("from 2", 2, [3, *range(6, 45)]),
    ):
        got = require_ids(answer, LOOPS[name], state, texts, trie_of(texts), f"tokens of a and b, state {state}")
        compare(sorted(got), expected, what=f"the ids in state {state} of the machine {name!r}")
    wide = [chr(0x4E00 + number) * length for number in range(300) for length in (1, 2)]
    machine = Machine({0: dict.fromkeys("".join(wide), 0)}, frozenset({0}))
    got = require_ids(answer, machine, 0, wide, trie_of(wide), "where 300 characters are allowed")
    compare(sorted(got), list(range(600)), what="the ids where any of 300 characters may follow, again and again,")


@ALLOWED.check("starts at the node it is given")
def starts_below(answer: Any, draw: Draw) -> None:
    """`state` is where the machine stands at this node: the text before it has been read. The node's own tokens
    belong to it."""
    # From an inner node the text before it counts no more.
    texts = ["12", "1.", "1.5", "1", "13", "2"]
    node = trie_of(texts).children["1"]
    got = sorted(require_ids(answer, PRICE, 1, texts, node, "from the node '1' of the trie, in state 1"))
    expected = [0, 1, 2, 3, 4]
    if got != expected:
        missing = [one for one in expected if one not in got]
        own = f"; token {missing[0]} ends at the node itself" if missing == node.token_ids else ""
        reject(f"from the node '1' in state 1 the sorted ids are {got}, expected {expected}{own}", f"trie of {texts}")


class WatchedNode:
    """A node like TrieNode that notes when its children are asked for."""

    def __init__(self, node: TrieNode, seen: set[str], beginning: str = "") -> None:
        self.token_ids = list(node.token_ids)
        self._seen, self._beginning = seen, beginning
        self._children = {char: WatchedNode(child, seen, beginning + char) for char, child in node.children.items()}

    @property
    def children(self) -> "dict[str, WatchedNode]":
        self._seen.add(self._beginning)
        return self._children


@ALLOWED.check("goes no further than the machine reads")
def goes_no_further(answer: Any, draw: Draw) -> None:
    """Look at `children` of a node only if the machine has read the node's text: that is what makes it cheap."""
    # Behind a character that cannot stand there nothing is looked at.
    texts = ["xylophone", "5", "50", "5x5x5", ".50", "x", "99999"]
    seen: set[str] = set()
    got = require_ids(answer, PRICE, 0, texts, WatchedNode(trie_of(texts), seen), "at the start of a price")
    compare(sorted(got), [1, 2, 6], what="the ids at the start of a price")
    late = sorted(beginning for beginning in seen if "x" in beginning or beginning.startswith("."))
    if late:
        reject(f"the walk looked for children of {late[0]!r}, and no price begins so")


@ALLOWED.check("leaves the trie as it is")
def leaves_the_trie(answer: Any, draw: Draw) -> None:
    """The list is the caller's to change, so none of the trie's own lists may be handed out."""
    texts = [f"{number:02}" for number in range(10, 20)] + ["1", ".", "1.", "1.5", "1.50"]
    texts = [texts[i] for i in draw.permutation(len(texts))]
    trie = trie_of(texts)
    first = answer.allowed_ids(PRICE, 0, trie)
    kept = plain_ids(first, "the first time")
    if trie != trie_of(texts):
        reject("the call changed the trie", "All forms share it: collect ids in a list of your own.")
    first.clear()
    if trie != trie_of(texts):
        reject("emptying the list that was returned emptied one of the trie's", "Return a list of your own.")
    again = require_ids(answer, PRICE, 0, texts, trie, "the second time")
    compare(sorted(again), sorted(kept), what="the ids when it is asked again")
