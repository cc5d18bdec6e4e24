"""Bounds the characters per token, so that a text that cannot fit is refused by its length, before it is encoded."""

import re
from collections.abc import Collection
from typing import Any, NamedTuple

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

# Normalisers and pre-tokenizers that drop nothing. NFC alone makes a text shorter, to a quarter at most (UAX 15).
_KEEP_TEXT = {"Sequence", "ByteLevel", "Digits", "Metaspace", "NFC", "Prepend", "Replace", "Split"}
_SPACES = '"type":"Replace","pattern":{"String":" "},"content":"▁"'  # Llama 2 and Gemma; other patterns may drop text


class TokenLength(NamedTuple):
    """The most characters of one token, and the characters that have no token and are dropped."""

    longest: int
    dropped: str

    def least_tokens(self, text: str) -> int:
        """A lower bound on the number of tokens."""
        return -(-(len(text) - sum(map(text.count, self.dropped))) // self.longest)


def token_length(tokenizer: Tokenizer) -> TokenLength | None:
    """None: no bound is known, because text may be dropped, or one token may stand for many characters.

    (A byte-level vocabulary writes a byte as a character, and a text has no more characters than bytes.)
    """
    vocabulary = tokenizer.get_vocab()
    steps = "".join(x.__getstate__().decode() for x in (tokenizer.normalizer, tokenizer.pre_tokenizer) if x)
    types = re.findall(r'"type":"(\w+)"', steps)
    dropped = _dropped(tokenizer.model, types, vocabulary)
    keeps_text = _KEEP_TEXT.issuperset(types) and '"Removed"' not in steps
    replaces_spaces_alone = steps.count(_SPACES) == types.count("Replace")
    takes_space = any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values())
    if dropped is None or not keeps_text or not replaces_spaces_alone or takes_space:
        return None
    return TokenLength(max(map(len, vocabulary), default=1) * 4 ** types.count("NFC"), dropped)


def _dropped(model: Any, types: Collection[str], vocabulary: Collection[str]) -> str | None:
    """Characters that leave nothing; None: any character may, or one token may stand for many characters."""
    if type(model).__name__ != "BPE":
        return None
    if model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        return ""
    # A character of several bytes leaves something if the vocabulary has all bytes that can come second: 0x80 to 0xBF.
    if "ByteLevel" not in types or any(_written(chr(byte))[1] not in vocabulary for byte in range(0x80, 0xC0)):
        return None
    dropped = "".join(character for character in map(chr, range(0x80)) if _written(character) not in vocabulary)
    return None if dropped and model.unk_token is not None else dropped


def _written(character: str) -> str:
    """A byte-level vocabulary's form of a character: one character for each of its bytes."""
    ((text, _),) = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(character)
    return text
