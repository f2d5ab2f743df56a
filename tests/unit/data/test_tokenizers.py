"""Tokenizers: worked examples, round trips, and pieces learnt the same way twice."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argbeam.data.tokenizers import Moses, SentencePiece, Tokenizer, Whitespace, plain_spaces
from argbeam.errors import ConfigError
from refusals import refusal

# U+2581 is SentencePiece's own mark of a space.
lines = st.text(st.characters(exclude_characters="\u2581\0", exclude_categories=["Cs"]))


def corpus() -> list[str]:
    """200 lines of made-up words: syllables drawn with a fixed seed."""
    draw = random.Random(0)
    syllables = ["ba", "du", "ki", "lo", "men", "Stra", "ße"]
    return [" ".join("".join(draw.choices(syllables, k=3)) for _ in range(6)) for _ in range(200)]


@pytest.fixture(scope="module")
def pieces() -> SentencePiece:
    return SentencePiece.train(corpus(), size=60)


@pytest.fixture(scope="module")
def moses() -> Moses:
    return Moses("en")


def test_typesetters_characters_become_spaces_or_nothing() -> None:
    assert plain_spaces(" a\u00a0b\u202fc\t d\u00ade\u200bf\ufeff\n") == "a b c def"


def test_white_space_separates_and_a_no_break_space_is_white_space() -> None:
    assert Whitespace().tokenize(" Ein\u00a0Haus  am See\n") == ["Ein", "Haus", "am", "See"]
    assert Whitespace(lower=True).tokenize("Ein ÜBEL") == ["ein", "übel"]
    assert Whitespace().detokenize(["Ein", "Haus"]) == "Ein Haus"


def test_moses_splits_punctuation_and_joins_it_again() -> None:
    """Clitics and abbreviations as in the Moses scripts; `&` and `<` stay themselves."""
    english, german = Moses("en"), Moses("de")
    assert english.tokenize("Mr. Ox doesn't sell R&D, <ok>?") == [
        *("Mr.", "Ox", "doesn", "'t", "sell", "R", "&", "D", ",", "<", "ok", ">", "?")
    ]
    assert german.tokenize("Ja, z.B. so.") == ["Ja", ",", "z.B.", "so", "."]
    assert english.detokenize(["He", "didn", "'t", ",", "did", "he", "?"]) == "He didn't, did he?"
    assert english.detokenize(["&amp;", "x"]) == "&amp; x"


def test_moses_drops_what_would_break_words_and_lowers_after_it_has_seen_abbreviations() -> None:
    assert Moses("de").tokenize("Zu\u00adcker\u00a0und\u202fSa\u200blz") == ["Zucker", "und", "Salz"]
    assert Moses("en", lower=True).tokenize("Mr. Ox.") == ["mr.", "ox", "."]


def test_an_unknown_language_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"Moses tokenizer: language 'xx'; accepted: as, bn, .*, de, .*, en, "):
        Moses("xx")


@given(lines)
def test_no_token_is_empty_or_holds_white_space(pieces: SentencePiece, moses: Moses, line: str) -> None:
    tokenizers: list[Tokenizer] = [Whitespace(), Whitespace(lower=True), moses, pieces]
    for tokenizer in tokenizers:
        for token in tokenizer.tokenize(line):
            assert token.split() == [token]


@given(lines)
def test_pieces_join_to_the_line(pieces: SentencePiece, line: str) -> None:
    assert pieces.detokenize(pieces.tokenize(line)) == plain_spaces(line)


def test_the_same_lines_give_the_same_model(pieces: SentencePiece) -> None:
    assert SentencePiece.train(corpus(), size=60).model == pieces.model and pieces.size == 60


def test_a_model_comes_back_from_its_bytes(pieces: SentencePiece) -> None:
    again = SentencePiece(pieces.model, lower=True)
    assert again.tokenize("BADU KIlo") == pieces.tokenize("badu kilo")


def test_pieces_learnt_in_lower_case_hold_no_capital() -> None:
    lower = SentencePiece.train(corpus(), size=60, lower=True)
    assert lower.detokenize(lower.tokenize("Straße BADU")) == "straße badu"
    assert "▁stra" in lower.tokenize("STRABA")


def test_a_special_spelled_in_the_text_is_ordinary_text(pieces: SentencePiece) -> None:
    """`<`, `/`, `>` were not seen in training: SentencePiece makes `</s>` one piece and then drops it."""
    line = "</s> <s> <unk> <pad> a</s>b"
    tokens = pieces.tokenize(line)
    assert not {"<s>", "</s>", "<unk>", "<pad>"} & set(tokens)
    assert pieces.detokenize(tokens) == line
    assert pieces.detokenize(["▁ba", "<unk>", "ki"]) == "ba\u2047ki"


def test_a_long_line_is_learnt_from() -> None:
    """SentencePiece itself leaves lines above 4,192 bytes out: `z` occurs in such a line only."""
    model = SentencePiece.train([*corpus(), "z " * 5000], size=60)
    assert "▁z" in model.tokenize("z")


@pytest.mark.parametrize(
    ("text", "size", "message"),
    [
        (["a b c"], 1000, "SentencePiece cannot learn 1000 pieces: Vocabulary size too high (1000). Please set it to"),
        (["a b c"], 4, "SentencePiece cannot learn 4 pieces: Vocabulary size is smaller than required_chars"),
        (["a b c"], 0, "SentencePiece cannot learn 0 pieces; 1 to 2147483647 are accepted"),
        (["", " "], 60, "SentencePiece cannot learn 60 pieces: no text to learn from"),
    ],
)
def test_pieces_that_cannot_be_learnt_are_an_error(text: list[str], size: int, message: str) -> None:
    assert refusal(SentencePiece.train, text, size=size, error=ConfigError).startswith(message)


@pytest.mark.parametrize("model", [b"", b"not a model", b"\x00" * 40])
def test_bytes_that_are_no_model_are_an_error(model: bytes) -> None:
    message = f"not a SentencePiece model ({len(model)} bytes); its model file is expected"
    assert refusal(SentencePiece, model) == message
