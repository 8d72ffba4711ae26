"""Run measurements, decide claims, and keep each result as a small file."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.reproduce.claim import NOT_RUN, Claim
from benchmarks.reproduce.measurement import Measurement, Setting, Words
from benchmarks.reproduce.measurements import MEASUREMENTS, with_sources
from jaxspec.io.files.atomic import write_text

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results/claims"
_DONE, _LOG = "done.json", "log.txt"
Run = Callable[[Words, Path], None]


def run_command(words: Words, log: Path) -> None:
    """Run one command of a measurement in a process of its own, from the clone's root.

    Costs that it keeps lie in the setting's folder, unless `JAXSPEC_CACHE` names another one: calls
    of the user's have their own.

    Raises:
      RuntimeError: it failed; the message is the last line that it printed.
    """
    with log.open("a") as file:
        print("$ python -m", *words, file=file, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env={"JAXSPEC_CACHE": str(log.parents[1] / "cache")} | os.environ,
            stdout=file,
            stderr=file,
            check=False,
        )
    if done.returncode:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise RuntimeError(lines[-1].strip())


def measure(one: Measurement, setting: Setting, run: Run = run_command) -> None:
    """Run the commands of a measurement that an earlier call has not finished.

    Raises:
      ValueError: an earlier call used other settings.
      RuntimeError: a command failed.
    """
    folder = Path(setting.at(one.name))
    folder.mkdir(parents=True, exist_ok=True)
    made, kept = describe_setting(setting), read_done(folder)
    if kept and kept["setting"] != made:
        raise ValueError(
            f"{folder} holds a run of {kept['setting']}, not of {made}: give another --out"
        )
    kept = kept or {"setting": made, "finished": 0, "seconds": 0.0}
    commands = one.commands(setting)
    for number in range(kept["finished"], len(commands)):
        began = time.monotonic()
        run(commands[number], folder / _LOG)
        kept["finished"] = number + 1
        kept["seconds"] = round(kept["seconds"] + time.monotonic() - began, 1)
        kept["whole"] = number + 1 == len(commands)
        write_text(folder / _DONE, json.dumps(kept, indent=1) + "\n")


def read_done(folder: Path) -> dict[str, Any]:
    """Return what an earlier call finished of a measurement, empty if nothing."""
    path = folder / _DONE
    return json.loads(path.read_text()) if path.is_file() else {}


def is_measured(name: str, setting: Setting) -> bool:
    """Whether a measurement is finished."""
    return bool(read_done(Path(setting.at(name))).get("whole"))


def describe_setting(setting: Setting) -> dict[str, Any]:
    """Return what a run depends on; of files only the names."""
    return {
        "model": setting.model,
        "scale": setting.scale,
        "prompts": setting.prompts.name,
        "corpus": setting.corpus and setting.corpus.name,
        "seeds": setting.seeds,
    }


def read_outputs(name: str, setting: Setting) -> dict[str, Any]:
    """Read the reports of a measurement by their file's stem, or by their folder's name."""
    found: dict[str, Any] = {}
    if runs := MEASUREMENTS[name].recipes:
        for path in sorted(Path(setting.at(runs)).glob("*/result.json")):
            found[path.parent.name] = json.loads(path.read_text())
        return found
    for path in sorted(Path(setting.at(name)).glob("*.json*")):
        if path.suffix == ".jsonl":
            found[path.stem] = [json.loads(line) for line in path.read_text().splitlines()]
        elif path.name != _DONE:
            found[path.stem] = json.loads(path.read_text())
    return found


def find_obstacle(claim: Claim, setting: Setting) -> str | None:
    """Say why a claim cannot be run in a setting; None if it can."""
    if claim.waits:
        return claim.waits
    missing = [name for name in claim.drafters if not setting.has(name)]
    if missing:
        return f"{setting.model} has no drafter {' and '.join(missing)}"
    for name in with_sources(claim.needs):
        reason = MEASUREMENTS[name].find_obstacle(setting)
        if reason:
            return reason
    return None


def count_minutes(claim: Claim, setting: Setting, measured: Iterable[str] = ()) -> float:
    """Estimate the minutes of a claim's measurements that are not finished, on an idle machine."""
    names = [name for name in with_sources(claim.needs) if name not in set(measured)]
    return sum(MEASUREMENTS[name].minutes.get(setting.model, 0.0) for name in names)


def order_claims(claims: Sequence[Claim], setting: Setting) -> list[Claim]:
    """Order claims by their cost, those that share a measurement together."""
    return sorted(claims, key=lambda one: (count_minutes(one, setting), one.needs))


def decide(claim: Claim, setting: Setting) -> dict[str, Any]:
    """Decide a claim whose measurements are finished."""
    finding = claim.decide({name: read_outputs(name, setting) for name in claim.needs})
    return finding._asdict() | {
        "setting": describe_setting(setting),
        "measured": list(claim.needs),
        "minutes": round(
            sum(read_done(Path(setting.at(name)))["seconds"] for name in claim.needs) / 60, 1
        ),
        "date": datetime.date.today().isoformat(),
        "device": _find_device(claim, setting),
    }


def _try(claim: Claim, setting: Setting) -> dict[str, Any]:
    """Decide a claim; a rule that fails is the reason, and hours of other claims go on."""
    try:
        return decide(claim, setting)
    except Exception as error:
        shown = f"{type(error).__name__}: {error}".strip(": ")
        return {"verdict": NOT_RUN, "ours": f"its rule failed: {shown}"}


def _find_device(claim: Claim, setting: Setting) -> str | None:
    """Return the processor that the first report names."""
    for name in claim.needs:
        for report in read_outputs(name, setting).values():
            device = report.get("device") if isinstance(report, dict) else None
            if isinstance(device, dict):
                return device.get("processor") or device.get("kind")
    return None


def keep_result(claim: Claim, setting: Setting, result: dict[str, Any], folder: Path) -> None:
    """Write a claim's result."""
    path = place_result(claim.id, setting.model, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({"id": claim.id} | result, indent=1) + "\n")


def place_result(identity: str, model: str, folder: Path) -> Path:
    """Return the file of a claim's result."""
    paper, *rest = identity.split("/")
    return folder / Path(model).name / paper / f"{'-'.join(rest)}.json"


def reproduce(
    claims: Sequence[Claim],
    setting: Setting,
    folder: Path = RESULTS,
    *,
    again: bool = False,
    run: Run = run_command,
    tell: Callable[[Claim, dict[str, Any]], None] = lambda claim, result: None,
    begin: Callable[[str], None] = lambda name: None,
) -> None:
    """Run what claims need, the cheapest first, and keep a result of each.

    A claim that cannot be run here, or whose command fails, gets the reason as its result.

    Args:
      folder: of results.
      again: decide anew claims that have a result.
      run: runs one command.
      tell: called with every claim and its result.
      begin: called with the name of every measurement that begins.
    """
    failed: dict[str, str] = {}
    for claim in order_claims(claims, setting):
        path = place_result(claim.id, setting.model, folder)
        kept = json.loads(path.read_text()) if path.is_file() else {}
        if kept and kept["verdict"] != NOT_RUN and not again:
            tell(claim, kept)
            continue
        reason = find_obstacle(claim, setting)
        for name in with_sources(claim.needs):
            if reason or is_measured(name, setting):
                continue
            if name not in failed:
                begin(name)
                try:
                    measure(MEASUREMENTS[name], setting, run)
                except RuntimeError as error:
                    failed[name] = f"{name} failed: {error}"
            reason = failed.get(name)
        result = {"verdict": NOT_RUN, "ours": reason} if reason else _try(claim, setting)
        keep_result(claim, setting, result, folder)
        tell(claim, result)
