"""Compare the n best of our search with those of `generate`: all families, open and fixed length, length penalties.

    python tools/compare_generate.py --cases 500

Models are tiny, from their configuration, with random weights in float64. A case is a source, a beam of 2, 3 or 5, a
length limit of 5 or 12, the length penalty 0 or 1, and one end symbol, two, or none (fixed length). It is equal if all
outputs of the beam are, in the same order.
"""

import argparse
import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import logging as transformers_logging

from argbeam import Example, LogprobSum, StopBest, Unconstrained, beam_search, make_batch
from argbeam.huggingface import adapt

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from tiny_transformers import FAMILIES, VOCABULARY, tiny

Outputs = list[tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """What is drawn for a number; two sources have the same settings."""

    number: int
    family: str
    beam: int
    power: float
    limit: int
    fixed: bool
    ends: list[int]
    sources: list[tuple[int, ...]]

    @staticmethod
    def draw(number: int) -> "Case":
        rng = random.Random(number)
        family, beam = rng.choice(list(FAMILIES)), rng.choice([2, 3, 5])
        power, limit, fixed = float(rng.choice([0, 1])), rng.choice([5, 12]), rng.random() < 0.3
        ends = [3] if rng.random() < 0.7 else [3, 6]
        sources = [tuple(rng.randrange(4, VOCABULARY) for _ in range(rng.randrange(1, 6))) for _ in range(2)]
        return Case(number, family, beam, power, limit, fixed, ends, sources)

    def network(self) -> Any:
        network = tiny(self.family, seed=self.number)
        network.generation_config.eos_token_id = network.config.eos_token_id = self.ends
        return network


def ours(case: Case, network: Any) -> list[Outputs]:
    model = adapt(network)
    batch = make_batch([Example(source, (), i) for i, source in enumerate(case.sources)], specials=model.specials)
    found = beam_search(
        model, model.encode(batch, None), Unconstrained(VOCABULARY, end_symbol=not case.fixed).start(batch),
        beam_size=case.beam, length_B=torch.full((len(case.sources),), case.limit), steps=case.limit,
        rule=LogprobSum(case.power), stop=None if case.fixed else StopBest(cut_off=True), n_best=case.beam,
        specials=model.specials,
    )  # fmt: skip
    pairs = zip(found.tokens_BNT.tolist(), found.length_BN.tolist(), strict=True)
    return [[tuple(row[:length]) for row, length in zip(*pair, strict=True) if length] for pair in pairs]


def theirs(case: Case, network: Any) -> list[Outputs]:
    barred = [*adapt(network).specials.unwritten, *(case.ends if case.fixed else [])]
    found = []
    for source in case.sources:
        ids = torch.tensor([source])
        out = network.generate(
            ids, attention_mask=torch.ones_like(ids), num_beams=case.beam, num_return_sequences=case.beam,
            max_new_tokens=case.limit, do_sample=False, early_stopping="never", length_penalty=case.power,
            suppress_tokens=barred,
        )  # fmt: skip
        read = 1 if network.config.is_encoder_decoder else len(source)
        found.append([cut(row[read:], [] if case.fixed else case.ends) for row in out.tolist()])
    return found


def cut(row: list[int], ends: list[int]) -> tuple[int, ...]:
    end = next((place for place, token in enumerate(row) if token in ends), len(row) - 1)
    return tuple(row[: end + 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=500)
    asked = parser.parse_args()
    transformers_logging.set_verbosity_error()
    counts, equal = Counter[str](), Counter[str]()
    for number in range((asked.cases + 1) // 2):
        case = Case.draw(number)
        network = case.network()
        kind = f"{'fixed' if case.fixed else 'open'} length, length penalty {case.power:g}"
        for source, own, other in zip(case.sources, ours(case, network), theirs(case, network), strict=True):
            counts[kind] += 1
            equal[kind] += own == other
            if own != other:
                print(f"{case}, source {source}\n  ours   {own}\n  theirs {other}")
    for kind in sorted(counts):
        print(f"{kind}: {equal[kind]} of {counts[kind]} equal")
    print(f"all: {equal.total()} of {counts.total()} equal")


if __name__ == "__main__":
    main()
