"""twophase: an LLM inference engine to read, to learn from and to build yourself.

`LLM` opens a model and answers requests; `SamplingParams` are a request's options, `EngineConfig` the engine's. Names
follow vLLM's where vLLM has the same option.

    from twophase import LLM, SamplingParams

    llm = LLM()  # the built-in SmolLM2; or a local Hugging Face folder, or a hub id
    greedy = SamplingParams(temperature=0, max_tokens=32)
    for output in llm.generate(["The capital of France is"], greedy):
        print(output.outputs[0].text, output.outputs[0].finish_reason)
    for piece in llm.stream("Once upon a time", SamplingParams(temperature=0.8, seed=1)):
        print(piece, end="")

Options are keywords of `LLM` or fields of an `EngineConfig`, which documents each, the places for your own parts among
them; `twophase_features.pairs` lists the combinations that are refused. Every error raised on purpose is a
`TwophaseError`; it names the rule, the value and the likely fix.

`AsyncLLM` runs the same engine in a thread of its own, for callers in an event loop; `twophase serve` is built on it.
Below both is `twophase.engine.engine.Engine`: `add_request`, `step`, `abort`, and a trace of the steps.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

# How long a waiting thread of GNU's OpenMP spins before it yields its core. By default it is milliseconds, which a busy
# process lacks; 3,000 costs a step alone hardly anything (docs/log.md). Read by the first import of torch.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

from twophase.config import EngineConfig
from twophase.core.errors import TwophaseError
from twophase.core.request import SamplingParams
from twophase.doors import feature

if TYPE_CHECKING:
    from twophase.llm import LLM

__version__ = "0.1.0"
# Public names of features, and the modules that define them.
_OF_FEATURES: Mapping[str, str] = {
    "AsyncLLM": "serving.async_llm",
    "BeamSearchParams": "beam_search.params",
    "SpeculativeConfig": "speculation.config",
    "StructuredOutputs": "structured_outputs.params",
}
__all__ = ["LLM", "EngineConfig", "SamplingParams", "TwophaseError", "__version__", *_OF_FEATURES]


def __getattr__(name: str) -> Any:
    # LLM pulls in torch, which takes a second; `twophase --help` should not wait for it (PEP 562).
    if name == "LLM":
        from twophase.llm import LLM

        return LLM
    if name in _OF_FEATURES:
        return getattr(feature(_OF_FEATURES[name]), name)
    raise AttributeError(f"module 'twophase' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
