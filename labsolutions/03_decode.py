# %% [markdown]
# PART C: sections 9 to 13, and the ending

# %% tags=["setup"]
from twophase.workbook.kernels import device, tl, triton  # first: it decides how kernels run

# isort: split
import math

import numpy as np
import torch

from twophase import LLM, SamplingParams
from twophase.cache.kv_cache import KVCacheSpec
from twophase.core.errors import CacheStateError, OutOfBlocksError
from twophase.model.prepare import DEFAULT_MODEL
from twophase.workbook import ____, check, hint, measured, reference, reveal, use
from twophase.workbook.kit.models import smollm2, transformers_greedy
from twophase.workbook.kit.own_attention import OwnAttention
from twophase.workbook.lab03 import needle, needle_pictures, run_pictures, step_pictures
from twophase.workbook.lab03.clocked_steps import BATCH_CONTEXT, this_machine, times_by_batch, times_by_context
from twophase.workbook.lab03.decode_work import A100, H100, LLAMA_3_8B, SMOLLM2
from twophase.workbook.lab03.launch import launch_paged_decode
from twophase.workbook.lab03.own_cache import OwnCache
from twophase.workbook.pictures import draw_block_tables

torch.set_num_threads(1)

# %% [markdown]
# # PART stub: 3.5, 3.6 and 3.9, which the lead replaces by the other parts'


# %% tags=["exercise:3.5"]
class BlockPool:
    def __init__(self, num_blocks):
        self.ref_counts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self):
        return len(self._free)

    def allocate(self, n):
        if n > self.num_free:  # SOLUTION: too many?
            raise OutOfBlocksError(f"{n} blocks wanted, {self.num_free} free")
        block_ids = [self._free.pop() for _ in range(n)]
        for block_id in block_ids:
            self.ref_counts[block_id] = 1
        return block_ids

    def acquire(self, block_id):
        self.ref_counts[block_id] += 1

    def release(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError(f"block {block_id} is free already")
        self.ref_counts[block_id] -= 1
        if self.ref_counts[block_id] == 0:
            self._free.append(block_id)


# %% tags=["exercise:3.6"]
class BlockTable:
    def __init__(self, pool, block_size):
        self.pool, self.block_size = pool, block_size
        self.block_ids, self.num_tokens = [], 0

    def grow(self, num_tokens):
        num_more = -(-num_tokens // self.block_size) - len(self.block_ids)  # SOLUTION: blocks needed
        self.block_ids += self.pool.allocate(num_more)
        self.num_tokens = num_tokens

    def slot(self, position):
        return self.block_ids[position // self.block_size] * self.block_size + position % self.block_size

    def free(self):
        for block_id in self.block_ids:
            self.pool.release(block_id)
        self.block_ids, self.num_tokens = [], 0


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


# %% [markdown]
# # PART stub ends

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
model, tokenizer = smollm2()
for (prompt, num_new), output in zip(requests.items(), outputs, strict=True):
    ids = tokenizer(prompt, return_tensors="pt").input_ids[0]
    theirs = transformers_greedy(model, ids, num_new, eos_id=model.config.vocab_size)[len(ids) :].tolist()
    print(list(output.outputs[0].token_ids) == theirs, theirs)

# %% [markdown]
# **Did your parts do it?** Count: the kernel once per layer and step with a decode in it, and all pages free again.

# %%
# NBVAL_CHECK_OUTPUT
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
for name, (block_ids, num_tokens) in llm.scheduler.cache.fullest.items():
    print(f"{name}: {num_tokens:2} tokens in blocks {list(block_ids)}")

# %%
figure = draw_block_tables(llm.scheduler.cache.fullest, num_blocks=16, block_size=8)

# %% [markdown]
# Each sequence took a page when it needed one, so the pages of one are not neighbours, and nobody minds: the table
# knows. Only last pages are partly empty.
#
# And the run in time. Every step is one column across all rows: what stands above each other was computed together,
# in one batch.

# %%
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
