"""What Prometheus reads."""

import pytest
from fake_engine import FakeEngine

metrics = pytest.importorskip("jaxspec.serve.http.metrics")
http_server = pytest.importorskip("http_server")
prometheus = pytest.importorskip("prometheus_client.parser")


def read(server) -> dict:
    """{(name, labels): value} of all samples."""
    families = prometheus.text_string_to_metric_families(server.http.get("/metrics").text)
    return {
        (one.name, *sorted(one.labels.items())): one.value
        for family in families
        for one in family.samples
    }


def test_before_the_warm_up():
    """What is not known yet is left out."""
    engine = FakeEngine()
    counters = engine.counters()
    engine.counters = lambda: counters | {"compiles_after_warm_up": None}
    figures = metrics.Metrics()
    figures.add_engine(engine)
    text = figures.render().decode()
    assert "jaxspec:visits_total 0.0" in text and "compiles_after_warm_up" not in text


def test_metrics():
    with http_server.running(FakeEngine(seconds=0.001)) as server:
        for _ in range(3):
            server.post(prompt="four", max_tokens=12)
        server.post(prompt="four", max_tokens=12, n=2, stream=True)
        server.post(prompt="")
        found = read(server)
    assert found["jaxspec:prompt_tokens_total",] == 16
    assert found["jaxspec:generation_tokens_total",] == 60
    assert found["jaxspec:request_success_total", ("finished_reason", "length")] == 5
    assert found["jaxspec:e2e_request_latency_seconds_count",] == 5
    assert found["jaxspec:time_to_first_token_seconds_count",] == 5
    assert found["jaxspec:request_time_per_output_token_seconds_count",] == 5
    assert found["jaxspec:inter_token_latency_seconds_count",] == 5 * 3
    route = ("route", "/v1/completions")
    assert found["jaxspec:http_requests_total", route, ("status", "200")] == 4
    assert found["jaxspec:http_requests_total", route, ("status", "400")] == 1
    assert found["jaxspec:num_requests_running",] == found["jaxspec:num_requests_waiting",] == 0
    # As vLLM's: a round without a draft is none.
    assert found["jaxspec:spec_decode_num_drafts_total",] == 5
    assert found["jaxspec:spec_decode_num_draft_tokens_total",] == 20
    assert found["jaxspec:slot_rounds_total",] == 8
    assert found["jaxspec:spec_decode_num_accepted_tokens_total",] == 6
    place = ("position", "1")
    assert found["jaxspec:spec_decode_num_accepted_tokens_per_pos_total", place] == 2
    assert found["jaxspec:rows_per_round_total", ("rows", "16")] == 1
    assert found["jaxspec:compiles_after_warm_up",] == found["jaxspec:kv_cache_usage_perc",] == 0


LEARNING = {
    **{
        "on": True,
        "version": 3,
        "updating": False,
        "waiting": 1,
        "queries": 40,
        "updates": 5,
        "published": 4,
    },
    **{"refused": 1, "restored": 2, "left_out": 7, "failures": 0, "seconds": 1.5},
}


def test_a_drafter_that_learns():
    engine = FakeEngine()
    counters = engine.counters
    engine.counters = lambda: counters() | {"adaptation": LEARNING}
    with http_server.running(engine) as server:
        found = read(server)
        assert server.http.get("/ready").json()["adaptation"] == LEARNING
    assert found["jaxspec:adapt_on",] == 1 and found["jaxspec:adapt_version",] == 3
    assert found["jaxspec:adapt_seconds_total",] == 1.5
    for name in ("queries", "updates", "refused", "restored", "left_out", "failures"):
        assert found[f"jaxspec:adapt_{name}_total",] == LEARNING[name]


def test_an_engine_that_does_not_learn_says_nothing_of_it():
    with http_server.running() as server:
        assert not any("adapt" in name for name, *_ in read(server))
        assert "adaptation" not in server.http.get("/ready").json()


def test_prefix_of_dashboards_made_for_vllm():
    with http_server.running(metrics_prefix="vllm") as server:
        names = {name for name, *_ in read(server)}
    assert "vllm:num_requests_running" in names and all(one.startswith("vllm:") for one in names)


def test_two_servers_count_apart():
    with http_server.running() as one, http_server.running() as other:
        one.post(prompt="x", max_tokens=5)
        assert read(one)["jaxspec:generation_tokens_total",] == 5
        assert read(other)["jaxspec:generation_tokens_total",] == 0
