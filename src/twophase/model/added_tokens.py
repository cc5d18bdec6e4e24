"""The tokens that a folder lists beside its tokenizer.json: special tokens by their role, and tokens added to them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from twophase.core.errors import ModelFolderError
from twophase.core.rules import shown
from twophase.model.json_file import read_json_object

SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def add_tokens(tokenizer: Tokenizer, folder: Path) -> dict[str, str]:
    """Add the tokens that tokenizer.json lacks, as transformers does; returns role ('bos_token' ...) to token text.
    Raises ModelFolderError if a file is not a JSON object, or an entry does not have its form."""
    path = folder / "tokenizer_config.json"
    config = _read_if_there(path)
    try:
        return _add_tokens(tokenizer, folder, config)
    except (TypeError, ValueError, AttributeError) as error:
        raise ModelFolderError(f"{path}: {error}. Download it again.") from error


def _add_tokens(tokenizer: Tokenizer, folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    if config.get("split_special_tokens"):
        raise ValueError("split_special_tokens is not supported: special tokens are never split")
    entries, listed = dict(config), config.get("added_tokens_decoder")
    if listed is None:  # older folders spread the same entries over three files
        entries |= _read_if_there(folder / "special_tokens_map.json")
    names = ("extra_special_tokens", "additional_special_tokens")
    extra: Any = next((source[name] for source in (config, entries) for name in names if source.get(name)), [])
    if not isinstance(extra, list | dict):
        raise TypeError(f"extra_special_tokens must be a list or an object of tokens; found {shown(extra)}")
    named = {role: entries[role] for role in (*SPECIAL_ROLES, *entries) if _has_token(entries, role)}
    if isinstance(extra, dict):
        named, extra = named | extra, []
    roles = {role: _special_token(role, entry) for role, entry in named.items()}
    special = [*roles.values(), *(_special_token("extra_special_tokens", entry) for entry in extra)]
    if listed is None:
        texts = {token.content for token in special}
        found = _read_if_there(folder / "added_tokens.json").items()
        by_id = {id_: AddedToken(text, special=text in texts, normalized=text not in texts) for text, id_ in found}
    else:
        by_id = {int(id_): AddedToken(**entry) for id_, entry in listed.items()}
    known = {repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
    by_id = {id_: token for id_, token in sorted(by_id.items()) if repr(token) not in known}
    for token in by_id.values():
        token.special = token.special or token.content in {each.content for each in roles.values()}
    tokenizer.add_tokens(list(by_id.values()))
    for id_, token in by_id.items():
        if (given := tokenizer.token_to_id(token.content)) != id_:
            raise ValueError(
                f"the added token {shown(token.content)} must have the id {shown(id_)}, but after the tokens of "
                f"tokenizer.json it gets {given}"
            )
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_tokens([token for token in special if token.content not in added])
    return {role: token.content for role, token in roles.items()}


def _has_token(entries: Mapping[str, Any], role: str) -> bool:
    """Whether the entry is a token with a role; add_bos_token, for example, is a flag."""
    entry = entries.get(role)
    return entry is not None and (role in SPECIAL_ROLES or (role.endswith("_token") and isinstance(entry, str | dict)))


def _special_token(role: str, entry: Any) -> AddedToken:
    """The special token with this role; `entry` is its text, or a record with the text and flags."""
    record = entry if isinstance(entry, dict) else {"content": entry}
    if not isinstance(record.get("content"), str):
        raise TypeError(f"{role} must be text, or a record with the text as 'content'; found {shown(entry)}")
    return AddedToken(**{key: value for key, value in record.items() if key != "__type"} | {"special": True})


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}
