"""The invented words of the generated corpus: forms, Zipf ranks, verb frames, and their translations.

Words are built from syllables by rule, the same for every seed. An open word of the first language is a stem and an
ending; endings agree (`kela` is singular of gender a, `keloi` plural of gender o). Closed words start with a vowel or
y, stems with another consonant: the two never meet.
"""

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import accumulate, islice
from math import gcd
from typing import Generic, TypeVar
from zlib import crc32

from argbeam.errors import ConfigError

Entry = TypeVar("Entry")

FEWEST_TYPES = 200
GROUPS = 4  # noun groups: people, animals, things, places
ENDINGS = ("a", "ai", "o", "oi")  # indexed by agreement = 2 * gender + plural

DEFINITE = ("ela", "elai", "elo", "eloi")
INDEFINITE = ("uma", "umo")  # by gender; an indefinite plural has no determiner
DEMONSTRATIVE = ("ira", "irai", "iro", "iroi")
SUBJECT_PRONOUN = ("ya", "yai", "yo", "yoi")
OBJECT_PRONOUN = ("iya", "iyai", "iyo", "iyoi")
RELATIVE = ("aqua", "aquai", "aquo", "aquoi")
PREPOSITIONS = ("en", "ab", "ux", "ot", "isk", "ev", "orn", "ad")
PARTICLES = PREPOSITIONS[:3]  # the same forms as prepositions: only the verb tells which is which
COMPLEMENTISERS = ("eke", "osi")
CONJUNCTIONS = ("et", "ur")
PUNCTUATION = (".", "?")
CLOSED = (
    *(DEFINITE + INDEFINITE + DEMONSTRATIVE + SUBJECT_PRONOUN + OBJECT_PRONOUN + RELATIVE),
    *(PREPOSITIONS + COMPLEMENTISERS + CONJUNCTIONS + PUNCTUATION),
)

Senses = tuple[tuple[str, ...], ...]  # one or two translations, each of one or two words


class Frame(Enum):
    """What a verb takes."""

    INTRANSITIVE = 0
    TRANSITIVE = 1
    PREPOSITIONAL = 2
    PARTICLE = 3  # an object, then a particle after it
    CLAUSAL = 4


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun with its inherent gender (0 or 1)."""

    forms: tuple[str, str]  # singular, plural
    gender: int
    group: int
    senses: Senses


@dataclass(frozen=True, slots=True)
class Adjective:
    """An adjective; `group` is the noun group it mostly describes."""

    forms: tuple[str, ...]  # by agreement
    group: int
    senses: Senses


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb; `group` is the noun group its object, or its subject if it has no object, mostly comes from."""

    forms: tuple[str, ...]  # by agreement with the subject
    frame: Frame
    group: int
    function: int  # which preposition, particle or complementiser it takes
    senses: Senses


@dataclass(frozen=True, slots=True)
class Adverb:
    """An adverb of time (first or last in a clause) or of manner (right after the verb)."""

    form: str
    senses: Senses


class Pool(Generic[Entry]):
    """Entries in order of rank, drawn with weight 1 / (rank + shift) ** exponent."""

    def __init__(self, items: Sequence[Entry], *, exponent: float = 1.15, shift: float = 1.5) -> None:
        self.items = tuple(items)
        sums = list(accumulate((rank + shift) ** -exponent for rank in range(1, len(items) + 1)))
        self._cumulative = [value / sums[-1] for value in sums]

    def pick(self, uniform: float) -> Entry:
        """The entry at `uniform` (0 <= uniform < 1) of the cumulative distribution."""
        return self.items[bisect(self._cumulative, uniform)]


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Every word that sentences are made of."""

    nouns: tuple[Pool[Noun], ...]  # by group
    adjectives: tuple[Pool[Adjective], ...]  # by group
    verbs: dict[Frame, Pool[Verb]]
    time_adverbs: Pool[Adverb]
    manner_adverbs: Pool[Adverb]
    prepositions: Pool[int]


@lru_cache(maxsize=8)
def lexicon(types: int) -> Lexicon:
    """A lexicon of `types` forms: of the open ones half nouns, a fifth adjectives, a quarter verbs."""
    if types < FEWEST_TYPES:
        raise ConfigError(f"types = {types}: the generated corpus needs {FEWEST_TYPES} word types or more")
    open_types = types - len(CLOSED)
    nouns, adjectives, verbs = open_types // 4, open_types // 20, open_types // 16
    adverbs = open_types - 2 * nouns - 4 * adjectives - 4 * verbs
    stems, second = _stems(_FIRST_SYLLABLES), _stems(_SECOND_SYLLABLES)
    noun_list = [_noun(rank, next(stems), second) for rank in range(nouns)]
    adjective_list = [
        Adjective(tuple(stem + ending for ending in ENDINGS), rank % GROUPS, _senses("adjective", rank, second))
        for rank, stem in zip(range(adjectives), stems, strict=False)
    ]
    verb_list = [_verb(rank, next(stems), second) for rank in range(verbs)]
    adverb_list = [Adverb(next(stems) + "ul", _senses("adverb", rank, second)) for rank in range(adverbs)]
    return Lexicon(
        nouns=tuple(Pool([noun for noun in noun_list if noun.group == group]) for group in range(GROUPS)),
        adjectives=tuple(Pool([word for word in adjective_list if word.group == group]) for group in range(GROUPS)),
        verbs={frame: Pool([verb for verb in verb_list if verb.frame is frame]) for frame in Frame},
        time_adverbs=Pool(adverb_list[0::2]),
        manner_adverbs=Pool(adverb_list[1::2]),
        prepositions=Pool(range(len(PREPOSITIONS)), exponent=0.7),
    )


_FIRST_SYLLABLES = (tuple("bdfgklmnprstvz"), tuple("aeiou"))
_SECOND_SYLLABLES = (("b", "d", "g", "j", "k", "kr", "m", "n", "pl", "sh", "sk", "t", "tr", "z"), tuple("eiu"))

# One period gives every frame in its share; ranks go round, so each frame has frequent and rare verbs.
_FRAMES = (
    *(Frame.TRANSITIVE, Frame.INTRANSITIVE, Frame.PREPOSITIONAL, Frame.PARTICLE, Frame.CLAUSAL),
    *(Frame.TRANSITIVE, Frame.PREPOSITIONAL, Frame.TRANSITIVE),
)


def _draw(name: str, rank: int, choices: int) -> int:
    """A fixed choice for the word of this rank, the same on every machine."""
    return (crc32(f"{name} {rank}".encode()) >> 8) % choices


def _noun(rank: int, stem: str, second: Iterator[str]) -> Noun:
    gender = _draw("gender", rank, 2)
    forms = (stem + ENDINGS[2 * gender], stem + ENDINGS[2 * gender + 1])
    return Noun(forms, gender, rank % GROUPS, _senses("noun", rank, second))


def _verb(rank: int, stem: str, second: Iterator[str]) -> Verb:
    forms = tuple(stem + ending + "t" for ending in ENDINGS)
    frame = _FRAMES[rank % len(_FRAMES)]
    choices = {Frame.PREPOSITIONAL: len(PREPOSITIONS), Frame.PARTICLE: len(PARTICLES)}
    function = _draw("function", rank, choices.get(frame, len(COMPLEMENTISERS)))
    return Verb(forms, frame, _draw("group", rank, GROUPS), function, _senses("verb", rank, second))


def _senses(kind: str, rank: int, second: Iterator[str]) -> Senses:
    """One translation, or two for one word in five; one translation in six is a phrase of two words."""
    count = 2 if _draw(f"{kind} senses", rank, 5) == 0 else 1
    lengths = [2 if _draw(f"{kind} phrase {sense}", rank, 6) == 0 else 1 for sense in range(count)]
    return tuple(tuple(islice(second, length)) for length in lengths)


def _stems(syllables: tuple[tuple[str, ...], tuple[str, ...]]) -> Iterator[str]:
    """Distinct stems ending in a consonant: one and two syllables in turn, then two and three."""
    short, long = _stems_of(1, syllables), _stems_of(2, syllables)
    length = 2
    while True:
        for stem in short:
            yield stem
            yield next(long)
        # The longer supply is far from spent (more than ten times as many), and goes on as the shorter one.
        length += 1
        short, long = long, _stems_of(length, syllables)


def _stems_of(length: int, syllables: tuple[tuple[str, ...], tuple[str, ...]]) -> Iterator[str]:
    onsets, vowels = syllables
    codas = ("l", "n", "k", "d", "t", "m", "r", "s")
    total = (len(onsets) * len(vowels)) ** length * len(codas)
    # A stride prime to the total visits every stem once, far apart in spelling from its neighbours.
    stride = next(step for step in range(total * 5 // 13 | 1, 2 * total, 2) if gcd(step, total) == 1)
    for count in range(total):
        code, coda = divmod(count * stride % total, len(codas))
        stem = ""
        for _ in range(length):
            code, onset = divmod(code, len(onsets))
            code, vowel = divmod(code, len(vowels))
            stem += onsets[onset] + vowels[vowel]
        yield stem + codas[coda]
