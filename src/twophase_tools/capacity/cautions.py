"""What should make one think again: each with its reason, and the number that says so.

A file that gets here can be planned; these are about whether it should be run. A rule is a function of the plan that
returns its caution, or None.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from twophase_tools.capacity.memory import fit, memory_table
from twophase_tools.capacity.plan import Plan
from twophase_tools.capacity.pools import CROWDED, Pool
from twophase_tools.capacity.units import in_both

MOST_GPUS = 4096


@dataclass(frozen=True, slots=True)
class Caution:
    """A reason to think again.

    Attributes:
        name: Of the rule.
        key: What to change in the file first.
        value, limit: The number that caused it, and what it is held against; one unit for both.
    """

    name: str
    key: str
    reason: str
    value: int | float
    limit: int | float


Rule = Callable[[Plan], Caution | None]


def does_not_fit(plan: Plan) -> Caution | None:
    table, config = plan.memory, plan.config
    usable, needed = table.total_bytes - table.headroom_bytes, table.weight_bytes + table.workspace_bytes
    if table.num_blocks:
        return None
    n, more = config.tensor_parallel_size, _enough_gpus(plan)
    cure = f"tensor_parallel_size {more} would do" if more else "no number of GPUs would do"
    reason = (
        f"weights and workspace take {in_both(needed)} of a GPU, and {config.gpu_memory_utilization:.0%} of it are "
        f"{in_both(usable)} on each of {n}; {cure}"
    )
    return Caution("does-not-fit", "tensor_parallel_size" if more else "hardware", reason, needed, usable)


def _enough_gpus(plan: Plan) -> int | None:
    """The smallest power of two of GPUs that has room for the weights and one request of the context limit."""
    n = 1
    while n <= MOST_GPUS:
        if n > plan.config.tensor_parallel_size:
            table = memory_table(plan.config, n)
            if fit(plan.config, table, plan.config.max_model_len).num_requests:
                return n
        n *= 2
    return None


def context_does_not_fit(plan: Plan) -> Caution | None:
    longest, num_blocks = plan.at_limit, plan.memory.num_blocks
    if longest.num_requests or not num_blocks:
        return None
    reason = (
        f"one request of {longest.num_tokens:,} tokens takes {longest.num_blocks:,} blocks, and the pool has "
        f"{num_blocks:,}; it holds {num_blocks * plan.config.block_size:,} tokens in all"
    )
    return Caution("context-does-not-fit", "max_model_len", reason, longest.num_blocks, num_blocks)


def places_beyond_memory(plan: Plan) -> Caution | None:
    places, room = plan.config.max_num_seqs, plan.at_mean.num_requests
    if places <= room or not room:
        return None
    reason = (
        f"{places:,} sequences may run at once, and memory holds {room:,} of {plan.at_mean.num_tokens:,} tokens; under "
        f"load the rest waits, or is preempted and computed again"
    )
    return Caution("places-beyond-memory", "max_num_seqs", reason, places, room)


def beyond_ridge(plan: Plan) -> Caution | None:
    ridge, batch = plan.ridge_batch, plan.max_requests
    if ridge is None or batch <= ridge:
        return None
    reason = (
        f"up to {batch:,} sequences decode at once, and from {ridge:,.0f} on arithmetic takes longer than reading "
        f"weights and K/V: more of them make every step longer and hardly more tokens"
    )
    return Caution("beyond-ridge", "max_num_seqs", reason, batch, ridge)


def chunk_beyond_budget(plan: Plan) -> Caution | None:
    chunk, budget = plan.config.chunk_size, plan.config.max_num_batched_tokens
    if chunk is None or chunk <= budget:
        return None
    reason = f"a chunk of {chunk:,} tokens never fits into a step of {budget:,}; {budget:,} is what counts"
    return Caution("chunk-beyond-budget", "chunk_size", reason, chunk, budget)


def chunk_below_batch(plan: Plan) -> Caution | None:
    chunk, batch = plan.config.chunk_size, plan.max_requests
    if chunk is None or chunk > batch:
        return None
    reason = (
        f"{batch:,} sequences decode at once, and decodes come first: a step of {chunk:,} tokens then has no room for "
        f"a prefill, and newcomers wait until others end"
    )
    return Caution("chunk-below-batch", "chunk_size", reason, chunk, batch)


def window_beyond_context(plan: Plan) -> Caution | None:
    eviction, longest = plan.config.eviction, plan.config.max_model_len
    if eviction is None or eviction.window + eviction.num_sinks < longest:
        return None
    kept = eviction.window + eviction.num_sinks
    reason = (
        f"{eviction.window:,} tokens of window and {eviction.num_sinks:,} sinks are kept of at most {longest:,}: "
        f"nothing is ever freed"
    )
    return Caution("window-beyond-context", "eviction.window", reason, kept, longest)


def blocks_never_read(plan: Plan) -> Caution | None:
    window, longest = plan.config.model_window, plan.config.max_model_len
    if window is None or window >= longest or plan.config.eviction is not None:
        return None
    reason = (
        f"this model's queries see {window:,} keys, and the cache keeps up to {longest:,}: `eviction: auto` "
        f"frees what is never read again"
    )
    return Caution("blocks-never-read", "eviction", reason, longest, window)


def uneven_split(plan: Plan) -> Caution | None:
    shape, n, whole = plan.config.shape, plan.config.tensor_parallel_size, plan.config.enable_expert_parallel
    counts = {
        "K/V heads": shape.num_kv_heads,
        "heads": shape.num_heads,
        "rows of the MLP": shape.intermediate_size,
        "rows of each expert": 0 if whole or shape.experts is None else shape.experts.intermediate_size,
        "words of the vocabulary": shape.vocab_size,
    }
    for what, count in counts.items():
        if count % n:
            each = -(-count // n)
            reason = (
                f"{count:,} {what} cannot be shared evenly by {n} GPUs: the fullest has {each:,}, so that all together "
                f"cost as {each * n:,} would, which the figures here count; many engines refuse it"
            )
            return Caution("uneven-split", "tensor_parallel_size", reason, count, n)
    return None


def waiting_for_links(plan: Plan) -> Caution | None:
    alone, share = plan.alone, plan.all_reduce_share
    if alone is None or share is None or share <= 0.5:
        return None
    reason = (
        f"all-reduces take {share:.0%} of a decode step at batch 1: {plan.config.tensor_parallel_size} GPUs are more "
        f"than this model can use for latency"
    )
    return Caution("waiting-for-links", "tensor_parallel_size", reason, share, 0.5)


def peak_of_another_dtype(plan: Plan) -> Caution | None:
    if plan.config.dtype != "float32":
        return None
    reason = (
        f"{plan.config.hardware.flops_per_s / 1e12:,.3g} TFLOP/s are the peak in bfloat16, and float32 is slower: "
        f"times bound by arithmetic are too good"
    )
    return Caution("peak-of-another-dtype", "dtype", reason, 4, 2)


def ttft_out_of_reach(plan: Plan) -> Caution | None:
    slo, alone = plan.config.slo, plan.alone
    if slo is None or slo.ttft_s is None or alone is None or alone.ttft_s <= slo.ttft_s:
        return None
    reason = (
        f"a prompt of {plan.config.workload.prompt_tokens:,} tokens takes {alone.ttft_s:.4g} s on an empty engine, and "
        f"{slo.ttft_s:g} s are promised: no load is low enough"
    )
    return Caution("ttft-out-of-reach", "slo.ttft_s", reason, alone.ttft_s, slo.ttft_s)


def tpot_out_of_reach(plan: Plan) -> Caution | None:
    slo, alone = plan.config.slo, plan.alone
    if slo is None or slo.tpot_s is None or alone is None or alone.tpot_s is None or alone.tpot_s <= slo.tpot_s:
        return None
    reason = (
        f"a decode step takes {alone.tpot_s:.4g} s at batch 1, and {slo.tpot_s:g} s are promised: no load is low enough"
    )
    return Caution("tpot-out-of-reach", "slo.tpot_s", reason, alone.tpot_s, slo.tpot_s)


def promise_missed(plan: Plan) -> Caution | None:
    slo, state, alone = plan.config.slo, plan.at_rate, plan.alone
    if slo is None or state is None or alone is None or state.keeps(slo) or not alone.keeps(slo):
        return None
    most = plan.within_slo.requests_per_s if plan.within_slo else 0.0
    reason = (
        f"at {state.requests_per_s:g} requests/s the mean TTFT is {state.ttft_s:.4g} s and the mean TPOT "
        f"{state.tpot_s or 0:.4g} s, with {slo.to_text()} promised; up to {most:.3g} requests/s keep it"
    )
    return Caution("promise-missed", "workload.rate", reason, state.requests_per_s, most)


def overloaded(plan: Plan) -> Caution | None:
    most, rate = plan.saturated, plan.config.workload.rate
    if most is None or rate <= most.requests_per_s:
        return None
    replicas = -(-rate // (CROWDED * most.requests_per_s))
    reason = (
        f"{rate:g} requests/s arrive and at most {most.requests_per_s:.3g} end, limited by {plan.limited_by}: "
        f"utilisation {rate / most.requests_per_s:.2f}, and the queue grows for ever; {replicas:,.0f} such engines "
        f"would run at {CROWDED:.0%}"
    )
    return Caution("overloaded", "workload.rate", reason, rate, most.requests_per_s)


def crowded(plan: Plan) -> Caution | None:
    utilisation = plan.utilisation
    if utilisation is None or not CROWDED < utilisation <= 1:
        return None
    reason = (
        f"utilisation {utilisation:.2f}: near 1 a burst takes long to work off, and the tail of the latencies is far "
        f"beyond these means"
    )
    return Caution("crowded", "workload.rate", reason, utilisation, CROWDED)


RULES: tuple[Rule, ...] = (
    does_not_fit,
    context_does_not_fit,
    uneven_split,
    overloaded,
    ttft_out_of_reach,
    tpot_out_of_reach,
    promise_missed,
    crowded,
    places_beyond_memory,
    beyond_ridge,
    chunk_beyond_budget,
    chunk_below_batch,
    window_beyond_context,
    blocks_never_read,
    waiting_for_links,
    peak_of_another_dtype,
)


def _pools_of(plan: Plan) -> list[tuple[str, Pool, float | None, int | None]]:
    """Name, pool, requests per second of an engine, and number of engines."""
    pools = plan.pools
    assert pools is not None
    return [
        ("prefill", pools.prefill, pools.prefills_per_s, pools.num_prefill),
        ("decode", pools.decode, pools.decodes_per_s, pools.num_decode),
    ]


def pool_without_room(plan: Plan) -> Caution | None:
    for name, pool, _, _ in _pools_of(plan):
        if not pool.max_requests:
            table, wanted = pool.memory, pool.fits.num_blocks
            reason = (
                f"an engine of the {name} pool, {pool.config.tensor_parallel_size} x {pool.config.hardware.name}, has "
                f"{table.num_blocks:,} blocks for K/V, and a request of mean length takes {wanted:,}"
            )
            return Caution("pool-without-room", f"pools.{name}.tensor_parallel_size", reason, table.num_blocks, wanted)
    return None


def pool_overloaded(plan: Plan) -> Caution | None:
    rate = plan.config.workload.rate
    for name, _, each_per_s, num_engines in _pools_of(plan):
        if each_per_s is not None and num_engines is not None and rate > num_engines * each_per_s:
            needed = math.ceil(rate / (CROWDED * each_per_s))
            reason = (
                f"{rate:g} requests/s arrive, and {num_engines} engines of the {name} pool take at most "
                f"{num_engines * each_per_s:.3g}: the queue grows for ever; {needed:,} would run at {CROWDED:.0%}"
            )
            return Caution("pool-overloaded", f"pools.{name}.engines", reason, rate, num_engines * each_per_s)
    return None


def pools_miss_promise(plan: Plan) -> Caution | None:
    pools, slo = plan.pools, plan.config.slo
    assert pools is not None
    if slo is None:
        return None
    found = (
        ("decode", "TPOT", "tpot_s", pools.tpot_s, slo.tpot_s),
        ("prefill", "TTFT", "ttft_s", pools.ttft_s, slo.ttft_s),
    )
    for name, what, key, value_s, limit_s in found:
        if limit_s is not None and value_s is not None and value_s > limit_s:
            reason = f"the mean {what} is {value_s:.4g} s with the {name} pool as given, and {limit_s:g} s are promised"
            return Caution("pools-miss-promise", f"slo.{key}", reason, value_s, limit_s)
    for name, pool, each_per_s, num_engines in reversed(_pools_of(plan)):
        if pool.max_requests and each_per_s is not None and num_engines is None:
            limit_s = slo.tpot_s if name == "decode" else slo.ttft_s
            reason = f"no number of engines in the {name} pool keeps {slo.to_text()}"
            return Caution("pools-miss-promise", "slo", reason, 0, limit_s or 0)
    return None


POOL_RULES: tuple[Rule, ...] = (
    pool_without_room,
    pool_overloaded,
    pools_miss_promise,
    chunk_beyond_budget,
    peak_of_another_dtype,
)


def cautions_of(plan: Plan) -> list[Caution]:
    """All that apply, the gravest first; with pools, those of the pools."""
    rules = RULES if plan.config.pools is None else POOL_RULES
    return [caution for rule in rules if (caution := rule(plan)) is not None]
