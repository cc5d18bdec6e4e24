# PART C
# %% tags=["setup"]
import math

import numpy as np
import torch

from twophase import LLM, SamplingParams
from twophase.cache.kv_cache import KVCacheSpec
from twophase.workbook import ____, check, hint, measured, reference, reveal, use
from twophase.workbook.kernels import device, tl, triton
from twophase.workbook.kit.models import smollm2, transformers_greedy
from twophase.workbook.kit.own_attention import OwnAttention
from twophase.workbook.lab03 import needle, needle_pictures, run_pictures, step_pictures
from twophase.workbook.lab03.decode_work import A100, H100, LLAMA_3_8B, SMOLLM2
from twophase.workbook.lab03.launch import launch_paged_decode
from twophase.workbook.lab03.own_cache import OwnCache
from twophase.workbook.lab03.step_times import BATCH_CONTEXT, BATCHES, CONTEXTS, decode_step_s, this_machine
from twophase.workbook.pictures import draw_block_tables

torch.set_num_threads(1)

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
# **Read the picture.** The largest row is many times as large as most. With one scale for all, the step would be
# 1/127 of the dashed line, and most rows would use a small part of the 255 numbers there are. There is a second
# reason against a common scale: tokens *arrive*. If the next one were louder than all before, everything stored
# would have to be stored again. A scale **per token and head** is found when the token is written, and never touched
# again.

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
# **Bytes.** What the engine's own cache takes per token, K and V in all layers, scales included. The scale is 4
# bytes for every 64 or 128 elements, so that "half" is nearly half.

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
# no change in surprise, at any of these lengths. With 3 bits the needles fade, and more of them with a longer text:
# every further key adds a little noise to the softmax, and one right key has to stand out among more wrong ones. That
# is why long contexts are said to suffer first, and why a test with short prompts says little.
#
# What this does *not* show: a model of 135 million weights, five needles, a thousand tokens, one language. Another
# model with larger outliers, or reasoning over many facts at once, may be harmed where this one is not. Lab 5 builds
# a gate from several such tests; the rule is to measure your own model, at your own lengths.

# %% [markdown]
# **Against the engine's own.** The engine's cache stores int8 in the same way (`LLM(kv_cache_dtype="int8")`). Your
# numbers against those of its quantiser, for all keys of the long text:

# %%
from twophase_kernels.quant import quantise_reference

long_keys = torch.stack(needle.read(1_000).keys).flatten(0, 1)
data, scale = store(long_keys)
engines_data, engines_scale = quantise_reference(long_keys, "int8")
differing = int((data != engines_data).sum())
print(f"{differing} of {data.numel():,} numbers differ, by at most {int((data.int() - engines_data.int()).abs().max())}")

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
def step_s(work, machine, batch):
    moving = (work.weight_bytes + batch * work.kv_bytes) / machine.bandwidth  # SOLUTION: seconds to move all bytes
    computing = batch * work.flops / machine.flop_rate  # SOLUTION: seconds of arithmetic
    return max(moving, computing)  # SOLUTION: the seconds of the step


def ridge_batch(work, machine):
    gap = work.flops / machine.flop_rate - work.kv_bytes / machine.bandwidth  # SOLUTION: what each sequence adds to arithmetic beyond what it adds to bytes (s)
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
    print(f"context {context:>5,}:  " + "  ".join(f"{gpu.name} {ridge_of(work, gpu) or 'never':>6}" for gpu in (A100, H100)))

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
steps = {batch: decode_step_s(batch, BATCH_CONTEXT) for batch in BATCHES}
for batch, s in steps.items():
    print(f"batch {batch:>2}: {1e3 * s:6.1f} ms a step, {batch / s:5.0f} tokens/s, bound {1e3 * time_of(small_work, here, batch):5.1f} ms")
measured("3.20", (16 / steps[16]) / (1 / steps[1]))

# %%
step_pictures.draw_batching(steps, small_work, here, ridge_of(small_work, here))

# %% [markdown]
# **Read the result.** On the left each doubling of the batch nearly doubles the tokens per second: the step takes
# hardly longer, since it waits for the same weights. To the right of the line the curve bends towards the roof of
# arithmetic. It stays below both roofs, and they say why: a step of one sequence also starts some hundreds of small
# operations, and a product with a few rows does not reach the rate of a large square one. A roof is a bound, not a
# forecast.
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
by_context = {context: decode_step_s(1, context) for context in CONTEXTS}
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
