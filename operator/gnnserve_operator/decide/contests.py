"""Contests over children: names that another owner has, manifests that the API server refuses, changes of others that
the operator reverts, and a number of workers that both an autoscaler and a manifest set.

A child whose name is taken or that is refused cannot be applied; nor is one that depends on an object with another
owner: a worker must not mount a foreign claim.

A child that an autoscaler or a person changes is applied again as declared. That would be silent: the change seems to
have no effect. So an event names the field, both values, the manager, and the field of the spec in the place of it. A
change counts only if it is in the live object before the apply and no longer in the answer: the API server's own
normalisation, and entries of lists that other managers own, stay as they are.

An autoscaler writes the number of workers by the subresource scale. A manifest that has the field, too, sets it back
with every apply: by server-side apply (Flux, Argo CD), whose owner `metadata.managedFields` names, or by `kubectl
apply`, which keeps the manifest in an annotation. After each of their writes the field has one owner, so the last
autoscaler is remembered.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from gnnserve_api.spec.service import KIND
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.verdict import Problem, Verdict
from gnnserve_api.wording import in_words, sentence
from gnnserve_operator import kinds
from gnnserve_operator.decide.repository import least_storage
from gnnserve_operator.decide.status import WARNING, EventNote
from gnnserve_operator.desired.children import kinds_under
from gnnserve_operator.desired.metadata import ADOPT_ANNOTATION, APPLIED_ANNOTATION, MANAGER, Conflict
from gnnserve_operator.fleet import Stance, Standing
from gnnserve_operator.kinds import (
    CLAIM,
    GNNWORKERPOOL,
    FieldDifference,
    Manifest,
    ObjectRef,
    Path,
    ServiceKey,
    differences,
)
from gnnserve_operator.observed import ObservedState, Rejection

_NAMES_GOOD_S = 300.0
"""Seconds for which a name counts as free while a Job computes."""


def decide_appliable(refs: Iterable[ObjectRef], conflicts: Iterable[Conflict]) -> frozenset[ObjectRef]:
    """Children whose names are free, and which depend on no taken one."""
    taken = {conflict.ref for conflict in conflicts}
    all_refs = list(refs)
    taken_kinds = {ref.kind for ref in all_refs if ref in taken}
    return frozenset(ref for ref in all_refs if ref not in taken and kinds_under(ref.kind).isdisjoint(taken_kinds))


def may_begin(refs: Iterable[ObjectRef], to_come: Iterable[ObjectRef], observed: ObservedState) -> bool:
    """Whether a Job may begin: hours of training are lost on a service whose children cannot be made. A refusal of a
    child that is applied now says the same, but it is tried again with the Job, whose own refusal it may be."""
    taken = {conflict.ref for conflict in observed.conflicts}
    refused = {rejection.ref for rejection in observed.rejections}
    return taken.isdisjoint(refs) and refused.isdisjoint(to_come)


def decide_names_good_s(generation: Standing, *, begins: bool) -> float:
    """Seconds for which the name of a child to come counts as free, once no object was found there. While nothing is
    generated it counts as free until a Job is about to begin, so that a service at rest asks for nothing. `begins`: one
    is, and nothing hinders it."""
    if begins:
        return 0.0  # hours of training are lost where the name is taken
    return _NAMES_GOOD_S if generation.stance is Stance.UNDER_WAY else math.inf


def decide_obstacle(
    refs: Iterable[ObjectRef], service: str, observed: ObservedState, kind: str = KIND
) -> Problem | None:  # fmt: skip
    """The obstacle: all taken names at once; else the first refusal, in the order of the children. `service`, `kind`:
    of what has them."""
    conflicts = {conflict.ref: conflict for conflict in observed.conflicts}
    rejections = {rejection.ref: rejection for rejection in observed.rejections}
    wanted = list(refs)
    taken = [conflicts[ref] for ref in wanted if ref in conflicts]
    if taken:
        return _taken(taken, service, kind)
    refused = next((rejections[ref] for ref in wanted if ref in rejections), None)
    return None if refused is None else _refused(refused, observed)


def _taken(conflicts: list[Conflict], service: str, kind: str) -> Problem:
    retained = [conflict for conflict in conflicts if conflict.to_bring_back]
    others = [conflict for conflict in conflicts if not conflict.to_bring_back]
    said = [_words_of_retained(conflict, service, kind) for conflict in retained]
    if not others:
        return Problem(Reason.REPOSITORY_RETAINED, " ".join(said), needs_person=True)
    return Problem(Reason.NAME_TAKEN, " ".join([*_words_of_taken(others, service, kind), *said]), needs_person=True)


def _words_of_taken(conflicts: list[Conflict], service: str, kind: str) -> list[str]:
    free = [conflict.ref for conflict in conflicts if conflict.owner is None]
    owned = [conflict for conflict in conflicts if conflict.owner is not None]
    said = [
        f"{conflict.ref} exists already and belongs to {conflict.owner}, so it is left alone." for conflict in owned
    ]
    if free:
        exist, are = ("exist already and have", "they are") if free[1:] else ("exists already and has", "it is")
        said.append(f"{in_words([str(ref) for ref in free])} {exist} no owner, so {are} left alone.")
    those = "them" if conflicts[1:] else "it"
    said.append(f"Delete or rename {those}, or give {kind} {service} another name.")
    if free:
        which = those if not owned else "those that have no owner"
        said.append(f"To have it take over {which}, with what is in them: `{_adoption(free, service)}`.")
    return said


def _words_of_retained(conflict: Conflict, service: str, kind: str) -> str:
    """The way back to what is in the claim, and the way to begin anew: a new claim in its place would hide it."""
    claim = conflict.ref
    return (
        f"{claim} holds the repository of an earlier {kind} {service}, which was deleted: it is left alone, and none "
        f"is begun in its place. To go on with what is in it, delete this {kind} and make it again with "
        f"{conflict.to_bring_back}; or set no more than spec.updates.adopt, where that is among these, and have this "
        f"one take the claim over: `{_adoption([claim], conflict.owner_uid)}`. To begin anew, delete the claim, with "
        f"all that is in it: `kubectl delete -n {claim.namespace} {_kubectl_name(claim)}`."
    )


def _adoption(refs: list[ObjectRef], permission: str) -> str:
    names = " ".join(map(_kubectl_name, refs))
    return f"kubectl annotate -n {refs[0].namespace} {names} {ADOPT_ANNOTATION}={permission}"


def _kubectl_name(ref: ObjectRef) -> str:
    return f"{ref.kind.lower()}/{ref.name}"


def _refused(rejection: Rejection, observed: ObservedState) -> Problem:
    cure = "Change what it names in the spec, or what forbids it."
    least = least_storage(next((claim for claim in observed.claims if claim.name == rejection.ref.name), None))
    if rejection.ref.kind == CLAIM.name and least is not None:
        cure = (
            f"The claim has {least}: set spec.repository.claim.storage back to that, or have its storage class allow "
            "expansion."
        )
    message = f"The API server refuses {rejection.ref}: {sentence(rejection.message)}. {cure}"
    return Problem(Reason.CHILD_REFUSED, message, needs_person=True)


REVERTED = "ChangeReverted"
_LONGEST_VALUE = 60
_MOST_FIELDS = 3
"""Most fields of one object that an event names."""
_NOT_DECLARED = frozenset({("metadata", "uid"), ("metadata", "resourceVersion")})
"""Fields of an applied manifest that are preconditions of the apply."""
_CONTENT = frozenset({"data", "stringData", "binaryData"})
"""Fields whose values are never shown: they are long, and may be secret."""


@dataclass(frozen=True, slots=True)
class FieldManager:
    """The manager of a field, as `metadata.managedFields` names it."""

    name: str
    subresource: str = ""

    def __str__(self) -> str:
        if self.subresource == "scale":
            who = ", as autoscalers do" if self.name == "kube-controller-manager" else ""
            return f"{self.name} (by the subresource scale{who})"
        return self.name


@dataclass(frozen=True, slots=True)
class Revert:
    """A changed field of a child that is as declared again."""

    ref: ObjectRef
    field: str
    """Path of the field, as in `spec.replicas`."""
    found: str
    """Value that another set, in words."""
    declared: str
    manager: FieldManager | None = None
    """The manager that set it; None: it is not known, as of a field that was removed."""


def may_be_reverted(live: Manifest, digest: str) -> bool:
    """Whether a difference from the manifest of this digest is another's change: the operator has applied the same
    manifest before."""
    annotations = live["metadata"].get("annotations") or {}
    return bool(annotations.get(APPLIED_ANNOTATION) == digest)


def find_reverts(ref: ObjectRef, desired: Manifest, live: Manifest, applied: Manifest) -> tuple[Revert, ...]:
    """`live`: the object before the apply; `applied`: the API server's answer to it."""
    left = {difference.path for difference in differences(desired, applied)}
    return tuple(
        Revert(
            ref,
            _field(difference.path),
            _shown(difference, difference.found),
            _shown(difference, difference.declared),
            manager_of(live, difference.path),
        )
        for difference in differences(desired, live)
        if difference.path not in left and difference.path not in _NOT_DECLARED
    )


def manager_of(live: Manifest, path: Path) -> FieldManager | None:
    """The manager, other than the operator, that wrote the field last. None: none of them has it."""
    owners = [entry for entry in managers_of(live, path) if entry.get("manager") != MANAGER]
    newest = max(owners, key=lambda entry: str(entry.get("time") or ""), default=None)
    if newest is None:
        return None
    return FieldManager(str(newest.get("manager") or ""), str(newest.get("subresource") or ""))


def managers_of(live: Manifest, path: Path) -> list[Mapping[str, Any]]:
    """The entries of `metadata.managedFields` that have the field."""
    entries = live["metadata"].get("managedFields") or ()
    return [entry for entry in entries if _owns(entry.get("fieldsV1") or {}, path, live)]


def _owns(fields: Mapping[str, Any], path: Path, value: Any) -> bool:
    """Whether a set of fields, as `fieldsV1` writes it, has the field or a part of it. `value`: of what the set is."""
    for step in path:
        value = _below(value, step)
        below = next((found for name, found in fields.items() if _is_step(name, step, value)), None)
        if below is None:
            return False
        if not below:
            return True  # owned as a whole
        fields = below
    return True


def _below(value: Any, step: str | int) -> Any:
    if isinstance(step, int):
        return value[step] if isinstance(value, list) and step < len(value) else None
    return value.get(step) if isinstance(value, dict) else None


def _is_step(name: str, step: str | int, entry: Any) -> bool:
    """`entry`: what lies at the step; an entry of a list is named by its keys, or by its value."""
    if isinstance(step, str):
        return name == f"f:{step}"
    kind, _, text = name.partition(":")
    if kind not in {"k", "v"}:
        return False
    try:
        told = json.loads(text)
    except ValueError:
        return False
    if kind == "v":
        return bool(told == entry)
    return isinstance(entry, dict) and all(entry.get(key) == said for key, said in told.items())


def _field(path: Path) -> str:
    """The path as text: `spec.template.spec.containers[0].image`."""
    words = ""
    for step in path:
        if isinstance(step, int):
            words += f"[{step}]"
        elif re.fullmatch(r"[A-Za-z0-9_-]+", step):
            words += f".{step}" if words else step
        else:
            words += f"[{step}]"
    return words


def _shown(difference: FieldDifference, value: Any) -> str:
    path = difference.path
    if path and (path[0] in _CONTENT or (path[-1] == "value" and "env" in path)):
        return "a value that is not shown"
    if value in (None, ""):
        return "nothing"
    if isinstance(value, dict):
        return f"{len(value)} fields"
    if isinstance(value, list | tuple):
        return f"{len(value)} entries"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


# --- in words


@dataclass(frozen=True, slots=True)
class _Place:
    """The place in which a field of a child is set instead. In words: `{worker}` is the section about worker pods,
    `{owner}` the GNNService or GNNWorkerPool, `{scaled}` how kubectl names it, `{found}` the value, `{field}` the
    pattern's group."""

    kind: str
    field: str
    """Pattern of the field's path."""
    words: str


_PLACES = (
    _Place(
        kinds.DEPLOYMENT.name,
        r"spec\.replicas$",
        "Set {worker}.replicas of {owner} (`kubectl scale {scaled} --replicas={found}`); an autoscaler names {owner} "
        "in its scaleTargetRef, not the Deployment.",
    ),
    _Place(kinds.DEPLOYMENT.name, r".*\.image$", "Set spec.image of {owner}, or the images of the chart's values."),
    _Place(kinds.DEPLOYMENT.name, r".*\.imagePullSecrets", "Set spec.imagePullSecrets of {owner}."),
    _Place(kinds.DEPLOYMENT.name, r".*\.resources", "Set {worker}.resources of {owner}."),
    _Place(
        kinds.DEPLOYMENT.name,
        r"spec\.template\.spec\.(?P<field>nodeSelector|tolerations|affinity|topologySpreadConstraints|priorityClassName"
        r"|runtimeClassName)",
        "Set {worker}.{field} of {owner}.",
    ),
    _Place(kinds.DEPLOYMENT.name, r"spec\.template\.metadata\.labels", "Set {worker}.podLabels of {owner}."),
    _Place(kinds.DEPLOYMENT.name, r"spec\.template\.metadata\.annotations", "Set {worker}.podAnnotations of {owner}."),
    _Place(kinds.DEPLOYMENT.name, r"spec\.strategy", "Set {worker}.rollout of {owner}."),
    _Place(kinds.DEPLOYMENT.name, r".*\.env(\[|$)", "Set the chart's worker.extraEnv, which all workers have."),
    _Place(kinds.SERVICE.name, r"(spec|metadata\.annotations)", "Set spec.endpoint.service of the GNNService."),
    _Place(kinds.CLAIM.name, r"spec\.resources", "Set spec.repository.claim.storage of {owner}."),
    _Place(kinds.NETWORK_POLICY.name, r"", "Set the chart's networkPolicy values."),
    _Place(kinds.JOB.name, r"", "Set spec.generation of {owner}."),
    _Place(kinds.POD_MONITOR.name, r"", "Set spec.routing.intervalSeconds of the GNNService."),
    _Place(
        kinds.CONFIG_MAP.name,
        r"",
        "It follows from the spec of {owner}: objective, routing and worker.batching, or which services a pool has.",
    ),
)


def describe_reverts(owner: ServiceKey, reverts: Sequence[Revert], repeated: str = "") -> EventNote:
    """The event about reverts of one object. `repeated`: how often it was so before, as a sentence."""
    ref = reverts[0].ref
    managers = dict.fromkeys(str(revert.manager) for revert in reverts if revert.manager is not None)
    who = f" by {in_words(list(managers))}" if managers else ""
    fields = [f"{r.field} from {r.found} back to {r.declared}" for r in reverts[:_MOST_FIELDS]]
    more = f", and {len(reverts) - _MOST_FIELDS} more" if len(reverts) > _MOST_FIELDS else ""
    advice = dict.fromkeys(_advice(owner, revert) for revert in reverts)
    said = [
        f"{ref} was changed{who}, and is set back to what is declared: {'; '.join(fields)}{more}.",
        repeated,
        *advice,
    ]
    return EventNote(WARNING, REVERTED, " ".join(words for words in said if words))


def _advice(owner: ServiceKey, revert: Revert) -> str:
    values = {
        "worker": "spec" if owner.is_pool else "spec.worker",
        "owner": f"{owner.kind} {owner.name}",
        "scaled": f"-n {owner.namespace} {'gnnp' if owner.is_pool else 'gnns'}/{owner.name}",
        "found": revert.found,
    }
    for place, match in _matches(revert):
        return place.words.format(**values, **({"field": ""} | match.groupdict()))
    return f"It follows from the spec of {owner.kind} {owner.name}; no field of that sets it otherwise."


def _matches(revert: Revert) -> Iterator[tuple[_Place, re.Match[str]]]:
    for place in _PLACES:
        if place.kind == revert.ref.kind and (match := re.match(place.field, revert.field)) is not None:
            yield place, match


_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_GONE_AFTER = timedelta(hours=1)
_PEOPLE = "kubectl"
"""Begin of the manager's name where a person scales, which is done once."""


@dataclass(frozen=True, slots=True)
class ReplicasWriters:
    """The managers that set the number of workers of a GNNService or GNNWorkerPool; empty: none."""

    autoscaler: str = ""
    manifest: str = ""
    """Manager that applies a manifest with the field."""
    scaled_at: str = field(default="", compare=False)
    """When the autoscaler wrote last: RFC 3339 in UTC, which sorts as text. Empty: not known."""

    @property
    def are_two(self) -> bool:
        return bool(self.autoscaler and self.manifest)


NO_WRITERS = ReplicasWriters()


def find_writers(body: Manifest) -> ReplicasWriters:
    path = _path(body["kind"])
    autoscaler = manifest = scaled_at = ""
    for entry in managers_of(body, path):
        name = str(entry.get("manager") or "")
        if entry.get("subresource") == "scale":
            autoscaler = "" if name.startswith(_PEOPLE) else name
            scaled_at = str(entry.get("time") or "") if autoscaler else ""
        elif entry.get("operation") == "Apply":
            manifest = name
    if not manifest and _has(_applied(body), path):
        manifest = "kubectl apply"
    return ReplicasWriters(autoscaler, manifest, scaled_at)


def decide_replicas(owner: ServiceKey, writers: ReplicasWriters, now: datetime) -> Verdict | None:
    """Whether one writer alone sets the number of workers; None: no autoscaler does. Nothing tells that an
    autoscaler is deleted: without a write for an hour, while the manifest has the field, it counts as gone."""
    if not writers.autoscaler:
        return None
    path = ".".join(_path(owner.kind))
    if not writers.manifest:
        return Verdict(True, Reason.REPLICAS_SCALED, f"{path} is set by {writers.autoscaler} alone.")
    if writers.scaled_at and now - datetime.fromisoformat(writers.scaled_at) > _GONE_AFTER:
        words = f"{writers.autoscaler} set {path} at {writers.scaled_at}, and not since: the manifest's value stands."
        return Verdict(True, Reason.REPLICAS_DECLARED, words)
    return Verdict(
        False,
        Reason.REPLICAS_CONTESTED,
        f"{path} of {owner.kind} {owner.name} is set by {writers.autoscaler}, as autoscalers do, and by the manifest "
        f"that {writers.manifest} applies: each undoes what the other did. Take {path} out of the manifest, or delete "
        "the autoscaler.",
    )


def _path(kind: str) -> tuple[str, ...]:
    return ("spec", "replicas") if kind == GNNWORKERPOOL.name else ("spec", "worker", "replicas")


def _applied(body: Manifest) -> Any:
    try:
        return json.loads((body["metadata"].get("annotations") or {}).get(_APPLIED) or "null")
    except ValueError:
        return None


def _has(document: Any, path: tuple[str, ...]) -> bool:
    for step in path:
        if not isinstance(document, dict) or step not in document:
            return False
        document = document[step]
    return True


_AGAIN = timedelta(minutes=10)
"""Time after an event until further reverts of the same field are told."""

_Subject = tuple[ObjectRef, str, FieldManager | None]
"""Object, field and manager: what is told once in a while."""


@dataclass(slots=True)
class _RevertNote:
    at: datetime
    since: int = 0
    """Reverts that no event has told of."""


@dataclass(slots=True)
class RevertLog:
    """Reverts of this process: counted for metrics, and told by few events. An autoscaler that wants another number of
    workers changes the Deployment every 15 seconds; the first revert of a field is told at once, later ones of the same
    manager every ten minutes, with their number."""

    _untold: dict[ServiceKey, list[Revert]] = field(default_factory=dict)
    _told: dict[ServiceKey, dict[_Subject, _RevertNote]] = field(default_factory=dict)
    _counts: Counter[tuple[ServiceKey, str]] = field(default_factory=Counter)

    def note(self, key: ServiceKey, reverts: Iterable[Revert]) -> None:
        if not (found := tuple(reverts)):
            return
        self._untold.setdefault(key, []).extend(found)
        for ref in dict.fromkeys(revert.ref for revert in found):
            self._counts[key, ref.kind] += 1

    def take_events(self, key: ServiceKey, now: datetime) -> tuple[EventNote, ...]:
        """The events that are due about what was noted since the last call, one for each object."""
        told = self._told.setdefault(key, {})
        due: dict[ObjectRef, list[Revert]] = {}
        repeats: Counter[ObjectRef] = Counter()
        for revert in self._untold.pop(key, ()):
            subject = (revert.ref, revert.field, revert.manager)
            before = told.get(subject)
            if before is not None and now - before.at < _AGAIN:
                before.since += 1
                continue
            due.setdefault(revert.ref, []).append(revert)
            repeats[revert.ref] = max(repeats[revert.ref], 0 if before is None else before.since)
            told[subject] = _RevertNote(now)
        return tuple(describe_reverts(key, found, _words(repeats[ref])) for ref, found in due.items())

    def counts(self) -> Mapping[tuple[ServiceKey, str], int]:
        """Reverts by service or pool, and by the kind of the child."""
        return self._counts

    def forget(self, key: ServiceKey) -> None:
        self._untold.pop(key, None)
        self._told.pop(key, None)
        for counted in [counted for counted in self._counts if counted[0] == key]:
            del self._counts[counted]


def _words(repeats: int) -> str:
    return f"So it was {repeats} more times since the last event." if repeats else ""
