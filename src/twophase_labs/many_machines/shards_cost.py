"""Time per token of one sequence, on paper: what tensor parallelism divides, and what it adds."""

from twophase_tools.simulate.cost_model import RooflineCostModel
from twophase_tools.simulate.hardware import HARDWARE
from twophase_tools.simulate.model_shapes import MODELS
from twophase_tools.simulate.step_load import StepLoad

CONTEXT = 2000


def time_per_token() -> dict[str, dict[int, tuple[float, float]]]:
    """(reading and computing, all-reduces) in ms, by model and number of GPUs; models only where their weights fit."""
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for name, counts in (("smollm2-135m", (1, 3)), ("llama-3-8b", (1, 2, 4, 8)), ("llama-3-70b", (1, 2, 4, 8))):
        shape, gpu = MODELS[name], HARDWARE["h100"]
        found[shape.name] = {}
        for n in counts:
            if shape.memory_bytes / n > 0.9 * gpu.memory_bytes:
                continue
            model = RooflineCostModel(gpu, shape, n)
            talk_s = model.all_reduce_s(1)
            whole_s = float(model.run_s(StepLoad(1, 1, 1, CONTEXT, 0, 0)))
            found[shape.name][n] = (1e3 * (whole_s - talk_s), 1e3 * talk_s)
    return found
