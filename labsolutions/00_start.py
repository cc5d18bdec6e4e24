# %% [markdown]
# # twophase: build an LLM inference engine
#
# The next cell loads a language model into the engine that you are going to rebuild, and asks it a question. Run it.

# %%
from twophase import LLM, SamplingParams
from twophase_labs.kit.answer_picture import draw_answer

llm = LLM(num_kv_blocks=24, block_size=16)
question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
(answer,) = llm.chat(question, SamplingParams(temperature=0, max_tokens=40), use_tqdm=False)
pieces = [llm.tokenizer.decode([token]) for token in answer.outputs[0].token_ids]
draw_answer(answer, llm.engine.trace, pieces)

# %% [markdown]
# Each box is one run of the model, as wide as the time that it took. The orange one is **prefill**: it reads the whole
# question and writes the first token. The blue ones are **decode**: each writes one token, from all tokens before it.
#
# Reading and writing a token take the same weights and the same arithmetic. So why does a blue box hold one token, and
# the orange one so many? Lab 2 measures what limits prefill (how fast this machine multiplies), lab 3 what limits
# decode (how fast it reads memory). The subject of the course is an engine that serves both.
#
# ## 1. The course
# <!-- minutes: 3 -->
#
# This is where you stand. (If the first cell failed, section 2 says what is missing and how to install it.)

# %%
from twophase_labs.kit.course_map import course_map, paths

course_map()

# %% [markdown]
# ```mermaid
# flowchart LR
#     L1["1 autoregression<br/>why a cache exists"] --> L2["2 prefill<br/>all tokens at once"]
#     L2 --> L3["3 decode<br/>one token at a time"]
#     L3 --> L4["4 scheduling<br/>many requests"]
#     L4 --> L5["5 advanced<br/>beyond the loop"]
#     L5 --> L6["6 compression<br/>fewer bytes"]
#     L6 --> L7["7 many machines<br/>more than one GPU"]
#     L7 --> L8["8 operations<br/>a service"]
#     L8 --> L9["9 your engine<br/>all your parts"]
# ```
#
# In each lab you write the missing pieces, and then the engine runs with them. A blank looks like `____("1.3", 1)`.
# `check("1.3")` says whether your answer is right and, if it is not, what fails first. `hint("1.3")` helps, a little
# more each time, and `reveal("1.3")` shows a solution. If you skip an exercise, later cells use the reference. Your
# progress is kept in a file beside each notebook; `make grade` reads all of them.
#
# All labs together take several days. With one day, take one of two paths, either the attention kernels or the parts of
# a server. Each is a list of sections, in order:

# %%
paths()

# %% [markdown]
# Every lab works by the same [method](../docs/method.md): predict, measure, divide by the floor, read the shape,
# explain the rest, and keep an oracle. It takes two minutes to read.
#
# ## 2. What this machine can do
# <!-- minutes: 1 -->
#
# `diagnose` runs a small attention in each way that this machine offers, and compares the result with an independent
# reference. *Not run* means that it could not be tried here, and so nothing is claimed.

# %%
from twophase_tools.cli.doctor import diagnose

diagnose()

# %% [markdown]
# **Takeaway.** None of the labs needs a GPU. What cannot run here is reported as *not run*, never as passed.
#
# ## 3. Where the answer lives
# <!-- minutes: 3 -->
#
# For each token, every layer of the model computes a *key* and a *value*, which all later tokens need. The engine
# therefore keeps them. Their memory is divided into **blocks** of 16 tokens. A sequence gets a block when it needs one,
# wherever one is free, and its **block table** lists the blocks that it has, in order. An operating system gives
# memory to programs in the same way.
#
# Two requests that begin with the same tokens can use the same blocks. Here both begin with the same instruction, and B
# arrives while A is being answered.

# %%
INSTRUCTION = (
    "You are a careful assistant. Read the question twice, answer in plain English, "
    "never use more than three sentences, and say so if you do not know."
)


def ask(question):
    messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": question}]
    return llm.tokenizer.apply_chat_template(messages)


prompts = {"A": ask("Why is the sky blue?"), "B": ask("Why do cats purr?")}
num_common = next(i for i, (a, b) in enumerate(zip(prompts["A"], prompts["B"], strict=False)) if a != b)
print(f"A has {len(prompts['A'])} tokens, B has {len(prompts['B'])}; the first {num_common} are the same")

# %% [markdown]
# **Think first.** How many blocks of 16 tokens will A and B share?

# %%
engine = llm.engine
params = SamplingParams(temperature=0, max_tokens=80)
engine.add_request("A", {"prompt_token_ids": prompts["A"]}, params)
for _ in range(40):
    engine.step()
engine.add_request("B", {"prompt_token_ids": prompts["B"]}, params)
for _ in range(10):
    engine.step()
tables = engine.block_tables()

# %%
from twophase_labs.machine.pictures import draw_block_tables

figure = draw_block_tables(tables, num_blocks=24, block_size=16)

# %%
shared = [block for block in tables["A"][0] if block in tables["B"][0]]
print(f"{num_common} common tokens fill {num_common // 16} blocks of 16, and {num_common % 16} tokens are left over")
print(f"in both block tables: {len(shared)} blocks, {shared}")

# %% [markdown]
# Only a full block is shared. The tokens left over share a block with the beginning of each request's own question, so
# each request has its own copy of them. The last block of a sequence is filled as far as the sequence has come: the
# engine reserves nothing for tokens that may still follow.
#
# **Takeaway.** Two requests share a block only if all of its 16 tokens, and all tokens before it, are the same.
#
# ## 4. The two phases again
# <!-- minutes: 2 -->
#
# The engine records every step. Here are reading and writing again, now for A and B, with a time per token, and a
# third: what a token costs in the steps that wrote one token for A and one for B.

# %%
from statistics import median

steps = {"A reads": [], "B reads": [], "A writes alone": [], "A and B write": []}
for entry in engine.trace:
    names, num_tokens = [chunk[0] for chunk in entry.chunks], sum(chunk[3] for chunk in entry.chunks)
    if names == ["A"]:
        steps["A reads" if num_tokens > 1 else "A writes alone"].append((num_tokens, entry.run_s))
    elif "B" in names:
        steps["B reads" if num_tokens > 2 else "A and B write"].append((num_tokens, entry.run_s))
for what, found in steps.items():
    num_tokens, run_ms = found[0][0], 1e3 * median(run_s for _, run_s in found)
    print(f"{what:15} {num_tokens:3} tokens a step, {run_ms:6.1f} ms a step, {run_ms / num_tokens:5.1f} ms a token")

# %% [markdown]
# Two things are new. B's step computes far fewer tokens than B's prompt has: the keys and values of the shared blocks
# are there already (the step also writes one token for A). Per token it is slower than A's, since fewer tokens share
# one reading of the weights. And a step that writes two tokens need not take twice as long as a step that writes one,
# because it reads the weights once for both. You will meet all four again: *A reads* and *A writes alone* in labs 1 to
# 3, *A and B write* in lab 4, *B reads* in lab 5.
#
# **Takeaway.** A step reads the weights once, however many tokens it computes. So the more tokens share a step, the
# cheaper each one is.
#
# ## 5. One step of the engine
# <!-- minutes: 2 -->
#
# One method, called again and again, has done everything above. This is its source, read from the installed package:

# %%
from twophase.engine.engine import Engine
from twophase_labs.kit.open_engine import show_source

show_source(Engine.step)

# %% [markdown]
# Read it as three acts. `_schedule` decides which sequences run now, and with how many tokens each. `_run` packs these
# tokens into one batch, runs the model once and samples. `_update` appends the new tokens, and `_report` hands them
# out. The other lines serve requests that need more (drafts) or keep the record that the cell
# above has read.
#
# **Think first.** Which share of a step's time is the model's?

# %%
acts = {"schedule": "schedule_s", "run": "run_s", "update": "update_s"}
times_ms = {name: 1e3 * median(getattr(entry, field) for entry in engine.trace) for name, field in acts.items()}
for name, time_ms in times_ms.items():
    print(f"{name:9}{time_ms:8.3f} ms, {time_ms / sum(times_ms.values()):6.1%}")

# %% [markdown]
# The two answers are not complete yet. The same method completes them. (A model of 135 million weights makes things up.
# What the engine computes for it is exact.)

# %%
while engine.has_unfinished_requests():
    for output in engine.step():
        if output.finished:
            print(f"{output.request_id}: {output.outputs[0].text.strip()}\n")

# %% [markdown]
# **Takeaway.** An engine is one loop with three acts: schedule, run, update. You will write parts of each.
#
# ## 6. Glossary
# <!-- minutes: 2 -->
#
# The course uses one word for one thing. Other texts use other words; the last column has some of them.
#
# <!-- glossary -->
#
# Go on with **lab 1, autoregression**: [01_autoregression.ipynb](01_autoregression.ipynb).
