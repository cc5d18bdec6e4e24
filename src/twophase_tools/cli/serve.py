"""`twophase serve`: the engine behind OpenAI's HTTP interface."""

import argparse
from typing import Any

from twophase_server.settings import LOG_LEVELS, ServerSettings
from twophase_tools.cli.arguments import text, whole
from twophase_tools.cli.engine_options import add_engine_options, add_speculative_options, engine_config

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
DEFAULTS = ServerSettings()
KEPT_TRACE_STEPS = 100  # nobody asks a server for its trace, and 10,000 steps of 64 sequences take 100 MB


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("serve", help="the engine behind OpenAI's HTTP interface", description=DESCRIPTION)
    parser.add_argument(
        "--model", default="smollm2-135m-instruct", help="'%(default)s' (default), a folder, or a hub id"
    )
    add_engine_options(parser, "attention_backend", "device", "dtype")
    _add_server_options(parser.add_argument_group("the server"))
    _add_limits(parser.add_argument_group("what it refuses"))
    engine = parser.add_argument_group("the engine (default: as LLM)")
    add_engine_options(engine, *ENGINE_OPTIONS)
    add_speculative_options(engine, default=None)
    parser.set_defaults(run=run)


def _add_server_options(options: argparse._ArgumentGroup) -> None:
    options.add_argument("--host", type=text, default=DEFAULTS.host, help="where it listens (default %(default)s)")
    options.add_argument("--port", type=whole(), default=DEFAULTS.port, metavar="N", help="(default %(default)s)")
    options.add_argument("--served-model-name", type=text, metavar="NAME", help="what clients call the model")
    options.add_argument("--api-keys", metavar="FILE", help="keys and quotas of tenants (TOML; see docs/server.md)")
    options.add_argument(
        "--read-timeout", type=float, default=DEFAULTS.read_timeout_s, metavar="SECONDS",
        help="for a request to arrive, headers and body together (default %(default)s)",
    )  # fmt: skip
    options.add_argument(
        "--drain-timeout",
        type=float,
        default=DEFAULTS.drain_timeout_s,
        metavar="SECONDS",
        help="for what was accepted before a signal (default %(default)s)",
    )
    options.add_argument(
        "--log-level", choices=LOG_LEVELS, default=DEFAULTS.log_level, help="of uvicorn (default %(default)s)"
    )


def _add_limits(options: argparse._ArgumentGroup) -> None:
    options.add_argument(
        "--max-queue", type=whole(), default=DEFAULTS.max_queue, metavar="N",
        help="requests that may wait for their first step; the next one gets 429 (default %(default)s)",
    )  # fmt: skip
    options.add_argument(
        "--deadline", type=float, metavar="SECONDS", help="a request unanswered by then gets 504 (default: no limit)"
    )
    options.add_argument(
        "--max-body-bytes", type=whole(most=2**40), default=DEFAULTS.max_body_bytes, metavar="N",
        help="of a request; more gets 413 (default %(default)s)",
    )  # fmt: skip
    options.add_argument("--max-prompt-tokens", type=whole(), metavar="N", help="(default: what the model can take)")
    options.add_argument(
        "--max-prompts",
        type=whole(),
        default=DEFAULTS.max_prompts,
        metavar="N",
        help="in a request (default %(default)s)",
    )
    options.add_argument(
        "--max-n",
        type=whole(),
        default=DEFAULTS.max_n,
        metavar="N",
        help="completions of a prompt (default %(default)s)",
    )


def settings_of(args: argparse.Namespace) -> ServerSettings:
    """Raises ConfigError for an option that breaks its rule."""
    return ServerSettings(
        host=args.host,
        port=args.port,
        served_model_name=args.served_model_name,
        api_keys=args.api_keys,
        max_queue=args.max_queue,
        max_body_bytes=args.max_body_bytes,
        max_prompt_tokens=args.max_prompt_tokens,
        max_prompts=args.max_prompts,
        max_n=args.max_n,
        deadline_s=args.deadline,
        read_timeout_s=args.read_timeout,
        drain_timeout_s=args.drain_timeout,
        log_level=args.log_level,
    )


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
    from twophase_tools.cli.generate import speculative_config

    settings = settings_of(args)
    config = replace(engine_config(args), speculative_config=speculative_config(args), max_trace_steps=KEPT_TRACE_STEPS)
    check_pairs(config)
    serve(args.model, config, settings)
    return 0
