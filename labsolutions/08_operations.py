# %% [markdown]
# # Lab 8: operations
#
# The engine is built. Now it runs for others, day and night: behind HTTP, for tenants with quotas, watched through
# metrics and alerts. The first cell puts SmolLM2 behind the server of this repository. Six clients of one tenant ask
# for a few tokens at the same moment. Then two clocks are read: the server's own histogram of the time to first token,
# and the clients'.

# %%
from twophase_labs.operations import two_clocks

before = two_clocks.six_at_once()
print(before.server_line)
print(before.client_line)

# %% [markdown]
# The same six requests, in the same process, and both lines are right. Every client got its answer. A dashboard would
# show the first line. Where is the rest of the second one? Write down where you would look. Sections 1 and 2 take a
# request's time apart, and section 11 repeats this measurement with your work in place.

# %% [markdown]
# <!-- opening minutes: 4 -->
# <!-- map -->

# %% [markdown]
# **After this lab you can**
#
# - read a streamed answer byte by byte, and refuse a request so that its client knows when to come back;
# - split a time to first token into six terms, read quantiles out of buckets, and find the slice that a mean hides;
# - write an alert that a spike does not fire, and know what its silence means;
# - tell an incident's cause from its symptoms, keep what paused agents will need again, and share out what a step
#   costs;
# - judge a canary by intervals, and decide how many tokens to spend on an answer.
#
# You need labs 3 to 7, or a working knowledge of their subjects: blocks, steps, queues, TTFT and ITL, prefix caching, a
# gate for fewer bits, prefill and decode on two GPUs. No GPU is needed, and no network: in sections 1 to 3 server and
# clients are real, and talk over this machine's loopback address. Incidents, traffic and GPUs are simulated, with the
# engine's own scheduler, and each section says so.
#
# **How it works.** Commit to a prediction, write the code, run `check("8.1")`. `hint("8.1")` helps in up to three
# steps, `reveal("8.1")` shows a solution. If you skip an exercise, later cells use the reference solution and say so.
# Each section follows the course's [method](../docs/method.md).


# %% tags=["setup"]
import math

import torch

from twophase_labs import ____, check, hint, measured, reference, reveal, use

torch.set_num_threads(1)

# %% [markdown]
# ## 1. The engine behind HTTP
# <!-- minutes: 31 + 4 -->
#
# A server adds no speed. It adds clients that come when they like, read as slowly as they like, and leave without a
# word. The engine of this server runs in a thread of its own; an event loop in another thread speaks HTTP, in the
# format of OpenAI's interface, so that existing clients can use it.

# %% [markdown]
# ```mermaid
# flowchart LR
#     C1["client"] <-->|"HTTP, events"| L["event loop:<br/>keys, quotas, JSON, tokens"]
#     C2["client"] <-->|"HTTP, events"| L
#     P["Prometheus"] -->|"GET /metrics"| L
#     L -->|"submit, abort"| Q["inbox"] --> E["engine's thread:<br/>step, step, step"]
#     E -->|"newest outputs"| L
# ```

# %%
from twophase_labs.operations import server_life
from twophase_labs.operations.one_llm import llm
from twophase_server.background import BackgroundServer

with BackgroundServer(llm()) as server:
    chunks = server_life.chunks_of(server.url, "The capital of France is", max_tokens=4)
print(chunks[0], "...", chunks[-1], sep="\n")

# %% [markdown]
# These are **server-sent events**: `data: `, a text, an empty line. Here a chunk holds one event, because server and
# client share a machine. TCP promises no such thing: it carries a stream of bytes, and any box on the way may cut or
# join chunks.

# %% [markdown]
# **Think first.** The text of the first event below is 'né'; in UTF-8, é is two bytes, C3 and A9. Which chunks can be
# decoded by themselves? After which chunk is the first event complete?

# %%
from twophase_labs.operations import pictures

pictures.draw_cuts(["data: né\n\n".encode(), b"data: [DONE]\n\n"], cuts=(3, 8, 10, 15))

# %% [markdown]
# <details><summary>Answer</summary>
#
# All but chunks 1 and 2, counted from 0: chunk 1 ends with the first byte of é, and chunk 2 begins with the second. The
# event is complete with the byte that ends its empty line, which is in chunk 3.
# </details>

# %% [markdown]
# <!-- card 8.1 -->
# Write the client's half: from bytes, as they come, to events. (Our client parses each event's text as JSON, and knows
# that `[DONE]` is the last one; your class treats it like any other. The standard has a few rules more, such as a byte
# order mark and lines that end with a carriage return alone.)


# %% tags=["exercise:8.1"]
class EventReader:
    """Server-sent events out of a stream of bytes (UTF-8) that may be cut anywhere, also within a character."""

    def __init__(self):
        # The bytes of an unfinished line, and the data lines of an unfinished event.
        self.rest, self.data = b"", []

    def feed(self, data):
        r"""The data, as text, of each event that is complete by now and was not before: a list, [] if there is none.

        data: the next bytes of the stream, any number of them.

        Lines end with a line feed, or with a carriage return and a line feed. An empty line ends an event. A line
        'data:TEXT' is data; one space behind the colon, if there is one, does not belong to TEXT. Several data lines of
        one event are joined by line feeds. Other lines are passed over: comments (they begin with a colon) and other
        fields. An event without a data line is no event.

        >>> reader = EventReader()
        >>> reader.feed(b'data: Par'), reader.feed(b'is\n'), reader.feed(b'\ndata: .\n')
        ([], [], ['Paris'])
        >>> reader.feed(b'data: And\n\n')
        ['.\nAnd']
        """
        # BEGIN SOLUTION: a list of texts
        *lines, self.rest = (self.rest + data).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r").decode()
            field, _, value = line.partition(":")
            if field == "data":
                self.data.append(value.removeprefix(" "))
            if not line:
                if self.data:
                    events.append("\n".join(self.data))
                self.data = []
        return events
        # END SOLUTION


# %%
check("8.1")

# %% [markdown]
# **On the real stream**, cut anew into pieces of 50 bytes:

# %%
# NBVAL_CHECK_OUTPUT
import json

EventReader = use("8.1")
reader, stream = EventReader(), b"".join(chunks)
events = [said for at in range(0, len(stream), 50) for said in reader.feed(stream[at : at + 50])]
print("the last event:", events[-1])
print(repr("".join(json.loads(said)["choices"][0]["text"] for said in events[:-1])))

# %% [markdown]
# ### A client that goes away
#
# A closed browser tab sends no message to the engine. The connection is gone, that is all, and the request would be
# decoded to its end for nobody. Here a client asks for 200 tokens, reads until the first chunk, and closes its
# connection:

# %%
with BackgroundServer(llm()) as server:
    reading, gone = server_life.leave_after_first_chunk(server.url)
print(server_life.state_line("before", reading))
print(server_life.state_line("after", gone))

# %% [markdown]
# **Open the server.** How an endpoint answers a request:

# %%
from twophase_labs.kit.open_engine import show_source
from twophase_server.endpoint import Endpoint

show_source(Endpoint.__call__)

# %% [markdown]
# **Question.** When `at_end` is closed, it aborts the request. Why is it not simply closed after the last event?
#
# <details><summary>Answer</summary>
#
# When a client has gone, writing to it fails, or the task that writes is cancelled: the last event is never reached.
# All ways out of this method pass through the end of its `async with`, and aborting a request that has ended does
# nothing. Before the first byte is written, the server must listen for the disconnection instead (`_while_connected`).
# </details>

# %% [markdown]
# ### Say no, and when to come back
#
# A server that accepts everything has a queue without end, and then every request waits. **Back-pressure** means saying
# no early: status `429`, with a header `retry-after` in seconds. Our server does so in two cases: the engine's queue is
# full (`max_queue`), or the tenant has used up its quota. A limit on concurrent requests is easy to check, but it
# punishes bursts. A **token bucket** limits the *rate*: it holds `capacity` at most, refills evenly, and each request
# takes one out. (The name is older than language models. If it counts model tokens, a request is charged when it has
# ended, because the length of its completion is not known before; so the level may fall below zero.)

# %% [markdown]
# <!-- card 8.2 -->
# `wait_s(now_s)` says how many seconds it takes until the bucket holds at least one, not rounded, 0.0 if it does now;
# it takes nothing. `take(amount, now_s)` takes the amount even if less is there. Times are in seconds and never go
# back.
#
# ```python
# bucket = TokenBucket(rate_per_s=2.0, capacity=4.0, now_s=0.0)
# bucket.take(4.0, 0.0); bucket.wait_s(0.0)       # 0.5: half a second for one
# bucket.take(10.0, 1.0); bucket.wait_s(1.0)      # 4.5: from 2 - 10 up to 1
# bucket.wait_s(100.0)                            # 0.0
# ```


# %% tags=["exercise:8.2"]
class TokenBucket:
    def __init__(self, rate_per_s, capacity, now_s):
        self.rate_per_s, self.capacity = rate_per_s, capacity
        self.level, self.since_s = capacity, now_s

    def refill(self, now_s):
        passed_s = now_s - self.since_s
        self.level = min(self.capacity, self.level + passed_s * self.rate_per_s)  # SOLUTION: what is there now
        self.since_s = now_s

    def wait_s(self, now_s):
        self.refill(now_s)
        return max(0.0, (1 - self.level) / self.rate_per_s)  # SOLUTION: seconds until one is there

    def take(self, amount, now_s):
        # BEGIN SOLUTION: take the amount from what is there now
        self.refill(now_s)
        self.level -= amount
        # END SOLUTION


# %%
check("8.2")

# %% [markdown]
# **In the real server.** Your bucket decides over one tenant's requests: at most 6 at once, one more every two seconds.
# Ten come at the same moment.

# %%
TokenBucket = use("8.2")
for line in server_life.flood(TokenBucket):
    print(line)

# %% [markdown]
# **Read the result.** A refused client knows how long to wait, and the engine never hears of it. The header is rounded
# up to whole seconds. If all refused clients obey it to the second, they all return at once, and find one token for
# four of them: clients should add a random delay.
#
# **Question.** A tenant has 10,000 tokens per minute, all of them unused, and no other limit. It sends 32 requests of
# 4,000 tokens each in one second. How many are let in?
#
# <details><summary>Answer</summary>
#
# All of them: tokens are taken when a request ends, so for the first seconds nothing seems to be used. The tenant pays
# afterwards, with a debt that takes minutes to repay. `concurrent_requests` is the limit that bounds what is in flight;
# a rate alone does not. (A server could charge an estimate at the beginning and give back what was not used.)
# </details>

# %% [markdown]
# > **In production, 2026.** `vllm serve` speaks the same interface and, like ours, [aborts a request whose client has
# > gone](https://github.com/vllm-project/vllm/pull/32442) in `AsyncLLM.generate` itself. Its `--api-key` takes keys,
# > but has no quotas: those belong to a gateway before several engines. Kubernetes sends SIGTERM, and SIGKILL [30 s
# > later by default](https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination-flow), which is
# > less than a long completion takes: `terminationGracePeriodSeconds` must cover the `preStop` hook and the longest
# > deadline. The pod is taken out of its service at the *same* time, so requests still come for a moment: a `preStop`
# > hook that sleeps a few seconds spares them a 503. Events also travel over WebSockets or gRPC, which keep message
# > boundaries; plain HTTP passes more proxies, if they do not buffer.
#
# **Takeaway.** A client that leaves frees its blocks as soon as the server notices, and a bucket of 6 refuses 4 of 10
# requests before the engine hears of them.

# %% [markdown]
# ### Going further: too late, and closing time
#
# Two more ways for a request to end. It may have a **deadline**: an answer that comes after it is work for nothing, so
# the engine ends the request. And a server that is to stop, for a new version say, **drains**: it refuses new requests
# and finishes those it has accepted. `/ready` then says so, and a load balancer sends no more.

# %%
for line in (*server_life.past_its_deadline(), *server_life.drained()):
    print(line)

# %% [markdown]
# ## 2. Metrics
# <!-- minutes: 25 -->
#
# Prometheus reads `/metrics` every few seconds and keeps what it finds. Three kinds of series are enough. A **gauge**
# is a value of this moment (blocks in use). A **counter** only grows (tokens so far), until its process restarts. A
# **histogram** has a counter for each of its buckets: how many values were at most this large.
#
# First a load. Three tenants send 17 requests, one after the other: *chat* short ones, *archive* documents, *shop*
# requests whose answer must be one of 9,900 names of products, other names each time. What a dashboard would show:

# %%
from twophase_labs.operations import scrapes, term_loads

timed, scraped = term_loads.mixed_load(EventReader)
print(f"{scraped.value('time_to_first_token_seconds_count'):.0f} requests, on average "
      f"{1e3 * scraped.mean('time_to_first_token_seconds'):.0f} ms to the first token")  # fmt: skip
for bound, count in scraped.buckets("time_to_first_token_seconds")[3:11]:
    print(f"at most {bound:5.3f} s: {count:.0f}")

# %% [markdown]
# **Think first.** A histogram keeps only the bucket of each value. From these lines: between which two times does the
# median lie? Where in between would you put it?

# %% [markdown]
# <!-- card 8.3 -->
# Write Prometheus' `histogram_quantile`. `buckets` is a list of pairs (upper bound in seconds, number of values up to
# it), in rising order, the last bound `math.inf`; bounds are above 0, and 0 < q <= 1. The rank of the value wanted is q
# times the number of all values. It lies in the first bucket whose count reaches the rank. Within the bucket, values
# are taken to be spread evenly from its lower bound (the upper bound of the bucket before, 0 for the first) to its
# upper bound. In the last bucket the answer is its lower bound; without any value it is `math.nan`.
#
# ```python
# histogram_quantile(0.5, [(1.0, 4), (2.0, 9), (math.inf, 10)])     # 1.2: the first of the five between 1 s and 2 s
# histogram_quantile(0.99, [(1.0, 4), (2.0, 9), (math.inf, 10)])    # 2.0: more is not known
# ```


# %% tags=["exercise:8.3"]
def histogram_quantile(q, buckets):
    total = buckets[-1][1]
    if total == 0:
        return math.nan
    rank = q * total
    lower, before = 0.0, 0
    for bound, count in buckets:
        if count >= rank:  # SOLUTION: does the value lie in this bucket?
            break
        lower, before = bound, count  # SOLUTION: where the next bucket begins, and how many values are before it
    if bound == math.inf:
        return lower
    return lower + (bound - lower) * (rank - before) / (count - before)  # SOLUTION: between its two bounds


# %%
check("8.3")

# %% [markdown]
# **Against the truth.** The clients timed every request, so here the exact quantiles are known. (The server's histogram
# measures from a request's arrival at the engine to its first token, so the picture shows this span for each request.)

# %%
histogram_quantile = use("8.3")
engine_ttfts_s = [one.output.metrics.ttft_s for one in timed]
pictures.draw_buckets(engine_ttfts_s, scraped.buckets("time_to_first_token_seconds"), histogram_quantile)

# %% [markdown]
# **Read the result.** The estimate is as wide as its bucket: a time between 0.1 s and 0.25 s can be estimated wrong by
# a factor of 2.5, and more frequent scrapes do not make it better. Put a bucket's bound at your SLO: the share below a
# bound is exact. And quantiles cannot be averaged: the p99 of two servers is *not* the mean of their p99; add the
# buckets, then take the quantile. Buckets count from the start of the process, so a dashboard takes what they grew by
# in the last minutes: `histogram_quantile(0.99, sum by (le) (rate(..._bucket[5m])))`. (A value below the one before
# means a restart: `rate` then takes all of the new value as growth.)

# %% [markdown]
# ### One time, six terms
#
# 'The first token is late' is not a cause yet. Six terms lie between the client's send and its first text, and each has
# a remedy of its own:
#
# | term | what happens | what makes it long |
# |---|---|---|
# | network | the request travels in, the first event out | distance, proxies that buffer events |
# | preprocess | JSON, keys, text to tokens, a schema to a grammar | large schemas, long texts |
# | queue | the request waits to be scheduled | too few sequence places or blocks |
# | prefill | its prompt is computed, perhaps in chunks | long prompts, no hit, a full batch |
# | sample | one row of logits becomes a token | grammars, penalties |
# | serialise | the token becomes text, JSON, an event | an event loop that is busy |
#
# The next cell notes the time where one term ends and the next begins, on one clock that server and client share. Five
# requests: a short one; a long one; the long one again; one whose answer must be one of 9,900 names; a short one while
# eight others run.

# %% [markdown]
# **Think first.** Which term will be the largest in each? Which of the five delays *other* requests most?

# %%
from twophase_labs.operations import six_terms

reasons = term_loads.five_reasons(EventReader)
print(six_terms.HEADER)
for one in reasons:
    print(one.line)

# %%
pictures.draw_terms(reasons)

# %% [markdown]
# **Read the result.** In each line the terms add up to what the client saw, because each begins where another ends.
# Short and long differ in the prefill, and a hit removes that difference. The long prompt delays *others* most: the
# requests that run wait for it, unless it is computed in chunks (lab 4). The grammar of 9,900 names comes next: it is
# compiled in the engine's thread between two steps, and delays every running request as much as the one that asked for
# it. The last request waits for a sequence place. Network and serialising are small here, since nothing leaves this
# machine.
#
# None of the six is what the first cell's clients waited for. Their tenant may run two requests at a time, so four of
# the six got a 429 and came back later. A refused request never gets this far: its time passes *outside* all terms, and
# the server's histogram begins when the request is let in at last. Two more waits lie outside. A *gateway* before the
# server has a queue, retries and a slow tail of its own. And a **cold start**: an engine that an autoscaler has just
# ordered answers nothing until its weights are there. 16 GB from a disk at 2 GB/s take 8 s, and graphs, caches and a
# warm-up come on top.

# %% [markdown]
# ### A mean hides a slice
#
# The mixed load again, cut in four ways:

# %%
for name, slice_of in term_loads.SLICES.items():
    print(term_loads.by_slice(timed, name, slice_of))

# %% [markdown]
# **Read the result.** The majority, chat, sets the median, and the mean lies between the groups, where hardly any
# request is. The slices by tenant show *that* two of them wait; those by prompt and by grammar show why, and the
# reasons differ. A faster prefill would not help the shop, nor a cache of grammars the archive. (The shop's first
# request also pays for something that this process does once, when it first serves structured outputs: it reads the
# whole vocabulary. A warm-up request after each start would pay it instead.)
#
# (Tenant and prompt length can be labels of a metric if they take few values. A label per user multiplies every series
# by the number of users, and each of these histograms has 19 buckets already.)

# %% [markdown]
# > **In production, 2026.** [vLLM's metrics](https://docs.vllm.ai/en/v0.32.0/usage/metrics/) have these names with
# > `vllm:` before them, such as `vllm:time_to_first_token_seconds`; SGLang's begin with `sglang:` and exist [only with
# > `--enable-metrics`](https://docs.sglang.io/docs/references/production_metrics). Ask of each from when it counts:
# > vLLM's [`--enable-per-request-metrics`](https://docs.vllm.ai/en/stable/features/per_request_metrics/) gives a
# > `time_to_first_token_ms` that begins when the request is *scheduled*, with `queue_time_ms` beside it. Grammars are
# > [compiled in other threads](https://docs.vllm.ai/en/v0.20.2/api/vllm/v1/structured_output/) there, and delay nothing
# > else. By roofline, at 60 % of an H100's peak, Llama-3-8B computes 4,000 tokens in about 0.11 s; a network of 50 ms
# > each way then is half of the time to first token.
#
# **Takeaway.** Six terms add up to the client's time to first token, a quantile from buckets is as exact as its bucket
# is narrow (0.1 s to 0.25 s: a factor of 2.5), and one mean over three tenants describes none of them.

# %% [markdown]
# ## 3. Alerts
# <!-- minutes: 20 -->
#
# Nobody looks at a dashboard at night. An **alert** is a condition over samples, such as 'more than 0.85 of the blocks
# are in use', and a patience: it is *pending* at first, and *fires* only when the condition has held that long. An
# alert that fires for every spike is soon switched off; one that is too patient fires after customers have complained.
#
# Three are often proposed for an engine: **K/V saturation** above 0.85, **fragmentation** above 0.15, and **queue
# age**, how long the oldest request that was never scheduled has waited.

# %% [markdown]
# **Think first.** One pool is at 0.95, with an empty queue; another at 0.5, with a queue age of 40 s. Which one is in
# trouble? And sequences of 24 tokens in blocks of 16 waste 8 slots of 32: is that an incident?

# %% [markdown]
# <!-- card 8.4 -->
# Write an alert as Prometheus evaluates it, with a rule's option `for`.


# %% tags=["exercise:8.4"]
class Alert:
    """`Alert(threshold, for_s)`: a condition, 'the value is above the threshold', over time."""

    def __init__(self, threshold, for_s):
        # for_s: seconds for which the condition must hold before the alert fires.
        # first_true_s: since when it has been true; None while it is not.
        self.threshold, self.for_s, self.first_true_s = threshold, for_s, None

    def evaluate(self, now_s, value):
        """The state at this moment: "inactive", "pending" or "firing".

        now_s: seconds, rising from look to look. value: None is a missing sample: the condition is not true then.

        While the condition is not true the alert is inactive. It fires if the condition has been true at every look for
        at least for_s seconds, and is pending until then.

        >>> alert = Alert(threshold=0.85, for_s=30)
        >>> [alert.evaluate(now_s, 0.9) for now_s in (0, 15, 30, 45)]
        ['pending', 'pending', 'firing', 'firing']
        >>> [alert.evaluate(60, 0.5), alert.evaluate(75, 0.9), alert.evaluate(90, None)]
        ['inactive', 'pending', 'inactive']
        """
        # BEGIN SOLUTION: the state from now on
        is_true = value is not None and value > self.threshold
        if not is_true:
            self.first_true_s = None
            return "inactive"
        if self.first_true_s is None:
            self.first_true_s = now_s
        return "firing" if now_s - self.first_true_s >= self.for_s else "pending"
        # END SOLUTION


# %%
check("8.4")

# %% [markdown]
# **On the real server, in a burst.** Eighteen requests come within about two seconds, each long enough for eight of the
# 36 blocks. Meanwhile the server is scraped some seven to ten times a second, and five of your alerts look at each
# scrape. (In production a scrape comes every 15 s, and patience is minutes. Here everything is faster.) The server lets
# six requests wait, and refuses the next. An answer is late if its first token takes longer than 2 s, or never comes.
# Which alert fires before the first client has been without a token for that long?

# %%
from twophase_labs.operations import burst

Alert = use("8.4")
crowd = burst.burst()
alerts = [
    ("K/V saturation", Alert(0.85, 0.3)),
    ("queue age", Alert(0.5, 0.3)),
    ("fragmentation", Alert(0.15, 0.3)),
    ("refusals", Alert(0, 0.0)),
    ("late answers", Alert(0.1, 0.0)),
]
told = burst.play(crowd, alerts)
for one in told:
    print(one.line)
late_s = crowd.first_late_s
print("no client was late" if late_s is None else f"after {late_s:.2f} s the first client is late")

# %%
pictures.draw_alerts(crowd, told, [alert.threshold for _, alert in alerts])

# %% [markdown]
# **Read the result.** *Late answers* is bound to come last, and in so short a burst may not fire at all. An answer is
# late long before it is counted: this server counts it when its request has ended, vLLM when its first token comes. And
# the histogram has no bound at 2 s, so only answers later than its next bound, 2.5 s, can be seen to be late. *Queue
# age* needs no request to end, and no step: it grows while the engine hangs. *Saturation* goes up and down with every
# wave of requests, and its alert with it (a rule's `keep_firing_for` would bridge the dips). A full pool is what the
# memory was bought for, and trouble only together with a queue. *Fragmentation* is low here, and high when sequences
# are short, which is no incident: with blocks of 16, half a block is lost per sequence on average, so 0.15 suits
# sequences of 45 tokens (8 of 53 slots) and more. *Refusals* is the only one that sees what the first cell's clients
# saw. (It looks at a counter here, so once it fires it never stops; in production its condition is on
# `increase(...[1m])`.)

# %% [markdown]
# ### The alert that nobody hears
#
# The engine dies at night, and nothing can be read from it any more:

# %%
# NBVAL_CHECK_OUTPUT
queue_age, is_silent = Alert(0.5, 0.3), Alert(0.5, 0.3)
for now_s, value in ((0.0, 0.9), (0.5, 1.4), (1.0, None), (1.5, None), (2.0, None)):
    states = queue_age.evaluate(now_s, value), is_silent.evaluate(now_s, float(value is None))
    print(f"{now_s:3.1f} s  queue age {value!s:5} {states[0]:9} | no answer: {states[1]}")

# %% [markdown]
# **Read the result.** Without samples the first alert goes back to inactive: all is quiet because nothing is measured.
# So each target needs an alert on its own absence (Prometheus makes a series `up` for that, 0 when a scrape fails;
# `absent(up{...})` for a target that is not even listed any more). The engine needs one on its thread: when that has
# died, our `/metrics` still answers, with `twophase:engine_up` at 0. And one failed scrape begins the patience anew, so
# an alert on a target that answers every other time may never fire: `max_over_time(...[1m])` bridges the gaps of a
# gauge.

# %% [markdown]
# > **In production, 2026.** [Prometheus'
# > rules](https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/) are YAML: `expr:
# > vllm:kv_cache_usage_perc > 0.85`, `for: 5m`, `keep_firing_for: 5m`; pending and firing are its words. vLLM has
# > `vllm:num_requests_waiting`, which is a number; how *long* requests have waited is in
# > `vllm:request_queue_time_seconds`, but only once they have been scheduled. SGLang's counterparts are
# > `sglang:num_queue_reqs` and `sglang:token_usage`. People are mostly woken by the rate at which an SLO's error budget
# > is used up, over a long and a short window ([SRE workbook](https://sre.google/workbook/alerting-on-slos/), chapter
# > 5); alerts on causes, like these, tell where to look. On an H100, by roofline at 80 % of its bandwidth, a decode
# > step of Llama-3-8B takes about 6 ms: a scrape every 15 s sees one step of 2,500, so short spikes are for histograms.
#
# **Takeaway.** Queue age needs no request to end before it can fire: at 0.5 s with 0.3 s of patience that can be 0.8 s
# after a wait begins, well before an SLO of 2 s is broken.

# %% [markdown]
# ## 4. Five incidents
# <!-- minutes: 21 + 30 -->
#
# An alert says that something is wrong. What is it? A service runs Llama-3-8B on NVIDIA L4s. Its requests are chats,
# questions about documents, and questions whose answer must be JSON. Ordinary hours look like the column *healthy*
# below; in each of the other five columns something has gone wrong. The hours are simulated: scheduler, blocks and
# policies are the engine's, a step takes as long as a roofline of the L4 says, and a client that gets no valid JSON
# asks again. The monitoring system takes a sample every five seconds, and also asks the model for facts that it has
# hidden in long texts ('needles'). Where a curve has a gap, there was nothing to measure in those five seconds. In
# column *D* prefill and decode have a GPU each, and K and V travel between them; in all others each GPU does both, so
# row h is empty there. (Whether a needle is found or JSON is valid is drawn at random, at about the rates that SmolLM2
# shows later in this section. Of each hour a minute and a half is simulated.)

# %% tags=["setup"]
from twophase_labs.operations import costs, dashboards

# %%
dashboards.draw_dashboards()

# %% [markdown]
# **Think first.** Each column differs from *healthy* in some rows. Which row is closest to the cause, to what has
# changed in the traffic or in the set-up, and which rows only follow from it? A late first token (row c) may have many
# causes, so it is evidence for none of them. And one odd sample is no incident.

# %% [markdown]
# <!-- card 8.5 -->
# For each column choose the row that is closest to the *cause*, by its letter in the picture (`a` to `h`).


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
# ### The cures, measured
#
# <!-- card 8.6 -->
# Which cure fits which column? **a** limit the answers (`max_tokens`) · **b** compute prompts in chunks beside the
# decodes · **c** a faster link, or both phases on each GPU · **d** a mask from a grammar · **e** more bits for K and V,
# behind a gate that asks for needles in long texts


# %% tags=["exercise:8.6"]
answer_8_6 = {
    "A": "d",  # SOLUTION: a cure
    "B": "b",  # SOLUTION: a cure
    "C": "a",  # SOLUTION: a cure
    "D": "c",  # SOLUTION: a cure
    "E": "e",  # SOLUTION: a cure
}

# %%
check("8.6")

# %% [markdown]
# Four of the five once more, each with its cure: the same requests at the same times. (*D* has one GPU for prefill and
# one for decode. In its last line each GPU does both; the line shows one of the two, with half of the requests.)

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.operations import cures

for cause in ("kv", "batching", "format", "transfer"):
    print(cures.lines(cause))

# %% [markdown]
# **Read the result.** *C*: the answers became six times as long (and a few more requests come), so each holds its
# blocks six times as long, and the pool is full. Reserving the worst case ends the preemptions and makes the queue
# longer: only shorter answers, or more memory, make room for this traffic. The limit has its price in the same line: it
# cuts most answers. *B*: TTFT is as before, yet the gaps between tokens are several times as long; chunks bring them
# back. *A*: no step is slower than before; clients wait because they ask up to five times. *D*: nothing in the engines
# is slow, and the gaps between tokens are the shortest of all; requests wait for the link. Two GPUs that do both phases
# need no link: chunks lengthen their gaps, and their first tokens come sooner than over the fast link. So ask first
# whether chunks are enough.

# %% [markdown]
# *E* has no cure in the scheduler: its latencies are healthy. So look at quality in slices, on SmolLM2. First needles,
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
# the short one (five of each are few; a gate asks for more); the 4-bit weights break the format, and the mask restores
# it. A gate has to ask in slices, and it has to go on asking in production, because traffic changes.

# %% [markdown]
# > **In production, 2026.** vLLM [exports](https://docs.vllm.ai/en/stable/usage/metrics/) what the rows show:
# > `vllm:kv_cache_usage_perc`, `vllm:num_preemptions_total`, `vllm:inter_token_latency_seconds`, and the histogram
# > `vllm:iteration_tokens_total`, in which whole prompts stand out. Its
# > [guide](https://docs.vllm.ai/en/v0.17.1/configuration/optimization/) names what to do about preemptions: raise
# > `gpu_memory_utilization`, lower `max_num_seqs` or `max_num_batched_tokens`, or raise `tensor_parallel_size`. Needles
# > and valid JSON are not among an engine's metrics: probes and clients have to count them.
#
# **Takeaway.** Five incidents, five different rows, and four of them do not show a latency. The cure that fits the
# cause brings p99 of TTFT down from 176 s to 3.2 s (C, with most answers cut), p99 of ITL from 611 ms to 113 ms (B),
# p99 of a JSON task from 26.6 s to 9.3 s (A).

# %% [markdown]
# ### Going further: a diagnosis that a machine makes
#
# At three in the morning a picture is a slow way to find a cause. Write down what you did as a function. It gets two
# lists of samples: of the minute before the alarm, and of a minute in which the same service was healthy. A sample is a
# dict:

# %%
for name, value in dashboards.window("A")[-1].items():
    print(f"{name:30} {value if value is None else round(value, 3)}")

# %% [markdown]
# A name that ends in `_total` is a counter's: it counts from the start of the process and never falls. The others are
# gauges, of this moment or of the last five seconds; `None` means that there was nothing to measure. Latencies come
# from histograms, needles and JSON from probes and from the clients.

# %% [markdown]
# <!-- card 8.7 -->
# Name the cause. The check runs hours that you have not seen: the same causes in other sizes, on another GPU, busy and
# quiet hours.


# %% tags=["exercise:8.7"]
def diagnose(window, healthy):
    """What is wrong: 'healthy' (nothing), 'kv' (the pool of K/V blocks is full), 'batching' (whole
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
check("8.7")

# %% [markdown]
# *D* is compared with a healthy hour of two such GPUs, `healthy, apart`.

# %%
# NBVAL_CHECK_OUTPUT
diagnose = use("8.7")
for name in "ABCDE":
    ordinary = dashboards.window("healthy, apart" if name == "D" else "healthy")
    print(name, diagnose(dashboards.window(name), ordinary))

# %% [markdown]
# ### Going further: too little memory
#
# Incident *C* filled the pool; a pool can also be too small from the start. Nine steps are usually tried, in this
# order: shorter prompts, shorter answers, smaller chunks; fewer bits in the weights, then in K and V, each behind a
# gate; fewer sequences at a time, K and V on the host; a second GPU, a larger one. It is a list of what to *consider*.
# What to take follows from what is missing (`twophase plan`, lab 7) and from what each step costs this service; savings
# do not simply add, since shorter prompts leave less for fewer bits to win. And leave a margin: an engine whose pool is
# too small does not crash at run time, it queues and preempts.
#
# Here is the first step, *shorter prompts*, by **retrieval**: instead of the whole text, the prompt gets the three
# sentences that share most words with the question, rare words first. SmolLM2, and the five needles from above in a
# text of about 450 tokens:

# %%
for name, num_best in {"the whole text": None, "three sentences": 3}.items():
    asked = probes.asked(probes.MEDIUM, num_best)
    print(f"{name:16} {asked.num_tokens:5,.0f} tokens a prompt, first token after {1e3 * asked.ttft_s:5.0f} ms, "
          f"{asked.num_found} of {asked.num_needles} needles found")  # fmt: skip

# %% [markdown]
# **Read the result.** The search costs next to nothing here, and saves most of the prefill and of the cache. It works
# because each answer is in one sentence that shares words with its question. A question over the whole text ("what
# changed between the two drafts?") has no such sentence; then a summary or the long context has to do. (With the prefix
# cache on, the whole text is computed once for all questions that begin with it; here it was off.)

# %% [markdown]
# > **In production, 2026.** SGLang's [list](https://docs.sglang.io/references/faq.html) for a GPU that runs out of
# > memory: in prefill a smaller `--chunked-prefill-size`, which saves a *step's* arrays (*workspace* in the report of
# > `twophase plan`); in decode fewer `--max-running-requests`, the step *fewer sequences at a time* above; and a
# > smaller `--mem-fraction-static` for both, which takes from the pool. In vLLM these steps are `--max-num-seqs` (fewer
# > sequences), `--kv-cache-dtype fp8` (fewer bits in K and V) and `--quantization` (fewer bits in the weights).

# %% [markdown]
# ## 5. Agent sessions
# <!-- minutes: 22 -->
#
# An agent calls the model again and again for one task. It reads everything so far, writes a short call of a tool,
# waits for the tool, and reads everything again, with the tool's result at the end. Prompts are long, answers short,
# and between them is a pause in which the session has no request in the engine. Its blocks are free then, and can be
# found by their hashes (lab 5) until another sequence overwrites them.
#
# **Think first.** Blocks that were used longest ago are given up first. Which session's blocks are those, if most tools
# answer within three seconds and one in five runs tests for a minute? What does that session pay?
#
# Fourteen agents on one L4 with Llama-3-8B, simulated: each begins with some 2,500 tokens, calls the model twelve
# times, and reads some 500 tokens more with each call. The pool has room for about a third of what all of them have
# read in the end.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.operations import agents

alone = agents.serve(agents.AGENTS)
print(alone.line)
print(f"the pool: {agents.ON_L4.num_blocks():,} blocks, {agents.ON_L4.num_blocks() * agents.BLOCK_SIZE:,} tokens")

# %% [markdown]
# What was computed once need not be lost. A **KV tier** is a second place for blocks: host memory, a disk, another
# machine. When the pool is about to overwrite a block, it offers it to the tier (`store`); when a request is admitted,
# the tier is asked for blocks that continue what the pool has (`match`). A tier has a limit, too. Its **index** knows
# which blocks it holds, where, and which one to give up.

# %% [markdown]
# <!-- card 8.8 -->
# Write the index; the copies are made by others. Keys are hashes of a block's tokens and all tokens before it.


# %% tags=["exercise:8.8"]
class TierIndex:
    """`TierIndex(num_blocks)`: which blocks a tier holds, each in a place from 0 to num_blocks - 1.

    match(keys): the places of the first keys that are held, up to the first that is not: a list. keys: of a prompt's
        blocks, from its beginning on. What is found counts as used now, and earlier blocks of the prompt as used after
        later ones: without its beginning the rest of a prefix is useless.
    store(keys): for each key the place into which its block is to be copied, or None if it is held already; then it
        counts as used now. Any free place will do; if none is free, the block that was used longest ago is given up.
        One key after the other.

    >>> index = TierIndex(num_blocks=2)
    >>> index.store(["end", "start"]), len(index.match(["start", "end", "more"]))
    ([0, 1], 2)
    >>> index.store(["other"]), index.match(["start", "end"])    # 'end' was given up, and its place taken
    ([0], [1])
    """

    # BEGIN SOLUTION: __init__(num_blocks), match(keys), store(keys)
    def __init__(self, num_blocks):
        self.free = list(range(num_blocks))
        self.place_of = {}  # of each key; the one used longest ago comes first

    def match(self, keys):
        found = []
        for key in keys:
            if key not in self.place_of:
                break
            found.append(self.place_of[key])
        for key in reversed(keys[: len(found)]):
            self.place_of[key] = self.place_of.pop(key)
        return found

    def store(self, keys):
        places = []
        for key in keys:
            if key in self.place_of:
                self.place_of[key] = self.place_of.pop(key)
                places.append(None)
                continue
            place = self.free.pop(0) if self.free else self.place_of.pop(next(iter(self.place_of)))
            self.place_of[key] = place
            places.append(place)
        return places

    # END SOLUTION


# %%
check("8.8")

# %% [markdown]
# **In the simulated service**, with your index and more and more host memory. The last two have a time limit as well
# (*time to live*): a block that was not used for so long is forgotten. The same for chats: sixty people who take twenty
# to ninety seconds to write the next message.

# %%
# NBVAL_CHECK_OUTPUT
TierIndex = use("8.8")
served = {}
for sessions in (agents.AGENTS, agents.CHATS):
    served[sessions.name] = [agents.serve(sessions)]
    for num_host, limit_s in ((1000, None), (3000, None), (9000, None), (9000, 10.0), (9000, 60.0)):
        index = TierIndex(num_host) if limit_s is None else agents.Expiring(TierIndex(num_host), limit_s)
        name = f"host {num_host * agents.BLOCK_BYTES / 1e9:4.1f} GB" + (f", {limit_s:.0f} s to live" if limit_s else "")
        served[sessions.name].append(agents.serve(sessions, index, num_host, name))
    print(sessions.name, *(each.line for each in served[sessions.name]), sep="\n  ")

# %%
of_agents = served["agents"]
agents.draw_turns({"pool alone": of_agents[0], of_agents[3].name: of_agents[3]}, session=3)

# %% [markdown]
# **Read the result.** All sessions together have 133 thousand tokens in the end; with the pool alone, half a million
# are computed a second time, because a session that waits a minute for its tests has lost everything when it comes
# back. With your index and enough host memory nothing is recomputed, and a late first token comes in less than half of
# the time. In between, memory decides. A time limit is no remedy. Ten seconds drop just those sessions that wait for
# tests; sixty suit these agents, and make the chats, whose people take longer, compute 40,620 tokens again. The rule
# "used longest ago" needs no such number.
#
# **In the real engine.** Your index behind the door `KVTier`, SmolLM2, and a pool that is too small for three sessions:

# %%
# NBVAL_CHECK_OUTPUT
print(agents.on_the_engine(TierIndex))

# %% [markdown]
# **Question.** A session ends, and the engine does not know it. Whose blocks does the tier then give up, and who could
# tell it better?
#
# <details><summary>Answer</summary>
#
# The blocks used longest ago, which may be those of a session that waits for slow tests, while those of the finished
# session are newer and useless. The agent's framework knows both: that a session has ended, and which tool it waits
# for. So engines get hints from outside: release this session, keep that one.
# </details>
#
# > **In production, 2026.** vLLM's maintainers [describe](https://github.com/vllm-project/vllm/issues/57103) agents'
# > traffic with 43 turns in the median, 142,000 tokens of input for 444 of output, and hits for more than 96 % of the
# > tokens; they propose policies for keeping, moving and sharing out blocks by a session's state, and [hints from a
# > router](https://github.com/vllm-project/vllm/issues/51428). By roofline, K and V of 20,000 tokens of Llama-3-8B, 2.6
# > GB, come back over PCIe at 25 GB/s in 0.1 s; an H100 computes them again in 0.54 s at 60 % of its peak, an L4 in
# > 4.4 s.
#
# **Takeaway.** Fourteen agents recompute 491,710 tokens with the pool alone, and none with 18.9 GB of host memory; with
# a limit of ten seconds on the same memory, 167,335.

# %% [markdown]
# ## 6. Degrade before failing
# <!-- minutes: 0 + 25 -->
#
# Incident *C* again, with more traffic. An engine left to itself refuses nobody, and so fails its clients by the
# hundred: it preempts, it queues, and clients that have no first token after a minute go away. A front end can give up
# *some things on purpose* instead, those that do least harm first. It looks at the engine once a second and sets a
# level:

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.operations import overload

for level, rung in enumerate(overload.RUNGS):
    print(level, rung)
alone = overload.overload(None)
print(alone.line)

# %% [markdown]
# **Think first.** A level must rise before the pool is full, because blocks come back only when answers end. What
# happens if it falls as soon as the pool is below the same mark?

# %% [markdown]
# <!-- card 8.9 -->
# Write the ladder. The front end asks `look` about once a second and does what the level says.


# %% tags=["exercise:8.9"]
class Ladder:
    """`Ladder()`: which rung the front end stands on, 0 (as always) to 4."""

    def __init__(self):
        # The level, when it last went up, and since when it has been calm (None: it is not).
        self.level, self.raised_s, self.calm_s = 0, float("-inf"), None

    def look(self, now_s, kv_usage, queue_age_s):
        """The level from now on.

        kv_usage: the share of the blocks in use. queue_age_s: how many seconds the oldest request without a token has
        waited.

        Pressure is a K/V use of 0.85 or more, or a queue age of 2 seconds or more: one rung up at once, if the last
        rung up is at least two seconds ago (the check allows a pause of two to five seconds). Calm is a K/V use below
        0.70 *and* a queue age below 1 second: one rung down after each 10 seconds of unbroken calm. In between the
        level stays, and the calm is broken.

        >>> ladder = Ladder()
        >>> [ladder.look(now_s, 0.9, 0.0) for now_s in range(12)][-1] >= 2
        True
        >>> [Ladder().look(0.0, usage, 0.0) for usage in (0.3, 0.8)]
        [0, 0]
        """
        # BEGIN SOLUTION: the level from now on
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
check("8.9")

# %%
# NBVAL_CHECK_OUTPUT
Ladder = use("8.9")
runs = {"left to itself": alone, "your ladder": overload.overload(Ladder().look)}
for rung in (1, 3):
    runs[f"always on rung {rung}"] = overload.overload(lambda *look, rung=rung: rung)
for name, run in runs.items():
    print(f"{name:18} {run.line}")
print(f"{'a usual hour':18} {overload.overload(Ladder().look, overload.USUAL).line}")

# %%
cures.draw_ladder({name: runs[name] for name in ("left to itself", "your ladder")})

# %% [markdown]
# **Read the result.** The ladder answers several times as many requests within the SLO (a first token within 5 s, 120
# ms per token), and nothing is preempted. The price is in the same line: with a ladder that climbs at once 256 answers
# are cut at 200 tokens, and 37 documents are refused, at once and with a reason, so that their clients can come back.
# (The SLO asks for speed alone: an answer that was cut counts.) One rung all the time is no substitute: the first is
# too little for this flood, and the third does as well only by refusing more. In a usual hour the ladder does nothing.
# With classes of customers, the cheapest class climbs first.
#
# The picture shows that a rung helps late, when the answers that it cuts have ended: even with two marks and ten
# seconds of calm the ladder swings. With one mark it would swing faster, and clients of the same minute would be
# treated differently. What each rung is worth depends on the traffic, so measure each alone before you build one.

# %% [markdown]
# > **In production, 2026.** An engine's queue has no end unless it is told otherwise, so limits often stand before it.
# > [Ray Serve](https://docs.ray.io/en/master/serve/api/doc/ray.serve.config.BackpressureConfig.html) refuses beyond
# > `max_queued_requests`, with 503 unless 429 and a `Retry-After` are configured. SGLang's
# > [gateway](https://docs.sglang.io/advanced_features/sgl_model_gateway.html) lets requests beyond
# > `--max-concurrent-requests` wait in a queue: 429 when it is full, 408 after `--queue-timeout-secs` in it. Both shed
# > load; rungs that make answers shorter first are yours to build.
#
# **Takeaway.** In a flood of answers six times as long as planned, a ladder that climbs at once raises the requests
# within the SLO from 0.51 to 3.07 per second, of 3.53 that arrive, without a preemption, at the price of 249 cut
# answers and 44 refused documents.

# %% [markdown]
# ## 7. What does a token cost?
# <!-- minutes: 21 + 8 -->
#
# A GPU is paid for by the hour, whether its tokens are read, generated, cached, rejected as drafts or generated twice.
# To know what a *request* costs, share out the seconds of each step among the chunks in it, so that nothing is lost:
# the shares add up to the step, and the steps to the busy part of the bill. (Idle time is in no step: divide by the
# utilisation.)

# %% [markdown]
# **Think first.** A step has 20 decodes and a chunk of 512 prompt tokens. The weights are read once for all of them.
# Should the chunk pay for 512 parts of 532, or for one of 21?

# %% [markdown]
# A chunk causes three things: *arithmetic*, which grows with its tokens; reads and writes of its own *K and V*; and the
# reading of the *weights*, which it would cause alone as well. The first two are its own. The weights are shared
# equally by the chunks of the step, because each would have had to read them once.

# %% [markdown]
# <!-- card 8.10 -->
# `machine` has `flops_per_s` and `bytes_per_s` (what it reaches), `weight_bytes`, `flops_per_token` (products with the
# weights), `flops_per_key` (attention of one query to one key) and `kv_bytes_per_token`.
#
# For each chunk: seconds of its arithmetic, plus seconds of its bytes (its part of the weights included). Then scale
# all of them so that they add up to the step.


# %% tags=["exercise:8.10"]
def share_step(chunks, step_s, machine):
    """Seconds of a step that each of its chunks has to pay; together `step_s`.

    chunks: (start, count) of each: it computes the tokens at positions start to start + count - 1 of its sequence. The
    token at position p meets p + 1 keys: for a chunk, start * count + count * (count + 1) / 2 together. A chunk reads K
    and V of start + count tokens once, and writes those of count.

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
check("8.10")

# %% [markdown]
# **The bill.** The healthy hour and incident *A* on the L4, the same healthy hour on an H100, and an H100 with all the
# traffic that it can take, shared out step by step. The GPUs' prices are round numbers; put in your own.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.operations import incidents

share_step = use("8.10")
hours = {
    "L4, healthy": incidents.HEALTHY,
    "L4, half of the JSON invalid": incidents.FORMAT,
    "H100, the same traffic": costs.QUIET_H100,
    "H100, busy": costs.BUSY_H100,
}
bills = {}
for name, hour in hours.items():
    gpu = name.partition(",")[0]
    price = costs.DOLLARS_PER_HOUR[gpu]
    bills[name] = bill = costs.bill(share_step, costs.MACHINES[gpu], hour)
    paths = {path: bill.per_million(path, price) for path in ("prompt", "output")}
    print(f"{name}: prompt ${paths['prompt']:.3f}, output ${paths['output']:.3f} a million tokens")
    shared_s = sum(bill.seconds.values())
    print(f"  {shared_s:.1f} s shared out of {bill.busy_s:.1f}; {bill.failed_s / bill.busy_s:.1%} for JSON that failed")
    kinds = {kind: 1000 * s * price / 3600 for kind, s in bill.seconds_per_task.items()}
    print("  a thousand tasks:", ", ".join(f"{kind} ${dollars:.3f}" for kind, dollars in kinds.items()))

# %% [markdown]
# **Read the result.** With the same traffic an output token costs more on the H100: it reads the weights faster, but
# for few sequences at a time, and its hour has a higher price. With more traffic more sequences share each reading, and
# its price falls to less than a tenth; a prompt token, which is mostly arithmetic, becomes only a quarter cheaper.
# Retries fill the L4's batches: a token gets cheaper, and a valid JSON answer costs more, because it takes more tokens.
# With half of the JSON invalid a tenth of the bill is for answers that were thrown away; a token in them costs no more
# than another, but a JSON task costs 1.6 times as much. A question about documents brings ten times as many prompt
# tokens as a chat, and costs 1.16 times as much on the L4, 2.2 times on the busy H100: the cheaper a decode, the more
# retrieved text counts. (The search that finds the text, embeddings and index, is another bill.)

# %% [markdown]
# > **In production, 2026.** Price lists show three of these prices: an [overview of OpenAI's
# > prices](https://raw.githubusercontent.com/api-evangelist/posts/main/_posts/2026-11-06-openai-api-pricing-what-every-model-costs-per-million-tokens.md)
# > finds output at four to eight times the price of input, and cached input at a tenth on the newest models. By
# > roofline, an H100 has that ratio of output to input at a batch of some 40 to 170, beside a chunk of 512 (*Going
# > further*). In vLLM, `vllm:prompt_tokens_total` and `vllm:generation_tokens_total` count the tokens of prompts and
# > completions, `vllm:prefix_cache_hits` those that were found in the cache; no engine knows what a client threw away.
#
# **Takeaway.** On an H100 with an L4's traffic a million output tokens cost $2.565, on the same H100 when it is busy
# $0.203; a million prompt tokens cost $0.016 and $0.012: sequences that decode together share the cost of the weights.

# %% [markdown]
# ### Going further: cached tokens, rejected drafts, a larger batch
#
# Two more kinds of tokens have a price, each found by comparing two steps on an H100 that decodes 32 sequences of 800
# tokens. A *cached* token: compute the last 500 tokens of a prompt of 2,000 whose first 1,500 are a hit, and compare
# with a prompt of 500. A *rejected* draft: four drafts for each of the 32, all wrong.

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
print(", ".join(f"{name} ${dollars:.2g}" for name, dollars in of_path.items()), "a million tokens")
print(f"at batch 256 a rejected draft costs ${rejected(256) * price:.2g}")
ratios = {}
for batch in (1, 8, 32, 128):
    _, shares = seconds([(800, 1)] * batch + [(0, 512)], batch)
    ratios[batch] = shares[0] / (shares[-1] / 512)
    print(f"batch {batch:3}: an output token costs as much as {ratios[batch]:5.1f} prompt tokens")

# %%
costs.draw_prices(of_path, "H100")

# %% [markdown]
# **Read the result.** An output token needs a step of its own and pays its part of the weights in it; a prompt token
# shares a step with the rest of its prompt, and pays for arithmetic. That is why output costs more in each line above.
# A cached token costs a small part of a computed one: its K and V are read again, and each new token attends to it,
# which is most of its price here. (Price lists ask for more; the memory that keeps it is not free.) A rejected draft is
# nearly free as long as the step waits for memory; at batch 256 it costs as much as a prompt token, because the step is
# busy with arithmetic. (The picture's prompt is one chunk of 2,000 tokens; the ratios are those beside a chunk of 512.)
# At a batch of 128 the weights are shared by 129 chunks: a sequence's part of them costs less than its own K and V and
# its own arithmetic together, which nothing shares.

# %% [markdown]
# ## 8. A new version, and a few who try it
# <!-- minutes: 22 + 6 -->
#
# A window for attention frees memory, weights in 4 bits make steps shorter. Each change has passed its tests. How do we
# roll it out safely? In three stages: a **gate** on fixed tasks (`twophase bench quality`, lab 6), **shadow traffic**
# (the same prompts go to both engines, and only the old one's answers are sent), and a **canary** (the new one answers
# a small share).

# %% [markdown]
# **Think first.** Two engines answer the same prompts greedily, and one text in five differs. Is the new engine worse?
# What would you have to look at to tell?

# %%
from twophase_labs.operations import shadow

for variant in shadow.VARIANTS:
    print(shadow.shadow(variant).line)

# %% [markdown]
# Forty prompts of four kinds, each judged by what it asks for: the right sum, the fact that stands in the text, a JSON
# object with the order's quantity. (`int4` rounds the weights onto a grid of 4 bits, `int4_g64_sym` onto a coarser one;
# the window keeps 320 keys and 4 sinks.)

# %% [markdown]
# **Read the result.** "The same text" is a sensitive alarm and a poor judge: `int4` changes several texts of 40 and
# loses no right answer, the window changes seven and loses four. The purpose of an answer decides, in four layers, each
# cheaper to check than the next: its **format** (does it parse), its **task** (is the sum right), **safety** (does it
# refuse what it should, and nothing else; not measured here), and the **business** (does a support case end without a
# person; known days later, and only from real traffic). (Before all of these comes lab 6's gate on fixed texts: how far
# predictions drift, and needles in long ones.) Now look at the window's line by slice: three kinds of prompts
# are shorter than the window, and lose nothing. The fourth kind loses facts that are further back. It is one prompt in
# five here; in most traffic it is rarer.
#
# ### Which requests try it?
#
# The canary serves live requests, so clients see what it says. A conversation should not change its model between two
# messages, and a tenant's cached prefixes should stay useful. So the side is chosen by *tenant*, by arithmetic that
# every front end can do alone: hash the tenant, with the rollout's name as a salt, to a number in [0, 1), and compare
# it with the share. So the side is the same on every machine, a growing share only adds tenants, and another rollout
# draws others.

# %%
from twophase_labs.operations import canary_traffic
from twophase_labs.operations.canary_traffic import is_canary

show_source(is_canary)

# %%
# NBVAL_CHECK_OUTPUT
known = canary_traffic.tenants()
asked = canary_traffic.requests(20_000)
for share in (0.05, 0.1, 0.2):
    of_tenants = sum(is_canary(tenant, share, "window") for tenant, _ in known) / len(known)
    of_requests = sum(is_canary(tenant, share, "window") for tenant, _ in asked) / len(asked)
    print(f"share {share:.0%}: {of_tenants:.1%} of the tenants are the canary's, {of_requests:.1%} of the requests")

# %% [markdown]
# **Read the result.** Of very many tenants a hash selects close to the share that is asked for; of 2,000 tenants, which
# differ in how much they send, the share varies by chance. The share of *requests* has to be measured, and the two
# sides do not serve the same mix (*Going further* says what to do about that).
#
# ### How many requests are enough?
#
# Every number from a canary is an estimate. Nine of ten answers right is a rate of 90 %, give or take a lot; with more
# requests the interval narrows. These are Wilson's intervals: if requests are independent, 95 of 100 such intervals
# contain the true rate. (Requests of one tenant resemble each other, so the real uncertainty is larger, and a careful
# canary resamples *tenants*.)

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.operations import canary_gate

for num in (10, 100, 1000, 10_000):
    low, high = canary_gate.wilson(num * 9 // 10, num)
    print(f"{num * 9 // 10:5,} of {num:6,}: [{low:.1%}, {high:.1%}]")

# %% [markdown]
# How many are enough? To detect a loss of d at a base rate of p takes about 16 p (1 - p) / d² requests on each side, if
# both sides get the same number (then such a loss is found in 80 of 100 cases, and one that does not exist in 5 of
# 100): for p = 0.9 and two points, 3,600. So a verdict has three values: promote, roll back, and **wait: too few
# requests to tell**.
#
# The verdict is made from lines of two kinds. Some must be kept whatever else improves: a slice's right answers, JSON
# that parses, refusals. They have **hard bounds, and come first**. The others are weighed: a millisecond against a
# point of quality is a decision about the service, written down as weights *before* the canary starts.

# %% [markdown]
# <!-- card 8.11 -->
# A `Line` has an interval, `low` to `high`, for how much worse the canary is than the old side, a `bound` (what may be
# lost, in the same unit, positive), a `weight`, and `is_hard`. A loss below 0 is a gain; it does not make up for other
# losses.
#
# 1. If a hard line is surely broken (all of its interval above its bound), roll back.
# 2. If one is not surely kept (some of its interval above its bound), wait.
# 3. A line has used up the fraction loss / bound of what it may lose, clipped to [0, 1]. Take the weighted mean over
#    *all* lines, once with every `low` and once with every `high`: if even the first mean is above `most_used`, roll
#    back; if the second is at most `most_used`, promote.
# 4. Otherwise wait.


# %% tags=["exercise:8.11"]
def decide(lines, most_used=0.5):
    """'promote', 'roll back' or 'wait'. lines: each a `Line`, hard ones and others in any order."""
    hard = [line for line in lines if line.is_hard]
    if any(line.low > line.bound for line in hard):  # SOLUTION: is a hard line surely broken?
        return "roll back"
    if any(line.high > line.bound for line in hard):  # SOLUTION: is one not surely kept?
        return "wait"

    def mean_used(losses):
        """The weighted mean of what is used up. losses: one for each of `lines`, in their order."""
        used = [
            min(1, max(0, loss / line.bound)) for line, loss in zip(lines, losses, strict=True)
        ]  # SOLUTION: of each line's bound, in [0, 1]
        weights = [line.weight for line in lines]
        return sum(w * u for w, u in zip(weights, used, strict=True)) / sum(weights)  # SOLUTION: the weighted mean

    if mean_used([line.low for line in lines]) > most_used:  # SOLUTION: is even the best case too much?
        return "roll back"
    return "promote" if mean_used([line.high for line in lines]) <= most_used else "wait"  # SOLUTION: promote or wait


# %%
check("8.11")

# %% [markdown]
# **Three canaries, judged twice.** Traffic is simulated: 2,000 tenants, one in twenty-five with long texts; answers are
# right as often as in the shadow above. The splitter gives the canary a fifth of the tenants, and your verdict is
# asked again and again: with one hard line for all answers, and with one for each slice.

# %%
decide = use("8.11")
looks = (500, 1000, 2000, 5000, 10_000, 20_000, 40_000)
base = canary_traffic.rates_of(shadow.shadow("as it is").by_slice)
canaries = {}
for variant in ("as it is", "window of 320", "int4_g64_sym"):
    pass_rates = {"before": base, "canary": canary_traffic.rates_of(shadow.shadow(variant).by_slice)}
    canaries[variant] = canary_traffic.play(pass_rates, looks, share=0.2, salt="window")
    for by_slice in (False, True):
        verdicts = [decide(canary_traffic.lines_of(look, by_slice=by_slice)) for look in canaries[variant]]
        print(f"{variant:<14}{'each slice' if by_slice else 'all answers':<12}", " · ".join(verdicts))

# %% [markdown]
# What does the first canary, the engine as it is, still wait for after 5,000 requests, about a fifth of them its own?
# (`used` is the fraction of step 3. *Late first tokens* does not compare the two sides: it is the share of the canary's
# own first tokens that are late, and the bound is what a p99 within its SLO allows.) And how does the window's canary
# look in all answers, in a slice that fits into the window, and in the one that does not?

# %%
for line in canary_traffic.lines_of(canaries["as it is"][looks.index(5000)], by_slice=True):
    print(line)

# %%
from twophase_labs.operations import choice_pictures

window = {look.num_requests: look for look in canaries["window of 320"]}
of_all = {num: canary_traffic.lines_of(look, by_slice=False) for num, look in window.items()}
of_slices = {num: canary_traffic.lines_of(look, by_slice=True) for num, look in window.items()}
both = {num: [*of_all[num], *of_slices[num]] for num in window}
choice_pictures.draw_looks(both, ["answers", "facts, short text", "facts, long text"])

# %% [markdown]
# **Read the result.** The candidate of the first two lines is the same engine as before; judged slice by slice, it
# takes many requests until enough of the intervals are narrow. Those of the rarest slice and of the rarest event stay
# wide longest. The window's loss in all answers stays within its bound, because few requests are long; judged by all
# answers alone, it waits, at first because that line is not surely kept, later because answers and late tokens together
# may have used up more than half of what they may lose; in the end it may pass. The slice of long texts breaks its
# bound, and a line of its own says so while the line of all answers is still open. All answers together can hide any
# slice that is small enough: slice by what you change (prompt and completion length, hit or miss in the prefix cache,
# guided or free, speculative or not, tenant, pool), and give each slice its bound.

# %% [markdown]
# > **In production, 2026.** Istio [mirrors](https://istio.io/docs/tasks/traffic-management/mirroring) a percentage of
# > live requests out of band (`mirrorPercentage`), and throws the answers away: to compare them, log both sides.
# > nginx's [`split_clients`](https://www.nginx.org/docs/http/ngx_http_split_clients_module.html) is this splitter, with
# > a 32-bit MurmurHash2; weights on a route, in contrast, mostly draw for each request anew. Argo Rollouts ends an
# > [analysis](https://argoproj.github.io/argo-rollouts/features/analysis/) as `Successful`, `Failed` or `Inconclusive`,
# > and pauses on the last. A shadow doubles the load: on an H100 it needs a second engine with its own K/V pool, and
# > its prefix cache warms only as fast as its share of the traffic allows.
#
# **Takeaway.** After ten requests a rate of 90 % may be anything from 59.6 % to 98.2 %, after a thousand from 88.0 % to
# 91.7 %: bounds and weights come before the canary, and on few requests the verdict is to wait.

# %% [markdown]
# ### Going further: looking often, and another mix
#
# A verdict that is asked again after every 100 requests has many chances to be unlucky. Here both sides are the same
# engine, 2,000 times over, with twenty looks each. How many are rolled back?

# %%
# NBVAL_CHECK_OUTPUT
alarms = canary_traffic.false_alarms()
for rule, share in alarms.items():
    print(f"{share:6.1%}  {rule}")

# %% [markdown]
# **Read the result.** "More than two points worse" on the dashboard rolls back half of all canaries that are as good as
# what they replace. A 95 % interval lies above 0 by mistake in 2.2 % of the cases at one look (and below it about as
# often), and in 11.5 % at one or more of *twenty*. A canary that will be looked at twenty times needs a stricter
# interval at each look (the last line divides the error by twenty, the simplest rule). Your verdict is harder to fool
# into rolling back: it does so only if the whole interval is beyond a *bound*, not beyond 0. But twenty looks are also
# twenty chances to *promote* a canary whose loss is just beyond its bound: fix beforehand after how many requests you
# look, and promote only at the last look.

# %% [markdown]
# Tenants stay on their side, so the canary may have more of the easy slices than the rest, and look better on average
# while it is worse in each slice (Simpson's paradox). Compare both sides at *one* mix, the baseline's: weight each of
# the canary's slices by how often it comes on the other side.

# %% [markdown]
# ## 9. Spending more on an answer
# <!-- minutes: 0 + 28 -->
#
# Most of this course made the *same* answer cheaper. One can also pay more for a better answer: ask again, ask for the
# steps, search, check, and choose. This is called **test-time scaling**. It must not be confused with speculative
# decoding, which spends compute to get the same answer sooner: here more compute should give a different and better
# answer, later.
#
# SmolLM2 adds three one-digit numbers, at once or in steps, after three worked examples:

# %%
from twophase_labs.operations import more_samples

for way in more_samples.MAX_TOKENS:
    print(more_samples.prompt(more_samples.sums()[0], way).splitlines()[-1] + more_samples.greedy(way)[0].text)
for way in more_samples.MAX_TOKENS:
    print(more_samples.of_one(f"greedy, {way}", more_samples.greedy(way)).line)

# %% [markdown]
# **Think first.** Say that one completion is right in fewer than half of the tasks. Eight completions of each task are
# drawn at temperature 0.7. When will the most frequent answer be better than that of one completion? When worse?

# %% [markdown]
# ### What is in the samples
#
# The first question about several completions is whether a right one is among them at all: **pass@k**, the probability
# that at least one of k is right. From n completions of a task with c right ones it is estimated by counting, of all
# ways to choose k of the n, those that contain a right one (arXiv:2107.03374, equation 1):
#
# $$\text{pass@}k = 1 - \binom{n - c}{k} \Big/ \binom{n}{k}$$

# %%
from twophase_labs.operations import selection

n = more_samples.NUM_COMPLETIONS
for way in more_samples.MAX_TOKENS:
    right = more_samples.num_right(way)
    pass_at = [sum(selection.pass_at_k(n, c, k) for c in right) / len(right) for k in (1, 2, 4, n)]
    print(f"{way}: pass@1, 2, 4, {n}:", ", ".join(f"{share:.0%}" for share in pass_at))
    first, later = more_samples.plurality_is_right(way)
    print(f"   a right answer is drawn for {later} of {len(right)} tasks, and is the most frequent one in {first}")

# %% [markdown]
# **Read the result.** The right answers are there: in both ways, far more tasks have a right answer among eight
# completions than a single completion gets right. (Where two answers are equally frequent, the last count above decides
# for the right one; the votes below break such ties by the order of the completions.) What is left is to choose, and
# that is the hard part.
#
# ### Ways to choose
#
# - **Best of n by likelihood**: the completion with the highest mean log-probability. (By the *sum*, short ones win.)
# - **Self-consistency** (arXiv:2203.11171): read each completion's answer, and take the most frequent one. If wrong
#   paths end in different answers and right ones meet in one, votes find it.
# - **Beam search**: no samples. The engine keeps the n likeliest beginnings (*beams*), continues each, and keeps the n
#   likeliest again; beams share blocks by the `fork` of lab 3, section 3.
# - **A verifier**: a check that tells a right answer from a wrong one and costs less than producing one: tests for
#   code, a schema, a query that runs, a proof checker, a trained model. Here: are all equations in the completion right
#   (`adds_up`)? A second verifier also asks whether they are the task's (`is_derived`).

# %%
from collections import Counter


def most_frequent(task, samples):
    counts = Counter(s.value for s in samples if s.value is not None)
    return counts.most_common(1)[0][0] if counts else None


def likeliest(task, samples):
    return max(samples, key=lambda s: s.score).value


adds_up = more_samples.first_accepted(lambda task, text: more_samples.adds_up(text))
is_derived = more_samples.first_accepted(more_samples.is_derived)

# %%
ways = {
    "at once: most frequent": (most_frequent, "at once"),
    "in steps: most frequent": (most_frequent, "in steps"),
    "in steps: likeliest": (likeliest, "in steps"),
    "in steps: first that adds up": (adds_up, "in steps"),
    "in steps: first that is derived": (is_derived, "in steps"),
}
curves = {
    name: [more_samples.accuracy(name, choose, way, k) for k in (1, 2, 4, n)] for name, (choose, way) in ways.items()
}
points = [more_samples.of_one(f"greedy, {way}", more_samples.greedy(way)) for way in more_samples.MAX_TOKENS]
points += [more_samples.of_one(f"2 beams, {way}", more_samples.beams(way), 2) for way in more_samples.MAX_TOKENS]
points += [more_samples.any_right(way) for way in more_samples.MAX_TOKENS]
for line in [*points, *(found[-1] for found in curves.values())]:
    print(line.line)

# %%
choice_pictures.draw_accuracy(curves, points)

# %% [markdown]
# **Read the result.** There are only twenty-four tasks: look at the intervals before you believe a difference.
#
# - **At once, votes hardly help.** A task's answers come from one distribution, and the most frequent one is wrong for
#   more than half of the tasks, as counted above; more samples only make that more certain. Votes help in tasks in
#   which the model is right *more often than it makes any one mistake*; in the others they pick the mistake. In steps
#   the vote of eight does no better than one greedy answer.
# - **Depth against breadth.** One answer in steps takes as many tokens as five or six at once, and is right for more
#   tasks than their vote. Here tokens are better spent in a row than side by side. The price is time: a row of tokens
#   takes as many decode steps as it has tokens; tokens side by side share a step.
# - **The likeliest is not always right.** Likelihood, beams and votes all end far below what pass@8 says is there: they
#   look for what the model finds probable, and its mistakes are probable to it. (In open-ended texts the likeliest is
#   worse: flat and repetitive. Beams suit translation or transcription, where the one right text is nearly the
#   likeliest.)
# - **A verifier turns samples into accuracy**, as far as right ones are drawn. It may refuse all of them, and then
#   there is no answer: with one completion the verifiers' curves begin below the other curves in steps. How good are
#   the two?

# %%
for name, accepts in {
    "adds up": lambda task, text: more_samples.adds_up(text),
    "is derived": more_samples.is_derived,
}.items():
    accepted = [
        s.value == task.result
        for task, samples in zip(more_samples.sums(), more_samples.completions("in steps"), strict=True)
        for s in samples
        if accepts(task, s.text)
    ]
    print(f"{name}: accepts {len(accepted)} completions, {sum(accepted)} of them right")

# %% [markdown]
# Equations can hold and still not be the task's. Every further sample is also a search for the verifier's mistakes:
# what it accepts wrongly bounds what sampling can reach, and what it costs belongs on the bill (here next to nothing:
# checking a sum is as easy as adding). The second verifier accepts fewer, and no wrong one.

# %% [markdown]
# ### What it costs
#
# Several completions of a prompt are one request: the prompt is computed once, its blocks are shared, and in a decode
# step all rows use the same read of the weights. Time per step by the number of completions, on this machine:

# %%
for num, ms in more_samples.step_times().items():
    print(f"{num:2} completions: {ms:6.1f} ms a step, {ms / num:6.1f} ms for each token")

# %% [markdown]
# **In tokens, eight cost eight times as much; in time, at low load, much less**: by roofline, a GPU's step of one
# sequence reads the weights just as a step of eight does. At full load there is no idle arithmetic, and every row takes
# the place of another request's. Then the tokens are the price, and the question is: eight completions, or a model of
# eight times the size? That needs the larger model's accuracy on your task; measure both, at equal cost.
#
# ### Stop when it is good enough
#
# Many requests are easy. With a verifier there is no need to draw eight for each: try the cheap way, check, and spend
# more only where it failed. The same loop is a **tiered path** of models: small, large, person.

# %% [markdown]
# <!-- card 8.12 -->
# Write the loop. It has a budget, and never returns what the verifier rejected.


# %% tags=["exercise:8.12"]
def answer_within(tiers, accepts, budget):
    """The first answer that the verifier accepts, and the tokens spent on all tries: (answer, tokens).

    tiers: a list of (ask, num_tries, max_tokens), cheap ones first. `ask()` returns (answer, tokens used), at most
    max_tokens. A tier is asked up to num_tries times, then the next. accepts(answer) is the verifier: True or False.
    budget: tokens to spend in all; a try begins only if its max_tokens fit into what is left, and a tier that does not
    fit is passed over for the next. Where nothing is accepted the answer is None.

    >>> short, long = (lambda: ("5", 3)), (lambda: ("2 + 2 = 4", 9))
    >>> answer_within([(short, 2, 4), (long, 1, 20)], lambda text: text.endswith("4"), budget=100)
    ('2 + 2 = 4', 15)
    >>> answer_within([(short, 2, 4), (long, 1, 20)], lambda text: text.endswith("4"), budget=25)
    (None, 6)
    """
    # BEGIN SOLUTION: two loops, and where nothing was accepted (None, tokens)
    spent = 0
    for ask, num_tries, max_tokens in tiers:
        for _ in range(num_tries):
            if spent + max_tokens > budget:
                break
            answer, num_tokens = ask()
            spent += num_tokens
            if accepts(answer):
                return answer, spent
    return None, spent
    # END SOLUTION


# %%
check("8.12")

# %% [markdown]
# **With the completions from above.** First one greedy answer in steps, then up to eight drawn ones, verified by
# `is_derived`; against drawing eight for every task.

# %%
answer_within = use("8.12")
for budget in (30, 60, 120, 240):
    num_right = spent = 0
    for number, task in enumerate(more_samples.sums()):
        tiers = more_samples.tiers_of(number)
        answer, tokens = answer_within(tiers, lambda s, task=task: more_samples.is_derived(task, s.text), budget)
        num_right += answer is not None and answer.value == task.result
        spent += tokens
    num = len(more_samples.sums())
    print(
        f"at most {budget:3} tokens: {num_right} of {num} answered, all verified, {spent / num:5.1f} tokens on average"
    )
print(f"eight for each: {curves['in steps: first that is derived'][-1].tokens:5.1f} tokens")

# %% [markdown]
# **Read the result.** With a budget of 120 tokens the loop answers as many tasks as eight completions for each, for
# less than a third of their tokens. Twice the budget buys nothing more: the tasks that are left have no completion that
# the verifier accepts. The tries of a tier come one after the other, which costs time; asking for two or four at once
# in each tier saves time and costs tokens.
#
# **Open the source.** `first_accepted` is this loop on an engine (`twophase generate --best-of 8` chooses by
# likelihood). It asks for `round_size` completions at a time, and the last round may go beyond the budget:

# %%
show_source(selection.first_accepted, first="num_samples = num_tokens")

# %% [markdown]
# > **In production, 2026.** vLLM has `n` in
# > [`SamplingParams`](https://docs.vllm.ai/en/v0.15.0/api/vllm/sampling_params/), and beam search as a method of its
# > own with `BeamSearchParams(beam_width, max_tokens, length_penalty)`; `best_of` was removed with its [first
# > engine](https://docs.vllm.ai/en/stable/usage/v1_guide/), so choosing is the client's business: ask for `logprobs`
# > and `n`. Reasoning models move depth into the model: their long thoughts are decode, and a budget on tokens
# > (`max_tokens`) is the first thing to set. By roofline, a step of Llama-3-8B on an otherwise idle H100 takes 6 ms for
# > eight completions as for one; among 256 sequences, they take eight places.
#
# **Takeaway.** One answer in steps, of some 22 tokens, was right more often than the vote of eight at once, of some 32
# together; and of the ways to choose among eight, a verifier came nearest to pass@8, which none can exceed.

# %% [markdown]
# ### Going further: other ways to spend tokens
#
# - **Critique and revise**: the model reads its answer and writes it anew. It helps if finding a mistake is easier than
#   avoiding it. Without outside evidence (a test, a tool) even large models often change right answers into wrong ones
#   (arXiv:2310.01798).
# - **Process rewards and tree search**: a verifier that scores *steps* can stop a path at its first wrong equation, and
#   spend the tokens on others (arXiv:2305.20050). Trees share prefixes, as forks and the prefix cache do. Below it is
#   tried.
# - **Which one?** It depends on what must not happen. If an answer must not be *wrong* (a sum, a query, code), verify,
#   and refuse. If it must not be *flat* (a story, a slogan), sample at a higher temperature and let a person choose; a
#   vote or the likeliest text would be flat.
#
# The completions in steps once more, drawn one after the other until `is_derived` accepts one. A verifier that looks at
# each equation as soon as it is complete stops the wrong ones there:

# %%
# NBVAL_CHECK_OUTPUT
for name, stops in {"whole completions": False, "stopped at a wrong equation": True}.items():
    tokens = [more_samples.tokens_until_accepted(number, stops) for number in range(len(more_samples.sums()))]
    print(f"{name:28} {sum(tokens) / len(tokens):5.1f} tokens a task")

# %% [markdown]
# **Read the result.** The answers are the same, since only what would have been rejected is stopped. How much is saved
# depends on how early mistakes can be seen: here there are two equations, in a proof there are hundreds.

# %% [markdown]
# ## 10. Choosing by the bottleneck
# <!-- minutes: 0 + 13 -->
#
# "Which engine is the fastest?" has no answer; "what do my requests wait for?" has one. Below are five services, each
# on one H100 (by roofline at 60 % of its arithmetic and 80 % of its bandwidth, not run here; prompts and decodes take
# turns; `host` is an assumption: 1.5 ms a step that nothing hides). A request's prompt has tokens that were seen before
# and new ones; weights and host work of a step are shared by its batch.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.operations import bottlenecks

for service in bottlenecks.SERVICES:
    print(f"{service.name:<11} prompt {service.seen:5,} + {service.new:6,}, completion {service.out:5,}", end="")
    print(f" tokens, {service.batch} at a time, {service.num_weights / 1e9:.2f} billion weights")
print()
print(bottlenecks.table())

# %%
choice_pictures.draw_parts(bottlenecks.SERVICES)

# %% [markdown]
# <!-- card 8.13 -->
# Which improvement raises each service's requests per second most? **a** K/V in 8 bits: half of `K/V` · **b** a prefix
# cache: of tokens seen before, a tenth is still computed · **c** weights and activations in fp8: half of `weights`, and
# prompts in 0.55 of their time · **d** weights in 4 bits: their bytes fall to 0.28 · **e** steps planned ahead, graphs:
# a tenth of `host` is left


# %% tags=["exercise:8.13"]
answer_8_13 = {
    "agents": "b",  # SOLUTION: a letter
    "chat": "d",  # SOLUTION: a letter
    "completion": "e",  # SOLUTION: a letter
    "documents": "a",  # SOLUTION: a letter
    "summaries": "c",  # SOLUTION: a letter
}

# %%
check("8.13")

# %%
# NBVAL_CHECK_OUTPUT
print(bottlenecks.gains())

# %% [markdown]
# **Read the result.** Each improvement is the best one for one of these services; each of them but **c**, which touches
# weights and prompts, wins less than a tenth for another. And it is not enough to look at the largest part: summaries
# wait longest for the weights, yet **d**, which shrinks these most, gains less than **c**, which shrinks two parts. An
# improvement can win no more than the part it touches (Amdahl's law): so the profile comes first, the framework second.
#
# **Takeaway.** The same prefix cache lets one GPU serve 2.54 times as many agents' requests and no more chats; weights
# in 4 bits 2.27 times as many chats, and 1.08 times as many agents' requests.

# %% [markdown]
# ### Going further: which engine?
#
# **Four questions**, in this order. *What do my requests wait for?* Measure: TTFT in its terms, hit rate, batch, step
# time against its roof. *Which hardware, and may it change?* *What is unusual about the model* (experts, windows,
# adapters, guided output), and is it supported today? *Who will run it*, and which metrics do they need?
#
# | | made for | look here first when |
# |---|---|---|
# | **vLLM** | many models on many kinds of hardware | one engine should serve all of it |
# | **SGLang** | prompts that share prefixes, structured output | agents, long common prefixes |
# | **TensorRT-LLM** | NVIDIA's GPUs, their newest number formats | the hardware is fixed, and steps count most |
# | **llama.cpp** | any one machine: CPUs, laptops, GGUF files | few requests at a time, little memory |
# | **TGI** | in maintenance mode | you run it already: plan to move |
#
# **The cheapest thing to try, by setting.** Prompts with common parts: put the common part first. A late first token: a
# chunk size that fits (lab 4). Little memory: K/V in 8 bits behind the gate. One sequence at a time: weights in 4 bits,
# then a draft (lab 5). Mostly prompts: fp8 arithmetic. Output that code reads: a grammar in place of retries. Compress,
# or take a smaller model? Lab 6 answers by bits and by what the gate says.

# %% [markdown]
# > **In production, 2026.** Much of the difference is a default. Prefix caching is on in vLLM (off with
# > `--no-enable-prefix-caching`), [SGLang](https://docs.sglang.io/advanced_features/server_arguments.html)
# > (`--disable-radix-cache`) and
# > [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheConfig.html) (`enable_block_reuse`).
# > vLLM hides the host's work by [async scheduling](https://github.com/vllm-project/vllm/pull/27614), on by default
# > since 0.14 (off with `--no-async-scheduling`), SGLang by its overlap scheduler (`--disable-overlap-schedule`). K/V
# > in 8 bits is `--kv-cache-dtype fp8` in vLLM and `fp8_e4m3` in SGLang. TensorRT-LLM runs on PyTorch alone now; its
# > compiled engines [have been removed](https://nvidia.github.io/TensorRT-LLM/legacy/tensorrt-backend-removal.html).
# > TGI's own [documentation](https://huggingface.co/docs/text-generation-inference/en/index.md) recommends vLLM and
# > SGLang, and llama.cpp locally, whose [README](https://github.com/ggml-org/llama.cpp) promises minimal setup on a
# > wide range of hardware.

# %% [markdown]
# ## 11. Capstone: the first cell again
# <!-- minutes: 4 -->
#
# The same six clients at the same moment. Your `EventReader` reads their streams. The tenant's limit of two requests at
# a time is gone; your bucket is in its place, with 6 at once and one a second.

# %%
after = two_clocks.six_at_once(TokenBucket, EventReader)
for name, run in (("before", before), ("after", after)):
    print(f"{name:7}{run.server_line}")
    print(f"{name:7}{run.client_line}, {run.num_refusals} refusals")

# %% [markdown]
# **Read the result.** The missing time was never in the engine. Four clients were told to come back in a second, and
# some of them were told so again; a refused request has no first token, so no histogram of the server counts its wait.
# With the bucket the six run together in one batch: the clients' mean falls to a fraction, and the server's *rises*,
# because six prompts share their steps now. A dashboard alone would call that a step back. (A limit of six at a time
# would do as much for these six. A bucket bounds the rate and not what is in flight, so production keeps both.) The
# latency that a server measures is that of the requests it let in.

# %% [markdown]
# **Takeaway.** Before, four of six clients waited for a second or more of which the server's clock knew nothing; after,
# none did, because all six fit into the new limit.

# %% [markdown]
# ## 12. Knowledge check
# <!-- minutes: 7 -->

# %% [markdown]
# <!-- card 8.14 -->
# **slow**: one customer says that its first tokens take 5 s. On the dashboard p99 of the time to first token is 0.4 s,
# for this customer as for the others. **a** its prompts are longer than the others' · **b** it is refused at first, and
# its client library tries again without saying so · **c** it waits behind another tenant's batch job · **d** the
# quantile is interpolated.
#
# **dead**: the engine's process has been gone for an hour, and nothing can be scraped from it. There are alerts on
# queue age, K/V saturation and late answers, and none fires. **a** their thresholds are too high · **b** their patience
# is too long · **c** a missing sample is above no threshold · **d** the counters were reset.
#
# **canary**: after 20,000 requests a canary has lost 0.4 points of right answers, interval -0.6 to 1.4, bound 2. Three
# slices are surely kept. The fourth, documents, has had 11 requests: loss -20 to 31, bound 5, hard. **a** promote: the
# answers are surely within their bound · **b** roll back: the documents may have lost 31 points · **c** wait for more
# documents · **d** drop the slice: it is too rare to matter.


# %% tags=["exercise:8.14"]
answer_8_14 = {
    "slow": "b",  # SOLUTION: a letter
    "dead": "c",  # SOLUTION: a letter
    "canary": "c",  # SOLUTION: a letter
}

# %%
check("8.14")

# %% [markdown]
# ### Principles
#
# 1. **A stream has no message boundaries.** Code that reads one must cope with a cut anywhere.
# 2. **Refuse early, and say when to come back.** A refusal costs little; a queue without end costs every request.
# 3. **A server's latency counts the requests it let in.** Measure at the client, too, and ask which of six terms is
#    long.
# 4. **Cut a mean into slices** before you believe it.
# 5. **Alert on waiting, before clients feel it**, and on silence.
# 6. **Evidence first.** Late tokens follow from many causes; look for the row that only one cause explains.
# 7. **Give up little things early**, so that large ones need not fail.
# 8. **A verdict may be to wait.** Bounds and weights are written down before the canary starts.
# 9. **More tokens help if something can choose.** A verifier bounds what sampling can reach.
#
# ### What to read next
#
# - The HTML standard, section 9.2, *Server-sent events*: the whole format in two screens.
# - Beyer and others, *Site Reliability Engineering*, O'Reilly 2016, chapters 4 and 6: objectives, and four signals.
# - Dean and Barroso, *The tail at scale*, CACM 56(2), 2013: why a service of many parts is as slow as its slow tail.
# - Prometheus' documentation, *Histograms and summaries*: where the buckets go, and what they cost.
#
# Lab 9 puts all of your parts into one engine.

# %%
from twophase_labs.kit.course_map import closing

closing("8")
