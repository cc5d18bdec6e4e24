# %% [markdown]
# # Lab 5: beyond the basic loop
#
# Four labs built an engine that computes every token of every request, once, in order, in full precision, with all of
# the past, on one machine. Every part of that sentence can be given up. A prefix that somebody has computed already
# need not be computed again. A token that can be guessed need only be checked. An answer that must be JSON need not
# try anything else. The far past can be forgotten, numbers can be shorter, the model can be spread over machines.
#
# Each of these is a switch of the real engine, and each works only as long as something is true of the work that it
# does: that requests begin alike, that texts repeat themselves, that the network is fast. So in this lab every
# technique comes with three things: a proof that the answer stays what it was (or how far it moves), a figure of what
# it saves, and a workload on which it loses.

# %% [markdown]
# **After this lab you can**
#
# - share computed prefixes between requests, overwrite them in a safe order, and keep tenants apart;
# - guess tokens and verify them so that nobody can tell from the output, and say when guessing loses;
# - force a model to write what a machine can read, token by token;
# - let a sequence grow for ever in bounded memory, and say what it forgets;
# - put a gate in front of a change that may cost quality;
# - move pages between processes, split a model over them, and count what travels;
# - plan a service from one file: what fits, how many users, what they will feel.
#
# You need labs 1 to 4; sections say what they build on. No GPU.

# %% [markdown]
# ```mermaid
# flowchart LR
#     A["1 share<br/>prefixes, salts"] --> B["2 guess<br/>drafts, verified"]
#     B --> C["3 constrain<br/>masks, grammars"]
#     C --> D["4-5 forget, round<br/>windows, sinks, a gate"]
#     D --> E["6-7 spread<br/>pages and shards over processes"]
#     E --> F["8-9 plan<br/>pools, one file"]
#     F --> G["10 knowledge check<br/>the whole system"]
# ```
#
# **How it works.** As in the labs before: think first, fill the blanks `____(...)`, run `check("5.1")`. If you are
# stuck, `hint("5.1")` helps in up to three steps and `reveal("5.1")` shows a solution. Any exercise can be left out:
# what follows then runs with the reference's answer, and says so.

# %% [markdown]
# <!-- map -->

# %% tags=["setup"]
import math
import time
from collections import OrderedDict

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F

from twophase import LLM, SamplingParams, StructuredOutputs
from twophase.cache.prefix_cache import block_digest, salt_digest, tokens_to_bytes
from twophase.engine.drafters import NgramDrafter
from twophase_labs import ____, check, hint, measured, reference, reveal, use
from twophase_labs.advanced import (
    draft_engine,
    draft_pictures,
    gate_caches,
    gate_pictures,
    guided_answers,
    guided_model,
    guided_pictures,
    pages_handover,
    pages_pictures,
    pages_shares,
    pages_two_processes,
    pipeline_pictures,
    plan_pools,
    prefix_history,
    prefix_pictures,
    prefix_tenants,
    shards_cost,
    shards_pictures,
    shards_two_processes,
    window_engine,
    window_pictures,
)
from twophase_labs.advanced.draft_chance import Chance, counts_at, run_passes
from twophase_labs.advanced.guided_machine import CITY_RECORD, PRICE
from twophase_labs.advanced.pages_pools import stored
from twophase_labs.advanced.plan_deployments import deployment_of, example, plan_of
from twophase_labs.advanced.prefix_hashing import as_bytes, digest
from twophase_labs.advanced.prefix_service import first_token, forget_prefixes, shared_engine
from twophase_labs.advanced.prefix_tenants import WHAT, WHEN, WHO
from twophase_labs.advanced.prefix_times import (
    DOCUMENT,
    QUESTION,
    prompt_of,
    seconds_of_question,
    seconds_per_token,
)
from twophase_labs.advanced.shards_attention import AttentionWeights, attend, weights_of
from twophase_labs.kit.models import smollm2
from twophase_labs.prefill.real_layer import watch_layer
from twophase_tools.capacity.cautions import cautions_of
from twophase_tools.capacity.report import to_text

torch.set_num_threads(1)

# %% [markdown]
# **The surprise.** Two users ask something about the same document of 480 tokens. Same model, same engine, same
# machine, nobody else there, and the answers are exact, token for token.

# %%
llm = shared_engine()
document = prompt_of(10_000, DOCUMENT)
first_token(llm, prompt_of(100, 64))  # a warm-up
for user, question in (("first", 20_000), ("second", 30_000)):
    metrics = first_token(llm, document + prompt_of(question, QUESTION))
    print(f"the {user} user waits {1000 * metrics.ttft_s:.0f} ms for a first token")

# %% [markdown]
# The second one gets something for nothing; the engine has done this by default through all labs. Section 1 builds it.
# And then it asks a question that you may want to think about from here on: the second user has a clock, too. What
# has this user just learned?

# %% [markdown]
# ## 1. Prefix caching: what need not be computed twice
#
# *Needs: CPU, and the model.*
#
# Requests begin alike. There is the system prompt of a service, the examples in front of every task, the document
# that ten questions are about, and the conversation so far, which each turn sends again. K and V of a token depend on
# the tokens up to it and on nothing else (lab 1). So if two prompts agree in their first 200 tokens, so do the K and V
# of these, and lab 3 has already separated *which page* a token is in from *which sequence* it belongs to. One page
# can be in two block tables.
#
# What is missing is a way to find it. Given a new prompt: is there a page with the K and V of its first 16 tokens? One
# with those of the next 16, *behind these*? The pages are named by a **hash chain**: the name of a block is made of
# the name of the block before it and of its own tokens, and so of all that precedes it.

# %%
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
# Blocks of four tokens here, and the first digits of the engine's own hashes. Ann and Ben share what is framed. Cem's
# second block reads the same as theirs, and has another name: its K and V are others, because one word before it is.
# What is not full has no name: its owner will write to it.

# %% [markdown]
# **Think first.** What if the name of a block were made of its own tokens alone? When would nobody notice, and what
# would the model do when it happens?

# %% [markdown]
# <!-- card 5.1 -->
# Hashes of the full blocks of a prompt: `hash[0] = digest(digest(salt) + tokens of block 0)`, and from then on
# `hash[i] = digest(hash[i - 1] + tokens of block i)`. `digest(data)` gives 16 bytes, `as_bytes(tokens)` 8 bytes for
# each id. The salt is any string; what it is for comes later.
#
# ```python
# len(block_hashes([5, 6, 7, 8, 9], block_size=2)) == 2
# block_hashes([5, 6, 7, 8], 2)[1] != block_hashes([7, 8], 2)[0]  # the same block behind another past
# ```


# %% tags=["exercise:5.1"]
def block_hashes(token_ids, block_size, salt=""):
    num_full = len(token_ids) // block_size  # SOLUTION: how many blocks have a name
    parent = digest(salt.encode())  # SOLUTION: where the chain starts
    hashes = []
    for index in range(num_full):
        block = token_ids[index * block_size : (index + 1) * block_size]
        parent = digest(parent + as_bytes(block))  # SOLUTION `parent + as_bytes(block)`: what the name is made of
        hashes.append(parent)
    return hashes


# %%
check("5.1")

# %% [markdown]
# Why not Python's `hash`? It is quick, and it is made for dictionaries, not for strangers: who can compute it can look
# for a text that has the same hash as another, and then somebody is answered with the wrong K and V. vLLM had this
# (CVE-2025-25183): from Python 3.12 on, the chain's start was a constant that everybody knows. This engine takes a
# digest that nobody can steer, and compares the tokens themselves at every hit all the same.

# %% [markdown]
# ### Find, share, overwrite
#
# Where do such pages live? Exactly where they were. When a request ends, its pages become free, but nothing is
# erased: a free page keeps its contents until somebody needs the space. So the cache costs no memory at all. It is the
# free part of the pool, with a memory of what it was. Three states, then: *in use* (by one or more requests), *free and
# remembered*, *free and blank*.
#
# What remains is a decision: if there is no blank page, which remembered one is overwritten? Least recently used, of
# course. But a request gives back all its pages at one moment, and among them there is an order that matters.

# %% [markdown]
# **Think first.** A request with pages a0 a1 a2 a3 ends. Later one page has to be overwritten. What is still worth
# something after overwriting a0? After overwriting a3?

# %% [markdown]
# <!-- card 5.2 -->
# `PrefixStore` hands out block ids. `lookup(hashes)` gives the blocks of the longest prefix that is known.
# `open(hashes, num_blocks)` gives a request its blocks, hits first, then as many from `free` as it needs besides, and
# how many were hits. `close(blocks, hashes)` gives them back. `free` is in the order of overwriting: what is first goes
# first; a block's value in it is the hash of its contents, `None` if there is nothing to remember.
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
                self.block_of.pop(old)  # SOLUTION: nobody may find its old contents
            self.num_users[block] = 1
            blocks.append(block)
        self.block_of.update(zip(hashes, blocks, strict=False))  # whoever has the same prefix can find them from now on
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
own_hashes, make_store = use("5.1"), use("5.2")
found = prefix_history.play_both(make_store(prefix_history.NUM_BLOCKS), own_hashes, num_requests=500)
print("of 500 requests, both found the same number of blocks for", sum(one == other for one, other in found))
print("blocks found: the engine", sum(one for one, _ in found), "and you", sum(other for _, other in found))

# %% [markdown]
# ### What it saves: memory
#
# Pages in use are shared, too, so the pool holds more requests. A calculation that is often printed goes like this: a
# model of 32 layers, 4,096 wide, fp16, K and V for all heads; 300 users with 500 tokens of their own behind a common
# prefix of 200. Without sharing 105 GB, with sharing 75.1 GB. These come from half a MB for a token, and they are
# neither GB nor GiB: 2 x 32 x 4,096 x 2 bytes are 524,288, which is half a M*i*B, then counted by the thousand.

# %% [markdown]
# <!-- card 5.3 -->
# From the shape: how many GB (10^9 bytes) does sharing save, to within 1 %?

# %% tags=["exercise:5.3"]
answer_5_3 = 31.35  # SOLUTION: GB

# %%
check("5.3")

# %%
# NBVAL_CHECK_OUTPUT
token_bytes = 2 * 32 * 4096 * 2
for name, shared in (("every token", 200), ("full blocks of 16", 200 // 16 * 16)):
    num_alone, num_sharing = 300 * 700, shared + 300 * (700 - shared)
    alone, sharing = num_alone * token_bytes, num_sharing * token_bytes
    gb = f"{alone / 1e9:6.1f} GB -> {sharing / 1e9:5.1f} GB"
    print(f"{name:18} {gb}   ({alone / 2**30:5.1f} -> {sharing / 2**30:.1f} GiB)")
print(f"500 users, a prefix of 10 MB: {499 * 10 / 1000:.2f} GB saved")

# %% [markdown]
# The ratio was right all along, 1.40. The second line is what an engine with blocks gets: of 200 tokens the last 8 are
# in a block that differs. Prefixes that many will share are worth padding to a whole block.

# %% [markdown]
# ### What it saves: time
#
# A prompt of 480 + 16 tokens, of which 480 are known. Lab 2 said what a prompt costs: nearly all of it is in
# proportion to the tokens that are computed. Nearly.

# %%
print(f"a token of a long prompt takes {1000 * seconds_per_token():.2f} ms")
print(f"a prompt of {QUESTION} tokens, nothing known, takes {1000 * seconds_of_question():.0f} ms")

# %% [markdown]
# <!-- card 5.4 -->
# **Think first.** How many times shorter is the time to the first token, if the document is known? Within a factor of
# 2 counts as close.

# %% tags=["exercise:5.4"]
document_s = DOCUMENT * seconds_per_token()
guess_5_4 = (document_s + seconds_of_question()) / seconds_of_question()  # SOLUTION: times shorter; a number will do

# %%
check("5.4")

# %%
forget_prefixes(llm)
first_token(llm, document)  # known from now on
num_tokens, ttft_s, fresh = DOCUMENT + QUESTION, {}, iter(range(1_000, 9_000, 500))
for num_known in (0, 128, 256, 384, 480):
    prompts = [document[:num_known] + prompt_of(next(fresh), num_tokens - num_known) for _ in range(2)]
    times_s = [first_token(llm, prompt).ttft_s for prompt in prompts]
    ttft_s[num_tokens - num_known] = min(times_s)
figure = prefix_pictures.draw_first_tokens(list(ttft_s), list(ttft_s.values()), num_tokens)
measured("5.4", ttft_s[num_tokens] / ttft_s[QUESTION])

# %% [markdown]
# **Read the result.** A straight line, and it does not go through 0. 31 times fewer tokens, and far less than 31 times
# the speed: the last step reads all the weights for 16 tokens. That is the old border between the two phases: with
# its prefix known, a prefill becomes memory-bound like a decode.

# %% [markdown]
# **A hit that is too good.** If *all* of a prompt is known, nothing is left to compute, and then there is no first
# token: the cache keeps K and V, not logits. At least the last token must be computed again, and its K and V are
# written once more, into a page that others may be reading. Two ways out: give up the last block of the hit and compute
# all of it into a page of one's own; or compute the last token alone, and copy the page first if anybody else holds it
# (lab 3's copy-on-write). `LLM` has both.

# %%
both = {"recompute_block": llm, "recompute_token": LLM(num_kv_blocks=64, full_hit="recompute_token")}
whole = prompt_of(5_000, 320)
for policy, engine in both.items():
    first_token(engine, whole)
    again = [first_token(engine, whole) for _ in range(4)]
    num_left, best_s = len(whole) - again[0].num_cached_tokens, min(one.ttft_s for one in again)
    print(f"{policy}: {num_left:2} of {len(whole)} tokens computed, first token after {1000 * best_s:.0f} ms")

# %% [markdown]
# Both are near the floor of the figure above. The second is quicker by a dozen tokens, and makes a copy of a page for
# everyone who shares the prompt at the same time; the first never writes to a page that was found, which is the kind
# of rule that one can check. It is the default.

# %% [markdown]
# **Where it loses.** The price is small: a hash per block. But a prefix is a prefix *from the first token*. A service
# puts the date and the user's name in front of its instructions:

# %%
# NBVAL_CHECK_OUTPUT
forget_prefixes(llm)
instructions = prompt_of(10_000, 160)
for day in (1, 2, 3):
    stamp = prompt_of(100 * day, 8)
    in_front = first_token(llm, stamp + instructions).num_cached_tokens
    behind = first_token(llm, instructions + stamp).num_cached_tokens
    print(f"day {day}: {in_front:3} tokens known with the date in front, {behind:3} with the date behind")

# %% [markdown]
# Not one block. Whatever changes most belongs last: instructions, then examples, then the document, then the question,
# then the date. On services that bill known tokens at a lower price this is money.

# %% [markdown]
# ### What a stranger learns
#
# Now the question of the beginning. Many companies use one service, and so share an engine and its prefix cache. One
# of them has the system prompt below. A stranger, who may also send requests, knows the text, for it is a template that
# half the town uses, and knows what may stand in its three gaps. That makes 64 prompts. Nobody shows the stranger a
# single token of the others. But first tokens come sooner, or later.

# %%
# NBVAL_CHECK_OUTPUT
for text, words in zip(prefix_tenants.TEXTS, (WHO, WHAT, WHEN), strict=True):
    print(text[:46].replace("{}", "[...]"), "...", "     [...] =", " / ".join(words))

# %% [markdown]
# **Think first.** You can send any prompt and measure the time to its first token. How many questions do you need to
# find out which of the 64 was used? And what happens to the cache while you ask?

# %% [markdown]
# <!-- card 5.5 -->
# `ask(prompt)` serves a prompt and returns the seconds to its first token. `parts[i]` lists what may stand at place i,
# each option a list of tokens; the prompt that was used is one option of each part, joined. Return the position of the
# right option for each part. Options are long enough to see a difference; times are noisy, in one direction.
#
# ```python
# recover(ask, [[a, b, c], [d, e]]) == [1, 0]  # if b + d was used: five questions, not six
# ```


# %% tags=["exercise:5.5"]
def recover(ask, parts):
    known, found = [], []
    for options in parts:
        times = [ask(known + option) for option in options]  # SOLUTION: seconds that tell which option was used
        pick = times.index(min(times))  # SOLUTION: its position
        found.append(pick)
        known = known + options[pick]  # SOLUTION: what is known of the prompt now
    return found


# %%
check("5.5")

# %% [markdown]
# Every measurement destroys what it measures: the first request for a prompt tells whether it was known, and makes it
# known. Advice from benchmarking, warm up first, repeat and take the best, is exactly wrong here.
#
# Now on SmolLM2. A company has used its prompt, once. Then the stranger comes. In the second run every tenant has a
# **salt**, a string that the service puts at the start of the chain of each of its requests: the third argument of your
# `block_hashes`, and `cache_salt` of a request to this engine, as to vLLM.

# %%
attack, parts = use("5.5"), prefix_tenants.prompt_parts(llm)
runs = {}
for title, victim, stranger in (("one cache for all", "", ""), ("a salt per tenant", "cedar", "stranger")):
    forget_prefixes(llm)
    first_token(llm, prefix_tenants.whole_prompt(parts), salt=victim)
    ask, runs[title] = prefix_tenants.clock_of(llm, salt=stranger)
    found = attack(ask, parts)
    read = ", ".join(words[pick] for words, pick in zip((WHO, WHAT, WHEN), found, strict=True))
    print(f"{title}: {read}, after {len(runs[title])} questions; right: {found == list(prefix_tenants.SECRET)}")

# %%
figure = prefix_pictures.draw_probes(runs, (WHO, WHAT, WHEN), prefix_tenants.SECRET)

# %% [markdown]
# **Read the result.** On the left three short bars give a prompt away, and 12 questions are enough for 64 prompts,
# since a prefix is found *part by part*: a combination lock of which each wheel clicks by itself. On the right nothing
# clicks; the shortest bar of a part (orange) is the work of chance. (Of a later part all bars may be shorter: what the
# stranger asked before is known under the stranger's own salt.) The counts say the same without a clock:

# %%
# NBVAL_CHECK_OUTPUT
for title, victim, stranger in (("one cache for all", "", ""), ("a salt per tenant", "cedar", "stranger")):
    forget_prefixes(llm)
    first_token(llm, prefix_tenants.whole_prompt(parts), salt=victim)
    known = [first_token(llm, option, salt=stranger).num_cached_tokens for option in parts[0]]
    print(f"{title}: of the first part's options {known} tokens were known")

# %% [markdown]
# This has been done to public services: arXiv:2409.20002 reads prompts of others token by token, and an audit
# (arXiv:2502.07776) found caches shared between users at seven providers. The cure is one argument of a request. What
# it costs is the sharing *between* tenants: those who trust each other may have the same salt.
#
# **Play.** Let the victim's prompt be overwritten before the stranger comes (how many other prompts does it take?).
# And: does the stranger learn anything from what *disappears*?

# %% [markdown]
# ## 2. Speculative decoding: guess, then check
#
# *Needs: CPU, and the model.*
#
# Lab 3 ended with a waste. A decode step reads all the weights to compute one token, and the arithmetic units wait for
# memory. With eight sequences in the step it takes hardly longer. But what if there is only one sequence, and its
# user is in a hurry? Its tokens come one after the other: the next cannot be computed before this one is known.
#
# Unless somebody **guesses**. Say the text is `def area(width,` and a guess for the next four tokens is ` height):`
# and so on. Put the newest token *and the four guesses* into one step, as a chunk of a prompt. The model then says
# what it would have drawn after each of them. If it would have drawn the first guess, then what it says after that
# guess counts too; and so on until a guess is wrong. A step yields as many tokens as there were right guesses, *plus
# one*, for what the model says behind the last right one is right in any case. If the first guess is wrong the step
# yields one, as before. Verified in one pass, guesses cost what a little more company costs.

# %%
passes_s = {
    "one sequence": {num: draft_engine.seconds_of_pass(num) for num in (0, 2, 4, 8)},
    "eight sequences": {num: draft_engine.seconds_of_pass(num, 8) for num in (0, 2, 4, 8)},
}
figure = draft_pictures.draw_passes(passes_s)

# %% [markdown]
# **Read the result.** Alone, four guesses are nearly free on this machine: five tokens read the weights once, like
# one. With eight sequences the same four guesses are 32 more tokens in a step of 8, and they are not free at all.
# Whether guessing pays is decided by this picture, and by how often the guesses are right.

# %% [markdown]
# ### Who guesses
#
# A smaller model of the same vocabulary, a few layers trained for it, or: nobody at all. Much of what models write they
# have just read. They quote, summarise, correct, continue a list, write a function that looks like the one
# above. So look up where the newest tokens stood before, and guess what followed there ("prompt lookup"; A. Saxena,
# 2023). It costs a search, and no model.
#
#     def surface(width, height, depth): return 2 * (width * height  ...  def volume(width, height
#                 ^^^^^^^^^^^^^ found   ^^^^^^^^^^ the guess                           ^^^^^^^^^^^^^ the newest tokens

# %% [markdown]
# <!-- card 5.6 -->
# Take the newest n tokens, for n from `longest` down to `shortest`. If they stood together before, guess the tokens
# that followed, at most `num_draft`; of several places the latest. If they did not, try the next n. Nothing found: no
# guess.
#
# ```python
# ngram_draft([7, 1, 2, 3, 4, 1, 2], num_draft=3) == [3, 4, 1]
# ngram_draft([7, 7, 7], num_draft=3) == [7]  # places may overlap with the end; the text ends there
# ngram_draft([1, 2, 3], num_draft=3) == []
# ```


# %% tags=["exercise:5.6"]
def ngram_draft(token_ids, num_draft, longest=3, shortest=1):
    for n in range(longest, shortest - 1, -1):  # SOLUTION: which n, in which order
        newest = token_ids[-n:]
        for start in range(len(token_ids) - n - 1, -1, -1):  # SOLUTION: places where they may start, in which order
            if token_ids[start : start + n] == newest:
                return token_ids[start + n : start + n + num_draft]  # SOLUTION: what followed
    return []


# %%
check("5.6")

# %% [markdown]
# ### When is a guess right?
#
# Greedily that is plain: when it is the token with the highest logit. But a model at temperature 1 has no right token.
# It has a distribution p, and "right" must mean: **the tokens that come out are distributed as if there had been no
# guesses**. Say the drafter has drawn its token from a distribution q of its own. In the picture, what should be done
# with a token that the drafter says more often than the model? And where do the model's tokens come from that the
# drafter says too seldom?

# %%
p_picture = np.array([0.36, 0.22, 0.18, 0.12, 0.08, 0.04])
q_picture = np.array([0.20, 0.40, 0.10, 0.16, 0.04, 0.10])
figure = draft_pictures.draw_overlap(p_picture, q_picture)

# %% [markdown]
# **Think first.** The drafter drew token 1, which has 0.22 in p and 0.40 in q. With which probability should it be
# kept, so that in the long run token 1 comes in 22 % of all cases? And if it is not: which tokens may take its place?

# %% [markdown]
# <!-- card 5.7 -->
# Verify drafts (Leviathan, Kalman and Matias, arXiv:2211.17192, algorithm 1; Chen et al., arXiv:2302.01318). Draft i is
# kept with probability min(1, p[i, x] / q[i, x]). At the first that is not kept, a token is drawn in proportion to
# max(p[i] - q[i], 0), and the pass ends there. If all are kept, one more is drawn from p[k], the row behind the last.
#
# `p` has k + 1 rows, `q` k rows (arrays of NumPy). `chance.uniform()` is a number in [0, 1), `chance.draw(weights)` an
# index in proportion to weights; they need not add up to 1.
#
# ```python
# verify([2, 0], p, q, chance)  # [2, 0, x]: both kept; [2, x]: the second was not; [x]: the first was not
# ```


# %% tags=["exercise:5.7"]
def verify(draft, p, q, chance):
    tokens = []
    for i, token in enumerate(draft):
        keep = min(1, p[i, token] / q[i, token])  # SOLUTION: with which probability is it kept?
        if chance.uniform() >= keep:
            left = np.clip(p[i] - q[i], 0, None)  # SOLUTION: the weights of what may take its place
            return [*tokens, chance.draw(left)]
        tokens.append(token)
    return [*tokens, chance.draw(p[len(draft)])]  # SOLUTION `p[len(draft)]`: where the last one is drawn from


# %%
check("5.7")

# %% [markdown]
# Nothing is approximate here, whatever the drafter: the two coloured parts of the picture *are* p. The check has
# counted: in some ten thousand passes each token comes as often as the model says. A draft that is far from the
# model is not wrong, only useless. Here are 20,000 passes under this rule, and under two others that are often seen.

# %%
verify_drafts = use("5.7")


def from_the_model(draft, p, q, chance):
    kept = chance.uniform() < min(1, p[0, draft[0]] / q[0, draft[0]])
    return draft if kept else [chance.draw(p[0])]  # instead of what is left


def half_and_half(draft, p, q, chance):
    return draft if p[0, draft[0]] > 0.5 * q[0, draft[0]] else [chance.draw(p[0])]  # "good enough"


print("the model       ", " ".join(f"{share:6.3f}" for share in p_picture))
for name, way in (("the exact rule", verify_drafts), ("draws from p", from_the_model), ("good enough", half_and_half)):
    outputs = run_passes(way, np.stack([p_picture, p_picture]), q_picture[None], num_passes=20_000)
    shares = counts_at(outputs, 0, 6) / len(outputs)
    print(f"{name:16}", " ".join(f"{share:6.3f}" for share in shares))

# %% [markdown]
# **In the engine** it is simpler still. A lookup has no q: it says one token, with probability 1. Then min(1, p/q) is p
# of that token, and max(p - q, 0) is p without it. Draw a token from p, and look whether it is the guess: that is the
# same. And since the engine has a random number for each request and position (lab 1), it draws with the very number
# that this position has anyway. So not only the distribution stays: **the same tokens come**, with guesses and
# without, at any temperature. The code of both ways is in `engine/rejection.py`.

# %% [markdown]
# ### What it is worth
#
# If each draft is right with probability alpha, independently of the others, then a pass with k drafts yields
# 1 + alpha + alpha^2 + ... + alpha^k = (1 - alpha^(k+1)) / (1 - alpha) tokens on average (arXiv:2211.17192, equation
# 1). Time is counted in steps of the model without drafts. A pass takes 1, plus c for making each draft (theorem 3.8
# there), plus v for verifying each, which the paper takes for free and you have just measured.

# %% [markdown]
# <!-- card 5.8 -->
# Expected tokens of a pass; the speed-up, which is tokens of a pass over its cost; and the best number of drafts from 0
# to `most`. 0 drafts is a plain step: speed-up 1.
#
# ```python
# expected_tokens(0.5, 2) == 1.75
# speed_up(0.5, 2, draft_cost=0.1) == 1.75 / 1.2
# best_num_draft(0.1, draft_cost=0.3, verify_cost=0.1) == 0  # off
# ```


# %% tags=["exercise:5.8"]
def expected_tokens(alpha, num_draft):
    if alpha == 1:
        return num_draft + 1
    return (1 - alpha ** (num_draft + 1)) / (1 - alpha)  # SOLUTION: equation 1


def speed_up(alpha, num_draft, draft_cost, verify_cost=0.0):
    pass_cost = 1 + num_draft * (draft_cost + verify_cost)  # SOLUTION: in steps without drafts
    return expected_tokens(alpha, num_draft) / pass_cost  # SOLUTION: how many times as fast


def best_num_draft(alpha, draft_cost, verify_cost=0.0, most=16):
    return max(range(most + 1), key=lambda k: speed_up(alpha, k, draft_cost, verify_cost))  # SOLUTION: how many


# %%
check("5.8")

# %%
_, gain, best = use("5.8")
verify_costs = {}
for name, times_s in passes_s.items():
    verify_costs[name] = max(0.0, (times_s[8] / times_s[0] - 1) / 8)
    wanted = {f"{alpha:.0%}": best(alpha, 0, verify_costs[name]) for alpha in (0.1, 0.4, 0.7, 0.9)}
    print(f"{name}: drafts that pay at an acceptance of " + ", ".join(f"{a}: {k}" for a, k in wanted.items()))
figure = draft_pictures.draw_speed_ups(gain, verify_costs)

# %% [markdown]
# **Read the result.** The costs are of this machine: how much longer a pass with eight drafts was in the first picture.
# Alone, guessing can hardly lose. In company every draft takes time from others, and only good ones pay: with more
# sequences in a step, the same drafter goes from a gift to a loss. The best number of drafts grows with the acceptance
# and is smaller than people think: the k-th draft is of use only if all before it were right.

# %% [markdown]
# ### Two workloads
#
# *Copying*: one user, greedy, "repeat this program exactly". *Inventing*: eight users, temperature 1, a story each.
# Without drafts:

# %%
# NBVAL_CHECK_OUTPUT
plain_copy = draft_engine.copying(None)
print(plain_copy.texts[0])
print(f"\n{plain_copy.num_tokens} tokens in {plain_copy.num_passes} passes")

# %% [markdown]
# <!-- card 5.9 -->
# **Think first.** With four drafts in a pass, looked up by your 5.6: in how many passes does the same copy come? Within
# a factor of 1.4 counts as close. And which of the two workloads gets faster, which slower?

# %% tags=["exercise:5.9"]
guess_5_9 = 22  # SOLUTION: passes

# %%
check("5.9")

# %%
my_draft = use("5.6")
my_drafter = draft_engine.OwnDrafter(my_draft)
my_copy = draft_engine.copying(my_drafter)
same = my_copy.outputs == plain_copy.outputs
print(f"{my_copy.num_drafts} drafts, {my_copy.num_accepted} right; the same tokens: {same}")
measured("5.9", my_copy.num_passes)

# %% [markdown]
# Your function has just guessed for the real engine, which asks a `Drafter` three things (`engine/drafters.py`): to
# note what a step will write, to propose, to forget a sequence that has ended. The engine's own lookup keeps an index
# instead of searching anew, and lets a continuation that reaches the end of the text run on in a circle.
#
# Now both workloads, and three ways each: without drafts; with yours in every step; and with yours *as long as it
# pays*. For that the engine measures what a token costs both ways, eight steps each, does what was cheaper, and looks
# again later (`engine/speculation_gate.py`). It is what `disable_when_losing` switches on, and the default.

# %%
works = {"copying, one user": draft_engine.copying, "inventing, eight users": draft_engine.inventing}
speeds = {}
for title, work in works.items():
    runs = draft_engine.three_ways(work, my_drafter)
    speeds[title] = {way: run.tokens_per_s for way, run in runs.items()}
    print(f"{title:24} passes   with drafts   drafts right   tokens/s   same answers")
    for way, run in runs.items():
        num_same = sum(one == other for one, other in zip(run.outputs, runs["without"].outputs, strict=True))
        right = f"{run.num_accepted} of {run.num_drafts}"
        same = f"{num_same} of {len(run.outputs)}"
        print(f"  {way:22} {run.num_passes:>6} {run.num_drafting:>13} {right:>14} {run.tokens_per_s:>10.1f} {same:>14}")

# %%
figure = draft_pictures.draw_speeds(speeds)

# %% [markdown]
# **Read the result.** A copy comes three times as fast or so: most drafts are right, one user leaves the machine idle,
# and being wrong costs nearly nothing. Eight stories are the opposite in all three: what was never said cannot be
# looked up, eight sequences use the machine already, and every wrong draft is work that the others wait for. The third
# way goes to whichever is better. In order to know it has to try both, and these answers are short: eight steps of
# the copy were spent on doing without. Over longer ones the trials are rarer.
#
# And all answers are the same, also those of chance. (Up to rounding: a pass of another shape adds in another order,
# and a random number that falls within a millionth of the border between two tokens may then fall on the other side.
# Among the thousands of hardly possible tokens such borders are dense; the stories leave them out, with `top_p`.)

# %%
alpha = my_copy.num_accepted / (my_copy.num_accepted + my_copy.num_refuted)
foretold = gain(alpha, draft_engine.NUM_DRAFTS, 0, verify_costs["one sequence"])
got = speeds["copying, one user"]["always"] / speeds["copying, one user"]["without"]
print(f"of the drafts that were looked at {alpha:.0%} were right")
print(f"foretold {foretold:.1f} times as fast, measured {got:.1f}")

# %% [markdown]
# The alpha of the formula counts drafts that were looked at; what stands behind a wrong one is not. The formula expects
# a little too much: it lets every pass have four drafts, and some had fewer or none. It tells whether to try. A
# measurement tells whether to go on.
#
# **Play.** `draft_engine.run([...], params, my_drafter)` takes any prompts. What about a translation? A summary of a
# text in the prompt? And `longest=1`: more drafts, and worse ones?

# %% [markdown]
# ## 3. Guided decoding
#
# *Needs: CPU, and the model.*
#
# A program that reads a model's answer wants JSON with certain keys, a date, one of four words. It can ask for it in
# the prompt, and check, and ask again when the answer has a comma too many. Or it can make a wrong answer impossible:
# in each step, before a token is chosen, everything is taken out after which the answer could no longer become what
# was asked for. The model chooses among what is left. This is **guided** (or constrained) **decoding**.
#
# What is "left" must be found out 49,152 times per step, once for each token. So it had better be simple.

# %% [markdown]
# **A machine that reads.** A form can be written as a *finite-state machine*: states, and for each state the
# characters that may come and where they lead. This one reads prices such as `7`, `12` and `12.50`; in a state with a
# double border the text may end.
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
# Every regular expression can be turned into such a machine, and so can a JSON Schema in which nothing is nested
# without bounds. (For nesting without bounds one needs a stack besides, and the idea stays the same.)

# %% [markdown]
# **Think first.** A language model does not write characters. Its tokens are pieces of text: `5`, `50`, `.5`, `5.`,
# ` dollars`. After `12`, which of these five may come? And after `12.`?

# %% [markdown]
# <!-- card 5.10 -->
# `machine.edges[state]` is a dict from a character to the state after it, and `machine.accepting` the set of states in
# which the text is complete. `advance` reads a text from some state on. `token_mask` says of each token, `texts` being
# their texts, whether it may come next; the token `end_id` ends the answer.
#
# ```python
# >>> advance(PRICE, 0, "12."), advance(PRICE, 0, ".5")
# (2, None)
# >>> token_mask(PRICE, 1, ["5", "50", ".5", "5.", " dollars", "", "<end>"], end_id=6).tolist()
# [True, True, True, True, False, False, True]
# ```


# %% tags=["exercise:5.10"]
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
check("5.10")

# %% [markdown]
# The mask works on text, so it does not care how a tokenizer cuts it: `12.50` may be written in five tokens or in two.
# Note that a token that is allowed may end anywhere, in the middle of a number or across a comma and the quotation mark
# after it.
#
# On SmolLM2's vocabulary, with a form that is less trivial: `{"city": "`, letters, `", "inhabitants": `, a number
# without leading zeros, `}`. What is allowed in a few of its states?

# %%
# NBVAL_CHECK_OUTPUT
read_on, mask_at = use("5.10")
texts, end_id = guided_model.token_texts(), guided_model.end_id()
for so_far in (
    "",
    '{"city": "',
    '{"city": "Lima',
    '{"city": "Lima", "inhabitants": ',
    '{"city": "Lima", "inhabitants": 9}',
):
    mask = mask_at(CITY_RECORD, read_on(CITY_RECORD, 0, so_far), texts, end_id)
    some = [texts[i] for i in mask.nonzero().flatten().tolist()]
    print(f"{so_far or '(start)':37} {len(some):>6,} tokens: {'  '.join(map(repr, sorted(some, key=str.isalpha)[:4]))}")

# %% [markdown]
# Inside the city's name nearly a third of the vocabulary may come, and after its first letter the quotation mark as
# well, alone or with the comma. Where the form prescribes a text, a handful of ways to cut it are left. At the very end
# only the token without text remains: to stop.

# %% [markdown]
# <!-- card 5.11 -->
# Write under the mask. `next_logits(ids)` gives the model's logits `[V]` for the token after the answer's `ids` so far;
# `choose(logits)` picks a token, by whatever rule (greedy, or sampling). A forbidden token must have no chance. Return
# the answer's ids, without the end token, and how it ended: `"stop"`, or `"length"` when `max_tokens` cut it.


# %% tags=["exercise:5.11"]
def generate_guided(next_logits, machine, texts, end_id, max_tokens, choose):
    state, ids = machine.start, []
    while len(ids) < max_tokens:
        mask = token_mask(machine, state, texts, end_id)
        logits = next_logits(ids).masked_fill(~mask, -math.inf)  # SOLUTION: the next token's logits, under the mask
        token_id = choose(logits)
        if token_id == end_id:
            return ids, "stop"
        ids.append(token_id)
        state = advance(machine, state, texts[token_id])  # SOLUTION: where the machine is after this token
    return ids, "length"  # SOLUTION `"length"`: how it ended


# %%
check("5.11")

# %% [markdown]
# Now with the real model. It has seen one record as an example and is to write that of Lima, greedily.

# %%
write_guided = use("5.11")
num_allowed = []


def greedy(logits):
    num_allowed.append(int(logits.isfinite().sum()))
    return int(logits.argmax())


next_logits = guided_model.next_logits_after(guided_model.record_prompt("Lima"))
ids, reason = write_guided(next_logits, CITY_RECORD, texts, end_id, 40, greedy)
print(f"{''.join(texts[i] for i in ids)}   ({len(ids)} tokens, {reason})")

# %%
guided_pictures.draw_choices([*(texts[i] for i in ids), "(end)"], num_allowed, len(texts))
plt.show()

# %% [markdown]
# **Read the result.** The model decided little: a name and a number. For everything else the form allowed a few tokens,
# all of them beginnings of the same text. That can be exploited: where only one *text* is possible, nothing needs to be
# asked of the model, and the whole piece can be appended at once, as a draft that is always accepted (section 2).
#
# **What a mask costs.** Yours goes through the whole vocabulary in Python. Two remedies are in use. Outlines
# (arXiv:2307.09702) computes the mask of every state beforehand: an index, quick to look up, slow to build.
# llguidance walks through the vocabulary as a *trie*, so that all tokens that begin with an impossible character are
# ruled out at once; xgrammar (arXiv:2411.15100) does some of each.

# %%
start_s = time.perf_counter()
mask_at(CITY_RECORD, CITY_RECORD.start, texts, end_id)
yours_s = time.perf_counter() - start_s
library_s = guided_answers.library_mask_s()
print(f"a mask over {len(texts):,} tokens: yours {1000 * yours_s:.1f} ms, llguidance {1000 * library_s:.3f} ms")

# %% [markdown]
# ### JSON Schema, in the engine
#
# The engine leaves the grammars to a library, llguidance, and does what belongs to an engine: each request has its own
# grammar and its own place in it, in one batch with requests that have none; a preempted request finds its place again;
# a stop string counts only where the text is complete; and an output that `max_tokens` cut says so (`"length"`), as
# yours did. `SamplingParams(structured_outputs=StructuredOutputs(json=schema))` is all it takes.

# %% [markdown]
# <!-- card 5.12 -->
# **Think first.** Twelve cities, one record each, sampled with temperature 0.8 and *without* a mask. The prompt shows
# a complete record of another city. A program then checks each answer with `json` and `jsonschema`: four keys and no
# others, a whole number, one to three languages. How many of the twelve are valid? Within 3 counts as close.

# %% tags=["exercise:5.12"]
guess_5_12 = 4  # SOLUTION: valid answers, of 12

# %%
check("5.12")

# %%
free = guided_answers.ask(guided=False)
for output, problem in list(zip(free.outputs, free.problems, strict=True))[:4]:
    print(output.text[:110], "\n   ", problem[:90] or "valid")
measured("5.12", free.num_valid)

# %%
guided = guided_answers.ask(guided=True)
for name, answers in {"without a mask": free, "guided": guided}.items():
    each = f"{answers.num_tokens / answers.num_valid:.0f}" if answers.num_valid else "infinitely many"
    print(f"{name:15} {answers.num_valid:>2} of 12 valid, {answers.num_tokens} tokens: {each} for each valid one")
for output in guided.outputs[:4]:
    print(output.text, f"({output.finish_reason})")

# %% [markdown]
# **Read the result.** With a chance p of being valid, an answer takes 1/p attempts on average. Guided answers take one.
# They are not dearer either: the text is no longer, and a mask costs next to nothing beside a step of the model.
#
# **Valid is not true.** Read the records again: every key is there, and hardly a number is right. The mask knows the
# form and nothing of Lima. Worse, it *hides* failure: a model that has no idea, and would have said so, must fill in
# something.

# %%
nonsense = {"role": "user", "content": "Is the colour of Tuesday heavier than the number seven?"}
yes_or_no = SamplingParams(temperature=0, max_tokens=8, structured_outputs=StructuredOutputs(choice=["Yes", "No"]))
for name, params in {"free": SamplingParams(temperature=0, max_tokens=30), "guided": yes_or_no}.items():
    output = guided_answers.engine().chat([nonsense], params, use_tqdm=False)[0].outputs[0]
    print(f"{name:7} {output.text.strip()!r} ({output.finish_reason})")

# %% [markdown]
# So give the form a way out: a choice "unknown", a key that may be null. And give the model room to think before the
# form begins; a mask that asks for the result first forbids the reasoning that would have led to it.
#
# **Play.** Raise the temperature: `guided_answers.ask(guided=True, temperature=2.0)`. What stays, and what goes?

# %% [markdown]
# ## 4. Sliding windows and attention sinks
#
# *Needs: CPU, and the model.*
#
# A conversation that goes on all day, a log that is read as it grows: the K and V of a sequence grow with it, and in
# the end one sequence fills the pool. Most of what an old token had to say has long found its way into newer ones. So
# let a query see only a **window** of the last W keys, and give back the pages that nobody sees any more. Memory is
# bounded then, and so is the time of a step, however long the text becomes.
#
# Mistral 7B was trained this way (arXiv:2310.06825). What is a window back in one layer was computed from a window
# further back in the layer below, so something of the older text can reach the present through the layers. SmolLM2
# was *not* trained with a window. We put one on it all the same, and see.

# %% [markdown]
# **Think first.** Positions count from 0, a window of W includes the query's own position, and blocks have 4 slots.
# Window 6, and 13 tokens are there. Which keys does the *next* token see? Which blocks can be given back?

# %%
window_pictures.draw_sequence((5, 10, 13), block_size=4, window=6, num_sinks=2)
plt.show()

# %% [markdown]
# Two of the tokens are coloured differently: **sinks**, the first tokens of the text, that stay visible for ever. They
# look useless; in a moment you will see what they are for.

# %% [markdown]
# <!-- card 5.13 -->
# `num_tokens` are computed; their K and V are in blocks 0, 1, 2 ... of `block_size` slots. Return the list of the
# blocks that must be kept: those in which the next token, or any later one, sees a key, be it in the window or a sink.
# The block into which the next token is written is one of them, if it exists already.
#
# ```python
# >>> kept_blocks(13, block_size=4, window=6, num_sinks=2)
# [0, 2, 3]
# ```


# %% tags=["exercise:5.13"]
def kept_blocks(num_tokens, block_size, window, num_sinks):
    num_blocks = -(-num_tokens // block_size)  # rounded up
    num_sink_blocks = -(-num_sinks // block_size)  # SOLUTION: blocks that hold a sink
    first_seen = max(0, num_tokens + 1 - window)  # SOLUTION: the first position in the next token's window
    first_block = first_seen // block_size  # SOLUTION: the block it is in
    kept = []
    for i in range(num_blocks):
        if i < num_sink_blocks or i >= first_block:  # SOLUTION: is block i kept?
            kept.append(i)
    return kept


# %%
check("5.13")

# %%
# NBVAL_CHECK_OUTPUT
kept = use("5.13")
for num_tokens in (100, 500, 2_000, 8_000, 100_000):
    held = kept(num_tokens, block_size=16, window=256, num_sinks=4)
    print(f"{num_tokens:>7,} tokens: {len(held)} pages of {-(-num_tokens // 16):,} are held, first {held[:3]}")

# %% [markdown]
# <!-- card 5.14 -->
# The mask that goes with it: True where a query sees a key. `queries` and `keys` are tensors of *positions* that
# broadcast, such as `[L, 1]` and `[S]`. Positions, not rows and columns: the cache has gaps now.
#
# ```python
# >>> visible(torch.tensor([[13]]), torch.tensor([0, 1, 8, 9, 13, 14]), window=6, num_sinks=2).tolist()
# [[True, True, True, True, True, False]]
# ```


# %% tags=["exercise:5.14"]
def visible(queries, keys, window, num_sinks):
    is_past = keys <= queries  # SOLUTION: not after the query
    in_window = keys > queries - window  # SOLUTION: not before its window
    is_sink = keys < num_sinks  # SOLUTION: one of the text's first tokens
    return is_past & (in_window | is_sink)  # SOLUTION: all together


# %%
check("5.14")

# %%
sees = use("5.14")
settings = {"full": (24, 0), "window of 8": (8, 0), "window of 8 and 2 sinks": (8, 2)}
window_pictures.draw_masks(sees, 24, settings)
plt.show()

# %% [markdown]
# **Into the engine.** Below, the attention of the real engine uses your `visible`, and its cache manager gives back
# what your `kept_blocks` leaves out. The pool has 22 pages, for a window of 256 and a text of 2,048 tokens, which are
# 128 pages; pages that are given back are overwritten soon. So if a query looked at one of them, it would read the
# wrong text, and surprises would not be what the engine's own window gives.

# %%
# NBVAL_CHECK_OUTPUT
text = window_engine.text_ids(256)
mine = window_engine.read(window_engine.windowed_engine(sees, kept, 64, 4, pool=11), text)
own = window_engine.read(window_engine.engine(sliding_window=64, num_attention_sinks=4), text)
print(f"{len(text)} tokens, {-(-len(text) // 16)} pages; at most {max(mine.pages)} held")
print(f"as LLM(sliding_window=64, num_attention_sinks=4): {torch.allclose(mine.losses, own.losses, atol=1e-3)}")

# %% [markdown]
# **Where attention goes.** Before you guess what the window costs, look at what the model does when it sees everything.
# For each head of each layer: how much of its attention goes to the very first token of the text? It is the word "The".

# %%
window_pictures.draw_share_of_first(window_engine.share_of_first_key())
plt.show()

# %% [markdown]
# It has nothing to say, and gets a great part of all attention. The softmax makes weights that sum to 1; a head that
# finds nothing of interest must put its weight *somewhere*, and the first token is the only one that every query has
# seen in training. It serves as a **sink** (StreamingLLM, arXiv:2309.17453). With a window and no sinks, that place is
# taken away, and the weight must go to tokens that do mean something.

# %% [markdown]
# <!-- card 5.15 -->
# **Think first.** A text of 2,048 tokens that the model has never seen. With a window of 256 and no sinks: by which
# factor is the *perplexity* of the tokens after the 256th larger than when everything is seen? 1 is no loss. Within a
# factor of 1.4 counts as close.

# %% tags=["exercise:5.15"]
guess_5_15 = 1.8  # SOLUTION: times

# %%
check("5.15")

# %%
text = window_engine.text_ids()
pool = window_engine.SMALL_POOL
readings = {
    "everything": window_engine.read(window_engine.engine(), text),
    "window of 256": window_engine.read(window_engine.windowed_engine(sees, kept, 256, 0, pool), text),
    "... and 4 sinks": window_engine.read(window_engine.windowed_engine(sees, kept, 256, 4, pool), text),
}
for name, reading in readings.items():
    print(f"{name:16} at most {max(reading.pages):>3} pages, perplexity {reading.perplexity(256):.1f}")
measured("5.15", readings["window of 256"].perplexity(256) / readings["everything"].perplexity(256))

# %%
window_pictures.draw_readings(readings, window=256)
plt.show()

# %% [markdown]
# **Read the result.** The damage is done the moment the first token leaves the window, and four keys of 256 undo nearly
# all of it. What is left between the two lower curves is the price of the window proper: older text that would have
# helped. Memory stays at some twenty pages, whatever comes; without a window a prompt takes all of its pages when it is
# let in. (In larger models the collapse is more violent. StreamingLLM, table 1, has for Llama-2-13B with 1,024 keys a
# perplexity of 5,158 without the first four tokens and of 5.40 with them.)
#
# One more thing keeps a windowed engine from running for ever: positions. Our keys are rotated once, by their place in
# the text, and SmolLM2 knows 8,192 places. StreamingLLM numbers the keys by their place *in the cache* instead, anew in
# every step, and goes on without end.

# %% [markdown]
# **What is forgotten.** Perplexity is a mean over easy words. So ask for something that stands in one place only: a
# number is told, other text follows, and then the model is to repeat the number. How surprised is it by the right one?

# %%
distances = (140, 240, 280)
tellers = {
    "everything": window_engine.engine(),
    "window of 256 and 4 sinks": window_engine.windowed_engine(sees, kept, 256, 4, pool),
}
bits = {name: [window_engine.surprise_at_fact(llm, far) for far in distances] for name, llm in tellers.items()}
window_pictures.draw_memory(distances, bits, window=256, guess_bits=5 * math.log2(10))
plt.show()

# %% [markdown]
# **Read the result.** Within the window it is as good as ever; a step beyond, the number is gone, and the model is more
# surprised than somebody who merely knew that five digits come. So a window is right for text whose past matters less
# and less, and wrong for retrieval, for long documents with questions at the end, for code that was defined far above.
# No mean over a text shows you that.
#
# **Play.** How many sinks does it need? Try 1. And put the fact among the sinks:
# `window_engine.windowed_engine(sees, kept, 256, 32, pool + 1)`.

# %% [markdown]
# ## 5. A gate for fewer bits
#
# *Needs: CPU, and the model.*
#
# Lab 3 stored K and V in int8: a quarter of the float32 bytes and a bit for the scales, so nearly four times as many
# tokens in the same memory (against a 16-bit cache, twice as many). In the engine that is one argument,
# `kv_cache_dtype="int8"`; and there is `"fp8_e4m3"`. Who decides whether that is good enough?
#
# Not by trying a few prompts. A **gate** is a set of measures whose bounds were fixed *before* anybody measured, and a
# command that fails when one is broken. Three kinds of measure go into it:
#
# | measure | needs | notices |
# |---|---|---|
# | perplexity, before and after | a text | the mean quality of predictions; errors may cancel |
# | KL divergence, and the same top token | a text, and the model before | every change, for better or worse |
# | tasks: needles, structured output | questions with answers | whether what is needed still works |

# %% [markdown]
# **Two formulas.** At each position of a text the model gives each token a probability; $x_t$ is the token that comes.
#
# $$\text{surprise}_t = -\ln p_t(x_t) \qquad \text{perplexity} = \exp\Big(\frac{1}{T}\sum_t \text{surprise}_t\Big)
# \qquad \text{KL}_t = \sum_v p_t(v)\,\big(\ln p_t(v) - \ln q_t(v)\big)$$
#
# with $p$ from before and $q$ from after. KL is 0 where nothing changed and never negative, so nothing cancels.
#
# **Think first.** A quantised cache has a *lower* perplexity than the exact one. Is it better?

# %% [markdown]
# <!-- card 5.16 -->
# All three from logits. `surprises` takes logits `[T, V]` and the tokens that came, `[T]`, and gives `[T]`, in nats;
# `perplexity` is one number; `divergences` takes the logits of before and after and gives `[T]`. A token that is
# impossible on both sides (a logit of -inf, as under a mask) counts 0.


# %% tags=["exercise:5.16"]
def surprises(logits, targets):
    log_probs = logits.log_softmax(-1)
    return -log_probs[torch.arange(len(targets)), targets]  # SOLUTION: minus each target's log-probability


def perplexity(logits, targets):
    return surprises(logits, targets).mean().exp().item()  # SOLUTION: one number, from the surprises


def divergences(before, after):
    log_p, log_q = before.log_softmax(-1), after.log_softmax(-1)
    p = log_p.exp()  # SOLUTION: the weights
    terms = torch.where(p > 0, p * (log_p - log_q), 0)  # SOLUTION: a term for each token of the vocabulary
    return terms.sum(-1)


# %%
check("5.16")

# %% [markdown]
# **The caches.** The real engine reads the same 321 tokens with four of them: float32, the two 8-bit formats, and one
# that is spoilt on purpose, whose rows of K and V are rounded to 7 levels, as 3 bits would.
#
# An int8 row has 255 evenly spaced levels up to its largest magnitude. E4M3 has 4 bits of exponent and 3 of mantissa,
# so it reaches from the very small to the very large, and between 1 and 2 there are 8 steps of 1/8.

# %% [markdown]
# <!-- card 5.17 -->
# **Think first.** Both take 8 bits. K and V are scaled row by row, so none of them needs a wide range. How many times
# larger is the mean KL divergence with fp8 than with int8? (For small errors, KL grows with the *square* of the error.)
# Within a factor of 2 counts as close.

# %% tags=["exercise:5.17"]
guess_5_17 = 7  # SOLUTION: KL of fp8 over KL of int8

# %%
check("5.17")

# %%
surprise_of, perplexity_of, divergence_of = use("5.16")
targets, before = gate_caches.targets(), gate_caches.logits_with("float32")
drift = {name: divergence_of(before, gate_caches.logits_with(name)) for name in ("int8", "fp8_e4m3", "3 bits")}
print(f"before    perplexity {perplexity_of(before, targets):.2f}")
for name, values in drift.items():
    after = perplexity_of(gate_caches.logits_with(name), targets)
    print(f"{name:9} perplexity {after:.2f}, mean KL {float(values.mean()):.5f}")
measured("5.17", float(drift["fp8_e4m3"].mean() / drift["int8"].mean()))

# %%
gate_pictures.draw_divergences(drift, bound=0.02)
plt.show()

# %% [markdown]
# **Read the result.** Look at perplexity alone: the two 8-bit formats can hardly be told from the exact cache, and one
# of them may well come out *below* it, by luck. The divergence sees them clearly, and puts them in order. For rows with
# a scale of their own, even spacing uses 8 bits better than an exponent does. (fp8 has its merit elsewhere: GPUs since
# Hopper multiply it directly.)
#
# **The gate** of the engine computes the same measures, and wants the bad end of each 95 % confidence interval to keep
# the bound: little text is little evidence. Yours go in below.

# %%
for name, values in drift.items():
    after = gate_caches.logits_with(name)
    rises = surprise_of(after, targets) - surprise_of(before, targets)
    same_top = after.argmax(-1) == before.argmax(-1)
    for verdict in gate_caches.verdicts_of(rises, values, same_top):
        print(f"{name:9} {'pass' if verdict.passed else 'FAIL'}  {verdict.name:19} {verdict.text}")

# %% [markdown]
# The 3-bit cache is caught by every line. If a line of an 8-bit format fails, look at its interval: 321 tokens, read
# here to save your time, are not enough to *prove* a share of 95 %, though the share itself is above it. The command
# `twophase bench quality` reads all of its 2,500 tokens, asks for needles and for records, and takes its time; its
# exit status is 1 when the gate fails, so a build can depend on it.
#
# **Tasks.** What do users notice? A fact from 150 tokens ago (section 4), and an order that is to become a record under
# a JSON Schema (section 3): "Order 4471: 3 lamps for Mrs Ferreira, to be sent to Porto."

# %%
for name in gate_caches.FORMATS:
    print(f"{name:9} surprise at the fact {gate_caches.bits_at_fact(name):4.1f} bits; {gate_caches.order_read(name)}")

# %% [markdown]
# **Read the result.** The record of the spoilt cache is *valid*. The mask saw to that: four keys, a whole number, no
# comma too many. A gate that counted valid records would have let it through. So compare the fields, and without the
# mask also the form: what guides an output hides what is wrong with it.
#
# **Play.** Where is the limit? `gate_caches.FewBits(spec, bits=4)`, 5, 6; `attention_backend` takes a function of the
# spec.

# %% [markdown]
# ## 6. Prefill here, decode there
#
# *Needs: CPU, and the model; the last part starts two processes.*
#
# Until now one engine did both: it read prompts, which is arithmetic, and wrote answers, which is waiting for memory.
# Chunks (lab 4) make them bearable neighbours. **Disaggregation** separates them: some machines only read, others only
# write, and each kind can be bought, configured and counted for what it does. DistServe (arXiv:2401.09670) and
# Splitwise (arXiv:2311.18677) showed it; DeepSeek-V3 is served like this (arXiv:2412.19437, section 3.4).
#
# The price is a hand-over. What a prefill leaves behind is its K and V, in pages of *its* pool, and the answer is
# written from pages of another one.

# %% [markdown]
# **Think first.** The prompt lies in blocks 7, 3, 6 of one pool. The other pool has blocks 2, 9, 5 free. What must
# travel, what must not, and which numbers mean nothing on the other side?

# %%
pages_pictures.draw_hand_over(num_tokens=10, page=4, here=(7, 3, 6), there=(2, 9, 5))

# %% [markdown]
# A block's number is an address in one pool and nothing else. What has a meaning on both sides is a token's *position*
# in its sequence. So what travels is rows in the order of positions, and each side maps positions to slots by its own
# table. It goes **layer by layer**: a layer's pages are complete as soon as the layer has been computed, so they can
# be on their way while the next layer is being computed.

# %% [markdown]
# <!-- card 5.18 -->
# `layer` is a `LayerKV` of the engine: `layer.k[block, head, offset]` is the key of one slot. `stored(layer)` lists
# what there is: K, V, and, when quantised, the scales of both, `[block, head, offset]`. `block_ids` has as many blocks
# as the tokens need, the last one partly full. A message is a list of tensors, a row per token. The two pools may
# have pages of different sizes.
#
# ```python
# slots_of([7, 3], num_tokens=6, page=4)   # blocks 7 7 7 7 3 3, offsets 0 1 2 3 0 1
# take_layer(layer, [7, 3], 6)[0].shape == (6, num_kv_heads, head_dim)
# ```


# %% tags=["exercise:5.18"]
def slots_of(block_ids, num_tokens, page):
    """Block and offset of each position."""
    positions = torch.arange(num_tokens)
    blocks = torch.tensor(block_ids)[positions // page]  # SOLUTION: the block of each position
    offsets = positions % page  # SOLUTION: its place in the block
    return blocks, offsets


def take_layer(layer, block_ids, num_tokens):
    """Everything one layer stores of a prompt, a row per token."""
    blocks, offsets = slots_of(block_ids, num_tokens, layer.k.shape[2])
    return [pages[blocks, :, offsets] for pages in stored(layer)]  # SOLUTION: a tensor of rows for each thing stored


def put_layer(layer, block_ids, message):
    """Write a message into these blocks of another pool."""
    blocks, offsets = slots_of(block_ids, len(message[0]), layer.k.shape[2])
    for pages, rows in zip(stored(layer), message, strict=True):
        # BEGIN SOLUTION: write the rows into their slots
        pages[blocks, :, offsets] = rows
        # END SOLUTION


# %%
check("5.18")

# %% [markdown]
# **The real model, two pools.** SmolLM2 reads a sentence into the first pool. Your functions move its 30 layers into
# other blocks of the second pool. Then both pools write on, each from its own pages.

# %%
# NBVAL_CHECK_OUTPUT
_, take, put = use("5.18")
for stored_as in ("float32", "int8"):
    moved = pages_handover.hand_over(take, put, kv_cache_dtype=stored_as)
    print(f"{stored_as}: {moved.num_bytes:,} bytes moved, largest difference of logits {moved.largest_difference:g}")
    print("  here ", moved.text_here)
    print("  there", moved.text_there)

# %% [markdown]
# **Read the result.** Not nearly equal: equal. Moving copies bits, so a difference of one part in a million would be a
# bug. That is the test to write for a hand-over, and it is a stricter one than reading the text.

# %% [markdown]
# ### Is it worth the wire?
#
# Lab 1's formula: a model with 80 layers and 8 KV heads of 128 stores 320 KiB per token in 16 bits. What is alive in a
# busy service, all users together, is some 120 to 240 thousand tokens.

# %%
# NBVAL_CHECK_OUTPUT
per_token = 2 * 80 * 8 * 128 * 2
for live_tokens in (120_000, 180_000, 240_000):
    print(f"{live_tokens:,} tokens: {live_tokens * per_token / 2**30:.1f} GiB")

# %% [markdown]
# 37 to 73 GiB, which pass from one machine to the other once in every lifetime of a request.

# %% [markdown]
# <!-- card 5.19 -->
# One prompt of 8,000 tokens of this model goes to another machine over a network of 400 Gbit/s. How many milliseconds
# does that take, at least?

# %% tags=["exercise:5.19"]
answer_5_19 = 1e3 * 8000 * 327_680 / 50e9  # SOLUTION: milliseconds

# %%
check("5.19")

# %% [markdown]
# To compute those 8,000 tokens takes $2 \cdot 70 \cdot 10^9 \cdot 8000$ operations: on eight H100s at 60 % of their
# peak, some 240 ms. And if each layer leaves as soon as it is computed, the transfers hide behind the arithmetic, all
# but the last layer's.

# %%
pages_pictures.draw_overlap(num_layers=8, compute_ms=30.0, transfer_ms=6.6)

# %% [markdown]
# <!-- card 5.20 -->
# **Think first.** SmolLM2 on this machine, in float32: 46,080 bytes and some 270 million operations per token of a
# prompt. Moving the K and V of a prompt to another process of the same machine takes how many percent of the time
# that it took to compute them? Anything within a factor of six counts; the point is the order of magnitude.

# %% tags=["exercise:5.20"]
guess_5_20 = 2.0  # SOLUTION: percent

# %%
check("5.20")

# %%
measured("5.20", pages_shares.moving_share_percent())

# %% [markdown]
# That was a socket with nothing else to do. Now the real thing.
#
# ### Two processes, for real
#
# The engine does it in `twophase.parallel.disaggregation`. Rank 1 reads prompts, rank 0 writes answers; each has the
# whole model, a pool and a scheduler of its own, and they say little to each other:
#
# ```mermaid
# sequenceDiagram
#     participant D as rank 0: decode
#     participant P as rank 1: prefill
#     D->>P: Submit: a prompt, for which blocks are reserved here
#     D->>P: Grant: they are now (if there was no room before)
#     P->>D: Pages: layer 0, layer 1, ... while the next layers are computed
#     P->>D: Done: the first token
#     D->>P: Received: your blocks can be freed
# ```
#
# Its pages have the same size on both sides, so it copies whole ones (`parallel/pages.py`), bit for bit, and a
# thread that does nothing else sends them. The next cell starts both ranks with torchrun and waits for them, a quarter
# of a minute or so; none is left behind. Three prompts are answered, and one of 250 tokens is watched. (`twophase
# bench disaggregation` does it at length, and `twophase bench tensor-parallel` what comes in the next section.)

# %%
moved = pages_two_processes.apart()
print(moved.lines)
if moved.apart is not None:
    print("the tokens are those of one engine alone:", moved.apart == moved.together)

# %% [markdown]
# **Read the result.** Sending may well take longer here than through the idle socket: the sender shares its cores with
# the next layers' arithmetic. That is the good news: it happens *meanwhile*. What a user waits for is the copying, and
# what comes after the last layer. The first token waits for nothing; it is sampled on the prefill side.
#
# What makes this hard is not the bytes. A process can die with half a prompt sent, or be stopped and say nothing: in
# `twophase.parallel` every wait has a limit, a lost peer is a `PeerLostError` that names it, and the blocks of
# its requests are free again. And the pools must be sized, which is section 8. **When is chunked prefill enough?**
# Keep the question until then.

# %% [markdown]
# ## 7. One layer on several machines
#
# *Needs: CPU, and the model; the last part starts two processes.*
#
# Llama-3-70B in bfloat16 has 141 GB of weights, and a GPU 80 GB. **Tensor parallelism** cuts every layer, so that each
# of n ranks holds an n-th of each matrix, and reads an n-th in each step. It is a way of using more machines
# that makes a *single* token faster: lab 3's bound, bytes over bandwidth, is divided by n. What it costs is that the
# ranks must agree on the activations, several times a layer.
#
# The art is in where to cut. Megatron-LM (arXiv:1909.08053) found the cuts that need the fewest words.

# %% [markdown]
# **Think first.** An MLP is $W_{down}\,(\mathrm{silu}(W_{gate}\,x) \cdot W_{up}\,x)$. A sum can be computed in parts,
# and added up later. Why can't one cut $W_{gate}$ so that each rank computes part of every inner number?

# %%
shards_pictures.draw_mlp_cut()

# %% [markdown]
# $\mathrm{silu}(a + b)$ is not $\mathrm{silu}(a) + \mathrm{silu}(b)$. So the first two matrices are cut such that a
# rank has *whole* inner numbers, some of them; and the last one such that it takes in just these. Its outputs are then
# parts of sums, and one **all-reduce** adds them up: every rank gives a tensor and gets the sum of all.

# %% [markdown]
# <!-- card 5.21 -->
# Weights are stored as in PyTorch, `[out, in]`, and used as `x @ w.T`: gate and up `[width, hidden]`, down
# `[hidden, width]`. `split_mlp` gives a list of n shards (gate, up, down), as even as possible; `mlp_part` what one
# rank computes; `all_reduce` gets a tensor of each rank and returns one for each; `mlp_block` what every rank has
# after the whole block, $x + \mathrm{MLP}(x)$. (The norm is left out: every rank does it for itself.)


# %% tags=["exercise:5.21"]
def split_mlp(gate, up, down, n):
    gates, ups = gate.tensor_split(n), up.tensor_split(n)  # SOLUTION: n parts of each, along the right axis
    downs = down.tensor_split(n, dim=1)  # SOLUTION: n parts that belong to them
    return list(zip(gates, ups, downs, strict=True))


def mlp_part(x, shard):
    gate, up, down = shard
    inner = F.silu(x @ gate.T) * (x @ up.T)  # SOLUTION: the inner numbers that this rank has
    return inner @ down.T


def all_reduce(parts):
    total = torch.stack(list(parts)).sum(0)  # SOLUTION: what every rank is to have
    return [total.clone() for _ in parts]


def mlp_block(x, shards):
    return [x + total for total in all_reduce([mlp_part(x, s) for s in shards])]  # SOLUTION: one output for each rank


# %%
check("5.21")

# %% [markdown]
# ### Heads
#
# Attention is easier: a head works alone, from its own rows of $W_q$, $W_k$ and $W_v$ to its own columns of $W_o$,
# which adds the heads up. So heads are dealt out, and again one all-reduce follows. With grouped heads a KV head and
# the G query heads that read it stay together; else two ranks would need the same keys, and store them twice.
#
# SmolLM2 has 3 KV heads, and two ranks. Many engines refuse that. Nothing in the arithmetic does: 2 and 1.

# %%
shards_pictures.draw_heads(num_heads=9, num_kv_heads=3, num_ranks=2)

# %% [markdown]
# <!-- card 5.22 -->
# `kv_heads_of(rank, n, num_kv_heads)` is a range: in order, and the first ranks have one more where it does not
# divide. `split_attention` returns for each rank the `AttentionWeights(q, k, v, o, num_heads, num_kv_heads, head_dim,
# theta)` of its heads; the rows of a head in q, k and v, and its columns in o, lie together.
#
# ```python
# [list(kv_heads_of(rank, 2, 3)) for rank in (0, 1)] == [[0, 1], [2]]
# ```


# %% tags=["exercise:5.22"]
def kv_heads_of(rank, n, num_kv_heads):
    base, extra = divmod(num_kv_heads, n)
    first = rank * base + min(rank, extra)  # SOLUTION: how many heads the ranks before this one have
    return range(first, first + base + (rank < extra))  # SOLUTION: this rank's heads


def split_attention(w, n):
    group, d = w.num_heads // w.num_kv_heads, w.head_dim
    shards = []
    for rank in range(n):
        kv = kv_heads_of(rank, n, w.num_kv_heads)
        kv_rows = slice(kv.start * d, kv.stop * d)  # SOLUTION: rows of these heads in k and v
        q_rows = slice(kv.start * group * d, kv.stop * group * d)  # SOLUTION: rows of their query heads in q
        o = w.o[:, q_rows]  # SOLUTION: the part of o that takes these heads in
        q, k, v = w.q[q_rows], w.k[kv_rows], w.v[kv_rows]
        shards.append(AttentionWeights(q, k, v, o, len(kv) * group, len(kv), d, w.theta))
    return shards


# %%
check("5.22")

# %% [markdown]
# **A real layer.** What goes into layer 7's attention of SmolLM2 when it reads a sentence, and what transformers makes
# of it, against the sum of your two ranks.

# %%
# NBVAL_CHECK_OUTPUT
_, split = use("5.22")
model, tokenizer = smollm2()
x, expected = watch_layer(model, 7, torch.tensor(tokenizer.encode("Many hands make light work, if they can agree.")))
whole = weights_of(model, 7)
parts = [attend(x, shard) for shard in split(whole, 2)]
for rank, shard in enumerate(split(whole, 2)):
    weights = sum(w.numel() for w in (shard.q, shard.k, shard.v, shard.o))
    print(f"rank {rank}: {shard.num_heads} heads over {shard.num_kv_heads}, {weights:,} weights")
print("the sum equals transformers' output:", torch.allclose(sum(parts), expected, atol=1e-4))

# %% [markdown]
# Rank 0 has twice the work of rank 1, so two ranks are at best 1.5 times as fast here, not twice. And each keeps the
# K/V pages of its own heads only: with them memory divides too.

# %% [markdown]
# ### Two ranks, for real
#
# <!-- card 5.23 -->
# The engine with `LLM(tensor_parallel_size=2)`: every rank holds its part of each layer and runs the same step. A
# prompt of 24 tokens is read in one step, and 20 tokens come out. SmolLM2 has 30 layers. How many all-reduces of
# activations in the layers is that? Write the number.

# %% tags=["exercise:5.23"]
guess_5_23 = 1200  # SOLUTION: all-reduces

# %%
check("5.23")

# %% [markdown]
# In the next cell this process generates alone, then two ranks that torchrun starts do the same. A quarter of a minute.

# %%
both = shards_two_processes.side_by_side()
print(both.table)
measured("5.23", both.two.num_all_reduces) if both.two is not None else both.why_not

# %%
if both.two is not None:
    one, two = both.one, both.two
    off = max(abs(a - b) for a, b in zip(one.logprobs, two.logprobs, strict=True))
    print("the same tokens:", one.token_ids == two.token_ids, f"| log-probabilities differ by at most {off:.0e}")
    num_rows = two.all_reduce_bytes // (60 * 576 * 4)
    print(f"{two.all_reduce_bytes:,} bytes handed over: {num_rows} rows of 576 floats, 60 times")

# %% [markdown]
# **Read the result.** Two per layer and step, and a row for each token of the step: 24 of the prompt and 19 more, for
# the last token is sampled and never read. The tokens are equal and the logits *nearly*: sums are added up in another
# order. A hand-over was bit for bit; here a tolerance is right.
#
# And the time? Reading a prompt is arithmetic, and two cores have twice as much of it. A decode step waits for the
# memory, which the two ranks of one machine share, and then the ranks wait 60 times for each other. Does your table
# agree? The bytes, at any rate, are divided: fewer weights to hold on each rank, and fewer K and V per token.

# %% [markdown]
# ### When it does not pay
#
# An all-reduce of one token is a few kilobytes: no bandwidth is needed, but a *latency*, twice a layer, which no
# faster link makes shorter. Below, on paper, the time per token of a single user on H100s, by roofline, with 10 µs per
# all-reduce.

# %%
shards_pictures.draw_time_per_token(shards_cost.time_per_token())

# %% [markdown]
# **Read the result.** The part that reads is divided, the part that talks stays. SmolLM2 has next to nothing to divide:
# on three GPUs its tokens come several times *slower*. Llama-3-8B on eight is some four times as fast as on one, for
# one user; eight engines of one GPU each serve eight times as many. Llama-3-70B has no choice below two. And across
# machines, where an all-reduce takes longer still, one rarely cuts layers at all: there the model is cut *between*
# layers, which is next.

# %% [markdown]
# ## 8. Stages in a row, pools side by side
#
# *Needs: CPU.*
#
# **Pipeline parallelism** gives each machine some consecutive layers. What travels is one activation per token, once
# per border instead of twice per layer: a slow network will do. But a machine has nothing to do until the first work
# arrives, and nothing more once the last has passed. That idle time is called a *bubble*.

# %% [markdown]
# **Think first.** A prompt goes through four stages as one piece. What share of the machines' time is idle? And what
# if the prompt goes in four chunks?

# %% [markdown]
# <!-- card 5.24 -->
# `seconds[stage][chunk]` says how long each takes. A stage works on one chunk at a time, in order, and can start with
# one as soon as the stage before has ended it. `run_pipeline` returns (start, end) in the same nesting; `bubble_share`
# the idle share of all stages from 0 to the end of everything. For m equal chunks in p stages it is
# $(p - 1) / (m + p - 1)$ (GPipe, arXiv:1811.06965): derive it, or let your code find it.
#
# ```python
# run_pipeline([[1, 1], [1, 1]]) == [[(0, 1), (1, 2)], [(1, 2), (2, 3)]]      # bubble 2 of 6
# ```


# %% tags=["exercise:5.24"]
def run_pipeline(seconds):
    spans = []
    for stage, row in enumerate(seconds):
        free, spans_here = 0.0, []
        for chunk, length in enumerate(row):
            there = spans[stage - 1][chunk][1] if stage else 0.0  # SOLUTION: when this chunk has come from before
            start = max(free, there)  # SOLUTION: when it can start here
            free = start + length
            spans_here.append((start, free))
        spans.append(spans_here)
    return spans


def bubble_share(spans):
    makespan = max(end for row in spans for _, end in row)  # SOLUTION: when everything is over
    worked = sum(end - start for row in spans for start, end in row)  # SOLUTION: seconds of work, all stages
    return 1 - worked / (len(spans) * makespan)  # SOLUTION: the idle share


# %%
check("5.24")

# %%
play, bubble = use("5.24")
timetables = {f"{m} chunk{'s' * (m > 1)}": play([[8 / m] * m] * 4) for m in (1, 4, 16)}
pipeline_pictures.draw_pipeline(timetables, bubble)

# %% [markdown]
# So the smallest chunks are best? Each of them makes every stage read its weights once more, and attention in a later
# chunk has more keys than in an early one. A prompt of 8,192 tokens of Llama-3-70B, four H100s with 20 layers each:

# %%
# NBVAL_CHECK_OUTPUT
for num_chunks in (1, 2, 4, 8, 16, 32, 64):
    spans = play(plan_pools.stage_seconds(num_tokens=8192, num_chunks=num_chunks, num_stages=4))
    print(f"{num_chunks:3} chunks: bubble {bubble(spans):4.0%}, over after {spans[-1][-1][1]:.2f} s")

# %% [markdown]
# **Read the result.** The bubble shrinks on and on; the time has a minimum, where a chunk is still large enough to be
# bound by arithmetic. And decoding? Token t + 1 enters the first stage when token t has left the last: one sequence
# keeps one stage of four busy. It takes at least as many groups of sequences as there are stages, each on its way
# through a different one. A pipeline gives *throughput* and memory; it never makes a token come sooner.

# %% [markdown]
# ### How many read, how many write?
#
# Eight engines, each an H100 with Llama-3-8B, and people with documents: 36 requests per second, prompts of some 4,800
# tokens and answers of 140. Promised: the first token within a second, then no more than 12 ms per token on average.
# If some engines only read prompts and the others only write, how many should read?

# %%
# NBVAL_CHECK_OUTPUT
documents = plan_pools.DOCUMENTS
print(f"{documents.mean_prompt:,.0f} tokens a prompt: {1e3 * documents.mean_prefill_s:.0f} ms to read one, alone")
print(f"a decode step of 40 sequences: {1e3 * plan_pools.decode_step_s(40, 40 * 4800):.1f} ms")

# %% [markdown]
# <!-- card 5.25 -->
# Write how many of the eight should read, so that as many requests as possible get what was promised.

# %% tags=["exercise:5.25"]
guess_5_25 = 5  # SOLUTION: engines that read

# %%
check("5.25")

# %%
for num_reading, outcome in plan_pools.splits(documents).items():
    print(f"{num_reading} read, {8 - num_reading} write: {outcome.line}")
measured("5.25", plan_pools.best_split(documents))

# %% [markdown]
# **Read the result.** With too few readers prompts queue up without end; with too few writers, each step has so many
# sequences that it gets too long. In between there is hardly room: the pools have to be sized, and sized again when
# the traffic changes. Now the same eight engines, each doing both, in chunks of different sizes:

# %%
for chunk in (128, 256, 512, 8192):
    print(f"steps of at most {chunk:5,} tokens: {plan_pools.mixed(documents, chunk).line}")

# %% [markdown]
# **Read the result.** Against whole prompts (8,192 tokens in a step) the pools win by far. Against chunks of the right
# size they win nothing here. **Chunked prefill is enough** as long as a chunk fits into the idle arithmetic of a decode
# step, and this cost model lets it, perfectly: a real GPU overlaps the two less well, and a chunk reads all the keys
# before it again. Pools pay when promises per token are tight beside very long prompts, when the phases want different
# hardware or different parallelism, or when nobody can find the chunk that suits all. They cost a network, two sizes
# to keep right, and idle machines when the mix shifts.

# %% [markdown]
# ## 9. A plan on one page
#
# *Needs: CPU.*
#
# Everything that this workbook has measured comes together in one question, asked before anything is bought: which
# machines, which settings, for this model, this traffic, and these promises? `twophase plan` answers it from one file.
# Its first part is arithmetic that you can do yourself.

# %% [markdown]
# <!-- card 5.26 -->
# A `Deployment` has `weight_bytes` (on all GPUs together, each with as many), `num_layers`, `num_kv_heads`, `head_dim`,
# `value_bytes` and `scale_bytes` of a number and of a scale in the cache, `num_gpus`, `gpu_bytes`, `utilisation` (the
# share of a GPU that may be used), `workspace_bytes` (per GPU), `block_size`, `max_num_seqs`. The scale is one for each
# token and head, for K and for V. `kv_bytes_per_token` counts the fullest GPU, `num_blocks` is of one GPU's pool, and
# `concurrency` how many requests of `num_tokens` tokens run at once: memory, or seats.


# %% tags=["exercise:5.26"]
def kv_bytes_per_token(d):
    heads = -(-d.num_kv_heads // d.num_gpus)  # SOLUTION: K/V heads of the fullest GPU
    return 2 * d.num_layers * heads * (d.head_dim * d.value_bytes + d.scale_bytes)  # SOLUTION: bytes of a token there


def num_blocks(d):
    left = d.utilisation * d.gpu_bytes - d.weight_bytes / d.num_gpus - d.workspace_bytes  # SOLUTION: for K and V
    return max(0, int(left // (d.block_size * kv_bytes_per_token(d))))  # SOLUTION: whole blocks in it, none at least


def concurrency(d, num_tokens):
    blocks_each = -(-num_tokens // d.block_size)  # SOLUTION: blocks of one request
    return min(d.max_num_seqs, num_blocks(d) // blocks_each)  # SOLUTION: requests at once


# %%
check("5.26")

# %%
# NBVAL_CHECK_OUTPUT
_, blocks_of, at_once = use("5.26")
for stored_as in ("auto", "int8"):
    plan = plan_of(example(kv_cache_dtype=stored_as, workspace="1 GB", max_num_seqs="2000"))
    d = deployment_of(plan.config)
    print(f"Llama-3-8B on an H100, K/V {stored_as}: {blocks_of(d):,} blocks,", end=" ")
    print(f"{at_once(d, 1250)} requests of 1,250 tokens at once; the planner says {plan.max_requests}")

# %% [markdown]
# ### What the planner makes of it
#
# Times are by roofline and Little's law; nothing is measured, and every assumption is printed. The last lines are the
# most useful ones: reasons to think again, each with the line of the file that it is about. Here is a plan for a 70B
# model. Its author reasoned that two H100s have 160 GB and the weights 141, and raised `gpu_memory_utilization` from
# 0.9, at which not one request fits, to 0.92.

# %%
# NBVAL_CHECK_OUTPUT
tight = {"model": "llama-3-70b", "tensor_parallel_size": "2", "rate": "2", "max_num_seqs": "64"}
tight["gpu_memory_utilization"] = "0.92"
print(to_text(plan_of(example(**tight))))

# %% [markdown]
# <!-- card 5.27 -->
# The weights fit, and the plan does not work. One change, and no warning is left. Which?
# (a) `kv_cache_dtype: int8`,
# (b) `max_num_seqs: 4`,
# (c) `tensor_parallel_size: 4`,
# (d) `gpu_memory_utilization: 0.95`.

# %% tags=["exercise:5.27"]
answer_5_27 = "c"  # SOLUTION: one letter

# %%
check("5.27")

# %%
# NBVAL_CHECK_OUTPUT
options = ("kv_cache_dtype", "int8"), ("max_num_seqs", "4"), ("tensor_parallel_size", "4")
for key, value in (*options, ("gpu_memory_utilization", "0.95")):
    plan = plan_of(example(**{**tight, key: value}))
    most, warnings = plan.saturated.requests_per_s, [caution.name for caution in cautions_of(plan)]
    print(f"{key}: {value}".ljust(30), f"at most {most:4.2f} requests/s;", ", ".join(warnings) or "no warnings")

# %% [markdown]
# **Read the result.** Twice the GPUs serve over eleven times the requests. The first two were busy holding weights;
# what the third and the fourth bring is nearly all pool, and a larger batch reads the same weights. Memory left over
# after the weights, not memory, is what serves people.

# %% [markdown]
# ### A decision matrix
#
# | workload | first | then | leave alone |
# |---|---|---|---|
# | chats, many users | continuous batching, an engine per GPU | K/V in int8 or fp8 | more GPUs per engine |
# | one long instruction, many users | prefix caching, with routing to it | a salt per tenant | pools |
# | long documents, short answers | chunked prefill, K/V in 8 bits | pools, if token times are tight | speculation |
# | one user, latency above all | tensor parallelism, speculation | a quantised model | large batches |
# | edits, code, quotations | n-gram speculation | prefix caching of the file | a draft model |
# | answers for programs | guided decoding | speculation beside it | retries |
# | streams without end | window and sinks | a summary kept in the prompt | windows for tasks that look far back |
# | offline, throughput only | the largest batch, large chunks | pipelines over slow links | promises per token |
#
# Each row is a hypothesis. The planner tells within a second whether it can be true; the simulator (lab 4) whether it
# is true of your traffic; a run on the machine whether it is true.

# %% [markdown]
# ## The whole system, drawn once more
#
# Every box is something you have built, or seen built, and every name a file that you can open.

# %% [markdown]
# ```mermaid
# flowchart TB
#     subgraph door["at the door"]
#         P["prompts, requests<br/>engine/prompts.py, core/request.py"]
#         G["guided decoding<br/>engine/guidance.py"]
#     end
#     subgraph decide["decides: no tensors"]
#         S["scheduler and policies<br/>scheduling/scheduler.py, policies.py"]
#         C["block pool, tables<br/>cache/block_pool.py, block_table.py"]
#         X["prefix cache, salts<br/>cache/prefix_cache.py"]
#         W["windows, sinks, swapping<br/>cache/manager.py, swap_space.py"]
#     end
#     subgraph compute["computes"]
#         R["packed batch, runner<br/>engine/packing.py, runner.py"]
#         M["the model<br/>model/llama.py"]
#         A["attention over pages<br/>attention/, kernels/"]
#         K["pages, int8, fp8<br/>cache/kv_cache.py"]
#     end
#     subgraph choose["chooses tokens"]
#         Z["sampler<br/>engine/sampler.py"]
#         D["drafts, and their verification<br/>engine/drafters.py, rejection.py"]
#         T["text in whole characters<br/>engine/detokenizer.py"]
#     end
#     subgraph many["more than one process"]
#         TP["tensor parallelism<br/>parallel/tensor_parallel.py"]
#         PD["prefill and decode apart<br/>parallel/disaggregation.py"]
#     end
#     subgraph paper["on paper, and in numbers"]
#         V["latencies, goodput<br/>load/, bench/"]
#         U["simulator: the same scheduler<br/>simulate/"]
#         N["capacity plan<br/>capacity/"]
#     end
#     P --> S
#     S <--> C
#     C <--> X
#     C <--> W
#     S -->|plan| R --> M --> A --> K
#     M -->|logits| Z
#     G -->|mask| Z
#     D <-->|drafts| R
#     Z -->|tokens| S
#     Z --> T
#     TP -.-> M
#     PD -.-> K
#     S -.->|same code| U --> N
#     T --> V
# ```
#
# The paths are below `src/twophase/`, those of the last box below `src/twophase_tools/`, the kernels in
# `kernels/twophase_kernels/`. Follow a token once around: it comes in as text at the door; the scheduler gives it a
# place in a step and the cache a slot in a page; the model computes
# its K and V into that slot and attends to the pages of its sequence; the sampler chooses the next one, under a mask
# if a grammar asks for it, or checks several that a drafter has guessed; and around it goes. Labs 1 to 3 are the inner
# circle, lab 4 the left side, this lab everything that leaves the simple circle.

# %% [markdown]
# ## Checkpoint
#
# Tick what you could explain to a colleague without looking. What you can't, is a section to go back to.
#
# - [ ] why a hash of a block must cover everything before it, and what a salt closes (1)
# - [ ] who may be evicted from a prefix cache, and in which order (1)
# - [ ] why verified drafts leave the distribution as it was, and when they cost time (2)
# - [ ] what acceptance and the costs of both models say about the gain (2)
# - [ ] how a grammar becomes a mask over tokens, and what still can go wrong with valid output (3)
# - [ ] what a window forgets, and why the first tokens must stay (4)
# - [ ] how to tell, with numbers, that a smaller cache is still good enough (5)
# - [ ] what travels in a hand-over, and why it can hide behind the arithmetic (6)
# - [ ] when chunked prefill is enough, and when pools are worth their price (6, 8)
# - [ ] where a layer is cut so that two all-reduces suffice, and what they cost (7)
# - [ ] what a bubble is, and why a pipeline makes no token come sooner (8)
# - [ ] how to get from a configuration to requests at once, on paper (9)

# %% [markdown]
# ## 10. Final knowledge check
#
# *Needs: a clear head.* Six questions over the whole lab.

# %% [markdown]
# <!-- card 5.28 -->
# Which technique first? **a** prefix caching · **b** n-gram speculation · **c** guided decoding · **d** a sliding
# window with sinks · **e** tensor parallelism · **f** prefill and decode pools

# %% tags=["exercise:5.28"]
answer_5_28 = {
    "ten thousand requests, all beginning with the same 3,000 tokens of instructions": "a",  # SOLUTION: a letter
    "somebody, quite alone, waits for an edit that repeats most of a file": "b",  # SOLUTION: a letter
    "answers are read by a program, and a missing bracket costs a retry": "c",  # SOLUTION: a letter
    "a log is followed for weeks, and only its last hour matters": "d",  # SOLUTION: a letter
    "the weights alone are larger than one GPU": "e",  # SOLUTION: a letter
    "the best chunks, and still long gaps, beside prompts of 20,000 tokens": "f",  # SOLUTION: a letter
}

# %%
check("5.28")

# %% [markdown]
# <!-- card 5.29 -->
# Temperature 0.8, and a drafter whose guesses are nearly always wrong, with rejection sampling. What becomes of the
# text?
# (a) It follows the drafter wherever the target is unsure,
# (b) it would be right at temperature 0 only,
# (c) it comes from a mixture of both distributions,
# (d) it has the distribution it would have without a drafter, and comes later.

# %% tags=["exercise:5.29"]
answer_5_29 = "d"  # SOLUTION: one letter

# %%
check("5.29")

# %% [markdown]
# <!-- card 5.30 -->
# Each draft is accepted with probability 0.5, whatever happened before, and 4 are drafted at a time. How many tokens
# does a pass of the target model give, on average?

# %% tags=["exercise:5.30"]
answer_5_30 = 1.9375  # SOLUTION: tokens

# %%
check("5.30")

# %% [markdown]
# <!-- card 5.31 -->
# Llama-3-8B for short chats keeps its promises on one H100. Now eight times as many users come, and there are eight
# H100s in one machine. How do most of them get what was promised?
# (a) Tensor parallelism of eight,
# (b) eight engines behind a router,
# (c) a pipeline of eight stages,
# (d) four engines that read and four that write.

# %% tags=["exercise:5.31"]
answer_5_31 = "b"  # SOLUTION: one letter

# %%
check("5.31")

# %% [markdown]
# <!-- card 5.32 -->
# What is behind it? **a** K and V of rejected drafts left in the cache · **b** a prefix cache without salts · **c** a
# window without sinks · **d** max_tokens · **e** pages put in another order than the block table's · **f** the
# latency of all-reduces

# %% tags=["exercise:5.32"]
answer_5_32 = {
    "greedy text changes when speculation is on": "a",  # SOLUTION: a letter
    "one tenant's first tokens are faster right after another one asked the same": "b",  # SOLUTION: a letter
    "fluent answers turn into noise some thousand tokens on": "c",  # SOLUTION: a letter
    "valid JSON up to a point, and then nothing": "d",  # SOLUTION: a letter
    "the decode side's first token is right, the second is not": "e",  # SOLUTION: a letter
    "twice the GPUs, and the same time per token": "f",  # SOLUTION: a letter
}

# %%
check("5.32")

# %% [markdown]
# <!-- card 5.33 -->
# A window of 1,024 tokens and 4 sinks, blocks of 16. A sequence decodes for ever. How many blocks does it hold at
# most?

# %% tags=["exercise:5.33"]
answer_5_33 = 66  # SOLUTION: blocks

# %%
check("5.33")

# %% [markdown]
# ## Principles
#
# 1. **First measure what is scarce**: arithmetic, bandwidth, memory, latency, or somebody's patience. Each technique
#    trades one for another; without knowing which one is short, one buys at random.
# 2. **What is computed once need not be computed twice**, as long as its name says all it depends on.
# 3. **A guess may save time, never change the answer.** Verify, and test that the distribution stayed.
# 4. **Constrain the output, not the hope.** What a program reads should be valid by construction, or say why it is not.
# 5. **Forgetting is a feature with a test**: know what is lost, at the length where it is lost.
# 6. **Move data while something else computes**, and cut where the fewest words must be said.
# 7. **Every wait has a limit and an owner.** Two processes fail in more ways than one: a lost peer is an error within
#    seconds, never silence.
# 8. **A technique comes with the workload that it hurts.** If you don't know that workload, you have not measured yet.
# 9. **Plan on paper, simulate the traffic, measure the machine**, in this order, and print the assumptions.

# %% [markdown]
# ## Troubleshooting, by symptom
#
# | symptom | likely cause | section |
# |---|---|---|
# | prefix cache on, and no hits | prompts differ in the first block (a date, a salt), or are shorter than one | 1 |
# | hits, then suddenly none | evicted under load; or requests routed to another replica | 1 |
# | the same prompt, faster for strangers | a shared cache without salts: a side channel | 1 |
# | speculation on, text differs at temperature 0 | rejected drafts left in the cache, or wrong positions | 2 |
# | speculation on, slower under load | verification is not free once batches are large: switch it off there | 2 |
# | guided output cut off | max_tokens; or a stop string that is part of the grammar | 3 |
# | guided output valid, and nonsense | the schema forces a field that the prompt never asks for | 3 |
# | noise after some thousand tokens | a window without sinks | 4 |
# | fine on short prompts, worse on long ones | K/V in too few bits; measure at length | 5 |
# | after a hand-over only the first token is right | pages in another order, a partial page, no scales | 6 |
# | decode pool idle, prompts queue | pools sized for another mix of traffic | 6, 8 |
# | ranks hang at the start | one did not come: ports, a wrong world size; a start-up limit names it | 7 |
# | ranks hang in a step | they disagree on what is computed, or one died: every wait needs a limit | 7 |
# | slightly different logits on two ranks | sums in another order: compare with a tolerance, not bit by bit | 7 |
# | more GPUs, same speed | latency of all-reduces; or a batch bound by K/V, not by weights | 7 |
# | stages of a pipeline idle | fewer groups in flight than stages | 8 |
# | fits on paper, preempts all day | memory for weights, not for K/V; seats beyond memory | 9 |

# %% [markdown]
# ## What to read next
#
# - SGLang, arXiv:2312.07104: RadixAttention, prefixes shared automatically.
# - Fast Inference from Transformers via Speculative Decoding, arXiv:2211.17192, and Accelerating Large Language Model
#   Decoding with Speculative Sampling, arXiv:2302.01318: the rule, and the proof that it keeps the distribution.
# - EAGLE, arXiv:2401.15077, and Medusa, arXiv:2401.10774: drafts from the model's own features.
# - Efficient Guided Generation for Large Language Models, arXiv:2307.09702, and XGrammar, arXiv:2411.15100: masks from
#   automata, and how to make them cheap.
# - Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453.
# - DistServe, arXiv:2401.09670; Splitwise, arXiv:2311.18677; Mooncake, arXiv:2407.00079: prefill and decode apart, and
#   a store of K/V between them.
# - Megatron-LM, arXiv:1909.08053, and Efficiently Scaling Transformer Inference, arXiv:2211.05102: where to cut.
# - GPipe, arXiv:1811.06965: bubbles.
# - Ring Attention, arXiv:2310.01889: long contexts over many machines. DeepSeek-V3, arXiv:2412.19437, section 3: a
#   large service, as it is run.
#
# This is the end of the workbook, and of the story: two phases, one model. You have built both, batched them, shared
# them, guessed ahead, taken them apart and put them on two machines. What is left is a system of your own. The engine
# in this repository is small enough to be changed in an evening: start with the part you would have done differently.
