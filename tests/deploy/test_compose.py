"""deploy/compose.yaml: names that exist in the code, files that are there, and limits that fit each other."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
# After the drain: a last request of open connections, answers written, processes ended.
SECONDS_TO_END = 9


def load(path: Path) -> dict[str, Any]:
    """A YAML file."""
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


COMPOSE = load(DEPLOY / "compose.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]
SERVERS = {name: service for name, service in SERVICES.items() if name.startswith("milkweed")}
# dcgm-exporter needs root for the counters of the tensor cores.
HARDENED = {name: service for name, service in SERVICES.items() if name != "dcgm-exporter"}


def settings() -> dict[str, str]:
    """Each variable of docs/settings.md and its default."""
    rows = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8").splitlines()
    return {cells[2].strip(" `"): cells[3].strip(" `") for row in rows if len(cells := row.split("|")) == 6}


def seconds(text: str) -> float:
    """A duration of compose, such as 45s or 5m."""
    match = re.fullmatch(r"(\d+)(s|m)", text)
    assert match is not None, text
    return int(match[1]) * {"s": 1, "m": 60}[match[2]]


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """What of the repository a service sees, by where it sees it."""
    pairs = [volume.split(":") for volume in service.get("volumes", [])]
    return {inside: outside for outside, inside, *_ in pairs if outside.startswith(".")}


def test_one_server_a_profile_and_one_by_default() -> None:
    assert {name: service["profiles"] for name, service in SERVERS.items()} == {
        "milkweed-cpu": ["cpu"],
        "milkweed-gpu": ["gpu"],
    }
    lines = (DEPLOY / ".env").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == ["COMPOSE_PROFILES=cpu"]
    for name in ("prometheus", "alertmanager", "grafana"):
        assert "profiles" not in SERVICES[name]


def test_the_gpu_is_asked_for_in_its_profile_alone() -> None:
    for name, service in SERVICES.items():
        devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        assert bool(devices) == (service.get("profiles") == ["gpu"]), name
        assert all(device["capabilities"] == ["gpu"] for device in devices)
    assert SERVICES["milkweed-gpu"]["environment"]["MILKWEED_DEVICE"] == "cuda"
    assert SERVICES["milkweed-cpu"]["environment"]["MILKWEED_DEVICE"] == "cpu"


@pytest.mark.parametrize("name", SERVERS)
def test_variables_are_settings(name: str) -> None:
    ours = {key for key in SERVERS[name]["environment"] if key.startswith("MILKWEED_")}
    assert ours
    assert ours <= settings().keys()


@pytest.mark.parametrize("name", SERVERS)
def test_the_image_is_built_here(name: str) -> None:
    build = SERVERS[name]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for argument, value in build["args"].items():
        assert re.search(rf"^ARG {argument}\b", dockerfile, re.MULTILINE), f"the Dockerfile knows no {argument}"
        assert re.search(rf"\b{value}\b", dockerfile), f"the Dockerfile knows no {argument} {value}"


@pytest.mark.parametrize("name", SERVERS)
def test_ports_are_the_servers(name: str) -> None:
    defaults = settings()
    assert SERVERS[name]["ports"] == [f"127.0.0.1:{defaults['MILKWEED_PORT']}:{defaults['MILKWEED_PORT']}"]
    jobs = {job["job_name"]: job for job in load(DEPLOY / "compose" / "prometheus.yml")["scrape_configs"]}
    (target,) = jobs["milkweed"]["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert port == defaults["MILKWEED_METRICS_PORT"]
    assert host in SERVERS[name]["networks"]["default"]["aliases"]


@pytest.mark.parametrize("name", SERVERS)
def test_a_stop_waits_for_the_drain(name: str) -> None:
    values = settings() | SERVERS[name]["environment"]
    drain = float(values["MILKWEED_DRAIN_GRACE_SECONDS"]) + float(values["MILKWEED_DRAIN_SECONDS"])
    assert seconds(SERVERS[name]["stop_grace_period"]) >= drain + SECONDS_TO_END


@pytest.mark.parametrize("name", HARDENED)
def test_containers_are_nobody_on_a_root_that_is_read_only(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert int(service["user"].split(":")[0]) > 0
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "no-new-privileges:true" in service["security_opt"]
    assert "privileged" not in service


def test_the_user_is_the_images() -> None:
    *_, user = re.findall(r"^USER (\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    for service in SERVERS.values():
        assert service["user"].split(":")[0] == user.split(":")[0]


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned_and_ports_are_this_machines(name: str) -> None:
    service = SERVICES[name]
    if "build" not in service:
        _, tag = service["image"].rsplit(":", 1)
        assert re.match(r"v?\d+\.\d+\.\d+", tag)
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("name", HARDENED)
def test_containers_have_a_health_check(name: str) -> None:
    if name in SERVERS:
        assert "healthcheck" not in SERVICES[name], "the image's"
        return
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] == "CMD"
    assert seconds(check["timeout"]) < seconds(check["interval"])


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_is_there(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        outside, _, *options = volume.split(":")
        if outside.startswith("."):
            assert (DEPLOY / outside).exists(), volume
            assert options == ["ro"], volume
        else:
            assert outside in COMPOSE["volumes"], volume


def test_prometheus_finds_its_rules_and_alertmanager() -> None:
    config = load(DEPLOY / "compose" / "prometheus.yml")
    seen = mounts(SERVICES["prometheus"])
    assert seen["/etc/prometheus/prometheus.yml"] == "./compose/prometheus.yml"
    (pattern,) = config["rule_files"]
    folder, _, files = pattern.partition("/")
    assert list((DEPLOY / seen[f"/etc/prometheus/{folder}"]).glob(files))
    (target,) = config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert f"127.0.0.1:{port}:{port}" in SERVICES[host]["ports"]


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    seen = mounts(SERVICES["grafana"])
    sources = load(DEPLOY / seen["/etc/grafana/provisioning/datasources"] / "prometheus.yml")["datasources"]
    for source in sources:
        match = re.fullmatch(r"http://([a-z]+):(\d+)", source["url"])
        assert match is not None
        assert f"127.0.0.1:{match[2]}:{match[2]}" in SERVICES[match[1]]["ports"]
    (default,) = [source for source in sources if source.get("isDefault")]
    scrapes = load(DEPLOY / "compose" / "prometheus.yml")["global"]["scrape_interval"]
    assert default["jsonData"]["timeInterval"] == scrapes

    (provider,) = load(DEPLOY / seen["/etc/grafana/provisioning/dashboards"] / "milkweed.yml")["providers"]
    folder = DEPLOY / seen[provider["options"]["path"]]
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    assert (folder / home.name).exists()


def test_nobody_can_change_grafana() -> None:
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
