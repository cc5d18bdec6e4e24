# %% tags=["setup"]
import torch
import torch.nn.functional as F

from twophase_labs import ____, check, hint, measured, reference, reveal, use
from twophase_labs.machine.kernels import device, tl, triton  # first: it decides how kernels run

torch.set_num_threads(1)

# %% [markdown]
# ## 7. Four bits into the multiplier
# <!-- minutes: 22 -->
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

# %% [markdown]
# **Think first.** A word is an int32 with eight codes. The last of them may be 9, binary 1001. What is the word's sign,
# and what does a shift to the right by 28 bits give?

# %% [markdown]
# <!-- card 6.9 -->
# A program computes a tile of outputs for all rows of x, and goes along the inputs a group at a time. Code i of output
# o is number `i % 8` of word `i // 8` of its row; a weight is `scale * code + minimum`.
#
# ```python
# launch_int4_linear(int4_linear_kernel, x, pack_words(codes), scales, minima)    # x @ weight.T, [T, O]
# ```


# %% tags=["exercise:6.9"]
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
        acc += tl.dot(x, tl.trans(weight.to(x.dtype)), input_precision="ieee")  # SOLUTION: this group's part of the sum
    mask = has_token[:, None] & has_output[None, :]
    out_ptrs = out_ptr + offs_t[:, None] * num_outputs + offs_o[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask)


# %%
check("6.9")

# %% [markdown]
# **A weight of SmolLM2 through your kernel**, and what the compiler made of it, beside the engine's kernel for the same
# numbers: 128 outputs of a query projection, 4 rows in float16.

# %%
# needs: triton
from twophase_kernels.packed_codes import pack_int4
from twophase_kernels.quantized_linear import int4_linear
from twophase_labs.compression.int4_launch import launch_int4_linear, pack_words, rounded, show_traffic
from twophase_labs.machine.compiled import Compiled, inspect_engine

int4_linear_kernel = use("6.9")
codes, scales, minima = (each[:128] for each in rounded("15.self_attn.q_proj"))
x = torch.randn(4, 576, generator=torch.Generator().manual_seed(0)).half()
compiled = Compiled(int4_linear_kernel)
out = launch_int4_linear(compiled, x, pack_words(codes), scales, minima)
weight = codes * scales.repeat_interleave(64, 1) + minima.repeat_interleave(64, 1)
print(f"largest difference from the written-out weight: {(out - x.float() @ weight.T).abs().max():.0e}")
for_engine = pack_int4(codes), scales.T.contiguous(), minima.T.contiguous()
engines = inspect_engine(int4_linear, x, *for_engine, num_splits=1)
show_traffic({"yours": compiled.report, "the engine's": engines}, num_weights=128 * 576)

# %% [markdown]
# **Read the result.** Both ask for about the same bytes (a tile has room for 16 rows in yours, for 8 in the engine's,
# and x counts here because the weight is small). But yours moves more than it asks for, and executes three times as
# many instructions.
#
# **Open the engine.** Its kernel applies the scale to the *sum* of a group, not to each weight, and its words hold
# codes that are 32 inputs apart:

# %%
# needs: triton
from twophase_kernels.quantized_linear import quantized_linear_kernel
from twophase_labs.kit.open_engine import show_source

show_source(quantized_linear_kernel, first="parts = unpack_words", last="acc += x_sum")

# %% [markdown]
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
# **And on this CPU?** One matrix of each of the 30 layers in three formats, as the engine multiplies them, for more and
# more rows.

# %%
from twophase_labs.compression import few_rows

times = few_rows.product_times(rows=(1, 2, 4, 8, 16, 64))
for num_rows in (1, 8, 64):
    shown = ", ".join(f"{name} {times[name][num_rows] / times['float32'][num_rows]:.2f}" for name in times)
    print(f"{num_rows:2} rows, time relative to float32's: {shown}")
few_rows.draw_times(times)

# %% [markdown]
# **Read the result.** At one row bytes count, and 4 bits win. With more rows the same weights are multiplied more
# often; then unpacking and arithmetic decide, and bf16 takes over if the processor has an instruction for it. So the
# engine's `Int4Linear` keeps both forms if there is memory: 4 bits for up to `FEW_ROWS` rows, bf16 for more.
#
# > **In production, 2026.** Kernels that unpack in registers are the standard for 4-bit weights on NVIDIA GPUs. vLLM
# > loads GPTQ checkpoints and [repacks them for its Marlin kernel](https://github.com/vllm-project/vllm/pull/3922),
# > with groups of 32, 64, 128 or a whole row. By roofline on an H100 (3.35 TB/s, not run here): a weight [14336, 4096]
# > takes 35 µs to read in bf16, and 10 µs in 4.5 bits.
#
# **Takeaway.** Unpacked in registers, a weight in groups of 64 costs 0.28 of the bytes of 16 bits; written out first it
# costs 2.28 times as many.

# %% [markdown]
# ## 8. Zeros
# <!-- minutes: 16 -->
#
# A weight that is zero need not be read or multiplied at all. How many can be set to zero? Here the smallest of each
# matrix of SmolLM2 are, without any training afterwards.

# %%
from twophase_labs.compression import zeros

cliff = zeros.pruned_perplexities((0.1, 0.3, 0.5, 0.7))
zeros.draw_cliff(cliff)

# %% [markdown]
# A tenth is free (on so few tokens one cannot tell such a ratio from 1), and somewhere between a third and a half lies
# a cliff. Smaller models have less to spare, and training after pruning wins some of it back.
#
# **Think first.** Suppose nine tenths were zeros. A dense product of one row reads each weight once. What must a
# product read that skips the zeros?

# %% [markdown]
# <!-- card 6.10 -->
# **Predict.** A matrix [1536, 576] with 90 % zeros at random places, stored as CSR (each row's nonzero weights and
# their columns), times one row of x. How long does it take, relative to the dense product?

# %% tags=["exercise:6.10"]
guess_6_10 = 1.0  # SOLUTION: times the dense product's time

# %%
check("6.10")

# %%
for num_rows in (1, 8):
    dense_s, with_zeros_s, csr_s = zeros.product_times(0.9, num_rows)
    print(
        f"{num_rows} rows: dense with zeros {with_zeros_s / dense_s:.2f}, CSR {csr_s / dense_s:.2f} of the dense time"
    )
measured("6.10", zeros.sparse_over_dense())

# %% [markdown]
# **Read the result.** A dense product does not notice its zeros. The sparse one has a tenth of the arithmetic, and
# saves nothing like nine tenths of the time: for each weight it reads a column number as well, and then the element of
# x that it names, wherever that is. On a GPU it is worse: the matrix unit multiplies whole tiles, and with zeros at
# random places no tile is empty.
#
# So hardware asks for a *pattern*. NVIDIA's matrix units since Ampere know one: **2:4 sparsity**, of each four
# neighbouring weights two are kept, with two bits to say where each of them stood.

# %% [markdown]
# <!-- card 6.11 -->
# Keep the two of largest magnitude in each four neighbours of a row.


# %% tags=["exercise:6.11"]
def two_of_four(weight):
    """Of each four neighbours in a row the two of largest magnitude; of equals the first.

    weight: [O, I], I a multiple of 4. Returns values [O, I/2], the weights that are kept, in their order, and places
    [O, I/2], where each of them stands in its four: 0 to 3, ascending within a four.

    >>> values, places = two_of_four(torch.tensor([[1.0, -5.0, 2.0, 0.5, 0.0, 0.0, 0.0, 7.0]]))
    >>> values.tolist()
    [[-5.0, 2.0, 0.0, 7.0]]
    >>> places.tolist()
    [[1, 2, 0, 3]]
    """
    # BEGIN SOLUTION: values, places
    fours = weight.unflatten(1, (-1, 4))
    order = fours.abs().sort(dim=-1, descending=True, stable=True).indices
    places = order[..., :2].sort(dim=-1).values
    return fours.gather(-1, places).flatten(1), places.flatten(1)
    # END SOLUTION


# %%
check("6.11")

# %%
two_of_four = use("6.11")
values, places = two_of_four(zeros.written_out(*two_of_four(torch.randn(1536, 576))))
kept_bytes = values.numel() * 2 + places.numel() * 2 / 8
print(f"bytes, in 16 bits: {kept_bytes / (2 * 1536 * 576):.4f} of the dense weight's")
by_weight, by_output = zeros.two_of_four_perplexities(two_of_four)
print(f"SmolLM2, two of four by weight: perplexity x{by_weight:.1f}; by weight times input (Wanda): x{by_output:.1f}")

# %% [markdown]
# **Read the result.** The same number of zeros costs more in a fixed pattern than where they hurt least. Wanda
# (arXiv:2306.11695) ranks a weight by its size times the size of its input, AWQ's thought again, and loses far less.
# Neither is usable here without training afterwards. Half the weights in 16 bits are more bytes than all of them in 4.
#
# There is sparsity of another kind that pays: a *mixture of experts* leaves out whole matrices, chosen for each token,
# and what is read is dense. That is in lab 7.
#
# > **In production, 2026.** vLLM [removed its 2:4 kernels](https://github.com/vllm-project/vllm/pull/36799) in March
# > 2026, because hardly any model used them; quantisation is what engines are built around. By roofline on an H100 (not
# > run here), 2:4 in 16 bits reads 0.5625 of the bytes of a decode step's weights, 4 bits in groups of 64 reads 0.28.
#
# **Takeaway.** Two of four leave 0.5625 of the bytes in 16 bits; zeros at random places save no such share of the time.

# %% [markdown]
# ## 9. A smaller model that was taught
# <!-- minutes: 22 + 8 -->
#
# The fourth route makes no weight smaller: it trains a smaller model. **Distillation** lets it learn from the larger
# one, the **teacher**. It may learn from the teacher's texts (*response*: they are all one needs, also through an API),
# from its distribution at each token (*logits*), or let the student write and the teacher judge each of its tokens
# (*trajectory*, on-policy: the student meets its own mistakes).
#
# **Think first.** The teacher drew one token where ten were likely. What does a student learn from that token, and what
# from the ten probabilities?

# %% [markdown]
# <!-- card 6.12 -->
# For each position, with both distributions at temperature T:
#
# $$T^2 \sum_v p_v \,(\log p_v - \log q_v), \qquad p = \mathrm{softmax}(z_{teacher} / T), \quad
# q = \mathrm{softmax}(z_{student} / T)$$
#
# A higher T shows more of the unlikely tokens. The gradient shrinks with $1/T^2$, and the factor undoes it
# (arXiv:1503.02531).


# %% tags=["exercise:6.12"]
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
check("6.12")

# %% [markdown]
# **A student of SmolLM2.** It begins as SmolLM2's first two layers. SmolLM2 writes 24 beginnings of stories; 18 are
# trained on, 6 kept back. One student learns from the tokens that were drawn, the other from the logits: the same
# stories, the same steps.

# %%
from twophase_labs.compression import students

distillation_loss = use("6.12")
told = students.stories()
print(f"the student can write {len(told.types):,} tokens, to which SmolLM2 gives {told.mass:.0%} of the probability")
taught = {"tokens": students.make_student(), "logits": students.make_student()}
print(f"{students.NUM_STEPS} steps on {students.NUM_TRAINED} stories, {told.ids.shape[1] - told.num_given} tokens each")
print(f"not trained:       {students.distance(taught['logits']):5.2f} nats per token from the teacher")
students.train(taught["tokens"], students.loss_on_tokens, on="tokens")
students.train(taught["logits"], lambda z, teacher: distillation_loss(z, teacher, 1.0), on="logits")
for name, student in taught.items():
    print(f"taught by {name}:  {students.distance(student):5.2f}")

# %% [markdown]
# **Read the result.** From the same stories, logits teach much more: each position says how likely *every* token was.
# With so few stories the student on tokens learns them by heart and becomes sure of the wrong tokens. Neither is a good
# model; that takes many millions of tokens, where the two come closer, and logits still need fewer.
#
# **When to distil.** If a smaller model of the same family exists, try it first. Squeezing costs minutes and a gate;
# distilling costs training, and pays for a narrow task, for a draft model (lab 5), or to win back what pruning and
# rounding have lost.

# %% [markdown]
# ### Rounding afterwards, or while training
#
# Sections 2 to 6 rounded a model that was finished (**PTQ**, post-training quantisation). **QAT**, quantisation-aware
# training, computes with rounded weights in every step and moves the weights behind them, so that they end up where
# rounding hurts less. The gradient passes through rounding as if it were not there.

# %% [markdown]
# <!-- card 6.17 -->
# Extra. Round a weight [O, I] as in section 2, each group from its minimum to its maximum in `2**bits - 1` steps, so
# that the result's gradient is the weight's.


# %% tags=["exercise:6.17"]
def fake_quantize(weight, bits, group_size):
    """The rounded weight [O, I], with the gradient of the weight itself."""
    groups = weight.detach().unflatten(1, (-1, group_size))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) / (2**bits - 1)
    step = torch.where(step == 0, 1.0, step)  # SOLUTION: what to divide by, also where a group is all alike
    rounded = (
        (groups - low) / step
    ).round() * step + low  # SOLUTION: the nearest value of the grid, [O, G, group_size]
    return weight + (rounded.flatten(1) - weight).detach()  # SOLUTION: the value of one, the gradient of the other


# %%
check("6.17")

# %%
fake_quantize = use("6.17")


def soft(logits, teacher):
    return distillation_loss(logits, teacher, 1.0)


more = {"num_steps": students.MORE_STEPS, "learning_rate": students.MORE_LEARNING_RATE}
longer = students.copy_of(taught["logits"])
students.train(longer, soft, on="logits", **more)
print(f"as it was {students.distance(taught['logits']):.2f}, trained on {students.distance(longer):.2f} nats per token")
for bits in (3, 2):
    aware = students.copy_of(taught["logits"])
    with students.computing_rounded(aware, fake_quantize, bits):
        students.train(aware, soft, on="logits", **more)
        with_rounding = students.distance(aware)
    with students.computing_rounded(longer, fake_quantize, bits):
        print(
            f"{bits} bits: trained on, then rounded {students.distance(longer):.2f}; with rounding {with_rounding:.2f}"
        )

# %% [markdown]
# **Read the result.** Both were trained for equally many further steps. At 3 bits they are too close for so few stories
# to decide; at 2 bits, where rounding costs far more, training with it wins much of that back. At 4 bits and more, PTQ
# with AWQ or GPTQ is usually near enough, and needs no training.
#
# > **In production, 2026.** NVIDIA's Model Optimizer has [pruning followed by
# > distillation](https://github.com/NVlabs/Minitron) (Minitron: an 8B and a 4B model out of a 15B one, with up to 40
# > times fewer training tokens than from scratch) and [QAT](https://nvidia.github.io/TensorRT-Model-Optimizer) beside
# > PTQ; engines load the result like any other model. By roofline a model half as large halves a decode step's bytes on
# > an H100 as it does here.
#
# **Takeaway.** With the same 18 stories and 18 steps, a student taught by logits ends nearer to its teacher than one
# taught by tokens, and at 2 bits training with rounding beats rounding afterwards.
