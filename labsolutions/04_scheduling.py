# %% [markdown]
# # Lab 4: scheduling, or whose turn it is
#
# Two phases, two appetites. Lab 2's prefill wants a long stretch of arithmetic; lab 3's decode wants a little of the
# machine, again and again, and soon. Now many users come at once. Some bring a page to read, some are in the middle of
# an answer, and in every step, a few dozen times a second, something must decide which tokens of whom are computed
# next.
#
# That something is the *scheduler*. It computes nothing; it is a few hundred lines of plain Python without a tensor.
# And yet the same model on the same machine feels quick or broken depending on it. The first cell shows what a user
# sees who is reading along when others come.

# %% [markdown]
# **After this lab you can**
#
# - name the states of a request, and say which transitions are legal and why;
# - count what static batching wastes, and write the batching that replaced it;
# - find the deadlock in a well-known teaching scheduler, and repair it;
# - write a scheduling policy with a token budget and chunked prefill, and run the real engine with it;
# - read swim lanes, and compute TTFT, inter-token latencies, percentiles and goodput from events;
# - handle memory pressure, priorities and deadlines, and choose a policy by simulation.
#
# You need lab 1 (sections 5, 8 and 9) and the idea of chunked prefill (lab 2, section 10). No GPU.

# %% [markdown]
# ```mermaid
# flowchart LR
#     A["1-2 requests and batches<br/>states, slots, iterations"] --> B["3-4 a step<br/>budget, chunks, your policy"]
#     B --> C["5-6 what users feel<br/>swim lanes, percentiles, goodput"]
#     C --> D["7-8 under pressure<br/>preemption, priorities"]
#     D --> E["9-10 what a batch is<br/>and a simulator of it"]
#     E --> F["11-12 challenge<br/>knowledge check"]
# ```
#
# **How it works.** As in the labs before: think first, fill the blanks `____(...)`, run `check("4.1")`. If you are
# stuck, `hint("4.1")` helps in up to three steps and `reveal("4.1")` shows a solution. Any exercise can be left out:
# what follows then runs with the reference's answer, and says so.

# %% [markdown]
# <!-- map -->

# %% tags=["setup"]
import statistics
from collections import deque
from itertools import pairwise

import matplotlib.pyplot as plt
import torch

from twophase import LLM, SamplingParams
from twophase.core.errors import PolicyError
from twophase.scheduling.policies import ContinuousPolicy, DynamicPolicy, PrefillFirstPolicy, StaticPolicy, by_priority
from twophase.scheduling.policy import Policy
from twophase.scheduling.scheduler import Scheduler
from twophase.serving.pictures import draw_batch_composition, draw_percentile_curves, draw_swim_lanes
from twophase.serving.steps import num_tokens
from twophase.serving.workloads import TimedRequest
from twophase.workbook import ____, check, hint, measured, reference, reveal, use
from twophase.workbook.lab04 import slot_pictures
from twophase.workbook.lab04.lives import IllegalTransition, WatchedScheduler
from twophase.workbook.lab04.load import short_chats
from twophase.workbook.lab04.real_engine import pace, run_on_engine, smollm2_engine, writer_and_readers
from twophase.workbook.lab04.section_2 import LONGEST, NUM_SLOTS, drawn_lengths
from twophase.workbook.lab04.section_3 import famous_jobs
from twophase.workbook.lab04.section_5 import CHUNK
from twophase.workbook.lab04.teaching import run_steps
from twophase.workbook.lab04.virtual import StepCost, play

torch.set_num_threads(1)

# %% [markdown]
# **The surprise.** SmolLM2 on this machine writes an answer of 40 tokens. While it does, five other users send prompts
# of 112 tokens each. Everything is computed by the same engine, correctly; only the order differs. Below are the gaps
# between the writer's tokens under an order that many engines used for a year: prompts first, for they are short work
# and somebody is waiting for them.

# %%
here = pace()
crowd = writer_and_readers(here)
prompts_first = run_on_engine(PrefillFirstPolicy(), crowd)
gaps_s = prompts_first.records[0].itls_s
print("gaps between the writer's tokens, in ms:")
for start in (0, 20):
    print(" ".join(f"{1000 * gap_s:.0f}" for gap_s in gaps_s[start : start + 20]))
print(f"mean {sum(gaps_s) / len(gaps_s):.2f} s, longest {max(gaps_s):.2f} s")

# %% [markdown]
# One of these numbers is a sentence that stopped in the middle. On a faster machine the numbers are smaller and their
# ratio is the same. Section 5 draws what happened, section 4 has you write the policy under which it does not happen,
# and section 6 asks why the mean said so little about it.

# %% [markdown]
# ## 1. The life of a request
#
# *Needs: CPU, and the model.*
#
# A request is always in exactly one of five states. What distinguishes them is what it holds and what it has left to
# compute:
#
# | state | holds blocks | left to compute | what may happen to it |
# |---|---|---|---|
# | waiting | no | its prompt | it is let in; its user leaves |
# | prefill | yes | the rest of its prompt | the last chunk gives the first token; its blocks are taken; it ends |
# | decoding | yes | one token, the newest | it writes on (and stays here); its blocks are taken; it ends |
# | preempted | no | everything again | it is let in again; its user leaves |
# | finished | no | nothing | nothing |
#
# "It ends" has many reasons: an end token, the length limit, a user who closed the window. "Its blocks are taken" is
# *preemption*: memory ran out, and somebody had to make room. What is in no cell of the last column must not happen,
# and a scheduler that checks this finds its own mistakes early. (In the engine prefill and decoding are one status,
# `RUNNING`; which of them it is follows from how many tokens are left. The states here are the ones a user feels.)

# %% [markdown]
# **Think first.** A request was preempted in the middle of its answer, and gets its blocks back. Which state is next,
# *decoding* or *prefill*? And what will it compute?

# %% [markdown]
# <!-- card 4.1 -->
# `LEGAL[state]` is the set of states that may come next. `Life` starts waiting and keeps the list of its states;
# `become` raises `IllegalTransition`, and changes nothing, when the next state is not allowed. Here a preempted
# request has lost its K and V (section 7 adds a way to keep them). Staying in a state is no transition.
#
# ```python
# >>> life = Life()
# >>> life.become("prefill"); life.become("decoding"); life.states
# ['waiting', 'prefill', 'decoding']
# >>> life.become("waiting")
# IllegalTransition: a request cannot go from decoding to waiting
# ```


# %% tags=["exercise:4.1"]
LEGAL = {
    "waiting": {"prefill", "finished"},  # SOLUTION `{"prefill", "finished"}`: the states that may follow
    "prefill": {"decoding", "preempted", "finished"},  # SOLUTION `{"decoding", "preempted", "finished"}`: likewise
    "decoding": {"preempted", "finished"},  # SOLUTION `{"preempted", "finished"}`: likewise
    "preempted": {"prefill", "finished"},  # SOLUTION `{"prefill", "finished"}`: likewise
    "finished": set(),  # SOLUTION `set()`: likewise; an empty set is set()
}


class Life:
    def __init__(self):
        self.states = ["waiting"]

    def become(self, state):
        if state not in LEGAL[self.states[-1]]:  # SOLUTION: is this step forbidden?
            raise IllegalTransition(f"a request cannot go from {self.states[-1]} to {state}")
        self.states.append(state)


# %%
check("4.1")

# %% [markdown]
# **The real engine, watched.** Three requests of 20 prompt tokens and 40 answer tokens, in a pool of six blocks of 16
# slots: two of them fit in the beginning, and not to the end. `WatchedScheduler` is the engine's own scheduler; it
# reports every change of state to your `Life`, which would refuse a wrong one.

# %%
# NBVAL_CHECK_OUTPUT
_, make_life = use("4.1")
lives = {}


def note(name, state):
    lives.setdefault(name, make_life()).become(state)


def watched(config, cache):
    return WatchedScheduler(Scheduler(config, cache), note)


small_pool = LLM(num_kv_blocks=6, enable_prefix_caching=False, scheduler_factory=watched)
words = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
prompts = [{"prompt_token_ids": list(range(start, start + 20))} for start in (100, 200, 300)]
outputs = small_pool.generate(prompts, words, use_tqdm=False)
for name, life in lives.items():
    print(f"request {name}: {' -> '.join(life.states)}")

# %% [markdown]
# **Read the result.** One request was preempted, and read its prompt *again*, together with what it had written: from
# the model's point of view that is one longer prompt. Then it went on where it had stopped. The third waited all the
# time for somebody to leave. Nobody's text changed by any of this; section 7 proves it.

# %% [markdown]
# ## 2. Batches, and who sits in them
#
# *Needs: CPU.*
#
# Lab 3 measured why requests are computed together: a decode step reads all the weights, for one sequence or for
# sixteen. The question is when they may get together. The oldest answer comes from serving image models, where every
# input takes equally long: take what is there, compute it, return it, take the next. That is **static**, or
# request-level, batching. A **dynamic** batcher adds a time-out: it waits a moment for company, so that batches are
# fuller, and starts when the batch is full or the oldest request has waited long enough.
#
# Answers of a language model are not equally long.

# %% [markdown]
# **A model to count with.** For this section the only clock is the *iteration*, one run of the model. In an iteration
# every request at work gets exactly one token, and prompts are so short that reading one is part of the first. An
# iteration takes equally long whoever is in it (lab 3: nearly true below the ridge). What remains is the question of
# who sits in which slot.

# %%
lengths = [3, 9, 2, 5, 4, 1, 8, 2]
four_at_once = [(0, 3), (0, 9), (0, 2), (0, 5), (9, 13), (9, 10), (9, 17), (9, 11)]
slot_pictures.draw_slots({"static: eight requests, four slots, numbered by arrival": four_at_once}, 4)

# %% [markdown]
# Request 2 has had its two tokens for a long time when request 1 gets its ninth; its slot stands empty. Worse, request
# 5 wants a single token and waits nine iterations for it, beside three empty slots.

# %% [markdown]
# <!-- card 4.2 -->
# Requests come in order of arrival; `arrivals[i]` is the iteration before which request i is there, `lengths[i]` its
# tokens. A batch starts when the last one is over: the oldest who have arrived by `now`, at most `num_slots`.
# `static_batching` returns for each request the iterations [first, end) in which it gets tokens. `slot_use` is the
# share of the slots' iterations, from the first start to the last end, that gave a token.
#
# ```python
# static_batching([0, 0, 0], [3, 1, 2], num_slots=2) == [(0, 3), (0, 1), (3, 5)]
# slot_use([(0, 3), (0, 1), (3, 5)], num_slots=2) == 6 / (2 * 5)
# ```


# %% tags=["exercise:4.2"]
def static_batching(arrivals, lengths, num_slots):
    queue = deque(zip(arrivals, lengths, strict=True))
    spans, now = [], 0
    while queue:
        now = max(now, queue[0][0])  # nobody there: the clock goes to the next arrival
        num_there = sum(arrival <= now for arrival, _ in queue)
        size = min(num_slots, num_there)  # SOLUTION: how many from the head of the queue join this batch
        batch = [queue.popleft()[1] for _ in range(size)]
        spans += [(now, now + length) for length in batch]  # SOLUTION: [first, end) of each of the batch
        now += max(batch)  # SOLUTION: how long until the next batch can start
    return spans


def slot_use(spans, num_slots):
    start, stop = min(first for first, _ in spans), max(end for _, end in spans)
    tokens = sum(end - first for first, end in spans)  # SOLUTION: how many tokens there were
    possible = num_slots * (stop - start)  # SOLUTION: how many there could have been
    return tokens / possible


# %%
check("4.2")

# %% [markdown]
# <!-- card 4.3 -->
# **Think first.** 400 answers; each has some length from 1 to 200 tokens, all equally likely. All are there at the
# start, so that every batch is full, and there are 8 slots. What share of the slots' iterations gives a token? Write
# it as a number between 0 and 1; within 0.08 counts as close.

# %% tags=["exercise:4.3"]
guess_4_3 = 0.56  # SOLUTION: the share of slot iterations that give a token

# %%
check("4.3")

# %%
batched, used = use("4.2")
many = drawn_lengths()
in_batches = batched([0] * len(many), many, NUM_SLOTS)
print(f"mean length {sum(many) / len(many):.0f}, longest {max(many)} of {LONGEST}")
measured("4.3", used(in_batches, NUM_SLOTS))

# %% [markdown]
# **Read the result.** A batch takes as long as its longest answer, and of eight drawn at random the longest is nearly
# always close to 200: on average 8/9 of it. The mean is half of 200. So about four ninths of the machine do nothing,
# and the larger the batch, the worse: towards one half for lengths like these, and further for real ones, where most
# answers are short and a few are very long. Nobody knows the lengths in advance, or one could sort.

# %% [markdown]
# **The way out** is to ask again after every iteration. Who is done leaves, and whoever waits takes the free slot at
# once. This is *iteration-level scheduling*, from Orca (OSDI 2022); today it is called **continuous batching**. It
# became possible because sequences in a batch need not be equally far: lab 3's attention reads each one's own pages.
#
# **Think first.** In the picture above, in which iteration would request 4 start? When would everything be over?

# %% [markdown]
# <!-- card 4.4 -->
# The same arguments and the same result as before. Before each iteration newcomers take free slots, in order of
# arrival; in the iteration everybody at work gets a token; at its end those who have all their tokens leave.
#
# ```python
# iteration_level([0, 0, 0], [3, 1, 2], num_slots=2) == [(0, 3), (0, 1), (1, 3)]
# ```


# %% tags=["exercise:4.4"]
def iteration_level(arrivals, lengths, num_slots):
    waiting = deque(range(len(lengths)))
    tokens_left = {}  # of those at work
    first, spans, now = {}, {}, 0
    while waiting or tokens_left:
        num_there = sum(arrivals[request] <= now for request in waiting)
        num_free = num_slots - len(tokens_left)
        for _ in range(min(num_free, num_there)):  # SOLUTION `min(num_free, num_there)`: how many start now
            request = waiting.popleft()
            tokens_left[request] = lengths[request]  # SOLUTION: how many tokens it has to get
            first[request] = now
        now += 1  # the iteration
        for request in list(tokens_left):
            tokens_left[request] -= 1
            if tokens_left[request] == 0:  # SOLUTION: does it leave?
                del tokens_left[request]
                spans[request] = (first[request], now)  # SOLUTION: its [first, end)
    return [spans[request] for request in range(len(lengths))]


# %%
check("4.4")

# %%
continuous = use("4.4")
together = {
    "static": batched([0] * 8, lengths, 4),
    "iteration-level": continuous([0] * 8, lengths, 4),
}
slot_pictures.draw_slots(together, 4)

# %% [markdown]
# **Your lines against the real thing.** The engine's scheduler needs no model to run: `play` gives it requests on a
# virtual clock, on which a step takes as long as a formula says, here one second. Policies are the engine's own.
# Twenty-four users with prompts of one token, arriving over time, in four seats.

# %%
# NBVAL_CHECK_OUTPUT
arrivals = [0, 0, 15, 21, 40, 42, 43, 44, 44, 45, 53, 54, 59, 61, 62, 62, 67, 68, 69, 70, 75, 75, 87, 88]
wanted = [3, 3, 1, 2, 12, 6, 4, 4, 12, 6, 18, 18, 8, 2, 8, 2, 18, 8, 4, 4, 1, 6, 2, 4]
users = [TimedRequest(f"user {i}", arrivals[i], 1, wanted[i]) for i in range(24)]


def spans_under(policy):
    records = play(policy, users, StepCost(step_s=1.0), max_num_seqs=4).records
    return [(int(record.first_scheduled_s), int(record.finished_s)) for record in records]


print("static:    ", spans_under(StaticPolicy(4)) == batched(arrivals, wanted, 4))
print("continuous:", spans_under(ContinuousPolicy()) == continuous(arrivals, wanted, 4))

# %%
# NBVAL_CHECK_OUTPUT
policies = {"static": StaticPolicy(4), "dynamic, 4 s": DynamicPolicy(4, 4), "dynamic, 8 s": DynamicPolicy(4, 8)}
print("                 iterations   slot use   mean wait   longest wait")
for name, policy in {**policies, "iteration-level": ContinuousPolicy()}.items():
    spans = spans_under(policy)
    waits = [first - arrival for (first, _), arrival in zip(spans, arrivals, strict=True)]
    num_busy = len({now for first, end in spans for now in range(first, end)})
    use_of_busy = sum(wanted) / (4 * num_busy)
    print(f"{name:16} {num_busy:>8} {use_of_busy:>12.0%} {sum(waits) / 24:>9.1f} s {max(waits):>12} s")

# %% [markdown]
# **Read the result.** (Slot use is counted over the iterations in which the machine ran at all.) The time-out buys
# fuller batches, so fewer of them; with a longer one the waiting takes over. But no time-out makes up for the long
# answer that holds a whole batch. Deciding in every iteration wins on both counts, by far. That is why every engine
# does it, and why the rest of this lab is about *what* to decide in an iteration.
#
# **Play.** Make all lengths equal: when is static batching as good? Make arrivals rare: what is the time-out for?

# %% [markdown]
# ## 3. A scheduler that stops for ever
#
# *Needs: CPU.*
#
# Now prompts get their length back. A step has a **token budget**: so many tokens, prompt tokens and decodes together,
# may be computed in it, which bounds its time and its memory. The scheduler below is printed, in this form or close to
# it, in many introductions to continuous batching. A `job` knows its prompt's length and what it has computed. The
# function is called before every step; it moves jobs from the queue to `running` and returns what each computes.


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
# It respects the budget, serves in order of arrival, lets requests join and leave at every step. Here is a queue, and
# the first twelve steps with a budget of 50 tokens.

# %%
queue = famous_jobs()
slot_pictures.draw_queue(queue, 50)

# %%
# NBVAL_CHECK_OUTPUT
for number, step in enumerate(run_steps(plan_whole_prompts, famous_jobs(), budget=50, max_steps=12)):
    print(f"step {number:>2}: {step}")

# %% [markdown]
# <!-- card 4.5 -->
# Twelve empty steps, and it would have been twelve million. Which sentence says what is wrong?
#
# - (a) The budget is used up by earlier steps and never given back.
# - (b) The head of the queue is let in only when its whole prompt fits a step; 100 never fits 50, and nobody gets past
#   the head.
# - (c) Finished jobs stay in `running` and fill the budget.
# - (d) Decodes are counted before prompts, so that no budget is left for prompts.

# %% tags=["exercise:4.5"]
answer_4_5 = "b"  # SOLUTION: one letter, in quotes

# %%
check("4.5")

# %% [markdown]
# Note what makes it dangerous. There is no error and no crash: health checks pass, the loop turns, the queue grows. It
# needs only one user with a long prompt. And it does not show in any test whose prompts are shorter than the budget.
#
# **Think first.** Three repairs come to mind: skip the head and serve those behind it; refuse such a prompt at the
# door; compute the prompt in pieces. What happens to the user with the 100 tokens under each of them?

# %% [markdown]
# Skipping serves the others and leaves this one waiting for ever: a deadlock became a starvation. Refusing is honest,
# and some engines do it, but the machine *could* serve this user. Pieces serve everybody, and lab 2 has shown that a
# prompt in chunks gives the same K and V.

# %% [markdown]
# <!-- card 4.6 -->
# Repair it. `job.num_to_compute` is what the job could compute in this step: the rest of its prompt, or 1 when it is
# decoding. Every job gets that, or what is left of the budget; running jobs first, then the queue in order, as long as
# there is budget.
#
# ```python
# >>> run_steps(plan_in_chunks, [Job("A", 100, 2), Job("B", 20, 1)], budget=50)
# [[('A', 50)], [('A', 50)], [('A', 1), ('B', 20)]]
# ```


# %% tags=["exercise:4.6"]
def plan_in_chunks(running, waiting, budget):
    batch = []
    for job in running:
        num_tokens = min(job.num_to_compute, budget)  # SOLUTION: how many tokens it gets in this step
        if num_tokens:
            batch.append((job, num_tokens))
            budget -= num_tokens
    while waiting and budget > 0:  # SOLUTION `budget > 0`: may the head of the queue begin?
        job = waiting.popleft()
        running.append(job)
        num_tokens = min(job.num_to_compute, budget)  # SOLUTION: how many tokens it gets in this step
        batch.append((job, num_tokens))
        budget -= num_tokens
    return batch


# %%
check("4.6")

# %%
repaired = use("4.6")
logs = {
    "whole prompts only": run_steps(plan_whole_prompts, famous_jobs(), 50, max_steps=6),
    "in chunks": run_steps(repaired, famous_jobs(), 50),
}
slot_pictures.draw_steps(logs, 50)

# %% [markdown]
# **Read the result.** On the left, nothing, for ever. On the right A takes the whole of two steps, then decodes, and
# the budget that its decode leaves goes to B and C together. Nobody overtook anybody.

# %% [markdown]
# **And the engine?** It treats the two causes of such a silence separately. A request that could never be served is
# refused at the door, with the numbers. And a policy that plans nothing while something is unfinished, and does not
# say what it waits for, is stopped. Here is the famous rule as a policy of the real scheduler.


# %%
# NBVAL_CHECK_OUTPUT
class WholePrompts(Policy):
    def rank(self, sequence):
        return by_priority(sequence)  # the package's: in order of arrival

    def plan(self, step):
        for sequence in step.running:
            step.decode(sequence)
        for sequence in step.waiting:
            if sequence.num_prompt_tokens > step.budget or not step.admit(sequence):
                break

    def __repr__(self):
        return "WholePrompts()"


try:
    play(WholePrompts(), [TimedRequest("A", 0, 100, 3)], StepCost(1.0), max_num_seqs=8, token_budget=50)
except PolicyError as error:
    print(f"PolicyError: {error}")

# %% [markdown]
# An error on the first occasion, instead of silence. This check costs a comparison per step.

# %% [markdown]
# ## 4. Your policy in the engine
#
# *Needs: CPU, and the model.*
#
# The engine separates two things. **What must never go wrong** (blocks, seats, budgets, legal states, preemption) is
# kept by the scheduler, whatever anybody plans. **What is a matter of taste**, who goes first and how much of it, is a
# *policy*: a class with two methods.
#
# - `rank(sequence)` is a sort key. One order says who is let in next and, read from its end, who is preempted first.
# - `plan(step)` is called before each step. It looks at `step.running` and `step.waiting`, both sorted by rank, and
#   makes moves:
#
# | move | what it does | returns |
# |---|---|---|
# | `step.decode(sequence)` | the next token of a decoding sequence | whether it was planned |
# | `step.prefill(sequence, max_tokens)` | the next chunk of a prefill that is begun | its tokens; 0: not planned |
# | `step.admit(sequence, max_tokens)` | let a waiting one in, with its first chunk | its tokens; 0: there is no room |
#
# A move that does not fit plans less or nothing. One that makes no sense, like planning the same sequence twice,
# raises `PolicyError`.

# %% [markdown]
# **Think first.** The step's time grows with its tokens. A decode should come in every step, so its gap is the time of
# *one step*. How do you bound that gap? And what do you give up?

# %% [markdown]
# The picture shows one step as it should be composed, for `max_tokens=32`: decodes first, since they are few and
# urgent; then the prefill that was begun, as much of it as fits; what is left goes to the queue.

# %%
composition = [[("decodes", 5), ("prefill, begun", 27)], [("decodes", 5), ("prefill, begun", 9), ("newcomer", 18)]]
slot_pictures.draw_steps({"two steps, by what they compute": composition}, 32)

# %% [markdown]
# <!-- card 4.7 -->
# *Stall-free batching*, as Sarathi-Serve named it (arXiv:2403.02310). A step has at most `max_tokens` tokens, decodes
# included. Every decoding sequence gets its token in every step, even if they alone are more than `max_tokens` (a
# request with several completions forks into several decodes at once). What room is left goes to the prefills that are
# begun, then to newcomers in order of arrival, until one does not fit. `sequence.is_decoding` tells the phase;
# `sequence.arrival_order` and `sequence.index` (which of a request's completions it is) are unique together.
#
# ```python
# # max_tokens=8; A has a prompt of 10 tokens and writes 3; B has 4 and writes 1. Tokens of each step:
# [{"A": 8}, {"A": 2, "B": 4}, {"A": 1}, {"A": 1}]
# ```


# %% tags=["exercise:4.7"]
class DecodesFirst(Policy):
    def __init__(self, max_tokens):
        self.max_tokens = max_tokens

    def rank(self, sequence):
        return (sequence.arrival_order, sequence.index)  # SOLUTION: first come, first served

    def plan(self, step):
        room = self.max_tokens
        prefills = []
        for sequence in step.running:
            if sequence.is_decoding:  # SOLUTION: is it writing already?
                room -= int(step.decode(sequence))  # SOLUTION `step.decode(sequence)`: the move for one that writes
            else:
                prefills.append(sequence)
        for sequence in prefills:
            room -= step.prefill(sequence, room)  # SOLUTION `step.prefill(sequence, room)`: the move for a prefill
        for sequence in step.waiting:
            num_tokens = step.admit(sequence, room)  # SOLUTION: the move for a newcomer; how many tokens it got
            if not num_tokens:
                break
            room -= num_tokens


# %%
check("4.7")

# %% [markdown]
# Now the real engine and the real model run on it. Six prompts of different lengths are given at once, to your policy
# and to the engine's default. A scheduler decides when a token is computed, never which: the texts must be equal.

# %%
# NBVAL_CHECK_OUTPUT
my_policy = use("4.7")
openings = [
    "The sea was",
    "Once upon a time",
    "A list of rivers:",
    "In the year 1969",
    "Two plus two",
    "My neighbour's cat",
]
openings = [text + " and so on" * (12 * i) for i, text in enumerate(openings)]
greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
llm = smollm2_engine()
by_default = llm.generate(openings, greedy, use_tqdm=False)
num_before = len(llm.engine.trace)
llm.scheduler.policy = my_policy(max_tokens=24)
by_mine = llm.generate(openings, greedy, use_tqdm=False)
steps = llm.engine.trace[num_before:]
same = [a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in zip(by_default, by_mine, strict=True)]
print(f"texts equal: {same}")
print(f"{len(steps)} steps; the largest has {max(map(num_tokens, steps))} tokens")

# %%
draw_batch_composition(steps, token_budget=24)
plt.show()

# %% [markdown]
# **Read the result.** Every step is full to the brim, up to the line, as long as there are prompts; decodes lie at the
# bottom of each, more of them as prompts get done; at the end only decodes are left. The default policy would have
# computed all six prompts in one long first step. `LLM(policy=DecodesFirst(24))` starts an engine with your policy
# from the beginning; here the policies take turns on one engine, which is allowed while it is idle.

# %% [markdown]
# ## 5. Swim lanes
#
# *Needs: CPU, and the model.*
#
# What does an order do to the people behind the requests? A **swim lane** has a row per request: when it waited, when
# its prompt was computed, when it wrote. First on paper, where times are round; then from real traces.
#
# A model of costs for the paper version: a step takes 1 ms for each prompt token and 10 ms for each decode, and
# nothing else. A has a prompt of 300 tokens, thus 300 ms, and B one of 20. A comes at 0 and B at 50 ms. A's prefill is
# *run to completion*: a step that has begun is not interrupted, and A's prompt is one step.

# %% [markdown]
# <!-- card 4.8 -->
# What is B's **time to first token** in milliseconds? After A's prefill, B's is next, and nothing runs beside it. The
# first token is there when the prefill is over, and a user counts from the moment of asking.

# %% tags=["exercise:4.8"]
answer_4_8 = 270  # SOLUTION: milliseconds

# %%
check("4.8")

# %%
# NBVAL_CHECK_OUTPUT
on_paper = StepCost(prompt_token_s=0.001, decode_s=0.010)
two = [TimedRequest("A", 0.0, 300, 6), TimedRequest("B", 0.050, 20, 4)]
paper = {
    "A's request to its end": StaticPolicy(1),
    "prefills first": PrefillFirstPolicy(),
    "chunks of 50": my_policy(max_tokens=50),
}
lanes = {name: play(policy, two, on_paper) for name, policy in paper.items()}
for name, run in lanes.items():
    a, b = run.records
    gap_ms, ttft_ms = 1000 * max(a.itls_s), 1000 * b.ttft_s
    print(f"{name:23}: first token of B after {ttft_ms:.0f} ms, longest gap of A {gap_ms:.0f} ms")

# %%
for name, run in lanes.items():
    draw_swim_lanes(run.records, run.steps, title=name, milliseconds=True)
    plt.show()

# %% [markdown]
# **Read the result.** You'll find this example printed with 300 ms, which is when A's prefill ends; B came 50 ms
# after the clock started, and its own 20 ms come on top.
#
# Two things may surprise you. Serving A's whole *request* first (top) costs B little here, because A writes little;
# B pays for every token that A writes. And chunks (bottom) did nothing for B! In order of arrival the rest of A's
# prompt comes before B's, in one piece or in six. **Chunks do not shorten a queue.** What they bound is the time
# between two decisions, and so the gap of everybody who is already writing. For that there must be somebody writing.

# %% [markdown]
# **Now for real**: the scene of the beginning, five readers who come while somebody writes, each with 112 prompt
# tokens, arriving faster than this machine can read them.
#
# 1. *Run to completion*: one request after the other.
# 2. *Pause decodes for prefills*: prompts first.
# 3. *Chunked*: your policy, at most 32 tokens a step.

# %% [markdown]
# <!-- card 4.9 -->
# **Think first.** The writer's longest gap under policy 2, divided by its usual gap under policy 3 while prompts are
# being read: what factor do you expect? You need token counts and this machine's pace. A factor of 2 counts as close.

# %%
print(f"a prompt token takes {1000 * here.prompt_token_s:.1f} ms, a decode alone {1000 * here.decode_s:.0f} ms")

# %% tags=["exercise:4.9"]
readers_s, chunk_s = 5 * 112 * pace().prompt_token_s, CHUNK * pace().prompt_token_s + pace().decode_s
guess_4_9 = readers_s / chunk_s  # SOLUTION: times as long; a number will do

# %%
check("4.9")

# %%
chunked = run_on_engine(my_policy(CHUNK), crowd)
real = {
    "1. run to completion, one request after the other": run_on_engine(StaticPolicy(1), crowd),
    "2. pause decodes for prefills": prompts_first,
    f"3. chunked: decodes first, at most {CHUNK} tokens a step": chunked,
}
for name, run in real.items():
    draw_swim_lanes(run.records, run.steps, title=name)
    plt.show()

# %%
for name, run in real.items():
    writer, *readers = run.records
    longest_ms = 1000 * max(writer.itls_s)
    print(f"{name}\n    the writer: longest gap {longest_ms:5.0f} ms, done after {writer.latency_s:.2f} s")
    print(f"    readers: first tokens after {', '.join(f'{r.ttft_s:.1f}' for r in readers)} s")


# %%
def usual_gap_s(run):
    """The writer's median gap while prompts are being read."""
    writer, *readers = run.records
    last_read_s = max(reader.token_times_s[0] for reader in readers)
    times_s = [t for t in writer.token_times_s if readers[0].arrival_s <= t <= last_read_s]
    return statistics.median(later - earlier for earlier, later in pairwise(times_s))


measured("4.9", max(prompts_first.records[0].itls_s) / usual_gap_s(chunked))

# %% [markdown]
# **Read the result.**
#
# 1. The writer never stops, and the readers wait until it is done, though there are seats and blocks for all of them:
#    static batching once more, with batches of one.
# 2. The grey stretch is *starvation*. The writer holds its blocks and its seat, and gets nothing for as long as there
#    is a prompt in the queue. Five prompts made this pause; if they kept coming faster than they are read, it would
#    never end. The readers have the earliest first tokens of the three (those who were there together were read in
#    one step), and then stand still as well.
# 3. Nobody stops. Each of the writer's gaps is one step, and a step has a bound. The readers pay for it: their first
#    tokens come later than under 2, since every step has decodes in it, and a fixed cost.
#
# The bound can be checked in the trace, step by step.


# %%
# NBVAL_CHECK_OUTPUT
def decodes_stand_still(step, previous):
    """Whether somebody who could have written got no token in this step."""
    computed = {(name, index) for name, index, _, _ in step.chunks[: step.num_decodes]}
    wrote = {(name, index) for name, index, _, _ in previous.chunks[: previous.num_decodes]}
    return bool(wrote - set(previous.finished) - computed)


for name, run in real.items():
    stalls = any(decodes_stand_still(step, previous) for previous, step in pairwise(run.steps))
    is_bounded = max(map(num_tokens, run.steps)) <= CHUNK
    print(f"{name[0]}: no step above {CHUNK} tokens: {is_bounded!s:5}  somebody who was writing got nothing: {stalls}")

# %% [markdown]
# **How large should a chunk be?** The same scene with other bounds. A small chunk means short steps; but every step
# reads the weights once and starts a few hundred operations, and a prompt in many chunks pays for that many times.

# %%
print("at most    steps   writer's usual gap   last reader's first token   everything done")
for max_tokens in (8, CHUNK, 128):
    run = chunked if max_tokens == CHUNK else run_on_engine(my_policy(max_tokens), crowd)
    readers, gap_ms = run.records[1:], 1000 * usual_gap_s(run)
    ttft_s, done_s = max(r.ttft_s for r in readers), max(r.finished_s for r in run.records) - run.window[0]
    print(f"{max_tokens:>7} {len(run.steps):>8} {gap_ms:>17.0f} ms {ttft_s:>22.2f} s {done_s:>17.2f} s")

# %% [markdown]
# **Read the result.** Downwards the gap grows with the chunk, and the whole becomes quicker, up to a point: when a
# step is long enough to be bound by arithmetic, a longer one saves nothing more. The best chunk is the largest whose
# step is short enough for those who are reading along; on GPUs typical values are 512 to 2,048 tokens. It depends on
# the machine, so it is measured, like here.
#
# **Play.** Other policies from `twophase.scheduling.policies`; `PrefillFirstPolicy(max_stalled_steps=1)`; readers with
# longer prompts, or twice as many.

# %% [markdown]
# ## 6. What a user feels, in numbers
#
# *Needs: CPU, and the model.*
#
# A picture does not fit on a dashboard. What an engine gives is a list of events, and from these every number is
# computed that is ever said about its speed:
#
# - **TTFT**, time to first token: from the arrival to the first token. Queue, prefill, everything.
# - **ITL**, inter-token latency: each gap between two tokens of a request. A value per gap.
# - **TPOT**, time per output token: the mean of a request's gaps. A value per request.
# - **Throughput**: tokens, or requests, per second, of all users together.
# - **Goodput**: requests per second *that kept their promise*, the service-level objective (SLO), say a first token
#   within 1 s and a TPOT of at most 100 ms. Throughput that came too late is none (DistServe, arXiv:2401.09670).

# %%
# NBVAL_CHECK_OUTPUT
events = [
    (0.0, "A", "arrival"), (0.1, "A", "start"), (0.4, "B", "arrival"), (0.5, "A", "token"), (0.7, "A", "token"),
    (0.7, "B", "start"), (1.3, "B", "token"), (1.3, "A", "token"), (1.3, "A", "end"), (1.3, "B", "end"),
]  # fmt: skip
for name in "AB":
    print(name, "  ".join(f"{what} {time_s}" for time_s, who, what in events if who == name))

# %% [markdown]
# **Think first.** A's TTFT is 0.5 s. What is B's, and how many inter-token latencies has B? A's last gap is three
# times its first; what came in between?

# %% [markdown]
# <!-- card 4.10 -->
# Events are (time in s, request, what), in order of time; 'what' is 'arrival', 'start' (of its first step), 'token' or
# 'end'. For each request that arrived: `ttft_s`, None without a token; `itls_s`, a list; `tpot_s`, the mean of that
# list, None if it is empty.
#
# ```python
# >>> latencies([(0.0, "A", "arrival"), (2.0, "A", "token"), (3.0, "A", "token"), (5.0, "A", "token")])
# {'A': {'ttft_s': 2.0, 'itls_s': [1.0, 2.0], 'tpot_s': 1.5}}
# ```


# %% tags=["exercise:4.10"]
def latencies(events):
    arrived, tokens_of = {}, {}
    for time_s, name, what in events:
        if what == "arrival":
            arrived[name], tokens_of[name] = time_s, []
        elif what == "token":
            tokens_of[name].append(time_s)
    result = {}
    for name, arrived_s in arrived.items():
        tokens = tokens_of[name]  # when its tokens came
        ttft_s = tokens[0] - arrived_s if tokens else None  # SOLUTION: time to first token, or None
        gaps = [later - earlier for earlier, later in pairwise(tokens)]  # SOLUTION: the inter-token latencies
        tpot_s = sum(gaps) / len(gaps) if gaps else None  # SOLUTION: their mean, or None
        result[name] = {"ttft_s": ttft_s, "itls_s": gaps, "tpot_s": tpot_s}
    return result


# %%
check("4.10")

# %% [markdown]
# The engine computes these for itself; `RequestRecord` is its own book. Yours from the events of the chunked run, and
# the engine's, side by side.


# %%
# NBVAL_CHECK_OUTPUT
def events_of(records):
    events = []
    for r in records:
        events += [(r.arrival_s, r.request_id, "arrival"), (r.first_scheduled_s, r.request_id, "start")]
        events += [(t, r.request_id, "token") for t in r.token_times_s] + [(r.finished_s, r.request_id, "end")]
    return sorted(events, key=lambda event: event[0])


latencies_of = use("4.10")
mine = latencies_of(events_of(chunked.records))
print("TTFT equal:", all(mine[r.request_id]["ttft_s"] == r.ttft_s for r in chunked.records))
print("gaps equal:", all(tuple(mine[r.request_id]["itls_s"]) == r.itls_s for r in chunked.records))
print("TPOT equal:", all(abs(mine[r.request_id]["tpot_s"] - r.tpot_s) < 1e-9 for r in chunked.records))

# %% [markdown]
# **Percentiles.** A thousand users, a thousand TTFTs. The mean is nobody's. The 50th percentile, p50 or median, is the
# value that half of them stay below. p99 is what the slowest hundredth gets *at least*; who sends a hundred requests a
# day meets it once a day. Sorted, n values lie at positions 0 to n - 1; the p-th percentile lies at position
# (n - 1) p / 100, between two values if need be.

# %% [markdown]
# <!-- card 4.11 -->
# `percentile` interpolates linearly between the two neighbours, as numpy does, and raises `ValueError` outside of 0 to
# 100. `goodput` takes results like those of 4.10, as a list, and counts the requests per second that kept both limits;
# exactly at a limit is kept. Without a first token nothing is kept; without a gap there is none too long.
#
# ```python
# percentile([4, 1, 3, 2], 90) == 3.7            # position 2.7: 0.7 of the way from 3 to 4
# goodput([{"ttft_s": 0.5, "tpot_s": 0.05}], max_ttft_s=1, max_tpot_s=0.1, window_s=10) == 0.1
# ```


# %% tags=["exercise:4.11"]
def percentile(values, percent):
    if not 0 <= percent <= 100:
        raise ValueError(f"a percentile is in 0 to 100, got {percent}")
    in_order = sorted(values)  # SOLUTION: the values as a percentile needs them
    position = (len(in_order) - 1) * percent / 100  # SOLUTION: where it lies, counted from 0
    below = int(position)
    above = min(below + 1, len(in_order) - 1)
    return in_order[below] + (position - below) * (in_order[above] - in_order[below])  # SOLUTION: the value there


def goodput(requests, max_ttft_s, max_tpot_s, window_s):
    kept = 0
    for request in requests:
        ttft_s, tpot_s = request["ttft_s"], request["tpot_s"]
        is_soon = ttft_s is not None and ttft_s <= max_ttft_s  # SOLUTION: was its first token in time?
        is_smooth = tpot_s is None or tpot_s <= max_tpot_s  # SOLUTION: were its gaps short enough?
        kept += is_soon and is_smooth
    return kept / window_s  # SOLUTION: requests per second


# %%
check("4.11")

# %% [markdown]
# **Average fine, tail not.** The writer of section 5, under policies 2 and 3: its mean gap, and its tail.

# %%
percentile_of, goodput_of = use("4.11")
for name, run in list(real.items())[1:]:
    gaps_ms = [1000 * gap_s for gap_s in latencies_of(events_of(run.records))["writer"]["itls_s"]]
    p50, p95, p99 = (percentile_of(gaps_ms, p) for p in (50, 95, 99))
    mean = sum(gaps_ms) / len(gaps_ms)
    print(f"{name:54}: mean {mean:4.0f}  p50 {p50:4.0f}  p95 {p95:4.0f}  p99 {p99:5.0f} ms")

# %% [markdown]
# Between the writer's first token and its last nearly the same work is done under both policies, so the means, which
# are its TPOT, lie closer together than the policies do. The p99 tells them apart at a glance.

# %% [markdown]
# <!-- card 4.12 -->
# An answer has 100 tokens. All its gaps are 20 ms but one, a pause of 2 s in the middle of a sentence. What is its
# TPOT in milliseconds? (And would an alarm at '50 ms TPOT' have rung?)

# %% tags=["exercise:4.12"]
answer_4_12 = 40  # SOLUTION: milliseconds

# %%
check("4.12")

# %% [markdown]
# **More load.** Now many users; on the virtual clock, at the pace measured on this machine, so that it takes no
# minutes. `play` runs the engine's scheduler with your policy on 600 short chats in 16 seats, arriving at random, at
# more and more requests per second. The rates are shares of what the same engine does when nobody ever waits for work,
# which the first cell finds out by sending all at once.

# %%
costs = StepCost(0.9 * here.decode_s, here.prompt_token_s, 0.1 * here.decode_s)  # a rough split; section 10 fits it
flood = play(my_policy(128), short_chats(600, rate_per_s=1e6), costs, max_num_seqs=16).records
capacity = len(flood) / max(record.finished_s for record in flood)
print(f"all at once: {capacity:.2f} requests/s, on the virtual clock")

# %%
by_load = {}
for share in (0.3, 0.5, 0.7, 0.8, 0.9, 1.0):
    chats = short_chats(600, share * capacity)
    by_load[share] = play(my_policy(128), chats, costs, max_num_seqs=16).records
limit_ttft_s = 2.5 * percentile_of([record.ttft_s for record in by_load[0.3]], 50)
limit_tpot_s = 2.5 * percentile_of([record.tpot_s for record in by_load[0.3]], 50)
print(f"the promise: first token in {limit_ttft_s:.2f} s, TPOT at most {1000 * limit_tpot_s:.0f} ms")

# %%
print("load   throughput    TTFT: mean      p50      p95      p99    TPOT mean   goodput")
for share, records in by_load.items():
    ttfts, told = [r.ttft_s for r in records], latencies_of(events_of(records)).values()
    end_s = max(r.finished_s for r in records)
    p50, p95, p99 = (percentile_of(ttfts, p) for p in (50, 95, 99))
    tpot_ms = 1000 * sum(r.tpot_s for r in records) / len(records)
    good = goodput_of(list(told), limit_ttft_s, limit_tpot_s, end_s)
    print(f"{share:4.0%} {len(records) / end_s:8.2f} /s {sum(ttfts) / len(ttfts):12.2f} s {p50:6.2f} s {p95:6.2f} s "
          f"{p99:6.2f} s {tpot_ms:8.0f} ms {good:7.2f} /s")  # fmt: skip

# %%
draw_percentile_curves({f"load {share:.0%}": by_load[share] for share in (0.3, 0.7, 0.9)})
plt.show()

# %% [markdown]
# **Read the result.** From row to row the throughput rises, and whoever watches only that is content. The mean TTFT
# follows slowly; p99 leaves first, because the slowest hundredth are those who came behind a crowd. (The p99 of 600
# values rests on the six largest: a rough number. For a p99 you can trust, count thousands.) And
# somewhere below full load the goodput *falls* while the throughput still rises: the machine works hard at answers
# that come too late. The best operating point is the top of the goodput, not of the throughput.

# %% [markdown]
# <!-- card 4.13 -->
# Five complaints, five numbers. Which one would have shown it first? One letter for each.
#
# - (a) TTFT
# - (b) TPOT
# - (c) p99 of the inter-token latency
# - (d) throughput
# - (e) goodput under the SLO

# %% tags=["exercise:4.13"]
answer_4_13 = {
    "nothing appears for a long time, then it goes fast": "a",  # SOLUTION `"a"`: a letter
    "the text stops in mid-sentence, now and then, and goes on": "c",  # SOLUTION `"c"`: a letter
    "the text comes evenly, but slower than one reads": "b",  # SOLUTION `"b"`: a letter
    "the machine is busy, and hardly anybody gets what was promised": "e",  # SOLUTION `"e"`: a letter
    "a night's batch of a million summaries takes until noon": "d",  # SOLUTION `"d"`: a letter
}

# %%
check("4.13")

# %% [markdown]
# So far there was always memory enough. Section 7 takes it away.
