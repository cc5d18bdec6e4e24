# %% [markdown]
# # twophase: build an LLM inference engine
#
# Everything a language model says is computed twice over, in two ways: once for your prompt, all tokens together
# (*prefill*), and then once for each token of the answer, one at a time (*decode*). The two phases use the same weights
# and the same arithmetic, and yet one is limited by how fast this machine multiplies, the other by how fast it reads
# memory. Five labs follow from that. In each you write the missing piece, and your piece then runs inside a real
# engine, on a real model.
#
# This page takes five minutes: it looks at your machine, lets the engine answer a question, and shows where the answer
# lived in memory. Run it from top to bottom (**Run ▸ Run All Cells**).

# %% [markdown]
# ## 1. What this machine can do
#
# The doctor runs a small attention in each way this machine offers and compares it with an independent reference. *Not
# run* means what it says: nothing is claimed for what this machine cannot do. Every lab works without a GPU.

# %%
from twophase_tools.cli.doctor import diagnose

diagnose()

# %% [markdown]
# ## 2. A real model answers
#
# `LLM` is the engine you are going to rebuild. The model is SmolLM2-135M-Instruct: 30 layers, 9 query heads that share
# 3 key/value heads, 135 million weights. Small, but built like its big relatives.

# %%
from twophase import LLM, SamplingParams

llm = LLM(num_kv_blocks=24, block_size=16)
question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
answer = llm.chat(question, SamplingParams(temperature=0, max_tokens=40))
print(answer[0].outputs[0].text)

# %% [markdown]
# Greedy decoding (`temperature=0`) always takes the likeliest token, so you and your neighbour read the same sentence.
#
# ## 3. Where the answer lives
#
# For every token it has seen, a model keeps a *key* and a *value* in each layer, so that it need not compute them
# again. This engine keeps them in *pages* of 16 tokens, handed out from one pool as a sequence grows. Which page holds
# which tokens is written in the sequence's *block table*: the same trick by which an operating system gives every
# program its own memory.
#
# **Think first.** The two requests below begin with the same instruction, about 40 tokens. B comes when A is already
# being answered. How many pages will they share?

# %%
INSTRUCTION = (
    "You are a careful assistant. Read the question twice, answer in plain English, "
    "never use more than three sentences, and say so if you do not know."
)


def ask(question):
    messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": question}]
    return {"prompt_token_ids": llm.tokenizer.apply_chat_template(messages)}


engine = llm.engine
params = SamplingParams(temperature=0, max_tokens=80)
engine.add_request("A", ask("Why is the sky blue?"), params)
for _ in range(40):
    engine.step()
engine.add_request("B", ask("Why do cats purr?"), params)
for _ in range(10):
    engine.step()
tables = engine.block_tables()

# %%
from twophase_labs.machine.pictures import draw_block_tables

figure = draw_block_tables(tables, num_blocks=24, block_size=16)

# %% [markdown]
# The pages marked *A* and *B* hold the common beginning, computed once and stored once: every page that it fills. The
# page in which the questions part is each request's own. The last page of a sequence is filled as far as the sequence
# has come; nothing is reserved for what it may still say.
#
# ## 4. The two phases, on this machine
#
# The engine keeps a diary of its steps. The first step of request A computed its whole prompt; each of the next
# computed one token.

# %%
prefill, *decodes = [entry for entry in engine.trace if entry.chunks and entry.chunks[0][0] == "A"][:12]
num_tokens = sum(chunk[3] for chunk in prefill.chunks)
decode_ms = sorted(entry.run_s * 1e3 for entry in decodes)[len(decodes) // 2]
prefill_ms = prefill.run_s * 1e3
print(f"prefill: {num_tokens} tokens in {prefill_ms:.1f} ms, {prefill_ms / num_tokens:.2f} ms a token")
print(f"decode: 1 token in {decode_ms:.1f} ms")

# %% [markdown]
# A token of the prompt is many times cheaper than a token of the answer. Lab 2 shows why, and lab 3 what to do about
# it. The rest of the two answers. A model this small makes things up, cheerfully; the arithmetic underneath is exact.

# %%
while engine.has_unfinished_requests():
    for output in engine.step():
        if output.finished:
            print(f"{output.request_id}: {output.outputs[0].text.strip()}\n")

# %% [markdown]
# ## 5. The way on
#
# ```mermaid
# flowchart LR
#     L1["1 autoregression<br/>why a cache exists"] --> L2["2 prefill<br/>all tokens at once"]
#     L2 --> L3["3 decode<br/>one token at a time"]
#     L3 --> L4["4 scheduling<br/>many requests"]
#     L4 --> L5["5 advanced<br/>beyond the loop"]
# ```
#
# Go on with **lab 1, autoregression**: [01_autoregression.ipynb](01_autoregression.ipynb).
