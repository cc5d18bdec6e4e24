# %% [markdown]
# PART lab5c

# %% tags=["setup"]
import torch
import torch.nn.functional as F

from twophase.capacity.report import to_text
from twophase.workbook import ____, check, hint, measured, reference, reveal, use
from twophase.workbook.kit.models import smollm2
from twophase.workbook.lab02.real_layer import watch_layer
from twophase.workbook.lab05 import (
    pages_handover,
    pages_pictures,
    pages_shares,
    pages_two_processes,
    pipeline_pictures,
    plan_pools,
    shards_cost,
    shards_pictures,
    shards_two_processes,
)
from twophase.workbook.lab05.pages_pools import stored
from twophase.workbook.lab05.plan_deployments import deployment_of, example, plan_of
from twophase.workbook.lab05.shards_attention import AttentionWeights, attend, weights_of

torch.set_num_threads(1)

# %% [markdown]
# ## 6. Prefill here, decode there
#
# *Needs: CPU, and the model; the last part starts two processes.*
#
# Until now one engine did both: it read prompts, which is arithmetic, and wrote answers, which is waiting for memory.
# Chunks (lab 4) make them bearable neighbours. **Disaggregation** separates them: some machines only read, others only
# write, and each kind can be bought, configured and counted for what it does. DistServe (arXiv:2401.09670) and
# Splitwise (arXiv:2311.18677) showed it; DeepSeek-V3 is served like this (arXiv:2412.19437, section 3.4).
#
# The price is a hand-over. What a prefill leaves behind is its K and V, in pages of *its* pool, and the answer is
# written from pages of another one.

# %% [markdown]
# **Think first.** The prompt lies in blocks 7, 3, 6 of one pool. The other pool has blocks 2, 9, 5 free. What must
# travel, what must not, and which numbers mean nothing on the other side?

# %%
pages_pictures.draw_hand_over(num_tokens=10, page=4, here=(7, 3, 6), there=(2, 9, 5))

# %% [markdown]
# A block's number is an address in one pool and nothing else. What has a meaning on both sides is a token's *position*
# in its sequence. So what travels is rows in the order of positions, and each side maps positions to slots by its own
# table. It goes **layer by layer**: a layer's pages are complete as soon as the layer has been computed, so they can
# be on their way while the next layer is being computed.

# %% [markdown]
# <!-- card 5.18 -->
# `layer` is a `LayerKV` of the engine: `layer.k[block, head, offset]` is the key of one slot. `stored(layer)` lists
# what there is: K, V, and, when quantised, the scales of both, `[block, head, offset]`. `block_ids` has as many blocks
# as the tokens need, the last one partly full. A message is a list of tensors, a row per token. The two pools may
# have pages of different sizes.
#
# ```python
# slots_of([7, 3], num_tokens=6, page=4)   # blocks 7 7 7 7 3 3, offsets 0 1 2 3 0 1
# take_layer(layer, [7, 3], 6)[0].shape == (6, num_kv_heads, head_dim)
# ```


# %% tags=["exercise:5.18"]
def slots_of(block_ids, num_tokens, page):
    """Block and offset of each position."""
    positions = torch.arange(num_tokens)
    blocks = torch.tensor(block_ids)[positions // page]  # SOLUTION: the block of each position
    offsets = positions % page  # SOLUTION: its place in the block
    return blocks, offsets


def take_layer(layer, block_ids, num_tokens):
    """Everything one layer stores of a prompt, a row per token."""
    blocks, offsets = slots_of(block_ids, num_tokens, layer.k.shape[2])
    return [pages[blocks, :, offsets] for pages in stored(layer)]  # SOLUTION: a tensor of rows for each thing stored


def put_layer(layer, block_ids, message):
    """Write a message into these blocks of another pool."""
    blocks, offsets = slots_of(block_ids, len(message[0]), layer.k.shape[2])
    for pages, rows in zip(stored(layer), message, strict=True):
        # BEGIN SOLUTION: write the rows into their slots
        pages[blocks, :, offsets] = rows
        # END SOLUTION


# %%
check("5.18")

# %% [markdown]
# **The real model, two pools.** SmolLM2 reads a sentence into the first pool. Your functions move its 30 layers into
# other blocks of the second pool. Then both pools write on, each from its own pages.

# %%
# NBVAL_CHECK_OUTPUT
_, take, put = use("5.18")
for stored_as in ("float32", "int8"):
    moved = pages_handover.hand_over(take, put, kv_cache_dtype=stored_as)
    print(f"{stored_as}: {moved.num_bytes:,} bytes moved, largest difference of logits {moved.largest_difference:g}")
    print("  here ", moved.text_here)
    print("  there", moved.text_there)

# %% [markdown]
# **Read the result.** Not nearly equal: equal. Moving copies bits, so a difference of one part in a million would be a
# bug. That is the test to write for a hand-over, and it is a stricter one than reading the text.

# %% [markdown]
# ### Is it worth the wire?
#
# Lab 1's formula: a model with 80 layers and 8 KV heads of 128 stores 320 KiB per token in 16 bits. What is alive in a
# busy service, all users together, is some 120 to 240 thousand tokens.

# %%
# NBVAL_CHECK_OUTPUT
per_token = 2 * 80 * 8 * 128 * 2
for live_tokens in (120_000, 180_000, 240_000):
    print(f"{live_tokens:,} tokens: {live_tokens * per_token / 2**30:.1f} GiB")

# %% [markdown]
# 37 to 73 GiB, which pass from one machine to the other once in every lifetime of a request.

# %% [markdown]
# <!-- card 5.19 -->
# One prompt of 8,000 tokens of this model goes to another machine over a network of 400 Gbit/s. How many milliseconds
# does that take, at least?

# %% tags=["exercise:5.19"]
answer_5_19 = 1e3 * 8000 * 327_680 / 50e9  # SOLUTION: milliseconds

# %%
check("5.19")

# %% [markdown]
# To compute those 8,000 tokens takes $2 \cdot 70 \cdot 10^9 \cdot 8000$ operations: on eight H100s at 60 % of their
# peak, some 240 ms. And if each layer leaves as soon as it is computed, the transfers hide behind the arithmetic, all
# but the last layer's.

# %%
pages_pictures.draw_overlap(num_layers=8, compute_ms=30.0, transfer_ms=6.6)

# %% [markdown]
# <!-- card 5.20 -->
# **Think first.** SmolLM2 on this machine, in float32: 46,080 bytes and some 270 million operations per token of a
# prompt. Moving the K and V of a prompt to another process of the same machine takes how many percent of the time
# that it took to compute them? Anything within a factor of six counts; the point is the order of magnitude.

# %% tags=["exercise:5.20"]
guess_5_20 = 2.0  # SOLUTION: percent

# %%
check("5.20")

# %%
measured("5.20", pages_shares.moving_share_percent())

# %% [markdown]
# That was a socket with nothing else to do. Now the real thing.
#
# ### Two processes, for real
#
# The engine does it in `twophase.distributed.disaggregation`. Rank 1 reads prompts, rank 0 writes answers; each has the
# whole model, a pool and a scheduler of its own, and they say little to each other:
#
# ```mermaid
# sequenceDiagram
#     participant D as rank 0: decode
#     participant P as rank 1: prefill
#     D->>P: Submit: a prompt, for which blocks are reserved here
#     D->>P: Grant: they are now (if there was no room before)
#     P->>D: Pages: layer 0, layer 1, ... while the next layers are computed
#     P->>D: Done: the first token
#     D->>P: Received: your blocks can be freed
# ```
#
# Its pages have the same size on both sides, so it copies whole ones (`distributed/pages.py`), bit for bit, and a
# thread that does nothing else sends them. The next cell starts both ranks with torchrun and waits for them, a quarter
# of a minute or so; none is left behind. Three prompts are answered, and one of 250 tokens is watched. (`twophase
# bench disaggregation` does it at length, and `twophase bench tensor-parallel` what comes in the next section.)

# %%
moved = pages_two_processes.apart()
print(moved.lines)
if moved.apart is not None:
    print("the tokens are those of one engine alone:", moved.apart == moved.together)

# %% [markdown]
# **Read the result.** Sending may well take longer here than through the idle socket: the sender shares its cores with
# the next layers' arithmetic. That is the good news: it happens *meanwhile*. What a user waits for is the copying, and
# what comes after the last layer. The first token waits for nothing; it is sampled on the prefill side.
#
# What makes this hard is not the bytes. A process can die with half a prompt sent, or be stopped and say nothing: in
# `twophase.distributed` every wait has a limit, a lost peer is a `PeerLostError` that names it, and the blocks of
# its requests are free again. And the pools must be sized, which is section 8. **When is chunked prefill enough?**
# Keep the question until then.

# %% [markdown]
# ## 7. One layer on several machines
#
# *Needs: CPU, and the model; the last part starts two processes.*
#
# Llama-3-70B in bfloat16 has 141 GB of weights, and a GPU 80 GB. **Tensor parallelism** cuts every layer, so that each
# of n ranks holds an n-th of each matrix, and reads an n-th in each step. It is a way of using more machines
# that makes a *single* token faster: lab 3's bound, bytes over bandwidth, is divided by n. What it costs is that the
# ranks must agree on the activations, several times a layer.
#
# The art is in where to cut. Megatron-LM (arXiv:1909.08053) found the cuts that need the fewest words.

# %% [markdown]
# **Think first.** An MLP is $W_{down}\,(\mathrm{silu}(W_{gate}\,x) \cdot W_{up}\,x)$. A sum can be computed in parts,
# and added up later. Why can't one cut $W_{gate}$ so that each rank computes part of every inner number?

# %%
shards_pictures.draw_mlp_cut()

# %% [markdown]
# $\mathrm{silu}(a + b)$ is not $\mathrm{silu}(a) + \mathrm{silu}(b)$. So the first two matrices are cut such that a
# rank has *whole* inner numbers, some of them; and the last one such that it takes in just these. Its outputs are then
# parts of sums, and one **all-reduce** adds them up: every rank gives a tensor and gets the sum of all.

# %% [markdown]
# <!-- card 5.21 -->
# Weights are stored as in PyTorch, `[out, in]`, and used as `x @ w.T`: gate and up `[width, hidden]`, down
# `[hidden, width]`. `split_mlp` gives a list of n shards (gate, up, down), as even as possible; `mlp_part` what one
# rank computes; `all_reduce` gets a tensor of each rank and returns one for each; `mlp_block` what every rank has
# after the whole block, $x + \mathrm{MLP}(x)$. (The norm is left out: every rank does it for itself.)


# %% tags=["exercise:5.21"]
def split_mlp(gate, up, down, n):
    gates, ups = gate.tensor_split(n), up.tensor_split(n)  # SOLUTION: n parts of each, along the right axis
    downs = down.tensor_split(n, dim=1)  # SOLUTION: n parts that belong to them
    return list(zip(gates, ups, downs, strict=True))


def mlp_part(x, shard):
    gate, up, down = shard
    inner = F.silu(x @ gate.T) * (x @ up.T)  # SOLUTION: the inner numbers that this rank has
    return inner @ down.T


def all_reduce(parts):
    total = torch.stack(list(parts)).sum(0)  # SOLUTION: what every rank is to have
    return [total.clone() for _ in parts]


def mlp_block(x, shards):
    return [x + total for total in all_reduce([mlp_part(x, s) for s in shards])]  # SOLUTION: one output for each rank


# %%
check("5.21")

# %% [markdown]
# ### Heads
#
# Attention is easier: a head works alone, from its own rows of $W_q$, $W_k$ and $W_v$ to its own columns of $W_o$,
# which adds the heads up. So heads are dealt out, and again one all-reduce follows. With grouped heads a KV head and
# the G query heads that read it stay together; else two ranks would need the same keys, and store them twice.
#
# SmolLM2 has 3 KV heads, and two ranks. Many engines refuse that. Nothing in the arithmetic does: 2 and 1.

# %%
shards_pictures.draw_heads(num_heads=9, num_kv_heads=3, num_ranks=2)

# %% [markdown]
# <!-- card 5.22 -->
# `kv_heads_of(rank, n, num_kv_heads)` is a range: in order, and the first ranks have one more where it does not
# divide. `split_attention` returns for each rank the `AttentionWeights(q, k, v, o, num_heads, num_kv_heads, head_dim,
# theta)` of its heads; the rows of a head in q, k and v, and its columns in o, lie together.
#
# ```python
# [list(kv_heads_of(rank, 2, 3)) for rank in (0, 1)] == [[0, 1], [2]]
# ```


# %% tags=["exercise:5.22"]
def kv_heads_of(rank, n, num_kv_heads):
    base, extra = divmod(num_kv_heads, n)
    first = rank * base + min(rank, extra)  # SOLUTION: how many heads the ranks before this one have
    return range(first, first + base + (rank < extra))  # SOLUTION: this rank's heads


def split_attention(w, n):
    group, d = w.num_heads // w.num_kv_heads, w.head_dim
    shards = []
    for rank in range(n):
        kv = kv_heads_of(rank, n, w.num_kv_heads)
        kv_rows = slice(kv.start * d, kv.stop * d)  # SOLUTION: rows of these heads in k and v
        q_rows = slice(kv.start * group * d, kv.stop * group * d)  # SOLUTION: rows of their query heads in q
        o = w.o[:, q_rows]  # SOLUTION: the part of o that takes these heads in
        q, k, v = w.q[q_rows], w.k[kv_rows], w.v[kv_rows]
        shards.append(AttentionWeights(q, k, v, o, len(kv) * group, len(kv), d, w.theta))
    return shards


# %%
check("5.22")

# %% [markdown]
# **A real layer.** What goes into layer 7's attention of SmolLM2 when it reads a sentence, and what transformers makes
# of it, against the sum of your two ranks.

# %%
# NBVAL_CHECK_OUTPUT
_, split = use("5.22")
model, tokenizer = smollm2()
x, expected = watch_layer(model, 7, torch.tensor(tokenizer.encode("Many hands make light work, if they can agree.")))
whole = weights_of(model, 7)
parts = [attend(x, shard) for shard in split(whole, 2)]
for rank, shard in enumerate(split(whole, 2)):
    weights = sum(w.numel() for w in (shard.q, shard.k, shard.v, shard.o))
    print(f"rank {rank}: {shard.num_heads} heads over {shard.num_kv_heads}, {weights:,} weights")
print("the sum equals transformers' output:", torch.allclose(sum(parts), expected, atol=1e-4))

# %% [markdown]
# Rank 0 has twice the work of rank 1, so two ranks are at best 1.5 times as fast here, not twice. And each keeps the
# K/V pages of its own heads only: with them memory divides too.

# %% [markdown]
# ### Two ranks, for real
#
# <!-- card 5.23 -->
# The engine with `LLM(tensor_parallel_size=2)`: every rank holds its part of each layer and runs the same step. A
# prompt of 24 tokens is read in one step, and 20 tokens come out. SmolLM2 has 30 layers. How many all-reduces of
# activations in the layers is that? Write the number.

# %% tags=["exercise:5.23"]
guess_5_23 = 1200  # SOLUTION: all-reduces

# %%
check("5.23")

# %% [markdown]
# In the next cell this process generates alone, then two ranks that torchrun starts do the same. A quarter of a minute.

# %%
both = shards_two_processes.side_by_side()
print(both.table)
measured("5.23", both.two.num_all_reduces) if both.two is not None else both.why_not

# %%
if both.two is not None:
    one, two = both.one, both.two
    off = max(abs(a - b) for a, b in zip(one.logprobs, two.logprobs, strict=True))
    print("the same tokens:", one.token_ids == two.token_ids, f"| log-probabilities differ by at most {off:.0e}")
    num_rows = two.all_reduce_bytes // (60 * 576 * 4)
    print(f"{two.all_reduce_bytes:,} bytes handed over: {num_rows} rows of 576 floats, 60 times")

# %% [markdown]
# **Read the result.** Two per layer and step, and a row for each token of the step: 24 of the prompt and 19 more, for
# the last token is sampled and never read. The tokens are equal and the logits *nearly*: sums are added up in another
# order. A hand-over was bit for bit; here a tolerance is right.
#
# And the time? Reading a prompt is arithmetic, and two cores have twice as much of it. A decode step waits for the
# memory, which the two ranks of one machine share, and then the ranks wait 60 times for each other. Does your table
# agree? The bytes, at any rate, are divided: fewer weights to hold on each rank, and fewer K and V per token.

# %% [markdown]
# ### When it does not pay
#
# An all-reduce of one token is a few kilobytes: no bandwidth is needed, but a *latency*, twice a layer, which no
# faster link makes shorter. Below, on paper, the time per token of a single user on H100s, by roofline, with 10 µs per
# all-reduce.

# %%
shards_pictures.draw_time_per_token(shards_cost.time_per_token())

# %% [markdown]
# **Read the result.** The part that reads is divided, the part that talks stays. SmolLM2 has next to nothing to divide:
# on three GPUs its tokens come several times *slower*. Llama-3-8B on eight is some four times as fast as on one, for
# one user; eight engines of one GPU each serve eight times as many. Llama-3-70B has no choice below two. And across
# machines, where an all-reduce takes longer still, one rarely cuts layers at all: there the model is cut *between*
# layers, which is next.

# %% [markdown]
# ## 8. Stages in a row, pools side by side
#
# *Needs: CPU.*
#
# **Pipeline parallelism** gives each machine some consecutive layers. What travels is one activation per token, once
# per border instead of twice per layer: a slow network will do. But a machine has nothing to do until the first work
# arrives, and nothing more once the last has passed. That idle time is called a *bubble*.

# %% [markdown]
# **Think first.** A prompt goes through four stages as one piece. What share of the machines' time is idle? And what
# if the prompt goes in four chunks?

# %% [markdown]
# <!-- card 5.24 -->
# `seconds[stage][chunk]` says how long each takes. A stage works on one chunk at a time, in order, and can start with
# one as soon as the stage before has ended it. `run_pipeline` returns (start, end) in the same nesting; `bubble_share`
# the idle share of all stages from 0 to the end of everything. For m equal chunks in p stages it is
# $(p - 1) / (m + p - 1)$ (GPipe, arXiv:1811.06965): derive it, or let your code find it.
#
# ```python
# run_pipeline([[1, 1], [1, 1]]) == [[(0, 1), (1, 2)], [(1, 2), (2, 3)]]      # bubble 2 of 6
# ```


# %% tags=["exercise:5.24"]
def run_pipeline(seconds):
    spans = []
    for stage, row in enumerate(seconds):
        free, spans_here = 0.0, []
        for chunk, length in enumerate(row):
            there = spans[stage - 1][chunk][1] if stage else 0.0  # SOLUTION: when this chunk has come from before
            start = max(free, there)  # SOLUTION: when it can start here
            free = start + length
            spans_here.append((start, free))
        spans.append(spans_here)
    return spans


def bubble_share(spans):
    makespan = max(end for row in spans for _, end in row)  # SOLUTION: when everything is over
    worked = sum(end - start for row in spans for start, end in row)  # SOLUTION: seconds of work, all stages
    return 1 - worked / (len(spans) * makespan)  # SOLUTION: the idle share


# %%
check("5.24")

# %%
play, bubble = use("5.24")
timetables = {f"{m} chunk{'s' * (m > 1)}": play([[8 / m] * m] * 4) for m in (1, 4, 16)}
pipeline_pictures.draw_pipeline(timetables, bubble)

# %% [markdown]
# So the smallest chunks are best? Each of them makes every stage read its weights once more, and attention in a later
# chunk has more keys than in an early one. A prompt of 8,192 tokens of Llama-3-70B, four H100s with 20 layers each:

# %%
# NBVAL_CHECK_OUTPUT
for num_chunks in (1, 2, 4, 8, 16, 32, 64):
    spans = play(plan_pools.stage_seconds(num_tokens=8192, num_chunks=num_chunks, num_stages=4))
    print(f"{num_chunks:3} chunks: bubble {bubble(spans):4.0%}, over after {spans[-1][-1][1]:.2f} s")

# %% [markdown]
# **Read the result.** The bubble shrinks on and on; the time has a minimum, where a chunk is still large enough to be
# bound by arithmetic. And decoding? Token t + 1 enters the first stage when token t has left the last: one sequence
# keeps one stage of four busy. It takes at least as many groups of sequences as there are stages, each on its way
# through a different one. A pipeline gives *throughput* and memory; it never makes a token come sooner.

# %% [markdown]
# ### How many read, how many write?
#
# Eight engines, each an H100 with Llama-3-8B, and people with documents: 36 requests per second, prompts of some 4,800
# tokens and answers of 140. Promised: the first token within a second, then no more than 12 ms per token on average.
# If some engines only read prompts and the others only write, how many should read?

# %%
# NBVAL_CHECK_OUTPUT
documents = plan_pools.DOCUMENTS
print(f"{documents.mean_prompt:,.0f} tokens a prompt: {1e3 * documents.mean_prefill_s:.0f} ms to read one, alone")
print(f"a decode step of 40 sequences: {1e3 * plan_pools.decode_step_s(40, 40 * 4800):.1f} ms")

# %% [markdown]
# <!-- card 5.25 -->
# Write how many of the eight should read, so that as many requests as possible get what was promised.

# %% tags=["exercise:5.25"]
guess_5_25 = 5  # SOLUTION: engines that read

# %%
check("5.25")

# %%
for num_reading, outcome in plan_pools.splits(documents).items():
    print(f"{num_reading} read, {8 - num_reading} write: {outcome.line}")
measured("5.25", plan_pools.best_split(documents))

# %% [markdown]
# **Read the result.** With too few readers prompts queue up without end; with too few writers, each step has so many
# sequences that it gets too long. In between there is hardly room: the pools have to be sized, and sized again when
# the traffic changes. Now the same eight engines, each doing both, in chunks of different sizes:

# %%
for chunk in (128, 256, 512, 8192):
    print(f"steps of at most {chunk:5,} tokens: {plan_pools.mixed(documents, chunk).line}")

# %% [markdown]
# **Read the result.** Against whole prompts (8,192 tokens in a step) the pools win by far. Against chunks of the right
# size they win nothing here. **Chunked prefill is enough** as long as a chunk fits into the idle arithmetic of a decode
# step, and this cost model lets it, perfectly: a real GPU overlaps the two less well, and a chunk reads all the keys
# before it again. Pools pay when promises per token are tight beside very long prompts, when the phases want different
# hardware or different parallelism, or when nobody can find the chunk that suits all. They cost a network, two sizes
# to keep right, and idle machines when the mix shifts.

# %% [markdown]
# ## 9. A plan on one page
#
# *Needs: CPU.*
#
# Everything that this workbook has measured comes together in one question, asked before anything is bought: which
# machines, which settings, for this model, this traffic, and these promises? `twophase plan` answers it from one file.
# Its first part is arithmetic that you can do yourself.

# %% [markdown]
# <!-- card 5.26 -->
# A `Deployment` has `weight_bytes` (of the model; they divide evenly), `num_layers`, `num_kv_heads`, `head_dim`,
# `value_bytes` and `scale_bytes` of a number and of a scale in the cache, `num_gpus`, `gpu_bytes`, `utilisation` (the
# share of a GPU that may be used), `workspace_bytes` (per GPU), `block_size`, `max_num_seqs`. The scale is one for each
# token and head, for K and for V. `kv_bytes_per_token` counts the fullest GPU, `num_blocks` is of one GPU's pool, and
# `concurrency` how many requests of `num_tokens` tokens run at once: memory, or seats.


# %% tags=["exercise:5.26"]
def kv_bytes_per_token(d):
    heads = -(-d.num_kv_heads // d.num_gpus)  # SOLUTION: K/V heads of the fullest GPU
    return 2 * d.num_layers * heads * (d.head_dim * d.value_bytes + d.scale_bytes)  # SOLUTION: bytes of a token there


def num_blocks(d):
    left = d.utilisation * d.gpu_bytes - d.weight_bytes / d.num_gpus - d.workspace_bytes  # SOLUTION: for K and V
    return max(0, int(left // (d.block_size * kv_bytes_per_token(d))))  # SOLUTION: whole blocks in it, none at least


def concurrency(d, num_tokens):
    blocks_each = -(-num_tokens // d.block_size)  # SOLUTION: blocks of one request
    return min(d.max_num_seqs, num_blocks(d) // blocks_each)  # SOLUTION: requests at once


# %%
check("5.26")

# %%
# NBVAL_CHECK_OUTPUT
_, blocks_of, at_once = use("5.26")
for stored_as in ("auto", "int8"):
    plan = plan_of(example(kv_cache_dtype=stored_as, workspace="1 GB", max_num_seqs="2000"))
    d = deployment_of(plan.config)
    print(f"Llama-3-8B on an H100, K/V {stored_as}: {blocks_of(d):,} blocks,", end=" ")
    print(f"{at_once(d, 1250)} requests of 1,250 tokens at once; the planner says {plan.max_requests}")

# %% [markdown]
# ### What the planner makes of it
#
# Times are by roofline and Little's law; nothing is measured, and every assumption is printed. The last lines are the
# most useful ones: reasons to think again, each with the line of the file that it is about. Here is a plan that
# somebody wrote for a 70B model, since "two H100s have 160 GB, and the weights are 141".

# %%
# NBVAL_CHECK_OUTPUT
tight = {"model": "llama-3-70b", "tensor_parallel_size": "2", "rate": "2", "max_num_seqs": "64"}
print(to_text(plan_of(example(**tight))))

# %% [markdown]
# <!-- card 5.27 -->
# The weights fit, and the plan does not work. One change, and no warning is left. Which?
# (a) `kv_cache_dtype: int8`,
# (b) `max_num_seqs: 4`,
# (c) `tensor_parallel_size: 4`,
# (d) `gpu_memory_utilization: 0.95`.

# %% tags=["exercise:5.27"]
answer_5_27 = "c"  # SOLUTION: one letter

# %%
check("5.27")

# %%
# NBVAL_CHECK_OUTPUT
options = ("kv_cache_dtype", "int8"), ("max_num_seqs", "4"), ("tensor_parallel_size", "4")
for key, value in (*options, ("gpu_memory_utilization", "0.95")):
    plan = plan_of(example(**{**tight, key: value}))
    most, warnings = plan.saturated.requests_per_s, [caution.name for caution in plan.cautions]
    print(f"{key}: {value}".ljust(30), f"at most {most:4.2f} requests/s;", ", ".join(warnings) or "no warnings")

# %% [markdown]
# **Read the result.** Twice the GPUs serve ten times the requests. The first two were busy holding weights; what
# the third and the fourth bring is nearly all pool, and a larger batch reads the same weights. Memory left over after
# the weights, not memory, is what serves people.

# %% [markdown]
# ### A decision matrix
#
# | workload | first | then | leave alone |
# |---|---|---|---|
# | chats, many users | continuous batching, an engine per GPU | K/V in int8 or fp8 | more GPUs per engine |
# | one long instruction, many users | prefix caching, with routing to it | a salt per tenant | pools |
# | long documents, short answers | chunked prefill, K/V in 8 bits | pools, if token times are tight | speculation |
# | one user, latency above all | tensor parallelism, speculation | a quantised model | large batches |
# | edits, code, quotations | n-gram speculation | prefix caching of the file | a draft model |
# | answers for programs | guided decoding | speculation beside it | retries |
# | streams without end | window and sinks | a summary kept in the prompt | windows for tasks that look far back |
# | offline, throughput only | the largest batch, large chunks | pipelines over slow links | promises per token |
#
# Each row is a hypothesis. The planner tells within a second whether it can be true; the simulator (lab 4) whether it
# is true of your traffic; a run on the machine whether it is true.

# %% [markdown]
# ## The whole system, drawn once more
#
# Every box is something you have built, or seen built, and every name a file that you can open.

# %% [markdown]
# ```mermaid
# flowchart TB
#     subgraph door["at the door"]
#         P["prompts, requests<br/>engine/prompts.py, core/request.py"]
#         G["guided decoding<br/>engine/guidance.py"]
#     end
#     subgraph decide["decides: no tensors"]
#         S["scheduler and policies<br/>scheduling/scheduler.py, policies.py"]
#         C["block pool, tables<br/>cache/block_pool.py, block_table.py"]
#         X["prefix cache, salts<br/>cache/prefix_cache.py"]
#         W["windows, sinks, swapping<br/>cache/manager.py, swap_space.py"]
#     end
#     subgraph compute["computes"]
#         R["packed batch, runner<br/>engine/packing.py, runner.py"]
#         M["the model<br/>model/llama.py"]
#         A["attention over pages<br/>attention/, kernels/"]
#         K["pages, int8, fp8<br/>cache/kv_cache.py"]
#     end
#     subgraph choose["chooses tokens"]
#         Z["sampler<br/>engine/sampler.py"]
#         D["drafts, and their verification<br/>engine/drafters.py, rejection.py"]
#         T["text, never half a character<br/>engine/detokenizer.py"]
#     end
#     subgraph many["more than one process"]
#         TP["tensor parallelism<br/>distributed/tensor_parallel.py"]
#         PD["prefill and decode apart<br/>distributed/disaggregation.py"]
#     end
#     subgraph paper["on paper, and in numbers"]
#         V["latencies, goodput<br/>serving/, bench/"]
#         U["simulator: the same scheduler<br/>simulate/"]
#         N["capacity plan<br/>capacity/"]
#     end
#     P --> S
#     S <--> C
#     C <--> X
#     C <--> W
#     S -->|plan| R --> M --> A --> K
#     M -->|logits| Z
#     G -->|mask| Z
#     D <-->|drafts| R
#     Z -->|tokens| S
#     Z --> T
#     TP -.-> M
#     PD -.-> K
#     S -.->|same code| U --> N
#     T --> V
# ```
#
# All paths are below `src/twophase/`, the kernels in `kernels/twophase_kernels/`. Follow a token once around: it comes
# in as text at the door; the scheduler gives it a place in a step and the cache a slot in a page; the model computes
# its K and V into that slot and attends to the pages of its sequence; the sampler chooses the next one, under a mask
# if a grammar asks for it, or checks several that a drafter has guessed; and around it goes. Labs 1 to 3 are the inner
# circle, lab 4 the left side, this lab everything that leaves the simple circle.

# %% [markdown]
# ## Checkpoint
#
# Tick what you could explain to a colleague without looking. What you can't, is a section to go back to.
#
# - [ ] why a hash of a block must cover everything before it, and what a salt closes (1)
# - [ ] who may be evicted from a prefix cache, and in which order (1)
# - [ ] why verified drafts leave the distribution as it was, and when they cost time (2)
# - [ ] what acceptance and the costs of both models say about the gain (2)
# - [ ] how a grammar becomes a mask over tokens, and what still can go wrong with valid output (3)
# - [ ] what a window forgets, and why the first tokens must stay (4)
# - [ ] how to tell, with numbers, that a smaller cache is still good enough (5)
# - [ ] what travels in a hand-over, and why it can hide behind the arithmetic (6)
# - [ ] when chunked prefill is enough, and when pools are worth their price (6, 8)
# - [ ] where a layer is cut so that two all-reduces suffice, and what they cost (7)
# - [ ] what a bubble is, and why a pipeline makes no token come sooner (8)
# - [ ] how to get from a configuration to requests at once, on paper (9)

# %% [markdown]
# ## 10. Final knowledge check
#
# *Needs: a clear head.* Six questions over the whole lab.

# %% [markdown]
# <!-- card 5.28 -->
# Which technique first? **a** prefix caching · **b** n-gram speculation · **c** guided decoding · **d** a sliding
# window with sinks · **e** tensor parallelism · **f** prefill and decode pools

# %% tags=["exercise:5.28"]
answer_5_28 = {
    "ten thousand requests, all beginning with the same 3,000 tokens of instructions": "a",  # SOLUTION: a letter
    "somebody, quite alone, waits for an edit that repeats most of a file": "b",  # SOLUTION: a letter
    "answers are read by a program, and a missing bracket costs a retry": "c",  # SOLUTION: a letter
    "a log is followed for weeks, and only its last hour matters": "d",  # SOLUTION: a letter
    "the weights alone are larger than one GPU": "e",  # SOLUTION: a letter
    "the best chunks, and still long gaps, beside prompts of 20,000 tokens": "f",  # SOLUTION: a letter
}

# %%
check("5.28")

# %% [markdown]
# <!-- card 5.29 -->
# Temperature 0.8, and a drafter whose guesses are nearly always wrong, with rejection sampling. What becomes of the
# text?
# (a) It follows the drafter wherever the target is unsure,
# (b) it would be right at temperature 0 only,
# (c) it comes from a mixture of both distributions,
# (d) it has the distribution it would have without a drafter, and comes later.

# %% tags=["exercise:5.29"]
answer_5_29 = "d"  # SOLUTION: one letter

# %%
check("5.29")

# %% [markdown]
# <!-- card 5.30 -->
# Each draft is accepted with probability 0.5, whatever happened before, and 4 are drafted at a time. How many tokens
# does a pass of the target model give, on average?

# %% tags=["exercise:5.30"]
answer_5_30 = 1.9375  # SOLUTION: tokens

# %%
check("5.30")

# %% [markdown]
# <!-- card 5.31 -->
# Llama-3-8B for short chats keeps its promises on one H100. Now eight times as many users come, and there are eight
# H100s in one machine. How do most of them get what was promised?
# (a) Tensor parallelism of eight,
# (b) eight engines behind a router,
# (c) a pipeline of eight stages,
# (d) four engines that read and four that write.

# %% tags=["exercise:5.31"]
answer_5_31 = "b"  # SOLUTION: one letter

# %%
check("5.31")

# %% [markdown]
# <!-- card 5.32 -->
# What is behind it? **a** K and V of rejected drafts left in the cache · **b** a prefix cache without salts · **c** a
# window without sinks · **d** max_tokens · **e** pages put in another order than the block table's · **f** the
# latency of all-reduces

# %% tags=["exercise:5.32"]
answer_5_32 = {
    "greedy text changes when speculation is on": "a",  # SOLUTION: a letter
    "one tenant's first tokens are faster right after another one asked the same": "b",  # SOLUTION: a letter
    "fluent answers turn into noise some thousand tokens on": "c",  # SOLUTION: a letter
    "valid JSON up to a point, and then nothing": "d",  # SOLUTION: a letter
    "the decode side's first token is right, the second is not": "e",  # SOLUTION: a letter
    "twice the GPUs, and the same time per token": "f",  # SOLUTION: a letter
}

# %%
check("5.32")

# %% [markdown]
# <!-- card 5.33 -->
# A window of 1,024 tokens and 4 sinks, blocks of 16. A sequence decodes for ever. How many blocks does it hold at
# most?

# %% tags=["exercise:5.33"]
answer_5_33 = 66  # SOLUTION: blocks

# %%
check("5.33")

# %% [markdown]
# ## Principles
#
# 1. **First measure what is scarce**: arithmetic, bandwidth, memory, latency, or somebody's patience. Each technique
#    trades one for another; without knowing which one is short, one buys at random.
# 2. **What is computed once need not be computed twice**, as long as its name says all it depends on.
# 3. **A guess may save time, never change the answer.** Verify, and test that the distribution stayed.
# 4. **Constrain the output, not the hope.** What a program reads should be valid by construction, or say why it is not.
# 5. **Forgetting is a feature with a test**: know what is lost, at the length where it is lost.
# 6. **Move data while something else computes**, and cut where the fewest words must be said.
# 7. **Every wait has a limit and an owner.** Two processes fail in more ways than one: a lost peer is an error within
#    seconds, never silence.
# 8. **A technique comes with the workload that it hurts.** If you don't know that workload, you have not measured yet.
# 9. **Plan on paper, simulate the traffic, measure the machine**, in this order, and print the assumptions.

# %% [markdown]
# ## Troubleshooting, by symptom
#
# | symptom | likely cause | section |
# |---|---|---|
# | prefix cache on, and no hits | prompts differ in the first block (a date, a salt), or are shorter than one | 1 |
# | hits, then suddenly none | evicted under load; or requests routed to another replica | 1 |
# | the same prompt, faster for strangers | a shared cache without salts: a side channel | 1 |
# | speculation on, text differs at temperature 0 | rejected drafts left in the cache, or wrong positions | 2 |
# | speculation on, slower under load | verification is not free once batches are large: switch it off there | 2 |
# | guided output cut off | max_tokens; or a stop string that is part of the grammar | 3 |
# | guided output valid, and nonsense | the schema forces a field that the prompt never asks for | 3 |
# | noise after some thousand tokens | a window without sinks | 4 |
# | fine on short prompts, worse on long ones | K/V in too few bits; measure at length | 5 |
# | after a hand-over only the first token is right | pages in another order, a partial page, no scales | 6 |
# | decode pool idle, prompts queue | pools sized for another mix of traffic | 6, 8 |
# | ranks hang at the start | one did not come: ports, a wrong world size; a start-up limit names it | 7 |
# | ranks hang in a step | they disagree on what is computed, or one died: every wait needs a limit | 7 |
# | slightly different logits on two ranks | sums in another order: compare with a tolerance, not bit by bit | 7 |
# | more GPUs, same speed | latency of all-reduces; or a batch bound by K/V, not by weights | 7 |
# | stages of a pipeline idle | fewer groups in flight than stages | 8 |
# | fits on paper, preempts all day | memory for weights, not for K/V; seats beyond memory | 9 |

# %% [markdown]
# ## What to read next
#
# - SGLang, arXiv:2312.07104: RadixAttention, prefixes shared automatically.
# - Fast Inference from Transformers via Speculative Decoding, arXiv:2211.17192, and Accelerating Large Language Model
#   Decoding with Speculative Sampling, arXiv:2302.01318: the rule, and the proof that it keeps the distribution.
# - EAGLE, arXiv:2401.15077, and Medusa, arXiv:2401.10774: drafts from the model's own features.
# - Efficient Guided Generation for Large Language Models, arXiv:2307.09702, and XGrammar, arXiv:2411.15100: masks from
#   automata, and how to make them cheap.
# - Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453.
# - DistServe, arXiv:2401.09670; Splitwise, arXiv:2311.18677; Mooncake, arXiv:2407.00079: prefill and decode apart, and
#   a store of K/V between them.
# - Megatron-LM, arXiv:1909.08053, and Efficiently Scaling Transformer Inference, arXiv:2211.05102: where to cut.
# - GPipe, arXiv:1811.06965: bubbles.
# - Ring Attention, arXiv:2310.01889: long contexts over many machines. DeepSeek-V3, arXiv:2412.19437, section 3: a
#   large service, as it is run.
#
# This is the end of the workbook, and of the story: two phases, one model. You have built both, batched them, shared
# them, guessed ahead, taken them apart and put them on two machines. What is left is a system of your own. The engine
# in this repository is small enough to be changed in an evening: start with the part you would have done differently.
