"""The vocabulary: a deterministic order, specials that no text can reach, and JSON that comes back."""

import copy
import json
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argbeam.data.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary, fold_digits
from argbeam.errors import ConfigError
from refusals import refusal

words = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.sampled_from([*SPECIALS, "a", "b"]))
corpora = st.lists(st.lists(words))


def test_words_are_ordered_by_count_then_spelling() -> None:
    """c occurs 3 times, a and b twice, d once; min_count 2 drops d, max_size 2 also b."""
    corpus = [["c", "b", "c"], ["a", "d", "b"], ["c", "a"]]
    assert Vocabulary.build(corpus, min_count=2).words == (*SPECIALS, "c", "a", "b")
    assert Vocabulary.build(corpus, min_count=2, max_size=2).words == (*SPECIALS, "c", "a")
    assert Vocabulary.build(corpus, min_count=1).encode("abcdx") == [5, 6, 4, 7, UNK]


@given(corpora, st.integers(1, 3), st.randoms(use_true_random=False))
def test_the_order_of_the_corpus_does_not_matter(corpus: list[list[str]], least: int, random: Random) -> None:
    shuffled = random.sample(corpus, len(corpus))
    assert Vocabulary.build(corpus, min_count=least) == Vocabulary.build(shuffled, min_count=least)


@given(corpora, st.integers(1, 3))
def test_known_words_come_back_and_all_others_are_unknown(corpus: list[list[str]], least: int) -> None:
    vocabulary = Vocabulary.build(corpus, min_count=least)
    counts = Counter(word for sentence in corpus for word in sentence)
    for sentence in corpus:
        kept = [counts[word] >= least and word not in SPECIALS for word in sentence]
        expected = [word if known else "<unk>" for word, known in zip(sentence, kept, strict=True)]
        assert vocabulary.decode(vocabulary.encode(sentence)) == expected
        assert [word in vocabulary for word in sentence] == kept


def test_the_specials_come_first_and_a_word_spelled_like_one_is_unknown() -> None:
    vocabulary = Vocabulary.build([list(SPECIALS)] * 9, min_count=1)
    assert vocabulary.words == SPECIALS and len(vocabulary) == 4
    assert vocabulary.encode(SPECIALS) == [UNK] * 4
    assert vocabulary.decode([PAD, UNK, BOS, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]


@given(corpora)
def test_json_comes_back(corpus: list[list[str]]) -> None:
    vocabulary = Vocabulary.build(corpus, min_count=1)
    assert Vocabulary.from_json(vocabulary.to_json()) == vocabulary == copy.deepcopy(vocabulary)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "v.json: not JSON; a list of words is expected"),
        ("[" * 100_000, "v.json: not JSON; a list of words is expected"),
        ('{"a": 4}', "v.json: not a list of words; a JSON list of non-empty strings is expected"),
        ('["<pad>", 4]', "v.json: not a list of words"),
        ('["<pad>", ""]', "v.json: not a list of words"),
        ('["\\ud800"]', "v.json: not a list of words"),
        ('["a"]', "v.json: a vocabulary starts with ('a',); ('<pad>', '<unk>', '<s>', '</s>') are expected"),
        (json.dumps([*SPECIALS, "<s>"]), "v.json: '<s>' stands twice in a vocabulary; each word is expected once"),
    ],
)
def test_a_malformed_vocabulary_is_an_error(text: str, message: str) -> None:
    assert refusal(Vocabulary.from_json, text, where="v.json").startswith(message)


def test_limits_below_one_are_errors() -> None:
    count = refusal(Vocabulary.build, [], min_count=0, error=ConfigError)
    assert count == "a vocabulary with min_count 0; 1 or more is accepted"
    size = refusal(Vocabulary.build, [], min_count=1, max_size=0, error=ConfigError)
    assert size == "a vocabulary with max_size 0; 1 or more is accepted, or none for no limit"


@pytest.mark.parametrize("token", [-1, 4])
def test_a_token_id_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(AssertionError, match=rf"token ids \[{token}\] in a vocabulary of 4"):
        Vocabulary(SPECIALS).decode([token])


def test_every_digit_becomes_a_number_sign() -> None:
    folded = {"1,984th": "#,###th", "x\u0663": "x#", "\u00b2": "\u00b2", "none": "none"}
    assert {word: fold_digits(word) for word in folded} == folded
