"""Tasks: from the files of a split to examples, and from outputs to text and a score.

Read `contract` and `word_ordering` first. `sources` gives the sentences, trees or pairs of a split; `words` holds what
all tasks do with words; `transitions` turns a dependency tree into a sequence and back. A task knows no model, no loss
and no search beyond its valid successors.
"""

from argbeam.tasks.contract import Item, Score, SplitItems, Task
from argbeam.tasks.parsing import Parsing
from argbeam.tasks.recommendation import Recommendation
from argbeam.tasks.translation import Translation
from argbeam.tasks.word_ordering import WordOrdering

TASKS: dict[str, type[WordOrdering] | type[Parsing] | type[Translation] | type[Recommendation]] = {
    "word_ordering": WordOrdering,
    "parsing": Parsing,
    "translation": Translation,
    "text2text": Translation,
    "recommendation": Recommendation,
}

__all__ = ["TASKS", "Item", "Parsing", "Recommendation", "Score", "SplitItems", "Task", "Translation", "WordOrdering"]
