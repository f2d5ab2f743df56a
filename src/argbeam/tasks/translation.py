"""Translation: the output's length is open, and the end symbol is a word of the gold sequence."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from argbeam.data.batches import Example
from argbeam.data.readers.text import TextPair
from argbeam.data.tokenizers import Moses, PieceModel, SentencePiece, Tokenizer, Whitespace
from argbeam.data.vocabulary import EOS, Vocabulary
from argbeam.errors import DataError
from argbeam.metrics.bleu import corpus_bleu
from argbeam.search.successors import Successors, Unconstrained
from argbeam.settings import Decode, Recipe, Text
from argbeam.tasks.contract import Fitted, Item, Read, Score, read_all
from argbeam.tasks.sources import PairData, stream_pairs
from argbeam.tasks.word_ordering import symbol

_SOURCE_FILE, _TARGET_FILE = "source.vocabulary.json", "target.vocabulary.json"
_SOURCE_PIECES, _TARGET_PIECES = "source.pieces.model", "target.pieces.model"


@dataclass(frozen=True)
class Translation:
    """A vocabulary per side. Tokenised text is scored as it is, raw text detokenised, by sacreBLEU's own tokenizer."""

    data: PairData
    settings: Text
    decode: Decode
    tokenizers: tuple[Tokenizer, Tokenizer]
    source: Vocabulary
    target: Vocabulary
    open_length = True

    @staticmethod
    def fit(recipe: Recipe) -> Fitted:
        data, text = _pair_data(recipe), recipe.text
        if text.subwords:
            sides = (
                (pair.source for pair in stream_pairs(data, "train")),
                (pair.target for pair in stream_pairs(data, "train")),
            )
            pieces = [
                SentencePiece.train(side, size=text.subwords, pieces=PieceModel.BPE, lower=text.lowercase)
                for side in sides
            ]
            tokenizers: tuple[Tokenizer, Tokenizer] = (pieces[0], pieces[1])
        else:
            tokenizers = _word_tokenizers(text)
        counts = (Counter[str](), Counter[str]())
        pair: TextPair | None = None
        for pair in stream_pairs(data, "train"):
            tokens = (tokenizers[0].tokenize(pair.source), tokenizers[1].tokenize(pair.target))
            if _reason(*tokens, text) is None:
                for side, words in zip(counts, tokens, strict=True):
                    side.update(symbol(word, text) for word in words)
        if not counts[0]:
            where = f"{pair.path}: " if pair else ""
            raise DataError(f"{where}no pair of {text.min_length} to {text.max_length} words a side")
        limit = text.max_vocabulary or None
        source, target = (Vocabulary.of_counts(side, min_count=text.min_count, max_size=limit) for side in counts)
        return Fitted(Translation(data, text, recipe.decode, tokenizers, source, target))

    @staticmethod
    def load(recipe: Recipe, assets: Mapping[str, bytes]) -> "Translation":
        text = recipe.text
        if text.subwords:
            tokenizers: tuple[Tokenizer, Tokenizer] = (
                SentencePiece(assets[_SOURCE_PIECES], lower=text.lowercase),
                SentencePiece(assets[_TARGET_PIECES], lower=text.lowercase),
            )
        else:
            tokenizers = _word_tokenizers(text)
        source, target = (
            Vocabulary.from_json(assets[name].decode(), where=name) for name in (_SOURCE_FILE, _TARGET_FILE)
        )
        return Translation(_pair_data(recipe), text, recipe.decode, tokenizers, source, target)

    @property
    def constraint(self) -> Successors:
        return self.unconstrained

    @property
    def unconstrained(self) -> Successors:
        return Unconstrained(len(self.target), end_symbol=True)

    @property
    def assets(self) -> dict[str, bytes]:
        files = {_SOURCE_FILE: self.source.to_json().encode(), _TARGET_FILE: self.target.to_json().encode()}
        for name, tokenizer in zip((_SOURCE_PIECES, _TARGET_PIECES), self.tokenizers, strict=True):
            if isinstance(tokenizer, SentencePiece):
                files[name] = tokenizer.model
        return files

    def read(self, split: str) -> Read:
        return read_all(self, split)

    def stream(self, split: str, left_out: Counter[str]) -> Iterator[Item]:
        for pair in stream_pairs(self.data, split):
            source, target = (
                tuple(tokenizer.tokenize(side))
                for tokenizer, side in zip(self.tokenizers, (pair.source, pair.target), strict=True)
            )
            reason = _reason(source, target, self.settings) if split == "train" else None
            if reason is not None:
                left_out[reason] += 1
                continue
            yield Item(
                source=tuple(symbol(word, self.settings) for word in source),
                surface=source,
                target=tuple(symbol(word, self.settings) for word in target),
                reference=" ".join(target) if self._tokenised else pair.target,
            )

    def item(self, line: str) -> Item:
        words = tuple(self.tokenizers[0].tokenize(line))
        return Item(source=tuple(symbol(word, self.settings) for word in words), surface=words)

    def example(self, item: Item, number: int) -> Example:
        target = (*self.target.encode(item.target), EOS) if item.target else ()
        return Example(tuple(self.source.encode(item.source)), target, number)

    def training_view(self, example: Example, epoch: int) -> Example:
        return example

    def limit(self, example: Example) -> int:
        return int(self.decode.length_factor * len(example.source)) + self.decode.length_extra

    def text(self, item: Item, output: Sequence[int]) -> str:
        words = self.target.decode(number for number in output if number != EOS)
        return self.tokenizers[1].detokenize(words)

    def score(self, items: Sequence[Item], outputs: Sequence[Sequence[int]]) -> Score:
        lines = [self.text(item, output) for item, output in zip(items, outputs, strict=True)]
        tokenize = "none" if self._tokenised else "13a"
        bleu = corpus_bleu(lines, [item.reference for item in items], tokenize=tokenize)
        return Score(bleu.score, {"bleu": bleu.score, "length": bleu.length_ratio}, bleu.signature)

    @property
    def _tokenised(self) -> bool:
        return self.settings.tokenizer == "whitespace" and not self.settings.subwords


def _reason(source: Sequence[str], target: Sequence[str], text: Text) -> str | None:
    """Why a training pair is left out, if it is."""
    lengths = (len(source), len(target))
    if min(lengths) < text.min_length:
        return "too short"
    return "too long" if max(lengths) > text.max_length else None


def _word_tokenizers(text: Text) -> tuple[Tokenizer, Tokenizer]:
    if text.tokenizer == "moses":
        return Moses(text.source_language, lower=text.lowercase), Moses(text.target_language, lower=text.lowercase)
    return Whitespace(lower=text.lowercase), Whitespace(lower=text.lowercase)


def _pair_data(recipe: Recipe) -> PairData:
    assert isinstance(recipe.data, PairData)
    return recipe.data
