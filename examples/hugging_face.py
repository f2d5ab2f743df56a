"""Hugging Face models trained for beam search: a T5, a causal model with a prompt, LoRA, and a trie.

Small models from their configuration and a generated translation task: nothing is downloaded. With a model of yours,
`AutoModelForSeq2SeqLM.from_pretrained(...)` and its tokenizer take their places. It takes about five minutes on one
core and prints BLEU of 100 outputs of plain `generate`, after cross-entropy and after BSO.
"""

import sys
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from argbeam import Bso, CrossEntropy, LogprobSum, Noise, Unconstrained, make_batch
from argbeam.data.generated.corpus import splits
from argbeam.huggingface import SearchTrainer, Texts, adapt, search_by
from argbeam.losses.contract import Loss
from argbeam.metrics.bleu import corpus_bleu
from argbeam.search.constraints.trie import Trie

Pairs = Sequence[tuple[str, str]]
WIDTH, LONGEST = 64, 40  # of the models, of outputs


def pairs(train: int, test: int) -> tuple[Pairs, Pairs]:
    """Source and target sentences of the generated translation task, with a small lexicon."""
    parts = splits(1, train=train, dev=0, test=test, types=200)
    made = {name: [(" ".join(s.words), " ".join(s.translation)) for s in part] for name, part in parts.items()}
    return made["train"], made["test"]


def word_tokenizer(data: Pairs, *, ends: bool) -> Any:
    """A tokenizer of whole words; `ends`: every text ends in the end symbol, as T5's do."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for pair in data for text in pair for word in text.split()})
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", "=>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", padding_side="left"
    )


def small_t5(tokenizer: Any) -> Any:
    """A T5 of two and two layers, from its configuration."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(1)
    sizes = {"d_model": WIDTH, "d_kv": WIDTH // 4, "d_ff": 2 * WIDTH, "num_layers": 2, "num_heads": 4}
    ids = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    return T5ForConditionalGeneration(T5Config(**sizes, **ids, dropout_rate=0.0))


def small_gpt2(tokenizer: Any) -> Any:
    """A GPT-2 of two layers, from its configuration."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    ids = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    return GPT2LMHeadModel(GPT2Config(n_embd=WIDTH, n_layer=2, n_head=4, n_positions=128, **ids))


def fine_tune(network: Any, tokenizer: Any, data: Pairs, loss: Loss, *, epochs: int, rate: float) -> None:
    """The library in fifteen lines: any loss of argbeam trains the network."""
    model = adapt(network, tokenizer)
    texts = Texts(tokenizer, model)
    examples = [texts.example(source, target, i) for i, (source, target) in enumerate(data)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for epoch in range(epochs):
        for start in range(0, len(examples), 32):
            batch = make_batch(examples[start : start + 32], specials=model.specials)
            noise = Noise(1, torch.tensor(epoch * len(examples) + start), batch.sentence_B)  # of dropout
            out = loss.at(epoch)(model, batch, noise)
            optimizer.zero_grad()
            (out.total / len(batch.sentence_B)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


def bleu_of(network: Any, tokenizer: Any, data: Pairs, *, prompt: str = "", **options: Any) -> float:
    """BLEU of the outputs of `generate`, beam 5."""
    sources = tokenizer([source + prompt for source, _ in data], return_tensors="pt", padding=True)
    asked = {"input_ids": sources["input_ids"], "attention_mask": sources["attention_mask"]}
    out = network.eval().generate(**asked, num_beams=5, max_new_tokens=LONGEST, length_penalty=0.0, **options)
    out = out if network.config.is_encoder_decoder else out[:, asked["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(out, skip_special_tokens=True)
    return corpus_bleu(texts, [target for _, target in data], tokenize="none").score


def bso(tokenizer: Any) -> Bso:
    """BSO with sums of log-probabilities: plain `generate` decodes what it trains."""
    return Bso(Unconstrained(len(tokenizer), end_symbol=True), 5, start_beam=5, rule=LogprobSum())


def t5(train: Pairs, test: Pairs, *, epochs: int) -> dict[str, float]:
    """Cross-entropy, then BSO; the saved model is an ordinary T5."""
    from transformers import T5ForConditionalGeneration

    tokenizer = word_tokenizer(train, ends=True)
    network = small_t5(tokenizer)
    fine_tune(network, tokenizer, train, CrossEntropy(), epochs=4 * epochs, rate=3e-3)
    before = bleu_of(network, tokenizer, test)
    fine_tune(network, tokenizer, train, bso(tokenizer), epochs=epochs, rate=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        network.save_pretrained(folder)
        after = bleu_of(T5ForConditionalGeneration.from_pretrained(folder), tokenizer, test)
    ours = bleu_of(network, tokenizer, test, custom_generate=search_by())
    return {"cross-entropy": before, "BSO": after, "BSO by argbeam's search": ours}


def causal(train: Pairs, test: Pairs, *, epochs: int, lora: bool) -> dict[str, float]:
    """A prompt `source =>` and its completion, trained by `SearchTrainer`; with `lora` only adapters are trained."""
    from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainingArguments

    tokenizer = word_tokenizer(train, ends=False)
    network = small_gpt2(tokenizer)
    prompted = [(source + " =>", target) for source, target in train]
    fine_tune(network, tokenizer, prompted, CrossEntropy(), epochs=4 * epochs, rate=3e-3)
    before = bleu_of(network, tokenizer, test, prompt=" =>")
    if lora:
        from peft import LoraConfig, get_peft_model

        network = get_peft_model(network, LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True))
    rows = []
    for source, target in prompted:
        prompt, gold = tokenizer(source)["input_ids"], [*tokenizer(target)["input_ids"], tokenizer.eos_token_id]
        rows.append({"input_ids": prompt + gold, "labels": [-100] * len(prompt) + gold})
    with tempfile.TemporaryDirectory() as folder:
        arguments = Seq2SeqTrainingArguments(
            folder, per_device_train_batch_size=32, num_train_epochs=epochs, learning_rate=1e-3, report_to=[],
            save_strategy="no", disable_tqdm=True, logging_strategy="no", use_cpu=True,
        )  # fmt: skip
        collator = DataCollatorForSeq2Seq(tokenizer)
        SearchTrainer(network, arguments, loss=bso(tokenizer), train_dataset=rows, data_collator=collator).train()  # type: ignore[arg-type]
    return {"cross-entropy": before, "BSO": bleu_of(network, tokenizer, test, prompt=" =>")}


def trie(train: Pairs, test: Pairs, *, epochs: int) -> dict[str, float]:
    """Outputs that can only be targets of a list, in training (ConBSO) and in `generate`."""
    tokenizer = word_tokenizer((*train, *test), ends=True)
    network = small_t5(tokenizer)
    fine_tune(network, tokenizer, train, CrossEntropy(), epochs=2 * epochs, rate=3e-3)
    targets = {target for _, target in (*train, *test)}
    entries = [tokenizer(target, add_special_tokens=False)["input_ids"] for target in sorted(targets)]
    successors = Trie.of(entries, vocabulary=len(tokenizer), specials=adapt(network).specials)
    free, listed = bleu_of(network, tokenizer, test), {"custom_generate": search_by(successors)}
    before = bleu_of(network, tokenizer, test, **listed)
    conbso = Bso(successors, 5, start_beam=5, rule=LogprobSum())
    fine_tune(network, tokenizer, train, conbso, epochs=epochs, rate=1e-3)
    after = bleu_of(network, tokenizer, test, **listed)
    return {"cross-entropy": free, "cross-entropy under the trie": before, "ConBSO under the trie": after}


def main(*, sentences: int = 1000, tests: int = 100, epochs: int = 4) -> dict[str, dict[str, float]]:
    from transformers import logging

    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    train, test = pairs(sentences, tests)
    found = {
        "T5": t5(train, test, epochs=epochs),
        "GPT-2 with a prompt": causal(train, test, epochs=epochs, lora=False),
        "GPT-2 with LoRA": causal(train, test, epochs=epochs, lora=True),
        "T5 under a trie": trie(train, test, epochs=epochs),
    }
    for name, figures in found.items():
        print(name, *(f"{system} {bleu:.1f}" for system, bleu in figures.items()), sep="\n  ", file=sys.stdout)
    return found


if __name__ == "__main__":
    main()
