"""The manifests fit each other: names, selectors, labels, who may reach whom."""

from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from milkweed.server.fetch.addresses import is_public

PARTS = {"app.kubernetes.io/name": "milkweed", "app.kubernetes.io/component": "server"}
ANY_POD = [{"namespaceSelector": {}}]
MONITORING = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def test_nothing_is_there_twice_and_all_is_in_one_namespace(manifests: Any) -> None:
    names = [(each["apiVersion"], each["kind"], each["metadata"]["name"]) for each in manifests.documents]
    assert len(names) == len(set(names))
    for each in manifests.documents:
        if each["kind"] != "Namespace":
            assert each["metadata"]["namespace"] == "milkweed", each["metadata"]["name"]
            assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "milkweed", each["metadata"]["name"]


def test_selectors_find_the_pods(manifests: Any) -> None:
    spread = manifests.pod["topologySpreadConstraints"]
    selectors = [
        manifests.one("Service")["spec"]["selector"],
        manifests.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        *(each["spec"]["podSelector"]["matchLabels"] for each in manifests.of("NetworkPolicy")),
        *(each["spec"]["selector"]["matchLabels"] for each in manifests.of("Deployment")),
        *(each["labelSelector"]["matchLabels"] for each in spread),
    ]
    assert selectors == [PARTS] * len(selectors)  # few and lasting: a Deployment's can never be changed
    assert manifests.pod_labels.items() >= PARTS.items()
    assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]


def test_what_is_named_is_there(manifests: Any) -> None:
    used = [volume["persistentVolumeClaim"]["claimName"] for volume in claimed(manifests)]
    assert used == [each["metadata"]["name"] for each in manifests.of("PersistentVolumeClaim")]
    mounted = {mount["name"] for container in manifests.containers for mount in container["volumeMounts"]}
    assert mounted == manifests.volumes.keys()
    assert manifests.environment  # every ConfigMap that it takes variables from is there


def claimed(manifests: Any) -> list[dict[str, Any]]:
    return [volume for volume in manifests.pod["volumes"] if "persistentVolumeClaim" in volume]


def test_what_comes_in_and_goes_out(manifests: Any) -> None:
    policy = manifests.one("NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy, "an API server drops an empty list: the render would never be what it has"
    peers = {port["port"]: rule["from"] for rule in policy["ingress"] for port in rule["ports"]}
    open_to = {"http": ANY_POD, "metrics": MONITORING, "grpc": ANY_POD}
    assert peers == {port["name"]: open_to[port["name"]] for port in manifests.server["ports"]}
    others = [each for each in manifests.of("NetworkPolicy") if each["metadata"]["name"] != "milkweed"]
    fetches = "fetch" in manifests.names  # images; an init container: models
    assert len(others) == len(manifests.pod.get("initContainers", [])) + fetches
    for each in others:
        ports = {(port["protocol"], port["port"]) for rule in each["spec"]["egress"] for port in rule["ports"]}
        assert ports == {("UDP", 53), ("TCP", 53), ("TCP", 443)}


def test_images_come_from_the_internet_alone(kustomize: Any) -> None:
    made = kustomize("light", "fetch")
    _, rule = made.one("NetworkPolicy", "milkweed-fetch")["spec"]["egress"]
    closed = [network for peer in rule["to"] for network in peer["ipBlock"].get("except", ())]
    assert not [network for network in closed if is_public(str(ip_network(network)[0]))]
    opened = [ip_network(peer["ipBlock"]["cidr"]) for peer in rule["to"]]
    inside = ("10.0.0.1", "100.100.100.200", "168.63.129.16", "169.254.169.254", "172.31.0.1", "192.168.0.1", "fd00::1")
    for address in map(ip_address, inside):
        through = [network for network in opened if address in network]
        assert not through or any(address in ip_network(network) for network in closed)
    assert "MILKWEED_FETCH_HOSTS" not in made.environment  # whoever names hosts knows them


def test_one_pod_at_a_time_may_be_taken_away(manifests: Any) -> None:
    budget = {**manifests.one("PodDisruptionBudget")["spec"]}
    del budget["selector"]
    assert budget == {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow"}


def test_one_party_decides_how_many_there_are(manifests: Any) -> None:
    scalers = manifests.of("HorizontalPodAutoscaler") + manifests.of("ScaledObject")
    assert len(scalers) <= 1
    for deployment in manifests.of("Deployment"):
        assert ("replicas" in deployment["spec"]) == (not scalers)
    for scaler in scalers:
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "milkweed"}
        assert scaler["spec"]["scaleTargetRef"] == target
        assert manifests.one("Deployment")


def test_held_requests_go_to_the_service_and_start_the_deployment(kustomize: Any) -> None:
    made = kustomize("light", "scale-to-zero")
    (trigger,) = made.one("ScaledObject")["spec"]["triggers"]
    target = made.one("InterceptorRoute", trigger["metadata"]["interceptorRoute"])["spec"]["target"]
    service = made.one("Service", target["service"])
    assert target["portName"] in {port["name"] for port in service["spec"]["ports"]}


@pytest.mark.parametrize("overlay", ["light", "gpu"])
def test_kserve_gets_the_pod_of_the_deployment(kustomize: Any, overlay: str) -> None:
    deployed = kustomize(overlay, "models-objectstore")
    served = kustomize(overlay, "models-objectstore", "kserve")
    assert not served.of("Deployment")
    environment = [*deployed.server["env"], {"name": "PROTOCOL", "value": "v2"}]
    container = {**deployed.server, "name": "kserve-container", "env": environment}
    assert served.pod == {**deployed.pod, "containers": [container]}
    assert served.server["ports"][0]["name"] == "http"  # the one that KServe asks
