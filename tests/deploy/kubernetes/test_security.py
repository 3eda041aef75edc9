"""Every container is as restricted as the Pod Security Standards' strictest level wants, and a bit more."""

from typing import Any

# https://kubernetes.io/docs/concepts/security/pod-security-standards/, level restricted; `image` since 1.33.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected"}
VOLUMES |= {"secret"}

UID = 65532  # of the Dockerfile


def test_the_pod_is_restricted(manifests: Any) -> None:
    pod = manifests.pod
    assert not [key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (UID, UID, UID)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not context.keys() & {"sysctls", "windowsOptions"}
    kinds = {key for volume in pod["volumes"] for key in volume if key != "name"}
    assert kinds - VOLUMES == set()


def test_every_container_is_restricted(manifests: Any) -> None:
    assert manifests.containers
    for container in manifests.containers:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["runAsNonRoot"] is True
        assert (context["runAsUser"], context["runAsGroup"]) == (UID, UID)
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not context.get("privileged")
        assert not [port for port in container.get("ports", []) if "hostPort" in port]


def test_no_token_is_mounted(manifests: Any) -> None:
    assert manifests.pod["automountServiceAccountToken"] is False
    account = manifests.one("ServiceAccount", manifests.pod["serviceAccountName"])
    assert account["automountServiceAccountToken"] is False
    assert not [kind for document in manifests.documents if "Role" in (kind := document["kind"])]


def test_the_namespace_enforces_it_and_there_is_no_secret(manifests: Any) -> None:
    assert not manifests.of("Secret")
    (namespace,) = manifests.of("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_images_have_a_fixed_tag(manifests: Any) -> None:
    images = [container["image"] for container in manifests.containers]
    images += [volume["image"]["reference"] for volume in manifests.pod["volumes"] if "image" in volume]
    for image in images:
        name, _, tag = image.rpartition(":")
        assert name, image
        assert tag not in ("", "latest"), image


def test_what_comes_in_and_goes_out(manifests: Any) -> None:
    policy = manifests.one("NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert not policy.get("egress")
    peers = {port["port"]: rule["from"] for rule in policy["ingress"] for port in rule["ports"]}
    assert peers.keys() == {port["name"] for port in manifests.server["ports"]}
    assert peers["http"] == [{"namespaceSelector": {}}]
    monitoring = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    assert peers["metrics"] == [{"namespaceSelector": monitoring}]
    others = [each for each in manifests.of("NetworkPolicy") if each["metadata"]["name"] != "milkweed"]
    fetches = bool(manifests.pod.get("initContainers"))
    assert [each["metadata"]["name"] for each in others] == ["milkweed-models-store"] * fetches
    for each in others:
        ports = {(port["protocol"], port["port"]) for rule in each["spec"]["egress"] for port in rule["ports"]}
        assert ports == {("UDP", 53), ("TCP", 53), ("TCP", 443)}
