"""The training search and the loss of the search in `figure_1`, against the figure."""

from argbeam.losses.bso import Bso, BsoStep, search_with_gold
from argbeam.search.gold import Restart
from argbeam.search.result import Beams, Violations
from argbeam.search.score_rules import LastScore
from argbeam.search.search import SearchSettings
from figure_1 import SUCCESSORS, VOCABULARY, model, sentence


def search() -> tuple[Violations, Beams]:
    table, batch = model(), sentence()
    state, settings = table.encode(batch, None), SearchSettings(3, LastScore())
    return search_with_gold(table, state, SUCCESSORS, settings, batch, Restart(margin=1.0))


def test_gold_is_violated_at_t_4_and_t_6_and_nowhere_else() -> None:
    found, _ = search()
    assert [t for t, violated in enumerate(found.violation_BT[0].tolist(), start=1) if violated] == [4, 6]
    assert found.gold_score_BT[0].tolist() == [5.0, 3.0, 4.0, 2.0, 3.5, 2.0]
    assert found.rival_score_BT[0].tolist() == [3.0, 1.5, 2.0, 3.0, 1.0, 2.5]
    assert not found.rival_is_gold_BT.any()
    # The rival's segments run from the restart to their violation.
    assert VOCABULARY.decode(found.rival_BT[0].tolist()) == ["a", "red", "cat", "sleeps", "fast", "today"]


def test_the_beams_are_those_of_the_figure() -> None:
    _, beams = search()
    newest = [" ".join(VOCABULARY.decode(step[0].tolist())) for step in beams.tokens_TBJ]
    assert newest == [
        "a the one",
        "brown red brown",
        "cat dog cat",
        "sleeps barks sleeps",
        "fast quickly home",
        "today today now",
    ]
    assert beams.parents_TBJ[:, 0].tolist() == [
        [0, 0, 0],
        [1, 0, 0],
        [0, 1, 1],
        [0, 1, 2],
        [0, 0, 0],  # after the restart gold is the only parent
        [0, 1, 1],
    ]


def test_the_loss_pushes_gold_up_and_the_rival_down_at_the_two_violations() -> None:
    """2 + 1.5; the gradient touches four scores, those of the newest words of two gold and two rival prefixes."""
    table = model()
    out = BsoStep(Bso(SUCCESSORS, train_beam=3, open_length=False), beam=3)(table, sentence(), None)
    assert out.total.item() == 3.5
    named = {
        (" ".join(VOCABULARY.decode(prefix)), VOCABULARY.words[word]): slope
        for (prefix, word), slope in table.gradients(out.total).items()
    }
    assert named == {
        ("a red dog", "runs"): -1.0,
        ("a red cat", "sleeps"): 1.0,
        ("a red dog runs quickly", "today"): -1.0,
        ("a red dog runs fast", "today"): 1.0,
    }
