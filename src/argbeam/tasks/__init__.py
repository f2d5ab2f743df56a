"""Tasks: word ordering, parsing, translation."""

from argbeam.tasks.contract import Fitted, Item, Read, Score, Task
from argbeam.tasks.parsing import Parsing
from argbeam.tasks.translation import Translation
from argbeam.tasks.word_ordering import WordOrdering

TASKS: dict[str, type[WordOrdering] | type[Parsing] | type[Translation]] = {
    "word_ordering": WordOrdering,
    "parsing": Parsing,
    "translation": Translation,
}

__all__ = ["TASKS", "Fitted", "Item", "Parsing", "Read", "Score", "Task", "Translation", "WordOrdering"]
