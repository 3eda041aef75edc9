"""deploy/compose.yaml: names that exist in the code, files that are there, and limits that fit each other."""

import re
from pathlib import Path
from typing import Any

import pytest

from .test_prometheus import ROOT, SETTINGS, load

DEPLOY = ROOT / "deploy"
# After the drain: a last request of open connections, answers written, processes ended.
SECONDS_TO_END = 9

COMPOSE = load(DEPLOY / "compose.yaml")
PROMETHEUS = load(DEPLOY / "compose" / "prometheus.yml")
SERVICES: dict[str, Any] = COMPOSE["services"]
SERVERS = {"milkweed-light": "light", "milkweed-cpu": "cpu", "milkweed-gpu": "gpu"}
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def seconds(text: str) -> float:
    """A duration of compose, such as 45s or 5m."""
    match = re.fullmatch(r"(\d+)(s|m)", text)
    assert match is not None, text
    return int(match[1]) * {"s": 1, "m": 60}[match[2]]


def mounts(name: str) -> dict[str, Path]:
    """What of the repository a service sees, by where it sees it."""
    pairs = [volume.split(":") for volume in SERVICES[name].get("volumes", [])]
    return {inside: DEPLOY / outside for outside, inside, *_ in pairs if outside.startswith(".")}


def listens(address: str) -> bool:
    """Whether a service has that port, open to this machine alone."""
    name, port = address.removeprefix("http://").split(":")
    return f"127.0.0.1:{port}:{port}" in SERVICES[name]["ports"]


def test_one_server_a_profile_and_one_by_default() -> None:
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == {**{name: [profile] for name, profile in SERVERS.items()}, "dcgm-exporter": ["gpu"]}
    lines = (DEPLOY / ".env").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == ["COMPOSE_PROFILES=light"]
    for name, service in SERVICES.items():
        devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        assert [device["capabilities"] for device in devices] == [["gpu"]] * (profiles.get(name) == ["gpu"]), name


@pytest.mark.parametrize("name", SERVERS)
def test_servers_are_built_here_and_set_to_what_they_understand(name: str) -> None:
    service, build = SERVICES[name], SERVICES[name]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    for argument, value in build["args"].items():
        assert re.search(rf"^ARG {argument}\b", DOCKERFILE, re.MULTILINE), f"the Dockerfile knows no {argument}"
        assert re.search(rf"\b{value}\b", DOCKERFILE), f"the Dockerfile knows no {argument} {value}"
    ours = {key: value for key, value in service["environment"].items() if key.startswith("MILKWEED_")}
    assert ours.keys() <= SETTINGS.keys()
    assert ours["MILKWEED_DEVICE"] == ("cuda" if name == "milkweed-gpu" else "cpu")
    values = SETTINGS | ours
    drain = float(values["MILKWEED_DRAIN_GRACE_SECONDS"]) + float(values["MILKWEED_DRAIN_SECONDS"])
    assert seconds(service["stop_grace_period"]) >= drain + SECONDS_TO_END
    assert service["ports"] == [f"127.0.0.1:{SETTINGS['MILKWEED_PORT']}:{SETTINGS['MILKWEED_PORT']}"]
    jobs = {job["job_name"]: job for job in PROMETHEUS["scrape_configs"]}
    (target,) = jobs["milkweed"]["static_configs"][0]["targets"]
    (alias,) = service["networks"]["default"]["aliases"]
    assert target == f"{alias}:{SETTINGS['MILKWEED_METRICS_PORT']}"
    assert service["user"] == re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)[-1]


@pytest.mark.parametrize("name", SERVICES)
def test_containers_are_nobody_on_a_root_that_is_read_only(name: str) -> None:
    service = SERVICES[name]
    assert "privileged" not in service
    assert service["cap_drop"] == ["ALL"]
    if name == "dcgm-exporter":
        return  # it needs root for the counters of the tensor cores
    assert service["read_only"] is True
    assert int(service["user"].split(":")[0]) > 0
    assert "cap_add" not in service
    assert "no-new-privileges:true" in service["security_opt"]
    check = service.get("healthcheck")
    assert (check is None) == (name in SERVERS), "the image has one"
    if check is not None:
        assert check["test"][0] == "CMD"
        assert seconds(check["timeout"]) < seconds(check["interval"])


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned_ports_are_this_machines_and_mounts_are_there(name: str) -> None:
    service = SERVICES[name]
    assert "build" in service or re.search(r":v?\d+\.\d+\.\d+[^:]*$", service["image"])
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    for volume in service.get("volumes", []):
        outside, _, *options = volume.split(":")
        if outside.startswith("."):
            assert (DEPLOY / outside).exists(), volume
            assert options == ["ro"], volume
        else:
            assert outside in COMPOSE["volumes"], volume


def test_prometheus_finds_its_rules_and_alertmanager() -> None:
    seen = mounts("prometheus")
    assert seen["/etc/prometheus/prometheus.yml"] == DEPLOY / "compose/prometheus.yml"
    (pattern,) = PROMETHEUS["rule_files"]
    folder, _, files = pattern.partition("/")
    assert list(seen[f"/etc/prometheus/{folder}"].glob(files))
    assert listens(*PROMETHEUS["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"])


def test_grafana_finds_prometheus_and_the_dashboards_and_nobody_can_change_it() -> None:
    seen, environment = mounts("grafana"), SERVICES["grafana"]["environment"]
    sources = load(seen["/etc/grafana/provisioning/datasources"] / "prometheus.yml")["datasources"]
    assert all(listens(source["url"]) for source in sources)
    (default,) = [source for source in sources if source.get("isDefault")]
    assert default["jsonData"]["timeInterval"] == PROMETHEUS["global"]["scrape_interval"]
    (provider,) = load(seen["/etc/grafana/provisioning/dashboards"] / "milkweed.yml")["providers"]
    home = Path(environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    assert (seen[provider["options"]["path"]] / home.name).exists()
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
