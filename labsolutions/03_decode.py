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
import matplotlib.pyplot as plt
import torch

from twophase.workbook.kernels import device, tl, triton  # isort: skip  before anything that imports triton
from twophase.core.errors import CacheStateError, OutOfBlocksError
from twophase.workbook import ____, check, hint, measured, reference, reveal, use
from twophase.workbook.kit.models import smollm2, transformers_greedy
from twophase.workbook.kit.timing import Timed, seconds
from twophase.workbook.lab03 import page_pictures, step_time
from twophase.workbook.lab03.decoder import smollm2_decoder
from twophase.workbook.lab03.step_time import bandwidth, matmul_rate

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

from twophase.workbook.lab03.histories import History

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
from twophase.workbook.lab03 import suspects

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
from twophase.workbook.pictures import draw_block_tables

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

from twophase.workbook.lab03.paged_inputs import one_hot_values, random_pages

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
from twophase import LLM, SamplingParams
from twophase.workbook.kit.own_attention import OwnAttention

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
from twophase.workbook.lab03.paged_inputs import in_a_row

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
# PART 8

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
from twophase.workbook.lab03.branches import Branch, PagedModel, draw_samples, search_beams


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
