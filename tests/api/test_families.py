"""Points of variants: what follows from their axes, beside what each family was said to be, one by one, before."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import msgspec
import pytest

from gnnserve_api.families import (
    CASCADE,
    FOLDED,
    ONE_ROW,
    POINTS,
    PROJECTED,
    PRUNED,
    STORED,
    STORED_GRAPH,
    Capabilities,
    ChannelAxis,
    FollowAxis,
    HopAxis,
    NetworkAxis,
    RowAxis,
    VariantPoint,
    cascade_of,
)
from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_cli.report.figures import shape_of

# Overlay, changes, embeddings; asked for, stores a product, spans widths, stands for all columns.
BEFORE = """
pruned                      oce a-w- circle   reads the most important feature columns
propagated                  --e a-w- circle   reads columns of propagated features, and no neighbours
propagated-following        oce a-w- circle   an embedding per node, made anew where the graph changes
projected                   oce -p-w diamond  first layer stored per node: nothing lost but rounding
propagated-projected        --e -p-w diamond  scores stored per node: nothing lost but rounding
stored                      oc- ap-- pentagon a layer stored per node, over all neighbours
stored-deeper               --- ap-- pentagon a later layer stored per node, over all neighbours
stored-deeper-following     -c- ap-- pentagon a layer stored per node, made anew where the graph changes
given                       oce a--- square   given, with feature columns of its own
given-projected             oce ap-- square   given, first layer stored per node
program                     oce a--- square   a program of your own, over all feature columns
layers                      oce a--- circle   the layers that the manifest lists, over all feature columns
pruned-layers               oce a-w- circle   the layers that the manifest lists, over the most important feature columns
projected-layers            oce -p-w diamond  the layers that the manifest lists, what is of a node alone stored per node: nothing lost but rounding
stored-layers               --- ap-- pentagon the layers that the manifest lists, the first ones stored per node, over all neighbours
stored-following-layers     -c- ap-- pentagon the layers that the manifest lists, the first ones stored per node, made anew where the graph changes
stored-overlays-layers      oc- ap-- pentagon the layers that the manifest lists, the first ones stored per node, over all neighbours
fanouts                     oce a--- triangle samples fewer neighbours
projected-fanouts           oce -p-- triangle samples fewer neighbours
stored-fanouts              oc- ap-- triangle samples fewer neighbours
stored-deeper-fanouts       --- ap-- triangle samples fewer neighbours
stored-deeper-following-fanouts -c- ap-- triangle samples fewer neighbours
given-fanouts               oce a--- triangle samples fewer neighbours
given-projected-fanouts     oce ap-- triangle samples fewer neighbours
program-fanouts             oce a--- triangle samples fewer neighbours
layers-fanouts              oce a--- triangle samples fewer neighbours
pruned-layers-fanouts       oce a--- triangle samples fewer neighbours
projected-layers-fanouts    oce -p-- triangle samples fewer neighbours
stored-layers-fanouts       --- ap-- triangle samples fewer neighbours
stored-following-layers-fanouts -c- ap-- triangle samples fewer neighbours
stored-overlays-layers-fanouts oc- ap-- triangle samples fewer neighbours
channels                    oc- a--- circle   reads feature columns; fewer hidden channels
channels-projected          oc- ap-- diamond  fewer hidden channels, first layer stored per node
channels-stored             oc- ap-- pentagon fewer hidden channels, a layer stored per node, over all neighbours
channels-stored-deeper-following -c- ap-- pentagon fewer hidden channels, a layer stored per node, made anew where the graph changes
channels-layers             oc- a--- circle   the layers that the manifest lists, fewer hidden channels, over all feature columns
channels-pruned-layers      oc- a--- circle   the layers that the manifest lists, fewer hidden channels, over the most important feature columns
channels-projected-layers   oc- ap-- diamond  the layers that the manifest lists, fewer hidden channels, what is of a node alone stored per node
channels-stored-following-layers -c- ap-- pentagon the layers that the manifest lists, fewer hidden channels, the first ones stored per node, made anew where the graph changes
channels-stored-overlays-layers oc- ap-- pentagon the layers that the manifest lists, fewer hidden channels, the first ones stored per node, over all neighbours
channels-fanouts            oc- a--- triangle samples fewer neighbours
channels-projected-fanouts  oc- ap-- triangle samples fewer neighbours
channels-stored-fanouts     oc- ap-- triangle samples fewer neighbours
channels-stored-deeper-following-fanouts -c- ap-- triangle samples fewer neighbours
channels-layers-fanouts     oc- a--- triangle samples fewer neighbours
channels-pruned-layers-fanouts oc- a--- triangle samples fewer neighbours
channels-projected-layers-fanouts oc- ap-- triangle samples fewer neighbours
channels-stored-following-layers-fanouts -c- ap-- triangle samples fewer neighbours
channels-stored-overlays-layers-fanouts oc- ap-- triangle samples fewer neighbours
one-row                     oc- ap-- pentagon a perceptron over the node's own features, one stored row
propagated-one-row          --- ap-- pentagon a perceptron over propagated features, one stored row
propagated-following-one-row -c- ap-- pentagon a perceptron over propagated features, one stored row
cascade                     oc- ap-- square   one variant answers, another one where it is not confident
following-cascade           -c- ap-- square   one variant answers, another one where it is not confident
stored-graph-cascade        --- ap-- square   one variant answers, another one where it is not confident
"""  # noqa: E501 - a line each
POINT_OF_ALL = [pytest.param(family, point, id=family) for family, point in POINTS.items()]


def letters(**said: bool) -> str:
    return "".join(name[0] if is_so else "-" for name, is_so in said.items())


def told(point: VariantPoint) -> str:
    able = point.capabilities
    given = letters(overlay=able.overlay, changes=able.changes, embeddings=able.embeddings)
    asked = letters(
        asked=point.is_asked_for, product=point.stores_product, widths=point.spans_widths,
        whole=point.stands_for_all_columns,
    )  # fmt: skip
    return f"{point.family:<27} {given} {asked} {shape_of(point):<8} {point.description}"


def test_all_that_was_said_of_families_follows_from_their_points_in_the_same_order() -> None:
    assert [told(point) for point in POINTS.values()] == BEFORE.strip().splitlines()


def test_no_two_points_have_one_family() -> None:
    assert len({*POINTS.values()}) == len(POINTS)
    assert [point.family for point in POINTS.values()] == list(POINTS)


@pytest.mark.parametrize(("family", "point"), POINT_OF_ALL)
def test_rules_of_the_axes_hold_at_every_point(family: str, point: VariantPoint) -> None:
    able = point.capabilities
    assert able.cover(STORED_GRAPH)
    assert able.changes >= able.overlay, "each needs more than the one before"
    if point.hops is HopAxis.PROPAGATED:
        assert able.overlay is (point is FOLDED), "neighbours are in the rows, but for embeddings"
    if point.rows in {RowAxis.HIDDEN, RowAxis.STAGES}:
        assert not able.embeddings, "rows are no features"
    if point.network is NetworkAxis.PERCEPTRON or point.channels is ChannelAxis.FEWER:
        assert not able.embeddings, "the hidden layer is not the model's"
    if point.hops is HopAxis.FEWER:
        base = replace(point, hops=HopAxis.SAMPLED)
        assert able == base.capabilities, "fewer neighbours are drawn of the same graph"
        assert POINTS[base.family] == base


STAGES = (PRUNED, ONE_ROW.propagated(), *(replace(STORED, follows=follows) for follows in FollowAxis))


@pytest.mark.parametrize(("first", "then"), [*product(STAGES, repeat=2)])
def test_a_cascade_takes_overlays_and_follows_changes_where_both_stages_do(
    first: VariantPoint, then: VariantPoint
) -> None:
    able, found = first.capabilities.both(then.capabilities), cascade_of(first, then)
    assert (found.capabilities.overlay, found.capabilities.changes) == (able.overlay, able.changes)
    assert replace(found, follows=CASCADE.follows) == CASCADE
    assert POINTS[found.family] == found


def test_files_of_earlier_releases_name_points_and_no_other_words() -> None:
    cascade = CascadeManifest("a-then-b-p5", CASCADE.family, "a", "b", 1.0, 0.5)
    written = msgspec.json.encode(cascade)
    assert msgspec.json.decode(written, type=CascadeManifest) == cascade
    with pytest.raises(msgspec.ValidationError, match=r"\^\(pruned\|.*\$\.family"):
        msgspec.json.decode(written.replace(b'"cascade"', b'"pruned-twice"'), type=CascadeManifest)


def test_names_that_revisions_have_are_read_as_points() -> None:
    assert POINTS["pruned"] == PRUNED
    assert POINTS["channels-projected-fanouts"] == replace(PROJECTED, channels=ChannelAxis.FEWER, hops=HopAxis.FEWER)
    assert POINTS["stored-deeper"] == replace(STORED, follows=FollowAxis.NOTHING)


def test_capabilities_cover_what_they_include() -> None:
    both = Capabilities(overlay=True, changes=True)

    assert both.cover(Capabilities(overlay=True))
    assert both.cover(both)
    assert both.both(Capabilities(overlay=True, embeddings=True)) == Capabilities(overlay=True)
    assert not both.cover(Capabilities(embeddings=True))


def test_what_a_request_needs_is_said_in_words() -> None:
    assert STORED_GRAPH.in_words() == ""
    assert Capabilities(embeddings=True).in_words() == "embeddings"
    assert Capabilities(overlay=True, embeddings=True).in_words("the") == "the overlay and embeddings"
