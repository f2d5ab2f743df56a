"""Settings of tasks and of the corpora they learn from."""

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from argbeam.errors import counted
from argbeam.settings.constraints import Constraint, NoConstraint
from argbeam.settings.strict import Settings


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("must be a path, not empty and without NUL")
    return text


FilePath = Annotated[str, AfterValidator(_path)]
Root = Annotated[FilePath, Field(description="folder of the other paths")]
Files = Annotated[list[FilePath], Field(min_length=1)]
TestFiles = Annotated[list[FilePath], Field(default_factory=list)]


class WordOrderingTask(Settings):
    """Put the words of a sentence back in order."""

    kind: Literal["word_ordering"] = "word_ordering"
    shuffle: Literal["once", "epoch"] = Field(
        default="once", description="training sources are shuffled once, as in the paper, or again in every epoch"
    )


class ParsingTask(Settings):
    """Dependency parsing as a sequence of words and arc-standard reduce actions."""

    kind: Literal["parsing"] = "parsing"
    punctuation: Literal["upos", "ptb", "none"] = Field(
        default="upos", description="tokens left out of attachment scores: UPOS PUNCT, the PTB's punctuation, or none"
    )


class TranslationTask(Settings):
    """Translate a sentence; the output's length is open."""

    kind: Literal["translation"] = "translation"
    constraint: Constraint = Field(default=NoConstraint(), description="valid outputs")


def _metric(name: str) -> str:
    if name not in METRICS and not re.fullmatch(r"(top|hit|ndcg)[1-9][0-9]{0,3}", name):
        raise ValueError(f"must be one of {', '.join(METRICS)}, or top, hit or ndcg with a rank, as in top5")
    return name


METRICS = ("exact", "unseen", "regex", "token_error_rate", "bleu", "chrf")


def ranked(metric: str) -> tuple[str, int] | None:
    """Kind and rank of a metric of several outputs, such as `top5`; None of other metrics."""
    found = re.fullmatch(r"(top|hit|ndcg)([0-9]+)", metric)
    return (found[1], int(found[2])) if found else None


def beyond_beam(metrics: Iterable[str], beam: int) -> str:
    """A line for the user about the metrics that read more outputs than the beam holds; empty: there are none."""
    narrow = [name for name in metrics if (found := ranked(name)) and found[1] > beam]
    return f"is narrower than the rank of {', '.join(narrow)}: too few outputs to count" if narrow else ""


Metrics = Annotated[list[Annotated[str, AfterValidator(_metric)]], Field(min_length=1)]
Units = Literal["words", "characters", "pieces", "smiles"]


class Text2TextTask(Settings):
    """Write one text for another, in units of choice; the output's length is open."""

    kind: Literal["text2text"] = "text2text"
    source: Units = Field(default="words", description="tokens of the source: words, characters, pieces, of SMILES")
    target: Units = Field(default="words", description="tokens of the target, likewise")
    metrics: Metrics = Field(
        default=["exact"],
        description="scores, the first chooses epochs: exact, unseen (exact, sources not in training), topK (in the K "
        "best), token_error_rate, bleu, chrf, regex (the same strings match)",
    )
    constraint: Constraint = Field(default=NoConstraint(), description="valid outputs")


def _of_items(metrics: list[str]) -> list[str]:
    if "unseen" in metrics:
        raise ValueError('"unseen" is for text2text; "exact", or top, hit or ndcg with a rank are accepted here')
    return metrics


class RecommendationTask(Settings):
    """Name the next item of a sequence by its codes."""

    kind: Literal["recommendation"] = "recommendation"
    history: int = Field(default=20, ge=1, le=10**6, description="items of the source, the latest ones")
    metrics: Annotated[Metrics, AfterValidator(_of_items)] = Field(
        default=["ndcg10", "hit10"], description="scores of the items on the beam, the first chooses epochs"
    )


Task = Annotated[
    WordOrderingTask | ParsingTask | TranslationTask | Text2TextTask | RecommendationTask, Field(discriminator="kind")
]


class GeneratedData(Settings):
    """The generated corpus: a seeded grammar, nothing to download."""

    kind: Literal["generated"] = "generated"
    seed: int = Field(default=1, ge=0, lt=2**63, description="seed of the grammar and its sentences")
    types: int = Field(default=2000, ge=200, description="word types of the grammar")
    train: int = Field(ge=1, description="number of training sentences")
    dev: int = Field(ge=1, description="number of dev sentences")
    test: int = Field(ge=0, description="number of test sentences")


class FileData(Settings):
    """Keys of all corpora with one list of files for each split."""

    root: Root = "."
    train: Files = Field(description="training files")
    dev: Files = Field(description="dev files")
    test: TestFiles = Field(description="test files; may be empty")


class TextData(FileData):
    """Plain text, one sentence a line."""

    kind: Literal["text"] = "text"


class ConlluData(FileData):
    """Treebanks in CoNLL-U."""

    kind: Literal["conllu"] = "conllu"


class ConllxData(FileData):
    """Treebanks in CoNLL-X."""

    kind: Literal["conllx"] = "conllx"


class ParallelData(Settings):
    """Source and target in two files, line by line."""

    kind: Literal["parallel"] = "parallel"
    root: Root = "."
    train_source: Files = Field(description="training files, source side")
    train_target: Files = Field(description="training files, target side, in the same order")
    dev_source: Files = Field(description="dev files, source side")
    dev_target: Files = Field(description="dev files, target side, in the same order")
    test_source: TestFiles = Field(description="test files, source side; may be empty")
    test_target: TestFiles = Field(description="test files, target side, in the same order; may be empty")

    @model_validator(mode="after")
    def _sides_match(self) -> "ParallelData":
        for split in ("train", "dev", "test"):
            source, target = (len(getattr(self, f"{split}_{side}")) for side in ("source", "target"))
            if source != target:
                raise ValueError(
                    f"{split}_source has {counted(source, 'file')}, {split}_target {target}; they must pair up"
                )
        return self


class TsvData(FileData):
    """Two columns of a tab-separated file."""

    kind: Literal["tsv"] = "tsv"
    source_column: int = Field(default=0, ge=0, description="column of the source side, counted from 0")
    target_column: int = Field(default=1, ge=0, description="column of the target side, counted from 0")

    @model_validator(mode="after")
    def _columns_differ(self) -> "TsvData":
        if self.source_column == self.target_column:
            raise ValueError(f"source_column and target_column are both {self.source_column}; they must differ")
        return self


class IwsltData(Settings):
    """IWSLT 2014 German to English in the files of its distribution, prepared as for MIXER."""

    kind: Literal["iwslt14"] = "iwslt14"
    root: FilePath = Field(default=".", description="folder of the distribution's files, or its parent folder")


class InteractionData(Settings):
    """Sequences of items, and the items' codes. The last item of a sequence is test's, the one before it dev's."""

    kind: Literal["interactions"] = "interactions"
    root: Root = "."
    sequences: Files = Field(description="files of sequences, one a line, oldest item first, separated by spaces")
    items: Files = Field(description="tab-separated files of items: name, and codes separated by spaces")


Data = Annotated[
    GeneratedData | TextData | ConlluData | ConllxData | ParallelData | TsvData | IwsltData | InteractionData,
    Field(discriminator="kind"),
]
