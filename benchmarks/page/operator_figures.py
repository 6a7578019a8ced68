"""Tables about the operator: in a cluster, over a fleet of services, in simulated trouble, in chaos."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.page.figure_blocks import figures, paragraphs, table


@figures("cluster")
def cluster(found: Any) -> str:
    samples, idle = found["objective_to_worker_samples_s"], found["idle"]
    return table(
        ("in a cluster of one machine", "measured"),
        (
            ("`kubectl apply` of the digits example to its first answer, images present",
             f"{found['apply_to_first_answer_s']:.0f} s"),
            (f"a changed objective to the worker that uses it, worst of {len(samples)}", f"{max(samples):.2f} s"),
            ("live switches of the revision", _failed(found["switch"])),
            ("rolling updates of the workers", _failed(found["rollout"])),
            (f"writes of an idle operator in {idle['seconds'] / 60:.0f} minutes", str(idle["writes"])),
        ),
    )  # fmt: skip


def _failed(load: Mapping[str, Any]) -> str:
    return f"{load['failed']} of {load['requests']:,} requests failed"


@figures("fleet")
def fleet(found: Any) -> str:
    return paragraphs(_fleet_actions(found), _fleet_at_rest(found))


def _fleet_actions(found: Any) -> str:
    restart, labels, services = found["restart"], found["labels"], f"{found['services']:,}"
    return table(
        ("what the operator is given to do", "took, s", "reconciles/s", "writes"),
        (
            *((f"{int(size):,} services are created, every one in its state", *_acted(part))
              for size, part in found["grow"].items()),
            (f"all objectives of {services} services are changed", *_acted(found["change"])),
            (f"it is restarted beside {services} services: ready / all looked at",
             f"{restart['ready_s']:.1f} / {restart['all_looked_at_s']:.1f}", "", f"{restart['writes']:,}"),
            (f"{labels['changes']:,} labels and annotations of services", f"{labels['acted_s']:.1f}", "",
             f"{labels['writes']:,}"),
            *((("a quota allows a Job no pod: until its service quotes the API server, worst of "
                f"{len(found['quota']['told_after_s'])}", f"{max(found['quota']['told_after_s']):.1f}", "", ""),)
              if "quota" in found else ()),  # runs of before had none
            (f"all {services} are deleted: no child left", *_acted(found["delete"])),
        ),
    )  # fmt: skip


def _acted(part: Mapping[str, Any]) -> tuple[str, str, str]:
    return f"{part['converged_s']:.1f}", f"{part['reconciles_per_s']:.0f}", f"{part['writes']:,}"


def _fleet_at_rest(found: Any) -> str:
    rows = (
        (
            f"{part['services']:,}",
            f"{part['requests_per_minute']:.0f}",
            f"{', '.join(f'{verb}: {number}' for verb, number in _by_verb(part['requests_by_kind']).items())} "
            f"({part['seconds']} s)",
            f"{part['processor_share']:.1%}",
            f"{part['memory_after_mb']}",
        )
        for part in found["idle"].values()
    )
    columns = ("services at rest", "calls a minute", "by verb, in so many seconds", "of a processor", "memory, MB")
    return table(columns, rows)


def _by_verb(requests_by_kind: Mapping[str, int]) -> dict[str, int]:
    """Requests by verb, the most frequent first; those of leases apart, which are the operator's own."""
    counted: Counter[str] = Counter()
    for words, number in requests_by_kind.items():
        verb, _, resource = words.partition(" ")
        counted["renewals of the Lease" if resource == "leases" else verb] += number
    return dict(counted.most_common())


@figures("faults")
def faults(found: Any) -> str:
    scenes = table(
        ("scene", "points", "every", "struck", "came back, played on", "violations", "processor time, s"),
        (
            (
                f"`{scene['name']}`", f"{scene['points']:,}", str(scene["stride"]), f"{scene['reached']:,}",
                f"{scene.get('came_back', 0):,}, {scene.get('played_on', 0):,}",
                str(len(scene["violations"])), f"{scene['seconds']:.0f}",
            )
            for scene in found["scenes"]
        ),
    )  # fmt: skip
    sequences = (
        f"{found['sequences']:,} sequences were lived, {len(found['sequencesViolated'])} of them with violations."
    )
    missed = [guard for guard, is_caught in found["guards"].items() if not is_caught]
    guards = f"{len(found['guards'])} guards were taken away; of {len(missed)} no test told{_listed(missed)}."
    return paragraphs(scenes, sequences, guards)


def _listed(names: Sequence[str]) -> str:
    return f": {'; '.join(names)}" if names else ""


@figures("chaos")
def chaos(found: Any) -> str:
    summary = table(
        ("in all", "measured"),
        (
            ("requests, answered", f"{found['requests']:,}, {found['answered']:,}"),
            ("failed", str(found["failed"])),
            ("of them in flight at a worker that was killed", str(found["in_flight_at_a_killed_worker"])),
            ("longest answer", f"{found['longest_answer_s']:.1f} s"),
            ("violations", str(len(found["violations"]))),
            ("answers that were checked while a service said Ready=True", f"{found['answers_checked_while_ready']:,}"),
            ("as declared again after the last event", f"{found['converged_after_s']:.0f} s"),
            (f"writes in {found['quiet_s']:.0f} s after that, but for routing tables",
             str(sum(found["writes_after_convergence"].values()))),
        ),
    )  # fmt: skip
    events = table(
        ("event", "times"),
        ((event, str(times)) for event, times in sorted(found["events_by_kind"].items(), key=lambda one: -one[1])),
    )
    return paragraphs(summary, events)
