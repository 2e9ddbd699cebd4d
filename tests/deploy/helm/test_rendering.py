"""Tests the rendered objects of the chart: schemas, references between objects, and restrictions of pods."""

from __future__ import annotations

import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import pytest
import yaml

from deploy.chart.readme import CHART
from oxproxy.config.loader import parse_settings
from oxproxy.config.secrets import read_secret
from oxproxy.rules.loader import load_rules
from oxproxy.yamlfile.document import Faults
from tests.deploy.helm.rendering import (
    JSON,
    NAMESPACE,
    VERSIONS,
    configuration,
    containers,
    objects,
    of_kind,
    pod_templates,
    rendered,
    the,
    validate,
    variant,
    variants,
)

TOKENS: JSON = {"tokensSecret": "tokens", "tokens": [{"name": "alice", "role": "view", "key": "alice"}]}
#: Values in addition to the variants in ci/, one set for each option.
SWITCHES: dict[str, JSON] = {
    "defaults": {},
    "sidecar alone": {"mode": "sidecar"},
    "other names": {"nameOverride": "amqp", "commonLabels": {"a": "b"}},
    "password": {"control": {"password": "not-a-secret"}},
    "audit on the pod's own disk": {"audit": {"enabled": True}},
    "audit in a sidecar": {"mode": "sidecar", "audit": {"enabled": True}},
    "report": {
        "audit": {"enabled": True, "volume": {"persistentVolumeClaim": {"claimName": "audit"}}},
        "report": {"enabled": True, "output": {"persistentVolumeClaim": {"claimName": "report"}}},
    },
    "one after the other": {"updateStrategy": {"type": "Recreate"}},
    "open network policy": {"networkPolicy": {"enabled": True}},
    "service monitor": {"serviceMonitor": {"enabled": True}},
    "pod monitor for a gateway": {"podMonitor": {"enabled": True}},
    "no account": {"serviceAccount": {"create": False}},
    "no budget": {"podDisruptionBudget": {"enabled": False}},
    "autoscaling": {"autoscaling": {"enabled": True}},
    "load balancer": {"service": {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}},
    "node port": {"service": {"type": "NodePort", "nodePort": 30673}},
    "monitored sidecar": {"mode": "sidecar", "podMonitor": {"enabled": True}},
    "stops at once": {"drain": {"deadlineSeconds": 0, "preStopSeconds": 0}},
}
MATRIX: dict[str, JSON] = {**SWITCHES, **{name: variant(name) for name in variants()}}

every_case = pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())


@pytest.mark.parametrize("version", VERSIONS)
@every_case
def test_every_object_is_valid_for_the_schemas_of_kubernetes(values: JSON, version: str) -> None:
    documents = objects(values)
    assert documents
    for document in documents:
        validate(document, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_reject_an_unknown_key(version: str) -> None:
    wrong = the("Deployment", {}) | {"spec": the("Deployment", {})["spec"] | {"replica": 2}}
    with pytest.raises(jsonschema.ValidationError):
        validate(wrong, version)


def test_the_schemas_of_prometheus_operator_reject_an_unknown_key() -> None:
    monitor = the("ServiceMonitor", {"serviceMonitor": {"enabled": True}})
    with pytest.raises(jsonschema.ValidationError):
        validate(monitor | {"spec": monitor["spec"] | {"endpoint": []}}, VERSIONS[0])


@every_case
def test_object_names_are_unique_and_all_objects_have_labels(values: JSON) -> None:
    documents = objects(values)
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(names) == len(set(names))
    assert all(len(name) <= 63 for _, name in names)
    for document in documents:
        labels = document["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["app.kubernetes.io/instance"] == "router"


@every_case
def test_pods_and_containers_are_restricted(values: JSON) -> None:
    for template in pod_templates(values):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        for container in containers(template):
            assert_restricted(container)


def assert_restricted(container: JSON) -> None:
    context = container["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert "memory" in container["resources"]["limits"]


@every_case
def test_mounts_and_volumes_match(values: JSON) -> None:
    for template in pod_templates(values):
        volumes = [volume["name"] for volume in template["spec"].get("volumes", ())]
        mounts = {mount["name"] for container in containers(template) for mount in container.get("volumeMounts", ())}
        assert sorted(volumes) == sorted(mounts)


@every_case
def test_no_volume_is_mounted_with_a_subpath(values: JSON) -> None:
    for template in pod_templates(values):
        mounts = [mount for container in containers(template) for mount in container.get("volumeMounts", ())]
        assert all("subPath" not in mount for mount in mounts)


@every_case
def test_config_maps_and_secrets_of_pods_are_in_the_release_or_in_the_values(values: JSON) -> None:
    made = {(document["kind"], document["metadata"]["name"]) for document in objects(values)}
    existing = yaml.safe_dump(values)
    for template in pod_templates(values):
        text = yaml.safe_dump(template["spec"].get("volumes", []))
        for kind, name in references(yaml.safe_load(text)):
            assert (kind, name) in made or re.search(rf"\b{re.escape(name)}\b", existing), (kind, name)


def references(value: Any) -> set[tuple[str, str]]:  # YAML of any shape
    """Return the ConfigMaps and Secrets that volumes refer to."""
    if isinstance(value, list):
        return {reference for item in value for reference in references(item)}
    if not isinstance(value, dict):
        return set()
    result = {reference for item in value.values() for reference in references(item)}
    if "configMap" in value:
        result.add(("ConfigMap", value["configMap"]["name"]))
    if "secret" in value:
        result.add(("Secret", value["secret"].get("secretName") or value["secret"]["name"]))
    return result


@every_case
def test_selectors_match_only_the_pods_of_the_gateway(values: JSON) -> None:
    gateways = of_kind("Deployment", values)
    for document in objects(values):
        selector = {
            "Service": lambda spec: spec["selector"],
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
            "Deployment": lambda spec: spec["selector"]["matchLabels"],
        }.get(document["kind"])
        if selector is None:
            continue
        wanted = selector(document["spec"]).items()
        assert wanted <= gateways[0]["spec"]["template"]["metadata"]["labels"].items()
        assert not any(wanted <= job_labels(job).items() for job in of_kind("CronJob", values))


def job_labels(job: JSON) -> dict[str, str]:
    labels: dict[str, str] = job["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    return labels


@every_case
def test_target_ports_of_services_exist_in_the_container(values: JSON) -> None:
    for service in of_kind("Service", values):
        ports = {
            port["name"] for port in the("Deployment", values)["spec"]["template"]["spec"]["containers"][0]["ports"]
        }
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


@every_case
def test_probes_request_livez_and_readyz_on_the_admin_port(values: JSON) -> None:
    for gateway in of_kind("Deployment", values):
        (container,) = gateway["spec"]["template"]["spec"]["containers"]
        probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
        assert {name: probe["path"] for name, probe in probes.items()} == {
            "startup": "/livez",
            "liveness": "/livez",
            "readiness": "/readyz",
        }
        assert {probe["port"] for probe in probes.values()} == {"oxproxy-admin"}
        scheme = "HTTPS" if values.get("admin", {}).get("tlsSecret") else "HTTP"
        assert {probe["scheme"] for probe in probes.values()} == {scheme}


@every_case
def test_the_grace_period_of_a_pod_exceeds_the_drain(values: JSON) -> None:
    for gateway in of_kind("Deployment", values):
        spec = gateway["spec"]["template"]["spec"]
        stop = spec["containers"][0].get("lifecycle", {"preStop": {"exec": {"command": ["sleep", "0"]}}})
        waits = int(stop["preStop"]["exec"]["command"][1])
        drain = values.get("drain", {}).get("deadlineSeconds", 25)
        assert spec["terminationGracePeriodSeconds"] > waits + drain + 5
        if not values.get("existingConfig"):
            assert configuration(values)["shutdown"]["deadline"] == f"{drain}s"


def test_prometheus_scrapes_the_admin_port() -> None:
    monitored = {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}
    values: JSON = {"ports": {"admin": 15700}, "networkPolicy": {"enabled": True}, **monitored}
    (container,) = the("Deployment", values)["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"amqp": 5673, "oxproxy-admin": 15700}
    assert [point["port"] for point in the("PodMonitor", values)["spec"]["podMetricsEndpoints"]] == ["oxproxy-admin"]
    (service,) = [
        document for document in of_kind("Service", values) if document["metadata"]["name"].endswith("-admin")
    ]
    (port,) = service["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (15700, "oxproxy-admin")
    assert [point["port"] for point in the("ServiceMonitor", values)["spec"]["endpoints"]] == [port["name"]]
    (admitted,) = the("NetworkPolicy", values)["spec"]["ingress"][1]["ports"]
    assert admitted["port"] == "oxproxy-admin"


def test_the_number_of_gateway_pods_is_configurable() -> None:
    assert the("Deployment", {"replicaCount": 3})["spec"]["replicas"] == 3


@pytest.mark.parametrize(
    "values",
    [
        {"fullnameOverride": "1234"},
        {"nameOverride": "123"},
        {"control": {"existingSecret": "123", "key": "1"}},
        {"declared": {"existingSecret": "123", "keys": ["2025", "2026-01-01"]}},
        {"existingConfig": {"configMap": "123"}},
        {"existingConfig": {"secret": "123"}},
        {"rules": {"existingConfigMaps": ["123"], "existingSecrets": ["456"]}},
        {"tls": {"secretName": "123"}},
        {"priorityClassName": "123", "serviceAccount": {"name": "456"}},
    ],
    ids=str,
)
def test_names_that_look_like_numbers_are_strings(values: JSON) -> None:
    for document in objects(values):
        validate(document, VERSIONS[-1])


def test_the_first_line_of_a_rules_file_may_be_indented() -> None:
    text = "  # a comment\nvhost: /\n"
    (rules,) = (
        document
        for document in of_kind("ConfigMap", {"rules": {"files": {"a.yaml": text}}})
        if "a.yaml" in document["data"]
    )
    assert rules["data"]["a.yaml"] == text


def test_the_audit_log_on_the_pods_own_disk_is_smaller_than_its_volume() -> None:
    own = {"audit": {"enabled": True}}
    (volume,) = (volume for volume in volumes(own) if volume["name"] == "oxproxy-audit")
    assert volume["emptyDir"]["sizeLimit"] == "4Gi"
    assert configuration(own)["audit"]["keep_mib"] < 4096
    assert "keep_mib" not in configuration(SWITCHES["report"])["audit"]


def test_the_network_policy_permits_the_pod_of_helm_test() -> None:
    values = variant("gateway-everything")
    labels = the("Pod", values)["metadata"]["labels"].items()
    for rule in the("NetworkPolicy", values)["spec"]["ingress"]:
        peers = [peer["podSelector"]["matchLabels"].items() for peer in rule["from"] if set(peer) == {"podSelector"}]
        assert any(peer <= labels for peer in peers)


@every_case
def test_the_configuration_is_valid_for_the_sidecar(values: JSON) -> None:
    if values.get("existingConfig"):
        assert not [
            document for document in of_kind("ConfigMap", values) if document["metadata"]["name"].endswith("-config")
        ]
        return
    faults = Faults(secrets_required=False)
    text = yaml.safe_dump(configuration(values)).encode()
    settings = parse_settings(text, Path("/etc/oxproxy/config/oxproxy.yaml"), {}, faults)
    ports = values.get("ports", {"amqp": 5673, "admin": 15693})
    assert [listener.address.port for listener in settings.listen] == [ports["amqp"]]
    assert settings.admin.address is not None
    assert (settings.admin.address.host, settings.admin.address.port) == ("0.0.0.0", ports["admin"])


def test_client_certificates_are_required_if_client_ca_is_set() -> None:
    with_authority = configuration({"tls": {"secretName": "amqp-tls", "clientCa": "ca.crt"}})
    assert with_authority["listen"][0]["tls"]["client_ca"] == "/etc/oxproxy/tls/ca.crt"
    assert "client_ca" not in configuration({"tls": {"secretName": "amqp-tls"}})["listen"][0]["tls"]


@every_case
def test_rules_files_are_valid_for_the_sidecar(values: JSON, tmp_path: Path) -> None:
    for document in of_kind("ConfigMap", values):
        if document["metadata"]["name"].endswith("-rules"):
            for name, text in document["data"].items():
                (tmp_path / name).write_text(text)
            assert load_rules(sorted(tmp_path.iterdir())).rules.vhosts
            assert configuration(values)["rules"] == ["/etc/oxproxy/rules/*"]


def test_a_sidecar_listens_on_loopback_only() -> None:
    assert configuration({"mode": "sidecar"})["listen"] == [{"address": "127.0.0.1:5673"}]


def test_the_sidecar_mode_creates_no_pods() -> None:
    kinds = {document["kind"] for document in objects(variant("sidecar"))}
    assert kinds == {"ConfigMap", "PodMonitor", "PrometheusRule", "Secret"}


def test_values_in_config_override_those_of_the_chart() -> None:
    listen = [{"address": "[::]:5673"}]
    settings = configuration({"config": {"listen": listen, "admin": {"address": "[::]:15693"}}})
    assert (settings["listen"], settings["admin"]) == (listen, {"address": "[::]:15693"})


def test_prometheus_presents_its_token_and_verifies_the_certificate() -> None:
    values = variant("gateway-admin")
    for kind, endpoints in (("ServiceMonitor", "endpoints"), ("PodMonitor", "podMetricsEndpoints")):
        for endpoint in the(kind, values)["spec"][endpoints]:
            assert endpoint["scheme"] == "https"
            assert endpoint["tlsConfig"]["serverName"] == "oxproxy.example"
            assert endpoint["authorization"] == {"credentials": {"name": "admin-tokens", "key": "prometheus"}}
    admin = configuration(values)["admin"]
    assert admin["metrics_role"] == "view"
    assert [token["token_file"] for token in admin["tokens"]] == [
        "/etc/oxproxy/admin-tokens/alice",
        "/etc/oxproxy/admin-tokens/prometheus",
    ]
    assert "metrics_role" not in configuration({"admin": TOKENS})["admin"]


def test_a_password_is_only_in_the_secret() -> None:
    text = rendered({"control": {"password": "not-a-secret"}})
    assert [path for path, content in text.items() if "not-a-secret" in content] == []
    assert secret("control", {"control": {"password": "not-a-secret"}})["data"] == {"password": "bm90LWEtc2VjcmV0"}


def secret(name: str, values: JSON) -> JSON:
    """Return the chart's Secret whose name ends with ``name``."""
    (match,) = (document for document in of_kind("Secret", values) if document["metadata"]["name"].endswith(f"-{name}"))
    return match


def test_the_signing_secret_is_generated_and_kept() -> None:
    made = secret("declared", {})
    assert made["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert read_secret(b64decode(made["data"]["current"])) is not None
    # The next rendering generates a different secret, so it is neither constant nor derived from public values.
    assert secret("declared", {"replicaCount": 7})["data"] != made["data"]
    assert configuration({})["declared"] == {"secrets": [{"file": "/etc/oxproxy/declared/current"}]}
    assert checksums({}) == checksums({"replicaCount": 7})
    (volume,) = (document for document in volumes({}) if document["name"] == "oxproxy-declared")
    assert volume["secret"]["secretName"] == made["metadata"]["name"]
    assert volume["secret"]["items"] == [{"key": "current", "path": "current"}]


def test_an_existing_signing_secret_can_be_used() -> None:
    values = {"declared": {"existingSecret": "signing", "keys": ["next", "current"]}}
    assert [
        document["metadata"]["name"]
        for document in of_kind("Secret", values)
        if "declared" in document["metadata"]["name"]
    ] == []
    files = [{"file": f"/etc/oxproxy/declared/{key}"} for key in ("next", "current")]
    assert configuration(values)["declared"] == {"secrets": files}
    (volume,) = (document for document in volumes(values) if document["name"] == "oxproxy-declared")
    assert volume["secret"]["secretName"] == "signing"
    values_with_config = {"config": {"declared": {"secrets": [{"env": "SECRET"}]}}}
    assert "oxproxy-declared" not in {document["name"] for document in volumes(values_with_config)}
    assert configuration(values_with_config)["declared"] == {"secrets": [{"env": "SECRET"}]}


def volumes(values: JSON) -> list[JSON]:
    result: list[JSON] = the("Deployment", values)["spec"]["template"]["spec"]["volumes"]
    return result


def checksums(values: JSON) -> dict[str, str]:
    annotations = the("Deployment", values)["spec"]["template"]["metadata"]["annotations"]
    return {name: value for name, value in annotations.items() if name.startswith("checksum/")}


RULES = "exchanges: [{name: a, bindings: []}]"


@pytest.mark.parametrize(
    ("values", "changed"),
    [
        ({"rules": {"files": {"a.yaml": RULES}}}, {"checksum/config", "checksum/rules"}),
        ({"rules": {"files": {"b.yaml": RULES}}}, {"checksum/config", "checksum/rules"}),
        ({"config": {"log": {"level": "debug"}}}, {"checksum/config"}),
        ({"control": {"password": "another"}}, {"checksum/config"}),
        ({"podLabels": {"a": "b"}, "replicaCount": 5}, set()),
    ],
)
def test_checksums_change_with_the_files_that_pods_read_at_startup(values: JSON, changed: set[str]) -> None:
    before, after = checksums({}), checksums(values)
    assert {name for name in before if before[name] != after[name]} == changed


def test_the_checksum_of_rules_depends_on_their_content() -> None:
    before, after = (checksums({"rules": {"files": {"a.yaml": text}}}) for text in (RULES, RULES.replace("a,", "b,")))
    assert before["checksum/config"] == after["checksum/config"]
    assert before["checksum/rules"] != after["checksum/rules"]


def test_restarts_on_changed_rules_can_be_disabled() -> None:
    assert set(checksums({"rules": {"restartOnChange": False}})) == {"checksum/config"}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"control": {"password": "a", "existingSecret": "b"}}, "control: got password and existingSecret"),
        ({"control": {}}, "control: no password for the control user oxproxy, expected control.password or"),
        (
            {"control": {}, "config": {"upstream": {"control": {"username": None}}}},
            "for the control user guest, expected",
        ),
        ({"declared": {"keys": ["a", "b"]}}, "declared.keys: got several keys, expected declared.existingSecret"),
        ({"existingConfig": {"configMap": "a", "secret": "b"}}, "existingConfig: got configMap and secret"),
        ({"config": {"shutdown": {"deadline": "1s"}}}, "config.shutdown: use drain.deadlineSeconds"),
        ({"drain": {"terminationGracePeriodSeconds": 35}}, "expected more than 35"),
        ({"tls": {"clientCa": "ca.crt"}}, "tls.clientCa: requires tls.secretName"),
        ({"admin": {"tokensSecret": "tokens"}}, "admin: got one of tokens and tokensSecret"),
        ({"admin": {**TOKENS, "metricsKey": "bob"}}, "admin.metricsKey: got bob, expected the key of a token"),
        (
            {"admin": {"tlsSecret": "tls"}, "serviceMonitor": {"enabled": True}},
            "admin.monitorTls: not set, expected how Prometheus verifies",
        ),
        (
            {"config": {"admin": {"tls": {"certificate": "a", "key": "b", "client_ca": "c"}}}},
            "config.admin.tls.client_ca: requires client_verify: optional",
        ),
        (
            {"config": {"admin": {"tls": {"certificate": "a", "key": "b"}}}},
            "config.admin.tls.certificate: requires admin.tlsSecret",
        ),
        *(
            (
                {"admin": TOKENS, "config": {"admin": {"metrics_role": "view"}}, monitor: {"enabled": True}},
                "config.admin.metrics_role: requires admin.metricsKey",
            )
            for monitor in ("serviceMonitor", "podMonitor")
        ),
        (
            {"service": {"loadBalancerSourceRanges": ["192.0.2.0/24"]}},
            "service.loadBalancerSourceRanges: got the type Cl",
        ),
        (
            {"service": {"type": "NodePort", "loadBalancerClass": "a"}},
            "service.loadBalancerClass: got the type NodePort",
        ),
        ({"service": {"externalTrafficPolicy": "Local"}}, "service.externalTrafficPolicy: got the type ClusterIP"),
        ({"autoscaling": {"enabled": True, "maxReplicas": 1}}, "autoscaling.minReplicas: got 2, expected at most max"),
        ({"autoscaling": {"enabled": True, "targetCPUUtilizationPercentage": None}}, "autoscaling: no target"),
        (
            {"autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}},
            "no resources.requests.cpu",
        ),
        ({"ports": {"amqp": 15693}}, "ports.amqp: got 15693, expected a port other than ports.admin"),
        ({"report": {"enabled": True}}, "report: requires audit.enabled"),
        ({"audit": {"enabled": True}, "report": {"enabled": True}}, "report: requires audit.enabled"),
        ({"audit": SWITCHES["report"]["audit"], "report": {"enabled": True}}, "report.output: not set"),
    ],
)
def test_contradictory_values_are_rejected_with_the_reason(values: JSON, text: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=re.escape(text)):
        rendered(values)


@pytest.mark.parametrize(
    "values",
    [
        {"config": {"upstream": {"control": {"password_env": "PASSWORD"}}}},
        {"config": {"upstream": {"control": {"password_file": "/etc/oxproxy/trust/password"}}}},
        {"extraEnv": [{"name": "OXPROXY_UPSTREAM__CONTROL__PASSWORD", "valueFrom": {"secretKeyRef": {}}}]},
        {"existingConfig": {"configMap": "settings"}},
    ],
    ids=str,
)
def test_the_control_users_password_can_be_given_outside_the_values(values: JSON) -> None:
    assert rendered({"control": {}, **values})


@pytest.mark.parametrize(
    "values",
    [
        {"mode": "daemon"},
        {"replicas": 3},
        {"image": {"tag": 1}},
        {"image": {"digest": "latest"}},
        {"ports": {"amqp": 0}},
        {"rules": {"files": ["a.yaml"]}},
        {"rules": {"files": {"a/b.yaml": ""}}},
        {"rules": {"files": {"a.yaml": "queues: []\nexchnages:\n  - name: orders\n"}}},
        {"config": {"upstraem": {"address": "rabbitmq:5672"}}},
        {"config": {"upstream": {"adress": "rabbitmq:5672"}}},
        {"config": {"log": {"level": "loud"}}},
        {"networkPolicy": {"brokerPorts": []}},
        {"prometheusRule": {"runbookBase": "docs/runbooks/"}},
        {"service": {"loadBalancerSourceRanges": ["anywhere"]}},
        {"autoscaling": {"minReplicas": 0}},
        {"extraObjects": {"kind": "ConfigMap"}},
        {"report": {"output": {"emptyDir": {}, "nfs": {}}}},
        {"report": {"schedule": "17 1 * *"}},
        {"report": {"schedule": "@nightly"}},
    ],
    ids=str,
)
def test_the_schema_rejects_invalid_values(values: JSON) -> None:
    with helm_python.Chart.load(CHART) as chart, pytest.raises(helm_python.HelmValuesError):
        chart.validate_schema(chart.merge_values(values))


@pytest.mark.parametrize("schedule", ["@daily", "@midnight", "*/5 1,2 1-5 * MON"])
def test_a_schedule_is_a_name_or_has_five_fields(schedule: str) -> None:
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(chart.merge_values({"report": {"schedule": schedule}}))


@pytest.mark.parametrize(
    "config",
    [
        {"admin": None},
        {"audit": None},
        {"declared": None},
        {"declared": {"secrets": None}},
        {"declared": {"secrets": []}},
    ],
    ids=str,
)
def test_an_empty_section_of_the_configuration_changes_nothing(config: JSON) -> None:
    name = "oxproxy/templates/configmap.yaml"
    assert rendered({"config": config})[name] == rendered({"config": {}})[name]


def test_a_key_with_the_value_null_is_part_of_the_configuration() -> None:
    values: JSON = {"config": {"limits": {"patience": None}, "audit": {"keep_mib": None}}, "audit": {"enabled": True}}
    manifest = yaml.safe_load(rendered(values)["oxproxy/templates/configmap.yaml"])
    config = yaml.safe_load(manifest["data"]["oxproxy.yaml"])
    assert (config["limits"], config["audit"]["keep_mib"]) == ({"patience": None}, None)


@pytest.mark.parametrize("name", yaml.safe_load((CHART / "values.yaml").read_text()))
def test_a_null_value_is_rejected_by_the_schema_unless_it_is_optional(name: str) -> None:
    refusal = ""
    try:
        rendered({name: None})
    except helm_python.HelmValuesError as error:
        refusal = str(error)
    assert not refusal or f"missing property '{name}'" in refusal


def test_notes_contain_the_namespace_of_the_release() -> None:
    assert f"{NAMESPACE}.svc" in rendered({})["oxproxy/templates/NOTES.txt"]


def test_notes_of_the_sidecar_mode_list_the_requirements_for_pods() -> None:
    notes = rendered(variant("sidecar"))["oxproxy/templates/NOTES.txt"]
    assert "restartPolicy: Always" in notes
    assert "terminationGracePeriodSeconds by 40:" in notes


def test_the_autoscaler_sets_the_number_of_pods() -> None:
    values = {"autoscaling": {"enabled": True, "minReplicas": 3, "maxReplicas": 4}}
    gateway, scaler = the("Deployment", values), the("HorizontalPodAutoscaler", values)
    assert "replicas" not in gateway["spec"]
    assert the("Deployment", {})["spec"]["replicas"] == 2
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", gateway["metadata"]["name"])
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (3, 4)
    (metric,) = scaler["spec"]["metrics"]
    assert metric["resource"] == {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}


def test_load_balancer_options_apply_only_to_the_service_for_producers() -> None:
    services = {
        service["metadata"]["name"]: service["spec"] for service in of_kind("Service", variant("gateway-everything"))
    }
    outside, admin = services["amqp-gateway"], services["amqp-gateway-admin"]
    assert outside["loadBalancerSourceRanges"] == ["192.0.2.0/24", "2001:db8::/32"]
    assert (outside["loadBalancerClass"], outside["loadBalancerIP"]) == ("example.com/internal", "192.0.2.7")
    assert (outside["externalTrafficPolicy"], outside["ports"][0]["nodePort"]) == ("Local", 30671)
    assert (admin["type"], "loadBalancerClass" in admin) == ("ClusterIP", False)


def test_extra_objects_are_rendered_from_yaml_and_from_strings() -> None:
    added = {document["metadata"]["name"]: document for document in of_kind("ConfigMap", variant("gateway-everything"))}
    assert added["router-notes"]["data"] == {"note": "for amqp-gateway"}
    assert added["as-text"]["metadata"]["labels"]["team"] == "messaging"


def test_notes_warn_of_the_default_url_of_runbooks() -> None:
    def notes(chosen: JSON) -> str:
        return rendered({"prometheusRule": {"enabled": True, **chosen}})["oxproxy/templates/NOTES.txt"]

    assert "Set prometheusRule.runbookBase" in notes({})
    assert "Set prometheusRule.runbookBase" not in notes({"runbookBase": "https://wiki.example/"})


@every_case
def test_helm_test_connects_to_the_services_of_the_release(values: JSON) -> None:
    pods = of_kind("Pod", values)
    assert len(pods) == len(of_kind("Deployment", values))
    for pod in pods:
        assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
        (container,) = pod["spec"]["containers"]
        script, host, port, security, readiness = container["args"]
        assert script.strip() == (CHART / "files" / "test" / "handshake.py").read_text().strip()
        services = {service["metadata"]["name"]: service["spec"]["ports"][0] for service in of_kind("Service", values)}
        assert services[host]["port"] == int(port)
        scheme, _, there = readiness.partition("://")
        assert scheme == ("https" if values.get("admin", {}).get("tlsSecret") else "http")
        name, _, path = there.partition(":")
        assert path == f"{services[name]['port']}/readyz"
        tls = values.get("tls", {})
        assert security == ("mutual" if "clientCa" in tls else "tls" if tls else "plain")
