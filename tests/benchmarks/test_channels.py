"""What a benchmark of fewer channels concludes from what it measured."""

from __future__ import annotations

from benchmarks.accuracy.channels import Found, Measured, fastest, verdicts_of


def test_x1_stands_where_every_network_loses_too_much() -> None:
    assert fastest([Found("channels4", 9.0, 0.31, 2.0)], 0.3).name == "x1"
    assert fastest([Found("channels4", 2.0, 0.3, 2.0), Found("channels8", 3.0, 0.4, 2.0)], 0.3).name == "channels4"
    assert fastest([Found("channels4", 0.9, -1.0, 2.0)], 0.3).name == "x1"


def test_quantities_are_averages_over_graphs_of_what_has_fewer_channels() -> None:
    batched = (
        Found("projected", 20.0, 0.0, None),
        Found("channels4-projected", 8.0, 0.1, 2.0),
        Found("channels4-stored1", 30.0, 0.1, 2.0),
    )
    both = (Found("channels4", 4.0, 0.1, 2.0), Found("x4", 9.0, 0.0, None))
    graphs = [
        Measured("a", "accuracy", 0.9, 10.0, 10.0, both, batched),
        Measured("b", "accuracy", 0.9, 10.0, 10.0, (Found("channels4", 4.0, 0.3, 2.0),), batched),
    ]
    verdicts = verdicts_of(graphs)
    assert {name: verdict["measured"].partition(")")[0] for name, verdict in verdicts.items()} == {
        "all nodes": "2.50 times (by channels 1.50",
        "1,024 nodes, columns of features": "1.00 times (by channels 1.00",
        "1,024 nodes, with products": "8.00 times (by channels 2.00",
        "1,024 nodes, with a stored layer": "30.00 times (by channels 2.00",
    }
    assert [verdict["passed"] for verdict in verdicts.values()] == [False, False, True, True]
