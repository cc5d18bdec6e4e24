# PART B
# %% tags=["setup"]
import itertools
import math
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch

from twophase.scheduling.policies import (
    ChunkedPrefillPolicy,
    ContinuousPolicy,
    PrefillFirstPolicy,
    PriorityPolicy,
    StaticPolicy,
    by_priority,
    decodes_first,
)
from twophase.scheduling.policy import Policy
from twophase.serving.pictures import draw_percentile_curves, draw_swim_lanes
from twophase.serving.slo import Slo
from twophase.serving.steps import StepSummary
from twophase.simulate.cost_model import LinearCostModel
from twophase.workbook import ____, check, hint, measured, reference, reveal, use
from twophase.workbook.lab04 import (
    batched_matmuls,
    challenge,
    classes,
    convoy,
    fairness_pictures,
    paper_machine,
    prediction,
    prediction_pictures,
    pressure,
    pressure_pictures,
)
from twophase.workbook.lab04.gated import RankedPolicy, ShortPromptsFirst, gated_scheduler
from twophase.workbook.lab04.hidden_lengths import play
from twophase.workbook.lab04.memory import Held, Machine, Running, gpu
from twophase.workbook.lab04.prediction import StepRecord
from twophase.workbook.lab04.engine_rig import LIMITS, PROMPTS, generate_under_pressure, serve_here

torch.set_num_threads(1)

# %% [markdown]
# ## 7. When the pages run out
#
# *Needs: CPU, and the model.*
#
# Nobody knows how long an answer becomes. An engine that reserved pages for the longest one would leave most of them
# empty (lab 1 counted that), so it lets requests in for what they have *now*, and hopes. Sometimes all of them grow at
# once. Then a decode needs a page, there is none, and someone has to give up theirs: **preemption**.
#
# There are two ways back for the one who lost. **Recompute**: forget K and V, keep the tokens, and read them again as
# if they were a prompt. **Swap**: copy the pages to the host's memory, and back when there is room. Neither may change
# a single token of the answer.

# %% [markdown]
# ```mermaid
# flowchart TD
#     N["a decode needs a page"] --> F{"one free?"}
#     F -->|yes| P["planned: it keeps its pages in this step"]
#     F -->|no| W["the running sequence of worst rank<br/>that is not planned yet"]
#     W --> S{"is it the one who asks?"}
#     S -->|no| T["it loses its pages and waits"] --> F
#     S -->|yes| Y["it loses its own and waits"]
#     T -.-> R["back later: recompute, or swap in"]
#     Y -.-> R
# ```
#
# One order decides both: best rank is served first, worst rank loses first. If victims were chosen by anything else,
# say by size, a sequence might be thrown out for one that is thrown out next, and nobody would ever get on.

# %% [markdown]
# <!-- card 4.14 -->
# Plan the decodes of one step. `running` has `Running(name, rank, num_needed, num_own)`: the blocks a sequence's next
# token needs (0 or 1), and how many come free if it loses its blocks. Best rank first; whoever is planned keeps its
# blocks. Returns the names of those who decode and of those who are preempted, each in the order it was decided.
#
# ```python
# >>> plan_decodes([Running("A", 1, 1, 3), Running("B", 2, 1, 2), Running("C", 3, 0, 2)], num_free=0)
# (['A', 'B'], ['C'])        # C's two blocks are enough for both
# ```


# %% tags=["exercise:4.14"]
def plan_decodes(running, num_free):
    left = sorted(running, key=lambda sequence: sequence.rank)  # SOLUTION: the running ones, best rank first
    decoding, preempted = [], []
    while left:
        sequence = left[0]
        while sequence in left and num_free < sequence.num_needed:
            victim = left.pop()  # SOLUTION: the worst of those not planned yet, taken off `left`
            num_free += victim.num_own  # SOLUTION: blocks that are free now
            preempted.append(victim.name)
        if sequence in left:
            left.remove(sequence)
            num_free -= sequence.num_needed  # SOLUTION: blocks it takes
            decoding.append(sequence.name)
    return decoding, preempted


# %%
check("4.14")

# %% [markdown]
# ### On the real engine
#
# Six prompts, 24 tokens each, together. They need 20 pages at the end. First with plenty of pages, then with 9. To see
# more preemptions, the engine's caution is switched off (`reserve_growth=False`; more of that below).

# %%
roomy = generate_under_pressure()
crowded = {"num_blocks": 9, "reserve_growth": False}
recomputed = generate_under_pressure(**crowded)
swapped = generate_under_pressure(**crowded, preemption="swap", num_swap_blocks=16)
for prompt, text in zip(PROMPTS[:3], swapped.texts, strict=False):
    print(f"{prompt} |{text[:50]!r}")

# %%
# NBVAL_CHECK_OUTPUT
for name, run in {"plenty": roomy, "recompute": recomputed, "swap": swapped}.items():
    summary = StepSummary.of(run.steps)
    print(f"{name:9} {summary.num_steps} steps, {summary.num_preemptions} preemptions,", end=" ")
    print(
        f"{summary.num_recomputed_tokens:2} tokens recomputed, {summary.num_blocks_swapped_out} pages swapped;", end=" "
    )
    print("same tokens:", run.tokens == roomy.tokens)

# %%
figure = draw_swim_lanes(recomputed.records, recomputed.steps, title="Nine pages for six requests: recompute")

# %% [markdown]
# **Read the result.** The same tokens, all three times. Red is a request that runs without pages: it waits, and then
# an orange step reads its prompt *and what it had already written*. It is always one of the latest to arrive.
#
# That tokens are exactly the same is not luck. Greedy decoding is a function of the tokens before; for sampled
# answers the engine draws from a generator that depends on seed and position alone, so a repeated step draws again
# what it drew. And a recomputed token comes from a step of another composition: where that changes a sum's rounding,
# two nearly equal logits could change places. In float32 on this backend that does not happen here; in 16 bits do
# not promise more than "the same, up to the rounding of another batch".

# %% [markdown]
# ### Which way back is cheaper?
#
# **Think first.** Swapping 1,000 tokens of an 8-billion-parameter model moves 131 MB out and in; recomputing them is
# 16 TFLOP. Over PCIe at 25 GB/s and on a GPU that reaches 600 TFLOP/s: which is faster?

# %% [markdown]
# <!-- card 4.15 -->
# What each way costs, and the choice. `machine` has `block_size`, `block_bytes`, `host_bytes_per_s` (one way),
# `token_s` (seconds per recomputed token, without attention) and `pair_s` (per pair of query and key; causal: token
# $t$ meets $t$ keys). `num_host_free`: free blocks of host memory. When in doubt, recompute: it needs no memory.
#
# ```python
# >>> machine = Machine(block_size=16, block_bytes=1e6, host_bytes_per_s=1e9, token_s=1e-4, pair_s=0)
# >>> swap_s(20, machine), recompute_s(20, machine)
# (0.004, 0.002)
# >>> cheaper_way(20, num_host_free=8, machine=machine)
# 'recompute'
# ```


# %% tags=["exercise:4.15"]
def swap_s(num_tokens, machine):
    num_blocks = -(-num_tokens // machine.block_size)  # SOLUTION: blocks that hold so many tokens
    return 2 * num_blocks * machine.block_bytes / machine.host_bytes_per_s  # SOLUTION: seconds, both ways


def recompute_s(num_tokens, machine):
    num_pairs = num_tokens * (num_tokens + 1) // 2  # SOLUTION: pairs of a query and a key it may see
    return num_tokens * machine.token_s + num_pairs * machine.pair_s  # SOLUTION: seconds


def cheaper_way(num_tokens, num_host_free, machine):
    is_faster = swap_s(num_tokens, machine) < recompute_s(num_tokens, machine)  # SOLUTION: whether swapping takes less
    fits = -(-num_tokens // machine.block_size) <= num_host_free  # SOLUTION: whether all its blocks fit on the host
    return "swap" if is_faster and fits else "recompute"


# %%
check("4.15")

# %%
# NBVAL_CHECK_OUTPUT
my_swap_s, my_recompute_s, my_way = use("4.15")
print("seconds for 4,000 tokens      swap   recompute")
for name, machine in {
    "8B on one H100, 25 GB/s": gpu("llama-3-8b"),
    "8B on one H100, 4 GB/s": gpu("llama-3-8b", host_bytes_per_s=4e9),
    "70B on eight H100s, 25 GB/s": gpu("llama-3-70b", num_gpus=8),
}.items():
    times = my_swap_s(4000, machine), my_recompute_s(4000, machine)
    print(f"{name:27} {times[0]:7.3f}  {times[1]:9.3f}   {my_way(4000, 10**6, machine)}")

# %%
links = {"swap over 8 GB/s": 8e9, "swap over 25 GB/s": 25e9}
lengths = [2**n + 1 for n in range(4, 17)]
times = {"recompute": [my_recompute_s(n, gpu("llama-3-8b")) for n in lengths]}
for name, bytes_per_s in links.items():
    times[name] = [my_swap_s(n, gpu("llama-3-8b", host_bytes_per_s=bytes_per_s)) for n in lengths]
figure = pressure_pictures.draw_ways_back(lengths, times, "Llama-3-8B on one H100, on paper")

# %% [markdown]
# **Read the result.** Per token, both are constant over a wide range, so their *ratio* is a property of the machine,
# and the link decides. Only for very long sequences does the quadratic part speak for swapping, and for very short ones
# the half-empty last block against it. Paper is patient, though: small copies do not reach the link's bandwidth (the
# PagedAttention paper, arXiv:2309.06180, section 7.3, finds swapping poor for small blocks and both alike for blocks of
# 16 to 64 tokens), and a recomputed prompt may find part of itself in the prefix cache. Many engines only
# recompute: it is simpler, and it needs no host memory that somebody must size.

# %% [markdown]
# ### Thrashing
#
# Preemption rescues an engine that let in too many. It can also become all that the engine does: someone is let in
# because a few pages are free, at the next step somebody older needs one of them, and the newcomer's prefill was in
# vain. Pages come free, it is let in again.
#
# A simulated pool shows it (section 10 says how; the scheduler is the real one, the clock is not). 64 requests come at
# once, 16 tokens each, and write 240. The pool has room for 1,024 tokens. With nothing repeated, $64 \cdot 255 =
# 16{,}320$ tokens would be computed.

# %% [markdown]
# <!-- card 4.16 -->
# The scheduler lets in whoever fits *now*. How many tokens are computed per token needed? 1 would be no waste.

# %% tags=["exercise:4.16"]
answer_4_16 = 1.8  # SOLUTION: tokens computed per token needed

# %%
check("4.16")

# %%
greedy_admission = pressure.under_pressure(pressure.NO_HEADROOM)
print(f"{greedy_admission.num_preemptions} preemptions of {pressure.NUM_REQUESTS} requests,", end=" ")
print(f"{greedy_admission.tokens_recomputed:,} tokens computed again")
measured("4.16", greedy_admission.times_needed)

# %% [markdown]
# The cure is at the door. Admission leaves **headroom**: one free block for each sequence that may outgrow its last
# one, so that nobody is preempted within the next few steps because of the newcomer. And it may leave a **watermark**
# free besides: a share of the pool, for growth later on.

# %% [markdown]
# <!-- card 4.17 -->
# May this newcomer come in? `newcomer` and the `running` are `Held(num_tokens, max_num_tokens)`. It needs blocks for
# the tokens it has; what must stay free then are a block for each that may still grow, the newcomer included, and the
# watermark's share of all blocks, rounded up. If nobody runs, nothing must stay free.
#
# ```python
# >>> can_admit(Held(16, 256), [Held(30, 256)], num_free=3, num_blocks=64, block_size=16, watermark=0.0)
# True                       # one block for it, one for its growth, one for the other's
# ```


# %% tags=["exercise:4.17"]
def can_admit(newcomer, running, num_free, num_blocks, block_size, watermark):
    def blocks_of(num_tokens):
        return -(-num_tokens // block_size)  # SOLUTION: blocks that hold so many tokens

    def may_grow(one):
        # Of max_num_tokens tokens the last is never written.
        return one.max_num_tokens - 1 > block_size * blocks_of(one.num_tokens)  # SOLUTION: beyond its blocks?

    kept = math.ceil(watermark * num_blocks)  # SOLUTION: the watermark's blocks
    kept += sum(may_grow(one) for one in [*running, newcomer])  # SOLUTION: a block for each that may grow
    kept = kept if running else 0  # SOLUTION: what is really kept
    return blocks_of(newcomer.num_tokens) + kept <= num_free  # SOLUTION: does it fit?


# %%
check("4.17")

# %%
gate = use("4.17")
with_headroom = pressure.under_pressure(gated_scheduler(pressure.CROWDED, gate))
with_watermark = pressure.under_pressure(gated_scheduler(pressure.CROWDED, gate, watermark=0.1))
runs = {"whoever fits": greedy_admission, "headroom": with_headroom, "headroom and 10 %": with_watermark}
for name, run in runs.items():
    print(f"{name:18} {run.times_needed:.2f} computed per needed, {run.num_preemptions:3} preemptions")

# %%
figure = pressure_pictures.draw_preemptions(runs)

# %%
watermarks = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
swept = [pressure.under_pressure(gated_scheduler(pressure.CROWDED, gate, watermark=w)) for w in watermarks]
figure = pressure_pictures.draw_watermarks(watermarks, swept)

# %% [markdown]
# **Read the result.** Your admission, in the real scheduler, halves the preemptions. The sweep shows the price: with
# more kept free less work is done twice, but the batch shrinks too, and beyond some point the empty pages cost more
# time than the repeated work did. Where that point lies depends on how long answers are and how
# dear a recomputed token is: a number to measure, not to copy.
#
# In `SchedulerConfig` they are `reserve_growth` (on by default), `watermark` and `preemption`. That an engine never
# thrashes cannot be promised without knowing the lengths; that it always gets on can: best rank first, and the best
# one is never the victim.

# %% [markdown]
# ## 8. Who may go first
#
# *Needs: CPU.*
#
# Not all requests are alike. Somebody watches one answer appear; another is one of ten thousand that a nightly job
# wants by the morning. So requests have a **priority** (here: smaller is better), and the better ones are let in first
# and preempted last.
#
# **Think first.** Strictly by priority, and for an hour the important ones alone come faster than they can be served.
# When does the batch job get its turn?

# %% [markdown]
# **Ageing** bounds the wait: with a *patience* of $P$ seconds, a request gains one level for every $P$ seconds it has
# waited. Compare two requests at the time $t$:
#
# $$p_1 - \frac{t - a_1}{P} \;<\; p_2 - \frac{t - a_2}{P} \quad\Longleftrightarrow\quad a_1 + p_1 P \;<\; a_2 + p_2 P$$
#
# The time drops out! Both age equally fast, so who is ahead stays ahead. The queue is sorted once, when a request
# arrives, and a level is nothing but an arrival $P$ seconds later.

# %% [markdown]
# <!-- card 4.18 -->
# The rank of a request: something to sort by, smallest first. `number` counts requests up as they come; it decides
# ties, so that no two ranks are equal. With `patience_s` None nobody ages.
#
# ```python
# >>> aged_rank(priority=0, arrival_s=50.0, number=9, patience_s=20.0) < aged_rank(2, 8.0, 1, 20.0)
# False                      # two levels are worth 40 s, and it came 42 s later
# ```


# %% tags=["exercise:4.18"]
def aged_rank(priority, arrival_s, number, patience_s):
    if patience_s is None:
        return (priority, arrival_s, number)  # SOLUTION: strictly by priority, then by arrival
    seems_s = arrival_s + priority * patience_s  # SOLUTION: when it seems to have come
    return (seems_s, number)  # SOLUTION: the rank with ageing


# %%
check("4.18")

# %% [markdown]
# A minute of rush: people come faster than they can be served, and then fewer. Meanwhile a batch job sends one request
# every three seconds. Your rank, in the scheduler, on the simulated clock:

# %%
rank = use("4.18")
runs = {
    "strict": classes.run(RankedPolicy(rank, None)),
    "patience 20 s": classes.run(RankedPolicy(rank, 20.0)),
    "patience 5 s": classes.run(RankedPolicy(rank, 5.0)),
}
for name, records in runs.items():
    people, batch = (classes.ttfts(classes.of_class(records, one)) for one in ("person", "batch"))
    print(f"{name:14} longest wait: people {max(people):4.1f} s, batch job {max(batch):4.1f} s")

# %%
figure = fairness_pictures.draw_waits(runs)

# %% [markdown]
# **Read the result.** Under strict priorities the first requests of the job wait until the rush is over: the later they
# came, the shorter they waited, a straight line down. That is **starvation**: had the rush lasted for a day, so would
# they. With ageing they wait their patience plus whatever everybody waits. People pay for it, all of them a little;
# capacity did not grow.
#
# A **deadline** per request is the same thing once more: earliest deadline first sorts by arrival plus the time it is
# wanted in. A class that is promised its first token within 2 s and one within 30 s are two levels, 28 s of patience
# apart. `PriorityPolicy(patience_s=...)` and `DeadlinePolicy` are both in `scheduling/policies.py`, a few lines each.

# %% [markdown]
# ### Convoys
#
# A long prompt of 12,000 tokens is being read, 256 tokens per step at most, decodes first. Short questions come behind
# it. Chunks keep the *decodes* going (section 4). What about the questions, which have not begun?

# %% [markdown]
# <!-- card 4.19 -->
# The questions' first tokens come late. What helps them most?
# (a) smaller chunks: 64 tokens instead of 256,
# (b) larger chunks: 1,024 tokens,
# (c) more seats and more pages,
# (d) another order: short prompts before the rest of the long one.

# %% tags=["exercise:4.19"]
answer_4_19 = "d"  # SOLUTION: one letter

# %%
check("4.19")

# %%
runs = {
    "by arrival, 256 a step": convoy.run(ChunkedPrefillPolicy(256)),
    "by arrival, 64 a step": convoy.run(ChunkedPrefillPolicy(64)),
    "short ones first": convoy.run(ShortPromptsFirst(patience_s=0.01)),
}
figure = fairness_pictures.draw_convoy(runs)

# %% [markdown]
# **Read the result.** By arrival, the questions drive behind the document like cars behind a lorry, and are all let go
# at once when it is done: a **convoy**. Smaller chunks make it longer. Short ones first frees them, and the document
# hardly notices, because what they need is so little of each step.
#
# Shortest first is the best order for the mean wait, and it starves whoever is long. So `ShortPromptsFirst` ages: its
# rank is arrival plus 10 ms for each token of the prompt. It is your formula again, with the length for a priority.
# Read it in `lab04/gated.py`; you will want something like it in section 11.

# %% [markdown]
# ## 9. What a step has in common
#
# *Needs: CPU.*
#
# A step holds chunks of prompts and single tokens of many sequences, all of different lengths. How is that *one*
# forward pass? The observation is Orca's (OSDI 2022), who called it **selective batching**: nearly everything in a
# transformer treats each token by itself. Only attention has to know which tokens belong together.

# %% [markdown]
# ```mermaid
# flowchart LR
#     T["flat batch [T, 576]<br/>all tokens of the step, end to end"] --> Q["project<br/>one product"]
#     Q --> A1["attention<br/>of A"] & A2["attention<br/>of B"] & A3["attention<br/>of C"]
#     A1 & A2 & A3 --> O["output, MLP<br/>one product each"]
#     O --> N["29 more layers"]
#     N --> L["last rows only<br/>[S, 49152]"]
# ```

# %% [markdown]
# <!-- card 4.20 -->
# How is each of these computed for a mixed step? **a** one matrix product over all tokens, whoever they belong to ·
# **b** row by row; all it needs travels with the row (a position, a slot) · **c** ragged: each token with the keys of
# its own sequence · **d** only for the rows that sample, one per sequence

# %% tags=["exercise:4.20"]
answer_4_20 = {
    "the projections to q, k and v": "a",  # SOLUTION: a letter
    "the MLP": "a",  # SOLUTION: a letter
    "RMSNorm": "b",  # SOLUTION: a letter
    "rotary embedding": "b",  # SOLUTION: a letter
    "scores, softmax and weighted sum": "c",  # SOLUTION: a letter
    "writing K and V into pages": "b",  # SOLUTION: a letter
    "the projection to the vocabulary": "d",  # SOLUTION: a letter
    "choosing the next token": "d",  # SOLUTION: a letter
}

# %%
check("4.20")

# %% [markdown]
# **What it is worth.** The products of one layer for a step with a chunk of 200 tokens and 23 decodes: flat; one
# sequence after another; padded to the longest, as a batch with a time axis would have it.

# %%
# NBVAL_CHECK_OUTPUT
num_tokens, num_seqs = sum(batched_matmuls.LENGTHS), len(batched_matmuls.LENGTHS)
print(f"{num_tokens} tokens flat, {num_seqs * max(batched_matmuls.LENGTHS):,} rows padded")
print("same results:", batched_matmuls.largest_difference() < 1e-4)

# %%
figure = batched_matmuls.draw_times(batched_matmuls.times_s())

# %% [markdown]
# **Read the result.** Padding computes twenty rows of nothing for each real one. One after another reads the weights 24
# times, and a single row keeps the processor waiting for them (lab 3). Flat reads them once, for all.
#
# "Attention cannot be batched", it is often said. It held for Orca, which called attention once per request. Your
# kernels of labs 2 and 3 do batch it: one launch, with `cu_query_lens` and `block_tables` to tell each program whose
# keys to read. It is *ragged*, and batched all the same. What stays true: no two sequences share a byte of K and V
# there, so attention gains launches from batching, and no arithmetic intensity (lab 3, section 10).

# %% [markdown]
# ## 10. The simulator
#
# *Needs: CPU, and the model.*
#
# You have used it since section 7; here is what it is. The scheduler never touches a tensor: it gets requests and the
# time, and gives plans. So it does not notice if nobody computes them. The simulator runs **the same scheduler code**,
# asks a **cost model** how long each planned step would take, and moves a clock by that much.

# %% [markdown]
# ```mermaid
# flowchart LR
#     W["requests, by time"] --> S["Scheduler, Policy, CacheManager<br/>(the very same code)"]
#     S -->|plan| E["engine: the model runs it<br/>the clock goes on by itself"]
#     S -->|plan| C["simulator: the cost model says how long<br/>clock = clock + that"]
#     E -->|"tokens"| S
#     C -->|"made-up tokens"| S
# ```
#
# What a simulator says about *decisions* is exact, since they are the real ones. What it says about *time* is as good
# as the cost model. So we fit one to this machine, and then find out how wrong it is on runs that it has not seen.

# %% [markdown]
# The model is a sum of what a step does times what each thing costs, as in lab 3, section 11, with more terms:
#
# $$T = c_0 + c_1\,\text{tokens} + c_2\,\text{samples} + c_3\,\text{context} + c_4\,\text{pairs}$$
#
# Context: keys read by decodes; pairs: queries times keys in prefill chunks. No cost may be negative: a fit that says
# a step is shorter for doing more will predict nonsense outside of what it saw. And *relative* errors should be small,
# for a step of 30 ms matters as much as one of 700: there are many more of them.

# %% [markdown]
# <!-- card 4.21 -->
# Fit the five costs to records `StepRecord(tokens, samples, context, pairs, seconds)`: least squares of the relative
# errors, no cost negative. With five columns one can simply try every set of them, the others being 0.
#
# ```python
# >>> fit_costs([StepRecord(10, 1, 0, 55, 0.030), StepRecord(110, 1, 0, 6105, 0.130), ...])
# array([0.02, 0.001, 0., 0., 0.])
# ```


# %% tags=["exercise:4.21"]
def fit_costs(records):
    times = np.array([record.seconds for record in records])
    features = [(1, r.tokens, r.samples, r.context, r.pairs) for r in records]  # SOLUTION: a row per record
    rows = np.array(features) * (1 / times)[:, None]  # SOLUTION `(1 / times)`: the weight of each row
    least, costs = math.inf, np.zeros(5)
    for columns in [list(c) for size in range(1, 6) for c in itertools.combinations(range(5), size)]:
        part = rows[:, columns]
        x = np.linalg.lstsq(part, np.ones(len(times)), rcond=None)[0]
        error = ((part @ x - 1) ** 2).sum()  # SOLUTION: the sum of squared relative errors
        if (x >= 0).all() and error < least:  # SOLUTION: whether these are the best so far, and allowed
            least, costs = error, np.zeros(5)
            costs[columns] = x
    return costs


# %%
check("4.21")

# %% [markdown]
# **Measure this machine.** *Probes* are short workloads on the real engine: one request and many, short prompts and
# long ones. Their steps are the records. Between the rounds of probes two other workloads are served, with random
# arrivals and lengths of their own; the fit never sees these. On a CPU all of it is CPU time of one thread, so that
# other programs disturb less. Half a minute.

# %%
measured_here = prediction.measured_here()
records = prediction.step_records(measured_here.samples)
print(f"{len(records)} steps of probes, from {1e3 * min(r.seconds for r in records):.0f} ms", end=" ")
print(f"to {1e3 * max(r.seconds for r in records):.0f} ms")

# %%
fit = use("4.21")
costs = fit(records)
names = ("per step", "per token", "per sample", "per 1,000 keys of context", "per 1,000 pairs")
for name, cost, scale in zip(names, costs, (1, 1, 1, 1000, 1000), strict=True):
    print(f"{name:26}{1e3 * cost * scale:8.3f} ms")

# %% [markdown]
# **Read the result.** The cost per step is what you know from lab 3: reading the weights. It is shared by everything in
# the step, which is the whole case for batching; the cost per token is what chunks are made of. Where two things go
# together in all probes, a fit can give the cost to either: don't read too much into a zero.
#
# Now the test: the two workloads, simulated with your cost model, against what was measured. One half fills the
# engine, the other overloads it.

# %%
here = prediction.cost_model(costs)
for name, workload in measured_here.workloads.items():
    predicted = prediction.predict(workload, here)
    print(f"{name}\n{prediction.table(predicted, measured_here.runs[name])}\n")

# %%
steps = [step for run in measured_here.runs.values() for step in prediction.step_times(run, here)]
figure = prediction_pictures.draw_step_times(steps)

# %% [markdown]
# **Read the result.** Dots on the line are steps predicted well; the table says what the queue makes of the rest.
# Times per token are averages of many steps, so errors cancel; a tail of the first tokens depends on how a queue
# built up, where a small error of every step adds up, and near saturation most of all. Two bands of dots are a
# machine that ran at two speeds: other programs compete for its caches and its memory, and no formula of tokens knows
# that. `twophase simulate --validate` prints such a table at length, and names the reasons where the error exceeds 15
# %.

# %% [markdown]
# ### A machine you don't have
#
# The other kind of cost model needs no machine: a **roofline**, the longer of arithmetic and traffic, from data sheets
# (lab 2, section 3), plus the all-reduces between the GPUs. Llama-3-70B on eight H100s, tensor parallel: bfloat16
# weights of 139 GB that every step reads, $2 \cdot 80 \cdot 8 \cdot 128 \cdot 2 = 327{,}680$ bytes of K and V per
# token, eight times 3.35 TB/s.

# %% [markdown]
# <!-- card 4.22 -->
# 128 sequences decode, with 2,000 tokens each. How many tokens per second, all together, do the bytes allow at most?

# %% tags=["exercise:4.22"]
answer_4_22 = 128 / ((139e9 + 128 * 2000 * 327_680) / (8 * 3.35e12))  # SOLUTION: tokens per second

# %%
check("4.22")

# %%
# NBVAL_CHECK_OUTPUT
paper, load = paper_machine.llama_70b(), paper_machine.decode_load(128, 2000)
peak = 8 * paper.hardware.bytes_per_s
print(f"bytes at the peak bandwidth     {1e3 * paper.bytes(load) / peak:6.2f} ms")
print(f"... at 80 % of it               {1e3 * paper.bytes(load) / peak / 0.8:6.2f} ms")
print(f"arithmetic at 60 % of the peak  {1e3 * paper.flops(load) / (8 * paper.hardware.flops_per_s * 0.6):6.2f} ms")
print(f"160 all-reduces                 {1e3 * paper.all_reduce_s(128):6.2f} ms")
print(f"the step                        {1e3 * float(paper.run_s(load)):6.2f} ms")
print(f"K and V of {16 * paper.num_blocks():,} tokens fit beside the weights")

# %% [markdown]
# The efficiencies and the 10 µs of an all-reduce are assumptions, not measurements, and they are a good part of the
# result. What the model can do is compare. Traffic with a median of 600 prompt and 200 answer tokens, more and more of
# it; promised are a first token within 0.5 s and 30 ms per token.

# %%
days = [paper_machine.serve_at(rate_per_s) for rate_per_s in (4, 8, 12, 15, 18, 24)]
figure = prediction_pictures.draw_load_curve(days)

# %% [markdown]
# **Read the result.** Throughput rises until the engine is full, and stays there. **Goodput**, what is delivered as
# promised, has a peak and then collapses, though the engine works as hard as ever: it is busy with requests that are
# late already. Capacity planning asks for the rate at the peak, and for what happens when more come. The second
# question is one for the policy, and it is the next section.

# %% [markdown]
# ## 11. The challenge
#
# *Needs: CPU, and the model.*
#
# A machine, its traffic, two promises, and you decide who goes when. The machine is simulated, with a cost model that
# is given, so that everybody's results are comparable to the last digit:
#
# | | |
# |---|---|
# | a step | 20 ms, 0.15 ms more per token, 0.2 µs per key a decode reads, 20 ns per query-key pair of a prefill |
# | the pool | 640 pages of 16 tokens, 64 seats |
# | the traffic | 400 requests, 9 per second in bursts: questions of some 90 tokens, one in five a document of 1,100 |
# | the promises | first token within 1.5 s; 45 ms per token after it, on average |
#
# Your **score** is the share of requests for which both are kept, over three traffics. Nobody knows how long an answer
# becomes: each may be 256 tokens, and ends when its last token is sampled. Reading `max_num_tokens` tells you nothing.

# %% [markdown]
# **Think first.** How many tokens may a step have so that it takes no more than 45 ms? And if requests come faster
# than they can be served, to whom do you break your promise: to everybody a little, or to a few completely?
#
# What the house offers:

# %%
# NBVAL_CHECK_OUTPUT
house = [
    challenge.entry("static, batches of 16", partial(StaticPolicy, 16)),
    challenge.entry("prefill first", PrefillFirstPolicy),
    challenge.entry("whole prompts, Orca", ContinuousPolicy),
    challenge.entry("chunks, 256 a step", partial(ChunkedPrefillPolicy, 256)),
    challenge.entry("the default", PriorityPolicy),
]
print(challenge.board(house))

# %% [markdown]
# The two last columns are the promises one by one. The default keeps most of the first tokens in time and lets every
# other answer stutter; smaller chunks help the answers and hurt the queue. There is more to have than either.

# %% [markdown]
# <!-- card 4.23 -->
# Reach 75 %. `Challenger(cost, slo)` is a `Policy`: `rank` says who keeps its pages, `plan(step)` makes the moves
# (section 4): `step.decode(sequence)`, `step.prefill(sequence, max_tokens)` for one that runs, `step.admit(sequence,
# max_tokens)` for one that waits; the last two return how many tokens they planned. `step.running`, `step.waiting` and
# `step.now_s` are there to look at; a sequence has `is_decoding`, `num_uncomputed_tokens`, `token_ids` and `request`.
#
# The skeleton is one way. Throw it away if you have a better one. `my_limits` may set `max_num_seqs` (up to 64),
# `max_num_batched_tokens`, `watermark` and `reserve_growth`.


# %% tags=["exercise:4.23"]
class Challenger(Policy):
    def __init__(self, cost, slo):
        self.cost, self.slo = cost, slo
        self.step_s = 0.9 * slo.tpot_s  # SOLUTION: how long a step may take, a little less than promised

    def rank(self, sequence):
        return by_priority(sequence)

    def is_late(self, sequence, now_s):
        """Whether its first token cannot come in time any more."""
        needs_s = self.cost.per_step_s + self.cost.per_token_s * sequence.num_uncomputed_tokens  # SOLUTION: at least
        return now_s + needs_s > sequence.request.arrival_s + self.slo.ttft_s  # SOLUTION: is that too late?

    def room_beside(self, decoding):
        """Prefill tokens for which a step beside these decodes has time."""
        cost, num_keys = self.cost, sum(len(sequence.token_ids) for sequence in decoding)
        each_s = cost.per_token_s + cost.per_sample_s  # SOLUTION: for one decode, without the keys it reads
        used_s = cost.per_step_s + each_s * len(decoding) + cost.per_context_s * num_keys
        fits = int((self.step_s - used_s) / cost.per_token_s)  # SOLUTION: tokens
        return fits if decoding else max(fits, 1)

    def plan(self, step):
        decoding = [sequence for sequence in step.running if sequence.is_decoding]
        begun = [sequence for sequence in step.running if not sequence.is_decoding]

        def urgency(sequence):
            return (self.is_late(sequence, step.now_s), sequence.num_uncomputed_tokens)  # SOLUTION: smallest goes first

        for sequence in decoding:
            step.decode(sequence)
        room = self.room_beside(decoding)
        for sequence in sorted([*begun, *step.waiting], key=urgency):
            if room < 1:
                break
            if sequence in begun:
                room -= step.prefill(sequence, room)  # SOLUTION `step.prefill(sequence, room)`: tokens planned of it
            else:
                room -= step.admit(sequence, room)  # SOLUTION `step.admit(sequence, room)`: tokens planned of it


my_limits = {"max_num_seqs": 64, "max_num_batched_tokens": 512}  # SOLUTION: the limits you set


# %%
check("4.23")

# %% [markdown]
# ### The board

# %%
make_policy, limits = use("4.23")
yours = challenge.entry("yours", lambda: make_policy(challenge.COST, challenge.SLO), limits)
print(challenge.board([*house, yours]))

# %% [markdown]
# The skeleton, well filled, keeps a little over nine promises of ten. The rest is yours: the margin of a step, a better
# estimate of who is late (what of the queue in front of it?), documents that wait until a burst is over, pages. And
# mind what the score leaves out: whoever is late anyway waits longest. A service that people like has an order for them
# too.

# %%
most = make_policy(challenge.COST, challenge.SLO)
records = {"the default": challenge.serve(PriorityPolicy()), "yours": challenge.serve(most, limits)}
figure = draw_percentile_curves(records, slo=challenge.SLO)

# %% [markdown]
# **Read the result.** The dashed line is the promised first token. The default misses it a little for very many; a
# policy that knows what it promised keeps most of the curve below, and lets the end of it, the hopeless and the long,
# go far up. In the middle, gaps between tokens: every long step of the default is one, and in yours no step is long.

# %% [markdown]
# ### On the real engine
#
# The same class, unchanged, now with the cost model of *this* machine from section 10, and promises that suit it: 75
# steps' time for a first token, 3.5 steps' time per token. Shorter texts, and slightly more of them than it can serve.
# The policy is told of promises a tenth tighter than those that count, since the cost model may be off by as much.
# First the prediction, then SmolLM2 with the clock running; half a minute.

# %%
scaled = challenge.scaled(here, LIMITS, num_requests=32)
print(f"promised: {scaled.slo.ttft_s:.1f} s, and {1e3 * scaled.slo.tpot_s:.0f} ms per token")
for name in ("default", "yours"):
    policies = [PriorityPolicy() if name == "default" else make_policy(here, scaled.tighter) for _ in range(2)]
    foretold = play(scaled.requests, policies[0], LIMITS, here)
    run = serve_here(scaled.requests, policies[1], slo=scaled.slo)
    kept = [challenge.score(one, scaled.slo) for one in (foretold, run.records)]
    print(f"{name:8} predicted {kept[0]:3.0f} %, measured {kept[1]:3.0f} % of the promises kept")

# %% [markdown]
# **Read the result.** The order is what the simulator said, and the numbers are near it, if the machine is as fast as
# when it was probed. A share of requests that keep a promise is a harsh measure: a step 5 % longer than predicted can
# turn a dozen tokens-in-time into a dozen too late. That is what the margin is for.

# %% [markdown]
# ## Checkpoint
#
# Tick what you could explain to a colleague without looking. What you can't, is a section to go back to.
#
# - [ ] which states a request passes through, and which steps between them are legal (1)
# - [ ] what static batching wastes, and what iteration-level batching does about it (2)
# - [ ] how a token budget can deadlock a queue, and how it bounds a step (3, 4)
# - [ ] what three policies do to a first token and to the tokens after it, in a swim lane (5)
# - [ ] why p99 is not seen in a mean, and what goodput counts (6)
# - [ ] who loses its pages, and why its answer does not change (7)
# - [ ] when swapping beats recomputing, and what decides it (7)
# - [ ] what thrashing is, and what headroom and a watermark cost (7)
# - [ ] why ageing needs no clock, and how long one may be overtaken (8)
# - [ ] what chunks do not solve: convoys (8)
# - [ ] which operations of a step are one product, and which are ragged (9)
# - [ ] what a simulation can be trusted with (10)
# - [ ] why, beyond the peak, the question is whom to let down (10, 11)

# %% [markdown]
# ## 12. Knowledge check
#
# *Needs: a clear head.* Six questions over the whole lab.

# %% [markdown]
# <!-- card 4.24 -->
# Blocks of 16, a pool of 200, a watermark of 5 %, and headroom. 12 sequences run, 9 of which may outgrow their last
# block. A newcomer of 100 tokens with a long answer ahead: how many free blocks must there be to let it in?

# %% tags=["exercise:4.24"]
answer_4_24 = 27  # SOLUTION: blocks

# %%
check("4.24")

# %% [markdown]
# <!-- card 4.25 -->
# A decode lacks a page. Whose pages should be taken, so that everybody gets to the end some day?
# (a) those of the one with the most pages,
# (b) those of the one who has run longest,
# (c) those of the one who is last in the order in which requests are let in,
# (d) those of one at random.

# %% tags=["exercise:4.25"]
answer_4_25 = "c"  # SOLUTION: one letter

# %%
check("4.25")

# %% [markdown]
# <!-- card 4.26 -->
# Ageing with a patience of 15 s. A request of priority 4 waits. Of the requests of priority 1, those that come less
# than how many seconds after it go first?

# %% tags=["exercise:4.26"]
answer_4_26 = 45  # SOLUTION: seconds

# %%
check("4.26")

# %% [markdown]
# <!-- card 4.27 -->
# What is behind it? **a** prompts are computed whole, or before the decodes · **b** thrashing · **c** strict
# priorities · **d** a convoy · **e** overload, served in order of arrival

# %% tags=["exercise:4.27"]
answer_4_27 = {
    "tokens of running answers stop whenever a long prompt comes": "a",  # SOLUTION: a letter
    "many more tokens computed than requested": "b",  # SOLUTION: a letter
    "first tokens of a class stop for as long as another one is busy": "c",  # SOLUTION: a letter
    "short prompts get their first tokens in a bunch, after a long one's": "d",  # SOLUTION: a letter
    "throughput as ever, and hardly any promise kept": "e",  # SOLUTION: a letter
}

# %%
check("4.27")

# %% [markdown]
# <!-- card 4.28 -->
# What of a run does the simulator get exactly right, given the same arrivals and the same step times?
# (a) the step times themselves,
# (b) the texts,
# (c) who is in which step,
# (d) the 99th percentile near saturation, whatever the cost model.

# %% tags=["exercise:4.28"]
answer_4_28 = "c"  # SOLUTION: one letter

# %%
check("4.28")

# %% [markdown]
# <!-- card 4.29 -->
# For ten minutes twice as many requests come as can be served in time. What keeps the most promises?
# (a) strictly first come, first served,
# (b) serving those that can still be in time before those that cannot,
# (c) larger chunks,
# (d) more seats.

# %% tags=["exercise:4.29"]
answer_4_29 = "b"  # SOLUTION: one letter

# %%
check("4.29")

# %% [markdown]
# ## Principles
#
# 1. **Decide anew at every step.** Join and leave per iteration; what was decided for a whole batch waits for its
#    slowest member.
# 2. **Bound the step, and you bound the gap** between two tokens. Everything else about latency is the queue.
# 3. **One order for serving and for preempting.** Then the best one always gets on, and so, one by one, does everyone.
# 4. **Scheduling may change when a token comes, never which.** Preempt, chunk, swap, reorder: test that answers stay.
# 5. **Admission is cheaper than preemption.** Leave room to grow; how much is measured, not guessed.
# 6. **Whatever can wait for ever, will**, some day. Give every wait a bound: ageing, deadlines, a budget.
# 7. **Look at the tail, and at promises kept.** Throughput is the same for an engine that pleases everybody and for one
#    that pleases nobody.
# 8. **A model of time comes with its error**, printed beside it, on runs that it has not seen.

# %% [markdown]
# ## Troubleshooting, by symptom
#
# | symptom | likely cause | section |
# |---|---|---|
# | nothing happens, requests wait for ever | a head that never fits the budget; a policy that plans nothing | 3 |
# | a batch ends, then a pause, then a batch | request-level batching, or its time-out | 2 |
# | tokens stutter whenever a prompt comes | whole prompts, or a chunk too large: bound the step's tokens | 4, 5 |
# | first tokens late, tokens fast, GPU half idle | chunks too small, too few seats, or pages all taken | 4, 7 |
# | the mean is fine, users complain | the tail: p99, bursts, one class behind another | 6, 8 |
# | preempted again and again, tokens computed twice | thrashing: headroom, watermark, fewer seats | 7 |
# | pages free, and nobody is let in | a watermark too high; one large request at the head of the queue | 7, 8 |
# | another answer after a preemption | state lost with the pages: position, random state, a token not kept | 7 |
# | low priorities never served | strict order: age, or reserve a share | 8 |
# | short prompts late, in bunches | a convoy behind a long prompt: order by length, with ageing | 8 |
# | many small launches in a step | something is run per sequence that could be flat | 9 |
# | simulator far too fast | overheads, swaps or all-reduces not in the cost model; a machine that others use | 10 |
# | throughput flat, goodput falling | overload: first those who can still be in time; refuse early | 10, 11 |

# %% [markdown]
# ## What to read next
#
# - Orca: A Distributed Serving System for Transformer-Based Generative Models, OSDI 2022: iteration-level scheduling
#   and selective batching.
# - Efficient Memory Management for Large Language Model Serving with PagedAttention, SOSP 2023, arXiv:2309.06180:
#   preemption by swapping and recomputing, section 4.5.
# - Sarathi-Serve: Taming Throughput-Latency Tradeoff in LLM Inference, OSDI 2024, arXiv:2403.02310: chunks and
#   stall-free batches.
# - DistServe, OSDI 2024, arXiv:2401.09670: goodput, and prefill and decode on machines of their own.
# - Vidur: A Large-Scale Simulation Framework for LLM Inference, MLSys 2024, arXiv:2405.05465: a simulator and
#   its error.
# - Fast Distributed Inference Serving for Large Language Models (FastServe), arXiv:2305.05920: preemption at
#   every token against head-of-line blocking.
# - Fairness in Serving Large Language Models (VTC), OSDI 2024, arXiv:2401.00588: fair shares counted in tokens.
# - Llumnix, OSDI 2024, arXiv:2406.03243: moving running requests between engines.
#
# Lab 5 shares prefixes, guesses tokens ahead, and leaves the single engine. [05_advanced.ipynb](05_advanced.ipynb)
