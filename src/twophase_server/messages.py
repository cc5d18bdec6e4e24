"""Converts a conversation from OpenAI's format into a chat template's input."""

from typing import Any

from twophase.core.rules import TEXT, Rule, items_of, read_text, shown
from twophase_server.errors import invalid
from twophase_server.fields import NAME, Unsupported, read_field, read_fields

MAX_LISTED = 4096  # messages of a conversation, and parts of a message
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}  # newer name: older one


def _listed(value: Any) -> list[Any]:
    found = list(items_of(value))
    if not 0 < len(found) <= MAX_LISTED:
        raise ValueError
    return found


MESSAGES = Rule(f"a non-empty list of messages, at most {MAX_LISTED}", _listed)
_CONTENT = Rule(
    f"text, or a list of parts of type 'text', at most {MAX_LISTED}",
    lambda value: read_text(value) if isinstance(value, str) else _listed(value),
)
_MESSAGE_RULES = {"role": NAME, "content": _CONTENT, "name": TEXT}  # templates know roles only, so names are ignored
_TEXT = Rule("text (Unicode that UTF-8 can write: no half of a surrogate pair)", read_text)
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
    if not isinstance(message, dict):
        raise invalid(f"{path} must be a JSON object with role and content, got {shown(message)}.", path)
    found = read_fields(message, _MESSAGE_RULES, _MESSAGE_UNSUPPORTED, within=f"{path}.")
    role = found.get("role")
    if role not in ROLES:
        raise invalid(f"{path}.role must be one of {', '.join(ROLES)}, got {shown(role)}.", f"{path}.role")
    if "content" not in found:
        raise invalid(f"{path}.content is missing.", f"{path}.content")
    return {"role": ROLES[role], "content": _text_of(f"{path}.content", found["content"])}


def _text_of(path: str, content: str | list[Any]) -> str:
    if isinstance(content, str):
        return content
    return "".join(_text_of_part(f"{path}[{i}]", part) for i, part in enumerate(content))


def _text_of_part(path: str, part: Any) -> str:
    if not isinstance(part, dict):
        raise invalid(f"{path} must be a JSON object such as {{'type': 'text', 'text': ...}}, got {shown(part)}.", path)
    kind = part.get("type")
    if kind != "text":
        raise invalid(
            f"{path}.type must be 'text', got {shown(kind)}: the model reads text only, no images, sounds or files.",
            f"{path}.type",
            "unsupported_parameter",
        )
    found = read_fields(part, {"type": NAME, "text": _TEXT}, within=f"{path}.")
    if "text" not in found:
        raise invalid(f"{path}.text is missing.", f"{path}.text")
    return str(read_field(f"{path}.text", found["text"], _TEXT))
