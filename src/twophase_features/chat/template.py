"""The chat template of a model folder, from a file of its own (newer folders) or from tokenizer_config.json."""

from pathlib import Path
from typing import Any

from twophase.core.errors import ModelFolderError
from twophase.core.rules import shown
from twophase.model.json_file import read_file, read_json_object


def read_template(folder: Path) -> str | None:
    """The Jinja template called 'default'; None: the folder has no such template. Raises ModelFolderError if the
    template cannot be read, or is not text."""
    files = {"default": folder / "chat_template.jinja"} if (folder / "chat_template.jinja").is_file() else {}
    files |= {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    if files:
        return _read_text(files["default"]) if "default" in files else None
    config_path = folder / "tokenizer_config.json"
    template = read_json_object(config_path).get("chat_template") if config_path.is_file() else None
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
        if len(named) != len(template):
            raise _not_a_template(config_path, template)
        template = {entry["name"]: entry.get("template") for entry in named}.get("default")
    if template is not None and not isinstance(template, str):
        raise _not_a_template(config_path, template)
    return template


def _read_text(path: Path) -> str:
    try:
        return read_file(path).decode().replace("\r\n", "\n").replace("\r", "\n")
    except ValueError as error:
        raise ModelFolderError(f"{path} cannot be read as UTF-8 text ({error}). Download it again.") from error


def _not_a_template(config_path: Path, found: Any) -> ModelFolderError:
    return ModelFolderError(
        f"{config_path}: 'chat_template' must be text, or a list of {{'name': ..., 'template': ...}}; found "
        f"{shown(found)}. Download it again, or remove the entry, which leaves the model without `chat`."
    )
