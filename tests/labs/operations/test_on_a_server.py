"""The lab's measurements on a real server with a tiny model: terms that add up, patience, and nothing left behind."""

import pytest

from tests.server.conftest import chat_folder  # (a fixture)
from twophase import LLM
from twophase_labs.operations import own_bucket
from twophase_labs.operations.clients import Ask, ask_all
from twophase_labs.operations.scrapes import TTFT, scrape, wait_until_idle
from twophase_labs.operations.server_life import leave_after_first_chunk
from twophase_labs.operations.six_terms import TERMS, stamped
from twophase_server.background import BackgroundServer

ENDLESS = {"ignore_eos": True}


@pytest.fixture(scope="module")
def llm(chat_folder):
    return LLM(chat_folder, num_kv_blocks=64, max_num_seqs=2)


def asks(num, **fields):
    return [Ask(f"The quick brown fox {n}", 6, f"{n}", fields=ENDLESS | fields) for n in range(num)]


def test_six_terms_add_up_to_what_the_client_saw(llm):
    with stamped(llm) as server:
        timed = server.ask(asks(5))
        engine_s = [one.output.metrics.ttft_s for one in timed]
    for one, in_engine_s in zip(timed, engine_s, strict=True):
        assert sum(one.terms.values()) == pytest.approx(one.ttft_s, abs=1e-9)
        assert all(one.terms[term] >= 0 for term in TERMS), one.terms
        # From submit to the token: all of the queue, the forward and the sampling, and a part of the preprocessing.
        assert one.terms["queue"] + one.terms["prefill"] + one.terms["sample"] <= in_engine_s <= one.ttft_s
    waiting = sorted(one.terms["queue"] for one in timed)
    assert waiting[-1] > waiting[0]  # five requests, two places


def test_stamps_leave_the_engine_as_it_was(llm):
    before = set(vars(llm.engine)), set(vars(llm.engine._runner))

    def fail_within():
        with stamped(llm) as server:
            server.ask(asks(1))
            raise KeyError

    with pytest.raises(KeyError):
        fail_within()
    assert (set(vars(llm.engine)), set(vars(llm.engine._runner))) == before
    with stamped(llm) as server:  # and again
        assert server.ask(asks(1))[0].ttft_s > 0


class Strict:
    """Lets one request in and then none for a second."""

    def __init__(self, rate_per_s, capacity, now_s):
        self.free_s = now_s

    def wait_s(self, now_s):
        return max(0.0, self.free_s - now_s)

    def take(self, amount, now_s):
        self.free_s = now_s + 0.5


def test_a_refused_client_waits_as_long_as_it_is_told_and_is_served(llm):
    with BackgroundServer(llm, own_bucket.settings_with({"one": "", "other": ""})) as server:
        own_bucket.limit_requests(server, "one", Strict, 2.0, 1.0)
        sent = [Ask("fox", 2, f"{n}", key="one" if n < 2 else "other", fields=ENDLESS) for n in range(4)]
        answers = ask_all(server.url, sent)
        found = scrape(server.url)
    assert [answer.status for answer in answers] == [200] * 4
    waits_s = sorted(answer.waits_s for answer in answers[:2])
    assert waits_s[0] == ()
    assert waits_s[1][0] == 1.0
    assert [answer.waits_s for answer in answers[2:]] == [(), ()]
    assert found.value("requests_refused_total", status="429") == len(waits_s[1])
    assert found.value(f"{TTFT}_count") == 4


def test_one_try_is_one_try(llm):
    with BackgroundServer(llm, own_bucket.settings_with({"one": ""})) as server:
        own_bucket.limit_requests(server, "one", Strict, 2.0, 1.0)
        answers = ask_all(server.url, [Ask("fox", 2, f"{n}", key="one", tries=1) for n in range(3)])
    assert sorted(answer.status for answer in answers) == [200, 429, 429]
    assert all(answer.ttft_s is None and answer.error == "1" for answer in answers if answer.status == 429)


def test_who_leaves_is_aborted(llm):
    with BackgroundServer(llm) as server:
        before, after = leave_after_first_chunk(server.url)
    assert before.value("num_requests_running") == 1
    assert after.value("kv_cache_blocks", state="in_use") == 0
    assert after.value("request_success_total", finished_reason="abort") == 1


def test_waiting_for_an_idle_engine_ends(llm):
    with BackgroundServer(llm) as server:
        assert wait_until_idle(server.url).value("num_requests_running") == 0
        with pytest.raises(TimeoutError, match="not idle"):
            wait_until_idle(server.url, timeout_s=0.0)
