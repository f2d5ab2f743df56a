"""The shipped recipes, by name: `word_ordering/bso`."""

import difflib
from pathlib import Path

from argbeam.errors import ConfigError

_FOLDER = Path(__file__).parent / "recipes"


def shipped_recipes() -> dict[str, Path]:
    """Every shipped recipe by its name, in alphabetical order."""
    found = {path.relative_to(_FOLDER).with_suffix("").as_posix(): path for path in _FOLDER.rglob("*.toml")}
    return dict(sorted(found.items()))


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
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"{name}: neither a file nor a shipped recipe; {hint}shipped: {', '.join(shipped)}")


def purpose(path: Path) -> str:
    """The comment in the first line of a recipe; empty without one."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
