"""`twophase serve`: the engine behind OpenAI's HTTP interface."""

import argparse
import tomllib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from twophase.core.errors import ConfigError
from twophase_server.settings import LOG_LEVELS, ServerSettings
from twophase_tools.cli.arguments import add_model, read_text, text, whole
from twophase_tools.cli.engine_options import (
    add_engine_options,
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

# Of the server, by groups: flag, field of `ServerSettings`, type, what stands for the value, and what it says.
Options = tuple[tuple[str, str, Callable[[str], Any], str, str], ...]
SERVER: Options = (
    ("--host", "host", text, "HOST", "where it listens"),
    ("--port", "port", whole(), "N", "where it listens"),
    ("--served-model-name", "served_model_name", text, "NAME", "what clients call the model"),
    ("--api-keys", "api_keys", str, "FILE", "keys and quotas of tenants (TOML; see docs/server.md)"),
    ("--ssl-certfile", "ssl_certfile", str, "FILE", "certificate (PEM): serve HTTPS"),
    ("--ssl-keyfile", "ssl_keyfile", str, "FILE", "the certificate's key (PEM), if it is a file of its own"),
    ("--read-timeout", "read_timeout_s", float, "SECONDS", "for a request to arrive, headers and body together"),
    ("--drain-timeout", "drain_timeout_s", float, "SECONDS", "for what was accepted before a signal"),
)
LIMITS: Options = (
    ("--max-queue", "max_queue", whole(), "N", "requests that may wait for their first step; the next one gets 429"),
    ("--deadline", "deadline_s", float, "SECONDS", "a request unanswered by then gets 504"),
    ("--max-body-bytes", "max_body_bytes", whole(most=2**40), "N", "of a request; more gets 413"),
    ("--max-prompt-tokens", "max_prompt_tokens", whole(), "N", "of a prompt, if fewer than the model can take"),
    ("--max-prompts", "max_prompts", whole(), "N", "in a request"),
    ("--max-n", "max_n", whole(), "N", "completions of a prompt"),
    ("--default-max-tokens", "default_max_tokens", whole(), "N", "of an answer whose request sets no limit"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("serve", help="the engine behind OpenAI's HTTP interface", description=DESCRIPTION)
    parser.add_argument(
        "--config", metavar="FILE", help="TOML file of these options, such as `max-queue = 64`; the command line wins"
    )
    add_model(parser)
    add_engine_options(parser, "attention_backend", "device", "dtype")
    defaults = ServerSettings()
    for title, options in (("the server", SERVER), ("what it refuses", LIMITS)):
        group = parser.add_argument_group(title)
        for flag, name, kind, metavar, said in options:
            default = getattr(defaults, name)
            told = said if default is None else f"{said} (default %(default)s)"
            group.add_argument(flag, dest=name, type=kind, default=default, metavar=metavar, help=told)
    parser.add_argument(
        "--allow-origin",
        dest="allowed_origins",
        action="append",
        type=text,
        default=[],
        metavar="ORIGIN",
        help="of web pages that may send requests (CORS), or '*'; may be repeated",
    )
    parser.add_argument(
        "--log-level", choices=LOG_LEVELS, default=defaults.log_level, help="of uvicorn (default %(default)s)"
    )
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
    return ServerSettings(**{field.name: getattr(args, field.name) for field in fields(ServerSettings)})


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
