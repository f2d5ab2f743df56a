"""Train a small T5 on Multi30k through `SearchTrainer`, cross-entropy and then BSO, and decode by plain `generate`.

    python tools/t5_multi30k.py --data multi30k-de-en --out t5.jsonl --seed 1

The data folder has {train,dev,test}.{de,en}.xz, one tokenised sentence a line. The T5 has random weights, 3 + 3 layers
of 256, and a vocabulary of the words that occur twice. Settings are those of the recipe
transformer/translation_bso_logprob, but for the optimizer, which is T5's own. Each stage ends with averaged weights.
The model is saved, opened by `from_pretrained` and decoded with beams 1, 5 and 10, with the length penalty, 0 or 1,
that is better on dev at beam 5. One line of JSON for each model and beam. With `--more EPOCHS` cross-entropy also goes
on from where BSO began, at BSO's rate and batches: what longer training alone is worth.

The defaults are for a GPU. On two CPU cores, in about two hours (an epoch of BSO takes 15 minutes):

    python tools/t5_multi30k.py --data multi30k-de-en --minutes 300 --epochs 8 --batch 64 --warmup 400 --dropout 0.1 \\
        --bso-epochs 2 --start-beam 6 --more 2
"""

import argparse
import json
import lzma
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    PreTrainedTokenizerFast,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    TrainerCallback,
    set_seed,
)
from transformers import logging as transformers_logging

from argbeam import Bso, CrossEntropy, LogprobSum, Unconstrained
from argbeam.huggingface import SearchTrainer
from argbeam.losses.contract import Loss
from argbeam.metrics.bleu import corpus_bleu

Pairs = Sequence[tuple[str, str]]
PAD, END, UNKNOWN = 0, 1, 2
BEAMS, LONGEST = (1, 5, 10), 50
AVERAGE = 0.999


@dataclass(frozen=True)
class Stage:
    """Settings of a stage's training."""

    name: str
    loss: Loss
    epochs: int
    batch: int
    rate: float
    warmup: int
    schedule: str
    weight_decay: float = 0.0


class Average(TrainerCallback):
    """An exponential average of the weights, which the model takes over at the end."""

    def __init__(self, model: torch.nn.Module, until: float) -> None:
        self.weights = list(model.parameters())
        self.averages: list[torch.Tensor] = []
        self.until = until

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.averages = [weight.detach().clone() for weight in self.weights]  # the trainer has moved the model by now

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        # Early averages would be of the start: the decay grows to its value, as in 1 - 1 / updates.
        decay = min(AVERAGE, state.global_step / (10 + state.global_step))
        torch._foreach_lerp_(self.averages, [weight.data for weight in self.weights], 1 - decay)
        control.should_training_stop |= time.time() > self.until

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        for weight, average in zip(self.weights, self.averages, strict=True):
            weight.data.copy_(average)


def read(folder: Path, split: str, most: int | None) -> Pairs:
    sides = []
    for side in ("de", "en"):
        with lzma.open(folder / f"{split}.{side}.xz", "rt", encoding="utf-8") as file:
            sides.append([line.strip() for line in file][:most])
    return list(zip(*sides, strict=True))


def word_tokenizer(data: Pairs) -> PreTrainedTokenizerFast:
    """Whole words of both languages that occur twice; every text ends in the end symbol, as T5's do."""
    counts = Counter(word for pair in data for text in pair for word in text.split())
    words = sorted(word for word, count in counts.items() if count > 1)
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", END)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def t5(tokenizer: PreTrainedTokenizerFast, *, tiny: bool, dropout: float) -> T5ForConditionalGeneration:
    sizes = {"d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 3, "num_heads": 4}
    if tiny:
        sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    ids = {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD}
    return T5ForConditionalGeneration(T5Config(**sizes, **ids, vocab_size=len(tokenizer), dropout_rate=dropout))


def padded(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def collate(rows: Sequence[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    ids = padded([row["input_ids"] for row in rows], PAD)
    return {"input_ids": ids, "attention_mask": ids != PAD, "labels": padded([row["labels"] for row in rows], -100)}


def adafactor(model: Any, stage: Stage) -> torch.optim.Adafactor:
    """T5's own optimizer, whose updates are a share of each weight's size.

    Word vectors of a T5 start with a deviation of 1, queries with 0.008: at one rate for all, as AdamW has, either the
    first hardly learn or attention never does.
    """
    weights = list(model.parameters())
    return torch.optim.Adafactor(weights, lr=stage.rate, weight_decay=stage.weight_decay, foreach=weights[0].is_cuda)


def train(model: Any, rows: list[dict[str, list[int]]], stage: Stage, *, seed: int, until: float) -> dict[str, Any]:
    """One stage of `SearchTrainer`; its speed, and what stood in the way of CUDA graphs."""
    arguments = Seq2SeqTrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=stage.batch, num_train_epochs=stage.epochs, seed=seed,
        warmup_steps=stage.warmup, lr_scheduler_type=stage.schedule, max_grad_norm=1.0,
        train_sampling_strategy="group_by_length", report_to=[],
        save_strategy="no", logging_strategy="epoch", logging_nan_inf_filter=False, disable_tqdm=True,
        accelerator_config={"non_blocking": True},
    )  # fmt: skip
    average = Average(model, until)
    data: Any = rows
    optimizer = adafactor(model.to(arguments.device), stage)
    trainer = SearchTrainer(
        model, arguments, loss=stage.loss, train_dataset=data, data_collator=collate, callbacks=[average],
        optimizers=(optimizer, None),
    )  # fmt: skip
    start = time.time()
    trainer.train()
    seconds, updates, graphs = time.time() - start, trainer.state.global_step, trainer.captured.graphs
    return {
        "stage": stage.name, "seconds": round(seconds, 1), "updates": updates,
        "epochs": round(trainer.state.epoch or 0.0, 2), "ms_per_update": round(1000 * seconds / updates, 1),
        "graphs": None if graphs is None else graphs.statistics(),
        "log": [entry for entry in trainer.state.log_history if "loss" in entry][-1:],
    }  # fmt: skip


@torch.no_grad()
def bleu_of(model: Any, tokenizer: Any, data: Pairs, *, beam: int, penalty: float, batch: int = 256) -> float:
    """BLEU of the outputs of plain `generate`; sentences in the order of their lengths."""
    device = model.device
    order = sorted(range(len(data)), key=lambda i: len(data[i][0].split()))
    texts = [""] * len(data)
    for start in range(0, len(order), batch):
        some = order[start : start + batch]
        ids = padded([tokenizer(data[i][0])["input_ids"] for i in some], PAD).to(device)
        found = model.generate(
            ids, attention_mask=(ids != PAD).long(), num_beams=beam, length_penalty=penalty, max_new_tokens=LONGEST,
            do_sample=False,
        )  # fmt: skip
        for i, row in zip(some, found[:, 1:].tolist(), strict=True):
            row = row[: row.index(END)] if END in row else row
            # An unknown word stays: it is a token that no reference has.
            texts[i] = " ".join(tokenizer.convert_ids_to_tokens([token for token in row if token != PAD]))
    return corpus_bleu(texts, [target for _, target in data], tokenize="none").score


def evaluate(model: Any, tokenizer: Any, dev: Pairs, test: Pairs) -> list[dict[str, Any]]:
    """The saved model, as anyone would use it."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        plain = T5ForConditionalGeneration.from_pretrained(folder).to(model.device).eval()
    by_penalty = {penalty: bleu_of(plain, tokenizer, dev, beam=5, penalty=penalty) for penalty in (0.0, 1.0)}
    penalty = max(by_penalty, key=lambda value: by_penalty[value])
    found = []
    for beam in BEAMS:
        on_dev, on_test = (bleu_of(plain, tokenizer, data, beam=beam, penalty=penalty) for data in (dev, test))
        row = {"beam": beam, "length_penalty": penalty, "dev": round(on_dev, 2), "test": round(on_test, 2)}
        found.append(row | ({"dev_by_length_penalty": by_penalty} if beam == 5 else {}))
    return found


def stages_of(asked: argparse.Namespace, vocabulary: int) -> list[Stage]:
    plain, constant = CrossEntropy(label_smoothing=0.1), "constant_with_warmup"
    bso = Bso(
        Unconstrained(vocabulary, end_symbol=True), 6, start_beam=asked.start_beam, epochs_per_beam=1,
        rule=LogprobSum(), margin_per_token=0.5,
    )  # fmt: skip
    stages = [
        Stage("cross-entropy", plain, asked.epochs, asked.batch, asked.rate, asked.warmup, "cosine", 0.01),
        Stage("BSO", bso, asked.bso_epochs, 64, asked.bso_rate, 400, constant),
        Stage("more cross-entropy", plain, asked.more, 64, asked.bso_rate, 400, constant),
    ]
    return [stage for stage in stages if stage.epochs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of Multi30k")
    parser.add_argument("--out", help="a file for the lines of JSON, beside standard output")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=25, help="of cross-entropy")
    parser.add_argument("--batch", type=int, default=128, help="of cross-entropy")
    parser.add_argument("--warmup", type=int, default=800, help="updates of cross-entropy")
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--rate", type=float, default=0.01, help="of cross-entropy, as a share of a weight's size")
    parser.add_argument("--bso-epochs", type=int, default=8)
    parser.add_argument("--bso-rate", type=float, default=0.005)
    parser.add_argument("--start-beam", type=int, default=2, help="of BSO; it grows by one each epoch, up to 6")
    parser.add_argument("--more", type=int, default=0, help="epochs of cross-entropy after cross-entropy, without BSO")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all; training ends in time for decoding")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on a few sentences")
    asked = parser.parse_args()
    begun = time.time()
    warnings.simplefilter("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_float32_matmul_precision("high")
    set_seed(asked.seed)
    limits = {"train": 200, "dev": 12, "test": 12} if asked.tiny else dict.fromkeys(("train", "dev", "test"))
    train_data, dev, test = (read(asked.data, split, most) for split, most in limits.items())
    tokenizer = word_tokenizer(train_data)
    rows = [
        {"input_ids": tokenizer(source)["input_ids"], "labels": tokenizer(target)["input_ids"]}
        for source, target in train_data
        if max(len(source.split()), len(target.split())) < LONGEST
    ]
    model = t5(tokenizer, tiny=asked.tiny, dropout=asked.dropout)
    # The last decoding takes about a sixth of the time.
    ends = {"cross-entropy": begun + 36 * asked.minutes}
    after_first: dict[str, torch.Tensor] = {}
    for stage in stages_of(asked, len(tokenizer)):
        if after_first:
            model.load_state_dict(after_first)
        until = ends.get(stage.name, begun + 50 * asked.minutes)
        report = train(model, rows, stage, seed=asked.seed, until=until)
        after_first = after_first or {name: weight.clone() for name, weight in model.state_dict().items()}
        start = time.time()
        scores = evaluate(model, tokenizer, dev, test)
        report |= {"decoding_seconds": round(time.time() - start, 1)}
        lines = [{"seed": asked.seed, "model": stage.name, **row} for row in scores]
        for line in [{"seed": asked.seed, **report}, *lines]:
            print(json.dumps(line), flush=True)
            if asked.out:
                with Path(asked.out).open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
