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
from collections import OrderedDict

import numpy as np
import torch

from twophase import LLM
from twophase.cache.prefix_cache import block_digest, salt_digest, tokens_to_bytes
from twophase.engine.drafters import NgramDrafter
from twophase.engine.thrift import Thrift
from twophase.workbook import ____, check, hint, measured, reference, reveal, use
from twophase.workbook.lab05 import (
    draft_engine,
    draft_pictures,
    prefix_history,
    prefix_pictures,
    prefix_tenants,
)
from twophase.workbook.lab05.draft_chance import Chance, counts_at, run_passes
from twophase.workbook.lab05.prefix_hashing import as_bytes, digest
from twophase.workbook.lab05.prefix_service import first_token, forget_prefixes, shared_engine
from twophase.workbook.lab05.prefix_tenants import WHAT, WHEN, WHO
from twophase.workbook.lab05.section_1_savings import (
    DOCUMENT,
    QUESTION,
    prompt_of,
    seconds_of_question,
    seconds_per_token,
)

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
# again later (`engine/thrift.py`). It is what `disable_when_losing` switches on, and the default.

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
