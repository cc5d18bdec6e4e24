"""Deployments: as a few numbers for arithmetic, and as files for `twophase plan`."""

import re
from dataclasses import dataclass

from twophase_tools.capacity.config import EXAMPLE, PlanConfig, parse_config
from twophase_tools.capacity.memory import weight_bytes
from twophase_tools.capacity.plan import Plan


@dataclass(frozen=True)
class Deployment:
    """What the concurrency of one engine follows from. Bytes are bytes; a GB is 10^9 of them.

    Attributes:
        weight_bytes: Of the model, on all GPUs together: what each of them holds whole counts for each.
        value_bytes: Of a number in the cache; `scale_bytes` of the scale that a token's K of one head shares, and
            its V likewise (0: not quantised).
        num_gpus: Tensor parallel; where the K/V heads do not divide, the fullest GPU has one more.
        utilisation: Share of each GPU's memory that may be used.
        workspace_bytes: On each GPU, for what a step computes with.
        max_num_seqs: Seats.
    """

    weight_bytes: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    value_bytes: int
    scale_bytes: int
    num_gpus: int
    gpu_bytes: int
    utilisation: float
    workspace_bytes: int
    block_size: int
    max_num_seqs: int


def deployment_of(config: PlanConfig) -> Deployment:
    """The same numbers out of a plan's file, whose workspace must be given."""
    shape, num_gpus = config.shape, config.tensor_parallel_size
    if config.workspace_bytes is None:
        raise ValueError("this deployment leaves the workspace to be estimated; give it")
    return Deployment(
        num_gpus * weight_bytes(shape, num_gpus),
        shape.num_layers,
        shape.num_kv_heads,
        shape.head_dim,
        shape.kv_value_bytes,
        shape.kv_scale_bytes,
        num_gpus,
        int(config.hardware.memory_bytes),
        config.gpu_memory_utilization,
        config.workspace_bytes,
        config.block_size,
        config.max_num_seqs,
    )


def plan_of(text: str) -> Plan:
    """What `twophase plan` would print of such a file."""
    return Plan(parse_config(text))


def example(**changes: str) -> str:
    """The example's file without its comments, some of its keys set anew."""
    lines = [line.split("#")[0].rstrip() for line in EXAMPLE.read_text(encoding="utf-8").splitlines()]
    text = "\n".join(line for line in lines if line)
    for key, value in changes.items():
        text, count = re.subn(rf"(?m)^(\s*){key}:.*$", rf"\g<1>{key}: {value}", text)
        if not count:
            text += f"\n{key}: {value}"
    return text + "\n"
