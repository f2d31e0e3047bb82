"""Draws docs/figures/report.png: the top of the report of a made table of payments, in Chromium."""

import subprocess
import tempfile
from pathlib import Path

from pyarrow import csv

from hcm_scale.cli.main import main as hcm_scale
from hcm_scale.synthetic.payments import payments

FIGURE = Path(__file__).with_suffix(".png").resolve()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "payments.csv"
        csv.write_csv(payments(2_000)[0], table)
        if hcm_scale(["run", str(table), f"run_dir={folder}/run"]):
            raise SystemExit("the run failed")
        quiet = ("--headless", "--no-sandbox", "--hide-scrollbars", "--force-prefers-reduced-motion")
        size = ("--window-size=1200,1330", f"--screenshot={FIGURE}")
        subprocess.run(["chromium", *quiet, *size, f"file://{folder}/run/report/report.html"], check=True)


if __name__ == "__main__":
    main()
