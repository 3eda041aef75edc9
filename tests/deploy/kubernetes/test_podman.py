"""The overlay `light` on a real engine: the image built, the rendered Deployment played, asked and ended by podman.

Needs no network: the pod has none, and everything is asked from inside. As tests/deploy/test_image_build.py does, it
takes the base that MILKWEED_IMAGE_BASE names, and MILKWEED_IMAGE_OPTIONS; docs/image.md says how to make one.
"""

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from ...support.waiting import HANG_SECONDS
from .conftest import ROOT, Manifests
from .test_pod import UID, quantity

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
NEEDED = ("podman", "runc", "catatonit")
# The image has no shell and no curl.
HEALTHCHECK = ("python", "-m", "milkweed.server.process.healthcheck")
ASK = "import sys, httpx; sys.stdout.write(str(httpx.get(sys.argv[1]).status_code))"
CLASSIFY = """
import sys, httpx
answer = httpx.post(sys.argv[1], content=sys.stdin.buffer.read(), headers={"Content-Type": "image/jpeg"})
sys.stdout.write(answer.text)
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("MILKWEED_IMAGE_BASE" not in os.environ, reason="MILKWEED_IMAGE_BASE names no image"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be nobody inside"),
    *(
        pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed: apt-get install {tool}")
        for tool in NEEDED
    ),
]

Podman = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    """Runs podman with runc and few files and processes, which a machine without systemd may not be able to raise."""
    config = tmp_path_factory.mktemp("podman") / "containers.conf"
    config.write_text('[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n')
    environment = os.environ | {"CONTAINERS_CONF": str(config)}

    def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        command = ["podman", "--runtime", "runc", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, **options)

    return run


@pytest.fixture(scope="module")
def light(kustomize: Any) -> Manifests:
    """What Kustomize makes of the overlay."""
    rendered: Manifests = kustomize("light")
    return rendered


@pytest.fixture(scope="module")
def container(podman: Podman, light: Manifests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The container of a pod that was made of the rendered Deployment and ConfigMap; its name."""
    base, more = os.environ["MILKWEED_IMAGE_BASE"], shlex.split(os.environ.get("MILKWEED_IMAGE_OPTIONS", ""))
    options = ("--isolation", "chroot", "--layers", "--quiet", "--format", "docker", "--build-arg", f"BASE={base}")
    tag = f"localhost/{light.server['image']}"
    built = podman("build", *options, "--build-arg", "VARIANT=light", *more, "--tag", tag, ".")
    assert built.returncode == 0, built.stderr[-3000:]
    file = tmp_path_factory.mktemp("played") / "light.yaml"
    file.write_text(yaml.safe_dump_all(playable(light)))
    played = podman("kube", "play", "--network", "none", file, timeout=HANG_SECONDS)
    try:
        assert played.returncode == 0, played.stderr
        yield "milkweed-pod-0-milkweed"
    finally:
        podman("kube", "down", file)


def playable(light: Manifests) -> list[dict[str, Any]]:
    """The Deployment and its ConfigMap, without what podman cannot do: publish ports where there is no network, ask
    probes (it would by curl, which is not in the image), and run two replicas."""
    deployment = yaml.safe_load(yaml.safe_dump(light.one("Deployment")))
    deployment["spec"]["replicas"] = 1
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    for key in ("ports", *PROBES):
        del server[key]
    return [light.one("ConfigMap", server["envFrom"][0]["configMapRef"]["name"]), deployment]


def test_it_is_probed_asked_and_ended(podman: Podman, light: Manifests, container: str) -> None:
    url = f"http://127.0.0.1:{light.environment['MILKWEED_PORT']}"
    began = time.monotonic()
    while (asked := podman("exec", container, *HEALTHCHECK)).returncode:
        assert time.monotonic() - began < HANG_SECONDS, asked.stderr + podman("logs", container).stderr
        time.sleep(0.5)

    facts = ("HostConfig.ReadonlyRootfs", "Config.User", "HostConfig.Memory", "HostConfig.NanoCpus", "EffectiveCaps")
    form = " ".join(f"{{{{.{fact}}}}}" for fact in facts)
    limits = light.server["resources"]["limits"]
    memory, cpus = (int(quantity(limits[name])) for name in ("memory", "cpu"))
    inspected = podman("inspect", container, "--format", form).stdout.split()
    assert inspected == ["true", f"{UID}:{UID}", str(memory), str(cpus * 10**9), "[]"]

    for name in PROBES:
        assert (
            podman("exec", container, "python", "-c", ASK, url + light.server[name]["httpGet"]["path"]).stdout == "200"
        )
    with (ROOT / "docs/pictures/ship.jpg").open("rb") as photo:
        answer = podman("exec", "--interactive", container, "python", "-c", CLASSIFY, f"{url}/classify", stdin=photo)
    assert '"label": "ship"' in answer.stdout, answer.stderr

    grace, began = light.pod["terminationGracePeriodSeconds"], time.monotonic()
    assert podman("stop", "--time", grace, container).returncode == 0
    seconds = time.monotonic() - began
    assert podman("inspect", container, "--format", "{{.State.ExitCode}}").stdout.strip() == "0"
    assert float(light.environment["MILKWEED_DRAIN_GRACE_SECONDS"]) <= seconds < grace
    print(f"\nSIGTERM to exit 0: {seconds:.1f} s of {grace}")
