"""What users may get wrong: a wrong use ends with 2, what cannot be done with 1, each in one line."""

import re
import shlex
from pathlib import Path

import pytest

from server.cli import main as cli
from tests.server.cli.commands.runner import Told

SHORT = "--duration 2 --rate 4 --dataset-name random --random-input-len 9"
TWO = "compare --strategies vs,baton"
PROFILE = "profile TINY --executors=1 --dtype=float32 --device=cpu --max-num-seqs=2 --max-model-len=160"

FAILURES = {
    # a command -> a part of what is told; TINY is a folder with a model, HERE one with a report
    "bench --base-url http://127.0.0.1:1": "no server answers at http://127.0.0.1:1/v1/models: start one with",
    "arena --trace /no/such/file": "/no/such/file: cannot be read: No such file or directory; check its path",
    "arena --save-result HERE/page.html": "page.html, line 1: is not the JSON that is wanted",
    "bench --dataset-name jsonl --dataset-path /no/such/file": "/no/such/file",
    "bench --base-url http://127.0.0.1:1 --model m": "every warm-up request failed",
    "bench --result-dir /proc/no": "/proc/no: cannot be written",
    f"{TWO} --output HERE": "exists already: choose another folder with --output",
    f"{TWO} --output /proc/no": "/proc/no: cannot be written",
    "bench engine TINY --input-len 600": "ask for shorter ones",
    "bench engine TINY --device cuda": "--device cuda",
    "bench engine TINY --save-result /proc/nowhere/result.json": "choose another",
    "bench engine TINY --save-result /tmp": "name a file in it",
    "paper magnus --tasks missing": "missing has no file *.jsonl",
    "paper scls --trace missing.csv": "missing.csv",
    "simulate --cost profile": "no profile of this machine yet",
    f"simulate --capacity-tokens 20 --max-output-len 50 {SHORT}": "--max-input-len",
    f"simulate --capacity-tokens 9 {SHORT}": "no prompt is shorter than 9 tokens",
    "simulate --validate TINY": "run `lengthwise profile ",
    "simulate --validate /nowhere/at/all": "",
    f"{PROFILE} --max-num-seqs 1": "needs at least 2 rows",
    f"{PROFILE} --max-model-len 20": "needs at least 2 rows and 32 tokens",
    f"{PROFILE} --max-model-len 100000": "exceeds the model's context",
    "whatif --journal /nowhere/j": "there is no journal at /nowhere/j",
    "journal show --journal absent": "there is no journal at ",
    "journal show --journal HERE/report.json": "report.json is no journal: it has no table",
    "journal export --journal absent": "there is no journal at ",
    "journal prune --keep 1 --journal absent": "there is no journal at ",
    "train HERE/absent --tokenizer TINY": "absent cannot be read: No such file",
    "train": "there is no journal at",
    "models pull smollm2": "unknown model 'smollm2'; did you mean smollm2-135m-instruct?",
    "models rm org/name": "org/name is not in the cache: `lengthwise models` lists what is",
    "models rm nonsense": "nonsense is not in the cache: `lengthwise models` lists what is",
    "simulate --csv missing/file": "missing/file: cannot be written: No such file or directory; choose another",
    "simulate --report missing/file": "missing/file: cannot be written: No such file or directory; choose another",
    "simulate --save-result missing/file": "missing/file: cannot be written: No such file or directory; choose another",
    "paper baton --report missing/file": "missing/file: cannot be written: No such file or directory; choose another",
    "arena --save-result missing/file": "missing/file: cannot be written: No such file or directory; choose another",
}

MISUSES = {
    "bench --base-url nowhere": "must begin with http://",
    "bench --dataset-name jsonl": "give --dataset-path FILE, or leave --dataset-name out",
    "simulate --sweep rate=2:1:1": "2:1:1 is no range",
    "compare --strategies vs": "nothing to compare",
    f"{TWO} --dataset-name jsonl": "needs a file",
    "paper scls --experiments main,nonsense": "nonsense is none of main, ablation",
    "paper baton --trace some.csv": "leave --trace and",
    "paper ssjf --tasks folder": "--tasks is for magnus: leave it out",
    "paper magnus --aging-factor 0": "--aging-factor is for ssjf: leave it out",
    "paper magnus --tasks folder --trace a.csv": "--tasks and --trace both tell the lengths",
    "paper magnus --answers reference": "name them with --tasks",
    "simulate --strategies vs,nonsense": "nonsense is none of",
    "simulate --strategies vs --num-requests 7": "--num-requests counts only with --validate",
    "simulate --quick": "--quick counts only with --validate",
    "simulate --rhos 0.5": "--rhos counts only with --validate",
    "simulate --cost nonsense": "--cost nonsense: is no file",
    "simulate --dataset-name azure": "--dataset-path",
    "simulate --duration 2 --rate 4 --sweep seed=1,2 --save-result out.json": "with --sweep or --seeds give --csv",
    "simulate --validate TINY --strategies nonsense": "nonsense is none of",
    "compare --strategies vs,nonsense": "nonsense is none of",
    "arena --strategies vs,nonsense": "nonsense is none of",
    "train --predictor proxy --tokenizer TINY": "name files to train from",
    "strategy new ''": "cannot name a Python module",
    "strategy new My": "cannot name",
    "strategy new class": "cannot name",
    "strategy new json": "has a module json",
    "simulate --sweep rate=-1": "is not a finite number above 0",
    "simulate --prediction inverted --sweep noise=0,1": "--sweep noise and --prediction set the same",
    "simulate --rate 3 --sweep rate=1,2": "--sweep rate and --rate set the same",
    "simulate --strategies nonsense.py:X": "nonsense.py:X: there is no file nonsense.py",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, empty but for a report, with a cache of its own."""
    (tmp_path / "report.json").touch()
    (tmp_path / "page.html").write_text("<p>\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LENGTHWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")  # else one command sets it for this process
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return tmp_path


@pytest.mark.parametrize("command", FAILURES | MISUSES)
def test_what_cannot_be_done_is_told_in_one_line_before_anything_takes_long(
    command: str, folder: Path, tiny_folder: Path, told: Told
) -> None:
    words = shlex.split(command.replace("TINY", str(tiny_folder)).replace("HERE", str(folder)))
    err = told(*words, code=2 if command in MISUSES else 1)
    assert err.splitlines()[-1].startswith("lengthwise: error: "), err
    assert err.count("lengthwise: error: ") == 1 and (FAILURES | MISUSES)[command] in err
    assert err.count("\n") == 1 or command.startswith(("bench", "profile"))
    assert not [path for path in folder.iterdir() if path.suffix == ".py"]


WRONG_USES = (
    *("bench --goodput speed:1", "paper nobody", "bench --max-tokens 64", "paper scls --scale=0"),
    *("paper scls --rates=,", "paper scls --seed=-1", "simulate --strategies=,", "simulate --seed=-1"),
    *("compare --rounds 2", "compare --request-rates 1,0", "compare --request-rates fast", "compare --urls a=gpu:8000"),
    *("compare --urls http://a", "compare --extra-body []", "bench engine --rows 0", "bench engine --output-len 1"),
    *("bench engine --rounds x", "simulate --workers=0", "simulate --rate=0", "simulate --duration=inf"),
    *(f"profile --time-limit={limit}" for limit in ("0", "-1", "nan", "inf", "soon")),
    *("serve --allowed-hosts=http://a", "serve --allowed-origins=example.com", "serve --allowed-origins=http://a/"),
    *("serve --otlp-traces-endpoint=localhost:4318", "serve --served-model-name=", "gateway --journal="),
    *("serve --uds=", "whatif --kv-cache-memory 1", "whatif --no-journal", "train --sample -1", "train --trees 0"),
    *("journal prune --older-than soon", "journal show -n x", "journal export --format x"),
    *("train --holdout 1", "train --holdout x"),
)


TOLD = [
    ("serve --port x", "'x' is not a whole number"),
    ("serve --port 70000", "'70000' is not a whole number between 0 and 65535"),
    ("serve --dtype int3", "'int3' is none of auto, float32"),
    ("serve --xyzzy", "unrecognized arguments: --xyzzy\n"),
    ("serve --prot 7", "unrecognized arguments: --prot; did you mean --port?\n"),
    ("serve m --served-model-name a b", "b; a flag for several values takes one at a time: --served-model-name A"),
    ("serve --port 1 a b", "unrecognized arguments: b\n"),
    ("serve --no-no-journal", "did you mean --no-journal?"),
    ("gateway http://a:1", "; did you mean --backend http://a:1?\n"),
    ("chat http://a:1", "; did you mean --url http://a:1?\n"),
    # of another meaning is --num-requests, which only --validate reads
    ("simulate --num-prompts 3", "unrecognized arguments: --num-prompts 3\n"),
]
NAMED = [(one, next((word for word in re.findall(r"--?\w[\w-]*", one)), "nobody")) for one in WRONG_USES]


@pytest.mark.parametrize(("command", "said"), [*TOLD, *NAMED])
def test_a_wrong_use_ends_with_2_and_is_named(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(command.split())
    told = capsys.readouterr().err
    assert ended.value.code == 2 and said in told
    assert re.match("lengthwise [a-z ]+: error: ", told) and told.count("\n") == 2
