"""Recipes in and out: TOML with `--set` overrides, one-line errors that name the key, JSON, differences."""

import datetime
import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from argbeam.errors import ConfigError
from argbeam.settings import Recipe


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a TOML file, with each `key=value` of `overrides` put over it."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors put a byte order mark first
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; a TOML file is expected") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; a TOML file is expected") from None
    return parse_recipe(_parse_toml(text, str(path)), overrides, where=str(path))


def parse_recipe(mapping: Mapping[str, Any], overrides: Sequence[str] = (), *, where: str = "recipe") -> Recipe:
    """The recipe in a mapping such as tomllib returns; `where` starts the error messages."""
    parsed = [_parse_override(override) for override in overrides]
    merged = dict(mapping)
    for override in parsed:
        merged = _put(merged, override, override.keys)
    try:
        return Recipe.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_message(error.errors(include_url=False), where, parsed)) from None


def recipe_to_json(recipe: Recipe) -> str:
    """The whole recipe, defaults included; `recipe_from_json` gives an equal one back."""
    return json.dumps(recipe.model_dump(), indent=2, allow_nan=False) + "\n"


def recipe_to_toml(recipe: Recipe, *, purpose: str) -> str:
    """The whole recipe as a file that `load_recipe` reads: a line for each table, after a comment."""
    lines = [f"{key} = {inline_toml(value)}" for key, value in recipe.model_dump().items() if value is not None]
    return "\n".join([f"# {purpose}", *lines]) + "\n"


def inline_toml(value: Any) -> str:
    """A value as TOML has it on one line: `{kind = "text", train = ["a.txt"]}`. What is None is left out."""
    if isinstance(value, Mapping):
        parts = (f"{key} = {inline_toml(inner)}" for key, inner in value.items() if inner is not None)
        return "{" + ", ".join(parts) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(inline_toml(inner) for inner in value) + "]"
    # JSON's numbers, truth values and strings are TOML's, but for characters outside the first plane and DEL.
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007F")


def read_recipe_json(path: Path) -> Recipe:
    """The recipe in a file that `recipe_to_json` wrote."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; a recipe as JSON is expected") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; a recipe as JSON is expected") from None
    return recipe_from_json(text, where=str(path))


def recipe_from_json(text: str, *, where: str = "recipe") -> Recipe:
    """The recipe that `recipe_to_json` wrote."""
    try:
        mapping = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}") from None
    if not isinstance(mapping, dict):
        raise ConfigError(f"{where}: found {_kind_of(mapping)}, accepted: a table")
    return parse_recipe(mapping, where=where)


def difference(a: Recipe, b: Recipe) -> list[str]:
    """What differs, a line each: `model.hidden: 256 -> 512`."""
    left, right = dict(_leaves(a.model_dump())), dict(_leaves(b.model_dump()))
    lines = [
        f"{key}: {_shown(left, key)} -> {_shown(right, key)}"
        for key in [*left, *(key for key in right if key not in left)]
        if key not in left or key not in right or left[key] != right[key]
    ]
    if set(a.stages) == set(b.stages) and list(a.stages) != list(b.stages):
        lines.append(f"stages: {', '.join(a.stages)} -> {', '.join(b.stages)}")
    return lines


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
        members = _members(annotation)
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
        elif _is_model(annotation):
            yield from _describe(annotation, f"{key}.")
        else:
            default = "required" if field.is_required() else json.dumps(field.get_default(call_default_factory=True))
            yield Setting(key, _accepted(annotation, field), default, field.description or "")


def _parse_toml(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as error:  # ValueError itself: a number of more digits than Python reads
        reason = str(error)
        found = re.search(r" \(at line (\d+), column \d+\)$", reason)
        if found:
            raise ConfigError(f"{where}:{found[1]}: not TOML: {reason[: found.start()]}") from None
        raise ConfigError(f"{where}:{len(text.splitlines()) or 1}: not TOML: {reason}") from None


@dataclass(frozen=True)
class _Override:
    text: str
    keys: tuple[str, ...]
    value: Any


def _parse_override(text: str) -> _Override:
    key, equals, value = text.partition("=")
    keys = tuple(part.strip() for part in key.split("."))
    where = f"--set {_clipped(text)}"
    if not equals or not all(keys):
        raise ConfigError(f"{where}: accepted: key=value, such as model.hidden=512")
    value = value.strip()
    try:
        table = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        if value[:1] in ("", '"', "'", "[", "{") or not value.isprintable():
            raise ConfigError(f"{where}: the value is neither TOML nor a bare word") from None
        return _Override(text, keys, value)
    if len(table) != 1:
        raise ConfigError(f"{where}: one value is accepted, found {len(table)}")
    # A recipe holds no dates: 2016-11-01 is a bare word.
    is_date = isinstance(table["value"], datetime.date | datetime.time)
    return _Override(text, keys, value if is_date else table["value"])


def _put(table: dict[str, Any], override: _Override, keys: tuple[str, ...]) -> dict[str, Any]:
    """A copy of `table` with the override's value at `keys`; missing tables on the way are made."""
    head, *rest = keys
    if not rest:
        return {**table, head: override.value}
    above = override.keys[: len(override.keys) - len(rest)]
    inner = table.get(head, {})
    if not isinstance(inner, dict):
        raise ConfigError(f"--set {_clipped(override.text)}: {_dotted(above)} is {_kind_of(inner)}, accepted: a table")
    # An unknown stage is a slip far more often than a whole stage given key by key.
    if len(above) == 2 and above[0] == "stages" and head not in table:
        raise ConfigError(f"--set {_clipped(override.text)}: unknown key {_dotted(above)}{_hint(above, list(table))}")
    return {**table, head: _put(inner, override, tuple(rest))}


def _message(errors: Sequence[ErrorDetails], where: str, overrides: Sequence[_Override]) -> str:
    # An unknown key goes first: a misspelt key also shows as a missing one.
    first = min(errors, key=lambda error: error["type"] != "extra_forbidden")
    loc = first["loc"]
    if first["type"].startswith("union_tag"):
        loc = (*loc, "kind")
    elif first["type"] != "extra_forbidden" and loc[-1:] == ("[key]",):  # the key is wrong, not what it holds
        loc = loc[:-1]
    place = _locate(loc)
    for override in overrides:
        if place.keys[: len(override.keys)] == override.keys:
            where = "--set"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{where}: {_explain(first, place)}{more}"


@dataclass(frozen=True)
class _Place:
    """Where in the recipe an error is: its keys, what the settings say of it, and the table around it."""

    keys: tuple[str, ...]
    annotation: Any
    field: FieldInfo | None
    owner: type[BaseModel]


def _locate(loc: Sequence[str | int]) -> _Place:
    keys: list[str] = []
    annotation: Any = Recipe
    field: FieldInfo | None = None
    owner: type[BaseModel] = Recipe
    for element in loc:
        members = _members(annotation)
        if members and element == "kind":  # of a table whose kind is missing or unknown
            annotation = Literal[tuple(members)]
            keys.append("kind")
        elif members:  # pydantic puts the kind into the location; it is no key
            annotation = members[str(element)]
        elif _is_model(annotation):
            owner = annotation
            field = owner.model_fields.get(str(element))
            annotation = field.annotation if field else None
            keys.append(str(element))
        elif get_origin(annotation) is list:
            annotation, field = get_args(get_args(annotation)[0])[0], None
            keys[-1] += f"[{element}]"
        else:
            annotation, field = get_args(annotation)[1], None
            keys.append(str(element))
    if _is_model(annotation):
        owner = annotation
    return _Place(tuple(keys), annotation, field, owner)


_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


def _explain(error: ErrorDetails, place: _Place) -> str:
    key, value = _dotted(place.keys), error["input"]
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key {key}{_hint(place.keys, list(place.owner.model_fields))}"
        case "missing" | "union_tag_not_found":
            return f"missing key {key}, {_accepted(place.annotation, place.field)}"
        case "union_tag_invalid":
            return f"{key} = {_literal(value['kind'])}: {_choice(value['kind'], get_args(place.annotation))}"
        case "literal_error":
            return f"{key} = {_literal(value)}: {_choice(value, get_args(place.annotation))}"
        case "value_error":
            reason = str(error["ctx"]["error"])
            if not key:
                return reason
            return f"{key}: {reason}" if isinstance(value, dict) else f"{key} = {_literal(value)}: {reason}"
        case "too_short":
            return f"{key} is empty: at least one is needed"
        case name if name in _BOUNDS and place.field:
            return f"{key} = {_literal(value)}: must be {_bounds(place.field)}"
        case "finite_number":
            return f"{key} = {_literal(value)}: must be a finite number"
        case "string_unicode":
            return f"{key}: must be text that UTF-8 can hold"
        case "invalid_key":
            return f"{key}: keys must be strings"
    found = f"found {_kind_of(value)}, accepted: {_accepted(place.annotation, place.field)}"
    return f"{key} = {_literal(value)}: {found}" if key else found


def _members(annotation: Any) -> dict[str, type[BaseModel]]:
    """The tables that a `kind` chooses from, by kind; empty where there is no choice."""
    if not _is_union(annotation) or not all(_is_model(member) for member in get_args(annotation)):
        return {}
    return {get_args(member.model_fields["kind"].annotation)[0]: member for member in get_args(annotation)}


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, BaseModel)


def _accepted(annotation: Any, field: FieldInfo | None) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(json.dumps(choice) for choice in get_args(annotation))}"
    if get_origin(annotation) is list:
        return "a list of strings"
    if _is_union(annotation) and not _members(annotation):
        parts = [_accepted(member, None).removeprefix("one of ") for member in get_args(annotation)]
        return " or ".join(parts)
    bounds = _bounds(field) if field and annotation in (int, float) else ""
    return f"{names.get(annotation, 'a table')} {bounds}".strip()


def _bounds(field: FieldInfo) -> str:
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    found = [
        f"{word} {getattr(mark, name)}"
        for mark in field.metadata
        for name, word in words.items()
        if hasattr(mark, name)
    ]
    return " and ".join(found)


def _choice(value: Any, choices: Sequence[str]) -> str:
    near = difflib.get_close_matches(value, choices, 1) if isinstance(value, str) else []
    return f"must be one of {', '.join(choices)}" + (f"; did you mean {near[0]}?" if near else "")


def _hint(keys: Sequence[str], accepted: list[str]) -> str:
    """The whole key that was meant, as `--set` takes it, or all that the table accepts."""
    near = difflib.get_close_matches(keys[-1].lower(), accepted, 1)
    return f"; did you mean {_dotted([*keys[:-1], near[0]])}?" if near else f"; accepted: {', '.join(accepted)}"


def _kind_of(value: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    names |= {list: "a list", dict: "a table", type(None): "nothing"}
    return names.get(type(value), f"a {type(value).__name__}")


def _literal(value: Any) -> str:
    """The value as a recipe would have it, on one line and not too long."""
    if isinstance(value, list | dict):
        return "[...]" if isinstance(value, list) else "{...}"
    return _clipped(json.dumps(value, default=str, ensure_ascii=False))


def _clipped(text: str, limit: int = 80) -> str:
    line = text if text.isprintable() else json.dumps(text)
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _dotted(keys: Sequence[str]) -> str:
    return ".".join(_clipped(key) for key in keys)


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _shown(leaves: Mapping[str, Any], key: str) -> str:
    return json.dumps(leaves[key], ensure_ascii=False) if key in leaves else "absent"
