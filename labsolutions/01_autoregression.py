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

from twophase_labs import ____, check, hint, measured, reference, reveal, use
from twophase_labs.autoregression import growth_pictures as pictures
from twophase_labs.autoregression.published import BATCH, NEW, PROMPT, published_setting
from twophase_labs.autoregression.toy import ToyModel
from twophase_labs.kit.models import random_llama, smollm2, transformers_greedy
from twophase_labs.kit.timing import Timed, fitted_exponent, seconds

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

# %% [markdown]
# ## 6. What a token leaves behind
#
# *Needs: CPU.*
#
# The cache of section 5 buys time with memory. Every token leaves a key and a value in every layer, and they stay
# until the sequence ends. An engine that serves many people at once is soon full of them, so the first thing to know
# about a model is how many bytes one token leaves behind.
#
# **Think first.** Llama-3-8B has 32 layers; each keeps 8 keys and 8 values per token, 128 numbers of two bytes each.
# The text of a token is about four bytes long. How much is it in the cache?

# %% tags=["setup"]
import json
import math
from itertools import groupby

GB, GIB = 10**9, 2**30  # what a card's box says, and what a computer counts in

# %% [markdown]
# <!-- card 1.10 -->
# Write down a guess in KiB (1,024 bytes) before you compute anything.

# %% tags=["exercise:1.10"]
guess_1_10 = 100  # SOLUTION: KiB per token

# %%
check("1.10")

# %% [markdown]
# What is kept, and what is not: queries are used once and forgotten.

# %% [markdown]
# ```mermaid
# flowchart LR
#     T["one new token"] --> A["layer 1"] --> B["layer 2"] --> C["..."] --> Z["layer L"]
#     A --> A1["K: H_kv × D numbers<br/>V: H_kv × D numbers"]
#     B --> B1["K: H_kv × D<br/>V: H_kv × D"]
#     Z --> Z1["K: H_kv × D<br/>V: H_kv × D"]
# ```

# %% [markdown]
# <!-- card 1.11 -->
# Read a model's `config.json` and say how many bytes of K and V one token takes, with $b$ bytes per number:
#
# $$\text{bytes per token} = 2 \cdot L \cdot H_{kv} \cdot D \cdot b$$
#
# ```python
# >>> tiny = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "hidden_size": 32}
# >>> kv_bytes_per_token(tiny, 2)        # 2 · 2 layers · 1 head · 8 numbers · 2 bytes
# 64
# ```
#
# Files differ: an old one has no `num_key_value_heads` (every head keeps its own), and some state a `head_dim`, which
# then counts.


# %% tags=["exercise:1.11"]
def kv_bytes_per_token(config, bytes_per_value):
    num_heads = config["num_attention_heads"]
    num_kv_heads = config.get("num_key_value_heads", num_heads)
    head_dim = config.get(
        "head_dim", config["hidden_size"] // num_heads
    )  # SOLUTION `config["hidden_size"] // num_heads`: where no head_dim is stated
    return 2 * config["num_hidden_layers"] * num_kv_heads * head_dim * bytes_per_value  # SOLUTION: bytes


# %%
check("1.11")

# %% [markdown]
# ### Measure
#
# Four models in two-byte numbers. The first is read from the real file; the last is a 32-layer model of an older
# kind, 5,120 wide, in which all 40 heads keep keys and values.

# %%
from twophase_labs.autoregression.serving import open_engine

llama = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
MODELS = {
    "SmolLM2-135M": json.loads((open_engine().model_dir / "config.json").read_text()),
    "Llama-3-8B": llama,
    "70B-style": llama | {"num_hidden_layers": 80, "num_attention_heads": 64, "hidden_size": 8192},
    "5,120 wide, MHA": {"num_hidden_layers": 32, "num_attention_heads": 40, "hidden_size": 5120},
}

# %%
bytes_of = use("1.11")
per_token = {name: bytes_of(config, 2) for name, config in MODELS.items()}

# %%
# NBVAL_CHECK_OUTPUT
for name, num_bytes in per_token.items():
    sizes = [f"{num_tokens:,} tokens {num_tokens * num_bytes / GIB:6.3f} GiB" for num_tokens in (2048, 8192)]
    print(f"{name:16} {num_bytes:8,} bytes a token | {' | '.join(sizes)}")

# %%
measured("1.10", per_token["Llama-3-8B"] / 1024)

# %% [markdown]
# Four bytes of text become 128 KiB of cache. One conversation of 8,192 tokens with the 70B-style model takes 2.5 GiB,
# and the older model needs half of that for a quarter of the length: it has fewer layers, but shares nothing.
#
# Is it true? The engine's tensors can be asked. Each layer has pages of 16 slots for K and as many for V.

# %%
kv_cache = open_engine().kv_cache
num_slots = kv_cache.num_blocks * kv_cache.spec.block_size
num_bytes = sum(layer.k.nbytes + layer.v.nbytes for layer in kv_cache.layers)
print(f"{len(kv_cache.layers)} layers, K of each {list(kv_cache.layers[0].k.shape)} in {kv_cache.layers[0].k.dtype}")
print(f"{num_bytes:,} bytes / {num_slots:,} slots = {num_bytes // num_slots:,} bytes a token")
print(
    f"your formula with {kv_cache.spec.dtype.itemsize} bytes a number: "
    f"{bytes_of(MODELS['SmolLM2-135M'], kv_cache.spec.dtype.itemsize):,}"
)

# %% [markdown]
# On a CPU this engine computes in four-byte numbers, so the count is twice the one in the table. How it grows:

# %%
from twophase_labs.autoregression.memory_pictures import draw_cache_growth

draw_cache_growth(per_token, max_tokens=131_072)
plt.show()

# %% [markdown]
# ### Read the result
#
# The lines are straight and parallel: nothing but length counts, and a model's place is fixed by its layers and its
# key/value heads. The number of weights is no guide: the 70B-style line lies *below* that of the older model, which
# is a fraction of its size. The next section says how that was done.

# %% [markdown]
# ## 7. Fewer heads to remember
#
# *Needs: CPU.*
#
# In the transformer of 2017 every head has keys and values of its own (multi-head attention, MHA). All heads may
# share one pair (multi-query, MQA, arXiv:1911.02150), or groups of neighbours may share (grouped-query, GQA,
# arXiv:2305.13245). Query heads stay as many as they were; only the cache shrinks, by $g = H / H_{kv}$.

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

# %% [markdown]
# <!-- card 1.12 -->
# Which key/value head does query head $h$ read? Neighbours share: $\lfloor h / g \rfloor$.
#
# ```python
# >>> [kv_head_of(head, num_heads=4, num_kv_heads=2) for head in range(4)]
# [0, 0, 1, 1]
# ```


# %% tags=["exercise:1.12"]
def kv_head_of(head, num_heads, num_kv_heads):
    return head // (num_heads // num_kv_heads)  # SOLUTION: the KV head that this query head reads


# %%
check("1.12")

# %% [markdown]
# ### Measure
#
# What sharing saves: a 32-layer model with 32 heads of 128 numbers, in two bytes, with all, a quarter, or one of its
# heads kept.

# %%
# NBVAL_CHECK_OUTPUT
for kind, num_kv_heads in (("MHA", 32), ("GQA", 8), ("MQA", 1)):
    num_bytes = bytes_of(llama | {"num_key_value_heads": num_kv_heads}, 2)
    print(f"{kind}: {num_kv_heads:2} KV heads, {num_bytes:7,} bytes a token, {32 // num_kv_heads:2}x less than MHA")

# %% [markdown]
# **Think first.** The popular mistake is `head % num_kv_heads`. It has the right range, it loads every key/value head
# equally, and all shapes fit. What will SmolLM2 (9 heads, 3 kept) say with it: the same, something a little worse, or
# nonsense? Decide before you run the cell. Both maps run in the real engine, over the same weights.

# %%
from twophase_labs.autoregression.serving import greedy_text, model_with_heads

prompt = "The capital of France is"
maps = {"neighbours": use("1.12"), "remainder": lambda head, num_heads, num_kv_heads: head % num_kv_heads}
for name, kv_head in maps.items():
    text = greedy_text(model_with_heads(kv_head), prompt, 14).replace("\n", " ")
    print(f"{name:10} heads read {[kv_head(head, 9, 3) for head in range(9)]}: {prompt}{text}")

# %% [markdown]
# ### Read the result
#
# No error, no warning, and nothing that a test of shapes would notice: compare the two lists, most heads read keys
# they were not trained with, and the model is lost. Whenever you write attention for grouped heads, test it against
# something that knows the map. (The check above asked PyTorch's own grouped attention.)

# %% [markdown]
# ## 8. A budget of memory
#
# *Needs: CPU.*
#
# How many requests can one card serve at a time? Four things want its memory: the **weights**, fixed; a **workspace**
# for the numbers in flight during a step; **headroom** that is left free on purpose, for the driver, for
# fragmentation, for the day when somebody's estimate was wrong; and the **cache**, which gets the rest.

# %%
from twophase_labs.autoregression.memory_pictures import draw_budget

card_gb, weights_gb, workspace_gb, utilisation = 80, 16, 4, 0.9
headroom_gb = card_gb * (1 - utilisation)
cache_gb = card_gb - weights_gb - workspace_gb - headroom_gb
parts = {"weights": weights_gb, "workspace": workspace_gb, "cache": cache_gb, "headroom": headroom_gb}
draw_budget(parts, "An 80 GB card serving a model of 8 billion two-byte weights")
plt.show()

# %% [markdown]
# <!-- card 1.13 -->
# Requests of `request_bytes` each that fit into what is left for the cache. Sizes in GB are $10^9$ bytes;
# `utilisation` is the share of the card that may be used at all.
#
# $$\left\lfloor
# \frac{\text{card} \cdot \text{utilisation} - \text{weights} - \text{workspace}}{\text{request}}
# \right\rfloor$$
#
# ```python
# >>> requests_that_fit(10, 4, 2 * GB)                  # 6 GB left
# 3
# >>> requests_that_fit(10, 4, 2 * GB, utilisation=0.9) # 5 GB left
# 2
# >>> requests_that_fit(10, 12, 2 * GB)                 # the weights alone are too large
# 0
# ```


# %% tags=["exercise:1.13"]
def requests_that_fit(card_gb, weights_gb, request_bytes, utilisation=1.0, workspace_gb=0):
    kv_bytes = card_gb * GB * utilisation - (weights_gb + workspace_gb) * GB  # SOLUTION: bytes left for K and V
    return max(0, int(kv_bytes // request_bytes))  # SOLUTION: whole requests, never fewer than none


# %%
check("1.13")

# %% [markdown]
# <!-- card 1.14 -->
# Forget headroom and workspace for a moment. A request of 4,096 tokens on Llama-3-8B takes 4,096 · 128 KiB = 512 MiB.
# Beside 16 GB of weights, an 80 GB card has 64 GB. How many such requests fit? (Within 1 %.)

# %% tags=["exercise:1.14"]
guess_1_14 = 119  # SOLUTION: requests

# %%
check("1.14")

# %%
how_many = use("1.13")
request_bytes = 4096 * per_token["Llama-3-8B"]

# %%
# NBVAL_CHECK_OUTPUT
print(f"a request: {request_bytes:,} bytes; 64 GB: {64 * GB:,}; 64 GiB: {64 * GIB:,}")
print(f"in 64 GB {how_many(80, 16, request_bytes)} requests, in 64 GiB {64 * GIB // request_bytes}")
print(f"a GB is {GB / GIB:.3f} GiB")
with_margins = how_many(80, 16, request_bytes, utilisation=0.9, workspace_gb=4)
print(f"with a tenth of the card left free and 4 GB to work in: {with_margins}")

# %%
measured("1.14", how_many(80, 16, request_bytes))

# %% [markdown]
# 128 is often printed, and it is 64 GiB divided by 512 MiB. A gigabyte is 7 % smaller than a gibibyte; nine requests
# hide in the difference. Makers mean now one, now the other, so ask the device: `torch.cuda.mem_get_info()` counts
# bytes, and that is what this project's engine divides by, in whole pages.

# %% [markdown]
# ### From concurrency to throughput
#
# Little's law holds for anything that people enter and leave, a shop or an engine, in whatever order they are served:
#
# $$\text{requests inside} = \text{requests per second} \cdot \text{seconds each stays}$$

# %% [markdown]
# <!-- card 1.15 -->
# The card is full: 119 requests inside at all times, each stays 12 seconds and gets 300 tokens. How many tokens per
# second does it produce? (Within 1 %.)

# %% tags=["exercise:1.15"]
answer_1_15 = 2975  # SOLUTION: tokens per second

# %%
check("1.15")

# %% [markdown]
# A law wants a test. Ten requests of different lengths go to the engine at once; it runs four at a time, the others
# wait inside. We count who is inside at every step, and separately note how long each stays.

# %%
from twophase_labs.autoregression.serving import serve

latencies_s, steps = serve([8, 14, 10, 6, 12, 8, 10, 14, 6, 8])
total_s = sum(seconds for seconds, _ in steps)
rate, stay_s = len(latencies_s) / total_s, sum(latencies_s) / len(latencies_s)
counted = sum(seconds * num_inside for seconds, num_inside in steps) / total_s
print(f"{rate:.3f} requests/s x {stay_s:.3f} s each = {rate * stay_s:.2f} inside; counted: {counted:.2f}")

# %% [markdown]
# ### Read the result
#
# The two agree to the last digit: the run begins and ends empty, so every second that somebody spends inside is
# counted once on either side. Nothing was assumed about order or lengths. So the number of requests that fit in
# memory is a bound on throughput: more inside, or a shorter stay, or no more tokens per second. What is lost of the
# cache is lost of all that the card could earn; the next section is about losing it.

# %% [markdown]
# ## 9. Where to put it
#
# *Needs: CPU.*
#
# A request comes with a prompt and a limit, `max_tokens`; where between the two it will end, nobody knows. The first
# engines kept K and V of a request in one tensor, so they set aside the whole limit, in one piece, when it came. We
# replay that in a small cache of 100 slots: 40 requests with random prompts, limits and lengths. Who finds no room is
# turned away. (A real engine lets them wait; turning away is easier to count.)

# %% [markdown]
# <!-- card 1.16 -->
# *First fit*: the lowest place where `length` neighbouring slots are free (`None`), or `None` if there is no such
# place.
#
# ```python
# >>> first_fit(["a", None, "b", None, None, None], 2)
# 3
# >>> first_fit(["a", None, "b", None, None, None], 4)   # four are free, but not in one piece
# ```


# %% tags=["exercise:1.16"]
def first_fit(slots, length):
    run = 0  # free slots in a row, up to here
    for slot, owner in enumerate(slots):
        run = run + 1 if owner is None else 0  # SOLUTION: how long the run is now
        if run == length:  # SOLUTION: long enough?
            return slot - length + 1  # SOLUTION: where the run began
    return None


# %%
check("1.16")

# %%
from twophase_labs.autoregression.arrivals import Contiguous, Paged, random_requests, replay
from twophase_labs.autoregression.slot_pictures import draw_replay, draw_slots

arrivals = random_requests(40, seed=3)
in_one_piece = replay(arrivals, Contiguous(100, use("1.16")))

# %%
# NBVAL_CHECK_OUTPUT
limit_of = {arrival.name: arrival.max_tokens for arrival in arrivals}
unlucky = [name for name, cache in in_one_piece.refused.items() if cache.num_free >= limit_of[name]]
print(f"{len(arrivals)} requests, {len(in_one_piece.finished)} served, {len(in_one_piece.refused)} turned away")
print(f"of these, {len(unlucky)} with enough slots free: {', '.join(unlucky)}")

# %% [markdown]
# The whole run, one column per step. Full colour holds a token, pale is set aside and still empty, grey is free.
# (Such pictures are often drawn by hand, and then a request that reserves 2,048 slots sits in slots 0 to 511. This one
# is what the allocator did.)

# %%
draw_replay(in_one_piece, "Set aside in one piece: most of what is held is empty")
plt.show()

# %% [markdown]
# Now look at one moment: the refusal with the most slots free.

# %%
name = max(unlucky, key=lambda name: in_one_piece.refused[name].num_free)
cache = in_one_piece.refused[name]
title = f"{name} needs {limit_of[name]} slots, {cache.num_free} are free, and it is turned away"
draw_slots(cache, limit_of[name], title)
plt.show()

# %% [markdown]
# Two kinds of waste, then. Slots that are held and empty: *internal* fragmentation. Slots that are free and of no
# use, because no hole is long enough: *external* fragmentation.

# %% [markdown]
# <!-- card 1.17 -->
# Measure both for one moment of the cache. `owners` says who holds each slot (`None`: nobody), `written` how many
# tokens each holder has.
#
# $$\text{internal} = 1 - \frac{\text{tokens}}{\text{slots held}} \qquad
# \text{external} = 1 - \frac{\text{longest hole}}{\text{slots free}}$$
#
# ```python
# >>> fragmentation(["a", "a", None, "b", "b", None, None, None], {"a": 1, "b": 2})   # 3 of 4 held, 3 of 4 free
# (0.25, 0.25)
# ```
#
# Nothing held, or nothing free: 0.


# %% tags=["exercise:1.17"]
def fragmentation(owners, written):
    num_held = sum(owner is not None for owner in owners)
    holes = [len(list(run)) for owner, run in groupby(owners) if owner is None]  # their lengths
    internal = 1 - sum(written.values()) / num_held if num_held else 0.0  # SOLUTION: share of the held that is empty
    external = 1 - max(holes) / sum(holes) if holes else 0.0  # SOLUTION: share of the free outside the longest hole
    return internal, external


# %%
check("1.17")

# %%
waste = use("1.17")
by_step = np.array([waste(cache.owners, cache.written) for cache in in_one_piece.snapshots])
tokens = np.array([cache.num_written for cache in in_one_piece.snapshots])

# %%
# NBVAL_CHECK_OUTPUT
internal, external = by_step.mean(0)
print(f"internal fragmentation {internal:.0%} on average, external {external:.0%}, at worst {by_step[:, 1].max():.0%}")
print(f"slots with a token: {tokens.mean():.0f} of 100 on average, {tokens.max()} at most")

# %%
figure, axes = plt.subplots(figsize=(9, 3), facecolor="white")
axes.plot(by_step[:, 0], color="#0072B2", label="internal: held, no token")
axes.plot(by_step[:, 1], "--", color="#D55E00", label="external: free, outside the longest hole")
axes.set(xlabel="step", ylabel="share of slots", ylim=(0, 1))
axes.set_title("Two kinds of waste, step by step", loc="left")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# Real engines of the time were no better; vLLM's authors measured some (arXiv:2309.06180, figure 2). Their cure is
# the one that operating systems found long ago: cut memory into equal *pages*, give a sequence a page when its last
# one is full, and keep a table of which page comes next. No page needs a neighbour.

# %% [markdown]
# ```mermaid
# flowchart LR
#     subgraph S["tokens of r7"]
#         direction TB
#         t0["0 to 3"]
#         t1["4 to 7"]
#         t2["8, 9"]
#     end
#     subgraph P["pages"]
#         direction TB
#         p3["page 3"]
#         p11["page 11"]
#         p6["page 6: two slots free"]
#     end
#     t0 --> p3
#     t1 --> p11
#     t2 --> p6
# ```

# %% [markdown]
# <!-- card 1.18 -->
# The same 40 requests, the same 100 slots, as 25 pages of 4. A request now takes pages for its prompt when it comes
# and one more whenever its last page is full. It may still be turned away, or find no page when it needs one and be
# cut short. How many of the 40 will be lost in one way or the other? (Give or take 3.)

# %% tags=["exercise:1.18"]
guess_1_18 = 3  # SOLUTION: requests

# %%
check("1.18")

# %% [markdown]
# <!-- card 1.19 -->
# Let the engine's own `CacheManager` do it. Three moments of a request's life, and what the manager offers:
#
# | | |
# |---|---|
# | `cache.open(token_ids)` | a new, empty table |
# | `cache.can_grow(table, n)` | are there pages for `n` tokens in all? |
# | `cache.grow(table, n)` | take them; `table.num_tokens` is then `n` |
# | `table.slot_of(position)` | the slot of a token |
# | `cache.close(table)` | give all pages back |
#
# ```python
# >>> table = admit(CacheManager(25, 4), 6)         # 25 pages of 4 slots; 6 tokens take 2 pages
# >>> len(table.block_ids), table.num_tokens
# (2, 6)
# ```


# %% tags=["exercise:1.19"]
def admit(cache, num_prompt):
    table = cache.open([0] * num_prompt)  # which tokens they are will matter in lab 5
    if not cache.can_grow(table, num_prompt):  # SOLUTION: no room for the prompt?
        cache.close(table)
        return None
    cache.grow(table, num_prompt)  # SOLUTION `num_prompt`: tokens to make room for
    return table


def write_token(cache, table):
    cache.grow(table, table.num_tokens + 1)  # SOLUTION `table.num_tokens + 1`: tokens in all
    return table.slot_of(table.num_tokens - 1)  # SOLUTION: the slot of the new token


def finish(cache, table):
    cache.close(table)  # SOLUTION: give the pages back


# %%
check("1.19")

# %%
from twophase.cache.manager import CacheManager

manager = CacheManager(num_blocks=25, block_size=4, enable_prefix_caching=False)
on_pages = replay(arrivals, Paged(manager, *use("1.19")))

# %%
# NBVAL_CHECK_OUTPUT
for kind, result in (("in one piece", in_one_piece), ("on pages", on_pages)):
    tokens = np.mean([cache.num_written for cache in result.snapshots])
    empty = np.mean([waste(cache.owners, cache.written)[0] for cache in result.snapshots])
    print(
        f"{kind:12} {len(result.finished)} served, {len(result.refused)} turned away, {len(result.cut_short)} cut short"
    )
    print(f"{'':12} on average {tokens:.0f} of 100 slots hold a token; {empty:.0%} of what is held is empty")

# %%
measured("1.18", len(on_pages.refused) + len(on_pages.cut_short))

# %%
draw_replay(on_pages, "The same requests on pages: what is held is full")
plt.show()

# %% [markdown]
# ### Read the result
#
# External fragmentation is gone, for any free page will do. Internal is at most the rest of a last page. The price is
# a table to look things up in, and attention that reads K and V through it: lab 3. And a new problem, honestly shown:
# what was not promised can run out. An engine then takes back the pages of one sequence and computes it again later
# (*preemption*, lab 4); nobody is cut short.
#
# **Play.** Change the number of requests, the seed or the page size (a divisor of 100) and look how the two differ.
# With pages of 50 slots you are nearly back where we began.

# %%
PAGE_SIZE = 4
manager = CacheManager(num_blocks=100 // PAGE_SIZE, block_size=PAGE_SIZE, enable_prefix_caching=False)
more = random_requests(60, seed=1)
outcomes = [replay(more, Contiguous(100, use("1.16"))), replay(more, Paged(manager, *use("1.19")))]
print("finished in one piece and on pages:", [len(outcome.finished) for outcome in outcomes])

# %% [markdown]
# ## 10. From logits to a token
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
# A batch has a row per sequence, so all of them work on `[rows, V]`, each row by itself. A token that is out gets the
# logit $-\infty$, which softmax turns into probability 0.

# %% [markdown]
# <!-- card 1.20 -->
# Last things first: a uniform random number $u \in [0, 1)$ picks the first token whose running sum of probabilities
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


# %% tags=["exercise:1.20"]
def draw(probs, u):
    cdf = probs.double().cumsum(-1)  # SOLUTION: running sums, in float64
    target = u[:, None] * cdf[:, -1:]  # one number per row
    return (cdf <= target).sum(-1)  # SOLUTION: the first token whose running sum exceeds the target


# %%
check("1.20")

# %% [markdown]
# Does it draw what it should? The distribution is known exactly, so chance can be held to account: over many draws, a
# count strays from *probability times draws* by about the square root of that, and by more than two such steps in one
# case out of twenty.

# %%
from twophase_labs.autoregression.sampling_pictures import draw_counts, draw_distributions

draw_tokens = use("1.20")
probs = torch.randn(12, generator=torch.Generator().manual_seed(4)).softmax(-1)
u = torch.rand(20_000, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
counts = torch.bincount(draw_tokens(probs.expand(len(u), -1), u), minlength=12)
draw_counts(counts, probs)
plt.show()

# %%
# NBVAL_CHECK_OUTPUT
expected = probs.double() * len(u)
chi_square = float(((counts - expected) ** 2 / expected).sum())
print(
    f"chi-square {chi_square:.1f} with {len(probs) - 1} degrees of freedom; about {len(probs) - 1} is what chance gives"
)

# %% [markdown]
# ### A seed for each request
#
# A user who sends a seed wants the same answer tomorrow. But tomorrow others are in the batch. With one generator for
# all, every neighbour takes numbers away; with a number that depends on nothing but *(seed, position)*, neighbours
# don't exist. This engine computes such numbers with Philox, a generator without a state.

# %%
from twophase.engine.philox import uniforms

rows = torch.randn(3, 50, generator=torch.Generator().manual_seed(6)).softmax(-1)  # three requests


def one_generator(who, num_steps=8):
    generator = torch.Generator().manual_seed(1)
    return [torch.multinomial(rows[who], 1, generator=generator)[0].item() for _ in range(num_steps)]


def own_seeds(who, num_steps=8):
    u = [uniforms([100 + i for i in who], [0] * len(who), [position] * len(who)) for position in range(num_steps)]
    return [draw_tokens(rows[who], torch.from_numpy(each))[0].item() for each in u]


# %%
# NBVAL_CHECK_OUTPUT
for name, sampler in (("one generator", one_generator), ("own seeds", own_seeds)):
    print(f"{name:13} alone      {sampler([0])}")
    print(f"{'':13} in company {sampler([0, 1, 2])}")

# %% [markdown]
# The first request's tokens, alone and with two others. Only stateless numbers keep the promise.

# %% [markdown]
# ### Shaping the distribution

# %% [markdown]
# <!-- card 1.21 -->
# *Temperature* $T > 0$ divides the logits. Below 1 the likely gets likelier, above 1 all get more alike;
# probabilities become proportional to $p^{1/T}$. ($T = 0$ would divide by zero; engines take it to mean *the
# likeliest*.)
#
# ```python
# >>> apply_temperature(torch.tensor([[1.0, 3.0]]), 0.5)
# tensor([[2., 6.]])
# ```


# %% tags=["exercise:1.21"]
def apply_temperature(logits, temperature):
    return logits / temperature  # SOLUTION: new logits


# %%
check("1.21")

# %% [markdown]
# How many tokens are worth a thought? After *The capital of France is*, most probability is on one. Other
# sentences are more open.

# %% [markdown]
# <!-- card 1.22 -->
# SmolLM2 is to continue *My favourite food is*. Take its tokens from the likeliest down until they hold 90 % of the
# probability. How many are that, of 49,152? (A factor of 4 counts as close.)

# %% tags=["exercise:1.22"]
guess_1_22 = 400  # SOLUTION: tokens

# %%
check("1.22")

# %%
from twophase_labs.autoregression.serving import first_probabilities

for prompt in ("Once upon a time", "The capital of France is", "My favourite food is"):
    ordered, order = first_probabilities(prompt).sort(descending=True)
    num_tokens = int((ordered.cumsum(-1) < 0.9).sum()) + 1
    best = [open_engine().tokenizer.decode([token]) for token in order[:4].tolist()]
    print(f"{prompt:26} {num_tokens:4} tokens hold 90 %; the likeliest are {best}")
measured("1.22", num_tokens)

# %% [markdown]
# In one sentence a single token, in another hundreds, and behind them a tail of tens of thousands that are nonsense
# one by one and likely enough together to spoil a long text. So the tail is cut, by one of three rules.

# %% [markdown]
# <!-- card 1.23 -->
# *Top-k* (arXiv:1805.04833) keeps the $k$ likeliest, whatever their probability. What is exactly as likely as the
# $k$-th stays too, so that the result does not depend on how a device sorts equals; a $k$ beyond the vocabulary keeps
# all.
#
# ```python
# >>> keep_top_k(torch.tensor([[1.0, 4.0, 2.0, 3.0]]), 2)
# tensor([[-inf, 4., -inf, 3.]])
# ```


# %% tags=["exercise:1.23"]
def keep_top_k(logits, k):
    lowest = logits.topk(min(k, logits.shape[-1])).values[:, -1:]  # SOLUTION: the k-th largest logit of each row
    return logits.masked_fill(logits < lowest, -math.inf)  # SOLUTION: the others at minus infinity


# %%
check("1.23")

# %% [markdown]
# <!-- card 1.24 -->
# *Top-p*, or nucleus sampling (arXiv:1904.09751), keeps the smallest set of likeliest tokens that holds at least the
# probability $p$: few where the model is sure, many where it is not. The token with which the sum reaches $p$ belongs
# to the set.
#
# ```python
# >>> logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
# >>> keep_top_p(logits, 0.6).softmax(-1)      # 0.5 is not enough, 0.5 + 0.3 is
# tensor([[0.6250, 0.3750, 0.0000]])
# ```


# %% tags=["exercise:1.24"]
def keep_top_p(logits, p):
    probs = logits.softmax(-1)
    ordered = probs.sort(-1, descending=True).values  # SOLUTION: the likeliest first
    before = ordered.cumsum(-1) - ordered  # SOLUTION: for each, the sum of the likelier ones
    lowest = ordered.masked_fill(before >= p, 1.0).amin(-1, keepdim=True)  # the least likely that stays
    return logits.masked_fill(probs < lowest, -math.inf)  # SOLUTION: the others at minus infinity


# %%
check("1.24")

# %% [markdown]
# <!-- card 1.25 -->
# *Min-p* (arXiv:2407.01082) keeps what is at least `min_p` times as likely as the likeliest: no counting, no sorting.
#
# ```python
# >>> logits = torch.tensor([[0.6, 0.3, 0.1]]).log()
# >>> keep_min_p(logits, 0.25).softmax(-1)     # 0.25 · 0.6 = 0.15
# tensor([[0.6667, 0.3333, 0.0000]])
# ```


# %% tags=["exercise:1.25"]
def keep_min_p(logits, min_p):
    probs = logits.softmax(-1)
    threshold = min_p * probs.amax(-1, keepdim=True)  # SOLUTION: the least probability that is enough, per row
    return logits.masked_fill(probs < threshold, -math.inf)  # SOLUTION: the others at minus infinity


# %%
check("1.25")

# %% [markdown]
# ### Measure
#
# The same real distribution under each processor. Panels show the likeliest 16 of all tokens; the title says how many
# are left in all.

# %%
warm, top_k, top_p, min_p = use("1.21"), use("1.23"), use("1.24"), use("1.25")
logits = first_probabilities("My favourite food is").log()[None]
panels = {
    "as the model says": logits,
    "temperature 0.5": warm(logits, 0.5),
    "top-k, k = 5": top_k(logits, 5),
    "top-p, p = 0.5": top_p(logits, 0.5),
    "min-p 0.15": min_p(logits, 0.15),
}

# %%
distributions = {name: each[0].softmax(-1) for name, each in panels.items()}
draw_distributions(distributions, 16, open_engine().tokenizer.decode)
plt.show()

# %% [markdown]
# Temperature changes every bar and drops none. The other three drop the tail and scale up the rest, with the cut at a
# number, at a sum, or at a height.

# %% [markdown]
# <!-- card 1.26 -->
# The loop that ends. `next_token(ids)` gives the next token of the text so far. The text ends with a token of
# `stop_ids` (reason `"stop"`) or with the `max_tokens`-th new token (`"length"`); if both, it is a stop, for the
# model had finished. The stop token is part of the output; what stands in the prompt ends nothing.
#
# ```python
# >>> complete(lambda ids: ids[-1] + 1, [5, 6], stop_ids={9}, max_tokens=10)
# ([7, 8, 9], 'stop')
# >>> complete(lambda ids: ids[-1] + 1, [5, 6], stop_ids={9}, max_tokens=2)
# ([7, 8], 'length')
# ```


# %% tags=["exercise:1.26"]
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
check("1.26")

# %% [markdown]
# ### Real text
#
# Everything together, with your functions where they pass: the engine runs SmolLM2 over its pages and hands over
# logits; processors, draw and loop are the ones above.

# %%
from twophase_labs.autoregression.serving import NextLogits

llm, run = open_engine(), use("1.26")
prompt_ids = llm.tokenizer.encode("Once upon a time, there was a little")
end_ids = llm.model_config.eos_token_ids


def tell(seed, temperature, k, p, least, max_tokens=28):
    next_logits = NextLogits()

    def next_token(ids):
        logits = min_p(top_p(top_k(warm(next_logits(ids)[None], temperature), k), p), least)
        u = uniforms([seed], [0], [len(ids) - len(prompt_ids)])
        return int(draw_tokens(logits.softmax(-1), torch.from_numpy(u)))

    return run(next_token, prompt_ids, end_ids, max_tokens)


# %%
everything = llm.model_config.vocab_size
settings = {
    "cool": (0.7, 50, 0.9, 0.05),
    "as it is": (1.0, everything, 1.0, 0.0),
    "hot": (1.8, everything, 1.0, 0.0),
    "hot, min-p": (1.8, everything, 1.0, 0.1),
}
for name, setting in settings.items():
    output, reason = tell(11, *setting)
    print(f"{name + ':':11} ... a little{llm.tokenizer.decode(output)} [{reason}]\n")

# %% [markdown]
# And the whole against the engine's own sampler, which works on all rows of a batch at once, in other ways: same
# seed, same parameters. Token for token, or one of the two is wrong.

# %%
from twophase import SamplingParams

output, reason = tell(7, 0.8, 50, 0.9, 0.05, max_tokens=24)
params = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05, seed=7, max_tokens=24)
(theirs,) = llm.generate([{"prompt_token_ids": prompt_ids}], params, use_tqdm=False)[0].outputs
print(llm.tokenizer.decode(output))
print("the same tokens:", list(theirs.token_ids) == output, "| the same reason:", theirs.finish_reason == reason)

# %% [markdown]
# ### Read the result
#
# Temperature alone cannot be turned up far: at 1.8 the tail takes over, and the text falls apart. With the tail cut,
# the same temperature gives something to read. A processor costs the engine a pass over the vocabulary per sequence
# and step, and top-p a sort; that is why production samplers sort a few hundred candidates and look at the rest only
# when need be.
#
# **Play.** Other seeds, other settings; `temperature=0.01` is nearly greedy. How low must `p` be before the stories
# of all seeds begin alike?

# %%
for seed in (1, 2, 3):
    output, _ = tell(seed, temperature=0.8, k=50, p=0.9, least=0.0, max_tokens=10)
    print(f"seed {seed}: ... a little{llm.tokenizer.decode(output)}")

# %% [markdown]
# ## Checkpoint
#
# Tick what you could explain to a colleague without looking. What you can't, is a section to go back to.
#
# - [ ] why a text's log-probability is a sum, and what the model's row of logits has to do with it (1)
# - [ ] why training sees all positions at once and generation does not (2)
# - [ ] what exactly is kept in a cache, and what would break if positions were not offset (5)
# - [ ] how many bytes a token takes, for any model whose `config.json` you are shown (6)
# - [ ] which key/value head a query head reads, and how you would notice that it reads the wrong one (7)
# - [ ] how many requests a card serves at a time, with what margin, in GB and in GiB (8)
# - [ ] why a request can fail in a cache that is mostly empty, and what a page changes (9)
# - [ ] what temperature, top-k, top-p and min-p keep, and why a seed belongs to a request (10)

# %% [markdown]
# ## 11. Knowledge check
#
# *Needs: a clear head.* Eight questions over the whole lab.

# %% [markdown]
# <!-- card 1.27 -->
# Which of these leaves the bytes per token as they are?
# (a) twice as many layers,
# (b) K and V in int8 instead of fp16,
# (c) twice as many query heads over the same key/value heads,
# (d) one key/value head instead of eight.

# %% tags=["exercise:1.27"]
answer_1_27 = "c"  # SOLUTION: one letter

# %%
check("1.27")

# %% [markdown]
# <!-- card 1.28 -->
# A model with 48 layers, 8 key/value heads of 128 numbers, in fp16. How many GiB do 16,384 tokens take?

# %% tags=["exercise:1.28"]
answer_1_28 = 3  # SOLUTION: GiB

# %%
check("1.28")

# %% [markdown]
# <!-- card 1.29 -->
# Match: (a) internal fragmentation, (b) external fragmentation, (c) neither: the price of paging.

# %% tags=["exercise:1.29"]
answer_1_29 = {
    "reserved for 200 tokens, 40 written": "a",  # SOLUTION: a letter
    "60 slots free, no hole above 20": "b",  # SOLUTION: a letter
    "the last page of a sequence, half full": "a",  # SOLUTION: a letter
    "the block table of a sequence": "c",  # SOLUTION: a letter
}

# %%
check("1.29")

# %% [markdown]
# <!-- card 1.30 -->
# A service produces 3,000 tokens per second. An answer has 150 tokens, and a request stays 10 seconds. How many
# requests are inside on average?

# %% tags=["exercise:1.30"]
answer_1_30 = 200  # SOLUTION: requests

# %%
check("1.30")

# %% [markdown]
# <!-- card 1.31 -->
# What does each keep? (a) as many as it takes to hold a given probability, (b) a fixed number, (c) all above a height
# that the best one sets, (d) everything, in other proportions.

# %% tags=["exercise:1.31"]
answer_1_31 = {
    "temperature": "d",  # SOLUTION: a letter
    "top-k": "b",  # SOLUTION: a letter
    "top-p": "a",  # SOLUTION: a letter
    "min-p": "c",  # SOLUTION: a letter
}

# %%
check("1.31")

# %% [markdown]
# <!-- card 1.32 -->
# Temperature 2 and then top-p 0.9, against top-p 0.9 and then temperature 2. Which keeps more tokens?
# (a) the first, or as many, (b) the second, (c) always the same, order does not matter.

# %% tags=["exercise:1.32"]
answer_1_32 = "a"  # SOLUTION: one letter

# %%
check("1.32")

# %% [markdown]
# <!-- card 1.33 -->
# With a cache, what does the step for token number 500 do in one layer?
# (a) computes K and V of 500 tokens,
# (b) computes Q, K, V of one token and looks at nothing else,
# (c) computes Q of one token and takes all K and V from the cache,
# (d) computes Q, K, V of one token, adds K and V to the cache, and attends to 500.

# %% tags=["exercise:1.33"]
answer_1_33 = "d"  # SOLUTION: one letter

# %%
check("1.33")

# %% [markdown]
# <!-- card 1.34 -->
# Without a cache, step $t$ computes $t$ positions; with one it computes 1. How many times fewer positions does a
# cache compute over 1,000 steps?

# %% tags=["exercise:1.34"]
answer_1_34 = 500.5  # SOLUTION: a factor

# %%
check("1.34")

# %% [markdown]
# ## Principles
#
# 1. **Generation is sequential, so keep what is finished.** K and V of a token never change; computing them once turns
#    quadratic work into linear.
# 2. **Count bytes before you run.** $2 L H_{kv} D b$ per token decides how many people a card serves. Units are part
#    of a number.
# 3. **Memory is throughput.** Little's law: what does not fit inside is not served per second.
# 4. **Promise nothing you need not.** Pages given on demand waste at most the rest of one page; the price is a table,
#    and a plan for the day when pages run out.
# 5. **Right shapes prove little.** A wrong head map, a dropped token or a stale position runs without complaint.
#    Compare with an independent oracle.
# 6. **Randomness belongs to the request.** Its numbers depend on its seed and position, not on its neighbours.

# %% [markdown]
# ## Troubleshooting, by symptom
#
# | symptom | likely cause | section |
# |---|---|---|
# | fluent nonsense, no error | wrong head map; positions not offset; keys of another sequence | 5, 7 |
# | first token right, later ones drift | the cache misses a token or holds one twice; position off by one | 5 |
# | slower with every token | the cache is not used: the whole text is computed again | 3, 4 |
# | out of memory with half the requests expected | K or V forgotten; GB for GiB; no workspace | 6, 8 |
# | requests refused, memory free | reservations for `max_tokens`; fragmentation | 9 |
# | memory shrinks with every request served | a table that is not closed | 9 |
# | the answer never ends | stop ids missing (an instruct model has its own); limit counted from the prompt | 10 |
# | empty answer | the stop test looks at the prompt too | 10 |
# | same seed, different text | one generator shared by the batch | 10 |
# | `nan` or an error while sampling | every token dropped: top-p without the token that crosses | 10 |

# %% [markdown]
# ## What to read next
#
# - Attention Is All You Need, arXiv:1706.03762: where K and V come from.
# - Fast Transformer Decoding: One Write-Head is All You Need, arXiv:1911.02150: MQA, and the arithmetic of decoding.
# - GQA, arXiv:2305.13245; and DeepSeek-V2, arXiv:2405.04434, for keeping a compressed latent instead of heads.
# - Efficient Memory Management for Large Language Model Serving with PagedAttention, arXiv:2309.06180: vLLM.
# - Efficiently Scaling Transformer Inference, arXiv:2211.05102: memory budgets for large models.
# - The Curious Case of Neural Text Degeneration, arXiv:1904.09751: top-p; Hierarchical Neural Story Generation,
#   arXiv:1805.04833: top-k; Min-p Sampling, arXiv:2407.01082.
#
# Lab 2 looks at the first of the two phases: the prompt, all tokens at once. [02_prefill.ipynb](02_prefill.ipynb)
