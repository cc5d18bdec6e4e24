"""Options on the command line that are views of a record of options, which has their defaults, rules and meaning."""

import argparse
import re
from dataclasses import fields
from typing import Any

from twophase.config import BACKENDS, EngineConfig
from twophase.core.request import MAX_SEED
from twophase_features.speculation.config import SpeculativeConfig
from twophase_server.settings import LOG_LEVELS
from twophase_tools.cli.arguments import MOST, text, whole

# Of all others: their names.
FLAGS = {
    "attention_backend": "--backend",
    "num_attention_sinks": "--attention-sinks",
    "allowed_origins": "--allow-origin",
}
METAVARS = {
    "sliding_window": "W", "num_attention_sinks": "S", "policy": "NAME", "admission": "NAME",
    "served_model_name": "NAME", "allowed_origins": "ORIGIN", "stop": "TEXT", "num_speculative_tokens": "K",
}  # fmt: skip
MOST_OF = {"tensor_parallel_size": 4096, "max_body_bytes": 2**40, "n": 100_000, "seed": MAX_SEED}
POLICY_HELP = (
    "priority (default), ageing:patience_s=N, chunked:max_tokens=N, continuous, prefill-first, static:batch_size=N, "
    "dynamic:batch_size=N,timeout_s=N, deadline, rotating:chunk_tokens=N, fair"
)
_ENGINE, _SPECULATION = "engine.", "speculation."  # of where parsed options are; a request has a seed, too

Parser = argparse.ArgumentParser | argparse._ArgumentGroup


def add_fields(parser: Parser, record: type, *names: str, prefix: str = "", **defaults: Any) -> None:
    """Add options by their names in a dataclass, for `given`.

    Args:
        prefix: Tells them from options of the same name.
        defaults: In place of the record's own, for the help.
    """
    defaults = {field.name: field.default for field in fields(record)} | defaults
    for name in names:
        parser.add_argument(
            FLAGS.get(name, f"--{name.removesuffix('_s').replace('_', '-')}"),
            dest=prefix + name,
            default=argparse.SUPPRESS,
            help=POLICY_HELP if name == "policy" else _help(record, name, defaults[name]),
            **_kind(name, str(record.__annotations__[name])),
        )


def given(args: argparse.Namespace, prefix: str) -> dict[str, Any]:
    """The options of `add_fields` that were given, by their names in the dataclass."""
    return {name.removeprefix(prefix): value for name, value in vars(args).items() if name.startswith(prefix)}


def add_engine_options(parser: Parser, *names: str) -> None:
    """Add options of the engine, by their names in `EngineConfig`."""
    add_fields(parser, EngineConfig, *names, prefix=_ENGINE)


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, for `LLM` or `EngineConfig`.

    Raises:
        ConfigError: There is no such policy.
    """
    options = given(args, _ENGINE)
    if "policy" in options:
        from twophase_tools.named_policies import policy_from_text

        options["policy"] = policy_from_text(options["policy"])
    return options


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The configuration that they make. Raises ConfigError for one that breaks a rule."""
    return EngineConfig(**engine_options(args))


def add_speculative_options(options: argparse._ArgumentGroup, default: str | None) -> None:
    """`--speculative` and its number of tokens, for `speculative_config`."""
    options.add_argument(
        "--speculative",
        default=default,
        metavar="ngram|MODEL",
        help="guess tokens ahead: look them up in the text so far, or ask a smaller model of the same vocabulary "
        f"(default {default or 'none'})",
    )
    add_fields(options, SpeculativeConfig, "num_speculative_tokens", prefix=_SPECULATION)


def speculative_config(args: argparse.Namespace) -> SpeculativeConfig | None:
    """What `--speculative` and `--num-speculative-tokens` ask for."""
    if args.speculative is None:
        return None
    model = {} if args.speculative == "ngram" else {"method": "draft_model", "model": args.speculative}
    return SpeculativeConfig(**model, **given(args, _SPECULATION))


def help_for(name: str, record: type = EngineConfig) -> str:
    """The first sentence of an option's documentation; "" where Python keeps no docstrings (-OO)."""
    documentation = re.sub(r"\n {12}", " ", record.__doc__ or "")  # one line for each attribute
    entry = re.search(rf"^ +(?:\w+, )*{name}(?:, \w+)*: (.+?[.;])(?: |$)", documentation, re.MULTILINE)
    return "" if entry is None else entry.group(1)[:-1]


def _help(record: type, name: str, default: Any) -> str:
    said = help_for(name, record).replace("%", "%%")
    said = said[:1].lower() + said[1:] + ("; repeatable" if default == () else "")
    return said if default in (None, ()) or f"'{default}'" in said else f"{said} (default {default})"


def _kind(name: str, annotation: str) -> dict[str, Any]:
    """What argparse is told of the values: numbers and words; which of them are allowed is the option's rule."""
    if name in ("attention_backend", "log_level"):
        return {"choices": BACKENDS if name == "attention_backend" else LOG_LEVELS}
    if "Sequence[str]" in annotation:
        return {"action": "append", "type": text, "metavar": METAVARS[name]}
    if annotation == "<class 'bool'>":
        return {"action": "store_true"}
    if "Path" in annotation:
        return {"type": str, "metavar": "FILE"}
    if "float" in annotation:
        return {"type": float, "metavar": "SECONDS" if name.endswith("_s") else "X"}
    if "int" in annotation:
        return {"type": whole(most=MOST_OF.get(name, MOST)), "metavar": METAVARS.get(name, "N")}
    return {"type": text, "metavar": METAVARS.get(name, name.upper())}
