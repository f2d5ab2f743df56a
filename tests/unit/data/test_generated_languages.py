"""The two languages of the generated corpus on one hand-made plan."""

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


def clause(
    verb: Verb,
    agreement: int,
    *,
    gap: Gap = Gap.NONE,
    subject: NounPhrase | None = None,
    target: NounPhrase | None = None,
    oblique: PrepositionalPhrase | None = None,
    complement: Clause | None = None,
    time: Adverb | None = None,
) -> Clause:
    return Clause(
        verb=verb,
        agreement=agreement,
        gap=gap,
        subject=subject,
        object=target,
        oblique=oblique,
        complement=complement,
        time=time,
        time_first=True,
        manner=None,
        synonym=True,
    )


def nested() -> Plan:
    """Today the old woman who sees some dogs [particle] says that these dogs wait for a woman."""
    dogs = NounPhrase(DOG, 3, Determiner.INDEFINITE)
    sees = clause(SEE, 0, gap=Gap.SUBJECT, target=dogs)
    subject = NounPhrase(WOMAN, 0, Determiner.DEFINITE, (OLD,), relative=sees)
    waits = clause(
        WAIT,
        3,
        subject=NounPhrase(DOG, 3, Determiner.DEMONSTRATIVE),
        oblique=PrepositionalPhrase(1, NounPhrase(WOMAN, 0, Determiner.INDEFINITE)),
    )
    says = clause(SAY, 0, subject=subject, complement=waits, time=TODAY)
    return Plan(says, None, 0, False)


def test_the_first_language_agrees_and_draws_the_tree_by_hand() -> None:
    """The particle `ab` follows the object; the same word is the preposition of `makoit`."""
    rows = [
        ("nurul", "ADV", 9, "advmod"),
        ("ela", "DET", 4, "det"),
        ("fana", "ADJ", 4, "amod"),
        ("bela", "NOUN", 9, "nsubj"),
        ("aqua", "PRON", 6, "nsubj"),
        ("getat", "VERB", 4, "acl"),
        ("dokoi", "NOUN", 6, "obj"),
        ("ab", "ADP", 6, "compound"),
        ("linat", "VERB", 0, "root"),
        ("eke", "SCONJ", 13, "mark"),
        ("iroi", "DET", 12, "det"),
        ("dokoi", "NOUN", 13, "nsubj"),
        ("makoit", "VERB", 9, "ccomp"),
        ("ab", "ADP", 16, "case"),
        ("uma", "DET", 16, "det"),
        ("bela", "NOUN", 13, "obl"),
        (".", "PUNCT", 9, "punct"),
    ]
    tree = first_language(nested())
    assert list(zip(tree.words, tree.tags, tree.heads, tree.labels, strict=True)) == rows


def test_the_second_language_puts_adjectives_after_nouns_and_subordinate_verbs_last() -> None:
    """Definite determiner dropped; particles em (plural) and av (topic) put in; cases -um and -is."""
    main = ["today", "subj", "old", "ek", "em", "two", "dogum", "ap", "see", "av", "say"]
    complement = ["ash", "em", "two", "dog", "uj", "ej", "subjis", "usk", "waiten", "."]
    assert second_language(nested()) == main + complement


def test_a_question_puts_the_verb_first_and_its_translation_drops_the_pronoun_and_adds_a_particle() -> None:
    asked = Plan(clause(SEE, 2, subject=NounPhrase(None, 2), target=NounPhrase(WOMAN, 1)), None, 0, True)
    assert first_language(asked).words == ["getot", "yo", "elai", "belai", "ab", "?"]
    assert second_language(asked) == ["watch", "em", "objum", "ap", "ik", "?"]


def test_joined_clauses_hang_on_the_first_verb() -> None:
    pronoun = NounPhrase(None, 1)
    waits = clause(WAIT, 1, subject=pronoun, oblique=PrepositionalPhrase(1, NounPhrase(WOMAN, 1)))
    tree = first_language(Plan(waits, waits, 1, False))
    assert tree.words == [
        "yai",
        "makait",
        "ab",
        "elai",
        "belai",
        "ur",
        "yai",
        "makait",
        "ab",
        "elai",
        "belai",
        ".",
    ]
    assert tree.heads == [2, 0, 5, 5, 2, 8, 8, 2, 11, 11, 8, 2]
    assert tree.labels[5:8] == ["cc", "nsubj", "conj"]
