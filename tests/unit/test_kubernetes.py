"""The manifests for Kubernetes and the Dockerfile in `docs/deploy` fit the schema, each other and
the product."""

from __future__ import annotations

import copy
import json
import re
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from meander.app.cli.main import app
from meander.app.config.settings import Settings
from meander.app.status.metrics_server import serving
from tests.support.deploy.manifests import (
    DEPLOY,
    MANIFESTS,
    Object,
    container,
    environ_of,
    faults_of_object,
    instructions,
    named,
    objects,
    pods,
    variables_of,
    with_pods,
)
from tests.support.doc_blocks import ROOT, blocks

FIELDS = {"status.podIP": "10.0.0.7"}
DOCKERFILE = DEPLOY / "Dockerfile"
STATE = "/var/lib/meander"


def driver() -> Object:
    return container(pods()["counts"])


# -- Kubernetes


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_a_manifest_holds_objects_of_kubernetes(file: Path) -> None:
    found = objects(file)
    assert found
    assert [fault for one in found for fault in faults_of_object(one)] == []


def test_a_wrong_object_is_found() -> None:
    wrong = copy.deepcopy(named("Deployment", "counts"))
    wrong["spec"]["replica"] = 1
    wrong["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = "90"
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGet"].pop("port")
    del wrong["metadata"]
    assert len(faults_of_object(wrong)) == 4
    assert faults_of_object({"kind": "Deploymen"}) == ["it has no known kind"]


@pytest.mark.parametrize("name", pods())
def test_an_object_with_pods_selects_them(name: str) -> None:
    one = with_pods()[name]
    labels = one["spec"]["template"]["metadata"]["labels"]
    assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_a_service_selects_the_pods_of_one_object_and_a_port_that_they_have() -> None:
    services = [one for one in objects() if one["kind"] == "Service"]
    assert {one["metadata"]["name"] for one in services} == {
        "counts-metrics", "spark-master", "spark-worker",
    }  # fmt: skip
    for service in services:
        selector = service["spec"]["selector"].items()
        (pod,) = (p for p in pods().values() if selector <= p["metadata"]["labels"].items())
        has = {port["name"]: port["containerPort"] for port in container(pod)["ports"]}
        for port in service["spec"].get("ports", []):
            assert has[port["targetPort"]] == port["port"]


@pytest.mark.parametrize("name", pods())
def test_what_a_pod_mounts_and_probes_exists(name: str) -> None:
    pod = pods()[name]
    one, spec = container(pod), pod["spec"]
    above = with_pods()[name]
    claims = [claim["metadata"]["name"] for claim in above["spec"].get("volumeClaimTemplates", [])]
    volumes = [volume["name"] for volume in spec["volumes"]] + claims
    assert sorted(mount["name"] for mount in one["volumeMounts"]) == sorted(volumes)
    for volume in spec["volumes"]:
        if "configMap" in volume:
            named("ConfigMap", volume["configMap"]["name"])
    ports = {port["name"] for port in one["ports"]}
    for probe in (one[kind] for kind in one if kind.endswith("Probe")):
        assert (probe.get("httpGet") or probe["tcpSocket"])["port"] in ports


@pytest.mark.parametrize("name", pods())
def test_a_pod_runs_without_the_rights_of_root(name: str) -> None:
    pod = pods()[name]
    whole, one = pod["spec"]["securityContext"], container(pod)["securityContext"]
    user = [text for word, text in instructions(DOCKERFILE) if word == "USER"][-1]
    assert user == f"{whole['runAsUser']}:{whole['runAsGroup']}"
    assert whole["runAsUser"] > 0 and whole["runAsNonRoot"]
    assert one["readOnlyRootFilesystem"] and not one["allowPrivilegeEscalation"]
    assert one["capabilities"] == {"drop": ["ALL"]}
    assert not pod["spec"]["automountServiceAccountToken"]


def test_each_pod_that_spark_writes_in_has_a_volume_for_it() -> None:
    folders = variables_of(DOCKERFILE)
    assert folders["SPARK_LOCAL_DIRS"] == STATE
    assert folders["NUMBA_CACHE_DIR"].startswith(STATE)
    for name in "counts", "spark-worker":
        mounts = {mount["mountPath"] for mount in container(pods()[name])["volumeMounts"]}
        assert {STATE, "/tmp"} <= mounts


def test_the_manifest_starts_a_run_with_options_that_exist() -> None:
    meander, run, *words = driver()["args"]
    assert (meander, run) == ("meander", "run")
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    # This raises an error for an unknown option.
    parsed = root.commands["run"].make_context("run", words).params
    mounts = {mount["mountPath"]: mount["name"] for mount in driver()["volumeMounts"]}
    assert mounts[str(parsed["config"].parent)] == "settings"
    assert parsed["config"].name in named("ConfigMap", "counts-settings")["data"]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, str]]:
    """Value and origin of each setting of the flow, as its pod has them."""
    file = tmp_path / "meander.toml"
    file.write_text(named("ConfigMap", "counts-settings")["data"]["meander.toml"])
    for name, value in environ_of(driver(), FIELDS).items():
        monkeypatch.setenv(name, value)
    shown = CliRunner().invoke(app, ["config", "--flow", "counts", "--config", str(file)])
    assert shown.exit_code == 0, shown.output
    rows = map(json.loads, shown.stdout.splitlines())
    return {row["name"]: (row["value"], row["from"]) for row in rows}


def test_the_flow_has_the_settings_of_its_pod(settings: dict[str, tuple[str, str]]) -> None:
    (port,) = driver()["ports"]
    assert settings["host"] == (FIELDS["status.podIP"], "environment MEANDER_FLOW__HOST")
    assert settings["metrics_port"][0] == str(port["containerPort"])
    assert settings["metrics_host"][0] == "0.0.0.0", "the probes come from outside the pod"
    assert settings["wait"][0] == "true"
    annotations = named("Service", "counts-metrics")["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == settings["metrics_port"][0]


def test_kubernetes_waits_longer_for_the_end_than_the_flow_takes(
    settings: dict[str, tuple[str, str]],
) -> None:
    grace = pods()["counts"]["spec"]["terminationGracePeriodSeconds"]
    assert settings["on_stop"][0] != "none"
    assert grace >= float(settings["on_stop_timeout"][0]) + 30


def test_one_driver_ends_before_the_next_one_starts() -> None:
    spec = named("Deployment", "counts")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_secret_holds_settings_of_kafka() -> None:
    secret = named("Secret", "counts-kafka")["stringData"]
    found = Settings.load(None, secret)
    assert {origin for _, _, origin in found.shown()} == {f"environment {name}" for name in secret}
    assert secret["MEANDER_KAFKA__SASL__PASSWORD"] not in repr(found)


def test_the_driver_answers_each_probe_of_its_pod() -> None:
    paths = {driver()[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness")}
    ready = driver()["readinessProbe"]["httpGet"]["path"]
    with serving(0) as metrics:
        assert metrics.address is not None
        base = metrics.address.removesuffix("/metrics")
        for path in paths:
            assert status(base + path) == 200
        assert status(base + ready) == 503, "no worker runs"
        assert status(base + "/nowhere") == 404


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


# -- the image


def test_the_image_has_a_base_of_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    found = dict(instructions(DOCKERFILE))
    assert (found["ARG"], found["FROM"]) == (f"BASE=meander:{version}", "${BASE}")
    base = dict(instructions(ROOT / "Dockerfile"))["FROM"]
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base)


def test_the_image_holds_the_flow_that_it_runs() -> None:
    found = dict(instructions(DOCKERFILE))
    file, folder = found["COPY"].split()
    assert file in {block.file for block in blocks("docs/quickstart.md")}
    assert json.loads(found["CMD"]) == ["meander", "run", f"{folder}{file}"]
    assert driver()["args"][:3] == json.loads(found["CMD"])
    assert json.loads(found["ENTRYPOINT"])[0] == "tini", "it passes SIGTERM on"
    images = {container(pod)["image"] for pod in pods().values()}
    assert len(images) == 1
    assert f"docker build --tag {images.pop()} ." in DOCKERFILE.read_text()
