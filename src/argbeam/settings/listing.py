"""List of all settings: key, accepted values, default, meaning."""

import json
from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, NamedTuple, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from argbeam.settings.recipe import Recipe

# Types of values, in words.
NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


class Setting(NamedTuple):
    """A setting. `data(text).root` is the key `data.root` where `data.kind` is text."""

    key: str
    type: str
    default: str
    meaning: str


def describe() -> list[Setting]:
    """All settings of a recipe, in the order of their definitions."""
    return list(_describe(Recipe, ""))


def _describe(model: type[BaseModel], prefix: str, hidden: str = "") -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        key, annotation = prefix + name, field.annotation
        if name == hidden:
            continue
        if members := tables_by_kind(annotation):
            kinds = ", ".join(f'"{kind}"' for kind in members)
            default = "required" if field.is_required() else json.dumps(field.get_default().kind)
            yield Setting(f"{key}.kind", f"one of {kinds}", default, field.description or "")
            for kind, member in members.items():
                yield from _describe(member, f"{key}({kind}).", hidden="kind")
        elif get_origin(annotation) is dict:
            yield from _describe(get_args(annotation)[1], f"{key}.NAME.")
        elif is_table(annotation):
            yield from _describe(annotation, f"{key}.")
        else:
            default = "required" if field.is_required() else json.dumps(field.get_default(call_default_factory=True))
            yield Setting(key, accepted(annotation, field), default, field.description or "")


def tables_by_kind(annotation: Any) -> dict[str, type[BaseModel]]:
    """The tables of a union, by `kind`; empty for other types."""
    members = _members(annotation)
    if not all(is_table(member) for member in members):
        return {}
    return {get_args(member.model_fields["kind"].annotation)[0]: member for member in members}


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()


def is_table(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, BaseModel)


def accepted(annotation: Any, field: FieldInfo | None) -> str:
    """The values of a key, in words: `a whole number at least 1`."""
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(json.dumps(choice) for choice in get_args(annotation))}"
    if get_origin(annotation) is list:
        return "a list of numbers" if get_args(annotation)[0] is float else "a list of strings"
    if _members(annotation) and not tables_by_kind(annotation):
        return " or ".join(accepted(member, None).removeprefix("one of ") for member in _members(annotation))
    bounds = bounds_of(field) if field and annotation in (int, float) else ""
    return f"{NAMES.get(annotation, 'a table')} {bounds}".strip()


def bounds_of(field: FieldInfo) -> str:
    """The bounds of a number, in words; empty where there are none."""
    names = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    marks = [(mark, name) for mark in field.metadata for name in names if hasattr(mark, name)]
    return " and ".join(f"{names[name]} {getattr(mark, name)}" for mark, name in marks)
