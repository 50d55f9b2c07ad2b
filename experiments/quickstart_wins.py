#!/usr/bin/env python3
"""How often does the quickstart's winner beat the strong default?

Runs ``tune run`` on the quickstart space several times, each with its own search seed, and keeps one row per run in
``experiments/quickstart_wins.csv``: the winner's and the default's confirmed seconds to the target, from the same
seeds and limits. Prints the table, or with ``--json`` one object.

    python experiments/quickstart_wins.py --runs 10
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "experiments" / "quickstart_wins.csv"
LIMIT_S = 900
FIELDS = (
    "seed", "exit_code", "wall_s", "winner_s", "default_s", "default_over_winner", "won", "target_loss",
    "winner_layout", "winner_learning_rate", "winner_batch_tokens", "winner_warmup",
    "default_layout", "default_learning_rate", "default_batch_tokens", "num_trials", "num_oom",
)  # fmt: skip


def run_once(space: Path, seed: int, folder: Path) -> dict[str, object]:
    """One whole ``tune run`` in ``folder``; its row of the table."""
    text = re.sub(r"seed: \d+", f"seed: {seed}", space.read_text(encoding="utf-8"), count=1)
    if f"seed: {seed}" not in text:
        raise SystemExit(f"{space} has no `seed:` to vary")
    copy = folder / "space.yaml"
    copy.write_text(text, encoding="utf-8")
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tuner", "run", str(copy), "--json"],
        cwd=folder, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    wall_s = time.monotonic() - began
    if done.returncode != 0:
        print(done.stderr[-2000:], file=sys.stderr)
        return {"seed": seed, "exit_code": done.returncode, "wall_s": round(wall_s, 1), "won": False}
    return row(json.loads(done.stdout), seed, wall_s)


def row(study: dict[str, object], seed: int, wall_s: float) -> dict[str, object]:
    winner, default = study["winner"] or {}, study["default"] or {}
    winner_s, default_s = winner.get("time_to_loss_s"), default.get("time_to_loss_s")
    trials = study["trials"]
    layout = lambda c: " ".join(f"{k}{v}" for k, v in c.get("layout", {}).items())  # noqa: E731
    recipe = {"winner": winner.get("recipe", {}), "default": default.get("recipe", {})}
    return {
        "seed": seed,
        "exit_code": 0,
        "wall_s": round(wall_s, 1),
        "winner_s": winner_s,
        "default_s": default_s,
        "default_over_winner": default_s / winner_s if winner_s and default_s else None,
        "won": bool(winner_s and default_s and winner_s < default_s),
        "target_loss": study.get("target_loss"),
        "winner_layout": layout(winner),
        "winner_learning_rate": recipe["winner"].get("learning_rate"),
        "winner_batch_tokens": recipe["winner"].get("batch_tokens"),
        "winner_warmup": recipe["winner"].get("warmup"),
        "default_layout": layout(default),
        "default_learning_rate": recipe["default"].get("learning_rate"),
        "default_batch_tokens": recipe["default"].get("batch_tokens"),
        "num_trials": len(trials),
        "num_oom": sum((t["failure"] or {}).get("kind") == "oom" for t in trials),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--space", type=Path, default=ROOT / "search_spaces" / "quickstart.yaml")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for seed in range(options.first_seed, options.first_seed + options.runs):
        with tempfile.TemporaryDirectory(prefix="quickstart-") as folder:
            rows.append(run_once(options.space, seed, Path(folder)))
        with options.table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)
        last = rows[-1]
        print(
            f"seed {seed}: winner {last.get('winner_s')} s, default {last.get('default_s')} s, "
            f"{'won' if last['won'] else 'not won'}, {last['wall_s']} s in all",
            file=sys.stderr,
        )
    won = sum(bool(r["won"]) for r in rows)
    ratios = [float(r["default_over_winner"]) for r in rows if r.get("default_over_winner")]
    median = statistics.median(ratios) if ratios else None
    summary = {"schema_version": 1, "runs": len(rows), "won": won, "median_default_over_winner": median, "rows": rows}
    print(json.dumps(summary, indent=1) if options.json else f"{won} of {len(rows)} won; median ratio {median}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
