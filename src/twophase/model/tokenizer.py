"""Text to token ids and back, by the `tokenizers` library alone: importing transformers would take seconds."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

from tokenizers import Tokenizer as FastTokenizer

from twophase.core.errors import ModelFolderError, prompt_too_long
from twophase.doors import feature
from twophase.model.added_tokens import add_tokens
from twophase.model.json_file import read_file

# From this many characters, or tokens, on, the library is given a batch, and then lets other threads run. (A batch of a
# short text takes longer, and starts threads, of which the library warns in a process that forks.)
LONG = 16_384
TOKEN_LISTS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


@final
class Tokenizer:
    """A model folder's tokenizer. Immutable.

    Args:
        fast: The library's tokenizer.
        special_tokens: Role ('bos_token', 'eos_token', 'image_token' ...) to token text.
        folder: The folder with the chat template; None: no chat template.
    """

    def __init__(self, fast: FastTokenizer, special_tokens: Mapping[str, str], folder: Path | None = None) -> None:
        self.fast, self.special_tokens, self._folder = fast, dict(special_tokens), folder
        self.vocab_size = fast.get_vocab_size()

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Read tokenizer.json, and the lists of special and added tokens beside it. Raises ModelFolderError if one of
        them cannot be read, or does not have its form."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelFolderError(
                f"{path} is missing, so text cannot be turned into tokens. Give prompts as token ids with "
                "LLM(..., skip_tokenizer_init=True), or save the tokenizer there with transformers' save_pretrained."
            )
        content = read_file(path)
        try:
            fast = FastTokenizer.from_buffer(content)
        except Exception as error:  # the library raises plain Exception
            raise ModelFolderError(f"{path} is not a tokenizer ({error}). Download it again.") from error
        # A file may ask for truncation or padding, which belong to training.
        fast.no_truncation()
        fast.no_padding()
        has_lists = any((folder / name).is_file() for name in TOKEN_LISTS)
        return cls(fast, add_tokens(fast, folder) if has_lists else {}, folder)

    @property
    def eos_token_id(self) -> int | None:
        text = self.special_tokens.get("eos_token")
        return None if text is None else self.fast.token_to_id(text)

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        max_model_len: int | None = None,
        by: FastTokenizer | None = None,
    ) -> list[int]:
        """Token ids; special tokens written out in the text are recognised. Some models add a begin-of-text token.

        `by` is another vocabulary (`SpecialText.tokenizer`). Raises InvalidRequestError for `max_model_len` tokens.
        """
        fast = by or self.fast
        if len(text) < LONG:
            encoding = fast.encode(text, add_special_tokens=add_special_tokens)
        else:
            (encoding,) = fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        if max_model_len is not None and len(encoding) >= max_model_len:  # before the ids become Python ints
            raise prompt_too_long(f"{len(encoding)} tokens", max_model_len)
        return encoding.ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text; bytes that are not a whole character become U+FFFD."""
        if len(ids) < LONG:
            return self.fast.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return self.fast.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0]

    def to_json(self) -> str:
        """The text of a tokenizer.json, for other libraries."""
        return self.fast.to_str()

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja template that turns messages into a prompt. Raises ModelFolderError if it cannot be read."""
        return None if self._folder is None else feature("chat.template").read_template(self._folder)

    @cached_property
    def special_text(self) -> Any:
        """The `SpecialText` of this vocabulary."""
        return feature("chat.special_text").SpecialText(self.fast)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The conversation as the model's prompt text; see `twophase_features.chat.conversation.render_chat`."""
        return feature("chat.conversation").render_chat(self, messages, add_generation_prompt)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **options: Any
    ) -> list[int]:
        """Token ids of a conversation; see `twophase_features.chat.conversation.token_ids`."""
        return feature("chat.conversation").token_ids(self, messages, add_generation_prompt, **options)
