"""The chat template of a model folder, from a file of its own (newer folders) or from tokenizer_config.json."""

from contextlib import suppress
from pathlib import Path

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
        with suppress(TypeError, KeyError):  # it is reported below
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelFolderError(
            f"{config_path}: 'chat_template' must be text, or a list of {{'name': ..., 'template': ...}}; found "
            f"{shown(template)}. Download it again, or remove the entry, which leaves the model without `chat`."
        )
    return template


def _read_text(path: Path) -> str:
    try:
        return read_file(path).decode().replace("\r\n", "\n").replace("\r", "\n")
    except ValueError as error:
        raise ModelFolderError(f"{path} cannot be read as UTF-8 text ({error}). Download it again.") from error
