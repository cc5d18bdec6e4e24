"""The capstone: an engine with a learner's parts, a workload that needs all four, and a picture of the results."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from twophase import LLM, SamplingParams, SpeculativeConfig, StructuredOutputs
from twophase.core.request import RequestOutput
from twophase_features.model_store.prepare import DEFAULT_MODEL
from twophase_labs.advanced.draft_engine import NUM_DRAFTS, PROGRAM, OwnDrafter
from twophase_labs.advanced.guided_machine import CITY_RECORD, Machine, TrieNode, trie_of
from twophase_labs.advanced.guided_model import end_id, token_texts
from twophase_labs.advanced.own_engine import Hashes, NamesToAsk, OwnGuidance, OwnPrefixes, Verify, VerifyingRunner
from twophase_labs.kit.draw import bar_panels

RECORD = r'\{"city": "[A-Za-z]{1,16}", "inhabitants": [1-9][0-9]{0,7}\}'
HANDBOOK = f"""Records are written like this.

City: Oslo
Record: {{"city": "Oslo", "inhabitants": 700000}}

City: Lisbon
Record: {{"city": "Lisbon", "inhabitants": 550000}}

Functions are written like this.

{PROGRAM}
"""
CITIES = ("Lima", "Cairo")
COPIES = ("def volume(width, height, depth):", "def surface(width, height, depth):")


@dataclass(frozen=True)
class Asked:
    """A request of the workload; its prompt as text, or as token ids, as the engine takes them."""

    prompt: Any
    params: SamplingParams


def workload(guided: bool = True, stamp: str = "") -> tuple[Asked, ...]:
    """Records and copies in turn, all behind one handbook; greedy. Without the grammar, an answer is the line's rest.

    Args:
        stamp: Put in front of each prompt; `{}` in it becomes the request's number.
    """
    ends: dict[str, Any] = {"structured_outputs": StructuredOutputs(regex=RECORD)} if guided else {"stop": "\n"}
    record = SamplingParams(temperature=0, max_tokens=32, **ends)
    copy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    pairs = zip(CITIES, COPIES, strict=True)
    tasks = [
        task
        for city, head in pairs
        for task in (
            (f"City: {city}\nRecord: ", record),
            (f"The functions once more, unchanged.\n\n{head}\n", copy),
        )
    ]
    return tuple(
        Asked(f"{stamp.format(number)}{HANDBOOK}{task}", params) for number, (task, params) in enumerate(tasks)
    )


def own_guidance(
    advance: Callable[[Machine, int, str], int | None],
    allowed_ids: Callable[[Machine, int, TrieNode], list[int]],
    num_allowed: Callable[..., int],
) -> OwnGuidance:
    """The workload's grammar, for SmolLM2: the masks of all states, each from a walk over its vocabulary's trie."""
    texts, trie, masks = token_texts(), trie_of(token_texts()), {}
    for state in CITY_RECORD.edges:
        mask = np.zeros(-(-len(texts) // 32) * 32, bool)
        mask[allowed_ids(CITY_RECORD, state, trie)] = True
        mask[end_id()] = state in CITY_RECORD.accepting
        masks[state] = np.packbits(mask, bitorder="little").view(np.uint32)
    return OwnGuidance(advance, num_allowed, RECORD, CITY_RECORD, masks, texts)


def open_engine(
    *,
    store: tuple[Callable[[int], Any], Hashes, NamesToAsk] | None = None,
    draft: Callable[[list[int], int], list[int]] | None = None,
    verify: Verify | None = None,
    mask: OwnGuidance | None = None,
    model: Any = DEFAULT_MODEL,
    num_blocks: int = 192,
    **options: Any,
) -> LLM:
    """An engine with these parts of a learner's; each that is None is left out.

    Args:
        store: `PrefixStore`, `block_hashes` and `names_to_ask`. Left out: no prefix is shared.
        draft, verify: `ngram_draft`, `verify`. Drafts without `verify` go by the engine's own rule.
        mask: See `own_guidance`. Left out: the engine's own library.
    """
    gc.collect()  # an engine refers to itself in circles, so one that is no longer used still holds its weights
    if store is not None:
        make_store, hashes, names_to_ask = store
        options["cache_factory"] = lambda num, size, _: OwnPrefixes(make_store(num), hashes, names_to_ask, num, size)
    if draft is not None:
        always = SpeculativeConfig(num_speculative_tokens=NUM_DRAFTS, disable_when_losing=False)
        options |= {"drafter": OwnDrafter(draft), "speculative_config": always}
    options |= {"enable_prefix_caching": False, "max_num_seqs": 8, "max_trace_steps": None}
    llm = LLM(model, device="cpu", num_kv_blocks=num_blocks, **options)
    engine: Any = llm.engine
    if verify is not None:
        sequences = llm.scheduler.sequences
        engine._runner = VerifyingRunner(
            engine._runner, verify, lambda seq_id: float(sequences[seq_id].request.sampling_params.temperature)
        )
    if mask is not None:
        engine._compile_grammar = mask.compile
    return llm


@dataclass(frozen=True)
class Served:
    """A served workload.

    Attributes:
        seconds: From the first request to the last token.
        num_computed_tokens: Of all steps together: of prompts, new ones, and drafts.
        most_blocks: The most blocks in use after a step.
    """

    outputs: Mapping[str, RequestOutput]
    seconds: float
    num_steps: int
    num_computed_tokens: int
    most_blocks: int
    num_drafts: int
    num_accepted: int

    @property
    def num_hit_tokens(self) -> int:
        return sum(output.metrics.num_cached_tokens for output in self.outputs.values())

    @property
    def token_ids(self) -> list[tuple[int, ...]]:
        return [tuple(output.outputs[0].token_ids) for output in self.outputs.values()]

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.token_ids)) / self.seconds

    @property
    def ttft_s(self) -> float:
        """The mean over the requests."""
        return statistics.mean(output.metrics.ttft_s or 0.0 for output in self.outputs.values())


def serve(llm: LLM, requests: Sequence[Asked], every: int = 3) -> Served:
    """A request comes every so many steps, with `every=0` all before the first; until all are answered."""
    engine, outputs, num_sent = llm.engine, {}, 0
    start_s, first_step = time.perf_counter(), engine.stats().num_steps
    for step in count():
        if num_sent == len(requests) and not engine.has_unfinished_requests():
            break
        num_due = len(requests) if every == 0 else step // every + 1
        for asked in requests[num_sent:num_due]:
            engine.add_request(str(num_sent), asked.prompt, asked.params)
            num_sent += 1
        outputs.update({int(output.request_id): output for output in engine.step() if output.finished})
    seconds = time.perf_counter() - start_s
    steps = [step for step in engine.trace if step.step >= first_step]
    return Served(
        {str(number): outputs[number] for number in sorted(outputs)},
        seconds,
        len(steps),
        sum(chunk[3] for step in steps for chunk in step.chunks),
        max(step.blocks_in_use for step in steps),
        sum(step.num_draft_tokens for step in steps),
        sum(step.num_accepted_tokens for step in steps),
    )


def draw_ways(served: Mapping[str, Served]) -> Figure:
    """Tokens per second, mean time to first token and blocks at most, a panel each, a bar for each way."""
    ways = served.values()
    columns: dict[str, tuple[list[float], str]] = {
        "tokens per second": ([one.tokens_per_s for one in ways], "{:.1f}"),
        "mean time to first token (ms)": ([1e3 * one.ttft_s for one in ways], "{:.0f}"),
        "most blocks in use": ([one.most_blocks for one in ways], "{:.0f}"),
    }
    figure, _ = bar_panels(served, columns, "What each part is worth")
    figure.tight_layout()
    return figure
