"""What a plan asks of the engine: options of `EngineConfig`, as they are written into the plan's file."""

import os
from pathlib import Path
from typing import Any

from twophase.core.errors import ConfigError
from twophase_features.model_store.prepare import DEFAULT_MODEL
from twophase_tools.capacity.plan import Plan
from twophase_tools.capacity.plan_file import with_section
from twophase_tools.capacity.yaml_file import read_text

# Of the models that a plan knows by name: what `LLM` calls them.
OPENED_AS = {
    "smollm2-135m": DEFAULT_MODEL,
    "llama-3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama-3-70b": "meta-llama/Meta-Llama-3-70B",
}


def engine_options(plan: Plan) -> dict[str, Any]:
    """The model, and the options of an engine that holds what the plan says: as many blocks of as many bytes.

    Raises:
        ConfigError: Not even one request of mean length fits, or the plan has pools.
    """
    config, table = plan.config, plan.memory
    if config.pools is not None:
        raise ConfigError(
            f"{config.name}: one engine can be written, and pools have two kinds of them; `twophase simulate --plan` "
            f"runs them. Remove the key pools for an engine that does both."
        )
    if not plan.max_requests:
        raise ConfigError(
            f"{config.name}: no engine can be written for a plan in which no request fits: the pool has "
            f"{table.num_blocks:,} blocks, and one of mean length takes {plan.at_mean.num_blocks:,}."
        )
    options: dict[str, Any] = {
        "model": OPENED_AS.get(config.model, config.model),
        "dtype": config.dtype,
        "kv_cache_dtype": config.kv_cache_dtype,
        "tensor_parallel_size": config.tensor_parallel_size,
        "block_size": config.block_size,
        "num_kv_blocks": table.num_blocks,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
    }
    if config.quantization is not None:
        options["quantization"] = config.quantization
    if config.enable_expert_parallel:
        options["enable_expert_parallel"] = True
    if config.chunk_size is not None:
        options["policy"] = f"chunked:max_tokens={config.chunk_size}"
    if config.eviction is not None:
        options |= {"sliding_window": config.eviction.window, "num_attention_sinks": config.eviction.num_sinks}
    return options


def write_engine(path: Path, plan: Plan) -> None:
    """Put the section into the plan's file, or renew it: wholly or, on an error, not at all.

    Raises:
        ConfigError: As `engine_options`; or the file cannot be written.
    """
    text = with_section(read_text(path), engine_options(plan), str(path))
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
