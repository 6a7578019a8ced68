"""Does the program that workers run as the model give scores?

Workers tell of it in `GET /v1/route`. It touches no other condition: one request may be what a program fails at, and
the others are answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET

from gnnserve_api.reasons import Reason
from gnnserve_api.routing import ProgramState, Route
from gnnserve_operator.observed import Observed, ObservedPod
from gnnserve_routing.verdict import Verdict, sentence


def decide_program(ready: Sequence[ObservedPod], observed: Observed) -> Verdict | None:
    """None: no ready worker runs a program."""
    routes = {answer.pod: answer.route for answer in observed.answers if answer.route is not None}
    told = [(pod.name, each) for pod in ready if pod.name in routes for each in _programs_of(routes[pod.name])]
    if not told:
        return None
    for name, (revision, program) in told:
        if program.problem:
            again = f" It was started again {program.restarts} times." if program.restarts > 1 else ""
            return Verdict(
                False,
                Reason.PROGRAM_FAILS,
                f"Requests to worker {name}{revision} get 503 as the last one did: {sentence(program.problem)}.{again}",
            )
    names = list(dict.fromkeys(name for name, _ in told))
    workers = "Worker" if len(names) == 1 else "Workers"
    return Verdict(True, Reason.PROGRAM_RUNS, f"{workers} {', '.join(names)}: the last run of the program gave scores.")


def _programs_of(route: Route) -> Iterator[tuple[str, ProgramState]]:
    """Programs of both revisions, with what is said of the second one."""
    if route.program is not UNSET:
        yield "", route.program
    if route.canary is not UNSET and route.canary.program is not UNSET:
        yield f" that revision {route.canary.revision} answers", route.canary.program
