"""From a line of text to tokens and back."""

import io
import re
from collections.abc import Iterable, Sequence
from typing import Protocol, final

from argbeam.data.vocabulary import SPECIALS, UNK_WORD
from argbeam.errors import ConfigError, DataError


class Tokenizer(Protocol):
    """From text to tokens, and from tokens to text."""

    def tokenize(self, line: str) -> list[str]:
        """The tokens of a line; none of them is empty or holds white space."""

    def detokenize(self, tokens: Sequence[str]) -> str:
        """The line that the tokens stand for."""


def plain_spaces(line: str) -> str:
    """The line with one ordinary space for every run of white space, and without invisible characters.

    Moses would break words at these: U+00AD (soft hyphen), U+200B (zero-width space), U+FEFF (byte order mark).
    """
    return " ".join(line.translate(_INVISIBLE).split())


_INVISIBLE = dict.fromkeys((0x00AD, 0x200B, 0xFEFF))


@final
class Whitespace:
    """Tokens stand between white space (`str.split()`, so U+00A0 separates too): for tokenised text."""

    def __init__(self, *, lower: bool = False) -> None:
        self.lower = lower

    def tokenize(self, line: str) -> list[str]:
        """Split at white space."""
        return (line.lower() if self.lower else line).split()

    def detokenize(self, tokens: Sequence[str]) -> str:
        """Join with spaces."""
        return " ".join(tokens)


@final
class Characters:
    """One token a character; U+2581 stands for a space, of which runs count once."""

    def __init__(self, *, lower: bool = False) -> None:
        self.lower = lower

    def tokenize(self, line: str) -> list[str]:
        """Cut up."""
        return list(" ".join((line.lower() if self.lower else line).split()).replace(" ", _SPACE))

    def detokenize(self, tokens: Sequence[str]) -> str:
        """Join; symbols of the vocabulary that are no character (`<unk>`) stay as they are."""
        return "".join(tokens).replace(_SPACE, " ")


_SPACE = "\u2581"


@final
class Smiles:
    """Atoms, bonds, brackets and digits of molecules in SMILES, with the usual pattern (Schwaller et al. 2018)."""

    def tokenize(self, line: str) -> list[str]:
        """Cut up; what is not SMILES is a DataError."""
        text = "".join(line.split())
        tokens = _SMILES.findall(text)
        if "".join(tokens) != text:
            known = next(i for i in range(len(text)) if not "".join(tokens).startswith(text[: i + 1]))
            raise DataError(f"{text[known]!r} at character {known + 1} of {text[:80]!r} is not SMILES")
        return tokens

    def detokenize(self, tokens: Sequence[str]) -> str:
        """Join."""
        return "".join(tokens)


_SMILES = re.compile(r"\[[^\]]+\]|Br|Cl|[BCNOPSFIbcnops]|[().=#\-+\\/:~@?>*$]|%[0-9]{2}|[0-9]")


@final
class Moses:
    """The Moses tokenizer (sacremoses) for one language, after `plain_spaces`; nothing is escaped as XML."""

    def __init__(self, language: str, *, lower: bool = False) -> None:
        from sacremoses import MosesDetokenizer, MosesTokenizer
        from sacremoses.corpus import NonbreakingPrefixes

        # sacremoses takes any string and treats what it does not know as English.
        known = sorted(set(NonbreakingPrefixes().available_langs.values()))
        if language not in known:
            raise ConfigError(f"Moses tokenizer: language {language!r}; accepted: {', '.join(known)}")
        self.lower = lower
        self._tokenizer = MosesTokenizer(language)
        self._detokenizer = MosesDetokenizer(language)

    def tokenize(self, line: str) -> list[str]:
        """Split off punctuation and clitics."""
        tokens: list[str] = self._tokenizer.tokenize(plain_spaces(line), escape=False)
        # Afterwards: Moses knows abbreviations ("Mr.") by their capitals.
        return [token.lower() for token in tokens] if self.lower else tokens

    def detokenize(self, tokens: Sequence[str]) -> str:
        """Join punctuation to its word again; `tokenize` is not always undone exactly. UNK becomes U+2047."""
        return str(self._detokenizer.detokenize(_with_unknowns(tokens), unescape=False))


def _with_unknowns(tokens: Sequence[str]) -> list[str]:
    """Tokens of running text. BLEU's tokenizer `13a` makes three tokens of `<unk>`, and one of SentencePiece's sign."""
    return ["\u2047" if token == UNK_WORD else token for token in tokens]


@final
class SentencePiece:
    """Subwords (byte-pair encoding) learnt from text. `model` is the whole model as bytes, for a file of its own.

    `detokenize(tokenize(line)) == plain_spaces(line)`, in lower case with `lower`, if the line has no U+2581, the mark
    of a space in subwords.
    """

    def __init__(self, model: bytes, *, lower: bool = False) -> None:
        from sentencepiece import SentencePieceProcessor

        self.model = model
        self.lower = lower
        self._processor = SentencePieceProcessor()
        try:
            self._processor.load_from_serialized_proto(model)
        except RuntimeError as error:
            raise DataError(f"not a SentencePiece model ({len(model)} bytes); its model file is expected") from error
        self.size = int(self._processor.get_piece_size())

    @classmethod
    def train(cls, lines: Iterable[str], *, size: int, lower: bool = False) -> "SentencePiece":
        """Learn `size` pieces, three of them SentencePiece's own. The same lines give the same bytes."""
        from sentencepiece import SentencePieceTrainer

        if not 1 <= size < 1 << 31:
            raise ConfigError(f"SentencePiece cannot learn {size} pieces; 1 to {(1 << 31) - 1} are accepted")
        plain = (plain_spaces(line.lower() if lower else line) for line in lines)
        model = io.BytesIO()
        try:
            SentencePieceTrainer.train(
                sentence_iterator=plain,
                model_writer=model,
                vocab_size=size,
                model_type="bpe",
                character_coverage=1.0,
                normalization_rule_name="identity",  # output is compared with references as they were written
                max_sentence_length=1 << 24,  # longer lines would be left out without a word
                num_threads=1,  # sums over threads depend on their number
                unk_surface=UNK_WORD,
                minloglevel=3,  # what goes wrong is raised as well
            )
        except RuntimeError as error:
            reason = str(error).rpartition("]")[2].strip() or "no text to learn from"
            raise ConfigError(f"SentencePiece cannot learn {size} pieces: {reason}") from error
        return cls(model.getvalue(), lower=lower)

    def tokenize(self, line: str) -> list[str]:
        """The best pieces; a run of characters never seen in training is one piece."""
        line = plain_spaces(line)
        pieces: list[str] = self._processor.encode(line.lower() if self.lower else line, out_type=str)
        # Such a run can spell `</s>`, which SentencePiece would drop when it joins pieces: cut it up.
        return [part for piece in pieces for part in (piece if piece in SPECIALS else [piece])]

    def detokenize(self, tokens: Sequence[str]) -> str:
        """Join pieces; U+2581 starts a word. UNK becomes U+2047."""
        return str(self._processor.decode_pieces(_with_unknowns(tokens)))
