"""Corpora as they lie in a user's folder: found by their layout, or named with where they come from."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from argbeam.data.readers.iwslt import iwslt_folder, missing_files
from argbeam.settings.recipe_files import inline_toml

GENERATED = "generated"
SPLITS = ("train", "dev", "test")
_COMPRESSIONS = ("", ".xz", ".gz")


@dataclass(frozen=True)
class Corpus:
    """A corpus that is there: overrides that make a recipe read it, and its size, from which time is estimated.

    `sets` with `stages.*` go for every stage; those that a recipe has no key for do not concern it. `prepare` is the
    folder of files that have to be prepared first, as `data.kind = "iwslt14"` says.
    """

    name: str
    sets: tuple[str, ...]
    sentences: int
    notes: tuple[str, ...] = ()
    prepare: str = ""


@dataclass(frozen=True)
class Look:
    """What a look for a corpus found: overrides, or the files that are missing."""

    sets: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    prepare: str = ""


@dataclass(frozen=True)
class Layout:
    """A corpus that could be there. `look(root, prepared)` looks under a folder; `prepared` is for its own files."""

    name: str
    what: str
    origin: str
    licence: str
    sentences: int
    look: Callable[[Path, Path], Look] = field(compare=False)

    def absent(self, look: Look) -> str:
        """A line that says what is missing and where to get it."""
        files = ", ".join(look.missing[:3]) + (f" and {len(look.missing) - 3} more" if len(look.missing) > 3 else "")
        return f"{self.what}: {files} not found; from {self.origin}; {self.licence}"


@dataclass(frozen=True)
class Found:
    """The corpora by the kind of experiment that needs them, and a line for each one that is missing."""

    corpora: dict[str, Corpus]
    missing: dict[str, tuple[str, ...]]


def find_corpora(data: str, prepared: Path) -> Found:
    """Look for a corpus of each kind; the paper's own goes before its stand-in. `generated` needs no folder."""
    if data == GENERATED:
        return Found(dict.fromkeys(LAYOUTS, _generated()), {})
    corpora: dict[str, Corpus] = {}
    missing: dict[str, tuple[str, ...]] = {}
    for kind, layouts in LAYOUTS.items():
        looks = [(layout, layout.look(Path(data).resolve(), prepared / layout.name)) for layout in layouts]
        whole = next(((layout, look) for layout, look in looks if not look.missing), None)
        if whole is not None:
            layout, look = whole
            corpora[kind] = Corpus(layout.name, look.sets, layout.sentences, look.notes, look.prepare)
        missing[kind] = tuple(layout.absent(look) for layout, look in looks if look.missing)
    return Found(corpora, missing)


def _generated() -> Corpus:
    sizes = {"kind": "generated", "types": 300, "train": 2000, "dev": 100, "test": 200}
    sets = (
        f"data={inline_toml(sizes)}",
        "text.min_count=1",
        "text.fold_digits=false",
        'model.vectors=""',
        "model.layers=1",
        "model.hidden=48",
        "model.embedding=32",
        "stages.*.epochs=3",
        "stages.*.first_epoch_by_length=false",
        "stages.*.optimizer.encoder=0.05",
        "stages.*.optimizer.decoder=0.05",
        "stages.*.optimizer.output=0.2",
        "stages.bso.loss.epochs_per_beam=1",
        "decode.batch=128",
        "runtime.threads=1",
    )
    return Corpus(GENERATED, sets, 2000)


def _ud(root: Path, prepared: Path) -> Look:
    parts = [f"ud-english/{treebank}-{split}.conllu" for split in SPLITS for treebank in ("ewt", "gum")]
    files, missing = _files(root, parts)
    data = {
        "kind": "conllu",
        "root": str(root),
        **{split: [files[part] for part in parts if f"-{split}." in part and part in files] for split in SPLITS},
    }
    return Look((f"data={inline_toml(data)}",), missing)


def _ud_parsing(root: Path, prepared: Path) -> Look:
    look, vectors = _ud(root, prepared), _vectors(root)
    return Look((*look.sets, *vectors.sets), look.missing, vectors.notes)


def _ptb_trees(root: Path, prepared: Path) -> Look:
    look, vectors = _sections(root, "conllx", (".conllx", ".conll")), _vectors(root)
    more = ("task.punctuation=ptb", "text.max_length=120", *_epochs(train=25, pretrain=5, later=16))
    return Look((*look.sets, *more, *vectors.sets), look.missing, vectors.notes)


def _ptb_text(root: Path, prepared: Path) -> Look:
    """Plain text, or else the words of the trees."""
    text = _sections(root, "text", (".txt",))
    trees = _sections(root, "conllx", (".conllx", ".conll"))
    return trees if text.missing and not trees.missing else text


def _iwslt(root: Path, prepared: Path) -> Look:
    folder = iwslt_folder(root)
    missing = ("train.tags.de-en.de",) if folder is None else tuple(missing_files(folder))
    sides = {
        f"{split}_{side}": [f"{split}.{ending}"]
        for split in SPLITS
        for side, ending in (("source", "de"), ("target", "en"))
    }
    data = {"kind": "parallel", "root": str(prepared), **sides}
    more = ("model.dropout=0.2", *_epochs(train=15, pretrain=3, later=21))
    return Look((f"data={inline_toml(data)}", *more), missing, prepare=str(folder or ""))


def _multi30k(root: Path, prepared: Path) -> Look:
    parts = [f"multi30k-de-en/{split}.{side}" for split in SPLITS for side in ("de", "en")]
    files, missing = _files(root, parts)
    sides = {
        f"{split}_{side}": [files.get(f"multi30k-de-en/{split}.{ending}", "")]
        for split in SPLITS
        for side, ending in (("source", "de"), ("target", "en"))
    }
    return Look((f"data={inline_toml({'kind': 'parallel', 'root': str(root), **sides})}",), missing)


def _tatoeba(root: Path, prepared: Path) -> Look:
    parts = [f"tatoeba-de-en/{split}.tsv" for split in SPLITS]
    files, missing = _files(root, parts)
    lists = {split: [files.get(part, "")] for split, part in zip(SPLITS, parts, strict=True)}
    data = {"kind": "tsv", "root": str(root), **lists, "source_column": 0, "target_column": 1}
    # Five times the pairs of Multi30k: fewer epochs are as many updates, and one at each beam as many as two are there.
    # Seq2seq is past its best perplexity after five.
    more = (
        "text.tokenizer=moses",
        "model.dropout=0.2",
        *_epochs(train=12, pretrain=5, later=12),
        "stages.train.patience=3",
        "stages.bso.loss.epochs_per_beam=1",
    )
    return Look((f"data={inline_toml(data)}", *more), missing)


_PTB = ("LDC, catalogue number LDC99T42", "licensed by the LDC")
_UD = (
    "github.com/UniversalDependencies, UD_English-EWT and UD_English-GUM",
    "EWT CC BY-SA 4.0, GUM CC BY-NC-SA 4.0",
)

# The paper's own corpus goes first.
LAYOUTS = {
    "word_ordering": (
        Layout("ptb", "Penn Treebank, plain text of sections 02-21, 22, 23", *_PTB, 39_832, _ptb_text),
        Layout("ud-english", "Universal Dependencies English", *_UD, 22_768, _ud),
    ),
    "parsing": (
        Layout(
            "ptb",
            "Penn Treebank, CoNLL-X with Stanford Dependencies, sections 02-21, 22, 23",
            *_PTB,
            39_832,
            _ptb_trees,
        ),
        Layout("ud-english", "Universal Dependencies English", *_UD, 22_768, _ud_parsing),
    ),
    "translation": (
        Layout(
            "iwslt14",
            "IWSLT 2014 German to English",
            "WIT3, wit3.fbk.eu, archive 2014-01, de-en",
            "CC BY-NC-ND 4.0",
            153_000,
            _iwslt,
        ),
        Layout(
            "multi30k", "Multi30k German to English", "github.com/multi30k/dataset", "research use", 29_000, _multi30k
        ),
    ),
    "tatoeba": (
        Layout(
            "tatoeba",
            "Tatoeba German to English",
            "www.manythings.org/anki and tatoeba.org",
            "CC BY 2.0",
            160_807,
            _tatoeba,
        ),
    ),
}


def _files(root: Path, names: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Each name as it is there, plain or compressed, and those that are not."""
    found: dict[str, str] = {}
    missing = []
    for name in names:
        there = next((name + ending for ending in _COMPRESSIONS if (root / (name + ending)).is_file()), None)
        if there is None:
            missing.append(name)
        else:
            found[name] = there
    return found, tuple(missing)


# 02-21, wsj_02, wsj-22: a section, or a range of them.
_SECTION = re.compile(r"(?:wsj[_-]?)?([0-9]{2})(?:-([0-9]{2}))?")
_PTB_SPLITS = {"train": range(2, 22), "dev": range(22, 23), "test": range(23, 24)}


def _sections(root: Path, kind: str, endings: tuple[str, ...]) -> Look:
    """The treebank's sections as files of one or several of them, under `root` or `root/ptb`."""
    best = Look(missing=tuple(f"ptb/{name}{endings[0]}" for name in ("02-21", "22", "23")))
    for folder in (root / "ptb", root):
        files = _section_files(folder, endings)
        covered = {section for sections in files.values() for section in sections}
        if not covered:
            continue
        absent = sorted({section for split in _PTB_SPLITS.values() for section in split} - covered)
        lists = {
            split: [
                (folder / name).relative_to(root).as_posix()
                for name, held in sorted(files.items())
                if set(held) <= set(wanted)
            ]
            for split, wanted in _PTB_SPLITS.items()
        }
        data = {"kind": kind, "root": str(root), **lists}
        missing = tuple(f"{folder.name}/{section:02}{endings[0]}" for section in absent)
        best = Look((f"data={inline_toml(data)}",), missing)
        if not missing:
            break
    return best


def _section_files(folder: Path, endings: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """The sections that each file's name says it holds; files that straddle two splits are not taken."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        plain = path.name.removesuffix(".gz").removesuffix(".xz")
        ending = next((one for one in endings if plain.endswith(one)), None)
        named = _SECTION.fullmatch(plain.removesuffix(ending)) if ending else None
        if named is None or not path.is_file():
            continue
        held = range(int(named[1]), int(named[2] or named[1]) + 1)
        if any(held and set(held) <= set(split) for split in _PTB_SPLITS.values()):
            found[path.name] = tuple(held)
    return found


def _vectors(root: Path) -> Look:
    """Word vectors for parsing: the first file of `vectors/`."""
    folder = root / "vectors"
    names = sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    if not names:
        return Look(('model.vectors=""',), notes=("no file in vectors/: parsing starts from random word vectors",))
    return Look((f"model.vectors={inline_toml(f'vectors/{names[0]}')}",))


# What the shipped recipes call the stage after pre-training.
_LATER = ("bso", "crf", "early_update", "max_violation", "mixer", "mrt")


def _epochs(*, train: int, pretrain: int, later: int) -> tuple[str, ...]:
    epochs = {"train": train, "pretrain": pretrain, **dict.fromkeys(_LATER, later)}
    return tuple(f"stages.{stage}.epochs={number}" for stage, number in epochs.items())
