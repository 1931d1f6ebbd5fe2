"""`python -m benchmarks NAME [--json]`: one benchmark, as lines or as one flat JSON object.

A benchmark is a module with `HELP`, `add_arguments(parser)` and `measure(args)`, which returns a
flat mapping of what it found.
"""

import argparse
import importlib
import json
import os
import platform
import sys
from datetime import UTC, datetime

import torch
import transformers

BENCHMARKS = (
    "capture",
    "capture_kernel",
    "long",
    "jacobian",
    "interaction",
    "pruning",
    "pruning_study",
    "perturbation",
    "perturbation_study",
    "screen",
    "soak",
    "gpu",
    "mutation",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    choices = parser.add_subparsers(required=True, metavar="name")
    for name in BENCHMARKS:
        module = importlib.import_module(f"benchmarks.{name}")
        sub = choices.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="one flat JSON object")
        sub.set_defaults(measure=module.measure)
    args = parser.parse_args()
    found = machine() | dict(args.measure(args))
    if args.json:
        json.dump(found, sys.stdout, indent=1)
        print()
    else:
        width = max(map(len, found))
        print("\n".join(f"{key:<{width}}  {_shown(value)}" for key, value in found.items()))


def machine() -> dict[str, object]:
    """When and on what a benchmark ran."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
