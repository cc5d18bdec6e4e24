# %% [markdown]
# # Lab 3: decode, one token at a time
#
# The prompt is read, the first token is out. From here on the model works on **one token per sequence and step**: a
# few rows of numbers where prefill had hundreds. There is hardly anything to compute. It takes its time all the same,
# and the first cell shows how much: on your machine, on a real model.
#
# The other thing that decoding does is to *remember*. Every token leaves keys and values behind, sequences grow at
# different speeds, some end, some split into several, and all of them live in one memory that is never large enough.
# You write the bookkeeping of that memory, then the kernels that read it, and at the end both carry the real engine.

# %% [markdown]
# **After this lab you can**
#
# - say from a data sheet how fast a model can decode at best, and show on a machine of your own that it holds;
# - write the allocator of a paged K/V cache: a pool, block tables, sharing, copy-on-write, and running out unharmed;
# - test an allocator with an oracle that finds bugs that no test of shapes finds;
# - write paged decode attention, in PyTorch and as a Triton kernel, and split it so that it fills a GPU;
# - explain what batching, int8 and a longer context do to the time of a step, with numbers measured here.
#
# You need labs 1 and 2, or what they are about: a cache, grouped heads, the online softmax, pages. No GPU; every
# section says what it needs.

# %% [markdown]
# ```mermaid
# flowchart LR
#     A["1-2 a step<br/>what it computes, what it reads"] --> B["3 the memory<br/>block pool, block table"]
#     B --> C["4-7 the attention<br/>pages, kernel, splits, layout"]
#     C --> D["8-9 less memory<br/>copy-on-write, int8"]
#     D --> E["10-11 the clock<br/>batch, context"]
#     E --> F["12-13 all of it in the engine<br/>knowledge check"]
# ```
#
# **How it works.** As before: commit to a prediction, fill the blanks `____(...)`, run `check("3.1")`. `hint("3.1")`
# helps in up to three steps, `reveal("3.1")` shows a solution. Whatever you leave out runs with the reference's
# answer, and says so.

# %% [markdown]
# <!-- map -->

# %% tags=["setup"]
from twophase_labs.machine.kernels import device, how_kernels_run, tl, triton  # first: it decides how kernels run

# isort: split
import math
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch

from twophase import LLM, SamplingParams
from twophase.cache.kv_cache import KVCacheSpec
from twophase.core.errors import CacheStateError, OutOfBlocksError
from twophase.model.prepare import DEFAULT_MODEL
from twophase_labs import ____, check, hint, measured, reference, reveal, use
from twophase_labs.decode import decode_pictures as pictures
from twophase_labs.decode import needle, needle_pictures, page_pictures, run_pictures, step_pictures, step_time
from twophase_labs.decode.attend_tiles import attend_tiles
from twophase_labs.decode.clocked_steps import BATCH_CONTEXT, this_machine, times_by_batch, times_by_context
from twophase_labs.decode.decode_cases import map_case, naive_decode, on_device, random_case, slot_order
from twophase_labs.decode.decode_work import A100, H100, LLAMA_3_8B, SMOLLM2
from twophase_labs.decode.decoder import smollm2_decoder
from twophase_labs.decode.launch import launch_merge_splits, launch_paged_decode, launch_paged_decode_split
from twophase_labs.decode.own_cache import OwnCache
from twophase_labs.decode.step_time import bandwidth, matmul_rate
from twophase_labs.kit.models import smollm2, transformers_greedy
from twophase_labs.kit.own_attention import OwnAttention
from twophase_labs.kit.source_diff import source_diff
from twophase_labs.kit.timing import Timed, seconds
from twophase_labs.machine.checks import Draw
from twophase_labs.machine.pictures import draw_block_tables

torch.set_num_threads(1)

# %% [markdown]
# **The surprise.** One more token of SmolLM2: each of its 135 million weights is multiplied once and added once. How
# fast this machine multiplies and adds we can measure, so we know how long the step should take. One thread, as
# always here.

# %%
model, tokenizer = smollm2()
cached = model(tokenizer("Once upon a time", return_tensors="pt").input_ids, use_cache=True).past_key_values
one_token = torch.tensor([[28]])
step_s = seconds(lambda: model(one_token, past_key_values=cached, use_cache=True), repeats=5)
arithmetic_s = 2 * step_time.NUM_WEIGHTS / matmul_rate()
print(f"arithmetic: {2 * step_time.NUM_WEIGHTS / 1e6:.0f} million operations, {1e3 * arithmetic_s:.1f} ms")
print(f"the step:   {1e3 * step_s:.1f} ms, {step_s / arithmetic_s:.0f} times as long")

# %% [markdown]
# For most of the step the processor waits, and Python is the smaller part of it. For what? Write your guess down;
# section 1 takes the step apart, and section 2 finds the missing time.

# %% [markdown]
# ## 1. One step, taken apart
#
# *Needs: CPU, and the model.*
#
# In lab 1 you put a cache into a toy of one block. A real model is the same thirty times over, with grouped heads,
# rotated positions, and a vocabulary. Here is the step for one token, with the shapes of SmolLM2. Only two things in
# it know how long the text is.

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
# The cache and the attention weights grow; everything else has one row for ever.

# %% [markdown]
# `Decoder` is SmolLM2 in parts. Its weights are those of transformers; the loop over the layers, and the cache, are
# left to you:
#
# | call | gives |
# |---|---|
# | `model.embed(ids)` | x, `[L, hidden]` |
# | `model.project(layer, x, positions)` | q `[H, L, D]`, k and v `[H_kv, L, D]`; q and k are rotated |
# | `model.attend(q, k, v)` | `[H, L, D]`; causal, the L queries are the last of all positions |
# | `model.finish(layer, x, attended)` | x after the layer, both residuals added |
# | `model.logits(rows)` | a row of logits for each row given |

# %% [markdown]
# <!-- card 3.1 -->
# Run the model over `new_ids` (`[L]`; one token in a decode step, but a prompt works as well) against `cache`, a list
# with a pair `(k, v)` of `[H_kv, S, D]` per layer. Return the logits of the *last* row, `[V]`, and the cache of
# S + L tokens.
#
# ```python
# logits, cache = decode_step(model, prompt_ids, model.empty_cache())   # the prompt
# logits, cache = decode_step(model, logits.argmax()[None], cache)      # one token more, and so on
# ```
#
# A row of logits costs 49,152 · 576 multiplications, as much as eight layers. Don't compute one that nobody reads.


# %% tags=["exercise:3.1"]
def decode_step(model, new_ids, cache):
    num_cached = cache[0][0].shape[1]
    positions = torch.arange(num_cached, num_cached + len(new_ids))  # SOLUTION: where the new tokens stand
    x, grown = model.embed(new_ids), []
    for layer, (old_k, old_v) in enumerate(cache):
        q, new_k, new_v = model.project(layer, x, positions)
        k = torch.cat([old_k, new_k], dim=1)  # SOLUTION: this layer's keys, [H_kv, S + L, D]
        v = torch.cat([old_v, new_v], dim=1)  # SOLUTION: this layer's values
        grown.append((k, v))
        attended = model.attend(q, k, v)  # SOLUTION: what the new tokens take from the text
        x = model.finish(layer, x, attended)
    return model.logits(x[-1:])[0], grown  # SOLUTION `x[-1:]`: the row that predicts the next token


# %%
check("3.1")

# %% [markdown]
# **On the real model**, against transformers: a prompt in one call, then 30 tokens one by one.

# %%
# NBVAL_CHECK_OUTPUT
step, parts = use("3.1"), smollm2_decoder()
prompt_ids = tokenizer("The three primary colours are", return_tensors="pt").input_ids[0]
timed_step, ids = Timed(step), prompt_ids
logits, cache = timed_step(parts, prompt_ids, parts.empty_cache())
for _ in range(29):
    ids = torch.cat([ids, logits.argmax()[None]])
    logits, cache = timed_step(parts, ids[-1:], cache)
ids = torch.cat([ids, logits.argmax()[None]])
print(tokenizer.decode(ids))
print("the tokens of transformers:", torch.equal(ids, transformers_greedy(model, prompt_ids, 30)))
print(f"the cache: {len(cache)} layers, a pair of {list(cache[0][0].shape)} each")

# %% [markdown]
# **Think first.** A step against the cache computes one row per layer. Recomputing the text, as a loop without a cache
# does, computes as many rows as there are tokens: 5 at the start, 34 at the end. How much longer does it take? And
# the first cell's question: how far below the step's time could it fall?

# %%
lengths = list(range(len(prompt_ids), len(ids) - 1))
some = lengths[::7]
recomputed_s = [seconds(lambda n=n: step(parts, ids[:n], parts.empty_cache()), repeats=2) for n in some]
step_time.draw_step_times(
    {"one row, against the cache": (lengths, timed_step.elapsed_s[1:]), "all rows again": (some, recomputed_s)}
)

# %% [markdown]
# **Read the result.** The cache pays. But look how little: five rows take nowhere near five times as long as one, and
# thirty nowhere near thirty times. Whatever a step spends its time on, most of it is not rows.

# %% [markdown]
# ## 2. What a step reads
#
# *Needs: CPU, and the model.*
#
# To multiply by a weight, the processor must have it, and 135 million weights of four bytes do not fit into any cache
# close to it. So every step fetches every weight from memory, once: for one row, two operations per weight fetched.
# This machine could do far more of them in the time that a weight takes to arrive. That is all the surprise was:
# decoding is **memory-bound**, and its clock is the bandwidth.

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
# An input embedding that is not tied to the output is the exception: of that table a step reads a row per sequence.

# %% [markdown]
# <!-- card 3.2 -->
# Bytes read by one decode step, as a pair (weights, K and V); `contexts` has the length of every sequence in the
# batch. And the tokens per second that a bandwidth allows, all sequences together:
#
# $$\text{bytes} = W b + c \sum_i S_i, \qquad \text{ceiling} = B \cdot \frac{\text{bandwidth}}{\text{bytes}}$$
#
# ```python
# >>> bytes_per_step(7 * 10**9, 2, kv_bytes_per_token=524_288, contexts=[1000])   # 7B in fp16
# (14000000000, 524288000)
# >>> tokens_per_second(14_000_000_000, num_sequences=1, bandwidth=1.4e12)
# 100.0
# ```


# %% tags=["exercise:3.2"]
def bytes_per_step(num_weights, bytes_per_weight, kv_bytes_per_token, contexts):
    weight_bytes = num_weights * bytes_per_weight  # SOLUTION: read once, for all sequences
    kv_bytes = kv_bytes_per_token * sum(contexts)  # SOLUTION: every sequence reads its own
    return weight_bytes, kv_bytes


def tokens_per_second(num_bytes, num_sequences, bandwidth):
    step_s = num_bytes / bandwidth  # SOLUTION: seconds of one step, if it does nothing but read
    return num_sequences / step_s  # SOLUTION: every sequence gets a token


# %%
check("3.2")

# %% [markdown]
# **Think first.** A 7B model in fp16 with 1,000 tokens of context reads 14 GB of weights. How much are K and V beside
# that? And 32 sequences of 4,096 tokens on an 8B model with grouped heads?

# %%
bytes_of, ceiling_of = use("3.2")
examples = {
    "7B, fp16, MHA: 1 x 1,000 tokens": bytes_of(7 * 10**9, 2, 524_288, [1000]),
    "8B, bf16, GQA: 1 x 4,096": bytes_of(8 * 10**9, 2, 131_072, [4096]),
    "8B, bf16, GQA: 32 x 4,096": bytes_of(8 * 10**9, 2, 131_072, 32 * [4096]),
    "SmolLM2, float32: 1 x 44": bytes_of(step_time.NUM_WEIGHTS, 4, 46_080, [44]),
}
step_time.draw_step_bytes(examples)

# %% [markdown]
# **Read the result.** For one sequence the weights are nearly everything: 14 GB and 0.52 GB. With a batch they are
# read once for all, while every sequence brings its own K and V along; 32 long contexts outweigh the model. Keep both
# halves in mind. The first is why batching pays (section 10), the second is why it stops paying, and why so much
# effort goes into K and V.

# %% [markdown]
# **This machine.** How fast memory can be read is measured by copying a quarter of a gigabyte, as in lab 2. The
# engine reads SmolLM2 in float32.

# %%
num_bytes = sum(bytes_of(step_time.NUM_WEIGHTS, 4, 46_080, [44]))
ceiling = ceiling_of(num_bytes, 1, bandwidth())
print(f"{num_bytes / 1e9:.3f} GB a step, {bandwidth() / 1e9:.1f} GB/s: at best {ceiling:.0f} tokens per second")

# %% [markdown]
# <!-- card 3.3 -->
# **Predict.** The engine decodes one sequence on this machine, on one thread. What percentage of that ceiling will it
# reach? (A factor of 2.5 counts as close.)

# %% tags=["exercise:3.3"]
guess_3_3 = 65  # SOLUTION: percent of the ceiling

# %%
check("3.3")

# %%
times_s = {
    "from its arithmetic": 2 * step_time.NUM_WEIGHTS / matmul_rate(),
    "from its bytes": num_bytes / bandwidth(),
    "by the clock": step_time.measured_step_s(),
}
print(f"{1 / times_s['by the clock']:.0f} tokens per second, the ceiling is {ceiling:.0f}")
measured("3.3", step_time.share_of_ceiling())

# %%
step_time.draw_times(times_s, "SmolLM2, one sequence, one thread: what explains a step's time?")

# %% [markdown]
# **Read the result.** Arithmetic explains a small part of the step; bytes explain most of it, and the bytes were
# counted with a pencil. What is missing to the ceiling: a product of a matrix with one row does not read quite as fast
# as a copy does, and the small operations between the products move hardly a byte and take time too. A bound that
# needs no measurement of the model and comes this close is worth remembering.

# %% [markdown]
# <!-- card 3.4 -->
# Now from a data sheet. A 70B model in bf16 on memory of 3.35 TB/s (pretend that it fits on one card). How many tokens
# per second can one sequence get at best? K and V may be left out.

# %% tags=["exercise:3.4"]
answer_3_4 = 24  # SOLUTION: tokens per second

# %%
check("3.4")

# %% [markdown]
# That is the limit for one user, on one of the fastest memories there are, and no cleverness in a kernel
# changes it. Four things do: fewer bytes per weight, more cards that read at once, more sequences per read, more
# tokens per pass (speculation, lab 5). This lab is about the third, and what stands in its way is the memory for K
# and V.

# %% [markdown]
# ## 3. The memory of decoding
#
# *Needs: CPU.*
#
# While it decodes, an engine holds the K and V of dozens of sequences that grow by one token per step, end when they
# like, and often begin with the same text. Lab 1 showed what becomes of memory that is set aside for the longest
# answer. So memory is cut into **blocks** of a few slots, all of one size. A **pool** knows which are free; a **block
# table** per sequence says where its tokens are; both together are a page table, as operating systems have had for
# sixty years (arXiv:2309.06180 brought it here).

# %% [markdown]
# **Think first.** Blocks of 4 slots, a sequence of 7 tokens. When does it need its next block: with its 8th token,
# with its 9th, or has it been there from the start?

# %%
page_pictures.draw_growth([7, 8, 9], block_size=4)

# %% [markdown]
# The 8th token fills the last slot of block 1, and costs nothing. The 9th needs a block. At no time does a sequence
# hold more than three slots that it does not use; it gets them *on demand*, and that is all there is to the idea.

# %% [markdown]
# **The pool** first. Blocks may be shared (two sequences with the same beginning need its K and V once), so each
# block has a **reference count**: how many own it. It is free at zero. And the pool can run out, at any moment, in the
# middle of a step. Whoever asked must then find everything as it was, so that the engine can push one sequence out and
# carry on with the others.

# %% [markdown]
# <!-- card 3.5 -->
# A pool of `num_blocks` blocks, all free. `allocate(n)` gives n of them, each with one owner, or raises
# `OutOfBlocksError` and changes nothing; `acquire` adds an owner; `release` takes one away, and with the last one the
# block is free. Releasing a free block raises `CacheStateError`.
#
# ```python
# >>> pool = BlockPool(3)
# >>> first, second = pool.allocate(2)
# >>> pool.acquire(first); pool.release(first); pool.num_free      # still owned once
# 1
# >>> pool.release(first); pool.num_free
# 2
# ```


# %% tags=["exercise:3.5"]
class BlockPool:
    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self.free_ids = list(range(num_blocks - 1, -1, -1))  # a stack: block 0 lies on top

    @property
    def num_free(self):
        return len(self.free_ids)

    def allocate(self, n):
        if n > self.num_free:  # SOLUTION: are there too few?
            raise OutOfBlocksError(f"{n} blocks wanted, {self.num_free} of {self.num_blocks} free.")
        block_ids = [self.free_ids.pop() for _ in range(n)]  # SOLUTION: n blocks off the stack
        for block_id in block_ids:
            self.ref_counts[block_id] = 1  # SOLUTION: owners of a block that was just given out
        return block_ids

    def acquire(self, block_id):
        if not self.ref_counts[block_id]:
            raise CacheStateError(f"Block {block_id} is free: allocate it instead.")
        self.ref_counts[block_id] = self.ref_counts[block_id] + 1  # SOLUTION: owners from now on

    def release(self, block_id):
        if self.ref_counts[block_id] == 0:  # SOLUTION: does nobody own it?
            raise CacheStateError(f"Block {block_id} is free already.")
        self.ref_counts[block_id] = self.ref_counts[block_id] - 1  # SOLUTION: owners that are left
        if self.ref_counts[block_id] == 0:  # SOLUTION: was that the last one?
            self.free_ids.append(block_id)


# %%
check("3.5")

# %% [markdown]
# **The table.** The token at position p is in the table's block p // block_size, at offset p % block_size. The block's
# *id* says where in the pool that is, and so the slot is
#
# $$\text{slot}(p) \;=\; \text{block\_ids}[\lfloor p / \text{block\_size} \rfloor] \cdot \text{block\_size}
# \;+\; p \bmod \text{block\_size}$$
#
# Neighbouring tokens may be far apart, and only the table knows.

# %% [markdown]
# <!-- card 3.6 -->
# `grow(num_tokens)` makes room for `num_tokens` tokens *in all*, with as many blocks as that needs; `slot` finds a
# position; `free` gives every block back and leaves an empty table. If the pool runs out, `grow` lets
# `OutOfBlocksError` through and nothing has changed.
#
# ```python
# >>> table = BlockTable(pool, block_size=4)      # the pool gives blocks 5, 2, 7
# >>> table.grow(7); table.block_ids
# [5, 2]
# >>> table.slot(5)                               # block 2, offset 1
# 9
# >>> table.grow(8); table.grow(9); table.block_ids
# [5, 2, 7]
# ```


# %% tags=["exercise:3.6"]
class BlockTable:
    def __init__(self, pool, block_size):
        self.pool, self.block_size = pool, block_size
        self.block_ids = []  # in the order of the tokens
        self.num_tokens = 0

    def grow(self, num_tokens):
        if num_tokens < self.num_tokens:
            raise CacheStateError(f"A table of {self.num_tokens} tokens cannot grow to {num_tokens}.")
        num_blocks = -(-num_tokens // self.block_size)  # SOLUTION: blocks for that many tokens
        num_missing = num_blocks - len(self.block_ids)  # SOLUTION: blocks that the table lacks
        self.block_ids += self.pool.allocate(num_missing)
        self.num_tokens = num_tokens  # after the pool has agreed

    def slot(self, position):
        if not 0 <= position < self.num_tokens:
            raise IndexError(f"position {position} has no slot: this table has {self.num_tokens} tokens")
        block_id = self.block_ids[position // self.block_size]  # SOLUTION: the block that holds it
        return block_id * self.block_size + position % self.block_size  # SOLUTION: its slot in the pool

    def free(self):
        for block_id in self.block_ids:  # SOLUTION: the blocks to give back
            self.pool.release(block_id)
        self.block_ids, self.num_tokens = [], 0  # SOLUTION: what an empty table has


# %%
check("3.6")

# %%
# NBVAL_CHECK_OUTPUT
new_pool, new_table = use("3.5"), use("3.6")
pool = new_pool(6)
table, neighbour = new_table(pool, 4), new_table(pool, 4)
for num_tokens in (7, 8, 9):
    table.grow(num_tokens)
    print(f"{num_tokens} tokens: {len(table.block_ids)} blocks, {pool.num_free} free in the pool")
    neighbour.grow(neighbour.num_tokens + 1)
print("slots apart:", [abs(table.slot(p + 1) - table.slot(p)) for p in range(8)])

# %% [markdown]
# ### How to know that it is right
#
# A bug in an allocator has no shape and raises no error. It lets one user's answer be computed from another user's
# text. To find it, a *picture of the contents* is needed, and tensors of K and V are a poor one. But what belongs into
# a slot follows from the tokens up to it, so one number can stand for all of it: slot(p) stores
# **hash(tokens[: p + 1])**. A write stores the hash, a block copy moves it, and every *read* compares what it finds
# with what the sequence's own tokens demand. This is a **shadow** of the cache.

# %% [markdown]
# The rest is chance: sequences start, grow, share a beginning, end, in a pool that is too small for them, and after
# each event every living sequence reads all that it has. `check("3.6")` did that with your table. Now with your pool
# as well, two hundred lives of such a pool:

# %%
# NBVAL_CHECK_OUTPUT
from collections import Counter

from twophase_labs.decode.histories import History

counts, num_reads = Counter(), 0
for seed in range(200):
    history = History(new_pool(8), new_table, num_blocks=8, block_size=4, seed=seed)
    history.run(40)
    counts += history.counts
    num_reads += history.shadow.num_reads
print(f"{num_reads:,} reads, all of the right tokens; {dict(sorted(counts.items()))}")

# %%
page_pictures.draw_history(history.frames, 8, "One of them: who holds which block (hatched: shared, by how many)")

# %% [markdown]
# **Read the result.** Blocks change hands all the time, and a sequence's own lie wherever there was room. Every read
# found the right tokens nevertheless, and several hundred times the pool ran out and nobody was harmed. Now see the
# oracle find something.

# %% [markdown]
# ### Find the bug
#
# Six pieces of code, all of them seen in print in one form or another. Everything that is not shown is as it should
# be: the tables in your 3.6, the pools in your 3.5, the layer in transformers. In a pool, a block is free when its
# count is zero.

# %%
from twophase_labs.decode import suspects

suspects.show_code("table 1", "table 2", "table 3", "pool 1", "pool 2", "layer")

# %% [markdown]
# <!-- card 3.7 -->
# What will be noticed first, in pools of 8 blocks of 4 slots? Each letter once.
#
# - **a** a sequence finds one of its own later tokens at its beginning
# - **b** the shadow finds nothing; only the model's logits are wrong
# - **c** a block is in use twice: after an owner has left, somebody writes where another still reads
# - **d** a sequence that has just grown finds none of its old tokens
# - **e** all reads are right, but the pool runs out although nobody holds the blocks
# - **f** a slot lies outside the memory

# %% tags=["exercise:3.7"]
answer_3_7 = {
    "table 1": "d",  # SOLUTION: a letter
    "table 2": "a",  # SOLUTION: a letter
    "table 3": "e",  # SOLUTION: a letter
    "pool 1": "f",  # SOLUTION: a letter
    "pool 2": "c",  # SOLUTION: a letter
    "layer": "b",  # SOLUTION: a letter
}

# %%
check("3.7")

# %% [markdown]
# Now the oracle, on the same six. For the layer, whose cache is in order, a second oracle: the next token of the real
# model.

# %%
# NBVAL_CHECK_OUTPUT
for name in suspects.SUSPECTS:
    print(f"{name}: {suspects.examine(name)}")
for layers in (suspects.DropsAResidual(model), smollm2_decoder()):
    logits, _ = step(layers, prompt_ids, layers.empty_cache())
    print(f"{type(layers).__name__}: {tokenizer.decode(prompt_ids)}{tokenizer.decode(logits.argmax())!r}")

# %% [markdown]
# **Read the result.** Two tables lose tokens at once. The third is harmless to read and deadly to run: every sequence
# that ends takes a block with it, and a test that looks at one request never sees it. A pool that never runs out
# points behind the tensors: on a CPU an error, on a GPU somebody else's memory. And no oracle sees everything; the
# shadow watches the cache, the comparison with transformers watches the rest. An engine needs both.

# %% [markdown]
# ## 4. Attention over pages
#
# *Needs: CPU, and the model.*
#
# Writing into pages is easy: one slot per token. Reading is the harder half, for attention wants all keys of a
# sequence, in a row. The pool is one tensor `[N, H_kv, PAGE, D]` for K and one for V in each layer, and every sequence
# of the batch has its own length: the batch is **ragged**. A block table is padded with 0 to the longest, and block 0
# is some other sequence's page. That is legal, and a trap.

# %%
tables = {"A": ([6, 1, 3], 9), "B": ([4], 4), "C": ([0, 5], 6)}
draw_block_tables(tables, num_blocks=8, block_size=4)
plt.show()

# %% [markdown]
# Three sequences of 9, 4 and 6 tokens. To read A: take pages 6, 1, 3 *in this order*, put their slots in a row, and
# cut at 9, because what stands in the last three slots is left over from somebody else. With grouped heads, each KV
# head serves `H // H_kv` neighbouring query heads, which need no copy of it: give the query an axis for the group.

# %% [markdown]
# <!-- card 3.8 -->
# One decode step's attention for a ragged batch: `q` `[B, H, D]`, a query per sequence; `k_cache`, `v_cache`
# `[N, H_kv, PAGE, D]`; `block_tables` `[B, W]` padded with 0; `seq_lens` `[B]`. The token's own K and V are in the
# pages already, so a query sees all `seq_lens[b]` positions, and there is no mask.
#
# $$\mathrm{out}_{b,h} = \sum_{p < S_b} \mathrm{softmax}_p(\text{scale} \cdot q_{b,h} \cdot k_{\mathrm{slot}(b,p)})\;
# v_{\mathrm{slot}(b,p)}$$
#
# `gather` gives `[H_kv, S_b, D]`. If the check is not content, look at its picture: which slots were read?


# %% tags=["exercise:3.8"]
def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    def gather(cache, pages, length):
        return cache[pages].transpose(0, 1).flatten(1, 2)[:, :length]  # SOLUTION: slots in a row, [H_kv, length, D]

    page, group = k_cache.shape[2], q.shape[1] // k_cache.shape[1]
    out = torch.empty_like(q)
    for b, length in enumerate(seq_lens.tolist()):
        num_pages = -(-length // page)  # SOLUTION: pages that hold tokens of this sequence
        pages = block_tables[b, :num_pages]  # SOLUTION: which pages, in order
        k, v = gather(k_cache, pages, length), gather(v_cache, pages, length)
        grouped = q[b].unflatten(0, (-1, group))  # SOLUTION: the queries as [H_kv, G, D]
        weights = (grouped @ k.mT * scale).softmax(-1)  # SOLUTION: [H_kv, G, length]
        out[b] = (weights @ v).flatten(0, 1)
    return out


# %%
check("3.8")

# %% [markdown]
# **Which slots does it read?** A trick shows it for any attention, also for a compiled kernel that nobody can look
# into: let the value in slot s be the unit vector with its 1 at place s. Then the output *is* the weights, one number
# for each slot of the pool, own, foreign and empty ones alike. (The check used it too.)

# %%
from dataclasses import replace

from twophase_labs.decode.paged_inputs import one_hot_values, random_pages

attend_pages, lengths = use("3.8"), (9, 4, 6)
inputs = random_pages(lengths, num_blocks=8, head_dim=32, seed=5)
inputs = replace(inputs, q=inputs.q / 8, v_cache=one_hot_values(inputs.v_cache))
weights = attend_pages(*inputs.arguments).mean(1)
print("pages:", [row[: -(-n // 4)].tolist() for row, n in zip(inputs.block_tables, lengths, strict=True)])
page_pictures.draw_reads(weights, lengths, 4, "Weight of every slot, mean over the heads")

# %% [markdown]
# **In the engine.** Your function takes the place of the engine's own decode attention, in all 30 layers, for three
# prompts of different lengths at once.

# %%
# NBVAL_CHECK_OUTPUT

llm = LLM(device="cpu", num_kv_blocks=32, attention_backend=lambda spec: OwnAttention(spec, 16, decode=attend_pages))
prompts = ["Water boils at", "The first three prime numbers are", "A haiku about the sea, in three lines:"]
answers = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True), use_tqdm=False)
for prompt, answer in zip(prompts, answers, strict=True):
    expected = transformers_greedy(model, tokenizer(prompt, return_tensors="pt").input_ids[0], 16)[-16:]
    same = list(answer.outputs[0].token_ids) == expected.tolist()
    print(f"{prompt}{answer.outputs[0].text!r}\n   the tokens of transformers: {same}")

# %% [markdown]
# **Think first.** It is right. Is it good? `gather` copies K and V of every sequence into a row before attention reads
# them: from slow memory, back into slow memory, and from there again. How much longer does that take than attention
# over K and V that lie in a row already?

# %%
from twophase_labs.decode.paged_inputs import in_a_row

wide = random_pages([512] * 8, page=16, num_kv_heads=3, head_dim=64, seed=1)
contiguous = in_a_row(wide)  # K and V of each sequence copied into a row once, before the clock starts
row_s = seconds(contiguous.attend, repeats=9)
paged_s = seconds(lambda: attend_pages(*wide.arguments), repeats=9)
print(f"8 sequences of 512 tokens, one layer: {contiguous.num_bytes / 1e6:.1f} MB of K and V")
print(f"in a row: {1e6 * row_s:.0f} us, gathered from pages first: {1e6 * paged_s:.0f} us")

# %% [markdown]
# **Read the result.** In a step whose time is what it reads, moving every byte three times is the wrong thing to do.
# Pages saved memory and cost bandwidth. What is needed is attention that follows the block table *while* it reads: the
# kernel of the next section.

# %% [markdown]
# ## 5. Reading the pages where they lie
#
# *Needs: Triton (interpreted without a GPU).*
#
# Section 4 gathered a sequence's pages into one tensor and attended to that. It is right, and it is wasteful: the
# gather reads every key and value, writes a copy, and attention reads the copy. In a phase that waits for memory and
# for nothing else, that is three times the wait. A kernel can look into the block table itself and read each page
# where it lies, once.

# %%
# NBVAL_CHECK_OUTPUT
num_tokens, num_kv_heads, head_dim, item_bytes = 1000, 3, 64, 4  # one layer of SmolLM2 in float32
kv_bytes = 2 * num_tokens * num_kv_heads * head_dim * item_bytes
print(f"K and V of {num_tokens:,} tokens in one layer: {kv_bytes:,} bytes")
print(f"gathered first: {3 * kv_bytes:,} bytes (pages read, copy written, copy read)")
print(f"read in place:  {kv_bytes:,} bytes")

# %% [markdown]
# **Who does what.** The kernel is launched with a program per (sequence, KV head). All G query heads of a group read
# the same keys, so one program takes the whole group: K and V come from memory once, not G times. Its G queries are
# the rows of a tile; `tl.dot` wants at least 16 rows, so for SmolLM2 (G = 3) thirteen rows stay empty.

# %% [markdown]
# ```mermaid
# flowchart LR
#     P["program<br/>(sequence, KV head)"] --> Q["its G queries<br/>tile of 16 rows"]
#     P --> L["seq_len<br/>how many keys"]
#     L --> T["tile of BLOCK_N positions"]
#     T --> B["block table:<br/>page of each position"]
#     B --> K["K and V of these slots"]
#     Q --> S["online softmax:<br/>maximum, sum, weighted values"]
#     K --> S
#     S -->|"next tile"| T
#     S --> O["G rows of the output"]
# ```

# %% [markdown]
# **One tile on its way.** A sequence of 10 tokens in pages of 4, seen by a tile of 16 positions. Each position asks
# the table for the page of *its* block, so one tile may read from anywhere in the pool. Six positions are behind the
# end. They have no key, but they are in the tile all the same, and the kernel has to see to it that they do nothing.

# %%
pictures.draw_tile(pages=[5, 2, 7], seq_len=10, start=0, block_n=16, page=4, num_pages=8)

# %% [markdown]
# **Think first.** Slots 2 and 3 of page 7 are not written yet, or still hold what a sequence before this one left
# there. Suppose they are loaded and their weight is 0. What is 0 times what they hold, if that happens to be NaN? And
# if the *score* of a masked position is set to 0, which weight does it get?

# %% [markdown]
# **Base 2.** NVIDIA GPUs have an instruction for 2^x and none for e^x, so kernels compute softmax in base 2: multiply
# the scores by log2(e) once, together with the scale, and use `exp2`. The weights are the same.

# %%
# NBVAL_CHECK_OUTPUT
scores = torch.tensor([1.0, 3.0, 2.0])
in_base_2 = torch.exp2(scores * 1.4426950408889634)
print([round(w, 4) for w in scores.softmax(0).tolist()])
print([round(w, 4) for w in (in_base_2 / in_base_2.sum()).tolist()])

# %% [markdown]
# <!-- card 3.9 -->
# Attention of one query per sequence, straight from the pages. The shell is there, and so is the bookkeeping of the
# online softmax: `row_max`, `row_sum` and `acc` of the keys seen so far. For position $j$ of a sequence
#
# $$\text{page} = \text{table}[\lfloor j / \text{PAGE} \rfloor], \qquad
# \text{row} = (\text{page} \cdot H_{kv} + h_{kv}) \cdot \text{PAGE} + j \bmod \text{PAGE},$$
#
# and K of that row begins D numbers times `row` behind `k_ptr`: the cache is `[N, H_KV, PAGE, D]`.
#
# ```python
# launch_paged_decode(paged_decode_kernel, q, k_cache, v_cache, block_tables, seq_lens, scale)   # [B, H, D]
# ```
#
# gives what gathering gives, whatever the order of the pages, whatever lies in slots that are not in use. (The launcher
# is in the package, `decode/launch.py`: it chooses the tiles' sizes and starts the grid of `B` times `H_KV` programs.)


# %% tags=["exercise:3.9"]
@triton.jit
def paged_decode_kernel(
    q_ptr,  # [B, H, D]
    k_ptr,  # [N, H_KV, PAGE, D]
    v_ptr,  # like k_ptr
    block_tables_ptr,  # int32 [B, W]
    seq_lens_ptr,  # int32 [B], at least 1
    out_ptr,  # [B, H, D]
    qk_scale,  # score scale * log2(e)
    table_row_stride,
    H: tl.constexpr,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,  # rows of the query tile, at least G
    BLOCK_D: tl.constexpr,  # columns of a tile, at least D
    BLOCK_N: tl.constexpr,  # keys per tile
):
    """One program: the G query heads of one KV head, of one sequence."""
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    G: tl.constexpr = H // H_KV
    seq_len = tl.load(seq_lens_ptr + sequence)
    table_ptr = block_tables_ptr + sequence * table_row_stride

    offs_m, offs_d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    heads = kv_head * G + offs_m  # SOLUTION: the query head of each row
    mask_q = (offs_m < G)[:, None] & (offs_d < D)[None, :]  # SOLUTION `(offs_m < G)[:, None]`: rows that hold a head
    offs_q = (sequence * H + heads)[:, None] * D + offs_d[None, :]
    q = tl.load(q_ptr + offs_q, mask=mask_q, other=0.0)

    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, seq_len, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        in_range = positions < seq_len  # SOLUTION: which positions exist
        pages = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0)  # SOLUTION: the page of each position
        rows = (pages.to(tl.int64) * H_KV + kv_head) * PAGE + positions % PAGE  # SOLUTION: the cache row of each key
        offs_kv = rows[:, None] * D + offs_d[None, :]
        mask_kv = in_range[:, None] & (offs_d < D)[None, :]  # SOLUTION: what of the tile may be loaded
        k = tl.load(k_ptr + offs_kv, mask=mask_kv, other=0.0)
        v = tl.load(v_ptr + offs_kv, mask=mask_kv, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale  # SOLUTION: [BLOCK_M, BLOCK_N], base 2
        scores = tl.where(in_range[None, :], scores, float("-inf"))  # SOLUTION: scores, with what is masked taken out
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        p = tl.exp2(scores - new_max[:, None])  # SOLUTION: weights of this tile, not yet divided by their sum
        rescale = tl.exp2(row_max - new_max)  # SOLUTION: what earlier sums are multiplied by
        row_sum = row_sum * rescale + tl.sum(p, axis=1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        row_max = new_max
    out = acc / row_sum[:, None]  # SOLUTION: the weighted mean of the values
    tl.store(out_ptr + offs_q, out.to(out_ptr.dtype.element_ty), mask=mask_q)


# %%
check("3.9")

# %% [markdown]
# **What did it read?** The check used a trick that you can use too. Let the value of slot s be the unit vector
# $e_s$: then the output of a query head *is* the weight it gave to each slot of the pool, other sequences' and unused
# ones included. Your kernel, two sequences, one row per query head:

# %%
# needs: triton
decode_kernel = use("3.9")
case = map_case(Draw(3), [10, 5], heads=4, kv_heads=1, page=4, num_pages=8, peak=2)
out = launch_paged_decode(decode_kernel, **on_device(case)).cpu()
order, _ = slot_order(case, 0)
pages = case.pages[0] + [n for n in range(8) if n not in case.pages[0]]
pictures.draw_weights(
    out[:, :, order].flatten(0, 1),
    rows=[f"sequence {s}, head {h}" for s in range(2) for h in range(4)],
    bounds=range(4, 32, 4),
    bound_names=[f"page {n}" for n in pages],
    xlabel="slots of the pool, pages of sequence 0 first",
    ylabel="query",
    title="Which slots were read, and how much they weigh",
)

# %% [markdown]
# **Read the result.** Sequence 0 sees its three pages, the last one half; sequence 1 sees its own two, elsewhere in
# the pool, and one slot of the second. All else is white, though every slot holds something. A wrong kernel is
# shown to you like this, with the cells outlined that should be otherwise.
#
# And the questions from above: 0 times NaN is NaN, so what is behind the end must not even be loaded; and a score of
# 0 is as good a score as any, and gets a weight. That is why the same mask stands in the kernel three times: for the
# table, for K and V, for the scores.
#
# **Now in SmolLM2's shape**, and by the clock. How large should a tile be? On this machine:

# %%
# needs: triton
print(how_kernels_run())
case = random_case(Draw(4), [150, 64, 9], heads=9, kv_heads=3, dim=64, page=16)
expected, _ = naive_decode(case)
for block_n in (16, 64) if torch.cuda.is_available() else (16, 64, 256):
    launch = partial(launch_paged_decode, decode_kernel, **on_device(case), block_n=block_n)
    difference = (launch().cpu() - expected).abs().max()
    print(f"{block_n:3} keys a tile: {1e3 * seconds(launch, 2):6.1f} ms, largest difference {difference:.0e}")

# %% [markdown]
# **Read the result.** Interpreted, a tile costs nearly the same whatever its size, since it is a few dozen NumPy calls,
# so the largest tile wins. A GPU is another matter: a tile has to fit into the registers and the shared memory of one
# program, so there the launcher takes 64 keys. Nothing but the time changes, and rounding.

# %% [markdown]
# ### Your kernel beside the one in production
#
# The engine's own kernel has the same name and the same arguments, and some more. Its loop lives in a function of its
# own, `attend_range`, because prefill runs it too; the two cells show first the shell, then the loop.

# %%
# needs: triton
from twophase_kernels.attend_range import attend_range
from twophase_kernels.paged_decode import paged_decode_kernel as production_kernel

source_diff(decode_kernel, production_kernel, "paged_decode_kernel: yours and production")

# %%
# needs: triton
source_diff(decode_kernel, attend_range, "the loop: yours and attend_range")

# %% [markdown]
# What production has more, and what it buys:
#
# - **`next_page_ids`, loaded one tile ahead.** To load page ids, and then K and V from where these ids say, is a
#   chain: the compiler cannot start the next tile's K and V early. With the ids at hand it can. Compiled for sm_80 and
#   sm_90, your loop has one tile of K and of V under way while it computes, production at least two.
# - **`do_not_specialize`.** Triton bakes some properties of arguments into a binary. For those that vary from step to
#   step it must not, or serving waits for the compiler now and then.
# - **`q_row_stride`.** q may be a slice of one wide tensor that holds q, k and v; no copy is made.
# - **The scale applied after the maximum.** `score * scale - max` becomes one instruction, a fused multiply-add.
# - **`max_safe`, `finish_softmax`.** A sequence of length 0 gives 0, not NaN. Batches are padded with such sequences
#   when a step is recorded as a CUDA graph.
# - **`KV_FORMAT`, `k_scale_ptr`.** K and V in 8 bits (section 9).
# - **`WINDOW`, `NUM_SINKS`.** Models whose heads see only the last so many tokens, and the first few.
# - **`split`, `lse_ptr`.** The next section.
#
# The first point is a fact about compiled code: this project's tests compile the reference of your kernel and the
# production kernel for GPUs that are not there, and count. What it is worth in time takes a GPU to say.

# %% [markdown]
# ## 6. One query leaves a GPU idle
#
# *Needs: Triton (interpreted without a GPU).*
#
# A GPU is not one processor but many. An H100 SXM has 132 *streaming multiprocessors* (SMs). A program runs on one of
# them and never on two, and what an SM can fetch from memory at a time is bounded. To draw the whole bandwidth of the
# memory, nearly all SMs have to be fetching.
#
# Your kernel starts a program per (sequence, KV head). With a hundred sequences that is plenty. With one?

# %% [markdown]
# <!-- card 3.10 -->
# Somebody asks one question about a long book: a single sequence of 32,768 tokens, a model with 32 query heads and 8
# KV heads, the kernel of section 5, a GPU of 132 SMs. While attention runs, what percentage of the SMs has nothing to
# do?

# %% tags=["exercise:3.10"]
answer_3_10 = 93.9  # SOLUTION: percent of the SMs

# %%
check("3.10")

# %% [markdown]
# More sequences would help, but there is only one. What is long here is the *context*, so that is what has to be
# divided: **split-KV**, known as FlashDecoding (Dao, Haziza, Massa and Sizov, 2023; see also arXiv:2311.01282, section
# 3). Several programs share the keys of one sequence, each attends to its part alone, and a second, small kernel
# merges what they found.

# %%
pictures.draw_busy({"one sequence": 8, "one sequence, 16 splits": 8 * 16, "32 sequences": 8 * 32}, num_sms=132)

# %%
# NBVAL_CHECK_OUTPUT
print("batch  splits  programs  SMs busy  keys that each reads")
for batch, num_splits in ((1, 1), (1, 4), (1, 16), (8, 1), (8, 2), (32, 1)):
    programs = batch * 8 * num_splits
    busy = min(programs, 132) / 132
    print(f"{batch:5}  {num_splits:6}  {programs:8}  {busy:8.0%}  {32768 // num_splits:20,}")

# %% [markdown]
# The last column is what one waits for: the step ends when the last program has read its keys. Sixteen splits make
# sixteen times as many programs and a sixteenth of the reading for each.

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
# Each split hands over its own attention output, and how much all its keys weigh together, as a logarithm: the
# *log-sum-exp* of its scores (LSE; base 2 here, like everything else). A grid has the same number of splits for every
# sequence, so a short one has splits without a single key. They have to say so: output 0, LSE minus infinity.

# %% [markdown]
# <!-- card 3.11 -->
# One program attends to one split. Keys are shared out in whole tiles, the same number for every split; the last ones
# may get fewer, or none.
#
# $$\text{split\_len} = \left\lceil \frac{\lceil \text{seq\_len} / \text{BLOCK\_N} \rceil}{\text{splits}} \right\rceil
# \cdot \text{BLOCK\_N}, \qquad \mathrm{LSE} = \log_2 \sum_j 2^{s_j} = m + \log_2 \sum_j 2^{s_j - m}$$
#
# The loop of 3.9 is now a function, `attend_tiles(..., lo, hi, ...)`; without keys it returns `row_max` = -inf and
# `row_sum` = 0. The partial results are `[B, H, splits, D]` and `[B, H, splits]`:
#
# ```python
# partial, lse = launch_paged_decode_split(kernel, q, k_cache, v_cache, block_tables, seq_lens, scale, num_splits=4)
# ```


# %% tags=["exercise:3.11"]
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
    hi = tl.minimum(lo + split_len, seq_len)  # SOLUTION: the position behind its last one

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
    rows = query_rows * num_splits + split  # SOLUTION: rows of [B, H, splits]
    tl.store(out_ptr + rows[:, None] * D + offs_d[None, :], acc / sum_safe[:, None], mask=mask_q)
    tl.store(lse_ptr + rows, lse, mask=in_group)


# %%
check("3.11")

# %% [markdown]
# **Who read what.** One sequence of 37 tokens, tiles of 16, four splits; a row per split. (Queries of zero: every key
# of a split weighs the same.)

# %%
# needs: triton
split_kernel = use("3.11")
case = map_case(Draw(5), [37], heads=1, kv_heads=1, page=4, num_pages=11)
partial_out, lse = launch_paged_decode_split(split_kernel, **on_device(case), num_splits=4, block_n=16)
order, _ = slot_order(case, 0)
pictures.draw_weights(
    partial_out[0, 0].cpu()[:, order[:37]],
    rows=[f"split {s}, LSE {x:.2f}" for s, x in enumerate(lse[0, 0].tolist())],
    bounds=(16, 32),
    bound_names=("tile 0", "tile 1", "tile 2"),
    xlabel="position in the sequence",
    ylabel="",
    title="The keys of each split, and what they weigh in its own output",
)

# %% [markdown]
# **Read the result.** Three tiles, four splits: the fourth has nothing to read and says so. The third has five keys
# and gives each of them a fifth, for it knows nothing of the other 32. Added up as they are, the three outputs would
# count these five keys far too much. How much each split really counts is in its LSE: log2 of 16, of 16, and of 5.

# %% [markdown]
# <!-- card 3.12 -->
# Merge the splits of one row (one query head of one sequence):
#
# $$m = \max_s \mathrm{LSE}_s, \qquad w_s = 2^{\mathrm{LSE}_s - m}, \qquad
# \mathrm{out} = \frac{\sum_s w_s\, \mathrm{out}_s}{\sum_s w_s}, \qquad \mathrm{LSE} = m + \log_2 \sum_s w_s$$
#
# This is exact: no score has to be computed again. A split without keys weighs nothing, and its row of `partial` is
# not even read, since nobody promised to have written there. A row whose splits are *all* empty gives 0 and -inf.
# `BLOCK_S` is a power of two, so there are lanes for splits that do not exist.
#
# ```python
# out, lse = launch_merge_splits(merge_splits_kernel, partial, partial_lse)   # [B, H, splits, D] -> [B, H, D]
# ```


# %% tags=["exercise:3.12"]
@triton.jit
def merge_splits_kernel(
    partial_ptr,  # fp32 [rows, num_splits, D]
    partial_lse_ptr,  # fp32 [rows, num_splits], base 2; -inf: the split had no keys, and its partial is not read
    out_ptr,  # fp32 [rows, D]
    lse_ptr,  # fp32 [rows]
    num_splits,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,  # at least num_splits
):
    """One program merges the splits of one row: one query head of one sequence."""
    row = tl.program_id(0)
    offs_s, offs_d = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    lse_ptrs = partial_lse_ptr + row * num_splits + offs_s
    lse = tl.load(lse_ptrs, mask=offs_s < num_splits, other=float("-inf"))  # SOLUTION: LSE per lane
    m = tl.max(lse, axis=0)
    m_safe = tl.where(m == float("-inf"), 0.0, m)  # SOLUTION: the maximum, or a number if every split is empty
    weight = tl.exp2(lse - m_safe)  # SOLUTION: weight of each split
    has_keys = lse > float("-inf")  # SOLUTION: splits whose row is to be read
    mask = has_keys[:, None] & (offs_d < D)[None, :]
    offs = (row * num_splits + offs_s)[:, None] * D + offs_d[None, :]
    partial = tl.load(partial_ptr + offs, mask=mask, other=0.0)
    total = tl.sum(weight, axis=0)
    total_safe = tl.where(total == 0, 1.0, total)
    out = tl.sum(weight[:, None] * partial, axis=0) / total_safe  # SOLUTION: [BLOCK_D], the splits' outputs merged
    tl.store(out_ptr + row * D + offs_d, out, mask=offs_d < D)
    tl.store(lse_ptr + row, m + tl.log2(total_safe))  # SOLUTION `m + tl.log2(total_safe)`: the LSE of all keys


# %%
check("3.12")

# %% [markdown]
# **Does it matter how the keys are divided?** It must not. Two sequences of 90 and 7 tokens, through your two
# kernels, against a loop over positions. And what do the partial results cost?

# %%
# NBVAL_CHECK_OUTPUT
# needs: triton
merge_kernel = use("3.12")
case = random_case(Draw(6), [90, 7], heads=4, kv_heads=2, dim=32, page=16)
expected, _ = naive_decode(case)
kv_bytes = 2 * (90 + 7) * 2 * 32 * 4
for num_splits in (1, 2, 3, 6, 13):
    partial_out, lse = launch_paged_decode_split(split_kernel, **on_device(case), num_splits=num_splits, block_n=16)
    merged, _ = launch_merge_splits(merge_kernel, partial_out, lse)
    same, num_empty = torch.allclose(merged.cpu(), expected, atol=1e-5), int(lse.isinf().sum()) // 4
    extra = 2 * (partial_out.nbytes + lse.nbytes) / kv_bytes
    print(f"{num_splits:2} splits: same {same}, {num_empty:2} empty, written and read again: {extra:4.0%} of K and V")

# %% [markdown]
# **Read the result.** Same output for every division, with empty splits and without. But splitting is not free: each
# split writes D + 1 numbers per query head, in fp32, and the merge reads them again. For a context as short as this
# one that is more than it saves. Production therefore splits only if the programs would not fill the GPU about twice
# over; then it aims at four programs per SM, so that each SM has loads under way while one of them computes, but
# never goes so far that a program has less than 128 keys to read:

# %%
# NBVAL_CHECK_OUTPUT
from twophase_kernels.paged_decode import choose_num_splits

print("splits that production chooses, 8 KV heads, 132 SMs")
print("context   " + "".join(f"batch {batch:<5}" for batch in (1, 4, 16, 64)))
for context in (128, 1_024, 8_192, 32_768):
    splits = [choose_num_splits(batch, 8, context, 132) for batch in (1, 4, 16, 64)]
    print(f"{context:7,}   " + "".join(f"{n:<11}" for n in splits))

# %% [markdown]
# **By the clock** this takes a GPU: the interpreter runs one program after another, and has no SM that could idle.

# %%
# needs: triton
if device.type == "cuda":
    long = random_case(Draw(7), [8192], heads=32, kv_heads=8, dim=64, page=64)
    for num_splits in (1, 2, 4, 8, 16, 32):
        launch = partial(launch_paged_decode_split, split_kernel, **on_device(long), num_splits=num_splits)
        torch.cuda.synchronize()
        elapsed_s = seconds(lambda launch=launch: (launch(), torch.cuda.synchronize()), 10)
        print(f"{num_splits:2} splits, {8 * num_splits:3} programs: {1e6 * elapsed_s:6.0f} us")
else:
    print("no GPU here: not measured")

# %% [markdown]
# ### Beside production
#
# In the production kernel of section 5 you have seen the split already: it *is* the decode kernel, and one split is a
# case like any other. Here is the merge.

# %%
# needs: triton
from twophase_kernels.merge_splits import merge_splits_kernel as production_merge

source_diff(merge_kernel, production_merge, "merge_splits_kernel: yours and production")

# %% [markdown]
# Production takes the splits sixteen at a time, so any number of them fits, and twice: once for the maximum, once for
# the sum. That the number 16 is fixed has a reason besides. Floating-point sums depend on their order; if a lane's
# splits did not depend on how many splits the launch had, neither does the order, and a run of empty splits at the end
# changes no bit of the result. `out` may be of a narrower type and the LSE may be left out. The partial results stay
# fp32 to the end: rounded first, they would lose a digit for nothing.

# %% [markdown]
# ## 7. Neighbouring threads, neighbouring addresses
#
# *Needs: CPU.*
#
# Counting bytes assumed that memory hands out bytes. It does not. It hands out *lines*: 64 bytes on most CPUs; on an
# NVIDIA GPU sectors of 32, four to a line of 128 (CUDA C++ Best Practices Guide, 'Coalesced Access to Global Memory').
# Who wants four bytes gets the whole unit, and pays for it.
#
# On a GPU, 32 neighbouring threads (a *warp*) execute one load together. The hardware looks at the 32 addresses and
# fetches every unit that one of them touches, each once: **coalescing**. Neighbouring threads with neighbouring
# addresses share units. With distant addresses, each drags in its own.

# %%
pictures.draw_lines_of_a_warp((1, 2, 4, 8), item_bytes=4, line_bytes=32)

# %% [markdown]
# Nothing here was measured: it is arithmetic on addresses. Write it for any addresses, and you can read off what an
# access costs before it is run.

# %% [markdown]
# <!-- card 3.13 -->
# How many units of memory are touched when `num_bytes` are read at each of the `addresses` (an int64 tensor)? Unit n
# is the bytes from n · `unit_bytes` up to the next one's; a unit counts once, however many want something from it.
#
# ```python
# units_touched(torch.tensor([0, 4, 8]), 4, 32) == 1        # all in the first unit
# units_touched(torch.tensor([0, 32, 64]), 4, 32) == 3      # each in its own
# units_touched(torch.tensor([30]), 4, 32) == 2             # bytes 30 to 33 lie in two
# ```


# %% tags=["exercise:3.13"]
def units_touched(addresses, num_bytes, unit_bytes):
    first = addresses // unit_bytes  # SOLUTION: the unit of each item's first byte
    last = (addresses + num_bytes - 1) // unit_bytes  # SOLUTION: the unit of each item's last byte
    touched = set()
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        touched.update(range(begin, end + 1))  # SOLUTION `range(begin, end + 1)`: all units of this item
    return len(touched)  # SOLUTION: how many


# %%
check("3.13")

# %% [markdown]
# **A warp at different strides.** 32 threads read four bytes each, `stride` numbers apart.

# %%
# NBVAL_CHECK_OUTPUT
units = use("3.13")
lanes = torch.arange(32)
for stride in (1, 2, 4, 8, 16, 32):
    sectors = units(lanes * stride * 4, 4, 32)
    print(f"stride {stride:2}: {sectors:2} sectors of 32 bytes, {32 * 4 / (32 * sectors):5.1%} of what moves is used")
print(f"stride 1, but starting at byte 20: {units(20 + lanes * 4, 4, 32)} sectors")

# %% [markdown]
# From stride 8 on every thread has a sector of its own, and it gets no worse than that: an eighth of the bandwidth is
# of use. This machine's processor has no warps, but it has lines, and those can be felt.

# %% [markdown]
# <!-- card 3.14 -->
# **Think first.** An array of 256 MiB in float32, far more than the caches hold. One pass adds up all its numbers,
# another only every 16th. A line of this machine's memory is 64 bytes. How long does the second pass take, in percent
# of the first?

# %% tags=["exercise:3.14"]
guess_3_14 = 95  # SOLUTION: percent of the time of a full pass

# %%
check("3.14")

# %%
from twophase_labs.decode.strides import CPU_LINE_BYTES, STRIDES, time_strides

elapsed_s = time_strides(STRIDES, repeats=5)
measured("3.14", 100 * elapsed_s[16] / elapsed_s[1])

# %%
some = torch.arange(0, 2**20, 4)  # the count is the same for every part of the array
lines = {stride: units(some[::stride], 4, CPU_LINE_BYTES) for stride in STRIDES}
pictures.draw_strides(elapsed_s, lines, line_bytes=CPU_LINE_BYTES, where="one CPU thread")

# %% [markdown]
# **Read the result.** Up to stride 16 the time hardly falls, though at 16 only one number in sixteen is wanted: every
# line still has to come. From there on lines are left out, and the time falls. Memory is paid by the line. Far
# to the right the measured time may stay above the count: the processor fetches ahead when it sees a regular pattern,
# and with long strides that works less well, and addresses have to be translated page by page of virtual memory.
#
# Where there is a GPU, the same pass runs on it, with its sectors of 32 bytes:

# %%
from twophase_labs.decode.strides import GPU_SECTOR_BYTES

if device.type == "cuda":
    for stride, stride_s in time_strides(STRIDES, device, repeats=10).items():
        sectors = units(some[::stride], 4, GPU_SECTOR_BYTES)
        print(f"stride {stride:3}: {1e6 * stride_s:7.0f} us, {sectors:7,} sectors in each MiB of numbers")
else:
    print("no GPU here: not measured")

# %% [markdown]
# ### The layout of K and V
#
# A cache of N pages can lie in memory in several orders. What does each cost? Decode does two things with it: a step
# *writes* one token's K (one row per head), and it *reads* all pages of a head. Take D = 64 numbers of 2 bytes, pages
# of 16, and sectors of 32 bytes.

# %% [markdown]
# <!-- card 3.15 -->
# An engine keeps K as `[N, H_kv, D, PAGE]`: within a page, the 16 tokens' first numbers, then their second numbers,
# and so on. (There are kernels that like that: thread t takes token t, and neighbours read neighbours.) Compared with
# `[N, H_kv, PAGE, D]`, what becomes dearer?
#
# **a** reading a head's full pages: it moves 16 times as many sectors<br/>
# **b** writing one token's K: it touches 16 times as many sectors<br/>
# **c** both<br/>
# **d** neither: the same bytes are read and written

# %% tags=["exercise:3.15"]
answer_3_15 = "b"  # SOLUTION: one letter

# %%
check("3.15")

# %% [markdown]
# Your function knows, given the addresses. `view` lays the four axes out in memory in the layout's order, and
# `permute` brings them into one order again, so that the element (page, head, slot, dim) is found in each.

# %%
# NBVAL_CHECK_OUTPUT
sizes = {"N": 8, "H": 3, "P": 16, "D": 64}
print("layout    one token's K   a head's page   32 lanes along D   32 lanes along tokens")
for layout in ("NHPD", "NPHD", "NHDP"):
    offsets = torch.arange(8 * 3 * 16 * 64).view([sizes[axis] for axis in layout])
    key = 2 * offsets.permute([layout.index(axis) for axis in "NHPD"])  # addresses of [page, head, slot, dim]
    accesses = (key[5, 1, 7], key[5, 1], key[5, 1, 7, :32], key[4:6, 1, :, 0])
    counts = [units(access.flatten(), 2, 32) for access in accesses]
    print(f"{layout}      {counts[0]:13} {counts[1]:15} {counts[2]:18} {counts[3]:23}")

# %% [markdown]
# **Read the result.** (P is the slot in the page.) A head's page is 64 sectors in any layout: whoever takes all of it
# pays the same. The differences are in the parts. In `NHDP` one token's K is scattered over 64 sectors, one for each
# of its numbers, where 4 would do, and every decode step writes one token per sequence, head and layer. And threads
# that divide the work along D find neighbours in the first two layouts only.
#
# `NPHD` looks as good as `NHPD`, counted in sectors. It differs in how far one reads on without a jump: a head's page
# is one run of 2,048 bytes in `NHPD`, and 16 runs of 128 bytes in `NPHD`. Long runs are what copy engines and
# prefetchers are made for, and a page of one head can be addressed by one number. This engine, whose programs read
# one head each, uses `[N, H_kv, PAGE, D]`.

# %% [markdown]
# Why did the kernel of section 5 get this right without a word about threads? It says which *tile* it wants; which
# thread takes which element is the compiler's choice, and it lets neighbours run along D, 16 bytes for each thread.
# But only if it can prove that every row starts at a multiple of 16 bytes. D and PAGE are constants of the kernel for
# that reason. Hidden from the compiler, the same loads came out as 144 loads of two bytes, and the registers ran over;
# known, as 32 of sixteen bytes. (Read off compiled code while the production kernels were written; not timed.)

# %% [markdown]
# ## 8. One text, several continuations
#
# *Needs: CPU, and the model.*
#
# "Give me four answers to choose from", "keep the three best beams": from one point on, a text goes on in several ways,
# and up to there K and V are the same. Nobody wants to store them four times, or even to copy them. The blocks are
# counted already, so a **fork** is cheap: a second table with the same blocks, each with one owner more. Then both
# write their next token.

# %% [markdown]
# **Think first.** Ten tokens in blocks of 4: two full blocks, and one with two tokens. B is forked from A. Both write
# token 10, and these tokens differ. Which of the three blocks can go on being shared, and what must happen to the
# others, and when?

# %%
before = {"A": ([0, 1, 2], 10), "B": ([0, 1, 2], 10)}
draw_block_tables(before, num_blocks=6, block_size=4, columns=6)
plt.show()
after = {"A": ([0, 1, 2], 11), "B": ([0, 1, 3], 11)}
draw_block_tables(after, num_blocks=6, block_size=4, columns=6)
plt.show()

# %% [markdown]
# Above, just after the fork; below, after both have written. Full blocks are never written again, so they stay shared
# for as long as somebody needs them. The partial one is shared only until somebody is about to write into it: who
# comes first takes a block of its own, copies the contents, and leaves. The other is then alone in the old one, and
# may write. This is **copy-on-write**; an operating system's `fork` does the same with pages of memory.

# %% [markdown]
# <!-- card 3.16 -->
# `fork(table)` gives a second table of the same tokens and takes no block. `prepare_write(table)` makes sure that the
# next token, at position `table.num_tokens`, can be written without changing what others read, and returns the block
# copies to do first, as pairs (source, target): none, or one. If there is no block for the copy, `OutOfBlocksError`
# goes through, and nothing has changed.
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


# %% tags=["exercise:3.16"]
def fork(table):
    twin = type(table)(table.pool, table.block_size)  # an empty table of the same kind
    for block_id in table.block_ids:  # SOLUTION: the blocks that get one owner more
        table.pool.acquire(block_id)
    twin.block_ids = list(table.block_ids)  # SOLUTION: the twin's blocks
    twin.num_tokens = table.num_tokens
    return twin


def prepare_write(table):
    if table.num_tokens % table.block_size == 0:  # SOLUTION: will the next token begin a new block?
        return []
    shared = table.block_ids[-1]  # SOLUTION: the block it would be written into
    if table.pool.ref_counts[shared] == 1:  # SOLUTION: is that block this table's alone?
        return []
    (own,) = table.pool.allocate(1)  # raises before anything has changed
    table.pool.release(shared)  # SOLUTION: one owner less for the shared block
    table.block_ids[-1] = own  # SOLUTION: what stands in the table now
    return [(shared, own)]  # SOLUTION: the copy that has to be done


# %%
check("3.16")

# %% [markdown]
# The oracle of section 3 again, with your pool and your tables. In these histories sequences are forked as well, and a
# block copy moves the hashes of its slots. A forgotten copy, or one too late, would be a read of somebody else's
# token.

# %%
# NBVAL_CHECK_OUTPUT
split, before_writing = use("3.16")
counts = Counter()
for seed in range(200):
    ways = {"fork": split, "prepare_write": before_writing}
    history = History(new_pool(10), new_table, num_blocks=10, block_size=4, seed=seed, **ways)
    history.run(40)
    counts += history.counts
print(f"no wrong read; {dict(sorted(counts.items()))}")

# %% [markdown]
# **Four samples of one prompt**, on the real model: your pool, tables and forks, your attention over pages. Each
# sample draws with a seed of its own. For comparison the same four, each with a copy of the prompt to itself.

# %%
from twophase_labs.decode.branches import Branch, PagedModel, draw_samples, search_beams


def sample(is_forked, prompt_ids, num_samples=4, num_new=10):
    pool = new_pool(64)
    paged = PagedModel(smollm2_decoder(), pool, 4, attend_pages, before_writing)
    tables = [new_table(pool, 4) for _ in range(1 if is_forked else num_samples)]
    first, *_ = [paged.read_prompt(table, prompt_ids) for table in tables]
    while len(tables) < num_samples:
        tables.append(split(tables[0]))
    branches = [Branch(table, list(prompt_ids)) for table in tables]
    draw_samples(paged, branches, first, num_new)
    return paged, branches


# %%
prompt = "Once upon a time there was a small robot that lived in a lighthouse and"
start_ids = tokenizer(prompt).input_ids
forked, samples = sample(True, start_ids)
apart, same_samples = sample(False, start_ids)
for branch in samples:
    print(repr(tokenizer.decode(branch.ids[len(start_ids) :])))

# %%
# NBVAL_CHECK_OUTPUT
print("the same tokens as without sharing:", [b.ids for b in samples] == [b.ids for b in same_samples])
print(f"blocks: {forked.most_blocks} forked, {apart.most_blocks} apart; copied: {forked.copied}")

# %%
tables = {name: (branch.table.block_ids, branch.table.num_tokens) for name, branch in zip("ABCD", samples, strict=True)}
draw_block_tables(tables, num_blocks=forked.most_blocks, block_size=4)
plt.show()

# %% [markdown]
# **Read the result.** The prompt's full blocks are there once, with four owners; what each sample wrote is its own.
# Of the partial block there are three copies, not four: the last owner kept the original. And the tokens are those of
# four separate runs, which is the point of it all.

# %% [markdown]
# **Beams** fork in every step. From each beam its likeliest continuations are scored, the best three of all stay; one
# beam may go on twice and another not at all. Tables come and go as fast as tokens, and nothing is ever copied but a
# partial block.

# %%
# NBVAL_CHECK_OUTPUT
pool = new_pool(64)
paged = PagedModel(smollm2_decoder(), pool, 4, attend_pages, before_writing)
root = Branch(new_table(pool, 4), list(start_ids))
first = paged.read_prompt(root.table, start_ids)
beams, num_dropped = search_beams(paged, root, first, split, width=3, num_new=12)
for beam in beams:
    print(f"{beam.log_prob:6.2f}  {tokenizer.decode(beam.ids[len(start_ids) :])!r}")
print(f"{num_dropped} beams dropped, {len(paged.copied)} blocks copied, at most {paged.most_blocks} in use")
for beam in beams:
    beam.table.free()
print(f"free in the end: {pool.num_free} of {pool.num_blocks}")

# %% [markdown]
# **Read the result.** Twelve steps, three beams, and the pool is whole in the end. With K and V in one
# tensor per beam, every step would have moved the whole text three times. Section 9 makes the blocks themselves
# smaller.
#
# **Play.** Other widths; a longer prompt; a pool so small that it runs out (who should be dropped then?).

# %% [markdown]
# ## 9. A byte instead of two
#
# *Needs: CPU, and the model.*
#
# A decode step waits for bytes, so fewer bytes are less waiting; and they leave room for more sequences. The weights
# can be stored in fewer bits (a later chapter), and so can K and V: in **int8**, a whole number from -127 to 127 per
# element. What is lost is precision, and you should know how much before anybody asks.

# %% [markdown]
# An int8 is a number of *steps*; the size of a step, the **scale**, has to be stored beside it. One scale for how
# many numbers? Look at real values first: V of one layer of SmolLM2, for a text of a hundred and fifty tokens.
#
# **Think first.** If all of them shared one scale, its step would have to suit the largest. Who would pay for that?

# %%
reading = needle.read(100)
needle_pictures.draw_row_maxima(reading.values[26], "V of layer 26: how large the rows are")

# %% [markdown]
# **Read the picture.** With one scale for all, the step would be 1/127 of the dashed line. Most rows are less than
# half as large as that and would be stored twice as coarsely as they need be; the first token's, far below the others,
# in a handful of the 255 numbers there are. There is a second reason against a common scale: tokens *arrive*. If the
# next one were louder than all before, everything stored would have to be stored again. A scale **per token and
# head** is found when the token is written, and never touched again.

# %% [markdown]
# <!-- card 3.17 -->
# Store rows of K or V (`x` is `[T, H_kv, D]`) as int8 and a float32 scale per token and head (`[T, H_kv]`); then get
# them back.
#
# $$s_{th} = \frac{\max_d |x_{thd}|}{q_{max}}, \qquad n_{thd} = \mathrm{round}\!\left(\frac{x_{thd}}{s_{th}}\right),
# \qquad x_{thd} \approx n_{thd}\, s_{th}$$
#
# `q_max` is 127; with 7 the numbers would fit into 4 bits. Scales are above zero, even for a row of zeros.
#
# ```python
# >>> data, scale = quantise(torch.tensor([[[3.0, -6.35, 1.52]]]))
# >>> data, scale                       # the largest magnitude becomes ±127, here in steps of 0.05
# (tensor([[[  60, -127,   30]]], dtype=torch.int8), tensor([[0.0500]]))
# >>> dequantise(data, scale)           # 1.52 was between two steps
# tensor([[[ 3.0000, -6.3500,  1.5000]]])
# ```


# %% tags=["exercise:3.17"]
def quantise(x, q_max=127):
    x = x.float()
    largest = x.abs().amax(-1)  # SOLUTION: the largest magnitude in each row, [T, H_kv]
    scale = largest.clamp(min=1e-30) / q_max  # SOLUTION: the size of a step, above zero
    data = (x / scale[..., None]).round()  # SOLUTION: how many steps each element is, a whole number
    return data.to(torch.int8), scale


def dequantise(data, scale):
    return data.float() * scale[..., None]  # SOLUTION: the elements again, float32


# %%
check("3.17")

# %% [markdown]
# **Bytes.** The next cell asks the engine's own cache what a token takes, K and V in all layers, scales included. A
# scale is 4 bytes for every 64 or 128 elements, so that half is not quite half.

# %%
# NBVAL_CHECK_OUTPUT
for name, shape in {"SmolLM2": SMOLLM2, "Llama-3-8B": LLAMA_3_8B}.items():
    sizes = (shape.num_layers, shape.num_kv_heads, shape.head_dim, 16, torch.bfloat16)
    two, one = KVCacheSpec(*sizes).bytes_per_token, KVCacheSpec(*sizes, "int8").bytes_per_token
    print(f"{name:10}  bf16 {two:>7,} bytes per token   int8 {one:>6,}   {one / two:.1%}")

# %% [markdown]
# <!-- card 3.18 -->
# **Think first.** SmolLM2's keys for that text, all layers, stored and read back. How large is the error (its root
# mean square), in percent of the keys' own root mean square? A factor of 2 counts as close.

# %% tags=["exercise:3.18"]
guess_3_18 = 1.0  # SOLUTION: percent

# %%
check("3.18")

# %%
store, read_back = use("3.17")


def stored(q_max):
    return lambda x: read_back(*store(x, q_max))


for bits, q_max in {8: 127, 6: 31, 4: 7, 3: 3}.items():
    of_k, of_v = (100 * needle.relative_error(x, stored(q_max)) for x in (reading.keys, reading.values))
    print(f"{bits} bits: error of K {of_k:5.2f} %, of V {of_v:5.2f} %")
one_scale = 100 * needle.relative_error(reading.values, needle.stored_with_one_scale)
print(f"8 bits, but one scale for all tokens and heads of a layer: error of V {one_scale:.2f} %")
measured("3.18", 100 * needle.relative_error(reading.keys, stored(127)))

# %% [markdown]
# **Read the result.** A bit less doubles the step, and with it the error. But an error of K is not yet an error of the
# model: scores are sums over 64 elements, whose errors partly cancel, and a softmax that is sure of itself
# does not care about a little noise. What counts is what comes out.

# %% [markdown]
# ### A needle in a haystack
#
# So ask the model something. Five facts are hidden in a text, at five depths; the model reads it, the K and V of the
# text are stored and read back, and then it is asked for each fact. We do not only look whether it finds the needle
# but how *surprised* it is by it, in bits: 0 is certainty, and each bit halves the probability. The grid is drawn
# for three lengths of text and three ways of storing.
#
# **Think first.** What will int8 do to it? Where will 3 bits hurt first: in the short text, or in the long one?

# %%
lengths = (100, 300, 1_000)
ways = {"float32": None, "int8": stored(127), "3 bits": stored(3)}
panels = {
    name: {needle.read(n).num_tokens: needle.ask(needle.read(n), way) for n in lengths} for name, way in ways.items()
}
needle_pictures.draw_needles(panels)

# %% [markdown]
# **Read the result**, and believe the picture rather than this text. In int8 we have seen no needle lost and next to
# no change in surprise, at any of these lengths. With 3 bits they fade. The shortest text kept all of its needles, the
# longer two lost some: every further key brings noise of its own into the softmax, and the right key has to
# stand out among more wrong ones. So long contexts suffer first, and a test with short prompts says little. Between
# the two longer texts we saw no clear order; five needles are too few for one.
#
# Nor does it show more than it tested: 135 million weights, a thousand tokens, single facts. A model with larger
# outliers, or a task that needs many facts at once, may be harmed where this one is not. Lab 5 builds a gate from
# several such tests; the rule is to measure your own model, at your own lengths.

# %% [markdown]
# **Against the engine's own.** The engine's cache stores int8 in the same way (`LLM(kv_cache_dtype="int8")`). Your
# numbers against those of its quantiser, for all keys of the long text:

# %%
from twophase_kernels.quant import quantise_reference

long_keys = torch.stack(needle.read(1_000).keys).flatten(0, 1)
data, scale = store(long_keys)
engines_data, engines_scale = quantise_reference(long_keys, "int8")
differing = int((data != engines_data).sum())
largest = int((data.int() - engines_data.int()).abs().max())
print(f"{differing} of {data.numel():,} numbers differ, by at most {largest}")

# %% [markdown]
# (A number that lies between two steps to the last bit may be rounded either way.)

# %% [markdown]
# ## 10. Reading the weights for many at once
#
# *Needs: CPU, and the model.*
#
# Section 2 found that a decode step mostly reads weights, and uses each of them for a single token. The weights do not
# depend on the sequence. So let several sequences take their step together: the weights are read **once for all of
# them**. K and V are each sequence's own, and have to be read for each.

# %%
step_pictures.draw_reuse()

# %% [markdown]
# The longer blue bar is paid once. That cannot go on for ever: each further sequence also brings arithmetic,
# two operations per weight. At some batch the arithmetic takes as long as the bytes, and from there on a larger batch
# takes proportionally longer. This is the *ridge* of lab 2, seen from the side of the batch.

# %% [markdown]
# <!-- card 3.19 -->
# `work` is what a step takes: `work.weight_bytes`, and for each sequence `work.kv_bytes` and `work.flops`. `machine`
# has a `bandwidth` (bytes/s) and a `flop_rate`. Moving and computing overlap, so the slower of the two is the time:
#
# $$t(B) = \max\!\left(\frac{W + B\,k}{\text{bandwidth}},\; \frac{B\,f}{\text{rate}}\right)$$
#
# Then give the smallest whole batch whose arithmetic takes at least as long as its bytes, or `None` if there is none.
#
# ```python
# >>> model, gpu = LLAMA_3_8B.decode_work(context=0, bytes_per_value=2), A100
# >>> ridge_batch(model, gpu)           # with no context this is the ridge of the machine, 200.6 FLOP per byte
# 201
# ```


# %% tags=["exercise:3.19"]
def step_seconds(work, machine, batch):
    moving = (work.weight_bytes + batch * work.kv_bytes) / machine.bandwidth  # SOLUTION: seconds to move all bytes
    computing = batch * work.flops / machine.flop_rate  # SOLUTION: seconds of arithmetic
    return max(moving, computing)  # SOLUTION: the seconds of the step


def ridge_batch(work, machine):
    one_token, one_context = work.flops / machine.flop_rate, work.kv_bytes / machine.bandwidth  # seconds of each
    gap = one_token - one_context  # SOLUTION: by how much more a sequence adds to the arithmetic than to the moving
    if gap <= 0:  # SOLUTION: does the arithmetic never catch up?
        return None
    return math.ceil(work.weight_bytes / machine.bandwidth / gap)  # SOLUTION: the smallest batch where it has


# %%
check("3.19")

# %% [markdown]
# **Think first.** Llama-3-8B in 16 bits leaves the memory-bound side of an A100 at 201 sequences. That is with empty
# contexts. How many does it take with 500 tokens each? With 1,000?

# %%
# NBVAL_CHECK_OUTPUT
time_of, ridge_of = use("3.19")
print("Llama-3-8B, 16 bits: the batch that leaves the memory-bound side")
for context in (0, 100, 300, 500, 1_000, 8_000):
    work = LLAMA_3_8B.decode_work(context, bytes_per_value=2)
    on_a100, on_h100 = (ridge_of(work, gpu) or "never" for gpu in (A100, H100))
    print(f"context {context:>5,}:  A100 {on_a100:>6}  H100 {on_h100:>6}")

# %% [markdown]
# **Read the result.** With a thousand tokens of context *no* batch is large enough: reading one sequence's K and V
# takes longer than all the arithmetic of its token. Batching pays for the weights, not for the cache. This is why the
# cache is made smaller by every means (grouped heads in lab 1, bytes in section 9), and why decode on a GPU stays
# memory-bound in practice.

# %% [markdown]
# <!-- card 3.20 -->
# **Think first.** SmolLM2 on this machine, contexts of 64 tokens. How many times as many tokens per second do 16
# sequences give as one alone? The ceilings of this machine are in the next cell, if you want to compute; a factor of
# 2 counts as close.

# %%
here, small_work = this_machine(), SMOLLM2.decode_work(BATCH_CONTEXT, bytes_per_value=4)
print(f"this machine: {here.bandwidth / 1e9:.1f} GB/s copied, {here.flop_rate / 1e9:.0f} GFLOP/s in float32")
print(f"its ridge: {here.flop_rate / here.bandwidth:.1f} FLOP per byte")
print(f"SmolLM2 leaves the memory-bound side at a batch of {ridge_of(small_work, here)}, by your formula")

# %% tags=["exercise:3.20"]
guess_3_20 = 8.0  # SOLUTION: times as many tokens per second

# %%
check("3.20")

# %%
steps = times_by_batch()
for batch, s in steps.items():
    least_s = time_of(small_work, here, batch)
    print(f"batch {batch:>2}: {1e3 * s:6.1f} ms a step, at least {1e3 * least_s:5.1f}; {batch / s:4.0f} tokens/s")
measured("3.20", (16 / steps[16]) / (1 / steps[1]))

# %%
step_pictures.draw_batching(steps, small_work, here, ridge_of(small_work, here))

# %% [markdown]
# **Read the result.** On the left each doubling of the batch nearly doubles the tokens per second: the step takes
# hardly longer, since it waits for the same weights. To the right of the line the curve bends towards the roof of
# arithmetic. It stays below both roofs: a step also starts some hundreds of small operations, and a product with a
# few rows does not reach the rate of a large square one. A roof is a bound, not a forecast. (It is measured, too. If
# this machine was busy with something else meanwhile, a point may peek over it.)
#
# Each *sequence* gets its tokens a little later in a larger batch. Throughput against latency is the trade that a
# scheduler makes in every step; lab 4 is about it.

# %% [markdown]
# ## 11. A constant and a slope
#
# *Needs: CPU, and the model.*
#
# You may read that decoding with a cache takes a constant time per token, or that it grows "sub-linearly". Section 2
# says otherwise: a step reads the weights, and K and V of *all* tokens before. The first does not depend on the
# context $t$, the second is proportional to it:
#
# $$T(t) = a + b\,t$$
#
# **Think first.** For SmolLM2 in float32: weights of 538 MB, 46,080 bytes of K and V per token. At what context does
# reading K and V take as long as reading the weights?

# %% [markdown]
# <!-- card 3.21 -->
# Fit the line: given lists of contexts `t` and of step times `y`, find the $a$ and $b$ of least squared error.
#
# $$b = \frac{\sum (t_i - \bar t)(y_i - \bar y)}{\sum (t_i - \bar t)^2}, \qquad a = \bar y - b\,\bar t$$
#
# ```python
# >>> fit_line([0, 10, 20], [3.0, 5.0, 7.0])
# (3.0, 0.2)
# ```


# %% tags=["exercise:3.21"]
def fit_line(t, y):
    t, y = np.array(t, dtype=float), np.array(y, dtype=float)
    dt = t - t.mean()  # SOLUTION: the contexts' deviations from their mean
    dy = y - y.mean()  # SOLUTION: the times' deviations from theirs
    b = (dt * dy).sum() / (dt * dt).sum()  # SOLUTION: the slope
    a = y.mean() - b * t.mean()  # SOLUTION: the time at context 0
    return a, b


# %%
check("3.21")

# %%
fit = use("3.21")
by_context = times_by_context()
a, b = fit(list(by_context), list(by_context.values()))
least = SMOLLM2.decode_work(1, bytes_per_value=4)
least_a, least_b = least.weight_bytes / here.bandwidth, least.kv_bytes / here.bandwidth
print(f"a: {1e3 * a:6.1f} ms, reading the weights takes at least {1e3 * least_a:.1f} ms")
print(f"b: {1e6 * b:6.2f} µs per token, reading its K and V takes at least {1e6 * least_b:.2f} µs")
print(f"a = b t at t = {a / b:,.0f} tokens; by bytes alone at {least_a / least_b:,.0f}")

# %%
step_pictures.draw_step_time(by_context, a, b, least_a, least_b)

# %% [markdown]
# **Read the result.** A straight line: linear in the context, not less. At short contexts the slope disappears
# beside the constant, which is where the belief in constant time comes from.
#
# - **a** is the weights, and the fixed price of a step: Python, a few hundred small operations to start, sampling.
# - **b** is K and V. It is a multiple of the bound, since this backend (plain PyTorch) *gathers* the pages first: it
#   reads them, writes a copy, and reads that. A paged kernel like yours reads each page once, where it is. That is
#   the difference a kernel makes, and it grows with the context.

# %% [markdown]
# <!-- card 3.22 -->
# What does each of these change? **a** the constant $a$ · **b** the slope $b$ · **c** both · **d** neither (or next
# to nothing)

# %% tags=["exercise:3.22"]
answer_3_22 = {
    "weights in int8": "a",  # SOLUTION: a letter
    "K and V in int8": "b",  # SOLUTION: a letter
    "half as many layers": "c",  # SOLUTION: a letter
    "twice the memory bandwidth": "c",  # SOLUTION: a letter
    "fewer kernel launches (a CUDA graph)": "a",  # SOLUTION: a letter
    "a block size of 32 instead of 16": "d",  # SOLUTION: a letter
}

# %%
check("3.22")

# %% [markdown]
# ## 12. Capstone: your decode in the engine
#
# *Needs: Triton (interpreted without a GPU), and the model.*
#
# You have the parts of a decode phase: a pool and block tables (3.5, 3.6), and a kernel that reads pages where they
# are (3.9). Now they go to work. The engine keeps its scheduler, its model and its prefill; memory and decode
# attention become yours.

# %% [markdown]
# ```mermaid
# flowchart LR
#     R["requests"] --> S["scheduler<br/>(the engine's)"]
#     S -->|"open, grow, close"| C["OwnCache"]
#     C --> T["your BlockTable"]
#     T --> P["your BlockPool"]
#     S -->|"plan: tokens, block tables"| M["model<br/>(the engine's)"]
#     M -->|"write, prefill"| B["torch backend"]
#     M -->|"decode"| K["your kernel"]
#     B --> V[("pages")]
#     K --> V
#     M --> L["next tokens"] --> S
# ```
#
# Two adapters stand between. `OwnCache(pool, new_table, block_size)` answers the scheduler's questions from a pool and
# from tables: the file `own_cache.py` is short and worth reading. `OwnAttention(spec, block_size, decode=...)` is the
# torch backend with your function for the decodes.

# %% [markdown]
# <!-- card 3.23 -->
# Open an engine on your parts. `decode` gets what the engine has, `q` `[B, H, D]`, the pages, `block_tables`,
# `seq_lens` and the scale, and returns `[B, H, D]`; `launch_paged_decode` launches a kernel on just that. `cache` is
# called once, when the engine opens.
#
# ```python
# llm = own_engine(DEFAULT_MODEL, block_size=8, num_blocks=16)
# llm.generate(...)                                # token for token what transformers writes
# llm.scheduler.cache.pool                         # a BlockPool of yours, with 16 blocks; all free again by now
# ```


# %% tags=["exercise:3.23"]
def own_engine(model, block_size, num_blocks, **options):
    def decode(q, k_cache, v_cache, block_tables, seq_lens, scale):
        pages = k_cache, v_cache, block_tables, seq_lens
        return launch_paged_decode(paged_decode_kernel, q, *pages, scale)  # SOLUTION: your kernel's output, [B, H, D]

    def cache(num_blocks, block_size, enable_prefix_caching):
        pool = BlockPool(num_blocks)  # SOLUTION: one pool for all sequences

        def new_table():
            return BlockTable(pool, block_size)  # SOLUTION: an empty table for one sequence

        return OwnCache(pool, new_table, block_size)

    def attention(spec):
        return OwnAttention(spec, block_size, decode=decode)  # SOLUTION: a backend with your decode in it

    options |= {"device": device.type, "dtype": "float32", "block_size": block_size, "num_kv_blocks": num_blocks}
    return LLM(model, attention_backend=attention, cache_factory=cache, **options)


# %%
check("3.23")

# %% [markdown]
# ### The real model
#
# Three prompts, three lengths of answer, pages of 8 slots, 16 of them. A step computes 16 tokens at most, so that a
# long prompt is read in several steps while others decode already. Interpreted, your kernel runs each of its programs
# in Python: 30 layers with 3 KV heads per sequence and token. Give it a quarter of a minute.

# %%
# needs: triton
open_own_engine = use("3.23")
llm = open_own_engine(DEFAULT_MODEL, block_size=8, num_blocks=16, max_num_seqs=4, max_num_batched_tokens=16)
requests = {
    "The capital of France is": 8,
    "One, two, three, four,": 6,
    "Once upon a time, in a small village by the sea, there lived an old": 7,
}
params = [SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True) for num_new in requests.values()]
outputs = llm.generate(list(requests), params, use_tqdm=False)
for prompt, output in zip(requests, outputs, strict=True):
    print(f"{prompt} |{output.outputs[0].text}")

# %% [markdown]
# **Against transformers**, token for token:

# %%
# NBVAL_CHECK_OUTPUT
# needs: triton
model, tokenizer = smollm2()
for (prompt, num_new), output in zip(requests.items(), outputs, strict=True):
    ids = tokenizer(prompt, return_tensors="pt").input_ids[0]
    theirs = transformers_greedy(model, ids, num_new, eos_id=model.config.vocab_size)[len(ids) :].tolist()
    print(list(output.outputs[0].token_ids) == theirs, theirs)

# %% [markdown]
# **Did your parts do it?** Count: the kernel once per layer and step with a decode in it, and all pages free again.

# %%
# NBVAL_CHECK_OUTPUT
# needs: triton
num_decode_steps = sum(step.num_decodes > 0 for step in llm.engine.trace)
pool = llm.scheduler.cache.pool
num_calls = llm.model.backend.num_calls["decode"]
print(f"{num_decode_steps} steps with decodes x 30 layers = {num_calls} calls of your decode")
print(f"your {type(pool).__name__}: {pool.num_free} of 16 blocks free, reference counts {set(pool.ref_counts)}")

# %% [markdown]
# ### The run, drawn from its own trace
#
# First your block tables, at the moment when most pages were in use.

# %%
# NBVAL_CHECK_OUTPUT
# needs: triton
for name, (block_ids, num_tokens) in llm.scheduler.cache.fullest.items():
    print(f"{name}: {num_tokens:2} tokens in blocks {list(block_ids)}")

# %%
# needs: triton
figure = draw_block_tables(llm.scheduler.cache.fullest, num_blocks=16, block_size=8)

# %% [markdown]
# Each sequence took a page when it needed one, so the pages of one are not neighbours, and nobody minds: the table
# knows. Only last pages are partly empty.
#
# And the run in time. Every step is one column across all rows: what stands above each other was computed together,
# in one batch.

# %%
# needs: triton
names = {
    output.request_id: f"{name}: {len(output.prompt_token_ids)} tokens, then {len(output.outputs[0].token_ids)}"
    for name, output in zip("ABC", outputs, strict=True)
}
run_pictures.draw_timeline(llm.engine.trace, names)

# %% [markdown]
# **Read the result.** Prefills are a step or two, at the very left; the third prompt did not fit into the first step
# beside the others, and was read to its end while A and B were decoding. Then a chain of steps: the two phases of one
# model. Interpreted, a step takes the longer the more sequences decode in it, for each program runs in turn; compiled
# on a GPU they run side by side. The pages in use climb as sequences grow, a page at a time, and fall when one ends.
#
# **Play.** With `num_blocks=7` the three do not fit together. The scheduler then keeps one waiting, or takes the
# pages of one away and computes it again later, with the same tokens at the end. Where do you see it in the timeline?

# %% [markdown]
# ## Checkpoint
#
# Tick what you could explain to a colleague without looking. What you can't, is a section to go back to.
#
# - [ ] what a decode step computes, what it reads, and which of the two it waits for (1, 2)
# - [ ] how to bound tokens per second from a data sheet, in your head (2)
# - [ ] what a pool and a block table promise, also when there is no block left (3)
# - [ ] why an oracle that remembers every token's K/V finds bugs that looking at shapes does not (3)
# - [ ] how a kernel gets from a position to an address, and what each mask is for (4, 5)
# - [ ] why one long sequence leaves a GPU idle, and how partial results are merged exactly (6)
# - [ ] why neighbouring threads should read neighbouring addresses, and what that says about layouts (7)
# - [ ] when a fork has to copy a block, and when it need not (8)
# - [ ] what int8 K and V save, what they cost, and how you would find out for your model (9)
# - [ ] why batching pays for weights and not for the cache (10)
# - [ ] what $a$ and $b$ in $a + b\,t$ consist of, and how each could be made smaller (11)

# %% [markdown]
# ## 13. Knowledge check
#
# *Needs: a clear head.* Six questions over the whole lab.

# %% [markdown]
# <!-- card 3.24 -->
# Why does a decode step of one sequence wait for memory?
# (a) Softmax and exponentials are slow,
# (b) it computes K and V of all tokens again,
# (c) every weight is read and then used for two operations only,
# (d) starting kernels takes longer than running them.

# %% tags=["exercise:3.24"]
answer_3_24 = "c"  # SOLUTION: one letter

# %%
check("3.24")

# %% [markdown]
# <!-- card 3.25 -->
# Weights of 16 GB, 40 sequences with 0.1 GB of K and V each, memory of 2,000 GB/s. How many tokens per second, all
# sequences together, are the most that bytes allow?

# %% tags=["exercise:3.25"]
answer_3_25 = 4000  # SOLUTION: tokens per second

# %%
check("3.25")

# %% [markdown]
# <!-- card 3.26 -->
# A prompt of 100 tokens in blocks of 16. It is forked, so that there are 4 sequences; each then writes 13 more tokens.
# How many blocks are in use, with copy-on-write?

# %% tags=["exercise:3.26"]
answer_3_26 = 14  # SOLUTION: blocks

# %%
check("3.26")

# %% [markdown]
# <!-- card 3.27 -->
# A decode kernel with pages of 16, and what its tests say. Which bug is it? **a** no mask on the tail of the last
# page · **b** the row of the block table, or its stride · **c** an empty split is not guarded: minus infinity less
# minus infinity · **d** the head stride of the cache, or `h % H_kv` for `h // G` · **e** LSE in another base than
# the merge takes it for

# %% tags=["exercise:3.27"]
answer_3_27 = {
    "right for lengths 16, 32, 48, wrong in between": "a",  # SOLUTION: a letter
    "right alone, wrong for all but the first of a batch": "b",  # SOLUTION: a letter
    "NaN for the shortest sequence only, once there are splits": "c",  # SOLUTION: a letter
    "right for one KV head, wrong for several": "d",  # SOLUTION: a letter
    "every split right by itself, the merged result off": "e",  # SOLUTION: a letter
}

# %%
check("3.27")

# %% [markdown]
# <!-- card 3.28 -->
# On a GPU with 132 multiprocessors and a model with 8 KV heads, where does split-KV help most?
# (a) 64 sequences of 500 tokens,
# (b) one sequence of 50,000 tokens,
# (c) one sequence of 50 tokens,
# (d) everywhere alike: it reads fewer bytes.

# %% tags=["exercise:3.28"]
answer_3_28 = "b"  # SOLUTION: one letter

# %%
check("3.28")

# %% [markdown]
# <!-- card 3.29 -->
# K and V go from 16 bits to int8; the weights stay. What follows?
# (a) Every decode step takes half the time,
# (b) answers stay the same to the last bit,
# (c) prefill takes half the time,
# (d) about twice the tokens fit, and steps get faster where contexts are long or sequences many.

# %% tags=["exercise:3.29"]
answer_3_29 = "d"  # SOLUTION: one letter

# %%
check("3.29")

# %% [markdown]
# ## Principles
#
# 1. **Decode waits for bytes.** Count what a step reads, divide by the bandwidth, and you have the bound; then ask
#    where the rest of the time goes.
# 2. **Weights are shared, caches are not.** Batching divides the first by the batch; only smaller K and V (fewer
#    heads, fewer bits, fewer tokens) help with the second.
# 3. **Errors change nothing.** An allocator that fails half-way has lost a page for ever, or given it to two.
# 4. **Test contents, not shapes.** A stale page has the right shape. Let an oracle remember who wrote what where.
# 5. **Read where it lies.** A gather moves the same bytes three times; a table look-up inside the kernel moves them
#    once.
# 6. **Partial results merge exactly**, as long as each brings its log-sum-exp, and an empty one its minus infinity.
# 7. **A saving has to be measured at the length where it hurts.** Short prompts forgive everything.

# %% [markdown]
# ## Troubleshooting, by symptom
#
# | symptom | likely cause | section |
# |---|---|---|
# | first token right, the next ones wrong | the decode: new K/V not written, position or length off by one | 1, 5 |
# | right alone, wrong in a batch | wrong row of the block table; one pool per sequence; a page given out twice | 3, 5 |
# | right until a page is full | the table does not grow, or is overwritten when it does | 3 |
# | right at multiples of the page size only | the tail of the last page is not masked | 4, 5 |
# | text of another request in the answer | a page was freed and is still in a table; double free | 3 |
# | two samples of one prompt become alike | a fork wrote into a shared page: no copy-on-write | 8 |
# | NaN, now and then | slots never written get weight 0, and 0 times NaN is NaN; an empty split | 4, 6 |
# | fluent but not what it should say | no scale, or the head map `h % H_kv` | 5 |
# | free pages become fewer from run to run | a table that is not freed, or freed once for two owners | 3 |
# | one long request is slow on a large GPU | too few programs: split the keys | 6 |
# | a larger batch brings nothing more | beyond the ridge; or long contexts, where K and V are what is read | 10 |
# | slower with every token | K and V: that is the slope; look at what the kernel reads | 11 |
# | worse answers on long prompts only | K and V in too few bits, or too few scales | 9 |

# %% [markdown]
# ## What to read next
#
# - Efficient Memory Management for Large Language Model Serving with PagedAttention, arXiv:2309.06180: pages, block
#   tables, copy-on-write.
# - Online normalizer calculation for softmax, arXiv:1805.02867; FlashAttention, arXiv:2205.14135, and FlashAttention-2,
#   arXiv:2307.08691: the tiles and the running maximum.
# - FlashInfer, arXiv:2501.01005: attention kernels for serving, with merged partial results.
# - Fast Transformer Decoding: One Write-Head is All You Need, arXiv:1911.02150: why decode waits for memory.
# - Efficiently Scaling Transformer Inference, arXiv:2211.05102: batch, context and bytes for large models.
# - KIVI, arXiv:2402.02750, and KVQuant, arXiv:2401.18079: K and V in 2 to 4 bits, and why keys like other scales than
#   values.
#
# Lab 4 puts both phases into one engine and asks who may go first. [04_scheduling.ipynb](04_scheduling.ipynb)
