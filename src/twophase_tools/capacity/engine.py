"""The engine of a plan: its options, and the engine itself, opened from the plan's file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase_features.model_store.prepare import DEFAULT_MODEL
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_tools.capacity.config import read_config
from twophase_tools.capacity.plan import Plan

if TYPE_CHECKING:
    from twophase.llm import LLM

# Of the models that a plan knows by name: what `LLM` calls them.
OPENED_AS = {
    "smollm2-135m": DEFAULT_MODEL,
    "llama-3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama-3-70b": "meta-llama/Meta-Llama-3-70B",
}
SAME = (
    "dtype", "quantization", "kv_cache_dtype", "tensor_parallel_size", "block_size", "max_model_len", "max_num_seqs",
    "max_num_batched_tokens",
)  # fmt: skip


def engine_config(plan: Plan) -> EngineConfig:
    """The options of an engine that holds what the plan says: as many blocks of as many bytes.

    Raises:
        ConfigError: Not even one request of mean length fits, or the plan has pools.
    """
    config = plan.config
    if config.pools is not None:
        raise ConfigError("one engine can be opened, and pools have two kinds of them.")
    if not plan.max_requests:
        raise ConfigError("no engine can be opened for a plan in which no request fits.")
    return EngineConfig(
        num_kv_blocks=plan.memory.num_blocks,
        policy=None if config.chunk_size is None else ChunkedPrefillPolicy(config.chunk_size),
        **{name: getattr(config, name) for name in SAME},
    )


def open_plan(path: str | Path, **options: Any) -> "LLM":
    """Open the engine of a plan's file; a model's folder is looked for from the file's own folder on.

    Args:
        options: In place of the plan's own: the fields of `EngineConfig`.

    Raises:
        ConfigError: The file cannot be used, or as `engine_config`.
        ModelFolderError, BackendUnavailableError: As `LLM`.
    """
    from twophase.llm import LLM

    plan = Plan(read_config(Path(path)))
    return LLM(OPENED_AS.get(plan.config.model, plan.config.model), engine_config(plan), **options)
