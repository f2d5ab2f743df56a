"""Errors of recipes, and of other tables, as one line: the key, the value found, the values accepted."""

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from argbeam.settings.listing import NAMES, accepted, bounds_of, is_table, tables_by_kind
from argbeam.settings.recipe import Recipe


def first_mistake(
    errors: Sequence[ErrorDetails],
    where: str,
    overridden: Sequence[tuple[str, ...]] = (),
    *,
    table: type[BaseModel] = Recipe,
) -> str:
    """The first error of a table, and the number of others. `overridden` are the keys given by `--set`."""
    # An unknown key goes first: a misspelt key also shows as a missing one.
    first = min(errors, key=lambda error: error["type"] != "extra_forbidden")
    loc = first["loc"]
    if first["type"].startswith("union_tag"):
        loc = (*loc, "kind")
    elif first["type"] != "extra_forbidden" and loc[-1:] == ("[key]",):  # the key is wrong, not its value
        loc = loc[:-1]
    place = _locate(loc, table)
    # An unknown table is a mistake of the key within it.
    unknown = len(place.keys) if first["type"] == "extra_forbidden" else None
    if any(place.keys[: len(keys)] == keys[:unknown] for keys in overridden):
        where = "--set"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{where}: {_explain(first, place)}{more}"


@dataclass(frozen=True)
class _Place:
    """Place of an error in the recipe: its keys, their definition, the table around it, all kinds of that table."""

    keys: tuple[str, ...]
    annotation: Any
    field: FieldInfo | None
    owner: type[BaseModel]
    others: dict[str, type[BaseModel]]


def _locate(loc: Sequence[str | int], table: type[BaseModel]) -> _Place:
    keys: list[str] = []
    annotation: Any = table
    owner: type[BaseModel] = table
    field: FieldInfo | None = None
    others: dict[str, type[BaseModel]] = {}
    for element in loc:
        members = tables_by_kind(annotation)
        if members and element == "kind":  # of a table whose kind is missing or unknown
            annotation = Literal[tuple(members)]
            keys.append("kind")
        elif members:  # pydantic puts the kind into the location; it is no key
            annotation, others = members[str(element)], members
        elif is_table(annotation):
            owner = annotation
            others = others if owner in others.values() else {}
            field = owner.model_fields.get(str(element))
            annotation = field.annotation if field else None
            keys.append(str(element))
        elif get_origin(annotation) is list:
            (item,) = get_args(annotation)
            annotation, field = (get_args(item) or (item,))[0], None
            keys[-1] += f"[{element}]"
        else:
            annotation, field = get_args(annotation)[1], None
            keys.append(str(element))
    if is_table(annotation):
        owner = annotation
    return _Place(tuple(keys), annotation, field, owner, others)


def _explain(error: ErrorDetails, place: _Place) -> str:
    key, value = dotted(place.keys), error["input"]
    match error["type"]:
        case "extra_forbidden":
            meant = hint(place.keys, list(place.owner.model_fields))
            if others := [kind for kind, table in place.others.items() if place.keys[-1] in table.model_fields]:
                table, own = dotted(place.keys[:-1]), place.owner.model_fields["kind"].default
                return f'unknown key {key}: not of {table}.kind = "{own}"; a key of {", ".join(others)}' + (
                    meant if "did you mean" in meant else ""
                )
            return f"unknown key {key}{meant}"
        case "missing" | "union_tag_not_found":
            return f"missing key {key}, {accepted(place.annotation, place.field)}"
        case "union_tag_invalid" | "literal_error":
            chosen = value["kind"] if error["type"] == "union_tag_invalid" else value
            choices = get_args(place.annotation)
            near = difflib.get_close_matches("cuda" if chosen == "gpu" else str(chosen), choices, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            return f"{key} = {_literal(chosen)}: must be one of {', '.join(choices)}{meant}"
        case "value_error":
            reason, shown = error["ctx"]["error"], "" if isinstance(value, dict) else f" = {_literal(value)}"
            return f"{key}{shown}: {reason}" if key else str(reason)
        case "too_short":
            return f"{key} is empty: at least one is needed"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal" if place.field:
            return f"{key} = {_literal(value)}: must be {bounds_of(place.field)}"
        case "finite_number":
            return f"{key} = {_literal(value)}: must be a finite number"
        case "string_unicode":
            return f"{key}: must be text that UTF-8 can hold"
        case "json_invalid":
            return f"not JSON: {error['ctx']['error']}"
        case "invalid_key":
            return f"{key}: keys must be strings"
    found = f"found {kind_of(value)}, accepted: {accepted(place.annotation, place.field)}"
    return f"{key} = {_literal(value)}: {found}" if key else found


def hint(keys: Sequence[str], known: list[str]) -> str:
    """The known key nearest to the last of `keys`, or all keys that the table accepts."""
    near = difflib.get_close_matches(keys[-1].lower(), known, 1)
    return f"; did you mean {dotted([*keys[:-1], near[0]])}?" if near else f"; accepted: {', '.join(known)}"


def kind_of(value: Any) -> str:
    """The type of a value, in words: `a whole number`."""
    names = {**NAMES, list: "a list", dict: "a table", type(None): "nothing"}
    return names.get(type(value), f"a {type(value).__name__}")


def _literal(value: Any) -> str:
    """The value as in a recipe, on one line and not too long."""
    if isinstance(value, list | dict):
        return "[...]" if isinstance(value, list) else "{...}"
    return clipped(json.dumps(value, default=str, ensure_ascii=False))


def clipped(text: str, limit: int = 80) -> str:
    """The text on one line, and not too long."""
    line = text if text.isprintable() else json.dumps(text)
    return line if len(line) <= limit else line[: limit - 3] + "..."


def dotted(keys: Sequence[str]) -> str:
    """The keys as `--set` takes them."""
    return ".".join(clipped(key) for key in keys)
