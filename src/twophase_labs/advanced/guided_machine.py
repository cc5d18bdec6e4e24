"""Finite-state machines over characters, for texts of a fixed form, and vocabularies as tries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True)
class Machine:
    """Reads a text character by character; what it has no edge for cannot stand there.

    Attributes:
        edges: State -> character -> the state after it. Every state has an entry.
        accepting: States in which the text is complete.
        start: The state before the first character.
    """

    edges: Mapping[int, Mapping[str, int]]
    accepting: frozenset[int]
    start: int = 0


@dataclass(frozen=True)
class Piece:
    """From `at_least` to `at_most` characters, each of them one of `characters`."""

    characters: str
    at_least: int = 1
    at_most: int = 1


def literal(text: str) -> tuple[Piece, ...]:
    """Exactly this text."""
    return tuple(Piece(character) for character in text)


def chain(*pieces: Piece) -> Machine:
    """The machine of one piece after another.

    Raises:
        ValueError: A character could belong to either of two pieces.
    """
    edges: dict[int, dict[str, int]] = {0: {}}
    open_states = [0]  # from these the next piece may begin
    for piece in pieces:
        states = range(len(edges), len(edges) + piece.at_most)
        edges.update({state: {} for state in states})
        for source in open_states:
            _join(edges[source], piece.characters, states[0])
        for source, target in pairwise(states):
            _join(edges[source], piece.characters, target)
        passed = [state for count, state in enumerate(states, 1) if count >= piece.at_least]
        open_states = passed if piece.at_least else [*open_states, *passed]
    return Machine(edges, frozenset(open_states))


def _join(outgoing: dict[str, int], characters: str, target: int) -> None:
    for character in characters:
        if character in outgoing:
            raise ValueError(f"{character!r} could belong to either of two pieces")
        outgoing[character] = target


@dataclass(slots=True)
class TrieNode:
    """A beginning that tokens of a vocabulary share. The root is the empty beginning.

    Attributes:
        token_ids: Tokens whose whole text it is.
        children: Next character -> the node of the beginning that is longer by it.
    """

    token_ids: list[int] = field(default_factory=list)
    children: "dict[str, TrieNode]" = field(default_factory=dict)


def trie_of(texts: Sequence[str]) -> TrieNode:
    """The trie of a vocabulary; tokens without text are left out."""
    root = TrieNode()
    for token_id, text in enumerate(texts):
        node = root
        for character in text:
            if character not in node.children:
                node.children[character] = TrieNode()
            node = node.children[character]
        if text:
            node.token_ids.append(token_id)
    return root


# A price: 7, 12, 12.50; the machine in the lab's drawing.
DIGITS = "0123456789"
PRICE = Machine(
    {
        0: dict.fromkeys(DIGITS, 1),
        1: {**dict.fromkeys(DIGITS, 1), ".": 2},
        2: dict.fromkeys(DIGITS, 3),
        3: dict.fromkeys(DIGITS, 4),
        4: {},
    },
    frozenset({1, 4}),
)

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# {"city": "Lima", "inhabitants": 10000000}
CITY_RECORD = chain(
    *literal('{"city": "'),
    Piece(LETTERS, 1, 16),
    *literal('", "inhabitants": '),
    Piece(DIGITS[1:]),
    Piece(DIGITS, 0, 7),
    *literal("}"),
)
