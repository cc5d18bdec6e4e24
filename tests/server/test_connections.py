"""Raw sockets: requests that do not arrive, heads that are too long, ids, and servers that stop meanwhile."""

import json
import socket

import pytest

from tests.server.conftest import MODEL, PATIENCE_S, held, serving, until
from twophase.core.errors import ConfigError
from twophase_server.connection import MAX_CHUNKS
from twophase_server.run import listen

TEXT = "/v1/completions"
LONG = {"model": MODEL, "prompt": "a", "max_tokens": 200, "ignore_eos": True, "temperature": 0, "logprobs": 20}
JSON = "content-type: application/json\r\n"
HALF_HEAD = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\n"
CHUNKED = f"{HALF_HEAD}{JSON}connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = "1\r\n[\r\n"
HALF_BODY = f'{HALF_HEAD}{JSON}content-length: 100000\r\n\r\n{{"prompt"'


def send(server, text):
    connection = socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=PATIENCE_S)
    connection.sendall(text.encode())
    return connection


def post(server, body, head="", path=TEXT):
    text = json.dumps(body)
    return send(server, f"POST {path} HTTP/1.1\r\nhost: x\r\n{JSON}{head}content-length: {len(text)}\r\n\r\n{text}")


def answer_of(connection):
    """Status, headers, and what follows; read until the server closes."""
    with connection:
        found = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = found.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(status.split()[1]), headers, body


def error_of(connection):
    status, headers, body = answer_of(connection)
    assert headers["connection"] == "close"
    return status, json.loads(body)["error"]["code"]


@pytest.fixture(scope="module")
def hasty(chat_folder):
    with serving(chat_folder, read_timeout_s=1) as server:
        yield server


def test_what_does_not_arrive_is_cut_off(hasty):
    silent, *waiting = [send(hasty, text) for text in ("", HALF_HEAD, HALF_BODY)]
    with post(hasty, LONG | {"max_tokens": 1}) as second:  # a connection is timed for each of its requests
        assert second.recv(65536).startswith(b"HTTP/1.1 200")
        second.sendall(HALF_BODY.encode())
        assert error_of(second) == (408, "read_timeout")
    assert [error_of(connection) for connection in waiting] == [(408, "read_timeout")] * 2
    with silent:
        assert silent.recv(1) == b""


def test_bytes_that_trickle_win_no_time(hasty):
    with send(hasty, HALF_BODY) as connection:
        connection.settimeout(0.02)
        for _ in range(50 * PATIENCE_S):
            try:
                assert connection.recv(65536).startswith(b"HTTP/1.1 408")
                return
            except TimeoutError:
                connection.sendall(b"x")
    raise AssertionError("it may go on for ever")


def test_an_answer_is_never_timed(server):
    with held(server), post(server, LONG | {"stream": True}):
        until(lambda: server.llm.num_unfinished == 1)
        assert [connection._timer for connection in server._server._connections if connection.is_answering] == [None]
        with send(server, HALF_BODY):
            until(lambda: any(connection._timer is not None for connection in server._server._connections))
    until(lambda: not server.llm.num_unfinished)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("GET /health HTTP/1.1\r\nno colon\r\n\r\n", (400, "bad_http")),
        (f"{HALF_HEAD}transfer-encoding: gzip\r\n\r\n", (501, "bad_http")),
        (f"{HALF_HEAD}content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n", (400, "bad_http")),
        (f"{CHUNKED}{MAX_CHUNKS * CHUNK}0\r\n\r\n", (400, "invalid_json")),
        (f"{CHUNKED}{MAX_CHUNKS * CHUNK}{CHUNK}", (413, "bad_http")),
    ],
    ids=["no colon", "gzip", "two lengths", "many chunks", "too many chunks"],
)
def test_what_is_refused(server, head, expected):
    assert error_of(send(server, head)) == expected


@pytest.mark.parametrize(("own", "is_kept"), [("order-66", True), ("", False), ("a b", False), ("x" * 129, False)])
def test_each_answer_has_an_id(server, own, is_kept):
    for path in ("/health", "/nowhere"):
        _, headers, _ = answer_of(send(server, f"GET {path} HTTP/1.0\r\nx-request-id: {own}\r\n\r\n"))
        assert (headers["x-request-id"] == own) is is_kept
        assert headers["x-request-id"].startswith("order-66" if is_kept else "req-")


def test_a_drain_waits_for_no_body(chat_folder):
    """And it has no limit of its own."""
    with serving(chat_folder) as server:
        with held(server):
            accepted = post(server, LONG, "connection: close\r\n")
            waiting, silent = [send(server, text) for text in (HALF_BODY, "")]
            until(lambda: server.app.state.service.num_in_flight == 2)
            server.drain()
            assert error_of(waiting) == (503, "draining")
        assert answer_of(accepted)[0] == 200
        server.join()
        silent.close()


@pytest.mark.parametrize("streams", [False, True])
def test_a_drain_waits_for_no_reader(chat_folder, streams):
    with serving(chat_folder, drain_timeout_s=0.1) as server:
        for listener in server._server.servers[0].sockets:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # of its connections, too
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with reader:
            reader.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
            text = json.dumps(LONG | {"stream": streams, "n": 3})
            reader.sendall(f"{HALF_HEAD}{JSON}content-length: {len(text)}\r\n\r\n{text}".encode())
            until(lambda: any(each.transport.get_write_buffer_size() > 65536 for each in server._server._connections))
            server.drain()
            server.join()


def test_a_port_is_taken_before_a_model_is_loaded():
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on host '127.0.0.1', port {port}"):
            listen("127.0.0.1", port)
