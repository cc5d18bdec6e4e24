"""What lets web pages and strangers' programs in: CORS, TLS, paths that are refused with a reason."""

import ssl
import subprocess

import httpx
import pytest

from tests.server.conftest import MODEL, serving
from twophase.core.errors import ConfigError
from twophase_server.run import check_certificate
from twophase_server.settings import ServerSettings

CHAT = "/v1/chat/completions"
PAGE = "https://page.example"
PREFLIGHT = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}


@pytest.mark.parametrize(("allowed", "is_allowed"), [([], False), ([PAGE], True), (["*"], True), (["http://x"], False)])
def test_origins(chat_folder, allowed, is_allowed):
    with serving(chat_folder, allowed_origins=allowed) as server, httpx.Client(base_url=server.url) as http:
        preflight = http.options(CHAT, headers=PREFLIGHT)
        assert (preflight.status_code == 200) is is_allowed
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        for answer in (
            preflight,
            http.post(CHAT, json=body, headers={"origin": PAGE}),
            http.post(CHAT, headers={"origin": PAGE}),
        ):
            assert answer.headers.get("access-control-allow-origin") == (allowed[0] if is_allowed else None)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """One for this machine, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-out", files[0], "-keyout", files[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return files


@pytest.mark.parametrize("is_one_file", [False, True])
def test_tls(chat_folder, certificate, tmp_path, is_one_file):
    files = {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]}
    if is_one_file:
        both = tmp_path / "both.pem"
        both.write_text("".join(path.read_text() for path in certificate))
        files = {"ssl_certfile": both}
    trusted = ssl.create_default_context(cafile=str(certificate[0]))
    with serving(chat_folder, **files) as server, httpx.Client(base_url=server.url, verify=trusted) as https:
        assert server.url.startswith("https://")
        assert https.get("/ready").json() == {"status": "ready"}
        body = {"model": MODEL, "prompt": "a", "max_tokens": 3, "stream": True}
        assert https.post("/v1/completions", json=body).text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.url.replace("https", "http"))


def test_a_certificate_that_cannot_be_used(certificate, tmp_path):
    for certfile, keyfile in ((tmp_path / "none.pem", None), certificate[::-1], (certificate[0], None)):
        with pytest.raises(ConfigError, match="cannot use ssl_certfile"):
            check_certificate(ServerSettings(ssl_certfile=certfile, ssl_keyfile=keyfile))
    with pytest.raises(ConfigError, match="ssl_keyfile requires ssl_certfile"):
        ServerSettings(ssl_keyfile=certificate[1])


def test_tokens_by_default(chat_folder):
    with serving(chat_folder, default_max_tokens=5) as server, httpx.Client(base_url=server.url) as http:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}

        def num_new(**more):
            return http.post(CHAT, json=body | more).json()["usage"]["completion_tokens"]

        assert (num_new(), num_new(n=2), num_new(max_tokens=7)) == (5, 10, 7)
        asked = {"model": MODEL, "input": "hi", "ignore_eos": True}
        assert http.post("/v1/responses", json=asked).json()["usage"]["output_tokens"] == 5
