"""The record of a search: against the figure of the paper, and against the results of searches."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argbeam.data.vocabulary import EOS
from argbeam.search.gold import Gold, Policy, Restart
from argbeam.search.recorder import (
    DROPPED,
    ENDED,
    FORBIDDEN,
    GOLD,
    KEPT,
    SearchRecorder,
    TreeStep,
    WithoutConstraint,
    gold_kept,
    tree_of,
)
from argbeam.search.result import SearchResult
from argbeam.search.score_rules import LastScore, LogprobSum, ScoreRule
from argbeam.search.search import SearchSettings, result_of, search_in_parts
from argbeam.search.stop_rules import Stop, StopBest
from argbeam.search.successors import Unconstrained
from figure_1 import GOLD as FIGURE_GOLD
from figure_1 import SUCCESSORS, VOCABULARY, model, sentence, words
from oracles import Tokens, unconstrained
from toy_cases import GOLD_CASES, Case, beams_of, rules


def figure(policy: Policy | None) -> list[TreeStep]:
    """The search of the figure, with gold or as decoding does it."""
    table, batch, recorder = model(), sentence(), SearchRecorder(20)
    gold = None if policy is None else Gold(batch.target_BT, batch.target_length_B, policy)
    with torch.no_grad():
        state, choices = table.encode(batch, None), SUCCESSORS.start(batch)
        settings, length_B = SearchSettings(3, LastScore()), batch.target_length_B
        pauses = search_in_parts(table, state, choices, settings, length_B=length_B, steps=6, gold=gold, watch=recorder)
        result_of(pauses)
    return tree_of(recorder, 0, gold=words(FIGURE_GOLD), gold_scores=[5.0, 3.0, 4.0, 2.0, 3.5, 2.0], shown=1)


def readable(step: TreeStep) -> list[str]:
    """Newest word, parent's place and score of the hypotheses that have a score in the figure."""
    rows = zip(step.tokens, step.parents, step.scores, strict=True)
    return [f"{VOCABULARY.words[token]} {parent} {score}" for token, parent, score in rows if score > -100]


def test_the_tree_of_a_training_search_is_the_figure() -> None:
    """Places count from 0. After the restart at t = 4 gold, at place 3 of that step, is the only parent."""
    tree = figure(Restart(1.0))
    assert [readable(step) for step in tree] == [
        ["a -1 5.0", "the -1 4.5", "one -1 3.0"],
        ["brown 1 4.0", "red 0 3.0", "brown 0 1.5"],
        ["cat 0 5.0", "dog 1 4.0", "cat 1 2.0"],
        ["sleeps 0 6.0", "barks 1 5.0", "sleeps 2 3.0", "runs 1 2.0"],
        ["fast 3 4.0", "quickly 3 3.5", "home 3 1.0"],
        ["today 0 2.5", "today 1 2.0", "now 1 0.5"],
    ]
    assert [step.gold for step in tree] == [0, 1, 1, 3, 1, 1]
    assert [step.rank for step in tree] == [1, 2, 2, 4, 2, 2]
    assert [step.violation for step in tree] == [False, False, False, True, False, True]
    assert [step.rival for step in tree] == [2, 2, 2, 2, 2, 0]
    assert [step.margin for step in tree] == [2.0, 1.5, 2.0, -1.0, 2.5, -0.5]
    assert [step.fate[step.gold] for step in tree] == [KEPT, KEPT, KEPT, DROPPED, KEPT, KEPT]


def test_the_tree_of_the_plain_search_has_golds_path_beside_the_beam() -> None:
    """Gold falls off at t = 4, one behind the last place; then it is no successor of the beam, whose prefixes have
    scores of -100."""
    tree = figure(None)
    assert [step.gold_score for step in tree] == [5.0, 3.0, 4.0, 2.0, 3.5, 2.0]
    assert [step.rank for step in tree] == [1, 2, 2, 4, 1, 1]
    assert [step.margin for step in tree] == [2.0, 1.5, 2.0, -1.0, 103.5, 102.0]
    assert [step.fate[step.gold] for step in tree] == [KEPT, KEPT, KEPT, DROPPED, GOLD, GOLD]
    assert not any(step.violation for step in tree)
    path = [VOCABULARY.words[step.tokens[step.gold]] for step in tree]
    assert " ".join(path) == FIGURE_GOLD
    assert [step.parents[step.gold] for step in tree] == [-1, *(step.gold for step in tree[:-1])]


def recorded(
    case: Case,
    settings: SearchSettings,
    golds: list[Tokens] | None = None,
    policy: Policy | None = None,
    free: WithoutConstraint | None = None,
) -> tuple[SearchResult, SearchRecorder]:
    recorder = SearchRecorder(5, free)
    plain: Any = partial(search_in_parts, watch=recorder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("argbeam.search.search.search_in_parts", plain)
        found = case.search(
            beam=settings.beam_size,
            rule=settings.rule,
            stop=settings.stop,
            n_best=settings.n_best,
            golds=golds,
            policy=policy,
        )
    return found, recorder


def prefixes(tree: list[TreeStep]) -> list[dict[Tokens, tuple[float, int]]]:
    """Score and fate by tokens, read back through the parents."""
    rows: list[Tokens] = []
    found = []
    for step in tree:
        rows = [
            (*(rows[parent] if parent >= 0 else ()), token)
            for parent, token in zip(step.parents, step.tokens, strict=True)
        ]
        found.append(dict(zip(rows, zip(step.scores, step.fate, strict=True), strict=True)))
    return found


@pytest.mark.parametrize("name", GOLD_CASES)
def test_a_tree_holds_the_beams_of_its_search_and_golds_prefixes(name: str) -> None:
    """Decoding with every stop rule and score rule; with log-probabilities and `best` the beam is refilled."""
    cases, stop = GOLD_CASES[name]

    @given(case=cases, beam=st.integers(1, 6), rule=rules, data=st.data())
    @settings(max_examples=12)
    def agree(case: Case, beam: int, rule: ScoreRule, data: st.DataObject) -> None:
        golds = case.golds(data, rule, stop)
        found, recorder = recorded(case, SearchSettings(beam, rule, stop, n_best=1))
        for b, gold in enumerate(golds):
            ends = () if stop is None else (EOS,)
            tree = tree_of(recorder, b, ends=ends, gold=gold, shown=2)
            beams = beams_of(found, b)
            for t, (step, seen) in enumerate(zip(tree, prefixes(tree), strict=True)):
                kept = {row: score for row, (score, fate) in seen.items() if fate in (KEPT, ENDED)}
                assert kept == dict(beams[t])
                listed = [score for score, fate in zip(step.scores, step.fate, strict=True) if fate != GOLD]
                assert listed == sorted(listed, reverse=True)
                if t < len(gold):
                    assert list(seen)[step.gold] == gold[: t + 1]

    agree()


@pytest.mark.parametrize("name", GOLD_CASES)
def test_a_tree_of_a_training_search_has_its_violations_and_rivals(name: str) -> None:
    cases, stop = GOLD_CASES[name]

    @given(case=cases, beam=st.integers(1, 6), rule=rules, data=st.data(), growth=st.sampled_from([0.0, 0.7]))
    @settings(max_examples=12)
    def agree(case: Case, beam: int, rule: ScoreRule, data: st.DataObject, growth: float) -> None:
        golds, policy = case.golds(data, rule, stop), Restart(1.0, growth if rule.adds_up else 0.0)
        found, recorder = recorded(case, SearchSettings(beam, rule, stop, n_best=0), golds, policy)
        violations = found.violations
        assert violations is not None
        for b, gold in enumerate(golds):
            ends, score = () if stop is None else (EOS,), case.score(rule, b)
            tree = tree_of(recorder, b, ends=ends, gold=gold, policy=policy, shown=2)
            assert [step.violation for step in tree] == violations.violation_BT[b, : len(gold)].tolist()
            assert [step.gold_score for step in tree] == pytest.approx([score(gold[: t + 1]) for t in range(len(gold))])
            start = 0  # of the rival's segment
            for t, (step, seen) in enumerate(zip(tree, prefixes(tree), strict=True)):
                assert list(seen)[step.gold] == gold[: t + 1]
                if step.violation:
                    rival = (*gold[:start], *violations.rival_BT[b, start : t + 1].tolist())
                    assert list(seen)[step.rival] == rival
                    assert step.margin == pytest.approx(score(gold[: t + 1]) - score(rival))
                    assert step.margin < 1.0 + policy.margin_per_token * (t + 1 - start)
                    start = t + 1

    agree()


def test_the_steps_that_keep_gold_are_those_whose_prefixes_hold_it() -> None:
    """Also where a finished gold lies behind the beam, as in a search that refills it."""

    @given(case=GOLD_CASES["stop best"][0], beam=st.integers(1, 4), data=st.data())
    @settings(max_examples=20)
    def agree(case: Case, beam: int, data: st.DataObject) -> None:
        stop: Stop = StopBest()
        golds = case.golds(data, LogprobSum(), stop)
        found = case.search(beam=beam, rule=LogprobSum(), stop=stop)
        gold_BT = torch.nn.utils.rnn.pad_sequence([torch.tensor(gold) for gold in golds], batch_first=True)
        kept_TB = gold_kept(found.beams, gold_BT, beam_size=beam)
        for b, gold in enumerate(golds):
            beams = beams_of(found, b)
            for t in range(min(len(gold), len(kept_TB))):
                assert bool(kept_TB[t, b]) == (gold[: t + 1] in dict(beams[t]))

    agree()


@pytest.mark.parametrize(("name", "trains"), [("permutation", False), ("shift reduce", False), ("permutation", True)])
def test_forbidden_hypotheses_would_be_on_the_beam_without_the_constraint(name: str, trains: bool) -> None:
    """Of all continuations of the beam the K best that are not valid; gold's prefix, where it is one, is gold."""

    @given(case=GOLD_CASES[name][0], beam=st.integers(1, 6), rule=rules, data=st.data())
    @settings(max_examples=15)
    def agree(case: Case, beam: int, rule: ScoreRule, data: st.DataObject) -> None:
        golds = case.golds(data, rule, None) if trains else None
        growth = 0.7 if rule.adds_up else 0.0
        policy, vocabulary = Restart(1.0, growth) if trains else None, case.model.vocabulary
        allowed_1V = Unconstrained(vocabulary, end_symbol=False).start(case.batch).allowed()
        free = WithoutConstraint(rule, case.model, allowed_1V)
        _, recorder = recorded(case, SearchSettings(beam, rule, n_best=1), golds, policy, free)
        for b, valid in enumerate(case.by_sentence):
            score, gold = case.score(rule, b), golds[b] if golds else ()
            tree = tree_of(recorder, b, gold=gold, policy=policy, shown=beam)
            before: list[Tokens] = [()]
            for step, seen in zip(tree, prefixes(tree), strict=True):
                rows = [(*row, token) for row in before for token in unconstrained(vocabulary, end_symbol=False)(row)]
                best = sorted(rows, key=score, reverse=True)[:beam]
                expected = {row: score(row) for row in best if row[-1] not in valid(row[:-1])}
                found = {row: value for row, (value, fate) in seen.items() if fate == FORBIDDEN}
                assert found == pytest.approx(expected)
                assert step.fate == sorted(step.fate, key=lambda fate: fate in (GOLD, FORBIDDEN))
                before = [row for row, (_, fate) in seen.items() if fate == KEPT]
                if trains and step.violation:
                    before = [gold[: len(before[0])]]

    agree()
