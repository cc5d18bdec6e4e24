"""Errors a user can meet. Each message states the rule, both values and the likely fix."""


class TwophaseError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(TwophaseError, ValueError):
    """An engine, cache or command option that cannot work."""


class InvalidRequestError(TwophaseError, ValueError):
    """A request refused at the door: it could never be served as asked."""


class ModelFolderError(TwophaseError):
    """A model folder that is missing, broken or unsupported; names the file, what was expected and what to do."""


class OutOfBlocksError(TwophaseError):
    """The block pool cannot give what was asked. The pool is unchanged."""


class CacheStateError(TwophaseError):
    """A cache operation that would corrupt the cache (double free, foreign block ...). The cache is unchanged."""


class PolicyError(TwophaseError):
    """A scheduling policy asked for what makes no sense, or for nothing, which would hang; names policy and rule."""


class BackendUnavailableError(TwophaseError):
    """An attention backend that cannot run on this machine; says what is missing and how to get it."""
