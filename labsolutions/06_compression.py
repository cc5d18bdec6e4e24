# %% [markdown]
# # Lab 6: compression
#
# A decode step waits for weights, as lab 3 showed, and so far each weight has been read as 32 bits. Does it need them?
# The first cell takes a weight matrix of SmolLM2, in float32 as the labs have used it, in groups of 32 neighbours, and
# counts how many *different* numbers there are in each group.

# %%
from twophase_labs.machine.kernels import device  # first: it decides how kernels run

# isort: split
import torch

from twophase_labs.compression.changed_model import weight_of

torch.set_num_threads(1)
weight = weight_of("15.mlp.down_proj")  # layer 15 of SmolLM2, float32 [576, 1536]
for name, numbers in {"at 0, 32, ...": weight.flatten(), "at 16, 48, ...": weight.flatten()[16:-16]}.items():
    groups = numbers.view(-1, 32).sort().values
    num_different = (groups.diff() != 0).sum(1) + 1
    print(f"{len(groups):,} groups of 32 that begin {name:14}: at most {num_different.max()} different numbers")

# %% [markdown]
# 32 bits can distinguish more than four billion numbers. Yet no group holds more than 16 different ones: 4 bits per
# weight would do to say which. And it matters where groups begin: shifted by 16, they hold more. Where do the 16
# numbers come from? Write down what you expect. Section 3 finds them, bit by bit, and the capstone runs the engine on
# 4-bit weights of your own making.

# %% [markdown]
# <!-- opening minutes: 3 -->
# <!-- map -->

# %% [markdown]
# **After this lab you can**
#
# - say what fewer bits in weights, activations, or K and V make faster, and by how much at most;
# - round weights to a few bits in groups, and repair what rounding breaks: by scaling (SmoothQuant, AWQ) or column by
#   column (GPTQ);
# - read quantised weights from a file, and multiply by them without unpacking them in memory;
# - say what a **gate**, a set of measurements with bounds, must show before a compressed model is served, and, if you
#   take the optional sections, what zeros are worth and when to teach a smaller model instead.
#
# You need labs 1 to 3, or a working knowledge of their subjects: decode steps, rooflines, Triton kernels. No GPU is
# needed: what a GPU would do is estimated by roofline from data sheets.
#
# **How it works.** Commit to a prediction, write the code, run `check("6.1")`; `hint("6.1")` helps, `reveal("6.1")`
# shows a solution. If you skip an exercise, later cells use the reference solution and say so. Each section follows the
# course's [method](../docs/method.md).

# %% tags=["setup"]
import torch
import torch.nn.functional as F

from twophase_labs import ____, check, hint, measured, reference, reveal, use
from twophase_labs.machine.kernels import tl, triton

torch.set_num_threads(1)

# %% [markdown]
# ## 1. Where the bytes are
# <!-- minutes: 11 -->
#
# For one sequence a decode step takes about as long as it takes to read the weights (lab 3). **Quantisation** stores a
# weight as a **code**, a whole number of few bits, and shares a scale among many codes. Here is what a step has to read
# in some formats. The 4-bit formats keep two 16-bit numbers for each group: 4 + 32/64 and 4 + 32/32 bits per weight.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.compression import step_bytes
from twophase_labs.decode.decode_work import H100, LLAMA_3_8B, SMOLLM2

formats = {"bfloat16": (16, 16), "8 bits": (8, 16), "4 bits, groups of 64": (4.5, 16)}
formats["4 bits, groups of 32"] = (5, 16)
for name, (layer_bits, head_bits) in formats.items():
    small, large = (sum(step_bytes.weight_bytes(shape, layer_bits, head_bits)) for shape in (SMOLLM2, LLAMA_3_8B))
    bound = f"{1e3 * large / H100.bandwidth:.2f} ms on an H100"
    print(f"{name:20}: SmolLM2 {small / 1e9:.3f} GB; Llama-3-8B {large / 1e9:5.2f} GB, at least {bound}")
prompt_ms = 1e3 * 2 * LLAMA_3_8B.num_weights * 2000 / H100.flop_rate
print(f"a prompt of 2,000 tokens of Llama-3-8B on an H100: {prompt_ms:.1f} ms of arithmetic in 16 bits")

# %% [markdown]
# (The output head, which is SmolLM2's embedding as well, stays in 16 bits, as it does in most quantised models. Times
# of an H100 are by roofline: bytes over 3.35 TB/s, or operations over 989 TFLOP/s. Of the input embedding, Llama's
# second large matrix, a step reads one row per token, which is not counted.)
#
# **Think first.** Weights in 4 bits, activations in 16: a kernel reads codes, makes 16-bit numbers of them in its
# registers and multiplies in 16 bits. How does the prompt's time change? And that of a decode step of 32 sequences
# with 4,096 tokens of context each?

# %%
step_bytes.draw_shares(LLAMA_3_8B, context=4096, batches=(1, 32))

# %% [markdown]
# For one sequence, weights are nearly all that is read. For 32 long ones K and V are more than half, and 4-bit weights
# save only a part of the rest. The prompt gains nothing: its time is arithmetic, still in 16 bits. So the first
# question is *what* to store in fewer bits (fp8 is a floating-point format of 8 bits):
#
# | rounded | known as | makes faster | does not |
# |---|---|---|---|
# | weights only | W8A16, W4A16 | decode with few sequences | prefill, large batches of short contexts: arithmetic |
# | weights and activations | W8A8, fp8 | decode; prefill too: products in 8 bits | many long contexts: K and V |
# | K and V | KV-cache quantisation | decode with much context (lab 3) | prefill, one short sequence |
#
# Rounding (sections 2 to 7) is one of four routes to fewer bytes. The others are to **prune** weights to zero and to
# **factor** a matrix into two thin ones, of *low rank* (both section 8), and to **distil** a smaller model from the
# larger one (section 9). Section 11 weighs them against a smaller model off the shelf.

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
by_bytes = num_bytes["float32"] / num_bytes["4 bits"]
for name, step_s in seconds.items():
    print(f"{name:8} {1e3 * step_s:5.1f} ms a token, {num_bytes[name] / 1e6:5.1f} MB")
print(f"in 4 bits {step_bytes.faster_in_4_bits():.2f} times as fast; by bytes at most {by_bytes:.2f}")
expected_s = fixed_s + (seconds["float32"] - fixed_s) / by_bytes
print(f"time that no format changes (30 nearly empty layers): {1e3 * fixed_s:.1f} ms; ", end="")
print(f"expected in 4 bits: {1e3 * expected_s:.1f} ms")
layers, head = step_bytes.weight_bytes(SMOLLM2, 5, 16)
print(f"in 4 bits the layers are {layers / 1e6:.1f} MB, the output head {head / 1e6:.1f} MB")
measured("6.1", step_bytes.faster_in_4_bits())

# %% [markdown]
# **Read the result.** 4-bit codes cut the bytes by a factor of 4.37, not 8: one bit per weight goes into scales and
# minima, and the output head, a fifth of all weights, is now nearly half of the bytes. The step gains less still,
# because part of it does not shrink: the fixed price of many small calls, measured here on 30 layers with hardly any
# weights. (Where torch has no product for 4-bit weights on a CPU, the engine unpacks them to bfloat16 when it loads
# them, and gains less.)
#
# > **In production, 2026.** The [guide of NVIDIA's Model
# > Optimizer](https://nvidia.github.io/Model-Optimizer/guides/_choosing_quant_methods.html) draws the same line: up to
# > a batch of 4, inference is mostly memory-bound, and rounding weights alone (INT4) gains most; from 16 on, it advises
# > to round weights and activations, with FP8 first.
#
# **Takeaway.** 4-bit codes in groups of 32 cut a step of SmolLM2 from 538 to 123 MB, and a step of few sequences waits
# for bytes; of an 8B model in 16 bits, groups of 64 leave 4.98 of 15.01 GB, 1.49 instead of 4.48 ms on an H100.

# %% [markdown]
# ## 2. Round to nearest
# <!-- minutes: 26 -->
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
#
# **Think first.** With 4 bits per tensor, a matrix shares 16 values. How many of them will 64 neighbours in an ordinary
# row use, if a few weights elsewhere are very large?

# %%
from twophase_labs.compression import nearest
from twophase_labs.compression.changed_model import weight_of

nearest.draw_grids(weight_of("15.mlp.down_proj"), output=100, group_size=64)

# %% [markdown]
# The dots are 64 neighbouring weights, the same in each line; the bars are the values that they can have. Spread over
# the whole tensor, hardly any of the 16 values lie where these weights are. A group has 16 values for its own weights,
# and pays for them with a scale and a minimum of its own, 16 bits each: half a bit per weight.
#
# This is how codes become weights again, for groups of any size (a channel is a group as long as a row):


# %% tags=["setup"]
def dequantize(codes, scales, minima):
    """float32 [O, I]: what codes [O, I], with a scale and a minimum for each group [O, G], stand for."""
    groups = codes.float().unflatten(1, (scales.shape[1], -1))
    return (groups * scales[..., None] + minima[..., None]).flatten(1)


# %% [markdown]
# <!-- card 6.2 -->
# Write the other direction. (The next cell calls it for 106 million weights: with a Python loop over groups you would
# wait for minutes.)


# %% tags=["exercise:6.2"]
def quantize(weight, bits, group_size):
    """Round a weight [O, I] of any float dtype to `bits` bits (8 at most), in groups of `group_size` inputs of a row.

    Returns codes, uint8 [O, I], 0 to 2 ** bits - 1; scales and minima, float32 [O, G], G = I / group_size. The values
    that codes stand for are spaced evenly from the group's smallest weight (code 0) to its largest (the last code), and
    each weight gets the nearest, however small a scale is. A group of equal weights comes back as it is. group_size
    divides I.

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
# **The real model.** `perplexity` runs SmolLM2 on 512 tokens of prose, with the weight of each linear layer of the
# decoder replaced by what a function makes of it. The embedding and the norms stay as they are. **Perplexity** is exp
# of the mean of -log p of the true next token: a model that hesitates between two equally likely tokens has 2. A
# **ratio** of 1.00 says that the changed model predicts the text as well as SmolLM2 does. (512 tokens cannot decide a
# few per cent.)

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


points = []
for size in ("tensor", "channel", 64, 32):
    ratio = perplexity(rounded(4, size)) / perplexity()
    per = f"per {size}" if size in ("tensor", "channel") else f"groups of {size}"
    points.append((f"4 bits, {per}", nearest.bits_per_weight(4, size), ratio))
    print(f"{points[-1][0]:20} {points[-1][1]:.2f} bits per weight, perplexity {nearest.in_words(ratio)} ({ratio:.5g})")
nearest.draw_quality(points)

# %% [markdown]
# **Read the result.** One scale and one minimum per tensor destroy the model. Per row they cost 0.05 bits per weight,
# and the ratio is 2.26; in groups of 64 they cost 0.5 bits, and it is 1.34. One point is too good to be true: 4 bits in
# groups of 32, with a ratio of 1 to three digits. Groups of half the size cannot explain that.
#
# **Open the engine.** The core of `quantization="int4_g64"`. The engine rounds the scale to bfloat16 first (`_scales`)
# and divides by the rounded one. What goes wrong if it divides first and rounds the scale afterwards?

# %%
from twophase_features.quantization import rounding
from twophase_features.quantization.schemes import SCHEMES
from twophase_labs.kit.open_engine import show_source

weight = weight_of("15.mlp.down_proj")
ways = {
    "yours": dequantize(*quantize(weight, 4, 64)),
    "the engine's": rounding.quantize(weight, SCHEMES["int4_g64"]).dequantize(),
    "symmetric": nearest.symmetric(weight, 4, 64),
}
for name, values in ways.items():
    print(f"{name:12} relative error {100 * (values - weight).norm() / weight.norm():.2f} %")
show_source(rounding._asymmetric)

# %% [markdown]
# <details><summary>Answer, and what symmetric rounding is</summary>
#
# Codes would be the nearest ones for a scale that is not used. A bfloat16 scale is wrong by up to 1/256 of itself, and
# a code of 15 multiplies that: up to 6 % of a step. Rounded first, the scale is simply another one, and each code is
# the nearest for it. The cell shows what 16 bits cost then: hardly anything. (`clamp_` keeps 0 within the range, which
# matters only to groups whose weights all have one sign.)
#
# **Symmetric** rounding stores no minimum: codes from -7 to 7 and a scale, `4 + 16/64` bits per weight. Its values are
# spread over a range whose ends are equally far from zero, though the weights' ends are not.
# </details>
#
# > **In production, 2026.** Groups of 128 are the common choice for 4 bits. AMD's [guide for vLLM on its
# > CPUs](https://docs.amd.com/r/en-US/57300-ZenDNN-user-guide/LLM-Compressed-Models?contentId=GU0vJngdbHEFBmdi1UBVSA)
# > takes models that llm-compressor has rounded to `W4A16`, and recommends groups of 128. With a scale of 16 bits and a
# > zero point of 4 that is 4 + 20/128 = 4.16 bits per weight, which an H100 reads, by roofline, in 4.16 / 4.5 = 0.92 of
# > the time. SmolLM2's 576 inputs are no multiple of 128, so this lab uses 64.
#
# **Takeaway.** With 4 bits to nearest, SmolLM2's perplexity is more than a million times its own with one
# scale per tensor, 2.26 times with one per channel, and 1.34 times in groups of 64, which cost half a bit per weight.

# %% [markdown]
# ## 3. A file, bit by bit
# <!-- minutes: 22 + 2 -->
#
# Groups of 32 cost nothing, groups of 64 raise the perplexity to 1.34 times. Is finer simply better? One matrix, with
# your function:

# %%
weight = weight_of("15.mlp.down_proj")
for size in (8, 16, 32, 48, 64):
    error = (dequantize(*quantize(weight, 4, size)) - weight).norm() / weight.norm()
    print(f"groups of {size:2}: {nearest.bits_per_weight(4, size):.2f} bits per weight, error {100 * error:.2f} %")

# %% [markdown]
# Groups of 16 have *more* bits than groups of 32 and a far larger error. Only 32 fits: these weights must have been
# rounded to 4 bits in groups of 32 before they came to us. The package that ships SmolLM2 holds one file, in a format
# called **GGUF**, that of llama.cpp. It begins with a header, little-endian: `03 00 00 00` is 3. Fields follow
# (architecture, sizes, vocabulary, chat template), then a table of tensors, then the tensors' bytes.

# %%
# NBVAL_CHECK_OUTPUT
import struct

from twophase_labs.compression import gguf_walk

with gguf_walk.path().open("rb") as file:
    start = file.read(24)
magic, version, num_tensors, num_fields = struct.unpack("<4sIQQ", start)
print(f"{start.hex(' ', 4)}\n{magic.decode()}, version {version}: {num_tensors} tensors, {num_fields} fields")
table = gguf_walk.table()
for entry in table[:3]:
    print(f"byte {entry.first_byte:,}: {entry.name}, {entry.kind}, {entry.shape}, {entry.num_bytes:,} bytes")
for kind in ("Q4_1", "Q8_0", "F32"):
    sizes = [entry.num_bytes for entry in table if entry.kind == kind]
    print(f"{kind}: {len(sizes)} tensors, {sum(sizes) / 1e6:.1f} MB")

# %% [markdown]
# All 210 matrices of the decoder layers are `Q4_1`. A row is cut into blocks of 32 weights (in a GGUF file a
# block is a piece of a row; it has nothing to do with the cache's blocks), each with its scale, minimum and codes.
#
# **Think first.** A block's codes take 16 bytes, two in each byte. A vector instruction does `& 15` or `>> 4` to 16
# bytes at once. In which order would you put the 32 codes into them?

# %%
_, blocks, _ = next(stored for stored in gguf_walk.stored_linears() if stored[0] == "15.mlp.down_proj")
gguf_walk.draw_block(blocks[0])

# %% [markdown]
# The low halves of all 16 bytes are the first 16 weights, the high halves the other 16. One `&` and one `>>` give both
# in order, and nothing has to be shuffled.

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
# **Read the result.** Here are the 16 numbers of the first cell: one for each code of a block. The course's model was
# made from this file in bfloat16, and the labs widened that to 32 bits. Rounding *on the same grid* finds the same 16
# values again and costs next to nothing. On any other grid, a finer one included, weights fall between the values and
# are rounded a second time. So from here on this lab works in groups of 64, where methods differ, and takes the weights
# as if they had never been rounded.
#
# **Question.** GGUF keeps a group's scale beside its codes, row by row. Why do engines for GPUs unpack or repack such a
# file when they load it?
#
# <details><summary>Answer</summary>
#
# A block of 20 bytes suits a processor's core that walks along a row: one stream of bytes, all that a dot product
# needs together, and llama.cpp computes on these blocks directly. A GPU's kernel loads a tile of many rows with aligned
# vectors of 16 bytes, in the order in which its matrix units want the operands, and scales as a tile of their own
# (section 7). So for most engines GGUF is a format for delivery.
# </details>
#
# > **In production, 2026.** vLLM calls its [GGUF
# > support](https://docs.vllm.ai/en/latest/features/quantization/gguf/) highly experimental and under-optimised, a way
# > to save memory, and [has moved it to a
# > plugin](https://raw.githubusercontent.com/vllm-project/vllm/main/docs/features/quantization/gguf.md). Models for
# > servers keep codes and scales as separate tensors in safetensors files. By roofline an H100 reads these 106 million
# > weights in 20 µs with 5 bits each, and in 63 µs with 16.
#
# **Takeaway.** SmolLM2's matrices have 5 bits of content per weight, read bit for bit from 66.4 MB; rounding them again
# in groups of 32 changes them by 0.14 %, in groups of 16, with more bits, by 5.45 %.

# %% [markdown]
# ### Going further: fewer bits for scales
#
# `Q4_K`, a more recent type of GGUF's, saves bits on scales: 256 weights share two float16, and each group of 32 has a
# scale and a minimum of 6 bits that are multiplied by these. So it has groups of 32 for 4.5 bits per weight, where
# `Q4_1` takes 5. This is how the engine reads it:

# %%
from twophase_features.quantization import gguf_blocks

show_source(gguf_blocks._q4_k)

# %% [markdown]
# ## 4. Outliers
# <!-- minutes: 19 + 4 -->
#
# Fewer bits per weight speed up decode, which waits for memory. A prefill waits for arithmetic (lab 2), and 4-bit
# weights that are turned into 16 bits and then multiplied save it none. int8 multipliers do save it: an H100's data
# sheet lists 1,979 TOPS for them, twice the 989.5 TFLOP/s of bf16. They need *both* factors in 8 bits, weights and
# **activations**, the inputs of a layer: W8A8. Below is a point for each input channel of two layers of SmolLM2: its
# largest magnitude over 512 tokens of the **calibration text** (a text that is run once, only to measure the inputs),
# and the largest of the weights that it is multiplied by.
#
# **Think first.** One scale for a whole tensor makes its largest magnitude 127. Everything below half a step becomes 0.
# The picture shows inputs and weights of two layers. Which of these four tensors survive one scale?

# %%
from twophase_labs.compression import calibrated_pictures
from twophase_labs.compression.changed_model import recorded_inputs

two_layers = ("15.self_attn.q_proj", "28.mlp.down_proj")
figure = calibrated_pictures.draw_outliers(two_layers)
for name in two_layers:
    x = recorded_inputs()[name].abs()
    lost = (x < x.max() / 127 / 2).float().mean()
    at_token, at_channel = divmod(int(x.argmax()), x.shape[1])
    print(f"layer {name}: largest input {x.max():.1f}, at token {at_token} in channel {at_channel};", end=" ")
    print(f"a channel's maximum is {x.amax(0).median():.2f} in the median; one scale makes {lost:.1%} of all inputs 0")
figure

# %% [markdown]
# **Read the result.** No input channel's largest weight comes near the grey band. Activations have **outliers**: in
# `q_proj` a few channels reach many times the median, and in layer 28 the text's first token has one element of over
# two thousand. (The first token is an *attention sink*: heads with nothing to look for attend to it, whatever it is.
# Its huge elements are known as *massive activations*.) A scale that covers it leaves no codes for the rest.
#
# The cheapest cure is a scale *per token*: the token with the huge element no longer spoils the others.
#
# $$y_{to} = \sum_i x_{ti} w_{oi} \approx s_t\, s_o \sum_i \mathrm{code}_{ti}\, \mathrm{code}_{oi}$$

# %% [markdown]
# <!-- card 6.4 -->
# `x` is `[T, I]`, `codes` int8 `[O, I]`, `scales` `[O]`: weight o, i is `codes[o, i] * scales[o]`. Codes of `x` are
# whole numbers from -127 to 127, rounded to nearest. `torch._int_mm(a, b)` multiplies int8 matrices `[T, I]` and
# `[I, O]` and adds up in int32, exactly, as an int8 multiplier does. A token of zeros gives zeros.
#
# ```python
# codes = torch.tensor([[100, -50]], dtype=torch.int8)
# int8_linear(torch.tensor([[1.27, 0.2]]), codes, torch.tensor([0.5]))   # [[58.5]]: codes 127 and 20, scale 0.01
# ```


# %% tags=["exercise:6.4"]
def int8_linear(x, codes, scales):
    x_scales = x.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127  # SOLUTION: one per token, never 0
    x_codes = (x / x_scales).round().to(torch.int8)  # SOLUTION: int8 [T, I]
    sums = torch._int_mm(x_codes, codes.t())  # SOLUTION: int32 [T, O]
    return sums * x_scales * scales  # SOLUTION: what the sums of codes stand for


# %%
check("6.4")

# %% [markdown]
# **The whole model.** All 210 linear layers of SmolLM2 have int8 weights with a scale per output. Their inputs are left
# alone, or rounded with one scale per layer, which a calibration text has set, or go through your function. Perplexity
# is that of 512 tokens of another text.

# %%
from twophase_features.quantization.linear import DynamicInt8Linear
from twophase_labs.compression import int8_model

int8_linear = use("6.4")
print(f"int8 weights alone                         perplexity x {int8_model.int8_weights():.3f}")
print(f"and activations, one scale per tensor      perplexity x {int8_model.one_scale_per_tensor():.3f}")
print(f"likewise, but the first token has its own  perplexity x {int8_model.one_scale_but_first_token():.3f}")
print(f"and activations, a scale per token (yours) perplexity x {int8_model.own_linear(int8_linear):.3f}")
show_source(DynamicInt8Linear.__call__)

# %% [markdown]
# **Read the result.** Weights in 8 bits cost nothing that 512 tokens could show. With one scale per tensor, activations
# in 8 bits more than double the perplexity. Most of that is the first token's doing; channels with outliers do the
# rest. With a scale per token it is a few per cent at most. Below the numbers is the same layer in the **engine**.
#
# **Question.** Tokens have scales, and outputs have scales. Input channels differ as well. Why do they not have scales?
#
# <details><summary>Answer</summary>
#
# Both scales are multiplied once, after the sum over the input channels. A scale per channel would stand inside that
# sum, so that the integer multiplier could not add the products up. It would have to be in one of the factors before
# they are rounded, and that is what smoothing does (Going further).
# </details>
#
# > **In production, 2026.** A checkpoint in int8 that llm-compressor makes for
# > [vLLM](https://docs.vllm.ai/en/latest/features/quantization/int8/) has a scale per token for activations, found at
# > run time, and its documentation warns that Blackwell cards have no int8 kernels: there FP8 takes its place. FP8 has
# > exponents, so that one outlier costs the other channels fewer bits. By roofline, W8A8 at best halves the time that
# > an H100 needs for the products of a long prefill.
#
# **Takeaway.** int8 weights cost nothing measurable; int8 activations with one scale per tensor more than double
# SmolLM2's perplexity, mostly because of the first token, which has a few huge elements; with a scale per token they
# cost less than 5 %.

# %% [markdown]
# ### Going further: smoothing, where the scale goes into the weights
#
# A scale per token has to be found at run time. With a *static* scale per tensor nothing has to be found. To make that
# work, **SmoothQuant** (arXiv:2211.10438) divides input channel $i$ by a factor $s_i$ and multiplies column $i$ of the
# weights by it:
#
# $$s_i = \frac{\max|x_i|^{\alpha}}{\max|w_i|^{1 - \alpha}}$$
#
# The product stays the same. Dividing costs nothing: the input comes from an RMSNorm that multiplies channel $i$ by a
# weight anyway, and the matrices that read the same norm, such as Q, K and V, share its factors. At $\alpha = 1$ the
# weights take on all of the difficulty, and at 0.5 both sides become equally large.

# %% [markdown]
# **On the model.** Both norms of each layer are smoothed, for Q, K and V and for the MLP's gate and up projections. No
# norm stands in front of `down_proj`: its inputs are products of `up_proj`'s outputs and the gate, so its factors can
# be folded into the *rows* of `up_proj`. (`o_proj` is left as it is: three query heads share each KV head and would
# have to share their factors.)

# %%
show_source(int8_model.smooth)

# %%
print(f"smoothed and not rounded, logits differ by {int8_model.largest_change(0.5):.0e} of the largest")
found = {alpha: int8_model.one_scale_smoothed(alpha, num_tokens=256) for alpha in (0.5, 0.65, 0.8)}
print("calibration text:", ", ".join(f"alpha {alpha} x {ratio:.3f}" for alpha, ratio in found.items()))
alpha = min(found, key=found.get)
for with_down, which in ((False, "norms only"), (True, "down_proj too")):
    ratio = int8_model.one_scale_smoothed(alpha, with_down, is_calibration=False)
    print(f"the other text: smoothed, alpha {alpha}, {which:13} perplexity x {ratio:.3f}")

# %% [markdown]
# **Read the result.** $\alpha$ is chosen on the calibration text. The largest outlier sits in front of `down_proj`,
# where a recipe that only looks at norms does not reach: the norms alone undo about a third of the loss. With
# `down_proj` smoothed too, one static scale per tensor comes near a scale per token. NVIDIA's [Model
# Optimizer](https://nvidia.github.io/Model-Optimizer/guides/0_support_matrix.html) pairs int8 weights per channel with
# one activation scale per tensor, and smooths.

# %% [markdown]
# ## 5. Weights that matter
# <!-- minutes: 22 -->
#
# Back to weights alone, and to 4 bits in groups of 64. Rounded to nearest, they raised the perplexity by a third
# (section 2). Rounding to nearest makes the *weight's* error small. What counts is the *output's*: the error of weight
# $o, i$ times input $i$. Section 4 showed that inputs differ.
#
# **Think first.** You may keep 1 % of a matrix's columns in full precision. Would you take the columns whose weights
# are largest on average, or those whose inputs are? How much better is that than a random 1 %?

# %%
from twophase_labs.compression import calibrated

shares = (0.0, 0.01, 0.02, 0.05, 0.1)
errors = calibrated.kept_columns("15.self_attn.v_proj", shares, bits=4, group_size=64)
for rule, values in errors.items():
    print(f"1 % of the columns kept, {rule:15}: error of the output {values[0]:.1%} -> {values[1]:.1%}")
calibrated_pictures.draw_kept_columns("15.self_attn.v_proj", shares, errors)

# %% [markdown]
# **Read the result.** Six columns of 576, chosen by what they are multiplied by, halve the error. (LLM.int8(),
# arXiv:2208.07339, keeps such columns in 16 bits.) Columns of two kinds are slow, though: a kernel wants one format for
# all. **AWQ** (arXiv:2306.00978) gets most of the effect with all weights in 4 bits. It multiplies important columns by
# a factor before rounding, and divides their inputs by it, so that the product stays the same. A column that is
# multiplied by 4, while the group's range hardly grows, is stored four times as finely. The factors are the inputs'
# mean magnitudes to some power, centred about 1:
#
# $$f_i = \frac{m_i^{\alpha}}{\sqrt{\max_j m_j^{\alpha} \cdot \min_j m_j^{\alpha}}}, \qquad m_i = \mathrm{mean}|x_i|$$


# %% tags=["setup"]
def factors_of(x, alpha):
    """The factors [I] for inputs x [T, I], by the formula. A mean below 1e-4 counts as 1e-4."""
    powers = x.abs().mean(0).clamp(min=1e-4) ** alpha
    return powers / (powers.max() * powers.min()).sqrt()


# %% [markdown]
# <!-- card 6.5 -->
# A search decides which $\alpha$ suits a matrix. Call `factors_of`, your `quantize` of section 2 and the `dequantize`
# beside it.


# %% tags=["exercise:6.5"]
def awq(weight, x, bits, group_size, num_steps=11):
    """The factors [I] by which to multiply a weight's columns before rounding it.

    weight: float32 [O, I], W. x: float32 [T, I], inputs of the layer. Tried are num_steps values of alpha, evenly from
    0 to 1. Best are the factors f with the smallest sum of the squares of x @ (W' - W).T, where
    W' = dequantize(*quantize(W * f, bits, group_size)) / f.

    >>> awq(torch.tensor([[0.0, 0.4, 1.0, 0.2]]), torch.tensor([[1.0, 16.0, 1.0, 1.0]]), 2, 4, num_steps=3)
    tensor([0.5000, 2.0000, 0.5000, 0.5000])
    >>> awq(torch.tensor([[0.0, 0.4, 1.0, 0.2]]), torch.tensor([[3.0, -3.0, 3.0, 3.0]]), 2, 4)    # nothing stands out
    tensor([1., 1., 1., 1.])
    """
    # BEGIN SOLUTION: the best factors
    wanted, best_error, best = x @ weight.T, torch.inf, None
    for step in range(num_steps):
        factors = factors_of(x, step / (num_steps - 1))
        rounded = dequantize(*quantize(weight * factors, bits, group_size)) / factors
        error = (x @ rounded.T - wanted).square().sum()
        if error < best_error:
            best_error, best = error, factors
    return best
    # END SOLUTION


# %%
check("6.5")

# %% [markdown]
# **The whole model.** From here on it is the engine that runs. It has 120 matrices: it multiplies Q, K and V by one
# (`qkv`), gate and up by another (`gate_up`), and these then share factors, as they share the norm in front of them.
# Your search looks at 128 tokens of the calibration text, for each matrix. Perplexity is measured on the other text.

# %%
from twophase_labs.compression import own_engine, quality

awq, quantize = use("6.5"), use("6.2")
factors = calibrated.all_factors(awq, bits=4, group_size=64, num_steps=5)
scaled_model = own_engine.in_groups(quantize, 4, factors)
print(f"4 bits, groups of 64, AWQ: perplexity x {quality.perplexity_ratio(scaled_model):.3f}")
for kind, (num_layers, largest) in calibrated.by_kind(factors).items():
    print(f"   {kind:7} factors that are not all 1 in {num_layers:2} of 30 layers, at most {largest:5.1f} : 1")

# %% [markdown]
# **Read the result.** The same bits, the same kernel, and more than half of the loss is gone. Behind a norm, in Q, K
# and V, every layer gets factors; in front of `o_proj`, where inputs are of about one size, the search chooses $\alpha
# = 0$ nearly always. One number is fitted per matrix, so a few tokens suffice and there is little to overfit. (Here an
# input is divided by the factors before it is multiplied. Served models have them folded into the norm or the matrix in
# front. AWQ also searches how far to clip each group's range, which is left out here.)
#
# > **In production, 2026.** [llm-compressor](https://docs.vllm.ai/projects/llm-compressor/en/0.11.0/examples/awq/) runs
# > AWQ as a step before rounding, with a mapping per model family of which layer takes up which factors, `v_proj` for
# > `o_proj` among them. vLLM serves AWQ checkpoints by its
# > [Marlin](https://docs.vllm.ai/en/latest/api/vllm/model_executor/layers/quantization/awq_marlin/) kernels. SGLang
# > [recommends](https://docs.sglang.io/advanced_features/quantization.html) to quantise offline, and for AWQ and GPTQ
# > there is no other way: both need a calibration text. By roofline a decode step on an H100 reads the same 4.5 bits
# > per weight with any of the methods; only quality differs.
#
# **Takeaway.** A search over five values per matrix on 128 tokens brings 4 bits in groups of 64 from 1.34 to 1.12
# times the plain model's perplexity, at no cost when the model runs.

# %% [markdown]
# ## 6. Column by column
# <!-- minutes: 21 + 2 -->
#
# AWQ still rounds each weight alone. But inputs are related: if two of them are almost always equal, an error in the
# weight of one can be compensated in the weight of the other.
#
# **Think first.** Two inputs always have the same value. Both weights are 0.4 and have to become whole numbers. What
# does rounding to nearest make of their sum, and what would you choose?

# %% [markdown]
# To nearest both become 0, and the sum is 0 in place of 0.8; with 0 and 1 it is 1. That is how **GPTQ**
# (arXiv:2210.17323) works: round column $i$; see how far off that is; adjust the columns not yet rounded so that the
# outputs on the calibration text are as near as possible to what they were; go on.

# %%
calibrated_pictures.draw_columns()

# %% [markdown]
# How to adjust them is known from least squares. With $H = X^T X$ and $U$ the upper Cholesky factor of its inverse,
# $H^{-1} = U^T U$:
#
# $$e = \frac{w_i - \mathrm{rounded}_i}{U_{ii}}, \qquad w_j \leftarrow w_j - e\,U_{ij} \quad (j > i)$$
#
# $U$ is given. A constant is added to the diagonal of $H$ (*damping*), because there are often fewer tokens than
# inputs, and $H$ would have no inverse.

# %% tags=["setup"]
from twophase_labs.compression.calibrated import inverse_factor

# %%
show_source(inverse_factor)

# %% [markdown]
# <!-- card 6.6 -->
# Fill in what the formula says, for all outputs at once: they share $U$. A weight that was pushed beyond its group's
# range gets the first or the last code.


# %% tags=["exercise:6.6"]
def gptq(weight, upper, bits, group_size):
    """A weight rounded column by column, each column's error made up for by the columns to come.

    weight: float32 [O, I]. upper: float32 [I, I], U. When a group of `group_size` columns begins, its minimum and
    scale, (maximum - minimum) / (2**bits - 1), are set from the weights as they are then, for each output. Codes are 0
    to 2**bits - 1. A group of equal weights comes back as it is.

    Returns what the codes stand for, float32 [O, I]. What it is given stays as it is.

    >>> weight = torch.tensor([[0.0, 0.4, 0.4, 1.0]])
    >>> gptq(weight, torch.eye(4), bits=1, group_size=4)                # independent inputs: to nearest
    tensor([[0., 0., 0., 1.]])
    >>> x = torch.tensor([[1.0, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]])  # inputs 1 and 2 are equal
    >>> gptq(weight, inverse_factor(x), bits=1, group_size=4)
    tensor([[0., 0., 1., 1.]])
    """
    w, rounded = weight.clone(), torch.empty_like(weight)
    for i in range(w.shape[1]):
        if i % group_size == 0:
            group = w[:, i : i + group_size]
            minima = group.amin(1)
            scales = (group.amax(1) - minima) / (2**bits - 1)
        nearest_codes = ((w[:, i] - minima) / scales.clamp(min=1e-30)).round()  # of equal weights the scale is 0
        codes = nearest_codes.clamp(0, 2**bits - 1)  # SOLUTION: [O], codes that there are
        rounded[:, i] = codes * scales + minima
        error = (w[:, i] - rounded[:, i]) / upper[i, i]  # SOLUTION: [O], e of the formula
        change = torch.outer(error, upper[i, i + 1 :])  # SOLUTION: [O, I - i - 1], what the later columns lose
        w[:, i + 1 :] -= change
    return rounded


# %%
check("6.6")

# %% [markdown]
# **Three matrices of layer 15.** The whole model would take too long for a lab, so what is measured here is the error
# of one matrix's output: on the tokens that GPTQ calibrated with, and on a text that it has not seen.

# %%
gptq = use("6.6")


def rounds(weight):
    return dequantize(*quantize(weight, 4, 64))


counts, names = (128, 256, 512), ("15.self_attn.v_proj", "15.self_attn.o_proj", "15.mlp.down_proj")
own_factors = {name: factors[15, kind] for name, kind in zip(names, ("qkv", "o", "down"), strict=True)}
curves, to_nearest = {}, {}
print("error of the output             nearest     AWQ    GPTQ (512 tokens)   GPTQ on those tokens")
for name in names:
    weight, fresh = calibrated.weight_of(name), calibrated.fresh_inputs(name)
    which = counts if name != names[2] else counts[-1:]
    curves[name] = calibrated.errors_by_tokens(gptq, name, which, bits=4, group_size=64)
    to_nearest[name] = calibrated.relative_error(rounds(weight), name, fresh)
    with_awq = calibrated.relative_error(rounds(weight * own_factors[name]) / own_factors[name], name, fresh)
    known, new = (values[-1] for values in curves[name])
    print(f"{name:20} {len(weight.T):5} inputs {to_nearest[name]:7.1%} {with_awq:7.1%} {new:8.1%} {known:22.1%}")
calibrated_pictures.draw_errors(counts, {name: curves[name] for name in names[:2]}, to_nearest)

# %% [markdown]
# **Read the result.** The last two columns: on the tokens that it has seen, GPTQ's error is about half of that on fresh
# text, or less. On fresh text it still gains for the attention's two matrices, more with each doubling of the text, and
# *loses* for `down_proj`: 512 tokens say little about 1,536 inputs, so it fits relations that were there by chance.
# AWQ, which fits one number, does not lose there, and on `v_proj` it is slightly ahead. GPTQ's paper calibrates with
# 128 texts of 2,048 tokens, 262,144 in all. A method has to be judged on text that it has not seen, and so does a
# compressed model. (Methods can be combined: first factors, then GPTQ in place of rounding to nearest.)
#
# > **In production, 2026.** llm-compressor's
# > [GPTQModifier](https://docs.vllm.ai/projects/llm-compressor/en/0.11.0/api/llmcompressor/modifiers/gptq/) is yours
# > with two additions: columns are worked on in blocks of 128, so that the GPU has matrices to multiply, and in the
# > order of their importance (`actorder`, by default `static`). TensorRT-LLM lists [AWQ and
# > GPTQ](https://nvidia.github.io/TensorRT-LLM/features/quantization.html) with activations in 16 bits and in 8. What a
# > kernel on an H100 reads is the same for all: codes, scales, minima.
#
# **Takeaway.** Calibrated on 512 tokens, GPTQ cuts the output error of layer 15's `v_proj` from 16.6 % to 9.7 % on
# fresh text, and raises that of `down_proj`, with three times as many inputs, from 8.2 % to 11.6 %: the more a method
# fits, the more text it needs.

# %% [markdown]
# ### Going further: which method?
#
# | | what it changes | what it needs | speeds up |
# |---|---|---|---|
# | SmoothQuant | columns, so that activations fit int8 | each input's maximum | prefill, decode |
# | AWQ | columns, so that weights that matter are finer | mean magnitudes, few tokens | decode |
# | GPTQ | which way each weight is rounded | $X^T X$ of many tokens, its inverse | decode |

# %% [markdown]
# ## 7. Four bits into the multiplier
# <!-- minutes: 32 + 5 -->
#
# A weight of 4 bits saves time only if 4 bits are what is *read*. A layer that first writes the whole matrix out in 16
# bits and then multiplies reads 4 bits, writes 16 and reads them again: more bytes than before. So the codes go to the
# multiplier as they are, and become numbers in registers, just before they are multiplied.

# %%
# NBVAL_CHECK_OUTPUT
num_outputs, num_inputs, group_size = 1536, 576, 64
num_groups = num_inputs // group_size
per_output = {
    "16 bits": 2 * num_inputs,
    "4 bits, unpacked in registers": num_inputs // 2 + 2 * 2 * num_groups,
    "4 bits, written out first": num_inputs // 2 + 2 * 2 * num_groups + 2 * 2 * num_inputs,
}
for name, num_bytes in per_output.items():
    print(f"{name:30} {num_bytes:5,} bytes moved per output, {num_bytes / (2 * num_inputs):.2f} of 16 bits' bytes")

# %% [markdown]
# ```mermaid
# flowchart LR
#     M["memory:<br/>words of eight codes"] -->|"half a byte a weight"| R["registers:<br/>shift, mask"]
#     S["scale, minimum<br/>of each group"] --> N["scale * code + minimum"]
#     R --> N
#     N --> D["tl.dot"]
#     X["x: a few rows"] --> D
#     D -->|"next group"| M
#     D --> O["out"]
# ```
#
# **Think first.** A word is an int32 with eight codes. The last of them may be 9, binary 1001. What is the word's sign,
# and what does a shift to the right by 28 bits give?
#
# <details><summary>Answer</summary>
#
# Negative: the last code's highest bit is the word's sign bit. `>>` copies the sign, and 28 bits to the right the word
# is -7, binary 1...11001. So `& 15` is needed for the last code, too: it gives 9.
# </details>

# %% [markdown]
# <!-- card 6.7 -->
# A program computes a tile of outputs for all rows of x, and goes along the inputs a group at a time. Code i of output
# o is number `i % 8` of word `i // 8` of its row; a weight is `scale * code + minimum`.
#
# ```python
# launch_int4_linear(int4_linear_kernel, x, pack_words(codes), scales, minima)    # x @ weight.T, [T, O]
# ```
#
# `tl.dot` multiplies `[BLOCK_T, GROUP]` by `[GROUP, BLOCK_O]`, both of x's dtype, float16 or float32, and adds up in
# float32. `tl.trans(a)` transposes, `a.to(x.dtype)` converts. (Without `input_precision="ieee"` float32 factors would
# be rounded to the 11 bits of TF32.)


# %% tags=["exercise:6.7"]
@triton.jit
def int4_linear_kernel(
    x_ptr,  # [T, I]
    packed_ptr,  # int32 [O, I / 8]: eight neighbouring codes to a word, the first in its lowest four bits
    scales_ptr,  # [O, G]
    minima_ptr,  # like scales_ptr
    out_ptr,  # [T, O]
    num_tokens,  # T, at most BLOCK_T
    num_inputs,
    num_outputs,
    GROUP: tl.constexpr,  # inputs that share a scale
    BLOCK_T: tl.constexpr,  # rows of a tile of x
    BLOCK_O: tl.constexpr,  # outputs of a program
):
    """One program: BLOCK_O outputs of all rows."""
    offs_t = tl.arange(0, BLOCK_T)
    offs_o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    has_token, has_output = offs_t < num_tokens, offs_o < num_outputs
    num_groups = num_inputs // GROUP
    acc = tl.zeros([BLOCK_T, BLOCK_O], tl.float32)
    for group in range(num_groups):
        columns = group * GROUP + tl.arange(0, GROUP)
        x_ptrs = x_ptr + offs_t[:, None] * num_inputs + columns[None, :]
        x = tl.load(x_ptrs, mask=has_token[:, None], other=0.0)
        offs_w = (
            offs_o[:, None] * (num_inputs // 8) + columns[None, :] // 8
        )  # SOLUTION: [BLOCK_O, GROUP], each code's word
        words = tl.load(packed_ptr + offs_w, mask=has_output[:, None], other=0)
        codes = (words >> (columns % 8 * 4)[None, :]) & 15  # SOLUTION: each code, 0 to 15, out of its word
        offs_s = offs_o * num_groups + group  # SOLUTION: [BLOCK_O], where each output has this group's scale
        scale = tl.load(scales_ptr + offs_s, mask=has_output, other=0.0)
        minimum = tl.load(minima_ptr + offs_s, mask=has_output, other=0.0)
        weight = codes.to(tl.float32) * scale[:, None] + minimum[:, None]  # SOLUTION: [BLOCK_O, GROUP], float32
        factor = tl.trans(weight.to(x.dtype))  # SOLUTION: [GROUP, BLOCK_O], what x is multiplied by, in x's dtype
        acc += tl.dot(x, factor, input_precision="ieee")
    mask = has_token[:, None] & has_output[None, :]
    out_ptrs = out_ptr + offs_t[:, None] * num_outputs + offs_o[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask)


# %%
check("6.7")

# %% [markdown]
# **A weight of SmolLM2 through your kernel**, and what the compiler made of it, beside the engine's kernel for the
# same numbers: 128 outputs of a query projection, 4 rows in float16. Below the table is the heart of the **engine's**
# kernel: it applies the scale to the *sum* of a group, not to each weight, and its words hold codes that are 32 inputs
# apart, so that `unpack_words` makes whole tiles of weights out of a tile of words.

# %%
# needs: triton
from twophase_kernels.packed_codes import pack_codes
from twophase_kernels.quantized_linear import quantized_linear, quantized_linear_kernel
from twophase_labs.compression.int4_launch import grouped_codes, launch_int4_linear, pack_words, show_traffic
from twophase_labs.machine.compiled import Compiled, inspect_engine

int4_linear_kernel = use("6.7")
codes, scales, minima = (each[:128] for each in grouped_codes("15.self_attn.q_proj"))
x = torch.randn(4, 576, generator=torch.Generator().manual_seed(0)).half()
compiled = Compiled(int4_linear_kernel)
out = launch_int4_linear(compiled, x, pack_words(codes), scales, minima)
weight = codes * scales.repeat_interleave(64, 1) + minima.repeat_interleave(64, 1)
print(f"largest difference from the written-out weight: {(out - x.float() @ weight.T).abs().max():.0e}")
for_engine = pack_codes(codes, 4), scales.T.contiguous(), minima.T.contiguous()
engines = inspect_engine(quantized_linear, x, *for_engine, num_splits=1)
show_traffic({"yours": compiled.report, "the engine's": engines}, num_weights=128 * 576)
show_source(quantized_linear_kernel, first="parts = unpack_words", last="acc += x_sum")

# %% [markdown]
# **Read the result.** Both ask for about the same bytes. But yours moves three times what it asks for (memory moves
# whole sectors of 32 bytes, lab 2), and executes more than three times as many instructions.
#
# **Question.** In your kernel eight neighbouring columns of the tile ask for the same word. What does it gain when
# codes of one word are 32 columns apart, instead of neighbours?
#
# <details><summary>Answer</summary>
#
# A tile of words, shifted by 0, 4, 8 and 12, is four whole tiles of weights, each of 32 neighbouring inputs. A word is
# loaded once, by the thread that unpacks all of it, and threads exchange nothing. The file's order suits a file; the
# engine packs anew when it loads a model.
# </details>
#
# > **In production, 2026.** Kernels that unpack in registers are the standard for 4-bit weights on NVIDIA GPUs. vLLM's
# > [Marlin](https://docs.vllm.ai/en/latest/api/vllm/model_executor/layers/quantization/utils/marlin_utils/) wants
# > words in an order of its own: a GPTQ file's are repacked, and padded with zeros where a matrix does not fit its
# > tiles. By roofline on an H100 (3.35 TB/s, not run here), a weight [14336, 4096] takes 35 µs to read in bf16, and
# > 10 µs in 4.5 bits.
#
# **Takeaway.** Unpacked in registers, a weight in groups of 64 costs 0.28 of the bytes of 16 bits; written out first it
# costs 2.28 times as many.

# %% [markdown]
# ### Going further: and on this CPU?
#
# One matrix of each of the 30 layers in three formats, as the engine multiplies them, for more and more rows.

# %%
from twophase_labs.compression import few_rows

times = few_rows.product_times(rows=(1, 2, 4, 8, 16, 64))
for num_rows in (1, 8, 64):
    shown = ", ".join(f"{name} {times[name][num_rows] / times['float32'][num_rows]:.2f}" for name in times)
    print(f"{num_rows:2} row{'s' * (num_rows > 1)}, time relative to float32's: {shown}")
few_rows.draw_times(times)

# %% [markdown]
# **Read the result.** At one row bytes count, and 4 bits win. With more rows the same weights are multiplied more
# often; then unpacking and arithmetic decide, and bf16 takes over if the processor has an instruction for it. So the
# engine's `Int4Linear` keeps both forms if there is memory: 4 bits for up to `FEW_ROWS` rows, bf16 for more.

# %% [markdown]
# ## 8. Zeros, and low rank
# <!-- minutes: 0 + 14 -->
#
# A weight that is zero need not be read or multiplied at all. How many can be set to zero? Here the smallest weights of
# each matrix of SmolLM2 are set to zero, with no training afterwards.

# %%
from twophase_labs.compression import zeros

cliff = zeros.pruned_perplexities((0.1, 0.3, 0.5))
zeros.draw_cliff(cliff)

# %% [markdown]
# A tenth is free, and further on lies a cliff. Larger models have more to spare, methods such as SparseGPT
# (arXiv:2301.00774) adjust the weights that are left as GPTQ does, and training after pruning wins some of it back.
#
# **Think first.** Suppose nine tenths were zeros. A dense product of one row reads each weight once. What must a
# product read that skips the zeros?

# %% [markdown]
# <!-- card 6.8 -->
# **Predict.** A matrix [1536, 576] with 90 % zeros at random places, stored as CSR (each row's nonzero weights and
# their columns), times one row of x. How long does it take, relative to the dense product?

# %% tags=["exercise:6.8"]
guess_6_8 = 1.0  # SOLUTION: times the dense product's time

# %%
check("6.8")

# %%
for num_rows in (1, 8):
    dense_s, with_zeros_s, csr_s = zeros.product_times(0.9, num_rows)
    print(
        f"{num_rows} row{'s' * (num_rows > 1)} of x: dense with zeros {with_zeros_s / dense_s:.2f}, "
        f"CSR {csr_s / dense_s:.2f} of the dense time"
    )
measured("6.8", zeros.sparse_over_dense())

# %% [markdown]
# **Read the result.** A dense product does not notice its zeros. The sparse one has a tenth of the arithmetic, and for
# one row it saves nothing like nine tenths of the time (it may even be slower): for each weight it reads a column
# number as well, and then the element of x that it names, wherever that is. Eight rows share the column numbers, and
# there it wins: on a CPU, with nine tenths zeros. On a GPU it is worse: the matrix unit multiplies whole tiles, and
# with zeros at random places no tile is empty.
#
# So hardware asks for a *pattern*. NVIDIA's matrix units since Ampere know one: **2:4 sparsity**, of each four
# neighbouring weights two are kept, with two bits to say where each of them stood: `(2 * 16 + 2 * 2) / (4 * 16)` =
# 0.5625 of the bytes in 16 bits, twice those of 4-bit codes. Another kind of sparsity pays: a *mixture of experts*
# leaves out whole matrices, chosen for each token, and what is read is dense (lab 7).
#
# > **In production, 2026.** vLLM [removed its 2:4 kernels](https://github.com/vllm-project/vllm/pull/36799) in March
# > 2026, because hardly any model used them; quantisation is what engines are built around. By roofline on an H100 (not
# > run here), 2:4 in 16 bits reads 0.5625 of the bytes of a decode step's weights, 4 bits in groups of 64 reads 0.28.
#
# ### Two thin matrices
#
# A matrix [O, I] of rank r is a product of two, [O, r] and [r, I], with far fewer elements if r is small. The best
# approximation of any rank comes from its singular values. One matrix of SmolLM2, beside rounding:

# %%
weight = weight_of("15.mlp.down_proj")
values, num = torch.linalg.svdvals(weight), weight.numel()
for rank in (8, 117, 288):
    error = values[rank:].norm() / values.norm()
    print(f"rank {rank:3}: {16 * rank * sum(weight.shape) / num:5.2f} bits per weight, error {error:.1%}")
error = (dequantize(*quantize(weight, 4, 64)) - weight).norm() / weight.norm()
print(f"4 bits, groups of 64: 4.50 bits per weight, error {error:.1%}")

# %% [markdown]
# **Read the result.** With as many bits per weight as rounding, low rank loses several times as much: a trained matrix
# has no few directions that matter. But the *change* that fine-tuning makes to it has. **LoRA** (arXiv:2106.09685)
# keeps $W$ and learns $A$ [r, I] and $B$ [O, r]: $y = Wx + BAx$. So low rank, as it is used, does not shrink one model;
# it lets many share one set of weights. Two adapters of rank 8, in one batch, against weights that were merged for
# each:

# %%
# NBVAL_CHECK_OUTPUT
draw = torch.Generator().manual_seed(0)
a, b = torch.randn(2, 8, 1536, generator=draw) / 40, torch.randn(2, 576, 8, generator=draw)
x, adapter = torch.randn(5, 1536, generator=draw), torch.tensor([0, 1, 1, 0, 1])  # which one each row wants
small = torch.einsum("tri,ti->tr", a[adapter], x)  # the gathered A of each row
batched = x @ weight.T + torch.einsum("tor,tr->to", b[adapter], small)
merged = torch.stack([(weight + b[i] @ a[i]) @ row for i, row in zip(adapter, x, strict=True)])
print("equal to merged weights, row by row:", torch.allclose(batched, merged, atol=1e-3))
per_layer = sum(8 * sum(shape) for shape in ((576, 960), (576, 576), (576, 3072), (1536, 576)))
print(f"rank 8 for all matrices: {2 * 30 * per_layer / 1e6:.1f} MB; the matrices themselves {2 * 106.2:.1f} MB")

# %% [markdown]
# **Read the result.** One product reads $W$ for all rows, and each row adds its own small one. A server needs two more
# things: adapters in memory like blocks in a pool, and block hashes with the adapter as a salt (lab 5), because K and V
# depend on it. This engine serves no adapters: its door `Linear` sees rows and not whose they are, and to open it for a
# feature that no model at hand uses would cost every layer an argument.
#
# **Takeaway.** Two of four leave 0.5625 of the bytes in 16 bits, and zeros at random places save no such share of the
# time; an adapter of rank 8 has a fiftieth of the weights' bytes, and many share one read of them.

# %% [markdown]
# ## 9. A smaller model that was taught
# <!-- minutes: 0 + 19 -->
#
# The last of section 1's four routes makes no weight smaller: it trains a smaller model. **Distillation** lets it learn
# from the larger one, the **teacher**. It may learn from the teacher's texts (*response*: they are all one needs, also
# through an API), from the teacher's distribution at each token (*logits*), or from the teacher's scores for what the
# student itself writes (*trajectory*, or on-policy distillation: the student meets its own mistakes).
#
# **Think first.** The teacher drew one token where ten were likely. What does a student learn from that token, and what
# from the ten probabilities?

# %% [markdown]
# <!-- card 6.9 -->
# For each position, with both distributions at temperature T:
#
# $$T^2 \sum_v p_v \,(\log p_v - \log q_v), \qquad p = \mathrm{softmax}(z_{teacher} / T), \quad
# q = \mathrm{softmax}(z_{student} / T)$$
#
# A higher T shows more of the unlikely tokens. The gradient shrinks with $1/T^2$, and the factor undoes it
# (arXiv:1503.02531).


# %% tags=["exercise:6.9"]
def distillation_loss(student_logits, teacher_logits, temperature):
    """T^2 times the divergence of the teacher's distribution from the student's, mean over all positions.

    Logits are float32 [..., V], and may be large. Returns a tensor without axes; its gradient reaches the student's
    logits, not the teacher's.

    >>> same = torch.tensor([[1.0, 2.0, 3.0]])
    >>> distillation_loss(same, same, 2.0).item()
    0.0
    >>> teacher = torch.tensor([[0.0, 0.0]])                     # one half each
    >>> loss = distillation_loss(torch.tensor([[0.0, 1.0986123]]), teacher, 1.0)     # the student: 1/4 and 3/4
    >>> round(loss.item(), 4)
    0.1438
    """
    # BEGIN SOLUTION: a tensor without axes
    log_p = F.log_softmax(teacher_logits.detach() / temperature, dim=-1)
    log_q = F.log_softmax(student_logits / temperature, dim=-1)
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1)
    return temperature**2 * divergence.mean()
    # END SOLUTION


# %%
check("6.9")

# %% [markdown]
# **A student of SmolLM2.** It begins as SmolLM2's first two layers, with a small vocabulary, so that training takes
# seconds: the tokens of the stories, and those that SmolLM2 found likely there. SmolLM2 writes 24 beginnings of
# stories; 18 are trained on, 6 kept back. One student learns from the tokens that were drawn, the other from the
# logits: the same stories, the same steps. The distance from the teacher is the divergence of the formula at T = 1, in
# *nats* (bits are nats over ln 2).

# %%
from twophase_labs.compression import students

distillation_loss = use("6.9")


def soft(logits, teacher):
    return distillation_loss(logits, teacher, 1.0)


told = students.stories()
print(f"{students.NUM_STEPS} steps on {students.NUM_TRAINED} stories of {students.NUM_NEW} tokens")
print(f"the student's vocabulary: {len(told.types):,} tokens, which have {told.mass:.0%} of SmolLM2's probability")
taught = {"tokens": students.make_student(), "logits": students.make_student()}
curves = {
    "tokens": students.train(taught["tokens"], students.loss_on_tokens, on="tokens"),
    "logits": students.train(taught["logits"], soft, on="logits"),
}
for name, curve in curves.items():
    print(f"taught by {name}: {curve[0]:.2f} nats per token from the teacher before, {curve[max(curve)]:.2f} after")
students.draw_curves(curves)

# %% [markdown]
# **Read the result.** From the same stories, logits teach much more: each position says how likely *every* token was.
# With so few stories the student on tokens learns them by heart and becomes sure of the wrong tokens. Neither is a good
# model; that takes many millions of tokens, where the two come closer, and logits still need fewer.
#
# **When to distil.** If a smaller model of the same family exists, try it first. Quantising costs minutes and a run of
# the gate; distilling costs training, and pays for a narrow task, for a draft model (lab 5), or to win back what
# pruning and rounding have lost.
#
# > **In production, 2026.** [Minitron](https://github.com/NVlabs/Minitron) is pruning followed by distillation: an 8B
# > and a 4B model out of a 15B one, with up to 40 times fewer training tokens than from scratch. Engines load the
# > result like any other model. By roofline a model half as large halves a decode step's bytes on an H100 as it does
# > here.
#
# **Takeaway.** With the same 18 stories and 18 steps, a student taught by logits ends much nearer to its teacher than
# one taught by tokens.

# %% [markdown]
# ### Going further: rounding while training
#
# Sections 2 to 6 rounded a model that was finished (**PTQ**, post-training quantisation). **QAT**, quantisation-aware
# training, computes with rounded weights in every step and moves the weights behind them, so that they end up where
# rounding hurts less. The gradient passes through rounding as if it were not there. [Model
# Optimizer](https://nvidia.github.io/Model-Optimizer) has both. At 4 bits and more, PTQ with AWQ or GPTQ is usually
# near enough, and needs no training.

# %% [markdown]
# ## 10. Bits where they count
# <!-- minutes: 5 -->
#
# So far the whole model had one format. Which matrices need more bits? The engine has four in each layer: `qkv`, `o`,
# `gate_up` and `down`. With the early and the late half of the layers apart, these are eight parts. One part at a time
# takes your 4 bits (the factors of section 5, then your `quantize` in groups of 64); all others stay as they are. The
# damage is the mean **KL divergence** of the predictions from those of SmolLM2, in nats: with $p$ the distribution of
# SmolLM2 over the vocabulary at a position, and $q$ that of the changed model,
#
# $$\mathrm{KL} = \frac{1}{T} \sum_t \sum_v p_t(v) \log \frac{p_t(v)}{q_t(v)}$$
#
# It tells how far whole distributions move, and shows that sooner than perplexity, which looks at one token of each. It
# is measured on 256 further tokens of the *calibration* text, since what is chosen by it will be judged on the other.

# %%
from twophase_labs.compression import parts

formats = parts.own_formats(scaled_model, quantize)
one_by_one = sum(formats.damage.values())
print(f"the eight damages, added up: {one_by_one:.4f} nats")
parts.draw_parts(formats)

# %% [markdown]
# `gate_up` has half of the bytes and `qkv` a sixth, so damage is not in proportion to them. Now all eight parts are
# rounded at once; and four of them get 8 bits, those where a megabyte more avoids most.

# %%
worst = sorted(parts.PARTS, key=formats.worth)[-4:]  # 8 bits instead of 4 avoid most there, per megabyte
mixed = formats.mixed(in_eight=worst)
damage = {"4 bits": formats.four, "four parts in 8 bits": mixed, "8 bits": formats.eight}
for name, own in damage.items():
    print(f"{name:20} {quality.megabytes(own):5.1f} MB, all at once: {parts.measured_kl(own):.4f} nats")
print("in 8 bits:", ", ".join(worst))
print(f"4 bits: {parts.measured_kl(formats.four) / one_by_one:.2f} times the sum of the eight damages")

# %% [markdown]
# **Read the result.** The damages nearly add up, so eight measurements say what mixtures of formats will cost, provided
# that 8 bits cost next to nothing (the last of the three lines). With half of the parts in 8 bits, those where a
# megabyte avoids most, about half of the damage is left. (256 tokens tell parts apart that differ by half, not by a
# tenth.)
#
# > **In production, 2026.** NVIDIA's Model Optimizer has this section as a function:
# > [`auto_quantize`](https://nvidia.github.io/Model-Optimizer/reference/generated/modelopt.torch.quantization.model_quant.html)
# > measures how sensitive layers are and picks a format for each, under a constraint such as `effective_bits: 4.8`.
# > llama.cpp's formats named `_M` do it by rule and spend
# > [more bits on some tensors, first of all `ffn_down`](https://github.com/ggml-org/llama.cpp/pull/4872). Both leave
# > the output matrix in more bits, and so does the engine's `int4`: an error there is an error of a logit, with no
# > later layer to dampen it.
#
# **Takeaway.** The damages of eight parts nearly add up, so that eight measurements show where the next megabyte avoids
# most, and that is not where most weights are.

# %% [markdown]
# ## 11. Capstone: your four bits in the engine
# <!-- minutes: 11 -->
#
# Your rounding and factors, in the formats that section 10 chose, become layers of the engine. They multiply by your
# codes, two in a byte; activations are bf16. (On this CPU parts of 8 bits in groups are multiplied as bf16: their bytes
# are saved in the file, not in the step.) Four variants run against SmolLM2 as it is, in float32:

# %%
variants = {
    "nearest, groups of 64": own_engine.in_groups(quantize, 4),
    "AWQ, groups of 64": formats.four,
    "AWQ, four parts in 8 bits": mixed,
    "nearest, groups of 32": own_engine.in_groups(quantize, 4, group_size=32),
}
speeds, wrote = quality.tokens_per_s({"as it is, float32": None, **variants})
print(f"{quality.PROMPT} ...")
for name, text in wrote.items():
    faster = speeds[name] / speeds["as it is, float32"]
    size = f"{quality.megabytes(variants[name]):5.1f} MB" if name in variants else ""
    print(f"{name:26} {size:8} {faster:.1f} times the tokens per second: {text!r}")

# %% [markdown]
# Faster is easy. Now the gate. It has three lines, each measured against SmolLM2 on 512 tokens of a text that no choice
# above has seen: the perplexity (at most 1.03 times as high), the mean KL divergence (at most 0.035 nats), and the
# share of positions with the same most likely token (at least 91.5 %). A variant passes if it passes in all three; a
# mean passes only if the worse end of its confidence interval is within the bound. The interval: neighbouring tokens
# resemble each other, so the means of eight stretches of 64 tokens count as the independent observations, and the
# margin is 1.96 times their standard deviation over the root of 8. Beside the verdict you see how many one-digit sums
# the model adds correctly; they have no bound here.

# %% [markdown]
# <!-- card 6.10 -->
# **Predict.** How many of the four variants pass? (Note for yourself which.)

# %% tags=["exercise:6.10"]
guess_6_10 = 1  # SOLUTION: how many of the four pass the gate

# %%
check("6.10")

# %%
num_passed = 0
print(f"as it is, float32: {quality.sums_right(None)}")
for name, own in variants.items():
    verdicts = quality.gate_of(own)
    passes = all(verdict.passed for verdict in verdicts)
    num_passed += passes
    print(f"{name}: {'passes' if passes else 'FAILS'}; {quality.sums_right(own)}")
    for verdict in verdicts:
        print(f"    {'pass' if verdict.passed else 'FAIL'}  {verdict.name:20} {verdict.text}")
measured("6.10", num_passed)

# %% [markdown]
# **Read the result.** Rounding to nearest in groups of 64 is small and fast, and it fails on every line. Your factors
# more than halve the divergence, at the same size. More bits for four parts take away nearly half of the rest, for 29 %
# more bytes, and that is not enough. The variant that passes is the last one, and section 3 says why: groups of 32 are
# the grid on which these weights were rounded before, so that nothing moves. It is the right way to run *this* model,
# and no proof that groups of 32 are harmless: a model that was never rounded pays in any group size.
#
# The sums are few and easy, and a model that fails the gate may still get many of them right. So a gate has several
# lines. The whole one, with needles in long texts and JSON as well, takes minutes:
# `twophase bench quality --quantization int4,int4_g64`.
#
# **K and V face the same gate.** The third row of section 1's table, fewer bits for the cache, changes no weight, and
# its error grows with what is read back. The bounds are stricter than those for 4-bit weights, because 8 bits need no
# allowance:

# %%
for kv_cache_dtype in ("int8", "fp8_e4m3"):
    verdicts = quality.gate_of_cache(kv_cache_dtype)
    print(f"K and V in {kv_cache_dtype}: {'passes' if all(verdict.passed for verdict in verdicts) else 'FAILS'}")
    for verdict in verdicts:
        print(f"    {'pass' if verdict.passed else 'FAIL'}  {verdict.name:20} {verdict.text}")

# %% [markdown]
# **Read the result.** Both have a scale for each token and head. int8 spends all its bits on a fixed grid below it; fp8
# has three bits of mantissa, finer near zero and coarser at the top, and moves predictions further. int8 passes; fp8
# failed here by one line, and only by its interval: more than 95 % of the top tokens are the same, but 512 tokens are
# too few to be sure of it. They also test short contexts only: before K and V are rounded for long ones, the needles of
# the whole gate have to be found (lab 8, section 4).
#
# **Compress, or take a smaller model?** At the same total number of bits, more weights of 4 bits were almost always
# better than fewer of 8 or 16, and 3 bits were worse than 4 (several families on zero-shot tasks, arXiv:2212.09720). So
# 4 bits are the default:
#
# - **Weights in 4 bits**: memory or single-stream speed is the limit, and quality must be kept.
# - **8 bits, activations too**: batches and prompts are large, so that arithmetic is the limit.
# - **A smaller model**: 4 bits are not enough, or arithmetic is the limit by a large factor.
# - **Distillation**: the domain is narrow, traffic is large, and training can be paid for.
#
# A small model loses more by rounding than a large one: what you saw of 135 million weights in groups of 64 is not what
# a model of many billions would lose.
#
# **Takeaway.** At four bits per weight a model can fail every line of the gate or pass it. What decides is how many
# weights share a scale, what the calibration saw, and which parts keep their bits. The variants that are all 4 bits are
# about equally fast; the mixed one is slower here, because its 8-bit parts run as bf16.

# %% [markdown]
# ## 12. Knowledge check
# <!-- minutes: 8 -->
#
# Two questions over the whole lab.

# %% [markdown]
# <!-- card 6.11 -->
# A model of 70.6 billion weights (bf16, 141 GB) must serve on one GPU of 80 GB: 64 requests at a time with 1,500 tokens
# each, whose K and V take 31 GB in bf16. What first?
#
# **a** weights in 4 bits with AWQ or GPTQ, activations in bf16<br/>
# **b** weights and activations in fp8<br/>
# **c** 2:4 sparsity in bf16<br/>
# **d** K and V in 4 bits


# %% tags=["exercise:6.11"]
answer_6_11 = "a"  # SOLUTION: one letter

# %%
check("6.11")

# %% [markdown]
# <!-- card 6.12 -->
# Which cause fits which symptom? **a** weights in 4 bits; the step is limited by arithmetic · **b** a student taught on
# one kind of prompt · **c** one static scale for activations with outliers · **d** zeros without a pattern that the
# hardware knows · **e** too few calibration tokens for GPTQ


# %% tags=["exercise:6.12"]
answer_6_12 = {
    "perplexity doubles, although every weight has 8 bits": "c",  # SOLUTION: a letter
    "the layer's error is small on the calibration text and large on any other": "e",  # SOLUTION: a letter
    "a single stream is faster, a batch of 64 is not": "a",  # SOLUTION: a letter
}

# %%
check("6.12")

# %% [markdown]
# ### Principles
#
# 1. **Ask what is short.** Bytes of weights, bytes of K/V, arithmetic and quality have different cures.
# 2. **A scale belongs to few values.** One outlier sets the scale of all that share it.
# 3. **Move the difficulty to where it is cheap.** From activations to weights, from important columns to others.
# 4. **Calibrate on what you serve, test on what you did not calibrate on.**
# 5. **Zeros and bits pay only where a kernel knows them.**
# 6. **Let a gate decide**, with several lines and intervals, before users do.
#
# To read next: GPTQ (arXiv:2210.17323), SmoothQuant (arXiv:2211.10438), AWQ (arXiv:2306.00978); LLM.int8()
# (arXiv:2208.07339) on outliers in models of different sizes; LoRA (arXiv:2106.09685) and S-LoRA (arXiv:2311.03285) on
# many adapted models over one set of weights. Lab 7 goes from one machine to many.

# %%
from twophase_labs.kit.course_map import closing

closing("6")
