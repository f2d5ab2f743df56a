"""Corpora are found by their layout, the paper's own first; what is missing is named with its origin and licence."""

import lzma
import re
from pathlib import Path

import pytest

from argbeam.reproduce.corpora import SPLITS, Corpus, FoundCorpora, find_corpora
from argbeam.reproduce.experiments import EXPERIMENTS, Experiment, System
from argbeam.reproduce.plan import make_plan
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import load_recipe, shipped_recipes
from iwslt_files import write_iwslt

UD = [f"ud-english/{bank}-{split}.conllu" for bank in ("ewt", "gum") for split in SPLITS]
MULTI30K = [f"multi30k-de-en/{split}.{side}" for split in SPLITS for side in ("de", "en")]
TATOEBA = [f"tatoeba-de-en/{split}.tsv" for split in SPLITS]
PTB = ["ptb/02-21.conllx", "ptb/22.conllx", "ptb/23.conllx"]


def found_in(root: Path, *names: str) -> FoundCorpora:
    """What is found under `root` when it holds empty files of these names."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return find_corpora(str(root), root / "prepared")


def recipe_on(corpus: Corpus, name: str) -> Recipe:
    """The recipe as it is planned on the corpus, its stages put together again."""
    experiment = Experiment("one", "One", "any", "test", (System("system", name),))
    runs = make_plan([experiment], {"any": corpus}, seeds=[1], folder=Path("runs")).runs
    stages = {stage: settings for run in runs for stage, settings in run.recipe.stages.items()}
    return runs[-1].recipe.model_copy(update={"stages": stages, "start": ""})


def test_the_open_corpora_are_found_as_the_recipes_name_them(tmp_path: Path) -> None:
    """With `.xz` on every name, recipes read what they read by themselves under the same root."""
    files = (f"{name}.xz" for name in (*UD, *MULTI30K, *TATOEBA))
    found = found_in(tmp_path, *files, "vectors/en-300d.vec.xz")
    names = {"parsing": "ud-english", "word_ordering": "ud-english", "translation": "multi30k", "tatoeba": "tatoeba"}
    assert {kind: corpus.name for kind, corpus in found.corpora.items()} == names
    for kind in ("word_ordering", "parsing", "translation"):
        plain = load_recipe(shipped_recipes()[f"{kind}/seq2seq"], [f"data.root={tmp_path}"])
        assert recipe_on(found.corpora[kind], f"{kind}/seq2seq") == plain


def test_corpora_under_constraints_are_found_with_their_lists(tmp_path: Path) -> None:
    pairs = [f"{name}/{split}.tsv.xz" for name in ("nl-rx-turk", "uspto-50k", "anselm") for split in SPLITS]
    items = [f"amazon-semantic-ids/{name}" for name in ("office.sequences.txt.xz", "office.items.tsv.xz")]
    found = found_in(tmp_path, *pairs, *items)
    assert found.missing["anselm"][0].startswith("Anselm: anselm/words.txt not found; from github.com/coastalcph")
    found = found_in(tmp_path, "anselm/words.txt")
    assert set(found.corpora) == {"regex", "anselm", "uspto", "office"}
    for kind in ("regex", "uspto", "office"):
        plain = load_recipe(shipped_recipes()[f"constraints/{kind}_cross_entropy"], [f"data.root={tmp_path}"])
        assert recipe_on(found.corpora[kind], f"constraints/{kind}_cross_entropy") == plain
    anselm = recipe_on(found.corpora["anselm"], "constraints/anselm_conbso")
    assert getattr(anselm.task, "constraint").file == "anselm/words.txt"  # noqa: B009 - of one kind of task


def test_plain_files_do_as_well(tmp_path: Path) -> None:
    recipe = recipe_on(found_in(tmp_path, *TATOEBA).corpora["tatoeba"], "translation/bso_01")
    assert recipe.data.model_dump()["train"] == ["tatoeba-de-en/train.tsv"]
    assert (recipe.text.tokenizer, recipe.stages["bso"].epochs) == ("moses", 12)


def test_parsing_without_vectors_says_so(tmp_path: Path) -> None:
    corpus = found_in(tmp_path, *UD).corpora["parsing"]
    assert corpus.notes == ("no file in vectors/: parsing starts from random word vectors",)
    assert recipe_on(corpus, "parsing/bso").model.vectors == ""


@pytest.mark.parametrize(
    "names",
    [
        PTB,
        ["02-21.conllx.gz", "22.conllx.gz", "23.conllx.gz"],
        [f"ptb/wsj_{section:02}.conllx" for section in range(25)],
        ["ptb/02-11.conllx", "ptb/12-21.conllx", "ptb/22.conllx.xz", "ptb/23.conllx", "ptb/00.conllx"],
    ],
)
def test_sections_of_the_penn_treebank_are_splits(tmp_path: Path, names: list[str]) -> None:
    """02 to 21 train, 22 develops, 23 tests; sections 00, 01 and 24 belong to none."""
    found = found_in(tmp_path, *names)
    corpus = found.corpora["parsing"]
    recipe = recipe_on(corpus, "parsing/conbso")
    data = recipe.data.model_dump()
    assert (corpus.name, data["kind"], data["root"]) == ("ptb", "conllx", str(tmp_path))

    def sections(split: str) -> list[int]:
        ranges = [re.findall(r"[0-9]{2}", Path(name).name) for name in data[split]]
        return [number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)]

    assert sections("train") == list(range(2, 22))
    assert (sections("dev"), sections("test")) == ([22], [23])
    assert all((tmp_path / name).is_file() for split in SPLITS for name in data[split])
    assert getattr(recipe.task, "punctuation", "") == "ptb"
    assert (recipe.stages["pretrain"].epochs, recipe.stages["bso"].epochs) == (5, 16)
    # The words of the trees do for word ordering where there is no plain text.
    assert recipe_on(found.corpora["word_ordering"], "word_ordering/bso").data.kind == "conllx"


def test_plain_text_goes_before_the_words_of_trees(tmp_path: Path) -> None:
    found = found_in(tmp_path, *PTB, *(name.replace(".conllx", ".txt") for name in PTB))
    data = recipe_on(found.corpora["word_ordering"], "word_ordering/bso").data.model_dump()
    assert (data["kind"], data["train"], data["test"]) == ("text", ["ptb/02-21.txt"], ["ptb/23.txt"])


def test_the_papers_corpus_goes_before_its_stand_in(tmp_path: Path) -> None:
    write_iwslt(tmp_path / "de-en", ending=".xz", pack=lzma.compress)
    found = found_in(tmp_path, *UD, *MULTI30K, *PTB).corpora
    assert (found["parsing"].name, found["translation"].name) == ("ptb", "iwslt14")
    assert found["translation"].prepare == str(tmp_path / "de-en")
    recipe = recipe_on(found["translation"], "translation/bso")
    assert recipe.data.model_dump()["root"] == str(tmp_path / "prepared" / "iwslt14")
    assert (recipe.model.dropout, recipe.stages["pretrain"].epochs) == (0.2, 3)


def test_what_is_missing_is_named_with_its_origin_and_licence(tmp_path: Path) -> None:
    found = found_in(tmp_path, *PTB[:2], *MULTI30K[1:])
    assert found.corpora == {}
    trees, ud = found.missing["parsing"]
    assert trees == (
        "Penn Treebank, CoNLL-X with Stanford Dependencies, sections 02-21, 22, 23: ptb/23.conllx not found; "
        "from LDC, catalogue number LDC99T42; licensed by the LDC"
    )
    assert ud.endswith(
        "ud-english/ewt-train.conllu, ud-english/gum-train.conllu, ud-english/ewt-dev.conllu and 3 more not found; "
        "from github.com/UniversalDependencies, UD_English-EWT and UD_English-GUM; "
        "EWT CC BY-SA 4.0, GUM CC BY-NC-SA 4.0"
    )
    iwslt, multi30k = found.missing["translation"]
    assert "wit3" in iwslt and "CC BY-NC-ND 4.0" in iwslt
    assert "multi30k-de-en/train.de not found" in multi30k


def test_part_of_a_distribution_is_not_the_corpus(tmp_path: Path) -> None:
    write_iwslt(tmp_path)
    (tmp_path / "IWSLT14.TED.tst2011.de-en.de.xml").unlink()
    found = found_in(tmp_path)
    assert "translation" not in found.corpora
    assert "IWSLT14.TED.tst2011.de-en.de.xml not found" in found.missing["translation"][0]


def test_the_generated_corpus_does_for_every_table_and_recipe() -> None:
    found = find_corpora("generated", Path("prepared"))
    assert set(found.corpora) == {"office", *(one.corpus for one in EXPERIMENTS)}
    for name in shipped_recipes():
        # Text under a constraint has no generated stand-in.
        if not name.startswith(("demo/", "constraints/regex", "constraints/anselm", "constraints/uspto")):
            recipe = recipe_on(found.corpora["translation"], name)
            assert recipe.data.kind == "generated" and getattr(recipe.model, "vectors", "") == ""
            assert {stage.epochs for stage in recipe.stages.values()} == {3}
