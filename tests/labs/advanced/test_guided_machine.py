"""The machines of the guided-decoding section, against `re`."""

import re
from itertools import product

import pytest

from twophase_labs.advanced.guided_machine import CITY_RECORD, PRICE, Machine, Piece, chain, literal, trie_of


def reads(machine: Machine, text: str) -> bool:
    state = machine.start
    for character in text:
        if character not in machine.edges[state]:
            return False
        state = machine.edges[state][character]
    return state in machine.accepting


@pytest.mark.parametrize(
    ("pieces", "regex"),
    [
        (literal("ab"), "ab"),
        ((Piece("a", 0, 2), Piece("b", 1, 2)), "a{0,2}b{1,2}"),
        ((Piece("ab", 1, 3), *literal("c")), "[ab]{1,3}c"),
        ((Piece("a", 0, 1), Piece("b", 0, 1), Piece("c", 0, 1)), "a?b?c?"),
        ((), ""),
    ],
)
def test_a_chain_reads_what_its_regular_expression_matches(pieces, regex):
    machine = chain(*pieces)
    for length in range(6):
        for text in map("".join, product("abc", repeat=length)):
            assert reads(machine, text) == bool(re.fullmatch(regex, text)), text


def test_a_character_that_could_belong_to_two_pieces_is_refused():
    with pytest.raises(ValueError, match="'a' could belong to either"):
        chain(Piece("a", 1, 2), Piece("ab"))


@pytest.mark.parametrize("text", ["7", "12", "12.50", "12.", "12.5", ".50", "", "12.500", "1x"])
def test_price(text):
    assert reads(PRICE, text) == bool(re.fullmatch(r"[0-9]+(\.[0-9]{2})?", text))


@pytest.mark.parametrize("city", ["Lima", "L", "", "New York", "A" * 16, "A" * 17])
@pytest.mark.parametrize("number", ["1", "0", "10000000", "100000000", "012"])
def test_city_record(city, number):
    is_right = bool(re.fullmatch("[A-Za-z]{1,16}", city) and re.fullmatch("[1-9][0-9]{0,7}", number))
    assert reads(CITY_RECORD, f'{{"city": "{city}", "inhabitants": {number}}}') == is_right


def test_a_trie_has_every_token_once():
    texts = ["a", "ab", "", "abc", "ab", "é"]
    found = []
    to_visit = [("", trie_of(texts))]
    while to_visit:
        text, node = to_visit.pop()
        found += [(one, text) for one in node.token_ids]
        to_visit += [(text + char, child) for char, child in node.children.items()]
    assert sorted(found) == [(i, text) for i, text in enumerate(texts) if text]
