"""Layout of the source: imports in one direction, few rooms, one search, one meaning for each class name."""

import ast
import graphlib
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "argbeam"

# A module may import those before it, and its own package's modules.
ORDER = (  # noqa: SIM905
    "errors files settings runtime data metrics models search tasks losses decoding training huggingface reports runs "
    "server bench reproduce demo cli __main__"
).split()

FORBIDDEN_NAMES = {"utils", "util", "common", "base", "helpers", "helper", "misc"}
FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def dotted(path: Path) -> str:
    """`losses/bso.py` is `losses.bso`; a package's `__init__.py` has the package's name, the root's is empty."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imported(path: Path) -> set[str]:
    """The modules of argbeam that a file imports, at any depth, without the package's own name in front."""
    found = set()
    for node in ast.walk(TREES[path]):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import; write the module's full name"
            module = node.module or ""
            names = [module] if module != "argbeam" else [f"argbeam.{alias.name}" for alias in node.names]
            # `from argbeam.losses import bso` may name a module too.
            names += [f"{module}.{alias.name}" for alias in node.names if module.startswith("argbeam.")]
        found |= {name.removeprefix("argbeam.") for name in names if name.startswith("argbeam.")}
    known = {dotted(file) for file in FILES}
    # What is no module is something in one, which is listed itself; of the root's names only the version is used here.
    roots = {name for name in found if "." not in name and name not in {*known, "__version__"}}
    assert not roots, f"{path.name} imports {roots}, no modules of argbeam; names are imported from their module"
    return found & known


@pytest.mark.parametrize("path", [path for path in FILES if dotted(path)], ids=dotted)
def test_imports_go_one_way(path: Path) -> None:
    own = dotted(path).split(".")[0]
    for other in (dotted(path), *imported(path)):
        first = other.split(".")[0]
        assert first in ORDER, f"{first} is not in the order of modules: add it to ORDER where its imports allow"
        assert ORDER.index(first) <= ORDER.index(own), f"{dotted(path)} imports {other}, which comes later"


def test_no_module_imports_itself_through_others() -> None:
    """Within packages too, where the order says nothing. Packages' own files only gather, and are left out."""
    gathers = {dotted(path) for path in FILES if path.name == "__init__.py"}
    graph = {dotted(path): imported(path) - gathers for path in FILES if dotted(path) not in gathers}
    # A cycle has no order, and is raised with its modules' names.
    assert set(graphlib.TopologicalSorter(graph).static_order()) >= set(graph)


def test_the_top_has_at_most_8_modules_and_16_packages() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 8
    assert len(list(SOURCE.glob("*/__init__.py"))) <= 16


@pytest.mark.parametrize("path", [path for path in FILES if path.name == "__init__.py"], ids=dotted)
def test_a_package_says_in_few_lines_what_it_is_for(path: Path) -> None:
    """Three to ten lines; a package within a package may say less."""
    lines = (ast.get_docstring(TREES[path]) or "").splitlines()
    assert (1 if "." in dotted(path) else 3) <= len(lines) <= 10


def test_no_two_classes_have_the_same_name() -> None:
    names = Counter(node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert {name for name, count in names.items() if count > 1} == set()


def test_no_module_has_a_name_that_says_nothing() -> None:
    names = {part.removesuffix(".py") for path in FILES for part in path.relative_to(SOURCE).parts}
    assert not names & FORBIDDEN_NAMES


def test_the_best_of_a_beam_are_chosen_in_one_module() -> None:
    """There is one search."""
    assert [dotted(path) for path in FILES if ".topk(" in path.read_text(encoding="utf-8")] == ["search.top_k"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: dotted(path) or "argbeam")
def test_nothing_is_pickled(path: Path) -> None:
    """Neither by name nor by torch.save and torch.load, which pickle."""
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", "")
            names = {f"{module}.{alias.name}".removeprefix(".") for alias in node.names}
            assert not {name.split(".")[0] for name in names} & {"pickle", "dill", "shelve", "joblib"}
            assert not names & {"torch.save", "torch.load"}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            assert node.attr not in {"save", "load"}, f"{path}:{node.lineno}: torch.{node.attr}"


def test_hugging_faces_packages_are_imported_at_first_use() -> None:
    """In functions, except for the module of a class that is itself imported at first use."""
    heavy = {"transformers", "peft", "accelerate"}
    found = set()
    for path in FILES:
        for node in TREES[path].body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if {name.split(".")[0] for name in names} & heavy or "argbeam.huggingface.trainer" in names:
                found.add(dotted(path))
    assert found == {"huggingface.trainer"}


def test_special_tokens_come_from_the_vocabulary() -> None:
    """The ids 0 to 3 are those of vocabularies built from text, and nowhere constants."""
    for path in FILES:
        for node in ast.walk(TREES[path]):
            if isinstance(node, ast.ImportFrom) and node.module == "argbeam.data.vocabulary":
                assert not {alias.name for alias in node.names} & {"PAD", "UNK", "BOS", "EOS"}, dotted(path)
