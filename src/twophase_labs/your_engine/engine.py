"""An engine out of a learner's parts, a workload that needs them all, and the engine without one of them at a time."""

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from twophase import LLM, SamplingParams, SpeculativeConfig, StructuredOutputs
from twophase.attention.interface import AttentionSpec
from twophase_features.model_store.prepare import DEFAULT_MODEL
from twophase_labs.advanced import capstone
from twophase_labs.advanced.capstone import CITIES, COPIES, HANDBOOK, RECORD, Asked, own_guidance
from twophase_labs.advanced.draft_engine import NUM_DRAFTS, OwnDrafter
from twophase_labs.advanced.own_engine import OwnPrefixes, VerifyingRunner
from twophase_labs.advanced.prefix_service import shared_engine
from twophase_labs.decode.launch import launch_paged_decode_split
from twophase_labs.kit.own_attention import OwnAttention
from twophase_labs.machine.kernels import are_compiled, device, trusted
from twophase_tools.named_policies import POLICIES

NAMES = (
    "own_write", "own_prefill", "paged_decode_split_kernel", "merge_splits", "DecodesFirst", "block_hashes",
    "PrefixStore", "names_to_ask", "ngram_draft", "verify", "advance", "allowed_ids", "num_allowed",
)  # fmt: skip
# What can be left out, and what then stands in its place.
WITHOUT = {
    "kernels": "attention by torch, the engine's reference",
    "policy": "batches of four that start and end together",
    "shared prefixes": "a store that is asked for no block",
    "drafter": "one token of a sequence in a step",
    "grammar": "records written as the model pleases",
}
LIMITS: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "block_size": 16, "num_kv_blocks": 256}
NUM_SPLITS = 2
QUESTIONS = ("The capital of France is", "Water boils at", "Once upon a time", "The first ten prime numbers are")


def open_engine(mine: Mapping[str, Any], without: str = "", **limits: Any) -> LLM:
    """SmolLM2 in an engine with these parts, each behind its door. Where kernels are not compiled torch attends.

    Args:
        mine: Objects by the names of `NAMES`.
        without: A key of `WITHOUT`: this part is left out.
        limits: Other values than `LIMITS` has.

    Raises:
        ValueError: `without` names no part.
    """
    if without and without not in WITHOUT:
        raise ValueError(f"without={without!r} is no part; there are {', '.join(WITHOUT)}")
    limits = LIMITS | limits
    max_tokens, block_size = limits["max_num_batched_tokens"], limits["block_size"]
    options: dict[str, Any] = limits | {
        "attention_backend": attention(mine, block_size) if without != "kernels" and are_compiled() else "torch",
        "policy": POLICIES["static"](batch_size=4) if without == "policy" else mine["DecodesFirst"](max_tokens),
        "cache_factory": blocks(mine, shares=without != "shared prefixes"),
        "enable_prefix_caching": False,  # the store shares
    }
    if without != "drafter":
        always = SpeculativeConfig(num_speculative_tokens=NUM_DRAFTS, disable_when_losing=False)
        options |= {"drafter": OwnDrafter(mine["ngram_draft"]), "speculative_config": always}
    llm = _open(**options)
    engine: Any = llm.engine
    if without != "drafter":
        sequences = llm.scheduler.sequences
        engine._runner = VerifyingRunner(
            engine._runner, mine["verify"], lambda i: float(sequences[i].request.sampling_params.temperature)
        )
    if without != "grammar":
        grammar = own_guidance(mine["advance"], mine["allowed_ids"], mine["num_allowed"])
        engine._compile_grammar = grammar.compile
    return llm


def reference_engine() -> LLM:
    """The engine with parts of its own for all of these, and their default kernels."""
    always = SpeculativeConfig(num_speculative_tokens=NUM_DRAFTS, disable_when_losing=False)
    return _open(**LIMITS, attention_backend="torch", enable_prefix_caching=True, speculative_config=always)


def _open(**options: Any) -> LLM:
    gc.collect()  # an engine refers to itself in circles, so one that is no longer used still holds its K/V
    return LLM(DEFAULT_MODEL, device=device.type, dtype="float32", max_trace_steps=None, **options)


def attention(mine: Mapping[str, Any], block_size: int) -> Callable[[AttentionSpec], OwnAttention]:
    """Labs 2 and 3: the write kernel, the prefill kernel, and decode over splits with the merge of their results.

    Kernels run at full speed: each has passed its checks, or is the reference.
    """

    def decode(*inputs: Any) -> torch.Tensor:
        launch: Any = launch_paged_decode_split
        results = launch(mine["paged_decode_split_kernel"], *inputs, NUM_SPLITS)
        return mine["merge_splits"](*results)[0]

    parts = {"write": mine["own_write"], "prefill": mine["own_prefill"], "decode": decode}
    unchecked = {name: _trusting(part) for name, part in parts.items()}
    return lambda spec: OwnAttention(spec, block_size, **unchecked)


def _trusting(part: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with trusted():
            return part(*args)

    return call


def blocks(mine: Mapping[str, Any], shares: bool) -> Callable[[int, int, bool], OwnPrefixes]:
    """Lab 5: blocks come from the prefix store, by the names of their contents."""
    hashes = mine["block_hashes"] if shares else lambda *_: []
    return lambda num_blocks, block_size, _: OwnPrefixes(
        mine["PrefixStore"](num_blocks), hashes, mine["names_to_ask"], num_blocks, block_size
    )


def workload(has_grammar: bool = True) -> tuple[Asked, ...]:
    """Twelve requests in turn: a record that keeps a grammar, a function to copy, a sentence to continue; all greedy.

    The first two kinds begin with the same handbook.
    """
    ends: dict[str, Any] = {"structured_outputs": StructuredOutputs(regex=RECORD)} if has_grammar else {"stop": "\n"}
    record = SamplingParams(temperature=0, max_tokens=32, **ends)
    copy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    short = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    asked = []
    for number, question in enumerate(QUESTIONS):
        city, head = (*CITIES, "Quito", "Hanoi")[number], COPIES[number % len(COPIES)]
        asked += [
            Asked(f"{HANDBOOK}City: {city}\nRecord: ", record),
            Asked(f"{HANDBOOK}The functions once more, unchanged.\n\n{head}\n", copy),
            Asked(question, short),
        ]
    return tuple(asked)


def num_prompt_tokens() -> int:
    """Of the workload's prompts together."""
    tokenizer = shared_engine().tokenizer
    assert tokenizer is not None
    return sum(len(tokenizer.encode(asked.prompt)) for asked in workload())


@dataclass(frozen=True)
class Result:
    """What an engine made of the workload.

    Attributes:
        token_ids: Of each answer, in the order of the requests.
        texts: The answers.
        seconds: From the first request to the last token.
        ttft_s: Time to the first token, of each request.
        tpot_s: Mean seconds between two of its tokens, of each request with two or more.
        num_computed_tokens: Of all steps together: of prompts, new ones, and drafts.
    """

    token_ids: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    seconds: float
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]
    num_steps: int
    num_computed_tokens: int
    num_hit_tokens: int
    num_accepted: int

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.token_ids)) / self.seconds

    @property
    def median_ttft_s(self) -> float:
        return statistics.median(self.ttft_s)

    @property
    def median_tpot_s(self) -> float:
        return statistics.median(self.tpot_s)

    def goodput(self, ttft_s: float, tpot_s: float) -> float:
        """Requests per second that kept both targets."""
        kept = [first <= ttft_s and gap <= tpot_s for first, gap in zip(self.ttft_s, self.tpot_s, strict=True)]
        return sum(kept) / self.seconds

    def num_equal(self, other: "Result") -> int:
        """Answers that are the same token for token."""
        return sum(a == b for a, b in zip(self.token_ids, other.token_ids, strict=True))


def serve(llm: LLM, requests: Sequence[Asked], every: int = 3) -> Result:
    """A request comes every so many steps, until all are answered. Raises RuntimeError if one ends with an error."""
    served = capstone.serve(llm, requests, every)
    ended = list(served.outputs.values())
    for number, output in enumerate(ended):
        if output.outputs[0].finish_reason == "error":
            raise RuntimeError(f"request {number} ended with an error: {output.outputs[0].error}")
    return Result(
        tuple(served.token_ids),
        tuple(output.outputs[0].text for output in ended),
        served.seconds,
        tuple(output.metrics.ttft_s or 0.0 for output in ended),
        tuple(output.metrics.tpot_s or 0.0 for output in ended),
        served.num_steps,
        served.num_computed_tokens,
        served.num_hit_tokens,
        served.num_accepted,
    )
