"""The threads that run kernels: order, number, chunks, waking, time limits, several callers, forked children."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.cpu import pool_checks
from tests.mutation import KillTable
from triton_on_cpu.compile import HERE, compile_c

POOL = HERE / "pool.c"
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return built(tmp_path_factory.mktemp("kernel") / "kernel.so", pool_checks.KERNEL)


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return built(tmp_path_factory.mktemp("pool") / "pool.so", POOL.read_text())


def built(path, source):
    path.write_bytes(compile_c(source))
    return path


def run_checks(pool, kernel, *names, timeout_s=TIMEOUT_S):
    """What the checks say of a pool; None if nothing is wrong."""
    command = [sys.executable, pool_checks.__file__, str(pool), str(kernel), *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return "hangs"
    return None if done.returncode == 0 else (done.stderr.splitlines() or [f"exit status {done.returncode}"])[-1]


@pytest.mark.parametrize("name", pool_checks.CHECKS)
def test_pool(name, kernel, pool):
    assert run_checks(pool, kernel, name) is None


MUTANTS = [
    ("chunks are taken twice", "if (!__atomic_compare_exchange_n(&pool.ticket, &ticket, ticket + chunk, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))\n      continue;",
     "usleep(1), __atomic_store_n(&pool.ticket, ticket + chunk, __ATOMIC_RELEASE);", "check_each_program_runs_once"),
    ("the next launch begins early", "__ATOMIC_ACQ_REL) == total) publish_next(who)", "__ATOMIC_ACQ_REL) == total - (total > 2)) publish_next(who)", "check_lists"),
    ("empty launches are waited for", "== 0) pool.at++;", "< 0) pool.at++;", "check_lists"),
    ("all kernels are cheap", "return total_ns >= WAKE_NS;", "return 0;", "check_threads"),
    ("more threads than asked for", "|| who >= threads + !GET(pool.caller_helps) ||", "||", "check_threads_that_are_still_awake"),
    ("threads without a processor are waited for", "      put_aside_the_absent(who);\n", "", "check_an_absent_thread"),
    ("the absent thread's own launches", "helps = self >= first && !is_put_aside(self);", "helps = self >= first;", "check_an_absent_thread"),
    ("aside for ever", "  __atomic_store_n(&pool.put_aside, ((GET(pool.put_aside) >> 32) + 1) << 32, __ATOMIC_RELEASE);\n", "", "check_an_absent_thread"),
    ("two callers at once", "if (__atomic_exchange_n(&pool.busy, 1, __ATOMIC_ACQUIRE)) return 0;", "", "check_limit"),
    ("the pool stays taken", "      __atomic_store_n(&pool.busy, 0, __ATOMIC_RELEASE);\n      return 1;", "      return 1;", "check_threads check_limit"),
    ("a child waits for its parent's threads", "memset(&pool, 0, sizeof pool);", "", "check_fork"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new", "checks"), MUTANTS, ids=[row[0] for row in MUTANTS])
def test_mutants_are_killed(name, old, new, checks, kernel, tmp_path):
    source = Path(POOL).read_text()
    assert source.count(old) == 1, f"mutant {name!r}: {old!r} occurs {source.count(old)} times in pool.c"
    if KillTable.only_planted:
        return
    how = run_checks(built(tmp_path / "pool.so", source.replace(old, new)), kernel, *checks.split(), timeout_s=10)
    KillTable.rows.append(("triton_on_cpu/pool.c", name, how))
    assert how is not None, f"mutant survived: {name}"
