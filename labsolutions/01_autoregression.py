# %% [markdown]
# # Lab 1: autoregression, and why a cache exists
#
# A language model reads fast and writes slowly. It takes in a page of text in one go, and then brings out its answer
# token by token, each token waiting for the one before. Same weights, same arithmetic, and a price per token that
# differs by a factor of ten and more. The first code cell shows it on your machine.
#
# Part of that difference is waste, and this lab takes it away: you write the loop that generates text, count what it
# computes again and again, and build the **KV cache** that ends it. The rest is not waste. A cache has to be
# read, stored and paid for, and that is what the rest of the lab, and of this workbook, is about.

# %% [markdown]
# **After this lab you can**
#
# - write the probability of a text as a sum over a model's logits, and say what a training loss measures;
# - tell what can be computed in parallel from what has to wait;
# - write the generation loop and count its work, with a cache and without;
# - build a KV cache, and show that it changes the cost and nothing else;
# - say what a cache weighs: per token, per model, per GPU, and what its allocation wastes;
# - choose the next token in more ways than one, and test that a sampler samples what it should.
#
# You need PyTorch and a rough idea of a transformer. No GPU: every section runs on a CPU, and says if it needs more
# than that.

# %% [markdown]
# ```mermaid
# flowchart LR
#     A["1-2 what is computed<br/>chain rule, parallelism"] --> B["3-4 what it costs<br/>loop, operation counts"]
#     B --> C["5 the cache<br/>same logits, less work"]
#     C --> D["6-9 what the cache weighs<br/>bytes, heads, budget, allocation"]
#     D --> E["10-11 the next token<br/>sampling, knowledge check"]
# ```
#
# **How it works.** Think first: a wrong prediction teaches more than a right measurement. Fill the blanks
# `____(...)`, then run `check("1.3")`. If you are stuck, `hint("1.3")` helps in up to three steps and `reveal("1.3")`
# shows a solution. You can leave any exercise out: what follows then runs with the reference's answer, and says so.

# %% [markdown]
# <!-- map -->

# %% [markdown]
# The lab runs on one thread. It compares ways of computing, and one thread gives steadier times than many, also while
# this machine does other things.

# %% tags=["setup"]
import matplotlib.pyplot as plt
import numpy as np
import torch

from twophase.workbook import ____, check, hint, measured, reference, reveal, use
from twophase.workbook.lab01 import growth_pictures as pictures
from twophase.workbook.lab01.models import random_llama, smollm2, transformers_greedy
from twophase.workbook.lab01.section_5 import BATCH, NEW, PROMPT, published_setting
from twophase.workbook.lab01.timing import Timed, fitted_exponent, seconds
from twophase.workbook.lab01.toy import ToyModel

torch.set_num_threads(1)

# %% [markdown]
# **The surprise.** The same model, SmolLM2 with its 135 million weights, reads 40 tokens, and then writes 10.

# %%
model, tokenizer = smollm2()
story = "Once upon a time there was a machine that could read a whole page at a glance, and then needed all evening "
story_ids = tokenizer(2 * story, return_tensors="pt").input_ids[0, :40]
read_s = seconds(lambda: model(story_ids[None]), repeats=2)
write_s = seconds(lambda: transformers_greedy(model, story_ids, 10, use_cache=False))
print(f"reading: {len(story_ids)} tokens in {read_s:.2f} s, {1e3 * read_s / len(story_ids):.0f} ms a token")
print(f"writing: 10 tokens in {write_s:.2f} s, {1e3 * write_s / 10:.0f} ms a token")

# %% [markdown]
# Why is a token written so much dearer than a token read? Keep your guess; section 4 counts it, section 5 repairs it.

# %% [markdown]
# ## 1. A text's probability is a product
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
# text_log_prob(torch.zeros(4, 10), torch.tensor([7, 1, 1, 3])) == -3 * np.log(10)  # three guesses among ten: -6.9
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
# transformers computes it by itself when it is given labels. If you are right, your sum is that mean, times T - 1,
# with its sign turned.

# %%
log_prob_of = use("1.1")
sentence = "The capital of France is Paris, and the capital of Japan is cheese."
ids = tokenizer(sentence, return_tensors="pt").input_ids[0]
output = model(ids[None], labels=ids[None])
log_prob = float(log_prob_of(output.logits[0], ids))
print(f"{len(ids)} tokens, log p = {log_prob:.3f}")
print(f"loss from your sum {-log_prob / (len(ids) - 1):.4f}, from transformers {float(output.loss):.4f}")

# %% [markdown]
# **Think first.** The log-probability is a sum, so every token has its share in it. Which token of the sentence cost
# the most? And which cost next to nothing? In bits, a token that the model gave 1 chance in 8 costs 3.

# %%
log_probs = output.logits[0, :-1].log_softmax(-1)
shares = log_probs.gather(-1, ids[1:, None])[:, 0]
pictures.draw_surprises([tokenizer.decode(i) for i in ids[1:]], shares)

# %% [markdown]
# **Read the result.** *Paris* costs next to nothing: the model knows. The second *capital* is much cheaper than the
# first, since half a sentence has set the pattern. And *cheese* is not what it had in mind. Seen this way a language
# model is a machine that is surprised, and training makes it less so. Generation is the same table read the other
# way: pick a token that surprises little, append it, go on.

# %% [markdown]
# ## 2. Known text in one pass, unknown text in many
#
# *Needs: CPU.*
#
# Section 1 ran the model once and used all its rows. That works because each row has looked at its own past only: this
# is what *causal* attention means. Do not take it on trust. The next cell exchanges one token at a time and notes whose
# logits move.

# %% [markdown]
# **Think first.** Twelve tokens; token 4 is exchanged. At which positions will the logits change?

# %%
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
# **Read the result.** Token 4 moves positions 4 to 11 and no other. Two things follow, and the whole workbook hangs
# on them.
#
# 1. *If the text is known*, all positions can be computed side by side: row t needs tokens 0 to t, and they are
#    there. Training knows its text, and so does whoever reads a prompt.
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
# | `verify 5` | somebody guesses the next 5 tokens; find out which of them greedy decoding would have written |
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
# The last line of the table will be worth money: lab 5 builds *speculative decoding* on it.

# %% [markdown]
# ## 3. The loop
#
# *Needs: CPU, and the model.*
#
# To write, a model needs a loop around it. The simplest rule for choosing is **greedy**: always the likeliest token.
# It draws no random numbers, so its answer can be compared with somebody else's token for token, and throughout this
# workbook that is how an engine will be shown to be right.

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
# Nothing is remembered between two turns but the text.

# %% [markdown]
# <!-- card 1.3 -->
# Extend `ids` (`[T]`) by up to `num_new` tokens: in each turn run the model over the whole text, append the likeliest
# next token, and stop after the end token.
#
# $$x_{T} = \arg\max_{v}\; \mathrm{logits}[T-1, v]$$
#
# ```python
# greedy(model, ids, 0, eos_id) == ids                    # no turn, no new token
# greedy(model, ids, 3, eos_id)[: len(ids)] == ids        # the prompt stays in front
# greedy(model, ids, 10**6, eos_id)[-1] == eos_id         # the end token is the last of the text, if it comes
# ```


# %% tags=["exercise:1.3"]
def greedy(model, ids, num_new, eos_id):
    for _ in range(num_new):
        logits = model(ids[None]).logits[0]  # the whole text in, [T, V] out
        next_id = logits[-1].argmax()  # SOLUTION: the likeliest next token
        ids = torch.cat([ids, next_id[None]])  # SOLUTION: the text with this token at its end
        if next_id == eos_id:  # SOLUTION: was this the last token?
            break
    return ids


# %%
check("1.3")

# %% [markdown]
# **Against transformers.** `generate` is the loop that most of the world uses. Same model, same prompt, greedy: the
# same tokens, or one of you is wrong.

# %%
# NBVAL_CHECK_OUTPUT
write_greedily = use("1.3")
prompt_ids = tokenizer("The largest planet of the solar system is", return_tensors="pt").input_ids[0]
timed_model = Timed(model)
yours = write_greedily(timed_model, prompt_ids, 30, tokenizer.eos_token_id)
theirs = transformers_greedy(model, prompt_ids, 30)
print(tokenizer.decode(yours))
print("token for token the same:", torch.equal(yours, theirs))

# %% [markdown]
# **Think first.** Each of the 30 turns added one token. Did they all take the same time?

# %%
pictures.draw_steps({"your loop on SmolLM2": timed_model.elapsed_s}, first_length=len(prompt_ids))

# %% [markdown]
# **Read the result.** The longer the text, the longer the wait for one more token. The loop hands the model the whole
# text in every turn, and the model dutifully computes positions again that have not changed since the turn before.

# %% [markdown]
# ## 4. Counting the waste
#
# *Needs: CPU.*
#
# Say that a position costs 1,000 operations. (The number will cancel.)
# Start from one token and write T more: without memory, pass t computes t positions. If everything computed were
# kept, each pass would compute one.

# %%
pictures.draw_passes(num_prompt=1, num_new=12)

# %% [markdown]
# Blue is computed in this pass; dotted was computed before and is kept. On the left a triangle, on the right its edge.

# %% [markdown]
# <!-- card 1.4 -->
# **Think first.** One token of prompt, T = 100 tokens written, 1,000 operations per position computed. How many times
# as many operations does the loop without a cache need? An estimate will do.

# %% tags=["exercise:1.4"]
guess_1_4 = 50  # SOLUTION: how many times as many

# %%
check("1.4")

# %% [markdown]
# <!-- card 1.5 -->
# Count what a generation computes: positions that go through the model (*tokens*), and pairs of a query and a key
# that it looks at (*pairs*). The query at position p looks at the keys at 0 to p. Without a cache, and from one token
# of prompt,
#
# $$\text{tokens} = \sum_{t=1}^{T} t = \frac{T(T+1)}{2}, \qquad \text{pairs} = \sum_{t=1}^{T} \frac{t(t+1)}{2}$$
#
# The last token is chosen, but never read.
#
# ```python
# count_work(2, 3, cached=False) == (2 + 3 + 4, 3 + 6 + 10)
# count_work(2, 3, cached=True) == (2 + 1 + 1, 3 + 3 + 4)
# ```


# %% tags=["exercise:1.5"]
def count_work(num_prompt, num_new, cached):
    num_tokens = num_pairs = num_cached = 0
    for length in range(num_prompt, num_prompt + num_new):  # the text before each pass
        start = num_cached if cached else 0  # SOLUTION: the first position this pass computes
        num_tokens += length - start  # SOLUTION: positions computed
        num_pairs += sum(range(start + 1, length + 1))  # SOLUTION: pairs looked at
        num_cached = length  # SOLUTION: positions kept after this pass
    return num_tokens, num_pairs


# %%
check("1.5")

# %%
# NBVAL_CHECK_OUTPUT
count = use("1.5")
print(f"{'T':>6}  {'without':>13}  {'with':>9}  {'tokens':>7}  {'pairs':>7}")
for T in (10, 100, 1_000):
    without, cached = count(1, T, cached=False), count(1, T, cached=True)
    ratios = f"{without[0] / cached[0]:>6.1f}x  {without[1] / cached[1]:>6.1f}x"
    print(f"{T:>6,}  {1_000 * without[0]:>13,}  {1_000 * cached[0]:>9,}  {ratios}")

# %%
measured("1.4", count(1, 100, cached=False)[0] / count(1, 100, cached=True)[0])

# %% [markdown]
# **Read the result.** At T = 100 it is 5,050,000 operations against 100,000, a ratio of (T + 1) / 2; it has no upper
# end. One thing remains even with a cache: a new query still looks at *all* keys before it. The pairs fall from T³/6
# to T²/2, not to T. A decode step gets slower as the text grows, only much more slowly; lab 3 will measure that
# slope.

# %% [markdown]
# **Now by the clock.** Your loop on the small random model, which has no end token, against transformers with its
# cache. If the time follows a power law, t = a·T^b, it is a straight line on two logarithmic axes, and its slope is
# the exponent b.
#
# **Think first.** Which slope for which loop? Will short texts lie on the line too?

# %%
start = torch.zeros(1, dtype=torch.long)
curves = {"your loop": {}, "transformers, with a cache": {}}
wider = random_llama(width=128)
transformers_greedy(wider, start, 3)  # the first call prepares things
for T in (10, 30, 100, 300, 1_000):
    repeats = max(1, 300 // T)  # short times are the noisy ones
    curves["your loop"][T] = seconds(lambda T=T: write_greedily(wider, start, T, eos_id=-1), repeats)
    curves["transformers, with a cache"][T] = seconds(lambda T=T: transformers_greedy(wider, start, T), repeats + 1)
pictures.draw_growth(curves, fit_from=100)

# %% [markdown]
# **Read the result.** With a cache the time grows about in proportion to T. Without, it heads for T², and does not get
# there at once: every pass has a fixed price (Python, many small operations to start) that short texts hide behind.
# For ten tokens the cache may even lose. Costs that only show at scale are the rule in this field, which is why this
# workbook counts first and measures second.

# %% [markdown]
# ## 5. The cache
#
# *Needs: CPU.*
#
# What exactly should be kept? Look at one attention block. A position's query meets the keys of all positions before
# it, and its result is a mix of their values. So the past is needed, but only as **keys and values**. By section 2
# these never change once computed. Past *queries* are not needed again by anybody: hence a KV cache, and not a QKV
# cache.

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
# Everything but the cache is as long as what is *new*. `ToyModel` is this picture and no more: embeddings of width
# 32, a vocabulary of 100, 2,048 positions, one head, random weights.

# %% [markdown]
# **The mask.** Without a cache there are as many queries as keys, and the mask is the triangle that you know. With a
# cache there are L new queries and S keys, and the queries are the *last* L of the S positions.

# %%
triangle = torch.ones(6, 6).tril().bool()
pictures.draw_visible(
    {"6 new tokens, nothing cached": triangle, "4 cached, 2 new": triangle[4:], "5 cached, 1 new": triangle[5:]}
)

# %% [markdown]
# Behind a cache the mask is the lower part of the triangle. A single new token sees everything: its mask is empty,
# which is why a decode step often goes without one, and why a wrong mask is noticed late.

# %% [markdown]
# <!-- card 1.6 -->
# Causal attention for L queries that are the last of S positions. `q` is `[B, L, D]`, `k` and `v` are `[B, S, D]`.
#
# $$\mathrm{out}_i = \sum_{j \le p_i} \mathrm{softmax}_j\!\left(\frac{q_i \cdot k_j}{\sqrt D}\right) v_j,
# \qquad p_i = S - L + i$$
#
# ```python
# attend(q, k, v)[:, -1:] == attend(q[:, -1:], k, v)                  # the last query alone gets the same result
# attend(q, k, torch.ones_like(v)) == torch.ones_like(q)              # weights add up to one
# ```


# %% tags=["exercise:1.6"]
def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    scores = q @ k.mT / q.shape[-1] ** 0.5  # SOLUTION: [B, L, S], every query with every key
    query_positions = torch.arange(S - L, S)  # SOLUTION: where the L queries stand
    visible = torch.arange(S) <= query_positions[:, None]  # [L, S]
    scores = scores.masked_fill(~visible, -torch.inf)  # SOLUTION: the scores with what is hidden taken out
    weights = scores.softmax(-1)  # SOLUTION: weights that add up to one for each query
    return weights @ v


# %%
check("1.6")

# %% [markdown]
# **First without a cache.** The whole model in four lines: every position is embedded, projected and attended to, in
# every pass.

# %%
attention = use("1.6")


def recompute(toy, ids):
    x = toy.embed(ids, start=0)
    q, k, v = toy.project(x)
    return toy.logits(x, attention(q, k, v))


recompute(ToyModel(), torch.tensor([[3, 1, 4, 1, 5]])).shape

# %% [markdown]
# **Then with one.** The cache is a pair of tensors `(keys, values)`, each `[B, S, D]`; an empty one is `[B, 0, D]`.
# Three things go wrong most often, and none of them raises an error: the new tokens are embedded at position 0 again;
# what is new is attended to but not kept; or the past is projected once more, which costs everything the cache was to
# save.

# %% [markdown]
# <!-- card 1.7 -->
# One pass over `new_ids` (`[B, L]`) behind a cache of S tokens. Return the logits of the new tokens, and the cache of
# S + L.
#
# $$K \leftarrow [K;\; x W_K], \qquad V \leftarrow [V;\; x W_V], \qquad x = E[\text{new ids}] + P[S], P[S+1], \dots$$
#
# `toy.embed(ids, start)`, `toy.project(x)` and `toy.logits(x, attended)` are there; `attend` is yours.
#
# ```python
# logits, cache = step(toy, ids, toy.empty_cache(B))        # nothing cached: what recompute(toy, ids) gives
# logits, cache = step(toy, more_ids, cache)                # the last rows of recompute(toy, ids and more_ids)
# ```


# %% tags=["exercise:1.7"]
def step(toy, new_ids, cache):
    old_k, old_v = cache
    x = toy.embed(new_ids, old_k.shape[1])  # SOLUTION `old_k.shape[1]`: the position of the first new token
    q, new_k, new_v = toy.project(x)  # SOLUTION: queries, keys and values of what is new
    k = torch.cat([old_k, new_k], dim=1)  # SOLUTION: all keys
    v = torch.cat([old_v, new_v], dim=1)  # SOLUTION: all values
    return toy.logits(x, attend(q, k, v)), (k, v)  # SOLUTION `attend(q, k, v)`: the attention


# %%
check("1.7")

# %% [markdown]
# **Equal logits.** A text of 120 tokens, once in one pass without a cache, once cut into pieces of any size. The cache
# must not care how the text was cut; lab 2 will cut prompts into chunks for just this reason.

# %%
one_pass = use("1.7")
toy, prompt = published_setting()
text = torch.randint(0, 100, (1, 120), generator=torch.Generator().manual_seed(1))
cache, rows = toy.empty_cache(1), []
for piece in text.split([50, 1, 1, 1, 40, 7, 20], dim=1):
    logits, cache = one_pass(toy, piece, cache)
    rows.append(logits)
difference = (torch.cat(rows, dim=1) - recompute(toy, text)).abs().max()
print(f"largest difference of a logit: {difference:.0e}; the cache holds {cache[0].shape[1]} tokens")

# %% [markdown]
# <!-- card 1.8 -->
# Greedy generation with a cache: `prompt` is `[B, T]`, the result `[B, T + num_new]`. The first pass reads the prompt
# (*prefill*), each later one a single token (*decode*). One rule covers both: *read what the cache does not hold
# yet*.
#
# ```python
# generate(toy, prompt, 0) == prompt
# generate(toy, prompt, 5)[:, :-2] == generate(toy, prompt, 3)     # greedy: a longer answer begins like a shorter one
# ```


# %% tags=["exercise:1.8"]
def generate(toy, prompt, num_new):
    ids, cache = prompt, toy.empty_cache(len(prompt))
    for _ in range(num_new):
        unread = ids[:, cache[0].shape[1] :]  # SOLUTION: the tokens that the cache does not hold yet
        logits, cache = step(toy, unread, cache)
        chosen = logits[:, -1:].argmax(-1)  # SOLUTION: the likeliest next token of each sequence, [B, 1]
        ids = torch.cat([ids, chosen], dim=1)  # SOLUTION: the texts with their new tokens
    return ids


# %%
check("1.8")

# %% [markdown]
# **How much is it worth?** A measurement of such a model that is often quoted: batch 10,000, prompt of 50 tokens, 100
# new ones, on an NVIDIA T4. Without a cache 3.58 s, with a cache 0.163 s. The next cell has the ratio, and what your
# count of section 4 says about it. On this machine we keep the lengths and take fewer sequences.

# %%
# NBVAL_CHECK_OUTPUT
without, cached = count(PROMPT, NEW, cached=False), count(PROMPT, NEW, cached=True)
print(f"measured on a T4, batch 10,000: {3.58 / 0.163:.1f}x")
print(f"positions computed: {without[0]:,} against {cached[0]:,}, {without[0] / cached[0]:.1f}x")
print(f"query-key pairs: {without[1]:,} against {cached[1]:,}, {without[1] / cached[1]:.1f}x")
print(f"here: batch {BATCH}, prompt {PROMPT}, {NEW} new tokens")

# %% [markdown]
# <!-- card 1.9 -->
# **Think first.** How many times faster will `generate` be than recomputing, on this machine, at the batch just
# printed? You have the count, and you know how the T4 compared with it.

# %% tags=["exercise:1.9"]
guess_1_9 = 40  # SOLUTION: how many times faster

# %%
check("1.9")

# %%
write_cached = use("1.8")


def write_recomputing(toy, ids, num_new):
    for _ in range(num_new):
        ids = torch.cat([ids, recompute(toy, ids)[:, -1:].argmax(-1)], dim=1)
    return ids


print("same texts:", torch.equal(write_recomputing(toy, prompt, NEW), write_cached(toy, prompt, NEW)))
without_s = seconds(lambda: write_recomputing(toy, prompt, NEW), repeats=2)
with_s = seconds(lambda: write_cached(toy, prompt, NEW), repeats=5)
print(f"without a cache {without_s:.3f} s, with a cache {with_s:.3f} s")
measured("1.9", without_s / with_s)

# %% [markdown]
# **Where it comes from.** The same run, pass by pass. It is an experiment to play with: put a
# `prompt = torch.randint(0, 100, (1, 50))` in front, or other lengths, and run the cell again. With a single sequence,
# what is left of the advantage?

# %%
recomputing, caching = Timed(recompute, repeats=3), Timed(one_pass, repeats=3)
ids, cache = prompt, toy.empty_cache(len(prompt))
for _ in range(NEW):
    logits = recomputing(toy, ids)
    _, cache = caching(toy, ids[:, cache[0].shape[1] :], cache)
    ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
pictures.draw_steps({"without a cache": recomputing.elapsed_s, "with a cache": caching.elapsed_s}, PROMPT)

# %% [markdown]
# **Read the result.** Without a cache every pass is dearer than the last. With one, the first pass, the prompt's, costs
# what it cost before; after it a pass is cheap, and grows only slowly. A count of positions is a first estimate, no
# more: a pass over a single token has little to multiply, and mostly starts small operations, copies the cache
# (`torch.cat` makes a new one in each turn) and reads it. That pulls the ratio down. Large passes pay for something
# else: their tables of scores no longer fit into the processor's caches. That pushes it up.
#
# That is this workbook's subject in one picture. One large pass, busy with arithmetic; then many small ones, busy with
# memory: **two phases of one model, two workloads**. And the cache that separates them has to live somewhere.
