from __future__ import annotations

import msgspec
import pytest

from gnnserve_api.files.programs import ProgramLimits
from gnnserve_api.limits import Batching, OverlayLimits
from gnnserve_api.objective import Objective
from gnnserve_api.pods.generation import (
    MAX_TERMINATION_MESSAGE_BYTES,
    GenerationResult,
    VariantSummary,
    decode_result,
    encode_message,
    encode_result,
)
from gnnserve_api.pods.routing import RoutingTable, decode_routing, encode_routing
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Variants
from gnnserve_api.variants import MAX_FANOUT, MAX_GIVEN_NAME, MAX_LAYERS, MAX_VARIANT_NAME, MAX_VARIANTS

MINIMAL = {"graph": {"source": {"builtin": "Digits"}}}


def longest_variants(fanouts: int, storages: list[str], factors: int, given: int) -> tuple[VariantSummary, ...]:
    """The longest summaries that a spec of so many variants permits, without details."""
    spec = Variants.model_validate(
        {
            "pruning": {"factors": [65_536 - place for place in range(factors)]},
            "given": [
                {
                    "checkpoint": {"uri": "file:///a.safetensors"},
                    "columns": [0],
                    "name": f"{'a' * (MAX_GIVEN_NAME - 2)}{place:02}",
                }
                for place in range(given)
            ],
            "storage": storages,
            "fanouts": [[MAX_FANOUT] * (MAX_LAYERS - 1) + [MAX_FANOUT - place] for place in range(fanouts)],
        }
    )
    names = [*spec.listed_names(), *spec.optional_names()]
    assert len(names) <= MAX_VARIANTS
    assert max(map(len, names)) <= MAX_VARIANT_NAME
    return tuple(VariantSummary(name, 10_000_000, 999.9, 3_599_999.9999) for name in names)


@pytest.mark.parametrize(
    "variants",
    [
        pytest.param(longest_variants(0, ["bfloat16"], 16, 15), id="factors and given"),
        pytest.param(longest_variants(0, ["float32", "float16", "bfloat16", "int8"], 8, 0), id="storages"),
        pytest.param(longest_variants(1, ["bfloat16"], 2, 15), id="one list of fan-outs"),
        pytest.param(longest_variants(8, ["bfloat16"], 0, 3), id="most lists of fan-outs"),
    ],
)
def test_the_most_variants_fit_a_termination_message(variants: tuple[VariantSummary, ...]) -> None:
    result = GenerationResult("a" * 12, "b" * 16, "c" * 64, variants)
    assert len(encode_message(result).encode()) <= MAX_TERMINATION_MESSAGE_BYTES
    assert decode_result(encode_message(result)) == result
    detailed = tuple(
        msgspec.structs.replace(variant, factor=16, size_bytes=2**40, memory_bytes=2**40, tier_permille=1000)
        for variant in variants
    )
    assert encode_message(msgspec.structs.replace(result, variants=detailed)) == encode_message(result)
    few = msgspec.structs.replace(result, variants=detailed[:8])
    assert decode_result(encode_message(few)) == few
    following = msgspec.structs.replace(few, following_tiers={variants[0].name: 0})
    assert decode_result(encode_message(following)) == following
    many = msgspec.structs.replace(result, variants=detailed, following_tiers={variants[0].name: 0})
    assert decode_result(encode_message(many)) == result


def test_a_message_of_an_earlier_version_is_encoded_as_it_was() -> None:
    earlier = (
        '{"graph":"g","recipe":"r","revision":"a","variants":'
        '[{"accuracyPermille":970.5,"columns":64,"latencyMs":1.25,"name":"x1"}]}'
    )
    assert encode_result(decode_result(earlier)) == earlier


def test_a_spec_tells_workers_its_objective_batching_and_limits() -> None:
    spec = GNNServiceSpec.model_validate(
        {
            **MINIMAL,
            "objective": {"latencyMs": 5, "accuracyTolerancePermille": 10},
            "worker": {"batching": {"maxSeeds": 8, "maxQueuedSeeds": 16}},
            "endpoint": {"overlay": {"maxNodes": 3, "maxEdges": 30}},
        }
    )
    table = spec.routing_table("abc")
    assert table == RoutingTable("abc", spec.recipe(), Objective(5, 10), Batching(8, 16), OverlayLimits(3, 30))
    assert decode_routing(encode_routing(table)) == table


def test_a_spec_tells_workers_the_limits_of_its_program() -> None:
    program = {"uri": "file:///described", "limits": {"memory": "1Gi", "seconds": 2}}
    spec = GNNServiceSpec.model_validate(
        {**MINIMAL, "model": {"program": program, "expected": {"uri": "file:///described/expected.npz"}}}
    )
    table = spec.routing_table("abc")
    assert table.program_limits == ProgramLimits(memory_bytes=1 << 30, seconds=2)
    assert decode_routing(encode_routing(table)) == table


@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param('{"recipe": "r"}', "revision", id="a field is missing"),
        pytest.param('{"revision": "a", "recipe": "r", "colour": {}}', "colour", id="a field of a newer operator"),
        pytest.param('{"revision": 1, "recipe": "r"}', "revision", id="a field of another type"),
        pytest.param("revision: a", "JSON", id="no JSON"),
    ],
)
def test_a_broken_table_is_refused_with_the_name_of_the_field(text: str, named: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=named):
        decode_routing(text)


@pytest.mark.parametrize(
    ("written", "understood"),
    [
        pytest.param(2, "2", id="a whole number"),
        pytest.param("500m", "500m", id="thousandths"),
        pytest.param("4Gi", "4Gi", id="a binary suffix"),
        pytest.param("0.5", "0.5", id="a decimal in quotes"),
    ],
)
def test_quantities_become_the_text_that_kubernetes_stores(written: object, understood: str) -> None:
    spec = GNNServiceSpec.model_validate({**MINIMAL, "worker": {"resources": {"limits": {"cpu": written}}}})
    assert spec.worker.resources.limits == {"cpu": understood}
