"""A server of few words: a test says which bytes answer each request. It runs in a thread, on 127.0.0.1."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODELS = json.dumps({"object": "list", "data": [{"id": "fake", "object": "model"}]})


def response(status=200, body="", content_type="application/json", **headers):
    """A whole answer, whose end is that of the connection."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {content_type}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def events(*chunks):
    """Server-sent events; a dict is JSON, anything else is sent as it is."""
    data = (json.dumps(chunk) if isinstance(chunk, dict) else chunk for chunk in chunks)
    return response(body="".join(f"data: {each}\n\n" for each in data), content_type="text/event-stream")


def completion(num_tokens, cached=0):
    """What a good server sends for `num_tokens` tokens."""
    usage = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": cached}}
    chunks = [
        {"choices": [{"text": "x", "finish_reason": None}], "usage": usage | {"completion_tokens": i + 1}}
        for i in range(num_tokens)
    ]
    chunks[-1]["choices"][0]["finish_reason"] = "length"
    return events(*chunks, {"choices": [], "usage": usage | {"completion_tokens": num_tokens}}, "[DONE]")


def refusal(status, message, **headers):
    return response(status, json.dumps({"error": {"message": message}}), **headers)


class FakeServer:
    """`answer(body, number)` gives the bytes for the number-th completion asked for, counted from 0."""

    def __init__(self, answer=lambda body, number: completion(body["max_tokens"]), models=None):
        self.answer, self.models = answer, response(body=MODELS) if models is None else models
        self.bodies, self.headers, self.lock = [], [], threading.Lock()

    def __enter__(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever).start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()

    def _handler(self):
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.wfile.write(fake.models)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with fake.lock:
                    fake.bodies.append(body)
                    fake.headers.append({name.lower(): value for name, value in self.headers.items()})
                    number = len(fake.bodies) - 1
                self.wfile.write(fake.answer(body, number))

            def log_message(self, *args):
                pass

        return Handler
