"""The server's options: a frozen record, each field with its rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from twophase.core.errors import ConfigError
from twophase.core.rules import (
    DURATION,
    NON_EMPTY_TEXT,
    Rule,
    apply_rules,
    items_of,
    one_of,
    option,
    optional,
    rules_of,
    whole_number,
)

LOG_LEVELS = ("critical", "error", "warning", "info", "debug")
_PATH = Rule("the path of a file", holds=lambda path: isinstance(path, str | Path))
_COUNT = whole_number(at_least=1)
_ORIGINS = Rule(
    "a list of origins such as 'https://example.org', or of '*'",
    lambda value: tuple(map(NON_EMPTY_TEXT.read, items_of(value))),
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The server's options.

    Attributes:
        host, port: The address to listen at. Without `api_keys`, every client that reaches it may send requests.
        served_model_name: The model's name for clients; None: its hub id or folder's name.
        api_keys: A TOML file of keys and quotas (docs/server.md); None: no key is needed.
        max_queue: Maximum number of requests that wait for their first step; further requests get 429. None: unlimited.
        max_body_bytes: Size limit of a request; a larger one gets 413. Parsing a body stops other requests, for up to
            50 ms per MiB of numbers.
        max_prompt_tokens: Tokens of a prompt; None: the model's limit.
        max_prompts: Prompts in one request for completions.
        max_n: Completions of a prompt.
        default_max_tokens: Tokens of an answer whose request has no limit of its own; None: as many as have room.
        deadline_s: Seconds from arrival after which a request gets 504; a client may ask for less. None: no deadline.
        read_timeout_s: Seconds that a request may take to arrive, headers and body together; then it gets 408.
        drain_timeout_s: Seconds for accepted requests to end after SIGTERM; None: unlimited, even if a client has
            stopped reading.
        allowed_origins: Origins of web pages whose scripts may send requests (CORS), or '*' for all.
        ssl_certfile, ssl_keyfile: Certificate and key in PEM files, with which the server speaks TLS; without a key
            file the certificate's has both. None: plain HTTP.
        log_level: Uvicorn's: critical, error, warning, info or debug.

    Raises:
        ConfigError: A field breaks its rule.
    """

    host: str = option("127.0.0.1", NON_EMPTY_TEXT)
    port: int = option(8000, whole_number(at_least=0, at_most=65_535, note="(0 takes a free one)"))
    served_model_name: str | None = option(None, optional(NON_EMPTY_TEXT))
    api_keys: Path | str | None = option(None, optional(_PATH))
    max_queue: int | None = option(256, optional(_COUNT))
    max_body_bytes: int = option(1024 * 1024, _COUNT)
    max_prompt_tokens: int | None = option(None, optional(_COUNT))
    max_prompts: int = option(64, _COUNT)
    max_n: int = option(16, _COUNT)
    default_max_tokens: int | None = option(None, optional(_COUNT))
    deadline_s: float | int | None = option(None, optional(DURATION))
    read_timeout_s: float | int = option(60, DURATION)
    drain_timeout_s: float | int | None = option(300, optional(DURATION))
    allowed_origins: Sequence[str] = option((), _ORIGINS)
    ssl_certfile: Path | str | None = option(None, optional(_PATH))
    ssl_keyfile: Path | str | None = option(None, optional(_PATH))
    log_level: str = option("info", one_of(*LOG_LEVELS))

    def __post_init__(self) -> None:
        apply_rules(self, rules_of(ServerSettings), ConfigError)
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError("ssl_keyfile requires ssl_certfile.")

    @property
    def scheme(self) -> str:
        return "http" if self.ssl_certfile is None else "https"
