"""Errors a user can meet. Each message states the rule, both values and the likely fix."""

from typing import Any


class TwophaseError(Exception):
    """Base of every error this package raises on purpose. Pickle and copy work for any signature of `__init__`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), self.args), self.__dict__


def _remade(kind: type[TwophaseError], args: tuple[Any, ...]) -> TwophaseError:
    return kind.__new__(kind, *args)


class ConfigError(TwophaseError, ValueError):
    """An engine, cache or command option that cannot work."""


class InvalidRequestError(TwophaseError, ValueError):
    """A request was refused when it was added: it could never be served."""


def prompt_too_long(size: str, max_model_len: int) -> InvalidRequestError:
    """The error for a prompt that leaves no room in the context; `size` is the prompt's, '300 tokens' say."""
    return InvalidRequestError(
        f"prompt and output together must fit max_model_len={max_model_len}, and the prompt alone has {size}; shorten "
        f"it to at most {max_model_len - 1} tokens or raise max_model_len."
    )


class ModelFolderError(TwophaseError):
    """A model folder is missing, broken or unsupported; names the file, the expected content and the fix."""


class OutOfBlocksError(TwophaseError):
    """The block pool has too few free blocks. The pool is unchanged."""


class CacheStateError(TwophaseError):
    """A cache operation that would corrupt the cache (double free, foreign block ...). The cache is unchanged."""


class PolicyError(TwophaseError):
    """A scheduling policy planned an invalid step, or an empty step that would hang; names policy and rule."""


class BackendUnavailableError(TwophaseError):
    """An attention backend cannot run on this machine; names the missing part and how to install it."""


class UnrecoverableError(TwophaseError):
    """No later step can succeed: every running request ends with this error, and none of them caused it."""
