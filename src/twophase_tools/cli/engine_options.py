"""Options on the command line that are views of a record of options, which has their defaults, rules and meaning."""

import argparse
import re
from dataclasses import fields
from typing import Any

from twophase.config import BACKENDS, EngineConfig
from twophase_features.speculation.config import SpeculativeConfig
from twophase_server.settings import LOG_LEVELS
from twophase_tools.cli.arguments import MOST, text, whole

# Of all others: their names.
FLAGS = {
    "attention_backend": "--backend",
    "num_attention_sinks": "--attention-sinks",
    "allowed_origins": "--allow-origin",
}
METAVARS = {"sliding_window": "W", "num_attention_sinks": "S"} | dict.fromkeys(
    ("policy", "admission", "served_model_name"), "NAME"
)
MOST_OF = {"tensor_parallel_size": 4096, "max_body_bytes": 2**40}
POLICY_HELP = (
    "priority (default), ageing:patience_s=N, chunked:max_tokens=N, continuous, prefill-first, static:batch_size=N, "
    "dynamic:batch_size=N,timeout_s=N, deadline, rotating:chunk_tokens=N, fair"
)
_PREFIX = "engine."  # of where the engine's parsed options are; a request has a seed, too

Parser = argparse.ArgumentParser | argparse._ArgumentGroup


def add_fields(parser: Parser, record: type, *names: str, prefix: str = "") -> None:
    """Add options by their names in a dataclass; what is not given is not among the parsed options."""
    defaults = {field.name: field.default for field in fields(record)}
    for name in names:
        parser.add_argument(
            FLAGS.get(name, f"--{name.removesuffix('_s').replace('_', '-')}"),
            dest=prefix + name,
            default=argparse.SUPPRESS,
            help=POLICY_HELP if name == "policy" else _help(record, name, defaults[name]),
            **_kind(name, str(record.__annotations__[name])),
        )


def add_engine_options(parser: Parser, *names: str) -> None:
    """Add options of the engine, by their names in `EngineConfig`."""
    add_fields(parser, EngineConfig, *names, prefix=_PREFIX)


def add_speculative_options(options: argparse._ArgumentGroup, default: str | None) -> None:
    """`--speculative` and its number of tokens, for `speculative_config`."""
    options.add_argument(
        "--speculative",
        default=default,
        metavar="ngram|MODEL",
        help="guess tokens ahead: look them up in the text so far, or ask a smaller model of the same vocabulary "
        f"(default {default or 'none'})",
    )
    options.add_argument(
        "--num-speculative-tokens",
        type=whole(most=1000),
        default=4,
        metavar="K",
        help="guesses per step at most (default 4)",
    )


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, for `LLM` or `EngineConfig`.

    Raises:
        ConfigError: There is no such policy.
    """
    given = {name.removeprefix(_PREFIX): value for name, value in vars(args).items() if name.startswith(_PREFIX)}
    if "policy" in given:
        from twophase_tools.named_policies import policy_from_text

        given["policy"] = policy_from_text(given["policy"])
    return given


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The configuration that they make. Raises ConfigError for one that breaks a rule."""
    return EngineConfig(**engine_options(args))


def help_for(name: str, record: type = EngineConfig) -> str:
    """The first sentence of an option's documentation; "" where Python keeps no docstrings (-OO)."""
    documentation = re.sub(r"\n {12}", " ", record.__doc__ or "")  # one line for each attribute
    entry = re.search(rf"^ +(?:\w+, )*{name}(?:, \w+)*: (.+?[.;])(?: |$)", documentation, re.MULTILINE)
    return "" if entry is None else entry.group(1)[:-1]


def _help(record: type, name: str, default: Any) -> str:
    said = help_for(name, record).replace("%", "%%")
    said = said[:1].lower() + said[1:]
    return said if default in (None, ()) or f"'{default}'" in said else f"{said} (default {default})"


def _kind(name: str, annotation: str) -> dict[str, Any]:
    """What argparse is told of the values: numbers and words; which of them are allowed is the option's rule."""
    if name in ("attention_backend", "log_level"):
        return {"choices": BACKENDS if name == "attention_backend" else LOG_LEVELS}
    if name == "allowed_origins":
        return {"action": "append", "type": text, "metavar": "ORIGIN"}
    if annotation == "<class 'bool'>":
        return {"action": "store_true"}
    if "Path" in annotation:
        return {"type": str, "metavar": "FILE"}
    if "float" in annotation:
        return {"type": float, "metavar": "SECONDS" if name.endswith("_s") else "X"}
    if "int" in annotation:
        return {"type": whole(most=MOST_OF.get(name, MOST)), "metavar": METAVARS.get(name, "N")}
    return {"type": text, "metavar": METAVARS.get(name, name.upper())}


def speculative_config(args: argparse.Namespace) -> SpeculativeConfig | None:
    """What `--speculative` and `--num-speculative-tokens` ask for."""
    if args.speculative is None:
        return None
    num_tokens = args.num_speculative_tokens
    if args.speculative == "ngram":
        return SpeculativeConfig(num_speculative_tokens=num_tokens)
    return SpeculativeConfig(method="draft_model", model=args.speculative, num_speculative_tokens=num_tokens)
