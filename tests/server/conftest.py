"""A tiny model with a chat template, served on a free port, and OpenAI's own client to ask it."""

import contextlib
import json
import logging
import threading

import httpx
import pytest
from openai import OpenAI

from tests import test_async_llm
from tests.engine.tokenizers_for_tests import byte_level, make_text_folder
from twophase import LLM
from twophase.config import DEFAULT_MODEL
from twophase_server.background import BackgroundServer
from twophase_server.settings import ServerSettings

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
OPTIONS = {"num_kv_blocks": 192, "block_size": 4}
PATIENCE_S = 60
MODEL = DEFAULT_MODEL  # the tiny model has this name, because the labs' clients ask for it


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory):
    return make_chat_folder(tmp_path_factory.mktemp("chat"))


def make_chat_folder(parent, **sizes):
    folder, _ = make_text_folder(parent / MODEL, **sizes)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def oracle(chat_folder):
    """The same model, asked without a server."""
    return LLM(chat_folder, **OPTIONS)


class Log(logging.Handler):
    def __init__(self, level):
        super().__init__(level)
        self.records = []

    def emit(self, record):
        self.records.append(record)


@contextlib.contextmanager
def serving(folder, llm_options=None, **settings):
    """A server over an LLM of its own. Afterwards no block is in use, and no request has met a bug."""
    llm = LLM(folder, **OPTIONS | (llm_options or {}))
    log = Log(logging.ERROR)
    logging.getLogger("uvicorn.error").addHandler(log)
    try:
        with BackgroundServer(llm, ServerSettings(**{"port": 0, "log_level": "error"} | settings)) as server:
            yield server
    finally:
        logging.getLogger("uvicorn.error").removeHandler(log)
    assert [record.getMessage() for record in log.records] == []
    assert llm.engine.stats().cache.num_in_use == 0
    assert not llm.engine.has_unfinished_requests()


@pytest.fixture(scope="module")
def server(chat_folder):
    with serving(chat_folder) as server:
        yield server


@contextlib.contextmanager
def openai_client(server, key="any", **options):
    with OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S, **options) as client:
        yield client


@pytest.fixture(scope="module")
def client(server):
    with openai_client(server) as client:
        yield client


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
        yield http


def held(server):
    """The engine's thread stands still, just before a step."""
    return test_async_llm.held(server.llm)


def until(is_so):
    """Wait until it is; fail if it never is."""
    never = threading.Event()
    for _ in range(PATIENCE_S * 500):
        if is_so():
            return
        never.wait(0.002)
    raise AssertionError("it never happened")


def ids_of(messages):
    """Token ids of a conversation, by the template as it is written above."""
    text = "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant:"
    return {"prompt_token_ids": byte_level().encode(text)}


def error_of(answer, status):
    """The error of an answer in OpenAI's form."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def check_refused(http, path, body, param, words):
    """A 400, which names the field at fault (None where no single one is) and says the rule."""
    error = error_of(http.post(path, content=json.dumps(body), headers={"content-type": "application/json"}), 400)
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert error["param"] == param


def joined(chunks):
    """Of each choice of a stream: its text, and its finish reason."""
    texts, reasons = {}, {}
    for chunk in chunks:
        for choice in chunk.choices:
            piece = choice.text if hasattr(choice, "text") else choice.delta.content
            texts[choice.index] = texts.get(choice.index, "") + (piece or "")
            if choice.finish_reason is not None:
                assert choice.index not in reasons
                reasons[choice.index] = choice.finish_reason
    return [(texts[index], reasons[index]) for index in sorted(texts)]
