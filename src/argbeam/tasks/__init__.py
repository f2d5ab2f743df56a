"""Tasks: from the files of a split to examples, and from outputs to text and a score.

Read `contract` and `word_ordering` first. `sources` gives the sentences, trees or pairs of a split; `words` holds what
all tasks do with words; `transitions` turns a dependency tree into a sequence and back. A task knows no model, no loss
and no search beyond its valid successors.
"""

from argbeam.tasks.contract import Item, Score, SplitItems, Task
from argbeam.tasks.parsing import Parsing
from argbeam.tasks.translation import Translation
from argbeam.tasks.word_ordering import WordOrdering

TASKS: dict[str, type[WordOrdering] | type[Parsing] | type[Translation]] = {
    "word_ordering": WordOrdering,
    "parsing": Parsing,
    "translation": Translation,
}

__all__ = ["TASKS", "Item", "Parsing", "Score", "SplitItems", "Task", "Translation", "WordOrdering"]
