"""The engine's way to its features: a module of twophase_features, imported when a model or an option asks for it.

The engine names a feature only by the string that it passes to `feature`. Importing the engine therefore loads no
feature, and a request that uses no feature runs none.
"""

import importlib
from types import ModuleType

from twophase.core.errors import ConfigError

FEATURES = "twophase_features"


def feature(name: str) -> ModuleType:
    """The module `twophase_features.<name>`, for example `feature("quantization.linear")`. Raises ConfigError if the
    package of features is not installed, or has no such module."""
    module = f"{FEATURES}.{name}"
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the feature exists; a module that it imports does not
        raise ConfigError(
            f"this model or option needs {module}, which is not installed. "
            f"Install {FEATURES} beside twophase, in the same version."
        ) from error
