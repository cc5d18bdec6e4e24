"""Converts a conversation from OpenAI's format into a chat template's input."""

from typing import Any

from twophase.core.rules import TEXT, Rule, items_of, one_of, read_text, shown
from twophase_server.errors import invalid
from twophase_server.fields import NAME, OBJECT, Unsupported, read_field, read_fields

MAX_LISTED = 4096  # messages of a conversation, and parts of a message
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}  # newer name: older one

MESSAGES = Rule(
    f"a non-empty list of messages, at most {MAX_LISTED}",
    lambda value: list(items_of(value)),
    lambda found: 0 < len(found) <= MAX_LISTED,
)
_CONTENT = Rule(
    f"text, or a list of parts of type 'text', at most {MAX_LISTED}",
    lambda value: read_text(value) if isinstance(value, str) else MESSAGES.read(value),
)
_MESSAGE_RULES = {"role": one_of(*ROLES), "content": _CONTENT, "name": TEXT}  # templates know no names
_NO_TOOLS = "tools cannot be called here"
_MESSAGE_UNSUPPORTED = {
    "tool_calls": Unsupported(_NO_TOOLS, ([],)),
    "tool_call_id": Unsupported(_NO_TOOLS),
    "function_call": Unsupported(_NO_TOOLS),
    "refusal": Unsupported("a message is its content"),
    "annotations": Unsupported("a message is its content", ([],)),
    "audio": Unsupported("the model reads text only"),
}


def read_messages(given: list[Any]) -> list[dict[str, str]]:
    """The messages, each with a role and its text.

    Raises:
        ApiError: 400, with the message and the part of it that is wrong.
    """
    return [_read_message(f"messages[{i}]", message) for i, message in enumerate(given)]


def _read_message(path: str, message: Any) -> dict[str, str]:
    found = read_fields(message, _MESSAGE_RULES, _MESSAGE_UNSUPPORTED, path, required=("role", "content"))
    content = found["content"]
    if not isinstance(content, str):
        content = "".join(_text_of_part(f"{path}.content[{i}]", part) for i, part in enumerate(content))
    return {"role": ROLES[found["role"]], "content": content}


def _text_of_part(path: str, part: Any) -> str:
    kind = read_field(path, part, OBJECT).get("type")
    if kind != "text":
        raise invalid(
            f"{path}.type must be 'text', got {shown(kind)}: the model reads text only, no images, sounds or files.",
            f"{path}.type",
            "unsupported_parameter",
        )
    return str(read_fields(part, {"type": NAME, "text": TEXT}, path=path, required=("text",))["text"])
