"""Keys and quotas, on a clock of the tests' own."""

import contextlib
import hashlib
import hmac

import pytest

from twophase.core.errors import ConfigError
from twophase_server.errors import ApiError
from twophase_server.settings import ServerSettings
from twophase_server.tenants import Account, Quota, read_tenants


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def run(account):
    with account.running():
        pass


def refusal(account):
    with pytest.raises(ApiError) as caught:
        run(account)
    assert caught.value.status == 429
    return str(caught.value), int(caught.value.headers["retry-after"])


def test_requests_come_back_evenly(clock):
    account = Account("a", Quota(requests_per_minute=6), clock)
    for _ in range(6):
        run(account)
    assert refusal(account) == ("the quota of 'a' is used up: requests_per_minute is 6. Try again in 10.0 s.", 10)
    clock.now_s = 9.5
    assert refusal(account)[1] == 1
    clock.now_s = 10
    run(account)
    assert refusal(account)[1] == 10
    clock.now_s = 10_000  # what is not used does not pile up
    for _ in range(6):
        run(account)
    assert refusal(account)[1] == 10


def test_tokens_are_paid_afterwards(clock):
    account = Account("a", Quota(tokens_per_minute=60), clock)
    with account.running():
        with account.running():
            account.tokens.take(50)
        run(account)  # ten are left
        account.tokens.take(40)
    message, wait_s = refusal(account)
    assert "tokens_per_minute is 60" in message
    assert wait_s == 31  # from -30 to 1, one a second
    clock.now_s = 31
    run(account)


def test_requests_at_once(clock):
    account = Account("a", Quota(concurrent_requests=1), clock)
    for error in (None, ZeroDivisionError):
        with contextlib.suppress(ZeroDivisionError), account.running():
            assert "concurrent_requests is 1" in refusal(account)[0]
            if error:
                raise error
    run(account)


def test_a_refusal_costs_nothing(clock):
    account = Account("a", Quota(requests_per_minute=2, concurrent_requests=1), clock)
    with account.running():
        for _ in range(5):
            refusal(account)
    run(account)


def test_no_two_tenants_have_a_salt_in_common():
    names, own = ["", "a", "b", "a:", "1:a"], ["", ":", "a", "b:", "1:a:"]
    salts = [Account(name, Quota()).salt(salt) for name in names[1:] for salt in own]
    assert len(set(salts)) == len(salts)
    assert Account("", Quota()).salt("mine") == "mine"


def test_keys(tmp_path):
    path = tmp_path / "keys.toml"
    digest = hashlib.sha256(b"sk-2").hexdigest()
    path.write_text(f'[tenants.a]\nkeys = ["sk-1", "sha256:{digest}"]\n[tenants.b]\nkeys = ["sk-3", "clé"]\n')
    tenants = read_tenants(path)
    assert tenants.find("Bearer clé".encode().decode("latin-1")).name == "b"
    assert [tenants.find(f"Bearer {key}").name for key in ("sk-1", "sk-2", "sk-3")] == ["a", "a", "b"]
    assert tenants.find("Bearer sk-1") is tenants.find("bearer  sk-2")
    for header in ("", "Bearer ", f"Bearer sha256:{digest}", f"Bearer {digest}", "Bearer sk-1 x", "Bearer \udcff"):
        with pytest.raises(ApiError, match="requires a valid key"):
            tenants.find(header)


def test_each_key_is_compared_in_constant_time(tmp_path, monkeypatch):
    path = tmp_path / "keys.toml"
    path.write_text('[tenants.a]\nkeys = ["sk-1", "sk-2"]\n[tenants.b]\nkeys = ["sk-3"]\n')
    tenants = read_tenants(path)
    calls, real = [], hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: calls.append((a, b)) or real(a, b))
    tenants.find("Bearer sk-1")
    assert len(calls) == 3
    assert {len(each) for pair in calls for each in pair} == {32}


BAD = {
    "": "must have a table",
    "[tenants]": "must have a table",
    "[tenants.a]\nkeys = ['k']\n[other]": "must have a table",
    "[tenants.a": "cannot be read",
    "[tenants.a]\nrequests_per_minute = 1": r"tenants\.a\.keys is missing",
    "[tenants.a]\nkeys = 'k'": r"tenants\.a must have a name, and keys, a list of at least one key",
    "[tenants.a]\nkeys = []": "at least one key",
    "[tenants.a]\nkeys = ['']": "non-empty text",
    "[tenants.a]\nkeys = ['sha256:secret']": "64 hexadecimal digits",
    "[tenants.a]\nkeys = ['secret']\nrequests_per_minute = 0": r"tenants\.a\.requests_per_minute must be .* got 0",
    "[tenants.a]\nkeys = ['secret']\nrequests = 3": r"unknown field 'tenants\.a\.requests'",
    "[tenants.a]\nkeys = ['secret']\n[tenants.b]\nkeys = ['secret']": r"tenants\.b and tenants\.a have the same key",
}


@pytest.mark.parametrize("text", BAD)
def test_a_file_that_cannot_be_used(tmp_path, text):
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=BAD[text]) as caught:
        read_tenants(path)
    assert str(path) in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("port", 65_536, "<= 65535"),
        ("host", "", "non-empty text"),
        ("max_queue", 0, ">= 1"),
        ("max_n", 0, ">= 1"),
        ("deadline_s", 0, "seconds > 0"),
        ("drain_timeout_s", float("inf"), "seconds > 0"),
        ("log_level", "loud", "one of critical, error"),
        ("api_keys", 3, "the path of a file"),
        ("served_model_name", "", "non-empty text"),
    ],
)
@pytest.mark.unchecked_types
def test_settings_have_rules(field, value, words):
    with pytest.raises(ConfigError, match=f"{field} must be .*{words}"):
        ServerSettings(**{field: value})
