"""Encoders whose rows are read in pairs: described with the decoder, and served as they are by the manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
import yaml
from safetensors.torch import load_file
from tests.support.programs.described import CLASSES, GRAPH, TYPED_GRAPH, Net, TypedNet

from gnnserve_api.errors import InputError
from gnnserve_api.manifest import load_manifest
from gnnserve_api.spec.task import Decoder, Links
from gnnserve_describe import Wishes, describe, links_of, write
from gnnserve_describe.decoder import DIST_MULT, DOT, MLP, decoder_of
from gnnserve_worker.generation.given_program import decoder_tensors
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.score_links.given_decoder import read_decoder
from gnnserve_worker.tasks.score_links.links import served_links

ROWS = 8


class Encoder(Net):
    """Gives classes and rows."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        hidden = torch.nn.functional.elu(self.norm(self.first(x, edge_index)))
        rows = self.second(hidden, edge_index)
        return self.head(rows), {"rows": rows}


class Beside(torch.nn.Module):
    """A perceptron over both rows, as torch's own tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.hidden, self.last = torch.nn.Linear(2 * ROWS, 12), torch.nn.Linear(12, 1)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        hidden = self.hidden(torch.cat([first, second], dim=-1)).relu()
        return torch.sigmoid(self.last(hidden)).view(-1)


class Weighed(torch.nn.Module):
    """Rows and an edge_index of pairs, as torch_geometric's decoders take them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 2, ROWS))

    def forward(self, z: torch.Tensor, edge_label_index: torch.Tensor) -> torch.Tensor:
        return (z[edge_label_index[0]] * self.weight * z[edge_label_index[1]]).sum(dim=-1)


class Summed(torch.nn.Module):
    """A perceptron with a matrix for each row, as tgn.py has it."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.first = torch.nn.Linear(ROWS, 12), torch.nn.Linear(ROWS, 12)
        self.last = torch.nn.Linear(12, 1)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return self.last((self.first(first) + self.second(second)).relu())


class Opposed(torch.nn.Module):
    """Some columns attract and others repel."""

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return (first[:, :3] * second[:, :3]).sum(dim=1) - (first[:, 3:] * second[:, 3:]).sum(dim=1)


class Translated(torch.nn.Module):
    """TransE of one relation."""

    def __init__(self) -> None:
        super().__init__()
        self.relations = torch.nn.Embedding(3, ROWS)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return -((first + self.relations.weight[1]) - second).norm(p=1, dim=-1)


class OfTypes(Beside):
    """Rows by type and pairs of their numbers, as torch_geometric's examples over several types take them."""

    def forward(self, z_dict: dict[str, torch.Tensor], edge_label_index: torch.Tensor) -> torch.Tensor:
        row, col = edge_label_index
        return super().forward(z_dict["author"][row], z_dict["paper"][col])


class Product(torch.nn.Module):
    """A perceptron over the product of both rows, which servers do not know."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Sequential(torch.nn.Linear(ROWS, ROWS), torch.nn.ReLU(), torch.nn.Linear(ROWS, 1))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(first * second)
        return found


def test_an_encoder_is_served_by_its_manifest_with_the_scores_of_its_decoder(tmp_path: Path) -> None:
    encoder, decoder, folder = Encoder(pyg.SAGEConv).eval(), Beside(), tmp_path / "described"
    made = describe(encoder, GRAPH, folder, Wishes(output="rows", scored=links_of(""), decoder=decoder))
    assert (made.program.scores.columns, made.program.embeddings, made.has_graph) == (ROWS, None, True)
    document = yaml.safe_load((folder / write.MANIFEST).read_text())["spec"]
    assert document["task"] == {"links": {"decoder": "MLP", "dimensions": ROWS}}
    assert set(load_file(folder / write.DECODER)) == set(decoder.state_dict())
    service = load_manifest(folder / write.MANIFEST)
    repository = Repository(tmp_path / "repository", "default", "described")
    revision = generate(service, repository)
    loaded = load_revision(repository, revision.revision)
    ends = np.random.default_rng(3).integers(0, len(GRAPH.x), (30, 2))
    nodes, places = np.unique(ends, return_inverse=True)
    rows = infer_batch(loaded, "x1", nodes, 0).scores
    found = served_links(revision, loaded.origin.folder).score(rows, *places.reshape(ends.shape).T)
    for one in loaded.programs:
        one.close()
    with torch.no_grad():
        whole = encoder(GRAPH.x, GRAPH.edge_index)[1]["rows"]
        wanted = torch.logit(decoder(whole[ends[:, 0]], whole[ends[:, 1]]).double()).numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: None, DOT), (pyg.InnerProductDecoder, DOT), (Weighed, DIST_MULT), (Opposed, DIST_MULT), (Beside, MLP),
        (Summed, MLP), (Translated, MLP), (OfTypes, MLP),
    ],
)  # fmt: skip
def test_a_decoder_is_told_by_what_it_computes_and_read_by_servers(
    make: Callable[[], torch.nn.Module | None], kind: str, tmp_path: Path
) -> None:
    found = decoder_of(make(), ROWS, ("author", "paper"))
    assert (found.kind, bool(found.weights)) == (kind, kind != DOT)
    if found.weights:
        write.write_tensors(found.weights, tmp_path / write.DECODER)
    task = Links(decoder=Decoder(kind), dimensions=ROWS)
    given = decoder_tensors(tmp_path / write.DECODER if found.weights else None)
    decoder = read_decoder(task, given).decoder
    first, second = torch.randn(2, 40, ROWS)
    wanted = found.score(first, second).detach().numpy()
    np.testing.assert_allclose(
        decoder.score(first.numpy(), second.numpy()), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max()
    )


def test_decoders_that_servers_do_not_know_are_refused() -> None:
    with pytest.raises(InputError, match=r"a Product with last.0.weight \[8, 8\], .* computes neither a dot product"):
        decoder_of(Product(), ROWS)
    with pytest.raises(InputError, match="can be called neither with rows of first and of second nodes, nor"):
        decoder_of(torch.nn.Linear(3, 1), ROWS)


class TypedEncoder(torch.nn.Module):
    """Rows of all types."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        keys = TYPED_GRAPH.edge_types
        self.layers = torch.nn.ModuleList(
            [pyg.HeteroConv({key: pyg.SAGEConv((-1, -1), ROWS) for key in keys}) for _ in range(2)]
        )
        with torch.no_grad():
            self(TYPED_GRAPH.x_dict, TYPED_GRAPH.edge_index_dict)

    def forward(self, x_dict: dict[str, torch.Tensor], edge_index_dict: dict[Any, torch.Tensor]) -> Any:
        for layer in self.layers:
            x_dict = {kind: rows.tanh() for kind, rows in layer(x_dict, edge_index_dict).items()}
        return x_dict


def test_links_between_types_are_served_by_the_manifest(tmp_path: Path) -> None:
    wishes = Wishes(scored=links_of("writes"), decoder=OfTypes())
    made = describe(TypedEncoder().eval(), TYPED_GRAPH, tmp_path / "described", wishes)
    outputs = [(each.name, each.type, each.columns) for each in made.program.outputs]
    assert outputs == [("scores", "author", ROWS), ("scores_paper", "paper", ROWS)]
    assert made.check.difference <= 1e-5 and made.has_graph
    document = yaml.safe_load((made.folder / write.MANIFEST).read_text())["spec"]
    assert document["task"]["links"] == {"relation": "author writes paper", "decoder": "MLP", "dimensions": ROWS}
    # Which holds the rows of both types, and scores of pairs, against the expected ones.
    revision = generate(load_manifest(made.folder / write.MANIFEST), Repository(tmp_path, "default", "described"))
    assert [*revision.variants]


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        (Wishes(scored=links_of("")), "--relation: links of one relation are scored, and the graph has author writes"),
        (Wishes(scored=links_of("likes")), "--relation: 'likes' is the name of none, and the graph has"),
        (Wishes(scored=links_of("writes"), target="paper"), "--target: links are scored, whose ends have"),
        (Wishes(scored=links_of("writes"), ids=range(80)), "--ids: links join types, and expected rows"),
        (Wishes(scored=links_of("writes")), "it returns torch.float32 .*: none of its outputs has a row"),
    ],
)
def test_links_between_types_name_their_relation(wishes: Wishes, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        describe(TypedNet(), TYPED_GRAPH, tmp_path / "described", wishes)
    assert not [*tmp_path.iterdir()]


def test_an_output_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    wishes = Wishes(output="embeddings", scored=links_of(""))
    with pytest.raises(
        InputError, match=r"--output: no output of nodes is called 'embeddings'; name one of: 0, 1.rows"
    ):
        describe(Encoder(pyg.SAGEConv), GRAPH, tmp_path / "described", wishes)
    assert not [*tmp_path.iterdir()]


def test_rows_are_taken_as_they_are_and_the_first_ones_are_meant(tmp_path: Path) -> None:
    class Bounded(Net):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return super().forward(x, edge_index).softmax(dim=-1)

    module = Bounded(pyg.SAGEConv).eval()
    made = describe(module, GRAPH, tmp_path / "described", Wishes(scored=links_of("")))
    assert made.program.scores.columns == CLASSES
    with np.load(tmp_path / "described" / write.EXPECTED) as arrays:
        np.testing.assert_allclose(arrays["scores"].sum(axis=1), 1, rtol=1e-5)
        first, second = np.searchsorted(arrays["nodes"], arrays["pairs"].T)
        wanted = (arrays["scores"][first] * arrays["scores"][second]).sum(axis=1)
        np.testing.assert_allclose(arrays["pair_scores"], wanted, rtol=1e-5)
    assert not (tmp_path / "described" / write.DECODER).exists()
