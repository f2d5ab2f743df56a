"""Translation and other tasks from text to text: outputs of open length; gold sequences end in the end symbol."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from argbeam.data.batches import Example
from argbeam.data.readers.text import TextPair
from argbeam.data.tokenizers import Characters, Moses, SentencePiece, Smiles, Tokenizer, Whitespace, plain_spaces
from argbeam.data.vocabulary import SPECIALS, Vocabulary
from argbeam.errors import DataError
from argbeam.metrics.bleu import corpus_bleu
from argbeam.metrics.outputs import Metric, RankedOutputs, Statistics, make_metric
from argbeam.search.constraints.grammar import Spelling, Unit
from argbeam.search.successors import Successors, Unconstrained
from argbeam.settings import Decode, Recipe, Text, Text2TextTask
from argbeam.settings.models import HuggingFaceModelSettings
from argbeam.tasks.constraints import ANY_OUTPUT, TargetSide, ValidOutputs, constraint_of, make_constraint
from argbeam.tasks.contract import Item, Score, read_all, score_of
from argbeam.tasks.pretrained import PretrainedTokenizer, pretrained, pretrained_files
from argbeam.tasks.sources import PairData, stream_pairs
from argbeam.tasks.words import build_vocabulary, length_fault, load_vocabulary, symbols, usable

# Files of the source and of the target side.
_VOCABULARY_FILES = ("source.vocabulary.json", "target.vocabulary.json")
_PIECES_FILES = ("source.pieces.model", "target.pieces.model")
_SEEN_FILE = "seen_sources.txt"
# How tokens spell an output; those of SMILES stand without spaces, as characters do.
_SPELT = {"words": Unit.WORD, "pieces": Unit.PIECE, "characters": Unit.CHARACTER, "smiles": Unit.CHARACTER}
# More outputs than a beam has: those that differ may be the same text, in other pieces.
_WHOLE_BEAM = 1 << 30
NO_POSITIONS = "longer than the model's positions"
_Tokenizers = tuple[Tokenizer, Tokenizer]


@dataclass(frozen=True)
class Translation:
    """A vocabulary per side. Tokenised text is scored as it is, raw text detokenised, by sacreBLEU's own tokenizer.

    `unit` names the target's tokens. `metrics` are those of `text2text`; without any the score is BLEU. `seen` are the
    sources of the training data, where a metric asks for them.
    """

    data: PairData
    settings: Text
    decode: Decode
    tokenizers: _Tokenizers
    unit: str
    source: Vocabulary
    target: Vocabulary
    metrics: tuple[Metric, ...] = ()
    seen: frozenset[str] = frozenset()
    valid: ValidOutputs = ANY_OUTPUT
    open_length = True
    read = read_all

    @staticmethod
    def fit(recipe: Recipe) -> "Translation":
        assert isinstance(recipe.data, PairData)
        if isinstance(recipe.model, HuggingFaceModelSettings):
            return _pretrained_task(recipe, {})
        text, empty = recipe.text, Vocabulary(SPECIALS)
        source, target = (_learnt_tokenizer(recipe, side) for side in (0, 1))
        task = _task(recipe, (source, target), empty, empty)
        sources, targets, seen = Counter[str](), Counter[str](), set[str]()
        outputs: dict[tuple[str, ...], None] = {}
        holds_targets, knows_sources = getattr(constraint_of(recipe), "training_targets", False), task.knows_sources
        for item in task.stream("train", Counter()):
            sources.update(item.source)
            targets.update(item.target)
            if knows_sources:
                seen.add(" ".join(item.source))
            if holds_targets:
                outputs[item.target] = None
        vocabularies = [build_vocabulary(counts, text) for counts in (sources, targets)]
        task = replace(task, source=vocabularies[0], target=vocabularies[1], seen=frozenset(seen))
        return task._constrained(recipe, {}, outputs)

    @staticmethod
    def load(recipe: Recipe, assets: Mapping[str, bytes]) -> "Translation":
        if isinstance(recipe.model, HuggingFaceModelSettings):
            return _pretrained_task(recipe, assets)
        source, target = (_loaded_tokenizer(recipe, side, assets) for side in (0, 1))
        vocabularies = [load_vocabulary(assets, name) for name in _VOCABULARY_FILES]
        task = _task(recipe, (source, target), *vocabularies)
        if task.knows_sources:
            task = replace(task, seen=frozenset(assets[_SEEN_FILE].decode().splitlines()))
        return task._constrained(recipe, assets)

    @property
    def n_best(self) -> int:
        most = max((metric.rank for metric in self.metrics), default=1)
        return most if most == 1 or self._normalises else _WHOLE_BEAM

    @property
    def knows_sources(self) -> bool:
        """Whether a metric asks which sources training had."""
        return any(metric.name == "unseen" for metric in self.metrics)

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
        if isinstance(self.tokenizers[0], PretrainedTokenizer):
            files |= pretrained_files(self.tokenizers[0])
        if self.knows_sources:
            files[_SEEN_FILE] = "\n".join(sorted(self.seen)).encode()
        return files | self.valid.assets

    def stream(self, split: str, left_out: Counter[str]) -> Iterator[Item]:
        def fault(item: Item) -> str:
            fits = self._fits(len(item.source), len(item.target) + 1)
            return length_fault(self.settings, len(item.source), len(item.target)) or ("" if fits else NO_POSITIONS)

        items = usable(split, map(self._pair, stream_pairs(self.data, split)), fault, left_out)
        return self.valid.checked(split, items, self.target, left_out)

    def item(self, line: str, gold: str = "") -> Item:
        words = tuple(self.tokenizers[0].tokenize(line))
        source = symbols(words, self.settings)
        if not gold:
            return Item(source, words)
        target = symbols(self.tokenizers[1].tokenize(gold), self.settings)
        reference = self.tokenizers[1].detokenize(target) if self._normalises else gold
        return Item(source, words, target, reference)

    def example(self, item: Item, number: int) -> Example:
        target = (*self.target.encode(item.target), self.target.specials.eos) if item.target else ()
        source = tuple(self.source.encode(item.source))
        if not self._fits(len(source), max(1, len(target))):
            found = f"{len(source)} tokens of source and {len(target)} of target"
            raise DataError(f"sentence {number}: {found}: {NO_POSITIONS}")
        return Example(source, target, number)

    def _room(self, source: int) -> int | None:
        """The length of outputs that a pretrained model has positions for; None: any."""
        tokenizer = self.tokenizers[0]
        return tokenizer.room(source) if isinstance(tokenizer, PretrainedTokenizer) else None

    def _fits(self, source: int, target: int) -> bool:
        room = self._room(source)
        return room is None or target <= room

    def training_view(self, example: Example, epoch: int) -> Example:
        return example

    def limit(self, example: Example) -> int:
        limit = int(self.decode.length_factor * len(example.source)) + self.decode.length_extra
        room = self._room(len(example.source))
        return limit if room is None else min(limit, room)

    def text(self, item: Item, output: Sequence[int]) -> str:
        words = self.target.decode(token for token in output if token not in self.target.specials.ends)
        return self.tokenizers[1].detokenize(words)

    def score(self, items: Sequence[Item], outputs: Sequence[Sequence[int]]) -> Score:
        return self.score_lists(items, [[output] for output in outputs])

    def score_lists(self, items: Sequence[Item], lists: Sequence[Sequence[Sequence[int]]]) -> Score:
        if self.metrics:
            spaces = "" if self._normalises else "|spaces:plain"
            return score_of(self.metrics, self.statistics(items, lists), f"target:{self.unit}{spaces}")
        best = [outputs[0] if outputs else () for outputs in lists]
        lines = [self.text(item, output) for item, output in zip(items, best, strict=True)]
        bleu = corpus_bleu(lines, [item.reference for item in items], tokenize=self._bleu_tokenizer)
        return Score(bleu.score, {"bleu": bleu.score, "length": bleu.length_ratio}, bleu.signature)

    def statistics(self, items: Sequence[Item], lists: Sequence[Sequence[Sequence[int]]]) -> dict[str, Statistics]:
        outputs = [
            RankedOutputs(
                # Outputs that spell one text are one.
                list(dict.fromkeys(self.text(item, tokens) for tokens in found)),
                item.reference,
                " ".join(item.source) in self.seen,
            )
            for item, found in zip(items, lists, strict=True)
        ]
        return {metric.name: metric.rows(outputs) for metric in self.metrics}

    def _pair(self, pair: TextPair) -> Item:
        try:
            return replace(self.item(pair.source, pair.target), where=pair.where)
        except DataError as error:
            raise DataError(f"{pair.where}: {error}") from None

    def _plain(self, text: str) -> str:
        """A text without what tokens do not keep of it."""
        if self._normalises:  # it has been cut up and put together again
            return text
        return plain_spaces("".join(symbols([text], self.settings)))

    @property
    def _normalises(self) -> bool:
        """Whether references are compared as tokens: pieces and Moses would change the text."""
        return self.unit != "pieces" and (self.unit != "words" or self.settings.tokenizer == "whitespace")

    @property
    def _bleu_tokenizer(self) -> str:
        return "none" if self._normalises else "13a"

    def _constrained(
        self, recipe: Recipe, assets: Mapping[str, bytes], targets: Collection[tuple[str, ...]] = ()
    ) -> "Translation":
        """With the recipe's constraint; `targets` are those of the training data, if they are known."""

        def line_symbols(line: str) -> tuple[str, ...]:
            return symbols(self.tokenizers[1].tokenize(line), self.settings)

        def training_targets() -> Iterable[tuple[str, ...]]:
            return targets or (item.target for item in self.stream("train", Counter()))

        def spelling() -> Spelling:
            own = self.tokenizers[1]
            if isinstance(own, PretrainedTokenizer):
                return own.spelling()
            return Spelling.of(self.target, _SPELT[self.unit], line_symbols)

        target = TargetSide(self.target, spelling, line_symbols, training_targets)
        return replace(self, valid=make_constraint(recipe, target, assets))


def _task(recipe: Recipe, tokenizers: _Tokenizers, source: Vocabulary, target: Vocabulary) -> Translation:
    assert isinstance(recipe.data, PairData)
    task = Translation(recipe.data, recipe.text, recipe.decode, tokenizers, recipe.units[1], source, target)
    if not isinstance(recipe.task, Text2TextTask):
        return task
    tokenize, same = task._bleu_tokenizer, task._plain

    def tokens(text: str) -> Sequence[str]:
        return tokenizers[1].tokenize(same(text))

    metrics = tuple(make_metric(name, tokenize=tokenize, tokens=tokens, same=same) for name in recipe.task.metrics)
    return replace(task, metrics=metrics)


def _pretrained_task(recipe: Recipe, assets: Mapping[str, bytes]) -> Translation:
    """The task with the tokenizer and the vocabulary of the recipe's model."""
    assert isinstance(recipe.model, HuggingFaceModelSettings)
    source, target = pretrained(recipe.model.path, assets)
    task = _task(recipe, (source, target), source.vocabulary, target.vocabulary)
    if task.knows_sources and assets:
        task = replace(task, seen=frozenset(assets[_SEEN_FILE].decode().splitlines()))
    elif task.knows_sources:
        task = replace(task, seen=frozenset(" ".join(item.source) for item in task.stream("train", Counter())))
    return task._constrained(recipe, assets)


def _learnt_tokenizer(recipe: Recipe, side: int) -> Tokenizer:
    """The tokenizer of the source (0) or target side; pieces are learnt from that side of the training data."""
    text, data = recipe.text, recipe.data
    assert isinstance(data, PairData)
    if recipe.units[side] != "pieces":
        return _plain_tokenizer(recipe, side)
    lines = ((pair.source, pair.target)[side] for pair in stream_pairs(data, "train"))
    return SentencePiece.train(lines, size=text.subwords, lower=text.lowercase)


def _loaded_tokenizer(recipe: Recipe, side: int, assets: Mapping[str, bytes]) -> Tokenizer:
    if recipe.units[side] != "pieces":
        return _plain_tokenizer(recipe, side)
    return SentencePiece(assets[_PIECES_FILES[side]], lower=recipe.text.lowercase)


def _plain_tokenizer(recipe: Recipe, side: int) -> Tokenizer:
    text, unit = recipe.text, recipe.units[side]
    if unit == "characters":
        return Characters(lower=text.lowercase)
    if unit == "smiles":
        return Smiles()
    if text.tokenizer == "moses":
        return Moses((text.source_language, text.target_language)[side], lower=text.lowercase)
    return Whitespace(lower=text.lowercase)
