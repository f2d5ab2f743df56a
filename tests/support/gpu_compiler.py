"""Compiles the kernels of training and decoding for a GPU that is not there; prints the shared memory of each, in JSON.

Run as a program: `gpu_compiler.py 90 232448`, for compute capability 9.0 with so many bytes of shared memory. Steps of
small models run on the CPU with their kernels compiled and not launched: what a kernel would write is zero.
"""

import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import argbeam
from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import EOS
from argbeam.losses import Bso
from argbeam.models import LstmSeq2Seq, Transformer
from argbeam.models.contract import Network
from argbeam.models.noise import Noise
from argbeam.runtime import device as devices
from argbeam.search.constraints.automaton import compile_grammar
from argbeam.search.constraints.grammar import Spelling
from argbeam.search.constraints.notations import regular_expression
from argbeam.search.constraints.pushdown import Pushdown
from argbeam.search.constraints.trie import Trie
from argbeam.search.score_rules import LogprobSum, ScoreSum
from argbeam.search.search import Search, SearchSettings
from argbeam.search.stop_rules import StopBest
from argbeam.search.successors import Permutation, Unconstrained
from argbeam.training.optimizer import Adagrad

VOCABULARY, LETTERS, SOURCE, TARGET = 5000, "abcdef", (4, 5, 6, 7, 8), (6, 4, 8, 7, 5)


class Driver:
    """As much of a GPU's driver as compiling asks for."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0


class Compiled:
    """The shared memory of each kernel that was compiled, the most of all its versions."""

    def __init__(self) -> None:
        self.shared: dict[str, int] = {}
        self._compile = JITFunction.run

    def run(self, kernel: Any, *given: Any, warmup: bool, **named: Any) -> Any:
        compiled = self._compile(kernel, *given, warmup=True, **named)
        name = kernel.fn.__name__
        self.shared[name] = max(compiled.metadata.shared, self.shared.get(name, 0))
        return compiled


def launched() -> set[str]:
    """The kernels of argbeam that no other kernel calls."""
    names = [module.name for module in pkgutil.walk_packages(argbeam.__path__, "argbeam.")]
    modules = [importlib.import_module(name) for name in names if name.endswith("_kernel")]
    sources = {f.fn.__name__: f.src for module in modules for f in vars(module).values() if isinstance(f, JITFunction)}
    called = {word for name, source in sources.items() for word in re.findall(r"\w+", source) if word != name}
    return sources.keys() - called


def zeros(made: Any) -> Any:
    return lambda *given, **named: made(*given, **named).zero_()


def no_gpu(capability: int, shared_memory: int, compiled: Compiled) -> ExitStack:
    """A GPU as argbeam sees it."""
    driver.set_active(Driver(capability))
    stack = ExitStack()
    for place, name, value in (
        (JITFunction, "run", lambda *given, **named: compiled.run(*given, **named)),
        (devices, "kernels_usable", lambda *tensors: all(t.dtype in devices._KERNEL_DTYPES for t in tensors)),
        (devices, "host_may_look", lambda _: False),
        (torch, "empty", zeros(torch.empty)),
        (torch, "empty_like", zeros(torch.empty_like)),
        (Tensor, "new_empty", zeros(Tensor.new_empty)),
    ):
        stack.enter_context(patch.object(place, name, value))
    for module in list(sys.modules.values()):
        if hasattr(module, "shared_memory"):
            stack.enter_context(patch.object(module, "shared_memory", lambda _: shared_memory))
    return stack


def losses() -> Iterator[Bso]:
    plain = Bso(Unconstrained(VOCABULARY, end_symbol=True), 5, start_beam=5)
    yield plain
    yield replace(plain, rule=ScoreSum())
    yield replace(plain, rule=LogprobSum(), margin_per_token=0.5)
    yield Bso(Permutation(), 5, open_length=False, start_beam=5)
    yield replace(plain, successors=Trie.of([TARGET, SOURCE], vocabulary=VOCABULARY))
    spelling = Spelling(("",) * 4 + tuple(LETTERS) + ("",) * (VOCABULARY - 4 - len(LETTERS)), spaced=False, whole=False)
    yield replace(plain, successors=Pushdown(compile_grammar(regular_expression("[a-f]*", spelling)), depth=1))


def train(model: Network, loss: Bso, batch: Batch) -> None:
    noise = Noise(1, torch.tensor(1), batch.sentence_B)
    loss.at(0)(model, batch, noise).total.backward()
    parameters = [p for p in model.parameters() if p.grad is not None]
    Adagrad({"all": parameters}, rates={"all": 0.1}, max_norm=5.0).step([p.grad for p in parameters])
    model.zero_grad()


def decode(model: Network, loss: Bso, batch: Batch) -> None:
    settings = SearchSettings(5, loss.rule, StopBest() if loss.open_length else None, end_early=False)
    Search(model, loss.successors, settings)(batch, batch.target_length_B, steps=batch.target_BT.shape[1])


def main(capability: int, shared_memory: int) -> None:
    torch.set_float32_matmul_precision("high")
    sizes = {"source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY, "layers": 1, "dropout": 0.2}
    models: list[Network] = [
        LstmSeq2Seq(hidden=256, embedding=256, **sizes),
        Transformer(hidden=256, heads=4, feed_forward=512, **sizes),
    ]
    compiled = Compiled()
    with no_gpu(capability, shared_memory, compiled):
        for model in models:
            model.initialise(bound=0.1, generator=torch.Generator().manual_seed(1))
            for loss in losses():
                target = (*TARGET, EOS) if loss.open_length else TARGET
                # The last has rows for larger blocks, and one constraint is enough for it.
                for sentences in (2, 512) if isinstance(loss.successors, Permutation) else (2,):
                    batch = make_batch([Example(SOURCE, target, number) for number in range(sentences)])
                    train(model, loss, batch)
                    decode(model, loss, batch)
    print(json.dumps({name: compiled.shared.get(name) for name in sorted(launched())}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
