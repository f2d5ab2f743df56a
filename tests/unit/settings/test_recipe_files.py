"""Recipes: what loads, what every error says, JSON and differences."""

import copy
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from argbeam.errors import ConfigError
from argbeam.settings import ConvModel, LstmLmModel, LstmModel, Recipe
from argbeam.settings.data import GeneratedData
from argbeam.settings.listing import describe
from argbeam.settings.losses import BsoLoss
from argbeam.settings.models import TransformerModel
from argbeam.settings.recipe_files import (
    difference,
    in_short,
    load_recipe,
    parse_recipe,
    recipe_from_json,
    recipe_to_json,
    recipe_to_toml,
)
from refusals import refusal

TEXT = """
name = "ConBSO"
task = { kind = "word_ordering" }
data = { kind = "generated", train = 100, dev = 20, test = 20 }
model = { kind = "lstm", layers = 2, dropout = 0 }

[stages.pretrain]
epochs = 10
keep = "perplexity"
loss = { kind = "cross_entropy" }
optimizer = { kind = "adagrad", encoder = 0.02, decoder = 0.01, output = 0.2 }

[stages.bso]
epochs = 39
loss = { kind = "bso", train_beam = 6, constrained = true }
optimizer = { kind = "adagrad", encoder = 0.02, decoder = 0.02, output = 1 }
"""

RULE = "stages.bso.loss.rule=logprob_sum"


def mapping() -> dict[str, Any]:
    return tomllib.loads(TEXT)


def translation() -> dict[str, Any]:
    table = mapping()
    table["task"] = {"kind": "translation"}
    files = {"train_source": ["a"], "train_target": ["b"], "dev_source": ["c"], "dev_target": ["d"]}
    table["data"] = {"kind": "parallel", **files}
    table["stages"]["bso"]["loss"]["constrained"] = False
    return table


def message(table: dict[str, Any], *overrides: str) -> str:
    text = refusal(parse_recipe, table, overrides, where="x.toml", error=ConfigError)
    assert len(text.splitlines()) == 1
    return text


def test_the_score_rule_of_bso_is_by_default_that_of_the_model() -> None:
    """Whatever the order of the keys; a recipe's own rule wins; the saved recipe has the rule in force."""
    model = "model={kind='transformer'}"
    for overrides, rule in (((), "last_score"), ((model,), "score_sum"), ((model, RULE), "logprob_sum")):
        recipe = parse_recipe(mapping(), overrides)
        assert recipe.stages["bso"].loss.rule == rule
        assert recipe_from_json(recipe_to_json(recipe)) == recipe
    # Settings made in Python have the same default.
    bso, plain = Recipe.model_validate(mapping()).stages["bso"], BsoLoss(constrained=True)
    for stage in (bso.model_copy(update={"loss": plain}), {**mapping()["stages"]["bso"], "loss": plain}):
        for model_settings in (TransformerModel(), {"kind": "transformer"}):
            made = Recipe.model_validate({**mapping(), "model": model_settings, "stages": {"bso": stage}})
            assert made.stages["bso"].loss == BsoLoss(constrained=True, rule="score_sum")
    growing = parse_recipe(mapping(), (model, "stages.bso.loss.margin_per_token=0.5"))
    assert growing.stages["bso"].loss.margin_per_token == 0.5


def test_a_rule_that_does_not_fit_the_search_is_refused() -> None:
    by_length = ("decode.length_power=1", "decode.stop=best")
    assert parse_recipe(mapping(), (RULE, *by_length)).decode.length_power == 1.0
    assert message(mapping(), RULE, by_length[0]) == (
        'x.toml: decode.length_power = 1.0: the stop rule "top" compares no lengths; must be 0, or decode.stop = "best"'
    )
    for sums in ("stages.bso.loss.rule=score_sum", "stages.bso.loss={kind='crf'}"):
        assert message(mapping(), sums, "decode.stop=best") == (
            'x.toml: decode.stop = "best": sums of scores do not compare across lengths; must be "top" or "auto" after '
            f"{'crf' if 'crf' in sums else 'bso'} with score_sum, the loss of stages.bso"
        )
    # Epochs of every stage are decoded, and any may be kept.
    table = translation()
    table["stages"]["mrt"] = {**table["stages"]["pretrain"], "loss": {"kind": "mrt"}}
    assert message(table, sums, "decode.stop=best").endswith("after crf with score_sum, the loss of stages.bso")


def test_a_file_loads_with_defaults_and_integers_for_floats(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(TEXT)
    recipe = load_recipe(path)
    assert (recipe.name, recipe.seed) == ("ConBSO", 1)
    assert recipe.data == GeneratedData(train=100, dev=20, test=20)
    assert recipe.model == LstmModel(layers=2, dropout=0.0)
    assert type(recipe.stages["bso"].optimizer.output) is float
    assert recipe.stages["bso"].loss == BsoLoss(train_beam=6, constrained=True)
    assert recipe.stages["bso"].optimizer.epsilon == 1e-10
    assert recipe.runtime.checkpoint_every == 500


def test_the_order_of_the_tables_is_the_order_of_the_stages() -> None:
    table, one = mapping(), parse_recipe(mapping())
    table["stages"] = dict(reversed(table["stages"].items()))
    other = parse_recipe(table)
    assert (list(one.stages), list(other.stages)) == (["pretrain", "bso"], ["bso", "pretrain"])
    assert list(recipe_from_json(recipe_to_json(other)).stages) == ["bso", "pretrain"]
    assert difference(one, other) == ["stages: pretrain, bso -> bso, pretrain"]


def test_a_recipe_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        parse_recipe(mapping()).model.hidden = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("name=foo", "foo"),
        ("name = foo bar", "foo bar"),
        ('name="12"', "12"),
        ("name=a=b", "a=b"),
        ("name=2016-11-01", "2016-11-01"),
        ("seed=7", 7),
        ("stages.bso.loss.train_beam=11", 11),
        ("stages.bso.loss.margin=2", 2.0),
        ("model.input_feeding=false", False),
        ("runtime.device=cpu", "cpu"),
        ("decode.length_extra=5", 5),
    ],
)
def test_an_override_is_a_toml_value_or_a_bare_word(override: str, value: object) -> None:
    table = mapping()
    found: Any = parse_recipe(table, [override])
    for key in override.partition("=")[0].strip().split("."):
        found = found[key] if isinstance(found, dict) else getattr(found, key)
    assert found == value
    assert type(found) is type(value)
    assert table == mapping()


def test_overrides_take_lists_tables_and_whole_stages_and_the_last_one_wins() -> None:
    data = ["data={kind = 'text', train = ['z'], dev = ['d']}", 'data.train=["a","b"]']
    stage = "stages.more={epochs=1, loss={kind='cross_entropy'}, optimizer={encoder=1,decoder=1,output=1}}"
    recipe = parse_recipe(mapping(), [*data, stage, "seed=2", "seed=3"])
    assert recipe.data.train == ["a", "b"]  # type: ignore[union-attr]
    assert list(recipe.stages) == ["pretrain", "bso", "more"]
    assert recipe.seed == 3


def test_a_stage_is_dropped_by_none_and_one_must_be_left() -> None:
    assert list(parse_recipe(mapping(), ["stages.pretrain=none", "start=runs/other"]).stages) == ["bso"]
    with pytest.raises(ConfigError, match=r"^--set: stages is empty: at least one is needed$|stages is empty"):
        parse_recipe(mapping(), ["stages.pretrain=none", "stages.bso=none"])


# Overrides and their error, one case a line.
MESSAGES = r"""
model.hiden=3 => --set: unknown key model.hiden; did you mean model.hidden?
foo.bar=1 => --set: unknown key foo; accepted: name, seed, task, data, text, model, batch, stages, start, decode, runtime
batch.zzz=3 => --set: unknown key batch.zzz; accepted: size, tokens, accumulate, round_source, round_target
stages.bso.loss.train_beem=3 => --set: unknown key stages.bso.loss.train_beem; did you mean stages.bso.loss.train_beam?
stages={"a b" = {}} => --set: stages.a b = "a b": a stage's name has letters, digits, - and _ only (and 3 more)
stages.bsoo.epochs=3 => --set stages.bsoo.epochs=3: unknown key stages.bsoo; did you mean stages.bso?
stages.zzz.epochs=3 => --set stages.zzz.epochs=3: unknown key stages.zzz; accepted: pretrain, bso
stages.bsoo=none => --set stages.bsoo=none: unknown key stages.bsoo; did you mean stages.bso?
stages={} => --set: stages is empty: at least one is needed
stages=3 => --set: stages = 3: found a whole number, accepted: a table
stages.bso=3 => --set: stages.bso = 3: found a whole number, accepted: a table
model.dropout=1.5 => --set: model.dropout = 1.5: must be at least 0 and less than 1
model.dropout=nan => --set: model.dropout = NaN: must be a finite number
model.vectors_scale=0 => --set: model.vectors_scale = 0: must be more than 0
model.hidden=big => --set: model.hidden = "big": found a string, accepted: a whole number at least 1 and at most 1000000
model.hidden=2.0 => --set: model.hidden = 2.0: found a number, accepted: a whole number at least 1 and at most 1000000
model.hidden=true => --set: model.hidden = true: found true or false, accepted: a whole number at least 1 and at most 1000000
model.init=true => --set: model.init = true: found true or false, accepted: a number at least 0 and at most 1000
model.input_feeding=1 => --set: model.input_feeding = 1: found a whole number, accepted: true or false
model=[] => --set: model = [...]: found a list, accepted: a table
model.vectors=3 => --set: model.vectors = 3: found a whole number, accepted: a string
model=3 => --set: model = 3: found a whole number, accepted: a table
model.kind=gru => --set: model.kind = "gru": must be one of lstm, lstm_lm, conv, transformer, transformer_lm, huggingface
model.kind=lstm_ml => --set: model.kind = "lstm_ml": must be one of lstm, lstm_lm, conv, transformer, transformer_lm, huggingface; did you mean lstm_lm?
model.heads=2 => --set: unknown key model.heads: not of model.kind = "lstm"; a key of transformer, transformer_lm
model={kind="transformer", input_feeding=true} => --set: unknown key model.input_feeding: not of model.kind = "transformer"; a key of lstm
model={kind="transformer", hidden=20, heads=3} => --set: model: heads = 3 do not divide hidden = 20; all heads have one width
model={kind="transformer_lm", hidden=12, heads=4, positions="rotary"} => --set: model: positions = "rotary": hidden / heads is 3; it must be even, for pairs to turn
model={kind='lstm_lm', input_feeding=true} => --set: unknown key model.input_feeding: not of model.kind = "lstm_lm"; a key of lstm
model={kind='conv', window=4} => --set: model.window = 4: must be odd: as many words to the left as to the right
runtime.device=cude => --set: runtime.device = "cude": must be one of cpu, cuda, auto; did you mean cuda?
runtime.device=gpu => --set: runtime.device = "gpu": must be one of cpu, cuda, auto; did you mean cuda?
runtime.device=3 => --set: runtime.device = 3: must be one of cpu, cuda, auto
task.kind=parsin => --set: task.kind = "parsin": must be one of word_ordering, parsing, translation, text2text, recommendation; did you mean parsing?
task.kind=[1] => --set: task.kind = [...]: must be one of word_ordering, parsing, translation, text2text, recommendation
task={} => --set: missing key task.kind, one of "word_ordering", "parsing", "translation", "text2text", "recommendation"
task=3 => --set: task = 3: found a whole number, accepted: a table
name=' ' => --set: name = " ": must be a printable name, not empty
name="a\nb" => --set: name = "a\nb": must be a printable name, not empty
seed=-1 => --set: seed = -1: must be at least 0 and less than 9223372036854775808
stages.bso.loss.start_beam=7 => x.toml: stages.bso.loss: start_beam = 7 is more than train_beam = 6; it must not be
stages.bso.optimizer.kind=adam => --set: stages.bso.optimizer.kind = "adam": must be one of adagrad, adamw; did you mean adamw?
stages.bso.optimizer={kind='adamw'} => --set: missing key stages.bso.optimizer.rate, a number at least 0
stages.bso.optimizer={kind='adamw', rate=1, encoder=2} => --set: unknown key stages.bso.optimizer.encoder: not of stages.bso.optimizer.kind = "adamw"; a key of adagrad; did you mean stages.bso.optimizer.encoder_factor?
stages.bso.optimizer={kind='adamw', rate=1, betas=[0.9]} => --set: stages.bso.optimizer.betas = [...]: must be two numbers at least 0 and less than 1
stages.bso.optimizer={kind='adamw', rate=1, betas=[0.9, 'a']} => --set: stages.bso.optimizer.betas[1] = "a": found a string, accepted: a number
stages.bso.optimizer={kind='adamw', rate=1, betas=0.9} => --set: stages.bso.optimizer.betas = 0.9: found a number, accepted: a list of numbers
stages.pretrain.loss.label_smoothing=1 => --set: stages.pretrain.loss.label_smoothing = 1: must be at least 0 and less than 1
stages.bso.dropout=1 => --set: stages.bso.dropout = 1: must be a number at least 0 and less than 1, or "model"
stages.bso.dropout=none => --set: stages.bso.dropout = "none": must be a number at least 0 and less than 1, or "model"
stages.bso.batch={size=3, tokens=4} => --set: stages.bso.batch: size = 3 and tokens = 4: one of them must be 0
text.min_length=61 => x.toml: text: min_length = 61 is more than max_length = 60; nothing fits
text.subwords=8000 => x.toml: text.subwords = 8000: only for translation and text2text; 0 for word_ordering
decode.length_power=-1 => --set: decode.length_power = -1: must be a number at least 0, or "dev"
decode.length_power=test => --set: decode.length_power = "test": must be a number at least 0, or "dev"
decode.length_power=nan => --set: decode.length_power = NaN: must be a number at least 0, or "dev"
decode.length_power=dev => x.toml: decode.length_power = "dev": only for models that sum log-probabilities; must be 0 after bso with last_score, the loss of stages.bso
decode.length_power=1 => x.toml: decode.length_power = 1.0: only for models that sum log-probabilities; must be 0 after bso with last_score, the loss of stages.bso
data={kind='tsv', train=['a'], dev=['b']} => x.toml: data.kind = "tsv": not for word_ordering; one of generated, text, conllu, conllx
data={kind='text', train=['a', 3], dev=['b']} => --set: data.train[1] = 3: found a whole number, accepted: a string
data={kind='text', train='a', dev=['b']} => --set: data.train = "a": found a string, accepted: a list of strings
data={kind='text', train=[], dev=['b']} => --set: data.train is empty: at least one is needed
data={kind='text', train=['a'], dev=['']} => --set: data.dev[0] = "": must be a path, not empty and without NUL
data={kind='text', train=['a']} => --set: missing key data.dev, a list of strings
model.hidden => --set model.hidden: accepted: key=value, such as model.hidden=512
model..hidden=3 => --set model..hidden=3: accepted: key=value, such as model.hidden=512
name=[1 => --set name=[1: the value is neither TOML nor a bare word; a shell removes quotes that are not quoted: --set 'name=["a", "b"]'
data.train=[a.tsv] => --set data.train=[a.tsv]: the value is neither TOML nor a bare word; a shell removes quotes that are not quoted: --set 'data.train=["a", "b"]'
task={kind = parsing} => --set task={kind = parsing}: the value is neither TOML nor a bare word; a shell removes quotes that are not quoted: --set 'task={a = "b"}'
name= => --set name=: the value is neither TOML nor a bare word
text.tokenizer=moses => x.toml: text.tokenizer = "moses": word_ordering reads tokenised text; must be "whitespace"
name.x=3 => --set name.x=3: name is a string, accepted: a table
stages.bso.patience=2 & stages.bso.keep=last => x.toml: stages.bso: patience = 2 waits for a better dev figure; keep = "last" has none
task.kind=parsing & data={kind='text', train=['a'], dev=['b']} => x.toml: data.kind = "text": not for parsing; one of generated, conllu, conllx
"""  # noqa: E501
TRANSLATION_MESSAGES = """
stages.bso.loss={kind='crf', constrained=true} => x.toml: stages.bso.loss.constrained = true: translation has no constraint; must be false, or name one: task.constraint
stages.bso.loss.constrained=true => x.toml: stages.bso.loss.constrained = true: translation has no constraint; must be false, or name one: task.constraint
stages.pretrain.loss.valid_only=true => x.toml: stages.pretrain.loss.valid_only = true: translation has no constraint; must be false, or name one: task.constraint
model.kind=lstm_lm => x.toml: model.kind = "lstm_lm": it reads no source, and only a constraint could tell it what to write; not for translation
text={subwords=100, tokenizer='moses'} => x.toml: text.tokenizer = "moses": SentencePiece reads raw text; must be "whitespace"
data.test_source=['a'] => x.toml: data: test_source has 1 file, test_target 0; they must pair up
data={kind='tsv', train=['a'], dev=['b'], target_column=0} => --set: data: source_column and target_column are both 0; they must differ
data={kind='text', train=['a'], dev=['b']} => x.toml: data.kind = "text": not for translation; one of generated, parallel, tsv, iwslt14
data={kind='conllu', train=['a'], dev=['b']} => x.toml: data.kind = "conllu": not for translation; one of generated, parallel, tsv, iwslt14
"""  # noqa: E501


CASES = [(mapping, case) for case in MESSAGES.strip().splitlines()]
CASES += [(translation, case) for case in TRANSLATION_MESSAGES.strip().splitlines()]


@pytest.mark.parametrize(("table", "case"), CASES)
def test_an_override_that_is_not_accepted_is_explained(table: Callable[[], dict[str, Any]], case: str) -> None:
    overrides, expected = case.split(" => ")
    assert message(table(), *overrides.split(" & ")) == expected


def test_an_override_of_two_lines_is_explained() -> None:
    assert message(mapping(), "seed=3\nb=4") == r'--set "seed=3\nb=4": one value is accepted, found 2'


def test_translation_takes_subwords() -> None:
    assert parse_recipe(translation(), ["text.subwords=8000"]).text.subwords == 8000


def test_an_error_of_the_file_names_the_file_and_the_first_of_several() -> None:
    table = mapping()
    table["model"] |= {"hidden": "big", "layers": 0}
    assert message(table) == "x.toml: model.layers = 0: must be at least 1 and at most 1000 (and 1 more)"
    del table["name"]
    assert message(table) == "x.toml: missing key name, a string (and 2 more)"


def test_a_misspelt_key_is_named_before_the_missing_one_it_causes() -> None:
    table = mapping()
    table["data"]["trian"] = table["data"].pop("train")
    assert message(table) == "x.toml: unknown key data.trian; did you mean data.train? (and 1 more)"


def test_a_model_is_the_paper_s_unless_its_kind_says_otherwise() -> None:
    assert parse_recipe(mapping(), ["model={}"]).model == LstmModel()
    assert parse_recipe(mapping(), ["model={hidden=3}"]).model == LstmModel(hidden=3)
    assert parse_recipe(mapping(), ["model.kind=lstm_lm"]).model == LstmLmModel(layers=2, dropout=0.0)
    conv = parse_recipe(mapping(), ["model.kind=conv", "model.window=7"]).model
    assert conv == ConvModel(layers=2, dropout=0.0, window=7)


def test_a_length_power_is_a_number_or_chosen_on_dev() -> None:
    table = mapping()
    del table["stages"]["bso"]
    for value, expected in (("1", 1.0), ("0.6", 0.6), ("dev", "dev"), ('"dev"', "dev")):
        recipe = parse_recipe(table, [f"decode.length_power={value}"])
        assert recipe.decode.length_power == expected
        assert type(recipe.decode.length_power) is type(expected)
        assert recipe_from_json(recipe_to_json(recipe)) == recipe


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a = 1\nb = \n", ":2: not TOML: Invalid value"),
        (b"a = 1\na = 2\n", ":2: not TOML: Cannot overwrite a value"),
        (b"a = 1\nb", ":2: not TOML: Expected '=' after a key in a key/value pair (at end of document)"),
        (b"a = " + b"[" * 100_000, ":1: not TOML: maximum recursion depth exceeded"),
        (b"a = " + b"9" * 5000, ":1: not TOML: Exceeds the limit (4300 digits) for integer string conversion"),
        (b"a = '\xff'", ": byte 5 is not UTF-8; a TOML file is expected"),
    ],
)
def test_a_file_that_is_not_toml_is_named_with_its_line(content: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    text = refusal(load_recipe, path, error=ConfigError)
    assert text.startswith(f"{path}{expected}") and "\n" not in text


@pytest.mark.parametrize(("name", "reason"), [("no.toml", "No such file or directory"), ("", "Is a directory")])
def test_a_file_that_cannot_be_read_is_named(name: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / name
    assert refusal(load_recipe, path, error=ConfigError) == f"cannot read {path}: {reason}; a TOML file is expected"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[]", "found a list, accepted: a table"),
        ("{}", "missing key name, a string (and 3 more)"),
    ],
)
def test_json_that_is_no_recipe_is_refused(text: str, expected: str) -> None:
    assert refusal(recipe_from_json, text, error=ConfigError) == f"recipe: {expected}"
    assert refusal(recipe_from_json, text, where="x.json", error=ConfigError) == f"x.json: {expected}"


def test_equal_recipes_do_not_differ_and_changes_are_listed_by_key() -> None:
    recipe = parse_recipe(mapping())
    assert difference(recipe, parse_recipe(mapping())) == []
    other = parse_recipe(mapping(), ["model.hidden=512", "name=x", "stages.bso.loss={kind='cross_entropy'}"])
    lines = difference(recipe, other)
    assert lines[:2] == ['name: "ConBSO" -> "x"', "model.hidden: 256 -> 512"]
    assert 'stages.bso.loss.kind: "bso" -> "cross_entropy"' in lines
    assert "stages.bso.loss.train_beam: 6 -> absent" in lines
    assert "stages.bso.loss.train_beam: absent -> 6" in difference(other, recipe)


def test_every_setting_is_described_once() -> None:
    lines = describe()
    assert len({line.key for line in lines}) == len(lines)
    assert all(line.meaning and line.type and line.default for line in lines)
    by_key = {line.key: line for line in lines}
    dropout = ("a number at least 0 and less than 1", "0.2", "dropout between layers and before the output layer")
    assert by_key["model(lstm).dropout"] == ("model(lstm).dropout", *dropout)
    assert by_key["model.kind"][1:3] == (
        'one of "lstm", "lstm_lm", "conv", "transformer", "transformer_lm", "huggingface"',
        '"lstm"',
    )
    assert by_key["decode.length_power"].type == 'a number or "dev"'
    assert by_key["stages.NAME.epochs"].default == "required"
    assert by_key["stages.NAME.loss(bso).cost"].type == 'one of "zero_one", "sentence_bleu", "authors_bleu"'
    assert by_key["data.kind"].type.startswith('one of "generated", "text"')
    assert by_key["data(tsv).test"].default == "[]"


def test_every_default_of_the_description_is_accepted() -> None:
    """Each listed default, given by `--set`, leaves the recipe as it is."""
    recipe = parse_recipe(mapping(), ["model={}"])
    for line in describe():
        if line.default != "required" and not any(mark in line.key for mark in ("(", "NAME")):
            assert parse_recipe(mapping(), ["model={}", f"{line.key}={line.default}"]) == recipe, line.key


words = ("bso", "parsing", "translation", "text", "tsv", "top", "lstm", "lstm_lm", "conv", "dev")
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
inner_values = st.integers() | st.text(max_size=3)
values = st.one_of(
    scalars,
    st.sampled_from([*words, 0, 1, 2, 7]),
    st.lists(inner_values, max_size=2),
    st.dictionaries(st.text(max_size=3) | st.just("kind"), inner_values, max_size=2),
)


def tables_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [found for value in table.values() if isinstance(value, dict) for found in tables_of(value)]
    return [table, *inner]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_mutated_recipe_loads_and_round_trips_or_gives_one_line(data: st.DataObject) -> None:
    table = copy.deepcopy(data.draw(st.sampled_from([mapping(), translation()])))
    for _ in range(data.draw(st.integers(1, 3))):
        target = data.draw(st.sampled_from(tables_of(table)))
        keys = st.sampled_from([*sorted(target, key=str), "kind", "seed", "stop"])
        key = data.draw(keys | st.text(max_size=4) | st.just("[key]"))
        if data.draw(st.booleans()):
            target.pop(key, None)
        else:
            target[key] = data.draw(values)
    try:
        recipe = parse_recipe(table, where="x.toml")
    except ConfigError as error:
        assert str(error).startswith("x.toml: ") and "pydantic" not in str(error)
        assert len(str(error).splitlines()) == 1
    else:
        assert recipe_from_json(recipe_to_json(recipe)) == recipe


@settings(max_examples=200, deadline=None)
@given(key=st.sampled_from([line.key.replace("NAME", "bso") for line in describe()]) | st.text(), value=st.text())
def test_any_override_loads_or_gives_one_line(key: str, value: str) -> None:
    try:
        recipe = parse_recipe(mapping(), [f"{key}={value}"])
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert isinstance(recipe, Recipe)


@settings(max_examples=100, deadline=None)
@given(
    rate=st.floats(min_value=0, allow_infinity=False, allow_nan=False),
    seed=st.integers(0, 2**63 - 1),
    paths=st.lists(st.text(min_size=1).filter(lambda text: "\0" not in text), min_size=1, max_size=3),
)
def test_json_and_toml_give_every_number_and_path_back_exactly(rate: float, seed: int, paths: list[str]) -> None:
    table = mapping()
    table["seed"] = seed
    table["data"] = {"kind": "text", "train": paths, "dev": paths}
    table["stages"]["bso"]["optimizer"]["encoder"] = rate
    recipe = parse_recipe(table)
    assert recipe_from_json(recipe_to_json(recipe)) == recipe
    assert parse_recipe(tomllib.loads(recipe_to_toml(recipe, purpose="A test."))) == recipe
    assert recipe.stages["bso"].optimizer.encoder == rate


@pytest.mark.parametrize(("number", "expected"), [(1, "a"), (4, "a; b; c; d"), (6, "a; b; c; d and 2 more")])
def test_a_long_difference_is_told_in_short(number: int, expected: str) -> None:
    assert in_short(list("abcdef")[:number]) == expected


@pytest.mark.parametrize(
    ("recipe", "stage", "expected"),
    [
        ({}, {}, (64, 0, 1)),
        ({"tokens": 90}, {}, (64, 90, 1)),
        ({"size": 8, "accumulate": 2}, {"tokens": 90}, (8, 90, 2)),
        ({"tokens": 90}, {"size": 8}, (8, 0, 1)),
        ({"accumulate": 2}, {"accumulate": 3}, (64, 0, 3)),
    ],
)
def test_a_stage_changes_what_it_says_of_the_batches(
    recipe: dict[str, int], stage: dict[str, int], expected: tuple[int, int, int]
) -> None:
    table = mapping()
    table["batch"], table["stages"]["bso"]["batch"] = recipe, stage
    loaded = parse_recipe(table)
    found = loaded.batch.of_stage(loaded.stages["bso"])
    assert (found.size, found.tokens, found.accumulate) == expected
