# %% [markdown]
# PART B: sections 5 to 7

# %% tags=["setup"]
from twophase.workbook.kernels import device, how_kernels_run, tl, triton  # first: it decides how kernels run

# isort: split
from functools import partial

import torch

from twophase.workbook import ____, check, hint, measured, reference, reveal, use
from twophase.workbook.checks import Draw
from twophase.workbook.kit.source_diff import source_diff
from twophase.workbook.kit.timing import seconds
from twophase.workbook.lab03 import decode_pictures as pictures
from twophase.workbook.lab03.attend_tiles import attend_tiles
from twophase.workbook.lab03.decode_cases import map_case, naive_decode, on_device, random_case, slot_order
from twophase.workbook.lab03.launch import launch_merge_splits, launch_paged_decode, launch_paged_decode_split

torch.set_num_threads(1)

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
# is in the package, `lab03/launch.py`: it chooses the tiles' sizes and starts the grid of `B` times `H_KV` programs.)


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
print(how_kernels_run())
case = random_case(Draw(4), [150, 64, 9], heads=9, kv_heads=3, dim=64, page=16)
expected, _ = naive_decode(case)
for block_n in (16, 64, 256):
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
from twophase_kernels.attend_range import attend_range
from twophase_kernels.paged_decode import paged_decode_kernel as production_kernel

source_diff(decode_kernel, production_kernel, "paged_decode_kernel: yours and production")

# %%
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
from twophase.workbook.lab03.strides import CPU_LINE_BYTES, STRIDES, time_strides

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
from twophase.workbook.lab03.strides import GPU_SECTOR_BYTES

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
