"""Recipes in and out: TOML with `--set` overrides, JSON, differences."""

import datetime
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from argbeam.errors import ConfigError
from argbeam.settings import Recipe
from argbeam.settings.mistakes import clipped, dotted, first_mistake, hint, kind_of


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
        overridden = [override.keys for override in parsed]
        raise ConfigError(first_mistake(error.errors(include_url=False), where, overridden)) from None


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
        raise ConfigError(f"{where}: found {kind_of(mapping)}, accepted: a table")
    return parse_recipe(mapping, where=where)


def difference(a: Recipe, b: Recipe) -> list[str]:
    """What differs, a line each: `model.hidden: 256 -> 512`."""
    left, right = dict(leaves(a.model_dump())), dict(leaves(b.model_dump()))
    lines = [
        f"{key}: {_shown(left, key)} -> {_shown(right, key)}"
        for key in [*left, *(key for key in right if key not in left)]
        if key not in left or key not in right or left[key] != right[key]
    ]
    if set(a.stages) == set(b.stages) and list(a.stages) != list(b.stages):
        lines.append(f"stages: {', '.join(a.stages)} -> {', '.join(b.stages)}")
    return lines


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a table and of the tables in it, dotted, with its value: `("model.hidden", 256)`."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def in_short(lines: Sequence[str], most: int = 4) -> str:
    """The first lines of a difference in one, and how many more there are."""
    more = f" and {len(lines) - most} more" if len(lines) > most else ""
    return "; ".join(lines[:most]) + more


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
    where = f"--set {clipped(text)}"
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
        raise ConfigError(f"--set {clipped(override.text)}: {dotted(above)} is {kind_of(inner)}, accepted: a table")
    # An unknown stage is a slip far more often than a whole stage given key by key.
    if len(above) == 2 and above[0] == "stages" and head not in table:
        raise ConfigError(f"--set {clipped(override.text)}: unknown key {dotted(above)}{hint(above, list(table))}")
    return {**table, head: _put(inner, override, tuple(rest))}


def _shown(leaves: Mapping[str, Any], key: str) -> str:
    return json.dumps(leaves[key], ensure_ascii=False) if key in leaves else "absent"
