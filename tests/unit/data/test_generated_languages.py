"""The two languages of the generated corpus on one hand-made plan."""

from typing import Any

from argbeam.data.generated.grammar import Clause, Determiner, Gap, NounPhrase, Plan, PrepositionalPhrase
from argbeam.data.generated.languages import first_language, second_language
from argbeam.data.generated.lexicon import Adjective, Adverb, Frame, Noun, Verb

WOMAN = Noun(("bela", "belai"), 0, 0, (("subj",), ("obj",)))
DOG = Noun(("doko", "dokoi"), 1, 1, (("two", "dog"),))
OLD = Adjective(("fana", "fanai", "fano", "fanoi"), 0, (("old",),))
SEE = Verb(("getat", "getait", "getot", "getoit"), Frame.PARTICLE, 1, 1, (("see",), ("watch",)))
SAY = Verb(("linat", "linait", "linot", "linoit"), Frame.CLAUSAL, 0, 0, (("say",),))
WAIT = Verb(("makat", "makait", "makot", "makoit"), Frame.PREPOSITIONAL, 0, 1, (("wait",),))
TODAY = Adverb("nurul", (("now",), ("today",)))


def clause(verb: Verb, agreement: int, *, gap: Gap = Gap.NONE, **roles: Any) -> Clause:
    """A clause with the roles given and no others; its adverb comes first."""
    empty = dict.fromkeys(("subject", "object", "oblique", "complement", "time", "manner"))
    return Clause(verb=verb, agreement=agreement, gap=gap, **{**empty, **roles}, time_first=True, synonym=True)


def nested() -> Plan:
    """Today the old woman who sees some dogs [particle] says that these dogs wait for a woman."""
    dogs = NounPhrase(DOG, 3, Determiner.INDEFINITE)
    sees = clause(SEE, 0, gap=Gap.SUBJECT, object=dogs)
    subject = NounPhrase(WOMAN, 0, Determiner.DEFINITE, (OLD,), relative=sees)
    woman = PrepositionalPhrase(1, NounPhrase(WOMAN, 0, Determiner.INDEFINITE))
    waits = clause(WAIT, 3, subject=NounPhrase(DOG, 3, Determiner.DEMONSTRATIVE), oblique=woman)
    says = clause(SAY, 0, subject=subject, complement=waits, time=TODAY)
    return Plan(says, None, 0, False)


def test_the_first_language_agrees_and_draws_the_tree_by_hand() -> None:
    """The particle `ab` follows the object; the same word is the preposition of `makoit`."""
    words = "nurul ela fana bela aqua getat dokoi ab linat eke iroi dokoi makoit ab uma bela ."
    tags = "ADV DET ADJ NOUN PRON VERB NOUN ADP VERB SCONJ DET NOUN VERB ADP DET NOUN PUNCT"
    labels = "advmod det amod nsubj nsubj acl obj compound root mark det nsubj ccomp case det obl punct"
    tree = first_language(nested())
    assert (tree.words, tree.tags, tree.labels) == (words.split(), tags.split(), labels.split())
    assert tree.heads == [9, 4, 4, 9, 6, 4, 6, 6, 0, 13, 12, 13, 9, 16, 16, 13, 9]


def test_the_second_language_puts_adjectives_after_nouns_and_subordinate_verbs_last() -> None:
    """Definite determiner dropped; particles em (plural) and av (topic) put in; cases -um and -is."""
    main = ["today", "subj", "old", "ek", "em", "two", "dogum", "ap", "see", "av", "say"]
    complement = ["ash", "em", "two", "dog", "uj", "ej", "subjis", "usk", "waiten", "."]
    assert second_language(nested()) == main + complement


def test_a_question_puts_the_verb_first_and_its_translation_drops_the_pronoun_and_adds_a_particle() -> None:
    asked = Plan(clause(SEE, 2, subject=NounPhrase(None, 2), object=NounPhrase(WOMAN, 1)), None, 0, True)
    assert first_language(asked).words == ["getot", "yo", "elai", "belai", "ab", "?"]
    assert second_language(asked) == ["watch", "em", "objum", "ap", "ik", "?"]


def test_joined_clauses_hang_on_the_first_verb() -> None:
    pronoun = NounPhrase(None, 1)
    waits = clause(WAIT, 1, subject=pronoun, oblique=PrepositionalPhrase(1, NounPhrase(WOMAN, 1)))
    tree = first_language(Plan(waits, waits, 1, False))
    assert tree.words == ["yai", "makait", "ab", "elai", "belai", "ur", "yai", "makait", "ab", "elai", "belai", "."]
    assert tree.heads == [2, 0, 5, 5, 2, 8, 8, 2, 11, 11, 8, 2]
    assert tree.labels[5:8] == ["cc", "nsubj", "conj"]
