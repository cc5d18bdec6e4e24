# %% [markdown]
# # Lab 2: prefill, and what parallelism buys
#
# Lab 1 ended with one model and two workloads. This lab is about the first of them. A prompt is known in full before
# any work begins, so all its tokens can go through the model together; this is called *prefill*. The arithmetic per
# token is the same as in writing. Its price is not, and the first code cell shows by how much.
#
# The question behind it is what a machine runs out of first: arithmetic, or memory traffic. You will count both,
# measure both, and then meet the one part of a transformer that spoils the picture, a table of scores with a row and a
# column for every token. Most of this lab is about computing attention without ever having that table: first in
# PyTorch, where every step can be looked at, and then as a Triton kernel over the pages of a cache, the way a real
# engine does it.

# %% [markdown]
# **After this lab you can**
#
# - write causal attention with rotary positions and grouped heads, and prove it on a layer of a real model;
# - count the FLOPs and bytes of a prefill, and say from a machine's two roofs which of them it will wait for;
# - compute softmax in one pass, merge parts of it, and build exact attention from tiles;
# - write that as a Triton kernel which reads keys and values from pages, and another that writes them there;
# - process prompts of different lengths in one batch without padding, and one long prompt in chunks;
# - run a model with your own prefill inside the engine, token for token equal to transformers.
#
# You need lab 1, or at least its sections 5 to 7. No GPU: kernels run in Triton's interpreter without one, and are
# compiled where there is one, from the same cells.

# %% [markdown]
# ```mermaid
# flowchart LR
#     A["1-2 attention<br/>heads, positions, a real layer"] --> B["3-4 what it costs<br/>roofline, the L x L table"]
#     B --> C["5-6 without the table<br/>one pass, merging, tiles"]
#     C --> D["7-8 as a kernel<br/>Triton, pages, writing K and V"]
#     D --> E["9-10 real prompts<br/>ragged batches, chunks"]
#     E --> F["11-12 in the engine<br/>capstone, knowledge check"]
# ```
#
# **How it works.** As in lab 1: think first, fill the blanks `____(...)`, run `check("2.1")`. If you are stuck,
# `hint("2.1")` helps in up to three steps and `reveal("2.1")` shows a solution. Any exercise can be left out: what
# follows then runs with the reference's answer, and says so.

# %% [markdown]
# <!-- map -->

# %% [markdown]
# One thread again: it makes times steadier, and counting per core simpler.

# %% tags=["setup"]
from twophase_labs.machine.kernels import device, how_kernels_run, tl, triton  # first: it decides how kernels run

# isort: split
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from twophase import SamplingParams
from twophase_labs import ____, check, hint, measured, reference, reveal, use
from twophase_labs.kit.models import smollm2, transformers_greedy
from twophase_labs.kit.source_diff import source_diff
from twophase_labs.kit.timing import seconds
from twophase_labs.machine.pictures import draw_block_tables
from twophase_labs.prefill import attention_pictures as pictures
from twophase_labs.prefill import prefill_pictures
from twophase_labs.prefill.launch import BLOCK_M, BLOCK_N, LOG2_E, launch_attend_tile, launch_kv_write
from twophase_labs.prefill.two_ways import page_ids, read_at_once, read_one_by_one

torch.set_num_threads(1)
THETA = 10_000.0  # the base of rotary positions where no real model gives another

# %% [markdown]
# **The surprise.** SmolLM2 reads the same 128 tokens twice. Once all together. Once one by one, with a KV cache, so
# that nothing is computed a second time. Same weights, same multiplications, same logits.
#
# **Think first.** Which is faster, and by what factor?

# %%
model, tokenizer = smollm2()
ids = page_ids(tokenizer, 128)
together, single = read_at_once(model, ids), read_one_by_one(model, ids)
print(f"largest difference of a logit: {(together - single).abs().max():.0e}, of logits up to {together.max():.0f}")

# %%
num_flops = 2 * sum(p.numel() for p in model.parameters()) * len(ids)  # each weight: a multiplication, an addition
for name, read in (("together", read_at_once), ("one by one", read_one_by_one)):
    elapsed_s = seconds(lambda read=read: read(model, ids))
    print(f"{name:10}: {1e3 * elapsed_s / len(ids):5.1f} ms a token, {num_flops / elapsed_s / 1e9:6.1f} GFLOP/s")

# %% [markdown]
# The cache saved every multiplication that can be saved, and still the processor reached only a fraction of the rate
# that it has just shown it can reach. It was not short of arithmetic. Keep your guess at what it was short of;
# section 3 measures it.

# %% [markdown]
# ## 1. Attention over a whole prompt
#
# *Needs: CPU.*
#
# In a transformer almost everything treats each token by itself: norms, projections, the MLP. Tokens of a prompt could
# go through these on different machines. **Attention** is the one place where they meet, so it is where reading many
# at once becomes interesting.
#
# Each token has, in each head, three vectors of D numbers. Its *query* says what it looks for, its *key* what it
# offers, its *value* what it hands over. The score of a query and a key is their dot product; a softmax turns the
# scores of a query into weights; the result is the weighted mean of the values.

# %% [markdown]
# **The steps on numbers.** Five tokens, one head. Rows are queries, columns are keys, and everything in a row belongs
# to one token.

# %%
draw = torch.Generator().manual_seed(3)
pictures.draw_steps_of_attention(*torch.randn(2, 5, 16, generator=draw))

# %% [markdown]
# Look at row 0: it sees itself only, so it gets a weight of 1 whatever its score was. Row 4 sees all five. In lab 1
# the mask was for queries behind a cache; in a prompt without one it is the plain triangle, and all rows of it are
# computed at the same time.

# %% [markdown]
# <!-- card 2.1 -->
# Causal attention of all heads over one prompt. `q`, `k` and `v` are `[L, H, D]`: token, head, number. The result is
# `[L, H * D]`, for each token its heads side by side, as the layer's output projection wants them.
#
# $$\mathrm{out}_{i} = \sum_{j \le i} \mathrm{softmax}_{j}\!\left(\frac{q_i \cdot k_j}{\sqrt D}\right) v_j
# \qquad \text{in every head}$$
#
# ```python
# naive_attention(q, k, torch.ones_like(v)) == torch.ones(L, H * D)     # weights add up to one
# naive_attention(q, k, v)[0] == v[0].flatten()                         # the first token sees only itself
# ```


# %% tags=["exercise:2.1"]
def naive_attention(q, k, v):
    L, H, D = q.shape
    q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)  # [H, L, D]: a product per head
    scores = q @ k.mT / D**0.5  # SOLUTION: [H, L, L], each query with each key, scaled
    visible = torch.arange(L) <= torch.arange(L)[:, None]  # SOLUTION: [L, L], true where the key is not later
    scores = scores.masked_fill(~visible, -torch.inf)
    weights = scores.softmax(-1)  # SOLUTION: [H, L, L], for each query weights that add up to one
    heads = weights @ v  # [H, L, D]
    return heads.transpose(0, 1).reshape(L, H * D)  # SOLUTION: [L, H * D], the heads of a token side by side


# %%
check("2.1")

# %% [markdown]
# **Why the square root?** A dot product of D random numbers with D others has a spread of about sqrt(D). The next cell
# compares softmax weights over 64 random keys with and without the division.

# %%
# NBVAL_CHECK_OUTPUT
draw = torch.Generator().manual_seed(0)
print("    D   spread of q·k   largest weight: raw   divided by sqrt(D)")
for D in (16, 64, 256, 1024):
    q, k = torch.randn(200, D, generator=draw), torch.randn(64, D, generator=draw)
    raw = q @ k.mT
    largest = [float(s.softmax(-1).amax(-1).mean()) for s in (raw, raw / D**0.5)]
    print(f"{D:5} {raw.std():12.1f} {largest[0]:19.2f} {largest[1]:18.2f}")

# %% [markdown]
# Without it, larger heads would put nearly all weight on a single key: softmax would have become a maximum, which
# passes on almost no gradient. With it, the size of a head does not matter.

# %% [markdown]
# <!-- card 2.2 -->
# What is each step there for? Give each its letter.
#
# **a** compares what a token looks for with what each token offers ·
# **b** turns the scores of a query into shares that add up to one ·
# **c** keeps a token from seeing what comes after it ·
# **d** lets what the heads found separately be combined, and brings it back to the model's width ·
# **e** keeps the softmax equally soft, however wide a head is ·
# **f** collects contents in proportion to the shares

# %% tags=["exercise:2.2"]
answer_2_2 = {
    "dot products": "a",  # SOLUTION: a letter
    "divide by sqrt(D)": "e",  # SOLUTION: a letter
    "mask": "c",  # SOLUTION: a letter
    "softmax": "b",  # SOLUTION: a letter
    "weights @ v": "f",  # SOLUTION: a letter
    "heads side by side, W_O": "d",  # SOLUTION: a letter
}

# %%
check("2.2")

# %% [markdown]
# **Read the result.** Notice what is *not* in these six steps: the order of the tokens. Exchange two earlier keys
# together with their values, and the last token's result is the same. The mask knows what is past, but not how far
# past. The next section puts that in.

# %% [markdown]
# ## 2. Positions and shared heads, on a real layer
#
# *Needs: CPU, and the model.*
#
# Two things separate the attention above from that of a model such as SmolLM2: positions, and heads that share keys
# and values. With both, your function gives what transformers gives, up to rounding.
#
# **Rotary positions** (RoPE, arXiv:2104.09864) take the D numbers of a query or key as D/2 points in a plane, and turn
# each point by an angle that grows with the token's position. Pair 0 turns by one radian per position, the last one by
# hardly anything: $\theta^{-2i/D}$ radians for pair $i$.

# %%
pictures.draw_turning(theta=100_000.0, width=64, positions=6, pairs=(0, 2, 5, 10))

# %% [markdown]
# Fast pairs tell neighbours apart, slow ones tell the beginning of a book from its end; together they are like the
# hands of a clock. (SmolLM2 uses $\theta$ = 100,000.)
#
# **Think first.** All tokens of a prompt are moved 100 positions further. Which scores change?

# %% [markdown]
# <!-- card 2.3 -->
# Rotate `x` (`[L, H, D]`) for tokens that stand at `positions` (`[L]`). Number $i$ and number $i + D/2$ are a pair
# $(a, b)$:
#
# $$(a, b) \mapsto (a \cos\varphi - b \sin\varphi,\;\; b \cos\varphi + a \sin\varphi), \qquad
# \varphi = p \cdot \theta^{-2i/D}$$
#
# ```python
# rotate(x, torch.zeros(L), theta) == x                        # position 0 is left alone
# rotate(x, positions, theta).norm(dim=-1) == x.norm(dim=-1)   # turning does not stretch
# ```


# %% tags=["exercise:2.3"]
def rotate(x, positions, theta):
    half = x.shape[-1] // 2
    frequencies = theta ** -(torch.arange(half) / half)  # SOLUTION: radians per position of each pair, [D/2]
    angles = positions[:, None] * frequencies  # SOLUTION: [L, D/2]
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]  # [L, 1, D/2]: all heads of a token turn alike
    first, second = x[..., :half], x[..., half:]  # SOLUTION: the first and the second numbers of all pairs
    turned = first * cos - second * sin, second * cos + first * sin  # SOLUTION: both numbers of the pairs, turned
    return torch.cat(turned, dim=-1)


# %%
check("2.3")

# %% [markdown]
# **Only distances count.** A query at position p and a key at position s, turned by p and by s steps, meet at an angle
# of p - s steps. The cell measures all scores of a random prompt, at positions 0 to 11, and again 100 and 5,000 later.

# %%
turn = use("2.3")
draw = torch.Generator().manual_seed(1)
q, k = torch.randn(2, 12, 1, 64, generator=draw)


def scores_at(start):
    positions = torch.arange(start, start + 12)
    return turn(q, positions, 1e5)[:, 0] @ turn(k, positions, 1e5)[:, 0].mT


for start in (100, 5_000):
    print(f"{start:5} positions later: scores differ by {(scores_at(start) - scores_at(0)).abs().max():.0e} at most")
print(f"not rotated at all: by {(q[:, 0] @ k[:, 0].mT - scores_at(0)).abs().max():.0f}")

# %% [markdown]
# No score changes, but for the rounding of larger angles in float32. So a key can be rotated once, stored, and used by
# every query that comes later: this is what makes rotary positions and a KV cache friends.

# %% [markdown]
# **Grouped heads.** SmolLM2 has 9 query heads and 3 key/value heads: G = 3, and query head h reads KV head h // 3, the
# map of lab 1. A layer's attention is then this; positions go to queries and keys, not to values.
#
# ```mermaid
# flowchart LR
#     X["x<br/>[L, 576]"] --> Q["W_Q<br/>[L, 9, 64]"] --> RQ["rotate"] --> A["attention<br/>of 9 heads"]
#     X --> K["W_K<br/>[L, 3, 64]"] --> RK["rotate"] --> GK["each head<br/>3 times"] --> A
#     X --> V["W_V<br/>[L, 3, 64]"] --> GV["each head<br/>3 times"] --> A
#     A --> O["W_O<br/>[L, 576]"]
# ```

# %% [markdown]
# <!-- card 2.4 -->
# The attention of one layer: `x` is `[L, hidden]`, and so is the result. `layer` has `w_q`, `w_k`, `w_v`, `w_o`
# (`x @ layer.w_q` projects), `num_heads`, `num_kv_heads`, `head_dim` and `theta`. `naive_attention` and `rotate` are
# yours; the former wants as many KV heads as query heads.
#
# ```python
# layer_attention(x, layer, positions + 50) == layer_attention(x, layer, positions)      # only distances count
# layer_attention(x[:5], layer, positions[:5]) == layer_attention(x, layer, positions)[:5]
# ```


# %% tags=["exercise:2.4"]
def layer_attention(x, layer, positions):
    L, D, group = len(x), layer.head_dim, layer.num_heads // layer.num_kv_heads
    q = (x @ layer.w_q).view(L, layer.num_heads, D)
    k = (x @ layer.w_k).view(L, layer.num_kv_heads, D)
    v = (x @ layer.w_v).view(L, layer.num_kv_heads, D)  # SOLUTION: the values, [L, H_kv, D]
    q, k = rotate(q, positions, layer.theta), rotate(k, positions, layer.theta)  # SOLUTION: what carries positions
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)  # SOLUTION: a KV head per query head
    return naive_attention(q, k, v) @ layer.w_o  # SOLUTION: back to [L, hidden]


# %%
check("2.4")

# %% [markdown]
# **Against the real thing.** The model reads a sentence in transformers; we note what goes into the attention of a
# layer and what comes out, and hand the same input to your function.

# %%
from twophase_labs.prefill.real_layer import head_weights, layer_of, layer_queries_keys, watch_layer

attend_layer = use("2.4")
sentence = tokenizer("The cat sat on the mat because the cat was tired.", return_tensors="pt").input_ids[0]
for index in (0, 12, 29):
    x, expected = watch_layer(model, index, sentence)
    got = attend_layer(x, layer_of(model, index), torch.arange(len(x)))
    print(
        f"layer {index:2}: outputs up to {expected.abs().max():5.2f}, differing by {(got - expected).abs().max():.0e}"
    )

# %% [markdown]
# **What heads do.** The real queries and keys, rotated by your function, give the weights of real heads. Each row
# shows where one token looks. Three of SmolLM2's 270 heads:

# %%
panels = {}
for index, head in ((16, 0), (17, 4), (18, 8)):
    layer = layer_of(model, index)
    x, _ = watch_layer(model, index, sentence)
    q, k = (turn(each, torch.arange(len(x)), layer.theta) for each in layer_queries_keys(layer, x))
    panels[f"layer {index}, head {head}"] = head_weights(q, k, head)
pictures.draw_attention_maps(panels, [tokenizer.decode(token) for token in sentence])

# %% [markdown]
# **Read the result.** On the left a head that looks one token back, wherever it is: rotary positions make
# that possible. In the middle the second *cat* looks at *sat*, the word that followed the first *cat*; such heads
# continue patterns. On the right everybody looks at the first token, which means in practice: at nothing. Softmax has
# to put its weights somewhere, and this is where they are parked. Such *attention sinks* come back in lab 5.

# %% [markdown]
# ## 3. Arithmetic against traffic
#
# *Needs: CPU, and the model.*
#
# Now the surprise. A processor can do so many operations per second, and its memory can deliver so many bytes per
# second. A step needs some of each. If the two can overlap, the step takes as long as the slower of them:
#
# $$\text{time} \ge \max\left(\frac{\text{FLOPs}}{\text{FLOP/s}},\; \frac{\text{bytes}}{\text{bytes/s}}\right)$$
#
# Which one wins depends on the **arithmetic intensity** of the step, FLOPs per byte moved. The intensity at which both
# take equally long belongs to the machine and is called the *ridge*: FLOP/s over bytes/s. Below it a step is
# **memory-bound**, above it **compute-bound**.

# %% [markdown]
# **Think first.** A product of `[L, 576]` with a weight matrix `[576, 1536]`. Every weight that is fetched is used
# once for each of the L tokens. What is the intensity for L = 1, in four-byte numbers? And what happens to it when L
# doubles?

# %% [markdown]
# <!-- card 2.5 -->
# Count. `matmul_cost` of `[rows, inner] @ [inner, columns]`: two FLOPs (a multiplication, an addition) for each
# product, and each of the three matrices moved once. `prefill_cost` of a prompt of L tokens: per layer all
# `shape.projections` and causal attention; at the end *one* row of logits, `[1, hidden] @ [hidden, vocab]`.
#
# $$\text{attention per layer:}\quad 4 H D \cdot \tfrac{L (L + 1)}{2}\ \text{FLOPs}, \qquad
# 2 L (H + H_{kv}) D\ \text{numbers moved}$$
#
# That many numbers are moved if queries, keys, values and results are, and nothing else. Norms and the like are left
# out.
#
# ```python
# matmul_cost(1, 5, 3, bytes_per_number=2) == (30, 46)
# ```


# %% tags=["exercise:2.5"]
def matmul_cost(rows, inner, columns, bytes_per_number):
    num_flops = 2 * rows * inner * columns  # SOLUTION: FLOPs
    num_moved = rows * inner + inner * columns + rows * columns  # SOLUTION: numbers read and written
    return num_flops, num_moved * bytes_per_number


def prefill_cost(shape, num_tokens, bytes_per_number):
    pairs = num_tokens * (num_tokens + 1) // 2  # SOLUTION: pairs of a query and a key that it sees
    num_flops = 4 * pairs * shape.num_heads * shape.head_dim  # SOLUTION: FLOPs of attention in one layer
    num_moved = 2 * num_tokens * (shape.num_heads + shape.num_kv_heads) * shape.head_dim  # SOLUTION: its numbers moved
    num_bytes = num_moved * bytes_per_number
    for inner, columns in shape.projections.values():
        product = matmul_cost(num_tokens, inner, columns, bytes_per_number)
        num_flops, num_bytes = num_flops + product[0], num_bytes + product[1]
    last = matmul_cost(1, shape.hidden, shape.vocab, bytes_per_number)
    return shape.num_layers * num_flops + last[0], shape.num_layers * num_bytes + last[1]


# %%
check("2.5")

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.prefill.model_shape import LLAMA_3_8B, SMOLLM2

cost_of_product, cost_of_prefill = use("2.5")
print("tokens |  SmolLM2, 4-byte numbers          |  Llama-3-8B, 2-byte numbers")
for L in (1, 16, 128, 512, 2048, 8192):
    small, large = cost_of_prefill(SMOLLM2, L, 4), cost_of_prefill(LLAMA_3_8B, L, 2)
    columns = [f"{f / 1e9:9,.1f} GFLOP  {f / b:6.1f} per byte" for f, b in (small, large)]
    print(f"{L:6} | {columns[0]}  | {columns[1]}")

# %% [markdown]
# One token has an intensity of about 2 over the bytes of a number, whatever the model: each weight is fetched, used in
# one multiplication and one addition, and dropped. With L tokens it is used L times. **Reading a prompt together is a
# way of using each fetched weight more than once.** That is what happened in the first cell (and 128 passes start 128
# times as many small operations, each with a fixed price).
#
# A check from outside: PyTorch can count products by itself, while the real model runs.

# %%
# NBVAL_CHECK_OUTPUT
from torch.utils.flop_counter import FlopCounterMode

with FlopCounterMode(display=False) as counter:
    model(page_ids(tokenizer, 128)[None], logits_to_keep=1)
products = sum(count for kind, count in counter.get_flop_counts()["Global"].items() if "attention" not in str(kind))
in_attention = 30 * 4 * 9 * 64 * 128 * 129 // 2
print(f"PyTorch, all products outside attention: {products:,} FLOPs")
print(f"your count without attention's part:     {cost_of_prefill(SMOLLM2, 128, 4)[0] - in_attention:,} FLOPs")

# %% [markdown]
# **The two roofs of this machine.** FLOP/s from a large product of random matrices, bytes per second from a large
# copy. Then the model's own layers, timed for different numbers of tokens: all 30 layers take their turn, so that
# their weights really come from memory.

# %%
from twophase_labs.prefill.measured_roofs import measure_roofs, time_attention, time_projection

flops_per_s, bytes_per_s = measure_roofs()
print(f"at most {flops_per_s / 1e9:.0f} GFLOP/s and {bytes_per_s / 1e9:.1f} GB/s on one thread", end="; ")
print(f"ridge at {flops_per_s / bytes_per_s:.1f} FLOP a byte")

# %%
points = {}
for name in ("gate", "q"):
    product = {L: cost_of_product(L, *SMOLLM2.projections[name], 4) for L in (1, 2, 4, 16, 64, 256)}
    points[f"{name} projection"] = {L: (f / b, f / time_projection(model, name, L)) for L, (f, b) in product.items()}
flops_of = {L: 4 * 9 * 64 * L * (L + 1) // 2 for L in (64, 256, 1024)}
moved = {L: 4 * 2 * L * (9 + 3) * 64 for L in flops_of}
points["attention (fused)"] = {L: (f / moved[L], f / time_attention(9, 3, 64, L)) for L, f in flops_of.items()}
pictures.draw_roofline(flops_per_s, bytes_per_s, points)

# %% [markdown]
# **Read the result.** The slanted roof is the memory's, the flat one the processor's. With one token the projections
# are at the far left: no processor, however fast, would help there, and this is where writing lives. Each doubling of
# L moves them to the right and up, until they run level. A roof is a bound and not a promise; how far below it a line
# runs level is what an implementation leaves on the table. (The flat roof is the fastest product found here;
# transformers may use another library. And attention has exponentials to compute, which the count leaves out.) A copy
# reads and writes: where a machine reads faster than it copies, a point may lie a little above the slanted roof.

# %% [markdown]
# ### The same on a GPU, on paper
#
# An A100 does 312 TFLOP/s in two-byte numbers, and its memory moves 1.555 TB/s. A layer of an 8B model has a product
# `[L, 4096] @ [4096, 4096]` in such numbers.

# %% [markdown]
# <!-- card 2.6 -->
# **Think first.** A prompt of L = 512 tokens. How many times the A100's ridge is the intensity of that product? Below
# 1 the GPU waits for its memory, above 1 for its arithmetic. (Within 30 % counts as close.)

# %% tags=["exercise:2.6"]
guess_2_6 = 2  # SOLUTION: times the ridge

# %%
check("2.6")

# %%
# NBVAL_CHECK_OUTPUT
ridge = 312e12 / 1.555e12
print(f"the ridge of an A100: {ridge:.1f} FLOP a byte")
for L in (1, 64, 222, 223, 512, 4096):
    f, b = cost_of_product(L, 4096, 4096, 2)
    side = "compute-bound" if f / b > ridge else "memory-bound"
    print(f"{L:5} tokens: {f / b:7.1f} FLOP a byte, {f / b / ridge:5.3f} of the ridge: {side}")

# %%
f, b = cost_of_product(512, 4096, 4096, 2)
measured("2.6", f / b / ridge)

# %% [markdown]
# **Read the result.** 512 tokens are on the compute-bound side, and 223 are enough. (A ridge of 100 is sometimes
# printed for this card. 312 over 1.555 is 200.) A single token reaches a two-hundredth of the ridge: 99.5 % of the
# arithmetic that the card could do stays unused. This is why prefill and decode, the same model with the same weights,
# are two workloads.

# %% [markdown]
# ## 4. The table nobody ordered
#
# *Needs: CPU.*
#
# The count of bytes above had a condition: *queries, keys, values and results, and nothing else*. Your
# `naive_attention` does not keep it. Between its input and its output stands a table of scores with a number for every
# pair of tokens in every head, and softmax makes a second table out of the first.
#
# For a short prompt nobody notices. The next cell asks torch's own allocator for the most that a call held at any
# time.

# %%
from twophase_labs.prefill.peak_memory import attention_inputs, peak_bytes

plain = use("2.1")
for L in (256, 512, 1024):
    inputs = attention_inputs(L)
    peak = peak_bytes(lambda inputs=inputs: plain(*inputs))
    print(f"L = {L:5}: {peak / 1e6:6.1f} MB at the worst moment; one table of scores: {2 * L * L * 4 / 1e6:5.1f} MB")

# %% [markdown]
# <!-- card 2.7 -->
# **Think first.** The prompt doubles from 2,048 to 4,096 tokens. How many times as much memory does it take at the
# worst moment?

# %% tags=["exercise:2.7"]
guess_2_7 = 4  # SOLUTION: times as much

# %%
check("2.7")


# %%
def fused(q, k, v):
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


peaks = {"naive_attention": {}, "PyTorch's fused attention": {}}
for L in (512, 1024, 2048, 4096):
    inputs = attention_inputs(L)
    peaks["naive_attention"][L] = peak_bytes(lambda inputs=inputs: plain(*inputs))
    peaks["PyTorch's fused attention"][L] = peak_bytes(lambda inputs=inputs: fused(*inputs))
measured("2.7", peaks["naive_attention"][4096] / peaks["naive_attention"][2048])

# %%
pictures.draw_growing(peaks, "most memory held at a time (MB)", "What attention of 2 heads needs beside its inputs")

# %% [markdown]
# **Read the result.** Twice the prompt, four times the memory. PyTorch's fused attention computes the same numbers and
# needs room for little more than its result, which grows with L and not with its square. It never has the table. What
# the table would be on a large model:

# %%
# NBVAL_CHECK_OUTPUT
for L in (2_048, 8_192, 32_768, 131_072):
    table = 32 * L * L * 2  # 32 heads, two-byte numbers, one layer
    values = 2 * L * 8 * 128 * 2  # the layer's keys and values
    print(f"{L:7,} tokens: table {table / 2**30:8.2f} GiB, keys and values {values / 2**30:6.3f} GiB")

# %% [markdown]
# At 32,768 tokens one layer's table would fill a GPU of 64 GiB, for a cache of an eighth of a gibibyte. And even where
# it fits, it has to be written to memory, read, written again and read again, with hardly any arithmetic in between:
# far to the left under the roof. The next two sections get rid of it.

# %% [markdown]
# ## 5. Softmax in one pass
#
# *Needs: CPU.*
#
# Why is the table there at all? Because softmax seems to need all scores of a row before it can give the first weight:
# their maximum, so that nothing overflows, then their sum. But we do not want the weights. We want the *mean* that
# they make, and a mean can be built up as the keys come by, as long as three things are carried along
# (arXiv:1805.02867, arXiv:2112.05682):
#
# - `row_max`, $m$: the largest score so far;
# - `row_sum`, $\ell$: the sum of weights so far, each measured from $m$;
# - `acc`: the sum of weights times values so far, measured from $m$ too.
#
# When a larger score comes, $m$ changes, and the two sums have to be measured anew: one multiplication each. (The
# names are those of this project's kernels.)

# %% [markdown]
# **In base 2.** From here on the scores are exponents of 2: multiplied by log2(e) once, together with 1/sqrt(D), so
# that $2^{s \log_2 e} = e^s$. The weights are the same. Kernels do it because processors raise 2 to a power in one
# instruction, and would have to multiply by log2(e) before each exponential otherwise; this workbook's kernels do, and
# their log-sums are base 2 as well.

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
# At each dotted line the maximum grows, and what had been collected shrinks by $2^{m_\text{old} - m_\text{new}}$.
# Between the lines $\ell$ only grows.

# %% [markdown]
# <!-- card 2.8 -->
# `stream` gives, one key after the other, its scores for M queries (`[M]`, base 2) and its value (`[D]`), once. Return
# the weighted means `[M, D]` and the base-2 log-sums `[M]`, $\log_2 \sum_j 2^{s_j}$.
#
# $$m' = \max(m, s), \qquad \ell' = \ell \cdot 2^{m - m'} + 2^{s - m'}, \qquad
# \mathrm{acc}' = \mathrm{acc} \cdot 2^{m - m'} + 2^{s - m'} v$$
#
# A hidden key has the score -inf. A query that sees no key at all gets zeros and a log-sum of -inf.
#
# ```python
# online_softmax(iter([]), 1, 2) == (torch.zeros(1, 2), torch.tensor([-torch.inf]))
# online_softmax(zip(torch.zeros(4, 1), v), 1, D) == (v.mean(0, keepdim=True), torch.tensor([2.0]))   # 4 equal keys
# ```


# %% tags=["exercise:2.8"]
def online_softmax(stream, M, D):
    row_max, row_sum, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        new_max = torch.maximum(row_max, s)  # SOLUTION: the largest score so far
        max_safe = new_max.masked_fill(new_max == -torch.inf, 0)  # nothing seen yet: -inf less -inf would be NaN
        rescale = torch.exp2(row_max - max_safe)  # SOLUTION: what the old sums are worth, measured from the new maximum
        p = torch.exp2(s - max_safe)  # SOLUTION: the weight of this key
        row_sum = row_sum * rescale + p  # SOLUTION: the sum of weights
        acc = acc * rescale[:, None] + p[:, None] * v  # SOLUTION: the sum of weighted values
        row_max = new_max
    out = (
        acc / torch.where(row_sum == 0, 1, row_sum)[:, None]
    )  # SOLUTION: the means, [M, D]; zeros where nothing was seen
    return out, row_max + row_sum.log2()  # SOLUTION `row_max + row_sum.log2()`: the log-sums, [M]


# %%
check("2.8")

# %% [markdown]
# **Equal, at every length.** One query against up to 10,000 keys, your one pass against a softmax over all scores at
# once. What it carries along is $m$, $\ell$ and `acc`: D + 2 numbers, however
# long the stream.

# %%
one_pass = use("2.8")
draw = torch.Generator().manual_seed(5)
for num_keys in (10, 100, 1_000, 10_000):
    s, v = 5 * torch.randn(num_keys, 1, generator=draw), torch.randn(num_keys, 64, generator=draw)
    at_once = (s[:, 0] / LOG2_E).softmax(-1) @ v
    out, lse = one_pass(zip(s, v, strict=True), 1, 64)
    print(f"{num_keys:6,} keys: means differ by {(out[0] - at_once).abs().max():.0e}, log-sum {lse.item():.2f}")

# %% [markdown]
# ### Merging parts
#
# The pair (mean, log-sum) is more than a result: it says all that has to be known about a set of keys. The mean of a
# part, and with $2^{\mathrm{lse}}$ the weight that this part has as a whole. So two parts can be computed apart, by
# two programs or at two times, and put together afterwards.
#
# ```mermaid
# flowchart LR
#     K["keys 0 .. 999"] --> A["keys 0 .. 499<br/>mean a, lse a"]
#     K --> B["keys 500 .. 999<br/>mean b, lse b"]
#     A --> M["merge: weigh each mean<br/>by 2^lse of its part"]
#     B --> M
#     M --> O["mean, lse<br/>of all keys"]
# ```

# %% [markdown]
# <!-- card 2.9 -->
# Merge two parts: means `[M, D]` and base-2 log-sums `[M]` each. Take the larger log-sum out before raising anything
# to a power.
#
# $$\mathrm{out} = \frac{2^{\mathrm{lse}_a - m}\, \mathrm{out}_a + 2^{\mathrm{lse}_b - m}\, \mathrm{out}_b}
# {2^{\mathrm{lse}_a - m} + 2^{\mathrm{lse}_b - m}}, \qquad
# \mathrm{lse} = m + \log_2\!\left(2^{\mathrm{lse}_a - m} + 2^{\mathrm{lse}_b - m}\right)$$
#
# ```python
# merge_halves(out, lse, torch.zeros(M, D), torch.full((M,), -torch.inf)) == (out, lse)   # an empty part adds nothing
# merge_halves(out, lse, out, lse) == (out, lse + 1)                                      # twice the weight: one bit
# ```


# %% tags=["exercise:2.9"]
def merge_halves(out_a, lse_a, out_b, lse_b):
    m = torch.maximum(lse_a, lse_b)
    m = m.masked_fill(m == -torch.inf, 0)  # both parts empty
    weight_a, weight_b = torch.exp2(lse_a - m), torch.exp2(lse_b - m)  # SOLUTION: how much each part counts
    total = weight_a + weight_b  # SOLUTION: both together
    out = weight_a[:, None] * out_a + weight_b[:, None] * out_b  # SOLUTION: the means, weighed and added, [M, D]
    out = out / torch.where(total == 0, 1, total)[:, None]  # SOLUTION: the mean of all keys; zeros where there are none
    return out, m + total.log2()  # SOLUTION `m + total.log2()`: their log-sum, [M]


# %%
check("2.9")

# %% [markdown]
# **Cut anywhere, merge in any order.** A thousand keys, cut at random places, the parts shuffled and merged one after
# another.

# %%
merge = use("2.9")
draw = torch.Generator().manual_seed(6)
s, v = 5 * torch.randn(1_000, 1, generator=draw), torch.randn(1_000, 64, generator=draw)
whole, _ = one_pass(zip(s, v, strict=True), 1, 64)
for num_parts in (2, 8, 50):
    cuts = torch.randperm(999, generator=draw)[: num_parts - 1].add(1).sort().values.tolist()
    pieces = zip(s.tensor_split(cuts), v.tensor_split(cuts), strict=True)
    parts = [one_pass(zip(*piece, strict=True), 1, 64) for piece in pieces]
    merged = parts.pop(int(torch.randint(len(parts), (1,), generator=draw)))
    while parts:
        merged = merge(*merged, *parts.pop(int(torch.randint(len(parts), (1,), generator=draw))))
    print(f"{num_parts:3} parts: the mean differs by {(merged[0] - whole).abs().max():.0e} from one pass")

# %% [markdown]
# **Read the result.** The same mean, up to rounding. Remember it in two places. Here, because it lets a kernel work
# through the keys tile by tile. In lab 3, where one query has thousands of keys, and many programs share
# them: each takes a part, and your merge puts the parts together.

# %% [markdown]
# ## 6. Attention in tiles
#
# *Needs: CPU.*
#
# One key at a time keeps memory small, and wastes the machine: it is a matrix-vector product again, far left under the
# roof. The way out is a **tile**: some dozens of queries against some dozens of keys. Its scores are a small table
# that lives only in fast memory (registers and shared memory on a GPU, the caches of a CPU), is used at once and
# dropped. This is FlashAttention (arXiv:2205.14135).

# %%
pictures.draw_tiles(length=40, block_q=16, block_k=8)

# %% [markdown]
# Each row of tiles belongs to one set of queries, which carry `row_max`, `row_sum` and `acc` from left to right. Blue
# tiles need no mask, hatched ones cross the diagonal, and dotted ones are hidden from all their queries, so nothing of
# them is computed or loaded: about half of the table.

# %% [markdown]
# Nothing here shows what a tile costs, so we take a memory that counts. `memory.load("k", start, end)` gives a copy of
# rows `[start, end)` of a tensor, `memory.store("out", start, rows)` writes some; each is noted with its bytes. As
# with slices, rows past the end are left out, so the last tile may be shorter.

# %% [markdown]
# <!-- card 2.10 -->
# Exact causal attention of one head, with `q`, `k`, `v` (`[L, D]`) and `out` in slow memory. Load tiles of at most
# `block_q` queries and `block_k` keys, each query tile once, and no key tile that is hidden from the whole query tile.
#
# $$m' = \max(m, \max_j s_{ij}), \quad \ell' = \ell \cdot 2^{m - m'} + \textstyle\sum_j 2^{s_{ij} - m'}, \quad
# \mathrm{acc}' = \mathrm{acc} \cdot 2^{m - m'} + P V$$
#
# Every query sees key 0, which is in the first tile, so $m$ is finite from then on.
#
# ```python
# memory.peek("out") == naive_attention(q[:, None], k[:, None], v[:, None])       # for any tile sizes
# ```


# %% tags=["exercise:2.10"]
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
            new_max = torch.maximum(row_max, scores.amax(-1))  # SOLUTION: the largest scores so far, one per query
            p, rescale = torch.exp2(scores - new_max[:, None]), torch.exp2(row_max - new_max)
            row_sum = row_sum * rescale + p.sum(-1)  # SOLUTION: the sums of weights
            acc = acc * rescale[:, None] + p @ v  # SOLUTION: the sums of weighted values
            row_max = new_max
        memory.store(
            "out", start, acc / row_sum[:, None]
        )  # SOLUTION `acc / row_sum[:, None]`: the results of these queries


# %%
check("2.10")

# %% [markdown]
# **Exact, not approximate.** Attention that saves memory by leaving keys out exists; this is not it. For any size of
# tile the result is the same up to rounding.

# %%
from twophase_labs.prefill.slow_memory import attention_memory, standard_attention

in_tiles = use("2.10")
draw = torch.Generator().manual_seed(7)
q, k, v = torch.randn(3, 200, 64, generator=draw)
expected = plain(q[:, None], k[:, None], v[:, None])
for block_q, block_k in ((200, 200), (128, 64), (17, 33), (1, 7)):
    memory = attention_memory(q, k, v)
    in_tiles(memory, 200, 64, block_q, block_k)
    print(
        f"tiles of {block_q:3} x {block_k:3}: {(memory.peek('out') - expected).abs().max():.0e} off at most", end=", "
    )
    print(f"{memory.num_bytes / 1e6:6.2f} MB moved")

# %% [markdown]
# **Think first.** The last column differs by a factor of fifty, for the same result. Which of the two sizes is it
# that matters, and why?

# %% [markdown]
# <!-- card 2.11 -->
# Count the bytes that cross between slow and fast memory for one causal head of L tokens. The *standard* way is three
# operations, each reading its inputs from slow memory and writing its result there: scores from Q and K; weights from
# scores; results from weights and V. It computes all L * L scores, hidden ones too. The *tiled* way is yours.
#
# ```python
# count_traffic(2, 3, block_q=1, block_k=1, bytes_per_number=1) == (24 + 16, 12 + 6 + 12)
# ```


# %% tags=["exercise:2.11"]
def count_traffic(L, D, block_q, block_k, bytes_per_number):
    standard = 4 * L * D + 4 * L * L  # SOLUTION: numbers that the three operations read and write
    tiled = 2 * L * D  # SOLUTION: numbers of queries in and results out
    for start in range(0, L, block_q):
        end = min(start + block_q, L)  # this tile holds queries start to end - 1
        num_keys = min(-(-end // block_k) * block_k, L)  # SOLUTION: keys in the key tiles that it loads
        tiled += 2 * num_keys * D  # SOLUTION: numbers of their keys and values
    return standard * bytes_per_number, tiled * bytes_per_number  # SOLUTION: both in bytes


# %%
check("2.11")

# %% [markdown]
# **Counted against counted.** Your formula on the left; on the right what the memory noted while the two ways really
# ran.

# %%
# NBVAL_CHECK_OUTPUT
traffic = use("2.11")
print("   L | standard: formula     noted | tiled 64 x 64: formula     noted")
for L in (64, 100, 500, 1000):
    memories = [attention_memory(*torch.ones(3, L, 64)) for _ in range(2)]
    standard_attention(memories[0])
    in_tiles(memories[1], L, 64, 64, 64)
    formula = traffic(L, 64, 64, 64, 4)
    print(f"{L:4} | {formula[0]:17,} {memories[0].num_bytes:10,} | {formula[1]:22,} {memories[1].num_bytes:10,}")

# %%
lengths = (256, 1024, 4096, 16384)
curves = {"standard": {L: traffic(L, 64, 64, 64, 2)[0] for L in lengths}}
for block_q in (16, 64, 256):
    curves[f"tiled, {block_q} queries a tile"] = {L: traffic(L, 64, block_q, 64, 2)[1] for L in lengths}
pictures.draw_growing(curves, "bytes to and from slow memory (MB)", "Traffic of one head, D = 64, two-byte numbers")

# %% [markdown]
# **Read the result.** Memory *held* is linear in L now, but traffic is still quadratic: keys and values are read again
# for every tile of queries. What a tile buys is the factor in front. Per query tile the keys before it are read once,
# $2 D \cdot L/2$ numbers on average, and there are $L / B_q$ tiles: $L^2 D / B_q$ in all against $4 L^2$ for the
# standard way. So it is the *query* tile that counts, and fast memory limits it: it must hold `q`, `acc` and the
# tile's scores. With D = 64 and $B_q$ = 64 the traffic is a quarter, with 256 queries a sixteenth.
#
# With 16 queries nothing is won: that curve lies on the standard one. Smaller tiles move *more*, and the (1, 7) line
# further up is the extreme.

# %% [markdown]
# **And by the clock?** A loop in Python over tiles is no kernel: each tile pays for a dozen small operations. Still it
# may win against the naive way once prompts are long: it leaves out half of the table, and a tile's scores stay in the
# processor's cache.


# %%
def compare_times(L, block):
    q, k, v = torch.randn(3, L, 1, 64)
    memory = attention_memory(q[:, 0], k[:, 0], v[:, 0])
    calls = (lambda: plain(q, k, v), lambda: in_tiles(memory, L, 64, block, block), lambda: fused(q, k, v))
    return [1e3 * seconds(call, repeats=2) for call in calls]


print("    L      naive    your tiles   fused (PyTorch)")
for L in (512, 1024, 2048, 4096):
    print("{:5} {:7.1f} ms {:10.1f} ms {:14.1f} ms".format(L, *compare_times(L, block=256)))

# %% [markdown]
# **Play.** Other sizes for `block`: small ones pay for Python, large ones for memory. Where is the
# best size on this machine, and is it the same for all lengths?
#
# What remains is to write the two loops where they belong: the outer one as programs that run side by side, the inner
# one inside each program, the tiles in registers. That is a kernel, and it comes next.

# %% [markdown]
# ## 7. The prefill kernel
#
# *Needs: Triton (interpreted without a GPU).*
#
# Tiled attention in PyTorch has the right algorithm on the wrong machine: each line is a kernel of its own, and every
# intermediate goes out to slow memory and comes back. To keep a tile in registers from its first product to its last,
# the whole loop has to be *one* kernel. Triton lets you write it in Python. You write what one **program** does; the
# GPU runs thousands of them side by side, and each finds out from its number which part of the output is its own.

# %%
print(how_kernels_run())

# %% [markdown]
# Four things make up nearly all of Triton. Here they are in the smallest kernel that needs them: the largest number of
# each row.


# %%
@triton.jit
def row_max_kernel(x_ptr, out_ptr, num_columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)  # 1. which part of the work is mine
    columns = tl.arange(0, BLOCK)  # 2. a block of numbers at once; its length is a power of two
    mask = columns < num_columns  # 3. what of the block exists
    x = tl.load(x_ptr + row * num_columns + columns, mask=mask, other=float("-inf"))  # 4. pointers, elementwise
    tl.store(out_ptr + row, tl.max(x, axis=0))


# %% [markdown]
# A pointer plus a block of offsets is a block of pointers. Where the mask is false nothing is read and `other` stands
# there instead: leave it out, and the program reads whatever lies behind the row. Nobody warns you on a GPU; here the
# checks do, with the program's number and the line.

# %%
# NBVAL_CHECK_OUTPUT
# needs: triton
x = torch.tensor([[3.0, -1.0, 2.0], [-5.0, -4.0, -9.0]], device=device)
largest = torch.empty(2, device=device)
row_max_kernel[(2,)](x, largest, num_columns=3, BLOCK=4)  # [(2,)] is the grid: two programs
print(largest.tolist())

# %% [markdown]
# ### One tile
#
# Attention's loop goes over tiles of keys with a **state** per query row: the maximum so far, the sum of weights so
# far, and the weighted sum of values so far. Scores are in units of log2, that is, multiplied by log2(e) together with
# the scale, because a GPU has an instruction for 2ˣ and none for eˣ.

# %%
prefill_pictures.draw_running_state()
plt.show()

# %% [markdown]
# **Think first.** In the picture the third tile brings a larger maximum. What has to happen to what was summed up
# before? And what happens to a row whose tile is hidden altogether, whose maximum is still minus infinity?

# %% [markdown]
# <!-- card 2.12 -->
# Fold one tile of keys and values into the state of M query rows. With scores $s_{ij}$ in units of log2:
#
# $$m' = \max(m, \max_j s_j), \quad p_j = 2^{s_j - m'}, \quad \ell' = \ell\, 2^{m - m'} + \sum_j p_j,
# \quad a' = a\, 2^{m - m'} + \sum_j p_j v_j$$
#
# `q` is `[M, D]`, `k` and `v` are `[N, D]`, `visible` is `[M, N]`. A row that has seen nothing has $m = -\infty$,
# and $-\infty - (-\infty)$ is NaN; so the differences use a maximum that is finite. `tl.dot`, `tl.trans`, `tl.max`,
# `tl.sum`, `tl.exp2` and `tl.where` are all you need; `input_precision="ieee"` asks for full float32 products.
#
# ```python
# attend_tile(..., visible all False)   # leaves the state as it was, even at the very beginning
# attend_tile over 4 tiles              # ends with the same acc / row_sum as over one tile of 4 times the keys
# ```


# %% tags=["exercise:2.12"]
@triton.jit
def attend_tile(q, k, v, visible, qk_scale, row_max, row_sum, acc):
    """The state (row_max, row_sum, acc) of M query rows after N more keys."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale  # SOLUTION: [M, N], in units of log2
    scores = tl.where(visible, scores, float("-inf"))  # SOLUTION: the scores with what is hidden taken out
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))  # SOLUTION: [M], the maximum so far
    max_safe = tl.where(new_max == float("-inf"), 0.0, new_max)  # SOLUTION: the same, but 0 in rows that saw nothing
    p = tl.exp2(scores - max_safe[:, None])  # SOLUTION: [M, N], the weights of this tile
    rescale = tl.exp2(row_max - max_safe)  # SOLUTION: [M], the factor on what was summed up before
    row_sum = row_sum * rescale + tl.sum(p, axis=1)  # SOLUTION: [M], the sum of weights so far
    old = acc * rescale[:, None]  # SOLUTION: [M, D], what was summed up before, on the new scale
    acc = old + tl.dot(p.to(v.dtype), v, input_precision="ieee")  # the products run in the model's dtype
    return new_max, row_sum, acc


# %%
check("2.12")

# %% [markdown]
# **Watch the state.** A row over 64 keys, with the last 16, 32 ... of them hidden. The state is a finished answer for
# the keys so far: `row_max + log2(row_sum)` is their log-sum-exp, in base 2.

# %%
# needs: triton
step = use("2.12")
generator = torch.Generator().manual_seed(3)
q, k, v = (2 * torch.randn(n, 16, generator=generator).to(device) for n in (16, 64, 64))
scores = (q[0] @ k.T).cpu() / 4
print(f"{'keys':>5} {'row_max':>8} {'row_sum':>8} {'log-sum-exp':>12} {'torch':>8}")
for seen in (0, 16, 32, 48, 64):
    positions = torch.full((16,), seen - 1, dtype=torch.int32, device=device)
    row_max, row_sum, acc = (x[0].cpu() for x in launch_attend_tile(step, q, k, v, positions, 1 / 4))
    expected = scores[:seen].logsumexp(0) * LOG2_E
    print(f"{seen:5} {row_max:8.3f} {row_sum:8.3f} {row_max + row_sum.log2():12.3f} {expected:8.3f}")

# %% [markdown]
# Before the first key the state is (minus infinity, 0, 0): nothing seen, log-sum-exp minus infinity. When the maximum
# stays, the sum can only grow; when it rises, the sum may fall, for it counts in units of the largest weight. The
# log-sum-exp always grows.

# %% [markdown]
# ### The whole kernel
#
# Two things lie between a tile and an engine; sections 8 and 9 look into them, here is what the kernel needs to know.
#
# **Pages.** The K and V of a sequence do not lie in one piece. The cache is a pool of pages, `[N, H_kv, PAGE, D]`, and
# a sequence has a *block table* with the numbers of its pages in order. Position 9 with pages of 4 is slot 1 of the
# page that entry 2 of the table names.

# %%
tables = {"A": ([6, 1, 4], 11), "B": ([3, 9], 6)}
draw_block_tables(tables, num_blocks=12, block_size=4, columns=6)
plt.show()

# %% [markdown]
# **Ragged batches.** The new tokens of all sequences lie in one flat row, a *chunk* per sequence, without padding.
# `cu_query_lens` has where each chunk begins, and at its end the total. A chunk's tokens are the **last** of their
# sequence: of A's 11 tokens below, 6 were there before.
#
# **Who does what.** A program takes `BLOCK_Q` tokens of one chunk, and of each token the G query heads that share one
# KV head. So a tile of K and V is loaded once and used by `BLOCK_M = BLOCK_Q · G` rows.

# %%
prefill_pictures.draw_programs(query_lens=[5, 6], cached=[6, 0], block_q=2)
plt.show()

# %% [markdown]
# Row r of a program is token `r // G` of its block, and query head `kv_head · G + r % G`. The grid has as many query
# blocks as the *longest* chunk needs; in a shorter chunk the last programs find nothing to do, and return.

# %% [markdown]
# **Think first.** A program with queries at positions 6 and 7, keys in tiles of 4: how many tiles does it have to
# look at? In which of them does it need a mask?

# %% [markdown]
# <!-- card 2.13 -->
# Causal attention of a ragged batch over pages. A row at position p sees the keys at positions 0 to p; nothing from
# `hi` on is seen by any row of the program.
#
# $$\text{row of } K = (\text{page} \cdot H_{kv} + \text{kv head}) \cdot \text{PAGE} + \text{offset},
# \qquad \text{page} = \text{table}[\lfloor \text{position} / \text{PAGE} \rfloor]$$
#
# The result is `acc / row_sum`, and the log-sum-exp in base 2 beside it, for whoever wants to merge. The check draws
# a map of what your kernel reads: one-hot values turn its output into its weights.
#
# ```python
# a prompt of one token          # attends to itself: out is v of its slot
# another order of the pages     # the same result, with the block table changed to match
# ```


# %% tags=["exercise:2.13"]
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
    table_row_stride,
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
    num_cached = seq_len - chunk_len  # SOLUTION: tokens of this sequence before its chunk

    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    tokens = first_token + offs_m // G
    heads = kv_head * G + offs_m % G  # SOLUTION: [BLOCK_M], the query head of each row
    mask_m = (offs_m < BLOCK_Q * G) & (tokens < chunk_len)  # SOLUTION `(tokens < chunk_len)`: not beyond the chunk
    mask_q = mask_m[:, None] & (offs_d < D)[None, :]
    rows = (chunk_start + tokens) * H + heads  # SOLUTION: [BLOCK_M], where in q, seen as [T * H, D]
    q = tl.load(q_ptr + rows[:, None] * D + offs_d[None, :], mask=mask_q, other=0.0)
    row_positions = num_cached + tokens  # SOLUTION: [BLOCK_M], the position of each row in its sequence

    hi = tl.minimum(num_cached + first_token + BLOCK_Q, seq_len)  # keys [0, hi) are seen by some row
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    table_ptr = block_tables_ptr + sequence * table_row_stride  # SOLUTION: where this sequence's row begins
    for start in tl.range(0, hi, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        in_range = positions < hi  # SOLUTION: [BLOCK_N], which keys of the tile exist
        page_ids = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0)  # SOLUTION `positions // PAGE`: entry
        offsets = positions % PAGE  # SOLUTION: [BLOCK_N], the slot within the page
        slots = (page_ids.to(tl.int64) * H_KV + kv_head) * PAGE + offsets  # SOLUTION: rows of K as [N*H_KV*PAGE, D]
        offs_kv = slots[:, None] * D + offs_d[None, :]
        mask_kv = in_range[:, None] & (offs_d < D)[None, :]
        k = tl.load(k_ptr + offs_kv, mask=mask_kv, other=0.0)
        v = tl.load(v_ptr + offs_kv, mask=mask_kv, other=0.0)
        visible = in_range[None, :] & (positions[None, :] <= row_positions[:, None])  # SOLUTION: which pairs
        row_max, row_sum, acc = attend_tile(
            q, k, v, visible, qk_scale, row_max, row_sum, acc
        )  # SOLUTION: the new state

    out = acc / row_sum[:, None]  # SOLUTION: [BLOCK_M, BLOCK_D]
    lse = row_max + tl.log2(row_sum)  # SOLUTION: [BLOCK_M], base 2
    tl.store(out_ptr + rows[:, None] * D + offs_d[None, :], out, mask=mask_q)
    tl.store(lse_ptr + rows, lse, mask=mask_m)


# %%
check("2.13")

# %% [markdown]
# **What it reads.** The same trick as in the check, on two sequences like those above: with a one-hot V per slot the
# output is the weight of every slot. A's chunk is the lower part of a triangle, since six tokens came before; B's is a
# whole one. Between the two there is nothing, and no work was spent to find that out.

# %%
# needs: triton
prefill_kernel = use("2.13")
prefill_pictures.draw_reads(prefill_kernel, query_lens=[5, 6], cached=[6, 0])
plt.show()

# %% [markdown]
# **Count the tiles.** A tile above the diagonal is not masked, it is never loaded: the loop ends at `hi`. Of those
# that are loaded only the ones that meet the diagonal need a mask at all.

# %%
prefill_pictures.draw_tiles(num_cached=64, chunk_len=192, block_q=42, block_n=32)
plt.show()

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.prefill.tile_counts import count_tiles

print(f"{'prompt':>7} {'tiles':>7} {'loaded':>7} {'masked':>7}")
for length in (64, 256, 1024, 4096):
    tiles = count_tiles(num_cached=0, chunk_len=length, block_q=42, block_n=32)
    print(f"{length:7,} {tiles.all:7,} {tiles.loaded / tiles.all:7.0%} {tiles.masked / tiles.all:7.0%}")

# %% [markdown]
# The longer the prompt, the closer to one half the loaded tiles come, and the rarer the masked ones. *Standard*
# attention, which makes the whole matrix and masks it, computes them all.

# %% [markdown]
# ### Yours beside the production kernel
#
# The engine's kernel on a GPU is this one, grown up: same names, same arguments, same loop. Open the two cards and read
# the right-hand side; there should be little that surprises you.

# %%
# needs: triton
from twophase_kernels.attend_range import attend_range
from twophase_kernels.paged_prefill import paged_prefill_kernel as production_kernel

source_diff(use("2.12"), attend_range, "the loop over tiles: attend_tile and attend_range")

# %%
# needs: triton
source_diff(prefill_kernel, production_kernel, "paged_prefill_kernel")

# %% [markdown]
# What the differences buy. (What is said of compiled code was read from the compiler's output for these GPUs.)
#
# - **Page ids are loaded one tile ahead**, and carried through the loop. Loaded in the same step they make the loads of
#   K and V indirect, and the software pipeliner gives up. Carried, sm_90 code keeps 3 tiles under way instead of 2, and
#   sm_80 code 2 instead of 1.
# - **The loop runs twice**, `MASKED=False` and then `MASKED=True`. Most tiles lie below the diagonal; their loop has
#   no comparison and no `where`.
# - **`find_sequence`**, a binary search: the grid has about as many programs as there is work, and not *longest chunk
#   times sequences*. The next cell counts.
# - **The last block comes first.** It sees the most keys; started last, it would be the straggler all wait for.
# - **The maximum is scaled after it is taken**: `score * scale - maximum` is then one fused multiply-add.
# - **`do_not_specialize`.** The number of sequences and the table's width change from step to step; specialised, eight
#   such pairs made six binaries.
# - **`load_rows` knows at compile time** whether it needs a mask, so that rows are loaded 16 bytes at a time.
# - **`KV_FORMAT`, `WINDOW`, `NUM_SINKS`**: quantised caches, sliding windows and attention sinks (labs 3 and 5).

# %%
# NBVAL_CHECK_OUTPUT
chunks, block_q = [2000, 30, 20, 10], 42
yours = -(-max(chunks) // block_q) * len(chunks)
production = sum(chunks) // block_q + len(chunks)
busy = sum(-(-n // block_q) for n in chunks)
print(f"programs per KV head for chunks of {chunks}: yours {yours}, production {production}; with work: {busy}")

# %% [markdown]
# ## 8. Pages: where the keys and values go
#
# *Needs: CPU; Triton (interpreted without a GPU) for the kernel.*
#
# Before attention can read K and V from pages, somebody must have put them there. In an engine this is a step of its
# own, and the same one for prefill and decode: new tokens of all sequences come in one flat row, and each goes to its
# **slot**, a number that names page and offset at once.
#
# $$\text{slot} = \text{page} \cdot \text{PAGE} + \text{offset}$$

# %% [markdown]
# ```mermaid
# flowchart LR
#     P["position 9"] --> D["9 // 4 = 2<br/>which entry"]
#     P --> M["9 % 4 = 1<br/>which offset"]
#     D --> T["block table<br/>[6, 1, 4] → page 4"]
#     T --> S["slot 4 · 4 + 1 = 17"]
#     M --> S
# ```
#
# Consecutive positions are consecutive slots only within a page; at a page's end they jump.

# %% [markdown]
# <!-- card 2.14 -->
# The slots of positions `start` to `end - 1` of one sequence. `block_table` is int32 and may be longer than needed;
# the result is int64, `[end - start]`: a large pool has more slots than int32 can count elements.
#
# ```python
# slot_mapping(torch.tensor([6, 1, 4]), 0, 6, 4).tolist() == [24, 25, 26, 27, 4, 5]
# slot_mapping(torch.tensor([6, 1, 4]), 9, 10, 4).tolist() == [17]
# ```


# %% tags=["exercise:2.14"]
def slot_mapping(block_table, start, end, block_size):
    positions = torch.arange(start, end)
    pages = block_table[positions // block_size].long()  # SOLUTION: int64, the page of each position
    return pages * block_size + positions % block_size  # SOLUTION: the slot of each position


# %%
check("2.14")

# %%
# NBVAL_CHECK_OUTPUT
slots_of = use("2.14")
table = torch.tensor([6, 1, 4], dtype=torch.int32)
print("prompt of 6:       ", slots_of(table, 0, 6, 4).tolist())
print("the next 5 tokens: ", slots_of(table, 6, 11, 4).tolist())

# %% [markdown]
# ### The kernel that writes
#
# A program per token: it reads the token's slot, then moves the K and V of its H_kv heads. In the cache the heads of a
# token do not lie side by side, since the layout is `[N, H_kv, PAGE, D]`: a page has all slots of head 0, then all of
# head 1. Attention wants it so, because a program reads one KV head and many slots.
#
# Two traps. H_kv need not be a power of two, and SmolLM2 has 3: the block is 4 wide, and the fourth head is not there.
# And some tokens are written nowhere: an engine that pads its batch gives the padding the slot -1.

# %% [markdown]
# **Think first.** What would happen to the cache if the store had no mask for the heads? Which tokens would be
# overwritten, and when would somebody notice?

# %% [markdown]
# <!-- card 2.15 -->
# Write `k[t]` and `v[t]` to slot `slot_mapping[t]` of the caches, for all heads; leave tokens with a negative slot
# alone.
#
# ```python
# k_cache[slot // PAGE, h, slot % PAGE] == k[t, h]     # for each token t with a slot, and each KV head h
# ```


# %% tags=["exercise:2.15"]
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
    if slot < 0:  # SOLUTION: does this token go nowhere?
        return
    offs_h = tl.arange(0, BLOCK_H)
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs_h < H_KV)[:, None] & (offs_d < D)[None, :]  # SOLUTION: [BLOCK_H, BLOCK_D], which numbers exist
    from_rows = token * H_KV + offs_h  # SOLUTION: [BLOCK_H], rows of k, seen as [T * H_KV, D]
    to_rows = (slot // PAGE * H_KV + offs_h) * PAGE + slot % PAGE  # SOLUTION: [BLOCK_H], rows of k_cache likewise
    from_offs = from_rows[:, None] * D + offs_d[None, :]
    to_offs = to_rows[:, None] * D + offs_d[None, :]
    k = tl.load(k_ptr + from_offs, mask=mask, other=0.0)
    v = tl.load(v_ptr + from_offs, mask=mask, other=0.0)
    tl.store(k_cache_ptr + to_offs, k, mask=mask)
    tl.store(v_cache_ptr + to_offs, v, mask=mask)


# %%
check("2.15")

# %% [markdown]
# **Look into the pool.** Ten tokens whose keys are 1, 2, ... 10 throughout, written with your slots and your kernel.
# The seventh has slot -1, as if it were padding.

# %%
# needs: triton
write_kernel = use("2.15")
slots = slots_of(table, 0, 10, 4)
slots[6] = -1
new = torch.arange(1.0, 11)[:, None, None].expand(10, 3, 16).contiguous().to(device)
pool = torch.zeros(2, 8, 3, 4, 16, device=device)
launch_kv_write(write_kernel, new, -new, pool[0], pool[1], slots.to(device))
prefill_pictures.draw_slots(pool[0, :, :, :, 0].cpu())
plt.show()

# %% [markdown]
# Each page holds all heads, and each head its own slots. What it costs is moving bytes and nothing else: the kernel
# computes no number. Per token of SmolLM2 in float32:

# %%
# NBVAL_CHECK_OUTPUT
bytes_per_layer = 2 * 3 * 64 * 4  # K and V, KV heads, head size, bytes of a float32
print(f"written per token: {30 * bytes_per_layer:,} bytes in 30 layers (and as many read)")
print(f"weights read for it, if it comes alone: {4 * 134_515_008:,} bytes")

# %%
# needs: triton
from twophase_kernels.kv_write import kv_write_kernel as production_write

source_diff(write_kernel, production_write, "kv_write_kernel")

# %% [markdown]
# The production kernel differs in three things. It takes *strides*, so that K and V may be slices of the one fused
# product that computed Q, K and V, and need not be copied first. It can *quantise* on the way: the numbers are in
# registers anyway, and a second kernel would read and write them once more. And the engine goes further for real
# models: `rope_kv_write` also rotates q and k, in the same launch.

# %% [markdown]
# ## 9. Ragged batches: no padding
#
# *Needs: CPU.*
#
# PyTorch's tensors are rectangles, prompts are not. The obvious remedy is padding: make every prompt as long as the
# longest, mask what was added, throw its results away. It is paid for in full: padding goes through every matrix
# product of every layer.

# %%
prefill_pictures.draw_padding([3, 4, 5])
plt.show()

# %% [markdown]
# Padded, 15 positions are computed for 12 tokens. **Packed**, the tokens lie one after another, and `cu_lens`, the
# *cumulative* lengths, say where each prompt begins and ends: prompt s is tokens `cu_lens[s]` to `cu_lens[s + 1] - 1`.
# Everything that works on tokens one by one (projections, MLP, norms) never notices. Attention has to.

# %% [markdown]
# <!-- card 2.16 -->
# Three prompts of similar length waste a fifth. Now four prompts of 30, 50, 120 and 1,000 tokens are padded to the
# longest. What share of the positions computed is waste, in percent?

# %% tags=["exercise:2.16"]
answer_2_16 = 70  # SOLUTION: percent

# %%
check("2.16")

# %%
# NBVAL_CHECK_OUTPUT
for lengths in ([3, 4, 5], [30, 50, 120, 1_000], [200] * 4):
    padded, packed = len(lengths) * max(lengths), sum(lengths)
    print(f"{lengths!s:20} padded {padded:5,}  packed {packed:5,}  waste {1 - packed / padded:4.0%}")

# %% [markdown]
# Real traffic looks like the second line, not like the first: a few long prompts among many short ones. Sorting
# prompts into batches of like length helps, and makes short ones wait; packing costs nothing.

# %% [markdown]
# ### Attention over a packed batch
#
# Tokens of different prompts must not see each other. As a mask this is a row of triangles along the diagonal:

# %%
prefill_pictures.draw_packed_mask([3, 4, 5])
plt.show()

# %% [markdown]
# <!-- card 2.17 -->
# Causal attention over a packed batch, in plain PyTorch. `q` is `[T, H, D]`, `k` and `v` are `[T, H_kv, D]`; query
# head h reads KV head h // G. `cu_lens` is int32 `[S + 1]`; a prompt may have no tokens.
#
# ```python
# packed_attention(q, k, v, torch.tensor([0, T]), scale)                   # one prompt: plain causal attention
# packed_attention(q, k, v, torch.arange(T + 1), scale)                    # T prompts of one token: v itself
# ```


# %% tags=["exercise:2.17"]
def packed_attention(q, k, v, cu_lens, scale):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    tokens = torch.arange(len(q))
    lengths = cu_lens.diff()  # SOLUTION: [S], the length of each prompt
    owner = torch.repeat_interleave(lengths.long())  # [T], the prompt of each token: 0, 0, 0, 1, ...
    same = owner[:, None] == owner  # SOLUTION: [T, T], query and key in one prompt?
    visible = same & (tokens[:, None] >= tokens)  # SOLUTION: [T, T]
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)  # SOLUTION: [H, T, T]
    return torch.einsum("hqk,khd->qhd", weights, v)


# %%
check("2.17")

# %% [markdown]
# **Is it any cheaper?** The mask makes packing *right*. It does not make it cheap: `scores` has T² entries, most of
# them masked. Compare the number of scores computed for the four prompts above.

# %%
# NBVAL_CHECK_OUTPUT
lengths = [30, 50, 120, 1_000]
pairs = {
    "padded, a rectangle each": len(lengths) * max(lengths) ** 2,
    "packed, with a mask": sum(lengths) ** 2,
    "what is needed": sum(n * (n + 1) // 2 for n in lengths),
}
for name, count in pairs.items():
    print(f"{name:26} {count:9,} scores per head")

# %% [markdown]
# A kernel has no need of the mask between prompts: its loop runs over one sequence's keys and ends at the diagonal. The
# prefill kernel of section 7 does exactly that, and comes close to the last line. Hence *variable-length* attention
# kernels, and `cu_query_lens` in the signature of all of them.

# %%
packed = use("2.17")
generator = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(300, heads, 64, generator=generator) for heads in (9, 3, 3))
cu_lens = torch.tensor([0, 30, 80, 200, 300], dtype=torch.int32)
together = packed(q, k, v, cu_lens, 1 / 8)
for first, end in zip(cu_lens[:-1].tolist(), cu_lens[1:].tolist(), strict=True):
    part = (x[first:end].transpose(0, 1) for x in (q, k, v))
    alone = torch.nn.functional.scaled_dot_product_attention(*part, is_causal=True, enable_gqa=True).transpose(0, 1)
    print(f"tokens {first:3} to {end - 1:3}: largest difference {(together[first:end] - alone).abs().max():.0e}")

# %% [markdown]
# ## 10. Chunked prefill
#
# *Needs: CPU, and the model.*
#
# A prompt of 8,000 tokens in one pass keeps the machine busy for a long while, and everybody else waits. So engines
# cut it: 512 tokens in this step, beside other people's decodes, 512 in the next. Lab 4 schedules this; here the
# question is whether it is *allowed*. Does a prompt in chunks give what it gives in one pass?
#
# By the causal mask it must: a row needs the keys before it, and they are there, in the pages, from earlier chunks.

# %%
prefill_pictures.draw_chunks(num_tokens=12, chunk=5)
plt.show()

# %% [markdown]
# The triangle is cut into horizontal bands. The first band is a triangle of its own. In every later one there is
# history on the left, which all rows see, and a triangle at the right end.
#
# **Think first.** Three things have to be shifted for the second band, and each is forgotten now and then: where the
# keys come from, where the mask's diagonal lies, and one more, which has happened to q and k before they come here.
# Which?

# %% [markdown]
# <!-- card 2.18 -->
# One chunk of a prompt. `q` is `[L, H, D]`, `k` and `v` are `[L, H_kv, D]`, not rotated yet; `num_cached` tokens of
# the prompt are in the pages already. Rotate, write the chunk's K and V into their slots, attend to everything up to
# each row's own position; return `[L, H, D]`.
#
# `rotate(x, positions, theta)` and `slot_mapping` are yours; the base here is `THETA`. The caches are
# `[N, H_kv, PAGE, D]`; the table has a page for every position.
#
# ```python
# prefill_chunk(q, k, v, ..., num_cached=0)                 # the whole prompt at once
# first = prefill_chunk(q[:7], k[:7], v[:7], ..., 0)        # and the same
# rest = prefill_chunk(q[7:], k[7:], v[7:], ..., 7)         # in two pieces: torch.cat([first, rest])
# ```


# %% tags=["exercise:2.18"]
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, scale):
    block_size = k_cache.shape[2]
    seq_len = num_cached + len(q)  # SOLUTION: tokens of the prompt after this chunk
    positions = torch.arange(num_cached, seq_len)  # SOLUTION: [L], the positions of the chunk
    q, k = rotate(q, positions, THETA), rotate(k, positions, THETA)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)  # SOLUTION: [L], slots to write
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    slots = slot_mapping(block_table, 0, seq_len, block_size)  # SOLUTION: [S], slots to read
    keys, values = (cache[slots // block_size, :, slots % block_size] for cache in (k_cache, v_cache))
    visible = torch.arange(seq_len) <= positions[:, None]  # SOLUTION: [L, S]
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))  # [S, H, D]
    scores = torch.einsum("lhd,shd->hls", q, keys) * scale
    weights = torch.where(visible, scores, -torch.inf).softmax(-1)
    return torch.einsum("hls,shd->lhd", weights, values)


# %%
check("2.18")

# %% [markdown]
# **Any chunk size.** A prompt of 100 tokens, K and V in pages of 16, the heads of SmolLM2.

# %%
one_chunk = use("2.18")
generator = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(100, heads, 64, generator=generator) for heads in (9, 3, 3))
table = torch.randperm(8, generator=generator).int()


def in_chunks(size):
    caches, rows = torch.zeros(2, 8, 3, 16, 64), []
    for first in range(0, 100, size):
        part = (x[first : first + size] for x in (q, k, v))
        rows.append(one_chunk(*part, *caches, table, first, 1 / 8))
    return torch.cat(rows)


for size in (1, 7, 16, 64):
    print(f"chunks of {size:2}: largest difference {(in_chunks(size) - in_chunks(100)).abs().max():.0e}")

# %% [markdown]
# Equal up to rounding, whatever the size; chunks need not even end where pages do. A chunk of 1 is worth a second look:
# one query against all keys before it. That is a *decode step*. Prefill and decode are one operation at two ends of a
# scale; why engines have two kernels for it is the subject of lab 3.
#
# **In the engine.** The same prompt with a budget of 24, 64 and 512 tokens per step; the trace says what each step did.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.prefill.first_token import open_engine

text = "A recipe for bread: mix flour, water, salt and yeast, knead for ten minutes, let it rise, " * 5
for budget in (24, 64, 512):
    llm = open_engine(budget)
    (output,) = llm.generate([text], SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)
    chunks = [chunk[3] for step in llm.engine.trace for chunk in step.chunks]
    print(f"budget {budget:3}: prefill {chunks[:-5]}, then {output.outputs[0].token_ids}")

# %% [markdown]
# **What it costs.** Chunking is exact and not free. Each chunk reads the keys and values of all chunks before it once
# more. For a prompt of 4,096 tokens:

# %%
# NBVAL_CHECK_OUTPUT
L = 4096
for size in (4096, 1024, 512, 256, 64):
    ends = range(size, L + 1, size)
    print(f"chunks of {size:4}: {len(ends):3} passes over the weights, {sum(ends) / L:5.1f} times the keys read")

# %% [markdown]
# Small chunks also leave the compute-bound side of the roofline: a weight that is read is used for 64 tokens
# only. A chunk should be as small as other people's patience asks for, and no smaller.

# %% [markdown]
# ## 11. Capstone: your prefill in the engine
#
# *Needs: Triton (interpreted without a GPU), and the model.*
#
# `LLM` is an engine with a scheduler, a cache manager, a model and a sampler, and one thin interface to attention. Your
# two kernels go behind this interface. What is missing is the glue: a function that looks at shapes, decides on the
# grid, allocates the output and launches.

# %% [markdown]
# ```mermaid
# flowchart LR
#     S["scheduler<br/>chunks of this step"] --> B["batch<br/>tables, lengths, slots"]
#     B --> M["each of 30 layers"]
#     M --> W["own_write<br/>your kv_write_kernel"]
#     W --> C[("pages")]
#     C --> P["own_prefill<br/>your paged_prefill_kernel"]
#     P --> M
#     M --> L["logits, next tokens"]
# ```

# %% [markdown]
# <!-- card 2.19 -->
# Launch both kernels. The write kernel has a program per token. The prefill kernel has a program per query block of
# the longest chunk, per sequence, and per KV head, in this order; a block holds as many whole tokens as fit into
# `BLOCK_M` rows. It wants its scale in units of log2 (`LOG2_E` is there). `triton.cdiv(a, b)` is a / b rounded up, and
# `triton.next_power_of_2` does what it says.
#
# ```python
# own_prefill(q, k_cache, v_cache, block_tables, seq_lens, cu_query_lens, scale)      # [T, H, D], like q
# 9 heads over 3 KV heads, BLOCK_M = 128, chunks of 10 and 100                        # grid (3, 2, 3)
# ```


# %% tags=["exercise:2.19"]
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
    block_q = BLOCK_M // (num_heads // num_kv_heads)  # SOLUTION: tokens of a query block
    longest = int(cu_query_lens.diff().max())  # SOLUTION: the length of the longest chunk
    grid = (triton.cdiv(longest, block_q), len(seq_lens), num_kv_heads)  # SOLUTION: a tuple, how many programs
    qk_scale = scale * LOG2_E  # SOLUTION: the scale in units of log2
    paged_prefill_kernel[grid](
        q, k_cache, v_cache, block_tables, seq_lens, cu_query_lens, out, lse, qk_scale, block_tables.stride(0),
        H=num_heads, H_KV=num_kv_heads, D=head_dim, PAGE=page,
        BLOCK_M=BLOCK_M, BLOCK_D=triton.next_power_of_2(head_dim), BLOCK_N=BLOCK_N,
    )  # fmt: skip
    return out


# %%
check("2.19")

# %% [markdown]
# **Now for real.** SmolLM2 in the engine, three prompts of different lengths in one ragged batch. All K and V of this
# run go through your write kernel, all prompts through your prefill kernel; the decode steps after the first token are
# the engine's own until lab 3.

# %%
# needs: triton
from twophase import LLM
from twophase_labs.kit.own_attention import OwnAttention

write, prefill = use("2.19")
llm = LLM(
    attention_backend=lambda spec: OwnAttention(spec, block_size=16, write=write, prefill=prefill),
    dtype="float32",
    num_kv_blocks=64,
    max_num_seqs=8,
)

# %%
# NBVAL_CHECK_OUTPUT
# needs: triton
prompts = [
    "The capital of France is",
    "Once upon a time there was a machine that could read a whole page at a glance, and then",
    "One, two, three, four,",
]
outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
for prompt, output in zip(prompts, outputs, strict=True):
    print(f"{prompt} [{output.outputs[0].text}]")

# %%
# NBVAL_CHECK_OUTPUT
# needs: triton
model, tokenizer = smollm2()
for prompt, output in zip(prompts, outputs, strict=True):
    ids = tokenizer(prompt, return_tensors="pt").input_ids[0]
    theirs = transformers_greedy(model, ids, 12)[len(ids) :]
    print(len(ids), "tokens of prompt; same as transformers:", list(output.outputs[0].token_ids) == theirs.tolist())
print("calls of your functions:", dict(llm.model.backend.num_calls))

# %% [markdown]
# 30 calls of `prefill`: one per layer, for all three prompts at once. The write function is called in every step, for a
# decode step writes too, a token per sequence.

# %% [markdown]
# ### The time to the first token
#
# Whoever asks waits for the whole prefill before anything appears. This wait is the **TTFT**, time to first token, and
# it is what prefill is judged by.

# %% [markdown]
# <!-- card 2.20 -->
# **Think first.** A prompt of 512 tokens, after one of 64: eight times as many. How many times as long is the time to
# the first token on this machine, with the engine's own attention? (Within a factor of 2 counts as close.)

# %% tags=["exercise:2.20"]
guess_2_20 = 8  # SOLUTION: how many times as long

# %%
check("2.20")

# %%
from twophase_labs.kit.ceilings import matmul_rate
from twophase_labs.prefill.first_token import count_prefill_flops, time_first_token

lengths = (16, 32, 64, 128, 256, 512)
first_token_s = {length: time_first_token(length, repeats=2 if length < 256 else 1) for length in lengths}
measured("2.20", first_token_s[512] / first_token_s[64])

# %% [markdown]
# To read the curve, a ruler: the operations of a prefill, over the rate at which this machine multiplies large
# matrices, is the shortest time that is possible. The share of that rate that the prefill reaches is its **model FLOP
# utilisation**, MFU (arXiv:2204.02311).

# %%
flops = {length: count_prefill_flops(length) for length in lengths}
prefill_pictures.draw_first_token(first_token_s, flops, matmul_rate())
plt.show()

# %%
# NBVAL_CHECK_OUTPUT
print(f"{'tokens':>6} {'linear layers':>14} {'attention':>10}")
for length in (64, 512, 4096, 32768):
    linear, attention = count_prefill_flops(length, parts=True)
    print(f"{length:6,} {linear / 1e9:10,.0f} GFLOP {attention / (linear + attention):9.0%}")

# %% [markdown]
# **Read the result.** Attention is quadratic, and yet the first token comes late in about *linear* proportion: at these
# lengths nearly all work is in the linear layers, whose cost is per token. The square makes itself felt at thousands
# of tokens, for a model of this size. Short prompts have a price below which they cannot go: the weights are read and
# some hundred operations started, for one token as for twenty, and utilisation is low. Prefill is compute-bound only
# once it is long enough.

# %% [markdown]
# ### Naive, SDPA, yours
#
# Attention alone, one layer with the heads of SmolLM2. The naive one makes the matrix of scores; torch's SDPA is tiled;
# yours is tiled and paged. A GPU runs your kernel compiled; the interpreter runs each operation of each program in
# numpy, and its times say nothing about the kernel but how many tiles it has.

# %%
# needs: triton
from twophase_labs.prefill.first_token import compare_attention

rows = compare_attention(prefill, lengths=(128, 256, 512))
print(how_kernels_run())
print(f"{'tokens':>6} {'naive':>10} {'SDPA':>10} {'yours':>10} {'score matrix':>13}")
for length, times_s, score_bytes in rows:
    cells = " ".join(f"{1e3 * s:7.1f} ms" for s in times_s)
    print(f"{length:6} {cells} {score_bytes / 2**20:9.1f} MiB")

# %% [markdown]
# The last column is what the naive one writes to memory and reads again, and what the tiled ones never make. It
# quadruples with every line. Interpreted, your kernel is the slowest by far; and it is right, which is what a kernel
# has to be first.
#
# **Play.** Assign `BLOCK_N = 64` in a cell of your own and generate again: more tiles, the same tokens. Make the causal
# mask of 2.13 `<` instead of `<=`, and look at the map that its check draws.

# %% [markdown]
# ## Checkpoint
#
# Tick what you could explain to a colleague without looking. What you can't, is a section to go back to.
#
# - [ ] which operations attention is made of, and which of them must not be left out (1, 2)
# - [ ] on which side of the ridge a prefill lies, and what it depends on (3)
# - [ ] why the score matrix need not exist (4, 5, 6)
# - [ ] what a state of (maximum, sum, accumulator) means, and how two of them are merged (5, 7)
# - [ ] which rows of the output a program of the prefill kernel owns, and which keys it reads (7)
# - [ ] how a position becomes a slot (8)
# - [ ] what `cu_query_lens` says, and what padding would have cost (9)
# - [ ] what is shifted in the second chunk of a prompt, and what chunking costs (10)
# - [ ] what the time to first token is made of (11)

# %% [markdown]
# ## 12. Knowledge check
#
# *Needs: a clear head.* Six questions over the whole lab.

# %% [markdown]
# <!-- card 2.21 -->
# A kernel for attention by tiles has a bug: it does not rescale its sums when the maximum rises. When is its result
# still right?
# (a) never,
# (b) if the largest score of each row is in the first tile,
# (c) if all scores are positive,
# (d) if the rows are short enough for one page.

# %% tags=["exercise:2.21"]
answer_2_21 = "b"  # SOLUTION: one letter

# %%
check("2.21")

# %% [markdown]
# <!-- card 2.22 -->
# Which mistake shows which symptom? (a) NaN, now and then, after the cache has been in use for a while, (b) fluent
# text that ignores the prompt's last token, (c) right for a single sequence, wrong in a batch, (d) right for
# prompts in one pass, wrong in chunks.

# %% tags=["exercise:2.22"]
answer_2_22 = {
    "the last key of each row is not read": "b",  # SOLUTION: a letter
    "every sequence reads the first row of block_tables": "c",  # SOLUTION: a letter
    "V is loaded without a mask": "a",  # SOLUTION: a letter
    "the mask compares keys with the row's number in its chunk": "d",  # SOLUTION: a letter
}

# %%
check("2.22")

# %% [markdown]
# <!-- card 2.23 -->
# Pages of 16 tokens; the block table of a sequence is [40, 7, 12]. In which slot is position 35?

# %% tags=["exercise:2.23"]
answer_2_23 = 195  # SOLUTION: a slot

# %%
check("2.23")

# %% [markdown]
# <!-- card 2.24 -->
# 32 query heads, 8 KV heads, `BLOCK_M` = 128. Chunks of 1,000, 200 and 5 tokens. With the grid of exercise 2.13 (a
# program per query block of the longest chunk, per sequence, per KV head), how many programs find work?

# %% tags=["exercise:2.24"]
answer_2_24 = 320  # SOLUTION: programs

# %%
check("2.24")

# %% [markdown]
# <!-- card 2.25 -->
# A prompt of 2,000 tokens is prefilled in four chunks of 500. Compared with one pass, which of these grows?
# (a) the number of query-key pairs computed,
# (b) the keys and values that are stored,
# (c) the number of times the weights are read,
# (d) the FLOPs of the linear layers.

# %% tags=["exercise:2.25"]
answer_2_25 = "c"  # SOLUTION: one letter

# %%
check("2.25")

# %% [markdown]
# <!-- card 2.26 -->
# A prefill of 1,024 tokens takes 180 GFLOP and 1.5 s on a machine that multiplies large matrices at 200 GFLOP/s. What
# is its model FLOP utilisation, in percent?

# %% tags=["exercise:2.26"]
answer_2_26 = 60  # SOLUTION: percent

# %%
check("2.26")

# %% [markdown]
# ## Principles
#
# 1. **Prefill has parallelism to spare.** All positions are known, each weight that is read serves all of them; what
#    limits is how fast the machine multiplies, once the prompt is long enough.
# 2. **What is never written need not be read.** The score matrix exists a tile at a time. Tiled attention computes the
#    same numbers, and moves fewer bytes.
# 3. **A state that merges is worth a lot.** Maximum, sum and accumulator make attention associative: over tiles, over
#    chunks, and in lab 3 over programs.
# 4. **Loop bounds beat masks.** A mask makes a result right; a bound makes it cheap.
# 5. **Store by page, compute by row.** A kernel translates positions to slots where it loads, and nothing else knows.
# 6. **Don't pad; say where things begin.** Cumulative lengths cost a few bytes.
# 7. **0 · NaN is NaN.** What a slot holds that nobody wrote is nobody's business: mask the load, not the product.

# %% [markdown]
# ## Troubleshooting, by symptom
#
# | symptom | likely cause | section |
# |---|---|---|
# | NaN in some rows | a row that sees no key; minus infinity minus minus infinity | 5, 7 |
# | NaN only after long use | stale slots loaded without a mask | 7 |
# | right for short prompts, wrong beyond one tile | old sums not rescaled; state not carried | 5, 7 |
# | off by a little everywhere | scale forgotten, or its log2(e); softmax over the wrong axis | 1, 7 |
# | right with H = H_kv, wrong with grouped heads | h % H_kv instead of h // G | 2, 7 |
# | right alone, wrong in a batch | table row; start of the chunk; a store beyond the chunk | 7, 9 |
# | right in one pass, wrong in chunks | positions, diagonal or history not shifted | 10 |
# | K and V of one token in another's place | entry and offset, or head and slot, exchanged | 8 |
# | a CUDA error at a place that makes no sense | an access outside, some kernels ago: run in the interpreter | 7 |
# | runs here, does not compile there | a variable changes its type in the loop; a block is no power of two | 7 |
# | slow at every length | padding; tiles above the diagonal; prompts too short to fill the machine | 9, 11 |

# %% [markdown]
# ## What to read next
#
# - Online normalizer calculation for softmax, arXiv:1805.02867: the running maximum and sum.
# - FlashAttention, arXiv:2205.14135; FlashAttention-2, arXiv:2307.08691: tiles, and who does which.
#   FlashAttention-3, arXiv:2407.08608, for Hopper.
# - Efficient Memory Management for Large Language Model Serving with PagedAttention, arXiv:2309.06180: pages.
# - Sarathi-Serve, arXiv:2403.02310: chunked prefill, and what it does for those who wait.
# - FlashInfer, arXiv:2501.01005: ragged, paged attention kernels for serving.
# - RoFormer, arXiv:2104.09864: RoPE. PaLM, arXiv:2204.02311, appendix B: model FLOP utilisation.
# - Triton's own tutorials, *Fused Attention* above all.
#
# Lab 3 looks at the second phase: one token at a time. [03_decode.ipynb](03_decode.ipynb)
