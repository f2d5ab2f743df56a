"""Translation: outputs of open length; gold sequences end in the end symbol."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from argbeam.data.batches import Example
from argbeam.data.readers.text import TextPair
from argbeam.data.tokenizers import Moses, SentencePiece, Tokenizer, Whitespace
from argbeam.data.vocabulary import SPECIALS, Vocabulary
from argbeam.metrics.bleu import corpus_bleu
from argbeam.search.constraints.grammar import Unit
from argbeam.search.successors import Successors, Unconstrained
from argbeam.settings import Decode, Recipe, Text
from argbeam.tasks.constraints import ANY_OUTPUT, TargetSide, ValidOutputs, make_constraint
from argbeam.tasks.contract import Item, Score, read_all
from argbeam.tasks.sources import PairData, stream_pairs
from argbeam.tasks.words import build_vocabulary, length_fault, load_vocabulary, symbols, usable

# Files of the source and of the target side.
_VOCABULARY_FILES = ("source.vocabulary.json", "target.vocabulary.json")
_PIECES_FILES = ("source.pieces.model", "target.pieces.model")
_Tokenizers = tuple[Tokenizer, Tokenizer]


@dataclass(frozen=True)
class Translation:
    """A vocabulary per side. Tokenised text is scored as it is, raw text detokenised, by sacreBLEU's own tokenizer."""

    data: PairData
    settings: Text
    decode: Decode
    tokenizers: _Tokenizers
    source: Vocabulary
    target: Vocabulary
    valid: ValidOutputs = ANY_OUTPUT
    open_length = True
    read = read_all

    @staticmethod
    def fit(recipe: Recipe) -> "Translation":
        assert isinstance(recipe.data, PairData)
        text, empty = recipe.text, Vocabulary(SPECIALS)
        tokenizers = _learn_subwords(recipe.data, text) if text.subwords else _word_tokenizers(text)
        task = Translation(recipe.data, text, recipe.decode, tokenizers, empty, empty)
        sources, targets = Counter[str](), Counter[str]()
        for item in task.stream("train", Counter()):
            sources.update(item.source)
            targets.update(item.target)
        source, target = (build_vocabulary(counts, text) for counts in (sources, targets))
        return replace(task, source=source, target=target)._constrained(recipe, {})

    @staticmethod
    def load(recipe: Recipe, assets: Mapping[str, bytes]) -> "Translation":
        assert isinstance(recipe.data, PairData)
        text = recipe.text
        if text.subwords:
            source, target = (SentencePiece(assets[name], lower=text.lowercase) for name in _PIECES_FILES)
            tokenizers: _Tokenizers = (source, target)
        else:
            tokenizers = _word_tokenizers(text)
        sides = [load_vocabulary(assets, name) for name in _VOCABULARY_FILES]
        task = Translation(recipe.data, text, recipe.decode, tokenizers, source=sides[0], target=sides[1])
        return task._constrained(recipe, assets)

    @property
    def constraint(self) -> Successors:
        return self.valid.successors(self.target)

    @property
    def unconstrained(self) -> Successors:
        return Unconstrained(len(self.target), end_symbol=True)

    @property
    def assets(self) -> dict[str, bytes]:
        vocabularies = zip(_VOCABULARY_FILES, (self.source, self.target), strict=True)
        files = {name: vocabulary.to_json().encode() for name, vocabulary in vocabularies}
        for name, tokenizer in zip(_PIECES_FILES, self.tokenizers, strict=True):
            if isinstance(tokenizer, SentencePiece):
                files[name] = tokenizer.model
        return files | self.valid.assets

    def stream(self, split: str, left_out: Counter[str]) -> Iterator[Item]:
        def fault(item: Item) -> str:
            return length_fault(self.settings, len(item.source), len(item.target))

        items = usable(split, map(self._pair, stream_pairs(self.data, split)), fault, left_out)
        return self.valid.checked(split, items, self.target, left_out)

    def item(self, line: str) -> Item:
        words = tuple(self.tokenizers[0].tokenize(line))
        return Item(source=symbols(words, self.settings), surface=words)

    def example(self, item: Item, number: int) -> Example:
        target = (*self.target.encode(item.target), self.target.specials.eos) if item.target else ()
        return Example(tuple(self.source.encode(item.source)), target, number)

    def training_view(self, example: Example, epoch: int) -> Example:
        return example

    def limit(self, example: Example) -> int:
        return int(self.decode.length_factor * len(example.source)) + self.decode.length_extra

    def text(self, item: Item, output: Sequence[int]) -> str:
        words = self.target.decode(token for token in output if token not in self.target.specials.ends)
        return self.tokenizers[1].detokenize(words)

    def score(self, items: Sequence[Item], outputs: Sequence[Sequence[int]]) -> Score:
        lines = [self.text(item, output) for item, output in zip(items, outputs, strict=True)]
        tokenize = "none" if self._tokenised else "13a"
        bleu = corpus_bleu(lines, [item.reference for item in items], tokenize=tokenize)
        return Score(bleu.score, {"bleu": bleu.score, "length": bleu.length_ratio}, bleu.signature)

    @property
    def _tokenised(self) -> bool:
        return self.settings.tokenizer == "whitespace" and not self.settings.subwords

    def _pair(self, pair: TextPair) -> Item:
        target = self.tokenizers[1].tokenize(pair.target)
        reference = " ".join(target) if self._tokenised else pair.target
        target_symbols = symbols(target, self.settings)
        return replace(self.item(pair.source), target=target_symbols, reference=reference, where=pair.where)

    def _constrained(self, recipe: Recipe, assets: Mapping[str, bytes]) -> "Translation":
        def line_symbols(line: str) -> tuple[str, ...]:
            return symbols(self.tokenizers[1].tokenize(line), self.settings)

        def training_targets() -> Iterator[tuple[str, ...]]:
            return (item.target for item in self.stream("train", Counter()))

        unit = Unit.PIECE if self.settings.subwords else Unit.WORD
        target = TargetSide(self.target, unit, line_symbols, training_targets)
        return replace(self, valid=make_constraint(recipe, target, assets))


def _learn_subwords(data: PairData, text: Text) -> _Tokenizers:
    """SentencePiece models, each learnt from one side of the training data."""
    sides = ((p.source for p in stream_pairs(data, "train")), (p.target for p in stream_pairs(data, "train")))
    source, target = (SentencePiece.train(side, size=text.subwords, lower=text.lowercase) for side in sides)
    return source, target


def _word_tokenizers(text: Text) -> _Tokenizers:
    if text.tokenizer == "moses":
        return Moses(text.source_language, lower=text.lowercase), Moses(text.target_language, lower=text.lowercase)
    return Whitespace(lower=text.lowercase), Whitespace(lower=text.lowercase)
