"""Which C compiler, how it may fail, and how its work is kept."""

import os
import stat
import sys
from functools import partial

import pytest
import triton

from tests.mutation import KillTable, Mutant
from triton_on_cpu import compile as compile_module
from triton_on_cpu.errors import CompilerError, CompilerMissingError

FORTY_TWO = "int answer(void) { return 42; }"


def script(folder, name, text):
    """An executable that stands for a compiler; `$out` is the file after -o."""
    path = folder / name
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exit\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done\n{text}\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def check_choice(module, monkeypatch, tmp_path):
    """CC, then gcc, clang and cc in PATH, then ziglang; a choice that does not exist is not replaced in silence."""
    with monkeypatch.context() as patch:
        patch.delenv("CC", raising=False)
        patch.setenv("PATH", str(tmp_path))
        patch.setattr(module.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(
            CompilerMissingError, match=r"no gcc or clang in PATH.*pip install ziglang.*TRITON_INTERPRET=1"
        ):
            module.toolchain()
        patch.setattr(module.importlib.util, "find_spec", lambda name: name == "ziglang")
        module._toolchain.cache_clear()
        assert module.toolchain().command == (sys.executable, "-m", "ziglang", "cc")
        for name in ("cc", "clang", "gcc"):
            found = script(tmp_path, name, "")
            module._toolchain.cache_clear()
            assert module.toolchain().command == (found,)
        patch.setenv("CC", "clang -m64")
        assert module.toolchain().command == ("clang", "-m64")
        patch.setenv("CC", "no_such_compiler -O1")
        with pytest.raises(CompilerMissingError, match="CC is 'no_such_compiler -O1', but there is no program"):
            module.toolchain()


FAILURES = {
    "a refusal": ("echo 'kernel.c:7: error: bad' >&2; exit 3", r"cannot compile the C of my_kernel \(exit status 3\).*kernel\.c:7: error: bad"),
    "killed": ("kill -9 $$", r"cannot compile the C of my_kernel .*It was killed: most often memory"),
    "its child killed": ("echo 'gcc: fatal error: Killed signal terminated program cc1' >&2; exit 1", "It was killed"),
    "too long": ("exec sleep 20", r"had not compiled my_kernel after 0\.3 s"),
    "no output": ("exit 0", "made a library of my_kernel that does not load"),
    "not a library": ("echo text > $out", r"\(from CC\) made a library of my_kernel that does not load.*this machine's compiler"),
}  # fmt: skip


def check_failure(module, monkeypatch, tmp_path, what):
    text, expected = FAILURES[what]
    with monkeypatch.context() as patch:
        patch.setattr(module, "TIMEOUT_S", 0.3 if what == "too long" else 60)
        patch.setenv("CC", script(tmp_path, "compiler", text))
        with pytest.raises(CompilerError, match=f"(?s){expected}"):
            module.compile_c(FORTY_TWO, "my_kernel")


def test_a_compiler_that_vanishes(monkeypatch, tmp_path):
    gone = script(tmp_path, "compiler", "")
    monkeypatch.setenv("CC", gone)
    compile_module.toolchain()
    os.unlink(gone)
    with pytest.raises(CompilerError, match=r"could not be started .*Set CC to another"):
        compile_module.compile_c(FORTY_TWO)


def check_kept(module, monkeypatch, tmp_path):
    """One compilation per source and compiler; what is kept and does not load is said, and made anew."""
    source, folder = tmp_path / "answer.c", tmp_path / "cache"
    source.write_text(FORTY_TWO)
    compiled = []
    real = module.compile_c
    with monkeypatch.context() as patch:
        patch.setattr(module, "compile_c", lambda *args: compiled.append(args) or real(*args))
        patch.setattr(triton.knobs.cache, "dir", str(folder))
        for _ in range(2):
            assert module.library(source).answer() == 42
        assert len(compiled) == 1
        (kept,) = folder.glob("*/*")  # no temporary file stays
        damaged = tmp_path / "damaged" / kept.parent.name / kept.name
        damaged.parent.mkdir(parents=True)
        damaged.write_bytes(b"\x7fELF, and then the power went")
        patch.setattr(triton.knobs.cache, "dir", str(tmp_path / "damaged"))
        with pytest.raises(
            CompilerError, match=r"answer\.c in Triton's cache does not load.*It was removed: start Python again"
        ):
            module.library(source)
        assert module.library(source).answer() == 42
        patch.setattr(triton.knobs.cache, "dir", str(folder))
        source.write_text(FORTY_TWO.replace("42", "43"))
        assert module.library(source).answer() == 43, "another source"
        patch.setattr(module, "FLAGS", (*module.FLAGS, "-DX"))
        module.library(source)
        patch.setattr(module, "_processor", lambda: "another processor")
        module.library(source)
        patch.setenv(module.FLAGS_VARIABLE, "-O1 -DY")
        module.library(source)
        assert len(compiled) == 6, "other flags and other processors have libraries of their own"


def test_native_flags():
    first, *_ = compile_module.native_flags()
    assert first in ("-march=native", "-mcpu=native")
    assert " ".join(compile_module.native_flags()) in compile_module.toolchain().identity


CHECKS = {what: partial(check_failure, what=what) for what in FAILURES}
CHECKS |= {check.__name__: check for check in (check_choice, check_kept)}


@pytest.mark.parametrize("name", CHECKS)
def test_compiler(name, monkeypatch, tmp_path):
    CHECKS[name](compile_module, monkeypatch, tmp_path)


MUTANTS = [
    ("a wrong CC is replaced in silence", "    if chosen:\n        command", "    if chosen and shutil.which(chosen.split()[0], path=path):\n        command", check_choice),
    ("clang before gcc", '("gcc", "clang", "cc")', '("clang", "gcc", "cc")', check_choice),
    ("no ziglang", 'find_spec("ziglang")', 'find_spec("zig")', check_choice),
    ("a killed compiler", "if done.returncode < 0 or ", "if ", partial(check_failure, what="killed")),
    ("a killed child", '"Killed signal" in done.stderr', '"killed by" in done.stderr', partial(check_failure, what="its child killed")),
    ("what does not load stays", "Path(file).unlink(missing_ok=True)", "pass", check_kept),
    ("the key without the source", '(source + toolchain().identity).encode()', "toolchain().identity.encode()", check_kept),
    ("the key without the processor", "*flags(), _processor()))", "*flags()))", check_kept),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new", "check"), MUTANTS, ids=[row[0] for row in MUTANTS])
def test_mutants_are_killed(name, old, new, check, monkeypatch, tmp_path):
    number = iter(range(2))

    def in_a_folder_of_its_own(module):
        folder = tmp_path / str(next(number))
        folder.mkdir()
        module.HERE = compile_module.HERE  # a mutant has no file
        check(module, monkeypatch, folder)

    KillTable.record(Mutant(name, "triton_on_cpu.compile", old, new), in_a_folder_of_its_own)
