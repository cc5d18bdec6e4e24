# %% [markdown]
# # Lab 9: your engine
#
# You have written kernels, a scheduler's policy, a prefix store, a drafter, a verifier and a grammar's masks. Lab 5
# joined the last four in one engine. New are your kernels and your policy. This cell collects all parts from your
# notebooks and runs their checks once more. Where one does not pass, the reference stands in, and the table says why:
# mend it in its own notebook, save there, and run this cell again.

# %%
import torch

from twophase_labs.machine.own_parts import own_parts
from twophase_labs.your_engine.engine import NAMES

torch.set_num_threads(1)
mine = own_parts(*NAMES)
mine

# %% [markdown]
# Does one engine run on all of them at once, and does it write what any other engine writes? What would be lost without
# the two that are new? Write down what you expect. Then there is vLLM: how much of what its scheduler decides, step by
# step, can you predict?

# %% [markdown]
# <!-- opening minutes: 4 -->
# <!-- map -->

# %% [markdown]
# **After this lab you can**
#
# - put an engine together from parts behind doors, and show that it writes the right tokens;
# - say what each part is worth on a workload, by leaving it out;
# - predict a step of vLLM's scheduler, and find your own parts in its source;
# - choose an engine's options for a service from its requirements, and have a planner and a simulator judge them.
#
# There is little to write here. Where the reference stands in for a part, everything works all the same; with your own
# part in its place it is your engine. You need labs 2 to 5, as far as you went, and for section 4 lab 6's bytes and
# gate. No GPU is needed.

# %% tags=["setup"]
from twophase_labs import ____, check, hint, measured, reference, reveal, use
from twophase_labs.kit.open_engine import show_source
from twophase_labs.your_engine import engine
from twophase_labs.your_engine.services import DEFAULTS, SERVICES, outcome

# %% [markdown]
# ## 1. One engine from your parts
# <!-- minutes: 12 -->
#
# A part goes in by a **door**, an interface of a few methods. The engine's own parts use the same doors, so there
# is nothing that they can do and yours cannot.
#
# ```mermaid
# flowchart LR
#     R["requests"] --> S["policy<br/>your DecodesFirst"]
#     S -->|"which tokens"| C["allocator<br/>your PrefixStore, block_hashes"]
#     S -->|"room for drafts"| D["drafter<br/>your ngram_draft"]
#     C -->|"block tables"| A["attention<br/>your three kernels, merge_splits"]
#     D --> A
#     A -->|"logits"| V["your verify, your grammar"]
#     V --> T["tokens"] --> S
# ```
#
# | door | an option of `LLM` | your part |
# |---|---|---|
# | attention | `attention_backend=` | `own_write`, `own_prefill`, the split decode kernel and `merge_splits` |
# | allocator | `cache_factory=` | `PrefixStore`, `block_hashes`, `names_to_ask` |
# | policy | `policy=` | `DecodesFirst` |
# | drafter | `drafter=` | `ngram_draft`, with `verify` behind it |
# | grammar | none: set on the engine, as `verify` is | `advance`, `allowed_ids`, `num_allowed` |
#
# (`token_mask` of 5.7 gives the masks of `allowed_ids`, more slowly, and is not used.) The function that puts it all
# together is short. Its helpers, a line each:
#
# - `attention` launches your kernels from the engine's layers, decodes over two splits.
# - `blocks` hands out what your `PrefixStore` gives; it has taken the place of lab 3's pool.
# - `OwnDrafter` asks `ngram_draft` for drafts. `disable_when_losing=False`: go on drafting even while drafts lose.
# - `VerifyingRunner` lets `verify` choose the tokens of each run of drafts.
# - `own_guidance` makes the masks of all states of the grammar beforehand.

# %%
show_source(engine.open_engine, first="options", last="grammar.compile")

# %% [markdown]
# **Think first.** Greedy decoding has one right answer for each prompt. Drafts are verified, prefixes are found by
# their contents, and the order of requests is a matter of time only. What may differ between your engine and any other?

# %% [markdown]
# The workload has twelve requests to SmolLM2, a new one every third step: records that keep a grammar, functions to
# copy and sentences to continue. The first two kinds begin with the same handbook. At most 8 sequences run at once, a
# step has at most 128 tokens, a block 16. *The reference* is this course's engine with parts of its own for everything.

# %%
from twophase_labs.machine.kernels import are_compiled, how_kernels_run

print(how_kernels_run(trusts=True) if are_compiled() else "Kernels are not compiled here: torch computes attention.")
for first in (engine.reference_engine(), engine.open_engine(mine)):  # a warm-up: kernels and grammar are compiled
    engine.serve(first, engine.workload()[:2])
results = {
    "the reference": engine.serve(engine.reference_engine(), engine.workload()),
    "your engine": engine.serve(engine.open_engine(mine), engine.workload()),
}
for number, text in enumerate(results["your engine"].texts[:3]):
    print(f"{number}: {text!r}")

# %%
# NBVAL_CHECK_OUTPUT
same = results["your engine"].num_equal(results["the reference"])
print(f"{same} of {len(results['your engine'].token_ids)} answers are the same, token for token")

# %% [markdown]
# **Read the result.** No policy, store, drafter or verifier may change a token. Kernels may: they sum in another order
# than torch, which moves the last bits of a logit, and where the best two logits are closer than that, two right
# engines part. In float32 that is rare, and none of these twelve answers has such a place. In bfloat16, whose rounding
# is 65,536 times as coarse, it happens; there one compares logits, not texts.
#
# **Takeaway.** Parts of four labs run in one engine and give 12 of 12 answers token for token; a part behind a door can
# be replaced by any other that keeps the door's rules.

# %% [markdown]
# ## 2. What each part is worth
# <!-- minutes: 17 -->
#
# A part is worth what is lost without it. Lab 5 left out store, drafter and grammar; here kernels and policy come to
# them. Five more engines, each yours with one part replaced:

# %%
# NBVAL_CHECK_OUTPUT
for part, instead in engine.WITHOUT.items():
    print(f"without {part:16} {instead}")

# %% [markdown]
# <!-- card 9.1 -->
# The handbook has 134 tokens. Four records add 8 to 10 of their own, four copies 20, of which the first 11 are the same
# in all four. Four sentences have 3 to 6 tokens. Only whole blocks of 16 are found, and the block with a prompt's last
# token never is. How many per cent of all prompt tokens will your store find?

# %% tags=["exercise:9.1"]
guess_9_1 = 78  # SOLUTION: a number, in per cent

# %%
check("9.1")

# %% [markdown]
# **Think first.** Two rows are new: torch in place of your kernels, and batches of four in place of your policy. In
# which of them will the number of steps change, and in which the tokens that a step computes?

# %%
for part in engine.WITHOUT:
    requests = engine.workload(has_grammar=part != "grammar")
    results[f"without {part}"] = engine.serve(engine.open_engine(mine, without=part), requests)
num_prompt_tokens = engine.num_prompt_tokens()
measured("9.1", 100 * results["your engine"].num_hit_tokens / num_prompt_tokens)

# %%
# NBVAL_CHECK_OUTPUT
print(f"{'':24} same  found  drafts kept  steps  tokens computed  per step")
for name, one in results.items():
    same, computed = one.num_equal(results["the reference"]), one.num_computed_tokens
    print(
        f"{name:24} {same:4}  {one.num_hit_tokens:5}  {one.num_accepted:11}  {one.num_steps:5}  {computed:15}  "
        f"{computed / one.num_steps:8.1f}"
    )

# %% [markdown]
# **Read the result.** Eight prompts have the handbook. The first computes it, seven find its 8 whole blocks: 7 × 128 =
# 896. Its last 6 tokens and the first 10 of a copy fill one block more, which three copies find: 3 × 16 = 48. Together
# 944 of 1,205 tokens.
#
# The grammar decides what is written: without it four answers differ. So does the verifier, which goes with the
# drafter here (lab 5 left it out alone). All others decide *when*. Your policy lets a request into the next step; in a
# batch of four a finished sequence's place stays empty until the longest has ended. Kernels change neither steps nor
# tokens. Three small differences: two copies that begin in the same batch of four find no block of each other (928);
# steps full of prompt tokens leave no room for some drafts (93); and the reference's drafter goes on where yours stops,
# at the text's end (103).
#
# **Think first.** By the clock each step costs something, and each of its tokens something more. Which part will cost
# most when it is left out?

# %%
from twophase_labs.your_engine import result_page

figure = result_page.draw_ways(results)

# %%
usual = results["the reference"]
slo = 4 * usual.median_ttft_s, 3 * usual.median_tpot_s  # seconds to the first token, and per token after it
print(f"goodput counts requests with TTFT <= {1e3 * slo[0]:.0f} ms and TPOT <= {1e3 * slo[1]:.0f} ms")
for name, one in results.items():
    print(
        f"{name:24} {one.tokens_per_s:5.1f} tokens/s, first token after {1e3 * one.median_ttft_s:5.0f} ms (median), "
        f"goodput {one.goodput(*slo):.2f} requests/s"
    )

# %% [markdown]
# **Read the result.** It is one run on a machine that may do other things. Steps and tokens, above, do not depend on
# it, and they give two answers. *Who waits for a first token* misses the policy most: a request waits until a batch
# of four has ended, and 59 steps take the place of 46. *The machine* misses shared prefixes most: as many steps, of 34
# tokens in place of 13. Nobody misses your kernels here: contexts of 150 tokens are short, so attention is a small part
# of a step, by whichever code it is computed. Drafts save 8 steps and cost 111 tokens more: whether that pays is a
# matter of the machine, and of how many sequences share a step (lab 5). Without the grammar (hatched) answers have
# other lengths, so that row's rates are not to be compared. Goodput allows four times the reference's median for a
# first token, and three times per token: hardly a request keeps that without the policy, and not all without shared
# prefixes.
#
# What your engine did, as a report beside this notebook, to keep or to show to others:

# %%
page = result_page.write_page(mine, results, slo)
print(f"{page.name}: {len(mine.yours)} of {len(mine.parts)} parts are yours")

# %% [markdown]
# **Takeaway.** Of five parts the grammar changes what is written, 4 of 12 answers. The others change only when: without
# the policy 59 steps for 46, without shared prefixes 34 tokens a step for 13.


# %% [markdown]
# ## 3. The real thing: vLLM's scheduler beside yours
# <!-- minutes: 13 -->
#
# vLLM's scheduler was written by other people, and for other hardware. Give it four small requests and the same
# limits: at most 3 sequences, at most 64 tokens in a step, blocks of 32.
#
# - **A**, 100 prompt tokens, 6 to write, and **B**, 40 and 8, are there at the beginning.
# - Two steps later come **C**, 84 prompt tokens of which the first 64 are those of A, 4 to write, and **D**, 30 and 5.
#
# Where `make vllm` has been run, vLLM is asked now, on this CPU; elsewhere you see the steps that it took when they
# were recorded. These are its first two:

# %%
from twophase_labs.your_engine import beside_vllm

theirs = beside_vllm.vllm_steps()
print(theirs.who, theirs.when)
for number, step in enumerate(theirs.steps[:2]):
    print(f"step {number}: {dict(step)}")

# %% [markdown]
# <!-- card 9.2 -->
# A has its first token now, and C and D have come. How many tokens does vLLM compute for each request in step 2?
# **a** none · **b** 1 · **c** 12 · **d** 20 · **e** 51 · **f** 84


# %% tags=["exercise:9.2"]
answer_9_2 = {
    "A": "b",  # SOLUTION: a letter
    "B": "c",  # SOLUTION: a letter
    "C": "d",  # SOLUTION: a letter
    "D": "a",  # SOLUTION: a letter
}

# %%
check("9.2")

# %% [markdown]
# All of its steps, and beside them those of your engine with the same limits. It has no drafter here, for vLLM drafts
# only where it is told to:

# %%
# NBVAL_CHECK_OUTPUT
limits = {"max_num_seqs": 3, "max_num_batched_tokens": 64, "block_size": 32}
yours = beside_vllm.through(engine.open_engine(mine, without="drafter", **limits), "your engine")
print(beside_vllm.table(theirs, yours))
print("the same steps:", theirs.steps == yours.steps, " the same tokens:", theirs.tokens == yours.tokens)
print("found in the prefix cache:", dict(yours.hits))

# %% [markdown]
# **Read the result.** Step for step the same tokens: decodes first, a prompt in chunks as far as 64 tokens reach, the
# hit of C's two blocks, and D waits until step 6 for one of the three to end, although tokens are left. Two engines
# that share no line decide alike here, because you built the rules that vLLM uses, too.
#
# **Where it ends.** vLLM does more: with its defaults on a GPU it plans the next step before the last one's tokens are
# known, and several processes take part. What you built is the part that decides.
#
# Most of your parts have their place there. Of the others, `paged_decode_split_kernel` is in the same kernel as
# `own_prefill`, and `advance` and `num_allowed` are inside the library that vLLM asks for masks:

# %%
for name, (file, line) in theirs.places.items():
    print(f"{name:14} vllm/{file}, line {line}")

# %% [markdown]
# **Go on from here.** Open one of these files in [vLLM's repository](https://github.com/vllm-project/vllm), in the
# version above, and read the function. You know what it has to do: which arguments are the block tables, where the
# grammar is asked, which dict is the store.
#
# **Takeaway.** In 11 of 11 steps your engine and vLLM compute the same numbers of tokens for the same requests, and
# find the same 64 tokens in their caches.

# %% [markdown]
# ## 4. Three services, a GPU each
# <!-- minutes: 24 -->
#
# Engines have dozens of options, and defaults that suit nobody in particular. Here are three services. Each gets an
# H100 with Llama-3-8B of its own, and a target to meet.

# %%
# NBVAL_CHECK_OUTPUT
for name, service in SERVICES.items():
    print(f"{name:10} {service.about}")
    print(f"{'':10} target: {service.target}")
    weights = ", ".join(str(one or "bfloat16") for one in service.allowed)
    print(f"{'':10} weights that its quality gate lets through: {weights}")

# %% [markdown]
# There are five options; what is left out has its default. A **planner** says how many blocks of 16 tokens are left
# beside weights and workspace, and a **simulator** serves the traffic with this course's scheduler. It draws most
# lengths from log-normal distributions, and times each step by a roofline of the H100's data sheet at a part of its
# peaks; what a real kernel loses beyond that is left out. The defaults, first:

# %%
# NBVAL_CHECK_OUTPUT
print(DEFAULTS)
for name in SERVICES:
    print(f"{name:10} {outcome(name, {})}")

# %% [markdown]
# **Think first.** Three targets are missed. Which numbers above tell why: hits, the time to a first token, the time per
# token? A step reads all weights once, and the K and V of each running sequence: which are more bytes, for 1,000
# tickets? And must all 40 handbooks fit into the pool?

# %% [markdown]
# <!-- card 9.3 -->
# Write the three designs. Each service may change **at most two options** from their defaults, for none is free:
# weights and K/V of fewer bits cost quality, longer steps and more sequences memory, and each is one more way through
# the code to test. Any such design that meets its target passes; `outcome("chat", {...})` tries one in a few seconds.


# %% tags=["exercise:9.3"]
def design(service):
    """Options of the engine for a service, 'chat', 'batch' or 'retrieval': at most two values unlike DEFAULTS.

    quantization: of the weights: None, "fp8", "int8", "int4". kv_cache_dtype: "auto" (bfloat16), "fp8_e4m3", "int8".
    max_num_seqs: sequences that run at once. max_num_batched_tokens: tokens of a step, at least max_num_seqs.
    enable_prefix_caching: True or False.

    >>> set(design("chat")) <= set(DEFAULTS)
    True
    >>> outcome("batch", {"max_num_seqs": 32}).is_met  # a design that is too slow
    False
    """
    # BEGIN SOLUTION: a dict for each service
    if service == "chat":  # share the instructions, and keep steps short for those who wait for tokens
        return {"enable_prefix_caching": True, "max_num_batched_tokens": 512}
    if service == "batch":  # all sequences at once, and K and V of one byte: a step reads them all
        return {"max_num_seqs": 1024, "kv_cache_dtype": "fp8_e4m3"}
    # Share the handbooks; a new one is read in short steps, so that it holds up no other request.
    return {"enable_prefix_caching": True, "max_num_batched_tokens": 1024}
    # END SOLUTION


# %%
check("9.3")

# %%
design = use("9.3")
for name in SERVICES:
    print(f"{name:10} target: {SERVICES[name].target}")
    print(f"{'':10} {outcome(name, design(name))}")

# %% [markdown]
# > **In production, 2026.** The options have the names of vLLM's: `--max-num-seqs`, `--max-num-batched-tokens`,
# > `--kv-cache-dtype`, `--quantization`, and [prefix caching, on by
# > default](https://docs.vllm.ai/en/latest/design/prefix_caching/). A simulated design is where a load test begins, not
# > where it ends: the roofline knows no kernel's real efficiency, and your traffic is not log-normal.
#
# **Takeaway.** With the defaults none of three services meets its target, and with two of five options each, all do.
#
# <details><summary>Which two, and why</summary>
#
# Chat and retrieval share prefixes, and then steps have to be short for those who wait for tokens: fewer tokens in a
# step, or fewer bytes. The batch wants all sequences at once. Then a step reads a full pool of K and V, 53 GB,
# beside 16 GB of weights: one byte for K and V saves more than one byte for weights. With K and V of one byte, weights
# of fewer bits do as well as weights that are read less often, by more sequences at once. All 40 handbooks are 30,000
# blocks, more than the pool has, and they need not all fit: those that are asked for least recently go, and hits of
# 78 % are enough.
#
# </details>

# %% [markdown]
# ## 5. What next
# <!-- minutes: 4 -->
#
# - **Read an engine.** This one, in the order of [its guide](../docs/engine.md); then nano-vllm, which is smaller, and
#   vLLM's `v1/core/sched/scheduler.py`, which is not.
# - **Write a [policy](../docs/doors/policy.md), a [drafter](../docs/doors/drafter.md), an
#   [allocator](../docs/doors/allocator.md) or a [tier](../docs/doors/tier.md)** of your own against this engine.
# - **Run several of it, as a service.** Your transfer and router of lab 7, your token bucket and alert of lab 8 are not
#   in this engine: they stand around it.
# - **Take your kernels to a GPU.** They run there unchanged; [docs/gpu.md](../docs/gpu.md) says how to time them.
# - **A first contribution.** Find an issue in an engine that is about something you built here: a request that is
#   preempted once too often, a metric that counts wrong, a hit that is missed. You can reproduce it in a simulator,
#   show it with a timeline, and prove the cure with an oracle. That is most of the work.
#
# What the labs used again and again is worth more than any of their parts: the [method](../docs/method.md). Predict,
# measure, divide by the floor, read the shape of what is left, explain it, and keep an oracle beside everything that is
# fast.
#
# The course began with an engine and a question. Here are both again, and the engine is yours. The boxes are what they
# were, one orange and then blue ones; by now you know what is in each.

# %%
from twophase import SamplingParams
from twophase_labs.kit.answer_picture import draw_answer
from twophase_labs.kit.course_map import course_map

llm = engine.open_engine(mine, without="drafter")  # a step for each token
question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
(answer,) = llm.chat(question, SamplingParams(temperature=0, max_tokens=40), use_tqdm=False)
course = course_map().total
print(f"yours: {len(mine.yours)} of {len(mine.parts)} parts, {course.points} of {course.max_points} points")
draw_answer(answer, llm.engine.trace, [llm.tokenizer.decode([i]) for i in answer.outputs[0].token_ids])

# %%
from twophase_labs.kit.course_map import closing

closing("9")
