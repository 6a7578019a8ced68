"""The program that workers run: what the condition says of it, and which events its turns are."""

from __future__ import annotations

from tests.support.operator.observed import Namespace

from gnnserve_api.files.programs import ProgramLimits
from gnnserve_api.pods.routing import CanaryRoute, ProgramState

KIND = "ProgramHealthy"


def serving(program: ProgramState | None) -> Namespace:
    namespace = Namespace()
    namespace.serve()
    if program is not None:
        namespace.answer(program=program)
    namespace.settle()
    return namespace


def test_without_a_program_there_is_no_condition() -> None:
    assert serving(None).condition(KIND) == {}


def test_the_condition_is_what_workers_say_and_the_service_stays_ready() -> None:
    namespace = serving(ProgramState("", 0))
    assert namespace.reason(KIND) == "True ProgramRuns"
    namespace.answer(
        program=ProgramState("the program of this service took longer than 10 s; a new process is started", 4)
    )
    namespace.settle()
    assert namespace.reason(KIND) == "False ProgramFails"
    message = namespace.condition(KIND)["message"]
    assert "the program of this service took longer than 10 s; a new process is started." in message
    assert message.endswith("It was started again 4 times.")
    assert namespace.reason() == "True Serving"
    namespace.answer(program=ProgramState("", 4))
    namespace.settle()
    assert namespace.reason(KIND) == "True ProgramRuns"


def test_other_limits_reach_workers_and_nothing_is_generated_or_replaced() -> None:
    volume = {"source": {"builtin": "Digits"}, "volume": {"claimName": "models"}}
    model = {"program": {"uri": "described"}, "expected": {"uri": "described/expected.npz"}}
    namespace = Namespace(graph=volume, model=model)
    namespace.serve()
    before, jobs = namespace.get("Deployment")["spec"], namespace.jobs()
    limits = ProgramLimits(memory_bytes=1 << 30, seconds=20)
    namespace.edit(model={**model, "program": {"uri": "described", "limits": {"memory": "1Gi", "seconds": 20}}})
    namespace.answer(program=ProgramState("", 0, ProgramLimits()))
    namespace.settle()
    assert (namespace.table().program_limits, namespace.jobs()) == (limits, jobs)
    assert namespace.get("Deployment")["spec"] == before
    assert "has yet to take on spec.model.program.limits" in str(namespace.condition("Ready")["message"])
    namespace.answer(program=ProgramState("", 0, limits))
    namespace.settle()
    assert namespace.reason() == "True Serving"


def test_a_program_that_only_the_second_revision_runs_is_told_too() -> None:
    canary = CanaryRoute("0ld", 5, answers=True, program=ProgramState("the program ended its process", 2))
    namespace = Namespace()
    namespace.serve()
    namespace.answer(canary=canary)
    namespace.settle()
    assert namespace.reason(KIND) == "False ProgramFails"
    assert (
        "that revision 0ld answers get 503 as the last one did: the program ended"
        in (namespace.condition(KIND)["message"])
    )
