"""Puts a plan into words: the first language with its dependency tree, the second as the translation.

First language: adjectives before nouns, the verb after its subject (before it in questions), a verb's particle after
its object, agreement on determiners, adjectives, relative pronouns and verbs. Second language: adjectives and
demonstratives after nouns, the verb last in subordinate clauses, case endings, postpositions; definite determiners and
the subject pronouns of main clauses are dropped, plural and topic particles put in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from argbeam.data.generated import lexicon
from argbeam.data.generated.grammar import Clause, Determiner, Gap, NounPhrase, Plan, PrepositionalPhrase
from argbeam.data.generated.lexicon import PUNCTUATION, Adverb, Frame, Senses


@dataclass(slots=True)
class TreeBuilder:
    """A sentence and its dependency tree, word by word. Positions count from 1; head 0 is the root's."""

    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def put(self, word: str, tag: str, label: str, head: int = 0) -> int:
        """Add a word and return its position; a head still to come is filled in by `attach`."""
        self.words.append(word)
        self.tags.append(tag)
        self.heads.append(head)
        self.labels.append(label)
        return len(self.words)

    def attach(self, positions: list[int], head: int) -> None:
        """Make `head` the head of the words at `positions`."""
        for position in positions:
            self.heads[position - 1] = head


def first_language(plan: Plan) -> TreeBuilder:
    """The sentence and its projective dependency tree."""
    tree = TreeBuilder()
    root = _clause(tree, plan.clause, "root", [], question=plan.question)
    if plan.second is not None:
        conjunction = tree.put(lexicon.CONJUNCTIONS[plan.conjunction], "CCONJ", "cc")
        tree.attach([_clause(tree, plan.second, "conj", [conjunction])], root)
    tree.put(PUNCTUATION[plan.question], "PUNCT", "punct", root)
    return tree


def _clause(tree: TreeBuilder, clause: Clause, label: str, before: list[int], *, question: bool = False) -> int:
    """Add a clause and return its verb's position; `before`: words already put that depend on the verb."""
    first, last = (clause.time, None) if clause.time_first else (None, clause.time)
    before = [*before, *_adverb(tree, first)]
    if not question:
        before += _noun_phrase(tree, clause.subject, "nsubj")
    verb = tree.put(clause.verb.forms[clause.agreement], "VERB", label)
    tree.attach(before, verb)
    after = _noun_phrase(tree, clause.subject, "nsubj") if question else []
    after += _adverb(tree, clause.manner)
    after += _noun_phrase(tree, clause.object, "obj")
    if clause.verb.frame is Frame.PARTICLE:
        after.append(tree.put(lexicon.PARTICLES[clause.verb.function], "ADP", "compound"))
    after += _prepositional_phrase(tree, clause.oblique, "obl")
    after += _adverb(tree, last)
    if clause.complement is not None:
        mark = tree.put(lexicon.COMPLEMENTISERS[clause.verb.function], "SCONJ", "mark")
        after.append(_clause(tree, clause.complement, "ccomp", [mark]))
    tree.attach(after, verb)
    return verb


def _adverb(tree: TreeBuilder, adverb: Adverb | None) -> list[int]:
    return [] if adverb is None else [tree.put(adverb.form, "ADV", "advmod")]


def _noun_phrase(tree: TreeBuilder, phrase: NounPhrase | None, label: str, before: Sequence[int] = ()) -> list[int]:
    """Add a noun phrase, if any, and return its head's position; `before`: words already put that depend on it."""
    if phrase is None:
        return []
    agreement, before = phrase.agreement, list(before)
    if phrase.noun is None:
        pronoun = lexicon.SUBJECT_PRONOUN if label == "nsubj" else lexicon.OBJECT_PRONOUN
        return [tree.put(pronoun[agreement], "PRON", label)]
    plural = agreement % 2
    if phrase.determiner is Determiner.DEFINITE:
        before.append(tree.put(lexicon.DEFINITE[agreement], "DET", "det"))
    elif phrase.determiner is Determiner.DEMONSTRATIVE:
        before.append(tree.put(lexicon.DEMONSTRATIVE[agreement], "DET", "det"))
    elif not plural:
        before.append(tree.put(lexicon.INDEFINITE[agreement // 2], "DET", "det"))
    before += [tree.put(adjective.forms[agreement], "ADJ", "amod") for adjective in phrase.adjectives]
    head = tree.put(phrase.noun.forms[plural], "NOUN", label)
    tree.attach(before, head)
    tree.attach(_prepositional_phrase(tree, phrase.modifier, "nmod"), head)
    if phrase.relative is not None:
        role = "nsubj" if phrase.relative.gap is Gap.SUBJECT else "obj"
        relative = tree.put(lexicon.RELATIVE[agreement], "PRON", role)
        tree.attach([_clause(tree, phrase.relative, "acl", [relative])], head)
    if phrase.second is not None:
        conjunction = tree.put(lexicon.CONJUNCTIONS[phrase.conjunction], "CCONJ", "cc")
        tree.attach(_noun_phrase(tree, phrase.second, "conj", [conjunction]), head)
    return [head]


def _prepositional_phrase(tree: TreeBuilder, phrase: PrepositionalPhrase | None, label: str) -> list[int]:
    if phrase is None:
        return []
    case = tree.put(lexicon.PREPOSITIONS[phrase.preposition], "ADP", "case")
    return _noun_phrase(tree, phrase.phrase, label, [case])


# Endings and closed words of the second language.
_SUBJECT, _OBJECT, _OBLIQUE = "", "um", "is"
# By preposition; the empty ones leave it to the ending.
_POSTPOSITIONS = ("", "usk", "ond", "", "ilt", "arn", "", "eks")
_PARTICLES = ("of", "ap", "ind")
_COMPLEMENTISERS = ("ash", "osh")
_CONJUNCTIONS = ("an", "ul")
_INDEFINITE, _DEMONSTRATIVE, _PLURAL, _TOPIC = "ej", "uj", "em", "av"
_RELATIVE_SUBJECT, _RELATIVE_OBJECT, _QUESTION, _PRONOUN = "ek", "ekum", "ik", "ol"


def second_language(plan: Plan) -> list[str]:
    """The translation."""
    out: list[str] = []
    _translate_clause(out, plan.clause, main=True)
    if plan.second is not None:
        out.append(_CONJUNCTIONS[plan.conjunction])
        _translate_clause(out, plan.second, main=True)
    if plan.question:
        out.append(_QUESTION)
    out.append(PUNCTUATION[plan.question])
    return out


def _translate_clause(out: list[str], clause: Clause, *, main: bool) -> None:
    """Main: subject verb object oblique particle. Subordinate: subject object oblique particle verb."""
    first, last = (clause.time, None) if clause.time_first else (None, clause.time)
    out += _translated_adverb(first, clause)
    # The language drops subject pronouns where the verb stands second.
    if not (main and clause.subject is not None and clause.subject.noun is None):
        _translate_noun_phrase(out, clause.subject, _SUBJECT)
    if main:
        out += _verb(clause)
    out += _translated_adverb(clause.manner, clause)
    _translate_noun_phrase(out, clause.object, _OBJECT)
    _translate_prepositional_phrase(out, clause.oblique)
    out += _translated_adverb(last, clause)
    if clause.verb.frame is Frame.PARTICLE:
        out.append(_PARTICLES[clause.verb.function])
    if not main:
        out += _verb(clause)
    if clause.complement is not None:
        out.append(_COMPLEMENTISERS[clause.verb.function])
        _translate_clause(out, clause.complement, main=False)


def _translated_adverb(adverb: Adverb | None, clause: Clause) -> tuple[str, ...]:
    return () if adverb is None else _sense(adverb.senses, other=clause.synonym)


def _translate_noun_phrase(out: list[str], phrase: NounPhrase | None, case: str) -> None:
    if phrase is None:
        return
    if phrase.agreement % 2:
        out.append(_PLURAL)
    if phrase.noun is None:
        out.append(_PRONOUN + case)
        return
    if phrase.determiner is Determiner.INDEFINITE and not phrase.agreement % 2:
        out.append(_INDEFINITE)
    *first, last = _sense(phrase.noun.senses, other=case == _OBJECT)
    out += [*first, last + case]
    for adjective in phrase.adjectives:
        out += _sense(adjective.senses, other=adjective.group != phrase.noun.group)
    if phrase.determiner is Determiner.DEMONSTRATIVE:
        out.append(_DEMONSTRATIVE)
    _translate_prepositional_phrase(out, phrase.modifier)
    if phrase.relative is not None:
        out.append(_RELATIVE_SUBJECT if phrase.relative.gap is Gap.SUBJECT else _RELATIVE_OBJECT)
        _translate_clause(out, phrase.relative, main=False)
    if phrase.second is not None:
        out.append(_CONJUNCTIONS[phrase.conjunction])
        _translate_noun_phrase(out, phrase.second, case)
    # A topic particle closes a known subject that is longer than its noun.
    heavy = phrase.adjectives or phrase.modifier or phrase.relative
    if case == _SUBJECT and heavy and phrase.determiner is Determiner.DEFINITE:
        out.append(_TOPIC)


def _translate_prepositional_phrase(out: list[str], phrase: PrepositionalPhrase | None) -> None:
    if phrase is None:
        return
    _translate_noun_phrase(out, phrase.phrase, _OBLIQUE)
    if _POSTPOSITIONS[phrase.preposition]:
        out.append(_POSTPOSITIONS[phrase.preposition])


def _verb(clause: Clause) -> list[str]:
    """The verb, with an ending for plural subjects; its sense depends on the noun it selects."""
    phrase = clause.object or clause.subject
    noun = phrase.noun if phrase is not None else None
    *first, last = _sense(clause.verb.senses, other=noun is not None and noun.group != clause.verb.group)
    return [*first, last + "en" if clause.agreement % 2 else last]


def _sense(senses: Senses, *, other: bool) -> tuple[str, ...]:
    return senses[-1] if other else senses[0]
