"""Incremental text equals the text decoded at once, is never taken back, and stops where it should."""

import codecs
import itertools
import os

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.engine.tokenizers_for_tests import ALL, END, KINDS, TEXT, byte_fallback, byte_level, glued_bytes
from tests.mutation import KillTable, Mutant, installed
from twophase.core.request import SamplingParams
from twophase.engine import detokenizer
from twophase.engine.detokenizer import REPLACEMENT_CHARACTER, Detokenizer
from twophase_features import stop_strings


def stream(decoder, ids, prompt_ids=(), *, module=detokenizer, **options) -> tuple[list[str], str | None]:
    """The text after each token and after the end, and the stop string that matched. Checks that text only grows."""
    with installed(module):
        detok = getattr(module, "Detokenizer", Detokenizer)(decoder, SamplingParams(**options), prompt_ids)
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


# In every run, and as they come: a mutant need not be killed by the smallest example.
SAME_EXAMPLES = settings(deadline=None, derandomize=True, database=None, phases=[Phase.generate])


class CharacterDecoder:
    """A token is a character: for stop strings, where token boundaries are what is varied."""

    def __init__(self, tokens):
        self.tokens = tokens

    def decode(self, ids, skip_special_tokens=True):
        return "".join(self.tokens[i] for i in ids)


def stream_pieces(pieces, module=detokenizer, **options) -> tuple[list[str], str | None]:
    return stream(CharacterDecoder(pieces), range(len(pieces)), module=module, **options)


def expected_text(name, prompt, output, skips_special=True) -> str:
    """The text by its definition, read off the tokenizer's own decoding of everything at once.

    For byte tokens, which that decoder unmakes by the run, the bytes are read here: whole characters stand.
    """
    read = read_bytes if name == "byte fallback" else ALL[name]().decode
    before, everything = read(list(prompt), skips_special), read([*prompt, *output], skips_special)
    return everything[len(os.path.commonprefix([before, everything])) :]  # noqa: RUF071


def read_bytes(ids, skips_special) -> str:
    """Byte tokens and text, byte by byte; every byte that is of no character becomes U+FFFD."""
    pieces = [
        byte_fallback().tokenizer.id_to_token(i) for i in ids if not (skips_special and i == byte_fallback().end_id)
    ]
    parts = [bytes([int(p[3:5], 16)]) if p.startswith("<0x") else p.replace("▁", " ").encode() for p in pieces]
    return b"".join(parts).decode("utf-8", "a U+FFFD for each byte").removeprefix(" ")


codecs.register_error("a U+FFFD for each byte", lambda e: (REPLACEMENT_CHARACTER * (e.end - e.start), e.end))


def tokens_of(name) -> st.SearchStrategy:
    """Pieces of text, any tokens, runs of a special token or of half a character.

    Left out is what the definition leaves open: U+FFFD and a space, written as byte tokens beside stray bytes.
    """
    decoder = ALL[name]()
    is_open = set()
    if name == "byte fallback":
        is_open = {decoder.byte_id(byte) for byte in b"\xef\xbf\xbd\x20"}
    parts = [st.integers(0, decoder.vocab_size - 1).filter(lambda i: i not in is_open).map(lambda i: [i])]
    repeated = [decoder.end_id] if name == "words" else [decoder.end_id, decoder.byte_id(0xE6), decoder.byte_id(0xF0)]
    parts.append(st.tuples(st.sampled_from(repeated), st.integers(1, 20)).map(lambda run: [run[0]] * run[1]))
    if name in KINDS:
        texts = ("the fox", "日本", "👍🏽é", " a", "語語")
        parts.append(st.sampled_from([decoder.encode(text)[name == "byte fallback" :] for text in texts]))
    return st.lists(st.one_of(parts), max_size=8).map(lambda lists: [*itertools.chain(*lists)])


@st.composite
def conversations(draw):
    name = draw(st.sampled_from(list(ALL)))
    return name, draw(tokens_of(name)), draw(tokens_of(name)), draw(st.booleans())


def check_any_tokens(module) -> None:
    """What is streamed is decode(prompt + output), less what it has in common with decode(prompt)."""

    @given(conversations())
    @settings(SAME_EXAMPLES, max_examples=300)
    def check(case):
        name, prompt, output, skips = case
        texts, _ = stream(ALL[name](), output, prompt, module=module, skip_special_tokens=skips)
        assert texts[-1] == expected_text(name, prompt, output, skips)

    check()


def check_junk(module) -> None:
    """However many bytes are no character: each is U+FFFD, and characters among them come as soon as they are whole."""
    for name, kind in KINDS.items():
        decoder = kind()
        letter = [decoder.byte_id(byte) for byte in "日".encode()]
        half = letter[:1]
        for num_junk in (1, 2, 7, 8, 9, 20):
            texts, _ = stream(decoder, [*half * num_junk, *letter, *half], module=module)
            assert texts[-3] == REPLACEMENT_CHARACTER * num_junk + "日", (name, num_junk)
            assert texts[-1] == REPLACEMENT_CHARACTER * num_junk + "日" + REPLACEMENT_CHARACTER, (name, num_junk)
        between = [letter[0], *[decoder.end_id] * 20, *letter[1:]]
        assert stream(decoder, between, module=module)[0][-1] == "日", "special tokens in the middle of a character"
    # Byte-level, three quarters of a character are one U+FFFD.
    ids = [*map(byte_level().byte_id, "👍".encode()[:3]), *[byte_level().byte_id(0xE6)] * 12]
    assert stream(byte_level(), ids, module=module)[0][-1] == byte_level().decode(ids)
    # A token may hold a character and half of the next: the character is not kept waiting.
    decoder, text = glued_bytes(), "日本".encode()
    token, rest = decoder.byte_id(*text[:4]), [decoder.byte_id(byte) for byte in text[4:]]
    assert stream(decoder, [token, *rest], module=module)[0] == ["", "日", "日", "日本", "日本"]


def test_work_per_token_does_not_grow():
    decoder, lengths = byte_level(), []

    class Spy:
        def decode(self, ids, skip_special_tokens=True):
            lengths.append(len(ids))
            return decoder.decode(ids, skip_special_tokens)

    junk = [decoder.encode("日")[0]] * 300  # never a character
    ids = decoder.encode(TEXT) * 10 + [decoder.end_id] * 300 + junk + decoder.encode(TEXT)
    stream(Spy(), ids)
    assert max(lengths) <= 2 * detokenizer.MAX_PENDING_TOKENS + 1
    assert len(lengths[: -7 * 300]) <= 2.2 * len(ids), "a token of text is decoded twice"
    assert len(lengths) <= 2.2 * len(ids) + 7 * 300, "one that is none, a few times more"


@st.composite
def cut_texts(draw):
    text = draw(st.text("ab", min_size=1, max_size=20))
    cuts = sorted(draw(st.sets(st.integers(1, len(text)), max_size=8)) | {0, len(text)})
    stops = tuple(draw(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3)))
    return text, [text[a:b] for a, b in itertools.pairwise(cuts)], stops, draw(st.booleans())


def check_stop_strings(module) -> None:
    """Independent oracle: read the text character by character until it ends with a stop string."""

    @given(cut_texts())
    @settings(SAME_EXAMPLES, max_examples=300)
    def check(case):
        text, pieces, stops, include = case
        expected, expected_stop = text, None
        for end in range(1, len(text) + 1):
            found = [stop for stop in stops if text[:end].endswith(stop)]
            if found:
                expected_stop = max(found, key=len)
                expected = text[:end] if include else text[: end - len(expected_stop)]
                break
        texts, matched = stream_pieces(pieces, module, stop=stops, include_stop_str_in_output=include)
        assert (texts[-1], matched) == (expected, expected_stop)

    check()


def check_special_stops(module) -> None:
    """A special token that is left out stops by its text; what was held back is text then, half a character too."""
    for kind in (byte_level, byte_fallback):
        decoder = kind()
        ids = [*decoder.encode("the fox"), decoder.byte_id(0xE6), decoder.end_id]
        for include in (False, True):
            texts, matched = stream(decoder, ids, module=module, stop=("fox!", END), include_stop_str_in_output=include)
            assert (texts[-1], matched) == (f"the fox{REPLACEMENT_CHARACTER}{END * include}", END)


def test_only_what_may_become_a_stop_string_is_held_back():
    assert stream_pieces(list("a\nUse"), stop=("\nUser",))[0] == ["", "a", "a", "a", "a", "a", "a\nUse"]
    assert stream_pieces(list("a\nUs!"), stop=("\nUser",))[0][-2:] == ["a\nUs!", "a\nUs!"]


def test_a_stop_string_completed_by_what_was_pending_at_the_end():
    decoder = byte_level()
    ids = [*decoder.encode("ab"), decoder.byte_id(0xE6)]
    texts, matched = stream(decoder, ids, stop=(f"b{REPLACEMENT_CHARACTER}",))
    assert (texts[-1], matched) == ("a", f"b{REPLACEMENT_CHARACTER}")


CHECKS = {
    "tokens": check_any_tokens,
    "junk": check_junk,
    "stop": check_stop_strings,
    "special stop": check_special_stops,
}
MODULES = {"tokens": detokenizer, "junk": detokenizer, "stop": stop_strings, "special stop": stop_strings}


@pytest.mark.parametrize("check", CHECKS)
def test_texts(check):
    CHECKS[check](MODULES[check])


MUTANTS = [
    ("half characters released", "self._settle(self._pending_text.rstrip(REPLACEMENT_CHARACTER))", "self._settle(self._pending_text)", "tokens"),
    ("no context", "self._context, self._pending = self._pending[-num_last:], []", "self._context, self._pending = [], []", "tokens"),
    ("context in mid-character", "self._pending[-num_last:], []", "self._pending, []", "tokens"),
    ("context spoiled", "if text.startswith(self._context_text) else self._decode(token_ids)", "", "junk"),
    ("the prompt's half is forgotten", "if may_end is not None:", "if True:", "tokens"),
    ("the prompt's half is the output's", "self._settled = self._pending_text  #", "self._settled = ''  #", "tokens"),
    ("what the output completes is the prompt's", "text[start:]", "text[len(self._settled):]", "tokens"),
    ("the end lost", "rest = self._settle(self._pending_text)\n", "rest = self._settle(self._pending_text.rstrip(REPLACEMENT_CHARACTER))\n", "tokens"),
    ("characters lost among junk", "if _is_whole(character):", "if False:", "junk"),
    ("a character beside half of one waits", "        piece = self._settle(self._pending_text.rstrip(REPLACEMENT_CHARACTER))", "        piece = self._settle(self._pending_text if _is_whole(self._pending_text) else '')", "junk"),
    ("junk dropped in silence", "piece += self._drop_oldest()", "self._drop_oldest()", "junk"),
    ("junk told twice", "text, text[: len(text) - num_open]", "text, ''", "junk"),
    ("special tokens pend", "            return None\n        self._pending.append", "            pass\n        self._pending.append", "junk"),
    ("special tokens kept", "skip_special_tokens=self._skips_special", "skip_special_tokens=False", "tokens"),
    ("nothing held back", "len(text) - longest_partial_match(text, stops)", "len(text)", "stop"),
    ("held text lost at the end", "self._released.append(self._held)", "pass", "stop"),
    ("stop string kept", "else end - len(matched)", "else end", "stop"),
    ("first listed instead of first complete", "in sorted(ends)", "in ends", "stop"),
    ("shorter of two that end together", "-len(stop), stop)", "len(stop), stop)", "stop"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=[name for name, *_ in MUTANTS])
def test_mutants(mutant):
    name, old, new, check = mutant
    KillTable.record(Mutant(name, MODULES[check].__name__, old, new), CHECKS[check])
