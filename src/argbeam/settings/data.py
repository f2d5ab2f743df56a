"""Settings of tasks, of the data they learn from, and of how sentences become batches."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from argbeam.settings.strict import Settings


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("must be a path, not empty and without NUL")
    return text


FilePath = Annotated[str, AfterValidator(_path)]
Files = Annotated[list[FilePath], Field(min_length=1)]


class WordOrderingTask(Settings):
    """Put the words of a sentence back in order."""

    kind: Literal["word_ordering"] = "word_ordering"
    shuffle: Literal["once", "epoch"] = Field(
        default="once",
        description="training sources are shuffled once, as in the paper, or anew in every epoch",
    )


class ParsingTask(Settings):
    """Dependency parsing as a sequence of words and arc-standard reduce actions."""

    kind: Literal["parsing"] = "parsing"
    punctuation: Literal["upos", "ptb", "none"] = Field(
        default="upos", description="what attachment scores leave out: UPOS PUNCT, the PTB's tags, or nothing"
    )


class TranslationTask(Settings):
    """Translate a sentence; the output's length is open."""

    kind: Literal["translation"] = "translation"


Task = Annotated[WordOrderingTask | ParsingTask | TranslationTask, Field(discriminator="kind")]


class GeneratedData(Settings):
    """The generated corpus: a seeded grammar, nothing to download."""

    kind: Literal["generated"] = "generated"
    seed: int = Field(default=1, ge=0, lt=2**63, description="seed of the grammar and its sentences")
    types: int = Field(default=2000, ge=200, description="word types of the grammar")
    train: int = Field(ge=1, description="training sentences")
    dev: int = Field(ge=1, description="dev sentences")
    test: int = Field(ge=0, description="test sentences")


class FileData(Settings):
    """What all data with a file list per split share."""

    root: FilePath = Field(default=".", description="folder that the other paths are relative to")
    train: Files = Field(description="training files")
    dev: Files = Field(description="dev files")
    test: list[FilePath] = Field(default_factory=list, description="test files; may be empty")


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
    """Two sides in two files, line by line."""

    kind: Literal["parallel"] = "parallel"
    root: FilePath = Field(default=".", description="folder that the other paths are relative to")
    train_source: Files = Field(description="training files, source side")
    train_target: Files = Field(description="training files, target side, in the same order")
    dev_source: Files = Field(description="dev files, source side")
    dev_target: Files = Field(description="dev files, target side, in the same order")
    test_source: list[FilePath] = Field(default_factory=list, description="test files, source side; may be empty")
    test_target: list[FilePath] = Field(default_factory=list, description="test files, target side; may be empty")

    @model_validator(mode="after")
    def _sides_match(self) -> "ParallelData":
        sides = {
            "train": (self.train_source, self.train_target),
            "dev": (self.dev_source, self.dev_target),
            "test": (self.test_source, self.test_target),
        }
        for split, (source, target) in sides.items():
            if len(source) != len(target):
                raise ValueError(
                    f"{split}_source has {len(source)} files, {split}_target {len(target)}; they must pair up"
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
    root: FilePath = Field(default=".", description="folder of the distribution's files, or the one above it")


Data = Annotated[
    GeneratedData | TextData | ConlluData | ConllxData | ParallelData | TsvData | IwsltData,
    Field(discriminator="kind"),
]


class Text(Settings):
    """From lines to tokens and a vocabulary."""

    min_count: int = Field(default=1, ge=1, description="words seen fewer times in training become UNK")
    fold_digits: bool = Field(default=False, description="every digit becomes #")
    lowercase: bool = Field(default=False, description="lowercase all words")
    min_length: int = Field(default=1, ge=1, description="training sentences with fewer words are left out and counted")
    max_length: int = Field(default=60, ge=1, description="training sentences with more words are left out and counted")
    tokenizer: Literal["whitespace", "moses"] = Field(default="whitespace", description="how a line becomes words")
    source_language: str = Field(default="de", description="language of the source side, for the tokenizer")
    target_language: str = Field(default="en", description="language of the target side, for the tokenizer")
    subwords: int = Field(
        default=0, ge=0, description="SentencePiece vocabulary size, translation only; 0: words are the units"
    )
    max_vocabulary: int = Field(default=0, ge=0, description="the most frequent words that are kept; 0: all")

    @model_validator(mode="after")
    def _lengths_ordered(self) -> "Text":
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length = {self.min_length} is more than max_length = {self.max_length}; nothing fits"
            )
        return self


class Batch(Settings):
    """How sentences are put together."""

    size: int = Field(default=64, ge=1, le=2**20, description="sentences in a batch")
    round_source: int = Field(default=4, ge=1, le=1024, description="source lengths are padded to a multiple of this")
    round_target: int = Field(default=4, ge=1, le=1024, description="target lengths are padded to a multiple of this")
