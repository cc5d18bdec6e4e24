# %% [markdown]
# # Lab 7: many machines
#
# One engine on one machine is not enough: there are too many requests, or the model is too large. This lab is about
# what happens between machines: what travels, how often, how long it takes, and who decides. The first cell simulates
# (on data sheets' numbers, with the engine's real scheduler) four H100s that serve Llama-3-8B to 96 customers, each
# with a long instruction of its own. Only one thing differs between its two lines: the rule by which the front end
# chooses an engine for a request.

# %%
from twophase_labs.many_machines import fleets

in_turn, other_rule = fleets.two_rules()
print(in_turn.line)
print(other_rule.line)

# %% [markdown]
# The engines, the requests and their times of arrival are the same in both lines. In the first line each engine gets as
# many requests as any other, and three quarters of all requests miss their SLO (a first token within 0.5 s, then at
# most 30 ms per token on average). More than half miss the TPOT: the steps that decode them also compute too many
# prompts. What does the other rule know? Write down what you expect. Section 6
# builds the rule, and section 8 repeats this measurement with yours.

# %% [markdown]
# <!-- opening minutes: 4 -->
# <!-- map -->

# %% [markdown]
# **After this lab you can**
#
# - hand a prompt's K and V from one process to another, bit for bit, and say what the link must carry;
# - recover from a lost message without changing a token;
# - split a layer over ranks (heads, MLP, experts), and count what the ranks exchange;
# - choose an engine for a request by its prefix and its load, and size prefill and decode pools.
#
# You need labs 1 to 5, or a working knowledge of their subjects: blocks, prefill and decode steps, rooflines, prefix
# caching, SLOs. No GPU is needed. Processes are real (two of them, with gloo between them); fleets of GPUs are
# simulated, and what a GPU would do is estimated by roofline from data sheets.
#
# **How it works.** Commit to a prediction, write the code, run `check("7.1")`. `hint("7.1")` helps in up to three
# steps, `reveal("7.1")` shows a solution. If you skip an exercise, later cells use the reference solution and say so.
# Each section follows the course's [method](../docs/method.md).


# %% tags=["setup"]
import torch
import torch.nn.functional as F

from twophase_labs import ____, check, hint, measured, reference, reveal, use
from twophase_labs.many_machines.layer_blocks import stored

torch.set_num_threads(1)

# %% [markdown]
# ## 1. Disaggregation: prefill here, decode there
# <!-- minutes: 39 + 4 -->
#
# An engine that does both phases computes prompts, which is arithmetic, and decodes, which waits for memory. Chunks
# (lab 4) let them share a step. **Disaggregation** separates them: some engines compute prompts, others decode, and
# each pool can be bought, configured and sized for its own job (DistServe, arXiv:2401.09670; Splitwise,
# arXiv:2311.18677). The price is a hand-over: a prefill leaves K and V in blocks of *its* pool, and the completion is
# decoded from blocks of another one.

# %% [markdown]
# **Think first.** The prompt lies in blocks 7, 3, 6 of one pool. The other pool has blocks 2, 9, 5 free. What must
# travel, what must not, and which numbers mean nothing on the other side?

# %%
from twophase_labs.many_machines import hand_over_pictures

hand_over_pictures.draw_hand_over(num_tokens=10, block_size=4, here=(7, 3, 6), there=(2, 9, 5))

# %% [markdown]
# A block's id is an address in one pool. Only a token's *position* in its sequence means the same on both sides. So
# rows travel, in the order of positions, and each side maps positions to slots by its own block table. A layer's K and
# V are complete as soon as the layer has been computed, so they can travel **layer by layer**.

# %% [markdown]
# <!-- card 7.1 -->
# `layer` is a `LayerKV` of the engine: `layer.k[block, head, offset]` is the key of one slot. `stored(layer)` lists the
# tensors: K, V and, when quantised, the scales of both, which are `[block, head, offset]`. `block_ids` has as many
# blocks as the tokens need, the last one partly full. A message has one tensor for each that `stored(layer)` lists, and
# its row t is that of token t. The two pools may have different block sizes.
#
# ```python
# slots_of([7, 3], num_tokens=6, block_size=4)   # blocks 7 7 7 7 3 3, offsets 0 1 2 3 0 1
# take_layer(layer, [7, 3], 6)[0].shape == (6, num_kv_heads, head_dim)
# ```


# %% tags=["exercise:7.1"]
def slots_of(block_ids, num_tokens, block_size):
    """Block and offset of each position."""
    positions = torch.arange(num_tokens)
    blocks = torch.tensor(block_ids)[positions // block_size]  # SOLUTION: the block of each position
    offsets = positions % block_size  # SOLUTION: its place in the block
    return blocks, offsets


def take_layer(layer, block_ids, num_tokens):
    """Everything that one layer stores of a prompt, a row per token."""
    blocks, offsets = slots_of(block_ids, num_tokens, layer.k.shape[2])
    return [pool[blocks, :, offsets] for pool in stored(layer)]  # SOLUTION: a tensor of rows for each thing stored


def put_layer(layer, block_ids, message):
    """Write a message into these blocks of another pool."""
    blocks, offsets = slots_of(block_ids, len(message[0]), layer.k.shape[2])
    for pool, rows in zip(stored(layer), message, strict=True):
        # BEGIN SOLUTION: write the rows into their slots
        pool[blocks, :, offsets] = rows
        # END SOLUTION


# %%
check("7.1")

# %% [markdown]
# **The real model, two pools.** SmolLM2 computes a prompt in the first pool. Your functions move its 30 layers into
# other blocks of a second pool. Then both pools go on, each from its own blocks.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.many_machines import hand_over

_, take_layer, put_layer = use("7.1")
for stored_as in ("float32", "int8"):
    moved = hand_over.hand_over(take_layer, put_layer, kv_cache_dtype=stored_as)
    print(f"{stored_as}: {moved.num_bytes:,} bytes moved, largest difference of logits {moved.largest_difference:g}")
    print("  here ", repr(moved.text_here))
    print("  there", repr(moved.text_there))

# %% [markdown]
# **Read the result.** The logits are equal, not nearly equal: moving copies bits, so any difference at all is a bug.
# Test a hand-over like this, not by reading the text. (The int8 text differs because K and V are rounded, alike in both
# pools; the move does not cause it.)

# %% [markdown]
# ### When is everything there?
#
# If layers leave while later ones are being computed, most of the transfer hides behind arithmetic. How much is left
# depends on the link.

# %%
hand_over_pictures.draw_overlap(num_layers=8, compute_ms=30.0, transfer_ms=6.6)

# %% [markdown]
# <!-- card 7.2 -->
# Write the timetable of one prompt's layers on one link.


# %% tags=["exercise:7.2"]
def arrival_times(compute_s, transfer_s, latency_s):
    """When the K and V of each layer have arrived on the other side, in seconds after the prefill began.

    compute_s: seconds that each layer takes to compute, one layer after the other. transfer_s: seconds for which each
    layer occupies the link; one layer at a time, in order, and none before it is computed. latency_s: from the last
    byte sent to the last byte received; meanwhile the next layer can already be sent.

    >>> arrival_times([3.0, 3.0, 3.0], [1.0, 1.0, 1.0], 0.5)      # a fast link: only the last layer is waited for
    [4.5, 7.5, 10.5]
    >>> arrival_times([1.0, 1.0], [4.0, 4.0], 0.0)                # a slow one: layer 1 waits for layer 0 to leave
    [5.0, 9.0]
    """
    # BEGIN SOLUTION: a list with a time for each layer
    computed_s = free_s = 0.0
    times = []
    for layer_s, send_s in zip(compute_s, transfer_s, strict=True):
        computed_s += layer_s
        free_s = max(computed_s, free_s) + send_s
        times.append(free_s + latency_s)
    return times
    # END SOLUTION


# %%
check("7.2")

# %% [markdown]
# **RDMA and NVLink by numbers.** A prompt of 8,000 tokens of Llama-3-70B, computed on eight H100s, by roofline at 60 %
# of their peak (not run here); 20 µs of latency. NVLink is the H100 data sheet's 900 GB/s, half of it in each
# direction; the others are their line rates.

# %%
# NBVAL_CHECK_OUTPUT
arrival_times = use("7.2")
num_tokens, num_layers = 8000, 80
layer_bytes = num_tokens * 2 * 8 * 128 * 2  # K and V of 8 KV heads of 128 in 16 bits
layer_s = 2 * 70e9 * num_tokens / num_layers / (8 * 0.6 * 989.5e12)
print(f"{layer_bytes * num_layers / 1e9:.2f} GB; computing takes {1e3 * layer_s * num_layers:.0f} ms")
links = {"NVLink": 450e9, "RDMA, 400 Gbit/s": 50e9, "Ethernet, 100 Gbit/s": 12.5e9, "Ethernet, 10 Gbit/s": 1.25e9}
for name, bytes_per_s in links.items():
    send_s = layer_bytes / bytes_per_s
    late_s = arrival_times([layer_s] * num_layers, [send_s] * num_layers, 20e-6)[-1] - layer_s * num_layers
    print(f"{name:21} alone {1e3 * send_s * num_layers:7.1f} ms, after the last layer {1e3 * late_s:7.1f} ms")

# %% [markdown]
# **Read the result.** At 400 Gbit/s a layer is sent in a fraction of the time that the next one takes to compute, and
# less than a millisecond is left over. At 10 Gbit/s the link, not the GPU, sets the time of the first token. The limit
# lies where sending a layer takes as long as computing one: here that is 11 GB/s, about 90 Gbit/s.
#
# **RDMA**: the network card reads and writes the other machine's memory (with GPUDirect, that of its GPU) without
# involving its processor. Memory is registered once, which gives it a key. To reach a block from outside takes its
# address and that key, and afterwards a notification that the last byte has landed. The processes below copy through
# host memory and sockets instead.
#
# **Push or pull?** So far the prefill side *pushes* each layer. Or the decode side *pulls* everything when the prompt
# is done. Who has to hold blocks meanwhile, and for how long?

# %%
# NBVAL_CHECK_OUTPUT
computed_s = layer_s * num_layers
print("                       pushed by layer                      pulled at the end")
for name, bytes_per_s in links.items():
    send_s = layer_bytes / bytes_per_s
    push_s = arrival_times([layer_s] * num_layers, [send_s] * num_layers, 20e-6)[-1]
    pull_s = computed_s + send_s * num_layers + 20e-6
    late_ms, later_ms = 1e3 * (push_s - computed_s), 1e3 * (pull_s - computed_s)
    print(f"{name:21}  late {late_ms:7.1f} ms, holds {1e3 * push_s:6.0f} ms", end="")
    print(f"   late {later_ms:7.1f} ms, holds {later_ms:6.0f} ms on both sides")

# %% [markdown]
# **Read the result.** Pushing hides the transfer, and pays with memory: the decode side must reserve its blocks
# *before* the prefill begins, and holds them empty all the while. Pulling reserves them when the prompt is done; then
# the prefill side holds its own until they have been fetched, which needs a time-out for a receiver that never comes.
# With a fast link the difference is some tens of milliseconds of the first token, and pulling is simpler.

# %% [markdown]
# ### Two processes, for real
#
# The engine does it in `twophase_features.parallel.disaggregation`. Rank 1 computes prompts, rank 0 decodes; each has
# the whole model, a pool and a scheduler of its own. For the engine on rank 0 the other one is a *tier* of its K/V
# cache, a second place for blocks. The blocks that arrive wait in host memory, each under the hash of its tokens and of
# all tokens before them (lab 5), and the request joins the queue when they have come. Its admission copies them into
# the pool, after whatever the prefix cache has. So this engine pushes, but into *host memory*: no block of the pool is
# reserved while the prompt is computed, and the price is one more copy at admission. Full blocks travel, and the last
# token never does: the rest of the prompt, a block at most, is computed on rank 0 and gives the first token.

# %% [markdown]
# ```mermaid
# sequenceDiagram
#     participant D as rank 0: decode
#     participant P as rank 1: prefill
#     D->>P: Submit: a prompt, and which of its blocks to send
#     P->>D: Pages: K and V of layer 0, layer 1, ... while the next ones are computed
#     P->>D: Done: all has been sent
#     Note over D: the request is admitted, its blocks are loaded
# ```
#
# The blocks have the same size on both sides, so whole ones are copied, and a thread that does nothing else sends them.
# The next cell starts both ranks, as torchrun does, and waits until both have ended.

# %%
from twophase_labs.many_machines import apart

moved = apart.apart()
print(moved.lines)
if moved.apart is not None:
    print("the same tokens as one engine alone:", moved.apart == moved.together)

# %% [markdown]
# **Read the result.** The last line counts only what was still being sent when the whole prompt had been computed. By
# the timetable of 7.2 one layer's share would be left. But the engine sends a layer as soon as its *attention* has
# written K and V, and its MLP is still to come: the last layer travels while that is computed.
#
# **Open the engine.** This is its `put_layer`:

# %%
from twophase_features.parallel.pages import unpack_layer
from twophase_labs.kit.open_engine import show_source

show_source(unpack_layer)

# %% [markdown]
# **Question.** Yours writes rows of tokens, as they come; this one writes whole blocks, when the request is admitted.
# It may be given `None` for a block. When?
#
# <details><summary>Answer</summary>
#
# When this request does not load that block: one message has a layer of all blocks that a forward pass filled, also of
# other prompts in its batch. Their bytes stay in host memory until their own requests are admitted. Blocks of a request
# that was cancelled are not even kept. Section 2 is about such cases.
# </details>

# %% [markdown]
# > **In production, 2026.** vLLM's [disaggregated prefill](https://docs.vllm.ai/en/latest/features/disagg_prefill/) is
# > still marked experimental; a *connector* moves the K and V (NIXL, LMCache, Mooncake and others), and according to
# > its documentation it tunes TTFT and ITL separately and does not raise throughput. Its NIXL connector
# > [pulls](https://raw.githubusercontent.com/vllm-project/vllm/main/docs/design/nixl_kv_push_connector.md): the decode
# > side reads the blocks after the prefill; a second connector pushes. SGLang starts engines with
# > [`--disaggregation-mode`](https://docs.sglang.io/docs/advanced_features/pd_disaggregation.md) `prefill` or `decode`
# > and moves K and V by Mooncake or NIXL. By roofline, the 2.62 GB of 8,000 tokens take 52 ms at 400 Gbit/s, a fifth of
# > what eight H100s need to compute them.
#
# **Takeaway.** A hand-over moves 327,680 bytes per token of Llama-3-70B exactly once per request, bit for bit; at 400
# Gbit/s it costs 52 ms after the prompt when pulled, and 0.7 ms when pushed into blocks that were reserved before.

# %% [markdown]
# ### Going further: a link that others use
#
# Now one layer in ten, at random, is sent at a tenth of the speed:

# %%
# NBVAL_CHECK_OUTPUT
import numpy as np

rng = np.random.default_rng(0)
for name in ("RDMA, 400 Gbit/s", "Ethernet, 100 Gbit/s"):
    late_ms = []
    for _ in range(1000):
        send_s = layer_bytes / links[name] * np.where(rng.random(num_layers) < 0.1, 10, 1)
        arrived_s = arrival_times([layer_s] * num_layers, list(send_s), 20e-6)
        late_ms.append(1e3 * (arrived_s[-1] - layer_s * num_layers))
    print(f"{name:21} after the last layer: p50 {np.median(late_ms):5.1f} ms, p99 {np.percentile(late_ms, 99):5.1f} ms")

# %% [markdown]
# **Read the result.** At 400 Gbit/s the link has so much idle time that it catches up, unless the last layers are the
# slow ones. At 100 Gbit/s there was hardly any idle time, and every request waits. A link needs room for its bad
# moments, as a queue does.

# %% [markdown]
# ## 2. A transfer that fails
# <!-- minutes: 25 -->
#
# The hard part of a hand-over is failure: a message is lost, a process dies with half a prompt sent, a cancelled
# prompt's blocks arrive late. In every case there are tensors of the right shape, and decoding from them gives fluent
# text about something else. So the receiver must know *which blocks of which layers* it has, and have a rule for what
# to do when some are missing:
#
# 1. Ask for them again, from the first missing block on. The sender still has its blocks, or computes them once more.
# 2. After some attempts, compute the prompt here. It costs time, and it is always right.
# 3. When the sender is lost: compute it here at once.

# %% [markdown]
# ```mermaid
# flowchart LR
#     W["waiting"] -->|"on_sent, nothing missing"| A["adopt:<br/>decode from these blocks"]
#     W -->|"on_sent, a hole"| R{"resends left?"}
#     R -->|yes| S["resend from<br/>the first hole"] --> W
#     R -->|no| C["recompute here"]
#     W -->|on_lost| C
#     A -.->|"a late message"| X["dropped"]
#     C -.->|"a late message"| X
# ```

# %% [markdown]
# **Think first.** After 'recompute' a prompt is computed and decoded here and ends; its blocks are freed and given to
# another request. Now a late message for them arrives. Whose completion changes if it is written, and how?

# %% [markdown]
# <!-- card 7.3 -->
# Write the receiver's book-keeping for one prompt. How you keep track is up to you.


# %% tags=["exercise:7.3"]
class Transfer:
    """`Transfer(num_layers, num_blocks, max_resends=1)`: what has arrived of one prompt, and what to do.

    first_missing: a property; the lowest block (0 to num_blocks - 1) that some layer lacks, None if all are here.
    receive(layer, first_block, count): this many blocks of a layer have come, starting at first_block; some may have
        come before. True if they may be written. False once the transfer is over; then nothing is recorded.
    on_sent(): the sender says that it has sent everything. "adopt" if nothing is missing; else ("resend", block) with
        the first missing block, up to max_resends times; after that "recompute".
    on_lost(): the sender is gone. "recompute", even if all blocks are here: the first token would come with on_sent.

    "adopt" and "recompute" end the transfer. When it is over, on_sent and on_lost return None.

    >>> transfer = Transfer(num_layers=2, num_blocks=3)
    >>> transfer.receive(0, 0, 3), transfer.receive(1, 0, 1), transfer.first_missing
    (True, True, 1)
    >>> transfer.on_sent(), transfer.receive(1, 1, 2), transfer.on_sent()
    (('resend', 1), True, 'adopt')
    >>> transfer.receive(1, 0, 3), transfer.on_lost()
    (False, None)
    """

    # BEGIN SOLUTION: __init__, first_missing, receive, on_sent, on_lost
    def __init__(self, num_layers, num_blocks, max_resends=1):
        self.num_layers, self.num_blocks, self.max_resends = num_layers, num_blocks, max_resends
        self.here = set()  # (layer, block)
        self.num_resends, self.is_over = 0, False

    @property
    def first_missing(self):
        layers, blocks = range(self.num_layers), range(self.num_blocks)
        return next((block for block in blocks if any((layer, block) not in self.here for layer in layers)), None)

    def receive(self, layer, first_block, count):
        if self.is_over:
            return False
        self.here |= {(layer, block) for block in range(first_block, first_block + count)}
        return True

    def on_sent(self):
        if self.is_over:
            return None
        if self.first_missing is not None and self.num_resends < self.max_resends:
            self.num_resends += 1
            return "resend", self.first_missing
        self.is_over = True
        return "adopt" if self.first_missing is None else "recompute"

    def on_lost(self):
        if self.is_over:
            return None
        self.is_over = True
        return "recompute"

    # END SOLUTION


# %%
check("7.3")

# %% [markdown]
# While its own request still has the blocks, a late message changes nothing: the bytes are the same. It ruins the text
# of the *next* owner, in the middle. That is why `receive` says False once the transfer is over. (The engine's tier
# goes by the block's hash instead: blocks whose hash no request expects are dropped, however late they come.)
#
# **Your hand-over in two real processes.** Rank 1 computes three prompts with SmolLM2 and sends their full blocks with
# your `take_layer`, each layer in two messages. Rank 0 is the engine, with a KV tier (`many_machines/own_tier.py`) that
# asks your `Transfer` and writes with your `put_layer`. Your cells travel to both as source. One message of the second
# prompt is lost, once; one of the third is lost every time it is sent.

# %%
from twophase_labs.many_machines import apart

Transfer = use("7.3")
handed = apart.in_two_processes(take_layer, put_layer, Transfer)
if handed.apart is None:
    print("not run here:", handed.why_not)
else:
    for number, (orders, tokens) in enumerate(zip(handed.orders, handed.apart, strict=True)):
        same = tokens == handed.alone[number]
        print(f"prompt {number}: {', then '.join(orders):38} the same tokens as one engine alone: {same}")
    print(f"{handed.num_messages} messages, {handed.num_bytes:,} bytes")

# %% [markdown]
# **Read the result.** A lost message costs time, and does not change the output. (Without a loss
# there would be `3 * 30 * 2 = 180` messages, for prompts, layers and parts. The second prompt took 59 and then 30, its
# second part again; the third 59 and 59.) The tokens do not show which of the three happened, so a service must count
# resends and recomputations to notice them.
#
# **Open the engine.** Its line is a TCP connection, which loses nothing and keeps the order. So it resends nothing, and
# has only your last step, for a worker that refuses a prompt, fails or is lost:

# %%
from twophase_features.parallel.disaggregation import DecodeEngine

show_source(DecodeEngine._hear)

# %% [markdown]
# **Question.** After an error some blocks of the prompt may have come, and others not. `_queue` puts the request into
# the engine's queue all the same. Who makes sure that no token is computed from blocks that are missing?
#
# <details><summary>Answer</summary>
#
# The admission: it asks the tier for the request's blocks, in order, and the tier gives those whose layers have all
# come, up to the first hole. The rest of the prompt is computed like the rest after a prefix hit (lab 5). A tier may
# always miss, so recovery needs no code of its own. Your sender kept the blocks until it heard how the transfer had
# ended; this one copies them into messages, and keeps nothing.
# </details>

# %% [markdown]
# > **In production, 2026.** vLLM's connectors report blocks that failed to load, and its scheduler [recomputes from the
# > last valid block](https://github.com/vllm-project/vllm/pull/19330) on, if `kv_load_failure_policy` is `recompute`.
# > It is as hard as it looks: in [issue 49250](https://github.com/vllm-project/vllm/issues/49250) two requests share
# > blocks that failed, the second goes on decoding while the first still recomputes them, and its text is wrong. It was
# > found as you test here, by comparing tokens with a run without a failure. By roofline a resend is the cheaper cure:
# > a prompt of 8,000 tokens of Llama-3-70B takes 52 ms to send again at 400 Gbit/s and 236 ms to compute again on eight
# > H100s, which then also hold up every decode on the engine that computes it.
#
# **Takeaway.** With one resend and then recomputation, 3 of 3 prompts give the tokens of one engine alone, although
# messages of two of them were lost: one was sent again, the other prompt was computed again.

# %% [markdown]
# ## 3. Tensor parallelism: one layer on several machines
# <!-- minutes: 25 -->
#
# When memory is short, a second machine is not the first answer. Cheaper remedies come first, in this order: fewer
# tokens (shorter prompts, a lower `max_model_len`, fewer sequences at once), fewer bits in the weights, fewer bits in K
# and V behind a gate (lab 6), K and V in host memory where the link is fast enough (lab 4). Then several GPUs for one
# model, as here.
#
# Llama-3-70B in bfloat16 has 141 GB of weights; an H100 has 80 GB of memory. **Tensor parallelism** cuts every layer,
# so that each of n ranks holds an n-th of each matrix and reads an n-th in each step. More machines then make a
# *single* token faster: lab 3's bound, bytes over bandwidth, is divided by n. The price is that the ranks must add up
# their results several times per layer. Megatron-LM (arXiv:1909.08053) found the cuts that need the fewest such sums.

# %% [markdown]
# **Think first.** An MLP is $W_{down}\,(\mathrm{silu}(W_{gate}\,x) \cdot W_{up}\,x)$. A sum can be computed in parts
# and added up later. Why can $W_{gate}$ not be cut so that each rank computes part of every inner element?

# %%
from twophase_labs.many_machines import shards_pictures

shards_pictures.draw_mlp_cut()

# %% [markdown]
# $\mathrm{silu}(a + b)$ is not $\mathrm{silu}(a) + \mathrm{silu}(b)$. So the first two matrices are cut by rows: each
# rank computes *some* inner elements, but computes them *whole*. The last matrix is cut by columns and takes in just
# these. Its outputs are partial sums, and one **all-reduce** adds them up: every rank gives a tensor and gets the sum
# of all.

# %% [markdown]
# <!-- card 7.4 -->
# Weights are stored as in PyTorch, `[out, in]`, and used as `x @ w.T`: gate and up `[width, hidden]`, down
# `[hidden, width]`. `split_mlp` returns n shards (gate, up, down), as even as possible. `mlp_part` returns what one
# rank computes. `all_reduce` takes a tensor from each rank and returns one to each, in memory of its own. `mlp_block`
# returns what each rank has after the whole block, $x + \mathrm{MLP}(x)$. (The norm is left out: every rank computes it
# for itself.)


# %% tags=["exercise:7.4"]
def split_mlp(gate, up, down, n):
    gates, ups = gate.tensor_split(n), up.tensor_split(n)  # SOLUTION: n parts of each, along the right axis
    downs = down.tensor_split(n, dim=1)  # SOLUTION: n parts that belong to them
    return list(zip(gates, ups, downs, strict=True))


def mlp_part(x, shard):
    gate, up, down = shard
    inner = F.silu(x @ gate.T) * (x @ up.T)  # SOLUTION: the inner elements that this rank has
    return inner @ down.T


def all_reduce(parts):
    total = torch.stack(parts).sum(0)  # SOLUTION: what every rank is to have
    return [total.clone() for _ in parts]


def mlp_block(x, shards):
    return [x + total for total in all_reduce([mlp_part(x, s) for s in shards])]  # SOLUTION: one output for each rank


# %%
check("7.4")

# %% [markdown]
# Attention is easier: a head works alone, from its own rows of $W_q$, $W_k$ and $W_v$ to its own columns of $W_o$,
# which adds the heads up. So heads are dealt out, and again one all-reduce follows. A KV head and the query heads that
# use it stay together. SmolLM2 has 3 KV heads; on two ranks they are dealt out 2 and 1. (Where there are more ranks
# than KV heads, engines *replicate* them: each of 16 ranks stores one of 8 heads, and each head is stored twice.
# Section 5 comes back to this.)

# %%
shards_pictures.draw_heads(num_heads=9, num_kv_heads=3, num_ranks=2)

# %% [markdown]
# <!-- card 7.5 -->
# **Predict.** The engine with `LLM(tensor_parallel_size=2)`: every rank holds its part of each layer and runs the same
# steps. A prompt of 24 tokens is computed in one step, and 20 tokens come out. SmolLM2 has 30 layers. How many
# all-reduces do the layers need in all?


# %% tags=["exercise:7.5"]
guess_7_5 = 1200  # SOLUTION: all-reduces

# %%
check("7.5")

# %% [markdown]
# This process generates alone, then two ranks do the same.

# %%
from twophase_labs.many_machines import shards_two_processes

both = shards_two_processes.side_by_side()
print(both.table)
measured("7.5", both.two.num_all_reduces) if both.two is not None else both.why_not

# %%
if both.two is not None:
    one, two = both.one, both.two
    off = max(abs(a - b) for a, b in zip(one.logprobs, two.logprobs, strict=True))
    print("the same tokens:", one.token_ids == two.token_ids, f"| log-probabilities differ by at most {off:.0e}")
    num_layers = two.num_all_reduces // (2 * len(two.token_ids))
    num_rows = two.all_reduce_bytes // (2 * num_layers * 576 * 4)
    print(f"{two.all_reduce_bytes:,} bytes handed over: {num_rows} rows of 576 floats, 2 x {num_layers} times")

# %% [markdown]
# **Read the result.** Two per layer and step, with a row for each token of the step: 24 of the prompt and 19 more,
# because the last token is sampled but never fed back. The tokens are equal and the logits *nearly*: sums are added up
# in another order. A hand-over is bit for bit; here a tolerance is right.
#
# The time in all-reduces includes waiting for the other rank, and on shared cores two ranks seldom arrive together: two
# processes can be slower here than one. What they show is *what* travels, not how fast it does on GPUs.
#
# An all-reduce of one token is a few kilobytes. Its cost is *latency*, paid twice per layer, and more bandwidth does
# not shorten it. Below, by roofline (not run here), the time per token of one sequence on H100s, at 80 % of their peak
# bandwidth and with 10 µs per all-reduce.

# %%
from twophase_labs.many_machines import shards_cost

shards_pictures.draw_time_per_token(shards_cost.time_per_token())

# %% [markdown]
# **Read the result.** Reading is divided among the ranks; the latency of the all-reduces is not. SmolLM2 has next to
# nothing to divide: on three GPUs its tokens come several times *slower*. Llama-3-8B on eight GPUs decodes one sequence
# some four times as fast as on one; eight engines of one GPU each serve eight times as many sequences.

# %% [markdown]
# > **In production, 2026.** `--tensor-parallel-size` is 1 unless given. vLLM's
# > [guide](https://docs.vllm.ai/en/latest/serving/parallelism_scaling/) says: one GPU if the model fits; tensor
# > parallelism as wide as the GPUs of one server; pipeline stages for several servers. The reason is the latency of the
# > all-reduce: inside a server it goes over NVLink. By roofline, as in the
# > picture, a step of Llama-3-70B reads 139 GB (all but the embedding table) in 6.5 ms at 80 % of the bandwidth of
# > eight H100s (26.8 TB/s together); its 160 all-reduces at 10 µs take another 1.6 ms.
#
# **Takeaway.** Two all-reduces per layer and step: 60 for SmolLM2, 1,200 for 20 tokens; what tensor parallelism
# divides is bytes, what it adds is 60 latencies per token.

# %% [markdown]
# ## 4. Pipeline parallelism: stages in a row
# <!-- minutes: 5 -->
#
# **Pipeline parallelism** gives each machine some consecutive layers. One activation per token travels at each border
# between stages, instead of two all-reduces per layer: a slow network will do. But a stage has nothing to do until the
# first work arrives, and nothing more once the last has passed. That idle time is called a *bubble*.

# %% [markdown]
# **Think first.** A prompt goes through four stages as one piece. What share of the machines' time is idle? And if it
# goes in four chunks?

# %% [markdown]
# Each stage has the timetable of 7.2: it starts with a chunk when the stage before has ended that chunk and it has
# itself ended the chunk before. Played for one, four and sixteen equal chunks:

# %%
from twophase_labs.many_machines import pipeline_pictures, stages

timetables = {f"{m} chunk{'s' * (m > 1)}": stages.run_pipeline([[8 / m] * m] * 4) for m in (1, 4, 16)}
pipeline_pictures.draw_pipeline(timetables)

# %% [markdown]
# For m equal chunks in p stages the idle share is $(p - 1) / (m + p - 1)$ (GPipe, arXiv:1811.06965), so the smallest
# chunks seem best. But each chunk makes every stage read its weights once more. A prompt of 8,192 tokens of
# Llama-3-70B on four H100s with 20 layers each, by roofline (not run here):

# %%
# NBVAL_CHECK_OUTPUT
for num_chunks in (1, 2, 4, 8, 16, 32, 64):
    spans = stages.run_pipeline(stages.stage_seconds(num_tokens=8192, num_chunks=num_chunks, num_stages=4))
    print(f"{num_chunks:3} chunks: idle {stages.bubble_share(spans):4.0%}, done after {spans[-1][-1][1]:.2f} s")

# %% [markdown]
# **Read the result.** The idle shares lie a little above the formula's: later chunks attend to more tokens, so the
# chunks are not equal. The bubble keeps shrinking, but the time has a minimum, near the smallest chunk that is still
# bound by arithmetic. In decoding, token t + 1 enters the first stage when token t has left the last, so one sequence
# keeps one stage of four busy. To keep all stages busy it takes at least as many groups of sequences (*micro-batches*)
# as stages. A pipeline gives throughput and memory, and makes no *decode* token faster.

# %% [markdown]
# > **In production, 2026.** `--pipeline-parallel-size` is 1 by default; vLLM's
# > [guide](https://docs.vllm.ai/en/latest/serving/parallelism_scaling/) uses stages across servers, for instance
# > `tensor_parallel_size=8` with `pipeline_parallel_size=2` on two servers of eight GPUs, and inside a server whose
# > GPUs have no NVLink. By roofline a border of Llama-3-70B carries 16 KiB per token in bf16: 2 µs for a batch of 6 at
# > 400 Gbit/s, while an all-reduce across servers would be paid 160 times per step.
#
# **Takeaway.** Four stages idle 75 % of the time with one chunk and 17 % with 16; the time of an 8,192-token prompt
# falls up to 32 chunks and rises again at 64.

# %% [markdown]
# ## 5. Expert parallelism: experts on several machines
# <!-- minutes: 37 + 24 -->
#
# A **mixture of experts** replaces a layer's MLP by E of them, the *experts*, and a *router* that sends each token
# through K (arXiv:1701.06538). A token costs the arithmetic of K experts, while the model has the weights of E. For
# serving that changes the question of lab 3: which weights does a step read?

# %% [markdown]
# The router is one matrix: a logit per expert. The K largest win, and a softmax over these K gives the weights. Here is
# a small mixture with random weights (4 layers, 16 experts, 2 per token). Mixtral (8 experts, 2 chosen) and
# Qwen3-30B-A3B (128 and 8) have this form. DeepSeek-V3 and Kimi K2 differ: their scores are sigmoids, a bias per expert
# that training adjusts keeps the loads even, and one expert more is used by every token.

# %% [markdown]
# <!-- card 7.6 -->
# Write the layer. Each expert is a function of rows `[n, N]`, and calling it reads its weights: call an expert once,
# with all of its rows, and do not call one that no token chose.


# %% tags=["exercise:7.6"]
def mixture(x, router, experts, k):
    """Each token through its k experts, added up with their weights: [T, N], of x's dtype, from x of shape [T, N].

    router: [E, N]; the logits of a token are router @ x[t]. experts: a list of E functions, [n, N] to [n, N]. The k
    experts with the largest logits are chosen, and weighted by a softmax over these k logits. No input is changed.

    >>> x, router = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.eye(2)
    >>> mixture(x, router, [lambda rows: 10 * rows, lambda rows: -rows], k=1)
    tensor([[10.,  0.],
            [ 0., -1.]])
    >>> mixture(x[:1], torch.zeros(2, 2), [lambda rows: 10 * rows, lambda rows: 20 * rows], k=2)
    tensor([[15.,  0.]])
    """
    # BEGIN SOLUTION: a tensor [T, N]
    logits, chosen = (x @ router.T).topk(k, dim=-1)
    weights = logits.softmax(-1)
    out = torch.zeros_like(x)
    for e in chosen.unique().tolist():
        tokens, choice = (chosen == e).nonzero(as_tuple=True)
        out[tokens] += weights[tokens, choice, None] * experts[e](x[tokens])
    return out
    # END SOLUTION


# %%
check("7.6")

# %% [markdown]
# **Against transformers.** Its Mixtral code runs the same small model, with the same random weights. What goes into
# layer 1's mixture for a prompt of 48 tokens goes into yours as well, with the engine's experts; what comes out is
# compared.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.many_machines import small_moe

mixture = use("7.6")
layer = small_moe.a_layer(index=1, num_tokens=48)
mine = mixture(layer.x, layer.router, layer.experts, small_moe.NUM_CHOSEN)
is_equal = torch.allclose(mine, layer.expected, atol=1e-6)
print(f"{len(layer.experts)} experts, {len(layer.x)} tokens; equal to transformers' output: {is_equal}")

# %% [markdown]
# ### Which experts does a step read?
#
# <!-- card 7.7 -->
# **Predict.** Eight sequences decode with this model: 8 tokens per step, each through 2 of 16 experts in each layer. On
# average, how many experts' weights does a step read in each layer? (A factor of 1.25 counts as close.)


# %% tags=["exercise:7.7"]
guess_7_7 = 10.5  # SOLUTION: experts

# %%
check("7.7")

# %%
measured("7.7", small_moe.touched(8))

# %% [markdown]
# If the tokens of a batch of B sequences chose at random, an expert would stay unread with probability $(1 - K/E)^B$.
# The engine's measurements, beside this estimate:

# %%
# NBVAL_CHECK_OUTPUT
batches = (1, 2, 4, 8, 16, 32)
found = {b: small_moe.touched(b) for b in batches}
for b in batches:
    print(f"batch {b:2}: {found[b]:5.2f} of 16 experts per layer; at random {16 * (1 - (1 - 2 / 16) ** b):5.2f}")
print(f"128 experts, 8 per token (Qwen3-30B-A3B), batch 16, at random: {128 * (1 - (1 - 8 / 128) ** 16):.0f}")

# %%
from twophase_labs.many_machines import expert_pictures

expert_pictures.draw_touched(found, num_experts=16, num_chosen=2)

# %% [markdown]
# **Read the result.** A dense model reads all weights in every step, and a second sequence is nearly free. Here a
# second sequence needs experts of its own. So a mixture decodes one sequence cheaply and needs large batches before
# its reads are shared as a dense model's are.
#
# **What does a draft cost here?** Lab 5 verifies four drafts with each sequence: five rows, which in a dense model
# share one read of the weights. The same formula for 128 experts of which a token uses 8:

# %%
# NBVAL_CHECK_OUTPUT
for batch in (1, 4, 16, 64):
    plain, drafted = (128 * (1 - (1 - 8 / 128) ** (batch * rows)) for rows in (1, 5))
    print(f"batch {batch:2}: {plain:5.1f} experts, with drafts {drafted:5.1f}: {drafted / plain:.1f} times the bytes")

# %% [markdown]
# **Read the result.** In a mixture drafts cost most for one sequence, where a dense model has them for nothing, and
# nothing for a batch of 64, which reads all experts anyway. (Neighbouring tokens agree on experts more often than at
# random, so real factors are smaller; arXiv:2602.16052 measures them.)

# %% [markdown]
# ### Rows that travel
#
# **Expert parallelism** puts whole experts on different ranks. If each rank has tokens of its own, rows travel:
# *dispatch*, an **all-to-all** in which each rank sends each other rank the rows for its experts; the experts compute;
# *combine*, a second all-to-all brings the rows back (GShard, arXiv:2006.16668). The picture has one expert per token;
# with two, as in this model, a row is sent in two copies, one to each expert, and two results come back.

# %%
expert_pictures.draw_all_to_all()

# %% [markdown]
# **Does it balance?** Let four ranks have four experts each. How many rows does each rank get when eight prompts of 24
# tokens are computed in one step? All ranks wait for the one with the most.

# %%
# NBVAL_CHECK_OUTPUT
load = small_moe.prompt_load(8)  # [layers, experts]
by_rank = load.view(4, 4, 4).sum(2)
for number, row in enumerate(by_rank.tolist()):
    print(f"layer {number}: rows per rank {row}; the fullest rank has {4 * max(row) / sum(row):.2f} times the mean")

# %%
expert_pictures.draw_load(load, num_ranks=4)

# %% [markdown]
# **Two ranks, for real**: `LLM(tensor_parallel_size=2, enable_expert_parallel=True)` on this small mixture, against one
# process.

# %%
shared = small_moe.in_two_processes()
if shared.shared is None:
    print("not run here:", shared.why_not)
else:
    print("the same tokens:", shared.shared == shared.alone)
    for name, num_calls in shared.num_calls.items():
        print(f"{num_calls:3} {name} in {shared.num_steps} steps: {num_calls / shared.num_steps / 4:.0f} a layer")
    print(f"{shared.num_bytes:,} bytes sent by rank 0 in all-to-alls")

# %% [markdown]
# **Read the result.** Four collectives for the experts of a layer, beside attention's all-reduce. How many rows come
# from which rank depends on the tokens, so their *counts* are sent first; then dispatch and combine. And since
# attention is cut by heads here, every rank needs every token afterwards: an *all-gather* hands round what each rank
# has finished.
#
# Try the same two flags in vLLM, `--tensor-parallel-size 2 --enable-expert-parallel`, and you will look for the
# all-to-all in vain. Where attention is cut by heads, each rank has all tokens anyway. So it computes its own experts
# for all of them, and the layer's one all-reduce adds up. Rows have to travel only where tokens *belong* to ranks:
#
# ```mermaid
# flowchart LR
#     subgraph T["attention cut by heads: tensor parallel"]
#         direction LR
#         T0["rank 0: its heads,<br/>all tokens"] --> T1["its experts,<br/>all tokens"] --> TR["all-reduce"]
#         T2["rank 1: its heads,<br/>all tokens"] --> T3["its experts,<br/>all tokens"] --> TR
#     end
#     subgraph D["attention cut by requests: data parallel"]
#         direction LR
#         D0["rank 0: all heads,<br/>its tokens"] --> DD["dispatch"]
#         D1["rank 1: all heads,<br/>its tokens"] --> DD
#         DD --> D2["rank 0's experts"] --> DC["combine"]
#         DD --> D3["rank 1's experts"] --> DC
#     end
# ```
#
# ### Data-parallel attention
#
# Why would tokens belong to ranks? Because KV heads run out. With more ranks than KV heads, copies of them fill the
# memory. DeepSeek's latent attention (MLA) is the extreme: one latent of 576 elements serves all heads, so each rank of
# tensor parallelism would store all of it. With **data-parallel attention** each rank has the whole attention, and
# requests, K and V of its own; only the experts are shared. How many tokens do all ranks hold, with 40 GB each for K
# and V?

# %%
# NBVAL_CHECK_OUTPUT
models = {"8 KV heads, Llama-3-70B": (8, 2 * 128, 80), "MLA, DeepSeek-V3": (1, 576, 61)}
for name, (num_heads, elements, layers) in models.items():
    for ranks in (8, 16):
        head_bytes = 2 * elements * layers  # of a token, in 16 bits
        by_heads = 40e9 / (head_bytes * -(-num_heads // ranks))  # a rank has a head or more, of every sequence
        by_requests = ranks * 40e9 / (head_bytes * num_heads)
        print(f"{name:23} on {ranks:2} ranks: cut by heads {by_heads / 1e6:5.2f} million tokens, ", end="")
        print(f"by requests {by_requests / 1e6:5.2f}")

# %% [markdown]
# The price: dispatch and combine are collectives, so all ranks must take part in every layer of every step. A rank
# whose requests have ended runs **dummy batches** until the last one has. Twelve completions, dealt out to four ranks:

# %%
from twophase_labs.many_machines import lockstep

steps = lockstep.steps_together(lockstep.LENGTHS, num_ranks=4)
print(lockstep.line(steps))
lockstep.draw_steps(steps)

# %% [markdown]
# **Read the result.** Without new requests, ranks fall idle one after the other, and their dummy batches cost a step's
# time while they produce nothing. A router has to spread requests by their *tokens*; and a rank that computes a long
# prompt in a step makes all others wait for it, which is one more reason for pools (section 7).

# %% [markdown]
# > **In production, 2026.** vLLM's guide says that expert parallelism is [typically coupled with data
# > parallelism](https://docs.vllm.ai/en/latest/serving/expert_parallel_deployment/): `--data-parallel-size 8
# > --enable-expert-parallel`. The name of the default `--all2all-backend`, `allgather_reducescatter`, says that it is
# > no all-to-all: every rank gets all rows. DeepEP's kernels send each row where it belongs, in one variant for prefill
# > and one for decode. While any rank has a request, a coordinator makes the others run [dummy
# > passes](https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/). In SGLang, `--moe-a2a-backend` is
# > [`none`](https://docs.sglang.io/advanced_features/expert_parallelism.html) unless given. If tokens choose at random,
# > a batch of 16 reads 82 of 128 experts: by roofline that is 64 % of the time for expert weights, for an eighth of the
# > tokens of a batch of 128.
#
# **Takeaway.** Two of 16 experts for one token, but 10 of 16 for a batch of eight. Cut by requests instead of heads,
# eight ranks hold eight times as many tokens of an MLA model, and an idle rank still pays for each step.

# %% [markdown]
# ### Going further: dispatch and combine
#
# The rows that travel, in code: sorted by expert on the way out, put back in place on the way home.

# %% [markdown]
# <!-- card 7.8 -->
# One rank's part. `x` is `[T, N]`, `experts` `[T, K]` with the experts chosen for each token; there are `num_experts`
# in all, and rank r of n has the experts from `r * num_experts / n` on, equally many each. `dispatch` returns a tensor
# of rows for each rank (sorted by expert; rows of one expert in any order), the counts `[n, num_experts / n]`, and
# `order`, which `combine` needs. `combine` gets `returned`, a tensor from each rank with its rows in the order sent,
# and `weights` `[T, K]`, and gives each token the weighted sum of its rows. T may be 0: a rank may have no tokens.


# %% tags=["exercise:7.8"]
def dispatch(x, experts, num_experts, n):
    flat = experts.flatten()  # entry i is choice i % K of token i // K
    order = flat.argsort(stable=True)  # SOLUTION: the entries in the order of their experts
    rows = x[order // experts.shape[1]]  # SOLUTION: the row of x for each of them
    counts = torch.bincount(flat, minlength=num_experts)  # SOLUTION: how many rows each expert gets
    counts = counts.view(n, -1)
    per_rank = rows.split(counts.sum(1).tolist())  # SOLUTION: one tensor of rows for each rank
    return per_rank, counts, order


def combine(returned, order, weights):
    sorted_rows = torch.cat(returned)
    rows = torch.empty_like(sorted_rows)
    # BEGIN SOLUTION: every row back where it was before the sorting
    rows[order] = sorted_rows
    # END SOLUTION
    rows = rows.unflatten(0, weights.shape)  # [T, K, N]
    return (rows * weights[..., None]).sum(1)  # SOLUTION: a token's k rows, weighted and added


# %%
check("7.8")

# %% [markdown]
# The layer of 7.6 once more, with its experts on four ranks: your rows go out, each rank computes its experts, and your
# `combine` puts the results together.

# %%
# NBVAL_CHECK_OUTPUT
dispatch, combine = use("7.8")
logits, chosen = (layer.x @ layer.router.T).topk(small_moe.NUM_CHOSEN, dim=-1)
rows, counts, order = dispatch(layer.x, chosen, num_experts=16, n=4)
print("rows per rank:", [len(part) for part in rows])
returned = []
for rank, part in enumerate(rows):
    pieces = part.split([int(count) for count in counts[rank]])
    returned.append(torch.cat([layer.experts[4 * rank + e](piece) for e, piece in enumerate(pieces)]))
together = combine(returned, order, logits.softmax(-1))
print("equal to one process:", torch.allclose(together, mine, atol=1e-6))

# %% [markdown]
# **Open the engine.** Its two, with the counts' own all-to-all before them:

# %%
from twophase_features.parallel.expert_parallel import ExpertParallel

show_source(ExpertParallel._dispatch_and_combine)

# %% [markdown]
# **Question.** What would the engine have to know, or to give up, to do without the first of the three?
#
# <details><summary>Answer</summary>
#
# How many rows come from each rank. That depends on the tokens, so it must be sent first, or buffers of a fixed size
# must be sent: a capacity per expert. Then no counts travel and a GPU need not wait for its host, but empty rows do
# travel, and what exceeds the capacity must be dropped or sent again. Libraries for GPUs take the fixed size for decode
# steps, where rows are few.
# </details>

# %% [markdown]
# ## 6. Routing: which engine gets a request?
# <!-- minutes: 27 + 4 -->
#
# Many engines, each with the whole model, are the simplest fleet: nothing travels but the request. Back to the first
# cell. A prompt of 6,200 tokens of which 6,000 are in an engine's prefix cache needs 200 tokens of prefill; on any
# other engine, 6,200. Round robin spreads the 96 instructions over all four engines: each cache has to hold all of
# them, and they do not fit.

# %%
# NBVAL_CHECK_OUTPUT
capacity = fleets.H100.num_blocks() * fleets.BLOCK_SIZE
print(f"K/V slots of an engine: {capacity:,}; 96 instructions of 6,000 tokens: {96 * 6000:,}; a quarter: {24 * 6000:,}")
hit_s = 2 * 8e9 * 6000 / (0.6 * 989.5e12)
print(f"6,000 tokens of prefill, by roofline at 60 % of an H100's peak: {hit_s:.2f} s")

# %% [markdown]
# **Think first.** Suppose each request goes to the engine that has most of its prompt, and one customer sends half of
# all traffic. What goes wrong? And what must a rule weigh against the hit?

# %% [markdown]
# <!-- card 7.9 -->
# Write a router that weighs the prompt tokens to be computed against the load, both in tokens. What an engine's cache
# holds, it assumes from what it has sent there. Prompts here have 6,000 tokens and more, in blocks of 16: keep
# something small for each block, not its whole prefix.


# %% tags=["exercise:7.9"]
class PrefixRouter:
    """`PrefixRouter(num_engines, weight=1.0, block_size=16)`: sends each request to the engine where it costs least.

    choose(prompt, loads): the index of an engine. prompt: a list of token ids. loads: for each engine the tokens of its
    unfinished requests. An engine's cost is

        weight * (tokens of the prompt that are not a hit there) + its load

    and ties go to the lowest index. The hit is the run of whole blocks from the prompt's beginning on, as far as
    each of them, with everything before it, was part of a prompt sent to this engine. After each decision the whole
    blocks of the prompt count as sent to the engine chosen.

    >>> router = PrefixRouter(num_engines=2, block_size=4)
    >>> router.choose([1, 2, 3, 4, 5, 6, 7, 8, 9], loads=[5, 3])      # no hit anywhere: the smaller load
    1
    >>> router.choose([1, 2, 3, 4, 5, 6, 7, 8, 0], loads=[0, 7])      # costs 9 + 0 and (9 - 8) + 7
    1
    >>> router.choose([1, 2, 3, 4, 5, 6, 7, 8, 0], loads=[0, 9])      # 9 and 10
    0
    """

    # BEGIN SOLUTION: __init__(num_engines, weight, block_size), choose(prompt, loads)
    def __init__(self, num_engines, weight=1.0, block_size=16):
        self.weight, self.block_size = weight, block_size
        self.sent = [set() for _ in range(num_engines)]  # of each engine: keys of blocks

    def _keys(self, prompt):
        """A key for each whole block, made of its tokens and the key before."""
        key, keys = 0, []
        for end in range(self.block_size, len(prompt) + 1, self.block_size):
            key = hash((key, tuple(prompt[end - self.block_size : end])))
            keys.append(key)
        return keys

    def choose(self, prompt, loads):
        keys = self._keys(prompt)
        costs = []
        for sent, load in zip(self.sent, loads, strict=True):
            num_hit = next((i for i, key in enumerate(keys) if key not in sent), len(keys))
            costs.append(self.weight * (len(prompt) - num_hit * self.block_size) + load)
        chosen = costs.index(min(costs))
        self.sent[chosen].update(keys)
        return chosen

    # END SOLUTION


# %%
check("7.9")

# %% [markdown]
# **In the simulated fleet**, with three weights. (Section 8 compares it with the first cell.)

# %%
# NBVAL_CHECK_OUTPUT
PrefixRouter = use("7.9")
by_weight = {}
for weight in (0.0, 1.0, 4.0):
    router = PrefixRouter(4, weight, fleets.BLOCK_SIZE)
    by_weight[weight] = fleets.serve(fleets.ASSISTANTS, fleets.Own(router.choose), name=f"yours, weight {weight:g}")
    print(by_weight[weight].line)

# %% [markdown]
# **Read the result.** Weight 0 looks at the load alone: it balances better than round robin can, and the hit rate stays
# where it was. With the prefix in the sum it rises, and a hit saves twice: the prefix is not computed again, and no
# second copy takes up cache. Prefix alone would be wrong, too: in the example above, half of all requests would queue
# at one engine while three are idle. With the sum, that queue at some point costs more than the prefix, and a second
# engine gets a copy.
#
# The weight says how many tokens of load one token of prefill is worth. The load counts *all* tokens of unfinished
# requests, those that were hits as well, so one more request waiting already looks like 6,200 tokens of work. With
# weight 1 it outweighs a hit of 6,000; with weight 4 it takes about four such requests.

# %% [markdown]
# **Open the engine.** Its router decides alike, and notes what it has sent:

# %%
from twophase_tools.simulate.routers import PrefixAware as EnginePrefixAware

show_source(EnginePrefixAware.choose)

# %%
show_source(EnginePrefixAware._note)

# %% [markdown]
# **Question.** Yours remembers every block that it has ever sent. This one forgets. What goes wrong with yours in a
# service that runs for a week?
#
# <details><summary>Answer</summary>
#
# Engines evict; the router's index does not know it. More and more of what it counts as hits is gone, so requests are
# sent to a loaded engine for a prefix that has to be computed anyway, and the index grows without bound. The engine's
# router forgets what was used longest ago, and keeps as many blocks as the engine's own pool. It still only assumes;
# engines that report their evictions make it exact.
# </details>

# %% [markdown]
# > **In production, 2026.** SGLang's gateway, now a project of its own, chooses by
# > [`cache_aware`](https://raw.githubusercontent.com/lightseekorg/smg/main/docs/getting-started/load-balancing.md) by
# > default: the engine with the longest shared prefix if it covers more than 0.3 of the prompt, but the least loaded
# > one once the busiest has over 64 requests more than the idlest and over 1.5 times as many. NVIDIA Dynamo's front end
# > is [round robin by default](https://docs.nvidia.com/dynamo/v1.1.0/components/router/llms.txt); `--router-mode kv`
# > weighs as you do, with a weight of 1.0. By roofline, a hit of 6,000 tokens saves an H100 96 TFLOP of Llama-3-8B:
# > 0.16 s at 60 % of its peak.
#
# **Takeaway.** A hit of 6,000 tokens is worth 0.16 s of an H100; weighing it against load takes the hit rate from about
# a third to two thirds on the same four engines.

# %% [markdown]
# ### Going further: by length
#
# A prompt of 20,000 tokens holds up every decode that shares its steps. The simulator's `ByLength`
# router sends long prompts to engines of their own. Requests of many lengths, on eight engines with chunks of 8,192
# tokens, so that most prompts go whole; once by the least load, once with four engines for prompts above 4,000 tokens:

# %%
# NBVAL_CHECK_OUTPUT
from twophase_tools.simulate.routers import ByLength, LeastTokens

for router in (LeastTokens(), ByLength(limit_tokens=4000, num_long=4)):
    outcome = fleets.serve(fleets.MANY_LENGTHS, router, num_engines=8, max_tokens=8192)
    print(f"{outcome.line}; ITL p99 {1e3 * outcome.total.latencies.itl.p99:.0f} ms")

# %% [markdown]
# **Read the result.** The tail of the ITL falls to less than half, because most decodes no longer share steps with long
# prompts. The price is in the other columns: two smaller pools balance worse than one, and a few more first tokens come
# late. Chunks (lab 4) are the other cure for the same tail.

# %% [markdown]
# ## 7. Pools, planned
# <!-- minutes: 11 + 10 -->
#
# Eight H100s with Llama-3-8B serve documents: 36 requests per second, prompts of some 4,800 tokens, completions of 140.
# The SLO: the first token within a second, then 12 ms per token on average. Some engines compute prompts, the others
# decode; K and V travel at 400 Gbit/s.

# %%
# NBVAL_CHECK_OUTPUT
print(fleets.costs_line())

# %% [markdown]
# <!-- card 7.10 -->
# **Predict.** How many of the eight should compute prompts, so that as many requests as possible are within the SLO?


# %% tags=["exercise:7.10"]
guess_7_10 = 5  # SOLUTION: engines for prompts

# %%
check("7.10")

# %%
for outcome in fleets.splits().values():
    print(outcome.line)
measured("7.10", fleets.best_split())

# %% [markdown]
# **Read the result.** With too few engines for prompts, requests queue up without end; with too few for decodes, each
# step has so many sequences that it takes too long. There is hardly room in between: pools have to be sized, and sized
# again when traffic changes. The same eight engines, each doing both:

# %%
from twophase_tools.simulate.routers import LeastTokens

for chunk in (256, 8192):
    print(fleets.serve(fleets.DOCUMENTS, LeastTokens(), 8, f"mixed, chunks of {chunk:,}", chunk).line)

# %% [markdown]
# Compared with chunks of 8,192 (most prompts then fit into one step) disaggregation wins clearly; compared with chunks
# of the right size it wins nothing here. Here each of eight engines decodes few sequences at a time: **chunked prefill
# is enough** as long as the chunks are small, and then no transfer is needed. Pools pay when batches are large, or when
# the two phases want different hardware (*Going further*).

# %% [markdown]
# > **In production, 2026.** vLLM's documentation of [disaggregated
# > prefill](https://docs.vllm.ai/en/latest/features/disagg_prefill/) says what the last cell shows: chunked prefill of
# > the right size can do the same, and the size is hard to find; the pools are the more reliable way to hold the tail
# > of ITL. Ray Serve's [guide](https://docs.ray.io/en/latest/serve/llm/pd-dissagregation.html) scales the two
# > deployments separately and lets them use different nodes. By roofline, a step of Llama-3-8B reads 15 GB (all but
# > the embedding table): 3.9 ms on an H200 and 5.6 on an H100, at 80 % of their bandwidth; both compute a prompt of
# > 4,800 tokens in 0.13 s at 60 % of their peak.
#
# **Takeaway.** Five engines for prompts and three for decodes keep all requests of this traffic within the SLO; one
# engine moved either way loses a third of them or more.

# %% [markdown]
# ### Going further: unequal pools
#
# `twophase plan` proposes the pools' sizes from a file. For four times this traffic it proposes:

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.many_machines import unequal_pools

print(unequal_pools.asked())
for prefill, decode in (("h100", "h100"), ("h100", "h200"), ("h200", "h100")):
    print(unequal_pools.line(prefill, decode))

# %% [markdown]
# **Read the result.** The two cards have the same arithmetic, and the H200 1.43 times the bandwidth: it makes decodes
# faster, and no prompts. Bandwidth belongs where the phase is bound by it. (The plan takes more engines than a division
# of the rates gives: it keeps them below 80 % busy, since one that is always full has an endless queue, and takes the
# fewest that hold the SLO. The TTFT is a formula's, and its small differences mean little.)

# %% [markdown]
# ### Going further: a plan that runs
#
# One file can be both the plan and the configuration. `twophase plan` reads what the deployment should be and says what
# comes of it; `open_plan` opens the engine that it describes. The command's parts, on a plan small enough to open here:

# %%
# NBVAL_CHECK_OUTPUT
import tempfile
from pathlib import Path

from twophase_tools.capacity.config import read_config
from twophase_tools.capacity.plan import Plan
from twophase_tools.capacity.report import to_text

path = Path(tempfile.mkdtemp(), "engine.yaml")
path.write_text("""
model: smollm2-135m
dtype: bfloat16
hardware: {name: this machine, memory: 2 GB, flops_per_s: 200e9, bytes_per_s: 15e9}
max_model_len: 256
max_num_seqs: 8
chunk_size: 64
workload: {rate: 0.5, prompt_tokens: 200, output_tokens: 40}
""")
print(to_text(Plan(read_config(path))))

# %%
# NBVAL_CHECK_OUTPUT
from twophase import SamplingParams
from twophase_tools.capacity.engine import open_plan

with open_plan(path) as llm:
    print(f"{llm.kv_cache.num_blocks:,} blocks of {llm.kv_cache.spec.block_size} tokens, {llm.scheduler.policy}")
    longest = [{"prompt_token_ids": [100 + number] * 192} for number in range(8)]  # no two share a block
    outputs = llm.generate(longest, SamplingParams(max_tokens=64, ignore_eos=True), use_tqdm=False)
    most = max(step.blocks_in_use for step in llm.engine.trace)
    print(f"{len(outputs)} requests of 256 tokens: at most {most} blocks in use, ", end="")
    print(f"{sum(len(step.preempted) for step in llm.engine.trace)} preemptions")

# %% [markdown]
# **Read the result.** The engine has the blocks that the plan counted. The row "the context limit" is the worst case:
# what fits if every request is as long as it may be. Before a launch, fill that envelope for real, as here:
# `max_num_seqs` requests of `max_model_len` tokens. (Speeds of hardware that you name yourself are your own
# assumption: the times are as good as those.)

# %% [markdown]
# ### Going further: as many engines as needed
#
# Traffic changes by the hour, and engines are paid by the second. Kubernetes' autoscaler divides the whole load by the
# load that one engine should carry, and rounds up; within 10 % of the present number nothing changes. The fleet grows
# at once, and shrinks only to the *largest* number wished for during a **stabilization window**, because a new engine
# takes its time to load weights and a quiet moment is not a quiet hour. For engines of language models the load is
# requests per engine: the busy share says next to nothing, since one decoding sequence keeps an engine in steps all the
# time.
#
# > **In production, 2026.** Kubernetes: a [tolerance of
# > 10 %](https://kubernetes.io/blog/2025/04/28/kubernetes-v1-33-hpa-configurable-tolerance); a window of [300 s
# > before it shrinks](https://docs.rs/k8s-openapi/0.29.0/src/k8s_openapi/v1_37/api/autoscaling/v2/hpa_scaling_rules.rs.html),
# > none before it grows. By roofline, an engine of four H100s loads Llama-3-70B's 141 GB at 10 GB/s (a fast local disk)
# > in 14 s; over 10 Gbit/s, in almost two minutes.

# %% [markdown]
# ## 8. Capstone: your fleet
# <!-- minutes: 4 -->
#
# All pieces of this lab are in place. Your `take_layer`, `put_layer` and `Transfer` served SmolLM2 from two processes,
# token for token equal to one engine, with messages lost. Now your router serves the first cell's traffic.
#
# ### The first cell again, with your work in place

# %%
# NBVAL_CHECK_OUTPUT
print(in_turn.line)
print(by_weight[0.0].line)
print(by_weight[4.0].line)
print(other_rule.line)

# %%
from twophase_labs.many_machines import fleet_pictures

fleet_pictures.draw_fleets([in_turn, by_weight[0.0], by_weight[4.0]])

# %% [markdown]
# **Read the result.** The same engines, the same requests. Balance alone changes little: the load was balanced already.
# Sending a prompt where its beginning lies turns four copies of one cache into four different caches. The last line,
# the first cell's other rule, is the engine's own `PrefixAware` with weight 4, which also forgets (that does not show
# in 400 requests).

# %% [markdown]
# **With fewer engines**, the same 400 requests and your router:

# %%
for num_engines in (4, 3, 2):
    router = PrefixRouter(num_engines, 4.0, fleets.BLOCK_SIZE)
    print(fleets.serve(fleets.ASSISTANTS, fleets.Own(router.choose), num_engines, f"yours, {num_engines} engines").line)

# %% [markdown]
# **Read the result.** The hit rate stays. Losing a quarter of the engines makes half of all requests late: near full
# load, every further percent of work goes into queues, and the busy share hardly shows it. Size a fleet by its SLO, not
# by its busy share.

# %% [markdown]
# **Takeaway.** On the same four engines, requests within the SLO go from a quarter to nine tenths by one decision per
# request; and your router's three engines serve more of them in time than four engines in turn.

# %% [markdown]
# ## 9. Knowledge check
# <!-- minutes: 3 -->
#
# One question over the whole lab.

# %% [markdown]
# <!-- card 7.11 -->
# Eight H100s in one server serve Llama-3-8B in bf16: eight engines, each request to the next one in turn. 200
# conversations run at a time, and each begins with one of 40 long instructions. All engines are busy with prompts most
# of the time; ITL is below its SLO, but too many first tokens are late. What is the first thing to try?
#
# **a** one engine with tensor parallelism over all eight<br/>
# **b** the same eight engines behind a router that weighs prefix and load<br/>
# **c** one engine with eight pipeline stages<br/>
# **d** four engines for prompts and four for decodes, round robin in both pools


# %% tags=["exercise:7.11"]
answer_7_11 = "b"  # SOLUTION: one letter

# %%
check("7.11")

# %% [markdown]
# ### Principles
#
# 1. **Ask what travels, and how often.** Per layer and step it is latency that counts; per request, bandwidth.
# 2. **A position means the same everywhere**, a block id only in its own pool.
# 3. **Moved data is equal, summed data nearly.** Test the first bit for bit, the second with a tolerance.
# 4. **Know what you have.** A receiver that knows *which* blocks it has can recover; one that counts them or trusts
#    shapes cannot.
# 5. **Divide bytes, not latencies.** Tensor parallelism pays where there is much to read.
# 6. **The most loaded rank sets the step time**, whether it holds experts, stages or requests.
# 7. **A cache is worth what reaches it.** Route by prefix and load together.
# 8. **Scale up at once, scale down after a window.**
#
# ### What to read next
#
# - DistServe, arXiv:2401.09670, and Splitwise, arXiv:2311.18677: why and when to separate the phases.
# - Mooncake, arXiv:2407.00079: a service built around moving K and V.
# - Megatron-LM, arXiv:1909.08053, and GPipe, arXiv:1811.06965: the cuts of sections 3 and 4.
# - DeepSeek-V3, arXiv:2412.19437, section 3.4: pools, experts and their balance in one deployment.
# - Preble, arXiv:2407.00023: prompts scheduled by prefix and load over many engines.
#
# Lab 8 puts the engine behind a server and operates it.

# %%
from twophase_labs.kit.course_map import closing

closing("7")
