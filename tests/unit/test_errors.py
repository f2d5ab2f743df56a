"""Messages are one printable line of bounded length, whatever names and words stand in them."""

from hypothesis import given
from hypothesis import strategies as st

from argbeam.errors import ArgbeamError, DataError


@given(st.text())
def test_a_message_is_one_printable_line(text: str) -> None:
    assert str(DataError(text)).isprintable()


@given(st.text(st.characters(categories=["L", "M", "N", "P", "S"]), max_size=500))
def test_a_printable_message_stays_as_it_is(text: str) -> None:
    """Combining characters (category M) among them."""
    assert str(ArgbeamError(text)) == text


def test_line_ends_and_commands_for_the_terminal_are_written_as_escapes() -> None:
    assert str(DataError("a\nb\r\x1b[2J\u202e\u2028\udc80")) == r"a\nb\r\x1b[2J\u202e\u2028\udc80"


def test_of_a_message_of_a_million_characters_both_ends_are_kept() -> None:
    text = str(DataError("start " + "x" * 1_000_000 + " end"))
    assert text.startswith("start x") and text.endswith("x end") and " ... " in text and len(text) < 2100
