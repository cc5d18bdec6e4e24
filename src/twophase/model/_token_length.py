"""How much text one token can stand for: a text that cannot fit is refused by its length, before it is encoded."""

import re
from collections.abc import Collection
from typing import Any, NamedTuple

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.pre_tokenizers import ByteLevel

# Normalisers and pre-tokenizers that drop nothing. NFC alone makes a text shorter, to a quarter at most (UAX 15).
_KEEP_TEXT = {"Sequence", "ByteLevel", "Digits", "Metaspace", "NFC", "Prepend", "Replace", "Split"}
_SPACES = '"type":"Replace","pattern":{"String":" "},"content":"▁"'  # of Llama 2 and Gemma; others may drop text


class TokenLength(NamedTuple):
    """Characters that one token stands for at most, and those that have no token and leave nothing."""

    longest: int
    dropped: str

    def least_tokens(self, text: str) -> int:
        """How many tokens a text has, or more."""
        return -(-(len(text) - sum(map(text.count, self.dropped))) // self.longest)


def token_length(tokenizer: FastTokenizer) -> TokenLength | None:
    """None: no bound is known, since text may be dropped, or a token stand for a run of white space, or of unknown
    characters. (Byte-level vocabularies write each byte as a character, and a text has no more characters than bytes.)
    """
    vocabulary = tokenizer.get_vocab()
    parts = [part.__getstate__().decode() for part in (tokenizer.normalizer, tokenizer.pre_tokenizer) if part]
    steps = "".join(parts)
    types = re.findall(r'"type":"(\w+)"', steps)
    dropped = _dropped(tokenizer.model, types, vocabulary)
    if dropped is None or not _KEEP_TEXT.issuperset(types) or '"Removed"' in steps:
        return None
    if steps.count(_SPACES) != types.count("Replace"):
        return None
    if any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values()):
        return None
    return TokenLength(max(map(len, vocabulary), default=1) * 4 ** types.count("NFC"), dropped)


def _dropped(model: Any, types: Collection[str], vocabulary: Collection[str]) -> str | None:
    """Characters that leave nothing; None: it may be any, or one token may stand for many."""
    if type(model).__name__ != "BPE":
        return None
    if model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        return ""
    # Of a character of several bytes something is left if all bytes are there that can come second: 0x80 to 0xBF.
    if "ByteLevel" not in types or any(_written(chr(byte))[1] not in vocabulary for byte in range(0x80, 0xC0)):
        return None
    dropped = "".join(character for character in map(chr, range(0x80)) if _written(character) not in vocabulary)
    return None if dropped and model.unk_token is not None else dropped


def _written(character: str) -> str:
    """As a byte-level vocabulary writes it: a character for each of its bytes."""
    ((text, _),) = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(character)
    return text
