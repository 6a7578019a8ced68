"""Where the scheduler may put pods, in Kubernetes' own words: taints, affinity and spreading."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from gnnserve_api.spec.fields import ApiModel, text
from gnnserve_api.spec.labels import A_KEY, A_VALUE, LABEL_KEY, LABEL_KEY_LENGTH, LABEL_VALUE, LabelKey, Labels
from gnnserve_api.spec.rules import rule


class TolerationOperator(StrEnum):
    EXISTS = "Exists"
    """Any value of the key."""
    EQUAL = "Equal"
    """The stated value only."""


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    """Pods that do not tolerate it are not placed there."""
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    """Pods that do not tolerate it are rather placed elsewhere."""
    NO_EXECUTE = "NoExecute"
    """Pods that do not tolerate it are evicted."""


class Toleration(ApiModel):
    key: Annotated[str, text(rf"^({LABEL_KEY})?$", A_KEY, LABEL_KEY_LENGTH)] | None = None
    """Key of the taint that is tolerated. Absent: every taint."""
    operator: TolerationOperator = TolerationOperator.EQUAL
    """Comparison of `value` with the value of the taint."""
    value: Annotated[str, text(rf"^{LABEL_VALUE}$", A_VALUE, 63)] | None = None
    """Value of the taint that is tolerated. Absent: the empty one, and any with operator Exists."""
    effect: TaintEffect | None = None
    """Effect of the taint that is tolerated. Absent: every effect."""

    _key_is_given_where_values_are_compared = rule(
        "self.operator == 'Exists' || (has(self.key) && self.key != '')", "key may be absent with operator Exists only"
    )

    _value_is_of_use = rule(
        "self.operator != 'Exists' || !has(self.value) || self.value == ''",
        "value must not be set with operator Exists, which takes any value",
    )


class LabelOperator(StrEnum):
    IN = "In"
    """The label has one of the values."""
    NOT_IN = "NotIn"
    """The label is missing, or has none of the values."""
    EXISTS = "Exists"
    """The label is there."""
    DOES_NOT_EXIST = "DoesNotExist"
    """The label is missing."""


class NodeOperator(StrEnum):
    IN = "In"
    """The label has one of the values."""
    NOT_IN = "NotIn"
    """The label is missing, or has none of the values."""
    EXISTS = "Exists"
    """The label is there."""
    DOES_NOT_EXIST = "DoesNotExist"
    """The label is missing."""
    GREATER = "Gt"
    """The label is an integer above the value."""
    LESS = "Lt"
    """The label is an integer below the value."""


_LabelValues = Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(max_length=64)]


class LabelRequirement(ApiModel):
    key: LabelKey
    """Name of the label that is compared."""
    operator: LabelOperator
    """Comparison of the label with `values`."""
    values: _LabelValues = ()
    """Values that the label is compared with. Empty: the operator takes none."""

    _values_are_compared = rule(
        "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
        "values must be given with operators In and NotIn, and only there",
    )


class NodeRequirement(ApiModel):
    key: LabelKey
    """Name of the node's label that is compared."""
    operator: NodeOperator
    """Comparison of the label with `values`."""
    values: _LabelValues = ()
    """Values that the label is compared with. Empty: the operator takes none."""

    _values_are_compared = rule(
        "(self.operator in ['Exists', 'DoesNotExist']) != (has(self.values) && size(self.values) > 0)",
        "values must be given, but for operators Exists and DoesNotExist",
    )

    _bounds_are_integers = rule(
        "!(self.operator in ['Gt', 'Lt']) || !has(self.values) || "
        "(size(self.values) == 1 && self.values[0].matches('^-?[0-9]+$'))",
        "values must be one integer with operators Gt and Lt",
    )


class LabelSelector(ApiModel):
    match_labels: Labels = {}  # noqa: RUF012 - pydantic copies it
    """Labels with the values that selected objects must have. Absent: none."""
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=16)] = ()
    """Further requirements on labels, all of which selected objects must meet. Absent: none."""


class NodeSelectorTerm(ApiModel):
    match_expressions: Annotated[tuple[NodeRequirement, ...], Field(min_length=1, max_length=16)]
    """Requirements on labels, all of which a node must meet."""


class RequiredNodes(ApiModel):
    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], Field(min_length=1, max_length=16)]
    """Terms of requirements, one of which a node must meet."""


_Weight = Annotated[int, Field(ge=1, le=100)]


class PreferredNodes(ApiModel):
    weight: _Weight
    """Weight of the preference against the others, from 1 to 100."""
    preference: NodeSelectorTerm
    """Requirements that a preferred node meets."""


_PreferredNodes = Annotated[tuple[PreferredNodes, ...], Field(max_length=16)]


class NodeAffinity(ApiModel):
    """Requirements and preferences of nodes by labels."""

    required_during_scheduling_ignored_during_execution: RequiredNodes | None = None
    """Nodes that a pod may be placed on. Absent: every node."""
    preferred_during_scheduling_ignored_during_execution: _PreferredNodes = ()
    """Nodes that a pod is rather placed on. Absent: none."""


class PodAffinityTerm(ApiModel):
    label_selector: LabelSelector
    """Selector of the other pods. Workers of a service have the labels `gnnserve.dev/service: <its name>` and
    `app.kubernetes.io/component: worker`."""
    topology_key: LabelKey
    """Name of a label of nodes, as in kubernetes.io/hostname; nodes with the same value are one place."""
    namespaces: Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(max_length=16)] = ()
    """Namespaces of the other pods. Absent: the service's own, unless namespaceSelector is given."""
    namespace_selector: LabelSelector | None = None
    """Selector of further namespaces of the other pods; `{}` selects all. Absent: none."""
    match_label_keys: Annotated[tuple[LabelKey, ...], Field(max_length=8)] = ()
    """Names of labels in which the other pods must equal the pod that is placed, as in pod-template-hash. Absent: none.
    """


class PreferredPods(ApiModel):
    weight: _Weight
    """Weight of the preference against the others, from 1 to 100."""
    pod_affinity_term: PodAffinityTerm
    """Other pods, and the label that tells places apart."""


_RequiredPods = Annotated[tuple[PodAffinityTerm, ...], Field(max_length=16)]
_PreferredPods = Annotated[tuple[PreferredPods, ...], Field(max_length=16)]


class PodAffinity(ApiModel):
    """Requirements and preferences of places by the pods there."""

    required_during_scheduling_ignored_during_execution: _RequiredPods = ()
    """Terms that a place must meet, by the pods there. Absent: none."""
    preferred_during_scheduling_ignored_during_execution: _PreferredPods = ()
    """Terms that a preferred place meets, by the pods there. Absent: none."""


class Affinity(ApiModel):
    node_affinity: NodeAffinity | None = None
    """Nodes that pods need or prefer. Absent: any node."""
    pod_affinity: PodAffinity | None = None
    """Other pods that pods are placed beside. Absent: none."""
    pod_anti_affinity: PodAffinity | None = None
    """Other pods that pods are kept away from. Absent: none."""


class WhenUnsatisfiable(StrEnum):
    DO_NOT_SCHEDULE = "DoNotSchedule"
    """The pod waits."""
    SCHEDULE_ANYWAY = "ScheduleAnyway"
    """The pod is placed where it is least uneven."""


class SpreadNodes(StrEnum):
    HONOR = "Honor"
    """Nodes that a pod may not be placed on do not count."""
    IGNORE = "Ignore"
    """All nodes count."""


class TopologySpreadConstraint(ApiModel):
    """Constraint on how workers are spread over places. The pods that are counted are always the workers of this
    service, of one pod template."""

    topology_key: LabelKey
    """Name of a label of nodes, as in topology.kubernetes.io/zone; nodes with the same value are one place."""
    when_unsatisfiable: WhenUnsatisfiable
    """Treatment of a pod that would make the spread too uneven."""
    max_skew: Annotated[int, Field(ge=1, le=1000)] = 1
    """Largest difference in the number of workers between two places."""
    min_domains: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Smallest number of places; with fewer, the missing ones count as empty. Absent: 1."""
    node_affinity_policy: SpreadNodes | None = None
    """Whether nodes count that affinity and nodeSelector exclude. Absent: Honor."""
    node_taints_policy: SpreadNodes | None = None
    """Whether nodes count whose taints are not tolerated. Absent: Ignore."""

    _missing_places_count_where_pods_wait = rule(
        "!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
        "minDomains may be given with whenUnsatisfiable DoNotSchedule only",
    )


def _check_once(constraints: tuple[TopologySpreadConstraint, ...]) -> tuple[TopologySpreadConstraint, ...]:
    seen = set()
    for constraint in constraints:
        key = (constraint.topology_key, constraint.when_unsatisfiable)
        if key in seen:
            raise ValueError(f"must have {' with '.join(key)} once")
        seen.add(key)
    return constraints


TopologySpreadConstraints = Annotated[
    tuple[TopologySpreadConstraint, ...],
    Field(
        max_length=8,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["topologyKey", "whenUnsatisfiable"],
        },
    ),
    AfterValidator(_check_once),
]
