"""`model = { kind = "huggingface", path = ... }`: a recipe trains a folder's model with its own tokenizer."""

import importlib
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import argbeam
from argbeam.data.batches import Example, make_batch
from argbeam.errors import ConfigError, DataError
from argbeam.models.huggingface.folder import open_model, open_tokenizer
from argbeam.search.successors import allowed_tokens
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import parse_recipe
from argbeam.tasks import Translation
from argbeam.training.events import Notice
from refusals import refusal
from small_runs import GENERATED, finish

LINES = [("ba ko", "KO BA"), ("ti lu ba", "BA LU"), ("ko", "KO"), ("lu ti", "TI LU")]


def table(folder: Path, **other: Any) -> dict[str, Any]:
    """Cross-entropy and BSO, with log-probabilities by default, on four pairs."""
    for side in (0, 1):
        (folder / f"text.{side}").write_text("".join(f"{pair[side]}\n" for pair in LINES), encoding="utf-8")
    files = {f"{split}_{side}": [f"text.{i}"] for split in ("train", "dev", "test") for i, side in enumerate(SIDES)}
    stage = {"epochs": 1, "keep": "last", "optimizer": {"kind": "adamw", "rate": 0.01}}
    bso = {"kind": "bso", "train_beam": 2, "start_beam": 2}
    return {
        "name": "pretrained",
        "task": {"kind": "translation"},
        "data": {"kind": "parallel", "root": str(folder), **files},
        "model": {"kind": "huggingface", "path": str(folder / "model")},
        "batch": {"size": 4},
        "stages": {"first": {**stage, "loss": {"kind": "cross_entropy"}}, "bso": {**stage, "loss": bso}},
        "decode": {"beam": 2, "length_extra": 3, "stop": "best"},
        "runtime": {"device": "cpu"},
        **other,
    }


SIDES = ("source", "target")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a small model, its tokenizer, and the data."""
    example = importlib.import_module("hugging_face")
    tokenizer = example.word_tokenizer(LINES, ends=True)
    example.WIDTH, kept = 8, example.WIDTH
    example.small_t5(tokenizer).save_pretrained(tmp_path / "model")
    example.WIDTH = kept
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path


def test_a_recipe_trains_decodes_and_gives_the_model_back(folder: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    recipe = parse_recipe(table(folder), ())
    finish(recipe, folder / "run")
    assert recipe.stages["bso"].loss.rule == "logprob_sum"  # type: ignore[union-attr]
    run = argbeam.load(folder / "run")
    task, tokenizer = run.task, AutoTokenizer.from_pretrained(folder / "model")
    example = task.example(task.read("train").items[0], 0)
    assert example.source == tuple(tokenizer("ba ko")["input_ids"]) and example.source[-1] == 1
    assert example.target == tuple(tokenizer("KO BA")["input_ids"])
    assert (task.target.specials.pad, task.target.specials.ends) == (0, (1,))
    item = task.item("ti lu ba")
    (decoded,) = run.decoder().decode([item], beam=2)
    run.model.network.save_pretrained(folder / "home")  # type: ignore[attr-defined]
    network = AutoModelForSeq2SeqLM.from_pretrained(folder / "home")
    before = AutoModelForSeq2SeqLM.from_pretrained(folder / "model")
    assert not torch.equal(network.shared.weight, before.shared.weight)
    limit = task.limit(task.example(item, 0))
    options = {"num_beams": 2, "max_new_tokens": limit, "early_stopping": "never", "length_penalty": 0.0}
    theirs = network.generate(torch.tensor([tokenizer("ti lu ba")["input_ids"]]), suppress_tokens=[0], **options)
    ended = decoded.hypotheses[0].finished
    assert (
        not ended or list(decoded.hypotheses[0].tokens) == theirs[0, 1 : 1 + len(decoded.hypotheses[0].tokens)].tolist()
    )
    assert task.text(item, decoded.hypotheses[0].tokens) == tokenizer.decode(
        decoded.hypotheses[0].tokens, skip_special_tokens=True
    )


def test_training_that_makes_a_pretrained_model_worse_keeps_it(folder: Path) -> None:
    """It also reports what `generate` would do with the model, and no search of ours."""
    from transformers import AutoModelForSeq2SeqLM, GenerationConfig

    GenerationConfig(no_repeat_ngram_size=3, decoder_start_token_id=0).save_pretrained(folder / "model")
    stage = {"epochs": 1, "keep": "perplexity", "optimizer": {"kind": "adamw", "rate": 5.0}}
    recipe = parse_recipe(table(folder, stages={"first": {**stage, "loss": {"kind": "cross_entropy"}}}), ())
    said = [event.text for event in finish(recipe, folder / "run") if isinstance(event, Notice)]
    assert any("generation_config has no_repeat_ngram_size: generate applies it" in line for line in said)
    kept = argbeam.load(folder / "run").model.network.state_dict()  # type: ignore[attr-defined]
    before = AutoModelForSeq2SeqLM.from_pretrained(folder / "model").state_dict()
    assert all(torch.equal(kept[name], before[name]) for name in before)


def byte_level(folder: Path) -> None:
    """The configuration of a GPT-2, and a tokenizer whose tokens are bytes written as letters: `Ġ` is a space."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["</s>"],
        show_progress=False,
    )
    backend.train_from_iterator(["KO BA", "BA LÜ", "BA LÜ"], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="</s>", bos_token="</s>")
    tokenizer.save_pretrained(folder / "model")
    GPT2Config(vocab_size=len(tokenizer) + 3, eos_token_id=0, bos_token_id=0).save_pretrained(folder / "model")


@pytest.mark.parametrize("bytes_as_letters", [False, True])
def test_a_grammar_reads_the_text_that_the_models_tokens_spell(folder: Path, bytes_as_letters: bool) -> None:
    """Words without spaces, or bytes: `KO BA` is ` KO BA` or `KO` and `ĠBA`. No token is `É` as a whole."""
    (folder / "grammar.txt").write_text("[A-ZÜÉ]+( [A-ZÜÉ]+)*")
    if bytes_as_letters:
        byte_level(folder)
    constraint = {"kind": "grammar", "file": "grammar.txt", "notation": "regex"}
    task = Translation.fit(parse_recipe(table(folder, task={"kind": "translation", "constraint": constraint}), ()))
    assert len(task.read("train").items) == 4
    lines = {"KO BA LU": True, "BA LÜ": bytes_as_letters, "ko": False, "KO ko": False, "KO É": False}
    for line, valid in lines.items():
        tokens = (*task.target.encode(task.item("ko", line).target), task.target.specials.eos)
        assert task.valid.constraint is not None and task.valid.constraint.accepts(tokens) == valid


def test_the_run_keeps_its_tokenizer(folder: Path) -> None:
    recipe = parse_recipe(table(folder, task={"kind": "text2text", "metrics": ["exact", "unseen"]}), ())
    task = Translation.fit(recipe)
    again = Translation.load(recipe, task.assets)
    assert again.target == task.target
    assert again.example(task.read("train").items[1], 1) == task.example(task.read("train").items[1], 1)
    assert task.score(task.read("dev").items, [(3,)] * 4).parts["exact"] == 0


def test_a_trie_of_targets_has_their_token_ids(folder: Path) -> None:
    """Items to recommend by their codes, which are tokens: a list of targets is the constraint."""
    (folder / "items.txt").write_text("KO BA\nBA\n", encoding="utf-8")
    constraint = {"kind": "trie", "file": "items.txt", "forbidden": "leave_out"}
    task = Translation.fit(parse_recipe(table(folder, task={"kind": "text2text", "constraint": constraint}), ()))
    ko, ba, end = (*task.target.encode(["KO", "BA"]), task.target.specials.eos)
    choices = task.constraint.start(make_batch([Example((4,), (), 0)], specials=task.target.specials))
    assert allowed_tokens(choices, len(task.target))[0].nonzero()[:, 0].tolist() == sorted([ko, ba])
    after = allowed_tokens(choices.advance(torch.tensor([ko])), len(task.target))[0]
    assert after.nonzero()[:, 0].tolist() == [ba] and end not in (ko, ba)


def test_sentences_and_outputs_fit_into_the_positions_of_the_model(folder: Path) -> None:
    """Three words and the end symbol are more than three positions: left out of training, an error elsewhere."""
    from transformers import BartConfig

    ids = {"vocab_size": 12, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1, "decoder_start_token_id": 1}
    BartConfig(max_position_embeddings=3, **ids).save_pretrained(folder / "model")
    (folder / "model" / "generation_config.json").unlink()
    task = Translation.fit(parse_recipe(table(folder), ()))
    left_out: Counter[str] = Counter()
    assert len(list(task.stream("train", left_out))) == 3
    assert left_out == {"longer than the model's positions": 1}
    call = lambda: task.example(task.item("ti lu ba"), 7)  # noqa: E731
    assert "sentence 7: 4 tokens of source and 0 of target: longer than the model's" in refusal(call, error=DataError)
    assert task.limit(task.example(task.item("ba ko"), 0)) == 3
    BartConfig(max_position_embeddings=1, **ids).save_pretrained(folder / "model")
    none = refusal(finish, parse_recipe(table(folder), ()), folder / "run", error=DataError)
    assert none == (
        "no training sentence is left (4 longer than the model's positions); pairs that fit into the positions of "
        "model.path are taken"
    )


def test_a_token_that_was_added_to_the_tokenizer_alone_is_one_line(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.add_tokens(["zork"])
    tokenizer.save_pretrained(folder / "model")
    task = Translation.fit(parse_recipe(table(folder), ()))
    found = refusal(task.item, "ba zork", error=DataError)
    assert f"token 'zork' has the id {len(tokenizer) - 1}, the model" in found and "resize_token_embeddings" in found


def test_what_does_not_fit_a_pretrained_model_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**other: Any) -> str:
        return refusal(parse_recipe, table(folder, **other), (), error=ConfigError)

    ordering = {"task": {"kind": "word_ordering"}, "data": GENERATED}
    assert 'model.kind = "huggingface": not for word_ordering' in refused(**ordering)
    assert "text.lowercase: the tokenizer of the model reads raw text; must be false" in refused(
        text={"lowercase": True}
    )
    first = table(folder)["stages"]["first"]
    assert 'stages.first.dropout: the network has its own; must be "model"' in refused(
        stages={"first": {**first, "dropout": 0.1}}
    )
    nowhere: Recipe = parse_recipe(table(folder, model={"kind": "huggingface", "path": "/nowhere"}), ())
    assert "model.path = /nowhere: no such folder" in refusal(Translation.fit, nowhere, error=ConfigError)
    (folder / "model" / "config.json").write_text("{", encoding="utf-8")
    broken = parse_recipe(table(folder), ())
    assert "AutoTokenizer cannot read it" in refusal(Translation.fit, broken, error=ConfigError)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert 'pip install "argbeam[hf]"' in refusal(Translation.fit, broken, error=ConfigError)


def test_a_folder_without_all_weights_is_one_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """transformers would draw at random what is not there."""
    from safetensors.torch import load_file, save_file

    weights = folder / "model" / "model.safetensors"
    whole = load_file(weights)
    name = "decoder.final_layer_norm.weight"

    def refused(tensors: dict[str, torch.Tensor]) -> str:
        save_file(tensors, weights, metadata={"format": "pt"})
        return refusal(open_model, str(folder / "model"), error=ConfigError)

    assert f"no weights for {name} (1 in all)" in refused({key: whole[key] for key in whole if key != name})
    assert f"weights of another shape for {name} (1 in all)" in refused({**whole, name: torch.ones(3)})
    weights.write_bytes(b"no tensors")
    assert "AutoModelForSeq2SeqLM cannot read it" in refusal(open_model, str(folder / "model"), error=ConfigError)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "model" / file).unlink()
    assert "no file of a tokenizer in it" in refusal(open_tokenizer, str(folder / "model"), error=ConfigError)
    weights.unlink()
    assert "no file named model.safetensors" in refusal(open_model, str(folder / "model"), error=ConfigError)
    (folder / "model" / "config.json").unlink()
    assert "no config.json in it" in refusal(open_tokenizer, str(folder / "model"), error=ConfigError)
    assert capfd.readouterr().err == ""
