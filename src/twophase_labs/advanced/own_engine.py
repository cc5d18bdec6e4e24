"""Your prefix store, drafter, verifier and mask in the real engine, and a workload that needs all four.

OwnPrefixes      behind the door KVAllocator: blocks come from your `PrefixStore`, by names of your `block_hashes`
OwnDrafter       (draft_engine.py) asks your `ngram_draft`
VerifyingRunner  the engine's runner; what your `verify` decides on a run of drafts is what the engine then draws
OwnGuidance      masks of your `token_mask`, for forms that are given as machines
"""

import gc
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, final

import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Float, UInt32
from matplotlib.figure import Figure
from torch import Tensor

from twophase import LLM, SamplingParams, StructuredOutputs
from twophase.cache.allocator import CacheStats
from twophase.core.errors import CacheStateError
from twophase.core.plan import BlockCopy, ScheduledChunk
from twophase.core.request import RequestOutput
from twophase.engine.runner import Runner, TakeLogits
from twophase_features.model_store.prepare import DEFAULT_MODEL
from twophase_features.speculation.speculator import Speculator
from twophase_features.structured_outputs.guidance import GuidanceError
from twophase_labs.advanced.draft_chance import Chance
from twophase_labs.advanced.draft_engine import NUM_DRAFTS, PROGRAM, OwnDrafter
from twophase_labs.advanced.guided_machine import CITY_RECORD, Machine, TrieNode, trie_of
from twophase_labs.advanced.guided_model import end_id, token_texts
from twophase_labs.advanced.one_copy import open_llm
from twophase_labs.kit.own_allocator import OwnAllocator
from twophase_tools.colours import COLOURS, INK

Names = list[Any]
Hashes = Callable[[Sequence[int], int, str], Names]
Verify = Callable[[list[int], np.ndarray, np.ndarray, Chance], list[int]]
Advance = Callable[[Machine, int, str], int | None]
TokenMask = Callable[[Machine, int, Sequence[str], int], Tensor]
NamesToAsk = Callable[[Names, int, int, Set[Any]], Names]
AllowedIds = Callable[[Machine, int, TrieNode], list[int]]
NumAllowed = Callable[[Advance, Machine, int, Sequence[int], Sequence[str]], int]
CERTAIN = 1e4  # added to a logit, leaves no chance to any other

# -- blocks


@final
@dataclass(eq=False)
class StoreTable:
    """A sequence's blocks: a `KVTable`.

    Attributes:
        names: Of its first blocks, as many as may be found by others or are hits.
        num_cached_tokens: Tokens of the blocks that were hits.
        has_grown: Whether its own blocks were taken from the store, besides the hits.
    """

    names: Names
    block_ids: list[int]
    num_tokens: int
    num_cached_tokens: int
    num_offered_tokens: int = 0
    has_grown: bool = False


class OwnPrefixes(OwnAllocator):
    """A learner's store in place of the engine's prefix cache and pool. `LLM(cache_factory=...)` takes a maker of one.

    The store gives a block its name when it hands it out; what is in the block is there a step later. In between the
    name is *pending*, and no other request asks for it.

    Args:
        store: Like `PrefixStore(num_blocks)`, all of it free.
        hashes: Names of the full blocks of a prompt, like `block_hashes`.
        names_to_ask: Which of them may be looked up; it gets the names, the number of tokens, the block size and the
            set of names that are pending.
    """

    def __init__(self, store: Any, hashes: Hashes, names_to_ask: NamesToAsk, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.store, self.hashes, self.names_to_ask = store, hashes, names_to_ask
        self.num_hit_tokens = self.num_queried_tokens = self.num_queries = self.most_in_use = 0
        self._users: Counter[int] = Counter()
        self._pending: set[Any] = set()

    @property
    def num_free_blocks(self) -> int:
        return self.num_blocks - len(self._users)

    def open(self, token_ids: Sequence[int], salt: str = "", count_in_stats: bool = True, keys: object = None) -> Any:
        all_names = list(self.hashes(list(token_ids), self.block_size, salt))
        names = list(self.names_to_ask(all_names, len(token_ids), self.block_size, frozenset(self._pending)))
        hits = list(self.store.lookup(names))
        block_ids, _ = self.store.open(names[: len(hits)], len(hits))
        self._hold(block_ids)
        num_cached = len(block_ids) * self.block_size
        self.tables.append(StoreTable(names, list(block_ids), num_cached, num_cached))
        if count_in_stats:
            self.num_queries += 1
            self.num_queried_tokens += len(token_ids)
            self.num_hit_tokens += num_cached
        return self.tables[-1]

    def grow(self, table: Any, num_tokens: int) -> tuple[BlockCopy, ...]:
        num_more = self.num_blocks_needed(table, num_tokens)
        self.require_free(num_more)
        if table.has_grown:
            new, _ = self.store.open([], num_more)
        else:
            num_hit = self._num_hit(table)
            block_ids, num_found = self.store.open(table.names, num_hit + num_more)
            if num_found != num_hit:
                raise CacheStateError(f"The store found {num_hit} blocks, then {num_found} of the same prefix.")
            self.store.close(table.block_ids, table.names[:num_hit])  # held twice
            self._pending.update(table.names[num_hit:])
            new, table.has_grown = block_ids[num_hit:], True
        table.block_ids += new  # the same list: a chunk that is planned already writes its drafts there
        self._hold(new)
        table.num_tokens = num_tokens
        return ()

    def publish(self, table: Any, token_ids: Sequence[int], num_computed: int) -> None:
        self._pending.difference_update(table.names[self._num_hit(table) : num_computed // self.block_size])

    def truncate(self, table: Any, num_tokens: int) -> None:
        num_kept = -(-num_tokens // self.block_size)
        if num_kept < len(table.block_ids):
            self._drop(table.block_ids[num_kept:], [])
        table.block_ids, table.num_tokens = table.block_ids[:num_kept], num_tokens

    def close(self, table: Any) -> None:
        self.require_open(table)
        # A name that is still pending stays so: what it names was never computed.
        self._drop(table.block_ids, table.names[: len(table.block_ids)])
        self.tables.remove(table)
        table.block_ids, table.num_tokens = [], 0

    def stats(self) -> CacheStats:
        hits = {"num_queries": self.num_queries, "num_queried_tokens": self.num_queried_tokens}
        return replace(super().stats(), **hits, num_hit_tokens=self.num_hit_tokens)

    def _num_hit(self, table: StoreTable) -> int:
        return table.num_cached_tokens // self.block_size

    def _hold(self, block_ids: Sequence[int]) -> None:
        self._users.update(block_ids)
        self.most_in_use = max(self.most_in_use, len(self._users))

    def _drop(self, block_ids: Sequence[int], names: Names) -> None:
        self.store.close(list(block_ids), list(names))
        self._users -= Counter(block_ids)


# -- drafts


@final
class VerifyingRunner:
    """A runner after which the engine draws, of each run of drafts, the tokens that `verify` gave.

    The engine draws a token from each row of logits and keeps drafts as long as they agree. So the rows of a run are
    made certain of what `verify` wants. A mask still applies afterwards.

    Args:
        temperature_of: Of a sequence, by its id.
        rows_of: The rows q that drafts of a sequence were drawn from; None: drafts are a lookup's, which says one token
            with certainty.

    Attributes:
        num_runs: Runs of drafts that were verified.
    """

    def __init__(
        self,
        runner: Runner,
        verify: Verify,
        temperature_of: Callable[[int], float],
        chance: Chance | None = None,
        rows_of: Callable[[int, Sequence[int]], np.ndarray] | None = None,
    ) -> None:
        self.runner = runner
        self.num_runs = 0
        self._rows_of = rows_of
        self._verify, self._temperature_of = verify, temperature_of
        self._chance = chance or Chance(0)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self.runner.copy_blocks(copies)

    def close(self) -> None:
        self.runner.close()

    def run(self, chunks: Sequence[ScheduledChunk], score: TakeLogits | None = None) -> Float[Tensor, "R V"] | None:
        logits = self.runner.run(chunks, score)
        if logits is None or not any(chunk.num_drafts for chunk in chunks):
            return logits
        logits, end = logits.clone(), 0
        for chunk in chunks:
            start, end = end, end + (1 + chunk.num_drafts if chunk.num_samples else 0)
            if chunk.num_drafts:
                rows, draft = logits[start:end], list(chunk.draft_ids)
                p = _probabilities(rows, self._temperature_of(chunk.seq_id))
                if self._rows_of is None:
                    q = np.zeros_like(p[:-1])
                    q[np.arange(len(draft)), draft] = 1.0
                else:
                    q = self._rows_of(chunk.seq_id, draft)
                for row, token in zip(rows, self._verify(draft, p, q, self._chance), strict=False):
                    row[token] = row.max() + CERTAIN
                self.num_runs += 1
        return logits


def _probabilities(logits: Float[Tensor, "R V"], temperature: float) -> np.ndarray:
    if temperature == 0:
        p = torch.zeros_like(logits, dtype=torch.float64)
        return p.scatter_(1, logits.argmax(-1, keepdim=True), 1.0).numpy()
    return (logits.double() / temperature).softmax(-1).numpy()


# -- masks


@final
class OwnGuidance:
    """What the engine asks for grammars: machines for some regular expressions, with a learner's functions.

    Args:
        machines: Regular expression -> the machine that reads it.
        end_ids: Tokens that end an answer; `token_mask` speaks of one of them.

    Attributes:
        num_masks: Masks that were asked for; those of a state are made once.
    """

    def __init__(
        self,
        advance: Advance,
        token_mask: TokenMask,
        num_allowed: NumAllowed,
        machines: Mapping[str, Machine],
        texts: Sequence[str],
        end_ids: Sequence[int],
    ) -> None:
        self.advance, self.token_mask, self.machines = advance, token_mask, machines
        self.num_allowed = num_allowed
        self.texts, self.end_ids = texts, list(end_ids)
        self.num_masks = 0
        self._masks: dict[tuple[str, int], UInt32[np.ndarray, W]] = {}

    def compile(self, params: SamplingParams) -> Any:
        outputs = params.structured_outputs
        assert outputs is not None
        assert outputs.regex is not None
        return OwnGrammar(self, outputs.regex)

    def compile_all(self, regex: str) -> float:
        """Make the masks of all states beforehand; the seconds that it took."""
        start_s = time.perf_counter()
        for state in self.machines[regex].edges:
            self.allowed(regex, state)
        return time.perf_counter() - start_s

    def allowed(self, regex: str, state: int) -> UInt32[np.ndarray, "W"]:
        """Bit i % 32 of word i // 32 tells whether token i may come."""
        self.num_masks += 1
        if (regex, state) not in self._masks:
            mask = self.token_mask(self.machines[regex], state, self.texts, self.end_ids[0]).bool().clone()
            mask[self.end_ids] = bool(mask[self.end_ids[0]])
            bits = np.packbits(mask.numpy(), bitorder="little")
            self._masks[regex, state] = np.pad(bits, (0, -len(bits) % 4)).view(np.uint32)
        return self._masks[regex, state].copy()


@final
@dataclass
class OwnGrammar:
    """The form of one request; `constraint` and `accepts` are what the engine asks."""

    guidance: OwnGuidance
    regex: str

    def constraint(self) -> Any:
        return self  # where a completion stands follows from its tokens

    def accepts(self, text: str) -> bool:
        machine = self.guidance.machines[self.regex]
        return self.guidance.advance(machine, machine.start, text) in machine.accepting

    def _state(self, token_ids: Sequence[int]) -> int | None:
        machine = self.guidance.machines[self.regex]
        return self.guidance.advance(machine, machine.start, "".join(self.guidance.texts[i] for i in token_ids))

    def allowed_after(
        self, token_ids: Sequence[int], num_prompt_tokens: int, drafts: Sequence[int] = ()
    ) -> UInt32[np.ndarray, "W"]:
        state = self._state([*token_ids[num_prompt_tokens:], *drafts])
        if state is None:
            raise GuidanceError("the output is not what the form allows")
        return self.guidance.allowed(self.regex, state)

    def num_allowed(self, token_ids: Sequence[int], num_prompt_tokens: int, drafts: Sequence[int]) -> int:
        """How many of these drafts, the first ones, may come one after the other."""
        state = self._state(token_ids[num_prompt_tokens:])
        if state is None:
            return 0
        machine = self.guidance.machines[self.regex]
        return self.guidance.num_allowed(self.guidance.advance, machine, state, drafts, self.guidance.texts)


# -- all together


RECORD = r'\{"city": "[A-Za-z]{1,16}", "inhabitants": [1-9][0-9]{0,7}\}'
MACHINES = {RECORD: CITY_RECORD}
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
    """Records and copies in turn, all behind one handbook; greedy. Without the form, an answer is the line's rest.

    Args:
        stamp: Put in front of each prompt; `{}` in it becomes the request's number.
    """
    form: dict[str, Any] = {"structured_outputs": StructuredOutputs(regex=RECORD)} if guided else {"stop": "\n"}
    record = SamplingParams(temperature=0, max_tokens=32, **form)
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


def own_guidance(advance: Advance, allowed_ids: AllowedIds, num_allowed: NumAllowed) -> OwnGuidance:
    """The forms of the workload, for SmolLM2, with masks from a walk over its vocabulary's trie."""
    trie = trie_of(token_texts())

    def mask_of(machine: Machine, state: int, texts: Sequence[str], end: int) -> Tensor:
        mask = torch.zeros(len(texts), dtype=torch.bool)
        mask[allowed_ids(machine, state, trie)] = True
        mask[end] = state in machine.accepting
        return mask

    return OwnGuidance(advance, mask_of, num_allowed, MACHINES, token_texts(), [end_id()])


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
    cache: dict[str, Any] = {"enable_prefix_caching": False}
    if store is not None:
        make_store, hashes, names_to_ask = store
        cache = {"cache_factory": lambda num, size, _: OwnPrefixes(make_store(num), hashes, names_to_ask, num, size)}
    llm = open_llm(
        model, device="cpu", num_kv_blocks=num_blocks, max_num_seqs=8, max_trace_steps=None, **cache, **options
    )
    engine: Any = llm.engine
    if draft is not None:
        engine.speculator = Speculator(OwnDrafter(draft), NUM_DRAFTS, None)
    if verify is not None:
        sequences = llm.scheduler.sequences
        engine._runner = VerifyingRunner(
            engine._runner, verify, lambda seq_id: float(sequences[seq_id].request.sampling_params.temperature)
        )
    if mask is not None:
        engine._guidance = mask
    return llm


@dataclass
class Served:
    """What became of a workload.

    Attributes:
        seconds: From the first request to the last token.
        most_blocks: The most blocks in use after a step.
    """

    outputs: dict[str, RequestOutput] = field(default_factory=dict)
    seconds: float = 0.0
    num_steps: int = 0
    most_blocks: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    num_hit_tokens: int = 0

    @property
    def token_ids(self) -> list[tuple[int, ...]]:
        return [tuple(output.outputs[0].token_ids) for output in self.outputs.values()]

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.token_ids)) / self.seconds

    @property
    def ttft_s(self) -> float:
        """The mean over the requests."""
        times = [output.metrics.ttft_s or 0.0 for output in self.outputs.values()]
        return sum(times) / len(times)


def serve(llm: LLM, requests: Sequence[Asked], every: int = 3) -> Served:
    """A request comes every so many steps, with `every=0` all before the first; until all are answered."""
    engine, served = llm.engine, Served()
    first_step = engine.stats().num_steps
    start_s = time.perf_counter()
    num_sent = step = 0
    while num_sent < len(requests) or engine.has_unfinished_requests():
        num_due = len(requests) if every == 0 else min(len(requests), step // every + 1)
        while num_sent < num_due:
            engine.add_request(str(num_sent), requests[num_sent].prompt, requests[num_sent].params)
            num_sent += 1
        for output in engine.step():
            if output.finished:
                served.outputs[output.request_id] = output
        served.most_blocks = max(served.most_blocks, llm.scheduler.cache.stats().num_in_use)
        step += 1
    served.seconds = time.perf_counter() - start_s
    served.outputs = dict(sorted(served.outputs.items(), key=lambda item: int(item[0])))
    steps = [one for one in engine.trace if one.step >= first_step]
    served.num_steps = len(steps)
    served.num_drafts = sum(one.num_draft_tokens for one in steps)
    served.num_accepted = sum(one.num_accepted_tokens for one in steps)
    served.num_hit_tokens = sum(output.metrics.num_cached_tokens for output in served.outputs.values())
    return served


def draw_ways(served: Mapping[str, Served]) -> Figure:
    """Tokens per second, mean time to first token and blocks at most, a panel each, a bar for each way."""
    figure, panels = plt.subplots(1, 3, figsize=(10.5, 0.9 + 0.42 * len(served)), facecolor="white", sharey=True)
    columns: tuple[tuple[str, list[float], str], ...] = (
        ("tokens per second", [one.tokens_per_s for one in served.values()], "{:.1f}"),
        ("mean time to first token (ms)", [1e3 * one.ttft_s for one in served.values()], "{:.0f}"),
        ("most blocks in use", [float(one.most_blocks) for one in served.values()], "{:.0f}"),
    )
    for axes, (label, values, form), colour in zip(panels, columns, COLOURS, strict=False):
        bars = axes.barh(list(served), values, 0.7, color=colour, edgecolor=INK, linewidth=0.5)
        axes.bar_label(bars, [f" {form.format(value)}" for value in values], fontsize=9, color=INK)
        axes.set(xlabel=label, xlim=(0, 1.2 * max(values)))
        axes.spines[["right", "top"]].set_visible(False)
    panels[0].invert_yaxis()
    panels[0].set_title("What each part is worth", loc="left")
    figure.tight_layout()
    return figure
