"""Options and arguments of the command: what they accept, and the names that a shell completes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from argbeam.errors import ConfigError

if TYPE_CHECKING:
    from argbeam.search.score_rules import ScoreRule


def number(
    option: str, meaning: str, least: int, most: int | None = None, *, metavar: str = "N", also: str = ""
) -> Any:
    """An option that takes a whole number; `also` is a second name."""
    names = (option, also) if also else (option,)
    return typer.Option(*names, metavar=metavar, help=meaning, parser=_whole(option, least, most))


def beam_size(option: str, meaning: str, least: int, *, metavar: str = "N") -> Any:
    """An option that takes a beam, or a number of outputs of one."""

    def parse(value: Any) -> int:
        from argbeam.settings import MOST_BEAM  # a quarter of a second, which `argbeam --help` does not need

        return _whole(option, least, MOST_BEAM)(value)

    return typer.Option(option, metavar=metavar, help=meaning, parser=parse)


def file(option: str, meaning: str, *, metavar: str = "FILE") -> Any:
    """An option that takes the name of a file."""
    return typer.Option(option, metavar=metavar, help=meaning, parser=_text(option))


def folder(option: str, meaning: str, *, metavar: str = "DIR") -> Any:
    """An option that takes a folder."""
    named = _text(option)
    return typer.Option(option, metavar=metavar, help=meaning, parser=lambda value: Path(named(value)))


def _whole(option: str, least: int, most: int | None = None) -> Callable[[Any], int]:
    """A parser of whole numbers from `least` to `most`."""
    bounds = f"at least {least}" if most is None else f"from {least} to {most}"

    def parse(value: Any) -> int:
        text = str(value)
        number = int(text) if re.fullmatch("[+-]?[0-9]{1,19}", text) else least - 1
        if number < least or (most is not None and number > most):
            raise ConfigError(f"{option} {text}: accepted: a whole number {bounds}")
        return number

    return parse


def _text(option: str) -> Callable[[Any], str]:
    """A parser of names and paths, which are not empty: an empty one is a variable of the shell that is not set."""

    def parse(value: Any) -> str:
        if not str(value):
            raise ConfigError(f"{option}: an empty name; is a variable of the shell not set?")
        return str(value)

    return parse


def parse_beams(text: str, *, option: str = "--beam") -> list[int]:
    """`1,5,10` as numbers; `option` is where they were given."""
    from argbeam.settings import MOST_BEAM

    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,8}", part) and 0 < int(part) <= MOST_BEAM for part in parts):
        raise ConfigError(f"{option} {text}: accepted: whole numbers from 1 to {MOST_BEAM}, such as 1,5,10")
    return list(dict.fromkeys(int(part) for part in parts))


def parse_rules(text: str) -> list["ScoreRule"]:
    """`last_score,score_sum` as score rules."""
    from argbeam.search.score_rules import SCORE_RULES

    names = [name.strip() for name in text.split(",")]
    known = [name for name, rule in SCORE_RULES.items() if not rule.valid_only]  # the others are for decoding alone
    if not set(names) <= set(known):
        raise ConfigError(f"--rule {text}: accepted: one or more of {', '.join(known)}, with commas")
    return [SCORE_RULES[name] for name in dict.fromkeys(names)]


def _recipes(incomplete: str) -> list[str]:
    from argbeam.settings.recipe_files import shipped_recipes

    return [name for name in shipped_recipes() if name.startswith(incomplete)]


def _settings(incomplete: str) -> list[str]:
    from argbeam.settings.listing import describe

    keys = (re.sub(r"\([a-z0-9_]+\)", "", setting.key) for setting in describe())
    return [f"{key}=" for key in dict.fromkeys(keys) if key.startswith(incomplete)]


def _splits(incomplete: str) -> list[str]:
    return [name for name in ("dev", "test") if name.startswith(incomplete)]


Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; repeatable.", autocompletion=_settings),
]
Json = Annotated[bool, typer.Option("--json", help="Results as JSON, an object a line.")]
RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A TOML file or a shipped recipe's name.",
        parser=_text("RECIPE"),
        autocompletion=_recipes,
    ),
]
OptionalRecipe = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Print this recipe.", autocompletion=_recipes)
]
RunFolder = Annotated[
    str, typer.Argument(metavar="RUN", help="A run folder, or a checkpoint file.", parser=_text("RUN"))
]
RunFolders = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...", help="Run folders. Gains are over the first one of cross-entropy.", parser=_text("RUN")
    ),
]
Split = Annotated[str, typer.Option(metavar="SPLIT", help="dev or test.", autocompletion=_splits)]
Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Address to listen at; 0.0.0.0: all.", parser=_text("--host"))
]
DataFolder = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where the data is now: data.root.", parser=_text("--data"))
]
