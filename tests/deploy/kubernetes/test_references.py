"""The manifests fit each other: names, selectors, labels."""

from typing import Any

PARTS = {"app.kubernetes.io/name": "milkweed", "app.kubernetes.io/component": "server"}
CLUSTER_WIDE = {"Namespace"}


def test_nothing_is_there_twice_and_all_is_in_one_namespace(manifests: Any) -> None:
    names = [(each["apiVersion"], each["kind"], each["metadata"]["name"]) for each in manifests.documents]
    assert len(names) == len(set(names))
    for each in manifests.documents:
        if each["kind"] not in CLUSTER_WIDE:
            assert each["metadata"]["namespace"] == "milkweed", each["metadata"]["name"]
            assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "milkweed", each["metadata"]["name"]


def test_selectors_find_the_pods(manifests: Any) -> None:
    labels = manifests.pod_labels
    selectors = [manifests.one("Service")["spec"]["selector"]]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in manifests.of("PodDisruptionBudget")]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in manifests.of("NetworkPolicy")]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in manifests.of("Deployment")]
    spread = manifests.pod["topologySpreadConstraints"]
    selectors += [each["labelSelector"]["matchLabels"] for each in spread]
    assert len(selectors) >= 5
    for selector in selectors:
        assert selector == PARTS  # few and lasting: a Deployment's can never be changed
        assert selector.items() <= labels.items()
    assert {each["topologyKey"] for each in spread} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}


def test_what_is_named_is_there(manifests: Any) -> None:
    maps = {each["metadata"]["name"] for each in manifests.of("ConfigMap")}
    claims = {each["metadata"]["name"] for each in manifests.of("PersistentVolumeClaim")}
    sources = [source for container in manifests.containers for source in container.get("envFrom", [])]
    assert {source["configMapRef"]["name"] for source in sources if "configMapRef" in source} <= maps
    used = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in manifests.pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert used == claims
    volumes = {volume["name"] for volume in manifests.pod["volumes"]}
    mounted = {mount["name"] for container in manifests.containers for mount in container["volumeMounts"]}
    assert mounted == volumes


def test_a_changed_setting_is_a_rollout(manifests: Any) -> None:
    (source,) = manifests.server["envFrom"]
    name, _, content = source["configMapRef"]["name"].rpartition("-")
    assert name == "milkweed"
    assert len(content) == 10


def test_one_pod_at_a_time_may_be_taken_away(manifests: Any) -> None:
    budget = manifests.one("PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_one_party_decides_how_many_there_are(manifests: Any) -> None:
    scalers = manifests.of("HorizontalPodAutoscaler") + manifests.of("ScaledObject")
    assert len(scalers) <= 1
    for deployment in manifests.of("Deployment"):
        assert ("replicas" in deployment["spec"]) == (not scalers)
    for scaler in scalers:
        target = scaler["spec"]["scaleTargetRef"]
        assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "milkweed"}
        assert manifests.one("Deployment")


def test_held_requests_go_to_the_service_and_start_the_deployment(kustomize: Any) -> None:
    made = kustomize("cpu", "scale-to-zero")
    (trigger,) = made.one("ScaledObject")["spec"]["triggers"]
    route = made.one("InterceptorRoute", trigger["metadata"]["interceptorRoute"])["spec"]
    service = made.one("Service", route["target"]["service"])
    assert route["target"]["portName"] in {port["name"] for port in service["spec"]["ports"]}


def test_the_service_is_scraped(manifests: Any) -> None:
    monitors = [each for each in manifests.of("ServiceMonitor") if each["metadata"]["name"] == "milkweed"]
    service = manifests.one("Service")
    for monitor in monitors:
        selector = monitor["spec"]["selector"]["matchLabels"]
        assert selector.items() <= service["metadata"]["labels"].items()
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "milkweed"


def test_kserve_gets_the_pod_of_the_deployment(kustomize: Any) -> None:
    for overlay in ("cpu", "gpu"):
        deployed = kustomize(overlay, "models-objectstore")
        served = kustomize(overlay, "models-objectstore", "kserve")
        assert not served.of("Deployment")
        protocol = {"name": "PROTOCOL", "value": "v2"}
        expected = {
            **deployed.server,
            "name": "kserve-container",
            "env": [*deployed.server["env"], protocol],
        }
        assert served.pod == {**deployed.pod, "containers": [expected]}
        assert served.server["ports"][0] == {"name": "http", "containerPort": 8000, "protocol": "TCP"}
