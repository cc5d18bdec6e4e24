"""A JSON object of a model folder, read key by key: every error names the file, the key, the value and the fix."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from twophase.core.errors import ModelFolderError
from twophase.core.rules import Rule, checked, number, read_flag, shown, whole_number

MAX_INT = 2**53  # larger than any model's sizes

COUNT, POSITIVE_INT = whole_number(0, MAX_INT), whole_number(1, MAX_INT)
POSITIVE_NUMBER = number("a positive number", lambda x: 0 < x <= MAX_INT)
FLAG = Rule("true or false", read_flag)

Fields = dict[str, Any]  # values read from a file, keyed by the configuration's field names


class KeyRule(NamedTuple):
    """The supported values of a key, and the error's text for any other value."""

    key: str
    values: tuple[Any, ...]
    reason: str


class JsonFile:
    """A file that holds a JSON object: `values`, which `set_defaults` completes. Methods raise ModelFolderError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values = read_json_object(path)
        self._defaults: Mapping[str, Any] = {}

    def set_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Set the values of absent keys. A key whose default is None may be null."""
        self._defaults = defaults
        self.values = {**defaults, **self.values}

    def error(self, problem: str) -> ModelFolderError:
        return ModelFolderError(f"{self.path}: {problem}")

    def refuse_if(self, is_wrong: object, problem: str) -> None:
        if is_wrong:
            raise self.error(problem)

    def check(self, rules: Iterable[KeyRule]) -> None:
        """Refuse the first value that a rule does not list. False is not 0, and True is not 1."""
        for key, values, reason in rules:
            found = self.values.get(key)
            if not any(found == each and isinstance(found, bool) == isinstance(each, bool) for each in values):
                raise self.error(f"{key} {shown(found)} {reason}")

    def checked(self, key: str, value: Any, rule: Rule) -> Any:
        """The normalised value of a key. Raises ModelFolderError if it breaks the rule."""
        return checked(f"{self.path}: {key!r}", value, rule, ModelFolderError)

    def positive_int(self, key: str, if_null: int | None = None) -> int:
        return int(self.read(key, POSITIVE_INT, if_null))

    def flag(self, key: str) -> bool:
        return bool(self.read(key, FLAG))

    def read(self, key: str, rule: Rule, if_null: Any = None) -> Any:
        """The file's or the default value, normalised; `if_null` for a permitted null."""
        value = self.values.get(key)
        if value is None and self._defaults.get(key, 0) is None:
            value = if_null
        if value is None:
            how = "null" if key in self.values else "missing"
            raise self.error(f"{key!r} is {how}. Download the model again, or take {self.path.name} from its source.")
        return self.checked(key, value, rule)


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file that must hold an object. Raises ModelFolderError if it cannot be read, or holds something else."""
    try:
        values = json.loads(read_file(path).decode())
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(f"{path} is not valid JSON ({error}). Download it again.") from error
    if not isinstance(values, dict):
        raise ModelFolderError(f"{path} must hold a JSON object, found {type(values).__name__}. Download it again.")
    return values


def read_file(path: Path) -> bytes:
    """A whole file. Raises ModelFolderError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelFolderError(f"{path} cannot be read: {error.strerror}.") from error
