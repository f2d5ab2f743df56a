"""The grammar of the generated corpus: draws what a sentence says, before either language puts it into words.

Probabilities are set so that sentences have about 11 words, and so that the likely next word often spoils the rest: a
preposition spent on a noun is missing at the verb that needs it, a determiner spent on the wrong noun leaves one that
agrees with nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from argbeam.data.generated.lexicon import GROUPS, PREPOSITIONS, Adjective, Adverb, Frame, Lexicon, Noun, Verb

Draw = Callable[[], float]  # uniform in [0, 1)

DEEPEST = 2  # clauses inside clauses


class Determiner(Enum):
    """How a noun is introduced; an indefinite plural shows nothing in the first language."""

    DEFINITE = 0
    INDEFINITE = 1
    DEMONSTRATIVE = 2


class Gap(Enum):
    """Which role of a relative clause the noun outside it fills."""

    NONE = 0
    SUBJECT = 1
    OBJECT = 2


@dataclass(frozen=True, slots=True)
class NounPhrase:
    """A noun with its dependents, or a pronoun (noun None); `agreement` = 2 * gender + plural of the noun."""

    noun: Noun | None
    agreement: int
    determiner: Determiner = Determiner.DEFINITE
    adjectives: tuple[Adjective, ...] = ()
    modifier: "PrepositionalPhrase | None" = None
    relative: "Clause | None" = None
    second: "NounPhrase | None" = None  # the other half of a coordination
    conjunction: int = 0

    @property
    def subject_agreement(self) -> int:
        """What a verb agrees with: two coordinated nouns are plural, and of gender a if both are."""
        if self.second is None:
            return self.agreement
        return 1 if self.agreement < 2 and self.second.agreement < 2 else 3


@dataclass(frozen=True, slots=True)
class PrepositionalPhrase:
    """A preposition, by its index, and its noun phrase."""

    preposition: int
    phrase: NounPhrase


@dataclass(frozen=True, slots=True)
class Clause:
    """A verb with its arguments; the role named by `gap` is None."""

    verb: Verb
    agreement: int
    gap: Gap
    subject: NounPhrase | None
    object: NounPhrase | None
    oblique: PrepositionalPhrase | None
    complement: "Clause | None"
    time: Adverb | None
    time_first: bool
    manner: Adverb | None
    synonym: bool  # which of two synonyms the translation takes for an adverb


@dataclass(frozen=True, slots=True)
class Plan:
    """A sentence: one clause or two joined ones, told or asked."""

    clause: Clause
    second: Clause | None
    conjunction: int
    question: bool


def plan(words: Lexicon, draw: Draw) -> Plan:
    """Draw a sentence."""
    joined = draw() < 0.11
    # Joined clauses start one level down, which keeps each of them short.
    depth = 1 if joined else 0
    question = not joined and draw() < 0.12
    first = _clause(words, draw, depth)
    second = _clause(words, draw, depth) if joined else None
    return Plan(first, second, int(draw() < 0.3), question)


def _clause(words: Lexicon, draw: Draw, depth: int, gap: Gap = Gap.NONE, head: NounPhrase | None = None) -> Clause:
    """A clause at `depth`; in a relative clause `head` is the noun phrase outside that fills the gap."""
    verb = words.verbs[_frame(draw, depth, gap)].pick(draw())
    transitive = verb.frame is Frame.TRANSITIVE or verb.frame is Frame.PARTICLE
    if gap is Gap.SUBJECT:
        assert head is not None
        subject, agreement = None, head.agreement
    else:
        # People and animals act; a verb without an object chooses its subject.
        group = int(draw() * 2) if draw() < 0.8 else int(draw() * GROUPS)
        if not transitive and draw() < 0.6:
            group = verb.group
        subject = _noun_phrase(words, draw, depth, group, pronoun=0.22)
        agreement = subject.subject_agreement
    target = None
    if transitive and gap is not Gap.OBJECT:
        group = verb.group if draw() < 0.85 else int(draw() * GROUPS)
        target = _noun_phrase(words, draw, depth, group, pronoun=0.1)
    oblique = None
    if verb.frame is Frame.PREPOSITIONAL:
        oblique = _prepositional_phrase(words, draw, depth, verb.function)
    elif verb.frame is not Frame.CLAUSAL and draw() < (0.25, 0.1, 0.05)[depth]:
        oblique = _prepositional_phrase(words, draw, depth + 1, words.prepositions.pick(draw()))
    complement = _clause(words, draw, depth + 1) if verb.frame is Frame.CLAUSAL else None
    time = words.time_adverbs.pick(draw()) if depth == 0 and draw() < 0.25 else None
    manner = words.manner_adverbs.pick(draw()) if draw() < 0.14 else None
    time_first = time is not None and draw() < 0.6
    synonym = draw() < 0.3
    return Clause(verb, agreement, gap, subject, target, oblique, complement, time, time_first, manner, synonym)


def _frame(draw: Draw, depth: int, gap: Gap) -> Frame:
    uniform = draw()
    if gap is Gap.OBJECT:
        return Frame.TRANSITIVE if uniform < 0.75 else Frame.PARTICLE
    if uniform < 0.38:
        return Frame.TRANSITIVE
    if uniform < 0.62:
        return Frame.PREPOSITIONAL
    if uniform < 0.77:
        return Frame.PARTICLE
    if uniform < 0.91 or depth >= DEEPEST or gap is Gap.SUBJECT:
        return Frame.INTRANSITIVE
    return Frame.CLAUSAL


def _noun_phrase(words: Lexicon, draw: Draw, depth: int, group: int, *, pronoun: float) -> NounPhrase:
    if draw() < pronoun:
        return NounPhrase(None, int(draw() * 4))
    head = _bare_phrase(words, draw, group)
    uniform = draw()
    if depth < DEEPEST and uniform < (0.15, 0.06)[depth]:
        gap = Gap.OBJECT if draw() < 0.4 else Gap.SUBJECT
        return replace(head, relative=_clause(words, draw, depth + 1, gap, head))
    if uniform < 0.26 and depth < DEEPEST:
        return replace(head, modifier=_prepositional_phrase(words, draw, DEEPEST, words.prepositions.pick(draw())))
    if uniform < 0.32:
        return replace(head, second=_bare_phrase(words, draw, group), conjunction=int(draw() < 0.3))
    return head


def _bare_phrase(words: Lexicon, draw: Draw, group: int) -> NounPhrase:
    """Determiner, adjectives, noun."""
    noun = words.nouns[group].pick(draw())
    agreement = 2 * noun.gender + (draw() < 0.4)
    uniform = draw()
    determiner = Determiner.DEFINITE
    if uniform < 0.5:
        determiner = Determiner.INDEFINITE if uniform < 0.3 else Determiner.DEMONSTRATIVE
    uniform = draw()
    count = 2 if uniform < 0.05 else int(uniform < 0.3)
    adjectives = tuple(dict.fromkeys(_adjective(words, draw, group) for _ in range(count)))
    return NounPhrase(noun, agreement, determiner, adjectives)


def _adjective(words: Lexicon, draw: Draw, group: int) -> Adjective:
    return words.adjectives[group if draw() < 0.8 else int(draw() * GROUPS)].pick(draw())


def _prepositional_phrase(words: Lexicon, draw: Draw, depth: int, preposition: int) -> PrepositionalPhrase:
    """A preposition mostly takes nouns of one group."""
    assert preposition < len(PREPOSITIONS)
    group = preposition % GROUPS if draw() < 0.75 else int(draw() * GROUPS)
    return PrepositionalPhrase(preposition, _noun_phrase(words, draw, min(depth + 1, DEEPEST), group, pronoun=0.0))
