"""TTIR of Triton functions, made in a process of its own: `python -m tests.kernels.cpu.front_end MODULE < wanted`.

Standard input is JSON, {name: [function, signature, constants]}; standard output {name: TTIR or an error's text}. The
tests' own process may run kernels in Triton's interpreter, where there is no front end.
"""

import importlib
import json
import sys

import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.compiler import ASTSource

from triton_on_cpu.driver import CpuBackend, Options, make_ttir


def ttir_of(function, signature: dict[str, str], constants: dict[str, object]) -> str:
    """As Triton's own compilation makes it for this backend."""
    backend = CpuBackend(triton.backends.compiler.GPUTarget("cpu", 0, 1))
    options = Options(debug=True)  # keeps device_assert
    context = ir.context()
    ir.load_dialects(context)
    source = ASTSource(function, signature | dict.fromkeys(constants, "constexpr"), constants)
    implementations = backend.get_codegen_implementation(options)
    module = source.make_ir(None, options, implementations, backend.get_module_map(), context)
    return str(make_ttir(module, {}))


def main() -> None:
    module = importlib.import_module(sys.argv[1])
    answer = {}
    for name, (function, signature, constants) in json.load(sys.stdin).items():
        constants = {
            k: getattr(tl, v.removeprefix("tl.")) if str(v).startswith("tl.") else v for k, v in constants.items()
        }
        try:
            answer[name] = ttir_of(getattr(module, function), signature, constants)
        except Exception as error:
            raise RuntimeError(f"{name}: {error}") from None
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
