"""A prompt in pipeline stages, by roofline."""

from collections.abc import Sequence
from dataclasses import replace

from twophase_tools.simulate.cost_model import RooflineCostModel
from twophase_tools.simulate.hardware import HARDWARE
from twophase_tools.simulate.model_shapes import MODELS
from twophase_tools.simulate.step_load import StepLoad, num_pairs

Spans = list[list[tuple[float, float]]]


def stage_seconds(num_tokens: int, num_chunks: int, num_stages: int) -> list[list[float]]:
    """Seconds of each chunk of a prompt of Llama-3-70B in each stage, by roofline: an H100 per stage, an equal share of
    the layers, the output projection left out."""
    shape = MODELS["llama-3-70b"]
    stage = replace(shape, num_layers=shape.num_layers // num_stages, vocab_size=0)
    model = RooflineCostModel(HARDWARE["h100"], stage)
    size = num_tokens // num_chunks
    each = [
        float(model.run_s(StepLoad(size, 0, 1, 0, num_pairs(start, size), start + size)))
        for start in range(0, num_tokens, size)
    ]
    return [each] * num_stages


def run_pipeline(seconds: Sequence[Sequence[float]]) -> Spans:
    """(start, end) of every chunk in every stage, in seconds, from seconds[stage][chunk]: a stage works on one chunk at
    a time, in order, as soon as the stage before has ended that chunk."""
    spans: Spans = []
    for stage, row in enumerate(seconds):
        free_s, here = 0.0, []
        for chunk, length_s in enumerate(row):
            start_s = max(free_s, spans[stage - 1][chunk][1] if stage else 0.0)
            free_s = start_s + length_s
            here.append((start_s, free_s))
        spans.append(here)
    return spans


def bubble_share(spans: Spans) -> float:
    """The idle share of all stages, from 0 to the end of everything."""
    makespan = max(end for row in spans for _, end in row)
    worked = sum(end - start for row in spans for start, end in row)
    return 1 - worked / (len(spans) * makespan)
