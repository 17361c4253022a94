"""Measure what the tests must not: times. Prints tables, writes JSON to experiments/results/.

    python experiments/bench.py             every part
    python experiments/bench.py time-model  one part
    python experiments/bench.py time-model:vgg16,resnet50  some of it again; the rest stays
    python experiments/bench.py --list      the parts

Close everything else first: what is compared is timed in turn, but a busy machine blurs it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
from elastic_tf.files import to_json, write_json
from elastic_tf.timing import describe_device

RESULTS = Path(__file__).resolve().parent / "results"
# Each has a module bench_PART; its `main` prints a table and returns what goes into the JSON.
PARTS = (
    *("time-model", "filtering", "engine", "memory", "traced-memory"),
    *("control", "deadline", "solver", "importance", "litert"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts named, or all."""
    names = list(sys.argv[1:] if arguments is None else arguments)
    if names == ["--list"]:
        print("\n".join(PARTS))
        return
    unknown = [name for name in names if name.partition(":")[0] not in PARTS]
    if unknown:
        raise SystemExit(f"Parts are {', '.join(PARTS)}. Received: {', '.join(unknown)}.")
    for chosen in names or PARTS:
        print(f"== {chosen}", flush=True)
        name, _, some = chosen.partition(":")
        measure: Callable[..., Any] = import_module(f"bench_{name.replace('-', '_')}").main
        started = time.perf_counter()
        out = RESULTS / f"{name}.json"
        before = json.loads(out.read_text("utf-8"))["data"] if some and out.exists() else {}
        data = {**before, **measure(some.split(","))} if some else measure()
        write_json(
            out,
            {
                "command": f"python experiments/bench.py {chosen}",
                "version": et.__version__,
                "device": describe_device(),
                "date": time.strftime("%Y-%m-%d"),
                "minutes": round((time.perf_counter() - started) / 60, 1),
                "data": to_json(data),
            },
        )


if __name__ == "__main__":
    main()
