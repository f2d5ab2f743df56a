"""`SearchTrainer`: a loss of argbeam in transformers' own training, accumulated, with LoRA and by two processes."""

import copy
import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from argbeam import huggingface
from argbeam.data.batches import Example, make_batch
from argbeam.data.vocabulary import EOS
from argbeam.errors import ConfigError, DataError
from argbeam.huggingface import adapt
from argbeam.huggingface.labels import batch_of
from argbeam.losses import Bso
from argbeam.losses.mixer import Baseline, Mixer
from argbeam.models.noise import Noise
from argbeam.runtime import device as devices
from argbeam.search.score_rules import LogprobSum
from argbeam.search.successors import Unconstrained
from groups import in_group
from refusals import refusal
from tape import TapeRecorder
from tiny_transformers import VOCABULARY, tiny

EXAMPLES = [
    Example((4, 5, 6, 7), (4, 5, 6, EOS), 0),
    Example((8,), (5, EOS), 1),
    Example((5, 4, 4), (7, 7, 8, EOS), 2),
    Example((6, 5), (5, 6, EOS), 3),
]
ANYTHING = Unconstrained(VOCABULARY, end_symbol=True)
LOSS = Bso(ANYTHING, 3, start_beam=3, rule=LogprobSum())


def rows(*, causal: bool) -> list[dict[str, list[int]]]:
    if not causal:
        return [{"input_ids": [*e.source], "labels": [*e.target]} for e in EXAMPLES]
    return [
        {"input_ids": [*e.source, *e.target], "labels": [*[-100] * len(e.source), *e.target]} for e in EXAMPLES
    ]  # fmt: skip


def collated(features: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Padded on the right, as transformers' collators do."""
    width = max(len(f["input_ids"]) for f in features)
    labels = max(len(f["labels"]) for f in features)
    return {
        "input_ids": torch.tensor([[*f["input_ids"], *[0] * (width - len(f["input_ids"]))] for f in features]),
        "attention_mask": torch.tensor(
            [[1] * len(f["input_ids"]) + [0] * (width - len(f["input_ids"])) for f in features]
        ),
        "labels": torch.tensor([[*f["labels"], *[-100] * (labels - len(f["labels"]))] for f in features]),
    }


def trainer_of(model: Any, folder: Path, *, size: int = 4, accumulate: int = 1, loss: Any = LOSS, **more: Any) -> Any:
    from transformers import Seq2SeqTrainingArguments

    arguments = Seq2SeqTrainingArguments(
        str(folder), per_device_train_batch_size=size, gradient_accumulation_steps=accumulate, max_steps=2,
        learning_rate=0.1, optim="sgd", lr_scheduler_type="constant", max_grad_norm=0.0, report_to=[], use_cpu=True,
        save_strategy="no", logging_steps=1, disable_tqdm=True, seed=1, train_sampling_strategy="sequential", **more,
    )  # fmt: skip
    data: Any = rows(causal=not model.config.is_encoder_decoder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return huggingface.SearchTrainer(
            model, arguments, loss=loss, train_dataset=data, eval_dataset=data[:2], data_collator=collated
        )


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def by_hand(model: Any) -> dict[str, torch.Tensor]:
    """Two updates of plain gradient descent on the mean of the loss over the sentences, with the trainer's dropout."""
    adapted = adapt(model)
    batch = make_batch(EXAMPLES, specials=adapted.specials)
    for update in range(2):
        model.zero_grad()
        noise = Noise(1, torch.tensor(update), batch.sentence_B)
        (LOSS.at(0)(adapted, batch, noise).total / 4).backward()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.grad is not None:
                    weight -= 0.1 * weight.grad
    return weights_of(model)


@pytest.mark.parametrize(("family", "accumulate"), [("bart", 1), ("bart", 4), ("llama", 2)])
def test_an_update_is_the_gradient_of_the_mean_over_the_sentences(family: str, accumulate: int, tmp_path: Path) -> None:
    model = tiny(family)
    trainer_of(model, tmp_path, size=4 // accumulate, accumulate=accumulate).train()
    torch.testing.assert_close(weights_of(model), by_hand(tiny(family)), rtol=1e-6, atol=1e-6)


def test_captured_losses_train_as_eager_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padded to multiples of 8, accumulated; a graph is recorded at the second batch of a shape and replayed then."""
    model, recorder = tiny("t5"), TapeRecorder()
    monkeypatch.setattr(devices, "make_recorder", lambda runtime, device: recorder)
    trainer, own = trainer_of(model, tmp_path, size=2, accumulate=2), {*map(id, model.parameters())}
    trainer.train()
    assert {*map(id, model.parameters())} == own
    assert trainer.captured.failure is None and [tape.replays for tape in recorder.tapes] == [3]
    torch.testing.assert_close(weights_of(model), by_hand(tiny("t5")), rtol=1e-6, atol=1e-6)
    assert trainer.state.log_history[0]["violations_per_word"] > 0


def train_split(family: str, folder: Path, layer: str, *, tied: bool) -> dict[str, torch.Tensor]:
    """Two updates with the weights of layers split over the processes, as accelerate splits them (FSDP2)."""
    from accelerate.utils import FullyShardedDataParallelPlugin, fsdp2_prepare_model

    model = tiny(family)
    trainer = split_trainer(model, folder)
    if tied:  # torch refuses accelerate's split of vectors that encoder and decoder share
        for module in [module for module in model.modules() if type(module).__name__ == layer]:
            fully_shard(module)
        fully_shard(model)
    else:
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=[layer],
            reshard_after_forward=True, cpu_ram_efficient_loading=False,
        )  # fmt: skip
        state, device = SimpleNamespace(fsdp_plugin=plugin), torch.device("cpu")
        accelerator = SimpleNamespace(state=state, device=device, mixed_precision="no", is_main_process=True)
        model = fsdp2_prepare_model(accelerator, model)
    first = 2 * torch.distributed.get_rank()
    inputs = collated(rows(causal=not tied)[first : first + 2])
    for update in range(2):
        trainer.state.global_step = update
        trainer.compute_loss(model, inputs, num_items_in_batch=torch.tensor(4)).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.1 * weight.grad
                weight.grad = None
    return {name: weight.full_tensor().detach() for name, weight in model.named_parameters()}


def split_trainer(model: Any, folder: Path) -> Any:
    """A trainer that has been told of FSDP; accelerate does not do so on a CPU."""
    from transformers import Seq2SeqTrainingArguments

    class Split(huggingface.SearchTrainer):
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            self.is_fsdp_enabled = True

    return Split(model, Seq2SeqTrainingArguments(str(folder), use_cpu=True, seed=1, report_to=[]), loss=LOSS)


def train_in_group(folder: str) -> None:
    """By DDP, and with split weights of an encoder-decoder and of a causal model."""
    whole = tiny("t5")
    trainer = trainer_of(whole, Path(folder), size=2)
    trainer.train()
    found = {
        "t5": weights_of(whole),
        "split t5": train_split("t5", Path(folder), "T5Block", tied=True),
        "split llama": train_split("llama", Path(folder), "LlamaDecoderLayer", tied=False),
    }
    if torch.distributed.get_rank() == 0:
        Path(folder, "log.json").write_text(json.dumps(trainer.state.log_history[-2]))
        torch.save(found, Path(folder, "weights.pt"))


def test_two_processes_train_as_one_with_the_same_batch_with_whole_and_split_weights(tmp_path: Path) -> None:
    in_group(2, tmp_path, train_in_group, str(tmp_path), forked=True)
    for name, weights in torch.load(tmp_path / "weights.pt").items():
        torch.testing.assert_close(weights, by_hand(tiny(name.split()[-1])), rtol=1e-6, atol=1e-6)
    trainer = trainer_of(tiny("t5"), tmp_path)
    trainer.train()
    log, expected = json.loads((tmp_path / "log.json").read_text()), trainer.state.log_history[-2]
    for name in ("loss", "violations_per_word", "gold_on_beam_per_sentence"):
        assert log[name] == pytest.approx(expected[name])


def test_lora_trains_evaluates_by_generate_and_goes_home(tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    settings = LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["q", "v"], r=2, init_lora_weights=False)
    model = get_peft_model(tiny("t5"), settings).double()
    before = weights_of(model)
    trainer = trainer_of(model, tmp_path, predict_with_generate=True)
    trainer.compute_metrics = lambda found: {"late": float((found.predictions[:, 6:] > 0).sum())}
    trainer.train()
    changed = {name for name, weight in weights_of(model).items() if not torch.equal(weight, before[name])}
    assert changed and all("lora_" in name for name in changed)
    assert trainer.state.log_history[0]["violations_per_word"] > 0
    figures = trainer.evaluate(num_beams=3, max_length=6)
    assert figures["eval_late"] == 0 and figures["eval_loss"] > 0
    model.save_pretrained(tmp_path / "lora")
    again = PeftModel.from_pretrained(tiny("t5"), tmp_path / "lora").double()
    ids = torch.tensor([[4, 5, 6, 7]])
    expected = model.eval().generate(input_ids=ids, num_beams=3, max_new_tokens=5)
    assert torch.equal(again.eval().generate(input_ids=ids, num_beams=3, max_new_tokens=5), expected)


@pytest.mark.parametrize("left", [False, True])
def test_a_collators_batch_is_prompt_and_gold(left: bool) -> None:
    """Padding on either side; the labels of a causal prompt are -100."""
    model = adapt(tiny("gpt2"))
    made = collated(rows(causal=True))
    if left:
        made = {name: tensor.flip(1) for name, tensor in made.items()}
        for name, tensor in made.items():
            for row, example in enumerate(EXAMPLES):
                length = len(example.source) + len(example.target)
                tensor[row, -length:] = tensor[row, -length:].flip(0)
            made[name] = tensor
    found, expected = batch_of(made, model), make_batch(EXAMPLES, specials=model.specials)
    for name in ("source_BS", "source_length_B", "target_BT", "target_length_B"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    made["labels"] = made["input_ids"]
    assert "a row without a prompt" in refusal(batch_of, made, model, error=DataError)


def test_a_dialogue_in_one_row_and_a_row_that_is_too_long_are_refused() -> None:
    """Of the former the first turn alone would be trained."""
    model = adapt(tiny("gpt2", n_positions=6))
    ids = torch.tensor([[4, 5, 6, 3, 7, 8, EOS]])
    turns = {"input_ids": ids, "labels": torch.tensor([[-100, 5, 6, 3, -100, 8, EOS]])}
    assert "labels go on after tokens with -100; a row is one prompt" in refusal(
        batch_of, turns, model, error=DataError
    )
    whole = {"input_ids": ids, "labels": torch.tensor([[-100, 5, 6, 7, 7, 8, EOS]])}
    assert batch_of(whole, model).target_length_B.tolist() == [6]
    longer = {name: torch.cat([tensor[:, :1], tensor], 1) for name, tensor in whole.items()}
    found = refusal(batch_of, longer, model, error=DataError)
    assert "a sentence of 7 tokens; gpt2 has 6 positions" in found


def test_labels_with_a_gap_are_refused() -> None:
    """Without it the tokens around the gap would become neighbours; padding on either side is none."""
    model = adapt(tiny("bart"))
    inputs = {"input_ids": torch.tensor([[4, 5]]), "labels": torch.tensor([[-100, 4, -100, 8, EOS, -100]])}
    found = refusal(batch_of, inputs, model, error=DataError)
    assert "the label -100 between two others; gold is one sequence" in found
    inputs["labels"] = torch.tensor([[-100, 4, 8, EOS, -100]])
    assert batch_of(inputs, model).target_BT.tolist() == [[4, 8, EOS]]


def test_labels_with_a_gap_are_refused_in_the_first_batch_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(tiny("bart"), tmp_path)
    monkeypatch.setattr(devices, "host_may_look", lambda _: False)
    trainer.train_dataset = [{**row, "labels": [4, -100, *row["labels"]]} for row in trainer.train_dataset]
    assert "the label -100 between two others" in refusal(trainer.train, error=DataError)


def test_gold_without_its_end_is_refused_where_no_loss_looks_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU."""
    trainer = trainer_of(tiny("gpt2"), tmp_path)
    monkeypatch.setattr(devices, "host_may_look", lambda _: False)
    whole = [{name: ids[:-1] for name, ids in row.items()} for row in trainer.train_dataset]
    trainer.train_dataset = whole
    assert "gold without the end symbol (id 3)" in refusal(trainer.train, error=DataError)


def test_outputs_of_a_causal_model_are_evaluated_after_the_prompt_alone(tmp_path: Path) -> None:
    """Without gold in what `generate` reads, and without the prompt in what it gives."""
    model = tiny("gpt2")
    trainer, found = trainer_of(model, tmp_path, predict_with_generate=True), []
    trainer.compute_metrics = lambda given: found.append(given) or {}
    figures = trainer.evaluate(num_beams=2, max_new_tokens=3, pad_token_id=0)
    for row, gold, example in zip(found[0].predictions, found[0].label_ids, EXAMPLES, strict=False):
        ids = torch.tensor([example.source])
        alone = model.generate(ids, attention_mask=torch.ones_like(ids), num_beams=2, max_new_tokens=3)
        output = alone[0, len(example.source) :].tolist()
        assert row[: len(output)].tolist() == output and not row[len(output) :].clip(0).any()
        assert [token for token in gold.tolist() if token != -100] == [*example.target]
    with torch.no_grad():
        loss = float(model(**collated(rows(causal=True)[:2])).loss)
    assert figures["eval_loss"] == pytest.approx(loss)


def test_a_model_that_the_trainer_makes_is_trained(tmp_path: Path) -> None:
    from transformers import Seq2SeqTrainingArguments

    data: Any = rows(causal=False)
    arguments = Seq2SeqTrainingArguments(str(tmp_path), max_steps=1, report_to=[], save_strategy="no", use_cpu=True)
    trainer = huggingface.SearchTrainer(
        args=arguments, model_init=lambda: tiny("t5"), loss=LOSS, train_dataset=data, data_collator=collated
    )
    trainer.train()
    assert not torch.equal(trainer.model.shared.weight, tiny("t5").shared.weight)


def test_a_resumed_training_ends_with_the_weights_of_one_that_was_never_stopped(tmp_path: Path) -> None:
    """With dropout, and a beam that grows with the epochs."""
    from transformers import Seq2SeqTrainingArguments

    data: Any = rows(causal=False)
    loss, found = Bso(ANYTHING, 3, rule=LogprobSum()), []
    for resumed in (None, str(tmp_path / "checkpoint-3")):
        model = tiny("t5", dropout_rate=0.3)
        arguments = Seq2SeqTrainingArguments(
            str(tmp_path), max_steps=4, per_device_train_batch_size=2, save_steps=3, report_to=[], use_cpu=True,
            disable_tqdm=True, learning_rate=0.01,
        )  # fmt: skip
        trainer = huggingface.SearchTrainer(model, arguments, loss=loss, train_dataset=data, data_collator=collated)
        trainer.train(resume_from_checkpoint=resumed)
        found.append(weights_of(model))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_a_beam_that_does_not_grow_to_its_size_and_rows_without_labels_are_reported(tmp_path: Path) -> None:
    trainer = trainer_of(tiny("t5"), tmp_path, loss=Bso(ANYTHING, 4, rule=LogprobSum()))
    with pytest.warns(UserWarning, match="with 2 epochs the training beam ends at 2, not at train_beam = 4"):
        trainer.train()
    trainer.data_collator = lambda features: collated(features) | {"labels": None}
    assert "a training batch without labels" in refusal(trainer.train, error=DataError)


def test_a_copy_of_a_trained_model_has_weights_of_its_own(tmp_path: Path) -> None:
    model = tiny("t5")
    trainer_of(model, tmp_path)
    again, inputs = copy.deepcopy(model), collated(rows(causal=False))
    with torch.no_grad():
        model.shared.weight.zero_()
    assert torch.equal(again(**inputs).logits, tiny("t5")(**inputs).logits)


def test_arguments_that_do_not_reach_the_loss_are_refused(tmp_path: Path) -> None:
    from transformers import Seq2SeqTrainingArguments, TrainingArguments

    from argbeam.huggingface.trainer import _check_arguments

    def refused(**more: Any) -> str:
        return refusal(trainer_of, tiny("gpt2"), tmp_path, error=ConfigError, **more)

    assert "label_smoothing_factor = 0.1: it is that of Trainer's own" in refused(label_smoothing_factor=0.1)
    assert "neftune_noise_alpha = 5.0: it is noise" in refused(neftune_noise_alpha=5.0)
    plain = TrainingArguments(str(tmp_path), use_cpu=True)
    call = lambda **more: huggingface.SearchTrainer(tiny("gpt2"), plain, loss=LOSS, **more)  # noqa: E731
    assert "args is a TrainingArguments; accepted: Seq2SeqTrainingArguments" in refusal(call, error=ConfigError)
    with pytest.warns(UserWarning, match="gradient_checkpointing has no effect"):
        _check_arguments(Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, gradient_checkpointing=True), {})
    call = lambda: _check_arguments(Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True), {"compute_loss_func": len})  # noqa: E731
    assert "SearchTrainer takes loss alone" in refusal(call, error=ConfigError)


def test_a_batch_of_an_encoder_decoder_asks_nothing_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its widths are the collator's, rounded up; otherwise it is the batch that a CPU makes."""
    model, inputs = adapt(tiny("bart")), collated(rows(causal=False))
    expected = batch_of(inputs, model, multiple=8)
    monkeypatch.setattr(devices, "host_may_look", lambda _: False)
    with TapeRecorder().record() as tape:
        found = batch_of(inputs, model, multiple=8)
    tape.replay()
    assert found.shape == (4, 8, 8)
    for name in ("source_BS", "source_length_B", "target_BT", "target_length_B"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


def test_labels_lose_the_decoder_prompt_and_what_follows_the_end() -> None:
    model = adapt(tiny("mbart"), decoder_prompt=(EOS, 7))
    inputs = {"input_ids": torch.tensor([[4, 5]]), "labels": torch.tensor([[7, 4, 8, EOS, 7, -100]])}
    batch = batch_of(inputs, model)
    assert batch.target_BT[0, : int(batch.target_length_B)].tolist() == [4, 8, EOS]


def test_a_loss_with_weights_of_its_own_is_refused() -> None:
    call = lambda: huggingface.SearchTrainer(tiny("gpt2"), loss=Mixer(ANYTHING, Baseline(8)))  # noqa: E731
    assert "has weights of its own" in refusal(call, error=ConfigError)
    assert "transformers" in sys.modules
