"""A `Trainer` of transformers whose training loss is one of argbeam's.

The loss is computed inside of the wrapped module's `forward`: DDP and FSDP exchange gradients there and nowhere else.
This module is imported at its first use, and transformers with it.
"""

import functools
import warnings
from collections.abc import Mapping
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from argbeam.data.batches import Batch
from argbeam.errors import ConfigError, DataError, counted
from argbeam.huggingface.captured_loss import CapturedLoss
from argbeam.huggingface.labels import ROUND, batch_of, check_gaps, prompts_of
from argbeam.losses.bso import Bso
from argbeam.losses.contract import Loss, LossOutput, StepLoss
from argbeam.losses.crf import Crf
from argbeam.losses.mrt import Mrt
from argbeam.models.huggingface.adapt import adapt
from argbeam.models.noise import Noise
from argbeam.runtime import device as devices
from argbeam.search.successors import check_gold
from argbeam.settings import Runtime
from argbeam.training.epoch_record import replay_warning

# Arguments of `Trainer` that would not reach a loss of argbeam, and why.
_UNREACHED = {
    "label_smoothing_factor": "is that of Trainer's own loss",
    "neftune_noise_alpha": "is noise that search and replay would not share",
    "torch_compile": "compiles no search; CUDA graphs take its place",
}
# Sums of the loss that `Trainer` logs, divided by those beside them.
_LOGGED = {"violations": "words", "gold_on_beam": "sentences", "risk": "sentences"}


class SearchTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` with a loss of argbeam: `SearchTrainer(model, args, loss=Bso(...), ...)`.

    Batches are those of transformers: `input_ids`, `attention_mask` and `labels` of an encoder-decoder; of a causal
    model prompt and completion in one row, the prompt's labels -100. The sum of the loss over an update, in all
    processes and accumulated batches, is divided by its sentences. Evaluation is that of `Seq2SeqTrainer`:
    cross-entropy, and outputs of `generate` with `predict_with_generate`, of a causal model after the prompt alone.
    Dropout of hidden units is drawn by argbeam, at the model's own rates: search and replay see one network.

    On CUDA loss and gradients are one graph per batch shape, unless `capture` is false or weights are split over
    processes.
    """

    loss_is_scaled_for_ga = True

    def __init__(self, model: Any = None, args: Any = None, *, loss: Loss, capture: bool = True, **others: Any) -> None:
        if loss.weights is not None:
            raise ConfigError(f"{type(loss).__name__} has weights of its own; SearchTrainer takes losses without any")
        _check_arguments(args, others)
        super().__init__(model, args, **others)
        if self.args.n_gpu > 1:
            raise ConfigError(
                f"{self.args.n_gpu} GPUs in one process: start one process per GPU (torchrun, accelerate launch), or "
                "set CUDA_VISIBLE_DEVICES to one"
            )
        self.loss, self.capture = loss, capture
        self.sums: dict[str, Tensor] = {}
        self.update = self.micro_batches = 0
        self._adapt(self.model)

    def call_model_init(self, trial: Any = None) -> Any:
        """Every start of training may make a model."""
        model = super().call_model_init(trial)
        if hasattr(self, "adapted"):
            self._adapt(model)
        return model

    def _adapt(self, network: Any) -> None:
        self.adapted = adapt(network, self.processing_class)
        self.adapted.prompt_again = self.is_fsdp_enabled
        wanted = Runtime(capture=self.capture and not (self.is_fsdp_enabled or self.is_deepspeed_enabled))
        self.captured = CapturedLoss(self.adapted, devices.make_recorder(wanted, self.args.device))
        _compute_loss_in_forward(network, self.captured)

    def compute_loss(
        self, model: Any, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if return_outputs or num_items_in_batch is None:
            return super().compute_loss(model, dict(inputs), return_outputs)
        batch = batch_of(inputs, self.adapted, multiple=1 if self.captured.graphs is None else ROUND)
        processes, rank = self.accelerator.num_processes, self.accelerator.process_index
        if self.update != self.state.global_step:
            self.update, self.micro_batches = self.state.global_step, 0
        if self.update == self.micro_batches == 0:
            _warn_of_beam(self.loss, epochs=int(self.state.num_train_epochs))
            # On a GPU nothing else looks at gold: mistakes that all rows have show in the first batch.
            check_gaps(inputs["labels"])
            if isinstance(self.loss, Bso | Crf | Mrt):
                check_gold(self.loss.successors, batch, open_length=self.loss.open_length)
        # Every sentence of an update draws other numbers, as in one batch of all of them.
        sentence_B = batch.sentence_B + len(batch.sentence_B) * (rank + processes * self.micro_batches)
        self.micro_batches += 1
        # Filled on the device: a copy from the host would wait for it.
        update = torch.full((), self.update, device=sentence_B.device)
        noise, batch = Noise(self.args.seed, update, sentence_B), replace(batch, sentence_B=sentence_B)
        step = self.loss.at(int(self.state.epoch or 0))
        total, sums = model(search_loss=step, search_batch=batch, search_noise=noise)
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0) + value
        # DDP averages gradients over processes.
        return total * (processes / num_items_in_batch)

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None, **options: Any
    ) -> Any:
        """Outputs of a causal model follow its prompts, without the gold that is in the same rows, and come alone."""
        generates = self.args.predict_with_generate and not prediction_loss_only
        if self.adapted.crosses or not generates or "labels" not in inputs:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys, **options)
        inputs = self._prepare_inputs(inputs)
        loss, _, _ = super().prediction_step(model, dict(inputs), True, ignore_keys)
        prompts = prompts_of(inputs, self.adapted)
        _, outputs, _ = super().prediction_step(model, prompts, False, ignore_keys, **options)
        return loss, outputs[:, prompts["input_ids"].shape[1] :], inputs["labels"]

    def log(self, logs: dict[str, float], *more: Any, **others: Any) -> None:
        """With violations, gold's share of beams or risks of the loss, and a warning where the replay differs."""
        sums: dict[str, float] = {}
        if self.sums:
            found = self.accelerator.reduce(torch.stack([value.sum() for value in self.sums.values()]), "sum")
            sums = dict(zip(self.sums, found.tolist(), strict=True))
        self.sums = {}
        for part, whole in _LOGGED.items():
            if part in sums:
                logs[f"{part}_per_{whole.removesuffix('s')}"] = sums[part] / max(1.0, sums[whole])
        failure = self.captured.failure
        captured = None if failure is None else f"the loss runs without CUDA graphs: {failure}"
        for warning in (replay_warning(sums), captured):
            if warning is not None:
                warnings.warn(warning, stacklevel=2)
        super().log(logs, *more, **others)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | None:
        """The sentences of an update, in all processes and accumulated batches."""
        if not batch_samples or batch_samples[0].get("labels") is None:
            raise DataError("a training batch without labels; SearchTrainer needs gold sequences")
        count = torch.full((), sum(len(batch["labels"]) for batch in batch_samples), device=device)
        return self.accelerator.gather(count).sum()  # type: ignore[no-any-return]


def _check_arguments(arguments: Any, others: Mapping[str, Any]) -> None:
    """Raise a ConfigError for what `Trainer` would do and a loss of argbeam would not."""
    if not isinstance(arguments, Seq2SeqTrainingArguments):
        found = type(arguments).__name__
        raise ConfigError(f"args is a {found}; accepted: Seq2SeqTrainingArguments")
    for name, why in _UNREACHED.items():
        if getattr(arguments, name):
            raise ConfigError(f"{name} = {getattr(arguments, name)}: it {why}; leave it out")
    if others.get("compute_loss_func") is not None:
        raise ConfigError("compute_loss_func and loss; SearchTrainer takes loss alone")
    if arguments.gradient_checkpointing:
        warnings.warn("gradient_checkpointing has no effect in losses of argbeam: memory is not saved", stacklevel=3)


def _warn_of_beam(loss: Loss, *, epochs: int) -> None:
    """Warn of a beam that has not grown to its size when training ends."""
    last, most = loss.at(max(0, epochs - 1)).beam, getattr(loss, "train_beam", 0)
    if last < most:
        warnings.warn(
            f"with {counted(epochs, 'epoch')} the training beam ends at {last}, not at train_beam = {most}: "
            f"start_beam = {most} begins with all of it",
            stacklevel=3,
        )


def _compute_loss_in_forward(model: nn.Module, captured: CapturedLoss) -> None:
    """Let `model(search_loss=...)` compute a loss of argbeam; every other call is the model's own."""
    # A second trainer of the model takes the first one's place.
    changed = vars(model).get("forward")
    changed, own = getattr(changed, "_changed", changed), type(model).forward

    @functools.wraps(own)
    def forward(
        self: nn.Module,
        *positional: Any,
        search_loss: StepLoss | None = None,
        search_batch: Batch | None = None,
        search_noise: Noise | None = None,
        **named: Any,
    ) -> Any:
        if search_loss is None or search_batch is None or search_noise is None:
            return own(self, *positional, **named) if changed is None else changed(*positional, **named)
        out: LossOutput = captured(search_loss, search_batch, search_noise)
        return out.total, dict(out.sums)

    forward._changed = changed  # type: ignore[attr-defined]
    model.forward = MethodType(forward, model)  # a copy of the model gets a method of its own
