"""The section `engine:` at the end of a plan's file: `twophase plan --write` puts it there, `open_plan` opens it.

The lines above it describe a deployment and are the planner's (twophase_tools.capacity), of which the engine knows
nothing. The section has what came of them under the names of `EngineConfig`, and a digest of those lines: when they
have changed, what is written below no longer follows from them.
"""

import difflib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase.core.rules import shown
from twophase_tools.named_policies import policy_from_text

if TYPE_CHECKING:
    from twophase.llm import LLM

DIGEST = "plan_sha256"
# What a file cannot hold: objects. A policy has a name.
_OBJECTS = ("speculative_config", "drafter", "cache_factory", "scheduler_factory")
OPTIONS = tuple(each.name for each in fields(EngineConfig) if each.name not in _OBJECTS)

_HEAD = re.compile(r"^engine[ \t]*:", re.MULTILINE)
_NEXT_KEY = re.compile(r"^[^\s#]", re.MULTILINE)


class PlannedEngine(NamedTuple):
    """What a file says: a model as `LLM` takes it, and an engine."""

    model: str
    config: EngineConfig


def open_plan(path: str | Path, *, model: str | Path | None = None, **options: Any) -> "LLM":
    """Open the engine of a plan: the file of `twophase plan`, with the section that its `--write` puts there.

    Args:
        path: Of the file.
        model: In place of the plan's; None: the plan's.
        options: In place of the plan's own: the fields of `EngineConfig`.

    Raises:
        ConfigError: The file has no such section, or it is not that of the plan above it, or breaks a rule.
        ModelFolderError, TypeError, BackendUnavailableError, PeerLostError, SystemExit: As `LLM`.
    """
    from twophase.llm import LLM

    planned = read_plan(Path(path))
    return LLM(planned.model if model is None else model, planned.config, **options)


def read_plan(path: Path) -> PlannedEngine:
    """The engine of a plan's file. A model's folder is looked for from the file's own folder on.

    Raises:
        ConfigError: There is no such file or no section; the plan has changed since it was written; an unknown option,
            or a value that breaks its rule.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a NUL in the path
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    plan, section = split(text, str(path))
    if not section:
        raise ConfigError(f"{path} has no section engine: `twophase plan --write {path}` puts it there.")
    options = _options(section, str(path))
    if options.pop(DIGEST, None) != digest_of(plan):
        raise ConfigError(
            f"the plan in {path} is not the one that its section engine was written for; write it anew: `twophase plan "
            f"--write {path}`."
        )
    if not isinstance(model := options.pop("model", None), str):
        raise ConfigError(f"engine.model of {path} must be a model's name or folder, got {shown(model)}.")
    if isinstance(options.get("policy"), str):
        options["policy"] = policy_from_text(options["policy"])
    folder = path.parent / Path(model).expanduser()
    return PlannedEngine(str(folder) if folder.is_dir() else model, EngineConfig(**options))


def with_section(text: str, options: Mapping[str, Any], name: str = "the file") -> str:
    """The text of a plan's file with this section instead of any that it has.

    Raises:
        ConfigError: There are other keys behind the one it has.
    """
    plan, _ = split(text, name)
    section = {**options, DIGEST: digest_of(plan)}
    told = "# Written by `twophase plan --write`, opened by `open_plan`; to be written anew when lines above change."
    lines = yaml.safe_dump({"engine": section}, sort_keys=False, allow_unicode=True, width=10_000)
    return f"{plan.rstrip()}\n\n{told}\n{lines}"


def split(text: str, name: str = "the file") -> tuple[str, str]:
    """The plan, and the section behind it, which is empty if there is none.

    Raises:
        ConfigError: There are other keys behind the section.
    """
    head = _HEAD.search(text)
    if head is None:
        return text, ""
    other = _NEXT_KEY.search(text, head.end())
    if other is not None:
        line = text.count("\n", 0, other.start()) + 1
        raise ConfigError(f"{name}:{line}: engine must be the last key of the file; move this line above it.")
    return re.sub(r"(\n# Written by `twophase plan --write`[^\n]*)?\s*\Z", "\n", text[: head.start()]), text[
        head.start() :
    ]


def digest_of(plan: str) -> str:
    """Of the plan's lines, whatever blank lines end it."""
    lines = [line.rstrip() for line in plan.rstrip().splitlines()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _options(section: str, name: str) -> dict[str, Any]:
    try:
        node = yaml.compose(section, Loader=yaml.SafeLoader)
        options = yaml.safe_load(section)["engine"]
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"the section engine of {name} is no YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(options, dict):
        raise ConfigError(f"the section engine of {name} must be lines of `option: value`, got {shown(options)}.")
    for option in options:
        if option not in (*OPTIONS, "model", DIGEST):
            near = difflib.get_close_matches(str(option), OPTIONS, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are model, {', '.join(OPTIONS)}."
            raise ConfigError(f"unknown option engine.{shown(option)} in {name}{hint}")
    written = [key.value for key, _ in node.value[0][1].value]
    twice = next((key for key in written if written.count(key) > 1), None)
    if twice is not None:
        raise ConfigError(f"engine.{twice} stands in {name} more than once; remove one.")
    return options
