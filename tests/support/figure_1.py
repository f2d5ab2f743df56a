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
