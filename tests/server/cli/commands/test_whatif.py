"""`lengthwise whatif` on a journal of a simulated server, which a replay must find again."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import astuple, replace
from functools import partial
from itertools import islice
from pathlib import Path
from shutil import rmtree
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from rich.console import Group

from engine.measure.timing import Timings
from engine.simulated.machine import Machine
from loadgen.load import arrival_times
from loadgen.simulate import whatif
from loadgen.simulate.replay import Replay, read_replay
from loadgen.simulate.simulation import simulate
from loadgen.workload.lengths import RequestLengths
from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.journal.file import RequestEntry, append, connect, read
from scheduler.options import Scheduling
from scheduler.serving_time.bilinear import Bilinear, FitErrors
from scheduler.serving_time.profile_file import Conditions, Profile, write_profile
from scheduler.strategy import STRATEGIES
from server.cli.commands import whatif as whatif_command
from tests.scheduler.entries import request_entry
from tests.server.cli.commands.runner import Told, run_command

run = partial(run_command, whatif_command.add_parser, "whatif")

PRICES = Bilinear(p1=1e-4, p2=0.0, p3=0.0, p4=0.01, d1=1e-6, d2=1e-3, d3=0.0, d4=0.01)
SLOWDOWN = 1.5
"""How much slower the server was than its learned prices say."""

MACHINE = Machine(
    PRICES, capacity_tokens=4 * 600, max_num_seqs=4, context_length=600, max_prefill_tokens=512, runs_ahead=True
)

SETTING = whatif.WhatIfSetting(Scheduling(), MACHINE, PRICES, 512)


def try_to_end(replay: Replay, setting: whatif.WhatIfSetting, names: Sequence[str] = ()) -> whatif.WhatIf:
    """What is known in the end."""
    return [*whatif.try_all(replay, setting, names)][-1]


def served_by(strategy: str) -> list[RequestEntry]:
    """Entries of 80 requests, nine of ten short, that come faster than first come, first served would like."""
    random = np.random.default_rng(0)
    times = arrival_times(7.0, 1.0, 80, random)
    trace = [RequestLengths(float(time), 20, 200 if random.random() < 0.1 else 15) for time in times]
    limits = BatchLimits.of(Scheduling(), 512, 4).within(MACHINE.capacity_tokens, 600, 4)
    machine = replace(MACHINE, cost=PRICES.slowed(SLOWDOWN))
    done = simulate(assemble(STRATEGIES[strategy], limits, PRICES), machine, trace, 200).requests
    entries = list[RequestEntry]()
    for one in sorted(done, key=lambda one: one.end):
        entry = request_entry(1e6 + one.end, generated=one.output_length, predicted=float(one.output_length))
        begun, first = one.started - one.arrival, one.first_token - one.arrival
        entry = replace(entry, strategy=strategy, input_length=one.input_length, max_tokens=200, promised=one.promised)
        entries.append(replace(entry, started=begun, first_token=first, latency=one.end - one.arrival))
    return entries


def add(path: Path, entries: Sequence[RequestEntry]) -> None:
    with closing(connect(path)) as connection:
        append(connection, entries)


@pytest.fixture
def journal(cache: Path) -> Path:
    """The journal of a server with 4 slots, and the prices that it learned."""
    path = cache / "journal" / "journal.sqlite3"
    earlier = replace(request_entry(1e6 - 50.0), strategy="vs")
    silent = replace(request_entry(1e6 + 1.0, generated=0), strategy="baton-pd", first_token=None)
    add(path, [earlier, silent, *served_by("baton-pd")])
    conditions = Conditions("somewhere/tiny", "float32", "none", "a processor", 2, 512)
    errors = FitErrors(0, 0, None)
    write_profile(cache, Profile(conditions, "2026-01-01T00:00:00", "0", PRICES, errors, Timings()))
    return path


@pytest.fixture
def replay(journal: Path) -> Replay:
    return read_replay(journal, None, 1000)


def test_the_strategy_that_served_comes_out_as_it_was_recorded(replay: Replay) -> None:
    assert (replay.strategy, replay.model, len(replay.recorded), replay.left_out) == ("baton-pd", "tiny", 80, 1)
    found = try_to_end(replay, SETTING, ("srpt", "vs"))
    assert found.slowdown == pytest.approx(SLOWDOWN, rel=0.01)
    mean, p99 = found.errors
    assert abs(mean) < 0.01 and abs(p99) < 0.05, "p99 is one request of 80"
    better = whatif.find_better(found)
    assert better is not None and found.trials[better]["mean_jct_ms"] < 0.9 * found.own["mean_jct_ms"]
    verdict, _, requests = whatif.write_sentences(found)
    assert better[0] in verdict and "One more executor, which wants a device more" in verdict
    assert "80 requests to tiny (1 that got no token left out)." in requests
    off = {key: 1.25 * found.recorded[key] for key in ("mean_jct_ms", "p99_jct_ms")}
    doubt, *others = whatif.write_sentences(replace(found, recorded=found.recorded | off))
    assert doubt.startswith("Doubtful: the replay under baton-pd") and "more than 20%" in doubt and len(others) == 3
    whole = whatif.write_sentences(replace(found, replay=replace(replay, left_out=0)))
    assert "80 requests to tiny. Predicted" in [*whole][2]
    assert {sizes for _, sizes in found.trials} >= {"", "half the slots", "twice the slots", "one more executor"}


def test_cancelled_calls_are_none_of_the_last(journal: Path) -> None:
    """Sixty that left while they waited hid all others."""
    left = request_entry(2e6, generated=0)
    add(journal, [replace(left, strategy="baton-pd", outcome="cancelled", first_token=None, started=None)] * 60)
    replay = read_replay(journal, None, 50)
    assert (len(replay.recorded), replay.left_out) == (50, 60)


def test_the_promises_of_each_order_are_judged_beside_those_that_were_made(replay: Replay) -> None:
    promised = [one for one in replay.recorded if one.promised is not None]
    found = try_to_end(replay, SETTING, ("lengthwise",))
    assert len(promised) > 60 and found.recorded["promises_kept"] == pytest.approx(
        sum(one.promised is not None and one.end - one.arrival <= one.promised for one in promised) / len(promised)
    )
    own, other = found.own, found.trials["lengthwise", ""]
    assert own["promised_ratio"] == pytest.approx(found.recorded["promised_ratio"], rel=0.2)
    assert 0.8 < other["promises_kept"] <= 1 and other["promised_ratio"] > 1
    late = replace(replay, recorded=tuple(replace(one, promised=0.001) for one in replay.recorded))
    broken = try_to_end(late, SETTING)
    assert broken.recorded["promises_kept"] == 0
    assert "% of promises kept where 0% were. A step takes" in "".join(whatif.write_sentences(broken))


def test_a_record_that_no_one_speed_explains_is_told_in_a_sentence_and_no_table(replay: Replay) -> None:
    """Tables of 38 strategies were shown beside a simulator that was half off."""
    late = [replace(one, end=one.end + 40.0, started=one.started + 3.0) for one in replay.recorded[40:60]]
    uneven = replace(replay, recorded=(*replay.recorded[:40], *late, *replay.recorded[60:]))
    found = try_to_end(uneven, SETTING, ("srpt", "vs"))
    (sentence,) = whatif.write_sentences(found)
    assert not found.trusted and len(found.trials) == 1
    page = whatif.show(found)
    assert isinstance(page, Group) and [str(one).strip() for one in page.renderables] == [sentence]
    assert sentence.startswith("No strategy can be judged by these 80 requests to tiny: simulated under baton-pd")
    assert "Other programs may have taken the machine's cores" in sentence


def test_a_size_that_changes_nothing_is_no_choice(replay: Replay) -> None:
    """Half of a memory that was never full stood in the list as if it were another machine."""
    roomy = replace(SETTING, machine=replace(MACHINE, capacity_tokens=100_000))
    assert "half the memory" not in {sizes for _, sizes in try_to_end(replay, roomy).trials}


def test_ctrl_c_keeps_some(journal: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    try_all = whatif.try_all

    def try_two(*arguments: Any) -> Iterator[whatif.WhatIf]:
        yield from islice(try_all(*arguments), 3)
        raise KeyboardInterrupt

    monkeypatch.setattr("loadgen.simulate.whatif.try_all", try_two)
    assert run("--strategies", "srpt,vs,hrrn", "--max-num-seqs", "4", "--max-model-len", "600") == 130
    shown = capsys.readouterr().out
    assert "not tried" in shown and "srpt" in shown and "vs" in shown and "hrrn" not in shown


def test_where_nothing_is_better_it_says_so(journal: Path) -> None:
    replay = read_replay(journal, "tiny", 1000)
    setting = whatif.WhatIfSetting(Scheduling(), replace(MACHINE, max_num_seqs=1), PRICES, 512)
    found = try_to_end(replay, setting, ("fcfs-none",))
    here = {one: figures for one, figures in found.trials.items() if not one[1]}
    assert whatif.find_better(replace(found, trials=here)) is None
    able = replace(found, recorded=found.own, trials={("baton-pd", ""): found.own})
    verdict = next(iter(whatif.write_sentences(able)))
    assert verdict.startswith("Nothing tried here") and "executor" not in verdict


def test_one_command_tells_all(journal: Path, tmp_path: Path, told: Told) -> None:
    result = tmp_path / "result.json"
    out = told("--strategies", "srpt,vs", "--max-num-seqs", 4, "--max-model-len", 600, "--save-result", result)
    assert "baton-pd, as recorded" not in out and "How far to trust this" in out and "srpt" in out
    found = json.loads(result.read_text())
    assert abs(found["errors"]["mean_jct"]) < 0.05
    assert found["requests"] == 80 and found["trials"][0]["strategy"] == "baton-pd"
    assert found["trials"][0]["mean_jct_ms"] == pytest.approx(found["recorded"]["mean_jct_ms"], rel=0.02)


WANTED = "of the latest strategy"
MISSING = [
    (("--strategies", "vsq"), "vsq: wants other weights"),
    (("--last", "5"), f"5 answered requests to tiny {WANTED} in the last 5, and 20 are wanted: raise"),
    (("--last", "19", "--of", "somewhere/tiny"), "raise --last, or give another --journal"),
    (("--of", "another"), f"holds 0 answered requests to another {WANTED}, and 20 are wanted: serve some more, or "),
    (("--of", "another"), "give another --journal, or --of tiny"),
]


@pytest.mark.parametrize(("flags", "message"), MISSING)
@pytest.mark.usefixtures("journal")
def test_what_is_missing_is_told(flags: tuple[str, ...], message: str, told: Told) -> None:
    assert message in told(*flags, code=2 if "--strategies" in flags else 1)


GATEWAY = "127.0.0.1:8001/v1"


@pytest.fixture
def shared(journal: Path) -> Path:
    """A journal that a server and a gateway before it write by turns."""
    add(journal, [replace(one, model=model) for one in read(journal) for model in ("tiny", GATEWAY)])
    return journal


@pytest.mark.parametrize("given", ["tiny", "somewhere/tiny", GATEWAY, None])
def test_of_two_programs_that_share_a_journal_one_is_replayed(shared: Path, given: str | None) -> None:
    """A gateway's entries between its backend's were taken for another strategy's; then whose were wanted was asked."""
    replay = read_replay(shared, given, 70)
    assert replay.model == (given or GATEWAY).removeprefix("somewhere/") and len(replay.recorded) == 70
    assert {replay.model, replay.others} == {"tiny", GATEWAY}


@pytest.mark.parametrize("slots", [4, 1])
def test_whose_requests_were_replayed_is_printed_with_whose_could_be(shared: Path, slots: int) -> None:
    """Also where nothing else is, as with one slot, at which no speed fits."""
    setting = replace(SETTING, machine=replace(MACHINE, max_num_seqs=slots))
    found = try_to_end(read_replay(shared, None, 1000), setting)
    said = " ".join(whatif.write_sentences(found))
    assert found.trusted == (slots == 4) and f" 80 requests to {GATEWAY}" in said
    assert "; --of replays those to tiny." in said


def test_an_empty_journal_names_no_model(cache: Path, told: Told) -> None:
    add(cache / "journal" / "journal.sqlite3", [])
    assert f"holds 0 answered requests to any model {WANTED}" in told(code=1)


def test_a_gateway_s_journal_is_replayed_at_prices_fitted_to_it(
    journal: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its backend's profile is elsewhere, and an answer's first byte the first that is known of its start."""
    rmtree(cache / "profiles")
    entries = [replace(one, assigned=one.started, started=one.first_token) for one in read(journal)]
    journal.unlink()
    add(journal, entries)
    saved, reads = cache / "found.json", Mock(side_effect=read)
    monkeypatch.setattr("loadgen.simulate.replay.read", reads)
    assert run("--save-result", str(saved)) == 0
    assert reads.call_count == 3, "the window was read twice"
    found = json.loads(saved.read_text())
    assert max(map(abs, found["errors"].values())) < 0.25, "waits double what prices are off"
    trials = {(one["strategy"], one["sizes"]): one["mean_jct_ms"] for one in found["trials"]}
    assert trials["lengthwise", ""] < trials["baton-pd", ""]
    assert not {"srpt", "vs"} & {one["strategy"] for one in found["trials"]}, "no gateway pauses calls"


ODD = [
    {"generated": 1},
    {"started": 9.0, "first_token": 0.1},
    {"started": -1.0, "first_token": -2.0},
    {"first_token": 9.0},
    {"latency": -1.0},
]


@pytest.mark.parametrize("change", ODD)
def test_prices_are_fitted_to_whatever_a_journal_says(journal: Path, change: dict[str, Any]) -> None:
    entries = [request_entry(2e6 + second) for second in range(40)]
    add(journal, [replace(entry, **{"model": "odd", "strategy": "vs", **change}) for entry in entries])
    recorded = read_replay(journal, "odd", 1000).recorded
    assert all(one.arrival <= one.started <= one.first_token <= one.end for one in recorded)
    prices, most = whatif.fit_prices(recorded)
    assert min(astuple(prices)) >= 0 and most <= 40
