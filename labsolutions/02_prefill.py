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
import math

import torch
import torch.nn.functional as F

from twophase.workbook import ____, check, hint, measured, reference, reveal, use
from twophase.workbook.kit.models import smollm2
from twophase.workbook.kit.timing import seconds
from twophase.workbook.lab02 import attention_pictures as pictures
from twophase.workbook.lab02.two_ways import page_ids, read_at_once, read_one_by_one

torch.set_num_threads(1)
LOG2_E = math.log2(math.e)  # 1.4427: turns an exponent of e into one of 2

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
from twophase.workbook.lab02.real_layer import head_weights, layer_of, layer_queries_keys, watch_layer

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
from twophase.workbook.lab02.model_shape import LLAMA_3_8B, SMOLLM2

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
from twophase.workbook.lab02.measured_roofs import measure_roofs, time_attention, time_projection

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
# L moves them to the right and up until they meet the flat roof. A roof is a bound and not a promise; how far below it
# a point lies is what an implementation leaves on the table; attention has exponentials to compute besides, which the
# count leaves out. (A copy reads and writes. Where a machine reads faster than it copies, a point may even lie a
# little above the slanted roof.)

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
from twophase.workbook.lab02.peak_memory import attention_inputs, peak_bytes

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
from twophase.workbook.lab02.slow_memory import attention_memory, standard_attention

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
