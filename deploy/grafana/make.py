"""Writes the dashboards' JSON from the code: `python deploy/grafana/make.py`; needs the extra `deploy`."""

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # PYTHONSAFEPATH keeps a script's own folder out

from boards import capacity, gpu, service  # noqa: E402
from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: E402

BOARDS = {"service": service, "gpu": gpu, "capacity": capacity}


def text(name: str) -> str:
    """A dashboard as it is committed."""
    return json.dumps(BOARDS[name].dashboard(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the dashboards into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "dashboards", help="folder to write to")
    parser.add_argument("--only", choices=tuple(BOARDS), action="append", help="which one; all")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.only or BOARDS:
        (asked.out / f"{name}.json").write_text(text(name), encoding="utf-8")


if __name__ == "__main__":
    main()
