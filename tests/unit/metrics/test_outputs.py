"""Metrics of outputs by hand and against sacreBLEU; regular expressions against Python's own and enumeration."""

import itertools
import math
import random
import re

import numpy as np
import pytest
import sacrebleu

from argbeam.errors import DataError
from argbeam.metrics.outputs import RankedOutputs, make_metric, metric_name, signature_of
from argbeam.metrics.regular_expressions import parse, same_strings
from argbeam.metrics.significance import compare_bleu, compare_statistics

LISTS = [
    RankedOutputs(["a b", "a", "c"], "a b", seen=True),
    RankedOutputs(["a", "a b", "c"], "a b"),
    RankedOutputs(["x y z", "y"], "c"),
    RankedOutputs([], "a b c"),
]


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("exact", 25.0),
        ("unseen", 0.0),  # the exact one was seen
        ("top1", 25.0),
        ("top2", 50.0),
        ("hit10", 50.0),
        ("ndcg10", 100 * (1 + 1 / math.log2(3)) / 4),
        ("ndcg1", 25.0),
        ("token_error_rate", 100 * (0 + 1 + 3 + 3) / (2 + 2 + 1 + 3)),
    ],
)
def test_scores_are_those_computed_by_hand(name: str, score: float) -> None:
    metric = make_metric(name)
    assert metric.score(metric.rows(LISTS).sum(0)) == pytest.approx(score)


def test_an_error_rate_counts_the_tokens_of_the_task_and_less_is_better() -> None:
    """abc -> axc: one of three characters."""
    metric = make_metric("token_error_rate", tokens=list)
    sums = metric.rows([RankedOutputs(["axc"], "abc")]).sum(0)
    assert metric.score(sums) == pytest.approx(100 / 3)
    assert metric.value(sums) == pytest.approx(-100 / 3)


def test_bleu_and_chrf_are_sacrebleus() -> None:
    texts, references = ["the cat sat on a mat", "a dog barks ."], ["the cat sat on the mat", "the dog barks ."]
    lists = [RankedOutputs([text], reference) for text, reference in zip(texts, references, strict=True)]
    for name, official in (("bleu", sacrebleu.corpus_bleu), ("chrf", sacrebleu.corpus_chrf)):
        metric = make_metric(name)
        more = {"tokenize": "none"} if name == "bleu" else {}
        assert metric.score(metric.rows(lists).sum(0)) == official(texts, [references], **more).score
    names = [make_metric("exact"), make_metric("chrf")]
    assert signature_of(names, "target:words").startswith("exact+chrf|target:words|version:argbeam-outputs-1|nrefs:1")


def test_tests_from_statistics_are_those_from_texts_and_need_the_same_sentences() -> None:
    draw = random.Random(1)
    references = [" ".join(draw.choices("abcdef", k=8)) for _ in range(60)]
    systems = [
        [" ".join(word if draw.random() < right else "x" for word in line.split()) for line in references]
        for right in (0.8, 0.7, 0.8, 0.75)
    ]
    metric = make_metric("bleu")
    sides = [[RankedOutputs([text], gold) for text, gold in zip(one, references, strict=True)] for one in systems]
    rows = [{"bleu": metric.rows(side)} for side in sides]
    for seeds in (1, 2):
        pairs = list(zip(systems[::2], systems[1::2], strict=True))[:seeds]
        expected = compare_bleu(pairs, references, metric="tok:none")["bleu"]
        pairs_of_rows = list(zip(rows[::2], rows[1::2], strict=True))[:seeds]
        assert compare_statistics(pairs_of_rows, metric=metric.signature)["bleu"] == expected
    three, two = {"exact": np.ones((3, 2))}, {"exact": np.ones((2, 2))}
    same = compare_statistics([(three, three)], metric="exact")["exact"]
    assert (same.p_value, same.system_score) == (1.0, 100.0)
    for others in ([(three, two)], [(three, three), (two, two)]):
        with pytest.raises(DataError, match="scored on other sentences"):
            compare_statistics(others, metric="exact")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("( <M0> ) | ( <M1> )", "<M1> | <M0>", True),
        ("~ ( ~ ( <M0> ) )", "<M0>", True),
        ("~ ( . * <M0> . * )", "~ ( . * ( <M0> ) + . * )", True),
        ("( . * <M0> . * ) & ( . * [ <NUM> ] . * )", "( . * [ <NUM> ] . * ) & ( . * <M0> . * )", True),
        ("( [ <LET> ] ) { 2 , }", "[ <LET> ] [ <LET> ] ( [ <CAP> ] | [ <LOW> ] ) *", True),
        ("[ <VOW> ] & [ <NUM> ]", "[ <NUM> ] & [ <CAP> ]", True),  # no string at all
        ("[ <VOW> ] & [ <CAP> ]", "[ <CAP> ]", False),
        ("~ <M0> *", "( ~ ( <M0> ) ) *", True),  # ~ before *
        ("<M0> | <M1> <M2>", "<M0> | ( <M1> <M2> )", True),
        ("\\ b <M0>", "b <M0>", True),  # an escaped symbol is the symbol
        (". *", "~ ( [ <NUM> ] & [ <LET> ] )", True),
        ("[ <LOW> ] *", "[ <LET> ] *", False),
        ("( <M0>", "( <M0>", True),  # the same text, whatever it is
        ("( <M0>", "<M0>", False),
        ("<M0> |", "<M0>", False),
        ("[ ]", "[ <NUM> ] & [ <LET> ]", False),
        ("<M0> { 99 , }", "<M0> { 98 , }", False),
        (f"( . ) {'{ 3 , } ' * 10}", f"( . ) {'{ 3 , } ' * 9}", False),  # too large to be compared
    ],
)
def test_expressions_are_equal_if_they_have_the_same_strings(one: str, other: str, same: bool) -> None:
    assert same_strings(one, other) is same
    assert same_strings(other, one) is same


def test_equality_is_that_of_matches_over_all_short_strings() -> None:
    """Expressions without ~ and & by Python's `re`, with them by sets of strings of up to three of two letters."""
    strings = ["".join(s) for n in range(4) for s in itertools.product("ab", repeat=n)]
    draw = random.Random(3)

    def drawn(depth: int) -> tuple[str, frozenset[str]]:
        """An expression and its short strings."""
        if depth == 0:
            char = draw.choice(["a", "b", "."])
            return char, frozenset(s for s in strings if re.fullmatch(char, s))
        (left, of_left), (right, of_right) = drawn(depth - 1), drawn(depth - 1)
        match draw.choice(["|", "&", "~", "*", "cat"]):
            case "|":
                return f"( {left} ) | ( {right} )", of_left | of_right
            case "&":
                return f"( {left} ) & ( {right} )", of_left & of_right
            case "~":
                return f"~ ( {left} )", frozenset(strings) - of_left
            case "*":
                found = {""}
                for _ in range(3):
                    found |= {a + b for a in found for b in of_left if len(a + b) <= 3}
                return f"( {left} ) *", frozenset(found)
        return f"( {left} ) ( {right} )", frozenset(a + b for a in of_left for b in of_right if len(a + b) <= 3)

    cases = [drawn(2) for _ in range(32)]
    equal = 0
    for (one, of_one), (other, of_other) in itertools.combinations(cases, 2):
        assert parse(one) is not None
        if same_strings(one, other):
            equal += one != other
            assert of_one == of_other
    # What differs in short strings is never equal (above); what is equal is found.
    assert equal > 3
    assert same_strings("( a | b ) *", "( a * b * ) *") and not same_strings("( a b ) *", "a * b *")


def test_the_score_of_dev_has_the_name_of_its_part_whatever_other_figures_are() -> None:
    """No sentence without gold and no right output are both 0."""
    dev = {"perplexity": 2.0, "without_gold": 0, "value": 0.0, "regex": 0.0, "exact": 0.0, "test_beam": 5}
    assert metric_name(dev) == "REGEX"
