"""The generated corpus: splits, trees, agreement, statistics, files, and that greedy ordering fails on it."""

import math
import random
import statistics
from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise

import pytest

from argbeam.data.generated.corpus import GeneratedSentence, split_of, splits
from argbeam.data.generated.lexicon import CLOSED, FEWEST_TYPES, Lexicon, lexicon
from argbeam.data.readers.conll import tree_fault
from argbeam.errors import ConfigError
from argbeam.tasks.transitions import is_projective
from generated_files import generate
from refusals import refusal

LABELS = {
    *("root", "nsubj", "obj", "obl", "nmod", "det", "amod", "case", "acl", "advmod"),
    *("cc", "conj", "ccomp", "mark", "compound", "punct"),
}
TAGS = {"DET", "ADJ", "NOUN", "PRON", "VERB", "ADV", "ADP", "CCONJ", "SCONJ", "PUNCT"}


@cache
def many() -> list[GeneratedSentence]:
    return generate(seed=7, size=6000)


@cache
def parts() -> dict[str, list[GeneratedSentence]]:
    return splits(7, train=3000, dev=200, test=200)


def test_a_sentence_depends_on_seed_and_index_alone() -> None:
    whole = generate(seed=3, size=60)
    assert generate(seed=3, size=20) == whole[:20]
    assert generate(seed=3, size=20, start=40) == whole[40:]
    assert generate(seed=4, size=60) != whole


def test_no_sentence_is_in_two_splits() -> None:
    train, dev, test = ({sentence.words for sentence in part} for part in parts().values())
    assert not train & dev and not train & test and not dev & test
    assert {split_of(sentence) for sentence in parts()["dev"]} == {"dev"}


def test_splits_have_the_sizes_asked_for_and_a_longer_split_starts_with_the_shorter() -> None:
    sizes = {"train": 40, "dev": 5, "test": 0}, {"train": 90, "dev": 9, "test": 3}
    small, large = (splits(5, **size) for size in sizes)
    assert tuple({split: len(part) for split, part in made.items()} for made in (small, large)) == sizes
    assert large["train"][:40] == small["train"] and large["dev"][:5] == small["dev"]


def test_every_tree_has_one_root_no_cycle_and_no_arcs_that_cross() -> None:
    for sentence in many():
        assert len(sentence.tags) == len(sentence.heads) == len(sentence.labels) == len(sentence.words)
        assert tree_fault(sentence.heads) is None and is_projective(sentence.heads)
        assert sentence.labels[sentence.heads.index(0)] == "root" and sentence.labels.count("root") == 1


def test_labels_and_tags_are_the_stated_ones_and_punctuation_is_last() -> None:
    assert {label for sentence in many() for label in sentence.labels} == LABELS
    assert {tag for sentence in many() for tag in sentence.tags} == TAGS
    for sentence in many():
        assert sentence.tags.count("PUNCT") == 1 and sentence.tags[-1] == "PUNCT"
        assert sentence.labels[-1] == "punct" and sentence.words[-1] in ".?"


def features(word: str) -> tuple[str, bool]:
    """Gender and plural, read off the ending: kela (a, False), kelai (a, True), kelot (o, False)."""
    ending = word.removesuffix("t")
    return ending.removesuffix("i")[-1], ending.endswith("i")


def test_determiners_adjectives_and_relative_pronouns_agree_with_their_noun() -> None:
    checked: Counter[str] = Counter()
    for sentence in many():
        columns = zip(sentence.words, sentence.labels, sentence.heads, strict=True)
        for position, (word, label, head) in enumerate(columns):
            if label in ("det", "amod"):
                assert features(word) == features(sentence.words[head - 1])
                checked[label] += 1
            elif word.startswith("aqu"):
                noun = sentence.heads[head - 1]
                assert sentence.labels[head - 1] == "acl" and noun == position
                assert features(word) == features(sentence.words[noun - 1])
                checked["relative"] += 1
    assert all(checked[kind] > 1000 for kind in ("det", "amod", "relative"))


def children(sentence: GeneratedSentence, head: int, label: str) -> list[int]:
    """The dependents of a word with this label, by position from 1."""
    arcs = enumerate(zip(sentence.heads, sentence.labels, strict=True), start=1)
    return [place for place, arc in arcs if arc == (head, label)]


def verbs() -> list[tuple[GeneratedSentence, int]]:
    """Every verb, as its sentence and its position from 1."""
    return [(s, place) for s in many() for place, tag in enumerate(s.tags, start=1) if tag == "VERB"]


def test_every_verb_agrees_with_its_subject_however_far_away() -> None:
    """The subject is the nsubj dependent; two coordinated nouns are plural, and of gender a if both are."""
    distances: list[int] = []
    for sentence, place in verbs():
        (subject,) = children(sentence, place, "nsubj")
        nouns = [subject, *children(sentence, subject, "conj")]
        genders, plurals = zip(*(features(sentence.words[noun - 1]) for noun in nouns), strict=True)
        expected = ("a" if set(genders) == {"a"} else "o", len(nouns) > 1 or plurals[0])
        assert features(sentence.words[place - 1]) == expected
        distances.append(place - subject)
    assert max(distances) >= 10  # across a relative clause
    assert min(distances) < 0  # questions


def test_a_verb_always_takes_the_same_kind_of_complement() -> None:
    """Its particle, its complementiser and its governed preposition belong to the verb; adjunct phrases come with
    other verbs, which are seen without any."""
    particles, marks, governed = defaultdict(set), defaultdict(set), defaultdict(list)
    for sentence, place in verbs():
        words = ["", *sentence.words]
        stem = words[place].removesuffix("t").rstrip("aio")
        particles[stem].add(words[sum(children(sentence, place, "compound"))])
        clauses, oblique = (children(sentence, place, label) for label in ("ccomp", "obl"))
        marks[stem].add(words[children(sentence, clauses[0], "mark")[0]] if clauses else "")
        governed[stem].append(words[children(sentence, oblique[0], "case")[0]] if oblique else None)
    assert all(len(words) == 1 for words in (*particles.values(), *marks.values()))
    always = [cases for cases in governed.values() if None not in cases and len(cases) >= 20]
    assert len(always) >= 10
    assert all(len(set(cases)) == 1 for cases in always)


def test_lengths_are_4_to_25_with_a_mean_of_10_to_11() -> None:
    lengths = [len(sentence.words) for sentence in many()]
    assert min(lengths) == 4 and max(lengths) == 25
    assert 10 <= statistics.mean(lengths) <= 11
    assert statistics.stdev(lengths) > 3


def test_word_frequencies_follow_a_zipf_law() -> None:
    """The least-squares slope of log frequency on log rank, ranks 10 to 1000, is near -1 (-1.4 to -0.8)."""
    counts = sorted(Counter(word for sentence in many() for word in sentence.words).values(), reverse=True)
    x = [math.log(rank) for rank in range(10, 1001)]
    y = [math.log(count) for count in counts[9:1000]]
    assert -1.4 < statistics.linear_regression(x, y).slope < -0.8
    assert statistics.correlation(x, y) < -0.97


def test_3000_training_sentences_cover_the_words_of_dev() -> None:
    for side in ("words", "translation"):
        seen = Counter(word for sentence in parts()["train"] for word in getattr(sentence, side))
        tokens = [word for sentence in parts()["dev"] for word in getattr(sentence, side)]
        assert sum(seen[word] < 2 for word in tokens) / len(tokens) < 0.05


def forms_of(words: Lexicon) -> list[str]:
    """Every word form of the first language, closed words included."""
    inflected = [word for pool in (*words.nouns, *words.adjectives, *words.verbs.values()) for word in pool.items]
    adverbs = words.time_adverbs.items + words.manner_adverbs.items
    return [*CLOSED, *(form for word in inflected for form in word.forms), *(adverb.form for adverb in adverbs)]


@pytest.mark.parametrize("types", [FEWEST_TYPES, 2000, 30_000])
def test_the_lexicon_has_as_many_distinct_forms_as_asked_for_and_holds_every_word(types: int) -> None:
    forms = forms_of(lexicon(types))
    assert len(forms) == len(set(forms)) == types
    assert {word for sentence in generate(seed=1, size=300, types=types) for word in sentence.words} <= set(forms)


def test_the_length_of_a_translation_is_open() -> None:
    """One ratio in 20 is below 0.8, one above 1.3; 10 source words give translations of many lengths."""
    ratios = sorted(len(sentence.translation) / len(sentence.words) for sentence in many())
    assert ratios[len(ratios) // 20] <= 0.8 and ratios[-len(ratios) // 20] >= 1.3
    assert 0.95 < statistics.median(ratios) < 1.15
    tens = Counter(len(sentence.translation) for sentence in many() if len(sentence.words) == 10)
    assert sum(number > 20 for number in tens.values()) >= 6


def test_a_word_of_two_senses_is_translated_by_context() -> None:
    """Nouns of two senses have one translation as the object and the other as the subject."""
    nouns = [noun for pool in lexicon(2000).nouns for noun in pool.items[:20] if len(noun.senses) == 2]
    senses = {form: {"nsubj": n.senses[0][-1], "obj": n.senses[1][-1] + "um"} for n in nouns for form in n.forms}
    shown: Counter[str] = Counter()
    for sentence in many():
        for word, label in zip(sentence.words, sentence.labels, strict=True):
            if word in senses and label in ("nsubj", "obj"):
                assert senses[word][label] in sentence.translation
                shown[label] += 1
    assert shown["nsubj"] > 10 and shown["obj"] > 10


def test_adverbs_with_synonyms_are_translated_either_way() -> None:
    adverb = next(word for word in lexicon(2000).time_adverbs.items if len(word.senses) == 2)
    chosen = Counter(
        sense
        for sentence in many()
        if sentence.words.count(adverb.form) == 1
        for sense, words in enumerate(adverb.senses)
        if words[-1] in sentence.translation
    )
    assert chosen[0] > chosen[1] > 0


def order(words: list[str], counts: Counter[tuple[str, str]], totals: Counter[str], beam_size: int) -> tuple[str, ...]:
    """The best ordering of a multiset under a bigram model, by beam search over sums of log-probabilities."""
    beam: list[tuple[float, tuple[str, ...]]] = [(0.0, ())]
    for _ in words:
        successors = {}
        for score, prefix in beam:
            left = Counter(words) - Counter(prefix)
            for word in sorted(left):
                last = prefix[-1] if prefix else "<s>"
                log_probability = math.log((counts[last, word] + 0.01) / (totals[last] + 20))
                successors[(*prefix, word)] = score + log_probability
        beam = sorted(((score, prefix) for prefix, score in successors.items()), reverse=True)[:beam_size]
    return beam[0][1]


def test_beam_10_orders_words_better_than_greedy_under_a_bigram_model() -> None:
    """Greedy leaves words that fit nowhere: beam 10 restores twice the sentences and a tenth more bigrams."""
    counts, totals = Counter[tuple[str, str]](), Counter[str]()
    for sentence in parts()["train"]:
        previous = ("<s>", *sentence.words[:-1])
        counts.update(zip(previous, sentence.words, strict=True))
        totals.update(previous)
    shuffle = random.Random(1)
    exact, bigrams = Counter[int](), Counter[int]()
    for sentence in parts()["dev"]:
        words = shuffle.sample(sentence.words, len(sentence.words))
        for beam_size in (1, 10):
            found = order(words, counts, totals, beam_size)
            exact[beam_size] += found == sentence.words
            bigrams[beam_size] += (Counter(pairwise(found)) & Counter(pairwise(sentence.words))).total()
    assert exact[10] >= 2 * exact[1] and exact[10] >= 10
    assert bigrams[10] >= 1.1 * bigrams[1]


def test_too_few_types_and_negative_sizes_are_refused_by_name_and_number() -> None:
    few = refusal(generate, seed=1, size=1, types=50, error=ConfigError)
    assert few == "types = 50: the generated corpus needs 200 word types or more"
    start = refusal(generate, seed=1, size=1, start=-2, error=ConfigError)
    assert start == "generated corpus: start = -2; a number of sentences is 0 or more"
    dev = refusal(splits, 1, train=1, dev=-3, test=1, error=ConfigError)
    assert dev == "generated corpus: dev = -3; a number of sentences is 0 or more"
