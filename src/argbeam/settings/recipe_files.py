"""Recipes in and out: TOML with `--set` overrides, JSON, differences; the shipped recipes by name."""

import datetime
import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from argbeam.errors import ConfigError
from argbeam.files import reading
from argbeam.settings.mistakes import clipped, dotted, first_mistake, hint, kind_of
from argbeam.settings.recipe import Recipe, Rules

_SHIPPED = Path(__file__).parent / "recipes"
_DROPPED = "none"  # --set stages.pretrain=none leaves that stage out


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a TOML file, with each `key=value` of `overrides` applied."""
    text = _read(path, "a TOML file is expected")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number with too many digits for Python
        reason, line = str(error), len(text.splitlines()) or 1
        if found := re.search(r" \(at line (\d+), column \d+\)$", reason):
            reason, line = reason[: found.start()], int(found[1])
        raise ConfigError(f"{path}:{line}: not TOML: {reason}") from None
    return parse_recipe(table, overrides, where=str(path))


def parse_recipe(
    mapping: Mapping[str, Any], overrides: Sequence[str] = (), *, where: str = "recipe", weights: Rules | None = None
) -> Recipe:
    """The recipe in a mapping as tomllib returns it; `where` starts the error messages.

    Settings of decoding must fit the rules of the `weights` of a trained run, and without them those of every stage.
    """
    merged = dict(mapping)
    for override in overrides:
        merged = _put(merged, *_parse_override(override), override)
    try:
        return Recipe.model_validate(merged, context=weights)
    except ValidationError as error:
        overridden = [_parse_override(override)[0] for override in overrides]
        raise ConfigError(first_mistake(error.errors(include_url=False), where, overridden)) from None


def recipe_to_toml(recipe: Recipe, *, purpose: str) -> str:
    """The whole recipe as a file for `load_recipe`, after a comment."""
    return f"# {purpose}\n{tomli_w.dumps(recipe.model_dump(exclude_none=True))}"


def recipe_to_json(recipe: Recipe) -> str:
    """The whole recipe, defaults included, for `recipe_from_json`."""
    return json.dumps(recipe.model_dump(), indent=2, allow_nan=False) + "\n"


def recipe_from_json(text: str, *, where: str = "recipe", weights: Rules | None = None) -> Recipe:
    """The recipe in a text that `recipe_to_json` made; `weights` as in `parse_recipe`."""
    try:
        mapping = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}") from None
    if not isinstance(mapping, dict):
        raise ConfigError(f"{where}: found {kind_of(mapping)}, accepted: a table")
    return parse_recipe(mapping, where=where, weights=weights)


def read_recipe_json(path: Path) -> Recipe:
    """The recipe in the file recipe.json of a run."""
    return recipe_from_json(_read(path, "a recipe as JSON is expected"), where=str(path))


def shipped_recipes() -> dict[str, Path]:
    """Every shipped recipe by its name, in alphabetical order."""
    found = {path.relative_to(_SHIPPED).with_suffix("").as_posix(): path for path in _SHIPPED.rglob("*.toml")}
    return dict(sorted(found.items()))


def shipped_file(name: str) -> Path:
    """A file that shipped recipes name: `constraints/nl-rx.lark`."""
    return _SHIPPED / name


def find_recipe(name: str) -> Path:
    """The file of a recipe, given by its path or by the name of a shipped one."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = shipped_recipes()
    plain = name.removesuffix(".toml")
    if plain in shipped:
        return shipped[plain]
    near = difflib.get_close_matches(plain, shipped, 1)
    within = [one for one in shipped if one.startswith(f"{plain}/")]
    hint = f"shipped in {plain}: {', '.join(within)}; " if within else f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"{name}: neither a file nor a shipped recipe; {hint}`argbeam recipes` lists all")


def purpose(path: Path) -> str:
    """The comment in the first line of a recipe; empty without one."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def difference(a: Recipe, b: Recipe) -> list[str]:
    """A line for each setting that differs: `model.hidden: 256 -> 512`."""
    left, right = (
        {key: json.dumps(value, ensure_ascii=False) for key, value in leaves(recipe.model_dump())} for recipe in (a, b)
    )
    pairs = {key: (left.get(key, "absent"), right.get(key, "absent")) for key in {**left, **right}}
    lines = [f"{key}: {old} -> {new}" for key, (old, new) in pairs.items() if old != new]
    if set(a.stages) == set(b.stages) and list(a.stages) != list(b.stages):
        lines.append(f"stages: {', '.join(a.stages)} -> {', '.join(b.stages)}")
    return lines


def in_short(lines: Sequence[str], most: int = 4) -> str:
    """The first lines of a difference in one line, with the number of the others."""
    more = f" and {len(lines) - most} more" if len(lines) > most else ""
    return "; ".join(lines[:most]) + more


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a table and of the tables in it, dotted, with its value: `("model.hidden", 256)`."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _read(path: str | Path, expected: str) -> str:
    with reading(path, expected, ConfigError):
        data = Path(path).read_bytes()
    try:
        return data.decode("utf-8-sig")  # some editors put a byte order mark first
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; {expected}") from None


def _parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    """The keys and the value of `key=value`."""
    key, equals, value = (part.strip() for part in text.partition("="))
    keys = tuple(part.strip() for part in key.split("."))
    if not equals or not all(keys):
        raise ConfigError(f"--set {clipped(text)}: accepted: key=value, such as model.hidden=512")
    try:
        table = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        if value[:1] in ("", '"', "'", "[", "{") or not value.isprintable():
            shape = {"[": '["a", "b"]', "{": '{a = "b"}'}.get(value[:1])
            shell = f"; a shell removes quotes that are not quoted: --set '{dotted(keys)}={shape}'" if shape else ""
            raise ConfigError(f"--set {clipped(text)}: the value is neither TOML nor a bare word{shell}") from None
        return keys, value
    if len(table) != 1:
        raise ConfigError(f"--set {clipped(text)}: one value is accepted, found {len(table)}")
    # A recipe has no dates: 2016-11-01 is a bare word.
    return keys, value if isinstance(table["value"], datetime.date | datetime.time) else table["value"]


def _put(table: dict[str, Any], keys: tuple[str, ...], value: Any, override: str) -> dict[str, Any]:
    """A copy of `table` with `value` at `keys`, and new tables where one is missing; a stage that is none is gone."""
    copy = inner = {**table}
    for depth, key in enumerate(keys[:-1]):
        below, above = inner.get(key, {}), keys[: depth + 1]
        if not isinstance(below, dict):
            raise ConfigError(f"--set {clipped(override)}: {dotted(above)} is {kind_of(below)}, accepted: a table")
        # An unknown stage is a slip far more often than a new stage given key by key.
        if depth == 1 and keys[0] == "stages" and key not in inner:
            raise ConfigError(f"--set {clipped(override)}: unknown key {dotted(above)}{hint(above, list(inner))}")
        inner[key] = {**below}
        inner = inner[key]
    if keys[0] == "stages" and len(keys) == 2 and value == _DROPPED:
        if keys[1] not in inner:
            raise ConfigError(f"--set {clipped(override)}: unknown key {dotted(keys)}{hint(keys, list(inner))}")
        del inner[keys[1]]
    else:
        inner[keys[-1]] = value
    return copy
