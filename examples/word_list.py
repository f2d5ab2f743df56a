"""A list of words as a constraint: a search, in training and in decoding, that can only write words of the list.

The task is to restore misspelled names of chemical elements. `python examples/word_list.py` takes about 10 seconds on
one core and prints, with and without the list, how many outputs are right and how many are names at all.
"""

import random
from collections.abc import Sequence

import torch

from argbeam import Adagrad, Bso, CrossEntropy, Example, Trie, Unconstrained, Vocabulary, beam_search, make_batch
from argbeam.data.vocabulary import EOS
from argbeam.losses.contract import Loss
from argbeam.models import LstmSeq2Seq
from argbeam.search.successors import Successors
from own_decoder import train

NAMES = (
    *("hydrogen", "helium", "lithium", "boron", "carbon", "nitrogen", "oxygen", "neon", "sodium", "silicon", "sulfur"),
    *("chlorine", "argon", "calcium", "titanium", "chromium", "iron", "cobalt", "nickel", "copper", "zinc", "gallium"),
    *("arsenic", "selenium", "bromine", "krypton", "rubidium", "silver", "cadmium", "indium", "tin", "antimony"),
    *("iodine", "xenon", "barium", "tungsten", "osmium", "iridium", "platinum", "gold", "mercury", "lead", "bismuth"),
    *("radon", "radium", "thorium", "uranium"),
)
LETTERS = Vocabulary.build(NAMES, min_count=1)


def misspelled(number: int, *, seed: int) -> list[Example]:
    """Names of the list with a quarter of their letters replaced, and the names themselves, ended."""
    rng = random.Random(seed)
    made = []
    for sentence in range(number):
        name = rng.choice(NAMES)
        typed = [rng.choice("abcdefghilmnoprstuy") if rng.random() < 0.25 else letter for letter in name]
        made.append(Example(tuple(LETTERS.encode(typed)), (*LETTERS.encode(name), EOS), sentence))
    return made


def decode(model: LstmSeq2Seq, loss: Loss, successors: Successors, data: Sequence[Example]) -> list[str]:
    """Outputs of a beam of 5, at most 12 letters long."""
    batch = make_batch(data)
    found = beam_search(
        model,
        model.encode(batch, None),
        successors.start(batch),
        beam_size=5,
        length_B=torch.full_like(batch.target_length_B, 12),
        steps=12,
        rule=loss.rule,
        stop=loss.stop,
    )
    return ["".join(LETTERS.decode(n for n in row if n > EOS)) for row in found.tokens_BNT[:, 0].tolist()]


def main() -> dict[str, dict[str, float]]:
    """The right outputs and the outputs in the list, as parts of all, by system."""
    data, held_out = misspelled(1500, seed=1), misspelled(500, seed=2)
    anything = Unconstrained(len(LETTERS), end_symbol=True)
    trie = Trie.of(map(LETTERS.encode, NAMES), vocabulary=len(LETTERS))
    model = LstmSeq2Seq(
        source_vocabulary=len(LETTERS),
        target_vocabulary=len(LETTERS),
        layers=1,
        hidden=48,
        embedding=24,
        dropout=0.0,
    )
    model.initialise(bound=0.1, generator=torch.Generator().manual_seed(0))
    results = {}

    def report(name: str, loss: Loss, successors: Successors) -> None:
        outputs = decode(model, loss, successors, held_out)
        gold = ["".join(LETTERS.decode(example.target[:-1])) for example in held_out]
        results[name] = {
            "right": sum(a == b for a, b in zip(outputs, gold, strict=True)) / len(gold),
            "in the list": sum(output in NAMES for output in outputs) / len(outputs),
        }
        print(f"{name:22}  " + "  ".join(f"{what}: {part:.1%}" for what, part in results[name].items()))

    cross_entropy, bso = CrossEntropy(), Bso(trie, train_beam=6, epochs_per_beam=1)
    weights = list(model.parameters())
    optimizer = Adagrad({"all": weights}, rates={"all": 0.1}, max_norm=5.0)
    train(model, cross_entropy, data, optimizer, epochs=5)
    report("cross-entropy", cross_entropy, anything)
    report("cross-entropy, trie", cross_entropy, trie)
    optimizer = Adagrad({"all": weights}, rates={"all": 0.05}, max_norm=5.0)
    train(model, bso, data, optimizer, epochs=12)
    report("BSO, trie", bso, trie)
    return results


if __name__ == "__main__":
    main()
