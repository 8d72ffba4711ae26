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

# Counters of the engine that vLLM has a name for: {the engine's: (vLLM's, kind, help)}.
_NAMES = {
    "running": ("num_requests_running", GaugeMetricFamily, "Requests in slots."),
    "waiting": ("num_requests_waiting", GaugeMetricFamily, "Requests in the queue."),
    "rounds": (
        "spec_decode_num_drafts",
        CounterMetricFamily,
        "Rounds of all slots.",
    ),
    "drafted": (
        "spec_decode_num_draft_tokens",
        CounterMetricFamily,
        "Draft tokens that the target verified.",
    ),
    "accepted": (
        "spec_decode_num_accepted_tokens_per_pos",
        CounterMetricFamily,
        "Accepted draft tokens at each position after the root.",
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
        for name, value in counters.items():
            known = (f"engine_{name}", GaugeMetricFamily, f"The engine's {name}.")
            called, kind, text = _NAMES.get(name, known)
            yield from self._family(f"{self._prefix}:{called}", kind, text, value)
        if "accepted" in counters:
            name = f"{self._prefix}:spec_decode_num_accepted_tokens"
            yield CounterMetricFamily(name, "Accepted draft tokens.", sum(counters["accepted"]))

    def _family(self, name: str, kind: Any, text: str, value: Any) -> Iterable[Metric]:
        """Yield a figure, a list by position, or a table by its keys; skip what is no number."""
        if isinstance(value, bool | int | float):
            yield kind(name, text, float(value))
            return
        table = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        if not isinstance(table, Mapping):
            return
        family = kind(name, text, labels=("position" if table is not value else "key",))
        for key, one in table.items():
            family.add_metric((str(key),), float(one))
        yield family
