"""A finished variant that the user gives."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from gnnserve_api.spec.fields import ApiModel, text
from gnnserve_api.spec.model import Checkpoint, ExpectedScores
from gnnserve_api.spec.program import ProgramFile
from gnnserve_api.spec.rules import rule
from gnnserve_api.variants import MAX_GIVEN_NAME

_MAX_COLUMNS = 65_536
_MAX_COLUMN_NAME = 253


def _parse_column(value: object) -> object:
    is_index = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    is_name = isinstance(value, str) and 0 < len(value) <= _MAX_COLUMN_NAME
    if not is_index and not is_name:
        raise ValueError("must be the name of a column, or its index among the features, from 0")
    return value


Column = Annotated[
    int | str,
    BeforeValidator(_parse_column),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "minimum": 0, "minLength": 1, "maxLength": _MAX_COLUMN_NAME}),
]
_GENERATED_NAME = "^(x[0-9]+|projected|given-[0-9]+)(-.*)?$|-(float16|bfloat16|int8|f[0-9x]+)$"
"""Names that generation makes up itself."""


class GivenNetwork(ApiModel):
    checkpoint: Checkpoint | None = None
    """Weights of spec.model's architecture, whose first layer reads `columns`, or of the layers in model.layers.
    Absent: the variant is a program."""
    program: ProgramFile | None = None
    """A program of the same task and graph as model.program, as a smaller one that was distilled from model.program:
    with inputs, hops and neighbours of its own. It needs `expected`. Its decoder, where links are scored by one with
    weights, is that of model.program. Absent: the variant is a checkpoint."""
    columns: Annotated[tuple[Column, ...], Field(min_length=1, max_length=_MAX_COLUMNS)] | None = None
    """Feature columns that the given variant reads, in the order of the first layer's inputs: names of the source's
    columns, or indices among the features, from 0. A name of a column of lists stands for all of its features. Absent:
    all, in the order of the source; so it is over several types, where a row is as wide as the hidden layer, whichever
    columns it is made of."""
    hidden: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Width of the hidden layers of the given variant, in channels. Absent: that of spec.model."""
    expected: ExpectedScores | None = None
    """Scores that the variant's model gave, compared before anything is published. Absent: what a file of weights does
    not tell is assumed."""
    name: (
        Annotated[
            str,
            text(
                r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
                f"at most {MAX_GIVEN_NAME} lower-case letters, digits and '-', a letter first, as in small",
                MAX_GIVEN_NAME,
            ),
        ]
        | None
    ) = None
    """Name of the given variant. Absent: given- and its place in the list, as in given-1."""

    @property
    def weights(self) -> Checkpoint:
        """The checkpoint of a variant that is one. Raises ValueError for a program."""
        if self.checkpoint is None:
            raise ValueError(f"{self.name} is a program, which has its weights in it")
        return self.checkpoint

    _has_one_kind_of_weights = rule(
        "has(self.checkpoint) != has(self.program)",
        "either checkpoint or program must be given, and not both: a program has its weights in it",
    )

    _programs_have_expected_scores = rule(
        "!has(self.program) || has(self.expected)",
        "expected must be given with program: only scores that the model gave tell that it is computed right",
    )

    _programs_have_their_layers = rule(
        "!has(self.program) || (!has(self.columns) && !has(self.hidden))",
        "columns and hidden must be left out with program, whose layers and columns are in its file",
    )

    _name_is_free = rule(
        f"!has(self.name) || !self.name.matches('{_GENERATED_NAME}')",
        "name {self.name} must not be one that variants get by themselves, as x2, projected, given-1, a-int8 and "
        "a-f15x5 are[: use another, or leave it out]",
    )
