"""A learner's `TokenBucket` in the server, in the place of its `Allowance`; and a file of tenants' keys."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from twophase_server.background import BackgroundServer
from twophase_server.settings import ServerSettings


def settings_with(tenants: Mapping[str, str]) -> ServerSettings:
    """Settings with these tenants, each with a key of its own name, and these lines for its limits."""
    text = "\n".join(f'[tenants.{name}]\nkeys = ["{name}"]\n{limits}' for name, limits in tenants.items())
    path = Path(tempfile.mkdtemp(), "keys.toml")
    path.write_text(text, encoding="utf-8")
    return ServerSettings(port=0, log_level="error", api_keys=path)


@final
class OwnAllowance:
    """What the server's accounts ask, answered by a learner's bucket."""

    def __init__(self, bucket: Any, rate_per_s: float) -> None:
        self._bucket = bucket
        self.per_minute = round(60 * rate_per_s)

    def wait_s(self) -> float:
        return float(self._bucket.wait_s(time.monotonic()))

    def take(self, amount: int | float) -> None:
        self._bucket.take(amount, time.monotonic())


def limit_requests(server: BackgroundServer, tenant: str, make_bucket: Any, rate_per_s: float, capacity: float) -> None:
    """From now on this tenant's requests are allowed by a bucket that `make_bucket(rate, capacity, now)` makes."""
    account: Any = server.app.state.service.tenants.find(f"Bearer {tenant}")
    account._requests = OwnAllowance(make_bucket(rate_per_s, capacity, time.monotonic()), rate_per_s)
