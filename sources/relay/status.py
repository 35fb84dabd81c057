"""Reports the status of relays: as a JSON document (`relay_status`) and as Prometheus metrics (`RelayMetrics`).

The HTTP server is in `observe.status_page`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sources.relay.server import Relay
from sources.xlog.format.vclock import distance


def relay_status(relay: Relay) -> dict[str, Any]:
    """Return the status of one relay as a JSON object: its error, connections, vclock and subscribers."""
    return {
        "name": relay.options.name,
        "listen": str(relay.options.listen),
        "error": None if relay.error is None else str(relay.error),
        "connections": relay.limiter.count,
        "refused_connections": relay.limiter.refused_connections,
        "wrong_passwords": relay.limiter.wrong_passwords,
        "acknowledgement_error": relay.ack_error,
        "vclock": {str(i): lsn for i, lsn in sorted(relay.catalog.vclock.items())},
        "subscribers": [
            {
                "instance": session.subscriber,
                "peer": session.peer,
                "sent_bytes": session.sent_bytes,
                "acknowledged": {str(i): lsn for i, lsn in sorted(session.acknowledged.items())},
                "lag_rows": distance(relay.catalog.vclock, session.acknowledged),
            }
            for session in relay.sessions
            if session.subscriber is not None
        ],
    }


class RelayMetrics:
    """Collects the metrics of relays for `prometheus_client`."""

    def __init__(self, relays: Sequence[Relay]) -> None:
        self._relays = relays

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        count = GaugeMetricFamily("relay_subscribers", "Subscribers", labels=["spool"])
        lag = GaugeMetricFamily(
            "relay_lag_rows", "Rows that a subscriber has not acknowledged", labels=["spool", "instance"]
        )
        failed = GaugeMetricFamily(
            "relay_failed", "Whether the spool cannot be read or acknowledged", labels=["spool"]
        )
        connections = GaugeMetricFamily("relay_connections", "Connections", labels=["spool"])
        refused = CounterMetricFamily(
            "relay_refused_connections", "Connections closed as too many", labels=["spool"]
        )
        wrong = CounterMetricFamily("relay_wrong_passwords", "Wrong passwords", labels=["spool"])
        for status in [relay_status(relay) for relay in self._relays]:
            connections.add_metric([status["name"]], status["connections"])
            refused.add_metric([status["name"]], status["refused_connections"])
            wrong.add_metric([status["name"]], status["wrong_passwords"])
            count.add_metric([status["name"]], len(status["subscribers"]))
            is_failed = status["error"] is not None or status["acknowledgement_error"] is not None
            failed.add_metric([status["name"]], is_failed)
            for subscriber in status["subscribers"]:
                lag.add_metric([status["name"], subscriber["instance"]], subscriber["lag_rows"])
        yield from (count, lag, failed, connections, refused, wrong)
