"""The base of every part of the resource, and kinds of values that several parts have."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationInfo, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gnnserve_api.docstrings import attribute_docstrings
from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.rules import Rule, RuleTable, rules_of, told_rules_of, validations

ANY_CONTEXT = "breaks_rules"
"""Key in the context of a validation: whether objects may break the rules of their types."""
_IS_SET = {"x-kubernetes-list-type": "set"}


@cache
def _sets_of(model: type[BaseModel]) -> tuple[tuple[str, str], ...]:
    """Fields that are lists of type set, each with its name in a manifest."""
    fields = model.model_fields.items()
    return tuple((name, field.alias or name) for name, field in fields if field.json_schema_extra == _IS_SET)


class ApiModel(BaseModel):
    """Base of every part of the resource: camelCase outside, strict, immutable, documented by its docstrings."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True,
        ignored_types=(Rule, RuleTable),
        # A validator is built when it is first needed: for whole resources, mostly, and not once more for each part of
        # them, which would take 20 ms and 1 MB of every process.
        defer_build=True,
    )  # fmt: skip

    default_audience: ClassVar[Audience | None] = None
    """Audience of the fields that say none, where no field that has this section says it."""

    @model_validator(mode="after")
    def _rules_hold(self, info: ValidationInfo) -> Self:
        if info.context is not None and info.context.get(ANY_CONTEXT):
            return self
        for rule in told_rules_of(type(self)):
            problem = rule.problem(self)
            if problem is not None:
                raise ValueError(problem)
        for name, alias in _sets_of(type(self)):
            members = getattr(self, name)
            if len({*members}) != len(members):
                shown = [str(one) if isinstance(one, str) else one for one in members]
                raise ValueError(f"{alias} {shown} must not repeat")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        resolved = handler.resolve_ref_schema(schema)
        if rules := rules_of(cls):
            resolved["x-kubernetes-validations"] = [rule.as_validation() for rule in rules]
        # Added here, and not by pydantic's `use_attribute_docstrings`: that reads the source of every class while it is
        # imported, which takes a third of the time.
        docstrings = attribute_docstrings(cls)
        for name, field in cls.model_fields.items():
            if name in docstrings:
                resolved["properties"][field.alias or name]["description"] = docstrings[name]
        return schema


M = TypeVar("M", bound=ApiModel)


def with_defaults(model: type[M]) -> M:
    """The model with the defaults of all its fields, to be the default of a field. Unlike `model()` it builds no
    validator; importing would build twenty otherwise."""
    return model.model_construct()


def text(pattern: str, requirement: str, max_length: int) -> Any:
    """A string that must match; the API server says what is required instead of showing a regular expression."""
    matches = (f"self.matches(r'{pattern}')", f"must be {requirement}")
    return Field(pattern=pattern, max_length=max_length, json_schema_extra=validations(matches))


ObjectName = Annotated[
    str,
    text(
        r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        "the name of a Kubernetes object: lower-case letters, digits, '-' and '.'",
        253,
    ),
]
"""The name of an object that the user has made."""
NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""A DNS label that begins with a letter: the name becomes a Service's, and the value of a label."""
PoolName = Annotated[
    str, text(NAME_PATTERN, "the name of a GNNWorkerPool: lower-case letters, digits and '-', a letter first", 63)
]
Uid = Annotated[
    str,
    text(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "a uid, as metadata.uid has it", 36),
]
ImageReference = Annotated[str, text(r"^[^\s]+$", "a reference without spaces, as in registry/gnnserve/worker:1", 512)]
RevisionName = Annotated[str, text(r"^[0-9a-f]{12}$", "a revision's name: 12 hexadecimal digits", 12)]
Sha256 = Annotated[str, text(r"^[0-9a-f]{64}$", "64 hexadecimal digits in lower case", 64)]
