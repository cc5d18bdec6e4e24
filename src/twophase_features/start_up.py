"""A GPU's work before an engine's first request: graphs are captured, and the kernels of prompts and draws compiled.

A graph holds the address of the K/V pool, so the pool is allocated first, and leaves room for graphs by an estimate.
Whatever an estimate is worth, no step runs out of memory for graphs: all other memory is allocated before the first
capture, and none begins unless a step's memory would still be free.
"""

from collections.abc import Sequence

import torch

from twophase.core.request import SamplingParams
from twophase.engine.runner import ModelRunner
from twophase.engine.sampler import SampleRow, sample
from twophase.memory import free_memory_bytes
from twophase.model.llama import LlamaModel
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.scheduler import Scheduler
from twophase_features.piecewise_graphs import piece_sizes
from twophase_features.step_graphs import MIN_GRAPH_CONTEXT, CudaGraphs, shapes_of, why_eager
from twophase_features.step_memory import activation_bytes, step_bytes
from twophase_features.windows.layer_groups import layer_groups

# Memory of the driver and of libraries. Not measured here: in vLLM's logs a graph of 16 layers takes 6 MiB (its pull
# request 11349), and one of a hybrid model 24 MiB (issue 50780); cuBLAS has 32 MiB for each stream of a Hopper.
GRAPH_BYTES_PER_LAYER = 2**19
LIBRARY_BYTES = 2**26
PROMPT_LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128)  # each tile of attention; longer prompts take the largest


def graph_bytes(model: LlamaModel, limits: SchedulerConfig, block_size: int) -> tuple[int, int]:
    """Bytes that all graphs of an engine's steps may take, and bytes of the largest; (0, 0) if steps are not captured.

    Graphs share the memory in which they compute. Each keeps its inputs, above all block tables, and its result. Before
    each capture the memory of the largest graph must be free, so memory to compute in is counted once more.
    """
    if model.backend.name != "triton" or why_eager(model):
        return 0, 0
    config, value_bytes, groups = model.config, model.weights.dtype.itemsize, layer_groups(model.config)
    lengths = range(1, limits.max_model_len + 1, MIN_GRAPH_CONTEXT)
    shapes = shapes_of(min(CudaGraphs.max_tokens, limits.max_num_seqs), lengths, limits.max_model_len)
    table_bytes = [4 * shape.num_rows * -(-shape.context // block_size) for shape in shapes]
    num_tokens = [shape.num_rows for shape in shapes]
    num_tokens += piece_sizes(min(CudaGraphs.max_piece_tokens, limits.max_num_batched_tokens))
    computing = activation_bytes(config, max(num_tokens), 0, value_bytes) + LIBRARY_BYTES
    of_each = config.num_layers * GRAPH_BYTES_PER_LAYER

    def total(tokens: Sequence[int], tables: Sequence[int]) -> int:
        inputs = (1 if groups is None else len(groups.sees_all)) * sum(tables)
        return computing + inputs + sum(tokens) * config.hidden_size * value_bytes + len(tokens) * of_each

    return total(num_tokens, table_bytes) + computing, total([max(num_tokens)], [max(table_bytes)])


def reserved_bytes(models: Sequence[LlamaModel], limits: SchedulerConfig, block_size: int, has_graphs: bool) -> int:
    """Bytes that an engine needs besides weights and K/V: for the largest step, and for the graphs of all `models` if
    these take less than an eighth of the memory that is free. (Else those graphs are captured for which there is room.)
    """
    for_graphs = sum(graph_bytes(model, limits, block_size)[0] for model in models) if has_graphs else 0
    if for_graphs > free_memory_bytes(models[0].device) // 8:
        for_graphs = 0
    return for_graphs + max(step_bytes(model.config, limits, model.weights.dtype) for model in models)


@torch.inference_mode()
def warm_up(runners: Sequence[ModelRunner], scheduler: Scheduler) -> None:
    """Capture the CUDA graphs that steps of the scheduler need, and run prompts and a draw, so that no request waits
    for a compiler. To be called once all caches are allocated. (A CPU's recordings cost no more than a step.)"""
    limits, block_size = scheduler.config, scheduler.cache.block_size
    for_a_step = reserved_bytes([runner.model for runner in runners], limits, block_size, has_graphs=False)
    for runner in runners:
        if runner.graphs is None or runner.graphs.room is None:
            continue
        _, largest = graph_bytes(runner.model, limits, block_size)
        runner.graphs.capture_all(scheduler, for_a_step + largest)
        for length in PROMPT_LENGTHS:
            if length <= min(limits.max_num_batched_tokens, limits.max_model_len):
                hidden = runner.graphs.run_prompt(length)
        sample(runner.model.logits(hidden[-1:]), [SampleRow(SamplingParams(), 0, 0, 0, 1, ())])
