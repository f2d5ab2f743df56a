"""`SearchTrainer`: a loss of argbeam in transformers' own training, accumulated, with LoRA and by two processes."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from argbeam import huggingface
from argbeam.data.batches import Example, make_batch
from argbeam.data.vocabulary import EOS
from argbeam.errors import ConfigError, DataError
from argbeam.huggingface import adapt, labels
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
    trainer = trainer_of(model, tmp_path, size=2, accumulate=2)
    trainer.train()
    assert trainer.captured.failure is None and [tape.replays for tape in recorder.tapes] == [3]
    torch.testing.assert_close(weights_of(model), by_hand(tiny("t5")), rtol=1e-6, atol=1e-6)
    assert trainer.state.log_history[0]["violations_per_word"] > 0


def train_in_group(folder: str) -> None:
    """By DDP, and with the weights of layers split over the processes (FSDP2)."""
    whole, split = tiny("t5"), tiny("t5")
    trainer = trainer_of(whole, Path(folder), size=2)
    trainer.train()
    log, rank = trainer.state.log_history[-2], torch.distributed.get_rank()
    trainer = trainer_of(split, Path(folder), size=2)
    for module in [module for module in split.modules() if type(module).__name__ == "T5Block"]:
        fully_shard(module)
    fully_shard(split)
    inputs = collated(rows(causal=False)[2 * rank : 2 * rank + 2])
    for update in range(2):
        trainer.state.global_step = update
        trainer.compute_loss(split, inputs, num_items_in_batch=torch.tensor(4)).backward()
        with torch.no_grad():
            for weight in split.parameters():
                weight -= 0.1 * weight.grad
                weight.grad = None
    gathered = {name: weight.full_tensor().detach() for name, weight in split.named_parameters()}
    if rank == 0:
        Path(folder, "log.json").write_text(json.dumps(log))
        for name, weights in (("ddp", weights_of(whole)), ("fsdp", gathered)):
            found = {key: weight.tolist() for key, weight in weights.items()}
            Path(folder, f"{name}.json").write_text(json.dumps(found))


def test_two_processes_train_as_one_with_the_same_batch_with_whole_and_split_weights(tmp_path: Path) -> None:
    in_group(2, tmp_path, train_in_group, str(tmp_path), forked=True)
    trainer, alone = trainer_of(tiny("t5"), tmp_path), by_hand(tiny("t5"))
    trainer.train()
    log, expected = json.loads((tmp_path / "log.json").read_text()), trainer.state.log_history[-2]
    for name in ("loss", "violations_per_word", "gold_on_beam_per_sentence"):
        assert log[name] == pytest.approx(expected[name])
    for name in ("ddp", "fsdp"):
        found = json.loads((tmp_path / f"{name}.json").read_text())
        for key, weight in alone.items():
            torch.testing.assert_close(torch.tensor(found[key], dtype=torch.float64), weight, rtol=1e-6, atol=1e-6)


def test_split_weights_of_a_causal_model_are_refused(tmp_path: Path) -> None:
    """FSDP frees a layer's weights after its backward pass, and the keys of the prompt need them once more."""
    from transformers import Seq2SeqTrainingArguments

    from argbeam.huggingface import SearchTrainer

    class Split(SearchTrainer):
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            self.is_fsdp_enabled = True

    arguments = Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True)
    message = refusal(lambda: Split(tiny("llama"), arguments, loss=LOSS), error=ConfigError)
    assert message == "FSDP with LlamaForCausalLM; accepted: an encoder-decoder, or one copy of the weights per process"


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


def test_a_batch_of_an_encoder_decoder_asks_nothing_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its widths are the collator's, rounded up; otherwise it is the batch that a CPU makes."""
    model, inputs = adapt(tiny("bart")), collated(rows(causal=False))
    expected = batch_of(inputs, model, multiple=8)
    monkeypatch.setattr(labels, "host_may_look", lambda _: False)
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


def test_a_loss_with_weights_of_its_own_is_refused(tmp_path: Path) -> None:
    call = lambda: huggingface.SearchTrainer(tiny("gpt2"), loss=Mixer(ANYTHING, Baseline(8)))  # noqa: E731
    assert "has weights of its own" in refusal(call, error=ConfigError)
    assert "transformers" in sys.modules
