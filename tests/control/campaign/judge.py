"""What must hold at every moment, and what a run leaves behind: the oracles of the campaign.

Each violation is a sentence. What the end and the history are compared with is a run of the same scene in peace.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.control.campaign.control_plane import ControlPlane, revision_of
from tests.support.kubernetes.api_server import Request
from tests.support.kubernetes.fake_cluster import FakeCluster

from gnnserve_api.pods.routing import ROUTING_KEY, Route, RoutingMode
from gnnserve_api.spec.service import GNNService
from gnnserve_operator.decide.contests import REVERTED
from gnnserve_operator.desired.metadata import (
    APPLIED_ANNOTATION,
    BRING_BACK_ANNOTATION,
    CLAIM_ANNOTATION,
    COMPONENT,
    DIGEST_ANNOTATION,
    OWNER_UID,
    REPAIR_ANNOTATION,
    TEMPLATE_ANNOTATION,
    TERM_ANNOTATION,
    WAITS_ANNOTATION,
    Component,
    digest_of,
    owner_of,
)
from gnnserve_operator.desired.routing import routing_digest
from gnnserve_operator.kinds import CLAIM, ServiceKey, parse_service

Manifest = dict[str, Any]
_NOT_COMPARED = {"Event", "ReplicaSet", "Pod"}
_OF_THE_SERVER = {"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"}
_POD_NAME = re.compile(r"(-worker-[0-9a-f]{8}|-generate-[0-9a-f]{8})-\d+")
_CLAIM_NUMBER = re.compile(r"(-repository)-\d+|(-generate|-worker)-[0-9a-f]{8}")
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DELETED_AT = re.compile(r'"deletionTimestamp": "[^"]*"')
_REPAIR = re.compile(r'"repair":\d+,')
_GENERATING = re.compile(
    r"(?:^|[.)] )Job (\S+) (?:generates the revision|looks up revision|compacts the log of changes)"
)
_CLAIM_STAYS = re.compile(r"^PersistentVolumeClaim (\S+) is there, and not being deleted")
"""Message about a claim that the operator made; a user's claim is looked at with each resync only."""
_DELETED_BY_OPERATOR = {"Job", "NetworkPolicy", "PodMonitor"}
"""Nothing else is ever deleted by it."""


@dataclass(frozen=True, slots=True)
class History:
    """How often each object was made, and each one deleted by the operator; pods by what they are of."""

    made: Mapping[tuple[str, str], int]
    deleted: Mapping[tuple[str, str], int]

    def since(self, earlier: History) -> History:
        return History(_less(self.made, earlier.made), _less(self.deleted, earlier.deleted))

    def and_then(self, later: History) -> History:
        return History(_more(self.made, later.made), _more(self.deleted, later.deleted))

    def without_numbers(self) -> History:
        """Names of claims without their number, and what follows from these."""
        made, deleted = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for ours, summed in ((self.made, made), (self.deleted, deleted)):
            for (kind, name), count in ours.items():
                summed[kind, _without_numbers(name)] += count
        return History(made, deleted)

    def excess(
        self, peaceful: History, pardoned: tuple[str, str] | None, timed: Mapping[str, int]
    ) -> list[str]:  # fmt: skip
        """What was made or deleted more often than in peace. `pardoned` may have been made once more, and deleted once
        more if it is of no use; `timed`: how many more of a kind are allowed."""
        found = []
        for word, ours, theirs in (("made", self.made, peaceful.made), ("deleted", self.deleted, peaceful.deleted)):
            for (kind, name), count in ours.items():
                usual = theirs.get((kind, name), 0)
                if count > usual + timed.get(kind, 0) + ((kind, name) == pardoned):
                    found.append(f"{kind} {name} was {word} {count} times, {usual} in peace")
        return sorted(found)


@dataclass(slots=True)
class Judge:
    cluster: FakeCluster
    plane: ControlPlane
    violations: list[str] = field(default_factory=list)
    guarded: str | None = None
    """The revision that must go on answering, or one with a newer graph, whatever happens; None: nothing is promised
    now."""
    deleted: Counter[tuple[str, str]] = field(default_factory=Counter)
    written: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often the operator wrote each object, its status apart."""
    _parsed: dict[tuple[str, int], GNNService | str] = field(default_factory=dict)
    _texts: dict[tuple[str, str], str] = field(default_factory=dict)
    """Objects as the state has them, but with uids, by uid and version."""

    def accuse(self, words: str) -> None:
        if words not in self.violations:
            self.violations.append(words)

    # --- at every moment

    def look(self, *, is_busy: bool, may_miss: bool = False) -> None:
        """`is_busy`: the operator is about to look again, or has not been told of everything yet. `may_miss`: a change
        may never be told, until the watches are compared with what is there."""
        for service in self.plane.of_kind("GNNService"):
            status, metadata = service.get("status") or {}, service["metadata"]
            observed = status.get("observedGeneration") or 0
            if observed > metadata["generation"]:
                self.accuse(f"observedGeneration {observed} is ahead of generation {metadata['generation']}")
            if not is_busy and (lie := self.lie_of(service)) is not None:
                self.accuse(f"Ready is True, but {lie}")
            if not (is_busy or may_miss) and (untold := self.untold_availability_of(service)) is not None:
                self.accuse(untold)
            if (
                not (is_busy or may_miss)
                and observed == metadata["generation"]
                and (untruth := self._untruth_of(status)) is not None
            ):
                self.accuse(untruth)
            if (false_revert := self._false_revert()) is not None:
                self.accuse(false_revert)
            if self.guarded is not None:
                key = ServiceKey(metadata["namespace"], metadata["name"])
                routes = self.plane.endpoint_routes(key)
                if not routes or any(route is None or not _is_of(route.revision, self.guarded) for route in routes):
                    self.accuse(f"the old revision {self.guarded} stopped answering")
        for job in self.plane.of_kind("Job"):
            if job["metadata"]["uid"] in self.plane.held_jobs and not job["spec"].get("suspend"):
                self.accuse(f"Job {job['metadata']['name']} was let go, and another holds it")

    def untold_availability_of(self, service: Manifest) -> str | None:
        """Why Available is not true, or is not told though requests are answered; None: it is as it is told."""
        metadata = service["metadata"]
        conditions = (service.get("status") or {}).get("conditions") or ()
        if not conditions:
            return None
        told = next((found for found in conditions if found["type"] == "Available"), None)
        if told is None:
            return "Available is not told"
        routes = self.plane.endpoint_routes(ServiceKey(metadata["namespace"], metadata["name"]))
        answers = any(route is not None for route in routes)
        if told["status"] == "True" and not answers:
            return f"Available is True, and nothing answers: {told['message']}"
        if told["status"] != "True" and answers:
            return f"Available is {told['status']}, and requests are answered: {told['message']}"
        return None

    def _false_revert(self) -> str | None:
        """The event of a revert of what nobody changed; None: there is none."""
        for event in self.plane.of_kind("Event"):
            if event["reason"] == REVERTED:
                kind, name = event["message"].split()[:2]
                if (kind, name) not in self.cluster.edited:
                    return f"nobody changed it, but an event says: {event['message']}"
        return None

    def lie_of(self, service: Manifest) -> str | None:  # noqa: PLR0911 - a ladder, one rung a lie
        """Why Ready=True of this generation is not true; None: it is, or is not said."""
        status, metadata = service.get("status") or {}, service["metadata"]
        if status.get("observedGeneration") != metadata["generation"] or not _says(status, "Ready"):
            return None
        parsed = self._parse(service)
        if isinstance(parsed, str):
            return f"the spec is invalid: {parsed}"
        spec = parsed.spec
        if spec.suspend or spec.worker.replicas == 0:
            return "no worker is wanted"
        routes = self.plane.endpoint_routes(ServiceKey(metadata["namespace"], metadata["name"]))
        if not routes:
            return "nobody answers"
        wanted = spec.routing_table(revision_of(spec.revision or spec.recipe()))
        for route in routes:
            if route is None:
                return "a ready worker has no answer"
            said = (route.objective, route.batching, route.mode)
            is_so = said == (wanted.objective, wanted.batching, wanted.mode)
            if not is_so or not _is_of(route.revision, wanted.revision):
                return f"a worker answers from {_shown(route)}, and {wanted.revision} is declared"
            if wanted.mode is RoutingMode.STATIC and route.base_variant != wanted.base_variant:
                return f"a worker answers by variant {route.base_variant}, not {wanted.base_variant}"
        images = {pod["spec"]["containers"][0]["image"] for pod in self.plane.ready_workers(
            ServiceKey(metadata["namespace"], metadata["name"]))}  # fmt: skip
        if spec.image is not None and images != {spec.image}:
            return f"workers run {sorted(images)}, and {spec.image} is declared"
        return None

    def _untruth_of(self, status: Manifest) -> str | None:
        """A sentence of the conditions about Jobs or claims that is not so."""
        there = {found["metadata"]["name"]: found for kind in ("Job", "PersistentVolumeClaim")
                 for found in self.plane.of_kind(kind)}  # fmt: skip
        staying = {name for name, found in there.items() if not found["metadata"].get("deletionTimestamp")}
        for condition in status.get("conditions") or ():
            message = condition["message"]
            job = _GENERATING.search(message)
            if job is not None and job[1] not in staying:
                return f"{condition['type']} says {message!r}, and that Job is not there"
            claim = _CLAIM_STAYS.search(message)
            if claim is not None and claim[1] not in staying:
                return f"{condition['type']} says {message!r}, and it is not"
            if "The data is kept" in message and not any(
                staying_claim in staying for staying_claim in self._claims_of_revisions()
            ):
                return f"{condition['type']} says {message!r}, and no claim with a revision stays"
        return None

    def _claims_of_revisions(self) -> list[str]:
        return [
            found["metadata"]["name"] for found in self.plane.of_kind("PersistentVolumeClaim")
            if self.plane.repositories.get(found["metadata"]["uid"])
        ]  # fmt: skip

    def note_write(self, request: Request, kind: str, name: str, *, is_strict: bool) -> None:
        """After a write of the operator that was carried out."""
        if request.method == "DELETE":
            self.deleted[kind, name] += 1
            if kind not in _DELETED_BY_OPERATOR:
                self.accuse(f"the operator deleted {kind} {name}")
        is_status = request.method == "PATCH" and request.path.endswith("/status")
        self.written[kind, name] += request.method == "PATCH" and not is_status
        found = next((s for s in self.plane.of_kind("GNNService") if s["metadata"]["name"] == name), None)
        if not (is_status and is_strict) or found is None:
            return
        written = (request.body or {}).get("status") or {}
        if _says(written, "Ready") and (lie := self.lie_of(found)) is not None:
            self.accuse(f"Ready=True was written, but {lie}")
        if _says(written, "Available") and (untold := self.untold_availability_of(found)) is not None:
            self.accuse(f"Available=True was written: {untold}")

    def _parse(self, service: Manifest) -> GNNService | str:
        key = (service["metadata"]["uid"], service["metadata"]["generation"])
        if key not in self._parsed:
            self._parsed[key] = parse_service(service)
        return self._parsed[key]

    # --- at the end

    def history(self) -> History:
        made: Counter[tuple[str, str]] = Counter()
        for change in self.cluster.history:
            kind, metadata = change.object["kind"], change.object["metadata"]
            if change.type != "ADDED" or kind in {"Event", "ReplicaSet", "GNNService"}:
                continue
            name = metadata["name"]
            if kind == "Pod":
                name = _POD_NAME.sub(r"\1", name)
            made[kind, name] += 1
        return History(made, dict(self.deleted))

    def told(self) -> frozenset[str]:
        """Reasons of the events that there are."""
        return frozenset(event["reason"] for event in self.plane.of_kind("Event"))

    def state(self) -> list[str]:
        """As `end_state`, in the midst of a run: pods one by one, and what is being deleted."""
        uids, texts = self._uids(), []
        for found in self._objects():
            if found["kind"] == "Pod":
                texts.append(f"{_pod_words(found)}{' going' * ('deletionTimestamp' in found['metadata'])}")
            elif found["kind"] not in _NOT_COMPARED:
                version = found["metadata"]["uid"], found["metadata"]["resourceVersion"]
                if version not in self._texts:
                    self._texts[version] = _going(json.dumps(_normal(found, lambda uid: uid), sort_keys=True))
                texts.append(self._texts[version])
        return [_UID.sub(lambda uid: uids.get(uid[0], "gone"), text) for text in sorted(texts)]

    def end_state(self) -> dict[str, Any]:
        """Everything but what differs from run to run: uids, versions, times, names of pods."""
        uids = self._uids()
        state: dict[str, Any] = {}
        pods: Counter[str] = Counter()
        for found in self._objects():
            kind, metadata = found["kind"], found["metadata"]
            if kind == "Pod":
                pods[_pod_words(found)] += 1
            elif kind not in _NOT_COMPARED:
                state[f"{kind} {metadata['namespace']}/{metadata['name']}"] = _normal(
                    found, lambda uid: uids.get(uid, "gone")
                )
        return state | {"pods": dict(sorted(pods.items()))}

    def leftovers(self, services: Iterable[str]) -> list[str]:
        """What is there of services that are not."""
        return [
            f"{found['kind']} {found['metadata']['name']}" for found in self._objects()
            if found["kind"] != "Event" and not _is_retained(found)
            and (found["metadata"].get("labels") or {}).get("gnnserve.dev/service", "") not in {"", *services}
        ]  # fmt: skip

    def _uids(self) -> dict[str, str]:
        """Kind and name by uid."""
        return {found["metadata"]["uid"]: f"{found['kind']} {found['metadata']['name']}" for found in self._objects()}

    def _objects(self) -> list[Manifest]:
        return list(self.cluster.objects.values())


def _less(ours: Mapping[tuple[str, str], int], theirs: Mapping[tuple[str, str], int]) -> Mapping[tuple[str, str], int]:
    return {what: count - theirs.get(what, 0) for what, count in ours.items()}


def _more(ours: Mapping[tuple[str, str], int], theirs: Mapping[tuple[str, str], int]) -> Mapping[tuple[str, str], int]:
    return {what: ours.get(what, 0) + theirs.get(what, 0) for what in ours.keys() | theirs.keys()}


def _is_retained(found: Manifest) -> bool:
    owner = owner_of(found)
    return owner is not None and not owner.is_bound


def without_generation(end: Mapping[str, Any]) -> dict[str, Any]:
    """An end state less Jobs and their pods: where the ConfigMap tells the revision, they need not be there."""
    pods = {words: count for words, count in end["pods"].items() if " generation " not in words}
    return {name: value for name, value in end.items() if not name.startswith("Job ")} | {"pods": pods}


def without_late_claim(
    end: Mapping[str, Any], peaceful: Mapping[str, Any], late: tuple[str, str] | None
) -> Mapping[str, Any]:
    """An end state less the claim, kind and name in `late`, that a leader which was overtaken made late. It stays where
    another one is in use: the operator deletes no claim."""
    if late is None or late[0] != CLAIM.name:
        return end
    left = f"{late[0]} default/{late[1]}"
    return {name: value for name, value in end.items() if name in peaceful or name != left}


def without_numbers(end: Mapping[str, Any]) -> dict[str, Any]:
    """An end state whose claims have no number, nor what is named after a claim its digest."""
    found: dict[str, Any] = {}
    for name, value in end.items():
        short, short_value = json.loads(_without_numbers(json.dumps([name, value])))
        if short.startswith("Deployment "):
            # It names the claim where an earlier one had the same name.
            (short_value["spec"]["template"]["metadata"].get("annotations") or {}).pop(CLAIM_ANNOTATION, None)
        while short in found:
            short += " again"
        found[short] = short_value
    return found


def without_repair(end: Mapping[str, Any]) -> dict[str, Any]:
    """An end state whose routing table does not tell how often the revision was repaired."""
    return {
        name: {**value, "data": {**value["data"], ROUTING_KEY: _REPAIR.sub("", value["data"][ROUTING_KEY])}}
        if name.startswith("ConfigMap ") else value
        for name, value in end.items()
    }  # fmt: skip


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Between two end states, the first being the disturbed one."""
    found = []
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours:
            found.append(f"{name} is missing at the end")
        elif name not in theirs:
            found.append(f"{name} is there at the end, and not in peace")
        elif ours[name] != theirs[name]:
            found.append(f"{name} differs at the end: {_first_difference(ours[name], theirs[name])}")
    return found


def _first_difference(ours: Any, theirs: Any, path: str = "") -> str:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in sorted(ours.keys() | theirs.keys(), key=str):
            if ours.get(name) != theirs.get(name):
                return _first_difference(ours.get(name), theirs.get(name), f"{path}.{name}")
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            if pair[0] != pair[1]:
                return _first_difference(*pair, f"{path}[{number}]")
    return f"{path} is {json.dumps(ours)[:300]}, in peace {json.dumps(theirs)[:300]}"


def _without_numbers(text: str) -> str:
    return _CLAIM_NUMBER.sub(lambda found: found[1] or found[2], text)


def _is_of(revision: str, first: str) -> bool:
    """Whether a revision is of the recipe of the one that is made of the source: that one, or one whose graph has
    changes."""
    return revision == first or revision.startswith(f"{first}-")


def _says(status: Mapping[str, Any], kind: str) -> bool:
    """Whether the condition is told to be true."""
    return any((c["type"], c["status"]) == (kind, "True") for c in status.get("conditions") or ())


def _shown(route: Route) -> str:
    return f"{route.revision} with {route.objective}, {route.mode.value}"


def _pod_words(pod: Manifest) -> str:
    labels, spec = pod["metadata"]["labels"], pod["spec"]
    component = labels.get(COMPONENT, "")
    states = [next(iter(s.get("state") or {}), "") for s in (pod.get("status") or {}).get("containerStatuses") or ()]
    ready = any((c["type"], c["status"]) == ("Ready", "True") for c in (pod["status"].get("conditions") or ()))
    image = spec["containers"][0].get("image", "")  # those of others may have none
    words = (component, image, pod["status"]["phase"], *states, "ready" if ready else "")
    return (
        " ".join(words) if component == Component.WORKER else f"{labels.get('gnnserve.dev/recipe')} " + " ".join(words)
    )


def _going(text: str) -> str:
    return _DELETED_AT.sub('"deletionTimestamp": "some time"', text)


def _normal(found: Manifest, name_of: Callable[[str], str]) -> Any:
    metadata = {name: value for name, value in found["metadata"].items() if name not in _OF_THE_SERVER}
    annotations = {
        name: name_of(value) if name == CLAIM_ANNOTATION else value
        for name, value in (metadata.get("annotations") or {}).items()
        if name not in {APPLIED_ANNOTATION, TERM_ANNOTATION}  # the one has the owner's uid in it, the other who led
    }
    if found["kind"] == "Job" and any(c["type"] == "Complete" for c in found.get("status", {}).get("conditions", ())):
        # Left where it was done before an operator in trouble saw it compute; read of a failed one alone.
        annotations.pop(WAITS_ANNOTATION, None)
    if BRING_BACK_ANNOTATION in annotations:
        told = annotations[BRING_BACK_ANNOTATION]
        annotations[BRING_BACK_ANNOTATION] = _UID.sub(lambda uid: name_of(uid[0]), told)
    metadata["annotations"] = annotations
    if (owner := (metadata.get("labels") or {}).get(OWNER_UID)) is not None:
        metadata["labels"] = {**metadata["labels"], OWNER_UID: name_of(owner)}
    metadata["ownerReferences"] = [
        {**owner, "uid": name_of(owner["uid"])} for owner in metadata.get("ownerReferences") or ()
    ]
    normal = {**found, "metadata": metadata}
    if found["kind"] == "ConfigMap" and annotations.get(DIGEST_ANNOTATION) == routing_digest(found["data"]):
        annotations[DIGEST_ANNOTATION] = "of its data"
    if found["kind"] == "Deployment":
        template = copy.deepcopy(found["spec"]["template"])
        if annotations.get(TEMPLATE_ANNOTATION) == digest_of(template):
            annotations[TEMPLATE_ANNOTATION] = "of its template"
        named = template["metadata"].get("annotations") or {}
        if CLAIM_ANNOTATION in named:
            named[CLAIM_ANNOTATION] = name_of(named[CLAIM_ANNOTATION])
        normal["spec"] = {**found["spec"], "template": template}
    text = _POD_NAME.sub(r"\1", json.dumps(normal, sort_keys=True))
    return _without_times(json.loads(text))


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without_times(item) for name, item in value.items()
            if name not in {"lastTransitionTime", "startTime", "observedGeneration", "asOf", REPAIR_ANNOTATION}
        }  # fmt: skip
    return [_without_times(item) for item in value] if isinstance(value, list) else value
