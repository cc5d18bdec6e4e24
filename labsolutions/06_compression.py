# %% [markdown]
# # Lab 6: compression
#
# A decode step waits for weights, as lab 3 showed, and so far each weight has been read as 32 bits. Does it need them?
# The first cell takes a weight matrix of SmolLM2, in float32 as the labs have used it, in groups of 32 neighbours, and
# counts how many *different* numbers there are in each group.

# %%
import torch

from twophase_labs.compression.changed_model import weight_of

torch.set_num_threads(1)
weight = weight_of("15.mlp.down_proj")  # layer 15 of SmolLM2, float32 [576, 1536]
for name, numbers in {"as they are": weight.flatten(), "16 further on": weight.flatten()[16:-16]}.items():
    groups = numbers.view(-1, 32).sort().values
    num_different = (groups.diff() != 0).sum(1) + 1
    print(f"{len(groups):,} groups of 32, {name:13}: at most {num_different.max()} different numbers")

# %% [markdown]
# 32 bits can tell more than four billion numbers apart. Yet a group never holds more than 16 different ones, so 4 bits
# would say which of them a weight is. And it matters where groups begin: shifted by 16, they hold more. The labs have
# been reading 32 bits per weight, most of which say nothing. Where do the 16 numbers come from? Write down what you
# expect. Section 3 finds them, bit by bit, and the capstone runs the engine on 4-bit weights of your own making.

# %% [markdown]
# <!-- opening minutes: 4 -->
# <!-- map -->

# %% [markdown]
# **After this lab you can**
#
# - say what fewer bits in weights, activations, or K and V make faster, and by how much at most;
# - round weights to a few bits in groups, and repair what rounding breaks: by scaling (SmoothQuant, AWQ) or column by
#   column (GPTQ);
# - read quantised weights from a file, and multiply by them without unpacking them in memory;
# - say what zeros are worth, when to teach a smaller model instead, and what a gate must measure before either is used.
#
# You need labs 1 to 3, or a working knowledge of their subjects: decode steps, rooflines, Triton kernels; section 10
# uses the gate of lab 5. No GPU is needed. What a GPU would do is estimated by roofline from data sheets.
#
# **How it works.** Commit to a prediction, write the code, run `check("6.1")`. `hint("6.1")` helps in up to three
# steps, `reveal("6.1")` shows a solution. If you skip an exercise, later cells use the reference solution and say so.

# %% tags=["setup"]
import torch
import torch.nn.functional as F

from twophase_labs import ____, check, hint, measured, reference, reveal, use

torch.set_num_threads(1)

# %% [markdown]
# ## 1. Where the bytes are
# <!-- minutes: 14 -->
#
# For one sequence a decode step takes about as long as it takes to read the weights (lab 3). **Quantisation** stores a
# weight as a **code**, a whole number of few bits, and shares a scale among many codes. Here is what a step has to read
# in some formats. The 4-bit formats keep two 16-bit numbers for each group: 4 + 32/64 and 4 + 32/32 bits per weight.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.compression import step_bytes
from twophase_labs.decode.decode_work import H100, LLAMA_3_8B, SMOLLM2

formats = {"float32": (32, 32), "bfloat16": (16, 16), "8 bits": (8, 16), "4 bits, groups of 64": (4.5, 16)}
formats["4 bits, groups of 32"] = (5, 16)
for name, (layer_bits, head_bits) in formats.items():
    small, large = (sum(step_bytes.weight_bytes(shape, layer_bits, head_bits)) for shape in (SMOLLM2, LLAMA_3_8B))
    bound = f"{1e3 * large / H100.bandwidth:.2f} ms on an H100"
    print(f"{name:20}: SmolLM2 {small / 1e9:.3f} GB; Llama-3-8B {large / 1e9:5.2f} GB, at least {bound}")
prompt_ms = 1e3 * 2 * LLAMA_3_8B.num_weights * 2000 / H100.flop_rate
print(f"a prompt of 2,000 tokens of Llama-3-8B on an H100: {prompt_ms:.1f} ms of arithmetic in 16 bits")

# %% [markdown]
# (The output head, which is SmolLM2's embedding as well, stays in 16 bits in the last three lines, as it does in most
# quantised models. Times of an H100 are by roofline: bytes over 3.35 TB/s, or operations over 989 TFLOP/s.)
#
# **Think first.** Weights in 4 bits, activations in 16: a kernel reads codes, makes 16-bit numbers of them in its
# registers and multiplies in 16 bits. What becomes of the time of that prompt? And of a decode step of 32 sequences
# with 4,096 tokens of context each?

# %%
step_bytes.draw_shares(LLAMA_3_8B, context=4096, batches=(1, 32))

# %% [markdown]
# For one sequence, weights are nearly all that is read. For 32 long ones K and V are more than half, and 4-bit weights
# can save only a part of the rest. The prompt gains nothing: its time is arithmetic, which is still done in 16 bits. So
# the first question is not how many bits, but *what* is to have fewer bits:
#
# | rounded | written | makes faster | does not |
# |---|---|---|---|
# | weights only | W8A16, W4A16 | decode with few sequences | prefill and large batches: they wait for arithmetic |
# | weights and activations | W8A8, fp8 | decode, and prefill too: products in 8 bits | |
# | K and V | `kv_cache_dtype` | decode with much context (labs 3 and 5) | prefill, one short sequence |
#
# (Products in 8 bits: an H100's data sheet has 1,979 TFLOP/s for them, 989 in 16 bits.) Rounding is one of four routes
# to fewer bytes:
#
# | route | what changes | what it needs | here |
# |---|---|---|---|
# | **quantise** | the bits of each weight | nothing, or some hundred tokens of calibration text | sections 2 to 7 |
# | **prune** | some weights become 0 | a kernel that gains from zeros | section 8 |
# | **distil** | a smaller model, taught by the larger one | training | section 9 |
# | **take a smaller model** | a smaller model, as it comes | nothing | section 10 |

# %% [markdown]
# <!-- card 6.1 -->
# **Predict.** The engine writes with SmolLM2: one sequence, one thread, first with float32 weights, then with
# `quantization="int4"`: groups of 32, the output head in bfloat16, activations in bfloat16. How many times faster is
# it in 4 bits? (A factor of 1.3 counts as close.)

# %% tags=["exercise:6.1"]
guess_6_1 = 3  # SOLUTION: times as many tokens per second

# %%
check("6.1")

# %%
seconds, num_bytes, fixed_s = step_bytes.step_seconds(), step_bytes.bytes_read(), step_bytes.fixed_seconds()
for name, step_s in seconds.items():
    by_bytes = num_bytes["float32"] / num_bytes[name]
    faster = f"{seconds['float32'] / step_s:.2f} times as fast; by bytes at most {by_bytes:.2f}"
    print(f"{name:9} {1e3 * step_s:5.1f} ms a token, {num_bytes[name] / 1e6:5.1f} MB: {faster}")
expected_s = fixed_s + (seconds["float32"] - fixed_s) / by_bytes  # of the last line, in 4 bits
print(f"30 layers without weights: {1e3 * fixed_s:.1f} ms; so in 4 bits one would expect {1e3 * expected_s:.1f} ms")
layers, head = step_bytes.weight_bytes(SMOLLM2, 5, 16)
print(f"in 4 bits the layers are {layers / 1e6:.1f} MB, the output head {head / 1e6:.1f} MB")
measured("6.1", step_bytes.faster_in_4_bits())

# %% [markdown]
# **Read the result.** Bytes explain it: 16 bits halve them, and 4-bit codes with their scales leave 4.37 times fewer,
# not 8 times. One bit per weight goes into scales and minima, and the output head, a fifth of all weights, is now
# nearly half of the bytes. The step gains less than its bytes because part of it does not shrink: the fixed price of
# some 2,000 small calls, which lab 3 measured on a model of 30 layers with hardly any weights. Take that price off,
# divide what is left by 4.37, and put it on again: that is the time to expect. (Where torch has no product for 4-bit
# weights on a CPU, the engine unpacks them to bfloat16 when it loads them, and the third line equals the second.)
#
# > **In production, 2026.** The [guide of NVIDIA's Model
# > Optimizer](https://nvidia.github.io/Model-Optimizer/guides/_choosing_quant_methods.html) draws the same line: up to
# > a batch of 4, inference is mostly memory-bound, and rounding weights alone (INT4) gains most; from 16 on, it advises
# > to round weights and activations, with FP8 first. SGLang's `--quantization fp8` rounds while it loads; a model that
# > was [rounded beforehand](https://docs.sglang.io/advanced_features/quantization.html), which SGLang recommends, says
# > so in its own configuration and needs no flag.
#
# **Takeaway.** 4-bit codes in groups of 32 cut a step of SmolLM2 from 538 to 123 MB, and a step of few sequences waits
# for bytes; of an 8B model in 16 bits, groups of 64 leave 4.98 of 15.01 GB, 1.49 instead of 4.48 ms on an H100.

# %% [markdown]
# ## 2. Round to nearest
# <!-- minutes: 22 -->
#
# The simplest method looks at nothing but the weights. A set of weights shares a **scale** and a **minimum**; each
# weight becomes the code of the nearest value that can be written:
#
# $$w_{oi} \approx \mathrm{scale} \cdot \mathrm{code}_{oi} + \mathrm{minimum}, \qquad
# \mathrm{code}_{oi} \in \{0, \dots, 2^{bits} - 1\}$$
#
# The values are spaced evenly from the smallest weight of the set to its largest. So the largest weight decides how
# coarse the steps are for all others, and the question is how large the set should be: a whole matrix (*per tensor*),
# a row, which makes one output (*per channel*), or a **group** of neighbours in a row.

# %% [markdown]
# **Think first.** With 4 bits per tensor, a matrix shares 16 values. How many of them will 64 neighbours in an ordinary
# row use, if a few weights elsewhere are very large?

# %%
from twophase_labs.compression import nearest
from twophase_labs.compression.changed_model import weight_of

nearest.draw_grids(weight_of("15.mlp.down_proj"), output=100, group_size=64)

# %% [markdown]
# The dots are 64 neighbouring weights, the same in each line; the bars are the values that they can have. Spread over
# the whole tensor, hardly any of the 16 values lie where these weights are; the rest serve a few large weights
# elsewhere. A group has 16 values for its own weights, and pays for them with a scale and a minimum of its own: in 16
# bits each, 32 bits for 64 weights, or half a bit per weight.
#
# This is how codes become weights again, for groups of any size (and so for channels, which are groups as long as a
# row):


# %% tags=["setup"]
def dequantize(codes, scales, minima):
    """float32 [O, I]: what codes [O, I], with a scale and a minimum for each group [O, G], stand for."""
    groups = codes.float().unflatten(1, (scales.shape[1], -1))
    return (groups * scales[..., None] + minima[..., None]).flatten(1)


# %% [markdown]
# <!-- card 6.2 -->
# Write the other direction, without a loop over groups: the next cell calls it for 106 million weights.


# %% tags=["exercise:6.2"]
def quantize(weight, bits, group_size):
    """Round a weight [O, I] to `bits` bits (8 at most), in groups of `group_size` neighbouring inputs of a row.

    Returns codes, uint8 [O, I], 0 to 2 ** bits - 1; scales and minima, float32 [O, G], G = I / group_size. The values
    that codes stand for are spaced evenly from the group's smallest weight (code 0) to its largest (the last code), and
    each weight gets the nearest. A group of equal weights comes back as it is. group_size divides I.

    >>> quantize(torch.tensor([[-1.0, 0.1, 2.0, 0.9]]), bits=2, group_size=4)
    (tensor([[0, 1, 3, 2]], dtype=torch.uint8), tensor([[1.]]), tensor([[-1.]]))
    >>> dequantize(*quantize(torch.tensor([[0.0, 3.0, 5.0, 5.0]]), bits=1, group_size=2))
    tensor([[0., 3., 5., 5.]])
    """
    # BEGIN SOLUTION: codes, scales, minima
    groups = weight.float().unflatten(1, (-1, group_size))
    minima, maxima = groups.amin(-1), groups.amax(-1)
    scales = (maxima - minima) / (2**bits - 1)
    steps = torch.where(scales > 0, scales, 1)  # of a constant group all codes are 0, whatever divides them
    codes = ((groups - minima[..., None]) / steps[..., None]).round()
    return codes.flatten(1).to(torch.uint8), scales, minima
    # END SOLUTION


# %%
check("6.2")

# %% [markdown]
# **The real model.** Each cell of this lab that changes SmolLM2 does it in the same way: `perplexity` runs the model on
# 512 tokens of prose, with the weight of each linear layer of the decoder replaced by what a function makes of it. The
# embedding and the norms stay as they are. A **ratio** of 1.00 says that the changed model predicts the text as well as
# SmolLM2 does. (512 tokens cannot decide a few per cent; section 10 measures on more.)

# %%
from twophase_labs.compression.changed_model import perplexity

quantize = use("6.2")


def rounded(bits, size):
    """A change of the model: all weights to so many bits, per 'tensor', per 'channel', or in groups of `size`."""

    def change(name, weight):
        rows = weight.reshape(1, -1) if size == "tensor" else weight
        group_size = rows.shape[1] if size in ("tensor", "channel") else size
        return dequantize(*quantize(rows, bits, group_size)).view_as(weight)

    return change


plain = perplexity()
points = []
for bits, size in ((4, "tensor"), (4, "channel"), (4, 64), (4, 32), (3, 64), (8, "channel")):
    ratio = perplexity(rounded(bits, size)) / plain
    per = f"per {size}" if size in ("tensor", "channel") else f"groups of {size}"
    points.append((f"{bits} bits, {per}", nearest.bits_per_weight(bits, size), ratio))
    print(f"{points[-1][0]:22} {points[-1][1]:.2f} bits per weight, perplexity x{ratio:,.4f}")

# %%
nearest.draw_quality(points)

# %% [markdown]
# **Read the result.** One scale and one minimum per tensor destroy the model. Per row they cost 0.05 bits per weight,
# and the ratio is 2.26; in groups of 64 they cost 0.5 bits, and it is 1.34. 8 bits per channel change nothing that 512
# tokens could show: for weights, 8 bits are easy. At 3 bits, rounding to nearest fails even in groups. The sections
# that follow are about 4 bits and 3.
#
# And there is one point too good to be true: 4 bits in groups of 32, with a ratio of 1 to three digits. Groups of half
# the size cannot explain that.

# %%
ways = {
    "symmetric, 4 bits, groups of 64": lambda name, weight: nearest.symmetric(weight, 4, 64),
    "zero point, 4 bits, per channel": lambda name, weight: nearest.with_zero_point(weight, 4, weight.shape[1]),
}
for name, change in ways.items():
    print(f"{name}: perplexity x{perplexity(change) / plain:.2f}")
print(f"a scale and no minimum, groups of 64: {nearest.bits_per_weight(4, 64, num_kept=1):.2f} bits per weight")

# %% [markdown]
# **Two other forms.** What you wrote is **asymmetric** rounding with a minimum. **Symmetric** rounding stores no
# minimum: codes from -7 to 7 and a scale, 4.25 bits per weight in groups of 64. But its 15 values are spread over a
# range whose two ends are equally far from zero, though the weights' ends are not, and the perplexity is higher than
# with your function.
#
# A **zero point** is asymmetric, too: in the place of the minimum it stores which code stands for 0. Per channel it
# does better than a minimum. Steps are wide there and most weights lie near zero; if zero is none of the values, all
# of these weights move the same way, and such errors add up in an output. In narrow steps, in groups, it matters less.

# %% [markdown]
# **Open the engine.** The core of `quantization="int4_g64"`. `_scales` rounds to bfloat16.

# %%
from twophase.quantization import rounding
from twophase_labs.kit.open_engine import show_source

show_source(rounding._asymmetric)

# %%
from twophase.quantization.schemes import SCHEMES

weight = weight_of("15.mlp.down_proj")
yours, engines = dequantize(*quantize(weight, 4, 64)), rounding.quantize(weight, SCHEMES["int4_g64"]).dequantize()
for name, values in {"yours": yours, "the engine's": engines}.items():
    print(f"{name:12} relative error {100 * (values - weight).norm() / weight.norm():.2f} %")

# %% [markdown]
# **Question.** You keep scales and minima in float32, so a weight of yours takes 5 bits, not 4.5. The engine rounds
# both to 16 bits, and does so *before* it divides by them. What would go wrong the other way round?
#
# <details><summary>Answer</summary>
#
# Codes would be the nearest ones for a scale that is not used. A bfloat16 scale is wrong by up to `1 / 512` of itself,
# and a code of 15 multiplies that. Rounded first, the scale is simply another one, and each code is the nearest for it.
# The cell shows what 16 bits cost then: hardly anything. (`clamp_` keeps 0 within the range, which matters only to
# groups whose weights all have one sign.)
# </details>

# %% [markdown]
# > **In production, 2026.** Groups of 128 are the common choice for 4 bits. AMD's [guide for vLLM on its
# > CPUs](https://docs.amd.com/r/en-US/57300-ZenDNN-user-guide/LLM-Compressed-Models?contentId=GU0vJngdbHEFBmdi1UBVSA)
# > takes models that llm-compressor has rounded to `W4A16`, and recommends groups of 128: with a scale of 16 bits that
# > is 4 + 16/128 = 4.125 bits per weight. SmolLM2's 576 inputs are no multiple of 128, so this lab uses 64, and keeps
# > minima. By roofline an H100 takes 4.5 / 4.125 = 1.09 times as long to read such weights.
#
# **Takeaway.** With 4 bits to nearest, SmolLM2's perplexity is more than a million times its own with one
# scale per tensor, 2.26 times with one per channel, and 1.34 times in groups of 64, which cost half a bit per weight.

# %% [markdown]
# ## 3. A file, bit by bit
# <!-- minutes: 20 + 9 -->
#
# Groups of 32 cost nothing, groups of 64 raise the perplexity to 1.34 times. Is finer simply better? One matrix, with
# your function:

# %%
weight = weight_of("15.mlp.down_proj")
for size in (8, 16, 32, 48, 64, 96):
    error = (dequantize(*quantize(weight, 4, size)) - weight).norm() / weight.norm()
    print(f"groups of {size:2}: {nearest.bits_per_weight(4, size):.2f} bits per weight, error {100 * error:.2f} %")

# %% [markdown]
# Groups of 16 have *more* bits than groups of 32 and a far larger error. Only 32 fits: these weights must have been
# rounded to 4 bits in groups of 32 before they came to us. The package that ships SmolLM2 holds one file, in a format
# called **GGUF**, that of llama.cpp. It begins like this:

# %%
# NBVAL_CHECK_OUTPUT
import struct

from twophase_labs.compression import gguf_walk

with gguf_walk.path().open("rb") as file:
    start = file.read(24)
print(start.hex(" ", 4))
magic, version, num_tensors, num_fields = struct.unpack("<4sIQQ", start)
print(f"{magic.decode()}, version {version}: {num_tensors} tensors, {num_fields} fields")

# %% [markdown]
# Everything is little-endian: `03 00 00 00` is 3. After this header come the fields (architecture, sizes, vocabulary,
# chat template: what Hugging Face keeps in several JSON files), then a table of tensors with name, shape, type and
# place, then the tensors' bytes.

# %%
# NBVAL_CHECK_OUTPUT
from twophase.quantization.gguf_blocks import BLOCK_TYPES

table = gguf_walk.table()
for entry in table[:4]:
    print(
        f"byte {entry.first_byte:>10,}: {entry.name:22} {entry.kind:5} {entry.shape!s:14} {entry.num_bytes:>10,} bytes"
    )
for kind in ("Q4_1", "Q8_0", "F32"):
    sizes = [entry.num_bytes for entry in table if entry.kind == kind]
    print(f"{kind}: {len(sizes)} tensors, {sum(sizes) / 1e6:.1f} MB")
for kind, block in BLOCK_TYPES.items():
    print(
        f"{kind}: {block.num_weights} weights in {block.num_bytes} bytes, "
        f"{8 * block.num_bytes / block.num_weights} bits each"
    )

# %% [markdown]
# All 210 matrices of the decoder layers are `Q4_1`. A row is cut into blocks of 32 weights (in a GGUF file a
# block is a piece of a row; it has nothing to do with the cache's blocks), each with its scale, minimum and codes.

# %% [markdown]
# **Think first.** A block's codes take 16 bytes, two in each byte. In which order would you put 32 codes into 16 bytes?
# And if a vector instruction does the same to 16 bytes at once, `& 15` or `>> 4`, in which order do they come out best?

# %%
_, blocks, _ = next(stored for stored in gguf_walk.stored_linears() if stored[0] == "15.mlp.down_proj")
gguf_walk.draw_block(blocks[0])

# %% [markdown]
# The low halves of all 16 bytes are the first 16 weights, the high halves the other 16. One `&` and one `>>` on a
# vector of 16 bytes give both halves in order, and nothing has to be shuffled.

# %% [markdown]
# <!-- card 6.3 -->
# Read blocks: `blocks` is uint8 `[n, 20]`. Bytes 0 and 1 are the scale, 2 and 3 the minimum, each a float16; the other
# 16 have two codes each, `w = scale * code + minimum`. The result is float32 `[n, 32]`.
#
# ```python
# block = torch.tensor([[0x00, 0x3C, 0x00, 0xBC] + [0x52] + 15 * [0x00]], dtype=torch.uint8)  # scale 1, minimum -1
# read_q4_1(block)[0, [0, 1, 16, 17]]                # tensor([ 1., -1.,  4., -1.])
# ```


# %% tags=["exercise:6.3"]
def read_q4_1(blocks):
    """The weights of GGUF's Q4_1 blocks."""
    halves = blocks[:, :4].contiguous().view(torch.float16).float()  # SOLUTION: two numbers per block, float32 [n, 2]
    scales, minima = halves.split(1, dim=1)
    low = blocks[:, 4:] & 15  # SOLUTION: the lower halves of the bytes
    high = blocks[:, 4:] >> 4  # SOLUTION: the upper halves
    codes = torch.cat([low, high], dim=1)  # SOLUTION: [n, 32], in the weights' order
    return codes * scales + minima  # SOLUTION: the weights


# %%
check("6.3")

# %% [markdown]
# **On the real file**: every block of the decoder's matrices, against the float32 weights that the labs use.

# %%
# NBVAL_CHECK_OUTPUT
read_q4_1 = use("6.3")

num_equal, num_weights, num_bytes = 0, 0, 0
for _name, blocks, weight in gguf_walk.stored_linears():
    read = read_q4_1(blocks).view_as(weight)
    num_equal += torch.equal(read.bfloat16().float(), weight)
    num_weights, num_bytes = num_weights + weight.numel(), num_bytes + blocks.numel()
print(f"{num_equal} matrices are equal bit for bit, rounded to bfloat16 as the course's model folder has them")
print(f"{num_weights:,} weights in {num_bytes:,} bytes: {8 * num_bytes / num_weights} bits each, used as 32")

# %% [markdown]
# **Read the result.** Here are the 16 numbers of the first cell: one for each code of a block. The file has 5 bits per
# weight. The course's model was made from it in bfloat16, 16 bits, a format that every program can read, and the labs
# widened that to 32. Rounding *on the same grid* finds the same 16 values again and costs next to nothing. On any other
# grid, a finer one included, weights fall between the values and are rounded a second time. So from here on this lab
# works in groups of 64, where methods differ, and takes the weights as if they had never been rounded.
#
# (The engine can use the file as it is: `LLM("smollm2-135m-instruct-q4_1")` keeps the codes. The file has query and key
# rows in llama.cpp's order; the loop above got them in ours.)
#
# **Open the engine.** It reads `Q4_1` as you do. This is how it reads a more recent type, `Q4_K`:

# %%
from twophase.quantization import gguf_blocks

show_source(gguf_blocks._q4_k)

# %% [markdown]
# `Q4_K` saves bits on scales: 256 weights share two float16, and each group of 32 has a scale and a minimum of 6 bits
# that are multiplied by these. So it has groups of 32 for 4.5 bits per weight, where `Q4_1` takes 5.
#
# **Question.** GGUF keeps a group's scale beside its codes, row by row. Why do engines for GPUs unpack or repack such a
# file when they load it?
#
# <details><summary>Answer</summary>
#
# A block of 20 bytes suits a processor's core that walks along a row: one stream of bytes, all that a dot product
# needs together, and the file can be mapped into memory as it is; llama.cpp computes on these blocks directly. A GPU's
# kernel loads a tile of many rows with aligned vectors of 16 bytes, in the order in which its matrix units want the
# operands, and scales as a tile of their own (section 7). So for most engines GGUF is a format for delivery, and what
# they multiply by has another layout.
# </details>

# %% [markdown]
# > **In production, 2026.** vLLM calls its [GGUF
# > support](https://docs.vllm.ai/en/latest/features/quantization/gguf/) highly experimental and under-optimised, a way
# > to save memory, and [has moved it to a
# > plugin](https://raw.githubusercontent.com/vllm-project/vllm/main/docs/features/quantization/gguf.md). Models for
# > servers are rounded with llm-compressor or NVIDIA's Model Optimizer, and stored with codes and scales as separate
# > tensors in safetensors files. By roofline an H100 reads these 106 million weights in 20 µs with 5 bits each, and in
# > 63 µs with 16.
#
# **Takeaway.** SmolLM2's matrices have 5 bits of content per weight, read bit for bit from 66.4 MB; rounding them again
# in groups of 32 changes them by 0.14 %, in groups of 16, with more bits, by 5.45 %.

# %% [markdown]
# ### Going further: eight codes in a word
#
# Files made for GPUs keep 4-bit codes in int32 words, as compressed-tensors, the format of llm-compressor, does: eight
# neighbours of a row in a word, the first in its lowest four bits.

# %% [markdown]
# <!-- card 6.16 -->
# Pack and unpack: codes uint8 `[O, I]`, 0 to 15; words int32 `[O, I / 8]`. Mind the sign bit.
#
# ```python
# pack(torch.tensor([[1, 2, 0, 0, 0, 0, 0, 0]], dtype=torch.uint8))    # tensor([[33]], dtype=torch.int32)
# pack(torch.tensor([[0, 0, 0, 0, 0, 0, 0, 15]], dtype=torch.uint8))   # tensor([[-268435456]], dtype=torch.int32)
# ```


# %% tags=["exercise:6.16"]
SHIFTS = torch.arange(0, 32, 4, dtype=torch.int32)


def pack(codes):
    """Eight codes in each int32."""
    eights = codes.unflatten(1, (-1, 8))
    return (eights.int() << SHIFTS).sum(-1, dtype=torch.int32)  # SOLUTION: the words


def unpack(words):
    """The codes of each int32, the lowest bits first."""
    eights = words[..., None] >> SHIFTS & 15  # SOLUTION: [O, I / 8, 8], each 0 to 15
    return eights.flatten(1).to(torch.uint8)


# %%
check("6.16")

# %% [markdown]
# Your codes of a real matrix, packed, and read by the function with which the engine loads such files:

# %%
# NBVAL_CHECK_OUTPUT
from twophase.quantization import checkpoints

pack, unpack = use("6.16")
codes, scales, minima = quantize(weight_of("15.mlp.down_proj"), 4, 64)
words = pack(codes)
print(
    f"{codes.nbytes:,} bytes of codes in {words.nbytes:,} bytes of words, {int((words < 0).sum()):,} words are negative"
)
print("the engine reads the same codes:", torch.equal(checkpoints.unpack(words, 4), codes))
print("and so do you:", torch.equal(unpack(words), codes))
