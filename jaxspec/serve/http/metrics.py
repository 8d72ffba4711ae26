"""Figures for Prometheus, under vLLM's names behind a prefix, with the engine's own beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX = "jaxspec"

disable_created_metrics()  # a second gauge beside each figure, with the time of its first value

_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily

# The engine's counters: {name there: (name here, kind, label, help)}. vLLM's names come first.
_NAMES = {
    "running": ("num_requests_running", _GAUGE, "", "Requests in slots."),
    "waiting": ("num_requests_waiting", _GAUGE, "", "Requests in the queue."),
    "slot_rounds": ("spec_decode_num_drafts", _COUNTER, "", "Rounds, counted in every slot."),
    "accepted": (
        "spec_decode_num_accepted_tokens_per_pos",
        _COUNTER,
        "position",
        "Accepted draft tokens by place in their path.",
    ),
    "reused_tokens": ("prefix_cache_hits", _COUNTER, "", "Prompt tokens found in a slot."),
    "rounds": ("rounds", _COUNTER, "", "Rounds of all slots together."),
    "rows_per_round": ("rows_per_round", _COUNTER, "rows", "Rounds by the rows they verified."),
    "drafted_rounds": ("drafted_rounds", _COUNTER, "", "Rounds with a draft."),
    "visits": ("visits", _COUNTER, "", "Visits to the device."),
    "visit_seconds": ("visit_seconds", _COUNTER, "", "Seconds of all visits."),
    "queue_seconds": ("queue_seconds", _COUNTER, "", "Seconds that requests waited."),
    "refused": ("refused", _COUNTER, "", "Requests that met a full queue."),
    "compiles_after_warm_up": (
        "compiles_after_warm_up",
        _GAUGE,
        "",
        "Programs compiled since the engine was ready; there should be none.",
    ),
}


class Metrics:
    """The figures of one server; each server has its own registry.

    Attributes:
      first_token, inter_token, per_token, total: histograms of seconds: until the first token,
        between deliveries of a request, per token after the first, of whole requests.
      prompt, generated: counters of tokens.
      answers: counter of HTTP answers by route and status.
    """

    def __init__(self, prefix: str = PREFIX):
        self._registry = CollectorRegistry()
        self._prefix = prefix

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            name = f"{prefix}:{name}_seconds"
            return Histogram(name, text, buckets=buckets, registry=self._registry)

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"{prefix}:{name}", text, labels, registry=self._registry)

        self.first_token = histogram(
            "time_to_first_token", "From arrival to the first token.", _REQUEST_BUCKETS
        )
        self.inter_token = histogram(
            "inter_token_latency",
            "Between deliveries of a request; a delivery may hold several tokens.",
            _TOKEN_BUCKETS,
        )
        self.per_token = histogram(
            "request_time_per_output_token", "Per token after a request's first.", _TOKEN_BUCKETS
        )
        self.total = histogram(
            "e2e_request_latency", "From arrival to the last token.", _REQUEST_BUCKETS
        )
        self.prompt = counter("prompt_tokens", "Tokens of admitted prompts.")
        self.generated = counter("generation_tokens", "Generated tokens.")
        self.answers = counter("http_requests", "Answers by route and status.", ("route", "status"))
        self._ended = counter("request_success", "Ended requests.", ("finished_reason",))

    def count_end(self, reason: str) -> None:
        """Count a request that ended."""
        self._ended.labels(reason).inc()

    def add_engine(self, engine: HasCounters) -> None:
        """Report the engine's counters with every scrape."""
        self._registry.register(_EngineCollector(engine, self._prefix))

    def render(self) -> bytes:
        """Return the text that Prometheus reads."""
        return generate_latest(self._registry)


class HasCounters(Protocol):
    """What reports its counters."""

    def counters(self) -> dict[str, Any]: ...


class _EngineCollector(Collector):
    """Reads the engine's counters when somebody asks."""

    def __init__(self, engine: HasCounters, prefix: str):
        self._engine, self._prefix = engine, prefix

    def collect(self) -> Iterable[Metric]:
        counters = self._engine.counters()
        for name, (called, kind, label, text) in _NAMES.items():
            if counters.get(name) is not None:
                yield self._family(called, kind, label, text, counters[name])
        accepted, used = sum(counters["accepted"]), counters["running"] / counters["slots"]
        text = "Accepted draft tokens."
        yield self._family("spec_decode_num_accepted_tokens", _COUNTER, "", text, accepted)
        yield self._family("kv_cache_usage_perc", _GAUGE, "", "Share of slots in use.", used)

    def _family(self, name: str, kind: Any, label: str, text: str, value: Any) -> Metric:
        """Make a figure, or one for each place of a list or key of a table."""
        family = kind(f"{self._prefix}:{name}", text, labels=(label,) if label else None)
        if not label:
            family.add_metric((), float(value))
            return family
        for key, one in value.items() if isinstance(value, Mapping) else enumerate(value):
            family.add_metric((str(key),), float(one))
        return family
