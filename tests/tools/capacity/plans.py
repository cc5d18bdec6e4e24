"""Plans from a few lines."""

from twophase_tools.capacity.config import parse_config
from twophase_tools.capacity.plan import Plan

# Every key on a line of its own, in this order: tests count on the lines.
BASE = {
    "model": "llama-3-8b",
    "hardware": "a100",
    "max_model_len": "4096",
    "workload": "{rate: 1, prompt_tokens: 1000, output_tokens: 250}",
}

# 2 layers of one K/V head of size 4 beside 2 heads, hidden 8, MLP 16, vocabulary 10: see tests/tools/simulate.
IDEAL = (
    "{compute_efficiency: 1, bandwidth_efficiency: 1, all_reduce_latency_s: 0.5, schedule_s: 2, update_s: 3, "
    "overhead_per_chunk_s: 0.25}"
)


def text(**changes):
    """BASE with changed and added lines; None leaves one out."""
    lines = BASE | changes
    return "".join(f"{key}: {value}\n" for key, value in lines.items() if value is not None)


def plan(**changes):
    return Plan(parse_config(text(**changes)))
