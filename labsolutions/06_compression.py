# %% tags=["setup"]
import itertools

import torch
import torch.nn.functional as F

from twophase_labs import ____, check, hint, measured, reference, reveal, use

torch.set_num_threads(1)

# %% [markdown]
# ## 10. Bits where they count
# <!-- minutes: 15 -->
#
# So far the whole model had one format. But its parts are not alike: section 4 found one layer with inputs a hundred
# times as large as others', and the output matrix has kept its 8 bits all along. This section measures what each part
# costs on its own, spends bits where they count, and lets the engine's gate judge the result.
#
# The engine has four matrices in each layer: `qkv` (queries, keys and values in one), `o`, `gate_up` and `down`. With
# the early and the late half of the layers apart, these are eight parts. One part at a time takes your 4 bits (your
# `awq`'s factors, then your `quantize` in groups of 64); all others stay as they are. The damage is the mean **KL
# divergence** of the predictions from those of SmolLM2 as it is: how far whole distributions move, which shows sooner
# than perplexity.

# %% [markdown]
# **Think first.** `gate_up` has half of all weights in these layers, `qkv` a sixth. If every weight's rounding cost
# the same, which part would cost most? And if two parts are rounded at once, does their damage add up?

# %%
from twophase_labs.compression import own_engine, parts

quantize, awq = use("6.2"), use("6.6")
formats = parts.own_formats(quantize, awq)
parts.draw_parts(formats)

# %%
everywhere = parts.measured_kl(formats.four)
in_eight = parts.measured_kl(formats.eight)
print(f"4 bits, the eight parts one by one: {sum(formats.damage.values()):.4f} nats, added up")
print(f"4 bits, all at once:                {everywhere:.4f} nats")
print(f"8 bits, all at once:                {in_eight:.4f} nats")

# %% [markdown]
# **Read the result.** The damage of a part is not in proportion to its bytes. And the damages nearly add up, so eight
# measurements predict all combinations. Eight bits cost so little that the next exercise counts them as free. (The text
# has 256 tokens: enough to tell parts that differ by half, not those that differ by a tenth.)

# %% [markdown]
# <!-- card 6.13 -->
# Given what each part takes and costs in each format, choose the formats.


# %% tags=["exercise:6.13"]
def choose_formats(options, budget):
    """The choice of one format per part that does the least damage, with at most `budget` megabytes in all.

    options[part][number]: a pair (megabytes, damage), what the part takes and costs in format `number`. Damages of
    parts add up. Returns a list with a number for each part, or None if nothing fits. Any of several equally good
    choices will do.

    >>> small, large = (1.0, 9.0), (2.0, 0.0)                # in megabytes, and damage
    >>> choose_formats([[small, large], [(1.0, 5.0), (2.0, 0.0)]], 3.0)     # room for one: the one that matters more
    [1, 0]
    >>> print(choose_formats([[small, large]], 0.5))
    None
    """
    # BEGIN SOLUTION: try every combination, keep the best that fits
    best, least = None, float("inf")
    for chosen in itertools.product(*(range(len(formats)) for formats in options)):
        size = sum(formats[number][0] for formats, number in zip(options, chosen, strict=True))
        damage = sum(formats[number][1] for formats, number in zip(options, chosen, strict=True))
        if size <= budget and damage < least:
            best, least = list(chosen), damage
    return best
    # END SOLUTION


# %%
check("6.13")

# %% [markdown]
# **What a budget buys.** The line is your function's prediction for every budget; the marks are measured.

# %%
choose_formats = use("6.13")
options = formats.options()
budgets = [float(size) for size in range(58, 116)]
choices = [choose_formats(options, budget) for budget in budgets]
predicted = [chosen and sum(option[i][1] for option, i in zip(options, chosen, strict=True)) for chosen in choices]
marks = {"4 bits": (formats.four.megabytes, everywhere), "8 bits": (formats.eight.megabytes, in_eight)}
for budget in (75, 90):
    mixed = formats.mixed(choose_formats(options, budget))
    marks[f"{budget} MB"] = (mixed.megabytes, parts.measured_kl(mixed))
parts.draw_budgets(budgets, predicted, marks)

# %%
for budget in (75, 90):
    chosen = choose_formats(options, budget)
    print(f"{budget} MB:", ", ".join(f"{part} {parts.FORMATS[i]}" for part, i in zip(parts.PARTS, chosen, strict=True)))

# %% [markdown]
# **Open the engine.** `quantization="int4"` has one rule of this kind:

# %%
from twophase.quantization.schemes import head_scheme
from twophase_labs.kit.open_engine import show_source

show_source(head_scheme)

# %% [markdown]
# **Question.** Why this matrix, and why by rule instead of by measurement?
#
# <details><summary>Answer</summary>
#
# An error in an inner layer passes through norms, residuals and later layers, which dampen it; an error of the output
# matrix is an error of a logit. It also shares its values with the embedding here. A rule can be applied to every model
# when it is loaded; a measurement needs a text and as many passes as there are parts, minutes for this model and hours
# for a large one. `twophase bench quality --quantization int4_g64 --sensitivity` makes it, layer by layer.
# </details>

# %% [markdown]
# > **In production, 2026.** NVIDIA's Model Optimizer has this section as a function:
# > [`auto_quantize`](https://nvidia.github.io/Model-Optimizer/reference/generated/modelopt.torch.quantization.model_quant.html)
# > measures how sensitive layers are and picks a format for each, under a constraint such as `effective_bits: 4.8`.
# > llama.cpp's formats named `_M` do it by rule and spend
# > [more bits on some tensors, first of all `ffn_down`](https://github.com/ggml-org/llama.cpp/pull/4872). Both leave
# > the output matrix in more bits.
#
# **Takeaway.** Eight measurements predict every mixture of formats, because damages nearly add up; the next megabyte
# belongs where it avoids most, and that is not where most weights are.

# %% [markdown]
# ## 11. Capstone: your four bits in the engine
# <!-- minutes: 12 -->
#
# Everything comes together: your rounding, your factors and your choice of formats become layers of the engine. Its
# layers multiply by your codes, two in a byte; activations are bf16. (On this CPU the parts of 8 bits in groups are
# multiplied as bf16: their bytes are saved in the file, not in the step.) Four variants run against SmolLM2 as it is,
# in float32:

# %%
nearest = {size: parts.to_nearest(quantize, size) for size in (64, 32)}
variants = {
    "nearest, groups of 64": nearest[64],
    "AWQ, groups of 64": formats.four,
    "AWQ, 90 MB": formats.mixed(choose_formats(options, 90)),
    "nearest, groups of 32": nearest[32],
}
speeds = own_engine.tokens_per_s({"as it is, float32": None, **variants})
for name, own in variants.items():
    faster = speeds[name] / speeds["as it is, float32"]
    print(f"{name:22} {own.megabytes:6.1f} MB, {faster:.1f} times as many tokens per second")

# %% [markdown]
# Faster is easy. Now the gate: for each line a bound, and of a mean over the text its confidence limit on the bad side
# must keep it.

# %%
for name, own in variants.items():
    verdicts = own_engine.gate_of(own)
    print(f"{name}: {'passes' if all(verdict.passed for verdict in verdicts) else 'FAILS'}")
    for verdict in verdicts:
        print(f"    {'pass' if verdict.passed else 'FAIL'}  {verdict.name:20} {verdict.text}")

# %%
for name, own in {"as it is, float32": None, **variants}.items():
    print(f"{name:22}", own_engine.sums_right(own))

# %% [markdown]
# **Read the result.** Rounding to nearest in groups of 64 is small and fast, and it fails. Your factors halve the
# damage or better, at the same size. Your choice of formats does so again, for half as many bytes more. The variant
# that passes is the last one, and section 3 says why: groups of 32 are the grid on which these weights were rounded
# before, so that nothing moves. It is the right way to run *this* model, and no proof that groups of 32 are harmless:
# what the first rounding cost cannot be measured here any more. A model that was never rounded pays in any group size.
#
# The sums and the code are few and easy, and a model that fails the gate may still get them right. So a gate has many
# lines. The whole one, with needles in long texts, JSON and refusals as well, takes minutes:
#
# ```
# twophase bench quality --quantization int4,int4_g64
# ```

# %% [markdown]
# ### Compress, or take a smaller model?
#
# Both save bytes. For zero-shot tasks, models of several families were compared at the same total number of bits
# (Dettmers and Zettlemoyer, arXiv:2212.09720): more weights of 4 bits were almost always better than fewer weights of
# 8 or 16 bits, and 3 bits were worse than 4. So a model in 4 bits is the default, and the smaller model comes next:
#
# - **Weights in 4 bits**: memory or a single stream's speed is short, quality must stay.
# - **8 bits, activations too**: batches and prompts are large, so that arithmetic is the limit.
# - **A smaller model**: 4 bits are not enough, or arithmetic is the limit by a large factor. Its quality is known.
# - **Distillation**: the domain is narrow, traffic is large, and training can be paid for.
# - **2:4 sparsity**: hardware multiplies it faster, and the model can be trained again.
#
# A small model loses more by rounding than a large one: it has fewer weights to spare. What you saw of 135 million
# weights in groups of 64 is not what 70 billion would lose.

# %% [markdown]
# **Takeaway.** Four bits per weight can be nonsense, a failed gate or a passed one. What decides is how many weights
# share a scale, what the calibration saw, and which parts keep their bits; the engine's step takes equally long.

# %% [markdown]
# ## 12. Knowledge check
# <!-- minutes: 6 -->
#
# Two questions over the whole lab; 6.8 was the third.

# %% [markdown]
# <!-- card 6.14 -->
# A model of 70.6 billion weights (bf16, 141 GB) must serve on one GPU of 80 GB: 64 requests at a time with 1,500 tokens
# each, whose K and V take 31 GB in bf16. What first?
#
# **a** weights in 4 bits with AWQ or GPTQ, activations in bf16<br/>
# **b** weights and activations in fp8<br/>
# **c** 2:4 sparsity in bf16<br/>
# **d** K and V in 4 bits


# %% tags=["exercise:6.14"]
answer_6_14 = "a"  # SOLUTION: one letter

# %%
check("6.14")

# %% [markdown]
# <!-- card 6.15 -->
# Which cause fits which symptom? **a** weights in 4 bits; the step is limited by arithmetic · **b** a student taught on
# one kind of prompt · **c** one static scale for activations with outliers · **d** zeros without a pattern that the
# hardware knows · **e** too few calibration tokens for GPTQ


# %% tags=["exercise:6.15"]
answer_6_15 = {
    "perplexity doubles, although every weight has 8 bits": "c",  # SOLUTION: a letter
    "the layer's error is small on the calibration text and large on any other": "e",  # SOLUTION: a letter
    "a single stream is faster, a batch of 64 is not": "a",  # SOLUTION: a letter
    "half of the multiplications are gone, and the step takes as long as before": "d",  # SOLUTION: a letter
    "fluent answers in one domain, nonsense outside": "b",  # SOLUTION: a letter
}

# %%
check("6.15")

# %% [markdown]
# ### Principles
#
# 1. **Ask what is short.** Bytes of weights, bytes of K/V, arithmetic and quality have different cures.
# 2. **A scale belongs to few values.** One outlier sets the scale of all that share it.
# 3. **Move the difficulty to where it is cheap.** From activations to weights, from important columns to others.
# 4. **Calibrate on what you serve, test on what you did not calibrate on.**
# 5. **A grid remembers.** Rounding a second time costs nothing on the same grid, and something on any other.
# 6. **Zeros and bits pay only where a kernel knows them.**
# 7. **Let a gate decide**, with several lines and intervals, before users do.
#
# ### What to read next
#
# - GPTQ, arXiv:2210.17323; SmoothQuant, arXiv:2211.10438; AWQ, arXiv:2306.00978: sections 4 to 6.
# - LLM.int8(), arXiv:2208.07339: outliers, and what they do to models of different sizes.
# - SparseGPT, arXiv:2301.00774: GPTQ's idea used to prune.
# - The case for 4-bit precision, arXiv:2212.09720: bits against weights.
# - LoRA, arXiv:2106.09685, and S-LoRA, arXiv:2311.03285: many adapted models over one (quantised) set of weights.
#
# Lab 7 goes from one machine to many.
