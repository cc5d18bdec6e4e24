"""Random bodies: an answer or a refusal with a reason, never a failure, and no block is lost."""

import json
import random

import pytest

from tests.server.conftest import MODEL
from twophase_server.app import ENDPOINTS

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "a"}}
VALUES = [
    *(None, True, False, 0, 1, 2, -1, 0.5, 1.5, -0.0, 1e300, float("inf"), 10**30, -(10**30), 2**63, "", "a", "1", "\ud800"),
    *([], {}, [[]], [None], ["a"], [3, 4], [[3], [4]], {"type": "json_object"}, {"type": "text"}, {"json": {}}),
    *([TOOL], [TOOL["function"] | {"type": "function"}], "required", "none"),
    *({"regex": "[ab]+"}, {"choice": ["a", "b"]}, {"3": 5}, {"3": 1e300}, {"include_usage": True}, HI, HI * 2),
    *([{"role": "user", "content": [{"type": "text", "text": "x"}]}], [{"role": "assistant", "content": ""}]),
]  # fmt: skip


def body_of(random, table, base):
    names = [*table.fields, *table.unsupported, "nonsense", "\ud800", "tools"]
    body = {"model": MODEL} | base | {random.choice(names): random.choice(VALUES) for _ in range(random.randint(0, 4))}
    if random.random() < 0.1:
        body.pop(random.choice([*body]))
    return json.dumps(body).replace("Infinity", "1e999").encode()


@pytest.mark.parametrize(("path", "base"), [
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 2}),
    ("/v1/completions", {"prompt": "hi", "max_tokens": 2}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 2}),
])  # fmt: skip
def test_random_bodies(server, http, path, base):
    rng = random.Random(path)
    statuses = set()
    for _ in range(80):
        body = body_of(rng, ENDPOINTS[path].table, base)
        answer = http.post(path, content=body, headers={"content-type": "application/json"})
        statuses.add(answer.status_code)
        assert answer.status_code in (200, 400, 404, 504), (body, answer.text)
        if answer.status_code != 200:
            assert answer.json()["error"]["message"], body
        elif answer.headers["content-type"].startswith("text/event-stream"):
            assert answer.text.endswith("data: [DONE]\n\n") or '"error"' in answer.text, body
            assert '"request_failed"' not in answer.text, (body, answer.text)
    assert statuses >= {200, 400}
    assert server.llm.num_unfinished == 0
    assert server.llm.stats().num_failed == 0
