# %% [markdown]
# # Lab 4: scheduling, or which request goes next
#
# Prefill is one long computation (lab 2). Decode is a short one that must run again at once for every token (lab 3).
# An engine serves both at the same time: some requests bring a long prompt, others are in the middle of an answer.
# Before each step the **scheduler** decides which tokens of which requests are computed. It is a few hundred lines of
# plain Python without a single tensor. The first cell shows what it can do to an answer.

# %%
import torch

from twophase_features.policies.whole_prompts import PrefillFirstPolicy
from twophase_labs.scheduling.real_engine import answer_and_prompts, pace, run_on_engine

torch.set_num_threads(1)
crowd = answer_and_prompts(pace())  # one answer of 40 tokens; meanwhile five prompts of 112 tokens come
prompts_first = run_on_engine(PrefillFirstPolicy(), crowd)
gaps_ms = [1000 * gap_s for gap_s in prompts_first.records[0].itls_s]
print(" ".join(f"{gap_ms:.0f}" for gap_ms in gaps_ms))
print(f"ms between its tokens: mean {sum(gaps_ms) / len(gaps_ms):.0f}, longest {max(gaps_ms):.0f}")

# %% [markdown]
# One of these gaps is a sentence that stopped in the middle. Every token is right; only the order of the work is to
# blame. Prompts went first, as in early versions of vLLM, and as in SGLang today unless it is told otherwise. What
# would you change, and what would that cost? In section 4 you write another order, and section 11 repeats this
# measurement with it.

# %% [markdown]
# <!-- opening minutes: 4 -->
# <!-- map -->

# %% [markdown]
# **After this lab you can**
#
# - say what static batching wastes, and write the batching that replaced it;
# - find the deadlock in a well-known teaching scheduler, and repair it;
# - write a policy with a token budget and chunked prefill, and run the real engine with it;
# - read swim lanes, and compute TTFT, ITL, TPOT, percentiles and goodput from events;
# - handle memory pressure, priorities and tenants, and say how far a simulation of all this can be trusted;
# - plan a step while the device still computes the one before.
#
# You need the memory budget of lab 1 and the chunked prefill of lab 2, but no GPU.
#
# **How it works.** Commit to a prediction, write the code, run `check("4.1")`. `hint("4.1")` helps in up to three
# steps, and `reveal("4.1")` shows a solution. Where you leave an exercise out, the reference solution runs in its
# place, and the cell says so. Each section follows the course's [method](../docs/method.md).

# %% tags=["setup"]
import matplotlib.pyplot as plt
import torch

from twophase_labs import ____, check, hint, measured, reference, reveal, use

torch.set_num_threads(1)

# %% [markdown]
# ## 1. The life of a request, and a clock for it
# <!-- minutes: 6 -->
#
# A request is always in one of five states. They differ in what the request holds and in what it has left to compute:
#
# | state | holds blocks | left to compute | what may happen to it |
# |---|---|---|---|
# | waiting | no | its prompt | it is admitted; it is cancelled |
# | prefill | yes | the rest of its prompt | its last chunk gives the first token; its blocks are taken; it ends |
# | decoding | yes | its newest token | it goes on; its blocks are taken; it ends |
# | preempted | no | ? | it is admitted again; it is cancelled |
# | finished | no | nothing | nothing |
#
# "Its blocks are taken" is **preemption**: memory has run out, and one request must make room. (In the engine, prefill
# and decoding are one status, `RUNNING`; the number of tokens left to compute tells them apart.)
#
# **Think first.** A request is preempted in the middle of its answer and later gets blocks again. Is its next state
# *decoding* or *prefill*? What belongs in place of the question mark?

# %% [markdown]
# Three requests, each with 20 prompt tokens and 40 answer tokens, share a pool of six blocks of 16 tokens. Each needs
# two blocks at the start and four at the end: three would fit at the start, but not even two to the end. (The engine
# starts with two: it admits a request only if each running one could still grow, section 7.) `WatchedScheduler` is the
# engine's own scheduler, and reports every change of state.

# %%
# NBVAL_CHECK_OUTPUT
from twophase import LLM, SamplingParams
from twophase.scheduling.scheduler import Scheduler
from twophase_labs.scheduling.lives import WatchedScheduler

states = {}


def note(name, state):
    states.setdefault(name, ["waiting"]).append(state)


small_pool = LLM(
    num_kv_blocks=6,
    enable_prefix_caching=False,
    scheduler_factory=lambda config, cache: WatchedScheduler(Scheduler(config, cache), note),
)
params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
prompts = [{"prompt_token_ids": list(range(start, start + 20))} for start in (100, 200, 300)]
outputs = small_pool.generate(prompts, params, use_tqdm=False)
for name, lived in states.items():
    print(f"request {name}: {' -> '.join(lived)}")

# %% [markdown]
# **Read the result.** One request was preempted. It then computed *all its tokens again*, its prompt together with the
# part of the answer that it already had (to the model, that is just a longer prompt), and went on where it had stopped.
# The third waited until there was room.

# %% [markdown]
# ### The simulator
#
# The scheduler never touches a tensor. It is given requests and the time, and returns plans, so it cannot tell whether
# a model computes them. The **simulator** runs the same scheduler, asks a formula how long each planned step would
# take, and advances a clock by that much. Minutes of service then take milliseconds, and every run comes out the same.

# %% [markdown]
# ```mermaid
# flowchart LR
#     W["requests, by time"] --> S["Scheduler, Policy, CacheManager<br/>(the same code in both)"]
#     S -->|plan| E["engine: the model runs it,<br/>and real time passes"]
#     S -->|plan| C["simulator: a formula says how long,<br/>the clock moves by that"]
#     E -->|tokens| S
#     C -->|"made-up tokens"| S
# ```
#
# Here are the same three requests on a virtual clock. A step takes 20 ms, and 1 ms more for each prompt token.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.scheduling.virtual import StepCost, play
from twophase_tools.load.pictures import draw_swim_lanes
from twophase_tools.load.workloads import TimedRequest

three = [TimedRequest(f"request {name}", 0.0, 20, 40) for name in range(3)]
simulated = play(None, three, StepCost(step_s=0.020, prompt_token_s=0.001), num_blocks=6)
for record in simulated.records:
    print(f"{record.request_id}: preempted {record.num_preemptions} times, done at {record.finished_s:.2f} s")
print(f"{len(simulated.steps)} steps here, {len(small_pool.engine.trace)} in the engine")

# %%
from twophase_labs.scheduling import pressure_pictures

figure = draw_swim_lanes(simulated.records, simulated.steps, title="Three requests, six blocks, on a virtual clock")
pressure_pictures.hatch_preempted(figure)
plt.show()

# %% [markdown]
# **Takeaway.** A simulation is exact about *decisions*, because the scheduler is the real one: it took as many steps as
# the engine, and preempted once. About *time* it is only as good as its formula, and section 5 measures how good that
# is.

# %% [markdown]
# ## 2. Batches
# <!-- minutes: 15 + 4 -->
#
# Lab 3 measured why requests are computed together: a decode step reads all the weights, whether for one sequence or
# for sixteen. Which requests go together, and when? The oldest answer is to take all requests that are waiting, compute
# them, return the results, and take the next. That is **static** batching. A **dynamic** batcher first waits a moment
# for more.
#
# Answers are not equally long. To see what follows, take the simplest model: each running request gets one token a
# step, from its first step on; and a step takes equally long however many requests are in it (lab 3 measured how far
# that is true). At most `max_num_seqs` requests run at once; each of these places in the batch is a **batch slot**.


# %% tags=["setup"]
def static_batching(arrivals, lengths, max_num_seqs):
    """For each request the steps [first, end) in which it gets tokens, when a batch must end before the next starts."""
    spans, now = [], 0
    while len(spans) < len(lengths):
        now = max(now, arrivals[len(spans)])  # nothing is waiting: go on to the next arrival
        there = [i for i in range(len(spans), len(lengths)) if arrivals[i] <= now][:max_num_seqs]
        spans += [(now, now + lengths[i]) for i in there]
        now += max(lengths[i] for i in there)  # all wait for the longest
    return spans


def use_of_slots(spans, max_num_seqs):
    num_steps = max(end for _, end in spans) - min(first for first, _ in spans)
    return sum(end - first for first, end in spans) / (max_num_seqs * num_steps)


# %%
from twophase_labs.scheduling import batch_pictures

lengths = [3, 9, 2, 5, 4, 1, 8, 2]
static = static_batching([0] * 8, lengths, 4)
batch_pictures.draw_slots({"static: eight requests, four batch slots, numbered by arrival": static}, 4)

# %% [markdown]
# Request 2 has its two tokens long before request 1 gets its ninth, and its batch slot stays empty until then. Request
# 5 waits nine steps for a single token.

# %% [markdown]
# <!-- card 4.1 -->
# **Predict.** There are 400 answers of 1 to 200 tokens, all lengths equally likely, and all are there at the start, so
# every batch of 8 is full. A batch of n steps could give 8 n tokens: what share of all that do the requests get? Give a
# number between 0 and 1; within 0.08 counts as close.

# %% tags=["exercise:4.1"]
guess_4_1 = 0.56  # SOLUTION: the share of batch slots times steps that give a token

# %%
check("4.1")

# %%
from twophase_labs.scheduling.load import LONGEST, MAX_NUM_SEQS, drawn_lengths

many = drawn_lengths()
in_batches = static_batching([0] * len(many), many, MAX_NUM_SEQS)
print(f"mean length {sum(many) / len(many):.0f}, longest {max(many)} of {LONGEST}")
measured("4.1", use_of_slots(in_batches, MAX_NUM_SEQS))

# %% [markdown]
# **Read the result.** A batch takes as long as its longest answer. The longest of eight lengths drawn from 1 to 200 is
# on average about 8/9 of 200, while their mean is half of 200. Real lengths, most of them short and a few very long, do
# worse.
#
# The way out is to decide again before every step: a request that is done leaves, and the next takes its slot at once.
# Orca (OSDI 2022) called this *iteration-level scheduling*; today it is called **continuous batching**.
#
# **Think first.** In the picture above, in which step could request 4 start? When would everything be over?

# %% tags=["setup"]
from collections import deque

# %% [markdown]
# <!-- card 4.2 -->
# Write continuous batching, for the same simple model.


# %% tags=["exercise:4.2"]
def iteration_level(arrivals, lengths, max_num_seqs):
    """Continuous batching: for each request the steps [first, end) in which it gets tokens, as a list of pairs.

    Requests come in order of arrival: request i is there before step arrivals[i] and gets lengths[i] tokens, one in
    each step from its first on. Before each step, waiting requests take free batch slots in order of arrival, as many
    as there are; after it, those that have all their tokens leave. The arguments are not changed.

    >>> iteration_level([0, 0, 0], [3, 1, 2], max_num_seqs=2)
    [(0, 3), (0, 1), (1, 3)]
    >>> iteration_level([0, 5], [2, 1], max_num_seqs=1)          # nothing to do in steps 2 to 4
    [(0, 2), (5, 6)]
    """
    # BEGIN SOLUTION: step by step
    waiting, left = deque(range(len(lengths))), {}
    first, spans, now = {}, {}, 0
    while waiting or left:
        while waiting and arrivals[waiting[0]] <= now and len(left) < max_num_seqs:
            request = waiting.popleft()
            left[request], first[request] = lengths[request], now
        now += 1
        for request in list(left):
            left[request] -= 1
            if left[request] == 0:
                del left[request]
                spans[request] = (first[request], now)
    return [spans[request] for request in range(len(lengths))]
    # END SOLUTION


# %%
check("4.2")

# %%
iteration_level = use("4.2")
together = {"static": static, "continuous": iteration_level([0] * 8, lengths, 4)}
batch_pictures.draw_slots(together, 4)

# %% [markdown]
# Static batching wastes batch slots even in offline work, where no client waits: 4.1 was such a case.
#
# **Takeaway.** With lengths of 1 to 200 and batches of 8, static batching leaves 44 % of the slots empty; deciding
# again before every step fills them as soon as they are free.

# %% [markdown]
# > **In production, 2026.** Nothing to switch on: continuous batching is the only mode of vLLM and SGLang. TensorRT-LLM
# > calls it in-flight batching and lists
# > [`STATIC_BATCH`](https://nvidia.github.io/TensorRT-LLM/performance/performance-tuning-guide/useful-runtime-flags.html)
# > as a legacy mode, not recommended for production. By roofline, a decode step of an 8B model in bf16 on an H100 takes
# > 4.5 ms, in which it reads 15 GB of weights. With 56 % of the slots in use, those 15 GB serve 4.5 sequences on
# > average instead of 8.

# %% [markdown]
# ### Going further: dynamic batching
#
# **Your function against the real scheduler**, in the simulator, with steps of one second: 24 requests with prompts of
# one token arrive over time and share four batch slots. The policies are the engine's own.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_features.policies.request_level import DynamicPolicy, StaticPolicy
from twophase_features.policies.whole_prompts import ContinuousPolicy

arrivals = [0, 0, 15, 21, 40, 42, 43, 44, 44, 45, 53, 54, 59, 61, 62, 62, 67, 68, 69, 70, 75, 75, 87, 88]
wanted = [3, 3, 1, 2, 12, 6, 4, 4, 12, 6, 18, 18, 8, 2, 8, 2, 18, 8, 4, 4, 1, 6, 2, 4]
chats = [TimedRequest(str(i), arrivals[i], 1, wanted[i]) for i in range(24)]


def spans_under(policy):
    records = play(policy, chats, StepCost(step_s=1.0), max_num_seqs=4).records
    return [(int(record.first_scheduled_s), int(record.finished_s)) for record in records]


yours = [(int(first), int(end)) for first, end in iteration_level(arrivals, wanted, 4)]
print("static:    ", spans_under(StaticPolicy(4)) == static_batching(arrivals, wanted, 4))
print("continuous:", spans_under(ContinuousPolicy()) == yours)

# %%
# NBVAL_CHECK_OUTPUT
policies = {
    "static": StaticPolicy(4),
    "dynamic, 4 s": DynamicPolicy(4, 4),
    "dynamic, 8 s": DynamicPolicy(4, 8),
    "continuous": ContinuousPolicy(),
}
print("                 steps   use of slots    mean wait   longest wait")
for name, policy in policies.items():
    spans = spans_under(policy)
    waits = [first - arrival for (first, _), arrival in zip(spans, arrivals, strict=True)]
    num_busy = len({now for first, end in spans for now in range(first, end)})
    print(f"{name:16} {num_busy:>5} {sum(wanted) / (4 * num_busy):>15.0%} {sum(waits) / 24:>9.1f} s {max(waits):>12} s")

# %% [markdown]
# **Read the result.** (The use of slots counts only steps in which the machine ran.) Waiting for more requests buys
# fuller batches, until the waiting itself costs more than it saves. Neither time-out helps against the long answer that
# holds up a whole batch.

# %% [markdown]
# ## 3. A scheduler that stops
# <!-- minutes: 15 -->
#
# From here on prompts have a length again. A step has a **token budget**: a bound on the tokens, of prompts and decodes
# together, that are computed in it. That bounds its time and its memory. The scheduler below is found, in this form or
# one close to it, in many introductions. It is called before every step, moves jobs from the queue to `running`, and
# returns how many tokens each computes.


# %%
def plan_whole_prompts(running, waiting, budget):
    batch = []
    for job in running:  # their prompts are done: a decode each
        batch.append((job, 1))
        budget -= 1
    while waiting and waiting[0].num_prompt_tokens <= budget:
        job = waiting.popleft()
        running.append(job)
        batch.append((job, job.num_prompt_tokens))
        budget -= job.num_prompt_tokens
    return batch


# %% [markdown]
# It keeps the budget, serves in order of arrival, and lets requests join and leave at every step. Here are its first
# twelve steps for prompts of 100, 20 and 10 tokens, with a budget of 50.

# %% tags=["setup"]
from twophase_labs.scheduling.teaching import Job, famous_jobs, run_steps

# %%
# NBVAL_CHECK_OUTPUT
for number, step in enumerate(run_steps(plan_whole_prompts, famous_jobs(), budget=50, max_steps=12)):
    print(f"step {number:>2}: {step}")

# %% [markdown]
# **Think first.** The scheduler has planned nothing, twelve times in a row. Run step 0 by hand: which line decides, and
# does anything that it looks at change before step 1?
#
# <details><summary>Answer</summary>
#
# The `while`: the head of the queue is admitted only when its whole prompt fits a step. A prompt of 100 never fits a
# budget of 50, and nothing passes the head. No state changes between steps, so no later step plans anything either.
# </details>
#
# The bug is dangerous because it is silent. There is no error and no crash; health checks pass while the queue grows.
# One long prompt is enough, and a test whose prompts are all shorter than the budget never shows it.
#
# Three repairs come to mind: skip the head and serve those behind it; refuse such a prompt on arrival; compute it in
# pieces. What happens to the request with 100 tokens under each of them?
#
# <details><summary>Answer</summary>
#
# Skipping serves the others and may never serve this one: the deadlock has become starvation. Refusing is safe, and
# some engines do it, but the machine *could* serve this request. In pieces all are served, and lab 2 has shown that a
# prompt in chunks gives the same K and V.
# </details>

# %% [markdown]
# <!-- card 4.3 -->
# Write the repair: prompts in chunks.


# %% tags=["exercise:4.3"]
def plan_in_chunks(running, waiting, budget):
    """Plan one step: a list of pairs (job, tokens), at most `budget` tokens in all, each job at most once.

    `job.num_to_compute` is what a job could compute in this step: the rest of its prompt, or 1 when it is decoding.
    Each job gets that many, or the rest of the budget if that is smaller: first those in the list `running`, in order,
    then those in the deque `waiting`, from its head, as long as there is budget. A job that begins moves from `waiting`
    to the end of `running`, and stays there until run_steps removes it. No job is planned for 0 tokens.

    >>> run_steps(plan_in_chunks, [Job("A", 100, 2), Job("B", 20, 1)], budget=50)
    [[('A', 50)], [('A', 50)], [('A', 1), ('B', 20)]]
    >>> run_steps(plan_in_chunks, [Job("A", 3, 2), Job("B", 3, 1)], budget=4)
    [[('A', 3), ('B', 1)], [('A', 1), ('B', 2)]]
    """
    # BEGIN SOLUTION: those that run, then those that wait
    batch = []
    for job in running:
        num_tokens = min(job.num_to_compute, budget)
        if num_tokens:
            batch.append((job, num_tokens))
            budget -= num_tokens
    while waiting and budget > 0:
        running.append(waiting.popleft())
        num_tokens = min(running[-1].num_to_compute, budget)
        batch.append((running[-1], num_tokens))
        budget -= num_tokens
    return batch
    # END SOLUTION


# %%
check("4.3")

# %%
plan_in_chunks = use("4.3")
logs = {
    "whole prompts only": run_steps(plan_whole_prompts, famous_jobs(), 50, max_steps=6),
    "in chunks": run_steps(plan_in_chunks, famous_jobs(), 50),
}
batch_pictures.draw_steps(logs, 50)

# %% [markdown]
# **And the engine?** A scheduler can stop like this for two reasons, and the engine guards against each. A request that
# could never be served is refused on arrival, with the numbers in the message. And a policy that plans nothing while
# requests are unfinished is stopped with an error, unless it names a time that it waits for, as `DynamicPolicy` does.
# `WholePrompts` is the rule from above in the real scheduler:


# %%
# NBVAL_CHECK_OUTPUT
from twophase.core.errors import PolicyError
from twophase_labs.scheduling.gated import WholePrompts

try:
    play(WholePrompts(), [TimedRequest("A", 0, 100, 3)], StepCost(1.0), max_num_seqs=8, token_budget=50)
except PolicyError as error:
    print(f"PolicyError: {error}")

# %% [markdown]
# > **In production, 2026.** vLLM computes prompts in chunks by default; without them it does not start if
# > [`max_num_batched_tokens` is below
# > `max_model_len`](https://github.com/vllm-project/vllm/blob/1f8758d584e8f599219d75adf658e182ed809a43/vllm/config/scheduler.py),
# > so that no prompt can be too long for a step. TensorRT-LLM's
# > [`enable_chunked_prefill`](https://nvidia.github.io/TensorRT-LLM/llm-api/reference/TorchLlmArgs.html) is off by
# > default, though [its guide](https://nvidia.github.io/TensorRT-LLM/features/paged-attention-ifb-scheduler.html)
# > recommends always switching it on. By roofline, a chunk of 512 tokens of an 8B model in bf16 is 8.3 ms of arithmetic
# > on an H100, and its weights are read in 4.5 ms: chunks of that size lose no time to the reading.

# %% [markdown]
# **Takeaway.** With a budget of 50, one prompt of 100 tokens stops the queue for good when prompts are computed whole;
# in chunks the same three requests end after 5 steps, and no step computes more than 50 tokens.

# %% [markdown]
# ## 4. Your policy in the engine
# <!-- minutes: 22 -->
#
# The engine separates two things. **What must never go wrong** (blocks, slots, budgets, legal states, preemption) is
# up to the scheduler, which keeps it right whatever is planned. **What is a choice**, which sequence goes first and how
# much of it, is up to a *policy*: a class with two methods.
#
# - `rank(sequence)` returns the sort key, a tuple of numbers: the smallest is served first, the largest preempted
#   first.
# - `plan(step)` is called before each step. It looks at `step.running` and `step.waiting`, both sorted by that key, and
#   makes moves:
#
# | move | what it does | returns |
# |---|---|---|
# | `step.decode(sequence)` | plan the next token of a decoding sequence | whether it was planned |
# | `step.prefill(sequence, max_tokens=None)` | plan the next chunk of a begun prefill | its tokens; 0: not planned |
# | `step.admit(sequence, max_tokens=None)` | admit a waiting one, with its first chunk | its tokens; 0: no room |
# | `step.limit(max_tokens)` | bound the step, with what is planned already, to so many tokens | nothing |
#
# A move that does not fit plans less, or nothing: with `max_tokens` of 0 or less, `prefill` and `admit` do nothing and
# return 0. (Without it, the step's own limits hold.) A move that makes no sense, such as planning a sequence again in
# the same step, raises `PolicyError`.

# %% [markdown]
# ### Selective batching
#
# Why may a policy mix chunks and decodes as it likes? A step is one forward pass over a flat batch: the tokens of all
# sequences are laid end to end, as in lab 2. Embedding, norms, matrix products and MLP treat each token by itself, so
# they take all rows at once; attention is told which keys each row reads. Orca, which introduced this **selective
# batching**, still computed attention one sequence after the other, and "attention cannot be batched" is repeated to
# this day. It is no longer true: the kernels of labs 2 and 3 take sequences of all lengths in one call, with a block
# table and a length for each.
#
# What is the flat batch worth? Here is one MLP of SmolLM2, on a step with two chunks and 14 decodes: all rows at once,
# sequence by sequence, and padded to the longest:

# %%
from twophase_labs.kit.models import smollm2
from twophase_labs.kit.timing import seconds

mlp, step_lengths = smollm2()[0].model.layers[0].mlp, [112, 40, *[1] * 14]
flat = torch.randn(sum(step_lengths), mlp.gate_proj.in_features)
parts = flat.split(step_lengths)
padded = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
ways = {
    "flat": (len(flat), lambda: mlp(flat)),
    "one by one": (len(flat), lambda: [mlp(part) for part in parts]),
    "padded": (padded.shape[0] * padded.shape[1], lambda: mlp(padded)),
}
with torch.inference_mode():
    for name, (num_rows, way) in ways.items():
        print(f"{name:10} {num_rows:5,} rows, {1000 * seconds(way, repeats=3):6.1f} ms")

# %% [markdown]
# **Read the result.** One by one, each of the 14 decodes reads all the weights of the MLP for a single row. Padded,
# more than nine rows in ten are computed for nothing. The flat batch does neither. So a step may hold any mix, and
# takes longer the more tokens it has.
#
# **Think first.** Every sequence that decodes should get a token in every step, so the gap between two tokens is the
# time of *one step*. How do you bound that gap? What do you give up?

# %% [markdown]
# Decodes go first, since they are few and urgent; then the prefill that has begun, as much of it as fits; what is left
# goes to the queue. The price: a long prompt takes many steps, so its own first token comes later. Sarathi-Serve named
# this *stall-free batching* (arXiv:2403.02310).

# %% tags=["setup"]
from twophase.scheduling.policy import Policy
from twophase_labs.scheduling.virtual import steps_of

# %% [markdown]
# <!-- card 4.4 -->
# Write the policy.


# %% tags=["exercise:4.4"]
class DecodesFirst(Policy):
    """`DecodesFirst(max_tokens)`: decodes first, and a step of at most `max_tokens` tokens.

    rank(sequence): in order of arrival. `sequence.arrival_order` counts requests; one request may have several
        completions, told apart by `sequence.index`, so the two are unique together.
    plan(step): every sequence in step.running with `is_decoding` gets its token, even if these alone are more than
        max_tokens. The room they leave goes to the other running sequences, whose prefill is begun, in order; what is
        then left goes to step.waiting, in order, each as large a chunk as there is room for, until `step.admit`
        returns 0. Nothing overtakes the head of the queue.

    >>> steps_of(DecodesFirst(8), A=(10, 3), B=(4, 1))    # A: a prompt of 10 tokens, 3 to write. Tokens of each step:
    [{'A': 8}, {'A': 2, 'B': 4}, {'A': 1}, {'A': 1}]
    >>> steps_of(DecodesFirst(2), A=(1, 4), B=(3, 1))
    [{'A': 1, 'B': 1}, {'A': 1, 'B': 1}, {'A': 1, 'B': 1}, {'A': 1}]
    """

    # BEGIN SOLUTION: __init__(max_tokens), rank(sequence), plan(step)
    def __init__(self, max_tokens):
        self.max_tokens = max_tokens

    def rank(self, sequence):
        return (sequence.arrival_order, sequence.index)

    def plan(self, step):
        room, prefills = self.max_tokens, []
        for sequence in step.running:
            if sequence.is_decoding:
                room -= step.decode(sequence)
            else:
                prefills.append(sequence)
        for sequence in prefills:
            room -= step.prefill(sequence, room)
        for sequence in step.waiting:
            num_tokens = step.admit(sequence, room)
            if not num_tokens:
                break
            room -= num_tokens

    # END SOLUTION


# %%
check("4.4")

# %% [markdown]
# **In the engine.** Six prompts of different lengths arrive at once, under your policy and under the engine's default.
# A scheduler decides when a token is computed, never which token it is: the texts must be equal.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.scheduling.real_engine import smollm2_engine
from twophase_tools.load.steps import num_tokens

DecodesFirst = use("4.4")
openings = ["The sea was", "Once upon a time", "A list of rivers:", "In 1969", "Two plus two", "My neighbour's cat"]
openings = [text + " and so on" * (12 * i) for i, text in enumerate(openings)]
greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
llm = smollm2_engine()
by_default = llm.generate(openings, greedy, use_tqdm=False)
num_before = len(llm.engine.trace)
llm.scheduler.policy = DecodesFirst(24)
by_mine = llm.generate(openings, greedy, use_tqdm=False)
same = [a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in zip(by_default, by_mine, strict=True)]
steps = llm.engine.trace[num_before:]
print(f"texts equal: {same}")
print(f"{len(steps)} steps; the largest has {max(map(num_tokens, steps))} tokens")

# %%
from dataclasses import replace

from twophase_tools.load.pictures import draw_batch_composition

draw_batch_composition([replace(step, step=number) for number, step in enumerate(steps)], token_budget=24)
plt.show()

# %% [markdown]
# **Read the result.** As long as there are prompts, steps are filled up to the line. The default policy would have
# computed all six prompts in one long first step. `LLM(policy=DecodesFirst(24))` starts an engine with your policy.

# %% [markdown]
# ### Open the engine
#
# This is your policy in the engine, without the lines that admit requests from the queue:

# %%
from twophase.scheduling.policy import decodes_and_begun
from twophase_labs.kit.open_engine import show_source

show_source(decodes_and_begun)

# %% [markdown]
# **Question.** The engine's policy calls `step.limit(max_tokens)` *after* the decodes, and has no use for a count of
# its own. What would change if the limit came first?
#
# <details><summary>Answer</summary>
#
# The scheduler would then stop at `max_tokens` among the decodes as well, and if there are many, the last in order
# would stall. Set after them, the limit bounds only what prefills and admissions add.
# </details>
#
# vLLM has a single loop over `running` where this engine has two, one for decodes and one for prefills
# ([`Scheduler.schedule`](https://github.com/vllm-project/vllm/blob/b4622cf924bc72504aed99e486062d6633fde39e/vllm/v1/core/sched/scheduler.py)).
# It is your 4.3: first the running requests, in order, then the waiting ones, each with the tokens that it has not
# computed yet, or what is left of the budget. So a prefill that stands *before* a decode in `running` takes its share
# first, unlike in your 4.4.

# %% [markdown]
# > **In production, 2026.** vLLM's `policy` is [`fcfs` or
# > `priority`](https://github.com/vllm-project/vllm/blob/1f8758d584e8f599219d75adf658e182ed809a43/vllm/config/scheduler.py);
# > `scheduler_cls` takes a class of your own, with a warning that its interface is not public. By roofline, a decode
# > step of an 8B model in bf16 on an H100 takes 4.5 ms: planning for 1 ms in between would make it 22 % longer, so
# > these engines plan the next step while the GPU computes (section 9).

# %% [markdown]
# **Takeaway.** A policy is about 15 lines: with a bound of 24 tokens, no step of the run above had more, and all six
# texts stayed the same, token for token.

# %% [markdown]
# ## 5. Swim lanes
# <!-- minutes: 11 + 8 -->
#
# What does an order do to each request? A diagram of **swim lanes** has a row per request, which shows when it waited,
# when its prompt was computed, and when it was decoding. We begin in the simulator, with round times: a step takes 10
# ms, and 1 ms more for each prompt token. A has a prompt of 300 tokens and arrives at 0; B has 20 and arrives at 50 ms.
#
# **Think first.** A's prefill is one step, and B's is the next. When does B get its first token, and what is its time
# to first token, counted from its arrival?

# %%
# NBVAL_CHECK_OUTPUT
from twophase_features.policies.request_level import StaticPolicy
from twophase_features.policies.round_robin import RotatingPolicy
from twophase_tools.load.pictures import draw_lane_panels

costs = StepCost(step_s=0.010, prompt_token_s=0.001)
two = [TimedRequest("A", 0.0, 300, 6), TimedRequest("B", 0.050, 20, 4)]
lanes = {
    "A's request to its end": play(StaticPolicy(1), two, costs),
    "prompts first": play(PrefillFirstPolicy(), two, costs),
    "decodes first, chunks of 50, by arrival": play(DecodesFirst(50), two, costs),
    "decodes first, chunks of 25, round-robin": play(RotatingPolicy(25, 50), two, costs),
}
for name, run in lanes.items():
    a, b = run.records
    times_ms = [1000 * x for x in (a.ttft_s, b.ttft_s, max(a.itls_s))]
    print(f"{name:40} first token of A {times_ms[0]:3.0f} ms, of B {times_ms[1]:3.0f} ms; longest gap of A", end=" ")
    print(f"{times_ms[2]:.0f} ms")

# %%
draw_lane_panels({name: (run.records, run.steps) for name, run in lanes.items()}, milliseconds=True)
plt.show()

# %% [markdown]
# **Read the result.** In the second panel A's prefill ends at 310 ms and B's at 340; B arrived at 50, so it waited 290
# ms. Chunks in order of arrival made it worse, 340 ms: the rest of A's prompt still comes before B's, and each further
# step costs 10 ms. **Chunks do not shorten a queue.** Short requests that wait behind a long prompt are called a
# *convoy* (head-of-line blocking). What chunks bound is the time between two decisions, and so the gap of every
# sequence that is already decoding.
#
# (A swim lane that is often reprinted has the same requests without the 10 ms of a step, and gives B a time to first
# token of 300 ms. That is the moment at which A's prefill ends. Counted from B's arrival:)

# %%
# NBVAL_CHECK_OUTPUT
_, reprinted = play(PrefillFirstPolicy(), two, StepCost(prompt_token_s=0.001)).records
print(f"first token of B after {1000 * reprinted.ttft_s:.0f} ms")

# %% [markdown]
# In the last panel (round-robin) the policy uses each new decision, one after every chunk: a prompt gets a chunk of 25
# tokens (the 25 of `RotatingPolicy(25, 50)`; 50 is for the step) and goes behind the others. B is soon done; A pays for
# it.

# %% [markdown]
# ### In the engine
#
# Here is the first cell's crowd again: while an answer is being decoded, five prompts of 112 tokens arrive, faster than
# this machine can compute them at its present pace. *Run to completion* serves one request after the other. *Prompts
# first* is the policy of the first cell, run again. *Chunked* is your policy, with at most 32 tokens a step.

# %% [markdown]
# <!-- card 4.5 -->
# **Predict.** Divide the longest gap of the answer under *prompts first* by its usual gap under *chunked* while prompts
# are computed: what factor do you expect? You need token counts and this machine's pace. Within a factor of 2 counts as
# close.

# %%
from twophase_labs.scheduling.real_engine import CHUNK

here = pace(again=True)  # cell 1 may be long ago, and machines drift
crowd = answer_and_prompts(here)
print(f"a prompt token takes {1000 * here.prompt_token_s:.1f} ms, a decode alone {1000 * here.decode_s:.0f} ms")

# %% tags=["exercise:4.5"]
guess_4_5 = 10  # SOLUTION: times as long; a number will do

# %%
check("4.5")

# %%
runs_now = [run_on_engine(policy, crowd) for policy in (StaticPolicy(1), PrefillFirstPolicy(), DecodesFirst(CHUNK))]
names = ("run to completion", "prompts first", f"chunked, {CHUNK} tokens a step")
real = dict(zip(names, runs_now, strict=True))
chunked = runs_now[-1]
draw_lane_panels({name: (run.records, run.steps) for name, run in real.items()})
plt.show()

# %%
import statistics
from itertools import pairwise


def usual_gap_s(run):
    """The answer's median gap while prompts are being computed."""
    answer, *others = run.records
    last_read_s = max(other.token_times_s[0] for other in others)
    times_s = [t for t in answer.token_times_s if others[0].arrival_s <= t <= last_read_s]
    return statistics.median(later - earlier for earlier, later in pairwise(times_s))


for name, run in real.items():
    answer, *others = run.records
    print(
        f"{name:27} longest gap of the answer {1000 * max(answer.itls_s):5.0f} ms, done {answer.latency_s:.2f} s;",
        end=" ",
    )
    print("first tokens of the others", ", ".join(f"{r.ttft_s:.1f}" for r in others), "s")
measured("4.5", max(real["prompts first"].records[0].itls_s) / usual_gap_s(chunked))

# %% [markdown]
# **Read the result.** All three panels have one time axis.
#
# 1. Run to completion: the answer never stops, and the others wait until it is done, though there are slots and blocks
#    for all of them. This is static batching with batches of one.
# 2. Prompts first: the hatched stretch is *starvation*. The request holds its blocks and its slot, and gets no tokens
#    as long as there is a prompt in the queue. Five prompts made this pause; a steady stream of them would make it
#    endless.
# 3. Chunked: each gap of the answer is one step, and a step has a bound. The other requests pay for it: there are more
#    steps, each with a fixed cost and with decodes in it. Compare the latest of the first tokens in panels 2 and 3.
#
# ### How far to trust a simulation
#
# The simulator makes the same decisions as the engine. How good are its times? Here is the chunked run again, simulated
# with nothing but the two numbers that were measured before it, a prompt token and a decode (of which nine tenths go to
# the step and one to the token):

# %%
pace_here = StepCost(0.9 * here.decode_s, here.prompt_token_s, 0.1 * here.decode_s)
forecast = play(DecodesFirst(CHUNK), crowd, pace_here)
figures = {
    "longest gap of the answer": lambda run: max(run.records[0].itls_s),
    "last first token": lambda run: max(r.ttft_s for r in run.records[1:]),
    "answer done": lambda run: run.records[0].latency_s,
}
for name, figure_of in figures.items():
    said, was = figure_of(forecast), figure_of(chunked)
    print(f"{name:27} predicted {said:5.2f} s, measured {was:5.2f} s, error {said / was - 1:+.0%}")

# %% [markdown]
# **Read the result.** Two numbers predict a run of five prompts about as well as the last column says. A first token
# depends on how long a queue has grown, so the small errors of many steps add up in it. Print beside each prediction
# its error, measured on a run that the formula has not seen.

# %% [markdown]
# > **In production, 2026.** vLLM [chunks by
# > default](https://docs.vllm.ai/en/stable/api/vllm/config/scheduler/); its loop goes by the order of `running`
# > (section 4). `max_num_batched_tokens` bounds the step. Against convoys, `long_prefill_token_threshold` bounds the
# > chunk of one long prompt in a step; it is 0, off, by default. SGLang separates the phases unless
# > [`--enable-mixed-chunk`](https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md)
# > is set: a step is either prefill or decodes, and [prefill goes
# > first](https://github.com/sgl-project/sglang/blob/d51c1c21d1ac07cd5d1de9ead6c99087d8428e79/python/sglang/srt/managers/scheduler.py);
# > `--prefill-decode-interval` (0, off) puts so many decode steps between two prefills.
# > By roofline, a chunk of 8,192 tokens of an 8B model in bf16 is 131 TFLOP, 0.13 s at an H100's 989 TFLOP/s: that is
# > the gap that such a step makes; one of 512 tokens takes 8.3 ms.
#
# **Takeaway.** Chunks do not shorten a queue: in round numbers, B's first token comes after 290 ms with prompts first,
# 340 with chunks by arrival, and 75 when the chunks are served round-robin. What chunks bound is the gap of the
# answers.

# %% [markdown]
# ### Going further: convoys
#
# A prompt of 12,000 tokens is being computed, with at most 256 tokens a step, decodes first. A step takes 20 ms, 0.2 ms
# more per token, and 20 ns per query-key pair. Behind the prompt, a short question arrives every half second. By
# arrival, the questions wait behind it: a **convoy**, or *head-of-line blocking*. "Chunked prefill cures the convoy",
# one reads.
#
# **Think first.** What helps the questions: smaller chunks, larger ones, more batch slots, or another order?

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.scheduling import convoy, fairness_pictures

by_order = {
    "by arrival, 256 a step": convoy.run(DecodesFirst(256)),
    "by arrival, 64 a step": convoy.run(DecodesFirst(64)),
    "round-robin, 256 each": convoy.run(RotatingPolicy(256, 256)),
    "round-robin, 64 each": convoy.run(RotatingPolicy(64, 256)),
}
for name, (document, *questions) in by_order.items():
    mean_s, worst_s = statistics.mean(q.ttft_s for q in questions), max(q.ttft_s for q in questions)
    print(f"{name:24} first token of the document {document.ttft_s:4.1f} s;", end=" ")
    print(f"of a question {mean_s:4.2f} s, at worst {worst_s:4.2f} s")

# %%
fairness_pictures.draw_convoy(by_order)
plt.show()

# %% [markdown]
# **Read the result.** By arrival, every question that comes while the document is being computed gets its first token
# only when the document is done. Smaller chunks make that later still. Round-robin, the convoy is gone. (The means are
# over all 20 questions, those that come later included.) So the claim is true of chunks that are served round-robin,
# and false of chunks alone. What does round-robin cost? Four prompts of the same length:

# %%
# NBVAL_CHECK_OUTPUT
alike = [TimedRequest(str(number), 0.0, 1200, 8) for number in range(4)]
for name, policy in {"by arrival": DecodesFirst(256), "round-robin": RotatingPolicy(64, 256)}.items():
    ttfts = [record.ttft_s for record in play(policy, alike, StepCost(0.020, 0.0002)).records]
    told = ", ".join(f"{ttft_s:.2f}" for ttft_s in ttfts)
    print(f"{name:11} first tokens after {told} s, mean {statistics.mean(ttfts):.2f} s")

# %% [markdown]
# Equal prompts that are served round-robin all end together, as late as the last of them would in order of arrival.
# Round-robin helps short prompts among long ones, and nothing else.

# %% [markdown]
# ### Going further: how large a chunk
#
# Small chunks make short steps; but every step reads the weights once, and a prompt in many chunks pays for that many
# times. Here is the same crowd in the simulator, at this machine's pace:

# %%
print("at most    steps   answer's longest gap   last first token   everything done")
for max_tokens in (8, 16, CHUNK, 64, 128):
    run = play(DecodesFirst(max_tokens), crowd, pace_here)
    answer, *others = run.records
    ttft_s, done_s = max(r.ttft_s for r in others), max(r.finished_s for r in run.records)
    print(
        f"{max_tokens:>7} {len(run.steps):>8} {1000 * max(answer.itls_s):>19.0f} ms {ttft_s:>16.2f} s {done_s:>15.2f} s"
    )

# %% [markdown]
# A larger chunk saves steps only down to 40, which the answer's tokens need anyway. The best chunk is the largest whose
# step is short enough for the answers being written. It depends on the machine. A worked example that many texts give:
# a prefill of 500 ms, whole or in ten chunks of 50 ms, and beside it an answer whose decodes take 10 ms:

# %%
# NBVAL_CHECK_OUTPUT
round_numbers = StepCost(prompt_token_s=0.0005, decode_s=0.010)
beside = [TimedRequest("answer", 0.0, 1, 40), TimedRequest("prompt", 0.1, 1000, 1)]
for name, policy in {"whole": PrefillFirstPolicy(), "in ten chunks": DecodesFirst(101)}.items():
    answer, prompt = play(policy, beside, round_numbers).records
    prefill_ms = 1000 * (prompt.token_times_s[0] - prompt.first_scheduled_s)
    print(f"{name:13} prefill {prefill_ms:3.0f} ms, longest gap of the answer {1000 * max(answer.itls_s):3.0f} ms")

# %% [markdown]
# The prompt pays a fifth more, and the answer gets a token every 60 ms.

# %% [markdown]
# ## 6. Latency in numbers
# <!-- minutes: 17 -->
#
# Production dashboards show aggregates rather than timelines. An engine reports events, and the aggregates are computed
# from these:
#
# - **TTFT**, time to first token: from the arrival to the first token. It includes the queue and the prefill.
# - **ITL**, inter-token latency: the gap between two tokens. A value per gap.
# - **TPOT**, time per output token: the mean of a request's gaps. A value per request.
# - **Throughput**: tokens, or requests, per second, of all requests together.
# - **Goodput**: requests per second *that met their SLO*, the service-level objective: say, a first token within 1 s
#   and a TPOT of at most 100 ms (DistServe, arXiv:2401.09670).

# %% [markdown]
# <!-- card 4.6 -->
# Write the first three: TTFT, ITL and TPOT.


# %% tags=["exercise:4.6"]
def latencies(events):
    """TTFT, ITL and TPOT in seconds, of every request that arrived.

    `events` is a list of (time in seconds, request, what), in order of time; `what` is 'arrival', 'start' (of its first
    step), 'token' or 'end'. The result has for each request a dict: 'ttft_s', or None without a token; 'itls_s', the
    list of its gaps; 'tpot_s', their mean, or None if there are none. `events` is not changed.

    >>> latencies([(0.0, "A", "arrival"), (2.0, "A", "token"), (3.0, "A", "token"), (5.0, "A", "token")])
    {'A': {'ttft_s': 2.0, 'itls_s': [1.0, 2.0], 'tpot_s': 1.5}}
    >>> latencies([(0.0, "A", "arrival"), (1.0, "B", "arrival"), (1.5, "A", "start"), (2.0, "A", "token")])
    {'A': {'ttft_s': 2.0, 'itls_s': [], 'tpot_s': None}, 'B': {'ttft_s': None, 'itls_s': [], 'tpot_s': None}}
    """
    # BEGIN SOLUTION: collect, then subtract
    arrived, tokens_of = {}, {}
    for time_s, name, what in events:
        if what == "arrival":
            arrived[name], tokens_of[name] = time_s, []
        elif what == "token":
            tokens_of[name].append(time_s)
    result = {}
    for name, tokens in tokens_of.items():
        gaps = [tokens[i] - tokens[i - 1] for i in range(1, len(tokens))]
        ttft_s = tokens[0] - arrived[name] if tokens else None
        result[name] = {"ttft_s": ttft_s, "itls_s": gaps, "tpot_s": sum(gaps) / len(gaps) if gaps else None}
    return result
    # END SOLUTION


# %%
check("4.6")

# %% [markdown]
# The engine keeps these numbers in a `RequestRecord`. Here are yours, from the events of the chunked run, beside them:


# %%
# NBVAL_CHECK_OUTPUT
def events_of(records):
    events = []
    for r in records:
        events += [(r.arrival_s, r.request_id, "arrival"), (r.first_scheduled_s, r.request_id, "start")]
        events += [(t, r.request_id, "token") for t in r.token_times_s] + [(r.finished_s, r.request_id, "end")]
    return sorted(events, key=lambda event: event[0])


latencies = use("4.6")
mine = latencies(events_of(chunked.records))
print("TTFT equal:", all(mine[r.request_id]["ttft_s"] == r.ttft_s for r in chunked.records))
print("gaps equal:", all(tuple(mine[r.request_id]["itls_s"]) == r.itls_s for r in chunked.records))
print("TPOT equal:", all(abs(mine[r.request_id]["tpot_s"] - r.tpot_s) < 1e-9 for r in chunked.records))

# %% [markdown]
# **Where does the time go?** TTFT is the time in the queue plus the prefill. A decode's gap is one step; the trace has
# a time for each of its parts:

# %%
parts = {"planning": "schedule_s", "forward pass": "run_s", "bookkeeping": "update_s"}
mean_ms = {what: 1000 * statistics.mean(getattr(step, part) for step in chunked.steps) for what, part in parts.items()}
print("a step of the chunked run, mean: " + ", ".join(f"{what} {ms:.2f} ms" for what, ms in mean_ms.items()))

# %% [markdown]
# **Percentiles.** A thousand requests have a thousand TTFTs. The 50th percentile, p50 or the median, is what half of
# them stay below; p99 is what the slowest hundredth get *at least* (between two values NumPy interpolates linearly).

# %%
import numpy as np

for name, run in list(real.items())[1:]:
    gaps_ms = [1000 * gap_s for gap_s in latencies(events_of(run.records))["answer"]["itls_s"]]
    p50, p95, p99 = np.percentile(gaps_ms, (50, 95, 99))
    print(
        f"{name:27} the answer's gaps: mean {np.mean(gaps_ms):4.0f}  p50 {p50:4.0f}  p95 {p95:4.0f}  p99 {p99:5.0f} ms"
    )

# %% [markdown]
# The mean is almost the same in both rows: nearly the same work is done meanwhile, whether in one long gap or in many
# slightly longer ones. The median does not show the long gap either, a single one. p99 does, although with so few
# values it is only a point between the two largest.

# %% [markdown]
# ### Goodput against load
#
# Now many requests, in the simulator. The cost is per *step*, as lab 3 measured it: 20 ms for the weights, 1 ms more
# for each prompt token, and 0.5 ms for each decode. 600 short chats arrive at random. Their mean rate is a share of the
# capacity, the rate at which the same engine serves them if all come at once. (These 600 random arrivals happen to come
# 5 % faster than their nominal rate, which is why the points lie a little to the right of it.) The SLO is a first token
# within 0.6 s and a TPOT of at most 60 ms.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.scheduling import load_pictures
from twophase_labs.scheduling.load import short_chats

SLO = {"ttft_s": 0.6, "tpot_s": 0.060}
costs = StepCost(step_s=0.020, prompt_token_s=0.001, decode_s=0.0005)


def serve(rate_per_s):
    return play(DecodesFirst(128), short_chats(600, rate_per_s), costs, max_num_seqs=16).records


def per_second(records):
    """Requests per second: all, and those that met the SLO."""
    good = [r for r in records if r.ttft_s <= SLO["ttft_s"] and r.tpot_s <= SLO["tpot_s"]]
    end_s = max(r.finished_s for r in records)
    return len(records) / end_s, len(good) / end_s


capacity, _ = per_second(serve(1e6))
by_load = {share: serve(share * capacity) for share in (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1)}
print("load   throughput    TTFT: mean      p50      p95      p99   goodput   slots in use")
for share, records in by_load.items():
    ttfts, (all_per_s, good_per_s) = [r.ttft_s for r in records], per_second(records)
    p50, p95, p99 = np.percentile(ttfts, (50, 95, 99))
    print(f"{share:4.0%} {all_per_s:8.2f} /s {np.mean(ttfts):12.2f} s {p50:6.2f} s {p95:6.2f} s {p99:6.2f} s", end=" ")
    in_slots_s = sum(r.finished_s - r.first_scheduled_s for r in records)
    print(f"{good_per_s:6.2f} /s {in_slots_s / (16 * max(r.finished_s for r in records)):15.0%}")

# %%
came = [len(records) / max(r.arrival_s for r in records) for records in by_load.values()]
load_pictures.draw_goodput(
    came, *zip(*map(per_second, by_load.values()), strict=True), labels=[f"{share:.0%}" for share in by_load]
)
plt.show()

# %% [markdown]
# **Read the result.** Throughput rises from row to row. The p99 of TTFT goes up first, because the slowest hundredth
# are the requests that came behind a crowd. Well before full load the goodput *falls* while the throughput still rises:
# the machine spends its time on answers that come too late.
#
# "Keep more than 80 % of the batch slots in use" is common advice. The last column is that share (the time that
# requests spend in slots, over the time of all 16). The goodput is largest with 69 % in use; with 95 % in use, less
# than a third of it is left. Utilisation measures load, not whether deadlines are met.

# %% [markdown]
# > **In production, 2026.** [`vllm bench
# > serve`](https://github.com/vllm-project/vllm/blob/def9ce85ba1079af970a58ed3d42dd861ae35d58/vllm/benchmarks/serve.py)
# > sends requests at a `--request-rate`, prints p99 of TTFT, TPOT and ITL, and with `--goodput ttft:600 tpot:60` the
# > goodput;
# > [SGLang's](https://github.com/sgl-project/sglang/blob/0229689b6730cccb5b7f0d4eeef06d7de423b6e1/docs/developer_guide/bench_serving.md)
# > `bench_serving` prints the same three latencies. Ask what a TTFT counts from: the one that vLLM returns [per
# > request](https://docs.vllm.ai/en/stable/features/per_request_metrics/) starts when the request is *scheduled*, and
# > the time in the queue is a field of its own. By roofline, an H100 computes about 3,700 tokens of an 8B model in bf16
# > in 60 ms, which is how many a step may have under the SLO of this section.

# %% [markdown]
# **Takeaway.** The goodput of this engine is largest at 80 % of its capacity, 9.1 requests per second; at 100 % it
# completes 10.9 per second, of which 2.7 meet the SLO.

# %% [markdown]
# ## 7. When the blocks run out
# <!-- minutes: 28 + 10 -->
#
# No scheduler knows how long an answer will be. An engine that reserves blocks for the longest possible one leaves many
# of them empty (lab 1 counted how many). One that admits a request by what it needs *now* must expect that sometimes
# all requests grow at once. Then a decode needs a block, and none is free: some request is preempted.
#
# There are two ways to bring it back. **Recompute**: drop K and V, keep the tokens, and compute them again like a
# prompt. **Offload** (vLLM once called it swapping): full blocks go to host memory when another request needs their
# place; when the preempted one is admitted again, the prefix cache looks for them there, by what they hold. Neither may
# change a token of the answer.

# %% [markdown]
# When a decode needs a block and none is free, the worst-ranked running sequence that is not planned yet in this step
# loses its blocks; it may be the one that asks. One order decides both: the best rank is served first, and the worst
# loses its blocks first. So the best sequence can always go on; when it ends, the next is the best; and so all of them
# end. SGLang
# [retracts](https://github.com/sgl-project/sglang/blob/fd3907ee4618e96b73ee94d9a836db78efb5d046/python/sglang/srt/managers/schedule_batch.py)
# the requests with the fewest output tokens first, and among equals the longest prompts. Whatever the rule, it needs an
# argument that every request ends.

# %% tags=["setup"]
from twophase_labs.scheduling.memory import Held, Running

# %% [markdown]
# <!-- card 4.7 -->
# Plan the decodes of one step.


# %% tags=["exercise:4.7"]
def plan_decodes(running, num_free):
    """Which sequences decode, and which are preempted: two lists of names, each in the order it was decided.

    `running` is a list, in any order, of Running(name, rank, num_needed, num_own): num_needed is how many blocks the
    sequence's next token needs (0 or 1), num_own how many become free if it loses its blocks. `num_free` blocks are
    free. The best (smallest) rank is served first; a sequence that is planned keeps its blocks and takes what it needs.
    While too few are free for it, the worst of those not planned is preempted: itself, if it is the worst. `running`
    is not changed.

    >>> plan_decodes([Running("A", 1, 1, 3), Running("B", 2, 1, 2), Running("C", 3, 0, 2)], num_free=0)
    (['A', 'B'], ['C'])
    >>> plan_decodes([Running("B", 2, 1, 3), Running("A", 1, 0, 4)], num_free=0)      # A needs none; B asks in vain
    (['A'], ['B'])
    """
    # BEGIN SOLUTION: from both ends of the order
    left = sorted(running, key=lambda sequence: sequence.rank)
    decoding, preempted = [], []
    while left:
        if left[0].num_needed <= num_free:
            sequence = left.pop(0)
            num_free -= sequence.num_needed
            decoding.append(sequence.name)
        else:
            victim = left.pop()
            num_free += victim.num_own
            preempted.append(victim.name)
    return decoding, preempted
    # END SOLUTION


# %%
check("4.7")

# %% [markdown]
# ### Open the engine
#
# This is the same in the engine, for one decode at a time:

# %%
from twophase.scheduling.planner import Planner

show_source(Planner.decode)

# %% [markdown]
# **Question.** The first line returns False for a sequence without blocks. A policy goes through `step.running` and
# calls `decode` for each: how can one of them have no blocks?
#
# <details><summary>Answer</summary>
#
# It was preempted a moment ago, for a decode planned earlier in the same loop. The list that the policy goes through
# stays as it was, and the move does nothing.
# </details>

# %% [markdown]
# **On SmolLM2**: six prompts at once, with answers of 24 tokens. At the end they need 20 blocks. First there are
# plenty, then there are 9. To make preemptions frequent, requests are admitted by what they need now, with nothing kept
# for growth (`reserve_growth=False`).

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.scheduling.engine_rig import generate_under_pressure
from twophase_tools.load.steps import StepSummary

crowded = {"num_blocks": 9, "reserve_growth": False}
runs = {
    "plenty": generate_under_pressure(),
    "recompute": generate_under_pressure(**crowded),
    "offload": generate_under_pressure(**crowded, num_host_blocks=16),
}
for name, run in runs.items():
    summary = StepSummary.of(run.steps)
    print(f"{name:9} {summary.num_steps} steps, {summary.num_preemptions} preemptions, ", end="")
    print(
        f"{summary.num_recomputed_tokens:2} tokens recomputed, {summary.num_blocks_offloaded} blocks offloaded;",
        end=" ",
    )
    print("same tokens:", run.tokens == runs["plenty"].tokens)

# %%
run = runs["recompute"]
figure = draw_swim_lanes(run.records, run.steps, title="Nine blocks for six requests: recompute")
pressure_pictures.hatch_preempted(figure)
plt.show()

# %% [markdown]
# **Read the result.** The tokens are the same all three times. With offloading, full blocks are loaded back from host
# memory or are still in the pool; what is computed again are the tokens of each last block, which was not full.
# Hatched is a request without blocks: it waits, and then an orange step computes its prompt *and the part of its
# answer that it already had*. Under greedy decoding the next token depends only on the tokens before it. For sampled
# answers the engine's generator depends on the seed and the position alone, so a repeated step draws the same token
# again. (In 16 bits the logits of a recomputed position agree only up to rounding, since its step is composed
# differently; once in a while another token wins.)

# %% [markdown]
# ### Thrashing, and three ways to admit
#
# Preemption rescues an engine that has admitted too many requests. It can also become most of what the engine does: a
# request is admitted because a few blocks are free, an older one needs one of them in the next step, and the new one's
# prefill was in vain. In the simulator, 64 requests come at once, with 16 prompt tokens that grow to 256, in a pool of
# 1,024 slots.
#
# The cure is at admission. **Headroom** is one free block for each sequence that may outgrow its blocks, so that the
# admission causes no preemption within the next few steps. A **watermark** is a share of the pool that stays free
# besides, for later growth.

# %% tags=["setup"]
import math

# %% [markdown]
# <!-- card 4.8 -->
# May this request be admitted? `waiting` and each of `running` is a `Held(num_tokens, max_num_tokens)`. The waiting
# request needs blocks for the tokens it has. After that there must still be free: a block for each sequence that may
# outgrow its blocks, the waiting one included, and the watermark's share of all blocks, rounded up. If nothing runs,
# nothing must stay free.
#
# ```python
# >>> can_admit(Held(16, 256), [Held(30, 256)], num_free=3, num_blocks=64, block_size=16, watermark=0.0)
# True                       # one block for it, one for its growth, one for the other's
# ```


# %% tags=["exercise:4.8"]
def can_admit(waiting, running, num_free, num_blocks, block_size, watermark):
    def blocks_of(num_tokens):
        return -(-num_tokens // block_size)  # SOLUTION: blocks that hold so many tokens

    def may_grow(one):
        # Of max_num_tokens tokens the last is never written.
        return one.max_num_tokens - 1 > block_size * blocks_of(one.num_tokens)  # SOLUTION: beyond its blocks?

    kept = math.ceil(watermark * num_blocks)  # SOLUTION: the watermark's blocks
    kept += sum(may_grow(one) for one in [*running, waiting])  # SOLUTION: a block for each that may grow
    kept = kept if running else 0  # SOLUTION: what is really kept
    return blocks_of(waiting.num_tokens) + kept <= num_free  # SOLUTION: does it fit?


# %%
check("4.8")

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.scheduling import pressure
from twophase_labs.scheduling.gated import gated_scheduler

can_admit = use("4.8")
doors = {
    "whatever fits now": pressure.NO_HEADROOM,
    "your headroom": gated_scheduler(pressure.CROWDED, can_admit),
    "and 10 % kept free": gated_scheduler(pressure.CROWDED, can_admit, watermark=0.1),
    "and 30 %": gated_scheduler(pressure.CROWDED, can_admit, watermark=0.3),
    "and 50 %": gated_scheduler(pressure.CROWDED, can_admit, watermark=0.5),
}
for name, door in doors.items():
    run = pressure.under_pressure(door)
    print(f"{name:19} {run.times_needed:.2f} tokens computed per needed, {run.num_preemptions:3} preemptions,", end=" ")
    print(f"done after {run.elapsed_s:.0f} s")

# %% [markdown]
# **Read the result.** Up to 30 %, the more of the pool is kept free, the less work is done twice. Beyond that, batches
# are so small that the empty blocks cost more time than the repeated work did.

# %% [markdown]
# > **In production, 2026.** Your 4.8 is in vLLM since June 2026: [`--watermark`, 0 by
# > default](https://github.com/vllm-project/vllm/pull/44594), a year and a half after its V1 engine shipped without
# > one. The benchmark there shows the curve that you have just seen: at 0.05, preemptions fall from 1,065 to 187 and
# > throughput rises by 5 %; at 0.15 the gain is gone. By default vLLM admits a request if its [whole prompt
# > fits](https://github.com/vllm-project/vllm/pull/37307) (`scheduler_reserve_full_isl`); without that, a case is
# > reported in which 100 tokens per second fell to 1.5. It [recomputes preempted
# > requests](https://docs.vllm.ai/en/v0.17.1/configuration/optimization/). TensorRT-LLM reserves: its
# > `capacity_scheduler_policy` is
# > [`GUARANTEED_NO_EVICT`](https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/SchedulerConfig.html) by
# > default. SGLang estimates, and retracts when it was wrong;
# > [`--schedule-conservativeness`](https://docs.sglang.io/advanced_features/hyperparameter_tuning.html) scales the
# > estimate and is 1.0. By roofline, recomputing 1,000 tokens of an 8B model in bf16 on an H100 is 16 TFLOP, 16 ms at a
# > peak of 989 TFLOP/s, as long as 3.6 decode steps that read 15 GB.

# %% [markdown]
# **Takeaway.** Without headroom, 1.83 tokens are computed for each one that is needed; SmolLM2's six answers stayed the
# same, token for token, with preemptions and without.

# %% [markdown]
# ### Going further: three ways to admit
#
# In the run above all answers were as long as they were allowed to be. Usually `max_tokens` is a cap, and answers end
# long before it. Here are three ways to admit, on 100 requests that may write 256 tokens, but on average write 60 to 80
# (means of three seeds):
#
# - **optimistic**: blocks for what a request has now, and headroom;
# - **reserve**: blocks for the worst case, its prompt and `max_tokens`;
# - **estimate**: blocks for an answer as long as those that have ended, a decaying average.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.scheduling.admission_runs import admitted

for admission in ("optimistic", "reserve", "estimate"):
    run = admitted({"admission": admission})
    print(
        f"{admission:10} {run.num_preemptions:4.0f} preemptions, {run.times_needed:.2f} computed per needed,", end=" "
    )
    print(f"{run.batch:4.1f} sequences in a step, done after {run.elapsed_s:.0f} s")

# %% [markdown]
# **Read the result.** Reserving never preempts, and runs the smallest batches. Optimistic admission runs the largest,
# and pays with repeated work; the estimate is in between. Which is best depends on how far answers stay below
# `max_tokens`, and on the cost of a recomputed token: measure it for your own traffic.
#
# The engine answers a shortage of blocks in steps, and none of them changes a token: it lets requests wait, then
# preempts, then refuses. Two other answers are often proposed. A cache that *resizes* itself by the length of the queue
# has nothing to resize here: the pool has all the memory there is from the start, and what adapts is how much of it an
# admission may promise. (With two models on one GPU there would be something to move, from one pool to the other.) A
# *window* put on running requests would free blocks, and silently change their answers.

# %% [markdown]
# ### Going further: offload, or recompute
#
# An agent waits for a tool, and its K and V are not needed for seconds; a preempted request waits for blocks. Is it
# cheaper to copy K and V to host memory and back, or to compute them again? The bytes of a copy grow with the number of
# tokens $n$. Recomputing takes a time per token, and one per pair of a query and a key, of which a causal prefill has
# $n(n+1)/2$:
#
# $$t_\text{copy} = \frac{2\,n \cdot \text{bytes per token}}{\text{bytes per second}} \qquad
# t_\text{recompute} = n\,t_\text{token} + \frac{n(n+1)}{2}\,t_\text{pair}$$

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.scheduling.memory import gpu


def copy_s(num_tokens, machine):  # one way
    return num_tokens * machine.token_bytes / machine.host_bytes_per_s


def recompute_s(num_tokens, machine):
    return num_tokens * machine.token_s + num_tokens * (num_tokens + 1) / 2 * machine.pair_s


print("milliseconds for 4,000 tokens      out and back   recompute")
for name, machine in {
    "8B on an H100, PCIe 5, 50 GB/s": gpu("llama-3-8b", host_bytes_per_s=50e9),
    "8B on an H100, a link of 4 GB/s": gpu("llama-3-8b", host_bytes_per_s=4e9),
    "70B on eight H100s, 50 GB/s each": gpu("llama-3-70b", num_gpus=8, host_bytes_per_s=50e9),
}.items():
    print(f"{name:35} {2000 * copy_s(4000, machine):11.0f} {1000 * recompute_s(4000, machine):11.0f}")

# %% [markdown]
# **Read the result.** (The times of a recomputed token and pair are those of an H100 at 60 % of its peak of 989
# TFLOP/s.) The machine decides, above all its link to the host. Real links are slower for small copies
# (arXiv:2309.06180, section 7.3), and a recomputed prompt may have hits in the prefix cache.
#
# K and V can lie further away still: on an SSD, or in a store that all engines of a cluster share (Mooncake,
# arXiv:2407.00079), where a prompt computed by one is found by another. Then they are fetched, one way only. When is
# that faster than computing the prompt again?

# %%
# NBVAL_CHECK_OUTPUT
for name, bytes_per_s in {
    "PCIe 5, 50 GB/s": 50e9,
    "100 Gbit/s": 12.5e9,
    "SSD, 7 GB/s": 7e9,
    "10 Gbit/s": 1.25e9,
}.items():
    fetch_s = copy_s(4000, gpu("llama-3-8b", host_bytes_per_s=bytes_per_s))
    print(f"4,000 tokens fetched by {name:18} {1000 * fetch_s:6.1f} ms")
machine = gpu("llama-3-8b")
as_fast = 4000 * machine.token_bytes / recompute_s(4000, machine)
print(f"as fast as computing: {as_fast / 1e9:.1f} GB/s")

# %% [markdown]
# **Read the result.** A level of such a hierarchy is worth having if it is read faster than the prefill it saves. For
# this model on an H100 an SSD is just fast enough; a network of 10 Gbit/s is not.

# %% [markdown]
# ## 8. Which request goes first
# <!-- minutes: 7 + 5 -->
#
# The answer to a chat is read as it appears; another request is one of ten thousand that a nightly job needs by the
# morning. So requests have a **priority** (here smaller is better): better ones are admitted first and preempted last.
#
# **Think first.** The order is strictly by priority, and for an hour the important requests alone come faster than they
# can be served. When does the batch job get a token?
#
# **Ageing** (also spelt aging) bounds the wait: with a *patience* of $P$ seconds, a request gains one level for every
# $P$ seconds it has waited. Compare two requests, with priorities $p_1, p_2$ and arrivals $a_1, a_2$, at the time $t$:
#
# $$p_1 - \frac{t - a_1}{P} \;<\; p_2 - \frac{t - a_2}{P} \quad\Longleftrightarrow\quad a_1 + p_1 P \;<\; a_2 + p_2 P$$
#
# The time drops out! Both age equally fast, so the one that is ahead stays ahead. A request is sorted into the queue
# once, when it arrives, and a level of priority is worth exactly an arrival $P$ seconds earlier.

# In the engine this is the sort key of `AgeingPolicy`; its default policy has strict priorities. Everything after the
# first entry decides ties, so that no two keys are equal:

# %%
from twophase.scheduling.policy import PriorityPolicy
from twophase_features.policies.ageing import AgeingPolicy

show_source(AgeingPolicy.rank)

# %% [markdown]
# A minute of rush: chats come faster than they can be served, and then more slowly. Meanwhile a batch job, one level of
# priority below, sends one request every three seconds. Here is the real scheduler, on the simulated clock:

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.scheduling import classes

orders = {
    "strict": classes.run(PriorityPolicy()),
    "patience 20 s": classes.run(AgeingPolicy(patience_s=20)),
    "patience 5 s": classes.run(AgeingPolicy(patience_s=5)),
}
for name, records in orders.items():
    people, batch = (classes.ttfts(classes.of_class(records, one)) for one in ("person", "batch"))
    print(f"{name:14} longest wait: chats {max(people):4.1f} s, batch job {max(batch):4.1f} s")

# %%
from twophase_labs.scheduling import fairness_pictures

fairness_pictures.draw_waits(orders)
plt.show()

# %% [markdown]
# **Read the result.** Under strict priorities the job's first requests wait until the rush is over; the later a request
# came, the shorter its wait: the straight line falling to the right. That is **starvation**: in a rush of a day they
# would wait a day. With ageing they wait about as long as their patience says, on top of what all requests wait. The
# chats pay for it, each a little, since the capacity is the same. A **deadline** per request works in the same way:
# earliest deadline first sorts by the arrival plus the time allowed.

# %% [markdown]
# > **In production, 2026.** By default all three engines serve in order of arrival; vLLM's `policy` and SGLang's
# > [`--enable-priority-scheduling`](https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md)
# > switch to strict priorities, without ageing. By roofline, steps are much shorter on an H100, 4.5 ms for a decode
# > step of an 8B model in bf16; but the order of a queue does not depend on that, and neither does starvation.

# %% [markdown]
# **Takeaway.** Ageing with a patience of 5 s cuts the batch job's longest wait from 58.9 s to 12.5 s, and raises the
# chats' from 5.9 s to 7.7 s.

# %% [markdown]
# ### Going further: tenants
#
# Priorities say nothing about *how much* each tenant may take. One sends 200 requests at once; another sends one every
# second. `FairPolicy` counts the tokens served for each tenant, and admits the next request from the one that was
# served least (virtual token counters, arXiv:2401.00588).

# %%
# NBVAL_CHECK_OUTPUT
from twophase_features.policies.fair_shares import FairPolicy
from twophase_labs.scheduling import tenants

for name, policy in {"by arrival": PriorityPolicy(), "fair shares": FairPolicy()}.items():
    records = tenants.run(policy)
    waits = {who: [r.ttft_s for r in records if r.request_id.startswith(who)] for who in ("greedy", "modest")}
    told = ", ".join(f"{who} {statistics.mean(ttfts):4.1f} s" for who, ttfts in waits.items())
    print(f"{name:12} time to first token, mean: {told}; all done after {max(r.finished_s for r in records):.1f} s")

# %% [markdown]
# ### Going further: what to watch
#
# Three numbers show an operator the troubles of this section before clients complain, and every step's trace has them:
# the **queue age**, how long the oldest request that was never scheduled has waited; the **block use**, the share of
# the pool that sequences hold; and the **hit rate**, the share of the admitted prompts' tokens that were hits in the
# prefix cache. Here is the rush again, with strict priorities; requests of a class begin with the same text. With hits
# in the prefix cache the machine is a little faster, so the first requests of the batch job are served and later ones
# wait.

# %%
# NBVAL_CHECK_OUTPUT
steps = classes.rush(PriorityPolicy()).steps
print("time   queue age   waiting   block use   hit rate so far")
for time_s in (5, 20, 40, 60, 80, 100):
    past = [step for step in steps if step.start_s <= time_s]
    queries, hits = sum(s.prefix_cache_queries for s in past), sum(s.prefix_cache_hits for s in past)
    last = past[-1]
    print(f"{time_s:3} s {last.queue_age_s or 0:9.1f} s {last.num_waiting:9}", end=" ")
    print(f"{last.kv_cache_usage:11.0%} {hits / queries:17.0%}")

# %% [markdown]
# **Read the result.** Block use stays near 30 % all through the rush (it is not blocks that run out here), and says
# nothing about waiting. The number waiting says how many wait, not for how long. The queue age shows the starvation
# while it happens: between 40 and 60 s it grows by one second per second. A hit rate that falls while evictions rise
# (`engine.stats().cache.num_evicted`) says that the pool is too small for what is shared; one that falls alone says
# that the prompts have changed.
#
# Two numbers are missing on purpose. *Fragmentation*: with blocks of 16 the share of unused slots follows from the
# lengths of the sequences (lab 3, section 3) and says nothing about health, so an alarm at 15 % or a target of 5 % is
# about the traffic. *Memory bandwidth*: no counter of the engine measures it; estimate it as lab 3 does, by the bytes
# of a step (weights, and the context that it read) over the step's time.
#
# vLLM has `vllm:kv_cache_usage_perc` for the block use, `vllm:prefix_cache_hits` and `vllm:prefix_cache_queries` for
# the hit rate, and
# [`vllm:request_queue_time_seconds`](https://github.com/vllm-project/vllm/blob/0328b592a3d35f9b4dc5549d2a3fb8d1531c8e5f/docs/design/metrics.md),
# a histogram that counts a wait when it is over: a request that still waits is not in it. `twophase bench serve --url`
# sends the same workload to any such server: run it against vLLM, and watch the same numbers there.

# %% [markdown]
# ## 9. Planning ahead of the device
# <!-- minutes: 18 -->
#
# On this machine, planning and bookkeeping take a third of a millisecond beside a step of many (section 6). On a fast
# GPU the same Python stands beside a step of a few milliseconds, and the GPU is idle while the scheduler plans. These
# gaps are **bubbles**. The remedy is **asynchronous** (or overlap) **scheduling**: while the device computes step n,
# the scheduler already plans step n + 1.
#
# But step n + 1 needs the tokens that step n is about to give. It does not need their *values* in order to be planned:
# a decode takes one batch slot and at most one block, whatever the token is. So the plan has a **placeholder**, and the
# device puts its own token there; the host reads it later.
#
# **Think first.** What does the scheduler know about a sequence whose newest token is still in flight? Does it know
# that the sequence ends by its length? That it ends by a stop token? May its blocks be given to another one?
#
# <details><summary>Answer</summary>
#
# It can count, so it knows the length. It cannot know a stop token: one more step is planned for a sequence that has
# ended, and what comes of it is dropped. That step still writes K and V, so the blocks may only be given back when it
# is over. And a sequence whose mask depends on the newest token (structured outputs, lab 5) has to wait for it.
# </details>

# %% tags=["setup"]
from twophase_labs.scheduling.ahead import Device, Stream

# %% [markdown]
# <!-- card 4.9 -->
# Write the loop that stays one step ahead.


# %% tags=["exercise:4.9"]
def serve_ahead(device, streams):
    """Decode all `streams` to their ends, at most one step ahead of the device. Returns nothing.

    device.launch starts a step that computes a token for each name of a list, and returns at once; a token that is in
    flight is a placeholder there. device.wait() waits for the oldest launched step and returns its tokens, a dict from
    name to token. Two steps at most may be launched and not waited for. device.free(name) gives the blocks of a
    stream back: once, when it has ended and no launched step computes it any more.
    A stream has `name`, `max_tokens`, `tokens` (the known ones: a list to append to), `is_guided` (it is launched only
    when none of its tokens is in flight) and `has_ended`: by its last known token, or max_tokens. Launch a step
    whenever some stream may compute a token and fewer than two are in flight; else wait. A step has every stream that
    may compute a token then, and at least one. Tokens in flight count towards max_tokens; what comes for a stream that
    has ended is dropped.

    >>> device, stream = Device({"A": [5, 7, 0]}), Stream("A", max_tokens=8)  # token 0 ends a stream
    >>> serve_ahead(device, [stream])
    >>> stream.tokens, device.num_dropped   # one step too many was launched: the 0 came while it was in flight
    ([5, 7, 0], 1)
    >>> device, stream = Device({"A": [5, 7, 6]}), Stream("A", max_tokens=3)
    >>> serve_ahead(device, [stream])
    >>> stream.tokens, device.num_dropped   # a length is known ahead
    ([5, 7, 6], 0)
    """
    # BEGIN SOLUTION: launch what may be launched; wait when two steps are in flight
    in_flight, left = deque(), list(streams)  # left: those that hold blocks
    while left:
        names = []
        for stream in left:
            num_coming = sum(stream.name in step for step in in_flight)
            is_last_planned = stream.has_ended or len(stream.tokens) + num_coming >= stream.max_tokens
            if not is_last_planned and not (stream.is_guided and num_coming):
                names.append(stream.name)
        if names:
            device.launch(names)
            in_flight.append(names)
        if not names or len(in_flight) == 2:
            tokens = device.wait()
            in_flight.popleft()
            for stream in list(left):
                if stream.name in tokens and not stream.has_ended:
                    stream.tokens.append(tokens[stream.name])
                if stream.has_ended and not any(stream.name in step for step in in_flight):
                    device.free(stream.name)
                    left.remove(stream)
    # END SOLUTION


# %%
check("4.9")

# %% [markdown]
# **On a simulated device**: a step takes 4.5 ms, the roofline of an 8B model on an H100, and its planning 1 ms. Six
# answers of different lengths are decoded, step after step and ahead. The last one is guided.


# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.scheduling import ahead

serve_ahead = use("4.9")
devices, texts = {}, {}
for name, way in {"step after step": ahead.serve_step_by_step, "one step ahead": serve_ahead}.items():
    devices[name], streams = ahead.six_answers()
    way(devices[name], streams)
    texts[name] = [stream.tokens for stream in streams]
    told = devices[name]
    print(
        f"{name:16} {told.end_ms:5.1f} ms, {told.idle_ms:4.1f} ms of them idle in {told.num_bubbles:2} bubbles;",
        end=" ",
    )
    print(f"{told.num_computed} tokens computed, {told.num_dropped} dropped")
print("the same tokens:", texts["step after step"] == texts["one step ahead"])

# %%
ahead.draw_timeline(devices, num_steps=7)

# %% [markdown]
# **Read the result.** Ahead, the host plans under the running step, and the device goes from one step to the next. The
# price is a token for each stream that ends by a stop token, and time for the guided answer, which is in every second
# step only. (vLLM does better: it launches the guided stream as well, and computes the mask while the step runs, [in
# time for the sampling](https://github.com/vllm-project/vllm/pull/26866).) Nothing here speeds up the scheduler; its
# time is hidden. This engine does it below the scheduler: on a GPU it queues [the next forward pass of the same
# sequences](../src/twophase_features/look_ahead.py) before it waits for their tokens, and plans afterwards. So masks
# know every token, and a request that joins costs a pass.
#
# Most bugs of this mechanism are of three kinds: a placeholder taken for a token
# ([vLLM #46899](https://github.com/vllm-project/vllm/pull/46899)), a block given back while a step in flight still
# writes to it, and a stream that is launched once more after its end. The check of 4.9 looks for all three.
#
# > **In production, 2026.** Planning ahead is the default: in vLLM [since
# > 0.14](https://github.com/vllm-project/vllm/pull/27614) (off: `--no-async-scheduling`), in SGLang ([unless
# > `--disable-overlap-schedule`](https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md))
# > and in [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/features/overlap-scheduler.html). The [first
# > version](https://github.com/vllm-project/vllm/pull/19970) in vLLM named the "output placeholder". By roofline, 1 ms
# > of planning is 22 % of a decode step of an 8B model on an H100.
#
# **Takeaway.** With 1 ms of planning beside steps of 4.5 ms, planning ahead removes all 13 bubbles of six answers, for
# three dropped tokens, one per stop token, and the tokens stay the same.

# %% [markdown]
# ## 10. The challenge
# <!-- minutes: 27 -->
#
# Here is a simulated machine with its traffic and two SLOs, and you decide which request goes when. Nothing depends on
# the computer it runs on, so results can be compared to the last digit:
#
# | | |
# |---|---|
# | a step | 20 ms, 0.15 ms more per token, 0.2 µs per key that a decode reads, 20 ns per query-key pair of a prefill |
# | the pool | 640 blocks of 16 slots; 64 batch slots |
# | the traffic | 400 requests, 9 per second in bursts: questions of some 90 tokens, one in five a document of 1,100 |
# | the SLO | first token within 1.5 s; 45 ms per token after it, on average |
#
# The **score** is the share of requests that meet both SLOs, over three traffics. The length of an answer is not known
# in advance: each request may write up to 256 tokens, and most end far earlier.
#
# This is what the engine's own policies reach, and yours of 4.4:

# %% tags=["setup"]
from twophase.scheduling.policy import by_priority, decodes_and_begun, decodes_first
from twophase_features.policies.whole_prompts import ContinuousPolicy, PrefillFirstPolicy
from twophase_labs.scheduling import challenge

# %%
# NBVAL_CHECK_OUTPUT
house = [
    challenge.entry("static, batches of 16", lambda: StaticPolicy(16)),
    challenge.entry("prompts first", PrefillFirstPolicy),
    challenge.entry("whole prompts, Orca", ContinuousPolicy),
    challenge.entry("yours of 4.4, 256 a step", lambda: DecodesFirst(256)),
    challenge.entry("the default", PriorityPolicy),
]
print(challenge.board(house))

# %% [markdown]
# The last two columns are the SLOs one by one. The default has most of the first tokens in time, and lets many answers
# stutter; smaller chunks help the answers and lengthen the queue.
#
# **Think first.** How many tokens may a step have so that it takes no more than 45 ms, if nothing is read from the
# cache? And with 40 sequences of 600 tokens decoding in it? If requests come faster than they can be served, which do
# you let miss their SLO: all by a little, or a few by a lot?

# %% [markdown]
# <!-- card 4.10 -->
# Reach 75 %. Start with a copy of your 4.4 and look at the two columns that the check prints: which SLO do you miss?
# Then change one thing at a time. The last hint is the skeleton of a policy that reaches more. `my_limits` may set
# `max_num_seqs` (up to 64), `max_num_batched_tokens`, `watermark` and `reserve_growth`.


# %% tags=["exercise:4.10"]
class Challenger(Policy):
    """`Challenger(cost, slo)`: a policy for the simulated machine. What is in it is up to you.

    cost: the machine's `per_step_s`, `per_token_s`, `per_context_s` (a key that a decode reads), `per_pair_s` (a
        query-key pair of a prefill) and, 0 here, `per_sample_s` (a sampled token), in seconds.
    slo: `slo.ttft_s`, `slo.tpot_s`, in seconds.
    rank(sequence): the sort key: which sequence keeps its blocks. No two are equal, and it never changes.
    plan(step): the moves of section 4. `step.running`, `step.waiting` and `step.now_s` are there to look at; a sequence
        has `is_decoding`, `num_uncomputed_tokens`, `token_ids` and `request`, with `request.arrival_s`. Every step must
        plan something, each sequence at most once, and every request must end.

    >>> steps_of(Challenger(challenge.COST, challenge.SLO), A=(30, 2))
    [{'A': 30}, {'A': 1}]
    >>> len(challenge.serve(Challenger(challenge.COST, challenge.SLO), my_limits))     # all of the first traffic end
    400
    """

    # BEGIN SOLUTION: __init__(cost, slo), rank(sequence), plan(step)
    def __init__(self, cost, slo):
        self.cost, self.slo = cost, slo
        self.step_s = 0.9 * slo.tpot_s

    def rank(self, sequence):
        return by_priority(sequence)

    def is_late(self, sequence, now_s):
        needs_s = self.cost.per_step_s + self.cost.per_token_s * sequence.num_uncomputed_tokens
        return now_s + needs_s > sequence.request.arrival_s + self.slo.ttft_s

    def room_beside(self, decoding):
        cost, num_keys = self.cost, sum(len(sequence.token_ids) for sequence in decoding)
        decodes_s = (cost.per_token_s + cost.per_sample_s) * len(decoding) + cost.per_context_s * num_keys
        fits = int((self.step_s - cost.per_step_s - decodes_s) / cost.per_token_s)
        return fits if decoding else max(fits, 1)

    def plan(self, step):
        decoding = [s for s in step.running if s.is_decoding]
        begun = [s for s in step.running if not s.is_decoding]

        def urgency(sequence):
            return (self.is_late(sequence, step.now_s), sequence.num_uncomputed_tokens)

        for one in decoding:
            step.decode(one)
        room = self.room_beside(decoding)
        for sequence in sorted([*begun, *step.waiting], key=urgency):
            if room < 1:
                break
            room -= step.prefill(sequence, room) if sequence in begun else step.admit(sequence, room)

    # END SOLUTION


my_limits = {"max_num_seqs": 64, "max_num_batched_tokens": 512}  # yours to change

# %%
check("4.10")

# %%
own = globals().get("Challenger"), globals().get("my_limits")  # yours as it is, finished or not
Challenger, limits = use("4.10")
print(challenge.board([*house, *challenge.rows(own, (Challenger, limits))]))

# %%
from twophase_labs.scheduling import challenge_pictures

compared = {
    "the default": challenge.serve(PriorityPolicy()),
    challenge.label(Challenger): challenge.serve(Challenger(challenge.COST, challenge.SLO), limits),
}
challenge_pictures.draw_latencies(compared, challenge.SLO)
plt.show()

# %% [markdown]
# **Read the result.** The curves show the first of the three traffics. A policy that knows its SLOs keeps most requests
# below the lines, and lets the rest, which are late anyway, become very late. The score leaves that out. A real service
# needs an order for the late requests, too.
#
# Save your class in a file, and `twophase challenge run my_policy.py` scores it and puts it on a board of your own;
# `twophase challenge` prints the board.
#
# > **In production, 2026.** None of the orders that engines offer knows an SLO. Beside those of section 4, SGLang has
# > [`lpm`, `lof` and
# > others](https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md)
# > by the prefix cache or by length, and TensorRT-LLM's `waiting_queue_policy` is
# > [`FCFS`](https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/SchedulerConfig.html). To refuse early
# > there is SGLang's `--max-queued-requests`, off by default. By roofline, a token of an 8B model in bf16 on an H100 is
# > 0.016 ms of arithmetic: a step of 45 ms may have about 2,800 tokens, where this section's machine allows at most
# > 166, and fewer the longer the contexts are.

# %% [markdown]
# **Takeaway.** On the same machine and traffic the default policy meets both SLOs of 49 % of the requests; a policy
# that bounds its steps and serves first what can still be in time reaches the 75 % of the exercise, and more.

# %% [markdown]
# ## 11. The first cell again
# <!-- minutes: 4 -->
#
# The first cell once more, and then your two policies: 4.4 with its bound of 32 tokens, and 4.10 with the costs of
# *this* machine and an SLO of three times a decode's time per token.

# %%
from twophase_tools.load.slo import Slo
from twophase_tools.simulate.cost_model import LinearCostModel

here = pace(again=True)
crowd = answer_and_prompts(here)
cost_here = LinearCostModel(per_step_s=0.9 * here.decode_s, per_token_s=here.prompt_token_s)
slo_here = Slo(ttft_s=30 * here.decode_s, tpot_s=3 * here.decode_s)
closing = {
    "the first cell": run_on_engine(PrefillFirstPolicy(), crowd),
    "your 4.4": run_on_engine(DecodesFirst(CHUNK), crowd),
    "your 4.10": run_on_engine(Challenger(cost_here, slo_here), crowd),
}
for name, run in closing.items():
    answer, *others = run.records
    gaps_ms = [1000 * gap_s for gap_s in answer.itls_s]
    print(
        f"{name:15} ms between the answer's tokens: mean {np.mean(gaps_ms):3.0f}, longest {max(gaps_ms):4.0f};", end=" "
    )
    print(f"last first token of the others {max(r.ttft_s for r in others):.2f} s")

# %%
draw_lane_panels({name: (run.records, run.steps) for name, run in closing.items()})
plt.show()

# %% [markdown]
# **And the tokens?** Here are three texts of section 4 under each policy, against transformers:

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.kit.models import transformers_greedy

model, tokenizer = smollm2()
prompt_ids = [tokenizer(text, return_tensors="pt").input_ids[0] for text in openings[:3]]
expected = [transformers_greedy(model, ids, 12, eos_id=model.config.vocab_size)[-12:].tolist() for ids in prompt_ids]
for name, policy in {"your 4.4": DecodesFirst(24), "your 4.10": Challenger(cost_here, slo_here)}.items():
    llm.scheduler.policy = policy
    texts = llm.generate(openings[:3], greedy, use_tqdm=False)
    print(f"{name}: the tokens of transformers:", [list(t.outputs[0].token_ids) for t in texts] == expected)

# %% [markdown]
# **Takeaway.** The tokens of three texts are those of transformers, all 36, under both policies. Only their times have
# changed: the long gap of the first cell is gone, and its price, later first tokens for the others, is printed beside
# it.

# %% [markdown]
# ## 12. Knowledge check
# <!-- minutes: 5 + 3 -->
#
# Two questions over the whole lab.

# %% [markdown]
# <!-- card 4.11 -->
# What is the cause? Each letter fits once or never. **a** thrashing · **b** a convoy: short
# requests behind a long one · **c** overload, served
# in order of arrival · **d** prompts are computed whole, or before the decodes · **e** strict priorities · **f** chunks
# too small · **g** a device that waits for the plan of each step

# %% tags=["exercise:4.11"]
answer_4_11 = {
    "tokens of running answers stop whenever a long prompt comes": "d",  # SOLUTION: a letter
    "many more tokens computed than requested": "a",  # SOLUTION: a letter
    "one class gets no first tokens as long as another is busy": "e",  # SOLUTION: a letter
    "short prompts get their first tokens in a bunch, after a long one's": "b",  # SOLUTION: a letter
    "throughput as before, and hardly any SLO met": "c",  # SOLUTION: a letter
    "every step of a small model on a fast GPU is 1 ms longer than its kernels": "g",  # SOLUTION: a letter
}

# %%
check("4.11")

# %% [markdown]
# <!-- card 4.12 -->
# For ten minutes twice as many requests come as can be served in time. Which meets the most SLOs?
#
# - (a) earliest deadline first, whether it can still be met or not
# - (b) those that can still be in time, before those that cannot
# - (c) larger chunks, for more throughput
# - (d) more batch slots, for a shorter queue

# %% tags=["exercise:4.12"]
answer_4_12 = "b"  # SOLUTION: one letter

# %%
check("4.12")

# %% [markdown]
# ### Going further: symptoms, and what to read
#
# | symptom | likely cause | section |
# |---|---|---|
# | nothing happens, requests never end | a head that never fits the budget; a policy that plans nothing | 3 |
# | tokens stutter whenever a prompt comes | whole prompts, or a chunk too large: bound the step's tokens | 4, 5 |
# | first tokens late, tokens fast, GPU half idle | chunks too small, too few batch slots, or blocks all taken | 5, 7 |
# | short prompts late, in bunches | a convoy behind a long prompt: round-robin, or order by length with ageing | 5 |
# | preempted again and again, tokens computed twice | thrashing: headroom, watermark, fewer batch slots | 7 |
# | blocks free, and nothing is admitted | a watermark too high; worst cases reserved; a large request at the head | 7 |
# | low priorities never served | strict order: age, or reserve a share | 8 |
# | throughput flat, goodput falling | overload: first those that can still be in time; refuse early | 6, 10 |
#
# - Orca, OSDI 2022: iteration-level scheduling and selective batching. Its factor 36.9 is over FasterTransformer, on
#   GPT-3 175B.
# - PagedAttention, arXiv:2309.06180, section 4.5: preemption by swapping and recomputing.
# - Sarathi-Serve, arXiv:2403.02310: chunks and stall-free batches.
# - DistServe, arXiv:2401.09670: goodput, and prefill and decode on machines of their own.
# - Vidur, arXiv:2405.05465: a simulator and its error.
# - Fair shares counted in tokens: arXiv:2401.00588.
# - NanoFlow, arXiv:2408.12757: planning ahead of the device, and more that can overlap.
#
# **Principles.** A scheduler decides when a token is computed, never which. Bound what one step may do, and decide
# again after it. Plan nothing that waits for a state that nothing changes. Admit only what the memory can carry to its
# end, or be able to take it back. Measure in deadlines met, not in slots filled.
#
# Lab 5 shares prefixes and drafts tokens ahead.

# %%
from twophase_labs.kit.course_map import closing

closing("4")
