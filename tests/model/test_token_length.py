"""The bound on the number of tokens holds for every text, and there is none where none can hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from tests.engine.tokenizers_for_tests import byte_fallback, byte_level, words
from twophase_features.token_length import token_length


def changed(base=byte_level, added=(), **parts):
    tokenizer = FastTokenizer.from_str(base().tokenizer.to_str())
    tokenizer.add_tokens(list(added))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def of_bytes(lacking, **options):
    vocabulary = {each: i for i, each in enumerate(sorted({*pre_tokenizers.ByteLevel.alphabet()} - {lacking}))}
    return changed(model=models.BPE(vocabulary, [], **options))


SPLIT = pre_tokenizers.Split(" ", "removed")
BOUNDS = {
    "byte-level": (changed(), (7, "")),
    "byte fallback": (changed(byte_fallback), (7, "")),
    "composing": (changed(normalizer=normalizers.NFC()), (28, "")),
    "control characters that are dropped": (of_bytes("Ą"), (7, "\x04")),
    "first bytes that are dropped": (of_bytes("ñ"), (7, "")),
    "second bytes that are dropped": (of_bytes("Ģ"), None),
    "unknown characters in one token": (of_bytes("Ą", unk_token="a", fuse_unk=True), None),
    "white space beside a token": (changed(added=[AddedToken("<mask>", lstrip=True)]), None),
    "words": (words().tokenizer, None),
    "shorter by a pattern": (changed(normalizer=normalizers.Replace("  ", " ")), None),
    "without accents": (changed(normalizer=normalizers.StripAccents()), None),
    "without spaces": (changed(pre_tokenizer=pre_tokenizers.Sequence([SPLIT, pre_tokenizers.ByteLevel()])), None),
}  # fmt: skip


@pytest.mark.parametrize("kind", BOUNDS)
@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(st.sampled_from(["<|end|>", "\x04", "ω\u0313\u0300\u0345", "\u212b", "ㅎ", "a", " ", "  ", "日"]))
)
def test_bounds(kind, parts):
    tokenizer, expected = BOUNDS[kind]
    bound = token_length(tokenizer)
    assert bound == expected
    text = "".join(parts)
    if bound is not None:
        assert len(tokenizer.encode(text, add_special_tokens=False)) >= bound.least_tokens(text)
