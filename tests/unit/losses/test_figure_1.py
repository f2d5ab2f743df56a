"""A training search like the one in Figure 1 of Wiseman & Rush 2016: K = 3, violations at t = 4 and t = 6.

Gold is "a red dog runs quickly today". Its score stands beside every step; an entry's score is that of its newest
word. A star marks the rival, a bracket gold.

    t = 1          t = 2              t = 3                    t = 4
    [a]      5.0   the brown    4.0   the brown cat      5.0   the brown cat sleeps    6.0
    the      4.5   [a red]      3.0   [a red dog]        4.0   a red dog barks         5.0
    one      3.0   a brown      1.5   a red cat          2.0   a red cat sleeps *      3.0
    gold     5.0   gold         3.0   gold               4.0   gold: a red dog runs    2.0

At t = 1, 2 and 3 gold is ahead of the third entry by 1 or more. At t = 4 it has fallen off the beam: a violation, with
loss 1 - 2.0 + 3.0 = 2. The search starts again from "a red dog runs" alone:

    t = 5                            t = 6 = T
    a red dog runs fast       4.0    a red dog runs fast today *        2.5
    [a red dog runs quickly]  3.5    [a red dog runs quickly today]     2.0
    a red dog runs home       1.0    a red dog runs quickly now         0.5
    gold                      3.5    gold                               2.0

At t = 6 the rival is the best wrong sequence: a violation, with loss 1 - 2.0 + 2.5 = 1.5. The loss is 3.5. These
are the two lanes that are replayed; after t = 4 the rival's goes on from gold's:

    gold    a   red   dog   runs     quickly   today
    rival   a   red   cat   sleeps   fast      today
"""

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import SPECIALS, Vocabulary
from argbeam.losses.bso import Bso, BsoStep, search_with_gold
from argbeam.search.gold import Restart
from argbeam.search.result import Beams, Violations
from argbeam.search.score_rules import LastScore
from argbeam.search.search import SearchSettings
from argbeam.search.successors import Unconstrained
from loss_oracles import TableModel

GOLD = "a red dog runs quickly today"
SCORES = {
    "": {"a": 5.0, "the": 4.5, "one": 3.0},
    "a": {"red": 3.0, "brown": 1.5},
    "the": {"brown": 4.0},
    "the brown": {"cat": 5.0},
    "a red": {"dog": 4.0, "cat": 2.0},
    "the brown cat": {"sleeps": 6.0},
    "a red dog": {"barks": 5.0, "runs": 2.0},
    "a red cat": {"sleeps": 3.0},
    "a red dog runs": {"fast": 4.0, "quickly": 3.5, "home": 1.0},
    "a red dog runs fast": {"today": 2.5},
    "a red dog runs quickly": {"today": 2.0, "now": 0.5},
}
VOCABULARY = Vocabulary((*SPECIALS, *sorted({word for words in SCORES.values() for word in words})))
SUCCESSORS = Unconstrained(len(VOCABULARY), end_symbol=False)


def words(text: str) -> tuple[int, ...]:
    return tuple(VOCABULARY.encode(text.split()))


def model() -> TableModel:
    table = {
        words(prefix): {VOCABULARY.index[word]: score for word, score in following.items()}
        for prefix, following in SCORES.items()
    }
    return TableModel(table, vocabulary=len(VOCABULARY))


def sentence() -> Batch:
    return make_batch([Example(words("a"), words(GOLD), 0)])


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
