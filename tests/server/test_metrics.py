"""/metrics, read as a Prometheus server reads it, and equal to what happened."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import MODEL, PATIENCE_S, held, serving, until
from twophase_server import metric_families as families

TEXT = "/v1/completions"


def read(server):
    """(name, labels besides the model's) -> value."""
    answer = httpx.get(server.url + "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == server.llm.model_name
            key = (sample.name, *sorted(labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def value(found, metric, suffix="", **labels):
    return found[(metric.name + suffix, *sorted(labels.items()))]


@pytest.fixture
def server(chat_folder):
    with serving(chat_folder, {"num_kv_blocks": 40}, max_queue=4) as server:
        yield server


def ask(server, **body):
    body = {"model": MODEL, "prompt": "The quick brown fox", "max_tokens": 5, "ignore_eos": True} | body
    return httpx.post(server.url + TEXT, json=body, timeout=PATIENCE_S)


def test_everything_is_there_before_the_first_request(server):
    found = read(server)
    names = {name for name, *_ in found}
    for metric in vars(families).values():
        if isinstance(metric, families.Metric) and metric is not families.REFUSED:
            assert metric.name + ("_count" if metric.kind == "histogram" else "") in names, metric
    assert sum(found[key] for key in found if key[0] == families.BLOCKS.name) == 40
    assert value(found, families.ENGINE_UP) == 1
    assert not any(name.endswith("_created") for name in names)


def test_it_counts_what_happened(server):
    answers = [ask(server, n=n, seed=n).json() for n in (1, 2, 1)]
    num_prompt = sum(answer["usage"]["prompt_tokens"] for answer in answers)
    num_new = sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert num_new == 20
    num_cached = sum(answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers)
    assert num_cached > 0
    found, steps = read(server), server.llm.trace
    for metric in (families.TIME_TO_FIRST_TOKEN, families.E2E_LATENCY, families.QUEUE_TIME, families.PROMPT_TOKENS):
        assert value(found, metric, "_count") == 3
        assert value(found, metric, "_bucket", le="+Inf") == 3
    assert value(found, families.PROMPT_TOKENS, "_sum") == num_prompt
    assert value(found, families.GENERATION_TOKENS, "_sum") == num_new
    assert value(found, families.GENERATION_TOKENS, "_bucket", le="8.0") == 2
    assert value(found, families.INTER_TOKEN_LATENCY, "_count") == 3 * 4
    assert value(found, families.TIME_PER_OUTPUT_TOKEN, "_count") == 3
    assert value(found, families.ITERATION_TOKENS, "_count") == len(steps)
    assert value(found, families.ITERATION_TOKENS, "_sum") == sum(chunk[3] for step in steps for chunk in step.chunks)
    assert value(found, families.PROMPT_TOKENS_TOTAL) == num_prompt
    assert value(found, families.GENERATION_TOKENS_TOTAL) == num_new
    assert value(found, families.PREFIX_CACHE_QUERIES) == num_prompt
    assert value(found, families.PREFIX_CACHE_HITS) == num_cached
    assert value(found, families.REQUEST_SUCCESS, finished_reason="length") == 3
    assert value(found, families.REQUEST_SUCCESS, finished_reason="abort") == 0
    assert value(found, families.KV_CACHE_USAGE) == 0
    assert value(found, families.KV_CACHE_USAGE_PEAK) == max(step.kv_cache_usage for step in steps) > 0


def test_queues_and_blocks_as_they_are(server):
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(ask, server, max_tokens=100)
        until(lambda: server.llm.stats().num_running == 1)
        with held(server):
            found, stats = read(server), server.llm.stats()
            assert stats.num_running == 1
            assert value(found, families.RUNNING) == 1
            assert value(found, families.KV_CACHE_USAGE) == stats.cache.num_in_use / 40 > 0
            assert value(found, families.FRAGMENTATION) == stats.cache.internal_fragmentation
            assert value(found, families.BLOCKS, state="in_use") == stats.cache.num_in_use
        assert task.result().status_code == 200


def test_the_queue_grows_and_ages_while_no_step_ends(server):
    """A step that hangs is when it matters most: nothing else that the engine tells of itself moves then."""
    with ThreadPoolExecutor(1) as pool:
        with held(server):
            task = pool.submit(ask, server)
            until(lambda: server.llm.num_unfinished == 1)
            assert value(read(server), families.WAITING) == 1
            first = value(read(server), families.QUEUE_AGE)
            until(lambda: value(read(server), families.QUEUE_AGE) > first + 0.05)
        assert task.result().status_code == 200
    assert value(read(server), families.QUEUE_AGE) == value(read(server), families.WAITING) == 0


def test_refusals_evictions_preemptions_and_who_left(server):
    assert ask(server, temperature="hot").status_code == 400
    assert ask(server, model="other").status_code == 404
    with ThreadPoolExecutor(4) as pool:
        with held(server):
            # Together they need more blocks than there are.
            tasks = [pool.submit(ask, server, prompt=f"{i} " * 20, max_tokens=60, seed=i) for i in range(4)]
            until(lambda: server.llm.num_unfinished == 4)
            assert ask(server).status_code == 429
            assert ask(server, stream=True).status_code == 429
        assert [task.result().status_code for task in tasks] == [200] * 4
    found, stats = read(server), server.llm.stats()
    assert value(found, families.REFUSED, status="400", code="") == 1
    assert value(found, families.REFUSED, status="404", code="model_not_found") == 1
    assert value(found, families.REFUSED, status="429", code="queue_full") == 2
    assert value(found, families.EVICTIONS) == stats.cache.num_evicted > 0
    assert value(found, families.PREEMPTIONS) == stats.num_preemptions > 0
    assert value(found, families.KV_CACHE_USAGE_PEAK) == stats.kv_cache_usage_peak > 0.8
