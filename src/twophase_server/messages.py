"""Converts a conversation from OpenAI's format into a chat template's input: messages with a role and a text.

A template need not know tools: calls are part of the assistant's text, and their results part of a user's, in the form
that Hermes and Qwen models read and write.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from twophase.core.rules import Rule, items_of, shown
from twophase_features.structured_outputs.tool_calls import Call, written
from twophase_server.errors import invalid
from twophase_server.fields import ANY_TEXT, NAME, OBJECT, Field, ListOf, Reader, Table, Unsupported, choice
from twophase_server.tools import FUNCTION_TYPE, MAX_TOOLS, NAME_OF_FUNCTION

MAX_LISTED = 4096  # messages of a conversation, and parts of a message
# Newer name: older one. A template need not know results of tools.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
ANY_LIST = Field(Rule("a list", lambda value: list(items_of(value))), {"type": "array"})

Messages = list[dict[str, str]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """Text, or a list of parts; it is read as one text.

    Attributes:
        types: The types that a part may have.
        ignored: Fields that a part may have besides.
    """

    types: Sequence[str]
    ignored: Sequence[str] = ()

    @property
    def schema(self) -> Mapping[str, Any]:
        return {"anyOf": [ANY_TEXT.schema, self._parts.schema]}

    @property
    def _parts(self) -> ListOf:
        fields: dict[str, Reader] = {"type": choice(*self.types), "text": ANY_TEXT}
        return ListOf(Table(fields | dict.fromkeys(self.ignored, ANY_LIST), required=("type", "text")), MAX_LISTED, 1)

    def read(self, value: Any, path: str) -> str:
        if isinstance(value, str):
            return str(ANY_TEXT.read(value, path))
        if not isinstance(value, list):
            raise invalid(f"{path} must be text, or a list of parts of text, got {shown(value)}.", path)
        for i, part in enumerate(self._parts.outer.read(value, path)):
            kind = OBJECT.read(part, f"{path}[{i}]").get("type")
            if kind not in self.types:
                raise invalid(
                    f"{path}[{i}].type must be {' or '.join(map(repr, self.types))}, got {shown(kind)}: the model "
                    f"reads text only, no images, sounds or files.",
                    f"{path}[{i}].type",
                    "unsupported_parameter",
                )
        return "".join(part["text"] for part in self._parts.read(value, path))


@final
class Conversation:
    """Collects messages for a chat template."""

    def __init__(self) -> None:
        self._messages: Messages = []
        self._call_ids: set[str] = set()

    def say(self, role: str, text: str) -> None:
        self._messages.append({"role": ROLES[role], "content": text})

    def call(self, call_id: str, call: Call) -> None:
        """A call at the end of the assistant's message, which begins here if the last message is another role's."""
        self._call_ids.add(call_id)
        self._extend("assistant", written(call))

    def return_to(self, call_id: str, result: str, path: str) -> None:
        """A call's result; consecutive results are one message. Raises ApiError (400) if there was no such call."""
        if call_id not in self._call_ids:
            raise invalid(f"{path} must be the id of a call before it, got {shown(call_id)}.", path)
        self._extend("tool", f"<tool_response>\n{result}\n</tool_response>")

    def _extend(self, role: str, text: str) -> None:
        if not self._messages or self._messages[-1]["role"] != role:
            self.say(role, text)
        else:
            last = self._messages[-1]
            last["content"] = "\n".join(filter(None, (last["content"], text)))

    def with_system(self, text: str) -> Messages:
        """The messages, with this text at the end of the first system message, made here if it is missing."""
        if text and (not self._messages or self._messages[0]["role"] != "system"):
            self._messages.insert(0, {"role": "system", "content": text})
        elif text:
            first = self._messages[0]
            first["content"] = f"{first['content']}\n\n{text}"
        return [{**each, "role": "user"} if each["role"] == "tool" else each for each in self._messages]


_CALL = Table(
    {
        "id": NAME,
        "type": FUNCTION_TYPE,
        "function": Table({"name": NAME_OF_FUNCTION, "arguments": ANY_TEXT}, required=("name", "arguments")),
    },
    required=("id", "function"),
)
_MESSAGE = Table(
    {
        "role": choice(*ROLES),
        "content": Content(("text",)),
        "name": ANY_TEXT,  # templates know no names
        "tool_calls": ListOf(_CALL, MAX_TOOLS),
        "tool_call_id": NAME,
    },
    {
        "function_call": Unsupported("use tool_calls"),
        "refusal": Unsupported("a message is its content"),
        "annotations": Unsupported("a message is its content", ([],)),
        "audio": Unsupported("the model reads text only"),
    },
    required=("role",),
)
MESSAGES = ListOf(_MESSAGE, MAX_LISTED, at_least=1)


def read_messages(given: Sequence[Any], system: str = "") -> Messages:
    """The messages of a chat.

    Args:
        system: Text for the end of the system's message.

    Raises:
        ApiError: 400, with the message and the part of it that is wrong.
    """
    found = Conversation()
    for i, message in enumerate(MESSAGES.read(given, "messages")):
        _add(found, message, f"messages[{i}]")
    return found.with_system(system)


def _add(found: Conversation, message: Mapping[str, Any], path: str) -> None:
    role, calls = message["role"], message.get("tool_calls", [])
    for name, of_role in (("tool_calls", "assistant"), ("tool_call_id", "tool")):
        if message.get(name) and role != of_role:
            raise invalid(f"{path}.{name} is a field of role {of_role!r}, got role {role!r}.", f"{path}.{name}")
    for name in ("tool_call_id", "content"):
        if name not in message and (role == "tool" if name == "tool_call_id" else not calls):
            raise invalid(f"{path}.{name} is missing.", f"{path}.{name}")
    if role == "tool":
        found.return_to(message["tool_call_id"], message["content"], f"{path}.tool_call_id")
        return
    found.say(role, message.get("content", ""))
    for call in calls:
        found.call(call["id"], Call(**call["function"]))
