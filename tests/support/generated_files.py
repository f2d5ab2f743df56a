"""The generated corpus as a list, and as files in every format that is read."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

from argbeam.data.generated.corpus import GeneratedSentence, sentences, splits


def generate(*, seed: int, size: int, start: int = 0, types: int = 2000) -> list[GeneratedSentence]:
    """Sentences `start` to `start + size - 1` of the corpus of a seed."""
    return list(islice(sentences(seed=seed, start=start, types=types), size))


def write_files(folder: Path, seed: int, *, train: int, dev: int, test: int, types: int = 2000) -> dict[str, Path]:
    """Write the splits in every format argbeam reads and return the files by name.

    For each split: `.txt` (one sentence a line), `.src` and `.tgt` (parallel text), `.tsv` (the two side by
    side), `.conllu` and `.conllx` (trees).
    """
    made = splits(seed, train=train, dev=dev, test=test, types=types)
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, Path] = {}
    for split, part in made.items():
        for ending, text in FORMATS.items():
            path = folder / f"{split}.{ending}"
            path.write_text(text(part), encoding="utf-8", newline="\n")
            written[path.name] = path
    return written


def conll_text(*sentences: Iterable[tuple[str, str, int, str]], second_tag: bool = False) -> str:
    """Ten columns: id, form, lemma, tag, second tag, features, head, label, and two that stay empty."""
    return "".join(
        "".join(
            f"{position}\t{word}\t_\t{tag}\t{tag if second_tag else '_'}\t_\t{head}\t{label}\t_\t_\n"
            for position, (word, tag, head, label) in enumerate(rows, start=1)
        )
        + "\n"
        for rows in sentences
    )


def _conllu(part: Sequence[GeneratedSentence]) -> str:
    """CoNLL-U, with the two comments Universal Dependencies asks for."""
    comments = (f"# sent_id = {number}\n# text = {' '.join(s.words)}\n" for number, s in enumerate(part, start=1))
    return "".join(comment + conll_text(_rows(s)) for comment, s in zip(comments, part, strict=True))


def _rows(s: GeneratedSentence) -> Iterable[tuple[str, str, int, str]]:
    return zip(s.words, s.tags, s.heads, s.labels, strict=True)


FORMATS: dict[str, Callable[[Sequence[GeneratedSentence]], str]] = {
    "txt": lambda part: "".join(f"{' '.join(s.words)}\n" for s in part),
    "src": lambda part: "".join(f"{' '.join(s.words)}\n" for s in part),
    "tgt": lambda part: "".join(f"{' '.join(s.translation)}\n" for s in part),
    "tsv": lambda part: "".join(f"{' '.join(s.words)}\t{' '.join(s.translation)}\n" for s in part),
    "conllu": _conllu,
    "conllx": lambda part: conll_text(*map(_rows, part), second_tag=True),
}
