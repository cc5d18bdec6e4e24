"""`twophase serve`: the engine behind OpenAI's HTTP interface."""

import argparse
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from twophase_server.settings import LOG_LEVELS, ServerSettings
from twophase_tools.cli.arguments import add_model, text, whole
from twophase_tools.cli.engine_options import (
    add_engine_options,
    add_speculative_options,
    engine_config,
    speculative_config,
)

DESCRIPTION = """Serve a model over HTTP in OpenAI's dialect: /v1/chat/completions, /v1/completions, /v1/models,
/tokenize, /detokenize, /health, /ready, /metrics. SIGTERM and Ctrl-C finish what was accepted and refuse what is new; a
second one ends at once."""
ENGINE_OPTIONS = (
    "quantization",
    "kv_cache_dtype",
    "policy",
    "admission",
    "preemption_mode",
    "num_kv_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "sliding_window",
    "num_attention_sinks",
)
KEPT_TRACE_STEPS = 100  # nobody asks a server for its trace, and 10,000 steps of 64 sequences take 100 MB

# Of the server, by groups: flag, field of `ServerSettings`, type, what stands for the value, and what it says.
Options = tuple[tuple[str, str, Callable[[str], Any], str, str], ...]
SERVER: Options = (
    ("--host", "host", text, "HOST", "where it listens"),
    ("--port", "port", whole(), "N", "where it listens"),
    ("--served-model-name", "served_model_name", text, "NAME", "what clients call the model"),
    ("--api-keys", "api_keys", str, "FILE", "keys and quotas of tenants (TOML; see docs/server.md)"),
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
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("serve", help="the engine behind OpenAI's HTTP interface", description=DESCRIPTION)
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
        "--log-level", choices=LOG_LEVELS, default=defaults.log_level, help="of uvicorn (default %(default)s)"
    )
    engine = parser.add_argument_group("the engine (default: as LLM)")
    add_engine_options(engine, *ENGINE_OPTIONS)
    add_speculative_options(engine, default=None)
    parser.set_defaults(run=run)


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

    settings = settings_of(args)
    config = replace(engine_config(args), speculative_config=speculative_config(args), max_trace_steps=KEPT_TRACE_STEPS)
    check_pairs(config)
    serve(args.model, config, settings)
    return 0
