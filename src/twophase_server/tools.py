"""Function tools: a request's fields, the text that describes the functions to the model, and the calls in its output.

The same text and the same form of a call serve every model: they are the ones of Hermes and Qwen. A chat template's own
tools, which differ from model to model, are not used. The engine's grammar makes each call well formed; whether a model
calls a function, and which, is the model's choice.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from twophase.core.errors import InvalidRequestError
from twophase.core.rules import Rule, read_text, shown
from twophase_features.structured_outputs.params import StructuredOutputs
from twophase_features.structured_outputs.tool_calls import FUNCTION_NAME, MAX_CALLS, ToolCalls
from twophase_server.errors import invalid
from twophase_server.fields import ANY_TEXT, FLAG, OBJECT, Field, ListOf, Reader, Table, choice
from twophase_server.sampling import structured

MAX_TOOLS = 128  # as OpenAI has it
MODES = ("none", "auto", "required")
_PROMPT = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{signatures}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

FUNCTION_TYPE = choice("function")
NAME_OF_FUNCTION = Field(
    Rule(
        f"a function's name, which matches {FUNCTION_NAME.pattern}",
        read_text,
        lambda name: bool(FUNCTION_NAME.fullmatch(name)),
    ),
    {"type": "string", "pattern": f"^{FUNCTION_NAME.pattern}$"},
)
FUNCTION = {"name": NAME_OF_FUNCTION, "description": ANY_TEXT, "parameters": OBJECT, "strict": FLAG}
CHAT_TOOLS = ListOf(
    Table(
        {"type": FUNCTION_TYPE, "function": Table(FUNCTION, required=("name",))},
        required=("type", "function"),
    ),
    MAX_TOOLS,
)
_NAMED = Table({"name": NAME_OF_FUNCTION}, required=("name",))


@final
@dataclass(frozen=True, slots=True, eq=False)
class ToolChoice:
    """The field tool_choice: a mode, or the table of an object that names one function."""

    named: Table

    @property
    def schema(self) -> Mapping[str, Any]:
        return {"anyOf": [{"enum": [*MODES]}, self.named.schema]}

    def read(self, value: Any, path: str) -> Any:
        if isinstance(value, dict) and value.get("type") == "function":
            return self.named.read(value, path)
        if isinstance(value, str) and value in MODES:
            return value
        raise invalid(f"{path} must be one of {', '.join(MODES)}, or name a function, got {shown(value)}.", path)


CHAT_TOOL_FIELDS: Mapping[str, Reader] = {
    "tools": CHAT_TOOLS,
    "tool_choice": ToolChoice(Table({"type": FUNCTION_TYPE, "function": _NAMED}, required=("type", "function"))),
    "parallel_tool_calls": FLAG,
}


@final
@dataclass(frozen=True, slots=True)
class Tools:
    """The functions of a request that its output may call.

    Attributes:
        functions: As in the field `tools`.
        form: The form of the output; None: there are no functions.
    """

    functions: Sequence[Mapping[str, Any]] = ()
    form: StructuredOutputs | None = None

    @property
    def prompt(self) -> str:
        """The text for the system's message; '' without functions."""
        signatures = (json.dumps({"type": "function", "function": each}, ensure_ascii=False) for each in self.functions)
        return _PROMPT.format(signatures="\n".join(signatures)) if self.functions else ""


def read_tools(fields: Mapping[str, Any], answer: StructuredOutputs | None = None) -> Tools:
    """The functions that the output may call.

    Args:
        fields: A request's, as chats or as Responses have them.
        answer: The form of an output that calls nothing, as of `json_form`; None: any text.

    Raises:
        ApiError: 400, the choice asks for a function that is not in the list, or a function is wrong.
    """
    functions, asked = [_bare(each) for each in fields.get("tools", ())], fields.get("tool_choice", "auto")
    names = [each["name"] for each in functions]
    if len(set(names)) < len(names):
        raise invalid(f"tools must have different names, got {', '.join(names)[:200]}.", "tools")
    named = _bare(asked)["name"] if isinstance(asked, dict) else None
    if named is not None and named not in names:
        raise invalid(
            f"tool_choice must name one of the tools ({', '.join(names)[:200]}), got {named!r}.", "tool_choice"
        )
    if asked == "required" and not functions:
        raise invalid("tool_choice 'required' needs tools.", "tool_choice")
    if asked == "none" or not functions:
        return Tools()
    is_single = named is not None or not fields.get("parallel_tool_calls", True)
    try:
        calls = ToolCalls(
            functions={each["name"]: _parameters(each) for each in functions if named in (None, each["name"])},
            is_required=asked != "auto",
            max_calls=1 if is_single else min(MAX_CALLS, fields.get("max_tool_calls", MAX_CALLS)),
            answer=answer and answer.json,
        )
    except InvalidRequestError as error:
        raise invalid(str(error), "tools") from error
    return Tools(functions, structured(tool_calls=calls))


def _bare(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that chats have in `function`, and Responses beside `type`."""
    return {name: value for name, value in given.get("function", given).items() if name != "type"}


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    return function.get("parameters") or {"type": "object", "properties": {}}
