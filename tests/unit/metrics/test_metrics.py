"""Reported metrics against sacreBLEU, loops over counts, and cases by hand."""

import math
import random
from collections.abc import Iterable

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import _bootstrap_resample

from argbeam.errors import ConfigError
from argbeam.metrics.attachment import PUNCTUATION, AttachmentCounts, attachment_counts, attachment_signature
from argbeam.metrics.bleu import corpus_bleu
from argbeam.metrics.significance import PairedBootstrap, compare_attachment, compare_bleu, p_text
from refusals import refusal

REFERENCES = [
    "the old clock in the hall is slow .",
    "she wound it twice a day for years .",
    "nobody here can tell the time any more .",
    "we went home before it struck nine .",
]
HYPOTHESES = [
    "the old clock in a hall is slow .",
    "she wound it two times a day for years",
    "nobody can tell the time here any more .",
    "we all went home before it struck nine .",
]
WORSE = ["the clock is slow .", "she wound it .", "nobody here can tell", "we went home . nine"]


def sentence_of(seeds: int) -> st.SearchStrategy:
    """A number of words, and how many heads and labels each seed's two systems have right."""

    def systems(words: int) -> st.SearchStrategy:
        right = st.tuples(st.integers(0, words), st.integers(0, words))
        return st.tuples(st.just(words), st.tuples(*[st.tuples(right, right)] * seeds))

    return st.integers(0, 6).flatmap(systems)


def noisy(references: list[str], share: float, seed: int) -> list[str]:
    """The references with a share of their words replaced."""
    draw = random.Random(seed).random
    return [" ".join("x" if draw() < share else word for word in line.split()) for line in references]


def counts(words: int, correct: int) -> AttachmentCounts:
    return AttachmentCounts(words, correct, correct)


def bleu_test(system: list[str], baseline: list[str], references: list[str]) -> PairedBootstrap:
    return compare_bleu([(system, baseline)], references, metric="nrefs:1|tok:none|smooth:exp")["bleu"]


@pytest.mark.parametrize("tokenize", ["none", "13a"])
def test_corpus_bleu_is_sacrebleus_with_its_signature(tokenize: str) -> None:
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], tokenize=tokenize)
    result = corpus_bleu(HYPOTHESES, REFERENCES, tokenize=tokenize)
    assert result.score == expected.score
    version = sacrebleu.__version__
    assert result.signature == f"nrefs:1|case:mixed|eff:no|tok:{tokenize}|smooth:exp|version:{version}"


def test_corpus_bleu_by_hand() -> None:
    """`a b c d e` against `a b c d e f`: all n-grams match, and the penalty is exp(1 - 6/5)."""
    result = corpus_bleu(["a b c d e"], ["a b c d e f"], tokenize="none")
    assert math.isclose(result.score, 100 * math.exp(-0.2))
    assert result.length_ratio == 5 / 6


def test_a_tokenised_corpus_is_scored_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    corpus_bleu(REFERENCES * 50, REFERENCES * 50, tokenize="none")
    assert not caplog.records


def test_attachment_counts_by_hand() -> None:
    """Four of five words count, the last is punctuation: heads are right at 1, 2, 3, head and label at 1 alone."""
    found = attachment_counts(
        [2, 0, 2, 1, 2],
        ["nsubj", "root", "obl", "det", "punct"],
        [2, 0, 2, 3, 2],
        ["nsubj", "root:x", "obl:tmod", "det", "punct"],
        is_punctuation=[False, False, False, False, True],
    )
    assert found == AttachmentCounts(words=4, uas_correct=3, las_correct=1)
    assert (found.uas, found.las) == (75.0, 25.0)


def test_counts_add_before_the_division_and_no_scored_word_is_zero_percent() -> None:
    """1 of 1 and 0 of 3 make 1 of 4: 25 percent, not the mean of 100 and 0."""
    total = sum([counts(1, 1), counts(3, 0)], start=AttachmentCounts())
    assert total == counts(4, 1)
    assert (total.uas, total.las) == (25.0, 25.0)
    assert (AttachmentCounts().uas, AttachmentCounts().las) == (0.0, 0.0)


def test_penn_treebank_punctuation_is_five_tags_and_no_brackets_and_has_its_signature() -> None:
    tags = ["``", "''", ":", ",", ".", "-LRB-", "-RRB-", "$", "#", "NN"]
    assert [tag in PUNCTUATION["ptb"] for tag in tags] == [True] * 5 + [False] * 5
    for name in ("ptb", "upos"):
        assert attachment_signature(name) == f"punct:{name}|labels:full|version:argbeam-attachment-1"


@pytest.mark.parametrize("tokenize", ["none", "13a"])
def test_paired_bootstrap_of_bleu_counts_both_tails_of_sacrebleus_samples(
    monkeypatch: pytest.MonkeyPatch, tokenize: str
) -> None:
    """sacreBLEU's own p counts one tail of the same samples."""
    references = REFERENCES * 5
    system, baseline = noisy(references, 0.10, seed=1), noisy(references, 0.13, seed=2)
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    bleu = BLEU(tokenize=tokenize, force=True)
    resampled = [
        [score.score for score in _bootstrap_resample(bleu._extract_corpus_statistics(one, [references]), bleu)[1]]
        for one in (system, baseline)
    ]
    scores = [bleu.corpus_score(one, [references]).score for one in (system, baseline)]
    gaps = [ours - theirs for ours, theirs in zip(*resampled, strict=True)]
    real, mean = scores[0] - scores[1], sum(gaps) / 1000
    expected = (sum(abs(gap - mean) >= abs(real) for gap in gaps) + 1) / 1001
    one_tail = (sum(abs(gap) - sum(map(abs, gaps)) / 1000 > abs(real) for gap in gaps) + 1) / 1001
    signature = corpus_bleu(system, references, tokenize=tokenize).signature
    (found,) = compare_bleu([(system, baseline)], references, metric=signature).values()
    (swapped,) = compare_bleu([(baseline, system)], references, metric=signature).values()
    assert found.p_value == pytest.approx(expected, abs=0.0015)
    assert swapped.p_value == found.p_value
    assert 1.3 * one_tail < found.p_value < 1
    assert [found.system_score, found.baseline_score] == pytest.approx(scores)
    assert {"seed:12345", "bs:1000", "tails:2", f"tok:{tokenize}"} <= set(found.signature.split("|"))


def test_a_clearly_better_bleu_is_significant_and_an_equal_one_is_not() -> None:
    assert bleu_test(HYPOTHESES * 5, WORSE * 5, REFERENCES * 5).p_value == 1 / 1001
    assert bleu_test(HYPOTHESES * 5, HYPOTHESES * 5, REFERENCES * 5).p_value == 1


def test_the_lowest_p_of_a_thousand_samples_is_shown_as_a_bound() -> None:
    assert [p_text(p) for p in (1 / 1001, 2 / 1001, 0.0496, 1.0)] == ["<= 0.001", "0.002", "0.050", "1.000"]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 3).flatmap(lambda seeds: st.lists(sentence_of(seeds), min_size=1, max_size=12)))
def test_paired_bootstrap_of_attachment_is_the_loop_over_resampled_sentences(cases: list) -> None:
    """Of one seed, and of the mean over several: a sample has the same sentences in all."""
    words, everything, seeds = [words for words, _ in cases], range(len(cases)), range(len(cases[0][1]))
    pairs = []
    for seed in seeds:
        system, baseline = ([AttachmentCounts(w, *right[seed][side]) for w, right in cases] for side in (0, 1))
        pairs.append((system, baseline))
    resampled = np.random.default_rng(12345).choice(len(cases), size=(1000, len(cases)), replace=True).tolist()
    for name, found in compare_attachment(pairs, punctuation="upos").items():

        def scores(places: Iterable[int], name: str = name) -> list[float]:
            means = []
            for side in (0, 1):
                total = 0.0
                for seed in seeds:
                    right = sum(getattr(pairs[seed][side][i], f"{name}_correct") for i in places)
                    total += 100 * right / max(1, sum(words[i] for i in places))
                means.append(total / len(seeds))
            return means

        gaps = [ours - theirs for ours, theirs in map(scores, resampled)]
        gaps, real = [abs(gap - sum(gaps) / 1000) for gap in gaps], abs(found.system_score - found.baseline_score)
        # Sums in another order differ in the last bits; a gap that close to the real one may count either way.
        certain = sum(gap > real + 1e-9 for gap in gaps)
        possible = sum(gap > real - 1e-9 for gap in gaps)
        least, most = ((certain + 1) / 1001, (possible + 1) / 1001) if real else (1, 1)
        assert least <= found.p_value <= most
        assert [found.system_score, found.baseline_score] == pytest.approx(scores(everything))


def test_two_seeds_with_chance_differences_can_be_significant_together() -> None:
    """Of 100 sentences of a word a seed has 20 more right and 11 more wrong: a gain of 9 in 100, whose deviation is
    sqrt((0.31 - 0.09^2) / 100) = 0.055, 1.64 of them, p 0.10. A second one, the same with other sentences: half a word
    in 62 of them, sqrt((0.155 - 0.09^2) / 100) = 0.038, 2.35 of them, p 0.019. With the same sentences it adds nothing.
    """

    def seed(first: int) -> tuple[list[AttachmentCounts], list[AttachmentCounts]]:
        better, worse = range(first, first + 20), range(first + 20, first + 31)
        return [counts(1, i not in worse) for i in range(100)], [counts(1, i not in better) for i in range(100)]

    p = {
        starts: compare_attachment([seed(first) for first in starts], punctuation="ptb")["uas"].p_value
        for starts in ((0,), (50,), (0, 50), (0, 0))
    }
    assert [p[(0,)], p[(50,)], p[(0, 50)]] == pytest.approx([0.101, 0.101, 0.019], rel=0.3)
    assert p[(0, 0)] == p[(0,)]


def test_only_a_test_of_several_seeds_says_of_how_many_runs_it_is() -> None:
    one, more = (
        compare_bleu([(HYPOTHESES, WORSE)] * seeds, REFERENCES, metric="nrefs:1|tok:none|smooth:exp")["bleu"].signature
        for seeds in (1, 3)
    )
    assert one.endswith("|bs:1000|seed:12345|tails:2") and more == f"{one}|runs:3"


def test_a_clearly_better_parser_is_significant_and_an_equal_one_is_not() -> None:
    good, bad = [counts(10, 9), counts(12, 10)] * 20, [counts(10, 6), counts(12, 8)] * 20
    better = compare_attachment([(good, bad)], punctuation="ptb")
    assert {name: test.p_value for name, test in better.items()} == {"uas": 1 / 1001, "las": 1 / 1001}
    assert better["las"].signature == f"las|{attachment_signature('ptb')}|bs:1000|seed:12345|tails:2"
    assert better["uas"].signature.startswith("uas|")
    assert compare_attachment([(good, good)], punctuation="ptb")["uas"].p_value == 1


@pytest.mark.parametrize(("hypotheses", "references"), [(["a"], ["a", "b"]), ([], [])])
def test_bleu_refuses_unpaired_sentences(hypotheses: list[str], references: list[str]) -> None:
    message = (
        f"BLEU: {len(hypotheses)} hypotheses for {len(references)} references; "
        "as many of one as of the other, and at least one, are needed"
    )
    assert refusal(corpus_bleu, hypotheses, references, tokenize="none") == message
    assert refusal(bleu_test, references, hypotheses, references) == message


def test_bleu_refuses_an_unknown_tokenizer() -> None:
    with pytest.raises(ConfigError, match=r"^BLEU: unknown tokenize 'moses'; accepted: 13a, .*none, .*zh$"):
        corpus_bleu(["a"], ["a"], tokenize="moses")


def test_attachment_refuses_lists_of_different_lengths() -> None:
    flags = [False, False]
    assert refusal(attachment_counts, [0], ["root", "x"], [0, 1], ["root", "x"], is_punctuation=flags) == (
        "attachment: 1 predicted heads, 2 predicted labels, 2 gold labels and 2 punctuation flags "
        "for 2 gold heads; every word has one of each"
    )


@pytest.mark.parametrize(
    ("system", "baseline", "found"),
    [
        ([counts(2, 1)], [counts(3, 1)], "1 sentences with 2 scored words against 1 sentences with 3 scored words"),
        ([], [], "0 sentences with 0 scored words against 0 sentences with 0 scored words"),
    ],
)
def test_attachment_test_refuses_other_sentences(system: list, baseline: list, found: str) -> None:
    assert refusal(compare_attachment, [(system, baseline)], punctuation="upos") == (
        f"attachment: {found}; both systems need the same sentences, at least one, with the same words scored"
    )
