"""Corpora in a user's folder: found by their layout, or reported missing with their origin and licence."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from argbeam.data.readers.iwslt import iwslt_folder, missing_files
from argbeam.data.readers.text import COMPRESSIONS, unpacked
from argbeam.files import write_atomic
from argbeam.reports.progress import note
from argbeam.reproduce.experiments import EXPERIMENTS
from argbeam.tasks.iwslt import prepared as read_iwslt

GENERATED = "generated"
SPLITS = ("train", "dev", "test")
_SIDES = (("source", "de"), ("target", "en"))


@dataclass(frozen=True)
class Corpus:
    """A corpus: the overrides that make a recipe read it, its training sentences, its source, and the files it lacks.

    Overrides under `stages.*` apply to every stage; a recipe skips those it has no key for. `prepare` is a folder of
    files in the distribution's own form; `prepare_corpus` writes them as `sets` expects them.
    """

    name: str
    sets: tuple[str, ...]
    sentences: int
    title: str = ""
    origin: str = ""
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    prepare: str = ""

    @property
    def absent(self) -> str:
        """One line: the missing files and where to get them."""
        more = len(self.missing) - 3
        files = ", ".join(self.missing[:3]) + (f" and {more} more" if more > 0 else "")
        return f"{self.title}: {files} not found; from {self.origin}"


@dataclass(frozen=True)
class FoundCorpora:
    """The complete corpora by kind (`Experiment.corpus`), and a line for each incomplete one."""

    corpora: dict[str, Corpus]
    missing: dict[str, tuple[str, ...]]


def find_corpora(data: str, prepared: Path) -> FoundCorpora:
    """Look for a corpus of each kind. `generated` needs no files; files that have to be prepared go to `prepared`."""
    if data == GENERATED:
        generated = dict.fromkeys((*(one.corpus for one in EXPERIMENTS), "office"), _GENERATED)
        return FoundCorpora(generated, dict.fromkeys((*_PAIRS, "beauty"), ("it is made of files",)))
    found = FoundCorpora({}, {})
    for kind, known in _known_corpora(Path(data).resolve(), prepared).items():
        complete = [corpus for corpus in known if not corpus.missing]
        if complete:
            found.corpora[kind] = complete[0]
        found.missing[kind] = tuple(corpus.absent for corpus in known if corpus.missing)
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


def _data(**settings: Any) -> str:
    return f"data={{{', '.join(_override(key, value) for key, value in settings.items())}}}"


def _override(key: str, value: Any) -> str:
    """`key=value` in TOML; the value is no table."""
    return f"{key}={tomli_w.dumps({'value': value}).removeprefix('value = ').strip()}"


def _epochs(*, train: int, pretrain: int, later: int) -> tuple[str, ...]:
    """Epochs of seq2seq, of pre-training, and of each stage after it in the shipped recipes."""
    stages = ("bso", "crf", "early_update", "max_violation", "mixer", "mrt")
    epochs = {"train": train, "pretrain": pretrain, **dict.fromkeys(stages, later)}
    return tuple(f"stages.{stage}.epochs={number}" for stage, number in epochs.items())


# Small models on a small corpus: all of it in minutes on a CPU.
_SMALL = """
    text.min_count=1 text.fold_digits=false model.vectors="" model.layers=1 model.hidden=48 model.embedding=32
    stages.*.epochs=3 stages.*.first_epoch_by_length=false stages.*.optimizer.encoder=0.05
    model.heads=4 model.feed_forward=96 stages.*.batch.size=0 batch.size=64 stages.*.optimizer.warmup=20
    stages.*.optimizer.decoder=0.05 stages.*.optimizer.output=0.2 stages.bso.loss.epochs_per_beam=1
    decode.batch=128 runtime.threads=1
"""
_GENERATED = Corpus(
    GENERATED, (_data(kind="generated", types=300, train=2000, dev=100, test=200), *_SMALL.split()), 2000
)
_LDC = "LDC, catalogue number LDC99T42; licensed by the LDC"
_PTB_TEXT = Corpus("ptb", (), 39_832, "Penn Treebank, plain text of sections 02-21, 22, 23", _LDC)
_PTB_TREES = Corpus(
    "ptb",
    ("task.punctuation=ptb", "text.max_length=120", *_epochs(train=25, pretrain=5, later=16)),
    39_832,
    "Penn Treebank, CoNLL-X with Stanford Dependencies, sections 02-21, 22, 23",
    _LDC,
)
_UD = Corpus(
    "ud-english",
    (),
    22_768,
    "Universal Dependencies English",
    "github.com/UniversalDependencies, UD_English-EWT and UD_English-GUM; EWT CC BY-SA 4.0, GUM CC BY-NC-SA 4.0",
)
_IWSLT = Corpus(
    "iwslt14",
    ("model.dropout=0.2", *_epochs(train=15, pretrain=3, later=21)),
    153_000,
    "IWSLT 2014 German to English",
    "WIT3, wit3.fbk.eu, archive 2014-01, de-en; CC BY-NC-ND 4.0",
)
_MULTI30K = Corpus("multi30k", (), 29_000, "Multi30k German to English", "github.com/multi30k/dataset; research use")
# Five times the pairs of Multi30k: fewer epochs are as many updates, and one at each beam as many as two are there.
# Seq2seq is past its best perplexity after five.
_TATOEBA = Corpus(
    "tatoeba",
    (
        *("text.tokenizer=moses", "model.dropout=0.2", "stages.train.patience=3", "stages.bso.loss.epochs_per_beam=1"),
        *_epochs(train=12, pretrain=5, later=12),
    ),
    160_807,
    "Tatoeba German to English",
    "www.manythings.org/anki and tatoeba.org; CC BY 2.0",
)


_PAIRS = {
    "regex": Corpus("nl-rx-turk", (), 6_500, "NL-RX-Turk", "github.com/nicholaslocascio/deep-regex; MIT"),
    "anselm": Corpus(
        "anselm", (), 233_937, "Anselm", "github.com/coastalcph/histnorm; CC BY-SA 3.0, and a list of word forms"
    ),
    "uspto": Corpus("uspto-50k", (), 40_029, "USPTO-50k", "github.com/bigchem/retrosynthesis; CC0"),
}
_AMAZON = "github.com/yuyq18/APAO; Apache-2.0, the reviews without a licence"
_ITEMS = {
    "office": Corpus("office", (), 38_543, "Amazon Office with semantic ids", _AMAZON),
    "beauty": Corpus("beauty", (), 131_413, "Amazon Beauty with semantic ids", _AMAZON),
}


def _known_corpora(root: Path, prepared: Path) -> dict[str, tuple[Corpus, ...]]:
    """What is there of the known corpora, by kind; the paper's own comes first."""
    text, words = _sections(root, _PTB_TEXT, "text"), _sections(root, _PTB_TEXT, "conllx")
    plain = words if text.missing and not words.missing else text
    banks = {split: [f"ud-english/{bank}-{split}.conllu" for bank in ("ewt", "gum")] for split in SPLITS}
    ud = _listed(root, _UD, banks, kind="conllu")
    parsing = (_with_vectors(corpus, root) for corpus in (_sections(root, _PTB_TREES, "conllx"), ud))
    pairs = {f"{split}_{side}": [f"multi30k-de-en/{split}.{end}"] for split in SPLITS for side, end in _SIDES}
    multi30k = _listed(root, _MULTI30K, pairs, kind="parallel")
    columns = {split: [f"tatoeba-de-en/{split}.tsv"] for split in SPLITS}
    tatoeba = _listed(root, _TATOEBA, columns, kind="tsv", source_column=0, target_column=1)
    return {
        "word_ordering": (plain, ud),
        "parsing": tuple(parsing),
        "translation": (_iwslt(root, prepared), multi30k),
        "tatoeba": (tatoeba,),
        **{kind: (_pairs(root, corpus),) for kind, corpus in _PAIRS.items()},
        **{kind: (_items(root, corpus),) for kind, corpus in _ITEMS.items()},
    }


def _pairs(root: Path, corpus: Corpus) -> Corpus:
    """A folder of tab-separated pairs; the word list of Anselm is one of its files."""
    columns = {split: [f"{corpus.name}/{split}.tsv"] for split in SPLITS}
    found = _listed(root, corpus, columns, kind="tsv", source_column=0, target_column=1)
    if corpus.name != "anselm":
        return found
    words = _compressed(root, "anselm/words.txt")
    missing = (*found.missing, *(() if words else ("anselm/words.txt",)))
    return replace(found, sets=(*found.sets, _override("task.constraint.file", words)), missing=missing)


def _items(root: Path, corpus: Corpus) -> Corpus:
    folder = "amazon-semantic-ids"
    files = {"sequences": [f"{folder}/{corpus.name}.sequences.txt"], "items": [f"{folder}/{corpus.name}.items.tsv"]}
    return _listed(root, corpus, files, kind="interactions")


def _iwslt(root: Path, prepared: Path) -> Corpus:
    folder = iwslt_folder(root)
    missing = ("train.tags.de-en.de",) if folder is None else tuple(missing_files(folder))
    lists = {f"{split}_{side}": [f"{split}.{ending}"] for split in SPLITS for side, ending in _SIDES}
    data = _data(kind="parallel", root=str(prepared / _IWSLT.name), **lists)
    return replace(_IWSLT, sets=(data, *_IWSLT.sets), missing=missing, prepare=str(folder or ""))


def _listed(root: Path, corpus: Corpus, files: Mapping[str, Sequence[str]], **settings: Any) -> Corpus:
    """The corpus with its fixed file names, by key of the data settings; the files may be compressed."""
    lists = {key: [_compressed(root, file) for file in listed] for key, listed in files.items()}
    missing = tuple(file for listed in files.values() for file in listed if not _compressed(root, file))
    return replace(corpus, sets=(_data(root=str(root), **lists, **settings), *corpus.sets), missing=missing)


def _compressed(root: Path, file: str) -> str:
    """The name of the file as it is there, plain or compressed; empty: it is not."""
    return next((file + ending for ending in COMPRESSIONS if (root / (file + ending)).is_file()), "")


# 02-21, wsj_02, wsj-22: a section, or a range of them.
_SECTION = re.compile(r"(?:wsj[_-]?)?([0-9]{2})(?:-([0-9]{2}))?")
_ENDINGS = {"text": (".txt",), "conllx": (".conllx", ".conll")}
_PTB_SPLITS = {"train": set(range(2, 22)), "dev": {22}, "test": {23}}


def _sections(root: Path, corpus: Corpus, kind: str) -> Corpus:
    """The treebank's sections, in files of one or several, under `root/ptb` or `root`."""
    endings = _ENDINGS[kind]
    best = replace(corpus, missing=tuple(f"ptb/{name}{endings[0]}" for name in ("02-21", "22", "23")))
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
        best = replace(corpus, sets=(_data(kind=kind, root=str(root), **lists), *corpus.sets), missing=missing)
        if not missing:
            break
    return best


def _section_files(folder: Path, endings: tuple[str, ...]) -> dict[Path, set[int]]:
    """Files with the sections that their names state; files across two splits are not used."""
    found: dict[Path, set[int]] = {}
    for path in sorted(folder.glob("*")):
        plain = unpacked(path).name
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
