# %% [markdown]
# # Lab 8: operations
#
# The engine is built. Now it runs for others, day and night: behind HTTP, for tenants with quotas, watched through
# metrics and alerts. The first cell puts SmolLM2 behind the server of this repository. Six clients of one tenant
# ask for a few tokens in the same moment. Then two clocks are read: the server's own histogram of the time to first
# token, and the clients'.

# %%
from twophase_labs.operations import two_clocks

before = two_clocks.six_at_once()
print(before.server_line)
print(before.client_line)

# %% [markdown]
# The same six requests, in the same process, on the same clock, and both lines are right. Every client got its answer.
# A dashboard would show the first line. Where is the rest of the second one? Write down where you would look.
# Sections 1 and 2 take a request's time apart, and the capstone repeats this measurement with your work in place.

# %% [markdown]
# <!-- opening minutes: 4 -->
# <!-- map -->

# %% [markdown]
# **After this lab you can**
#
# - read a streamed answer byte by byte, end requests whose clients have gone, and refuse a request so that its client
#   knows when to come back;
# - take a time to first token apart into six terms, read quantiles out of buckets, and find the slice that a mean
#   hides;
# - write an alert that neither flaps nor sleeps, and know what its silence means;
# - find an incident's cause in its traces, survive full memory, and say what a million tokens cost;
# - release a change behind a canary, and decide what to spend per request at test time.
#
# You need labs 3 to 5, or a working knowledge of their subjects: blocks, steps, queues, TTFT and ITL, prefix caching.
# No GPU is needed, and no network: server and clients are real, and talk over this machine's loopback address.
#
# **How it works.** Commit to a prediction, write the code, run `check("8.1")`. `hint("8.1")` helps in up to three
# steps, `reveal("8.1")` shows a solution. If you skip an exercise, later cells use the reference solution and say so.


# %% tags=["setup"]
import math
from itertools import pairwise

import torch

from twophase_labs import ____, check, hint, measured, reference, reveal, use

torch.set_num_threads(1)

# %% [markdown]
# ## 1. The engine behind HTTP
# <!-- minutes: 20 -->
#
# A server adds no speed. It adds what a library call does not have: clients that come when they like, read as slowly as
# they like, and leave without a word. The engine of this server runs in a thread of its own; an event loop in another
# thread speaks HTTP, in the format of OpenAI's interface, so that their clients can use it.

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
# These are **server-sent events**: `data: `, a text, an empty line. Here each chunk holds one event, because server and
# client share a machine. TCP promises no such thing: it carries a stream of bytes, and any box on the way may cut or
# join them.

# %% [markdown]
# **Think first.** The text of the first event below is 'né'; in UTF-8, é is two bytes, C3 and A9. Which chunks can be
# decoded by themselves? After which chunk is the first event complete?

# %%
from twophase_labs.operations import pictures

pictures.draw_cuts(["data: né\n\n".encode(), b"data: [DONE]\n\n"], cuts=(3, 8, 10, 15))

# %% [markdown]
# <!-- card 8.1 -->
# Write the client's half: from bytes, as they come, to events. (Our client makes JSON of each event's text, and knows
# that `[DONE]` is the last one; your class treats it like any other.)


# %% tags=["exercise:8.1"]
class EventReader:
    r"""Server-sent events out of a stream of bytes (UTF-8) that may be cut anywhere, also within a character.

    feed(data): takes the next bytes of the stream, any number of them. Returns a list with the data, as text, of each
        event that is complete by now and was not before: [] if there is none.

    Lines end with a line feed, or with a carriage return and a line feed. An empty line ends an event. A line
    'data:TEXT' is data; one space behind the colon, if there is one, does not belong to TEXT. Several data lines of one
    event are joined by line feeds. Other lines are passed over: comments (they begin with a colon) and other fields. An
    event without a data line is no event.

    >>> reader = EventReader()
    >>> reader.feed(b'data: Par'), reader.feed(b'is\n'), reader.feed(b'\ndata: .\n')
    ([], [], ['Paris'])
    >>> reader.feed(b'data: And\n\n')
    ['.\nAnd']
    """

    # BEGIN SOLUTION: __init__ and feed
    def __init__(self):
        self.rest, self.data = b"", []  # bytes of an unfinished line, data lines of an unfinished event

    def feed(self, data):
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
# A closed browser tab sends no message to the engine. The connection is gone, that is all, and the request would decode
# to its end for nobody. Here a client asks for 200 tokens, reads until the first chunk, and closes its connection:

# %%
with BackgroundServer(llm()) as server:
    reading, gone = server_life.leave_after_first_chunk(server.url)
print(server_life.state_line("before", reading))
print(server_life.state_line("after", gone))

# %% [markdown]
# **Open the server.** The response that writes the events:

# %%
from twophase_labs.kit.open_engine import show_source
from twophase_server.sse import EventStream

show_source(EventStream)

# %% [markdown]
# **Question.** `at_end` aborts the request. Why does it stand in a `finally`, and not behind the last event?
#
# <details><summary>Answer</summary>
#
# When a client has gone, writing to it fails, or the task that writes is cancelled: the last event is never reached.
# All ways out of this method pass through the `finally`, and aborting what has ended already does nothing. For an
# answer that is not streamed nothing is written until the end, so the server must listen for the disconnection instead
# (`while_connected`).
# </details>

# %% [markdown]
# ### Say no, and when to come back
#
# A server that accepts everything has a queue without end, and then all wait. **Back-pressure** is to say no
# early: status `429`, with a header `retry-after` in seconds. Ours says it in two cases. The engine's queue is full
# (`max_queue`), or the tenant has used up its quota. A quota of so many requests *at a time* is easy to check and hard
# on bursts. A **token bucket** limits the *rate*: it holds `capacity` at most, refills evenly, and each request takes
# one. (The name is older than language models. If model tokens are what it counts, a request is charged when it has
# ended, because nobody knows before how long its completion will be; so the level may fall below zero.)

# %% [markdown]
# <!-- card 8.2 -->
# `wait_s(now_s)` says how many seconds it takes until at least one is there, 0.0 if there is one now; it takes nothing.
# `take(amount, now_s)` takes, whatever is there. Times are in seconds and never go back.
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
# Ten come in the same moment.

# %%
TokenBucket = use("8.2")
for line in server_life.flood(TokenBucket):
    print(line)

# %% [markdown]
# **Read the result.** A refused client knows for how long, and the engine never hears of it. What the header says is
# rounded up to whole seconds. If all refused clients obey it to the second, they all come back together: clients should
# add a random part.
#
# **Open the server.** Where it asks its buckets:

# %%
from twophase_server.tenants import Account

show_source(Account.enter)

# %% [markdown]
# **Question.** A tenant has 10,000 tokens per minute, all of them unused, and no other limit. It sends 32 requests of
# 4,000 tokens each in one second. How many are let in?
#
# <details><summary>Answer</summary>
#
# All of them, in this order of things: tokens are taken when a request ends, so for the first seconds nothing seems to
# be used. The tenant pays afterwards, with a debt that takes minutes to come back. `concurrent_requests` is the limit
# that bounds what is in flight; a rate alone does not. (One could take an estimate at the beginning and give back what
# was not used.)
# </details>

# %% [markdown]
# ### Too late, and closing time
#
# Two more ways to end. A **deadline**: an answer that nobody waits for any more is work for nothing, so a request may
# say how long it is wanted. And **draining**: a server that is to stop, for a new version say, refuses what is new and
# finishes what it has accepted; `/ready` says so, so that a load balancer sends no more.

# %%
for line in (*server_life.past_its_deadline(), *server_life.drained()):
    print(line)

# %% [markdown]
# > **In production, 2026.** `vllm serve` speaks the same interface and, like ours, [aborts a request whose client has
# > gone](https://github.com/vllm-project/vllm/pull/32442) in `AsyncLLM.generate` itself. Its `--api-key` takes keys,
# > but has no quotas: those belong to a gateway before several engines. Kubernetes sends SIGTERM and kills [30 s later
# > by default](https://livebook.manning.com/learn/concepts/sigterm--api-element/kubernetes-in-action-second-edition),
# > which is less than a long completion takes: `terminationGracePeriodSeconds` must fit the longest deadline.
#
# **Takeaway.** A client that leaves frees its blocks before the next step, a bucket of 6 refuses 4 of 10 requests
# before the engine hears of them, and a draining server finishes what runs and answers all else with 503.

# %% [markdown]
# ## 2. Metrics
# <!-- minutes: 15 + 6 -->
#
# Prometheus reads `/metrics` every few seconds and keeps what it finds. Three kinds of series are enough. A **gauge**
# is a value of this moment (blocks in use). A **counter** only grows (tokens so far), until its process starts anew. A
# **histogram** has a counter for each of its buckets: how many values were at most so large.
#
# First a load. Three tenants send 17 requests, one after the other: *chat* short ones, *archive* documents, *shop*
# requests whose answer must be one of 9,900 names of products, other names each time. What the dashboard says of it:

# %%
from twophase_labs.operations import scrapes, term_loads

timed, seen = term_loads.mixed_load(EventReader)
print(f"{seen.value('time_to_first_token_seconds_count'):.0f} requests, on average "
      f"{1e3 * seen.mean('time_to_first_token_seconds'):.0f} ms to the first token")  # fmt: skip
for bound, count in seen.buckets("time_to_first_token_seconds")[3:11]:
    print(f"at most {bound:5.3f} s: {count:.0f}")

# %% [markdown]
# **Think first.** A bucket's count is all that is kept of a value. From these lines: between which two times does the
# median lie? Where in between would you put it?

# %% [markdown]
# <!-- card 8.3 -->
# Prometheus' `histogram_quantile`. `buckets` is a list of pairs (upper bound in seconds, number of values up to it), in
# rising order, the last bound `math.inf`; bounds are above 0, and 0 < q <= 1. The value wanted has the rank q times the
# number of all values. It lies in the first bucket whose count reaches the rank. Within the bucket, values are taken to
# be spread evenly from its lower bound (the upper bound of the bucket before, 0 for the first) to its upper bound. In
# the last bucket the answer is its lower bound; without any value it is `math.nan`.
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
# times from the request's arrival at the engine to its first token, so that is what is drawn of each.)

# %%
histogram_quantile = use("8.3")
engine_ttfts_s = [one.output.metrics.ttft_s for one in timed]
pictures.draw_buckets(engine_ttfts_s, seen.buckets("time_to_first_token_seconds"), histogram_quantile)

# %% [markdown]
# **Read the result.** The estimate is as wide as its bucket: between 0.1 s and 0.25 s it can be wrong by a factor of
# 2.5, and no scrape, however frequent, makes it better. Put a bucket's bound at your SLO: the share below a bound is
# exact. And quantiles do not add up: the p99 of two servers is *not* the mean of their p99; add the buckets, then take
# the quantile.

# %% [markdown]
# ### One time, six terms
#
# 'The first token is late' is not a cause yet. Between the client's send and its first text lie six terms, and each has
# another remedy:
#
# | term | what happens | what makes it long |
# |---|---|---|
# | network | the request comes, the first event goes | distance, proxies that collect events |
# | preprocess | JSON, keys, text to tokens, a schema to a grammar | large schemas, long texts |
# | queue | the request waits to be scheduled | too few places or blocks |
# | prefill | its prompt is computed, perhaps in chunks | long prompts, no hit, a full batch |
# | sample | one row of logits becomes a token | grammars, penalties |
# | serialise | the token becomes text, JSON, an event | an event loop that is busy |
#
# The next cell notes the time at each border, on one clock that server and client share. Five requests: a short one; a
# long one; the long one again; one whose answer must be one of 9,900 names; a short one while eight others run.

# %% [markdown]
# **Think first.** Which term will be the largest of each? Which of the five delays *other* requests most?

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
# Short and long differ in the prefill, and a hit takes that back. The grammar of 9,900 names is made in the engine's
# thread between two steps: it delays its own request, and every running one by as much. The last request waits for a
# place. Network and serialising are small here, since nothing leaves this machine.
#
# None of the six is what the first cell's clients waited for. A refused request never gets this far: its time passes
# *outside* all terms, and the server's histogram begins when the request is let in at last.

# %% [markdown]
# ### A mean hides a slice
#
# The mixed load again, cut in four ways:

# %%
for name, slice_of in term_loads.SLICES.items():
    print(term_loads.by_slice(timed, name, slice_of))

# %% [markdown]
# **Read the result.** The majority, chat, sets the median, and the mean lies between groups, where no request is. By
# tenant one sees *that* two of them wait; by prompt and by grammar one sees why, and it is not the same reason. A slice
# is worth what its term tells: a faster prefill would not help the shop, and a cache of grammars not the archive. (The
# shop's first request also pays for something that this process does once, when it is first asked for guided decoding:
# it reads the whole vocabulary. A warm-up request after each start would.)
#
# (Tenant and prompt length are labels that you may put into a metric if they take few values. A label per user makes a
# series per user, and each histogram here has 19 buckets in each.)

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
# ### Going further: a counter that starts again
#
# `request_success_total` counts ended requests. After a restart it counts from 0. A rate must bear that, and scrapes
# that failed.

# %% [markdown]
# <!-- card 8.40 -->
# Write Prometheus' `rate`, without its extrapolation to the ends of the window.


# %% tags=["exercise:8.40"]
def rate(samples):
    """How much a counter grew per second, from its first sample to its last.

    samples: pairs (time in seconds, value), in order of time; a value of None is a scrape that failed, which says
    nothing. A value below the one before means that the process was started anew, and its counter began at 0. With
    fewer than two values: math.nan.

    >>> rate([(0.0, 100.0), (10.0, None), (20.0, 140.0)])
    2.0
    >>> rate([(0.0, 100.0), (10.0, 110.0), (20.0, 30.0)])      # 10, and 30 since the restart
    2.0
    """
    # BEGIN SOLUTION: a float
    there = [(time_s, value) for time_s, value in samples if value is not None]
    if len(there) < 2:
        return math.nan
    grown = 0.0
    for (_, before), (_, after) in pairwise(there):
        grown += after if after < before else after - before
    return grown / (there[-1][0] - there[0][0])
    # END SOLUTION


# %%
check("8.40")

# %% [markdown]
# A real restart: four requests, a new server, two more.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.operations import clients

rate = use("8.40")
read = []
for num_requests in (4, 2):
    with BackgroundServer(llm()) as server:
        clients.ask_all(server.url, [clients.Ask(f"{n} and", 1) for n in range(num_requests)])
        read.append(scrapes.scrape(server.url).value("request_success_total"))
print("read:", read, "| by the difference:", (read[1] - read[0]) / 10)
print("yours:", rate([(0.0, read[0]), (10.0, read[1])]))

# %% [markdown]
# **Read the result.** Taken 10 s apart, these two values give a negative number of requests per second, or 0.2. (What
# was counted between the last scrape and the crash is lost; a rate cannot know it.)

# %% [markdown]
# ## 3. Alerts
# <!-- minutes: 14 -->
#
# Nobody looks at a dashboard at night. An **alert** is a condition over samples, such as 'more than 0.85 of the blocks
# are in use', and a patience: it is *pending* at first, and *fires* only when the condition has held for so long. An
# alert that fires for every spike is switched off by the third night; one that is too patient comes after the
# customers.
#
# Three are often proposed for an engine: **K/V saturation** above 0.85, **fragmentation** above 0.15, and a **queue
# age**, how long the oldest request in the queue has waited.

# %% [markdown]
# **Think first.** A pool at 0.95 with an empty queue; a pool at 0.5 with a queue of 40 s. Which one is in trouble? And
# sequences of 24 tokens in blocks of 16 waste 8 slots of 32: is that an incident?

# %% [markdown]
# <!-- card 8.4 -->
# Write an alert as Prometheus evaluates it, with the two options of a rule, `for` and `keep_firing_for`.


# %% tags=["exercise:8.4"]
class Alert:
    """`Alert(threshold, for_s, keep_firing_s=0.0)`: a condition, 'the value is above the threshold', over time.

    evaluate(now_s, value): the state at this moment, "inactive", "pending" or "firing". Times are in seconds and rise.
        A value of None is a missing sample: the condition is not true then.

    True: it fires if it fires already, or if the condition has been true at every look for at least for_s seconds;
    otherwise it is pending. Not true: an alert that fires goes on firing while the first look at which it was not true
    any more is less than keep_firing_s seconds ago; otherwise, and if it did not fire, it is inactive.

    >>> alert = Alert(threshold=0.85, for_s=30)
    >>> [alert.evaluate(now_s, 0.9) for now_s in (0, 15, 30, 45)]
    ['pending', 'pending', 'firing', 'firing']
    >>> [alert.evaluate(60, 0.5), alert.evaluate(75, 0.9), alert.evaluate(90, None)]
    ['inactive', 'pending', 'inactive']
    """

    # BEGIN SOLUTION: __init__ and evaluate
    def __init__(self, threshold, for_s, keep_firing_s=0.0):
        self.threshold, self.for_s, self.keep_firing_s = threshold, for_s, keep_firing_s
        self.state, self.true_since_s, self.false_since_s = "inactive", None, None

    def evaluate(self, now_s, value):
        if value is not None and value > self.threshold:
            self.false_since_s = None
            if self.true_since_s is None:
                self.true_since_s = now_s
            if self.state != "firing":
                self.state = "firing" if now_s - self.true_since_s >= self.for_s else "pending"
            return self.state
        self.true_since_s = None
        if self.state == "firing":
            if self.false_since_s is None:
                self.false_since_s = now_s
            if now_s - self.false_since_s < self.keep_firing_s:
                return self.state
        self.state, self.false_since_s = "inactive", None
        return self.state

    # END SOLUTION


# %%
check("8.4")

# %% [markdown]
# **On the real server, in a burst.** Eighteen requests come within about two seconds, each of them long enough for
# eight of the 36 blocks. The server is scraped ten times a second meanwhile, and five of your alerts look at each
# scrape. (In production a scrape comes every 15 s, and patience is minutes. Here everything is faster.) An answer is
# late if its first token takes longer than 2 s, or never comes. Which alert fires before a client has waited for that
# long?

# %%
from twophase_labs.operations import burst

Alert = use("8.4")
crowd = burst.burst()
alerts = [
    ("K/V saturation", Alert(0.85, 0.3, keep_firing_s=1.0)),
    ("queue age", Alert(0.5, 0.3)),
    ("fragmentation", Alert(0.15, 0.3)),
    ("refusals", Alert(0, 0.0)),
    ("late answers", Alert(0.1, 0.0)),
]
told = burst.play(crowd, alerts)
for one in told:
    print(one.line)
late_s = crowd.first_late_s
print("no client was late" if late_s is None else f"a client has waited for 2 s after {late_s:5.2f} s")

# %%
pictures.draw_alerts(crowd, told, [alert.threshold for _, alert in alerts])

# %% [markdown]
# **Read the result.** *Late answers* comes last by its nature: an answer is late long before it can be counted as late
# (by this server when its request has ended, by vLLM when the first token comes). *Queue age* needs no end of a
# request, and none of a step: it grows while the engine hangs. *Saturation* goes up and down with every wave of
# requests: a full pool is what the memory was bought for, and trouble only together with a queue. *Fragmentation* is
# high when sequences are short, which is no incident at all: with blocks of 16, half a block is lost per sequence on
# average, so 0.15 suits sequences of 45 tokens (8 of 53 slots) and more. *Refusals* is the only one that sees what the
# first cell's clients saw.

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
# **Read the result.** Without samples the first alert resolves: all is quiet, because all is lost. So each target needs
# an alert on its own absence (Prometheus makes a series `up` for that, 0 when a scrape fails), and the engine one on
# its thread: our `/metrics` still answers, with `twophase:engine_up` at 0, when the engine's thread has died.

# %% [markdown]
# > **In production, 2026.** [Prometheus'
# > rules](https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/) are YAML: `expr:
# > vllm:kv_cache_usage_perc > 0.85`, `for: 5m`, `keep_firing_for: 5m`; pending and firing are its words. vLLM has
# > `vllm:num_requests_waiting`, which is a number; how *long* requests have waited is in
# > `vllm:request_queue_time_seconds`, but only once they have been scheduled. SGLang's counterparts are
# > `sglang:num_queue_reqs` and `sglang:token_usage`. On an H100, by roofline, a decode step of Llama-3-8B takes about 6
# > ms: a scrape every 15 s sees one step of 2,500, so short spikes are for histograms.
#
# **Takeaway.** Of five alerts, queue age alone needs no request to end before it can fire and means trouble whenever it
# does; at 0.5 s with 0.3 s of patience it can fire 0.8 s after a wait begins, well before an SLO of 2 s is broken.

# %% [markdown]
# ## 9. Capstone: the first cell again
# <!-- minutes: 3 -->
#
# The same six clients in the same moment. Your `EventReader` reads their streams. The tenant's limit of two requests at
# a time is gone; your bucket stands in its place, with 6 at once and one a second.

# %%
after = two_clocks.six_at_once(TokenBucket, EventReader)
for name, run in (("before", before), ("after", after)):
    print(f"{name:7}{run.server_line}")
    print(f"{name:7}{run.client_line}, {run.num_refusals} refusals")

# %% [markdown]
# **Read the result.** The missing time was never in the engine. Four clients were told to come back in a second, and
# some of them were told so again; a refused request has no first token, so no histogram of the server counts its wait.
# With the bucket the six run together in one batch, and both clocks agree, up to the network and the server's own
# terms. A latency that a server measures is that of the requests it let in.

# %% [markdown]
# **Takeaway.** The same six requests: a second or more apart by two clocks before, less than a tenth of one after, by
# one limit that allows a burst.

# %% [markdown]
# ## 10. Knowledge check
# <!-- minutes: 5 -->

# %% [markdown]
# <!-- card 8.15 -->
# Three calls at night.
#
# **slow**: one customer's first tokens take 5 s, it says. On the dashboard p99 of the time to first token is 0.4 s, for
# this tenant as for the others. **a** its prompts are longer than the others' · **b** it is refused at first, and its
# client library tries again without a word · **c** it waits behind another tenant's batch job · **d** the quantile is
# interpolated.
#
# **dead**: the engine has not answered for an hour. There are alerts on queue age, K/V saturation and late answers, and
# none fires. **a** their thresholds are too high · **b** their patience is too long · **c** a missing sample is above
# no threshold · **d** the counters were reset.
#
# **quota**: a tenant with 10,000 tokens a minute and no other limit, charged when a request ends, has used nothing for
# an hour. Now it sends 32 requests of 4,000 tokens each. **a** 2 of them are served, the others refused · **b** 150 are
# allowed, for the unused hour · **c** all are served, and the next one is refused for almost 12 minutes · **d** all are
# refused, since together they are too many.


# %% tags=["exercise:8.15"]
answer_8_15 = {
    "slow": "b",  # SOLUTION: a letter
    "dead": "c",  # SOLUTION: a letter
    "quota": "c",  # SOLUTION: a letter
}

# %%
check("8.15")

# %% [markdown]
# ### Principles
#
# 1. **Bytes have no borders.** Whatever reads a stream must bear a cut anywhere.
# 2. **Who leaves is forgotten at once.** Blocks belong to those that still read.
# 3. **Say no early, and say when.** A refusal costs nothing; a queue without end costs all.
# 4. **A latency counts those that were let in.** Measure at the client, too.
# 5. **Ask which term.** Each of the six has another remedy.
# 6. **Cut the mean into slices** before you believe it.
# 7. **Alert on waiting, before it is felt**, and on silence.
#
# ### What to read next
#
# - The HTML standard, section 9.2, *Server-sent events*: the whole format in two screens.
# - Beyer and others, *Site Reliability Engineering*, O'Reilly 2016, chapters 4 and 6: objectives, and four signals.
# - Dean and Barroso, *The tail at scale*, CACM 56(2), 2013: why the p99 is what users feel.
# - Prometheus' documentation, *Histograms and summaries*: where the buckets go, and what they cost.
