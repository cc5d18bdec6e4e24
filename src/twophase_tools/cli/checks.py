"""What the doctor looks at, in order: the machine, the packages, who can compute attention, the model, the workbook.

Each check yields findings. torch is imported inside the checks that need it: it may be missing or broken.
"""

import json
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from twophase.core.errors import ModelFolderError
from twophase_features.model_store import prepare
from twophase_tools import extras

# Without these the engine does not even import; the other requirements serve kernels, models and the command line.
ENGINE_PACKAGES = frozenset({"torch", "numpy", "safetensors", "tokenizers", "jaxtyping"})
SHOWN_PACKAGES = ("torch", "triton", "transformers")
REINSTALL = "pip install -r requirements.txt"

MIN_PYTHON = (3, 11)
GIB = 1024**3
DEFAULT_MODEL = "smollm2-135m"  # its shape, of twophase_tools.simulate.model_shapes
TORCH_BYTES = 3 * GIB // 10  # what it takes for itself once it is imported
SELF_TEST_TIMEOUT_S = 180

Status = Literal["ok", "advice", "not run", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the verdict.

    Attributes:
        name: What was looked at.
        status: 'ok'; 'advice' works, but could be better; 'not run' could not be tried on this machine; 'broken' is
            needed and does not work.
        detail: What was found.
        cure: What to do about it; always given for 'advice' and 'broken'.
    """

    name: str
    status: Status
    detail: str
    cure: str | None = None


Findings = Iterator[Finding]
Check = Callable[[], Findings]


def check_python() -> Findings:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < MIN_PYTHON:
        yield Finding("Python", "broken", found, f"Use Python {'.'.join(map(str, MIN_PYTHON))} or newer.")
    else:
        yield Finding("Python", "ok", found)


def check_packages() -> Findings:
    """Installed versions against the pins, which are this package's own dependencies and those of its extras."""
    try:
        pins = extras.requirements()
    except metadata.PackageNotFoundError:
        yield Finding("packages", "broken", "twophase itself is not installed", "pip install -e .")
        return
    missing = [pin.name for pin in extras.requirements("labs") if not extras.is_installed(pin.name)]
    if missing:
        cure = f"To do the labs, {extras.how_to_install('labs')}."
        yield Finding("course", "advice", f"not installed: {', '.join(missing)}", cure)
    pins += [
        pin
        for extra in ("server", "labs", "dev")
        for pin in extras.requirements(extra)
        if extras.is_installed(pin.name)
    ]
    others = []
    for pin in pins:
        finding = _compare(pin)
        if finding.status != "ok" or pin.name in SHOWN_PACKAGES:
            yield finding
        else:
            others.append(pin.name)
    yield Finding("other packages", "ok", f"{len(others)} more as pinned in requirements.txt")


def _compare(pin: Requirement) -> Finding:
    try:
        version = metadata.version(pin.name)
    except metadata.PackageNotFoundError:
        status = "broken" if pin.name in ENGINE_PACKAGES else "advice"
        return Finding(pin.name, status, "not installed", f"pip install '{pin.name}{pin.specifier}'")  # type: ignore[arg-type]
    if pin.specifier.contains(version, prereleases=True):
        return Finding(pin.name, "ok", version)
    detail = f"{version}, but tested with {str(pin.specifier).removeprefix('==')}"
    return Finding(pin.name, "advice", detail, REINSTALL)


def check_memory() -> Findings:
    from twophase.memory import free_host_memory_bytes
    from twophase_tools.bench.machine import cpu_name, num_usable_cores
    from twophase_tools.capacity.memory import weight_bytes
    from twophase_tools.simulate.model_shapes import MODELS

    needed_bytes = weight_bytes(replace(MODELS[DEFAULT_MODEL], value_bytes=4), 1) + TORCH_BYTES
    free_bytes = free_host_memory_bytes()
    yield Finding("processor", "ok", f"{cpu_name()}, {num_usable_cores()} usable cores")
    detail = f"{free_bytes / GIB:.1f} GiB free"
    if free_bytes < needed_bytes:
        cure = f"Close other programs: the default model needs about {needed_bytes / GIB:.1f} GiB."
        yield Finding("memory", "advice", detail, cure)
    else:
        yield Finding("memory", "ok", detail)


def check_gpu() -> Findings:
    """CUDA devices that torch sees; and the usual reasons why it sees none though the machine has one."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if available:
        for index in range(torch.cuda.device_count()):
            yield _describe_gpu(index)
    elif shutil.which("nvidia-smi") is None:
        yield Finding("GPU", "not run", "no CUDA device; everything runs on the CPU")
    elif torch.version.cuda is None:
        cure = f"Install the CUDA build of torch: {REINSTALL} (without an index for CPU wheels)."
        yield Finding("GPU", "advice", f"torch {torch.__version__} is a CPU build, but nvidia-smi is here", cure)
    else:
        reason = str(caught[0].message).splitlines()[0] if caught else "torch finds no device"
        cure = "Run nvidia-smi: update the driver, or check CUDA_VISIBLE_DEVICES and the container's GPU access."
        yield Finding("GPU", "advice", f"nvidia-smi is here, but no CUDA device: {reason}", cure)


def _describe_gpu(index: int) -> Finding:
    import torch

    from twophase_features.triton.available import MIN_CAPABILITY

    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    detail = (
        f"cuda:{index} {properties.name}, capability {properties.major}.{properties.minor}, "
        f"{properties.total_memory / GIB:.0f} GiB"
    )
    if capability < MIN_CAPABILITY and torch.version.hip is None:
        cure = "Use --backend torch: Triton supports GPUs from capability 8.0 on."
        return Finding("GPU", "advice", detail, cure)
    return Finding("GPU", "ok", detail)


def check_kernel_mode() -> Findings:
    """How Triton kernels run in a process with this environment, and why."""
    import torch

    from twophase_kernels._triton import IMPORT_ERROR, MEANING
    from twophase_kernels.choice import choice_here, has_compiler

    try:
        choice = choice_here()
    except ValueError as error:
        yield Finding("kernels", "broken", str(error), "As it says.")
        return
    detail, cure = f"{MEANING[choice.mode]}, {choice.reason}", ""
    if IMPORT_ERROR is not None:
        detail = "Triton is not here (it has wheels for Linux only): torch computes everything"
        yield Finding("kernels", "not run", detail)
    elif choice.mode == "cpu":
        yield _compiled_for_the_cpu(detail)
    elif choice.mode == "cuda" and not torch.cuda.is_available():
        yield Finding("kernels", "broken", f"{detail}; but there is no GPU", "Unset TWOPHASE_KERNELS.")
    else:
        if choice.mode == "interpreted" and torch.cuda.is_available():
            cure = "Unset TRITON_INTERPRET and TWOPHASE_KERNELS to run kernels on the GPU."
        elif choice.mode == "interpreted" and not has_compiler():
            cure = "Install gcc (or pip install ziglang): compiled kernels are hundreds of times faster."
        yield Finding("kernels", "advice" if cure else "ok", detail, cure)


def _compiled_for_the_cpu(detail: str) -> Finding:
    from triton_on_cpu.compile import toolchain
    from triton_on_cpu.errors import CompilerMissingError

    try:
        compiler = toolchain()
    except CompilerMissingError as error:
        cure = "Install gcc (or pip install ziglang), or interpret kernels: TWOPHASE_KERNELS=interpreted."
        return Finding("kernels", "broken", f"{detail}; but: {error}", cure)
    return Finding("kernels", "ok", f"{detail}, by {' '.join(compiler.command)} from {compiler.origin}")


def check_torch_attention() -> Findings:
    import torch

    from twophase_tools.cli.selftest import run_self_test

    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        outcome = run_self_test("torch", torch.device(device))
        yield _judge(f"attention: torch, {device}", outcome.max_error, outcome.tolerance)


def check_triton_attention() -> Findings:
    """In a child process, so that an earlier import of triton does not decide how kernels run."""
    from twophase_kernels._triton import MEANING
    from twophase_kernels.choice import choice_here

    try:
        how = choice_here().mode
    except ValueError:
        return  # said by `check_kernel_mode`
    name, device = f"attention: Triton, {MEANING[how]}", "cuda" if how == "cuda" else "cpu"
    if sys.platform != "linux":
        yield Finding(name, "not run", "Triton has wheels for Linux only; its exercises say 'not run here'")
        return
    command = [sys.executable, "-m", "twophase_tools.cli.selftest", "triton", device]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=SELF_TEST_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        cure = "Look at what else is running; then try `python -m twophase_tools.cli.selftest triton`."
        yield Finding(name, "broken", f"the self-test was still running after {SELF_TEST_TIMEOUT_S} s", cure)
        return
    if child.returncode != 0:
        reason = (child.stderr.strip() or f"exit code {child.returncode}").splitlines()[-1]
        yield Finding(name, "broken", f"the self-test crashed: {reason}", REINSTALL)
        return
    outcome = json.loads(child.stdout.splitlines()[-1])
    if "error" in outcome:
        cure = "As it says; until then the torch backend computes everything."
        yield Finding(name, "advice", outcome["error"], cure)
    else:
        yield _judge(name, outcome["max_error"], outcome["tolerance"])


def _judge(name: str, max_error: float, tolerance: float) -> Finding:
    detail = f"largest error {max_error:.1e} against a float64 answer (allowed {tolerance:.0e})"
    if max_error <= tolerance:
        return Finding(name, "ok", f"self-test passed: {detail}")
    cure = f"{REINSTALL}; if that does not help, use the other backend and report it."
    return Finding(name, "broken", f"computes wrong numbers: {detail}", cure)


def check_model() -> Findings:
    folder = prepare.default_model_dir()
    if not folder.exists():
        cure = "twophase model prepare (`generate` does it by itself, once)"
        yield Finding("model", "advice", f"{prepare.DEFAULT_MODEL} is not prepared yet in {folder}", cure)
        return
    try:
        prepare.verify()
    except ModelFolderError as error:
        yield Finding("model", "broken", str(error), f"Delete {folder} and run `twophase model prepare`.")
        return
    yield Finding("model", "ok", f"{prepare.DEFAULT_MODEL}, checksums verified, in {_abbreviated(folder)}")


def _abbreviated(folder: Path) -> str:
    """With ~ for the home folder: verdicts get pasted into issues and saved in notebooks."""
    home = Path.home()
    return f"~/{folder.relative_to(home).as_posix()}" if folder.is_relative_to(home) else str(folder)


def check_jupyter() -> Findings:
    try:
        yield Finding("Jupyter", "ok", f"JupyterLab {metadata.version('jupyterlab')}")
    except metadata.PackageNotFoundError:
        cure = f"To do the labs, {extras.how_to_install('labs')}."
        yield Finding("Jupyter", "advice", "JupyterLab is not installed: notebooks cannot be opened", cure)


CHECKS: tuple[Check, ...] = (
    check_python,
    check_memory,
    check_packages,
    check_gpu,
    check_kernel_mode,
    check_torch_attention,
    check_triton_attention,
    check_model,
    check_jupyter,
)
