"""twophase: an LLM inference engine to read, to learn from and to build yourself."""

from typing import TYPE_CHECKING, Any

from twophase.config import EngineConfig
from twophase.core.errors import TwophaseError
from twophase.core.sampling_params import SamplingParams
from twophase.core.speculative import SpeculativeConfig
from twophase.core.structured_outputs import StructuredOutputs

if TYPE_CHECKING:
    from twophase.llm import LLM

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "EngineConfig",
    "SamplingParams",
    "SpeculativeConfig",
    "StructuredOutputs",
    "TwophaseError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # LLM pulls in torch, which takes a second; `twophase --help` should not wait for it (PEP 562).
    if name == "LLM":
        from twophase.llm import LLM

        return LLM
    raise AttributeError(f"module 'twophase' has no attribute {name!r}")
