# PART lab5b
# %% tags=["setup"]
import math
import time

import matplotlib.pyplot as plt
import torch

from twophase import LLM, SamplingParams, StructuredOutputs
from twophase.workbook import ____, check, hint, measured, reference, reveal, use
from twophase.workbook.lab05 import (
    gate_caches,
    gate_pictures,
    guided_answers,
    guided_model,
    guided_pictures,
    window_engine,
    window_pictures,
)
from twophase.workbook.lab05.guided_machine import CITY_RECORD, PRICE

torch.set_num_threads(1)

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
