"""The engine's options on the command line: views of `EngineConfig`, which has their defaults, rules and meaning."""

import argparse
import re
from typing import Any

from twophase.config import BACKENDS, DEFAULTS, EngineConfig
from twophase_features.speculation.config import SpeculativeConfig
from twophase_tools.cli.arguments import text, whole

FLAGS = {"attention_backend": "--backend", "num_attention_sinks": "--attention-sinks"}  # of all others: their names
METAVARS = {"sliding_window": "W", "num_attention_sinks": "S", "policy": "NAME", "admission": "NAME"}
MOST_RANKS = 4096
POLICY_HELP = (
    "priority (default), ageing:patience_s=N, chunked:max_tokens=N, continuous, prefill-first, static:batch_size=N, "
    "dynamic:batch_size=N,timeout_s=N, deadline, rotating:chunk_tokens=N, fair"
)
_PREFIX = "engine."  # of where the parsed options are; a request has a seed, too

Parser = argparse.ArgumentParser | argparse._ArgumentGroup


def add_engine_options(parser: Parser, *names: str) -> None:
    """Add options of the engine, by their names in `EngineConfig`."""
    for name in names:
        parser.add_argument(
            FLAGS.get(name, f"--{name.replace('_', '-')}"),
            dest=_PREFIX + name,
            default=argparse.SUPPRESS,
            help=POLICY_HELP if name == "policy" else _help(name),
            **_kind(name),
        )


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


def help_for(name: str) -> str:
    """The first sentence of an option's documentation; "" where Python keeps no docstrings (-OO)."""
    documentation = re.sub(r"\n {12}", " ", EngineConfig.__doc__ or "")  # one line for each attribute
    entry = re.search(rf"^ +{name}: (.+?[.;])(?: |$)", documentation, re.MULTILINE)
    return "" if entry is None else entry.group(1)[:-1]


def _help(name: str) -> str:
    default = DEFAULTS[name]
    said = help_for(name).replace("%", "%%")
    said = said[:1].lower() + said[1:]
    return said if default is None or f"'{default}'" in said else f"{said} (default {default})"


def _kind(name: str) -> dict[str, Any]:
    """What argparse is told of the values: numbers and words; which of them are allowed is the option's rule."""
    annotation = str(EngineConfig.__annotations__[name])
    if name == "attention_backend":
        return {"choices": BACKENDS}
    if name == "tensor_parallel_size":
        return {"type": whole(most=MOST_RANKS), "metavar": "N"}
    if annotation == "<class 'bool'>":
        return {"action": "store_true"}
    if "int" in annotation:
        return {"type": whole(), "metavar": METAVARS.get(name, "N")}
    return {"type": text, "metavar": METAVARS.get(name, name.upper())}


def speculative_config(args: argparse.Namespace) -> SpeculativeConfig | None:
    """What `--speculative` and `--num-speculative-tokens` ask for."""
    if args.speculative is None:
        return None
    num_tokens = args.num_speculative_tokens
    if args.speculative == "ngram":
        return SpeculativeConfig(num_speculative_tokens=num_tokens)
    return SpeculativeConfig(method="draft_model", model=args.speculative, num_speculative_tokens=num_tokens)
