"""API keys from a file, and a quota for each tenant.

The file is TOML:

    [tenants.alice]
    keys = ["sha256:<64 hex digits>"]   # or the key itself; print the digest with `printf %s KEY | sha256sum`
    requests_per_minute = 60            # each limit may be left out
    tokens_per_minute = 20000           # of prompts and completions
    concurrent_requests = 4
    best_priority = -2                  # the lowest number that its requests may have (0)
"""

import contextlib
import hashlib
import hmac
import itertools
import math
import re
import threading
import time
import tomllib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from twophase.core.errors import ConfigError
from twophase.core.plan import StepTrace
from twophase.core.request import RequestOutput
from twophase.core.rules import Rule, option, rules_of, whole_number
from twophase_server.errors import ApiError, invalid
from twophase_server.fields import Field, Table

DIGEST = "sha256:"
_LIMIT = whole_number(at_least=1)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A tenant's limits; None: unlimited."""

    requests_per_minute: int | None = option(None, _LIMIT)
    tokens_per_minute: int | None = option(None, _LIMIT)
    concurrent_requests: int | None = option(None, _LIMIT)
    best_priority: int | None = option(0, whole_number())


# No message shows a key, so no rule may refuse one.
_TENANT = Table(
    {name: Field(rule, {}) for name, rule in {**rules_of(Quota), "keys": Rule("keys")}.items()}, required=("keys",)
)


@final
class Allowance:
    """A token bucket: refilled evenly, at most a minute's worth.

    A request's tokens are known only at its end, so the level may fall below zero; nothing is allowed until it has
    recovered. Thread-safe.
    """

    def __init__(self, per_minute: int | None, now_s: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._now_s = now_s
        self._left = 0.0 if per_minute is None else float(per_minute)
        self._since_s = now_s()
        self._lock = threading.Lock()

    def wait_s(self) -> float:
        """Seconds until at least one unit is left."""
        if self.per_minute is None:
            return 0.0
        per_s = self.per_minute / 60
        with self._lock:
            now_s = self._now_s()
            self._left = min(self.per_minute, self._left + (now_s - self._since_s) * per_s)
            self._since_s = now_s
            return max(0.0, (1 - self._left) / per_s)

    def take(self, amount: int) -> None:
        if self.per_minute is not None:
            with self._lock:
                self._left -= amount


@final
class Account:
    """A tenant's use of its quota.

    Attributes:
        name: The tenant's name for the engine; "" where no key is needed.
        tokens: The tokens that it may still use.
    """

    def __init__(self, name: str, quota: Quota, now_s: Callable[[], float] = time.monotonic) -> None:
        self.name, self.quota = name, quota
        self._requests = Allowance(quota.requests_per_minute, now_s)
        self.tokens = Allowance(quota.tokens_per_minute, now_s)
        self.num_running = 0

    def salt(self, own: str) -> str:
        """The cache salt of its requests: different for each tenant, even if requests have the same `own` salt."""
        return f"{len(self.name)}:{self.name}:{own}" if self.name else own

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A running request.

        Raises:
            ApiError: 429, its quota is used up; `retry-after` has the time to wait.
        """
        limit = self.quota.concurrent_requests
        if limit is not None and self.num_running >= limit:
            raise self._refusal("concurrent_requests", limit, 1.0)
        for name, allowance in (("requests_per_minute", self._requests), ("tokens_per_minute", self.tokens)):
            wait_s = allowance.wait_s()
            if wait_s > 0:
                raise self._refusal(name, allowance.per_minute, wait_s)
        self._requests.take(1)
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1

    def require_priority(self, priority: int) -> None:
        """Raises ApiError (400) for a better priority than the tenant's limit."""
        best = self.quota.best_priority
        if best is not None and priority < best:
            raise invalid(
                f"priority must be >= {best} for {self.name!r} (lower runs first), got {priority}.", "priority"
            )

    def _refusal(self, limit: str, value: int | None, wait_s: float) -> ApiError:
        message = f"the quota of {self.name!r} is used up: {limit} is {value}. Try again in {wait_s:.1f} s."
        return ApiError(429, message, "rate_limit_exceeded", headers={"retry-after": str(math.ceil(wait_s))})


@final
class Tenants:
    """Accounts by key. As an observer of the engine, charges each request's tokens at its end, aborted and failed ones
    too.

    Args:
        keys: SHA-256 digest of a key -> its account; None: no key is needed.
    """

    def __init__(self, keys: Mapping[bytes, Account] | None = None) -> None:
        self._keys = None if keys is None else dict(keys)
        self._anybody = Account("", Quota(best_priority=None))
        self._accounts = {account.name: account for account in (keys or {}).values()}
        self._prefix, self._numbers = f"{uuid.uuid4().hex}-", itertools.count()

    def find(self, authorization: str) -> Account:
        """The account of a request's key.

        Args:
            authorization: The header, 'Bearer KEY'.

        Raises:
            ApiError: 401, there is no such key.
        """
        if self._keys is None:
            return self._anybody
        scheme, _, key = authorization.partition(" ")
        # Headers are decoded as Latin-1: these are the bytes that were sent.
        digest = hashlib.sha256(key.strip().encode("latin-1", "replace")).digest()
        found = None
        for known, account in self._keys.items():  # all keys, each in constant time, so that timing reveals nothing
            if hmac.compare_digest(known, digest):
                found = account
        if found is None or scheme.lower() != "bearer":
            raise ApiError(
                401,
                "this server requires a valid key in the header 'authorization: Bearer KEY'.",
                "invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return found

    def new_request_id(self, account: Account) -> str:
        """A request id for the engine that contains the account."""
        return f"{self._prefix}{next(self._numbers)}-{account.name}"

    # -- in the engine's thread

    def note_step(self, step: StepTrace) -> None:
        pass

    def note_end(self, output: RequestOutput) -> None:
        """Charge the computed tokens: none for a never-scheduled request, else the prompt and all new tokens."""
        if output.request_id.startswith(self._prefix) and output.metrics.first_scheduled_s is not None:
            account = self._accounts.get(output.request_id.split("-", 2)[2])
            if account is not None:
                account.tokens.take(len(output.prompt_token_ids) + sum(len(each.token_ids) for each in output.outputs))


def read_tenants(path: Path) -> Tenants:
    """The tenants of a file.

    Raises:
        ConfigError: The file cannot be read or breaks a rule; names the tenant and the rule, but shows no key.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the file of API keys, {path}, cannot be read: {error}") from error
    tenants = content.get("tenants")
    if not isinstance(tenants, dict) or not tenants or set(content) != {"tenants"}:
        raise ConfigError(f"{path} must have a table [tenants.NAME] for each tenant and nothing else.")
    keys: dict[bytes, Account] = {}
    try:
        for name, entry in tenants.items():
            account, digests = _read_tenant(name, entry)
            for digest in digests:
                if digest in keys:
                    raise invalid(f"tenants.{name} and tenants.{keys[digest].name} have the same key.")
                keys[digest] = account
    except ApiError as error:
        raise ConfigError(f"{path}: {error}") from error
    return Tenants(keys)


def _read_tenant(name: str, entry: Any) -> tuple[Account, Sequence[bytes]]:
    path = f"tenants.{name}"
    limits = _TENANT.read(entry, path)
    keys = limits.pop("keys")
    if not name or not isinstance(keys, list) or not keys:
        raise invalid(f"{path} must have a name, and keys, a list of at least one key.")
    return Account(name, Quota(**limits)), [_digest_of(f"each of {path}.keys", key) for key in keys]


def _digest_of(what: str, key: Any) -> bytes:
    if not isinstance(key, str) or not key.strip():
        raise invalid(f"{what} must be non-empty text.")
    if not key.startswith(DIGEST):
        return hashlib.sha256(key.strip().encode()).digest()
    digits = key.removeprefix(DIGEST)
    if not re.fullmatch("[0-9a-fA-F]{64}", digits):
        raise invalid(f"{what} that begins with {DIGEST!r} must go on with 64 hexadecimal digits.")
    return bytes.fromhex(digits)
