"""Incremental text equals the text decoded at once, is never taken back, and stops where it should."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.tokenizers_for_tests import KINDS, TEXT, byte_fallback, byte_level
from tests.mutation import KillTable, Mutant
from twophase.core.sampling_params import SamplingParams
from twophase.engine import detokenizer
from twophase.engine.detokenizer import REPLACEMENT_CHARACTER, Detokenizer, longest_partial_match, matches


def stream(decoder, ids, prompt_ids=(), *, module=detokenizer, **options) -> tuple[list[str], str | None]:
    """The text after each token and after the end, and the stop string that matched. Checks that text only grows."""
    detok = module.Detokenizer(decoder, SamplingParams(**options), prompt_ids)
    texts = [""]
    for token_id in ids:
        matched = detok.append(token_id)
        assert detok.text.startswith(texts[-1]), "released text was taken back"
        texts.append(detok.text)
        if matched is not None:
            return texts, matched
    matched = detok.finish()
    assert detok.text.startswith(texts[-1]), "released text was taken back"
    return [*texts, detok.text], matched


class CharacterDecoder:
    """A token is a character: for stop strings, where token boundaries are what is varied."""

    def __init__(self, tokens):
        self.tokens = tokens

    def decode(self, ids, skip_special_tokens=True):
        return "".join(self.tokens[i] for i in ids)


def stream_pieces(pieces, module=detokenizer, **options) -> tuple[list[str], str | None]:
    return stream(CharacterDecoder(pieces), range(len(pieces)), module=module, **options)


def check_whole_characters(module) -> None:
    for kind in KINDS.values():
        decoder = kind()
        texts, _ = stream(decoder, decoder.encode(TEXT * 3), module=module)
        assert texts[-1] == TEXT * 3
        assert REPLACEMENT_CHARACTER not in "".join(texts)


def check_space_after_prompt(module) -> None:
    """A decoder of SentencePiece kind strips the first space of what it decodes; here it belongs to the output."""
    decoder = byte_fallback()
    ids = decoder.encode("the fox the fox")
    for split in range(1, len(ids)):
        texts, _ = stream(decoder, ids[split:], ids[:split], module=module)
        assert decoder.decode(ids[:split]) + texts[-1] == "the fox the fox"


def check_special_tokens(module) -> None:
    for kind in KINDS.values():
        decoder = kind()
        ids = [
            decoder.end_id,
            *decoder.encode("the fox"),
            *[decoder.end_id] * 20,
            *decoder.encode("the fox"),
            decoder.end_id,
        ]
        for skip in (True, False):
            texts, _ = stream(decoder, ids, skip_special_tokens=skip, module=module)
            assert texts[-1] == decoder.decode(ids, skip_special_tokens=skip)


class TestCharacters:
    def test_whole_and_equal_to_decoding_at_once(self):
        check_whole_characters(detokenizer)

    def test_the_space_between_prompt_and_output(self):
        check_space_after_prompt(detokenizer)

    def test_special_tokens(self):
        check_special_tokens(detokenizer)

    @pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
    def test_half_a_character_at_the_end_is_left_out(self, kind):
        decoder = kind()
        ids = decoder.encode("dog 👍")
        texts, _ = stream(decoder, ids[:-1])
        assert texts[-1] == "dog "

    def test_a_prompt_that_ends_in_half_a_character(self):
        decoder = byte_level()
        ids = decoder.encode("fox 👍 dog")
        split = len(ids) - len(decoder.encode("👍 dog")) + 2
        assert decoder.decode(ids[:split]).endswith(REPLACEMENT_CHARACTER)
        texts, _ = stream(decoder, ids[split:], ids[:split])
        assert texts[-1] == "👍 dog"

    def test_text_is_released_as_soon_as_it_is_whole(self):
        decoder = byte_level()
        ids = decoder.encode("a日b")
        texts, _ = stream(decoder, ids)
        assert texts[1] == "a"
        assert texts[-3:-1] == ["a日", "a日b"]

    def test_work_per_token_does_not_grow(self):
        decoder, lengths = byte_level(), []

        class Spy:
            def decode(self, ids, skip_special_tokens=True):
                lengths.append(len(ids))
                return decoder.decode(ids, skip_special_tokens)

        junk = [decoder.encode("日")[0]] * 300  # never a character
        ids = decoder.encode(TEXT) * 10 + [decoder.end_id] * 300 + junk + decoder.encode(TEXT)
        stream(Spy(), ids)
        assert max(lengths) <= 2 * detokenizer.MAX_PENDING_TOKENS
        assert len(lengths) <= 2 * len(ids) + 2

    @given(st.lists(st.integers(0, 329), max_size=40), st.integers(0, 40))
    @settings(max_examples=300, deadline=None)
    def test_any_tokens_of_a_byte_level_vocabulary(self, ids, split):
        """Invalid bytes included: what is streamed is what decoding at once gives, up to its invalid end."""
        decoder = byte_level()
        runs_on = [decoder.decode(ids[i : i + 8]).strip(REPLACEMENT_CHARACTER) == "" for i in range(len(ids) - 7)]
        texts, _ = stream(decoder, ids)
        if not any(runs_on):  # eight invalid tokens in a row are given up on, wherever they are cut
            assert texts[-1].rstrip(REPLACEMENT_CHARACTER) == decoder.decode(ids).rstrip(REPLACEMENT_CHARACTER)

    @given(st.text(max_size=30))
    @settings(max_examples=200, deadline=None)
    def test_any_text(self, text):
        for kind in KINDS.values():
            decoder = kind()
            ids = decoder.encode(text)
            texts, _ = stream(decoder, ids)
            assert texts[-1] == decoder.decode(ids).rstrip(REPLACEMENT_CHARACTER)


def check_stop_strings(module) -> None:
    texts, matched = stream_pieces(["abc", "STO", "P", "xyz"], module, stop=("STOP",))
    assert (texts, matched) == (["", "abc", "abc", "abc"], "STOP")
    texts, matched = stream_pieces(["abcSTOPxyz"], module, stop=("STOP",), include_stop_str_in_output=True)
    assert (texts[-1], matched) == ("abcSTOP", "STOP")
    texts, matched = stream_pieces(["abc", "STO", "-", "STO"], module, stop=("STOP",))
    assert (texts, matched) == (["", "abc", "abc", "abcSTO-", "abcSTO-", "abcSTO-STO"], None)
    # A match may begin inside an attempt that failed.
    texts, matched = stream_pieces(list("xaaab"), module, stop=("aab",))
    assert (texts[-1], matched) == ("xa", "aab")
    # 'lo' is complete before 'hello world' could be, whatever the tokens are.
    for pieces in (list("say hello world"), ["say hello world"]):
        assert stream_pieces(pieces, module, stop=("hello world", "lo"))[0][-1] == "say hel"
    # Two end together: the longer one is cut.
    assert stream_pieces(["say hello"], module, stop=("llo", "hello"))[0][-1] == "say "


@st.composite
def cut_texts(draw):
    text = draw(st.text("ab", min_size=1, max_size=20))
    cuts = sorted(draw(st.sets(st.integers(1, len(text)), max_size=8)) | {0, len(text)})
    stops = tuple(draw(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3)))
    return text, [text[a:b] for a, b in itertools.pairwise(cuts)], stops


class TestStopStrings:
    def test_across_token_boundaries(self):
        check_stop_strings(detokenizer)

    @given(cut_texts(), st.booleans())
    @settings(max_examples=300, deadline=None)
    def test_any_text_cut_anyhow(self, case, include):
        """Independent oracle: read the text character by character until it ends with a stop string."""
        text, pieces, stops = case
        expected, expected_stop = text, None
        for end in range(1, len(text) + 1):
            found = [stop for stop in stops if text[:end].endswith(stop)]
            if found:
                expected_stop = max(found, key=len)
                expected = text[:end] if include else text[: end - len(expected_stop)]
                break
        texts, matched = stream_pieces(pieces, stop=stops, include_stop_str_in_output=include)
        assert (texts[-1], matched) == (expected, expected_stop)

    def test_only_what_may_become_a_stop_string_is_held_back(self):
        texts, _ = stream_pieces(list("a\nUse"), stop=("\nUser",))
        assert texts == ["", "a", "a", "a", "a", "a", "a\nUse"]
        texts, _ = stream_pieces(list("a\nUs!"), stop=("\nUser",))
        assert texts[-2:] == ["a\nUs!", "a\nUs!"]

    def test_a_stop_string_of_several_byte_characters(self):
        decoder = byte_level()
        texts, matched = stream(decoder, decoder.encode("fox 日本語 dog"), stop=("本",))
        assert (texts[-1], matched) == ("fox 日", "本")

    def test_completed_by_what_was_pending_at_the_end(self):
        """'ab' arrives together with half a character, and the output ends there."""
        half = byte_level().encode("👍")[0]
        decoder = byte_level()

        class Glued:
            def decode(self, ids, skip_special_tokens=True):
                return decoder.decode([i for token in ids for i in ([*decoder.encode("ab"), half] if token else [])])

        detok = Detokenizer(Glued(), SamplingParams(stop=("b",)), [])
        assert detok.append(1) is None
        assert (detok.finish(), detok.text) == ("b", "a")

    @pytest.mark.parametrize(
        ("text", "stops", "held"),
        [("abc", ("cd",), 1), ("abc", ("abcd", "bc"), 3), ("abc", ("x",), 0), ("", ("ab",), 0)],
    )
    def test_longest_partial_match(self, text, stops, held):
        assert longest_partial_match(text, stops) == held

    def test_matches_are_in_the_order_of_their_ends(self):
        assert matches("abcdbc", ("abcd", "bc", "c")) == [(3, "bc"), (3, "c"), (4, "abcd"), (6, "bc"), (6, "c")]
        assert matches("aaa", ("aa",)) == [(2, "aa"), (3, "aa")]
        assert matches("abcd", ("x",)) == []


CHECKS = {
    "characters": check_whole_characters,
    "prompt": check_space_after_prompt,
    "special": check_special_tokens,
    "stop": check_stop_strings,
}

MUTANTS = [
    ("half characters released", "text.endswith(REPLACEMENT_CHARACTER) and", "False and", "characters"),
    ("no context", "prompt_token_ids[-NUM_CONTEXT_TOKENS:]", "prompt_token_ids[:0]", "prompt"),
    ("context forgotten", "del self._window[: self._num_context]", "self._window.clear()", "prompt"),
    ("special tokens become the context", "            self._window.pop()\n            return None\n", "            pass\n", "special"),
    ("special tokens kept", "skip_special_tokens=self._params.skip_special_tokens", "skip_special_tokens=False", "special"),
    ("nothing held back", "num_released = len(text) - num_held", "num_released = len(text)", "stop"),
    ("held text lost at the end", "self._pieces.append(self._held)", "pass", "stop"),
    ("stop string kept", "else end - len(matched)", "else end", "stop"),
    ("first listed instead of first complete", "in sorted(ends)", "in ends", "stop"),
    ("shorter of two that end together", "-len(stop), stop)", "len(stop), stop)", "stop"),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=[name for name, *_ in MUTANTS])
def test_mutants(mutant):
    name, old, new, check = mutant
    KillTable.record(Mutant(name, "twophase.engine.detokenizer", old, new), CHECKS[check])
