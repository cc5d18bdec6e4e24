"""Guided decoding: at each position, only tokens with which the output can still become what was asked for.

The grammars are llguidance's. Three libraries were compared on SmolLM2's vocabulary of 49,152 tokens, in one thread, on
a schema of nested arrays and objects; all have wheels for Linux, macOS and Windows:

                             llguidance 1.9.1    xgrammar 0.2.8               outlines-core 0.2.14
    licence                  MIT                 Apache-2.0                   Apache-2.0
    depends on               nothing             torch, transformers, 4 more  nothing
    wheels                   one for all Pythons one for each Python          one for each Python
    import                   10 ms               0.2 s, and transformers      1 ms
    vocabulary, once         0.4 s               3 s, through transformers    0.3 s
    compile the schema       1 ms                80 ms                        1.5 s
    mask: mean, longest      0.1 ms, 5 ms        0.6 ms, 8 ms                 0.01 ms, 0.1 ms
    uniqueItems, contains    refused by name     ignored                      ignored
    multipleOf               enforced            ignored                      ignored

A schema is ready as soon as its request comes, the masks cost little beside a step of the model, and a keyword that
cannot be enforced is an error, not an output that claims to be valid. outlines-core (arXiv:2307.09702) puts all work
into an index made beforehand, xgrammar (arXiv:2411.15100) part of it, llguidance none.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np
from jaxtyping import UInt32

from twophase.core.errors import InvalidRequestError, TwophaseError
from twophase.core.sampling_params import SamplingParams
from twophase.core.structured_outputs import StructuredOutputs

WORD_BITS = 32  # tokens per word of a mask
MAX_MESSAGE = 300  # characters of what the library has to say

# Each of these is said, because a schema may bring its own ("x-guidance"), which may not loosen anything.
JSON_OPTIONS: Any = {
    "lenient": False,  # a keyword that is not enforced is an error
    "coerce_one_of": False,  # nor is oneOf taken for anyOf
    # As json.dumps writes it. Free white space invites a model to write nothing else until max_tokens.
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # Not u: \u0061 would be a second way to write "a", and slip past what the schema says of property "a".
    "json_allowed_escapes": '"\\bfnrt',
}

# In a regular expression \d, \w and \s mean ASCII: what they are beyond that differs between Rust, Python and editions
# of Unicode, so that an output could fail the reader's own check.
ASCII_CLASSES = "dws"


class GuidanceError(TwophaseError):
    """The grammar library gave up on one sequence."""


@final
class Guidance:
    """A model's vocabulary as the grammar library wants it, made when the first guided request comes.

    Args:
        tokenizer_json: Returns the tokenizer as the text of a tokenizer.json.
        eos_token_ids: The model's end-of-text ids.
    """

    def __init__(self, tokenizer_json: Callable[[], str], eos_token_ids: frozenset[int]) -> None:
        self._tokenizer_json = tokenizer_json
        self._eos_token_ids = eos_token_ids
        self._vocabulary: Any = None

    def compile(self, params: SamplingParams) -> "Grammar":
        """The grammar of a request that has structured outputs.

        Every request compiles its own: requests that shared one would also share what it has computed, and its faults.

        Raises:
            InvalidRequestError: The schema or regular expression is wrong, cannot be enforced, or accepts nothing; or
                the model has no end-of-text token to end with.
        """
        outputs = params.structured_outputs
        assert outputs is not None
        if not self._eos_token_ids:
            raise InvalidRequestError(
                "structured_outputs end with the model's end-of-text token, and its folder names none (eos_token_id)."
            )
        if self._vocabulary is None:
            self._vocabulary = self._load_vocabulary()
        matcher = _matcher(self._vocabulary, outputs)
        return Grammar(self._vocabulary, matcher, self._eos_token_ids.union(params.stop_token_ids))

    def _load_vocabulary(self) -> Any:
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            raise InvalidRequestError(
                f"structured_outputs need the package llguidance, which cannot be imported here ({error}); "
                f"pip install the version pinned in requirements.txt."
            ) from error
        try:
            return LLTokenizer(self._tokenizer_json(), eos_token=sorted(self._eos_token_ids))
        except ValueError as error:
            raise InvalidRequestError(
                f"structured_outputs: llguidance cannot use this model's tokenizer ({_one_line(str(error))})."
            ) from error


@final
class Grammar:
    """What one request's outputs may be. Immutable; its guides share what they compute.

    Args:
        vocabulary, matcher: The library's; the matcher is at the start.
        end_token_ids: End-of-text ids and the request's stop ids.
    """

    def __init__(self, vocabulary: Any, matcher: Any, end_token_ids: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._matcher = matcher
        self._end_token_ids = end_token_ids

    def guide(self) -> "Guide":
        """A completion's own state, at its start."""
        return Guide(self._matcher.deep_copy(), self._vocabulary.vocab_size, self._end_token_ids)

    def accepts(self, text: str) -> bool:
        """Whether `text` is complete as it stands."""
        matcher = self._matcher.deep_copy()
        return matcher.consume_tokens(self._vocabulary.greedy_tokenize(text)) and matcher.is_accepting()


@final
class Guide:
    """Where one completion stands in its grammar: a function of the tokens that it has.

    It is told all of them each time and reads those that are new. So a step that is repeated, or a preemption after
    which the prompt and the output are computed once more, leaves it where it should be.
    """

    def __init__(self, matcher: Any, vocab_size: int, end_token_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._num_library_words = -(-vocab_size // WORD_BITS)
        # A model may have tokens, stop ids among them, of which its tokenizer knows nothing.
        self._num_words = max(self._num_library_words, max(end_token_ids) // WORD_BITS + 1)
        self._end_token_ids = end_token_ids
        self._num_read = 0

    def allowed_after(
        self, token_ids: Sequence[int], num_prompt_tokens: int, drafts: Sequence[int] = ()
    ) -> UInt32[np.ndarray, "W"]:
        """Which tokens may come next: bit i % 32 of word i // 32 is token i's; those beyond the last word may not.

        A token that ends the completion may come exactly where the output is complete, also one that could be read as
        text; a special token of any other kind never.

        Args:
            token_ids: The prompt and the completion's tokens so far.
            drafts: Tokens that may come after them, all allowed. The guide itself stays before them.

        Raises:
            GuidanceError: The library gave up (a grammar beyond its limits), or no token is left.
        """
        self._read(token_ids, num_prompt_tokens)
        if not drafts:
            return self._allowed_by(self._matcher)
        # A copy, not a rollback: an error that a wrong draft leads to must not stay with the completion.
        matcher = self._matcher.deep_copy()
        matcher.consume_tokens(list(drafts))
        return self._allowed_by(matcher)

    def num_allowed(self, token_ids: Sequence[int], num_prompt_tokens: int, drafts: Sequence[int]) -> int:
        """How many of these drafts, the first ones, may come one after the other. A token that ends it is none."""
        self._read(token_ids, num_prompt_tokens)
        ends = (i for i, draft in enumerate(drafts) if draft in self._end_token_ids)
        return self._matcher.deep_copy().validate_tokens(list(drafts[: next(ends, len(drafts))]))

    def _read(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        new = list(token_ids[num_prompt_tokens + self._num_read :])
        self._matcher.consume_tokens(new)
        self._num_read += len(new)

    def _allowed_by(self, matcher: Any) -> UInt32[np.ndarray, "W"]:
        allowed = np.zeros(self._num_words, np.uint32)
        library_words = allowed[: self._num_library_words]
        matcher.unsafe_compute_mask_ptr(library_words.ctypes.data, library_words.nbytes)
        # Asked last: after an error the library's mask lets the output end, as if it were complete.
        if matcher.is_error():
            raise GuidanceError(f"llguidance: {_one_line(matcher.get_error())}")
        self._set_ends(allowed, matcher.is_accepting())
        if not allowed.any():
            raise GuidanceError("the output is not complete, and nothing but a stop token could continue it")
        return allowed

    def _set_ends(self, allowed: UInt32[np.ndarray, "W"], is_complete: bool) -> None:
        for token_id in self._end_token_ids:
            word, bit = divmod(token_id, WORD_BITS)
            if is_complete:
                allowed[word] |= np.uint32(1 << bit)
            else:
                allowed[word] &= ~np.uint32(1 << bit)


def _matcher(vocabulary: Any, outputs: StructuredOutputs) -> Any:
    """The library's automaton, at its start; refuses what it cannot enforce or what accepts nothing."""
    from llguidance import LLMatcher

    try:
        matcher = LLMatcher(vocabulary, _grammar_text(outputs), log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()  # only now does it find out that nothing at all can match
        problem = matcher.get_error()
    except (ValueError, OverflowError) as error:  # ours; text that is no Unicode, numbers that are none or huge
        problem = str(error)
    if problem:
        raise InvalidRequestError(f"structured_outputs.{outputs.kind} cannot be enforced: {_one_line(problem)}.")
    return matcher


def _grammar_text(outputs: StructuredOutputs) -> str:
    from llguidance import LLMatcher, regex_to_lark

    if isinstance(outputs.json, str):
        schema = json.loads(outputs.json)
        _check_min_properties(schema)
        check_exclusive_bounds(schema)
        return LLMatcher.grammar_from_json_schema(outputs.json, overrides=JSON_OPTIONS)
    if outputs.regex is not None:
        return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(outputs.regex, ASCII_CLASSES)}/")
    assert outputs.choice is not None
    return LLMatcher.grammar_from_lark(f"start: {' | '.join(map(json.dumps, outputs.choice))}")


def _check_min_properties(schema: Any) -> None:
    """Refuses minProperties where the library could meet it by writing one property twice, which readers count once."""
    for part in _every_part(schema):
        if not isinstance(part, dict):
            continue
        at_least, required = part.get("minProperties"), part.get("required")
        num_required = len(required) if isinstance(required, list) else 0
        if isinstance(at_least, int) and at_least > max(1, num_required):
            raise ValueError(f"minProperties={at_least} with {num_required} names in 'required'; name as many there")


def check_exclusive_bounds(schema: Any) -> None:
    """Refuses an exclusive bound that the library lets through: a whole number, with the other bound less than 1 away.

    It writes {"exclusiveMinimum": 1, "maximum": 1.5} as if 1 were allowed. The other bound may stand in another part
    that applies to the same number.
    """
    for part in _every_part(schema):
        bounds = _bounds(part, schema, set())
        for exclusive, others in (
            ("exclusiveMinimum", ("maximum", "exclusiveMaximum")),
            ("exclusiveMaximum", ("minimum", "exclusiveMinimum")),
        ):
            for bound in bounds[exclusive]:
                near = [(name, other) for name in others for other in bounds[name] if abs(other - bound) < 1]
                if near and bound == int(bound):
                    raise ValueError(
                        f"{exclusive}={bound} with {near[0][0]}={near[0][1]}, less than 1 away, which would let "
                        f"{bound} through; use an inclusive bound such as {_inside(exclusive, bound, near[0][1])}"
                    )


def _inside(exclusive: str, bound: int | float, other: int | float) -> str:
    return f"{'minimum' if exclusive == 'exclusiveMinimum' else 'maximum'}={bound + (other - bound) / 100:g}"


BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def _bounds(part: Any, schema: Any, seen: set[int]) -> dict[str, list[int | float]]:
    """Every bound that this part, and the parts that apply to the same value, put on a number."""
    found: dict[str, list[int | float]] = {name: [] for name in BOUNDS}
    if not isinstance(part, dict) or id(part) in seen:
        return found
    seen.add(id(part))
    same_value = [each for key in ("allOf", "anyOf", "oneOf") if isinstance(part.get(key), list) for each in part[key]]
    for other in (*same_value, _resolved(part.get("$ref"), schema)):
        for name, values in _bounds(other, schema, seen).items():
            found[name] += values
    for name in BOUNDS:
        value = part.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[name].append(value)
    return found


def _resolved(reference: Any, schema: Any) -> Any:
    """What '#/$defs/name' refers to; None for what is no such reference."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    for key in filter(None, reference[1:].split("/")):
        key = key.replace("~1", "/").replace("~0", "~")
        schema = schema.get(key) if isinstance(schema, dict) else None
    return schema


def _every_part(value: Any) -> Iterator[Any]:
    yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        yield from _every_part(each)


def _one_line(message: str) -> str:
    return " ".join(message.partition("<state>")[0].split())[:MAX_MESSAGE].rstrip(".")
