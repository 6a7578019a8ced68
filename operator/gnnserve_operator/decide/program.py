"""Does the program that workers run as the model give scores?

Workers tell of it in `GET /v1/route`. It touches no other condition: one request may be what a program fails at, and
the others are answered.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from gnnserve_api.reasons import Reason
from gnnserve_operator.observed import Observed, ObservedPod
from gnnserve_routing.verdict import Verdict, sentence


def decide_program(ready: Sequence[ObservedPod], observed: Observed) -> Verdict | None:
    """None: no ready worker runs a program."""
    routes = {answer.pod: answer.route for answer in observed.answers if answer.route is not None}
    told = [(pod.name, routes[pod.name].program) for pod in ready if pod.name in routes]
    programs = [(name, program) for name, program in told if program is not UNSET]
    if not programs:
        return None
    for name, program in programs:
        if program.problem:
            again = f" It was started again {program.restarts} times." if program.restarts > 1 else ""
            return Verdict(
                False,
                Reason.PROGRAM_FAILS,
                f"Requests to worker {name} get 503 as its last one did: {sentence(program.problem)}.{again}",
            )
    workers = "Worker" if len(programs) == 1 else "Workers"
    names = ", ".join(name for name, _ in programs)
    return Verdict(True, Reason.PROGRAM_RUNS, f"{workers} {names}: the last run of the program gave scores.")
