"""The door for several processes that hold parts of a model and run a step's plan together."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from twophase.config import EngineConfig
from twophase.doors import feature
from twophase.engine.runner import ModelRunner, Runner
from twophase.model.config import ModelConfig
from twophase.model.weights import ALL_EXPERTS


class Executor:
    """A process's part of a model, and the communication between the parts; here the whole model in one process.

    `twophase_features.parallel.tensor_parallel` cuts every layer and has rank 0 schedule for all.

    Attributes:
        part: The model that this process computes: of fewer heads, for example, than the whole model.
        device: Where this process computes.
        experts: The experts whose weights this process has.
        is_driver: Whether this process schedules and samples. The other processes follow the driver's runner.
        sum_over_ranks: Adds up, in place, the processes' partial outputs of a layer; None: this process has all.
        dispatch_experts: Sends tokens to the experts of other processes; None: each expert, or a shard of it, is here.
    """

    def __init__(self, part: ModelConfig, device: torch.device) -> None:
        self.part, self.device = part, device
        self.experts = ALL_EXPERTS
        self.is_driver = True
        self.sum_over_ranks: Callable[[Tensor], Tensor] | None = None
        self.dispatch_experts: Any = None

    def cut(self, name: str, tensor: Any) -> Any:
        """This process's part of the linear layer's tensor that the model folder calls `name`."""
        return tensor

    def smallest(self, count: int) -> int:
        """The least of the processes' counts."""
        return count

    def run(self, runner: ModelRunner) -> Runner:
        """The engine's runner, given the runner of this process's part. Raises SystemExit in a process that is not the
        driver, when it has served and the driver has closed."""
        return runner


def join(config: EngineConfig, model_config: ModelConfig, device: torch.device) -> Executor:
    """The executor for `config`, once all processes of the model have joined. Raises as `TensorParallelGroup.join`."""
    if config.tensor_parallel_size == 1 and not config.enable_expert_parallel:
        return Executor(model_config, device)
    group = feature("parallel.tensor_parallel").TensorParallelGroup
    joined: Executor = group.join(
        model_config, config.tensor_parallel_size, device, config.peer_timeout_s, config.enable_expert_parallel
    )
    return joined
