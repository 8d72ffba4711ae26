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

# Help of the engine's counters, by what they are here.
_GAUGES = {
    "running": "Requests in slots.",
    "waiting": "Requests in the queue.",
    "compiles_after_warm_up": "Programs compiled since the engine was ready; there should be none.",
}
_COUNTERS = {
    "slot_rounds": "Rounds, counted in every slot, drafted or not.",
    "drafts": "Drafts that were verified, counted in every slot.",
    "draft_tokens": "Tokens of these drafts.",
    "accepted": "Accepted draft tokens by place in their path.",
    "reused_tokens": "Prompt tokens found in a slot.",
    "rounds": "Rounds of all slots together.",
    "rows_per_round": "Rounds by the rows they verified.",
    "drafted_rounds": "Rounds with a draft.",
    "visits": "Visits to the device.",
    "visit_seconds": "Seconds of all visits.",
    "queue_seconds": "Seconds that requests waited.",
    "refused": "Requests that met a full queue.",
}
# Of a drafter that learns, behind `adapt_`.
_LEARNING_GAUGES = {
    "on": "Whether the drafter learns; an error of training switches it off.",
    "version": "Version of the drafter that decodes.",
    "updating": "Whether an update is being made.",
    "waiting": "Texts that wait to be learned from.",
}
_LEARNING_COUNTERS = {
    "queries": "Texts that were learned from, or told to the decider at least.",
    "updates": "Updates that were made.",
    "refused": "Updates that were not published.",
    "restored": "Older versions that decoded again.",
    "left_out": "Texts that came while too many waited, or after an error.",
    "failures": "Errors of training.",
    "seconds": "Seconds of training.",
}
# Labels of those that are a list or a table.
_LABELS = {"accepted": "position", "rows_per_round": "rows"}
# Those that vLLM has too, by its name.
_VLLM_NAMES = {
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "drafts": "spec_decode_num_drafts",
    "draft_tokens": "spec_decode_num_draft_tokens",
    "accepted": "spec_decode_num_accepted_tokens_per_pos",
    "reused_tokens": "prefix_cache_hits",
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
        for family, helps in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, text in helps.items():
                called, label = _VLLM_NAMES.get(name, name), _LABELS.get(name, "")
                if counters[name] is not None:  # as before the warm-up
                    yield self._make(family, called, label, text, counters[name])
        if "adaptation" in counters:
            yield from self._collect_learning(counters["adaptation"])
        accepted, used = sum(counters["accepted"]), counters["running"] / counters["slots"]
        called, text = "spec_decode_num_accepted_tokens", "Accepted draft tokens."
        yield self._make(CounterMetricFamily, called, "", text, accepted)
        text = "Share of slots in use."
        yield self._make(GaugeMetricFamily, "kv_cache_usage_perc", "", text, used)

    def _collect_learning(self, figures: dict[str, Any]) -> Iterable[Metric]:
        for name, text in _LEARNING_GAUGES.items():
            yield self._make(GaugeMetricFamily, f"adapt_{name}", "", text, figures[name])
        for name, text in _LEARNING_COUNTERS.items():
            yield self._make(CounterMetricFamily, f"adapt_{name}", "", text, figures[name])

    def _make(self, family: Any, name: str, label: str, text: str, value: Any) -> Metric:
        """Make a figure, or one for each place of a list or key of a table."""
        made = family(f"{self._prefix}:{name}", text, labels=(label,) if label else None)
        if not label:
            made.add_metric((), float(value))
            return made
        for key, one in value.items() if isinstance(value, Mapping) else enumerate(value):
            made.add_metric((str(key),), float(one))
        return made
