"""The listing of settings: every key, what is accepted there, its default and its meaning."""

import json
from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from argbeam.settings.recipe import Recipe


class Setting(NamedTuple):
    """A line of the listing. `data(text).root` is the key `data.root` where `data.kind` is text."""

    key: str
    type: str
    default: str
    meaning: str


def describe() -> list[Setting]:
    """Every key that a recipe can hold, in the order of the settings."""
    return list(_describe(Recipe, ""))


def _describe(model: type[BaseModel], prefix: str, hidden: str = "") -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        key = prefix + name
        annotation: Any = field.annotation
        members = tables_by_kind(annotation)
        if name == hidden:
            continue
        if members:
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
    """The tables that a `kind` chooses from, by kind; empty where there is no choice."""
    if not _is_union(annotation) or not all(is_table(member) for member in get_args(annotation)):
        return {}
    return {get_args(member.model_fields["kind"].annotation)[0]: member for member in get_args(annotation)}


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType)


def is_table(annotation: Any) -> bool:
    return isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, BaseModel)


def accepted(annotation: Any, field: FieldInfo | None) -> str:
    """What a key takes, in words: `a whole number at least 1`."""
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(json.dumps(choice) for choice in get_args(annotation))}"
    if get_origin(annotation) is list:
        return "a list of strings"
    if _is_union(annotation) and not tables_by_kind(annotation):
        parts = [accepted(member, None).removeprefix("one of ") for member in get_args(annotation)]
        return " or ".join(parts)
    bounds = bounds_of(field) if field and annotation in (int, float) else ""
    return f"{names.get(annotation, 'a table')} {bounds}".strip()


def bounds_of(field: FieldInfo) -> str:
    """The bounds of a number, in words; empty where there are none."""
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    found = [
        f"{word} {getattr(mark, name)}"
        for mark in field.metadata
        for name, word in words.items()
        if hasattr(mark, name)
    ]
    return " and ".join(found)
