"""deploy/prometheus: series, labels and values that the server exports, a case for every rule, the tools' verdicts."""

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from milkweed.server.errors import ERROR_CODES
from milkweed.server.telemetry import metrics

from ..server.telemetry.metrics_page import documented_families

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "deploy" / "prometheus"
OBSERVABILITY = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
SETTINGS = dict(re.findall(r"`(MILKWEED_\w+)` \| `([^`]*)`", (ROOT / "docs" / "settings.md").read_text("utf-8")))

# What Prometheus and Kubernetes add to every series of a target.
TARGET_LABELS = {"namespace", "job", "instance", "pod", "container"}
# Series of others and their labels that rules may name; the last as in dcgm-exporter's default-counters.csv.
FOREIGN: dict[str, set[str]] = {
    "up": set(),
    "scrape_duration_seconds": set(),
    "process_start_time_seconds": set(),
    "container_memory_working_set_bytes": set(),
    "container_spec_memory_limit_bytes": set(),
    "DCGM_FI_DEV_XID_ERRORS": {"Hostname", "UUID", "gpu"},
}
GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
KEYWORDS = GROUPING | {"and", "or", "unless", "offset", "bool"}
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\d[\d.a-z]*|[a-zA-Z_][\w:]*|[=!<>]=|=~|!~|\S')


def load(path: Path) -> Any:
    """A YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


GROUPS = [group for path in sorted((HERE / "rules").glob("*.yml")) for group in load(path)["groups"]]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
RECORDS = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
ALERTS = [rule for rule in RULES if "alert" in rule]
TEST_FILES = sorted((HERE / "tests").glob("*.yml"))
TESTS = {path.stem: load(path) for path in TEST_FILES}


class Selector(NamedTuple):
    """A series an expression asks for, and its matchers: label, operator, value."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]


def parse(expression: str) -> tuple[list[Selector], list[set[str]]]:
    """The selectors of an expression, and the labels of each of its clauses."""
    tokens, selectors, clauses, place = TOKEN.findall(expression), [], [], 0
    while place < len(tokens):
        token, after = tokens[place], tokens[place + 1] if place + 1 < len(tokens) else ""
        place += 1
        if token in GROUPING and after == "(":
            end = tokens.index(")", place)
            clauses.append(set(tokens[place + 1 : end]) - {","})
            place = end + 1
        elif re.match(r"[a-zA-Z_]", token) and token not in KEYWORDS and after not in ("(", *GROUPING):
            end = tokens.index("}", place) if after == "{" else place
            inside = [each for each in tokens[place + 1 : end] if each != ","]
            matchers = tuple(
                (inside[i], inside[i + 1], inside[i + 2].strip('"')) for i in range(0, len(inside) // 3 * 3, 3)
            )
            selectors.append(Selector(token, matchers))
            place = end + (after == "{")
            if place < len(tokens) and tokens[place] == "[":
                place = tokens.index("]", place) + 1
            if place < len(tokens) and tokens[place] == "offset":
                place += 2
    return selectors, clauses


def exported() -> Iterator[tuple[str, frozenset[str]]]:
    """Yield every series of the server and its labels."""
    for family, (labels, is_histogram) in documented_families().items():
        for suffix in ("_bucket", "_sum", "_count") if is_histogram else ("",):
            yield f"milkweed_{family}{suffix}", labels | ({"le"} if suffix == "_bucket" else set())


def level_labels(record: str) -> set[str]:
    """The labels that a recorded series has by its name."""
    words = set(record.partition(":")[0].split("_")) - {"global"}
    return words | ({"job"} if "instance" in words else set()) | ({"namespace"} if words else set())


SERIES = dict(exported()) | FOREIGN | {record: level_labels(record) for record in RECORDS}
LOADERS = set(
    re.findall(r'^    name = "(\w+)"$', "".join(map(Path.read_text, ROOT.glob("loaders/decode/*.py"))), re.MULTILINE)
)
GPU_KINDS = re.findall(r"^\| `(\w+)` \|", OBSERVABILITY.partition("| kind of `gpu_memory_bytes`")[2], re.MULTILINE)
VALUES: dict[str, Iterable[str]] = {
    "reason": {kind.reason for kind in ERROR_CODES.values()},
    "outcome": metrics.OUTCOMES + metrics.SHADOW_OUTCOMES,
    "stage": metrics.STAGES,
    "form": metrics.PARAMETER_FORMS,
    "le": map(str, metrics.SECONDS_BUCKETS),
    "backend": LOADERS,
    "loader": LOADERS,
    "kind": {"rss", *GPU_KINDS},
    "method": re.findall(r'"(Model\w+)": self\.', (ROOT / "server" / "oip" / "grpc_service.py").read_text("utf-8")),
    "code": {"200", "OK"},
    "route": {"/classify", "/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer"},
}
VALUES = {label: set(values) for label, values in VALUES.items()}


def name_of(rule: dict[str, Any]) -> str:
    """The id of a rule's test."""
    return str(rule.get("record") or f"{rule['alert']}-{rule['labels']['severity']}")


def check_selectors(expression: str) -> list[Selector]:
    """Fail where an expression asks for a series, a label or a value that nobody exports; the selectors in it."""
    selectors, clauses = parse(expression)
    labels: set[str] = set()
    for selector in selectors:
        assert selector.name in SERIES, f"nobody exports {selector.name}"
        labels |= SERIES[selector.name]
        for label, operator, value in selector.matchers:
            if selector.name in FOREIGN:
                assert (label, operator, value) == ("container", "!=", "")
            elif (label, operator, value) != ("namespace", "=", "milkweed"):
                assert label in SERIES[selector.name], f"{selector.name} has no label {label}"
                for each in value.split("|") if "~" in operator else [re.escape(value)]:
                    assert any(re.fullmatch(each, known) for known in VALUES[label]), f"{label} is never {each}"
    assert set().union(*clauses) <= labels | TARGET_LABELS
    return selectors


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_every_series_label_and_value_exists(rule: dict[str, Any]) -> None:
    assert check_selectors(rule["expr"]) or rule["expr"] == "vector(30)"


def routes_of(expression: str) -> set[str]:
    """The patterns of routes in an expression."""
    return {value for each in parse(expression)[0] for label, _, value in each.matchers if label == "route"}


def test_requests_for_inference_are_all_of_those_routes_and_no_other() -> None:
    routes = (ROOT / "server" / "oip" / "rest.py").read_text(encoding="utf-8")
    assert '_MODEL = "/v2/models/{name}"' in routes
    assert '_VERSION = "/v2/models/{name}/versions/{version}"' in routes
    assert 'f"{path}/infer"' in routes
    (asked,) = set().union(*(routes_of(rule["expr"]) for rule in RULES))
    pattern = re.compile(asked)
    assert all(pattern.fullmatch(route) for route in VALUES["route"])
    for other in ("/metrics", "/readyz", "/v2/models/{name}", "/v2/models/{name}/ready", "/v2/models/stats", "other"):
        assert not pattern.fullmatch(other)


@pytest.mark.parametrize("rule", ALERTS, ids=name_of)
def test_an_alert_says_how_urgent_what_and_where_to_read_on(rule: dict[str, Any]) -> None:
    name, says = rule["alert"], rule["annotations"]
    assert rule["labels"] in ({"severity": "page"}, {"severity": "ticket"})
    assert set(says) == {"summary", "description", "runbook_url"}
    assert re.search(r"{{.*\$(value|labels)", says["description"]) or rule["expr"].startswith("absent(")
    page, _, anchor = says["runbook_url"].partition("#")
    assert (page, anchor) == ("https://milkweed.example/runbook.html", name.lower())
    assert f"\n## {name}\n" in (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    cases = [case for file in TESTS.values() for test in file["tests"] for case in test.get("alert_rule_test", ())]
    fire = {(case["alertname"], each["exp_labels"]["severity"]) for case in cases for each in case["exp_alerts"]}
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}
    assert fire == {(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS}
    assert silent == {rule["alert"] for rule in ALERTS}


def test_constants_are_the_objectives_that_the_docs_say() -> None:
    runbook = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    said = re.findall(r"([\d.]+) %[^.%]*answered, and\s+([\d.]+) %[^.%]*at most (\d+) s", runbook)
    answered, quick, seconds = said[0]
    alerts = " ".join(rule["expr"] for rule in ALERTS)
    budgets = {"failed": f"{1 - float(answered) / 100:.3g}", "slow": f"{1 - float(quick) / 100:.3g}"}
    found = re.findall(r"requests_(failed|slow)_per_\w+:ratio_rate\w+ > (?:[\d.]+ \* )?([\d.]+)", alerts)
    assert set(found) == set(budgets.items())
    assert len(found) == 12
    assert {m[2] for r in RECORDS.values() for s in parse(r)[0] for m in s.matchers if m[0] == "le"} == {f"{seconds}.0"}


def test_the_configuration_scrapes_the_metrics_port_and_reads_these_rules() -> None:
    config = load(HERE / "prometheus.yml")
    port = SETTINGS["MILKWEED_METRICS_PORT"]
    assert config["scrape_configs"][0]["static_configs"] == [{"targets": [f"localhost:{port}"]}]
    assert {path for each in config["rule_files"] for path in HERE.glob(each)} == set((HERE / "rules").iterdir())


def test_inhibitions_name_alerts_that_are_there() -> None:
    config, names = load(HERE / "alertmanager.yml"), {rule["alert"] for rule in ALERTS}
    for rule in config["inhibit_rules"]:
        for side in ("source_matchers", "target_matchers"):
            for operator, value in re.findall(r'alertname (=~|!=|=) "([^"]+)"', " ".join(rule[side])):
                assert any(re.fullmatch(value, name) if operator == "=~" else name == value for name in names)


def tool(name: str, *arguments: str) -> str:
    """Run a tool of Prometheus, which must find nothing wrong, and return what it prints; skip without it."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} here: Debian has it in prometheus or prometheus-alertmanager")
    ran = subprocess.run([path, *arguments], cwd=HERE, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def rules_found(text: str) -> int:
    """Return how many rules promtool says that it has checked."""
    return sum(map(int, re.findall(r"(\d+) rules found", text)))


def test_promtool_takes_configuration_and_rules() -> None:
    assert rules_found(tool("promtool", "check", "config", "prometheus.yml")) == len(RULES)


@pytest.mark.slow_beyond(3)
@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.stem)
def test_promtool_finds_every_case_as_expected(path: Path) -> None:
    tool("promtool", "test", "rules", str(path.relative_to(HERE)))


@pytest.mark.parametrize("severity", ["page", "ticket"])
def test_alertmanager_routes_by_severity(severity: str) -> None:
    routed = tool("amtool", "config", "routes", "test", "--config.file=alertmanager.yml", f"severity={severity}")
    assert routed.split() == [severity]
