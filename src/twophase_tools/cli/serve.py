"""`twophase serve`: the engine behind OpenAI's HTTP interface."""

import argparse
import tomllib
from typing import Any

from twophase.core.errors import ConfigError
from twophase_server.settings import ServerSettings
from twophase_tools.cli.arguments import add_model, read_text
from twophase_tools.cli.engine_options import (
    add_engine_options,
    add_fields,
    add_speculative_options,
    engine_config,
    speculative_config,
)

DESCRIPTION = """Serve a model over HTTP in OpenAI's dialect: /v1/chat/completions, /v1/completions, /v1/responses,
/v1/models, /tokenize, /detokenize, /openapi.json, /health, /ready, /metrics. SIGTERM and Ctrl-C finish what was
accepted and refuse what is new; a second one ends at once."""
ENGINE_OPTIONS = (
    "quantization", "kv_cache_dtype", "policy", "admission", "preemption_mode", "num_kv_blocks", "max_num_seqs",
    "max_num_batched_tokens", "max_model_len", "sliding_window", "num_attention_sinks",
)  # fmt: skip
KEPT_TRACE_STEPS = 100  # nobody asks a server for its trace, and 10,000 steps of 64 sequences take 100 MB

# By their names in `ServerSettings`.
SERVER = (
    "host", "port", "served_model_name", "api_keys", "ssl_certfile", "ssl_keyfile", "allowed_origins", "log_level",
    "read_timeout_s", "drain_timeout_s",
)  # fmt: skip
LIMITS = (
    "max_queue", "deadline_s", "max_body_bytes", "max_prompt_tokens", "max_prompts", "max_n", "default_max_tokens"
)  # fmt: skip


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("serve", help="the engine behind OpenAI's HTTP interface", description=DESCRIPTION)
    parser.add_argument(
        "--config", metavar="FILE", help="TOML file of these options, such as `max-queue = 64`; the command line wins"
    )
    add_model(parser)
    add_engine_options(parser, "attention_backend", "device", "dtype")
    add_fields(parser.add_argument_group("the server"), ServerSettings, *SERVER)
    add_fields(parser.add_argument_group("what it refuses"), ServerSettings, *LIMITS)
    engine = parser.add_argument_group("the engine (default: as LLM)")
    add_engine_options(engine, *ENGINE_OPTIONS)
    add_speculative_options(engine, default=None)
    parser.set_defaults(run=run, parser=parser)


def with_config_file(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments, with the options of `--config` before those of the command line. Raises ConfigError if the file
    cannot be read."""
    if args.config is None:
        return args
    try:
        options = tomllib.loads(read_text("--config", args.config))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--config must name a TOML file; {args.config!r} is not: {error}.") from error
    words = []
    for name, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            words.append(f"--{name.replace('_', '-')}={each}")
    parser: argparse.ArgumentParser = args.parser
    return parser.parse_args([*words, *args.argv[1:]])


def settings_of(args: argparse.Namespace) -> ServerSettings:
    """Raises ConfigError for an option that breaks its rule."""
    return ServerSettings(**{name: value for name, value in vars(args).items() if name in (*SERVER, *LIMITS)})


def run(args: argparse.Namespace) -> int:
    """Serve until a signal.

    Raises:
        TwophaseError: An option, the model or the port cannot be used; says why.
    """
    from twophase_tools.extras import check_installed

    check_installed("twophase serve", "starlette", "uvicorn", "prometheus_client", extra="server")
    from dataclasses import replace

    from twophase_features.pairs import check_pairs
    from twophase_server.run import serve

    args = with_config_file(args)
    settings = settings_of(args)
    config = replace(engine_config(args), speculative_config=speculative_config(args), max_trace_steps=KEPT_TRACE_STEPS)
    check_pairs(config)
    serve(args.model, config, settings)
    return 0
