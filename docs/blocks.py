"""Text of the README and of docs/ that commands print: a check's verdict, the course's times, the feature table.

In a page a block stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. `python -m docs.generate` writes it;
tests/test_readme.py prints it again and compares.
"""

import contextlib
import inspect
import io
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

from docs import feature_grid
from twophase_server import metric_families

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("engine", "features", "results", "server")))

EXERCISE = "1.3"
MISTAKE = """
for _ in range(num_new):
    next_id = model(ids[None]).logits[0, -1].argmax()
    ids = torch.cat([ids, next_id[None]])
return ids
"""  # it never stops at the end token

EXAMPLE = """
from twophase import LLM, SamplingParams

llm = LLM()  # SmolLM2; or a folder of Llama, Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE or Gemma 3
question = {"role": "user", "content": "What is the capital of France?"}
print(llm.chat([question], SamplingParams(temperature=0))[0].outputs[0].text)
print("tokens computed per step:", [sum(chunk[3] for chunk in step.chunks) for step in llm.engine.trace])
"""

# The engine in reading order: from a request to its next token.
READING: Mapping[str, str] = {
    "core/request": "what is asked for, and what comes back",
    "engine/engine": "`Engine.step`: schedule, run, sample, update, report",
    "scheduling/scheduler": "which requests take part in a step, and with how many tokens",
    "scheduling/planner": "a step's moves: decode, prefill, admit; preemption; whose blocks",
    "scheduling/policy": "what goes first",
    "cache/block_pool": "which blocks are free, in use or cached",
    "cache/manager": "a sequence's block table: opened, grown, published, forked, freed",
    "cache/prefix_cache": "which blocks another prompt has filled already",
    "engine/runner": "a plan becomes one flat batch without padding, which goes through the model",
    "model/llama": "the layers",
    "attention/torch_backend": "K and V are written into blocks, and queries attend to them",
    "engine/sampler": "logits become a token",
}

COURSE: Mapping[str, str] = {
    "00_start": "nothing yet: what your machine can do, a first answer, its block table, the engine's step",
    "01_autoregression": (
        "the generation loop, a K/V cache, its bytes, a budget of memory, sampling; your loop runs in the engine"
    ),
    "02_prefill": (
        "attention on a real layer, a roofline, online softmax; in Triton, from an empty body, a fused norm, "
        "FlashAttention and its paged, ragged form; chunked prefill; your prefill runs in the engine"
    ),
    "03_decode": (
        "a block pool and block tables, copy-on-write, the Triton decode kernel from an empty body, its splits, their "
        "merge and plan, int8 K/V, a step's time; your allocator and your kernels run in the engine"
    ),
    "04_scheduling": (
        "static, dynamic and continuous batching, chunked prefill as a policy of your own, latency metrics, "
        "preemption, priorities, planning ahead of the device, an open challenge; your policy runs in the engine"
    ),
    "05_advanced": (
        "prefix caching and its timing channel, drafts and trees of them, their verification, structured outputs, "
        "windows and sinks; your store, drafter, verifier and mask run in the engine"
    ),
    "06_compression": (
        "rounding in groups, a GGUF file bit by bit, W8A8 and SmoothQuant, AWQ, GPTQ, a 4-bit Triton kernel, sparsity, "
        "adapters, distillation; your 4-bit weights run in the engine and face its gate"
    ),
    "07_many_machines": (
        "a transfer of K and V that survives lost messages, tensor parallelism, a mixture of experts over ranks, "
        "data-parallel attention, a router; your pieces run in two processes and in simulated fleets"
    ),
    "08_operations": (
        "a client for streamed events, a tenant's token bucket, quantiles and alerts, five incidents, a KV "
        "tier for agents, a service that degrades in steps, what a token costs, a canary's verdict, answers that a "
        "verifier accepts; your pieces run against a real HTTP server and in simulated hours"
    ),
    "09_your_engine": (
        "your parts of all labs in one engine, with and without each; vLLM's scheduler predicted, step by step beside "
        "yours; designs for three services, judged by planner and simulator"
    ),
}


def verdict() -> str:
    """What a check answers to a mistake."""
    import torch

    from twophase_labs.machine.cards import verdict_card
    from twophase_labs.machine.judge import Judge, run_cell
    from twophase_labs.machine.lab import Workbook

    lab = Workbook.find().lab_of(EXERCISE)
    namespace = {"torch": torch}
    run_cell(lab.templates[EXERCISE].filled({1: MISTAKE.strip()}), namespace, f"<exercise {EXERCISE}>")
    judge = Judge(lab.exercises, references={}, num_blanks={})
    found = judge.judge(lab.exercises[EXERCISE], namespace, seed=0)
    return fenced("text", str(verdict_card(lab.exercises[EXERCISE], found, attempts=1)))


def step() -> str:
    """The engine's own lines."""
    from twophase.engine.engine import Engine

    return fenced("python", textwrap.dedent(inspect.getsource(Engine.step)))


def scheduling() -> str:
    """What the swim lanes show, in numbers."""
    from docs.pictures import FOUR_REQUESTS, TWO_POLICIES, simulated

    runs = [{each.request_id: each for each in simulated(FOUR_REQUESTS, name)[0]} for name in TWO_POLICIES.values()]
    (gap, chunked_gap), (ttft, chunked_ttft) = (
        [f"{1000 * time_s:.0f}" for time_s in times]
        for times in ([max(run["A"].itls_s) for run in runs], [run["long prompt"].ttft_s for run in runs])
    )
    return (
        f"With prompts first, A waits up to {gap} ms for its next token; with chunks, {chunked_gap} ms. The long "
        f"prompt pays for it: its first token comes after {chunked_ttft} ms instead of {ttft} ms."
    )


def course() -> str:
    """A row per lab, with its exercises and minutes."""
    from twophase_labs.machine.lab import Workbook

    lines = ["| lab | what you build | exercises | time |", "|---|---|--:|--:|"]
    for lab in Workbook.find().labs.values():
        count = "+".join(str(len(kind)) for kind in (lab.core, lab.extra) if kind)
        title = f"[{lab.name.replace('_', ' ')}](labs/{lab.name}.ipynb) ([solved](labsolutions/{lab.name}.ipynb))"
        lines.append(f"| {title} | {COURSE[lab.name]} | {count or '–'} | {_hours(lab.minutes)} |")
    return "\n".join(lines)


def example() -> str:
    """The six lines, and what they print."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(EXAMPLE, {})
    return f"{fenced('python', EXAMPLE.strip())}\n\n{fenced('text', printed.getvalue())}"


def reading() -> str:
    """The engine's files in reading order. Lines to the next ten, so that not every change moves them."""
    lines = ["| file | lines | what it does |", "|---|--:|---|"]
    for name, what in READING.items():
        path = f"src/twophase/{name}.py"
        num_lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        lines.append(f"| [{name}.py]({path}) | {10 * -(-num_lines // 10)} | {what} |")
    return "\n".join(lines)


def _hours(minutes: int) -> str:
    """To the quarter of an hour: more would be pretence."""
    quarters = round(minutes / 15)
    if quarters < 4:
        return f"{minutes} min" if minutes else "–"
    return f"{quarters // 4}{('', '¼', '½', '¾')[quarters % 4]} h"


def fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def metrics() -> str:
    """A row per metric of the server, in their order."""
    rows = [f"| `{each.name}` | {each.kind} | {each.help} |" for each in metric_families.METRICS]
    return "\n".join(["| metric | kind | what |", "|---|---|---|", *rows])


BLOCKS: Mapping[str, Callable[[], str]] = {
    "example": example,
    "verdict": verdict,
    "scheduling": scheduling,
    "step": step,
    "course": course,
    "reading": reading,
    "refusals": feature_grid.refusals_as_markdown,
    "features": feature_grid.as_markdown,
    "metrics": metrics,
}


def blocks_in(page: str) -> dict[str, str]:
    """The blocks of a page by name, as they stand there."""
    found = re.findall(r"<!-- begin (\w+) -->\n(.*?)\n<!-- end \1 -->", page, re.DOTALL)
    return {name: text.strip("\n") for name, text in found}


def with_blocks(page: str) -> str:
    """The page with its blocks printed anew."""

    def block(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- begin {name} -->\n{BLOCKS[name]()}\n<!-- end {name} -->"

    return re.sub(r"<!-- begin (\w+) -->.*?<!-- end \1 -->", block, page, flags=re.DOTALL)
