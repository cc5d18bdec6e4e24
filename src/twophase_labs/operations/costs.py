"""What a token costs: a run's steps, shared among the requests in them."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from twophase_labs.kit.draw import done, one_axes
from twophase_labs.operations.incidents import Hour
from twophase_labs.operations.machines import Machine
from twophase_labs.operations.service import ON_H100, ON_L4, Setting, Traffic
from twophase_tools.colours import COLOURS, INK
from twophase_tools.simulate.cost_model import RooflineCostModel
from twophase_tools.simulate.step_load import StepLoad

Share = Callable[..., list[float]]
DOLLARS_PER_HOUR = {"L4": 0.70, "H100": 2.50}  # round numbers to compute with; write your own price here


def machine(model: RooflineCostModel) -> Machine:
    """Of a roofline."""
    shape = model.shape
    return Machine(
        model.hardware.flops_per_s * model.assumptions.compute_efficiency,
        model.hardware.bytes_per_s * model.assumptions.bandwidth_efficiency,
        shape.weight_bytes,
        2 * shape.layer_params,
        4 * shape.num_heads * shape.head_dim * shape.num_layers,
        shape.kv_bytes_per_token,
    )


L4, H100 = machine(ON_L4), machine(ON_H100)
MACHINES = {"L4": L4, "H100": H100}
QUIET_H100 = Hour("healthy", Setting(cost_model=ON_H100), Traffic())
BUSY_H100 = Hour(
    "healthy",
    Setting(cost_model=ON_H100),
    Traffic(rate_per_s=18.0, length_s=30.0, json_share=0.25, document_share=0.08),
)


@dataclass(frozen=True)
class Bill:
    """What a run cost.

    Attributes:
        seconds: Of GPU time by path: 'prompt' and 'output' of first attempts, 'again' of the attempts after them.
        tokens: By path.
        busy_s: In steps. idle_s: Paid for, between them.
        failed_s: Of attempts whose answer was no JSON.
        num_failed: Of them.
        seconds_per_task: Mean by kind of request, all attempts of a task together.
    """

    seconds: dict[str, float]
    tokens: dict[str, int]
    busy_s: float
    idle_s: float
    failed_s: float
    num_failed: int
    seconds_per_task: dict[str, float]

    def per_million(self, path: str, dollars_per_hour: float) -> float:
        return self.seconds[path] / self.tokens[path] * 1e6 * dollars_per_hour / 3600


def bill(share_step: Share, gpu: Machine, hour: Hour, seed: int = 1) -> Bill:
    """The learner's shares, added up over all steps of an hour."""
    run = hour.run(seed)
    seconds: dict[str, float] = defaultdict(float)
    tokens: dict[str, int] = defaultdict(int)
    of_request: dict[str, float] = defaultdict(float)
    for step in run.steps:
        step_s = step.schedule_s + step.run_s + step.update_s
        shares = share_step([(start, count) for _, _, start, count in step.chunks], step_s, gpu)
        for number, ((request_id, _, _, count), share_s) in enumerate(zip(step.chunks, shares, strict=True)):
            is_again = run.asked[request_id].attempt > 1
            path = "again" if is_again else "output" if number < step.num_decodes else "prompt"
            seconds[path] += share_s
            tokens[path] += count
            of_request[request_id] += share_s
    busy_s = sum(step.schedule_s + step.run_s + step.update_s for step in run.steps)
    last = run.steps[-1]
    span_s = last.start_s + last.schedule_s + last.run_s + last.update_s - run.steps[0].start_s
    failed_s = sum(of_request[request_id] for request_id in run.invalid)
    of_kind: dict[str, float] = defaultdict(float)
    num_tasks: dict[str, int] = defaultdict(int)
    for request_id, request_s in of_request.items():
        asked = run.asked[request_id]
        of_kind[asked.kind] += request_s
        num_tasks[asked.kind] += asked.attempt == 1
    per_task = {kind: of_kind[kind] / num_tasks[kind] for kind in sorted(of_kind)}
    return Bill(dict(seconds), dict(tokens), busy_s, span_s - busy_s, failed_s, len(run.invalid), per_task)


def step_seconds(model: RooflineCostModel, chunks: Sequence[tuple[int, int]], num_decodes: int) -> float:
    """How long a step of these chunks takes, by roofline, host work included; decodes first."""
    prefills = chunks[num_decodes:]
    load = StepLoad(
        sum(count for _, count in chunks),
        len(chunks),
        len(chunks),
        sum(start + 1 for start, _ in chunks[:num_decodes]),
        sum(start * count + count * (count + 1) // 2 for start, count in prefills),
        sum(start + count for start, count in prefills),
    )
    return float(model.cost(load).total_s)


def draw_prices(of_path: Mapping[str, float], name: str) -> Figure:
    """Dollars per million tokens, by path."""
    figure, axes = one_axes(7.5, 3)
    bars = axes.bar(range(len(of_path)), list(of_path.values()), color=COLOURS[1], edgecolor=INK, width=0.6)
    axes.bar_label(bars, fmt="%.2g", fontsize=8, color=INK, padding=2)
    axes.set_xticks(range(len(of_path)), list(of_path), fontsize=9)
    axes.set_title(f"{name} at ${DOLLARS_PER_HOUR[name]:.2f} an hour", loc="left", fontsize=10)
    axes.set(ylabel="$ per million tokens", yscale="log", ylim=(None, 2 * max(of_path.values())))
    return done(figure)
