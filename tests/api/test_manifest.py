from __future__ import annotations

from pathlib import Path

import pytest

from gnnserve_api.errors import InputError
from gnnserve_api.manifest import load_manifest, parse_manifest
from gnnserve_api.spec.fields import ApiModel
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.labels import ANNOTATIONS_ARE_RESERVED, LABELS_ARE_RESERVED, POD_ANNOTATIONS_ARE_RESERVED
from gnnserve_api.spec.pool import GNNWorkerPool
from gnnserve_api.spec.service import GNNServiceSpec

CHECKOUT = Path(__file__).resolve().parents[2]
HEAD = "apiVersion: gnnserve.dev/v1alpha1\nkind: GNNService\nmetadata: {name: a}\n"
DIGITS = "graph: {source: {builtin: Digits}}"


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
LONG_TEXT_BOMB = f"a: &a {'x' * 10_000}\nb: [{', '.join(['*a'] * 2000)}]"
DEEP_ALIASES = "a0: &a0 x\n" + "".join(f"a{n}: &a{n} {'[' * 40}*a{n - 1}{']' * 40}\n" for n in range(1, 8))


def spec(rest: str = "") -> str:
    return f"{HEAD}spec: {{{DIGITS}{', ' if rest else ''}{rest}}}\n"


def problems_of(text: str) -> list[str]:
    with pytest.raises(InputError) as refused:
        parse_manifest(text, "m.yaml")
    return str(refused.value).splitlines()


def case(name: str, text: str, *expected: str):
    return pytest.param(text, expected, id=name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        case(
            "an unknown field names its closest neighbour",
            spec("modle: {}"),
            "spec.modle: unknown field (value {}); did you mean `model`?",
        ),
        case(
            "an unknown field without a neighbour lists the known ones",
            HEAD + "spec: {graph: {source: {npz: {uri: 'file:///a.npz', shape: 3}}}}",
            "spec.graph.source.npz.shape: unknown field (value 3); known fields here: uri, sha256, direction, "
            "edgeColumns",
        ),
        case(
            "the Python name of a field is not a field",
            spec("objective: {latency_ms: 3}"),
            "spec.objective.latency_ms: unknown field (value 3); did you mean `latencyMs`?",
        ),
        case(
            "an unknown field that is empty is still unknown",
            spec("model: {training2: }"),
            "spec.model.training2: unknown field (value null); did you mean `training`?",
        ),
        case(
            "an entry of a list is named by its index",
            spec("variants: {pruning: {factors: [1, 2, 0]}}"),
            "spec.variants.pruning.factors[2]: found 0, expected at least 1; correct it",
        ),
        case(
            "a word in place of a number",
            spec("variants: {pruning: {factors: [1, a]}}"),
            'spec.variants.pruning.factors[1]: found "a", expected an integer; '
            "write a plain number, without quotes or leading zeros",
        ),
        case(
            "a number in quotes is refused as the API server refuses it",
            spec("model: {hidden: '12'}"),
            'spec.model.hidden: found "12", expected an integer; write a plain number, without quotes or leading zeros',
        ),
        case(
            "a leading zero is ambiguous",
            spec("model: {training: {seed: 010}}"),
            'spec.model.training.seed: found "010", expected an integer; '
            "write a plain number, without quotes or leading zeros",
        ),
        case(
            "yes is no number",
            spec("model: {training: {epochs: yes}}"),
            "spec.model.training.epochs: must be Auto, or a whole number from 1 to 10000 (value true)",
        ),
        case(
            "a number of epochs in quotes",
            spec("model: {training: {epochs: '30'}}"),
            'spec.model.training.epochs: must be Auto, or a whole number from 1 to 10000 (value "30")',
        ),
        case(
            "Auto in another case",
            spec("model: {training: {epochs: auto}}"),
            "spec.model.training.epochs: must be Auto, or a whole number from 1 to 10000; did you mean Auto? "
            '(value "auto")',
        ),
        case(
            "an integer beyond every machine",
            spec("model: {hidden: 99999999999999999999999}"),
            "spec.model.hidden: found 99999999999999999999999, expected at most 4096; correct it",
        ),
        case(
            "NaN is no learning rate",
            spec("model: {training: {learningRate: .nan}}"),
            "spec.model.training.learningRate: found NaN, expected at most 1; correct it",
        ),
        case(
            "a bound that is exclusive",
            spec("objective: {latencyMs: 0}"),
            "spec.objective.latencyMs: found 0, expected more than 0; correct it",
        ),
        case(
            "an enum value in the wrong case",
            spec("variants: {pruning: {method: lasso}}"),
            "spec.variants.pruning.method: found \"lasso\", expected 'Random', 'Greedy' or 'Lasso'; "
            "did you mean Lasso?",
        ),
        case(
            "an enum value of another kind",
            spec("model: {training: {scope: All}}"),
            "spec.model.training.scope: found \"All\", expected 'Inductive' or 'Transductive'; choose one of these",
        ),
        case(
            "an optional member's path holds no type names",
            HEAD + "spec: {graph: {source: {npz: {uri: file://data.npz}}}}",
            "spec.graph.source.npz.uri: must have an absolute path after file://: a relative path is written without "
            'it, as in data/graph.npz (value "file://data.npz")',
        ),
        case(
            "a scheme that nothing reads",
            HEAD + "spec: {graph: {source: {npz: {uri: s3://bucket/data.npz}}}}",
            "spec.graph.source.npz.uri: must be a path, as in data/graph.npz; a path that begins as an address does is "
            'written with ./ before (value "s3://bucket/data.npz")',
        ),
        case(
            "a mirror with a user in its address",
            HEAD + "spec: {graph: {source: {pyg: {name: Cora, mirror: 'https://me:secret@mirror/cora'}}}}",
            "spec.graph.source.pyg.mirror: must be a path or an address without a user in it, as in https://mirror/ogb "
            "or data/ogb; a path that begins as an address does is written with ./ before "
            '(value "https://me:secret@mirror/cora")',
        ),
        case(
            "a path with a sign that ends paths of addresses",
            HEAD + 'spec: {graph: {source: {npz: {uri: "file:///data/a #1.npz"}}}}',
            "spec.graph.source.npz.uri: must have # as %23 and ? as %3F in a URI, whose path they end; a plain path "
            'needs neither (value "file:///data/a #1.npz")',
        ),
        case(
            "a required field says what it is for",
            HEAD + "spec: {graph: {source: {npz: {}}}}",
            "spec.graph.source.npz.uri: missing; add it: Path of the `.npz` file. A relative path begins in the "
            "manifest's folder, and in a cluster at `graph.volume.mountPath`.",
        ),
        case(
            "an empty section",
            spec("model: "),
            "spec.model: is empty (null), expected a mapping; give it a value or remove the line",
        ),
        case(
            "a scalar in place of a section",
            spec("worker: 3"),
            "spec.worker: found 3, expected a mapping; write its fields, indented, on the lines below",
        ),
        case(
            "a scalar in place of a list",
            spec("variants: {pruning: {factors: 3}}"),
            "spec.variants.pruning.factors: found 3, expected a list; write it as [1, 2, 4]",
        ),
        case(
            "a word in place of a list",
            spec("variants: {storage: int8}"),
            'spec.variants.storage: found "int8", expected a list; write it as [float32, int8]',
        ),
        case(
            "a storage that is not known",
            spec("variants: {storage: [float32, Float16]}"),
            "spec.variants.storage[1]: found \"Float16\", expected 'float32', 'float16', 'bfloat16' or 'int8'; "
            "did you mean float16?",
        ),
        case(
            "a storage that is given twice",
            spec("variants: {storage: [int8, int8]}"),
            'spec.variants: storage [\'int8\', \'int8\'] must not repeat (value {"storage": ["int8", "int8"]})',
        ),
        case(
            "projection as YAML would have it",
            spec("variants: {projection: on}"),
            "spec.variants.projection: found true, expected 'Auto' or 'Disabled'; choose one of these",
        ),
        case(
            "weights in a pickle",
            spec("model: {checkpoint: {uri: file:///data/model.pt}}"),
            "spec.model.checkpoint.uri: must be the path of a .safetensors file, as in data/model.safetensors or "
            "hf://ORG/NAME@COMMIT; safetensors.torch.save_file(model.state_dict(), PATH) makes the file "
            '(value "file:///data/model.pt")',
        ),
        case(
            "a list without entries",
            spec("model: {fanouts: []}"),
            "spec.model.fanouts: found [], expected a list of at least 1 entries; correct it",
        ),
        case(
            "no source at all",
            HEAD + "spec: {graph: {source: {}}}",
            "spec.graph.source: exactly one of builtin, npz, ogb, pyg, parquet, csv and typed must be set (value {})",
        ),
        case(
            "a rule over two fields",
            spec("worker: {batching: {maxSeeds: 100, maxQueuedSeeds: 10}}"),
            "spec.worker.batching: maxQueuedSeeds 10 must be at least maxSeeds 100 "
            '(value {"maxSeeds": 100, "maxQueuedSeeds": 10})',
        ),
        case(
            "a variant that no factor stands for",
            spec("routing: {mode: Static, variant: x3}, variants: {projection: Disabled}"),
            "spec.routing.variant: names x3, which spec.variants does not generate; name some of x1, x2, x4, x8, or "
            "change spec.variants.pruning.factors, storage, projection or given",
        ),
        case(
            "a cascade of a variant that is not listed",
            spec("variants: {projection: Disabled, cascades: [{first: x8, then: x1}, {first: x2, then: x3}]}"),
            "spec.variants.cascades[1].then: x3 is none of the variants that are made; choose from x1, x2, x4, x8",
        ),
        case(
            "shares of variants in a storage that is not listed",
            spec("routing: {mode: Weights, weights: {x1: 1, x2-int8: 1, projected: 1}}"),
            "spec.routing.weights: names x2-int8, which spec.variants does not generate; name some of x1, x2, x4, x8, "
            "projected, or change spec.variants.pruning.factors, storage, projection or given",
        ),
        case(
            "a column that is neither a name nor an index",
            spec("variants: {given: [{checkpoint: {uri: 'file:///a.safetensors'}, columns: [0, -1]}]}"),
            "spec.variants.given[0].columns[1]: must be the name of a column, or its index among the features, from 0 "
            "(value -1)",
        ),
        case(
            "a device that nobody asked the scheduler for",
            spec("worker: {device: GPU}"),
            "spec.worker: gpu must be given with device GPU, so that pods are placed where there is one: gpu: {} asks "
            'for one nvidia.com/gpu (value {"device": "GPU"})',
        ),
        case(
            "a size of memory without its unit",
            spec("worker: {gpuMemory: '40'}"),
            'spec.worker.gpuMemory: found "40", expected a string that matches ^[1-9][0-9]{0,6}(Mi|Gi|Ti)$; write a '
            "size, as in 40Gi",
        ),
        case(
            "a name that Kubernetes would not take",
            HEAD.replace("name: a", "name: My_Service") + f"spec: {{{DIGITS}}}",
            'metadata.name: found "My_Service", expected a string that matches ^[a-z]([-a-z0-9]*[a-z0-9])?$; '
            "use lower-case letters, digits and '-', a letter first, as in digits-2",
        ),
        case(
            "a name that YAML takes for a number",
            HEAD.replace("name: a", "name: 7") + f"spec: {{{DIGITS}}}",
            "metadata.name: found 7, expected a string; put it in quotes",
        ),
        case(
            "no apiVersion and no kind",
            f"metadata: {{name: a}}\nspec: {{{DIGITS}}}",
            "apiVersion: missing; add `apiVersion: gnnserve.dev/v1alpha1`",
            "kind: missing; add `kind: GNNService`",
        ),
        case(
            "another apiVersion, and the rest is still read",
            HEAD.replace("v1alpha1", "v1") + "spec: {graph: {source: {}}}",
            'apiVersion: "gnnserve.dev/v1" is not served by this gnnserve, expected gnnserve.dev/v1alpha1; '
            "write `apiVersion: gnnserve.dev/v1alpha1`, or pass a GNNService manifest",
            "spec.graph.source: exactly one of builtin, npz, ogb, pyg, parquet, csv and typed must be set (value {})",
        ),
        case(
            "another kind, and its fields are not judged",
            "apiVersion: gnnserve.dev/v1alpha1\nkind: Deployment\nspec: {replicas: 1}",
            'kind: "Deployment" is not served by this gnnserve, expected GNNService; '
            "write `kind: GNNService`, or pass a GNNService manifest",
        ),
        case(
            "control characters are shown, not obeyed",
            HEAD + f'"\\e[31m": "\\u009b"\nspec: {{{DIGITS}}}',
            '\\x1b[31m: unknown field (value "\\x9b"); known fields here: apiVersion, kind, metadata, spec',
        ),
        case(
            "a large bound is written out",
            spec("objective: {latencyMs: 1e9}"),
            "spec.objective.latencyMs: found 1000000000.0, expected at most 3600000; correct it",
        ),
        case(
            "pods that ask for more than they may have",
            spec("worker: {resources: {requests: {cpu: 2}, limits: {cpu: 1500m}}}"),
            "spec.worker.resources: requests must not be more than limits, and 2 of cpu is more than 1500m: lower the "
            "request, or raise "
            'the limit (value {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}})',
        ),
        case(
            "a resource that Kubernetes does not know",
            spec("generation: {resources: {limits: {mem: 1Gi}}}"),
            "spec.generation.resources: the names of limits must be cpu, memory, ephemeral-storage, hugepages-<size>, "
            'or have a domain, as in nvidia.com/gpu; found mem (value {"limits": {"mem": "1Gi"}})',
        ),
        case(
            "nodes that no label selects",
            spec("worker: {nodeSelector: {'a b': c, d: '-'}}"),
            "spec.worker.nodeSelector: 'a b' must be the name of a label, as in gpu or nvidia.com/gpu.present "
            '(value {"a b": "c", "d": "-"})',
        ),
        case(
            "tolerations that no pod may have",
            spec("worker: {tolerations: [{operator: Exists, value: x}, {value: x}]}"),
            "spec.worker.tolerations[0]: value must not be set with operator Exists, which takes any value "
            '(value {"operator": "Exists", "value": "x"})',
            'spec.worker.tolerations[1]: key may be absent with operator Exists only (value {"value": "x"})',
        ),
        case(
            "labels and annotations that are gnnserve's or Kubernetes'",
            spec(
                "worker: {podLabels: {gnnserve.dev/service: b}}, generation: {podLabels: {pod-template-hash: a}, "
                "nodeSelector: {a: b}}, endpoint: {service: {annotations: {gnnserve.dev/adopt: a}}}"
            ),
            f"spec.endpoint.service: {ANNOTATIONS_ARE_RESERVED}: remove gnnserve.dev/adopt "
            '(value {"annotations": {"gnnserve.dev/adopt": "a"}})',
            f"spec.worker: {LABELS_ARE_RESERVED}: remove gnnserve.dev/service "
            '(value {"podLabels": {"gnnserve.dev/service": "b"}})',
            f"spec.generation: {LABELS_ARE_RESERVED}: remove pod-template-hash "
            '(value {"podLabels": {"pod-template-hash": "a"}, "nodeSelector": {"a": "b"}})',
        ),
        case(
            "annotations that tell Prometheus where the metrics are",
            spec("worker: {podAnnotations: {prometheus.io/port: '1'}}"),
            f"spec.worker: {POD_ANNOTATIONS_ARE_RESERVED}: remove prometheus.io/port "
            '(value {"podAnnotations": {"prometheus.io/port": "1"}})',
        ),
        case(
            "names of annotations that Kubernetes would refuse",
            spec("worker: {podAnnotations: {'a b': c}}"),
            "spec.worker.podAnnotations: 'a b' must be the name of an annotation, as in example.com/owner "
            '(value {"a b": "c"})',
        ),
        case(
            "an affinity that Kubernetes would refuse",
            spec(
                "worker: {affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: "
                "[{weight: 0, preference: {matchExpressions: [{key: disks, operator: Gt, values: [many]}]}}]}}}"
            ),
            "spec.worker.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: found 0, "
            "expected at least 1; correct it",
            "spec.worker.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference."
            "matchExpressions[0]: values must be one integer with operators Gt and Lt "
            '(value {"key": "disks", "operator": "Gt", "values": ["many"]})',
        ),
        case(
            "workers that are to be spread twice in one way",
            spec(
                "repository: {claimName: a}, worker: {topologySpreadConstraints: "
                "[{topologyKey: zone, whenUnsatisfiable: DoNotSchedule}, "
                "{topologyKey: zone, whenUnsatisfiable: DoNotSchedule, maxSkew: 2}]}"
            ),
            "spec.worker.topologySpreadConstraints: must have zone with DoNotSchedule once "
            '(value [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}, {"topologyKey...)',
        ),
        case(
            "everything wrong is listed at once",
            spec("model: {hidden: 0, fanouts: [3.5]}, variants: {pruning: {factors: [1, 1]}}, worker: 3"),
            "spec.model.hidden: found 0, expected at least 1; correct it",
            "spec.model.fanouts[0]: found 3.5, expected an integer; correct it",
            'spec.variants.pruning: factors [1, 1] must not repeat (value {"factors": [1, 1]})',
            "spec.worker: found 3, expected a mapping; write its fields, indented, on the lines below",
        ),
    ],
)
def test_every_problem_is_listed_with_path_value_and_remedy(text: str, expected: tuple[str, ...]) -> None:
    heading, *problems = problems_of(text)
    assert heading == f"m.yaml: {len(expected)} problem{'s' if len(expected) > 1 else ''}"
    assert problems == [f"  {problem}" for problem in expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        case("an empty file", "# nothing\n", "m.yaml: is empty, expected a GNNService manifest"),
        case("a list", "- a\n- b", 'm.yaml: holds ["a", "b"], expected a mapping with apiVersion, kind'),
        case("plain text", "hello", 'm.yaml: holds "hello", expected a mapping'),
        case("two documents", "a: 1\n---\nb: 1", "m.yaml: holds 2 documents, expected one GNNService"),
        case("a syntax error", "a: 1\nb: [1\nc: 2\n", "m.yaml, line 3, column 2: not valid YAML: expected ',' or ']'"),
        case("a tab", "a:\n\tb: 1", "m.yaml, line 2, column 1: not valid YAML: found character '\\t'"),
        case(
            "a field given twice",
            spec().replace("spec:", "kind: GNNService\nspec:"),
            "m.yaml, line 4, column 1: not valid YAML: field `kind` is already set on line 2; keep one of them",
        ),
        case(
            "control characters in a field given twice",
            '"\\e[31m": 1\n"\\e[31m": 2',
            "m.yaml, line 2, column 1: not valid YAML: field `\\x1b[31m` is already set on line 1",
        ),
        case(
            "a field given twice, deep inside",
            HEAD + "spec:\n  model:\n    hidden: 1\n    hidden: 2\n",
            "m.yaml, line 7, column 5: not valid YAML: field `hidden` is already set on line 6",
        ),
        case(
            "a list as a field's name", "? [a]\n: 1", "m.yaml, line 1, column 3: not valid YAML: a field name must be"
        ),
        case(
            "a Python object", "a: !!python/object:os.system 1", "m.yaml, line 1, column 4: not valid YAML: could not"
        ),
        case("an alias of itself", "a: &x [*x]", "m.yaml: holds what JSON cannot: Circular reference"),
        case("bytes", 'a: !!binary "aGk="', "m.yaml: holds what JSON cannot"),
        case("a control character", "a: \x00", "m.yaml: not valid YAML: unacceptable character"),
        case("aliases of aliases", BOMB, "m.yaml: expands to more than 100,000 values; a manifest has some dozens"),
        case("aliases of a long text", LONG_TEXT_BOMB, "m.yaml: expands to more than 100,000 values"),
        case("more text than a manifest has", "#" * (2**20 + 1), "m.yaml: is longer than 1 MiB"),
        case(
            "half a character", 'a: "\\ud800"', "m.yaml, line 1, column 4: not valid YAML: \\ud800 is half a character"
        ),
        case("half a character as a field's name", '"\\udfff": 1', "m.yaml, line 1, column 1: not valid YAML: \\udfff"),
        case("thousands of brackets", "a: " + "[" * 5000, "m.yaml: is nested more than 64 levels deep; a manifest has"),
        case("depth through aliases", DEEP_ALIASES, "m.yaml: holds what JSON cannot: "),
        case(
            "an integer of thousands of digits",
            "a: " + "9" * 5000,
            "m.yaml, line 1, column 4: not valid YAML: an integer of 5,000 digits",
        ),
        case("a tag that does not fit", "a: !!bool perhaps", "m.yaml: not valid YAML: a tag does not fit its value"),
    ],
)
def test_what_is_no_manifest_is_refused_with_its_place(text: str, expected: tuple[str]) -> None:
    with pytest.raises(InputError) as refused:
        parse_manifest(text, "m.yaml")
    assert str(refused.value).startswith(expected[0])
    assert refused.value.remedy


def test_numbers_are_read_as_json_reads_them() -> None:
    training = parse_manifest(
        spec("model: {training: {learningRate: 1e-3, weightDecay: 1E-4, dropout: 0, epochs: 1_000}}"), "m"
    ).spec.model.training
    assert (training.learning_rate, training.weight_decay, training.dropout, training.epochs) == (1e-3, 1e-4, 0, 1000)


@pytest.mark.parametrize("name", ["2026-01-01", "1-30", "a1e3"])
def test_names_that_look_like_dates_stay_names(name: str) -> None:
    text = spec().replace("name: a", f"name: a, namespace: {name}")
    assert parse_manifest(text, "m").metadata.namespace == name


def test_merged_fields_may_be_overridden() -> None:
    text = HEAD.replace("{name: a}", "{name: a, annotations: &common {x: 1}}") + f"spec: {{{DIGITS}}}\n"
    merged = text.replace("&common {x: 1}", "{base: &common {x: 1}, own: {<<: *common, x: 2}}")
    assert parse_manifest(merged, "m").metadata.name == "a"


def test_metadata_of_kubernetes_is_let_through() -> None:
    text = spec().replace("{name: a}", "{name: a, labels: {team: b}, uid: 1234}")
    assert parse_manifest(text, "m").metadata.namespace == "default"


def test_documents_without_content_are_not_counted() -> None:
    assert parse_manifest(f"---\n{spec()}---\n", "m").metadata.name == "a"


def test_defaults_that_are_made_without_a_validator_are_what_it_would_make() -> None:
    defaults = [
        field.default
        for model in (GNNServiceSpec, GNNWorkerPool, *ApiModel.__subclasses__())
        for field in model.model_fields.values()
        if isinstance(field.default, ApiModel)
    ]
    assert len(defaults) > 20
    assert defaults == [type(default)() for default in defaults]


def test_the_example_is_valid() -> None:
    service = load_manifest(CHECKOUT / "examples" / "digits.yaml")
    assert service.metadata.name == "digits"
    assert service.spec.graph.normalization is Normalization.AUTO
    assert service.spec.variants.pruning.factors == (1, 2, 4, 8, 16)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    missing, latin, folder = tmp_path / "no.yaml", tmp_path / "latin.yaml", tmp_path / "folder"
    latin.write_bytes("name: é".encode("latin1"))
    folder.mkdir()
    for path, problem in ((missing, "no such file"), (latin, "is not UTF-8 text"), (folder, "cannot be read")):
        with pytest.raises(InputError) as refused:
            load_manifest(path)
        assert str(refused.value).startswith(f"{path}: {problem}")


@pytest.mark.parametrize(
    ("more", "is_shown"),
    [("", True), (", training: {epochs: 30, batchSize: 1024, learningRate: 0.01, weightDecay: 0.1}", False)],
)
def test_a_section_is_shown_whole_or_not_at_all(more: str, is_shown: bool) -> None:
    """The first fields of a long one are others than those that the sentence is about."""
    model = f"{{architecture: GAT, hidden: 8, heads: 3{more}}}"
    with pytest.raises(InputError, match="must be a multiple") as caught:
        parse_manifest(spec(f"model: {model}"), "m.yaml")
    assert ("(value {" in str(caught.value)) == is_shown
    assert "..." not in str(caught.value)


DECISIVE = {
    "over types, with fan-outs of its own to mend": ("SGC", "[25, 10]", 2),
    "over types, beside what it refuses too": ("SGC", "[0]", 1),
    "over types, with nothing else to mend": ("GIN", "[25, 10]", 1),
}


@pytest.mark.parametrize(("architecture", "fanouts", "problems"), DECISIVE.values(), ids=DECISIVE)
def test_what_no_other_field_cures_is_told_first(architecture: str, fanouts: str, problems: int) -> None:
    """Rules over parts are looked at before those over the whole, and would be mended in vain."""
    graph = "graph: {source: {typed: {npz: {uri: file:///shop}}}}"
    model = f"model: {{architecture: {architecture}, fanouts: {fanouts}}}, variants: {{stored: [1]}}"
    heading, first, *others = problems_of(f"{HEAD}spec: {{{graph}, {model}}}\n")
    assert heading.endswith(f" {problems} problem{'s' if problems > 1 else ''}") and len(others) == problems - 1
    assert first.startswith(f"  spec: model.architecture {architecture} must be GraphSAGE, GAT, RGCN or LightGCN with")
    _, first, *_ = problems_of(spec("model: {architecture: RGCN, relationFanouts: [{relation: a, fanouts: [5]}]}"))
    assert first.startswith("  spec: model.architecture RGCN must not be given without graph.source.typed")
