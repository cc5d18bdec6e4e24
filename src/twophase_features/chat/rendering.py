"""Chat templates, rendered as transformers renders them ('Writing a chat template' in its documentation).

A template is an untrusted program: it runs in a sandbox, in a worker process with limits on time and memory. The worker
imports this module, so the module imports nothing heavy.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from twophase_features.worker_process import WorkerProcess

CPU_S, MAX_BYTES = 1.0, 128 * 2**20
MAX_MESSAGE_CHARS = 300
# Names under which a message may hold a model's reasoning; templates read the first name, older templates the second.
REASONING = ("reasoning_content", "thinking", "reasoning")

_renderer = WorkerProcess(cpu_s=CPU_S, max_bytes=MAX_BYTES)


def render(template: str, variables: Mapping[str, Any]) -> str:
    """The rendered text. `variables` holds values of JSON's types alone (see `plain`).

    Raises:
        ValueError: The template failed, or refused the messages; the message says how.
        WorkLimitError: Rendering took too much time or memory.
    """
    return _renderer.call(render_here, template, dict(variables))


def render_here(template: str, variables: Mapping[str, Any]) -> str:
    """As `render`, in this process and without limits."""
    try:
        return _compiled(template).render(variables)
    except MemoryError:
        raise
    except Exception as error:  # of any type, also a type that cannot be pickled
        raise ValueError(f"{str(error) or type(error).__name__}"[:MAX_MESSAGE_CHARS]) from None


def message(value: Any) -> dict[str, Any]:
    """A message for templates: without entries that are None, and with its reasoning under the usual names. Raises
    TypeError if the message is not a mapping, or holds a value that JSON does not have."""
    if not isinstance(value, Mapping):
        raise TypeError(f"a message must be a dict, found {type(value).__name__}")
    kept = {key: each for key, each in plain(value).items() if each is not None}
    reasoning = next((kept[name] for name in REASONING if name in kept), None)
    return kept if reasoning is None else {"thinking": reasoning, **kept, "reasoning_content": reasoning}


def plain(value: Any) -> Any:
    """A copy made of dict, list, str, int, float, bool and None: other objects have methods that a template could call.
    Raises TypeError if the value has another type."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):  # of a subclass
        return str(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    raise TypeError(f"a message must be of text, numbers, lists and dicts, found {type(value).__name__}")


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %} marks the assistant's text for training; it renders its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)  # names set inside the block are undefined after it


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    sandbox.filters["tojson"] = _to_json  # jinja's own escapes HTML
    sandbox.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return sandbox.from_string(template)
