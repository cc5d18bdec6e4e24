"""Chat templates, rendered as transformers renders them ('Writing a chat template' in its documentation).

A template is a program that comes with the model, and runs in jinja's sandbox.
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

# Names under which a message may hold a model's reasoning; templates read the first name, older templates the second.
REASONING = ("reasoning_content", "thinking", "reasoning")


def render(template: str, variables: Mapping[str, Any]) -> str:
    """The rendered text. Raises whatever the template does: it is a program, and may refuse the messages."""
    return _compiled(template).render(variables)


def message(value: Any) -> dict[str, Any]:
    """A message for templates: plain data, without entries that are None, and with its reasoning under the usual names.
    Raises TypeError if the message is not a mapping, or holds a value that JSON does not have."""
    if not isinstance(value, Mapping):
        raise TypeError(f"a message must be a dict, found {type(value).__name__}")
    # A copy: other objects have methods that a template could call.
    kept = {key: each for key, each in json.loads(json.dumps(dict(value))).items() if each is not None}
    reasoning = next((kept[name] for name in REASONING if name in kept), None)
    return kept if reasoning is None else {"thinking": reasoning, **kept, "reasoning_content": reasoning}


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %} marks the assistant's text for training; it renders its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)  # names set inside the block are undefined after it


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


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
    sandbox.globals["raise_exception"] = _raise_exception
    sandbox.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return sandbox.from_string(template)
