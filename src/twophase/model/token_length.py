"""How much text one token can stand for: a text that cannot fit is refused by its length, before it is encoded."""

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.pre_tokenizers import ByteLevel

# By how much a normaliser can divide the number of characters, at most. A character decomposes to one or more, so the
# D forms never shorten a text; and what the C forms have composed decomposes to 4 at most (Unicode, UAX 15).
_SHRINKS = {"ByteLevel": 1, "Lowercase": 1, "NFC": 4, "NFD": 1, "NFKC": 4, "NFKD": 1, "Prepend": 1}
_KEEP_TEXT = ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "UnicodeScripts")  # pre-tokenizers


class TokenLength(NamedTuple):
    """What bounds the number of a text's tokens.

    Attributes:
        longest: Characters of a text that one token stands for at most.
        dropped: Characters that no token stands for: the vocabulary lacks them, and has no token for the unknown.
    """

    longest: int
    dropped: str

    def least_tokens(self, text: str) -> int:
        """How many tokens a text has, or more."""
        return -(-(len(text) - sum(map(text.count, self.dropped))) // self.longest)


def token_length(tokenizer: FastTokenizer) -> TokenLength | None:
    """None: no bound is known.

    A byte-level vocabulary writes each byte as one character, and a text has no more characters than bytes. There is no
    bound where text is dropped (white space, accents), or a token stands for a run of any length: of unknown
    characters, or of the white space beside an added token.
    """
    steps = _steps(tokenizer.normalizer), _steps(tokenizer.pre_tokenizer)
    vocabulary = tokenizer.get_vocab()
    dropped = _dropped(tokenizer.model, [step["type"] for each in steps for step in each], vocabulary)
    has_greedy = any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values())
    if dropped is None or has_greedy or not all(map(_keeps_text, steps[1])):
        return None
    longest = max(map(len, vocabulary), default=1)
    for step in steps[0]:
        factor = _shrinks(step)
        if factor is None:
            return None
        longest *= factor
    return TokenLength(longest, dropped)


def _steps(component: Any) -> list[dict[str, Any]]:
    """A normaliser or a pre-tokenizer as tokenizer.json describes it, sequences unfolded."""
    return [] if component is None else _unfolded(json.loads(component.__getstate__()))


def _unfolded(step: dict[str, Any]) -> list[dict[str, Any]]:
    inner = step.get("normalizers", step.get("pretokenizers"))
    return [step] if inner is None else [found for each in inner for found in _unfolded(each)]


def _keeps_text(step: Mapping[str, Any]) -> bool:
    return step["type"] in _KEEP_TEXT and step.get("behavior") != "Removed"


def _shrinks(step: Mapping[str, Any]) -> int | None:
    if step["type"] == "Replace":
        old, new = step["pattern"].get("String"), step["content"]
        return 1 if old is not None and len(old) <= len(new) else None
    return _SHRINKS.get(step["type"])


def _dropped(model: Any, types: Collection[str], vocabulary: Mapping[str, int]) -> str | None:
    """Characters that leave nothing; None: it may be any, or one token may stand for many."""
    if type(model).__name__ != "BPE":
        return None
    if model.byte_fallback and vocabulary.keys() >= {f"<0x{byte:02X}>" for byte in range(256)}:
        return ""
    if model.unk_token is not None:
        return None if model.fuse_unk else ""
    if "ByteLevel" not in types:
        return None
    # Of a character of several bytes something is left if all bytes are there that can come second: 0x80 to 0xBF.
    if any(_written(chr(byte))[1] not in vocabulary for byte in range(0x80, 0xC0)):
        return None
    return "".join(character for character in map(chr, range(0x80)) if _written(character) not in vocabulary)


def _written(character: str) -> str:
    """As a byte-level vocabulary writes it: a character for each of its bytes."""
    ((text, _),) = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(character)
    return text
