"""Where a revision comes from and how it was made: what a person asks before they trust its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from gnnserve_api.families import point_of
from gnnserve_api.files.edges import EdgeRules
from gnnserve_api.files.factors import ChosenFactors
from gnnserve_api.files.given_weights import UNKNOWN_ASSUMPTIONS, ComparedScores, LabelMisfit
from gnnserve_api.files.graph_schema import RelationManifest
from gnnserve_api.files.profile import Count
from gnnserve_api.files.repository import NetworkManifest, RevisionManifest, VariantManifest
from gnnserve_api.files.stability import RankStability, rank_stability
from gnnserve_api.files.training import TrainingManifest


class Provenance(msgspec.Struct, frozen=True, rename="camel"):
    created_at: Annotated[str, Meta(description="When the revision was published: UTC, RFC 3339.")]
    generator: Annotated[str, Meta(description="What made it, with versions.")]
    graph: Annotated[str, Meta(description="Digest of the graph.")]
    source: Annotated[str, Meta(description="Where the graph came from.")]
    edges: Count
    """Edges of the graph."""
    train_nodes: Count
    """Nodes that training learnt from."""
    scope: Annotated[str, Meta(description="Inductive or Transductive: what training could see.")]
    checkpoint: Annotated[str | None, Meta(description="SHA-256 of spec.model.checkpoint; null: there is none.")]
    network: NetworkManifest
    """The network: architecture, layers and fan-outs."""
    ranking_method: Annotated[str, Meta(description="How feature columns were ranked; None: they were not.")]
    ranking_settings: dict[str, float]
    """Numbers that shaped the ranking."""
    stability: Annotated[
        RankStability | None,
        Meta(description="How far the ranking depends on its seed; null without spec.variants.pruning.stabilitySeeds."),
    ]
    training: Annotated[
        TrainingManifest | None,
        Meta(
            description="How long the networks were trained; null with given weights, with "
            "embeddings of which nothing is learnt, and from earlier versions."
        ),
    ] = None
    model: Annotated[str, Meta(description="Digest of all weights; empty from earlier versions.")] = ""
    given: Annotated[
        dict[str, str], Meta(description="SHA-256 of the file of each variant of spec.variants.given, by its name.")
    ] = {}

    thresholds: Annotated[
        dict[str, tuple[float, ...]],
        Meta(
            description="With spec.variants.thresholds: PerClass, for each variant what is taken from the score of "
            "each class before labels are decided. Scores are told as they are."
        ),
    ] = {}

    relation_fanouts: Annotated[
        dict[str, tuple[int, ...]],
        Meta(
            description="In a graph of several types, relations of which fewer neighbours are sampled than the "
            "network's fanouts say (spec.model.relationFanouts), and how many, the seed's draw first. Variants with "
            "fewer neighbours sample at most as many."
        ),
    ] = {}

    edge_rules: Annotated[
        EdgeRules | None,
        Meta(
            description="How edges of the source became neighbour lists, and how those of changes and overlays do: "
            "direction, duplicates, selfLoops. null where nodes are of several types, whose `relations` say it, and "
            "from earlier versions, whose revisions take no edges."
        ),
    ] = None

    assumptions: Annotated[
        dict[str, str],
        Meta(
            description="What was assumed of weights that were trained elsewhere, since their files do not tell it, by "
            'name (`activation`, `aggregation`, …). `{"everything": "unknown"}`: an earlier version made the revision. '
            "Empty: all weights were trained here."
        ),
    ] = {}
    compared: Annotated[
        tuple[ComparedScores, ...],
        Meta(description="Expected scores that such weights were held against before the revision was published."),
    ] = ()

    label_misfits: Annotated[
        tuple[LabelMisfit, ...],
        Meta(
            description="Variants of such weights that fit the labels of validation nodes no better than the most "
            "frequent class, or far better with their output columns in another order."
        ),
    ] = ()

    chosen_factors: Annotated[
        ChosenFactors | None,
        Meta(
            description="Which factors were left out with spec.variants.pruning.choice: Auto, and why; null: every one "
            "that is listed was made."
        ),
    ] = None

    @property
    def has_given_weights(self) -> bool:
        """Whether some weights were trained elsewhere, by nodes that are not known."""
        return self.checkpoint is not None or bool(self.given)


def provenance_of(
    manifest: RevisionManifest, source: str, edges: int, train_nodes: int, relations: Sequence[RelationManifest] = ()
) -> Provenance:
    """`source`, `edges`, `train_nodes`, `relations`: of the graph. Compares orders of all columns: once is enough."""
    ranking = manifest.ranking
    return Provenance(
        created_at=manifest.created_at,
        generator=manifest.generator,
        graph=manifest.graph,
        source=source,
        edges=edges,
        train_nodes=train_nodes,
        scope=manifest.scope,
        checkpoint=manifest.checkpoint,
        network=manifest.variants[0].network,
        ranking_method=ranking.method,
        ranking_settings=ranking.settings,
        stability=rank_stability(
            ranking.columns,
            [(run.seed, run.columns) for run in ranking.others],
            [variant.columns for variant in manifest.profile.variants if point_of(variant).spans_widths],
        ),
        training=manifest.training,
        model=manifest.model,
        given=manifest.given,
        assumptions=_assumptions(manifest),
        compared=() if manifest.compared is UNSET else manifest.compared,
        label_misfits=() if manifest.label_misfits is UNSET else manifest.label_misfits,
        thresholds={
            variant.name: variant.thresholds for variant in manifest.variants if variant.thresholds is not None
        },
        chosen_factors=None if ranking.chosen is UNSET else ranking.chosen,
        relation_fanouts=_relation_fanouts(manifest.variants[0], relations),
        edge_rules=manifest.edge_rules,
    )


def _assumptions(manifest: RevisionManifest) -> dict[str, str]:
    if manifest.assumptions is not UNSET:
        return manifest.assumptions
    return dict(UNKNOWN_ASSUMPTIONS) if manifest.checkpoint is not None or manifest.given else {}


def _relation_fanouts(whole: VariantManifest, relations: Sequence[RelationManifest]) -> dict[str, tuple[int, ...]]:
    """`whole`: a variant that computes all layers."""
    if whole.relation_fanouts is UNSET:
        return {}
    listed = zip(relations, whole.relation_fanouts, strict=False)
    return {relation.key: fanouts for relation, fanouts in listed if fanouts != whole.fanouts}
