"""Grammars against enumeration: of all strings up to a length, those that an independent checker accepts."""

import itertools
import json
import re
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from argbeam.data.batches import make_batch
from argbeam.data.vocabulary import EOS
from argbeam.errors import ConfigError, DataError
from argbeam.runtime import device as devices
from argbeam.search.constraints import automaton, matchers, rule_automata
from argbeam.search.constraints.automaton import compile_grammar
from argbeam.search.constraints.gbnf import gbnf_grammar
from argbeam.search.constraints.grammar import Spelling
from argbeam.search.constraints.json_schema import json_schema_grammar
from argbeam.search.constraints.matchers import Matchers
from argbeam.search.constraints.notations import lark_grammar, regular_expression
from argbeam.search.constraints.pushdown import Pushdown, PushdownTables
from argbeam.search.constraints.rule_automata import NotDeterministic
from argbeam.search.successors import NO_END, Successors
from oracles import example_of

BATCH = make_batch([example_of([4])])


def characters(letters: str) -> Spelling:
    return Spelling(("",) * 4 + tuple(letters), spaced=False, whole=False)


def words(*tokens: str) -> Spelling:
    return Spelling(("",) * 4 + tuple(f" {token}" for token in tokens), spaced=True, whole=True)


def pieces(*tokens: str) -> Spelling:
    return Spelling(("",) * 4 + tuple(token.replace("▁", " ") for token in tokens), spaced=True, whole=False)


def outputs(successors: Successors, spelling: Spelling, length: int) -> set[str]:
    """The texts of all outputs of at most so many tokens that the choices admit, prefixes of one length at once."""
    found, prefixes, choices = set(), [()], successors.start(BATCH)
    for left in range(length, -1, -1):
        allowed = choices.allowed().expand(len(prefixes), -1)
        ended = [prefix for prefix, row in zip(prefixes, allowed.tolist(), strict=True) if row[EOS]]
        texts = ["".join(spelling.texts[token] for token in prefix) for prefix in ended]
        found |= {text.removeprefix(" ") if spelling.spaced else text for text in texts}
        rows_N, tokens_N = allowed.nonzero().unbind(1)
        real_N = tokens_N != EOS
        if not left or not real_N.any():
            break
        rows_N, tokens_N = rows_N[real_N], tokens_N[real_N]
        prefixes = [(*prefixes[r], t) for r, t in zip(rows_N.tolist(), tokens_N.tolist(), strict=True)]
        choices = choices.select(rows_N).advance(tokens_N)
    return found


def strings(letters: str, length: int, accepts: Callable[[str], object]) -> set[str]:
    every = ("".join(s) for n in range(length + 1) for s in itertools.product(letters, repeat=n))
    return {text for text in every if accepts(text)}


def balanced(text: str) -> bool:
    """Brackets that are taken away in pairs until nothing is left."""
    while (shorter := text.replace("()", "").replace("[]", "")) != text:
        text = shorter
    return text == ""


def polish(text: str) -> bool:
    """Prefix notation: `+` has two arguments, `-` one, `x` and `y` none."""
    missing = 1
    for letter in text:
        if missing == 0:
            return False
        missing += {"+": 1, "-": 0}.get(letter, -1)
    return missing == 0


BRACKETS = 'start: item*\nitem: "(" start ")" | "[" start "]"'
POLISH = 'start: "+" start start | "-" start | LEAF\nLEAF: "x" | "y"'
# Two ways to begin that one letter does not tell apart, and a rule that starts with itself.
PALINDROMES = 'start: "a" start "a" | "b" start "b" | "a" | "b" |'
LEFT = 'start: start "a" | "b"'


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize(
    ("text", "letters", "length", "accepts"),
    [(BRACKETS, "()[]", 6, balanced), (POLISH, "+-xy", 6, polish)],
    ids=["brackets", "arities"],
)
def test_a_grammar_admits_what_a_checker_accepts(
    text: str, letters: str, length: int, accepts: Callable[[str], object], host: bool
) -> None:
    spelling = characters(letters)
    grammar = lark_grammar(text, spelling)
    successors = Matchers.of_grammar(grammar) if host else Pushdown(compile_grammar(grammar), depth=8)
    expected = strings(letters, length, accepts)
    assert outputs(successors, spelling, length) == expected
    for tokens in itertools.product(range(4, 8), repeat=4):
        output = "".join(spelling.texts[token] for token in tokens)
        assert successors.accepts((*tokens, EOS)) == (output in expected)
        assert not successors.accepts(tokens)


@pytest.mark.parametrize(
    ("text", "reason", "accepts"),
    [
        (PALINDROMES, "one token does not tell", lambda text: text == text[::-1]),
        (LEFT, "rule start starts with itself", lambda text: re.fullmatch("ba*", text)),
    ],
)
def test_other_grammars_are_left_to_the_host(text: str, reason: str, accepts: Callable[[str], object]) -> None:
    grammar = lark_grammar(text, characters("ab"))
    with pytest.raises(NotDeterministic, match=reason):
        compile_grammar(grammar)
    found = outputs(Matchers.of_grammar(grammar), characters("ab"), 5)
    assert found == strings("ab", 5, accepts)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_the_depth_bounds_the_brackets(depth: int) -> None:
    """A stack of d states holds d brackets that are open: each state says which one is to be closed."""
    spelling = characters("()")
    successors = Pushdown(compile_grammar(lark_grammar('start: ("(" start ")")*', spelling)), depth=depth)

    def shallow(text: str) -> bool:
        heights = list(itertools.accumulate((1 if letter == "(" else -1 for letter in text), initial=0))
        return balanced(text) and max(heights) <= depth

    assert outputs(successors, spelling, 8) == strings("()", 8, shallow)


@pytest.mark.parametrize("depth", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("text", "letters"),
    [
        (BRACKETS, "()[]"),
        (POLISH, "+-xy"),
        # The shorter way needs a place on the stack: a stack of one leaves the longer one.
        ('start: "a" (deep "b" | "b" "b" "b")\ndeep: "c" | "d" deep "d"', "abcd"),
        ('start: "aab" | "ab"* "b"', "ab"),
    ],
    ids=["brackets", "arities", "two ways", "regular"],
)
def test_the_fewest_tokens_to_an_end_are_those_of_the_shortest_output(text: str, letters: str, depth: int) -> None:
    """Against all sequences of at most 6 tokens, end symbol included; where none is valid there is no end so near."""
    spelling, most = characters(letters), 6
    successors = Pushdown(compile_grammar(lark_grammar(text, spelling)), depth=depth)
    alphabet = range(4, 4 + len(letters))
    every = (tokens for n in range(most) for tokens in itertools.product(alphabet, repeat=n))
    valid = [(*tokens, EOS) for tokens in every if successors.accepts((*tokens, EOS))]
    shortest: dict[tuple[int, ...], int] = {}
    for output in valid:
        for n in range(1, len(output) + 1):
            shortest[output[:n]] = min(len(output) - n + 1, shortest.get(output[:n], most))
    for prefix in {(), *(tokens for tokens in shortest if tokens[-1] != EOS)}:
        choices = successors.start(BATCH)
        for token in prefix:
            choices = choices.advance(torch.tensor([token]))
        found = choices.to_end()[0].tolist()
        for token in (EOS, *alphabet):
            assert found[token] == shortest.get((*prefix, token), found[token])
            assert (*prefix, token) in shortest or len(prefix) + found[token] > most
        assert choices.allowed()[0].tolist() == [steps < NO_END for steps in found]


@pytest.mark.skipif(not devices.TRITON_INSTALLED, reason="kernels need Triton, which is not made for this platform")
@pytest.mark.parametrize(
    ("text", "letters", "depth"),
    [(BRACKETS, "()[]", 1), (BRACKETS, "()[]", 8), (POLISH, "+-xy", 3)],
    ids=["brackets, depth 1", "brackets, depth 8", "arities, depth 3"],
)
def test_the_kernel_of_grammars_has_the_stacks_of_plain_torch(
    text: str, letters: str, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that move and take a token, most of them a valid one; on a GPU where there is one."""
    from argbeam.search.constraints import pushdown_kernel

    monkeypatch.setattr(devices, "kernels_usable", lambda *_: False)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    successors = Pushdown(compile_grammar(lark_grammar(text, characters(letters))), depth=depth)
    random = torch.Generator().manual_seed(depth)
    plain = successors.start(BATCH.to(device)).select(torch.zeros(16, dtype=torch.int64, device=device))
    tables = [getattr(plain.tables, table.name) for table in fields(PushdownTables)]
    for _ in range(9):
        rows_N = torch.randint(16, (16,), generator=random).to(device)
        weight_NV = plain.select(rows_N).allowed().double() + 0.01
        tokens_N = torch.multinomial(weight_NV.cpu(), 1, generator=random)[:, 0].to(device)
        column_N = torch.stack([tokens_N, tokens_N], 1)[:, 0]  # as gold's tokens are one of the batch
        stack_ND, to_end_NC = pushdown_kernel.push(plain.stack_ND, rows_N, column_N, *tables)
        plain = plain.advance_from(rows_N, tokens_N)
        assert torch.equal(stack_ND, plain.stack_ND)
        fast = replace(plain, to_end_NC=to_end_NC)
        assert torch.equal(fast.to_end(), plain.to_end()) and torch.equal(fast.allowed(), plain.allowed())


def test_lists_and_tails_need_no_depth() -> None:
    """A right-recursive rule calls itself last: no state is left to return to."""
    spelling = characters("ab")
    successors = Pushdown(compile_grammar(lark_grammar('start: "a" start | "b"', spelling)), depth=1)
    assert outputs(successors, spelling, 30) == {"a" * n + "b" for n in range(30)}


@pytest.mark.parametrize(
    "pattern",
    [
        r"\w+", r"\W|[\w.]", r"[^\w\s]", r"\$a?|\^|\-", r"[a-]|[$^]", r"a{,2}", r"\u00e4\x61?", "ä[à-ü]*", r"(?i)ä|a",
        r"(?i:A)Ä?", r"(?a:\w)ä", "a*?Ä??", r"^a\ b?$", "(?P<name>a)|", r"\d|\D\S", "[^ä]",
    ],
)  # fmt: skip
def test_a_pattern_means_what_it_does_in_python(pattern: str) -> None:
    letters = "aÄä1.$^- "
    successors = Pushdown(compile_grammar(regular_expression(pattern, characters(letters))), depth=1)
    assert outputs(successors, characters(letters), 3) == strings(letters, 3, re.compile(pattern).fullmatch)


@pytest.mark.parametrize("pattern", ["a(b|ab)*", "(ab|a)(bc|c)?", "[^b]{2,3}|b+c?", "(a|b)*abb", "()|c"])
@pytest.mark.parametrize("kind", ["characters", "pieces"])
def test_a_regular_expression_admits_what_python_matches(pattern: str, kind: str) -> None:
    """With pieces `ab` and `bb` a text has several outputs; with `▁` alone the first space is a token."""
    spelling = characters("abc") if kind == "characters" else pieces("▁", "a", "b", "c", "ab", "bb", "▁a", "▁b")
    successors = Pushdown(compile_grammar(regular_expression(pattern, spelling)), depth=1)
    found = {text for text in outputs(successors, spelling, 6) if len(text) <= 5 and " " not in text}
    assert found == strings("abc", 5, re.compile(pattern).fullmatch)


def test_one_long_token_does_not_make_the_others_long() -> None:
    """A table of tokens by the characters of the longest one would take 1,000 * 1,000 cells, of 8 bytes each."""
    spelling = pieces("▁", "a" * 1000, *(f"b{number}" for number in range(1000)))
    grammar = regular_expression("a*|b[0-9]*", spelling)
    successors = Pushdown(compile_grammar(grammar), depth=1)  # first calls also make the checks of their shapes
    tracemalloc.start()
    compile_grammar(grammar)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (
        successors.accepts((4, 5, 5, EOS))
        and successors.accepts((4, 6, EOS))
        and not successors.accepts((4, 5, 6, EOS))
    )
    assert peak < 2_000_000


def test_a_regular_expression_over_words_sees_the_spaces_between_them() -> None:
    spelling = words("no", "now", "not", "go")
    successors = Pushdown(compile_grammar(regular_expression("(no[tw]?|go) no+|go", spelling)), depth=1)
    assert outputs(successors, spelling, 3) == {"no no", "not no", "now no", "go no", "go"}


def test_terminals_are_whole_tokens_where_tokens_are_words() -> None:
    """`is greater` is two tokens, a pattern is any one token that it matches, and no token is `less`."""
    spelling = words("x1", "y2", "is", "greater", "than", "(", ")", "and", "X1")
    text = """
start: test ("and" test)~0..1
test: "(" start ")" | NAME "is greater" "than" /[a-z]./ | NAME "is less"
NAME: LETTER DIGIT
LETTER: "x" | "y"
%import common.DIGIT
"""
    grammar = lark_grammar(text, spelling)
    tests = {f"{a} is greater than {b}" for a in ("x1", "y2") for b in ("x1", "y2", "is")}
    for successors in (Pushdown(compile_grammar(grammar), depth=8), Matchers.of_grammar(grammar)):
        assert outputs(successors, spelling, 7) == tests | {f"( {test} )" for test in tests}


def test_no_prefix_leads_to_a_word_that_cannot_be_spelled() -> None:
    """No token has the letter c, so that `a` leads nowhere and is not valid."""
    spelling = characters("ab")
    successors = Pushdown(compile_grammar(lark_grammar('start: "ac" | "b"', spelling)), depth=1)
    assert outputs(successors, spelling, 3) == {"b"} and not successors.start(BATCH).allowed()[0, 4]


def test_a_json_schema_admits_the_json_texts_that_fit_it() -> None:
    """No rule contains itself: tokens may be characters, pieces or words, and all of it runs on the device."""
    items = {"type": "array", "items": {"const": 1}, "maxItems": 2}
    schema = {"type": "object", "properties": {"a": {"enum": [0, 1]}, "b": items}}
    text = json.dumps({**schema, "required": ["a"], "additionalProperties": False})
    values = [{"a": a, **b} for a in (0, 1) for b in ({}, {"b": []}, {"b": [1]}, {"b": [1, 1]})]
    for spelling in (
        characters('{}[]":, ab01'),
        pieces("▁{", "▁", "{", '"a"', '"', "b", ":", "▁0", "▁1", "1", "0", "}", ",", ',▁"', "[", "]", "▁["),
        words('{"a":', "0,", "1,", "0}", "1}", '"b":', "[]}", "[1]}", "[1,", "1]}"),
    ):
        successors = Pushdown(compile_grammar(json_schema_grammar(text, spelling)), depth=1)
        assert outputs(successors, spelling, 22) == {json.dumps(value) for value in values}


def test_gbnf_admits_the_same_on_the_device_and_on_the_host() -> None:
    """Lists in lists of numbers without leading zeros; escapes, classes, bounds of repetitions."""
    text = r"""root ::= "[" (value (", " value){0,2})? "]"
value ::= root | "0" | [^\x00-0\]\[, -] [0-1]*
"""
    spelling = characters("[], 01")
    grammar = gbnf_grammar(text, spelling)

    def is_list(text: str) -> bool:
        try:
            value = json.loads(text)
        except ValueError:
            return False
        return isinstance(value, list) and short(value) and json.dumps(value) == text

    def short(value: object) -> bool:
        return not isinstance(value, list) or (len(value) <= 3 and all(map(short, value)))

    expected = strings("[], 01", 6, is_list)
    assert expected >= {"[]", "[10]", "[[[]]]", "[0, 1]"}
    for successors in (Pushdown(compile_grammar(grammar), depth=8), Matchers.of_grammar(grammar)):
        assert outputs(successors, spelling, 6) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start: (", "^grammar: not a grammar in Lark's notation"),
        (
            'start: "a"\nb: ( "b"\n',
            r"^grammar:2:9: the end of the line in a grammar in Lark's notation; accepted here: \)$",
        ),
        ('start.x: "a"', r"^grammar:1:7: 'x' in a grammar in Lark's notation; accepted here: number$"),
        ('begin: "a"', "^grammar: no rule start; found begin"),
        ("start: other", "^grammar: not a grammar in Lark's notation: Rule 'other' used but not defined"),
        ('start: "a"\n%ignore " "', "^grammar: %ignore"),
        (
            "start: /a(/",
            "^grammar:1: 'a\\(' is no regular expression: missing \\), unterminated subpattern at position 1",
        ),
        ("start: /a(?=b)/", r"^grammar:1: lookahead or lookbehind in 'a\(\?=b\)'; characters, classes, groups, \| and"),
        ('start: "b".."a"', r'^grammar: "b"\.\."a"; a range goes from one character to a later one'),
        ('start: "a"~3..2', r"^grammar: ~3\.\.2; the least number comes first"),
        ("start: A\n%declare A", "^grammar: A is not accepted"),
        ('start: two{A}\ntwo{x}: x x\nA: "a"', "^grammar: template_usage is not accepted; rules, terminals, strings"),
    ],
)
def test_wrong_grammars_are_data_errors(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        lark_grammar(text, characters("ab"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start: /a(/", r"^grammar: 'a\(' is no regular expression"),
        ('start: "b".."a"', r'^grammar: "b"\.\."a"; a range'),
        ("start: /(?i)a/", r"^grammar: '\(\?:\(\?i\)a\)' is no regular expression: global flags not at the start"),
        ('start: IS | "a"\nIS: "is a"', r'^grammar: "is a" in a terminal, which is one token where tokens are words'),
    ],
)
def test_wrong_terminals_are_data_errors_where_tokens_are_words(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        lark_grammar(text, words("a", "b", "is"))


def test_a_grammar_is_one_file(tmp_path: Path) -> None:
    """A run saves the text of the grammar; what stands in another file would be missing there."""
    (tmp_path / "names.lark").write_text('NAME: "a"\n')
    where = str(tmp_path / "grammar.lark")
    with pytest.raises(DataError, match=r"grammar.lark: %import from .*names.lark; one file holds the whole grammar"):
        lark_grammar("start: NAME\n%import .names.NAME\n", characters("ab"), where=where)


def test_an_escaped_string_ends_at_the_first_quote_that_is_not_escaped() -> None:
    """Lark's common.ESCAPED_STRING, which has a lookbehind."""
    spelling = characters('"\\a')
    text = "start: ESCAPED_STRING\n%import common.ESCAPED_STRING"
    found = outputs(Pushdown(compile_grammar(lark_grammar(text, spelling)), depth=1), spelling, 5)
    assert found == strings('"\\a', 5, re.compile(r'"([^"\\]|\\.)*"').fullmatch)


def test_flags_and_letters_of_any_case() -> None:
    spelling = words("Is", "is", "than", "Than", "ä", "Ä")
    successors = Pushdown(compile_grammar(lark_grammar('start: "is than"i | /Ä/i', spelling)), depth=1)
    assert outputs(successors, spelling, 2) == {"Is than", "is than", "Is Than", "is Than", "ä", "Ä"}


def test_classes_beyond_the_surrogates_are_letters_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar of 40,000 words would reach them; here the third class of four does."""
    monkeypatch.setattr(matchers, "_FIRST_LETTER", 0xD7FE)
    spelling = characters("abcd")
    grammar = lark_grammar('start: start "a" | "b" | "c" "d"', spelling)
    expected = strings("abcd", 3, re.compile("(b|cd)a*").fullmatch)
    assert outputs(Matchers.of_grammar(grammar), spelling, 3) == expected


@pytest.mark.parametrize("text", ["start: start*", 'start: x "a"\nx: x?', 'start: (x | y)* "a"\nx: y?\ny: x*\nz: z'])
def test_rules_without_atoms_that_contain_themselves_derive_nothing_more_on_the_host(text: str) -> None:
    found = outputs(Matchers.of_grammar(lark_grammar(text, characters("ab"))), characters("ab"), 3)
    assert found == ({"a"} if "a" in text.replace("start", "") else {""})


@pytest.mark.parametrize(
    "text",
    [
        'start: start "a" | "b" ("a" | "b" "c")',
        'start: start "a" | "b" x\nx: "a" | "b" y "a"\ny: "b" y',
        'start: start "a" | "b" "a" ("c" "b")* | ("b" "c")+',
    ],
)
def test_no_prefix_leads_to_what_derives_nothing_on_the_host(text: str) -> None:
    """All outputs are `b a a*`; no token is `c`."""
    choices = Matchers.of_grammar(lark_grammar(text, characters("ab"))).start(BATCH)
    for token, then in ((5, {4}), (4, {4, EOS}), (4, {4, EOS})):
        choices = choices.advance(torch.tensor([token]))
        assert set(choices.allowed()[0].nonzero()[:, 0].tolist()) == then


@pytest.mark.parametrize("text", ['start: "c"', 'start: "a" start', 'start: start "a"', "start: start"])
def test_a_grammar_without_outputs_is_a_data_error(text: str) -> None:
    grammar = lark_grammar(text, characters("ab"))
    with pytest.raises(DataError, match=r"^no output is valid"):
        compile_grammar(grammar)
    with pytest.raises(DataError, match=r"^no output is valid"):
        Matchers.of_grammar(grammar)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a|^b", r"^pattern: \^, \$ or \\b in 'a\|\^b'; characters, classes, groups, \| and repeats are accepted"),
        ("(a$)b", r"\^, \$ or"),
        (r"\bab", r"\^, \$ or"),
        ("(?<!a)b", "lookahead or lookbehind"),
        (r"(a)\1", "a reference to a group"),
        ("a++", "a possessive repeat"),
        ("a(", "is no regular expression: missing"),
    ],
)
def test_wrong_patterns_are_data_errors(pattern: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        regular_expression(pattern, characters("ab"))


def test_wrong_gbnf_and_schemas_are_data_errors() -> None:
    with pytest.raises(DataError, match=r"^g: not a grammar in GBNF: "):
        gbnf_grammar('root ::= "a', characters("ab"), where="g")
    with pytest.raises(DataError, match=r"^g:2: \[\\\^ would be read as \[\^; write \^ behind another character"):
        gbnf_grammar("root ::= x\nx ::= [\\^a]", characters("ab^"), where="g")
    for schema in ('{"type": "thing"}', '{"type": "integer", "pattern": "("}'):
        with pytest.raises(DataError, match=r"^s: not a JSON Schema that can be a grammar: "):
            json_schema_grammar(schema, characters("ab"), where="s")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"not": {"const": 1}}, "#: not would not be read; leave it out"),
        ({"type": "array", "uniqueItems": True}, "#: uniqueItems would not be read"),
        ({"type": "integer", "anyOf": [{"minimum": 1}]}, "#: type would not be read; write everything into anyOf"),
        (
            {"type": "string", "enum": ["a"], "maxLength": 1},
            "#: maxLength would not be read; write everything",
        ),
        ({"allOf": [{"const": 1}, {"const": 1}]}, "#: allOf of several schemas would not be read; write one schema"),
        (
            {"properties": {"a": {"minimum": 1}}},
            "#/properties/a: minimum would not be read; a type beside it",
        ),
        ({"$defs": {"a": {"type": "number", "multipleOf": 2}}, "$ref": "#/$defs/a"}, "#/$defs/a: multipleOf would not"),
        ({"type": "string", "pattern": "^ä$"}, "#: the pattern '^ä$' with its escapes would not be read; write it as"),
        ({"type": "string", "pattern": "a"}, "the pattern 'a'; one with ^ before and $ behind the whole is accepted"),
        ({"type": "string", "pattern": "^a|b$"}, "the pattern '^a|b$'; one with"),
        (
            {"type": "string", "pattern": '^a"$'},
            "#: the pattern '^a\"$', whose strings JSON escapes, would not be read",
        ),
        ({"patternProperties": {r"^\\$": {"const": 1}}}, r"#: the pattern '^\\\\$', whose strings JSON escapes,"),
        ({"properties": {"a": {}}, "required": ["a", "b"]}, "#: required b would not be read; name it in properties"),
        ({"items": {"$ref": "http://a/b"}}, "#/items: $ref http://a/b would not be read; write the schema into $defs"),
        (
            {"const": [1, 1]},
            "#: the value [1, 1] would not be read; numbers with a point, long ones, lists and objects",
        ),
        ({"enum": [1, 0.1]}, "#: the value 0.1 would not be read"),
        (
            {"type": "integer", "enum": [1, "a"]},
            '#: type "integer" beside the value "a" would not be read; leave one of them out',
        ),
        (
            {"items": {"type": "string", "const": None}},
            '#/items: type "string" beside the value null would not be read',
        ),
        ({"type": ["number", "null"], "enum": [1, True]}, '#: type ["number", "null"] beside the value true would not'),
        ({"type": "boolean", "const": 1}, '#: type "boolean" beside the value 1 would not'),
        ({"type": "array", "unevaluatedItems": {"not": {}}}, "#/unevaluatedItems: not would not be read"),
        (
            {"type": "string", "pattern": "^a+$", "maxLength": 2, "minLength": 1},
            "#: maxLength, minLength beside pattern would not be read; leave one of them out",
        ),
        ({"type": "string", "format": "date", "pattern": "^a$"}, "#: pattern beside format would not be read"),
        (
            {"patternProperties": {"^a$": {}}, "additionalProperties": {"type": "string"}},
            "#: additionalProperties beside patternProperties would not be read",
        ),
        (
            {"properties": {"b": {"const": 1}, "ba": {}}, "patternProperties": {"a$": {"type": "string"}}},
            "#: the pattern 'a$' for ba would not be read; name each property in one place",
        ),
        (
            {"$ref": "#n", "$defs": {"n": {"$anchor": "n", "type": "integer"}}},
            "#: $ref #n would not be read; write the schema into $defs, and refer to it as #/$defs/NAME",
        ),
        ({"$dynamicRef": "#/$defs/n", "$defs": {"n": {}}}, "#: $dynamicRef would not be read; leave it out"),
        (
            {"items": {"$ref": "#/parts/n"}, "parts": {"n": {"items": {"not": {"const": 1}}}}},
            "#/parts/n/items: not would not be read",
        ),
        ({"type": "integer", "minimum": 4, "multipleOf": 3}, "#: multipleOf would not be read; it must be a whole"),
        ({"type": "integer", "multipleOf": 2.5}, "#: multipleOf would not be read; it must be a whole number"),
        ({"type": "array", "maxItems": 1}, "#: maxItems would not be read; items beside it is needed"),
        ({"uniqueItems": False}, "#: uniqueItems would not be read; items beside it is needed"),
        ({"type": "object", "required": []}, "#: required would not be read; properties beside it is needed"),
        (
            {"properties": {"ä": {}, "a": {}}, "additionalProperties": True},
            "#: the name ä beside further properties would not be read; name properties in plain ASCII",
        ),
        (
            {"properties": {'"': {}}, "unevaluatedProperties": {"type": "null"}},
            '#: the name " beside further properties would not be read',
        ),
        ({"const": 1 << 63}, "#: the value 9223372036854775808 would not be read; numbers with a point, long ones"),
        ({"type": []}, "#: type [] would not be read; leave it out"),
        ({"items": {}, "minContains": 1}, "#: minContains would not be read; leave it out"),
        ({"type": ["null", "string"], "format": "emial"}, "#: format emial would not be read; leave it out"),
        ({"type": "number", "exclusiveMaximum": -1e-7}, "#: exclusiveMaximum -1e-07 would not be read; the smallest"),
    ],
)
def test_a_schema_with_more_than_the_grammar_would_hold_is_a_data_error(schema: object, message: str) -> None:
    with pytest.raises(DataError, match="^s: " + re.escape(message)):
        json_schema_grammar(json.dumps(schema), characters('{}":, a1'), where="s")


@pytest.mark.parametrize(
    ("types", "values"),
    [
        ("integer", [1, 11]),
        ("number", [1]),
        (["string", "integer", "null"], [1, "a", None]),
        ("boolean", [True, False]),
        (["array", "object"], [[], {}]),
    ],
)
def test_values_of_a_schema_may_have_their_type_beside_them(types: object, values: list[object]) -> None:
    letters = "".join(sorted({*'{}[]"1atruefalsenull'}))
    for schema in ({"type": types, "enum": values}, {"type": types, "const": values[0]}):
        grammar = json_schema_grammar(json.dumps(schema), characters(letters))
        fitting = values if "enum" in schema else values[:1]
        found = outputs(Pushdown(compile_grammar(grammar), depth=1), characters(letters), 5)
        assert found == {json.dumps(value) for value in fitting}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "integer", "minimum": 10, "maximum": 30, "multipleOf": 11}, ["11", "22"], ["10", "12", "0", "33"]),
        (
            {"type": "array", "items": {"const": 1}, "uniqueItems": False, "maxItems": 2},
            ["[]", "[1, 1]"],
            ["[1, 1, 1]"],
        ),
        ({"items": {"$ref": "#/parts/n"}, "parts": {"n": {"items": {"$ref": "#"}}}}, ["[[]]", "[[[]]]"], ["[1]"]),
        ({"properties": {"ä": {"const": 1}}, "required": ["ä"]}, ['{"ä": 1}'], ["{}"]),
        ({"type": "integer", "format": "int32", "minimum": 1}, ["1", "11"], ["0"]),  # formats are those of strings
        ({"type": "integer", "maxItems": 1, "$defs": {"a": {"$ref": "#/$defs/b"}}}, ["1"], ["[]"]),  # both unused
        ({"const": (1 << 63) - 1}, [str((1 << 63) - 1)], ["1"]),
    ],
)
def test_what_else_a_schema_may_have(schema: object, valid: list[str], invalid: list[str]) -> None:
    letters = "".join(sorted({*'{}[]":, ä0123456789'}))
    outputs = Pushdown(compile_grammar(json_schema_grammar(json.dumps(schema), characters(letters))), depth=9)
    for texts, expected in ((valid, True), (invalid, False)):
        for text in texts:
            assert outputs.accepts([*(4 + letters.index(letter) for letter in text), EOS]) == expected, text


@pytest.mark.parametrize(
    ("gbnf", "pattern", "spelling"),
    [
        ('root ::= w (" " w)*\nw ::= [^ ]+', "[^ ]+( [^ ]+)*", pieces("▁a", "b", "▁ba", "▁")),
        ('root ::= w (" " w)*\nw ::= [^ ]+', "[^ ]+( [^ ]+)*", words("a", "b")),
        ('root ::= ([a-z] "a")+ "a"?', "([a-z]a)+a?", characters("ab")),
        ('root ::= "a" root | "b" root | "c" | ""', "[ab]*c?", characters("abc")),
    ],
)
def test_repetitions_of_gbnf_are_regular(gbnf: str, pattern: str, spelling: Spelling) -> None:
    """Xgrammar writes them as rules that contain themselves at their ends."""
    grammar, expected = gbnf_grammar(gbnf, spelling), regular_expression(pattern, spelling)
    found, wanted = (Pushdown(compile_grammar(one), depth=1) for one in (grammar, expected))
    assert not found.automaton.recursive
    assert outputs(found, spelling, 5) == outputs(wanted, spelling, 5) != set()


def test_strings_of_json_are_regular() -> None:
    spelling = pieces('▁{"a":', '▁"', "a", "b", 'a"', '"}', "}", '"', "\\", "n")
    schema = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    successors = Pushdown(compile_grammar(json_schema_grammar(json.dumps(schema), spelling)), depth=1)
    texts = outputs(successors, spelling, 5)
    assert {'{"a": ""}', '{"a": "ab"}', '{"a": "\\n"}'} < texts
    for text in texts:
        assert json.dumps(json.loads(text), ensure_ascii=False) == text


@pytest.mark.parametrize(
    "others",
    [{"required": True, "pattern": 1}, {"properties": None, "patternProperties": None}, {"properties": [{}]}],
)
def test_keywords_of_another_type_are_read_past(others: dict[str, object]) -> None:
    """`required = true` of a property is that of the third draft."""
    schema = {"type": "integer", **others}
    successors = Pushdown(compile_grammar(json_schema_grammar(json.dumps(schema), characters("1"))), depth=1)
    assert outputs(successors, characters("1"), 2) == {"1", "11"}


def test_a_json_string_may_have_a_pattern() -> None:
    """Quotes and backslashes, which JSON escapes, are left out; `ä` is not escaped."""
    schema = {"properties": {"not": {"type": "string", "pattern": r"^(\u00e4|[^\w:])?\.$"}}, "required": ["not"]}
    spelling = characters('{}not: ."\\ä')
    successors = Pushdown(compile_grammar(json_schema_grammar(json.dumps(schema), spelling)), depth=1)
    texts = {f'{{"not": "{first}."}}' for first in ("", "ä", "{", "}", " ", ".")}
    assert outputs(successors, spelling, 13) == texts


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lark.load_grammar", None)
    with pytest.raises(ConfigError, match=r"^grammars need lark: pip install 'argbeam\[grammar\]'$"):
        lark_grammar("start: ", characters("ab"))


@pytest.mark.parametrize(
    ("name", "text"),
    [("_MOST_STATES", "(a|b)*a(a|b){3}"), ("_MOST_SUBSETS", "(a|b)*a(a|b){3}"), ("_MOST_CELLS", "(ab)*")],
)
def test_automata_too_large_for_tables_are_left_to_the_host(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has 2^4 states; the second reads pieces of several characters, of which there are 3."""
    monkeypatch.setattr(automaton if name == "_MOST_CELLS" else rule_automata, name, 8)
    spelling = pieces("▁", "ab", "a", "b")
    grammar = regular_expression(text, spelling)
    with pytest.raises(
        NotDeterministic, match=r"^more than 8 (states( in subsets of rule .*)?|pairs of states and tokens)$"
    ):
        compile_grammar(grammar)
    found = {t for t in outputs(Matchers.of_grammar(grammar), spelling, 7) if len(t) <= 5 and " " not in t}
    assert found == strings("ab", 5, re.compile(text).fullmatch)
