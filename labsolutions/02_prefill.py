# %% [markdown]
# # Lab 2: prefill, and what parallelism buys
#
# Lab 1 ended with one model and two workloads. This lab is about the first of them. A prompt is known in full before
# any work begins, so all its tokens can go through the model together; this is called **prefill**. The first cell
# runs SmolLM2 on the same 64 tokens twice: once all together, and once one by one, with a KV cache, so that
# nothing is computed a second time. The weights are the same, and so are the multiplications and the logits.
#
# **Think first.** Which is faster, and by what factor? (The cell takes about five seconds, and half a minute where the
# model still has to be loaded.)

# %%
import torch

from twophase_labs.kit.models import smollm2
from twophase_labs.kit.timing import seconds
from twophase_labs.prefill.two_ways import read_at_once, read_one_by_one, text_ids

torch.set_num_threads(1)  # one thread: times are steadier, and counting is simpler
model, tokenizer = smollm2()
ids, num_weights = text_ids(tokenizer, 64), sum(p.numel() for p in model.parameters())
for name, read in (("together", read_at_once), ("one by one", read_one_by_one)):
    ms = 1e3 * seconds(lambda read=read: read(model, ids)) / len(ids)
    print(f"{name:10}: {ms:5.1f} ms a token, {2 * num_weights / ms / 1e6:6.1f} GFLOP/s")

# %% [markdown]
# The count behind the last column: two FLOPs per weight and token, a multiplication and an addition. (Every token gets
# its row of logits here, so the weights of the last product count for each.) The cache saved every multiplication that
# can be saved, and one by one the processor still reached only a fraction of the rate that it had just shown. So
# arithmetic was not what held it back. Keep your guess at what did: section 2 has one part of the answer, and section
# 11 repeats this measurement with kernels that you wrote.

# %% [markdown]
# **After this lab you can**
#
# - write the attention of a real layer, with rotary positions and grouped heads;
# - count the FLOPs and bytes of a prefill, and say from a machine's two roofs which of them it waits for;
# - compute softmax in one pass, and build exact attention from tiles;
# - write FlashAttention's forward pass in Triton from an empty body, and extend it to a paged cache, grouped heads and
#   prompts of different lengths in one batch, whole or in chunks;
# - run a model with your own prefill, token for token equal to transformers.
#
# You need lab 1. No GPU is needed: Triton kernels are compiled for whatever the machine has, a GPU or a processor, from
# the same cells.
#
# <!-- opening minutes: 5 -->
# <!-- map -->
#
# **How it works.** Think first, fill the blanks `____(...)` or write the function, run `check("2.1")`. `hint("2.1")`
# helps in up to three steps; for a function that you write whole, the third is a skeleton. `reveal("2.1")` shows a
# solution. Any exercise can be left out: what follows then runs with the reference's answer, and says so. Exercises
# under *Going further* are optional. Each section follows the course's [method](../docs/method.md).

# %% tags=["setup"]
from twophase_labs.machine.kernels import device, how_kernels_run, tl, triton  # first: it decides how kernels run

# isort: split
import torch
import torch.nn.functional as F

from twophase_labs import ____, check, hint, measured, reveal, use

# %% [markdown]
# ## 1. Attention on one real layer
# <!-- minutes: 15 + 2 -->
#
# *Needs: CPU, and the model.*
#
# In a transformer almost everything treats each token by itself: norms, projections, the MLP. **Attention** is the one
# place where tokens meet, so it is where reading many at once becomes interesting.
#
# Each token has, in each head, three vectors of D elements. Its *query* says what it looks for, its *key* what it
# offers, its *value* what it hands over. The score of a query and a key is their dot product over sqrt(D), so that the
# spread of the scores does not grow with D; a softmax turns the scores of a query into weights; the result is the
# weighted mean of the values.
#
# **The steps on numbers.** Five tokens, one head. Rows are queries, columns are keys, and everything in a row belongs
# to one token.
# %%
from twophase_labs.prefill import attention_pictures as pictures

pictures.draw_steps_of_attention(*torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(3)))

# %% [markdown]
# Token 0 sees itself only, so its one weight is 1, whatever its score was. Token 4 sees all five. In code, for all H
# heads of a prompt of L tokens:


# %% tags=["setup"]
def naive_attention(q, k, v):
    """Causal attention: q, k, v [L, H, D] -> [L, H * D], the heads of a token side by side."""
    L, H, D = q.shape
    q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)  # [H, L, D]: a product per head
    scores = q @ k.mT / D**0.5  # [H, L, L], each query with each key
    visible = torch.arange(L) <= torch.arange(L)[:, None]  # true where the key is not later than the query
    scores = scores.masked_fill(~visible, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).reshape(L, H * D)


# %% [markdown]
# The *order* of the tokens is missing. Swap two earlier keys together with their values, and the last token's result
# is the same. The mask hides later positions. It does not say how far back an earlier one is.
#
# **Rotary positions** (RoPE, arXiv:2104.09864) take the D elements of a query or key as D/2 points in a plane, and
# rotate each point by an angle that grows with the token's position. Element $i$ and element $i + D/2$ are a pair; at
# position $p$ it turns by $p \cdot \theta^{-2i/D}$ radians. SmolLM2 uses $\theta$ = 100,000 and D = 64.

# %%
pictures.draw_turning(theta=100_000.0, width=64, positions=6, pairs=(0, 2, 5, 10))

# %% [markdown]
# The fast pairs resolve distances of a few tokens, the slow ones of thousands; together they work like the hands of a
# clock.


# %% tags=["setup"]
def rotate(x, positions, theta):
    """x [L, H, D], rotated for tokens at `positions` [L]; all heads of a token turn alike."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** -(torch.arange(half) / half)  # [L, D/2]
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


# %% [markdown]
# **Think first.** All tokens of a prompt are moved 100 positions further. Which scores change?

# %%
q, k = torch.randn(2, 12, 1, 64, generator=torch.Generator().manual_seed(1))


def scores_at(start):
    positions = torch.arange(start, start + 12)
    return rotate(q, positions, 1e5)[:, 0] @ rotate(k, positions, 1e5)[:, 0].mT


for start in (100, 5_000):
    print(f"{start:5} positions later: scores differ by {(scores_at(start) - scores_at(0)).abs().max():.0e} at most")
print(f"not rotated at all: by {(q[:, 0] @ k[:, 0].mT - scores_at(0)).abs().max():.0f}")

# %% [markdown]
# None changes, apart from the rounding of larger angles in float32: a query at position p and a key at position s,
# turned by p and by s, meet at an angle of p - s. So a key can be rotated once, stored, and used by every query that
# comes later. This is why rotary positions and a KV cache fit together.
#
# **Grouped heads.** SmolLM2 has 9 query heads and 3 key/value heads: G = 3, and query head h reads KV head h // 3, the
# map of lab 1. Positions go to queries and keys, not to values.
#
# ```mermaid
# flowchart LR
#     X["x<br/>[L, 576]"] --> Q["W_Q<br/>[L, 9, 64]"] --> RQ["rotate"] --> A["attention<br/>of 9 heads"]
#     X --> K["W_K<br/>[L, 3, 64]"] --> RK["rotate"] --> GK["each head<br/>3 times"] --> A
#     X --> V["W_V<br/>[L, 3, 64]"] --> GV["each head<br/>3 times"] --> A
#     A --> O["W_O<br/>[L, 576]"]
# ```

# %% tags=["setup"]
from twophase_labs.prefill.real_layer import Layer

# %% [markdown]
# <!-- card 2.1 -->
# Write the attention of one layer. `naive_attention` and `rotate` are there; the former wants as many KV heads as
# query heads.
#
# ```python
# layer_attention(x, layer, positions + 50) == layer_attention(x, layer, positions)      # only distances count
# layer_attention(x[:5], layer, positions[:5]) == layer_attention(x, layer, positions)[:5]
# ```


# %% tags=["exercise:2.1"]
def layer_attention(x, layer, positions):
    """The attention of one layer: x [L, hidden] -> [L, hidden].

    `layer` has w_q, w_k, w_v, w_o (`x @ layer.w_q` projects), num_heads, num_kv_heads, head_dim (D) and theta.
    `positions` [L] are the tokens' positions. Nothing that is given is changed.

    >>> eye = torch.eye(4)
    >>> layer = Layer(eye, eye[:, :2], eye[:, 2:], eye, num_heads=2, num_kv_heads=1, head_dim=2, theta=100.0)
    >>> layer_attention(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), layer, torch.tensor([0])).tolist()  # alone: its value
    [[3.0, 4.0, 3.0, 4.0]]
    >>> layer_attention(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), layer, torch.tensor([7])).tolist()  # wherever it is
    [[3.0, 4.0, 3.0, 4.0]]
    """
    # BEGIN SOLUTION: from x to the layer's output
    L, D, group = len(x), layer.head_dim, layer.num_heads // layer.num_kv_heads
    q = (x @ layer.w_q).view(L, layer.num_heads, D)
    k = (x @ layer.w_k).view(L, layer.num_kv_heads, D)
    v = (x @ layer.w_v).view(L, layer.num_kv_heads, D)
    q, k = rotate(q, positions, layer.theta), rotate(k, positions, layer.theta)
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return naive_attention(q, k, v) @ layer.w_o
    # END SOLUTION


# %%
check("2.1")

# %% [markdown]
# **Against the real thing.** The model reads a sentence in transformers; we note what goes into the attention of a
# layer and what comes out, and hand the same input to your function.

# %%
from twophase_labs.prefill.real_layer import head_weights, layer_of, layer_queries_keys, watch_layer

layer_attention = use("2.1")
sentence = tokenizer("The cat sat on the mat because the cat was tired.", return_tensors="pt").input_ids[0]
for index in (0, 12, 29):
    x, expected = watch_layer(model, index, sentence)
    got = layer_attention(x, layer_of(model, index), torch.arange(len(x)))
    print(
        f"layer {index:2}: outputs up to {expected.abs().max():5.2f}, differing by {(got - expected).abs().max():.0e}"
    )

# %% [markdown]
# **Takeaway.** Attention is the only step in which tokens meet; in SmolLM2 9 query heads read 3 KV heads, so a token
# leaves 2 · 3 · 64 = 384 elements per layer behind, and every later token needs them.

# %% [markdown]
# ### Going further: what heads do
#
# The real queries and keys, rotated, give the weights of real heads. Each row shows where one token looks. Three of
# SmolLM2's 30 × 9 heads:

# %%
panels = {}
for index, head in ((16, 0), (17, 4), (18, 8)):
    layer = layer_of(model, index)
    x, _ = watch_layer(model, index, sentence)
    q, k = (rotate(each, torch.arange(len(x)), layer.theta) for each in layer_queries_keys(layer, x))
    panels[f"layer {index}, head {head}"] = head_weights(q, k, head)
words = [tokenizer.decode(token) for token in sentence]
pictures.draw_attention_maps(panels, words, rings={"layer 17, head 4": (8, 2)})  # the second cat, and sat

# %% [markdown]
# **Read the result.** On the left a head that looks one token back, wherever it is: rotary positions make that
# possible. In the middle (the ring) the second *cat* looks at *sat*, the word that followed the first *cat*; such
# *induction heads* continue patterns. On the right almost every token attends to the first one. Softmax weights must
# add up to 1, so a head with nothing to retrieve puts them there. Such *attention sinks* come back in lab 5.

# %% [markdown]
# ## 2. Arithmetic against traffic
# <!-- minutes: 13 -->
#
# *Needs: CPU, and the model.*
#
# Now the surprise. A processor does so many operations per second, and its memory delivers so many bytes per second. A
# step needs some of each. If the two overlap, the step takes as long as the slower of them:
#
# $$\text{time} \ge \max\left(\frac{\text{FLOPs}}{\text{FLOP/s}},\; \frac{\text{bytes}}{\text{bytes/s}}\right)$$
#
# Which one wins depends on the **arithmetic intensity** of the step, FLOPs per byte moved. The intensity at which both
# take equally long belongs to the machine and is called the **ridge**: FLOP/s over bytes/s. Below it a step is
# **memory-bound**, above it **compute-bound**.

# %% [markdown]
# **Memory is a hierarchy.** "The memory" is the slowest level that the data has to come from. The next
# cell copies data within buffers of growing size, over and over: what fits into a cache comes from there. The dashed
# line is one copy of 256 MiB into another 256 MiB, the bandwidth used in this lab's calculations. On the right are the
# levels of an A100 with 40 GB: shared memory (each of the chip's many processors, the multiprocessors, has its own),
# HBM (high-bandwidth memory, the card's large one) and the host's memory, as the FlashAttention paper
# (arXiv:2205.14135, figure 1) gives them. The L2 cache of 40 MB stands between the first two, and all multiprocessors
# share it; its rate is roughly what microbenchmarks report.

# %%
from twophase_labs.prefill.measured_roofs import copy_rates, measure_roofs, time_attention, time_projection

flops_per_s, bytes_per_s = measure_roofs()  # measured here, used until the end of the lab
pictures.draw_memory_levels(copy_rates([2**e for e in (18, 20, 22, 24, 26, 28)]), bytes_per_s)

# %% [markdown]
# Both fall towards large memory. (Very small copies are slowed by the cost of starting them, and the largest may still
# leave a part of their data in a cache, so they may lie above the dashed line.) A kernel is fast when it reads each
# element from the large level once and does everything it can with it in a small one. On a GPU the small level is
# shared memory and registers, and the programmer decides what goes there, as in section 5.

# %% [markdown]
# **Think first.** A product of `[L, 576]` with a weight matrix `[576, 1536]`. Every weight that is fetched is used
# once for each of the L tokens. What is the intensity for L = 1, in four-byte elements? And what happens to it when L
# doubles?

# %% [markdown]
# <!-- card 2.2 -->
# Count the product `[rows, inner] @ [inner, columns]`: two FLOPs (a multiplication, an addition) for each product of
# elements, and each of the three matrices moved once.
#
# ```python
# matmul_cost(1, 5, 3, bytes_per_element=2) == (30, 46)
# ```


# %% tags=["exercise:2.2"]
def matmul_cost(rows, inner, columns, bytes_per_element):
    num_flops = 2 * rows * inner * columns  # SOLUTION: FLOPs
    num_moved = rows * inner + inner * columns + rows * columns  # SOLUTION: elements read and written
    return num_flops, num_moved * bytes_per_element


# %%
check("2.2")

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.prefill.model_shape import LLAMA_3_8B, SMOLLM2

matmul_cost = use("2.2")
print("FLOP per byte in the projections of a layer")
for L in (1, 16, 128, 512, 2048, 8192):
    intensity = {}
    for name, shape, width in (("SmolLM2, 4 bytes", SMOLLM2, 4), ("Llama-3-8B, 2 bytes", LLAMA_3_8B, 2)):
        costs = [matmul_cost(L, inner, columns, width) for inner, columns in shape.projections.values()]
        intensity[name] = sum(f for f, _ in costs) / sum(b for _, b in costs)
    print(f"{L:6,} tokens | " + " | ".join(f"{name} an element: {value:7.1f}" for name, value in intensity.items()))

# %% [markdown]
# One token has an intensity of about 2 divided by the bytes of an element, 0.5 or 1, whatever the model: each weight is
# fetched, used in one multiplication and one addition, and dropped. With L tokens it is used L times. **Reading a
# prompt together is a way of using each fetched weight more than once.** That is one part of what happened in the first
# cell; the other is that 128 forward passes start 128 times as many small operations, each with a fixed cost.

# %% [markdown]
# **This machine's two roofs.** FLOP/s from a large product of random matrices, bytes per second from the large copy,
# both measured above. The points are the gate projection in the engine's linear layer, and fused attention, for
# different numbers of tokens. All 30 layers take their turn, so that their weights really come from memory.

# %%
print(f"at most {flops_per_s / 1e9:.0f} GFLOP/s and {bytes_per_s / 1e9:.1f} GB/s on one thread", end="; ")
print(f"ridge at {flops_per_s / bytes_per_s:.1f} FLOP per byte")
gate = {L: matmul_cost(L, *SMOLLM2.projections["gate"], 4) for L in (1, 2, 4, 16, 64, 256)}
points = {"gate projection": {L: (f / b, f / time_projection(model, "gate", L)) for L, (f, b) in gate.items()}}
# Of 9 heads and L (L + 1) / 2 visible pairs: 2 FLOPs for each of 64 elements, in two products.
flops_of = {L: 4 * 9 * 64 * L * (L + 1) // 2 for L in (64, 256, 1024)}
moved = {L: 4 * 2 * L * (9 + 3) * 64 for L in flops_of}  # q and results of 9 heads, k and v of 3, four bytes each
points["fused attention"] = {L: (f / moved[L], f / time_attention(9, 3, 64, L)) for L, f in flops_of.items()}
pictures.draw_roofline(flops_per_s, bytes_per_s, points)

# %% [markdown]
# **Read the result.** The slanted line is the limit set by memory bandwidth, the flat one by arithmetic. With one token
# the projection is at the far left: no faster processor would lift its roof, and this is where decode lives. (Where the
# point lies well below that roof, starting the operation costs time, too: section 11.) More tokens move it to the
# right, where a higher rate is possible. The roofline is an upper bound. How far below it a kernel stays is what
# optimisation is about. (Attention also computes exponentials, which the count leaves out. And where a machine reads
# faster than it copies, or other programs ran while a roof was measured, a point may lie above it.)

# %% [markdown]
# ### The same on a GPU, on paper
#
# An A100-40GB does 312 TFLOP/s in two-byte elements, and its memory moves 1.555 TB/s (NVIDIA's data sheet). A
# layer of an 8B model has a product `[L, 4096] @ [4096, 4096]` in such elements.

# %% [markdown]
# <!-- card 2.3 -->
# **Think first.** A prompt of L = 512 tokens. Divide the intensity of that product by the A100's ridge: below 1 the GPU
# waits for its memory, above 1 for its arithmetic. What is the quotient? (Within 20 % counts as close.)

# %% tags=["exercise:2.3"]
guess_2_3 = 2  # SOLUTION: times the ridge

# %%
check("2.3")

# %%
# NBVAL_CHECK_OUTPUT
ridge = 312e12 / 1.555e12
print(f"the ridge of an A100: {ridge:.1f} FLOP per byte")
for L in (1, 64, 222, 223, 512, 4096):
    f, b = matmul_cost(L, 4096, 4096, 2)
    side = "compute-bound" if f / b > ridge else "memory-bound"
    print(f"{L:5} tokens: {f / b:7.1f} FLOP per byte, {f / b / ridge:5.3f} of the ridge: {side}")

# %%
f, b = matmul_cost(512, 4096, 4096, 2)
measured("2.3", f / b / ridge)

# %% [markdown]
# **Read the result.** 512 tokens are on the compute-bound side, and 223 are enough. Two figures often
# seen in print are wrong: a ridge of 100 for this card, while 312 over 1.555 is 200.6; and an intensity of 512 at 512
# tokens, which forgets that activations move too: it is 410. Nor do prompts have to be batched to keep the GPU busy:
# one of 223 tokens is enough. It is decode that gains from every further sequence (lab 3). A single token reaches a
# two-hundredth of the ridge, so 99.5 % of the arithmetic that the card could do stays unused. This is why prefill and
# decode, with the same weights, are two workloads.
#
# **Takeaway.** Intensity grows with the tokens that share a weight: 1 FLOP per byte for a single token in two-byte
# elements, 410 for 512 of them; the ridge of an A100 with 40 GB is 201, of one with 80 GB (2.04 TB/s) 153.
#
# > **In production, 2026.** An H100 SXM does 989 TFLOP/s in bfloat16 and moves 3.35 TB/s ([data
# > sheet](https://www.nvidia.com/en-us/data-center/h100/)): its ridge is 295 FLOP per byte, so by roofline the product
# > above needs 345 tokens to be compute-bound. Engines therefore fill a step with many tokens:
# > [vLLM](https://github.com/vllm-project/vllm/blob/00620f91ea186ca295a1eb69f4acba9d0efaaaaa/docs/configuration/optimization.md)
# > recommends `max_num_batched_tokens` above 8192 for throughput on large GPUs, and
# > [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/features/paged-attention-ifb-scheduler.html) bounds a step by
# > `max_num_tokens`.

# %% [markdown]
# ## 3. What the score matrix costs
# <!-- minutes: 5 -->
#
# *Needs: CPU.*
#
# The bytes above were those of *queries, keys, values and results only*. `naive_attention` moves more. Between its
# input and its output stands a score matrix with an element for every pair of tokens in every head, and softmax makes a
# second matrix out of the first. The next cell asks torch's own allocator for the most that a call held at any time,
# beside PyTorch's fused attention, which computes the same.
#
# **Think first.** The prompt doubles from 2,048 to 4,096 tokens. How many times as much memory does each take?

# %%
from twophase_labs.prefill.peak_memory import attention_inputs, peak_bytes


def fused(q, k, v):
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


peaks = {"naive_attention": {}, "PyTorch's fused attention": {}}
for L in (512, 1024, 2048, 4096):
    inputs = attention_inputs(L)
    for name, attend in zip(peaks, (naive_attention, fused), strict=True):
        peaks[name][L] = peak_bytes(lambda inputs=inputs, attend=attend: attend(*inputs))
for name, peak in peaks.items():
    print(f"{name}: {peak[4096] / peak[2048]:.1f} times as much for 4,096 tokens as for 2,048")
pictures.draw_growing(peaks, "most memory held at a time (MB)", "What attention of 2 heads needs beside its inputs")

# %% [markdown]
# Twice the prompt, four times the memory. Fused attention needs room for its result, which grows with L and not with
# its square, and for a work area that is the same for 2,048 and 4,096 tokens: so its factor here is below two. It never
# has the score matrix. What the matrix would be on a large model:

# %%
# NBVAL_CHECK_OUTPUT
for L in (2_048, 8_192, 32_768, 131_072):
    scores = 32 * L * L * 2  # 32 heads, two-byte elements, one layer
    values = 2 * L * 8 * 128 * 2  # the layer's keys and values
    print(f"{L:7,} tokens: score matrix {scores / 2**30:8.2f} GiB, keys and values {values / 2**30:6.3f} GiB")

# %% [markdown]
# And even where it fits, it has to be written to memory, read, written again and read again, with hardly any
# arithmetic in between: far to the left under the roof. By the clock, the same two heads on one thread:

# %%
clocked = {"naive_attention": {}, "PyTorch's fused attention": {}}
for L in (256, 512, 1024, 2048, 4096):
    inputs = attention_inputs(L)
    for name, attend in zip(clocked, (naive_attention, fused), strict=True):
        clocked[name][L] = 1e3 * seconds(lambda inputs=inputs, attend=attend: attend(*inputs), repeats=3)
    one, other = (times[L] for times in clocked.values())
    print(f"{L:5,} tokens: naive {one:7.1f} ms, fused {other:7.1f} ms, {one / other:.1f} times as fast")

# %% [markdown]
# **Read the result.** Both do the same products, and both grow with the square of the prompt. The distance between
# them is what the score matrix costs in time, and it depends on where the matrix lies: in a cache while the prompt is
# short, in memory when it is long. ("2 to 4 times faster", as one often reads, was measured on GPUs with much more
# arithmetic per byte of bandwidth; your factor is your machine's.) The next sections get rid of the matrix.
#
# **Takeaway.** At 32,768 tokens the score matrix of one layer takes 64 GiB, 512 times the 0.125 GiB of its keys and
# values; it grows with the square of the prompt, and no result needs it.

# %% [markdown]
# ## 4. Softmax in one pass
# <!-- minutes: 16 -->
#
# *Needs: CPU.*
#
# Why is the score matrix there at all? Because softmax seems to need all scores of a row before it can give the first
# weight: their maximum, so that nothing overflows, then their sum. But we do not want the weights. We want the *mean*
# that they make, and a mean can be built up as the keys come by, as long as three things are carried along
# (arXiv:1805.02867, arXiv:2112.05682):
#
# - `row_max`, $m$: the largest score so far;
# - `row_sum`, $\ell$: the sum of weights so far, each measured from $m$;
# - `acc`: the sum of weights times values so far, measured from $m$ too.
#
# When a larger score comes, $m$ changes, and the two sums have to be measured anew: one multiplication each.

# %% [markdown]
# **In base 2.** From here on the scores are exponents of 2: multiplied by log2(e) once, together with 1/sqrt(D), so
# that $2^{s \log_2 e} = e^s$. Kernels do it because a GPU has an instruction for a power of 2 (NVIDIA's `ex2`), and
# none for a power of e. The logarithm of a row's sum of weights, $\log_2 \sum_j 2^{s_j}$, is called its **LSE**
# (log-sum-exp), here in base 2.

# %% tags=["setup"]
from twophase_labs.prefill.launch import LOG2_E

# %%
# NBVAL_CHECK_OUTPUT
scores = torch.tensor([1.0, 2.0, 4.0])
print("base e:", scores.softmax(-1))
print("base 2:", torch.exp2(scores * LOG2_E) / torch.exp2(scores * LOG2_E).sum())
print("without taking the maximum out:", [float(torch.exp2(torch.tensor(s))) for s in (10.0, 127.0, 128.0)])

# %% [markdown]
# A base-2 score of 128 is already too much for float32. In the picture, thirty scores are read from left to right.

# %%
draw = torch.Generator().manual_seed(8)
pictures.draw_running(4 * torch.randn(30, generator=draw) + torch.linspace(0, 6, 30))

# %% [markdown]
# At each dotted line the maximum grows: what had been collected shrinks by $2^{m_\text{old} - m_\text{new}}$, and the
# new key adds its own weight, 1, so the curve may still rise there. Between the lines $\ell$ only grows.

# %% [markdown]
# <!-- card 2.4 -->
# The heart of this lab, and the only time that you write it in PyTorch: weighted means over keys that come by once.
#
# $$m' = \max(m, s), \qquad \ell' = \ell \cdot 2^{m - m'} + 2^{s - m'}, \qquad
# \mathrm{acc}' = \mathrm{acc} \cdot 2^{m - m'} + 2^{s - m'} v$$
#
# The result is the mean $\mathrm{acc} / \ell$ and the LSE, $m + \log_2 \ell$. A hidden key has the score -inf, and
# -inf minus -inf is NaN: as long as a row has seen nothing else, something finite has to be subtracted.


# %% tags=["exercise:2.4"]
def online_softmax(stream, M, D):
    """Weighted means [M, D] and their base-2 LSE [M], in one pass over the keys.

    `stream` gives, one key after the other and only once, its scores for M queries ([M], base 2) and its value ([D]).
    Scores may be of any size; -inf hides the key from that query. A query that sees no key gets zeros and an LSE of
    -inf. What is remembered between two keys must not grow with their number, and the stream's tensors stay as they
    are.

    >>> two = [(torch.tensor([0.0]), torch.tensor([2.0, 0.0])), (torch.tensor([0.0]), torch.tensor([4.0, 2.0]))]
    >>> online_softmax(iter(two), 1, 2)
    (tensor([[3., 1.]]), tensor([1.]))
    >>> online_softmax(iter([]), 1, 2)
    (tensor([[0., 0.]]), tensor([-inf]))
    """
    # BEGIN SOLUTION: one pass with row_max, row_sum and acc
    row_max, row_sum, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        new_max = torch.maximum(row_max, s)
        max_safe = new_max.masked_fill(new_max == -torch.inf, 0)
        rescale, p = torch.exp2(row_max - max_safe), torch.exp2(s - max_safe)
        row_max, row_sum, acc = new_max, row_sum * rescale + p, acc * rescale[:, None] + p[:, None] * v
    out = acc / torch.where(row_sum == 0, 1, row_sum)[:, None]
    return out, row_max + row_sum.log2()
    # END SOLUTION


# %%
check("2.4")

# %% [markdown]
# **The results agree at every length.** One query against up to 10,000 keys, your one pass against a softmax over all
# scores at once. What it carries along is $m$, $\ell$ and `acc`: D + 2 elements, however long the stream.

# %%
online_softmax = use("2.4")
draw = torch.Generator().manual_seed(5)
for num_keys in (10, 100, 1_000, 10_000):
    s, v = 5 * torch.randn(num_keys, 1, generator=draw), torch.randn(num_keys, 64, generator=draw)
    at_once = (s[:, 0] / LOG2_E).softmax(-1) @ v
    out, lse = online_softmax(zip(s, v, strict=True), 1, 64)
    print(f"{num_keys:6,} keys: means differ by {(out[0] - at_once).abs().max():.0e}, LSE {lse.item():.2f}")

# %% [markdown]
# So a kernel can work through the keys tile by tile. And the pair (mean, LSE) says all that has to be known about a set
# of keys: two sets can be attended to apart, by two programs or at two times, and their means put together afterwards,
# each weighted by $2^{\mathrm{LSE}}$. Lab 3 divides a long context among many programs in this way; lab 5 needs it for
# a prefix that many requests share, lab 7 for a context on several GPUs.
#
# **Takeaway.** One pass that carries D + 2 = 66 elements gives the mean over 10,000 keys, whatever their number.

# %% [markdown]
# ## 5. Attention in tiles
# <!-- minutes: 12 -->
#
# *Needs: CPU.*
#
# One key at a time keeps memory small but is memory-bound: it is a matrix-vector product, with about one operation per
# byte. The way out is a **tile**: some dozens of queries against some dozens of keys. Its scores are a small matrix
# that lives only in fast memory (registers and shared memory on a GPU, the caches of a CPU). This is FlashAttention
# (arXiv:2205.14135), in the order of its second version (arXiv:2307.08691): a program keeps its queries and walks over
# the keys. The first paper's algorithm has the loop over keys outside and writes the results several times.

# %%
pictures.draw_tiles(length=40, block_q=16, block_k=8)

# %% [markdown]
# Each row of tiles belongs to one set of queries, which carry `row_max`, `row_sum` and `acc` from left to right. Dotted
# tiles are hidden from all their queries, so nothing of them is loaded.
#
# PyTorch does not show how many bytes a tile moves, so we take a memory that counts. `memory.load("k", start, end)`
# gives a copy of rows `[start, end)` of a tensor, `memory.store("out", start, rows)` writes some; each is noted with
# its bytes. As with slices, rows past the end are left out, so the last tile may be shorter, and a
# tile that begins past the end is empty.

# %% tags=["setup"]
from twophase_labs.prefill.slow_memory import attention_memory, standard_attention

# %% [markdown]
# <!-- card 2.5 -->
# Exact causal attention of one head, with `q`, `k`, `v` (`[L, D]`) and `out` in slow memory. The running softmax is the
# one of 2.4, given below, with a tile in place of a key: the maximum and the sum run over the tile's columns, and `p @
# v` stands for `p * v`. What is left is the tiles: load at most `block_q` queries and `block_k` keys at a time, each
# query tile once, and no key tile that is hidden from the whole query tile.
#
# Every query sees key 0, which is in the first tile, so $m$ is finite from then on.
#
# ```python
# memory.peek("out") == naive_attention(q[:, None], k[:, None], v[:, None])       # for any tile sizes
# ```


# %% tags=["exercise:2.5"]
def tiled_attention(memory, L, D, block_q, block_k):
    for start in range(0, L, block_q):
        q = memory.load("q", start, start + block_q)
        rows = torch.arange(start, start + len(q))  # the positions of these queries
        row_max, row_sum, acc = torch.full((len(q),), -torch.inf), torch.zeros(len(q)), torch.zeros(len(q), D)
        for at in range(0, start + len(q), block_k):  # SOLUTION: where the key tiles begin that these queries need
            k, v = memory.load("k", at, at + block_k), memory.load("v", at, at + block_k)
            scores = q @ k.mT * (LOG2_E / D**0.5)  # SOLUTION: base-2 scores of the tile
            hidden = torch.arange(at, at + len(k)) > rows[:, None]  # SOLUTION: which keys are later than which queries
            scores = scores.masked_fill(hidden, -torch.inf)
            new_max = torch.maximum(row_max, scores.amax(-1))
            p, rescale = torch.exp2(scores - new_max[:, None]), torch.exp2(row_max - new_max)
            row_sum = row_sum * rescale + p.sum(-1)
            acc = acc * rescale[:, None] + p @ v
            row_max = new_max
        memory.store("out", start, acc / row_sum[:, None])  # SOLUTION `acc / row_sum[:, None]`: these queries' results


# %%
check("2.5")

# %% [markdown]
# **Exact, not approximate.** No key is left out. For any size of tile the result is the same up to rounding.

# %%
tiled_attention = use("2.5")
q, k, v = torch.randn(3, 200, 64, generator=torch.Generator().manual_seed(7))
expected = naive_attention(q[:, None], k[:, None], v[:, None])
for block_q, block_k in ((200, 200), (128, 64), (128, 16), (16, 128), (17, 33), (1, 7)):
    memory = attention_memory(q, k, v)
    tiled_attention(memory, 200, 64, block_q, block_k)
    difference = (memory.peek("out") - expected).abs().max()
    print(f"tiles of {block_q:3} x {block_k:3}: {difference:.0e} off at most, {memory.num_bytes / 1e6:6.2f} MB moved")

# %% [markdown]
# **Think first.** The bytes moved differ by a factor of fifty, for the same result. Which of the two sizes is it that
# matters (compare 128 x 16 with 16 x 128), and why?
#
# <details><summary>The answer</summary>
#
# The query tile. For each of them the keys and values before it are read once, $2 D \cdot L/2$ elements on average, and
# there are $L / B_q$ of them: $L^2 D / B_q$ in all. The key tile does not occur in it.
#
# </details>
#
# The **standard** way (scores from Q and K; weights from scores; results from weights and V, each through slow memory)
# moves $4 L^2$ elements for the matrices alone, tiles move $L^2 D / B_q$ for keys and values. So the factor saved
# approaches $4 B_q / D$. Here both ways really run, on a memory that notes every byte:

# %%
# NBVAL_CHECK_OUTPUT
saved = {f"{block_q} queries": {} for block_q in (16, 64, 256)}
for L in (256, 512, 1024, 2048):
    standard = attention_memory(*torch.ones(3, L, 64))
    standard_attention(standard)
    for block_q in (16, 64, 256):
        tiled = attention_memory(*torch.ones(3, L, 64))
        tiled_attention(tiled, L, 64, block_q, 64)
        saved[f"{block_q} queries"][L] = standard.num_bytes / tiled.num_bytes
for name, factors in saved.items():
    print(f"query tiles of {name:11}:", "  ".join(f"L = {L:5,}: {x:5.2f}" for L, x in factors.items()))

# %%
pictures.draw_saved_traffic(saved)

# %% [markdown]
# **Read the result.** Memory *held* is linear in L now, but traffic is still quadratic: keys and values are read again
# for every tile of queries. What a tile buys is the factor in front, and fast memory limits it: it must hold `q`, `acc`
# and the tile's scores. With D = 64 the factor comes close to 4 at 64 queries and heads for 16 at 256; with 16 queries
# nothing is gained. "5 to 10 times less traffic", as introductions often say, is right for some tile, not for tiling.

# %% [markdown]
# **Takeaway.** Tiles give the same attention; with 64 queries a tile and D = 64, a prompt of 2,048 tokens moves a
# quarter of the bytes that it moves with the score matrix in memory.
#
# > **In production, 2026.** Tiled attention is the default everywhere.
# > [vLLM](https://github.com/vllm-project/vllm/blob/001394336840495fb529a33f71767ecbfdc88372/docs/design/attention_backends.md)
# > tries `FLASH_ATTN` first on Ampere and Hopper and `FLASHINFER` on Blackwell; `--attention-backend` overrides.
# > [SGLang](https://github.com/sgl-project/sglang/blob/000984ed03d93e6622777f500d76a59837b0c42b/docs/advanced_features/attention_backend.md)
# > takes `fa3` on Hopper and [`trtllm_mha` on
# > Blackwell](https://docs.sglang.io/advanced_features/attention_backend.html). By roofline, on an H100: one head at
# > 16,384 tokens, D = 64, in bfloat16, is 35 microseconds of arithmetic; its score matrix alone, moved four times,
# > takes 640.

# %% [markdown]
# ## 6. A first kernel: fusion
# <!-- minutes: 23 -->
#
# *Needs: Triton.*
#
# Tiled attention in PyTorch has the right algorithm, but every line launches its own kernel and writes its result to
# slow memory. To keep a tile in registers from its first product to its last, the whole loop has to be *one* kernel.
# This section writes a short kernel whole, the next one writes attention.
#
# **Triton** lets you write GPU kernels in Python. You write what one **program** does; the GPU runs thousands of them
# side by side, and each finds out from its number which part of the output is its own.

# %%
print(how_kernels_run())

# %% [markdown]
# Compiled for a processor, programs are run by its cores, as many side by side as there are cores. Each launch of a
# kernel of yours is *checked* then: an access outside of a tensor stops it with an error that names the line, the
# program, the tensor and the index, and so does a loop that has not ended after ten seconds. To look into a kernel with
# `print`, have it interpreted: make `%env TWOPHASE_KERNELS=interpreted` the notebook's first cell, and restart its
# kernel. That is much slower, and nothing is checked: an access far outside ends the notebook's kernel, so run yours
# compiled first. Where there is no C compiler, kernels are interpreted anyway.
#
# Four things make up nearly all of a Triton kernel. Here they are in the smallest one that needs them: the largest
# element of each row. (`tl.constexpr` marks an argument that is known when the kernel is compiled, as the size of a
# tile must be.)


# %%
@triton.jit
def row_max_kernel(x_ptr, out_ptr, num_columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)  # 1. which part of the work is mine
    columns = tl.arange(0, BLOCK)  # 2. a tile of elements at once; its length is a power of two
    mask = columns < num_columns  # 3. what of the tile exists
    x = tl.load(x_ptr + row * num_columns + columns, mask=mask, other=float("-inf"))  # 4. pointers, elementwise
    tl.store(out_ptr + row, tl.max(x, axis=0))


# %% [markdown]
# A pointer plus a tile of offsets is a tile of pointers. Where the mask is false nothing is read and `other` stands
# there instead: without a mask the program reads whatever lies behind the row. Behind the last row the checks stop it,
# which no GPU does; behind the first lies the second, and nobody warns you. For a tile with two axes,
# `(a < m)[:, None] & (b < n)[None, :]` combines masks (`and` is deprecated, and wrong in the interpreter). And a
# pointer knows no strides: these kernels take contiguous tensors.

# %%
# NBVAL_CHECK_OUTPUT
# needs: triton
x = torch.tensor([[3.0, -1.0, 2.0], [-5.0, -4.0, -9.0]], device=device)
largest = torch.empty(2, device=device)
row_max_kernel[(2,)](x, largest, num_columns=3, BLOCK=4)  # [(2,)] is the grid: two programs
print(largest.tolist())

# %% [markdown]
# ### Residual and norm in one kernel
#
# What is never written need not be read. Between the matrix products of a layer stand small operations: adding the
# residual, the norm, the rotation, the gate of the MLP. They have hardly any arithmetic, and in PyTorch each of them
# reads its inputs from slow memory and writes its result there, as standard attention did. **Fusion** makes one kernel
# of a chain of them: intermediates stay in registers.
#
# ```mermaid
# flowchart LR
#     X[("x")] --> A["+"]
#     R[("residual")] --> A
#     A --> H[("h")]
#     A --> N["square, mean, + eps, root"]
#     A --> S["h · root · weight"]
#     N --> S
#     W[("weight")] --> S
#     S --> Y[("y")]
# ```
#
# The cylinders are in slow memory, the boxes in registers. The norm's chain reads x and the residual, and hands on two
# results: `y` goes into the next projection, `h` is the residual of the next addition.

# %% [markdown]
# **Think first.** Run as seven operations of PyTorch (add, square, mean, add eps, root, two products), how often does
# an array of x's size cross the border? And as one kernel?

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.prefill.chains import add_rmsnorm, noted_bytes

x, residual = torch.randn(2, 4096, 576, generator=torch.Generator().manual_seed(0))  # 4,096 tokens of SmolLM2
apart = noted_bytes(lambda: add_rmsnorm(x, residual, torch.ones(576), 1e-5))  # noted while PyTorch's operations run
as_one = 4 * x.nbytes
print(f"seven operations {apart / 1e6:.1f} MB, one kernel {as_one / 1e6:.1f} MB: {apart / as_one:.1f} times less")

# %% [markdown]
# An array of x's size crosses the border ten times when the steps run apart, and four times as one: x and the residual
# in, h and y out. The chain is worth a kernel: it runs twice in every layer. Write it whole; the capstone runs it in
# the engine.

# %% tags=["setup"]
from twophase_labs.prefill.launch import launch_add_rmsnorm

# %% [markdown]
# <!-- card 2.6 -->
# Add the residual and normalise, a program per row: $h = x + \mathrm{residual}$, $y = h / \sqrt{\mathrm{mean}(h^2) +
# \epsilon} \cdot \mathrm{weight}$ (RMSNorm, arXiv:1910.07467). `launch_add_rmsnorm(kernel, x, residual, weight, eps)`
# allocates y and h, starts a program for each of the T rows, and returns (y, h). Begin with `row_max_kernel`. You need
# three loads, with `other=0.0`, so that the padding adds nothing to the sum; two stores; `tl.sum(x, axis=0)`; and
# `tl.rsqrt(x)`, which is one over the root.


# %% tags=["exercise:2.6"]
@triton.jit
def add_rmsnorm_kernel(
    x_ptr,  # [T, N]
    residual_ptr,  # [T, N]
    weight_ptr,  # [N]
    y_ptr,  # [T, N]
    h_ptr,  # [T, N]
    eps,
    N: tl.constexpr,
    BLOCK_N: tl.constexpr,  # N, rounded up to a power of two
):
    """One program: one row, [N]. It loads the row of x and of residual once, and stores the row of h and of y.

    >>> x, residual = torch.tensor([[3.0, 0.0]], device=device), torch.tensor([[0.0, 4.0]], device=device)
    >>> y, h = launch_add_rmsnorm(add_rmsnorm_kernel, x, residual, torch.ones(2, device=device), 0.0)
    >>> h.tolist()
    [[3.0, 4.0]]
    >>> [round(element, 4) for element in y[0].tolist()]  # over the root of (9 + 16) / 2
    [0.8485, 1.1314]
    """
    # BEGIN SOLUTION: which row, which columns exist; load, add, store h; normalise, store y
    row, columns = tl.program_id(0), tl.arange(0, BLOCK_N)
    mask = columns < N
    offs = row * N + columns
    h = tl.load(x_ptr + offs, mask=mask, other=0.0) + tl.load(residual_ptr + offs, mask=mask, other=0.0)
    tl.store(h_ptr + offs, h, mask=mask)
    mean_square = tl.sum(h * h, axis=0) / N
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    tl.store(y_ptr + offs, h * tl.rsqrt(mean_square + eps) * weight, mask=mask)
    # END SOLUTION


# %%
check("2.6")

# %% [markdown]
# **By the clock**, on the same 4,096 rows, the best of fifteen runs of each. (A kernel that has passed its check may be
# `trusted`: it runs without the checks of its accesses, as the engine's own kernels do.)

# %%
# needs: triton
from twophase_labs.machine.kernels import trusted

add_rmsnorm_kernel = use("2.6")
inputs = x.to(device), residual.to(device), torch.ones(576, device=device), 1e-5
ways = {
    "seven operations": lambda: add_rmsnorm(*inputs),
    "your kernel": lambda: launch_add_rmsnorm(add_rmsnorm_kernel, *inputs),
}
with trusted():
    rounds = [{name: seconds(run) for name, run in ways.items()} for _ in range(15)]
for name in ways:
    print(f"{name:16} {1e3 * min(times[name] for times in rounds):5.1f} ms")

# %% [markdown]
# **Read the result.** By their bytes the two differ by a factor of 2.5. Your clock may show less: where a cache keeps
# an array from one operation to the next, that trip never reaches memory.
#
# **Takeaway.** Fused, residual and norm move 2.5 times fewer bytes; no arithmetic is saved, only trips to memory.
#
# > **In production, 2026.** Most fusion is done by compilers today.
# > [vLLM](https://docs.vllm.ai/en/v0.18.2/design/fusions/) compiles models with `torch.compile` and adds passes of its
# > own by its optimization level (`-O2` by default). By roofline, on an H100: SiLU x up of 4,096 tokens of an 8B model,
# > 14,336 wide, takes 280 microseconds in bfloat16 as three operations and 105 as one, in each of 32 layers.

# %% [markdown]
# ## 7. FlashAttention, from an empty body
# <!-- minutes: 34 -->
#
# *Needs: Triton.*
#
# Now the loops of section 5 as one kernel, for one head of one prompt: q, k, v and the results are `[L, D]`. The table
# has all its pieces. The outer loop becomes the grid: a program per tile of `BLOCK_M` queries. The inner loop stays a
# loop, over tiles of `BLOCK_N` keys up to the diagonal; its state stays in registers.
#
# | in `tiled_attention` | in Triton |
# |---|---|
# | the rows of a tile | `k_ptr + keys[:, None] * D + offs_d[None, :]`, a tile of pointers, `[BLOCK_N, BLOCK_D]` |
# | `memory.load("k", at, at + block_k)` | `tl.load(pointers, mask=mask, other=0.0)`; without `other` it may be NaN |
# | `memory.store("out", start, x)` | `tl.store(pointers, x, mask=mask)` |
# | `q @ k.mT` | `tl.dot(q, tl.trans(k), input_precision="ieee")` |
# | `p @ v` | `tl.dot(p.to(v.dtype), v, input_precision="ieee")`: both of one type, and later cells use float16 |
# | `masked_fill(hidden, -torch.inf)` | `tl.where(visible, scores, float("-inf"))` |
# | `scores.amax(-1)`, `p.sum(-1)` | `tl.max(scores, axis=1)`, `tl.sum(p, axis=1)` |
# | `torch.exp2`, `torch.maximum` | `tl.exp2`, `tl.maximum` |
# | `row_sum.log2()`, `min(a, b)` | `tl.log2(row_sum)`, `tl.minimum(a, b)` |
# | `torch.full`, `torch.zeros` | `tl.full([BLOCK_M], float("-inf"), tl.float32)`, `tl.zeros([BLOCK_M], tl.float32)` |
#
# (A GPU has units for products of small matrices, *tensor cores*; their elements have 16 bits. `input_precision` says
# how float32 may be rounded for them; "ieee" does not round, and takes the ordinary units. A tile of `tl.dot` has at
# least 16 rows and columns, hence `BLOCK_D`: D rounded up to a power of two, 16 or more.)
#
# **Think first.** L = 40, tiles of 16 by 16. How many programs are there, and how many key tiles does each load? Which
# rows of the last program must not be stored?
#
# <details><summary>An answer</summary>
#
# Three programs, with 1, 2 and 3 tiles. Rows 40 to 47 of the last one do not exist: they are loaded as zeros and
# computed along, but a store would write behind the tensor.
#
# </details>

# %% tags=["setup"]
from twophase_labs.prefill.launch import launch_flash_attention

# %% [markdown]
# <!-- card 2.7 -->
# Write it whole: exact causal attention of one head, the LSE beside it, no key tile above the diagonal.
# `launch_flash_attention(kernel, q, k, v, scale)` allocates both results, starts the programs and returns
# `(out, lse)`. When the check fails it draws a map of what your kernel reads: one-hot values turn its output into its
# weights. In a kernel, a variable keeps its shape and type from turn to turn of a loop; `acc` stays float32.


# %% tags=["exercise:2.7"]
@triton.jit
def flash_attention_kernel(
    q_ptr,  # [L, D]
    k_ptr,  # like q_ptr
    v_ptr,  # like q_ptr
    out_ptr,  # [L, D]
    lse_ptr,  # fp32 [L], base 2
    qk_scale,  # score scale * log2(e)
    L,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,  # rows of q of a program
    BLOCK_D: tl.constexpr,  # columns of a tile, at least D
    BLOCK_N: tl.constexpr,  # keys of a tile
):
    """One program: BLOCK_M rows of q, [L, D], over the keys that they see; the grid is (cdiv(L, BLOCK_M),).

    >>> one = torch.ones(1, 16, device=device)
    >>> out, lse = launch_flash_attention(flash_attention_kernel, one, one, 3 * one, 0.0)
    >>> out[0, :2].tolist(), lse.tolist()  # it sees itself only, with a score of 0
    ([3.0, 3.0], [0.0])
    >>> two, values = torch.ones(2, 16, device=device), torch.tensor([[1.0], [5.0]], device=device).expand(2, 16)
    >>> out, lse = launch_flash_attention(flash_attention_kernel, two, two, values.contiguous(), 0.0)
    >>> out[:, 0].tolist(), lse.tolist()  # the second row sees both
    ([1.0, 3.0], [0.0, 1.0])
    """
    # BEGIN SOLUTION: the tile of queries; a loop over tiles of keys; two stores
    rows, offs_d = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    mask_q = (rows < L)[:, None] & (offs_d < D)[None, :]
    q = tl.load(q_ptr + rows[:, None] * D + offs_d[None, :], mask=mask_q, other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    hi = tl.minimum((tl.program_id(0) + 1) * BLOCK_M, L)
    for start in range(0, hi, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        mask_kv = (keys < hi)[:, None] & (offs_d < D)[None, :]
        k = tl.load(k_ptr + keys[:, None] * D + offs_d[None, :], mask=mask_kv, other=0.0)
        v = tl.load(v_ptr + keys[:, None] * D + offs_d[None, :], mask=mask_kv, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale
        scores = tl.where(keys[None, :] <= rows[:, None], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        p = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(p, axis=1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        row_max = new_max
    tl.store(out_ptr + rows[:, None] * D + offs_d[None, :], acc / row_sum[:, None], mask=mask_q)
    tl.store(lse_ptr + rows, row_max + tl.log2(row_sum), mask=rows < L)
    # END SOLUTION


# %%
check("2.7")

# %% [markdown]
# **By the clock**, against the two ways of section 3, one head of 64 elements.

# %%
# needs: triton
flash_attention_kernel = use("2.7")
for L in (512, 2048):
    q, k, v = torch.randn(3, L, 64, generator=torch.Generator().manual_seed(L)).to(device)
    ways = {
        "naive": lambda q=q, k=k, v=v: naive_attention(*(x.cpu()[:, None] for x in (q, k, v))),
        "PyTorch's": lambda q=q, k=k, v=v: fused(*(x.cpu()[:, None] for x in (q, k, v))),
        "yours": lambda q=q, k=k, v=v: launch_flash_attention(flash_attention_kernel, q, k, v, 1 / 8),
    }
    with trusted():
        ways["yours"]()  # compiled in the first call
        ms = {name: 1e3 * seconds(way, repeats=10) for name, way in ways.items()}
    print(f"{L:5,} tokens: " + ", ".join(f"{name} {value:6.2f} ms" for name, value in ms.items()))

# %% [markdown]
# **Read the result.** Your kernel never has the matrix, so compare the three as the prompt grows. The products of
# PyTorch's own are tuned for this very processor; yours are what a compiler made of `tl.dot`. (On a GPU the first two
# ways still run on the processor: compare yours at the two lengths.)
#
# **Takeaway.** Exact attention in one kernel is a grid over query tiles, a loop over key tiles that ends at the
# diagonal, two products, and a state of D + 2 elements per row.

# %% [markdown]
# ## 8. Where K and V go: slots
# <!-- minutes: 6 -->
#
# *Needs: CPU; Triton for the kernel.*
#
# Your kernel reads a head whose rows lie one after another. In an engine, memory for keys and values is allocated in
# **blocks** of `block_size` tokens. N of them form a pool, `[N, H_kv, block_size, D]` per layer,
# and each sequence has a **block table** with the numbers of its blocks in order. (In this lab's Triton code a block is
# called `PAGE`, after PagedAttention, because there `BLOCK_*` means a tile.) Lab 3 hands out the blocks; here they are
# given.
#
# The place of one token is its **slot**, a number that names block and offset at once:
#
# $$\text{slot} = \text{block} \cdot \text{block size} + \text{offset}$$
#
# ```mermaid
# flowchart LR
#     P["position 9"] --> D["9 // 4 = 2<br/>which entry"]
#     P --> M["9 % 4 = 1<br/>which offset"]
#     D --> T["block table<br/>[6, 1, 4] → block 4"]
#     T --> S["slot 4 · 4 + 1 = 17"]
#     M --> S
# ```
#
# Consecutive positions are consecutive slots only within a block; at a block's end they jump.


# %% tags=["setup"]
def slot_mapping(block_table, start, end, block_size):
    """The slots of positions `start` to `end - 1` of one sequence: int64 [end - start]."""
    positions = torch.arange(start, end)
    blocks = block_table[positions // block_size].long()  # int64: a block's number times its size may exceed int32
    return blocks * block_size + positions % block_size


# %%
# NBVAL_CHECK_OUTPUT
table = torch.tensor([6, 1, 4], dtype=torch.int32)
print("prompt of 6:       ", slot_mapping(table, 0, 6, 4).tolist())
print("the next 5 tokens: ", slot_mapping(table, 6, 11, 4).tolist())

# %% [markdown]
# **Who writes.** A kernel with a program per token reads the token's slot, then moves the K and V of its H_kv heads. In
# the cache the heads of a token do not lie side by side, since the layout is `[N, H_kv, PAGE, D]`: a block has all
# slots of head 0, then all of head 1. Attention wants it so, because a program reads one KV head and many slots. Each
# layer has a tensor of its own.
#
# The kernel below minds two traps. H_kv need not be a power of two, nor need D, and SmolLM2 has 3 KV heads: the tile is
# 4 heads wide, and the fourth does not exist. And some tokens are written nowhere: an engine that pads its batch gives
# the padding the slot -1.


# %% tags=["setup"]
@triton.jit
def kv_write_kernel(
    k_ptr,  # [T, H_KV, D]
    v_ptr,  # like k_ptr
    k_cache_ptr,  # [N, H_KV, PAGE, D]
    v_cache_ptr,  # like k_cache_ptr
    slot_mapping_ptr,  # int64 [T]; negative: nothing is written
    H_KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One program: K and V of one token, all its heads."""
    token = tl.program_id(0)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:  # this token goes nowhere
        return
    offs_h = tl.arange(0, BLOCK_H)
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs_h < H_KV)[:, None] & (offs_d < D)[None, :]  # [BLOCK_H, BLOCK_D], which elements exist
    from_rows = token * H_KV + offs_h  # [BLOCK_H], rows of k, seen as [T * H_KV, D]
    to_rows = (slot // PAGE * H_KV + offs_h) * PAGE + slot % PAGE  # [BLOCK_H], rows of k_cache likewise
    from_offs = from_rows[:, None] * D + offs_d[None, :]
    to_offs = to_rows[:, None] * D + offs_d[None, :]
    k = tl.load(k_ptr + from_offs, mask=mask, other=0.0)
    v = tl.load(v_ptr + from_offs, mask=mask, other=0.0)
    tl.store(k_cache_ptr + to_offs, k, mask=mask)
    tl.store(v_cache_ptr + to_offs, v, mask=mask)


# %% [markdown]
# **Think first.** What would happen to the cache if the store had no mask for the heads? Which tokens would be
# overwritten, and when would it show?
#
# <details><summary>An answer</summary>
#
# Head 3 of block n lies where head 0 of block n + 1 begins. So each write would also overwrite the same slot of head 0
# in the next block of the *pool*, with zeros: that is what the masked load gave for head 3. If the next block belongs
# to another sequence, that request's answers change; if it belongs to this one, the result depends on which program
# stores last. Nothing shows as long as the next block is free.
#
# </details>

# %% [markdown]
# **Look into the pool.** Ten tokens whose keys are 1, 2, ... 10 throughout, written into these slots by this kernel.
# The seventh has slot -1, as if it were padding.

# %%
# needs: triton
from twophase_labs.prefill import prefill_pictures
from twophase_labs.prefill.launch import launch_kv_write

slots = slot_mapping(table, 0, 10, 4)
slots[6] = -1
new = torch.arange(1.0, 11)[:, None, None].expand(10, 3, 16).contiguous().to(device)
pool = torch.zeros(2, 8, 3, 4, 16, device=device)
launch_kv_write(kv_write_kernel, new, -new, pool[0], pool[1], slots.to(device))
prefill_pictures.draw_slots(pool[0, :, :, :, 0].cpu())

# %% [markdown]
# Each block holds all heads, and each head its own slots. The kernel computes nothing, it moves bytes. Per token of
# SmolLM2 in float32:

# %%
# NBVAL_CHECK_OUTPUT
bytes_per_layer = 2 * 3 * 64 * 4  # K and V, KV heads, head size, bytes of a float32
print(f"written per token: {30 * bytes_per_layer:,} bytes in 30 layers (and as many read)")
print(f"weights read for it, if it comes alone: {4 * 134_515_008:,} bytes")

# %% [markdown]
# **Takeaway.** A position becomes a slot by one division and one look-up; a token's K and V are 46,080 bytes in
# SmolLM2, four orders of magnitude less than the weights that it needs.
#
# > **In production, 2026.** [vLLM](https://docs.vllm.ai/en/v0.29.0/api/vllm/config/cache/) has blocks of 16 tokens by
# > default (`--block-size`),
# > [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html) of 32
# > (`tokens_per_block`), and
# > [SGLang](https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md)
# > of 1, unless the attention backend asks for more (`--page-size`). In a model whose layers are not all alike the
# > block may be large: Qwen3.5's attention layers get blocks of 528 tokens in vLLM, to match the state of its linear
# > layers ([#40696](https://github.com/vllm-project/vllm/issues/40696)). By roofline, on an H100: K and V of 2,048
# > tokens in one layer of an 8B model, in bfloat16, are read and written in 5 microseconds.

# %% [markdown]
# ## 9. Ragged batches and chunks
# <!-- minutes: 6 + 2 -->
#
# *Needs: CPU.*
#
# A PyTorch tensor needs rows of equal length; prompts have different lengths. The obvious remedy is padding: make every
# prompt as long as the longest, mask what was added, throw its results away. But padding goes through every matrix
# product of every layer.

# %%
from twophase_labs.prefill import prefill_pictures  # again, for where Triton's cells were not run

prefill_pictures.draw_padding([3, 4, 5])

# %% [markdown]
# **Packed**, the tokens lie one after another, and `cu_query_lens`, the *cumulative* lengths, say where
# each prompt begins and ends: prompt s is tokens `cu_query_lens[s]` to `cu_query_lens[s + 1] - 1`. Everything that
# works on tokens one by one (projections, MLP, norms) never notices. Attention has to: tokens of different prompts must
# not see each other. As a mask this is a row of triangles along the diagonal.

# %%
prefill_pictures.draw_packed_mask([3, 4, 5])

# %%
# NBVAL_CHECK_OUTPUT
for lengths in ([3, 4, 5], [30, 50, 120, 1_000], [200] * 4):
    padded, packed = len(lengths) * max(lengths), sum(lengths)
    print(f"{lengths!s:20} padded {padded:5,}  packed {packed:5,}  waste {1 - packed / padded:4.0%}")
lengths = [30, 50, 120, 1_000]
pairs = {
    "padded, a rectangle each": len(lengths) * max(lengths) ** 2,
    "packed, with a mask": sum(lengths) ** 2,
    "what is needed": sum(n * (n + 1) // 2 for n in lengths),
}
for name, count in pairs.items():
    print(f"{name:26} {count:9,} scores per head")

# %% [markdown]
# Real traffic looks like the second line, not like the first: a few long prompts among many short ones. Sorting
# prompts into batches of similar length helps, and makes short ones wait; packing costs nothing.
#
# The second table is about attention alone. The mask makes packing *right*, not cheap: most of its scores are masked. A
# kernel needs no mask between prompts. Its loop runs over one sequence's keys and ends at the diagonal, so it comes
# close to the last line. Hence *variable-length* attention kernels, and `cu_query_lens` in their signatures. (Orca, in
# 2022, batched everything but attention, and "attention cannot be batched" is still repeated. With such a kernel it
# can.)

# %% [markdown]
# ### Chunked prefill
#
# A prompt of 8,000 tokens in one step keeps the machine busy for a long while, and all other requests wait. So engines
# cut it: 512 tokens in this step, beside the decodes of other requests, 512 in the next. Lab 4 schedules this; here the
# question is whether it is *allowed*. Does a prompt in chunks give what it gives at once?
#
# By the causal mask it must: a row needs the keys before it, and they are there, in the blocks, from earlier chunks.

# %%
prefill_pictures.draw_chunks(num_tokens=12, chunk=5)

# %% [markdown]
# The first band is a triangle of its own. In every later one there is history on the left, which all rows see, and a
# triangle at the right end.
#
# **Think first.** Three things have to be shifted for the second band, and each is easily forgotten: where the keys
# end, where the mask's diagonal lies, and one more, which is done to q and k before they are multiplied. Which?
#
# <details><summary>The answer</summary>
#
# Their rotation. The first token of the second band stands at position 5, not 0, so its query and key are rotated by
# position 5. All three follow from the number of tokens before the chunk, here 5.
#
# </details>

# %% [markdown]
# **Takeaway.** Four prompts of 30 to 1,000 tokens waste 70 % of all positions when padded, and none when packed. A
# prompt in chunks gives what it gives at once, as long as keys, mask and rotation count the tokens before the chunk.
#
# > **In production, 2026.**
# > [vLLM](https://github.com/vllm-project/vllm/blob/00620f91ea186ca295a1eb69f4acba9d0efaaaaa/docs/configuration/optimization.md)
# > chunks prefills by default wherever the model allows it, by what `max_num_batched_tokens` leaves after the decodes.
# > [SGLang](https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md)
# > has `--chunked-prefill-size` (-1 switches it off). In
# > [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/llm-api/reference/TorchLlmArgs.html) it is off until
# > `enable_chunked_prefill=True`. By roofline, on an H100: weights of 16 GB take 4.8 ms to read, as long as the
# > arithmetic of about 300 tokens; chunks above that cost little.

# %% [markdown]
# ### Going further: what chunks cost
#
# Chunking is exact (section 10 shows it) and not free. Each chunk is a forward pass of its own, which reads all weights
# once more. For a prompt of 4,096 tokens, on Llama-3-8B in two-byte elements, with your counts:

# %%
# NBVAL_CHECK_OUTPUT
L, products = 4096, LLAMA_3_8B.projections.values()
for size in (4096, 1024, 512, 256, 64):
    costs = [matmul_cost(size, inner, columns, 2) for inner, columns in products]
    intensity = sum(f for f, _ in costs) / sum(b for _, b in costs)
    print(
        f"chunks of {size:4}: the weights are read {L // size:2} times, {intensity:6.1f} FLOP per byte in projections"
    )

# %% [markdown]
# Keys and values argue against small chunks, too, but less: tiled attention reads them once per query tile, whether the
# tiles come in one step or in eight. On a GPU the tiles of one head run at the same time and share K and V in the L2
# cache; a small chunk has few tiles to share them. What small chunks lose above all is intensity: at 64 tokens a weight
# that is read is used 64 times only, which is below the ridge of an A100. So make chunks as large as the latency of the
# other requests allows (lab 4).

# %% [markdown]
# ## 10. The paged prefill kernel
# <!-- minutes: 27 + 16 -->
#
# *Needs: Triton.*
#
# The kernel of section 7, extended to what an engine has: K and V in blocks, many prompts in one batch, chunks behind a
# history, and heads that share K and V. The loop, the products and the state stay as you wrote them.
#
# | piece | from section | in the kernel |
# |---|---|---|
# | which KV head a query head reads | 1 | `heads` |
# | the loop, the running softmax, the stores | 7 | as they are |
# | from a position to the place of its K and V | 8 | `page_ids`, `kv_rows` |
# | where a chunk begins in the flat batch | 9 | `rows` |
# | the positions of a later chunk | 9 | `row_positions` |

# %% [markdown]
# **Which program does what.** A program takes `BLOCK_Q` tokens of one chunk, and of each token the G query heads that
# share one KV head. So a tile of K and V is loaded once for `BLOCK_Q · G` rows; the rest of the `BLOCK_M` are idle. Row
# r of a program is token `r // G` of its tile, and query head `kv_head · G + r % G`. Below, A has a chunk of 5 tokens
# behind 6 in the cache, and B a whole prompt of 6. At the bottom are the rows of one program, with G = 3 and, to be
# drawn, only 8 rows. (For an idle row the formula names a
# token of the next tile, which only that tile's program may store.)

# %%
prefill_pictures.draw_programs(query_lens=[5, 6], cached=[6, 0], group=3, block_m=8)

# %% [markdown]
# The grid has as many query tiles as the *longest* chunk needs; in a shorter chunk the last programs find nothing to
# do, and return.
#
# **Think first.** A program has the queries at positions 6 and 7 of its sequence, and keys come in tiles of 4. How many
# tiles does it have to look at, and in which of them does it need a mask?
#
# <details><summary>The answer</summary>
#
# Two: keys 0 to 3 and 4 to 7; the loop ends at position 8. The first is visible to both rows and needs no mask, the
# second does, because the row at position 6 must not see key 7.
#
# </details>

# %% [markdown]
# <!-- card 2.8 -->
# Causal attention of a ragged batch over the blocks of a cache. A row at position p sees the keys at positions 0 to p;
# a chunk's tokens are the last `chunk_len` of their sequence. As in 2.7, no key tile above the diagonal is loaded: the
# loop ends behind the program's own last token. The row of K, seen as `[N * H_KV * PAGE, D]`, is
#
# $$(\text{block} \cdot H_{kv} + \text{kv head}) \cdot \text{PAGE} + \text{offset},
# \qquad \text{block} = \text{table}[\lfloor \text{position} / \text{PAGE} \rfloor]$$
#
# Make the block numbers int64 before they are multiplied, `page_ids.to(tl.int64)`: a cache may hold more than 2^31
# elements, which this lab's small pools cannot show.
#
# The lines that find the program's sequence, chunk and tokens are given. Copy the body of your kernel 2.7 below them:
# the state, the products, the update and the stores, about 15 lines, stay as they are; which rows, which keys and what
# is visible change.
#
# ```python
# a prompt of one token          # attends to itself: out is v of its slot
# another order of the blocks    # the same result, with the block table changed to match
# ```


# %% tags=["exercise:2.8"]
@triton.jit
def paged_prefill_kernel(
    q_ptr,  # [T, H, D]
    k_ptr,  # [N, H_KV, PAGE, D]
    v_ptr,  # like k_ptr
    block_tables_ptr,  # int32 [S, W]
    seq_lens_ptr,  # int32 [S]
    cu_query_lens_ptr,  # int32 [S + 1]
    out_ptr,  # [T, H, D]
    lse_ptr,  # fp32 [T, H]
    qk_scale,  # score scale * log2(e)
    table_row_stride,  # elements from one row of block_tables to the next
    H: tl.constexpr,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_Q tokens of one chunk and the G query heads of one KV head, over all keys they see."""
    G: tl.constexpr = H // H_KV
    BLOCK_Q: tl.constexpr = BLOCK_M // G
    sequence, kv_head = tl.program_id(1), tl.program_id(2)
    chunk_start = tl.load(cu_query_lens_ptr + sequence)
    chunk_len = tl.load(cu_query_lens_ptr + sequence + 1) - chunk_start
    first_token = tl.program_id(0) * BLOCK_Q  # counted from chunk_start, as tokens are
    if first_token >= chunk_len:
        return
    seq_len = tl.load(seq_lens_ptr + sequence)
    num_cached = seq_len - chunk_len  # tokens of this sequence before its chunk
    offs_m, offs_d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    tokens = first_token + offs_m // G  # [BLOCK_M], the token of each row, counted from the start of the chunk
    # BEGIN SOLUTION: heads, rows and positions; q; the loop over tiles of keys; both stores
    heads = kv_head * G + offs_m % G
    rows = (chunk_start + tokens) * H + heads
    row_positions = num_cached + tokens
    mask_m = (offs_m < BLOCK_Q * G) & (tokens < chunk_len)
    mask_q = mask_m[:, None] & (offs_d < D)[None, :]
    q = tl.load(q_ptr + rows[:, None] * D + offs_d[None, :], mask=mask_q, other=0.0)

    hi = tl.minimum(num_cached + first_token + BLOCK_Q, seq_len)
    table_ptr = block_tables_ptr + sequence * table_row_stride
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, hi, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        in_range = positions < hi
        page_ids = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0)
        kv_rows = (page_ids.to(tl.int64) * H_KV + kv_head) * PAGE + positions % PAGE
        mask_kv = in_range[:, None] & (offs_d < D)[None, :]
        k = tl.load(k_ptr + kv_rows[:, None] * D + offs_d[None, :], mask=mask_kv, other=0.0)
        v = tl.load(v_ptr + kv_rows[:, None] * D + offs_d[None, :], mask=mask_kv, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale
        visible = in_range[None, :] & (positions[None, :] <= row_positions[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        p, rescale = tl.exp2(scores - new_max[:, None]), tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(p, axis=1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        row_max = new_max
    tl.store(out_ptr + rows[:, None] * D + offs_d[None, :], acc / row_sum[:, None], mask=mask_q)
    tl.store(lse_ptr + rows, row_max + tl.log2(row_sum), mask=mask_m)
    # END SOLUTION


# %%
check("2.8")

# %% [markdown]
# **What it reads.** As in the check, on the two sequences above: with a one-hot V per slot the output is the weight of
# every slot. A's chunk is the lower part of a triangle, since six tokens came before; B's is a whole one. Between the
# two there is nothing, and no work was spent to find that out.

# %%
# needs: triton
paged_prefill_kernel = use("2.8")
prefill_pictures.draw_reads(paged_prefill_kernel, query_lens=[5, 6], cached=[6, 0])

# %% [markdown]
# **Any chunk size.** A prompt of 100 tokens with the heads of SmolLM2, its K and V in blocks of 16, in pieces.

# %%
# needs: triton
from twophase_labs.prefill.launch import launch_paged_prefill

draw = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(100, heads, 64, generator=draw).to(device) for heads in (9, 3, 3))
shuffled = torch.randperm(8, generator=draw).int()  # the block table
pool = torch.zeros(2, 8, 3, 16, 64, device=device)
launch_kv_write(kv_write_kernel, k, v, pool[0], pool[1], slot_mapping(shuffled, 0, 100, 16).to(device))


def in_chunks(size):
    rows = []
    for first in range(0, 100, size):
        end = min(first + size, 100)
        lens, bounds = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([end], [0, end - first]))
        inputs = q[first:end], pool[0], pool[1], shuffled[None].to(device), lens, bounds
        rows.append(launch_paged_prefill(paged_prefill_kernel, *inputs, 1 / 8)[0])
    return torch.cat(rows)


for size in (1, 7, 16, 64):
    print(f"chunks of {size:2}: largest difference {(in_chunks(size) - in_chunks(100)).abs().max():.0e}")

# %% [markdown]
# Equal, whatever the size; chunks need not even end where blocks do. A chunk of 1 is worth a second
# look: one query against all keys before it. That is a *decode step*. Prefill and decode are one operation at two ends
# of a scale; lab 3 runs this kernel at that end, and counts what it costs.

# %% [markdown]
# **Count the tiles.** A tile above the diagonal is never loaded: the loop ends behind the program's last token. Of
# those that are loaded only the ones that meet the diagonal need a mask. With tiles of 128 rows and 32 keys (an
# example; the launcher takes others) and G = 3, a program has 128 // 3 = 42 tokens, and two rows stay unused.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.prefill.tile_counts import count_tiles

print(f"{'prompt':>7} {'tiles':>7} {'loaded':>7} {'masked':>7}")
for length in (64, 256, 1024, 4096):
    tiles = count_tiles(num_cached=0, chunk_len=length, block_q=128 // 3, block_n=32)
    print(f"{length:7,} {tiles.all:7,} {tiles.loaded / tiles.all:7.0%} {tiles.masked / tiles.all:7.0%}")

# %% [markdown]
# **Takeaway.** With tiles of 128 rows and 32 keys, a prompt of 4,096 tokens needs 51 % of the square's tiles; only 2 %
# need a mask.

# %% [markdown]
# ### Going further: open the engine
#
# The engine's kernel has nearly the same arguments, loop and names (your `kv_rows` are called `slots` there, and the
# head's part is already in `k_ptr`). These are the lines of its loop that stand for yours, without the branches for
# quantised caches.

# %%
# needs: triton
from twophase_kernels.attend_range import attend_range
from twophase_labs.kit.open_engine import show_source

show_source(attend_range, first="next_page_ids = load_page_ids", last="acc = add_product", without="KV_FORMAT")

# %% [markdown]
# **One question.** Your loop loads the block numbers (`page_ids`) of the tile that it is about to read. Where do those
# of *this* tile come from here, and what could that buy on a GPU?
#
# <details><summary>The answer</summary>
#
# They were loaded one tile earlier, as `next_page_ids`, and carried through the loop. Loaded in the same turn they make
# the loads of K and V indirect, and Triton's software pipeliner then makes room for fewer tiles in shared memory. (In
# the compiled code for an H100: 3 tiles instead of 2, so that 2 instead of 1 are in flight while one is multiplied; for
# an A100, whose products take their tiles from registers, room for 2 instead of 1.)
#
# The other differences: `MASKED` is known at compile time, and the loop runs twice, first over the tiles below the
# diagonal, without comparisons. The maximum is scaled after it is taken, so that `score * scale - maximum` is one fused
# multiply-add. `WINDOW` and `NUM_SINKS` are sliding windows and sinks (lab 5).
#
# </details>
#
# Around the loop, the engine's kernel differs in its grid. It finds the sequence of a program by binary search, so
# that it needs about as many programs as there is work; in yours, a batch of one long chunk and several short ones has
# many programs that find nothing to do, and still have to be started.

# %% [markdown]
# ### Going further: which idea does what
#
# Three names are easily confused, because the kernels of engines have all three ideas at once.
#
# | | FlashAttention | PagedAttention | FlashDecoding |
# |---|---|---|---|
# | the problem | score matrix in slow memory | room kept for the longest answer; gaps | one query cannot fill a GPU |
# | the idea | tiles, running softmax | blocks and a table | keys split among programs, results merged |
# | it changes | the order of the arithmetic | where K and V lie | which program does what |
# | the result | the same | the same | the same |
# | it matters most in | prefill | both phases | decode |
# | you wrote it in | 2.4, 2.5, 2.7 | 2.8 | lab 3 |
# | source | arXiv:2205.14135 | arXiv:2309.06180 | [Dao et al. 2023](https://pytorch.org/blog/flash-decoding/) |

# %% [markdown]
# ### Going further: inside a program
#
# One more level lies below. A program runs on one of the GPU's multiprocessors (SMs) as a few **warps** of 32 threads,
# which share its tile. The two products of a tile are the work of *tensor cores*, units that multiply small matrices in
# one instruction; each warp takes some of the rows. And loads are *asynchronous*: a warp starts the copy of a tile of K
# and V into shared memory and goes on. How many rounds of the loop may overlap in this way is the number of **stages**.
# The engine's choices for SmolLM2's heads in bfloat16:

# %%
# NBVAL_CHECK_OUTPUT
# needs: triton
from twophase_kernels.paged_prefill import prefill_tiles

for card, generation in (("A100", "ampere"), ("H100", "hopper")):
    tile = prefill_tiles(3, 64, torch.bfloat16, "none", False, max_query_len=512, generation=generation)
    rows = f"{tile.block_m} rows on {tile.num_warps} warps, {tile.block_m // tile.num_warps} each"
    print(f"{card}: {rows}; tiles of {tile.block_n} keys, {tile.num_stages} stages")

# %% [markdown]
# (Both cards get the same; the compiler makes different use of the stages, see below.) Why more than one stage?
# Suppose that a tile arrives three units of time after it was asked for, its *latency*, that its products take one, and
# that the memory can work on several requests at once. (If bandwidth were the limit, no number of stages would help.)

# %%
prefill_pictures.draw_pipeline(stages=(1, 3))

# %% [markdown]
# With room for one tile, the tensor cores wait for each; with room for three, loads overlap products and one another.
# (The picture is a simplification. Compiled with 3 stages, the engine's kernel has room for 3 tiles on an H100, and
# asks for the next one when a product is done, so that 2 are in flight; on an A100 it has room for 2.) More stages
# would hide more, and take shared memory from other programs.

# %% [markdown]
# ### Going further: what the compiler made of it
#
# The check ran your kernel twice: here, and as the code that Triton's compiler makes for an H100, executed
# instruction by instruction without one. What is executed can be counted. The threads of a warp execute a load or store
# together: one *request*, for which every **sector** of 32 bytes that any of the 32 threads touches is moved, once
# (CUDA C++ Best Practices Guide, 'Coalesced Access to Global Memory'; caches are not simulated). In the table, `a
# thread` is what each thread asks for at once, `requests` are those of all warps of all programs, and `at least` is the
# sectors that would hold a request's bytes if they lay side by side. Registers, shared memory and the loop's
# instructions are read from the compiled file. Here is a chunk of 42 tokens after 150 in the cache, in float16, with 3
# query heads and tiles of 64 rows and 64 keys:

# %%
# needs: triton
from twophase_labs.kit.microscope import show_compiled
from twophase_labs.machine.checks import Draw
from twophase_labs.machine.compiled import Compiled
from twophase_labs.prefill.paged_oracle import ragged_batch

batch = ragged_batch(Draw(2), query_lens=[42], cached=[150], heads=(3, 1), head_dim=64, page=16)
halves = {name: x.half() if x.is_floating_point() else x for name, x in batch.tensors.items()}
compiled = Compiled(paged_prefill_kernel)
launch_paged_prefill(compiled, **halves, scale=batch.scale, block_m=64, block_n=64)
show_compiled(compiled, keys_per_turn=64)

# %% [markdown]
# **Read the result.** Where `sectors each` is what `at least` says, the loads are *coalesced*: no other order of the
# threads needs fewer sectors. (Where a program's part of the LSE begins in the middle of a sector, each request moves
# one more.) A kernel whose neighbouring threads read places far apart is right as well, and moves more. *Spilled* bytes
# would be registers that found no room; *bank conflicts*, extra turns of the shared memory, when threads of a warp ask
# for different words of one of its 32 banks. Now the engine's kernel on the same tensors, with the tile that it takes
# on an H100:

# %%
# needs: triton
from twophase_kernels.paged_prefill import paged_prefill
from twophase_labs.kit.microscope import show_beside
from twophase_labs.machine.compiled import inspect_engine

engines = inspect_engine(paged_prefill, **halves, scale=batch.scale, max_query_len=42)
show_beside({"yours": compiled.report, "the engine's": engines})

# %% [markdown]
# **Read the result.** A load of K is coalesced in the engine's kernel; is it in yours? Yours was launched with 64 rows,
# so two programs read nearly the same keys; the engine's tile has 128 rows, and one program reads them once (the grid's
# second one finds nothing to do). A tile of 64 keys is 8 KB of K and 8 KB of V: one tile is in flight in yours, two in
# the engine's, because it knows the next tile's blocks already. Counted for a multiprocessor that is full of programs,
# more bytes are in flight although fewer programs fit. (Without int64 yours takes fewer registers, one more program
# fits, and the two are about even.)

# %% [markdown]
# ## 11. Capstone: your prefill in the engine
# <!-- minutes: 13 -->
#
# *Needs: Triton, and the model.*
#
# `LLM` is an engine with a scheduler, a cache manager, a model and a sampler, and one thin interface to attention. Your
# pieces go behind this interface: slots and the write kernel of section 8, your prefill kernel, your norm. What is
# missing is the glue: a function that looks at shapes, decides on the grid, allocates the output and launches.
#
# ```mermaid
# flowchart LR
#     S["scheduler<br/>chunks of this step"] --> B["batch<br/>slot_mapping"]
#     B --> M["each of 30 layers<br/>your add_rmsnorm_kernel"]
#     M --> W["own_write<br/>kv_write_kernel"]
#     W --> C[("blocks")]
#     C --> P["own_prefill<br/>your paged_prefill_kernel"]
#     P --> M
#     M --> L["logits, next tokens"]
# ```

# %% tags=["setup"]
from twophase_labs.prefill.launch import BLOCK_M, BLOCK_N

# %% [markdown]
# <!-- card 2.9 -->
# Launch both kernels. The write kernel has a program per token. The prefill kernel has a program per query tile of the
# longest chunk, per sequence, and per KV head, in this order; a tile holds as many whole tokens as fit into `BLOCK_M`
# rows. It wants its scale in base 2 (`LOG2_E` is there). `triton.cdiv(a, b)` is a / b rounded up.
#
# ```python
# own_prefill(q, k_cache, v_cache, block_tables, seq_lens, cu_query_lens, scale)      # [T, H, D], like q
# 9 heads over 3 KV heads, BLOCK_M = 32, chunks of 10 and 100                         # grid (10, 2, 3)
# ```


# %% tags=["exercise:2.9"]
def own_write(k, v, k_cache, v_cache, slot_mapping):
    num_tokens, num_kv_heads, head_dim = k.shape
    grid = (num_tokens,)  # SOLUTION: a tuple, how many programs
    kv_write_kernel[grid](
        k, v, k_cache, v_cache, slot_mapping, H_KV=num_kv_heads, D=head_dim, PAGE=k_cache.shape[2],
        BLOCK_H=triton.next_power_of_2(num_kv_heads), BLOCK_D=triton.next_power_of_2(head_dim),
    )  # fmt: skip


def own_prefill(q, k_cache, v_cache, block_tables, seq_lens, cu_query_lens, scale, out=None, lse=None):
    (num_heads, head_dim), (num_kv_heads, page) = q.shape[1:], k_cache.shape[1:3]
    out = torch.empty_like(q) if out is None else out
    lse = torch.empty(q.shape[:2], device=q.device) if lse is None else lse
    block_q = BLOCK_M // (num_heads // num_kv_heads)  # SOLUTION: tokens of a query tile
    longest = int(cu_query_lens.diff().max())  # SOLUTION: the length of the longest chunk
    grid = (triton.cdiv(longest, block_q), len(seq_lens), num_kv_heads)  # SOLUTION: a tuple, how many programs
    qk_scale = scale * LOG2_E  # SOLUTION: the scale in base 2
    paged_prefill_kernel[grid](
        q, k_cache, v_cache, block_tables, seq_lens, cu_query_lens, out, lse, qk_scale, block_tables.stride(0),
        H=num_heads, H_KV=num_kv_heads, D=head_dim, PAGE=page,
        BLOCK_M=BLOCK_M, BLOCK_D=triton.next_power_of_2(head_dim), BLOCK_N=BLOCK_N,
    )  # fmt: skip
    return out


# %%
check("2.9")

# %% [markdown]
# **Now for real.** SmolLM2 in the engine, three prompts of different lengths in one ragged batch. All prompts of this
# run go through your prefill kernel, over slots that your launch of the write kernel filled, and all 61 norms of each
# step go through your norm kernel; the attention of the decode steps is the engine's own until lab 3.

# %%
# needs: triton
from functools import partial

from twophase import SamplingParams
from twophase_labs.prefill.engine_runs import open_own_engine

own_write, own_prefill = use("2.9")
norm = partial(launch_add_rmsnorm, use("2.6"))
llm = open_own_engine(slots=slot_mapping, write=own_write, prefill=own_prefill, norm=norm)

# %%
# NBVAL_CHECK_OUTPUT
# needs: triton
prompts = [
    "The capital of France is",
    "Once upon a time there was a machine that could read a whole book at a glance, and then",
    "One, two, three, four,",
]
outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
for prompt, output in zip(prompts, outputs, strict=True):
    print(f"{prompt} [{output.outputs[0].text}]")

# %%
# NBVAL_CHECK_OUTPUT
# needs: triton
from twophase_labs.kit.models import transformers_greedy

for prompt, output in zip(prompts, outputs, strict=True):
    ids = tokenizer(prompt, return_tensors="pt").input_ids[0]
    theirs = transformers_greedy(model, ids, 12)[len(ids) :]
    print(len(ids), "tokens of prompt; same as transformers:", list(output.outputs[0].token_ids) == theirs.tolist())
print("calls of your functions:", llm.model.backend.num_calls)

# %% [markdown]
# 30 calls of `prefill`: one per layer, for all three prompts at once. The others are called in each of
# the 12 steps, for a decode step writes too, a token per sequence: `write` once per layer (12 · 30 = 360), `norm` 61
# times (732), `slots` once per sequence (36).
#
# **By the clock.** A prompt of 256 tokens, read by the engine with your pieces and by the engine with its own. (On a
# processor, launches of your kernels are checked, and the engine's are not.)

# %%
# needs: triton
from twophase import LLM
from twophase_labs.prefill.engine_runs import prompt_rate

theirs = LLM(dtype="float32", num_kv_blocks=64, max_num_seqs=8)
for name, engine in {"yours": llm, "the engine's own": theirs}.items():
    print(f"{name:17} {prompt_rate(engine):6,.0f} tokens of a prompt per second")

# %% [markdown]
# The matrix products of the layers are the same in both.
#
# ### The surprise again
#
# The first cell let transformers read 64 tokens, together and one by one. Here is the same measurement with your work:
# the engine reads 128 in steps of at most 128, 32, 8 and 1 tokens, with your kernels in all 30 layers. The time to
# read the whole prompt is most of the **TTFT**, the time to first token, by which prefill is judged; the share of the
# flat roof that it reaches is called **model FLOP utilisation**, MFU (arXiv:2204.02311). What the two roofs of section
# 2 allow follows from your `matmul_cost`, product by product: a forward pass is a sequence of kernels, and each waits
# for the one before it, so the times of the products add up. (The cell takes about twenty seconds.)

# %%
# needs: triton
from twophase_labs.prefill.engine_runs import chunked_prompt_s

shapes = [shape for _ in range(30) for shape in SMOLLM2.projections.values()]
rates, bound = {}, {}
pieces = {"slots": slot_mapping, "write": own_write, "prefill": own_prefill, "norm": norm}
for size in (128, 32, 8, 1):
    num_tokens = min(128, 24 * size)  # one by one, the first 24
    with trusted():
        token_s = chunked_prompt_s(size, num_tokens, **pieces) / num_tokens
    costs = [matmul_cost(size, *shape, 4) for shape in shapes]
    num_flops = sum(f for f, _ in costs)
    rates[size] = num_flops / size / token_s
    bound[size] = num_flops / sum(max(f / flops_per_s, b / bytes_per_s) for f, b in costs)
    print(
        f"{size:3} at a time: {1e3 * token_s:5.1f} ms a token, {rates[size] / 1e9:6.1f} GFLOP/s, "
        f"{rates[size] / flops_per_s:4.0%} of the flat roof; the bound is {bound[size] / flops_per_s:4.0%}"
    )

# %%
# needs: triton
prefill_pictures.draw_chunk_rates(rates, bound, flops_per_s)

# %% [markdown]
# **Read the result.** Two things held back the reading of one token at a time. Its bound is far below the flat roof,
# because each weight from memory is used once: no better program could pass that. And it stays below even this bound,
# because 128 forward passes start 128 times as many small operations. The first limit comes from the hardware, the
# second from the software. With more tokens at a time the bound rises to the flat roof, and each start serves more
# tokens. What is still missing then are products too small for their best rate, and what is not a product: attention,
# norms, Python.
#
# **Takeaway.** Together, 128 tokens fetch each weight once and not 128 times, which raises the bound, and start each
# small operation once and not 128 times, which brings the measured rate nearer to it.
#
# **Play.** Assign `BLOCK_N = 16` in a cell of your own and generate again: more tiles, the same tokens. Make the causal
# mask of 2.8 `<` instead of `<=`, and look at the map that its check draws.

# %% [markdown]
# ## 12. Knowledge check
# <!-- minutes: 5 -->
#
# *Needs: nothing but thought.*

# %% [markdown]
# <!-- card 2.10 -->
# A kernel for attention by tiles has a bug: it does not rescale its sums when the maximum rises. When is its result
# still right?
# (a) never,
# (b) if the largest score of each row is in the first tile,
# (c) if all scores are positive,
# (d) if the number of keys is a multiple of the tile.

# %% tags=["exercise:2.10"]
answer_2_10 = "b"  # SOLUTION: one letter

# %%
check("2.10")

# %% [markdown]
# <!-- card 2.11 -->
# Each line is a mistake in the prefill kernel; `visible` is its causal mask, `mask_kv` the mask of its loads of K and
# V, `table_ptr` points to the sequence's row of the block table, and `row_positions` are those of section 10. What does
# it look like from outside? (a) not one answer ever comes out: NaN from the first prompt on, (b) hours without trouble,
# then NaN now and then, (c) each request is fine by itself, and garbled when others run beside it, (d) short prompts
# are fine, and those that need more than one step are garbled.

# %% tags=["exercise:2.11"]
answer_2_11 = {
    "`<` stands where `<=` should in `visible`": "a",  # SOLUTION: a letter
    "`table_ptr` is `block_tables_ptr` for every program": "c",  # SOLUTION: a letter
    "V is loaded without `mask_kv`": "b",  # SOLUTION: a letter
    "`row_positions` is `tokens`": "d",  # SOLUTION: a letter
}

# %%
check("2.11")

# %% [markdown]
# ### Troubleshooting, by symptom
#
# | symptom | likely cause | section |
# |---|---|---|
# | NaN in some rows | a row that sees no key; minus infinity minus minus infinity | 4, 7 |
# | NaN only after long use | stale slots loaded without a mask: 0 · NaN is NaN | 10 |
# | right for short prompts, wrong beyond one tile | old sums not rescaled; state not carried | 4, 5, 7 |
# | off by a little everywhere | scale forgotten, or its log2(e); softmax over the wrong axis | 1, 4 |
# | right with H = H_kv, wrong with grouped heads | h % H_kv instead of h // G | 1, 10 |
# | right alone, wrong in a batch | table row; start of the chunk; a store beyond the chunk | 9, 10 |
# | right at once, wrong in chunks | positions, diagonal or history not shifted | 9, 10 |
# | K and V of one token in another's place | entry and offset, or head and slot, confused | 8 |
# | a CUDA error at a place that makes no sense | an access outside, some kernels ago: run it on a CPU, checked | 6 |
# | runs here, does not compile there | a variable changes its type in the loop; a tile is no power of two | 7 |
# | slow at every length | padding; tiles above the diagonal; prompts too short to fill the machine | 2, 7, 9 |
#
# ### What to read next
#
# - Online normalizer calculation for softmax, arXiv:1805.02867: the running maximum and sum.
# - FlashAttention, arXiv:2205.14135; FlashAttention-2, arXiv:2307.08691: tiles, and which program does which.
#   FlashAttention-3, arXiv:2407.08608, for Hopper: warps that load and warps that multiply, and copies by the tensor
#   memory accelerator. FlashAttention-4 does the same for Blackwell.
# - Efficient Memory Management for Large Language Model Serving with PagedAttention, arXiv:2309.06180: blocks.
# - Sarathi-Serve, arXiv:2403.02310: chunked prefill, and what it does for the requests that wait.
# - FlashInfer, arXiv:2501.01005: ragged, paged attention kernels for serving.
# - RoFormer, arXiv:2104.09864: RoPE. PaLM, arXiv:2204.02311, appendix B: model FLOP utilisation.
# - Triton's own tutorials, especially *Fused Attention*.
#
# Lab 3 looks at the second phase: one token at a time.

# %%
from twophase_labs.kit.course_map import closing

closing("2")
