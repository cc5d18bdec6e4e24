"""The doctor: right about this machine, and able to notice each thing it looks for."""

import json
import sys
from importlib import metadata

import pytest
import torch

from tests.tools.conftest import run_cli
from twophase.attention.torch_backend import TorchBackend
from twophase_kernels._triton import MEANING
from twophase_kernels.choice import choice_here
from twophase_tools.cli import checks, selftest
from twophase_tools.cli.checks import Finding
from twophase_tools.cli.doctor import Diagnosis, diagnose

OK = Finding("one", "ok", "works")
ADVICE = Finding("two", "advice", "slow", "be quick")
BROKEN = Finding("three", "broken", "a < b", "repair it")
NOT_RUN = Finding("four", "not run", "no GPU")


@pytest.fixture(scope="module")
def here():
    return diagnose()


def named(findings, start):
    (finding,) = [finding for finding in findings if finding.name.startswith(start)]
    return finding


# -- the verdict ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("findings", "usable", "verdict"),
    [
        ((OK, NOT_RUN), True, "Ready."),
        ((OK, ADVICE), True, "Ready, with 1 remark."),
        ((OK, BROKEN), False, "Not ready: 1 problem to cure."),
        ((ADVICE, BROKEN, ADVICE, BROKEN), False, "Not ready: 2 problems to cure, and 2 remarks."),
    ],
)
def test_verdict(findings, usable, verdict):
    diagnosis = Diagnosis(findings)
    assert (diagnosis.is_usable, diagnosis.verdict) == (usable, verdict)


# -- this machine -----------------------------------------------------------------------------------------------------


def test_this_machine_is_usable(here):
    assert here.is_usable, here.to_text()


def test_the_attentions_are_tried(here):
    assert named(here.findings, "attention: torch, cpu").status == "ok"
    triton = named(here.findings, "attention: Triton")
    if sys.platform == "linux":
        assert triton.status == "ok", triton
        assert triton.name == f"attention: Triton, {MEANING[choice_here().mode]}"
    else:
        assert triton.status == "not run"


# -- what it must notice ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="not run here: triton has Linux wheels only")
@pytest.mark.skipif(torch.cuda.is_available(), reason="not run here: about machines without a GPU")
def test_no_triton_in_a_real_process(without_triton, smollm2_folder):
    done = run_cli("doctor", "--json", PYTHONPATH=str(without_triton))
    assert done.returncode == 0, done.stdout
    findings = [Finding(**finding) for finding in json.loads(done.stdout)["findings"]]
    triton = named(findings, "attention: Triton")
    assert triton.status == "advice"
    assert "not installed" in triton.detail


@pytest.mark.skipif(sys.platform != "linux", reason="not run here: triton has Linux wheels only")
@pytest.mark.parametrize(
    ("named", "interpret", "gpu", "status", "why"),
    [
        (None, None, False, "ok", "compiled for the CPU, because there is no GPU, by"),
        (None, None, True, "ok", "compiled for a GPU, because there is a GPU"),
        (None, "", True, "ok", "compiled for a GPU, because there is a GPU"),
        (None, "0", False, "ok", "compiled for the CPU, because there is no GPU, by"),
        (None, "1", False, "ok", "interpreted, because TRITON_INTERPRET=1"),
        (None, "TRUE", True, "advice", "interpreted, because TRITON_INTERPRET=TRUE"),
        ("cpu", None, True, "ok", "compiled for the CPU, because TWOPHASE_KERNELS=cpu, by"),
        ("interpreted", None, False, "ok", "interpreted, because TWOPHASE_KERNELS=interpreted"),
        ("cuda", None, False, "broken", "compiled for a GPU, because TWOPHASE_KERNELS=cuda; but there is no GPU"),
        ("cpu", "yes", False, "broken", "TWOPHASE_KERNELS=cpu and TRITON_INTERPRET=yes are both set"),
        ("gpu", "0", True, "broken", "TWOPHASE_KERNELS='gpu' is not a mode"),
        (None, "banana", False, "broken", "TRITON_INTERPRET='banana' is a value that triton does not understand"),
    ],
)
def test_kernel_mode(environment, named, interpret, gpu, status, why):
    pytest.importorskip("triton", reason="not run here: no triton")
    (finding,) = environment(gpu, TWOPHASE_KERNELS=named, TRITON_INTERPRET=interpret)
    assert (finding.name, finding.status) == ("kernels", status)
    assert finding.detail.startswith(why)
    assert finding.cure or status == "ok"


@pytest.mark.skipif(sys.platform != "linux", reason="not run here: triton has Linux wheels only")
@pytest.mark.parametrize(
    ("interpret", "status", "why"),
    [
        (None, "advice", "interpreted, because there is neither a GPU nor a C compiler"),
        ("0", "broken", "compiled for the CPU, because there is no GPU; but: There is no C compiler"),
    ],
)
def test_kernel_mode_without_a_compiler(environment, tmp_path, interpret, status, why):
    pytest.importorskip("triton", reason="not run here: no triton")
    (finding,) = environment(False, TRITON_INTERPRET=interpret, PATH=str(tmp_path), CC=None)
    assert (finding.status, finding.detail[: len(why)]) == (status, why)
    assert "pip install ziglang" in finding.cure


@pytest.fixture
def environment(monkeypatch):
    """(has a GPU, variables) -> what the doctor finds about kernels."""

    def findings(gpu, **variables):
        for name, value in ({"TWOPHASE_KERNELS": None, "TRITON_INTERPRET": None} | variables).items():
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: int(gpu))
        return list(checks.check_kernel_mode())

    return findings


def pins(monkeypatch, *lines):
    monkeypatch.setattr(metadata, "requires", lambda name: list(lines))
    return list(checks.check_packages())


@pytest.mark.parametrize(("name", "status"), [("safetensors", "broken"), ("nbval", "advice")])
def test_a_missing_package(monkeypatch, name, status):
    def version(_):
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", version)
    finding = pins(monkeypatch, f"{name}==3.2.1")[0]
    assert (finding.status, finding.cure) == (status, f"pip install '{name}==3.2.1'")


@pytest.mark.parametrize(
    ("smi", "cuda", "words"), [(None, None, "no CUDA device"), ("/smi", None, "CPU build"), ("/smi", "13.0", "driver")]
)
def test_no_gpu_and_why(monkeypatch, smi, cuda, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("shutil.which", lambda name: smi)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    (finding,) = checks.check_gpu()
    assert finding.status == ("not run" if smi is None else "advice")
    assert words in f"{finding.detail} {finding.cure}"


class FakeGpu:
    name, total_memory, minor = "T9", 16 * 1024**3, 5

    def __init__(self, major):
        self.major = major


@pytest.mark.parametrize(("major", "status"), [(7, "advice"), (9, "ok")])
def test_an_old_gpu_gets_advice(monkeypatch, major, status):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: FakeGpu(major))
    (finding,) = checks.check_gpu()
    assert (finding.status, finding.detail) == (status, f"cuda:0 T9, capability {major}.5, 16 GiB")


def test_a_model_that_is_not_prepared(monkeypatch, tmp_path):
    monkeypatch.setenv("TWOPHASE_HOME", str(tmp_path))
    (finding,) = checks.check_model()
    assert finding.status == "advice"
    assert "twophase model prepare" in finding.cure


def test_a_check_that_falls_over_is_a_finding(monkeypatch):
    def check_the_weather():
        raise ImportError("no clouds")
        yield

    monkeypatch.setattr("twophase_tools.cli.doctor.CHECKS", (check_the_weather,))
    finding = diagnose().findings[0]
    assert (finding.name, finding.status) == ("the weather", "broken")
    assert "no clouds" in finding.detail


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("raise ValueError('boom')", "boom"),
        ("while True: pass", "still running"),
    ],
)
def test_a_self_test_that_crashes_or_hangs(monkeypatch, tmp_path, code, words):
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\n{code}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(checks, "SELF_TEST_TIMEOUT_S", 1)
    (finding,) = checks.check_triton_attention()
    assert finding.status == "broken"
    assert words in finding.detail


# -- the self-test ----------------------------------------------------------------------------------------------------


def wrong_scale(self, q, kv, plan, attend=TorchBackend.attend):
    return attend(self, 1.1 * q, kv, plan)


def no_rotation(self, q, k, v, cos, sin, kv, plan, write=TorchBackend.write):
    return write(self, q, k, v, torch.ones_like(cos), torch.zeros_like(sin), kv, plan)


def nan_out(self, q, kv, plan):
    return torch.full_like(q, float("nan"))


def swapped(self, q, k, v, cos, sin, kv, plan, write=TorchBackend.write):
    return write(self, q, k, v.flip(1), cos, sin, kv, plan)


@pytest.mark.parametrize(
    ("method", "wrong"),
    [("attend", wrong_scale), ("attend", nan_out), ("write", no_rotation), ("write", swapped)],
)
def test_the_self_test_notices_wrong_numbers(monkeypatch, method, wrong):
    monkeypatch.setattr(TorchBackend, method, wrong)
    outcome = selftest.run_self_test("torch", torch.device("cpu"))
    assert not outcome.passed
    assert checks._judge("attention", outcome.max_error, outcome.tolerance).status == "broken"


def test_text_page_and_json_show_every_cure():
    diagnosis = Diagnosis((OK, ADVICE, BROKEN))
    assert diagnosis.to_text().splitlines()[-1] == "Not ready: 1 problem to cure, and 1 remark."
    for cure in ("be quick", "repair it"):
        assert f"cure: {cure}" in diagnosis.to_text()
        assert cure in diagnosis.to_html()
    assert "a &lt; b" in diagnosis.to_html()
    found = json.loads(json.dumps(diagnosis.to_dict()))
    assert (found["usable"], found["verdict"]) == (False, diagnosis.verdict)
    assert found["findings"][2] == {"name": "three", "status": "broken", "detail": "a < b", "cure": "repair it"}


def test_command(twophase, here, monkeypatch):
    monkeypatch.setattr("twophase_tools.cli.doctor.diagnose", lambda: here)
    exit_code, out, _ = twophase("doctor", "--json")
    assert (exit_code, json.loads(out)) == (0, here.to_dict())
    monkeypatch.setattr("twophase_tools.cli.doctor.diagnose", lambda: Diagnosis((BROKEN,)))
    exit_code, out, _ = twophase("doctor")
    assert exit_code == 1
    assert "cure: repair it" in out


def test_the_shown_versions_are_the_installed_ones_and_another_is_advice(here, monkeypatch):
    assert named(here.findings, "torch").detail.startswith(metadata.version("torch"))
    finding = pins(monkeypatch, "torch==1.0")[0]
    assert (finding.status, finding.detail) == ("advice", f"{metadata.version('torch')}, but tested with 1.0")
