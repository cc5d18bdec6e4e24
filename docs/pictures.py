"""The README's pictures, drawn from what the engine and its scheduler really do.

`python -m docs.generate` writes them; tests/test_readme.py draws them again and compares.
"""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from twophase import LLM, SamplingParams
from twophase.core.plan import StepTrace
from twophase.core.request import RequestOutput
from twophase_labs.machine.pictures import draw_block_tables
from twophase_tools.colours import EMPTY, INK, LINE
from twophase_tools.load.pictures import SPAN_COLOURS, draw_lane_panels
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.workloads import TimedRequest
from twophase_tools.named_policies import policy_from_text
from twophase_tools.simulate.cost_model import RooflineCostModel
from twophase_tools.simulate.hardware import HARDWARE
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.model_shapes import MODELS
from twophase_tools.simulate.simulator import simulate
from twophase_tools.simulate.traffic import requests_of

# Two files of one picture are equal: no date, no random ids, glyphs as paths whatever fonts a machine has.
SVG_STYLE = {"svg.hashsalt": "twophase", "svg.fonttype": "path", "font.family": "DejaVu Sans"}
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
TOLERANCE = 0.05  # points: the last digits of a coordinate may differ between machines

GREEDY = SamplingParams(temperature=0, max_tokens=7, ignore_eos=True)
PROMPTS = {"A": "The sea is blue because", "B": "Birds can fly because"}
B_ARRIVES_AT_STEP = 3
BLOCK_SIZE, NUM_BLOCKS = 4, 8

INSTRUCTION = (
    "You are a careful assistant. Read the question twice, answer in plain English, "
    "never use more than three sentences, and say so if you do not know."
)


def as_svg(figure: Figure) -> str:
    """The figure as the text of a file, on white so that it reads on a dark page, too. Closes the figure."""
    with matplotlib.rc_context(SVG_STYLE):
        file = io.StringIO()
        figure.savefig(file, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return re.sub(r"[ \t]+$", "", file.getvalue(), flags=re.MULTILINE)


def is_same_picture(one: str, other: str) -> bool:
    """Whether two SVG files differ by nothing but rounding."""
    if NUMBER.sub("", one) != NUMBER.sub("", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), abs_tol=TOLERANCE) for a, b in pairs)


@dataclass(frozen=True)
class TwoRequests:
    """What an engine did with two requests, the second of which came later.

    Attributes:
        texts: Each request's tokens, prompt and completion, as text.
        steps: What each step computed.
        tables: Block ids and computed tokens of each request in the last step that both were in.
        shown_step: That step, counted from 0.
    """

    texts: Mapping[str, Sequence[str]]
    steps: Sequence[StepTrace]
    tables: Mapping[str, tuple[Sequence[int], int]]
    shown_step: int


def run_two_requests() -> TwoRequests:
    llm = LLM(num_kv_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_num_seqs=8, enable_prefix_caching=False)
    engine = llm.engine
    outputs: dict[str, RequestOutput] = {}
    engine.add_request("A", PROMPTS["A"], GREEDY)
    seen = []
    while engine.has_unfinished_requests():
        if len(seen) == B_ARRIVES_AT_STEP - 1:
            engine.add_request("B", PROMPTS["B"], GREEDY)
        for output in engine.step():
            outputs[output.request_id] = output
        seen.append(engine.block_tables())
    shown = max(number for number, tables in enumerate(seen) if len(tables) == 2)
    texts = {
        name: [llm.tokenizer.decode([id_]) for id_ in (*output.prompt_token_ids, *output.outputs[0].token_ids)]
        for name, output in outputs.items()
    }
    return TwoRequests(texts, engine.trace, seen[shown], shown)


def draw_two_phases() -> Figure:
    """A batch per step above, the K/V blocks that the steps fill below."""
    run = run_two_requests()
    figure, (above, below) = plt.subplots(2, 1, figsize=(10, 4.4), height_ratios=(1.45, 1), facecolor="white")
    _draw_steps(above, run)
    _draw_blocks(below, run)
    for axes in (above, below):
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    figure.subplots_adjust(left=0.01, right=0.99, top=0.93, bottom=0.01, hspace=0.22)
    return figure


def _draw_steps(axes: Axes, run: TwoRequests) -> None:
    width, height = 0.9, 0.86
    lowest = 0
    for column, step in enumerate(run.steps):
        row = 0
        for position, (name, _, start, count) in enumerate(step.chunks):
            kind = "decode" if position < step.num_decodes else "prefill"
            for token in run.texts[name][start : start + count]:
                _draw_token(axes, column, row, width, height, token, SPAN_COLOURS[kind])
                axes.text(column + 0.05, row + height / 2, name, va="center", fontsize=6.5, color=INK, alpha=0.6)
                row += 1
        lowest = max(lowest, row)
        outputs = [run.texts[name][start + count] for name, _, start, count in step.chunks]
        axes.text(column + width / 2, row + 0.38, "↓", ha="center", va="center", fontsize=9, color=INK)
        for number, token in enumerate(outputs):
            at = row + 0.95 + 0.62 * number
            text = axes.text(column + width / 2, at, token.strip(), ha="center", va="center", fontsize=8, color=INK)
            text.set_fontweight("bold")
        axes.text(column + width / 2, -0.3, f"step {column + 1}", ha="center", fontsize=8, color=LINE)
    axes.set(xlim=(-0.02, len(run.steps)), ylim=(lowest + 2.0, -0.9))
    axes.set_title(
        "One batch per step: a prompt goes in whole (prefill), an answer token by token (decode)",
        loc="left",
        fontsize=11,
    )


def _draw_blocks(axes: Axes, run: TwoRequests) -> None:
    slot_of: dict[tuple[int, int], tuple[str, int]] = {}
    for name, (block_ids, num_tokens) in run.tables.items():
        for position in range(num_tokens):
            slot_of[block_ids[position // BLOCK_SIZE], position % BLOCK_SIZE] = name, position
    num_prompt = {step_chunk[0]: step_chunk[3] for step in reversed(run.steps) for step_chunk in step.chunks}
    columns = NUM_BLOCKS // 2
    for block in range(NUM_BLOCKS):
        row, column = divmod(block, columns)
        left, top = column * (BLOCK_SIZE + 0.5), row * 2.1
        owner = slot_of.get((block, 0))
        label = f"block {block}" + (f": {owner[0]}" if owner else ", free")
        axes.text(left, top - 0.18, label, fontsize=8, color=INK if owner else LINE)
        for offset in range(BLOCK_SIZE):
            found = slot_of.get((block, offset))
            colour, token = EMPTY, ""
            if found is not None:
                name, position = found
                colour = SPAN_COLOURS["prefill" if position < num_prompt[name] else "decode"]
                token = run.texts[name][position]
            _draw_token(axes, left + offset, top, 0.96, 1.0, token, colour)
    tables = "    ".join(f"{name} {list(block_ids)}" for name, (block_ids, _) in run.tables.items())
    title = f"The K/V cache after step {run.shown_step + 1}: blocks of {BLOCK_SIZE} slots. Block tables:  {tables}"
    axes.set_title(title, loc="left", fontsize=11)
    axes.set(xlim=(-0.02, columns * (BLOCK_SIZE + 0.5)), ylim=(3.4, -0.75))


def _draw_token(axes: Axes, left: float, top: float, width: float, height: float, token: str, colour: str) -> None:
    axes.add_patch(Rectangle((left, top), width, height, facecolor=colour, edgecolor=LINE, linewidth=0.6))
    axes.text(left + width / 2, top + height / 2, token.strip(), ha="center", va="center", fontsize=8, color=INK)


FOUR_REQUESTS = (
    TimedRequest("A", 0.0, 200, 40),
    TimedRequest("B", 0.05, 300, 40),
    TimedRequest("long prompt", 0.12, 8000, 12),
    TimedRequest("C", 0.2, 250, 24),
)
TWO_POLICIES = {
    "Prompts first: while the long one is computed, A and B get no token": "prefill-first",
    "Decodes first, prompts in chunks of 512 tokens: A and B go on": "chunked:max_tokens=512",
}


def draw_scheduling() -> Figure:
    """The same four requests under two policies: the real scheduler, its steps as long as a roofline says."""
    panels = {title: simulated(FOUR_REQUESTS, policy) for title, policy in TWO_POLICIES.items()}
    return draw_lane_panels(panels, milliseconds=True)


def simulated(requests: Sequence[TimedRequest], policy: str) -> tuple[Sequence[RequestRecord], Sequence[StepTrace]]:
    model = RooflineCostModel(HARDWARE["h100"], MODELS["llama-3-8b"])
    limits = {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 16384,
        "max_model_len": 16384,
        "num_blocks": model.num_blocks(),
        "block_size": 16,
    }
    result = simulate(requests_of(requests), make_scheduler(limits, policy_from_text(policy)), model)
    return result.records, result.steps


def draw_shared_prefix() -> Figure:
    """Two questions under one instruction, as lab 0 asks them: what both begin with is stored once."""
    llm = LLM(num_kv_blocks=16, block_size=16, max_num_seqs=8)

    def ask(question: str) -> dict[str, list[int]]:
        messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": question}]
        return {"prompt_token_ids": llm.tokenizer.apply_chat_template(messages)}

    params = SamplingParams(temperature=0, max_tokens=80)
    llm.engine.add_request("A", ask("Why is the sky blue?"), params)
    for _ in range(40):
        llm.engine.step()
    llm.engine.add_request("B", ask("Why do cats purr?"), params)
    for _ in range(10):
        llm.engine.step()
    figure = draw_block_tables(llm.engine.block_tables(), num_blocks=16, block_size=16)
    tables, pool = figure.axes
    tables.set_title("Block tables: 0 and 1 are shared", loc="left", fontsize=11)
    pool.set_title("The pool: 16 blocks of 16 slots, coloured as far as they are filled", loc="left", fontsize=11)
    return figure


PICTURES: Mapping[str, Callable[[], Figure]] = {
    "two_phases.svg": draw_two_phases,
    "scheduling.svg": draw_scheduling,
    "shared_prefix.svg": draw_shared_prefix,
}
