"""Programs that score links between types."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.support.graphs.graphs import service_of
from tests.support.programs.program_types import HIDDEN, ITEMS, PROGRAM, USERS, Model
from tests.support.programs.program_types_generated import hetero_data

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.repository.repository import Repository

IDS = [*(f"user/{node}" for node in range(USERS)), *(f"item/{node}" for node in range(ITEMS))]


class Encoder(Model):
    """Rows of users and of items."""

    def forward(self, **given: torch.Tensor) -> Any:  # type: ignore[override]
        nodes = {"user": given["x_user"], "item": given["x_item"]}
        knows, bought, buys = (("user", "knows", "user"), ("item", "bought_by", "user"), ("user", "buys", "item"))
        edges = {knows: given["knows"], bought: given["bought_by"], buys: given["buys"]}
        having = {bought: torch.cat([given["attr"], given["time"][:, None].to(given["attr"].dtype) / 100], 1)}
        for layer in self.layers:
            nodes = layer(nodes, edges, edge_attr_dict=having)
            nodes = {"user": torch.nn.functional.elu(self.norm(nodes["user"])), "item": nodes["item"].relu()}
        return nodes["user"], nodes["item"]

    def over(self, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            found = self(**{name: torch.tensor(array) for name, array in arrays.items()})
        return [each.numpy() for each in found]


@dataclass(frozen=True)
class Given:
    folder: Path
    module: Encoder
    rows: np.ndarray
    """Rows of all users, and behind them of all items, as the module gives them over the whole graph."""

    @property
    def repository(self) -> Repository:
        return Repository(self.folder / "repository", "default", "tiny")

    def service(self, parts: dict[str, Any] | None = None, **more: Any) -> GNNService:
        """`parts`: of the spec; `more`: of the program's contract."""
        inputs = []
        for each in PROGRAM.inputs:
            relation = {name: getattr(each.relation, name) for name in ("source", "name", "target")}
            of = {"relation": relation} if each.relation.name else {"type": each.type}
            inputs.append({"name": each.name, "is": str(each.role), **of})
        program = {
            "uri": (self.folder / "model.onnx").as_uri(),
            "hops": 2,
            "inputs": inputs,
            "scores": {"name": "user", "type": "user", "columns": HIDDEN},
            "otherScores": [{"name": "item", "type": "item", "columns": HIDDEN}],
            **more,
        }
        model = {"program": program, "expected": {"uri": (self.folder / "expected.npz").as_uri()}}
        spec = service_of("file:///none.npz")
        document = spec.model_dump(by_alias=True, exclude_none=True)
        typed = {**hetero_data(self.folder), "reverse": "Disabled"}
        document["spec"]["graph"]["source"] = {"typed": typed}
        document["spec"] |= {"model": model, "task": {"links": {"relation": "buys", "dimensions": HIDDEN}}}
        return GNNService.model_validate({**document, "spec": {**document["spec"], **(parts or {})}})

    def generate(self, **more: Any) -> RevisionManifest:
        return generate(self.service(**more), self.repository)
