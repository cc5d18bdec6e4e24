# %% [markdown]
# PART B

# %% tags=["setup"]
import matplotlib.pyplot as plt
import torch

from twophase import SamplingParams
from twophase.workbook import ____, check, hint, measured, reference, reveal, use
from twophase.workbook.kernels import device, how_kernels_run, tl, triton
from twophase.workbook.kit.models import smollm2, transformers_greedy
from twophase.workbook.kit.source_diff import source_diff
from twophase.workbook.lab02 import prefill_pictures
from twophase.workbook.lab02.launch import (
    BLOCK_M,
    BLOCK_N,
    LOG2_E,
    launch_attend_tile,
    launch_kv_write,
)
from twophase.workbook.lab02.rotation import rotate
from twophase.workbook.pictures import draw_block_tables

torch.set_num_threads(1)

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
from twophase.workbook.lab02.tile_counts import count_tiles

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
from twophase_kernels.attend_range import attend_range
from twophase_kernels.paged_prefill import paged_prefill_kernel as production_kernel

source_diff(use("2.12"), attend_range, "the loop over tiles: attend_tile and attend_range")

# %%
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
# `rotate(x, positions)` is RoPE and given, `slot_mapping` is yours. The caches are `[N, H_kv, PAGE, D]`; the table
# has a page for every position.
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
    q, k = rotate(q, positions), rotate(k, positions)
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
from twophase.workbook.lab02.first_token import open_engine

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
from twophase import LLM
from twophase.workbook.kit.own_attention import OwnAttention

write, prefill = use("2.19")
llm = LLM(
    attention_backend=lambda spec: OwnAttention(spec, block_size=16, write=write, prefill=prefill),
    dtype="float32",
    num_kv_blocks=64,
    max_num_seqs=8,
)

# %%
# NBVAL_CHECK_OUTPUT
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
from twophase.workbook.lab02.first_token import count_prefill_flops, matmul_rate, time_first_token

lengths = (16, 32, 64, 128, 256, 512)
flop_per_s = matmul_rate()
first_token_s = {length: time_first_token(length, repeats=2 if length < 256 else 1) for length in lengths}
measured("2.20", first_token_s[512] / first_token_s[64])

# %% [markdown]
# To read the curve, a ruler: the operations of a prefill, over the rate at which this machine multiplies large
# matrices, is the shortest time that is possible. The share of that rate that the prefill reaches is its **model FLOP
# utilisation**, MFU (arXiv:2204.02311). (More than 100 % would mean that something else kept this machine busy while
# the rate was measured.)

# %%
flop_per_s = max(flop_per_s, matmul_rate())  # before and after, so that a busy moment does not count
flops = {length: count_prefill_flops(length) for length in lengths}
prefill_pictures.draw_first_token(first_token_s, flops, flop_per_s)
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
from twophase.workbook.lab02.first_token import compare_attention

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
