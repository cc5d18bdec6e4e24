# %% [markdown]
# # Lab 5: more from one engine
#
# Four labs built an engine that computes every token of every request, once, in order, against all of the past. Each of
# these properties can be relaxed. One of them has been since lab 1, by default. The first cell shows which: two
# requests about one document, one after the other, with exact answers.

# %%
import torch

from twophase_labs.advanced.prefix_service import DOCUMENT, QUESTION, first_token, prompt_of, shared_engine

torch.set_num_threads(1)
llm, document = shared_engine(), prompt_of(10_000, DOCUMENT)  # SmolLM2; 480 tokens
first_token(llm, prompt_of(100, 16))  # a warm-up
for name, question in (("first", 20_000), ("second", 30_000)):
    metrics = first_token(llm, document + prompt_of(question, QUESTION))
    print(f"the {name} request waits {1e3 * metrics.ttft_s:.0f} ms for its first token")

# %% [markdown]
# The second request did not pay for the document. What else could an engine leave out without changing a token? And the
# second client has a clock: what has that client just learned about the first? Write down what you expect. Section 1
# builds the cache and answers the second question.

# %% [markdown]
# <!-- opening minutes: 4 -->
# <!-- map -->

# %% [markdown]
# **After this lab you can**
#
# - share computed prefixes between requests, overwrite them in a safe order, and keep tenants apart;
# - draft tokens, in a chain or in a tree, and verify them so that the output does not show it; say when drafting loses;
# - force a model to write what a program can read, token by token;
# - let a sequence grow in bounded memory, and say what it forgets.
#
# Each technique comes with a proof that the answer stays what it was (or a measure of how far it moves), a figure for
# what it saves, and a workload on which it loses. You need labs 1 to 4. No GPU is needed.
#
# **How it works.** Commit to a prediction, write the code, run `check("5.1")`. `hint("5.1")` helps in up to three
# steps, `reveal("5.1")` shows a solution. If you skip an exercise, later cells use the reference solution and say so.
# Each section follows the course's [method](../docs/method.md).

# %% tags=["setup"]
import math
from collections import OrderedDict

import numpy as np
import torch

from twophase_labs import ____, check, hint, measured, reference, reveal, use

torch.set_num_threads(1)

# %% [markdown]
# ## 1. Prefix caching: what need not be computed twice
# <!-- minutes: 46 -->
#
# Requests begin alike. There is the system prompt of a service, the examples in front of every task, the document that
# ten questions are about, and the conversation so far, which each new message sends again. K and V of a token depend on
# that token and those before it, and on nothing else (lab 1). So if two prompts agree in their first 200 tokens, so do
# their K and V; and lab 3 has already separated *which block* a token is in from *which sequence* it belongs to. One
# block can be in two block tables.
#
# What is missing is a way to find it. Given a new prompt: is there a block with the K and V of its first 16 tokens? One
# with those of the next 16, *behind these*? Blocks are found by a **hash chain**: a block's hash is computed from the
# hash of the block before it and from its own tokens, and thus from everything that precedes it.

# %%
from twophase.cache.prefix_cache import block_digest, salt_digest, tokens_to_bytes
from twophase_labs.advanced import prefix_pictures

prompts = {
    "Ann": "You are a friendly clerk of a bank. What is my balance today?",
    "Ben": "You are a friendly clerk of a bank. What do you sell?",
    "Cem": "You are a strict clerk of a bank. What is my balance today?",
}
rows = {}
for name, text in prompts.items():
    ids, parent, rows[name] = llm.tokenizer.encode(text), salt_digest(""), []
    for start in range(0, len(ids), 4):
        block, is_full = ids[start : start + 4], start + 4 <= len(ids)
        parent = block_digest(parent, tokens_to_bytes(block)) if is_full else None
        rows[name].append((llm.tokenizer.decode(block).strip(), parent))
figure = prefix_pictures.draw_chains(rows)

# %% [markdown]
# Blocks of four tokens here, and the first digits of the engine's own hashes. Ann and Ben share the framed blocks.
# Cem's second block reads the same as theirs and has a different hash: its K and V differ, because an earlier word
# does. A block that is not full has no hash: its owner will still write to it.
#
# **Think first.** What if the hash of a block were made of its own tokens alone? What would the model do then?

# %% tags=["setup"]
from twophase_labs.advanced.prefix_hashing import as_bytes, digest

# %% [markdown]
# <!-- card 5.1 -->
# Compute the hashes of a prompt's full blocks: `hash[0] = digest(digest(salt) + tokens of block 0)`, and from then on
# `hash[i] = digest(hash[i - 1] + tokens of block i)`. `digest` takes bytes and gives 16 bytes; `as_bytes(tokens)` gives
# 8 bytes for each id. The salt is any string, so write `digest(salt.encode())`; what it is for comes later.
#
# ```python
# len(block_hashes([5, 6, 7, 8, 9], block_size=2)) == 2
# block_hashes([5, 6, 7, 8], 2)[1] != block_hashes([7, 8], 2)[0]  # the same block behind another past
# ```


# %% tags=["exercise:5.1"]
def block_hashes(token_ids, block_size, salt=""):
    num_full = len(token_ids) // block_size  # SOLUTION: how many blocks have a hash
    parent = digest(salt.encode())  # SOLUTION: where the chain starts
    hashes = []
    for index in range(num_full):
        block = token_ids[index * block_size : (index + 1) * block_size]
        parent = digest(parent + as_bytes(block))  # SOLUTION `parent + as_bytes(block)`: what the hash is made of
        hashes.append(parent)
    return hashes


# %%
check("5.1")

# %% [markdown]
# Why not Python's `hash`? It is made for dictionaries, not for untrusted input: a client that can compute it can
# construct a text with the same hash as another client's, and be served the wrong K and V. vLLM had this weakness
# (CVE-2025-25183). This engine uses a cryptographic digest, and still compares the tokens themselves at every hit.
#
# With a hash of the block's own tokens alone, Cem would be given the second block of Ann: K and V that were computed
# behind "friendly". Nothing would fail. The model would go on from a past that Cem never wrote.
#
# **Why not a tree?** SGLang's RadixAttention keeps the tokens in a radix tree, which splits where prompts differ, at
# any token. A chain of block hashes finds whole blocks only. How many tokens does it miss? Here are 500 made-up prompts
# of 13 to 31 tokens with shared beginnings, where nothing is ever evicted:

# %%
# NBVAL_CHECK_OUTPUT
import random

from twophase_labs.advanced import prefix_history

block_hashes, chance = use("5.1"), random.Random(5)
prompts = [prefix_history.made_up_prompt(chance) for _ in range(500)]
print("block size   tokens found by the chain   by the tree   missed per prompt")
for block_size in (4, 8, 16):
    known_hashes, known_beginnings, by_chain, by_tree = set(), set(), 0, 0
    for prompt in prompts:
        hashes = block_hashes(prompt, block_size)
        beginnings = {tuple(prompt[:end]) for end in range(1, len(prompt) + 1)}
        by_chain += block_size * len(known_hashes.intersection(hashes))
        by_tree += len(known_beginnings & beginnings)
        known_hashes |= set(hashes)
        known_beginnings |= beginnings
    print(f"{block_size:>10} {by_chain:>27,} {by_tree:>13,} {(by_tree - by_chain) / len(prompts):>19.1f}")

# %% [markdown]
# **Read the result.** A chain loses at most block_size - 1 tokens per prompt. With prompts of thousands of tokens that
# is nothing, and the chain needs no tree and no locks; with short shared beginnings and large blocks it loses most of
# what there is to share. (Models with layers of several kinds may force large blocks: [528 tokens for one hybrid model
# in vLLM](https://github.com/vllm-project/vllm/issues/40696), so that shorter prompts never had a hit.)

# %% [markdown]
# ### Find, share, overwrite
#
# When a request ends, its blocks become free, but nothing is erased: a free block keeps its contents until the space is
# needed. So the cache costs no extra memory. A block is in one of three states: *in use* (by one or more requests),
# *free and remembered*, *free and blank*.
#
# What remains is a decision: if there is no blank block, which remembered one is overwritten? The least recently used.
# But a request gives back all its blocks at the same moment, and their order among themselves matters.
#
# **Think first.** A request with blocks a0 a1 a2 a3 ends. Later one block has to be overwritten. What is still worth
# something after overwriting a0? After overwriting a3?

# %% [markdown]
# <!-- card 5.2 -->
# `PrefixStore` hands out block ids. `lookup(hashes)` gives the blocks of the longest prefix that is remembered.
# `open(hashes, num_blocks)` returns a pair: the request's `num_blocks` blocks, hits first and the rest from `free`, and
# the number of hits. `close(blocks, hashes)` gives them back. `free` is kept in the order in which blocks will be
# overwritten; a block's value in it is the hash of its contents, `None` if there is nothing to remember.
#
# ```python
# >>> store = PrefixStore(4)
# >>> store.open(["a0", "a1"], 3)    # two full blocks and one that is not
# ([0, 1, 2], 0)
# >>> store.open(["a0", "b1"], 2)    # shares a0 with it
# ([0, 3], 1)
# ```


# %% tags=["exercise:5.2"]
class PrefixStore:
    def __init__(self, num_blocks):
        self.num_users = [0] * num_blocks
        self.free = OrderedDict((block, None) for block in range(num_blocks))
        self.block_of = {}  # hash -> block

    def lookup(self, hashes):
        blocks = []
        for one in hashes:
            if one not in self.block_of:  # SOLUTION: is this where the known prefix ends?
                break
            blocks.append(self.block_of[one])
        return blocks

    def open(self, hashes, num_blocks):
        blocks = self.lookup(hashes)
        num_hit = len(blocks)
        for block in blocks:
            self.num_users[block] += 1
            self.free.pop(block, None)  # SOLUTION: see that it is not overwritten now; it may have been free
        while len(blocks) < num_blocks:
            block, old = self.free.popitem(last=False)  # SOLUTION `last=False`: which end of `free`?
            if old is not None:
                self.block_of.pop(old)  # SOLUTION: its old contents must not be found any more
            self.num_users[block] = 1
            blocks.append(block)
        self.block_of.update(zip(hashes, blocks, strict=False))  # found by any request with the same prefix from now on
        return blocks, num_hit

    def close(self, blocks, hashes):
        names = hashes + [None] * (len(blocks) - len(hashes))
        order = list(zip(blocks, names, strict=True))
        for block, name in reversed(order):  # SOLUTION `reversed(order)`: which one first?
            self.num_users[block] -= 1
            if self.num_users[block] == 0:  # SOLUTION: is it free now?
                self.free[block] = name
                self.free.move_to_end(block, last=name is not None)  # blank ones are used first


# %%
check("5.2")

# %% [markdown]
# **Against the engine's own.** 500 requests with shared beginnings come and go in a pool of 40 blocks, far too few to
# remember everything. The same history runs on the engine's cache manager and on your store.

# %%
# NBVAL_CHECK_OUTPUT
PrefixStore = use("5.2")
found = prefix_history.play_both(PrefixStore(prefix_history.NUM_BLOCKS), block_hashes, num_requests=500)
print("the hits agree for", sum(one == other for one, other in found), "of 500 requests")
print("blocks found: the engine", sum(one for one, _ in found), "and you", sum(other for _, other in found))

# %% [markdown]
# **Open the engine.** This is what happens in it when a request ends:

# %%
from twophase.cache.manager import CacheManager
from twophase_labs.kit.open_engine import show_source

show_source(CacheManager.close)

# %% [markdown]
# **One difference.** Your `close` is given the hashes, and the engine's is not: it *publishes* a block as soon as its K
# and V are computed, while the request goes on. Which request benefits from that?
#
# <details><summary>Answer</summary>
#
# One that arrives while the first is still running. In your store, too, a hash is found from the moment the block is
# handed out, which is even too early (the capstone has to deal with that). An engine that published blocks only in
# `close` would share nothing among requests that overlap in time, and under load most do.
# </details>

# %% [markdown]
# ### What it saves
#
# A prompt of 480 + 16 tokens, of which 480 are remembered: one token in 31 is left to compute. Lab 2 said what a prompt
# costs: nearly all of it is in proportion to the tokens that are computed. Nearly.
#
# **Think first.** Will the first token come 31 times sooner? What does not shrink with the prompt?

# %%
from twophase_labs.advanced.prefix_service import forget_prefixes

forget_prefixes(llm)
num_tokens, fresh = DOCUMENT + QUESTION, iter(range(1_000, 9_000, 500))
ttft_s = {num_tokens: first_token(llm, document + prompt_of(next(fresh), QUESTION)).ttft_s}  # remembered from now on
for num_hit in (160, 320, 480):
    num_times = 1 if num_hit < 480 else 2  # what is short is measured twice
    prompts = [document[:num_hit] + prompt_of(next(fresh), num_tokens - num_hit) for _ in range(num_times)]
    ttft_s[num_tokens - num_hit] = min(first_token(llm, prompt).ttft_s for prompt in prompts)
figure = prefix_pictures.draw_first_tokens(list(ttft_s), list(ttft_s.values()), num_tokens)
print(f"one token in {num_tokens // QUESTION} is computed: {ttft_s[num_tokens] / ttft_s[QUESTION]:.1f} times sooner")

# %% [markdown]
# **Read the result.** A straight line that does not go through 0: a step for 16 tokens reads all the weights, too. On a
# GPU it would be memory-bound, like a decode; on this CPU the arithmetic of 16 tokens counts as well.
#
# Sharing also saves memory. 300 clients are served at once, each with 700 tokens of which the first 200 are common, by
# a model of Llama-2-7B's shape:

# %%
# NBVAL_CHECK_OUTPUT
token_bytes = 2 * 32 * 4096 * 2  # K and V, layers, width, 16 bits
for name, num_common in (("nothing", 0), ("every token", 200), ("whole blocks of 16", 200 // 16 * 16)):
    num_held = 300 * (700 - num_common) + num_common
    print(f"shared: {name:18} {num_held * token_bytes / 1e9:6.2f} GB")
print(
    f"saved by every token: {299 * 200 * token_bytes / 1e9:.2f} GB, at 0.5 MB a token {299 * 200 * 0.5e6 / 1e9:.2f} GB"
)

# %% [markdown]
# (The last figure, 29.9 GB, is often printed: it takes a token for half a megabyte, and a token has 2^19 bytes.)
#
# **And the bandwidth?** Blocks are shared, and still every sequence reads all of them itself, in every step: 300 times
# the same 200 tokens. **Cascade** (shared-prefix) attention reads the common part once, for the queries of all
# sequences together, then each sequence's own part, and merges the two by their LSE. That is your merge of lab 3. Here
# are 16 sequences in one layer of SmolLM2's shape, with 512 tokens in common and 32 of their own:

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.advanced.cascade import HEAD_DIM, KV_BYTES, attend
from twophase_labs.machine.own_parts import own_parts

merge_splits = own_parts("merge_splits")["merge_splits"]  # your 3.10, or the reference
num_seqs, num_common, num_own = 16, 512, 32
draw = torch.Generator().manual_seed(5)
queries = torch.randn(num_seqs, HEAD_DIM, generator=draw)
common_k, common_v = torch.randn(2, num_common, HEAD_DIM, generator=draw)
own_k, own_v = torch.randn(2, num_seqs, num_own, HEAD_DIM, generator=draw)
alone = [
    attend(queries[i : i + 1], torch.cat([common_k, own_k[i]]), torch.cat([common_v, own_v[i]]))[0]
    for i in range(num_seqs)
]
of_common = attend(queries, common_k, common_v)  # one product for all sequences
of_own = [attend(queries[i : i + 1], own_k[i], own_v[i]) for i in range(num_seqs)]
of_own = [torch.cat(part) for part in zip(*of_own, strict=True)]
partial, lse = (torch.stack(part, 1)[:, None] for part in zip(of_common, of_own, strict=True))  # [16, 1, 2 splits, D]
merged, _ = merge_splits(partial, lse)
print("equal:", torch.allclose(merged[:, 0], torch.cat(alone), atol=1e-5))
reads = {"each alone": num_seqs * (num_common + num_own), "cascade": num_common + num_seqs * num_own}
for name, num_read in reads.items():
    print(f"{name:11} reads K and V of {num_read:5,} tokens, {num_read * KV_BYTES / 2**20:5.1f} MiB in bf16")

# %% [markdown]
# **Read the result.** The attention is the same, for an eighth of the bytes. (Engines switch to it only when many
# sequences share a long beginning, because it needs two kernels and a merge; the products of the queries with the
# common part become a matrix product, and so arithmetic that tensor cores can do.)
#
# **Where it loses.** The price of a prefix cache is small, a hash per block. But a prefix is a prefix *from the first
# token*. A service puts the date and the client's name in front of its instructions:

# %%
# NBVAL_CHECK_OUTPUT
forget_prefixes(llm)
instructions = prompt_of(10_000, 96)
for day in (1, 2, 3):
    stamp = prompt_of(100 * day, 8)
    in_front = first_token(llm, stamp + instructions).num_cached_tokens
    behind = first_token(llm, instructions + stamp).num_cached_tokens
    print(f"day {day}: a hit of {in_front:3} tokens with the date in front, of {behind:3} with the date behind")

# %% [markdown]
# None of the blocks is reused. What changes most often belongs last: instructions, examples, the date, the document,
# and the question at the very end. On services that bill hits at a lower price this is money.

# %% [markdown]
# ### What a stranger learns
#
# Many companies use one service, and so share an engine and its prefix cache. One of them has the system prompt below.
# A stranger, who may also send requests, knows the text, for it is a common template, and knows what may stand in its
# three gaps. That makes 64 prompts. The stranger never sees the others' tokens, only how long the first token of a
# request takes.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.advanced import prefix_tenants
from twophase_labs.advanced.prefix_tenants import WHAT, WHEN, WHO

for text, words in zip(prefix_tenants.TEXTS, (WHO, WHAT, WHEN), strict=True):
    print(text[:46].rsplit(" ", 1)[0].replace("{}", "[...]"), "...", "     [...] =", " / ".join(words))

# %% [markdown]
# **Think first.** You can send any prompt and measure the time to its first token. How many requests do you need to
# find out which of the 64 was used? And what happens to the cache while you ask?

# %% tags=["setup"]
from twophase_labs.advanced.prefix_service import PaperService

# %% [markdown]
# <!-- card 5.3 -->
# Write the attack. `PaperService` is a stand-in whose times are computed, not measured: 20 ms for a request, and 1 ms
# for each token that is not a hit.


# %% tags=["exercise:5.3"]
def recover(ask, parts):
    """Find the prompt that another client has used, with a clock.

    `ask(prompt)` serves a prompt, a list of token ids, and returns the seconds to its first token. `parts[i]` lists
    what may stand at place i, each option a list of token ids; the prompt that was used is one option of each part,
    joined. Returns the position of the right option for each part, with one request per option. Options are long enough
    to see a difference; times are noisy, in one direction: a request may take longer than it should.

    >>> ask = PaperService()
    >>> a, b, c, d, e = ([n] * 64 for n in range(5))
    >>> _ = ask(b + d)  # the other client's prompt
    >>> recover(ask, [[a, b, c], [d, e]])
    [1, 0]
    >>> ask.num_requests  # the other client's, and five; not all six combinations
    6
    """
    # BEGIN SOLUTION: part by part
    known, found = [], []
    for options in parts:
        times = [ask(known + option) for option in options]
        pick = times.index(min(times))
        found.append(pick)
        known = known + options[pick]
    return found
    # END SOLUTION


# %%
check("5.3")

# %% [markdown]
# Every measurement destroys what it measures: the first request for a prompt tells whether it was remembered, and makes
# it so. Advice from benchmarking, warm up first, repeat and take the best, is exactly wrong here.
#
# Now on SmolLM2. A company has used its prompt, once. Then the stranger comes. In the second run every tenant has a
# **salt**, a string that the service puts at the start of the chain of each of its requests: the third argument of your
# `block_hashes`, and `cache_salt` of a request to this engine, as to vLLM.

# %%
recover, parts = use("5.3"), prefix_tenants.prompt_parts(llm)
runs, hits = {}, {}
for title, victim, stranger in (("one cache for all", "", ""), ("a salt per tenant", "cedar", "stranger")):
    forget_prefixes(llm)
    first_token(llm, prefix_tenants.whole_prompt(parts), salt=victim)
    ask, runs[title], hits[title] = prefix_tenants.clock_of(llm, salt=stranger)
    found = recover(ask, parts)
    read = ", ".join(words[pick] for words, pick in zip((WHO, WHAT, WHEN), found, strict=True))
    print(f"{title}: {read}, after {len(runs[title])} requests; right: {found == list(prefix_tenants.SECRET)}")

# %%
figure = prefix_pictures.draw_probes(runs, (WHO, WHAT, WHEN), prefix_tenants.SECRET)

# %% [markdown]
# **Read the result.** On the left three short bars give a prompt away, and 12 requests are enough for 64 prompts, since
# a prefix is found *part by part*, like a combination lock whose wheels click one by one. With a salt per tenant (on
# the right), no part of the prefix is faster; the shortest bar of a part (orange) is chance. The counts say the same
# without a clock:

# %%
# NBVAL_CHECK_OUTPUT
for title, found in hits.items():
    print(f"{title}: tokens hit for each of the first part's options: {found[: len(WHO)]}")

# %% [markdown]
# This has been done to public services: arXiv:2409.20002 reads other users' prompts token by token, and an audit
# (arXiv:2502.07776) found caches shared between clients at seven providers. The cure is one argument of a request. What
# it costs is the sharing *between* tenants: tenants that trust each other may share a salt.
#
# > **In production, 2026.** Prefix caching is on by default: [`enable_prefix_caching` is True in
# > vLLM](https://github.com/vllm-project/vllm/blob/002f10e0cfa1373a19a0d2756598a34b700d20e5/vllm/config/cache.py), with
# > SHA-256 for the hashes and [`cache_salt` for tenants](https://docs.vllm.ai/en/latest/design/prefix_caching/);
# > [`enable_block_reuse` is True in
# > TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html). SGLang keeps a
# > radix tree of tokens where you keep a chain of hashes; its flag is the one that [switches it off,
# > `--disable-radix-cache`](https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md).
# > By roofline, an 8B model in bf16 on an H100 (989 TFLOP/s, 3.35 TB/s): 496 tokens are 7.9 TFLOP, 8.0 ms; the 16 that
# > are left take 4.8 ms, one read of all 16 GB of weights (15 without the input embedding, of which a step reads a few
# > rows). Longer documents therefore gain more.
#
# **Takeaway.** With 480 of 496 tokens a hit, a prefill computes 16 tokens, and the same clock that shows the saving
# singles out one of 64 prompts in 12 requests unless tenants have salts.

# %% [markdown]
# ## 2. Speculative decoding: propose cheaply, then verify
# <!-- minutes: 47 + 6 -->
#
# Lab 3 ended with idle arithmetic. A decode step reads all the weights to compute one token, and the arithmetic units
# wait for memory. On a GPU, a step for eight sequences takes hardly longer. But what if there is only one sequence, and
# its client is in a hurry? Its tokens come one after the other: the next cannot be computed before this one is there.
#
# Unless the next tokens are proposed cheaply, as **drafts** for the model to verify. Say the text is `def area(width,`
# and the four drafts are ` height`, `):`, ` return` and ` width`. Put the newest token *and the four drafts* into one
# step, like a chunk of a prompt. The model then says what it would have drawn after each of the five:
#
#     behind   ,          height      ):          return      width
#     draft    height     ):          return      width       -
#     model    height     ):          \n          (ignored: behind a wrong draft)
#
# If it would have drawn the first draft, then what it says after that draft counts too; and so on until a draft is
# wrong. Here two were **accepted**, and the step yields three tokens: as many as there are accepted drafts, *plus one*,
# since what the model says behind the last accepted draft needs no draft. The share of drafts that are accepted is the
# **acceptance rate**.
#
# The step has written K and V of all four drafts. Those of the two wrong ones stay in their slots and are not read: the
# sequence is shorter again, and the next step writes over them.

# %%
from twophase_labs.advanced import draft_engine, draft_pictures

passes_s = {
    "one sequence": {num: draft_engine.seconds_of_pass(num) for num in (0, 4, 8)},
    "eight sequences": {num: draft_engine.seconds_of_pass(num, 8) for num in (0, 4, 8)},
}
figure = draft_pictures.draw_passes(passes_s)

# %% [markdown]
# **Read the result.** For one sequence, four drafts cost little on this machine: five tokens read the weights once,
# like one. With eight sequences the same four drafts are 32 more tokens in a step of 8, and this CPU's arithmetic has
# no room for them. A GPU has: 40 tokens are far below lab 3's ridge. Whether drafting pays is decided by this picture
# and by the acceptance rate.

# %%
# NBVAL_CHECK_OUTPUT
flop_rate, bandwidth, num_weights = 989e12, 3.35e12, 8e9  # an H100's data sheet, 16 bits; Llama-3-8B
read_s = 2 * num_weights / bandwidth
for num_seqs in (1, 8, 32, 128):
    pass_s = {k: max(read_s, 2 * num_weights * num_seqs * (1 + k) / flop_rate) for k in (0, 4)}
    factor = pass_s[4] / pass_s[0]
    print(f"{num_seqs:3} sequences: {1e3 * pass_s[0]:.1f} ms a step, with 4 drafts each {factor:.2f} times as long")
experts_read = {num_tokens: 128 * (1 - (1 - 8 / 128) ** num_tokens) for num_tokens in (1, 5, 64, 320)}
for num_tokens, num_experts in experts_read.items():
    print(f"a mixture of 128 experts, 8 per token: a step of {num_tokens:3} tokens reads {num_experts:5.1f} of them")

# %% [markdown]
# **Read the result.** Weights only, by roofline, for a *dense* model: the drafts use arithmetic that would be idle
# otherwise, until they no longer fit under the ridge. Most large open models are mixtures of experts (lab 7), and there
# it is the other way round: one sequence with four drafts reads the weights of 35 experts instead of 8, while 64
# sequences read nearly all of them in any case, with drafts or without.

# %% [markdown]
# ### A drafter without a model
#
# Much of what models write they have just read. They quote, summarise, correct, continue a list, write a function that
# looks like the one above. So look up where the newest tokens stood before, and propose what followed there ("prompt
# lookup"; A. Saxena, 2023). It costs a search, and no model.
#
#     def surface(width, height, depth): return 2 * (width * height  ...  def volume(width, height
#                 ^^^^^^^^^^^^^~~~~~~~~                                               ^^^^^^^^^^^^^
#                 found        the draft                                             the newest tokens

# %% [markdown]
# <!-- card 5.4 -->
# Write the lookup.


# %% tags=["exercise:5.4"]
def ngram_draft(token_ids, num_draft, longest=3, shortest=1):
    """Draft at most `num_draft` tokens from what followed the newest tokens when they stood together before.

    Takes the newest n tokens of the list `token_ids`, for n from `longest` down to `shortest`. If they stood together
    before, the draft is the tokens that followed; of several places the latest counts. If they did not, the next n is
    tried. Nothing found: an empty list. The list is not changed.

    >>> ngram_draft([7, 1, 2, 3, 4, 1, 2], num_draft=3)
    [3, 4, 1]
    >>> ngram_draft([7, 7, 7], num_draft=3)  # places may overlap with the end; the text ends there
    [7]
    >>> ngram_draft([1, 2, 3], num_draft=3)
    []
    """
    # BEGIN SOLUTION: the longest agreement, the latest place
    for n in range(longest, shortest - 1, -1):
        newest = token_ids[-n:]
        for start in range(len(token_ids) - n - 1, -1, -1):
            if token_ids[start : start + n] == newest:
                return token_ids[start + n : start + n + num_draft]
    return []
    # END SOLUTION


# %%
check("5.4")

# %% [markdown]
# ### When is a draft accepted?
#
# In greedy decoding that is plain: when it is the token with the highest logit. But a model at temperature 1 has no
# right token. It has a distribution p, and "right" must mean: **the tokens that come out are distributed as if there
# had been no drafts**. Say the drafter has drawn its token from a distribution q of its own. In the picture, what
# should be done with a token that the drafter draws more often than the model? And how do the tokens that the drafter
# draws too rarely get their share?

# %%
p_picture = np.array([0.36, 0.22, 0.18, 0.12, 0.08, 0.04])
q_picture = np.array([0.20, 0.40, 0.10, 0.16, 0.04, 0.10])
figure = draft_pictures.draw_overlap(p_picture, q_picture)

# %% [markdown]
# **Think first.** The drafter drew token 1, which has 0.22 in p and 0.40 in q. With which probability should it be
# kept, so that in the long run token 1 comes in 22 % of all cases? And if it is not: which tokens may take its place,
# and how often each?

# %% tags=["setup"]
from twophase_labs.advanced.draft_chance import Chance

# %% [markdown]
# <!-- card 5.5 -->
# Verify drafts. Keep draft i with the largest probability at which the output can still be distributed as p[i]. Replace
# the first draft that is not kept by one of the tokens that q gives too little, drawn in proportion to what each lacks,
# and end the pass there. If all are kept, draw one more from p[k], the row behind the last. Both formulas follow from
# the picture; the hints have them, too.


# %% tags=["exercise:5.5"]
def verify(draft, p, q, chance):
    """The tokens that a pass over k drafts yields, a list of 1 to k + 1, distributed as if drawn from p alone.

    No rule with that property keeps more drafts. `draft` is a list of k token ids, `p` an array [k + 1, V] with the
    model's probabilities at each place, `q` an array [k, V] with those that the drafts were drawn from.
    `chance.uniform()` is a number in [0, 1), `chance.draw(weights)` a token id in proportion to weights, which need not
    add up to 1. No argument is changed.

    >>> one_hot = np.eye(4)
    >>> verify([2, 0], p=one_hot[[2, 3, 1]], q=one_hot[[2, 0]], chance=Chance(0))  # the second is not kept
    [2, 3]
    >>> verify([2], p=one_hot[[2, 1]], q=one_hot[[2]], chance=Chance(0))  # kept, and one more
    [2, 1]
    """
    # BEGIN SOLUTION: keep, or draw from what is left
    tokens = []
    for i, token in enumerate(draft):
        keep = min(1, p[i, token] / q[i, token])
        if chance.uniform() >= keep:
            left = np.clip(p[i] - q[i], 0, None)
            return [*tokens, chance.draw(left)]
        tokens.append(token)
    return [*tokens, chance.draw(p[len(draft)])]
    # END SOLUTION


# %%
check("5.5")

# %% [markdown]
# This is algorithm 1 of Leviathan, Kalman and Matias (arXiv:2211.17192; also Chen et al., arXiv:2302.01318). In the
# picture:

# %%
figure = draft_pictures.draw_overlap(p_picture, q_picture, is_answered=True)

# %% [markdown]
# Nothing is approximate here, whatever the drafter: the two blue parts of the picture *are* p. A drafter that is far
# from the model does no harm; it is only of no use. Here are 10,000 passes under this rule, and under two others that
# are often seen.

# %%
from twophase_labs.advanced.draft_chance import counts_at, run_passes

verify = use("5.5")


def draw_from_p(draft, p, q, chance):
    kept = chance.uniform() < min(1, p[0, draft[0]] / q[0, draft[0]])
    return draft if kept else [chance.draw(p[0])]  # instead of what is left


def half_and_half(draft, p, q, chance):
    return draft if p[0, draft[0]] > 0.5 * q[0, draft[0]] else [chance.draw(p[0])]  # "good enough"


print("the model       ", " ".join(f"{share:6.3f}" for share in p_picture))
for name, way in (("the exact rule", verify), ("draws from p", draw_from_p), ("good enough", half_and_half)):
    outputs = run_passes(way, np.stack([p_picture, p_picture]), q_picture[None], num_passes=10_000)
    shares = counts_at(outputs, 0, 6) / len(outputs)
    print(f"{name:16}", " ".join(f"{share:6.3f}" for share in shares))

# %% [markdown]
# **Read the result.** Only the exact rule repeats the model's shares. Drawing from p again gives token 1, which the
# drafter likes, too often, and "good enough" far too often.
#
# **In the engine** it is simpler still. A lookup has no q: it proposes one token, with probability 1. Then min(1, p/q)
# is p of that token, and max(p - q, 0) is p without it. Drawing a token from p and comparing it with the draft comes to
# the same. Since the engine has a random number for each request and position (lab 1), it draws with the very number
# that this position has anyway, so **the same tokens come**, with drafts and without, at any temperature.

# %%
from twophase_features.speculation import rejection

show_source(rejection.accepted_run)

# %% [markdown]
# **One difference.** Your rule accepts with probability $\sum_x \min(p, q)$. What does the engine's rule accept with,
# if its drafter draws from a q of its own, and why may it still be the better choice for a server?
#
# <details><summary>Answer</summary>
#
# $\sum_x p\,q$ if both draw independently, which is less. In return an answer with a seed depends neither on the batch
# nor on how many drafts fitted; and a draft model that draws with the same random number mostly meets the
# same token where q is close to p.
# </details>

# %% [markdown]
# ### Two workloads
#
# *Copying*: one request, greedy, "repeat this program exactly". *Inventing*: eight requests, temperature 1, a story
# each. Each is run without drafts; with yours in every step; and with yours *as long as it pays*. For that the engine
# measures what a token costs both ways, eight steps each, stays with the cheaper one, and tries again later
# (`SpeculationGate` in `twophase_features/speculation/gate.py`).

# %%
ngram_draft = use("5.4")
drafter = draft_engine.OwnDrafter(ngram_draft)
works = {"copying, one request": draft_engine.copying, "inventing, eight": draft_engine.inventing}
speeds, copies = {}, None
for title, work in works.items():
    runs = draft_engine.three_ways(work, drafter, num_rounds=1)
    copies = copies or runs
    speeds[title] = {way: run.tokens_per_s for way, run in runs.items()}
    print(f"{title:24} steps   drafting steps   accepted drafts   tokens/s   same answers")
    for way, run in runs.items():
        num_same = sum(one == other for one, other in zip(run.outputs, runs["without"].outputs, strict=True))
        accepted = f"{run.num_accepted} of {run.num_drafts}"
        same = f"{num_same} of {len(run.outputs)}"
        print(
            f"  {way:22} {run.num_steps:>5} {run.num_drafting:>16} {accepted:>17} {run.tokens_per_s:>10.1f} {same:>14}"
        )

# %%
figure = draft_pictures.draw_speeds(speeds)

# %% [markdown]
# **Read the result.** Your function has just drafted for the real engine. Copying wins: most drafts are accepted, and
# one sequence leaves the machine idle. Eight stories are the opposite: the text hardly repeats, so the look-up matches
# mostly single tokens and its drafts are mostly wrong; on this CPU every rejected draft is work that the others wait
# for. "As long as it pays" takes the better way, and pays for trying both. All answers are the same, the sampled ones
# included (up to rounding). A server watches the same two counters, `num_draft_tokens` and `num_accepted_tokens` of
# `llm.engine.stats()`; vLLM exports them as `vllm:spec_decode_num_draft_tokens` and
# `vllm:spec_decode_num_accepted_tokens`.

# %% [markdown]
# ### Drafts from the model's own features
#
# A lookup drafts badly where the text hardly repeats. A **draft model** is a small model with the same vocabulary: it
# writes the next tokens as the large one would, only worse, and reads the whole text for that. But the large one has
# just computed a hidden state that knows far more about what comes. **EAGLE** drafts from that: a head gets the hidden
# state from which the newest token was drawn, and the embedding of that token; it estimates the next hidden state, and
# the large model's own output matrix makes logits of it. **MTP** (multi-token prediction) is such a head that was
# trained together with the model, as in DeepSeek-V3.
#
# EAGLE's head is a transformer layer. How far does a mere linear map get, fitted by least squares to the beginnings of
# 48 stories that SmolLM2 writes now?
#
# **Think first.** The hidden state alone, the embedding alone, or both: which head drafts best, and why does neither
# input suffice?

# %%
from twophase_labs.advanced import feature_drafts

tales = feature_drafts.HELD_OUT
read, unread = (feature_drafts.places_of(asked) for asked in (feature_drafts.FITTED, tales[:6]))
inputs_of = {
    "the embedding of the newest token": lambda at: at.embedded,
    "the hidden state that it was drawn from": lambda at: at.hidden,
    "both": lambda at: torch.cat([at.hidden, at.embedded], dim=1),
}
for name, inputs in inputs_of.items():
    head = feature_drafts.fit(inputs(read), read)
    is_in = head.likeliest(head(inputs(unread)), 3) == unread.next_ids[:, None]
    first, any_of_two = is_in[:, 0].float().mean(), is_in[:, :2].any(1).float().mean()
    print(f"{name:40} {head.weight.numel():7,} weights: right at {first:.0%} of the places,", end=" ")
    print(f"one of two at {any_of_two:.0%}")

# %% [markdown]
# **Read the result.** The hidden state says what the model was about to write, but not which token was drawn; the
# embedding says only that. Together they are right more often than either alone. And look at the last column: often the
# second choice is the right one.
#
# **In the engine.** The last head drafts one token behind the other, from the second one on from its own estimates. Its
# drafts are *drawn*, so there is a q: it keeps the row that each was drawn from for your `verify`
# (`advanced/head_drafter.py`). It can draft only tokens that occur in the 48 stories.
#
# **Think first.** SmolLM2 and the head are asked for stories that the head was not fitted to, greedily and at two
# temperatures; for answers that are not stories; and for eight stories at once. Where do drafts win? (A draft behind
# the first rejected one is not looked at; percentages count the others.)

# %%
from twophase_labs.advanced import head_drafter

print(f"the head drafts {len(head.types)} of {llm.model_config.vocab_size:,} tokens")
cases = {
    "stories, temperature 0": (tales[:3], 0, {}),
    "stories, temperature 0.5": (tales[:3], 0.5, {}),
    "stories, temperature 1": (tales[:3], 1, {}),
    "other questions": (feature_drafts.OUTSIDE, 0, {"num_tokens": 16}),
    "eight stories at once": (tales[:8], 0, {"num_tokens": 8, "together": True}),
}
# A step takes the same time at any temperature, so one run without drafts serves both.
pairs, plain, draft_s = {}, {}, {}
for title, (asked, temperature, options) in cases.items():
    without = plain[tuple(asked)] = plain.get(tuple(asked)) or head_drafter.run(asked, 0, **options)[0]
    drafted, draft_s[title] = head_drafter.run(asked, temperature, head, verify, **options)
    pairs[title] = without, drafted
    same = "drawn" if temperature else "same tokens" if without.outputs == drafted.outputs else "other tokens"
    print(
        f"{title:23} {drafted.acceptance:4.0%} of the drafts accepted, {without.num_steps:3} steps become "
        f"{drafted.num_steps:3}, {drafted.tokens_per_s / without.tokens_per_s:.2f} times as fast; {same}"
    )

# %%
figure = draft_pictures.draw_pairs(pairs)

# %% [markdown]
# **Read the result.** Above temperature 0 there are no tokens to compare: different random numbers draw different
# tokens, from the same distribution. The acceptance rate is highest where the head was fitted and where the next token
# is nearly certain. At temperature 1 the stories take turns that the greedy ones never took, and on other questions the
# head lacks the words as well: the few accepted drafts hardly pay for the others. With eight sequences a step is longer
# by every draft that it verifies, as the first picture of this section shows, so fewer steps need not be less time.

# %% [markdown]
# ### A tree of drafts
#
# Where the drafter hesitates between two tokens, a chain bets on one of them, and everything behind a wrong bet is
# lost. A **tree** of drafts has both, each with continuations of its own, and one pass verifies them all. Every node is
# a token of the batch. Its position is its depth behind the text; and a **tree mask** lets it see the text, itself and
# the nodes that it follows, and nothing of the other branches. The model then says a token behind each node, and at
# most one branch can be what it would have written.
#
# **Think first.** A tree has two tokens for the first position, and two behind each of them. How many rows has the
# batch? How many tokens can the pass yield at most? What has to happen to K and V of the branches that lose?

# %% [markdown]
# <!-- card 5.6 -->
# Write the mask, and pick the accepted path. Node 0 is the newest token of the text; `parents[i]` is the node that node
# i follows, always one before it in the list, and -1 for node 0.


# %% tags=["exercise:5.6"]
def tree_mask(parents):
    """Which nodes each node sees: a bool tensor [N, N], row i for node i. It sees itself and all that it follows.

    >>> tree_mask([-1, 0, 0, 1]).int().tolist()  # nodes 1 and 2 follow node 0, node 3 follows node 1
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
    """
    # BEGIN SOLUTION: what its parent sees, and itself
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask
    # END SOLUTION


def accepted_path(parents, token_ids, next_ids):
    """The nodes that stay, from node 0 on, as a list in order.

    `token_ids[i]` is the token of node i, `next_ids[i]` the token that the model says behind it. A node is accepted if
    the node that it follows is, and the model says its token there. Nodes that follow the same one have different
    tokens. The pass yields `next_ids` of each node of the path: the accepted drafts, and one more.

    >>> accepted_path([-1, 0, 0, 1], token_ids=[9, 4, 5, 6], next_ids=[4, 6, 7, 8])
    [0, 1, 3]
    >>> accepted_path([-1, 0, 0, 1], token_ids=[9, 4, 5, 6], next_ids=[5, 6, 7, 8])
    [0, 2]
    """
    # BEGIN SOLUTION: one way down
    path = [0]
    for node in range(1, len(parents)):
        if parents[node] == path[-1] and token_ids[node] == next_ids[path[-1]]:
            path.append(node)
    return path
    # END SOLUTION


# %%
check("5.6")

# %% [markdown]
# **On SmolLM2**: the same head grows chains and trees for a held-out story, and SmolLM2 verifies each in one pass under
# your mask. K and V of your path are kept, those of all other nodes are dropped.

# %%
import time

from twophase_labs.advanced import draft_tree
from twophase_labs.kit.models import smollm2, transformers_greedy

tree_mask, accepted_path = use("5.6")
model, story_ids = smollm2()[0], draft_tree.ids_of(tales[7])
expected = transformers_greedy(model, torch.tensor(story_ids), 24, eos_id=model.config.vocab_size)[len(story_ids) :]
for name, widths in {"no drafts": (), "a chain of 3": (1, 1, 1), "a tree: 2, 2, 1": (2, 2, 1)}.items():
    grow = draft_tree.grower(head, widths)
    start_s = time.perf_counter()
    written = draft_tree.write(story_ids, 24, grow, tree_mask, accepted_path)
    num_accepted = sum(len(path) - 1 for _, path in written.passes)
    same = written.token_ids[:24] == expected.tolist()
    print(f"{name:16} {len(written.passes):2} passes, {time.perf_counter() - start_s:4.1f} s;", end=" ")
    print(f"{num_accepted:2} of {written.num_drafts:3} drafts accepted; the tokens of transformers: {same}")

# %%
tree, path = max(written.passes, key=lambda one: len(one[1]))
node_texts = [llm.tokenizer.decode([token]) for token in tree.token_ids]
draft_tree.draw_tree(tree, tree_mask(tree.parents), path, node_texts)

# %% [markdown]
# **Read the result.** Most passes yield several tokens, and all of them are the model's own. The tree needs a few
# passes less than the chain, for 11 rows instead of 4 in each; on a GPU these rows are free, on this CPU they are
# not. How to spend a budget of rows, deep or wide, depends on how sure the drafter is: EAGLE-2 grows its tree where its
# own probabilities are high. The engine here drafts chains only. (With sampling, the children of a node are tried one
# after the other by your rule of 5.5, each against what the ones before it have left of p.)
#
# > **In production, 2026.** Speculative decoding is off by default. vLLM's
# > [guide](https://docs.vllm.ai/en/latest/features/speculative_decoding/) recommends what drafts from the large model's
# > own hidden states, EAGLE and MTP, then draft models; n-gram look-up and suffix decoding give "modest speedups".
# > SGLang has them all behind
# > [`--speculative-algorithm`](https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md).
# > Its default verification accepts a draft with the probability p of the large model, as this engine does for a
# > lookup; your rule of 5.5, min(1, p/q), is opt-in (`--speculative-use-rejection-sampling`). Both keep the
# > distribution. `--speculative-accept-threshold-single` and `-acc` below 1.0 are "good enough", with its shifted
# > shares. By roofline, in the table above, four drafts per sequence are free on an H100 up to dozens of sequences of a
# > dense 8B model.
#
# **Takeaway.** Drafts give the same tokens in fewer steps, as printed above for a copy and for stories: they use idle
# arithmetic to save weight reads. For a dense model they pay below the ridge; for a mixture of experts they cost extra
# reads where the batch is small; and they pay only on text that the drafter can foresee.

# %% [markdown]
# ### Going further
#
# **What a draft is worth.** If each draft is right with probability alpha, independently of the others, then a pass
# with k drafts yields 1 + alpha + alpha^2 + ... + alpha^k = (1 - alpha^(k+1)) / (1 - alpha) tokens on average
# (arXiv:2211.17192, equation 1). Time is counted in steps of the model without drafts. A pass takes 1, plus c for
# making each draft (theorem 3.8 there), plus v for verifying each, which the paper takes to be free, and the first
# picture of this section measures. The speed-up is the tokens of a pass over its cost:

# %%


def speed_up(alpha, num_draft, draft_cost, verify_cost):
    num_tokens = sum(alpha**i for i in range(num_draft + 1))
    return num_tokens / (1 + num_draft * (draft_cost + verify_cost))


def best_num_draft(alpha, verify_cost):
    return max(range(17), key=lambda num_draft: speed_up(alpha, num_draft, 0, verify_cost))


verify_costs = {}
for name, times_s in passes_s.items():
    verify_costs[name] = max(0.0, (times_s[8] / times_s[0] - 1) / 8)
    best = [f"{alpha:.0%}: {best_num_draft(alpha, verify_costs[name])}" for alpha in (0.1, 0.4, 0.7, 0.9)]
    print(f"{name}: drafts that pay at an acceptance of " + ", ".join(best))
figure = draft_pictures.draw_speed_ups(speed_up, verify_costs)

# %% [markdown]
# **Read the result.** The costs are of this machine: how much longer a pass with eight drafts was in the first picture.
# The best number of drafts grows with the acceptance: the k-th draft is of use only if all before it were accepted.
# With 0 drafts the speed-up is 1: off.

# %% [markdown]
# **Predicted and measured**, for the copy above, and for the stories with the head. As above, alpha counts only
# drafts that were looked at; `accepted drafts` in the table of the two workloads counts all that were made.

# %%
copy = copies["always"]
predicted = speed_up(copy.acceptance, draft_engine.NUM_DRAFTS, 0, verify_costs["one sequence"])
got = speeds["copying, one request"]["always"] / speeds["copying, one request"]["without"]
print(f"of the copy's drafts that were looked at {copy.acceptance:.0%} were accepted")
print(f"copy: predicted {predicted:.1f} times as fast, measured {got:.1f}")

without, drafted = pairs["stories, temperature 0"]
step_s = without.decode_s / without.num_steps
cost = draft_s["stories, temperature 0"] / step_s
predicted = speed_up(drafted.acceptance, 3, cost, verify_costs["one sequence"])
print(f"a draft takes {1e3 * cost * step_s:.1f} ms, {cost:.0%} of a step of {1e3 * step_s:.0f} ms")
print(f"stories: predicted {predicted:.2f} times as fast, measured {drafted.tokens_per_s / without.tokens_per_s:.2f}")

# %% [markdown]
# ## 3. Structured outputs: only what a program can read
# <!-- minutes: 25 + 2 -->
#
# A program that reads a model's answer wants JSON with certain keys, or a date, or one of four words. It can ask for
# that in the prompt, check, and ask again when the answer has an extra comma. Or it can make a wrong answer impossible:
# in each step, before a token is chosen, every token after which no valid answer could follow is ruled out. The model
# chooses among what is left. This is **constrained** (or guided) **decoding**, and what it writes are **structured
# outputs**.
#
# A grammar can be written as a *finite-state machine*: states, and for each state the characters that may come and
# where they lead. This one reads prices such as `7`, `12` and `12.50`; in a state with a double border the text may
# end.
#
# ```mermaid
# flowchart LR
#     0((0)) -- "0-9" --> 1(((1)))
#     1 -- "0-9" --> 1
#     1 -- "." --> 2((2))
#     2 -- "0-9" --> 3((3))
#     3 -- "0-9" --> 4(((4)))
# ```
#
# Every regular expression can be turned into such a machine, and so can a JSON Schema without unbounded nesting. (For
# nesting one needs a stack besides, and the idea stays the same.)
#
# **Think first.** A language model does not write characters. Its tokens are pieces of text: `5`, `50`, `.5`, `5.`,
# ` dollars`. After `12`, which of these five may come? And after `12.`?

# %% tags=["setup"]
from twophase_labs.advanced.guided_machine import CITY_RECORD, PRICE

# %% [markdown]
# <!-- card 5.7 -->
# `machine.edges[state]` is a dict from a character to the state after it, and `machine.accepting` the set of states in
# which the text is complete. `advance` reads a text from some state on. `token_mask` says for each token whether it may
# come next; `texts` holds the tokens' texts; the token `end_id` ends the answer, and any other token without text may
# never come (it would lead nowhere).
#
# ```python
# >>> advance(PRICE, 0, "12."), advance(PRICE, 0, ".5")
# (2, None)
# >>> token_mask(PRICE, 1, ["5", "50", ".5", "5.", " dollars", "", "<end>"], end_id=6).tolist()
# [True, True, True, True, False, False, True]
# ```


# %% tags=["exercise:5.7"]
def advance(machine, state, text):
    """The state after `text`, or None if it cannot be read from here."""
    for char in text:
        state = machine.edges[state].get(char)  # SOLUTION: the state after this character, None if there is none
        if state is None:
            return None
    return state


def token_mask(machine, state, texts, end_id):
    mask = torch.zeros(len(texts), dtype=torch.bool)
    for token_id, text in enumerate(texts):
        mask[token_id] = text != "" and advance(machine, state, text) is not None  # SOLUTION: may this token come?
    mask[end_id] = state in machine.accepting  # SOLUTION: may the answer end here?
    return mask


# %%
check("5.7")

# %% [markdown]
# On SmolLM2's vocabulary, with a grammar that is less trivial: `{"city": "`, 1 to 16 letters, `", "inhabitants": `, a
# number without leading zeros, `}`. What is allowed in a few of its states?

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.advanced import guided_answers, guided_model, guided_pictures

advance, token_mask = use("5.7")
texts, end_id = guided_model.token_texts(), guided_model.end_id()
for so_far in (
    "",
    '{"city": "',
    '{"city": "Lima',
    '{"city": "Lima", "inhabitants": ',
    '{"city": "Lima", "inhabitants": 9}',
):
    mask = token_mask(CITY_RECORD, advance(CITY_RECORD, 0, so_far), texts, end_id)
    some = [texts[i] for i in mask.nonzero().flatten().tolist()]
    print(f"{so_far or '(start)':37} {len(some):>6,} tokens: {'  '.join(map(repr, sorted(some, key=str.isalpha)[:4]))}")

# %% [markdown]
# The mask works on text, so it does not care how a tokenizer cuts it. Inside the city's name nearly a third of the
# vocabulary may come, and after its first letter the quotation mark as well, alone or with the comma. Even so, fewer
# tokens are allowed after `Lima`: a name has at most 16 letters, so tokens of more than 12 are out. Where the grammar
# prescribes a text, a handful of ways to cut it are left. At the end only the token without text remains: to stop.
#
# **In a loop** with the real model: mask, choose, advance. The prompt shows one record as an example and asks for Lima.

# %%
next_logits = guided_model.next_logits_after(guided_model.record_prompt("Lima"))
state, ids, how_many = CITY_RECORD.start, [], []
while not ids or ids[-1] != end_id:
    mask = token_mask(CITY_RECORD, state, texts, end_id)
    how_many.append(int(mask.sum()))
    ids.append(int(next_logits(ids).masked_fill(~mask, -math.inf).argmax()))
    state = advance(CITY_RECORD, state, texts[ids[-1]])
print("".join(texts[i] for i in ids[:-1]))

# %%
figure = guided_pictures.draw_choices([*(texts[i] for i in ids[:-1]), "(end)"], how_many, len(texts))

# %% [markdown]
# **Read the result.** The model decided little: a name and a number. For everything else the grammar allowed a few
# tokens, all of them beginnings of the same text. One could append such a text at once and save these steps, which is
# called jump-forward decoding. But a text has several tokenisations; the one that is appended need not be the one that
# the model would have chosen, and then its distribution has changed. (As *drafts*, verified as in section 2, they would
# do no harm.) vLLM has [struck it off its plan](https://github.com/vllm-project/vllm/issues/15735).
#
# ### What a mask costs
#
# Your mask reads the text of every token, anew in each state. Outlines (arXiv:2307.09702) computes the masks of all
# states beforehand: an index that is quick to look up and slow to build. llguidance, which this engine uses, keeps the
# vocabulary as a **trie**: tokens with the same beginning share a path, so one character that cannot stand there rules
# out all tokens behind it. xgrammar (arXiv:2411.15100) does some of each.

# %% tags=["setup"]
from twophase_labs.advanced.guided_machine import trie_of

# %% [markdown]
# <!-- card 5.8 -->
# Write the walk.


# %% tags=["exercise:5.8"]
def allowed_ids(machine, state, node):
    """The ids of all tokens that can be read from here, those of `node` included, as a list in any order, each once.

    `node` is a node of a trie: `node.token_ids` lists the tokens whose text ends there, `node.children` is a dict from
    a character to the node below. The machine has read the text up to `node` and is in `state`. A child's own children
    are looked at only if the machine can read its character. The trie is not changed.

    >>> trie = trie_of(["5", "50", ".5", "5.", " dollars", "", "5"])  # a token without text is not in it
    >>> sorted(allowed_ids(PRICE, 1, trie))
    [0, 1, 2, 3, 6]
    >>> sorted(allowed_ids(PRICE, 2, trie))
    [0, 1, 6]
    """
    # BEGIN SOLUTION: go down the trie and along the edges together
    found, to_visit = [], [(node, state)]
    while to_visit:
        here, at = to_visit.pop()
        found += here.token_ids
        for char, child in here.children.items():
            if char in machine.edges[at]:
                to_visit.append((child, machine.edges[at][char]))
    return found
    # END SOLUTION


# %%
check("5.8")

# %% [markdown]
# Now time both of yours, in the state before the city's name, where most tokens are allowed, and in the first state,
# where few are; then the library's mask, and an index: the masks of all states of the grammar, made before the first
# token.

# %%
allowed_ids, trie = use("5.8"), trie_of(texts)
for name, so_far in (("the city's name", '{"city": "'), ("the first state", "")):
    state = advance(CITY_RECORD, 0, so_far)
    start_s = time.perf_counter()
    flat = token_mask(CITY_RECORD, state, texts, end_id)
    flat_s = time.perf_counter() - start_s
    walked = allowed_ids(CITY_RECORD, state, trie)
    walk_s = time.perf_counter() - start_s - flat_s
    same = sorted(walked) == flat.nonzero().flatten().tolist()
    print(f"{name:16} all tokens {1e3 * flat_s:6.1f} ms, the trie {1e3 * walk_s:6.2f} ms; the same tokens: {same}")
start_s = time.perf_counter()
index = {state: allowed_ids(CITY_RECORD, state, trie) for state in CITY_RECORD.edges}
index_s = time.perf_counter() - start_s
print(f"llguidance takes {1e3 * guided_answers.library_mask_s():.3f} ms for a mask")
print(
    f"an index of {len(index)} states: {1e3 * index_s:.0f} ms by the trie; by whole masks {len(index) * flat_s:.1f} s"
)

# %% [markdown]
# **Read the result.** The trie pays most where the grammar allows least. An index costs what is printed above, once per
# grammar. It pays if many requests share the grammar, and the first of them waits for it. Where each request brings its
# own grammar, make masks on demand.
#
# **A mask guarantees the syntax, not the facts.** It knows the grammar and nothing of Lima. And it hides failure. Ask
# something that has no answer:

# %%
from twophase import SamplingParams, StructuredOutputs

nonsense = {"role": "user", "content": "Is the colour of Tuesday heavier than the number seven?"}
yes_or_no = SamplingParams(temperature=0, max_tokens=8, structured_outputs=StructuredOutputs(choice=["Yes", "No"]))
for name, params in {"free": SamplingParams(temperature=0, max_tokens=30), "guided": yes_or_no}.items():
    output = guided_answers.engine().chat([nonsense], params, use_tqdm=False)[0].outputs[0]
    print(f"{name:7} {output.text.strip()!r} ({output.finish_reason})")

# %% [markdown]
# Unguided, the answer at least looks odd enough to be noticed; guided, it is a plain "No". So allow an answer "unknown"
# in the schema, or a key that may be null. And give the model room to think before the grammar begins; a mask that asks
# for the result first forbids the reasoning that would have led to it.
#
# > **In production, 2026.** Structured outputs need no flag, only a schema in the request. vLLM's `backend` is
# > [`auto`](https://docs.vllm.ai/en/latest/features/structured_outputs/): xgrammar, then guidance (llguidance, as
# > here), then outlines, the first that can do what the request asks for; lm-format-enforcer only by name. SGLang
# > offers
# > [`--grammar-backend`](https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md)
# > with xgrammar, outlines and llguidance. By roofline the GPU hardly notices: a mask of 128,256 bits is 16 KB, so 64
# > sequences bring 1 MB, 0.3 µs of an H100's bandwidth. What costs is the walk on the CPU, in each step and for each
# > sequence.
#
# **Takeaway.** Of 49,152 tokens the grammar leaves a handful in most states; a mask costs the engine a fraction of a
# millisecond, guarantees the syntax, and says nothing about the facts.

# %% [markdown]
# ### Going further
#
# **What a mask saves.** Eight cities, one record each, sampled with temperature 0.8, without a mask and with one. The
# prompt shows a complete record of another city. A program then checks each answer with `json` and `jsonschema`: four
# keys and no others, a whole number, one to three languages.

# %%
free = guided_answers.ask(guided=False)
for output, problem in list(zip(free.outputs, free.problems, strict=True))[:3]:
    print(output.text[:110], "\n   ", problem[:90] or "valid")
guided = guided_answers.ask(guided=True)
for name, answers in {"without a mask": free, "guided": guided}.items():
    each = f"{answers.num_tokens / answers.num_valid:.0f}" if answers.num_valid else "infinitely many"
    print(f"{name:15} {answers.num_valid} of 8 valid, {answers.num_tokens} tokens: {each} for each valid one")

# %% [markdown]
# **Read the result.** With a chance p of being valid, an answer takes 1/p attempts on average. Guided answers take one,
# and they are not longer.

# %% [markdown]
# ## 4. Windows, sinks, and what is forgotten
# <!-- minutes: 22 + 12 -->
#
# A conversation that goes on all day, a log that is read as it grows: the K and V of a sequence grow with it, and in
# the end one sequence fills the pool. Let a query see only a **window** of the last W keys, and give back the blocks
# that no query will see any more. Memory is bounded then, and so is the time of a step, however long the text becomes.
#
# Mistral 7B was trained this way (arXiv:2310.06825). A key one window back was itself computed, in the layer below,
# from keys up to one window further back, so older text can still reach the present through the layers. SmolLM2 was
# *not* trained with a window. We put one on it all the same, and see what happens.
#
# **Think first.** Positions count from 0, a window of W includes the query's own position, and blocks have 4 slots. The
# window is 6, and 13 tokens are computed. Which keys does the *next* token see? Which blocks can be given back?

# %%
from twophase_labs.advanced import window_engine, window_pictures

figure = window_pictures.draw_sequence((5, 10, 13), block_size=4, window=6, num_sinks=2)

# %% [markdown]
# The next token, 13, sees 8 to 13. Without more, blocks 0 and 1 could be given back. But two of the tokens are coloured
# differently: **sinks**, the first tokens of the text, that always stay visible, so block 0 stays. They look useless;
# in a moment you will see what they are for.

# %% [markdown]
# <!-- card 5.9 -->
# Which blocks must stay?


# %% tags=["exercise:5.9"]
def kept_blocks(num_tokens, block_size, window, num_sinks):
    """The blocks of a sequence that must be kept, as a list of indices in order.

    `num_tokens` tokens are computed; their K and V are in blocks 0, 1, 2 ... of `block_size` slots. A block is kept if
    the next token, or any later one, sees a key in it: one of the first `num_sinks` tokens, or one in the window, which
    holds the last `window` positions, the query's own included. The block into which the next token is written is one
    of them, if it exists already.

    >>> kept_blocks(13, block_size=4, window=6, num_sinks=2)
    [0, 2, 3]
    >>> kept_blocks(13, block_size=4, window=100, num_sinks=0)
    [0, 1, 2, 3]
    """
    # BEGIN SOLUTION: sinks, and what the next token sees
    num_blocks = -(-num_tokens // block_size)
    num_sink_blocks = -(-num_sinks // block_size)
    first_seen = max(0, num_tokens + 1 - window)
    first_block = first_seen // block_size
    return [i for i in range(num_blocks) if i < num_sink_blocks or i >= first_block]
    # END SOLUTION


# %%
check("5.9")

# %%
# NBVAL_CHECK_OUTPUT
kept_blocks = use("5.9")
for num_tokens in (100, 500, 2_000, 8_000, 100_000):
    held = kept_blocks(num_tokens, block_size=16, window=256, num_sinks=4)
    print(f"{num_tokens:>7,} tokens: {len(held)} blocks of {-(-num_tokens // 16):,} are held, first {held[:3]}")

# %% [markdown]
# **Open the engine.** It asks the opposite question, which blocks no query will see any more:

# %%
from twophase_features.windows.sliding_window import SlidingWindow

show_source(SlidingWindow.freed_blocks)

# %% [markdown]
# **One difference.** Yours gives a list, and this a single range. Why is there never more than one gap?
#
# <details><summary>Answer</summary>
#
# The sinks are the first tokens, and the window ends at the newest. What neither sees lies in one piece between them.
# A rule that keeps scattered keys ("Going further") could not be a range.
# </details>

# %% [markdown]
# **Into the engine.** Its cache manager gives back what your `kept_blocks` leaves out. A text of 256 tokens is read in
# chunks of 64, under a window of 64. The pool has 9 blocks of 16: a chunk fills 4, the 63 keys that its first query
# sees besides itself fill up to 4 more, and the sinks 1. Blocks that are given back are overwritten soon, so a query
# that looked at one of them would read the wrong text.

# %%
# NBVAL_CHECK_OUTPUT
text = window_engine.text_ids(256)
with_sinks = window_engine.windowed_engine(kept_blocks, 64, 4, pool=9)
mine = window_engine.read(with_sinks, text)
own = window_engine.read(window_engine.engine(sliding_window=64, num_attention_sinks=4), text)
print(f"{len(text)} tokens, {-(-len(text) // 16)} blocks; at most {max(mine.pages)} held")
print(f"as LLM(sliding_window=64, num_attention_sinks=4): {torch.allclose(mine.losses, own.losses, atol=1e-3)}")

# %% [markdown]
# **Where attention goes.** Before you predict what the window costs, look at what the model does when it sees
# everything. For each head of each layer: how much of its attention goes to the very first token of the text? It is the
# word "The".

# %%
figure = window_pictures.draw_share_of_first(window_engine.share_of_first_key())

# %% [markdown]
# The word says little, and yet it gets a large part of all attention. The softmax makes weights that sum to 1; a head
# that finds nothing of interest must put its weight *somewhere*, and the first token is the only one that every query
# has seen in training. It serves as a **sink** (StreamingLLM, arXiv:2309.17453). With a window and no sinks, that place
# is taken away, and the weight must go to tokens that do mean something.
#
# **Perplexity** is exp of the mean **surprisal** (negative log-likelihood, NLL), and the surprisal of a token is minus
# the logarithm of the probability that the model gave it: a model that hesitates between two equally likely tokens has
# a perplexity of 2.
#
# **Think first.** A text that the model has never seen, a window of 64 and no sinks. By which factor is the perplexity
# of the tokens after the 64th larger than when everything is seen?

# %%
text, window = window_engine.text_ids(256), 64
readings = {
    "everything": window_engine.read(window_engine.full_engine(), text),
    "window of 64": window_engine.read(window_engine.windowed_engine(kept_blocks, window, 0, 9), text),
    "... and 4 sinks": window_engine.read(with_sinks, text),
}
for name, reading in readings.items():
    print(f"{name:16} at most {max(reading.pages):>3} blocks, perplexity {reading.perplexity(window):.1f}")

# %%
figure = window_pictures.draw_readings(readings, window=window)

# %% [markdown]
# **Read the result.** The damage is done when the first token leaves the window, and four keys undo most of it. What is
# left between the two lower curves is the price of the window proper: older text that would have helped. ("Everything"
# is flat on the left because a prompt takes all of its blocks when it is admitted.)
#
# **What is forgotten.** Perplexity is a mean, and most words are easy. So ask for something that stands in one place
# only: a number is told, other text follows, and then the model is to repeat the number. How surprised is it by the
# right one?

# %%
distances = (60, 106, 122, 128, 129, 152)
tellers = {
    "everything": window_engine.full_engine(),
    "window of 128 and 4 sinks": window_engine.engine(sliding_window=128, num_attention_sinks=4),
}
bits = {name: window_engine.surprises_at_fact(llm, distances) for name, llm in tellers.items()}
figure = window_pictures.draw_memory(distances, bits, window=128, guess_bits=5 * math.log2(10))

# %% [markdown]
# **Read the result.** Within the window the number is remembered as well as ever. At 128, counted from
# a digit to its repetition, each digit is the oldest key in the window of the query that must tell it, with only the
# sinks before it; one token further it is gone, and the model is more surprised than
# by five random digits. So a window is right for text whose past matters less and less, and wrong for retrieval, for
# long documents with questions at the end, for code that was defined far above. No mean over a text shows you that.

# %% [markdown]
# ### Layers of different kinds
#
# Many recent models mix two kinds of layers: some see a window only, the others everything. Gemma 3 (arXiv:2503.19786)
# has five layers with a window of 1,024 for
# each layer that sees everything. The engine keeps one block table per *group* of layers, and gives back the blocks of
# the windowed groups. Here is a small random model with two windowed layers for each full one, while it reads
# and writes 96 tokens in blocks of 8, with a window of 16:

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.advanced import mixed_layers

llm_mixed = mixed_layers.engine(layers=("sliding", "sliding", "full"), window=16, block_size=8)
for num_tokens, held in mixed_layers.blocks_held(llm_mixed, num_prompt=24, num_tokens=96).items():
    print(f"{num_tokens:3} tokens: " + ", ".join(f"{kind} {number:2} blocks" for kind, number in held.items()))

# %% [markdown]
# **Read the result.** Only the blocks of the full layers grow with the text. All groups hold equally many layers, so
# that one pool of blocks serves them; here each layer is a group of its own. So there are two windowed groups of 2
# blocks each, the 4 that are printed; 2 is also what your `kept_blocks(96, 8, 16, 0)` says. The model still reaches its
# whole past, through a third of its layers.
#
# > **In production, 2026.** A window on a model that was trained without one is opt-in: [`max_attention_window` and
# > `sink_token_length` are None in
# > TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html). Models with
# > layers of both kinds are common (gpt-oss, Gemma 2 and 3, Ministral), and vLLM's [hybrid K/V cache
# > manager](https://docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager/) allocates slots per kind of layer, as the
# > cell above does. By roofline: 100,000 tokens of an 8B model hold 13.1 GB of K and V in bf16, 3.9 ms of every step at
# > 3.35 TB/s; with a window of 1,024 in five of six layers it is 2.3 GB and 0.7 ms.
#
# **Takeaway.** A window bounds a sequence of any length to the blocks printed above, four sinks avoid most of the rise
# in perplexity, and what stood one token beyond the window is gone; layers of different kinds pay for the whole past in
# a few layers only.

# %% [markdown]
# ### Going further
#
# **Heavy hitters.** A window keeps what is new, whatever it is worth. H2O (arXiv:2306.14048) keeps what *got
# attention*: each key has a score, the attention that all queries so far have given it, and when the cache is full the
# key with the lowest score goes, unless it is one of the newest, which had no time to earn any.

# %%
from twophase_labs.advanced import heavy_attention

show_source(heavy_attention.heavy_hitters)

# %% [markdown]
# **On SmolLM2.** 160 tokens are read and 48 keys kept, in each head of four layers. Then 64 more tokens come.
# What share of the attention that these pay to the 160 goes to keys that were kept?

# %%
weights, num_read, budget = heavy_attention.attention_weights(224), 160, 48
keeps = {
    "window": lambda read: range(num_read - budget, num_read),
    "window and 4 sinks": lambda read: [*range(4), *range(num_read - budget + 4, num_read)],
    "heavy hitters, half of them recent": lambda read: heavy_attention.heavy_hitters(read, budget, budget // 2),
}
shares = {name: heavy_attention.shares_kept(weights, num_read, keep) for name, keep in keeps.items()}
for name, each in shares.items():
    print(f"{name:35} {100 * float(each.mean()):.0f} % of the attention, {100 * float(each.min()):.0f} % in one head")

# %%
figure = heavy_attention.draw_shares(shares)

# %% [markdown]
# **Read the result.** About half of what a window loses is the attention on the sinks, in the later layers most of it.
# The heavy hitters hold the sinks without being told, and some other keys that each head comes back to. The price:
# every head keeps other positions, so blocks are no longer shared or freed as a whole, and the scores need the
# attention weights, which FlashAttention never writes down. And a key that gets its attention only from the last
# question has been dropped long before.

# %% [markdown]
# ### How long a context, and what instead
#
# One sequence of Llama-3-8B's shape on one H100, by roofline, at four lengths:

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.advanced.long_context import context

for num_tokens in (8_192, 32_768, 131_072, 1_048_576):
    one = context(num_tokens)
    print(
        f"{num_tokens:9,} tokens: {one.kv_bytes / 2**30:5.1f} GiB of K and V, room for {one.num_fit:2}; "
        f"prefill {one.prefill_s:6.2f} s, step {1e3 * one.step_s:4.1f} ms"
    )

# %% [markdown]
# (Where none fits, the times are those of a GPU with enough memory.) A context is a budget before it is a feature: K
# and V grow with its length, the attention of its prefill with the square. So ask first which tokens have to be there.
#
# | instead of a longer context | what it saves | what it loses |
# |---|---|---|
# | retrieve the passages that a question needs | prefill and K/V | a passage that the search did not find |
# | a summary of what is old | the same | details that nobody knew would be asked for |
# | share the common beginning | its prefill and its second copy | nothing, but it must come first |
# | K and V in 8 bits | half the bytes | what a gate (lab 6) measures at your lengths |
# | layers of both kinds | most of the bytes | nothing that you can switch later |
# | heavy hitters | all but a budget | keys that only the last question needs |
# | a window with sinks | all but a constant | everything older |
#
# "A sliding window and int8 beyond 32,000 tokens" is often given as one recipe. They are two decisions.
#
# **Retrieval against a longer context**, measured: a number is told in one of eight passages, and asked for. All
# passages go into the prompt; or only the one that has most words in common with the question; or the question says it
# in other words, and this simple search finds another passage:

# %%
from twophase_labs.advanced import retrieval

library, question = retrieval.passages(), retrieval.QUESTION
found, missed = retrieval.best(library, question), retrieval.best(library, retrieval.IN_OTHER_WORDS)
given = {"all eight passages": library, "the one that was found": [library[found]], "a miss": [library[missed]]}
for name, chosen in given.items():
    num_tokens, ttft_s, answer = retrieval.ask(chosen, question)
    print(f"{name:23} {num_tokens:4} tokens, first token after {1000 * ttft_s:5.0f} ms: {answer!r}")

# %% [markdown]
# **Read the result.** The passage that was found costs a fraction of the tokens and of the time, and the answer is the
# same. A miss is as fast, and nothing in the answer shows that it is one: so a retrieval needs a measure of its own,
# how often the right passage is among those found.

# %% [markdown]
# ## 5. Capstone: your parts in one engine
# <!-- minutes: 19 -->
#
# You have a prefix store and its hashes (5.1, 5.2), a drafter and a verifier (5.4, 5.5), and masks (5.7, 5.8). Here
# they serve one workload together, in the real engine. Four requests begin with the same handbook. Two ask for a
# record under a grammar, two for a function that the handbook contains; a new one comes every third step.

# %% [markdown]
# ```mermaid
# flowchart LR
#     R["requests"] --> S["scheduler<br/>(the engine's)"]
#     S -->|"open, grow, close"| P["your PrefixStore<br/>and block_hashes"]
#     S -->|"room for drafts"| N["your ngram_draft"]
#     N --> M["model<br/>(the engine's)"]
#     P -->|"block tables"| M
#     M -->|"a row of logits<br/>per draft, and one"| V["your verify"]
#     V --> K["your masks"]
#     K --> T["tokens"] --> S
# ```
#
# The adapters are in `advanced/own_engine.py`. Two questions arise only where the parts meet. A block gets its hash
# (here its *name*) when the store hands it out, and its contents a step later; in between the name is *pending*. Which
# blocks of a new prompt may be looked up? And the drafter knows nothing of the grammar. How many of its drafts can be
# kept?

# %% [markdown]
# <!-- card 5.10 -->
# `names_to_ask` returns the leading names of a prompt whose blocks may be hits. It stops before the first name in the
# set `pending`, and before the block that holds the prompt's last token, because the engine needs that token's logits.
# `num_allowed` counts the leading drafts that the grammar lets through from `state`; `advance` is the one you wrote in
# 5.7, `texts` the texts of all tokens. A token without text ends an answer, so it ends a run as well.
#
# ```python
# >>> names_to_ask(["a", "b", "c"], num_tokens=12, block_size=4, pending={"z"})
# ['a', 'b']
# >>> names_to_ask(["a", "b", "c"], num_tokens=13, block_size=4, pending={"b"})
# ['a']
# >>> num_allowed(advance, PRICE, 0, [0, 1, 0, 2], texts=["5", ".5", "x"])
# 3
# ```


# %% tags=["exercise:5.10"]
def names_to_ask(names, num_tokens, block_size, pending):
    num_whole = (num_tokens - 1) // block_size  # SOLUTION: blocks in front of the last token
    ready = []
    for name in names[:num_whole]:
        if name in pending:  # SOLUTION: does the usable prefix end here?
            break
        ready.append(name)
    return ready


def num_allowed(advance, machine, state, drafts, texts):
    for number, draft in enumerate(drafts):
        state = advance(machine, state, texts[draft])  # SOLUTION: the grammar's state behind this draft
        if texts[draft] == "" or state is None:  # SOLUTION: does the run end in front of this draft?
            return number
    return len(drafts)


# %%
check("5.10")

# %% [markdown]
# The masks of all states are made beforehand, by your walk over the trie.

# %%
from twophase_labs.advanced import capstone

names_to_ask, num_allowed = use("5.10")
start_s = time.perf_counter()
guidance = capstone.own_guidance(advance, allowed_ids, num_allowed)
print(f"{len(guidance.masks)} masks, compiled in {time.perf_counter() - start_s:.1f} s")
store = PrefixStore, block_hashes, names_to_ask
mine = {"store": store, "draft": ngram_draft, "verify": verify, "mask": guidance}
plain = capstone.serve(capstone.open_engine(), capstone.workload())

# %% [markdown]
# `plain` is the engine without sharing and drafting, the grammar kept by its own library. Now with your parts: all of
# them, and then each left out in turn.


# %%


def unverified(draft, p, q, chance):
    return [*draft, int(p[-1].argmax())]  # every draft is kept, unseen


ways = {
    "all four": mine,
    "no prefix store": mine | {"store": None},
    "no drafter": mine | {"draft": None, "verify": None},
    "drafts not verified": mine | {"verify": unverified},
    "no grammar": mine | {"mask": None},
}
served = {}
for way, parts_in in ways.items():
    requests = capstone.workload(guided=way != "no grammar")
    served[way] = capstone.serve(capstone.open_engine(**parts_in), requests)

# %% [markdown]
# **Token for token** against the plain engine: no shared prefixes, no drafts, and the grammar kept by llguidance. A
# record is *valid* if its machine reads all of it.

# %%
for way, one in {"the plain engine": plain, **served}.items():
    same = sum(mine == its for mine, its in zip(one.token_ids, plain.token_ids, strict=True))
    records = [output.outputs[0].text for output in list(one.outputs.values())[::2]]
    num_valid = sum(advance(CITY_RECORD, 0, record) in CITY_RECORD.accepting for record in records)
    print(
        f"{way:20} {same} of 4 the same, {num_valid} of 2 records valid; {one.num_steps:3} steps, "
        f"{one.num_accepted:3} of {one.num_drafts:3} drafts accepted, hits of {one.num_hit_tokens:4} tokens"
    )

# %%
figure = capstone.draw_ways({"the plain engine": plain, **served})

# %% [markdown]
# **Read the result.** Each part does one thing. Without the store every request computes the handbook itself and holds
# blocks of its own for it. Without drafts the same tokens take more steps. Drafts that are not verified give the
# fewest steps, but the text is no longer the same: the speed is worth nothing without the second half of the rule.
# Without the grammar the records are what the model happens to write.
#
# **Play.** What is left of the hits if all requests come before the first step? And if each has a number of its own in
# front of the handbook?
#
# ```python
# capstone.serve(capstone.open_engine(**mine), capstone.workload(), every=0).num_hit_tokens
# capstone.serve(capstone.open_engine(**mine), capstone.workload(stamp="Ticket {}. ")).num_hit_tokens
# ```

# %% [markdown]
# ### The first cell again, with your work in place
#
# The same document, the same two questions, and this time your store and your names decide what is computed.

# %%
yours = capstone.open_engine(store=store)
first_token(yours, prompt_of(100, 16))  # a warm-up
for name, question in (("first", 20_000), ("second", 30_000)):
    metrics = first_token(yours, document + prompt_of(question, QUESTION))
    print(f"the {name} request: {1e3 * metrics.ttft_s:.0f} ms, a hit of {metrics.num_cached_tokens} tokens")

# %% [markdown]
# **Takeaway.** Four parts of yours serve four requests with the tokens of the plain engine, in the steps, blocks and
# milliseconds printed above; only two of the four, the verifier and the mask, decide what the answer is, and leaving
# out either shows in the text.

# %% [markdown]
# ### The whole engine in one picture
#
# Five labs have built this engine; only the server in front of it is still to come (lab 8). Every other box is a part
# that you have written, or whose source you have read:
#
# ```mermaid
# flowchart TB
#     C["clients"] -->|"requests, streams"| V["server<br/>(lab 8)"]
#     V --> T["tokenizer, chat template<br/>(lab 1)"]
#     T --> Q["queue"]
#     subgraph host["once per step, on the host"]
#         Q --> P["policy: rank, plan<br/>(lab 4, your DecodesFirst)"]
#         P --> S["scheduler: budgets, slots, preemption<br/>(lab 4)"]
#         S <-->|"open, grow, close"| B["block pool and tables<br/>(lab 3)"]
#         B <--> H["prefix cache: hash chain<br/>(5.1, 5.2)"]
#         S --> D["drafter<br/>(5.4)"]
#     end
#     D -->|"one flat batch:<br/>chunks, decodes, drafts"| R
#     subgraph device["on the device"]
#         R["runner"] --> L["layers: norms, products, MLP<br/>(labs 1 and 2)"]
#         L --> A["attention: prefill tiles, split decode, merge<br/>(labs 2 and 3)"]
#         A --> K["KV pool<br/>(lab 3)"]
#         L --> G["logits"]
#     end
#     G --> M["grammar mask<br/>(5.7, 5.8)"]
#     M --> X["sampler and verifier<br/>(lab 1, 5.5)"]
#     X -->|"tokens"| S
#     X -->|"tokens"| V
# ```
#
# Prompts and decodes, orange and blue in the pictures of this course, go through the same boxes in the same step. That
# is the whole idea of the course: one model, two workloads, one engine.

# %% [markdown]
# ## 6. Knowledge check
# <!-- minutes: 7 -->
#
# Two questions over the whole lab.

# %% [markdown]
# <!-- card 5.11 -->
# Temperature 0.8, and a drafter whose drafts are nearly always wrong, verified by your rule of 5.5 (*rejection
# sampling*). What becomes of the text?
# (a) It follows the drafter wherever the large model (the *target*) is unsure,
# (b) it would be right at temperature 0 only,
# (c) it comes from a mixture of both distributions,
# (d) it has the distribution it would have without a drafter, and comes later.

# %% tags=["exercise:5.11"]
answer_5_11 = "d"  # SOLUTION: one letter

# %%
check("5.11")

# %% [markdown]
# <!-- card 5.12 -->
# What is behind it? Each letter fits once or never. **a** a window without sinks · **b** `max_tokens` · **c** K and V
# of rejected drafts read by later tokens · **d** a replacement drawn from p instead of from what is left of p · **e** a
# prefix cache without salts · **f** a causal mask over the batch in place of the nodes' ancestors · **g** a hash chain
# in place of a radix tree

# %% tags=["exercise:5.12"]
answer_5_12 = {
    "greedy text changes when drafts are switched on": "c",  # SOLUTION: a letter
    "one tenant's first tokens are faster right after another one asked the same": "e",  # SOLUTION: a letter
    "fluent answers turn into noise after a few thousand tokens": "a",  # SOLUTION: a letter
    "valid JSON up to a point, and then nothing": "b",  # SOLUTION: a letter
    "at temperature 1, words that the drafter likes come more often than without it": "d",  # SOLUTION: a letter
    "with a tree of drafts, greedy text changes; with a chain it does not": "f",  # SOLUTION: a letter
}

# %%
check("5.12")

# %% [markdown]
# ### Choosing
#
# | situation | first | why | its price | not first |
# |---|---|---|---|---|
# | chats, many clients | continuous batching, chunks, blocks | weights read once for all | slower tokens | more GPUs |
# | one instruction, many clients | prefix cache, prefix routing | the same K and V | a salt per tenant | two pools |
# | long documents, questions last | retrieval, then 8-bit K/V | K/V is read and held | a miss, rounding | a window |
# | one client, a small device | drafts, a pool for one context | idle arithmetic | wrong drafts | large batches |
# | offline | the largest batch, large chunks | nobody waits for a token | none for clients | static batching |
# | answers for programs | guided decoding | no retries | a mask per step | retries |
# | streams without end | a window with sinks | bounded memory | all that is older | a longer context |
#
# Each row is a hypothesis: `twophase plan` says in a second whether it can be true, a run whether it is.
#
# ### Principles
#
# 1. **First measure what is scarce**: arithmetic, bandwidth, memory or latency. Each technique trades one for another.
# 2. **What is computed once need not be computed twice**, as long as its name says all it depends on.
# 3. **A draft may save time, never change the answer.** Verify, and test that the distribution stayed.
# 4. **What a program reads should be valid by construction**, or say why it is not. A mask guarantees the syntax, not
#    the facts.
# 5. **Test what the model still recalls**, at the length where tokens are evicted.
# 6. **A technique comes with the workload that it hurts.** Without that workload you have not measured yet.
#
# ### Troubleshooting, by symptom
#
# | symptom | likely cause | section |
# |---|---|---|
# | prefix cache on, and no hits | prompts differ in the first block (a date, a salt), or are shorter than one | 1 |
# | hits, then suddenly none | evicted under load; or requests routed to another replica | 1 |
# | the same prompt, faster for strangers | a shared cache without salts: a side channel | 1 |
# | drafts on, text differs at temperature 0 | K and V of rejected drafts read by later tokens, or wrong positions | 2 |
# | drafts on, slower under load | verification is not free once batches are large: switch it off there | 2 |
# | guided output cut off | `max_tokens`; or a stop string that is part of the grammar | 3 |
# | guided output valid, and nonsense | the schema forces a field that the prompt never asks for | 3 |
# | noise after a few thousand tokens | a window without sinks | 4 |
#
# ### What to read next
#
# - SGLang, arXiv:2312.07104: RadixAttention, prefixes shared automatically.
# - Fast Inference from Transformers via Speculative Decoding, arXiv:2211.17192, and Accelerating Large Language Model
#   Decoding with Speculative Sampling, arXiv:2302.01318: the rule, and the proof that it keeps the distribution.
# - EAGLE, arXiv:2401.15077, and Medusa, arXiv:2401.10774: drafts from the model's own features, and trees of them;
#   SpecInfer, arXiv:2305.09781: the tree mask. MoE-Spec, arXiv:2602.16052: drafts for mixtures of experts.
# - Hydragen, arXiv:2402.05099: attention with a shared prefix, read once.
# - Efficient Guided Generation for Large Language Models, arXiv:2307.09702, and XGrammar, arXiv:2411.15100: masks from
#   automata, and how to make them cheap.
# - Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453; H2O, arXiv:2306.14048, and SnapKV,
#   arXiv:2404.14469: keep the keys that get attention.
#
# Lab 6 makes the weights smaller, and asks what that does to the answers.

# %%
from twophase_labs.kit.course_map import closing

closing("5")
