"""Trees to actions and back, against the enumeration of all action sequences and of all trees."""

import itertools
from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argbeam.data.readers.conll import tree_fault
from argbeam.tasks.transitions import Arcs, actions_of_tree, escape_word, is_action, is_projective, tree_of_actions
from refusals import refusal

LABELS = st.sampled_from(["nsubj", "nsubj:pass", "obj", "obl:tmod", "det", "@L_odd"])


@st.composite
def projective_trees(draw: st.DrawFn) -> Arcs:
    """Draw a root, then the trees of the words to its left and right, piece by piece."""
    n_words = draw(st.integers(1, 12))
    heads = [0] * n_words

    def attach(low: int, high: int, head: int) -> None:
        """Give the words low..high-1 to dependents of `head` that lie among them."""
        while low < high:
            end = draw(st.integers(low + 1, high)) if head else high
            child = draw(st.integers(low, end - 1))
            heads[child - 1] = head
            attach(low, child, child)
            attach(child + 1, end, child)
            low = end

    attach(1, n_words + 1, 0)
    labels = draw(st.lists(LABELS, min_size=n_words, max_size=n_words))
    labels[heads.index(0)] = "root"
    return Arcs(tuple(heads), tuple(labels))


def all_action_sequences(n_words: int) -> Iterator[tuple[str, ...]]:
    """Every sequence that shifts while words are left and reduces while two items are on the stack."""

    def extend(prefix: tuple[str, ...], shifted: int, height: int) -> Iterator[tuple[str, ...]]:
        if shifted == n_words and height == 1:
            yield prefix
        if shifted < n_words:
            yield from extend((*prefix, "w"), shifted + 1, height + 1)
        if height >= 2:
            for action in ("@L_x", "@R_x"):
                yield from extend((*prefix, action), shifted, height - 1)

    return extend((), 0, 0)


def ancestors(heads: tuple[int, ...], word: int) -> list[int]:
    """The words above a word, at most n of them, so that a cycle ends too."""
    found = []
    while word != 0 and len(found) <= len(heads):
        word = heads[word - 1]
        found.append(word)
    return found


def all_trees(n_words: int) -> list[tuple[int, ...]]:
    """Every list of heads with one root from which every word leads up to 0."""
    return [
        heads
        for heads in itertools.product(range(n_words + 1), repeat=n_words)
        if heads.count(0) == 1 and all(0 in ancestors(heads, word) for word in range(1, n_words + 1))
    ]


def covers_only_descendants(heads: tuple[int, ...]) -> bool:
    """Projectivity by its other definition: every word under an arc is a descendant of the arc's head."""
    return all(
        head in ancestors(heads, between)
        for word, head in enumerate(heads, start=1)
        for between in range(min(word, head) + 1, max(word, head))
    )


@given(projective_trees())
def test_actions_and_back_give_the_same_tree(tree: Arcs) -> None:
    words = [f"w{number}" for number in range(len(tree.heads))]
    symbols = actions_of_tree(words, tree.heads, tree.labels)
    assert len(symbols) == 2 * len(words) - 1
    assert [symbol for symbol in symbols if not is_action(symbol)] == words
    assert tree_of_actions(symbols, len(words)) == tree
    unknown = actions_of_tree(["<unk>"] * len(words), tree.heads, tree.labels)  # shifts like the words
    assert tree_of_actions(unknown, len(words)) == tree


@pytest.mark.parametrize("n_words", range(1, 6))
def test_action_sequences_build_every_projective_tree_and_left_arcs_come_as_soon_as_they_can(n_words: int) -> None:
    """Of the sequences that build a tree, the chosen one comes first when left arcs sort first."""
    sequences = defaultdict(list)
    for symbols in all_action_sequences(n_words):
        sequences[tree_of_actions(symbols, n_words)].append(symbols)
    for tree, builders in sequences.items():
        first = min(builders, key=lambda symbols: [symbol != "@L_x" for symbol in symbols])
        assert actions_of_tree(["w"] * n_words, tree.heads, ["x"] * n_words) == first
    projective = {heads for heads in all_trees(n_words) if covers_only_descendants(heads)}
    assert {tree.heads for tree in sequences} == projective
    assert set(filter(is_projective, all_trees(n_words))) == projective  # no two arcs cross


@pytest.mark.parametrize("n_words", range(1, 5))
def test_heads_have_no_fault_exactly_where_they_are_a_tree(n_words: int) -> None:
    every = itertools.product(range(n_words + 1), repeat=n_words)
    assert [heads for heads in every if tree_fault(heads) is None] == all_trees(n_words)


def test_a_sentence_by_hand() -> None:
    """kept takes she, then Yet; clocks takes old, then two; kept takes clocks."""
    words = ("Yet", "she", "kept", "two", "old", "clocks")
    shown = "Yet she kept @L_nsubj @L_cc two old clocks @L_amod @L_nummod @R_obj"
    tree = Arcs((3, 3, 0, 6, 6, 3), ("cc", "nsubj", "root", "nummod", "amod", "obj"))
    assert " ".join(actions_of_tree(words, tree.heads, tree.labels)) == shown
    assert tree_of_actions(shown.split(), len(words)) == tree
    assert tree_of_actions(["w"], 1, root_label="ROOT") == Arcs((0,), ("ROOT",))


@given(st.lists(st.one_of(st.text(), st.text(alphabet="@LR_x")), unique=True))
def test_escaped_words_are_no_actions_and_stay_apart(words: list[str]) -> None:
    escaped = [escape_word(word) for word in words]
    assert not any(map(is_action, escaped))
    assert len(set(escaped)) == len(words)
    plain = ["@", "@home", "L_x", "a@L_b", "@l_x", "", "@-@"]  # not like actions
    assert [escape_word(word) for word in plain] == plain


@pytest.mark.parametrize(
    ("words", "heads", "message"),
    [
        (["a", "b"], [0], "2 words, 1 heads and 2 labels; every word has one of each"),
        (["a", "b"], [0, 9], "word 2: head 9 in a sentence of 2 words; heads run from 0 (root) to 2"),
        (["a", "b"], [0, 0], "word 2: a second root (words 1 and 2); one word has head 0"),
        (["a", "b", "c"], [0, 3, 2], "word 2: the heads run in a circle (2 -> 3 -> 2); they must form a tree"),
        (["a", "@L_b"], [0, 1], "word 2 is @L_b, which reads as an action; accepted: @@L_b"),
        (["a", "b", "c"], [3, 0, 2], "heads 3 0 2 make arcs that cross; only projective trees have actions"),
    ],
)
def test_a_tree_without_actions_is_refused_with_its_fault(words: list[str], heads: list[int], message: str) -> None:
    assert refusal(actions_of_tree, words, heads, ["x"] * len(words)) == message


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ("a b c", "symbol 3: word 'c' is one too many for 2 words"),
        ("a @L_x", "symbol 2: @L_x on a stack of 1; an action needs 2 items"),
        ("a", "the symbols shift 1 words of 2 and leave 1 items on the stack; a tree shifts all and leaves 1"),
        ("a b", "the symbols shift 2 words of 2 and leave 2 items on the stack; a tree shifts all and leaves 1"),
    ],
)
def test_symbols_that_build_no_tree_are_refused_with_their_fault(symbols: str, message: str) -> None:
    assert refusal(tree_of_actions, symbols.split(), 2) == message
