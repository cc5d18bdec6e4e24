"""A server of few words: a test says which bytes answer each request. It runs in a thread, on 127.0.0.1."""

import asyncio
import json
import threading

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
        self.bodies, self.headers = [], []

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,))
        self._thread.start()
        assert started.wait(60)
        return self

    def __exit__(self, *error):
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._loop.close()

    def _run(self, started):
        self._loop.run_until_complete(self._serve(started))

    async def _serve(self, started):
        self._stopped = asyncio.Event()
        self._server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        started.set()
        await self._stopped.wait()
        self._server.close()
        await self._server.wait_closed()

    async def _handle(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        if head[0].startswith("GET"):
            writer.write(self.models)
        else:
            self.headers.append(headers)
            self.bodies.append(json.loads(await reader.readexactly(int(headers["content-length"]))))
            writer.write(self.answer(self.bodies[-1], len(self.bodies) - 1))
        await writer.drain()
        writer.close()
        await writer.wait_closed()
