# %% [markdown]
# # Lab 3: decode, one token at a time
#
# The prompt has been read and the first token is out. From here on each step computes **one token per sequence**: a
# few rows where prefill had hundreds. There is little to compute, and yet a step is slow. The first
# cell measures how much, in this course's engine on this machine, on one thread.

# %%
from twophase_labs.machine.kernels import device  # first: it decides how kernels run

# isort: split
import torch

from twophase_labs.decode import step_time

torch.set_num_threads(1)
step_s = step_time.measured_step_s()  # SmolLM2 in the engine, one sequence
arithmetic_s = 2 * step_time.NUM_WEIGHTS / step_time.matmul_rate()
print(f"arithmetic: {2 * step_time.NUM_WEIGHTS / 1e6:.0f} million operations, {1e3 * arithmetic_s:.1f} ms")
print(f"one token:  {1e3 * step_s:.1f} ms, {step_s / arithmetic_s:.1f} times as long")

# %% [markdown]
# Each of the 135 million weights takes part in one multiplication and one addition, and this machine's matrix products
# show how fast it can do that. For most of the step the processor does something else. What? Write down what you
# expect. Section 2 finds the missing time, and the end of section 9 repeats this measurement with your own code in the
# engine.

# %% [markdown]
# <!-- opening minutes: 4 -->
# <!-- map -->

# %% [markdown]
# **After this lab you can**
#
# - say from a data sheet how fast a model can decode at best, and check it on a machine of your own;
# - write the allocator of a paged K/V cache: a pool, block tables, sharing, copy-on-write, and running out of blocks
#   without damage;
# - test an allocator with an oracle that finds bugs which no test of shapes finds;
# - write a paged decode kernel, split it so that it fills a GPU, plan the splits of a ragged batch, and merge the parts
#   exactly;
# - say what batching, int8, MLA and a longer context change in the time of a step, with numbers measured here.
#
# You need labs 1 and 2, or what they are about: a K/V cache, grouped heads, the online softmax, slots. No GPU is
# needed; without one, Triton kernels are compiled for the processor, and launches of yours are checked (lab 2, section
# 6, says how to have them interpreted for `print` and `assert`).
#
# **How it works.** Commit to a prediction, write the code, run `check("3.1")`. `hint("3.1")` helps in up to three
# steps, `reveal("3.1")` shows a solution. What you leave out runs with the reference's answer, and says so. Each
# section follows the course's [method](../docs/method.md).

# %% tags=["setup"]
from twophase_labs.machine.kernels import device, tl, triton  # first: it decides how kernels run

# isort: split
import torch

from twophase_labs import ____, check, hint, measured, reference, reveal, use
from twophase_labs.decode.decoder import smollm2_decoder

torch.set_num_threads(1)

# %% [markdown]
# ## 1. One step, taken apart
# <!-- minutes: 16 -->
#
# In lab 1 you put a cache into a toy of one layer. A real model is the same thirty times over, with grouped heads,
# rotated positions and a vocabulary. Here is the step for one token, with the shapes of SmolLM2.

# %% [markdown]
# ```mermaid
# flowchart LR
#     T["token [1]"] --> E["embed<br/>x [1, 576]"]
#     E --> P["project and rotate<br/>at position S"]
#     P --> Q["q [9, 1, 64]"]
#     P --> KV["new k, v<br/>[3, 1, 64]"]
#     KV -->|append| C[("cache of this layer<br/>[3, S + 1, 64], twice")]
#     Q --> A["attention<br/>weights [9, 1, S + 1]"]
#     C --> A
#     A --> F["output, MLP<br/>x [1, 576]"]
#     F -->|"29 more layers"| P
#     F --> L["logits [49152]"]
# ```
#
# The cache and the attention weights grow with the text. Everything else always has one row.

# %% [markdown]
# `parts`, made below, is a `Decoder`: SmolLM2 in parts. Its weights are those of transformers; the loop over the layers
# and the cache are yours. (Inside `decode_step` it is the argument `model`; the notebook's own `model` is that of
# transformers.)
#
# | call | gives |
# |---|---|
# | `model.embed(ids)` | x, `[L, hidden]` |
# | `model.project(layer, x, positions)` | q `[H, L, D]`, k and v `[H_kv, L, D]`; q and k rotated by positions `[L]` |
# | `model.attend(q, k, v)` | `[H, L, D]`; causal, the L queries are the last of all positions |
# | `model.finish(layer, x, attended)` | x after the layer, both residuals added |
# | `model.logits(rows)` | a row of logits for each row given |
# | `model.empty_cache()` | a pair of `[H_kv, 0, D]` for each layer |

# %%
from twophase_labs.kit.models import smollm2

model, tokenizer = smollm2()
parts = smollm2_decoder()

# %% [markdown]
# <!-- card 3.1 -->
# Write the step. `cache` is a list with a pair `(k, v)` of `[H_kv, S, D]` for each layer. A row of logits costs
# 49,152 · 576 multiplications, as much as eight layers: compute only the one that is used.


# %% tags=["exercise:3.1"]
def decode_step(model, new_ids, cache):
    """Run the model over `new_ids` ([L]: one token in a decode step, but a prompt works as well) against `cache`.

    Returns the logits of the last row, [V], and a new cache of S + L tokens: a list with a pair (k, v) per layer, each
    [H_kv, S + L, D]. The given cache is not changed. Every new token goes through each layer once.

    >>> parts = smollm2_decoder()
    >>> logits, cache = decode_step(parts, torch.tensor([504, 2398]), parts.empty_cache())
    >>> logits.shape, len(cache), cache[0][0].shape
    (torch.Size([49152]), 30, torch.Size([3, 2, 64]))
    >>> logits, longer = decode_step(parts, logits.argmax()[None], cache)
    >>> longer[29][1].shape, cache[29][1].shape
    (torch.Size([3, 3, 64]), torch.Size([3, 2, 64]))
    """
    # BEGIN SOLUTION: the loop over the layers
    num_cached = cache[0][0].shape[1]
    positions = torch.arange(num_cached, num_cached + len(new_ids))
    x, grown = model.embed(new_ids), []
    for layer, (old_k, old_v) in enumerate(cache):
        q, new_k, new_v = model.project(layer, x, positions)
        k = torch.cat([old_k, new_k], dim=1)
        v = torch.cat([old_v, new_v], dim=1)
        grown.append((k, v))
        x = model.finish(layer, x, model.attend(q, k, v))
    return model.logits(x[-1:])[0], grown
    # END SOLUTION


# %%
check("3.1")

# %% [markdown]
# **On the real model**, against transformers: a prompt in one call, then 30 tokens one by one.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.kit.models import transformers_greedy

decode_step = use("3.1")
prompt_ids = tokenizer("The three primary colours are", return_tensors="pt").input_ids[0]
logits, cache = decode_step(parts, prompt_ids, parts.empty_cache())
ids = prompt_ids
for _ in range(30):
    ids = torch.cat([ids, logits.argmax()[None]])
    logits, cache = decode_step(parts, ids[-1:], cache)
print(tokenizer.decode(ids))
print("the tokens of transformers:", torch.equal(ids, transformers_greedy(model, prompt_ids, 30)))
print(f"the cache: {len(cache)} layers, a pair of {list(cache[0][0].shape)} each")

# %% [markdown]
# **Think first.** A step against the cache computes one row in every layer. A loop without a cache recomputes the whole
# text: 5 rows after the prompt, 34 at the end. By what factor does the time of a step grow from one row to 34?

# %%
from twophase_labs.kit.timing import seconds

lengths, times = (5, 14, 24, 34), {"one row, against the cache": [], "all rows again": []}
for n in lengths:
    _, before = decode_step(parts, ids[: n - 1], parts.empty_cache())
    new, nothing = ids[n - 1 : n], parts.empty_cache()
    one_s = seconds(lambda new=new, before=before: decode_step(parts, new, before), repeats=3)
    all_s = seconds(lambda n=n, nothing=nothing: decode_step(parts, ids[:n], nothing), repeats=2)
    times["one row, against the cache"].append(one_s)
    times["all rows again"].append(all_s)
for n, one, every in zip(lengths, *times.values(), strict=True):
    print(
        f"{n:2} tokens: one row {1e3 * one:5.1f} ms, {n:2} rows {1e3 * every:5.1f} ms, {every / one:.1f} times as long"
    )

# %%
step_time.draw_step_times({name: (list(lengths), times_s) for name, times_s in times.items()})

# %% [markdown]
# **Read the result.** The cache pays, but compare the printed factors with the number of rows: 34 rows take nowhere
# near 34 times as long as one. Most of the time of a *one-row* step does not depend on how many rows it computes.
#
# **Takeaway.** A decode step of SmolLM2 computes 1 row in each of 30 layers, and computing 34 rows instead costs far
# less than 34 times as much: most of a step's time does not depend on the number of rows.

# %% [markdown]
# ## 2. What a step reads
# <!-- minutes: 11 + 6 -->
#
# To multiply by a weight, the processor must have it, and 135 million weights of four bytes do not fit into any cache
# close to it. So every step fetches every weight from memory, once. With one row, each weight fetched is used for two
# operations; the machine could do many more in the time that it takes to arrive. That explains the surprise: decoding
# is **memory-bound**, and its speed limit is the bandwidth.

# %% [markdown]
# ```mermaid
# flowchart LR
#     subgraph memory["memory: DRAM, or HBM on a GPU"]
#         W["all weights"]
#         K["K and V of every sequence"]
#     end
#     W -->|"read once per step,<br/>whatever the batch"| X["processor:<br/>one row per sequence"]
#     K -->|"each sequence's own,<br/>in every step"| X
#     X -->|"K and V of one token<br/>per sequence: little"| K
# ```
#
# So the bytes of a step can be counted before it is run: all W weights once, and c bytes of K and V for each token of
# every sequence's context $S_i$. Divided by the bandwidth they give the least time of a step, and a **ceiling** on
# tokens per second for all B sequences together:
#
# $$\text{bytes} = W b + c \sum_i S_i, \qquad \text{ceiling} = B \cdot \frac{\text{bandwidth}}{\text{bytes}}$$


# %%
# NBVAL_CHECK_OUTPUT
def bytes_of_step(num_weights, bytes_per_weight, kv_bytes_per_token, contexts):
    return num_weights * bytes_per_weight, kv_bytes_per_token * sum(contexts)


examples = {
    "7B, fp16, MHA: 1 x 1,000 tokens": bytes_of_step(7 * 10**9, 2, 524_288, [1000]),
    "8B, bf16, GQA: 1 x 4,096": bytes_of_step(8 * 10**9, 2, 131_072, [4096]),
    "8B, bf16, GQA: 32 x 4,096": bytes_of_step(8 * 10**9, 2, 131_072, 32 * [4096]),
    "SmolLM2, float32: 1 x 44": bytes_of_step(step_time.NUM_WEIGHTS, 4, 46_080, [44]),
}
for name, (weights, kv) in examples.items():
    print(f"{name:33} weights {weights / 1e9:6.3f} GB, K and V {kv / 1e9:6.3f} GB")
print(f"70B in bf16 at 3.35 TB/s: at most {3.35e12 / (2 * 70e9):.0f} tokens per second for one sequence")

# %% [markdown]
# **Read the result.** For one sequence the weights are nearly everything: 14 GB beside 0.524 GB. In a batch the weights
# are read once for all sequences, while each sequence brings its own K and V: 32 long contexts outweigh the model. The
# first half is why batching pays, the second is why it stops paying (section 8).
#
# The last line is the limit for one sequence on an H100, and no kernel changes it. Four things do: fewer bytes per
# weight (lab 6), fewer weights per token (a mixture of experts reads a few of its experts, lab 7), more cards that read
# at once, and more tokens per forward pass (speculation, lab 5). More sequences per read (this lab) raise what all of
# them get together, and nothing for the one.

# %% [markdown]
# **How many operations per byte?** Attention multiplies and adds H · D elements for every key, once for the scores and
# once for the values: 4 · H · D operations, on 2 · H_kv · D elements read. The head size cancels. The fourth line is
# an attention of another kind, in which all heads read one latent of 576 elements (*Going further*, below).

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.decode.decode_work import A100, H100

for name, heads, kv_heads, width in (
    ("MHA, fp16", 32, 32, 2),
    ("Llama-3-8B, bf16", 32, 8, 2),
    ("SmolLM2, fp32", 9, 3, 4),
):
    print(f"attention of {name:21}: {4 * heads / (2 * kv_heads * width):5.1f} FLOP per byte of the cache")
print(
    f"attention of {'DeepSeek-V3, MLA, bf16':21}: {2 * 128 * (576 + 512) / (576 * 2):5.0f} FLOP per byte of the cache"
)
for name, gpu in {"A100, 40 GB": A100, "H100 SXM": H100}.items():
    print(f"ridge of {name:11} in 16 bits: {gpu.flop_rate / gpu.bandwidth:.0f} FLOP per byte")

# %% [markdown]
# **Read the result.** With keys and values per head, attention does one or a few operations on each byte it reads, and
# the ridge of either card is 50 to 300 times higher: in a decode step it is memory-bound, too.

# %% [markdown]
# **This machine.** The engine reads SmolLM2 in float32. If a step did nothing but read, at the rate at which one
# thread copies a quarter of a gigabyte (bytes read and bytes written both count, as in lab 2), it would reach its
# ceiling.

# %%
num_bytes = sum(bytes_of_step(step_time.NUM_WEIGHTS, 4, 46_080, [44]))
bandwidth = step_time.bandwidth()
print(f"{num_bytes / 1e9:.3f} GB a step at {bandwidth / 1e9:.1f} GB/s")
print(f"the ceiling: {bandwidth / num_bytes:.0f} tokens per second; the engine: {1 / step_s:.0f}", end=", ")
print(f"{num_bytes / bandwidth / step_s:.0%} of it")

# %% [markdown]
# One part of what is missing can be measured by itself: the Python code and the small operations between the products.
# Take a model with the same 30 layers but hardly any weights in them. The engine runs the same code on it, and reads
# next to nothing.

# %%
thin = step_time.thin_engine()
times_s = {
    "from its arithmetic": arithmetic_s,
    "from its bytes": num_bytes / bandwidth,
    "30 layers without weights": step_time.decode_step_s(thin),
    "by the clock": step_s,
}
print(f"{step_time.num_operations(thin):,} calls of torch in a step, of either model")

# %%
step_time.draw_times(times_s, "What explains the time of a decode step? (SmolLM2, one sequence)")

# %% [markdown]
# **Read the result.** Compare the bars. The bytes were counted before anything ran. The third bar is the fixed price of
# a step: about 1,700 calls, each with almost nothing to do. It does not overlap with the reading, so it comes on top of
# the second bar. What is left over after both: a product of a matrix with one row reads more slowly than a copy does.
#
# A client sees the time per output token, **TPOT**, which has two more terms: a token is chosen from the logits, and
# its text is sent (flushed).

# %%
import json

token = logits.argmax()
parts_s = {
    "step": step_s,
    "sample": seconds(lambda: torch.multinomial((logits / 0.8).softmax(-1), 1), repeats=20),
    "flush": seconds(lambda: json.dumps({"text": tokenizer.decode(token)}).encode(), repeats=20),
}
for name, part_s in parts_s.items():
    print(f"{name:6} {1e3 * part_s:7.3f} ms, {part_s / sum(parts_s.values()):6.1%} of TPOT")

# %% [markdown]
# **Takeaway.** One step of SmolLM2 reads 0.540 GB and does 269 million operations on it, half an operation per byte;
# bytes divided by bandwidth bound its time from below, before any measurement of the model.

# %% [markdown]
# > **In production, 2026.** The same bound is used as *memory bandwidth utilisation*: bytes of a step over its time and
# > over the card's bandwidth. Nsight Compute reports the DRAM throughput of each kernel, and SGLang marks every layer
# > for Nsight Systems with
# > [`--enable-layerwise-nvtx-marker`](https://docs.sglang.io/advanced_features/server_arguments.html). By roofline,
# > this step on an H100 in bf16: 0.269 GB of weights at 3.35 TB/s take 80 µs, so the fixed price dominates.

# %% [markdown]
# ### Going further: multi-head latent attention
#
# **Multi-head latent attention** (MLA, arXiv:2405.04434) stores one latent vector $c$ of R elements for a token, from
# which each head makes its key and value by matrices of its own: $k = c\,W_{UK}$, $v = c\,W_{UV}$. Decompressed, that
# is attention with H heads. But $q \cdot (c\,W_{UK}) = (q\,W_{UK}^T) \cdot c$: the matrices can be *absorbed* into the
# query and the result, and then all heads read the latents themselves, as if there were one KV head.

# %%
# NBVAL_CHECK_OUTPUT
draw = torch.Generator().manual_seed(0)
H, D, R, S = 16, 32, 64, 100  # heads, elements of a head and of a latent, tokens in the cache
latents, q = torch.randn(S, R, generator=draw), torch.randn(H, 1, D, generator=draw)
w_uk, w_uv = torch.randn(2, H, R, D, generator=draw) / R**0.5

decompressed = (q @ (latents @ w_uk).mT).softmax(-1) @ (latents @ w_uv)  # keys and values [H, S, D]
absorbed = ((q @ w_uk.mT) @ latents.mT).softmax(-1) @ latents @ w_uv  # nothing of S tokens but the latents

print("the same to 1e-4:", torch.allclose(decompressed, absorbed, atol=1e-4))
print(f"elements of a token in the cache: K and V of {H} heads {2 * H * D:,}, the latent {R}")
print(f"DeepSeek-V3: {61 * (512 + 64) * 2:,} bytes of a token; with K and V of 128 heads {61 * 2 * 128 * 128 * 2:,}")

# %% [markdown]
# (DeepSeek-V3's latent has 512 elements for keys and values and 64 that carry the rotary position, which cannot be
# absorbed.) So its cache is small, and its 128 heads do 242 operations on each byte of it: above the A100's ridge, near
# the H100's, and above that with a single draft token to verify (lab 5). For a prompt, decompressing is cheaper;
# engines do both.

# %% [markdown]
# ## 3. The memory of decoding
# <!-- minutes: 36 + 12 -->
#
# An engine holds the K and V of dozens of sequences that grow by one token per step, end at any time, and often begin
# with the same text. Lab 1 showed what becomes of memory that is reserved for the longest answer. So memory is cut into
# **blocks** of a few **slots**, each the place of one token. A **pool** knows which blocks are free, and a **block
# table** per sequence says which blocks hold its tokens, as an operating system's page tables do: hence the names
# *paged cache* and *PagedAttention* (arXiv:2309.06180). Inside Triton kernels, where `BLOCK_*` is the size of a tile, a
# block is called `PAGE`.

# %% [markdown]
# **Think first.** Blocks of 4 slots, a sequence of 7 tokens. When does it need its next block: with its 8th token, with
# its 9th, or has it been there from the start?

# %%
from twophase_labs.decode import block_pictures

block_pictures.draw_growth([7, 8, 9], block_size=4)

# %% [markdown]
# The 8th token fills the last slot of block 1, and the 9th needs a block. A sequence takes blocks *on demand*, and
# never holds more than three slots that it does not use.

# %% [markdown]
# ### The pool
#
# Blocks may be shared: two sequences with the same beginning need its K and V once. So each block has a **reference
# count**, the number of its owners, and it is free at zero. The pool can run out at any moment, in the middle of a
# step. Then nothing may have changed, so that the engine can *preempt* a sequence (take its blocks away and compute it
# again later) and carry on with the others.

# %% tags=["setup"]
import numpy as np

from twophase.core.errors import CacheStateError, OutOfBlocksError

# %% [markdown]
# <!-- card 3.2 -->
# Write the pool: the constructor, the property and three methods. How you keep track is up to you.


# %% tags=["exercise:3.2"]
class BlockPool:
    """`BlockPool(num_blocks)`: blocks with the ids 0 to num_blocks - 1, all free at first.

    ref_counts: for each block id the number of its owners; 0 is free.
    num_free: how many blocks are free (a property).
    allocate(n): n free blocks, a new list of their ids, each with one owner. OutOfBlocksError if fewer are free.
    acquire(block_id): one owner more. CacheStateError if the block is free.
    release(block_id): one owner less; with the last one the block becomes free. CacheStateError if it is free already.

    A call that raises has changed nothing.

    >>> pool = BlockPool(3)
    >>> first, second = pool.allocate(2)
    >>> pool.acquire(first); pool.release(first); pool.num_free     # still owned once
    1
    >>> pool.release(first); pool.num_free, pool.ref_counts[second]
    (2, 1)
    >>> try: pool.allocate(3)
    ... except OutOfBlocksError: print("refused;", pool.num_free, "free as before")
    refused; 2 free as before
    """

    # BEGIN SOLUTION: __init__, num_free, allocate(n), acquire(block_id), release(block_id)
    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self.free_ids = list(range(num_blocks - 1, -1, -1))  # a stack: block 0 is on top

    @property
    def num_free(self):
        return len(self.free_ids)

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(f"{n} blocks wanted, {self.num_free} of {self.num_blocks} free.")
        block_ids = [self.free_ids.pop() for _ in range(n)]
        for block_id in block_ids:
            self.ref_counts[block_id] = 1
        return block_ids

    def acquire(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError(f"Block {block_id} is free: allocate it instead.")
        self.ref_counts[block_id] += 1

    def release(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError(f"Block {block_id} is free already.")
        self.ref_counts[block_id] -= 1
        if self.ref_counts[block_id] == 0:
            self.free_ids.append(block_id)

    # END SOLUTION


# %%
check("3.2")

# %% [markdown]
# ### The table
#
# The token at position p is in the table's block number p // block_size, at offset p % block_size. The block's *id*
# says where in the pool that is, and so
#
# $$\text{slot}(p) \;=\; \text{block\_ids}[\lfloor p / \text{block\_size} \rfloor] \cdot \text{block\_size}
# \;+\; p \bmod \text{block\_size}$$

# %% [markdown]
# <!-- card 3.3 -->
# Write the table of one sequence.


# %% tags=["exercise:3.3"]
class BlockTable:
    """`BlockTable(pool, block_size)`: the blocks of one sequence, taken from the pool on demand; empty at first.

    pool, block_size: as given.
    block_ids: a list, in the order of the tokens, of as many blocks as num_tokens need.
    num_tokens: tokens that have a slot.
    grow(num_tokens): room for num_tokens tokens in all; the blocks it has stay where they are. CacheStateError if it
        already holds more tokens, and the pool's OutOfBlocksError goes through.
    slot(position): the slot of the token there. IndexError if no token is.
    free(): gives every block back; the table is empty again and can be used again.

    A call that raises has changed nothing.

    >>> pool = BlockPool(8)
    >>> _, _ = pool.allocate(2), pool.allocate(1)                   # taken by other sequences
    >>> table = BlockTable(pool, block_size=4)
    >>> table.grow(7); len(table.block_ids), table.num_tokens
    (2, 7)
    >>> table.grow(8); table.grow(9); len(table.block_ids)
    3
    >>> table.slot(5) == table.block_ids[1] * 4 + 1
    True
    """

    # BEGIN SOLUTION: __init__(pool, block_size), grow(num_tokens), slot(position), free()
    def __init__(self, pool, block_size):
        self.pool, self.block_size = pool, block_size
        self.block_ids, self.num_tokens = [], 0

    def grow(self, num_tokens):
        if num_tokens < self.num_tokens:
            raise CacheStateError(f"A table of {self.num_tokens} tokens cannot grow to {num_tokens}.")
        num_blocks = -(-num_tokens // self.block_size)
        self.block_ids = self.block_ids + self.pool.allocate(num_blocks - len(self.block_ids))
        self.num_tokens = num_tokens  # after the pool has agreed

    def slot(self, position):
        if not 0 <= position < self.num_tokens:
            raise IndexError(f"position {position} has no slot: this table has {self.num_tokens} tokens")
        block_id = self.block_ids[position // self.block_size]
        return block_id * self.block_size + position % self.block_size

    def free(self):
        for block_id in self.block_ids:
            self.pool.release(block_id)
        self.block_ids, self.num_tokens = [], 0

    # END SOLUTION


# %%
check("3.3")

# %%
# NBVAL_CHECK_OUTPUT
BlockPool = use("3.2")
BlockTable = use("3.3")
pool = BlockPool(6)
table, neighbour = BlockTable(pool, 4), BlockTable(pool, 4)
for num_tokens in (7, 8, 9):
    table.grow(num_tokens)
    print(
        f"{num_tokens} tokens: blocks {table.block_ids}; the neighbour has {neighbour.block_ids}; {pool.num_free} free"
    )
    neighbour.grow(neighbour.num_tokens + 1)

# %% [markdown]
# **How large is a block?** A large one leaves more slots unused; small ones make more entries for a kernel to look up.
# For contexts of 1 to 4,096 tokens:

# %%
# NBVAL_CHECK_OUTPUT
contexts = range(1, 4097)
for block_size in (1, 16, 128):
    blocks = [-(-n // block_size) for n in contexts]
    unused = sum(n * block_size for n in blocks) - sum(contexts)
    share = unused / (sum(blocks) * block_size)
    print(f"block size {block_size:3}: {share:5.1%} of the slots held are unused, up to {max(blocks):5,} entries")

# %% [markdown]
# A rule of thumb makes a block as large as the kernel's tile. The kernel of section 5 does not need that: each position
# of a tile asks the table for its own block.

# %% [markdown]
# ### Sharing: fork, and copy on write
#
# "Give me four answers to choose from": up to one point the text is the same, and so are K and V. A **fork** is a
# second table of the same blocks, each with one owner more. Then both sequences write their next token.
#
# **Think first.** Ten tokens in blocks of 4: two full blocks, and one with two tokens. B is forked from A. Both write
# their token 10, and these tokens differ. Which of the three blocks can stay shared? What has to happen to the others,
# and when?

# %%
block_pictures.draw_copy_on_write()

# %% [markdown]
# Full blocks are never written again and stay shared. The partial one is shared until a sequence is about to write into
# it: the first to do so takes a block of its own, copies the contents, and gives up its share. The other is then the
# only owner of the old block and writes in place. This is **copy-on-write**.

# %% [markdown]
# <!-- card 3.4 -->
# `fork(table)` returns a second table of the same tokens and takes no block. `prepare_write(table)` makes sure that the
# next token, at position `table.num_tokens`, can be written without changing what others read. It returns the block
# copies to do first, as pairs (source, target): none, or one. (A new block is `grow`'s to take.) If there is no block
# for the copy, `OutOfBlocksError` goes through and nothing has changed.
#
# ```python
# >>> table.block_ids, table.num_tokens                   # blocks of 4, in a pool whose next block is 3
# ([0, 1, 2], 10)
# >>> twin = fork(table)
# >>> prepare_write(twin), twin.block_ids
# ([(2, 3)], [0, 1, 3])
# >>> prepare_write(table)                                # alone in block 2 now
# []
# ```


# %% tags=["exercise:3.4"]
def fork(table):
    twin = type(table)(table.pool, table.block_size)  # an empty table of the same kind
    for block_id in table.block_ids:  # SOLUTION: the blocks that get one owner more
        table.pool.acquire(block_id)
    twin.block_ids = list(table.block_ids)  # SOLUTION: the twin's blocks
    twin.num_tokens = table.num_tokens
    return twin


def prepare_write(table):
    is_new = table.num_tokens % table.block_size == 0  # SOLUTION: will the next token begin a new block?
    if is_new or table.pool.ref_counts[table.block_ids[-1]] == 1:  # SOLUTION: is there nothing to copy?
        return []
    shared = table.block_ids[-1]
    (own,) = table.pool.allocate(1)  # raises before anything has changed
    # BEGIN SOLUTION: one owner less for the shared block, and the own one in its place (two lines)
    table.pool.release(shared)
    table.block_ids[-1] = own
    # END SOLUTION
    return [(shared, own)]


# %%
check("3.4")

# %% [markdown]
# ### How to know that it is right
#
# A bug in an allocator does not show in any shape and raises no error: one request's answer is computed from another
# request's text. To find it, compare *contents*. Tensors of K and V are poor contents for that, but what belongs in a
# slot follows from the tokens up to it, so one number can stand for all of it: slot(p) stores **hash(tokens[: p +
# 1])**. A write stores the hash, a block copy moves it, and every *read* compares what it finds with what the
# sequence's own tokens demand. This is a **shadow** of the cache.
#
# The rest is chance: sequences start, grow, fork, share a beginning, end, in a pool that is too small for them, and
# after each event every living sequence reads all that it has. Two hundred such histories, with your parts:

# %%
# NBVAL_CHECK_OUTPUT
from collections import Counter

from twophase_labs.decode.histories import History

fork, prepare_write = use("3.4")
forks = {"fork": fork, "prepare_write": prepare_write}
histories = [History(BlockPool(8), BlockTable, num_blocks=8, block_size=4, seed=n, **forks) for n in range(200)]
for history in histories:
    history.run(40)
counts = sum((history.counts for history in histories), Counter())
num_reads = sum(history.shadow.num_reads for history in histories)
print(f"{num_reads:,} reads, all of the right tokens; {dict(sorted(counts.items()))}")

# %%
block_pictures.draw_history(histories[126].frames[:22], 8, "One history: which sequences hold which block")

# %% [markdown]
# **Read the result.** Blocks change hands, and a sequence's blocks are wherever there was room. Every read found the
# right tokens all the same, and in the 200 histories the pool ran out more than a thousand times without damage.

# %% [markdown]
# ### Open the engine
#
# The engine's pool has two parts, as yours may have, a list of free blocks and counts of owners, and a third:

# %%
from twophase.cache.block_pool import BlockPool as EnginePool
from twophase_labs.kit.open_engine import show_source

show_source(EnginePool.allocate, first="if num_blocks > self.num_free")

# %% [markdown]
# **Question.** A block that comes from `_cached` is free, and yet it is used only when no blank one is left. What could
# a free block be good for?
#
# <details><summary>Answer</summary>
#
# Its contents. The K and V of a finished sequence stay valid until the block is written again; a request that begins
# with the same tokens can find them and skip that part of its prefill (prefix caching, lab 5). So blank blocks go
# first, and of the others the one that was freed longest ago.
# </details>

# %% [markdown]
# > **In production, 2026.** The block size is a flag: `--block-size`, by default [16 in
# > vLLM](https://github.com/vllm-project/vllm/blob/002f10e0cfa1373a19a0d2756598a34b700d20e5/vllm/config/cache.py);
# > `--page-size` [in SGLang](https://docs.sglang.io/advanced_features/server_arguments.html), 1 unless the attention
# > backend asks for more (64 on Blackwell); and
# > `tokens_per_block`, by default [32 in
# > TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html), whose
# > `copy_on_partial_reuse` is your copy-on-write and is on by default. By roofline none of these choices changes the
# > bytes that a step reads on an H100: an entry of 4 bytes stands beside 64 KiB of K and V per layer for 16 tokens of
# > an 8B model in bf16.
#
# **Takeaway.** With blocks of 16, 0.4 % of the slots held by contexts of up to 4,096 tokens are unused; an oracle that
# stores one number per slot tells when one is read for another.

# %% [markdown]
# ### Going further: find the bug
#
# Six pieces of code, each with a bug of a kind found in published code. Whatever is not shown is correct. In a pool,
# a block is free when its count is zero, and which free block comes next is left to chance. All go through the same
# story, with 8 blocks of 4 slots. After each event every living sequence reads all its tokens. With right parts every
# read is right, and only event 9 is refused.

# %%
from twophase_labs.decode import suspects

print(suspects.tell_story())
suspects.show_code("table 1", "table 2", "table 3", "pool 1", "pool 2", "layer")

# %% [markdown]
# <!-- card 3.5 -->
# What is the *first* thing that goes wrong? Each letter once.
#
# - **a** event 2: where A looks for its position 0, it finds its own position 8
# - **b** all nine events are in order; only the model's logits are wrong
# - **c** event 5: B reads a token that C has just written
# - **d** event 2: A's old tokens are gone; where it looks for position 0 nothing was ever written
# - **e** event 5: the pool refuses C, although the living sequences hold two blocks of eight
# - **f** event 9: a slot is outside the memory

# %% tags=["exercise:3.5"]
answer_3_5 = {
    "table 1": "d",  # SOLUTION: a letter
    "table 2": "a",  # SOLUTION: a letter
    "table 3": "e",  # SOLUTION: a letter
    "pool 1": "f",  # SOLUTION: a letter
    "pool 2": "c",  # SOLUTION: a letter
    "layer": "b",  # SOLUTION: a letter
}

# %%
check("3.5")

# %% [markdown]
# Now the oracle, on the same six. For the layer, whose cache is in order, a second oracle: the next token of the real
# model.

# %%
# NBVAL_CHECK_OUTPUT
for name in ("table 1", "table 2", "table 3", "pool 1", "pool 2"):
    print(f"{name}: {suspects.examine(name)}")
for layers in (suspects.DropsAResidual(model), parts):
    logits, _ = decode_step(layers, prompt_ids, layers.empty_cache())
    print(f"{type(layers).__name__}: {tokenizer.decode(prompt_ids)}{tokenizer.decode(logits.argmax())!r}")

# %% [markdown]
# **Read the result.** Two tables lose tokens at once. With the third every sequence that ends takes a block with it,
# which a test with one request never sees. A pool that never runs out points past the tensors: an error on a CPU,
# another request's memory on a GPU. The shadow watches the cache, the comparison with transformers watches the rest; an
# engine needs both.

# %% [markdown]
# ## 4. Attention over gathered blocks
# <!-- minutes: 8 -->
#
# Writing into blocks is easy: one slot per token. Reading is harder, since attention wants all keys of a sequence, in
# order. The pool is one tensor `[N, H_kv, PAGE, D]` for K and one for V in each layer, and each sequence of the batch
# has its own length: the batch is **ragged**. A row of the block tables is padded with 0 to the longest, and block 0
# belongs to some other sequence. Reading it raises no error, so a missing mask gives wrong results silently.

# %%
import matplotlib.pyplot as plt

from twophase_labs.machine.pictures import draw_block_tables

tables = {"A": ([6, 1, 3], 9), "B": ([4], 4), "C": ([0, 5], 6)}
draw_block_tables(tables, num_blocks=8, block_size=4)
plt.show()

# %% [markdown]
# Three sequences of 9, 4 and 6 tokens. To read A: take blocks 6, 1, 3 *in this order*, put their slots in a row, and
# cut at 9, because the last three slots hold what an earlier sequence left there. In PyTorch, with an axis for the
# group of query heads that share a KV head:


# %% tags=["setup"]
def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    """One query per sequence, q [B, H, D], over the blocks of k_cache and v_cache [N, H_kv, PAGE, D]: [B, H, D]."""
    page, group = k_cache.shape[2], q.shape[1] // k_cache.shape[1]
    out = torch.empty_like(q)
    for b, length in enumerate(seq_lens.tolist()):
        block_ids = block_tables[b, : -(-length // page)]
        k, v = (cache[block_ids].transpose(0, 1).flatten(1, 2)[:, :length] for cache in (k_cache, v_cache))
        weights = (q[b].unflatten(0, (-1, group)) @ k.mT * scale).softmax(-1)  # [H_kv, G, length]
        out[b] = (weights @ v).flatten(0, 1)
    return out


# %% [markdown]
# **Think first.** It is right. Is it good? Indexing with block ids copies the K and V of every sequence before
# attention reads them: from memory, back into memory, and from there again. How much longer does that take than
# attention over K and V that are in order already?

# %%
from twophase_labs.decode.paged_inputs import in_a_row, random_pages

wide = random_pages([512] * 8, page=16, num_kv_heads=3, head_dim=64, seed=1)
contiguous = in_a_row(wide)  # K and V of each sequence copied into a row once, before the clock starts
row_s = seconds(contiguous.attend, repeats=9)
paged_s = seconds(lambda: paged_attention(*wide.arguments), repeats=9)
moved = contiguous.num_bytes
print(f"8 sequences of 512 tokens, one layer: {moved / 1e6:.1f} MB of K and V")
print(f"in order already: {1e6 * row_s:.0f} us; gathered first: {1e6 * paged_s:.0f} us, {paged_s / row_s:.1f} times")
print(
    f"bytes moved: {moved / 1e6:.1f} MB; gathered {5 * moved / 1e6:.1f} MB (copied, heads put first, read: 2 + 2 + 1)"
)

# %% [markdown]
# **Read the result.** Compare the two factors, of the times and of the bytes. A gather is three passes over the bytes:
# blocks read, a copy written, and read. This one makes a second copy, in which a head's slots are one axis (`transpose`
# and `flatten`), and that makes five. The rest is mostly the indexing itself, which copies many small rows more slowly
# than one long one.
#
# **Takeaway.** Gathering moves every byte of K and V at least three times, here five: 31.5 MB for 6.3 MB, in a phase
# whose time is the bytes it moves. Attention has to follow the block table *while* it reads: that takes a kernel.

# %% [markdown]
# ## 5. The decode kernel
# <!-- minutes: 30 + 21 -->
#
# Lab 2 has a kernel that reads blocks where they are: the prefill kernel. A decode step is a prefill with a chunk of
# one token, so why write another? Run the engine's prefill kernel on three sequences with one query each:

# %%
# needs: triton
from twophase_kernels.paged_prefill import paged_prefill, prefill_tiles
from twophase_labs.decode.decode_cases import naive_decode, on_device, random_case
from twophase_labs.machine.checks import Draw

case = random_case(Draw(4), [150, 64, 9], heads=9, kv_heads=3, dim=64, page=16, columns=16)
one_each = torch.arange(4, dtype=torch.int32, device=device)
out = paged_prefill(**on_device(case), cu_query_lens=one_each, max_query_len=1)
print(f"largest difference from a loop over positions: {(out.cpu() - naive_decode(case)[0]).abs().max():.0e}")

# %% [markdown]
# It is right. **Think first.** In a step whose longest chunk has 512 tokens, a tile of the prefill kernel has 128 rows
# on an H100. The three query heads that share a KV head of SmolLM2 are neighbouring rows, three for each token: 42
# tokens, 126 rows. How many rows work for a chunk of one token in that step?

# %%
# NBVAL_CHECK_OUTPUT
# needs: triton
for chunk in (512, 42, 8, 1):
    tile = prefill_tiles(3, 64, torch.bfloat16, "none", False, max_query_len=512, generation="hopper")
    tokens = min(chunk, tile.block_m // 3)
    print(f"chunk of {chunk:3}: {3 * tokens:3} of {tile.block_m} rows hold a query, {3 * tokens / tile.block_m:4.0%}")

# %% [markdown]
# 3 rows of 128. The others are multiplied, masked and rescaled all the same, and hold registers that more programs
# could use. (In a step of short chunks alone, the engine's `prefill_tiles` takes 16 rows, the least that `tl.dot`
# takes.)
#
# Two more things are superfluous for a single token. The engine's prefill kernel searches for the sequence that its
# rows belong to; here the grid has a program per (sequence, KV head). And it has a position per row for the causal
# mask; here every row is the last token, and sees every key that exists. What remains is short:

# %% [markdown]
# ```mermaid
# flowchart LR
#     P["program<br/>(sequence, KV head)"] --> Q["its G queries<br/>tile of 16 rows"]
#     P --> L["seq_len<br/>how many keys"]
#     L --> T["tile of BLOCK_N positions"]
#     T --> B["block table:<br/>block of each position"]
#     B --> K["K and V of these slots"]
#     Q --> S["online softmax:<br/>fold the tile in"]
#     K --> S
#     S -->|"next tile"| T
#     S --> O["G rows of the output"]
# ```

# %% [markdown]
# **One tile on its way.** A sequence of 10 tokens in blocks of 4, seen by a tile of 16 positions. Each position asks
# the table for the id of *its* block, so one tile may read from anywhere in the pool. Six positions are past the end.
# They have no key, but they are in the tile all the same, and the kernel has to see to it that they do nothing.

# %%
from twophase_labs.decode import decode_pictures

decode_pictures.draw_tile(pages=[5, 2, 7], seq_len=10, start=0, block_n=16, page=4, num_pages=8)

# %% [markdown]
# **Think first.** Slots 2 and 3 of block 7 are not written yet, or still hold what an earlier sequence left there.
# Suppose they are loaded and get weight 0. What is 0 times their content, if that happens to be NaN? And if the *score*
# of a masked position is set to 0, which weight does it get?

# %% [markdown]
# **In view: the prefill kernel of lab 2**, as it stands in your notebook of that lab, with its blanks where you
# left them. Which of its lines does a single token need, and which become simpler?
#
# <details><summary>Answer</summary>
#
# It needs the loop as it is: block ids, K and V, scores, the online softmax. The rows become simpler (the group's
# heads, all of one token), and with them the mask: a key is seen if its position is below the length.
# </details>

# %%
from twophase_labs.decode.earlier_kernel import prefill_kernel

prefill_kernel()

# %% tags=["setup"]
from twophase_labs.decode.attend_tiles import attend_tiles, fold_tile
from twophase_labs.decode.launch import launch_paged_decode, launch_paged_decode_split

# %% [markdown]
# Folding a tile of keys into the state of the softmax is the same few lines once more, and given as a function:

# %%
# needs: triton
show_source(fold_tile, first="def fold_tile")

# %% [markdown]
# <!-- card 3.6 -->
# Write the kernel: attention of each sequence's one query over all its keys, read where they lie. `launch_paged_decode`
# starts a program for each sequence and KV head. Where K of a position is follows from its block and the layout of
# `k_ptr`, as in lab 2's 2.8 (in int64: a pool may have more than 2^31 elements). For the sequence in the picture, 10
# tokens in blocks 5, 2 and 7, one tile is enough: positions 0 to 15, of which 10 to 15 do nothing. Fold a tile in by
# `fold_tile` or write it out; in which order you go through the keys is your choice.


# %% tags=["exercise:3.6"]
@triton.jit
def paged_decode_kernel(
    q_ptr,  # [B, H, D]
    k_ptr,  # [N, H_KV, PAGE, D]
    v_ptr,  # like k_ptr
    block_tables_ptr,  # int32 [B, W]
    seq_lens_ptr,  # int32 [B], at least 1
    out_ptr,  # [B, H, D]
    qk_scale,  # score scale * log2(e)
    table_row_stride,  # elements from one row of the block tables to the next
    H: tl.constexpr,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,  # rows of the query tile, at least G and 16
    BLOCK_D: tl.constexpr,  # columns of a tile, at least D and 16
    BLOCK_N: tl.constexpr,  # keys per tile, at least 16
):
    """One program: the G = H // H_KV query heads of one KV head, of one sequence, over all its keys.

    The grid is (B, H_KV); program (b, h) stores the rows out[b, h * G : (h + 1) * G], each [D]. Blocks may lie in any
    order, and slots past a sequence's end may hold anything, NaN too.

    >>> values = torch.arange(8.0, device=device).view(4, 1, 2, 1)  # 4 blocks of 2 slots; slot s holds s
    >>> zero, table = torch.zeros(1, 1, 1, device=device), torch.tensor([[3, 0]], dtype=torch.int32, device=device)
    >>> one, three = torch.tensor([[1], [3]], dtype=torch.int32, device=device)
    >>> launch_paged_decode(paged_decode_kernel, zero, values, values, table, one, 1.0).item()
    6.0
    >>> round(launch_paged_decode(paged_decode_kernel, zero, values, values, table, three, 1.0).item(), 4)  # 6, 7, 0
    4.3333
    """
    # BEGIN SOLUTION: the tile of queries; a loop over tiles of keys; the rows of the result
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    group: tl.constexpr = H // H_KV
    length = tl.load(seq_lens_ptr + sequence)
    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_q = (offs_m < group)[:, None] & (offs_d < D)[None, :]
    offs_q = (sequence * H + kv_head * group + offs_m)[:, None] * D + offs_d[None, :]
    q = tl.load(q_ptr + offs_q, mask=mask_q, other=0.0)

    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, length, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        in_range = positions < length
        entries = block_tables_ptr + sequence * table_row_stride + positions // PAGE
        page_ids = tl.load(entries, mask=in_range, other=0)
        rows = (page_ids.to(tl.int64) * H_KV + kv_head) * PAGE + positions % PAGE
        offs_kv = rows[:, None] * D + offs_d[None, :]
        mask_kv = in_range[:, None] & (offs_d < D)[None, :]
        k = tl.load(k_ptr + offs_kv, mask=mask_kv, other=0.0)
        v = tl.load(v_ptr + offs_kv, mask=mask_kv, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale
        scores = tl.where(in_range[None, :], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        p = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(p, axis=1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        row_max = new_max
    out = acc / row_sum[:, None]
    tl.store(out_ptr + offs_q, out.to(out_ptr.dtype.element_ty), mask=mask_q)
    # END SOLUTION


# %%
check("3.6")

# %% [markdown]
# **What did it read?** The one-hot trick again, now on a kernel: two sequences, one row per query head.

# %%
# needs: triton
from twophase_labs.decode.decode_cases import map_case, slot_order

paged_decode_kernel = use("3.6")
case = map_case(Draw(3), [10, 5], heads=4, kv_heads=1, page=4, num_pages=8, peak=2)
out = launch_paged_decode(paged_decode_kernel, **on_device(case)).cpu()
order, _ = slot_order(case, 0)
pages = case.pages[0] + [n for n in range(8) if n not in case.pages[0]]
decode_pictures.draw_weights(
    out[:, :, order].flatten(0, 1),
    rows=[f"sequence {s}, head {h}" for s in range(2) for h in range(4)],
    bounds=range(4, 32, 4),
    bound_names=[f"block {n}" for n in pages],
    xlabel="slots of the pool, blocks of sequence 0 first",
    ylabel="query",
    title="Which slots were read, and how much they weigh",
)

# %% [markdown]
# **Read the result.** Sequence 0 sees its three blocks, the last one half; sequence 1 sees its own two, elsewhere in
# the pool: all of block 3 and one slot of block 1. All else is white, though every slot holds something. A wrong
# kernel is shown to you like this, with the wrong cells outlined.
#
# And the questions from above: 0 times NaN is NaN, so what is past the end must not even be loaded; and a score of 0
# is a score like any other, and gets a weight. That is why the end is masked three times: for the table, for K and V,
# and for the scores.
#
# **By the clock**, on section 4's eight sequences of 512 tokens. Launches in a notebook are checked, which takes time;
# a kernel that has passed may be `trusted`, and runs as the engine's own do:

# %%
# needs: triton
from twophase_labs.machine.kernels import trusted

inputs = [x.to(device) if isinstance(x, torch.Tensor) else x for x in wide.arguments]
row_s, paged_s = seconds(contiguous.attend, repeats=9), seconds(lambda: paged_attention(*wide.arguments), repeats=9)
with trusted():
    kernel_s = seconds(lambda: launch_paged_decode(paged_decode_kernel, *inputs), repeats=30)
for name, elapsed_s in {"in order already": row_s, "gathered first": paged_s, "your kernel": kernel_s}.items():
    print(f"{name:16} {1e6 * elapsed_s:6.0f} us, {elapsed_s / row_s:4.1f} times the first")

# %% [markdown]
# **Read the result.** Your kernel has no copy to wait for: it follows the table while it reads. What it takes beyond
# the first line is the table, and a tile in which 3 of 16 rows hold a query.

# %% [markdown]
# **Tuning.** The result does not depend on the size of a tile, the time does, and no formula gives the best one: it is
# tried. On a GPU two more numbers are, the **warps** that share a program's tile and the **stages**, tiles in flight
# (lab 2, section 10); on a processor they mean nothing. `@triton.autotune` does the same by itself.

# %%
# needs: triton
from itertools import product

from twophase_labs.kit.ceilings import copy_bandwidth

tried = [{"block_n": n} for n in (16, 32, 64, 128)]
if device.type == "cuda":
    tried = [{"block_n": n, "num_warps": w, "num_stages": s} for n, w, s in product((32, 64, 128), (4, 8), (2, 3))]
    inputs = [x.bfloat16() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]
copied = copy_bandwidth(device)
for options in tried:
    with trusted():
        launch_paged_decode(paged_decode_kernel, *inputs, **options)  # compiled in the first call
        elapsed_s = seconds(lambda options=options: launch_paged_decode(paged_decode_kernel, *inputs, **options), 20)
    kv_bytes = 2 * 8 * 512 * 3 * 64 * inputs[1].element_size()
    print(f"{options}: {1e6 * elapsed_s:6.0f} us, {kv_bytes / elapsed_s / copied:4.0%} of the rate of a large copy")

# %% [markdown]
# (The 6 MB of K and V here may lie in a processor's cache, and then come faster than a large copy from memory.)

# %% [markdown]
# > **In production, 2026.** One kernel for both phases or two is a trade: two can be specialised, one serves batches of
# > prefills and decodes in a single launch and keeps CUDA graphs simple. vLLM's default on NVIDIA's cards,
# > `FLASH_ATTN`, is [one call of variable
# > length](https://docs.vllm.ai/en/v0.30.0/api/vllm/v1/attention/backends/flash_attn/) for all rows of a step. SGLang
# > has a flag for each phase, [`--prefill-attention-backend` and
# > `--decode-attention-backend`](https://docs.sglang.io/advanced_features/server_arguments.html), both unset by
# > default, so that `--attention-backend` decides for both. vLLM's CUDA graph modes distinguish *uniform decode*,
# > equally few queries per sequence, from the rest ([design
# > notes](https://docs.vllm.ai/en/latest/design/cuda_graphs/)). By roofline: one layer of an 8B model with 32,768
# > tokens of context is 134 MB of K and V in bf16, 40 µs at an H100's 3.35 TB/s, if enough of its multiprocessors read;
# > the next section sees to that.
#
# **Takeaway.** Beside a long chunk, one token fills 3 of a prefill tile's 128 rows; the decode kernel is the same loop
# with a tile of 16 rows, and reads each byte of K and V once.

# %% [markdown]
# ### Going further: what the compiler made of it
#
# The check ran your kernel twice: here, and as code for an H100, executed instruction by instruction without
# one. As in lab 2, a request is a load or store of one warp, and moves every *sector* of 32 bytes that any of its
# threads touches, once (no caches); `at least` is the sectors that would hold its bytes if they lay side by side. One
# sequence of 240 tokens, in float16, with 4 query heads to a KV head:

# %%
# needs: triton
from twophase_labs.kit.microscope import show_compiled, tile_loads
from twophase_labs.machine.compiled import Compiled

pool = random_pages([240], page=16, num_kv_heads=1, group=4, head_dim=64)
q, k_cache, v_cache = pool.q.half(), pool.k_cache.half(), pool.v_cache.half()
tables = pool.block_tables, pool.seq_lens, pool.scale
compiled = Compiled(paged_decode_kernel)
out = launch_paged_decode(compiled, q, k_cache, v_cache, *tables, block_n=64)
show_compiled(compiled, keys_per_turn=64)

# %% [markdown]
# **Read the result.** K and V account for most of the requests. Where `sectors each` is what `at least` says, no other
# order of the threads needs fewer. Beside it, the engine's kernel on the same tensors:

# %%
# needs: triton
from twophase_kernels.paged_decode import paged_decode
from twophase_labs.kit.microscope import show_beside
from twophase_labs.machine.compiled import inspect_engine

engines = inspect_engine(paged_decode, q, k_cache, v_cache, *tables[:2], scale=pool.scale, num_splits=1)
show_beside({"yours": compiled.report, "the engine's": engines})

# %% [markdown]
# **Read the result.** Both read each key and value once; the engine's asks for block ids more often. Decode waits for
# memory, so what counts is how many bytes are in flight. The engine's kernel has two tiles of K and V in flight where
# yours has one, and pays for it with shared memory: fewer programs fit on a multiprocessor. With a single program
# there, as in a small batch, that is twice the bytes; on a full one it is still more. How the engine's kernel gets its
# second tile in flight is the next question.

# %% [markdown]
# ### Going further: open the engine
#
# The engine's loop is a function of its own, `attend_range`, because prefill and decode share it. Its beginning:

# %%
# needs: triton
from twophase_kernels.attend_range import attend_range

show_source(attend_range, first="page_ids = load_page_ids(table_ptr, lo", last="scores *= load_scales")

# %% [markdown]
# **Question.** Your loop loads the block ids of a tile and then its K and V. The engine's loads the block ids of the
# *next* tile, and carries them. Nearly the same loads, in another order: what is gained?
#
# <details><summary>Answer</summary>
#
# To load block ids, and then K and V from where these ids say, is a chain: the compiler cannot start the next tile's K
# and V before it knows where they are. With the ids at hand it can keep several tiles on their way while one is
# computed. This project's tests compile both kernels for sm_80 and sm_90, without such a GPU, and count: one tile of K
# and V in flight in yours, at least two in the engine's. What that is worth in time takes a GPU to say.
# </details>

# %% [markdown]
# ### Going further: neighbouring threads, neighbouring addresses
#
# What if K is kept as `[N, H_kv, D, PAGE]`, so that the elements of a token are PAGE apart? A *strided* kernel reads K
# so; all else is as in yours, the result too. A request of yours covers 4 keys, with 8 threads of 16 bytes to each key
# of 128 bytes. In the strided kernel the threads hold the same elements of the same keys.

# %% [markdown]
# <!-- card 3.7 -->
# **Predict.** How many times as many sectors does the strided kernel move for K, with PAGE = 16 and 2 bytes an element?
# (A factor of 1.5 counts as close.)

# %% tags=["exercise:3.7"]
guess_3_7 = 8  # SOLUTION: times

# %%
check("3.7")

# %%
# needs: triton
from twophase_labs.decode.strided import strided_decode_kernel
from twophase_labs.kit.microscope import draw_requests

strided = Compiled(strided_decode_kernel)
as_strided = (q, k_cache.mT.contiguous().view(k_cache.shape), v_cache, *tables)
print("the same result:", torch.allclose(out, launch_paged_decode(strided, *as_strided, block_n=64), atol=1e-3))
k_loads = {name: tile_loads(kernel.report)[0] for name, kernel in (("yours", compiled), ("strided", strided))}
for name, load in k_loads.items():
    print(f"{name:>8}: {load.requests} requests of {load.sectors_per_request:.0f} sectors, {load.sectors:,} in all")
measured("3.7", k_loads["strided"].sectors / k_loads["yours"].sectors)

# %%
# needs: triton
draw_requests({f"K, {name}": load for name, load in k_loads.items()})

# %% [markdown]
# **Read the picture.** The first request of each warp; every box is a sector, drawn side by side wherever they lie,
# white edges separate threads, and the coloured bytes are those asked for. A thread of yours takes 16 bytes that lie
# together. In the other layout it takes one element at a time: 8 requests in place of one. Each of them holds 8
# elements of 4 keys, and each of these elements has a sector of its own, of which the 4 keys take 8 bytes: half the
# sectors, 8 times the requests, 4 times as many in all. Three other warps move the same sectors again. (And single
# elements are too small for the asynchronous copies that had a tile of K in flight.)

# %% [markdown]
# <!-- card 3.8 -->
# A decode step also *writes*: one token's K, a row per head. PAGE is 16, D is 64, an element has 2 bytes. Count each
# sector once, even if it is moved several times. Compared with `[N, H_kv, PAGE, D]`, what becomes more expensive in
# `[N, H_kv, D, PAGE]`?
#
# **a** reading a head's full blocks: it touches 16 times as many sectors<br/>
# **b** writing one token's K: it touches 16 times as many sectors<br/>
# **c** both<br/>
# **d** neither: the same bytes are read and written

# %% tags=["exercise:3.8"]
answer_3_8 = "b"  # SOLUTION: one letter

# %%
check("3.8")

# %% [markdown]
# <details><summary>Why</summary>
#
# One token's K is 128 bytes in one piece, 4 sectors; or 64 elements 32 bytes apart, 64 sectors. A full block is the
# same 2 KB, 64 sectors, in both layouts.
# </details>

# %% [markdown]
# ## 6. Split and merge
# <!-- minutes: 26 + 18 -->
#
# A GPU is not one processor but many. An H100 SXM has 132 *streaming multiprocessors* (SMs). A program runs on one of
# them and never on two, and what an SM can fetch from memory at a time is bounded. To draw the whole bandwidth of the
# memory takes many SMs that fetch at the same time. Your kernel starts a program per (sequence, KV head). With a
# hundred sequences that is plenty. With one?

# %%
decode_pictures.draw_busy({"one sequence": 8, "one sequence, 16 splits": 8 * 16, "32 sequences": 8 * 32}, num_sms=132)

# %% [markdown]
# One question about a long book, on a model with 8 KV heads: 124 of 132 SMs have nothing to do. What is long here is
# the *context*, so that is what has to be divided: **split-KV**, known as FlashDecoding (Dao, Haziza, Massa and Sizov,
# 2023; see also arXiv:2311.01282, section 3). Several programs share the keys of one sequence, each attends to its part
# alone, and a merge makes one output of what they found.

# %%
# NBVAL_CHECK_OUTPUT
print("batch  splits  programs  SMs busy  keys that each reads")
for batch, num_splits in ((1, 1), (1, 4), (1, 16), (8, 1), (8, 2), (32, 1)):
    programs = batch * 8 * num_splits
    print(f"{batch:5}  {num_splits:6}  {programs:8}  {min(programs, 132) / 132:8.0%}  {32768 // num_splits:20,}")

# %% [markdown]
# ```mermaid
# flowchart LR
#     K0["keys 0 to 31"] --> P0["program, split 0"] -->|"out₀, LSE₀"| M["merge"]
#     K1["keys 32 to 63"] --> P1["program, split 1"] -->|"out₁, LSE₁"| M
#     K2["keys 64 to 69"] --> P2["program, split 2"] -->|"out₂, LSE₂"| M
#     K3["no keys left"] --> P3["program, split 3"] -->|"0, -inf"| M
#     M --> O["out, as from one program"]
# ```
#
# Each split hands over its own attention output, and how much all its keys weigh together, as a logarithm: the **LSE**,
# the log-sum-exp of its scores (base 2, as in lab 2). This launcher's grid has the same number of splits for every
# sequence, so a short one has splits without a single key. Such a split returns output 0 and LSE -inf, so that the
# merge ignores it.

# %% [markdown]
# <!-- card 3.9 -->
# One program attends to one split. Keys are shared out in whole tiles, the same number for every split; the last ones
# may get fewer, or none. 37 keys in tiles of 16, by 4 splits: positions [0, 16), [16, 32), [32, 37), none.
#
# $$\mathrm{LSE} = \log_2 \sum_j 2^{s_j} = m + \log_2 \sum_j 2^{s_j - m}$$
#
# The loop of 3.6 is now a function, `attend_tiles(..., lo, hi, ...)`: keys at positions [lo, hi). Without keys it
# returns `row_max` = -inf, `row_sum` = 0 and `acc` = 0. The partial results are `[B, H, splits, D]` and
# `[B, H, splits]`:
#
# ```python
# partial, lse = launch_paged_decode_split(kernel, q, k_cache, v_cache, block_tables, seq_lens, scale, num_splits=4)
# ```


# %% tags=["exercise:3.9"]
@triton.jit
def paged_decode_split_kernel(
    q_ptr,  # [B, H, D]
    k_ptr,  # [N, H_KV, PAGE, D]
    v_ptr,  # like k_ptr
    block_tables_ptr,  # int32 [B, W]
    seq_lens_ptr,  # int32 [B]
    out_ptr,  # fp32 [B, H, splits, D]
    lse_ptr,  # fp32 [B, H, splits]
    qk_scale,  # score scale * log2(e)
    table_row_stride,
    H: tl.constexpr,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program: the G query heads of one KV head, of one sequence, over one split of its keys."""
    sequence, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_splits = tl.num_programs(2)
    G: tl.constexpr = H // H_KV
    seq_len = tl.load(seq_lens_ptr + sequence)
    split_len = tl.cdiv(tl.cdiv(seq_len, BLOCK_N), num_splits) * BLOCK_N  # SOLUTION: keys per split, in whole tiles
    lo = split * split_len  # SOLUTION: the first position of this split
    hi = tl.minimum(lo + split_len, seq_len)  # SOLUTION: the position after its last one

    offs_m, offs_d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    in_group = offs_m < G
    query_rows = sequence * H + kv_head * G + offs_m  # rows of [B, H]
    mask_q = in_group[:, None] & (offs_d < D)[None, :]
    q = tl.load(q_ptr + query_rows[:, None] * D + offs_d[None, :], mask=mask_q, other=0.0)
    table_ptr = block_tables_ptr + sequence * table_row_stride
    row_max, row_sum, acc = attend_tiles(
        q, table_ptr, k_ptr, v_ptr, qk_scale, kv_head, lo, hi, H_KV, D, PAGE, BLOCK_M, BLOCK_D, BLOCK_N
    )

    sum_safe = tl.where(row_sum == 0, 1.0, row_sum)  # SOLUTION: what to divide by, also if there was no key
    lse = row_max + tl.log2(sum_safe)  # SOLUTION: log-sum-exp of the scores, base 2
    rows = query_rows * num_splits + split  # rows of [B, H, splits]
    tl.store(out_ptr + rows[:, None] * D + offs_d[None, :], acc / sum_safe[:, None], mask=mask_q)
    tl.store(lse_ptr + rows, lse, mask=in_group)


# %%
check("3.9")

# %% [markdown]
# **Which split reads what.** One sequence of 37 tokens, tiles of 16, four splits; a row per split. (Queries of zero:
# every key of a split weighs the same.)

# %%
# needs: triton
paged_decode_split_kernel = use("3.9")
case = map_case(Draw(5), [37], heads=1, kv_heads=1, page=4, num_pages=11)
partial, lse = launch_paged_decode_split(paged_decode_split_kernel, **on_device(case), num_splits=4, block_n=16)
order, _ = slot_order(case, 0)
decode_pictures.draw_weights(
    partial[0, 0].cpu()[:, order[:37]],
    rows=[f"split {s}, LSE {x:.2f}" for s, x in enumerate(lse[0, 0].tolist())],
    bounds=(16, 32),
    bound_names=("tile 0", "tile 1", "tile 2"),
    xlabel="position in the sequence",
    ylabel="",
    title="The keys of each split, and what they weigh in its own output",
)

# %% [markdown]
# **Read the result.** Three tiles, four splits: the fourth has nothing to read. The third has five keys and weights
# each by 1/5, since a split normalises over its own keys only. Added up as they are, the three outputs would count
# these five keys far too much. How much each split really counts is in its LSE: log2 of 16, of 16, and of 5.

# %% [markdown]
# <!-- card 3.10 -->
# Write the merge, in PyTorch. It is exact: no score has to be computed again.
#
# $$m = \max_s \mathrm{LSE}_s, \qquad w_s = 2^{\mathrm{LSE}_s - m}, \qquad
# \mathrm{out} = \frac{\sum_s w_s\, \mathrm{out}_s}{\sum_s w_s}, \qquad \mathrm{LSE} = m + \log_2 \sum_s w_s$$


# %% tags=["exercise:3.10"]
def merge_splits(partial, lse):
    """Merge attention over disjoint splits of the keys: `partial` [B, H, splits, D] and `lse` [B, H, splits], base 2.

    Returns (out [B, H, D], LSE of all keys [B, H]). A split with an LSE of -inf had no keys: it weighs nothing, and its
    row of `partial` may hold anything, NaN too. Where all splits are empty, out is 0 and the LSE -inf. The inputs are
    not changed, and the results share no memory with them.

    >>> partial = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])              # one sequence, one head, two splits
    >>> out, lse = merge_splits(partial, torch.tensor([[[4.0, 2.0]]]))    # of 16 keys and of 4, with scores of 0
    >>> [round(x, 4) for x in out[0, 0].tolist()], round(lse.item(), 4)   # log2(20)
    ([0.8, 0.2], 4.3219)
    >>> merge_splits(partial, torch.tensor([[[-torch.inf, 1.0]]]))[0]
    tensor([[[0., 1.]]])
    """
    # BEGIN SOLUTION: the weights, the weighted mean, the LSE
    m = lse.amax(-1, keepdim=True)
    m = torch.where(m.isneginf(), 0.0, m)
    weights = torch.exp2(lse - m)
    total = weights.sum(-1)
    partial = torch.where(weights[..., None] > 0, partial, 0.0)
    out = (weights[..., None] * partial).sum(-2) / torch.where(total == 0, 1.0, total)[..., None]
    return out, m[..., 0] + total.log2()
    # END SOLUTION


# %%
check("3.10")

# %% [markdown]
# **Does it matter how the keys are divided?** It must not. Two sequences of 90 and 7 tokens, through your kernel and
# your merge, against a loop over positions. And what do the partial results cost?

# %%
# NBVAL_CHECK_OUTPUT
# needs: triton
merge_splits = use("3.10")
case = random_case(Draw(6), [90, 7], heads=4, kv_heads=2, dim=32, page=16)
expected, _ = naive_decode(case)
kv_bytes = 2 * (90 + 7) * 2 * 32 * 4
for num_splits in (1, 2, 3, 6, 13):
    partial, lse = launch_paged_decode_split(
        paged_decode_split_kernel, **on_device(case), num_splits=num_splits, block_n=16
    )
    merged, _ = merge_splits(partial, lse)
    same, num_empty = torch.allclose(merged.cpu(), expected, atol=1e-5), int(lse.isinf().sum()) // 4
    extra = 2 * (partial.nbytes + lse.nbytes) / kv_bytes
    print(f"{num_splits:2} splits: same {same}, {num_empty:2} empty, written and read again: {extra:4.0%} of K and V")

# %% [markdown]
# **Read the result.** The same output for every division, with empty splits and without. But splitting is not free:
# each split writes D + 1 elements per query head, in fp32, and the merge reads them again. For contexts as short as
# these, 13 splits move half as many bytes again as K and V.

# %% [markdown]
# ### Open the engine
#
# The engine's merge is a kernel, launched with a program per row; `BLOCK_S` is 16. The second half of it:

# %%
# needs: triton
from twophase_kernels.merge_splits import merge_splits_kernel

show_source(merge_splits_kernel, first="weight_sum = tl.zeros", last="out = tl.sum(acc")

# %% [markdown]
# **Question.** Splits are taken sixteen at a time, and each of the 16 lanes adds up its own before the lanes are added
# to each other. Why is the number of lanes fixed, instead of the next power of two from `num_splits`?
#
# <details><summary>Answer</summary>
#
# Floating-point sums depend on their order. If the lane of a split depended on how many splits the launch had, so would
# the order, and empty splits at the end could change the last bits of the result. With fixed lanes they add zeros and
# change nothing. Partial results stay fp32 to the end for a similar reason: rounded first, they would lose digits for
# nothing.
# </details>

# %% [markdown]
# > **In production, 2026.** FlashInfer's `plan()` balances the splits of a ragged batch before the step
# > (arXiv:2501.01005) and FlashAttention 3 takes such a plan as `scheduler_metadata`. SGLang's Triton decode kernel
# > splits into [`--triton-attention-num-kv-splits`](https://docs.sglang.io/advanced_features/server_arguments.html)
# > parts, 8 by default (its documentation advises more for longer contexts), and keeps the partial results' precision
# > behind `--triton-attention-reduce-in-fp32`, off by default. By roofline: one sequence of 32,768 tokens, 8 KV heads
# > of 128 in bf16, is 134 MB per layer. At 3.35 TB/s that takes 40 µs if all 132 SMs of an H100 read, and 16.5 times as
# > long if 8 of them do, at an equal share of bandwidth each.
#
# **Takeaway.** One sequence with 8 KV heads keeps 6 % of 132 SMs busy; with 16 splits it is 97 %, and the merge is
# exact whatever the division.

# %% [markdown]
# ### Going further: how many splits?
#
# With the same number for every sequence a batch of unequal lengths waits for its longest: one context of 32,768 tokens
# among sixty short ones is what a server sees every day. A **plan** gives each sequence its own number. To compare
# plans, here is a machine that needs no GPU: programs start in the order of the sequences, each on the multiprocessor
# that is free first, and take as long as their tiles of 64 keys, and 4 tiles' time besides (queries, partial result,
# merge). The step is over when the last program ends; that time is called the *makespan*.

# %% tags=["setup"]
from twophase_labs.decode import split_machine
from twophase_labs.decode.split_machine import makespan, num_tiles

# %%
# NBVAL_CHECK_OUTPUT
ragged = [512] * 60 + [32_768]
for name, plan in {"none": [1] * 61, "8 for all": [8] * 61, "8 for the long one": [1] * 60 + [8]}.items():
    print(f"splits: {name:18} makespan {makespan(ragged, plan, num_sms=132):4}")

# %% [markdown]
# <!-- card 3.11 -->
# Plan the splits of a ragged batch. `makespan(lengths, splits, num_sms)` is there, and so is `num_tiles(length)`: a
# planner runs on the CPU before the step and may try what it likes. The check compares yours with the best plan whose
# programs have about equally many tiles; 10 % more is good enough.


# %% tags=["exercise:3.11"]
def split_plan(lengths, num_sms):
    """How many splits each sequence gets: a list of whole numbers, each from 1 to its number of tiles.

    lengths: tokens of each sequence's context, in the order in which programs start. num_sms: multiprocessors. Every
    split is a program for each of 8 KV heads.

    >>> split_plan([64], num_sms=132)  # one tile cannot be divided
    [1]
    >>> makespan([32_768], split_plan([32_768], 132), 132) < 40  # tile times; without splits it takes 516
    True
    """
    # BEGIN SOLUTION: a number of splits for each sequence
    tiles = [num_tiles(length) for length in lengths]
    plans = []
    for per_program in range(1, max(tiles) + 1):
        plans.append([-(-n // per_program) for n in tiles])
    return min(plans, key=lambda splits: makespan(lengths, splits, num_sms))
    # END SOLUTION


# %%
check("3.11")

# %%
split_plan = use("3.11")
split_machine.draw_plans({"8 for all": [8] * 61, "your plan": split_plan(ragged, 132)}, ragged, num_sms=132)

# %% [markdown]
# **Read the result.** Too few splits leave a tail in which the programs of the long sequence run alone; too many pay
# their start again and again. This engine has two rules. A batch too small to fill the GPU gets the same number of
# splits for all, by the first function below. Where it says 1, as for this batch, and contexts may be long, each
# sequence is split by its own length, in chunks of the batch's mean length and at least 512 keys:

# %%
# needs: triton
from twophase_kernels import paged_decode as engines_decode
from twophase_kernels.paged_decode import choose_num_splits, is_split_by_length

for name in ("PROGRAMS_PER_SM", "MIN_TOKENS_PER_SPLIT", "MIN_TOKENS_PER_CHUNK", "MAX_SPLITS"):
    print(f"{name} = {getattr(engines_decode, name)}")
show_source(choose_num_splits)

# %%
# needs: triton
show_source(is_split_by_length)

# %% [markdown]
# ## 7. A byte instead of two
# <!-- minutes: 11 + 11 -->
#
# A decode step waits for bytes, so fewer bytes are less waiting, and they leave room for more sequences. Weights can be
# stored in fewer bits, and so can K and V: in **int8**, a whole number from -127 to 127 per element. What is
# lost is precision, and this section measures how much.
#
# An int8 is a number of *quantisation steps*; the size of one, the **scale**, is stored beside it. How many elements
# share one scale? Look at real values first: V of one layer of SmolLM2, for a text of about 150 tokens.
#
# **Think first.** If all of them shared one scale, it would have to suit the largest. Which rows would pay for that?

# %%
from twophase_labs.decode import needle, needle_pictures

reading = needle.read(100)
needle_pictures.draw_row_maxima(reading.values[26], "V of layer 26: how large the rows are")

# %% [markdown]
# **Read the picture.** With one scale for all, a quantisation step would be 1/127 of the dashed line. Most rows are
# less than half as large as that and would be stored at least twice as coarsely as they need be. The first token's row
# (far left) is so small that it would use only a handful of int8's values. There is a second reason against a common
# scale: tokens *arrive*. If the next one were larger than all before, everything would have to be stored again. A scale
# **per token and head** is found when the token is written, and never changes.

# %% [markdown]
# $$s_{th} = \frac{\max_d |x_{thd}|}{q_{max}}, \qquad n_{thd} = \mathrm{round}\!\left(\frac{x_{thd}}{s_{th}}\right),
# \qquad x_{thd} \approx n_{thd}\, s_{th}$$
#
# (Lab 6 has you write such a quantiser, for weights.)


# %% tags=["setup"]
def quantise(x, q_max=127):
    """Rows of K or V, x [T, H_kv, D], as int8 and float32 scales [T, H_kv]; with a q_max of 7 in 4 bits."""
    scale = x.float().abs().amax(-1).clamp(min=1e-30) / q_max  # above zero, even for a row of zeros
    return (x.float() / scale[..., None]).round().to(torch.int8), scale


def dequantise(data, scale):
    return data.float() * scale[..., None]


# %% [markdown]
# **Bytes.** The next cell asks the engine's own cache what a token takes, K and V in all layers, scales included. A
# scale is 4 bytes for every 64 or 128 elements, so that half is not quite half.

# %%
# NBVAL_CHECK_OUTPUT
from twophase.cache.kv_cache import KVCacheSpec
from twophase_labs.decode.decode_work import LLAMA_3_8B, SMOLLM2

for name, shape in {"SmolLM2": SMOLLM2, "Llama-3-8B": LLAMA_3_8B}.items():
    sizes = (shape.num_layers, shape.num_kv_heads, shape.head_dim, 16, torch.bfloat16)
    two, one = KVCacheSpec(*sizes).bytes_per_token, KVCacheSpec(*sizes, "int8").bytes_per_token
    print(f"{name:10}  bf16 {two:>7,} bytes per token   int8 {one:>6,}   {one / two:.1%}")

# %% [markdown]
# **Think first.** Rounding is off by at most half a quantisation step, and a typical element of a row is perhaps a
# quarter of the largest. How large is the error of SmolLM2's keys in int8, in percent of the keys themselves (root mean
# squares)? Within a factor of 2?


# %%
def stored(q_max):
    return lambda x: dequantise(*quantise(x, q_max))


for bits, q_max in {8: 127, 6: 31, 4: 7, 3: 3}.items():
    of_k, of_v = (100 * needle.relative_error(x, stored(q_max)) for x in (reading.keys, reading.values))
    print(f"{bits} bits: error of K {of_k:5.2f} %, of V {of_v:5.2f} %")
one_scale = 100 * needle.relative_error(reading.values, needle.stored_with_one_scale)
print(f"8 bits, but one scale for all tokens and heads of a layer: error of V {one_scale:.2f} %")

# %% [markdown]
# **Read the result.** Each bit less doubles the quantisation step, and with it the error. In 8 bits K and V are both
# off by about 1 % or less. (An error that is uniform over a step has a root mean square of step / √12: 0.29 of 1/127 of
# the largest element is 0.23 % of it, and 0.9 % of an element a quarter as large.) The last line has one scale for all
# of the picture's values: the error of V about doubles.
#
# But an error of K is not yet an error of the model. Scores are sums over 64 elements, whose errors partly cancel, and
# a peaked softmax hardly changes under small errors. What counts is what comes out.

# %% [markdown]
# ### A needle in a haystack
#
# We test recall. Five facts are hidden in a text, at five depths. The model reads it, the K and V of the
# text are stored and read back, and then it is asked for each fact. Here is one of them, and what is asked:

# %%
# NBVAL_CHECK_OUTPUT
print(needle.excerpt(300, row=2))
print(*needle.question(2), sep=" | the right answer: ")

# %% [markdown]
# The measure is how *surprised* the model is by the right answer, in bits, at the token that surprises it most: 0 is
# certainty, and each bit halves the probability. (If we added up the tokens, a long right answer could look worse than
# a short wrong one.) A needle is found if greedy decoding would write it, token for token.
#
# **Think first.** What will int8 do? Where will 3 bits hurt first: in the short text, or in the long one? (The next
# cell reads three texts and asks forty-five questions. That takes about twenty seconds.)

# %%
lengths = (100, 300, 1_000)
ways = {"float32": None, "int8": stored(127), "3 bits": stored(3)}
panels = {
    name: {needle.read(n).num_tokens: needle.ask(needle.read(n), way) for n in lengths} for name, way in ways.items()
}
needle_pictures.draw_needles(panels)

# %% [markdown]
# **Read the result.** Your numbers may differ; trust the figure. With int8 we have seen no needle lost and next to no
# change in surprise, at any of these lengths. With 3 bits needles were lost in the two longer texts and none in the
# shortest. Fifteen needles are few, and the surprise does not rise with the length. What it does show: a test with
# short prompts that counts needles alone would have found nothing, though the model is less certain there, too.
#
# Nor does it show more than it tested: 135 million weights, about a thousand tokens, single facts. Lab 5 builds a gate
# from several such tests; the rule is to measure your own model, at your own lengths.

# %% [markdown]
# > **In production, 2026.** K and V stay in the model's dtype unless you ask: `kv_cache_dtype` is `auto` [in
# > vLLM](https://github.com/vllm-project/vllm/blob/002f10e0cfa1373a19a0d2756598a34b700d20e5/vllm/config/cache.py),
# > `--kv-cache-dtype auto` [in SGLang](https://docs.sglang.io/advanced_features/server_arguments.html), `dtype='auto'`
# > [in TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html). The usual
# > step down is fp8 with one scale per *tensor*, [1.0 in
# > vLLM](https://docs.vllm.ai/en/v0.25.0/features/quantization/quantized_kvcache/) unless it is calibrated; the scheme
# > of this section is vLLM's `int8_per_token_head`, which its Triton backend alone has. By roofline, 32 sequences of
# > 8,192 tokens of an 8B model are 34.4 GB of K and V in bf16, 10.3 ms a step at an H100's 3.35 TB/s; in int8 5.3 ms.
#
# **Takeaway.** int8 with a scale per token and head takes 53 % of bf16's bytes at a head size of 64, and 52 % at 128,
# and cost none of our needles; how much K and V can be squeezed has to be measured at the lengths that are served.

# %% [markdown]
# ### Going further: open the engine
#
# The engine's cache stores int8 in the same way (`LLM(kv_cache_dtype="int8")`). Its quantiser:

# %%
# needs: triton
from twophase_kernels.quant import quantise_reference

show_source(quantise_reference, first="rows = x.float()", last="return torch.round(scaled)")

# %%
# needs: triton
long_keys = torch.stack(needle.read(1_000).keys).flatten(0, 1)
data, scale = quantise(long_keys)
engines_data, engines_scale = quantise_reference(long_keys, "int8")
largest = int((data.int() - engines_data.int()).abs().max())
print(f"{int((data != engines_data).sum())} of {data.numel():,} numbers differ, by at most {largest}")

# %% [markdown]
# **Question.** It multiplies by `q_max / absmax` and clamps to ±127; this section's divides by the scale and does not
# clamp. Can that give 128?
#
# <details><summary>Answer</summary>
#
# No: absmax / (absmax / 127) is 127 up to the last bits of a float32, and rounds to 127. The engine's product does,
# too; the clamp costs nothing and holds however a GPU rounds its division. The numbers that differ lie halfway between
# two quantisation steps, up to the last bit, and may be rounded either way.
# </details>

# %% [markdown]
# ### Going further: recent tokens in fp16, older ones in int8
#
# Recent tokens get much of the attention, and they are few. A cache may keep them in 16 bits and quantise a token only
# when it has aged. Is it worth it? Five needles, at depths of 10 to 90 %, in the text of the middle column above: four
# of them are older than the last 64 tokens, the fifth is among them. With the older part in 3 bits:

# %%
num_tokens = needle.read(300).num_tokens
for num_recent in (0, 16, 64):
    size = 128 * num_recent + 28 * (
        num_tokens - num_recent
    )  # bytes of a head's K: 64 in fp16, or in 3 bits and a scale
    print(f"the last {num_recent:2} of {num_tokens} tokens in fp16: {size / (128 * num_tokens):3.0%} of fp16's bytes")


def mixed(x, num_recent=64):
    return torch.cat([stored(3)(x[:-num_recent]), x[-num_recent:].half().float()])


for name, way in {"3 bits": stored(3), "3 bits, the last 64 tokens fp16": mixed}.items():
    answers = needle.ask(needle.read(300), way)
    bits = ", ".join(f"{a.bits:.1f}" for a in answers)
    print(f"{name:32} {sum(a.found for a in answers)} of 5 needles; surprise by depth, in bits: {bits}")

# %% [markdown]
# For the four older needles little changes. The fifth is stored exactly now, and its surprise falls. It is still not
# found: exact keys compete with noisy ones in the same softmax. So recent tokens in fp16 help what is
# near the end, in chat and in continuing a text, and do little for facts from far back.

# %% [markdown]
# ### Going further: per token or per channel
#
# The other axis is possible, too: a scale per *channel*, one element of a head over a group of 64 tokens: as many
# scales as one per token and head. It suits tensors in which a few channels are large in every token.


# %%
def by_channel(q_max):
    return lambda x: needle.stored_per_channel(x, q_max)


for bits, q_max in {8: 127, 4: 7, 3: 3}.items():
    for name, tensors in (("K", reading.keys), ("V", reading.values)):
        errors = [100 * needle.relative_error(tensors, way) for way in (stored(q_max), by_channel(q_max))]
        print(f"{bits} bits, {name}: scales per token {errors[0]:5.2f} %, per channel {errors[1]:5.2f} %")

# %% [markdown]
# **Read the result.** Scales per channel help K most: at 4 bits its error falls from 20 % to 7 %, that of V from 12 %
# to 11 %. A few channels of K are large in every token, and where rotation is slow they also stay in the same channel
# (KVQuant quantises K before the rotation for this reason). That is KIVI's rule (arXiv:2402.02750) for 2 bits: keys per
# channel, values per token. Its price is that a group has to be complete before it can be stored, so the newest tokens
# wait in 16 bits. In 8 bits both errors are about 1 % or less, and an engine takes the simpler scheme.

# %% [markdown]
# ## 8. Reading the weights for many at once
# <!-- minutes: 14 + 9 -->
#
# A decode step mostly reads weights, and uses each of them for a single token. The weights do not depend on the
# sequence. So let several sequences take their step together: the weights are read **once for all of them**. K and V
# are each sequence's own, and are read for each.

# %%
from twophase_labs.decode import step_pictures

step_pictures.draw_reuse()

# %% [markdown]
# The longer bar is paid once. That has an end: each further sequence also brings arithmetic, two operations per weight.
# At some batch the arithmetic of a product takes as long as reading its weights, and from there on a larger batch takes
# proportionally longer. This is the *ridge* of lab 2, seen from the side of the batch.

# %% tags=["setup"]
import math

from twophase_labs.decode.decode_work import A100, H100, LLAMA_3_8B, SMOLLM2

# %% [markdown]
# <!-- card 3.12 -->
# A step is a *sequence* of kernels: products with weights, then attention, layer by layer, each waiting for the one
# before. Moving and computing overlap within a kernel, and not from one to the next. So there is a maximum for each
# kind, and the two add up. `work` has `weight_bytes`, W (in section 2 this was a number of weights), and for each
# sequence `weight_flops`, $f_W$, `kv_bytes`, k, and `attention_flops`, $f_A$; `machine` has a `bandwidth` (bytes/s) and
# a `flop_rate`.
#
# $$t(B) = \max\!\left(\frac{W}{\text{bandwidth}},\; \frac{B\,f_W}{\text{rate}}\right)
# + B \cdot \max\!\left(\frac{k}{\text{bandwidth}},\; \frac{f_A}{\text{rate}}\right)$$
#
# Then give the smallest whole batch whose *products* compute at least as long as they read.
#
# ```python
# >>> work = LLAMA_3_8B.decode_work(context=500, bytes_per_value=2)
# >>> ridge_batch(work, A100)           # two bytes and two FLOPs per weight: the ridge of the machine, 200.6
# 201
# ```


# %% tags=["exercise:3.12"]
def step_seconds(work, machine, batch):
    bandwidth, rate = machine.bandwidth, machine.flop_rate
    products = max(work.weight_bytes / bandwidth, batch * work.weight_flops / rate)  # SOLUTION: seconds of the products
    attention = batch * max(work.kv_bytes / bandwidth, work.attention_flops / rate)  # SOLUTION: seconds of attention
    return products + attention  # SOLUTION: the seconds of the step


def ridge_batch(work, machine):
    one_token = work.weight_flops / machine.flop_rate  # seconds of its products, if they only computed
    return math.ceil(work.weight_bytes / machine.bandwidth / one_token)  # SOLUTION: the smallest batch that computes


# %%
check("3.12")

# %% [markdown]
# **Think first.** The products of Llama-3-8B in 16 bits leave the memory-bound side of an A100 at 201 sequences. What
# happens to the tokens per second above that, and what to the time between two tokens of a request?

# %%
# NBVAL_CHECK_OUTPUT
step_seconds, ridge_batch = use("3.12")
for gpu in (A100, H100):
    ridge = ridge_batch(LLAMA_3_8B.decode_work(0, bytes_per_value=2), gpu)
    print(f"{gpu.name}, Llama-3-8B, 16 bits: products are compute-bound from a batch of {ridge} on")
    for context in (0, 100, 300):  # 300 tokens of 512 sequences still fit beside the weights, in 40 GB
        work = LLAMA_3_8B.decode_work(context, bytes_per_value=2)
        steps = {batch: step_seconds(work, gpu, batch) for batch in (64, ridge, 512)}
        shown = ", ".join(f"{b} x {1e3 * s:4.1f} ms = {b / s:6,.0f}/s" for b, s in steps.items())
        print(f"  context {context:5,}: {shown}")

# %% [markdown]
# **Read the result.** The ridge does not depend on the context: it is that of the products. Above it **tokens per
# second stand still, and every request waits longer for its next token**: with 300 tokens each, 512 sequences give as
# many per second as 201, at more than twice the step. Below it batching pays, and the less, the longer the contexts
# are: a batch shares the weight reads; every sequence still reads its own KV cache. Often no batch of that size fits:
# with 1,000 tokens each, 201 sequences and the weights are more than this card's 40 GB. This is why the cache is made
# smaller by every means (grouped heads in lab 1, MLA, bytes in section 7). (A model that takes one maximum over all
# bytes and all FLOPs of a step promises up to nearly twice as much, for it lets K and V move while weights multiply.)

# %% [markdown]
# **Think first.** SmolLM2 on this machine, contexts of 64 tokens. How many times as many tokens per second do 16
# sequences give as one alone? The next cell has this machine's ridge, if you want to compute.

# %%
from twophase_labs.decode.clocked_steps import BATCH_CONTEXT, this_machine, times_by_batch, times_by_context

here, small_work = this_machine(), SMOLLM2.decode_work(BATCH_CONTEXT, bytes_per_value=4)
print(f"this machine: {here.bandwidth / 1e9:.1f} GB/s copied, {here.flop_rate / 1e9:.0f} GFLOP/s in float32")
print(f"SmolLM2's products leave the memory-bound side at a batch of {ridge_batch(small_work, here)}, by your formula")

# %%
steps = times_by_batch()
least = {batch: step_seconds(small_work, here, batch) for batch in steps}
for batch, s in steps.items():
    print(f"batch {batch:>2}: {1e3 * s:6.1f} ms a step, at least {1e3 * least[batch]:5.1f}; {batch / s:4.0f} tokens/s")
print(f"16 sequences together: {(16 / steps[16]) / (1 / steps[1]):.1f} times the tokens per second of one")

# %%
step_pictures.draw_batching(steps, least, ridge_batch(small_work, here))

# %% [markdown]
# **Read the result.** A larger batch gives more tokens per second, far less than proportionally more time per step, and
# stays below the bound (dashed) at every size. Compare the first points: if a step of 2 takes longer than a step of 4,
# that is the library. It picks another kernel for every small number of rows, and its kernels for 2 and 3 rows may read
# the weights more slowly than the one for 4; small products are where libraries differ most. A step also makes about
# 1,700 small calls. (The bound uses the rate of a *copy*; and if this machine was busy meanwhile, run the cells again.)
#
# In one formula: a step of one sequence with $t$ tokens of context takes $T(t) = a + b\,t$. The constant $a$ is the
# weights and the fixed price of section 2, the slope $b$, in seconds per token, is K and V; a batch shares $a$.
#
# Each *sequence* gets its tokens a little later in a larger batch. Throughput against latency is the trade that a
# scheduler makes in every step; lab 4 is about it.

# %% [markdown]
# > **In production, 2026.** The batch is limited by memory first and by a flag second: SGLang's
# > [`--max-running-requests`](https://docs.sglang.io/advanced_features/server_arguments.html) has no fixed default, and
# > `--mem-fraction-static` decides how much memory weights and K and V may take; vLLM reserves
# > [`gpu_memory_utilization` =
# > 0.92](https://github.com/vllm-project/vllm/blob/002f10e0cfa1373a19a0d2756598a34b700d20e5/vllm/config/cache.py) of
# > the card by default. By roofline, an 8B model in bf16 on an H100 reads its 15 GB of weights (all but the embedding)
# > in 4.5 ms: at most 223 tokens per second for one sequence. 64 sequences of 1,000 tokens each add 8.4 GB and 2.5 ms a
# > step, and give about 9,160.
#
# **Takeaway.** In 16 bits, the products of a dense model are compute-bound from a batch of 201 on an A100 with 40 GB
# (153 with 80 GB) and 296 on an H100, whatever the context; above it more sequences make each wait longer, and no token
# more comes out per second. Batching divides the constant of a step's time, a + b t, and not its slope.

# %% [markdown]
# ### Going further: a constant and a slope, and CUDA graphs
#
# Measure $T(t) = a + b\,t$ for one sequence.
#
# **Think first.** For SmolLM2 in float32: weights of 538 MB, 46,080 bytes of K and V per token. At what context does
# reading K and V take as long as reading the weights?

# %%
by_context = times_by_context()
b, a = np.polyfit(list(by_context), list(by_context.values()), 1)
least = SMOLLM2.decode_work(1, bytes_per_value=4)
least_a, least_b = least.weight_bytes / here.bandwidth, least.kv_bytes / here.bandwidth
print(f"a: {1e3 * a:6.1f} ms, reading the weights takes at least {1e3 * least_a:.1f} ms")
print(f"b: {1e6 * b:6.2f} µs per token, reading its K and V takes at least {1e6 * least_b:.2f} µs")
print(f"a = b t at t = {a / b:,.0f} tokens; by bytes alone at {least_a / least_b:,.0f}")

# %%
step_pictures.draw_step_time(by_context, a, b, least_a, least_b)

# %% [markdown]
# **Read the result.** A straight line. At short contexts the slope
# disappears beside the constant, which is where the belief in a constant time per token comes from.
#
# - **a** is the weights, and the fixed price of a step: Python, about 1,700 small calls, sampling.
# - **b** is K and V. It is above the bound, and gathering explains a factor of at least three of that: this backend
#   (plain PyTorch) copies the blocks before it attends to them. The rest is masks, a softmax and products in small
#   pieces, which read more slowly than a copy does. A kernel like yours reads each block once, where it is.

# %% [markdown]
# **The fixed price, and what a CUDA graph does about it.** Section 2 measured a step of 30 layers with hardly a
# weight in them. Per call that is:

# %%
num_calls, fixed_s = step_time.num_operations(thin), times_s["30 layers without weights"]
print(
    f"{num_calls:,} calls in {1e3 * fixed_s:.1f} ms: {1e6 * fixed_s / num_calls:.1f} µs each, with nothing to compute"
)
many, one = torch.zeros(300, 1), torch.zeros(300)
separate_s = seconds(lambda: [row.add_(1) for row in many], repeats=5)
together_s = seconds(lambda: one.add_(1), repeats=5)
print(f"300 additions, a call each: {1e6 * separate_s:.0f} µs; in one call: {1e6 * together_s:.1f} µs")

# %% [markdown]
# The arithmetic is negligible; the launch of each operation is what takes time. On a GPU the same thing is called
# **launch overhead**: the CPU prepares each kernel and hands it over. When kernels are long, that happens while the
# previous one runs. A decode step has many short ones, and the GPU waits for the CPU. A **CUDA graph** records the
# launches of one step and replays all of them with a single call. It saves the calls, not the work.
#
# The recording is fixed: the same kernels, the same shapes, the same addresses. So inputs are copied to the recorded
# buffers, and batches and contexts are rounded up to a few sizes. The engine's version, from
# where it knows that all chunks are decodes (drafts are lab 5's; without them `max_query_len` is 1):

# %%
from twophase_features.step_graphs import DecodeGraphs, padded_batch_size

show_source(DecodeGraphs.replay, first="longest = max(")

# %%
# NBVAL_CHECK_OUTPUT
for num_seqs in (1, 3, 5, 9, 17, 100):
    rows = padded_batch_size(num_seqs)
    print(f"{num_seqs:3} decodes run in the graph of {rows:3} rows, {1 - num_seqs / rows:4.0%} of them padding")

# %% [markdown]
# **Question.** A padded row is a sequence of length 0. Which line of your 3.9 makes that harmless, and what would go
# wrong without it?
#
# <details><summary>Answer</summary>
#
# `sum_safe`: without a key `row_sum` is 0, and 0 / 0 is NaN. Nobody reads the padded row, but its NaN would travel
# through every layer, and a check for NaN could no longer tell a real one apart.
# With `sum_safe` the row is 0, its LSE -inf.
# </details>

# %% [markdown]
# > **In production, 2026.** Graphs are on by default: vLLM's `cudagraph_mode` is
# > [`FULL_AND_PIECEWISE`](https://docs.vllm.ai/en/latest/design/cuda_graphs/), full graphs for batches of decodes and
# > piecewise ones for the rest; SGLang has [`--disable-decode-cuda-graph` and
# > `--disable-prefill-cuda-graph`](https://docs.sglang.io/advanced_features/server_arguments.html), both off by default
# > (`--disable-cuda-graph` is a hidden alias), and pads batches; TensorRT-LLM's
# > [`DecodeCudaGraphConfig`](https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/DecodeCudaGraphConfig.html)
# > covers batches up to 128 unless told otherwise. By roofline, SmolLM2's 0.269 GB in bf16 take an H100 80 µs, 47 ns
# > per call if there were 1,700, as here: without a graph, a small model on a fast GPU decodes at the speed of its CPU.

# %% [markdown]
# ## 9. Capstone: your decode phase in the engine
# <!-- minutes: 15 -->
#
# You have the parts of a decode phase: a pool, block tables and forks (3.2 to 3.4), a kernel that splits the keys
# (3.9), a merge (3.10), and a kernel for when there is nothing to split (3.6). The engine keeps its scheduler, its
# model and its prefill; memory and decode attention become yours.

# %% [markdown]
# ```mermaid
# flowchart LR
#     R["requests"] --> S["scheduler<br/>(the engine's)"]
#     S -->|"open, grow, fork, close"| C["OwnCache"]
#     C --> T["your BlockTable,<br/>fork, prepare_write"]
#     T --> P["your BlockPool"]
#     S -->|"plan: tokens, block tables"| M["model<br/>(the engine's)"]
#     M -->|"write, prefill"| B["torch backend"]
#     M -->|"decode"| K["your kernel, or<br/>your split kernel<br/>and your merge"]
#     B --> V[("blocks")]
#     K --> V
#     M --> L["next tokens"] --> S
# ```
#
# Two adapters stand between. `OwnCache(pool, new_table, block_size, fork, prepare_write)` answers the scheduler's
# questions from your parts; the file `decode/own_cache.py` is short and worth reading. `OwnAttention(spec, block_size,
# decode=...)` is the torch backend with your function for the decodes.

# %% tags=["setup"]
from twophase import LLM, SamplingParams
from twophase_features.model_store.prepare import DEFAULT_MODEL
from twophase_labs.decode.own_cache import OwnCache
from twophase_labs.kit.own_attention import OwnAttention

# %% [markdown]
# <!-- card 3.13 -->
# Open an engine on your parts. `decode` gets what the engine has, `q` `[B, H, D]`, K and V, `block_tables`, `seq_lens`
# and the scale, and returns `[B, H, D]`: with one split by your 3.6 (`launch_paged_decode`), with more by your 3.9
# (`launch_paged_decode_split`) and 3.10. `cache` is called once, when the engine opens.
#
# ```python
# llm = own_engine(DEFAULT_MODEL, block_size=8, num_blocks=16)
# llm.generate(...)                                # token for token what transformers writes
# llm.scheduler.cache.pool                         # a BlockPool of yours, with 16 blocks; all free again by now
# ```


# %% tags=["exercise:3.13"]
def own_engine(model, block_size, num_blocks, num_splits=2, **options):
    def decode(q, k_cache, v_cache, block_tables, seq_lens, scale):
        inputs = q, k_cache, v_cache, block_tables, seq_lens, scale
        if num_splits == 1:
            return launch_paged_decode(paged_decode_kernel, *inputs)  # SOLUTION: one output per query head
        results = launch_paged_decode_split(paged_decode_split_kernel, *inputs, num_splits)  # SOLUTION: two tensors
        return merge_splits(*results)[0]  # SOLUTION: one output per query head

    def cache(num_blocks, block_size, enable_prefix_caching):  # the engine calls this with its own sizes
        blocks = BlockPool(num_blocks)  # SOLUTION: one pool for all sequences

        def new_table():
            return BlockTable(blocks, block_size)  # SOLUTION: an empty table for one sequence

        return OwnCache(blocks, new_table, block_size, fork, prepare_write)

    def attention(spec):
        return OwnAttention(spec, block_size, decode=decode)  # SOLUTION: a backend with your decode in it

    options |= {"device": device.type, "dtype": "float32", "block_size": block_size, "num_kv_blocks": num_blocks}
    return LLM(model, attention_backend=attention, cache_factory=cache, **options)


# %%
check("3.13")

# %% [markdown]
# ### The real model
#
# Three prompts and a fork: the last prompt is continued twice (`n=2`), drawn with a seed. Blocks of 8 slots, 16 of
# them; a step computes 16 tokens at most, so that a long prompt is read in several steps while others decode already.

# %%
# needs: triton
own_engine = use("3.13")
llm = own_engine(DEFAULT_MODEL, block_size=8, num_blocks=16, max_num_seqs=4, max_num_batched_tokens=16)
fullest = block_pictures.fullest_moment(llm.scheduler.cache)
requests = {
    "The capital of France is": SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
    "Once upon a time, in a small village by the sea, there lived an old": SamplingParams(
        temperature=0, max_tokens=12, ignore_eos=True
    ),
    "The animal that I like best of all in the world is": SamplingParams(
        n=2, temperature=1.0, seed=7, max_tokens=12, ignore_eos=True
    ),
}
outputs = llm.generate(list(requests), list(requests.values()), use_tqdm=False)
for prompt, output in zip(requests, outputs, strict=True):
    for completion in output.outputs:
        print(f"{prompt} |{completion.text}")

# %% [markdown]
# **Against transformers**, token for token; and the two drawn completions against the engine's own cache and attention,
# with the same seed:

# %%
# NBVAL_CHECK_OUTPUT
# needs: triton
for (prompt, params), output in list(zip(requests.items(), outputs, strict=True))[:2]:
    their_prompt = tokenizer(prompt, return_tensors="pt").input_ids[0]
    theirs = transformers_greedy(model, their_prompt, params.max_tokens, eos_id=model.config.vocab_size)
    theirs = theirs[len(their_prompt) :].tolist()
    print(list(output.outputs[0].token_ids) == theirs, theirs)
prompt, params = list(requests.items())[2]
(theirs,) = step_time.open_engine().generate([prompt], params, use_tqdm=False)
print(
    [list(mine.token_ids) == list(its.token_ids) for mine, its in zip(outputs[2].outputs, theirs.outputs, strict=True)]
)

# %% [markdown]
# **Did your parts do it?** Count: the kernel once per layer and step with a decode in it, the blocks copied for the
# fork, and all blocks free again.

# %%
# NBVAL_CHECK_OUTPUT
# needs: triton
num_decode_steps = sum(step.num_decodes > 0 for step in llm.engine.trace)
pool, num_calls = llm.scheduler.cache.pool, llm.model.backend.num_calls["decode"]
print(f"{num_decode_steps} steps with decodes x 30 layers = {num_calls} calls of your decode")
print(
    f"your {type(pool).__name__}: {pool.num_free} of 16 blocks free; {llm.scheduler.cache.num_copies} copied on write"
)

# %% [markdown]
# Your block tables, during the step when most blocks were in use. The two completions of one prompt share what they
# can; a block with two colours has two owners, and from the left it is coloured as far as it is filled.

# %%
# needs: triton
figure = draw_block_tables(fullest, num_blocks=16, block_size=8)

# %% [markdown]
# And the run, step by step, drawn from its own trace: everything in one column was computed together, in one batch.

# %%
# needs: triton
from twophase_labs.decode import run_pictures

names = {output.request_id: f"{len(output.prompt_token_ids)} tokens, n={len(output.outputs)}" for output in outputs}
run_pictures.draw_timeline(llm.engine.trace, names)

# %% [markdown]
# **Read the result.** The prefills are at the left. The second prompt did not fit whole beside the first, nor the third
# beside the rest of the second; both were finished while others were already decoding. Then a chain of steps: the two
# phases of one model. The blocks in use jump when prompts are read, rise when a sequence fills a block, and fall when
# one ends. (They are counted *after* each step, when what has ended in it is free again; the tables above show the
# moment within a step.)
#
# **Play.** With `num_blocks=8` the three requests do not fit at once. Which one waits, and where do you see it in the
# timeline?
#
# <details><summary>Answer</summary>
#
# The third: its row begins when the first request has ended. Four of the eight blocks are free before, and its prompt
# needs two, but the engine leaves each sequence, running or new, a block to grow into: that makes five.
# </details>

# %% [markdown]
# ### The first cell again, with your work in place
#
# The lab began with one token that took many times as long as its arithmetic. Here is the same measurement, on an
# engine with *your* pool, tables, forks and kernel. The kernel is 3.6: on one thread there is nothing to split for.
# Your allocator is what lets more than one sequence share a step. (If a larger batch takes *longer* per token, or your
# batch of 1 much longer than the first cell's, something else was running: run it again.)

# %%
# needs: triton
from twophase_labs.machine.kernels import are_compiled

yours = own_engine(DEFAULT_MODEL, block_size=16, num_blocks=64, num_splits=1, max_num_seqs=16)
sizes, num_steps = ((1, 2, 4, 8, 16), 8) if are_compiled() else ((1, 2), 2)  # interpreted: a second each
with trusted():
    per_token_s = {n: step_time.decode_step_s(yours, num_sequences=n, num_steps=num_steps) / n for n in sizes}
print(f"the first cell:   {1e3 * step_s:5.1f} ms for one token, {step_s / arithmetic_s:4.1f} times its arithmetic")
for n, token_s in per_token_s.items():
    print(
        f"yours, batch {n:2}:  {1e3 * token_s:5.1f} ms per token, {1 / token_s:4.0f} tokens per second, "
        f"{token_s / arithmetic_s:5.1f} times its arithmetic"
    )

# %%
# needs: triton
step_pictures.draw_closing(per_token_s, step_s, arithmetic_s)

# %% [markdown]
# **Takeaway.** The weights are read once a step, so 16 sequences in your blocks share what the first cell paid for one:
# the time per token falls towards its arithmetic, and the distance that is left is the fixed price, K and V, and
# products of few rows.

# %% [markdown]
# ## 10. Knowledge check
# <!-- minutes: 9 -->
#
# Three questions over the whole lab.

# %% [markdown]
# <!-- card 3.14 -->
# Both phases, stage by stage: what does each wait for, and what helps? Each letter once. **a** arithmetic: compute
# fewer tokens (a cached prefix), or in fewer bits · **b** bytes between kernels: tiles and fusion · **c** bytes of
# weights: more sequences in the step, or weights in fewer bits · **d** bytes of K and V: fewer KV heads, or fewer bits;
# a larger batch brings its own · **e** launches: a CUDA graph

# %% tags=["exercise:3.14"]
answer_3_14 = {
    "projections, a prompt of 4,000 tokens": "a",  # SOLUTION: a letter
    "attention through a score matrix, a prompt of 4,000 tokens": "b",  # SOLUTION: a letter
    "projections, a step of 4 sequences": "c",  # SOLUTION: a letter
    "attention, a step of 64 sequences of 8,000 tokens": "d",  # SOLUTION: a letter
    "a step of SmolLM2 for one sequence, on an H100": "e",  # SOLUTION: a letter
}

# %%
check("3.14")

# %% [markdown]
# (The advice "large batches for prefill, small ones for decode", often printed, is in none of the five: a long prompt
# is compute-bound by itself, and decode is what a larger batch helps.)

# %% [markdown]
# <!-- card 3.15 -->
# A decode kernel with blocks of 16, and what its tests say. Which bug is it? **a** no mask on the tail of the last
# block · **b** the row of the block table, or its stride · **c** an empty split is not guarded: 0 / 0 is NaN, and NaN
# times its weight 0 is NaN too · **d** the head stride of the cache, or `h % H_kv` for `h // G` · **e** LSE in another
# base than the merge takes it for

# %% tags=["exercise:3.15"]
answer_3_15 = {
    "right for one KV head, wrong for several": "d",  # SOLUTION: a letter
    "right for lengths 16, 32, 48, wrong in between": "a",  # SOLUTION: a letter
    "every split right by itself, the merged result off": "e",  # SOLUTION: a letter
    "right alone, wrong for all but the first of a batch": "b",  # SOLUTION: a letter
    "NaN for the shortest sequence only, once there are splits": "c",  # SOLUTION: a letter
}

# %%
check("3.15")

# %% [markdown]
# <!-- card 3.16 -->
# A service runs Llama-3-8B in bf16 (16 GB of weights, 131,072 bytes of K and V per token) on one card of 141 GB and 4.8
# TB/s, with graphs: 64 conversations of 8,192 tokens in every step. Tokens come too slowly; each step
# has to become at least a third shorter. Which single change does it?
#
# **a** weights in int8<br/>
# **b** 128 conversations in a step instead of 64<br/>
# **c** K and V in int8<br/>
# **d** split-KV with eight splits

# %% tags=["exercise:3.16"]
answer_3_16 = "c"  # SOLUTION: one letter

# %%
check("3.16")

# %% [markdown]
# ### Principles
#
# 1. **Decode waits for bytes.** Count what a step reads, divide by the bandwidth, and you have the bound; then ask
#    where the rest of the time goes.
# 2. **Weights are shared, caches are not.** Batching divides the first by the batch; only smaller K and V (fewer
#    heads, fewer bits, fewer tokens) help with the second. A step is a sum of kernels, each with its own bound.
# 3. **A refusal changes nothing.** An allocator that fails half-way has lost a block, or given it to two sequences.
# 4. **Test contents, not shapes.** A stale block has the right shape. Let an oracle remember what was written where.
# 5. **Read where it is.** A gather moves the same bytes three times; a look-up inside the kernel moves them once.
# 6. **Partial results merge exactly**, as long as each brings its LSE, and an empty one its minus infinity.
# 7. **Measure a saving at the length where it hurts.** Short prompts lose no needle.
#
# ### Troubleshooting, by symptom
#
# | symptom | likely cause | section |
# |---|---|---|
# | first token right, the next ones wrong | the decode: new K/V not written, position or length off by one | 1, 5 |
# | right alone, wrong in a batch | wrong row of the block table; a pool per sequence; a block given out twice | 3, 5 |
# | right until a block is full | the table does not grow, or is overwritten when it does | 3 |
# | right at multiples of the block size only | the tail of the last block is not masked | 4, 5 |
# | text of another request in the answer | a block was freed and is still in a table; double free | 3 |
# | two completions of one prompt become alike | a fork wrote into a shared block: no copy-on-write | 3 |
# | NaN, now and then | slots never written get weight 0, and 0 times NaN is NaN; an empty split | 5, 6 |
# | free blocks become fewer from run to run | a table that is not freed, or freed once for two owners | 3 |
# | one long request is slow on a large GPU | too few programs: split the keys | 6 |
# | a larger batch brings nothing more | beyond the ridge; or long contexts, where K and V are what is read | 8 |
# | a small model is no faster on a faster GPU | launch overhead: is the step in a graph? | 8 |
# | worse answers on long prompts only | K and V in too few bits, or too few scales | 7 |
#
# ### What to read next
#
# - Efficient Memory Management for Large Language Model Serving with PagedAttention, arXiv:2309.06180: blocks, block
#   tables, copy-on-write.
# - FlashInfer, arXiv:2501.01005: attention kernels for serving, with balanced plans and merged partial results.
# - DeepSeek-V2, arXiv:2405.04434: multi-head latent attention. Models of 2026 also replace K and V in most layers by a
#   state of fixed size (Gated DeltaNet, Mamba), or read a few chosen blocks (DeepSeek's sparse attention).
# - Fast Transformer Decoding: One Write-Head is All You Need, arXiv:1911.02150: why decode waits for memory.
# - Efficiently Scaling Transformer Inference, arXiv:2211.05102: batch, context and bytes for large models.
# - KIVI, arXiv:2402.02750, and KVQuant, arXiv:2401.18079: K and V in 2 to 4 bits, and why keys want other scales than
#   values. GEAR, arXiv:2403.05527: the error of few bits kept as a small matrix.
#
# Lab 4 puts both phases into one engine and asks which may go first.

# %%
from twophase_labs.kit.course_map import closing

closing("3")
