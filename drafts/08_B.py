# %% [markdown]
# ## 1. Five incidents
# <!-- minutes: 22 -->
#
# A service runs Llama-3-8B on NVIDIA L4s. Its requests chat, bring documents, or want JSON. Ordinary hours look like
# the column *healthy* below. In each of the other five columns something has gone wrong. The hours are simulated: the
# engine's scheduler, blocks and policies are the real ones, a step takes as long as a roofline of the L4 says, and a
# client that gets no valid JSON asks again. The monitoring system scrapes a sample every five seconds, and also asks
# the model for needles in long texts. (Whether a needle is found or JSON is valid is drawn at random, at about the
# rates that SmolLM2 shows at the end of this section.)

# %% tags=["setup"]
from twophase_labs.operations import costs, dashboards

# %%
dashboards.draw_dashboards()

# %% [markdown]
# **Think first.** Each column differs from *healthy* in some rows. Which row shows what went wrong *first*, and which
# rows only follow from it? A late first token (row c) may have many causes, so it is evidence for none of them.

# %% [markdown]
# <!-- card 8.5 -->
# For each column choose the row that shows the *cause*, by its letter in the picture (`a` to `h`).


# %% tags=["exercise:8.5"]
answer_8_5 = {
    "A": "f",  # SOLUTION: a row
    "B": "d",  # SOLUTION: a row
    "C": "e",  # SOLUTION: a row
    "D": "h",  # SOLUTION: a row
    "E": "g",  # SOLUTION: a row
}

# %%
check("8.5")

# %% [markdown]
# ### A diagnosis that a machine makes
#
# At three in the morning nobody looks at pictures first. Write down what you did as a function. It gets two lists of
# samples: the minute before the alarm, and a minute in which the same service was healthy. A sample is a dict:

# %%
for name, value in dashboards.window("A")[-1].items():
    print(f"{name:30} {value if value is None else round(value, 3)}")

# %% [markdown]
# What ends in `_total` is a counter: it counts from the start of the process and never falls. The others are gauges, of
# this moment or of the last five seconds; `None` says that there was nothing to measure. Metrics of latency come from
# histograms, those of needles and JSON from probes and from the clients.

# %% [markdown]
# <!-- card 8.6 -->
# Name the cause. The check runs hours that you have not seen: the same causes in other sizes, on another GPU, busy and
# quiet hours.


# %% tags=["exercise:8.6"]
def diagnose(window, healthy):
    """The cause of an incident: 'healthy' (there is none), 'kv' (the pool of K/V blocks is full), 'batching' (whole
    prompts hold up decodes), 'retrieval' (needles in long texts are lost), 'format' (JSON is invalid, and clients ask
    again) or 'transfer' (K and V come late from the other GPU).

    window: samples, dicts, oldest first, every 5 seconds. healthy: samples of the same service in a healthy minute.
    Counters end in `_total` and count from some start before the window, in tokens, answers or requests; gauges may be
    None. Where one trouble causes another, name the first: retries can fill a pool. One odd sample is no incident.

    >>> diagnose(dashboards.window("healthy"), dashboards.window("healthy"))
    'healthy'
    >>> diagnose(dashboards.window("B"), dashboards.window("healthy"))
    'batching'
    """

    # BEGIN SOLUTION: evidence of causes first, then what follows from them
    def share(samples, part, whole):
        rose = samples[-1][whole] - samples[0][whole]
        return (samples[-1][part] - samples[0][part]) / rose if rose else 0.0

    def usual(samples, name):
        known = sorted(sample[name] for sample in samples if sample[name] is not None)
        return known[len(known) // 2] if known else 0.0

    invalid, found = ("json_invalid_total", "json_total"), ("long_needles_found_total", "long_needles_total")
    if share(window, *invalid) > share(healthy, *invalid) + 0.2:
        return "format"
    if share(window, *found) < share(healthy, *found) - 0.15:
        return "retrieval"
    if usual(window, "transfer_p99_s") > 3 * usual(healthy, "transfer_p99_s"):
        return "transfer"
    if usual(window, "kv_usage") > max(0.85, usual(healthy, "kv_usage")):
        return "kv"
    if usual(window, "itl_p99_s") > 1.5 * usual(healthy, "itl_p99_s"):
        return "batching"
    return "healthy"
    # END SOLUTION


# %%
check("8.6")

# %%
# NBVAL_CHECK_OUTPUT
diagnose = use("8.6")
for name in "ABCDE":
    ordinary = dashboards.window("healthy, apart" if name == "D" else "healthy")
    print(name, diagnose(dashboards.window(name), ordinary))

# %% [markdown]
# ### The cures, measured

# %% [markdown]
# <!-- card 8.55 -->
# Which cure fits which column? **a** limit the answers (`max_tokens`) · **b** compute prompts in chunks beside the
# decodes · **c** a faster link, or both phases on each GPU · **d** a mask from a grammar · **e** more bits for K and V,
# behind a gate that asks for needles in long texts


# %% tags=["exercise:8.55"]
answer_8_55 = {
    "A": "d",  # SOLUTION: a cure
    "B": "b",  # SOLUTION: a cure
    "C": "a",  # SOLUTION: a cure
    "D": "c",  # SOLUTION: a cure
    "E": "e",  # SOLUTION: a cure
}

# %%
check("8.55")

# %% [markdown]
# Each incident once more, with its cure: the same requests at the same times.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.operations import cures

for cause in ("kv", "batching", "format", "transfer"):
    print(cures.lines(cause))

# %% [markdown]
# **Read the result.** *C*: the answers became six times as long, so each holds its blocks six times as long, and the
# pool is full. Reserving the worst case ends the preemptions and makes the queue longer: nothing but shorter answers,
# or more memory, makes room for this traffic. *B*: TTFT is as before, yet the gaps between tokens are several times as
# long; chunks bring them back. *A*: no step is slower than before; clients wait because they ask up to five times. *D*:
# nothing in the engines is slow, and the gaps between tokens are the shortest of all; the link is what requests wait
# for. Two GPUs that do both phases need no link: their gaps grow by the chunks, and their first tokens come sooner than
# over the fast link. Ask first whether chunks are not enough.

# %% [markdown]
# *E* has no cure in the scheduler: its latencies are healthy. Here are slices of quality, on SmolLM2. First needles,
# with K and V kept in 16 bits and in fewer (a scale per token and head):

# %%
from twophase_labs.operations import probes

for num_hay in (probes.SHORT, probes.LONG):
    found = {bits: probes.needles(num_hay, bits) for bits in (16, 4, 3)}
    print(f"{num_hay:5,} tokens:", ", ".join(f"{bits} bits {n} of {of} found" for bits, (n, of) in found.items()))

# %% [markdown]
# Then JSON, with the weights as they are, in 4 bits (symmetric groups of 32), and in 4 bits with a grammar's mask:

# %%
for name, quantization, guided in (
    ("16 bits", None, False),
    ("4 bits", "int4_sym", False),
    ("masked", "int4_sym", True),
):
    valid, asked = probes.valid_json(quantization, guided)
    print(f"{name:8} {valid} of {asked} answers are valid JSON")

# %% [markdown]
# **Read the result.** A mean over all tasks would hide both. The 3-bit cache loses needles in the long text and none in
# the short one; the 4-bit weights break the format, and the mask holds it. A gate has to ask in slices, and
# production has to go on asking: traffic changes, and so does what it needs.

# %% [markdown]
# > **In production, 2026.** vLLM [exports](https://docs.vllm.ai/en/stable/usage/metrics/) what the rows show:
# > `vllm:kv_cache_usage_perc`, `vllm:num_preemptions_total`, `vllm:inter_token_latency_seconds`, and the histogram
# > `vllm:iteration_tokens_total`, in which whole prompts stand out. Its
# > [guide](https://docs.vllm.ai/en/v0.17.1/configuration/optimization/) names what to do about preemptions: raise
# > `gpu_memory_utilization`, lower `max_num_seqs` or `max_num_batched_tokens`, or raise `tensor_parallel_size`. No
# > engine exports needles or valid JSON: probes and clients have to.
#
# **Takeaway.** Five incidents, five different rows, and four of them are no latencies. The cure that fits the cause
# takes p99 of TTFT from 171 to 1.6 s (C), p99 of ITL from 601 to 107 ms (B), p99 of a JSON task from 24.3 to 9.1 s (A).

# %% [markdown]
# ## 2. Out of memory, in nine steps
# <!-- minutes: 10 -->
#
# The same GPU gets a new task: eight requests at a time, each with 12,000 tokens of retrieved text and an answer of
# 1,000. The planner (`twophase plan`, lab 7) says what that takes:

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.operations import triage as memory

print(memory.split_line())
for name, step in memory.STEPS.items():
    won = memory.missing() - memory.missing([name])
    print(f"{name:18} wins {won / 1e9:5.2f} GB, harm {step.harm}: {step.what}")

# %% [markdown]
# **Think first.** The list is in the usual order: first the input, the output and the size of a step, then bits, then
# concurrency, the host and hardware. The harm is a judgement of the owners of this service, in points. What each wins
# is the planner's, taken alone. Why do these numbers not add up?

# %% [markdown]
# <!-- card 8.7 -->
# Write the triage: what to do, in which order, until it fits.


# %% tags=["exercise:8.7"]
def triage(harm, missing):
    """The steps to take, names in the order of taking them; None if all of them are not enough.

    harm: points of each step, by name. missing(names): bytes that are missing with these steps taken (a list of names,
    in any order); 0 or below: it fits.

    While bytes are missing, take the step that wins most of the missing bytes per point of harm as things stand *now*.
    Bytes beyond the missing ones count for nothing, a step that wins nothing is not taken, of equals the first in
    `harm` is. In the end give back: in the order taken, drop each step without which it fits as well.

    >>> triage({"a": 1, "b": 4}, lambda names: 10 - 4 * ("a" in names) - 40 * ("b" in names))
    ['b']
    >>> triage({"a": 1, "b": 2}, lambda names: 10 - 3 * len(names)) is None
    True
    """
    # BEGIN SOLUTION: a list of names, or None
    taken = []
    while (short := missing(taken)) > 0:
        won = {name: short - missing([*taken, name]) for name in harm if name not in taken}
        won = {name: each for name, each in won.items() if each > 0}
        if not won:
            return None
        taken.append(max(won, key=lambda name: min(won[name], short) / harm[name]))
    for name in list(taken):
        without = [other for other in taken if other != name]
        if missing(without) <= 0:
            taken = without
    return taken
    # END SOLUTION


# %%
check("8.7")

# %%
# NBVAL_CHECK_OUTPUT
triage = use("8.7")
chosen = triage(memory.HARM, memory.missing)
print(chosen, "harm", sum(memory.HARM[name] for name in chosen))
print(memory.split_line(chosen))
cheapest, names = memory.least_harm()
print(f"of all {2 ** len(memory.HARM)} sets of steps, the least harm that fits: {cheapest}, by {', '.join(names)}")

# %%
usual = ["shorter prompts", "shorter answers", "smaller chunks", "K/V in 8 bits"]
memory.draw_triage({"yours": chosen, "in the usual order": usual, "hardware at once": ["a second GPU"]})

# %% [markdown]
# **Read the result.** Bits in the weights and fewer tokens in the prompt are enough; the two small steps that the rule
# took on the way are given back. The usual order gets there as well, with more steps and more harm. A rule that looks
# one step ahead is not always the best of all sets; here it does as little harm as any.

# %% [markdown]
# > **In production, 2026.** SGLang's [list](https://docs.sglang.io/references/faq.html) for a GPU that runs out of
# > memory: in prefill a smaller `--chunked-prefill-size`, in decode fewer `--max-running-requests`, and a smaller
# > `--mem-fraction-static` for both. These save a *step's* arrays, the part that the planner calls workspace. What the
# > pool lacks they do not bring: vLLM's `--max-model-len`, `--kv-cache-dtype fp8` and `--quantization` do.
#
# **Takeaway.** 9.31 GB were missing on a GPU of 24 GB: 8-bit weights (7.50 GB) and shorter prompts (5.25 GB) make it
# fit at 4 points of harm, where a second GPU costs 9.

# %% [markdown]
# ## 3. Degrade before failing
# <!-- minutes: 13 -->
#
# Incident *C* again, with more traffic. An engine left to itself fails all requests a little: it preempts, it
# queues, and most clients go away before their first token. A front end can fail *some things on purpose* instead,
# mild ones first. It looks at the engine once a second and sets a level:

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.operations import overload as flood

for level, rung in enumerate(flood.RUNGS):
    print(level, rung)
alone = flood.overload(None)
print(alone.line)

# %% [markdown]
# **Think first.** A level must rise before the pool is full, for blocks come back only when answers end. Why must it
# not fall as soon as the pool is below the same mark?

# %% [markdown]
# <!-- card 8.8 -->
# Write the ladder. The front end asks `look` about once a second and does what the level says.


# %% tags=["exercise:8.8"]
class Ladder:
    """`Ladder()`: which rung the front end stands on, 0 (as always) to 4.

    look(now_s, kv_usage, queue_age_s): the level from now on. kv_usage is the share of the blocks in use, queue_age_s
        how many seconds the oldest request without a token has waited.

    Pressure is a K/V use of 0.85 or more, or a queue age of 2 seconds or more: one rung up, at the latest after five
    seconds of it, and at least two seconds after the rung before. Calm is a K/V use below 0.70 *and* a queue age below
    1 second: one rung down after each 10 seconds of unbroken calm. In between nothing changes.

    >>> ladder = Ladder()
    >>> [ladder.look(now_s, 0.9, 0.0) for now_s in range(12)][-1] >= 2
    True
    >>> [Ladder().look(0.0, usage, 0.0) for usage in (0.3, 0.8)]
    [0, 0]
    """

    # BEGIN SOLUTION: __init__ and look
    def __init__(self):
        self.level, self.raised_s, self.calm_s = 0, float("-inf"), None

    def look(self, now_s, kv_usage, queue_age_s):
        is_calm = kv_usage < 0.70 and queue_age_s < 1
        if not is_calm:
            self.calm_s = None
        elif self.calm_s is None:
            self.calm_s = now_s
        if kv_usage >= 0.85 or queue_age_s >= 2:
            if now_s - self.raised_s >= 2 and self.level < 4:
                self.level, self.raised_s = self.level + 1, now_s
        elif is_calm and now_s - self.calm_s >= 10 and self.level > 0:
            self.level, self.calm_s = self.level - 1, now_s
        return self.level

    # END SOLUTION


# %%
check("8.8")

# %%
# NBVAL_CHECK_OUTPUT
Ladder = use("8.8")
runs = {"left to itself": alone, "your ladder": flood.overload(Ladder().look)}
runs["all rungs, always"] = flood.overload(lambda *look: 4)
for name, run in runs.items():
    print(f"{name:18} {run.line}")
print(f"{'a usual hour':18} {flood.overload(Ladder().look, flood.USUAL).line}")

# %%
cures.draw_ladder({name: runs[name] for name in ("left to itself", "your ladder")})

# %% [markdown]
# **Read the result.** The ladder answers several times as many requests within the SLO (a first token within 5 s, 120
# ms per token), and nothing is preempted. The price stands in the same line: 169 answers are cut at 200 tokens, and
# 25 documents are refused, at once and with a reason, so that their clients can come back. All rungs at all times
# serve no more, and refuse more. In a usual hour the ladder does nothing.
#
# One more thing shows in the picture. After the first minute less than half of the pool is in use, and spikes of queue
# age keep the level at 2 or 3: smaller chunks leave prompts less room in each step. A rung can cause the pressure that
# holds it, so watch what each rung costs.
#
# **Open the engine.** What it does when nothing degrades before it: when a decode finds no block, the running sequence
# of worst rank loses its own.

# %%
from twophase.scheduling.step import StepBuilder
from twophase_labs.kit.open_engine import show_source

show_source(StepBuilder.decode)

# %% [markdown]
# **Question.** A sliding window with sinks (lab 5) would free blocks as well. Why is level 4 a shorter *prompt* for
# newcomers, and not a window for the sequences that run?
#
# <details><summary>Answer</summary>
#
# The engine's window is fixed when it opens: all sequences have it, and the model is asked to work with it from the
# first token on. What a running sequence has read through all keys cannot be made to have read it through a window. A
# front end can only shorten what has not been computed yet: the beginning (instructions) and the end (the question) of
# a prompt are what sinks and window keep.
# </details>

# %% [markdown]
# > **In production, 2026.** Engines queue without end unless told otherwise; limits belong to what stands before them.
# > [Ray Serve](https://docs.ray.io/en/master/serve/api/doc/ray.serve.config.BackpressureConfig.html) refuses beyond
# > `max_queued_requests`, with 503 or 429 and a `Retry-After`. SGLang's
# > [gateway](https://raw.githubusercontent.com/smg-project/smg-docs/main/src/lib/content/concepts/reliability/overload-protection.md)
# > takes a worker out of routing above a ceiling of queued requests or K/V use, and answers 503 with `Retry-After` when
# > all are. Both shed load; rungs that make answers shorter first are yours to build.
#
# **Takeaway.** In a flood of answers six times as long as planned, the ladder raises the requests within the SLO from
# 0.51 to 2.08 per second, of 2.28 that arrive, without a preemption; it cuts answers and refuses 25 documents for it.

# %% [markdown]
# ## 4. What does a token cost?
# <!-- minutes: 10 + 2 -->
#
# A GPU is paid by the hour, whether a token is read, written, cached, drafted in vain or generated twice. To know what
# a *request* costs, share out the seconds of each step among the chunks in it, so that nothing is lost: the shares add
# up to the step, and the steps to the bill.

# %% [markdown]
# **Think first.** A step has 20 decodes and a chunk of 512 prompt tokens. The weights are read once for all of them.
# Should the chunk pay for 512 parts of 532, or for one of 21?

# %% [markdown]
# A chunk causes three things: *arithmetic*, which grows with its tokens; reads and writes of its own *K and V*; and the
# reading of the *weights*, which it would cause alone as well. The first two are its own. The weights are shared
# equally by the chunks of the step: each would have had to read them once.

# %% [markdown]
# <!-- card 8.9 -->
# `machine` has `flops_per_s` and `bytes_per_s` (what it reaches), `weight_bytes`, `flops_per_token` (products with the
# weights), `flops_per_key` (attention of one query to one key) and `kv_bytes_per_token`.
#
# For each chunk: seconds of its arithmetic, plus seconds of its bytes (its part of the weights included). Then scale
# all of them so that they add up to the step.


# %% tags=["exercise:8.9"]
def share_step(chunks, step_s, machine):
    """Seconds of a step that each of its chunks has to pay; together `step_s`.

    chunks: (start, count) of each: it computes the tokens at positions start to start + count - 1 of its sequence. The
    token at position p meets p + 1 keys. A chunk reads K and V of start + count tokens once, and writes those of count.

    >>> [round(seconds, 3) for seconds in share_step([(9, 1), (9, 1)], 0.06, costs.L4)]
    [0.03, 0.03]
    >>> [round(seconds, 3) for seconds in share_step([(800, 1), (0, 512)], 0.1, costs.L4)]
    [0.02, 0.08]
    """
    # BEGIN SOLUTION: a list of seconds
    alone = []
    for start, count in chunks:
        keys = start * count + count * (count + 1) // 2
        flops = machine.flops_per_token * count + machine.flops_per_key * keys
        moved = machine.weight_bytes / len(chunks) + machine.kv_bytes_per_token * (start + 2 * count)
        alone.append(flops / machine.flops_per_s + moved / machine.bytes_per_s)
    total = sum(alone)
    return [step_s * seconds / total for seconds in alone]
    # END SOLUTION


# %%
check("8.9")

# %% [markdown]
# **The bill.** The healthy hour and incident *A* on the L4, and a busy H100, shared out step by step. Prices are round
# numbers; put in your own.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.operations import incidents

share_step = use("8.9")
hours = {
    "L4, healthy": incidents.HEALTHY,
    "L4, half of the JSON invalid": incidents.FORMAT,
    "H100, busy": costs.BUSY_H100,
}
bills = {}
for name, hour in hours.items():
    gpu = name.partition(",")[0]
    price = costs.DOLLARS_PER_HOUR[gpu]
    bills[name] = bill = costs.bill(share_step, costs.MACHINES[gpu], hour)
    paths = {path: bill.per_million(path, price) for path in ("prompt", "output")}
    print(f"{name}: prompt ${paths['prompt']:.3f}, output ${paths['output']:.3f} a million tokens")
    print(
        f"  {bill.busy_s:.1f} s shared out of {bill.busy_s:.1f}; {bill.failed_s / bill.busy_s:.1%} for JSON that failed"
    )

# %% [markdown]
# **Read the result.** On the busy GPU both are cheaper, and their ratio is smaller. With half of the JSON invalid a
# tenth of the bill is for answers that were thrown away; a token in them costs no more than another.
#
# Three more paths, each by comparing two steps on an H100 that decodes 32 sequences of 800 tokens. A *cached* token:
# the last 500 tokens of a prompt of 2,000, the others a hit, against the whole prompt. A *rejected* draft: four drafts
# for each of the 32, all wrong.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.operations.service import ON_H100

price = costs.DOLLARS_PER_HOUR["H100"] / 3600 * 1e6
decodes = [(800, 1)] * 32


def seconds(chunks, num_decodes=32):
    step_s = costs.step_seconds(ON_H100, chunks, num_decodes)
    return step_s, share_step(chunks, step_s, costs.H100)


def rejected(batch):
    """Seconds of each of four wrong drafts, for as many sequences."""
    return (seconds([(800, 5)] * batch, 0)[0] - seconds([(800, 1)] * batch, batch)[0]) / (4 * batch)


_, whole = seconds([*decodes, (0, 2000)])
_, hit = seconds([*decodes, (1500, 500)])
_, short = seconds([*decodes, (0, 500)])
paths = {
    "prompt": whole[-1] / 2000,
    "cached": (hit[-1] - short[-1]) / 1500,
    "output": seconds(decodes)[1][0],
    "rejected draft": rejected(32),
}
of_path = {name: token_s * price for name, token_s in paths.items()}
print(", ".join(f"{name} ${dollars:.4f}" for name, dollars in of_path.items()), "a million tokens")
print(f"at batch 256 a rejected draft costs ${rejected(256) * price:.4f}")
ratios = {}
for batch in (1, 8, 32, 128):
    _, shares = seconds([(800, 1)] * batch + [(0, 512)], batch)
    ratios[batch] = shares[0] / (shares[-1] / 512)
    if batch < 128:
        print(f"batch {batch:3}: an output token costs as much as {ratios[batch]:5.1f} prompt tokens")

# %%
costs.draw_prices(of_path, "H100")

# %% [markdown]
# **Read the result.** An output token needs a step of its own and pays its part of the weights in each; a prompt token
# shares a step with all of its prompt, and pays for arithmetic. That is why output costs more, everywhere. A cached
# token costs a small part of a computed one: its K and V are read again. A rejected draft is nearly free as long as the
# step waits for memory; at batch 256 it costs most of a prompt token, because the step computes all the time.

# %% [markdown]
# > **In production, 2026.** Price lists have the same three numbers: an [overview of OpenAI's
# > prices](https://raw.githubusercontent.com/api-evangelist/posts/main/_posts/2026-11-06-openai-api-pricing-what-every-model-costs-per-million-tokens.md)
# > finds output at four to eight times the price of input, and cached input at a tenth on the newest models. By the
# > roofline above, the first is an H100 with a batch of tens to hundreds. In vLLM, `vllm:prompt_tokens_total` and
# > `vllm:generation_tokens_total` count what was computed and generated; what was thrown away no engine knows.
#
# **Takeaway.** On an H100 with 32 decodes an output token costs as much as 9.6 prompt tokens, at batch 1 as much as
# 97.7: what makes tokens cheap is company.

# %% [markdown]
# ### Going further: a larger batch
#
# <!-- card 8.50 -->
# **Predict.** At a batch of 128, beside the same chunk of 512: how many prompt tokens is an output token worth? (A
# factor of 1.5 counts as close.)


# %% tags=["exercise:8.50"]
guess_8_50 = 4.5  # SOLUTION: prompt tokens

# %%
check("8.50")

# %%
measured("8.50", ratios[128])

# %% [markdown]
# **Read the result.** The weights are shared by 129 chunks now, and what is left is each sequence's own K and V, which
# nothing shares, and its arithmetic.
