"""Specs that break one rule each, with words of the message that names it."""

from __future__ import annotations

from typing import Any

from gnnserve_api.spec.device_rules import LISTED_ON_GPU
from gnnserve_api.spec.labels import ANNOTATIONS_ARE_RESERVED, LABELS_ARE_RESERVED, POD_ANNOTATIONS_ARE_RESERVED
from gnnserve_api.spec.pods import RESOURCE_NAMES
from gnnserve_api.variants import Storage

CASCADE = {"first": "x8", "then": "x1"}
GIVEN = {"checkpoint": {"uri": "file:///a.safetensors"}, "columns": ["fee", 0]}
MINIMAL = {"graph": {"source": {"builtin": "Digits"}}}
PROGRAM = {"program": {"uri": "data/model"}, "expected": {"uri": "data/expected.npz"}}
CONTRACT = {
    "uri": "data/model.onnx",
    "hops": 2,
    "inputs": [{"name": "x", "is": "Features"}, {"name": "edge_index", "is": "Edges"}],
    "scores": {"name": "logits", "columns": 10},
}
TYPED = {"graph": {"source": {"typed": {"npz": {"uri": "file:///graph"}}}}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def node_affinity(**requirement: Any) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "a", **requirement}]}
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}}


POOLED = {"poolRef": {"name": "shared"}}
CANARY = {"canary": {"revision": "0123456789ab", "percent": 5}}
_SAGE = {"conv": "GraphSAGE", "width": 4}


def _of_layers(*layers: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """A spec of listed layers."""
    model = {
        "checkpoint": {"uri": "data/model.safetensors"}, "layers": [*layers], "fanouts": [-1] * len(layers) or [0],
        **parts,
    }  # fmt: skip
    return {**MINIMAL, "model": model}


_OPTIONS = {
    "aggregations may be given with conv GraphSAGE, GraphConv and PNA only": {"conv": "GCN", "aggregations": ["Max"]},
    "alpha may be given with conv APPNP and GCNII only": {"alpha": 0.1},
    "averageHeads may be given with conv GAT, GATv2, Transformer and RGAT only": {"averageHeads": True},
    "beta may be given with conv Transformer only": {"beta": True},
    "bias may be given with conv GraphSAGE, GCN, GraphConv, GAT, GATv2, Transformer, TAG, Chebyshev, SGC and RGAT "
    "only": {
        "conv": "APPNP", "bias": False,
    },
    "divideInput may be given with conv PNA only": {"divideInput": True},
    "edgeColumns may be given with conv GAT, GATv2, Transformer, RGAT, GINE, PNA and GEN only": {
        "edgeColumns": ["amount"],
    },
    "edgeWeight may be given with conv GraphConv, GCN, TAG, SGC, APPNP, GCNII and Chebyshev only": {"edgeWeight": "w"},
    "heads may be given with conv GAT, GATv2, Transformer and RGAT only": {"heads": 2},
    "hops may be given with conv TAG, Chebyshev, SGC and APPNP only": {"hops": 2},
    "improved may be given with conv GCN only": {"improved": True},
    "mlp may be given with conv GIN, GINE and GEN only": {"mlp": [{"width": 4}]},
    "mlp must be given with conv GIN, GINE and GEN: the products over the sum, each with its width and activation": {
        "conv": "GIN",
    },
    "aggregations must be given with conv PNA, as in [Mean, Min, Max, Std]": {"conv": "PNA"},
    "negativeSlope may be given with conv GAT, GATv2, FiLM and RGAT only": {"negativeSlope": 0.1},
    "normalize may be given with conv GCN, TAG, APPNP and GCNII only": {"normalize": False},
    "postLayers may be given with conv PNA only": {"postLayers": 2},
    "preLayers may be given with conv PNA only": {"preLayers": 2},
    "project may be given with conv GraphSAGE only": {"conv": "GCN", "project": True},
    "root may be given with conv GraphSAGE, GraphConv and Transformer only": {"conv": "GCN", "root": False},
    "scalers may be given with conv PNA only": {"scalers": ["Identity"]},
    "selfLoops may be given with conv GCN, TAG, SGC, APPNP, GCNII, GAT, GATv2 and AGNN only": {"selfLoops": False},
    "shareWeights may be given with conv GATv2 and GCNII only": {"shareWeights": True},
    "slope may be given with activation LeakyRelu and Elu only": {"slope": 0.1},
    "theta may be given with conv GCNII only": {"theta": 0.5},
    "towers may be given with conv PNA only": {"towers": 2},
    "unitRows may be given with conv GraphSAGE only": {"conv": "GCN", "unitRows": True},
    "width must be a multiple of heads: each head has width / heads columns": {"conv": "GAT", "heads": 3},
    "either conv or relations must be given, and not both: conv is over every relation, and relations have a conv "
    "each": {"relations": [{**_SAGE, "relation": {"source": "a", "name": "b", "target": "c"}}]},
}  # fmt: skip
"""A field of a layer against each rule of what its convolution reads."""
BREAKS_RULE = {
    **{message: _of_layers({**_SAGE, **fields}) for message, fields in _OPTIONS.items()},
    "conv must be given: the kind of convolution over the relation": _of_layers(
        {"relations": [{"width": 4, "relation": {"source": "a", "name": "b", "target": "c"}}]}
    ),
    "before, head, headReadsInput, headByType and jumpingKnowledge may be given with layers only": {
        **MINIMAL,
        "model": {"head": [{"width": 4}]},
    },
    "fanouts must be one number for each of layers, and [0] without any": _of_layers(_SAGE, fanouts=[-1, -1]),
    "layers must be left out with a program, whose layers are in its file": {
        **MINIMAL,
        "model": {**PROGRAM, "layers": [_SAGE, _SAGE], "head": [{}]},
    },
    "layers must not be empty without a head: something has to give the scores": _of_layers(),
    "width must be given for each of layers, but for the last one of a network without a head, which has one column "
    "for each class, and for APPNP, GCNII, AGNN, GIN, GINE and GEN, whose width follows": _of_layers(
        {"conv": "GCN"}, _SAGE
    ),
    "columns and hidden of variants.given must be left out with model.layers, which all given weights are of": {
        **_of_layers(_SAGE),
        "variants": {"given": [{"checkpoint": {"uri": "data/a.safetensors"}, "hidden": 8}]},
    },
    "expected may be given with a checkpoint or a program only: scores of a network that is trained here are not known "
    "before": {
        **MINIMAL,
        "model": {"expected": {"uri": "data/expected.npz"}},
    },
    "expected must be given with a program: only scores that the model gave tell that it is computed right. "
    "gnnserve-describe writes them, and docs/models.md has the lines that do": {
        **MINIMAL,
        "model": {"program": {"uri": "data/model"}},
    },
    "checkpoint must be left out with a program, which has its weights in it": {
        **MINIMAL,
        "model": {**PROGRAM, "checkpoint": {"uri": "file:///a.safetensors"}},
    },
    "architecture, hidden, mlpHidden, heads, outputHeads, negativeSlope, hops, bases and relationFanouts must be left "
    "out with layers, which say these themselves, and with a program, whose layers are in its file, fanouts too: "
    "program.fanouts says how many neighbours are sampled": {
        **MINIMAL,
        "model": {**PROGRAM, "architecture": "GIN"},
    },
    "hops, inputs and scores must be given together, and embeddings, otherScores and readsDegrees beside them only; "
    "all are left out where uri is a folder that gnnserve-describe or gnnserve export wrote": {
        **MINIMAL,
        "model": {**PROGRAM, "program": {"uri": "data/model", "hops": 2}},
    },
    "fanouts must be left out with readsDegrees: the layers count edges, which are right over whole lists alone": {
        **MINIMAL,
        "model": {**PROGRAM, "program": {**CONTRACT, "readsDegrees": True, "fanouts": [5, 5]}},
    },
    "fanouts must be one number for each of hops": {
        **MINIMAL,
        "model": {**PROGRAM, "program": {**CONTRACT, "fanouts": [5]}},
    },
    "model.program.otherScores must not be given without task.links and graph.source.typed: nodes of one type are "
    "classified": {
        **TYPED,
        "model": {
            **PROGRAM,
            "program": {**CONTRACT, "otherScores": [{"name": "rows", "columns": 10, "type": "author"}]},
        },
    },
    "task.links.dimensions must be as many as the columns of model.program.embeddings, or of scores where there are no "
    "embeddings: these are the rows that pairs are scored by": {
        **MINIMAL,
        "model": {**PROGRAM, "program": CONTRACT},
        "task": {"links": {"dimensions": 9}},
    },
    "expected.scores, of model and of variants.given, must be Logits with task.links: rows are compared as they are": {
        **MINIMAL,
        "model": {**PROGRAM, "expected": {**PROGRAM["expected"], "scores": "Probabilities"}},
        "task": {"links": {}},
    },
    "model.program.decoder must be given for task.links.decoder DistMult and MLP, whose weights it names, or be in the "
    "folder of gnnserve-describe or gnnserve export; without them it must be left out": {
        **MINIMAL,
        "model": {**PROGRAM, "program": CONTRACT},
        "task": {"links": {"decoder": "MLP", "dimensions": 10}},
    },
    "variants.given must be programs (program in place of checkpoint) with model.program: checkpoints are other "
    "weights of the layers that spec.model describes, and a program has its own in its file": {
        **MINIMAL,
        "model": PROGRAM,
        "variants": {"given": [GIVEN]},
    },
    "variants.given must be checkpoints, and no programs, without model.program: variants of a service are all "
    "programs, or all networks; gnnserve export writes a network as a program, to be served as model.program beside "
    "them": {**MINIMAL, "variants": {"given": [PROGRAM]}},
    "either checkpoint or program must be given, and not both: a program has its weights in it": {
        **MINIMAL,
        "variants": {"given": [{"name": "small"}]},
    },
    "expected must be given with program: only scores that the model gave tell that it is computed right": {
        **MINIMAL,
        "model": PROGRAM,
        "variants": {"given": [{"program": PROGRAM["program"]}]},
    },
    "columns and hidden must be left out with program, whose layers and columns are in its file": {
        **MINIMAL,
        "model": PROGRAM,
        "variants": {"given": [{**PROGRAM, "hidden": 8}]},
    },
    "variants.channels must not be given with one of model.layers alone, which has no hidden channels without before "
    "and head": {**_of_layers(_SAGE), "variants": {"channels": [{"factor": 2}]}},
    "table Projected of variants.channels must not be given where no product stands before the first aggregation of "
    "model.layers: it needs model.before, or a first layer that adds up or weighs products of rows, as GraphSAGE, GCN "
    "and GAT do, with later ones that do not read the network's input; use table Features or Stored": {
        **_of_layers({**_SAGE, "aggregations": ["Max"]}, _SAGE),
        "variants": {"channels": [{"factor": 2, "table": "Projected"}]},
    },
    "variants.stored and channels must be left out with model.program, which is computed as a whole: storage, fanouts, "
    "oneRow, cascades and search are there": {
        **MINIMAL,
        "model": PROGRAM,
        "variants": {"stored": [1]},
    },
    "variants.fanouts must be one number for each of model.program.hops, and be left out with "
    "model.program.readsDegrees: layers that count edges are right over whole lists alone": {
        **MINIMAL,
        "model": {**PROGRAM, "program": CONTRACT},
        "variants": {"fanouts": [[5]]},
    },
    "variants.fanouts must be one number for each of the hops of every program of variants.given, and be left out "
    "where one reads degrees: fewer neighbours are sampled for all of them": {
        **MINIMAL,
        "model": {**PROGRAM, "program": CONTRACT},
        "variants": {"fanouts": [[5, 5]], "given": [{**PROGRAM, "program": {**CONTRACT, "hops": 3}}]},
    },
    "columns of scores of variants.given[].program must be as many as those of model.program: they are scores of the "
    "same classes": {
        **MINIMAL,
        "model": {**PROGRAM, "program": CONTRACT},
        "variants": {"given": [{**PROGRAM, "program": {**CONTRACT, "scores": {"name": "logits", "columns": 9}}}]},
    },
    "columns of otherScores must be as many as those of scores: rows of all types are as wide": {
        **TYPED,
        "task": {"links": {"relation": "writes", "dimensions": 10}},
        "model": {
            **PROGRAM,
            "program": {
                **CONTRACT,
                "scores": {"name": "rows", "columns": 10, "type": "paper"},
                "otherScores": [{"name": "others", "columns": 9, "type": "author"}],
            },
        },
    },
    "each of variants.fanouts must be smaller than model.program.fanouts: as many numbers, none above it, one "
    "below it": {
        **MINIMAL,
        "model": {**PROGRAM, "program": {**CONTRACT, "fanouts": [5, 5]}},
        "variants": {"fanouts": [[5, 6]]},
    },
    "task.links must not be given with model.architecture SGC or SIGN: their features are propagated along the very "
    "edges that training learns from": {
        **MINIMAL,
        "task": {"links": {}},
        "model": {"architecture": "SGC", "fanouts": [0]},
    },
    "model.architecture LightGCN must not be given with variants.fanouts, channels, oneRow and cascades and "
    "model.relationFanouts: what is served are embeddings that were learnt of the nodes, one row for each, and no "
    "features are read that a cheaper network could answer from": {
        **MINIMAL,
        "task": {"links": {}},
        "model": {"architecture": "LightGCN", "fanouts": [0]},
        "variants": {"pruning": {"factors": [1]}, "channels": [{"factor": 2}]},
    },
    "task.links.comparedWith All and Nothing must not be given but for model.architecture LightGCN and without "
    "task.links.negatives: no nodes are drawn": {**MINIMAL, "task": {"links": {"comparedWith": "All"}}},
    "model.architecture LightGCN must not be given without task.links with decoder Dot, variants.pruning.factors [1] "
    "and projection Auto, nor with variants.stored: its rows are embeddings, as wide as task.links.dimensions says": {
        **MINIMAL,
        "task": {"links": {}},
        "model": {"architecture": "LightGCN", "fanouts": [0]},
    },
    "model.checkpoint and variants.given must not be given with model.architecture LightGCN, whose weights are a row "
    "for each node: bring the model as a program, model.program, with these rows as features of the nodes": {
        **MINIMAL,
        "task": {"links": {}},
        "model": {
            "architecture": "LightGCN",
            "fanouts": [0],
            "checkpoint": {"uri": "file:///m.safetensors"},
        },
        "variants": {"pruning": {"factors": [1]}},
    },
    "decoder of model.checkpoint, and of checkpoint and program of variants.given, must be left out without "
    "task.links.decoder DistMult or MLP, whose weights it names": {
        **MINIMAL,
        "task": {"links": {}},
        "model": {"checkpoint": {"uri": "file:///m.safetensors", "decoder": {"uri": "file:///d.safetensors"}}},
    },
    "variants.given must not be given with task.links.decoder DistMult and MLP beside a model that is trained: one "
    "decoder reads all variants, and that one is learnt with the model; give model.checkpoint, whose decoder they were "
    "trained with, or use Dot": {
        **MINIMAL,
        "task": {"links": {"decoder": "MLP"}},
        "variants": {"given": [GIVEN]},
    },
    "hops of variants.oneRow must be 0 with task.links and a model that is given: its graph has the links that "
    "variants are judged by, which rows of propagated features would hold": {
        **MINIMAL,
        "task": {"links": {}},
        "model": {
            "program": {"uri": "file:///m.onnx", "hops": 1, "scores": {"name": "y", "columns": 64}},
            "expected": {"uri": "file:///e.npz"},
        },
        "variants": {"oneRow": [{"hops": 1}]},
    },
    "variants.thresholds PerClass and pruning.stabilitySeeds must not be given with task.links: they are of classes of "
    "nodes": {
        **MINIMAL,
        "task": {"links": {}},
        "variants": {"thresholds": "PerClass"},
    },
    "variants.metric must be Auto, ROCAUC, AveragePrecision, MRR or RecallAtK with task.links; MRR and RecallAtK are "
    "for links alone": {**MINIMAL, "task": {"links": {}}, "variants": {"metric": "Accuracy"}},
    "updates must not be given with model.architecture LightGCN but for graph.source.typed with reverse Add: the "
    "embedding of a node follows what its own lists say that it is joined to": {
        **MINIMAL,
        "task": {"links": {}},
        "model": {"architecture": "LightGCN", "fanouts": [0]},
        "variants": {"pruning": {"factors": [1]}},
        "updates": {"log": {"sqlite": {}}},
    },
    "replicas, resources, gpu and all else about pods must not be given with poolRef: they are the GNNWorkerPool's, "
    "whose workers compute on the CPU; set nothing here but poolRef, share, batching and tracing": {
        **MINIMAL,
        "worker": {**POOLED, "share": 2, "replicas": 3, "resources": {"limits": {"cpu": 1}}},
    },
    "image, imagePullSecrets and, of repository, claimName, claim and deletionPolicy must not be given with "
    "worker.poolRef: set them in the GNNWorkerPool": {
        **MINIMAL,
        "worker": POOLED,
        "repository": {"deletionPolicy": "Retain"},
    },
    "deletionPolicy must not be given with claimName: a claim of yours is never deleted by the operator; leave "
    "deletionPolicy out": {**MINIMAL, "repository": {"claimName": "mine", "deletionPolicy": "Retain"}},
    "updates.maxDelta must be less than half of worker.resources.limits.memory with routing.canary, whose revision "
    "keeps the changes too: lower the one, or raise the other": {
        **MINIMAL,
        "routing": CANARY,
        "updates": {"log": {"postgres": {"secretName": "log"}}},
        "worker": {"resources": {"limits": {"memory": "4Gi"}}},
    },
    "routing.canary must not be given with worker.poolRef: a pool's memory is counted by one revision for each "
    "service": {**MINIMAL, "routing": CANARY, "worker": POOLED},
    "updates.log.sqlite must not be given with worker.poolRef: the workers of a pool write no volume; use "
    "updates.log.postgres": {**MINIMAL, "worker": POOLED, "updates": {"log": {"sqlite": {}}}},
    "requests must not be more than limits: lower the request, or raise the limit": {
        **MINIMAL,
        "worker": {"resources": {"requests": {"memory": "4Gi"}, "limits": {"memory": "4000M"}}},
    },
    **{
        f"the names of {field} must be {RESOURCE_NAMES}": {**MINIMAL, "worker": {"resources": {field: {"gpu": 1}}}}
        for field in ("requests", "limits")
    },
    "key may be absent with operator Exists only": {**MINIMAL, "worker": {"tolerations": [{"value": "a"}]}},
    "value must not be set with operator Exists, which takes any value": {
        **MINIMAL,
        "worker": {"tolerations": [{"operator": "Exists", "value": "a"}]},
    },
    "values must be given with operators In and NotIn, and only there": {
        **MINIMAL,
        "worker": {
            "affinity": {
                "podAntiAffinity": {
                    REQUIRED: [
                        {"topologyKey": "a", "labelSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}
                    ]
                }
            }
        },
    },
    "values must be given, but for operators Exists and DoesNotExist": {
        **MINIMAL,
        "generation": node_affinity(operator="Exists", values=["a"]),
    },
    "minDomains may be given with whenUnsatisfiable DoNotSchedule only": {
        **MINIMAL,
        "repository": {"claimName": "a"},
        "worker": {
            "topologySpreadConstraints": [{"topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}]
        },
    },
    "worker.topologySpreadConstraints may be given with a repository that pods of several nodes may mount only: "
    "repository.claimName, or repository.claim.accessMode ReadWriteMany": {
        **MINIMAL,
        "worker": {"topologySpreadConstraints": [{"topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}]},
    },
    LABELS_ARE_RESERVED: {**MINIMAL, "worker": {"podLabels": {"app.kubernetes.io/component": "a"}}},
    POD_ANNOTATIONS_ARE_RESERVED: {**MINIMAL, "generation": {"podAnnotations": {"gnnserve.dev/claim": "a"}}},
    ANNOTATIONS_ARE_RESERVED: {**MINIMAL, "endpoint": {"service": {"annotations": {"gnnserve.dev/term": "a"}}}},
    "tls and tokens must name two Secrets: every value of the second is an accepted token": {
        **MINIMAL,
        "endpoint": {"tls": {"secretName": "one"}, "tokens": {"secretName": "one"}},
    },
    "writeTokens must name a Secret of its own: every value of it is a token that may write": {
        **MINIMAL,
        "endpoint": {"tokens": {"secretName": "one"}, "writeTokens": {"secretName": "one"}},
    },
    "at most one of claimName and claim may be set": {**MINIMAL, "repository": {"claimName": "a", "claim": {}}},
    "exactly one of builtin, npz, ogb, pyg, parquet, csv and typed must be set": {"graph": {"source": {}}},
    "exactly one of npz, heteroData, parquet and csv must be set": {"graph": {"source": {"typed": {}}}},
    "only one of label and labels may be given": {
        "graph": {
            "source": {
                "typed": {
                    "parquet": {
                        "nodes": [{"type": "user", "uri": "file:///a", "label": "a", "labels": ["b", "c"]}],
                        "edges": [
                            {"uri": "file:///b", "sourceType": "user", "relation": "knows", "targetType": "user"}
                        ],
                    }
                }
            }
        }
    },
    "each of variants.fanouts must be smaller than model.fanouts: as many numbers, none above it, one below it": {
        **MINIMAL,
        "variants": {"fanouts": [[15, 11]]},
    },
    "with fanouts, factors, given, stored, channels and one more, times storages, times fanouts and one more must be "
    "at most 36 variants": {
        **MINIMAL,
        "variants": {"fanouts": [[fanout, 5] for fanout in range(1, 9)]},
    },
    "stabilitySeeds must be 0 with method Random, which depends on its seed alone": {
        **MINIMAL,
        "variants": {"pruning": {"method": "Random", "stabilitySeeds": 2}},
    },
    "variants.pruning.stabilitySeeds must be 0 with a model.checkpoint, model.program or model.layers: no columns are "
    "ranked by networks that are trained here": {
        **MINIMAL,
        "model": {"checkpoint": {"uri": "file:///a.safetensors"}},
        "variants": {"pruning": {"stabilitySeeds": 2}},
    },
    "exactly one of label and labels must be given": {
        "graph": {
            "source": {"csv": {"nodes": {"uri": "file:///n.csv"}, "edges": {"uri": "file:///e.csv"}}},
        }
    },
    "fanouts must be all positive, or all -1 for the full neighbourhood": {**MINIMAL, "model": {"fanouts": [-1, 5]}},
    "fanouts would sample over 1,000,000 nodes for one seed: use smaller ones, or -1 for all neighbours": {
        **MINIMAL,
        "model": {"fanouts": [1000, 1000]},
    },
    "must be Auto, or a whole number from 1 to 10000": {**MINIMAL, "model": {"training": {"epochs": "auto"}}},
    "mlpHidden may be given with architecture GIN only": {**MINIMAL, "model": {"mlpHidden": 64}},
    "hops may be given with architectures SGC, SIGN and LightGCN only": {**MINIMAL, "model": {"hops": 2}},
    "hops must be at least 1 with architecture SGC": {
        **MINIMAL,
        "model": {"architecture": "SGC", "fanouts": [0], "hops": 0},
    },
    "fanouts must be 0 with architectures SGC, SIGN and LightGCN, whose neighbours are in their tables, and with "
    "no other": {
        **MINIMAL,
        "model": {"architecture": "SIGN"},
    },
    "fanouts must be [0] with architectures SGC and LightGCN, which have one layer": {
        **MINIMAL,
        "model": {"architecture": "SGC", "fanouts": [0, 0]},
    },
    "variants.given must not be given with model.architecture SGC or SIGN": {
        **MINIMAL,
        "model": {"architecture": "SIGN", "fanouts": [0, 0]},
        "variants": {"given": [{"checkpoint": {"uri": "file:///a.safetensors"}, "columns": [0]}]},
    },
    "with oneRow, its entries and factors, given, stored, channels and one more, these times fanouts and one more, "
    "times storages, must be at most 36 variants": {
        **MINIMAL,
        "variants": {
            "fanouts": [[5, 5], [4, 4]],
            "oneRow": [{"hops": hops} for hops in range(5)],
            "storage": ["int8", "float32"],
        },
    },
    "oneRow must not be given where given variants are all there is: there is no model to learn from": {
        **MINIMAL,
        "variants": {
            "given": [GIVEN],
            "pruning": {"factors": []},
            "projection": "Disabled",
            "oneRow": [{"hops": 0}],
        },
    },
    "stored, fanouts, given, oneRow, channels and projection must be left out with search Auto, which finds them out": {
        **MINIMAL,
        "variants": {"search": "Auto", "stored": [1]},
    },
    "first and then must be two variants": {**MINIMAL, "variants": {"cascades": [{"first": "x1", "then": "x1"}]}},
    "variants.cascades must be left out with variants.search Auto: their stages are variants that are listed": {
        **MINIMAL,
        "variants": {"search": "Auto", "cascades": [CASCADE]},
    },
    "variants.cascades must not be given with variants.thresholds PerClass: they go by the highest score": {
        **MINIMAL,
        "variants": {"thresholds": "PerClass", "cascades": [CASCADE]},
    },
    "two of variants.cascades must not have the same stages: list their passOnPercents together": {
        **MINIMAL,
        "variants": {"cascades": [CASCADE, {**CASCADE, "passOnPercents": [7]}]},
    },
    "with variants.cascades, the other variants and 3 for each cascade must be at most 36: list fewer factors, "
    "storages, fanouts or cascades": {
        **MINIMAL,
        "variants": {"cascades": [CASCADE, {"first": "x4", "then": "x1"}], "storage": [*Storage], "stored": [1, 2, 3]},
    },
    "heads, outputHeads and negativeSlope may be given with architecture GAT only": {**MINIMAL, "model": {"heads": 2}},
    "hidden must be a multiple of heads: each head has hidden / heads columns": {
        **MINIMAL,
        "model": {"architecture": "GAT", "heads": 3},
    },
    "factors, given, stored and channels, times storages, must be at most 32 variants": {
        **MINIMAL,
        "variants": {"pruning": {"factors": [1, 2, 3, 4, 5, 6, 7, 8]}, "storage": [*Storage], "given": [GIVEN]},
    },
    "pruning.factors may be empty beside given, stored or channels only": {
        **MINIMAL,
        "variants": {"pruning": {"factors": []}},
    },
    "each of variants.stored must be a layer of the model, which has one for each of model.fanouts": {
        **MINIMAL,
        "variants": {"stored": [1, 3]},
    },
    (
        "variants.storedFollowChanges must not be given without a layer behind the first in variants.stored, hops in "
        "variants.oneRow, or variants.search Auto of a model that samples neighbours by layers: stored1 and mlp0 "
        "follow changes anyway"
    ): {**MINIMAL, "variants": {"stored": [1], "storedFollowChanges": True}},
    "variants.stored must not be given where model.fanouts are 0: nothing but the features is aggregated": {
        **MINIMAL,
        "model": {"architecture": "SGC", "fanouts": [0]},
        "variants": {"stored": [1]},
    },
    "columnFactor must be 1 with a table other than Features, whose rows are as wide for any number of columns": {
        **MINIMAL,
        "variants": {"channels": [{"factor": 2, "columnFactor": 4, "table": "Stored"}]},
    },
    "columnFactor of channels that read Features, 1 where it is left out, must be one of pruning.factors": {
        **MINIMAL,
        "variants": {"channels": [{"factor": 2, "columnFactor": 3}]},
    },
    "variants.channels must not be given with a model of one layer, which has no hidden channels, nor with SGC and "
    "SIGN": {
        **MINIMAL,
        "model": {"fanouts": [10]},
        "variants": {"channels": [{"factor": 2}]},
    },
    "factor of variants.channels must be at most model.hidden, divided by heads, and at most model.mlpHidden: it "
    "leaves no channel otherwise": {
        **MINIMAL,
        "model": {"architecture": "GAT", "hidden": 24, "heads": 8},
        "variants": {"channels": [{"factor": 3}, {"factor": 4, "table": "Projected"}]},
    },
    "names of given variants must not repeat": {
        **MINIMAL,
        "variants": {"given": [{**GIVEN, "name": "a"}, {**GIVEN, "name": "a"}]},
    },
    "stabilitySeeds must be 0 without factors, for which columns are ranked": {
        **MINIMAL,
        "variants": {"pruning": {"factors": [], "stabilitySeeds": 1}, "given": [GIVEN]},
    },
    "model.checkpoint must not be given where variants.given are all there is: none is made of it": {
        **MINIMAL,
        "model": {"checkpoint": {"uri": "file:///a.safetensors"}},
        "variants": {"pruning": {"factors": []}, "projection": "Disabled", "given": [GIVEN]},
    },
    "maxQueuedSeeds must be at least maxSeeds": {
        **MINIMAL,
        "worker": {"batching": {"maxSeeds": 9, "maxQueuedSeeds": 8}},
    },
    "gpu must be given with device GPU, so that pods are placed where there is one: gpu: {} asks for one "
    "nvidia.com/gpu": {**MINIMAL, "worker": {"device": "GPU"}},
    "worker.device must be Auto or CPU with graph.source.typed and with model.fanouts of -1: a GPU samples graphs of "
    "one type, and not whole neighbourhoods": {
        **TYPED,
        "worker": {"device": "GPU", "gpu": {}},
    },
    f"worker.device must be Auto or CPU with these model.layers: {LISTED_ON_GPU}": {
        **_of_layers({"conv": "GCN", "width": 4, "selfLoops": False}, fanouts=[5]),
        "worker": {"device": "GPU", "gpu": {}},
    },
    "gpu must not be given with device CPU, which would leave it idle": {
        **MINIMAL,
        "worker": {"device": "CPU", "gpu": {}},
    },
    "model.architecture must be GraphSAGE, GAT, RGCN or LightGCN with graph.source.typed: GIN, GCN, SGC and SIGN add "
    "up rows of a node and its neighbours, and each type of nodes has columns of its own": {
        **TYPED,
        "model": {"architecture": "GIN"},
    },
    "model.architecture RGCN must not be given without graph.source.typed, a graph of several relations": {
        **MINIMAL,
        "model": {"architecture": "RGCN"},
    },
    "bases may be given with architecture RGCN only": {**MINIMAL, "model": {"bases": 2}},
    "variants.projection must not be Disabled with graph.source.typed, but with variants.given and pruning.factors [] "
    "as all there is: products are always made of a model over types": {
        **TYPED,
        "variants": {"projection": "Disabled"},
    },
    "columns of variants.given must be left out with graph.source.typed: a row is a product, as wide as the hidden "
    "layer, whichever columns it is made of": {**TYPED, "variants": {"given": [GIVEN]}},
    "model.training.batches must be left out without graph.source.typed and model.layers: over one type training of an "
    "architecture always samples": {
        **MINIMAL,
        "model": {"training": {"batches": "Sampled"}},
    },
    "training.batches must be left out with architectures SGC, SIGN and LightGCN, which sample no neighbours": {
        **TYPED,
        "model": {"architecture": "LightGCN", "fanouts": [0], "training": {"batches": "WholeGraph"}},
    },
    "model.relationFanouts must be left out without graph.source.typed: a graph of one type has no relations": {
        **MINIMAL,
        "model": {"relationFanouts": [{"relation": "buys", "fanouts": [5, 5]}]},
    },
    "each of relationFanouts must be smaller than fanouts: as many numbers, none above it": {
        **TYPED,
        "model": {"relationFanouts": [{"relation": "buys", "fanouts": [5, 11]}]},
    },
    "exactly one of sqlite and postgres must be set": {**MINIMAL, "updates": {"log": {}}},
    "worker.replicas must be at most 1 with updates.log.sqlite: several workers share a log in PostgreSQL, "
    "updates.log.postgres": {**MINIMAL, "updates": {"log": {"sqlite": {}}}, "worker": {"replicas": 2}},
    "updates.maxDelta must be less than worker.resources.limits.memory, within which a worker has the changes and all "
    "else: lower the one, or raise the other": {
        **MINIMAL,
        "updates": {"log": {"sqlite": {}}},
        "worker": {"resources": {"limits": {"memory": "2Gi"}}},
    },
    (
        "rows and backgroundPermille must not both be 0: no stale row would be made anew, which "
        "variants.storedFollowChanges false says"
    ): {
        **MINIMAL,
        "variants": {"stored": [2], "storedFollowChanges": True},
        "updates": {"log": {"sqlite": {}}, "refresh": {"rows": 0, "backgroundPermille": 0}},
    },
    (
        "updates.refresh must not be given without variants.storedFollowChanges true and a layer behind the first, "
        "which variants.stored lists or variants.search Auto tries: rows of no others may be stale"
    ): {
        **MINIMAL,
        "variants": {"stored": [1], "oneRow": [{"hops": 1}], "storedFollowChanges": True},
        "updates": {"log": {"sqlite": {}}, "refresh": {}},
    },
    "updates.compaction.retrain must not be true where all weights are given: there is nothing to train": {
        **MINIMAL,
        "model": {"checkpoint": {"uri": "file:///model.safetensors"}},
        "updates": {"log": {"sqlite": {}}, "compaction": {"retrain": True}},
    },
    "embeddings.sinks must name Secrets of their own: each value of those of endpoint is a token or a key": {
        **MINIMAL,
        "embeddings": {"sinks": [{"postgres": {"secretName": "one"}}]},
        "endpoint": {"tokens": {"secretName": "one"}},
    },
    "generation.hub must name a Secret of its own: each value of those of endpoint is a token or a key": {
        **MINIMAL,
        "generation": {"hub": {"secretName": "one"}},
        "endpoint": {"tokens": {"secretName": "one"}},
    },
    "index must be true where there are no sinks: there would be nothing to do": {
        **MINIMAL,
        "embeddings": {"index": False},
    },
    "a sink must be one: postgres must be set": {**MINIMAL, "embeddings": {"sinks": [{}]}},
    "updates.log.postgres must name a Secret of its own: each value of those of endpoint is a token or a key": {
        **MINIMAL,
        "updates": {"log": {"postgres": {"secretName": "one"}}},
        "endpoint": {"writeTokens": {"secretName": "one"}},
    },
    "variant must be given in mode Static, and only there": {**MINIMAL, "routing": {"mode": "Static"}},
    "weights must be given in mode Weights, and only there": {**MINIMAL, "routing": {"weights": {"x1": 1}}},
    "one of the weights must be above 0": {**MINIMAL, "routing": {"mode": "Weights", "weights": {"x1": 0}}},
}
"""A spec against each CEL rule: this is where the API server and pydantic must say the same."""
