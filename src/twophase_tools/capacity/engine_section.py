"""The section `engine:` of a plan's file: options of `EngineConfig`, written from the plan and opened as an engine."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase_features.model_store.prepare import DEFAULT_MODEL
from twophase_tools.capacity.plan import Plan
from twophase_tools.named_policies import policy_from_text

if TYPE_CHECKING:
    from twophase.llm import LLM

# Of the models that a plan knows by name: what `LLM` calls them.
OPENED_AS = {
    "smollm2-135m": DEFAULT_MODEL,
    "llama-3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama-3-70b": "meta-llama/Meta-Llama-3-70B",
}
_SECTION = re.compile(r"^(# Written by .*\n)?engine:.*\n?(?:[ \t].*\n?)*", re.MULTILINE)


def engine_options(plan: Plan) -> dict[str, Any]:
    """The model, and the options of an engine that holds what the plan says: as many blocks of as many bytes.

    Raises:
        ConfigError: Not even one request of mean length fits, or the plan has pools.
    """
    config = plan.config
    if config.pools is not None:
        raise ConfigError(f"{config.name}: one engine can be written, and pools have two kinds of them.")
    if not plan.max_requests:
        raise ConfigError(f"{config.name}: no engine can be written for a plan in which no request fits.")
    options: dict[str, Any] = {"model": OPENED_AS.get(config.model, config.model)}
    names = ("dtype", "kv_cache_dtype", "tensor_parallel_size", "block_size", "max_model_len", "max_num_seqs")
    options |= {name: getattr(config, name) for name in names}
    options |= {"max_num_batched_tokens": config.max_num_batched_tokens, "num_kv_blocks": plan.memory.num_blocks}
    if config.quantization is not None:
        options["quantization"] = config.quantization
    if config.chunk_size is not None:
        options["policy"] = f"chunked:max_tokens={config.chunk_size}"
    return options


def write_engine(path: Path, plan: Plan) -> None:
    """Put the section into the plan's file, instead of any that it has.

    Raises:
        ConfigError: As `engine_options`; or the file cannot be written.
    """
    section = yaml.safe_dump({"engine": engine_options(plan)}, sort_keys=False, allow_unicode=True, width=10_000)
    try:
        rest = _SECTION.sub("", path.read_text(encoding="utf-8-sig")).rstrip()
        path.write_text(f"{rest}\n\n# Written by `twophase plan --write`, opened by `open_plan`.\n{section}", "utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error


def open_plan(path: str | Path, **options: Any) -> "LLM":
    """Open the engine of a plan's file; a model's folder is looked for from the file's own folder on.

    Args:
        options: In place of the plan's own: the fields of `EngineConfig`.

    Raises:
        ConfigError: The file has no section engine, or one with an unknown option or a value that breaks its rule.
        ModelFolderError, BackendUnavailableError: As `LLM`.
    """
    from twophase.llm import LLM

    path = Path(path)
    try:
        section = dict(yaml.safe_load(path.read_text(encoding="utf-8-sig"))["engine"])
        model = str(section.pop("model"))
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} has no section engine: `twophase plan --write {path}` puts it there.") from error
    if "policy" in section:
        section["policy"] = policy_from_text(str(section["policy"]))
    try:
        config = EngineConfig(**section)
    except TypeError as error:
        raise ConfigError(f"{path} has an option that engines do not have: {error}.") from error
    folder = path.parent / Path(model).expanduser()
    return LLM(str(folder) if folder.is_dir() else model, config, **options)
