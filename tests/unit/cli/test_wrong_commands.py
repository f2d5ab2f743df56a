"""Two hundred wrong commands: one line of error each, exit code 2, no traceback, and nothing left behind."""

import gzip
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from command import Command, write_recipe
from small_runs import finish, one_epoch

VERBS = ("demo", "train", "decode", "evaluate", "reproduce", "report", "inspect", "bench", "recipes", "settings")
TREE = "1\ta\t_\tNOUN\tNN\t_\t{}\troot\t_\t_\n2\tb\t_\tNOUN\tNN\t_\t{}\tx\t_\t_\n\n"
BEAMS = "accepted: whole numbers from 1 to 10000, such as 1,5,10"
UNSET = "an empty name; is a variable of the shell not set?"

# Each is a command and what its error says; three dots stand for any text.
USAGE = [
    ("trian", "unknown verb trian; did you mean train?"),
    ("zzz", "unknown verb zzz; accepted: demo, train, decode, ..."),
    ("''", "unknown verb ...; accepted: demo, ..."),
    ("--beam 5", "unknown option --beam; accepted: --version, ..."),
    ("-x", "unknown option -x; accepted: --version, ..."),
    ("--version=1", "--version: it takes no value"),
    *((f"{verb} --nonsense", f"{verb}: unknown option --nonsense; ...") for verb in VERBS),
    ("train demo/bso --otu run", "train: unknown option --otu; did you mean --out?"),
    ("decode run --nbest 2", "decode: unknown option --nbest; did you mean --n-best?"),
    ("train", "train: RECIPE is missing; an example: argbeam train ..."),
    ("train demo/bso", "train: --out is missing; an example: argbeam train ..."),
    ("decode", "decode: RUN is missing; an example: argbeam decode ..."),
    ("evaluate", "evaluate: RUN is missing; an example: argbeam evaluate ..."),
    ("report --out x", "report: RUN... is missing; an example: argbeam report ..."),
    ("report run", "report: --out is missing; ..."),
    ("inspect", "inspect: RUN is missing; an example: argbeam inspect ..."),
    ("inspect r --split all", "--split all: accepted: train, dev, test"),
    ("inspect r --line x --input in", "--input and --line: one of them is accepted"),
    ("inspect r --line x --split dev", "--split dev and --line: one of them is accepted"),
    ("inspect r --input in --split test", "--split test and --input: one of them is accepted"),
    ("inspect r --beam 0", f"--beam 0: {BEAMS}"),
    ("inspect r --gold gold.txt", "--gold: a split has gold of its own; accepted with --input or --line"),
    ("inspect r --line x --gold g --gold-line x", "--gold and --gold-line: one of them is accepted"),
    ("inspect r --line x --gold-line x --gold-line y", "2 lines of gold for 1 sentence; one a sentence is expected"),
    ("inspect r --line x --gold empty", "0 lines of gold for 1 sentence; one a sentence is expected"),
    ("inspect r --limit 0", "--limit 0: accepted: a whole number at least 1"),
    ("reproduce --out x", "reproduce: --data is missing; ..."),
    ("reproduce --data generated", "reproduce: --out is missing; ..."),
    ("demo x", "demo: unexpected argument x; `argbeam demo -h` lists what is accepted"),
    ("train a b --out x", "train: unexpected argument b; ..."),
    ("decode a b c", "decode: unexpected argument b c; ..."),
    ("evaluate a b", "evaluate: unexpected argument b; ..."),
    ("recipes a b", "recipes: unexpected argument b; ..."),
    ("settings a", "settings: unexpected argument a; ..."),
    ("bench a", "bench: unexpected argument a; ..."),
    *((f"demo {name}", f"{name}: a value is missing after it") for name in ("--out", "--seed")),
    *((f"train demo/bso {name}", f"{name}: a value is missing after it") for name in ("--out", "--set", "--data")),
    *((f"decode r {n}", f"{n}: a value is missing after it") for n in ("--input", "--output", "--beam", "--trace")),
    *((f"evaluate r {n}", f"{n}: a value is missing after it") for n in ("--split", "--beam", "--against")),
    *((f"decode r {name}=1", f"{name}: it takes no value") for name in ("--scores", "--conll", "--json")),
    ("evaluate r --no-keep=yes", "--no-keep: it takes no value"),
    ("reproduce --dry-run=1", "--dry-run: it takes no value"),
    *(
        (f"demo --seed={text}", f"--seed {text}: accepted: a whole number from 0 to 9223372036854775807")
        for text in ("x", "-1", "1.5", "1e3", "", "9" * 19, "\uff19")
    ),
    *((f"decode r --beam={b}", f"--beam {b}: accepted: a whole number from 0 to 10000") for b in ("x", "-1", "10001")),
    *((f"decode r --n-best={b}", f"--n-best {b}: accepted: a whole number from 1 to 10000") for b in ("0", "", "2.0")),
    *(
        (f"evaluate r --beam={text}", f"--beam {text}: {BEAMS}")
        for text in ("0", "1,x", "", "-1", "1,,2", "1.5", "all")
    ),
    *((f"evaluate r --split={text}", f"--split {text}: accepted: dev, test") for text in ("train", "tset", "")),
    *((f"reproduce --data g --out o --seeds={n}", f"--seeds {n}: accepted: ... at least 1") for n in ("0", "x")),
    *((f"reproduce --data g --out o --jobs={n}", f"--jobs {n}: accepted: ... at least 0") for n in ("-1", "x")),
    *(
        (f"bench --{n}=0", f"--{n} 0: accepted: ...")
        for n in ("batch", "source", "target", "vocab", "layers", "hidden")
    ),
    ("bench --model gru", "model gru: accepted: lstm, transformer, transformer_lm"),
    ("bench --hidden 99999999999", "bench: hidden = 99999999999: must be at least 1 and at most 1000000"),
    ("bench --layers 1001", "bench: layers = 1001: must be at least 1 and at most 1000"),
    (
        "bench --model transformer --hidden 300000",
        "bench: feed_forward = 1200000: must be at least 1 and at most 1000000",
    ),
    ("bench --rounds 1", "--rounds 1: accepted: a whole number at least 2"),
    ("bench --device gpu", "device gpu: accepted: cpu, cuda, auto"),
    ("bench --beams 0", f"--beams 0: {BEAMS}"),
    ("bench --test-beams ''", f"--test-beams : {BEAMS}"),
    ("train '' --out x", f"RECIPE: {UNSET}"),
    ("train demo/bso --out ''", f"--out: {UNSET}"),
    ("train demo/bso --out x --data ''", f"--data: {UNSET}"),
    ("train small/translation_bso --out x --data empty", "--data empty: a file; the folder of the files that ..."),
    ("decode ''", f"RUN: {UNSET}"),
    *((f"decode r {name} ''", f"{name}: {UNSET}") for name in ("--input", "--output", "--trace")),
    ("evaluate r --against ''", f"--against: {UNSET}"),
    ("report a '' --out x", f"RUN: {UNSET}"),
    ("serve r --host ''", f"--host: {UNSET}"),  # an empty address would listen at all of them
    ("demo --out ''", f"--out: {UNSET}"),
]
RECIPES = [
    ("recipes demo/bos", "demo/bos: neither a file nor a shipped recipe; did you mean demo/bso? ..."),
    ("recipes demo/bso --out x", "recipes: unknown option --out; accepted: none"),
    (
        "recipes parsing",
        "parsing: neither a file nor a shipped recipe; shipped in parsing: parsing/bso, parsing/conbso, parsing/crf, "
        "parsing/seq2seq; `argbeam recipes` lists all",
    ),
    ("recipes ''", "...neither a file nor a shipped recipe; ..."),
    (
        "train demo/bos --out x",
        "demo/bos: neither a file nor a shipped recipe; did you mean demo/bso? `argbeam recipes` lists all",
    ),
    ("train demo/bso --out x --data .", "--data .: demo/bso reads no files; its data is generated"),
    ("train . --out x", ".: neither a file nor a shipped recipe; ..."),
    ("train pipe --out x", "pipe: neither a file nor a shipped recipe; ..."),
    ("train empty --out x", "empty: missing key name, a string (and 3 more)"),
    ("train binary --out x", "binary: byte 0 is not UTF-8; a TOML file is expected"),
    ("train text --out x", "text:1: not TOML: ..."),
    (
        "train {recipe} --out x --set model.dropout=1.0",
        "--set: model.dropout = 1.0: must be at least 0 and less than 1",
    ),
    (
        "train {recipe} --out x --set stages.pretrain.epochs=0",
        "--set: stages.pretrain.epochs = 0: must be at least 1 ...",
    ),
    (
        "train {recipe} --out x --set text.min_length=99",
        "{recipe}: text: min_length = 99 is more than max_length = 60; ...",
    ),
    (
        "train {recipe} --out x --set decode.length_power=abc",
        '--set: decode.length_power = "abc": must be a number ...',
    ),
    ("train {recipe} --out x --data .", "--data .: {recipe} reads no files; its data is generated"),
    (
        "train {recipe} --out x --set text.min_count=1000000",
        "text.min_count = 1000000: no word ... occurs so often; ...",
    ),
    ("train word_ordering/bso --out x --data nowhere", "nowhere/...: no such file; data.train names it; --data ..."),
    (
        "train word_ordering/bso --out x --data text",
        "--data text: a file; the folder of the files that the recipe names is expected",
    ),
]
# Overrides of a recipe.
SETS = [
    ("hidden", "--set hidden: accepted: key=value, such as model.hidden=512"),
    ("=3", "--set =3: accepted: key=value, such as model.hidden=512"),
    ("model.hidden=", "--set model.hidden=: the value is neither TOML nor a bare word"),
    ("nme=x", "--set: unknown key nme; did you mean name?"),
    ("zzz=1", "--set: unknown key zzz; accepted: name, ..."),
    ("model.hiden=3", "--set: unknown key model.hiden; did you mean model.hidden?"),
    ("model.hidden=big", '--set: model.hidden = "big": found a string, accepted: ...'),
    ("model.hidden=1.5", "--set: model.hidden = 1.5: found a number, accepted: ..."),
    ("model.hidden=true", "--set: model.hidden = true: found true or false, ..."),
    ("model.hidden=0", "--set: model.hidden = 0: must be at least 1 and at most 1000000"),
    ("model.hidden=10000000", "--set: model.hidden = 10000000: must be at least 1 ..."),
    ("model.dropout=nan", "--set: model.dropout = NaN: must be a finite number"),
    ("model=3", "--set: ..."),
    ("model.hidden.x=3", "--set model.hidden.x=3: model.hidden is a whole number, ..."),
    ("model.kind=gru", '--set: model.kind = "gru": must be one of ...'),
    ("task.kind=parse", '--set: task.kind = "parse": must be one of ...'),
    ("data.kind=text", "...data.types..."),
    ("runtime.device=gpu", '--set: runtime.device = "gpu": ...; did you mean cuda?'),
    ("runtime.threads=-1", "--set: runtime.threads = -1: must be at least 0 ..."),
    ("seed=-1", "--set: seed = -1: must be at least 0 ..."),
    ("name=''", "--set name=: the value is neither TOML nor a bare word"),
    ("stages.bsoo.epochs=3", "--set ...: unknown key stages.bsoo; ..."),
    ("stages.pretrain.loss.kind=xent", '--set: stages.pretrain.loss.kind = "xent": ...'),
    ("decode.beam=0", "--set: decode.beam = 0: must be at least 1 and at most 10000"),
    ("model.hidden=1000000", "out of memory; a smaller batch ..."),
    ("data.train=0", "--set: data.train = 0: must be at least 1"),
    ("text.subwords=100", "{recipe}: text.subwords = 100: only for translation and text2text; ..."),
    ("text.max_length=1", "no training sentence is left (40 too long); ..."),
    ("start=nowhere", "nowhere: no such run folder, and no such checkpoint file"),
    ("model.vectors=gone", 'gone: no such file; model.vectors (none: "") names it'),
]
DATA = [
    ("empty", "text", "empty: an empty file; at least one line is expected"),
    ("blank", "text", "blank:2: an empty line; at least one word is expected"),
    ("binary", "text", "binary:1: not UTF-8 at byte 1 of the line (0xff); text files are UTF-8"),
    ("nul", "text", "nul:1: NUL at byte 2 of the line; text files hold none"),
    (".", "text", "cannot read .: Is a directory; a file is expected"),
    ("pipe", "text", "pipe: a pipe; it is read more than once, so a file is needed"),
    ("half.gz", "text", "half.gz: damaged or not a whole .gz file (...)"),
    ("text.gz", "text", "text.gz: damaged or not a whole .gz file (...)"),
    ("text.xz", "text", "text.xz: damaged or not a whole .xz file (...)"),
    ("x" * 300, "text", "...: no such file; data.train names it; --data DIR ..."),
    ("sparse", "text", "sparse:1: a line of more than 64 MiB; lines end in a newline"),
    ("text", "conllu", "text:1: 1 tab-separated column; a conllu line has 10"),
    ("text", "conllx", "text:1: 1 tab-separated column; a conllx line has 8 to 10"),
    ("root", "conllu", "root:2: a second root (words 1 and 2); one word has head 0"),
    ("cycle", "conllu", "cycle:1: no root in this sentence; one word has head 0"),
    ("far", "conllu", "far:2: head 9 in a sentence of 2 words; heads run from 0 (root) to 2"),
    ("ud", "conllx", 'ud:1: a comment `# sent_id =`; that is CoNLL-U: data.kind = "conllu" reads it'),
    ("ptb", "conllu", 'ptb: no tag in column 4 is a UPOS tag (one is NN), ...: data.kind = "conllx" reads it'),
    ("text", "tsv", "text:1: no column 1 in a line of 1; tab-separated columns run from 0 to 0"),
]
OUTS = [
    ("text", "text: a file; --out takes a new folder, or {0}"),
    ("text/x", "cannot write text/x: Not a directory; --out takes a folder"),
    ("x" * 300, "cannot write {long}: File name too long; --out takes a folder"),
    ("folder", "folder: neither empty nor {0}: it holds thesis.tex; --out takes a new folder, or {0}"),
    ("{ordering}/x", "{ordering}/x...: inside the run {ordering}; --out takes a folder outside of it"),
    ("/proc/x", "cannot write /proc/x...: ...; ..."),
]
RUNS = [
    *((f"{verb} gone", "gone: no such run folder, and no such checkpoint file") for verb in ("decode", "evaluate")),
    *((f"{verb} folder", "folder: not a run: recipe.json is missing; ...") for verb in ("decode", "evaluate")),
    *((f"{verb} tiny", "tiny: not a safetensors file, or altered; ...") for verb in ("decode", "evaluate")),
    ("decode text", "text: truncated: 4 bytes, its header ends later"),
    *((f"{verb} begun", "begun: holds no finished model; ...") for verb in ("decode", "evaluate")),
    *((f"{verb} broken", "...checkpoint-...: truncated: ...") for verb in ("decode", "evaluate")),
    ("decode pipe", "pipe: not a run: recipe.json is missing; ..."),
    ("decode {long}", "{long}: ..."),
    ("decode {ordering} --input gone", "cannot read gone: No such file or directory; a file is expected"),
    ("decode {ordering} --input folder", "cannot read folder: Is a directory; a file is expected"),
    ("decode {ordering} --input {long}", "cannot read {long}: File name too long; a file is expected"),
    ("decode {ordering} --input binary", "binary:1: not UTF-8 at byte 1 of the line (0xff); text files are UTF-8"),
    ("decode {ordering} --input sparse", "sparse:1: a line of more than 64 MiB; lines end in a newline"),
    ("decode {ordering} --input half.gz", "half.gz: damaged or not a whole .gz file (...)"),
    ("decode {ordering} --input text --output folder", "cannot write folder: Is a directory; a file is expected"),
    ("decode {ordering} --input text --output gone/x", "cannot write gone/x: No such file or directory; ..."),
    ("decode {ordering} --input text --output text", "--output text: is the input; another file is needed"),
    ("decode {ordering} --input text --trace text", "--trace text: is the input; another file is needed"),
    ("decode {ordering} --input text --output new --trace new", "--trace new: is the output; another file is needed"),
    ("decode {ordering} --input text --output new --trace ./new", "--trace ./new: is the output; ..."),
    ("decode {ordering} --input text --output blank --trace ./blank", "--trace ./blank: is the output; ..."),
    ("decode {ordering} --input text --trace -", "--trace -: is the output; another file is needed"),
    ("decode {ordering} --input text --trace link", "--trace link: is the input; another file is needed"),
    ("decode {ordering} --input gone --output text", "cannot read gone: No such file or directory; ..."),
    ("decode {ordering} --input text --output /dev/full", "cannot write /dev/full: No space left on device"),
    ("decode {ordering} --set model.hidden=9", "--set model.hidden=9: a trained run takes decode.*, ..."),
    ("decode {ordering} --set decode.beem=9", "--set: unknown key decode.beem; did you mean decode.beam?"),
    (
        "decode {ordering} --set decode.max_words=1 --input text",
        "text:1: 2 words; decode.max_words = 1 is the most ...",
    ),
    ("decode {ordering} --conll", "--conll: {ordering} was trained for word_ordering; a run of parsing is needed"),
    *(
        (f"decode {{parsing}} --conll {o}", "--conll with --...")
        for o in ("--scores", "--json", "--n-best 2", "--trace t")
    ),
    ("decode {parsing} --conll --input text", "text:1: 1 tab-separated column; a conllu line has 10"),
    (
        "decode {parsing} --input ud",
        "ud:2: a tab; a line holds the words of one sentence; ...",
    ),
    (
        "evaluate {bso} --set decode.length_power=1.0",
        "{bso}: ...; must be 0 with ..., the rule of the weights...",
    ),
    ("evaluate {bso} --set decode.beam=3", "--set decode.beam=3: evaluate decodes with the beams of --beam"),
    *(
        (f"{verb} {{ordering}} --data .", "data.root (--data): {ordering} reads no files; its data is generated")
        for verb in ("evaluate", "inspect")
    ),
    ("evaluate {ordering} --against {ordering}", "--against {ordering}: the same run; accepted: another one, ..."),
    ("evaluate {ordering} --against {ordering}/../ordering", "--against {ordering}/../ordering: the same run; ..."),
    ("evaluate {ordering} --beam 1 --against {parsing} --no-keep", "{ordering} and {parsing}: ..."),
    (
        "evaluate {ordering} --beam 1 --against {translation} --no-keep",
        "{ordering} and {translation}: scored on other ...",
    ),
    ("evaluate {ordering} --beam 1 --against gone --no-keep", "gone: no such run folder, and no such checkpoint file"),
    (
        "evaluate {moved} --split dev",
        "...dev.txt: no such file; data.dev names it; --data DIR says where ...",
    ),
    ("evaluate {moved} --split dev --data folder", "folder/dev.txt: no such file; data.dev names it; --data DIR ..."),
    ("evaluate {moved}", "the recipe names no test files; data.test takes a list of paths; `--split dev` needs none"),
    ("report gone --out x", "gone: no run folder: recipe.json is missing; `argbeam train` makes one"),
    ("report {ordering} {ordering} --out x", "report: {ordering} is given twice; each run is accepted once"),
    ("report {ordering} --out text", "cannot write text: ...; --out takes a folder"),
    ("report odd --out x", "odd/records.jsonl:1: damaged: device is missing; ..."),
    ("report plan --out x", "plan/plan.json: damaged: runs is missing; ..."),
    ("reproduce zzz --data generated --out x", "zzz: no such table; accepted: ..."),
    ("reproduce parsin --data generated --out x", "parsin: no such table; did you mean parsing? ..."),
    ("reproduce --data gone --out x", "--data gone: no such folder; a folder of corpora, or generated, is expected"),
    ("reproduce parsing --data folder --out x", "parsing: no corpus for it under folder: ..."),
    ("reproduce costs --data generated --out x --set zzz=1", "...unknown key zzz; ..."),
    ("reproduce costs --data generated --out {ordering}/x", "...inside the run {ordering}; ..."),
    ("reproduce costs --data generated --out text", "...text..."),
]
WRONG = [
    *USAGE,
    *RECIPES,
    *((f"train {{recipe}} --out x --set {override}", said) for override, said in SETS),
    *((f"train {{recipe}}.{kind} --out x --set 'data.train=[\"{name}\"]'", said) for name, kind, said in DATA),
    *((f"train {{recipe}} --out {out}", said.replace("{0}", "a run")) for out, said in OUTS),
    *((f"demo --out {out}", said.replace("{0}", "a demo")) for out, said in OUTS),
    *RUNS,
]
TASKS = {"text": "word_ordering", "conllu": "parsing", "conllx": "parsing", "tsv": "translation"}


@pytest.fixture(scope="module")
def folder(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files and runs with something wrong."""
    folder = tmp_path_factory.mktemp("wrong")
    write_recipe(folder).rename(folder / "tiny")
    generated = (folder / "tiny").read_text(encoding="utf-8")
    for kind, task in TASKS.items():
        text = re.sub("task = .*", f'task = {{ kind = "{task}" }}', generated)
        text = re.sub("data = .*", f'data = {{ kind = "{kind}", train = ["text"], dev = ["text"] }}', text)
        (folder / f"tiny.{kind}").write_text(text, encoding="utf-8")
    files = {"empty": b"", "binary": b"\xff\n", "text": b"a b\n", "blank": b"a\n\n", "nul": b"a\0\n"}
    files |= {"text.gz": b"a b\n", "text.xz": b"a b\n", "half.gz": gzip.compress(b"a b\n" * 99)[:-9]}
    trees = {"root": TREE.format(0, 0), "cycle": TREE.format(2, 1), "far": TREE.format(0, 9)}
    trees |= {"ud": "# sent_id = 1\n" + TREE.format(0, 1), "ptb": TREE.format(0, 1).replace("NOUN", "NN")}
    for name, data in {**files, **{name: tree.encode() for name, tree in trees.items()}}.items():
        (folder / name).write_bytes(data)
    with (folder / "sparse").open("wb") as file:
        file.truncate(65 << 20)
    (folder / "link").hardlink_to(folder / "text")
    os.mkfifo(folder / "pipe")
    for name in ("folder", "begun", "odd", "plan"):
        (folder / name).mkdir()
    (folder / "folder" / "thesis.tex").touch()
    (folder / "plan" / "plan.json").write_text("{}")
    for name in ("begun", "odd"):
        shutil.copy(runs["ordering"] / "recipe.json", folder / name)
    (folder / "odd" / "records.jsonl").write_text('{"kind": "start"}\n')
    shutil.copytree(runs["ordering"], folder / "broken")
    (model,) = (folder / "broken" / "model").iterdir()
    model.write_bytes(model.read_bytes()[:-9])
    (folder / "moved").mkdir()
    finish(one_epoch(folder / "moved", "data.test=[]"), folder / "moved run")
    (folder / "moved").rename(folder / "elsewhere")
    return folder


def listing(folder: Path) -> list[tuple[str, int]]:
    """Every file with the time of its last change."""
    return sorted((str(path), path.lstat().st_mtime_ns) for path in folder.rglob("*") if path.name != ".lock")


@pytest.mark.parametrize(("command", "said"), WRONG, ids=[f"{number}" for number in range(len(WRONG))])
def test_a_wrong_command_is_one_line_and_leaves_nothing_behind(
    argbeam: Command,
    runs: dict[str, Path],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    said: str,
) -> None:
    monkeypatch.chdir(folder)
    names = {"recipe": "tiny", "long": "x" * 300, "moved": "'moved run'", **runs}
    before = listing(folder), listing(runs["ordering"])
    done = argbeam(*shlex.split(command.format(**names)))
    assert done.returncode == 2, done
    *notes, error = done.stderr.splitlines()
    assert not notes or command.startswith("reproduce"), notes
    assert not done.stdout or "--input" in command, "only lines before a wrong one are decoded"
    expected = f"argbeam: error: {said.format(**names)}".split("...")
    assert re.fullmatch(".*".join(map(re.escape, expected)), error), error
    assert (listing(folder), listing(runs["ordering"])) == before


def test_there_are_two_hundred_of_them() -> None:
    assert len({command for command, _ in WRONG}) == len(WRONG) >= 200


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_of_output_and_trace_the_one_without_room_is_named(
    argbeam: Command, runs: dict[str, Path], folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    for full, other in (("--output", "--trace"), ("--trace", "--output")):
        written = (full, tmp_path / "full", other, tmp_path / "fine")
        done = argbeam("decode", runs["ordering"], "--input", folder / "text", *written)
        assert done.returncode == 2
        assert done.stderr == f"argbeam: error: cannot write {tmp_path / 'full'}: No space left on device\n"
