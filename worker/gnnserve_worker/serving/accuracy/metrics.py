"""Metrics of accuracy in service."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gnnserve_api.http.live_accuracy import ObservedShare
from gnnserve_worker.serving.accuracy.watch import ACCEPTED, AccuracyWatch


def collect_accuracy(watch: AccuracyWatch, service: str, created_s: float) -> Iterator[Metric]:
    """The watch at the moment of a scrape; nothing before the first label came, or the first shadow was computed."""
    if not watch.outcomes and not any(watch.seconds.values()):
        return
    labels = CounterMetricFamily(
        "gnnserve_labels", "Labels that clients sent, by what became of them.", labels=("service", "outcome")
    )
    for outcome, count in {ACCEPTED: 0, **watch.outcomes}.items():
        labels.add_metric((service, outcome), count, created=created_s)
    waiting = GaugeMetricFamily(
        "gnnserve_labels_waiting", "Labels that some variant is still to be evaluated on.", labels=("service",)
    )
    waiting.add_metric((service,), watch.waiting)
    seconds = CounterMetricFamily(
        "gnnserve_accuracy_watch_seconds",
        "Time that went into evaluating labels, and into shadows.",
        labels=("service", "purpose"),
    )
    for purpose, spent_s in watch.seconds.items():
        seconds.add_metric((service, purpose), spent_s, created=created_s)
    yield from (labels, waiting, seconds)
    live = GaugeMetricFamily(
        "gnnserve_live_accuracy",
        "Accuracy in service on the last labelled nodes, and the ends of its interval.",
        labels=("service", "variant", "bound"),
    )
    nodes = GaugeMetricFamily(
        "gnnserve_live_accuracy_nodes",
        "Labelled nodes that it is of, the same for all variants.",
        labels=("service", "variant"),
    )
    broken = GaugeMetricFamily(
        "gnnserve_accuracy_broken",
        "1 where a variant is significantly less accurate in service than its profile promised.",
        labels=("service", "variant"),
    )
    agreement = GaugeMetricFamily(
        "gnnserve_live_agreement",
        "Share of nodes on which a variant answered as the most accurate one, and the ends of its interval.",
        labels=("service", "variant", "bound"),
    )
    compared = GaugeMetricFamily("gnnserve_live_agreement_nodes", "Nodes in the window.", labels=("service", "variant"))
    for figure in watch.figures():
        of = (service, figure.name)
        if figure.agreement is not None:
            add_share(agreement, of, figure.agreement)
            compared.add_metric(of, figure.agreement.nodes)
        if figure.labels is None:
            continue
        add_share(live, of, figure.labels)
        nodes.add_metric(of, figure.labels.nodes)
        if figure.promised is not None:
            broken.add_metric(of, int(figure.is_broken))
    yield from (live, nodes, broken, agreement, compared)


def add_share(family: GaugeMetricFamily, labels: tuple[str, ...], share: ObservedShare) -> None:
    """`labels`: all but `bound`."""
    for bound, value in (("mean", share.mean), ("low", share.low), ("high", share.high)):
        family.add_metric((*labels, bound), value)
