"""The generated corpus as a list, and as files in every format that is read."""

from collections.abc import Callable, Sequence
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
    for split, part in (("train", made.train), ("dev", made.dev), ("test", made.test)):
        for ending, text in FORMATS.items():
            path = folder / f"{split}.{ending}"
            path.write_text(text(part), encoding="utf-8", newline="\n")
            written[path.name] = path
    return written


def source_text(part: Sequence[GeneratedSentence]) -> str:
    """One tokenised sentence a line."""
    return "".join(f"{' '.join(sentence.words)}\n" for sentence in part)


def target_text(part: Sequence[GeneratedSentence]) -> str:
    """One tokenised translation a line."""
    return "".join(f"{' '.join(sentence.translation)}\n" for sentence in part)


def tsv_text(part: Sequence[GeneratedSentence]) -> str:
    """Sentence, tab, translation."""
    return "".join(f"{' '.join(sentence.words)}\t{' '.join(sentence.translation)}\n" for sentence in part)


def conllu_text(part: Sequence[GeneratedSentence]) -> str:
    """CoNLL-U, with the two comments Universal Dependencies asks for."""
    blocks = []
    for number, sentence in enumerate(part, start=1):
        comments = f"# sent_id = {number}\n# text = {' '.join(sentence.words)}\n"
        blocks.append(f"{comments}{_rows(sentence, second_tag=False)}\n")
    return "".join(blocks)


def conllx_text(part: Sequence[GeneratedSentence]) -> str:
    """CoNLL-X: no comments, and the tag in both tag columns."""
    return "".join(f"{_rows(sentence, second_tag=True)}\n" for sentence in part)


FORMATS: dict[str, Callable[[Sequence[GeneratedSentence]], str]] = {
    "txt": source_text,
    "src": source_text,
    "tgt": target_text,
    "tsv": tsv_text,
    "conllu": conllu_text,
    "conllx": conllx_text,
}


def _rows(sentence: GeneratedSentence, *, second_tag: bool) -> str:
    """Ten columns: id, form, lemma, tag, second tag, features, head, label, and two that stay empty."""
    columns = zip(sentence.words, sentence.tags, sentence.heads, sentence.labels, strict=True)
    return "".join(
        f"{position}\t{word}\t_\t{tag}\t{tag if second_tag else '_'}\t_\t{head}\t{label}\t_\t_\n"
        for position, (word, tag, head, label) in enumerate(columns, start=1)
    )
