"""Packs the archive for TorchServe and becomes its process."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
MAX_BATCH, BATCH_MS = 16, 5

CONFIG = """
inference_address=http://127.0.0.1:{port}
management_address=http://127.0.0.1:{management}
metrics_address=http://127.0.0.1:{metrics}
model_store={store}
disable_token_authorization=true
default_workers_per_model=1
models={{"tiny": {{"1.0": {{"marName": "tiny.mar", "defaultVersion": true, "minWorkers": 1, "maxWorkers": 1, \
"batchSize": {batch}, "maxBatchDelay": {delay}, "responseTimeout": 60}}}}}}
load_models=tiny.mar
"""

LOGGING = """<Configuration><Loggers><Root level="error"/></Loggers></Configuration>"""


def main(weights: Path, port: int, scratch: Path) -> None:
    """Serve in the foreground."""
    bin = Path(sys.executable).parent
    archiver = [str(bin / "torch-model-archiver"), "--model-name=tiny", "--version=1.0", "--force"]
    archiver += [f"--handler={HERE / 'torchserve_handler.py'}", f"--extra-files={HERE / 'tiny_vit.py'},{weights}"]
    subprocess.run([*archiver, f"--export-path={scratch}"], check=True)
    places = {"port": port, "management": port + 1, "metrics": port + 2, "store": scratch}
    (scratch / "ts.properties").write_text(CONFIG.format(**places, batch=MAX_BATCH, delay=BATCH_MS))
    (scratch / "log4j.xml").write_text(LOGGING)
    os.environ["PATH"] = f"{bin}:{os.environ['PATH']}"
    os.chdir(scratch)
    command = ["torchserve", "--start", "--foreground", "--ncs", "--model-store", str(scratch)]
    command += ["--ts-config", str(scratch / "ts.properties"), "--log-config", str(scratch / "log4j.xml")]
    os.execv(bin / "torchserve", command)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
