"""`gnnserve model inspect` on files of weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from gnnserve_cli.exits import ExitCode
from gnnserve_cli.main import app
from gnnserve_worker.generation import networks  # noqa: F401  (torch_geometric warns where it is imported before)


class _Net(nn.Module):
    def __init__(self) -> None:
        import torch_geometric.nn as pyg

        super().__init__()
        self.conv1, self.bn1 = pyg.SAGEConv(6, 16), nn.BatchNorm1d(16)
        self.conv2, self.fc = pyg.SAGEConv(16, 16), nn.Linear(16, 3)


def _inspected(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["model", "inspect", *words], env={"COLUMNS": "200"})
    return result.exit_code, result.output + result.stderr


def _manifest(printed: str) -> dict[str, Any]:
    _, _, behind = printed.partition("would serve it:\n")
    text, _, _ = behind.partition("\nThe file does not tell")
    return yaml.safe_load(text)  # type: ignore[no-any-return]


def test_a_file_is_shown_layer_by_layer_with_a_manifest_and_what_is_assumed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(_Net().state_dict(), path)

    code, printed = _inspected(str(path))

    assert code == 0, printed
    assert "2 SAGEConv layers (conv1, conv2), a BatchNorm (bn1) and a Linear behind the last convolution" in printed
    assert "layers[0]  GraphSAGE of 16 columns: conv1, bn1" in printed
    assert "head[0]    product of 3 columns: fc" in printed
    assert "- layers[].aggregations: [Mean] (sum, max and others have the same tensors)" in printed
    model = _manifest(printed)["spec"]["model"]
    layer = {"conv": "GraphSAGE", "width": 16, "aggregations": ["Mean"], "activation": "Relu"}
    assert model["layers"] == [layer | {"norm": "Batch"}, layer]
    assert (model["head"], model["fanouts"]) == ([{"width": 3}], [-1, -1])
    assert model["checkpoint"] == {"uri": str(path)}


def test_a_file_of_torch_is_written_as_safetensors_without_being_run(tmp_path: Path) -> None:
    out, net = tmp_path / "model.safetensors", _Net()
    torch.save({"epoch": 1, "state_dict": net.state_dict()}, tmp_path / "model.ckpt")

    code, printed = _inspected(str(tmp_path / "model.ckpt"), "--out", str(out))

    assert code == 0, printed
    written = load_file(out)
    assert all(torch.equal(written[key], net.state_dict()[key]) for key in written)
    assert _manifest(printed)["spec"]["model"]["checkpoint"] == {"uri": str(out)}
    code, printed = _inspected(str(tmp_path / "model.ckpt"), "--out", str(out))
    assert (code, "exists; name a file that does not" in printed) == (ExitCode.BAD_INPUT, True)


@pytest.mark.parametrize(
    ("kind", "options", "fields"),
    [
        ("GraphSAGE", {}, {"architecture": "GraphSAGE", "hidden": 16, "fanouts": [-1, -1]}),
        ("GAT", {"heads": 4}, {"architecture": "GAT", "hidden": 16, "heads": 4, "outputHeads": 4, "fanouts": [-1, -1]}),
        ("GIN", {}, {"architecture": "GIN", "hidden": 16, "fanouts": [-1, -1]}),
        ("GCN", {}, {"architecture": "GCN", "hidden": 16, "fanouts": [-1, -1]}),
        ("MLP", {"norm": None}, {"architecture": "SIGN", "hidden": 16, "hops": 0, "fanouts": [0, 0]}),
    ],
)
def test_a_plain_architecture_is_called_by_its_name(
    tmp_path: Path, kind: str, options: dict[str, Any], fields: dict[str, Any]
) -> None:
    import torch_geometric.nn as pyg

    widths = {"in_channels": 6, "hidden_channels": 16, "num_layers": 2, "out_channels": 3}
    if kind == "GIN":
        options = {**options, "norm": None}
    save_file(getattr(pyg, kind)(**widths, **options).state_dict(), tmp_path / "model.safetensors")

    code, printed = _inspected(str(tmp_path / "model.safetensors"), "--json")

    assert code == 0, printed
    model = json.loads(printed)["model"]
    del model["checkpoint"]
    assert model == fields


class _Relation(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.register_parameter(name, nn.Parameter(torch.ones(8)))


def _scoring_links(decoder: nn.Module) -> nn.Module:
    import torch_geometric.nn as pyg

    return nn.ModuleDict({"conv1": pyg.SAGEConv(6, 16), "conv2": pyg.SAGEConv(16, 8), "decoder": decoder})


@pytest.mark.parametrize(
    ("decoder", "kind"),
    [
        (_Relation("relation"), "DistMult"),
        (_Relation("weight"), "DistMult"),  # as torch.nn.PReLU calls its slopes
        (nn.Embedding(1, 8), "DistMult"),
        (nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 1)), "MLP"),
    ],
)
def test_a_decoder_of_links_is_no_layer(tmp_path: Path, decoder: nn.Module, kind: str) -> None:
    path = tmp_path / "model.safetensors"
    save_file(_scoring_links(decoder).state_dict(), path)

    code, printed = _inspected(str(path))

    assert code == 0, printed
    assert f"2 SAGEConv layers (conv1, conv2), and the weights of a decoder of links, {kind} (decoder." in printed
    spec = _manifest(printed)["spec"]
    assert spec["task"] == {"links": {"dimensions": 8, "decoder": kind}}
    assert (spec["model"]["architecture"], spec["model"]["hidden"]) == ("GraphSAGE", 16)
    assert "PReLU" not in printed and "Prelu" not in printed
    _, told = _inspected(str(path), "--json")
    assert json.loads(told)["task"] == spec["task"]


def test_a_decoder_that_scores_classes_is_a_layer(tmp_path: Path) -> None:
    save_file(_scoring_links(nn.Linear(8, 3)).state_dict(), tmp_path / "model.safetensors")
    code, printed = _inspected(str(tmp_path / "model.safetensors"))
    assert (code, "task" in _manifest(printed)["spec"]) == (0, False)
    assert _manifest(printed)["spec"]["model"]["head"] == [{"width": 3}]


def test_layers_of_relations_name_their_types(tmp_path: Path) -> None:
    import torch_geometric.nn as pyg

    convs = {("user", "buys", "item"): pyg.SAGEConv((4, 5), 8), ("item", "bought_by", "user"): pyg.SAGEConv((5, 4), 8)}
    net = nn.ModuleDict({"convs": nn.ModuleList([pyg.HeteroConv(convs)]), "lin": nn.Linear(8, 2)})
    save_file(net.state_dict(), tmp_path / "model.safetensors")

    code, printed = _inspected(str(tmp_path / "model.safetensors"))

    assert code == 0, printed
    spec = _manifest(printed)["spec"]
    (layer,) = spec["model"]["layers"]
    assert [one["relation"]["name"] for one in layer["relations"]] == ["bought_by", "buys"]
    assert spec["graph"]["source"]["typed"]["target"] == "user"
    assert "- spec.graph.source.typed.target: user (the type that is scored)" in printed


def test_an_architecture_over_several_types_is_called_by_its_name(tmp_path: Path) -> None:
    import torch_geometric.nn as pyg

    net = nn.ModuleDict({
        "encoders": nn.ModuleDict({"user": nn.Linear(4, 8)}),
        "convs": nn.ModuleList([pyg.RGCNConv(8, 8, 3, num_bases=2), pyg.RGCNConv(8, 2, 3, num_bases=2)]),
    })  # fmt: skip
    save_file(net.state_dict(), tmp_path / "model.safetensors")

    code, printed = _inspected(str(tmp_path / "model.safetensors"))

    assert code == 0, printed
    spec = _manifest(printed)["spec"]
    fields = {"architecture": "RGCN", "hidden": 8, "bases": 2, "fanouts": [-1, -1]}
    assert {name: spec["model"][name] for name in fields} == fields
    assert "typed" in spec["graph"]["source"]
    assert "- order of relations: as `gnnserve graph inspect` lists them" in printed


def test_a_file_that_no_reader_knows_has_the_program_as_its_way(tmp_path: Path) -> None:
    save_file({"gate.theta": torch.ones(3), "lin.weight": torch.ones(3, 4)}, tmp_path / "model.safetensors")

    code, printed = _inspected(str(tmp_path / "model.safetensors"))

    assert code == 0, printed
    assert "Not read: gate.theta" in printed
    assert "gnnserve-describe" in printed
    assert "would serve it" not in printed
    _, told = _inspected(str(tmp_path / "model.safetensors"), "--json")
    assert json.loads(told)["model"] is None


@pytest.mark.parametrize(("content", "said"), [(b"weights", "is not a safetensors file"), (b"", "is not a")])
def test_another_file_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    code, printed = _inspected(str(tmp_path / "model.safetensors"))
    assert (code, said in printed) == (ExitCode.BAD_INPUT, True)
