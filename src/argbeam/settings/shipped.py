"""The recipes that come with argbeam, by name: `word_ordering/bso`."""

import difflib
from pathlib import Path

from argbeam.errors import ConfigError

_ENDING = ".toml"
_FOLDER = Path(__file__).parent / "recipes"


def shipped_recipes() -> dict[str, Path]:
    """Every shipped recipe by its name, in alphabetical order."""
    found = {path.relative_to(_FOLDER).with_suffix("").as_posix(): path for path in _FOLDER.rglob(f"*{_ENDING}")}
    return dict(sorted(found.items()))


def find_recipe(name: str) -> Path:
    """A recipe's file: `name` is its path, or the name of a shipped one."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = shipped_recipes()
    plain = name.removesuffix(_ENDING)
    if plain in shipped:
        return shipped[plain]
    near = difflib.get_close_matches(plain, shipped, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"{name}: neither a file nor a shipped recipe; {hint}shipped: {', '.join(shipped)}")


def purpose(path: Path) -> str:
    """What a recipe is for: its first line, if that is a comment."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
