"""YAML with the line of everything: keys of a given set, each once, and complaints that say where.

Read as nodes, which have positions, and not as Python objects, which have none and of which a repeated key would
silently be the last.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, final

import yaml

from twophase.core.errors import ConfigError
from twophase_tools.capacity.kinds import Kind, Scalar, did_you_mean

REQUIRED: Final = object()

_PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "map")}


@dataclass(frozen=True, slots=True)
class Key:
    """A key that may stand in a mapping.

    Attributes:
        kind: What its value may be when it is a scalar; None: no scalar.
        keys: What may stand in its value when that is a mapping; None: no mapping.
        default: Its value when it is left out.
    """

    kind: Kind | None = None
    keys: "Mapping[str, Key] | None" = None
    default: Any = REQUIRED


@final
@dataclass(slots=True)
class YamlFile:
    """A file being read: it collects complaints, so that all mistakes are told at once. Only this module and those
    who check the values further may add any.

    Attributes:
        name: As the reader knows the file.
        lines: Of each key, counted from 1; keys in mappings are 'workload.rate'.
        complaints: (line, text).
    """

    name: str
    lines: dict[str, int] = field(default_factory=dict)
    complaints: list[tuple[int, str]] = field(default_factory=list)

    def complain(self, key: str, message: str, *others: str) -> None:
        """`message` goes on after the key. The line is the key's, or, where it is left out, that of one of `others`."""
        line = next((self.lines[name] for name in (key, *others) if name in self.lines), 1)
        self.complaints.append((line, f"{key} {message}."))

    def raise_complaints(self) -> None:
        """Raises ConfigError if there are any, in the order of the lines."""
        if self.complaints:
            raise ConfigError("\n".join(f"{self.name}:{line}: {text}" for line, text in sorted(self.complaints)))

    def read(self, source: str, keys: Mapping[str, Key]) -> dict[str, Any]:
        """The values of `keys`, defaults included. What is wrong with them is in `complaints`, and the values are then
        of no use.

        Raises:
            ConfigError: It is no YAML, or no mapping.
        """
        node = self._compose(source)
        if not isinstance(node, yaml.MappingNode):
            self._refuse(node.start_mark.line + 1, "must be lines of `key: value`; is there a space after each colon?")
        return self._mapping(node, keys, "")

    def _compose(self, source: str) -> yaml.Node:
        try:
            node = yaml.compose(source, Loader=yaml.SafeLoader)
        except yaml.reader.ReaderError as error:
            line = source[: error.position].count("\n") + 1
            self._refuse(line, f"character #x{error.character:02x} cannot stand in YAML; save the file as text.")
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self._refuse(mark.line + 1 if mark else 1, _syntax_complaint(error, source))
        except RecursionError:
            self._refuse(1, "brackets within brackets within brackets; nothing here needs them.")
        if node is None:
            self._refuse(1, "the file is empty; `twophase plan --example` prints one to start from.")
        return node

    def _refuse(self, line: int, message: str) -> NoReturn:
        raise ConfigError(f"{self.name}:{line}: {message}")

    def _mapping(self, node: yaml.MappingNode, keys: Mapping[str, Key], prefix: str) -> dict[str, Any]:
        found = self._unique(node, prefix)
        for name, (line, _) in found.items():
            if name not in keys:
                hint = did_you_mean(name, keys) or f"; known are {', '.join(keys)}"
                self.complaints.append((line, f"unknown key {prefix + name}{hint}{'' if hint.endswith('?') else '.'}"))
        values = {}
        for name, key in keys.items():
            if name in found:
                line, value = found[name]
                self.lines[prefix + name] = line
                values[name] = self._value(value, key, prefix + name)
            else:
                values[name] = key.default
                if key.default is REQUIRED:
                    line = self.lines.get(prefix[:-1], 1)
                    self.complaints.append((line, f"{prefix}{name} is missing; `twophase plan --example` shows it."))
        return values

    def _unique(self, node: yaml.MappingNode, prefix: str) -> dict[str, tuple[int, yaml.Node]]:
        """Line and value of each key."""
        found: dict[str, tuple[int, yaml.Node]] = {}
        for name_node, value in node.value:
            line = name_node.start_mark.line + 1
            if not isinstance(name_node, yaml.ScalarNode):
                self.complaints.append((line, "a key must be a word, not a list or a mapping."))
            elif name_node.value in found:
                first = found[name_node.value][0]
                text = f"{prefix}{name_node.value} stands here a second time, first in line {first}; remove one."
                self.complaints.append((line, text))
            else:
                found[name_node.value] = (line, value)
        return found

    def _value(self, node: yaml.Node, key: Key, name: str) -> Any:
        if node.tag not in _PLAIN_TAGS and not isinstance(node, yaml.SequenceNode):
            self.complain(name, f"has a tag, {node.tag.removeprefix('tag:yaml.org,2002:')}; write a plain value")
        elif isinstance(node, yaml.MappingNode) and key.keys is not None:
            return self._mapping(node, key.keys, name + ".")
        elif isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null") and not node.value:
            self.complain(name, "has no value; give one, or remove the line")
        elif isinstance(node, yaml.ScalarNode) and key.kind is not None:
            try:
                return key.kind(Scalar(node.value, is_quoted=node.style in ("'", '"')))
            except ValueError as error:
                self.complain(name, str(error))
        else:
            self.complain(name, f"must be {_expected(key)}, got {_found(node)}")
        return None


def _expected(key: Key) -> str:
    if key.keys is None:
        return "a single value"
    return f"a mapping with {', '.join(key.keys)}" + (" on lines of their own" if key.kind is None else ", or a name")


def _found(node: yaml.Node) -> str:
    kinds = {yaml.SequenceNode: "a list", yaml.MappingNode: "a mapping"}
    return kinds.get(type(node)) or repr(node.value)


def _syntax_complaint(error: yaml.MarkedYAMLError, source: str) -> str:
    mark = error.problem_mark
    line = source.splitlines()[mark.line] if mark and mark.line < len(source.splitlines()) else ""
    if "\t" in line[: len(line) - len(line.lstrip())] or (error.problem and r"'\t'" in error.problem):
        return "a tab; YAML is indented with spaces."
    context = f" {error.context}" if error.context else ""
    hint = "; is it indented as the lines around it?" if "mapping" in f"{error.problem}{context}" else ""
    return f"no YAML: {error.problem}{context}{hint or '.'}"


def read_text(path: Path) -> str:
    """Raises ConfigError for a file that is not there or is no text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text (byte {error.start}); save it as UTF-8.") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} cannot be read: {reason}; `twophase plan --example` prints one.") from error
