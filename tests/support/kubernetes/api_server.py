"""The API server's requests over a `FakeCluster`: which object is meant, what is asked, and the answer's shape.

No sockets: `fake_api.py` puts it behind HTTP, `in_process.py` under the operator's client without any.
What is asked for is JSON and nothing else; a path that belongs to no API is answered with a Status, where the real
server has a line of text.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.support.kubernetes.api_types import traits_of
from tests.support.kubernetes.fake_cluster import Change, FakeCluster, Manifest, Refusal, Write, copied

from gnnserve_operator.kinds import GNNSERVICE, GNNWORKERPOOL, ResourceKind

_KOPF_ASKS_FOR = (
    ResourceKind("v1", "Namespace", "namespaces"),
    ResourceKind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions"),
)
_IDENTITY = {"apiVersion", "kind"}
_APPLY, _MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
_UNKNOWN_MANAGER = "unknown"
"""Manager of a write without a fieldManager; the real server takes the first word of the User-Agent."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Manifest | None = None

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers.items() if key.lower() == name.lower()), "")

    @property
    def is_trial(self) -> bool:
        return self.query.get("dryRun") == "All"

    def is_asked(self, name: str) -> bool:
        return self.query.get(name) in {"true", "1"}


@dataclass(frozen=True, slots=True)
class Response:
    code: int
    headers: Mapping[str, str]
    body: Manifest


@dataclass(frozen=True, slots=True)
class _Target:
    kind: ResourceKind
    namespace: str | None
    name: str | None
    subresource: str | None

    def selects(self, request: Request) -> Callable[[Manifest], bool]:
        labels = _label_selector(request.query.get("labelSelector", ""))
        fields = _field_selector(request.query.get("fieldSelector", ""))

        def is_selected(found: Manifest) -> bool:
            metadata = found["metadata"]
            return self.namespace in {None, metadata.get("namespace")} and labels(found) and fields(found)

        return is_selected


@dataclass(slots=True)
class Watch:
    """What a watch has to tell; never waits. `is_over` after an ERROR."""

    cluster: FakeCluster
    kind: ResourceKind
    selects: Callable[[Manifest], bool]
    version: int
    initial: list[Manifest]
    """Told before anything else."""
    has_bookmarks: bool
    told: int
    """The version that the client knows of by itself, or by the last bookmark."""
    is_over: bool = False
    namespace: str | None = None

    def poll(self) -> list[Manifest]:
        """The events since the last call, as the API server's lines."""
        name = self.kind.name
        with self.cluster.changed:
            lines, self.initial = self.initial, []
            if self.namespace in self.cluster.forbidden_namespaces:
                self.is_over = True
                return []
            if name in self.cluster.broken_kinds:
                return self._end(_status(Refusal(500, "InternalError", "the watch is broken")))
            if self.version < self.cluster.oldest_version:
                told = f"too old resource version: {self.version} ({self.cluster.oldest_version})"
                return self._end(_status(Refusal(410, "Expired", told)))
            if name in self.cluster.frozen_kinds:
                return lines
            news = self._news()
            self.version = self.cluster.version
        return lines + [line for change in news if change.object["kind"] == name and (line := self._line(change))]

    def bookmark(self) -> list[Manifest]:
        """What tells a client that it has seen everything up to a version; if it asked for such, and that is news."""
        if not self.has_bookmarks or self.version <= self.told:
            return []
        self.told = self.version
        metadata = {"resourceVersion": str(self.version)}
        about = {"kind": self.kind.name, "apiVersion": self.kind.api_version, "metadata": metadata}
        return [{"type": "BOOKMARK", "object": about}]

    def _end(self, status: Manifest) -> list[Manifest]:
        self.is_over = True
        return [{"type": "ERROR", "object": status}]

    def _news(self) -> list[Change]:
        """Changes read from the end, since a history is long and what is new in it short."""
        news: list[Change] = []
        for change in reversed(self.cluster.history):
            if change.version <= self.version:
                break
            news.append(change)
        return news[::-1]

    def _line(self, change: Change) -> Manifest | None:
        """What enters the selection is added, what leaves it is deleted, with what it was."""
        is_in = change.type != "DELETED" and self.selects(change.object)
        was_in = change.previous is not None and self.selects(change.previous)
        if is_in:
            return {"type": "MODIFIED" if was_in else "ADDED", "object": change.object}
        if not was_in or change.previous is None:
            return None
        last = change.object if change.type == "DELETED" else change.previous
        metadata = {**last["metadata"], "resourceVersion": str(change.version)}
        return {"type": "DELETED", "object": {**last, "metadata": metadata}}


@dataclass(frozen=True, slots=True)
class ApiServer:
    cluster: FakeCluster

    def respond(self, request: Request) -> Response:
        """Never raises: what is refused is an answer too."""
        self._note_path(request)
        try:
            with self.cluster.changed:
                code, body = self._answer(request)
        except Refusal as refusal:
            return _refused(refusal)
        return Response(code, {}, body)

    def watch(self, request: Request) -> Watch | Response:
        """The events after `resourceVersion`, or why there are none."""
        self._note_path(request)
        try:
            with self.cluster.changed:
                return self._watch(request)
        except Refusal as refusal:
            return _refused(refusal)

    def _note_path(self, request: Request) -> None:
        with self.cluster.changed:
            self.cluster.paths.append(f"{request.method} {request.path}")
            self.cluster.changed.notify_all()

    def _answer(self, request: Request) -> tuple[int, Manifest]:
        if request.method == "GET":
            return 200, self._discovery(request.path) or self._get(request)
        target = self._target(request.path)
        act = {"POST": self._post, "PUT": self._put, "PATCH": self._patch, "DELETE": self._delete}.get(request.method)
        if act is None or (target.name is None) != (request.method == "POST"):
            message = "the server does not allow this method on the requested resource"
            raise Refusal(405, "MethodNotAllowed", message)
        if request.is_trial:
            with self.cluster.trial():
                return act(request, target)
        return act(request, target)

    def _note(self, verb: str, request: Request, target: _Target, name: str) -> None:
        if request.is_trial:
            return
        manager = request.query.get("fieldManager", "")
        shown = f"{verb} {target.subresource}" if target.subresource else verb
        self.cluster.writes.append(Write(shown, target.kind.name, name, manager, request.body))
        self.cluster.changed.notify_all()

    # --- writing

    def _post(self, request: Request, target: _Target) -> tuple[int, Manifest]:
        body = self._body(request, target)
        self._note("create", request, target, body["metadata"]["name"])
        return 201, self.cluster.post(body, request.query.get("fieldManager", _UNKNOWN_MANAGER))

    def _put(self, request: Request, target: _Target) -> tuple[int, Manifest]:
        body = self._body(request, target)
        self._note("put", request, target, body["metadata"]["name"])
        code = self._code(target)
        return code, self.cluster.put(body, request.query.get("fieldManager", _UNKNOWN_MANAGER), target.subresource)

    def _patch(self, request: Request, target: _Target) -> tuple[int, Manifest]:
        content_type = request.header("Content-Type")
        if content_type == _MERGE:
            return self._merge(request, target)
        if content_type != _APPLY:
            raise Refusal(415, "UnsupportedMediaType", "415: Unsupported Media Type")
        if not request.query.get("fieldManager"):
            told = "Required value: is required for apply patch"
            cause = {"reason": "FieldValueRequired", "message": told, "field": "fieldManager"}
            message = f'PatchOptions.meta.k8s.io "" is invalid: fieldManager: {told}'
            raise Refusal(422, "Invalid", message, causes=[cause],
                          details={"group": "meta.k8s.io", "kind": "PatchOptions"})  # fmt: skip
        body = self._body(request, target)
        self._note("apply", request, target, body["metadata"]["name"])
        code = self._code(target)
        return code, self.cluster.apply(
            body, request.query["fieldManager"], target.subresource, force=request.is_asked("force")
        )

    def _merge(self, request: Request, target: _Target) -> tuple[int, Manifest]:
        """A merge patch: a PUT of what it makes of what there is, at whatever version that has."""
        live = self._found(target)
        body = _merged(live, request.body or {})
        self._note("patch", request, target, live["metadata"]["name"])
        return 200, self.cluster.put(body, request.query.get("fieldManager", _UNKNOWN_MANAGER), target.subresource)

    def _delete(self, request: Request, target: _Target) -> tuple[int, Manifest]:
        options = request.body or {}
        name = target.name or ""
        self._note("delete", request, target, name)
        conditions = options.get("preconditions") or {}
        traits = traits_of(target.kind.name)
        policy = options.get("propagationPolicy") or request.query.get("propagationPolicy")
        grace = options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
        live = self.cluster.find(target.kind.name, name, target.namespace or "default")
        left = self.cluster.delete(
            target.kind.name, name, target.namespace or "default",
            uid=conditions.get("uid"), version=conditions.get("resourceVersion"),
            policy=policy or ("Orphan" if traits.orphans else "Background"),
            grace_s=None if grace is None else int(grace),
        )  # fmt: skip
        if left is not None:
            return 200, left
        gone = live or {}
        if traits.returns_deleted:
            return 200, gone
        group = {"group": target.kind.group} if target.kind.group else {}
        details = {"name": name, **group, "kind": target.kind.plural, "uid": gone["metadata"]["uid"]}
        return 200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

    def _code(self, target: _Target) -> int:
        key = target.kind.name, target.namespace or "default", target.name or ""
        return 200 if key in self.cluster.objects else 201

    def _body(self, request: Request, target: _Target) -> Manifest:
        """Whether it is of what the path names."""
        body = copied(request.body or {})
        kind, metadata = target.kind, body.setdefault("metadata", {})
        body.setdefault("apiVersion", kind.api_version)
        body.setdefault("kind", kind.name)
        if (body["apiVersion"], body["kind"]) != (kind.api_version, kind.name):
            told = f"the API version in the data ({body['apiVersion']}) does not match the expected API version"
            raise Refusal(400, "BadRequest", f"{told} ({kind.api_version})")
        name = metadata.setdefault("name", target.name)
        if target.name not in {None, name}:
            told = f"the name of the object ({name}) does not match the name on the URL ({target.name})"
            raise Refusal(400, "BadRequest", told)
        if metadata.setdefault("namespace", target.namespace or "default") != (target.namespace or "default"):
            told = "the namespace of the provided object does not match the namespace sent on the request"
            raise Refusal(400, "BadRequest", told)
        return body

    # --- reading

    def _get(self, request: Request) -> Manifest:
        target = self._target(request.path)
        return self._found(target) if target.name is not None else self._list(request, target)

    def _found(self, target: _Target) -> Manifest:
        kind, name = target.kind, target.name or ""
        found = self.cluster.find(kind.name, name, target.namespace or "default")
        if found is None:
            group = {"group": kind.group} if kind.group else {}
            details = {"name": name, **group, "kind": kind.plural}
            raise Refusal(404, "NotFound", f'{self.cluster.resource(kind.name)} "{name}" not found', details=details)
        return found

    def _list(self, request: Request, target: _Target) -> Manifest:
        """Pages are of one version, which the first of them tells."""
        asked = request.query.get("resourceVersion", "")
        # The API server's cache, which resourceVersion=0 asks, knows no pages.
        limit = 0 if asked == "0" and "continue" not in request.query else int(request.query.get("limit") or 0)
        version, after = self.cluster.version, ""
        if token := request.query.get("continue"):
            told_version, after = _position(token)
            if 0 <= told_version < self.cluster.oldest_version:
                raise _expired_continue(after)
            version = told_version if told_version >= 0 else version
        elif request.query.get("resourceVersionMatch") == "Exact":
            version = int(asked)
            if version < self.cluster.oldest_version:
                raise Refusal(410, "Expired", "The resourceVersion for the provided list is too old.")
        elif asked.isdecimal() and int(asked) > version:
            told = f"Timeout: Too large resource version: {asked}, current: {version}"
            cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            raise Refusal(504, "Timeout", told, causes=[cause], details={"retryAfterSeconds": 1})
        selects = target.selects(request)
        above = f"{target.namespace}/" if target.namespace else ""
        items = [found for found in self._at(target.kind.name, version) if selects(found)]
        if after:
            items = [found for found in items if _place(found).removeprefix(above) > after]
        metadata: Manifest = {"resourceVersion": str(version)}
        if limit and len(items) > limit:
            if "labelSelector" not in request.query and "fieldSelector" not in request.query:
                metadata["remainingItemCount"] = len(items) - limit
            items = items[:limit]
            metadata["continue"] = _token(version, _place(items[-1]).removeprefix(above))
        if "PartialObjectMetadataList" in request.header("Accept"):
            # As the real one does: null, where other lists are empty.
            identity = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
            return {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                    "items": [{**identity, "metadata": found["metadata"]} for found in items] or None}  # fmt: skip
        if target.kind not in {GNNSERVICE, GNNWORKERPOOL}:  # only custom resources say in a list what they are
            items = [{name: value for name, value in found.items() if name not in _IDENTITY} for found in items]
        return {"apiVersion": target.kind.api_version, "kind": f"{target.kind.name}List", "metadata": metadata,
                "items": items}  # fmt: skip

    def _at(self, kind: str, version: int) -> list[Manifest]:
        """Objects as they were then, in the order of their names."""
        if version == self.cluster.version:
            return sorted((found for (of, _, _), found in self.cluster.objects.items() if of == kind), key=_place)
        found: dict[str, Manifest] = {}
        for change in self.cluster.history:
            if change.version <= version and change.object["kind"] == kind:
                found[_place(change.object)] = change.object
                if change.type == "DELETED":
                    del found[_place(change.object)]
        return [found[place] for place in sorted(found)]

    def _watch(self, request: Request) -> Watch:
        target = self._target(request.path)
        selects, asked = target.selects(request), request.query.get("resourceVersion", "")
        has_bookmarks = request.is_asked("allowWatchBookmarks")
        if asked not in {"", "0"}:
            since = int(asked)
            return Watch(
                self.cluster, target.kind, selects, since, [], has_bookmarks, since, namespace=target.namespace
            )  # fmt: skip
        items = [found for found in self._at(target.kind.name, self.cluster.version) if selects(found)]
        initial = [{"type": "ADDED", "object": found} for found in items]
        version = self.cluster.version
        return Watch(
            self.cluster, target.kind, selects, version, initial, has_bookmarks, version, namespace=target.namespace
        )  # fmt: skip

    def _discovery(self, path: str) -> Manifest | None:
        kinds = (*self.cluster.kinds, *_KOPF_ASKS_FOR)
        groups = sorted({(kind.group, kind.version) for kind in kinds if kind.group})
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            versions = [
                (group, {"groupVersion": f"{group}/{version}", "version": version}) for group, version in groups
            ]
            return {"kind": "APIGroupList", "groups": [
                {"name": group, "versions": [version], "preferredVersion": version} for group, version in versions
            ]}  # fmt: skip
        resources = [kind for kind in kinds if kind.api_path == path]
        if not resources:
            return None
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        return {"kind": "APIResourceList", "resources": [
            {"name": kind.plural, "singularName": kind.name.lower(), "kind": kind.name,
             "namespaced": kind not in _KOPF_ASKS_FOR, "verbs": verbs}
            for kind in resources
        ]}  # fmt: skip

    def _target(self, path: str) -> _Target:
        for kind in self.cluster.kinds:
            if not path.startswith(f"{kind.api_path}/"):
                continue
            steps = path.removeprefix(f"{kind.api_path}/").split("/")
            namespace = steps[1] if steps[0] == "namespaces" and len(steps) > 2 else None
            rest = steps[2:] if namespace else steps
            target = _Target(kind, namespace, *(*rest[1:], None, None)[:2])
            is_known = target.subresource is None or (
                target.subresource == "status" and traits_of(kind.name).has_status
            )
            if rest[0] == kind.plural and len(rest) <= 3 and is_known:
                self._require_rights(target)
                return target
        raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def _require_rights(self, target: _Target) -> None:
        if target.namespace in self.cluster.forbidden_namespaces:
            what = self.cluster.resource(target.kind.name)
            told = f'{what} is forbidden: User "operator" cannot list resource in the namespace "{target.namespace}"'
            raise Refusal(403, "Forbidden", told)


def _refused(refusal: Refusal) -> Response:
    return Response(refusal.code, refusal.headers, _status(refusal))


def _status(refusal: Refusal) -> Manifest:
    details = {**refusal.details, **({"causes": list(refusal.causes)} if refusal.causes else {})}
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": refusal.metadata, "status": "Failure",
        "message": refusal.message,
        **({"reason": refusal.reason} if refusal.reason else {}), **({"details": details} if details else {}),
        "code": refusal.code,
    }  # fmt: skip


def _merged(live: Manifest, patch: Manifest) -> Manifest:
    """RFC 7386."""
    found = dict(live)
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = _merged(found.get(name) or {}, value) if isinstance(value, dict) else value
    return found


# --- pages


def _place(found: Manifest) -> str:
    return f"{found['metadata'].get('namespace', '')}/{found['metadata']['name']}"


def _token(version: int, last: str) -> str:
    told = {"v": "meta.k8s.io/v1", "rv": version, "start": f"{last}\0"}
    return base64.urlsafe_b64encode(json.dumps(told).encode()).decode().rstrip("=")


def _position(token: str) -> tuple[int, str]:
    try:
        told = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(told["rv"]), str(told["start"]).rstrip("\0")
    except (binascii.Error, ValueError, KeyError, TypeError) as error:
        raise Refusal(400, "BadRequest", f"continue key is not valid: {error}") from error


def _expired_continue(after: str) -> Refusal:
    """The answer to an expired token, with a token for the rest of the list as it is now."""
    refusal = Refusal(
        410,
        "Expired",
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
        "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
        "modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    )
    refusal.metadata["continue"] = _token(-1, after)
    return refusal


# --- selectors

_TERM = re.compile(r"\s*(?:(?P<name>[^\s!=,()]+)\s*(?:(?P<is>==?|!=)\s*(?P<value>[^\s,()]*)"
                   r"|(?P<among>in|notin)\s*\((?P<values>[^)]*)\))?"
                   r"|!\s*(?P<absent>[^\s!=,()]+))\s*(?:,|$)")  # fmt: skip


def _label_selector(text: str) -> Callable[[Manifest], bool]:
    terms, position = [], 0
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None or match.end() == position:
            raise Refusal(400, "BadRequest", f"unable to parse requirement: {text!r}")
        terms.append(match.groupdict())
        position = match.end()
    return lambda found: all(_has_label(found["metadata"].get("labels") or {}, term) for term in terms)


def _has_label(labels: Mapping[str, str], term: Mapping[str, str | None]) -> bool:
    if term["absent"]:
        return term["absent"] not in labels
    name = term["name"] or ""
    if term["among"]:
        values = {value.strip() for value in (term["values"] or "").split(",")}
        return (labels.get(name) in values) is (term["among"] == "in")
    if term["is"]:
        return (labels.get(name) == term["value"]) is (term["is"] != "!=")
    return name in labels


_SELECTABLE = {"metadata.name", "metadata.namespace", "involvedObject.kind", "involvedObject.name"}
"""Fields that a selector may name; the last ones of events."""


def _field_selector(text: str) -> Callable[[Manifest], bool]:
    wanted = [term.partition("=")[::2] for term in text.split(",") if term]
    for name, _ in wanted:
        if name not in _SELECTABLE:
            raise Refusal(400, "BadRequest", f"field label not supported: {name}")

    def is_selected(found: Manifest) -> bool:
        return all((found.get(part) or {}).get(name) == value
                   for (part, _, name), value in ((path.partition("."), value) for path, value in wanted))  # fmt: skip

    return is_selected
