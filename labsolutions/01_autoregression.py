# %% [markdown]
# # Lab 1: autoregression, and why a cache exists
#
# A language model reads a text in one pass and writes its answer one token at a time. The same model, SmolLM2 with its
# 135 million weights, now reads 40 tokens and then writes 10, on this machine:

# %%
import torch

from twophase_labs.autoregression.gap import story_ids
from twophase_labs.kit.models import smollm2, transformers_greedy
from twophase_labs.kit.timing import seconds

torch.set_num_threads(1)  # one thread: steadier times on a machine that does other things too
(model, tokenizer), story = smollm2(), story_ids()
read_s = seconds(lambda: model(story[None]), repeats=2) / len(story)
write_s = seconds(lambda: transformers_greedy(model, story, 10, use_cache=False)) / 10
print(f"reading {len(story)} tokens: {1e3 * read_s:.1f} ms per token")
print(f"writing 10 tokens: {1e3 * write_s:.1f} ms per token, {write_s / read_s:.0f} times as long")

# %% [markdown]
# Same weights, same arithmetic. Why does a written token take so much longer than one that is read? Write your
# explanation down before you go on; section 4 counts, section 6 measures again, and section 12 does so in a real
# engine.
#
# Part of the difference is waste, and this lab removes it: you write the loop that generates text, count what it
# computes again and again, and build the **KV cache** that ends the repetition. The rest is not waste. A cache has to
# be read, stored and paid for, and that is what the second half of this lab, and the labs after it, are about.

# %% [markdown]
# **After this lab you can**
#
# - write the probability of a text as a sum over a model's logits, and say what a training loss measures;
# - tell what can be computed in parallel from what has to wait;
# - write the generation loop and count its work, with a cache and without;
# - build a KV cache, and show that it changes the work and not the text;
# - compute what a cache weighs per token, per model and per GPU, and what that means for throughput;
# - turn logits into a token, and test that a sampler draws what it should.
#
# You need PyTorch and a rough idea of a transformer. No GPU: every section runs on a CPU.

# %% [markdown]
# <!-- opening minutes: 5 -->
# <!-- map -->

# %% [markdown]
# **How it works.** Think first: a wrong prediction teaches more than a correct measurement. Most code exercises have
# blanks to fill, `____(...)`; four are *open*, and you write the whole function. Then run `check("1.3")`. If you are
# stuck, `hint("1.3")` helps in up to three steps, and `reveal("1.3")` shows a solution. You can leave any exercise out:
# what follows then runs with the reference's answer, and says so. Checks draw their cases at random; `check("1.3",
# seed=...)` with the seed that a verdict prints draws the same again. *Going further* is optional, and a bonus. (The
# comment `# NBVAL_CHECK_OUTPUT` says that a cell prints the same in every run.) Each section follows the course's
# [method](../docs/method.md).

# %% tags=["setup"]
import math

import numpy as np
import torch

from twophase_labs import ____, check, hint, measured, reference, reveal, use

torch.set_num_threads(1)

# %% [markdown]
# ## 1. A text's probability is a product
# <!-- minutes: 11 -->
#
# *Needs: CPU, and the model.*
#
# A language model does one thing. Given the tokens so far, it gives a score, a *logit*, to each token of its
# vocabulary; the softmax turns a row of logits into the probabilities of the next token. That this is enough to give
# any text a probability is the **chain rule**: the probability of all is the probability of the first, times that of
# the second given the first, times that of the third given both, and so on.

# %% [markdown]
# ```mermaid
# flowchart LR
#     x0["x₀"] -->|"row 0: p(x₁ given x₀)"| x1["x₁"]
#     x1 -->|"row 1: p(x₂ given x₀ x₁)"| x2["x₂"]
#     x2 -->|"row 2: p(x₃ given x₀ x₁ x₂)"| x3["x₃"]
#     x3 -.->|"row 3: predicts x₄, not written yet"| x4["?"]
# ```
#
# Four tokens give four rows of logits. Nothing predicts the first token, and the last row predicts a token that is not
# there. A product of a hundred probabilities would soon be too small for a float, so we add logarithms.

# %% [markdown]
# <!-- card 1.1 -->
# Given the logits of one pass over a text, compute the log-probability of the text, given its first token:
#
# $$\log p(x_1, \dots, x_{T-1} \mid x_0) \;=\; \sum_{t=0}^{T-2} \log p(x_{t+1} \mid x_0, \dots, x_t)$$
#
# `logits` is `[T, V]`, `ids` is `[T]`; the result is one number. A model that knows nothing is a test you can do in
# your head:
#
# ```python
# text_log_prob(torch.zeros(4, 10), torch.tensor([7, 1, 1, 3])) == -3 * np.log(10)  # three tokens, each 1 of 10: -6.9
# ```


# %% tags=["exercise:1.1"]
def text_log_prob(logits, ids):
    log_probs = logits.log_softmax(-1)  # SOLUTION: the logits as log-probabilities over the vocabulary
    rows = log_probs[:-1]  # SOLUTION: the rows that predict a token of this text
    tokens = ids[1:]  # SOLUTION: the tokens they predict
    picked = rows.gather(-1, tokens[:, None])  # from each row the entry of its token
    return picked.sum()  # SOLUTION: one number


# %%
check("1.1")

# %% [markdown]
# **Now on a real model.** Training minimises the *loss*, the mean of minus log p over the predicted tokens.
# transformers computes it by itself when it is given labels. If you are right, -sum / (T - 1) is that loss.

# %%
text_log_prob = use("1.1")
sentence = "The capital of France is Paris, and the capital of Japan is cheese."
ids = tokenizer(sentence, return_tensors="pt").input_ids[0]
output = model(ids[None], labels=ids[None])
log_prob = float(text_log_prob(output.logits[0], ids))
print(f"{len(ids)} tokens, log p = {log_prob:.3f}")
print(f"loss from your sum {-log_prob / (len(ids) - 1):.4f}, from transformers {float(output.loss):.4f}")

# %% [markdown]
# **Think first.** The log-probability is a sum, so every token has its share in it. Which token of the sentence cost
# the most? And which cost next to nothing? In bits, a token that the model gave 1 chance in 8 costs 3.

# %%
from twophase_labs.autoregression import growth_pictures as pictures

log_probs = output.logits[0, :-1].log_softmax(-1)
shares = log_probs.gather(-1, ids[1:, None])[:, 0]
pictures.draw_surprises([tokenizer.decode(i) for i in ids[1:]], shares)

# %%
# NBVAL_CHECK_OUTPUT
for at in (4, 8, 12):  # Paris, the second "capital", cheese
    print(f"{tokenizer.decode(ids[at + 1]).strip():8} {float(-shares[at]) / math.log(2):4.1f} bits")

# %% [markdown]
# The second *is* costs least, and *Paris* next to nothing too: the model knows. The second *capital* is much cheaper
# than the first, since half a sentence has set the pattern. And *cheese* is not what it had in mind. Seen this way a
# language model is a machine that is surprised, and training makes it less so. Generation is the same table read the
# other way: pick a token that surprises little, append it, go on.
#
# **Takeaway.** The log-probability of a text of T tokens is a sum of T - 1 terms; here *Paris* costs 0.4 bits and
# *cheese* 34.2.

# %% [markdown]
# > **In production, 2026.** vLLM returns these terms on request: `SamplingParams(prompt_logprobs=0)` gives the
# > log-probability of every prompt token; the default is `None`, nothing, because the whole `[T, V]` table of logits
# > must then be computed and not only its last row
# > ([sampling_params.py](https://github.com/vllm-project/vllm/blob/00388f6573ccfcffad607b8c9ecdf341a4669ceb/vllm/sampling_params.py)).
# > For SmolLM2's 49,152 tokens and a prompt of 8,192 that table has 403 million elements, 1.6 GB in float32. This
# > project's engine takes `prompt_logprobs` too, and computes the table 64 rows at a time.

# %% [markdown]
# ## 2. Known text in one pass, unknown text in many
# <!-- minutes: 9 -->
#
# *Needs: CPU.*
#
# Section 1 ran the model once and used all its rows. That works because each row depends on its own past only: this
# is what *causal* attention means. The next cell tests it: it replaces one token at a time and notes whose logits
# change.
#
# **Think first.** Twelve tokens; token 4 is replaced. At which positions will the logits change?

# %%
from twophase_labs.kit.models import random_llama

small = random_llama()  # built like SmolLM2, but with one layer and random weights
tokens = torch.arange(12)
before = small(tokens[None]).logits[0]
changes = torch.zeros(12, 12)
for j in range(12):
    other = tokens.clone()
    other[j] = 99
    changes[:, j] = (small(other[None]).logits[0] - before).abs().amax(-1)
pictures.draw_dependence(changes)

# %% [markdown]
# Token 4 changes positions 4 to 11 and no other. Two things follow, and the whole workbook rests on them.
#
# 1. *If the text is known*, all positions can be computed side by side: row t needs tokens 0 to t, and they are
#    there. A training text is known, and so is a prompt.
# 2. *What a position has computed never changes* when the text grows behind it. Remember this one for section 5.

# %% [markdown]
# ```mermaid
# flowchart LR
#     subgraph unknown["text being written: a chain of passes"]
#         direction LR
#         p0["x₀"] --> p1["pass 1"] -->|"x₁"| p2["pass 2"] -->|"x₂"| p3["pass 3"] -->|"x₃"| p4["..."]
#     end
#     subgraph known["known text: one pass"]
#         direction LR
#         a["x₀ x₁ x₂ x₃"] --> b["all positions side by side"] --> r["rows 0, 1, 2, 3"]
#     end
# ```
#
# A text being written has its tokens one after another: the input of pass 2 is the *outcome* of pass 1. No number of
# GPUs shortens that chain.

# %%
known = torch.randint(0, 100, (200,), generator=torch.Generator().manual_seed(0))
one_pass = small(known[None]).logits[0]
many_passes = torch.stack([small(known[None, :n]).logits[0, -1] for n in range(1, 201)])
print(f"largest difference between the two: {(one_pass - many_passes).abs().max():.0e}")
one_s = seconds(lambda: small(known[None]), repeats=3)
many_s = seconds(lambda: [small(known[None, :n]) for n in range(1, 201)])
print(f"200 rows: {1e3 * one_s:.1f} ms in one pass, {1e3 * many_s:.0f} ms in 200, {many_s / one_s:.0f} times as long")

# %% [markdown]
# The same 200 rows, up to rounding. One pass is what training does, and what *prefill* will be in lab 2; a chain of
# passes is what writing does, and what *decode* will be in lab 3.

# %% [markdown]
# <!-- card 1.2 -->
# How many forward passes, *one after another*, does each job need at the least? A pass may hold as many tokens and as
# many sequences as you like.
#
# | key | job |
# |---|---|
# | `train` | one training step on a text of 1,000 tokens |
# | `score` | the log-probability of a given text of 1,000 tokens |
# | `write` | write 1,000 tokens after a prompt of one token |
# | `write 8` | write 8 different answers to that prompt, 1,000 tokens each |
# | `verify 5` | five tokens are proposed as a continuation; find out which of them greedy decoding would have written |
#
# Options: **a** 1 pass · **b** 5 passes · **c** 1,000 passes · **d** 8,000 passes

# %% tags=["exercise:1.2"]
answer_1_2 = {
    "train": "a",  # SOLUTION: a letter
    "score": "a",  # SOLUTION: a letter
    "write": "c",  # SOLUTION: a letter
    "write 8": "c",  # SOLUTION: a letter
    "verify 5": "a",  # SOLUTION: a letter
}

# %%
check("1.2")

# %% [markdown]
# The last line of the table is the idea of *speculative decoding*, in lab 5.
#
# **Takeaway.** A known text of 200 tokens needs 1 pass; the same 200 tokens written one after another need 200.

# %% [markdown]
# ## 3. The loop
# <!-- minutes: 13 -->
#
# *Needs: CPU, and the model.*
#
# To write, a model needs a loop around it. The simplest rule for choosing is **greedy**: always the likeliest token.
# It draws no random numbers, so two programs that decode greedily can be compared token for token, and throughout this
# workbook that is how an engine is shown to be right.

# %% [markdown]
# ```mermaid
# flowchart LR
#     T["text so far<br/>ids [T]"] --> M["model<br/>one pass over all of it"]
#     M --> L["logits [T, V]"]
#     L --> C["likeliest next token"]
#     C -->|"append"| T
#     C -->|"end token, or long enough"| S["stop"]
# ```
#
# Nothing is remembered between two passes but the text.

# %% [markdown]
# <!-- card 1.3 -->
# This exercise is open: write the body. In each pass run the model over the whole text, append the likeliest next
# token, and stop after the end token:
#
# $$x_{T} = \arg\max_{v}\; \mathrm{logits}[T-1, v]$$
#
# `count_up`, in the examples, stands in for a model: it is called in the same way, and after token n it predicts n + 1.

# %% tags=["setup"]
from twophase_labs.autoregression.toy import count_up

count_up(torch.tensor([[3, 4]])).logits  # [B, T, V]: a batch of one text, two positions, ten tokens


# %% tags=["exercise:1.3"]
def greedy(model, ids, num_new, eos_id):
    """Extend `ids` by up to `num_new` tokens, each the likeliest after the text so far.

    Args:
        model: `model(batch).logits` is [B, T, V] for a `batch` of token ids [B, T].
        ids: [T] token ids, T >= 1; not changed.
        num_new: 0 or more. Each new token takes one pass, and no pass follows the last.
        eos_id: The end token. It ends the text once the loop has appended it; in the prompt it ends nothing.

    Returns:
        [T + n] token ids, the prompt in front, n <= `num_new`.

    >>> greedy(count_up, torch.tensor([3, 4]), 2, eos_id=0)
    tensor([3, 4, 5, 6])
    >>> greedy(count_up, torch.tensor([3, 4]), 8, eos_id=7)
    tensor([3, 4, 5, 6, 7])
    """
    # BEGIN SOLUTION: the loop
    for _ in range(num_new):
        next_id = model(ids[None]).logits[0, -1].argmax()
        ids = torch.cat([ids, next_id[None]])
        if next_id == eos_id:
            break
    return ids
    # END SOLUTION


# %%
check("1.3")

# %% [markdown]
# **Against transformers.** Its `generate` is the loop most programs use. Same model, same prompt, greedy: if the
# tokens differ, one of the two is wrong.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.kit.timing import Timed

greedy = use("1.3")
prompt_ids = tokenizer("The largest planet of the solar system is", return_tensors="pt").input_ids[0]
timed_model = Timed(model)
yours = greedy(timed_model, prompt_ids, 30, tokenizer.eos_token_id)
theirs = transformers_greedy(model, prompt_ids, 30)
print(tokenizer.decode(yours))
print("token for token the same:", torch.equal(yours, theirs))
num_passes, last_length = len(timed_model.elapsed_s), len(yours) - 1
print(f"{num_passes} passes, over texts of {len(prompt_ids)} to {last_length} tokens")

# %% [markdown]
# **Think first.** Each of the 30 passes added one token. Did they all take the same time?

# %%
pictures.draw_steps({"your loop on SmolLM2": timed_model.elapsed_s}, first_length=len(prompt_ids))

# %% [markdown]
# The longer the text, the longer the wait for one more token. The loop hands the model the whole text in every pass,
# and the model computes positions again that have not changed since the pass before.
#
# **Takeaway.** 30 new tokens took 30 passes, over 8 tokens first and over 37 in the end.

# %% [markdown]
# > **In production, 2026.** Greedy is not what a server does unless told. vLLM's `SamplingParams` has `temperature=1.0`
# > ([sampling_params.py](https://github.com/vllm-project/vllm/blob/00388f6573ccfcffad607b8c9ecdf341a4669ceb/vllm/sampling_params.py)),
# > and `--generation-config auto`, the default, takes what the model's own `generation_config.json` says instead
# > ([model.py](https://github.com/vllm-project/vllm/blob/0052a5b818980ce8a0477706aaf9f75bd5af72cd/vllm/config/model.py)).
# > So the same request may be sampled differently for two models: for a comparison token for token set `temperature=0`,
# > and do not rely on defaults. A default of `max_tokens` can be small, too: vLLM's is 16.

# %% [markdown]
# ## 4. Counting the waste
# <!-- minutes: 13 -->
#
# *Needs: CPU.*
#
# Start from one token and write T more. Without memory, pass t computes t positions. If everything computed were kept,
# each pass would compute one.

# %%
pictures.draw_passes(num_prompt=1, num_new=12)

# %% [markdown]
# Green is computed in this pass; dotted was computed before and is kept. On the left a triangle, on the right its edge.
#
# **Think first.** One token of prompt, 100 tokens written. How many times as many positions does the loop without a
# cache compute? Write a number down; the table after the exercise has it.

# %% [markdown]
# <!-- card 1.4 -->
# Open: count what a generation computes. Two counts matter. *Positions* that go through the model, summed over all
# passes. *Pairs*: the query at position p looks at the keys 0 to p and so makes p + 1 pairs; add them up over all
# queries computed. The first pass reads the prompt, each later pass comes after one more token; the last token is
# chosen, but never read.


# %% tags=["exercise:1.4"]
def count_work(num_prompt, num_new, cached):
    """Count what a generation computes.

    Args:
        num_prompt: Tokens of the prompt, 1 or more.
        num_new: Tokens written, 0 or more: as many passes.
        cached: Whether positions computed in earlier passes are kept, or computed again in each pass.

    Returns:
        (positions, pairs), two whole numbers.

    >>> count_work(2, 3, cached=False)  # passes over 2, 3 and 4 positions; 3 + 6 + 10 pairs
    (9, 19)
    >>> count_work(2, 3, cached=True)  # passes over 2, 1 and 1 positions; 3 + 3 + 4 pairs
    (4, 10)
    """
    # BEGIN SOLUTION: count pass by pass
    num_positions = num_pairs = start = 0
    for length in range(num_prompt, num_prompt + num_new):
        num_positions += length - start
        num_pairs += sum(position + 1 for position in range(start, length))
        if cached:
            start = length
    return num_positions, num_pairs
    # END SOLUTION


# %%
check("1.4")

# %%
# NBVAL_CHECK_OUTPUT
count_work = use("1.4")
print("times as much without a cache as with one, from one token of prompt:")
for T in (10, 100, 1_000):
    without, cached = count_work(1, T, cached=False), count_work(1, T, cached=True)
    print(
        f"T = {T:5,}: {without[0]:7,} positions against {cached[0]:5,}, {without[0] / cached[0]:5.1f} times; "
        f"pairs {without[1] / cached[1]:5.1f} times"
    )

# %% [markdown]
# In formulas, from one token of prompt: without a cache $\sum_{t=1}^{T} t = T(T+1)/2$ positions; with one, T: a ratio
# of (T + 1) / 2, which grows without bound. One thing remains even with a cache: a new query still looks at *all* keys
# before it. The pairs fall from about T³/6 to T²/2, not to T. A decode step still gets slower as the text grows; lab 3
# measures by how much.
#
# **Takeaway.** For 100 tokens the loop without a cache computes 50.5 times as many positions as one with it, and 34.0
# times as many pairs.

# %% [markdown]
# ## 5. The cache
# <!-- minutes: 40 -->
#
# *Needs: CPU.*
#
# What exactly should be kept? Look at one attention block. A position's query meets the keys of all positions before
# it, and its result is a mix of their values. So the past is needed, but only as **keys and values**. By section 2
# these never change once computed. Past *queries* are never needed again: hence a **KV cache**, and not a QKV cache.

# %% [markdown]
# ```mermaid
# flowchart LR
#     N["new tokens"] --> E["embed<br/>at their positions"]
#     E --> Q["queries"]
#     E --> K["new keys"]
#     E --> V["new values"]
#     K -->|append| C[("cache:<br/>all keys and values")]
#     V -->|append| C
#     Q --> A["attention"]
#     C --> A
#     A --> O["logits of the new tokens"]
# ```
#
# Everything but the cache is as long as what is *new*. The model of this section is that picture and nothing else. It
# is small enough to read whole; only the attention is missing, which you write:

# %%
from twophase_labs.autoregression.toy import ToyModel
from twophase_labs.kit.open_engine import show_source

show_source(ToyModel)

# %% [markdown]
# **The mask.** Without a cache there are as many queries as keys, and the mask is the triangle that you know. With a
# cache there are L new queries and S keys, and the queries are the *last* L of the S positions.

# %%
triangle = torch.ones(6, 6).tril().bool()
pictures.draw_visible(
    {"6 new tokens, nothing cached": triangle, "4 cached, 2 new": triangle[4:], "5 cached, 1 new": triangle[5:]}
)

# %% [markdown]
# Behind a cache the mask is the lower part of the triangle. A single new token sees everything: its mask hides
# nothing, so a decode step often has none, and a wrong mask is noticed late.

# %% [markdown]
# <!-- card 1.5 -->
# Causal attention for L queries that are the last of S positions. `q` is `[B, L, D]`, `k` and `v` are `[B, S, D]`.
#
# $$\mathrm{out}_i = \sum_{j \le p_i} \mathrm{softmax}_j\!\left(\frac{q_i \cdot k_j}{\sqrt D}\right) v_j,
# \qquad p_i = S - L + i$$
#
# ```python
# attend(q, k, v)[:, -1:] == attend(q[:, -1:], k, v)                  # up to rounding: the last query alone
# attend(q, k, torch.ones_like(v)) == torch.ones_like(q)              # weights add up to one
# ```


# %% tags=["exercise:1.5"]
def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    scores = q @ k.mT / q.shape[-1] ** 0.5  # SOLUTION: [B, L, S], every query with every key
    query_positions = torch.arange(S - L, S)  # SOLUTION: the positions of the L queries
    visible = torch.arange(S) <= query_positions[:, None]  # [L, S]
    scores = scores.masked_fill(~visible, -torch.inf)  # SOLUTION: the scores, the hidden ones without effect
    weights = scores.softmax(-1)  # SOLUTION: weights that add up to one for each query
    return weights @ v


# %%
check("1.5")

# %% [markdown]
# **First without a cache.** The whole model in three lines: every position is embedded, projected and attended to, in
# every pass.

# %%
attend = use("1.5")


def recompute(toy, ids):
    x = toy.embed(ids, start=0)
    attended = attend(*toy.project(x))
    return toy.logits(x, attended)


recompute(ToyModel(), torch.tensor([[3, 1, 4, 1, 5]])).shape

# %% [markdown]
# **Then with one.** The cache is a pair of tensors `(keys, values)`, each `[B, S, D]`; an empty one is `[B, 0, D]`.
# Three things go wrong most often, and none of them raises an error: the new tokens are embedded at position 0 again;
# what is new is attended to but not kept; or the past is projected once more, which costs everything the cache was to
# save.

# %% [markdown]
# <!-- card 1.6 -->
# One pass over `new_ids` (`[B, L]`) behind a cache of S tokens. Return the logits of the new tokens, and the cache of
# S + L.
#
# $$K \leftarrow [K;\; x W_K], \qquad V \leftarrow [V;\; x W_V], \qquad x = E[\text{new ids}] + P[S : S + L]$$
#
# `toy.embed(ids, start)`, `toy.project(x)` and `toy.logits(x, attended)` are there; `attend` is yours.
#
# ```python
# logits, cache = step(toy, ids, toy.empty_cache(B))        # nothing cached: what recompute(toy, ids) gives
# logits, cache = step(toy, more_ids, cache)                # the last rows of recompute(toy, ids and more_ids)
# ```


# %% tags=["exercise:1.6"]
def step(toy, new_ids, cache):
    old_k, old_v = cache
    x = toy.embed(new_ids, old_k.shape[1])  # SOLUTION `old_k.shape[1]`: the position of the first new token
    q, new_k, new_v = toy.project(x)  # SOLUTION: queries, keys and values of what is new
    k = torch.cat([old_k, new_k], dim=1)  # SOLUTION: all keys
    v = torch.cat([old_v, new_v], dim=1)  # SOLUTION: all values
    return toy.logits(x, attend(q, k, v)), (k, v)  # SOLUTION `attend(q, k, v)`: the attention


# %%
check("1.6")

# %% [markdown]
# **Equal logits.** A text of 120 tokens, once in one pass without a cache, once cut into pieces of any size. The cache
# must not care how the text was cut; lab 2 cuts prompts into chunks for just this reason.

# %%
from twophase_labs.autoregression.published import BATCH, NEW, PROMPT, published_setting

step = use("1.6")
toy, prompts = published_setting()
text = torch.randint(0, 100, (1, 120), generator=torch.Generator().manual_seed(1))
cache, rows = toy.empty_cache(1), []
for piece in text.split([50, 1, 1, 1, 40, 7, 20], dim=1):
    logits, cache = step(toy, piece, cache)
    rows.append(logits)
difference = (torch.cat(rows, dim=1) - recompute(toy, text)).abs().max()
print(f"largest difference of a logit: {difference:.0e}; the cache holds {cache[0].shape[1]} tokens")

# %% [markdown]
# <!-- card 1.7 -->
# Open: greedy generation with a cache. The first pass reads the prompt (*prefill*), each later one a single token
# (*decode*). The loop knows no model: it is given a function `step(new_ids, cache)`, so that the same loop can write
# with the toy model, with SmolLM2, and in section 12 with a real engine. (For the toy model that is your `step` with
# `toy` filled in: `partial` does so, in the cell after the check.)


# %% tags=["exercise:1.7"]
def generate(step, cache, prompt, num_new):
    """Extend each text of a batch by `num_new` greedily chosen tokens, and let `step` read each token once.

    The first call of `step` reads the whole prompt, each later one a single new token.

    Args:
        step: `step(new_ids, cache)` runs the model over `new_ids` [B, L], L >= 1, behind `cache`. It returns
            (logits, cache): the last row `logits[:, -1]` predicts each text's next token, and the new cache holds
            `new_ids` too.
        cache: An empty cache. It may be anything, for only `step` looks into it.
        prompt: [B, T] token ids, T >= 1; not changed.
        num_new: 0 or more. Nothing ends a text early.

    Returns:
        [B, T + num_new] token ids. The last one need not be read.

    >>> def after(new_ids, num_read):  # after token n it predicts n + 1; its cache is a number
    ...     return torch.nn.functional.one_hot((new_ids + 1) % 10, 10), num_read + new_ids.shape[1]
    >>> generate(after, 0, torch.tensor([[3]]), 2)
    tensor([[3, 4, 5]])
    >>> generate(after, 0, torch.tensor([[3, 7], [1, 1]]), 2)
    tensor([[3, 7, 8, 9],
            [1, 1, 2, 3]])
    """
    # BEGIN SOLUTION: the loop
    ids = unread = prompt
    for _ in range(num_new):
        logits, cache = step(unread, cache)
        unread = logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, unread], dim=1)
    return ids
    # END SOLUTION


# %%
check("1.7")

# %% [markdown]
# **How much is it worth?** One published tutorial for such a toy model reports 3.58 s without a cache and 0.163 s with
# one, on an NVIDIA T4, for a batch of 10,000, a prompt of 50 tokens and 100 new ones. The next cell has their ratio,
# and what your count says about it. Take the two numbers as a report: the program that goes with them falls into one of
# the two traps of timing on a GPU.
#
# - *The call returns before the work is done.* A GPU works through a queue; Python only fills it. A clock that is read
#   after the call has timed the filling. Wait with `torch.cuda.synchronize()` before you start the clock and before you
#   read it. (The tutorial does neither.)
# - *The first call is another one.* It compiles, loads libraries and allocates. Call once before you measure.
#
# This workbook's clock waits, and takes the best of several calls, since other programs only ever add time:

# %%
from twophase_labs.kit import timing

show_source(timing.Timed.__call__)

# %%
# NBVAL_CHECK_OUTPUT
without, cached = count_work(PROMPT, NEW, cached=False), count_work(PROMPT, NEW, cached=True)
print(f"reported for a T4, batch 10,000: {3.58 / 0.163:.1f} times")
print(f"positions computed: {without[0]:,} against {cached[0]:,}, {without[0] / cached[0]:.1f} times")
print(f"query-key pairs: {without[1]:,} against {cached[1]:,}, {without[1] / cached[1]:.1f} times")
print(f"here: batch {BATCH}, prompt {PROMPT}, {NEW} new tokens")

# %% [markdown]
# **Think first.** How many times faster will `generate` be than recomputing, on this machine?

# %%
from functools import partial

generate = use("1.7")


def write_recomputing(toy, ids, num_tokens):
    for _ in range(num_tokens):
        chosen = recompute(toy, ids)[:, -1:].argmax(-1)
        ids = torch.cat([ids, chosen], dim=1)
    return ids


def write_cached(toy, ids, num_tokens):
    return generate(partial(step, toy), toy.empty_cache(len(ids)), ids, num_tokens)


print("same texts:", torch.equal(write_recomputing(toy, prompts, NEW), write_cached(toy, prompts, NEW)))
without_s = seconds(lambda: write_recomputing(toy, prompts, NEW), repeats=2)
with_s = seconds(lambda: write_cached(toy, prompts, NEW), repeats=5)
print(f"without a cache {without_s:.3f} s, with a cache {with_s:.3f} s, {without_s / with_s:.1f} times as fast")

# %% [markdown]
# **Where it comes from.** The same run, pass by pass. It is an experiment to play with: replace `prompts` by
# `torch.randint(0, 100, (1, 50))` in the first line, or by another length. With a single sequence, what is left of the
# advantage? Compare the two curves at the left and at the right end.

# %%
ids = prompts
recomputing, caching = Timed(recompute, repeats=3), Timed(step, repeats=3)
cache = toy.empty_cache(len(ids))
for _ in range(NEW):
    logits = recomputing(toy, ids)
    _, cache = caching(toy, ids[:, cache[0].shape[1] :], cache)
    ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
pictures.draw_steps({"without a cache": recomputing.elapsed_s, "with a cache": caching.elapsed_s}, PROMPT)

# %% [markdown]
# Without a cache every pass takes longer than the one before. With a cache, the first pass, over the prompt, takes as
# long as without one; every later pass is short. A count of positions is a first estimate and no more. A pass over a
# single token has little to multiply: it starts small operations, copies the cache (`torch.cat` makes a new one in each
# pass) and reads it. That lowers the ratio. Large passes have another cost: their tables of scores no longer fit into
# the processor's caches. That raises it. Do not expect the tutorial's 22: machine and batch differ.

# %% [markdown]
# **Takeaway.** With a cache, 50 + 100 tokens take 149 positions instead of 9,950, and the text is the same.

# %% [markdown]
# ## 6. The surprise again
# <!-- minutes: 9 + 4 -->
#
# *Needs: CPU, and the model.*
#
# Back to SmolLM2, to the same 40 tokens, and to a written token that took so much longer than one that was read. Your
# `generate` now writes with a cache: after the first pass, a pass computes one position instead of the whole text.
# `with_cache` lets transformers keep K and V, and makes of its model a `step`:

# %%
from twophase_labs.autoregression.toy import with_cache

show_source(with_cache)

# %% [markdown]
# <!-- card 1.8 -->
# **Think first.** One token written *with* the cache takes as long as how many tokens read? If repetition were the
# whole story, the answer would be 1. (A factor of 2 counts as close.)

# %% tags=["exercise:1.8"]
guess_1_8 = 8  # SOLUTION: how many times as long

# %%
check("1.8")

# %%
from statistics import median

timed_step = Timed(with_cache(model))
written = generate(timed_step, None, story[None], 11)[0]  # 11: the last token needs no step of its own
print("the same text as transformers writes:", torch.equal(written, transformers_greedy(model, story, 11)))
read_s = seconds(lambda: model(story[None]), repeats=3) / len(story)
write_s = seconds(lambda: transformers_greedy(model, story, 10, use_cache=False)) / 10  # again: machines drift
cached_s = median(timed_step.elapsed_s[1:])  # the first step read the prompt
measured("1.8", cached_s / read_s)

# %%
pictures.draw_per_token({"read": read_s, "written, no cache": write_s, "written, with a cache": cached_s})

# %% [markdown]
# The cache removed the repetition, and a gap is left. To see what it is made of, run a single pass over more and more
# tokens:

# %%
for num_tokens in (1, 5, 10, 40):
    pass_s = seconds(lambda n=num_tokens: model(story[None, :n]), repeats=5)
    print(f"a pass over {num_tokens:2} tokens: {1e3 * pass_s:5.1f} ms, {1e3 * pass_s / num_tokens:5.1f} ms per token")

# %%
# NBVAL_CHECK_OUTPUT
num_weights = sum(weight.numel() for weight in model.parameters())
print(f"{num_weights:,} weights of {model.dtype.itemsize} bytes: {num_weights * model.dtype.itemsize:,} bytes")

# %% [markdown]
# Compare the first line with the last: one token instead of forty does not make a pass forty times shorter. Each pass
# goes through all the weights of the model, once, whether for one token or for forty. So a pass over a prompt shares
# that cost among its tokens, and a decode step pays it for one. Lab 3 shows how close a step can get to the time of one
# pass over the weights, and how requests that decode together share it.
#
# The bars above are this workbook's subject in one picture. One large pass, busy with arithmetic; then many small ones,
# busy with memory: **two phases of one model, two workloads**.
#
# **What a token costs.** If the machine costs 1 dollar per hour and runs one request at a time, these times are prices:

# %%
for name, token_s in {"read": read_s, "written, no cache": write_s, "written, with a cache": cached_s}.items():
    dollars = 1e6 * token_s / 3600
    print(f"a million tokens {name:22} {dollars:6.2f} dollars, {token_s / read_s:5.1f} times the price of reading")

# %% [markdown]
# A lower bound for a decode step, on an A100 and on an H100, is the time to read all weights once:

# %%
# NBVAL_CHECK_OUTPUT
for card, bytes_per_s in (("A100, 40 GB", 1.555e12), ("H100 SXM", 3.35e12)):
    for name, weight_bytes in (("8 billion weights", 16e9), ("13 billion weights", 26e9)):
        token_s = weight_bytes / bytes_per_s
        print(
            f"{card:11} {name:18} of 2 bytes: at least {1e3 * token_s:5.2f} ms a step, 100 tokens {100 * token_s:.2f} s"
        )

# %% [markdown]
# **Takeaway.** A pass over 1 token goes through the same 538,060,032 bytes of weights as a pass over 40: that is what
# is left when the repetition is gone.

# %% [markdown]
# > **In production, 2026.** No engine decodes without this cache: vLLM's
# > [CacheConfig](https://github.com/vllm-project/vllm/blob/002f10e0cfa1373a19a0d2756598a34b700d20e5/vllm/config/cache.py)
# > has settings for its size, dtype and block size, and none to go without. At its memory's full speed an H100 reads 16
# > GB of weights in 4.78 ms, for a prompt of 40 tokens as for one new token: for a single request, a written token
# > costs as much as 40 read ones. A figure often quoted, 2 seconds for 100 tokens of a model of 13 billion weights on
# > an A100, is near the bound, 1.67 s. Prices follow: in November 2026 OpenAI charged four to eight times as much for
# > output tokens as for input tokens ([price
# > list](https://raw.githubusercontent.com/api-evangelist/posts/main/_posts/2026-11-06-openai-api-pricing-what-every-model-costs-per-million-tokens.md),
# > as read by a third party).

# %% [markdown]
# ### Going further: growth by the clock
#
# Now the time of both loops as the text grows. The model is section 2's random one, made wider, which has no end token.
#
# **Think first.** If the time follows a power law, t = a·T^b, it is a straight line on two logarithmic axes, and its
# slope is the exponent b. Which slope for which loop? Will short texts lie on the line too?

# %%
start = torch.zeros(1, dtype=torch.long)
curves = {"without a cache": {}, "with a cache": {}}
wider = random_llama(width=128)
generate(with_cache(wider), None, start[None], 3)  # the first call is slower: it sets things up
for T in (10, 30, 100, 300, 1_000):
    repeats = max(1, 100 // T)  # short times are the noisiest
    curves["without a cache"][T] = seconds(lambda T=T: greedy(wider, start, T, eos_id=-1), repeats)
    curves["with a cache"][T] = seconds(lambda T=T: generate(with_cache(wider), None, start[None], T), repeats)
pictures.draw_growth(curves, fit_from=100)

# %% [markdown]
# With a cache the time grows about in proportion to T: a query looks at all keys, but for such short texts and so small
# a model that is little of its work. Without one it heads for T², which it approaches only for long texts: every pass
# has a fixed cost (Python, many small operations to start) that dominates short ones. Costs that show only at scale are
# common in this field, which is why this workbook counts first and measures second.

# %% [markdown]
# ## 7. Bytes per token
# <!-- minutes: 12 -->
#
# *Needs: CPU.*
#
# The cache buys time with memory. Every token leaves a key and a value in every layer, and they stay until the
# sequence ends. An engine that serves many requests at once is soon full of them, so the first thing to know about a
# model is how many bytes one token leaves behind.

# %% [markdown]
# ```mermaid
# flowchart LR
#     T["one new token"] --> A["layer 1"] --> B["layer 2"] --> C["..."] --> Z["layer L"]
#     A --> A1["K: H_kv × D elements<br/>V: H_kv × D elements"]
#     B --> B1["K: H_kv × D<br/>V: H_kv × D"]
#     Z --> Z1["K: H_kv × D<br/>V: H_kv × D"]
# ```

# %% [markdown]
# <!-- card 1.9 -->
# Read a model's `config.json` and say how many bytes of K and V one token takes, with $b$ bytes per element:
#
# $$\text{bytes per token} = 2 \cdot L \cdot H_{kv} \cdot D \cdot b$$
#
# ```python
# >>> tiny = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "hidden_size": 32}
# >>> kv_bytes_per_token(tiny, 2)        # 2 · 2 layers · 1 head · 8 elements · 2 bytes
# 64
# ```
#
# Files differ: an old one has no `num_key_value_heads` (every head keeps its own), and some state a `head_dim`, which
# then counts; in the others it is the width divided by the number of attention heads.


# %% tags=["exercise:1.9"]
def kv_bytes_per_token(config, bytes_per_value):
    num_heads = config["num_attention_heads"]
    num_kv_heads = config.get("num_key_value_heads", num_heads)  # SOLUTION: heads that keep K and V
    head_dim = config.get("head_dim", config["hidden_size"] // num_heads)  # SOLUTION: elements of a head
    return 2 * config["num_hidden_layers"] * num_kv_heads * head_dim * bytes_per_value  # SOLUTION: bytes


# %%
check("1.9")

# %% [markdown]
# Five models in two-byte elements. The first is read from the real file. The last two are of an older kind, 5,120 wide,
# and all their 40 heads keep keys and values: OPT-13B has 40 layers, and the last row is a textbook example of the same
# width with 32 layers. The first length is the window of such older models; the others are those of newer ones.

# %% tags=["setup"]
GB, GIB = 10**9, 2**30  # what a card's data sheet counts in, and what a computer counts in

# %%
import json

from twophase_labs.autoregression.serving import open_engine

llama = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
MODELS = {
    "SmolLM2-135M": json.loads((open_engine().model_dir / "config.json").read_text()),
    "Llama-3-8B": llama,
    "70B-style": llama | {"num_hidden_layers": 80, "num_attention_heads": 64, "hidden_size": 8192},
    "OPT-13B": {"num_hidden_layers": 40, "num_attention_heads": 40, "hidden_size": 5120},
    "textbook, 32 layers": {"num_hidden_layers": 32, "num_attention_heads": 40, "hidden_size": 5120},
}

# %%
kv_bytes_per_token = use("1.9")
per_token = {name: kv_bytes_per_token(config, 2) for name, config in MODELS.items()}

# %%
# NBVAL_CHECK_OUTPUT
for name, num_bytes in per_token.items():
    sizes = [f"{num_tokens * num_bytes / GIB:8.2f}" for num_tokens in (2_048, 8_192, 131_072, 1_048_576)]
    print(f"{name:14} {num_bytes:7,} bytes a token; GiB for 2 Ki, 8 Ki, 128 Ki, 1 Mi tokens: {' '.join(sizes)}")

# %% [markdown]
# A token, some four bytes of English, becomes 128 KiB of cache in Llama-3-8B. The 70B-style model has 320 KiB a token
# (327,680 bytes, often printed as 320 KB), and one conversation of 8,192 tokens takes 2.5 GiB; the older model of 32
# layers needs half of that for a quarter of the length (1.25 GiB, often printed as 1.25 GB): it has fewer layers, but
# each of its heads keeps keys and values of its own.
#
# Does it hold? Ask the engine's own tensors. Each layer has blocks of 16 slots for K and as many for V.

# %%
kv_cache = open_engine().kv_cache
num_slots = kv_cache.num_blocks * kv_cache.spec.block_size
num_bytes = sum(layer.k.nbytes + layer.v.nbytes for layer in kv_cache.layers)
bytes_per_value = kv_cache.spec.dtype.itemsize
print(f"{len(kv_cache.layers)} layers, K of each {list(kv_cache.layers[0].k.shape)} in {kv_cache.layers[0].k.dtype}")
print(f"{num_bytes:,} bytes / {num_slots:,} slots = {num_bytes // num_slots:,} bytes a token")
print(
    f"your formula: {kv_bytes_per_token(MODELS['SmolLM2-135M'], bytes_per_value):,} with {bytes_per_value} bytes each"
)

# %% [markdown]
# On a CPU this engine computes in four-byte elements, so the count is twice the one in the table. How it grows:

# %%
import matplotlib.pyplot as plt

from twophase_labs.autoregression.memory_pictures import draw_budgets, draw_cache_growth

drawn = ("SmolLM2-135M", "Llama-3-8B", "70B-style", "OPT-13B")
draw_cache_growth({name: per_token[name] for name in drawn}, max_tokens=131_072)
plt.show()

# %% [markdown]
# The lines are straight and parallel: nothing but length counts, and a model's place is fixed by its layers and its
# key/value heads. The number of weights is no guide: the 70B-style line lies *below* that of OPT-13B, which has a
# fraction of its weights. The next section shows how.
#
# **Open the engine.** The engine computes the same in one line, and has one argument that yours has not:

# %%
from twophase import memory

show_source(memory.kv_bytes_per_token)

# %% [markdown]
# What is `scale_bytes` for, and why does it not depend on `head_dim`?
#
# <details><summary>Answer</summary>
#
# K and V may be stored in one byte per element. A row of `head_dim` such elements then shares one scale, which is kept
# beside it: bytes per token and head, and not per element (lab 3).
#
# </details>
#
# **Takeaway.** A token of Llama-3-8B leaves 131,072 bytes behind, and 8,192 tokens of a 70B-style model 2.5 GiB.

# %% [markdown]
# > **In production, 2026.** `--kv-cache-dtype auto`, the default in
# > [vLLM](https://github.com/vllm-project/vllm/blob/002f10e0cfa1373a19a0d2756598a34b700d20e5/vllm/config/cache.py) and
# > [SGLang](https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md),
# > stores K and V in the model's dtype, two bytes as a rule; `fp8_e4m3` halves your $b$. TensorRT-LLM's
# > [KvCacheConfig](https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html) has
# > `dtype='auto'`. At its memory's full speed an H100 takes 0.80 ms in every decode step to read the 2.5 GiB of one
# > sequence of 8,192 tokens of the 70B-style model; 52 such sequences have as many bytes as the model's 140 GB of
# > weights.

# %% [markdown]
# ## 8. Fewer heads to remember
# <!-- minutes: 7 -->
#
# *Needs: CPU, and the model.*
#
# In the transformer of 2017 every head has keys and values of its own (multi-head attention, **MHA**). All heads may
# share one pair (multi-query, **MQA**, arXiv:1911.02150), or groups of neighbours may share (grouped-query, **GQA**,
# arXiv:2305.13245). Query heads stay as many as they were; only the cache shrinks, by $g = H / H_{kv}$. Query head $h$
# reads key/value head $\lfloor h / g \rfloor$.

# %% [markdown]
# ```mermaid
# flowchart TB
#     subgraph MQA["MQA, g = 4"]
#         direction TB
#         c0["q0"] --> k0["kv0"]
#         c1["q1"] --> k0
#         c2["q2"] --> k0
#         c3["q3"] --> k0
#     end
#     subgraph GQA["GQA, g = 2"]
#         direction TB
#         b0["q0"] --> j0["kv0"]
#         b1["q1"] --> j0
#         b2["q2"] --> j1["kv1"]
#         b3["q3"] --> j1
#     end
#     subgraph MHA["MHA, g = 1"]
#         direction TB
#         a0["q0"] --> i0["kv0"]
#         a1["q1"] --> i1["kv1"]
#         a2["q2"] --> i2["kv2"]
#         a3["q3"] --> i3["kv3"]
#     end
# ```

# %%
# NBVAL_CHECK_OUTPUT
for kind, num_kv_heads in (("MHA", 32), ("GQA", 8), ("MQA", 1)):
    num_bytes = kv_bytes_per_token(llama | {"num_key_value_heads": num_kv_heads}, 2)
    print(f"{kind}: {num_kv_heads:2} KV heads, {num_bytes:7,} bytes a token, {32 // num_kv_heads:2}x less than MHA")

# %% [markdown]
# **Think first.** The popular mistake is `head % num_kv_heads`. It has the right range, it loads every key/value head
# equally, and all shapes fit. What will SmolLM2 (9 heads, 3 kept) say with it: the same, something a little worse, or
# nonsense? Decide before you run the cell. Both maps run in the real engine, over the same weights.

# %%
from twophase_labs.autoregression.serving import greedy_text, model_with_heads

maps = {
    "neighbours": lambda head, num_heads, num_kv_heads: head // (num_heads // num_kv_heads),
    "remainder": lambda head, num_heads, num_kv_heads: head % num_kv_heads,
}
for name, kv_head in maps.items():
    answer = greedy_text(model_with_heads(kv_head), "The capital of France is", 14).replace("\n", " ")
    print(f"{name:10} heads read {[kv_head(head, 9, 3) for head in range(9)]}: The capital of France is{answer}")

# %% [markdown]
# No error, no warning, and nothing that a test of shapes would notice. Compare the two lists: six of the nine heads
# read keys they were not trained with, and the model is lost. Whenever you write attention for grouped heads, test it
# against something that knows the map.
#
# **What sharing costs.** Fewer heads also hold less. How much less? Take SmolLM2's three key/value heads and put their
# mean in the place of each: multi-query attention, in one layer, in ten, in all. `text_log_prob` of section 1 is the
# judge.

# %%
from twophase_labs.autoregression.heads import merged_kv_heads

text = (
    "The lighthouse keeper climbed the stairs each evening before sunset. He trimmed the wick, filled the lamp with "
    "oil, and wrote the weather in a book. On clear nights he could see the harbour of the next town."
)
text_ids = tokenizer(text, return_tensors="pt").input_ids[0]

# %%
# NBVAL_CHECK_OUTPUT
for num_layers in (0, 1, 10, 30):
    with merged_kv_heads(model, num_layers):
        log_prob = float(text_log_prob(model(text_ids[None]).logits[0], text_ids))
    bits = -log_prob / math.log(2) / (len(text_ids) - 1)
    print(f"one key/value head in {num_layers:2} of 30 layers: {bits:4.1f} bits per token")

# %% [markdown]
# Merged without further training, the model is ruined: to know nothing about 49,152 tokens costs $\log_2 49152 = 15.6$
# bits.
# A model must be *trained* with shared heads. The GQA paper starts from such a mean and trains on with 5 % of the
# original compute; it reports that multi-query attention can lose quality, while grouped queries come close to MHA
# ([abstract](https://arxiv.org/abs/2305.13245)). That is why the models of section 7 keep 3 of 9, 8 of 32 or 8 of 64
# heads, and not one.
#
# **Takeaway.** Keeping 8 of 32 key/value heads takes a quarter of the bytes; merging the heads of a trained model
# without training it again takes SmolLM2 from 5.9 to 14.8 bits per token.

# %% [markdown]
# ## 9. A budget of memory
# <!-- minutes: 13 + 2 -->
#
# *Needs: CPU.*
#
# How many requests can one card serve at a time? Four things need its memory: the **weights**; a **workspace** for a
# step's activations, its logits and sampling buffers, for CUDA graphs, communication buffers and adapters (LoRA);
# **headroom** that is left free on purpose; and the **cache**, which gets the rest.
#
# The first card below is that of the first figure of the [vLLM paper](https://arxiv.org/abs/2309.06180), OPT-13B on an
# A100 of 40 GB; its split is often quoted as 65 % weights, 30 % cache and 5 % others. The second is a larger card with
# a smaller model.

# %%
weights_gb, workspace_gb, utilisation = 16, 4, 0.9
headroom_gb = 80 * (1 - utilisation)
cards = {
    "13 billion on 40 GB": {"weights": 26, "others": 0.05 * 40, "cache": 40 - 26 - 0.05 * 40},
    "8 billion on 80 GB": {
        "weights": weights_gb,
        "workspace": workspace_gb,
        "cache": 80 - weights_gb - workspace_gb - headroom_gb,
        "headroom": headroom_gb,
    },
}
draw_budgets(cards)
plt.show()

# %% [markdown]
# 13 billion weights of two bytes are 26 GB, and 26 of 40 is the 65 % of that picture. The exercise shows how little its
# 30 % is for such a model.

# %% [markdown]
# <!-- card 1.10 -->
# How many requests of `request_bytes` each fit beside the rest? The card has `card_gb`, of which only the share
# `utilisation` may be used at all; weights and workspace come off that. Sizes in GB are $10^9$ bytes (`GB`). Return
# a whole number (an `int`), never below 0.
#
# ```python
# >>> requests_that_fit(10, 4, 2 * GB)                  # 6 GB left
# 3
# >>> requests_that_fit(10, 4, 2 * GB, utilisation=0.9) # 5 GB left
# 2
# >>> requests_that_fit(10, 12, 2 * GB)                 # the weights alone are too large
# 0
# ```


# %% tags=["exercise:1.10"]
def requests_that_fit(card_gb, weights_gb, request_bytes, utilisation=1.0, workspace_gb=0):
    kv_bytes = card_gb * GB * utilisation - (weights_gb + workspace_gb) * GB  # SOLUTION: bytes left for K and V
    return max(0, int(kv_bytes // request_bytes))  # SOLUTION: whole requests, never fewer than none


# %%
check("1.10")

# %%
requests_that_fit = use("1.10")
request_bytes = 4_096 * per_token["Llama-3-8B"]

# %%
# NBVAL_CHECK_OUTPUT
opt_bytes = 2_048 * per_token["OPT-13B"]
print(f"OPT-13B on 40 GB: {requests_that_fit(40, 26, opt_bytes, workspace_gb=2)} requests of 2,048 tokens")
print(f"Llama-3-8B, 4,096 tokens: {request_bytes:,} bytes; 64 GB: {64 * GB:,}; 64 GiB: {64 * GIB:,}")
print(f"in 64 GB {requests_that_fit(80, 16, request_bytes)} requests, in 64 GiB {64 * GIB // request_bytes}")
for share in (0.9, 0.92):
    print(f"{share:.0%} of the card, 4 GB to work in: {requests_that_fit(80, 16, request_bytes, share, 4)} requests")
print(f"70 % of 80 GB for the cache: {requests_that_fit(0.7 * 80, 0, request_bytes)} requests; ", end="")
print(f"of 40 GB: {0.3 * 40:.0f} GB are left, OPT-13B's weights are 26")

# %% [markdown]
# 128 requests are often printed for an 80 GB card, and that is 64 GiB divided by 512 MiB. A gigabyte is 7 % smaller
# than a gibibyte; nine requests are lost in the difference. Vendors use both units, so ask the device:
# `torch.cuda.mem_get_info()` counts bytes. A rule of thumb gives 70 % of the card to the cache and 30 % to weights and
# activations. Here that is 56 GB, 104 requests, more than the 96 for which there is room beside the weights, 4 GB to
# work in and a tenth left free; on the first card the weights alone take 65 %, and the model does not load. So engines
# measure what weights and a step need, and give the cache the rest.

# %% [markdown]
# ### From concurrency to throughput
#
# **Little's law** holds for any system that requests enter and leave, in whatever order they are served:
#
# $$\text{requests inside} = \text{requests per second} \cdot \text{seconds each stays}$$
#
# A law wants a test. Ten requests of different lengths go to the engine at once; it runs four at a time, the others
# wait inside. We count the requests inside at every step, and separately note how long each stays.

# %%
from twophase_labs.autoregression.serving import serve

latencies_s, steps = serve([8, 14, 10, 6, 12, 8, 10, 14, 6, 8])
total_s = sum(step_s for step_s, _ in steps)
rate, stay_s = len(latencies_s) / total_s, sum(latencies_s) / len(latencies_s)
counted = sum(step_s * num_inside for step_s, num_inside in steps) / total_s
print(f"{rate:.3f} requests/s x {stay_s:.3f} s each = {rate * stay_s:.2f} inside; counted: {counted:.2f}")

# %% [markdown]
# The two agree to the last digit: the run begins and ends empty, so every second that a request spends inside is
# counted once on either side. Nothing was assumed about order or lengths. The law holds for any boundary. Drawn around
# the requests that run, and hold memory, it says that the number of requests that fit bounds throughput: for a given
# stay, twice as many inside means twice as many served per second. What raises the number:
#
# | lever | what it changes | where |
# |---|---|---|
# | fewer key/value heads | bytes per token | section 8 |
# | K and V in one byte | bytes per element | lab 3 |
# | memory given as it is needed | slots set aside and empty | section 10, lab 3 |
# | a shorter `max_tokens` | slots set aside, where the limit is reserved | section 10 |
# | prefixes shared between requests | tokens stored twice | lab 5 |

# %% [markdown]
# **Open the engine.** How the engine decides how many blocks it has:

# %%
from twophase.memory import num_blocks_that_fit

show_source(num_blocks_that_fit, first="free_bytes =", last="num_blocks =")

# %% [markdown]
# Your function subtracts the weights; this one does not. Where have they gone?
#
# <details><summary>Answer</summary>
#
# `free_memory_bytes` is asked after the weights are loaded, so they are gone from it already, as is whatever else
# runs on the device. `reserved_bytes` is the workspace, and `fraction` is taken of what is *free*, not of the card.
#
# </details>
#
# **Takeaway.** 64 GB beside the weights hold 119 requests of 512 MiB, not 128; with 4 GB to work in and a tenth of the
# card left free, 96.

# %% [markdown]
# > **In production, 2026.** The share has two meanings. vLLM's `--gpu-memory-utilization`, 0.92 by default, is of the
# > whole card: weights and a profiled step come off it, the cache gets the rest
# > ([cache.py](https://github.com/vllm-project/vllm/blob/002f10e0cfa1373a19a0d2756598a34b700d20e5/vllm/config/cache.py)).
# > SGLang's `--mem-fraction-static` is of the card too, for weights and cache together, and is chosen automatically
# > unless given ([server
# > arguments](https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md)).
# > TensorRT-LLM's `free_gpu_memory_fraction`, 0.9, is of what is free once the model is loaded
# > ([KvCacheConfig](https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html)), as this
# > engine's `kv_memory_fraction` is.

# %% [markdown]
# ### Going further
#
# <!-- card 1.11 -->
# The card is full: 119 requests inside at all times, each stays 12 seconds and gets 300 tokens. How many tokens per
# second does it produce? (Within 1 %.)

# %% tags=["exercise:1.11"]
answer_1_11 = 2975  # SOLUTION: tokens per second

# %%
check("1.11")

# %% [markdown]
# ## 10. In one piece
# <!-- minutes: 9 -->
#
# *Needs: CPU.*
#
# A request comes with a prompt and a limit on its whole length, `max_length`; where it will end is not known. (An
# engine's `max_tokens` counts the new tokens only.) The first engines kept K and V of a request in one tensor, so they
# set aside the whole limit, in one piece, when the request came. We replay that: 40 requests with random prompts,
# limits and lengths, in a small cache of 100 slots, one slot per token. A request that finds no free piece as long as
# its limit is rejected. (A real engine lets it wait; rejecting is easier to count.)

# %%
# NBVAL_CHECK_OUTPUT
from dataclasses import replace

from twophase_labs.autoregression.arrivals import random_requests, replay

arrivals = random_requests(40, seed=5)
limits = [arrival.max_length for arrival in arrivals]
unbounded = replay(arrivals, num_slots=10_000)
print(f"limits of {min(limits)} to {max(limits)} tokens, {np.mean(limits):.0f} on average")
peak = max(snapshot.num_written for snapshot in unbounded.snapshots)
print(f"if nothing were rejected, at most {peak} tokens would be stored at once")
aside = [snapshot.num_held for snapshot in unbounded.snapshots]
print(f"and {np.mean(aside):.0f} slots would be set aside on average, {max(aside)} at most")

# %% [markdown]
# <!-- card 1.12 -->
# So at every moment 100 slots could hold all the tokens stored then. How many of the 40 requests will be rejected?
# (Give or take 3.)

# %% tags=["exercise:1.12"]
guess_1_12 = 14  # SOLUTION: requests

# %%
check("1.12")

# %%
in_one_piece = replay(arrivals, num_slots=100)
limit_of = {arrival.name: arrival.max_length for arrival in arrivals}
unlucky = [name for name, cache in in_one_piece.rejected.items() if cache.num_free >= limit_of[name]]
measured("1.12", len(in_one_piece.rejected))

# %%
# NBVAL_CHECK_OUTPUT
exact = replay([replace(arrival, max_length=arrival.num_tokens) for arrival in arrivals], num_slots=100)
held, stored = (sum(getattr(s, name) for s in in_one_piece.snapshots) for name in ("num_held", "num_written"))
print(f"{len(arrivals)} requests, {len(in_one_piece.finished)} served, {len(in_one_piece.rejected)} rejected")
print(f"of these, {len(unlucky)} with enough slots free: {', '.join(unlucky)}")
print(f"of all slots that were set aside, {stored / held:.0%} held a token")
print(f"with limits that fit each request exactly, {len(exact.rejected)} is rejected")

# %% [markdown]
# (With exact limits one is still rejected, for its whole length is set aside when it comes, not as it grows.) The whole
# run, one column per step:

# %%
from twophase_labs.autoregression.slot_pictures import draw_replay, draw_slots

draw_replay(in_one_piece, "Set aside in one piece, a colour per request", fragmented=unlucky)
plt.show()

# %% [markdown]
# Now look at one moment: the rejection with the most slots free.

# %%
name = max(unlucky, key=lambda name: in_one_piece.rejected[name].num_free)
cache = in_one_piece.rejected[name]
title = f"{name} needs {limit_of[name]} slots, {cache.num_free} are free, and it is rejected"
draw_slots(cache, limit_of[name], title)
plt.show()

# %% [markdown]
# Two kinds of waste, then. Slots that are held and empty: **internal fragmentation**. Slots that are free and of no
# use, because no hole is long enough: **external fragmentation**. Tight limits cure the first, which is the point of a
# shorter `max_tokens`, but an answer's length is not known in advance. The cure for both is the one that operating
# systems found long ago: cut memory into equal *blocks*, give a sequence a block when its last one is full, and keep a
# table of which block comes next. Lab 3 builds it.
#
# **What blocks are worth.** Section 9 left 12 GB for K and V beside the weights of OPT-13B. Requests of random lengths,
# up to the model's window, fill them; before a request runs, its length is not known. Set aside for each: the whole
# window of 2,048 tokens; or the next power of two, if the length can be predicted that well; or blocks of 16, one
# when it is needed. (FasterTransformer and Orca did the first. The vLLM paper compares these rules in its section 6,
# as *Orca (Max)*, *Orca (Pow2)* and *vLLM*.)

# %%
# NBVAL_CHECK_OUTPUT
lengths = np.random.default_rng(0).exponential(500, 200).clip(16, 2048).astype(int)
slots = {
    "the window of 2,048": np.full(200, 2048),
    "the next power of two": 2 ** np.ceil(np.log2(lengths)).astype(int),
    "blocks of 16": -(-lengths // 16) * 16,
}
reserved_gb = {name: np.cumsum(each) * per_token["OPT-13B"] / GB for name, each in slots.items()}
print(f"requests of {np.mean(lengths):.0f} tokens on average")
print({name: int((gb <= 12).sum()) for name, gb in reserved_gb.items()}, "fit in 12 GB")

# %%
from twophase_labs.autoregression.memory_pictures import draw_reserved

draw_reserved(reserved_gb, room_gb=12)
plt.show()

# %% [markdown]
# **Takeaway.** Set aside in one piece, a cache that could hold every token rejects 14 of 40 requests, 4 of them with
# enough slots free; 46 % of the slots held a token. In the 12 GB that OPT-13B leaves on
# its card, blocks of 16 make room for 25 requests instead of 7.

# %% [markdown]
# > **In production, 2026.** vLLM, TensorRT-LLM and SGLang no longer reserve a limit. vLLM gives K and V in blocks of 16
# > tokens
# > ([cache.py](https://github.com/vllm-project/vllm/blob/002f10e0cfa1373a19a0d2756598a34b700d20e5/vllm/config/cache.py)),
# > TensorRT-LLM in blocks of 32 (`tokens_per_block`,
# > [KvCacheConfig](https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html)), SGLang token
# > by token (`--page-size 1`, [server
# > arguments](https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md)).
# > With blocks a short `max_tokens` frees no memory: it only lets a server guarantee that a request will end. The vLLM
# > paper measured what earlier engines lost to reservations (arXiv:2309.06180, figure 2).

# %% [markdown]
# ## 11. From logits to a token
# <!-- minutes: 30 + 8 -->
#
# *Needs: CPU, and the model.*
#
# The model gives a number for each of 49,152 tokens, and one has to be chosen. Always taking the likeliest is safe
# and dull, and small models then repeat themselves. So engines draw, from a distribution that is first put into shape
# by *logits processors*: functions from logits to logits, one after the other.

# %% [markdown]
# ```mermaid
# flowchart LR
#     L["logits"] --> T["temperature"] --> K["top-k"] --> P["top-p"] --> M["min-p"] --> S["softmax"]
#     S --> D["draw"] --> I["token"]
#     U["seed, position"] --> D
#     I --> E{"stop?"}
#     E -- no --> L
# ```
#
# A batch has a row per sequence, so all of them work on `[rows, V]`, each row by itself. A dropped token gets the
# logit $-\infty$, which softmax turns into probability 0.

# %% [markdown]
# <!-- card 1.13 -->
# We begin at the end. A uniform random number $u \in [0, 1)$ picks the first token whose running sum of probabilities
# exceeds $u$.
#
# $$\text{token} = \min\,\{\,i : p_0 + \dots + p_i > u \cdot \textstyle\sum_j p_j\,\}$$
#
# ```python
# >>> probs = torch.tensor([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0]])
# >>> draw(probs, torch.tensor([0.6, 0.0]))
# tensor([1, 1])
# ```
#
# The sum of all is 1 but for rounding. With 49,152 terms rounding matters: add in float64 and compare with $u$ times
# the last sum.


# %% tags=["exercise:1.13"]
def draw(probs, u):
    cdf = probs.double().cumsum(-1)  # SOLUTION: running sums, in float64
    target = u[:, None] * cdf[:, -1:]  # SOLUTION: for each row what its running sum has to exceed, [rows, 1]
    return (cdf <= target).sum(-1)  # SOLUTION: the first token whose running sum exceeds the target


# %%
check("1.13")

# %% [markdown]
# Does it draw what it should? The distribution is known exactly. Over many draws, a count strays from *probability
# times draws* by a known standard deviation, and by more than two of them in one case out of twenty: one of twelve
# outside the band is nothing unusual.

# %%
from twophase_labs.autoregression.sampling_pictures import draw_distributions, draw_residuals

draw = use("1.13")
probs = torch.randn(12, generator=torch.Generator().manual_seed(4)).softmax(-1)
u = torch.rand(20_000, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
counts = torch.bincount(draw(probs.expand(len(u), -1), u), minlength=12)
draw_residuals(counts, probs)
plt.show()

# %%
# NBVAL_CHECK_OUTPUT
expected = probs.double() * len(u)
chi_square = float(((counts - expected) ** 2 / expected).sum())
freedom = len(probs) - 1
print(f"chi-square {chi_square:.1f} with {freedom} degrees of freedom; about {freedom} is what chance gives")

# %% [markdown]
# ### Shaping the distribution
#
# How open is a text? Count the tokens, from the likeliest down, that hold 90 % of the probability:

# %%
from twophase_labs.autoregression.serving import first_probabilities

for opening in ("Once upon a time", "The capital of France is", "My favourite food is"):
    ordered, order = first_probabilities(opening).sort(descending=True)
    num_tokens = int((ordered.cumsum(-1) < 0.9).sum()) + 1
    best = [tokenizer.decode([token]) for token in order[:4].tolist()]
    print(f"{opening:26} {num_tokens:4} tokens hold 90 %; the likeliest are {best}")

# %% [markdown]
# For one opening it is a single token, for another ten, for a third hundreds; and behind them is a tail of tens of
# thousands of tokens that are nonsense one by one and likely enough together to spoil a long text. Four processors deal
# with this. Three are short enough to read:
#
# - **Temperature** $T > 0$ divides the logits: probabilities become proportional to $p^{1/T}$. Below 1 likely tokens
# get likelier, above 1 all become more alike. ($T = 0$ would divide by zero; engines take it to mean *the likeliest*.)
# - **Top-k** (arXiv:1805.04833) keeps the $k$ likeliest, whatever their probability, and what is exactly as likely as
#   the $k$-th, so that the result does not depend on how a device sorts ties.
# - **Min-p** (arXiv:2407.01082) keeps what is at least `share` times as likely as the likeliest: no counting, no
#   sorting.


# %%
def apply_temperature(logits, temperature):
    return logits / temperature


def keep_top_k(logits, k):
    kth = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < kth, -math.inf)


def keep_min_p(logits, share):
    probs = torch.softmax(logits, -1)
    return logits.masked_fill(probs < share * probs.amax(-1, keepdim=True), -math.inf)


# %% [markdown]
# <!-- card 1.14 -->
# The fourth is yours, and open. **Top-p**, or nucleus sampling (arXiv:1904.09751), keeps the smallest set of likeliest
# tokens that holds at least the probability $p$: few where the model is sure, many where it is not. The token with
# which the sum reaches $p$ belongs to the set.


# %% tags=["exercise:1.14"]
def keep_top_p(logits, p):
    """Keep, in each row, the smallest set of likeliest tokens whose probabilities add up to at least `p`.

    Args:
        logits: [rows, V]; not changed. Some may be -inf: probability 0.
        p: In (0, 1]; 1 keeps every token, but for rounding.

    Returns:
        [rows, V] logits, -inf for what is dropped, so that softmax gives the kept tokens in their old proportions. The
        likeliest token always stays. Of tokens exactly as likely as the last one kept, more than needed may stay.

    >>> logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    >>> keep_top_p(logits, 0.6).softmax(-1)  # 0.5 is not enough, 0.5 + 0.3 is
    tensor([[0.6250, 0.3750, 0.0000]])
    >>> keep_top_p(logits, 0.05).softmax(-1)
    tensor([[1., 0., 0.]])
    """
    # BEGIN SOLUTION: the smallest set that holds p
    probs = logits.softmax(-1)
    ordered = probs.sort(-1, descending=True).values
    before = ordered.cumsum(-1) - ordered
    lowest = ordered.masked_fill(before >= p, 1.0).amin(-1, keepdim=True)
    return logits.masked_fill(probs < lowest, -math.inf)
    # END SOLUTION


# %%
check("1.14")

# %% [markdown]
# The same real distribution after each processor; the outline is what the model said. Panels show the likeliest 12 of
# all tokens, the title how many are left in all.

# %%
keep_top_p = use("1.14")
logits = first_probabilities("My favourite food is").log()[None]
panels = {
    "temperature 0.5": apply_temperature(logits, 0.5),
    "top-k, k = 5": keep_top_k(logits, 5),
    "top-p, p = 0.5": keep_top_p(logits, 0.5),
    "min-p, 0.15": keep_min_p(logits, 0.15),
}
after = {name: each[0].softmax(-1) for name, each in panels.items()}
print({name: int((each > 0).sum()) for name, each in after.items()}, "tokens left")
draw_distributions(logits[0].softmax(-1), after, 12, tokenizer.decode)
plt.show()

# %% [markdown]
# Temperature changes every bar and drops none. The other three drop the tail and scale up the rest, with the cut at a
# number, at a sum, or at a height. Which to take depends on what is worse: to be wrong or to be flat.
#
# | the task | what is worse | start with |
# |---|---|---|
# | extraction, code, a tool's arguments | to be wrong | temperature 0, or low, and a cut |
# | ideas, stories, several answers to choose from | to be flat | temperature about 1, with top-p or min-p |

# %% [markdown]
# **Open the engine.** The engine's top-k and top-p, for a whole batch at once:

# %%
from twophase_features import truncation

print(f"TOP_P_CANDIDATES = {truncation.TOP_P_CANDIDATES}")
show_source(truncation._top_k_top_p, first="vocab_size =")

# %% [markdown]
# Your function sorts all 49,152 tokens of a row; this one takes the 256 largest (`TOP_P_CANDIDATES`). When is that not
# enough, and what happens then?
#
# <details><summary>Answer</summary>
#
# In a flat distribution 256 tokens may not hold the mass p: *My favourite food is* needs hundreds for 90 %.
# `is_covered` says for which rows the candidates suffice; the other rows are sorted whole. So the result is the same,
# and the cost of the full sort is paid by the rows that need it.
#
# </details>

# %% [markdown]
# **Real text.** The engine runs SmolLM2 and hands over logits; processors and draw are the ones above. The random
# numbers are the engine's: `uniforms(seeds, completions, positions)` has one for each row, which depends on nothing but
# the request's seed, which of its completions it is for, and the position.

# %%
from twophase.engine.philox import uniforms
from twophase_labs.autoregression.serving import NextLogits

llm = open_engine()
prompt_tokens = tokenizer.encode("Once upon a time, there was a little")


def tell(seed, temperature=1.0, k=49_152, p=1.0, share=0.0, max_tokens=28):
    next_logits, text = NextLogits(), list(prompt_tokens)
    for position in range(max_tokens):
        logits = keep_top_k(apply_temperature(next_logits(text)[None], temperature), k)
        if p < 1:  # 1 would keep every token, but for rounding
            logits = keep_top_p(logits, p)
        probs = keep_min_p(logits, share).softmax(-1)
        text.append(int(draw(probs, torch.from_numpy(uniforms([seed], [0], [position])))))
        if text[-1] in llm.model_config.eos_token_ids:
            break
    return text[len(prompt_tokens) :]


# %%
settings = {
    "cool": {"temperature": 0.7, "k": 50, "p": 0.9, "share": 0.05},
    "as it is": {},
    "hot": {"temperature": 1.8},
    "hot, min-p": {"temperature": 1.8, "share": 0.1},
}
for name, setting in settings.items():
    print(f"{name + ':':11} ... a little{tokenizer.decode(tell(11, **setting))}\n")

# %% [markdown]
# Temperature alone cannot be turned up far: at 1.8 the tail takes over, and the text falls apart. With the tail cut,
# the same temperature gives something to read.
#
# **Play.** Other seeds, other settings; `temperature=0.01` is nearly greedy. How low must `p` be before the stories
# of all seeds begin alike?
#
# **Takeaway.** Of 49,152 tokens, top-p 0.5 leaves 21 for *My favourite food is*, top-k 5 leaves 5 and min-p 0.15
# leaves 11: the same text, three ideas of how open it is.

# %% [markdown]
# > **In production, 2026.** vLLM's own defaults change nothing: temperature 1, `top_p=1`, `top_k=0`, `min_p=0`,
# > `seed=None`
# > ([sampling_params.py](https://github.com/vllm-project/vllm/blob/00388f6573ccfcffad607b8c9ecdf341a4669ceb/vllm/sampling_params.py)).
# > A seed alone does not make an answer repeatable, because a different batch changes the order in which floats are
# > added: vLLM does not guarantee it by default
# > ([reproducibility](https://docs.vllm.ai/en/latest/usage/reproducibility/)), and offers `VLLM_BATCH_INVARIANT=1`, in
# > beta ([batch invariance](https://docs.vllm.ai/en/v0.32.0/features/batch_invariance/)); SGLang has
# > `--enable-deterministic-inference` ([server
# > arguments](https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md)).
# > At its memory's full speed an H100 reads 49,152 float32 logits in 0.06 µs, and those of 256 rows in 15 µs.

# %% [markdown]
# ### Going further: a seed for each request
#
# A client that sends a seed wants the same answer tomorrow. But tomorrow other requests are in the batch. With one
# generator for all, every neighbour takes numbers away; with a number that depends on nothing but seed, completion and
# position, neighbours have no influence. This engine computes such numbers with Philox, a generator without a state.

# %%
next_probs = torch.randn(3, 50, generator=torch.Generator().manual_seed(6)).softmax(-1)  # of three requests


def one_generator(requests, num_steps=8):
    generator = torch.Generator().manual_seed(1)
    return [torch.multinomial(next_probs[requests], 1, generator=generator)[0].item() for _ in range(num_steps)]


def own_seeds(requests, num_steps=8):
    seeds, completions = [100 + request for request in requests], [0] * len(requests)  # each has one completion, 0
    numbers = [torch.from_numpy(uniforms(seeds, completions, [at] * len(requests))) for at in range(num_steps)]
    return [draw(next_probs[requests], u)[0].item() for u in numbers]


# %%
# NBVAL_CHECK_OUTPUT
for name, way in (("one generator", one_generator), ("own seeds", own_seeds)):
    print(f"{name:13} alone      {way([0])}")
    print(f"{'':13} in company {way([0, 1, 2])}")

# %% [markdown]
# The first request's tokens, alone and with two others. Only numbers without a state are the same both times.

# %% [markdown]
# ### Going further: when to stop
#
# <!-- card 1.15 -->
# The loop that ends. `next_token(ids)` gives the next token of the text so far. The text ends with a token of
# `stop_ids` (reason `"stop"`) or with the `max_tokens`-th new token (`"length"`); if both, it is a stop, for the
# model had finished. The stop token is part of the output; what the prompt holds ends nothing. `max_tokens` is 1 or
# more.
#
# ```python
# >>> complete(lambda ids: ids[-1] + 1, [5, 6], stop_ids={9}, max_tokens=10)
# ([7, 8, 9], 'stop')
# >>> complete(lambda ids: ids[-1] + 1, [5, 6], stop_ids={9}, max_tokens=2)
# ([7, 8], 'length')
# ```


# %% tags=["exercise:1.15"]
def complete(next_token, prompt_ids, stop_ids, max_tokens):
    ids, reason = list(prompt_ids), None
    while reason is None:
        token = next_token(ids)
        ids.append(token)  # SOLUTION: the text grows
        if token in stop_ids:  # SOLUTION: has the model finished?
            reason = "stop"
        elif len(ids) - len(prompt_ids) >= max_tokens:  # SOLUTION: is it long enough?
            reason = "length"
    return ids[len(prompt_ids) :], reason


# %%
check("1.15")

# %% [markdown]
# ## 12. Your pieces in the engine
# <!-- minutes: 6 -->
#
# *Needs: CPU, and the model.*
#
# The engine keeps K and V in blocks, not in a growing tensor, and its model is SmolLM2 and not transformers' copy of
# it. `EngineStep` is that engine as a `step`; in all 30 layers it calls your `attend`, over keys and values gathered
# from the blocks, and your `generate` runs the loop.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.autoregression.serving import EngineStep

engine_step = EngineStep(attend=attend)
in_engine = Timed(engine_step)
ours = generate(in_engine, engine_step.empty_cache(), prompt_ids[None], 30)[0]
print(tokenizer.decode(ours))
print(f"your attend ran {engine_step.num_attended} times: 30 passes through 30 layers")
print("token for token the same as transformers:", torch.equal(ours, theirs))

# %% [markdown]
# And `draw` and `keep_top_p` against the engine's own sampler, which works on all rows of a batch at once, in other
# ways: same seed, same parameters.

# %%
# NBVAL_CHECK_OUTPUT
from twophase import SamplingParams

params = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05, seed=7, max_tokens=24)
(engines,) = llm.generate([{"prompt_token_ids": prompt_tokens}], params, use_tqdm=False)[0].outputs
own = tell(7, temperature=0.8, k=50, p=0.9, share=0.05, max_tokens=24)
print(tokenizer.decode(own))
print("the same tokens as the engine's sampler:", list(engines.token_ids) == own)

# %% [markdown]
# What your work changed: the time of each of these 30 passes, in the loop of section 3 and in the engine.

# %%
timed_model = Timed(model)
greedy(timed_model, prompt_ids, 30, tokenizer.eos_token_id)  # again, so that both are timed in the same minute
pictures.draw_steps({"your greedy loop": timed_model.elapsed_s, "your generate, in the engine": in_engine.elapsed_s}, 8)

# %% [markdown]
# **The first cell once more**, 40 tokens read and 10 written, with your loop and your attention in the engine:

# %%
write_s = seconds(lambda: transformers_greedy(model, story, 10, use_cache=False)) / 10
reads = []
for _ in range(3):
    once_more = Timed(engine_step)
    generate(once_more, engine_step.empty_cache(), story[None], 11)
    reads.append(once_more.elapsed_s[0])
engine_read_s, engine_s = median(reads) / len(story), median(once_more.elapsed_s[1:])
pictures.draw_per_token(
    {"read, in the engine": engine_read_s, "written at first, no cache": write_s, "written now": engine_s}
)

# %% [markdown]
# Writing takes a fraction of what it took at first: the repetition is gone. A gap remains, for each step reads all
# weights for one token (section 6). It is lab 3's subject. (These times vary on a busy machine: run the cell again.)
#
# **Open the engine.** Your `step` took a cache and found out by its length where the new tokens stand. This is what the
# engine's runner does with what `EngineStep` hands it:

# %%
from twophase.engine.runner import ModelRunner

show_source(ModelRunner.run, first="packed = pack", last="hidden = self.model")

# %% [markdown]
# `chunks` may belong to many sequences. Where is the cache in these lines, and why is no `torch.cat` needed?
#
# <details><summary>Answer</summary>
#
# It is `self.kv_cache`, one pool for all sequences, and it stays where it is. A chunk says at which position it starts
# and in which blocks its sequence lives; `pack` makes of that the slots into which K and V of the new tokens are
# written. Nothing is copied to append a token, and sequences of different lengths share a pass (labs 2 and 3).
#
# </details>
#
# **Takeaway.** 30 tokens in 30 passes are still 30 passes, and your attention ran 900 times; but after the first, which
# read 8 tokens, each pass computed 1 position, and the text is the same.

# %% [markdown]
# ## 13. Knowledge check
# <!-- minutes: 8 -->
#
# Three questions on what follows from this lab.

# %% [markdown]
# <!-- card 1.16 -->
# You hold the cache of a text of 1,000 tokens. Then token 400 is replaced by another. Which part of the cache is still
# right, in SmolLM2 with its 30 layers, and in the toy model of section 5, one attention between embedding and read-out?
#
# **a** all but token 400's · **b** that of tokens 0 to 399 · **c** none

# %% tags=["exercise:1.16"]
answer_1_16 = {
    "SmolLM2, 30 layers": "b",  # SOLUTION: a letter
    "the toy model, one layer": "a",  # SOLUTION: a letter
}

# %%
check("1.16")

# %% [markdown]
# <!-- card 1.17 -->
# An engine's cache is full at all times, and requests wait outside. K and V are now stored in half the bytes; a step
# takes as long as before. What happens?
#
# **a** twice as many tokens per second, and a request stays inside as long as before · **b** as many tokens per second,
# and a request stays inside half as long · **c** as many tokens per second; only the queue gets shorter · **d** twice
# as many tokens per second, and a request stays inside half as long

# %% tags=["exercise:1.17"]
answer_1_17 = "a"  # SOLUTION: one letter

# %%
check("1.17")

# %% [markdown]
# <!-- card 1.18 -->
# Temperature 2 and then top-p 0.9, against top-p 0.9 and then temperature 2. Which keeps more tokens?
#
# **a** the first, or both as many · **b** the second, or both as many · **c** always the same, order does not matter

# %% tags=["exercise:1.18"]
answer_1_18 = "a"  # SOLUTION: one letter

# %%
check("1.18")

# %% [markdown]
# **Checkpoint.** Tick what you could explain to a colleague without looking. For the rest, go back to the section in
# brackets.
#
# - [ ] why a text's log-probability is a sum, and what the model's row of logits has to do with it (1)
# - [ ] why training sees all positions at once and generation does not (2)
# - [ ] what exactly is kept in a cache, and what would break if positions were not offset (5)
# - [ ] why a token written with a cache still takes longer than one that is read (6)
# - [ ] how many bytes a token takes, for any model whose `config.json` you are shown (7)
# - [ ] how you would notice that a query head reads the wrong key/value head (8)
# - [ ] how many requests a card serves at a time, with what margin, in GB and in GiB (9)
# - [ ] why a request can be rejected by a cache that is mostly empty (10)
# - [ ] what temperature, top-k, top-p and min-p keep, and why a seed belongs to a request (11)

# %% [markdown]
# ### Troubleshooting, by symptom
#
# | symptom | likely cause | section |
# |---|---|---|
# | fluent nonsense, no error | wrong head map; positions not offset; keys of another sequence | 5, 8 |
# | first token right, later ones drift | the cache misses a token or holds one twice; position off by one | 5 |
# | slower with every token | the cache is not used: the whole text is computed again | 3, 4 |
# | out of memory with half the requests expected | K or V forgotten; GB for GiB; no workspace | 7, 9 |
# | requests rejected, memory free | reservations for `max_tokens`; fragmentation | 10 |
# | the answer never ends | stop ids missing (an instruct model has its own) | 11 |
# | the answer is cut short, or has one token | the limit counts the prompt too | 11 |
# | same seed, different text | one generator shared by the batch | 11 |
# | `nan` or an error while sampling | every token dropped: top-p without the token that reaches p | 11 |

# %% [markdown]
# ### What to read next
#
# - Attention Is All You Need, arXiv:1706.03762: where K and V come from.
# - Fast Transformer Decoding: One Write-Head is All You Need, arXiv:1911.02150: MQA, and the arithmetic of decoding.
# - GQA, arXiv:2305.13245; and DeepSeek-V2, arXiv:2405.04434, for keeping a compressed latent instead of heads.
# - Efficient Memory Management for Large Language Model Serving with PagedAttention, arXiv:2309.06180: vLLM.
# - Efficiently Scaling Transformer Inference, arXiv:2211.05102: memory budgets for large models.
# - The Curious Case of Neural Text Degeneration, arXiv:1904.09751: top-p; Hierarchical Neural Story Generation,
#   arXiv:1805.04833: top-k; Min-p Sampling, arXiv:2407.01082.
#
# Lab 2 is about the first of the two phases: prefill, all tokens of a prompt at once.

# %%
from twophase_labs.kit.course_map import closing

closing("1")
