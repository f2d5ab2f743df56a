"""Corpora in a user's folder: found by their layout, or reported missing with their origin and licence."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from argbeam.data.readers.iwslt import iwslt_folder, missing_files
from argbeam.files import write_atomic
from argbeam.reports.progress import note
from argbeam.tasks.iwslt import prepared as read_iwslt

GENERATED = "generated"
SPLITS = ("train", "dev", "test")
_SIDES = (("source", "de"), ("target", "en"))
_COMPRESSIONS = ("", ".xz", ".gz")


@dataclass(frozen=True)
class Corpus:
    """A corpus: the overrides that make a recipe read it, its training sentences, and the files it lacks.

    Overrides under `stages.*` apply to every stage; a recipe skips those it has no key for. `prepare` is a folder of
    files in the distribution's own form; `prepare_corpus` writes them as `sets` expects them.
    """

    name: str
    sets: tuple[str, ...]
    sentences: int
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    prepare: str = ""


@dataclass(frozen=True)
class Layout:
    """A known corpus. `find(root, prepared)` looks under a user's folder; prepared files go into `prepared`."""

    title: str
    origin: str
    licence: str
    find: Callable[[Path, Path], Corpus]

    def absent(self, corpus: Corpus) -> str:
        """One line: the missing files and where to get them."""
        more = len(corpus.missing) - 3
        files = ", ".join(corpus.missing[:3]) + (f" and {more} more" if more > 0 else "")
        return f"{self.title}: {files} not found; from {self.origin}; {self.licence}"


@dataclass(frozen=True)
class FoundCorpora:
    """The complete corpora by kind (`Experiment.corpus`), and a line for each incomplete one."""

    corpora: dict[str, Corpus]
    missing: dict[str, tuple[str, ...]]


def find_corpora(data: str, prepared: Path) -> FoundCorpora:
    """Look for a corpus of each kind, the paper's own first. `generated` needs no files."""
    if data == GENERATED:
        sets = (_data(kind="generated", types=300, train=2000, dev=100, test=200), *_SMALL.split())
        return FoundCorpora(dict.fromkeys(LAYOUTS, Corpus(GENERATED, sets, 2000)), {})
    found = FoundCorpora({}, {})
    for kind, layouts in LAYOUTS.items():
        looked = [(layout, layout.find(Path(data).resolve(), prepared)) for layout in layouts]
        complete = [corpus for _, corpus in looked if not corpus.missing]
        if complete:
            found.corpora[kind] = complete[0]
        found.missing[kind] = tuple(layout.absent(corpus) for layout, corpus in looked if corpus.missing)
    return found


def prepare_corpus(corpus: Corpus, folder: Path) -> None:
    """Write the files of a corpus that has to be prepared, once for all runs; prepared.json comes last."""
    last = folder / corpus.name / "prepared.json"
    if not corpus.prepare or last.exists():
        return
    note(f"{last.parent}: preparing {corpus.prepare}; this takes minutes")
    found = read_iwslt(Path(corpus.prepare))
    last.parent.mkdir(parents=True, exist_ok=True)
    splits = {"train": found.train, "dev": found.dev, "test": found.test}
    for split, pairs in splits.items():
        for side, ending in _SIDES:
            text = "".join(f"{getattr(pair, side)}\n" for pair in pairs)
            write_atomic(last.with_name(f"{split}.{ending}"), text.encode())
    counts = {split: len(pairs) for split, pairs in splits.items()}
    write_atomic(last, json.dumps({"from": corpus.prepare, **counts, "left_out": found.left_out}).encode())


# Small models on a small corpus: all of it in minutes on a CPU.
_SMALL = """
    text.min_count=1 text.fold_digits=false model.vectors="" model.layers=1 model.hidden=48 model.embedding=32
    stages.*.epochs=3 stages.*.first_epoch_by_length=false stages.*.optimizer.encoder=0.05
    stages.*.optimizer.decoder=0.05 stages.*.optimizer.output=0.2 stages.bso.loss.epochs_per_beam=1
    decode.batch=128 runtime.threads=1
"""


def _ud(root: Path, prepared: Path) -> Corpus:
    names = {split: [f"ud-english/{bank}-{split}.conllu" for bank in ("ewt", "gum")] for split in SPLITS}
    return _listed(root, "ud-english", 22_768, names, kind="conllu")


def _ud_parsing(root: Path, prepared: Path) -> Corpus:
    return _with_vectors(_ud(root, prepared), root)


def _ptb_trees(root: Path, prepared: Path) -> Corpus:
    trees = _sections(root, "conllx", (".conllx", ".conll"))
    more = ("task.punctuation=ptb", "text.max_length=120", *_epochs(train=25, pretrain=5, later=16))
    return _with_vectors(replace(trees, sets=(*trees.sets, *more)), root)


def _ptb_text(root: Path, prepared: Path) -> Corpus:
    """Plain text, or else the words of the trees."""
    text = _sections(root, "text", (".txt",))
    trees = _sections(root, "conllx", (".conllx", ".conll"))
    return trees if text.missing and not trees.missing else text


def _iwslt(root: Path, prepared: Path) -> Corpus:
    folder = iwslt_folder(root)
    missing = ("train.tags.de-en.de",) if folder is None else tuple(missing_files(folder))
    lists = {f"{split}_{side}": [f"{split}.{ending}"] for split in SPLITS for side, ending in _SIDES}
    data = _data(kind="parallel", root=str(prepared / "iwslt14"), **lists)
    sets = (data, "model.dropout=0.2", *_epochs(train=15, pretrain=3, later=21))
    return Corpus("iwslt14", sets, 153_000, missing, prepare=str(folder or ""))


def _multi30k(root: Path, prepared: Path) -> Corpus:
    names = {f"{split}_{side}": [f"multi30k-de-en/{split}.{ending}"] for split in SPLITS for side, ending in _SIDES}
    return _listed(root, "multi30k", 29_000, names, kind="parallel")


def _tatoeba(root: Path, prepared: Path) -> Corpus:
    names = {split: [f"tatoeba-de-en/{split}.tsv"] for split in SPLITS}
    corpus = _listed(root, "tatoeba", 160_807, names, kind="tsv", source_column=0, target_column=1)
    # Five times the pairs of Multi30k: fewer epochs are as many updates, and one at each beam as many as two are there.
    # Seq2seq is past its best perplexity after five.
    epochs = (*_epochs(train=12, pretrain=5, later=12), "stages.train.patience=3", "stages.bso.loss.epochs_per_beam=1")
    return replace(corpus, sets=(*corpus.sets, "text.tokenizer=moses", "model.dropout=0.2", *epochs))


_PTB = ("LDC, catalogue number LDC99T42", "licensed by the LDC")
_TREES = "Penn Treebank, CoNLL-X with Stanford Dependencies, sections 02-21, 22, 23"
_UD = (
    "Universal Dependencies English",
    "github.com/UniversalDependencies, UD_English-EWT and UD_English-GUM",
    "EWT CC BY-SA 4.0, GUM CC BY-NC-SA 4.0",
)
_WIT3 = ("WIT3, wit3.fbk.eu, archive 2014-01, de-en", "CC BY-NC-ND 4.0")

# The paper's own corpus goes first.
LAYOUTS = {
    "word_ordering": (
        Layout("Penn Treebank, plain text of sections 02-21, 22, 23", *_PTB, _ptb_text),
        Layout(*_UD, _ud),
    ),
    "parsing": (Layout(_TREES, *_PTB, _ptb_trees), Layout(*_UD, _ud_parsing)),
    "translation": (
        Layout("IWSLT 2014 German to English", *_WIT3, _iwslt),
        Layout("Multi30k German to English", "github.com/multi30k/dataset", "research use", _multi30k),
    ),
    "tatoeba": (Layout("Tatoeba German to English", "www.manythings.org/anki and tatoeba.org", "CC BY 2.0", _tatoeba),),
}


def _data(**settings: Any) -> str:
    return f"data={{{', '.join(_override(key, value) for key, value in settings.items())}}}"


def _override(key: str, value: Any) -> str:
    """`key=value` in TOML; the value is no table."""
    return f"{key}={tomli_w.dumps({'value': value}).removeprefix('value = ').strip()}"


def _listed(root: Path, name: str, sentences: int, files: Mapping[str, Sequence[str]], **settings: Any) -> Corpus:
    """A corpus of fixed file names by key of the data settings; its files may be compressed."""

    def found(file: str) -> str:
        return next((file + ending for ending in _COMPRESSIONS if (root / (file + ending)).is_file()), "")

    lists = {key: [found(file) for file in listed] for key, listed in files.items()}
    missing = tuple(file for listed in files.values() for file in listed if not found(file))
    return Corpus(name, (_data(root=str(root), **lists, **settings),), sentences, missing)


# 02-21, wsj_02, wsj-22: a section, or a range of them.
_SECTION = re.compile(r"(?:wsj[_-]?)?([0-9]{2})(?:-([0-9]{2}))?")
_PTB_SPLITS = {"train": set(range(2, 22)), "dev": {22}, "test": {23}}


def _sections(root: Path, kind: str, endings: tuple[str, ...]) -> Corpus:
    """The treebank's sections, in files of one or several, under `root/ptb` or `root`."""
    corpus = Corpus("ptb", (), 39_832, tuple(f"ptb/{name}{endings[0]}" for name in ("02-21", "22", "23")))
    for folder in (root / "ptb", root):
        files = _section_files(folder, endings)
        if not files:
            continue
        lists = {
            split: [path.relative_to(root).as_posix() for path, held in files.items() if held <= wanted]
            for split, wanted in _PTB_SPLITS.items()
        }
        absent = sorted(set().union(*_PTB_SPLITS.values()).difference(*files.values()))
        missing = tuple(f"{folder.name}/{section:02}{endings[0]}" for section in absent)
        corpus = replace(corpus, sets=(_data(kind=kind, root=str(root), **lists),), missing=missing)
        if not missing:
            break
    return corpus


def _section_files(folder: Path, endings: tuple[str, ...]) -> dict[Path, set[int]]:
    """Files with the sections that their names state; files across two splits are not used."""
    found: dict[Path, set[int]] = {}
    for path in sorted(folder.glob("*")):
        plain = path.name.removesuffix(".gz").removesuffix(".xz")
        ending = next((one for one in endings if plain.endswith(one)), None)
        named = _SECTION.fullmatch(plain.removesuffix(ending)) if ending else None
        held = set(range(int(named[1]), int(named[2] or named[1]) + 1)) if named and path.is_file() else set()
        if held and any(held <= split for split in _PTB_SPLITS.values()):
            found[path] = held
    return found


def _with_vectors(corpus: Corpus, root: Path) -> Corpus:
    """The corpus with word vectors for parsing: the first file of `vectors/`."""
    names = sorted(path.name for path in (root / "vectors").glob("*") if path.is_file())
    vectors = f"vectors/{names[0]}" if names else ""
    notes = () if names else ("no file in vectors/: parsing starts from random word vectors",)
    return replace(corpus, sets=(*corpus.sets, _override("model.vectors", vectors)), notes=notes)


# The stages after pre-training in the shipped recipes.
_LATER = ("bso", "crf", "early_update", "max_violation", "mixer", "mrt")


def _epochs(*, train: int, pretrain: int, later: int) -> tuple[str, ...]:
    epochs = {"train": train, "pretrain": pretrain, **dict.fromkeys(_LATER, later)}
    return tuple(f"stages.{stage}.epochs={number}" for stage, number in epochs.items())
