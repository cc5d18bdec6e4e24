"""Incremental text equals the text decoded at once, is never taken back, and stops where it should."""

import codecs
import itertools
import os

import pytest
from hypothesis import given, settings
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
        first, *others = [decoder.byte_id(byte) for byte in "日".encode()]
        texts, _ = stream(decoder, [first, *[decoder.end_id] * 20, *others], module=module)
        assert texts[-1] == "日", "special tokens in the middle of a character"


def check_cuts(module) -> None:
    """Wherever a text is cut into prompt and output: the output's text is what the prompt's whole characters leave."""
    for name, kind in KINDS.items():
        decoder = kind()
        ids = decoder.encode("fox 語語語語 日👍🏽a 語 b")
        for cut in range(1, len(ids)):
            text = stream(decoder, ids[cut:], ids[:cut], module=module)[0][-1]
            assert text == expected_text(name, ids[:cut], ids[cut:]), f"{name}, cut after {cut} tokens"
    fallback = byte_fallback()
    for answer in ("a b", "語", "語a"):
        output = fallback.encode(answer)[1:]  # without the space of a text's start
        assert stream(fallback, output, fallback.encode("語語"), module=module)[0][-1] == answer


def check_replacement_characters(module) -> None:
    for name, kind in KINDS.items():
        decoder = kind()
        whole, rest = decoder.encode("a\ufffd"), decoder.encode("fox\ufffd")
        after = decoder.decode([*whole, *rest])[2:]
        assert stream(decoder, rest, whole, module=module)[0][-1] == after, name
        assert after.endswith("fox\ufffd")


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
    # Byte-level, three quarters of a character are one U+FFFD.
    ids = [*map(byte_level().byte_id, "👍".encode()[:3]), *[byte_level().byte_id(0xE6)] * 12]
    assert stream(byte_level(), ids, module=module)[0][-1] == byte_level().decode(ids)
    # A token may hold a character and half of the next: the character is not kept waiting.
    decoder, text = glued_bytes(), "日本".encode()
    token, rest = decoder.byte_id(*text[:4]), [decoder.byte_id(byte) for byte in text[4:]]
    texts, matched = stream(decoder, [token, *rest], stop=("日",), module=module)
    assert (texts, matched) == (["", ""], "日")
    assert stream(decoder, [token, *rest], module=module)[0] == ["", "日", "日", "日本", "日本"]


def expected_text(name, prompt, output) -> str:
    """The text by its definition, read off the tokenizer's own decoding of everything at once.

    For byte tokens, which that decoder unmakes by the run, the bytes are read here: whole characters stand.
    """
    read = read_bytes if name == "byte fallback" else ALL[name]().decode
    before, everything = read(list(prompt)), read([*prompt, *output])
    return everything[len(os.path.commonprefix([before, everything])) :]  # noqa: RUF071


def read_bytes(ids) -> str:
    """Byte tokens and text, byte by byte; every byte that is of no character becomes U+FFFD."""
    pieces = [byte_fallback().tokenizer.id_to_token(i) for i in ids if i != byte_fallback().end_id]
    parts = [bytes([int(p[3:5], 16)]) if p.startswith("<0x") else p.replace("▁", " ").encode() for p in pieces]
    return b"".join(parts).decode("utf-8", "a U+FFFD for each byte").removeprefix(" ")


codecs.register_error("a U+FFFD for each byte", lambda e: (REPLACEMENT_CHARACTER * (e.end - e.start), e.end))


def token_ids(name) -> st.SearchStrategy:
    """Tokens, more of them of whole characters than chance would have it; none of what the definition leaves open.

    That is U+FFFD itself and a space, written as byte tokens beside bytes that are no character.
    """
    decoder = ALL[name]()
    any_token = st.integers(0, decoder.vocab_size - 1)
    if name != "byte fallback":
        return any_token
    open_cases = {decoder.tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in b"\xef\xbf\xbd\x20"}
    usual = [i for text in "日👍é" for i in decoder.encode(text)[1:]]
    return st.one_of(any_token.filter(lambda i: i not in open_cases), st.sampled_from(usual))


class TestCharacters:
    @pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
    def test_half_a_character_is_shown_at_the_end_only(self, kind):
        decoder = kind()
        ids = decoder.encode("dog 👍")
        texts, _ = stream(decoder, ids[:-1])
        assert texts[-2] == "dog "
        assert texts[-1] == decoder.decode(ids[:-1])

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
        assert max(lengths) <= 2 * detokenizer.MAX_PENDING_TOKENS + 1
        assert len(lengths[: -7 * 300]) <= 2.2 * len(ids), "a token of text is decoded twice"
        assert len(lengths) <= 2.2 * len(ids) + 7 * 300, "one that is none, a few times more"

    @given(st.sampled_from(list(ALL)), st.data())
    @settings(max_examples=300, deadline=None)
    def test_any_tokens(self, name, data):
        """What is streamed is decode(prompt + output), less what it has in common with decode(prompt)."""
        decoder = ALL[name]()
        token = token_ids(name)
        prompt, output = data.draw(st.lists(token, max_size=14)), data.draw(st.lists(token, max_size=20))
        texts, _ = stream(decoder, output, prompt)
        assert texts[-1] == expected_text(name, prompt, output)


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
    # A special token that is left out stops by its text; what was held back is text then, half a character too.
    for kind in (byte_level, byte_fallback):
        decoder = kind()
        ids = [*decoder.encode("the fox"), decoder.byte_id(0xE6), decoder.end_id]
        for include in (False, True):
            texts, matched = stream(decoder, ids, module=module, stop=("fox!", END), include_stop_str_in_output=include)
            assert (texts[-1], matched) == (f"the fox{REPLACEMENT_CHARACTER}{END * include}", END)
    # Two end together: the longer one is cut.
    assert stream_pieces(["say hello"], module, stop=("llo", "hello"))[0][-1] == "say "


@st.composite
def cut_texts(draw):
    text = draw(st.text("ab", min_size=1, max_size=20))
    cuts = sorted(draw(st.sets(st.integers(1, len(text)), max_size=8)) | {0, len(text)})
    stops = tuple(draw(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3)))
    return text, [text[a:b] for a, b in itertools.pairwise(cuts)], stops


class TestStopStrings:
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
        assert (detok.append(1), detok.text) == ("b", "a")
        detok = Detokenizer(Glued(), SamplingParams(stop=(f"b{REPLACEMENT_CHARACTER}",)), [])
        assert detok.append(1) is None
        assert (detok.finish(), detok.text) == (f"b{REPLACEMENT_CHARACTER}", "a")


CHECKS = {
    "characters": check_whole_characters,
    "prompt": check_space_after_prompt,
    "special": check_special_tokens,
    "cuts": check_cuts,
    "replacement": check_replacement_characters,
    "junk": check_junk,
    "stop": check_stop_strings,
}
MODULES = dict.fromkeys(CHECKS, detokenizer) | {"stop": stop_strings}


@pytest.mark.parametrize("check", CHECKS)
def test_texts(check):
    CHECKS[check](MODULES[check])


MUTANTS = [
    ("half characters released", "self._settle(self._pending_text.rstrip(REPLACEMENT_CHARACTER))", "self._settle(self._pending_text)", "characters"),
    ("no context", "self._context, self._pending = self._pending[-num_last:], []", "self._context, self._pending = [], []", "prompt"),
    ("context in mid-character", "self._pending[-num_last:], []", "self._pending, []", "cuts"),
    ("context spoiled", "if text.startswith(self._context_text) else self._decode(token_ids)", "", "junk"),
    ("the prompt's half is forgotten", "if may_end is not None:", "if True:", "cuts"),
    ("the prompt's half is the output's", "self._settled = self._pending_text  #", "self._settled = ''  #", "replacement"),
    ("what the output completes is the prompt's", "text[start:]", "text[len(self._settled):]", "cuts"),
    ("the end lost", "rest = self._settle(self._pending_text)\n", "rest = self._settle(self._pending_text.rstrip(REPLACEMENT_CHARACTER))\n", "replacement"),
    ("characters lost among junk", "if _is_whole(character):", "if False:", "junk"),
    ("a character beside half of one waits", "        piece = self._settle(self._pending_text.rstrip(REPLACEMENT_CHARACTER))", "        piece = self._settle(self._pending_text if _is_whole(self._pending_text) else '')", "junk"),
    ("junk dropped in silence", "piece += self._drop_oldest()", "self._drop_oldest()", "junk"),
    ("junk told twice", "text, text[: len(text) - num_open]", "text, ''", "junk"),
    ("special tokens pend", "            return None\n        self._pending.append", "            pass\n        self._pending.append", "special"),
    ("special tokens kept", "skip_special_tokens=self._skips_special", "skip_special_tokens=False", "special"),
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
