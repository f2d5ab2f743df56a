"""Seeded damage to files: what editors, transfers, other programs and bad luck do to them."""

from random import Random

# Bytes that are known to trip readers up: line ends of all kinds, byte order marks, NUL, combining and invisible
# characters, bytes that are not UTF-8 (a lone continuation, an overlong NUL, half a surrogate pair), odd numbers.
PIECES = (
    *(b"\n", b"\r\n", b"\r", b"\n\n", b"\n \n", b"\t", b" ", b"\t\t", b"\0", b"_", b"#", b"# x\n", b"\x0b", b"\x1b[2J"),
    *("\ufeff\u0301\u0308\u00a0\u2028\u0085\u200b\u202e\ud7ff\uffff𐍈e\u0301\u0661"[i].encode() for i in range(13)),
    *(b"\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xff\xfe", b"\xf8\x88\x80\x80\x80"),
    *(b"-1", b"0", b"1-2", b"1.1", b"99999999999999999999", b"1e999", b"nan", b"1_0", b"@L_x", b"<unk>", b"</s>"),
    *(b'"', b"'", b"[", b"]", b"{", b"}", b"=", b".", b",", b"\\", b"../", b"/"),
)
MILLION = 1_000_000


def damaged(data: bytes, draw: Random) -> bytes:
    """The data after one to four accidents; once in 250 times one of them is a line of a million characters."""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 4))):
        data = draw.choice(_ACCIDENTS)(data, draw)
    if draw.randrange(250) == 0:
        data = _insert(data, draw, draw.choice((b"x", b"x ", b"e\xcc\x81", b"1\t", b"# ", b".")) * MILLION)
    return data


def _flip(data: bytes, draw: Random) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(changed)


def _insert(data: bytes, draw: Random, piece: bytes | None = None) -> bytes:
    place = draw.randint(0, len(data))
    return data[:place] + (draw.choice(PIECES) if piece is None else piece) + data[place:]


def _cut(data: bytes, draw: Random) -> bytes:
    start = draw.randint(0, len(data))
    return data[:start] + data[start + draw.choice((1, 1, 2, 5, 40, len(data))) :]


def _swap_fields(data: bytes, draw: Random) -> bytes:
    """Another field in place of one: words, numbers and tags in the wrong columns."""
    fields = data.split(draw.choice((b"\t", b" ", b"\n")))
    one, other = draw.randrange(len(fields)), draw.randrange(len(fields))
    return data.replace(fields[one], fields[other], 1) if fields[one] else data


def _replace_field(data: bytes, draw: Random) -> bytes:
    separator = draw.choice((b"\t", b" ", b"\n"))
    fields = data.split(separator)
    fields[draw.randrange(len(fields))] = draw.choice(PIECES)
    return separator.join(fields)


def _lines(data: bytes, draw: Random) -> bytes:
    """A line dropped, doubled or moved."""
    lines = data.split(b"\n")
    line = lines.pop(draw.randrange(len(lines)))
    for _ in range(draw.randrange(3)):
        lines.insert(draw.randint(0, len(lines)), line)
    return b"\n".join(lines)


def _line_ends(data: bytes, draw: Random) -> bytes:
    """Some line ends as on other systems."""
    lines = data.split(b"\n")
    ends = [draw.choice((b"\n", b"\n", b"\r\n", b"\r", b"\n\r")) for _ in lines[1:]]
    return b"".join(line + end for line, end in zip(lines, [*ends, b""], strict=True))


_ACCIDENTS = (_flip, _flip, _insert, _insert, _insert, _cut, _swap_fields, _replace_field, _lines, _line_ends)
