"""Grammars for structured outputs: at each position, the tokens with which the output can still get its form.

The grammars are llguidance's: a schema is ready as soon as its request comes, the masks cost little beside a step of
the model, and a keyword that cannot be enforced is an error. docs/log.md compares it with two other libraries.
"""

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, final

import numpy as np
from jaxtyping import UInt32

from twophase.core.errors import InvalidRequestError, TwophaseError
from twophase.core.request import SamplingParams
from twophase_features.structured_outputs.params import StructuredOutputs
from twophase_features.structured_outputs.schema_rules import enforceable
from twophase_features.structured_outputs.worker_process import WorkerProcess, WorkLimitError

WORD_BITS = 32  # tokens per word of a mask
MAX_MESSAGE = 300  # characters of a message of the library

# Limits of a grammar. Ordinary schemas take a few milliseconds and megabytes.
MAX_COMPILE_S, MAX_COMPILE_BYTES = 1.0, 256 * 2**20
STEP_ITEMS = 10_000  # to find one token's alternatives, in the engine's thread; the library's default is 50,000
TRIAL_STACK_BYTES = 2**20  # less than any thread here has: a stack that overflows ends the process

# All options are set, because a schema may bring its own ("x-guidance"), which must not loosen a rule.
JSON_OPTIONS: Any = {
    "lenient": False,  # a keyword that is not enforced is an error
    "coerce_one_of": False,  # nor is oneOf taken for anyOf
    # As json.dumps writes it. Free white space invites a model to write nothing else until max_tokens.
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # Not u: \u0061 would be a second way to write "a", and would bypass the schema of property "a".
    "json_allowed_escapes": '"\\bfnrt',
}

# In a regular expression \d, \w and \s mean ASCII: beyond it, Rust, Python and editions of Unicode differ, so an output
# could fail the client's own check.
ASCII_CLASSES = "dws"


class GuidanceError(TwophaseError):
    """The grammar library failed for one sequence."""


@final
class Guidance:
    """Compiles the engine's grammars, by llguidance. Threads may share it.

    A schema or pattern is a program for the library, and some never end or take all memory. So each is tried first in a
    worker process with limits on time and memory, which starts with the first request, and compiled here if it passes.

    Args:
        tokenizer_json: Returns the tokenizer as the text of a tokenizer.json.
        eos_token_ids: The model's end-of-text ids.
    """

    def __init__(self, tokenizer_json: Callable[[], str], eos_token_ids: frozenset[int]) -> None:
        self._tokenizer_json = tokenizer_json
        self._eos_token_ids = eos_token_ids
        self._loading = threading.Lock()
        self._vocabulary: Any = None
        self._worker: WorkerProcess | None = None
        self._latest: tuple[StructuredOutputs, str] | None = None  # the prompts of one request share a trial

    def compile(self, params: SamplingParams) -> "Grammar":
        """The grammar of a request that has structured outputs.

        Every request compiles its own grammar: a shared one would also share its cached state and its faults.

        Raises:
            InvalidRequestError: The schema or regular expression is wrong, cannot be enforced, accepts nothing, or is
                beyond the limits of time and memory; or the model has no end-of-text token to end with.
        """
        outputs = params.structured_outputs
        assert outputs is not None
        if not self._eos_token_ids:
            raise InvalidRequestError(
                "structured_outputs end with the model's end-of-text token, and its folder names none (eos_token_id)."
            )
        with self._loading:
            if self._worker is None:
                self._worker = self._load()
        latest = self._latest
        if latest is None or latest[0] is not outputs:
            try:
                latest = self._latest = outputs, self._worker.call(_try_in_worker, outputs)
            except WorkLimitError as error:
                raise _refusal(outputs, f"compiling it is too much work: {error}") from error
        matcher = _matcher(self._vocabulary, latest[1])
        return Grammar(self._vocabulary, matcher, self._eos_token_ids.union(params.stop_token_ids))

    def _load(self) -> WorkerProcess:
        """Load the vocabulary; returns the process that tries outputs."""
        tokenizer_json = self._tokenizer_json()
        self._vocabulary = _load_vocabulary(tokenizer_json, self._eos_token_ids)
        first = (_load_for_trials, tokenizer_json, self._eos_token_ids)
        return WorkerProcess(cpu_s=MAX_COMPILE_S, max_bytes=MAX_COMPILE_BYTES, first=first)


@final
class Grammar:
    """The form of one request's outputs: the engine's `Grammar`. Its guides share their computed masks.

    Args:
        vocabulary, matcher: The library's; the matcher is at the start.
        end_token_ids: End-of-text ids and the request's stop ids.
    """

    def __init__(self, vocabulary: Any, matcher: Any, end_token_ids: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._matcher = matcher
        self._end_token_ids = end_token_ids

    def constraint(self) -> "Guide":
        """A completion's own state, at its start."""
        return Guide(self._matcher.deep_copy(), self._vocabulary.vocab_size, self._end_token_ids)

    def accepts(self, text: str) -> bool:
        """Whether `text` is complete as it stands."""
        matcher = self._matcher.deep_copy()
        return matcher.consume_tokens(self._vocabulary.greedy_tokenize(text)) and matcher.is_accepting()


@final
class Guide:
    """The state of one completion in its grammar, a function of its tokens: the engine's `Constraint`.

    Each call passes all tokens, and the guide reads only the new ones. So a repeated step, or a preemption with its
    recomputation, does not disturb the state.
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
        """Which tokens may come next: bit i % 32 of word i // 32 is token i's; tokens beyond the last word may not.

        A token that ends the completion may come exactly where the output is complete, even if the token is also text;
        other special tokens may never come.

        Args:
            token_ids: The prompt and the completion's tokens so far.
            drafts: Allowed draft tokens after `token_ids`. The guide's own state stays before them.

        Raises:
            GuidanceError: The library gave up (a grammar beyond its limits), or no token is left.
        """
        self._read(token_ids, num_prompt_tokens)
        matcher = self._matcher
        if drafts:
            # A copy, not a rollback: an error that a wrong draft leads to must not stay with the completion.
            matcher = matcher.deep_copy()
            matcher.consume_tokens(list(drafts))
        return self._allowed_by(matcher)

    def num_allowed(self, token_ids: Sequence[int], num_prompt_tokens: int, drafts: Sequence[int]) -> int:
        """How many of these drafts, the first ones, may come one after the other. End tokens are not counted."""
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
        is_complete = matcher.is_accepting()
        for token_id in self._end_token_ids:
            word, bit = divmod(token_id, WORD_BITS)
            if is_complete:
                allowed[word] |= np.uint32(1 << bit)
            else:
                allowed[word] &= ~np.uint32(1 << bit)
        if not allowed.any():
            raise GuidanceError("the output is not complete, and nothing but a stop token could continue it")
        return allowed


def _matcher(vocabulary: Any, grammar: str) -> Any:
    """The library's automaton in its start state; raises ValueError for an unsupported or empty grammar.

    Releases the GIL meanwhile.
    """
    from llguidance import LLMatcher, LLParserLimits

    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=LLParserLimits(step_max_items=STEP_ITEMS))
    if not matcher.is_error():
        matcher.compute_bitmask()  # only now does it find out that nothing at all can match
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


# -- the trial, in a worker process

_vocabulary: Any = None


def _load_for_trials(tokenizer_json: str, eos_token_ids: frozenset[int]) -> None:
    global _vocabulary
    _vocabulary = _load_vocabulary(tokenizer_json, eos_token_ids)


def _try_in_worker(outputs: StructuredOutputs) -> str:
    threading.stack_size(TRIAL_STACK_BYTES)
    with ThreadPoolExecutor(1) as small:
        return small.submit(try_out, _vocabulary, outputs).result()


def try_out(vocabulary: Any, outputs: StructuredOutputs) -> str:
    """Compile the grammar, so that errors and limits occur here; returns its text. Raises as `Guidance.compile`."""
    try:
        grammar = _grammar_text(outputs)
        _matcher(vocabulary, grammar)
    except (ValueError, OverflowError, RecursionError) as error:  # our own; no Unicode; NaN, huge numbers; nesting
        raise _refusal(outputs, str(error)) from error
    return grammar


def _refusal(outputs: StructuredOutputs, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"structured_outputs.{outputs.kind} cannot be enforced: {_one_line(problem)}.")


def _load_vocabulary(tokenizer_json: str, eos_token_ids: frozenset[int]) -> Any:
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise InvalidRequestError(
            f"structured_outputs need the package llguidance, which cannot be imported here ({error}); "
            f"pip install the version pinned in requirements.txt."
        ) from error
    try:
        return LLTokenizer(tokenizer_json, eos_token=sorted(eos_token_ids))
    except ValueError as error:
        raise InvalidRequestError(
            f"structured_outputs: llguidance cannot use this model's tokenizer ({_one_line(str(error))})."
        ) from error


def _grammar_text(outputs: StructuredOutputs) -> str:
    from llguidance import LLMatcher, regex_to_lark

    if isinstance(outputs.json, str):
        return LLMatcher.grammar_from_json_schema(enforceable(outputs.json), overrides=JSON_OPTIONS)
    if outputs.regex is not None:
        return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(outputs.regex, ASCII_CLASSES)}/")
    if outputs.tool_calls is not None:
        return outputs.tool_calls.grammar(lambda text: {**json.loads(enforceable(text)), "x-guidance": JSON_OPTIONS})
    assert outputs.choice is not None
    # One terminal, which its capital letters make it: of rules, no more than 2,000 may begin at one place.
    return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {' | '.join(map(json.dumps, outputs.choice))}")


def _one_line(message: str) -> str:
    return " ".join(message.partition("<state>")[0].split())[:MAX_MESSAGE].rstrip(".")
